"""A store behaves like the plainest model of a store under random calls by two handles."""

# ruff: noqa: S101 - Hypothesis looks for a shorter way to the assertion that fails

from __future__ import annotations

import copy
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from proof.edits import ATOMS, EDITS, HANDLES, POLICIES, RUN_IDS, STATUSES, Edits, edited
from proof.model import Model, differences, is_same_state
from proof.report import Report
from proof.searching import failures_of, searching
from proof.stores import REMOTE, STORES
from stategraph._values import clock
from stategraph._values.provenance import ErrorInfo
from stategraph.errors import CheckpointNotFoundError, RunExistsError, StepConflictError
from stategraph.state import State, with_data
from stategraph.stores import CheckpointStore
from stategraph.stores.base import Policy
from stategraph.testing import is_same
from stategraph.testing.corpus import Order

RULES = 10_000  # rules that are executed at full length, with each store
SERVER_RULES = 2_000  # and with a store on a server, where each takes a round trip or several
STEPS = 40  # rules that one example executes at most


class StoreMachine(RuleBasedStateMachine):
    """Makes the same calls on a store and on the model, and compares the answers."""

    kind: ClassVar[str]
    executed: ClassVar[Counter[str]]
    tried: ClassVar[Counter[str]]
    found: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stategraph-proof-"))
        self.files = self.folder / "0"
        self.model = Model(learns_at_once=self.is_in_memory)
        self.live: dict[str, State] = {}
        self.abandoned: list[CheckpointStore] = []
        self.first = self.opened()
        self.stores = [self.first, self.first if self.is_in_memory else self.opened()]
        self.count = 0
        self.is_begun = False

    @property
    def is_in_memory(self) -> bool:
        """Whether the handles share one store object."""
        return self.kind == "memory"

    def opened(self) -> CheckpointStore:
        """Return another handle on the store."""
        return STORES[self.kind](self.files)

    def teardown(self) -> None:
        for store in {id(store): store for store in (*self.stores, *self.abandoned)}.values():
            store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @invariant()
    def count_rule(self) -> None:
        """Called at the beginning, and after every rule."""
        self.executed["rules"] += self.is_begun
        self.is_begun = True

    def did(self, kind: str, end: str = "as the model") -> None:
        self.tried[kind] += 1
        self.found[end] += 1

    def has_runs(self) -> bool:
        return bool(self.model.runs)

    def known(self, run_id: str) -> str:
        """Return this run, or one that exists."""
        return run_id if run_id in self.model.runs else min(self.model.runs)

    def handle(self, number: int) -> int:
        return 0 if self.is_in_memory else number

    def state_of(self, run_id: str) -> State:
        """Return the State that the run continues from, with objects that are changed in place."""
        run = self.model.runs.get(run_id)
        if run is None:
            return State(run_id=run_id)
        live = self.live.get(run_id)
        return live if live is not None and is_same_state(live, run.newest) else copy.deepcopy(run.newest)

    def check(self, loaded: State, kept: State) -> None:
        assert is_same_state(loaded, kept), f"{loaded!r} {dict(loaded)} is not {kept!r} {dict(kept)}"

    def save(self, number: int, state: State, *, amend: bool = False) -> str:
        """Save in the store and the model; return the outcome."""
        store, handle = self.stores[number], self.handle(number)
        if self.model.refuses(state, may_change_data=amend):
            try:
                (store.amend if amend else store.save)(state)
            except StepConflictError:
                return "refused, as the model"
            raise AssertionError(f"not refused: {state!r} {dict(state)}")
        (store.amend if amend else store.save)(state)
        self.model.save(handle, state)
        self.live[state.run_id] = state
        self.check(store.load(state.run_id), self.model.runs[state.run_id].newest)
        return "as the model"

    def next_of(self, state: State, edits: Edits, skip: int = 1) -> State:
        self.count += 1
        state = edited(state, edits).set("n", self.count)
        return attrs.evolve(
            state, step=state.step + skip, status="active", error=None, checkpoint_node=f"node-{self.count}"
        )

    # ------------------------------------------------------------------ saving

    @rule(run_id=RUN_IDS, number=HANDLES, many=st.lists(EDITS, min_size=1, max_size=4), skip=st.sampled_from([1, 1, 3]))
    def save_next(self, run_id: str, number: int, many: list[Edits], skip: int) -> None:
        for edits in many:
            self.did("next step", self.save(number, self.next_of(self.state_of(run_id), edits, skip)))

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, number=HANDLES, status=STATUSES)
    def save_again(self, run_id: str, number: int, status: Any) -> None:
        error = ErrorInfo("ValueError", "no", "x") if status == "failed" else None
        state = attrs.evolve(self.state_of(self.known(run_id)), status=status, error=error)
        self.did("again with another status", self.save(number, state))

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, number=HANDLES, edits=EDITS, amend=st.booleans())
    def save_other_data(self, run_id: str, number: int, edits: Edits, amend: bool) -> None:
        before = self.state_of(self.known(run_id))
        state = edited(before, edits)
        if state.keys() == before.keys():  # nothing is promised of the order of keys where only that changes
            state = with_data(state, {key: state[key] for key in before})
        kind = "amended" if amend else "again with other data"
        self.did(kind, self.save(number, state, amend=amend))

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, number=HANDLES, behind=st.integers(1, 3), amend=st.booleans())
    def save_behind(self, run_id: str, number: int, behind: int, amend: bool) -> None:
        state = self.state_of(self.known(run_id))
        self.did("behind", self.save(number, attrs.evolve(state, step=max(0, state.step - behind)), amend=amend))

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, item=ATOMS)
    def change_an_object(self, run_id: str, item: Any) -> None:
        """Change an object of a saved or loaded State: the store must not change."""
        order = self.live.get(run_id, State()).get("order")
        if isinstance(order, Order):
            order.items.append(item)
        run_id = self.known(run_id)
        self.check(self.stores[0].load(run_id), self.model.runs[run_id].newest)
        self.did("object changed")

    @rule(
        run_id=RUN_IDS,
        number=HANDLES,
        many=st.lists(EDITS, min_size=1, max_size=5),
        again=st.booleans(),
        status=STATUSES,
    )
    def save_many(self, run_id: str, number: int, many: list[Edits], again: bool, status: Any) -> None:
        """Later steps, the last of them once more with a status, as a run completes or fails."""
        states = [self.state_of(run_id)]
        for edits in many:
            states.append(self.next_of(copy.deepcopy(states[-1]), edits))
        if again:
            states.append(attrs.evolve(states[-1], status=status))
        self.stores[number].save_many(states[1:])
        for state in states[1:]:
            self.model.save(self.handle(number), state)
        self.live[run_id] = states[-1]
        self.check(self.stores[number].load(run_id), self.model.runs[run_id].newest)
        self.did("many at once")

    @rule(run_id=RUN_IDS, number=HANDLES, policy=POLICIES)
    def retain(self, run_id: str, number: int, policy: Policy) -> None:
        self.stores[number].retain(run_id, policy)
        self.model.retain(self.handle(number), run_id, policy)
        self.did("policy")

    # ------------------------------------------------------------------ reading

    @rule(run_id=RUN_IDS, number=HANDLES, goes_on=st.booleans())
    def load_newest(self, run_id: str, number: int, goes_on: bool) -> None:
        run = self.model.runs.get(run_id)
        try:
            loaded = self.stores[number].load(run_id)
        except CheckpointNotFoundError:
            assert run is None, f"{run_id} is lost"
            self.did("newest loaded", "not found, as the model")
            return
        assert run is not None, f"{run_id} is there, and should not be"
        self.check(loaded, run.newest)
        if goes_on:
            self.live[run_id] = loaded
        self.did("newest loaded")

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, number=HANDLES, step=st.integers(0, 15))
    def load_step(self, run_id: str, number: int, step: int) -> None:
        run = self.model.runs[self.known(run_id)]
        try:
            loaded = self.stores[number].load(self.known(run_id), step)
        except CheckpointNotFoundError:
            assert step not in run.visible, f"step {step} is lost"
            self.did("step loaded", "not found, as the model")
            return
        assert step in (run.visible if run.is_exact else run.saved), f"step {step} can be seen, and should not be"
        self.check(loaded, run.saved[step])
        self.did("step loaded")

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, number=HANDLES)
    def history(self, run_id: str, number: int) -> None:
        run = self.model.runs[self.known(run_id)]
        rows = self.stores[number].history(self.known(run_id))
        steps = [row.step for row in rows]
        assert steps == sorted(set(steps)), f"out of order: {steps}"
        assert set(run.visible) <= set(steps), f"lost: {set(run.visible) - set(steps)}"
        assert set(steps) <= set(run.visible if run.is_exact else run.saved), f"too many: {steps}, not {run.visible}"
        for row in rows:
            kept = run.saved[row.step]
            assert (row.checkpoint_node, row.timestamp) == (kept.checkpoint_node, kept.timestamp)
            assert (row.status, row.error) == (kept.status, kept.error)
            if row.step not in run.visible:
                self.check(self.stores[number].load(kept.run_id, row.step), kept)
        self.did("history", "as the model" if steps == run.visible else "earlier steps in sight again")

    def runs(self, number: int) -> None:
        rows = self.stores[number].runs()
        assert self.stores[number].list() == sorted(self.model.runs)
        newest = {run_id: run.newest for run_id, run in self.model.runs.items()}
        assert {row.run_id: (row.step, row.status) for row in rows} == {
            run_id: (state.step, state.status) for run_id, state in newest.items()
        }
        self.did("runs")

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, number=HANDLES, a=st.integers(0, 10), b=st.integers(0, 10))
    def diff(self, run_id: str, number: int, a: int, b: int) -> None:
        run = self.model.runs[self.known(run_id)]
        first, second = (run.visible[place % len(run.visible)] for place in (a, b))
        shown = attrs.asdict(self.stores[number].diff(self.known(run_id), first, second), recurse=False)
        assert is_same(shown, differences(run.saved[first], run.saved[second]))
        self.did("diff")

    # ------------------------------------------------------------------ time travel, and forgetting

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, number=HANDLES, place=st.integers(0, 10))
    def rollback(self, run_id: str, number: int, place: int) -> None:
        run_id = self.known(run_id)
        step = self.model.runs[run_id].visible[place % len(self.model.runs[run_id].visible)]
        loaded = self.stores[number].rollback(run_id, step)
        self.check(loaded, self.model.rollback(self.handle(number), run_id, step, loaded._time_ns))
        self.live[run_id] = loaded
        self.did("rollback")

    @precondition(has_runs)
    @rule(run_id=RUN_IDS, new=RUN_IDS, number=HANDLES, place=st.integers(0, 10))
    def fork(self, run_id: str, new: str, number: int, place: int) -> None:
        run_id = self.known(run_id)
        step = self.model.runs[run_id].visible[place % len(self.model.runs[run_id].visible)]
        if new in self.model.runs:
            try:
                self.stores[number].fork(run_id, new, step)
            except RunExistsError:
                self.did("fork", "refused, as the model")
                return
            raise AssertionError(f"{new} was there, and is overwritten")
        loaded = self.stores[number].fork(run_id, new, step)
        self.check(loaded, self.model.fork(run_id, new, step))
        self.check(self.stores[number].load(new), self.model.runs[new].newest)
        self.live[new] = loaded
        self.did("fork")

    def delete(self, run_id: str, number: int) -> None:
        self.stores[number].delete(run_id)
        self.gone(run_id, number)
        self.did("delete")

    def gone(self, run_id: str, number: int) -> None:
        """Forget the run, and let each handle notice: a handle that missed it may not save a new run of the id."""
        self.model.delete(self.handle(number), run_id)
        for store in self.stores:
            with suppress(CheckpointNotFoundError):
                store.load(run_id)

    def prune(self, number: int) -> None:
        due = self.model.due(clock.now_ns())
        assert set(self.stores[number].prune().runs) == due
        for run_id in due:
            self.gone(run_id, number)
        self.did("prune")

    @rule(kind=st.sampled_from(["delete", "prune", "reopen", "crash", "move", "runs"]), run_id=RUN_IDS, number=HANDLES)
    def seldom(self, kind: str, run_id: str, number: int) -> None:
        """Call what would keep runs short, and therefore seldom."""
        if kind == "delete":
            self.delete(run_id, number)
        elif kind in ("crash", "move"):
            self.crash(number, moves=kind == "move" and self.kind == "sqlite")
        else:
            getattr(self, kind)(number)

    # ------------------------------------------------------------------ handles

    def reopen(self, number: int) -> None:
        if not self.is_in_memory:
            self.stores[number].close()
            self.model.forget_handle(number)
            self.stores[number] = self.opened()
        self.did("reopened")

    def crash(self, number: int, moves: bool) -> None:
        """Abandon a store without closing it; with `moves` all handles continue on a copy of the files."""
        if not self.is_in_memory:
            numbers = [0, 1] if moves else [number]
            if moves:
                old, self.files = self.files, self.folder / str(len(self.abandoned) + 1)
                shutil.copytree(old, self.files, ignore=shutil.ignore_patterns("*-shm"))
            for one in numbers:
                self.abandoned.append(self.stores[one])
                self.model.forget_handle(one)
                self.stores[one] = self.opened()
        self.did("crashed")


