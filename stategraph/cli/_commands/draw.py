"""``stategraph draw``."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._exits import Exit, Failure
from stategraph.cli._graphs import load_graph
from stategraph.cli._looking import look
from stategraph.cli._options import run_ids

_EXAMPLES = """
\b
Examples:
  stategraph draw review-42 -o review-42.svg
  stategraph draw --graph app.flows:review

A run is drawn over its graph as the store keeps that: no code is needed.
"""

_FORMS = {".svg": "svg", ".html": "html", ".mmd": "mermaid", ".mermaid": "mermaid", "": "mermaid"}


def _form_of(file: str) -> str:
    """Return the format that the name of a file stands for; stdout has none."""
    suffix = Path(file).suffix.lower()
    if suffix not in _FORMS:
        raise Failure(Exit.USAGE, f"-o {file}: say the --format, or let it end in .svg, .html, .mmd or .mermaid")
    return _FORMS[suffix]


@click.command("draw", epilog=_EXAMPLES)
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=run_ids)
@click.option("--graph", metavar="MODULE:NAME", help="A graph to draw instead; its module is imported.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "svg", "html"]),
    help="That of the file, or Mermaid, if not given.",
)
@click.option(
    "-o",
    "--output",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    help="A file; stdout if not given.",
)
@common
@asked
def command(request: Asked, run_id: str | None, graph: str | None, form: str | None, output: IO[str]) -> None:
    """Draw a run over its graph, or a graph."""
    if (run_id is None) == (graph is None):
        raise Failure(Exit.USAGE, "give either the run to draw, or --graph MODULE:NAME")
    form = form or _form_of(output.name)
    if run_id is None:
        picture = load_graph(str(graph)).picture()
    else:
        from stategraph.picture import picture_of_run  # imported when used: it draws, which few commands do

        store = request.open()
        picture = picture_of_run(store, look(store, run_id, None, None))
    text = {"mermaid": picture.to_mermaid, "svg": picture.to_svg, "html": picture.to_html}[form]()
    if request.is_json:
        request.screen.document({"format": form, "picture": text})
    else:
        output.write(text if text.endswith("\n") else f"{text}\n")
