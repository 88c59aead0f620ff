"""Hypothesis, as proofs use it to look for counterexamples."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

from hypothesis import HealthCheck, Phase, settings


def searching(examples: int, **more: Any) -> settings:
    """Return settings that try a number of examples without a deadline, and shrink the first failure."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        **more,
    )


def failures_of(looking: Callable[[], object], seed: int) -> Iterator[str]:
    """Search once with a seed; yield the failure, if there is one."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            looking()
    except Exception as error:  # noqa: BLE001 - any error fails the proof
        notes = "\n".join(getattr(error, "__notes__", ()))
        yield f"with seed {seed}: {traceback.format_exc(-3)}{notes}{printed.getvalue()}"
