"""What a run spends: exact sums of amounts by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from stategraph._text.shown import shorten
from stategraph._util.validators import AMOUNT, is_amount
from stategraph._values.entries import Entry

if TYPE_CHECKING:
    from fractions import Fraction  # imported when used: few runs spend anything


def checked_amounts(amounts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the amounts that a node spends. Raise ValueError if one is not allowed."""
    if not amounts:
        raise ValueError("spend() names no amount; spend(usd=0.02) does")
    for name, amount in amounts.items():
        if not is_amount(amount):
            raise ValueError(f"{name}: {shorten(amount)} is not allowed; {AMOUNT} is")
    return dict(amounts)


def exact(amount: Any) -> Fraction:
    """Return a number as it is written: 0.1 is a tenth. So sums are right to the last digit."""
    from fractions import Fraction

    return Fraction(str(amount))


def as_numbers(sums: Mapping[str, Any]) -> Mapping[str, float]:
    """Return exact sums as numbers: an int for a whole number, otherwise the nearest float."""
    exactly = ((name, exact(amount)) for name, amount in sums.items())
    return MappingProxyType({name: int(of) if of.denominator == 1 else float(of) for name, of in exactly})


@attrs.define(eq=False)
class Spending:
    """What a run has spent so far, with everything nested in it.

    Attributes:
        sums: The exact sums by name.
        is_new: Whether the State of the run does not count all of it yet.
        lock: Held while amounts are added.
    """

    sums: dict[str, Fraction] = attrs.field(factory=dict)
    is_new: bool = False
    lock: Lock = attrs.field(factory=Lock)

    def begin(self, counted: Mapping[str, str], entries: Iterable[Entry] = ()) -> None:
        """Begin with the sums that the State of the run counts, and the entries that it does not count."""
        self.sums = {name: exact(text) for name, text in counted.items()}
        for entry in entries:
            self.add(entry.value)
        self.is_new = bool(self.sums)  # the State that goes on may be another one

    def add(self, amounts: Mapping[str, Any]) -> None:
        """Add amounts that the State of the run does not count."""
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0) + exact(amount)
        self.is_new = True

    def counted(self) -> dict[str, str]:
        """Return the sums for the State of the run, which counts all of it from now on."""
        with self.lock:
            self.is_new = False
            return {name: str(amount) for name, amount in self.sums.items()}
