"""Shorthands: graphs by a name, sequences, routes, and policies in a decorator."""

import enum
from functools import partial

import pytest

from stategraph import (
    CheckpointConfig,
    ConfigError,
    ExecutionError,
    GraphConfig,
    GraphError,
    MapNode,
    RetryPolicy,
    State,
    StateGraph,
    UnknownNodeError,
    get_observer,
)
from stategraph.stores import DiskStore, SqliteStore


class Verdict(enum.Enum):
    GOOD = 1
    BAD = 2


def first(state):
    return {"n": state.get("n", 0) + 1}


def second(state):
    return {"last": "second"}


def third(state):
    return {"last": "third"}


def way(state):
    return state["way"]


@pytest.fixture
def graph():
    graph = StateGraph("short", observer="noop")
    for function in (first, second, third):
        graph.add_node(function.__name__, function)
    graph.set_entry_point("first")
    graph.set_exit_point("second")
    graph.set_exit_point("third")
    return graph


def ways_of(graph):
    return [(edge.source, edge.target) for edge in graph.edges]


# --------------------------------------------------------------------------- a graph by its name


class TestByName:
    @pytest.mark.parametrize(
        ("address", "kind"), [("runs.db", SqliteStore), ("folder/", DiskStore), ("there", DiskStore)], ids=str
    )
    @pytest.mark.parametrize("made", [str, lambda text: text], ids=["str", "path"])
    def test_a_store_by_its_place(self, tmp_path, address, kind, made):
        """A file is a sqlite store, a folder a disk store; every step is saved."""
        (tmp_path / "there").mkdir()
        place = f"{tmp_path}/{address}" if made is str else tmp_path / address
        if made is not str and address.endswith("/"):
            place = tmp_path / "there"
        graph = StateGraph("short", store=place, observer="noop")

        assert type(graph.store) is kind
        assert graph.config.checkpoint.interval == 1
        assert GraphConfig.from_dict(graph.config.to_dict()) == graph.config
        graph.store.close()

    @pytest.mark.parametrize("store", ["mysql://here/runs", "file:///runs.db"])
    def test_an_url_of_nothing(self, store):
        """The error lists the known schemes and shows nothing that may be a password."""
        with pytest.raises(ConfigError, match=r"postgresql, postgres, redis, rediss") as caught:
            StateGraph("short", store=store)
        assert "runs" not in str(caught.value)

    def test_beside_a_config(self, tmp_path):
        """Arguments replace fields of the config, the others stay."""
        config = GraphConfig("short", max_iterations=7, checkpoint=CheckpointConfig(retention="full"))
        graph = StateGraph(config, store=tmp_path / "runs.db", observer="structlog", preserve=True)

        kept = CheckpointConfig("sqlite", 1, True, retention="full", options={"path": str(tmp_path / "runs.db")})
        assert graph.config == GraphConfig("short", "structlog", 7, kept)
        assert type(graph.store) is SqliteStore
        assert graph.observer is get_observer("structlog")
        graph.store.close()


# --------------------------------------------------------------------------- several nodes in a row


class TestSequences:
    def test_functions(self):
        """Each function becomes a node with an edge to the next."""
        graph = StateGraph("short")
        graph.add_sequence(first, second, third)

        assert list(graph.nodes) == ["first", "second", "third"]
        assert ways_of(graph) == [("first", "second"), ("second", "third")]

    def test_names_of_nodes_that_are_there(self, graph):
        """Names in a sequence stand for existing nodes."""
        graph.add_sequence("first", "third", lambda_named("fourth"), "second")

        assert ways_of(graph) == [("first", "third"), ("third", "fourth"), ("fourth", "second")]

    @pytest.mark.parametrize("given", [partial(second), ["first", "second"], MapNode(len, "a", "b")])
    def test_a_node_without_a_name(self, graph, given):
        """The error says that add_node gives it one."""
        with pytest.raises(GraphError, match=r"functions and names of nodes, one by one; add_node adds"):
            graph.add_sequence("first", given)


def lambda_named(name):
    def node(state):
        return {}

    node.__name__ = name
    return node


# --------------------------------------------------------------------------- where a function says


