"""TrackedState: a State that records which of its keys are read, for a step that may have to be recomputed."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from functools import wraps
from typing import Any, TypeVar, overload

import attrs

from stategraph.state import State, data_of, with_data

_Default = TypeVar("_Default")
_ABSENT = object()
_FIELDS = tuple(name for base in State.__mro__ for name in getattr(base, "__slots__", ()) if name != "__weakref__")


@attrs.define(eq=False)
class ReadSet:
    """The reads of a node from its input State.

    Attributes:
        given: The data of that State.
        keys: The keys that were read, or looked up.
        is_all: Whether the node read something that depends on all keys, such as their number.
    """

    given: dict[str, Any]
    keys: set[str] = attrs.field(factory=set)
    is_all: bool = False

    def note(self, key: object, found: object) -> None:
        """Record that a key was read, unless the node itself put the value there."""
        if isinstance(key, str) and self.given.get(key, _ABSENT) is found:
            self.keys.add(str(key))

    @property
    def read(self) -> frozenset[str] | None:
        """The keys that were read; None for all."""
        return None if self.is_all else frozenset(self.keys)


class TrackedState(State):
    """A State that records its reads. States derived from it record their reads as well."""

    __slots__ = ("_reads",)
    _reads: ReadSet

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        """Return an ordinary State: a State constructed from the class, as by attrs.evolve, records nothing."""
        return State(*args, **fields)

    def _all(self) -> dict[str, Any]:
        self._reads.is_all = True
        return data_of(self)

    def _at(self, key: object) -> Any:
        """Return the value of the key or, if there is none, _ABSENT; record the read in both cases."""
        found = data_of(self).get(key, _ABSENT)  # type: ignore[call-overload]
        self._reads.note(key, found)
        return found

    # ------------------------------------------------------------------ reading

    def __getitem__(self, key: str) -> Any:
        self._at(key)
        return data_of(self)[key]

    def __contains__(self, key: object) -> bool:
        return self._at(key) is not _ABSENT

    @overload
    def get(self, key: str, /) -> Any: ...
    @overload
    def get(self, key: str, /, default: _Default) -> Any | _Default: ...
    def get(self, key: str, /, default: Any = None) -> Any:
        found = self._at(key)
        return default if found is _ABSENT else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def keys(self) -> KeysView[str]:
        return self._all().keys()

    def values(self) -> ValuesView[Any]:
        return self._all().values()

    def items(self) -> ItemsView[str, Any]:
        return self._all().items()

    def __eq__(self, other: object) -> bool:
        self._all()
        return bool(unwatched(self) == unwatched(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        self._all()
        return repr(unwatched(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        self._all()
        return State.__deepcopy__(unwatched(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._all()
        return unwatched, (unwatched(self),)

    # ------------------------------------------------------------------ changing, which returns a new State

    def remove(self, key: str) -> State:
        self._at(key)  # reads whether it exists
        return watched(State.remove(self, key), self._reads)


def _watching(change: Callable[..., State]) -> Callable[..., State]:
    """Wrap a method of State that returns a new State, so that the result records its reads, too."""

    @wraps(change)
    def changed(self: TrackedState, *args: Any, **fields: Any) -> State:
        return watched(change(self, *args, **fields), self._reads)

    return changed


for _change in (State.set, State.update, State.merge, State.clone, State.set_checkpoint_node, State.paused):
    setattr(TrackedState, _change.__name__, _watching(_change))


def watched(state: State, reads: ReadSet) -> State:
    """Return the State as one that records its reads."""
    made: State = object.__new__(TrackedState)
    for name in _FIELDS:
        object.__setattr__(made, name, getattr(state, name))
    object.__setattr__(made, "_reads", reads)
    return made


def unwatched(value: Any) -> Any:
    """Return an ordinary State for one that records its reads; return any other value unchanged."""
    return with_data(value, data_of(value)) if type(value) is TrackedState else value
