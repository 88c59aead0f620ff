"""Pictures of graphs, and of runs on them, as SVG, Mermaid and HTML.

``graph.picture(run_id)`` draws a run of a graph. `picture_of_run` needs only the store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.errors import CheckpointNotFoundError, GraphMismatchError, UnknownNameError
from stategraph.picture._formats import mermaid_of, svg_of
from stategraph.picture._run import Walk, walk_of
from stategraph.picture._sketch import DEPTH, marked_up, sketch_of
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph.stores.base import CheckpointStore
    from stategraph.stores.summaries import Summary

__all__ = ["Picture", "picture_of", "picture_of_run"]

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark"><title>{title}</title></head>
<body>
{svg}</body></html>
"""


class Picture:
    """A picture of a graph and, optionally, of a run on it. The same graph and run give the same picture.

    Notebooks display it.

    Args:
        name: The name of the graph.
        structure: Its structure.
        walk: The way of the run.
    """

    def __init__(self, name: str, structure: GraphStructure, walk: Walk) -> None:
        self._name, self._caption = name, walk.caption
        self._sketch = sketch_of(structure, walk)

    def to_svg(self) -> str:
        """Return the picture as SVG for light and dark pages. It runs no code and loads nothing."""
        return svg_of(self._sketch, self._name, self._caption)

    def to_mermaid(self) -> str:
        """Return the picture as a flowchart of Mermaid."""
        return mermaid_of(self._sketch)

    def to_html(self) -> str:
        """Return the picture as an HTML page."""
        return _PAGE.format(title=marked_up(self._name), svg=self.to_svg())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file: ``.svg``, ``.html``, or ``.mmd`` or ``.mermaid`` for Mermaid.

        Raises:
            UnknownNameError: the file name has another suffix.
        """
        kinds = {".svg": self.to_svg, ".html": self.to_html, ".mmd": self.to_mermaid, ".mermaid": self.to_mermaid}
        suffix = Path(path).suffix.lower()
        if suffix not in kinds:
            raise UnknownNameError("format of pictures", suffix, kinds)
        Path(path).write_text(kinds[suffix](), encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return an image for notebooks, which show inline SVG only if they trust it."""
        from base64 import b64encode  # imported when used

        image = b64encode(self.to_svg().encode()).decode()
        about = marked_up(f"graph {self._name}" + (f": {self._caption}" if self._caption else ""))
        return f'<img alt="{about}" style="max-width:100%" src="data:image/svg+xml;base64,{image}">'

    def __repr__(self) -> str:
        run = f", {self._caption!r}" if self._caption else ""
        return f"<Picture of graph {self._name!r}{run}>"


def picture_of(name: str, structure: GraphStructure, store: CheckpointStore, run: str | State | None = None) -> Picture:
    """Return a picture of a graph and, optionally, of a run on it, as `StateGraph.picture` does."""
    if run is None:
        return Picture(name, structure, Walk())
    from stategraph.stores._seen import as_seen  # imported when used, as below

    store = as_seen(store)
    if not isinstance(run, str | State):
        raise TypeError(f"a run is given by its id or as a State, not as {type(run).__name__}")
    if isinstance(run, State):
        from stategraph.stores.summaries import Summary  # imported when used

        rows: Sequence[Summary] = [Summary.of(run)]
    else:
        rows = _history(store, run)
    ran_on = rows[-1].graph
    if ran_on is not None and ran_on != name:
        way_out = "Draw it with that graph, or with stategraph.picture.picture_of_run(store, run_id)."
        raise GraphMismatchError(rows[-1].run_id, (f"it is a run of graph {ran_on!r}, not of {name!r}",), way_out)
    return Picture(name, structure, walk_of(structure, rows, None if isinstance(run, State) else store, DEPTH))


def picture_of_run(store: CheckpointStore, run: str | State) -> Picture:
    """Return a picture of a run over its graph, as the store keeps both.

    Args:
        store: The store.
        run: The id of the run, or its newest State.

    Raises:
        CheckpointNotFoundError: there is no such run.
        Other exceptions: as for `CheckpointStore.load`.
    """
    state = run if isinstance(run, State) else store.load(run)
    from stategraph.stores._seen import as_seen  # imported when used

    store = as_seen(store)
    rows = _history(store, state.run_id)
    structure = state.structure or _structure_of(rows)
    return Picture(state.graph or "", structure, walk_of(structure, rows, store, DEPTH))


def _history(store: CheckpointStore, run_id: str) -> Sequence[Summary]:
    rows = store.history(run_id)
    if not rows:
        raise CheckpointNotFoundError(run_id, str(store))
    return rows


def _structure_of(rows: Sequence[Summary]) -> GraphStructure:
    """Return the structure of a graph that was not saved, as far as the steps of a run show it."""
    nodes = list(dict.fromkeys(row.checkpoint_node for row in rows if row.checkpoint_node))
    return GraphStructure(tuple(nodes), tuple(EdgeStructure(*ends, "always()") for ends in pairwise(nodes)))
