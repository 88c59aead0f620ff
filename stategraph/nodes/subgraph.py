"""GraphNode: a graph as a node of another."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from stategraph._progress import awaited
from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._util.callables import answered, check_function
from stategraph._util.validators import maps_texts
from stategraph._values.progress import NodeOutline, Structures
from stategraph._values.provenance import GraphStructure
from stategraph._values.sameness import differing_items
from stategraph.errors import GraphError
from stategraph.nodes.base import CompositeNode, NestedStep, Node, Question, StepContext
from stategraph.nodes.function import with_changes
from stategraph.state import State, data_of, evolve

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema

MAX_DEPTH = 16
"""The maximum depth of nested graphs."""

_FITS_IDS = re.compile("[A-Za-z0-9_@+=-][A-Za-z0-9._@+=-]*")

Keys: TypeAlias = Iterable[str] | Mapping[str, str] | Callable[[State], Mapping[str, Any]] | None
"""The keys that enter or leave a nested graph: keys; keys by their new names; a function's result; None for all."""


class Nestable(Protocol):
    """A graph that can be a node."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def nodes(self) -> Mapping[str, Any]:
        """Its nodes by their names."""

    def structure_in(self, others: Structures) -> GraphStructure:
        """Return its structure as one of several being built."""


class GraphNode(CompositeNode):
    """Runs a graph as a step of another. `StateGraph.as_node` makes it.

    The nested run has its own id below the id of the outer run, and checkpoints in the same store: after a crash in the
    nested run, it continues from there.
    """

    def __init__(self, graph: Nestable, plan: Callable[[], Any], inputs: Keys = None, outputs: Keys = None) -> None:
        self.graph: Nestable = graph
        self.plan = plan
        self._inputs, self._outputs = _checked("inputs", inputs), _checked("outputs", outputs)
        if isinstance(self._inputs, Mapping):
            self.reads: frozenset[str] = frozenset(self._inputs.values())
        if isinstance(self._outputs, Mapping):
            self.writes: frozenset[str] = frozenset(self._outputs)

    def _about(self) -> str:
        return f" {self.graph.name!r}"

    @property
    def inner_nodes(self) -> list[Node]:
        """The nodes of its graph."""
        return [stage.node for stage in self.plan().stages.values()]

    @property
    def graphs(self) -> tuple[Node, ...]:
        return (self,)

    def execute(self, step: StepContext) -> Task[Any]:
        """Run the graph, or continue its run."""
        nested, given = step.nested(), self.given(step.tracked_state)
        final = yield from nested.result(self.plan(), given, self._updates(nested.before_updates, given))
        return evolve(step.state, pause=final.pause) if final.pause is not None else self.left(step.state, given, final)

    def part_result(self, nested: NestedStep, given: Mapping[str, Any]) -> Task[State]:
        """Return the final State of the graph as a part of a step."""
        return nested.result(self.plan(), given, {})

    def left(self, state: State, given: Mapping[str, Any], final: State) -> Any:
        """Return the result for a State, from the input and the final State of the graph."""
        if self._outputs is not None:
            return _selected("outputs", self._outputs, final)
        changed = differing_items(given, data_of(final))
        gone = [key for key in given if key not in final] if self._inputs is None else []
        return with_changes(state, changed, gone)

    def left_of_item(self, final: State) -> dict[str, Any]:
        """Return the result for an item: the outputs or, if there are none, all data of the final State."""
        return dict(data_of(final)) if self._outputs is None else _selected("outputs", self._outputs, final)

    def given(self, state: State) -> dict[str, Any]:
        """Return the input of the nested run: selected by `inputs`, otherwise the State or the fields of its schema."""
        if self._inputs is not None:
            return _selected("inputs", self._inputs, state)
        schema = self.plan().schema
        return {key: value for key, value in data_of(state).items() if schema is None or key in schema.fields}

    def _updates(self, before: State | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs that a resume has changed since the nested run began."""
        if before is None:
            return {}
        if isinstance(self._inputs, Mapping):  # some keys may be missing, or are not saved
            known = {name: key for name, key in self._inputs.items() if key in before}
            return differing_items(_selected("inputs", known, before), given)
        try:
            old = self.given(before)
        except Exception:  # noqa: BLE001 - the updates may have fixed this
            old = {}
        return differing_items(old, given)

    def question(self, step: StepContext) -> Task[Question]:
        return self.question_in(step.nested())

    def question_in(self, run: NestedStep) -> Task[Question]:
        """Return the question of a node of the graph; an answer must also fit the schema of the graph."""
        saved, plan = (yield from run.load()), self.plan()
        waiting = None if saved is None else run.waiting_step(saved, plan)
        if waiting is None:
            return Question(self, () if saved is not None else (_not_asked,), is_gone=saved is None)
        node, nested = waiting
        question = yield from node.question(nested)
        schema, pause = plan.schema, awaited(nested.state)
        if schema is None or pause is None or pause.response_param is None:
            return question
        fit = functools.partial(_fitting, schema, pause.response_param, nested.state)
        return attrs.evolve(question, fits=(*question.fits, fit))

    def outline(self, others: Structures) -> NodeOutline:
        key, depth = id(self.graph), [*others.values()].count(None)
        if key not in others and depth < MAX_DEPTH:
            others[key] = None
            others[key] = self.graph.structure_in(others)
        return NodeOutline("graph", (f"graph {self.graph.name}",), others.get(key))

    def problems(self, name: str) -> Iterator[str]:
        """Yield the reasons why it cannot work: a name unfit for a run id, cycles, depth, and its own problems."""
        if not _FITS_IDS.fullmatch(name):
            yield f"node {name!r} runs a graph: its name becomes part of run ids, so use only A-Z a-z 0-9 . _ - in it"
        nesting = list(_nesting(self.graph, (self.graph.name,), (id(self.graph),)))
        yield from nesting
        if not nesting:
            yield from self._nested_problems(name)

    def _nested_problems(self, name: str) -> Iterator[str]:
        try:
            self.plan()
        except GraphError as error:
            yield from (f"in graph {error.graph!r} of node {name!r}: {problem}" for problem in error.problems)


