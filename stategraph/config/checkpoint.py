"""CheckpointConfig: when and where a State is saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from stategraph.config.checks import check, is_count, is_name


def _is_options(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


@attrs.frozen
class CheckpointConfig:
    """When and where the State of a run is saved.

    Attributes:
        store: Name of the checkpoint store: "memory", "disk", or one that was registered.
        interval: Save after every so many steps; 0 saves nothing, ever.
        preserve: Whether a completed run stays in the store. If not, its checkpoints are deleted at the exit point.
        options: What the store is made with, such as ``{"path": "runs"}`` for "disk".

    Raises:
        ConfigError: a value is not allowed.
    """

    store: str = attrs.field(
        default="memory", validator=check("checkpoint.store", "the name of a checkpoint store", is_name)
    )
    interval: int = attrs.field(
        default=0,
        validator=check(
            "checkpoint.interval",
            "0 turns checkpointing off, n saves every n steps",
            lambda value: is_count(value, at_least=0),
        ),
    )
    preserve: bool = attrs.field(
        default=False,
        validator=check(
            "checkpoint.preserve",
            "true keeps the checkpoints of a completed run, false deletes them",
            lambda value: type(value) is bool,
        ),
    )
    options: Mapping[str, Any] = attrs.field(
        factory=dict,
        validator=check("checkpoint.options", "a mapping of option names to values", _is_options),
    )
