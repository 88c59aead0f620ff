"""What counts as a failure of the users' code: an Exception, or a CancelledError although nobody has cancelled it."""

from __future__ import annotations

import sys


def failures() -> tuple[type[BaseException], ...]:
    """Return the classes of exceptions that are failures, to be caught.

    Only for sync code, which no cancellation of asyncio cuts off: a CancelledError out of it is its own.
    """
    return Exception, *_cancelled_error()


def failure_of(error: BaseException) -> BaseException:
    """Return what stands for an exception in the engine and in groups of exceptions, if nobody has cancelled the run.

    That is an Exception in place of a CancelledError, which is none.
    """
    if isinstance(error, Exception) or not isinstance(error, _cancelled_error()):
        return error
    from stategraph._util.cancellation import CancelledError  # imported when used: asyncio takes 20 ms

    failure = CancelledError(*error.args)
    failure.__cause__ = error
    return failure


def _cancelled_error() -> tuple[type[BaseException], ...]:
    """Return the CancelledError of asyncio; nothing where asyncio was never imported, for nobody can have raised it."""
    module = sys.modules.get("asyncio.exceptions")
    found = getattr(module, "CancelledError", None)  # another thread may be importing it
    return () if found is None else (found,)