def _not_asked(answer: Any) -> Any:
    raise ValueError(
        "its graph begins again and pauses with its own question: resume without an answer, then read the question"
    )


def _fitting(schema: Schema, key: str, state: State, answer: Any) -> Any:
    return schema.checked("", {key: answer}, state)[key]


def _nesting(graph: Nestable, names: tuple[str, ...], above: tuple[int, ...]) -> Iterator[str]:
    """Yield the graphs that contain themselves, and the graphs nested too deep."""
    node: Any
    for node in chain.from_iterable(node.graphs for node in graph.nodes.values() if isinstance(node, Node)):
        path = " -> ".join([*names, node.graph.name])
        if id(node.graph) in above:
            yield f"graph {node.graph.name!r} contains itself: {path}"
        elif len(above) >= MAX_DEPTH:
            yield f"graphs are nested more than {MAX_DEPTH} deep: {path}"
        else:
            yield from _nesting(node.graph, (*names, node.graph.name), (*above, id(node.graph)))


def _checked(option: str, keys: Keys) -> Any:
    """Return the keys as a mapping from the name on this side to the name on the other, or as a function."""
    if keys is None:
        return None
    if callable(keys):
        check_function(option, keys, 1, "a State")
        return keys
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise TypeError(
            f"{option}: {shorten(keys)} is not allowed; keys, a mapping of keys, or a function of a State are"
        )
    mapping = dict(keys) if isinstance(keys, Mapping) else {key: key for key in keys}
    if not maps_texts(mapping):
        raise TypeError(f"{option}: keys are str")
    return mapping


def _selected(option: str, keys: Any, state: State) -> dict[str, Any]:
    if callable(keys):
        selected = answered(keys(state), f"its {option}")
        if not isinstance(selected, Mapping):
            found = f"its {option} must be a mapping, not {shorten(selected)} ({type(selected).__name__})"
            raise TypeError(f"{found}: return one from the function, {{}} if nothing goes there")
        return dict(selected)
    missing = [source for source in keys.values() if source not in state]
    if missing:
        raise KeyError(f"{missing[0]!r}, named in its {option}, is not in the State of run {state.run_id!r}")
    return {target: data_of(state)[source] for target, source in keys.items()}
