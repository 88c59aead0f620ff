"""Functions that take or return an object of their graph's schema."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs

from stategraph._text.shown import with_article
from stategraph._values.registered_types import is_record
from stategraph.nodes._chunks import ChangesOfObject, TypedGenerator
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema  # imported when used: cattrs


@attrs.frozen
class TypedFunction:
    """A function that takes or returns objects of a schema, as the engine calls it: with a mapping of data.

    A function that takes an object receives the data as one. A returned or yielded object becomes a mapping of the
    fields that differ from the input.

    Attributes:
        function: The function.
        schema: The schema of the objects.
        node: The node, for errors.
        takes_object: Whether the function takes an object.
        is_generator: Whether the function is a generator function.
    """

    function: Callable[..., Any]
    schema: Schema
    node: str
    takes_object: bool
    is_generator: bool

    def __call__(self, data: Mapping[str, Any], *context: Any) -> Any:
        argument, before = data, data
        if self.takes_object:
            argument = self.schema.made_of(self.node, data)
            before = self.schema.snapshot(argument)
        result = self.function(argument, *context)
        if self.is_generator:
            return TypedGenerator(result, functools.partial(self._without_object, before))
        if isawaitable(result):
            return self._awaited(result, before)
        return self._without_object(before, result)

    async def _awaited(self, result: Awaitable[Any], before: Mapping[str, Any]) -> Any:
        return self._without_object(before, await result)

    def _without_object(self, before: Mapping[str, Any], result: Any) -> Any:
        if isinstance(result, self.schema.cls):
            return ChangesOfObject(self.schema.changes(result, before))
        return result


def takes_object(function: Callable[..., Any], schema: Schema) -> bool:
    """Return whether the first parameter of a function is annotated with the class of the schema, or a base of it.

    Raises:
        TypeError: It is annotated with a class of which neither an object of the schema nor a State is an instance.
    """
    annotation = _annotation(function, schema.cls)
    cls: Any = typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
    if typing.is_typeddict(cls):
        is_refused = not cls.__annotations__.keys() <= schema.fields.keys()
    elif _accepts_states(cls):
        return False
    else:
        is_refused = not schema.has_objects or not issubclass(schema.cls, cls)
    if is_refused:
        raise TypeError(
            f"it takes {with_article(cls.__name__)}, and the schema of the graph is {schema.name}: "
            f"annotate it with {schema.name} or State"
        )
    return schema.has_objects and not typing.is_typeddict(cls)


def _accepts_states(annotation: Any) -> bool:
    """Return whether a State may be passed for an annotation, as far as it can be known."""
    is_open = not isinstance(annotation, type) or annotation in (Any, inspect.Parameter.empty)
    if is_open or getattr(annotation, "_is_protocol", False):
        return True
    return issubclass(State, annotation) or issubclass(annotation, Mapping)


def object_class(function: Callable[..., Any]) -> type | None:
    """Return the attrs class or dataclass that annotates the first parameter of a function; otherwise None."""
    annotation = _annotation(function, State)
    return annotation if is_record(annotation) and not issubclass(annotation, Mapping) else None


def _annotation(function: Callable[..., Any], cls: type) -> Any:
    """Return the annotation of the first parameter of a function; None if there is none."""
    try:
        annotation = next(iter(inspect.signature(function).parameters.values())).annotation
    except (ValueError, StopIteration):  # some builtins have no signature
        return None
    return _resolved(annotation, function, cls) if isinstance(annotation, str) else annotation


def _resolved(annotation: str, function: Any, cls: type) -> Any:
    """Resolve one annotation. Others stay unresolved: they may name objects that exist for type checkers only."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        alone = SimpleNamespace(__annotations__={"it": annotation})
        return typing.get_type_hints(alone, names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - a name local to a function, or known to type checkers only
        return cls if annotation.strip("'\" ").rpartition(".")[2] == cls.__name__ else annotation
