"""``stategraph show``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._exits import Exit, Failure
from stategraph.cli._looking import look
from stategraph.cli._options import at_step, run_argument
from stategraph.cli._screen import STYLES, Cell, Screen
from stategraph.cli._shapes import state_shape
from stategraph.cli._text import SHORT, ago, cut, left_text, span, value_text

if TYPE_CHECKING:
    from stategraph._values.progress import Pause
    from stategraph._values.provenance import Owner
    from stategraph.state import State

_EXAMPLES = """
\b
Examples:
  stategraph show review-42
  stategraph show review-42 --step 3 --key notes
  stategraph show review-42 --json | jq .data.total

Values are cut, but for those that --key asks for.
"""


@click.command("show", epilog=_EXAMPLES)
@run_argument
@at_step
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only this key, and all of its value.")
@common
@asked
def command(request: Asked, run_id: str, step: int | None, revision: int | None, keys: tuple[str, ...]) -> None:
    """Show the State of a run: how it stands, and its data."""
    store = request.open()
    state = look(store, run_id, step, revision)
    missing = [key for key in keys if key not in state]
    if missing:
        raise Failure(Exit.NOT_FOUND, f"{run_id} has no key {missing[0]!r}")
    owner = store.owner(run_id) if state.status == "active" else None
    if request.is_json:
        request.screen.document(state_shape(state, owner, keys))
        return
    if not keys:
        _show_run(request.screen, state, owner)
    for key, value in state.items():
        if not keys or key in keys:
            request.screen.line((cut(key), "bold"), f" = {value_text(value, None if keys else SHORT)}")


def _show_run(screen: Screen, state: State, owner: Owner | None) -> None:
    status = str(state.status)
    at = f" at {cut(state.checkpoint_node)}" if state.checkpoint_node else ""
    about: list[Cell] = [(state.run_id, "bold"), "  ", (status, STYLES[status]), f"  step {state.step}{at}"]
    screen.line(*about, (f"  {ago(state.timestamp)}", "dim"))
    told: list[tuple[str, str]] = [
        ("graph", state.graph or ""),
        ("parent", f"{state.parent.run_id}, step {state.parent.step}" if state.parent else ""),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(state.labels.items()))),
        ("owner", str(owner) if owner else left_text(state) if state.status == "active" else ""),
        ("under way", _under_way(owner)),
        ("by", state.by or ""),
    ]
    for name, text in told:
        if text:
            screen.line((f"{name}: ", "dim"), cut(text))
    _show_error(screen, state)
    _show_pause(screen, state)
    if state.status in ("failed", "cancelled") or (state.status == "active" and owner is None):
        screen.line(("go on: ", "dim"), f"stategraph resume {state.run_id} --graph MODULE:NAME")


def _under_way(owner: Owner | None) -> str:
    if owner is None or owner.node is None or owner.node_since is None:
        return ""
    return f"{owner.node}, for {span((datetime.now(UTC) - owner.node_since).total_seconds())}"


def _show_error(screen: Screen, state: State) -> None:
    error = state.error
    if error is None:
        return
    screen.line((f"failed at {cut(error.node)}: {cut(error.type)}", "red"))
    for line in (*error.message.splitlines(), *error.traceback.splitlines()):
        screen.line(f"  {cut(line, 2 * SHORT)}")


def _show_pause(screen: Screen, state: State) -> None:
    pauses = () if state.pause is None else state.pause.each
    for pause in pauses:
        _show_one(screen, state.run_id, pause, is_one=len(pauses) == 1)


def _show_one(screen: Screen, run_id: str, pause: Pause, *, is_one: bool) -> None:
    deadline = "" if pause.deadline is None else f", until {ago(pause.deadline)}"
    waited = span((datetime.now(UTC) - pause.at).total_seconds())
    part = f", part {cut(pause.part)}," if pause.part else ""
    screen.line((f"waits at {cut(pause.node)}{part} for {waited}{deadline}: {cut(pause.reason)}", "yellow"))
    screen.line(("asks: ", "dim"), value_text(pause.value))
    param = "" if pause.response_param is None else " VALUE"
    which = "" if is_one else f" --pause {pause.id}"
    screen.line(("answer: ", "dim"), f"stategraph answer {run_id}{param} --graph MODULE:NAME{which}")
