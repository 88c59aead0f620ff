"""Check that type checkers report each slip in tests/typing and nothing else, and that examples have none.

It also checks that the public types of the package are complete, as pyright verifies them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SLIPS = ["tests/typing/slips.py", "tests/typing/more_slips.py", "tests/typing/typed_slips.py"]


def main() -> int:
    """Do it; return the exit code."""
    problems = [problem for path in SLIPS for problem in problems_of(path)]
    output = pyright("examples")
    if reported(output):
        problems.append(output)
    output = _run("pyright", "--pythonpath", sys.executable, "--ignoreexternal", "--verifytypes", "stategraph")
    if "completeness score: 100%" not in output:
        problems.append(output)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def problems_of(path: str) -> list[str]:
    """Return what the checkers have not reported in a file, and what they have reported although it is right."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    slips = {number for number, line in enumerate(lines, 1) if line.endswith("# slip")}
    found = {"mypy": reported(mypy(path)), "pyright": reported(pyright(path))}
    return [problem for checker, told in found.items() for problem in differences(checker, told, slips, lines)]


def mypy(path: str) -> str:
    """Return what mypy says of a file."""
    return _run("mypy", "--strict", "--no-error-summary", "--config-file=", "--cache-dir=.mypy_cache/slips", path)


def pyright(path: str) -> str:
    """Return what pyright says of a file or a folder."""
    return _run("pyright", "--pythonpath", sys.executable, path)


def reported(output: str) -> set[int]:
    """Return the numbers of the lines in which a checker has found an error."""
    return {int(number) for number in re.findall(r"\.py:(\d+)(?::\d+)?(?: -)?:? error", output)}


def differences(checker: str, told: AbstractSet[int], slips: AbstractSet[int], lines: list[str]) -> list[str]:
    """Return what a checker has not reported, and what it has reported although it is right."""
    missed = [f"{checker} does not report: {lines[number - 1]}" for number in sorted(slips - told)]
    wrong = [f"{checker} reports: {lines[number - 1]}" for number in sorted(told - slips)]
    return missed + wrong


def _run(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # where pyright looks for the package whose types it verifies
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    sys.exit(main())
