"""The fields of a State: which there are, and what each may hold."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import attrs

from stategraph._text.shown import shorten
from stategraph._values import clock
from stategraph._values.events import Listener
from stategraph._values.frozen import freeze
from stategraph._values.provenance import ErrorInfo, Facts, GraphStructure, ParentStep, RunStatus

if TYPE_CHECKING:
    from stategraph._values.progress import Pause, Progress  # imported when used: by few runs


class Draft:
    """A State that is being filled in.

    State adds no slots to these, so a draft becomes a State by a change of its class. That takes half the time of
    setting the fields of a frozen object one by one, and a run does it once or twice a step.
    """

    __slots__ = (
        *("__weakref__", "_data", "run_id", "checkpoint_node", "_time_ns", "step", "status"),
        *("graph", "structure", "error", "pause", "progress", "parent", "generation", "observer"),
        *("facts", "_took_ns", "labels", "_since"),
    )
    _data: dict[str, Any]
    run_id: str
    checkpoint_node: str
    _time_ns: int
    step: int
    status: RunStatus
    graph: str | None
    structure: GraphStructure | None
    error: ErrorInfo | None
    pause: Pause | None
    progress: Progress | None
    parent: ParentStep | None
    generation: int
    observer: Listener | None
    facts: Facts | None
    _took_ns: int | None
    labels: Mapping[str, str]
    _since: Since | None


Since: TypeAlias = tuple[object, tuple[str, ...], object]
"""How the data of a State were made of those of another one: the mark of those, the keys that were set, its own mark.

A mark is an object that is nothing but itself. So whoever compares the two States need not look through all keys, and
neither of them keeps the data of the other in memory.
"""


def to_ns(value: datetime | int) -> int:
    """Return a timestamp in nanoseconds since 1970. Raises ValueError unless it is one, with a time zone."""
    if type(value) is int and 0 <= value < _LATEST_NS:  # how attrs.evolve hands it on, and stores give it back
        return value
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"timestamp: {shorten(value)} is not allowed; a datetime with a time zone is")
    return clock.to_ns(value)


_LATEST_NS = 253_402_300_800 * 10**9  # the year 10000


def to_us(ns: int) -> int:
    """Return what of a time is compared: no more than `State.timestamp` shows."""
    return ns // 1000


def new_run_id() -> str:
    """Return a run id that nobody has used before."""
    return clock.new_run_id()  # looked up when called: it may have been replaced


def now_ns() -> int:
    """Return the time in nanoseconds since 1970, UTC."""
    return clock.now_ns()


def is_optional(cls: type) -> Any:
    """Return a validator for None or a value of this class."""
    return attrs.validators.optional(attrs.validators.instance_of(cls))


def is_optional_progress(name: str) -> Any:
    """Return a validator for None or a value of this class, which is imported where there is one: by few runs."""

    def validate(instance: object, attribute: Any, value: object) -> None:
        if value is not None:
            from stategraph._values import progress

            attrs.validators.instance_of(getattr(progress, name))(instance, attribute, value)

    return validate


def to_status(value: str) -> RunStatus:
    """Return the status of this name. Raises ValueError if there is none."""
    return RunStatus(value)


NO_LABELS: Mapping[str, str] = freeze({})
"""Those of most runs."""


def checked_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels of a run. Raises ValueError unless they are a mapping of str to str."""
    if isinstance(labels, Mapping) and not labels:
        return NO_LABELS
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for text in chain(labels, labels.values())):
        raise ValueError(f"labels: {shorten(labels)} are not allowed; a mapping of str to str is")
    return cast(Mapping[str, str], freeze(dict(labels)))
