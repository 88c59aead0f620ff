"""Build the archives of a release, check them, and sign them if there is an identity: `make release`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TRIED = ROOT / "build" / "release"

NEEDED = ("stategraph/py.typed", "stategraph/web/templates", "stategraph/web/static")
"""What has to be in a wheel; of folders, something in them."""

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
    """Do it; return the exit code."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(TRIED, ignore_errors=True)
    _run(sys.executable, "-m", "build", str(ROOT))
    archives = sorted(map(str, DIST.iterdir()))
    _run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    (wheel,) = DIST.glob("*.whl")
    (source,) = DIST.glob("*.tar.gz")
    problems = [*_problems_of(wheel), *_problems_of_source(source)]
    if not problems:
        _try(wheel)
        _sign(archives)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _problems_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = [needed for needed in NEEDED if not any(name.startswith(needed) for name in names)]
    strange = [name for name in names if not name.startswith(("stategraph/", "stategraph-"))]
    return [f"{wheel.name} lacks {one}" for one in missing] + [f"{wheel.name} holds {one}" for one in strange]


def _problems_of_source(source: Path) -> list[str]:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "docs/README.md")
    return [f"{source.name} lacks {one}" for one in needed if one not in names]


def _try(wheel: Path) -> None:
    """Install a wheel into an environment of its own; run a program that dies, and once more."""
    venv.create(TRIED, with_pip=True)
    python = str(TRIED / "bin" / "python")
    _run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", str(wheel))
    (TRIED / "program.py").write_text(PROGRAM, encoding="utf-8")
    died = subprocess.run([python, "program.py"], cwd=TRIED, check=False).returncode
    if died != 7:
        raise SystemExit(f"the installed program ended with {died}, where it was to die")
    _run(python, "program.py", folder=TRIED)
    print(f"{wheel.name}: installed, killed, resumed")


def _sign(archives: list[str]) -> None:
    """Sign the archives, if there is an identity to do it with."""
    token = os.environ.get("SIGSTORE_IDENTITY_TOKEN")
    if not token and "ACTIONS_ID_TOKEN_REQUEST_TOKEN" not in os.environ:
        print("not signed: there is no identity here; run it in CI, or set SIGSTORE_IDENTITY_TOKEN")
        return
    given = ["--identity-token", token] if token else []
    _run(sys.executable, "-m", "sigstore", "sign", *given, *archives)


def _run(*command: str, folder: Path = ROOT) -> None:
    subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    sys.exit(main())
