"""The work of the rows about large values of which every step changes a little, with a full history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

TEXT = "12345678" * 125


def message(number: int, size: int = 2) -> dict[str, Any]:
    """A message of a size in KB."""
    return {"role": "assistant", "content": f"{number:08d}" + TEXT * size, "number": number}


@frozen
class Edit:
    """A value, and what a step makes of it.

    Attributes:
        start: Returns the value of the first State.
        change: Returns the value after a step, from the value before and the number of the step.
        new: Returns what is new in it, which the floor writes.
    """

    start: Callable[[], Any]
    change: Callable[[Any, int], Any]
    new: Callable[[int], Any]


EDITS: Mapping[str, Edit] = {
    "gains": Edit(dict, lambda texts, n: {**texts, f"text {n}": f"{n:08d}{TEXT}"}, lambda n: {f"text {n}": TEXT}),
    "last": Edit(
        lambda: [*map(message, range(200))],
        lambda messages, n: [*messages[:-1], {**messages[-1], "content": f"{n:08d}{TEXT}"}],
        lambda n: {"content": f"{n:08d}{TEXT}"},
    ),
    "window": Edit(list, lambda messages, n: [*messages, message(n)][-50:], message),
    "trimmed": Edit(lambda: [message(n, 0) for n in range(10_000)], lambda messages, n: messages[10:], lambda n: 10),
}
