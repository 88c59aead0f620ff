"""States as values to encode, and back: changes of their data, pauses, structures, progress.

The payload of a row has the differences between two consecutive States, also inside dicts and lists (see
`stategraph.stores._codec.edits`). A settled value (see `stategraph._values.frozen`) is unchanged if it is the same
object. So a small change of a large State takes little space and time. Values that are not settled are encoded at every
save and compared by their bytes.

A pause is JSON in a column of its own, so that stores list pauses and other tools can read them. Fields of a structure
that only pictures use come after the fields that a resume uses; older payloads lack them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, compress, islice, zip_longest
from operator import attrgetter, eq, is_, is_not
from typing import Any

import attrs
import ormsgpack

from stategraph._text.shown import shorten
from stategraph._util.validators import is_utf8
from stategraph._values.frozen import SETTLED, Carried, FrozenList, freeze, freeze_items, is_settled
from stategraph._values.progress import NO_PROGRESS, NodeOutline, Origin, Partial, Pause, Progress
from stategraph._values.provenance import EdgeStructure, GraphStructure, ParentStep, check_step
from stategraph._values.registered_types import parts_in, problems_carried
from stategraph._values.sameness import is_same
from stategraph.errors import NotSerializableError
from stategraph.state import State, data_of, provenance_of, since_of
from stategraph.stores._codec.edits import COMPARED, edits_between, make_edits
from stategraph.stores._codec.msgpack import encode_value, settled_form
from stategraph.stores._codec.type_codecs import (
    ATOMS,
    DecodeError,
    Opaque,
    UnavailableValueError,
    expect_dict,
    expect_list,
)
from stategraph.stores._codec.value_encoder import EncodedValue, is_writable
from stategraph.stores.serializers import find_format

_ABSENT = object()


def changes_between(
    old: State | None, new: State, encoded: Mapping[str, Any], inside: bool = True
) -> tuple[list[Any], dict[str, Any]]:
    """Return the changes from an earlier State to a later one.

    Args:
        old: The earlier State; None for all data of the later State, for a snapshot.
        new: The later State.
        encoded: The values of the earlier State that are not settled, by key, as `settled_form` returns them.
        inside: Whether to return changes inside values, rather than the values.

    Returns:
        The values to encode as the payload of a row: values to set, items to append to lists, keys to remove before the
        other changes, the provenance of the later State, None if unchanged, and, if there are any, the edits of values
        by key. Then the values of the later State that are not settled, by key.

    Raises:
        NotSerializableError: A value that is not settled cannot be saved exactly.
    """
    changed: dict[str, Any] = {}
    appended: dict[str, Any] = {}
    edited: dict[str, Any] = {}
    unsettled: dict[str, Any] = {}
    before, after = {} if old is None else data_of(old), data_of(new)
    keys, removed = _keys_to_compare(old, new, encoded)
    if removed and len(removed) == len(before):
        before, encoded = {}, {}
    for key in keys:
        value = after[key]
        previous = encoded.get(key, before.get(key, _ABSENT))
        if type(value) not in SETTLED and not is_settled(value):
            value = unsettled[key] = settled_form(value, key)
        elif value is previous:
            continue
        if type(value) is type(previous) is FrozenList and _has_grown(previous, value):
            appended[key] = freeze(value[len(previous) :])  # settled, so that msgpack takes it unchanged
            continue
        edits = edits_between(previous, value) if inside and type(value) in COMPARED else None
        if edits:
            edited[key] = edits
        elif edits is None and not (type(value) is EncodedValue and value == previous):
            changed[key] = value
    provenance = provenance_parts(new) if old is None else _newer_provenance(old, new)
    return [changed, appended, removed, provenance, *([edited] if edited else [])], unsettled


def have_same_data(old: State, new: State, encoded: Mapping[str, Any]) -> bool:
    """Return whether two States have equal data, in values and types.

    Args:
        old: One of them.
        new: The other one.
        encoded: The known forms of old values that are not settled, by key; see `changes_between`.

    Raises:
        NotSerializableError: A value cannot be saved exactly.
    """
    if old.keys() != new.keys():
        return False
    for key, value in data_of(new).items():
        previous = data_of(old)[key]
        if value is previous and is_settled(value):
            continue
        if encode_value(value, key) != encode_value(encoded.get(key, previous), key):
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
    for delta in deltas:
        newer = _change(data, delta)
        if newer is not None:
            provenance = _merged(expect_list(provenance), newer) if type(newer) is dict else expect_list(newer)
    problems = problems_carried()
    if problems:
        data = {
            key: Carried(value, problems[0]) if any(type(part) is Opaque for part in parts_in([value])) else value
            for key, value in data.items()
        }
    return freeze_items(data), provenance_from(provenance)


def _change(data: dict[str, Any], delta: Any) -> Any:
    """Make the changes of a delta in data; return its provenance."""
    changed, appended, removed, newer, *edited = expect_list(delta)
    for key in _names_in(removed):
        del data[key]
    data.update(expect_dict(changed))
    for key, items in expect_dict(appended).items():
        expect_list(data[key]).extend(expect_list(items))
    for key, edits in chain.from_iterable(expect_dict(part).items() for part in edited):
        make_edits(data[key], edits)
    return newer


def without_edits(deltas: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield a snapshot and the deltas after it with whole values in place of edits; each until the next one."""
    data: dict[str, Any] = {}
    for delta in deltas:
        _change(data, delta)
        changed, appended, removed, newer, *edited = delta
        yield [changed | {key: data[key] for part in edited for key in part}, appended, removed, newer]


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


