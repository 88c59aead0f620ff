"""A full history only grows, whatever is called, in any order."""

# ruff: noqa: S101 - Hypothesis looks for a shorter way to the assertion that fails

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proof.model import Story
from proof.report import Report
from proof.state_machine import STEPS, prove_stores
from proof.stores import STORES
from stategraph import InterruptNode, State, StateGraph
from stategraph.errors import (
    AnswerError,
    CheckpointNotFoundError,
    ExecutionError,
    RunBusyError,
    RunCancelledError,
    RunCompleteError,
    RunExistsError,
    RunLostError,
    StepConflictError,
)
from stategraph.stores import CheckpointStore, Policy
from stategraph.testing import is_same
from tests.scenarios import make_graph

RULES = 6_000
"""Rules that are executed at full length, with each store."""
_LEAST = 10 * STEPS  # the first example is hardly one
_REFUSED = (
    *(AnswerError, CheckpointNotFoundError, ExecutionError, RunBusyError, RunCompleteError, RunExistsError),
    *(RunCancelledError, RunLostError, StepConflictError),
)
_RUN_IDS = st.sampled_from(["a", "b"])
_NAMES = st.sampled_from([None, "anna", "ben"])
_LABELS = st.sampled_from([{}, {"team": "red"}, {"team": "blue"}])
_PLACES = st.integers(0, 30)


