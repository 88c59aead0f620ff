"""``stategraph cancel``."""

from __future__ import annotations

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import done
from stategraph.cli._options import by_option, run_argument

_EXAMPLES = """
\b
Examples:
  stategraph cancel review-42
  stategraph cancel review-42 --by ann

A call that is at work on the run stops at its next save. To resume the run takes it up again.
"""


@click.command("cancel", epilog=_EXAMPLES)
@run_argument
@by_option
@common
@asked
def command(request: Asked, run_id: str, by: str | None) -> None:
    """Cancel a run, whatever process is at work on it."""
    owner = request.open(to_change=True).cancel(run_id, by=by)
    message = "cancelled" if owner is None else f"will stop at the next save of {owner}"
    done(request.screen, {"run_id": run_id, "cancelled": True, "at_once": owner is None}, f"{run_id}: {message}")
