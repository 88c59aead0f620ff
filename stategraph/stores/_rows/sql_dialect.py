"""The dialects of SQL databases, and the conditions for the runs of a `RunFilter`.

Runs are listed by number. An index on another column finds few runs fast, which are then sorted; but with many matches,
reading all runs in order finds the newest sooner. PostgreSQL chooses by its statistics; `select_runs` does for SQLite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs

from stategraph._values.ids import given_id
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows.columns import RUN_COLUMNS

_FEW = 20_000  # entries of an index, which are read in a few milliseconds
_LAST = "\U0010ffff"  # sorts after all characters of an id

Statement: TypeAlias = tuple[str, Sequence[Any]]
"""A statement and its values."""

_RUN = ", ".join(RUN_COLUMNS)


@attrs.frozen
class Condition:
    """A condition on a run, with a ``?`` for each of its values.

    Attributes:
        text: The condition, as an index answers it.
        values: Its values.
        entries: The part of an index with an entry for each matching run.
        plain: The condition, as SQLite checks it for each run.
    """

    text: str
    values: Sequence[Any]
    entries: str
    plain: str


@attrs.frozen(eq=False)
class Dialect:
    """The words in which SQL databases differ.

    Attributes:
        key: The columns that identify a row.
        key_of: Their values, for the row of a run with a sequence number.
        sequence: The sequence number of a row.
        order: The column that sorts the rows of a run.
        within: The condition that a row belongs to a run, between the sequence numbers {first} and {last}.
        payload: The payload, as bytes.
        no_payload: The value to read instead of a payload that is not needed.
        together: How many rows a statement may write, largest number first.
        new: The column that only a new run sets, and its value.
        among: The condition that a run is one of several; its value is a list of ids as JSON.
        labelled: Returns the condition that a run has a label.
        removes_rows: Whether the database removes the rows of a run with the run.
        json_as_text: Whether payloads in JSON are kept as text.
        schema: The prefix of the name of each table.
    """

    key: tuple[str, ...]
    key_of: str
    sequence: str
    order: str
    within: str
    payload: str
    no_payload: str
    together: Sequence[int]
    new: tuple[str, str]
    among: str
    labelled: Callable[[str, str], Condition]
    removes_rows: bool
    json_as_text: bool
    schema: str = ""

    def rows_of_run(self, first: str = "?", last: str = "?", run: str = "") -> str:
        """Return the tables of a run and its rows, and the condition for those between two sequence numbers."""
        within = self.within.format(first=first, last=last)
        return f"{run or self.schema + 'run'} AS run CROSS JOIN {self.schema}checkpoint AS checkpoint WHERE {within}"


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
    """Return the conjunction of conditions, and its values. Without a parent, nested runs are left out."""
    shown = "run_id NOT LIKE '%/#%'" if which.parent is None else "replace(run_id, '/#', '') NOT LIKE '%#%'"
    where = " AND ".join([*(text for text, _ in conditions), shown])
    return where, [value for _, values in conditions for value in values]


def count_runs(which: RunFilter, words: Dialect) -> Statement:
    """Return the statement that counts the runs of a filter by their columns."""
    found = [(condition.text, condition.values) for condition in _conditions(which, words)]
    if which.owned is False:
        found.append((f"NOT {words.among}", [json.dumps(sorted(which.owned_ids or ()))]))
    for pair in (which.labels or {}).items():  # SQLite decodes text up to a NUL, so the index may have more
        found.append(("replace(labels, ?, '') <> labels", [json.dumps(pair)[1:-1]]))
    if which.parent is not None:  # not the remains of a deleted run
        incarnation = f"(SELECT o.incarnation FROM {words.schema}run AS o WHERE o.run_id = ?)"
        found.append((f"(run_id NOT LIKE '%/#%' OR incarnation = {incarnation})", [given_id(which.parent)]))
    where, values = _found(which, found)
    return f"SELECT count(*) FROM {words.schema}run AS run WHERE {where}", values


def select_page(which: RunFilter, limit: int, before: int | None, words: Dialect) -> Statement:
    """Return the statement that lists a page of runs, for a database that chooses an index itself."""
    found = [(condition.text, condition.values) for condition in _conditions(which, words)]
    if before is not None:
        found.append(("number < ?", [before]))
    where, values = _found(which, found)
    return f"SELECT {_RUN} FROM {words.schema}run WHERE {where} ORDER BY number DESC LIMIT ?", [*values, limit]


def select_runs(which: RunFilter, limit: int, before: int | None, words: Dialect, ask: Ask) -> Statement:
    """Return the statement that lists runs in SQLite; raise as `ask`.

    Args:
        which: The filter. The result may include runs that do not match by owner or labels.
        limit: The most runs; all if negative.
        before: Only runs with a number below this one, if given.
        words: The dialect of SQLite.
        ask: Counts the entries of an index.
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
    return f"SELECT {_RUN} FROM run WHERE number IN ({page}) ORDER BY number DESC", [*values, limit]


_ORDERED = ("status", "graph")  # columns of indexes whose entries are ordered by number


def _count(condition: Condition, ask: Ask) -> int:
    """Return the number of entries in an index, at most `_FEW` + 1."""
    ((count,),) = ask(f"SELECT count(*) FROM (SELECT 1 FROM {condition.entries} LIMIT {_FEW + 1})", condition.values)
    return int(count)
