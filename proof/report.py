"""Reports of proofs."""

from __future__ import annotations

from collections import Counter

import attrs


@attrs.define
class Report:
    """The outcome of one proof.

    Attributes:
        title: The proved statement, in a line.
        tried: How many cases were tried, by kind.
        found: How they ended, by kind of end.
        failures: The counterexamples, each with the data to repeat it.
        skipped: Why the proof could not run here; empty if it ran.
    """

    title: str
    tried: Counter[str] = attrs.field(factory=Counter)
    found: Counter[str] = attrs.field(factory=Counter)
    failures: list[str] = attrs.field(factory=list)
    skipped: str = ""

    @property
    def holds(self) -> bool:
        """Whether there is no failure."""
        return not self.failures

    def add(self, part: Report) -> None:
        """Add the report of a part; counts whose kind ends in "at most" take the maximum."""
        self.tried.update(part.tried)
        self.failures += part.failures
        for kind, count in part.found.items():
            is_most = kind.endswith("at most")
            self.found[kind] = max(self.found[kind], count) if is_most else self.found[kind] + count

    def __str__(self) -> str:
        if self.skipped:
            return f"SKIPPED  {self.title}: {self.skipped}"
        verdict = "holds   " if self.holds else "FAILS   "
        lines = [f"{verdict} {self.title}"]
        lines += [f"         tried: {_listed(self.tried)}", f"         found: {_listed(self.found)}"]
        lines += [f"         {failure}" for failure in self.failures[:40]]
        if len(self.failures) > 40:
            lines.append(f"         and {len(self.failures) - 40} more")
        return "\n".join(lines)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common()) or "nothing"
