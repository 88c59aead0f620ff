"""Changes: what can be done with a run on its page, each by one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from stategraph._values.provenance import RunStatus
from stategraph.cli._exits import Exit, Failure
from stategraph.graph import StateGraph
from stategraph.stores.summaries import Summary
from stategraph.web._forms import form_of


@attrs.frozen
class Change:
    """What is to be done.

    Attributes:
        what: What it is, for people.
        leads_to: The run that is shown afterwards.
        function: Does it.
    """

    what: str
    leads_to: str
    function: Callable[[], Any]


Make: TypeAlias = Callable[[StateGraph, Summary, Mapping[str, str]], Change]


def _answer(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> Change:
    asked, updates = given.get("pause", ""), None
    if not asked:
        raise Failure(Exit.USAGE, "the form names no pause")
    pause = next((pause for pause in (run.pause.each if run.pause else ()) if pause.id == asked), None)
    if pause is not None and pause.response_param is not None:
        updates = {pause.response_param: form_of(graph, pause.node, pause.response_param).answer(given)}
    how: dict[str, Any] = {"by": _by(given)}
    if updates is None or run.status != RunStatus.CANCELLED:
        how["pause"] = asked  # that of another pause is refused, with what came of the one that was meant
    return Change("To answer", run.run_id, lambda: graph.resume(run.run_id, updates, **how))


def _resume(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> Change:
    return Change("To resume", run.run_id, lambda: graph.resume(run.run_id, by=_by(given)))


def _cancel(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> Change:
    return Change("To cancel", run.run_id, lambda: graph.cancel(run.run_id, by=_by(given)))


def _fork(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> Change:
    new, (step, revision) = given.get("new", "").strip(), _at(given)
    return Change("To fork", new, lambda: graph.store.fork(run.run_id, new, step, revision))


def _rollback(graph: StateGraph, run: Summary, given: Mapping[str, str]) -> Change:
    step, revision = _at(given)
    return Change("To roll back", run.run_id, lambda: graph.store.rollback(run.run_id, step, revision, by=_by(given)))


CHANGES: dict[str, Make] = {
    "answer": _answer,
    "resume": _resume,
    "cancel": _cancel,
    "fork": _fork,
    "rollback": _rollback,
}
"""By the names that forms have for them."""


def _by(given: Mapping[str, str]) -> str | None:
    return given.get("by", "").strip() or None


def _at(given: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the step and the revision that a form is about."""
    step, revision = given.get("step", ""), given.get("revision", "")
    if not (step.isdecimal() and step.isascii() and revision.isdecimal() and revision.isascii()):
        raise Failure(Exit.USAGE, "the form names no step")
    return int(step), int(revision) or None
