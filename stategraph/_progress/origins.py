"""Unsaved keys: the State without them, and the record of how each of them was made.

For every unsaved key, `Progress.origins` records the node and step that wrote it, and the keys the node had read. A
value can be recomputed while all its sources are unchanged: once a source is overwritten or removed,
`Origin.overwritten` names it. Resuming a run needs no more than this, and the record changes only in steps that concern
an unsaved key.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._values.frozen import changed_items
from stategraph._values.progress import Origin, evolved
from stategraph.state import State, data_of, evolve, with_data

GIVEN = ""
"""In place of the node that wrote a key: the value came with the input or an update, or the engine wrote it."""


class AllBut(AbstractSet[str]):
    """All keys except some, as an infinite set: it supports ``in``, ``&`` and ``-``.

    Args:
        keys: The excluded keys.
    """

    def __init__(self, keys: frozenset[str]) -> None:
        self.keys = keys

    def __contains__(self, key: object) -> bool:
        return key not in self.keys

    def __rand__(self, others: AbstractSet[str]) -> frozenset[str]:
        return frozenset(others) - self.keys

    def __rsub__(self, others: AbstractSet[str]) -> frozenset[str]:
        return frozenset(others) & self.keys

    def __iter__(self) -> Iterator[str]:
        raise TypeError("these keys have no end")

    def __len__(self) -> int:
        return sys.maxsize


def persisted(state: State, keys: AbstractSet[str] | None) -> State:
    """Return the State that is saved: only these keys, or all of them if `keys` is None."""
    if keys is None:
        return state
    return with_data(state, {key: value for key, value in data_of(state).items() if key in keys})


_NONE: frozenset[str] = frozenset()


def _keys(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(keys)


@attrs.frozen
class Written:
    """The keys that a step has set and removed."""

    put: frozenset[str] = attrs.field(default=_NONE, converter=_keys)
    gone: frozenset[str] = attrs.field(default=_NONE, converter=_keys)

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any], named: Iterable[str] = ()) -> Written:
        """Return the differences; named keys count as set even if their values are equal."""
        return cls({*changed_items(before, after), *named}, before.keys() - after.keys())

    def check_one_kind(self, persist: AbstractSet[str]) -> None:
        """Raise ValueError if unsaved keys were written together with a change of saved keys.

        To recompute the unsaved keys, the node would have to run on data from before the change.
        """
        others, saved = self.put - persist, (self.put | self.gone) & persist
        if others and saved:
            raise ValueError(mixture(others, saved))


def mixture(others: Collection[str], saved: Collection[str]) -> str:
    """Describe the mistake of a node that writes both kinds of keys."""
    named, missing = (", ".join(shorten(key) for key in sorted(keys)[:5]) for keys in (saved, others))
    return (
        f"it writes keys that are saved ({named}) and keys that are not ({missing}), which it could not compute again "
        "by themselves: make it two nodes, or name all of them, or none, in checkpoint.persist"
    )


def origins_after(
    origins: Mapping[str, Origin], persist: AbstractSet[str], had: Collection[str], written: Written, origin: Origin
) -> Mapping[str, Origin]:
    """Return the origins after a step or an update.

    Args:
        origins: The origins before.
        persist: The saved keys.
        had: All keys before.
        written: The keys that were set and removed.
        origin: The origin of the values that were set.
    """
    # A new unsaved key is also missing when earlier values are recomputed.
    new = {key for key in written.put if key not in had and key not in persist}
    changed = written.put | written.gone
    touched = changed - new
    after = {key: old.without(touched) for key, old in origins.items() if key not in changed}
    own = origin.without(touched)  # it may have read what it wrote
    after.update(dict.fromkeys(sorted(written.put - persist), own))
    return origins if after == origins else after


def accounted(
    state: State, before: State, written: Written, persist: AbstractSet[str] | None, defaults: Mapping[str, Any]
) -> State:
    """Return the State with updated origins of its keys, after a change that no node made.

    Args:
        state: The State.
        before: The State before that.
        written: The keys that were written.
        persist: The saved keys; None for all.
        defaults: The defaults of the graph.
    """
    progress = state.progress
    if persist is None:
        return state if progress is None else evolve(state, progress=evolved(progress, origins={}))
    had = data_of(before).keys()
    defaulted = (data_of(state).keys() - had) & persist
    written = Written(written.put | defaulted, written.gone)
    origins: Mapping[str, Origin] = progress.origins if progress else {}
    origins = origins_after(origins, persist, had, written, Origin(GIVEN, state.step, ()))
    return evolve(state, progress=evolved(progress, origins=_origins_given(origins, persist, state, defaults)))


def _origins_given(
    origins: Mapping[str, Origin], persist: AbstractSet[str], state: State, defaults: Mapping[str, Any]
) -> Mapping[str, Origin]:
    """Return the origins for a State that enters a graph: keys without a known node count as given.

    Defaults need no origin, and keys that are now saved lose theirs. A value derived from such a key may depend on data
    that is no longer there.
    """
    data = data_of(state)
    kept = {key for key in origins if key in persist}
    given = {
        key: Origin(GIVEN, state.step, frozenset())
        for key, value in data.items()
        if key not in persist and key not in origins and not (key in defaults and defaults[key] is value)
    }
    if not kept and not given:
        return origins
    return {**{key: old.without(kept) for key, old in origins.items() if key not in kept}, **given}
