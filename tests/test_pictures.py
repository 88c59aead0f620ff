"""Pictures of graphs, and of runs on them."""

import base64
import re
import runpy
import shutil

import pytest

from stategraph import (
    CheckpointNotFoundError,
    ExecutionError,
    FormatError,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    ParallelNode,
    RetryPolicy,
    RunStatus,
    State,
    StateGraph,
    UnknownNameError,
    and_,
    key_equals,
    key_exists,
    not_,
)
from stategraph.picture import picture_of_run
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import KEPT_VALUES
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


def test_a_graph_that_is_not_whole_can_be_drawn():
    """To see what it lacks."""
    graph = StateGraph("begun")

    assert read(graph.picture().to_svg()).nodes == ()
    graph.add_node("a", nothing)
    assert [node.name for node in read(graph.picture().to_svg()).nodes] == ["a"]


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


def test_names_of_edges_are_shown_in_place_of_predicates():
    """They were given for that."""
    graph = graph_of({"a": nothing, "b": nothing})
    graph.add_edge("a", "a", key_exists("a"), name="rework")
    graph.add_edge("a", "a", key_exists("b"))

    assert [label for label, _ in read(graph.picture().to_svg()).labels] == ["rework or b is there"]


def test_failures_go_their_own_way():
    """A line of dashes."""
    graph = graph_of({"a": nothing, "b": nothing})
    graph.add_node("risky", nothing, on_error="b", retry=RetryPolicy(max_attempts=2))
    graph.add_edge("a", "risky")
    graph.add_edge("risky", "b", key_exists("x"))
    drawn = read(graph.picture().to_svg())

    assert sorted(label for label, _ in drawn.labels) == ["on error", "x is there"]
    assert [edge.source for edge in drawn.edges if "failure" in edge.classes] == ["risky"]
    assert drawn.node("risky").texts == ("risky", "up to 2 attempts")


# --------------------------------------------------------------------------- a run


def drawn_run(graph, run):
    return read(graph.picture(run).to_svg())


def statuses(drawn):
    """-> the status of each node, by its name."""
    known = {"done", "handled", "failed", "waiting", "working", "next", "maybe"}
    return {node.name: " ".join(node.classes & known) for node in drawn.nodes}


def taken(drawn):
    return {(edge.source, edge.target) for edge in drawn.edges if "taken" in edge.classes}


def test_a_run_is_drawn_over_the_graph():
    """What it has done, and how often."""
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
    assert statuses(read(graph.picture().to_svg()))["draft"] == ""


def looping(**options):
    edges = [("draft", "review"), ("review", "end", key_equals("n", 3)), ("review", "draft")]
    return graph_of({"draft": counts, "review": nothing, "end": nothing}, edges, **options)


def test_what_was_done_several_times_is_counted():
    """At nodes and at edges."""
    graph = looping()
    graph.execute(State(run_id="r"))
    drawn = drawn_run(graph, "r")

    assert drawn.node("draft").texts[1].startswith("×3 · ")
    assert {label for label, _ in drawn.labels} == {"×3", "×2", "n = 3"}


def test_where_the_history_is_not_whole_nothing_is_counted():
    """A number would be wrong."""
    graph = looping(retention="latest")
    graph.execute(State(run_id="r"))
    drawn = drawn_run(graph, "r")

    assert statuses(drawn) == {"draft": "", "review": "", "end": "done"}
    assert not [node for node in drawn.nodes if "×" in "".join(node.texts)]


def test_what_was_taken_back_is_not_drawn():
    """A rollback takes it out of the picture."""
    graph = looping()
    graph.execute(State(run_id="r"))
    graph.store.rollback("r", 3)
    drawn = drawn_run(graph, "r")

    assert statuses(drawn) == {"draft": "done", "review": "next", "end": ""}
    assert drawn.node("draft").texts[1].startswith("×2")
    assert "unfinished" in graph.picture("r").to_svg()


def test_a_failure_is_drawn_at_the_node_that_failed():
    """With the way there, and the error."""

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


