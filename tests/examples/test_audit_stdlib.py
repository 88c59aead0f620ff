"""The example `audit_stdlib`: the results of its nodes, and its demonstration as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import audit_stdlib

REPOSITORY = Path(__file__).parents[2]


def tree(root: Path, **files: str) -> Path:
    """Write files below root; a double underscore in a name stands for a directory, `.py` is added."""
    for name, source in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source), encoding="utf-8")
    return root


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
        size = ("--limit", "100", "--batch-size", "5")

        demo = run_example(tmp_path, "demo", *size)
        alone = run_example(tmp_path, "run", *size)

        assert (demo.returncode, alone.returncode) == (0, 0), demo.stderr + alone.stderr
        assert "was killed (SIGKILL)" in demo.stdout
        assert "none of the 20 was left out" in demo.stdout
        killed, undisturbed = tmp_path / "stdlib-audit-demo" / "report.md", tmp_path / "stdlib-audit.md"
        assert without_time(killed.read_text("utf-8")) == without_time(undisturbed.read_text("utf-8"))
