"""The runs of a store as the pages show them, and the changes and answers that forms make."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from datetime import datetime
from enum import Enum
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Literal, get_args, get_origin

import attrs

from stategraph._text.shown import span
from stategraph._values.ids import is_nested_id, step_of
from stategraph._values.progress import Pause
from stategraph._values.provenance import RunStatus
from stategraph._values.registered_types import field_names, field_types, is_record
from stategraph.cli._opening import history_of
from stategraph.cli._options import parsed_value
from stategraph.cli._output import Exit, Failure
from stategraph.errors import ExecutionError, RunBusyError, RunCancelledError, RunCompleteError
from stategraph.graph import StateGraph
from stategraph.nodes.interrupt import InterruptNode
from stategraph.picture import picture_of_run
from stategraph.picture._run import finished_parts
from stategraph.state import State
from stategraph.stores.base import CheckpointStore
from stategraph.stores.summaries import Difference, Summary

_KEPT = 8  # cached histories and pictures: paging through a long run reads it once


class Reader:
    """Reads a store for pages. It runs nothing.

    Args:
        store: The store.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self.problems: dict[str, str] = {}  # errors of changes by runs, if the error came after the answer to the form
        self._rows = lru_cache(_KEPT)(lambda run_id, _version: history_of(store, run_id))
        self._pictures = lru_cache(_KEPT)(lambda run_id, _version: picture_of_run(store, run_id).to_svg())

    def version(self, run_id: str | None) -> str:
        """Return a text that changes when there may be something new to show."""
        owner = None if run_id is None else self.store.owner(run_id)
        node = None if owner is None else owner.node
        text = f"{self.store.changed_since(None)} {owner} {node} {self.problems.get(run_id or '')}"
        return sha256(text.encode()).hexdigest()[:16]

    def rows(self, run_id: str) -> Sequence[Summary]:
        """Return the history of a run. Raise CheckpointNotFoundError if there is no such run."""
        return self._rows(run_id, f"{self.store.changed_since(None, run_id)} {self.store.owner(run_id)}")

    def picture(self, run_id: str) -> str:
        """Return the picture of a run as SVG. A nested run may change it while the outer run does not."""
        return self._pictures(run_id, self.version(run_id))

    def state(self, rows: Sequence[Summary], place: int) -> State:
        """Return the State of a row of a history. Its revision lets the store find it without reading all rows."""
        row = rows[place]
        if place == len(rows) - 1:
            return self.store.load(row.run_id)
        return self.store.load(row.run_id, row.step, row.revision)

    def difference(self, rows: Sequence[Summary], place: int, state: State) -> Difference:
        """Return the differences of a State from the one before it in a history."""
        if not place:
            return Difference(dict(state.items()), {}, {})
        return Difference.between(self.state(rows, place - 1), state)

    def nested(self, run_id: str, rows: Sequence[Summary]) -> dict[int, list[Summary]]:
        """Return the runs nested in the steps of these rows, by their steps."""
        steps = {row.step for row in rows}
        found: dict[int, list[Summary]] = {}
        for child in self.store.iter_runs(parent=run_id):
            if is_nested_id(child.run_id) and step_of(child.run_id) in steps:
                found.setdefault(step_of(child.run_id), []).append(child)
        return found

    def parts(self, state: State) -> list[str]:
        """Return the finished branches and items of the current step."""
        stands_at, structure = state.error or state.pause, state.structure
        if structure is None:
            return []
        nodes = structure.outlines if stands_at is None else [stands_at.node]
        found = [part for node in nodes for part in finished_parts(structure, self.store, state, node)]
        return sorted(found, key=lambda label: (int(label), "") if label.isdecimal() else (-1, label))


# --------------------------------------------------------------------------- the timeline


@attrs.frozen
class Bar:
    """A row of a timeline.

    Attributes:
        row: The checkpoint.
        place: Its place in the history.
        took: The duration of the step or the wait, for people; empty if it is unknown.
        waits: Whether the run waited.
        left: The left end of the bar, in percent.
        width: The width of the bar, in percent.
        nested: The runs nested in the step.
    """

    row: Summary
    place: int
    took: str
    waits: bool
    left: str
    width: str
    nested: Sequence[Summary]


