"""The commands that only look at runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from stategraph._following import fresh_rows
from stategraph._text.shown import clean, cut, failure_text, one_line, span
from stategraph._values import clock
from stategraph._values.ids import given_id
from stategraph._values.progress import Pause
from stategraph._values.provenance import Owner
from stategraph.cli._opening import history_of, load_graph
from stategraph.cli._options import (
    EVERY,
    REVISION,
    RUN,
    SERVES,
    STEP,
    Request,
    command,
    pairs,
    parsed_moment,
    run_ids,
)
from stategraph.cli._output import (
    EXIT_OF_STATUS,
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
    status_cell,
    summary_shape,
    under_way_lines,
    value_text,
)
from stategraph.state import State, due_ns_of
from stategraph.stores._rows.store import RowStore
from stategraph.stores.base import CheckpointStore
from stategraph.stores.summaries import Summary

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.picture import Picture

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
    pairs("--label", "labels", metavar="NAME=VALUE", help="Only runs with this label."),
    click.option(
        "--since",
        type=parsed_moment,
        metavar="WHEN",
        help="Only runs that began then or later: 2h, 7d, or a local time.",
    ),
    click.option("--owned/--left", default=None, help="Only runs with an owner, or only active runs without one."),
    click.option("--overdue", is_flag=True, help="Only runs that can go on by themselves, and whose time has passed."),
    click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True),
    click.option("--after", metavar="CURSOR", help="Continue after the page before."),
)
def runs(request: Request, /, limit: int, **filters: Any) -> None:
    """List runs, the newest first."""
    store, screen = request.open(), request.screen
    filters["overdue"] = filters["overdue"] or None
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
    when, why = screen.time(run.timestamp), (_why(run, owner), "dim")
    return run.run_id, status_cell(run), run.graph or "", str(run.step), node_text(run), when, why


def _why(run: Summary, owner: Owner | None) -> str:
    """Return a short reason for the status of a run."""
    if run.error is not None:
        return failure_text(run.error.type, run.error.message)
    if run.pause is not None:
        return f"waits: {run.pause.reason.removeprefix('waits ')}"
    if run.status == "active":
        return left_text(run) if owner is None else f"at work: {owner}"
    return "" if run.parent is None else f"of {run.parent.run_id}, step {run.parent.step}"


@command(
    """
  stategraph doctor
  stategraph doctor --json | jq '.damaged[].run_id'
  stategraph doctor --graph app.flows:review

