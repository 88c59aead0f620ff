"""Question: what a run that paused was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import attrs


class AskingNode(Protocol):
    """The node that asked; see `Node`."""

    @property
    def otherwise(self) -> Any:
        """The answer once the deadline has passed."""

    def accepted(self, answer: Any) -> Any:
        """Return an answer as the node makes it part of the State. Raises ValueError if it is refused."""


@attrs.frozen
class Question:
    """What a run that paused was asked.

    Attributes:
        node: The node that asked.
        fits: What else makes an answer fit, or raises ValueError: the schemas of the graphs that it goes through.
    """

    node: AskingNode
    fits: tuple[Callable[[Any], Any], ...] = ()

    @property
    def otherwise(self) -> Any:
        """The answer once the deadline has passed; NOTHING if there is none."""
        return self.node.otherwise

    def accepted(self, answer: Any) -> Any:
        """Return an answer as the node makes it part of the State. Raises ValueError if it is refused."""
        answer = self.node.accepted(answer)
        for fit in self.fits:
            answer = fit(answer)
        return answer
