"""Random edits inside nested values: each step of a full history comes back exactly as it was saved.

A store keeps paths and new values only. Values are built as nodes build them: changed copies that share most of their
parts with the State, deep copies that share none, and lists that are cut, joined, sorted and trimmed at both ends.
"""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable
from decimal import Decimal
from math import nan
from pathlib import Path
from typing import Any

from proof.report import Report
from proof.stores import STORES
from stategraph.state import State
from stategraph.stores.base import CheckpointStore, Policy
from stategraph.stores.memory import MemoryStore
from stategraph.testing import is_same
from stategraph.testing.corpus import Order

EDITS = 20_000
"""On sqlite, at share 1.0; on the others a tenth of them, whose rows are the same."""

_STEPS = 50  # of a run
_LARGEST = 10_000  # characters of a value, before it is begun again
_ATOMS: list[Any] = [
    *(None, True, False, 0, 1, 1.0, 0.0, -0.0, nan, 2**70, -7, "", "a", "$type", "b" * 300, "\ud800", b"x"),
    *(Decimal("1.0"), Decimal("1.00"), Decimal("sNaN"), (1,), (1.0,), (), frozenset({1})),
]
_KEYS: list[Any] = [*(["a", "b", "c", "d.e", 'f"g', "", "$type", "value", "1", 1, 2] * 8), None, True, 2.5, (1, "t")]


class Editor:
    """Makes and edits values at random, of the given keys and atoms."""

    def __init__(self, randomness: random.Random, keys: list[Any] = _KEYS, atoms: list[Any] = _ATOMS) -> None:
        self._random, self._keys, self._atoms = randomness, keys, atoms

    def atom(self) -> Any:
        """Return a value without parts that are edited."""
        return self._random.choice(self._atoms) if self._random.random() < 0.5 else self._random.randrange(-50, 50)

    def value(self, depth: int = 0) -> Any:
        """Return a nested value."""
        kind = self._random.random()
        if depth > 4 or kind < 0.3:
            return self.atom()
        if kind < 0.6:
            longest = 150 if depth < 2 and self._random.random() < 0.2 else 5
            return [self.value(depth + 1) for _ in range(self._random.randint(0, longest))]
        if kind < 0.9:
            return {self._key(): self.value(depth + 1) for _ in range(self._random.randint(0, 6))}
        if kind < 0.97:
            return Order(self._random.randint(0, 2), [self.value(depth + 2)])
        return self.value(depth + 1), self.atom()

    def _key(self) -> Any:
        return self._random.choice(self._keys) if self._random.random() < 0.7 else f"key-{self._random.randrange(50)}"

    def edited(self, value: Any) -> Any:
        """Return a value with one to three edits in it; as large as the values of a State may become."""
        if len(repr(value)) > _LARGEST or self._random.random() < 0.02:
            return self.value()
        copied = copy.deepcopy(value) if self._random.random() < 0.4 else value
        for _ in range(self._random.choice([1, 1, 1, 2, 3])):
            copied = self._edited(copied)
        return copied

    def _edited(self, value: Any) -> Any:
        """Return a value with an edit in it or in one of its parts; all other parts are shared."""
        if isinstance(value, Order) and self._random.random() < 0.5:
            value.items.append(self.atom())  # as nodes may do
            return value
        if not isinstance(value, list | dict):
            return self.value(2)
        new: Any = list(value) if isinstance(value, list) else dict(value)
        if new and self._random.random() < 0.6:
            at = self._random.choice(range(len(new)) if isinstance(new, list) else [*new])
            new[at] = self._edited(new[at])
        else:
            new = self._random.choice(_OF_LISTS if isinstance(new, list) else _OF_DICTS)(self, new)
        return new

    def place(self, items: list[Any]) -> int:
        """Return a place in or after the items of a list."""
        return self._random.choice([0, len(items), self._random.randint(0, len(items))])

    def spliced(self, items: list[Any]) -> list[Any]:
        """Return a list of which some items have become others, of another number."""
        first, end = sorted((self.place(items), self.place(items)))
        return items[:first] + [self.value(3) for _ in range(self._random.randint(0, 3))] + items[end:]

    def window(self, items: list[Any]) -> list[Any]:
        """Return a list that has grown at one end and is trimmed at the other."""
        more = [self.value(2) for _ in range(self._random.randint(1, 3))]
        return (more + items)[: len(items)] if self._random.random() < 0.3 else (items + more)[-len(items) or 1 :]

    def moved(self, items: Any) -> Any:
        """Return a list or dict in another order."""
        pairs = [*items.items()] if isinstance(items, dict) else items
        at = self.place(pairs)
        order = pairs[at:] + pairs[:at] if self._random.random() < 0.7 else pairs[::-1]
        return dict(order) if isinstance(items, dict) else order

    def with_item(self, items: dict[Any, Any]) -> dict[Any, Any]:
        """Return a dict with one more item, or another value of a key."""
        return items | {self._key(): self.value(2)}

    def without_item(self, items: dict[Any, Any]) -> dict[Any, Any]:
        """Return a dict without some of its keys."""
        return {key: value for key, value in items.items() if self._random.random() < 0.8}


_OF_LISTS: list[Callable[[Editor, Any], Any]] = [Editor.spliced, Editor.spliced, Editor.window, Editor.moved]
_OF_DICTS: list[Callable[[Editor, Any], Any]] = [Editor.with_item, Editor.with_item, Editor.without_item, Editor.moved]


def check(open_store: Callable[[], CheckpointStore], edits: int, randomness: random.Random, report: Report) -> None:
    """Save the steps of runs in two handles of a store by turns, and compare each with a copy of what was saved."""
    editor = Editor(randomness)
    first = open_store()
    stores = [first, first if isinstance(first, MemoryStore) else open_store()]
    for number in range(-(-edits // _STEPS)):
        run_id = f"run-{number}"
        stores[0].retain(run_id, Policy("full"))
        state = State({"a": editor.value(), "b": [{"c": editor.value()}]}, run_id=run_id)
        saved: list[dict[str, Any]] = []
        for step in range(_STEPS):
            if step and randomness.random() < 0.1:
                stores.reverse()
                state = stores[0].load(run_id)
            key = randomness.choice("aab")
            state = State({**state, key: editor.edited(state[key]), "n": step}, run_id=run_id, step=step)
            stores[0].save(state)
            saved.append(copy.deepcopy(dict(state)))
            report.tried["edits"] += 1
        for step, data in enumerate(saved):
            if not is_same(dict(stores[1].load(run_id, step)), data):
                report.failures.append(f"step {step} of {run_id} is not what was saved")
    for store in stores:
        store.close()


def prove(share: float, seed: int) -> list[Report]:
    """Make `EDITS` edits on each store at share 1.0, with each serializer."""
    reports = []
    for kind, opened in STORES.items():
        report = Report(f"edits inside nested values fold back to what was saved, on {kind}")
        edits = max(_STEPS, round(EDITS * share / (1 if kind == "sqlite" else 10)))
        with tempfile.TemporaryDirectory() as folder:
            check(lambda: opened(Path(folder)), edits, random.Random(f"{kind} {seed}"), report)  # noqa: B023, S311
        reports.append(report)
    return reports
