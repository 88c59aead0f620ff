"""Stores and observers by name."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    ConfigError,
    Event,
    State,
    UnknownNameError,
    get_checkpoint_store,
    get_observer,
    register_checkpoint_store,
    register_observer,
)
from stategraph.stores.memory import MemoryStore

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """Return a name that is not registered yet: the registries live as long as the process."""
    return f"registered-{next(_numbers)}"


class Closable(MemoryStore):
    """A store that keeps its options and can be closed."""

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


def test_a_class_is_called_when_asked_for(name: str, kind: tuple[Register, Get, Any]) -> None:
    """A registered class is called once, at its first use."""
    register, get, make = kind
    made: list[Any] = []

    def factory() -> Any:
        made.append(make())
        return made[-1]

    register(name, factory)
    assert made == []

    assert get(name) is get(name)
    assert len(made) == 1


def opened(name: str, **options: Any) -> Any:
    """Return a store with options that type checkers do not know."""
    return get_checkpoint_store(name, **options)


def test_the_same_options_give_the_same_object(name: str) -> None:
    """The same options in any order give the same object, and other options another."""
    register_checkpoint_store(name, Closable)

    store = opened(name, size=2, where="there")

    assert opened(name, where="there", size=2) is store
    assert opened(name, size=3, where="there") is not store
    assert get_checkpoint_store(name) is not store
    assert isinstance(store, Closable)
    assert (store.size, store.where) == (2, "there")


def test_the_memory_store_is_one_for_the_process() -> None:
    """So that what a graph saved can be loaded by name."""
    store = get_checkpoint_store("memory")
    store.save(State(run_id="test-registries", step=1))

    assert get_checkpoint_store("memory").load("test-registries").step == 1
    store.delete("test-registries")


# --------------------------------------------------------------------------- refusals


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
    """The error for an unknown name has a suggestion and the known names."""
    with pytest.raises(UnknownNameError, match=text):
        get(wrong)


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
    """An installed package adds stores and observers, as classes or instances."""
    store = opened(f"{installed}-class", size=7)

    assert type(store).__name__ == "PluginStore"
    assert store.size == 7
    assert opened(f"{installed}-class", size=7) is store
    assert get_checkpoint_store(f"{installed}-instance") is get_checkpoint_store(f"{installed}-instance")
    assert type(get_observer(f"{installed}-observer")).__name__ == "PluginObserver"


@pytest.mark.parametrize("what", ["junk", "gone"])
def test_a_broken_entry_point_is_an_error_that_names_it(installed: str, what: str) -> None:
    """A broken entry point raises an error with its name at each use."""
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{installed}-{what}"):
            get_checkpoint_store(f"{installed}-{what}")
