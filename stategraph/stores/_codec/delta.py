"""Changes: what is different between the State that was saved last and the one to save, as the body of a row.

Two values are the same if they are the same settled object (see `stategraph._values.frozen`), which takes no looking
into them. A list that grew by some items at its end is kept as those items. So a small change of a large State costs
what the change weighs, and so does reading it. Values that are not settled are encoded at every save and compared by
their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import eq, is_
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._util.atoms import ATOMS
from stategraph._values.frozen import SETTLED, FrozenList, freeze, freeze_items, is_settled
from stategraph._values.provenance import Origin, ParentStep, Partial, Progress
from stategraph._values.structure import EdgeStructure, GraphStructure
from stategraph.state import State, data_of
from stategraph.stores._codec import values as codec
from stategraph.stores._codec.sharing import is_writable
from stategraph.stores._codec.type_codecs import DecodeError, checked_list
from stategraph.stores._codec.walk import Encoded

_ABSENT = object()


@attrs.define(eq=False)
class Change:
    """What to do to the data of one State to get those of another.

    Attributes:
        put: Values to set.
        grown: Items to append to lists.
        gone: Keys to remove, before anything else is done.
        about: What is kept with a State besides its data and the fields of a row; None if it is as before.
        encoded: The bytes of values that are not settled, by key, of the new State.
    """

    put: dict[str, Any]
    grown: dict[str, Any]
    gone: list[str]
    about: list[Any] | None
    encoded: dict[str, bytes]

    @classmethod
    def between(cls, old: State | None, new: State, encoded: dict[str, bytes]) -> Change:
        """-> what changed since `old`, whose values that are not settled had these bytes; all, if there is no `old`.

        Raises:
            NotSerializableError: a value that is not settled cannot be kept exactly.
        """
        change = cls({}, {}, [], None, {})
        before, after = {} if old is None else data_of(old), data_of(new)
        if old is not None and not _is_order_kept(before, after):
            change.gone, before, encoded = [*before], {}, {}
        for key, value in after.items():
            previous = before.get(key, _ABSENT)
            if type(value) not in SETTLED and not is_settled(value):
                change._put_encoded(key, value, encoded.get(key))
            elif value is previous:
                continue
            elif _has_grown(previous, value):
                change.grown[key] = freeze(value[len(previous) :])  # settled again, which spares it the walk
            else:
                change.put[key] = value
        if not before.keys() <= after.keys():
            change.gone += [key for key in before if key not in after]
        if old is None or not is_about_same(old, new):
            change.about = _about(new)
        return change

    def _put_encoded(self, key: str, value: Any, previous: bytes | None) -> None:
        now = self.encoded[key] = codec.encode_value(value, key)
        if now != previous:
            self.put[key] = Encoded(now)

    def parts(self) -> list[Any]:
        """-> what the body of a row holds."""
        return [self.put, self.grown, self.gone, self.about]

    def to_body(self) -> bytes:
        """-> the parts in msgpack. Raises NotSerializableError if a value cannot be kept exactly."""
        return codec.encode(self.parts())


def have_same_data(old: State, new: State, encoded: dict[str, bytes]) -> bool:
    """Whether two States have equal data, in values and types; `encoded` are the bytes of old values that are not
    settled."""
    if old.keys() != new.keys():
        return False
    for key, value in data_of(new).items():
        previous = data_of(old)[key]
        if value is previous and is_settled(value):
            continue
        if codec.encode_value(value, key) != (encoded.get(key) or codec.encode_value(previous, key)):
            return False
    return True


def restore(bodies: Sequence[bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """-> frozen data and the keywords of State for what else was kept, from the bodies of a snapshot and its changes.

    Raises:
        DecodeError: the bodies are not what `Change.to_body` makes.
    """
    return assembled([codec.decode(body) for body in bodies])


def assembled(changes: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """-> as `restore`, from what the bodies held.

    Raises:
        DecodeError: it is not what `Change.parts` makes.
    """
    try:
        return _assembled(changes)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise DecodeError(f"its bytes hold no changes: {error}") from error


def _assembled(changes: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    data: dict[str, Any] = {}
    about: list[Any] | None = None
    for put, grown, gone, new_about in changes:
        if type(put) is not dict or type(grown) is not dict or type(gone) is not list:
            raise TypeError("what they put is to be in dicts, and what goes in a list")
        for key in gone:
            del data[key]
        data.update(put)
        for key, items in grown.items():
            checked_list(data[key]).extend(checked_list(items))
        about = new_about or about
    return freeze_items(data), _restored(about)


def _is_order_kept(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether the keys that both have are in the same order, and new ones behind them."""
    if len(before) <= len(after) and all(map(eq, before, after)):
        return True  # nothing was removed, as in most steps
    kept = [key for key in before if key in after]
    return all(map(eq, kept, after))


