"""``stategraph migrate``."""

from __future__ import annotations

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import done
from stategraph.cli._screen import note
from stategraph.errors import FormatError

_EXAMPLES = """
\b
Examples:
  stategraph --store postgresql://server/runs migrate
  stategraph --store postgresql://server/runs migrate --print | psql --single-transaction postgresql://admin@server/runs
"""


@click.command("migrate", epilog=_EXAMPLES)
@click.option("--print", "is_printed", is_flag=True, help="Print the SQL for an administrator, and change nothing.")
@common
@asked
def command(request: Asked, is_printed: bool) -> None:
    """Make a store, or bring its tables up to date.

    A store that is up to date stays as it is.
    """
    if not is_printed:
        store = request.open(to_change=True, may_make=True, migrate=True)
        done(request.screen, {"store": str(store), "migrated": True}, f"{store}: up to date")
        return
    statements = _missing(request)
    if request.is_json:
        request.screen.document({"statements": list(statements)})
    elif statements:
        click.echo("".join(f"{statement};\n" for statement in statements), nl=False)
    else:
        note("the store is up to date: there is nothing to run")


def _missing(request: Asked) -> tuple[str, ...]:
    """Return the statements that make the tables which are missing."""
    try:
        request.open(migrate=False)
    except FormatError as error:
        if not error.statements:
            raise
        return error.statements
    return ()
