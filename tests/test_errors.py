"""Every exception: what it derives from, what it says, and that it can be sent to another process."""

import builtins
import inspect
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from stategraph import Owner, Pause, State, errors
from stategraph._text.shown import describe_exception, shorten
from stategraph.errors import (
    AnswerError,
    AsyncNodeError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    ConfigError,
    ExecutionError,
    FormatError,
    GraphError,
    GraphMismatchError,
    InvalidRunIdError,
    MaxIterationsError,
    NotSerializableError,
    RecomputeError,
    RunBusyError,
    RunCancelledError,
    RunCompleteError,
    RunExistsError,
    RunLostError,
    SchemaError,
    StateGraphError,
    StepConflictError,
    UnknownNameError,
    UnknownNodeError,
)

STATE = State({"topic": "errors"}, run_id="review-42", step=3)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

ERRORS: list[tuple[StateGraphError, type[BaseException], dict[str, Any], str]] = [
    (
        GraphError("review", ("it has no nodes",)),
        ValueError,
        {"graph": "review", "problems": ("it has no nodes",)},
        "graph 'review': it has no nodes",
    ),
    (
        GraphError("review", ("one", "two")),
        ValueError,
        {"problems": ("one", "two")},
        "graph 'review' has 2 problems:\n  - one\n  - two",
    ),
    (
        ConfigError("checkpoint.interval", "5", "a number is"),
        ValueError,
        {"key": "checkpoint.interval", "value": "5", "allowed": "a number is"},
        "checkpoint.interval: '5' is not allowed; a number is",
    ),
    (
        UnknownNameError("observer", "nop", {"noop": 1, "structlog": 2}),
        LookupError,
        {"kind": "observer", "name": "nop", "known": ["noop", "structlog"]},
        "no observer is named 'nop'; did you mean 'noop'? (known: 'noop', 'structlog')",
    ),
    (
        UnknownNameError("observer", "x", []),
        LookupError,
        {"known": []},
        "no observer is named 'x' (known: none)",
    ),
    (
        UnknownNodeError("node", "drft", ["draft"], "review"),
        LookupError,
        {"kind": "node", "name": "drft", "known": ["draft"], "graph": "review"},
        "graph 'review': no node is named 'drft'; did you mean 'draft'? (known: 'draft'); add_node comes first",
    ),
    (
        InvalidRunIdError("../x"),
        ValueError,
        {"run_id": "../x"},
        "run_id: '../x' (4 characters) is not allowed; use 1 to 200 of A-Z a-z 0-9 . _ : @ + = / -, with no part",
    ),
    (
        ExecutionError("draft", STATE, ("a", "b", "c", "d", "e", "draft"), "failed: ValueError: x"),
        RuntimeError,
        {"node_name": "draft", "state": STATE, "reason": "failed: ValueError: x"},
        "node 'draft' of run 'review-42' failed: ValueError: x (path: b -> c -> d -> e -> draft)",
    ),
    (
        MaxIterationsError("draft", STATE, ("draft",), "is not entered"),
        ExecutionError,
        {"path": ("draft",)},
        "node 'draft' of run 'review-42' is not entered (path: draft)",
    ),
    (
        RunCancelledError(STATE, "it was cancelled"),
        StateGraphError,
        {"state": STATE, "reason": "it was cancelled"},
        "run 'review-42' was stopped after step 3: it was cancelled",
    ),
    (
        SchemaError("price", "Order", "items[0].price", "float", "'3' (str)", ("'id': expected str, found nothing",)),
        ValueError,
        {"node": "price", "schema": "Order", "key": "items[0].price", "expected": "float", "found": "'3' (str)"},
        "node 'price': 'items[0].price' of Order: expected float, found '3' (str); 'id': expected str, found nothing",
    ),
    (AsyncNodeError("draft"), RuntimeError, {"node_name": "draft"}, "node 'draft' is async and"),
    (RunExistsError("review-42", "memory store"), StateGraphError, {"run_id": "review-42"}, "in the memory store"),
    (
        AnswerError("review-42", Pause("to be approved", "ask", "a draft", "decision", NOON), "there is none"),
        ValueError,
        {"run_id": "review-42", "problem": "there is none"},
        "'decision' (to be approved). The question is 'a draft'. Answer with resume('review-42', {'decision': ...})",
    ),
    (RunCompleteError("review-42", "publish"), StateGraphError, {"node": "publish"}, "(it ended at 'publish')"),
    (
        RecomputeError("review-42", {"index": "node 'build', which wrote it, is not in the graph"}),
        RuntimeError,
        {"run_id": "review-42", "reasons": {"index": "node 'build', which wrote it, is not in the graph"}},
        (
            "run 'review-42' cannot go on without keys that are not saved and cannot be computed again: 'index' (node "
            "'build', which wrote it, is not in the graph). Give them the values that they had: "
            "resume('review-42', {'index': ...}); keys in checkpoint.persist are saved"
        ),
    ),
    (
        GraphMismatchError("review-42", ("node 'a' was added",), "Resume it so."),
        StateGraphError,
        {"run_id": "review-42", "changes": ("node 'a' was added",), "way_out": "Resume it so."},
        "run 'review-42' does not fit this graph: node 'a' was added. Resume it so.",
    ),
    (CheckpointingDisabledError("review"), StateGraphError, {"graph": "review"}, "CheckpointConfig(interval=1)"),
    (CheckpointError("a", "it failed"), StateGraphError, {"run_id": "a", "state": None}, "run 'a': it failed"),
    (CheckpointError("", "it failed"), StateGraphError, {"run_id": ""}, "it failed"),
    (
        CheckpointNotFoundError("a", "memory store", 5),
        LookupError,
        {"run_id": "a", "store": "memory store", "step": 5},
        "no checkpoint of run 'a' at step 5 in the memory store; store.history('a') lists the steps that it holds",
    ),
    (CheckpointSaveError("a", "no disk"), CheckpointError, {"reason": "no disk"}, "run 'a': no disk"),
    (CheckpointCorruptError("a", "damaged"), CheckpointError, {"reason": "damaged"}, "run 'a': damaged"),
    (FormatError("a", "newer"), CheckpointError, {"reason": "newer"}, "run 'a': newer"),
    (StepConflictError("a", "behind"), CheckpointError, {"reason": "behind"}, "run 'a': behind"),
    (
        NotSerializableError("orders[3].total", "it is a lock", "a"),
        TypeError,
        {"path": "orders[3].total", "reason": "it is a lock", "run_id": "a"},
        "orders[3].total cannot be saved: it is a lock",
    ),
    (
        RunLostError("a", "it was taken over"),
        StepConflictError,
        {"run_id": "a", "reason": "it was taken over"},
        "run 'a': it was taken over",
    ),
    (
        RunBusyError("a", Owner("vm", 17, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))),
        RuntimeError,
        {"run_id": "a", "owner": Owner("vm", 17, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))},
        (
            "run 'a' is at work: process 17 on vm, since 2026-01-02 03:04:05 UTC owns it; wait for it (wait=seconds), "
            "or, if it hangs, take the run away from it (take_over=True)"
        ),
    ),
]


