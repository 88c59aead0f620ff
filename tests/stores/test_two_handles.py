"""Two store objects on the same files: what one remembers of a run is not what another has made of it."""

import os

import attrs
import pytest

from stategraph import State
from stategraph._owners.base import Ownership, on_behalf_of, own, release
from stategraph._values.ids import step_of
from stategraph._values.progress import Part
from stategraph._values.provenance import ParentStep
from stategraph.errors import (
    CheckpointNotFoundError,
    CheckpointSaveError,
    RunBusyError,
    RunExistsError,
    RunLostError,
    StepConflictError,
)
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore
from stategraph.stores.summaries import Pruned
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at
from tests.stores.inside import log_of, table_of


@pytest.fixture(params=[SqliteStore, postgres_at, redis_at])
def opened(request, tmp_path):
    stores = []

    def open_another():
        stores.append(request.param(tmp_path / "runs"))
        return stores[-1]

    yield open_another
    for store in stores:
        store.close()


@pytest.fixture
def store(opened):
    return opened()


@pytest.fixture
def other(opened):
    return opened()


def saved(store, *steps, **data):
    for step in steps:
        store.save(State({"n": step, **data}, run_id="a", step=step))


def test_a_run_that_another_began_anew(store, other):
    """Nothing of the old one gets into it, until it is loaded."""
    saved(store, 1)
    other.delete("a")
    saved(other, 1, text="another run")
    state = State({"n": 2}, run_id="a", step=2)

    with pytest.raises(StepConflictError, match="deleted"):
        store.save(state)
    with pytest.raises(StepConflictError, match="deleted"):
        store.save_many([state, State({"n": 3}, run_id="a", step=3)])

    assert other.load("a")["text"] == "another run"
    assert store.load("a").step == 1
    store.save(state)
    assert other.load("a") == state


def test_a_run_that_another_deleted_begins_anew(store, other):
    """It is not behind anything."""
    saved(store, 1, 2, 3)
    other.delete("a")

    saved(store, 1)

    assert other.load("a").step == 1


def test_a_run_that_another_deleted_is_saved_again(store, other):
    """With another status."""
    saved(store, 3)
    state = store.load("a")
    other.delete("a")

    store.save(attrs.evolve(state, status="failed"))

    assert other.load("a").status == "failed"


def test_a_run_that_another_rolled_back(store, other):
    """Goes on from there."""
    store.retain("a", Policy("full"))
    saved(store, 1, 2, 3)
    other.rollback("a", 1)

    saved(store, 2, other="way")

    assert other.load("a")["other"] == "way"


def test_a_run_that_another_went_on_with_is_not_pruned(store, other, monkeypatch):
    """Though it was over when prune began."""
    store.retain("a", Policy(ttl=1e-9))
    store.save(State(run_id="a", step=1, status="completed"))
    heads = table_of(store).runs

    def then_another_goes_on(*asked):
        found = heads(*asked)
        other.amend(State({"new": "question"}, run_id="a", step=1))
        return found

    monkeypatch.setattr(table_of(store), "runs", then_another_goes_on)
    store.prune()

    assert other.load("a")["new"] == "question"


def test_a_load_beside_a_save(store, other, monkeypatch):
    """What it remembers of the run is all of one time: what is saved after it can be loaded."""
    store.retain("a", Policy("full"))
    saved(store, 1)
    chain = table_of(other).chain

    def then_another_saves(*asked):
        found = chain(*asked)
        store.save(attrs.evolve(store.load("a"), status="failed"))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(table_of(other), "chain", then_another_saves)
        state = other.load("a")

    other.save(attrs.evolve(state.set("n", 2), step=2))
    assert store.load("a").step == 2


def test_keys_keep_their_order(store, other):
    """One that went and came back is the last, as in the State that was saved."""
    store.retain("a", Policy("full"))
    state = State({"a": [1], "b": [2], "c": [3]}, run_id="a", step=1)
    store.save(state)
    state = attrs.evolve(state.remove("a").set("a", state["a"]), step=2)
    store.save(state)

    assert list(other.load("a")) == list(state) == ["b", "c", "a"]


