"""Build the archives of a release in dist/ and check them: `make release`, or `make release TAG=v0.2.0rc1` to tag them.

They are built twice, and the same bytes have to come of it; the wheel has its bill of materials; it is installed into
environments of its own, with the versions that the bill names, where a run is killed and resumed, and where the tests
out of the source archive pass. The tools and the backend are those of tools/locks/release.txt.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TRIED = ROOT / "build" / "release"

NEEDED = ("stategraph/py.typed", "stategraph/web/templates", "stategraph/web/static")
"""What has to be in a wheel; of folders, something in them."""

NEEDED_SOURCE = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "docs/README.md")
"""What has to be in a source archive."""

ADDRESSED = ("pyproject.toml", "SECURITY.md", ".github")
"""What names the repository: OWNER and REPO stand for it until it has an address."""

_RELATIVE = re.compile(r"\]\((?!https?:|#)[^)]*\)")

PROGRAM = """
import os
from stategraph import State, StateGraph

def second(state):
    if not os.path.exists("died"):
        open("died", "w").close()
        os._exit(7)
    return {"n": state["n"] + 1}

graph = StateGraph("smoke", store="runs.db")
graph.add_node("first", lambda state: {"n": 1})
graph.add_node("second", second)
graph.add_edge("first", "second")
graph.set_entry_point("first")
graph.set_exit_point("second")
final = graph.run(State(run_id="a"))
assert (final["n"], final.step) == (2, 2), final
"""
"""Dies in its second step when it is run for the first time, and goes on when it is run again."""


def main() -> int:
    """Build, check, and tag if that is asked for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="the tag of this release, such as v0.2.0rc1: made here if it is not there")
    parser.add_argument("--quick", action="store_true", help="leave out the tests of the source archive")
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # what is tried is what is installed
    for folder in (DIST, TRIED):
        shutil.rmtree(folder, ignore_errors=True)
    archives = _build(ROOT, DIST)
    problems = [*_problems_of(*archives), *(_problems_of_tag(options.tag, archives[0]) if options.tag else ())]
    if not problems:
        _run_installed(archives[0])
        if not options.quick:
            _test_source(*archives)
        if options.tag:
            _tag(options.tag)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _build(source: Path, folder: Path) -> tuple[Path, Path]:
    """Build the wheel, by way of the source archive, and return both."""
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source))
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def _problems_of(wheel: Path, source: Path) -> Iterator[str]:
    _run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (text,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        bills = [archive.read(name).decode() for name in names if ".dist-info/sboms/" in name]
    yield from (f"{wheel.name} lacks {needed}" for needed in NEEDED if not any(n.startswith(needed) for n in names))
    yield from (f"{wheel.name} holds {n}" for n in names if not n.startswith(("stategraph/", "durable_stategraph-")))
    yield from (f"{wheel.name} describes itself with a link to nowhere: {link}" for link in _RELATIVE.findall(text))
    if not bills:
        yield f"{wheel.name} has no bill of materials"
    errors = [JsonStrictValidator(SchemaVersion.V1_7).validate_str(bill) for bill in bills]
    yield from (f"{wheel.name} has a bill of materials that is not valid: {error}" for error in errors if error)
    with tarfile.open(source) as sources:
        there = {name.partition("/")[2] for name in sources.getnames()}
    yield from (f"{source.name} lacks {needed}" for needed in NEEDED_SOURCE if needed not in there)
    _run("git", "clone", "--quiet", str(ROOT), str(TRIED / "commit"))
    again = _build(TRIED / "commit", TRIED / "again")
    for first, second in zip((wheel, source), again, strict=True):
        if first.read_bytes() != second.read_bytes():
            yield f"{first.name} is different when the last commit is built: see diffoscope {first} {second}"


def _problems_of_tag(tag: str, wheel: Path) -> Iterator[str]:
    version = wheel.name.split("-")[1]
    if tag != f"v{version}":
        yield f"the tag of version {version} is v{version}, and not {tag}: see __version__ in stategraph/__init__.py"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield f"CHANGELOG.md has no section: ## [{version}] - YYYY-MM-DD"
    unfilled = _output_of("git", "grep", "--files-with-matches", "--word-regexp", "OWNER", "--", *ADDRESSED)
    yield from (f"{file} has OWNER where the owner of the repository belongs" for file in unfilled.splitlines())
    if _output_of("git", "status", "--porcelain"):
        yield "there are changes that are not committed: see git status"
    if _output_of("git", "tag", "--list", tag) and _output_of("git", "rev-list", "-1", tag) != _output_of(
        "git", "rev-parse", "HEAD"
    ):
        yield f"the tag {tag} is there, and is that of another commit"


def _tag(tag: str) -> None:
    if not _output_of("git", "tag", "--list", tag):
        _run("git", "tag", "--annotate", tag, "--message", f"stategraph {tag.removeprefix('v')}")
        print(f"tagged; to publish it: git push --atomic origin main {tag}")


def _run_installed(wheel: Path) -> None:
    """Install the wheel with what it requires and no more; run a program that dies, and once more."""
    python = _environment("bare", str(wheel))
    (TRIED / "program.py").write_text(PROGRAM, encoding="utf-8")
    died = subprocess.run([python, "program.py"], cwd=TRIED, check=False).returncode
    if died != 7:
        raise SystemExit(f"the installed program ended with {died}, where it was to die")
    _run(python, "program.py", folder=TRIED)
    print(f"{wheel.name}: installed, killed, resumed")


def _test_source(wheel: Path, source: Path) -> None:
    """Run the tests out of the source archive, with the package as the wheel has it."""
    with tarfile.open(source) as archive:
        archive.extractall(TRIED, filter="data")
    folder = TRIED / source.name.removesuffix(".tar.gz")
    python = _environment("tests", f"{wheel}[examples]", "--group", f"{folder / 'pyproject.toml'}:test")
    shutil.rmtree(folder / "stategraph")
    (installed,) = (TRIED / "tests" / "lib").glob("python*/site-packages/stategraph")
    (folder / "stategraph").symlink_to(installed)
    _run(python, "-m", "pytest", "-q", "-n", "4", "--dist", "worksteal", "-p", "no:cacheprovider", folder=folder)


def _environment(name: str, *requirements: str) -> str:
    """Make an environment with these requirements, and return its Python."""
    uv, folder = (sys.executable, "-m", "uv"), TRIED / name
    _run(*uv, "venv", "--quiet", "--python", sys.executable, str(folder))
    tested = ("--constraint", str(ROOT / "tools" / "locks" / "package.txt"))
    _run(*uv, "pip", "install", "--quiet", "--python", str(folder), *tested, *requirements)
    return str(folder / "bin" / "python")


def _output_of(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode and done.stderr:  # git grep ends with 1 if nothing matches
        raise SystemExit(done.stderr)
    return done.stdout.strip()


def _run(*command: str, folder: Path = ROOT) -> None:
    subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    sys.exit(main())
