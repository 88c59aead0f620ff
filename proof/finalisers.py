"""Streams that are dropped anywhere, while collections and interrupts come anywhere: nothing hangs, nothing is lost."""

from __future__ import annotations

import _thread
import asyncio
import gc
import itertools
import logging
import random
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import attrs

from proof.report import Report
from proof.workers import limited, tell, work_out
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph
from stategraph.errors import CheckpointError, CheckpointNotFoundError, RunBusyError, RunCancelledError
from stategraph.stores import CheckpointStore
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore

CASES = 120
"""Cases at full length."""
_TOGETHER = 5  # cases that one process tries
_RUNS = 12  # that each thread of a case begins
_NODES = "abcdef"
_SAVED: list[dict[str, Any]] = [
    {"interval": interval, "durability": durability, "retention": retention}
    for interval in (1, 2, 4)
    for durability in ("sync", "async", "exit")
    for retention in ("latest", "full")
    if (durability, retention) != ("exit", "full")
]
_STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "runs.db"),
    "disk": lambda folder: DiskStore(folder / "runs"),
}
_THRESHOLDS = (1, 2, 5, 13, 40, 150, 700)


@attrs.define(eq=False)
class World:
    """What the threads of a case share, and what they have seen.

    Attributes:
        store: The store of the graph.
        other: Another one, which finalisers use, too.
        chance: What random choices come from.
        report: What is found.
        shown: The last step that was shown of each run.
        kept: The runs that finalisers have saved, and were told that they were saved.
        interrupts: How many interrupts there were. Each may cost one run its last step.
        left: Streams that were left lying about, for another thread to drop.
        is_over: Whether finalisers do nothing any more.
        graph: Begins the runs.
    """

    store: CheckpointStore
    other: CheckpointStore
    chance: random.Random
    report: Report
    options: dict[str, Any]
    shown: dict[str, int] = attrs.field(factory=dict)
    kept: dict[str, CheckpointStore] = attrs.field(factory=dict)
    interrupts: int = 0
    left: list[Any] = attrs.field(factory=list)
    is_over: bool = False
    graph: StateGraph = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config = GraphConfig("finalised", checkpoint=CheckpointConfig(preserve=True, **self.options))
        self.graph = StateGraph(config, store=self.store, observer=self)
        for name in _NODES:
            self.graph.add_node(name, lambda state, name=name: {"trace": [*state.get("trace", ()), name]})
        for edge in itertools.pairwise(_NODES):
            self.graph.add_edge(*edge)
        self.graph.set_entry_point(_NODES[0])
        self.graph.set_exit_point(_NODES[-1])

    def on_event(self, event: object) -> None:
        """Leave things lying about for a collection to find, wherever it comes."""
        if self.is_over:
            return
        gc.set_threshold(self.chance.choice(_THRESHOLDS), 1, 1)
        if self.chance.random() < 0.1:
            Litter(self)
        if self.chance.random() < 0.02:
            gc.collect()

    def next_id(self, kind: str) -> str:
        """-> an id that no other run has."""
        return f"{kind}-{threading.get_ident()}-{self.chance.getrandbits(60)}"


class Litter:
    """Uses a store when a collection finds it."""

    def __init__(self, world: World) -> None:
        self.world, self.me = world, self

    def __del__(self) -> None:
        world = self.world
        if world.is_over:
            return
        store = world.chance.choice((world.store, world.other))
        try:
            world.chance.choice((self.save, self.read, self.list, self.stream))(store)
        except CheckpointNotFoundError:
            world.report.found["reads of finalisers"] += 1
        except CheckpointError as error:
            refused = "further down its stack" in str(error)
            world.report.found["calls of finalisers that were refused"] += refused
            if not refused:
                world.report.failures.append(
                    f"a finaliser was told: {error}\n" + "".join(traceback.format_exception(error))
                )

    def save(self, store: CheckpointStore) -> None:
        """Save a run of its own."""
        run_id = self.world.next_id("kept")
        store.save(State({"by": "a finaliser"}, run_id=run_id, step=1))
        self.world.kept[run_id] = store
        self.world.report.found["saves of finalisers"] += 1

    def read(self, store: CheckpointStore) -> None:
        """Read the run of somebody else."""
        store.load(next(iter(tuple(self.world.shown)), "none"))
        self.world.report.found["reads of finalisers"] += 1

    def list(self, store: CheckpointStore) -> None:
        """List all runs."""
        store.list()
        self.world.report.found["reads of finalisers"] += 1

    def stream(self, store: CheckpointStore) -> None:
        """Begin a run, and drop it at once."""
        run_id = self.world.next_id("finaliser")
        for state in self.world.graph.stream(State(run_id=run_id)):
            self.world.shown[run_id] = state.step
            break


