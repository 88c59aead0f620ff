"""``stategraph delete``."""

from __future__ import annotations

from typing import Any

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import confirm, done, sure
from stategraph.cli._looking import standing
from stategraph.cli._options import run_argument, take_over_option

_EXAMPLES = """
\b
Examples:
  stategraph delete review-42
  stategraph runs --status failed --json | jq -r '.runs[].run_id' | xargs -n1 stategraph delete --yes
"""


@click.command("delete", epilog=_EXAMPLES)
@run_argument
@take_over_option
@sure
@common
@asked
def command(request: Asked, run_id: str, take_over: bool, yes: bool) -> None:
    """Forget a run, and all that is nested in it."""
    store: Any = request.open(to_change=True)
    confirm(f"forget {run_id} ({standing(store, run_id)})?", yes)
    store.delete(run_id, **({"take_over": True} if take_over else {}))
    done(request.screen, {"run_id": run_id, "deleted": True}, f"{run_id}: forgotten")
