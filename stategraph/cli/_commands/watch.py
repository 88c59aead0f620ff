"""``stategraph watch``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from stategraph._capabilities.follow import fresh_rows
from stategraph._values.provenance import Kind
from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import END_OF_CALL
from stategraph.cli._commands.history import history_row
from stategraph.cli._exits import Exit, Failure
from stategraph.cli._looking import story
from stategraph.cli._options import run_argument
from stategraph.cli._screen import STYLES, Cell, Screen, note
from stategraph.cli._shapes import summary_shape
from stategraph.cli._text import NOBODY, left_text

if TYPE_CHECKING:
    from stategraph.stores.summaries import Summary

_EXAMPLES = """
\b
Examples:
  stategraph watch review-42
  stategraph watch review-42 --json | jq -r .node

It ends with the run: 0 completed, 1 failed or cancelled, 4 paused. With --json, each row is a line.
"""
_SHARE = 4  # of the time, at most, is one part spent on looking


@click.command("watch", epilog=_EXAMPLES)
@run_argument
@click.option("--every", type=click.FloatRange(min=0.01), default=0.5, show_default=True, metavar="SECONDS")
@common
@asked
def command(request: Asked, run_id: str, every: float) -> int:
    """Follow a run as it goes on, until it ends or pauses."""
    store, screen = request.open(), request.screen
    newest, was_owned = story(store, run_id)[-1], None
    began, is_owned = time.monotonic(), store.owner(run_id) is not None
    for rows in fresh_rows(store, run_id):
        for row in rows:
            if request.is_json:
                screen.record(summary_shape(row))
            else:
                _show(screen, row)
        newest = rows[-1] if rows else newest
        if str(newest.status) in END_OF_CALL:
            return END_OF_CALL[str(newest.status)]
        if not is_owned and was_owned is not False and not request.is_json:
            note(_alone(newest, was_owned=was_owned is True))
        was_owned = is_owned
        time.sleep(max(every, _SHARE * (time.monotonic() - began)))
        # The owner is asked for before the rows: what it saves is there before it leaves.
        began, is_owned = time.monotonic(), store.owner(run_id) is not None
    raise Failure(Exit.NOT_FOUND, f"{run_id} is gone: it has completed, and is not preserved, or was deleted")


def _alone(last: Summary, *, was_owned: bool) -> str:
    if last.kind is Kind.INPUT and not was_owned:
        return f"{NOBODY} yet"
    left = f"left unfinished: {NOBODY}" if was_owned else left_text(last)
    return f"{left}; to go on: stategraph resume {last.run_id} --graph MODULE:NAME"


def _show(screen: Screen, row: Summary) -> None:
    number, kind, node, took, _, more = history_row(screen, row)
    style = STYLES.get(str(row.status), "")
    when: Cell = (f"{row.timestamp.astimezone():%H:%M:%S}  ", "dim")
    screen.line(when, f"{number:>6}  ", (f"{kind[0]:<9}", style), f"{node:<20}  {took:>7}  ", more)
