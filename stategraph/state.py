"""State: the value that flows through a graph, and the checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from datetime import datetime
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

import attrs

from stategraph._text.shown import shorten
from stategraph._util.validators import naming_arguments
from stategraph._values import clock
from stategraph._values.events import EventType, Listener, listener_problem, notify, wants
from stategraph._values.frozen import Carried, are_settled, check_mapping, freeze_at, freeze_items, lay_over, plain_key
from stategraph._values.ids import check_run_id, is_nested_id, outer_id, step_of
from stategraph._values.provenance import (
    NO_LABELS,
    ErrorInfo,
    Facts,
    GraphStructure,
    InputDigest,
    Kind,
    ParentStep,
    RunStatus,
    check_step,
    checked_labels,
    kind_of,
)
from stategraph.errors import FormatError, InvalidRunIdError, StepConflictError

if TYPE_CHECKING:
    from stategraph._values.progress import Partial, Pause, Progress  # imported when used: by few runs
    from stategraph._values.provenance import StatusName

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar  # with a default; checkers know it without an installation

    S = _TypeVar("S", default=Any)
    S_co = _TypeVar("S_co", default=Any, covariant=True)
else:
    S = TypeVar("S")
    S_co = TypeVar("S_co", covariant=True)
_Value = TypeVar("_Value")


class _Saves(Protocol):
    def save(self, state: State, /) -> None: ...


Since: TypeAlias = tuple[object, tuple[str, ...], object]
"""How the data of a State derive from the data of another: the mark of that State, the keys set, and its own mark.