def test_a_predicate_that_fails_is_drawn_at_the_node_before_it():
    """The way from there to itself was not taken."""

    def fails(state):
        raise KeyError("verdict")

    graph = graph_of({"a": nothing, "b": nothing}, [("a", "a", fails), ("a", "b")])
    with pytest.raises(ExecutionError):
        graph.execute(State(run_id="r"))

    assert statuses(drawn_run(graph, "r")) == {"a": "failed", "b": ""}
    assert taken(drawn_run(graph, "r")) == set()


def test_a_handled_failure_has_a_status_of_its_own():
    """The run went on at its handler."""

    def fails(state):
        raise ValueError("no")

    nodes = {"a": nothing, "b": fails, "mend": nothing, "c": nothing}
    edges = [("a", "b"), ("b", "c"), ("mend", "c")]
    graph = graph_of(nodes, edges, policies={"b": {"on_error": "mend"}})
    graph.execute(State(run_id="r"))
    drawn = drawn_run(graph, "r")

    assert statuses(drawn) == {"a": "done", "b": "handled", "mend": "done", "c": "done"}
    assert taken(drawn) == {("a", "b"), ("b", "mend"), ("mend", "c")}


def test_a_pause_is_drawn_where_it_waits():
    """With its reason."""
    ask = InterruptNode(None, "verdict", reason="approve it")
    graph = graph_of({"a": nothing, "ask": ask, "c": nothing})
    paused = graph.execute(State(run_id="r"))
    drawn = drawn_run(graph, "r")

    assert statuses(drawn) == {"a": "done", "ask": "waiting", "c": ""}
    assert drawn.node("ask").texts == ("ask", "asks for verdict", "waiting: approve it")
    assert statuses(drawn_run(graph, paused)) == {"a": "done", "ask": "waiting", "c": ""}
    graph.resume("r", {"verdict": "yes"})
    assert statuses(drawn_run(graph, "r")) == {"a": "done", "ask": "done", "c": "done"}


def test_what_is_under_way_is_drawn():
    """Show the node that the owner is at work on; where that is unknown, any node that can come next."""
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


