"""The commands that change runs and stores. Commands that remove data ask first."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

import click

from stategraph._text.shown import clean
from stategraph._values.provenance import RunStatus
from stategraph.cli._looking import row_store
from stategraph.cli._opening import status_text
from stategraph.cli._options import (
    ABANDON_PARTS,
    ALLOW_CHANGED,
    BY,
    GRAPH,
    REDO,
    RENAMES,
    REPEAT_EFFECTS,
    REVISION,
    RUN,
    STEP,
    TAKE_OVER,
    WAIT,
    YES,
    Request,
    command,
    pairs,
    parsed_pair,
    parsed_value,
)
from stategraph.cli._output import EXIT_OF_STATUS, Exit, Failure, note, shape_of, state_shape, status_cell
from stategraph.errors import FormatError, RunCompleteError

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.state import State


# --------------------------------------------------------------------------- with a graph


@command(
    """
  stategraph resume review-42 --graph app.flows:review
  stategraph resume review-42 --graph app.flows:review --set limit=20 --by ann
  stategraph resume review-42 --graph app.flows:review --redo map/3

The store is that of the graph. The history keeps --by with a change of --set, or with an answer.
""",
    RUN,
    GRAPH,
    pairs("--set", "changes", metavar="KEY=VALUE", help="Change this key first; JSON, or text."),
    ALLOW_CHANGED,
    RENAMES,
    ABANDON_PARTS,
    REDO,
    REPEAT_EFFECTS,
    BY,
    WAIT,
    TAKE_OVER,
)
def resume(request: Request, /, run_id: str, graph: str, changes: dict[str, str], **how: Any) -> int:
    """Continue a run from its last checkpoint.

    It runs in this process until it ends or pauses.
    """
    updates = {key: parsed_value(text) for key, text in changes.items()}
    return _resume(request, request.graph(graph), run_id, updates, **how)


@command(
    """
  stategraph answer review-42 true --graph app.flows:review --by ann
  stategraph answer review-42 '{"amount": 40}' --graph app.flows:review --pause 5c41a7

The store is that of the graph.
""",
    RUN,
    click.argument("value", required=False),
    GRAPH,
    click.option("--pause", metavar="ID", help="Answer the pause with this id, or its beginning."),
    ALLOW_CHANGED,
    RENAMES,
    ABANDON_PARTS,
    BY,
    WAIT,
)
def answer(request: Request, /, run_id: str, value: str | None, graph: str, pause: str | None, **how: Any) -> int:
    """Answer a paused run, and continue it. VALUE is JSON, or text."""
    flow = request.graph(graph)
    state = flow.store.load(run_id)
    if state.pause is None:
        raise Failure(Exit.CONFLICT, f"{run_id} waits for no answer: it is {state.status}")
    meant = [waiting for waiting in state.pause.each if waiting.id.startswith(pause or "")]
    if len(meant) != 1:
        ids = ", ".join(waiting.id for waiting in state.pause.each)
        exit_code = Exit.CONFLICT if pause else Exit.USAGE
        which = f"choose one of the pauses that stategraph show {run_id} lists, with --pause"
        raise Failure(exit_code, f"{which}: it waits at {ids}")
    name = meant[0].response_param
    if (name is None) != (value is None):
        way_out = "no value: leave out VALUE" if name is None else f"{name!r}: give VALUE"
        raise Failure(Exit.USAGE, f"{run_id} waits for {way_out}")
    given = None if value is None else parsed_value(value)
    if state.status is not RunStatus.PAUSED or not flow.store.keeps_entries:
        return _resume(request, flow, run_id, {} if name is None else {name: given}, pause=meant[0], **how)
    about = {option: how[option] for option in ("by", "allow_changed", "migrate")}
    flow.answer(run_id, given, pause=meant[0], **about)
    try:
        return _resume(request, flow, run_id, {}, **how | {"by": None})
    except RunCompleteError:  # another call has gone on with the answer
        return _shown(request, flow.store.load(run_id))


def _resume(request: Request, graph: StateGraph, run_id: str, updates: dict[str, Any], **how: Any) -> int:
    """Resume a run, with its progress on a terminal; return the exit code for its last status."""
    screen = request.screen
    state = graph.resume(run_id, updates or None, progress=not screen.is_json and sys.stderr.isatty(), **how)
    return _shown(request, state)


def _shown(request: Request, state: State) -> int:
    """Show the last State of a call; return the exit code for its status."""
    screen, state = request.screen, request.seen(state)
    if screen.is_json:
        screen.document(state_shape(state))
    else:
        reasons = [] if state.pause is None else [pause.reason for pause in state.pause.each]
        why = f": {'; '.join(reasons)}" if reasons else ""
        screen.line((state.run_id, "bold"), "  ", status_cell(state), f"  step {state.step}{why}")
    return EXIT_OF_STATUS.get(state.status, Exit.OK)


# --------------------------------------------------------------------------- without a graph


@command(
    """
  stategraph send review-42 note='make it shorter' --by ann
  stategraph send review-42 limit=20 --key mail-7

The run takes it in between two steps. A message is no answer: see stategraph answer.
""",
    RUN,
    click.argument("updates", metavar="KEY=VALUE...", nargs=-1, required=True, type=parsed_pair),
    click.option("--key", metavar="KEY", help="An id of the message: the same one again is sent once."),
    BY,
)
def send(request: Request, run_id: str, updates: tuple[tuple[str, str], ...], key: str | None, by: str | None) -> None:
    """Send a message to a run, whatever process is at work on it. A VALUE is JSON, or text."""
    message = {name: parsed_value(text) for name, text in updates}
    request.open(to_change=True).send(run_id, message, by=by, key=key)
    request.screen.done({"run_id": run_id, "sent": True}, f"{run_id}: sent")


@command(
    """
  stategraph fork review-42 review-42-again
  stategraph fork review-42 review-42-cheaper --step 3
