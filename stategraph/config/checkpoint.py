"""CheckpointConfig: when and where a State is saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs

from stategraph._text.shown import Hidden, may_be_secret, shorten
from stategraph._util.validators import Allowed, check_fields, is_count, is_name, is_seconds, naming_arguments
from stategraph.errors import ConfigError

Durability: TypeAlias = Literal["sync", "async", "exit"]
"""When a State is saved: before the next node begins, beside it, or at the end of the call."""
Retention: TypeAlias = Literal["latest", "full", "windowed"]
"""Which checkpoints of a run are kept: the newest, all, or the newest few."""


Persist: TypeAlias = tuple[str, ...] | Mapping[Literal["except"], tuple[str, ...]] | None


def _to_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_keys(keys) for name, keys in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _are_keys(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, Mapping):
        return value.keys() == {"except"} and isinstance(value["except"], tuple) and _are_keys(value["except"])
    return isinstance(value, tuple) and all(isinstance(key, str) for key in value) and len(set(value)) == len(value)


def _is_options(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _shown_options(options: object) -> str:
    """Return options in words: their names, and the values that are plain and no secrets by their names."""
    if not isinstance(options, Mapping):
        return repr(Hidden.of(options))
    return f"{{{', '.join(f'{name!r}: {_shown(name, value)}' for name, value in options.items())}}}"


def _shown(name: object, value: object) -> str:
    from pathlib import PurePath  # imported when used: 4 ms

    is_shown = isinstance(value, str | int | float | None | PurePath) and not may_be_secret(f"options.{name}")
    return shorten(value if is_shown else Hidden.of(value))


_ALLOWED: Allowed = {
    "store": ("the name of a checkpoint store", is_name),
    "interval": ("0 turns checkpointing off, n saves every n steps", lambda value: is_count(value, at_least=0)),
    "preserve": (
        "true keeps the checkpoints of a completed run, false deletes them",
        lambda value: type(value) is bool,
    ),
    "durability": (
        '"sync" saves before the next step, "async" while the run goes on, "exit" only where the run ends',
        lambda value: value in get_args(Durability),
    ),
    "retention": (
        '"latest" keeps the newest checkpoint of a run, "full" all, "windowed" as many as window says',
        lambda value: value in get_args(Retention),
    ),
    "window": (
        'with retention "windowed": how many checkpoints of a run are kept, from 1 on',
        lambda value: value is None or is_count(value, at_least=1),
    ),
    "ttl": (
        "the seconds after its completion when prune removes a run; more than 0",
        lambda value: value is None or is_seconds(value),
    ),
    "lease": ("the seconds after which a process that is not heard of has lost its runs; more than 0", is_seconds),
    "persist": (
        'a list of different keys: no others are saved; or {"except": [...]}: all others are',
        _are_keys,
    ),
    "serializer": ('"msgpack", "json", or the name of a registered serializer', is_name),
    "options": ("a mapping of option names to values", _is_options),
}


_LEASE = 30.0
_ON_ONE_MACHINE = ("memory", "disk", "sqlite")  # locks of the operating system show the owners


@naming_arguments()
@attrs.frozen
class CheckpointConfig:
    """When and where the State of a run is saved.

    Attributes:
        store: Name of the checkpoint store: "memory", "disk", "sqlite", or one that was registered.
        interval: Save after every so many steps; 0 saves nothing, ever. None, the default, stands for 1 where another
            store than "memory" is named, or where the graph is given such a store, and else for 0.
        preserve: Whether a completed run stays in the store. If not, its checkpoints are deleted at the exit point.
        durability: When a save counts as done. "sync": before the next step; a killed process loses nothing that is
            saved. "async": while the run goes on; it loses the saves that wait
            (`stategraph.stores.write_behind.QUEUE_BOUND` at most). "exit": only the State with which the call ends is
            saved; it loses all steps of the call.
        retention: Which checkpoints of a run are kept: "latest", "full", or "windowed".
        window: With retention "windowed", how many of the newest.
        ttl: Seconds after its completion when `CheckpointStore.prune` removes a preserved run; None for never.
        persist: The only keys of the State that are saved; or ``{"except": [...]}``, the only ones that are not; None
            for all. When a run is resumed, the nodes that wrote keys that are not saved run again first
            (docs/selective-persistence.md). Without effect where nothing is saved.
        lease: Where runs live on a server: seconds after which a process that is not heard of has lost its runs, by the
            clock of the server. It says that it is there each third of it. Without effect on one machine.
        serializer: How the store turns values into bytes: "msgpack", the fastest; "json", which other tools read; or
            one that was registered. A store has rows of several, and reads them all.
        options: What the store is made with, such as ``{"path": "runs"}`` for "disk".

    Raises:
        ConfigError: a value is not allowed.
    """

    store: str = "memory"
    interval: int = attrs.field(default=cast(int, None))
    preserve: bool = False
    durability: Durability = "sync"
    retention: Retention = "latest"
    window: int | None = None
    ttl: float | None = None
    persist: Persist = attrs.field(default=None, converter=_to_keys)
    serializer: str = "msgpack"
    options: Mapping[str, Any] = attrs.field(factory=dict, repr=_shown_options)
    lease: float = _LEASE
    _is_usual: bool = attrs.field(default=False, init=False, eq=False, repr=False)  # no interval was said

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by their names."""
        return attrs.asdict(self, recurse=False, filter=lambda field, _: field.init)

    def without_usual(self) -> dict[str, Any]:
        """Return the fields by their names; without the interval, if that was not said."""
        return {name: value for name, value in self.to_dict().items() if name != "interval" or not self._is_usual}

    def not_default(self) -> dict[str, Any]:
        """Return the fields by their names that are not the defaults."""
        usual = CheckpointConfig().without_usual()
        return {name: value for name, value in self.without_usual().items() if value != usual.get(name)}

    def store_options(self) -> dict[str, Any]:
        """Return what the store is made with: the options, and the serializer and the lease if they are not the
        default."""
        serializer = {} if self.serializer == "msgpack" else {"serializer": self.serializer}
        lease = {} if self.lease == _LEASE or self.store in _ON_ONE_MACHINE else {"lease": self.lease}
        return {**self.options, **serializer, **lease}

    def __attrs_post_init__(self) -> None:
        if cast(object, self.interval) is None:
            object.__setattr__(self, "interval", 0 if self.store == "memory" else 1)
            object.__setattr__(self, "_is_usual", True)
        check_fields(self, "checkpoint.", _ALLOWED, hidden="options")
        if self.options.get("serializer", self.serializer) != self.serializer:
            raise ConfigError(
                "checkpoint.options.serializer", self.options["serializer"], "checkpoint.serializer is the place for it"
            )
        if self.retention == "windowed" and self.window is None:
            raise ConfigError(
                "checkpoint.window", None, 'retention "windowed" keeps as many checkpoints as window says'
            )
        if self.retention != "windowed" and self.window is not None:
            raise ConfigError("checkpoint.window", self.window, f'retention "{self.retention}" has no window')
        if self.durability == "exit" and self.retention != "latest":
            raise ConfigError(
                "checkpoint.retention",
                self.retention,
                'durability "exit" saves one State a call; "latest" goes with it',
            )
