"""Stores by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stategraph._util.registry import Registry
from stategraph.stores.base import CheckpointStore

if TYPE_CHECKING:
    from stategraph.stores._rows.integrity import SigningKey


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
    """Return the options with a path that means the same in every working directory."""
    from stategraph.stores._files.path_options import absolute_path  # imported when used: the memory store has no files

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


_stores: Registry[CheckpointStore] = Registry(
    "checkpoint store",
    "stategraph.stores",
    is_instance=lambda entry: isinstance(entry, CheckpointStore),
    is_usable=lambda store: not store.closed,
)
_stores.register("memory", _memory)
_stores.register("disk", _disk, partial(_with_absolute_path, "a folder"))
_stores.register("sqlite", _sqlite, partial(_with_absolute_path, "a file"))


def register_checkpoint_store(name: str, store: CheckpointStore | Callable[..., CheckpointStore]) -> None:
    """Make a store known by name: an instance, or a class or function called with the ``options`` of the config.

    A store known by that name before is replaced. An installed package can instead name its stores in the entry-point
    group ``stategraph.stores``.

    Raises:
        ConfigError: the name is empty, or `store` is neither (a store derives from CheckpointStore).
    """
    _stores.register(name, store)


def get_checkpoint_store(name: str, **options: Any) -> CheckpointStore:
    """Return the store of a name: the same object for the same name and options, a fresh one once it was closed.

    Raises:
        UnknownNameError: no store has this name; the text lists those that exist.
        ConfigError: the store does not take these options.
    """
    return _stores.get(name, options)
