"""A share of every proof; ``make proof`` runs them at full length."""

import pytest

from proof.__main__ import names, run

pytestmark = pytest.mark.unmeasured

SHARE = 0.02


@pytest.mark.parametrize("name", names())
def test_the_proof_holds(name, request):
    """Nothing happens that the store promises will not happen."""
    seed = request.config.getoption("randomly_seed", default=1)
    for report in run(name, SHARE, seed if isinstance(seed, int) else 1):
        print(report)
        assert report.holds, str(report)
