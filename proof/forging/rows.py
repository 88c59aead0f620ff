"""What somebody may do to whole rows and runs, who can write to the database and has copies of what there was."""

# ruff: noqa: S608 - names of tables and columns are what SQLite says

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from proof.forging.tables import (
    STEP_BITS,
    Key,
    Place,
    Rows,
    UnchangeableError,
    cells,
    insert,
    places,
    remove,
    set_cell,
)


@attrs.frozen
class Found:
    """A row that somebody has: of the store as it is, as it was, or of another one with the same key.

    Attributes:
        key, row, place: The row.
        source: "now", "earlier" or "other".
        begun: How often its run had been begun then.
    """

    key: Key
    row: Mapping[str, Any]
    place: Place
    source: str
    begun: int


ORIGINS: dict[str, Callable[[Found, Found], bool]] = {
    "another row of the run": lambda it, one: one.source == "now" and one.place.run == it.place.run,
    "another run": lambda it, one: one.source == "now" and one.place.run != it.place.run,
    "another store": lambda it, one: one.source == "other" and one.place == it.place,
    "its own earlier version": lambda it, one: (
        one.source == "earlier" and one.place == it.place and one.begun == it.begun
    ),
    "the run that was deleted": lambda it, one: (
        one.source == "earlier" and one.place == it.place and one.begun != it.begun
    ),
}
"""Where a value, or a row, may come from: of which rows, for one that is to be changed."""

RowChange: TypeAlias = Callable[[sqlite3.Connection, Rows, Found, Found], None]


def _keys(now: Rows, it: Found) -> list[Key]:
    """Return where a row is now."""
    if not it.place.run:
        return [it.key]
    return [key for key, place in places(now).items() if place == it.place]


def set_column(database: sqlite3.Connection, now: Rows, it: Found, column: str, value: Any) -> None:
    """Give a row, where it is now, another value in a column."""
    for key in _keys(now, it):
        set_cell(database, key, column, value)


_IDENTITY = {"run": {"run_id", "number"}, "checkpoint": {"id"}}


def take_content(database: sqlite3.Connection, now: Rows, it: Found, one: Found) -> None:
    """Give a row all that another has, but its key."""
    columns = it.row.keys() - _IDENTITY.get(it.key[0], set())
    for key in _keys(now, it):
        for column in sorted(columns):
            set_cell(database, key, column, one.row[column])


def _remove(database: sqlite3.Connection, now: Rows, it: Found, other: Found) -> None:
    for key in _keys(now, it):
        remove(database, key)


def _remove_base(database: sqlite3.Connection, now: Rows, it: Found, other: Found) -> None:
    """Cut the chain of a run: all rows before the newest go."""
    found = {place.step: key for key, place in places(now).items() if place.run == it.place.run and not place.is_head}
    for step in sorted(found, key=lambda step: step or 0)[:-1]:
        remove(database, found[step])


def _copy(database: sqlite3.Connection, now: Rows, it: Found, other: Found) -> None:
    """Copy a row to where there is none: after the newest of a run, or under another id."""
    for key in _keys(now, it):
        insert(database, key[0], _moved(now, key, it.place, other.place))


def _move(database: sqlite3.Connection, now: Rows, it: Found, other: Found) -> None:
    _copy(database, now, it, other)
    _remove(database, now, it, other)


def _moved(now: Rows, key: Key, place: Place, to: Place) -> dict[str, Any]:
    row = dict(now[key])
    if place.is_head:
        return row | ({"run_id": "planted", "number": _next_number(now)} if key[0] == "run" else {"key": "run:planted"})
    taken = {one.step or 0 for one in places(now).values() if one.run == to.run}
    step = max(taken, default=0) + 1
    if key[0] == "checkpoint":
        return row | {"id": _number(now, to.run) << STEP_BITS | step}
    return row | {"key": f"row:{to.run}!{step}"}


def _to_next_run(database: sqlite3.Connection, now: Rows, it: Found, other: Found) -> None:
    """Put a row where those of the next run to begin will be."""
    for key in _keys(now, it):
        if key[0] == "checkpoint":
            id_ = _next_number(now) << STEP_BITS | (it.place.step or 1)
            insert(database, key[0], {**now[key], "id": id_})
        elif not it.place.is_head:
            insert(database, key[0], {**_unnumbered(now[key]), "key": f"row:fresh!{it.place.step}"})


def _exchange_rows(database: sqlite3.Connection, now: Rows, it: Found, other: Found) -> None:
    a, b = _keys(now, it), _keys(now, other)
    if not (a and b and a != b):
        raise UnchangeableError("it is the same row")
    exchange(database, a[0], b[0], sorted(it.row.keys() - _IDENTITY.get(it.key[0], set())))


