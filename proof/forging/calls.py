"""What is asked of a store that somebody may have changed: everything that can be read, and every way to write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import attrs

from proof.forging.scene import RUNS, Work, begun, graph_of
from stategraph import CheckpointStore, State
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointError, CheckpointNotFoundError, ExecutionError, StateGraphError
from stategraph.state import evolve
from stategraph.stores.summaries import Summary

# --------------------------------------------------------------------------- answers


@attrs.frozen
class Refused:
    """An error that says that what is there cannot be trusted, or used: the type of it."""

    error: str


@attrs.frozen
class Missing:
    """There is nothing, it says."""


@attrs.frozen
class Raised:
    """Another error of stategraph; `at` is the State in it, and `is_unsaved` that it could not be saved."""

    error: str
    at: State | None = None
    is_unsaved: bool = attrs.field(default=False, eq=False)


@attrs.frozen
class Foreign:
    """An error that is none of stategraph: nobody is to see it."""

    error: str


def answer(ask: Callable[[], Any]) -> Any:
    """Return what is answered, or what is raised as one of the above."""
    try:
        return ask()
    except CheckpointNotFoundError:
        return Missing()
    except CheckpointError as error:
        return Refused(type(error).__name__)
    except StateGraphError as error:
        if isinstance(error.__cause__, CheckpointError):
            return Refused(type(error.__cause__).__name__)
        notes = getattr(error, "__notes__", ())
        is_unsaved = any(note.startswith("While the run was being stopped") for note in notes)
        return Raised(type(error).__name__, error.state if isinstance(error, ExecutionError) else None, is_unsaved)
    except Exception as error:  # noqa: BLE001 - which errors come is what is asked
        return Foreign(f"{type(error).__name__}: {error}"[:200])


# --------------------------------------------------------------------------- reading

Question: TypeAlias = tuple[Any, ...]
"""What is asked, and of which run."""
Answers: TypeAlias = dict[Question, Any]
LOGGED: Question = ("what is logged",)

PARTS = (("failed", 2, "map"), ("anew", 3, "map"), ("back", 3, "map"))


def questions(
    store: CheckpointStore, steps: Mapping[str, Iterable[int]]
) -> Iterator[tuple[Question, Callable[[], Any]]]:
    """Yield everything that can be read of a store.

    Args:
        store: The store.
        steps: The runs to ask for, and for which of their steps.
    """
    yield ("list",), store.list
    yield ("runs",), store.runs
    yield ("runs, page by page",), partial(_all_pages, store)
    for status in RunStatus:
        yield ("runs of a status", status.value), partial(store.runs, status.value)
    for graph in ("job", "chat"):
        yield ("runs of a graph", graph), partial(store.runs, graph=graph)
    for run, step, node in PARTS:
        yield ("parts", run, step, node), partial(store.load_parts, run, step, node)
    for run in steps:
        yield ("history", run), partial(store.history, run)
        yield ("load", run), partial(store.load, run)
        for step in steps[run]:
            yield ("load of a step", run, step), partial(store.load, run, step)
            for revision in (0, 1):
                yield ("load of a revision", run, step, revision), partial(store.load, run, step, revision=revision)


class _Listener(logging.Handler):
    """Hears what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.heard += f"{record.getMessage()}\n"


@contextmanager
def heard() -> Iterator[_Listener]:
    """Hear what stategraph logs meanwhile, and let nobody else hear it."""
    logger, listener = logging.getLogger("stategraph"), _Listener()
    before = logger.propagate
    logger.addHandler(listener)
    logger.propagate = False
    try:
        yield listener
    finally:
        logger.removeHandler(listener)
        logger.propagate = before


def ask_all(store: CheckpointStore, steps: Mapping[str, Iterable[int]]) -> Answers:
    """Return the answers to all questions, and what was logged meanwhile."""
    with heard() as listener:
        answers = {question: answer(ask) for question, ask in questions(store, steps)}
    return {**answers, LOGGED: listener.heard}


def _all_pages(store: CheckpointStore) -> list[Summary]:
    found: list[Summary] = []
    page = store.runs(limit=3)
    while page and len(found) < 100:
        found += page
        page = store.runs(limit=3, after=page[-1].cursor)
    return found


# --------------------------------------------------------------------------- writing


@attrs.frozen
class Session:
    """What a call works with.

    Attributes:
        store: The handle.
        run: The run that it is about.
        newest: What its caller has of it in memory, from before anything was changed; None of one that is not there.
        steps: The steps of it that were kept then.
        work: What the functions of its graph do.
    """

    store: CheckpointStore
    run: str
    newest: State | None
    steps: tuple[int, ...]
    work: Work


def _saved(session: Session) -> State:
    """Return the newest State of the run, as its caller has it in memory."""
    return session.newest or State(begun(session.run, "new"), run_id=session.run)


def _next(state: State, number: int = 1) -> State:
    more = evolve(state.set("saved", number), step=state.step + number, checkpoint_node=f"saved{number}")
    return evolve(more, status=RunStatus.ACTIVE, error=None, pause=None)


def _again(session: Session) -> Any:
    state = _saved(session)
    status = RunStatus.ACTIVE if state.status is RunStatus.FAILED else RunStatus.FAILED
    return session.store.save(evolve(state, status=status, pause=None))


def _save_many(session: Session) -> Any:
    return session.store.save_many([_next(_saved(session), number) for number in (1, 2, 3)])


def _resume(session: Session) -> Any:
    return graph_of(session.run, session.store, session.work).resume(session.run, RUNS[session.run].answer)


def _execute(session: Session, state: State) -> Any:
    return graph_of(session.run, session.store, session.work).execute(state, restart=True)


def _begin_again(session: Session) -> Any:
    session.store.delete(session.run)
    return _execute(session, begun(session.run, "begun again"))


def _fork_and_go_on(session: Session) -> Any:
    session.store.fork(session.run, "fresh", session.steps[0] if session.steps else None)
    return graph_of(session.run, session.store, session.work).resume("fresh", RUNS[session.run].answer)


def _begin(session: Session) -> Any:
    return graph_of("fresh", session.store, session.work).execute(begun("fresh", "new"))


def _first(session: Session) -> int:
    return session.steps[0] if session.steps else 1


CALLS: dict[str, Callable[[Session], Any]] = {
    "resume": _resume,
    "execute a new State over it": lambda it: _execute(it, begun(it.run, "new")),
    "execute its State": lambda it: _execute(it, _saved(it)),
    "delete": lambda it: it.store.delete(it.run),
    "delete, and begin again": _begin_again,
    "begin another run": _begin,
    "fork": lambda it: it.store.fork(it.run, "fresh"),
    "fork at a step, and go on": _fork_and_go_on,
    "rollback": lambda it: it.store.rollback(it.run, _first(it)),
    "diff": lambda it: it.store.diff(it.run, _first(it), it.steps[-1] if it.steps else 2),
    "prune": lambda it: it.store.prune(),
    "save the next step": lambda it: it.store.save(_next(_saved(it))),
    "save it again, with another status": _again,
    "save many": _save_many,
    "amend": lambda it: it.store.amend(_saved(it).set("amended", True)),
}
"""All that is done with a store besides reading; each returns what the store, or the graph, returns."""

RESUMABLE = ("waits", "failed", "died", "nested", "fork/1", "back", "anew", "renewed", "json")
UNDER_WAY = ("goes on", "fails", "pauses")
"""What a run does that is under way, in a node, while the store is changed."""
