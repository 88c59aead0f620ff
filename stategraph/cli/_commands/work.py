"""``stategraph work``."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._graphs import load_graph
from stategraph.cli._options import parsed_renames

_EXAMPLES = """
\b
Examples:
  stategraph work app.flows:orders --concurrency 4
  stategraph work app.flows:orders --once

Runs come from graph.submit, or were left by a process that has ended. Ctrl-C or SIGTERM stops it once the runs that it
is at work on are done, or before their next nodes after --grace SECONDS; once more stops it at once. Other workers go
on with them. If the store does not answer at the start, it waits for it; with --once, it fails.
"""


@click.command("work", epilog=_EXAMPLES)
@click.argument("graph", metavar="MODULE:NAME", envvar="STATEGRAPH_GRAPH")
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at the same time.")
@click.option("--every", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="End when there is nothing left to do; the exit code is 1 if a run failed.")
@click.option("--max-recoveries", type=click.IntRange(min=1), default=10, show_default=True, help="As for recover.")
@click.option("--allow-changed", is_flag=True, help="Go on even if the graph has changed since.")
@click.option("--migrate", "renames", multiple=True, metavar="OLD=NEW", help="A node has another name since.")
@click.option(
    "--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="When stopped, leave runs that take longer."
)
@common
@asked
def command(
    request: Asked,
    /,
    graph: str,
    concurrency: int,
    every: float,
    once: bool,
    renames: tuple[str, ...],
    **how: Any,
) -> int:
    """Go on with runs as they come.

    They are those of a graph that nobody is at work on.
    """
    from stategraph.cli._worker import Worker, load_patiently

    load = partial(load_graph, graph)
    flow = load() if once else load_patiently(load)
    request.check_store(flow.store)
    how["migrate"] = parsed_renames(renames)
    return Worker(flow, request.screen, every, once, how.pop("grace"), how).work(concurrency)
