"""The promises of a store that keeps the finished parts of a step, and the nested runs of graphs in it."""

from __future__ import annotations

from typing import Any

import pytest

from stategraph._values.ids import outer_id, step_of
from stategraph._values.progress import Part
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointNotFoundError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import RetentionPolicy
from stategraph.testing.corpus import is_same
from stategraph.testing.history import LONG_AGO

_NESTED = ["a/#3/x", "a/#3~1/x", "a/#3/my%20node%2F.", f"a/#3/~x/#12~3/y/#1/%2E.{'n' * 200}"]
"""Ids of runs that are nested in step 3 of a run "a", at any depth."""


def parts_of(step: int, node: str = "map", **values: Any) -> list[Part]:
    """Return finished parts of a step, by label."""
    return [Part(step, node, label, value) for label, value in values.items()]


def save_nested(store: CheckpointStore, *run_ids: str, step: int = 1, **data: Any) -> None:
    """Save States of nested runs, as the engine does, each with a part of its second step."""
    for run_id in run_ids:
        parent = ParentStep(outer_id(run_id), step_of(run_id) - 1)
        store.save(State(data, run_id=run_id, step=step, parent=parent))
        store.save_parts(run_id, parts_of(step + 1, x=1))


def are_gone(store: CheckpointStore, *run_ids: str) -> bool:
    """Return whether there are no such runs, nor parts of their second step."""
    for run_id in run_ids:
        with pytest.raises(CheckpointNotFoundError):
            store.load(run_id)
    return not any(store.load_parts(run_id, 2, "map") for run_id in run_ids)


