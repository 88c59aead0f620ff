"""How the command ends: exit codes, and which error has which."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

from stategraph import errors

INTERRUPTED = 130
"""As shells have it for Ctrl-C."""


class Exit(IntEnum):
    """The exit codes. They are stable: scripts rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    PAUSED = 4
    CONFLICT = 5
    DAMAGED = 6


class Failure(Exception):  # noqa: N818 - it is how a command ends, as an Exit is
    """Ends the command with a message and an exit code."""

    def __init__(self, exit_code: Exit, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


END_OF_CALL = {"completed": Exit.OK, "paused": Exit.PAUSED, "failed": Exit.FAILED, "cancelled": Exit.FAILED}
"""The exit codes of a run that has ended, or waits."""

_EXITS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Exit], ...] = (
    (errors.CheckpointNotFoundError, Exit.NOT_FOUND),
    (
        (
            errors.RunBusyError,
            errors.StepConflictError,
            errors.RunExistsError,
            errors.RunCompleteError,
            errors.GraphMismatchError,
            errors.AnswerError,
        ),
        Exit.CONFLICT,
    ),
    ((errors.CheckpointCorruptError, errors.FormatError), Exit.DAMAGED),
    ((errors.ConfigError, errors.InvalidRunIdError, errors.SchemaError, errors.UnknownNameError), Exit.USAGE),
    (errors.StateGraphError, Exit.FAILED),
    (ValueError, Exit.USAGE),  # of an argument: what nodes raise is an ExecutionError
)


def exit_of(error: Exception) -> Exit:
    """Return the exit code of an error."""
    if isinstance(error, Failure):
        return error.exit_code
    if isinstance(error, errors.FormatError) and error.statements:
        return Exit.NOT_FOUND
    return next((code for kinds, code in _EXITS if isinstance(error, kinds)), Exit.FAILED)


_COMMANDS = (
    (re.compile(r"store\.delete\('([^']*)'\)"), r"stategraph delete \1"),
    (re.compile(r"resume\('([^']*)'\) goes on"), r"stategraph resume \1 goes on"),
    (re.compile(r"register_serializer makes it known, or .*"), "--import MODULE imports the module that registers it"),
    (re.compile(r"\ballow_changed=True"), "--allow-changed"),
    (re.compile(r"\bmigrate=\{'?([^:{}']*)'?: \"?'?([^:{}'\"]*)'?\"?\}"), r"--migrate \1=\2"),
)


def as_commands(text: str) -> str:
    """Return a text of the library in which commands stand for the calls that it names as ways out."""
    for call, command in _COMMANDS:
        text = call.sub(command, text)
    return text


def message_of(error: Exception) -> str:
    """Return the message of an error. Where it names calls as the way out, it names commands instead."""
    notes = getattr(error, "__notes__", ())
    if isinstance(error, errors.CheckpointNotFoundError):
        steps = f"stategraph history {error.run_id} lists its steps"
        runs = "stategraph runs lists the runs, completed ones where preserve=True keeps them"
        way_out = runs if error.step is None else steps
        return "; ".join((str(error).rpartition("; ")[0], *notes, way_out))
    if isinstance(error, errors.RunCompleteError):
        way_out = f"stategraph show {error.run_id} tells more"
        return f"run {error.run_id!r} is complete: it ended at {error.node!r}; {way_out}"
    if isinstance(error, errors.RunExistsError) and not error.status:
        way_out = f"choose another id, or forget it with stategraph delete {error.run_id}"
        return "; ".join((f"run {error.run_id!r} is already in the {error.store}", way_out, *notes))
    if isinstance(error, errors.RunBusyError):
        return "; ".join((f"run {error.run_id!r} is at work: {error.owner} owns it", *notes))
    if isinstance(error, errors.AnswerError) and error.pause is not None:
        way_out = f"stategraph answer {error.run_id} VALUE --graph MODULE:NAME, where VALUE is JSON (true, 12) or text"
        if error.pause.response_param is not None and "resume without" in error.problem:
            way_out = f"stategraph resume {error.run_id} --graph MODULE:NAME"
        where = f"it waits at {error.pause.node!r}: {error.pause.reason}"
        return f"run {error.run_id!r}: {error.problem}; {where}; {way_out}"
    if isinstance(error, errors.FormatError) and error.statements:  # SQL, which would fill the screen
        way_out = "stategraph migrate makes them"
        if error.__cause__ is not None:  # that was tried
            way_out = "this role may not make them: have an administrator run what stategraph migrate --print prints"
        store = str(error).partition(" has schema ")[0]
        return f"{store} is not there, or its tables are too old: {way_out}"
    return "; ".join((as_commands(str(error)), *(notes if isinstance(error, errors.FormatError) else ())))


def error_shape(error: Exception) -> dict[str, Any]:
    """Return an error as a JSON object."""
    code = exit_of(error)
    name = None if isinstance(error, Failure) else type(error).__name__
    return {"error": {"code": code.name.lower(), "exit": int(code), "type": name, "message": message_of(error)}}
