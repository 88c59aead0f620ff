"""The runs of a store as the pages show them, and the changes and answers that forms make."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import lru_cache, partial
from hashlib import sha256
from itertools import groupby, pairwise
from typing import Any, Literal, get_args, get_origin

import attrs

from stategraph._text.shown import describe_exception, span
from stategraph._values.ids import is_nested_id, step_of
from stategraph._values.progress import Pause
from stategraph._values.provenance import RunStatus
from stategraph._values.registered_types import field_names, field_types, is_record
from stategraph.cli._opening import history_of
from stategraph.cli._output import Exit, Failure, node_text, note_text, number_text
from stategraph.errors import ExecutionError, RunCancelledError
from stategraph.graph import StateGraph
from stategraph.nodes.interrupt import InterruptNode
from stategraph.picture import picture_of_run
from stategraph.picture._run import finished_parts, nested_ids
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
        self._rows = lru_cache(_KEPT)(lambda run_id, _version: history_of(store, run_id))
        self._pictures = lru_cache(_KEPT)(lambda run_id, _version: picture_of_run(store, run_id).to_svg())

    def version(self, run_id: str | None) -> str:
        """Return a text that changes when there may be something new to show."""
        owner = None if run_id is None else self.store.owner(run_id)
        node = None if owner is None else owner.node
        return sha256(f"{self.store.changed_since(None)} {owner} {node}".encode()).hexdigest()[:16]

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

    def nested(self, run: State, shown: Sequence[Summary]) -> list[Summary]:
        """Return the runs nested in these steps of a run. It is for runs with too many nested runs to list."""
        outlines = {} if run.structure is None else run.structure.outlines
        found: list[Summary] = []
        for row in shown:
            node = row.checkpoint_node
            if not row.revision and node in outlines and outlines[node].kind == "graph":
                histories = map(self.store.history, nested_ids(run.run_id, row.step, node, run.generation))
                found += next((rows[-1:] for rows in histories if rows), [])
        return found

    def parts(self, state: State) -> list[str]:
        """Return the finished branches and items of the current step."""
        stands_at, structure = state.error or state.pause, state.structure
        if structure is None:
            return []
        nodes = structure.outlines if stands_at is None else [stands_at.node]
        found = [part for node in nodes for part in finished_parts(structure, self.store, state, node)]
        return sorted(found, key=lambda label: (int(label), "") if label.isdecimal() else (-1, label))


def spans_of(labels: Sequence[str]) -> list[str]:
    """Return labels of parts with consecutive items as ranges: ``0-16``, ``18-29``."""
    items = enumerate(int(label) for label in labels if label.isdecimal())
    runs = [[item for _, item in run] for _, run in groupby(items, lambda placed: placed[1] - placed[0])]
    spans = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return [*(label for label in labels if not label.isdecimal()), *spans]


def nested_by_step(children: Sequence[Summary]) -> dict[int, list[Summary]]:
    """Return nested runs by their steps in the outer run."""
    found: dict[int, list[Summary]] = {}
    for child in children:
        if is_nested_id(child.run_id):
            found.setdefault(step_of(child.run_id), []).append(child)
    return found


# --------------------------------------------------------------------------- the timeline


@attrs.frozen
class Bar:
    """A row of a timeline.

    Attributes:
        row: The checkpoint.
        place: Its place in the history.
        number: Its step, with its revision unless it is the first of that step.
        took: The duration of the step or the wait, for people; empty if it is unknown.
        waits: Whether the run waited.
        left: The left end of the bar, in percent.
        width: The width of the bar, in percent.
        note: A short note.
        nested: The runs nested in the step.
    """

    row: Summary
    place: int
    number: str
    took: str
    waits: bool
    left: str
    width: str
    note: str
    nested: Sequence[Summary] = ()

    @property
    def node(self) -> str:
        """The node of the row."""
        return node_text(self.row)


def bars_of(
    rows: Sequence[Summary], first: int, last: int, nested: Mapping[int, Sequence[Summary]], now: datetime
) -> list[Bar]:
    """Return the bars of the rows of a history from `first` to before `last`."""
    shown = rows[first:last]
    ends = [*(later.timestamp for _, later in pairwise(rows[first : last + 1])), now][: len(shown)]
    spans = [_span_of(row, end) for row, end in zip(shown, ends, strict=True)]
    begin = min(begun for begun, _ in spans)
    whole = max((max(ended for _, ended in spans) - begin).total_seconds(), 1e-6)
    bars = []
    for place, (row, (begun, ended)) in enumerate(zip(shown, spans, strict=True), first):
        seconds = (ended - begun).total_seconds()
        waits = row.pause is not None
        bars.append(
            Bar(
                row,
                place,
                number_text(row),
                span(seconds) if waits or row.took is not None else "",
                waits,
                f"{min((begun - begin).total_seconds() / whole * 100, 99.4):.2f}",
                f"{max(seconds / whole * 100, 0.6):.2f}" if waits or row.took is not None else "0",
                note_text(row),
                () if row.revision else nested.get(row.step, ()),
            )
        )
    return bars


def _span_of(row: Summary, end: datetime) -> tuple[datetime, datetime]:
    """Return when the step or wait of a row began and ended. A wait lasts until the next row."""
    if row.pause is not None:
        return row.timestamp, max(end, row.timestamp)
    return row.began or row.timestamp, row.timestamp


# --------------------------------------------------------------------------- changes


_PATIENCE = 0.5  # seconds to wait for a refusal; the page shows a run at work live instead
_KINDS: dict[Any, str] = {int: "number", float: "number", str: "text"}


@attrs.define
class Change:
    """A change of a run, and its error if it failed.

    Attributes:
        name: Its name, for people.
        leads_to: The run to show afterwards.
        function: Makes the change.
        error: The exception that it raised.
    """

    name: str
    leads_to: str
    function: Callable[[], Any]
    error: Exception | None = None

    def begin(self) -> None:
        """Make the change in a thread, and wait a moment for a refusal."""
        # A daemon thread may die: the next resume continues from the last checkpoint.
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
        """Why the change failed; empty if it succeeded, or if the run itself shows the error."""
        if self.error is None or isinstance(self.error, ExecutionError | RunCancelledError):
            return ""
        return f"{self.name} did not work: {describe_exception(self.error)}"


def change_of(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> Change | None:
    """Return the change of a form; None if its kind is unknown.

    Raises:
        Failure: the form is incomplete.
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
    """Return the step and the revision in a form."""
    step, revision = given.get("step", ""), given.get("revision", "")
    if not all(number.isdecimal() and number.isascii() for number in (step, revision)):
        raise Failure(Exit.USAGE, "the form names no step")
    return int(step), int(revision) or None


