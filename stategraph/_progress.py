"""What a State carries for a resume beside its data: answers to pauses, origins of unsaved keys, and reads.

For every unsaved key, `Progress.origins` records the node and step that wrote it, and the keys the node had read. A
value can be recomputed while all its sources are unchanged: once a source is overwritten or removed,
`Origin.overwritten` names it. Resuming a run needs no more than this, and the record changes only in steps that concern
an unsaved key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial, wraps
from itertools import takewhile
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._values import clock
from stategraph._values.frozen import atoms, changed_items, freeze_items
from stategraph._values.progress import NO_PROGRESS, Given, Origin, Pause, Progress, evolved
from stategraph._values.provenance import RunStatus
from stategraph._values.registered_types import find_by_class
from stategraph._values.sameness import differing_items
from stategraph.state import State, data_of, evolve, with_data

# --------------------------------------------------------------------------- answers to pauses, and their withdrawal


def progress_of(state: State) -> Progress:
    """Return the progress of a State; an empty one if it has none."""
    return state.progress or NO_PROGRESS


def awaited(state: State) -> Pause | None:
    """Return the pause at which a State waits; None if it does not wait.

    After a resume in which no node has completed yet, it is the answered pause.
    """
    progress = progress_of(state)
    is_answered = state.pause is None and progress.woken is not None and progress.answer
    return progress.woken if is_answered else state.pause


def awake(paused: State, pause: Pause, given: Given | None = None) -> State:
    """Return a paused State prepared to continue at its paused node; the answer can be added next."""
    progress, key = progress_of(paused), pause.key_of_data
    answer = dict(progress.answer)
    if key is not None:
        # The newest answer last; for a key answered twice, keep the value from before the step.
        answer[key] = answer.pop(key, (paused[key],) if key in paused else ())
    woken, answered = attrs.evolve(pause, value=None, others=()), progress.answered - {key}
    changed = progress.changed(next_node=pause.node, woken=woken, answer=answer, answered=answered, given=given)
    return evolve(paused, status=RunStatus.ACTIVE, pause=None, progress=changed)


def waiting_again(paused: State, pause: Pause) -> State:
    """Return a paused State that waits again, without an answer yet.

    If it waits at several pauses, or for the outcome of an effect, it pauses first: no answer applies to them.
    """
    asks_first = pause.others or pause.effect
    pause = attrs.evolve(pause, id="", response_param=None, effect=()) if asks_first else pause
    state, key = awake(paused, pause), pause.response_param
    if key is None:
        return state
    progress = progress_of(state)
    return evolve(state, progress=progress.changed(answered=progress.answered | {key}))


def gives_back(state: State) -> bool:
    """Return whether a State holds answers that are withdrawn when a run returns to it."""
    return bool(progress_of(state).answer)


def asking_again(state: State) -> State:
    """Return the State for a run that returns to it, without the answers given there: it pauses again."""
    progress = progress_of(state)
    if not progress.answer:
        return state
    if state.pause is not None:  # for a further answer: the step begins again
        state = evolve(state, status=RunStatus.ACTIVE, pause=None)
    answered = progress.answered | progress.answer.keys()
    return evolve(without_answers(state), progress=progress.changed(answered=answered, given=None))


def without_answers(state: State) -> State:
    """Return the State with its data from before the answers of the current step."""
    answer = progress_of(state).answer
    return _with_old_values(state, answer) if answer else state


def is_overdue(pause: Pause, at: datetime | None = None) -> bool:
    """Return whether the deadline of a pause had passed at a time; by default, now."""
    return pause.deadline is not None and (at or clock.to_datetime(clock.now_ns())) > pause.deadline


def is_late(state: State) -> bool:
    """Return whether the deadline of the run has passed before it was complete."""
    deadline_ns = state.progress.deadline_ns if state.progress else 0
    return 0 < deadline_ns <= clock.now_ns() and state.status is not RunStatus.COMPLETED


def before_updates(state: State) -> State | None:
    """Return the State without the changes that nested runs have not received; None if there are none."""
    progress = progress_of(state)
    olds = {**progress.replaced, **progress.overtaken}
    return _with_old_values(state, olds) if olds else None


def as_begun(state: State) -> State:
    """Return the State with the data with which the step began, except for updates: without its answers, and without
    what nodes have written that a changed graph has put before."""
    progress = progress_of(state)
    olds = {key: old for key, old in progress.overtaken.items() if key not in progress.replaced}
    return _with_old_values(without_answers(state), olds) if olds else without_answers(state)


def old_values(
    persist: AbstractSet[str] | None, before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, tuple[Any, ...]]:
    """Return the old values of keys that differ, as in `Progress.replaced`; `persist` names the only saved keys."""
    saved = before if persist is None else {key: value for key, value in before.items() if key in persist}
    changed = differing_items(before, after).keys() | (before.keys() - after.keys())
    return {key: (saved[key],) if key in saved else () for key in sorted(changed)}


def _with_old_values(state: State, olds: Mapping[str, tuple[Any, ...]]) -> State:
    """Return the State with the earlier values of some keys, given as tuples; an empty tuple removes the key."""
    data = {key: olds.get(key, (value,)) for key, value in data_of(state).items()}  # in the order of the State
    data |= {key: olds[key] for key in sorted(olds.keys() - data.keys())}
    return with_data(state, {key: old[0] for key, old in data.items() if old})


# --------------------------------------------------------------------------- the origins of unsaved keys

GIVEN = ""
"""In place of the node that wrote a key: the value came with the input or an update, or the engine wrote it."""


class AllBut(AbstractSet[str]):
    """All keys except some, as an infinite set: it supports ``in``, ``&`` and ``-``.

    Args:
        keys: The excluded keys.
    """

    def __init__(self, keys: frozenset[str]) -> None:
        self.keys = keys

    def __contains__(self, key: object) -> bool:
        return key not in self.keys

    def __rand__(self, others: AbstractSet[str]) -> frozenset[str]:
        return frozenset(others) - self.keys

    def __rsub__(self, others: AbstractSet[str]) -> frozenset[str]:
        return frozenset(others) & self.keys

    def __iter__(self) -> Iterator[str]:
        raise TypeError("these keys have no end")

    def __len__(self) -> int:
        return sys.maxsize


def persisted(state: State, keys: AbstractSet[str] | None) -> State:
    """Return the State that is saved: only these keys, or all of them if `keys` is None.

    The pause and the chunks are without the values of all others.
    """
    if keys is None:
        return state
    hide = partial(without_values, data=data_of(state), shown=unsaved_as(keys))
    changes: dict[str, Any] = {} if state.pause is None else {"pause": pause_as(state.pause, hide)}
    if state.partial is not None:
        shown = attrs.evolve(state.partial, chunks=hide([*state.partial.chunks]))
        changes["progress"] = progress_of(state).changed(partial=shown)
    saved = with_data(state, {key: value for key, value in data_of(state).items() if key in keys})
    return evolve(saved, **changes) if changes else saved


def pause_as(pause: Pause, shown: Callable[[Any], Any]) -> Pause:
    """Return a pause with its reason and its value as a function shows them."""
    others = tuple(pause_as(other, shown) for other in pause.others)
    return attrs.evolve(pause, reason=shown(pause.reason), value=shown(pause.value), others=others)


_ENOUGH = 16  # characters: a text that begins so counts as the value, which may have been cut
_FEW = 4  # characters: shorter values are in any text by chance
_MOST = 10_000  # parts of a value, which may be very large


def unsaved_as(persist: AbstractSet[str]) -> Callable[[str, Any], Any]:
    """Return a function that shows a value as a mark if its key is not saved."""
    return lambda key, value: value if key in persist else f"<{key}, not saved>"


def without_values(value: Any, data: Mapping[str, Any], shown: Callable[[str, Any], Any]) -> Any:
    """Return a value without the values of keys that a function shows as another, and without the texts and numbers in
    them."""
    for key, secret in data.items():
        instead = shown(key, secret)
        if instead is not secret:
            value = blanked(value, [*texts_in(secret)], str(instead))
    return value


def value_as(value: Any, data: Mapping[str, Any], shown: Callable[[str, Any], Any]) -> Any:
    """Return what a function shows of a value beside the data: of a dict, what it shows of each key."""
    if isinstance(value, dict):
        value = {key: shown(key, part) for key, part in value.items()}
    return without_values(value, data, shown)


def state_as(state: State, shown: Callable[[str, Any], Any]) -> State:
    """Return a State as a function shows it."""
    data, error, pause = data_of(state), state.error, state.pause
    see = partial(value_as, data=data, shown=shown)
    changes = {
        "error": error and attrs.evolve(error, message=see(error.message)),
        "pause": pause and pause_as(pause, see),
    }
    return evolve(with_data(state, freeze_items({key: shown(key, value) for key, value in data.items()})), **changes)


def blanked(value: Any, texts: Collection[str], mark: str) -> Any:
    """Return a value with a mark wherever it holds one of some texts, or the beginning of a long one."""
    if isinstance(value, str):
        for text in sorted(texts, key=len, reverse=True):  # a part of another one would leave the rest of that
            value = _without(value, text, mark)
        return value
    if isinstance(value, dict):
        return {blanked(key, texts, mark): blanked(part, texts, mark) for key, part in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        parts = (blanked(part, texts, mark) for part in value)
        return tuple(parts) if type(value) is tuple else [*parts]
    if type(value) in (int, float):
        return mark if len(str(value)) >= _FEW and str(value) in texts else value
    return mark if any(blanked(text, texts, mark) != text for text in texts_in(value)) else value


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts, numbers, times and ids in a value, as texts."""
    ahead, seen = [value], set[int]()
    while ahead and len(seen) < _MOST:
        part = ahead.pop()
        if id(part) in seen or part is None or isinstance(part, bool):
            continue
        seen.add(id(part))
        if isinstance(part, bytes):
            yield part.decode(errors="replace")
        elif isinstance(part, str | int | float) or type(part) in atoms():
            yield str(part)
            if isinstance(part, datetime):
                yield part.isoformat()
        elif isinstance(part, dict):
            ahead += [*part, *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            ahead += part
        elif (registered := find_by_class(type(part))) is not None:
            ahead += [getattr(part, name, None) for name in registered.fields]


def _without(text: str, secret: str, mark: str) -> str:
    """Return a text with a mark wherever it holds a secret, or the beginning of a long one."""
    start, rest, parts = secret[:_ENOUGH], secret[_ENOUGH:], []
    while len(secret) >= _FEW and start in text:
        before, _, after = text.partition(start)
        parts += [before, mark]
        text = after[sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(after, rest, strict=False))) :]
    return "".join([*parts, text])


