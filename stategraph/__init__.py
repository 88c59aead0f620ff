"""stategraph runs a workflow as a graph of steps, and never loses the work that is done.

A checkpoint is the State itself; see `State`, `StateGraph` and `CheckpointStore`.

Names are imported when they are asked for, so that a program pays for what it uses.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stategraph._values.events import Event, EventType
    from stategraph._values.provenance import ErrorInfo, ParentStep, Partial, Pause, RunStatus
    from stategraph.config import CheckpointConfig, GraphConfig
    from stategraph.edges import Edge, always, and_, key_equals, key_exists, not_, or_
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
        RunCancelledError,
        RunCompleteError,
        RunExistsError,
        SchemaError,
        StateGraphError,
        StepConflictError,
        UnknownNameError,
        UnknownNodeError,
    )
    from stategraph.graph import StateGraph
    from stategraph.nodes.context import NodeContext
    from stategraph.nodes.interrupt import InterruptNode
    from stategraph.nodes.map import MapNode
    from stategraph.nodes.parallel import ParallelNode
    from stategraph.observers import MultiObserver, Observer, get_observer, register_observer
    from stategraph.policies import CachePolicy, RetryPolicy
    from stategraph.state import State
    from stategraph.stores import CheckpointStore, get_checkpoint_store, register_checkpoint_store
    from stategraph.stores._codec.types import register_type

__version__ = "0.1.0"

__all__ = [
    "AnswerError",
    "AsyncNodeError",
    "CachePolicy",
    "CheckpointConfig",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointSaveError",
    "CheckpointStore",
    "CheckpointingDisabledError",
    "ConfigError",
    "Edge",
    "ErrorInfo",
    "Event",
    "EventType",
    "ExecutionError",
    "FormatError",
    "GraphConfig",
    "GraphError",
    "GraphMismatchError",
    "InterruptNode",
    "InvalidRunIdError",
    "MapNode",
    "MaxIterationsError",
    "MultiObserver",
    "NodeContext",
    "NotSerializableError",
    "Observer",
    "ParallelNode",
    "ParentStep",
    "Partial",
    "Pause",
    "RecomputeError",
    "RetryPolicy",
    "RunCancelledError",
    "RunCompleteError",
    "RunExistsError",
    "RunStatus",
    "SchemaError",
    "State",
    "StateGraph",
    "StateGraphError",
    "StepConflictError",
    "UnknownNameError",
    "UnknownNodeError",
    "always",
    "and_",
    "get_checkpoint_store",
    "get_observer",
    "key_equals",
    "key_exists",
    "not_",
    "or_",
    "register_checkpoint_store",
    "register_observer",
    "register_type",
]

_HOMES = {
    "_values.events": "Event EventType",
    "_values.provenance": "ErrorInfo ParentStep Partial Pause RunStatus",
    "config": "CheckpointConfig GraphConfig",
    "edges": "Edge always and_ key_equals key_exists not_ or_",
    "graph": "StateGraph",
    "nodes.context": "NodeContext",
    "nodes.interrupt": "InterruptNode",
    "nodes.map": "MapNode",
    "nodes.parallel": "ParallelNode",
    "observers": "MultiObserver Observer get_observer register_observer",
    "policies": "CachePolicy RetryPolicy",
    "state": "State",
    "stores": "CheckpointStore get_checkpoint_store register_checkpoint_store",
    "stores._codec.types": "register_type",
}
"""Where names are defined. All others are errors."""

_ROOMS = ("config", "edges", "errors", "graph", "nodes", "observers", "policies", "state", "stores")


def __getattr__(name: str) -> Any:
    """Import a public name, or a public module, when it is asked for."""
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"stategraph.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names.split()), "errors")
    value = globals()[name] = getattr(import_module(f"stategraph.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
