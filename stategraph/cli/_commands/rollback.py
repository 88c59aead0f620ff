"""``stategraph rollback``."""

from __future__ import annotations

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import confirm, done, sure
from stategraph.cli._looking import standing
from stategraph.cli._options import by_option, revision_option, run_argument, take_over_option
from stategraph.cli._shapes import state_shape

_EXAMPLES = """
\b
Examples:
  stategraph rollback review-42 --step 3
  stategraph rollback review-42 --step 3 --by ann --yes

With retention "full" nothing is forgotten: what came later stays in the history.
"""


@click.command("rollback", epilog=_EXAMPLES)
@run_argument
@click.option("--step", type=click.IntRange(min=0), help="To this step; it has to be given.")
@revision_option
@by_option
@take_over_option
@sure
@common
@asked
def command(  # noqa: PLR0917 - its options
    request: Asked, run_id: str, step: int | None, revision: int | None, by: str | None, take_over: bool, yes: bool
) -> None:
    """Take a run back to a step: it goes on from there."""
    if step is None:
        raise click.UsageError("to which step? Give --step", click.get_current_context())
    store = request.open(to_change=True)
    confirm(f"take {run_id} ({standing(store, run_id)}) back to step {step}?", yes)
    state = store.rollback(run_id, step, revision, take_over=take_over, by=by)
    done(request.screen, state_shape(state, None, ()), f"{run_id}: back at step {state.step}, {state.status}")
