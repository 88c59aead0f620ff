"""The decorator that makes commands of functions, and the options that commands share."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import click

from stategraph._progress import state_as
from stategraph.cli._opening import imported, load_graph, open_store
from stategraph.cli._output import Exit, Failure, Screen, note
from stategraph.errors import CheckpointNotFoundError, StateGraphError
from stategraph.stores._codec.type_codecs import unknown_shown
from stategraph.stores._seen import as_seen

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.state import State
    from stategraph.stores.base import CheckpointStore

_MOST_COMPARED = 1_000
"""How many of the newest runs are compared with an unknown id."""
_MOST_COMPLETED = 50

Option: TypeAlias = Callable[[Any], Any]


@attrs.define(slots=False)
class Request:
    """The options of every command, and the store that they name.

    Attributes:
        store: The address of the store, if one was given.
        config: The file of the configuration, if one was given.
        is_json: Whether to print JSON.
        modules: The modules to import first.
    """

    store: str | None = None
    config: str | None = None
    is_json: bool = False
    modules: tuple[str, ...] = ()
    _opened: CheckpointStore | None = None

    @cached_property
    def screen(self) -> Screen:
        """The output of the command."""
        return Screen(self.is_json)

    @property
    def address(self) -> str | None:
        """The address of the store. The environment names it unless an option names a configuration."""
        return self.store or (None if self.config else os.environ.get("STATEGRAPH_STORE"))

    def find(self, **how: bool) -> CheckpointStore:
        """Open the store as `open_store` does."""
        return open_store(self.address, self.config or os.environ.get("STATEGRAPH_CONFIG"), **how)

    def open(self, **how: bool) -> CheckpointStore:
        """Open the store until the command ends. Values of unregistered types are opaque."""
        store = self._opened = self.find(**how)
        context = click.get_current_context()
        context.call_on_close(store.close)
        context.with_resource(unknown_shown())
        return store if how.get("to_change") else as_seen(store)

    def seen(self, state: State) -> State:
        """Return a State as people see it."""
        shown = None if self._opened is None else self._opened.shown
        return state if shown is None else state_as(state, shown)

    def graph(self, name: str) -> StateGraph:
        """Import a graph, and use its store."""
        graph = load_graph(name)
        self.check_store(graph.store)
        return graph

    def check_store(self, store: CheckpointStore) -> None:
        """Use the store of a graph.

        Raises:
            Failure: the option ``--store`` names another store.
        """
        self._opened = store
        if self.store and _is_elsewhere(store, self.store):
            raise Failure(
                Exit.USAGE,
                f"--store: the graph keeps its runs in the {store}: leave --store out or, where the graph names it "
                "by a relative path, start in the folder to which that path is relative",
            )
        is_comparable = hasattr(store, "path") or "://" not in (self.address or "")
        if self.config or (self.address and is_comparable and _is_elsewhere(store, self.address)):
            ignored = "--config" if self.config else "STATEGRAPH_STORE"
            note(f"stategraph: {ignored} is ignored: the graph keeps its runs in the {store}")

    def similar_id(self, run_id: str) -> str:
        """Return a known run id that is similar to this one; empty if there is none."""
        try:
            known = [] if self._opened is None else [run.run_id for run in self._opened.runs(limit=_MOST_COMPARED)]
        except StateGraphError:
            return ""
        return "".join(difflib.get_close_matches(run_id, known, 1, 0.75))


def _is_elsewhere(store: CheckpointStore, address: str) -> bool:
    """Return whether a store is not in this file or folder."""
    path: Path | None = getattr(store, "path", None)
    return path is None or Path(address).expanduser().resolve() != Path(path).resolve()


# --------------------------------------------------------------------------- commands


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    request = context.ensure_object(Request)
    if option.multiple:  # both before and after the name of the command
        request.modules += value
    elif value:
        setattr(request, str(option.name), value)


def _common(*names: str, **how: Any) -> Option:
    return click.option(*names, expose_value=False, is_eager=True, callback=_keep, **how)


def common(function: Any) -> Any:
    """Add the options of every command. They may also stand before its name."""
    for option in (
        _common(
            "--import",
            "modules",
            metavar="MODULE",
            multiple=True,
            help="Import a module first, which registers serializers or types.",
        ),
        _common("--json", "is_json", is_flag=True, help="Answer with one JSON document."),
        _common("--config", metavar="FILE", help="A graph.toml that names the store."),
        _common("--store", metavar="STORE", help="A sqlite file, a disk folder, or a URL."),
    ):
        function = option(function)
    return function


def command(examples: str, *options: Option) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command of a function of a Request and options. The command has its name.

    Args:
        examples: The text after "Examples:" in the help.
        options: The arguments and options of the command.
    """

    def declare(function: Callable[..., Any]) -> click.Command:
        @wraps(function)
        def call(request: Request, /, **values: Any) -> Any:
            for module in (*os.environ.get("STATEGRAPH_IMPORT", "").split(), *request.modules):
                imported(module)
            try:
                return function(request, **values)
            except CheckpointNotFoundError as error:
                near = "" if error.step is not None else request.similar_id(error.run_id)
                if near:
                    error.add_note(f"did you mean {near}?")
                raise

        called = common(click.make_pass_decorator(Request, ensure=True)(call))
        for option in reversed(options):
            called = option(called)
        return click.command(function.__name__.rstrip("_"), epilog=f"\b\nExamples:{examples}")(called)

    return declare


