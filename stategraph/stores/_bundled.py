"""The stores that come with the library and keep runs outside of the process: imported when one is asked for.

Each is a function with the options that a configuration may have, as the registry checks them against its signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Any

from stategraph.stores._files.paths import absolute_path
from stategraph.stores.base import CheckpointStore


class _Imported:
    """Makes stores of a class that is imported when it is used: diskcache and clients of servers take 60 ms and more.

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


def _with_absolute_path(what: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options that mean the same in every working directory."""
    return {**options, "path": absolute_path(options["path"], "checkpoint.options.path", what)}


BUNDLED: dict[str, tuple[Callable[..., CheckpointStore], Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    "disk": (_Imported("disk", "DiskStore"), partial(_with_absolute_path, "a folder")),
    "sqlite": (_Imported("sqlite", "SqliteStore"), partial(_with_absolute_path, "a file")),
    "postgres": (_Imported("postgres", "PostgresStore"), dict),
    "redis": (_Imported("redis", "RedisStore"), dict),
}
"""Each with what brings options that mean the same into the same form."""
