"""The short way to configure a graph: by its name, and by arguments that stand beside a name or a configuration."""

from __future__ import annotations

import os
from typing import Any

import attrs

from stategraph._values.events import Listener
from stategraph.config.checkpoint import CheckpointConfig
from stategraph.config.graph import GraphConfig
from stategraph.errors import ConfigError
from stategraph.stores._addresses import PLACES, store_at
from stategraph.stores.base import CheckpointStore


def short_config(
    given: object,
    store: CheckpointStore | str | os.PathLike[str] | None,
    observer: Listener | str | None,
    preserve: bool | None,
) -> tuple[GraphConfig, CheckpointStore | None, Listener | None]:
    """Return the configuration of a graph, and the store and the observer that it does not name.

    Args:
        given: The configuration, or the name of the graph; beside a name, a store saves every step.
        store: Keeps the runs. An address replaces the store of the configuration and its place; other options stay.
        observer: Hears of the runs; a name replaces that in the configuration.
        preserve: Replaces that in the configuration.

    Raises:
        ConfigError: the name is none, or nothing can be at the address of the store.
    """
    config = given if isinstance(given, GraphConfig) else _named(given, has_store=store is not None)
    changes: dict[str, Any] = {} if preserve is None else {"preserve": preserve}
    usual: dict[str, Any] = {}
    if isinstance(store, str | os.PathLike):
        kind, options = store_at(store)
        others = {name: value for name, value in config.checkpoint.options.items() if name not in PLACES}
        changes |= {"store": kind, "options": {**others, **options}}
        store, usual = None, {"interval": 1}
    checkpoint = CheckpointConfig(**{**usual, **config.checkpoint.without_usual(), **changes})
    if isinstance(observer, str):
        return attrs.evolve(config, observer=observer, checkpoint=checkpoint), store, None
    return attrs.evolve(config, checkpoint=checkpoint), store, observer


def _named(name: object, *, has_store: bool) -> GraphConfig:
    if isinstance(name, type):
        allowed = (
            f'the name of the graph comes first; a class is the schema: StateGraph("name", schema={name.__name__})'
        )
        raise ConfigError("config", name.__name__, allowed)
    if not isinstance(name, str):
        raise ConfigError("config", name, "a name, or a GraphConfig, as GraphConfig.from_dict makes it", is_shown=False)
    return GraphConfig(name, checkpoint=CheckpointConfig(interval=1 if has_store else 0))
