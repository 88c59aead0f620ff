"""What a run asks of a store that has to do with parts of a step. As in `RunIO`, these functions go into commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stategraph._engine.io import RunIO
from stategraph._owners.holds import on_behalf_of
from stategraph._text.shown import describe_exception
from stategraph._util.callables import failures
from stategraph._values.progress import KeptParts, Part
from stategraph.errors import CheckpointError
from stategraph.state import State


def save_parts(about: tuple[RunIO, State, Sequence[Part]]) -> None:
    """Save finished parts of the step after a State; raises a CheckpointError if that fails."""
    services, state, parts = about
    try:
        with on_behalf_of(services.hold):
            services.store.save_parts(state.run_id, parts)
    except failures() as error:
        raise services.unsaved(state, error)  # noqa: B904 - sets the cause itself
    if services.heeds_cancel and services.is_cancelled:
        services.stop_if_cancelled(state)


def load_parts(about: tuple[RunIO, str, int, str]) -> KeptParts:
    """Return the parts of a step of a run that were saved."""
    services, run_id, step, node = about
    ask = services.store.load_parts
    parts: KeptParts = _answer(services, run_id, "load its parts", lambda: ask(run_id, step, node))
    return parts


def drop_parts(about: tuple[RunIO, str, int, bool]) -> None:
    """Forget the parts of a run that a State of this step has joined; if the last is true, newer ones as well."""
    services, run_id, step, newer_too = about
    ask = services.store.drop_parts
    _answer(services, run_id, "drop its parts", lambda: ask(run_id, step, newer_too=newer_too))


def _answer(services: RunIO, run_id: str, what: str, ask: Callable[[], Any]) -> Any:
    """Return what the store answers; raise a CheckpointError if it fails."""
    try:
        with on_behalf_of(services.hold):
            return ask()
    except CheckpointError:
        raise
    except failures() as error:
        reason = f"the {services.store} could not {what}: {describe_exception(error)}"
        raise CheckpointError(run_id, reason) from error
