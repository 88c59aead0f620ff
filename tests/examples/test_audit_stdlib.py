"""The example `audit_stdlib`: the laws of what its nodes compute, and its demonstration as a user runs it."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from stategraph import State

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import audit_stdlib
from stdlib_audit import cycles, discover, evidence, ranking, report
from stdlib_audit.measure import Measurement, complexity, measure

REPOSITORY = Path(__file__).parents[2]


def tree(root: Path, **files: str) -> Path:
    """Write files below root; a double underscore in a name stands for a directory, `.py` is added."""
    for name, source in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source), encoding="utf-8")
    return root


def measured(tmp_path: Path, source: str, file: str = "module") -> Measurement:
    """The measurement of one file with this source."""
    return measure(tree(tmp_path, **{file: source}), f"{file.replace('__', '/')}.py")


class TestDiscover:
    def test_sorted_relative_paths(self, tmp_path: Path) -> None:
        """Every Python file is found once, in sorted order, whatever else lies there."""
        tree(tmp_path, b="", a__c="", a="")
        (tmp_path / "notes.txt").touch()

        assert discover.discover(tmp_path) == ["a.py", "a/c.py", "b.py"]

    @pytest.mark.parametrize("directory", ["site-packages", "dist-packages", "__pycache__"])
    def test_installed_packages_are_left_out(self, tmp_path: Path, directory: str) -> None:
        """What is installed is not the standard library, however deep it lies."""
        (tmp_path / "lib" / directory).mkdir(parents=True)
        (tmp_path / "lib" / directory / "installed.py").touch()

        assert discover.discover(tmp_path) == []

    def test_the_standard_library_has_its_modules(self) -> None:
        """The real one is where it is looked for: every module that Python names and that is a file, and no other."""
        found = discover.discover(discover.stdlib_root())
        tops = {file.partition("/")[0].removesuffix(".py") for file in found}

        assert {"ast.py", "json/decoder.py", "json/__init__.py"} <= set(found)
        assert not [file for file in found if "-packages/" in file]
        missing = sys.stdlib_module_names.difference(sys.builtin_module_names, tops)
        assert not [name for name in missing if (discover.stdlib_root() / f"{name}.py").is_file()]
        assert all((discover.stdlib_root() / file).is_file() for file in found)

    @pytest.mark.parametrize(
        ("file", "module", "package"),
        [
            ("a.py", "a", ""),
            ("a/__init__.py", "a", "a"),
            ("a/b.py", "a.b", "a"),
            ("a/b/__init__.py", "a.b", "a.b"),
        ],
    )
    def test_names(self, file: str, module: str, package: str) -> None:
        """A package is named by its directory, and is its own package."""
        assert (discover.module_name(file), discover.package_name(file)) == (module, package)

    @pytest.mark.parametrize(("count", "size", "expected"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2)])
    def test_batches(self, count: int, size: int, expected: int) -> None:
        """The last batch may be smaller."""
        assert discover.batches(count, size) == expected


class TestImports:
    @pytest.mark.parametrize(
        ("file", "statement", "expected"),
        [
            ("a__b__c", "import x.y, z", ["x.y", "z"]),
            ("a__b__c", "from x import y as renamed", ["x.y"]),
            ("a__b__c", "from x import *", ["x"]),
            ("a__b__c", "from . import d", ["a.b.d"]),
            ("a__b__c", "from .d import e", ["a.b.d.e"]),
            ("a__b__c", "from ..d import e, f", ["a.d.e", "a.d.f"]),
            ("a__b__c", "from .. import *", ["a"]),
            ("a__b__c", "from ... import d", []),
            ("c", "from . import d", []),
        ],
    )
    def test_relative_imports_are_resolved(
        self, tmp_path: Path, file: str, statement: str, expected: list[str]
    ) -> None:
        """Imports are absolute names; one that leaves its top package is none."""
        assert measured(tmp_path, statement, file)["imports"] == expected

    def test_a_package_is_its_own_package(self, tmp_path: Path) -> None:
        """In `__init__.py`, one dot is the package itself."""
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "__init__.py").write_text("from .b import c")

        assert measure(tmp_path, "a/__init__.py")["imports"] == ["a.b.c"]

    @pytest.mark.parametrize(
        "source",
        [
            "def f():\n    import x",
            "class C:\n    async def f(self):\n        import x",
            "if TYPE_CHECKING:\n    import x",
            "if typing.TYPE_CHECKING:\n    import x",
            'if __name__ == "__main__":\n    import x',
        ],
    )
    def test_what_does_not_run_on_import_is_deferred(self, tmp_path: Path, source: str) -> None:
        """Imports that wait, or never run, are only counted."""
        found = measured(tmp_path, source)

        assert (found["imports"], found["deferred_imports"]) == ([], 1)

    @pytest.mark.parametrize(
        "source",
        [
            "class C:\n    import x",
            "if TYPE_CHECKING:\n    pass\nelse:\n    import x",
            "try:\n    import x\nexcept ImportError:\n    pass",
            "try:\n    pass\nexcept ImportError:\n    import x",
            "try:\n    pass\nfinally:\n    import x",
            "with y:\n    import x",
            "match y:\n    case 1:\n        import x",
            "while y:\n    pass\nelse:\n    import x",
        ],
    )
    def test_what_runs_on_import_is_found_in_any_block(self, tmp_path: Path, source: str) -> None:
        """Blocks run when the file is imported, except those of functions."""
        found = measured(tmp_path, source)

        assert (found["imports"], found["deferred_imports"]) == (["x"], 0)


class TestMeasure:
    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("pass", 1),
            ("if a: pass", 2),
            ("if a: pass\n    elif b: pass\n    else: pass", 3),
            ("for a in b: pass", 2),
            ("while a: pass", 2),
            ("try: pass\n    except A: pass\n    except B: pass", 3),
            ("return a if b else c", 2),
            ("return a and b and c or d", 4),
            ("return [a for a in b if c if d for e in f]", 5),
            ("match a:\n        case 1: pass\n        case _: pass", 3),
            ("return lambda: a if b else c", 2),
            ("def inner():\n        if a: pass", 1),
        ],
    )
    def test_complexity_counts_decisions(self, body: str, expected: int) -> None:
        """One way through, and one more for each decision; those of an inner function are its own."""
        assert complexity(ast.parse(f"def f():\n    {body}").body[0]) == expected

    def test_the_most_complex_function_is_named(self, tmp_path: Path) -> None:
        """The complexity of a file is that of its functions and of itself; the worst function is named."""
        source = """\
            if a: pass
            class C:
                def f(self):
                    def g():
                        if b or c: pass
            """

        found = measured(tmp_path, source)

        assert (found["functions"], found["classes"], found["lines"]) == (2, 1, 5)
        assert (found["complexity"], found["complexity_max"]) == (2 + 1 + 3, 3)
        assert found["most_complex"] == "C.f.<locals>.g"

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("", 1),
            ('"""Documented."""', 0),
            ('"""Documented."""\ndef f(): pass\nclass C:\n    def m(self): pass', 3),
            ('"""Documented."""\ndef f(): "Documented."', 0),
            ('"""Documented."""\ndef _f(): pass\nclass _C:\n    def m(self): pass', 0),
            ('"""Documented."""\ndef f():\n    "Documented."\n    def inner(): pass', 0),
        ],
    )
    def test_public_definitions_need_docstrings(self, tmp_path: Path, source: str, expected: int) -> None:
        """What is private, is in something private or is local needs none; the module does."""
        assert measured(tmp_path, source)["missing_docstrings"] == expected

    def test_a_private_module_needs_no_docstrings(self, tmp_path: Path) -> None:
        """A module whose name begins with an underscore is private, and so is what is in it."""
        assert measured(tmp_path, "", "_private")["missing_docstrings"] == 0

    @pytest.mark.parametrize(
        "source",
        [
            b"def broken(:\n",
            b"# coding: no-such-encoding\n",
            b"name = '\xff'\n",
            b"null = '\x00'\n",
            b"(" * 10_000 + b"\n",
            b"x = " + b"-" * 100_000 + b"1\n",
        ],
        ids=["syntax", "encoding", "bytes", "null", "brackets", "depth"],
    )
    def test_a_file_that_does_not_parse_is_recorded(self, tmp_path: Path, source: bytes) -> None:
        """It is measured as far as that goes, and says why not further."""
        (tmp_path / "broken.py").write_bytes(source)

        found = measure(tmp_path, "broken.py")

        assert found["error"]
        assert (found["module"], found["lines"]) == ("broken", 1)
        assert (found["complexity"], found["imports"]) == (0, [])

    def test_a_file_that_cannot_be_read_is_recorded(self, tmp_path: Path) -> None:
        """A dangling link or a file that has just gone does not stop an audit."""
        assert measure(tmp_path, "gone.py")["error"] == "FileNotFoundError"

    def test_audited_code_does_not_warn(self, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
        """An invalid escape in a file that is measured is no warning of the audit."""
        measured(tmp_path, r"x = '\d'")

        assert not recwarn.list

    def test_nesting_deeper_than_the_interpreter_recurses(self, tmp_path: Path) -> None:
        """What parses is measured, however deep it is."""
        source = "x = " + "+".join(["1"] * 1500)

        assert measured(tmp_path, source)["complexity"] == 1


def graph_of(text: str) -> dict[str, list[str]]:
    """`graph_of("a>b b>a")`: an import graph from its edges."""
    edges = [edge.split(">") for edge in text.split()]
    modules = sorted({module for edge in edges for module in edge})
    return {module: sorted(target for source, target in edges if source == module) for module in modules}


class TestCycles:
    def test_a_name_leads_to_the_longest_module(self) -> None:
        """A name in a module is an import of the module; what is not measured, and oneself, is left out."""
        files = [
            {"module": "a", "imports": ["a.b", "a.b.name", "a.name", "sys"]},
            {"module": "a.b", "imports": ["a.other"]},
        ]

        assert cycles.import_graph(files) == {"a": ["a.b"], "a.b": ["a"]}

    @pytest.mark.parametrize(
        ("edges", "expected"),
        [
            ("", []),
            ("a>b b>c a>c", []),
            ("a>b b>a", [["a", "b"]]),
            ("a>b b>c c>a c>d d>e e>d", [["a", "b", "c"], ["d", "e"]]),
            ("y>z z>y a>b b>a", [["a", "b"], ["y", "z"]]),
            ("a>b b>a b>c c>b", [["a", "b", "c"]]),
            ("r>a a>b b>c c>d d>b c>a", [["a", "b", "c", "d"]]),
        ],
    )
    def test_groups_that_import_each_other(self, edges: str, expected: list[list[str]]) -> None:
        """The largest group is first, equal ones by name; what only leads to a cycle or away is in none."""
        assert cycles.cycles(graph_of(edges)) == expected

    def test_every_module_is_in_one_component(self) -> None:
        """Components divide the graph, and a module imported in a circle of thousands does not overflow."""
        size = 5000
        graph = {f"{at:04}": [f"{(at + 1) % size:04}"] for at in range(size)} | {"alone": ["0000"]}

        found = list(cycles.components(graph))

        assert sorted(module for group in found for module in group) == sorted(graph)
        assert sorted(map(len, found)) == [1, size]

    @pytest.mark.parametrize(
        ("edges", "expected"),
        [
            ("a>b b>a", ["a", "b"]),
            ("a>b b>c c>a a>c", ["b", "c", "a"]),
            ("a>b b>c c>d d>a b>a", ["c", "d", "a", "b"]),
        ],
    )
    def test_the_ring_has_no_shortcut_for_its_first_module(self, edges: str, expected: list[str]) -> None:
        """It is the longest of the shortest cycles."""
        graph = graph_of(edges)

        assert cycles.ring(graph, cycles.cycles(graph)[0]) == expected

    def test_a_cycle_is_closed_and_stays_inside(self) -> None:
        """Each module imports the next, the last one the first."""
        graph = graph_of("a>b b>c c>d d>a b>x x>a")

        found = cycles.shortest_cycle(graph, "a", {"a", "b", "c", "d"})

        assert found == ["a", "b", "c", "d"]


class TestRanking:
    def test_equal_values_are_ordered_by_name(self) -> None:
        """A ranking depends on the measurements, not on their order."""
        lines = {"b": 1, "c": 2, "a": 1}
        files = [{"module": module, "lines": lines[module], "imports": []} for module in lines]

        assert [one["module"] for one in ranking.top(files, "lines", 2)] == ["c", "a"]
        assert ranking.top(files, "lines", 3) == ranking.top(files[::-1], "lines", 3)

    def test_tests_and_unparsable_files_are_not_ranked(self) -> None:
        """What applications cannot import is not the library."""
        names = ["a", "a.tests.b", "test.c", "idlelib.idle_test.d", "testing"]
        files = [{"module": name, "error": None} for name in names]
        broken = {"module": "e", "error": "SyntaxError"}

        assert [one["module"] for one in ranking.library([*files, broken])] == ["a", "testing"]

    def test_importers_are_counted(self) -> None:
        """A module counts once for each that imports it."""
        assert ranking.most_imported(graph_of("a>c b>c a>b"), 1) == [{"module": "c", "importers": 2}]


class TestReport:
    def test_numbers_are_aligned_and_bars_escaped(self) -> None:
        """A table survives what is in it."""
        assert report.table(("what", "lines"), [("a|b", 1234)]).splitlines() == [
            "| what | lines |",
            "| --- | ---: |",
            "| a\\|b | 1,234 |",
        ]

    def test_mermaid_draws_the_imports_inside(self) -> None:
        """Every module of the group and every import among them, nothing else."""
        drawn = report.mermaid(graph_of("a>b b>a b>c"), ["a", "b"])

        assert drawn.split()[3:-1] == ['m0["a"]', 'm1["b"]', "m0", "-->", "m1", "m1", "-->", "m0"]

    def test_the_drawing_closes(self) -> None:
        """The arrow leads from the last module back to the first."""
        assert report.drawing(["a", "b", "c"]).splitlines() == [
            "+-> a",
            "|     imports",
            "|   b",
            "|     imports",
            "+-- c",
        ]


Progress = tuple[int, int]

SMALL = {
    "a": "import b, c\n\n\ndef f(x):\n    return x or 1\n",
    "b": "import c",
    "c": "import a",
    "d": '"""Documented."""\n',
    "broken": "def (:",
}


def without_time(text: str) -> str:
    """A report without its only line that no two audits share."""
    return re.sub(r"Measured in .*", "", text)


def audit(tmp_path: Path, root: Path, name: str = "run", batch_size: int = 2) -> tuple[str, list[Progress]]:
    """Run the audit of the files below root in this process. Returns the report and the progress shown."""
    shown: list[Progress] = []
    graph = audit_stdlib.audit_graph(
        tmp_path / "store", tmp_path / f"{name}.md", None, lambda done, total: shown.append((done, total))
    )
    graph.execute(audit_stdlib.start(root, name, batch_size=batch_size))
    return (tmp_path / f"{name}.md").read_text(encoding="utf-8"), shown


class TestGraph:
    def test_the_report_is_deterministic(self, tmp_path: Path) -> None:
        """The same files give the same report, whatever the batches."""
        root = tree(tmp_path / "library", **SMALL)

        first, _ = audit(tmp_path, root, "first")
        second, _ = audit(tmp_path, root, "second", batch_size=100)

        assert without_time(first) == without_time(second)

    def test_the_report_has_what_was_found(self, tmp_path: Path) -> None:
        """Totals, rankings, cycles with their drawing, and what does not parse."""
        text, _ = audit(tmp_path, tree(tmp_path / "library", **SMALL))

        assert "| files | 5 |" in text
        assert "| `a` | 2 | `f` |" in text
        assert "| 3 | `a`, `b`, `c` |" in text
        assert "+-> b\n|     imports\n|   c\n|     imports\n+-- a" in text
        assert "| `broken.py` | SyntaxError: " in text

    def test_progress_grows_to_the_total(self, tmp_path: Path) -> None:
        """After each batch, how far the audit is."""
        _, shown = audit(tmp_path, tree(tmp_path / "library", **SMALL))

        assert shown == [(2, 5), (4, 5), (5, 5)]

    def test_nothing_to_audit(self, tmp_path: Path) -> None:
        """An empty directory gives an empty report."""
        (tmp_path / "library").mkdir()

        text, shown = audit(tmp_path, tmp_path / "library")

        assert set(re.findall(r"^\| [a-z ]+ \| (\d+) \|$", text, re.MULTILINE)) == {"0"}
        assert "| `" not in text
        assert text.count("There are none.") == 2
        assert shown == [(0, 0)]


class TestEvidence:
    def test_what_is_recorded_is_read_back(self, tmp_path: Path) -> None:
        """The log names each batch and the process that began it."""
        evidence.record(tmp_path / "log", 1)
        evidence.record(tmp_path / "log", 2)

        assert evidence.executions(tmp_path / "log") == [(1, os.getpid()), (2, os.getpid())]

    def test_no_log_is_no_execution(self, tmp_path: Path) -> None:
        """Before the first batch there is no log."""
        assert evidence.executions(tmp_path / "log") == []

    def test_batches_belong_to_the_process_that_began_them(self) -> None:
        """Two processes may have done the same batch."""
        runs = [evidence.Execution(*run) for run in [(1, 70), (2, 70), (2, 80), (3, 80)]]

        assert evidence.by_process(runs) == {70: [1, 2], 80: [2, 3]}
        assert evidence.repeated(runs) == [2]

    @pytest.mark.parametrize(
        ("done", "wrong"),
        [
            ([1, 2, 3, 4], []),
            ([1, 2, 3, 3, 4], []),
            ([1, 2, 2, 3, 3, 4], [2]),
            ([1, 2, 3], [4]),
            ([1, 2, 3, 3, 3, 4], [3]),
            ([2, 3, 4], [1]),
        ],
    )
    def test_violations(self, done: list[int], wrong: list[int]) -> None:
        """With two of four batches saved, those must be done once, the others once or twice."""
        found = evidence.violations([evidence.Execution(batch, 1) for batch in done], saved=2, total=4)

        assert [int(sentence.split()[1]) for sentence in found] == wrong


def run_example(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the example as a user does, in its own process and directory."""
    return subprocess.run(
        [sys.executable, REPOSITORY / "examples" / "audit_stdlib.py", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


class TestCommands:
    def test_the_demonstration_proves_its_point(self, tmp_path: Path) -> None:
        """Killed and resumed: no saved batch is done again, and the report is that of an audit left alone."""
        size = ("--limit", "400", "--batch-size", "10")

        demo = run_example(tmp_path, "demo", *size)
        alone = run_example(tmp_path, "run", *size)

        assert (demo.returncode, alone.returncode) == (0, 0), demo.stderr + alone.stderr
        assert "was killed (SIGKILL)" in demo.stdout
        assert "none of the 40 was left out" in demo.stdout
        killed, undisturbed = tmp_path / "stdlib-audit-demo" / "report.md", tmp_path / "stdlib-audit.md"
        assert without_time(killed.read_text("utf-8")) == without_time(undisturbed.read_text("utf-8"))

    def test_a_demonstration_too_small_fails(self, tmp_path: Path) -> None:
        """With a handful of batches there is no half to kill it at."""
        found = run_example(tmp_path, "demo", "--limit", "10")

        assert found.returncode == 1
        assert "too few" in found.stderr

    @pytest.mark.parametrize("option", ["--limit", "--batch-size"])
    def test_sizes_are_positive(self, tmp_path: Path, option: str) -> None:
        """A batch of nothing would never end."""
        found = run_example(tmp_path, "run", option, "0")

        assert found.returncode == 2
        assert "at least 1" in found.stderr

    def test_an_error_is_a_line(self, tmp_path: Path) -> None:
        """A run that is not in the store is told, not thrown at the user."""
        found = run_example(tmp_path, "resume", "nobody")

        assert found.returncode == 1
        assert "CheckpointNotFoundError: " in found.stderr
        assert "Traceback" not in found.stderr


def test_the_loop_goes_on_while_files_remain() -> None:
    """It ends with the last file that is measured, whatever the size of the batches."""
    files = State({"files": ["a.py", "b.py"], "measured": [{}]})

    assert audit_stdlib.files_remain(files)
    assert not audit_stdlib.files_remain(files.set("measured", [{}, {}]))
