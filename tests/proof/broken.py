"""Stands for a proof that goes wrong in every way, chosen by its seed."""

import os
import subprocess

from proof.report import Report

HOLDS, FAILS, RAISES, DIES, HANGS = range(5)


def prove(share, seed):
    """Go wrong; print the salt of hashes."""
    print("in here", hash("salt"), flush=True)
    if seed == RAISES:
        raise KeyError("broken")
    if seed == DIES:
        os.abort()
    if seed == HANGS:
        subprocess.run(["sleep", "1000"], check=False)  # it has our output, which ends only with it
    return [Report("it is broken", failures=["a failure"] if seed == FAILS else [])]
