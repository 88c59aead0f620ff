"""A budget: a run says what it spends, stops at a limit, and goes on with a larger one.

python examples/budget.py
"""

from contextlib import suppress

from stategraph import LimitError, NodeContext, State, StateGraph
from stategraph.stores import MemoryStore

PRICE = 0.00002  # of a token
CHAPTERS = ("the dog", "the cat", "the quarrel", "the peace")


def model(prompt: str) -> tuple[str, int]:
    """Stand in for a model: return a text, and the tokens that it took."""
    return f"A chapter about {prompt}.", 9_000 + 100 * len(prompt)


def write(state: State, context: NodeContext) -> dict[str, list[str]]:
    """Node: write the next chapter. It is paid for, so it is kept at the limit too; the run stops before the next."""
    text, tokens = model(CHAPTERS[len(state["book"])])
    with suppress(LimitError):
        context.spend(usd=tokens * PRICE, tokens=tokens)
    return {"book": [*state["book"], text]}


def book_graph() -> StateGraph:
    """Return the graph: one chapter a step."""
    graph = StateGraph("book", store=MemoryStore(), preserve=True)  # a file for real: store="book.db"
    graph.add_node("write", write)
    graph.add_node("bind", lambda state: {"text": "\n".join(state["book"])})
    graph.add_edge("write", "write", lambda state: len(state["book"]) < len(CHAPTERS))
    graph.add_edge("write", "bind")
    graph.set_entry_point("write")
    graph.set_exit_point("bind")
    return graph


def main() -> None:
    """Write the book with half a dollar, then with two."""
    graph = book_graph()
    try:
        graph.run(State({"book": []}, run_id="animals"), limits={"usd": 0.5})
    except LimitError as error:
        print(f"{len(error.state['book'])} chapters, stopped: {error.spent['usd']:.2f} dollars are spent")
    final = graph.resume("animals", limits={"usd": 2})
    print(final["text"])
    print(f"{final.spent['usd']:.2f} dollars, {final.spent['tokens']:,} tokens")


if __name__ == "__main__":
    main()
