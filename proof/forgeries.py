"""Ways to tamper with a store: by statements on its database, and by payloads that are sealed as if they were saved.

A checksum is no signature: anyone who can write to a store without a key can make valid rows.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import ormsgpack

from proof.workload import DATABASE, open_store
from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.seals import Sealer
from stategraph.stores._rows.store import RowStore

EXPLODED = "exploded"
"""The name of the file or the table that planted code writes."""

Forgery: TypeAlias = Callable[[Path], None]
"""Tampers with the store in a folder."""


@attrs.frozen
class Payload:
    """Unpickled, it leaves a file."""

    path: Path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def payload(folder: Path) -> bytes:
    """Return a pickle that leaves a file beside the store in a folder."""
    return pickle.dumps(Payload(folder.parent / EXPLODED))


def forgeries() -> Iterator[tuple[str, str, Forgery]]:
    """Yield ways to tamper with a store: the target, the method and the function."""
    for label, statement, values in _sqlite():
        kind, _, way = label.partition(": ")
        yield kind, way, _by_statement(statement, values)
    for label, encoding, payload in _codec():
        yield "sealed payloads", label, _by_body(encoding, payload)


def _by_statement(statement: str, values: dict[str, Any]) -> Forgery:
    def forge(folder: Path) -> None:
        given = {key: payload(folder) if value is Payload else value for key, value in values.items()}
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
            if EXPLODED in statement:
                database.execute(f"CREATE TABLE {EXPLODED} (a)")
            for part in statement.split(";;"):
                database.execute(part, given)

    return forge


def _by_body(encoding: str, payload: bytes) -> Forgery:
    def forge(folder: Path) -> None:
        with open_store(folder) as store:
            assert isinstance(store, RowStore)  # noqa: S101
            table = store._log.table
            run, (row,) = table.run("b"), table.chain("b", 1)
            assert run is not None  # noqa: S101
            forged = Sealer().seal("b", row._replace(encoding=encoding, payload=payload), b"")
            table.apply([WriteBatch(run, run, (forged,))])

    return forge


# --------------------------------------------------------------------------- statements

_VALUES: dict[str, Any] = {
    "pickle": Payload,
    "text": "text",
    "number": 5,
    "null": None,
    "float": 1.5,
    "largest": 2**63 - 1,
    "least": -(2**63),
    "path": "../secret",
    "absolute path": "/etc/passwd",
    "module": "os.system",
    "JSON": '{"$type": "object"}',
    "JSON list": '["a", "b", "c"]',
    "policy": "windowed 99999999999999999999 nan",
    "statement": "x'; DROP TABLE run; --",
    "empty": "",
    "bytes": b"\xff",
    "long": "x" * 100_000,
}

_SQLITE_COLUMNS = {
    "run": "run_id version step checkpoint_node timestamp_ns status graph error parent policy",
    "checkpoint": "base checkpoint_node timestamp_ns status error format encoding payload seal",
}

_SPY = f"BEGIN INSERT INTO {EXPLODED} VALUES (1); END"  # noqa: S608 - of a constant
_IN_ITS_PLACE = "ALTER TABLE {table} RENAME TO other;; CREATE VIEW {table} AS SELECT * FROM other"
_SCHEMA = {
    "trigger": "CREATE TRIGGER spy AFTER INSERT ON {table} " + _SPY,
    "trigger on a change": "CREATE TRIGGER spy AFTER UPDATE ON {table} " + _SPY,
    "trigger on a deletion": "CREATE TRIGGER spy AFTER DELETE ON {table} " + _SPY,
    "view in its place": _IN_ITS_PLACE,
    "view that runs something": f"{_IN_ITS_PLACE};; CREATE TRIGGER spy INSTEAD OF INSERT ON {{table}} {_SPY}",
    "virtual table in its place": "DROP TABLE {table};; CREATE VIRTUAL TABLE {table} USING fts4(a, b)",
    "table of others in its place": "DROP TABLE {table};; CREATE TABLE {table} (a, b)",
    "column more": "ALTER TABLE {table} ADD COLUMN more DEFAULT 5",
    "column that loads": "ALTER TABLE {table} ADD COLUMN more AS (load_extension('spy.so'))",
    "index that computes": "CREATE INDEX more ON {table} (CAST(rowid AS TEXT)) WHERE rowid > 0",
    "gone": "DROP TABLE {table}",
}


def _schema(tables: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for (way, statement), table in product(_SCHEMA.items(), tables):
        yield f"schemas: {way}, {table}", statement.format(table=table), {}


def _sqlite() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for table, columns in _SQLITE_COLUMNS.items():
        for column, (way, value) in product(columns.split(), _VALUES.items()):
            statement = f"UPDATE OR REPLACE {table} SET {column} = :value"  # noqa: S608 - of constants
            yield f"columns: {way} as {column} of {table}", statement, {"value": value}
    yield "columns: other keys", "UPDATE checkpoint SET id = id + (1 << 32) * 1000", {}
    yield "columns: keys that are negative", "UPDATE checkpoint SET id = -id", {}
    yield "schemas: newer version", "PRAGMA user_version = 99", {}
    yield "schemas: version that is negative", "PRAGMA user_version = -1", {}
    yield "schemas: another application", "PRAGMA application_id = 7", {}
    yield from _schema(("run", "checkpoint"))


# --------------------------------------------------------------------------- payloads


def _codec() -> Iterator[tuple[str, str, bytes]]:
    """Yield forged payloads: the defect, the encoding and the bytes."""
    for number, (name, parts) in product(range(34), _PARTS.items()):
        value = ormsgpack.Ext(number, parts if isinstance(parts, bytes) else ormsgpack.packb(parts))
        yield f"{name} as type {number}", "msgpack", ormsgpack.packb([[{"x": value}, {}, [], _ABOUT]])[1:]
    for tag, (name, parts) in product(
        ("object", "enum", "datetime", "PosixPath", "module", "__class__"), _PARTS.items()
    ):
        if not isinstance(parts, bytes):
            yield f"{name} as {tag}", "json", _json([{"x": {"$type": tag, "value": parts}}, {}, [], _ABOUT])
    for encoding in ("pickle", "msgpack+pickle", "../../secret", "os.system", "json+zstd", "+zstd", "", "yaml"):
        yield f"encoding {encoding!r}", encoding, pickle.dumps(Payload(Path(EXPLODED)))


def _json(plain: Any) -> bytes:
    import json

    return json.dumps(plain).encode()


_ABOUT = ["g", None, None, None, 0]
_PARTS: dict[str, Any] = {
    "pickle": pickle.dumps(Payload(Path(EXPLODED))),
    "function": ["os.system", 1, {"command": "touch exploded"}],
    "class of Python": ["subprocess.Popen", 1, {"args": ["touch", "exploded"]}],
    "class of this proof": ["proof.forgeries.Payload", 1, {"path": "x"}],
    "member": ["builtins.eval", "eval", None],
    "zone out of its folder": ["2024-01-01T00:00:00", "../../../../etc/passwd", 0],
    "zone that is a file": ["2024-01-01T00:00:00", "/etc/passwd", 0],
    "path": "/etc/passwd",
    "text": "__import__('os').system('touch exploded')",
}
