"""NodeContext: what a node may know of the step it is making."""

from __future__ import annotations

import attrs


@attrs.frozen
class NodeContext:
    """The step that is being made, for a node that asks for it.

    Attributes:
        run_id: The run.
        graph: The name of the graph, from its config.
        node: The node.
        step: The number that the step will have once it is completed (the first one is 1).
        attempt: Which try of this step it is, from 1.
        generation: How often the run was rolled back.
        part: The branch, or the number of the item, where the node has several; else empty.
    """

    run_id: str
    graph: str
    node: str
    step: int
    attempt: int = 1
    generation: int = 0
    part: str = ""
    _kept_name: str = attrs.field(
        default="", kw_only=True, eq=False, repr=False
    )  # of a node that was renamed while its step was open

    @property
    def idempotency_key(self) -> str:
        """The same whenever this step is repeated, after a crash too, and different for every other step.

        Hand it to services that do a thing once for each key, such as payments.
        """
        generation = f"~{self.generation}" if self.generation else ""
        part = f"/{self.part}" if self.part else ""
        return f"{self.run_id}/{self.step}{generation}/{self._kept_name or self.node}{part}"
