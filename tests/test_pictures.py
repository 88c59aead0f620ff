"""Pictures of graphs, and of runs on them."""

import runpy

import pytest

from stategraph import CheckpointNotFoundError, ExecutionError, InterruptNode, State, and_, key_equals, key_exists, not_
from stategraph.picture import picture_of_run
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.drawings import read
from tests.pages import ROOT
from tests.scenarios import make_graph

# --------------------------------------------------------------------------- a graph


def graph_of(nodes, edges=None, **options):
    """Return a graph that keeps everything in memory; a chain, unless there are edges."""
    return make_graph(
        nodes, edges, **{"store": MemoryStore(), "name": "g", "retention": "full", "preserve": True, **options}
    )


def nothing(state):
    return {}


def counts(state):
    return {"n": state.get("n", 0) + 1}


def forking(**nodes):
    """Return a graph of nodes a and b, c or d after b, and d after c."""
    edges = [("a", "b"), ("b", "c", key_exists("x")), ("b", "d"), ("c", "d")]
    return graph_of({**dict.fromkeys("abcd", nothing), **nodes}, edges)


def is_long(state):
    return len(state["text"]) > 10


@pytest.mark.parametrize(
    ("predicate", "label"),
    [
        (None, ""),
        (key_exists("a"), "a is there"),
        (key_equals("verdict", "good"), "verdict = 'good'"),
        (not_(key_exists("a")), "no a"),
        (not_(key_equals("n", 1)), "n ≠ 1"),
        (and_(key_exists("a"), key_equals("n", 1)), "and_(a is there, n = 1)"),
        (is_long, "is_long"),
        (lambda state: True, "lambda"),
        (not_(is_long), "not_(is_long)"),
    ],
)
def test_a_predicate_is_shown_in_short(predicate, label):
    """Where a few words say it."""
    graph = graph_of({"a": nothing, "b": nothing})
    graph.add_edge("a", "a", predicate)

    labels = [label for label, _ in read(graph.picture().to_svg()).labels]
    assert labels == [label] * bool(label)


# --------------------------------------------------------------------------- a run


def drawn_run(graph, run):
    return read(graph.picture(run).to_svg())


def statuses(drawn):
    """Return the status of each node, by its name."""
    known = {"done", "handled", "failed", "waiting", "working", "next", "maybe"}
    return {node.name: " ".join(node.classes & known) for node in drawn.nodes}


def taken(drawn):
    return {(edge.source, edge.target) for edge in drawn.edges if "taken" in edge.classes}


def test_a_run_is_drawn_over_the_graph():
    """A picture of a run shows the completed nodes and how often they ran."""
    graph = graph_of({"draft": counts, "review": nothing, "publish": nothing})
    graph.add_node("reject", nothing)
    graph.add_edge("draft", "draft", key_equals("n", 99))
    graph.set_exit_point("reject")
    graph.add_edge("review", "reject", key_equals("n", -1))
    graph.execute(State(run_id="r"))
    drawn = drawn_run(graph, "r")

    assert statuses(drawn) == {"draft": "done", "review": "done", "publish": "done", "reject": ""}
    assert taken(drawn) == {("draft", "review"), ("review", "publish")}
    assert "r · completed · 3 steps" in graph.picture("r").to_svg()
    assert graph.picture("r")._repr_html_().startswith('<img alt="graph g: r · completed · 3 steps ')
    assert repr(graph.picture()) == "<Picture of graph 'g'>"
    assert statuses(read(graph.picture().to_svg()))["draft"] == ""


def test_a_failure_is_drawn_at_the_node_that_failed():
    """A failure is drawn at its node with the way there and the error."""

    def fails(state):
        raise ValueError("no\n<topic>")

    graph = graph_of({"a": nothing, "b": fails, "c": nothing})
    with pytest.raises(ExecutionError):
        graph.execute(State(run_id="r"))
    drawn = drawn_run(graph, "r")

    assert statuses(drawn) == {"a": "done", "b": "failed", "c": ""}
    assert taken(drawn) == {("a", "b")}
    assert drawn.node("b").texts[-1] == "failed: ValueError: no <topic>"
    assert statuses(drawn_run(graph, graph.store.load("r"))) == {"a": "done", "b": "failed", "c": ""}


