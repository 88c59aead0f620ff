"""A function as a node."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, cast, get_args, get_origin

import attrs

from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._util.callables import is_async_callable, is_generator_callable
from stategraph._values.frozen import changed_items, lay_over, plain_key
from stategraph.nodes.base import Node, NodeContext, StepContext
from stategraph.state import S, State, data_of

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema

NodeFunction: TypeAlias = Callable[..., Any]
"""``State -> State | mapping of updates``, sync or async; also with a NodeContext, if it has a parameter for one."""

if TYPE_CHECKING:

    class _OfAttrs(Protocol):
        __attrs_attrs__: ClassVar[Any]

    class _OfFields(Protocol):
        __dataclass_fields__: ClassVar[Any]

    class _OfModel(Protocol):
        def model_dump(self) -> dict[str, Any]: ...

    AnyKeys: TypeAlias = Mapping[str, Any]
    _Object: TypeAlias = _OfAttrs | _OfFields | _OfModel
    _Result: TypeAlias = State[S] | S | AnyKeys
    _Returned: TypeAlias = _Result[S] | Awaitable[_Result[S]] | Iterator[Any] | AsyncIterator[Any]
    OfState: TypeAlias = Callable[[State[S]], _Returned[S]] | Callable[[State[S], NodeContext], _Returned[S]]
    OfObject: TypeAlias = Callable[[S], _Returned[S]] | Callable[[S, NodeContext], _Returned[S]]
    Returned: TypeAlias = _Returned[_Object]
    OfAny: TypeAlias = Callable[[Any], Returned] | Callable[[Any, NodeContext], Returned]


_OF_GRAPH = "graph.as_node() makes a node of a graph"


@attrs.frozen
class FunctionNode(Node):
    """A function as a node, and how to call it.

    Attributes:
        given: The object the user gave as the node.
        function: Called with the State; with a NodeContext after it if `wants_context`.
        is_async: It returns a coroutine, or is an async generator.
        is_generator: It yields chunks.
    """

    given: NodeFunction
    function: NodeFunction
    wants_context: bool
    is_async: bool
    is_generator: bool = False

    @classmethod
    def of(cls, function: NodeFunction, rule: str = "a node is a function of a State: def node(state)") -> FunctionNode:
        """Return the node for a function.

        Args:
            function: The function.
            rule: Says in errors what a function is called with.

        Raises:
            TypeError: it cannot be called with a State, or a State and a NodeContext; the text says why.
        """
        is_graph = hasattr(function, "as_node")
        if not callable(function):
            raise TypeError(f"{shorten(function)} is not callable; {_OF_GRAPH if is_graph else rule}")
        is_generator, is_async = is_generator_callable(function), is_async_callable(function)
        called, further = None, _parameters(function, rule)[1:]
        if further:
            called = _taking_context(function, further)
        return cls(function, called or function, called is not None, is_async, is_generator)

    def bound(self, step: StepContext, part: str = "", attempt: int = 0) -> Callable[[Any], Any]:
        """Return the function, bound to the context of the step or, with `part`, of that part, if it takes one.

        A separately retried part has its own `attempt`.
        """
        function = self.function
        if not self.wants_context:
            return function
        context = step.context(part, attempt)
        return lambda argument: context._journal.returned(function(argument, context))

    def typed(self, name: str, schema: Schema) -> FunctionNode:
        """Return the node with a function that is called with data, and may take and return objects of the schema.

        Raises:
            TypeError: The first parameter is annotated with another class.
        """
        from stategraph.nodes.schema_calls import TypedFunction, takes_object  # imported when used: with a schema

        is_typed = takes_object(self.given, schema)
        if not schema.has_objects:
            return self
        return attrs.evolve(self, function=TypedFunction(self.function, schema, name, is_typed, self.is_generator))

    def made_of(self) -> tuple[Any, ...]:
        return (self.given,)

    def execute(self, step: StepContext) -> Task[Any]:
        """Call the function with the State; if it is a generator, show its chunks."""
        if not self.is_generator and not (self.wants_context and step.emits):
            return (yield from step.call(self.bound(step), step.tracked_state))
        from stategraph.nodes._chunks import take_chunks, take_emitted  # imported when used

        return (yield from (take_chunks if self.is_generator else take_emitted)(step, self))


def data_from(result: object, state: State) -> dict[str, Any]:
    """Return the data of a run after a node received `state` and returned `result`.

    Raises:
        TypeError, ValueError, NotSerializableError: a node must not return this.
    """
    if type(result) is dict:  # the most frequent case; asking for Mapping takes longer
        return lay_over(data_of(state), result)
    if type(result) is State:
        if result.run_id != state.run_id:
            raise ValueError(
                f"it returned a State of run {result.run_id!r}: "
                "make the State to return from the one that was given, with set, update, remove or merge"
            )
        return data_of(result)
    if isinstance(result, Mapping):
        return lay_over(data_of(state), result)
    hint = "; a node without updates returns {}" if result is None else ""
    raise TypeError(
        f"it returned {shorten(result)} ({type(result).__name__}); a node returns a State or a mapping of updates{hint}"
    )


def changes_from(result: object, state: State) -> tuple[dict[str, Any], list[str]]:
    """Return the changes that a node made to `state`, by key, and the keys that it removed.

    Raises:
        TypeError, ValueError, NotSerializableError: a node must not return this.
    """
    before, after = data_of(state), data_from(result, state)
    if isinstance(result, State):
        changed = changed_items(before, after)
    else:
        changed = {key: after[key] for key in map(plain_key, cast(Mapping[str, Any], result))}
    return changed, [key for key in before if key not in after]


def with_changes(state: State, changed: Mapping[str, Any], removed: Iterable[str]) -> State:
    """Return the State with changed keys, and without the removed ones."""
    for key in removed:
        state = state.remove(key) if key in state else state
    return state.update(changed)


def _parameters(function: NodeFunction, rule: str) -> list[inspect.Parameter]:
    """Return the parameters of a function, the first of which takes the State."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature
        return []
    if not parameters or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise TypeError(f"it takes no positional argument; {rule}")
    if parameters[0].name == "self" and len(parameters) > 1:
        raise TypeError("its first parameter is 'self': give the method of an object, not that of its class")
    return parameters


