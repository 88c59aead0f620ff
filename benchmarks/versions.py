"""`python -m benchmarks.versions COMMIT ...`: this stategraph beside versions of it before.

A process for each version takes samples of the same rows in turn, so that a slow minute of the machine is one for all
of them. The table has medians and, of each older version, the ratio of this one to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Self

from benchmarks import scratch
from benchmarks.measure import Contender, Effort, Row
from benchmarks.report import quantity
from benchmarks.rows import ROWS

ROOT = Path(__file__).resolve().parent.parent
_SERVE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from benchmarks.versions import serve; serve()"


def main() -> None:
    """Measure all versions, and print a line for each row and contender."""
    options = _options()
    effort = Effort(rounds=5, divisor=10) if options.quick else Effort(rounds=21)
    with tempfile.TemporaryDirectory() as folder:
        roots = [*(_checkout(commit, Path(folder)) for commit in options.commits), ROOT]
        sys.stdout.write(" | ".join(["work", "contender", *options.commits, "this", "ratios"]) + "\n")
        for row, contender in _ours(options.only):
            with ExitStack() as stack:
                versions = [stack.enter_context(_Version(root)) for root in roots]
                shown = _compared(row, contender, versions, effort)
            sys.stdout.write(f"{row.title} | {contender.name} | {shown}\n")
            sys.stdout.flush()


def _checkout(commit: str, folder: Path) -> Path:
    """Return a folder with the package as it was at a commit."""
    root = folder / commit
    root.mkdir()
    archive = subprocess.run(["git", "archive", commit, "stategraph"], check=True, capture_output=True, cwd=ROOT)
    subprocess.run(["tar", "-x"], check=True, input=archive.stdout, cwd=root)
    return root


def _compared(row: Row, contender: Contender, versions: Sequence[_Version], effort: Effort) -> str:
    samples: dict[_Version, list[float]] = {version: [] for version in versions}
    for round_ in range(effort.rounds_of(row, contender) + 1):
        for version, taken in samples.items():
            value = version.sample(row, contender, effort)
            if value is not None and round_:  # the first one warms up
                taken.append(value)
    *before, this = [median(taken) if taken else None for taken in samples.values()]
    shown = ["cannot do it" if value is None else quantity(value, row.unit) for value in (*before, this)]
    ratios = [f"{this / value:.2f}" if value and this is not None else "-" for value in before]
    return " | ".join([*shown, *ratios])


def serve() -> None:
    """Take the samples that standard input asks for, by the title of a row and the name of a contender."""
    by_name = {(row.title, contender.name): (row, contender) for row, contender in _ours("")}
    with scratch.use(None):
        for line in sys.stdin:
            title, name, steps = line.rstrip("\n").split("\t")
            row, contender = by_name[title, name]
            try:
                with scratch.sample():
                    print(row.gauge(contender.work, int(steps)), flush=True)
            except Exception:  # noqa: BLE001 - an older version has no such thing
                print(flush=True)


class _Version:
    """A process with one version of stategraph."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        link = Path(self._folder.name) / "stategraph"
        link.symlink_to(self._root.resolve() / "stategraph", target_is_directory=True)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, self._folder.name],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder.name,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def sample(self, row: Row, contender: Contender, effort: Effort) -> float | None:
        """Return one sample; None if this version cannot do it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{row.title}\t{contender.name}\t{effort.steps_of(row, contender)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        return float(answer) if answer else None


def _ours(only: str) -> Iterator[tuple[Row, Contender]]:
    """Yield the contenders that a goal is meant for, with their rows."""
    for row in ROWS:
        for contender in row.contenders:
            if contender.judged and only in row.title:
                yield row, contender


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("commits", nargs="+", metavar="COMMIT", help="an older version")
    parser.add_argument("--only", metavar="TEXT", default="", help="only rows whose title contains this")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of fewer steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
