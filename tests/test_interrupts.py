"""Ctrl-C at any moment ends a call, and counts as a crash at worst: nothing waits for ever, and no run stays owned."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from stategraph.stores.sqlite import SqliteStore
from tests.test_stopping import start

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        sys.version_info[:2] == (3, 14), reason="Python 3.14 may skip the end of a with: CPython #148874"
    ),
]

PROGRAM = """
    import asyncio, faulthandler, itertools, logging, sys, warnings
    from stategraph import MapNode, State, StateGraph
    from stategraph.stores import MemoryStore

    kind, path, first = sys.argv[1:]
    sys.unraisablehook = lambda _: None  # an interrupt in a finaliser is lost, as Python has it
    logging.disable()
    warnings.simplefilter("ignore")

    async def awaits(state):
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        return {}

    nodes = {"an async node": awaits, "items in threads": MapNode(abs, over="items", into="made", max_workers=2)}
    graph = StateGraph("g", store=MemoryStore() if path == "memory" else path)
    graph.add_node("a", nodes.get(kind, lambda state: {}))
    graph.set_entry_point("a")
    graph.set_exit_point("a")

    def call(number):
        states = [State({"items": [1, 2]}, run_id=f"{number}-{n}") for n in range(2)]
        if kind == "a batch":
            list(graph.run_many(states, max_workers=2))
        elif kind == "a direct write":
            graph.store.save(states[0])
        else:
            graph.execute(states[0])

    def is_interrupted(number):
        # As a signal does, which arrives at the beginning of a Python function.
        left = number

        def interrupt(frame, event, argument):
            nonlocal left
            left -= event == "call"
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

        faulthandler.dump_traceback_later(120, exit=True)
        sys.setprofile(interrupt)
        try:
            call(number)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        return left < 0

    call("first")  # imports all there is to import
    for number in itertools.count(int(first), 3):
        if not is_interrupted(number):
            break
        owned = [run.run_id for run in graph.store.runs(owned=True)]
        assert not owned, (number, owned)
    print("ended", flush=True)
    sys.stdin.read()
"""

IN_ONE_PIECE = """
    import itertools, sys
    from stategraph import CheckpointNotFoundError, RunStatus, State, StateGraph

    sys.unraisablehook = lambda _: None

    def pays(state, context):
        global begun, done
        begun += 1
        context.spend(usd=1)
        done += 1
        raise OSError("no receipt")

    graph = StateGraph("g", store="memory", preserve=True)
    graph.add_node("pay", pays, on_error="refund")
    for name in ("ship", "refund", "end"):
        graph.add_node(name, lambda state, name=name: {name: True})
    graph.add_sequence("pay", "ship", "end")
    graph.add_edge("refund", "end")
    graph.set_entry_point("pay")
    graph.set_exit_point("end")

    def run(left):
        def interrupt(frame, event, argument):
            nonlocal left
            left -= event == "call"
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            graph.run(State(run_id=str(number)))
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        return left >= 0

    for number in itertools.count():
        begun = done = 0
        is_last = run(number)
        try:
            state = graph.store.load(str(number))
        except CheckpointNotFoundError:
            continue
        if state.status is not RunStatus.COMPLETED:
            state = graph.resume(str(number))
        assert "refund" in state and "ship" not in state, (number, state)
        assert done <= state.spent.get("usd", 0) <= begun, (number, state.spent, done)
        if is_last:
            break
    print("ended")
"""


def test_a_step_is_saved_in_one_piece() -> None:
    """An interrupt after a node, at the beginning of any function, loses nothing that the node has spent, and does not
    lead a failed node past its handler."""
    output, errors = start(IN_ONE_PIECE, measured=False).communicate()

    assert output == "ended\n", errors


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        *((kind, "memory") for kind in ("one node", "an async node", "items in threads", "a batch", "a direct write")),
        *((kind, "runs.db") for kind in ("one node", "a direct write")),
    ],
)
def test_at_the_beginning_of_any_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, path: str
) -> None:
    """The call ends, and its run is free, in its process and in others."""
    monkeypatch.chdir(tmp_path)
    first = random.randrange(3)  # a third of them is tried
    process = start(PROGRAM, kind, path, str(first), measured=False)
    assert process.stdout is not None
    said = process.stdout.readline()
    if path != "memory":
        with SqliteStore(path) as other:
            assert not other.runs(owned=True)

    _, errors = process.communicate("")

    assert said == "ended\n", errors
