"""Options of calls that run or resume a graph, and how they are applied."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal, TypedDict, cast

from stategraph._drivers.limits import StopSignal
from stategraph._engine.context import RunContext
from stategraph._engine.loop import execute
from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._util.validators import is_duration, meant
from stategraph._values.progress import Pause
from stategraph._values.provenance import NO_LABELS, checked_labels
from stategraph.errors import ConfigError
from stategraph.state import State


class Call(TypedDict, total=False):
    """Options of every call.

    Attributes:
        wait: Seconds to wait for the run while another call is at work on it; None or 0 raises at once.
        take_over: Take the run from another call that is at work on it, for example one that hangs: that call can no
            longer save.
        cancel: Stops the run before the next node once it is set.
        timeout: Seconds after which the run stops before the next node; an async node is cut off.
        by: The name of the caller, for the history: the author of the input, the answer or the updates.
        progress: Show the progress of the run on stderr or in the notebook.
    """

    wait: float | None
    take_over: bool
    cancel: threading.Event | None
    timeout: float | None
    by: str | None
    progress: bool


class RunCall(Call, total=False):
    """Options of a call that may begin a run.

    Attributes:
        labels: The labels of the run, for `CheckpointStore.runs`.
    """

    labels: Mapping[str, str] | None


class ExecuteCall(RunCall, total=False):
    """Options of a call that executes a State.

    Attributes:
        restart: Begin at the entry point even if the run of the State is not complete.
    """

    restart: bool


class ChangedCall(Call, total=False):
    """Options of a call that continues a run whose graph may have changed.

    Attributes:
        allow_changed: Continue even if nodes or edges of the graph have changed since.
        migrate: New names of nodes that were renamed since, by their old ones. For a node of a nested graph, prefix
            both names with the name of the node that runs the graph and a slash.
    """

    allow_changed: bool
    migrate: Mapping[str, str] | None


class ResumeCall(ChangedCall, total=False):
    """Options of a call that resumes a run.

    Attributes:
        pause: The pause to answer, or its id. If the run does not wait at it, nothing changes.
    """

    pause: Pause | str | None


class TurnCall(RunCall, ChangedCall, total=False):
    """Options of a turn of a conversation.

    Attributes:
        unfinished: Whether to finish or to discard an interrupted previous turn.
    """

    unfinished: Literal["finish", "discard"]


def checked_options(how: Call, kind: type = Call) -> tuple[Any, ...]:
    """Return the options of a call as the last arguments of RunContext, from `patience` on.

    Raises:
        TypeError: the call does not take such an option, or `allow_changed` or `migrate` has a wrong type.
        ConfigError: an option is invalid.
    """
    if not how:  # most calls
        return ()
    if not kind.__annotations__.keys() >= how.keys():
        unknown = next(iter(how.keys() - kind.__annotations__.keys()))
        known = tuple(kind.__annotations__)
        way_out = meant(unknown, known) or f"{', '.join(known)} are; data goes into a mapping: {{{unknown!r}: ...}}"
        raise TypeError(f"{unknown!r} is no argument here; {way_out}")
    wait, take_over, by = how.get("wait"), how.get("take_over", False), how.get("by")
    if wait is not None and not is_duration(wait):
        raise ConfigError("wait", wait, "a number of seconds from 0 on")
    for name, said in (("take_over", take_over), ("progress", how.get("progress", False))):
        if type(said) is not bool:
            raise ConfigError(name, said, "True or False")
    if by is not None and not isinstance(by, str):
        raise ConfigError("by", by, "a str that says who")
    return wait or 0.0, take_over, signal_of(how), by, _labels_of(how), *_changes_of(cast(ChangedCall, how))


def _labels_of(how: Call) -> Mapping[str, str]:
    labels = cast(RunCall, how).get("labels")
    try:
        return NO_LABELS if labels is None else checked_labels(labels)
    except ValueError as error:
        raise ConfigError("labels", labels, "a mapping of str to str") from error


def _changes_of(how: ChangedCall) -> tuple[bool, Mapping[str, str]]:
    allow_changed, migrate = how.get("allow_changed", False), how.get("migrate")
    if not isinstance(allow_changed, bool):
        raise TypeError(f"allow_changed is True or False, not {shorten(allow_changed)}")
    if migrate is not None and not isinstance(migrate, Mapping):
        raise TypeError(f"migrate is a mapping of old names to new ones, not {type(migrate).__name__}")
    wrong = [name for pair in (migrate or {}).items() for name in pair if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"migrate: {shorten(wrong[0])} is not allowed; names of nodes are")
    return allow_changed, migrate or {}


def executed(run: RunContext, state: State, how: ExecuteCall) -> Task[State]:
    """Return the task of a call that executes a State."""
    return execute(run, state, restart=_restart_of(how) if how else False)


def resumed(run: RunContext, run_id: str, updates: Mapping[str, Any] | None, how: ResumeCall) -> Task[State]:
    """Return the task of a call that resumes a run."""
    from stategraph._engine.resume import resume  # imported when used: most processes begin runs

    return resume(run, run_id, updates, how.get("pause"))


def turned(
    run: RunContext, run_id: str, given: Mapping[str, Any], how: TurnCall, store: Any, retention: str
) -> Task[State]:
    """Return the task of a turn of a conversation, whose runs a store keeps with this retention."""
    from stategraph._engine.calling import turn  # imported when used

    unfinished = how.get("unfinished", "finish")
    if unfinished not in ("finish", "discard"):
        raise ConfigError("unfinished", unfinished, '"finish" or "discard"')
    if unfinished == "discard" and retention != "full":
        raise ConfigError("unfinished", unfinished, 'only retention="full" keeps the end of the turn before')
    return turn(run, run_id, given, discards_in=store if unfinished == "discard" else None)


def _restart_of(how: ExecuteCall) -> bool:
    """Return whether an incomplete run should begin again. Raises ConfigError if the option is not a bool."""
    restart = how.get("restart", False)
    if type(restart) is not bool:
        raise ConfigError("restart", restart, "True or False")
    return restart


def signal_of(how: Call) -> StopSignal | None:
    """Return the signal that may stop a call, or None.

    Raises:
        ConfigError: an option is invalid.
    """
    cancel, timeout = how.get("cancel"), how.get("timeout")
    if cancel is None and timeout is None:
        return None
    return StopSignal.of(cancel, timeout)
