"""Stores as people see them: with the values that their option ``redact=`` shows, on the page and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any, TypeVar

import attrs

from stategraph._progress import state_as, value_as
from stategraph._util.callables import problem_of
from stategraph.errors import CheckpointError, ConfigError, FormatError
from stategraph.state import State, data_of
from stategraph.stores.base import CheckpointStore
from stategraph.stores.summaries import Difference, Summary, UnderWay

_Store = TypeVar("_Store")


def shown_by(redact: Any) -> Callable[[str, Any], Any] | None:
    """Return the function of the option ``redact=``, which may be a name such as "app.privacy:shown".

    What it raises is shown in place of the value, as "<email, not shown: redact raised TypeError>".

    Raises:
        ConfigError: it is no function of a key and a value.
    """
    try:
        function = resolve_name(redact) if isinstance(redact, str) else redact
        problem = "" if function is None else problem_of(function, 2)
    except (ImportError, AttributeError, ValueError) as error:
        problem = str(error)
    if problem:
        allowed = f"a function of a key and its value, or the name of one, as in 'module:function': {problem}"
        raise ConfigError("checkpoint.options.redact", redact, allowed)

    def shown(key: str, value: Any) -> Any:
        try:
            return function(key, value)
        except Exception as error:  # noqa: BLE001 - neither the value nor the error of users' code may be seen
            return f"<{key}, not shown: redact raised {type(error).__name__}>"

    return None if function is None else shown


def as_seen(store: _Store, shown: Callable[[str, Any], Any] | None = None) -> _Store:
    """Return a store as people see it, to be read; by default with the function of its own option ``redact=``."""
    inner: Any = store
    shown = shown or inner.shown
    seen: Any = store if shown is None else SeenStore(inner, shown)
    return seen  # type: ignore[no-any-return]


class SeenStore:
    """What people see of a store. Methods that are not here are those of the store itself."""

    shown: None = None  # it is applied already

    def __init__(self, store: CheckpointStore, shown: Callable[[str, Any], Any]) -> None:
        self._store, self._shown = store, shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __str__(self) -> str:
        return str(self._store)

    def load(self, run_id: str, *which: Any, **how: Any) -> State:
        """Return a State, as `CheckpointStore.load`."""
        return state_as(self._store.load(run_id, *which, **how), self._shown)

    def history(self, run_id: str, **how: Any) -> list[Summary]:
        """Return the checkpoints of a run, as `CheckpointStore.history`."""
        return [*map(self._row, self._store.history(run_id, **how))]

    def runs(self, *which: Any, **filters: Any) -> list[Summary]:
        """Return runs, as `CheckpointStore.runs`."""
        return [*map(self._row, self._store.runs(*which, **filters))]

    def iter_runs(self, **filters: Any) -> Iterator[Summary]:
        """Yield runs, as `CheckpointStore.iter_runs`."""
        return map(self._row, self._store.iter_runs(**filters))

    def diff(self, *steps: Any, **how: Any) -> Difference:
        """Compare two steps, as `CheckpointStore.diff`."""
        return CheckpointStore.diff(self, *steps, **how)  # type: ignore[arg-type]  # it calls nothing but `load`

    def under_way(self, run_id: str) -> UnderWay:
        """Return the step under way, as `CheckpointStore.under_way`."""
        return self._under_way(self._store.under_way(run_id), data_of(self._store.load(run_id)))

    def _under_way(self, found: UnderWay, data: dict[str, Any]) -> UnderWay:
        statuses = {place: value_as(text, data, self._shown) for place, text in found.statuses.items()}
        nested = {name: self._under_way(each, data) for name, each in found.nested.items()}
        return attrs.evolve(found, statuses=statuses, nested=nested)

    def _row(self, row: Summary) -> Summary:
        if row.pause is None and row.error is None:
            return row
        try:
            seen = self.load(row.run_id, row.step, row.revision)
        except (CheckpointError, FormatError):  # it is damaged, or gone: what it quotes is not known
            return attrs.evolve(row, error=None, pause=None)
        return attrs.evolve(row, error=seen.error, pause=seen.pause)
