"""The registry of stores: finds one by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Any

from stategraph._util.registry import Registry
from stategraph.errors import ConfigError
from stategraph.stores.base import CheckpointStore, SigningKey


def _memory() -> CheckpointStore:
    from stategraph.stores.memory import MemoryStore

    return MemoryStore()


def _disk(
    path: str,
    sign_with: SigningKey | str | None = None,
    verify_with: Sequence[SigningKey | str] = (),
    serializer: str = "msgpack",
    compress: bool = False,
) -> CheckpointStore:
    from stategraph.stores.disk import DiskStore  # imported when used: diskcache takes 60 ms

    return DiskStore(path, sign_with=sign_with, verify_with=verify_with, serializer=serializer, compress=compress)


def _with_absolute_path(what: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options that mean the same in every working directory."""
    from stategraph.stores._files.config_paths import absolute_path  # imported when used: the memory store has no path

    return {**options, "path": absolute_path(options["path"], "checkpoint.options.path", what)}


def _sqlite(
    path: str,
    read_only: bool = False,
    sign_with: SigningKey | str | None = None,
    verify_with: Sequence[SigningKey | str] = (),
    serializer: str = "msgpack",
    compress: bool = False,
) -> CheckpointStore:
    from stategraph.stores.sqlite import SqliteStore

    keys = {"sign_with": sign_with, "verify_with": verify_with}
    return SqliteStore(path, read_only=read_only, serializer=serializer, compress=compress, **keys)


class _OnServer:
    """Makes stores of a class that is imported when it is used: clients of servers take 60 ms and more.

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
        """The options of the class, and those of all durable stores."""
        kind = self._class()
        given = [*signature(kind).parameters.values(), *signature(kind.__base__).parameters.values()]
        named = [one for one in given if one.kind is Parameter.KEYWORD_ONLY]
        return Signature([given[0], *named])


_stores: Registry[CheckpointStore] = Registry(
    "checkpoint store",
    "stategraph.stores",
    is_instance=lambda entry: isinstance(entry, CheckpointStore),
    is_usable=lambda store: not store.closed,
)
_stores.register("memory", _memory)
_stores.register("disk", _disk, partial(_with_absolute_path, "a folder"))
_stores.register("sqlite", _sqlite, partial(_with_absolute_path, "a file"))
_stores.register("postgres", _OnServer("postgres", "PostgresStore"))
_stores.register("redis", _OnServer("redis", "RedisStore"))


def register_checkpoint_store(name: str, store: CheckpointStore | Callable[..., CheckpointStore]) -> None:
    """Make a store known by name: an instance, or a class or function called with the ``options`` of the config.

    A store known by that name before is replaced. An installed package can instead name its stores in the entry-point
    group ``stategraph.stores``.

    Args:
        name: The name.
        store: A CheckpointStore, or a class or function that returns one.

    Raises:
        ConfigError: The name is empty, or `store` is neither.
    """
    _stores.register(name, store)


def get_checkpoint_store(name: str, **options: Any) -> CheckpointStore:
    """Return the store with this name: the same object for the same options, until it is closed.

    Raises:
        UnknownNameError: No store has this name; the message lists those that exist.
        ConfigError: The store does not take these options.
    """
    return _stores.get(name, options)


def checked_store(store: object) -> CheckpointStore:
    """Return a store that was given in place of a name. Raises ConfigError if it is none."""
    if isinstance(store, CheckpointStore):
        return store
    allowed = "a CheckpointStore; names go into CheckpointConfig(store=...), classes derive from it"
    raise ConfigError("store", store, allowed)
