"""Stores and graphs: opened and imported by the names that commands are given."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stategraph._text.shown import describe_exception, meant, with_article
from stategraph._util.callables import problem_of
from stategraph.cli._output import Exit, Failure
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    FormatError,
    InvalidRunIdError,
    StateGraphError,
)

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.stores.base import CheckpointStore
    from stategraph.stores.summaries import Summary


def open_store(
    address: str | None,
    config: str | None,
    *,
    to_change: bool = False,
    may_make: bool = False,
    migrates: bool = False,
    completes: bool = False,
) -> CheckpointStore:
    """Open the store at an address, or that of a configuration.

    Args:
        address: A file, a folder or a URL.
        config: A configuration file; ``graph.toml`` in this folder if it is None.
        to_change: Whether the command writes to the store.
        may_make: Whether to create a missing store or, unless the configuration forbids it, missing tables.
        migrates: Whether to create missing tables, whatever the configuration has.
        completes: Whether it is for completion in a shell. Then no configuration may name a server.

    Raises:
        Failure: no store is named, it is missing, or other users can change ``graph.toml`` in this folder.
        FormatError: its tables are missing.
    """
    from stategraph.stores.registry import get_checkpoint_store  # imported when used: few calls open stores

    kind, options = _kind_and_options(address, config)
    if kind in ("postgres", "redis"):
        if completes and not address:  # pressing TAB sends no password to a server
            raise Failure(Exit.USAGE, "completion connects to no server that a configuration names")
        options.setdefault("patience", 10)  # a person at a terminal does not wait for a minute
    if kind == "postgres":
        options["migrate"] = migrates or (may_make and options.get("migrate", True))
    if kind in ("sqlite", "disk"):
        path = Path(options["path"]).expanduser()
        # An older version named the file of a disk store cache.db.
        files = [path / "disk-store.db", path / "cache.db"] if kind == "disk" else [path]
        if not may_make and not any(file.is_file() for file in files):
            raise Failure(Exit.NOT_FOUND, f"there is no {kind} store at {path}{_hint(path)}")
        options["read_only"] = not to_change
    if isinstance(redact := options.get("redact"), str) and (module := redact.partition(":")[0]):
        imported(module)
    return get_checkpoint_store(kind, **options)


def _kind_and_options(address: str | None, config: str | None) -> tuple[str, dict[str, Any]]:
    if address:
        from stategraph.stores.registry import store_at

        source, (kind, options) = "--store", store_at(address)
    else:
        source = config or _found_here()
        from stategraph.config import GraphConfig

        checkpoint = GraphConfig.from_file(source).checkpoint
        kind, options = checkpoint.store, {**checkpoint.store_options()}
    if kind == "memory":
        raise Failure(Exit.USAGE, f'{source} has the store "memory", which does not outlive its process')
    return kind, options


def _found_here() -> str:
    """Return the configuration in this folder. In a folder of others, it may be theirs."""
    from stategraph.stores._files.paths import check_trusted

    file = Path("graph.toml")
    if not file.is_file():
        way_out = "Give --store runs.db, set STATEGRAPH_STORE, or name it in a graph.toml in this folder"
        raise Failure(Exit.USAGE, f"which store? {way_out}")
    try:
        check_trusted(file.absolute())
    except OSError as error:
        way_out = "name the store with --store or, if you trust this file, give --config graph.toml"
        raise Failure(Exit.USAGE, f"graph.toml in this folder is not used: {error.strerror}. Or {way_out}") from error
    return str(file)


def _hint(path: Path) -> str:
    """Return a hint at a file or folder of a similar name beside a missing store."""
    try:
        others = [other.name for other in path.parent.iterdir() if other != path or path.is_file()]
        near = difflib.get_close_matches(path.name, others, 1)
    except OSError:
        return ""
    return f"; did you mean {path.parent / near[0]}?" if near else ""


# --------------------------------------------------------------------------- runs


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
    module = imported(module_name)
    try:
        found = attrgetter(attribute)(module)
    except AttributeError:
        near = meant(attribute, vars(module))
        raise Failure(Exit.USAGE, f"module {module_name} has no {attribute!r}{near and '; ' + near}") from None
    from stategraph.graph import StateGraph

    if not isinstance(found, StateGraph) and not problem_of(found, 0):
        found = _called(name, found)
    if not isinstance(found, StateGraph):
        way_out = "name a StateGraph, or a function without parameters that returns one"
        raise Failure(Exit.USAGE, f"{name} is {with_article(type(found).__name__)}: {way_out}")
    return found


def imported(name: str) -> Any:
    """Import a module. The working directory comes first on the path.

    Raises:
        Failure: it cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return _called(f"import {name}", lambda: importlib.import_module(name))


def _called(name: str, function: Callable[[], Any]) -> Any:
    """Return the result of users' code. Its exceptions become a Failure, except those of stategraph."""
    try:
        return function()
    except StateGraphError:
        raise
    except Exception as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        # Where code of the user has imported a missing module, its line is the last.
        if isinstance(error, ModuleNotFoundError) and last.filename.startswith("<frozen "):
            way_out = (
                "name the module without .py" if name.endswith(".py") else f"the working directory is {Path.cwd()}"
            )
            raise Failure(Exit.USAGE, f"{name}: {error}; {way_out}") from error
        place = f"{last.filename}, line {last.lineno}"
        raise Failure(Exit.FAILED, f"{name} failed: {describe_exception(error)} ({place})") from error