def _answer(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a resume with an answer."""
    pause_id, how = given.get("pause", ""), dict[str, Any]()
    if not pause_id:
        raise Failure(Exit.USAGE, "the form names no pause")
    pause = next((pause for pause in (run.pause.each if run.pause else ()) if pause.id == pause_id), None)
    form = None if pause is None else form_of(graph, pause)
    if pause is not None and form is not None:
        how["updates"] = {pause.response_param: form.answer(given)}
    if not how or run.status != RunStatus.CANCELLED:
        how["pause"] = pause_id  # resume refuses the answer if the run waits at another pause
    return how


# --------------------------------------------------------------------------- forms for answers


@attrs.frozen
class Field:
    """A field of a form.

    Attributes:
        name: Its name in the form.
        label: Its label.
        kind: "choice", "number", "text" or "json".
        choices: The choices: pairs of JSON and the text to show.
        is_whole: Whether a number must be an integer.
    """

    name: str
    label: str
    kind: str
    choices: tuple[tuple[str, str], ...] = ()
    is_whole: bool = False


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
        values = {field.label: _value_of(field, given.get(field.name, "")) for field in self.fields}
        return values if self.is_record else values[self.fields[0].label]


def form_of(graph: StateGraph | None, pause: Pause) -> Form | None:
    """Return the form for the answer to a pause, by the schema of its node; None if it needs no value."""
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
        return Field(name, label, "choice", tuple((json.dumps(value), str(value)) for value in get_args(expected)))
    if isinstance(expected, type) and issubclass(expected, Enum):
        return Field(name, label, "choice", tuple((json.dumps(member.value), member.name) for member in expected))
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