@pytest.mark.parametrize("states", [1, 3])
def test_several_saves_of_one_go_by_what_another_was_told(store, other, states):
    """One keeps the newest checkpoint, as it was told; the other was told since that all are to be kept."""
    saved(store, 1)
    other.retain("a", Policy("full"))
    saved(other, 2)

    store.save_many([State({"n": step}, run_id="a", step=step) for step in range(3, 3 + states)])
    store.save_many([State({"n": step}, run_id="a", step=step) for step in range(10, 13)])

    assert [row.step for row in other.history("a")] == [1, 2, *range(3, 3 + states), 10, 11, 12]


def test_what_was_told_last_counts(store, other):
    """From the next save on, whoever makes it."""
    store.retain("a", Policy("full"))
    saved(store, 1, 2)
    other.retain("a", Policy("windowed", window=2))
    saved(other, 3)

    saved(store, 4, 5)

    assert [row.step for row in store.history("a")] == [4, 5]


def test_a_run_that_is_at_work_does_not_end_a_prune(store, other, monkeypatch):
    """What is due of it goes another time; all others lose what is due, and that is told."""
    for run_id in ("a", "b", "c"):
        store.retain(run_id, Policy("full"))
        for step in range(1, 9):
            store.save(State({"big": str(step) * 20_000}, run_id=run_id, step=step))
        store.retain(run_id, Policy("windowed", window=2))
        store.save(attrs.evolve(store.load(run_id).set("small", 1), step=9))
    index = table_of(store).index

    def then_it_goes_on(run_id):
        rows = index(run_id)
        if run_id == "b":
            other.save(attrs.evolve(other.load("b").set("n", 1), step=other.load("b").step + 1))
        return rows

    monkeypatch.setattr(table_of(store), "index", then_it_goes_on)
    pruned = store.prune()
    monkeypatch.undo()

    assert (pruned.runs, pruned.damaged) == ((), ())
    assert pruned.checkpoints == 2 * 6
    assert [row.step for row in other.history("b")][-1] > 8
    assert store.prune().checkpoints > 0


class TestNestedRunsOfARunThatWasDeleted:
    """What one makes within a run that another has deleted is no part of the run that takes its id."""

    @pytest.fixture
    def dead(self, store):
        """-> a handle that is at work on a run, and on a nested run of it."""
        saved(store, 1)
        store.save(nested(1))
        return store

    @staticmethod
    def begun_anew(other):
        other.delete("a")
        saved(other, 1, text="another run")

    @staticmethod
    def within(store):
        """-> all that the files hold within the run, whoever made it."""
        return table_of(store).nested_ids("a")

    @pytest.mark.parametrize("step", [1, 2])
    def test_a_save_is_refused(self, dead, other, step):
        self.begun_anew(other)

        with pytest.raises(StepConflictError, match="deleted"):
            dead.save(nested(step, status="failed"))

        assert self.within(other) == []

    def test_a_save_is_refused_where_the_new_run_has_one_of_the_same_id(self, dead, other):
        self.begun_anew(other)
        other.save(nested(1, new="run"))

        with pytest.raises(StepConflictError, match="deleted"):
            dead.save(nested(2))

        assert other.load("a/#2/child")["new"] == "run"

    def test_a_save_is_refused_where_nobody_has_begun_it_anew(self, dead, other):
        other.delete("a")

        with pytest.raises(StepConflictError, match="deleted"):
            dead.save(nested(2))

        assert self.within(other) == []

    def test_the_first_save_of_another_nested_run_is_refused(self, dead, other):
        self.begun_anew(other)

        with pytest.raises(StepConflictError, match="deleted"):
            dead.save(nested(1, run_id="a/#3/child"))

        assert self.within(other) == []

    def test_several_saves_are_refused(self, dead, other):
        dead.retain("a/#2/child", Policy("full"))
        self.begun_anew(other)

        with pytest.raises(StepConflictError, match="deleted"):
            dead.save_many([nested(2), nested(3)])

        assert self.within(other) == []

    @pytest.mark.parametrize("has_parts", [False, True])
    def test_parts_are_refused(self, dead, other, has_parts):
        dead.save_parts("a", [Part(2, "map", "x", "dead")])
        self.begun_anew(other)
        if has_parts:
            other.save_parts("a", [Part(2, "map", "y", "new")])

        with pytest.raises(StepConflictError, match="deleted"):
            dead.save_parts("a", [Part(2, "map", "z", "dead")])

        assert other.load_parts("a", 2, "map") == ({"y": "new"} if has_parts else {})

    @pytest.mark.parametrize("is_begun_anew", [False, True])
    @pytest.mark.parametrize("run_id", ["a/#2/child", "a/#3/child"])
    def test_it_is_deleted_while_one_saves(self, dead, other, monkeypatch, is_begun_anew, run_id):
        """After it was looked at: the write itself finds out."""
        apply = table_of(dead).apply

        def after_it_was_deleted(writes):
            monkeypatch.undo()
            other.delete("a", take_over=True)
            if is_begun_anew:
                saved(other, 1)
            return apply(writes)

        monkeypatch.setattr(dead._log.committer, "_apply", after_it_was_deleted)
        with pytest.raises(StepConflictError, match="deleted"):
            dead.save(nested(2, run_id=run_id))

        assert self.within(other) == []

    def test_it_is_begun_by_another_while_one_saves_what_is_within_first(self, store, other):
        """As durability "exit" does: it is within a run that never came to be."""
        store.save(nested(1))
        saved(other, 1)

        with pytest.raises(StepConflictError):
            store.save(nested(1, run_id="a/#3/child"))

        with pytest.raises(CheckpointNotFoundError):
            other.load("a/#2/child")

    @pytest.mark.parametrize("begins", ["load", "look"])
    def test_the_way_out(self, dead, other, begins):
        """Who loads the new run, or begins a run of the id, goes on with that."""
        self.begun_anew(other)
        if begins == "load":
            dead.load("a")
        else:
            other.delete("a")
            with pytest.raises(CheckpointNotFoundError):
                dead.load("a")
            dead.save(nested(1, new="run"))  # before the run around it, as durability "exit" does
            saved(dead, 1)

        dead.save(nested(2, new="run"))

        assert other.load("a/#2/child")["new"] == "run"


