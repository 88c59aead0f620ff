"""stategraph runs a workflow as a graph of steps, and never loses the work that is done.

Begin with `StateGraph`; a checkpoint is a `State`, and a `CheckpointStore` keeps it.
"""

# A name is imported when it is first used, so that a program pays for what it uses. Type checkers read __init__.pyi.

__version__ = "0.2.0.dev0"

_HOMES = {
    "graph": "StateGraph",
    "state": "State",
    "nodes.base": "NodeContext",
    "nodes._chunks": "Updates",
    "nodes.interrupt": "InterruptNode",
    "nodes.map": "MapNode",
    "nodes.parallel": "ParallelNode",
    "nodes.wait": "WaitNode",
    "edges": "Edge always and_ key_equals key_exists not_ or_",
    "policies": "CachePolicy RetryPolicy",
    "config": "CheckpointConfig GraphConfig",
    "stores": "CheckpointStore get_checkpoint_store register_checkpoint_store",
    "observers": "MultiObserver Observer get_observer register_observer",
    "_values.events": "Event EventType",
    "_values.progress": "Answer Partial Pause Repeat",
    "_values.provenance": "ErrorInfo Owner ParentStep RunStatus",
    "_engine.calling": "Recovered RunCheck",
    "_values.files": "FileRef",
    "_values.ids": "id_of",
    "_values.registered_types": "register_type",
    "errors": """
        AnswerError AsyncNodeError CheckpointCorruptError CheckpointError CheckpointNotFoundError
        CheckpointSaveError CheckpointingDisabledError ConfigError EffectsError EntriesNotKeptError EntryExistsError
        ExecutionError FormatError GraphError
        GraphMismatchError InvalidRunIdError LimitError MaxIterationsError NotSerializableError RecomputeError
        RunBusyError RunCancelledError RunCompleteError RunExistsError RunLostError SchemaError StateGraphError
        StepConflictError UnknownNameError UnknownNodeError
    """,
}
"""The public names by the modules that define them."""

__doc__ = f"{__doc__}\nPublic names:\n\n" + "\n".join(f"    {' '.join(names.split())}" for names in _HOMES.values())

__all__ = sorted(" ".join(_HOMES.values()).split())  # noqa: PLE0605 - made of what is above
_ROOMS = (
    "config",
    "edges",
    "errors",
    "graph",
    "nodes",
    "observers",
    "picture",
    "policies",
    "state",
    "stores",
    "turns",
    "types",
)


def __getattr__(name: str) -> object:
    """Import a public name, or a public module, when it is first used."""
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