def test_the_next_node_of_a_run_without_an_owner_is_drawn():
    """As the node that is next, or that may be; no way to it was taken."""
    graph = forking()
    graph.execute(State(run_id="r"))
    seen = []
    for step in range(3):
        graph.store.fork("r", f"copy-{step}", step)
        assert f"copy-{step} · unfinished" in graph.picture(f"copy-{step}").to_svg()
        seen.append(statuses(drawn_run(graph, f"copy-{step}")))

    assert seen == [
        {"a": "next", "b": "", "c": "", "d": ""},
        {"a": "done", "b": "next", "c": "", "d": ""},
        {"a": "done", "b": "done", "c": "maybe", "d": "maybe"},
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


def test_finished_branches_and_items_are_drawn():
    """All of them where the node is done, else those that a resume need not repeat."""

    def fails(state):
        raise ValueError("no")

    sides = ParallelNode({"left": nothing, "right": nothing, "lost": fails}, max_workers=1, on_failure="finish")
    each = MapNode(lambda item: 1 // item, "items", "done", max_workers=1)

    def first(state):
        return {"items": [1, 2, 0]}

    graph = graph_of({"a": first, "both": ParallelNode({"x": nothing, "y": nothing}), "sides": sides})
    with pytest.raises(ExecutionError):
        graph.execute(State(run_id="r"))
    drawn = drawn_run(graph, "r")
    mapped = graph_of({"a": first, "each": each})
    with pytest.raises(ExecutionError):
        mapped.execute(State(run_id="r"))

    assert statuses(drawn.node("both").graphs[0]) == {"x": "done", "y": "done"}
    assert statuses(drawn.node("sides").graphs[0]) == {"left": "done", "right": "done", "lost": ""}
    assert drawn.node("sides").texts[1] == "2 parts done"
    assert drawn_run(mapped, "r").node("each").texts[2] == "2 parts done"


def test_parts_of_unknown_types_are_not_counted(monkeypatch):
    """The rest is drawn."""

    def cannot(*about):
        raise FormatError("r", "this process does not know the type 'T'")

    graph = graph_of({"a": lambda state: {"items": [0]}, "each": MapNode(lambda i: 1 // i, "items", "x")})
    with pytest.raises(ExecutionError):
        graph.execute(State(run_id="r"))
    monkeypatch.setattr(graph.store, "load_parts", cannot)

    assert statuses(drawn_run(graph, "r")) == {"a": "done", "each": "failed"}


def test_turns_of_a_conversation_begin_at_the_entry():
    """No edge leads there."""
    graph = graph_of({"a": nothing, "b": nothing})
    graph.turn("r", {"n": 1})
    graph.turn("r", {"n": 2})
    drawn = drawn_run(graph, "r")

    assert drawn.node("a").texts[1].startswith("×2")
    assert [label for label, _ in drawn.labels] == ["×2"]


def test_a_cancelled_run_is_drawn_as_it_stopped():
    """And says so."""
    graph = graph_of({"a": nothing, "ask": InterruptNode(None, "x"), "b": nothing})
    graph.execute(State(run_id="r"))
    graph.cancel("r")

    assert graph.store.load("r").status is RunStatus.CANCELLED
    assert statuses(drawn_run(graph, "r"))["a"] == "done"
    assert "r · cancelled · 1 step" in graph.picture("r").to_svg()


def test_what_cannot_be_drawn_is_refused():
    """With the errors that a resume raises."""
    graph = graph_of({"a": nothing})
    other = graph_of({"a": nothing}, name="h", store=graph.store)
    graph.execute(State(run_id="r"))

    with pytest.raises(CheckpointNotFoundError):
        graph.picture("nobody")
    with pytest.raises(GraphMismatchError, match="picture_of_run"):
        other.picture("r")
    with pytest.raises(TypeError, match="by its id or as a State, not as int"):
        graph.picture(5)


def test_nodes_that_the_graph_has_lost_are_left_out():
    """The rest of the run is drawn."""
    graph = graph_of(dict.fromkeys("abc", nothing))
    graph.execute(State(run_id="r"))
    edited = graph_of(dict.fromkeys("ac", nothing), store=graph.store)

    assert statuses(drawn_run(edited, "r")) == {"a": "done", "c": "done"}


# --------------------------------------------------------------------------- without the graph


def test_a_run_can_be_drawn_from_its_store_alone(tmp_path):
    """As it is drawn where the graph is there."""
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
            picture_of_run(store, "nobody")


def test_older_runs_are_drawn_with_what_is_known_of_them(tmp_path):
    """Neither entry nor kinds stand in the golden files; in States made by hand, not even nodes."""
    assert KEPT_VALUES  # their types are registered where they are
    shutil.copyfile(ROOT / "tests" / "golden" / "format-1.db", tmp_path / "format-1.db")
    with SqliteStore(tmp_path / "format-1.db", read_only=True) as store:
        drawn = read(picture_of_run(store, "values/json").to_svg())
    assert statuses(drawn) == {"draft": "", "review": "failed"}

    memory = MemoryStore()
    memory.save(State(run_id="r", step=2, checkpoint_node="somewhere"))
    assert statuses(read(picture_of_run(memory, "r").to_svg())) == {"somewhere": "done"}


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
    """As a path or as a str."""
    picture = graph_of({"é": nothing}).picture()
    picture.save(tmp_path / name)
    picture.save(str(tmp_path / name))

    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.startswith(begin)
    assert "é" in text


def test_another_format_is_refused(tmp_path):
    """With those that there are."""
    with pytest.raises(UnknownNameError, match=r"'.png'.*'.html', '.mermaid', '.mmd', '.svg'"):
        StateGraph("g").picture().save(tmp_path / "g.png")

    assert list(tmp_path.iterdir()) == []


def test_notebooks_show_it_as_an_image():
    """SVG itself is hidden in notebooks that are not trusted."""
    picture = graph_of({"a": nothing}, name='<"g">').picture()
    shown = re.fullmatch(
        r'<img alt="graph &lt;&quot;g&quot;&gt;" style="max-width:100%" src="data:image/svg\+xml;base64,(.*)">',
        picture._repr_html_(),
    )

    assert shown is not None
    assert base64.b64decode(shown[1]).decode() == picture.to_svg()
    assert repr(picture) == "<Picture of graph '<\"g\">'>"
