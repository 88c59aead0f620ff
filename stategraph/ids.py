"""The grammar of run ids: what may name a run can never be a path out of a folder, nor part of a query."""

import re
from typing import NamedTuple

from stategraph.errors import InvalidRunIdError

MAX_LENGTH = 200
_PART = r"[A-Za-z0-9_:-][A-Za-z0-9._:-]*"
_GIVEN = re.compile(rf"{_PART}(?:/{_PART})*")
_NESTED = re.compile(rf"{_PART}(?:/{_PART})*(?:/#[1-9][0-9]{{0,9}}/{_PART})+")


def check_run_id(run_id: str) -> str:
    """Return the id, if it is one: given by somebody, or that of the run of a graph within a step of such a run.

    Raises:
        InvalidRunIdError: otherwise.
    """
    if type(run_id) is str and (_is_given(run_id) or _NESTED.fullmatch(run_id)):
        return run_id
    raise InvalidRunIdError(run_id)


def check_given_id(run_id: str) -> str:
    """Return the id, if it is 1 to 200 of ``A-Z a-z 0-9 . _ : / -`` with no empty part and none that begins with a dot.

    Raises:
        InvalidRunIdError: otherwise.
    """
    if type(run_id) is str and _is_given(run_id):
        return run_id
    raise InvalidRunIdError(run_id)


def _is_given(run_id: str) -> bool:
    return len(run_id) <= MAX_LENGTH and _GIVEN.fullmatch(run_id) is not None


# --------------------------------------------------------------------------- within a run

_WITHIN = "/#"
"""Begins what follows the id of a run in the ids of all that is within it. No id that anybody gives a run has it."""

_PLACE = re.compile(r"/#([0-9]{1,10})([/#])")


def nested_id(run_id: str, step: int, node: str) -> str:
    """Return the id of the run of a graph within a step of a run."""
    return f"{run_id}{_WITHIN}{step}/{node}"


def parts_id(run_id: str, step: int, node: str) -> str:
    """Return the id under which the finished parts of a step are kept."""
    return f"{run_id}{_WITHIN}{step}#{node}"


def is_within(run_id: str) -> bool:
    """Return whether an id is that of something within a run."""
    return _WITHIN in run_id


def outermost(run_id: str) -> str:
    """Return the id that somebody has given: that of the run in which everything else is."""
    return run_id.partition(_WITHIN)[0]


def bounds_within(run_id: str) -> tuple[str, str]:
    """Return the bounds between which the ids of all that is within a run are, and no others, in the order of texts."""
    return f"{run_id}{_WITHIN}", f"{run_id}/$"  # the dollar sign comes next after the number sign


class Place(NamedTuple):
    """Where something is within a run.

    Attributes:
        step: The step of the run, by the number that it has or will have.
        are_parts: Whether it is finished parts of that step; else the run of a graph in it, or something within that.
        is_direct: Whether it is within no other run in that one.
    """

    step: int
    are_parts: bool
    is_direct: bool


def place_within(run_id: str, inner_id: str) -> Place | None:
    """Return where in a run something is by its id; None if it is nowhere in it."""
    rest = inner_id.removeprefix(run_id)
    found = _PLACE.match(rest) if inner_id.startswith(run_id) else None
    if found is None:
        return None
    are_parts = found[2] == "#"
    return Place(int(found[1]), are_parts, are_parts or _WITHIN not in rest[1:])
