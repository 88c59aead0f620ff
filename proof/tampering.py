"""Stores that were tampered with in every known way run nothing and touch nothing outside.

Each store is used in a process with an audit hook, which reports what the interpreter opens, imports and runs. The hook
misses the actions of SQLite, so the proof also checks the files beside the store and tables that planted statements
write to.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from proof.forgeries import EXPLODED, Forgery, forgeries
from proof.report import Report
from proof.workers import limited, tell, work_out
from proof.workload import DATABASE, open_store
from stategraph.errors import CheckpointError, ConfigError, UnknownNameError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores._rows.encoder import CheckpointEncoder
from stategraph.stores._rows.seals import Sealer
from stategraph.stores.base import Policy
from stategraph.stores.serializers import find_format

_STORE = "store"
_SECRET = b"what stands beside the store"

_NEVER = (
    *("pickle.find_class", "marshal.loads", "exec", "compile", "import"),
    *("socket.", "ctypes.", "subprocess.", "shutil.", "code.__new__", "function.__new__"),
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.startfile", "os.putenv"),
    *("os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"),
    *("sqlite3.enable_load_extension", "sqlite3.load_extension"),
)
"""Prefixes of audit events that a store must never cause."""

_AT_PATHS = ("open", "os.mkdir", "os.listdir", "os.scandir", "sqlite3.connect")
"""Audit events that a store may cause for its own files."""


# --------------------------------------------------------------------------- in the process with the hook


class Hook:
    """An audit hook that records forbidden events.

    Args:
        file: The database of the current store, whose files alone may be opened.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.is_on = True
        self.heard: list[str] = []
        self.count = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an event; the interpreter never removes a hook."""
        if not self.is_on:
            return
        self.count += 1
        if event.startswith(_NEVER) or (event in _AT_PATHS and not self._is_own(arguments[0])):
            self.heard.append(f"{event} {', '.join(map(repr, arguments[:2]))}"[:200])

    def _is_own(self, path: Any) -> bool:
        text = os.fsdecode(path) if isinstance(path, bytes | str | os.PathLike) else str(path)
        text = unquote(text.removeprefix("file://").partition("?")[0])
        own = {":memory:", str(self.file.parent), str(self.file.with_name("owners"))}
        own |= {f"{self.file}{end}" for end in ("", "-wal", "-shm", "-journal", "-owners")}
        return text in own or _is_metadata(text)


def _is_metadata(path: str) -> bool:
    """Return whether a file lists installed packages, which may bring an unknown serializer along."""
    return path in sys.path or Path(path).name in {"entry_points.txt", "METADATA"}


def use(folder: Path) -> list[str]:
    """Make every call of a store; return how each ended."""
    store: CheckpointStore | None = None
    ends: list[str] = []

    def ask(call: Callable[[], object]) -> object:
        try:
            found = call()
        except CheckpointError as error:
            ends.append(type(error).__name__)
            return None
        except Exception as error:  # noqa: BLE001 - errors are outcomes
            ends.append(f"FOREIGN {type(error).__name__}: {error}"[:200])
            return None
        ends.append("went well")
        return found

    opened = ask(lambda: open_store(folder))
    store = opened if isinstance(opened, CheckpointStore) else None
    for call in [] if store is None else _calls(store):
        ask(call)
    return ends


def _calls(store: CheckpointStore) -> Iterator[Callable[[], object]]:
    for run in ("a", "b"):
        yield partial(store.load, run)
        yield partial(store.load, run, 2)
        yield partial(store.history, run)
        yield partial(store.diff, run, 1, 2)
    yield from (store.list, store.runs)
    for run in ("a", "b", "c"):
        yield partial(store.save, State({"n": 9}, run_id=run, step=9))
    yield partial(store.fork, "a", "forked")
    yield partial(store.rollback, "b", 1)
    yield store.prune
    for run in ("a", "b"):
        yield partial(store.delete, run)
    yield store.close


def _work(folder: Path) -> Report:
    """Use the stores in a folder under the hook."""
    report = Report("tampering")
    clean, *cases = sorted(folder.iterdir())
    _warm_up(clean)
    hook = Hook(clean / _STORE / DATABASE)
    sys.addaudithook(hook)
    report.failures += _control(hook, clean)
    for case in cases:
        hook.file, hook.heard = case / _STORE / DATABASE, []
        with limited():
            ends = use(case / _STORE)
        kind, _, way = case.name[5:].partition(", ")
        report.tried[kind] += 1
        wrong = [*hook.heard, *(end for end in ends if end.startswith("FOREIGN"))]
        report.failures += [f"{kind}, {way}: {what}" for what in wrong]
        report.found.update(end for end in ends if end not in wrong)
    hook.is_on = False
    report.found["audit events heard"] = hook.count
    return report


def _warm_up(clean: Path) -> None:
    """Import all that stategraph imports late: for stores, compressed payloads and errors about unknown serializers."""
    use(clean / _STORE)
    with suppress(ConfigError):
        CheckpointEncoder(Sealer(), compress=True)
    try:
        find_format("unheard-of")
    except UnknownNameError as error:
        str(error)


def _control(hook: Hook, clean: Path) -> Iterator[str]:
    """Yield events that the hook misses: without them it would prove nothing."""
    pickle.loads(pickle.dumps(Path))  # noqa: S301 - the hook must record it
    (clean / "secret").read_bytes()
    for event in ("pickle.find_class", "open"):
        if not any(heard.startswith(event) for heard in hook.heard):
            yield f"the hook does not hear {event}"


# --------------------------------------------------------------------------- making them, and looking afterwards


def prove(share: float, seed: int) -> list[Report]:
    """Tamper with a store in every way at share 1.0, in some at a smaller one."""
    report = Report("a store that was tampered with runs nothing and touches nothing outside")
    step = round(1 / min(1.0, max(share, 0.05)))
    with tempfile.TemporaryDirectory(prefix="stategraph-proof-", ignore_cleanup_errors=True) as folder:
        _make_all(Path(folder), list(forgeries())[seed % step :: step], report)
        work_out("tampering", [(folder,)], report)
        for case in sorted(Path(folder).iterdir()):
            report.failures += [f"{case.name}: {problem}" for problem in _left(case)]
    return [report]


def _make_all(folder: Path, ways: Sequence[tuple[str, str, Forgery]], report: Report) -> None:
    """Make a clean store, and one for every way to tamper."""
    clean = folder / "0000 clean"
    _make(clean)
    for number, (kind, way, forge) in enumerate(ways, 1):
        case = folder / f"{number:04} {kind}, {way.replace('/', '_')[:100]}"
        shutil.copytree(clean, case)
        try:
            forge(case / _STORE)
        except sqlite3.Error:  # SQLite keeps NULL out of most columns, and has not all modules everywhere
            report.found["ways that SQLite itself refuses"] += 1
            shutil.rmtree(case)


def _make(case: Path) -> None:
    with open_store(case / _STORE) as store:
        for run, last in (("a", 2), ("b", 1)):
            store.retain(run, Policy("full"))
            for step in range(1, last + 1):
                store.save(State({"n": step, "pair": (step, b"x")}, run_id=run, step=step, checkpoint_node="node"))
    (case / "secret").write_bytes(_SECRET)


def _left(case: Path) -> Iterator[str]:
    """Yield the effects of planted code in a store and beside it."""
    beside = {file.name for file in case.iterdir()}
    if beside != {_STORE, "secret"} or (case / "secret").read_bytes() != _SECRET:
        yield f"beside it there is now {sorted(beside)}"
    inside = {file.name.partition("-")[0] for file in (case / _STORE).iterdir()}
    if inside - {DATABASE, "owners"}:
        yield f"in it there is now {sorted(inside)}"
    with closing(sqlite3.connect(case / _STORE / DATABASE)) as database, suppress(sqlite3.Error):
        if database.execute(f"SELECT count(*) FROM {EXPLODED}").fetchone() != (0,):  # noqa: S608 - a constant
            yield "a statement that was planted in it was run"


if __name__ == "__main__":
    tell(_work(Path(sys.argv[1])))