class StoryMachine(RuleBasedStateMachine):
    """Calls a graph and its store, and checks all histories after each call."""

    kind: ClassVar[str]
    executed: ClassVar[Counter[str]]
    tried: ClassVar[Counter[str]]
    found: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stategraph-proof-"))
        self.store = self.opened()
        self.graph = self.made()
        self.stories: dict[str, Story] = {}
        self.is_begun = False

    def opened(self) -> CheckpointStore:
        """Return a handle on the store."""
        return STORES[self.kind](self.folder)

    def made(self) -> StateGraph:
        """Return a graph that asks, may fail, and has a nested graph."""
        inner = make_graph({"x": _counting("x"), "y": _counting("y")}, store=self.store, name="inner")
        nodes = {
            "a": _counting("a"),
            "ask": InterruptNode("a", "answer"),
            "may fail": _failing,
            "nested": inner.as_node(),
            "end": _counting("end"),
        }
        return make_graph(nodes, store=self.store, preserve=True, retention="full")

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """Called at the beginning, and after every rule."""
        self.executed["rules"] += self.is_begun
        self.is_begun = True
        for row in self.store.iter_runs():
            self.stories.setdefault(row.run_id, Story(row.run_id))
        for story in self.stories.values():
            story.check(self.store)

    def has_runs(self) -> bool:
        return bool(self.stories)

    def row_of(self, run_id: str, place: int) -> Any:
        """Return a known row and its State, of this run or of an existing one."""
        story = self.stories.get(run_id) or next(iter(self.stories.values()))
        return story.said[place % len(story.said)]

    def is_where_it_went_back(self, made: State, state: State) -> bool:
        """Return whether a run has the data of a step, except for an answer, which is taken back."""
        one, other = ({key: state[key] for key in state if key != "answer"} for state in (made, state))
        return is_same(one, other)

    def did(self, kind: str, call: Callable[[], Any]) -> Any:
        """Make a call; return its result, or None if it is refused or fails."""
        self.tried[kind] += 1
        try:
            value = call()
        except _REFUSED as error:
            self.found[type(error).__name__] += 1
            return None
        self.found["done"] += 1
        return value

    # ------------------------------------------------------------------ calls of the graph

    @rule(run_id=_RUN_IDS, fails=st.booleans(), by=_NAMES, labels=_LABELS, restart=st.booleans())
    def execute(self, run_id: str, fails: bool, by: str | None, labels: dict[str, str], restart: bool) -> None:
        state = State({"fails": fails}, run_id=run_id)
        if restart:
            self.did("execute", lambda: self.graph.execute(state, labels=labels, by=by))
        else:
            self.did("run", lambda: self.graph.run(state, labels=labels, by=by))

    @rule(run_id=_RUN_IDS, number=st.integers(0, 3), by=_NAMES, takes=st.booleans())
    def turn(self, run_id: str, number: int, by: str | None, takes: bool) -> None:
        self.did("turn", lambda: self.graph.turn(run_id, {"number": number}, by=by, take_over=takes))

    @precondition(has_runs)
    @rule(run_id=_RUN_IDS, fails=st.booleans(), takes=st.booleans(), by=_NAMES)
    def resume(self, run_id: str, fails: bool, takes: bool, by: str | None) -> None:
        self.did("resume", lambda: self.graph.resume(run_id, {"fails": fails}, take_over=takes, by=by))

    @precondition(has_runs)
    @rule(run_id=_RUN_IDS, place=_PLACES, newest=st.booleans(), by=_NAMES)
    def answer(self, run_id: str, place: int, newest: bool, by: str | None) -> None:
        """Answer the open pause or an earlier one; only an answer to the open pause may count."""
        row, _ = self.row_of(run_id, place)
        before = self.store.load(row.run_id).pause
        pause = before if newest else row.pause
        if pause is None:
            return
        answers = {"answer": place, "fails": False}
        done = self.did("answer", lambda: self.graph.resume(row.run_id, answers, pause=pause, by=by))
        new = self.store.history(row.run_id)[len(self.stories[row.run_id].said) :]
        counted = [one for one in new if one.kind == "answer"]
        assert len(counted) <= 1, f"an answer counts {len(counted)} times"
        if counted:
            assert counted[0].by == by
            assert before is not None, f"{pause} is answered, and none was open"
            assert before.id == pause.id, f"{pause} is answered, and {before} was open"
        assert done is None or counted, "an answer is not in the history"

    @precondition(has_runs)
    @rule(run_id=_RUN_IDS, by=_NAMES)
    def cancel(self, run_id: str, by: str | None) -> None:
        self.did("cancel", lambda: self.graph.cancel(run_id, by=by))

    # ------------------------------------------------------------------ calls of the store

    @precondition(has_runs)
    @rule(run_id=_RUN_IDS, status=st.sampled_from(["active", "completed", "cancelled"]), amends=st.booleans())
    def save(self, run_id: str, status: str, amends: bool) -> None:
        newest = self.row_of(run_id, -1)[1]
        state = attrs.evolve(newest, status=status, pause=None)
        self.store.retain(newest.run_id, Policy("full"))
        if amends:
            self.did("amend", lambda: self.store.amend(state.set("amended", len(state))))
        else:
            self.did("save again", lambda: self.store.save(state))

    @precondition(has_runs)
    @rule(run_id=_RUN_IDS, place=_PLACES, takes=st.booleans(), by=_NAMES)
    def rollback(self, run_id: str, place: int, takes: bool, by: str | None) -> None:
        """Roll back to any known revision, also to the start."""
        row, state = self.row_of(run_id, place)
        back = self.did(
            "rollback", lambda: self.store.rollback(row.run_id, row.step, row.revision, take_over=takes, by=by)
        )
        if back is not None:
            newest = self.store.history(row.run_id)[-1]
            assert self.is_where_it_went_back(back, state)
            assert (newest.kind, newest.step, newest.by) == ("rollback", row.step, by)

    @precondition(has_runs)
    @rule(run_id=_RUN_IDS, place=_PLACES)
    def fork(self, run_id: str, place: int) -> None:
        row, state = self.row_of(run_id, place)
        forked = self.did("fork", lambda: self.store.fork(row.run_id, "b", row.step, row.revision))
        assert forked is None or self.is_where_it_went_back(forked, state)

    @precondition(has_runs)
    @rule(kind=st.sampled_from(["delete", "prune", "reopen"]), run_id=_RUN_IDS)
    def seldom(self, kind: str, run_id: str) -> None:
        if kind == "delete":
            self.did("delete", lambda: self.store.delete(run_id))
            self.stories = {one: story for one, story in self.stories.items() if one != run_id}
        elif kind == "prune":
            assert not self.store.prune().runs, "nothing is due"
        elif self.kind != "memory":
            self.store.close()
            self.store = self.opened()
            self.graph = self.made()


def _counting(name: str) -> Callable[[State], dict[str, Any]]:
    return lambda state: {name: state.get(name, 0) + 1}


def _failing(state: State) -> dict[str, Any]:
    if state.get("fails"):
        raise ValueError("on request")
    return {"went": state.step}


def prove(share: float, seed: int) -> list[Report]:
    """Try every store; return a report for each."""
    title = '"{}" still says what a full history said, whatever is called'
    return prove_stores(title, StoryMachine, RULES, _LEAST, share, seed)