def ids(error: object) -> str:
    return type(error).__name__


@pytest.fixture(params=ERRORS, ids=lambda row: type(row[0]).__name__)
def row(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_every_exception_is_in_the_table() -> None:
    """A new one must be, too."""
    classes = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, BaseException)} - {
        StateGraphError
    }

    assert classes == {type(error) for error, *_ in ERRORS}


def test_an_error_derives_from_ours_and_from_a_builtin(row: Any) -> None:
    """So that it can be caught as what it resembles."""
    error, base, *_ = row

    assert isinstance(error, StateGraphError)
    assert isinstance(error, base)
    assert base is not StateGraphError or not {
        cls for cls in type(error).__mro__ if cls.__module__ == builtins.__name__
    } & {ValueError, LookupError, TypeError, RuntimeError}


def test_an_error_says_what_is_wrong_and_what_to_do(row: Any) -> None:
    """In its text; what it speaks of is in attributes."""
    error, _, attributes, text = row

    assert text in str(error)
    assert {name: getattr(error, name) for name in attributes} == attributes


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_an_error_can_be_pickled(row: Any, protocol: int) -> None:
    """With its text and its attributes."""
    error, _, attributes, _ = row

    loaded = pickle.loads(pickle.dumps(error, protocol))

    assert type(loaded) is type(error)
    assert str(loaded) == str(error)
    assert {name: getattr(loaded, name) for name in attributes} == attributes


