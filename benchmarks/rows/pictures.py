"""Pictures: the layout of a graph, and its SVG. The steps are its nodes."""

from __future__ import annotations

from random import Random

from benchmarks.gauges import seconds
from benchmarks.measure import MILLISECONDS, Contender, Goal, Row, Run, peer


def boxes(nodes: int) -> Run:
    """The least possible picture: a box and a name for each node, anywhere."""
    return lambda: "".join(f'<rect x="{n}"/><text x="{n}">node-{n}</text>' for n in range(nodes))


def edges(nodes: int) -> list[tuple[str, str]]:
    """Return edges of a graph that is mostly a chain with branches, half of whose nodes lead somewhere else as well."""
    random = Random(1)
    names = [f"node-{number}" for number in range(nodes)]
    ahead = {(names[random.randrange(max(0, place - 4), place)], names[place]) for place in range(1, nodes)}
    return sorted(ahead | {(random.choice(names), random.choice(names)) for _ in range(nodes // 2)})


def _row(nodes: int, limit: float) -> Row:
    return Row(
        title=f"picture of {nodes:,} nodes",
        gauge=seconds,
        unit=MILLISECONDS,
        goal=Goal(limit, absolute=True),
        floor=boxes,
        steps=nodes,
        rounds=5,
        compared=False,
        contenders=(Contender("stategraph", peer("ours_drawn:picture"), judged=True),),
    )


ROWS = (_row(200, 200), _row(1_000, 2_000))
