"""Nested graphs: a book is written chapter by chapter, and each chapter is written and checked until it is good.

The graph of a chapter is a node in the graph of the book, and the graph of a check is a node in the graph of a chapter.
The check fails once, three graphs deep. Resuming the book continues at that check.

Run it with ``python examples/nested.py``.
"""

import tempfile
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, ExecutionError, GraphConfig, State, StateGraph, key_equals

Updates = dict[str, Any]

TITLES = ("rain", "wind")

written: list[str] = []
dictionary = {"is missing": True}


def write(state: State) -> Updates:
    """Node of a chapter: write a draft."""
    drafts = state.get("drafts", 0) + 1
    written.append(f"{state['title']} {drafts}")
    return {"drafts": drafts, "text": f"about {state['title']}, draft {drafts}"}


def look_up(state: State) -> Updates:
    """Node of a check: look up the words in a dictionary, which is missing at first."""
    if state["text"].startswith("about wind") and dictionary["is missing"]:
        raise FileNotFoundError("the dictionary")
    return {"unknown": [] if state["text"].endswith("2") else ["draft"]}


def judge(state: State) -> Updates:
    """Node of a check: approve a text if all its words are known."""
    return {"is_good": not state["unknown"]}


def add_chapter(state: State) -> Updates:
    """Node of a book: add the finished chapter, and name the next one."""
    chapters = [*state.get("chapters", ()), state["chapter"]]
    return {"chapters": chapters, "title": TITLES[len(chapters)] if len(chapters) < len(TITLES) else None}


def chained(name: str, path: Path, nodes: dict[str, Any]) -> StateGraph:
    """Return a graph that runs the nodes in order."""
    checkpoint = CheckpointConfig(store="sqlite", interval=1, options={"path": str(path)})
    graph = StateGraph(GraphConfig(name=name, checkpoint=checkpoint))
    for node, function in nodes.items():
        graph.add_node(node, function)
    names = list(nodes)
    graph.set_entry_point(names[0])
    graph.set_exit_point(names[-1])
    return graph


def book_graph(path: Path) -> StateGraph:
    """Return the three graphs, each nested in the next."""
    check = chained("check", path, {"look_up": look_up, "judge": judge})
    check.add_edge("look_up", "judge")

    # Inputs and outputs are named, so the other keys of a check stay out of the chapter.
    inner = check.as_node(inputs=["text"], outputs=["is_good"])
    chapter = chained("chapter", path, {"write": write, "check": inner, "done": lambda state: {}})
    chapter.add_edge("write", "check")
    chapter.add_edge("check", "done", key_equals("is_good", True))
    chapter.add_edge("check", "write")

    inner = chapter.as_node(inputs=["title"], outputs={"chapter": "text"})
    book = chained("book", path, {"write": inner, "add": add_chapter, "print": lambda state: {}})
    book.add_edge("write", "add")
    book.add_edge("add", "print", key_equals("title", None))
    book.add_edge("add", "write")
    return book


def main() -> None:
    """Write the book until the check fails, add the dictionary, and resume."""
    with tempfile.TemporaryDirectory() as folder:
        book = book_graph(Path(folder) / "runs.db")
        try:
            book.execute(State({"title": TITLES[0]}, run_id="book-1"))
        except ExecutionError as error:
            within: BaseException = error
            while within.__cause__ is not None:
                within = within.__cause__
            print(f"node {error.node_name!r} of the book failed: {within}")
        print(f"written so far: {', '.join(written)}")

        dictionary["is missing"] = False
        final = book.resume("book-1")
        print(f"written in all: {', '.join(written)}")
        print(f"the book: {'; '.join(final['chapters'])} ({final.step} steps)")
        book.store.close()


if __name__ == "__main__":
    main()
