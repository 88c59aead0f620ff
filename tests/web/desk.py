"""A desk that checks claims: a graph with a pause, a map and a nested graph, and helpers for its page."""

import re
from html import unescape

from stategraph import CheckpointConfig, GraphConfig, InterruptNode, MapNode, StateGraph, key_equals

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\"'&amp;"


def _config(name):
    return GraphConfig(
        name,
        observer="noop",
        max_iterations=1_000,
        checkpoint=CheckpointConfig(interval=1, retention="full", preserve=True),
    )


def _looked_at(photo):
    if photo == "torn":
        raise ValueError("this photo is torn")
    return f"seen {photo}"


def _pay(state):
    if state["verdict"].get("note") == "burn":
        raise ConnectionError("the bank is closed")
    return {"paid": state["verdict"]["amount"]}


def desk(store, name="claims"):
    """Return the graph of a desk."""
    inner = StateGraph(_config("estimate"), store=store)
    inner.add_node("price", lambda state: {"price": 40})
    inner.set_entry_point("price")
    inner.set_exit_point("price")
    graph = StateGraph(_config(name), store=store)
    graph.add_node("photos", MapNode(_looked_at, over="photos", into="seen", max_workers=1))
    graph.add_node("estimate", inner.as_node(outputs=["price"]))
    graph.add_node("approve", InterruptNode("price", "verdict", reason="is this worth it?", schema=dict[str, object]))
    graph.add_node("pay", _pay)
    for source, target in (("photos", "estimate"), ("estimate", "approve"), ("approve", "pay")):
        graph.add_edge(source, target)
    graph.set_entry_point("photos")
    graph.set_exit_point("pay")
    return graph


def asks(store, schema=None, *, name="asks", node="ask", is_exit=True):
    """Return a graph that asks for one thing."""
    graph = StateGraph(_config(name), store=store)
    graph.add_node(node, InterruptNode(None, "answer", schema=schema, reason="say it"))
    graph.set_entry_point(node)
    if is_exit:
        graph.set_exit_point(node)
    return graph


def loop(store, nested, times):
    """Return a graph that comes to a nested one so many times."""
    graph = StateGraph(_config("loop"), store=store)
    graph.add_node("nested", nested)
    graph.add_node("count", lambda state: {"n": state["n"] + 1, "is_over": state["n"] + 1 == times})
    graph.add_node("end", lambda state: {})
    graph.add_edge("nested", "count")
    graph.add_edge("count", "end", key_equals("is_over", True))
    graph.add_edge("count", "nested")
    graph.set_entry_point("nested")
    graph.set_exit_point("end")
    return graph


def csrf_of(client, run_id="any"):
    """Return what forms of a page bring."""
    return re.findall(r'name="csrf" value="([^"]+)"', client.get("/run", params={"id": run_id}).text)[0]


def change(client, run_id, do, **fields):
    """Send a form of the page of a run."""
    data = {"csrf": csrf_of(client, run_id), "do": do, "id": run_id, **fields}
    return client.post("/change", data=data, follow_redirects=False)


def text_of(response):
    """Return what a page shows, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.text)).split())
