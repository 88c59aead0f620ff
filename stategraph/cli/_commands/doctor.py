"""``stategraph doctor``."""

from __future__ import annotations

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._exits import Exit, as_commands
from stategraph.cli._text import cut

_EXAMPLES = """
\b
Examples:
  stategraph doctor
  stategraph doctor --json | jq '.damaged[].run_id'

It reads everything, and changes nothing. The exit code is 6 if something is damaged.
"""


@click.command("doctor", epilog=_EXAMPLES)
@common
@asked
def command(request: Asked) -> int:
    """Read all that a store holds, and say what of it is damaged."""
    store = request.open()
    found = store.verify()
    screen = request.screen
    if request.is_json:
        screen.document(
            {
                "store": str(store),
                "runs": dict(found.runs),
                "nested": found.nested,
                "checkpoints": found.checkpoints,
                "damaged": [{"run_id": one.run_id, "reason": one.reason} for one in found.damaged],
                "unreadable": [{"run_id": one.run_id, "reason": one.reason} for one in found.unreadable],
            }
        )
        return Exit.DAMAGED if found.damaged else Exit.OK
    screen.line(str(store))
    statuses = ", ".join(f"{count:,} {status}" for status, count in found.runs.items())
    count = sum(found.runs.values())
    screen.line(f"{count:,} runs{f' ({statuses})' if count else ''}, {found.nested:,} nested in them")
    screen.line(f"{found.checkpoints:,} checkpoints")
    screen.line((f"{len(found.damaged):,} damaged", "red" if found.damaged else "green"))
    for damage in found.damaged:
        screen.line((cut(damage.run_id) or "the store", "bold"), f": {cut(as_commands(damage.reason), 1000)}")
    for other in found.unreadable:
        screen.line((cut(other.run_id), "bold"), f" cannot be read here: {cut(other.reason, 1000)}")
    return Exit.DAMAGED if found.damaged else Exit.OK
