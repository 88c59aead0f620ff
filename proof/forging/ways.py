"""What somebody may do to a store without its key: to every cell, row, run, table and file of it, chosen at random."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from proof.forging.play import Forgery
from proof.forging.rows import (
    ORIGINS,
    ROWS,
    RUNS,
    Found,
    RowChange,
    RunChange,
    exchange,
    put_rows,
    set_column,
    take_content,
)
from proof.forging.scene import Moment, Scene
from proof.forging.tables import (
    FILES,
    Rows,
    cells,
    connected,
    indices,
    outermost,
    places,
    read,
    unconstrained,
    without_index,
)
from proof.forging.values import DAMAGES, FLIPPED, MADE, made

Change: TypeAlias = Callable[[sqlite3.Connection, Rows], None]
"""Changes a database whose rows are these now."""

Way: TypeAlias = Callable[[random.Random], Forgery | None]
"""Makes a forgery of one kind, if there is one."""

UNSEALED = frozenset({"run.number"})
"""Cells that no seal covers. The number of a run says in which order runs are listed and where its rows are: to change
it is to change an order, or to take out rows."""

OLDER = frozenset({"its own earlier version", "the run that was deleted"})
"""Origins of a head that was sealed once for a run of this id: lists tell what it says, and only `load` refuses it."""


class Ways:
    """The ways to change a store.

    Args:
        scene: The store.
        other: Another one with the same key.
    """

    def __init__(self, scene: Scene, other: Scene) -> None:
        self._file = FILES[scene.name]
        self._runs = scene.moments[-1].begun
        self.rows = [*self._found(scene.moments[-1], "now")]
        earlier: dict[tuple[Any, ...], Found] = {}
        for moment in scene.moments:
            for found in self._found(moment, "earlier"):
                earlier[(found.place, found.begun, *map(repr, found.row.values()))] = found
        for found in self.rows:
            earlier.pop((found.place, found.begun, *map(repr, found.row.values())), None)
        self._all = [*self.rows, *earlier.values(), *self._found(other.moments[-1], "other")]

    def _found(self, moment: Moment, source: str) -> Iterator[Found]:
        for key, place in places(moment.rows).items():
            begun = moment.begun.get(outermost(place.run, self._runs), 0)
            yield Found(key, moment.rows[key], place, source, begun)

    # ------------------------------------------------------------------ what there is

    def forgeries(self) -> list[Way]:
        """Return all ways to forge."""
        made_up = [how for how in MADE if how != FLIPPED]  # which is damage as well
        hows = (*ORIGINS, *made_up)
        ways: list[Way] = [partial(self._cell, name, how) for name in self._names(self.rows) for how in hows]
        ways += [self._several] * (len(ways) // 8)
        rows: list[Way] = [partial(self._row, how, change) for how, change in ROWS.items()]
        rows += [partial(self._content, how) for how in ORIGINS]
        rows += [partial(self._run, how, change) for how, change in RUNS.items()]
        schema: list[Way] = [partial(self._schema, how, statement) for how, statement in _SCHEMA.items()]
        return [*ways, *(rows * 6), *schema, *([self._stale_index] * 6), *self.damages(4)]

    def damages(self, files: int) -> list[Way]:
        """Return the ways in which a store is damaged, those of its files so many times."""
        ways: list[Way] = [partial(self._cell, name, FLIPPED) for name in self._names(self.rows)]
        return ways + [partial(self._damaged_file, how, live) for how in DAMAGES for live in (False, True)] * files

    def _names(self, rows: list[Found]) -> list[str]:
        """Return what cells there are in rows."""
        return sorted({name for it in rows for _, name, _ in cells(it.key, it.row)} - UNSEALED)

    # ------------------------------------------------------------------ cells

    def _cell(self, name: str, how: str, randomness: random.Random) -> Forgery | None:
        change = self._changed_cell(self.rows, name, how, randomness)
        if change is None:
            return None
        it, column, value = change
        detail = f"{_shown(it)}: {column} = {value!r:.80}"
        return self._forgery(name, how, detail, lambda db, now: set_column(db, now, it, column, value), it)

    def _changed_cell(
        self, among: list[Found], name: str, how: str, randomness: random.Random
    ) -> tuple[Found, str, Any] | None:
        """Return a row, a column of it, and another value."""
        rows = [(it, column, value) for it in among for column, one, value in cells(it.key, it.row) if one == name]
        randomness.shuffle(rows)
        for it, column, value in rows:
            others = self._others(it, column, value, how) if how in ORIGINS else made(how, value, randomness)
            others = [other for other in others if repr(other) != repr(value)]
            if others:
                return it, column, randomness.choice(others)
        return None

    def _others(self, it: Found, column: str, value: Any, how: str) -> list[Any]:
        """Return what other rows have in a column."""
        found = (dict(_by_column(one)) for one in self._all if one.key[0] == it.key[0] and ORIGINS[how](it, one))
        return [row[column] for row in found if column in row]

    def _several(self, randomness: random.Random) -> Forgery | None:
        """Some cells of one run at once."""
        run = randomness.choice(self.rows).place.run
        rows = [it for it in self.rows if it.place.run == run]
        changes: list[tuple[Found, str, Any]] = []
        for _ in range(randomness.randint(2, 4)):
            how = randomness.choice([*ORIGINS, *ORIGINS, *MADE])
            change = self._changed_cell(rows, randomness.choice(self._names(rows)), how, randomness)
            changes += [] if change is None else [change]

        def change_all(database: sqlite3.Connection, now: Rows) -> None:
            for it, column, value in changes:
                set_column(database, now, it, column, value)

        detail = "; ".join(f"{_shown(it)}: {column} = {value!r:.40}" for it, column, value in changes)
        return self._forgery("several cells", "from anywhere", detail, change_all, changes[0][0]) if changes else None

    # ------------------------------------------------------------------ rows, and runs

    def _row(self, how: str, change: RowChange, randomness: random.Random) -> Forgery | None:
        it = randomness.choice([found for found in self.rows if found.place.run])
        other = randomness.choice([found for found in self.rows if found.key[0] == it.key[0] and found.place.run])
        what = "a head" if it.place.is_head else "a row"
        detail = f"{_shown(it)}, {_shown(other)}"
        return self._forgery(what, how, detail, lambda db, now: change(db, now, it, other), it, other)

    def _content(self, how: str, randomness: random.Random) -> Forgery | None:
        """All that a row has but its key, of another."""
        rows = [it for it in self.rows if it.place.run]
        randomness.shuffle(rows)
        for it in rows:
            if it.place.is_head and how in OLDER:
                continue
            others = [one for one in self._alike(it) if ORIGINS[how](it, one) and one.row != it.row]
            if others:
                one = randomness.choice(others)
                what = "all of a head" if it.place.is_head else "all of a row"
                return self._forgery(
                    what, how, f"{_shown(it)} as {_shown(one)}", partial(take_content, it=it, one=one), it
                )
        return None

    def _alike(self, it: Found) -> list[Found]:
        """Return all rows of the kind of a row."""
        return [one for one in self._all if one.key[0] == it.key[0] and one.place.is_head == it.place.is_head]

    def _run(self, how: str, change: RunChange, randomness: random.Random) -> Forgery | None:
        runs = sorted({(one.place.run, one.source, one.begun) for one in self._all if one.place.run})
        randomness.shuffle(runs)
        for run, source, begun in runs:
            ours = [one for one in self._all if (one.place.run, one.source, one.begun) == (run, source, begun)]
            is_now = self._runs.get(outermost(run, self._runs), 0) == begun
            put = change(ours, source, is_now=is_now)
            if put:
                detail = f"{run}, begun {begun} times, {source}: {', '.join(map(_shown, put))}"
                return self._forgery("a run", how, detail, partial(put_rows, put=put), put[0])
        return None

    # ------------------------------------------------------------------ tables, and files

    def _schema(self, how: str, statements: str, randomness: random.Random) -> Forgery | None:
        def apply(folder: Path) -> None:
            with connected(folder / self._file) as database:
                for statement in statements.split(";;"):
                    database.execute(statement.format(table="run", column="graph"))

        return Forgery("the schema", how, statements, apply, is_general=True)

    def _stale_index(self, randomness: random.Random) -> Forgery | None:
        """Two rows exchange what an index has of them, and the index does not learn of it."""
        seed = randomness.random()

        def apply(folder: Path) -> None:
            with connected(folder / self._file) as database:
                found = indices(database)
            keys = list(read(folder / self._file))
            counted = Counter(table for table, _ in keys)
            chosen = random.Random(seed)  # noqa: S311 - no secret
            index, table, columns = chosen.choice([one for one in found if counted[one[1]] > 1])
            a, b = chosen.sample([key for key in keys if key[0] == table], 2)
            with without_index(folder / self._file, index) as database:
                exchange(database, a, b, [column for column in columns if column != "number"])

        return Forgery("an index", "does not know of a change", f"{seed}", apply, is_general=True, hides=True)

    def _damaged_file(self, how: str, is_live: bool, randomness: random.Random) -> Forgery | None:
        file = f"{self._file}-wal" if is_live else self._file
        seed = randomness.random()

        def apply(folder: Path) -> None:
            path = folder / file
            content = path.read_bytes()
            if content:  # a log may have been cut off
                path.write_bytes(DAMAGES[how](content, random.Random(seed)))  # noqa: S311 - no secret

        what = "the log" if is_live else "the file"
        return Forgery(what, how, f"{seed}", apply, is_live=is_live, is_general=True, takes_files=True)

    def _forgery(self, what: str, how: str, detail: str, change: Change, *its: Found) -> Forgery:
        def apply(folder: Path) -> None:
            now = read(folder / self._file)
            with unconstrained(folder / self._file) as database:
                change(database, now)

        return Forgery(what, how, detail, apply, tuple(it.place.run for it in its))


def _by_column(found: Found) -> Iterator[tuple[str, Any]]:
    return ((column, value) for column, _, value in cells(found.key, found.row))


def _shown(found: Found) -> str:
    place = found.place
    return f"{place.run} {'head' if place.is_head else place.step}" if place.run else f"{found.key}"


# --------------------------------------------------------------------------- tables, and files

_SCHEMA = {
    "view added": "CREATE VIEW added AS SELECT * FROM {table}",
    "table added": "CREATE TABLE added (a, b);; INSERT INTO added VALUES (1, 2)",
    "index added": "CREATE INDEX added ON {table} (CAST({column} AS TEXT))",
    "column added": "ALTER TABLE {table} ADD COLUMN added DEFAULT 5",
    "trigger that removes": "CREATE TRIGGER added AFTER UPDATE ON {table} BEGIN DELETE FROM {table}; END",
    "trigger that removes, called TRIGGER": (
        "CREATE TRIGGER added AFTER UPDATE ON {table} BEGIN DELETE FROM {table}; END;; PRAGMA writable_schema = 1;; "
        "UPDATE sqlite_master SET type = 'TRIGGER' WHERE name = 'added'"
    ),
    "index removed": "DROP INDEX IF EXISTS run_by_status",
    "table replaced by a view": "ALTER TABLE {table} RENAME TO other;; CREATE VIEW {table} AS SELECT * FROM other",
}
