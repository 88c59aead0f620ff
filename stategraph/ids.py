"""The grammar of run ids: what may name a run can never be a path out of a folder, nor part of a query."""

import re

from stategraph.errors import InvalidRunIdError

MAX_LENGTH = 200
_PART = r"[A-Za-z0-9_:-][A-Za-z0-9._:-]*"
_RUN_ID = re.compile(rf"{_PART}(?:/{_PART})*")


def check_run_id(run_id: str) -> str:
    """-> the id, if it is 1 to 200 of ``A-Z a-z 0-9 . _ : / -`` with no empty part and none that begins with a dot.

    Raises:
        InvalidRunIdError: otherwise.
    """
    if type(run_id) is str and len(run_id) <= MAX_LENGTH and _RUN_ID.fullmatch(run_id):
        return run_id
    raise InvalidRunIdError(run_id)
