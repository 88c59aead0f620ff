"""``python -m proof [--share 0.1] [--seed 1] [NAME ...]``: run the proofs and print what they tried and found."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time

import proof
from proof.report import Report

_HELPERS = {"report", "__main__"}


def names() -> list[str]:
    """-> the modules that are proofs: those with a function ``prove(share, seed)``."""
    found = [module.name for module in pkgutil.iter_modules(proof.__path__) if module.name not in _HELPERS]
    return [name for name in found if hasattr(importlib.import_module(f"proof.{name}"), "prove")]


def run(name: str, share: float, seed: int) -> list[Report]:
    """Run one proof at a share of its full length -> its reports."""
    reports: list[Report] = importlib.import_module(f"proof.{name}").prove(share, seed)
    return reports


def main() -> int:
    """Run the proofs that the command line names, or all -> 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m proof")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a proof; all of them if none is named")
    parser.add_argument("--share", type=float, default=1.0, help="share of the full length, such as 0.1")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what random choices begin with")
    given = parser.parse_args()
    print(f"seed {given.seed}, share {given.share}")
    holds = True
    for name in given.names or names():
        start = time.monotonic()
        for report in run(name, given.share, given.seed):
            print(report, flush=True)
            holds = holds and report.holds
        print(f"         {name} took {time.monotonic() - start:.0f} s", flush=True)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
