"""The fields of a State besides its data as values to encode, and back: pauses, structures, progress.

A pause is JSON in a column of its own, so that stores list pauses and other tools can read them. Fields of a structure
that only pictures use come after the fields that a resume uses; older payloads lack them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._util.atoms import ATOMS
from stategraph._values.frozen import is_settled
from stategraph._values.progress import NodeOutline, Origin, Partial, Pause, Progress
from stategraph._values.provenance import EdgeStructure, GraphStructure, ParentStep
from stategraph._values.sameness import is_same
from stategraph.errors import NotSerializableError
from stategraph.state import State, provenance_of
from stategraph.stores._codec.msgpack import encode_value
from stategraph.stores._codec.type_codecs import DecodeError, UnavailableValueError, expect_list
from stategraph.stores._codec.value_encoder import EncodedValue, is_writable
from stategraph.stores.serializers import find_format

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
    fields: dict[str, Any] = {
        "reason": pause.reason,
        "node": pause.node,
        "value": pause.value,
        "response_param": pause.response_param,
        "at": pause.at,
        "deadline": pause.deadline,
        "id": pause.id,
    }
    if pause.part:
        fields["part"] = pause.part
    if pause.others:
        fields["others"] = list(map(_fields_of, pause.others))
    return fields


def pause_from_json(kept: str | None) -> Pause | None:
    """Return the pause from its JSON.

    Raises:
        UnavailableValueError: Its value cannot be constructed in this process.
        DecodeError: The text is not the JSON of a pause.
    """
    if kept is None:
        return None
    try:
        (fields,) = find_format("json").decode(kept.encode())
        return _pause_from(**fields)
    except UnavailableValueError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DecodeError(f"it holds no pause: {error}") from error


def _pause_from(*, others: Iterable[dict[str, Any]] = (), **fields: Any) -> Pause:
    return Pause(**fields, others=tuple(_pause_from(**other) for other in others))


# --------------------------------------------------------------------------- structures

COMPARED: Callable[[EdgeStructure], tuple[str, ...]] = attrgetter("source", "target", "label")
"""Returns the compared fields of an edge."""

SHOWN: Callable[[EdgeStructure], str] = attrgetter("shown")
"""Returns the text that pictures show instead of the label of an edge."""

_KNOWN = "_drawing_"


def are_same(old: GraphStructure | None, new: GraphStructure | None) -> bool:
    """Return whether all saved fields of two structures are equal."""
    if old is None or new is None or old != new:
        return old is new
    return drawing_parts(old) == drawing_parts(new)


def drawing_parts(structure: GraphStructure) -> list[Any]:
    """Return the fields for pictures: entry, exits, outlines, texts of edges, and nested structures.

    Each nested structure is listed once, after the structures nested in it. The list is made once per structure, which
    all States of a graph share; it must not be changed.
    """
    known: list[Any] | None = vars(structure).get(_KNOWN)
    return known or vars(structure).setdefault(_KNOWN, _drawing_parts(structure))


def _drawing_parts(structure: GraphStructure) -> list[Any]:
    listed: dict[int, int] = {}
    nested: list[list[Any]] = []
    for one in _inside_out(structure, set()):
        listed[id(one)] = len(nested)
        nested.append([list(one.nodes), list(map(list, map(COMPARED, one.edges))), *_own_parts(one, listed)])
    last = nested.pop()[2:]
    return [*last, nested]


def _inside_out(structure: GraphStructure, seen: set[int]) -> Iterator[GraphStructure]:
    """Yield each structure once, after the structures nested in it."""
    if id(structure) not in seen:
        seen.add(id(structure))
        for outline in structure.outlines.values():
            if outline.nested is not None:
                yield from _inside_out(outline.nested, seen)
        yield structure


def _own_parts(structure: GraphStructure, listed: dict[int, int]) -> list[Any]:
    outlines = {
        name: [outline.kind, list(outline.notes), *([] if outline.nested is None else [listed[id(outline.nested)]])]
        for name, outline in structure.outlines.items()
    }
    shown = [[place, edge.shown] for place, edge in enumerate(structure.edges) if edge.shown]
    return [structure.entry, list(structure.exits), outlines, shown]


def structure_of(nodes: Any, edges: Any, drawing: Any = None) -> GraphStructure:
    """Return a structure from its parts. Raises TypeError, ValueError or LookupError if the parts are not valid."""
    own = [] if drawing is None else expect_list(drawing)
    known: list[GraphStructure] = []
    for parts in expect_list(own[4] if len(own) > 4 else []):
        known.append(_structure_of(known, *expect_list(parts)))
    return _structure_of(known, nodes, edges, *own[:4])


def _structure_of(known: list[GraphStructure], nodes: Any, edges: Any, *drawing: Any) -> GraphStructure:
    entry, exits, outlines, shown = (*drawing, *_NO_DRAWING[len(drawing) :])
    if not (entry is None or type(entry) is str) or type(outlines) is not dict:
        raise TypeError(f"it holds {shorten([entry, outlines])} where an entry and outlines should be")
    made = {name: _outline_of(known, *expect_list(parts)) for name, parts in outlines.items()}
    between = [EdgeStructure(*expect_list(edge, 3)) for edge in expect_list(edges)]
    for place, text in map(expect_list, expect_list(shown)):
        between[_place(place)] = attrs.evolve(between[place], shown=text)
    return GraphStructure(tuple(expect_list(nodes)), tuple(between), entry, tuple(expect_list(exits)), made)


_NO_DRAWING: list[Any] = [None, [], {}, []]


def _outline_of(known: list[GraphStructure], kind: Any, notes: Any, place: Any = None) -> NodeOutline:
    return NodeOutline(kind, expect_list(notes), None if place is None else known[_place(place)])


def _place(place: Any) -> int:
    if type(place) is not int or place < 0:
        raise TypeError(f"it holds {shorten(place)} where a place should be")
    return place


# --------------------------------------------------------------------------- provenance


def have_same_provenance(old: State, new: State) -> bool:
    """Return whether two States have the same graph, parent, labels and progress."""
    if provenance_of(old) is provenance_of(new):
        return True
    same_structure = old.structure is new.structure or are_same(old.structure, new.structure)
    same_origin = old.parent == new.parent and old.generation == new.generation and old.labels == new.labels
    same_progress = is_same(old.progress, new.progress)  # it holds values of the user, such as chunks
    return same_structure and same_origin and same_progress and old.graph == new.graph


def provenance_parts(state: State) -> list[Any]:
    structure, parent = state.structure, state.parent
    progress = None if state.progress is None else _progress_parts(state.progress)
    drawing: list[Any] | None = None
    if structure is not None and (structure.entry or structure.exits or structure.outlines):
        is_plain = not structure.outlines and not any(map(SHOWN, structure.edges))  # most graphs
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
    """Raise TypeError unless the parts are a list of str: other values may be slow to hash."""
    if not all(type(part) is str for part in expect_list(parts)):
        raise TypeError(f"it holds {shorten(parts)} where a list of texts should be")


def provenance_from(parts: list[Any] | None) -> dict[str, Any]:
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
