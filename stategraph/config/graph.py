"""GraphConfig: what a StateGraph is built from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import attrs

from stategraph._util.validators import Allowed, check_fields, is_count, is_name, naming_arguments
from stategraph.config.checkpoint import CheckpointConfig

_ALLOWED: Allowed = {
    "name": ("a name of 1 to 200 printable characters", is_name),
    "observer": ("the name of an observer", is_name),
    "max_iterations": (
        "a whole number from 1 on: how many nodes one call may run",
        lambda value: is_count(value, at_least=1),
    ),
    "checkpoint": (
        "a CheckpointConfig (GraphConfig.from_dict takes mappings)",
        lambda value: isinstance(value, CheckpointConfig),
    ),
}


@naming_arguments()
@attrs.frozen
class GraphConfig:
    """What a StateGraph is built from.

    Configurations are laid over one another with `merge`, the stronger last::

        GraphConfig.from_file("graph.toml").merge({"checkpoint": {"interval": 5}})

    Attributes:
        name: Names the graph; saved with its runs, which only a graph of this name resumes.
        observer: Name of the observer: "noop", "structlog", which logs to stderr, or one that was registered.
        max_iterations: How many nodes one call of execute or resume may run; stops endless loops.
        checkpoint: When and where the State is saved.

    Raises:
        ConfigError: a value is not allowed.
    """

    name: str
    observer: str = "noop"
    max_iterations: int = 1000
    checkpoint: CheckpointConfig = attrs.field(factory=CheckpointConfig)

    def __attrs_post_init__(self) -> None:
        check_fields(self, "", _ALLOWED, hidden="checkpoint")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GraphConfig:
        """Return the configuration that a mapping describes; what it leaves out has its default.

        Raises:
            ConfigError: a key is unknown or missing, or a value is not allowed.
        """
        from stategraph.config.reading import configured  # imported when used: it reads files as well

        return configured(cls, values, checkpoint=CheckpointConfig)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> GraphConfig:
        """Return the configuration in a TOML or JSON file.

        Raises:
            ConfigError: the file cannot be read, or as `from_dict`.
        """
        from stategraph.config.reading import read  # imported when used

        return cls.from_dict(read(path))

    def to_dict(self) -> dict[str, Any]:
        """Return a mapping that `from_dict` makes an equal configuration of."""
        return {**attrs.asdict(self, recurse=False), "checkpoint": self.checkpoint.to_dict()}

    def for_store_object(self) -> GraphConfig:
        """Return it as it is for a graph that is given a store: its usual interval is that of one that is named."""
        usual = self.checkpoint.without_usual()
        return self if "interval" in usual else attrs.evolve(self, checkpoint=attrs.evolve(self.checkpoint, interval=1))

    def merge(self, other: GraphConfig | Mapping[str, Any]) -> GraphConfig:
        """Return this configuration with another laid over it.

        Args:
            other: A mapping, all of whose keys win; or a GraphConfig, whose values win if they are not the defaults.
                ``checkpoint.options`` is one value: it is replaced, not mixed.

        Raises:
            ConfigError: a key is unknown, or a value is not allowed.
        """
        from stategraph.config.reading import checked_mapping  # imported when used

        changes = other._set() if isinstance(other, GraphConfig) else checked_mapping("merge", other)
        given = checked_mapping("checkpoint", changes.get("checkpoint", {}))
        checkpoint = {**self.checkpoint.without_usual(), **given}
        return self.from_dict({**self.to_dict(), **changes, "checkpoint": checkpoint})

    def _set(self) -> dict[str, Any]:
        """Return the values that are not the defaults, and the name."""
        usual = GraphConfig(self.name).to_dict()
        changed = {name: value for name, value in self.to_dict().items() if value != usual[name]}
        return {**changed, "name": self.name, "checkpoint": self.checkpoint.not_default()}
