"""``stategraph export``."""

from __future__ import annotations

import json
from typing import IO

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._options import run_argument
from stategraph.cli._transfer import row_store

_EXAMPLES = """
\b
Examples:
  stategraph export review-42 > review-42.jsonl
  stategraph --store other.db import review-42.jsonl
"""


@click.command("export", epilog=_EXAMPLES)
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    help="A file; stdout if not given.",
)
@common
@asked
def command(request: Asked, run_id: str, output: IO[str]) -> None:
    """Write a run as lines of JSON.

    They tell its history, and all that is nested in it. With --json it is one list of what would stand on the lines.
    """
    lines = row_store(request.open()).export_run(run_id)
    if request.is_json:
        json.dump([json.loads(line) for line in lines], output)
        output.write("\n")
        return
    for line in lines:
        output.write(f"{line}\n")
