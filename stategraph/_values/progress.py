"""Pauses, progress, cached results and outlines of nodes: what few runs have, imported when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import attrs

from stategraph._text.shown import shorten
from stategraph._util.validators import LONGEST_WAIT, is_optional
from stategraph._values import clock
from stategraph._values.entries import Entry
from stategraph._values.frozen import freeze, freeze_at
from stategraph._values.provenance import GraphStructure, check_step
from stategraph._values.registered_types import register_type

_is_str = attrs.validators.instance_of(str)


def _in_utc(value: datetime) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{shorten(value)} is not allowed; a datetime with a time zone is")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{shorten(value)} is not allowed; in UTC it is beyond the years 1 to 9999") from None


def _frozen_value(value: Any) -> Any:
    return freeze_at("pause.value", value)


@attrs.frozen
class Pause:
    """A pause of a run, which waits for an answer or a resume.

    Attributes:
        reason: Why the run waits, for people.
        node: The node at which the run continues.
        value: A value to show to the person who answers.
        response_param: The key of the answer; None if a resume is enough.
        at: The time of the pause, aware, in UTC.
        deadline: The time until which an answer is accepted, aware, in UTC; None for no limit.
        id: Identifies this pause by its run, step, value and time. The run sets it.
            ``resume(run_id, updates, pause=id)`` answers no other pause.
        part: The item or branch whose graph pauses; for a nested part, "outer/nested".
        others: Pauses of other parts of the same step.
        effect: The place of the effect whose outcome the pause asks for: the end of the id of the nested run, the step,
            and the place in it. Empty for other pauses.
        goes_on: Whether the run goes on by itself once the deadline has passed.
        attempt: The number of the failed attempt after which the node waits for the next one; 0 for other pauses.
    """

    reason: str = attrs.field(validator=_is_str)
    node: str = attrs.field(validator=_is_str)
    value: Any = attrs.field(converter=_frozen_value)
    response_param: str | None = attrs.field(validator=is_optional(str))
    at: datetime = attrs.field(converter=_in_utc)
    deadline: datetime | None = attrs.field(default=None, converter=attrs.converters.optional(_in_utc))
    id: str = attrs.field(default="", validator=_is_str)
    part: str = attrs.field(default="", validator=_is_str)
    others: tuple[Pause, ...] = ()
    effect: tuple[Any, ...] = attrs.field(default=(), converter=tuple)

    @property
    def key_of_data(self) -> str | None:
        """The key of the State that gets the answer; None if a resume is enough, or if the answer goes elsewhere."""
        return None if self.effect else self.response_param

    goes_on: bool = False
    attempt: int = 0

    @property
    def due(self) -> datetime | None:
        """When the first of all pauses of the run ends by itself; None if none does."""
        return min((each.deadline for each in self.each if each.goes_on and each.deadline), default=None)

    @property
    def each(self) -> tuple[Pause, ...]:
        """All pauses of the run, this one first."""
        return attrs.evolve(self, others=()) if self.others else self, *self.others


@register_type(name="stategraph.Repeat")
@attrs.frozen
class Repeat:
    """The answer to a pause that asks for the outcome of an effect: it did not happen, so the call is repeated."""


def pause_of(pauses: Sequence[Pause]) -> Pause:
    """Combine the pauses of a run into one."""
    return attrs.evolve(pauses[0], others=tuple(pauses[1:]))


Given: TypeAlias = tuple[str | None, int, str]
"""The author of an answer, if known; when it was given, in nanoseconds since 1970; and how."""

PERSON, DEADLINE = "person", "deadline"


@attrs.frozen
class Answer:
    """An answer to a pause.

    Attributes:
        value: The answer; None for a pause that waits for no value.
        by: The author, if given.
        at: When it was given, aware, in UTC; for `otherwise`, the deadline.
        how: "person" if a caller gave it; "deadline" if it is the `otherwise` of a pause whose deadline has passed.
    """

    value: Any
    by: str | None
    at: datetime
    how: str


@attrs.frozen
class _Emitted:
    """The first `count` chunks of a growing list.

    Longer values share the list: a copy for each chunk would take quadratic time.
    """

    chunks: list[Any]
    count: int

    def and_chunk(self, chunk: Any) -> _Emitted:
        """Return these chunks and one more."""
        chunks = self.chunks if 0 < self.count == len(self.chunks) else self.chunks[: self.count]
        chunks.append(freeze(chunk))
        return _Emitted(chunks, len(chunks))

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the chunks."""
        return tuple(self.chunks[: self.count])


