"""``stategraph answer``."""

from __future__ import annotations

from typing import Any

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._changing import ended, went_on
from stategraph.cli._exits import Exit, Failure
from stategraph.cli._graphs import load_graph
from stategraph.cli._options import by_option, graph_option, parsed_value, run_argument, wait_option

_EXAMPLES = """
\b
Examples:
  stategraph answer review-42 true --graph app.flows:review --by ann
  stategraph answer review-42 '{"amount": 40}' --graph app.flows:review --pause 5c41a7

The store is that of the graph.
"""


@click.command("answer", epilog=_EXAMPLES)
@run_argument
@click.argument("value", required=False)
@graph_option
@click.option("--pause", metavar="ID", help="The pause that is answered, by its id or the beginning of it.")
@by_option
@wait_option
@common
@asked
def command(request: Asked, /, run_id: str, value: str | None, graph: str, pause: str | None, **how: Any) -> int:
    """Answer a run that waits, and go on with it. VALUE is JSON, or text."""
    flow = load_graph(graph)
    request.check_store(flow.store)
    state = flow.store.load(run_id)
    if state.pause is None:
        is_left = state.status in ("failed", "cancelled")
        way_out = "" if not is_left else f"; to go on with other data: stategraph resume {run_id} --set KEY=VALUE"
        raise Failure(Exit.CONFLICT, f"{run_id} waits for no answer: it is {state.status}{way_out}")
    begun = [one for one in state.pause.each if pause and one.id.startswith(pause)]
    asking, pause = (begun[0], begun[0].id) if len(begun) == 1 else (state.pause, pause)
    if state.pause.others and pause is None:
        raise click.UsageError(
            f"{run_id} waits for {len(state.pause.each)} answers: say which is given, with --pause; "
            f"stategraph show {run_id} has them",
            click.get_current_context(),
        )
    if asking.response_param is None:
        if value is not None:
            raise click.UsageError(f"{run_id} waits for no value: leave out VALUE", click.get_current_context())
        updates = None
    elif value is None:
        raise click.UsageError(f"{run_id} waits for {asking.response_param!r}: give VALUE", click.get_current_context())
    else:
        updates = {asking.response_param: parsed_value(value)}
    return ended(request.screen, went_on(request.screen, flow, run_id, updates, pause=pause or asking, **how))