A mark is an object that equals only itself. Comparing marks replaces a comparison of all keys, and neither State keeps
the data of the other in memory.
"""


class Provenance(NamedTuple):
    """What a State knows besides its data and its step. The States of consecutive steps share one.

    Attributes:
        is_plain: Whether there is no error, pause, progress and facts, as in most steps.
        input_digest: Comes last, and with a default, as States pickled by older versions lack it.
    """

    run_id: str
    status: RunStatus
    graph: str | None
    structure: GraphStructure | None
    parent: ParentStep | None
    generation: int
    observer: Listener | None
    labels: Mapping[str, str]
    error: ErrorInfo | None
    pause: Pause | None
    progress: Progress | None
    facts: Facts | None
    is_plain: bool
    input_digest: InputDigest | str = ""


class Draft:
    """A State under construction.

    State adds no slots, so a draft becomes a State by changing its class. That is faster than setting the attributes of
    a frozen object one by one, and every step does it.
    """

    _data: dict[str, Any]
    _about: Provenance
    checkpoint_node: str
    _time_ns: int
    step: int
    _took_ns: int | None
    _since: Since | None
    __slots__ = ("__weakref__", *__annotations__)


OWN_SLOTS = Draft.__slots__[1:]
_PLACES = {name: place for place, name in enumerate(Provenance._fields)}
for _name in {*_PLACES} - {"is_plain", "input_digest"}:
    setattr(Draft, _name, property(attrgetter(f"_about.{_name}")))
Draft.input_digest = property(lambda self: str(self._about.input_digest))  # type: ignore[attr-defined]


def _to_ns(value: datetime | int) -> int:
    """Return a timestamp in nanoseconds since 1970.

    Raises:
        ValueError: The value is neither an aware datetime nor a number of nanoseconds.
    """
    if type(value) is int and 0 <= value < _LATEST_NS:  # passed by attrs.evolve and by stores
        return value
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"timestamp: {shorten(value)} is not allowed; a datetime with a time zone is")
    return clock.to_ns(value)


_LATEST_NS = 253_402_300_800 * 10**9  # the year 10000


def _optional(name: str, value: _Value | None, cls: type[_Value]) -> _Value | None:
    """Return a field that is None or an instance of a class. Raises TypeError for any other value."""
    if value is not None and not isinstance(value, cls):
        raise TypeError(f"{name}: {shorten(value)} is not allowed; {cls.__name__} or None is")
    return value


_MOST_KEYS = 8  # listed in an error


class _MissingKey(str):
    """A key that is missing. Its repr, which is the message of a KeyError, names those that are there."""

    known: tuple[str, ...]
    why: str
    __slots__ = ("known", "why")

    @classmethod
    def of(cls, key: object, known: Iterable[str], why: str) -> object:
        if not isinstance(key, str):
            return key
        missing = cls(key)
        missing.known, missing.why = tuple(known), why
        return missing

    def __repr__(self) -> str:
        from difflib import get_close_matches  # imported when used: 10 ms

        close = get_close_matches(self, self.known, n=3)
        keys = [*close, *(key for key in self.known if key not in close)]
        listed = ", ".join([*map(shorten, keys[:_MOST_KEYS]), *["..."] * (len(keys) > _MOST_KEYS)])
        return shorten(str(self)) + (f" (the State has {listed})" if keys else "") + self.why


_NEW: Any = attrs.NOTHING  # a run id or a timestamp is generated


class _Inside(TypedDict, total=False):
    """What the engine and the stores give a State, besides its fields."""

    facts: Facts | None
    took_ns: int | None


@naming_arguments("keys go into a mapping, as in State({'key': 1})")
@attrs.frozen(repr=False, init=False, slots=False)  # Draft has the slots
class State(Draft, Mapping[str, Any], Generic[S_co]):
    """An immutable mapping of application data that knows its run. A saved State is a checkpoint.

    For type checkers, ``State[Order]`` is a State of a graph with the schema ``Order``.

    Read values with ``state["key"]``. Every change returns a new State that shares all unchanged values. Lists, dicts
    and sets become read-only.

    Args:
        data: The application data; keys are str.
        run_id: The id of the run: 1 to 200 of ``A-Z a-z 0-9 . _ : @ + = / -``. By default a new uuid4.
        labels: The labels of its run, a mapping of str to str. Not compared.
        checkpoint_node: The node that produced this State; empty before the first node.
        timestamp: The time at which it was produced: an aware datetime, kept in UTC with microseconds.
        step: The number of nodes that the run has completed, counted across resumes.
        status: The status of the run.
        graph: The name of the graph that ran it; None before the first graph.
        structure: The structure of that graph at the time.
        error: Why the run failed, if it failed.
        pause: What the run waits for, if it is paused.
        progress: What else a resume requires; None in most runs.
        parent: The step from which the run was forked, or in which it is nested.
        generation: The number of rollbacks of the run. A step number may recur in a later generation.
        observer: Receives the events of this State and its successors. It is neither compared nor saved.
        input_digest: The digest of the input of its run; empty if there is none. Not compared.

    Raises:
        InvalidRunIdError: The run id is not valid, or is that of a nested run.
        NotSerializableError: A container is nested too deeply, or contains itself.
        TypeError, ValueError: A key is not a str, or a field has a wrong type or value.
    """

    _data: dict[str, Any]
    run_id: str
    checkpoint_node: str
    _time_ns: int = attrs.field(alias="timestamp", eq=lambda ns: ns // 1000)  # microseconds
    step: int
    status: RunStatus
    graph: str | None
    structure: GraphStructure | None
    error: ErrorInfo | None
    pause: Pause | None
    progress: Progress | None
    parent: ParentStep | None
    generation: int
    observer: Listener | None = attrs.field(eq=False)
    facts: Facts | None = attrs.field(eq=False)
    _took_ns: int | None = attrs.field(alias="took_ns", eq=False)
    labels: Mapping[str, str] = attrs.field(eq=False)
    input_digest: str = attrs.field(eq=False)
    __slots__ = ()

    def __init__(  # noqa: PLR0913 - the fields
        self,
        data: Mapping[str, Any] = NO_LABELS,
        *,
        run_id: str = _NEW,
        labels: Mapping[str, str] = NO_LABELS,
        step: int = 0,
        status: StatusName = RunStatus.ACTIVE,
        checkpoint_node: str = "",
        timestamp: datetime | int = _NEW,
        graph: str | None = None,
        structure: GraphStructure | None = None,
        error: ErrorInfo | None = None,
        pause: Pause | None = None,
        progress: Progress | None = None,
        parent: ParentStep | None = None,
        generation: int = 0,
        observer: Listener | None = None,
        input_digest: str = "",
        **inside: Unpack[_Inside],
    ) -> None:
        facts, took_ns = inside.pop("facts", None), inside.pop("took_ns", None)
        if inside:
            raise TypeError("unknown argument")  # naming_arguments says which
        if not isinstance(checkpoint_node, str):
            raise TypeError(f"checkpoint_node: {shorten(checkpoint_node)} is not allowed; a str is")
        if pause is not None or progress is not None:
            from stategraph._values.progress import Pause, Progress  # imported when used: few runs have them

            _optional("pause", pause, Pause)
            _optional("progress", progress, Progress)
        about = Provenance(
            clock.new_run_id() if run_id is _NEW else check_run_id(run_id),
            status if type(status) is RunStatus else RunStatus(status),
            _optional("graph", graph, str),
            _optional("structure", structure, GraphStructure),
            _optional("parent", parent, ParentStep),
            check_step(generation),
            observer,
            checked_labels(labels),
            _optional("error", error, ErrorInfo),
            pause,
            progress,
            facts,
            not (error or pause or progress or facts),
            _optional("input_digest", input_digest, str) or "",
        )
        if is_nested_id(about.run_id):
            _check_place(about)
        time_ns = clock.now_ns() if timestamp is _NEW else _to_ns(timestamp)
        own = freeze_items(data), about, checkpoint_node, time_ns, check_step(step), took_ns, None
        for name, value in zip(OWN_SLOTS, own, strict=True):
            object.__setattr__(self, name, value)
        if observer is not None:
            problem = listener_problem(observer)
            if problem:
                raise TypeError(f"observer: {shorten(observer)} is not allowed; {problem}")
            self._emit(EventType.STATE_CREATE, {})

    # ------------------------------------------------------------------ reading

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the graph that ran it; None before the first graph."""
        return None if self.structure is None else self.structure.fingerprint

    @property
    def partial(self) -> Partial | None:
        """The chunks of a node that has not finished; None if there are none."""
        return None if self.progress is None else self.progress.partial

    @property
    def spent(self) -> Mapping[str, float]:
        """What the completed steps of the run have spent, by name; see `NodeContext.spend`."""
        from stategraph._values.spending import as_numbers  # imported when used: by few runs

        return as_numbers(self.progress.spent if self.progress else {})

    @property
    def timestamp(self) -> datetime:
        """The time at which it was produced, aware, in UTC."""
        return clock.to_datetime(self._time_ns)

    @property
    def kind(self) -> Kind:
        """The kind of record, such as "step" or "pause"."""
        return (self.facts and self.facts.kind) or kind_of(self.status, self.checkpoint_node)

    @property
    def by(self) -> str | None:
        """The author of the input, answer, update or cancellation, if the caller named one."""
        return None if self.facts is None else self.facts.by

    def __getitem__(self, key: str) -> Any:
        try:
            value = self._data[key]
        except KeyError:
            known = dict.keys(self._data)  # as dict has it: nothing is read
            why = "; it was redacted" if self.progress and key in self.progress.redacted else ""
            raise KeyError(_MissingKey.of(key, known, why)) from None
        if type(value) is Carried:
            raise self._unreadable(key, value)
        return value

    def _unreadable(self, key: str, carried: Carried) -> FormatError:
        return FormatError(self.run_id, f"its value {key!r} is carried as it was stored: {carried.problem}")

    def _check_readable(self) -> None:
        if Carried in map(type, dict.values(self._data)):
            raise next(self._unreadable(key, value) for key, value in dict.items(self._data) if type(value) is Carried)

    if not TYPE_CHECKING:  # a type checker would accept any attribute, and assignments to keys

        def __getattr__(self, name: str) -> NoReturn:
            hint = "" if name[:1] == "_" or name not in self._data else f"; a key is read with state[{name!r}]"
            raise AttributeError(f"'State' object has no attribute {name!r}{hint}", name=name, obj=self)

        def __setitem__(self, key: str, value: object) -> NoReturn:
            raise TypeError(
                f"a State never changes: State.set({key!r}, value) makes a new one, or return {{{key!r}: value}}"
            )

        def __delitem__(self, key: str) -> NoReturn:
            raise TypeError(f"a State never changes: State.remove({key!r}) makes a new one")

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def get(self, key: str, /, default: Any = None) -> Any:
        """Return the value of `key`, or `default`."""
        value = self._data.get(key, default)
        if type(value) is Carried:
            raise self._unreadable(key, value)
        return value

    def keys(self) -> KeysView[str]:
        """Return the keys in the order in which they were first set."""
        return self._data.keys()

    def values(self) -> ValuesView[Any]:
        """Return the values in the order of `keys`."""
        self._check_readable()
        return self._data.values()

    def items(self) -> ItemsView[str, Any]:
        """Return pairs of key and value in the order of `keys`."""
        self._check_readable()
        return self._data.items()

    def to(self, schema: type[_Value]) -> _Value:
        """Return the data as an object of an attrs class, a dataclass, a Pydantic model or a TypedDict.

        Values are converted as for a node that is annotated with the class; see the page "Typed States". A TypedDict is
        returned as a dict.

        Raises:
            SchemaError: A key is no field, a required field is missing, or a value does not fit.
            ConfigError: The class is none of these.
        """
        from importlib import import_module  # by name: State must not depend on schemas

        value: _Value = import_module("stategraph._schema.schema").schema_of(schema).object_of(self._data)
        return value

    def to_json(self) -> str:
        """Return the data as JSON, as the serializer "json" saves them. Values of types that JSON lacks are tagged.

        Raises:
            NotSerializableError: A value cannot be kept exactly.
        """
        from importlib import import_module  # by name: State must not depend on stores

        text: str = import_module("stategraph.stores.serializers").json_of(dict(self._data))
        return text

    def __repr__(self) -> str:
        data = [f"{shorten(key, 40)}: {shorten(value, 40)}" for key, value in islice(self._data.items(), 10)]
        more = [f"... {len(self) - 10} more"] if len(self) > 10 else []
        return (
            f"State(run_id={self.run_id!r}, step={self.step}, checkpoint_node={shorten(self.checkpoint_node)}, "
            f"status={self.status.value}, {{{', '.join(data + more)}}})"
        )

    def _ipython_key_completions_(self) -> list[str]:
        """Return what a notebook completes after ``state["``."""
        return [*self._data]

    # ------------------------------------------------------------------ changing, which returns a new State

    def set(self, key: str, value: Any) -> State[S_co]:
        """Return this State with `key` set to `value`."""
        data = self._data.copy()
        data[plain_key(key)] = freeze_at(key, value)
        return self._changed(EventType.STATE_SET, data, (key,))

    def update(self, mapping: Mapping[str, Any] | None = None, /, **more: Any) -> State[S_co]:
        """Return this State with the items of the mapping and the keywords set."""
        changes = {**(mapping or {}), **more}
        return self._changed(EventType.STATE_SET, lay_over(self._data, changes), changes)

    def remove(self, key: str) -> State[S_co]:
        """Return this State without `key`.

        Raises:
            KeyError: There is no such key.
        """
        data = self._data.copy()
        del data[key]
        return self._changed(EventType.STATE_SET, data, (key,))

    def merge(self, other: Mapping[str, Any]) -> State[S_co]:
        """Return this State with new values of keys from a mapping or another State. Its other fields stay."""
        check_mapping(other)
        return self._changed(EventType.STATE_MERGE, lay_over(self._data, other), other)

    def clone(self) -> State[S_co]:
        """Return an equal State."""
        return self._changed(EventType.STATE_CLONE, self._data)

    def set_checkpoint_node(self, node: str) -> State[S_co]:
        """Return this State as produced by `node`, with a new timestamp."""
        if not isinstance(node, str):
            raise TypeError(f"a checkpoint_node is a str, not {type(node).__name__}")
        return evolve(self, checkpoint_node=node, _time_ns=clock.now_ns())

    def paused(
        self,
        reason: str,
        value: Any = None,
        *,
        response_param: str | None = None,
        deadline: datetime | float | None = None,
    ) -> State[S_co]:
        """Return a State that pauses the run when a node returns it: the run is saved and the call returns.

        Changes of the State are saved with the pause, as in ``state.set("draft", draft).paused(...)``: when the run is
        resumed, the node runs again and finds them.

        Args:
            reason: Why the run waits, for people.
            value: A value to show to the person who answers.
            response_param: The key of the answer; None if a resume is enough.
            deadline: The time until which the run waits: an aware datetime, or seconds from now.

        Raises:
            ValueError: The deadline is a datetime without a time zone, or not a number of seconds.
        """
        from stategraph._values.progress import Pause, deadline_of

        now = clock.to_datetime(clock.now_ns())
        return evolve(self, pause=Pause(reason, "", value, response_param, now, deadline_of(now, deadline)))

    def checkpoint(self, store: _Saves) -> None:
        """Save this State: ``store.save(state)``."""
        store.save(self)

    def _changed(self, type: EventType, data: dict[str, Any], keys: Iterable[str] | None = None) -> State:
        """Return this State with other data, and emit the event of the change."""
        if self.observer is not None:
            self._emit(type, {} if keys is None else {"keys": tuple(keys)})
        return with_data(self, data)

    def _emit(self, type: EventType, data: Mapping[str, Any]) -> None:
        if self.observer is not None and wants(self.observer, type):
            notify(self.observer, type, self.graph or "state", {"run_id": self.run_id, **data})

    # ------------------------------------------------------------------ copying

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, tuple(getattr(self, name) for name in OWN_SLOTS)

    def __copy__(self) -> State:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        if are_settled(self._data.values()):
            return self
        return with_data(self, freeze_items(copy.deepcopy(self._data, memo)))


