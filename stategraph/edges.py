"""Edges, their predicates, and routes, whose function chooses one of several edges.

A predicate is any function of a State that returns a bool. The predicates made here have a readable repr and are equal
if they test the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias, cast, final

import attrs

from stategraph._text.shown import shorten
from stategraph._util.callables import answered, failure_of, failures, is_true, name_of, problem_of
from stategraph._values.frozen import is_settled
from stategraph._values.provenance import EdgeStructure
from stategraph._values.sameness import is_same
from stategraph.state import State

Predicate: TypeAlias = Callable[[State], bool]
_Describe: TypeAlias = Callable[[Predicate], str]


@attrs.frozen
class Edge:
    """A possible transition between two nodes. It is taken if its predicate is true, or if it has none."""

    source: str
    target: str
    predicate: Predicate | None = None
    name: str | None = None

    @property
    def structure(self) -> EdgeStructure:
        """The form of this edge that can be compared across processes."""
        label = self.name or describe_predicate(self.predicate, lambda _: "own predicate")
        shown = self.name or describe_predicate(self.predicate)
        return EdgeStructure(self.source, self.target, label, "" if shown == label else shown)

    def __str__(self) -> str:
        return f"{self.source!r} -> {self.target!r} ({self.name or describe_predicate(self.predicate)})"


@final
@attrs.frozen
class NoWay:
    """No edge can be taken: all predicates returned False, or one raised.

    Attributes:
        tried: The number of edges tried.
        error: The exception of the last predicate, if it raised.
    """

    tried: int
    error: Exception | None = None


def choose(edges: Sequence[Edge], state: State) -> Edge | NoWay:
    """Return the first edge whose predicate returns True."""
    for edge in edges:
        predicate = edge.predicate
        if predicate is None:
            return edge
        try:
            if type(predicate) is Says:  # the first edge of a route chooses for all of them
                chosen = predicate.chosen(state)
                return next(other for other in edges if other.predicate is chosen)
            holds = predicate(state)
            if holds is True:
                return edge
            if is_true(holds):
                _check_no_node(holds, edges)
                return edge
        except failures() as error:
            return NoWay(place_of(edge, edges) + 1, cast(Exception, failure_of(error)))
    return NoWay(len(edges))


def _check_no_node(answer: object, edges: Sequence[Edge]) -> None:
    """Raise TypeError if a predicate returned the name of a node that an edge leads to: it cannot choose nodes."""
    if isinstance(answer, str) and any(answer == other.target for other in edges):
        raise TypeError(
            f"it returned {answer!r}, a node: a predicate returns True or False for its own edge; "
            "use add_route to let a function choose the node"
        )


def place_of(edge: Edge, edges: Sequence[Edge]) -> int:
    """Return the index of an edge. Edges are compared by identity, as predicates may not support comparison."""
    return next(place for place, other in enumerate(edges) if other is edge)


# --------------------------------------------------------------------------- predicates


class LibraryPredicate:
    """The base class of the predicates of stategraph, which can describe themselves."""

    def __call__(self, state: State) -> bool:
        """Return whether the edge can be taken."""
        raise NotImplementedError

    def describe(self, describe_own: _Describe) -> str:
        """Return a description; `describe_own` describes functions of the user."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.describe(name_of)


def always() -> Predicate:
    """Return a predicate that is always true. An edge without a predicate is the same."""
    return _Always()


def key_exists(key: str) -> Predicate:
    """Return a predicate that is true if the State has `key`, with any value."""
    return _KeyExists(key)


def key_equals(key: str, value: object) -> Predicate:
    """Return a predicate that is true if the State has `key` and its value equals `value`."""
    return _KeyEquals(key, value)


def not_(predicate: Predicate) -> Predicate:
    """Return a predicate that is true if `predicate` is false."""
    return _Not(_checked(predicate))


def and_(*predicates: Predicate) -> Predicate:
    """Return a predicate that is true if all predicates are. They are called in order until one is false."""
    return _Combined("and_", all, tuple(map(_checked, predicates)))


def or_(*predicates: Predicate) -> Predicate:
    """Return a predicate that is true if any predicate is. They are called in order until one is true."""
    return _Combined("or_", any, tuple(map(_checked, predicates)))


def predicate_problem(value: object) -> str:
    """Return why a value is no predicate; empty if it is one."""
    return problem_of(value, 1)


def _checked(predicate: Predicate) -> Predicate:
    problem = predicate_problem(predicate)
    if problem:
        raise TypeError(f"a predicate is a sync function of a State, not {shorten(predicate)}: {problem}")
    return predicate


@attrs.frozen(repr=False)
class _Always(LibraryPredicate):
    def __call__(self, state: State) -> bool:
        return True

    def describe(self, describe_own: _Describe) -> str:
        return "always()"


