"""The folder of a sample on a real disk, removed once the sample is taken."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""File systems on which a sync costs nothing, so that a row of durable stores would measure nothing."""


class _Scratch:
    """The folder of the current sample, the objects to close at its end, and the objects that outlive it."""

    def __init__(self) -> None:
        self.base = Path("/var/tmp") if Path("/var/tmp").is_dir() else Path(tempfile.gettempdir())  # not a RAM disk
        self.opened = ExitStack()
        self.kept = ExitStack()
        self.folder = self.base


_scratch = _Scratch()


@contextmanager
def use(base: Path | None) -> Iterator[None]:
    """Put all files beneath a folder (None: where the system keeps files across restarts), and remove them."""
    _scratch.base = base or _scratch.base
    if file_system() in IN_MEMORY:
        raise SystemExit(f"{_scratch.base} is in memory: name a folder on a disk with --folder")
    with _scratch.kept:
        yield


@contextmanager
def sample() -> Iterator[None]:
    """Take a sample in a new folder; close at its end all that it opened."""
    outer = _scratch.folder, _scratch.opened
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=_scratch.base) as folder, ExitStack() as opened:
        _scratch.folder, _scratch.opened = Path(folder), opened
        try:
            yield
        finally:
            _scratch.folder, _scratch.opened = outer


def folder() -> Path:
    """The folder of this sample."""
    return _scratch.folder


def at_end(close: Callable[[], object]) -> None:
    """Have something closed when the sample is taken."""
    _scratch.opened.callback(close)


def close() -> None:
    """Close it now, to see what it leaves in the folder."""
    _scratch.opened.close()


def prepared(make: Callable[[Path, int], object]) -> Callable[[int], Path]:
    """Return the folder that `make` has filled for that many steps: once, for all samples of this process."""

    @functools.cache
    def folder_for(steps: int) -> Path:
        folder = Path(_scratch.kept.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-", dir=_scratch.base)))
        make(folder, steps)
        return folder

    return folder_for


def file_system() -> str:
    """The type of the file system that the files are on, as far as the operating system tells."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown file system"
    lines = [line.split(" ") for line in mounts.read_text().splitlines()]
    base = _scratch.base.resolve()
    holding = [(len(point), kind) for _, point, kind, *_ in lines if base.is_relative_to(point)]
    return max(holding, default=(0, "unknown file system"))[1]
