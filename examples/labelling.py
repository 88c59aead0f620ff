"""A labelling queue: many people label texts without conflicts.

    python examples/labelling.py add "the parcel never came" "thank you, all is well"
    python examples/labelling.py next --as ada       the oldest text that waits, and what to type to answer
    python examples/labelling.py label text-b4011721 complaint --as ada
    python examples/labelling.py export

Each text is a run that waits for a person, in a file that any number of terminals share. Two people label every tenth
text; if they disagree, a third person decides.
"""

import argparse
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stategraph import (
    AnswerError,
    CheckpointConfig,
    CheckpointNotFoundError,
    GraphConfig,
    InterruptNode,
    RunBusyError,
    State,
    StateGraph,
)

LABELS = ("complaint", "praise", "question", "other")
SECOND_LOOK = 10  # one of this many texts is labelled twice

Updates = dict[str, Any]


def _is_label(answer: Any) -> bool:
    return answer in LABELS


def _after_the_first(state: State) -> str:
    return "twice" if state["number"] % SECOND_LOOK == 0 else "once"


def _after_the_second(state: State) -> str:
    return "agree" if state["first"] == state["second"] else "differ"


def settle(state: State) -> Updates:
    """Node: use the label of the last person."""
    return {"label": state.get("third") or state.get("second") or state["first"]}


def labelling_graph(store: Path = Path("labels.db")) -> StateGraph:
    """Return the graph: a first label, sometimes a second, rarely a third, and the final label."""
    options = {"path": str(store)}
    checkpoint = CheckpointConfig(store="sqlite", interval=1, retention="full", preserve=True, options=options)
    graph = StateGraph(GraphConfig(name="labelling", checkpoint=checkpoint))
    for name in ("first", "second", "third"):
        graph.add_node(f"ask_{name}", InterruptNode("text", name, validator=_is_label, reason=f"{name} label"))
    graph.add_node("settle", settle)
    graph.add_route("ask_first", _after_the_first, {"once": "settle", "twice": "ask_second"})
    graph.add_route("ask_second", _after_the_second, {"agree": "settle", "differ": "ask_third"})
    graph.add_edge("ask_third", "settle")
    graph.set_entry_point("ask_first")
    graph.set_exit_point("settle")
    return graph


def add(graph: StateGraph, texts: Sequence[str]) -> None:
    """Add texts to the queue. The run of each text pauses at once."""
    for text in texts:
        number = zlib.crc32(text.encode())  # the same text is the same run: adding it again changes nothing
        state = graph.run(State({"text": text, "number": number}, run_id=f"text-{number:08x}"))
        print(f"{state.run_id}: {text}")


def show_next(graph: StateGraph, person: str) -> None:
    """Show the oldest text that waits for a person who has not labelled it yet."""
    waiting = [
        run for run in graph.store.iter_runs(status="paused", graph=graph.name) if not _has(graph, run.run_id, person)
    ]
    if not waiting:
        print("nothing waits for you")
        return
    state = graph.store.load(waiting[-1].run_id)
    print(f"{state.run_id}: {state['text']}\n  one of {', '.join(LABELS)}")


def label(graph: StateGraph, run_id: str, answer: str, person: str) -> int:
    """Give a label and return the exit code. If two people answer at the same time, the second one gets an error."""
    try:
        waiting = graph.store.load(run_id)
        if _has(graph, run_id, person):
            print(f"{run_id}: you have labelled it already; another person must label it")
            return 1
        if waiting.pause is None or waiting.pause.response_param is None:
            print(f"{run_id} is labelled: {waiting['label']}")
            return 1
        updates = {waiting.pause.response_param: answer}
        state = graph.resume(run_id, updates, pause=waiting.pause, by=person, wait=5)
    except (AnswerError, CheckpointNotFoundError, RunBusyError) as error:
        print(error)
        return 1
    print(f"{run_id}: {state['label']}" if "label" in state else f"{run_id} waits for another person")
    return 0


def _has(graph: StateGraph, run_id: str, person: str) -> bool:
    """Return whether a person has labelled a text."""
    return any(row.kind == "answer" and row.by == person for row in graph.store.history(run_id))


def export(graph: StateGraph) -> None:
    """Print the labelled texts and their labellers as JSON lines."""
    for run in sorted(graph.store.iter_runs(status="completed", graph=graph.name), key=lambda run: run.cursor or ""):
        state = graph.store.load(run.run_id)
        by = [row.by for row in graph.store.history(run.run_id) if row.kind == "answer"]
        print(json.dumps({"id": run.run_id, "text": state["text"], "label": state["label"], "by": by}))


def main() -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(description="A labelling queue.")
    parser.add_argument("--store", type=Path, default=Path("labels.db"))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("add").add_argument("texts", nargs="+")
    commands.add_parser("next").add_argument("--as", dest="person", required=True)
    giving = commands.add_parser("label")
    giving.add_argument("run_id")
    giving.add_argument("label", choices=LABELS)
    giving.add_argument("--as", dest="person", required=True)
    commands.add_parser("export")
    given = parser.parse_args()
    graph = labelling_graph(given.store)
    with graph.store:
        list(graph.recover())  # a killed process may have left a run between a label and its effect
        if given.command == "label":
            return label(graph, given.run_id, given.label, given.person)
        if given.command == "add":
            add(graph, given.texts)
        elif given.command == "next":
            show_next(graph, given.person)
        else:
            export(graph)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
