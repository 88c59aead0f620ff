"""Asked: what the options say that every command takes, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from stategraph.cli._screen import Screen

if TYPE_CHECKING:
    from stategraph.stores.base import CheckpointStore

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Asked:
    """The options that every command takes.

    Attributes:
        store: The store.
        config: The configuration that names it.
        is_json: Whether the answer is JSON.
    """

    def __init__(self) -> None:
        self.store: str | None = None
        self.config: str | None = None
        self.is_json = False

    @cached_property
    def screen(self) -> Screen:
        """Where the answer goes."""
        return Screen(self.is_json)

    def open(self, *, to_change: bool = False) -> CheckpointStore:
        """Open the store; it is closed with the command. Values of types that are not registered here are opaque."""
        from stategraph.cli._opening import find  # imported when used: completion of commands needs none
        from stategraph.stores._codec.opaque import unknown_shown

        store = find(self.store, self.config).open(to_change=to_change)
        context = click.get_current_context()
        context.call_on_close(store.close)
        context.with_resource(unknown_shown())
        return store

    def check_store(self, store: CheckpointStore) -> None:
        """Raise UsageError if another store was asked for than that of the graph of a command."""
        context = click.get_current_context()
        sources = [one.get_parameter_source("store") for one in (context, context.parent) if one is not None]
        if ParameterSource.COMMANDLINE in sources and not _is_at(store, str(self.store)):
            raise click.UsageError(f"--store: the graph keeps its runs in the {store}: leave --store out", context)


def _is_at(store: CheckpointStore, address: str) -> bool:
    """Return whether a store is the one in a file or a folder."""
    path: object = getattr(store, "path", None)
    return path is not None and Path(address).expanduser().resolve() == Path(str(path)).resolve()


asked = click.make_pass_decorator(Asked, ensure=True)
"""Gives a command what was asked."""


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    name, asked_for = str(option.name), context.ensure_object(Asked)
    is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if value and (is_given or not getattr(asked_for, name)):  # what stands before the command is not undone behind it
        setattr(asked_for, name, value)


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
    )
    for option in reversed(options):
        function = option(function)
    return function


_EAGER: dict[str, Any] = {"expose_value": False, "is_eager": True, "callback": _keep}
