"""The cache that the "disk" store is kept by: diskcache, made safe.

diskcache is a cache, and made for trusted files. Three things make it fit for a store: nothing is ever evicted, every
commit is synced, and rows hold bytes under text keys and nothing else, so that no row is unpickled or names a file to
open.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import DBNAME, DEFAULT_SETTINGS, METADATA, MODE_RAW, UNKNOWN

from stategraph.errors import CheckpointCorruptError, ConfigError, FormatError
from stategraph.stores._files.config_paths import absolute_path
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._files.ownership import secure_file, secure_folder
from stategraph.stores._files.sqlite_files import BUSY_TIMEOUT, DURABLE, OpenFiles, erase_log, execute_patiently
from stategraph.stores._rows.access import Access

_SETTINGS: dict[str, Any] = {
    "cull_limit": 0,
    "eviction_policy": "none",
    "size_limit": 2**62,
    "statistics": 0,
    "tag_index": 0,
    "sqlite_journal_mode": "wal",
    "sqlite_synchronous": 2,  # FULL: the default, NORMAL, may lose the newest commits in a power cut
    "sqlite_mmap_size": 0,
    "disk_min_file_size": 2**62,
}
OLDEST = (3, 31)
"""The SQLite that it takes: older ones do not know trusted_schema, and let a database run what its schema says."""


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Rows of bytes under text keys; whatever else stands in a row is refused, unread."""

    def put(self, key: Any) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: Any) -> str:
        if not raw or type(key) is not str:
            raise CheckpointCorruptError("", "a row of the disk store has a key that stategraph does not write")
        return key

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, None, memoryview]:
        if read or type(value) is not bytes:
            raise TypeError(f"values are bytes, not {type(value).__name__}")
        return 0, MODE_RAW, None, memoryview(value)

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> bytes:
        if read or mode != MODE_RAW or filename is not None or type(value) is not bytes:
            raise CheckpointCorruptError("", "a row of the disk store holds what stategraph does not write")
        return value

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        raise CheckpointCorruptError("", "the disk store has no side files")

    def remove(self, file_path: Any) -> None:
        if file_path is not None:
            raise CheckpointCorruptError("", "a row of the disk store names a file; stategraph has no side files")


def kept_under(key: str, connection: sqlite3.Connection, disk: BytesDisk) -> bytes | None:
    """Return what a cache keeps under a key, expired or not; None if there is nothing."""
    select = "SELECT mode, filename, value FROM Cache WHERE key = ? AND raw = 1"
    found = connection.execute(select, (key,)).fetchone()
    if found is None:
        return None
    mode, filename, value = found
    return disk.fetch(mode, filename, value, read=False)


