"""What a State knows besides its data: status, kind, error, parent, owner and structure of the graph.

What few runs have, such as a pause, is in `stategraph._values.progress`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from types import FrameType
from typing import Any, Literal, TypeAlias, cast

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import is_ours, users_part
from stategraph._util.validators import are_labels, is_optional, maps_texts
from stategraph._values.frozen import freeze
from stategraph._values.ids import check_run_id
from stategraph.errors import ExecutionError

_MESSAGE_LENGTH = 2000  # saved characters of the text of an exception, and of its traceback
_CALLS = 10  # saved calls of its traceback


_is_str = attrs.validators.instance_of(str)


def check_step(value: int, name: str = "step") -> int:
    """Return the number of a step. Raises ValueError unless it is a non-negative integer; `name` is the argument."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{name}: {shorten(value)} is not allowed; a non-negative integer is")
    return value


LABELS = "a mapping of str to str, without lone surrogates"
"""What labels are, for errors."""

NO_LABELS: Mapping[str, str] = freeze({})
"""The labels of most runs."""


def checked_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels of a run. Raises ValueError for anything else."""
    if labels is NO_LABELS or (isinstance(labels, Mapping) and not labels):
        return NO_LABELS
    if not are_labels(labels):
        raise ValueError(f"labels: {shorten(labels)} are not allowed; {LABELS} is")
    return cast(Mapping[str, str], freeze(dict(labels)))


class RunStatus(StrEnum):
    """The status of a run. Only a completed run cannot be resumed; a cancelled run waits for a resume."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


StatusName: TypeAlias = RunStatus | Literal["active", "paused", "completed", "failed", "cancelled"]
"""A status as users may write it."""


class Kind(StrEnum):
    """The kind of record that a checkpoint is."""

    INPUT = "input"
    STEP = "step"
    PAUSE = "pause"
    ANSWER = "answer"
    UPDATE = "update"
    FAILURE = "failure"
    CANCEL = "cancel"
    END = "end"
    ROLLBACK = "rollback"
    REDACT = "redact"


_KIND_OF_STATUS = {
    "paused": Kind.PAUSE,
    "failed": Kind.FAILURE,
    "completed": Kind.END,
    "cancelled": Kind.CANCEL,
}


def kind_of(status: str, node: str) -> Kind:
    """Return the kind of a State from its status and its last completed node."""
    return _KIND_OF_STATUS.get(status) or (Kind.STEP if node else Kind.INPUT)


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


@attrs.frozen
class Facts:
    """The origin of a State, if its other fields do not show it.

    Attributes:
        kind: The kind of record.
        by: The author, if the caller named one.
        attempts: The number of attempts of its step.
        effects: The keys of the effects of its step; of a nested run, of all its steps.
    """

    kind: Kind | None = attrs.field(default=None, converter=attrs.converters.optional(Kind))
    by: str | None = attrs.field(default=None, validator=is_optional(str))
    attempts: int = attrs.field(default=1, validator=attrs.validators.instance_of(int))
    effects: tuple[str, ...] = attrs.field(default=(), converter=_texts)


@attrs.define(eq=False)
class InputDigest:
    """A digest that is made when it is first needed: a run on the memory store may never need it."""

    _make: Callable[[], str] | None
    _text: str = ""

    def __str__(self) -> str:
        make = self._make
        if make is not None:
            self._text = make()
            self._make = None  # and no longer keep the input in memory
        return self._text


@attrs.frozen
class ErrorInfo:
    """A failure: the type and the text of the exception, and the node that raised it.

    Attributes:
        type: The name of the type of the exception.
        message: The text of the exception, at most 2,000 characters.
        node: The name of the node.
        traceback: The last calls that led to the exception, from the function of the node on; empty if there are none.
            It is neither compared nor in the repr.
    """

    type: str = attrs.field(validator=_is_str)
    message: str = attrs.field(validator=_is_str)
    node: str = attrs.field(validator=_is_str)
    traceback: str = attrs.field(default="", validator=_is_str, eq=False, repr=False)

    @property
    def parts(self) -> list[str]:
        """The fields as a list, for stores."""
        return [self.type, self.message, self.node, self.traceback]

    @classmethod
    def of(cls, error: BaseException, node: str, text: str = "") -> ErrorInfo:
        """Return the ErrorInfo of an exception that a node raised, and that this text describes, if it is given."""
        name = type(error).__name__
        info = cls.said(name, (text or describe_exception(error)).removeprefix(f"{name}: "), node)
        return attrs.evolve(info, traceback=shortened_traceback(error))

    @classmethod
    def said(cls, type: str, message: str, node: str) -> ErrorInfo:
        """Return an ErrorInfo with a text, which is cut and made valid UTF-8."""
        return cls(type, _storable(message[:_MESSAGE_LENGTH]), node)