""",
    RUN,
    click.argument("new_run_id", metavar="NEW"),
    STEP,
    REVISION,
    REPEAT_EFFECTS,
)
def fork(request: Request, /, run_id: str, new_run_id: str, **how: Any) -> None:
    """Copy a run and its history up to a step under another id."""
    state = request.open(to_change=True).fork(run_id, new_run_id, **how)
    request.screen.done(state_shape(request.seen(state)), f"{new_run_id}: {state.status}, at step {state.step}")


@command(
    """
  stategraph rollback review-42 --step 3
  stategraph rollback review-42 --step 3 --by ann --yes

With retention "full", the history keeps the later steps.
""",
    RUN,
    click.option("--step", required=True, type=click.IntRange(min=0), help="The step to go back to."),
    REVISION,
    BY,
    TAKE_OVER,
    REPEAT_EFFECTS,
    YES,
)
def rollback(request: Request, /, run_id: str, step: int, yes: bool, **how: Any) -> None:
    """Take a run back to a step, from which it continues."""
    store = request.open(to_change=True)
    _confirm(f"take {run_id} ({status_text(store, run_id)}) back to step {step}?", yes)
    state = store.rollback(run_id, step, **how)
    request.screen.done(state_shape(request.seen(state)), f"{run_id}: back at step {state.step}, {state.status}")


@command(
    """
  stategraph cancel review-42
  stategraph cancel review-42 --by ann

A call at work on the run stops where it awaits, or at its next save. A resume continues the run.
""",
    RUN,
    BY,
)
def cancel(request: Request, run_id: str, by: str | None) -> None:
    """Cancel a run, whatever process is at work on it."""
    owner = request.open(to_change=True).cancel(run_id, by=by)
    message = "cancelled" if owner is None else f"{owner} will stop it, at its next save at the latest"
    request.screen.done({"run_id": run_id, "cancelled": True, "at_once": owner is None}, f"{run_id}: {message}")


@command(
    """
  stategraph delete review-42
  stategraph runs --status failed --json | jq -r '.runs[].run_id' | xargs -n1 stategraph delete --yes
""",
    RUN,
    TAKE_OVER,
    YES,
)
def delete(request: Request, run_id: str, take_over: bool, yes: bool) -> None:
    """Delete a run and its nested runs."""
    store: Any = request.open(to_change=True)
    _confirm(f"delete {run_id} ({status_text(store, run_id)})?", yes)
    store.delete(run_id, **({"take_over": True} if take_over else {}))
    request.screen.done({"run_id": run_id, "deleted": True}, f"{run_id}: deleted")


@command(
    """
  stategraph prune
  stategraph prune --yes --json
""",
    YES,
)
def prune(request: Request, yes: bool) -> None:
    """Remove expired runs and checkpoints.

    Their retention decides which completed runs and old checkpoints expire.
    """
    store = request.open(to_change=True)
    _confirm(f"remove the expired runs and checkpoints from the {store}?", yes)
    pruned = store.prune()
    request.screen.done(shape_of(pruned), f"{len(pruned.runs)} runs, and {pruned.checkpoints} checkpoints of others")
    if pruned.damaged and not request.is_json:
        note(f"{len(pruned.damaged)} damaged runs were left as they are: stategraph doctor")


def _confirm(question: str, yes: bool) -> None:
    """Ask whether to continue.

    Raises:
        Failure: there is no terminal, or the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(Exit.USAGE, f"{question} There is no terminal to answer at: give --yes")
    if not click.confirm(clean(question), err=True):
        raise Failure(Exit.FAILED, "nothing was changed")


# --------------------------------------------------------------------------- whole stores


@command(
    """
  stategraph import review-42.jsonl
  stategraph --store old.db export review-42 | stategraph --store new.db import -
  stategraph --store runs.db export --all | stategraph --store postgresql://server/runs import -
""",
    click.argument("file", type=click.File("r", encoding="utf-8")),
)
def import_(request: Request, file: IO[str]) -> None:
    """Import the runs of an export.

    Each run is imported as a whole or not at all. A missing store is created.
    """
    found = row_store(request.open(to_change=True, may_make=True)).import_runs(file)
    request.screen.done({"runs": found}, *found)


@command(
    """
  stategraph --store postgresql://server/runs migrate
  stategraph --store postgresql://server/runs migrate --print | psql --single-transaction postgresql://admin@server/runs
""",
    click.option("--print", "is_printed", is_flag=True, help="Print the SQL for an administrator, and change nothing."),
)
def migrate(request: Request, is_printed: bool) -> None:
    """Create a store, or update its tables.

    A store that is up to date does not change.
    """
    if not is_printed:
        store = request.open(to_change=True, may_make=True, migrates=True)
        request.screen.done({"store": str(store), "migrated": True}, f"{store}: ready")
        return
    statements: tuple[str, ...] = ()
    try:
        request.open()
    except FormatError as error:
        if not error.statements:
            raise
        statements = error.statements
    if request.is_json:
        request.screen.document({"statements": list(statements)})
    elif statements:
        click.echo("\n".join(f"{statement};" for statement in statements))
    else:
        note("the store is up to date: there is nothing to run")