def exchange(database: sqlite3.Connection, a: Key, b: Key, columns: list[str]) -> None:
    """Let two rows of a table exchange what they have in some columns."""
    values = [
        [
            database.execute(f'SELECT "{column}" FROM "{key[0]}" WHERE rowid = ?', (key[1],)).fetchone()[0]
            for key in (a, b)
        ]
        for column in columns
    ]
    for column, (first, second) in zip(columns, values, strict=True):
        set_cell(database, b, column, first)
        set_cell(database, a, column, second)


def _agree(database: sqlite3.Connection, now: Rows, it: Found, other: Found) -> None:
    """Let the head of a run tell of its oldest row: all that it has in common with the newest, it has with that one."""
    found = {key: place for key, place in places(now).items() if place.run == it.place.run}
    heads = [key for key, place in found.items() if place.is_head]
    rows = sorted((key for key, place in found.items() if not place.is_head), key=lambda key: found[key].step or 0)
    if not heads or len(rows) < 2:
        raise UnchangeableError("it has no older row")
    oldest, newest = (_common(key, now[key], found[key]) for key in (rows[0], rows[-1]))
    for column, _, value in list(cells(heads[0], now[heads[0]])):
        is_own = column in _IDENTITY.get(heads[0][0], {"key", "rowid", "value", "value[0]"})
        same = next((name for name, one in newest.items() if type(one) is type(value) and one == value), None)
        if not is_own and same is not None and value is not None:
            set_cell(database, heads[0], column, oldest[same])


def _common(key: Key, row: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return what a row may have in common with the head of its run."""
    return {"step": place.step} | {column: value for column, _, value in cells(key, row)}


ROWS: dict[str, RowChange] = {
    "removed": _remove,
    "all before the newest removed": _remove_base,
    "copied behind the newest, or under another id": _copy,
    "moved there": _move,
    "copied to the next run to begin": _to_next_run,
    "exchanged with another": _exchange_rows,
    "the head tells of the oldest": _agree,
}


# --------------------------------------------------------------------------- runs

RunChange: TypeAlias = Callable[..., list[Found]]


def _head_of_other(ours: list[Found], source: str, *, is_now: bool) -> list[Found]:
    return [one for one in ours if one.place.is_head] if source == "other" else []


def _rows_of_other(ours: list[Found], source: str, *, is_now: bool) -> list[Found]:
    return [one for one in ours if not one.place.is_head] if source == "other" else []


def _all_of_other(ours: list[Found], source: str, *, is_now: bool) -> list[Found]:
    return ours if source == "other" else []


def _deleted_within(ours: list[Found], source: str, *, is_now: bool) -> list[Found]:
    """What was within a run that was deleted and begun anew: parts, and nested runs."""
    within = "/" in ours[0].place.run and ours[0].place.run != "fork/1"
    return _newest(ours) if source == "earlier" and within and not is_now else []


def _deleted_rows(ours: list[Found], source: str, *, is_now: bool) -> list[Found]:
    rows = [one for one in _newest(ours) if not one.place.is_head]
    return rows if source == "earlier" and (not is_now or ours[0].place.run == "gone") else []


def _earlier_rows(ours: list[Found], source: str, *, is_now: bool) -> list[Found]:
    return [one for one in _newest(ours) if not one.place.is_head] if source == "earlier" and is_now else []


def _newest(ours: list[Found]) -> list[Found]:
    """Return the last of each row that was there."""
    return list({one.place: one for one in ours}.values())


RUNS: dict[str, RunChange] = {
    "the head of another store": _head_of_other,
    "the rows of another store": _rows_of_other,
    "head and rows of another store": _all_of_other,
    "parts or a nested run of the run that was deleted": _deleted_within,
    "rows of the run that was deleted": _deleted_rows,
    "earlier rows, and those that were removed": _earlier_rows,
}


def put_rows(database: sqlite3.Connection, now: Rows, put: list[Found]) -> None:
    """Put rows of one run in the place of those that it has."""
    run = put[0].place.run
    number = _number(now, run)
    for one in put:
        for key in _keys(now, one):
            remove(database, key)
        row = _unnumbered(one.row)
        if one.key[0] == "run":
            row["number"] = number
        elif one.key[0] == "checkpoint":
            row["id"] = number << STEP_BITS | (one.place.step or 0)
        insert(database, one.key[0], row)


def _unnumbered(row: Mapping[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column != "rowid"}


def _number(now: Rows, run: str) -> int:
    """Return the number of a run, or of the next to begin."""
    found = (row["number"] for (table, _), row in now.items() if table == "run" and row["run_id"] == run)
    return next(found, _next_number(now))


def _next_number(now: Rows) -> int:
    return max((rowid for table, rowid in now if table == "run"), default=0) + 1
