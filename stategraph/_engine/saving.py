"""Load a run and save it, outside the hot loop; and look at its inbox."""

from __future__ import annotations

from stategraph._engine.context import RunContext, emit
from stategraph._protocol import Amend, Assist, Command, Flush, Load, Parts, Save, Task
from stategraph._values import clock
from stategraph._values.entries import Entry
from stategraph._values.events import EventType
from stategraph._values.progress import evolved
from stategraph._values.provenance import RunStatus
from stategraph.state import State, evolve, taken_of, turns_of


def newest_of(run: RunContext, run_id: str) -> Task[State | None]:
    """Return the newest saved State of the run, None if there is none."""
    saved: State | None = (yield (Load, run.session.find, run_id)) if run.plan.saves else None
    return saved


def check_not_of_another(run: RunContext, newest: State | None) -> None:
    """Raise GraphMismatchError if a run belongs to another graph and is not complete."""
    if newest is None or newest.graph is None or newest.graph in run.plan.names or newest.status is RunStatus.COMPLETED:
        return
    way_out = "Resume it with that graph, or execute the State under a run_id of its own (store.fork makes a copy)."
    from stategraph._graph.changed import other_graph  # imported when used

    raise other_graph(run.plan, newest, way_out)


def save(run: RunContext, state: State) -> Task[State]:
    """Save a State outside the hot loop, durably, and report it; return it."""
    yield from _write(run, (Save, run.session.save, state), state)
    yield from flush(run, state)
    return state


def save_at_node(run: RunContext, state: State) -> Task[None]:
    """Save the State after a node in the transaction in which it has written to its own tables, and report it."""
    began = clock.monotonic_ns()
    yield (Assist, run.session.save_at_node, state)  # not in line with saves of other runs, which wait for this one
    run.saved = state
    yield from emit(run, EventType.CHECKPOINT_SAVE, state, began)


def amend(run: RunContext, state: State) -> Task[State]:
    """Replace the newest saved State, durably, and report it; return the new one."""
    yield from _write(run, (Amend, run.session.amend, state), state)
    return state


def _write(run: RunContext, command: Command, state: State) -> Task[None]:
    if run.outer_step is not None:
        # The outer State first: an outer run that begins again must not find this nested run.
        yield from run.outer_step.save_input(at_last=True)
    began = clock.monotonic_ns()
    yield command
    run.saved = state
    yield from emit(run, EventType.CHECKPOINT_SAVE, state, began)


def save_with_next(run: RunContext, state: State) -> None:
    """Save a State, unless it is saved, together with the next one, so that the history includes it."""
    if state is not run.saved and state is not run.found:
        run.session.save_with_next(state)


def flush(run: RunContext, state: State) -> Task[None]:
    """Wait until all saves are durable, if saves are queued."""
    if run.plan.write_behind:
        yield (Flush, run.session.flush, state)


def drop_joined_parts(run: RunContext, state: State) -> Task[None]:
    """Delete the saved parts whose results are in a saved State, once no earlier step still needs its parts."""
    if state.progress is not None and state.progress.kept_names and state.status is not RunStatus.COMPLETED:
        return
    run.has_joined_parts = False
    if run.session.store.keeps_parts:
        yield (Parts, run.session.drop_parts, (state.run_id, state.step, False))


# --------------------------------------------------------------------------- the inbox


def inbox_after(run: RunContext, state: State, number: int) -> Task[list[Entry]]:
    """Return the entries of the inbox after a number; none if the store keeps no entries."""
    ownership = run.session.ownership
    if ownership is None or run.outer_step is not None or not run.session.store.keeps_entries:
        return []
    entries: list[Entry] = yield (Load, run.session.unread, (state.run_id, number))
    ownership.inbox = max(ownership.inbox or 0, entries[-1].seq if entries else taken_of(state))
    return entries


def waiting_turns(run: RunContext, state: State) -> Task[list[Entry]]:
    """Return the turns in the inbox that have not begun, in order."""
    return (yield from _turns_and_taken(run, state))[0]


def _turns_and_taken(run: RunContext, state: State) -> Task[tuple[list[Entry], int]]:
    """Return the turns that wait, and the number up to which the State has taken in everything else."""
    turns, taken = turns_of(state), taken_of(state)
    entries = yield from inbox_after(run, state, min(turns, taken))
    waiting = [entry for entry in entries if entry.seq > turns and entry.kind == "turn"]
    if any(entry.seq > taken and entry.kind != "turn" for entry in entries):
        return waiting, taken
    return waiting, max(taken, run.session.inbox)  # others up to there, which are not found, were taken in


def due_if_turns_wait(run: RunContext, state: State) -> Task[State]:
    """Return the State of a run that ends. It is due at once if turns wait in its inbox, and not otherwise."""
    turns, taken = yield from _turns_and_taken(run, state)
    return evolve(state, progress=evolved(state.progress, due_ns=turns[0].at_ns if turns else 0, taken=taken))
