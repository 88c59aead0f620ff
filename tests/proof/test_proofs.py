"""A share of the proofs; ``make proof`` runs all of them, and at full length."""

import pytest

from proof.__main__ import names
from proof.runner import command_of, run

pytestmark = pytest.mark.unmeasured

SHARE = 0.002
LONGEST = 800
"""Seconds: one that fails may look for a shorter way to fail for minutes."""
LONG = {
    *("damage", "dbos_kills", "ownership", "processes", "races", "servers", "stories"),
}
"""Proofs that take seconds, however small their share is."""


@pytest.mark.timeout(LONGEST + 100)
@pytest.mark.parametrize("name", [name for name in names() if name not in LONG])
def test_the_proof_holds(name, request):
    """Nothing happens that the store promises will not happen."""
    seed = request.config.getoption("randomly_seed", default=1)
    seed = seed if isinstance(seed, int) else 1

    wrong = run(name, SHARE, seed, LONGEST)

    assert not wrong, f"{name} {wrong}; to repeat it: {command_of(name, SHARE, seed)}"
