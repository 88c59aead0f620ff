"""What is nested in runs in memory: the finished parts of a step, and the runs of graphs within a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stategraph._values.ids import is_nested_id, outer_id, step_of
from stategraph._values.provenance import Part
from stategraph.errors import NotSerializableError
from stategraph.state import State
from stategraph.stores.memory import HeldRuns, as_kept, state_of

if TYPE_CHECKING:
    from stategraph.stores.memory import Kept


def parts_as_kept(run_id: str, parts: Sequence[Part]) -> dict[tuple[int, str, str], Kept]:
    """Return finished parts of a run as they are kept.

    Raises:
        NotSerializableError: the value of one cannot be kept exactly; the error names the part.
    """
    return {(part.step, part.node, part.label): _as_kept(part, run_id) for part in parts}


def _as_kept(part: Part, run_id: str) -> Kept:
    try:
        return as_kept(State({"value": part.value}))
    except NotSerializableError as error:
        from stategraph.stores._rows.nested import named_by_part  # imported when used: 20 ms

        raise named_by_part(error, [part], run_id) from error.__cause__


def load_parts(held: HeldRuns, run_id: str, step: int, node: str) -> dict[str, Any]:
    """Return the values of the parts that are kept of a step, by their labels."""
    run = held.runs.get(run_id)
    parts = {} if run is None else run.parts.copy()
    return {label: state_of(kept)["value"] for (at, of, label), kept in parts.items() if (at, of) == (step, node)}


def drop_parts(held: HeldRuns, run_id: str, step: int, *, newer_too: bool) -> None:
    """Forget the parts of all steps up to this one, and the nested runs within them."""
    run = held.runs.get(run_id)
    if run is not None:
        run.parts = {} if newer_too else {key: part for key, part in run.parts.items() if key[0] > step}
        drop_nested(held, run_id, up_to=step)


def register(held: HeldRuns, run_id: str) -> None:
    """Add a nested run, and all that it is nested in, to what is nested in others."""
    while is_nested_id(run_id):
        held.nested.setdefault(outer_id(run_id), set()).add(run_id)
        run_id = outer_id(run_id)


def drop_nested(held: HeldRuns, run_id: str, up_to: int | None = None) -> None:
    """Forget the runs that are nested in steps of a run, in all of them or up to one."""
    for nested_id in held.nested.pop(run_id, set()):
        if up_to is not None and step_of(nested_id) > up_to:
            held.nested.setdefault(run_id, set()).add(nested_id)
            continue
        held.runs.pop(nested_id, None)
        drop_nested(held, nested_id)
