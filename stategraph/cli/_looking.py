"""The commands that only look at runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click

from stategraph._capabilities import fresh_rows
from stategraph._text.shown import SHORT, cut, failure_text, span
from stategraph._values.ids import given_id
from stategraph._values.progress import Pause
from stategraph._values.provenance import Kind, Owner
from stategraph.cli._opening import history_of, load_graph, load_state
from stategraph.cli._options import (
    EVERY,
    REVISION,
    RUN,
    STEP,
    Request,
    command,
    parsed_moment,
    parsed_pairs,
    run_ids,
    usage_error,
)
from stategraph.cli._output import (
    END_OF_CALL,
    NO_OWNER,
    STYLES,
    Cell,
    Exit,
    Failure,
    Screen,
    as_commands,
    difference_shape,
    left_text,
    node_text,
    note,
    note_text,
    number_text,
    shape_of,
    state_shape,
    summary_shape,
    value_text,
)
from stategraph.state import State
from stategraph.stores._rows.store import RowStore
from stategraph.stores.base import CheckpointStore
from stategraph.stores.summaries import Summary

# --------------------------------------------------------------------------- many runs


@command(
    """
  stategraph runs --status paused --since 2h
  stategraph runs --graph orders --label customer=c7 --since 2026-03-01
  stategraph runs --json | jq -r '.runs[].run_id'
""",
    click.option("--status", type=click.Choice(["active", "paused", "completed", "failed", "cancelled"])),
    click.option("--graph", help="Only runs of the graph of this name."),
    click.option("--prefix", help="Only runs whose ids begin with this."),
    click.option("--parent", metavar="RUN", help="Only runs that are forked from this one, or nested in it."),
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _context, _option, pairs: parsed_pairs("--label", "NAME=VALUE", pairs),
        help="Only runs with this label.",
    ),
    click.option(
        "--since",
        type=parsed_moment,
        metavar="WHEN",
        help="Only runs that began then or later: 2h, 7d, or a local time.",
    ),
    click.option("--owned/--left", default=None, help="Only runs with an owner, or only active runs without one."),
    click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True),
    click.option("--after", metavar="CURSOR", help="Continue after the page before."),
)
def runs(request: Request, /, limit: int, **filters: Any) -> None:
    """List runs, the newest first."""
    store, screen = request.open(), request.screen
    if filters["owned"] is False and filters["status"] is None:
        filters["status"] = "active"  # other runs were not left unfinished
    found = store.runs(limit=limit + 1, **filters)
    page = found[:limit]
    owners = {run.run_id: store.owner(run.run_id) for run in page if run.status == "active"}
    cursor = page[-1].cursor if len(found) > limit else None
    if screen.is_json:
        shapes = [{**summary_shape(run), "owner": shape_of(owners.get(run.run_id))} for run in page]
        screen.document({"runs": shapes, "next": cursor})
        return
    if page:
        rows = [_run_row(screen, run, owners.get(run.run_id)) for run in page]
        screen.table(("run", "status", "graph", "step", "at", "when", ""), rows)
    else:
        note("no runs")
    if cursor is not None:
        note(f"there are more: --after {cursor}")


def _run_row(screen: Screen, run: Summary, owner: Owner | None) -> tuple[Cell, ...]:
    stands_at = run.error or run.pause
    node = run.checkpoint_node if stands_at is None else stands_at.node
    status, step = (str(run.status), STYLES[run.status]), str(run.step)
    return run.run_id, status, run.graph or "", step, node, screen.time(run.timestamp), (_why(run, owner), "dim")


def _why(run: Summary, owner: Owner | None) -> str:
    """Return a short reason for the status of a run."""
    if run.error is not None:
        return failure_text(run.error.type, run.error.message)
    if run.pause is not None:
        return f"waits: {run.pause.reason}"
    if run.status == "active":
        return left_text(run) if owner is None else f"at work: {owner}"
    return "" if run.parent is None else f"of {run.parent.run_id}, step {run.parent.step}"


@command(
    """
  stategraph doctor
  stategraph doctor --json | jq '.damaged[].run_id'

