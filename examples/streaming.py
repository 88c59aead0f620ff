"""Watch a run while it works: its nodes emit their text word by word.

On a terminal the text grows in its place (with rich, an extra of the examples); elsewhere each step is a line.

Run it with ``python examples/streaming.py``.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeAlias

from stategraph import GraphConfig, State, StateGraph

Updates: TypeAlias = dict[str, Any]
Show: TypeAlias = Callable[[State], None]

TEXTS = {
    "question": "Why does a checkpoint need a number?",
    "answer": "Because clocks jump. A number that only grows says which of two States is the newer one.",
}


def put_out(key: str, pace: float) -> Callable[[State], Generator[str, None, Updates]]:
    """Return a node that emits a text word by word, as a model would, and keeps it under a key."""

    def node(state: State) -> Generator[str, None, Updates]:
        for word in TEXTS[key].split():
            time.sleep(pace)
            yield word
        return {key: TEXTS[key]}

    return node


def talk_graph(pace: float) -> StateGraph:
    """Return the graph: question -> answer -> count."""
    graph = StateGraph(GraphConfig(name="streaming"))
    graph.add_node("question", put_out("question", pace))
    graph.add_node("answer", put_out("answer", pace))
    graph.add_node("count", lambda state: {"words": sum(len(state[key].split()) for key in TEXTS)})
    graph.add_edge("question", "answer")
    graph.add_edge("answer", "count")
    graph.set_entry_point("question")
    graph.set_exit_point("count")
    return graph


@contextmanager
def live() -> Iterator[Show]:
    """Show a State in place of the previous one."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live() as display:

        def show(state: State) -> None:
            lines = [Text(f"{key}: {state[key]}", style="bold") for key in TEXTS if key in state]
            if state.partial is not None:
                lines.append(Text(f"{state.partial.node}: {' '.join(state.partial.chunks)}"))
            if "words" in state:
                lines.append(Text(f"{state['words']} words", style="green"))
            display.update(Group(*lines), refresh=True)

        yield show


@contextmanager
def plain() -> Iterator[Show]:
    """Print a line for each step, with the number of its chunks."""
    chunks = 0

    def show(state: State) -> None:
        nonlocal chunks
        if state.partial is not None:
            chunks = len(state.partial.chunks)
            return
        print(f"step {state.step}, {state.checkpoint_node}: {chunks} chunks, now {', '.join(sorted(state))}")
        chunks = 0

    yield show


def main() -> None:
    """Run the graph, and show each State that it yields."""
    on_terminal = sys.stdout.isatty() and find_spec("rich") is not None
    with live() if on_terminal else plain() as show:
        for state in talk_graph(0.08 if on_terminal else 0.0).stream(State()):
            show(state)


if __name__ == "__main__":
    main()
