"""``stategraph prune``."""

from __future__ import annotations

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import confirm, done, sure
from stategraph.cli._screen import note

_EXAMPLES = """
\b
Examples:
  stategraph prune
  stategraph prune --yes --json
"""


@click.command("prune", epilog=_EXAMPLES)
@sure
@common
@asked
def command(request: Asked, yes: bool) -> None:
    """Remove what retention does not keep.

    That is completed runs whose time is over, and old checkpoints.
    """
    store = request.open(to_change=True)
    confirm(f"remove from the {store} what the retention of its runs does not keep?", yes)
    pruned = store.prune()
    shape = {"runs": list(pruned.runs), "checkpoints": pruned.checkpoints, "damaged": list(pruned.damaged)}
    done(request.screen, shape, f"{len(pruned.runs)} runs, and {pruned.checkpoints} checkpoints of others")
    if pruned.damaged and not request.is_json:
        note(f"{len(pruned.damaged)} damaged runs were left as they are: stategraph doctor")
