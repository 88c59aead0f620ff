"""The contract of the built-in stores, as tests that each store must pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import attrs
import pytest

from stategraph import CheckpointConfig, GraphConfig, StateGraph
from stategraph._owners.base import owned
from stategraph._values.ids import outer_id, step_of
from stategraph._values.progress import Part
from stategraph._values.provenance import Kind, ParentStep, RunStatus
from stategraph.errors import (
    CheckpointNotFoundError,
    ExecutionError,
    GraphMismatchError,
    RunCancelledError,
    RunCompleteError,
)
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import RetentionPolicy
from stategraph.testing import CheckpointStoreContract, is_same
from stategraph.testing.contract import LONG_AGO, RUN, graph_of, long_run_of

_WRONG: list[dict[str, Any]] = [
    *({"labels": 5}, {"labels": {"a": 1}}, {"since": datetime(2024, 1, 1)}, {"prefix": 5}, {"owned": 5}),
    *({"status": "pausd"}, {"limit": 0}, {"limit": "5"}, {"after": "x"}, {"after": 5}),
]
"""Arguments of `CheckpointStore.runs` that are refused."""


def _fail_here() -> NoReturn:
    raise OSError("down")


def _fail_there() -> NoReturn:
    raise OSError("down")


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


class StoreContract(CheckpointStoreContract):
    """Inherit from this and give it a fixture named ``store`` that makes an empty store."""

    def test_runs_are_found_by_what_is_known_of_them(self, store: CheckpointStore) -> None:
        """Their labels, ids, parents, beginnings and owners; a page is full as long as there are more."""
        began = datetime(2024, 1, 1, tzinfo=UTC)
        for number in range(9):
            labels = {"customer": f"c{number % 3}", "kind": "order"}
            when = began + timedelta(days=number)
            store.save(State(run_id=f"run-{number}", step=1, labels=labels, timestamp=when))
        store.save(State(run_id="other", step=1, timestamp=began))
        store.fork("other", "forked")

        def found(**which: Any) -> set[str]:
            rows = list(store.iter_runs(**which))
            assert store.count(**which) == len(rows) == len({row.run_id for row in rows})
            return {row.run_id for row in rows}

        assert found(labels={"customer": "c1"}) == {"run-1", "run-4", "run-7"}
        assert len(store.runs(labels={"customer": "c1"}, limit=2)) == 2
        assert found(labels={"customer": "c1", "kind": "other"}) == set()
        assert found(prefix="run-") == {f"run-{number}" for number in range(9)}
        assert found(prefix="r", since=began + timedelta(days=6)) == {"run-6", "run-7", "run-8"}
        assert found(since=datetime(2999, 1, 1, tzinfo=UTC)) == set()
        assert len(found(since=datetime(1, 1, 1, tzinfo=UTC))) == 11
        assert found(status=RunStatus.ACTIVE, prefix="o") == {"other"}
        assert found(parent="other") == {"forked"}
        assert found(owned=True) == set()
        assert store.count(owned=False) == store.count() == 11
        with owned(store, "other"):
            assert found(owned=True) == {"other"}
        (row,) = store.runs(prefix="run-4")
        assert row.labels == store.load("run-4").labels == {"customer": "c1", "kind": "order"}

    def test_runs_refuses_what_finds_nothing(self, store: CheckpointStore) -> None:
        """A wrong filter, limit or cursor is an error that names it, not an empty page."""
        for arguments in _WRONG:
            with pytest.raises(ValueError, match=next(iter(arguments))):
                store.runs(**arguments)

    def test_verify_reads_everything(self, store: CheckpointStore) -> None:
        """`verify` counts runs by status, and their checkpoints; it finds no damage and changes nothing."""
        assert store.verify().runs == {}
        store.retain("a", RetentionPolicy("full"))
        for step in (1, 2, 3):
            store.save(State({"n": step}, run_id="a", step=step))
        store.save(State({"n": 1}, run_id="b", step=1, status="completed"))
        before = [store.load(run_id) for run_id in ("a", "b")]

        found = store.verify()

        assert found.runs == {"active": 1, "completed": 1}
        assert found.checkpoints == sum(len(store.history(run_id)) for run_id in ("a", "b"))
        assert (found.nested, found.damaged, found.unreadable) == (0, (), ())
        assert [store.load(run_id) for run_id in ("a", "b")] == before

    @pytest.mark.parametrize("about", [(), ("a",)], ids=["of the store", "of a run"])
    def test_each_change_is_noticed(self, store: CheckpointStore, about: tuple[str, ...]) -> None:
        """Every write to a run changes the token; reading does not."""
        token = store.changed_since(None, *about)
        changes: list[Callable[[], object]] = [
            lambda: store.save(State({"n": 1}, run_id="a", step=1)),
            lambda: store.save(State({"n": 2}, run_id="a", step=2)),
            lambda: store.save(State({"n": 2}, run_id="a", step=2, status="completed")),
            lambda: store.amend(State({"n": 3}, run_id="a", step=2)),
            lambda: store.rollback("a", 2),
            lambda: store.delete("a"),
        ]
        if not about:
            changes.insert(4, lambda: store.fork("a", "b"))

        for change in changes:
            change()
            newer = store.changed_since(token, *about)
            assert newer is not None
            assert newer != token
            token = newer
            assert len(store.runs()) == len([store.load(run_id) for run_id in store.list()])
            assert [store.changed_since(token, *about) for _ in range(3)] == [None, None, None]

    def test_a_run_without_an_owner_is_cancelled_at_once(self, store: CheckpointStore) -> None:
        """The run keeps its data, the history names the author, and a second cancel changes nothing."""
        store.save(State({"n": 1}, run_id="a", step=1, checkpoint_node="one"))

        assert store.cancel("a", by="ann") is None

        state = store.load("a")
        assert (state.status, state.kind, state.by, state["n"]) == (RunStatus.CANCELLED, Kind.CANCEL, "ann", 1)
        assert store.cancel("a") is None
        assert store.load("a") == state

    def test_only_an_unfinished_run_is_cancelled(self, store: CheckpointStore) -> None:
        """A complete run and an unknown run are refused."""
        store.save(State(run_id="a", step=1, status="completed"))

        with pytest.raises(RunCompleteError):
            store.cancel("a")
        with pytest.raises(CheckpointNotFoundError):
            store.cancel("unknown")

    def test_diff_names_what_changed(self, full: CheckpointStore) -> None:
        """Keys added, removed and changed between two steps, of one run or of two."""
        full.save(State({"same": 1, "old": 2, "n": 3}, run_id="a", step=1))
        full.fork("a", "b")
        for run_id in "ab":
            full.save(State({"same": 1, "new": 4, "n": [5]}, run_id=run_id, step=2))

        for other in ("a", "b"):
            found = full.diff("a", 1, 2, other=other)
            assert (found.added, found.removed, found.changed) == ({"new": 4}, {"old": 2}, {"n": (3, [5])})

    def test_the_history_goes_on_after_a_cursor(self, long_run: CheckpointStore) -> None:
        """After the cursor of a row come the rows after it; if that is gone, at least the newest."""
        long_run.amend(State({"n": 60}, run_id="a", step=60))
        rows = long_run.history("a")
        for place in (0, 30, 58, 59, 60):
            assert long_run.history("a", after=rows[place].cursor) == rows[place + 1 :]
        for wrong in ("x", "5", "-", "1-2-3", 5):
            with pytest.raises(ValueError, match=r"after: .* is not allowed; the cursor of a summary is"):
                long_run.history("a", after=wrong)  # type: ignore[arg-type]

        long_run.retain("a", RetentionPolicy("windowed", window=2))
        long_run.save(State({"n": 61}, run_id="a", step=61))
        assert [row.step for row in long_run.history("a", after=rows[-1].cursor)] == [61]

        long_run.delete("a")
        assert long_run.history("a", after=rows[0].cursor) == []
        long_run.save(State({"n": "again"}, run_id="a", step=60, timestamp=rows[0].timestamp))
        assert [row.step for row in long_run.history("a", after=rows[-1].cursor)] == [60]

    def test_prune_follows_a_policy_that_became_tighter(self, long_run: CheckpointStore) -> None:
        """Prune removes checkpoints that only the wider policy kept; the rest can be loaded."""
        long_run.retain("a", RetentionPolicy("windowed", window=3))
        long_run.save(State({"n": "last"}, run_id="a", step=61))

        long_run.prune()

        assert [row.step for row in long_run.history("a")] == [59, 60, 61]
        assert is_same(dict(long_run.load("a", 59)), dict(long_run_of(60)[58]))

    @pytest.mark.parametrize("retention", ["latest", "windowed", "full"])
    def test_a_run_fails_again_at_another_line(self, store: CheckpointStore, retention: Any) -> None:
        """A second failure with another traceback keeps the run intact and shows the newest error."""
        lines = iter([_fail_here, _fail_there, _fail_here])
        window = 2 if retention == "windowed" else None
        checkpoint = CheckpointConfig(interval=1, retention=retention, window=window, preserve=True)
        graph = StateGraph(GraphConfig("fails", checkpoint=checkpoint), store=store)
        graph.add_node("begin", lambda state: {})
        graph.add_node("fail", lambda state: next(lines)())
        graph.add_edge("begin", "fail")
        graph.set_entry_point("begin")
        graph.set_exit_point("fail")

        for name in ("_fail_here", "_fail_there", "_fail_here"):
            with pytest.raises(ExecutionError, match="down"):
                graph.run(State(run_id=RUN))

            (found,) = store.runs(status="failed")
            assert found.error is not None
            assert name in found.error.traceback
            assert store.load(RUN).error == found.error

    @pytest.mark.parametrize("retention", ["latest", "full"])
    def test_a_chunk_that_is_equal_but_not_the_same_is_saved(self, store: CheckpointStore, retention: Any) -> None:
        """A node fails again after a chunk of another type, or with another sign."""
        chunks: list[Any] = [1, True, 1.0, 0.0, -0.0]
        checkpoint = CheckpointConfig(interval=1, retention=retention, preserve=True)
        graph = StateGraph(GraphConfig("fails", checkpoint=checkpoint), store=store)

        def talk(state: State) -> Iterator[Any]:
            yield chunks[0]
            _fail_here()

        graph.add_node("begin", lambda state: {})
        graph.add_node("talk", talk)
        graph.add_edge("begin", "talk")
        graph.set_entry_point("begin")
        graph.set_exit_point("talk")

        while chunks:
            with pytest.raises(ExecutionError, match="down"):
                graph.run(State(run_id=RUN))

            partial = store.load(RUN).partial
            assert partial is not None
            assert repr(partial.chunks) == repr((chunks.pop(0),))

    def test_a_run_is_waited_for(self, store: CheckpointStore) -> None:
        """Until its owner has let go of it."""
        ended: list[State] = []
        waits = graph_of(store)
        thread = threading.Thread(target=lambda: ended.append(waits.execute(State(run_id=RUN), wait=300)))

        graph_of(store, thread.start, preserve=False).execute(State(run_id=RUN))
        thread.join()

        assert ended == [store.load(RUN)]

    @pytest.mark.parametrize(("durability", "by"), [("sync", "Zoë, the 2nd"), ("async", "ann"), ("exit", None)])
    def test_a_run_at_work_is_cancelled(self, store: CheckpointStore, durability: Any, by: str | None) -> None:
        """The owner stops after its current step, the history names the author, and the run can be resumed."""
        owners: list[Any] = []

        def cancelled() -> None:
            owners.extend(store.cancel(RUN, by=name) for name in (by, "a later caller"))
            time.sleep(0.1)  # where steps are not saved at once, a run looks only now and then

        with pytest.raises(RunCancelledError) as stopped:
            graph_of(store, cancelled, has_third=True, durability=durability).execute(State(run_id=RUN))

        assert all(owner.pid > 0 for owner in owners)
        row = store.history(RUN)[-1]
        assert row.status == "cancelled"
        if self.keeps_history:
            assert (row.kind, row.by) == ("cancel", by)
        assert store.load(RUN) == stopped.value.state
        assert (stopped.value.state.status, stopped.value.state.step) == ("cancelled", 2)
        assert list(graph_of(store, has_third=True).recover()) == []
        assert graph_of(store, has_third=True).resume(RUN).step == 3

    def test_a_run_without_an_owner(self, store: CheckpointStore) -> None:
        """It is taken up by one sweep and no other, or cancelled at once."""
        graph = graph_of(store)
        graph.submit(State(run_id=RUN))
        graph.submit(State(run_id="order-2"))
        graph.cancel("order-2")

        swept = [*graph.recover(), *graph.recover()]

        assert [one.run_id for one in swept] == [RUN]
        assert store.load(RUN)["made"] == ["a", "b"]
        assert store.load("order-2").status == "cancelled"

    def test_a_run_that_does_not_fit_is_set_aside(self, store: CheckpointStore) -> None:
        """A run that does not fit the graph is refused once, until the run or the graph has changed."""

        def interrupt() -> None:
            raise KeyboardInterrupt

        fitting = sorted((RUN, "order-2", "order-3"))
        for run_id in fitting:
            graph_of(store).submit(State(run_id=run_id))
        changed = graph_of(store, has_third=True)

        refused = [*changed.recover(), *changed.recover()]
        changed.submit(State(run_id="new"))
        swept = [*changed.recover()]
        with pytest.raises(KeyboardInterrupt):
            graph_of(store, interrupt).resume("order-2")
        again = [*changed.recover(), *changed.recover()]
        changed.stands_at({"gone": "b"})
        after_change = [*changed.recover()]

        assert [type(one.error) for one in refused] == [GraphMismatchError] * 3
        assert sorted(one.run_id for one in refused) == fitting
        assert [one.run_id for one in swept] == ["new"]
        assert sorted(one.run_id for one in again) == ["order-2"]
        assert sorted(one.run_id for one in after_change) == fitting
        assert sorted(one.run_id for one in graph_of(store).recover()) == fitting

    def test_a_call_that_ends_early_lets_go(self, store: CheckpointStore) -> None:
        """A call releases the run however it ends."""

        def interrupted() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            graph_of(store, interrupted).execute(State(run_id=RUN))

        assert store.owner(RUN) is None
        assert graph_of(store).resume(RUN)["made"] == ["a", "b"]

    @pytest.fixture
    def run(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store, with a run "a" that has completed two steps."""
        if not store.keeps_parts:
            pytest.skip("this store keeps no parts, and says so by keeps_parts = False")
        store.save(State({"n": 2}, run_id="a", step=2))
        return store

    def test_parts_are_loaded_by_step_and_node(self, run: CheckpointStore) -> None:
        """`load_parts` returns the parts of one step of one node by label; saving the step before keeps them."""
        run.save_parts("a", [*parts_of(3, x=1, y=[2]), *parts_of(3, "other", x="o"), *parts_of(4, x="later")])
        run.save(State(run_id="b", step=2))
        run.save_parts("b", parts_of(3, x="of b"))
        run.save(State({"n": 2}, run_id="a", step=2, status="failed"))

        assert run.load_parts("a", 3, "map") == {"x": 1, "y": [2]}
        assert run.load_parts("a", 3, "other") == {"x": "o"}
        assert run.load_parts("a", 4, "map") == {"x": "later"}
        assert run.load_parts("b", 3, "map") == {"x": "of b"}
        assert run.load_parts("a", 5, "map") == run.load_parts("unknown", 3, "map") == {}

    def test_parts_come_in_batches(self, run: CheckpointStore) -> None:
        """A later batch adds parts; for a repeated label the later value and digest count."""
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
        """Parts of one node are never returned for another."""
        run.save_parts("a", [Part(3, name or "node", name, 1), *parts_of(3, x="other")])

        assert run.load_parts("a", 3, name or "node") == {name: 1}
        run.drop_parts("a", 3)
        assert run.load_parts("a", 3, name or "node") == {}

    def test_nested_runs_are_not_shown(self, run: CheckpointStore) -> None:
        """`list` and `runs` leave out nested runs, and the outer run looks the same. They go with their step."""
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
        """`drop_parts` drops parts and nested runs up to a step; with ``newer_too`` also the parts of later steps."""
        children = ["a/#2/child", "a/#3/child", "a/#4/child"]
        run.save_parts("a", [Part(number, "map", "x", number) for number in (2, 3, 4)])
        save_nested(run, *children)

        run.drop_parts("a", step, newer_too=newer_too)
        run.drop_parts("unknown", step)

        left = {} if newer_too else {"x": 4}
        assert [run.load_parts("a", number, "map") for number in (2, 3, 4)] == [{}, {}, left]
        assert are_gone(run, *children[: step - 1])
        for child in children[step - 1 :]:
            assert (run.load(child).step, run.load_parts(child, 2, "map")) == (1, {"x": 1})

    @pytest.mark.parametrize("how", ["delete", "rollback", "prune"])
    def test_nested_runs_are_deleted_with_their_run(self, run: CheckpointStore, how: str) -> None:
        """Nested runs are deleted with their run and never before it; a new run of the id finds none of them."""
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

    def test_a_fork_has_the_parts_of_the_step_after(self, run: CheckpointStore) -> None:
        """A fork copies the parts of the step after it, and of no other; deleting the source leaves the copies."""
        run.save_parts("a", [*parts_of(2, x="joined"), *parts_of(3, x=[1], y=(2,)), *parts_of(4, x="later")])

        run.fork("a", "b")
        run.save_parts("b", parts_of(3, z=4))
        assert is_same(dict(run.load_parts("a", 3, "map")), {"x": [1], "y": (2,)})
        run.delete("a")

        assert is_same(dict(run.load_parts("b", 3, "map")), {"x": [1], "y": (2,), "z": 4})
        assert run.load_parts("b", 2, "map") == run.load_parts("b", 4, "map") == {}
        run.delete("b")
        assert run.load_parts("b", 3, "map") == {}

    def test_a_fork_has_the_nested_runs_of_the_step_after(self, run: CheckpointStore) -> None:
        """A fork copies the nested runs of the next step at any depth; they are hidden and deleted with the copy."""
        save_nested(run, "a/#3/child", step=3, n=1)
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
        assert are_gone(run, "b/#3/child", "b/#3/child/#4/grandchild", "b/#2/earlier")
