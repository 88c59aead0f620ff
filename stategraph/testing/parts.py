"""The promises of a store that keeps the finished parts of a step, and the nested runs of graphs in it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from stategraph._values.ids import outer_id, step_of
from stategraph._values.progress import Part
from stategraph._values.provenance import ParentStep, RunStatus
from stategraph.errors import CheckpointNotFoundError, RunExistsError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import RetentionPolicy
from stategraph.testing.corpus import is_same
from stategraph.testing.values import needs_parts


def parts_of(step: int, node: str = "map", **values: Any) -> list[Part]:
    """Return finished parts of a step, by label."""
    return [Part(step, node, label, value) for label, value in values.items()]


def numbered(number: int) -> list[Part]:
    """Return a part of step 3 with this number, and one that every batch has."""
    return [Part(3, "map", str(number), number), Part(3, "map", "newest", number)]


def save_nested(store: CheckpointStore, run_id: str, step: int = 1, **data: Any) -> None:
    """Save a State of a nested run, as the engine does."""
    store.save(State(data, run_id=run_id, step=step, parent=ParentStep(outer_id(run_id), step_of(run_id) - 1)))


def check_gone(store: CheckpointStore, *run_ids: str) -> None:
    """Check that there are no such runs, nor parts of their second step."""
    for run_id in run_ids:
        with pytest.raises(CheckpointNotFoundError):
            store.load(run_id)
        assert store.load_parts(run_id, 2, "map") == {}


class PartsContract:
    """The part of `CheckpointStoreContract` that is about parts and nested runs. Stores that keep no parts skip it."""

    @pytest.fixture
    def run(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store, with a run "a" that has completed two steps."""
        needs_parts(store)
        return store

    # ------------------------------------------------------------------ parts

    def test_parts_are_loaded_by_step_and_node(self, run: CheckpointStore) -> None:
        """Those of one step of one node, by their labels; none of others."""
        run.save_parts("a", [*parts_of(3, x=1, y=[2]), *parts_of(3, "other", x="o"), *parts_of(4, x="later")])
        run.save(State(run_id="b", step=2))
        run.save_parts("b", parts_of(3, x="of b"))

        assert run.load_parts("a", 3, "map") == {"x": 1, "y": [2]}
        assert run.load_parts("a", 3, "other") == {"x": "o"}
        assert run.load_parts("a", 4, "map") == {"x": "later"}
        assert run.load_parts("b", 3, "map") == {"x": "of b"}
        assert run.load_parts("a", 5, "map") == {}
        assert run.load_parts("nobody", 3, "map") == {}

    def test_parts_come_in_batches(self, run: CheckpointStore) -> None:
        """What came later is added; of a label that comes twice, the later value counts."""
        for number in range(20):
            run.save_parts("a", numbered(number))
        run.save_parts("a", [*parts_of(3, newest="first"), *parts_of(3, newest="last")])

        assert run.load_parts("a", 3, "map") == {**{str(number): number for number in range(20)}, "newest": "last"}

    def test_what_parts_were_made_of(self, run: CheckpointStore) -> None:
        """A digest of it is kept with each, in a fork as well; of a label that comes twice, that of the later value."""
        run.save_parts("a", [Part(3, "map", "x", 1, "old"), Part(3, "map", "y", 2, "digest"), Part(3, "map", "z", 3)])
        run.save_parts("a", [Part(3, "map", "x", 4, "new")])
        run.fork("a", "b")

        for run_id in "ab":
            found = run.load_parts(run_id, 3, "map")
            assert (found, found.made_of) == ({"x": 4, "y": 2, "z": 3}, {"x": "new", "y": "digest", "z": ""})
        assert run.load_parts("a", 4, "map").made_of == {}

    @pytest.mark.parametrize("label", ["0", "a/b", "@", "#3#map", "", "ä", "with space"])
    def test_labels(self, run: CheckpointStore, label: str) -> None:
        """A label is any text."""
        run.save_parts("a", [Part(3, "map", label, 1)])

        assert run.load_parts("a", 3, "map") == {label: 1}

    def test_threads_save_parts_of_different_steps(self, run: CheckpointStore) -> None:
        """Side by side, of one run and of others."""
        for run_id in ("b", "c"):
            run.save(State(run_id=run_id, step=2))

        def save(run_id: str) -> None:
            for number in range(20):
                run.save_parts(run_id, numbered(number))

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(save, "abc"))

        assert all(len(run.load_parts(run_id, 3, "map")) == 21 for run_id in "abc")

    @pytest.mark.parametrize("node", ["a/b", "#3#map", "map/#3#map", "..", "../x", "ä", "with space", "%2F"])
    def test_nodes(self, run: CheckpointStore, node: str) -> None:
        """A node has any name; parts of one with another name are never found in place of its own."""
        run.save_parts("a", [*parts_of(3, node, x=1), *parts_of(3, "map", x="other")])

        assert run.load_parts("a", 3, node) == {"x": 1}
        run.drop_parts("a", 3)
        assert run.load_parts("a", 3, node) == {}

    def test_ids_of_nested_runs(self, run: CheckpointStore) -> None:
        """They tell the way from the outermost run, and go with its step, even where a run on the way is not there."""
        ids = ["a/#3/x", "a/#3~1/x", "a/#3/my%20node%2F.", f"a/#3/~x/#12~3/y/#1/%2E.{'n' * 200}"]
        for run_id in ids:
            save_nested(run, run_id, n=1)
            run.save_parts(run_id, parts_of(2, x=1))
            assert run.load(run_id)["n"] == 1
        assert run.list() == ["a"]
        run.drop_parts("a", 3)

        check_gone(run, *ids)

    # ------------------------------------------------------------------ hidden

    def test_what_is_nested_in_a_run_is_not_shown(self, run: CheckpointStore) -> None:
        """Neither by list nor by runs; history and load of the run are as they would be without."""
        before = run.load("a"), run.history("a"), run.runs(), run.list()

        run.save_parts("a", parts_of(3, x=1))
        save_nested(run, "a/#3/child")
        run.save_parts("a/#3/child", parts_of(2, x=1))

        assert (run.load("a"), run.history("a"), run.runs(), run.list()) == before
        assert run.runs(status="active", limit=1) == before[2]

    def test_the_run_goes_on_while_parts_are_there(self, run: CheckpointStore) -> None:
        """Saving a step leaves the parts of the one after."""
        run.save_parts("a", parts_of(4, x=1))
        run.save(State({"n": 3}, run_id="a", step=3))

        assert run.load("a")["n"] == 3
        assert run.load_parts("a", 4, "map") == {"x": 1}

    def test_prune_leaves_what_is_nested_in_runs_that_stay(self, run: CheckpointStore) -> None:
        """However old it is, and whether it is completed: it goes with the run that it is nested in."""
        save_nested(run, "a/#3/child", n=1)
        run.retain("a/#3/child", RetentionPolicy(ttl=1))
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        over: Any = {"step": 2, "status": "completed", "timestamp": long_ago, "parent": ParentStep("a", 2)}
        run.save(State({"n": 2}, run_id="a/#3/child", **over))
        run.save_parts("a", parts_of(3, x=1))

        assert run.prune().runs == ()
        assert run.load("a/#3/child")["n"] == 2
        assert run.load_parts("a", 3, "map") == {"x": 1}

    # ------------------------------------------------------------------ dropped

    def test_parts_are_dropped_up_to_a_step(self, run: CheckpointStore) -> None:
        """With the nested runs of these steps, and all that is nested in those; later ones stay."""
        for step in (2, 3, 4):
            run.save_parts("a", parts_of(step, x=step))
            save_nested(run, f"a/#{step}/child")
            run.save_parts(f"a/#{step}/child", parts_of(2, x=step))

        run.drop_parts("a", 3)

        assert [run.load_parts("a", step, "map") for step in (2, 3, 4)] == [{}, {}, {"x": 4}]
        assert run.load_parts("a/#4/child", 2, "map") == {"x": 4}
        assert run.load("a/#4/child").step == 1
        check_gone(run, "a/#2/child", "a/#3/child")
        run.drop_parts("nobody", 3)

    def test_newer_parts_are_dropped_where_their_data_have_changed(self, run: CheckpointStore) -> None:
        """All parts of the run then; the nested runs of later steps stay, with their parts."""
        run.save_parts("a", parts_of(4, x=1))
        save_nested(run, "a/#4/child")
        run.save_parts("a/#4/child", parts_of(2, x=1))

        run.drop_parts("a", 2, newer_too=True)

        assert run.load_parts("a", 4, "map") == {}
        assert run.load("a/#4/child").step == 1
        assert run.load_parts("a/#4/child", 2, "map") == {"x": 1}

    @pytest.mark.parametrize("how", ["delete", "rollback", "prune"])
    def test_what_is_nested_in_a_run_goes_with_it(self, run: CheckpointStore, how: str) -> None:
        """To the last: a run that takes the id finds nothing of it."""
        run.retain("a", RetentionPolicy(ttl=1))
        run.save_parts("a", parts_of(3, x=1))
        save_nested(run, "a/#3/child")
        run.save_parts("a/#3/child", parts_of(2, x=1))
        save_nested(run, "a/#3/child/#2/grandchild")
        run.save_parts("a/#3/child/#2/grandchild", parts_of(2, x=1))
        if how == "delete":
            run.delete("a")
        elif how == "rollback":
            run.rollback("a", 2)
        else:
            run.save(
                State({"n": 2}, run_id="a", step=2, status="completed", timestamp=datetime(2020, 1, 1, tzinfo=UTC))
            )
            assert run.prune().runs == ("a",)
        if how != "rollback":
            run.save(State(run_id="a", step=2))

        assert run.load_parts("a", 3, "map") == {}
        check_gone(run, "a/#3/child", "a/#3/child/#2/grandchild")

    def test_a_run_named_as_if_nested_in_another_is_one_of_its_own(self, run: CheckpointStore) -> None:
        """A run that a user has named "a/b" is shown, and nothing that happens to "a" concerns it."""
        run.save(State({"n": 1}, run_id="a/b", step=2, parent=ParentStep("a", 2)))
        run.save_parts("a/b", parts_of(3, x="own"))
        save_nested(run, "a/b/#3/child")
        run.save_parts("a", parts_of(3, x="of a"))

        forked = run.fork("a", "c")
        run.drop_parts("a", 9, newer_too=True)
        run.delete("a")

        assert forked.run_id == "c"
        assert run.list() == ["a/b", "c"]
        assert run.load_parts("a/b", 3, "map") == {"x": "own"}
        assert run.load("a/b/#3/child").step == 1

    # ------------------------------------------------------------------ copied

    def test_a_fork_has_the_parts_of_the_step_after(self, run: CheckpointStore) -> None:
        """They are its own: deleting the source leaves them. Those of other steps are not copied."""
        run.save_parts("a", [*parts_of(2, x="joined"), *parts_of(3, x=[1], y=(2,)), *parts_of(4, x="later")])
        run.save_parts("a", parts_of(3, y=(3,)))

        run.fork("a", "b")
        run.save_parts("b", parts_of(3, z=4))
        assert run.load_parts("a", 3, "map") == {"x": [1], "y": (3,)}
        run.delete("a")

        assert is_same(run.load_parts("b", 3, "map"), {"x": [1], "y": (3,), "z": 4})
        assert run.load_parts("b", 2, "map") == run.load_parts("b", 4, "map") == {}
        run.delete("b")
        assert run.load_parts("b", 3, "map") == {}

    def test_a_fork_has_the_nested_runs_of_the_step_after(self, run: CheckpointStore) -> None:
        """With all that is nested in them, as nested runs of the copy; hidden, and gone with it."""
        save_nested(run, "a/#3/child", step=3, n=1)
        run.save_parts("a/#3/child", parts_of(4, x=1))
        save_nested(run, "a/#3/child/#4/grandchild", n=2)
        save_nested(run, "a/#2/earlier")

        run.fork("a", "b")
        run.delete("a")

        assert run.list() == ["b"]
        child, grandchild = run.load("b/#3/child"), run.load("b/#3/child/#4/grandchild")
        assert (dict(child), child.step, child.parent) == ({"n": 1}, 3, ParentStep("b", 2))
        assert (dict(grandchild), grandchild.parent) == ({"n": 2}, ParentStep("b/#3/child", 3))
        assert run.load_parts("b/#3/child", 4, "map") == {"x": 1}
        run.save(attrs.evolve(child, step=4))
        assert run.list() == ["b"]
        run.delete("b")
        check_gone(run, "b/#3/child", "b/#3/child/#4/grandchild", "b/#2/earlier")

    def test_a_fork_never_takes_the_place_of_a_nested_run(self, run: CheckpointStore) -> None:
        """Where something is left that has the id of a nested run of the copy, nothing is copied."""
        save_nested(run, "a/#3/child", n="nested")
        save_nested(run, "b/#3/child", n="left")

        with pytest.raises(RunExistsError, match="'b/#3/child'"):
            run.fork("a", "b")

        assert run.load("b/#3/child")["n"] == "left"
        assert run.list() == ["a"]

    def test_a_fork_of_a_nested_run_is_a_run_of_its_own(self, run: CheckpointStore) -> None:
        """Somebody has named it, so it is shown, and stays when the outer run goes."""
        save_nested(run, "a/#3/child", n=1)

        forked = run.fork("a/#3/child", "b")
        run.delete("a")

        assert run.list() == ["b"]
        assert run.load("b") == forked
        assert forked.status is RunStatus.ACTIVE
