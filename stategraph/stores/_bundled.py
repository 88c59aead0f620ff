"""The stores that come with the library and keep runs outside of the process: imported when one is asked for.

Each is a function with the options that a configuration may have, as the registry checks them against its signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stategraph.stores._files.config_paths import absolute_path
from stategraph.stores.base import CheckpointStore, SigningKey


def _disk(
    path: str,
    read_only: bool = False,
    sign_with: SigningKey | str | None = None,
    verify_with: Sequence[SigningKey | str] = (),
    serializer: str = "msgpack",
    compress: bool = False,
) -> CheckpointStore:
    from stategraph.stores.disk import DiskStore  # imported when used: diskcache takes 60 ms

    keys = {"sign_with": sign_with, "verify_with": verify_with}
    return DiskStore(path, read_only=read_only, serializer=serializer, compress=compress, **keys)


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


def _postgres(  # noqa: PLR0913 - its options are checked against its signature
    dsn: str,
    *,
    schema: str = "stategraph",
    pool: int = 4,
    patience: float = 60,
    prepare: bool = True,
    migrate: bool = True,
    lease: float = 30,
    sign_with: SigningKey | str | None = None,
    verify_with: Sequence[SigningKey | str] = (),
    serializer: str = "msgpack",
    compress: bool = False,
) -> CheckpointStore:
    from stategraph.stores.postgres import PostgresStore  # imported when used: psycopg takes 60 ms

    of_rows: Any = {"sign_with": sign_with, "verify_with": verify_with, "serializer": serializer, "compress": compress}
    of_server: Any = {"schema": schema, "pool": pool, "patience": patience, "prepare": prepare, "migrate": migrate}
    return PostgresStore(dsn, lease=lease, **of_server, **of_rows)


def _redis(  # noqa: PLR0913 - its options are checked against its signature
    url: str,
    *,
    prefix: str = "stategraph",
    partitions: int = 16,
    replicas: int = 0,
    durable: bool = True,
    patience: float = 60,
    lease: float = 30,
    sign_with: SigningKey | str | None = None,
    verify_with: Sequence[SigningKey | str] = (),
    serializer: str = "msgpack",
    compress: bool = False,
) -> CheckpointStore:
    from stategraph.stores.redis import RedisStore  # imported when used: redis-py takes 100 ms

    of_rows: Any = {"sign_with": sign_with, "verify_with": verify_with, "serializer": serializer, "compress": compress}
    of_server: Any = {"prefix": prefix, "partitions": partitions, "replicas": replicas, "durable": durable}
    return RedisStore(url, patience=patience, lease=lease, **of_server, **of_rows)


def _with_absolute_path(what: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options that mean the same in every working directory."""
    return {**options, "path": absolute_path(options["path"], "checkpoint.options.path", what)}


BUNDLED: dict[str, tuple[Callable[..., CheckpointStore], Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    "disk": (_disk, partial(_with_absolute_path, "a folder")),
    "sqlite": (_sqlite, partial(_with_absolute_path, "a file")),
    "postgres": (_postgres, dict),
    "redis": (_redis, dict),
}
"""Each with what brings options that mean the same into the same form."""
