"""Edges and predicates: what decides where a run goes."""

import enum
from datetime import date
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import attrs
import pytest

from stategraph import GraphConfig, State, StateGraph, always, and_, key_equals, key_exists, not_, or_
from stategraph.edges import Edge, NoWay, choose, describe_predicate, stable_repr

STATE = State({"verdict": "rework", "nothing": None, "orders": [1, {"a": 2}], "count": 0})


class Mood(enum.Enum):
    GOOD = 1


def own(state: State) -> bool:
    return True


async def _late(state: State) -> bool:
    return True


late: Any = _late


def answers(*values: Any) -> list[Any]:
    """-> predicates that give these answers."""
    return [lambda state, value=value: value for value in values]


def raising(state: State) -> bool:
    raise ValueError("no verdict")


# --------------------------------------------------------------------------- what they decide


@pytest.mark.parametrize(
    ("predicate", "holds"),
    [
        (always(), True),
        (key_exists("verdict"), True),
        (key_exists("nothing"), True),
        (key_exists("absent"), False),
        (key_equals("verdict", "rework"), True),
        (key_equals("verdict", "publish"), False),
        (key_equals("nothing", None), True),
        (key_equals("absent", None), False),
        (key_equals("orders", [1, {"a": 2}]), True),
        (key_equals("count", 0), True),
        (not_(key_exists("absent")), True),
        (not_(not_(key_exists("absent"))), False),
        (and_(), True),
        (or_(), False),
        (and_(always(), key_exists("verdict")), True),
        (and_(always(), key_exists("absent")), False),
        (or_(key_exists("absent"), always()), True),
        (or_(key_exists("absent"), not_(always())), False),
        (and_(or_(key_exists("absent"), own), not_(and_(own, key_equals("count", 1)))), True),
        (or_(always(), raising), True),
        (and_(key_exists("absent"), raising), False),
    ],
    ids=str,
)
def test_what_a_predicate_decides(predicate: Any, holds: bool) -> None:
    """It gives a bool, and asks no more parts than it must."""
    assert predicate(STATE) is holds


def test_a_part_may_answer_with_any_truth_value() -> None:
    """As an edge's own predicate may."""
    assert and_(*answers("rework", 1))(STATE) is True
    assert or_(*answers(0, None))(STATE) is False
    assert not_(*answers([]))(STATE) is True


# --------------------------------------------------------------------------- repr and equality


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (always(), "always()"),
        (key_exists("a"), "key_exists('a')"),
        (key_equals("a", {"b", "a"}), "key_equals('a', {'a', 'b'})"),
        (not_(own), "not_(own)"),
        (and_(own, or_(always(), key_exists("a"))), "and_(own, or_(always(), key_exists('a')))"),
        (not_(partial(own)), "not_(partial)"),
        (and_(), "and_()"),
    ],
    ids=str,
)
def test_a_predicate_reads_as_it_was_written(predicate: Any, text: str) -> None:
    """Users' own functions go by their name, never by an address."""
    assert repr(predicate) == describe_predicate(predicate) == text


@pytest.mark.parametrize(
    "make",
    [
        always,
        lambda: key_exists("a"),
        lambda: key_equals("a", [1]),
        lambda: not_(own),
        lambda: and_(own, key_exists("a")),
        lambda: or_(own, key_exists("a")),
    ],
)
def test_predicates_that_mean_the_same_are_equal(make: Any) -> None:
    """Their hashes, too, even if their values have none."""
    assert make() == make()
    assert hash(make()) == hash(make())


def test_predicates_that_differ_are_not_equal() -> None:
    """In kind, in key, in value, in order."""
    different = [
        *(
            always(),
            key_exists("a"),
            key_exists("b"),
            key_equals("a", 1),
            key_equals("a", 2),
            key_equals("b", 1),
            key_equals("a", [1]),
        ),
        *(not_(own), not_(raising), and_(own, raising), and_(raising, own), or_(own, raising)),
        *(and_(own), or_(own), and_(), or_()),
    ]

    for one in different:
        assert sum(other == one for other in different) == 1


