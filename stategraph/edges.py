"""Edges, and the predicates that decide whether one is taken.

A predicate is any function of a State to bool. The ones made here have a readable repr and compare equal when they
mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias, cast, final

import attrs

from stategraph._text.shown import shorten
from stategraph._util.callables import failure_of, failures, is_true, name_of, problem_of
from stategraph._values.provenance import EdgeStructure
from stategraph.state import State

Predicate: TypeAlias = Callable[[State], bool]


@attrs.frozen
class Edge:
    """A possible transition. It is taken if its predicate holds; None always does."""

    source: str
    target: str
    predicate: Predicate | None = None
    name: str | None = None

    @property
    def structure(self) -> EdgeStructure:
        """What of this edge can be compared across processes."""
        label = self.name or describe_predicate(self.predicate, lambda _: "own predicate")
        shown = self.name or describe_predicate(self.predicate)
        return EdgeStructure(self.source, self.target, label, "" if shown == label else shown)

    def __str__(self) -> str:
        return f"{self.source!r} -> {self.target!r} ({self.name or describe_predicate(self.predicate)})"


@final
@attrs.frozen
class NoWay:
    """No edge was found: none passes, or the predicate of one raised.

    Attributes:
        tried: How many edges were tried.
        error: What the predicate of the last one raised, if it did.
    """

    tried: int
    error: Exception | None = None


def choose(edges: Sequence[Edge], state: State) -> Edge | NoWay:
    """Return the first edge whose predicate holds."""
    for edge in edges:
        predicate = edge.predicate
        if predicate is None:
            return edge
        try:
            holds = predicate(state)
            if holds is True:
                return edge
            if is_true(holds):
                return _chosen(holds, edge, edges)
        except failures() as error:
            return NoWay(place_of(edge, edges) + 1, cast(Exception, failure_of(error)))
    return NoWay(len(edges))


def _chosen(answer: object, edge: Edge, edges: Sequence[Edge]) -> Edge:
    """Return the edge to take where a predicate has given something else than True.

    Raises:
        TypeError: it is the name of a node that an edge leads to, which a predicate cannot choose.
    """
    if type(answer) is Edge:  # of a route
        return answer
    if isinstance(answer, str) and any(answer == other.target for other in edges):
        raise TypeError(
            f"it returned {answer!r}, a node: a predicate says True or False of its own edge; "
            "to go where a function says, use add_route"
        )
    return edge


def place_of(edge: Edge, edges: Sequence[Edge]) -> int:
    """Return where an edge stands among others. It is not compared with them: predicates may refuse to be."""
    return next(place for place, other in enumerate(edges) if other is edge)


# --------------------------------------------------------------------------- predicates


class LibraryPredicate:
    """Base of the predicates that stategraph makes: they can say what they test."""

    is_of_route: bool = False
    """Whether its edge is one of several, of which a function chooses one."""

    def __call__(self, state: State) -> bool:
        """Return whether it holds."""
        raise NotImplementedError

    def describe(self, describe_own: Callable[[Predicate], str]) -> str:
        """Return what it tests; `describe_own` puts the users' own functions in words."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.describe(name_of)


def always() -> Predicate:
    """Return a predicate that always holds, like an edge without one."""
    return _Always()


def key_exists(key: str) -> Predicate:
    """Return a predicate that holds if the State has `key`, whatever its value."""
    return _KeyExists(key)


def key_equals(key: str, value: object) -> Predicate:
    """Return a predicate that holds if the State has `key` and its value equals `value`."""
    return _KeyEquals(key, value)


def not_(predicate: Predicate) -> Predicate:
    """Return a predicate that holds if `predicate` does not."""
    return _Not(_checked(predicate))


def and_(*predicates: Predicate) -> Predicate:
    """Return a predicate that holds if all of them do, called in order until one does not."""
    return _Combined("and_", all, tuple(map(_checked, predicates)))


def or_(*predicates: Predicate) -> Predicate:
    """Return a predicate that holds if any of them does, called in order until one does."""
    return _Combined("or_", any, tuple(map(_checked, predicates)))


def predicate_problem(value: object) -> str:
    """Return what keeps a value from being a predicate; empty if nothing does."""
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

    def describe(self, describe_own: Callable[[Predicate], str]) -> str:
        return "always()"


@attrs.frozen(repr=False)
class _KeyExists(LibraryPredicate):
    key: str

    def __call__(self, state: State) -> bool:
        return self.key in state

    def describe(self, describe_own: Callable[[Predicate], str]) -> str:
        return f"key_exists({self.key!r})"


_ABSENT = object()


def _is_same(one: object, other: object) -> bool:
    from stategraph._values.sameness import is_same  # imported when used: edges are compared where one may be twice

    return is_same(one, other)


@attrs.frozen(repr=False)
class _KeyEquals(LibraryPredicate):
    key: str
    value: object = attrs.field(eq=attrs.cmp_using(eq=_is_same), hash=False)  # of any kind, arrays among them

    def __call__(self, state: State) -> bool:
        found = state.get(self.key, _ABSENT)
        return found is not _ABSENT and bool(found == self.value)

    def describe(self, describe_own: Callable[[Predicate], str]) -> str:
        return f"key_equals({self.key!r}, {stable_repr(self.value)})"


@attrs.frozen(repr=False)
class _Not(LibraryPredicate):
    predicate: Predicate

    def __call__(self, state: State) -> bool:
        return not is_true(self.predicate(state))

    def describe(self, describe_own: Callable[[Predicate], str]) -> str:
        return f"not_({describe_predicate(self.predicate, describe_own)})"


@attrs.frozen(repr=False)
class _Combined(LibraryPredicate):
    name: str
    decide: Callable[[Any], bool]
    predicates: tuple[Predicate, ...]

    def __call__(self, state: State) -> bool:
        return self.decide(is_true(predicate(state)) for predicate in self.predicates)

    def describe(self, describe_own: Callable[[Predicate], str]) -> str:
        return f"{self.name}({', '.join(describe_predicate(p, describe_own) for p in self.predicates)})"


# --------------------------------------------------------------------------- in words


def describe_predicate(predicate: Predicate | None, describe_own: Callable[[Predicate], str] = name_of) -> str:
    """Return a predicate in words; `describe_own` puts the users' own functions in words."""
    if predicate is None:
        return "always()"
    if isinstance(predicate, LibraryPredicate):
        return predicate.describe(describe_own)
    return describe_own(predicate)


def stable_repr(value: object) -> str:
    """Return a repr that is the same in every process: sets in order, no addresses."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{stable_repr(key)}: {stable_repr(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple | set | frozenset):
        items = list(map(stable_repr, value))
        opening, closing = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
        return f"{opening}{', '.join(sorted(items) if opening == '{' else items)}{closing}"
    return repr(value) if _is_atom(value) else f"<{type(value).__qualname__}>"


def _is_atom(value: object) -> bool:
    if isinstance(value, str | int | float | None):
        return True
    from stategraph._util.atoms import ATOMS  # imported when used: decimal and pathlib take 5 ms

    return type(value) in ATOMS
