"""Arguments and options that several commands take."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from stategraph.cli._asked import Asked
from stategraph.cli._exits import Exit, Failure

_MOST_COMPLETED = 50
_Function = TypeVar("_Function", bound=Callable[..., Any])


def parsed_labels(labels: Sequence[str]) -> dict[str, str] | None:
    """Return labels that are given as NAME=VALUE; None if there are none."""
    pairs = [label.partition("=") for label in labels]
    if not all(separator for _, separator, _ in pairs):
        raise Failure(Exit.USAGE, "--label: give it as NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


def parsed_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the updates that are given as KEY=VALUE."""
    parts = [pair.partition("=") for pair in pairs]
    if not all(separator for _, separator, _ in parts):
        raise Failure(Exit.USAGE, "--set: give it as KEY=VALUE")
    return {key: parsed_value(value) for key, _, value in parts}


def parsed_value(text: str) -> Any:
    """Return the value that a person means: that of JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def run_ids(context: click.Context, parameter: click.Parameter, beginning: str) -> list[str]:
    """Return the ids of the newest runs that begin so, for the shell to complete; none where there is no store."""
    asked = context.ensure_object(Asked)
    try:
        from stategraph.cli._opening import find

        with find(asked.store, asked.config).open(to_change=False) as store:
            return [run.run_id for run in store.runs(prefix=beginning or None, limit=_MOST_COMPLETED)]
    except Exception:  # noqa: BLE001 - nobody reads an error in the middle of a word
        return []


_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


def parsed_moment(text: str) -> datetime:
    """Return the time that a person means: a date, a date and a time, or how long ago."""
    try:
        if found := re.fullmatch(r"(\d{1,6}) ?(s|min|h|d)", text):
            return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        known = "give 2026-03-01, '2026-03-01 09:30' or, for how long ago, 90min, 2h, 7d"
        raise click.BadParameter(f"{text!r} is no time: {known}") from None


def parsed_renames(pairs: Sequence[str]) -> dict[str, str] | None:
    """Return the new names of nodes that are given as OLD=NEW, by the old ones; None if there are none."""
    parts = [pair.partition("=") for pair in pairs]
    if not all(old and new for old, _, new in parts):
        raise Failure(Exit.USAGE, "--migrate: give it as OLD=NEW")
    return {old: new for old, _, new in parts} or None


run_argument = click.argument("run_id", metavar="RUN", shell_complete=run_ids)
"""The run that a command is about."""

graph_option = click.option(
    "--graph",
    required=True,
    envvar="STATEGRAPH_GRAPH",
    metavar="MODULE:NAME",
    help="The graph, or a function that makes it; its module is imported, which runs its code.",
)
by_option = click.option("--by", metavar="WHO", help="Who does this, for the history.")
wait_option = click.option(
    "--wait", type=float, metavar="SECONDS", help="Wait while another call is at work on the run."
)
take_over_option = click.option("--take-over", is_flag=True, help="Take the run from whoever is at work on it.")

revision_option = click.option(
    "--revision", type=click.IntRange(min=0), help="This revision of the step; the newest if not given."
)
step_options: tuple[Callable[[Any], Any], ...] = (
    click.option("--step", type=click.IntRange(min=0), help="Of this step; the newest if not given."),
    revision_option,
)


def at_step(function: _Function) -> _Function:
    """Let a command take a step and a revision."""
    for option in reversed(step_options):
        function = option(function)
    return function