def unsettled_forms(state: State) -> dict[str, Any]:
    """Return the values of a State that are not settled, by key, as `settled_form` returns them."""
    return {key: settled_form(value, key) for key, value in data_of(state).items() if not is_settled(value)}


def _has_grown(old: FrozenList, new: FrozenList) -> bool:
    """Return whether a list is the old one with items appended."""
    return 0 < len(old) < len(new) and all(map(is_, old, new))


_OF_ONE_SAVE = attrgetter("timestamp", "step", "checkpoint_node", "kind", "status", "error", "pause")


def are_of_one_save(old: State, new: State) -> bool:
    """Return whether two States of a run with the same data are the same save.

    A save is repeated if an interrupt came after its commit and before its end.
    """
    return _OF_ONE_SAVE(old) == _OF_ONE_SAVE(new) and have_same_provenance(old, new)


# --------------------------------------------------------------------------- pauses


def pause_to_json(pause: Pause | None) -> str | None:
    """Return a pause as JSON.

    Raises:
        NotSerializableError: Its value cannot be saved exactly.
    """
    if pause is None:
        return None
    try:
        return find_format("json").encode([_fields_of(pause)]).decode()
    except NotSerializableError as error:
        error.path = f"pause.{error.path}"
        raise


def _fields_of(pause: Pause) -> dict[str, Any]:
    fields = attrs.asdict(pause, recurse=False)
    fields["others"] = list(map(_fields_of, pause.others))
    return {name: value for name, value in fields.items() if value or name not in _OF_FEW_PAUSES}


_OF_FEW_PAUSES = ("part", "others", "effect", "goes_on", "attempt")


def pause_from_json(kept: str | None) -> Pause | None:
    """Return the pause from its JSON.

    Raises:
        UnavailableValueError: Its value cannot be constructed in this process.
        DecodeError: The text is not the JSON of a pause.
    """
    if kept is None:
        return None
    try:
        (fields,) = expect_list(find_format("json").decode(kept.encode()), 1)
        return _pause_from(**expect_dict(fields))
    except UnavailableValueError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DecodeError(f"it holds no pause: {error}") from error


