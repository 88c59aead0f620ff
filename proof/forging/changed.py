"""What somebody has changed in a store, as its rows show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from proof.forging.scene import RUNS, Moment
from proof.forging.tables import Place, Rows, outermost, places


@attrs.frozen
class Changed:
    """What somebody has changed, as SQLite shows it.

    Attributes:
        touched: The runs with rows that are others than before.
        gone: Those of them whose heads are not there any more.
        lessened: Those with rows that are not there any more.
        planted: Runs that are new.
        added: How many rows are where there were none.
        is_general: Rows are others that belong to no run; or the schema, or the files themselves.
        hides: Rows may not be found although they are there.
        after: The rows then; None if SQLite cannot read them.
    """

    touched: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    lessened: frozenset[str] = frozenset()
    planted: frozenset[str] = frozenset()
    added: int = 0
    is_general: bool = False
    hides: bool = False
    after: Rows | None = attrs.field(factory=dict, repr=False)

    def touches(self, run: str) -> bool:
        """Return whether anything of a run is changed, or within it, or of the run that it is within."""
        tops = {outermost(one, RUNS) for one in self.touched}
        return self.is_general or outermost(run, RUNS) in tops

    def is_less(self, run: str) -> bool:
        """Return whether something of a run, or within it, may be missing."""
        top = outermost(run, RUNS)
        return self.hides or self.after is None or any(outermost(one, RUNS) == top for one in self.lessened | self.gone)


def compared(before: Rows, after: Rows | None, *, is_general: bool, hides: bool) -> Changed:
    """Return what is changed."""
    if after is None:
        return Changed(is_general=True, hides=True, after=None)
    old, new = _by_run(before), _by_run(after, before)
    touched = {run for run in old.keys() | new.keys() if run and old.get(run) != new.get(run)}
    heads, now = ({place.run for rows in found.values() for place in rows if place.is_head} for found in (old, new))
    lessened = {run for run in touched if {place for place in old.get(run, {}) if place not in new.get(run, {})}}
    of_all = {key for key, place in places(before).items() if not place.run}
    return Changed(
        frozenset(touched),
        frozenset(heads - now),
        frozenset(lessened),
        frozenset(now - heads),
        sum(len(new.get(run, {}).keys() - old.get(run, {}).keys()) for run in touched),
        is_general or any(after.get(key) != before[key] for key in of_all),
        hides,
        after,
    )


_RunRows: TypeAlias = dict[Place, Mapping[str, Any]]


def _by_run(rows: Rows, before: Rows | None = None) -> dict[str, _RunRows]:
    found: dict[str, _RunRows] = {}
    for key, place in places(rows, before).items():
        found.setdefault(place.run, {})[place] = rows[key]
    return found


class Past:
    """What the runs of a store once were.

    Args:
        moments: All of it; the last is as it is now.
    """

    def __init__(self, moments: Sequence[Moment]) -> None:
        self._begun = moments[-1].begun
        self._now = _by_run(moments[-1].rows)
        self._versions: dict[str, dict[str, tuple[dict[str, int], _RunRows]]] = {}
        for moment in moments:
            for run, rows in _by_run(moment.rows).items():
                top = outermost(run, RUNS)
                if any(place.is_head for place in rows):
                    version = f"{moment.begun.get(top)} {rows!r}"
                    self._versions.setdefault(run, {})[version] = moment.begun, rows

    def has(self, changed: Changed) -> bool:
        """Return whether each run that is changed is as it once was, head and rows together: no signature tells.

        What it had since may still be there: whoever can put back can take out as well.
        """
        if not changed.touched or changed.after is None:
            return False
        found = _by_run(changed.after)
        return all(self._was_once(run, found.get(run, {}), changed) for run in changed.touched)

    def _was_once(self, run: str, found: _RunRows, changed: Changed) -> bool:
        top = outermost(run, RUNS)
        # What is within a run is a part of it: what one had that was deleted is not of the one that was begun anew.
        is_any = top == run or top in changed.touched
        now = self._now.get(run, {})
        return any(
            rows.items() <= found.items()
            and all(found[place] == now.get(place) for place in found.keys() - rows.keys())
            for begun, rows in self._versions.get(run, {}).values()
            if is_any or begun.get(top) == self._begun.get(top)
        )