class PartsContract:
    """The part of `CheckpointStoreContract` that is about parts and nested runs. Stores that keep no parts skip it."""

    @pytest.fixture
    def run(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store, with a run "a" that has completed two steps."""
        if not store.keeps_parts:
            pytest.skip("this store keeps no parts, and says so by keeps_parts = False")
        store.save(State({"n": 2}, run_id="a", step=2))
        return store

    # ------------------------------------------------------------------ parts

    def test_parts_are_loaded_by_step_and_node(self, run: CheckpointStore) -> None:
        """Those of one step of one node, by their labels; none of others. They stay when the step before is saved."""
        run.save_parts("a", [*parts_of(3, x=1, y=[2]), *parts_of(3, "other", x="o"), *parts_of(4, x="later")])
        run.save(State(run_id="b", step=2))
        run.save_parts("b", parts_of(3, x="of b"))
        run.save(State({"n": 3}, run_id="a", step=3))

        assert run.load_parts("a", 3, "map") == {"x": 1, "y": [2]}
        assert run.load_parts("a", 3, "other") == {"x": "o"}
        assert run.load_parts("a", 4, "map") == {"x": "later"}
        assert run.load_parts("b", 3, "map") == {"x": "of b"}
        assert run.load_parts("a", 5, "map") == run.load_parts("nobody", 3, "map") == {}

    def test_parts_come_in_batches(self, run: CheckpointStore) -> None:
        """What came later is added; of a label that comes twice, the later value and what it was made of count."""
        for number in range(20):
            run.save_parts("a", [Part(3, "map", str(number), number), Part(3, "map", "newest", number, "old")])
        run.save_parts("a", [Part(3, "map", "newest", "first"), Part(3, "map", "newest", "last", "digest")])
        run.fork("a", "b")

        for run_id in "ab":
            found = run.load_parts(run_id, 3, "map")
            assert found == {**{str(number): number for number in range(20)}, "newest": "last"}
            assert found.made_of == {**{str(number): "" for number in range(20)}, "newest": "digest"}
        assert run.load_parts("a", 4, "map").made_of == {}

    @pytest.mark.parametrize(
        "name", ["0", "a/b", "@", "#3#map", "map/#3#map", "..", "../x", "", "ä", "with space", "%2F"]
    )
    def test_labels_and_nodes_have_any_name(self, run: CheckpointStore, name: str) -> None:
        """Parts of a node with another name are never found in place of its own."""
        run.save_parts("a", [Part(3, name or "node", name, 1), *parts_of(3, x="other")])

        assert run.load_parts("a", 3, name or "node") == {name: 1}
        run.drop_parts("a", 3)
        assert run.load_parts("a", 3, name or "node") == {}

    # ------------------------------------------------------------------ nested runs

    def test_nested_runs_are_not_shown(self, run: CheckpointStore) -> None:
        """Neither by list nor by runs; the run looks as it would without. They go with its step, at any depth."""
        before = run.load("a"), run.history("a"), run.runs(), run.list()

        run.save_parts("a", parts_of(3, x=1))
        save_nested(run, *_NESTED, n=1)

        assert (run.load("a"), run.history("a"), run.runs(), run.list()) == before
        assert run.runs(status="active", limit=1) == before[2]
        assert {run.load(run_id)["n"] for run_id in _NESTED} == {1}
        run.drop_parts("a", 3)
        assert are_gone(run, *_NESTED)

    @pytest.mark.parametrize(("step", "newer_too"), [(3, False), (2, True)])
    def test_parts_are_dropped_up_to_a_step(self, run: CheckpointStore, step: int, newer_too: bool) -> None:
        """With the nested runs of these steps, and all that is nested in those. Those of later steps stay; with
        ``newer_too``, the parts of later steps go."""
        children = ["a/#2/child", "a/#3/child", "a/#4/child"]
        run.save_parts("a", [Part(number, "map", "x", number) for number in (2, 3, 4)])
        save_nested(run, *children)

        run.drop_parts("a", step, newer_too=newer_too)
        run.drop_parts("nobody", step)

        left = {} if newer_too else {"x": 4}
        assert [run.load_parts("a", number, "map") for number in (2, 3, 4)] == [{}, {}, left]
        assert are_gone(run, *children[: step - 1])
        for child in children[step - 1 :]:
            assert (run.load(child).step, run.load_parts(child, 2, "map")) == (1, {"x": 1})

    @pytest.mark.parametrize("how", ["delete", "rollback", "prune"])
    def test_what_is_nested_in_a_run_goes_with_it(self, run: CheckpointStore, how: str) -> None:
        """And stays as long as the run, however old it is: a run that takes the id finds nothing of it."""
        child, grandchild = "a/#3/child", "a/#3/child/#2/grandchild"
        for run_id in ("a", child):
            run.retain(run_id, RetentionPolicy(ttl=1))
        run.save_parts("a", parts_of(3, x=1))
        save_nested(run, child, grandchild)
        over: dict[str, Any] = {"step": 2, "status": "completed", "timestamp": LONG_AGO}
        run.save(State(run_id=child, parent=ParentStep("a", 2), **over))
        assert run.prune().runs == ()
        assert run.load(child).step == 2
        if how == "delete":
            run.delete("a")
        elif how == "rollback":
            run.rollback("a", 2)
        else:
            run.save(State({"n": 2}, run_id="a", **over))
            assert run.prune().runs == ("a",)
        if how != "rollback":
            run.save(State(run_id="a", step=2))

        assert run.load_parts("a", 3, "map") == {}
        assert are_gone(run, child, grandchild)

    # ------------------------------------------------------------------ copied

    def test_a_fork_has_the_parts_of_the_step_after(self, run: CheckpointStore) -> None:
        """They are its own: deleting the source leaves them. Those of other steps are not copied."""
        run.save_parts("a", [*parts_of(2, x="joined"), *parts_of(3, x=[1], y=(2,)), *parts_of(4, x="later")])

        run.fork("a", "b")
        run.save_parts("b", parts_of(3, z=4))
        assert is_same(run.load_parts("a", 3, "map"), {"x": [1], "y": (2,)})
        run.delete("a")

        assert is_same(run.load_parts("b", 3, "map"), {"x": [1], "y": (2,), "z": 4})
        assert run.load_parts("b", 2, "map") == run.load_parts("b", 4, "map") == {}
        run.delete("b")
        assert run.load_parts("b", 3, "map") == {}