class Connection(sqlite3.Connection):
    """A connection that is closed with a store that nobody closed.

    Attributes:
        access: Of the thread that uses it: no other one forks the process meanwhile.
        snapshot: Held while that thread reads everything as it was at one time.
        opened: Differs for each connection.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.access = Access()
        self.snapshot = threading.Lock()
        self.opened = os.urandom(4).hex()

    def __del__(self) -> None:
        # Nothing is lost where it was never opened, or the interpreter is so far gone that modules are, too.
        try:  # noqa: SIM105 - then there may be no contextlib
            self.close()
        except Exception:  # noqa: BLE001, S110
            pass


class _Watcher(threading.Thread):
    """Stands for all who ask whether something has changed. Their connection is given to no other thread."""

    def is_alive(self) -> bool:
        return True


class SafeCache(diskcache.Cache):  # type: ignore[misc]
    """A cache whose connections are known, so that those of all threads can be closed, and which sets nothing that the
    database asks for."""

    _txn_id: int | None

    def __init__(self, folder: str) -> None:
        self._opened: dict[threading.Thread, Connection] = {}
        self._watcher = _Watcher()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._is_shut = False
        self.files: OpenFiles
        protect_at_fork(self)
        super().__init__(folder, timeout=BUSY_TIMEOUT, disk=BytesDisk, **_SETTINGS)

    @property
    def _con(self) -> Connection:
        """The connection of this thread, in this process: it must not be used on both sides of a fork."""
        if self._is_shut:
            raise sqlite3.ProgrammingError("the store is closed")
        self.renew()
        if getattr(self._local, "con", None) is None:
            self._local.con = self._connection_for(threading.current_thread())
        return self._local.con  # type: ignore[no-any-return]

    connection = _con

    def _connection_for(self, thread: threading.Thread) -> Connection:
        """Return a new connection, or that of a thread which has ended.

        An async run has a thread of its own, and a service makes any number of them.
        """
        with self._lock:
            if self._is_shut:
                raise sqlite3.ProgrammingError("the store is closed")
            ended = next((other for other in list(self._opened) if not other.is_alive()), None)
            connection = None if ended is None else self._opened.pop(ended, None)
            if connection is None and self._opened:
                self.files.check()  # or there would be an empty database in its place
                connection = self._connect()
            elif connection is None:
                connection = self._connect()
                self.files = OpenFiles(Path(self._directory, DBNAME))
            made = self._opened.setdefault(thread, connection)
            if made is not connection:  # a finaliser has come in between, and has used the store
                connection.close()
        return made

    def _connect(self) -> Connection:
        file = os.path.join(self._directory, DBNAME)  # noqa: PTH118 - diskcache has it as a str
        connection = sqlite3.connect(
            file, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, factory=Connection
        )
        for pragma in ("journal_mode = wal", *DURABLE, "mmap_size = 0", "trusted_schema = 0"):
            execute_patiently(connection, f"PRAGMA {pragma}")
        execute_patiently(connection, "SELECT count(*) FROM sqlite_master")  # which opens the log
        return connection

    def change_token(self, store: object) -> str:
        """Return what differs whenever somebody has committed something since: a connection of its own hears of all."""
        self.renew()
        with self._lock:
            connection = self._opened.get(self._watcher) or self._connection_for(self._watcher)
        with connection.access.to_read(store):
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        return f"{connection.opened}-{version}"

    def find(self, store: object, key: str) -> bytes | None:
        """Return what is kept under a key, expired or not; None if there is nothing."""
        with self.snapshot(store):
            return kept_under(key, self._con, self.disk)

    def get(self, key: str, default: bytes | None = None) -> Any:
        """Return what is kept under a key, within `reading` or a transaction: diskcache takes twice as long."""
        kept = kept_under(key, self._con, self.disk)
        return default if kept is None else kept

    def drop(self, store: object, key: str) -> None:
        """Remove what is kept under a key, expired or not."""
        with self.transaction(store):
            self._con.execute("DELETE FROM Cache WHERE key = ? AND raw = 1", (key,))

    def drop_expired(self, store: object, now: float, limit: int) -> int:
        """Remove up to `limit` entries that have expired at `now`, in seconds since 1970; return how many."""
        which = "SELECT rowid FROM Cache WHERE expire_time < ? ORDER BY expire_time LIMIT ?"
        with self.transaction(store):
            delete = f"DELETE FROM Cache WHERE rowid IN ({which})"  # noqa: S608 - nothing of it comes from outside
            return self._con.execute(delete, (now, limit)).rowcount

    def erase(self, store: object) -> None:
        """Cut off the log, in which what was removed still stands."""
        connection = self._con
        with connection.access.to_write(store):
            self._between_transactions(connection)
            erase_log(connection)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Keep other threads from using a connection, or opening one."""
        with self._lock, ExitStack() as held:
            for connection in list(self._opened.values()):
                held.enter_context(connection.access.guard)
            yield

    def renew(self) -> None:
        """In a child that was forked while all were at rest: leave the connections to the parent."""
        if self._pid != os.getpid():
            self._leave_to_parent()

    def _leave_to_parent(self) -> None:
        for connection in list(self._opened.values()):
            connection.close()  # or SQLite believes that this process has the locks of its parent
        self._opened, self._lock, self._local = {}, threading.RLock(), threading.local()
        self._txn_id, self._pid = None, os.getpid()

    def close(self) -> None:
        """Close the connections of all threads. The next call opens another one, as diskcache does at the start."""
        self.renew()
        with self._lock:
            connections, self._opened = [*self._opened.values()], {}
            self._local = threading.local()
        for connection in connections:
            with connection.access.guard:  # SQLite must not close what another thread is using
                connection.close()

    def shut(self) -> None:
        """Close them for good."""
        self._is_shut = True
        self.close()

    # ------------------------------------------------------------------ reading and writing, for a store

    def reading(self, store: object) -> AbstractContextManager[bool]:
        """Keep the process from being forked while this thread reads."""
        return self._con.access.to_read(store)

    @property
    def access(self) -> Access:
        """That to the connection of this thread."""
        connection = getattr(self._local, "con", None)
        return Access() if connection is None else connection.access

    @contextmanager
    def snapshot(self, store: object) -> Iterator[None]:
        """Read everything as it was at one time, whoever writes meanwhile."""
        connection = self._con
        with connection.access.to_read(store):
            if connection.snapshot.locked():  # by this thread, further down its stack
                yield
                return
            with connection.snapshot:
                self._between_transactions(connection)
                connection.execute("BEGIN")
                try:
                    yield
                finally:
                    connection.rollback()

    @contextmanager
    def transaction(self, store: object) -> Iterator[None]:
        """Write all or nothing, with everybody else kept out."""
        connection = self._con
        failure: BaseException | None = None
        with connection.access.to_write(store), connection.access.transaction:
            self._between_transactions(connection)
            try:
                with self.transact():
                    try:
                        yield
                    except BaseException as error:
                        failure = error
                        raise
            except BaseException as error:
                self._between_transactions(connection)  # it may be the end itself that failed, or was interrupted
                if failure is not None and error is not failure:  # where a disk is full, SQLite has rolled back itself
                    raise failure from failure.__cause__
                raise

    def _between_transactions(self, connection: Connection) -> None:
        """End a transaction of this thread that is open, or that diskcache believes to be.

        An interrupt that comes just after diskcache began a transaction leaves it open, and every later one of the
        thread would be taken for a part of it and never be committed. A mark of the thread that is left without one
        would have the parts of the next transaction committed one by one.
        """
        connection.rollback()
        if self._txn_id == threading.get_ident():
            self._txn_id = None