def _refuse(self: State, name: str, *value: object) -> NoReturn:
    error = attrs.exceptions.FrozenInstanceError()
    error.add_note(f"a State never changes: State.set({name!r}, value) makes a new one")
    raise error


State.__setattr__ = State.__delattr__ = _refuse  # type: ignore[method-assign, assignment]


# The engine and the stores derive States with these functions. Data must be frozen, and provenance is not checked.


def with_data(state: State, data: dict[str, Any]) -> State:
    """Return the State with other data; it owns the dict from then on."""
    draft = _draft_of(state)
    draft._data, draft._since = data, None
    draft.__class__ = State
    return draft  # type: ignore[return-value]


def completed_by(
    node: str, state: State, data: dict[str, Any], took_ns: int | None = None, keys: tuple[str, ...] | None = None
) -> State:
    """Return the State after a node: with its data, the next step number and the time, without error and pause.

    `keys` are the keys that the node has set, if all other items are those of `state`.
    """
    about = state._about
    if not about.is_plain:
        progress = about.progress and about.progress.after_step(node)
        about = _changed(about, {"error": None, "pause": None, "facts": None, "progress": progress})
    draft = Draft()
    draft._data = data
    draft._about = about
    draft.checkpoint_node = node
    draft._time_ns = clock.now_ns()
    draft.step = state.step + 1
    draft._took_ns = took_ns
    draft._since = None if keys is None else (state._since and state._since[2], keys, object())
    draft.__class__ = State
    return draft  # type: ignore[return-value]