class Knot:
    """Holds itself, so that only a collection finds it."""

    def __init__(self, held: object) -> None:
        self.held, self.me = held, self


class LeftError(Exception):
    """Somebody throws this into a stream."""


# --------------------------------------------------------------------------- runs


def use(world: World) -> None:
    """Begin runs one after the other, and leave each in one of many ways."""
    for _ in range(_RUNS):
        run_id = world.next_id("run")
        stream = world.graph.stream(State(run_id=run_id))
        for _ in range(world.chance.randrange(len(_NODES) + 2)):
            state = next(stream, None)
            if state is None:
                break
            world.shown[run_id] = state.step
        held: list[Any] = [stream]
        del stream
        leave(world, held)


def leave(world: World, held: list[Any]) -> None:
    """Let go of a stream, of which this list holds the only reference."""
    way = world.chance.choice(("drop", "knot", "knot", "through the run", "lie about", "close", "throw"))
    world.report.tried[f"streams left by {way!r}"] += 1
    match way:
        case "drop":
            held.clear()
        case "knot":
            Knot(held.pop())
        case "through the run":
            world.graph.__dict__.setdefault("streams", []).append(held.pop())
        case "lie about":
            world.left.append(held.pop())
            with suppress(IndexError):
                world.left.pop(0)
        case "close":
            held[0].close()
        case _:
            with suppress(LeftError):
                held[0].throw(LeftError())


async def ause(world: World) -> None:
    """As `use`, on an event loop."""
    for _ in range(_RUNS):
        run_id = world.next_id("arun")
        stream: Any = world.graph.astream(State(run_id=run_id))
        for _ in range(world.chance.randrange(len(_NODES) + 2)):
            state = await anext(stream, None)
            if state is None:
                break
            world.shown[run_id] = state.step
        way = world.chance.choice(("drop", "knot", "lie about", "close", "throw"))
        world.report.tried[f"async streams left by {way!r}"] += 1
        match way:
            case "knot":
                Knot(stream)
            case "lie about":
                world.left.append(stream)
            case "close":
                await stream.aclose()
            case "throw":
                with suppress(LeftError):
                    await stream.athrow(LeftError())
        del stream


def use_interrupted(world: World) -> None:
    """As `use`, in the main thread, while interrupts come."""
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(world.chance.random() * 0.05):
            world.interrupts += 1
            world.report.tried["interrupts"] += 1
            _thread.interrupt_main()

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    for _ in range(_RUNS):
        try:
            use(world)
        except (KeyboardInterrupt, RunCancelledError):  # the latter when it comes while the run is being stopped
            continue
    while thread.is_alive():
        with suppress(KeyboardInterrupt):
            over.set()
            thread.join()


# --------------------------------------------------------------------------- a case


