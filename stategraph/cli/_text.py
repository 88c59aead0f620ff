"""Text for a screen. Whatever stands in a store, it neither breaks what is shown nor forges it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stategraph._text.screen import SHORT, clean, cut, failure_text, span
from stategraph._values.provenance import Kind
from stategraph.stores._codec.opaque import Opaque

if TYPE_CHECKING:
    from stategraph.state import State
    from stategraph.stores.summaries import Summary

__all__ = ["NOBODY", "SHORT", "ago", "clean", "cut", "failure_text", "left_text", "node_text", "span", "value_text"]


# --------------------------------------------------------------------------- values


def value_text(value: Any, limit: int | None = SHORT) -> str:
    """Return a value as Python writes it, clean and on one line; no more of it is looked at than is shown."""
    shown: list[str] = []
    length = 0
    for piece in _pieces(value, limit):
        shown.append(piece)
        length += len(piece)
        if limit is not None and length > limit:
            return f"{clean(''.join(shown)[:limit])}..."
    return clean("".join(shown))


def _pieces(value: Any, limit: int | None) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _listed("{", (_pair(*item, limit) for item in value.items()), "}")
    elif isinstance(value, Opaque) and value.fields:
        yield value.type
        yield from _listed("(", (_field(*item, limit) for item in value.fields.items()), ")")
    elif isinstance(value, list | tuple):
        opening, closing = "[]" if isinstance(value, list) else "()"
        yield from _listed(opening, (_pieces(item, limit) for item in value), closing)
    elif isinstance(value, AbstractSet) and value:
        yield from _listed("{", (_pieces(item, limit) for item in value), "}")
    else:
        yield _atom(value if limit is None or not isinstance(value, str | bytes) else value[: limit + 1])


def _pair(key: Any, value: Any, limit: int | None) -> Iterator[str]:
    yield from _pieces(key, limit)
    yield ": "
    yield from _pieces(value, limit)


def _field(name: str, value: Any, limit: int | None) -> Iterator[str]:
    yield f"{name}="
    yield from _pieces(value, limit)


def _listed(opening: str, items: Iterable[Iterator[str]], closing: str) -> Iterator[str]:
    yield opening
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from item
    yield closing


def _atom(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - it is the users' code, or an int too long to be read
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__} whose repr raises {error!r}>"


# --------------------------------------------------------------------------- runs

NOBODY = "nobody is at work on it"
"""As it is said of a run."""


def left_text(run: Summary | State) -> str:
    """Say that nobody is at work on an active run, and whether a call has left it so, which then was cut off."""
    is_forked = run.parent is not None and run.parent.step == run.step
    is_left = run.kind not in (Kind.INPUT, Kind.ROLLBACK) and not is_forked
    return f"left unfinished: {NOBODY}" if is_left else NOBODY


def node_text(row: Summary) -> str:
    """Return the node that a checkpoint is about: of a pause or a failure, its own; of what people gave, none."""
    stands_at = row.error or row.pause
    if stands_at is not None:
        return stands_at.node
    return "" if row.kind in (Kind.ANSWER, Kind.UPDATE) else row.checkpoint_node


# --------------------------------------------------------------------------- times


def ago(when: datetime, now: datetime | None = None) -> str:
    """Return a time as seen from now: ``3 min ago``, ``in 2 h``."""
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    told = span(abs(seconds))
    return f"in {told}" if seconds <= -1 else "now" if seconds < 1 else f"{told} ago"
