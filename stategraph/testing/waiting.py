"""The promises of a store about runs that wait for an answer, and about what else it takes to go on with a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from stategraph._values.progress import Origin, Partial, Pause, Progress
from stategraph._values.provenance import RunStatus
from stategraph.state import State
from stategraph.stores import CheckpointStore

_NOON = datetime(2024, 5, 29, 12, 0, 0, 1, tzinfo=UTC)
_PAUSE = Pause("approve it", "review", {"draft": ("a", 1)}, "verdict", _NOON, _NOON.replace(year=2030), "0a1b")
_WOKEN = attrs.evolve(_PAUSE, value=None)


def _keys(*keys: str) -> Any:  # mypy cannot tell of what a converter makes a frozenset
    return frozenset(keys)


PROGRESSES: dict[str, Progress] = {
    "the next node": Progress(next_node="review"),
    "the answer to a pause": Progress(
        next_node="review", woken=attrs.evolve(_PAUSE, value=None), answer={"verdict": ()}
    ),
    "keys that were answers": Progress(answered=_keys("verdict", "name")),
    "chunks": Progress(partial=Partial("write", ("Once ", {"upon": (1, None)}, b"\0", 2**70))),
    "no chunks yet": Progress(partial=Partial("write")),
    "origins": Progress(origins={"index": Origin("build", 3, _keys("a", "b")), "n": Origin("", 0, _keys())}),
    "recoveries": Progress(recoveries=3),
    "the turn": Progress(turn=2),
    "other names": Progress(kept_names={"write": "draft", "draft": "write"}),
    "what was replaced": Progress(replaced={"n": (), "orders": ([{"id": (1, None)}],), "note": ("\0",)}),
    "all of it": Progress(
        next_node="review",
        woken=attrs.evolve(_WOKEN, part="3/left"),
        answer={"a": (0,)},
        answered=_keys("a"),
        partial=Partial("w", (1,)),
        origins={"k": Origin("n", 1, _keys("a"))},
        replaced={"k": (1,)},
        kept_names={"new": "old"},
    ),
}
"""What a State knows of how far its run is, by what there is to know."""


def waiting(value: Any) -> State:
    """Return the State of a run "a" that shows a value and waits."""
    return State({"n": 1}, run_id="a", step=2, status="paused", pause=attrs.evolve(_PAUSE, value=value))


class WaitingContract:
    """The part of `CheckpointStoreContract` that is about pauses and progress."""

    # ------------------------------------------------------------------ pauses

    def test_a_paused_state_is_loaded_as_it_was_saved(self, store: CheckpointStore) -> None:
        """With what it waits for, where, since when and until when."""
        state = State({"n": 1}, run_id="a", step=2, checkpoint_node="draft", status="paused", pause=_PAUSE)

        store.save(state)

        assert store.load("a") == state
        assert store.load("a").pause == _PAUSE

    def test_a_pause_with_nothing_to_answer(self, store: CheckpointStore) -> None:
        """What a pause does not have, it does not have when it is loaded."""
        state = State(run_id="a", step=2, status="paused", pause=Pause("wait", "review", None, None, _NOON))

        store.save(state)

        assert store.load("a") == state

    def test_a_saved_step_pauses_and_goes_on(self, store: CheckpointStore) -> None:
        """The same step is saved without a pause, with one, with another, and without."""
        state = State({"n": 1}, run_id="a", step=2)
        paused = [
            attrs.evolve(state, status=RunStatus.PAUSED, pause=attrs.evolve(_PAUSE, reason=reason)) for reason in "xy"
        ]
        for saved in (state, *paused, state):
            store.save(saved)
            assert store.load("a") == saved
            assert store.runs()[0].pause == saved.pause

        store.save(attrs.evolve(state, step=3))
        assert store.load("a").pause is None

    def test_runs_reports_who_waits_for_what(self, store: CheckpointStore) -> None:
        """By their status."""
        store.save(State(run_id="b", step=2))
        store.save(waiting("look"))

        (row,) = store.runs(status="paused")

        assert (row.run_id, row.status, row.step) == ("a", RunStatus.PAUSED, 2)
        assert row.pause == attrs.evolve(_PAUSE, value="look")
        assert store.history("a")[-1].pause == row.pause
        assert [run.pause for run in store.runs(status="active")] == [None]

    def test_runs_refuses_a_status_that_there_is_not(self, store: CheckpointStore) -> None:
        """A slip of the pen is an error that lists what is allowed, not an empty page."""
        with pytest.raises(ValueError, match=r"status.*pausd.*active, paused, completed, failed"):
            store.runs(status="pausd")  # type: ignore[arg-type]

    def test_a_fork_of_a_run_that_waits_goes_on_there(self, store: CheckpointStore) -> None:
        """It is active, and begins with the node that waits."""
        store.save(waiting("look"))

        forked = store.fork("a", "b")

        assert store.load("b") == forked
        assert (forked.status, forked.pause) == (RunStatus.ACTIVE, None)
        assert forked.progress is not None
        assert forked.progress.next_node == _PAUSE.node

    # ------------------------------------------------------------------ progress

    @pytest.mark.parametrize("name", PROGRESSES)
    def test_progress_is_kept(self, store: CheckpointStore, name: str) -> None:
        """What a run needs to go on besides its data."""
        state = State({"n": 1}, run_id="a", step=1, progress=PROGRESSES[name])

        store.save(state)

        assert store.load("a") == state
        assert store.load("a").progress == PROGRESSES[name]

    def test_progress_comes_and_goes(self, store: CheckpointStore) -> None:
        """On the same step and on later ones; none is left of what was before."""
        progresses = [None, *PROGRESSES.values(), None]
        state = State({"n": 1, "big": "x" * 1000}, run_id="a", step=1)
        for step, progress in enumerate([*progresses, *reversed(progresses)], 1):
            for saved in (
                attrs.evolve(state, step=step, progress=progress),
                attrs.evolve(state, step=step, status=RunStatus.FAILED),
            ):
                store.save(saved)
                assert store.load("a") == saved
