"""Pydantic models and TypedDicts in place of attrs classes and dataclasses."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from stategraph import (
    AnswerError,
    CheckpointStore,
    ExecutionError,
    InterruptNode,
    MapNode,
    Pause,
    SchemaError,
    State,
    StateGraph,
    register_type,
)
from stategraph.stores.memory import MemoryStore
from stategraph.testing import is_same
from stategraph.web._runs import form_of
from tests.scenarios import make_graph


@register_type
class Item(BaseModel):
    name: str
    price: Annotated[float, Field(gt=0)] = 1.0
    tags: list[str] = []


class Order(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str
    items: list[Item] = []
    total: float = Field(default=0.0, ge=0)
    note: str | None = None

    @field_validator("id")
    @classmethod
    def _is_upper(cls, value: str) -> str:
        if not value.isupper():
            raise ValueError("write it in capitals")
        return value

    @model_validator(mode="after")
    def _is_priced(self) -> Order:
        if self.total and not self.items:
            raise ValueError("a total of nothing")
        return self


class Decision(BaseModel):
    yes: bool
    reason: str = ""


class Job(TypedDict):
    path: str
    size: NotRequired[int]
    items: NotRequired[list[Item]]


def make(schema: Any, *nodes: Any, store: CheckpointStore | None = None) -> StateGraph:
    nodes_by_name = dict(zip("abc", nodes, strict=False))
    return make_graph(nodes_by_name, store=store or MemoryStore(), schema=schema, name="typed", preserve=True)


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            Item(name="tea"),
            Item(name="tea", price=2, tags=["hot"]),
            {"items": [Item(name="a"), (Item(name="b"),)]},
        ],
        ids=["defaults", "all", "nested"],
    )
    def test_a_store_gives_back_the_same(self, any_store: CheckpointStore, value: Any) -> None:
        """Types, values, and which fields were given."""
        state = State({"value": value}, run_id="a", step=1)
        any_store.save(state)
        assert is_same(any_store.load("a")["value"], state["value"])
        if isinstance(value, Item):
            assert any_store.load("a")["value"].model_fields_set == value.model_fields_set
            assert any_store.load("a")["value"].model_dump() == value.model_dump()


class TestSchema:
    def test_values_are_made_to_fit(self, any_store: CheckpointStore) -> None:
        """The model converts values: mappings become models, and nodes may take and return objects."""

        def price(order: Order) -> Order:
            return order.model_copy(update={"total": sum(item.price for item in order.items)})

        graph = make(Order, price, lambda state: {"note": f"{state['total']:.2f}"}, store=any_store)
        final = graph.execute(State({"id": "A7", "items": [{"name": "tea", "price": 3}]}, run_id="a"))

        assert final["items"] == [Item(name="tea", price=3)]
        assert (final["total"], final["note"]) == (3.0, "3.00")
        assert dict(any_store.load("a")) == dict(final)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"id": 7}, "'id' of Order: expected Input should be a valid string, found 7"),
            ({"id": "a7"}, "'id' of Order: expected Value error, write it in capitals, found 'a7'"),
            ({"id": "A", "total": -1}, "'total' of Order: expected Input should be greater than or equal to 0"),
            (
                {"id": "A", "items": [{"name": "x"}, {"nam": "y"}]},
                r"'items\[1\].name' of Order: expected Field required",
            ),
            ({"id": "A", "items": [{"name": "x", "price": 0}]}, r"'items\[0\].price' of Order.*greater than 0"),
            ({"id": "A", "totl": 1}, "'totl' of Order: expected one of its fields .*did you mean 'total'"),
            ({"path": 7}, "'path' of Job: expected str, found 7"),
            ({"pth": "x"}, "'pth' of Job: expected one of its fields .*did you mean 'path'"),
            ({"path": "x", "size": "1"}, "'size' of Job: expected int, found '1'"),
        ],
    )
    def test_values_that_do_not_fit(self, data: dict[str, Any], message: str) -> None:
        """Invalid values fail before any node runs, with the key and the message of the model."""
        with pytest.raises(SchemaError, match=message):
            make(Order if "of Order" in message else Job, lambda state: {}).execute(State(data))

    def test_a_model_is_checked_as_a_whole_when_an_object_is_made(self) -> None:
        """Validators of a whole model run when an object is made, as later nodes may set the fields."""
        graph = make(Order, lambda state: {"total": 3}, lambda state: {})
        assert graph.execute(State({"id": "A"}))["total"] == 3.0

        def look(order: Order) -> dict[str, Any]:
            return {}

        with pytest.raises(ExecutionError, match="a total of nothing"):
            make(Order, lambda state: {"total": 3}, look).execute(State({"id": "A"}))


class Priced(BaseModel):
    """A validator makes cents of a text, and takes no cents; another one doubles what it gets."""

    price: int = 0
    doubled: int = 0
    name: str = ""
    prices: list[int] = []
    texts: list[str] = []

    @field_validator("price", mode="before")
    @classmethod
    def _cents(cls, value: Any) -> int:
        if isinstance(value, str):
            return int(float(value) * 100)
        raise ValueError("a price is a text such as '3.50'")

    @field_validator("doubled")
    @classmethod
    def _twice(cls, value: int) -> int:
        return 2 * value

    @field_validator("name")
    @classmethod
    def _title(cls, value: str) -> str:
        return value.title()

    @field_validator("prices", mode="before")
    @classmethod
    def _all_cents(cls, value: Any) -> list[int]:
        return [cls._cents(each) for each in value]


REFUSED: dict[str, Any] = {
    "refused": (
        {"price": "3.50"},
        r"'price' of Priced: .*'3.50' \(str\), made 350 \(int\), which is refused: .*a text such",
    ),
    "changed": ({"doubled": 7}, r"'doubled' of Priced: .*7 \(int\), made 14 \(int\), which is changed again"),
    "list": ({"prices": ["1", "2"]}, r"'prices' of Priced: .*made \[100, 200\] \(list\), which is refused"),
}


class TestRoundTrip:
    """What is saved passes the schema again: the run could not be resumed otherwise, or with other values."""

    @pytest.mark.parametrize(("data", "text"), REFUSED.values(), ids=REFUSED)
    @pytest.mark.parametrize("place", ["input", "result", "State", "answer", "item"])
    def test_a_value_that_would_not_pass_again(self, place: str, data: dict[str, Any], text: str) -> None:
        """It is refused where it is written, with the value, what would be saved, and the way out."""
        store, key = MemoryStore(), next(iter(data))
        if place == "item" and key != "prices":
            pytest.skip("its value is no list")
        node: Any = {
            "input": lambda state: {},
            "result": lambda state: data,
            "State": lambda state: state.update(data),
            "answer": InterruptNode(None, key),
            "item": MapNode(lambda item: item, over="texts", into="prices"),
        }[place]
        graph = make_graph({"a": lambda state: {}, "b": node}, schema=Priced, store=store, preserve=True)
        given = State(data if place == "input" else {"texts": ["1", "2"]}, run_id="r")
        if place == "answer":
            graph.execute(given)

        with pytest.raises((SchemaError, ExecutionError, AnswerError), match=text) as caught:
            graph.resume("r", data) if place == "answer" else graph.execute(given)

        assert "let the validator accept" in str(caught.value)
        assert key not in (store.load("r") if place != "input" else {})

    def test_a_nested_graph_without_a_store(self) -> None:
        """The outer run saves it, so its values are checked as well."""
        inner = make_graph({"b": lambda state: {"doubled": 7}}, schema=Priced, store=MemoryStore(), interval=0)
        graph = make_graph({"n": inner.as_node()}, store=MemoryStore())

        with pytest.raises(ExecutionError, match="which is changed again"):
            graph.execute(State())

    def test_values_that_pass_again_or_are_not_saved(self) -> None:
        """A validator may change a value once and for all; a key that is not saved is not checked again."""
        graph = make_graph(
            {"a": lambda state: {"name": "ann lee"}, "b": lambda state: {"doubled": 7}},
            schema=Priced,
            store=MemoryStore(),
            preserve=True,
            persist=["name"],
        )

        assert dict(graph.execute(State(run_id="r"))) == {"name": "Ann Lee", "doubled": 14}


class TestAnswers:
    def test_an_answer_is_a_model(self) -> None:
        """A mapping becomes the model; an invalid one leaves the run paused, and the error says why."""
        register_type(Decision)
        graph = make(None, InterruptNode(None, "decision", schema=Decision))
        paused = graph.execute(State(run_id="a"))
        with pytest.raises(AnswerError, match=r"yes.*Field required"):
            graph.resume("a", {"decision": {"reason": "none"}})
        assert graph.resume("a", {"decision": {"yes": True}})["decision"] == Decision(yes=True)
        assert paused.pause is not None

    def test_the_page_asks_for_its_fields(self) -> None:
        """The form of the page has an input for each field."""
        graph = make(None, InterruptNode(None, "decision", schema=Decision))
        form = form_of(graph, Pause("why", "a", None, "decision", datetime.now(UTC)))
        assert form is not None
        assert [(field.label, field.kind) for field in form.fields] == [
            ("yes", "choice"),
            ("reason", "str"),
        ]


class TestTypedDict:
    def test_values_are_made_to_fit(self, any_store: CheckpointStore) -> None:
        """A node that is annotated with a TypedDict gets the State itself."""
        seen: list[object] = []

        def read(job: Job) -> dict[str, int]:
            seen.append(type(job))
            return {"size": len(job["path"])}

        graph = make(Job, read, lambda state: {"items": [{"name": "tea"}]}, store=any_store)
        final = graph.execute(State({"path": "/tmp"}))
        assert (final["size"], final["items"], seen) == (4, [Item(name="tea")], [State])


def test_pydantic_is_imported_by_those_who_use_it() -> None:
    """A run without models takes nothing of it."""
    code = """
import sys, attrs
from stategraph import State, StateGraph, register_type
@register_type
@attrs.frozen
class Item:
    n: int
@attrs.frozen
class Whole:
    item: Item = Item(1)
graph = StateGraph("a", schema=Whole, observer="noop")
graph.add_node("a", lambda state: {"item": Item(2)})
graph.set_entry_point("a")
graph.set_exit_point("a")
graph.execute(State())
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
