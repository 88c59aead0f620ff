"""The store that a command is about, opened to be looked into unless it is to be changed, and graphs by their names."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stategraph._text.shown import describe_exception, with_article
from stategraph._util.callables import problem_of
from stategraph.cli._exits import Exit, Failure, exit_of, message_of
from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, FormatError, InvalidRunIdError

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.state import State
    from stategraph.stores.base import CheckpointStore
    from stategraph.stores.summaries import Summary

_ON_SERVERS: dict[str, dict[str, Any]] = {"postgres": {"patience": 10}, "redis": {"patience": 10}}
"""Options where nothing else is said: a person at a terminal does not wait for a minute."""


def open_store(
    address: str | None, config: str | None, *, to_change: bool, may_make: bool = False, migrate: bool | None = None
) -> CheckpointStore:
    """Open the store at an address, or else that of a configuration.

    Args:
        address: A file, a folder or a URL.
        config: The file of a configuration; ``graph.toml`` in this folder if it is None.
        to_change: Whether the command writes to the store.
        may_make: Whether a store that is not there is made, unless its options forbid that.
        migrate: Whether tables on a server are made, whatever the options say.

    Raises:
        Failure: no store is named, or it is not there.
        FormatError: its tables are not there.
    """
    from stategraph.stores.registry import get_checkpoint_store  # imported when used: completion of names needs none

    kind, options = _kind_and_options(address, config)
    options = {**_ON_SERVERS.get(kind, {}), **options}
    if kind == "postgres":
        options["migrate"] = options.get("migrate", may_make) if migrate is None else migrate
    if kind in ("sqlite", "disk"):
        path = Path(options["path"]).expanduser()
        # An older version has named the file of a disk store cache.db.
        files = [path / "disk-store.db", path / "cache.db"] if kind == "disk" else [path]
        if not may_make and not any(file.is_file() for file in files):
            raise Failure(Exit.NOT_FOUND, f"there is no {kind} store at {path}{_like(path)}")
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


def _like(path: Path) -> str:
    """Return which store was perhaps meant: a similar name in that folder; or why there can be none."""
    import difflib  # imported when used

    if path.is_dir():
        return ": that folder holds none"
    if path.exists() and not path.is_file():
        return ": that is neither a file nor a folder"
    try:
        near = difflib.get_close_matches(path.name, [other.name for other in path.parent.iterdir()], 1)
    except OSError:
        return ""
    return f"; did you mean {path.parent / near[0]}?" if near else ""


# --------------------------------------------------------------------------- runs that may not be there


def look(store: CheckpointStore, run_id: str, step: int | None = None, revision: int | None = None) -> State:
    """Return a State, raising as `CheckpointStore.load`. A store may keep no revisions."""
    return store.load(run_id, step) if revision is None else store.load(run_id, step, revision)


def story(store: CheckpointStore, run_id: str) -> list[Summary]:
    """Return the checkpoints of a run, of which there is one at least.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    rows = store.history(run_id)
    if not rows:
        raise CheckpointNotFoundError(run_id, str(store))
    return rows


def standing(store: CheckpointStore, run_id: str) -> str:
    """Say how a run stands that is to be changed. A damaged run may be changed, too: to delete it is the way out.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    try:
        newest = story(store, run_id)[-1]
    except (CheckpointCorruptError, FormatError, InvalidRunIdError):  # ids are damaged as well
        return "damaged"
    return f"{newest.status}, step {newest.step}"


# --------------------------------------------------------------------------- graphs


def load_graph(name: str) -> StateGraph:
    """Return the graph that is named as ``module:attribute``; a function without parameters is called for it.

    The module is looked for in the working directory first. To import it runs its code.

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
    """Return a module, which is looked for in the working directory first.

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
    """Return how the command ends because the user's code failed. Missing tables have a way out of their own."""
    if isinstance(error, FormatError) and error.statements:
        return Failure(exit_of(error), message_of(error))
    *_, last = traceback.extract_tb(error.__traceback__)
    return Failure(Exit.FAILED, f"{work} failed: {describe_exception(error)} ({last.filename}, line {last.lineno})")