@attrs.frozen(repr=False)
class _KeyExists(LibraryPredicate):
    key: str

    def __call__(self, state: State) -> bool:
        return self.key in state

    def describe(self, describe_own: _Describe) -> str:
        return f"key_exists({self.key!r})"


_ABSENT = object()


@attrs.frozen(repr=False)
class _KeyEquals(LibraryPredicate):
    key: str
    value: object = attrs.field(eq=attrs.cmp_using(eq=is_same), hash=False)  # an array, for example

    def __call__(self, state: State) -> bool:
        found = state.get(self.key, _ABSENT)
        return found is not _ABSENT and bool(found == self.value)

    def describe(self, describe_own: _Describe) -> str:
        return f"key_equals({self.key!r}, {stable_repr(self.value)})"


@attrs.frozen(repr=False)
class _Not(LibraryPredicate):
    predicate: Predicate

    def __call__(self, state: State) -> bool:
        return not is_true(self.predicate(state))

    def describe(self, describe_own: _Describe) -> str:
        return f"not_({describe_predicate(self.predicate, describe_own)})"


@attrs.frozen(repr=False)
class _Combined(LibraryPredicate):
    name: str
    decide: Callable[[Any], bool]
    predicates: tuple[Predicate, ...]

    def __call__(self, state: State) -> bool:
        return self.decide(is_true(predicate(state)) for predicate in self.predicates)

    def describe(self, describe_own: _Describe) -> str:
        return f"{self.name}({', '.join(describe_predicate(p, describe_own) for p in self.predicates)})"


# --------------------------------------------------------------------------- descriptions


def describe_predicate(predicate: Predicate | None, describe_own: _Describe = name_of) -> str:
    """Return a description of a predicate; `describe_own` describes functions of the user."""
    if predicate is None:
        return "always()"
    if isinstance(predicate, LibraryPredicate):
        return predicate.describe(describe_own)
    return describe_own(predicate)


def stable_repr(value: object) -> str:
    """Return a repr that is the same in every process: sets are sorted, and there are no addresses."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{stable_repr(key)}: {stable_repr(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple | set | frozenset):
        items = list(map(stable_repr, value))
        opening, closing = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
        return f"{opening}{', '.join(sorted(items) if opening == '{' else items)}{closing}"
    is_stable = isinstance(value, str | int | float | None) or is_settled(value)
    return repr(value) if is_stable else f"<{type(value).__qualname__}>"


# --------------------------------------------------------------------------- routes


@attrs.frozen(repr=False)
class Says(LibraryPredicate):
    """The predicate of one edge of a route: the function of the route chooses this edge.

    Attributes:
        function: The function of the route.
        answer: The result of the function that chooses this edge.
        route: The predicates of all edges of the route.
    """

    function: Callable[[State], Any]
    answer: Any = attrs.field(eq=attrs.cmp_using(eq=is_same), hash=False)
    route: list[Says] = attrs.field(eq=False)

    def __call__(self, state: State) -> bool:
        return self.chosen(state) is self

    def chosen(self, state: State) -> Says:
        """Return the predicate of the edge that the function chooses.

        Raises:
            ValueError: the route has no such edge.
        """
        answer = answered(self.function(state))
        for says in self.route:
            if answer == says.answer:
                return says
        known = ", ".join(shorten(says.answer) for says in self.route)
        raise ValueError(f"the route has no target for {shorten(answer)}; it has targets for {known}")

    def describe(self, describe_own: _Describe) -> str:
        function, answer = describe_own(self.function), stable_repr(self.answer)
        return answer if function.endswith("<lambda>") else f"{function} says {answer}"


def edges_of_route(
    source: str, function: Callable[[State], Any], targets: Mapping[Any, str] | Iterable[str], name: str | None
) -> list[Edge]:
    """Return the edges of a route, in the order of its targets.

    Raises:
        TypeError, ValueError: The function cannot be called with a State, or there are no targets.
    """
    problem = problem_of(function, 1)
    if problem:
        raise TypeError(f"its function is {shorten(function)}; a route takes a sync function of a State: {problem}")
    if isinstance(targets, str) or not isinstance(targets, Mapping | Iterable):
        raise TypeError(
            f"its targets are {shorten(targets)}; they are a mapping of answers to nodes, or names of nodes"
        )
    if isinstance(targets, set | frozenset):
        targets = sorted(targets, key=str)
    ways = targets if isinstance(targets, Mapping) else {name: name for name in targets}
    if not ways:
        raise ValueError("it has no targets: name the nodes that the function may choose")
    route: list[Says] = []
    route += [Says(function, answer, route) for answer in ways]
    names = [None if name is None else f"{name} says {stable_repr(answer)}" for answer in ways]
    return [Edge(source, *way) for way in zip(ways.values(), route, names, strict=True)]