def nested(step, run_id="a/#2/child", status="active", **data):
    parent = ParentStep("a", step_of(run_id) - 1)
    return State({"n": step, **data}, run_id=run_id, step=step, status=status, parent=parent)


class TestAChangeThatFails:
    """Either all of it is done, or nothing."""

    @pytest.fixture
    def run(self, store):
        store.retain("a", Policy("full"))
        saved(store, 1, 2)
        store.save_parts("a", [Part(3, "map", "x", "kept")])
        store.save(nested(1, run_id="a/#3/child"))
        return store

    @staticmethod
    def check_kept(store):
        assert store.load_parts("a", 3, "map") == {"x": "kept"}
        assert store.load("a/#3/child")["n"] == 1

    @pytest.mark.parametrize(
        "call",
        [
            lambda run: run.rollback("a", 1),
            lambda run: run.rollback("a", 1, take_over=True),
            lambda run: run.delete("a"),
            lambda run: run.delete("a", take_over=True),
        ],
    )
    def test_since_another_has_taken_the_run(self, run, other, monkeypatch, call):
        """As `delete(take_over=True)` does at the same moment: the call has lost the run, or finds it busy."""
        apply = table_of(run).apply

        def after_another_has_written(writes):
            own(other, Ownership("a"), take_over=True)
            return apply(writes)

        monkeypatch.setattr(run._log.committer, "_apply", after_another_has_written)
        with pytest.raises((RunLostError, RunBusyError)):
            call(run)

        self.check_kept(other)

    def test_since_it_cannot_be_written(self, run, other, monkeypatch):
        """As when the process dies, or the disk is full."""

        def failing(writes):
            raise CheckpointSaveError("a", "the disk is full")

        monkeypatch.setattr(run._log.committer, "_apply", failing)
        with pytest.raises(CheckpointSaveError, match="full"):
            run.rollback("a", 1)

        self.check_kept(other)

    def test_a_prune_that_another_comes_before(self, store, other, monkeypatch):
        """What is within a run that goes on stays."""
        store.retain("a", Policy(ttl=1e-9))
        store.save(State({"n": 2}, run_id="a", step=2, status="completed"))
        store.save_parts("a", [Part(3, "map", "x", "kept")])
        store.save(nested(1, run_id="a/#3/child"))
        commit = log_of(store).commit

        def after_another_has_written(writes):
            monkeypatch.setattr(log_of(store), "commit", commit)
            ownership = Ownership("a")
            own(other, ownership, take_over=True)
            with on_behalf_of(ownership):
                other.amend(State({"n": 2, "more": 1}, run_id="a", step=2))
            release(ownership)
            return commit(writes)

        monkeypatch.setattr(log_of(store), "commit", after_another_has_written)

        assert store.prune().runs == ()
        self.check_kept(other)


