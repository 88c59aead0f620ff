"""What few runs have: what a run waits for, what else it needs to go on, cached results, outlines of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import attrs

from stategraph._text.shown import shorten
from stategraph._util.validators import LONGEST_WAIT, is_optional
from stategraph._values.frozen import freeze, freeze_at
from stategraph._values.provenance import GraphStructure, check_step

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


def _pauses(pauses: Iterable[Pause]) -> tuple[Pause, ...]:
    return tuple(pauses)


@attrs.frozen
class Pause:
    """What a paused run waits for.

    Attributes:
        reason: Why it waits, for people.
        node: The node at which it goes on.
        value: What to show to the person who answers.
        response_param: The key under which the answer is expected; None if resuming is answer enough.
        at: When it paused; aware, in UTC.
        deadline: Until when it can be answered; None for ever.
        id: Stands for this pause and no other: for what is shown at this step of this run, and when. The run gives it;
            ``resume(run_id, updates, pause=id)`` answers no other pause.
        part: The item or branch that asks, if it is the graph of one; of a part of a part, "outer/nested".
        others: What else the run waits for at the same time: other parts of the same step.
    """

    reason: str = attrs.field(validator=_is_str)
    node: str = attrs.field(validator=_is_str)
    value: Any = attrs.field(converter=_frozen_value)
    response_param: str | None = attrs.field(validator=is_optional(str))
    at: datetime = attrs.field(converter=_in_utc)
    deadline: datetime | None = attrs.field(default=None, converter=attrs.converters.optional(_in_utc))
    id: str = attrs.field(default="", validator=_is_str)
    part: str = attrs.field(default="", validator=_is_str)
    others: tuple[Pause, ...] = attrs.field(default=(), converter=_pauses)

    @property
    def each(self) -> tuple[Pause, ...]:
        """All that the run waits for, one by one."""
        return attrs.evolve(self, others=()) if self.others else self, *self.others


def pause_of(pauses: Sequence[Pause]) -> Pause:
    """Return the pause of a run that waits for all of these."""
    return attrs.evolve(pauses[0], others=tuple(pauses[1:]))


@attrs.frozen
class _Emitted:
    """The first `count` chunks of a list that only grows.

    Values with one chunk more share the list: to copy it for each chunk would cost the square of their number.
    """

    chunks: list[Any]
    count: int

    def and_chunk(self, chunk: Any) -> _Emitted:
        """Return these and one chunk more."""
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


@attrs.frozen(repr=False)
class Partial:
    """What a node that did not finish has emitted so far."""

    node: str = attrs.field(validator=_is_str)
    _emitted: _Emitted = attrs.field(default=_NO_CHUNKS, converter=_emitted, alias="chunks", eq=_Emitted.as_tuple)

    @property
    def chunks(self) -> tuple[Any, ...]:
        """All chunks so far; each look makes a tuple of them."""
        return self._emitted.as_tuple()

    @property
    def chunk(self) -> Any:
        """The newest chunk."""
        return self._emitted.chunks[self._emitted.count - 1]

    def and_chunk(self, chunk: Any) -> Partial:
        """Return this with one chunk more. The chunks before it are neither copied nor looked at again."""
        return Partial(self.node, self._emitted.and_chunk(chunk))

    def __repr__(self) -> str:
        return f"Partial(node={self.node!r}, chunks={self.chunks!r})"


@attrs.frozen
class Part:
    """A finished part of a step: a branch, or an item.

    Attributes:
        step: The number that the step will have.
        node: Its node.
        label: The name of the branch, or the number of the item.
        value: What came of it.
        made_of: The digest of what it was made of; empty if that is not known.
    """

    step: int
    node: str
    label: str
    value: Any
    made_of: str = ""


class KeptParts(dict[str, Any]):
    """The values of the parts that are kept of a step, by their labels.

    Attributes:
        made_of: By the same labels, the digests of what they were made of.

    Args:
        parts: By label, the digest and the value.
    """

    def __init__(self, parts: Mapping[str, Sequence[Any]]) -> None:
        super().__init__({label: value for label, (_, value) in parts.items()})
        self.made_of: dict[str, str] = {label: made_of for label, (made_of, _) in parts.items()}


def _read(keys: Iterable[str] | None) -> frozenset[str] | None:
    return None if keys is None else frozenset(keys)


@attrs.frozen
class Origin:
    """Where the value of a key that is not saved comes from.

    Attributes:
        node: The node that wrote it; empty if it came with the input of the run, or an update.
        step: The step in which it was written.
        read: The keys that the node had read by then; None for all.
        overwritten: One of these that was overwritten since: the node would not write the same again.
    """

    node: str
    step: int
    read: frozenset[str] | None = attrs.field(converter=_read)
    overwritten: str | None = None

    def without(self, touched: AbstractSet[str]) -> Origin:
        """Return this after these keys have been overwritten."""
        if self.overwritten is not None:
            return self
        lost = touched if self.read is None else touched & self.read
        return attrs.evolve(self, overwritten=min(lost)) if lost and self.node else self


_NONE: frozenset[str] = frozenset()


@attrs.frozen
class Progress:
    """What a run needs to go on besides its data, if it is more than the node that was completed last.

    Attributes:
        next_node: The node that comes next, if that is decided already: after a pause, and after a failure that goes to
            a handler. No edge is tried then.
        woken: The pause that was answered last, without what it has shown, if that is what the run goes on from.
        answered: Keys whose values have served as answers, and answer no further pause.
        partial: What the node that is running has emitted so far.
        origins: For keys that are not saved, where their values come from.
        replaced: For keys that a resume has given since the last step, the values that they had, as tuples: empty if
            they had none. Nested runs that were begun with these are still to be given the new ones.
        kept_names: For nodes that were renamed since the last step, the names under which their parts are kept.
        answer: The keys of answers that were given since the last step, with what they replaced, as in `replaced`. The
            last one is that of the pause `woken`.
        recoveries: How often the run was gone on with after its owner was lost, since the last step.
        turn: The number of the turn that was taken up last, where turns are counted; see `stategraph.turns`.
    """

    next_node: str = ""
    woken: Pause | None = None
    answered: frozenset[str] = attrs.field(default=_NONE, converter=frozenset)
    partial: Partial | None = None
    origins: Mapping[str, Origin] = attrs.field(factory=dict)
    replaced: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict, converter=freeze)
    kept_names: Mapping[str, str] = attrs.field(factory=dict)
    answer: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict, converter=freeze)
    recoveries: int = attrs.field(default=0, converter=check_step)
    turn: int = attrs.field(default=0, converter=check_step)

    def after_step(self) -> Progress | None:
        """Return what is left of it once a node has completed."""
        if not (self.next_node or self.partial or self.replaced or self.kept_names or self.recoveries):
            return self
        return self.changed(**_OF_ONE_STEP, answered=self.answered.union(self.answer))

    def kept_name(self, node: str) -> str:
        """Return the name under which the step of a node is kept: the one that the node had when the step began."""
        return self.kept_names.get(node, node)

    def without_step(self) -> Progress:
        """Return it without what is about the step that is being made."""
        return attrs.evolve(self, **_OF_ONE_STEP)

    def changed(self, **changes: Any) -> Progress | None:
        """Return it with changes, or None if nothing is left in it."""
        made = attrs.evolve(self, **changes)
        return None if made == _EMPTY else made


def evolved(progress: Progress | None, **changes: Any) -> Progress | None:
    """Return the progress with changes; None stands for an empty one."""
    return (progress or _EMPTY).changed(**changes)


_OF_ONE_STEP: dict[str, Any] = {
    "next_node": "",
    "woken": None,
    "answer": {},
    "partial": None,
    "replaced": {},
    "kept_names": {},
    "recoveries": 0,
}
"""The fields that are about the step that is being made, as they are once it is made."""

_EMPTY = Progress()


def deadline_of(now: datetime, given: datetime | float | None) -> datetime | None:
    """Return a deadline that may be given in seconds from now. Raises ValueError if it is no number of these."""
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
    """What was found in a cache.

    Attributes:
        key: The key of the result in the cache; None if the inputs have none.
        changes: The result; None if there is none that can be used.
        reason: Why there is none.
        is_broken: Whether the cache needs attention: it fails, or has other signatures.
    """

    key: str | None
    changes: Changes | None = None
    reason: str = ""
    is_broken: bool = False


# --------------------------------------------------------------------------- outlines

Structures: TypeAlias = dict[int, GraphStructure | None]
"""The structures of graphs by their ids, so that each is made once; None for those that are being made."""


def _notes(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(notes)


@attrs.frozen
class NodeOutline:
    """What a node is.

    Attributes:
        kind: "function", "pause", "map", "parallel" or "graph".
        notes: What is to be known of it, in few words each.
        nested: What is inside of it: the structure of its graph or, without edges, its branches.
    """

    kind: str = attrs.field(default="function", validator=_is_str)
    notes: tuple[str, ...] = attrs.field(
        default=(), converter=_notes, validator=attrs.validators.deep_iterable(_is_str)
    )
    nested: GraphStructure | None = attrs.field(default=None, validator=is_optional(GraphStructure))
