"""The runner reports each proof that fails, crashes or hangs with the command that repeats it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.broken import DIES, FAILS, HANGS, RAISES

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).parents[2]
BROKEN = "tests.proof.broken"


def proofs(*arguments):
    """Run ``python -m proof``; return its status and what it printed."""
    command = [sys.executable, "-m", "proof", *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def repeats(printed):
    """Return the commands that repeat what failed."""
    return [line.strip() for line in printed.partition("to repeat what failed:\n")[2].splitlines()]


@pytest.mark.parametrize(
    ("seed", "said"),
    [(FAILS, "a failure"), (RAISES, "KeyError: 'broken'"), (DIES, "and was ended by SIGABRT"), (HANGS, "and hangs")],
)
def test_the_report_of_a_failure_ends_with_the_command_that_repeats_it(seed, said):
    """The short command stands at the end of the output."""
    longest = 3 if seed == HANGS else 60
    status, printed, errors = proofs("--seed", seed, "--share", 0.5, "--longest", longest, BROKEN)

    assert status == 1
    assert said in printed + errors
    (command,) = repeats(printed)
    assert command.endswith(f"-m proof --seed {seed} --share 0.5 {BROKEN}")
