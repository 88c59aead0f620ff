"""Entries: what happens to a run between two of its States.

There are two kinds of law. The journal of a run is written by its owner alone and belongs to the step under way: the
commit of the State that completes the step removes it, except for chunks, which stay for 100 steps. The inbox takes
entries of any caller, numbered in the order of their commits: the commit of the State that took an entry in removes it,
or leaves its name if it has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._util.validators import is_optional
from stategraph._values import clock
from stategraph._values.frozen import SETTLED, check_mapping, freeze_at, plain_key
from stategraph._values.provenance import check_step
from stategraph.errors import NotSerializableError

JOURNAL = frozenset({"part", "attempt", "effect", "spend", "chunk", "status"})
"""The kinds of entries of the step under way."""

INBOX = frozenset({"message", "answer", "turn"})
"""The kinds of entries that anyone may append."""


STEPS_OF_CHUNKS = 100
"""The commit of a State removes the chunks of steps that came so many steps before: readers may be late."""


def lasting_kinds(is_same_step: bool) -> tuple[str, ...]:
    """Return the kinds of entries of the step under way that outlast its parts: effects only if it is done again."""
    return ("spend", "chunk", "effect") if is_same_step else ("spend", "chunk")


_is_str = attrs.validators.instance_of(str)


def _frozen_value(value: Any) -> Any:
    return value if type(value) in SETTLED else freeze_at("value", value)


@attrs.frozen(slots=False)  # so that all fields can be set at once
class Entry:
    """Something that happened to a run between two States.

    Attributes:
        kind: "part", "attempt", "effect", "spend", "chunk" or "status" in the journal; "message", "answer" or "turn" in
            the inbox.
        value: What is kept.
        step: The number that the step under way will have; 0 in the inbox.
        place: The place in the step: the node, "node/branch" or "node/3". For an answer, the id of the pause: it is
            appended only while the run waits there.
        name: The name of the entry, unique among the entries of the same run, step, kind and place; empty for none. In
            the journal a later entry replaces an earlier one of its name, in the inbox the earlier one stays.
        made_of: The digest of the inputs; empty if unknown.
        by: The author, if given.
        at_ns: When it was made, in nanoseconds since 1970, UTC.
        seq: Its number among the entries of the step, or of the inbox. The store sets it.
    """

    kind: str = attrs.field(validator=attrs.validators.in_(JOURNAL | INBOX))
    value: Any = attrs.field(default=None, converter=_frozen_value)
    step: int = attrs.field(default=0, converter=check_step)
    place: str = attrs.field(default="", validator=_is_str)
    name: str = attrs.field(default="", validator=_is_str)
    made_of: str = attrs.field(default="", validator=_is_str)
    by: str | None = attrs.field(default=None, validator=is_optional(str))
    at_ns: int = attrs.field(validator=attrs.validators.instance_of(int))
    seq: int = attrs.field(default=0, converter=check_step)

    @at_ns.default
    def _now(self) -> int:
        return clock.now_ns()

    @classmethod
    def as_kept(  # noqa: PLR0913, PLR0917 - its fields
        cls,
        kind: str,
        value: Any,
        step: int,
        place: str,
        name: str,
        made_of: str,
        by: str | None,
        at_ns: int,
        seq: int,
    ) -> Entry:
        """Return an entry from its fields, of the right types, as a store has kept them: four times as fast."""
        entry = object.__new__(cls)
        fields = {
            "kind": kind,
            "value": value if type(value) in SETTLED else _frozen_value(value),
            "step": step,
            "place": place,
            "name": name,
            "made_of": made_of,
            "by": by,
            "at_ns": at_ns,
            "seq": seq,
        }
        object.__setattr__(entry, "__dict__", fields)
        if kind not in (JOURNAL if step else INBOX):
            entry.__attrs_post_init__()
        return entry

    def numbered(self, seq: int) -> Entry:
        """Return the entry with a number: `attrs.evolve` takes five times as long."""
        entry = object.__new__(Entry)
        object.__setattr__(entry, "__dict__", {**self.__dict__, "seq": seq})
        return entry

    def __attrs_post_init__(self) -> None:
        if self.kind not in (JOURNAL if self.step else INBOX):
            where = "step 0, as every entry of the inbox" if self.kind in INBOX else "the step under way, from 1"
            raise ValueError(f"step: {self.step} is not allowed for an entry of kind {self.kind!r}; it is of {where}")

    @property
    def at(self) -> datetime:
        """When it was made, aware, in UTC."""
        return clock.to_datetime(self.at_ns)

    @property
    def identity(self) -> tuple[int, str, str, str]:
        """What an entry with a name has alone among the entries of its run."""
        return self.step, self.kind, self.place, self.name


def message_of(updates: Mapping[str, Any], key: str | None, by: str | None) -> Entry:
    """Return the entry of a message. Raises TypeError if the updates are no State's, or the key is not allowed."""
    check_mapping(updates)
    if key == "" or not isinstance(key, str | None):
        raise TypeError(f"the key of a message is a str that is not empty, or None, not {shorten(key)}")
    return Entry("message", {plain_key(name): value for name, value in updates.items()}, name=key or "", by=by)


def are_of_inbox(entries: Sequence[Entry]) -> bool:
    """Return whether entries are of the inbox; raise ValueError if some are of the journal as well."""
    laws = {entry.kind in INBOX for entry in entries}
    if len(laws) > 1:
        raise ValueError("entries of the journal and of the inbox are not appended together: append them one by one")
    return laws == {True}


def named_by_entry(error: NotSerializableError, entry: Entry, run_id: str) -> NotSerializableError:
    """Return the error for an entry whose value cannot be kept exactly; it names the entry."""
    if entry.kind == "answer":  # the pause is its name and place, and its value comes with its key
        of, path = "the answer", error.path.removeprefix("value[0]").removeprefix(".")
    else:
        of = f"{entry.kind} {entry.name!r}" if entry.name else f"the {entry.kind}"
        of += f" of node {entry.place!r}" if entry.place else ""
        path = error.path.removeprefix("value").removeprefix(".")
    return NotSerializableError(f"{path} in {of}" if path else of, error.reason, run_id)


def due_ns_after(entries: Iterable[Any]) -> int | None:
    """Return the time from which a run can go on by itself because of new entries; None if they do not matter."""
    return min((entry.at_ns for entry in entries if entry.kind in ("answer", "turn")), default=None)


def check_kinds(kinds: Collection[str] | None) -> None:
    """Raise ValueError if a kind of entries is unknown."""
    wrong = set(kinds or ()) - JOURNAL - INBOX
    if wrong or isinstance(kinds, str):
        shown = shorten(kinds if isinstance(kinds, str) else min(wrong))
        raise ValueError(f"kinds: {shown} is not allowed; a collection of {', '.join(sorted(JOURNAL | INBOX))} is")


def selected(entries: Iterable[Entry], step: int | None, kinds: Collection[str] | None, after: int = 0) -> list[Entry]:
    """Return the entries of a step and of some kinds whose numbers come after one, in order."""
    found = (
        entry
        for entry in entries
        if (step is None or entry.step == step) and (kinds is None or entry.kind in kinds) and entry.seq > after
    )
    return sorted(found, key=lambda entry: (entry.step, entry.seq))
