"""Rules of all stores: checks of arguments, filters of runs, and the States of forks and rollbacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import attrs

from stategraph._progress import asking_again, gives_back, old_values, progress_of, waiting_again
from stategraph._text.shown import meant, shorten
from stategraph._util.validators import is_author, maps_texts
from stategraph._values import clock
from stategraph._values.entries import Entry
from stategraph._values.frozen import lay_over
from stategraph._values.ids import generation_of, given_id, is_nested_id, is_parts_id, step_of
from stategraph._values.progress import evolved
from stategraph._values.provenance import Kind, ParentStep, RunStatus, StatusName
from stategraph._values.spending import Spending
from stategraph.errors import AnswerError, ConfigError, RunCompleteError, UnknownNameError
from stategraph.state import State, data_of, evolve, recorded, taken_of, turns_of, with_data

if TYPE_CHECKING:
    from stategraph.stores.summaries import Summary

_LARGEST = 2**63 - 1
"""The largest number in a store."""

NO_END = "the save of the step commits context.connection, and an exception of the node rolls it back"
"""Why a node cannot end its transaction."""

_Row = TypeVar("_Row")


def check_flags(**options: object) -> None:
    """Raise ConfigError unless all options are true or false."""
    for name, value in options.items():
        if type(value) is not bool:
            raise ConfigError(f"checkpoint.options.{name}", value, "true or false")


def check_state(state: object, error: AttributeError) -> None:
    """Raise TypeError, chained to the error it caused, unless this is a State."""
    if not isinstance(state, State):
        raise TypeError(f"a store saves a State, not a {type(state).__name__}: State({{...}}) makes one") from error


def check_status(status: str | None) -> None:
    """Raise ValueError unless this is None or a status of runs."""
    if status is not None and status not in list(RunStatus):
        raise ValueError(f"status: {shorten(status)} is not allowed; use {', '.join(RunStatus)}")


def check_limit(limit: int) -> int:
    """Return the limit. Raise ValueError if it is invalid."""
    if type(limit) is not int or not 1 <= limit <= _LARGEST:
        raise ValueError(f"limit: {shorten(limit)} is not allowed; a whole number from 1 to {_LARGEST} is")
    return limit


def from_cursor(cursor: str | None) -> int | None:
    """Return the number of a cursor. Raise ValueError if it is invalid."""
    if cursor is None:
        return None
    is_number = isinstance(cursor, str) and cursor.isdecimal() and cursor.isascii()
    if is_number and len(cursor) <= len(str(_LARGEST)) and int(cursor) <= _LARGEST:
        return int(cursor)
    raise ValueError(f"after: {shorten(cursor)} is not allowed; the cursor of a summary is, from runs() of this store")


def row_cursor(place: object, time_ns: int) -> str:
    """Return the cursor of a checkpoint in the history of its run: its place, and when it was saved."""
    return f"{place}-{time_ns}"


def place_of(cursor: str) -> int:
    """Return the place in the cursor of a checkpoint. Raise ValueError if it is no cursor."""
    place, _, time_ns = cursor.partition("-") if isinstance(cursor, str) else ("", "", "")
    if place.isdecimal() and time_ns.removeprefix("-").isdecimal() and len(place) <= len(str(_LARGEST)):
        return int(place)
    raise ValueError(f"after: {shorten(cursor)} is not allowed; the cursor of a summary is, from history() of this run")


def later(rows: Sequence[_Row], after: str, cursor_of: Callable[[_Row], str | None]) -> Sequence[_Row]:
    """Return the checkpoints after the one with a cursor; if that is gone, those saved later, or else the newest."""
    place_of(after)
    is_later = True
    first = len(rows)
    for place in range(len(rows), 0, -1):
        cursor = cursor_of(rows[place - 1]) or ""
        if cursor == after:
            return rows[place:]
        is_later &= _time_in(cursor) > _time_in(after)
        first -= is_later
    return rows[first:] or rows[-1:]


def _time_in(cursor: str) -> int:
    return int(cursor.partition("-")[2] or 0)


def check_number(step: object, name: str = "step") -> None:
    """Raise ValueError unless this is the number of a step; `name` is the name of the argument."""
    if type(step) is not int or step < 0:
        raise ValueError(f"{name}: {shorten(step)} is not allowed; a non-negative integer is")


def check_unknown(unknown: object) -> None:
    """Raise ValueError unless ``unknown=`` is "opaque" or None."""
    if unknown not in (None, "opaque"):
        raise ValueError(f'unknown: {shorten(unknown)} is not allowed; "opaque" is, or None to be refused')


class ExtraFilters(TypedDict, total=False):
    """Further arguments of `runs`, besides status and graph; see `stategraph.stores.base.CheckpointStore.runs`."""

    prefix: str | None
    parent: str | None
    labels: Mapping[str, str] | None
    since: datetime | None
    owned: bool | None
    overdue: bool | None


class Filters(ExtraFilters, total=False):
    """All filtering arguments of `runs`."""

    status: StatusName | None
    graph: str | None


@attrs.frozen
class RunFilter:
    """A filter of runs. A run matches if it meets all given conditions.

    Attributes:
        status: The status of the run.
        graph: The graph that runs it.
        prefix: The beginning of its id.
        parent: The run that it was forked from or is nested in. Without it, nested runs never match.
        labels: Labels that it must have; it may have others.
        since: The earliest time at which it began.
        owned: Whether it has an owner.
        owned_ids: The runs that have an owner, if the store has looked up all of them at once.
        overdue: Whether its time to go on by itself has passed.
        now_ns: The present time.
    """

    status: str | None = None
    graph: str | None = None
    prefix: str | None = None
    parent: str | None = None
    labels: Mapping[str, str] | None = None
    since: datetime | None = None
    owned: bool | None = None
    owned_ids: Collection[str] | None = None
    overdue: bool | None = None
    now_ns: int = 0

    def __attrs_post_init__(self) -> None:
        check_status(self.status)
        if self.since is not None and (not isinstance(self.since, datetime) or self.since.tzinfo is None):
            raise ValueError(f"since: {shorten(self.since)} is not allowed; a datetime with a time zone is")
        if self.labels is not None and not maps_texts(self.labels):
            raise ValueError(f"labels: {shorten(self.labels)} are not allowed; a mapping of str to str is")
        wrong = [name for name in ("graph", "prefix", "parent") if not isinstance(getattr(self, name), str | None)]
        if wrong:
            raise ValueError(f"{wrong[0]}: {shorten(getattr(self, wrong[0]))} is not allowed; a str is")
        for name in ("owned", "overdue"):
            if getattr(self, name) not in (None, True, False):
                raise ValueError(f"{name}: {shorten(getattr(self, name))} is not allowed; True, False or None is")

    @property
    def since_ns(self) -> int | None:
        """`since` in nanoseconds since 1970, limited to the range of a database: the years 1677 to 2262."""
        return None if self.since is None else min(max(clock.to_ns(self.since), -_LARGEST), _LARGEST)

    @property
    def is_narrow(self) -> bool:
        """Whether a run with the right status, graph and parent may still not match."""
        return (self.prefix, self.labels, self.since, self.owned, self.parent) != (None,) * 5

    def takes(self, run: Any, owner_of: Callable[[str], object]) -> bool:
        """Return whether a run, a Summary or a record, matches; `owner_of` is called last, and only if it matters."""
        is_right = (
            self.takes_id(run.run_id)
            and self.status in (None, run.status)
            and self.graph in (None, run.graph)
            and (self.parent is None or (run.parent is not None and run.parent.run_id == self.parent))
            and (self.labels is None or self.labels.items() <= dict(run.labels).items())
            and (self.since is None or (run.created or run.timestamp) >= self.since)
            and (self.overdue is None or self.overdue is (run.due is not None and clock.to_ns(run.due) <= self.now_ns))
        )
        return is_right and (self.owned is None or self._is_owned(run.run_id, owner_of) is self.owned)

    def _is_owned(self, run_id: str, owner_of: Callable[[str], object]) -> bool:
        return owner_of(run_id) is not None if self.owned_ids is None else given_id(run_id) in self.owned_ids

    @property
    def only_ids(self) -> Collection[str] | None:
        """The ids that all matching runs are among, if known."""
        return self.owned_ids if self.owned and self.parent is None else None

    def takes_id(self, run_id: str) -> bool:
        """Return whether the id of a run allows it to match."""
        if is_nested_id(run_id) and (self.parent is None or is_parts_id(run_id)):
            return False
        return self.prefix is None or run_id.startswith(self.prefix)


def check_numbers(step: object = None, revision: object = None) -> None:
    """Raise ValueError unless these are numbers of a step and of a revision, or None."""
    for name, number in (("step", step), ("revision", revision)):
        if number is not None:
            check_number(number, name)


def filtered(which: Filters) -> RunFilter:
    """Return a filter of runs. Raise TypeError for an argument that `runs` does not have."""
    names = Filters.__annotations__
    for name in which.keys() - names.keys():
        hint = meant(name, names) or f"it takes {', '.join(names)}"
        raise TypeError(f"runs() got an unexpected keyword argument {name!r}; {hint}")
    return RunFilter(**which, now_ns=0 if which.get("overdue") is None else clock.now_ns())


# --------------------------------------------------------------------------- forks and rollbacks


def forked_from(source: State, new_run_id: str) -> State:
    """Return the newest State of a run that is forked from `source`."""
    is_over = source.status is RunStatus.COMPLETED
    # The copy of a paused run pauses at the same place, or continues from there.
    copy = asking_again(source) if source.pause is None else waiting_again(source, source.pause)
    return evolve(
        copy,
        facts=None,
        _took_ns=None,
        run_id=new_run_id,
        status=source.status if is_over else RunStatus.ACTIVE,
        error=None,
        parent=ParentStep(source.run_id, source.step),
        # Its inbox is empty, and numbers its entries after all that the source has taken in or begun.
        progress=evolved(copy.progress, taken=max(taken_of(copy), turns_of(copy))),
    )


def check_author(by: object) -> None:
    """Raise TypeError unless this is the name of a caller, or None."""
    if not is_author(by):
        raise TypeError(f"by is a str that says who, without lone surrogates, not {shorten(by)}")


def check_taken(entries: Iterable[Entry], run: Summary | State) -> None:
    """Raise an error if the inbox of a run takes one of some new entries no more.

    Raises:
        RunCompleteError: The run is complete, and takes turns only.
        AnswerError: It does not wait at the pause that an answer is for.
    """
    given = [entry for entry in entries if entry.kind != "turn"]
    if given and run.status is RunStatus.COMPLETED:
        raise RunCompleteError(run.run_id, run.checkpoint_node)
    waiting = [each.id for each in run.pause.each] if run.pause and run.status is RunStatus.PAUSED else []
    if any(entry.kind == "answer" and entry.place and entry.place not in waiting for entry in given):
        raise AnswerError(run.run_id, None, f"the run does not wait at the given pause: it is {run.status}")


def steps_under_way(state: State) -> set[int]:
    """Return the steps whose journals and nested runs a run at this State may still need."""
    kept = state.progress.kept_names.values() if state.progress else ()
    return {state.step + 1, *(step for step, _ in kept if step)}


def begins_again(newest: State, state: State) -> bool:
    """Return whether a State that replaces the newest one gives the run other input. What the step under way has done,
    but not what it has spent, was for the input before, and goes in the same commit."""
    return state.kind is Kind.INPUT and newest.status is not RunStatus.COMPLETED


def keeps_nested(source: State) -> bool:
    """Return whether a fork keeps the nested runs of the next step: not if they used answers that the fork takes
    back."""
    return source.pause is not None or not gives_back(source)


def updated(saved: State, updates: Mapping[str, Any], remove: Collection[str], by: str | None) -> State:
    """Return the newest State of a run with changed data. Raises the errors of `CheckpointStore.update`."""
    if saved.status is RunStatus.COMPLETED:
        raise RunCompleteError(saved.run_id, saved.checkpoint_node)
    for pause in saved.pause.each if saved.pause else ():
        if pause.response_param in updates:
            problem = f"an update is no answer; answer({saved.run_id!r}, value) gives one"
            raise AnswerError(saved.run_id, pause, problem)
    before, progress = data_of(saved), progress_of(saved)
    for key in remove:
        if key not in before:
            raise UnknownNameError("key", key, before)
    if lost := sorted(progress.origins.keys() & updates.keys()):
        raise ValueError(f"the run does not save {shorten(lost[0])}: give it to resume")
    after = lay_over({key: value for key, value in before.items() if key not in remove}, updates)
    changed = frozenset((*updates, *remove))
    progress_after = progress.changed(
        answered=progress.answered - changed,
        replaced={**old_values(None, before, after), **progress.replaced},
        origins={key: origin.without(changed) for key, origin in progress.origins.items()},
    )
    return recorded(with_data(saved, after), Kind.UPDATE, by, progress=progress_after)


def rolled_back(state: State, newest: State, by: str | None = None, entries: Iterable[Entry] = ()) -> State:
    """Return the State of a run after a rollback from its newest State to `state`. If that waited for an answer, it
    pauses again, with a new pause. What the run has spent stays spent, also in the step under way, by its entries."""
    check_author(by)
    back = asking_again(state)
    back = back if back.pause is None else waiting_again(back, back.pause)
    spending = Spending()
    spending.begin(newest.progress.spent if newest.progress else {}, entries)
    # A message is taken in once, and a turn begins once, whatever becomes of the step, and what is spent is spent.
    progress = evolved(back.progress, taken=taken_of(newest), turns=turns_of(newest), spent=spending.counted())
    progress = evolved(progress, redacted=progress_of(back).redacted | progress_of(newest).redacted)
    about = {"generation": newest.generation + 1, "parent": newest.parent, "progress": progress}
    return recorded(back, Kind.ROLLBACK, by, **about)


def is_in_story(nested_id: str, step: int, generation: int) -> bool:
    """Return whether a directly nested run belongs to steps that its outer run, now at this step, has made."""
    return step_of(nested_id) <= step or generation_of(nested_id) != generation