_NO_CHUNKS = _Emitted([], 0)


def _emitted(chunks: Iterable[Any] | _Emitted) -> _Emitted:
    if isinstance(chunks, _Emitted):
        return chunks
    frozen = list(freeze(tuple(chunks)))
    return _Emitted(frozen, len(frozen))


Place: TypeAlias = tuple[tuple[str, str, int], ...]
"""Where a chunk is emitted: the node, the part and the step of each run, from the outermost to the one that emits."""


@attrs.frozen(repr=False)
class Partial:
    """The chunks that an unfinished node has emitted so far: for branches and items, the finished ones.

    The chunk of a branch is a tuple of its name and its updates; that of an item, of its place and its result. Two
    are equal if they have the same chunks of the same node.

    Attributes:
        node: The node that emits.
        path: The names of the nodes from the outer graph to the one that emits.
        part: The branch or the item in which it was emitted, as in "3"; for a nested part, "outer/nested".
        kind: "chunk" for a value that a node emitted, "item" or "branch" for a finished one.
        attempt: The number of the attempt that emitted it, from 1.
    """

    node: str = attrs.field(validator=_is_str)
    _emitted: _Emitted = attrs.field(default=_NO_CHUNKS, converter=_emitted, alias="chunks", eq=_Emitted.as_tuple)
    path: tuple[str, ...] = attrs.field(default=attrs.Factory(lambda self: (self.node,), True), eq=False, kw_only=True)
    part: str = attrs.field(default="", eq=False, kw_only=True)
    kind: str = attrs.field(default="chunk", eq=False, kw_only=True)
    attempt: int = attrs.field(default=1, eq=False, kw_only=True)
    _before: int = attrs.field(default=0, eq=False, kw_only=True)  # chunks that are left out

    @property
    def number(self) -> int:
        """The number of the newest chunk, from 1, among those of its kind from the same path, part and attempt."""
        return self._before + self._emitted.count

    @property
    def chunks(self) -> tuple[Any, ...]:
        """All chunks so far, as a new tuple for each access."""
        return self._emitted.as_tuple()

    @property
    def chunk(self) -> Any:
        """The newest chunk."""
        return self._emitted.chunks[self._emitted.count - 1]

    def and_chunk(self, chunk: Any) -> Partial:
        """Return this with one more chunk. The earlier chunks are shared, not copied."""
        chunks, path, before = self._emitted.and_chunk(chunk), self.path, self._before
        return Partial(
            self.node, chunks, path=path, part=self.part, kind=self.kind, attempt=self.attempt, before=before
        )

    def at(self, place: Place, attempt: int = 1, kind: str = "chunk") -> Partial:
        """Return this as emitted at a place."""
        path, parts = (node for node, _, _ in place), (part for _, part, _ in place if part)
        return attrs.evolve(self, path=tuple(path), part="/".join(parts), attempt=attempt, kind=kind)

    def __repr__(self) -> str:
        return f"Partial(node={self.node!r}, chunks={self.chunks!r})"


@attrs.frozen
class Part:
    """A finished part of a step: a branch or an item.

    Attributes:
        step: The number that the step will have.
        node: The node of the step.
        label: The name of the branch, or the number of the item.
        value: The result of the part.
        made_of: The digest of its inputs; empty if unknown.
        kind: The kind of the entry in which it is kept: "part", or "attempt" for the number of its attempts.
    """

    step: int
    node: str
    label: str
    value: Any
    made_of: str = ""
    kind: str = "part"

    @property
    def entry(self) -> Entry:
        """The entry in which it is kept."""
        about = self.kind, self.value, self.step, self.node, self.label, self.made_of
        return Entry.as_kept(*about, None, clock.now_ns(), 0)


AGAIN = "(again)"
"""In place of the digest of the inputs of a part that is to be done again. No digest has parentheses."""


