"""The registry of stores: finds a store by its name or its address."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, Unpack

from stategraph._values.registry import Registry
from stategraph.errors import ConfigError, UnknownNameError
from stategraph.stores.base import CheckpointStore

if TYPE_CHECKING:
    from stategraph.stores._rows.store import RowOptions

    class StoreOptions(RowOptions, total=False):
        """The options of all stores of stategraph."""

        path: str | os.PathLike[str]
        read_only: bool
        dsn: str
        schema: str
        pool: int
        prepare: bool
        migrate: bool
        url: str
        prefix: str
        partitions: int
        replicas: int
        durable: bool
        patience: float
        lease: float


class _Imported:
    """Makes stores of a class that is imported on first use: diskcache and clients of servers take 60 ms and more.

    Args:
        name: The name of the module.
        kind: The name of the class.
    """

    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind

    def __call__(self, **options: Any) -> CheckpointStore:
        return self._class()(**options)  # type: ignore[no-any-return]

    def _class(self) -> Any:
        return getattr(import_module(f"stategraph.stores.{self._name}"), self._kind)

    @property
    def __signature__(self) -> Signature:
        """That of the class."""
        return signature(self._class())


def _in_place(kind: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a function that makes the path in options absolute, independent of the working directory."""

    def normal(options: Mapping[str, Any]) -> Mapping[str, Any]:
        from stategraph.stores._files.paths import absolute_path  # imported when used

        return {**options, "path": absolute_path(options["path"], "checkpoint.options.path", kind)}

    return normal


_stores: Registry[CheckpointStore] = Registry(
    "checkpoint store",
    "stategraph.stores",
    is_instance=lambda entry: isinstance(entry, CheckpointStore),
    is_usable=lambda store: not store.closed,
)
_stores.register("memory", _Imported("memory", "MemoryStore"))
_stores.register("disk", _Imported("disk", "DiskStore"), _in_place("a folder"))
_stores.register("sqlite", _Imported("sqlite", "SqliteStore"), _in_place("a file"))
_stores.register("postgres", _Imported("postgres", "PostgresStore"))
_stores.register("redis", _Imported("redis", "RedisStore"))


def register_checkpoint_store(name: str, store: CheckpointStore | Callable[..., CheckpointStore]) -> None:
    """Register a store by name: an instance, or a class or function that is called with the ``options`` of the config.

    It replaces an earlier store with that name. An installed package can name its stores in the entry-point group
    ``stategraph.stores`` instead.

    Args:
        name: The name.
        store: A CheckpointStore, or a class or function that returns one.

    Raises:
        ConfigError: the name is empty, or `store` is neither.
    """
    _stores.register(name, store)


def get_checkpoint_store(name: str, **options: Unpack[StoreOptions]) -> CheckpointStore:
    """Return the store with this name: the same object for the same options, until it is closed.

    Type checkers know the options of the stores of stategraph. Pass those of another store as ``**{"option": value}``.

    Raises:
        UnknownNameError: no store has this name; the message lists the names that exist.
        ConfigError: the store does not accept these options.
    """
    try:
        return _stores.get(name, options)
    except UnknownNameError as error:
        if isinstance(name, str) and {".", "/"} & set(name):
            error.add_note('A path or a URL is an argument of the graph: StateGraph("orders", store="runs.db").')
        raise


def is_memory_store(store: object) -> bool:
    """Return whether a store is a memory store, without importing its module."""
    memory = sys.modules.get("stategraph.stores.memory")  # another thread may be importing it
    return isinstance(store, getattr(memory, "MemoryStore", ()))


def checked_store(store: object) -> CheckpointStore:
    """Return a store that was passed instead of a name. Raise ConfigError if it is no store."""
    if isinstance(store, CheckpointStore):
        return store
    allowed = 'a path such as "runs.db", a URL, or an object of a class that derives from CheckpointStore'
    raise ConfigError("store", store, allowed)


# --------------------------------------------------------------------------- addresses

_SCHEMES = {
    "postgresql": ("postgres", "dsn"),
    "postgres": ("postgres", "dsn"),
    "redis": ("redis", "url"),
    "rediss": ("redis", "url"),
}
"""The store for each URL scheme, and its option for the URL."""


PLACES = ("path", *{option: None for _, option in _SCHEMES.values()})
"""The options that locate a store."""


_KINDS = ("sqlite", "disk", "postgres", "redis")


def store_at(address: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of the store at an address, and its options.

    A folder is a disk store, "memory" the memory store, and any other path the file of a sqlite store.

    Raises:
        ConfigError: it is another kind of URL, or the name of a kind of store.
    """
    text = os.fspath(address)
    scheme, separator, _ = text.partition("://")
    if separator:
        if scheme not in _SCHEMES:
            raise ConfigError("store", f"{scheme}://", f"the URL of a store begins with {', '.join(_SCHEMES)}")
        kind, option = _SCHEMES[scheme]
        return kind, {option: text}
    if text == "memory":
        return text, {}
    if text in _KINDS:
        allowed = (
            'store takes a path or a URL, not the name of a store: store="runs.db" for SQLite, store="runs/" for the '
            f"disk store, or CheckpointConfig(store={text!r}, options=...)"
        )
        raise ConfigError("store", text, allowed)
    is_folder = text.endswith(("/", os.sep)) or os.path.isdir(os.path.expanduser(text))  # noqa: PTH111, PTH112 - pathlib takes 4 ms
    return "disk" if is_folder else "sqlite", {"path": text}
