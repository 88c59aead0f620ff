"""ParallelNode: branches that run concurrently."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from stategraph._progress import unwatched
from stategraph._text.shown import shorten
from stategraph._util.callables import answered, check_function
from stategraph._util.validators import is_name, naming_arguments
from stategraph._values.progress import NodeOutline, Structures
from stategraph._values.provenance import GraphStructure
from stategraph.nodes._parts import Job, PartsNode, Workers, part_node
from stategraph.nodes.base import Node, StepContext
from stategraph.nodes.function import FunctionNode, NodeFunction, changes_from
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema
    from stategraph.nodes.function import OfAny
    from stategraph.nodes.subgraph import GraphNode, Nestable

Reducer = Callable[[Any, Any], Any]


@naming_arguments()
class ParallelNode(PartsNode):
    """Branches that receive the same State and run concurrently; their updates are merged in declared order.

    Each finished branch is saved separately: after a crash only the others run again. Sync functions run in threads,
    async functions as tasks; a branch whose task is cancelled by other code has failed.

    Args:
        branches: Functions as for a node, by the names of the branches. Or graphs, or the results of their `as_node`:
            their runs may pause.
        max_workers: The maximum number at the same time; by default the number of processors plus four.
        reducers: For keys that several branches write: a sync function that combines two values, called in declared
            order. Any other key that two branches write is an error.
        on_failure: "cancel": once a branch has failed, no other begins, and async branches are cancelled. "finish": all
            others finish first. In both cases all errors are raised, as an ExceptionGroup.
        processes: Run the branches in processes, for CPU-bound work. The functions must be importable, and take the
            State as a plain dict.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """

    has_branches = True

    def __init__(
        self,
        branches: Mapping[str, OfAny | Node | Nestable],
        max_workers: int | None = None,
        *,
        reducers: Mapping[str, Reducer] | None = None,
        on_failure: Literal["cancel", "finish"] = "cancel",
        processes: bool = False,
    ) -> None:
        if not isinstance(branches, Mapping) or not branches:
            raise TypeError(f"branches: {shorten(branches)} is not allowed; use a mapping of names to functions")
        self._branches = {_checked_name(name): _branch(name, function) for name, function in branches.items()}
        self._reducers = _checked_reducers(reducers)
        if on_failure not in ("cancel", "finish"):
            raise ValueError(f'on_failure: {shorten(on_failure)} is not allowed; use "cancel" or "finish"')
        self.workers: Workers = Workers(max_workers, processes, stops=on_failure == "cancel")
        self.workers.check(self._branches.values())

    @property
    def branches(self) -> Mapping[str, NodeFunction | GraphNode]:
        """The functions, or the nodes of the graphs, by the names of their branches."""
        branches = self._branches.items()
        functions = {name: branch.given if isinstance(branch, FunctionNode) else branch for name, branch in branches}
        return MappingProxyType(functions)

    def _about(self) -> str:
        return f" of {', '.join(self._branches)}"

    @property
    def inner_nodes(self) -> Collection[FunctionNode | GraphNode]:
        return self._branches.values()

    def typed(self, name: str, schema: Schema) -> ParallelNode:
        typed = copy.copy(self)
        typed._branches = {
            branch: node.typed(name, schema) if isinstance(node, FunctionNode) else node
            for branch, node in self._branches.items()
        }
        return typed

    def made_of(self) -> tuple[Any, ...] | None:
        return None if self.graphs else (*self.branches.items(), *self._reducers.items())

    def outline(self, others: Structures) -> NodeOutline:
        drawn = {name: branch.outline(others) for name, branch in self._branches.items()}
        outlines = {name: outline for name, outline in drawn.items() if outline is not None}
        return NodeOutline("parallel", nested=GraphStructure(tuple(self._branches), (), outlines=outlines))

    def part_writes(self, value: Any) -> Collection[str]:
        """Return the keys that a branch has changed."""
        return [*value["set"], *value["removed"]]

    def jobs(self, step: StepContext) -> list[Job]:
        given = step.state_for_parts
        argument = dict(given) if self.workers.processes else given
        return [Job(name, argument, branch) for name, branch in self._branches.items()]

    def state_of(self, job: Job) -> State:
        state: State = job.argument
        return state

    def accepted_part(self, step: StepContext, label: str, result: Any) -> dict[str, Any]:
        changed, removed = changes_from(step.checked(unwatched(result)), step.state_for_parts)
        return {"set": changed, "removed": removed}

    def chunk(self, label: str, value: Any) -> tuple[str, dict[str, Any]]:
        return label, dict(value["set"])

    def combined(self, step: StepContext, results: Mapping[str, Any]) -> State:
        """Return the State with the changes of all branches."""
        state = step.state
        writers: dict[str, str] = {}
        data: dict[str, Any] = {}
        removed: dict[str, str] = {}
        for name, change in results.items():
            for key, value in change["set"].items():
                if key not in writers:
                    data[key] = value
                elif key in self._reducers:
                    data[key] = self._reduced(key, data[key], value, name)
                else:
                    raise ValueError(
                        f"branches {writers[key]!r} and {name!r} both write {key!r}: let one of them use another "
                        f"key, or name a reducer: reducers={{{key!r}: ...}}"
                    )
                writers[key] = name
            removed.update(dict.fromkeys(change["removed"], name))
        for key, name in removed.items():
            if key in writers:
                raise ValueError(f"branch {name!r} removes {key!r}, which {writers[key]!r} writes")
            state = state.remove(key)
        return state.update(data)

    def _reduced(self, key: str, first: Any, second: Any, branch: str) -> Any:
        """Combine the value of a key with the value of one more branch by its reducer."""
        try:
            reduced = self._reducers[key](first, second)
        except Exception as error:
            error.add_note(f"in reducers[{key!r}], with the value of branch {branch!r} as the second")
            raise
        return answered(reduced, f"reducers[{key!r}]")


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(f"a branch is named {shorten(name)}; a name has 1 to 200 printable characters")
    return str.__str__(name)  # of a member of a StrEnum, which no store keeps


def _checked_reducers(reducers: Mapping[str, Reducer] | None) -> dict[str, Reducer]:
    if reducers is not None and not isinstance(reducers, Mapping):
        raise TypeError(f"reducers: {shorten(reducers)} is not allowed; use a mapping of keys to functions")
    for key, reducer in (reducers or {}).items():
        check_function(f"reducers[{key!r}]", reducer, 2, "two values")
    return dict(reducers or {})


def _branch(name: str, function: Any) -> FunctionNode | GraphNode:
    try:
        return part_node(function, "a branch", "state")
    except TypeError as error:
        raise TypeError(f"branch {name!r}: {error}") from None
