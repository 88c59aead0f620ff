"""The short way to say what a graph is built from: its name, and where its runs live."""

from __future__ import annotations

import os

import attrs

from stategraph._values.events import Listener
from stategraph.config.checkpoint import CheckpointConfig
from stategraph.config.graph import GraphConfig
from stategraph.errors import ConfigError
from stategraph.stores._addresses import store_at
from stategraph.stores.base import CheckpointStore


def short_config(
    name: object,
    store: CheckpointStore | str | os.PathLike[str] | None,
    observer: Listener | str | None,
    preserve: bool | None,
) -> tuple[GraphConfig, CheckpointStore | None, Listener | None]:
    """Return the configuration of a graph of this name, and the store and the observer that it does not name.

    A store that is given saves every step.

    Raises:
        ConfigError: the name is none, or nothing can be at the address of the store.
    """
    if isinstance(name, GraphConfig):
        raise ConfigError("preserve", preserve, "it stands in the GraphConfig: CheckpointConfig(preserve=...)")
    if isinstance(name, type):
        allowed = (
            f'the name of the graph comes first; a class is the schema: StateGraph("name", schema={name.__name__})'
        )
        raise ConfigError("config", name.__name__, allowed)
    if not isinstance(name, str):
        raise ConfigError("config", name, "a name, or a GraphConfig, as GraphConfig.from_dict makes it", is_shown=False)
    checkpoint = CheckpointConfig(interval=0 if store is None else 1, preserve=preserve or False)
    if isinstance(store, str | os.PathLike):
        kind, options = store_at(store)
        checkpoint, store = attrs.evolve(checkpoint, store=kind, options=options), None
    if isinstance(observer, str):
        return GraphConfig(name, observer, checkpoint=checkpoint), store, None
    return GraphConfig(name, checkpoint=checkpoint), store, observer
