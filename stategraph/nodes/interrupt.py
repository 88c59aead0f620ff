"""InterruptNode: a step that waits for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from stategraph._protocol import Task
from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import answered, check_function, problem_of
from stategraph._util.validators import LONGEST_WAIT, is_seconds, naming_arguments
from stategraph._values import clock
from stategraph._values.progress import DEADLINE, Answer, NodeOutline, Structures
from stategraph.nodes.base import NOTHING, Node, StepContext, check_key
from stategraph.state import goes_on

if TYPE_CHECKING:
    from types import GenericAlias, UnionType
    from typing import _SpecialForm

    Form: TypeAlias = Callable[..., Any] | UnionType | GenericAlias | _SpecialForm


def _is_optional_function(node: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        check_function(attribute.name, value, 2 if problem_of(value, 1) else 1, "the answer")


_NOT_ASKED = (
    "The key was in the State before the run paused, and its value counts as the answer (take_given=True): take a "
    "response_param that nothing else sets, or remove the key before this node"
)


@naming_arguments()
@attrs.frozen
class InterruptNode(Node):
    """Pauses the run until it is answered.

    The run is saved with status paused, and `State.pause` shows the value of `input_param`; `execute` returns.
    ``graph.resume(run_id, {response_param: answer})`` continues it. A value that the key had before is no answer,
    unless `take_given` is true.

    Args:
        input_param: The key of the value shown to the person; None to show nothing.
        response_param: The key of the answer.
        reason: Why the run waits, for people.
        schema: A type that the answer must fit, by the rules of a graph's schema; other answers are refused.
        validator: A sync function of the answer. False or an exception refuses it, True or None accepts it. Any other
            result is an error of the validator. If it requires a second argument, that is the `Answer` with its author
            and time; None for a value that was there before the pause.
        deadline: Seconds from the pause in which it can be answered; None for no limit.
        otherwise: The answer once the deadline has passed. Without it the node then fails with a TimeoutError: a
            resumed run continues at its `on_error` or fails; resumed once more, it pauses again.
        take_given: Whether a value that the key has before the run pauses, from any source, is an answer as well. Each
            value answers once: a later step of this node pauses again.

    Raises:
        TypeError, ValueError: an argument is invalid, or `otherwise` is an answer that is refused.
    """

    input_param: str | None = attrs.field()
    response_param: str = attrs.field()
    reason: str = attrs.field(default="waits for an answer", kw_only=True)
    schema: Form | None = attrs.field(default=None, kw_only=True)
    validator: Callable[..., object] | None = attrs.field(default=None, kw_only=True, validator=_is_optional_function)
    deadline: float | None = attrs.field(default=None, kw_only=True)
    otherwise: Any = attrs.field(default=NOTHING, kw_only=True)
    take_given: bool = attrs.field(default=False, kw_only=True, validator=attrs.validators.instance_of(bool))

    pauses = True

    def __attrs_post_init__(self) -> None:
        if self.input_param is not None:
            check_key("input_param", self.input_param)
        check_key("response_param", self.response_param)
        if self.schema is not None:
            self._check_schema()
        seconds = self.deadline
        if seconds is not None and not (is_seconds(seconds) and seconds <= LONGEST_WAIT):
            allowed = f"a number of seconds above 0, and up to {LONGEST_WAIT:,}, is"
            raise ValueError(f"deadline: {shorten(seconds)} is not allowed; {allowed}")
        if seconds is None and self.otherwise is not NOTHING:
            raise ValueError("otherwise is the answer once a deadline has passed; give a deadline, too")
        if self.otherwise is not NOTHING:
            self.accepted(self.otherwise, Answer(self.otherwise, None, clock.to_datetime(clock.now_ns()), DEADLINE))

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        """The key of the shown value."""
        return frozenset([] if self.input_param is None else [self.input_param])

    @property
    def writes(self) -> frozenset[str]:  # type: ignore[override]
        """The key of the answer."""
        return frozenset([self.response_param])

    @property
    def asks_for(self) -> frozenset[str]:  # type: ignore[override]
        """The key of the answer."""
        return self.writes

    def outline(self, others: Structures) -> NodeOutline:
        return NodeOutline("pause", (f"asks for {self.response_param}",))

    def execute(self, step: StepContext) -> Task[Any]:
        """Use the answer, or pause."""
        state, key = step.state, self.response_param
        if step.is_answer(key, also_given=self.take_given):
            try:
                is_given = not step.is_answer(key)
                answer = self.accepted(state[key], None if is_given else step.context().answer)
            except ValueError as error:
                if not is_given:  # it was valid when it came
                    raise
                raise ValueError(f"{error}. {_NOT_ASKED}") from error
            step.take_answers([key])
            return {key: answer}
        if self.input_param is not None and self.input_param not in state:
            raise KeyError(f"its input_param {self.input_param!r} is not in the State")
        shown = None if self.input_param is None else state[self.input_param]
        yield from ()
        paused = state.paused(self.reason, shown, response_param=key, deadline=self.deadline)
        return paused if self.otherwise is NOTHING else goes_on(paused)

    def accepted(self, answer: Any, about: Answer | None = None) -> Any:
        """Return the answer. Raises ValueError if it is refused."""
        if self.schema is not None:
            answer = self._structured(answer)
        if self.validator is None:
            return answer
        try:
            further = [about] if problem_of(self.validator, 1) else []
            verdict = answered(self.validator(answer, *further), "its validator")
        except Exception as error:
            raise ValueError(f"{self.response_param!r}: {shorten(answer)}: {describe_exception(error)}") from error
        if verdict is False:
            raise ValueError(f"{self.response_param!r}: {shorten(answer)} is refused by its validator")
        if verdict is not True and verdict is not None:
            raise ValueError(f"{self.response_param!r}: its validator returned {shorten(verdict)}, which is no bool")
        return answer

    def _check_schema(self) -> None:
        from stategraph._schema.structuring import hook_for  # imported when used: cattrs takes 60 ms

        try:
            hook_for(self.schema)
        except Exception as error:
            raise TypeError(f"schema: answers cannot be checked by {shorten(self.schema)}: {error}") from error

    def _structured(self, answer: Any) -> Any:
        from stategraph._schema.structuring import structured  # imported when used: cattrs takes 60 ms

        return structured(self.response_param, answer, self.schema)
