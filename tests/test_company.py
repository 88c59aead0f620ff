"""Runs that may be at work beside each other in a process."""

import threading

import pytest

from stategraph import State, StateGraph
from stategraph._engine import calling
from stategraph._values.progress import Progress
from stategraph.stores import MemoryStore


def test_a_suspect_that_a_run_at_work_waits_for_begins_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits to be alone, but not for ever: the run at work may wait for it."""
    monkeypatch.setattr(calling, "LONGEST_ALONE", 0.2)
    suspect_ran, other_began = threading.Event(), threading.Event()

    def work(state: State) -> dict[str, bool]:
        if state["waits"]:
            other_began.set()
            return {"met": suspect_ran.wait(300)}
        suspect_ran.set()
        return {}

    store = MemoryStore()
    graph = StateGraph("crowd", store=store, preserve=True)
    graph.add_node("work", work)
    graph.set_entry_point("work")
    graph.set_exit_point("work")
    graph.submit(State({"waits": True}, run_id="other"))
    thread = threading.Thread(target=lambda: [*graph.recover()])
    thread.start()
    assert other_began.wait(300)
    store.save(State({"waits": False}, run_id="suspect", graph="crowd", progress=Progress(recoveries=1)))

    assert [recovered.run_id for recovered in graph.recover()] == ["suspect"]

    thread.join()
    assert store.load("other")["met"]