def _pause_from(**fields: Any) -> Pause:
    others = tuple(_pause_from(**expect_dict(other)) for other in expect_list(fields.pop("others", [])))
    return Pause(**fields, others=others)


# --------------------------------------------------------------------------- structures


def drawing_parts(structure: GraphStructure) -> list[Any]:
    """Return the fields for pictures: entry, exits, outlines, texts of edges, and nested structures.

    Each nested structure is listed once, after the structures nested in it. The list is made once per structure, which
    all States of a graph share; it must not be changed.
    """
    known: list[Any] | None = vars(structure).get("_drawing")
    return known or vars(structure).setdefault("_drawing", _drawing_parts(structure))


def _drawing_parts(structure: GraphStructure) -> list[Any]:
    places: dict[int, int] = {}
    nested: list[list[Any]] = []

    def place_of(inner: GraphStructure) -> int:
        if id(inner) not in places:
            parts = [*_compared_parts(inner), *own_parts(inner)]
            places[id(inner)] = len(nested)
            nested.append(parts)
        return places[id(inner)]

    def own_parts(inner: GraphStructure) -> list[Any]:
        outlines = {
            name: [outline.kind, list(outline.notes), *([] if outline.nested is None else [place_of(outline.nested)])]
            for name, outline in inner.outlines.items()
        }
        shown = [[place, edge.shown] for place, edge in enumerate(inner.edges) if edge.shown]
        return [inner.entry, list(inner.exits), outlines, shown]

    return [*own_parts(structure), nested]


def _compared_parts(structure: GraphStructure) -> list[Any]:
    return [list(structure.nodes), [[edge.source, edge.target, edge.label] for edge in structure.edges]]


def structure_of(nodes: Any, edges: Any, drawing: Any = None, identity: Any = None) -> GraphStructure:
    """Return a structure from its parts. Raises an error that `combine` translates if the parts are not valid."""
    return _known_structure(ormsgpack.packb([nodes, edges, drawing, identity]))


@lru_cache(maxsize=64)  # many runs of a store have the same structure
def _known_structure(packed: bytes) -> GraphStructure:
    nodes, edges, drawing, identity = ormsgpack.unpackb(packed)
    own = [] if drawing is None else expect_list(drawing)
    known: list[GraphStructure] = []
    for parts in expect_list(own[4] if len(own) > 4 else []):
        known.append(_structure_of(known, *expect_list(parts)))
    return _structure_of(known, nodes, edges, *own[:4], identity=identity)


def _structure_of(
    known: list[GraphStructure], nodes: Any, edges: Any, *drawing: Any, identity: Any = None
) -> GraphStructure:
    entry, exits, outlines, shown = (*drawing, *_NO_DRAWING[len(drawing) :])
    between = [EdgeStructure(*expect_list(edge, 3)) for edge in expect_list(edges)]
    for pair in expect_list(shown):
        place, text = expect_list(pair, 2)
        between[place] = attrs.evolve(between[check_step(place)], shown=text)
    return GraphStructure(
        tuple(expect_list(nodes)),
        tuple(between),
        entry,
        tuple(expect_list(exits)),
        {name: _outline_of(known, *expect_list(parts)) for name, parts in expect_dict(outlines).items()},
        *([] if identity is None else expect_list(identity)[:3]),
    )


_NO_DRAWING: list[Any] = [None, [], {}, []]


def _outline_of(known: list[GraphStructure], kind: Any, notes: Any, place: int | None = None) -> NodeOutline:
    return NodeOutline(kind, tuple(expect_list(notes)), None if place is None else known[check_step(place)])


# --------------------------------------------------------------------------- provenance


def have_same_provenance(old: State, new: State) -> bool:
    """Return whether two States have the same graph, parent, labels and progress."""
    if provenance_of(old) is provenance_of(new):
        return True
    is_same_progress = is_same(old.progress, new.progress)  # it holds values of the user, such as chunks
    return is_same_progress and _PLAIN(old) == _PLAIN(new) and _uncompared_of(old) == _uncompared_of(new)


