from stategraph._engine.calling import Recovered, RunCheck
from stategraph._values.events import Event, EventType
from stategraph._values.files import FileRef
from stategraph._values.ids import id_of
from stategraph._values.progress import Answer, Partial, Pause, Repeat
from stategraph._values.provenance import ErrorInfo, Owner, ParentStep, RunStatus
from stategraph._values.registered_types import register_type
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
from stategraph.graph import StateGraph
from stategraph.nodes._chunks import Updates
from stategraph.nodes.base import NodeContext
from stategraph.nodes.interrupt import InterruptNode
from stategraph.nodes.map import MapNode
from stategraph.nodes.parallel import ParallelNode
from stategraph.nodes.wait import WaitNode
from stategraph.observers import MultiObserver, Observer, get_observer, register_observer
from stategraph.policies import CachePolicy, RetryPolicy
from stategraph.state import State
from stategraph.stores import CheckpointStore, get_checkpoint_store, register_checkpoint_store

__version__: str

__all__ = [
    "Answer",
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
    "EffectsError",
    "EntriesNotKeptError",
    "EntryExistsError",
    "ErrorInfo",
    "Event",
    "EventType",
    "ExecutionError",
    "FileRef",
    "FormatError",
    "GraphConfig",
    "GraphError",
    "GraphMismatchError",
    "InterruptNode",
    "InvalidRunIdError",
    "LimitError",
    "MapNode",
    "MaxIterationsError",
    "MultiObserver",
    "NodeContext",
    "NotSerializableError",
    "Observer",
    "Owner",
    "ParallelNode",
    "ParentStep",
    "Partial",
    "Pause",
    "RecomputeError",
    "Recovered",
    "Repeat",
    "RetryPolicy",
    "RunBusyError",
    "RunCancelledError",
    "RunCheck",
    "RunCompleteError",
    "RunExistsError",
    "RunLostError",
    "RunStatus",
    "SchemaError",
    "State",
    "StateGraph",
    "StateGraphError",
    "StepConflictError",
    "UnknownNameError",
    "UnknownNodeError",
    "Updates",
    "WaitNode",
    "always",
    "and_",
    "get_checkpoint_store",
    "get_observer",
    "id_of",
    "key_equals",
    "key_exists",
    "not_",
    "or_",
    "register_checkpoint_store",
    "register_observer",
    "register_type",
]