def bars_of(
    rows: Sequence[Summary], first: int, last: int, nested: Mapping[int, Sequence[Summary]], now: datetime
) -> list[Bar]:
    """Return the bars of the rows of a history from `first` to before `last`."""
    shown = rows[first:last]
    ends = [*(row.timestamp for row in rows[first + 1 : last + 1]), now]
    spans = [_span_of(row, end) for row, end in zip(shown, ends, strict=False)]
    begin = min(begun for begun, _ in spans)
    whole = max((max(ended for _, ended in spans) - begin).total_seconds(), 1e-6)
    bars = []
    for place, (row, (begun, ended)) in enumerate(zip(shown, spans, strict=True), first):
        seconds, waits = (ended - begun).total_seconds(), row.pause is not None
        left = f"{min((begun - begin).total_seconds() / whole * 100, 99.4):.2f}"
        took, width = span(seconds), f"{max(seconds / whole * 100, 0.6):.2f}"
        if row.took is None and not waits:
            took, width = "", "0"
        bars.append(Bar(row, place, took, waits, left, width, () if row.revision else nested.get(row.step, ())))
    return bars


def _span_of(row: Summary, end: datetime) -> tuple[datetime, datetime]:
    """Return when the step or wait of a row began and ended. A wait lasts until the next row."""
    if row.pause is not None:
        return row.timestamp, max(end, row.timestamp)
    return row.began or row.timestamp, row.timestamp


# --------------------------------------------------------------------------- changes


_PATIENCE = 0.5  # seconds to wait for a refusal; the page shows a run at work live instead


def begin(change: Callable[[], Any], report: Callable[[Any], None]) -> None:
    """Make a change in a thread, and wait a moment for a refusal. Raise the error of the change.

    After that moment, report the error instead, or None.
    """
    done: Future[Any] = Future()

    def work() -> None:
        try:
            done.set_result(change())
        except (ExecutionError, RunCancelledError):  # the run shows these errors
            done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised below
            done.set_exception(error)

    # A daemon thread may die: the next resume continues from the last checkpoint. The run needs its registered types,
    # so it is not in the context of the page, where unknown values are shown.
    threading.Thread(target=Context().run, args=(work,), name="stategraph-ui", daemon=True).start()
    try:
        done.result(_PATIENCE)
    except TimeoutError:
        done.add_done_callback(lambda done: report(done.exception()))


def change_of(
    graph: StateGraph, run: Summary, given: Mapping[str, str], allow_changed: bool, migrate: Mapping[str, str]
) -> tuple[Callable[[], Any], str] | None:
    """Return the change of a form, and the run to show afterwards; None if its kind is unknown.

    Raises:
        Failure: the form is incomplete.
        ValueError: an answer does not fit.
    """
    run_id, by = run.run_id, given.get("by", "").strip() or None
    resume = partial(graph.resume, run_id, by=by, allow_changed=allow_changed, migrate=migrate)
    match given.get("do"):
        case "answer":
            how = _answer(graph, run, given, migrate)
            if run.status is not RunStatus.PAUSED or not graph.store.keeps_entries:
                return partial(resume, **how), run_id
            value = next(iter(how.pop("updates", {}).values()), None)
            about: Any = {"by": by, "allow_changed": allow_changed, "migrate": migrate}
            answer = partial(graph.answer, run_id, value, **how, **about)
            return partial(_go_on_after, answer, partial(resume, by=None)), run_id
        case "send":
            message = {given.get("key", "").strip(): parsed_value(given.get("value", ""))}
            return partial(graph.send, run_id, message, by=by), run_id
        case "resume":
            return resume, run_id
        case "cancel":
            return partial(graph.cancel, run_id, by=by), run_id
        case "fork":
            new = given.get("new", "").strip()
            return partial(graph.store.fork, run_id, new, *_step(given)), new
        case "rollback":
            return partial(graph.store.rollback, run_id, *_step(given), by=by), run_id
    return None


