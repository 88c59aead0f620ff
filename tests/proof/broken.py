"""A stand-in for a proof; its seed chooses how it goes wrong."""

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
