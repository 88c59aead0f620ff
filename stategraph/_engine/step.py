"""StepExecution: a step of a node that is more than a function call; it is the StepContext of the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from inspect import isawaitable
from time import monotonic
from typing import Any, cast

import attrs

from stategraph._engine.chunks import log_of
from stategraph._engine.context import (
    RunContext,
    about_error,
    announce_failure,
    context_of,
    described,
    emit_at,
    kept_at,
)
from stategraph._engine.journal import StepJournal
from stategraph._engine.spending import check_limits
from stategraph._graph.compiled import CompiledNode
from stategraph._progress import (
    GIVEN,
    ReadSet,
    Written,
    as_begun,
    origins_after,
    progress_of,
    unwatched,
    watched,
)
from stategraph._protocol import (
    Await,
    Command,
    Load,
    Parts,
    Report,
    Save,
    Show,
    Sleep,
    Stopped,
    StoreFailed,
    Task,
    limited,
)
from stategraph._text.shown import describe_exception
from stategraph._values import clock
from stategraph._values.events import PART_EVENTS, EventType
from stategraph._values.frozen import is_settled, lay_over, plain_key
from stategraph._values.progress import KeptParts, Origin, Part, Partial, Pause, Place, Progress, evolved
from stategraph._values.provenance import ErrorInfo, Facts
from stategraph.errors import CheckpointError
from stategraph.nodes.base import NestedStep, NodeContext, PartOutcome
from stategraph.nodes.function import data_from
from stategraph.state import State, data_of, evolve, goes_on, with_data

_LONGEST_SLEEP = 60.0  # seconds that a call waits for the next attempt; longer, the run is saved, and waits by itself
_KINDS_OF_PARTS = {"failed": EventType.PART_ERROR, "retried": EventType.PART_RETRY}
_OF_PARTS = PART_EVENTS | {EventType.PART_RETRY}


def digest_of_part(run: RunContext, state: State, data: Mapping[str, Any]) -> str:
    """Return the digest of the input of a part of a step, and of the generation; empty if there is none."""
    return run.plan.digest(data, {"generation": state.generation})


@attrs.define(eq=False)
class StepExecution:
    """One execution of a node in a run.

    Attributes:
        run: The run.
        stage: The node.
        state: The input State of the step.
        attempt: The number of the attempt, from 1.
        is_done_before: Whether all parts, or the nested run, had finished earlier, so that the step only combines them.
        has_effects: Whether a nested run has done effects.
        begun: The ids of the nested runs of its parts that an earlier call has begun.
        written: The keys that the step has written, if the graph does not save all keys.
        began_ns: When the attempt began, in clock.monotonic_ns.
    """

    run: RunContext
    stage: CompiledNode
    state: State
    attempt: int = 1
    _renames: Mapping[str, str] | None = None
    _path: str = ""
    began_ns: int = attrs.field(default=0, init=False)
    is_done_before: bool = attrs.field(default=False, init=False)
    has_effects: bool = attrs.field(default=False, init=False)
    begun: Sequence[str] = attrs.field(default=(), init=False)
    written: Written = attrs.field(factory=Written, init=False)
    _answered: set[str] = attrs.field(factory=set, init=False)
    _reads: ReadSet | None = attrs.field(default=None, init=False)
    _digested: tuple[Any, str] | None = attrs.field(default=None, init=False)
    _parts_shown: Partial | None = attrs.field(default=None, init=False)
    _journals: dict[str, StepJournal] = attrs.field(factory=dict, init=False)
    _emitted: dict[tuple[str, int], Partial] = attrs.field(factory=dict, init=False)  # by part and attempt
    sink: Callable[..., object] | None = attrs.field(default=None, init=False)
    _log_of_chunks: Any = attrs.field(default=None, init=False)
    _chunks: Any = attrs.field(default=None, init=False)

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.stage.name

    # ------------------------------------------------------------------ the step as a whole

    def result(self) -> Task[Any]:
        """Return the final result of the node: from its cache, or after as many attempts as needed."""
        cache, persist = self.stage.cache, self.run.plan.persist
        if cache is None:
            result = yield from self._checked_attempts()
        else:
            result = self.checked((yield from cache.execute(self, self._checked_attempts)))
        return result if persist is None else self._as_state(result, persist)

    def _checked_attempts(self) -> Task[Any]:
        """Return the final result of the node.

        Finished parts that no longer fit are executed again: their code may have been fixed since. But a graph that has
        done effects would repeat them.
        """
        try:
            return self.checked(unwatched((yield from self._attempts())))
        except Exception as error:
            if not self.is_done_before or (self.has_effects and not self.run.repeat_effects):
                raise
            yield from self._emit_failure(error)
        yield from self.forget_parts()
        self._start_over()
        return self.checked(unwatched((yield from self._attempts())))

    def _as_state(self, result: Any, persist: AbstractSet[str]) -> Any:
        """Return the result as a State.

        Raises:
            ValueError: The node wrote both saved and unsaved keys, or pauses and wrote unsaved keys.
        """
        before, after = data_of(self.state), data_from(result, self.state)
        self.written = Written.between(before, after, () if isinstance(result, State) else map(plain_key, result))
        if isinstance(result, State) and result.pause is not None:
            self.written.check_kept(persist)
            return result
        self.written.check_one_kind(persist)
        return with_data(self.state, after)

    def _attempts(self) -> Task[Any]:
        retry = self.stage.policies.retry
        changeable = {key: value for key, value in data_of(self.state).items() if retry and not is_settled(value)}
        copies = self.run.plan.copier(changeable) if changeable else None
        woken = progress_of(self.state).woken
        if woken is not None and woken.attempt:
            self.attempt = woken.attempt + 1
        while True:
            self.began_ns = clock.monotonic_ns()
            try:
                return (yield from self._execute())
            except Exception as error:
                self.run.session.roll_back()
                self.check_limits()
                if copies is not None:  # undo the attempt's changes to values of the State
                    self.state = with_data(self.state, lay_over(data_of(self.state), copies()))
                    if self._reads is not None:
                        self._reads.given = data_of(self.state)
                delay = None if retry is None or self.is_done_before else retry.delay_after(self.attempt, error)
                if delay is None:
                    if copies is not None:  # a run that was never saved still has the changed objects
                        self.run.state = with_data(self.run.state, lay_over(data_of(self.run.state), copies()))
                    raise
                self.note_failure(error)
                yield from self._emit_failure(error)
                about = {"attempt": self.attempt, "error": describe_exception(error), "delay": delay}
                yield from self.emit(EventType.NODE_RETRY, **about)
                if delay > _LONGEST_SLEEP and self.run.plan.saves:
                    return self._paused_until_retry(delay, error)
            yield (Sleep, None, clock.pause(delay))
            self.attempt += 1
            self._start_over()

    def _execute(self) -> Task[Any]:
        stage = self.stage
        if stage.policies.persist_chunks:
            self._log_of_chunks = log = yield from log_of(self)
            self._chunks = log and log.begin(self.place_of())
        work, seconds = stage.node.execute(self), stage.policies.timeout
        if seconds is not None:
            work = limited(work, seconds, stage.name, is_async=stage.node.is_async)
        try:
            return (yield from work)
        finally:
            self.end_attempt()

    def end_attempt(self, part: str = "") -> None:
        """Let this attempt at the step or, with `part`, at that part begin no more effects: its thread may go on."""
        for each in [part] if part else [*self._journals]:
            if each in self._journals:  # its function takes a context
                self._journals.pop(each).is_over = True

    def _paused_until_retry(self, delay: float, error: Exception) -> State:
        """Return the State with which the run waits for the next attempt, so that no process has to."""
        value = {"attempt": self.attempt, "error": {"type": type(error).__name__, "message": self.described(error)}}
        paused = self.state.paused(f"attempt {self.attempt} failed, and is followed by another", value, deadline=delay)
        return goes_on(paused, self.attempt)

    def _start_over(self) -> None:
        self._answered.clear()
        self.is_done_before = False
        if self.run.state.partial is not None:
            self._keep_partial(None)

    def _emit_failure(self, error: Exception) -> Task[None]:
        return announce_failure(self.run, self.name, error, self.attempt, self.began_ns)

    def completed(self, after: State, *, is_failed: bool) -> State:
        """Return the State after this step, with its attempts and progress.

        Args:
            after: The State without them.
            is_failed: Whether the node failed and another node handles the failure.
        """
        run = self.run
        run.unsaved_parts.clear()
        run.has_joined_parts = run.has_joined_parts or bool(self.stage.node.graphs)
        if self.attempt > 1:
            after = evolve(after, facts=Facts(attempts=self.attempt))
        return evolve(after, progress=self.progress_after(after, is_failed=is_failed))

    def progress_after(self, after: State, *, is_failed: bool) -> Progress | None:
        """Return the progress of the run after this step; see `completed`."""
        progress, persist = after.progress, self.run.plan.persist
        if self._answered:
            answered = progress.answered if progress else frozenset[str]()
            progress = evolved(progress, answered=answered | self._answered)
        if persist is None:
            return progress
        origin = Origin(self.stage.name, after.step, None if self._reads is None else self._reads.read)
        written = self.written
        if is_failed:  # the engine wrote the handler's data
            origin, written = Origin(GIVEN, after.step, ()), Written.between(data_of(self.state), data_of(after))
        origins = progress.origins if progress else {}
        return evolved(progress, origins=origins_after(origins, persist, data_of(self.state), written, origin))

    # ------------------------------------------------------------------ reading

    @property
    def tracked_state(self) -> State:
        """The State of the step for functions of the user.

        If the step may have to be recomputed, their reads are recorded.
        """
        return self._tracked(self.state)

    @property
    def state_for_parts(self) -> State:
        """Like tracked_state, with the values with which each part began: from before the answers, for example."""
        return self._tracked(as_begun(self.state))

    def _tracked(self, state: State) -> State:
        if self.run.plan.persist is None:
            return state
        self._reads = self._reads or ReadSet(data_of(self.state))
        return watched(state, self._reads)

    # ------------------------------------------------------------------ checking

    def checked(self, result: Any) -> Any:
        """Validate the result of the node, or of a part of it, against the schema of the graph, and return it.

        Raises:
            SchemaError: it does not fit.
        """
        schema = self.run.plan.schema
        return result if schema is None else schema.checked_result(self.stage.name, result, self.state)

    def checked_item(self, key: str, place: str, item: Any) -> Any:
        """Validate an item of the list under a key against the schema of the graph, and return it."""
        schema = self.run.plan.schema
        return item if schema is None else schema.checked_item(self.stage.name, key, place, item)

    def described(self, error: Exception) -> str:
        """Describe an exception, without values of keys that are not saved."""
        return described(self.run, error)

    # ------------------------------------------------------------------ calling

    def context(self, part: str = "", attempt: int = 0) -> NodeContext:
        """Return the NodeContext of this step or, with `part`, of that part, which may count its own attempts."""
        context = context_of(self.run, self.stage.name, self.state, attempt or self.attempt, part)
        self._journals[part] = context._journal
        if self._log_of_chunks is not None:
            context._journal.chunks = self._log_of_chunks.begin(self.place_of(part)) if part else self._chunks
        if self.sink is not None:
            context._journal.sink = partial(self.sink, part=part, attempt=context.attempt)
        return context

    @property
    def emits(self) -> bool:
        """Whether anyone wants the chunks of its functions."""
        return self.run.emits

    @property
    def streams(self) -> bool:
        """Whether the caller iterates over the run, and so gets the chunks."""
        return self.run.streams

    def check_limits(self) -> None:
        """Raise LimitError if the run has spent what the limits of the call allow."""
        check_limits(self.run, self.stage.name)

    def note_failure(self, error: Exception, part: str = "") -> None:
        """Remember the failure of an attempt at this step or, with `part`, at that part, for the next attempt."""
        info = ErrorInfo.of(error, self.name, described(self.run, error))
        self.run.failures[self.state.step, self.name, part] = info

    def copier(self, value: Any) -> Callable[[], Any] | None:
        """Return a function that copies a value a part may change; None if the value cannot change or be copied."""
        copies = None if is_settled(value) else self.run.plan.copier({"": value})
        return None if copies is None or not copies() else lambda: copies()[""]

    def call(self, function: Callable[[Any], Any], argument: Any) -> Task[Any]:
        """Call a function that may take long, sync or async like the node; return its result."""
        result = yield (self.stage.kind, function, argument)
        if type(result) is not State and isawaitable(result):
            result = yield (Await, result, self.stage.name)
        return result

    def emit(self, type: EventType, **about: Any) -> Task[None]:
        """Report an event of this step."""
        yield from emit_at(self.run, type, self.state, 1, node=self.stage.name, **about)

    def show_chunk(self, chunk: Any, part: str = "", attempt: int = 0) -> Task[None]:
        """Emit a chunk: show it at once, and keep it with the run until the node has finished, unless it is of a part.

        Stop here if the run was cancelled. The store is queried for cancellations by other processes only now and then.
        """
        chunk, attempt = unwatched(chunk), attempt or self.attempt
        before = self._emitted.get((part, attempt)) if part else self.run.state.partial
        emitted = (before or Partial(self.name)).and_chunk(chunk)
        if part:
            self._emitted[part, attempt] = emitted
        else:
            self._keep_partial(emitted)
        yield from self.emit(EventType.NODE_CHUNK, chunk=chunk, **({"part": part} if part else {}))
        if self.run.streams:
            yield from self.show_partial(emitted.at(self.place_of(part), attempt))
        session = self.run.session
        if session.ownership is not None and (session.is_cancelled or monotonic() >= session.look_at):
            yield from self.stored((Load, session.stop_if_cancelled, self.run.state))

    def show_yielded(self, chunk: Any) -> Task[None]:
        """Emit a chunk that the node yields, as `show_chunk`; also keep it for other readers if the node does so."""
        if self._chunks is not None:
            self._chunks.keep(unwatched(chunk))
        yield from self.show_chunk(chunk)

    def show_part(self, label: Any, value: Any) -> Task[None]:
        """Show a finished part together with the earlier ones. They are not saved with the run a second time."""
        if self.run.streams:
            self._parts_shown = shown = (self._parts_shown or Partial(self.name)).and_chunk((label, value))
            kind = "branch" if getattr(self.stage.node, "has_branches", False) else "item"
            yield from self.show_partial(shown.at(self.place_of(), self.attempt, kind))

    def place_of(self, part: str = "") -> Place:
        """Return the place where this step, or a part of it, emits."""
        here, outer = (self.name, part, self.state.step + 1), self.run.outer_step
        return (here,) if outer is None else (*outer.place_of(self.run.part), here)

    def show_partial(self, partial: Partial) -> Task[None]:
        """Show chunks to the caller of the outermost run. A part lets the step that gathers it do so."""
        if self.run.streams and self.run.is_in_part:
            yield (Report, None, partial)
        elif self.run.streams:
            state = self.run.outermost_run.state
            yield (Show, None, evolve(state, progress=evolved(state.progress, partial=partial)))

    def _keep_partial(self, partial: Partial | None) -> None:
        state = self.run.state
        self.run.state = evolve(state, progress=evolved(state.progress, partial=partial))

    # ------------------------------------------------------------------ answers

    def is_answer(self, key: str, *, also_given: bool = False) -> bool:
        """Return whether the State holds an unused answer under this key; see StepContext."""
        progress = progress_of(self.state)
        return key in self.state and key not in progress.answered and (also_given or key in progress.answer)

    def answers(self, pause: Pause) -> bool:
        """Return whether the run was resumed to answer this pause of a nested run, and has the answer."""
        woken = progress_of(self.state).woken  # its key may be an older one
        if woken is None or woken.id != pause.id:
            return False
        return woken.key_of_data is None or self.is_answer(woken.key_of_data)

    @property
    def is_woken(self) -> bool:
        """Whether the step continues after an answered pause, or must ask again."""
        return self.state.progress is not None and self.state.progress.woken is not None

    @property
    def is_answered(self) -> bool:
        """Whether the step continues after a pause or has used an answer.

        Its result then depends on more than its inputs.
        """
        return bool(self._answered) or self.is_woken

    def take_answers(self, keys: Iterable[str]) -> None:
        """Use the values of some keys as answers to this step; they answer no other step."""
        used = self.state.progress.answered if self.state.progress else frozenset[str]()
        self._answered.update(set(keys) - used)

    # ------------------------------------------------------------------ parts

    @property
    def kept_at(self) -> tuple[int, str]:
        """The step and the name under which its parts and its nested run are kept: those with which it began."""
        return kept_at(self.stage.name, self.state)

    def save_input(self, *, at_last: bool = False) -> Task[None]:
        """Save the input State of the step, unless it is saved: saved parts refer to it.

        If States are saved only at the end of a call, save it only with `at_last`, just before a part is saved.
        """
        run = self.run
        is_needed = run.plan.keeps_parts or (at_last and run.plan.loads_parts)
        if not is_needed or run.state is run.saved:
            return
        if run.outer_step is not None:
            yield from run.outer_step.save_input(at_last=at_last)
        yield from self.stored((Save, run.session.save, run.state))
        run.saved = run.state
        self._stop_if_cancelled()

    def find_begun(self) -> Task[None]:
        """Note which graphs of parts an earlier call has begun."""
        run, progress = self.run, self.state.progress
        may_have_begun = len(run.path) == 1 or (progress is not None and bool(progress.kept_names))
        if run.plan.loads_parts and may_have_begun:
            self.begun = yield from self.stored((Load, run.session.nested_at, (self.state, self.kept_at)))

    def finished_parts(self, made_of: Mapping[str, Any], kind: str = "part") -> Task[dict[str, Any]]:
        """Return the values of finished parts that were made from the same data as now, by their labels."""
        run, at = self.run, (*self.kept_at, kind)
        found = {part.label: part.value for part in run.unsaved_parts if (part.step, part.node, part.kind) == at}
        if run.plan.loads_parts:
            about = (self.state.run_id, *at)
            loaded: KeptParts = yield from self.stored((Parts, run.session.load_parts, about))
            digests = {label: self._digest_of(made_of[label]) for label in loaded.keys() & made_of}
            same = [label for label, digest in digests.items() if digest and digest == loaded.made_of[label]]
            found = {**{label: loaded[label] for label in same}, **found}
            if same and kind == "part" and run.session.store.keeps_entries:  # these parts do not run again
                effects = yield from self.stored((Load, run.session.entries, (self.state.run_id, at[0], ("effect",))))
                run.did.update(dict.fromkeys(entry.name for entry in effects if entry.value))
        return found

    def keep_parts(self, finished: Mapping[str, Any], made_of: Mapping[str, Any], kind: str = "part") -> Task[None]:
        """Save finished parts of this step, except parts that write unsaved keys."""
        run = self.run
        (at, name), of = self.kept_at, self._digest_of
        parts = [Part(at, name, label, value, of(made_of[label]), kind) for label, value in finished.items()]
        persist, node = run.plan.persist, self.stage.node
        if persist is not None and kind == "part":
            parts = [part for part in parts if not frozenset(node.part_writes(part.value)) - persist]
        if not run.plan.keeps_parts:
            run.unsaved_parts += parts
        elif parts:
            yield from self.stored((Parts, run.session.save_parts, (run.state, parts)))
            self._stop_if_cancelled()

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is known to be cancelled."""
        return self.run.session.is_cancelled

    def _stop_if_cancelled(self) -> None:
        """Raise Stopped if a save has found the run cancelled."""
        if self.is_cancelled:
            raise Stopped("it was cancelled")

    def emit_parts(self, parts: Iterable[PartOutcome], total: int) -> Task[None]:
        """Report the outcomes of parts of this step; `total` counts all of its parts."""
        for part in () if self.run.wanted.isdisjoint(_OF_PARTS) else parts:
            about = {"part": part.label, "total": total, "outcome": part.name, "took": part.took}
            error = part.error or part.collected
            if error is not None:
                about |= about_error(error)
            if part.delay is not None:
                about["delay"] = part.delay
            kind = _KINDS_OF_PARTS.get(part.name, EventType.PART_COMPLETE)
            yield from self.emit(kind, attempt=part.attempt or self.attempt, **about)

    def _digest_of(self, made_of: Any) -> str:
        """Return the digest of a part's input and of the generation; empty if there is none or none is needed."""
        if not self.run.plan.loads_parts:
            return ""
        digested = self._digested
        if digested is None or digested[0] is not made_of:  # all branches are made from one State
            data = data_of(made_of) if isinstance(made_of, State) else {"": made_of}
            digest, progress = digest_of_part(self.run, self.state, data), self.state.progress
            self._digested = digested = made_of, progress.kept_digests.get(digest, digest) if progress else digest
        return digested[1]

    def forget_parts(self) -> Task[None]:
        """Delete the kept parts of this step and its nested run."""
        run = self.run
        run.unsaved_parts.clear()
        if run.plan.loads_parts:
            yield from self.stored((Parts, run.session.drop_parts, (self.state.run_id, self.state.step + 1, True)))

    def stored(self, command: Command) -> Task[Any]:
        """Return the answer to a store command; raise its failure as a failure of the store, not of the node."""
        try:
            return (yield command)
        except CheckpointError as error:
            raise StoreFailed from error

    # ------------------------------------------------------------------ nested runs

    def nested(self, part: str = "", made_of: Any = None, *, is_branch: bool = False) -> NestedStep:
        """Return the nested run of this step or, with `part`, of that part of it.

        A part made from different data has a different run, which begins at its entry point.
        """
        nested_run = cast(Callable[..., NestedStep], self.run.plan.nested_run)
        return nested_run(self, part, self._digest_of(made_of) if part else "", f"{part}/" if is_branch else "")

    @property
    def renames(self) -> Mapping[str, str]:
        """New names of nodes of the nested graph, by old ones."""
        return self.run.renamed_nested.get(self.stage.name, {}) if self._renames is None else self._renames

    @property
    def path(self) -> str:
        """The path from the outermost graph to this node: names of nodes, each followed by a slash."""
        return f"{self._path or self.run.nested_path}{self.stage.name}/"
