"""The grammar of run ids. No run id can be a path out of a folder, or a part of a query.

Users choose the ids of runs. Nested runs and parts have ids with a ``#``, which users cannot choose: they consist of
the id of the outer run, the step, and the node::

    order-1                 a run
    order-1/#3/pay          the nested run of node "pay" in its step 3
    order-1/#3~1/pay        the same after one rollback of the run, which begins other steps
    order-1/#3/pay/#2#send  the finished parts of node "send" in step 2 of that nested run

An id contains the path to a run, so different paths have different ids.
"""

import re
from functools import cache

from stategraph.errors import InvalidRunIdError

MAX_LENGTH = 200
"""The most characters of an id that a user chooses."""

NESTED = "/#"
"""The mark of the ids of nested runs and parts. Hot paths look for it directly."""

_PART = r"[A-Za-z0-9_:@+=-][A-Za-z0-9._:@+=-]*"
_NUMBER = r"[1-9][0-9]{0,17}"
_STEP = rf"/#{_NUMBER}(?:~{_NUMBER})?"
_NODE = r"(?:[A-Za-z0-9_~-]|%[0-9A-F]{2})(?:[A-Za-z0-9._~-]|%[0-9A-F]{2})*"
_OF_RUN = rf"{_PART}(?:/{_PART})*(?:{_STEP}/{_NODE})*"
_RUN_ID = re.compile(_OF_RUN)


def check_run_id(run_id: str) -> str:
    """Return the id of a run or a nested run, checked.

    The id of a run is 1 to 200 of ``A-Z a-z 0-9 . _ : @ + = / -``. No part between slashes is empty or begins with a
    dot.

    Raises:
        InvalidRunIdError: The id is not valid.
    """
    return _checked(run_id, _RUN_ID)


def id_of(text: str) -> str:
    """Return a run id for any text, such as an address or a title: always the same one, and another for another text.

    It is the text itself if that may be a run id. Otherwise it consists of its letters and digits, and of a digest.
    """
    if NESTED not in text and len(text) <= MAX_LENGTH and _RUN_ID.fullmatch(text):
        return text
    from hashlib import sha256  # imported when used

    readable = re.sub(r"[^A-Za-z0-9]+", "-", text[:MAX_LENGTH])[:60].strip("-")
    return f"{readable}-{sha256(text.encode(errors='surrogatepass')).hexdigest()[:32]}".lstrip("-")


def check_given_id(run_id: str) -> str:
    """Return a run id chosen by a user, checked.

    Raises:
        InvalidRunIdError: The id is not valid, or is that of a nested run.
    """
    if NESTED in check_run_id(run_id):
        raise InvalidRunIdError(run_id, f"it names a nested run, which continues with run {given_id(run_id)!r}")
    return run_id


def check_stored_id(run_id: str) -> str:
    """Return the id of a run, a nested run or the parts of a step, checked.

    Raises:
        InvalidRunIdError: The id is not valid.
    """
    return _checked(run_id, _stored_id())


@cache
def _stored_id() -> re.Pattern[str]:
    return re.compile(rf"{_OF_RUN}(?:{_STEP}#{_NODE})?")


def _checked(run_id: str, grammar: re.Pattern[str]) -> str:
    if type(run_id) is str and len(given_id(run_id)) <= MAX_LENGTH and grammar.fullmatch(run_id):
        return run_id
    raise InvalidRunIdError(run_id)


# --------------------------------------------------------------------------- nested runs and parts


def nested_id(run_id: str, step: int, node: str, generation: int = 0) -> str:
    """Return the id of the nested run of a node.

    Args:
        run_id: The outer run.
        step: The number that the step of the outer run will have.
        node: The name under which the step is saved.
        generation: The generation of the outer run.
    """
    again = f"~{generation}" if generation else ""
    return f"{run_id}{NESTED}{step}{again}/{escaped(node)}"


def parts_id(run_id: str, step: int, node: str) -> str:
    """Return the id under which the finished parts of a step are saved."""
    return f"{run_id}{NESTED}{step}#{escaped(node)}"


def escaped(name: str) -> str:
    """Return a name in ASCII, without the characters that separate parts of an id. Different names stay different."""
    from urllib.parse import quote  # imported when used: 2 ms

    text = quote(name, safe="")
    return f"%2E{text[1:]}" if text.startswith(".") else text


def is_nested_id(run_id: str) -> bool:
    """Return whether an id is that of a nested run or of parts."""
    return NESTED in run_id


def is_parts_id(run_id: str) -> bool:
    """Return whether an id is that of parts."""
    return "#" in run_id.rpartition(NESTED)[2]


def outer_id(run_id: str) -> str:
    """Return the id of the run around a nested run or parts; return the id of a run that is not nested unchanged."""
    return run_id.rpartition(NESTED)[0] or run_id


def given_id(run_id: str) -> str:
    """Return the id of the outermost run, which a user chose."""
    return run_id.partition(NESTED)[0]


def step_of(run_id: str) -> int:
    """Return the step of the outer run that an id names; 0 if the id is damaged."""
    found = re.match(_NUMBER, run_id.rpartition(NESTED)[2])
    return int(found[0]) if found else 0


def generation_of(nested_id_: str) -> int:
    """Return the generation of the outer run in which a nested run began."""
    found = re.match(rf"{_NUMBER}~({_NUMBER})", nested_id_.rpartition(NESTED)[2])
    return int(found[1]) if found else 0


def directly_nested(run_id: str, nested_id_: str) -> str:
    """Return the id of the run directly nested in `run_id` that has the id `nested_id_`, or contains that run."""
    end = nested_id_.find(NESTED, len(run_id) + len(NESTED))
    return nested_id_ if end < 0 else nested_id_[:end]


def nested_range(run_id: str) -> tuple[str, str]:
    """Return the bounds of the ids of all nested runs and parts of a run, at any depth."""
    return f"{run_id}{NESTED}", f"{run_id}/$"  # $ is the character after #


def range_of_step(run_id: str, step: int, generation: int) -> tuple[str, str]:
    """Return the bounds of the ids of all nested runs of a step, at any depth."""
    within = nested_id(run_id, step, "", generation)
    return within, f"{within[:-1]}0"  # 0 is the character after /
