"""The schema of a PostgreSQL database, and its migrations."""

from __future__ import annotations

import json
import re

from psycopg import errors, sql

from stategraph.errors import FormatError
from stategraph.stores._postgres.connections import Connection
from stategraph.stores._rows.sql_table import Condition, Dialect, simple

_OLDEST = 16_00_00  # the view uses pg_input_is_valid

_FIRST = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE {schema}.store (id bytea NOT NULL, version integer NOT NULL);
INSERT INTO {schema}.store VALUES (uuid_send(gen_random_uuid()), 0);
CREATE TABLE {schema}.run (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL UNIQUE,
    version bigint NOT NULL,
    sequence bigint NOT NULL,
    step bigint NOT NULL,
    revision bigint NOT NULL,
    kind text NOT NULL,
    checkpoint_node text NOT NULL,
    timestamp_ns bigint NOT NULL,
    status text NOT NULL,
    by_whom text,
    graph text,
    error text,
    parent text COLLATE "C",
    policy text NOT NULL,
    created_ns bigint NOT NULL,
    labels text NOT NULL,
    pause text,
    incarnation bytea NOT NULL,
    tip bytea NOT NULL,
    seal bytea NOT NULL,
    fence bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX run_by_status ON {schema}.run (status, number);
CREATE INDEX run_by_graph ON {schema}.run (graph, number);
CREATE TABLE {schema}.checkpoint (
    number bigint NOT NULL,
    sequence bigint NOT NULL,
    base bigint NOT NULL,
    step bigint NOT NULL,
    revision bigint NOT NULL,
    kind text NOT NULL,
    checkpoint_node text NOT NULL,
    timestamp_ns bigint NOT NULL,
    status text NOT NULL,
    error text,
    by_whom text,
    took_ns bigint,
    attempts bigint NOT NULL,
    owner text,
    format bigint NOT NULL,
    encoding text NOT NULL,
    payload bytea NOT NULL,
    seal bytea NOT NULL,
    pause text,
    PRIMARY KEY (number, sequence)
);
ALTER TABLE {schema}.checkpoint ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE {schema}.worker (
    id text COLLATE "C" PRIMARY KEY,
    host text NOT NULL,
    pid bigint NOT NULL,
    place text NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE {schema}.lease (
    run_id text COLLATE "C" PRIMARY KEY,
    worker text COLLATE "C",
    fence bigint NOT NULL,
    since_ns bigint NOT NULL,
    cancelled boolean NOT NULL,
    by_whom text
) WITH (fillfactor = 70);
CREATE VIEW {schema}.checkpoints AS
SELECT run.run_id, c.step, c.revision, c.kind, c.checkpoint_node, c.status,
    to_timestamp(c.timestamp_ns / 1e9) AS "timestamp", c.by_whom, c.error, c.pause, c.took_ns / 1e9 AS took, c.attempts,
    c.owner, c.sequence, c.base, octet_length(c.payload) AS bytes, c.encoding,
    CASE WHEN c.encoding = 'json' AND pg_input_is_valid(convert_from(c.payload, 'UTF8'), 'jsonb')
        THEN convert_from(c.payload, 'UTF8')::jsonb END AS json
FROM {schema}.checkpoint AS c JOIN {schema}.run USING (number);
"""
LABELS = (
    r"""string_to_array(regexp_replace(btrim(labels, '[]'), '("([^"\\]|\\.)*", "([^"\\]|\\.)*"), ', """
    r"""E'\\1\n', 'g'), E'\n')"""
)
"""The labels of a run as an array of '"name", "value"'. The index uses the same expression."""

# NOT VALID: existing rows are not checked, which would block other clients.
_SECOND = f"""
CREATE INDEX run_by_created ON {{schema}}.run (created_ns);
CREATE INDEX run_by_parent ON {{schema}}.run (parent) WHERE parent IS NOT NULL;
CREATE INDEX run_by_label ON {{schema}}.run USING gin (({LABELS})) WHERE labels <> '[]';
ALTER TABLE {{schema}}.run ADD CONSTRAINT run_status
    CHECK (status IN ('active', 'paused', 'completed', 'failed', 'cancelled')) NOT VALID;
ALTER TABLE {{schema}}.checkpoint ADD CONSTRAINT checkpoint_status
    CHECK (status IN ('active', 'paused', 'completed', 'failed', 'cancelled')) NOT VALID;
ALTER TABLE {{schema}}.checkpoint ADD CONSTRAINT checkpoint_of_run
    FOREIGN KEY (number) REFERENCES {{schema}}.run ON DELETE CASCADE NOT VALID;
"""
_THIRD = """
ALTER TABLE {schema}.run ADD due_ns bigint, ADD inbox bigint NOT NULL DEFAULT 0;
ALTER TABLE {schema}.checkpoint ADD effects text;
CREATE INDEX run_by_due ON {schema}.run (due_ns) WHERE due_ns IS NOT NULL;
CREATE TABLE {schema}.entry (
    number bigint NOT NULL REFERENCES {schema}.run ON DELETE CASCADE,
    step bigint NOT NULL,
    seq bigint NOT NULL,
    kind text NOT NULL,
    place text NOT NULL,
    name text NOT NULL,
    made_of text NOT NULL,
    at_ns bigint NOT NULL,
    by_whom text,
    format bigint NOT NULL,
    encoding text NOT NULL,
    payload bytea NOT NULL,
    seal bytea NOT NULL,
    PRIMARY KEY (number, step, seq)
);
CREATE INDEX entry_by_name ON {schema}.entry (number, name) WHERE step = 0 AND name <> '';
"""
_MIGRATIONS = tuple(tuple(part for part in script.strip().split(";\n") if part) for script in (_FIRST, _SECOND, _THIRD))
"""The statements that lead from each version of the schema to the next."""
SCHEMA_VERSION = len(_MIGRATIONS)
_OURS = re.findall(r"CREATE (?:TABLE|VIEW) {schema}\.(\w+)", _FIRST + _SECOND + _THIRD)


def dialect_of(schema: str) -> Dialect:
    """Return the dialect of PostgreSQL, for the tables in a schema."""
    return Dialect(
        schema=f"{_quoted(schema)}.",
        key=("number", "sequence"),
        key_of="number, ?",
        sequence="checkpoint.sequence",
        within="checkpoint.number = run.number AND checkpoint.sequence BETWEEN {first} AND {last}",
        bytes="bytea",
        row_counts=(1,),
        new=("fence", "?"),
        among="run_id IN (SELECT json_array_elements_text(?::json))",
        labelled=_labelled,
        removes_rows=True,
        json_as_text=False,
        combines=True,
        locks=" FOR UPDATE OF run",
    )


def _labelled(name: str, value: str) -> Condition:
    return simple(f"labels <> '[]' AND {LABELS} @> ARRAY[?]", json.dumps([name, value])[1:-1])


def _quoted(schema: str) -> str:
    return sql.Identifier(schema).as_string(None)


def _statements(schema: str, version: int) -> list[str]:
    """Return the statements that lead from a version to the newest one."""
    name = _quoted(schema)
    made = [statement.rstrip(";").format(schema=name) for script in _MIGRATIONS[version:] for statement in script]
    return [*made, f"UPDATE {name}.store SET version = {SCHEMA_VERSION}"]


def prepare(server: Connection, schema: str, store: object, *, migrates: bool) -> bytes:
    """Create or migrate the tables if necessary; return the id of the store.

    Raises:
        FormatError: the tables are of a newer version, or of an older one and may not be changed.
    """
    if server.info.server_version < _OLDEST:
        version = server.info.server_version // 10_000
        raise FormatError("", f"the {store} needs PostgreSQL 16 or newer; this is {version}")
    version, store_id = _found(server, schema, store)
    if version < SCHEMA_VERSION and not migrates:
        raise _to_do(schema, version, store)
    if version < SCHEMA_VERSION:
        try:
            with server.transaction():
                lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
                server.execute(lock, (f"stategraph migrates {schema}",))
                version, _ = _found(server, schema, store)  # another process may have been faster
                for statement in _statements(schema, version) if version < SCHEMA_VERSION else ():
                    server.execute(statement)
        except errors.InsufficientPrivilege as error:
            raise _to_do(schema, version, store) from error
        version, store_id = _found(server, schema, store)
    return store_id


def _to_do(schema: str, version: int, store: object) -> FormatError:
    """Return the error that lists the statements for an administrator."""
    statements = tuple(_statements(schema, version))
    todo = ";\n".join(statements)
    needs = f"the {store} has schema {version} and needs {SCHEMA_VERSION}"
    error = FormatError("", f"{needs}: an administrator has to run\n{todo};")
    error.statements = statements
    return error


def _found(server: Connection, schema: str, store: object) -> tuple[int, bytes]:
    """Return the version of the schema, 0 if there is none, and the id of the store.

    Raises:
        FormatError: the schema is of a newer version, does not have exactly one id, or another role can change it.
    """
    name = _quoted(schema)
    exists = "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = 'store'"
    is_there = server.execute(exists, (schema,)).fetchone() != (0,)
    _check_owners(server, schema, store)  # last: what is not there yet is checked once it is made
    if not is_there:
        return 0, b""
    found = server.execute(f"SELECT version, id FROM {name}.store LIMIT 2", binary=True).fetchall()
    if len(found) != 1:
        raise FormatError("", f"the {store} is damaged: its table store does not have one id")
    version, store_id = found[0]
    if version > SCHEMA_VERSION:
        reads = f"this version of stategraph reads up to {SCHEMA_VERSION}; update it"
        raise FormatError("", f"the {store} has schema {version} and {reads}")
    return int(version), bytes(store_id)


_FOREIGN = """
WITH ours AS (
    SELECT c.oid, relname, relowner FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
    WHERE nspname = $1 AND relname = ANY($2))
SELECT format('%s %s of role %s', kind, name, pg_get_userbyid(owner)) FROM (
    SELECT 'schema', nspname, nspowner FROM pg_namespace WHERE nspname = $1
    UNION ALL SELECT 'table', relname, relowner FROM ours
    UNION ALL SELECT 'trigger', tgname, proowner FROM ours JOIN pg_trigger ON tgrelid = ours.oid
        JOIN pg_proc AS p ON p.oid = tgfoid WHERE NOT tgisinternal) AS found (kind, name, owner)
WHERE owner NOT IN (SELECT oid FROM pg_roles WHERE rolsuper OR rolname IN (current_user, 'pg_database_owner')
    UNION ALL SELECT datdba FROM pg_database WHERE datname = current_database())
UNION ALL SELECT format('rule %s on %s', rulename, relname) FROM ours JOIN pg_rewrite ON ev_class = ours.oid
WHERE rulename <> '_RETURN'
"""
"""Finds code that would run with the rights of this role, and what other roles could replace by such code."""


def _check_owners(server: Connection, schema: str, store: object) -> None:
    """Raise FormatError if others than this role, superusers and the owner of the database can change the tables."""
    foreign = [text for (text,) in server.execute(_FOREIGN, (schema, _OURS)).fetchall()]
    if foreign:
        way_out = "take another schema or, if you trust these, have an administrator drop them or change their owner"
        reason = f"others than this role and its administrators made parts of it ({', '.join(foreign[:5])})"
        raise FormatError("", f"the {store} is not used: {reason}: {way_out}")
