"""The import graph of the measured files, and the cycles in it."""

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Graph: TypeAlias = Mapping[str, Sequence[str]]


def import_graph(measured: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return each module with the measured modules that it imports, both sorted.

    A name leads to the longest module it begins with: `os.path.join` is an import of `os`. That importing
    `a.b` imports `a` too is left out, because every package that uses its own parts would be a cycle.
    """
    imports = {one["module"]: one["imports"] for one in measured}
    return {module: sorted(_known(imports[module], imports) - {module}) for module in sorted(imports)}


def _known(names: Iterable[str], modules: Mapping[str, object]) -> set[str]:
    found = (next((prefix for prefix in _prefixes(name) if prefix in modules), None) for name in names)
    return {module for module in found if module is not None}


def _prefixes(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def cycles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or indirectly, the largest first.

    They are the strongly connected components of more than one module.
    """
    groups = [sorted(group) for group in components(graph) if len(group) > 1]
    return sorted(groups, key=lambda group: (-len(group), group))


def components(graph: Graph) -> Iterator[list[str]]:
    """Return the strongly connected components, after Tarjan (1972), without recursion.

    Every module that is imported must be a key of the graph.
    """
    search = _Search(graph)
    for root in graph:
        if root not in search.order:
            yield from search.below(root)


class _Search:
    """A depth-first search.

    `order` numbers the modules as they are met, `lowest` is the lowest number that each is known to reach,
    and `open` holds those whose component is not complete, in the order they were met.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order: dict[str, int] = {}
        self.lowest: dict[str, int] = {}
        self.open: dict[str, None] = {}

    def below(self, root: str) -> Iterator[list[str]]:
        path = [self._enter(root)]
        while path:
            module, targets = path[-1]
            target = next(targets, None)
            if target is None:
                path.pop()
                yield from self._leave(module, path)
            elif target not in self.order:
                path.append(self._enter(target))
            elif target in self.open:
                self._reaches(module, self.order[target])

    def _enter(self, module: str) -> tuple[str, Iterator[str]]:
        self.order[module] = self.lowest[module] = len(self.order)
        self.open[module] = None
        return module, iter(self.graph[module])

    def _reaches(self, module: str, number: int) -> None:
        self.lowest[module] = min(self.lowest[module], number)

    def _leave(self, module: str, path: Sequence[tuple[str, object]]) -> Iterator[list[str]]:
        if path:
            self._reaches(path[-1][0], self.lowest[module])
        # A module that reaches no older module closes a component: all modules that were opened since.
        if self.lowest[module] == self.order[module]:
            yield list(self._close(module))

    def _close(self, module: str) -> Iterator[str]:
        closed = None
        while closed != module:
            closed, _ = self.open.popitem()
            yield closed


def ring(graph: Graph, group: Sequence[str]) -> list[str]:
    """Return the cycle that best shows a group of `cycles`: each module imports the next, the last one the first.

    Through each module of the group there is a shortest cycle. This is the longest of those, so it shows as
    much of the group as a cycle without detours can. Of several, the first by name.
    """
    found = [shortest_cycle(graph, start, frozenset(group)) for start in sorted(group)]
    return max(found, key=len)


def shortest_cycle(graph: Graph, start: str, inside: Container[str]) -> list[str]:
    """Return the shortest cycle through `start` within a group of `cycles`, beginning with `start`."""
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while start not in came_from:
        module = waiting.popleft()
        new = [target for target in graph[module] if target in inside and target not in came_from]
        came_from.update(dict.fromkeys(new, module))
        waiting.extend(new)
    return _back(came_from, start)


def _back(came_from: Mapping[str, str], start: str) -> list[str]:
    steps = [start]
    while came_from[steps[-1]] != start:
        steps.append(came_from[steps[-1]])
    return [start, *reversed(steps[1:])]