def _newer_provenance(old: State, new: State) -> dict[str, Any] | None:
    """Return the changed parts of the provenance by their places; None if there are none."""
    if have_same_provenance(old, new):
        return None
    pairs = enumerate(zip_longest(provenance_parts(old), provenance_parts(new)))
    newer: dict[str, Any] = {str(place): part for place, (before, part) in pairs if part != before}
    # The progress holds values of the user, which are compared in another way.
    newer.pop(_PROGRESS, None)
    before, after = old.progress or NO_PROGRESS, new.progress or NO_PROGRESS
    names = [name for name in _PROGRESS_FIELDS if not is_same(getattr(before, name), getattr(after, name))]
    if names:
        parts = _progress_parts(after)
        newer[_PROGRESS_FIELD] = {name: parts.get(name) for name in names}
    return newer


def _merged(parts: list[Any], newer: dict[str, Any]) -> list[Any]:
    """Return the parts of a provenance with newer ones in their places, and newer fields in its progress."""
    by_place = dict(zip(_PLACES, parts, strict=False)) | newer
    if _PROGRESS_FIELD in newer:
        fields = (by_place.get(_PROGRESS) or {}) | expect_dict(newer[_PROGRESS_FIELD])
        by_place[_PROGRESS] = {name: part for name, part in fields.items() if part is not None} or None
    return [by_place.get(place) for place in _PLACES]


_PLACES = tuple(map(str, range(10)))
_PROGRESS, _DRAWING = "6", 7  # the places of the progress, and of the fields for pictures, in a provenance
_PROGRESS_FIELD = "progress"  # in place of its place: its fields that differ
_PLAIN = attrgetter("graph", "structure", "parent", "generation", "labels", "input_digest")


def _uncompared_of(state: State) -> list[Any]:
    structure = state.structure
    return [] if structure is None else [drawing_parts(structure), _identity_parts(structure)]


def _identity_parts(structure: GraphStructure) -> list[Any] | None:
    if structure.settings is None:
        return None
    return [structure.module, dict(structure.settings), *([structure.version] if structure.version else [])]


def provenance_parts(state: State) -> list[Any]:
    """Return the provenance as plain values. Values that few States have come last, and are left out if empty."""
    structure, parent = state.structure, state.parent
    parts = [
        state.graph,
        *([None, None] if structure is None else _compared_parts(structure)),
        None if parent is None else [parent.run_id, parent.step],
        state.generation,
        dict(state.labels),
        None if state.progress is None else _progress_parts(state.progress),
        None,
        state.input_digest or None,
        None if structure is None else _identity_parts(structure),
    ]
    if structure is not None and (structure.entry or structure.exits or structure.outlines):
        drawing = drawing_parts(structure)
        is_plain = not structure.outlines and not drawing[3]  # most graphs
        parts[_DRAWING] = drawing[:2] if is_plain else drawing
    while parts[-1] is None:
        del parts[-1]
    return parts


def _progress_parts(progress: Progress) -> dict[str, Any]:
    """Return the fields of a progress that are not empty, as plain values."""
    fields = ((name, getattr(progress, name)) for name in _PROGRESS_FIELDS)
    return {name: _PROGRESS_TO.get(name, _as_it_is)(value) for name, value in fields if value}


def _as_it_is(value: Any) -> Any:
    return value


def _origin_parts(origin: Origin) -> list[Any]:
    read = None if origin.read is None else sorted(origin.read)
    return [origin.node, origin.step, read, origin.overwritten]


