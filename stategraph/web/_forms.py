"""Forms: what a pause asks for as fields to fill in, and what is filled in as an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import attrs

from stategraph._values.registered_types import field_names, field_types, is_record
from stategraph.graph import StateGraph
from stategraph.nodes.interrupt import InterruptNode

_KINDS: dict[Any, str] = {bool: "choice", int: "number", float: "number", str: "text"}


@attrs.frozen
class Field:
    """One thing to fill in.

    Attributes:
        name: Its name in the form.
        label: What it is called.
        kind: "choice", "number", "text" or "json".
        choices: What can be chosen: text of JSON, and what is shown for it.
        is_whole: Whether a number has no fraction.
    """

    name: str
    label: str
    kind: str
    choices: tuple[tuple[str, str], ...] = ()
    is_whole: bool = False


@attrs.frozen
class Form:
    """What a pause asks for.

    Attributes:
        fields: What is to be filled in.
        is_record: Whether the answer is a dict of the fields rather than the one field.
    """

    fields: tuple[Field, ...]
    is_record: bool = False

    def answer(self, given: Mapping[str, str]) -> Any:
        """Return the answer of a form that was filled in.

        Raises:
            ValueError: a field does not hold what it should.
        """
        values = {field.label: _value_of(field, given.get(field.name, "")) for field in self.fields}
        return values if self.is_record else values[self.fields[0].label]


def form_of(graph: StateGraph | None, node: str, key: str) -> Form:
    """Return the form for the answer that a node waits for: by the schema of the node, where there is one."""
    asking = None if graph is None else graph.nodes.get(node)
    schema = asking.schema if isinstance(asking, InterruptNode) else None
    fields = _fields_of(schema)
    if fields:
        return Form(tuple(_field(f"answer.{name}", name, expected) for name, expected in fields.items()), True)
    return Form((_field("answer", key, schema),))


def _fields_of(schema: Any) -> dict[str, Any]:
    """Return the fields of a class of records with their types; none of anything else."""
    if not is_record(schema):
        return {}
    types = field_types(schema)
    return {name: types.get(name) for name in field_names(schema)}


def _field(name: str, label: str, expected: Any) -> Field:
    if expected is bool:
        return Field(name, label, "choice", (("true", "yes"), ("false", "no")))
    if get_origin(expected) is Literal:
        return Field(name, label, "choice", tuple((json.dumps(one), str(one)) for one in get_args(expected)))
    if isinstance(expected, type) and issubclass(expected, Enum):
        return Field(name, label, "choice", tuple((json.dumps(one.value), one.name) for one in expected))
    return Field(name, label, _KINDS.get(expected, "json"), (), expected is int)


def _value_of(field: Field, text: str) -> Any:
    if field.kind == "text":
        return text
    if field.kind == "number":
        try:
            return int(text) if field.is_whole else float(text)
        except ValueError:
            raise ValueError(f"{field.label}: {text[:100]!r} is no number") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if field.kind == "choice":
            raise ValueError(f"{field.label}: nothing was chosen") from None
        return text
