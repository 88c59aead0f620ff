"""``stategraph resume``."""

from __future__ import annotations

from typing import Any

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import ended, went_on
from stategraph.cli._graphs import load_graph
from stategraph.cli._options import (
    by_option,
    graph_option,
    parsed_pairs,
    parsed_renames,
    run_argument,
    take_over_option,
    wait_option,
)

_EXAMPLES = """
\b
Examples:
  stategraph resume review-42 --graph app.flows:review
  stategraph resume review-42 --graph app.flows:review --set limit=20 --by ann

The store is that of the graph. --by is kept with what --set or an answer adds to the history.
"""


@click.command("resume", epilog=_EXAMPLES)
@run_argument
@graph_option
@click.option("--set", "updates", multiple=True, metavar="KEY=VALUE", help="Lay this over the data; JSON, or text.")
@click.option("--allow-changed", is_flag=True, help="Go on even if the graph has changed since.")
@click.option("--migrate", "renames", multiple=True, metavar="OLD=NEW", help="A node has another name since.")
@by_option
@wait_option
@take_over_option
@common
@asked
def command(
    request: Asked, /, run_id: str, graph: str, updates: tuple[str, ...], renames: tuple[str, ...], **how: Any
) -> int:
    """Go on with a run from its last checkpoint.

    That is done in this process, until the run ends or pauses.
    """
    how["migrate"] = parsed_renames(renames)
    flow = load_graph(graph)
    request.check_store(flow.store)
    return ended(request.screen, went_on(request.screen, flow, run_id, parsed_pairs(updates) or None, **how))