def shortened_traceback(error: BaseException) -> str:
    """Return the last calls that led to an exception: the file, line and function of each call, without code.

    The first call is in the user's code. Calls in stategraph are omitted unless there are no others. For a group, it is
    the traceback of its first exception; for the failure of a nested run, that of the cause.
    """
    while isinstance(error, BaseExceptionGroup | ExecutionError):
        cause = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
        if cause is None:
            break
        error = cause
    from traceback import walk_tb  # imported when used

    calls: list[str] = []
    theirs: list[str] = []
    for frame, line in walk_tb(users_part(error.__traceback__)):
        calls.append(f"{_file_of(frame)}:{line} in {frame.f_code.co_name}")
        if not is_ours(frame):
            theirs.append(calls[-1])
    return _storable("\n".join((theirs or calls)[-_CALLS:])[-_MESSAGE_LENGTH:])


def _file_of(frame: FrameType) -> str:
    """Return the file of a call relative to its import root, without folders of this machine."""
    parts = frame.f_code.co_filename.replace("\\", "/").split("/")
    depth = str(frame.f_globals.get("__name__", "")).count(".") + 1 + (parts[-1] == "__init__.py")
    return "/".join(parts[-depth:])


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@attrs.frozen
class ParentStep:
    """The step of another run from which a run was forked, or in which it is nested."""

    run_id: str = attrs.field(converter=check_run_id)
    step: int = attrs.field(converter=check_step)


@attrs.frozen
class Owner:
    """The process that owns a run.

    Attributes:
        host: The name of the machine.
        pid: The process id; None if unknown.
        since: The time at which the ownership began, aware, in UTC; None if unknown.
        until: The time at which its lease expires unless it is renewed; None without a lease.
        node: The current node; None if unknown. Not compared.
        node_since: The time at which the run entered that node, aware, in UTC. Not compared.
    """

    host: str
    pid: int | None
    since: datetime | None = None
    until: datetime | None = None
    node: str | None = attrs.field(default=None, eq=False)
    node_since: datetime | None = attrs.field(default=None, eq=False)

    def __str__(self) -> str:
        process = "a process" if self.pid is None else f"process {self.pid}"
        since = "" if self.since is None else f" (since {self.since:%Y-%m-%d %H:%M:%S} UTC)"
        return f"{process} on {self.host}{since}"


# --------------------------------------------------------------------------- the structure of the graph


@attrs.frozen(order=True)
class EdgeStructure:
    """An edge in a form that can be compared across processes.

    Attributes:
        source: The node that it leaves.
        target: The node that it leads to.
        label: Its name, or a description of its predicate.
        shown: The text that pictures show instead of the label, such as the name of a function; empty for the label.
            Not compared.
    """

    source: str = attrs.field(validator=_is_str)
    target: str = attrs.field(validator=_is_str)
    label: str = attrs.field(validator=_is_str)
    shown: str = attrs.field(default="", eq=False, order=False, validator=_is_str)

    def __str__(self) -> str:
        return f"{self.source!r} -> {self.target!r} ({self.label})"


def _maps_texts(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not maps_texts(value):
        raise TypeError(f"{attribute.name}: {shorten(value)} is not allowed; a mapping of str to str is")


def _all_are(cls: type) -> Any:
    return attrs.validators.deep_iterable(attrs.validators.instance_of(cls))


@attrs.frozen(slots=False)
class GraphStructure:
    """The structure of a graph, which is saved with its runs to detect changes.

    The code of nodes and predicates is not part of it: a run must survive the fix of the bug that stopped it.

    Attributes:
        nodes: The names of the nodes.
        edges: The edges in the order in which they are tried; edges to handlers of failures, labelled "on_error", last.
        entry: The entry point; None if unknown: older versions saved none of the following. They are for pictures and,
            except for the kinds of nodes, not compared.
        exits: The exit points.
        outlines: A NodeOutline of each node that is not a plain function.
        module: The module that made the graph; empty if unknown. Not compared.
        settings: The settings in the config of the graph, as JSON; None if unknown, as in what older versions saved.
        version: The version in the config of the graph; 0 for none. Not compared.
    """

    nodes: tuple[str, ...] = attrs.field(validator=_all_are(str))
    edges: tuple[EdgeStructure, ...] = attrs.field(validator=_all_are(EdgeStructure))
    entry: str | None = attrs.field(default=None, eq=False, validator=is_optional(str))
    exits: tuple[str, ...] = attrs.field(default=(), eq=False, validator=_all_are(str))
    outlines: Mapping[str, Any] = attrs.field(factory=dict, eq=False)
    module: str = attrs.field(default="", eq=False, validator=_is_str)
    settings: Mapping[str, str] | None = attrs.field(default=None, eq=False, validator=_maps_texts)
    version: int = attrs.field(default=0, eq=False, converter=check_step)

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The kinds of the nodes that are no functions, by name."""
        kinds = ((name, outline.kind) for name, outline in self.outlines.items())
        return {name: kind for name, kind in kinds if kind != "function"}

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, the same for equal structures in every process."""
        import hashlib  # imported when used: OpenSSL takes 4 ms

        by_source = sorted(self.edges, key=lambda edge: edge.source)  # the order matters only among the edges of a node
        parts = [*sorted(self.nodes), "", *(part for edge in by_source for part in attrs.astuple(edge)[:3])]
        parts += [text for kind in sorted(self.kinds.items()) for text in ("", *kind)]
        parts += [text for setting in sorted((self.settings or {}).items()) for text in ("setting", *setting)]
        parts += ["version", str(self.version)] if self.version else []
        return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:32]
