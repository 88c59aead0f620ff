"""Runs of all kinds in one store, as they come about: each with graphs that do the same whenever they are run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from proof.damage import frames
from proof.forging.tables import FILES, Rows, read
from stategraph import (
    CheckpointConfig,
    CheckpointStore,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    MapNode,
    NodeContext,
    State,
    StateGraph,
)
from stategraph._values import clock
from stategraph._values.provenance import RunStatus
from stategraph.state import evolve
from stategraph.stores.sqlite import SqliteStore

KEY = b"the key that they do not have"
NODES = ("work", "ask", "map", "nest", "end")
DAY = 86_400
_BEGAN = 1_700_000_000 * 10**9
NOW = _BEGAN + 2 * DAY * 10**9
"""When all calls are made: the same time for all, so that more looks at the clock make no other State."""


class KilledError(BaseException):
    """What ends a run as a kill does: nothing more is saved."""


@attrs.frozen
class Kind:
    """A run of the scene.

    Attributes:
        plan: Its nodes, one after the other.
        options: What is kept of it.
        graph: The name of its graph.
        answer: What a resume takes.
        is_large: Whether its steps are so large that every few of them are kept whole.
        serializer: How it is written.
    """

    plan: str
    options: dict[str, Any] = attrs.field(factory=dict)
    graph: str = "job"
    answer: dict[str, Any] = attrs.field(factory=dict)
    is_large: bool = False
    serializer: str = "msgpack"


_FULL, _TWO = {"retention": "full"}, {"retention": "windowed", "window": 2}
RUNS = {
    "done": Kind("work work work work work work end", _FULL, is_large=True),
    "due": Kind("work work end", {"ttl": 60.0}),
    "later": Kind("work work work work end", {"retention": "windowed", "window": 3, "ttl": 10.0 * DAY}),
    "waits": Kind("work work work ask work end", _TWO, "chat", {"answer": 5}),
    "failed": Kind("work map work end", graph="chat"),
    "died": Kind("work work work work work work work work end", _FULL, is_large=True),
    "nested": Kind("work nest work end", {}, "chat", {"reply": 5}),
    "fork/1": Kind("work work work work work work end", _FULL, is_large=True),
    "back": Kind("work work map work nest work end", _FULL, answer={"reply": 5}, is_large=True),
    "anew": Kind("work work map work end", _TWO),
    "renewed": Kind("work work nest work end", _FULL, "chat", {"reply": 5}),
    "json": Kind("work work work work end", _TWO, serializer="json"),
    "gone": Kind("work work work end", _FULL),
    "fresh": Kind("work work end", _FULL),
}
"""All that there are, one that was deleted ("gone"), and one that is still to begin ("fresh")."""


@attrs.define
class Work:
    """What the functions of the graphs do besides.

    Attributes:
        effects: What they did, as idempotency keys.
        kills_at: The step in which the process dies.
        breaks_at: The item that fails.
        during: Called once by the first function that is called.
        then: What comes of that function: "goes on", "fails" or "pauses".
    """

    effects: list[str] = attrs.field(factory=list)
    kills_at: int = 0
    breaks_at: str = ""
    during: Callable[[], None] | None = None
    then: str = "goes on"

    def do(self, context: NodeContext) -> bool:
        """Note an effect, and fail where that is planned; return whether the run is to pause."""
        self.effects.append(context.idempotency_key)
        if context.step == self.kills_at:
            raise KilledError
        during, self.during = self.during, None
        if during is not None:
            during()
            if self.then == "fails":
                raise ValueError("it fails")
        return during is not None and self.then == "pauses"


def graph_of(run: str, store: CheckpointStore, work: Work) -> StateGraph:
    """Return the graph of a run, on a store."""
    kind = RUNS[run]
    checkpoint = CheckpointConfig(interval=1, preserve=True, **kind.options)
    graph = StateGraph(GraphConfig(name=kind.graph, observer="noop", checkpoint=checkpoint), store=store)
    graph.add_node("work", _step(work))
    graph.add_node("ask", InterruptNode("n", "answer"))
    graph.add_node("map", MapNode(_item(work), "items", "mapped", max_workers=1))
    graph.add_node("nest", _inner(store, work).as_node())
    graph.add_node("end", lambda state: {"over": True})
    graph.set_entry_point("work")
    graph.set_exit_point("end")
    for name in NODES[:-1]:
        for after in NODES[:-1] if name == "work" else ("work",):
            graph.add_edge(name, after, _is_next(after))
        graph.add_edge(name, "end")
    return graph


def _is_next(name: str) -> Callable[[State], bool]:
    return lambda state: state.step < len(state["plan"]) and state["plan"][state.step] == name


def _step(work: Work) -> Callable[..., Any]:
    def step(state: State, context: NodeContext) -> Any:
        if work.do(context):
            return state.paused("it asks", state["n"], response_param="answer")
        n = state["n"] + 1
        text = hashlib.shake_128(f"{state['salt']} {n}".encode()).hexdigest(state["size"])
        return {"n": n, "log": [*state["log"], f"{state['salt']} {n}"], "text": text}

    return step


def _item(work: Work) -> Callable[..., Any]:
    def item(value: str, context: NodeContext) -> str:
        work.do(context)
        if value == work.breaks_at:
            raise ValueError("it breaks")
        return f"made of {value}"

    return item


def _inner(store: CheckpointStore, work: Work) -> StateGraph:
    checkpoint = CheckpointConfig(interval=1, preserve=True)
    graph = StateGraph(GraphConfig(name="inner", observer="noop", checkpoint=checkpoint), store=store)

    def say(state: State, context: NodeContext) -> dict[str, Any]:
        work.do(context)
        return {"said": [*state.get("said", ()), f"{state['salt']} {context.node}"]}

    graph.add_node("before", say)
    graph.add_node("asks", InterruptNode("n", "reply"))
    graph.add_node("after", say)
    graph.set_entry_point("before")
    graph.set_exit_point("after")
    graph.add_edge("before", "asks")
    graph.add_edge("asks", "after")
    return graph


def begun(run: str, salt: str) -> State:
    """Return the State with which a run begins."""
    kind = RUNS[run]
    items = [f"{salt} item {number}" for number in range(4)]
    data = {"salt": salt, "plan": kind.plan.split(), "n": 0, "log": [], "items": items}
    return State({**data, "size": 3_000 if kind.is_large else 20}, run_id=run)


# --------------------------------------------------------------------------- the store


@attrs.frozen
class Moment:
    """The rows of a store at some time, and how often each run had been begun by then."""

    rows: Rows
    begun: dict[str, int]


@attrs.frozen
class Scene:
    """A store with runs of all kinds.

    Attributes:
        name: Of the store.
        is_signed: Whether it has a key.
        files: Its files by name, after it was closed.
        live: The same, after some more commits, while it was open.
        moments: What its rows were, whenever something had been done; last, as they are in `files`.
        saved: The States of each run, by step, that are in these rows, in sight or not.
        former: All States that were saved of each run since it began, also those that were saved over.
    """

    name: str
    is_signed: bool
    files: dict[str, bytes]
    live: dict[str, bytes]
    moments: list[Moment]
    saved: dict[str, dict[int, State]]
    former: dict[str, list[State]]

    @property
    def rows(self) -> Rows:
        """The rows as they are in `files`."""
        return self.moments[-1].rows

    def open(self, folder: Path, **options: Any) -> CheckpointStore:
        """Open the store of this scene whose files are in a folder."""
        return opened(self.name, folder, self.is_signed, **options)


def opened(name: str, folder: Path, is_signed: bool, **options: Any) -> CheckpointStore:
    """Open a store whose files are in a folder; every one is a handle of its own."""
    key: dict[str, Any] = {"sign_with": lambda: KEY} if is_signed else {}
    return SqliteStore(folder / FILES[name], **key, **options)


@contextmanager
def at(time_ns: int, tick: int = 0) -> Iterator[None]:
    """Let the clock show a time, and go on by a tick whenever somebody looks at it."""
    before, now = clock.now_ns, time_ns

    def now_ns() -> int:
        nonlocal now
        now += tick
        return now

    clock.now_ns = now_ns
    try:
        yield
    finally:
        clock.now_ns = before


def build(name: str, folder: Path, salt: str, *, is_signed: bool) -> Scene:
    """Make a store; what its runs hold depends on the salt."""
    with at(_BEGAN, tick=10**9):
        builder = _Builder(name, folder, salt, is_signed)
        builder.begin()
        builder.close()
        files = contents(folder)
        earlier = builder.moments[-1]
        saved = {run: dict(states) for run, states in builder.saved.items()}
        builder.open()
        builder.go_on()
        live = contents(folder)
        builder.close()
    return Scene(name, is_signed, files, live, [*builder.moments, earlier], saved, builder.former)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a store; the shared memory is none: whoever opens first makes it anew."""
    files = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    logs = {name: frames(content) for name, content in files.items() if name.endswith("-wal") and content}
    return {name: content for name, content in files.items() if not name.endswith("-wal")} | logs