def test_the_state_at_stake_is_pickled_too() -> None:
    """It is what the caller needs most."""
    error = CheckpointSaveError("review-42", "no disk")
    error.state = STATE

    assert pickle.loads(pickle.dumps(error)).state == STATE


# --------------------------------------------------------------------------- short, whatever comes in

HUGE = "x" * 5_000_000


@pytest.mark.parametrize(
    "error",
    [
        GraphError(HUGE, ("a problem",)),
        ConfigError("key", HUGE, "text"),
        ConfigError("key", [HUGE], "text"),
        ConfigError(f"checkpoint.{HUGE}", 5, "no such key"),
        UnknownNameError("observer", HUGE, ["noop"]),
        UnknownNameError("observer", "x", [f"{number}{HUGE[:10_000]}" for number in range(50)]),
        UnknownNameError("observer", "x", [str(number) for number in range(100_000)]),
        UnknownNodeError("node", HUGE, ["a"], HUGE),
        InvalidRunIdError(HUGE),
        InvalidRunIdError(HUGE.encode()),
        ExecutionError(HUGE, STATE, ("a",) * 100, "failed"),
        CheckpointNotFoundError(HUGE),
        CheckpointError(HUGE, "failed"),
        NotSerializableError(HUGE, "it is a lock"),
        GraphMismatchError("a", tuple(f"node '{number}' was added" for number in range(10_000)), "Way out."),
    ],
    ids=ids,
)
def test_the_text_stays_short(error: StateGraphError) -> None:
    """Nobody wants megabytes in a log."""
    assert len(str(error)) < 3_000


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Endless:
    def __repr__(self) -> str:
        return f"{self!r}"


@pytest.mark.parametrize(
    "value", [Hostile(), [Hostile()], {"a": Hostile()}, Endless()], ids=["plain", "list", "dict", "endless"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda value: ConfigError("key", value, "text"),
        InvalidRunIdError,
        lambda value: UnknownNameError("observer", value, ["noop"]),
        lambda value: UnknownNodeError("node", value, ["a"], "g"),
    ],
)
def test_a_repr_that_raises_is_no_second_error(make: Any, value: Any) -> None:
    """The text names the class instead."""
    text = str(make(value))

    assert "whose repr raises" in text
    assert type(value).__name__ in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("short", "'short'"),
        (None, "None"),
        (b"a", "b'a'"),
        ("x" * 500, "'" + "x" * 76 + "..."),
        (list(range(500)), repr(list(range(500)))[:77] + "..."),
        ("postgres://me:p@ss@db/runs", "'postgres://me:...@db/runs'"),
        (["postgres://me:secret@db"], "['postgres://me:...@db']"),
        ("http://localhost:8080/" + "x" * 500, "'http://localhost:8080/" + "x" * 54 + "..."),
    ],
    ids=lambda value: repr(value)[:10],
)
def test_shorten(value: Any, text: str) -> None:
    """A repr of at most 80 characters."""
    assert shorten(value) == text
    assert len(text) <= 80


class _MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("it failed"), "ValueError: it failed"),
        (ValueError(), "ValueError"),
        (KeyError("a"), "KeyError: 'a'"),
        (_MuteError(), "_MuteError: <its str raises ValueError>"),
    ],
    ids=ids,
)
def test_exceptions_are_described(error: BaseException, text: str) -> None:
    """Even where they cannot describe themselves."""
    assert describe_exception(error) == text
