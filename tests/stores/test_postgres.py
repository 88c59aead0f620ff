"""The "postgres" store: faults that only a server has, and its statements."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from stategraph import (
    CheckpointConfig,
    CheckpointError,
    ConfigError,
    GraphConfig,
    RunLostError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.errors import CheckpointSaveError, FormatError
from stategraph.stores import PostgresStore
from tests.postgres_proxy import Pooler, Proxy, folder_of
from tests.postgres_server import crash, dsn, new_schema, new_server, open_postgres
from tests.scenarios import RUN, in_threads, make_graph
from tests.stores.inside import table_of
from tests.stores.servers import again, numbered, shown, wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def schema() -> str:
    """Return the name of a schema that is not there yet."""
    return new_schema()


@pytest.fixture
def own_server() -> Iterator[Any]:
    """Yield a server that a test may kill: with nothing in it, it is soon there again."""
    server = new_server()
    yield server
    server.cleanup()


@pytest.fixture
def admin() -> Iterator[Any]:
    """Yield a connection of an administrator."""
    with psycopg.connect(dsn(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def opened(schema: str) -> Iterator[Callable[..., PostgresStore]]:
    """Yield a function that opens a store in the schema, once more each time."""
    stores: list[PostgresStore] = []

    def open_one(**options: Any) -> PostgresStore:
        stores.append(open_postgres(schema, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[..., PostgresStore]) -> PostgresStore:
    """Return an empty store."""
    return opened()


# --------------------------------------------------------------------------- statements


class TestStatements:
    """How many, and how they are prepared."""

    def test_batches_in_opposite_order(self, opened: Callable[..., PostgresStore]) -> None:
        """Two stores that write the same runs, one from each end, do not wait for each other for ever."""
        first, second = opened(), opened()
        runs = [f"run-{number}" for number in range(20)]
        for run_id in runs:
            first.save(numbered(run_id, 1))

        def write(store: PostgresStore, order: list[str]) -> None:
            for _ in range(15):
                table_of(store).apply([again(store, run_id) for run_id in order])

        raised = in_threads(lambda: write(first, runs), lambda: write(second, runs[::-1]))

        assert raised == []
        assert deadlocks() == 0


def chain_of(steps: int, store: PostgresStore, node: Callable[[State], Any] = lambda state: {}) -> StateGraph:
    """Return a graph of so many steps."""
    config = GraphConfig("chain", observer="noop", checkpoint=CheckpointConfig(interval=1, preserve=True))
    graph = StateGraph(config, store=store)
    names = [f"node-{number}" for number in range(steps)]
    for name in names:
        graph.add_node(name, node)
    for one, after in pairwise(names):
        graph.add_edge(one, after)
    graph.set_entry_point(names[0])
    graph.set_exit_point(names[-1])
    return graph


def deadlocks() -> int:
    """Return how many there were."""
    with psycopg.connect(dsn()) as connection:
        found = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'").fetchone()
    return int(found[0]) if found else 0


# --------------------------------------------------------------------------- values


# --------------------------------------------------------------------------- the server


class TestOpening:
    """The checks of a store when it connects to its server."""

    def test_the_password_is_nowhere(self, schema: str) -> None:
        """It is in no error, whether the server refuses it or is silent, and in no repr of a store or config."""
        secret = "geheim-1234"
        where = [f"postgresql://unknown:{secret}@/nowhere?host={folder_of(dsn())}"]
        where.append(f"postgresql://app:{secret}@127.0.0.1:1/x")
        for one in where:
            with pytest.raises(CheckpointError) as caught:
                PostgresStore(one, schema=schema, patience=1)
            assert secret not in shown(caught.value)
        config = CheckpointConfig(store="postgres", options={"dsn": where[0]})
        assert secret not in repr(config)

    def test_a_server_that_keeps_nothing(self, schema: str, admin: Any) -> None:
        """A server with fsync off is refused: it may lose acknowledged saves."""
        admin.execute("ALTER SYSTEM SET fsync = off")
        admin.execute("SELECT pg_reload_conf()")
        try:
            wait_until(lambda: admin.execute("SHOW fsync").fetchone() == ("off",))
            with pytest.raises(ConfigError, match="fsync = off"):
                open_postgres(schema)
        finally:
            admin.execute("ALTER SYSTEM RESET fsync")
            admin.execute("SELECT pg_reload_conf()")
            wait_until(lambda: admin.execute("SHOW fsync").fetchone() == ("on",))

    @pytest.mark.parametrize("schema", ["runs", 'Odd "name"', "größe", "a b;--"])
    def test_other_schemas(self, schema: str, admin: Any) -> None:
        """A store works in schemas of any name."""
        with open_postgres(schema) as store:
            store.save(numbered("a", 1))
            assert open_and_list(schema) == ["a"]
        admin.execute(psycopg.sql.SQL("DROP SCHEMA {} CASCADE").format(psycopg.sql.Identifier(schema)))

    @pytest.mark.parametrize("schema", ["what?", "{s}.runs"])
    def test_schemas_whose_names_are_refused(self, schema: str) -> None:
        """A schema in which no statement would work is refused before anything is made in it."""
        with pytest.raises(ConfigError, match=r"without \? and {s}"):
            open_postgres(schema)

    @pytest.mark.parametrize(
        ("is_made", "planted", "named"),
        [
            (False, "SET ROLE {other}; CREATE SCHEMA {schema}", "schema {schema} of role {other}"),
            (False, "{may}; SET ROLE {other}; CREATE VIEW {schema}.run AS SELECT 1", "table run of role {other}"),
            (True, "{may}; SET ROLE {other}; {function}; {trigger}.run {calls}", "trigger theirs of role {other}"),
            (True, "{may}; SET ROLE {other}; {function}; {trigger}.entry {calls}", "trigger theirs of role {other}"),
            (True, "CREATE RULE theirs AS ON INSERT TO {schema}.run DO ALSO SELECT 1", "rule theirs on run"),
        ],
        ids=["schema", "view", "trigger", "trigger on entries", "rule"],
    )
    def test_parts_of_another_role(self, schema: str, admin: Any, is_made: bool, planted: str, named: str) -> None:
        """Code that another role made would run with the rights of this one, even of a superuser: it is refused."""
        names = {
            "schema": schema,
            "other": f"other_{schema}",
            "may": f"GRANT USAGE, CREATE ON SCHEMA {schema} TO other_{schema}",
            "function": "CREATE FUNCTION pg_temp.gain() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            "trigger": f"CREATE TRIGGER theirs BEFORE INSERT ON {schema}",
            "calls": "EXECUTE FUNCTION pg_temp.gain()",
        }
        admin.execute(f"CREATE ROLE other_{schema}; GRANT CREATE ON DATABASE postgres TO other_{schema}")
        if is_made:
            open_postgres(schema).close()
            admin.execute(f"GRANT TRIGGER ON {schema}.run, {schema}.entry TO other_{schema}")
        elif "{may}" in planted:
            admin.execute(f"CREATE SCHEMA {schema}")
        admin.execute(f"{planted.format(**names)}; RESET ROLE")

        with pytest.raises(FormatError, match=re.escape(named.format(**names))):
            open_postgres(schema)
        admin.execute(f"DROP OWNED BY other_{schema} CASCADE")
        if "RULE" in planted:
            admin.execute(f"DROP RULE theirs ON {schema}.run")
        open_postgres(schema).close()

    def test_tables_of_the_owner_of_the_database(self, schema: str, admin: Any) -> None:
        """The owner of a database administers it: other roles use its tables."""
        owner, app = f"owner_{schema}", f"app_{schema}"
        admin.execute(f"CREATE ROLE {owner} LOGIN; CREATE ROLE {app} LOGIN")
        admin.execute(f"CREATE DATABASE {schema} OWNER {owner}")
        place = psycopg.conninfo.make_conninfo(dsn(), dbname=schema)
        as_owner, as_app = (psycopg.conninfo.make_conninfo(place, user=role) for role in (owner, app))
        open_postgres("runs", dsn=as_owner).close()
        with psycopg.connect(as_owner) as connection:
            connection.execute(f"GRANT USAGE ON SCHEMA runs TO {app}")
            connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA runs TO {app}")

        with open_postgres("runs", dsn=as_app) as store:
            assert chain_of(3, store).execute(State(run_id="a")).step == 3
        admin.execute(f"DROP DATABASE {schema} WITH (FORCE)")

    def test_an_administrator_makes_the_tables(self, schema: str, admin: Any) -> None:
        """The error has the statements that are to be run; then it is as if the store had made them."""
        with pytest.raises(FormatError) as caught:
            open_postgres(schema, migrate=False)
        statements = str(caught.value).partition("an administrator has to run\n")[2]
        assert statements.startswith("CREATE SCHEMA")
        admin.execute(statements)

        with open_postgres(schema, migrate=False) as store:
            store.save(numbered("a", 1))
            assert store.list() == ["a"]

    def test_rights_for_data_only(self, schema: str, admin: Any) -> None:
        """A role with rights for data is enough once the tables exist; otherwise the error says who can help."""
        role = f"app_{schema}"
        admin.execute(f"CREATE ROLE {role} LOGIN")
        as_app = dsn().replace("postgres:@", f"{role}@")
        with pytest.raises(FormatError, match="CREATE SCHEMA"):
            open_postgres(schema, dsn=as_app)
        open_postgres(schema).close()
        with pytest.raises(CheckpointError, match="GRANT"):
            open_postgres(schema, dsn=as_app)
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")

        with open_postgres(schema, dsn=as_app) as store:
            assert chain_of(3, store).execute(State(run_id="a")).step == 3
            store.delete("a")
            assert store.list() == []

    @pytest.mark.parametrize("by_hand", [False, True], ids=["opened", "by an administrator"])
    def test_tables_of_the_first_version(self, schema: str, admin: Any, by_hand: bool) -> None:
        """Tables of the first version are migrated with damaged rows, too, or the error names the command to run."""
        with open_postgres(schema) as store:
            for number in range(4):
                store.save(State(run_id=f"run-{number}", labels={"team": "a"} if number < 2 else {}))
        for statement in FIRST_VERSION:
            admin.execute(statement.replace("SCHEMA", schema))

        if by_hand:
            with pytest.raises(FormatError, match="has schema 1 and needs 3") as refused:
                open_postgres(schema, migrate=False)
            admin.execute(str(refused.value).partition("an administrator has to run\n")[2])
        with open_postgres(schema, migrate=not by_hand) as store:
            assert [run.run_id for run in store.runs(labels={"team": "a"})] == ["run-1", "run-0"]
            assert store.load("run-2") == State(run_id="run-2", timestamp=store.load("run-2").timestamp)
            store.save(State(run_id="run-2", step=1))
            assert [run.run_id for run in store.runs()] == ["run-2", "run-1", "run-0"]
            store.delete("run-3")
            assert store.count() == 3

    @pytest.mark.parametrize(
        ("options", "index"),
        [
            ({"labels": {"team": "a"}}, "run_by_label"),
            ({"parent": "run-7"}, "run_by_parent"),
            ({"since": datetime(2025, 1, 1, tzinfo=UTC)}, "run_by_created"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_few_are_found_by_an_index(
        self, opened: Callable[..., PostgresStore], schema: str, admin: Any, options: Any, index: str
    ) -> None:
        """The counters of the server show that a filter with few matches uses an index."""
        began = datetime(2024, 1, 1, tzinfo=UTC)
        with opened() as store:
            for number in range(3):
                store.save(State(run_id=f"run-{number}", timestamp=began))
            # Many rows that no query returns: the server uses an index where it can skip many rows.
            admin.execute(MANY.replace("SCHEMA", schema))
            admin.execute(f"ANALYZE {schema}.run")
            store.save(State(run_id="run-7", labels={"team": "a"}))
            store.fork("run-7", "fork")
            assert store.count(**options) in (1, 2)
        _wait_for_use(admin, schema, index)

    def test_few_are_found_by_their_labels_before_the_first_analyze(
        self, opened: Callable[..., PostgresStore], schema: str, admin: Any
    ) -> None:
        """The index of labels finds a page without statistics, too: the labels of all runs are not parsed."""
        with opened() as store:
            admin.execute(f"ALTER TABLE {schema}.run SET (autovacuum_enabled = false)")
            store.save(State(run_id="run", labels={"team": "a"}, status="completed"))
            admin.execute(MANY.replace("SCHEMA", schema).replace("20000", "50000"))
            assert [run.run_id for run in store.runs("completed", labels={"team": "a"})] == ["run"]
        _wait_for_use(admin, schema, "run_by_label")

    def test_behind_a_pooler(self, opened: Callable[..., PostgresStore], admin: Any, schema: str) -> None:
        """With prepare=False no statement and no setting stays in a session."""
        store = opened(prepare=False, dsn=f"{dsn()}&options=-csynchronous_commit%3Doff")
        assert chain_of(4, store).execute(State(run_id="a")).step == 4

        def look(connection: Any) -> None:
            assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
            inside = "SELECT current_setting('synchronous_commit'), current_setting('lock_timeout')"
            assert connection.found([(inside, ())]) == [[("on", "1s")]]

        table_of(store)._connections.use(look, time.monotonic() + 300)

    @pytest.mark.parametrize("prepare", [True, False])
    def test_clients_that_share_sessions(self, opened: Callable[..., PostgresStore], prepare: bool) -> None:
        """A statement that another client prepared in the same session is never run by mistake."""
        pooler = Pooler(folder_of(dsn()), sessions=2)
        first, second = (opened(dsn=pooler.dsn, prepare=prepare) for _ in range(2))
        for number in range(8):  # other statements first: the clients would number them differently
            assert second.count(status="active") == 0
            assert second.runs(graph="none", limit=number + 1) == []

        runs = {f"{n}-{m}": chain_of(9, store) for n, store in enumerate((first, second)) for m in range(4)}
        raised = in_threads(*(partial(graph.execute, State(run_id=run_id)) for run_id, graph in runs.items()))
        first.save_many([numbered("many", step, text="x" * step) for step in range(1, 30)])

        assert raised == []
        for run_id in runs:
            state = second.load(run_id)
            assert state == first.load(run_id)
            assert (state.step, state.status) == (9, RunStatus.COMPLETED)
        assert second.load("many")["text"] == "x" * 29
        assert first.count() == second.count() == 9
        first.close()
        second.close()
        pooler.close()


FIRST_VERSION = (
    "DROP TABLE SCHEMA.entry",
    "ALTER TABLE SCHEMA.run DROP due_ns, DROP inbox",
    "ALTER TABLE SCHEMA.checkpoint DROP effects",
    *(f"DROP INDEX SCHEMA.run_by_{name}" for name in ("created", "parent", "label")),
    "ALTER TABLE SCHEMA.run DROP CONSTRAINT run_status",
    "ALTER TABLE SCHEMA.checkpoint DROP CONSTRAINT checkpoint_status, DROP CONSTRAINT checkpoint_of_run",
    "UPDATE SCHEMA.store SET version = 1",
    "UPDATE SCHEMA.checkpoint SET number = number + 1000 WHERE number = 4",  # of no run
    "UPDATE SCHEMA.run SET labels = 'damaged', parent = 'damaged' WHERE run_id = 'run-3'",
)
"""Makes of a schema what the first version has made, with rows that are damaged."""

MANY = """INSERT INTO SCHEMA.run (run_id, version, sequence, step, revision, kind, checkpoint_node, timestamp_ns,
status, policy, created_ns, labels, incarnation, tip, seal, fence) SELECT 'many-' || n, 0, 0, 0, 0, '', '', 0,
'completed', '', 0, '["team", "other"]', '', '', '', 0 FROM generate_series(1, 20000) AS n"""


def _wait_for_use(admin: Any, schema: str, index: str) -> None:
    """Wait until the counters of the server show that an index was used."""
    used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE schemaname = %s AND indexrelname = %s"
    for _ in range(15_000):
        if admin.execute(used, (schema, index)).fetchone() > (0,):
            return
        time.sleep(0.02)
    pytest.fail(f"{index} was not used")


def open_and_list(schema: str) -> list[str]:
    """Return the runs that a newly opened store finds."""
    with open_postgres(schema) as store:
        return store.list()


# --------------------------------------------------------------------------- faults


class TestFaults:
    """A save is never reported wrongly, never made twice, and no call waits longer than patience says."""

    def test_a_server_that_is_killed(self, own_server: Any) -> None:
        """The server is started again under load: each acknowledged save is there, and no caller sees an error."""
        store = open_postgres(dsn=str(own_server.get_uri()), patience=100)
        kept: dict[str, int] = {}
        stop = threading.Event()

        def work(run_id: str) -> None:
            step = 0
            while not stop.is_set():
                step += 1
                store.save(numbered(run_id, step))
                kept[run_id] = step

        def kill() -> None:
            try:
                for _ in range(2):
                    time.sleep(0.3)
                    crash(own_server)
            finally:
                time.sleep(0.2)
                stop.set()

        raised = in_threads(kill, *[lambda name=f"run-{number}": work(name) for number in range(4)])
        assert raised == []
        assert {run_id: store.load(run_id).step for run_id in kept} == kept
        store.close()

    def test_a_role_with_a_limit_of_its_own(self, opened: Callable[..., PostgresStore], schema: str) -> None:
        """The lower limit counts."""
        store = opened(dsn=f"{dsn()}&options=-cstatement_timeout%3D200")
        store.save(numbered("a", 1))
        with psycopg.connect(dsn()) as stranger:
            stranger.execute(f"LOCK TABLE {schema}.run")
            with pytest.raises(CheckpointSaveError, match="statement timeout"):
                store.save(numbered("a", 2))

    def test_an_idle_session_that_the_server_has_ended(self, opened: Callable[..., PostgresStore]) -> None:
        """The call goes on in a new one."""
        store = opened(dsn=f"{dsn()}&options=-cidle_session_timeout%3D20")
        for step in (1, 2):
            store.save(numbered("a", step))
            time.sleep(0.2)
        assert store.load("a").step == 2

    def test_a_row_that_a_stranger_has_locked(self, opened: Callable[..., PostgresStore], schema: str) -> None:
        """A save of a locked run fails after its patience; saves that share the transaction succeed."""
        store = opened(patience=8)
        runs = [f"run-{number}" for number in range(6)]
        for run_id in runs:
            store.save(numbered(run_id, 1))
        done: list[str] = []

        def save(run_id: str) -> None:
            try:
                store.save(numbered(run_id, 2))
            finally:
                done.append(run_id)

        with psycopg.connect(dsn()) as stranger:
            stranger.execute(f"SELECT 1 FROM {schema}.run WHERE run_id = 'run-3' FOR UPDATE")
            raised = in_threads(*[lambda run_id=run_id: save(run_id) for run_id in runs])

        assert [type(error) for error in raised] == [CheckpointSaveError]
        assert (sorted(done), done[-1]) == (runs, "run-3")
        store.save(numbered("run-3", 2))


# --------------------------------------------------------------------------- leases


WORK = {"a": lambda state: {}, "b": lambda state: {"pid": os.getpid()}}


def leave_unfinished(store: PostgresStore, many: int) -> list[str]:
    """Begin runs and end none; return their ids, the oldest first."""
    run_ids = [f"run-{number}" for number in range(many)]
    for run_id in run_ids:
        with make_graph(WORK, store=store, preserve=True).stream(State(run_id=run_id)) as states:
            next(states)
    return run_ids


def _numbers(admin: Any, schema: str, pattern: str) -> list[Any]:
    """Return the numbers and the versions of the runs with such ids."""
    found = admin.execute(f"SELECT number, version FROM {schema}.run WHERE run_id LIKE %s", (pattern,))
    return [*found.fetchall()]


class TestSweepers:
    """Many sweepers that continue abandoned runs at the same time."""

    def test_no_worker_waits(self, opened: Callable[..., PostgresStore], schema: str) -> None:
        """A run that one sweeper is claiming is left to it by the others."""
        store = opened()
        run_ids = leave_unfinished(store, 3)
        with psycopg.connect(dsn()) as connection:
            connection.execute(f"SELECT 1 FROM {schema}.run WHERE run_id = 'run-0' FOR UPDATE")
            swept = [one.run_id for one in make_graph(WORK, store=store, preserve=True).recover()]
        assert swept == run_ids[1:]

    def test_many_runs_that_were_refused(self, opened: Callable[..., PostgresStore], schema: str, admin: Any) -> None:
        """A claim passes over 10,000 refused runs within the patience of a call: it reads the list of them once."""
        # As PostgreSQL often plans a statement that a connection repeats.
        generic = f"{dsn()}&options=-cplan_cache_mode%3Dforce_generic_plan"
        with opened(dsn=generic, patience=30) as store:
            run_ids = leave_unfinished(store, 1)
            changes = "jsonb_build_object('number', i, 'run_id', 'copy-' || i)"
            copies = (
                f"SELECT jsonb_populate_record(run, {changes}) AS r FROM {schema}.run, generate_series(1001, 11000) i"
            )
            admin.execute(f"INSERT INTO {schema}.run OVERRIDING SYSTEM VALUE SELECT (r).* FROM ({copies}) AS c")
            refused: Any = {number: (version, None) for number, version in _numbers(admin, schema, "copy-%")}

            swept = [ownership.run_id for ownership, *_ in table_of(store).owners.orphans("flow", refused)]

        assert (swept, len(refused)) == (run_ids, 10_000)

    @pytest.mark.parametrize("how", ["killed", "expired"])
    def test_runs_of_those_who_are_gone(
        self, opened: Callable[..., PostgresStore], schema: str, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Runs of a dead process are free at once on the same machine, and after their lease on another."""
        store = opened()
        leave_unfinished(store, 1)
        stream = make_graph(WORK, store=store, preserve=True).stream(State(run_id=RUN))
        next(stream)
        graph = make_graph(WORK, store=opened(), preserve=True)
        with psycopg.connect(dsn()) as connection:
            if how == "expired":
                connection.execute(f"UPDATE {schema}.worker SET until = clock_timestamp()")
            else:
                connection.execute(f"UPDATE {schema}.worker SET place = place || '0'")  # one that began at another time

        assert [one.run_id for one in graph.recover()] == ["run-0", RUN]
        with pytest.raises(RunLostError):
            next(stream)

    def test_a_run_that_was_cancelled(self, opened: Callable[..., PostgresStore], schema: str) -> None:
        """If the owner died after a cancellation, the next sweeper saves the run as cancelled."""
        store, other = opened(), opened()
        graph = make_graph(WORK, store=other, preserve=True, retention="full")
        stream = make_graph(WORK, store=store, preserve=True, retention="full").stream(State(run_id=RUN))
        next(stream)
        graph.cancel(RUN, by="ada")
        with psycopg.connect(dsn()) as connection:
            connection.execute(f"UPDATE {schema}.worker SET until = clock_timestamp()")

        assert [*graph.recover()] == []
        row = other.history(RUN)[-1]
        stream.close()
        assert (row.kind, row.by) == ("cancel", "ada")

    def test_a_claim_whose_answer_is_lost(self, opened: Callable[..., PostgresStore]) -> None:
        """It is made once more, and comes to the same run: no other one stays leased."""

        class CutsTheFirstClaim(Proxy):
            claims = 0

            def is_trip(self, said: bytes, is_server: bool) -> bool:
                if b"SKIP LOCKED" in said and not is_server:
                    self.claims += 1
                    self.mode = "cut after" if self.claims == 1 else self.mode
                return super().is_trip(said, is_server)

        run_ids = leave_unfinished(opened(), 3)
        proxy = CutsTheFirstClaim(folder_of(dsn()))
        store = opened(dsn=proxy.dsn)

        swept = [one.run_id for one in make_graph(WORK, store=store, preserve=True).recover()]

        assert proxy.claims > len(run_ids)
        assert swept == run_ids
        store.close()
        proxy.close()
