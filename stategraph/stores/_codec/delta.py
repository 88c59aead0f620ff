"""Deltas: the differences between the State that was saved last and the one to save, as the payload of a row.

A settled value (see `stategraph._values.frozen`) is unchanged if it is the same object, which takes no look into it. Of
a list that grew at its end, only the new items are saved. So a small change of a large State takes little room, and
little time to write and to read. Values that are not settled are encoded at every save and compared by their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, islice
from operator import attrgetter, eq, is_, is_not
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._util.atoms import ATOMS
from stategraph._values.frozen import SETTLED, FrozenList, freeze, freeze_items, is_settled
from stategraph._values.progress import Origin, Partial, Progress
from stategraph._values.provenance import ParentStep
from stategraph.state import State, data_of, provenance_of, since_of
from stategraph.stores._codec.limits import is_writable
from stategraph.stores._codec.msgpack import encode_value
from stategraph.stores._codec.pauses import pause_from_json, pause_to_json
from stategraph.stores._codec.structures import COMPARED, SHOWN, are_same, drawing_parts, structure_of
from stategraph.stores._codec.type_codecs import DecodeError, expect_list
from stategraph.stores._codec.value_encoder import EncodedValue

_ABSENT = object()


@attrs.define(eq=False)
class Delta:
    """How to make the data of a State from those of an earlier one.

    Attributes:
        changed: Values to set.
        appended: Items to append to lists.
        removed: Keys to remove, before anything else is done.
        provenance: The graph, parent and progress of the State; None if they have not changed.
        encoded: The bytes of the values that are not settled, by key, of the new State.
    """

    changed: dict[str, Any]
    appended: dict[str, Any]
    removed: list[str]
    provenance: list[Any] | None
    encoded: dict[str, bytes]

    @classmethod
    def between(cls, old: State | None, new: State, encoded: dict[str, bytes]) -> Delta:
        """Return the delta from a State to another one.

        Args:
            old: The earlier State; None for a delta that holds all of the new one, which makes a snapshot.
            new: The State to save.
            encoded: The bytes of the values of the earlier one that are not settled, by key.

        Raises:
            NotSerializableError: A value that is not settled cannot be kept exactly.
        """
        delta = cls({}, {}, [], None, {})
        before, after = {} if old is None else data_of(old), data_of(new)
        keys = after if old is None else _keys_to_compare(old, new, encoded)
        if keys is None:
            keys = after
            if _is_order_kept(before, after):
                delta.removed = [key for key in before if key not in after]
            else:
                delta.removed, before, encoded = [*before], {}, {}
        for key in keys:
            value = after[key]
            previous = before.get(key, _ABSENT)
            if type(value) not in SETTLED and not is_settled(value):
                delta._add_unsettled(key, value, encoded.get(key))
            elif value is previous:
                continue
            elif type(value) is type(previous) is FrozenList and _has_grown(previous, value):
                delta.appended[key] = freeze(value[len(previous) :])  # settled again: then msgpack takes it as it is
            else:
                delta.changed[key] = value
        if old is None or not have_same_provenance(old, new):
            delta.provenance = _provenance_parts(new)
        return delta

    def _add_unsettled(self, key: str, value: Any, previous: bytes | None) -> None:
        now = self.encoded[key] = encode_value(value, key)
        if now != previous:
            self.changed[key] = EncodedValue(now)

    def parts(self) -> list[Any]:
        """Return the values to encode as the payload of a row."""
        return [self.changed, self.appended, self.removed, self.provenance]


def have_same_data(old: State, new: State, encoded: dict[str, bytes]) -> bool:
    """Return whether two States have equal data, in values and types.

    Args:
        old: One of them.
        new: The other one.
        encoded: The bytes of old values that are not settled, by key, as far as they are known.

    Raises:
        NotSerializableError: A value cannot be kept exactly.
    """
    if old.keys() != new.keys():
        return False
    for key, value in data_of(new).items():
        previous = data_of(old)[key]
        if value is previous and is_settled(value):
            continue
        if encode_value(value, key) != (encoded.get(key) or encode_value(previous, key)):
            return False
    return True


def combine(deltas: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make the data of a State from the parts of a snapshot and of the deltas that build on it.

    Returns:
        The data, frozen, and the graph, parent and progress as keywords of State.

    Raises:
        DecodeError: They are not parts as `Delta.parts` returns them.
    """
    try:
        return _assembled(deltas)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise DecodeError(f"its bytes hold no changes: {error}") from error


