"""``stategraph fork``."""

from __future__ import annotations

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import done
from stategraph.cli._options import at_step, run_argument
from stategraph.cli._shapes import state_shape

_EXAMPLES = """
\b
Examples:
  stategraph fork review-42 review-42-again
  stategraph fork review-42 review-42-cheaper --step 3
"""


@click.command("fork", epilog=_EXAMPLES)
@run_argument
@click.argument("new_run_id", metavar="NEW")
@at_step
@common
@asked
def command(request: Asked, run_id: str, new_run_id: str, step: int | None, revision: int | None) -> None:
    """Copy a run, with its history up to a step, under another id."""
    state = request.open(to_change=True).fork(run_id, new_run_id, step, revision)
    done(request.screen, state_shape(state, None, ()), f"{new_run_id}: {state.status}, at step {state.step}")
