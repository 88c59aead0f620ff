"""``python -m proof [--share 0.1] [--seed 1] [NAME ...]``: run the proofs and print what they tried and found.

For each that fails, crashes or hangs it prints in the end the command that repeats this one alone.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import proof
from proof.runner import command_of, end_all, longest, run

LANES = 2
"""Proofs that run at the same time: one works while another waits for a server, a lease or a worker."""


def names() -> list[str]:
    """Return the modules that are proofs: those with a function ``prove(share, seed)``."""
    found = [module.name for module in pkgutil.iter_modules(proof.__path__) if module.name != "__main__"]
    return [name for name in found if hasattr(importlib.import_module(f"proof.{name}"), "prove")]


def main(arguments: Sequence[str]) -> int:
    """Run the proofs that the command line names, or all; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m proof")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a proof; all of them if none is named")
    parser.add_argument("--share", type=float, default=1.0, help="share of the full length, such as 0.1")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what random choices begin with")
    parser.add_argument("--longest", type=float, metavar="SECONDS", help="how long a proof may take before it hangs")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}, share {given.share}", flush=True)
    seconds = longest(given.share) if given.longest is None else given.longest

    def holds(name: str) -> bool:
        start = time.monotonic()
        wrong = run(name, given.share, given.seed, seconds)
        end = f", and {wrong}" if wrong else ""
        print(f"         {name} took {time.monotonic() - start:.0f} s{end}", flush=True)
        return not wrong

    tried = given.names or names()
    with ThreadPoolExecutor(LANES) as lanes:
        try:
            outcomes = list(zip(tried, lanes.map(holds, tried), strict=True))
        except KeyboardInterrupt:
            lanes.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
    failed = [command_of(name, given.share, given.seed) for name, is_right in outcomes if not is_right]
    if failed:
        print("\nto repeat what failed:", *failed, sep="\n  ", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
