"""The step under way of a run: what is known of it, and how some of its parts are done again."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, TypeAlias
from urllib.parse import unquote

import attrs

from stategraph._values.entries import Entry
from stategraph._values.ids import generation_of, given_id, outer_id, step_of
from stategraph._values.progress import AGAIN
from stategraph._values.provenance import ErrorInfo, RunStatus
from stategraph.errors import EffectsError, UnknownNameError
from stategraph.state import State, taken_of
from stategraph.stores._checks import steps_under_way
from stategraph.stores.summaries import Summary, UnderWay

_Store: TypeAlias = Any
"""A `stategraph.stores.CheckpointStore`, which calls this module."""

_OF_PART = re.compile(r"(.+)~(.+)~[0-9a-f]*")  # the end of the id of a nested run: its node, its part, and a digest
_OF_NESTED = {RunStatus.COMPLETED: "done", RunStatus.FAILED: "failed"}


@attrs.define
class _Part:
    """A part of the step under way, or its nested graph.

    Attributes:
        status: "done", "failed" or "at work".
        entries: The entries that keep its result and its attempts.
        nested: Its nested run, if it has one.
    """

    status: str = "at work"
    entries: list[Entry] = attrs.field(factory=list)
    nested: Summary | None = None


def under_way(store: _Store, run_id: str) -> UnderWay:
    """Return what is known of the step under way of a run, as `CheckpointStore.under_way`."""
    state = store.load(run_id)
    entries: list[Entry] = store.entries(run_id) if store.keeps_entries else []
    journal = [entry for entry in entries if entry.step > (state.step if entry.kind == "chunk" else 0)]
    parts = _parts(store, state, journal)
    owner = store.owner(run_id) if run_id == given_id(run_id) else None
    places = [entry.place for entry in journal] + [*parts]
    taken = taken_of(state)
    done, failed, at_work = (
        tuple(name for name, part in parts.items() if part.status == is_) for is_ in ("done", "failed", "at work")
    )
    return UnderWay(
        run_id,
        state.step + 1,
        (owner and owner.node) or (places[-1].partition("/")[0] if places else ""),
        (owner and owner.node_since) or (state.timestamp if places else None),
        done,
        failed,
        at_work,
        {_name(entry): _outcome(entry) for entry in journal if entry.kind == "effect"},
        {entry.place: entry.value for entry in journal if entry.kind == "status"},
        sum(entry.kind == "message" and entry.seq > taken for entry in entries),
        {
            name: under_way(store, part.nested.run_id)
            for name, part in parts.items()
            if part.nested is not None and part.nested.status is not RunStatus.COMPLETED
        },
    )


def redo(store: _Store, run_id: str, names: Collection[str], repeat_effects: bool) -> None:
    """Have parts of the step under way done again, also those of its nested graphs, by the owner of the run.

    Raises:
        UnknownNameError: The step has no such part.
        EffectsError: A graph would repeat effects, and `repeat_effects` is false.
    """
    found = _all_parts(store, run_id)
    for name in names:
        if name not in found:
            raise UnknownNameError(f"part of the step under way of run {run_id!r}", name, found)
    again = [found[name][1].nested for name in names]
    ended = {name: run for name, run in zip(names, again, strict=True) if run and run.status is RunStatus.COMPLETED}
    done = [(step_of(run.run_id), name, key) for name, run in ended.items() for key in store._effects_in(run.run_id)]
    if done and not repeat_effects:
        raise EffectsError(run_id, tuple(done))
    for name in names:
        at, part = found[name]
        if part.entries:
            store.append(at, [attrs.evolve(entry, value=None, made_of=AGAIN) for entry in part.entries])
        if name in ended:  # others go on where they are
            store.delete(ended[name].run_id)


def _all_parts(store: _Store, run_id: str, within: str = "") -> dict[str, tuple[str, _Part]]:
    found = {}
    for name, part in _parts(store, store.load(run_id), store.entries(run_id)).items():
        found[within + name] = run_id, part
        if part.nested is not None:
            found |= _all_parts(store, part.nested.run_id, f"{within}{name}/")
    return found


def _parts(store: _Store, state: State, entries: Collection[Entry]) -> dict[str, _Part]:
    """Return the parts of the step under way by name, as in "map/3", and its nested graph by the name of its node."""
    parts: dict[str, _Part] = {}
    for run in store.iter_runs(parent=state.run_id) if store.keeps_parts else ():
        if outer_id(run.run_id) == state.run_id != run.run_id and step_of(run.run_id) in steps_under_way(state):
            name = run.run_id.rpartition("/")[2]
            if generation_of(run.run_id) == state.generation:
                named = _OF_PART.fullmatch(name)
                name = "/".join(map(unquote, named.groups() if named else [name]))
                parts[name] = _Part(_OF_NESTED.get(run.status, "at work"), nested=run)
    for entry in entries:
        if entry.kind in ("part", "attempt") and entry.name and entry.made_of != AGAIN:
            part = parts.setdefault(_name(entry), _Part())
            part.entries.append(entry)
            if entry.kind == "part":
                part.status = "failed" if isinstance(entry.value, ErrorInfo) else "done"
            elif part.status == "at work" and entry.value == 0:
                part.status = "failed"
        elif entry.kind in ("status", "effect") and "/" in entry.place:
            parts.setdefault(entry.place, _Part())
    return parts


def _outcome(effect: Entry) -> str:
    return "done" if "result" in effect.value else "intended"


def _name(entry: Entry) -> str:
    return f"{entry.place}/{entry.name}"
