"""The report in Markdown. The same findings give the same text, except for the line with the time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stdlib_audit.cycles import Graph

_LARGEST_CYCLE_SHOWN = 8
_RANKINGS = (
    ("Most complex functions", ("complexity_max", "most_complex", "complexity", "functions")),
    ("Most docstrings missing", ("missing_docstrings", "functions", "classes")),
    ("Largest", ("lines", "functions", "classes", "complexity")),
    ("Most imported", ("importers",)),
)


def render(audit: Mapping[str, Any]) -> str:
    """Return the report on a finished audit.

    Args:
        audit: python (its version), seconds (spent measuring), measured, graph, cycles, ring (of the largest
            group of cycles, or empty), totals, and rankings (by the first key of each that is shown).
    """
    parts = (_summary(audit), _rankings(audit["rankings"]), _cycles(audit), _unparsable(audit["measured"]))
    return "\n\n".join(parts) + "\n"


def _summary(audit: Mapping[str, Any]) -> str:
    imports = sum(map(len, audit["graph"].values()))
    found = {**audit["totals"], "imports_between_modules": imports, "import_cycles": len(audit["cycles"])}
    title = f"# The standard library of Python {audit['python']}, audited"
    totals = table(("measure", "total"), [(_heading(name), value) for name, value in found.items()])
    return f"{title}\n\nMeasured in {audit['seconds']:.1f} s.\n\n{totals}"


def _rankings(rankings: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    intro = "## Leading modules\n\nTests are part of the totals above, but not ranked."
    return "\n\n".join([intro, *(_ranking(title, rankings[keys[0]], keys) for title, keys in _RANKINGS)])


def _ranking(title: str, ranked: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    columns = ("module", *keys)
    rows = [[_code(one[column]) for column in columns] for one in ranked]
    return f"### {title}\n\n" + table([_heading(column) for column in columns], rows)


def _cycles(audit: Mapping[str, Any]) -> str:
    found = audit["cycles"]
    if not found:
        return "## Import cycles\n\nThere are none."
    intro = "## Import cycles\n\nGroups of modules that all import each other while they are being imported."
    groups = table(("modules", "which"), [(len(group), _some(group)) for group in found])
    largest = f"### The largest\n\n{mermaid(audit['graph'], found[0])}"
    return f"{intro}\n\n{groups}\n\n{largest}\n\nOne way round:\n\n```text\n{drawing(audit['ring'])}\n```"


def _some(group: Sequence[str]) -> str:
    shown = ", ".join(f"`{module}`" for module in group[:_LARGEST_CYCLE_SHOWN])
    more = len(group) - _LARGEST_CYCLE_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _unparsable(measured: Iterable[Mapping[str, Any]]) -> str:
    rows = [(_code(one["file"]), one["error"]) for one in measured if one["error"] is not None]
    found = table(("file", "why"), rows) if rows else "There are none."
    return f"## Files that could not be parsed\n\n{found}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. Numbers are right-aligned and have thousands separators."""
    cells = [list(row) for row in rows]
    ruler = ["---:" if _numeric(cells, at) else "---" for at in range(len(columns))]
    lines = [list(columns), ruler, *([_cell(value) for value in row] for row in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numeric(rows: Sequence[Sequence[object]], column: int) -> bool:
    return any(isinstance(row[column], int) for row in rows)


def _cell(value: object) -> str:
    # An unescaped bar ends the cell, even inside code.
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def _code(value: object) -> object:
    # Outside of code, the underscores of __init__ would mean bold.
    return f"`{value}`" if isinstance(value, str) else value


def _heading(key: str) -> str:
    return key.replace("_", " ")


def mermaid(graph: Graph, group: Sequence[str]) -> str:
    """Return a Mermaid diagram of the imports within a group of modules."""
    number = {module: f"m{at}" for at, module in enumerate(group)}
    nodes = [f'    {number[module]}["{module}"]' for module in group]
    inside = [(module, target) for module in group for target in graph[module] if target in number]
    arrows = [f"    {number[module]} --> {number[target]}" for module, target in inside]
    return "\n".join(["```mermaid", "graph LR", *nodes, *arrows, "```"])


def drawing(cycle: Sequence[str]) -> str:
    """Return a cycle as text: each module imports the one below it, and the last one imports the first."""
    last = len(cycle) - 1
    lines = [f"{_margin(at, last)} {module}" for at, module in enumerate(cycle)]
    return "\n|     imports\n".join(lines)


def _margin(at: int, last: int) -> str:
    return "+->" if at == 0 else "+--" if at == last else "|  "
