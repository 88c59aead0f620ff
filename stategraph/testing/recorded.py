"""Recorded runs as fixtures: States, or an export."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from stategraph._text.shown import shorten
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores.sqlite import SqliteStore


@contextmanager
def recorded_store(recorded: str | os.PathLike[str] | Iterable[str | State]) -> Iterator[SqliteStore]:
    """Return a new store with recorded runs. It is deleted at the end of the block.

    Args:
        recorded: The file of ``stategraph export``, the lines of one, or States.
    """
    runs = _runs_in(recorded)
    with TemporaryDirectory() as folder, SqliteStore(Path(folder) / "runs.db") as store:
        for state in runs:
            if isinstance(state, State):
                store.save(state)
        store.import_runs(line for line in runs if isinstance(line, str))
        yield store


def _runs_in(recorded: str | os.PathLike[str] | Iterable[str | State]) -> list[str | State]:
    """Return the lines, or the States; raise TypeError for anything else."""
    if isinstance(recorded, str | os.PathLike):
        return [*Path(recorded).read_text(encoding="utf-8").splitlines()]
    runs = [*recorded] if isinstance(recorded, Iterable) and not isinstance(recorded, State) else None
    if runs is None or not all(isinstance(run, str | State) for run in runs):
        what = "a list of States, the lines of an export, or its file"
        raise TypeError(f"recorded runs are {what}, not {shorten(recorded)}")
    return runs


def assert_upgrades(graph: StateGraph, recorded: str | os.PathLike[str] | Iterable[str | State]) -> None:
    """Check that recorded runs that are not complete can go on in a graph, with its upgrades. Nothing is run.

    Args:
        graph: The graph.
        recorded: As for `recorded_store`.

    Raises:
        AssertionError: A run cannot, or none is recorded.
    """
    with recorded_store(recorded) as store:
        checks = [*graph.check_runs(store)]
    problems = [problem for check in checks for problem in check.problems]
    if problems or not checks:
        raise AssertionError("\n".join(problems) or f"no run of graph {graph.name!r} that is not complete is recorded")
