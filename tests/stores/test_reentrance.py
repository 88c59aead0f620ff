"""A store that is used on a thread which is inside of it already: it reads, or refuses at once, and nothing is lost."""

from __future__ import annotations

import functools
import gc
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

import attrs
import pytest

from stategraph import CheckpointError, CheckpointStore, State, register_type
from stategraph.errors import CheckpointSaveError
from stategraph.stores._files.results import ResultCache
from stategraph.stores._rows.access import SharedCommits
from stategraph.stores.base import Policy
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from tests.conftest import make_store
from tests.scenarios import reopened
from tests.stores.inside import connection_of

pytestmark = [pytest.mark.timeout(60), pytest.mark.inside]


@functools.cache
def at(step: int, run_id: str = "a") -> State:
    """-> the State of a step."""
    return State({"n": step}, run_id=run_id, step=step)


CALLS: dict[str, Callable[[CheckpointStore], object]] = {
    "save": lambda store: store.save(at(9)),
    "save another run": lambda store: store.save(at(1, "b")),
    "amend": lambda store: store.amend(at(9)),
    "save_many": lambda store: store.save_many([at(8), at(9)]),
    "load": lambda store: store.load("a"),
    "list": lambda store: store.list(),
    "runs": lambda store: store.runs(),
    "history": lambda store: store.history("a"),
    "delete": lambda store: store.delete("a"),
    "rollback": lambda store: store.rollback("a", 1),
    "fork": lambda store: store.fork("a", "c"),
    "prune": lambda store: store.prune(),
    "close": lambda store: store.close(),
}
READS = ("load", "list", "runs", "history", "prune")  # here, nothing is to be pruned


def outcome(call: Callable[[], object]) -> object:
    """-> what is raised, None if nothing is."""
    try:
        call()
    except Exception as error:
        return error
    return None


def is_refused(error: object) -> bool:
    """Whether a call was refused because of where it was made."""
    return isinstance(error, CheckpointError) and "further down its stack" in str(error)


@pytest.fixture(params=["sqlite", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """A store of files, with a run of two steps."""
    with make_store(request.param, tmp_path) as store:
        store.retain("a", Policy("full"))
        store.save(at(1))
        store.save(at(2))
        yield store


class Within:
    """Calls something once, on the thread that is inside of a connection, and keeps what came of it.

    Args:
        connection: The connection.
        statement: With what the statement begins in which it is called.
        call: What is called.
    """

    def __init__(self, connection: sqlite3.Connection, statement: str, call: Callable[[], object]) -> None:
        self.connection, self.statement, self.call = connection, statement, call
        self.outcomes: list[object] = []

    def __enter__(self) -> Self:
        self.connection.set_trace_callback(self.trace)
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.set_trace_callback(None)

    def trace(self, statement: str) -> None:
        """Hear of a statement."""
        if statement.startswith(self.statement):
            self.connection.set_trace_callback(None)
            self.outcomes.append(outcome(self.call))


class Finalised:
    """Calls something when it is found by a collection."""

    def __init__(self, call: Callable[[], object], outcomes: list[object]) -> None:
        self.me, self.call, self.outcomes = self, call, outcomes

    def __del__(self) -> None:
        self.outcomes.append(outcome(self.call))


class TestWithinATransaction:
    """Nothing of it is seen or undone."""

    @pytest.mark.parametrize("name", CALLS)
    @pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "COMMIT"])
    def test_every_call_is_refused(self, store: CheckpointStore, name: str, statement: str) -> None:
        """And what is being saved is saved."""
        with Within(connection_of(store), statement, lambda: CALLS[name](store)) as within:
            store.save(at(3))

        assert [is_refused(error) for error in within.outcomes] == [True]
        assert reopened(store).load("a") == store.load("a") == at(3)
        store.save(at(4))
        assert [one.step for one in reopened(store).history("a")] == [1, 2, 3, 4]

    @pytest.mark.parametrize("name", ["save", "load", "delete"])
    def test_in_a_finaliser(self, store: CheckpointStore, name: str) -> None:
        """A collection comes while a row is written."""
        outcomes: list[object] = []
        gc.disable()  # none comes before
        try:
            Finalised(lambda: CALLS[name](store), outcomes)
            with Within(connection_of(store), "INSERT", gc.collect) as within:
                store.save(at(3))
        finally:
            gc.enable()

        assert within.outcomes == [None]
        assert [is_refused(error) for error in outcomes] == [True]
        assert reopened(store).load("a") == at(3)

    @pytest.mark.parametrize("name", CALLS)
    def test_of_a_deletion(self, store: CheckpointStore, name: str) -> None:
        """The same."""
        store.save(at(1, "other"))
        with Within(connection_of(store), "DELETE", lambda: CALLS[name](store)) as within:
            store.delete("other")

        assert [is_refused(error) for error in within.outcomes] == [True]
        assert reopened(store).list() == ["a"]

    def test_one_that_an_interrupt_left_open(self, store: CheckpointStore) -> None:
        """Is another matter: nobody is inside any more."""
        connection_of(store).execute("BEGIN IMMEDIATE")
        store.save(at(3))

        assert reopened(store).load("a") == at(3)


