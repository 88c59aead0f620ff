"""The timeout of a node."""

from __future__ import annotations

from typing import TypeVar

from stategraph._protocol.commands import Expired, Limit, Task, Unlimit

_Answer = TypeVar("_Answer")


def limited(task: Task[_Answer], seconds: float, node: str, *, is_async: bool) -> Task[_Answer]:
    """Run a task and cut it off when the time of the node is up; return its result.

    Args:
        task: The work of the node.
        seconds: How long it may take.
        node: Its name.
        is_async: Whether an overdue node is cancelled; the thread of a sync node cannot be stopped.

    Raises:
        TimeoutError: it took longer.
    """
    expired = Expired(f"the timeout of {seconds} s of node {node!r} passed")
    yield (Limit, lambda _: expired, seconds)
    try:
        answer = yield from task
    except GeneratorExit:
        raise
    except BaseException as error:
        yield (Unlimit, None, None)
        if error is expired:
            left = "" if is_async else "; its thread cannot be stopped, and goes on by itself"
            raise TimeoutError(f"it took longer than its timeout of {seconds} s{left}") from None
        raise
    yield (Unlimit, None, None)
    return answer
