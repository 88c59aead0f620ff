"""Look into a step while it happens or after it has failed, and do one of its items again.

python examples/status.py
"""

from stategraph import ExecutionError, MapNode, NodeContext, State, StateGraph
from stategraph.stores import MemoryStore

PAGES = {"cover": "A book", "torn": "", "last": "The end"}


def read(page: str, context: NodeContext) -> str:
    """Read a page. Say which one it is, for all who look."""
    context.status(f"reading the page '{page}'")
    if not PAGES[page]:
        raise ValueError(f"nothing is on the page '{page}'")
    return PAGES[page]


def look(run_id: str) -> None:
    """Print what every process can see of the step under way, as `stategraph show` does."""
    under_way = book.store.under_way(run_id)
    print(f"{under_way.node}: done {', '.join(under_way.done)}; failed {', '.join(under_way.failed)}")
    for place, text in under_way.statuses.items():
        print(f"  {place}: {text}")


book = StateGraph("book", store=MemoryStore())
book.add_node("read", MapNode(read, over="pages", into="texts", max_workers=1))
book.set_entry_point("read")
book.set_exit_point("read")

if __name__ == "__main__":
    try:
        book.execute(State({"pages": [*PAGES]}, run_id="book-1"))
    except ExecutionError:
        look("book-1")
    PAGES.update({"cover": "A better book", "torn": "It was raining"})
    print(*book.resume("book-1", redo=["read/0"])["texts"], sep=", ")
