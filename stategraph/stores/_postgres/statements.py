"""The statements of a PostgreSQL store. Whatever a save has to compare stands in the statement that writes it."""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from stategraph.stores._servers.guards import Guard

_CHANGING = ("version", "sequence", "step", "checkpoint_node", "timestamp_ns", "tip", "seal")
_CHANGING_TYPES = ("bigint", "bigint", "bigint", "text", "bigint", "bytea", "bytea")
_LASTING = (
    *("revision", "kind", "status", "error", "by_whom", "graph", "parent", "policy", "labels", "pause"),
    *("created_ns", "incarnation"),
)
_LASTING_TYPES = ("bigint", *("text",) * 9, "bigint", "bytea")
RUN = (
    "run_id, number, version, sequence, step, revision, kind, checkpoint_node, timestamp_ns, status, error, by_whom, "
    "graph, parent, policy, created_ns, labels, pause, incarnation, tip, seal"
)
_ROW = (
    *("sequence", "base", "step", "revision", "kind", "checkpoint_node", "timestamp_ns", "status", "error", "by_whom"),
    *("took_ns", "attempts", "owner", "format", "encoding", "payload", "seal", "pause"),
)
_ROW_TYPES = (
    *("bigint", "bigint", "bigint", "bigint", "text", "text", "bigint", "text", "text", "text"),
    *("bigint", "bigint", "text", "bigint", "text", "bytea", "bytea", "text"),
)


class Put(IntEnum):
    """What becomes of the record of a run: it is new, only goes on, or changes otherwise, too."""

    NEW = 0
    STEP = 1
    RUN = 2


class Cut(IntEnum):
    """What goes with a save: nothing, rows, also all that is nested in the run, or also the parts of its steps."""

    NOTHING = 0
    ROWS = 1
    NESTED = 2
    PARTS = 3


_PARAMETERS = "$1::text, $2::bigint, $3::bigint, $4::text, $5::bytea"  # in this order in every save
_FIRST = 6
_HELD = "held AS MATERIALIZED (SELECT cancelled FROM {s}.lease WHERE run_id = $4 AND fence = $3 FOR SHARE)"
_NOBODY = "NOT EXISTS (SELECT FROM {s}.lease WHERE run_id = $4 AND worker IS NOT NULL)"


@cache
def save(s: str, put: Put, rows: int, cut: Cut, guard: Guard, is_nested: bool) -> str:
    """Return the one statement that writes a batch; it finds the run, and whether that is cancelled.

    Its values: the run, the version before, the fence, the outermost run and its incarnation, then the columns of the
    run, then those of a row, or lists of those of several, then the bounds of what goes.

    Args:
        s: The schema.
        put: What becomes of the record of the run.
        rows: Whether none, one (1) or several (2) rows are put.
        cut: What goes.
        guard: What else is compared.
        is_nested: Whether the outermost run must be there.
    """
    first = _FIRST
    names = _CHANGING if put is Put.STEP else (*_CHANGING, *_LASTING)
    types = _CHANGING_TYPES if put is Put.STEP else (*_CHANGING_TYPES, *_LASTING_TYPES)
    given = f"given AS (SELECT {_PARAMETERS})"
    parts = [given, *_moved(s, put, guard, is_nested, tuple(zip(names, _numbered(first, types), strict=True)))]
    first += len(names)
    if rows:
        parts.append(_put_rows(s, first, rows))
        first += len(_ROW)
    if cut is not Cut.NOTHING:
        bounds = f"(c.sequence < ${first}::bigint OR c.sequence > ${first + 1}::bigint)"
        parts.append(f"cut AS (DELETE FROM {s}.checkpoint AS c USING moved WHERE c.number = moved.number AND {bounds})")
        first += 2
    if cut in (Cut.NESTED, Cut.PARTS):
        these = f"r.run_id > ${first}::text AND r.run_id < ${first + 1}::text"
        these += " AND r.run_id ~ '[^/]#'" if cut is Cut.PARTS else ""
        parts.append(f"gone AS (DELETE FROM {s}.run AS r USING moved WHERE {these})")
    is_cancelled = f"(SELECT cancelled FROM {s}.lease WHERE run_id = $4)" if guard is Guard.OWNED else "false"
    return f"WITH {', '.join(parts)} SELECT number, {is_cancelled} FROM moved".replace("{s}", s)