# --------------------------------------------------------------------------- the file


def cache_folder(path: object, key: str = "checkpoint.options.path", *, must_exist: bool = False) -> Path:
    """Return the folder of a cache. It is made if it is not there. Errors name the option by its key.

    Raises:
        ConfigError: it cannot be used, or others can write to it or to the database in it.
    """
    folder = Path(absolute_path(path, key, "a folder"))
    if os.path.expandvars(os.path.expanduser(folder)) != str(folder):  # noqa: PTH111 - what diskcache does
        raise ConfigError(key, str(path), "a path without $ variables")
    try:
        if must_exist:
            return secure_file(folder / DBNAME, must_exist=True).parent
        secure_file(secure_folder(folder) / DBNAME)
    except OSError as error:
        raise ConfigError(key, str(path), f"a folder that can be made and written to ({error.strerror})") from error
    return folder


def check_database(path: Path) -> None:
    """Raise FormatError unless the file is empty or a disk store.

    A database runs what its triggers say, and diskcache what the Settings table says as PRAGMA statements. So all of it
    is compared, before diskcache sees it, with what diskcache makes of its own accord.
    """
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None)) as database:
            database.execute("PRAGMA query_only = 1")
            check_schema(database, path)
    except sqlite3.Error as error:
        raise _no_store(path, error) from error


def check_schema(database: sqlite3.Connection, path: Path) -> None:
    """Do what `check_database` does, for a database that is open. Errors of an open that failed are left as they are.

    Raises:
        FormatError: it is no disk store.
    """
    foreign: list[str]
    try:
        database.execute("PRAGMA trusted_schema = 0")
        ours, found = _schema(), _schema_of(database)
        foreign = [name for name, sql in found.items() if ours.get(name, "none") != sql]
        if not foreign and "Settings" in found:
            settings = database.execute("SELECT key, value FROM Settings")
            foreign = [key for key, value in settings if not _is_ours(key, value)]
    except sqlite3.OperationalError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 may show damaged names
        raise _no_store(path, error) from error
    if foreign:
        raise FormatError("", f"{path} is not a disk store of stategraph (it has {', '.join(map(str, foreign[:5]))})")


def _no_store(path: Path, error: Exception) -> FormatError:
    return FormatError("", f"{path} is damaged or no disk store of stategraph: {error}")


def _schema_of(database: sqlite3.Connection) -> Mapping[str, str | None]:
    """Return the statements that made the parts of a database, by name; None for what comes by itself."""
    parts = database.execute("SELECT name, sql FROM sqlite_master")
    return {name: None if sql is None else " ".join(sql.split()) for name, sql in parts}


@cache
def _schema() -> Mapping[str, str | None]:
    """Return what diskcache makes, from a database in memory that it is given to set up."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        _Blank(database)
        return _schema_of(database)


class _Blank(diskcache.Cache):  # type: ignore[misc]
    """A cache in a database that is given."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        super().__init__(os.curdir, disk=BytesDisk, **_SETTINGS)

    @property
    def _con(self) -> sqlite3.Connection:
        return self._database

    def close(self) -> None:
        """Leave it to whoever opened it."""


def _is_ours(key: object, value: object) -> bool:
    if key in METADATA:
        return type(value) is int
    return key in DEFAULT_SETTINGS and value == {**DEFAULT_SETTINGS, **_SETTINGS}[key]