It changes nothing. The exit code is 6 if anything is damaged.
"""
)
def doctor(request: Request) -> int:
    """Read all data of a store, and list the damage."""
    store, screen = request.open(), request.screen
    found = store.verify()
    if screen.is_json:
        screen.document({"store": str(store), **shape_of(found)})
    else:
        statuses = ", ".join(f"{count:,} {status}" for status, count in found.runs.items())
        screen.line(str(store))
        screen.line(
            f"{sum(found.runs.values()):,} runs{statuses and f' ({statuses})'}, {found.nested:,} nested in them"
        )
        screen.line(f"{found.checkpoints:,} checkpoints")
        screen.line((f"{len(found.damaged):,} damaged", "red" if found.damaged else "green"))
        for damage in found.damaged:
            screen.line((cut(damage.run_id) or "the store", "bold"), f": {cut(as_commands(damage.reason), 1000)}")
        for damage in found.unreadable:
            screen.line((cut(damage.run_id), "bold"), f" cannot be read here: {cut(damage.reason, 1000)}")
    return Exit.DAMAGED if found.damaged else Exit.OK


# --------------------------------------------------------------------------- one run


@command(
    """
  stategraph show review-42
  stategraph show review-42 --step 3 --key notes
  stategraph show review-42 --json | jq .data.total

Values are cut, except with --key.
""",
    RUN,
    STEP,
    REVISION,
    click.option("--key", "keys", multiple=True, metavar="KEY", help="Only this key, with its full value."),
)
def show(request: Request, run_id: str, step: int | None, revision: int | None, keys: tuple[str, ...]) -> None:
    """Show the status of a run, and its data."""
    store, screen = request.open(), request.screen
    state = load_state(store, run_id, step, revision)
    missing = [key for key in keys if key not in state]
    if missing:
        raise Failure(Exit.NOT_FOUND, f"{run_id} has no key {missing[0]!r}; it has {cut(', '.join(state)) or 'none'}")
    owner = store.owner(run_id) if state.status == "active" else None
    if screen.is_json:
        screen.document(state_shape(state, owner, keys))
        return
    if not keys:
        _show_run(screen, state, owner)
    for key, value in state.items():
        if not keys or key in keys:
            screen.line((cut(key), "bold"), f" = {value_text(value, None if keys else SHORT)}")


def _show_run(screen: Screen, state: State, owner: Owner | None) -> None:
    at = f" at {cut(state.checkpoint_node)}" if state.checkpoint_node else ""
    status = str(state.status), STYLES[state.status]
    screen.line((state.run_id, "bold"), "  ", status, f"  step {state.step}{at}", "  ", screen.time(state.timestamp))
    is_left = state.status == "active" and owner is None
    facts = {
        "graph": state.graph,
        "parent": f"{state.parent.run_id}, step {state.parent.step}" if state.parent else "",
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(state.labels.items())),
        "owner": str(owner or ""),
        "under way": "" if owner is None or owner.node_since is None else f"{owner.node}, for {_for(owner.node_since)}",
        "by": state.by,
    }
    for name, text in facts.items():
        if text:
            screen.line((f"{name}: ", "dim"), cut(text))
    if state.error is not None:
        screen.line((f"failed at {cut(state.error.node)}: {cut(state.error.type)}", "red"))
        for line in (*state.error.message.splitlines(), *state.error.traceback.splitlines()):
            screen.line(f"  {cut(line, 2 * SHORT)}")
    for pause in () if state.pause is None else state.pause.each:
        _show_pause(screen, state, pause)
    if is_left:
        screen.line(left_text(state))
    if is_left or state.status in ("failed", "cancelled"):
        screen.line(("continue: ", "dim"), f"stategraph resume {given_id(state.run_id)} --graph MODULE:NAME")


def _show_pause(screen: Screen, state: State, pause: Pause) -> None:
    deadline = "" if pause.deadline is None else f", until {screen.time(pause.deadline)}"
    part = f", part {cut(pause.part)}," if pause.part else ""
    screen.line((f"waits at {cut(pause.node)}{part} for {_for(pause.at)}{deadline}: {cut(pause.reason)}", "yellow"))
    screen.line(("asks: ", "dim"), value_text(pause.value))
    value = "" if pause.response_param is None else " VALUE"
    which = f" --pause {pause.id}" if state.pause and state.pause.others else ""
    screen.line(("answer: ", "dim"), f"stategraph answer {state.run_id}{value} --graph MODULE:NAME{which}")


def _for(since: datetime) -> str:
    return span((datetime.now(UTC) - since).total_seconds())


@command(
    """
  stategraph history review-42
  stategraph history review-42 --last 20
  stategraph history review-42 --json | jq -r '.[] | select(.by) | [.kind, .by, .timestamp] | @tsv'

