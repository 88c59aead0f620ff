"""The output of commands: tables for people, lines with tabs for pipes, JSON, messages of errors, and exit codes."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from stategraph import errors
from stategraph._text.shown import SHORT, clean, cut, failure_text, one_line, span
from stategraph._values.provenance import Kind, Owner
from stategraph.stores.serializers import plain

if TYPE_CHECKING:
    from stategraph.state import State
    from stategraph.stores.summaries import Difference, Summary, UnderWay

Cell: TypeAlias = str | tuple[str, str]
"""A text, or a pair of a text and its style."""

STYLES = {"active": "blue", "paused": "yellow", "completed": "green", "failed": "red", "cancelled": "magenta"}
"""The styles of statuses."""


def status_cell(run: Summary | State) -> Cell:
    """Return the status of a run with its style."""
    return str(run.status), STYLES[run.status]


_LONGEST = 2_000
"""How many characters of a cell are shown."""


# --------------------------------------------------------------------------- the screen


class Screen:
    """Writes the output of a command to stdout.

    Args:
        is_json: Whether to write JSON.
    """

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json
        self.is_terminal = sys.stdout.isatty()
        self._lock = threading.Lock()  # lines of several threads stay whole

    def document(self, value: Any) -> None:
        """Write a JSON document, on one line except on a terminal. It is ASCII, so it cannot control the terminal."""
        print(json.dumps(value, indent=2 if self.is_terminal else None))

    def record(self, value: Any) -> None:
        """Write one line of JSON and flush it."""
        with self._lock:
            print(json.dumps(value), flush=True)

    def line(self, *cells: Cell) -> None:
        """Write a line and flush it."""
        with self._lock:
            if not self.is_terminal:
                print("".join(_styled(cell)[0] for cell in cells), flush=True)
                return
            from rich.text import Text  # imported when used, as below: rich takes 60 ms

            self._console().print(Text.assemble(*map(_styled, cells)), soft_wrap=True)

    def done(self, shape: Any, *lines: str) -> None:
        """Write the shape as JSON, or these lines."""
        if self.is_json:
            self.document(shape)
            return
        for line in lines:
            self.line(line)

    def time(self, when: datetime) -> str:
        """Return a time as text: relative to now for a terminal, in full for a pipe."""
        return ago(when) if self.is_terminal else when.isoformat()

    def row(self, cells: Sequence[Cell]) -> None:
        """Write a line of cells, with tabs for a pipe."""
        texts = [_styled(cell) for cell in cells]
        if self.is_terminal:
            self.line(*((f"{text:<10}  ", style) for text, style in texts))
        else:
            print("\t".join(text for text, _ in texts), flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Write a table. The first column is never cut; the last one takes the rest of the width, at least a third.

        If the screen is too narrow for that, each row has a line for its id, and one for the rest. A pipe gets one full
        line for each row, with tabs and without a head.
        """
        if not self.is_terminal:
            for row in rows:
                self.row(row)
            return
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        console = self._console()
        texts = [[Text(*_styled(cell)) for cell in row] for row in rows]
        widest = [max(len(name), *map(len, column)) for name, *column in zip(columns, *texts, strict=True)]
        room = console.width - 2 * len(widest) - widest[0] - min(widest[-1], console.width // 3)
        widths = widest[1:-1] if sum(widest[1:-1]) <= room else [min(width, 10) for width in widest[1:-1]]
        if sum(widths) > room:
            for first, *rest in texts:
                console.print(first, soft_wrap=True)
                console.print(Padding(Text("  ").join(filter(None, rest)), (0, 0, 0, 2)))
            return
        table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
        for name, width in zip(columns, [widest[0], *widths, None], strict=True):
            table.add_column(name, no_wrap=True, overflow="ellipsis", width=width)
        table.columns[-1].ratio = 1
        for line in texts:
            table.add_row(*line)
        console.print(table)

    def _console(self) -> Any:
        from rich.console import Console

        # rich knows TERM=dumb and the number of colours, but would keep bold text with NO_COLOR.
        colours: Any = None if os.environ.get("NO_COLOR") else "auto"
        return Console(highlight=False, markup=False, emoji=False, color_system=colours)


def _styled(cell: Cell) -> tuple[str, str]:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return cut(text, _LONGEST), style


def note(message: str) -> None:
    """Write a message to stderr, on one line: line breaks in texts of others would forge messages."""
    print(clean(one_line(message)), file=sys.stderr, flush=True)


# --------------------------------------------------------------------------- text


def value_text(value: Any, limit: int | None = SHORT) -> str:
    """Return the repr of a value, printable and on one line."""
    if limit is not None and isinstance(value, str | bytes):
        value = value[: limit + 1]  # it may have megabytes
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - the repr is users' code, or an int is too long
        text = f"<{type(value).__name__} whose repr raises {error!r}>"
    return clean(text) if limit is None else cut(text, limit)


def ago(when: datetime) -> str:
    """Return a time relative to now: ``3 min ago``, ``in 2 h``."""
    seconds = (datetime.now(UTC) - when).total_seconds()
    distance = span(abs(seconds))
    return f"in {distance}" if seconds <= -1 else "now" if seconds < 1 else f"{distance} ago"


def left_text(run: Summary | State) -> str:
    """Return the text about an active run without an owner: "left unfinished" if a call was cut off."""
    is_forked = run.parent is not None and run.parent.step == run.step
    is_left = run.kind not in (Kind.INPUT, Kind.ROLLBACK) and not is_forked
    return f"{'left unfinished: ' if is_left else ''}no process is at work on it"


def node_text(row: Summary) -> str:
    """Return the node of a checkpoint: for a pause or failure its own node, for an answer or update none."""
    stands_at = row.error or row.pause
    if stands_at is not None:
        return stands_at.node
    return "" if row.kind in (Kind.ANSWER, Kind.UPDATE, Kind.REDACT) else row.checkpoint_node


def number_text(row: Summary) -> str:
    """Return the step of a checkpoint, with its revision unless it is the first of that step."""
    return f"{row.step}.{row.revision}" if row.revision else str(row.step)


def note_text(row: Summary) -> str:
    """Return a short note about a checkpoint: its author, its attempts, its error or the reason of its pause."""
    parts = (
        "" if row.by is None else f"by {row.by}",
        "" if row.attempts == 1 else f"in {row.attempts} attempts",
        f"effects: {', '.join(row.effects)}" if row.effects else "",
        "" if row.error is None else failure_text(row.error.type, row.error.message),
        "" if row.pause is None else row.pause.reason,
    )
    return "; ".join(filter(None, parts))


# --------------------------------------------------------------------------- JSON


_BOTH = ("run_id", "graph", "status", "step", "kind", "checkpoint_node", "timestamp", "by", "error", "pause", "parent")
_OF_SUMMARY = (*_BOTH, "revision", "took", "attempts", "owner", "created", "labels")
_OF_STATE = (*_BOTH, "generation", "labels", "spent")
_NAMES = {"checkpoint_node": "node", "owner": "saved_by"}
"""Attributes that have other names in JSON."""


def summary_shape(summary: Summary) -> dict[str, Any]:
    """Return a checkpoint without its data as JSON, as in the page "Command line"."""
    return {_NAMES.get(name, name): shape_of(getattr(summary, name)) for name in _OF_SUMMARY}


def state_shape(state: State, owner: Owner | None = None, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return a State as JSON. Its data, or only these keys, are as the serializer "json" writes them."""
    data = {key: value for key, value in state.items() if not keys or key in keys}
    shapes = {_NAMES.get(name, name): shape_of(getattr(state, name)) for name in _OF_STATE}
    return {**shapes, "owner": shape_of(owner), "data": plain(data)}


def under_way_lines(under_way: UnderWay, owner: Owner | None, within: str = "") -> Iterator[tuple[str, str]]:
    """Yield what is known of the step under way of a run, as pairs of a title and a text."""
    at_work = "at work" if owner else "was at work"  # when its owner died
    for title, names in ("done", under_way.done), ("failed", under_way.failed), (at_work, under_way.at_work):
        if names:
            yield within + title, f"{len(names):,}: {cut(', '.join(names))}"
    if under_way.effects:
        yield f"{within}effects", cut(", ".join(f"{name} {status}" for name, status in under_way.effects.items()))
    for place, text in under_way.statuses.items():
        yield f"{within}status of {place}", cut(text)
    if under_way.messages:
        yield f"{within}messages", f"{under_way.messages:,} wait"
    for name, nested in under_way.nested.items():
        yield from under_way_lines(nested, owner, f"{within}{name}: ")


def difference_shape(difference: Difference) -> dict[str, Any]:
    """Return the differences of two States as JSON."""
    changed = {key: [plain(before), plain(after)] for key, (before, after) in difference.changed.items()}
    return {"added": plain(difference.added), "removed": plain(difference.removed), "changed": changed}


def shape_of(value: Any) -> Any:
    """Return a record of a checkpoint, such as an Owner or a Pause, as JSON. The value of a Pause is exact."""
    if isinstance(value, datetime):
        return value.isoformat()
    if attrs.has(type(value)):
        fields = [field.name for field in attrs.fields(type(value))]
        return {name: (plain if name == "value" else shape_of)(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {name: shape_of(each) for name, each in value.items()}
    return [*map(shape_of, value)] if isinstance(value, tuple) else value


# --------------------------------------------------------------------------- exit codes and errors


INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""


class Exit(IntEnum):
    """The exit codes. Scripts rely on them, so they never change."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    PAUSED = 4
    CONFLICT = 5
    DAMAGED = 6


class Failure(Exception):  # noqa: N818 - it may also end a command normally
    """Ends the command with a message and an exit code."""

    def __init__(self, exit_code: Exit, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


EXIT_OF_STATUS = {"completed": Exit.OK, "paused": Exit.PAUSED, "failed": Exit.FAILED, "cancelled": Exit.FAILED}
"""The exit codes of commands that continue or watch a run, by its last status."""

_EXITS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Exit], ...] = (
    (errors.CheckpointNotFoundError, Exit.NOT_FOUND),
    (
        (
            errors.RunBusyError,
            errors.StepConflictError,
            errors.RunExistsError,
            errors.EntryExistsError,
            errors.EffectsError,
            errors.RunCompleteError,
            errors.GraphMismatchError,
            errors.AnswerError,
        ),
        Exit.CONFLICT,
    ),
    ((errors.CheckpointCorruptError, errors.FormatError), Exit.DAMAGED),
    ((errors.ConfigError, errors.InvalidRunIdError, errors.SchemaError, errors.UnknownNameError), Exit.USAGE),
    (errors.StateGraphError, Exit.FAILED),
    (ValueError, Exit.USAGE),  # a wrong argument: exceptions of nodes are ExecutionErrors
)


def exit_of(error: Exception) -> Exit:
    """Return the exit code of an error."""
    if isinstance(error, Failure):
        return error.exit_code
    if isinstance(error, errors.FormatError) and error.statements:
        return Exit.NOT_FOUND
    return next((code for kinds, code in _EXITS if isinstance(error, kinds)), Exit.FAILED)


_COMMANDS = (
    (re.compile(r"store\.list\(\) lists the saved runs"), "stategraph runs lists the saved runs"),
    (re.compile(r"store\.(delete|history)\('([^']*)'\)"), r"stategraph \1 \2"),
    (re.compile(r"store\.delete$"), "stategraph delete"),
    (re.compile(r"repeat_effects=True"), "--repeat-effects"),
    (re.compile(r"store\.load gives its State, .*"), "stategraph show shows its State"),
    (re.compile(r"resume\('([^']*)'\) goes on"), r"stategraph resume \1 goes on"),
    (
        re.compile(r"Answer with resume\('([^']*)', .*"),
        r"Answer with stategraph answer \1 VALUE --graph MODULE:NAME, where VALUE is JSON (true, 12) or text",
    ),
    (
        re.compile(r"wait for it \(wait=seconds\), or, if it hangs, take the run away from it \(take_over=True\)"),
        "wait until it is done (resume, answer: --wait) or, if it hangs, take its run (resume, rollback: --take-over)",
    ),
    (re.compile(r"register_serializer makes it known, or .*"), "--import MODULE imports the module that registers it"),
    (re.compile(r"\ballow_changed=True"), "--allow-changed"),
    (re.compile(r"\babandon_parts=True"), "--abandon-parts"),
    (re.compile(r"\bmigrate=\{'?([^:{}']*)'?: \"?'?([^:{}'\"]*)'?\"?\}"), r"--migrate \1=\2"),
)
"""The calls that messages of the library suggest, and the commands in their place."""


def as_commands(text: str) -> str:
    """Return a message of the library with commands in place of the calls that it suggests."""
    for call, command in _COMMANDS:
        text = call.sub(command, text)
    return text


def message_of(error: Exception) -> str:
    """Return the message of an error, with commands in place of the calls that it suggests."""
    if isinstance(error, errors.FormatError) and error.statements:  # leave out the SQL, which would fill the screen
        way_out = "stategraph migrate makes them"
        if error.__cause__ is not None:  # the creation of the tables failed
            way_out = "this role may not make them: have an administrator run what stategraph migrate --print prints"
        store = str(error).partition(" has schema ")[0]
        return f"{store} is not there, or its tables are too old: {way_out}"
    return "; ".join((as_commands(str(error)), *getattr(error, "__notes__", ())))


def error_shape(error: Exception) -> dict[str, Any]:
    """Return an error as a JSON object."""
    code = exit_of(error)
    name = None if isinstance(error, Failure) else type(error).__name__
    return {"error": {"code": code.name.lower(), "exit": int(code), "type": name, "message": message_of(error)}}