_WRITES = ("save", "amend", "save_many", "save_parts", "drop_parts", "delete", "fork", "rollback")


class _Builder:
    """Does all that there is to do in a scene, one thing after the other, and looks at the rows after every write."""

    def __init__(self, name: str, folder: Path, salt: str, is_signed: bool) -> None:
        self._name, self._folder, self._salt, self._is_signed = name, folder, salt, is_signed
        self._begun: dict[str, int] = {}
        self.moments: list[Moment] = []
        self.saved: dict[str, dict[int, State]] = {}
        self.former: dict[str, list[State]] = {}
        self.open()

    def open(self) -> None:
        """Open the store, as it is and to write JSON."""
        self._store, self._json = (
            opened(self._name, self._folder, self._is_signed, serializer=serializer)
            for serializer in ("msgpack", "json")
        )
        for store in (self._store, self._json):
            for write in _WRITES:
                setattr(store, write, self._noted(getattr(store, write)))

    def close(self) -> None:
        """Close the store."""
        self._store.close()
        self._json.close()

    def _noted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            made = write(*arguments, **options)
            self._note_states(write.__name__, arguments, made)
            self.moments.append(Moment(read(self._folder / FILES[self._name]), dict(self._begun)))
            return made

        return noted

    def _note_states(self, write: str, arguments: tuple[Any, ...], made: Any) -> None:
        """Note the States that are saved of each run."""
        if write in {"delete", "rollback"}:
            last = arguments[1] if write == "rollback" else 0
            states = self.saved.get(arguments[0], {})
            self.saved[arguments[0]] = {step: state for step, state in states.items() if step <= last}
        states_now = {"save": arguments[:1], "amend": arguments[:1], "save_many": arguments[0], "rollback": [made]}
        for state in states_now.get(write, ()):
            self.saved.setdefault(state.run_id, {})[state.step] = state
            self.former.setdefault(state.run_id, []).append(state)
        if write == "delete":
            self.former.pop(arguments[0], None)

    def begin(self) -> None:
        """Make all runs."""
        for run in ("anew", "renewed", "gone"):
            self._run(run)
        for run in ("anew", "renewed", "gone"):
            self._store.delete(run)
        kills = {"died": 6, "anew": 2, "renewed": 2, "json": 4}
        for run in ("done", "due", "later", "waits", "failed", "died", "nested", "back", "anew", "renewed", "json"):
            self._run(run, kills.get(run, 0))
        self._begun["fork/1"] = 1
        self._store.fork("done", "fork/1", 3)
        # One that failed is resumed, waits within a nested run, is rolled back, and dies where there were parts.
        self._resume("back", {})
        self._store.rollback("back", 2)
        self._resume("back", {"items": [f"{self._salt} other item {number}" for number in range(4)]}, 3)

    def go_on(self) -> None:
        """A little of all kinds; what is deleted first, as a store may end its log then."""
        self._store.delete("due")
        for run in ("died", "json", "waits"):
            state = self._store.load(run)
            self._store.save(evolve(state.set("more", 1), step=state.step + 1, status=RunStatus.ACTIVE, pause=None))
        self._store.save(evolve(self._store.load("failed"), status=RunStatus.ACTIVE, error=None))

    def _run(self, run: str, kills_at: int = 0) -> None:
        self._begun[run] = self._begun.get(run, 0) + 1
        salt = f"{self._salt} {run} {self._begun[run]}"
        breaks = run in {"failed", "back"} or (run == "anew" and self._begun[run] == 1)
        work = Work(kills_at=kills_at, breaks_at=f"{salt} item 3" if breaks else "")
        with suppress(KilledError, ExecutionError):
            graph_of(run, self._json if run == "json" else self._store, work).execute(begun(run, salt))

    def _resume(self, run: str, updates: dict[str, Any], kills_at: int = 0) -> None:
        with suppress(KilledError):
            graph_of(run, self._store, Work(kills_at=kills_at)).resume(run, updates)