def evolve(state: State, **changes: Any) -> State:
    """Return the State with other values of these attributes."""
    draft = _draft_of(state)
    for name in changes.keys() & OWN_SLOTS:
        setattr(draft, name, changes.pop(name))
    if changes:
        draft._about = _changed(state._about, changes)
    draft.__class__ = State
    return draft  # type: ignore[return-value]


def _changed(about: Provenance, changes: Mapping[str, Any]) -> Provenance:
    values = list(about)  # faster than the _replace of a named tuple
    for name, value in changes.items():
        values[_PLACES[name]] = value
    *_, error, pause, progress, facts, _, _ = values
    values[_PLACES["is_plain"]] = not (error or pause or progress or facts)
    return Provenance._make(values)


def _draft_of(state: State) -> Draft:
    draft = Draft()
    draft._data = state._data
    draft._about = state._about
    draft.checkpoint_node = state.checkpoint_node
    draft._time_ns = state._time_ns
    draft.step = state.step
    draft._took_ns = state._took_ns
    draft._since = state._since
    return draft


def _unpickled(*own: Any) -> State:
    draft = Draft()
    for name, value in zip(OWN_SLOTS, own, strict=True):
        setattr(draft, name, value)
    draft.__class__ = State
    return draft  # type: ignore[return-value]


