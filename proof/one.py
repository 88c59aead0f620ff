"""The process of one proof: ``python -m proof.one NAME SHARE SEED``."""

from __future__ import annotations

import importlib
import sys

from proof.report import Report


def main(name: str, share: float, seed: int) -> int:
    """Run one proof at a share of its full length and print its reports; return 1 if it fails."""
    module = importlib.import_module(name if "." in name else f"proof.{name}")
    reports: list[Report] = module.prove(share, seed)
    for report in reports:
        print(report, flush=True)
    return int(not all(report.holds for report in reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
