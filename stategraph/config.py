"""GraphConfig and CheckpointConfig: the configuration of a graph, from code, a mapping or a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs

from stategraph._text.shown import Hidden, meant, shorten
from stategraph._util.validators import (
    LIMITS,
    Allowed,
    are_limits,
    check_fields,
    encodable,
    is_count,
    is_name,
    is_seconds,
    naming_arguments,
)
from stategraph.errors import ConfigError

__all__ = ["CheckpointConfig", "Durability", "GraphConfig", "Retention"]

Durability: TypeAlias = Literal["sync", "async", "exit"]
"""When a State is saved: before the next node begins, while the run continues, or at the end of the call."""
Retention: TypeAlias = Literal["latest", "full", "windowed"]
"""Which checkpoints of a run are kept: the newest, all, or the newest few."""
Persist: TypeAlias = tuple[str, ...] | Mapping[Literal["except"], tuple[str, ...]] | None


# --------------------------------------------------------------------------- checkpoints


_Keys: TypeAlias = tuple[str, ...] | list[str]


def _to_keys(value: _Keys | Mapping[Literal["except"], _Keys] | None) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_keys(keys) for name, keys in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _usual(interval: int | None) -> int:
    return cast(int, interval)  # None until the store is known


def _are_keys(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, Mapping):
        return value.keys() == {"except"} and isinstance(value["except"], tuple) and _are_keys(value["except"])
    return isinstance(value, tuple) and all(isinstance(key, str) for key in value) and len(set(value)) == len(value)


def _shown_options(options: Mapping[str, Any]) -> str:
    """Return the repr of store options. It shows plain values only, and none that may be a secret."""
    is_shown = (str, int, float, os.PathLike, type(None))
    shown = {name: value if isinstance(value, is_shown) else Hidden.of(value) for name, value in options.items()}
    return shorten(shown, 1_000)


_CHECKPOINT: Allowed = {
    "store": ("the name of a checkpoint store", is_name),
    "interval": (
        "an integer: 0 turns checkpointing off, n saves every n steps",
        lambda value: is_count(value, at_least=0),
    ),
    "preserve": (
        "true keeps the checkpoints of a completed run, false deletes them",
        lambda value: type(value) is bool,
    ),
    "accept": ("true saves the input of `execute` before the first node", lambda value: type(value) is bool),
    "durability": (
        '"sync" saves before the next step, "async" while the run continues, "exit" only when the call ends',
        lambda value: value in get_args(Durability),
    ),
    "retention": (
        '"latest" keeps the newest checkpoint of a run, "full" all, "windowed" as many as window says',
        lambda value: value in get_args(Retention),
    ),
    "window": (
        'with retention "windowed": how many checkpoints of a run are kept, a positive integer',
        lambda value: value is None or is_count(value, at_least=1),
    ),
    "ttl": (
        "the seconds after its completion when prune removes a run; more than 0",
        lambda value: value is None or is_seconds(value),
    ),
    "lease": ("a positive number of seconds: without a renewal for so long, a process loses its runs", is_seconds),
    "persist": (
        'a list of different keys: no others are saved; or {"except": [...]}: all others are',
        _are_keys,
    ),
    "serializer": ('"msgpack", "json", or the name of a registered serializer', is_name),
    "limits": (LIMITS, are_limits),
    "options": (
        "a mapping of option names to values",
        lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    ),
}

_LEASE = 30.0
_ON_ONE_MACHINE = ("memory", "disk", "sqlite")  # stores whose owners hold locks of the operating system, not leases


@naming_arguments()
@attrs.frozen
class CheckpointConfig:
    """When and where the State of a run is saved.

    Attributes:
        store: The name of the checkpoint store: "memory", "sqlite", "disk", "postgres", "redis", or a registered name.
        interval: Save after every so many steps; 0 never saves. None, the default, means 1 if a store other than
            "memory" is named or the graph receives a store object, and 0 otherwise.
        preserve: Whether a completed run stays in the store. If not, its checkpoints are deleted at the exit point.
        accept: Whether `execute` saves the input of a new run before its first node, as `run` and `turn` always do. A
            run that is killed in its first node can then be recovered.
        durability: When a save counts as done. "sync": before the next step; a killed process loses no completed save.
            "async": while the run continues; a killed process loses the queued saves, at most 1,024 of a run. "exit":
            only the final State of a call is saved; a killed process loses all steps of the call.
        retention: Which checkpoints of a run are kept: "latest", "full" or "windowed".
        window: How many of the newest checkpoints retention "windowed" keeps.
        ttl: Seconds after which `CheckpointStore.prune` removes a preserved run, from its completion; for a fork of a
            completed run, from the completion of the original. None for never.
        persist: The only keys of the State that are saved; or ``{"except": [...]}``, the only keys that are not; None
            for all. A resume first runs the nodes again that wrote unsaved keys (page "Selective persistence"). It has
            no effect if nothing is saved.
        lease: For stores on servers: seconds without a renewal after which a process has lost its runs, by the clock of
            the server. Processes renew their leases three times as often. It has no effect on one machine.
        serializer: How the store turns values into bytes: "msgpack", the fastest; "json", readable by other tools; or a
            registered name. A store reads the rows of all serializers.
        options: The arguments of the store: ``{"path": "runs.db"}``, a file, for "sqlite"; ``{"path": "runs"}``, a
            folder, for "disk", both created if missing; ``{"dsn": ...}`` for "postgres"; ``{"url": ...}`` for "redis".

        limits: What a run may spend, by name, unless the call says otherwise: ``{"usd": 5}``; see the page "Budgets".

    Raises:
        ConfigError: A value is not allowed.
    """

    store: str = "memory"
    interval: int = attrs.field(default=None, converter=_usual)
    preserve: bool = False
    durability: Durability = "sync"
    retention: Retention = "latest"
    window: int | None = None
    ttl: float | None = None
    persist: Persist = attrs.field(default=None, converter=_to_keys)
    serializer: str = "msgpack"
    options: Mapping[str, Any] = attrs.field(factory=dict, repr=_shown_options)
    lease: float = _LEASE
    accept: bool = False
    limits: Mapping[str, float] = attrs.field(factory=dict)
    _has_usual_interval: bool = attrs.field(default=False, init=False, eq=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return attrs.asdict(self, recurse=False, filter=lambda field, _: field.init)

    def given(self) -> dict[str, Any]:
        """Return the fields by name, without an interval that was not given."""
        return {
            name: value for name, value in self.to_dict().items() if name != "interval" or not self._has_usual_interval
        }

    def store_options(self) -> dict[str, Any]:
        """Return the arguments of the store: the options, and a serializer and a lease other than the defaults."""
        serializer = {} if self.serializer == "msgpack" else {"serializer": self.serializer}
        lease = {} if self.lease == _LEASE or self.store in _ON_ONE_MACHINE else {"lease": self.lease}
        return {**self.options, **serializer, **lease}

    def __attrs_post_init__(self) -> None:
        if cast(object, self.interval) is None:
            object.__setattr__(self, "interval", 0 if self.store == "memory" else 1)
            object.__setattr__(self, "_has_usual_interval", True)
        check_fields(self, "checkpoint.", _CHECKPOINT, hidden="options")
        if self.options.get("serializer", self.serializer) != self.serializer:
            given = self.options["serializer"]
            raise ConfigError("checkpoint.options.serializer", given, "checkpoint.serializer is the place for it")
        if self.retention == "windowed" and self.window is None:
            allowed = 'retention "windowed" keeps as many checkpoints as window says'
            raise ConfigError("checkpoint.window", None, allowed)
        if self.retention != "windowed" and self.window is not None:
            raise ConfigError("checkpoint.window", self.window, f'retention "{self.retention}" has no window')
        if self.durability == "exit" and self.retention != "latest":
            allowed = 'durability "exit" saves one State a call; "latest" goes with it'
            raise ConfigError("checkpoint.retention", self.retention, allowed)


# --------------------------------------------------------------------------- graphs


def _are_plain(settings: object) -> bool:
    import json  # imported when used, as below

    try:
        json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)


_GRAPH: Allowed = {
    "name": ("a name of 1 to 200 printable characters", is_name),
    "observer": ("the name of an observer", is_name),
    "max_iterations": (
        "a positive integer: how many nodes one call may run",
        lambda value: is_count(value, at_least=1),
    ),
    "version": ("a non-negative integer", lambda value: is_count(value, at_least=0)),
    "settings": ("a mapping of names to plain values, as JSON has them", _are_plain),
    "checkpoint": (
        "a CheckpointConfig (GraphConfig.from_dict takes mappings)",
        lambda value: isinstance(value, CheckpointConfig),
    ),
}


@naming_arguments()
@attrs.frozen
class GraphConfig:
    """The configuration of a StateGraph.

    `merge` lays one configuration over another::

        GraphConfig.from_file("graph.toml").merge({"checkpoint": {"interval": 5}})

    Attributes:
        name: The name of the graph. It is saved with each run, and only a graph of this name resumes the run.
        observer: The name of the observer: "noop", "structlog", which logs to stderr, or a registered name.
        max_iterations: How many nodes one call may run. It stops endless loops.
        checkpoint: When and where the State is saved.
        settings: What else decides what the graph does, such as ``{"model": "m-1"}``: plain values by name. They are
            saved with each run. A run that began with other settings is resumed with ``allow_changed=True`` only.
        version: The version of the data of its runs, a positive integer; 0 for none. It is saved with each run. Runs of
            an older version go on with `StateGraph.upgrade`, and those of a newer one are refused.

    Raises:
        ConfigError: A value is not allowed.
    """

    name: str
    observer: str = "noop"
    max_iterations: int = 1000
    checkpoint: CheckpointConfig = attrs.field(factory=CheckpointConfig)
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    version: int = 0

    def __attrs_post_init__(self) -> None:
        check_fields(self, "", _GRAPH, hidden="checkpoint")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GraphConfig:
        """Return the configuration that a mapping describes. Missing keys have their defaults.

        Raises:
            ConfigError: A key is unknown or missing, or a value is not allowed.
        """
        given = dict(_checked_keys(cls, values))
        if "name" not in given:
            raise ConfigError("name", None, "it has no default; give it a value")
        if "checkpoint" in given:
            checkpoint = _checked_keys(CheckpointConfig, given["checkpoint"], "checkpoint.")
            given["checkpoint"] = CheckpointConfig(**checkpoint)
        return cls(**given)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> GraphConfig:
        """Return the configuration in a TOML or JSON file.

        Raises:
            ConfigError: The file cannot be read; or as for `from_dict`.
        """
        return cls.from_dict(_contents(path))

    def to_dict(self) -> dict[str, Any]:
        """Return a mapping from which `from_dict` makes an equal configuration."""
        fields = attrs.asdict(self, recurse=False, filter=lambda field, value: field.name not in _OF_FEW or bool(value))
        return {**fields, "checkpoint": self.checkpoint.to_dict()}

    def settings_as_json(self) -> dict[str, str]:
        """Return the settings as JSON, by name."""
        import json

        return {name: json.dumps(value, sort_keys=True) for name, value in self.settings.items()}

    def for_store_object(self) -> GraphConfig:
        """Return the configuration for a graph that receives a store object: by default it saves every step."""
        if "interval" in self.checkpoint.given():
            return self
        return attrs.evolve(self, checkpoint=attrs.evolve(self.checkpoint, interval=1))

    def merge(self, other: GraphConfig | Mapping[str, Any]) -> GraphConfig:
        """Return this configuration with another one laid over it.

        Args:
            other: A mapping, all of whose keys win; or a GraphConfig, whose values win unless they are defaults.
                ``checkpoint.options`` is one value: it is replaced, not merged.

        Raises:
            ConfigError: A key is unknown, or a value is not allowed.
        """
        changes = other._changes() if isinstance(other, GraphConfig) else _checked_mapping("merge", other)
        given = _checked_mapping("checkpoint", changes.get("checkpoint", {}))
        return self.from_dict({**self.to_dict(), **changes, "checkpoint": {**self.checkpoint.given(), **given}})

    def _changes(self) -> dict[str, Any]:
        """Return the name and the values that are not defaults."""
        checkpoint = _differing(self.checkpoint.given(), CheckpointConfig().given())
        usual = GraphConfig(self.name).to_dict()
        return {**_differing(self.to_dict(), usual), "name": self.name, "checkpoint": checkpoint}


_OF_FEW = ("settings", "version")


def _differing(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != usual.get(name)}


# --------------------------------------------------------------------------- mappings and files


def _checked_keys(cls: type[attrs.AttrsInstance], values: object, path: str = "") -> Mapping[str, Any]:
    """Return a mapping whose keys are fields of a configuration. No value is coerced, and no key is ignored."""
    known = tuple(field.name for field in attrs.fields(cls) if field.init)
    given = _checked_mapping(path.rstrip(".") or "configuration", values)
    for key in given:
        if key not in known:
            way_out = meant(str(key), known)
            if not path and key in attrs.fields_dict(CheckpointConfig):
                way_out = f"it goes into the table checkpoint, as checkpoint.{key}"
            elif path and not way_out:
                way_out = f"an option of the store goes into the table checkpoint.options, as {path}options.{key}"
            allowed = f"there is no such key{way_out and '; ' + way_out} (keys: {', '.join(known)})"
            raise ConfigError(f"{path}{key}", given[key], allowed, is_shown=False)  # a misspelled secret?
    return given


def _checked_mapping(key: str, values: object) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(key, values, "a mapping (a table, in TOML)", is_shown=False)
    return values


def _contents(path: object) -> Any:
    """Return the contents of a configuration file."""
    import json  # imported when used, as the others
    import tomllib
    from pathlib import Path

    parsers = {".toml": tomllib.loads, ".json": json.loads}
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    name = encodable(text) if isinstance(text, str) else None
    if name is None:
        raise ConfigError("file", path, "the path of a file")
    file = Path(name).absolute()
    parse = parsers.get(file.suffix.lower())
    if parse is None:
        raise ConfigError("file", str(file), f"a name that ends in {' or '.join(parsers)}")
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("file", str(file), f"a readable {file.suffix} file ({error})") from error
