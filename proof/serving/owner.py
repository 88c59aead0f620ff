"""A process of another machine: it owns runs or sweeps, and prints the outcomes.

Its clock may be hours off.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

from proof.serving.server import SERVERS
from stategraph import State
from stategraph._owners import leases
from stategraph._values import clock
from stategraph.stores import CheckpointStore
from tests.scenarios import in_threads, make_graph

STEPS = 400
PAUSE = 0.02  # seconds that a step takes


def graph_of(store: CheckpointStore, name: str, steps: int = STEPS, pause: float = PAUSE) -> Any:
    """Return a graph whose node records the owner of each step."""

    def node(state: State) -> dict[str, Any]:
        time.sleep(pause)
        made = dict(state.get("made", {}))
        return {"made": {**made, name: made.get(name, 0) + 1}}

    edges = [("a", "a", lambda state: state.step < steps), ("a", "b")]
    nodes = {"a": node, "b": lambda state: {}}
    return make_graph(nodes, edges, store=store, preserve=True, max_iterations=10_000)


IN_DOUBT = "in-doubt"
"""The outcome of a run whose server does not answer in time who owns it."""


def say(run_id: str, how: str) -> None:
    """Print the outcome of a run in one write, as other threads print, too."""
    sys.stdout.write(f"{run_id} {how}\n")
    sys.stdout.flush()


def own(store: CheckpointStore, run_ids: list[str], name: str) -> None:
    """Own runs until they have ended or are lost."""

    def run(run_id: str) -> None:
        try:
            graph_of(store, name).execute(State(run_id=run_id))
        except Exception as error:  # noqa: BLE001 - it is printed
            say(run_id, IN_DOUBT if "others may have taken the run" in str(error) else type(error).__name__)
        else:
            say(run_id, "done")

    in_threads(*(partial(run, run_id) for run_id in run_ids))


def sweep(store: CheckpointStore, name: str) -> None:
    """Continue all abandoned runs after a line of input."""
    print("ready", flush=True)
    sys.stdin.readline()
    for one in graph_of(store, name, steps=3, pause=0.0).recover():
        say(one.run_id, "done" if one.error is None else type(one.error).__name__)


def main(arguments: list[str]) -> None:
    """Run the process."""
    about = json.loads(arguments[0])
    if about["is_elsewhere"]:
        leases.machine_name = lambda: "elsewhere"  # type: ignore[assignment]
    real, hours = clock.now_ns, about["hours"]
    clock.now_ns = lambda: real() + hours * 3_600_000_000_000
    store = SERVERS[about["server"]]().open(about["options"], pool=10)
    if about["run_ids"]:
        own(store, about["run_ids"], about["name"])
    else:
        sweep(store, about["name"])
    store.close()


if __name__ == "__main__":
    main(sys.argv[1:])
