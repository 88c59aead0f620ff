"""The work of the rows about a list that grows: every step appends a message of 1 KB to `messages`."""

from __future__ import annotations

from time import perf_counter

RUN = "benchmark"

made: list[float] = []
"""When each message was made, in seconds: all contenders take their messages from here, a step each."""


def message(number: int) -> dict[str, str]:
    """The message of a step."""
    made.append(perf_counter())
    return {"role": "assistant", "content": f"{number:08d}" * 125}