class TestRoutes:
    @pytest.mark.parametrize(
        ("answers", "targets"),
        [
            (["second", "third"], ["second", "third"]),
            (["third", "second"], {"second", "third"}),
            (["x", "y"], {"x": "second", "y": "third"}),
            ([True, False], {True: "second", False: "third"}),
            ([Verdict.GOOD, Verdict.BAD], {Verdict.GOOD: "second", Verdict.BAD: "third"}),
            ([None, 5], {None: "second", 5: "third"}),
            (["a", "b"], {"a": "second", "b": "second"}),
        ],
    )
    def test_a_run_goes_where_it_says(self, answers, targets):
        """A route leads to the node that its mapping or its answer names."""
        for answer in answers:
            graph = StateGraph("short", observer="noop")
            graph.add_sequence(first)
            graph.add_node("second", second)
            graph.add_node("third", third)
            graph.add_route("first", partial(give, answer), targets)
            graph.set_entry_point("first")
            for name in {edge.target for edge in graph.edges}:
                graph.set_exit_point(name)
            if not isinstance(targets, dict) or len(set(targets.values())) == 2:
                expected = targets[answer] if isinstance(targets, dict) else answer
                assert graph.execute(State())["last"] == expected
            else:
                with pytest.raises(GraphError, match="cannot be reached"):
                    graph.validate()

    def test_the_function_is_called_once(self, graph):
        """It may cost something, or answer something else the next time."""
        steps = []
        graph.add_node("loop", lambda state: {})
        graph.add_edge("loop", "first")

        def decide(state):
            steps.append(state.step)
            return ["loop", "third"][len(steps) - 1]

        graph.add_route("first", decide, ["second", "third", "loop"])

        assert graph.execute(State())["last"] == "third"
        assert steps == [1, 3]

    def test_the_predicates_of_its_edges(self, graph):
        """The predicate of each edge says whether the route chooses this edge."""
        graph.add_route("first", lambda state: state["way"], ["second", "third"])

        assert [edge.predicate(State({"way": "third"})) for edge in graph.edges] == [False, True]

    def test_edges_before_it_are_tried_first(self, graph):
        """Edges before a route are tried first, and edges after it never: a route has an answer or fails."""
        graph.add_edge("first", "third", lambda state: "x" in state)
        graph.add_route("first", lambda state: "second", ["second"])

        assert graph.execute(State({"x": 1}))["last"] == "third"
        assert graph.execute(State())["last"] == "second"

    @pytest.mark.parametrize("answer", ["fourth", None, 5, True, State()], ids=lambda one: type(one).__name__)
    def test_an_answer_that_has_no_target(self, graph, answer):
        """The run fails, and the error lists the answers with a target."""
        graph.add_route("first", lambda state: answer, ["second", "third"])

        with pytest.raises(ExecutionError, match=r"no target for .*; it has targets for 'second', 'third'"):
            graph.execute(State())

    @pytest.mark.parametrize("targets", [["second", "thrid"], {"x": "thrid"}, {"x": ["second"]}], ids=repr)
    def test_a_target_that_is_not_there(self, graph, targets):
        """It is named; nothing has been added."""
        with pytest.raises(UnknownNodeError):
            graph.add_route("first", lambda state: "second", targets)
        assert graph.edges == ()

    @pytest.mark.parametrize(
        ("function", "name", "shown", "label"),
        [
            (way, None, "way says 'x'", "own predicate says 'x'"),
            (lambda state: state["way"], None, "'x'", "own predicate says 'x'"),
            (lambda state: state["way"], "verdict", "verdict says 'x'", "verdict says 'x'"),
        ],
    )
    def test_the_names_of_its_edges(self, graph, function, name, shown, label):
        """Its edges are labelled with the given name or that of the function, and the answer; in pictures, too."""
        graph.add_route("first", function, {"x": "second", "y": "third"}, name=name)

        assert str(graph.edges[0]) == f"'first' -> 'second' ({shown})"
        assert graph.edges[0].structure.label == label
        picture = graph.picture().to_mermaid()
        assert shown.replace("'", "#39;") in picture or shown in picture
        assert "lambda" not in picture

    def test_a_predicate_that_returns_a_node(self, graph):
        """A predicate that returns a node is refused: it would count as true for its own edge."""
        graph.add_edge("first", "second", lambda state: "third")
        graph.add_edge("first", "third")

        with pytest.raises(ExecutionError, match=r"returned 'third', a node: .*use add_route"):
            graph.execute(State())


def give(answer, state):
    return answer


# --------------------------------------------------------------------------- policies beside a decorator


def test_a_decorator_with_policies():
    """The decorator takes the policies of add_node."""
    graph = StateGraph("short", observer="noop")
    tries = []

    @graph.node("named", retry=RetryPolicy(max_attempts=2, initial_delay=0))
    def flaky(state):
        tries.append(1)
        return {"n": 1 // (len(tries) - 1)}

    @graph.node(on_error="named")
    def own_name(state):
        raise ValueError

    @graph.node()
    def end(state):
        return {}

    assert list(graph.nodes) == ["named", "own_name", "end"]
    graph.add_edge("own_name", "end")
    graph.add_edge("named", "end")
    graph.set_entry_point("own_name")
    graph.set_exit_point("end")
    assert graph.execute(State())["n"] == 1
    with pytest.raises(TypeError, match="retries"):
        graph.node(retries=3)(end)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="timeout"):
        graph.node("other", timeout=-1)(end)
