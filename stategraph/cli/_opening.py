"""Which store a command is about, and how it is opened: to be looked into, unless something is to be changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from stategraph.cli._exits import Exit, Failure

if TYPE_CHECKING:
    from stategraph.config import CheckpointConfig
    from stategraph.stores.base import CheckpointStore

_ON_SERVERS: dict[str, dict[str, Any]] = {
    "postgres": {"patience": 10},
    "redis": {"patience": 10},
}
"""Options where nothing else is said: whoever types a command does not wait for a minute."""

_WHICH = "which store? Give --store runs.db, set STATEGRAPH_STORE, or have a graph.toml here that names one"


@attrs.frozen
class Where:
    """A store that was asked for.

    Attributes:
        kind: The name of its kind.
        options: What it is made with.
    """

    kind: str
    options: dict[str, Any]

    def open(self, *, to_change: bool, may_make: bool = False, migrate: bool | None = None) -> CheckpointStore:
        """Open the store. One that is not there is made only with `may_make`.

        Args:
            to_change: Whether the command writes to the store.
            may_make: Whether a store that is not there is made, unless its options forbid that.
            migrate: Whether tables on a server are made, whatever the options say.

        Raises:
            Failure: it is not there.
            FormatError: its tables are not there.
        """
        from stategraph.stores.registry import get_checkpoint_store

        options = {**_ON_SERVERS.get(self.kind, {}), **self.options}
        if self.kind == "postgres":
            options["migrate"] = options.get("migrate", may_make) if migrate is None else migrate
        if self.kind in ("sqlite", "disk"):
            path = Path(options["path"]).expanduser()
            file = path / "cache.db" if self.kind == "disk" else path
            if not file.is_file() and not may_make:
                raise Failure(Exit.NOT_FOUND, f"there is no {self.kind} store at {path}{_like(path)}")
            options = {**options, "read_only": not to_change}
        return get_checkpoint_store(self.kind, **options)


def _like(path: Path) -> str:
    """Return which store was perhaps meant: what is named alike in that folder; or why there can be none."""
    import difflib  # imported when used

    if path.is_dir():
        return ": that folder holds none"
    if path.exists() and not path.is_file():
        return ": that is neither a file nor a folder"
    try:
        near = difflib.get_close_matches(path.name, [one.name for one in path.parent.iterdir()], 1)
    except OSError:
        return ""
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def find(store: str | None, config: str | None) -> Where:
    """Return the store that the options name, or the configuration that they, or this folder, have.

    Raises:
        Failure: none is named.
    """
    if store:
        return _named(store)
    if config is None and Path("graph.toml").is_file():
        config = "graph.toml"
    if config is None:
        raise Failure(Exit.USAGE, _WHICH)
    from stategraph.config import GraphConfig

    return _configured(GraphConfig.from_file(config).checkpoint, config)


def _named(store: str) -> Where:
    from stategraph.stores._addresses import store_at

    kind, options = store_at(store)
    return _outliving(kind, options, "--store")


def _configured(checkpoint: CheckpointConfig, config: str) -> Where:
    return _outliving(checkpoint.store, checkpoint.store_options(), config)


def _outliving(kind: str, options: dict[str, Any], source: str) -> Where:
    if kind == "memory":
        raise Failure(Exit.USAGE, f'{source} has the store "memory", which does not outlive its process')
    return Where(kind, options)