def try_case(seed: int, report: Report) -> None:
    """Try one case, and add what is found to the report."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    kind, options, interrupted = chance.choice(list(_STORES)), chance.choice(_SAVED), chance.random() < 0.3
    told = f"seed {seed}, {kind} store, {options}{', interrupted' if interrupted else ''}"
    report.tried[f"{kind} stores"] += 1
    with tempfile.TemporaryDirectory() as name, _overheard(report, told, interrupted=interrupted):
        folder = Path(name)
        store, other = _STORES[kind](folder), _STORES[chance.choice(list(_STORES))](folder / "other")
        world = World(store, other, chance, report, options)
        _live(world, interrupted=interrupted, threads=chance.randrange(1, 4), loops=chance.randrange(2))
        lost = _lost(world)
        report.failures += [f"{told}: {problem}" for problem in (*lost, *_resumed(world, lost))]
        store.close()
        other.close()
        report.failures += [f"{told}: {problem}" for problem in _on_disk(world, kind, folder)]


def _live(world: World, *, interrupted: bool, threads: int, loops: int) -> None:
    """Have threads begin and leave runs, until all have ended that they began."""
    world.graph.execute(State(run_id="first"))  # imports: an interrupt within one may leave its lock behind
    works: list[Callable[[], object]] = [lambda: use(world)] * threads
    works += [lambda: asyncio.run(ause(world))] * loops
    begun = [threading.Thread(target=work, daemon=True) for work in works]
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what was there before is not looked at again and again
    try:
        for thread in begun:
            thread.start()
        (use_interrupted if interrupted else use)(world)
        for thread in begun:
            thread.join()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    world.left.clear()
    world.graph.__dict__.pop("streams", None)
    world.is_over = True
    for _ in range(5):  # a collection does nothing while there is one in another thread
        gc.collect()
        world.store.list()
        time.sleep(0.002)


def _lost(world: World) -> list[str]:
    """-> of which runs something is not there that was shown or saved, or something that never was."""
    problems, lost = [], 0
    for run_id, step in tuple(world.shown.items()):
        try:
            state = world.store.load(run_id)
        except CheckpointNotFoundError:
            state = State(run_id=run_id)
        if state.step < step and world.interrupts:
            lost += 1
        elif state.step < step:
            problems.append(f"run {run_id} was shown up to step {step}, and is saved up to {state.step}")
        if state.get("trace", []) != [*_NODES[: state.step]]:
            problems.append(f"run {run_id} has {state.get('trace')} at step {state.step}")
    world.report.tried["runs"] += len(world.shown)
    world.report.found["runs whose last step an interrupt has cost"] += lost
    if lost > world.interrupts:
        problems.append(f"{world.interrupts} interrupts have cost {lost} runs their last step")
    problems += [f"{run_id} is gone" for run_id, store in world.kept.items() if run_id not in store.list()]
    return problems


def _resumed(world: World, problems: list[str]) -> Iterator[str]:
    """-> which of some runs do not go on to their end."""
    waiting = [run.run_id for run in world.store.runs("active", "finalised", limit=20)]
    for run_id in [] if problems else waiting:
        if _gone_on(world, run_id)["trace"] != [*_NODES]:
            yield f"run {run_id} ends with something else"
        world.report.found["runs that were resumed"] += 1
    give_up = time.monotonic() + 20
    while any(type(one) is threading.Thread for one in threading.enumerate()) and time.monotonic() < give_up:
        time.sleep(0.001)
    # A finaliser may have come at the start of a thread, where `threading` knows nothing of it: it has a dummy then.
    left = [thread for thread in threading.enumerate() if type(thread) is threading.Thread]
    yield from (f"{thread} is left" for thread in left)


def _on_disk(world: World, kind: str, folder: Path) -> Iterator[str]:
    """-> what another handle, or SQLite itself, finds wrong with the file."""
    if kind == "memory":
        return
    file = folder / "runs.db" if kind == "sqlite" else folder / "runs" / "cache.db"
    with closing(sqlite3.connect(file)) as database:
        if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            yield "the file is damaged"
    with _STORES[kind](folder) as store:
        for run_id in store.list():
            store.load(run_id)
            world.report.found["runs that another handle has loaded"] += 1


def _gone_on(world: World, run_id: str) -> State:
    """-> the end of a run, which a stream may hold that no collection has found yet."""
    give_up = time.monotonic() + 20
    while True:
        try:
            return world.graph.resume(run_id)
        except RunBusyError:
            if time.monotonic() > give_up:
                raise
            gc.collect()


@contextmanager
def _overheard(report: Report, told: str, *, interrupted: bool) -> Iterator[None]:
    """Count as a failure what is logged, and what is raised where nobody catches it; but not what an interrupt does."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if not (interrupted and "KeyboardInterrupt" in f"{error!r} {getattr(error, '__notes__', '')}"):
                notes = "; ".join(getattr(error, "__notes__", ()))
                report.failures.append(f"{told}: {record.getMessage()} {error!r} {notes}")

    def unraisable(what: Any) -> None:
        if isinstance(what.exc_value, KeyboardInterrupt) and interrupted:
            report.found["interrupts that a finaliser has swallowed"] += 1
        else:
            report.failures.append(f"{told}: {what.err_msg} {what.object!r}: {what.exc_value!r}")

    def in_thread(what: Any) -> None:
        report.failures.append(f"{told}: in {what.thread}: {what.exc_value!r}")

    handler, hooks = Handler(), (sys.unraisablehook, threading.excepthook)
    logging.getLogger().addHandler(handler)
    sys.unraisablehook, threading.excepthook = unraisable, in_thread
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        sys.unraisablehook, threading.excepthook = hooks


def prove(share: float, first_seed: int) -> list[Report]:
    """Try random cases, some in a process -> one report."""
    report = Report("streams that are dropped anywhere are saved, and no store is entered twice")
    count = max(_TOGETHER, round(CASES * share))
    work_out("finalisers", [(first_seed + done, _TOGETHER) for done in range(0, count, _TOGETHER)], report)
    return [report]


def main() -> NoReturn:
    """Try the cases that the command line asks for, and tell what was found."""
    report = Report("finalisers")
    first, count = map(int, sys.argv[1:])
    for seed in range(first, first + count):
        with limited():
            try_case(seed, report)
    tell(report)
    sys.exit(0)


if __name__ == "__main__":
    main()
