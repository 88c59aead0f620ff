"""A compiled graph as a step of another one."""

from __future__ import annotations

import attrs

from stategraph._graph.compiled import CompiledGraph


def nested_in(graph: CompiledGraph, outer: CompiledGraph) -> CompiledGraph:
    """Return the graph as it runs as a step of another, which decides when something is saved."""
    return attrs.evolve(
        graph,
        interval=outer.interval if outer.loads_parts else 0,
        saves=outer.loads_parts,
        store=outer.store,
        write_behind=False,  # what its saves wait in is waited for by the outer run
        loads_parts=outer.loads_parts,
        keeps_parts=outer.keeps_parts,
        preserve=outer.keeps_parts,
        forgets=False,  # until the step that it is part of is saved, it may have to go on once more
        persist=graph.persist if outer.loads_parts else None,
    )


def unsaved_in(graph: CompiledGraph, outer: CompiledGraph) -> CompiledGraph:
    """Return the graph as it runs once more as a step of another, to compute what was not saved."""
    return attrs.evolve(
        nested_in(graph, outer),
        interval=0,
        saves=False,
        loads_parts=False,
        keeps_parts=False,
        preserve=False,
        persist=None,
    )
