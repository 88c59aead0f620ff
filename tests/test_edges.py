"""Edges and predicates, which decide where a run goes."""

from functools import partial
from typing import Any

import pytest

from stategraph import State, always, and_, key_equals, key_exists, not_, or_
from stategraph.edges import Edge, NoWay, choose, describe_predicate

STATE = State({"verdict": "rework", "nothing": None, "orders": [1, {"a": 2}], "count": 0})


def own(state: State) -> bool:
    return True


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
def test_results_of_predicates(predicate: Any, holds: bool) -> None:
    """It gives a bool, and asks no more parts than it must."""
    assert predicate(STATE) is holds


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
    """Predicates are called in order up to the first true value, and its edge is taken."""
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
