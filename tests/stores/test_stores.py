from pathlib import Path
from typing import Any

import pytest

from stategraph import get_checkpoint_store
from stategraph._values.entries import Entry
from stategraph._values.ids import check_run_id
from stategraph.errors import CheckpointNotFoundError, ConfigError
from stategraph.stores import CheckpointStore
from stategraph.stores._files.results import ResultCache
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing.values import ValuesContract
from tests.postgres_server import open_postgres
from tests.redis_server import open_redis
from tests.stores.contract import StoreContract

KEY = b"a key of the tests"


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestDiskStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = DiskStore(tmp_path / "runs")
        yield store
        store.close()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = SqliteStore(tmp_path / "runs.db")
        yield store
        store.close()


class TestEncryptedSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        pytest.importorskip("cryptography")
        store = SqliteStore(tmp_path / "runs.db", encrypt_with={"one": KEY.ljust(32)})
        yield store
        store.close()


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self):
        with open_postgres(patience=300) as store:
            yield store


class TestSignedJsonOnPostgresBehindAPooler(ValuesContract):
    @pytest.fixture
    def store(self):
        with open_postgres(prepare=False, pool=1, sign_with=lambda: KEY, serializer="json") as store:
            yield store


class TestEncryptedOnPostgres(ValuesContract):
    @pytest.fixture
    def store(self):
        pytest.importorskip("cryptography")
        with open_postgres(encrypt_with=KEY.ljust(32), encrypt_labels=True, compress=True) as store:
            yield store


class TestRedisStore(StoreContract):
    @pytest.fixture
    def store(self):
        with open_redis(patience=300) as store:
            yield store


class TestSignedJsonInOnePartitionOfRedis(ValuesContract):
    @pytest.fixture
    def store(self):
        with open_redis(sign_with=lambda: KEY, serializer="json", partitions=1) as store:
            yield store


class TestEncryptedJsonOnRedis(ValuesContract):
    @pytest.fixture
    def store(self):
        pytest.importorskip("cryptography")
        with open_redis(encrypt_with=lambda run_id: KEY.ljust(32), serializer="json") as store:
            yield store


class FourMethods(CheckpointStore):
    """The smallest store there can be."""

    def __init__(self):
        self.states = {}

    def save(self, state):
        kept = MemoryStore()
        if state.run_id in self.states:
            kept.save(self.states[state.run_id].load(state.run_id))
        kept.save(state)
        self.states[state.run_id] = kept

    def amend(self, state):
        self.states.setdefault(state.run_id, MemoryStore()).amend(state)

    def load(self, run_id, step=None, revision=None):
        check_run_id(run_id)
        if run_id not in self.states:
            raise CheckpointNotFoundError(run_id, step=step)
        return self.states[run_id].load(run_id, step)

    def delete(self, run_id):
        self.states.pop(check_run_id(run_id), None)

    def list(self):
        return sorted(self.states)


class TestFourMethods(StoreContract):
    keeps_history = False

    @pytest.fixture
    def store(self):
        return FourMethods()


@pytest.mark.parametrize("kind", ["sqlite", "disk"])
class TestPaths:
    """Of stores that are files."""

    def test_the_home_of_the_user(self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A leading ~ is the home of the user, by name and as an object, in a str and in a Path."""
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)

        with get_checkpoint_store(kind, path="~/runs") as store:
            assert store.path == tmp_path / "home" / "runs"  # type: ignore[attr-defined]
            assert get_checkpoint_store(kind, path=str(tmp_path / "home" / "runs")) is store
        with CLASSES[kind](Path("~/others")) as other:
            assert other.path == tmp_path / "home" / "others"
        assert [file.name for file in tmp_path.iterdir()] == ["home"]

    @pytest.mark.parametrize("path", [":memory:", "", b"runs", 5, None], ids=repr)
    def test_a_wrong_path_is_refused(
        self, kind: str, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A value that is no path is refused without a file; for ":memory:" the error suggests the store "memory"."""
        monkeypatch.chdir(tmp_path)
        for make in (lambda: get_checkpoint_store(kind, path=path), lambda: CLASSES[kind](path)):
            with pytest.raises(ConfigError, match=r"checkpoint\.options\.path: .* the path of a") as caught:
                make()
            assert ('store "memory"' in str(caught.value)) == (path == ":memory:")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("path", "way_out"),
        [
            ("file:runs.db?mode=ro", "read_only"),
            ("file:///tmp/runs.db", "no URI"),
            ("~no-such-user/runs.db", "no user"),
        ],
    )
    def test_paths_that_look_like_mistakes_are_refused(
        self, kind: str, path: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is refused, and nothing is made; who means it so says so."""
        monkeypatch.chdir(tmp_path)
        makers = (
            lambda: get_checkpoint_store(kind, path=path),
            lambda: CLASSES[kind](path),
            lambda: CLASSES[kind](Path(path)),
            lambda: ResultCache(path),
        )
        for make in makers:
            with pytest.raises(ConfigError, match=r"path: .* the path of a") as caught:
                make()
            assert way_out in str(caught.value)
        assert list(tmp_path.iterdir()) == []

        with CLASSES[kind](f"./{path.partition('/')[0]}") as store:
            assert store.path == tmp_path / path.partition("/")[0]


CLASSES: dict[str, Any] = {"sqlite": SqliteStore, "disk": DiskStore}


@pytest.mark.parametrize(
    ("kind", "step", "wrong"), [("letter", 0, "kind"), ("message", 3, "step"), ("spend", 0, "step")]
)
def test_an_entry_is_of_its_step(kind: str, step: int, wrong: str) -> None:
    """A kind is known, and either of the journal of a step or of the inbox."""
    with pytest.raises(ValueError, match=wrong):
        Entry(kind, step=step)
