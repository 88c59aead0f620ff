"""``stategraph diff``."""

from __future__ import annotations

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._options import run_argument
from stategraph.cli._shapes import difference_shape
from stategraph.cli._text import cut, value_text

_EXAMPLES = """
\b
Examples:
  stategraph diff review-42 3 5
  stategraph diff review-42 3 3 --other review-42-cheaper
"""


@click.command("diff", epilog=_EXAMPLES)
@run_argument
@click.argument("a", type=click.IntRange(min=0))
@click.argument("b", type=click.IntRange(min=0))
@click.option("--other", metavar="RUN", help="B is a step of this run.")
@common
@asked
def command(request: Asked, run_id: str, a: int, b: int, other: str | None) -> None:
    """Show how the data of step B differ from those of step A."""
    difference = request.open().diff(run_id, a, b, other)
    if request.is_json:
        request.screen.document(difference_shape(difference))
        return
    for key, value in difference.removed.items():
        request.screen.line((f"- {cut(key)} = {value_text(value)}", "red"))
    for key, value in difference.added.items():
        request.screen.line((f"+ {cut(key)} = {value_text(value)}", "green"))
    for key, (one, two) in difference.changed.items():
        request.screen.line((f"~ {cut(key)}: {value_text(one)} -> {value_text(two)}", "yellow"))