def _check_place(about: Provenance) -> None:
    """Raise InvalidRunIdError unless a nested run belongs to the step that its id names."""
    step = step_of(about.run_id)
    if about.parent is None or about.parent.step + 1 != step:  # in the history of a copy, it is a step of the source
        reason = f"it names a nested run, which begins by itself in step {step} of run {outer_id(about.run_id)!r}"
        raise InvalidRunIdError(about.run_id, reason)


def recorded(state: State, kind: Kind | None = None, by: str | None = None, **changes: Any) -> State:
    """Return the State as a new record of its run: with a kind, an author, the present time, and other changes.

    Without a kind, the other fields determine it.
    """
    effects = effects_of(state)
    facts = Facts(kind, by, effects=effects) if kind is not None or by is not None or effects else None
    return evolve(state, **{"facts": facts, "_took_ns": None, "_time_ns": clock.now_ns(), **changes})


def check_successor(saved: State, state: State, same_data: bool) -> None:
    """Raise StepConflictError unless a State may be saved after the newest one.

    It must have a later step, or the same step and the same data, and not be from before a rollback. A State that no
    graph has run, but the caller constructed, has no past.
    """
    reason = ""
    if state.generation < saved.generation and state.graph is not None:
        reason = (
            f"this State is from before a rollback of the run (generation {state.generation}, and the saved one has "
            f"{saved.generation}): load the newest State, or give this one another run_id"
        )
    elif state.step < saved.step:
        reason = (
            f"step {state.step} is older than the saved step {saved.step}: another process has continued the run, or "
            "an old State was executed; load the newest State, or give this one another run_id"
        )
    elif state.step == saved.step and not same_data:
        reason = (
            f"step {state.step} is saved with other data, and a saved step never changes: another process or thread "
            "has continued the run; load the newest State"
        )
    if reason:
        raise StepConflictError(state.run_id, reason)


