"""The short way to say what a graph is built from: its name, and where its runs live."""

from __future__ import annotations

import os

from stategraph._values.events import Listener
from stategraph.config.checkpoint import CheckpointConfig
from stategraph.config.graph import GraphConfig
from stategraph.stores._addresses import store_at
from stategraph.stores.base import CheckpointStore


def short_config(
    name: str, store: CheckpointStore | str | os.PathLike[str] | None, observer: Listener | str | None
) -> tuple[GraphConfig, CheckpointStore | None, Listener | None]:
    """Return the configuration of a graph of this name, and the store and the observer that it does not name.

    A store that is given saves every step.

    Raises:
        ConfigError: the name is none, or nothing can be at the address of the store.
    """
    checkpoint = CheckpointConfig(interval=0 if store is None else 1)
    if isinstance(store, str | os.PathLike):
        kind, options = store_at(store)
        checkpoint, store = CheckpointConfig(store=kind, options=options, interval=1), None
    if isinstance(observer, str):
        return GraphConfig(name, observer, checkpoint=checkpoint), store, None
    return GraphConfig(name, checkpoint=checkpoint), store, observer
