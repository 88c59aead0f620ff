"""How hypothesis looks for what a proof would be wrong about."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

from hypothesis import HealthCheck, Phase, settings


def searching(examples: int, **more: Any) -> settings:
    """Return settings with which so many examples are made, in any time, and the first failure is made smaller."""
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
    """Look once, from this seed; yield what is told of a failure, if there is one."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            looking()
    except Exception as error:  # noqa: BLE001 - whatever it is, the proof fails
        notes = "\n".join(getattr(error, "__notes__", ()))
        yield f"with seed {seed}: {traceback.format_exc(-3)}{notes}{printed.getvalue()}"
