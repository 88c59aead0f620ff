"""What a SQLite database is asked for, to list the runs of a `RunFilter`: by an index, where that has few of them.

Runs are listed by their numbers. An index by something else finds few runs fast, which are sorted then; but of many,
the newest are found sooner by looking through all in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from stategraph.stores._checks import RunFilter
from stategraph.stores._rows import sql_schema as sql

_FEW = 20_000  # entries of an index, which are read in a few milliseconds
_LAST = "\U0010ffff"  # comes after all that an id may have

_Condition: TypeAlias = tuple[str, Sequence[Any]]
Ask: TypeAlias = Callable[[str, Sequence[Any]], list[Any]]
"""Returns the rows that a statement finds with these values."""


def select_runs(which: RunFilter, limit: int, before: int | None, ask: Ask) -> tuple[str, Sequence[Any]]:
    """Return the statement that lists runs, and its values; raises whatever `ask` does.

    Args:
        which: Which runs; some of them are left to whoever reads the records.
        limit: At most so many; all if it is negative.
        before: Only runs with a number below this one, if given.
        ask: Counts what an index has of them.
    """
    indexed, others = _indexed(which), _others(which, before)
    is_ordered = not indexed or (len(indexed) == 1 and indexed[0][0].startswith(_ORDERED))
    narrowest = None if is_ordered else min((_count(one, ask), one) for one in indexed)
    if narrowest is not None and narrowest[0] <= _FEW:
        conditions = [narrowest[1], *(_unindexed(one) for one in [*indexed, *others] if one is not narrowest[1])]
        order = "+number"
    else:
        conditions = [*(one if one[0].startswith(_ORDERED) else _unindexed(one) for one in indexed), *others]
        order = "number"
    where = " AND ".join(
        [*(condition for condition, _ in conditions), sql.IS_SHOWN if which.parent is None else "true"]
    )
    few = f"SELECT number FROM run WHERE {where} ORDER BY {order} DESC LIMIT ?"
    values = [*(value for _, some in conditions for value in some), limit]
    return f"SELECT {sql.RUN} FROM run WHERE number IN ({few}) ORDER BY number DESC", values


_ORDERED = ("status", "graph")  # columns of indexes that have their entries in the order of numbers


def _indexed(which: RunFilter) -> list[_Condition]:
    conditions: list[_Condition] = []
    if which.status is not None:
        conditions.append(("status = ?", (which.status,)))
    if which.graph is not None:
        conditions.append(("graph = ?", (which.graph,)))
    if which.prefix:
        conditions.append(("run_id BETWEEN ? AND ?", (which.prefix, which.prefix + _LAST)))
    if which.parent is not None:
        conditions.append(("parent BETWEEN ? AND ?", (f"{which.parent}!", f"{which.parent}!{_LAST}")))
    if which.only_ids is not None:
        conditions.append(("run_id IN (SELECT value FROM json_each(?))", (json.dumps(sorted(which.only_ids)),)))
    if which.since is not None:
        conditions.append(("created_ns >= ?", (which.since_ns,)))
    return conditions


def _others(which: RunFilter, before: int | None) -> Iterable[_Condition]:
    if before is not None:
        yield "number < ?", (before,)
    for pair in (which.labels or {}).items():  # what is similar is told apart by whoever reads the record
        yield "instr(labels, ?)", (json.dumps(pair)[1:-1],)


def _count(condition: _Condition, ask: Ask) -> int:
    """Return how many runs an index has, at most one more than are few."""
    ((count,),) = ask(f"SELECT count(*) FROM (SELECT 1 FROM run WHERE {condition[0]} LIMIT {_FEW + 1})", condition[1])
    return int(count)


def _unindexed(condition: _Condition) -> _Condition:
    """Return a condition as one that SQLite looks for in no index."""
    return f"+{condition[0]}", condition[1]