def encoded_of(state: State) -> dict[str, bytes]:
    """-> the bytes of the values of a State that are not settled, by key."""
    return {key: codec.encode_value(value, key) for key, value in data_of(state).items() if not is_settled(value)}


def _has_grown(old: Any, new: Any) -> bool:
    """Whether a list is the old one with items behind it."""
    return type(new) is FrozenList and type(old) is FrozenList and 0 < len(old) < len(new) and all(map(is_, old, new))


def is_about_same(old: State, new: State) -> bool:
    """Whether two States agree in what is kept besides their data and the fields of a row."""
    same_structure = old.structure is new.structure or old.structure == new.structure
    same_origin = old.parent == new.parent and old.generation == new.generation
    same_progress = old.progress is new.progress or old.progress == new.progress
    return same_structure and same_origin and same_progress and old.graph == new.graph


def _about(state: State) -> list[Any]:
    structure, parent = state.structure, state.parent
    progress = () if state.progress is None else (_progress_parts(state.progress),)
    return [
        state.graph,
        None if structure is None else list(structure.nodes),
        None if structure is None else [[edge.source, edge.target, edge.label] for edge in structure.edges],
        None if parent is None else [parent.run_id, parent.step],
        state.generation,
        *progress,
    ]


def _progress_parts(progress: Progress) -> dict[str, Any]:
    """-> what is in a progress, without what is not."""
    partial = progress.partial
    origins = {key: _origin_parts(origin) for key, origin in progress.origins.items()}
    parts = {
        "next_node": progress.next_node,
        "woken": progress.woken,
        "answer": _old_values("answer", progress.answer),
        "answered": sorted(progress.answered),
        "partial": None if partial is None else [partial.node, _chunks(partial)],
        "origins": origins,
        "replaced": _old_values("replaced", progress.replaced),
        "kept_names": dict(progress.kept_names),
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
    return value if is_plain else Encoded(codec.encode_value(value, path))


def _progress_of(parts: dict[str, Any]) -> Progress:
    if not all(type(found) is dict for found in (parts, *(parts.get(name, {}) for name in _DICTS))):
        raise TypeError(f"it holds {shorten(parts)} where dicts should be")
    partial, origins = parts.pop("partial", None), parts.pop("origins", {})
    answer, replaced = parts.pop("answer", {}), parts.pop("replaced", {})
    for name in parts.keys() & {"answered", "visited"}:
        _check_texts(parts[name])
    return Progress(
        partial=None if partial is None else Partial(partial[0], tuple(checked_list(partial[1]))),
        origins={key: _origin_of(*checked_list(origin)) for key, origin in origins.items()},
        answer={key: tuple(checked_list(old)) for key, old in answer.items()},
        replaced={key: tuple(checked_list(old)) for key, old in replaced.items()},
        **parts,
    )


_DICTS = ("origins", "answer", "replaced", "kept_names")  # of what is in a progress


def _origin_of(node: str, step: int, read: Any, overwritten: str | None = None) -> Origin:
    if read is not None:
        _check_texts(read)
    return Origin(node, step, read, overwritten)


def _check_texts(parts: Any) -> None:
    """Raise TypeError unless the parts are a list of texts: what else there is may take long to be put into a set."""
    if not all(type(part) is str for part in checked_list(parts)):
        raise TypeError(f"it holds {shorten(parts)} where a list of texts should be")


def _structure_of(nodes: Any, edges: Any) -> GraphStructure:
    made = tuple(EdgeStructure(*checked_list(edge)) for edge in checked_list(edges))
    return GraphStructure(tuple(checked_list(nodes)), made)


def _restored(about: list[Any] | None) -> dict[str, Any]:
    if about is None:
        raise DecodeError("its bytes begin with no snapshot")
    graph, nodes, edges, parent, generation, *progress = checked_list(about)
    return {
        "graph": graph,
        "structure": None if nodes is None else _structure_of(nodes, edges),
        "parent": None if parent is None else ParentStep(*checked_list(parent)),
        "generation": generation,
        "progress": _progress_of(*progress) if progress else None,
    }
