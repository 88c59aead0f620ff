"""What a user may have meant."""

from __future__ import annotations

from stategraph._text.shown import shorten
from stategraph.state import State

_MOST = 8  # keys that are listed


def keys_at(state: State, error: KeyError) -> str:
    """Return in words which keys a State has, for an error of a node that found none of some name in it; else ""."""
    if not state or not _is_of_a_state(error):
        return ""
    from difflib import get_close_matches  # imported when used: 10 ms

    close = get_close_matches(str(error.args[0]), state, n=3)
    keys = [*close, *(key for key in state if key not in close)]
    listed = ", ".join([*map(shorten, keys[:_MOST]), *["..."] * (len(keys) > _MOST)])
    return f" (the State has {listed})"


def _is_of_a_state(error: KeyError) -> bool:
    """Return whether it was a State that has no such key, and no other mapping."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    found = {} if last is None else last.tb_frame.f_locals
    return "key" in found and isinstance(found.get("self"), State)
