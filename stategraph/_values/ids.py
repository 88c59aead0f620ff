"""The grammar of run ids: what may name a run can never be a path out of a folder, nor part of a query.

Most ids are given by users. What belongs to a run has an id that no user can give, because there is a ``#`` in it: it
is made of the id of the outer run, the step, and the node::

    order-1                 a run
    order-1/#3/pay          the run of the graph that node "pay" runs in step 3 of it
    order-1/#3~1/pay        the same, after the run was rolled back once: its steps are others than before
    order-1/#3/pay/#2#send  the finished parts of node "send" in step 2 of that

So an id shows the whole way to what it names, and two different ways never give the same id.
"""

import re
from functools import cache

from stategraph.errors import InvalidRunIdError

MAX_LENGTH = 200
"""Characters of an id that a user gives."""

NESTED = "/#"
"""Is in the ids of nested runs and of parts, and in no others: where a call takes too long, it is looked for there."""

_PART = r"[A-Za-z0-9_:@+=-][A-Za-z0-9._:@+=-]*"
_NUMBER = r"[1-9][0-9]{0,17}"
_STEP = rf"/#{_NUMBER}(?:~{_NUMBER})?"
_NODE = r"(?:[A-Za-z0-9_~-]|%[0-9A-F]{2})(?:[A-Za-z0-9._~-]|%[0-9A-F]{2})*"
_OF_RUN = rf"{_PART}(?:/{_PART})*(?:{_STEP}/{_NODE})*"
_RUN_ID = re.compile(_OF_RUN)


def check_run_id(run_id: str) -> str:
    """Return a checked run id, given by a user or of a nested run.

    A user's id is 1 to 200 of ``A-Z a-z 0-9 . _ : @ + = / -``, with no part that is empty or begins with a dot.

    Raises:
        InvalidRunIdError: it is no such id.
    """
    return _checked(run_id, _RUN_ID)


def check_given_id(run_id: str) -> str:
    """Return a checked run id that a user gives.

    Raises:
        InvalidRunIdError: it is none, or that of a nested run, which goes on with the run around it.
    """
    if NESTED in check_run_id(run_id):
        raise InvalidRunIdError(run_id, f"it names a nested run, which goes on with run {given_id(run_id)!r}")
    return run_id


def check_stored_id(run_id: str) -> str:
    """Return the id of anything that a store keeps: of a run, or of the finished parts of a step.

    Raises:
        InvalidRunIdError: it is neither.
    """
    return _checked(run_id, _stored_id())


@cache
def _stored_id() -> re.Pattern[str]:
    return re.compile(rf"{_OF_RUN}(?:{_STEP}#{_NODE})?")


def _checked(run_id: str, grammar: re.Pattern[str]) -> str:
    if type(run_id) is str and len(given_id(run_id)) <= MAX_LENGTH and grammar.fullmatch(run_id):
        return run_id
    raise InvalidRunIdError(run_id)


# --------------------------------------------------------------------------- what is nested in a run


def nested_id(run_id: str, step: int, node: str, generation: int = 0) -> str:
    """Return the id of the run of a graph that a node runs in a step of a run.

    Args:
        run_id: The run around it.
        step: The number that the step will have.
        node: The name under which the step is kept.
        generation: How often the run around it was rolled back.
    """
    again = f"~{generation}" if generation else ""
    return f"{run_id}{NESTED}{step}{again}/{escaped(node)}"


def parts_id(run_id: str, step: int, node: str) -> str:
    """Return the id under which the finished parts of a step of a run are kept."""
    return f"{run_id}{NESTED}{step}#{escaped(node)}"


def escaped(name: str) -> str:
    """Return a name as a part of an id: with none of the characters that separate the parts, and all of it ASCII.

    Two different names are never escaped to the same text.
    """
    from urllib.parse import quote  # imported when used: 2 ms

    text = quote(name, safe="")
    return f"%2E{text[1:]}" if text.startswith(".") else text


def is_nested_id(run_id: str) -> bool:
    """Return whether an id is that of a nested run, or of the finished parts of a step."""
    return NESTED in run_id


def is_parts_id(run_id: str) -> bool:
    """Return whether an id is that of the finished parts of a step."""
    return "#" in run_id.rpartition(NESTED)[2]


PARTS = "*[^/]#*"
"""Matches the ids of finished parts, and no others, as GLOB does in SQL: in no other does # follow anything but /."""


def outer_id(run_id: str) -> str:
    """Return the id of the run around a nested run or the finished parts of a step; an id that was given, as it is."""
    return run_id.rpartition(NESTED)[0] or run_id


def given_id(run_id: str) -> str:
    """Return the id of the outermost run, which a user gave."""
    return run_id.partition(NESTED)[0]


def step_of(run_id: str) -> int:
    """Return the step of the run around it that an id is about; 0, a step long past, where the id was damaged."""
    found = re.match(_NUMBER, run_id.rpartition(NESTED)[2])
    return int(found[0]) if found else 0


def generation_of(nested_id_: str) -> int:
    """Return the generation of the run around a nested run in which that was begun."""
    found = re.match(rf"{_NUMBER}~({_NUMBER})", nested_id_.rpartition(NESTED)[2])
    return int(found[1]) if found else 0


def directly_nested(run_id: str, nested_id_: str) -> str:
    """Return the id of the run nested directly in a run that has this id, or contains the run that has it."""
    end = nested_id_.find(NESTED, len(run_id) + len(NESTED))
    return nested_id_ if end < 0 else nested_id_[:end]


def nested_range(run_id: str) -> tuple[str, str]:
    """Return the bounds between which are the ids of all that is nested in a run, at any depth, and no others."""
    return f"{run_id}{NESTED}", f"{run_id}/$"  # in the order of texts, $ comes next after #