def _old_values(name: str, values: Mapping[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {key: _exact(f"{name}.{key}", old) for key, old in values.items()}


def _exact(path: str, values: Iterable[Any]) -> list[Any]:
    """Return values that msgpack takes unchanged as they are, and the bytes of all others."""
    return [
        value
        if is_settled(value) and (type(value) in ATOMS or is_writable([value]))
        else EncodedValue(encode_value(value, f"{path}[{place}]"))
        for place, value in enumerate(values)
    ]


def _progress_of(parts: Mapping[str, Any]) -> Progress:
    return Progress(**{name: _PROGRESS_FROM.get(name, _as_it_is)(part) for name, part in expect_dict(parts).items()})


def _kept_at_from(kept: Any) -> tuple[int, str]:
    step, name = (0, kept) if type(kept) is str else expect_list(kept, 2)  # older versions wrote the name alone
    return check_step(step), name


def _old_values_from(parts: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {key: tuple(expect_list(old)) for key, old in expect_dict(parts).items()}


def _given_from(parts: Any) -> tuple[str | None, int, str]:
    by, at_ns, how = expect_list(parts, 3)
    if not (by is None or type(by) is str) or type(at_ns) is not int or type(how) is not str:
        raise DecodeError(f"it holds {shorten(parts)} where the author of an answer should be")
    return by, at_ns, how


def _partial_of(parts: Any) -> Partial:
    node, chunks = expect_list(parts, 2)
    return Partial(node, expect_list(chunks))


def _origin_of(parts: Any) -> Origin:
    node, step, read, *further = expect_list(parts)
    return Origin(node, step, None if read is None else _names_in(read), *further)


def _names_in(parts: Any) -> list[str]:
    if not all(type(name) is str for name in expect_list(parts)):
        raise DecodeError(f"it holds {shorten(parts)} where names should be")
    return list(parts)


OLD_VALUES = ("answer", "replaced", "overtaken")
"""The fields of a progress with old values of keys."""
_PROGRESS_FIELDS = tuple(field.name for field in attrs.fields(Progress))
_PROGRESS_TO: dict[str, Callable[[Any], Any]] = {
    "woken": pause_to_json,
    "given": list,
    **dict.fromkeys(("answered", "redacted"), sorted),
    "partial": lambda shown: [shown.node, _exact("partial.chunks", shown.chunks)],
    "origins": lambda origins: {key: _origin_parts(origin) for key, origin in origins.items()},
    "kept_names": lambda kept: {node: [*at] for node, at in kept.items()},
    "kept_digests": dict,
    "spent": dict,
    **{name: partial(_old_values, name) for name in OLD_VALUES},
}
_PROGRESS_FROM: dict[str, Callable[[Any], Any]] = {
    "woken": pause_from_json,
    "given": _given_from,
    **dict.fromkeys(OLD_VALUES, _old_values_from),
    **dict.fromkeys(("answered", "redacted"), _names_in),
    "partial": _partial_of,
    "origins": lambda parts: {key: _origin_of(origin) for key, origin in expect_dict(parts).items()},
    "kept_names": lambda parts: {node: _kept_at_from(kept) for node, kept in expect_dict(parts).items()},
}


def provenance_from(parts: list[Any] | None) -> dict[str, Any]:
    """Return the keywords of State for the parts that `provenance_parts` returned."""
    if parts is None:
        raise DecodeError("its bytes begin with no snapshot")
    graph, nodes, edges, parent, generation, labels, *further = expect_list(parts)
    progress, drawing, input_digest, identity = [*further, None, None, None, None][:4]
    texts = [*(() if graph is None else (graph,)), *chain.from_iterable(expect_dict(labels).items())]
    if not all(type(text) is str and is_utf8(text) for text in texts):
        raise DecodeError("its graph or labels are no texts that a store keeps")
    return {
        "graph": graph,
        "structure": None if nodes is None else structure_of(nodes, edges, drawing, identity),
        "parent": None if parent is None else ParentStep(*expect_list(parent)),
        "generation": generation,
        "labels": labels,
        "progress": None if progress is None else _progress_of(progress),
        "input_digest": input_digest or "",
    }