@attrs.frozen
class Written:
    """The keys that a step has set and removed."""

    put: AbstractSet[str] = frozenset()
    gone: AbstractSet[str] = frozenset()

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any], named: Iterable[str] = ()) -> Written:
        """Return the differences; named keys count as set even if their values are equal."""
        return cls({*changed_items(before, after), *named}, before.keys() - after.keys())

    def check_one_kind(self, persist: AbstractSet[str]) -> None:
        """Raise ValueError if unsaved keys were written together with a change of saved keys.

        To recompute the unsaved keys, the node would have to run on data from before the change.
        """
        others, saved = self.put - persist, (self.put | self.gone) & persist
        if others and saved:
            raise ValueError(mixture(others, saved))

    def check_kept(self, persist: AbstractSet[str]) -> None:
        """Raise ValueError if a node that pauses has changed unsaved keys: it would go on without these changes."""
        lost = (self.put | self.gone) - persist
        if lost:
            named = ", ".join(shorten(key) for key in sorted(lost)[:5])
            raise ValueError(
                f"it pauses the run with changes of keys that are not saved ({named}), and would go on without them: "
                "name these keys in checkpoint.persist, or pause without the changes"
            )


def mixture(others: Collection[str], saved: Collection[str]) -> str:
    """Describe the mistake of a node that writes both kinds of keys."""
    named, missing = (", ".join(shorten(key) for key in sorted(keys)[:5]) for keys in (saved, others))
    return (
        f"it writes keys that are saved ({named}) and keys that are not ({missing}), which it could not compute again "
        "by themselves: make it two nodes, or name all of them, or none, in checkpoint.persist"
    )


