"""Stores and observers by name."""

import gc
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    ConfigError,
    Event,
    Observer,
    State,
    UnknownNameError,
    get_checkpoint_store,
    get_observer,
    register_checkpoint_store,
    register_observer,
)
from stategraph.stores import CheckpointStore
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """Return a name that is not registered yet: the registries live as long as the process."""
    return f"registered-{next(_numbers)}"


class Closable(MemoryStore):
    """A store that tells what it was made with, and can be closed."""

    def __init__(self, size: int = 1, where: str = "here") -> None:
        super().__init__()
        self.size, self.where = size, where
        self._closed = False

    def close(self) -> None:
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed


class Listening:
    """An observer that derives from nothing."""

    def __init__(self, level: str = "info") -> None:
        self.level = level

    def on_event(self, event: Event) -> None:
        pass


Register = Callable[[str, Any], None]
Get = Callable[..., Any]
KINDS: dict[str, tuple[Register, Get, Callable[..., Any]]] = {
    "store": (register_checkpoint_store, get_checkpoint_store, Closable),
    "observer": (register_observer, get_observer, Listening),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Register, Get, Callable[..., Any]]:
    return KINDS[request.param]


# --------------------------------------------------------------------------- instances and factories


def test_an_instance_is_given_out_as_it_is(name: str, kind: tuple[Register, Get, Any]) -> None:
    """Always the same one."""
    register, get, make = kind
    thing = make()

    register(name, thing)

    assert get(name) is thing
    assert get(name) is thing


def test_a_class_is_called_when_asked_for(name: str, kind: tuple[Register, Get, Any]) -> None:
    """Once, not before, and not again."""
    register, get, make = kind
    made: list[Any] = []

    def factory() -> Any:
        made.append(make())
        return made[-1]

    register(name, factory)
    assert made == []

    assert get(name) is get(name)
    assert len(made) == 1


def test_the_same_options_give_the_same_object(name: str) -> None:
    """Whatever their order; other options give another one."""
    register_checkpoint_store(name, Closable)

    store = get_checkpoint_store(name, size=2, where="there")

    assert get_checkpoint_store(name, where="there", size=2) is store
    assert get_checkpoint_store(name, size=3, where="there") is not store
    assert get_checkpoint_store(name) is not store
    assert isinstance(store, Closable)
    assert (store.size, store.where) == (2, "there")


class Secret:
    """Shows nothing of what is in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "Secret('***')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def test_options_are_compared_by_what_they_are(name: str) -> None:
    """Not by how they look: what hides its value is still another one where the value is."""
    register_checkpoint_store(name, Closable)

    store = get_checkpoint_store(name, where=Secret("a"), size=[Secret("a")])

    assert get_checkpoint_store(name, where=Secret("b"), size=[Secret("a")]) is not store
    assert get_checkpoint_store(name, where=Secret("a"), size=[Secret("b")]) is not store
    assert get_checkpoint_store(name, where=Secret("a"), size=[Secret("a")]) is store


def test_stores_that_are_closed_are_let_go(name: str) -> None:
    """A program may open one for each of many files."""
    register_checkpoint_store(name, Closable)
    gone = []
    for number in range(10):
        store = get_checkpoint_store(name, size=number)
        gone.append(weakref.ref(store))
        store.close()
    del store
    get_checkpoint_store(name, size=10)
    gc.collect()

    assert [one() for one in gone] == [None] * 10


def test_a_closed_store_is_made_again(name: str) -> None:
    """Only that one."""
    register_checkpoint_store(name, Closable)
    first, other = get_checkpoint_store(name), get_checkpoint_store(name, size=2)

    first.close()
    second = get_checkpoint_store(name)

    assert second is not first
    assert get_checkpoint_store(name) is second
    assert get_checkpoint_store(name, size=2) is other


def test_the_memory_store_is_one_for_the_process() -> None:
    """So that what a graph saved can be loaded by name."""
    store = get_checkpoint_store("memory")
    store.save(State(run_id="test-registries", step=1))

    assert get_checkpoint_store("memory").load("test-registries").step == 1
    store.delete("test-registries")


def test_a_disk_store_is_known_by_its_folder(tmp_path: Path) -> None:
    """A path as text or as a Path."""
    store = get_checkpoint_store("disk", path=str(tmp_path))

    assert isinstance(store, DiskStore)
    assert get_checkpoint_store("disk", path=tmp_path) is store
    store.close()


def test_registering_again_replaces(name: str, kind: tuple[Register, Get, Any]) -> None:
    """Also what an earlier factory has made already."""
    register, get, make = kind
    register(name, make)
    first = get(name)

    register(name, partial(make))

    assert get(name) is not first
    instance = make()
    register(name, instance)
    assert get(name) is instance


def test_threads_get_the_same_object(name: str) -> None:
    """It is made once, however many ask at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    register_checkpoint_store(name, Closable)

    with ThreadPoolExecutor(8) as pool:
        stores = set(pool.map(lambda _: get_checkpoint_store(name), range(50)))

    assert len(stores) == 1


def test_a_factory_may_use_the_registry(name: str) -> None:
    """A store that wraps another one."""
    register_checkpoint_store(name, Closable)
    register_checkpoint_store(f"{name}-outer", lambda: get_checkpoint_store(name))

    assert get_checkpoint_store(f"{name}-outer") is get_checkpoint_store(name)


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("get", "wrong", "text"),
    [
        (
            get_checkpoint_store,
            "memroy",
            r"no checkpoint store is named 'memroy'; did you mean 'memory'\? \(known: .*'disk'",
        ),
        (
            get_observer,
            "structlogg",
            r"no observer is named 'structlogg'; did you mean 'structlog'\? \(known: .*'noop'",
        ),
        (get_checkpoint_store, "Memory", "did you mean 'memory'"),
        (get_checkpoint_store, "", "no checkpoint store is named ''"),
        (get_checkpoint_store, None, "no checkpoint store is named None"),
        (get_checkpoint_store, ["memory"], "no checkpoint store is named"),
    ],
)
def test_an_unknown_name_comes_with_a_suggestion(get: Get, wrong: Any, text: str) -> None:
    """And with the names that are known."""
    with pytest.raises(UnknownNameError, match=text):
        get(wrong)


