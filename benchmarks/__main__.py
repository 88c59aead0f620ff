"""`python -m benchmarks`: measure the rows, print the table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import benchmarks
from benchmarks import scratch
from benchmarks.measure import Effort, Result, Row, measure
from benchmarks.report import aligned, machine, markdown
from benchmarks.rows import ROWS

QUICK = Effort(rounds=3, divisor=10)


def main() -> None:
    """Measure what the command line asks for, and print it."""
    options = _options()
    rows = [row for row in ROWS if options.only in row.title and (options.all or options.only or not row.slow)]
    with scratch.use(options.folder):
        results = list(_measured(rows, QUICK if options.quick else Effort()))
    table = markdown(results) if options.markdown else aligned(results)
    sys.stdout.write(f"{machine()}\n\n{table}\n")


def _measured(rows: list[Row], effort: Effort) -> Iterator[Result]:
    for row in rows:
        sys.stderr.write(f"measuring: {row.title}\n")
        yield measure(row, effort)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of fewer steps")
    parser.add_argument("--all", action="store_true", help="the slow rows, too: stores of a million runs")
    parser.add_argument("--only", metavar="TEXT", default="", help="only rows whose title contains this")
    parser.add_argument("--folder", type=Path, help="where files go while they are measured: on a disk, not in memory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