class TestWhatIsReadWhileAnotherWrites:
    """It is not of one time. That is no damage."""

    @pytest.fixture
    def run(self, store, other, monkeypatch):
        """-> has another begin a run anew, up to a step, just before the first rows of it are read."""
        for handle in (store, other):
            handle.retain("a", Policy("full"))
        saved(store, 1, 2, 3)
        store.save_parts("a", [Part(4, "map", "x", "first")])
        chain = table_of(store).chain

        def begin_anew_later(up_to=3):
            def after_another_has_written(*asked):
                monkeypatch.undo()
                other.delete("a")
                other.retain("a", Policy("full"))
                saved(other, *range(1, up_to + 1), text="another run")
                other.save_parts("a", [Part(4, "map", "x", "second")])
                return chain(*asked)

            monkeypatch.setattr(table_of(store), "chain", after_another_has_written)

        return begin_anew_later

    def test_a_prune(self, store, run):
        """What goes of the run goes another time."""
        for step in range(4, 8):
            store.save(State({"big": str(step) * 20_000}, run_id="a", step=step))
        store.retain("a", Policy("windowed", window=2))
        store.save(attrs.evolve(store.load("a"), status="failed"))
        run(up_to=7)

        assert store.prune() == Pruned()

    def test_a_prune_of_a_run_that_was_over(self, store, run):
        store.retain("a", Policy(ttl=1e-9))
        store.save(attrs.evolve(store.load("a"), status="completed"))
        run()

        assert store.prune() == Pruned()

    def test_a_fork(self, store, run):
        """It is made again."""
        run()

        assert store.fork("a", "b")["text"] == "another run"
        assert store.load_parts("b", 4, "map") == {"x": "second"}

    def test_parts(self, store, run):
        """They are read again."""
        run()

        assert store.load_parts("a", 4, "map") == {"x": "second"}


def test_a_fork_whose_id_another_takes_at_the_same_time(store, other, monkeypatch):
    """Nothing of it is made, so that nothing has to be taken back by a process that may die before."""
    saved(store, 1)
    store.save(nested(1))
    store.save_parts("a", [Part(2, "map", "x", "of a")])
    apply = table_of(store).apply

    def after_another_has_begun_it(writes):
        monkeypatch.setattr(table_of(store), "apply", None)
        other.delete("b", take_over=True)
        other.save(State({"n": "another"}, run_id="b", step=1))
        return apply(writes)

    monkeypatch.setattr(table_of(store), "apply", after_another_has_begun_it)
    with pytest.raises(RunExistsError):
        store.fork("a", "b")

    assert table_of(other).nested_ids("b") == []
    assert other.load("b")["n"] == "another"


def test_a_fork_while_another_saves_parts_of_the_step(store, other, monkeypatch):
    """The copy has them as well, and loses none when more are saved."""
    saved(store, 1)
    store.save_parts("a", [Part(2, "map", "x", 1)])
    index = table_of(store).index

    def after_another_has_saved_one(run_id, *bounds):
        if "#" in run_id:
            monkeypatch.undo()
            other.save_parts("a", [Part(2, "map", "y", 2)])
        return index(run_id, *bounds)

    monkeypatch.setattr(table_of(store), "index", after_another_has_saved_one)
    store.fork("a", "b")
    assert store.verify().damaged == ()
    store.save_parts("b", [Part(2, "map", "z", 3)])

    assert store.load_parts("b", 2, "map") == {"x": 1, "y": 2, "z": 3}


@pytest.mark.parametrize(
    "is_right",
    [lambda store: '"step":7,' in [*store.export_run("a")][-1], lambda store: not store.verify().damaged],
    ids=["export", "verify"],
)
def test_an_export_while_another_removes_checkpoints(store, other, monkeypatch, is_right):
    """It is begun again, as a check of the store is."""
    store.retain("a", Policy("windowed", 2))
    for step in (1, 2):
        store.save(State({"n": step, "large": os.urandom(40_000)}, run_id="a", step=step))
    chain = table_of(store).chain

    def after_another_has_saved_more(run_id, sequence):
        monkeypatch.undo()
        for step in range(3, 8):
            other.save(State({"n": step, "large": os.urandom(40_000)}, run_id="a", step=step))
        return chain(run_id, sequence)

    monkeypatch.setattr(table_of(store), "chain", after_another_has_saved_more)

    assert is_right(store)
