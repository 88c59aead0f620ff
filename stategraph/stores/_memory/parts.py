"""Finished parts of a step, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from stategraph._values.ids import generation_of, step_of
from stategraph._values.progress import KeptParts, Part
from stategraph.errors import NotSerializableError
from stategraph.state import State
from stategraph.stores._memory.encoded import provenance_of
from stategraph.stores._memory.held import HeldRun, HeldRuns, as_kept, state_of

if TYPE_CHECKING:
    from stategraph.stores._memory.held import Kept


def parts_as_kept(run_id: str, parts: Sequence[Part]) -> dict[tuple[int, str, str], Kept]:
    """Return finished parts of a run as they are kept.

    Raises:
        NotSerializableError: the value of one cannot be kept exactly; the error names the part.
    """
    return {(part.step, part.node, part.label): _as_kept(part, run_id) for part in parts}


def _as_kept(part: Part, run_id: str) -> Kept:
    try:
        return as_kept(State({"made_of": part.made_of, "value": part.value}))
    except NotSerializableError as error:
        from stategraph.stores._rows.nested import named_by_part  # imported when used: 20 ms

        raise named_by_part(error, [part], run_id) from error.__cause__


def load_parts(held: HeldRuns, run_id: str, step: int, node: str) -> KeptParts:
    """Return the parts that are kept of a step."""
    run = held.runs.get(run_id)
    parts = {} if run is None else run.parts.copy()
    found = ((label, state_of(kept)) for (at, of, label), kept in parts.items() if (at, of) == (step, node))
    return KeptParts({label: (kept["made_of"], kept["value"]) for label, kept in found})


def drop_parts(held: HeldRuns, run_id: str, step: int, *, newer_too: bool) -> None:
    """Forget the parts of all steps up to this one, and the nested runs within them."""
    run = held.runs.get(run_id)
    if run is not None:
        run.parts = {} if newer_too else {key: part for key, part in run.parts.items() if key[0] > step}
        held.drop_nested(run_id, up_to=step, is_told=partial(_is_told, run))


def _is_told(run: HeldRun, nested_id: str) -> bool:
    """Return whether a run that is nested directly in a run belongs to the story of that."""
    newest = provenance_of(run.kept[-1])
    is_past = step_of(nested_id) <= newest.step or generation_of(nested_id) != newest.generation
    return run.policy.keeps_all and is_past
