"""The exceptions of stategraph.

Each derives from `StateGraphError` and from the builtin exception that it resembles. Its attributes hold the details;
its text says what is wrong and what to do. The text is made on demand. All errors can be pickled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias, dataclass_transform

import attrs

from stategraph._text.shown import Hidden, brief, may_be_secret, meant, shorten

_State: TypeAlias = Any  # State, Pause and Owner raise errors: importing them here would be a cycle
_Pause: TypeAlias = Any
_Owner: TypeAlias = Any


@dataclass_transform(field_specifiers=(attrs.field,))
class StateGraphError(Exception):
    """The base class of all errors that stategraph raises."""

    def __init_subclass__(cls) -> None:
        """Make each error an attrs class: its annotations are its attributes and its arguments."""
        attrs.define(cls, slots=False, eq=False, repr=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


# --------------------------------------------------------------------------- building and configuring


class GraphError(StateGraphError, ValueError):
    """A graph is not valid; `problems` lists all problems."""

    graph: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"graph {shorten(self.graph)}: {self.problems[0]}"
        return "\n  - ".join([f"graph {shorten(self.graph)} has {len(self.problems)} problems:", *self.problems])


class ConfigError(StateGraphError, ValueError):
    """A configuration value is not allowed: `key` is its path, `allowed` describes the allowed values.

    If the key suggests a secret, the error does not hold the value. If `is_shown` is false, the text does not show it.
    """

    key: str
    value: object
    allowed: str
    is_shown: bool = True

    def __attrs_post_init__(self) -> None:
        if may_be_secret(self.key):
            self.value = Hidden.of(self.value)
            self.args: tuple[Any, ...] = (self.key, self.value, self.allowed)

    def __str__(self) -> str:
        value = self.value if self.is_shown else Hidden.of(self.value)
        return f"{brief(self.key)}: {shorten(value)} is not allowed; {brief(self.allowed, 500)}"


class UnknownNameError(StateGraphError, LookupError):
    """No store, observer or node has this name."""

    kind: str
    name: str
    known: Collection[str]

    def __attrs_post_init__(self) -> None:
        self.known = sorted(self.known)

    def __str__(self) -> str:
        near = meant(self.name, self.known) if isinstance(self.name, str) else ""
        known = ", ".join(map(shorten, list(self.known)[:20])) + (", ..." if len(self.known) > 20 else "")
        hint = near and f"; {near}"
        return f"no {self.kind} is named {shorten(self.name)}{hint} (known: {known or 'none'})"


class UnknownNodeError(UnknownNameError, GraphError):
    """An edge, the entry point or an exit point names a node that the graph does not have."""

    def __init__(self, kind: str, name: str, known: Collection[str], graph: str = "") -> None:
        UnknownNameError.__init__(self, kind, name, known)
        self.graph: str = graph
        self.problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        way_out = "add_node comes first" if isinstance(self.name, str) else "give the name of the node, a str"
        return f"graph {shorten(self.graph)}: {UnknownNameError.__str__(self)}; {way_out}"


class InvalidRunIdError(StateGraphError, ValueError):
    """A run id is not 1 to 200 characters of ``A-Z a-z 0-9 . _ : @ + = / -``, or a part of it is no valid name."""

    run_id: object
    reason: str = ""

    def __str__(self) -> str:
        size, kind = "", "a str of "
        if isinstance(self.run_id, str):
            size, kind = f" ({len(self.run_id):,} characters)", ""
        reason = self.reason or (
            f"use {kind}1 to 200 of A-Z a-z 0-9 . _ : @ + = / -, with no part between slashes "
            "empty or beginning with a dot"
        )
        return f"run_id: {shorten(self.run_id)}{size} is not allowed; {brief(reason, 500)}"


# --------------------------------------------------------------------------- running


class ExecutionError(StateGraphError, RuntimeError):
    """A run failed at a node: the node raised (its exception is ``__cause__``), or the run could not continue.

    `state` is the last completed State. `path` holds the last 100 nodes entered in this call, the failed one last.
    """

    node_name: str
    state: _State
    path: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        trail = " -> ".join(self.path[-5:])
        return f"node {shorten(self.node_name)} of run {self.state.run_id!r} {self.reason} (path: {trail})"


class SchemaError(StateGraphError, ValueError):
    """A value does not fit the schema of the graph. `node` returned it; empty for a value from the caller.

    `key` is its path (``orders[3].total``); `others` lists the other values that do not fit. `run_id` and `step` are
    set if a saved State does not fit because the schema has changed; otherwise they are empty and 0.
    """

    node: str
    schema: str
    key: str
    expected: str
    found: str
    others: tuple[str, ...] = ()
    run_id: str = ""
    step: int = 0

    def __str__(self) -> str:
        saved = f"the State of run {self.run_id!r} after step {self.step}: " if self.run_id else ""
        where = f"node {shorten(self.node)}: " if self.node else saved
        what = f"{brief(self.key)!r} of {self.schema}" if self.key else self.schema
        text = f"{where}{what}: expected {brief(self.expected, 500)}, found {brief(self.found, 500)}"
        more = "; ".join(brief(other, 500) for other in self.others[:4]) + ("; ..." if len(self.others) > 4 else "")
        text = f"{text}; {more}" if more else text
        return f"{text}. {_WAYS_ON}" if self.run_id else text


_WAYS_ON = (
    "The schema has changed since this was saved. The run can continue with updates that replace such values, with a "
    "schema that has these keys, with the program that began it, or from an earlier step that fits (store.rollback)"
)


class MaxIterationsError(ExecutionError):
    """A call ran `GraphConfig.max_iterations` nodes without reaching an exit point."""


class LimitError(ExecutionError):
    """A run has spent as much as `limits` of the call allow. `resume` continues it with larger ones.

    `spent` is what the run has spent so far, by name, also in the step under way.
    """

    spent: Mapping[str, float] = attrs.field(factory=dict)
    limits: Mapping[str, float] = attrs.field(factory=dict)


class RunCancelledError(StateGraphError):
    """A run was stopped before its end; `reason` says why.

    The cancel event was set, the timeout passed (then ``__cause__`` is a TimeoutError), the run was cancelled, here or
    in another process (then its status is cancelled), or its stream was closed.
    """

    state: _State
    reason: str

    def __str__(self) -> str:
        return f"run {self.state.run_id!r} was stopped after step {self.state.step}: {self.reason}"


class AsyncNodeError(StateGraphError, RuntimeError):
    """A sync call met an async node in a thread whose event loop is running."""

    node_name: str
    way_out: str = "'await graph.arun(...)', aexecute or aresume, and for streams astream or astream_resume"

    def __str__(self) -> str:
        return f"node {self.node_name!r} is async and an event loop is running in this thread: use {self.way_out}"


class RunExistsError(StateGraphError):
    """The store has a run with this id, or one that began with other data; or a run that is not complete was executed.

    In the last case, `status` is the status of the run.
    """

    run_id: str
    store: str = "store"
    status: str = ""
    way_out: str = "choose another id, or delete it with store.delete"

    def __str__(self) -> str:
        if self.status:
            return (
                f"run {self.run_id!r} is {self.status}, and executing its State would begin it again: continue it with "
                f"resume({self.run_id!r}), finish it and give new input with turn({self.run_id!r}, {{...}}), or "
                "begin it again with execute(state, restart=True)"
            )
        return f"run {self.run_id!r} is already in the {self.store}: {self.way_out}"


# --------------------------------------------------------------------------- resuming


class RunCompleteError(StateGraphError):
    """The run has reached an exit point: there is nothing to resume, to cancel or to send messages to."""

    run_id: str
    node: str

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} is complete (it ended at {self.node!r}): store.load gives its State, "
            f"and turn({self.run_id!r}, {{...}}) gives it new input"
        )


class EffectsError(StateGraphError, ValueError):
    """A run is to go back to a point before effects that it did, or may have done, and would then repeat; or a graph of
    its step under way is to begin again.

    `effects` lists the step, the node and the key of each.
    """

    run_id: str
    effects: tuple[tuple[int, str, str], ...]

    def __str__(self) -> str:
        listed = [f"{brief(key)} (step {step}, node {brief(node)})" for step, node, key in self.effects[:10]]
        more = ", ..." if len(self.effects) > 10 else ""
        return (
            f"run {self.run_id!r} has done what it would do again: {', '.join(listed)}{more}; "
            "repeat_effects=True allows that"
        )


class EntryExistsError(StateGraphError, ValueError):
    """A message, an answer or a turn was given before under the same key, with other content."""

    run_id: str
    kind: str
    key: str

    def __str__(self) -> str:
        kind = {"turn": "turn", "answer": "answer"}.get(self.kind, "message")
        return (
            f"run {self.run_id!r} has had another {kind} under the key {self.key!r}: a key is for one {kind}, however "
            "often it is delivered; give this one a key of its own"
        )


class GraphMismatchError(StateGraphError):
    """The saved State belongs to another graph, or to an earlier form of this one."""

    run_id: str
    changes: tuple[str, ...]
    way_out: str

    def __str__(self) -> str:
        changes = "; ".join(brief(change) for change in self.changes[:10]) + ("; ..." if len(self.changes) > 10 else "")
        return f"run {self.run_id!r} does not fit this graph: {changes}. {brief(self.way_out, 500)}"


class RecomputeError(StateGraphError, RuntimeError):
    """Unsaved keys cannot be computed again; `reasons` holds the reason for each key. The saved run has not changed.

    If a node failed, its exception is ``__cause__``.
    """

    run_id: str
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        listed = [f"{shorten(key)} ({brief(reason, 500)})" for key, reason in list(self.reasons.items())[:10]]
        more = ", ..." if len(self.reasons) > 10 else ""
        values = ", ".join(f"{shorten(key)}: ..." for key in list(self.reasons)[:10]) + more
        return (
            f"run {self.run_id!r} cannot continue without keys that are not saved and cannot be computed again: "
            f"{'; '.join(listed)}{more}. Give them the values that they had: "
            f"resume({self.run_id!r}, {{{values}}}); keys in checkpoint.persist are saved"
        )


class AnswerError(StateGraphError, ValueError):
    """A paused run was resumed without an answer, or with an invalid one. The run has not changed.

    `pause` is the pause to answer; None if the run waits for nothing, so that the answer is too late. `way_out` says
    how the run goes on if no answer does it.
    """

    run_id: str
    pause: _Pause | None
    problem: str
    way_out: str = ""

    def __str__(self) -> str:
        pause = self.pause
        if pause is None:
            return f"run {self.run_id!r}: {brief(self.problem, 500)}"
        if self.way_out:
            return f"run {self.run_id!r}: {brief(self.problem, 500)}; {self.way_out}"
        until = f" until {pause.deadline}" if pause.deadline else ""
        which = ", pause=state.pause.each[0]" if pause.others else ""
        question = "" if pause.value is None else f" The question is {shorten(pause.value)}."
        reason = "" if pause.reason == "waits for an answer" else f" ({brief(pause.reason)})"  # that of InterruptNode
        waits = f"run {self.run_id!r}: {brief(self.problem, 500)}; it waits{until} at node {shorten(pause.node)}"
        if pause.response_param is None:
            return f"{waits}{reason}.{question} resume({self.run_id!r}) goes on"
        how = f"resume({self.run_id!r}, {{{pause.response_param!r}: ...}}{which})"
        return f"{waits} for an answer under {pause.response_param!r}{reason}.{question} Answer with {how}"


class CheckpointingDisabledError(StateGraphError):
    """The call requires checkpoints, and the graph saves none."""

    graph: str

    def __str__(self) -> str:
        return (
            f"graph {self.graph!r} saves no checkpoints, so nothing can be resumed: "
            'give it a store, as in store="runs.db", or set checkpoint.interval to 1 or more '
            "(CheckpointConfig(interval=1))"
        )


# --------------------------------------------------------------------------- checkpoints


class CheckpointError(StateGraphError):
    """A store failed; `state`, if set, is the State that was to be saved or loaded.

    `is_lasting` is True if a server has refused the request, so that a retry would fail too: for a wrong password, say.
    """

    run_id: str
    reason: str = "the store failed"
    state: _State | None = attrs.field(default=None, init=False)
    is_lasting: bool = attrs.field(default=False, init=False)

    def __str__(self) -> str:
        return f"run {shorten(self.run_id)}: {self.reason}" if self.run_id else self.reason


class CheckpointNotFoundError(CheckpointError, LookupError):
    """The store has no such checkpoint."""

    run_id: str
    store: str = "store"
    step: int | None = None
    revision: int | None = None
    way_out: str = "store.list() lists the saved runs; completed runs are deleted unless the graph has preserve=True"
    reason: str = attrs.field(default="not found", init=False)

    def __str__(self) -> str:
        run_id, step = shorten(self.run_id), self.step
        if step is None:
            return f"no checkpoint of run {run_id} in the {self.store}; {self.way_out}"
        at = f"step {step}" if self.revision is None else f"step {step}, revision {self.revision},"
        way_out = f"store.history({run_id}) lists the steps that it holds"
        return f"no checkpoint of run {run_id} at {at} in the {self.store}; {way_out}"


class CheckpointSaveError(CheckpointError):
    """A State could not be saved; `state` holds it."""


class CheckpointCorruptError(CheckpointError):
    """A checkpoint is damaged, forged, or belongs to another run."""


class FormatError(CheckpointError):
    """A store, a checkpoint or the order of a turn cannot be read here.

    A newer version of stategraph wrote it, it requires a type or a serializer that is not registered, or it is
    something else. `statements`, if set, is the SQL that creates or updates the tables.
    """

    statements: tuple[str, ...] = ()


class StepConflictError(CheckpointError):
    """A save would change the data of a saved step, or a newer step is already saved."""


class RunLostError(StepConflictError):
    """The call has lost its run: another owner took it, or it was deleted, rolled back or begun again.

    `state` is the State that could not be saved.
    """


class EntriesNotKeptError(CheckpointError, NotImplementedError):
    """What a run does between two States cannot be kept: the class of the store lacks `append` or `entries`."""

    run_id: str
    store: str = "store"
    method: str = "append"
    reason: str = attrs.field(default="the store keeps no entries", init=False)

    def __str__(self) -> str:
        return (
            f"run {shorten(self.run_id)}: the {self.store} has no method {self.method}(): effects, spending, statuses, "
            "messages, kept chunks, stored answers and keys of turns need a store that keeps entries, such as sqlite; "
            "or implement append() and entries() of CheckpointStore"
        )


class RunBusyError(StateGraphError, RuntimeError):
    """Another call owns the run; `owner` is an Owner."""

    run_id: str
    owner: _Owner

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} is at work: {self.owner} owns it; wait for it (wait=seconds), or, if it hangs, take "
            "the run away from it (take_over=True)"
        )


class NotSerializableError(CheckpointError, TypeError):
    """A value cannot be saved exactly; `path` is its path in the State (``orders[3].total``)."""

    path: str = ""

    def __init__(self, path: str, reason: str, run_id: str = "") -> None:
        super().__init__(run_id, reason)
        self.path = path

    def __str__(self) -> str:
        text = f"{brief(self.path) or 'the State'} cannot be saved: {self.reason}"
        if self.state is None:
            return text
        node = f", after node {shorten(self.state.checkpoint_node)}" if self.state.checkpoint_node else ""
        return f"{text} (run {self.state.run_id!r}, step {self.state.step}{node})"
