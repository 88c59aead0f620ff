"""``stategraph import``."""

from __future__ import annotations

from typing import IO

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._transfer import row_store
from stategraph.errors import FormatError

_EXAMPLES = """
\b
Examples:
  stategraph import review-42.jsonl
  stategraph --store old.db export review-42 | stategraph --store new.db import -
  stategraph --store runs.db export --all | stategraph --store postgresql://server/runs import -
"""


@click.command("import", epilog=_EXAMPLES)
@click.argument("file", type=click.File("r", encoding="utf-8"))
@common
@asked
def command(request: Asked, file: IO[str]) -> None:
    """Begin the runs of an export.

    Each begins as a whole, or not at all. A store that is not there is made.
    """
    store = row_store(request.open(to_change=True, may_make=True))
    try:
        found = store.import_runs(file)
    except FormatError as error:
        error.add_note(f"read from {file.name}")
        raise
    if request.is_json:
        request.screen.document({"runs": found})
        return
    for run_id in found:
        request.screen.line(run_id)
