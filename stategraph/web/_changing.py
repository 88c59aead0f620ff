"""Changes: what the forms of a page do with a run, each in a thread of its own, and the forms that answer a pause."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Literal, get_args, get_origin

import attrs

from stategraph._text.shown import describe_exception
from stategraph._values.progress import Pause
from stategraph._values.provenance import RunStatus
from stategraph._values.registered_types import field_names, field_types, is_record
from stategraph.cli._output import Exit, Failure
from stategraph.errors import ExecutionError, RunCancelledError
from stategraph.graph import StateGraph
from stategraph.nodes.interrupt import InterruptNode
from stategraph.stores.summaries import Summary

_PATIENCE = 0.5  # seconds in which most refusals are known; a run that is at work is shown live instead
_KINDS: dict[Any, str] = {int: "number", float: "number", str: "text"}


@attrs.define
class Change:
    """What a form asks for, and what came of it.

    Attributes:
        name: What it is, for people.
        leads_to: The run that is shown afterwards.
        function: Does it.
        error: Why it did not work.
    """

    name: str
    leads_to: str
    function: Callable[[], Any]
    error: Exception | None = None

    def begin(self) -> None:
        """Do it in a thread, and wait for a moment, in which it may be refused."""
        # A daemon: what is saved is saved, and the next resume goes on from there.
        thread = threading.Thread(target=self._do, name=f"stategraph-ui-{self.leads_to}", daemon=True)
        thread.start()
        thread.join(_PATIENCE)

    def _do(self) -> None:
        try:
            self.function()
        except Exception as error:  # noqa: BLE001 - the page shows it
            self.error = error

    @property
    def problem(self) -> str:
        """Why it did not work; empty if it did, or if the run itself shows why."""
        if self.error is None or isinstance(self.error, ExecutionError | RunCancelledError):
            return ""
        return f"{self.name} did not work: {describe_exception(self.error)}"


def change_of(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> Change | None:
    """Return the change that a form asks for; None if there is no such change.

    Raises:
        Failure: the form lacks something.
        ValueError: an answer does not fit.
    """
    run_id, by = run.run_id, given.get("by", "").strip() or None
    match given.get("do"):
        case "answer":
            return Change("To answer", run_id, partial(graph.resume, run_id, by=by, **_answer(graph, run, given)))
        case "resume":
            return Change("To resume", run_id, partial(graph.resume, run_id, by=by))
        case "cancel":
            return Change("To cancel", run_id, partial(graph.cancel, run_id, by=by))
        case "fork":
            new = given.get("new", "").strip()
            return Change("To fork", new, partial(graph.store.fork, run_id, new, *_step(given)))
        case "rollback":
            return Change("To roll back", run_id, partial(graph.store.rollback, run_id, *_step(given), by=by))
    return None


def _step(given: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the step and the revision that a form is about."""
    step, revision = given.get("step", ""), given.get("revision", "")
    if not all(number.isdecimal() and number.isascii() for number in (step, revision)):
        raise Failure(Exit.USAGE, "the form names no step")
    return int(step), int(revision) or None


def _answer(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of the resume that gives an answer."""
    pause_id, how = given.get("pause", ""), dict[str, Any]()
    if not pause_id:
        raise Failure(Exit.USAGE, "the form names no pause")
    pause = next((pause for pause in (run.pause.each if run.pause else ()) if pause.id == pause_id), None)
    form = None if pause is None else form_of(graph, pause)
    if pause is not None and form is not None:
        how["updates"] = {pause.response_param: form.answer(given)}
    if not how or run.status != RunStatus.CANCELLED:
        how["pause"] = pause_id  # that of another pause is refused, with what came of the one that was meant
    return how


# --------------------------------------------------------------------------- forms


@attrs.frozen
class Field:
    """One thing to fill in.

    Attributes:
        name: Its name in the form.
        label: What it is called.
        kind: "choice", "number", "text" or "json".
        choices: What can be chosen: text of JSON, and what is shown for it.
        is_whole: Whether a number has no fraction.
    """

    name: str
    label: str
    kind: str
    choices: tuple[tuple[str, str], ...] = ()
    is_whole: bool = False


@attrs.frozen
class Form:
    """What a pause asks for.

    Attributes:
        fields: What is to be filled in.
        is_record: Whether the answer is a dict of the fields rather than the one field.
    """

    fields: tuple[Field, ...]
    is_record: bool = False

    def answer(self, given: Mapping[str, str]) -> Any:
        """Return the answer of a form that was filled in.

        Raises:
            ValueError: a field does not hold what it should.
        """
        values = {field.label: _value_of(field, given.get(field.name, "")) for field in self.fields}
        return values if self.is_record else values[self.fields[0].label]


def form_of(graph: StateGraph | None, pause: Pause) -> Form | None:
    """Return the form for the answer to a pause, by the schema of its node; None if to go on is answer enough."""
    if pause.response_param is None:
        return None
    node = None if graph is None else graph.nodes.get(pause.node)
    schema = node.schema if isinstance(node, InterruptNode) else None
    names = field_names(schema) if is_record(schema) else ()
    if names:
        types = field_types(schema)
        return Form(tuple(_field(f"answer.{name}", name, types.get(name)) for name in names), is_record=True)
    return Form((_field("answer", pause.response_param, schema),))


def _field(name: str, label: str, expected: Any) -> Field:
    if expected is bool:
        return Field(name, label, "choice", (("true", "yes"), ("false", "no")))
    if get_origin(expected) is Literal:
        return Field(name, label, "choice", tuple((json.dumps(one), str(one)) for one in get_args(expected)))
    if isinstance(expected, type) and issubclass(expected, Enum):
        return Field(name, label, "choice", tuple((json.dumps(one.value), one.name) for one in expected))
    return Field(name, label, _KINDS.get(expected, "json"), (), expected is int)


def _value_of(field: Field, text: str) -> Any:
    if field.kind == "text":
        return text
    if field.kind == "number":
        try:
            return int(text) if field.is_whole else float(text)
        except ValueError:
            raise ValueError(f"{field.label}: {text[:100]!r} is no number") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if field.kind == "choice":
            raise ValueError(f"{field.label}: nothing was chosen") from None
        return text
