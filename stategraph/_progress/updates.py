"""Updates of a resume that nested runs have not been given yet."""

from __future__ import annotations

from stategraph.state import State, data_of, with_data


def before_updates(state: State) -> State | None:
    """Return the State without them; None if there are none."""
    replaced = state.progress.replaced if state.progress else None
    if not replaced:
        return None
    data = {key: value for key, value in data_of(state).items() if key not in replaced}
    return with_data(state, {**data, **{key: old[0] for key, old in replaced.items() if old}})