@pytest.mark.parametrize("wrong", ["", None, 5, b"name", ["name"]], ids=repr)
def test_a_name_is_a_text(kind: tuple[Register, Get, Any], wrong: Any) -> None:
    """That is not empty."""
    with pytest.raises(ConfigError, match="a name is a str that is not empty"):
        kind[0](wrong, kind[2])


@pytest.mark.parametrize("thing", [None, 5, "memory", object()], ids=lambda thing: type(thing).__name__)
def test_what_cannot_be_registered(name: str, kind: tuple[Register, Get, Any], thing: Any) -> None:
    """Refuse what is neither a store, an observer nor a factory when it is registered."""
    with pytest.raises(ConfigError):
        kind[0](name, thing)


@pytest.mark.parametrize(
    "junk", [None, 5, object(), CheckpointStore, Observer], ids=["None", "5", "object", "store class", "observer class"]
)
def test_a_factory_that_makes_something_else_is_refused(name: str, kind: tuple[Register, Get, Any], junk: Any) -> None:
    """The error names it."""
    register, get, _ = kind
    register(name, lambda: junk)

    with pytest.raises(ConfigError, match=name):
        get(name)


@pytest.mark.parametrize(
    ("get", "thing", "options", "text"),
    [
        (get_checkpoint_store, "disk", {}, "missing a required argument: 'path'"),
        (
            get_checkpoint_store,
            "disk",
            {"path": "x", "fast": True},
            r"unexpected keyword argument 'fast' \(it takes: path, ",
        ),
        (get_checkpoint_store, "memory", {"path": "x"}, r"unexpected keyword argument 'path' \(it takes: none\)"),
        (get_observer, "structlog", {"lvl": "info"}, r"unexpected keyword argument 'lvl' \(it takes: level\)"),
        (get_observer, "noop", {"level": "info"}, r"unexpected keyword argument 'level' \(it takes: none\)"),
        (get_observer, "structlog", {"level": "loud"}, "one of debug, info, warning, error"),
        (get_observer, "structlog", {"level": 5}, "one of debug, info, warning, error"),
    ],
)
def test_wrong_options_are_refused(get: Get, thing: str, options: dict[str, Any], text: str) -> None:
    """The error says which ones there are."""
    with pytest.raises(ConfigError, match=text):
        get(thing, **options)


def test_an_error_inside_a_factory_is_its_own(name: str) -> None:
    """A TypeError from within does not mean that the options are wrong; and the next try is a new one."""
    failures = [TypeError("from within"), OSError("no disk")]

    def factory() -> Any:
        if failures:
            raise failures.pop(0)
        return Closable()

    register_checkpoint_store(name, factory)

    with pytest.raises(TypeError, match="from within"):
        get_checkpoint_store(name)
    with pytest.raises(OSError, match="no disk"):
        get_checkpoint_store(name)
    assert isinstance(get_checkpoint_store(name), Closable)


# --------------------------------------------------------------------------- entry points

_PLUGIN = """
from stategraph.stores.memory import MemoryStore

class PluginStore(MemoryStore):
    def __init__(self, size=1):
        super().__init__()
        self.size = size

class PluginObserver:
    def on_event(self, event):
        pass

plugin_store = PluginStore()
junk = 5
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[str]:
    """An installed package -> the beginning of the names that it gives."""
    module = name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(_PLUGIN)
    info = tmp_path / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[stategraph.stores]\n{name}-class = {module}:PluginStore\n{name}-instance = {module}:plugin_store\n"
        f"{name}-junk = {module}:junk\n{name}-gone = {module}:gone\n"
        f"[stategraph.observers]\n{name}-observer = {module}:PluginObserver\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(module, None)


def test_an_installed_package_adds_stores_and_observers(installed: str) -> None:
    """As classes or as instances; they are found when they are asked for."""
    store: Any = get_checkpoint_store(f"{installed}-class", size=7)

    assert type(store).__name__ == "PluginStore"
    assert store.size == 7
    assert get_checkpoint_store(f"{installed}-class", size=7) is store
    assert get_checkpoint_store(f"{installed}-instance") is get_checkpoint_store(f"{installed}-instance")
    assert type(get_observer(f"{installed}-observer")).__name__ == "PluginObserver"


def test_an_installed_store_is_suggested(installed: str) -> None:
    """It is as known as the others, and nothing of its package is imported for that."""
    with pytest.raises(UnknownNameError, match=f"did you mean '{installed}-class'"):
        get_checkpoint_store(f"{installed}-clas")

    assert installed.replace("-", "_") not in sys.modules


def test_what_is_registered_wins_over_what_is_installed(installed: str) -> None:
    """The program knows best."""
    store = Closable()
    register_checkpoint_store(f"{installed}-class", store)

    assert get_checkpoint_store(f"{installed}-class") is store


@pytest.mark.parametrize("what", ["junk", "gone"])
def test_a_broken_entry_point_is_an_error_that_names_it(installed: str, what: str) -> None:
    """Each time it is asked for."""
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{installed}-{what}"):
            get_checkpoint_store(f"{installed}-{what}")
