"""Stores and graphs: opened and imported by the names that commands are given."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stategraph._text.shown import describe_exception, with_article
from stategraph._util.callables import problem_of
from stategraph.cli._output import Exit, Failure, exit_of, message_of
from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, FormatError, InvalidRunIdError

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.state import State
    from stategraph.stores.base import CheckpointStore
    from stategraph.stores.summaries import Summary

_ON_SERVERS: dict[str, dict[str, Any]] = {"postgres": {"patience": 10}, "redis": {"patience": 10}}
"""Default options: a person at a terminal does not wait for a minute."""


def open_store(
    address: str | None, config: str | None, *, to_change: bool, may_make: bool = False, migrate: bool | None = None
) -> CheckpointStore:
    """Open the store at an address, or that of a configuration.

    Args:
        address: A file, a folder or a URL.
        config: A configuration file; ``graph.toml`` in this folder if it is None.
        to_change: Whether the command writes to the store.
        may_make: Whether to create a missing store, unless its options forbid it.
        migrate: Whether to create tables on a server; None for the value in the options.

    Raises:
        Failure: no store is named, or it is missing.
        FormatError: its tables are missing.
    """
    from stategraph.stores.registry import (
        get_checkpoint_store,
    )  # imported when used: few calls open stores

    kind, options = _kind_and_options(address, config)
    options = {**_ON_SERVERS.get(kind, {}), **options}
    if kind == "postgres":
        options["migrate"] = options.get("migrate", may_make) if migrate is None else migrate
    if kind in ("sqlite", "disk"):
        path = Path(options["path"]).expanduser()
        # An older version named the file of a disk store cache.db.
        files = [path / "disk-store.db", path / "cache.db"] if kind == "disk" else [path]
        if not may_make and not any(file.is_file() for file in files):
            raise Failure(Exit.NOT_FOUND, f"there is no {kind} store at {path}{_hint(path)}")
        options["read_only"] = not to_change
    return get_checkpoint_store(kind, **options)


def _kind_and_options(address: str | None, config: str | None) -> tuple[str, dict[str, Any]]:
    if address:
        from stategraph.stores.registry import store_at

        source, (kind, options) = "--store", store_at(address)
    else:
        source = config or "graph.toml"
        if config is None and not Path(source).is_file():
            way_out = "Give --store runs.db, set STATEGRAPH_STORE, or have a graph.toml here that names one"
            raise Failure(Exit.USAGE, f"which store? {way_out}")
        from stategraph.config import GraphConfig

        checkpoint = GraphConfig.from_file(source).checkpoint
        kind, options = checkpoint.store, checkpoint.store_options()
    if kind == "memory":
        raise Failure(Exit.USAGE, f'{source} has the store "memory", which does not outlive its process')
    return kind, options


def _hint(path: Path) -> str:
    """Return a hint about a missing store: a similar name in its folder, or why no store can be there."""
    if path.is_dir():
        return ": that folder holds none"
    if path.exists() and not path.is_file():
        return ": that is neither a file nor a folder"
    try:
        near = difflib.get_close_matches(path.name, [other.name for other in path.parent.iterdir()], 1)
    except OSError:
        return ""
    return f"; did you mean {path.parent / near[0]}?" if near else ""


# --------------------------------------------------------------------------- runs


def load_state(store: CheckpointStore, run_id: str, step: int | None = None, revision: int | None = None) -> State:
    """Return a State as `CheckpointStore.load` does. A store without revisions takes no argument for them."""
    return store.load(run_id, step) if revision is None else store.load(run_id, step, revision)


def history_of(store: CheckpointStore, run_id: str) -> list[Summary]:
    """Return the checkpoints of a run, at least one.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    rows = store.history(run_id)
    if not rows:
        raise CheckpointNotFoundError(run_id, str(store))
    return rows


def status_text(store: CheckpointStore, run_id: str) -> str:
    """Return the status of a run in words. A damaged run has one, too, so that it can be deleted.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    try:
        newest = history_of(store, run_id)[-1]
    except (CheckpointCorruptError, FormatError, InvalidRunIdError):  # the id may be damaged as well
        return "damaged"
    return f"{newest.status}, step {newest.step}"


# --------------------------------------------------------------------------- graphs


def load_graph(name: str) -> StateGraph:
    """Return the graph named ``module:attribute``, which may be a function without parameters that returns it.

    The import runs the code of the module. The working directory comes first on the path.

    Raises:
        Failure: there is no such graph.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise Failure(Exit.USAGE, f"{name!r} names no graph: give MODULE:NAME, such as app.flows:orders")
    found = imported(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Failure(Exit.USAGE, f"module {module_name} has no {attribute!r}") from None
    from stategraph.graph import StateGraph

    if callable(found) and not isinstance(found, StateGraph):
        problem = problem_of(found, 0)
        if problem:
            way_out = "name a StateGraph, or a function without parameters that returns one"
            raise Failure(Exit.USAGE, f"--graph {name}: {way_out}; {problem}")
        try:
            found = found()
        except Exception as error:
            raise _failure(f"to call {name}", error) from error
    if not isinstance(found, StateGraph):
        article = with_article(type(found).__name__)
        raise Failure(Exit.USAGE, f"{name} is {article}, not a StateGraph or a function that makes one")
    return found


def imported(name: str) -> Any:
    """Import a module. The working directory comes first on the path.

    Raises:
        Failure: it cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and name.endswith(".py"):
            better = name.removesuffix(".py").replace("/", ".")
            raise Failure(Exit.USAGE, f"{name!r} is a file: give its module, as {better}:NAME") from None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise Failure(Exit.USAGE, f"there is no module {missing!r} in {here}, nor is one installed") from None
        raise _failure(f"to import {name}", error) from error


def _failure(work: str, error: Exception) -> Failure:
    """Return the failure of the user's code as an end of the command. Missing tables keep their own message."""
    if isinstance(error, FormatError) and error.statements:
        return Failure(exit_of(error), message_of(error))
    *_, last = traceback.extract_tb(error.__traceback__)
    return Failure(Exit.FAILED, f"{work} failed: {describe_exception(error)} ({last.filename}, line {last.lineno})")