def prove(share: float, seed: int) -> list[Report]:
    """Compare every store with the model; return a report for each."""
    title = '"{}" does what the model does, rule by rule'
    return prove_stores(title, StoreMachine, RULES, STEPS, share, seed)


def prove_stores(title: str, machine: type[Any], rules: int, least: int, share: float, seed: int) -> list[Report]:
    """Run a machine on every store; return a report for each.

    Args:
        title: What is proved, with ``{}`` in place of the store.
        machine: The state machine; its `kind` names the store.
        rules: The number of rules at share 1.0; on servers it is `SERVER_RULES`.
        least: The lowest number of rules at any share.
        share: The share of the full length.
        seed: The seed of the first round.
    """
    reports = []
    for kind in STORES:
        count = max(least, round(share * (SERVER_RULES if kind in REMOTE else rules)))
        reports.append(prove_machine(title.format(kind), type(kind, (machine,), {"kind": kind}), count, seed))
    return reports


def prove_machine(title: str, machine: Any, rules: int, first_seed: int) -> Report:
    """Execute a number of rules of a machine, which counts them; return the report."""
    report = Report(title)
    machine.executed, machine.tried, machine.found = Counter(), Counter(), report.found
    round_seed = first_seed
    while not report.failures and machine.executed.total() < rules:
        left = rules - machine.executed.total()
        how = searching(max(1, min(50, left // STEPS)), stateful_step_count=STEPS, print_blob=True)
        looking = partial(run_state_machine_as_test, seed(round_seed)(machine), settings=how)
        report.failures += failures_of(looking, round_seed)
        round_seed += 1
    report.tried.update(machine.executed + machine.tried)
    return report
