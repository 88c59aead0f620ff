"""``stategraph history``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._looking import story
from stategraph.cli._options import run_argument
from stategraph.cli._screen import STYLES, Screen
from stategraph.cli._shapes import summary_shape
from stategraph.cli._text import ago, cut, failure_text, node_text, span

if TYPE_CHECKING:
    from stategraph.stores.summaries import Summary

_EXAMPLES = """
\b
Examples:
  stategraph history review-42
  stategraph history review-42 --last 20
  stategraph history review-42 --json | jq -r '.[] | select(.by) | [.kind, .by, .timestamp] | @tsv'

With retention "full" it is the whole story of the run; else, what is kept of it.
"""

COLUMNS = ("step", "kind", "node", "took", "when", "")
"""Of a row of a history."""


@click.command("history", epilog=_EXAMPLES)
@run_argument
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last rows.")
@common
@asked
def command(request: Asked, run_id: str, last: int | None) -> None:
    """Tell what became of a run, a row for each checkpoint."""
    rows = story(request.open(), run_id)
    rows = rows[-last:] if last else rows
    if request.is_json:
        request.screen.document([summary_shape(row) for row in rows])
        return
    request.screen.table(COLUMNS, [history_row(request.screen, row) for row in rows])


def history_row(screen: Screen, row: Summary) -> tuple[str, tuple[str, str], str, str, str, tuple[str, str]]:
    """Return what is shown of a checkpoint."""
    number = f"{row.step}.{row.revision}" if row.revision else str(row.step)
    style = STYLES.get(str(row.status), "")
    took = "" if row.took is None else span(row.took)
    when = ago(row.timestamp) if screen.is_terminal else row.timestamp.isoformat()
    return number, (str(row.kind), style), cut(node_text(row)), took, when, (_more(row), "dim")


def _more(row: Summary) -> str:
    """Say what else is known of a row, in a few words."""
    told = [
        "" if row.by is None else f"by {row.by}",
        "" if row.attempts == 1 else f"in {row.attempts} attempts",
        "" if row.error is None else failure_text(row.error.type, row.error.message),
        "" if row.pause is None else row.pause.reason,
    ]
    return cut("; ".join(filter(None, told)))