def _assembled(deltas: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    data: dict[str, Any] = {}
    provenance: list[Any] | None = None
    for changed, appended, removed, newer in deltas:
        if type(changed) is not dict or type(appended) is not dict or type(removed) is not list:
            raise TypeError("what they put is to be in dicts, and what goes in a list")
        for key in removed:
            del data[key]
        data.update(changed)
        for key, items in appended.items():
            expect_list(data[key]).extend(expect_list(items))
        provenance = newer or provenance
    return freeze_items(data), _provenance_of(provenance)


def _keys_to_compare(old: State, new: State, encoded: Iterable[str]) -> Iterable[str] | None:
    """Return the keys whose values may differ; None if keys were removed or moved, as they are in few steps.

    Of the others the values are the same objects as before, and those of `encoded` alone are not settled.
    """
    keys: Iterable[str] | None = keys_set_since(old, new) if since_of(new) else None  # few States have so many
    if keys is None:
        before, after = data_of(old), data_of(new)
        if len(before) > len(after) or not all(map(eq, before, after)):
            return None
        replaced = compress(after, map(is_not, before.values(), after.values()))
        keys = chain(replaced, islice(after, len(before), None))
    return dict.fromkeys(chain(encoded, keys))


def keys_set_since(old: State, new: State) -> tuple[str, ...] | None:
    """Return the keys that were set on the way from one State to the next, without a look at all; None if unknown.

    All others are there in both, in the same order, with the same objects; new ones come after them.
    """
    before, since = since_of(old), since_of(new)
    if before is None or since is None or since[0] is not before[2]:
        return None
    return since[1]


def _is_order_kept(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether the keys that both have are in the same order, and new ones come after them."""
    kept = [key for key in before if key in after]
    return all(map(eq, kept, after))


def encode_unsettled(state: State) -> dict[str, bytes]:
    """Return the bytes of the values of a State that are not settled, by key."""
    return {key: encode_value(value, key) for key, value in data_of(state).items() if not is_settled(value)}


def _has_grown(old: FrozenList, new: FrozenList) -> bool:
    """Return whether a list is the old one with items appended."""
    return 0 < len(old) < len(new) and all(map(is_, old, new))


def have_same_provenance(old: State, new: State) -> bool:
    """Return whether two States have the same graph, parent, labels and progress."""
    if provenance_of(old) is provenance_of(new):
        return True
    same_structure = old.structure is new.structure or are_same(old.structure, new.structure)
    same_origin = old.parent == new.parent and old.generation == new.generation and old.labels == new.labels
    same_progress = old.progress is new.progress or old.progress == new.progress
    return same_structure and same_origin and same_progress and old.graph == new.graph


_OF_ONE_SAVE = attrgetter("timestamp", "step", "checkpoint_node", "kind", "status", "error", "pause")


def are_of_one_save(old: State, new: State) -> bool:
    """Return whether two States of a run that have the same data are one, which is saved twice.

    That happens: an interrupt may come between the commit of a save and its answer, and then it is made again.
    """
    return _OF_ONE_SAVE(old) == _OF_ONE_SAVE(new) and have_same_provenance(old, new)


# --------------------------------------------------------------------------- graph, parent and progress


def _provenance_parts(state: State) -> list[Any]:
    structure, parent = state.structure, state.parent
    progress = None if state.progress is None else _progress_parts(state.progress)
    drawing: list[Any] | None = None
    if structure is not None and (structure.entry or structure.exits or structure.outlines):
        is_plain = not structure.outlines and not any(map(SHOWN, structure.edges))  # as of most graphs
        drawing = [structure.entry, list(structure.exits)] if is_plain else drawing_parts(structure)
    further = [progress, drawing] if drawing else [progress] if progress is not None else []
    return [
        state.graph,
        None if structure is None else list(structure.nodes),
        None if structure is None else list(map(list, map(COMPARED, structure.edges))),
        None if parent is None else [parent.run_id, parent.step],
        state.generation,
        dict(state.labels),
        *further,
    ]


def _progress_parts(progress: Progress) -> dict[str, Any]:
    """Return the attributes of a progress that are not empty."""
    partial = progress.partial
    origins = {key: _origin_parts(origin) for key, origin in progress.origins.items()}
    parts = {
        "next_node": progress.next_node,
        "woken": pause_to_json(progress.woken),
        "answer": _old_values("answer", progress.answer),
        "answered": sorted(progress.answered),
        "partial": None if partial is None else [partial.node, _chunks(partial)],
        "origins": origins,
        "replaced": _old_values("replaced", progress.replaced),
        "kept_names": dict(progress.kept_names),
        "recoveries": progress.recoveries,
        "turn": progress.turn,
    }
    return {name: part for name, part in parts.items() if part}


def _origin_parts(origin: Origin) -> list[Any]:
    read = None if origin.read is None else sorted(origin.read)
    return [origin.node, origin.step, read, origin.overwritten]


def _chunks(partial: Partial) -> list[Any]:
    return [_plain_or_encoded(chunk, f"partial.chunks[{place}]") for place, chunk in enumerate(partial.chunks)]


def _old_values(name: str, values: Mapping[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {key: [_plain_or_encoded(value, f"{name}.{key}") for value in old] for key, old in values.items()}


def _plain_or_encoded(value: Any, path: str) -> Any:
    is_plain = is_settled(value) and (type(value) in ATOMS or is_writable([value]))
    return value if is_plain else EncodedValue(encode_value(value, path))


def _progress_of(parts: dict[str, Any]) -> Progress:
    if not all(type(found) is dict for found in (parts, *(parts.get(name, {}) for name in _DICTS))):
        raise TypeError(f"it holds {shorten(parts)} where dicts should be")
    partial, origins = parts.pop("partial", None), parts.pop("origins", {})
    answer, replaced, woken = parts.pop("answer", {}), parts.pop("replaced", {}), parts.pop("woken", None)
    if "answered" in parts:
        _check_strings(parts["answered"])
    return Progress(
        woken=pause_from_json(woken),
        partial=None if partial is None else Partial(partial[0], tuple(expect_list(partial[1]))),
        origins={key: _origin_of(*expect_list(origin)) for key, origin in origins.items()},
        answer={key: tuple(expect_list(old)) for key, old in answer.items()},
        replaced={key: tuple(expect_list(old)) for key, old in replaced.items()},
        **parts,
    )


_DICTS = ("origins", "answer", "replaced", "kept_names")  # attributes of a progress


def _origin_of(node: str, step: int, read: Any, overwritten: str | None = None) -> Origin:
    if read is not None:
        _check_strings(read)
    return Origin(node, step, read, overwritten)


def _check_strings(parts: Any) -> None:
    """Raise TypeError unless the parts are a list of str: other values may take long to put into a set."""
    if not all(type(part) is str for part in expect_list(parts)):
        raise TypeError(f"it holds {shorten(parts)} where a list of texts should be")


def _provenance_of(parts: list[Any] | None) -> dict[str, Any]:
    if parts is None:
        raise DecodeError("its bytes begin with no snapshot")
    graph, nodes, edges, parent, generation, labels, *further = expect_list(parts)
    progress, drawing = [*further, None, None][:2]
    return {
        "graph": graph,
        "structure": None if nodes is None else structure_of(nodes, edges, drawing),
        "parent": None if parent is None else ParentStep(*expect_list(parent)),
        "generation": generation,
        "labels": labels,
        "progress": None if progress is None else _progress_of(progress),
    }
