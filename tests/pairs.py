"""Cases of a test with several parameters: each pair of values instead of each combination."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Case = tuple[int, ...]


def every_pair(indirect: Sequence[str] = (), **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrise a test so that any two values of different parameters meet in one of its cases.

    Args:
        indirect: The parameters that are fixtures.
        axes: The values of each parameter.
    """
    values = {name: [*given] for name, given in axes.items()}
    rows = [
        pytest.param(*(given[at] for given, at in zip(values.values(), case, strict=True)))
        for case in covering([len(given) for given in values.values()])
    ]
    return pytest.mark.parametrize(",".join(values), rows, indirect=list(indirect))


def covering(sizes: Sequence[int]) -> list[Case]:
    """Return cases in which each pair of places of two axes occurs; as few as a greedy search finds."""
    every = [*product(*map(range, sizes))]
    missing = {pair for case in every for pair in _pairs(case)}
    cases = list[Case]()
    while missing:
        cases.append(max(every, key=lambda case: len(missing & _pairs(case))))
        missing -= _pairs(cases[-1])
    return cases


def _pairs(case: Case) -> set[tuple[int, int, int, int]]:
    return {(*one, *other) for one, other in combinations(enumerate(case), 2)}
