"""NodeContext: what a node may know of the step it is making, and which functions are given one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, get_args

import attrs

from stategraph._values.ids import escaped, nested_id

LONGEST_KEY = 255
"""Characters of an idempotency key: what services take that limit them, such as Stripe."""


@attrs.frozen
class NodeContext:
    """The step that is being made, for a node that asks for it.

    Attributes:
        run_id: The run.
        graph: The name of the graph, from its config.
        node: The node.
        step: The number that the step will have once it is completed (the first one is 1).
        attempt: Which try of this step it is, from 1; of an item that is tried again by itself, which try of that.
        generation: How often the run was rolled back.
        part: The branch, or the number of the item, where the node has several; else empty.
    """

    run_id: str
    graph: str
    node: str
    step: int
    attempt: int = 1
    generation: int = 0
    part: str = ""
    _kept_name: str = attrs.field(
        default="", kw_only=True, eq=False, repr=False
    )  # of a node that was renamed while its step was open
    _is_stopping: Callable[[], bool] = attrs.field(default=bool, kw_only=True, eq=False, repr=False)
    _outermost: str = attrs.field(default="", kw_only=True, eq=False, repr=False)  # the graph around a nested run

    @property
    def cancelled(self) -> bool:
        """Whether the run is to stop: it was cancelled, or the time of the call is up. A node that takes long asks now
        and then, and returns early or raises. It is false in a process of `ParallelNode` or `MapNode`.
        """
        return self._is_stopping()

    @property
    def idempotency_key(self) -> str:
        """The same whenever this step is repeated, after a crash too, and different for every other step.

        Hand it to services that do a thing once for each key, such as payments. It tells the graph, the run, the step
        and the node (and the part), as ``orders/order-1/#3/pay``; of a nested run, the outermost graph and the way from
        there, as ``orders/order-1/#3/pay/#1/charge``. Names are percent-encoded where they hold anything else than
        ``A-Z a-z 0-9 . _ ~ -``. It is ASCII and has at most 255 characters: the end of a longer one is replaced by
        ``##`` and the SHA-256 of all of it. Two stores with runs of the same id and graph give the same keys, and so
        does a run that is deleted and begun anew under its id.
        """
        kept = nested_id(self.run_id, self.step, self._kept_name or self.node, self.generation)
        part = f"/{escaped(self.part)}" if self.part else ""
        return _shortened(f"{escaped(self._outermost or self.graph)}/{kept}{part}")


def _shortened(key: str) -> str:
    if len(key) <= LONGEST_KEY:
        return key
    import hashlib  # imported when used

    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{key[: LONGEST_KEY - len(digest) - 2]}##{digest}"  # no other key has ## in it


def taking_context(function: Callable[..., Any], further: Sequence[Parameter]) -> Callable[[Any, Any], Any] | None:
    """Return a function as one that is called with a State and a NodeContext; None if it takes no context.

    The parameter that takes it is annotated with NodeContext or named ``context``, or the second positional one without
    a default.

    Args:
        function: The function.
        further: Its parameters after the first one.

    Raises:
        TypeError: something is missing for a parameter.
    """
    others = [p for p in further if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    context = next(filter(_names_context, others), None)
    if context is None and others and others[0].kind is not Parameter.KEYWORD_ONLY and _is_required(others[0]):
        context = others[0]
    for parameter in others:
        if parameter is not context and _is_required(parameter):
            raise TypeError(
                f"nothing is passed for its parameter {parameter.name!r}: "
                "give it a default, or bind it with functools.partial"
            )
    if context is None:
        return None
    if context is further[0] and context.kind is not Parameter.KEYWORD_ONLY:
        return function
    return _pass_by_keyword(function, context.name)


def bound(function: Callable[[Any, Any], Any], context: NodeContext, *, is_async: bool) -> Callable[[Any], Any]:
    """Return a function with its context; an async one is still seen to be async."""
    if not is_async:
        return lambda argument: function(argument, context)

    async def awaited(argument: Any) -> Any:
        return await function(argument, context)

    return awaited


def _names_context(parameter: Parameter) -> bool:
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else ""  # as it is with "from __future__ import annotations"
    annotated = annotation is NodeContext or NodeContext in get_args(annotation) or "NodeContext" in named
    return parameter.name == "context" or annotated


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty


def _pass_by_keyword(function: Callable[..., Any], keyword: str) -> Callable[[Any, Any], Any]:
    def call(state: Any, context: NodeContext) -> Any:
        return function(state, **{keyword: context})

    return call
