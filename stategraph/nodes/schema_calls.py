"""Functions that take or return an object of their graph's schema."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, closing
from inspect import isawaitable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs

from stategraph._values.registered_types import is_record
from stategraph.nodes._chunks import YieldedObject
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema  # imported when used: cattrs


@attrs.frozen
class Typed:
    """A function as the engine calls it: with a mapping of data.

    A function that takes an object of the schema receives the data as one. A returned object represents the fields that
    differ from the input.

    Attributes:
        function: The function.
        schema: The schema of the objects.
        node: The node, for errors.
        takes_object: Whether the function takes an object.
    """

    function: Callable[..., Any]
    schema: Schema
    node: str
    takes_object: bool

    def __call__(self, data: Mapping[str, Any], *context: Any) -> Any:
        raise NotImplementedError

    def _given(self, data: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """Return the argument, and the values with which to compare the result."""
        if not self.takes_object:
            return data, data
        instance = self.schema.made_of(self.node, data)
        return instance, self.schema.snapshot(instance)

    def _plain(self, result: Any, before: Mapping[str, Any]) -> Any:
        return self.schema.changes(result, before) if isinstance(result, self.schema.cls) else result

    def _yielded(self, chunk: Any, before: Mapping[str, Any]) -> Any:
        return YieldedObject(self._plain(chunk, before)) if isinstance(chunk, self.schema.cls) else chunk


class TypedCall(Typed):
    """A sync function."""

    def __call__(self, data: Mapping[str, Any], *context: Any) -> Any:
        argument, before = self._given(data)
        result = self.function(argument, *context)
        return self._awaited(result, before) if isawaitable(result) else self._plain(result, before)

    async def _awaited(self, result: Any, before: Mapping[str, Any]) -> Any:
        return self._plain(await result, before)


class TypedAsyncCall(Typed):
    """An async function."""

    async def __call__(self, data: Mapping[str, Any], *context: Any) -> Any:
        argument, before = self._given(data)
        return self._plain(await self.function(argument, *context), before)


class TypedGenerator(Typed):
    """A generator function: a yielded object also becomes a mapping of its changes."""

    def __call__(self, data: Mapping[str, Any], *context: Any) -> Generator[Any, None, Any]:
        argument, before = self._given(data)
        with closing(self.function(argument, *context)) as generator:
            while True:
                try:
                    chunk = next(generator)
                except StopIteration as end:
                    return self._plain(end.value, before)
                yield self._yielded(chunk, before)


class TypedAsyncGenerator(Typed):
    """An async generator function."""

    async def __call__(self, data: Mapping[str, Any], *context: Any) -> AsyncGenerator[Any, None]:
        argument, before = self._given(data)
        async with aclosing(self.function(argument, *context)) as generator:
            step: Awaitable[Any] = anext(generator)
            while True:
                try:
                    chunk = self._yielded(await step, before)
                except StopAsyncIteration:
                    return
                try:
                    yield chunk
                    step = anext(generator)
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation, which is for the function
                    step = generator.athrow(error)


KINDS: dict[tuple[bool, bool], type[Typed]] = {
    (False, False): TypedCall,
    (True, False): TypedAsyncCall,
    (False, True): TypedGenerator,
    (True, True): TypedAsyncGenerator,
}
"""The classes, by whether the function is async and whether it is a generator."""


def takes(function: Callable[..., Any], cls: type) -> bool:
    """Return whether the first parameter of a function is annotated with this class."""
    annotation = _annotation(function, cls)
    return (typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation) is cls


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
