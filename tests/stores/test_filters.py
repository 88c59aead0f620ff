"""Filtered lists of runs are the same, whether the store uses an index or not."""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stategraph import InterruptNode, State, StateGraph
from stategraph._owners.base import owned
from stategraph._owners.locks import CAN_SEE, LockFile, _byte
from stategraph.stores import CheckpointStore, SqliteStore
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows import sql_table
from stategraph.stores._rows.sql_schema import DIALECT
from tests.postgres_server import open_postgres
from tests.stores.inside import table_of

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FILTERS: list[dict[str, Any]] = [
    {},
    {"status": "failed"},
    {"graph": "b"},
    {"status": "failed", "graph": "b"},
    {"prefix": "run-1"},
    {"prefix": "run-1", "status": "failed", "graph": "b"},
    {"prefix": ""},
    {"prefix": "zzz"},
    {"prefix": "run-1", "parent": "run-00"},
    {"parent": "run-00"},
    {"parent": "run-0"},
    {"parent": "run-00", "status": "active"},
    {"labels": {"team": "a"}},
    {"labels": {"team": 'a"b'}},
    {"labels": {"a": "team"}},
    {"labels": {"team": "a", "x": "team"}},
    {"labels": {"team\0": "a\0"}},
    {"labels": {"team": "\ud800"}},
    {"labels": {"\\": '"'}},
    {"labels": {"team": "a", "é": "ü"}},
    {"labels": {"team": "a"}, "prefix": "run-1"},
    {"since": datetime(2023, 1, 1, tzinfo=UTC)},
    {"since": datetime(2023, 1, 1, tzinfo=UTC), "graph": "a"},
    {"owned": False, "prefix": "run-2"},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with SqliteStore(tmp_path_factory.mktemp("filters") / "runs.db") as made:
        fill(made)
        yield made


def fill(made: CheckpointStore) -> None:
    """Save runs that differ in all that a filter asks for."""
    labels: list[dict[str, str]] = [{}, {"team": "a"}, {"team": 'a"b'}, {"x": "team", "team": "a"}]
    labels += [{"team": "a", "é": "ü"}, {"b": "team", "c": "a"}, {"team\0": "a\0", "\\": '"'}]
    for number in range(30):
        made.save(
            State(
                {"n": number},
                run_id=f"run-{number:02d}",
                graph="ab"[number % 2],
                status=("active", "failed", "completed")[number % 3],
                timestamp=LONG_AGO if number < 10 else datetime(2024, 1, 1, tzinfo=UTC),
                labels=labels[number % len(labels)],
            )
        )
    for number in range(5):
        made.fork("run-00", f"fork-{number}")


@pytest.mark.parametrize("few", [0, 3, 1_000])
def test_a_list_is_what_is_taken_of_all(store: SqliteStore, monkeypatch: pytest.MonkeyPatch, few):
    """Page by page, and the newest first."""
    monkeypatch.setattr(sql_table, "_FEW", few)
    for options in FILTERS:
        check_list(store, options)


def test_a_list_on_postgres() -> None:
    """It is the same."""
    with open_postgres() as made:
        fill(made)
        for options in FILTERS:
            check_list(made, options)


def check_list(store: CheckpointStore, options: dict[str, Any]) -> None:
    """Compare the pages of a list, and the number of its runs, with what the filter takes of all runs."""
    which = RunFilter(**options)
    wanted = [run.run_id for run in store.runs(limit=1_000) if which.takes(run, store.owner)]

    pages: list[str] = []
    after = None
    while page := store.runs(**options, limit=4, after=after):
        pages += [run.run_id for run in page]
        after = page[-1].cursor

    assert pages == wanted, options
    assert store.count(**options) == len(wanted)


@pytest.mark.parametrize(
    ("options", "index"),
    [
        ({"prefix": "run-1"}, "sqlite_autoindex_run_1"),
        ({"parent": "run-00"}, "run_by_parent"),
        ({"since": datetime(2023, 1, 1, tzinfo=UTC)}, "run_by_created"),
        ({"status": "failed"}, "run_by_status"),
        ({"labels": {"team": "a"}}, "label_by_value"),
        ({"graph": "b", "prefix": "run-1"}, "sqlite_autoindex_run_1"),
    ],
)
def test_few_are_found_by_an_index(store: SqliteStore, options, index):
    """A filter with few matches uses an index, not a scan of all runs."""
    table: Any = table_of(store)
    statement, values = sql_table.select_runs(RunFilter(**options), 10, None, DIALECT, table._query_many)
    plan = table.query("", f"EXPLAIN QUERY PLAN {statement}", values)

    assert index in str(plan)
    assert "SCAN run" not in str(plan)


@pytest.mark.skipif(not CAN_SEE, reason="locks of other processes are invisible here")
class TestOwned:
    """The store finds owned runs by their locks, not by asking for each run."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        with SqliteStore(tmp_path / "runs.db") as store:
            for number in range(12):
                store.save(State({"n": number}, run_id=f"run-{number:02d}", graph="ab"[number % 2]))
            table: Any = table_of(store)
            assert table.raise_fence("run-05") == (1, False)  # it was taken over once
        return tmp_path

    @pytest.fixture(params=[False, True], ids=["to write", "to read"])
    def opened(self, request: pytest.FixtureRequest, folder: Path) -> Iterator[SqliteStore]:
        with SqliteStore(folder / "runs.db", read_only=request.param) as store:
            yield store

    @pytest.fixture
    def another(self, folder: Path) -> LockFile:
        """Runs that another process locks."""
        return LockFile(folder / "runs.db-owners")

    def test_by_another_process(self, opened: SqliteStore, another: LockFile, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs of other processes are found, even after a take-over; runs that were never saved are not."""
        for run_id, fence in [("run-05", 1), ("run-02", 0), ("run-07", 0), ("never-saved", 0)]:
            assert another.lock(_byte(run_id, fence))
        another.lock(_byte("run-03", 7))  # of an owner that lost it long ago
        monkeypatch.setattr(opened, "owner", None)  # which looks at one run

        found = [run.run_id for run in opened.runs(owned=True)]
        assert found == ["run-07", "run-05", "run-02"]
        assert [run.run_id for run in opened.runs(owned=True, graph="b")] == ["run-07", "run-05"]
        first, *_ = opened.runs(owned=True, limit=1)
        assert [run.run_id for run in opened.runs(owned=True, limit=1, after=first.cursor)] == ["run-05"]

    def test_by_this_process(self, folder: Path, another: LockFile) -> None:
        with SqliteStore(folder / "runs.db") as store, owned(store, "run-04"), owned(store, "run-11"):
            another.lock(_byte("run-00", 0))
            assert [run.run_id for run in store.runs(owned=True)] == ["run-11", "run-04", "run-00"]
            assert len(store.runs(owned=False)) == 9


def test_a_list_decodes_each_pause_once(tmp_path: Path) -> None:
    """A list of runs, filtered or not, decodes the pause of each run once, and inspects no code for it."""
    called = Counter[str]()

    def count(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            called[frame.f_code.co_name] += 1

    with SqliteStore(tmp_path / "runs.db") as store:
        graph = StateGraph("asks", store=store)
        graph.add_node("ask", InterruptNode("question", "answer"))
        graph.set_entry_point("ask")
        graph.set_exit_point("ask")
        for number in range(3):
            graph.execute(State({"question": number}, run_id=f"run-{number}"))
        for options in (FILTERS[0], dict[str, Any](status="paused"), dict[str, Any](prefix="run")):
            called.clear()
            sys.setprofile(count)
            try:
                found = store.runs(**options)
            finally:
                sys.setprofile(None)
            assert [run.pause.value for run in found if run.pause] == [2, 1, 0]
            assert (called["pause_from_json"], called["signature"]) == (3, 0), options
