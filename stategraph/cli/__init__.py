"""The command ``stategraph``: see the runs of a store, and take hold of them.

It needs the extra ``[cli]``. What it does stands in docs/command-line.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]

_MISSING = "stategraph: the command line needs click and rich: in a clone of stategraph, pip install '.[cli]'"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, those of the process if not given, and exit with its code."""
    if find_spec("click") is None or find_spec("rich") is None:
        sys.exit(_MISSING)
    from stategraph.cli._app import run  # imported when used: click takes 50 ms

    sys.exit(run(arguments))