def is_changed_while_paused(state: State) -> bool:
    """Return whether a State is that of a paused run, with other data than before."""
    return state.status is RunStatus.PAUSED and state.kind is Kind.UPDATE


def due_ns_of(state: State) -> int | None:
    """Return the time at which a run can go on by itself; None if it waits for a caller.

    An active run without such a time, and a nested run, has none either: the first one always can.
    """
    if state._about.is_plain or is_nested_id(state.run_id):
        return None
    progress, pause = state.progress, state.pause
    if state.status is RunStatus.PAUSED:
        due = clock.to_ns(pause.due) if pause is not None and pause.due else 0
    elif state.status is RunStatus.FAILED or progress is None or not progress.due_ns:
        return None
    elif state.status is not RunStatus.ACTIVE:  # turns wait for it
        return progress.due_ns
    else:
        due = progress.due_ns
    times = (due, progress.deadline_ns if progress else 0)
    return min((time for time in times if time), default=None)


def goes_on(paused: State, attempt: int = 0) -> State:
    """Return a State with a pause that ends by itself once its deadline has passed."""
    return evolve(paused, pause=paused.pause and attrs.evolve(paused.pause, goes_on=True, attempt=attempt))


def effects_of(state: State) -> tuple[str, ...]:
    """Return the keys of the effects of the step of a State."""
    return state.facts.effects if state.facts else ()


def first_graph(state: State) -> str:
    """Return the name that the graph of a run had first; empty if it is the one of the State."""
    return state.progress.first_graph if state.progress else ""


def taken_of(state: State) -> int:
    """Return the number of the newest entry of its inbox that a run has taken in."""
    return state.progress.taken if state.progress else 0


def turns_of(state: State) -> int:
    """Return the number up to which the turns in the inbox of a run have begun."""
    return state.progress.turns if state.progress else 0


provenance_of: Callable[[State], Provenance] = attrgetter("_about")
"""Returns the record that a State shares with those that differ only in data and step."""

since_of: Callable[[State], Since | None] = attrgetter("_since")
"""Returns how the data of a State derive from the data of another one, if known."""

took_ns_of: Callable[[State], int | None] = attrgetter("_took_ns")
"""Returns the duration of the step of a State in nanoseconds; None if unknown."""

time_ns_of: Callable[[State], int] = attrgetter("_time_ns")
"""Returns the timestamp of a State in nanoseconds since 1970, which State accepts as well."""

data_of: Callable[[State], dict[str, Any]] = attrgetter("_data")  # in C: every step calls it several times
"""Returns the data of a State, not a copy: they must not be changed."""
