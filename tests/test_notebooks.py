"""What a person sees who works in a notebook: completions, pictures, texts of objects, and cells that run again."""

import pickle
import subprocess
import sys
from inspect import signature
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import stategraph
from stategraph import InvalidRunIdError, MapNode, ParallelNode, State, StateGraph, id_of
from stategraph.stores import SqliteStore


def test_a_state_shows_its_values_shortened():
    """Its text has each value, in a few characters."""
    shown = repr(State({"topic": "x" * 10_000, "n": 2, **{f"k{n}": n for n in range(100)}}, run_id="r"))

    assert "'n': 2" in shown
    assert "'topic': 'xxx" in shown
    assert "92 more" in shown
    assert len(shown) < 600


def test_ipython_completes_the_keys_of_a_state(tmp_path, monkeypatch):
    """After `state["`."""
    program = """
from IPython.core.interactiveshell import InteractiveShell
from stategraph import State
shell = InteractiveShell(user_ns={"state": State({"topic": 1})})
print(shell.complete("t", 'state["t', 8)[1])
"""
    pytest.importorskip("IPython")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "['topic']", done.stderr


def test_a_missing_key_is_answered_with_those_that_are_there():
    """Similar keys first, also in another process. It is still a KeyError of that key."""
    with pytest.raises(KeyError, match="the State has 'topic', 'n'") as caught:
        State({"n": 1, "topic": 1})["topik"]
    assert caught.value.args == ("topik",)
    assert "the State has 'topic'" in str(pickle.loads(pickle.dumps(caught.value)))


def test_a_graph_draws_itself():
    """Also while it is built."""
    graph = StateGraph("g")
    graph.add_node("first", lambda state: {})

    assert ET.fromstring(graph._repr_html_().replace(">", "/>", 1)).get("alt") == "graph g"


def test_stores_and_nodes_say_what_they_are(tmp_path):
    """No text is an address in memory."""
    with SqliteStore(tmp_path / "runs.db") as store:
        assert repr(store) == f"<sqlite store at {tmp_path / 'runs.db'}>"
    assert repr(StateGraph("g", store="memory").store) == "<memory store>"
    assert repr(MapNode(len, "pages", "sizes")) == "<MapNode over 'pages' into 'sizes'>"
    assert repr(ParallelNode({"a": dict, "b": dict})) == "<ParallelNode of a, b>"
    assert repr(StateGraph("inner").as_node()) == "<GraphNode 'inner'>"


def test_a_cell_that_runs_again_replaces_its_node():
    """Edges stay; without `replace=True` the error says so."""
    graph = StateGraph("g")
    graph.add_node("writes", lambda state: {})
    graph.set_entry_point("writes")
    graph.set_exit_point("writes")
    for text in ("old", "new"):
        graph.add_node("writes", lambda state, text=text: {"text": text}, replace=True)
        assert graph.run(State())["text"] == text

    with pytest.raises(stategraph.GraphError, match="replace=True"):
        graph.add_node("writes", lambda state: {})

    @graph.node("writes", replace=True)
    def decorated(state):
        return {"text": "decorated"}

    assert graph.run(State())["text"] == "decorated"


@given(st.text(), st.text())
@example("Größe/4", "Größe 4")
@example("", "a/#1/b")
def test_any_text_makes_a_run_id(one, other):
    """The same text makes the same id, other texts other ids, and a run id is itself."""
    ids = id_of(one), id_of(other)

    assert [State(run_id=run_id).run_id for run_id in ids] == [*ids]
    assert (ids[0] == ids[1]) == (one == other)
    assert id_of(ids[0]) == ids[0]
    try:
        State(run_id=one)
    except InvalidRunIdError:
        return
    assert ids[0] == one


def test_help_begins_with_what_is_public():
    """The first lines of the package have a graph and a State, and the text every public name."""
    text = stategraph.__doc__ or ""

    assert set(stategraph.__all__) <= set(text.split())
    assert text.partition("Public names:")[2].split()[:2] == ["StateGraph", "State"]
    assert len(text.partition("Public names:")[0].splitlines()) < 6


def test_signatures_show_what_a_caller_gives():
    """A State shows the arguments of a user first, and none of the engine; a store shows all of its options."""
    state, store = (signature(kind).parameters for kind in (State, SqliteStore))

    assert [*state][:3] == ["data", "run_id", "labels"]
    assert not {"facts", "took_ns"} & {*state}
    shared = {
        name for name, one in signature(SqliteStore.__mro__[1]).parameters.items() if one.kind is one.KEYWORD_ONLY
    }
    assert {"path", "read_only"} | shared == {*store}
    with pytest.raises(TypeError, match="has no argument 'fact'"):
        State(fact=1)  # type: ignore[call-arg]