class KeptParts(dict[str, Any]):
    """The values of the saved parts of a step, by label.

    Attributes:
        made_of: The digests of their inputs, by label.

    Args:
        parts: The digest and the value of each part, by label.
    """

    def __init__(self, parts: Mapping[str, Sequence[Any]]) -> None:
        super().__init__({label: value for label, (_, value) in parts.items()})
        self.made_of: dict[str, str] = {label: made_of for label, (made_of, _) in parts.items()}

    @classmethod
    def of(cls, entries: Iterable[Entry], node: str) -> KeptParts:
        """Return the parts of a node in entries of its step."""
        kept = cls({})
        for entry in entries:
            if entry.place == node and entry.made_of != AGAIN:
                kept[entry.name], kept.made_of[entry.name] = entry.value, entry.made_of
        return kept


def _read(keys: Iterable[str] | None) -> frozenset[str] | None:
    return None if keys is None else frozenset(keys)


@attrs.frozen
class Origin:
    """The origin of the value of an unsaved key.

    Attributes:
        node: The node that wrote the key; empty if the input or an update did.
        step: The step in which it was written.
        read: The keys that the node had read before; None for all keys.
        overwritten: A key in `read` that has been overwritten, so that the node would not write the same value again.
    """

    node: str
    step: int
    read: frozenset[str] | None = attrs.field(converter=_read)
    overwritten: str | None = None

    def without(self, touched: AbstractSet[str]) -> Origin:
        """Return this origin after keys were overwritten."""
        if self.overwritten is not None:
            return self
        lost = touched if self.read is None else touched & self.read
        return attrs.evolve(self, overwritten=min(lost)) if lost and self.node else self


_NONE: frozenset[str] = frozenset()


@attrs.frozen
class Progress:
    """What a resume requires besides the data and the last completed node.

    Attributes:
        next_node: The next node, if it is decided: after a pause, and after a failure that a handler handles. No edge
            is tried then.
        woken: The last answered pause, without its value, if the run continues from it.
        given: Who gave the last answer, when, and how; None if the run continues after no answer.
        answered: Keys whose values were used as answers. They answer no other pause.
        partial: The chunks of the current node.
        origins: The origins of unsaved keys.
        replaced: The old values of keys that a resume has set since the last step, as tuples; an empty tuple if the key
            was missing. Nested runs that began with old values have yet to receive the new ones.
        kept_names: The step and the name under which a node keeps its parts, nested run and idempotency keys until it
            completes, if it was under way when the graph changed. Step 0 is the current one: older versions saved none.
        kept_digests: The digests of inputs of parts when the parts were saved, by those of the same inputs now that
            they were converted, to a changed schema or to a newer version of their class.
        overtaken: The old values of keys that other nodes have changed since then, as in `replaced`.
        answer: The keys of answers given since the last step, with old values as in `replaced`. The last one answers
            the pause `woken`.
        recoveries: The number of recoveries of the run since the last step.
        turn: The number of the current turn, if turns are counted; see `stategraph.turns`.
        taken: The number of the newest entry of the inbox that the run has taken in.
        turns: The number up to which the turns in the inbox have begun.
        serves: The number of the turn in the inbox that is under way, or was the last; 0 for another turn.
        spent: What the completed steps of the run have spent, by name: exact numbers, as texts.
        due_ns: The time before which no sweep continues the run, in nanoseconds since 1970; 0 for none.
        deadline_ns: The time at which the run has failed unless it is complete, likewise.
        first_graph: The name of the graph in idempotency keys, if the graph was renamed since the run began.
        redacted: The keys whose values were redacted.
    """

    next_node: str = ""
    woken: Pause | None = None
    given: Given | None = None
    answered: frozenset[str] = attrs.field(default=_NONE, converter=frozenset)
    partial: Partial | None = None
    origins: Mapping[str, Origin] = attrs.field(factory=dict)
    replaced: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict, converter=freeze)
    kept_names: Mapping[str, tuple[int, str]] = attrs.field(factory=dict)
    kept_digests: Mapping[str, str] = attrs.field(factory=dict)
    overtaken: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict, converter=freeze)
    answer: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict, converter=freeze)
    recoveries: int = attrs.field(default=0, converter=check_step)
    turn: int = attrs.field(default=0, converter=check_step)
    taken: int = attrs.field(default=0, converter=check_step)
    turns: int = attrs.field(default=0, converter=check_step)
    serves: int = attrs.field(default=0, converter=check_step)
    due_ns: int = attrs.field(default=0, converter=check_step)
    spent: Mapping[str, str] = attrs.field(factory=dict)
    deadline_ns: int = attrs.field(default=0, converter=check_step)
    first_graph: str = ""
    redacted: frozenset[str] = attrs.field(default=_NONE, converter=frozenset)

    def after_step(self, node: str) -> Progress | None:
        """Return the progress after a node has completed."""
        if not any(getattr(self, name) for name in _ENDS_WITH_STEP):
            return self
        kept = {name: at for name, at in self.kept_names.items() if name != node and at[0]}
        left: dict[str, Any] = {"kept_names": kept}
        if kept:
            left |= {"overtaken": self.overtaken, "kept_digests": self.kept_digests}
        return self.changed(**_OF_ONE_STEP | left, answered=self.answered.union(self.answer))

    def kept_at(self, node: str, step: int) -> tuple[int, str]:
        """Return the step and the name under which a step of a node is saved: those with which it began."""
        at, name = self.kept_names.get(node, (step, node))
        return at or step, name

    def after_changes(self) -> Progress | None:
        """Return the progress at a pause that keeps changes: earlier answers, of which they may be made, stay."""
        return self.changed(woken=None, given=None, answer={}, answered=self.answered.union(self.answer))

    def without_step(self) -> Progress:
        """Return the progress without the fields about the current step."""
        return attrs.evolve(self, **_OF_ONE_STEP)

    def changed(self, **changes: Any) -> Progress | None:
        """Return the progress with changes; None if it is empty."""
        changed = attrs.evolve(self, **changes)
        return None if changed == NO_PROGRESS else changed


