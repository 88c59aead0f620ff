"""NodeContext: a node's view of its current step; and detecting the functions that take one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, get_args

import attrs

from stategraph._values.ids import escaped, nested_id

LONGEST_KEY = 255
"""Maximum characters of an idempotency key: the limit of services such as Stripe."""


@attrs.frozen
class NodeContext:
    """The current step, for a node that takes a context.

    Attributes:
        run_id: The run.
        graph: The name of the graph, from its config.
        node: The node.
        step: The number of the step once it is completed (the first one is 1).
        attempt: The number of the attempt of this step, from 1; for a separately retried item, of the item.
        generation: How often the run was rolled back.
        part: The branch, or the number of the item, if the node has several; otherwise empty.
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
    )  # of a node that was renamed during its step
    _is_stopping: Callable[[], bool] = attrs.field(default=bool, kw_only=True, eq=False, repr=False)
    _outermost: str = attrs.field(default="", kw_only=True, eq=False, repr=False)  # the graph around a nested run

    @property
    def cancelled(self) -> bool:
        """Whether the run should stop: it was cancelled, or the timeout of the call has passed.

        A long-running node checks it now and then, and returns early or raises. It is always false in a process of
        `ParallelNode` or `MapNode`.
        """
        return self._is_stopping()

    @property
    def idempotency_key(self) -> str:
        """The same key whenever this step is repeated, even after a crash, and a different key for every other step.

        Pass it to services that do an operation once per key, such as payments. It contains the graph, the run, the
        step and the node (and the part), as in ``orders/order-1/#3/pay``; in a nested run, the outermost graph and the
        path from there, as in ``orders/order-1/#3/pay/#1/charge``. Names are percent-encoded except for the characters
        ``A-Z a-z 0-9 . _ ~ -``. It is ASCII and has at most 255 characters: the end of a longer key is replaced by
        ``##`` and the SHA-256 of the whole key. Two stores with runs of the same id and graph give the same keys, and
        so does a run that is deleted and begun again under its id.
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
    """Adapt a function to be called with a State and a NodeContext; None if it takes no context.

    The context goes to the parameter annotated with NodeContext or named ``context``, or to the second positional
    parameter if it has no default.

    Args:
        function: The function.
        further: Its parameters after the first one.

    Raises:
        TypeError: a parameter has no value.
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
    """Bind a function to its context; the result of an async function is still recognized as async."""
    if not is_async:
        return lambda argument: function(argument, context)

    async def awaited(argument: Any) -> Any:
        return await function(argument, context)

    return awaited


def _names_context(parameter: Parameter) -> bool:
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else ""  # as with "from __future__ import annotations"
    annotated = annotation is NodeContext or NodeContext in get_args(annotation) or "NodeContext" in named
    return parameter.name == "context" or annotated


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty


def _pass_by_keyword(function: Callable[..., Any], keyword: str) -> Callable[[Any, Any], Any]:
    def call(state: Any, context: NodeContext) -> Any:
        return function(state, **{keyword: context})

    return call
