"""``stategraph runs``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._options import parsed_labels, parsed_moment
from stategraph.cli._screen import STYLES, Cell, Screen, note
from stategraph.cli._shapes import owner_shape, summary_shape
from stategraph.cli._text import ago, clean, failure_text, left_text

if TYPE_CHECKING:
    from stategraph._values.provenance import Owner, StatusName
    from stategraph.stores.summaries import Summary

_EXAMPLES = """
\b
Examples:
  stategraph runs --status paused --since 2h
  stategraph runs --graph orders --label customer=c7 --since 2026-03-01
  stategraph runs --json | jq -r '.runs[].run_id'
"""


@click.command("runs", epilog=_EXAMPLES)
@click.option("--status", type=click.Choice(["active", "paused", "completed", "failed", "cancelled"]))
@click.option("--graph", help="Only runs of the graph of this name.")
@click.option("--prefix", help="Only runs whose ids begin with this.")
@click.option("--parent", metavar="RUN", help="Only runs that are forked from this one, or nested in it.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only runs with this label.")
@click.option(
    "--since", type=parsed_moment, metavar="WHEN", help="Only runs that began then or later: 2h, 7d, or a local time."
)
@click.option("--owned/--left", default=None, help="Only runs that somebody is at work on, or that nobody is.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--after", metavar="CURSOR", help="Go on where the page before ended.")
@common
@asked
def command(  # noqa: PLR0913, PLR0917 - its options
    request: Asked,
    status: StatusName | None,
    graph: str | None,
    prefix: str | None,
    parent: str | None,
    labels: tuple[str, ...],
    since: datetime | None,
    owned: bool | None,
    limit: int,
    after: str | None,
) -> None:
    """List runs; the one that began last comes first."""
    store = request.open()
    found = store.runs(
        status,
        graph,
        limit + 1,
        after,
        prefix=prefix,
        parent=parent,
        labels=parsed_labels(labels),
        since=since,
        owned=owned,
    )
    page, more = found[:limit], len(found) > limit
    at_work = {run.run_id: store.owner(run.run_id) if run.status == "active" else None for run in page}
    cursor = page[-1].cursor if more else None
    if request.is_json:
        shapes = [{**summary_shape(run), "owner": owner_shape(at_work[run.run_id])} for run in page]
        request.screen.document({"runs": shapes, "next": cursor})
        return
    _show(request.screen, page, at_work)
    if cursor is not None:
        note(f"there are more: --after {cursor}")


def _show(screen: Screen, page: list[Summary], at_work: dict[str, Owner | None]) -> None:
    if not page:
        note("no runs")
        return
    rows = [_row(screen, run, at_work[run.run_id]) for run in page]
    screen.table(("run", "status", "graph", "step", "at", "when", ""), rows)


def _row(screen: Screen, run: Summary, owner: Owner | None) -> tuple[Cell, ...]:
    node = run.error.node if run.error else run.pause.node if run.pause else run.checkpoint_node
    when = ago(run.timestamp) if screen.is_terminal else run.timestamp.isoformat()
    status = str(run.status)
    return run.run_id, (status, STYLES[status]), run.graph or "", str(run.step), node, when, (_why(run, owner), "dim")


def _why(run: Summary, owner: Owner | None) -> str:
    """Say in a few words why a run stands as it does."""
    if run.error is not None:
        return failure_text(run.error.type, run.error.message)
    if run.pause is not None:
        return f"waits: {run.pause.reason}"
    if run.status == "active":
        return left_text(run) if owner is None else f"at work: {clean(str(owner))}"
    return "" if run.parent is None else f"of {run.parent.run_id}, step {run.parent.step}"