# --------------------------------------------------------------------------- arguments and options


def parsed_pair(text: str) -> tuple[str, str]:
    """Return the two sides of a text such as ``NAME=VALUE``."""
    left, separator, right = text.partition("=")
    if not left or not separator:
        raise Failure(Exit.USAGE, f"{text!r} is no pair: give it as in NAME=VALUE")
    return left, right


def pairs(*names: str, **how: Any) -> Option:
    """Return an option for several pairs, which a command receives as a dict."""
    return click.option(
        *names, multiple=True, type=parsed_pair, callback=lambda _context, _option, given: dict(given), **how
    )


def parsed_value(text: str) -> Any:
    """Return the JSON value of a text, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


def parsed_moment(text: str) -> datetime:
    """Return the time of a text: a date, a date and a time, or how long ago."""
    try:
        if found := re.fullmatch(r"(\d{1,6}) ?(s|min|h|d)", text):
            return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        known = "give 2026-03-01, '2026-03-01 09:30' or, for how long ago, 90min, 2h, 7d"
        raise Failure(Exit.USAGE, f"{text!r} is not a time: {known}") from None


def run_ids(context: click.Context, parameter: click.Parameter, beginning: str) -> list[str]:
    """Return the newest run ids with this beginning, for completion in shells; none without a store."""
    try:
        with context.ensure_object(Request).find(completes=True) as store:
            return [run.run_id for run in store.runs(prefix=beginning or None, limit=_MOST_COMPLETED)]
    except Exception:  # noqa: BLE001 - completion shows no errors
        return []


RUN = click.argument("run_id", metavar="RUN", shell_complete=run_ids)
GRAPH = click.option(
    "--graph",
    required=True,
    envvar="STATEGRAPH_GRAPH",
    metavar="MODULE:NAME",
    help="The graph, or a function that makes it; its module is imported, which runs its code.",
)
BY = click.option("--by", metavar="WHO", help="Your name, for the history.")
WAIT = click.option("--wait", type=float, metavar="SECONDS", help="Wait while another call is at work on the run.")
TAKE_OVER = click.option("--take-over", is_flag=True, help="Take the run from its owner.")
ALLOW_CHANGED = click.option("--allow-changed", is_flag=True, help="Continue even if the graph has changed.")
ABANDON_PARTS = click.option("--abandon-parts", is_flag=True, help="Give up finished parts that the graph cannot use.")
REDO = click.option("--redo", multiple=True, metavar="PART", help="Do this item or branch of the step again: map/3.")
SERVES = click.option(
    "--serves",
    type=lambda text: parsed_value(f"[{text}]"),
    metavar="VERSIONS",
    help="Only runs of these versions of the graph: 2,3.",
)
RENAMES = pairs("--migrate", metavar="OLD=NEW", help="A node was renamed.")
REPEAT_EFFECTS = click.option("--repeat-effects", is_flag=True, help="Also if effects of nodes would be repeated.")
YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
STEP = click.option("--step", type=click.IntRange(min=0), help="This step; the newest by default.")
REVISION = click.option(
    "--revision", type=click.IntRange(min=0), help="This revision of the step; the newest by default."
)
EVERY: dict[str, Any] = {"type": click.FloatRange(min=0.01), "show_default": True, "metavar": "SECONDS"}
