"""Routes: edges out of a node, of which a function of the State chooses one by what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._util.callables import answered, problem_of
from stategraph._values.sameness import is_same
from stategraph.edges import Edge, LibraryPredicate, Predicate, stable_repr
from stategraph.state import State


@attrs.frozen(repr=False)
class Says(LibraryPredicate):
    """Holds if the function of a route returns this."""

    is_of_route = True

    function: Callable[[State], Any]
    answer: Any = attrs.field(eq=attrs.cmp_using(eq=is_same), hash=False)
    route: object = attrs.field(eq=False)

    def __call__(self, state: State) -> bool:
        return bool(answered(self.function(state)) == self.answer)

    def describe(self, describe_own: Callable[[Predicate], str]) -> str:
        asked, answer = describe_own(self.function), stable_repr(self.answer)
        return answer if asked.endswith("<lambda>") else f"{asked} says {answer}"


def route(
    source: str, function: Callable[[State], Any], targets: Mapping[Any, str] | Iterable[str], name: str | None
) -> list[Edge]:
    """Return the edges of a route, in the order of its targets.

    Raises:
        TypeError, ValueError: the function does not fit, or there are no targets; the text says why.
    """
    problem = problem_of(function, 1)
    if problem:
        raise TypeError(f"its function is {shorten(function)}; a route asks a sync function of a State: {problem}")
    if isinstance(targets, str) or not isinstance(targets, Mapping | Iterable):
        raise TypeError(
            f"its targets are {shorten(targets)}; they are a mapping of answers to nodes, or names of nodes"
        )
    ways = targets if isinstance(targets, Mapping) else {name: name for name in _in_order(targets)}
    if not ways:
        raise ValueError("it has no targets: name the nodes that the function may choose")
    one = object()
    names = {answer: None if name is None else f"{name} says {stable_repr(answer)}" for answer in ways}
    return [Edge(source, target, Says(function, answer, one), names[answer]) for answer, target in ways.items()]


def _in_order(names: Iterable[str]) -> Iterable[str]:
    return sorted(names, key=str) if isinstance(names, set | frozenset) else names


# --------------------------------------------------------------------------- when a run takes one


class _Choice(LibraryPredicate):
    """Asks the function of a route once, and holds with the edge that it chooses."""

    def __init__(self, first: Says) -> None:
        self._first = first
        self.ways: list[tuple[Any, Edge]] = []

    def __call__(self, state: State) -> Any:
        answer = answered(self._first.function(state))
        for expected, edge in self.ways:
            if answer == expected:
                return edge
        known = ", ".join(shorten(expected) for expected, _ in self.ways)
        raise ValueError(f"the route has no way for {shorten(answer)}; it has ways for {known}")

    def describe(self, describe_own: Callable[[Predicate], str]) -> str:
        return self._first.describe(describe_own)


def with_choices(edges: Iterable[Edge]) -> Iterator[Edge]:
    """Yield edges out of a node; the first of each route asks the function for all of them."""
    choices: dict[int, _Choice] = {}
    for edge in edges:
        says = edge.predicate
        if not isinstance(says, Says):
            yield edge
            continue
        choice = choices.get(id(says.route))
        way = edge
        if choice is None:
            choice = choices[id(says.route)] = _Choice(says)
            way = attrs.evolve(edge, predicate=choice)
        choice.ways.append((says.answer, way))
        yield way
