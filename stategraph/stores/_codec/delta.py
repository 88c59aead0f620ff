"""Deltas: the differences between two consecutive States, as the payload of a row.

A settled value (see `stategraph._values.frozen`) is unchanged if it is the same object. If a list has grown at its end,
only the new items are saved. So a small change of a large State takes little space and time. Values that are not
settled are encoded at every save and compared by their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, islice
from operator import attrgetter, eq, is_, is_not
from typing import Any

from stategraph._values.frozen import SETTLED, FrozenList, freeze, freeze_items, is_settled
from stategraph.state import State, data_of, since_of
from stategraph.stores._codec.msgpack import encode_value
from stategraph.stores._codec.provenance import have_same_provenance, provenance_from, provenance_parts
from stategraph.stores._codec.type_codecs import DecodeError, expect_list
from stategraph.stores._codec.value_encoder import EncodedValue

_ABSENT = object()


def changes_between(old: State | None, new: State, encoded: Mapping[str, bytes]) -> tuple[list[Any], dict[str, bytes]]:
    """Return the changes from an earlier State to a later one.

    Args:
        old: The earlier State; None for all data of the later State, for a snapshot.
        new: The later State.
        encoded: The bytes of values of the earlier State that are not settled, by key.

    Returns:
        The values to encode as the payload of a row: values to set, items to append to lists, keys to remove before the
        other changes, and the provenance of the later State, None if unchanged. Then the bytes of values of the later
        State that are not settled, by key.

    Raises:
        NotSerializableError: A value that is not settled cannot be saved exactly.
    """
    changed: dict[str, Any] = {}
    appended: dict[str, Any] = {}
    unsettled: dict[str, bytes] = {}
    before, after = {} if old is None else data_of(old), data_of(new)
    keys, removed = _keys_to_compare(old, new, encoded)
    if removed and len(removed) == len(before):
        before, encoded = {}, {}
    for key in keys:
        value = after[key]
        previous = before.get(key, _ABSENT)
        if type(value) not in SETTLED and not is_settled(value):
            unsettled[key] = encode_value(value, key)
            if unsettled[key] != encoded.get(key):
                changed[key] = EncodedValue(unsettled[key])
        elif value is previous:
            continue
        elif type(value) is type(previous) is FrozenList and _has_grown(previous, value):
            appended[key] = freeze(value[len(previous) :])  # settled, so that msgpack takes it unchanged
        else:
            changed[key] = value
    provenance = None if old is not None and have_same_provenance(old, new) else provenance_parts(new)
    return [changed, appended, removed, provenance], unsettled


def have_same_data(old: State, new: State, encoded: dict[str, bytes]) -> bool:
    """Return whether two States have equal data, in values and types.

    Args:
        old: One of them.
        new: The other one.
        encoded: The known bytes of old values that are not settled, by key.

    Raises:
        NotSerializableError: A value cannot be saved exactly.
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
    """Return the data of a State from the parts of a snapshot and of the deltas after it.

    Returns:
        The frozen data, and the graph, parent and progress as keywords of State.

    Raises:
        DecodeError: They are not the parts that `changes_between` returns.
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
            raise TypeError("changed and appended values should be in dicts, and removed keys in a list")
        for key in removed:
            del data[key]
        data.update(changed)
        for key, items in appended.items():
            expect_list(data[key]).extend(expect_list(items))
        provenance = newer or provenance
    return freeze_items(data), provenance_from(provenance)


def _keys_to_compare(old: State | None, new: State, encoded: Iterable[str]) -> tuple[Iterable[str], list[str]]:
    """Return the keys whose values may differ, and the keys to remove before: all keys if common keys have moved.

    The values of all other keys are the same, settled objects as before.
    """
    after = data_of(new)
    if old is None:
        return after, []
    keys: Iterable[str] | None = keys_set_since(old, new) if since_of(new) else None  # known for large States only
    if keys is None:
        before = data_of(old)
        if len(before) > len(after) or not all(map(eq, before, after)):
            kept = [key for key in before if key in after]
            is_order_kept = all(map(eq, kept, after))  # and new keys come after them
            return after, [key for key in before if key not in after] if is_order_kept else [*before]
        replaced = compress(after, map(is_not, before.values(), after.values()))
        keys = chain(replaced, islice(after, len(before), None))
    return dict.fromkeys(chain(encoded, keys)), []


def keys_set_since(old: State, new: State) -> tuple[str, ...] | None:
    """Return the keys that were set between two consecutive States, without a comparison; None if unknown.

    Both States have all other keys, in the same order, with the same objects. New keys come after them.
    """
    before, since = since_of(old), since_of(new)
    if before is None or since is None or since[0] is not before[2]:
        return None
    return since[1]


def encode_unsettled(state: State) -> dict[str, bytes]:
    """Return the bytes of the values of a State that are not settled, by key."""
    return {key: encode_value(value, key) for key, value in data_of(state).items() if not is_settled(value)}


def _has_grown(old: FrozenList, new: FrozenList) -> bool:
    """Return whether a list is the old one with items appended."""
    return 0 < len(old) < len(new) and all(map(is_, old, new))


_OF_ONE_SAVE = attrgetter("timestamp", "step", "checkpoint_node", "kind", "status", "error", "pause")


def are_of_one_save(old: State, new: State) -> bool:
    """Return whether two States of a run with the same data are the same save.

    A save is repeated if an interrupt came after its commit and before its end.
    """
    return _OF_ONE_SAVE(old) == _OF_ONE_SAVE(new) and have_same_provenance(old, new)
