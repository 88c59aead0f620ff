"""Show the progress of an audit: a bar on a terminal, occasional lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeAlias

Show: TypeAlias = Callable[[int, int], None]

_LINES = 4


@contextmanager
def progress(label: str) -> Iterator[Show]:
    """Yield a function that takes the number of measured files and the total."""
    # rich is an extra; the audit works without it.
    shown = _bar if sys.stdout.isatty() and find_spec("rich") else _lines
    with shown(label) as show:
        yield show


@contextmanager
def _bar(label: str) -> Iterator[Show]:
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _lines(label: str) -> Iterator[Show]:
    last = -1

    def show(done: int, total: int) -> None:
        nonlocal last
        if (part := _LINES * done // max(total, 1)) > last:
            last = part
            print(f"{label}: {done:,} of {total:,} files", flush=True)

    yield show


def show_cursor() -> None:
    """Show the cursor again, which the bar of a killed process has hidden."""
    if sys.stdout.isatty():
        print("\x1b[?25h", flush=True)