def evolved(progress: Progress | None, **changes: Any) -> Progress | None:
    """Return the progress with changes. None stands for an empty progress."""
    return (progress or NO_PROGRESS).changed(**changes)


_ENDS_WITH_STEP = ("next_node", "partial", "replaced", "kept_names", "kept_digests", "recoveries", "due_ns")
_OF_ONE_STEP: dict[str, Any] = {
    "next_node": "",
    "woken": None,
    "given": None,
    "answer": {},
    "partial": None,
    "replaced": {},
    "kept_names": {},
    "kept_digests": {},
    "overtaken": {},
    "recoveries": 0,
    "due_ns": 0,
}
"""The fields about the current step, with their values after the step."""

NO_PROGRESS = Progress()
"""The progress of most States, for which `State.progress` is None."""


def deadline_of(now: datetime, given: datetime | float | None) -> datetime | None:
    """Return a deadline, which may be given as seconds from now. Raises ValueError if the number is not valid."""
    if given is None or isinstance(given, datetime):
        return given
    if type(given) not in (int, float) or not abs(given) <= LONGEST_WAIT:
        allowed = f"a number of seconds up to {LONGEST_WAIT:,}, or a datetime with a time zone, is"
        raise ValueError(f"deadline: {shorten(given)} is not allowed; {allowed}")
    return now + timedelta(seconds=given)


# --------------------------------------------------------------------------- cached results

Changes: TypeAlias = tuple[Mapping[str, Any], Sequence[str]]
"""The values that a node has set, by key, and the keys that it has removed."""


@attrs.frozen
class CachedResult:
    """The outcome of a lookup in a result cache.

    Attributes:
        key: The key of the result; None if the inputs have no key.
        changes: The result; None if there is no usable result.
        reason: Why there is no usable result.
        is_broken: Whether the cache requires attention: it failed, or its signatures differ.
    """

    key: str | None
    changes: Changes | None = None
    reason: str = ""
    is_broken: bool = False


# --------------------------------------------------------------------------- outlines

Structures: TypeAlias = dict[int, GraphStructure | None]
"""The structures of graphs by the ids of the graphs, so that each is made once; None while it is being made."""


@attrs.frozen
class NodeOutline:
    """The outline of a node, for pictures.

    Attributes:
        kind: "function", "pause", "map", "parallel" or "graph".
        notes: Short notes, such as "cached".
        nested: The structure of its graph; or its branches, as a structure without edges.
    """

    kind: str = attrs.field(default="function", validator=_is_str)
    notes: tuple[str, ...] = attrs.field(default=(), validator=attrs.validators.deep_iterable(_is_str))
    nested: GraphStructure | None = attrs.field(default=None, validator=is_optional(GraphStructure))