def _go_on_after(answer: Callable[[], None], resume: Callable[[], Any]) -> None:
    """Store an answer and continue the run, unless another call does."""
    answer()
    with suppress(RunBusyError, RunCompleteError):
        resume()


def _step(given: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the step and the revision in a form."""
    step, revision = given.get("step", ""), given.get("revision", "")
    if not all(number.isdecimal() and number.isascii() and len(number) < 12 for number in (step, revision)):
        raise Failure(Exit.USAGE, "the form names no step")
    return int(step), int(revision) or None


def _answer(graph: StateGraph, run: Summary, given: Mapping[str, str], migrate: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a resume with an answer."""
    pause_id = given.get("pause", "")
    if not pause_id:
        raise Failure(Exit.USAGE, "the form names no pause")
    how: dict[str, Any] = {"pause": pause_id}  # resume refuses the answer if the run waits at another pause
    pause = next((pause for pause in (run.pause.each if run.pause else ()) if pause.id == pause_id), None)
    form = None if pause is None else form_of(graph, pause, migrate.get(pause.node))
    if pause is not None and form is not None:
        how["updates"] = {pause.response_param: form.answer(given)}
    return how


# --------------------------------------------------------------------------- forms for answers


_READ: dict[str, Callable[[str], Any]] = {
    "choice": json.loads,
    "int": int,
    "float": float,
    "str": str,
    "json": parsed_value,
}
"""How the text of a field is read, by its kind."""


@attrs.frozen
class Field:
    """A field of a form.

    Attributes:
        name: Its name in the form.
        label: Its label.
        kind: "choice", "int", "float", "str" or "json".
        choices: The choices: JSON, and the text to show.
    """

    name: str
    label: str
    kind: str
    choices: Mapping[str, str]

    @classmethod
    def of(cls, name: str, label: str, expected: Any) -> Field:
        """Return the field for values of a type."""
        choices = {}
        if expected is bool:
            choices = {"true": "yes", "false": "no"}
        elif get_origin(expected) is Literal:
            choices = {json.dumps(value): str(value) for value in get_args(expected)}
        elif isinstance(expected, type) and issubclass(expected, Enum):
            choices = {json.dumps(member.value): member.name for member in expected}
        kind = expected.__name__ if expected in (int, float, str) else "json"
        return cls(name, label, "choice" if choices else kind, choices)

    def value(self, given: Mapping[str, str]) -> Any:
        """Return its value in a submitted form."""
        text = given.get(self.name, "")
        try:
            return _READ[self.kind](text)
        except ValueError:
            raise ValueError(f"{self.label}: {text[:100]!r} does not fit") from None


@attrs.frozen
class Form:
    """The form for the answer to a pause.

    Attributes:
        fields: Its fields.
        is_record: Whether the answer is a dict of all fields, and not the value of the only field.
    """

    fields: tuple[Field, ...]
    is_record: bool = False

    def answer(self, given: Mapping[str, str]) -> Any:
        """Return the answer in a submitted form.

        Raises:
            ValueError: the value of a field does not fit.
        """
        if self.is_record:
            return {field.label: field.value(given) for field in self.fields}
        return self.fields[0].value(given)


def form_of(graph: StateGraph | None, pause: Pause, renamed: str | None = None) -> Form | None:
    """Return the form for the answer to a pause; None if it needs no value.

    Args:
        graph: The graph, whose node has the schema; None if it is unknown.
        pause: The pause.
        renamed: The new name of the node, if it has one.
    """
    if pause.response_param is None:
        return None
    name = renamed or pause.node
    node = None if graph is None else graph.nodes.get(name) or graph.nodes.get(graph._name_now(name))
    schema = node.schema if isinstance(node, InterruptNode) else None
    names = field_names(schema) if is_record(schema) else ()
    if not names:
        return Form((Field.of("answer", pause.response_param, schema),))
    types = field_types(schema)
    return Form(tuple(Field.of(f"answer.{name}", name, types.get(name)) for name in names), is_record=True)