def _moved(s: str, put: Put, guard: Guard, is_nested: bool, columns: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the parts of a save that write the record of the run, if it is as it must be."""
    outer = [f"EXISTS (SELECT FROM {s}.run WHERE run_id = $4 AND incarnation = $5)"] if is_nested else []
    if put is Put.NEW:
        conditions = [*outer, *{Guard.OWNED: ["EXISTS (SELECT FROM held)"], Guard.BY_HAND: [_NOBODY]}.get(guard, [])]
        names, values = ", ".join(name for name, _ in columns), ", ".join(value for _, value in columns)
        moved = (
            f"moved AS (INSERT INTO {s}.run (run_id, fence, {names}) SELECT $1, greatest($3, 0), {values} "
            f"WHERE {' AND '.join(conditions) or 'true'} ON CONFLICT (run_id) DO NOTHING RETURNING number)"
        )
        return [_HELD, moved] if guard is Guard.OWNED else [moved]
    # The fence stands in the row itself, too: whoever waits for that row is compared with what it is by then.
    unmoved = f"fence = (SELECT fence FROM {s}.run WHERE run_id = $1) AND {_NOBODY}"
    conditions = [*outer, *{Guard.OWNED: ["fence = $3"], Guard.BY_HAND: [unmoved]}.get(guard, [])]
    changes = ", ".join(f"{name} = {value}" for name, value in columns)
    where = " AND ".join(["run_id = $1", "version = $2", *conditions])
    return [f"moved AS (UPDATE {s}.run SET {changes} WHERE {where} RETURNING number)"]


def _put_rows(s: str, first: int, rows: int) -> str:
    instead = ", ".join(f"{name} = excluded.{name}" for name in _ROW[1:])
    if rows == 1:
        source = f"SELECT number, {', '.join(_numbered(first, _ROW_TYPES))} FROM moved"
    else:
        lists = ", ".join(_numbered(first, [f"{kind}[]" for kind in _ROW_TYPES]))
        source = f"SELECT number, u.* FROM moved, unnest({lists}) AS u"
    into = f"INSERT INTO {s}.checkpoint (number, {', '.join(_ROW)}) {source}"
    return f"put AS ({into} ON CONFLICT (number, sequence) DO UPDATE SET {instead})"


def _numbered(first: int, types: tuple[str, ...] | list[str]) -> list[str]:
    return [f"${number}::{kind}" for number, kind in enumerate(types, first)]


@cache
def remove(s: str, guard: Guard) -> str:
    """Return the statement that removes a run and all that is nested in it; it says whether it was there, and held.

    Its values: the run, its version or None, the bounds of what is nested, then the outermost run and the fence.
    """
    held = f"SELECT 1 FROM {s}.lease WHERE run_id = $5::text AND fence = $6::bigint FOR SHARE"
    is_held = "EXISTS (SELECT FROM held)" if guard is Guard.OWNED else "true"
    return (
        f"WITH held AS MATERIALIZED ({held if guard is Guard.OWNED else 'SELECT $5::text, $6::bigint'}), "
        f"gone AS (DELETE FROM {s}.run WHERE run_id = $1::text AND version = coalesce($2::bigint, version) "
        f"AND {is_held} RETURNING number), "
        f"nested AS (DELETE FROM {s}.run WHERE run_id > $3::text AND run_id < $4::text "
        f"AND ($2 IS NULL OR EXISTS (SELECT FROM gone)) AND {is_held}) "
        f"SELECT EXISTS (SELECT FROM gone), EXISTS (SELECT FROM held)"
    )


# --------------------------------------------------------------------------- reading


@cache
def chain(s: str) -> str:
    """Return the statement that finds a checkpoint after those that it builds on: of a run, up to a number."""
    return (
        f"WITH r AS (SELECT number, sequence, step FROM {s}.run WHERE run_id = $1::text), "
        f"newest AS (SELECT c.base, c.sequence FROM {s}.checkpoint AS c JOIN r USING (number) "
        f"WHERE c.sequence <= $2::bigint ORDER BY c.sequence DESC LIMIT 1) "
        f"SELECT r.sequence, r.step, {_of_row()} FROM r, newest, {s}.checkpoint AS c "
        f"WHERE c.number = r.number AND c.sequence BETWEEN least(newest.base, newest.sequence) AND newest.sequence "
        f"ORDER BY c.sequence"
    )


@cache
def index(s: str) -> str:
    """Return the statement that finds checkpoints of a run, between two numbers, without their payloads."""
    columns = _of_row().replace("c.payload", "''::bytea")
    of_run = f"{s}.run AS r JOIN {s}.checkpoint AS c USING (number) WHERE run_id = $1::text"
    return f"SELECT {columns} FROM {of_run} AND c.sequence BETWEEN $2::bigint AND $3::bigint ORDER BY c.sequence"


@cache
def find(s: str) -> str:
    """Return the statement that finds a revision of a step."""
    return (
        f"SELECT c.sequence FROM {s}.run AS r JOIN {s}.checkpoint AS c USING (number) WHERE run_id = $1::text "
        f"AND c.sequence BETWEEN $2::bigint AND $3::bigint AND c.step = $2 "
        f"AND c.revision = coalesce($4::bigint, c.revision) ORDER BY c.sequence DESC LIMIT 1"
    )


def _of_row() -> str:
    return ", ".join(f"c.{name}" for name in _ROW)
