"""Conditions of SQL for the runs of a `RunFilter`, and how SQLite lists them: by an index, where that has few of them.

Runs are listed by their numbers. An index by something else finds few runs fast, which are sorted then; but of many,
the newest are found sooner by looking through all in order. PostgreSQL chooses itself, by its statistics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs

from stategraph._values.ids import given_id
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows import sql_schema as sql

_FEW = 20_000  # entries of an index, which are read in a few milliseconds
_LAST = "\U0010ffff"  # comes after all that an id may have

Ask: TypeAlias = Callable[[str, Sequence[Any]], list[Any]]
"""Returns the rows that a statement finds with these values."""


class Condition(NamedTuple):
    """A condition on a run, with a ``?`` for each of its values.

    Attributes:
        text: It, as an index answers it.
        values: Its values.
        entries: Where an index has an entry for each run that it holds for.
        plain: It, as SQLite looks for it in each run.
    """

    text: str
    values: Sequence[Any]
    entries: str
    plain: str


@attrs.frozen
class Dialect:
    """What SQL databases say differently.

    Attributes:
        run: The table of the runs.
        among: The condition that a run is among some ids.
        ids: Returns ids as its value.
        labelled: Returns the condition that a run has a label.
    """

    run: str
    among: str
    ids: Callable[[Collection[str]], Any]
    labelled: Callable[[str, str], Condition]


def simple(text: str, *values: Any) -> Condition:
    """Return a condition on columns of the run."""
    return Condition(text, values, f"run WHERE {text}", f"+{text}")


def _labelled(name: str, value: str) -> Condition:
    pair = json.dumps([name, value])  # SQLite decodes it as it does what is kept, and takes no other surrogates
    label = "name = json_extract(?, '$[0]') AND value = json_extract(?, '$[1]')"
    has_label = f"EXISTS (SELECT 1 FROM label WHERE {label} AND label.number = run.number)"
    entries = f"label WHERE {label}"
    return Condition(f"number IN (SELECT number FROM {entries})", (pair, pair), entries, has_label)


_SQLITE = Dialect(
    "run", "run_id IN (SELECT value FROM json_each(?))", lambda ids: json.dumps(sorted(ids)), labelled=_labelled
)


def conditions(which: RunFilter, dialect: Dialect) -> Iterable[Condition]:
    """Yield what an index can find of a filter."""
    if which.status is not None:
        yield simple("status = ?", which.status)
    if which.graph is not None:
        yield simple("graph = ?", which.graph)
    if which.prefix:
        yield simple("run_id BETWEEN ? AND ?", which.prefix, which.prefix + _LAST)
    if which.parent is not None:
        yield simple("parent BETWEEN ? AND ?", f"{which.parent}!", f"{which.parent}!{_LAST}")
    if which.only_ids is not None:
        yield simple(dialect.among, dialect.ids(which.only_ids))
    if which.since is not None:
        yield simple("created_ns >= ?", which.since_ns)
    for pair in (which.labels or {}).items():
        yield dialect.labelled(*pair)


def shown(which: RunFilter) -> str:
    """Return the condition that a run is not nested, unless runs of a parent are asked for."""
    return "run_id NOT LIKE '%/#%'" if which.parent is None else "replace(run_id, '/#', '') NOT LIKE '%#%'"


# --------------------------------------------------------------------------- counting


def count_runs(which: RunFilter, dialect: Dialect = _SQLITE) -> tuple[str, Sequence[Any]]:
    """Return the statement that counts the runs of a filter, as their columns stand, and its values."""
    found = list(conditions(which, dialect))
    if which.owned is False:
        found.append(simple(f"NOT {dialect.among}", dialect.ids(which.owned_ids or ())))
    for pair in (which.labels or {}).items():  # SQLite decodes texts up to a NUL: so the index may have more
        found.append(simple("replace(labels, ?, '') <> labels", json.dumps(pair)[1:-1]))
    if which.parent is not None:  # what a deleted run has left is nested in no run
        incarnation = f"(SELECT o.incarnation FROM {dialect.run} AS o WHERE o.run_id = ?)"
        found.append(simple(f"(run_id NOT LIKE '%/#%' OR incarnation = {incarnation})", given_id(which.parent)))
    where = " AND ".join([*(one.text for one in found), shown(which)])
    values = [value for one in found for value in one.values]
    return f"SELECT count(*) FROM {dialect.run} AS run WHERE {where}", values


# --------------------------------------------------------------------------- listing


def select_runs(which: RunFilter, limit: int, before: int | None, ask: Ask) -> tuple[str, Sequence[Any]]:
    """Return the statement that lists runs in SQLite, and its values; raises whatever `ask` does.

    Args:
        which: Which runs; some of them are left to whoever reads the records.
        limit: At most so many; all if it is negative.
        before: Only runs with a number below this one, if given.
        ask: Counts what an index has of them.
    """
    indexed = list(conditions(which, _SQLITE))
    is_ordered = not indexed or (len(indexed) == 1 and indexed[0].text.startswith(_ORDERED))
    narrowest = None if is_ordered else min((_count(one, ask), one) for one in indexed)
    if narrowest is not None and narrowest[0] <= _FEW:
        found = [(one.text if one is narrowest[1] else one.plain, one.values) for one in indexed]
        order = "+number"
    else:
        found = [(one.text if one.text.startswith(_ORDERED) else one.plain, one.values) for one in indexed]
        order = "number"
    if before is not None:
        found.append(("number < ?" if order == "number" else "+number < ?", (before,)))
    where = " AND ".join([*(text for text, _ in found), shown(which)])
    few = f"SELECT number FROM run WHERE {where} ORDER BY {order} DESC LIMIT ?"
    values = [*(value for _, some in found for value in some), limit]
    return f"SELECT {sql.RUN} FROM run WHERE number IN ({few}) ORDER BY number DESC", values


_ORDERED = ("status", "graph")  # columns of indexes that have their entries in the order of numbers


def _count(condition: Condition, ask: Ask) -> int:
    """Return how many runs an index has, at most one more than are few."""
    ((count,),) = ask(f"SELECT count(*) FROM (SELECT 1 FROM {condition.entries} LIMIT {_FEW + 1})", condition.values)
    return int(count)
