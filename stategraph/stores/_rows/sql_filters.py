"""Conditions of SQL for the runs of a `RunFilter`, and how SQLite lists them: by an index, where that has few of them.

Runs are listed by their numbers. An index by something else finds few runs fast, which are sorted then; but of many,
the newest are found sooner by looking through all in order. PostgreSQL chooses itself, by its statistics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from stategraph._values.ids import given_id
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows.sql_statements import RUN, Condition, Dialect, Statement

_FEW = 20_000  # entries of an index, which are read in a few milliseconds
_LAST = "\U0010ffff"  # comes after all that an id may have

Ask: TypeAlias = Callable[[str, Sequence[Any]], list[Any]]
"""Returns the rows that a statement finds with these values."""


def simple(text: str, *values: Any) -> Condition:
    """Return a condition on columns of the run."""
    return Condition(text, values, f"run WHERE {text}", f"+{text}")


def _conditions(which: RunFilter, words: Dialect) -> Iterator[Condition]:
    """Yield the conditions of a filter that an index can answer."""
    if which.status is not None:
        yield simple("status = ?", str(which.status))
    if which.graph is not None:
        yield simple("graph = ?", which.graph)
    if which.prefix:
        yield simple("run_id BETWEEN ? AND ?", which.prefix, which.prefix + _LAST)
    if which.parent is not None:
        yield simple("parent BETWEEN ? AND ?", f"{which.parent}!", f"{which.parent}!{_LAST}")
    if which.only_ids is not None:
        yield simple(words.among, json.dumps(sorted(which.only_ids)))
    if which.since is not None:
        yield simple("created_ns >= ?", which.since_ns)
    for pair in (which.labels or {}).items():
        yield words.labelled(*pair)


def _found(which: RunFilter, conditions: Sequence[tuple[str, Sequence[Any]]]) -> Statement:
    """Return a condition for all of these, and its values. Nested runs are shown only as those of a parent."""
    shown = "run_id NOT LIKE '%/#%'" if which.parent is None else "replace(run_id, '/#', '') NOT LIKE '%#%'"
    where = " AND ".join([*(text for text, _ in conditions), shown])
    return where, [value for _, values in conditions for value in values]


def count_runs(which: RunFilter, words: Dialect) -> Statement:
    """Return the statement that counts the runs of a filter, by what is in their columns."""
    found = [(one.text, one.values) for one in _conditions(which, words)]
    if which.owned is False:
        found.append((f"NOT {words.among}", [json.dumps(sorted(which.owned_ids or ()))]))
    for pair in (which.labels or {}).items():  # SQLite decodes texts up to a NUL: so the index may have more
        found.append(("replace(labels, ?, '') <> labels", [json.dumps(pair)[1:-1]]))
    if which.parent is not None:  # what a deleted run has left is nested in no run
        incarnation = f"(SELECT o.incarnation FROM {words.schema}run AS o WHERE o.run_id = ?)"
        found.append((f"(run_id NOT LIKE '%/#%' OR incarnation = {incarnation})", [given_id(which.parent)]))
    where, values = _found(which, found)
    return f"SELECT count(*) FROM {words.schema}run AS run WHERE {where}", values


def select_page(which: RunFilter, limit: int, before: int | None, words: Dialect) -> Statement:
    """Return the statement that lists runs with numbers below one, for a database that chooses an index itself."""
    found = [(one.text, one.values) for one in _conditions(which, words)]
    if before is not None:
        found.append(("number < ?", [before]))
    where, values = _found(which, found)
    return f"SELECT {RUN} FROM {words.schema}run WHERE {where} ORDER BY number DESC LIMIT ?", [*values, limit]


def select_runs(which: RunFilter, limit: int, before: int | None, words: Dialect, ask: Ask) -> Statement:
    """Return the statement that lists runs in SQLite; raises whatever `ask` does.

    Args:
        which: Which runs; some of them are left to whoever reads the records.
        limit: At most so many; all if it is negative.
        before: Only runs with a number below this one, if given.
        words: The dialect of SQLite.
        ask: Counts what an index has of them.
    """
    indexed = list(_conditions(which, words))
    is_ordered = not indexed or (len(indexed) == 1 and indexed[0].text.startswith(_ORDERED))
    counts = {} if is_ordered else {_count(condition, ask): condition for condition in indexed}
    few = min(counts, default=_FEW + 1) <= _FEW
    by = [counts[min(counts)]] if few else [each for each in indexed if each.text.startswith(_ORDERED)]
    found = [(each.text if each in by else each.plain, each.values) for each in indexed]
    order = "+number" if few else "number"
    if before is not None:
        found.append((f"{order} < ?", [before]))
    where, values = _found(which, found)
    page = f"SELECT number FROM run WHERE {where} ORDER BY {order} DESC LIMIT ?"
    return f"SELECT {RUN} FROM run WHERE number IN ({page}) ORDER BY number DESC", [*values, limit]


_ORDERED = ("status", "graph")  # columns of indexes that have their entries in the order of numbers


def _count(condition: Condition, ask: Ask) -> int:
    """Return how many runs an index has, at most one more than are few."""
    ((count,),) = ask(f"SELECT count(*) FROM (SELECT 1 FROM {condition.entries} LIMIT {_FEW + 1})", condition.values)
    return int(count)