With retention "full" the history is complete.
""",
    RUN,
    click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last rows."),
)
def history(request: Request, run_id: str, last: int | None) -> None:
    """List the checkpoints of a run."""
    rows, screen = history_of(request.open(), run_id)[-(last or 0) :], request.screen
    if screen.is_json:
        screen.document([summary_shape(row) for row in rows])
    else:
        _show_history(screen, rows)


def _show_history(screen: Screen, rows: Sequence[Summary]) -> None:
    cells = [(*_cells(row), screen.time(row.timestamp), (note_text(row), "dim")) for row in rows]
    screen.table(("step", "kind", "node", "took", "when", ""), cells)


def _cells(row: Summary) -> tuple[str, tuple[str, str], str, str]:
    """Return the number, the kind, the node and the duration of a checkpoint."""
    took = "" if row.took is None else span(row.took)
    return number_text(row), (str(row.kind), STYLES.get(row.status, "")), cut(node_text(row)), took


@command(
    """
  stategraph diff review-42 3 5
  stategraph diff review-42 3 3 --other review-42-cheaper
""",
    RUN,
    click.argument("a", type=click.IntRange(min=0)),
    click.argument("b", type=click.IntRange(min=0)),
    click.option("--other", metavar="RUN", help="B is a step of this run."),
)
def diff(request: Request, run_id: str, a: int, b: int, other: str | None) -> None:
    """Compare the data of two steps, A and B."""
    difference, screen = request.open().diff(run_id, a, b, other), request.screen
    if screen.is_json:
        screen.document(difference_shape(difference))
        return
    for key, value in difference.removed.items():
        screen.line((f"- {cut(key)} = {value_text(value)}", "red"))
    for key, value in difference.added.items():
        screen.line((f"+ {cut(key)} = {value_text(value)}", "green"))
    for key, (before, after) in difference.changed.items():
        screen.line((f"~ {cut(key)}: {value_text(before)} -> {value_text(after)}", "yellow"))


@command(
    """
  stategraph watch review-42
  stategraph watch review-42 --json | jq -r .node

The exit code is that of the run: 0 completed, 1 failed or cancelled, 4 paused. With --json, each row is a line.
""",
    RUN,
    click.option("--every", default=0.5, **EVERY),
)
def watch(request: Request, run_id: str, every: float) -> int:
    """Follow a run until it ends or pauses."""
    store, screen = request.open(), request.screen
    newest, was_owned = history_of(store, run_id)[-1], None
    began, is_owned = time.monotonic(), store.owner(run_id) is not None
    for rows in fresh_rows(store, run_id):
        for newest in rows:
            if screen.is_json:
                screen.record(summary_shape(newest))
            elif screen.is_terminal:
                _show_row(screen, newest)
            else:
                _show_history(screen, [newest])
        if newest.status in END_OF_CALL:
            return END_OF_CALL[newest.status]
        if not is_owned and was_owned is not False and not screen.is_json:
            note(_left_alone(newest, was_owned=bool(was_owned)))
        was_owned = is_owned
        time.sleep(max(every, _SHARE * (time.monotonic() - began)))
        # The owner is read before the rows: its last save is there before it leaves.
        began, is_owned = time.monotonic(), store.owner(run_id) is not None
    raise Failure(Exit.NOT_FOUND, f"{run_id} is gone: it was deleted, or completed without preserve=True")


_SHARE = 4
"""The least ratio of the pause after a look to the duration of the look."""


def _left_alone(last: Summary, *, was_owned: bool) -> str:
    if last.kind is Kind.INPUT and not was_owned:
        return f"{NO_OWNER} yet"
    left = f"left unfinished: {NO_OWNER}" if was_owned else left_text(last)
    return f"{left}; to continue: stategraph resume {given_id(last.run_id)} --graph MODULE:NAME"


def _show_row(screen: Screen, row: Summary) -> None:
    number, (kind, style), node, took = _cells(row)
    when: Cell = (f"{row.timestamp.astimezone():%H:%M:%S}  ", "dim")
    screen.line(when, f"{number:>6}  ", (f"{kind:<9}", style), f"{node:<20}  {took:>7}  ", (note_text(row), "dim"))


# --------------------------------------------------------------------------- files


_FORMS = {".svg": "svg", ".html": "html", ".mmd": "mermaid", ".mermaid": "mermaid", "": "mermaid"}


@command(
    """
  stategraph draw review-42 -o review-42.svg
  stategraph draw --graph app.flows:review