@attrs.frozen
class Plain:
    x: int = 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        ("a", "'a'"),
        (None, "None"),
        (date(2024, 1, 2), "datetime.date(2024, 1, 2)"),
        (PurePosixPath("a"), "PurePosixPath('a')"),
        (Mood.GOOD, "Mood.GOOD"),
        ([1, ("a",)], "[1, ('a')]"),
        ({"b": {2, 1}}, "{'b': {1, 2}}"),
        (frozenset({"b", "a"}), "{'a', 'b'}"),
        (object(), "<object>"),
        (Plain(), "<Plain>"),
        (own, "<function>"),
        ([object()], "[<object>]"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_a_stable_repr_has_no_address_and_no_chance_in_it(value: Any, text: str) -> None:
    """It stands in the structure that is kept with a run."""
    assert stable_repr(value) == text


# --------------------------------------------------------------------------- choosing


def edges_with(*predicates: Any) -> list[Edge]:
    return [Edge("a", f"b{number}", predicate) for number, predicate in enumerate(predicates)]


@pytest.mark.parametrize(
    ("predicates", "target"),
    [
        ([None], "b0"),
        ([None, always()], "b0"),
        ([key_exists("absent"), None], "b1"),
        ([key_exists("absent"), key_exists("verdict"), raising], "b1"),
        ([lambda s: 0, lambda s: "yes"], "b1"),
        ([lambda s: None, lambda s: [], lambda s: 1], "b2"),
    ],
)
def test_the_first_edge_that_passes_is_taken(predicates: list[Any], target: str) -> None:
    """In the order in which they were added; any true value will do; the rest are not asked."""
    edge = choose(edges_with(*predicates), STATE)

    assert isinstance(edge, Edge)
    assert edge.target == target


class _NoTruth:
    def __bool__(self) -> bool:
        raise ValueError("the truth is ambiguous")


@pytest.mark.parametrize(
    ("predicate", "text"), [(raising, "no verdict"), (lambda state: _NoTruth(), "the truth is ambiguous")]
)
def test_a_predicate_that_fails_ends_the_search(predicate: Any, text: str) -> None:
    """It raises, or its answer is neither true nor false, as that of an array."""
    no_way = choose(edges_with(key_exists("absent"), predicate, None), STATE)

    assert isinstance(no_way, NoWay)
    assert (no_way.tried, str(no_way.error)) == (2, text)


def test_an_edge_reads_as_source_target_and_reason() -> None:
    """Its name stands for its predicate, if it has one."""
    assert str(Edge("a", "b")) == "'a' -> 'b' (always())"
    assert str(Edge("a", "b", own)) == "'a' -> 'b' (own)"
    assert str(Edge("a", "b", own, "rework")) == "'a' -> 'b' (rework)"
    assert Edge("a", "b", own).structure.label == "own predicate"
    assert Edge("a", "b", not_(own)).structure.label == "not_(own predicate)"
    assert Edge("a", "b", own, "rework").structure.label == "rework"


class Quarrelsome:
    """Cannot be compared, as arrays of numbers cannot; as a predicate, it raises."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, state: State) -> bool:
        raise LookupError("this one")


def test_values_that_cannot_be_compared() -> None:
    """Edges with them are added; only asking for a State that has the key fails, as it must."""
    graph = StateGraph(GraphConfig("g", observer="noop"))
    for name in "ab":
        graph.add_node(name, dict)
    for value in (Quarrelsome(), Quarrelsome(), 1):
        graph.add_edge("a", "b", key_equals("verdict", value))

    assert len(graph.edges) == 3
    assert isinstance(choose(graph.edges, State({"verdict": 1})), NoWay)


def test_a_predicate_that_cannot_be_compared() -> None:
    """The way that was not found tells which edge it was."""
    edges = [Edge("a", "b", Quarrelsome()), Edge("a", "b", Quarrelsome()), Edge("a", "b", always())]
    no_way = choose([Edge("a", "b", not_(always())), *edges], STATE)

    assert isinstance(no_way, NoWay)
    assert (no_way.tried, repr(no_way.error)) == (2, "LookupError('this one')")
