"""Every exception: its bases, its text, and its way to another process."""

import inspect
import pickle
from collections import OrderedDict, deque
from datetime import UTC, datetime
from typing import Any

import pytest

from stategraph import Owner, Pause, State, errors
from stategraph.errors import (
    AnswerError,
    AsyncNodeError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    ConfigError,
    EffectsError,
    EntriesNotKeptError,
    EntryExistsError,
    ExecutionError,
    FormatError,
    GraphError,
    GraphMismatchError,
    InvalidRunIdError,
    LimitError,
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

ERRORS: list[tuple[StateGraphError, type[BaseException]]] = [
    (GraphError("review", ("one", "two")), ValueError),
    (ConfigError("checkpoint.interval", "5", "a number is"), ValueError),
    (UnknownNameError("observer", "nop", {"noop": 1, "structlog": 2}), LookupError),
    (UnknownNodeError("node", "drft", ["draft"], "review"), LookupError),
    (InvalidRunIdError("../x"), ValueError),
    (ExecutionError("draft", STATE, ("a", "b", "c", "d", "e", "draft"), "failed: ValueError: x"), RuntimeError),
    (LimitError("draft", STATE, ("draft",), "is stopped", {"usd": 5}, {"usd": 5}), ExecutionError),
    (MaxIterationsError("draft", STATE, ("draft",), "is not entered"), ExecutionError),
    (RunCancelledError(STATE, "it was cancelled"), StateGraphError),
    (SchemaError("price", "Order", "items[0].price", "float", "'3' (str)", ("'id': expected str",)), ValueError),
    (AsyncNodeError("draft"), RuntimeError),
    (RunExistsError("review-42", "memory store"), StateGraphError),
    (AnswerError("review-42", Pause("approve", "ask", "a draft", "decision", NOON), "there is none"), ValueError),
    (RunCompleteError("review-42", "publish"), StateGraphError),
    (RecomputeError("review-42", {"index": "node 'build', which wrote it, is not in the graph"}), RuntimeError),
    (GraphMismatchError("review-42", ("node 'a' was added",), "Resume it so."), StateGraphError),
    (CheckpointingDisabledError("review"), StateGraphError),
    (CheckpointError("a", "it failed"), StateGraphError),
    (CheckpointNotFoundError("a", "memory store", 5), LookupError),
    (CheckpointSaveError("a", "no disk"), CheckpointError),
    (CheckpointCorruptError("a", "damaged"), CheckpointError),
    (FormatError("a", "newer"), CheckpointError),
    (StepConflictError("a", "behind"), CheckpointError),
    (NotSerializableError("orders[3].total", "it is a lock", "a"), TypeError),
    (EffectsError("a", ((3, "pay", "charge"),)), ValueError),
    (EntryExistsError("a", "message", "webhook-7"), ValueError),
    (EntriesNotKeptError("a", "my store", "append"), NotImplementedError),
    (RunLostError("a", "it was taken over"), StepConflictError),
    (RunBusyError("a", Owner("vm", 17, NOON)), RuntimeError),
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

    assert classes == {type(error) for error, _ in ERRORS}


def test_an_error(row: Any) -> None:
    """An error derives from the builtin it resembles, and can be pickled with its text and attributes."""
    error, base = row
    loaded = pickle.loads(pickle.dumps(error))

    assert isinstance(error, base)
    assert type(loaded) is type(error)
    assert str(loaded) == str(error) != ""
    assert vars(loaded) == vars(error) != {}


# --------------------------------------------------------------------------- short, whatever comes in

HUGE = "x" * 5_000_000


@pytest.mark.parametrize(
    "error",
    [
        GraphError(HUGE, ("a problem",)),
        ConfigError("key", [HUGE], "text"),
        UnknownNameError("observer", HUGE, [str(number) for number in range(100_000)]),
        UnknownNodeError("node", HUGE, ["a"], HUGE),
        ExecutionError(HUGE, STATE, ("a",) * 100, "failed"),
        NotSerializableError(HUGE, "it is a lock"),
        GraphMismatchError("a", tuple(f"node '{number}' was added" for number in range(10_000)), "Way out."),
    ],
    ids=ids,
)
def test_the_text_stays_short(error: StateGraphError) -> None:
    """A log does not get megabytes."""
    assert len(str(error)) < 3_000


class NoDimensions:
    """An array without dimensions: its length raises."""

    def __len__(self) -> int:
        raise TypeError("len() of unsized object")

    def __repr__(self) -> str:
        return "array(3)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (deque(range(20_000)), "<deque of 20,000 items>"),
        (NoDimensions(), "array(3)"),
        (OrderedDict.fromkeys(range(20_000)), "OrderedDict({0: None, 1: None, "),
        (range(10**12), "range(0, 1000000000000)"),
    ],
    ids=ids,
)
def test_a_value_of_many_items_is_not_read_to_its_end(value: object, shown: str) -> None:
    """An error shows its beginning, or counts its items."""
    assert shown in str(ConfigError("key", value, "text"))