def _taking_context(
    function: Callable[..., Any], further: Sequence[inspect.Parameter]
) -> Callable[[Any, Any], Any] | None:
    """Adapt a function to be called with a State and a NodeContext; None if it takes no context.

    The context goes to the parameter annotated with NodeContext or named ``context``, or to the second positional
    parameter if it has no default.

    Args:
        function: The function.
        further: Its parameters after the first one.

    Raises:
        TypeError: a parameter has no value.
    """
    others = [p for p in further if p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)]
    context = next(filter(_names_context, others), None)
    if context is None and others and others[0].kind is not inspect.Parameter.KEYWORD_ONLY and _is_required(others[0]):
        context = others[0]
    for parameter in others:
        if parameter is not context and _is_required(parameter):
            raise TypeError(
                f"nothing is passed for its parameter {parameter.name!r}: "
                "give it a default, or bind it with functools.partial"
            )
    if context is None:
        return None
    if context is further[0] and context.kind is not inspect.Parameter.KEYWORD_ONLY:
        return function
    return _pass_by_keyword(function, context.name)


def _names_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else ""  # as with "from __future__ import annotations"
    kinds = [get_origin(kind) or kind for kind in (annotation, *get_args(annotation))]
    annotated = NodeContext in kinds or "NodeContext" in named
    return parameter.name == "context" or annotated


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _pass_by_keyword(function: Callable[..., Any], keyword: str) -> Callable[[Any, Any], Any]:
    def call(state: Any, context: NodeContext) -> Any:
        return function(state, **{keyword: context})

    return call
