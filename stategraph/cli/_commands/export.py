"""``stategraph export``."""

from __future__ import annotations

import json
from typing import IO

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._options import run_ids
from stategraph.cli._transfer import row_store

_EXAMPLES = """
\b
Examples:
  stategraph export review-42 > review-42.jsonl
  stategraph --store other.db import review-42.jsonl
  stategraph --store runs.db export --all | stategraph --store postgresql://server/runs import -
"""


@click.command("export", epilog=_EXAMPLES)
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=run_ids)
@click.option("--all", "is_all", is_flag=True, help="All runs of the store, the oldest first.")
@click.option(
    "-o",
    "--output",
    type=click.File("w", encoding="utf-8"),
    default="-",
    help="A file; stdout if not given.",
)
@common
@asked
def command(request: Asked, runs: tuple[str, ...], is_all: bool, output: IO[str]) -> None:
    """Write runs as lines of JSON.

    They tell their histories, and all that is nested in them. With --json it is one list of what would stand on the
    lines.
    """
    if bool(runs) == is_all:
        raise click.UsageError("which runs? Name them, or give --all", click.get_current_context())
    store = row_store(request.open())
    wanted = reversed([run.run_id for run in store.iter_runs()]) if is_all else runs
    lines = (line for run_id in wanted for line in store.export_run(run_id))
    if request.is_json:
        json.dump([json.loads(line) for line in lines], output)
        output.write("\n")
        return
    for line in lines:
        output.write(f"{line}\n")
