"""Deltas: the differences between two consecutive States, as the payload of a row.

A settled value (see `stategraph._values.frozen`) is unchanged if it is the same object. If a list has grown at its end,
only the new items are saved. So a small change of a large State takes little space and time. Values that are not
settled are encoded at every save and compared by their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, compress, islice
from operator import attrgetter, eq, is_, is_not
from typing import Any

import attrs

from stategraph._values.frozen import SETTLED, FrozenList, freeze, freeze_items, is_settled
from stategraph.state import State, data_of, since_of
from stategraph.stores._codec.msgpack import encode_value
from stategraph.stores._codec.provenance import have_same_provenance, provenance_from, provenance_parts
from stategraph.stores._codec.type_codecs import DecodeError, expect_list
from stategraph.stores._codec.value_encoder import EncodedValue

_ABSENT = object()


@attrs.define(eq=False)
class Delta:
    """The changes from an earlier State to a later one.

    Attributes:
        changed: Values to set.
        appended: Items to append to lists.
        removed: Keys to remove before the other changes.
        provenance: The graph, parent and progress of the later State; None if they have not changed.
        encoded: The bytes of values of the later State that are not settled, by key.
    """

    changed: dict[str, Any]
    appended: dict[str, Any]
    removed: list[str]
    provenance: list[Any] | None
    encoded: dict[str, bytes]

    @classmethod
    def between(cls, old: State | None, new: State, encoded: dict[str, bytes]) -> Delta:
        """Return the delta between two States.

        Args:
            old: The earlier State; None for a delta with all data of the later State, for a snapshot.
            new: The later State.
            encoded: The bytes of values of the earlier State that are not settled, by key.

        Raises:
            NotSerializableError: A value that is not settled cannot be saved exactly.
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
                delta.appended[key] = freeze(value[len(previous) :])  # settled, so that msgpack takes it unchanged
            else:
                delta.changed[key] = value
        if old is None or not have_same_provenance(old, new):
            delta.provenance = provenance_parts(new)
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
        DecodeError: They are not the parts that `Delta.parts` returns.
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


def _keys_to_compare(old: State, new: State, encoded: Iterable[str]) -> Iterable[str] | None:
    """Return the keys whose values may differ; None if keys were removed or moved.

    The values of all other keys are the same, settled objects as before.
    """
    keys: Iterable[str] | None = keys_set_since(old, new) if since_of(new) else None  # known for large States only
    if keys is None:
        before, after = data_of(old), data_of(new)
        if len(before) > len(after) or not all(map(eq, before, after)):
            return None
        replaced = compress(after, map(is_not, before.values(), after.values()))
        keys = chain(replaced, islice(after, len(before), None))
    return dict.fromkeys(chain(encoded, keys))


def keys_set_since(old: State, new: State) -> tuple[str, ...] | None:
    """Return the keys that were set between two consecutive States, without a comparison; None if unknown.

    Both States have all other keys, in the same order, with the same objects. New keys come after them.
    """
    before, since = since_of(old), since_of(new)
    if before is None or since is None or since[0] is not before[2]:
        return None
    return since[1]


def _is_order_kept(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether common keys are in the same order, and new keys come after them."""
    kept = [key for key in before if key in after]
    return all(map(eq, kept, after))


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