class TestWithinARead:
    """Whoever reads may read."""

    @pytest.mark.parametrize("name", CALLS)
    def test_it_reads_and_does_not_write(self, store: CheckpointStore, name: str) -> None:
        """And the outer reader gets what it asked for."""
        outcomes: list[object] = []
        connection = connection_of(store)

        def factory(text: bytes) -> str:
            connection.text_factory = str
            outcomes.append(outcome(lambda: CALLS[name](store)))
            return text.decode()

        connection.text_factory = factory  # called while the row is fetched
        assert store.list() == ["a"]

        assert [is_refused(error) for error in outcomes] == [name not in READS]
        assert name not in READS or outcomes == [None]
        assert store.load("a") == at(2)
        store.save(at(3))
        assert reopened(store).load("a") == at(3)

    @pytest.mark.parametrize("name", CALLS)
    def test_of_a_snapshot(self, tmp_path: Path, name: str) -> None:
        """Of the disk store, which reads some rows as they were at one time."""
        with DiskStore(tmp_path) as store:
            store.retain("a", Policy("full"))
            store.save(at(1))
            store.save(at(2))
            with Within(connection_of(store), "BEGIN", lambda: CALLS[name](store)) as within:
                assert store.load("a") == at(2)

            assert [is_refused(error) for error in within.outcomes] == [name not in READS]
            assert store.load("a") == at(2)


@attrs.define
class Curious:
    """A value that can change, and that uses a store when it is looked at."""

    n: int
    calls: ClassVar[list[Callable[[], object]]] = []
    outcomes: ClassVar[list[object]] = []

    def __getattribute__(self, name: str) -> Any:
        if name == "n":
            Curious.look()
        return object.__getattribute__(self, name)

    @staticmethod
    def look(*_: object) -> None:
        """Make the calls, once."""
        while Curious.calls:
            Curious.outcomes.append(outcome(Curious.calls.pop()))

    @staticmethod
    def upgrade(values: dict[str, Any], version: int) -> dict[str, Any]:
        """Look at a value of the first version that is restored."""
        Curious.look()
        return values


class TestWhatAValueDoes:
    """When it is compared, encoded or restored."""

    @pytest.mark.parametrize("kind", ["memory", "sqlite", "disk", "postgres", "redis"])
    @pytest.mark.parametrize("name", ["save another run", "load", "list", "delete another run"])
    @pytest.mark.parametrize("during", ["save", "save again", "load", "rollback", "fork"])
    def test_it_works_or_is_refused(self, tmp_path: Path, kind: str, name: str, during: str) -> None:
        """It never waits, and what was asked for first is done."""
        calls = {**CALLS, "delete another run": lambda store: store.delete("b")}
        register_type(Curious, name="tests.Curious")
        with make_store(kind, tmp_path) as store:
            store.retain("a", Policy("full"))
            for step in (1, 2):
                store.save(State({"v": Curious(1)}, run_id="a", step=step))
            if not during.startswith("save"):
                register_type(Curious, name="tests.Curious", version=2, upgrade=Curious.upgrade)
            Curious.outcomes.clear()
            Curious.calls.append(lambda: calls[name](store))
            match during:
                case "save" | "save again":
                    store.save(State({"v": Curious(1)}, run_id="a", step=3 if during == "save" else 2))
                case "load":
                    assert store.load("a")["v"] == Curious(1)
                case "rollback":
                    assert store.rollback("a", 1).step == 1
                case _:
                    assert store.fork("a", "c").step == 2

            assert len(Curious.outcomes) == 1
            assert Curious.outcomes == [None] or is_refused(Curious.outcomes[0])
            assert store.load("a").step == {"save": 3, "rollback": 1}.get(during, 2)


class TestMemory:
    """Whose lock is held for a moment."""

    @pytest.mark.parametrize("name", [name for name in CALLS if name != "close"])
    def test_what_a_finaliser_calls(self, name: str) -> None:
        """A State that nobody needs any more is let go of while the store is changed."""
        store, outcomes = MemoryStore(), list[object]()
        store.retain("a", Policy("windowed", window=2))

        class Last:
            def __del__(self) -> None:
                outcomes.append(outcome(lambda: CALLS[name](store)))

        for step in (1, 2, 3):
            store.save(at(step))
        run = store._held.runs["a"]
        run.kept[0:1] = [Held(run.kept[0], Last())]  # type: ignore[list-item]
        store.save(at(4))

        assert len(outcomes) == 1
        assert outcomes == [None] if name in READS[:4] else is_refused(outcomes[0])
        assert [one.step for one in store.history("a")] == [3, 4]