A run is drawn over the graph in its store: no code is needed.
""",
    click.argument("run_id", metavar="[RUN]", required=False, shell_complete=run_ids),
    click.option("--graph", metavar="MODULE:NAME", help="Draw a graph instead; its module is imported."),
    click.option(
        "--format",
        "form",
        type=click.Choice(["mermaid", "svg", "html"]),
        help="By default that of the file name, or Mermaid.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.File("w", encoding="utf-8", lazy=True),
        default="-",
        help="A file; stdout by default.",
    ),
)
def draw(request: Request, run_id: str | None, graph: str | None, form: str | None, output: IO[str]) -> None:
    """Draw a run over its graph, or only a graph."""
    form = form or _FORMS.get(Path(output.name).suffix.lower())
    if form is None:
        way_out = "give the --format, or a name with .svg, .html, .mmd or .mermaid"
        raise Failure(Exit.USAGE, f"-o {output.name}: {way_out}")
    if graph is not None and run_id is None:
        picture = load_graph(graph).picture()
    elif run_id is not None and graph is None:
        from stategraph.picture import picture_of_run  # imported when used

        store = request.open()
        picture = picture_of_run(store, store.load(run_id))
    else:
        raise Failure(Exit.USAGE, "give either the run to draw, or --graph MODULE:NAME")
    text = {"mermaid": picture.to_mermaid, "svg": picture.to_svg, "html": picture.to_html}[form]()
    if request.is_json:
        request.screen.document({"format": form, "picture": text})
    else:
        output.write(text if text.endswith("\n") else f"{text}\n")


@command(
    """
  stategraph export review-42 > review-42.jsonl
  stategraph --store other.db import review-42.jsonl
  stategraph --store runs.db export --all | stategraph --store postgresql://server/runs import -
""",
    click.argument("run_ids", metavar="[RUN]...", nargs=-1, shell_complete=run_ids),
    click.option("--all", "is_all", is_flag=True, help="All runs of the store, the oldest first."),
    click.option(
        "-o", "--output", type=click.File("w", encoding="utf-8"), default="-", help="A file; stdout by default."
    ),
)
def export(request: Request, run_ids: tuple[str, ...], is_all: bool, output: IO[str]) -> None:
    """Write runs as lines of JSON.

    The lines hold their histories and nested runs. With --json they are one list.
    """
    if bool(run_ids) == is_all:
        usage_error("which runs? Name them, or give --all")
    store = row_store(request.open())
    wanted = reversed([run.run_id for run in store.iter_runs()]) if is_all else run_ids
    lines = (line for run_id in wanted for line in store.export_run(run_id))
    for line in [json.dumps([json.loads(line) for line in lines])] if request.is_json else lines:
        output.write(f"{line}\n")


def row_store(store: CheckpointStore) -> RowStore:
    """Return a store that can export and import runs."""
    if not isinstance(store, RowStore):
        raise Failure(Exit.USAGE, f"the {store} can neither export nor import runs")
    return store