def origins_after(
    origins: Mapping[str, Origin], persist: AbstractSet[str], had: Collection[str], written: Written, origin: Origin
) -> Mapping[str, Origin]:
    """Return the origins after a step or an update.

    Args:
        origins: The origins before.
        persist: The saved keys.
        had: All keys before.
        written: The keys that were set and removed.
        origin: The origin of the values that were set.
    """
    # A new unsaved key is also missing when earlier values are recomputed.
    new = {key for key in written.put if key not in had and key not in persist}
    changed = written.put | written.gone
    touched = changed - new
    after = {key: old.without(touched) for key, old in origins.items() if key not in changed}
    own = origin.without(touched)  # it may have read what it wrote
    after.update(dict.fromkeys(sorted(written.put - persist), own))
    return origins if after == origins else after


def accounted(
    state: State, before: State, written: Written, persist: AbstractSet[str] | None, defaults: Mapping[str, Any]
) -> State:
    """Return the State with updated origins of its keys, after a change that no node made.

    Args:
        state: The State.
        before: The State before that.
        written: The keys that were written.
        persist: The saved keys; None for all.
        defaults: The defaults of the graph.
    """
    progress = state.progress
    if persist is None:
        return state if progress is None else evolve(state, progress=evolved(progress, origins={}))
    had = data_of(before).keys()
    defaulted = (data_of(state).keys() - had) & persist
    written = Written(written.put | defaulted, written.gone)
    origins = origins_after(progress_of(state).origins, persist, had, written, Origin(GIVEN, state.step, ()))
    return evolve(state, progress=evolved(progress, origins=_origins_given(origins, persist, state, defaults)))


