"""Rank the modules by each measure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stdlib_audit.cycles import Graph

_TESTS = frozenset({"test", "tests", "idle_test"})


def library(measured: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the measurements of parsed files outside of test suites."""
    return [one for one in measured if one["error"] is None and _TESTS.isdisjoint(one["module"].split("."))]


def top(measured: Iterable[Mapping[str, Any]], key: str, count: int) -> list[dict[str, Any]]:
    """Return the `count` measurements with the highest value of `key`, the highest first, equal ones by module name."""
    ranked = sorted(measured, key=lambda one: (-one[key], one["module"]))
    # Imports are the longest part of a measurement, and no ranking shows them.
    return [{name: value for name, value in one.items() if name != "imports"} for one in ranked[:count]]


def most_imported(graph: Graph, count: int) -> list[dict[str, Any]]:
    """Return the `count` most imported modules with the number of their importers, equal ones by name."""
    importers = Counter(target for targets in graph.values() for target in targets)
    ranked = sorted(importers.items(), key=lambda item: (-item[1], item[0]))
    return [{"module": module, "importers": number} for module, number in ranked[:count]]


def totals(measured: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the totals: the number of files, the files that do not parse, and the sums of the measures."""
    adding = ("lines", "functions", "classes", "complexity", "missing_docstrings", "deferred_imports")
    sums = {key: sum(one[key] for one in measured) for key in adding}
    return {"files": len(measured), "unparsable": sum(one["error"] is not None for one in measured)} | sums