def test_a_pause_is_drawn_where_it_waits():
    """A pause is drawn at its node with the reason."""
    ask = InterruptNode(None, "verdict", reason="approve it")
    graph = graph_of({"a": nothing, "ask": ask, "c": nothing})
    paused = graph.execute(State(run_id="r"))
    drawn = drawn_run(graph, "r")

    assert statuses(drawn) == {"a": "done", "ask": "waiting", "c": ""}
    assert drawn.node("ask").texts == ("ask", "asks for verdict", "waiting: approve it")
    assert statuses(drawn_run(graph, paused)) == {"a": "done", "ask": "waiting", "c": ""}
    graph.resume("r", {"verdict": "yes"})
    assert statuses(drawn_run(graph, "r")) == {"a": "done", "ask": "done", "c": "done"}


def test_the_current_node_is_drawn():
    """The current node is marked; where it is unknown, all nodes that can come next are."""
    seen = []

    def looks(state):
        seen.append(statuses(drawn_run(graph, "r")))
        return {}

    graph = forking(b=looks, c=looks, d=looks)
    graph.execute(State(run_id="r"))

    assert seen == [
        {"a": "done", "b": "working", "c": "", "d": ""},
        {"a": "done", "b": "done", "c": "", "d": "working"},
    ]


def test_nested_runs_are_drawn_in_their_boxes():
    """The newest of each."""
    seen = []
    ask = InterruptNode(None, "verdict")
    nested = graph_of({"first": nothing, "ask": ask, "last": nothing}, name="nested")
    graph = graph_of({"a": nothing, "sub": nested.as_node(), "c": nothing})

    graph.execute(State(run_id="r"))
    seen.append(drawn_run(graph, "r"))
    graph.resume("r", {"verdict": 1})
    seen.append(drawn_run(graph, "r"))

    assert [statuses(drawn) for drawn in seen] == [
        {"a": "done", "sub": "waiting", "c": ""},
        {"a": "done", "sub": "done", "c": "done"},
    ]
    assert [statuses(drawn.node("sub").graphs[0]) for drawn in seen] == [
        {"first": "done", "ask": "waiting", "last": ""},
        {"first": "done", "ask": "done", "last": "done"},
    ]
    graph.store.rollback("r", 1)
    assert statuses(drawn_run(graph, "r")) == {"a": "done", "sub": "next", "c": ""}
    graph.resume("r")
    assert statuses(drawn_run(graph, "r").node("sub").graphs[0])["last"] == ""


# --------------------------------------------------------------------------- without the graph


def test_a_run_can_be_drawn_from_its_store_alone(tmp_path):
    """The picture from the store alone equals the picture of the graph."""
    nested = graph_of({"first": nothing, "last": nothing}, name="nested")
    with SqliteStore(tmp_path / "runs.db") as store:
        graph = graph_of({"a": nothing, "sub": nested.as_node(), "c": nothing}, store=store)
        graph.add_edge("a", "c", is_long)
        graph.execute(State(run_id="r"))
        svg = graph.picture("r").to_svg()

    with SqliteStore(tmp_path / "runs.db", read_only=True) as store:
        assert picture_of_run(store, "r").to_svg() == svg
        assert picture_of_run(store, store.load("r")).to_svg() == svg
        with pytest.raises(CheckpointNotFoundError):
            picture_of_run(store, "unknown")


# --------------------------------------------------------------------------- where it goes


def test_the_pictures_of_the_documentation_are_made_by_its_tool():
    """``python tools/make_pictures.py`` draws them again where pictures have changed."""
    made = runpy.run_path(str(ROOT / "tools" / "make_pictures.py"))["pictures"]()
    images = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "images").glob("*.svg")}

    assert {name: picture.to_svg() for name, picture in made.items()} == images


@pytest.mark.parametrize(
    ("name", "begin"),
    [("g.svg", "<svg "), ("g.html", "<!doctype html>"), ("g.mmd", "flowchart TB"), ("g.MERMAID", "flowchart TB")],
)
def test_the_name_of_the_file_tells_the_format(tmp_path, name, begin):
    """The file name, a path or a str, selects the format."""
    picture = graph_of({"é": nothing}).picture()
    picture.save(tmp_path / name)
    picture.save(str(tmp_path / name))

    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.startswith(begin)
    assert "é" in text