It changes nothing. The exit code is 6 if anything is damaged. With --graph, it checks instead whether the runs that are
not complete can go on in that graph; the exit code is 5 if one cannot. With --serves, runs of versions that no worker
serves cannot.
""",
    click.option("--graph", metavar="MODULE:NAME", help="Check the runs of a graph; its module is imported."),
    SERVES,
)
def doctor(request: Request, graph: str | None, serves: list[int] | None) -> int:
    """Read all data of a store, and list the damage."""
    if graph is not None:
        return _check_runs(request, load_graph(graph), serves)
    if serves is not None:
        raise Failure(Exit.USAGE, "--serves takes --graph MODULE:NAME")
    store = request.open()
    found = store.verify()
    statuses = ", ".join(f"{count:,} {status}" for status, count in found.runs.items())
    request.screen.done(
        {"store": str(store), **shape_of(found)},
        str(store),
        f"{sum(found.runs.values()):,} runs ({statuses or 'none'}), {found.nested:,} nested in them",
        f"{found.checkpoints:,} checkpoints",
        f"{len(found.damaged):,} damaged",
        *(f"{damage.run_id or 'the store'}: {as_commands(damage.reason)}" for damage in found.damaged),
        *(f"{damage.run_id} cannot be read here: {damage.reason}" for damage in found.unreadable),
    )
    return Exit.DAMAGED if found.damaged else Exit.OK


def _check_runs(request: Request, graph: StateGraph, serves: list[int] | None) -> int:
    store = request.open() if request.store else graph.store
    checks = [*graph.check_runs(store, serves=serves)]
    refused = [check for check in checks if not check.ok]
    request.screen.done(
        {"store": str(store), "graph": graph.name, "runs": len(checks), "refused": shape_of(tuple(refused))},
        str(store),
        f"{len(checks):,} runs of graph {graph.name} are not complete",
        f"{len(refused):,} of them cannot go on",
        *(as_commands(problem) for check in refused for problem in check.problems),
    )
    return Exit.CONFLICT if refused else Exit.OK


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
    state = store.load(run_id, step, **({} if revision is None else {"revision": revision}))
    missing = [key for key in keys if key not in state]
    if missing:
        raise Failure(Exit.NOT_FOUND, f"{run_id} has no key {missing[0]!r}; it has {cut(', '.join(state)) or 'none'}")
    owner = store.owner(run_id) if state.status == "active" else None
    under_way = store.under_way(run_id) if step is None and state.status != "completed" else None
    if screen.is_json:
        screen.document({**state_shape(state, owner, keys), "under_way": shape_of(under_way)})
        return
    if not keys:
        _show_run(screen, state, owner)
        for title, text in () if under_way is None else under_way_lines(under_way, owner):
            screen.line((f"{title}: ", "dim"), text)
        for key, value in state.items():
            screen.line((key, "bold"), f" = {value_text(value)}")
    for key in keys:
        click.echo(f"{clean(key)} = {value_text(state[key], None)}")


def _show_run(screen: Screen, state: State, owner: Owner | None) -> None:
    at = f" at {state.checkpoint_node}" if state.checkpoint_node else ""
    when = screen.time(state.timestamp)
    screen.line((state.run_id, "bold"), "  ", status_cell(state), f"  step {state.step}{at}  {when}")
    is_left = state.status == "active" and owner is None
    due_ns = due_ns_of(state) if is_left else None
    facts = {
        "graph": state.graph,
        "parent": f"{state.parent.run_id}, step {state.parent.step}" if state.parent else "",
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(state.labels.items())),
        "spent": ", ".join(f"{name} {amount:,}" for name, amount in sorted(state.spent.items())),
        "owner": str(owner or ""),
        "under way": "" if owner is None or owner.node_since is None else f"{owner.node}, for {_for(owner.node_since)}",
        "due": screen.time(clock.to_datetime(due_ns)) if due_ns else "",
        "by": state.by,
    }
    for name, text in facts.items():
        if text:
            screen.line((f"{name}: ", "dim"), text)
    if state.error is not None:
        screen.line((f"failed at {state.error.node}: {state.error.type}", "red"))
        for line in (one_line(state.error.message), *state.error.traceback.splitlines()):
            screen.line(f"  {line}")
    for pause in () if state.pause is None else state.pause.each:
        _show_pause(screen, state, pause)
    if is_left:
        screen.line(left_text(state))
    if is_left or state.status in ("failed", "cancelled"):
        screen.line(("continue: ", "dim"), _way_on(state.run_id))


def _way_on(run_id: str) -> str:
    return f"stategraph resume {given_id(run_id)} --graph MODULE:NAME"


def _show_pause(screen: Screen, state: State, pause: Pause) -> None:
    deadline = "" if pause.deadline is None else f", until {screen.time(pause.deadline)}"
    part = f", part {pause.part}," if pause.part else ""
    screen.line((f"waits at {pause.node}{part} for {_for(pause.at)}{deadline}: {pause.reason}", "yellow"))
    waits_for_time = pause.goes_on and pause.response_param is None
    if pause.value is not None or not waits_for_time:
        screen.line(("asks: ", "dim"), value_text(pause.value))
    if waits_for_time:
        screen.line(("goes on: ", "dim"), "stategraph work MODULE:NAME")
        return
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
        cells = [_cells(row, screen.time(row.timestamp)) for row in rows]
        screen.table(("step", "kind", "node", "took", "when", ""), cells)


def _cells(row: Summary, when: str) -> tuple[Cell, ...]:
    took = "" if row.took is None else span(row.took)
    kind = str(row.kind), STYLES.get(row.status, "")
    return number_text(row), kind, node_text(row), took, when, (note_text(row), "dim")


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
    for mark, style, values in (("-", "red", difference.removed), ("+", "green", difference.added)):
        for key, value in values.items():
            screen.line((f"{mark} {key} = {value_text(value)}", style))
    for key, (before, after) in difference.changed.items():
        screen.line((f"~ {key}: {value_text(before)} -> {value_text(after)}", "yellow"))


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
    newest = history_of(store, run_id)[-1]
    has_noted = False
    began, owner = time.monotonic(), store.owner(run_id)
    for rows in fresh_rows(store, run_id):
        for newest in rows:
            if screen.is_json:
                screen.record(summary_shape(newest))
            else:
                when = newest.timestamp
                screen.row(_cells(newest, f"{when.astimezone():%H:%M:%S}" if screen.is_terminal else when.isoformat()))
        if newest.status in EXIT_OF_STATUS:
            return EXIT_OF_STATUS[newest.status]
        if owner is None and not has_noted and not screen.is_json:
            note(f"{left_text(newest)}; to continue: {_way_on(run_id)}")
        has_noted = owner is None
        time.sleep(max(every, 4 * (time.monotonic() - began)))  # a look at a long history takes long
        # The owner is read before the rows: its last save is there before it leaves.
        began, owner = time.monotonic(), store.owner(run_id)
    raise Failure(Exit.NOT_FOUND, f"{run_id} is gone: it was deleted, or completed without preserve=True")


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
    if (run_id is None) == (graph is None):
        raise Failure(Exit.USAGE, "give either the run to draw, or --graph MODULE:NAME")
    picture = _picture_of(request, run_id) if run_id else load_graph(graph or "").picture()
    text = getattr(picture, f"to_{form}")()
    if request.is_json:
        request.screen.document({"format": form, "picture": text})
    else:
        with _private_files():
            output.write(text)


@contextmanager
def _private_files() -> Iterator[None]:
    """Create files with access for their owner only, as stores do. Click opens a file when it is first written."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _picture_of(request: Request, run_id: str) -> Picture:
    from stategraph.picture import picture_of_run  # imported when used

    store = request.open()
    return picture_of_run(store, store.load(run_id))


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
    click.option("--encrypted", is_flag=True, help="Encrypt the lines with the key of the store."),
)
def export(request: Request, run_ids: tuple[str, ...], is_all: bool, output: IO[str], encrypted: bool) -> None:
    """Write runs as lines of JSON.

    The lines hold their histories and nested runs. With --json they are one list.
    """
    if bool(run_ids) == is_all:
        raise Failure(Exit.USAGE, "which runs? Name them, or give --all")
    store = row_store(request.open())
    wanted = reversed([run.run_id for run in store.iter_runs()]) if is_all else run_ids
    lines = (line for run_id in wanted for line in store.export_run(run_id, encrypted=encrypted))
    with _private_files():
        for line in [json.dumps([json.loads(line) for line in lines])] if request.is_json else lines:
            output.write(f"{line}\n")


def row_store(store: CheckpointStore) -> RowStore:
    """Return a store that can export and import runs."""
    if not hasattr(store, "export_run"):
        raise Failure(Exit.USAGE, f"the {store} can neither export nor import runs")
    return cast(RowStore, store)