class Held:
    """A State as it is kept, with an object that goes with it."""

    def __init__(self, state: Any, last: object) -> None:
        self.state, self.last, self.step = state, last, state.step


class TestSharedCommits:
    """Callers that wait for each other."""

    def test_a_leader_that_calls_again(self) -> None:
        """It would wait for itself."""
        found: list[object] = []

        def apply(writes: Any) -> list[bool]:
            found.append(outcome(lambda: commits.commit(2)))  # type: ignore[arg-type]
            return [True for _ in writes]

        commits = SharedCommits(apply)

        assert commits.commit(1) is True  # type: ignore[arg-type]
        assert [type(error) for error in found] == [CheckpointSaveError]
        assert is_refused(found[0])

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
    def test_a_signal_handler_while_a_thread_waits(self) -> None:
        """The thread may be the next leader: a call on top of it would wait for it."""
        gate, entered, found = threading.Event(), threading.Event(), list[object]()

        def apply(writes: Any) -> list[bool]:
            entered.set()
            assert gate.wait(20)
            return [True for _ in writes]

        commits: Any = SharedCommits(apply)

        def handle(number: int, frame: object) -> None:
            found.append(outcome(lambda: commits.commit(3)))
            gate.set()

        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(commits.commit, 1)
            assert entered.wait(20)
            before = signal.signal(signal.SIGALRM, handle)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                assert commits.commit(2) is True
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            assert first.result(20) is True

        assert [is_refused(error) for error in found] == [True]

    def test_one_that_cannot_apply_anything(self) -> None:
        """It leads nobody: others would get the error that is its own."""
        applied: list[Any] = []
        commits: Any = SharedCommits(lambda writes: applied.extend(writes) or [True], lambda: True)  # type: ignore[func-returns-value]

        assert is_refused(outcome(lambda: commits.commit(1)))
        assert applied == []

    def test_after_an_interrupt(self) -> None:
        """A thread that was interrupted within is inside no longer."""

        def apply(writes: Any) -> list[bool]:
            if writes[0] == 1:
                raise KeyboardInterrupt
            return [True for _ in writes]

        commits: Any = SharedCommits(apply)
        with pytest.raises(KeyboardInterrupt) as raised:
            commits.commit(1)

        assert raised.value.__traceback__ is not None  # and with it the frames
        assert commits.commit(2) is True


def test_results(tmp_path: Path) -> None:
    """A cache that is used within itself has nothing, and what is being kept is kept."""
    results = ResultCache(tmp_path / "results")
    key = results.find([1], None).key
    assert key is not None
    reasons: list[object] = []
    with Within(results._opened()._con, "COMMIT", lambda: reasons.append(results.find([1], None).reason)):
        assert results.keep(key, ({"n": 1}, ())) == ""

    assert "further down its stack" in str(reasons[0])
    assert results.find([1], None).changes == ({"n": 1}, [])
    results._opened().shut()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "disk", "postgres", "redis"])
def test_collections_everywhere(tmp_path: Path, kind: str) -> None:
    """Finalisers that use the store come at any line of other calls, on several threads: none waits."""
    with make_store(kind, tmp_path) as store:
        outcomes: list[object] = []
        done = threading.Event()

        def work(name: str) -> None:
            step = 0
            while not done.is_set():
                step += 1
                gc.set_threshold(step % 150 + 1, 1, 1)  # so that they come anywhere in what follows
                for call in ("load", "save another run", "list"):
                    Finalised(lambda call=call: CALLS[call](store), outcomes)  # type: ignore[misc]
                store.save(at(step, name))
                assert store.load(name) == at(step, name)

        before = gc.get_threshold()
        gc.collect()
        gc.freeze()  # a collection has little to look at then
        threads = [threading.Thread(target=work, args=(f"run-{number}",), daemon=True) for number in range(3)]
        try:
            for thread in threads:
                thread.start()
            time.sleep(0.3)
        finally:
            done.set()
            for thread in threads:
                thread.join(30)
            gc.set_threshold(*before)
            gc.unfreeze()
        gc.collect()
        gc.freeze()  # as it was before: see conftest.py

        assert not any(thread.is_alive() for thread in threads)
        unexpected = [
            error
            for error in outcomes
            if error is not None and not is_refused(error) and "no checkpoint" not in str(error)
        ]
        assert unexpected == []
        assert outcomes