def _origins_given(
    origins: Mapping[str, Origin], persist: AbstractSet[str], state: State, defaults: Mapping[str, Any]
) -> Mapping[str, Origin]:
    """Return the origins for a State that enters a graph: keys without a known node count as given.

    Defaults need no origin, and keys that are now saved lose theirs. A value derived from such a key may depend on data
    that is no longer there.
    """
    data = data_of(state)
    kept = {key for key in origins if key in persist}
    given = {
        key: Origin(GIVEN, state.step, frozenset())
        for key, value in data.items()
        if key not in persist and key not in origins and not (key in defaults and defaults[key] is value)
    }
    if not kept and not given:
        return origins
    return {**{key: old.without(kept) for key, old in origins.items() if key not in kept}, **given}


# --------------------------------------------------------------------------- the reads of a node

_ABSENT = object()


@attrs.define(eq=False)
class ReadSet:
    """The reads of a node from its input State.

    Attributes:
        given: The data of that State.
        keys: The keys that were read, or looked up.
        is_all: Whether the node read something that depends on all keys, such as their number.
    """

    given: dict[str, Any]
    keys: set[str] = attrs.field(factory=set)
    is_all: bool = False

    @property
    def read(self) -> frozenset[str] | None:
        """The keys that were read; None for all."""
        return None if self.is_all else frozenset(self.keys)


class _RecordingData(dict[str, Any]):
    """The data of a State that records its reads. Data derived from it record their reads as well."""

    reads: ReadSet

    def copy(self) -> _RecordingData:
        return _recording(dict.items(self), self.reads)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _reading_one(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of dict that reads a key, or whether it exists. Values that the node has set do not count."""

    @wraps(method)
    def read(self: _RecordingData, key: Any, *rest: Any) -> Any:
        if isinstance(key, str) and self.reads.given.get(key, _ABSENT) is dict.get(self, key, _ABSENT):
            self.reads.keys.add(str(key))
        return method(self, key, *rest)

    return read


def _reading_all(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of dict whose result depends on all keys."""

    @wraps(method)
    def read(self: _RecordingData, *args: Any) -> Any:
        self.reads.is_all = True
        return method(self, *args)

    return read


for _name in ("__getitem__", "__contains__", "get", "__delitem__"):
    setattr(_RecordingData, _name, _reading_one(getattr(dict, _name)))
for _name in ("__iter__", "__len__", "keys", "values", "items", "__eq__"):
    setattr(_RecordingData, _name, _reading_all(getattr(dict, _name)))


def _recording(items: Iterable[tuple[str, Any]], reads: ReadSet) -> _RecordingData:
    data = _RecordingData(items)
    data.reads = reads
    return data


def watched(state: State, reads: ReadSet) -> State:
    """Return the State as one that records its reads. States derived from it record their reads as well."""
    return with_data(state, _recording(data_of(state).items(), reads))


def unwatched(value: Any) -> Any:
    """Return an ordinary State for one that records its reads; return any other value unchanged."""
    data = data_of(value) if isinstance(value, State) else None
    return with_data(value, dict(dict.items(data))) if isinstance(data, _RecordingData) else value
