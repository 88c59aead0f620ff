"""Asked: what the options say that every command takes, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from stategraph.cli._graphs import imported
from stategraph.cli._screen import Screen, note
from stategraph.errors import CheckpointNotFoundError, RunBusyError, StateGraphError

if TYPE_CHECKING:
    from stategraph.stores.base import CheckpointStore

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MOST_COMPARED = 1_000
"""A slip in an id is looked for among so many of the newest runs."""


class Asked:
    """The options that every command takes.

    Attributes:
        store: The store.
        config: The configuration that names it.
        is_json: Whether the answer is JSON.
        modules: The modules to import first.
    """

    def __init__(self) -> None:
        self.store: str | None = None
        self.config: str | None = None
        self.is_json = False
        self.modules: tuple[str, ...] = ()
        self._store: CheckpointStore | None = None

    @cached_property
    def screen(self) -> Screen:
        """Where the answer goes."""
        return Screen(self.is_json)

    def open(self, *, to_change: bool = False, **how: Any) -> CheckpointStore:
        """Open the store, as `Where.open` does; it is closed with the command.

        Values of types that are not registered here are opaque.
        """
        from stategraph.cli._opening import find  # imported when used: completion of commands needs none
        from stategraph.stores._codec.opaque import unknown_shown

        if self.store and self._was_given("config") and not self._was_given("store"):
            note("stategraph: --config is not looked at: STATEGRAPH_STORE goes before it")
        store = self._store = find(self.store, self.config).open(to_change=to_change, **how)
        context = click.get_current_context()
        context.call_on_close(store.close)
        context.with_resource(unknown_shown())
        return store

    def check_store(self, store: CheckpointStore) -> None:
        """Take the store of the graph of a command as the one that is asked for.

        Raises:
            UsageError: another one was named.
        """
        self._store = store
        if self._was_given("store") and not _is_at(store, str(self.store)):
            message = (
                f"--store: the graph keeps its runs in the {store}: leave --store out or, where the graph names it "
                "by a relative path, start in the folder that this counts from"
            )
            raise click.UsageError(message, click.get_current_context())
        if self._was_given("config"):
            note(f"stategraph: --config is not looked at: the graph keeps its runs in the {store}")

    def _was_given(self, option: str) -> bool:
        """Return whether an option stands in the command line, before the command or behind it."""
        context = click.get_current_context()
        sources = [one.get_parameter_source(option) for one in (context, context.parent) if one is not None]
        return ParameterSource.COMMANDLINE in sources

    def like(self, run_id: str) -> str | None:
        """Return the id of a run that was perhaps meant."""
        import difflib  # imported when used

        try:
            known = [] if self._store is None else [run.run_id for run in self._store.runs(limit=_MOST_COMPARED)]
        except StateGraphError:
            return None
        return next(iter(difflib.get_close_matches(run_id, known, 1, 0.75)), None)


def _is_at(store: CheckpointStore, address: str) -> bool:
    """Return whether a store is the one in a file or a folder."""
    path: object = getattr(store, "path", None)
    return path is not None and Path(address).expanduser().resolve() == Path(str(path)).resolve()


def asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what was asked. Where there is no such run, the error gets a note of one that is named alike."""

    @wraps(function)
    def call(request: Asked, /, *args: Any, **options: Any) -> Any:
        for module in request.modules:
            imported(module)
        try:
            return function(request, *args, **options)
        except CheckpointNotFoundError as error:
            if error.step is None and (near := request.like(error.run_id)):
                error.add_note(f"did you mean {near}?")
            raise
        except RunBusyError as error:
            taken = {parameter.name for parameter in click.get_current_context().command.params}
            wait = "wait for it (--wait SECONDS)" if "wait" in taken else "wait until it is done"
            way_out = " or, if it hangs, take the run away from it (--take-over)" if "take_over" in taken else ""
            error.add_note(wait + way_out)
            raise

    return click.make_pass_decorator(Asked, ensure=True)(call)


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    name, asked_for = str(option.name), context.ensure_object(Asked)
    is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if value and (is_given or not getattr(asked_for, name)):  # what stands before the command is not undone behind it
        setattr(asked_for, name, value)


def _add_modules(context: click.Context, _: click.Parameter, names: tuple[str, ...]) -> None:
    context.ensure_object(Asked).modules += names


def common(function: _Function) -> _Function:
    """Let a command take the options that all have."""
    options = (
        click.option(
            "--store",
            metavar="STORE",
            envvar="STATEGRAPH_STORE",
            help="A sqlite file, a disk folder, or an URL.",
            **_EAGER,
        ),
        click.option(
            "--config", metavar="FILE", envvar="STATEGRAPH_CONFIG", help="A graph.toml that names the store.", **_EAGER
        ),
        click.option("--json", "is_json", is_flag=True, help="Answer with one JSON document.", **_EAGER),
        click.option(
            "--import",
            "modules",
            metavar="MODULE",
            multiple=True,
            envvar="STATEGRAPH_IMPORT",
            help="Import this first, for the serializers and types that it registers.",
            **{**_EAGER, "callback": _add_modules},
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


_EAGER: dict[str, Any] = {"expose_value": False, "is_eager": True, "callback": _keep}
