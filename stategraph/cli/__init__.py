"""The command ``stategraph``, which shows, continues and changes the runs of a store.

It needs the extra ``[cli]``. See the page "Command line".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]

_MISSING = "stategraph: the command line needs click and rich: pip install 'durable-stategraph[cli]'"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, by default those of the process, and exit with its code."""
    if find_spec("click") is None or find_spec("rich") is None:
        sys.exit(_MISSING)
    from stategraph.cli._app import run  # imported when used: click takes 50 ms

    sys.exit(run(arguments))
