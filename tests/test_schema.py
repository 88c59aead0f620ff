"""States with a schema: what comes in is checked and made to fit before anything runs, and what nodes return before it
is saved; nodes may take and return objects of the schema."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypedDict
from uuid import UUID

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stategraph import (
    AnswerError,
    CachePolicy,
    CheckpointNotFoundError,
    CheckpointStore,
    ConfigError,
    ErrorInfo,
    ExecutionError,
    GraphError,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RecomputeError,
    RetryPolicy,
    RunStatus,
    SchemaError,
    State,
    StateGraph,
    register_type,
    turns,
)
from stategraph.stores.memory import MemoryStore
from tests.conftest import make_store
from tests.scenarios import DRIVERS, RUN, as_async, as_sync, broken_first, make_graph
from tests.scenarios import returns as returning

if TYPE_CHECKING:
    from nowhere import OnlyForCheckers  # type: ignore[import-not-found]

Call = Callable[..., State]


@register_type
class Status(StrEnum):
    NEW = "new"
    PAID = "paid"


@register_type
@attrs.frozen
class Item:
    name: str
    price: float = 0.0


@register_type
@dataclasses.dataclass
class Address:
    city: str
    lines: list[str] = dataclasses.field(default_factory=list)


@attrs.frozen
class FrozenAttrs:
    id: str
    total: float = 0.0
    items: list[Item] = attrs.Factory(list)
    status: Status = Status.NEW
    address: Address | None = None
    placed: datetime | None = None
    note: str = ""


@dataclasses.dataclass
class ChangeableDataclass:
    id: str
    total: float = 0.0
    items: list[Item] = dataclasses.field(default_factory=list)
    status: Status = Status.NEW
    address: Address | None = None
    placed: datetime | None = None
    note: str = ""


Order = FrozenAttrs
SCHEMAS = [FrozenAttrs, ChangeableDataclass]
FIELDS = "one of its fields (id, total, items, status, address, placed, note"


@pytest.fixture(params=list(DRIVERS))
def call(request: pytest.FixtureRequest) -> Call:
    return DRIVERS[request.param]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    with make_store(request.param, tmp_path) as made:
        yield made


def make(
    nodes: Mapping[str, Any],
    schema: Any = Order,
    *,
    store: CheckpointStore | None = None,
    interval: int = 1,
    persist: list[str] | None = None,
    **policies: Any,
) -> StateGraph:
    """-> a chain of nodes with a schema; policies are those of the first node."""
    return make_graph(
        nodes,
        store=store or MemoryStore(),
        schema=schema,
        interval=interval,
        persist=persist,
        preserve=True,
        policies={next(iter(nodes)): policies},
    )


def execute(call: Call, graph: StateGraph, data: Mapping[str, Any] | None = None) -> State:
    return call(graph, "execute", State({"id": "1"} if data is None else data, run_id=RUN))


def failure(call: Call, graph: StateGraph, data: Mapping[str, Any] | None = None) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        execute(call, graph, data)
    return caught.value


# --------------------------------------------------------------------------- which classes


@pytest.mark.parametrize("schema", [dict, "Order", 5, {}, Order("1"), int], ids=repr)
def test_a_schema_is_an_attrs_class_or_a_dataclass(schema: Any) -> None:
    """Anything else is named."""
    with pytest.raises(
        ConfigError,
        match=r"schema: .* is not allowed; an attrs class, a dataclass, a Pydantic",
    ):
        make({"a": returning({})}, schema)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Callable[[int], int], r"field 'run': TypeError: nothing is known of the type Callable\["),
        ("Nowhere", r"can be resolved where it is defined \(NameError: name 'Nowhere'"),
    ],
)
def test_types_of_fields_that_are_refused(annotation: Any, message: str) -> None:
    """A graph is not made with a type that is unknown or cannot be resolved."""
    with pytest.raises(ConfigError, match=message):
        make({"a": returning({})}, dataclasses.make_dataclass("Handler", [("run", annotation)]))


def test_classes_of_values_are_registered() -> None:
    """A schema registers the classes of its values, nested ones too; stores keep the values exactly."""
    inner = attrs.make_class("Inner", {"kind": attrs.field(type=int)})
    outer = dataclasses.make_dataclass("Outer", [("inner", dict[str, inner | None])])  # type: ignore[valid-type]
    schema = dataclasses.make_dataclass("Whole", [("outers", list[outer])])  # type: ignore[valid-type]
    graph = make({"a": returning({})}, schema)

    final = graph.execute(State({"outers": [{"inner": {"x": {"kind": 1}}}]}))

    assert final["outers"] == [outer({"x": inner(1)})]


def test_a_class_that_no_store_can_keep_is_refused() -> None:
    """In a graph that saves anything: said by validate."""

    @attrs.define
    class Odd(dict):  # type: ignore[type-arg]
        kind: int

    schema = dataclasses.make_dataclass("Whole", [("odd", Odd)])
    with pytest.raises(GraphError, match=r"its schema Whole holds values of class .*Odd, which no store can save"):
        make({"a": returning({})}, schema).validate()
    make({"a": returning({})}, schema, interval=0).validate()


# --------------------------------------------------------------------------- what comes in


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_input_is_made_to_fit(schema: Any, call: Call, store: CheckpointStore) -> None:
    """Mappings become objects, ints floats, values members of enums; the store gives back the same types."""
    data = {"id": "1", "total": 3, "items": [{"name": "a", "price": 1}], "status": "paid", "address": {"city": "x"}}

    final = execute(call, make({"a": returning({"note": "n"})}, schema, store=store), data)

    wanted = {
        "id": "1",
        "total": 3.0,
        "items": [Item("a", 1.0)],
        "status": Status.PAID,
        "address": Address("x"),
        "note": "n",
    }
    for state in (final, store.load(RUN)):
        assert dict(state) == wanted
        assert type(state["total"]) is type(state["items"][0].price) is float
        assert type(state["status"]) is Status


@pytest.mark.parametrize("schema", SCHEMAS)
def test_input_that_does_not_fit_is_refused(schema: Any, call: Call, store: CheckpointStore) -> None:
    """Before anything runs or is saved; the error tells everything at once."""
    ran: list[str] = []

    def node(state: State) -> dict[str, Any]:
        ran.append("a")
        return {}

    graph = make({"a": node}, schema, store=store)

    with pytest.raises(SchemaError) as caught:
        execute(call, graph, {"id": 1, "items": [{"name": "a"}, {"name": 2}], "totl": 3})

    error = caught.value
    assert (error.node, error.key, error.expected, error.found) == ("", "id", "str", "1 (int)")
    assert str(error) == (
        f"the input: 'id' of {schema.__name__}: expected str, found 1 (int); "
        f"'items[1].name': expected str, found 2 (int); 'totl': expected {FIELDS}; did you mean 'total'?), "
        "found another key"
    )
    assert isinstance(error, ValueError)
    assert ran == []
    with pytest.raises(CheckpointNotFoundError):
        store.load(RUN)


def test_a_required_field_may_come_later(call: Call) -> None:
    """A pipeline fills keys step by step; defaults of the class do not become keys."""
    final = execute(call, make({"a": returning({"note": "n"})}), {})

    assert dict(final) == {"note": "n"}


def test_defaults_are_checked_and_made_to_fit(call: Call) -> None:
    """Defaults are treated as input is; validate names one that does not fit."""
    graph = make({"a": returning({})})
    graph.set_defaults({"items": [{"name": "a"}]})
    assert execute(call, graph)["items"] == [Item("a")]

    graph.set_defaults({"total": "x"})
    with pytest.raises(GraphError, match=r"its defaults: the input: 'total' .* expected float, found 'x' \(str\)"):
        graph.validate()


# --------------------------------------------------------------------------- what nodes return


@pytest.mark.parametrize("as_node", [as_sync, as_async])
@pytest.mark.parametrize("as_state", [False, True])
def test_updates_are_made_to_fit(as_node: Any, as_state: bool, call: Call, store: CheckpointStore) -> None:
    """Mappings and States alike."""

    def node(state: State) -> Any:
        updates = {"items": [{"name": "a", "price": 2}], "status": "paid"}
        return state.update(updates) if as_state else updates

    final = execute(call, make({"a": as_node(node)}, store=store))

    assert final["items"] == [Item("a", 2.0)]
    assert store.load(RUN) == final
    assert type(store.load(RUN)["status"]) is Status


@pytest.mark.parametrize("as_node", [as_sync, as_async])
def test_updates_that_do_not_fit_fail_the_node(as_node: Any, call: Call, store: CheckpointStore) -> None:
    """The error names node, key, what is expected and what was found; what was saved before stays."""
    error = failure(call, make({"a": returning({"total": 1}), "b": as_node(returning({"total": "1"}))}, store=store))

    cause = error.__cause__
    assert isinstance(cause, SchemaError)
    assert (cause.node, cause.key, cause.expected, cause.found) == ("b", "total", "float", "'1' (str)")
    assert str(error) == (
        f"node 'b' of run {RUN!r} failed: SchemaError: node 'b': 'total' of FrozenAttrs: expected float, "
        "found '1' (str) (path: a -> b)"
    )
    assert store.load(RUN)["total"] == 1.0
    assert store.load(RUN).error == ErrorInfo("SchemaError", str(cause), "b")


def test_a_bad_result_is_not_tried_again_but_handled(call: Call) -> None:
    """As other bad results are; the handler finds the error under the key "error", which is a field then."""

    @dataclasses.dataclass
    class Handled:
        error: dict[str, str] | None = None
        note: str = ""

    calls: list[int] = []

    def wrong(state: State) -> dict[str, Any]:
        calls.append(1)
        return {"note": 1}

    graph = make(
        {"a": wrong, "b": returning({"note": "handled"})},
        Handled,
        retry=RetryPolicy(max_attempts=3, initial_delay=0),
        on_error="b",
    )

    final = execute(call, graph, {})

    assert calls == [1]
    assert final["note"] == "handled"
    assert final["error"]["type"] == "SchemaError"


def test_the_error_of_a_handler_has_to_be_a_field() -> None:
    """Said by validate, and that it has to fit."""
    with pytest.raises(GraphError, match=r"node 'a' has on_error, which writes 'error', which is no field of FrozenA"):
        make({"a": returning({}), "b": returning({})}, on_error="b").validate()

    wrong = dataclasses.make_dataclass("Wrong", [("error", int)])
    with pytest.raises(GraphError, match=r"what on_error writes: the input: 'error' of Wrong: expected int"):
        make({"a": returning({}), "b": returning({})}, wrong, on_error="b").validate()


def test_validators_of_an_attrs_class_are_asked(call: Call) -> None:
    """Of the keys that changed; one that looks at a field that is not there yet is left for later."""

    def is_below_limit(instance: Any, attribute: Any, value: int) -> None:
        if value > instance.limit:
            raise ValueError("above the limit")

    @attrs.frozen
    class Limited:
        limit: int
        value: int = attrs.field(default=0, validator=is_below_limit)
        tries: int = attrs.field(default=0, validator=attrs.validators.ge(0))

    with pytest.raises(SchemaError, match=r"'tries' of Limited: expected int that its validator takes, found ValueErr"):
        execute(call, make({"a": returning({})}, Limited), {"tries": -1})
    assert execute(call, make({"a": returning({"value": 9})}, Limited), {})["value"] == 9
    assert "found ValueError: above the limit" in str(
        failure(call, make({"a": returning({"value": 9})}, Limited), {"limit": 3})
    )


# --------------------------------------------------------------------------- objects


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("as_node", [as_sync, as_async])
def test_a_node_may_take_and_return_an_object(schema: Any, as_node: Any, call: Call, store: CheckpointStore) -> None:
    """Its first parameter is annotated with the class. Fields that differ from what it was given are the updates."""

    def typed(order: Any) -> Any:
        assert type(order) is schema
        assert order.status is Status.NEW
        return (attrs.evolve if attrs.has(schema) else dataclasses.replace)(order, total=len(order.items))

    typed.__annotations__["order"] = schema
    final = execute(call, make({"a": as_node(typed)}, schema, store=store), {"id": "1", "items": [Item("a")]})

    assert dict(final) == {"id": "1", "items": [Item("a")], "total": 1.0}
    assert store.load(RUN) == final


def takes_text(order: "Order", context: NodeContext) -> "OnlyForCheckers":  # noqa: UP037
    return {"note": f"{order.id} {context.node}"}


def takes_annotated(order: Annotated[Order, "told"]) -> dict[str, Any]:
    return {"note": order.id}


class Caller:
    async def __call__(self, order: Order) -> dict[str, Any]:
        return {"note": order.id}

    def method(self, order: Order, context: NodeContext) -> dict[str, Any]:
        return {"note": order.id}


async def takes_async(order: Order, *, context: NodeContext) -> Order:
    return attrs.evolve(order, note=f"{order.id} {context.step}")


@functools.wraps(takes_annotated)
def wrapped(*args: Any) -> Any:
    return takes_annotated(*args)


@pytest.mark.parametrize(
    ("node", "note"),
    [
        (takes_text, "1 a"),
        (takes_annotated, "1"),
        (Caller(), "1"),
        (Caller().method, "1"),
        (takes_async, "1 1"),
        (functools.partial(takes_text), "1 a"),
        (wrapped, "1"),
        (lambda state: takes_async(Order("7"), context=NodeContext("r", "g", "n", 5)), "7 5"),
    ],
    ids=["text", "annotated", "callable", "method", "async", "partial", "wrapped", "an awaitable"],
)
def test_any_callable_may_take_an_object(node: Any, note: str, call: Call) -> None:
    """Annotations may be texts, and others may name what only type checkers know."""
    assert execute(call, make({"a": node}))["note"] == note


def test_a_node_without_the_annotation_gets_the_state(call: Call) -> None:
    """As in any graph; it may return an object."""

    def node(state):
        assert type(state) is State
        return Order("2", total=3)

    final = execute(call, make({"a": node}))

    assert (final["id"], final["total"], final["items"]) == ("2", 3.0, [])


def test_an_object_needs_the_required_fields(call: Call) -> None:
    """The error says which one is missing."""

    def node(order: Order) -> dict[str, Any]:
        return {}

    assert str(failure(call, make({"a": node}), {})) == (
        f"node 'a' of run {RUN!r} failed: SchemaError: node 'a': 'id' of FrozenAttrs: expected str, found nothing: "
        "neither the input nor a node before has set it (path: a)"
    )


def test_an_object_that_its_class_refuses_fails_the_node(call: Call) -> None:
    """What it raised is the cause."""

    @dataclasses.dataclass
    class Strict:
        a: int = 0

        def __post_init__(self) -> None:
            if self.a > 1:
                raise ValueError("too much")

    def node(strict: Strict) -> dict[str, Any]:
        return {}

    error = failure(call, make({"a": node}, Strict), {"a": 2})

    assert "SchemaError: node 'a': Strict: expected values that it takes, found ValueError: too much" in str(error)
    assert isinstance(error.__cause__, SchemaError)
    assert isinstance(error.__cause__.__cause__, ValueError)


def test_changes_within_an_object_are_not_lost(call: Call, store: CheckpointStore) -> None:
    """Fields assigned, defaults changed in place, and nested objects changed in place."""

    def node(order: ChangeableDataclass) -> ChangeableDataclass:
        order.total = 7
        order.items.append(Item("a"))
        assert order.address is not None
        order.address.lines.append("x")
        return order

    graph = make({"a": node}, ChangeableDataclass, store=store)
    final = execute(call, graph, {"id": "1", "address": Address("c")})

    assert dict(final) == {"id": "1", "address": Address("c", ["x"]), "total": 7.0, "items": [Item("a")]}
    assert dict(store.load(RUN)) == dict(final)


def test_an_unchanged_default_is_no_update(call: Call) -> None:
    """Nor is a value that a converter of the class has copied: two branches that hand theirs on do not collide."""

    @attrs.define
    class Copied:
        tags: set[str] = attrs.Factory(set)
        names: list[str] = attrs.field(factory=list, converter=list)
        a: int = 0
        b: int = 0

    def one(copied: Copied) -> Copied:
        return attrs.evolve(copied, a=1)

    def other(copied: Copied) -> Copied:
        copied.b = 1
        return copied

    final = execute(call, make({"x": ParallelNode({"one": one, "other": other})}, Copied), {"names": ["n"]})

    assert dict(final) == {"names": ["n"], "a": 1, "b": 1}


def test_names_of_arguments_are_those_of_the_class(call: Call) -> None:
    """Of a private field of attrs it is another one than the key; fields it makes itself are no keys."""

    @attrs.define
    class Private:
        _secret: int
        made: int = attrs.field(init=False, default=5)

    def node(private: Private) -> Private:
        return Private(secret=private._secret + 1)

    graph = make({"a": node}, Private)

    assert dict(execute(call, graph, {"_secret": 1})) == {"_secret": 2}
    with pytest.raises(SchemaError, match=r"expected one of its fields \(_secret\), found another key"):
        execute(call, make({"a": node}, Private), {"made": 1})


def test_generators_may_take_and_return_objects(call: Call) -> None:
    """What a sync one returns and an object that one yields last are updates; an object before that is a chunk."""

    def chunks(order: Order) -> Any:
        yield "chunk"
        return attrs.evolve(order, note=order.id)

    async def achunks(order: Order, context: NodeContext) -> Any:
        yield attrs.evolve(order, note="draft")
        yield attrs.evolve(order, total=len(context.node))

    final = execute(call, make({"a": chunks, "b": achunks}))
    assert dict(final) == {"id": "1", "note": "1", "total": 1.0}

    shown = [s.partial.chunk for s in make({"a": chunks}).stream(State({"id": "1"})) if s.partial]
    assert shown == ["chunk"]


# --------------------------------------------------------------------------- other nodes


def branch_total(order: Order) -> Order:
    return attrs.evolve(order, total=3)


def branch_note(order: Order) -> dict[str, Any]:
    return {"note": order.id}


def branch_status(state: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": "paid"}


@pytest.mark.parametrize("processes", [False, True])
def test_branches_may_take_and_return_objects(processes: bool, call: Call) -> None:
    """In threads and in processes."""
    branches: dict[str, Any] = {"total": branch_total, "note": branch_note, "status": branch_status}

    final = execute(call, make({"a": ParallelNode(branches, processes=processes)}))

    assert dict(final) == {"id": "1", "total": 3.0, "note": "1", "status": Status.PAID}


def test_a_branch_that_does_not_fit_is_done_again(call: Call) -> None:
    """It is not kept as finished; the others are."""
    total: list[Any] = [1, "wrong"]
    done: list[str] = []

    def first(state: State) -> dict[str, Any]:
        done.append("first")
        return {"note": "n"}

    graph = make({"a": ParallelNode({"first": first, "second": lambda state: {"total": total.pop()}}, max_workers=1)})
    error = failure(call, graph)

    assert "second: SchemaError: node 'a': 'total' of FrozenAttrs: expected float, found 'wrong' (str)" in str(error)
    assert dict(call(graph, "resume", RUN)) == {"id": "1", "note": "n", "total": 1.0}
    assert done == ["first"]


def test_an_item_that_does_not_fit_is_done_again(call: Call) -> None:
    """The error tells its place in the list."""
    answers: list[Any] = [{"name": "again"}, {"name": 5}, {"name": "a"}]
    graph = make({"a": MapNode(lambda item: answers.pop(), over="items", into="items", max_workers=1)})

    error = failure(call, graph, {"items": [Item("x"), Item("y")]})

    assert "1: SchemaError: node 'a': 'items[1].name' of FrozenAttrs: expected str, found 5 (int)" in str(error)
    assert call(graph, "resume", RUN)["items"] == [Item("a"), Item("again")]


def test_an_error_about_a_whole_list_names_the_list(call: Call) -> None:
    """Not of its items, which may be right."""
    pair = dataclasses.make_dataclass("Pair", [("given", list[int]), ("made", tuple[float, float])])
    graph = make({"a": MapNode(lambda item: item, over="given", into="made")}, pair)

    assert execute(call, graph, {"given": [1, 2]})["made"] == (1.0, 2.0)
    error = failure(call, make({"a": MapNode(lambda item: item, over="given", into="made")}, pair), {"given": [1]})
    assert "'made' of Pair: expected tuple[float, float], found [1] (list)" in str(error)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (MapNode(lambda item: item, over="items", into="itms"), "writes 'itms'"),
        (InterruptNode(None, "answer"), "writes 'answer'"),
        (MapNode(lambda item: item, over="itms", into="items"), "reads 'itms'"),
        (InterruptNode("statsu", "status"), "reads 'statsu'"),
        (make({"ask": InterruptNode(None, "okay")}, None).as_node(inputs={"x": "idd"}), "reads 'idd'"),
        (make({"ask": InterruptNode(None, "okay")}, None).as_node(), "takes an answer under 'okay'"),
    ],
)
def test_nodes_that_name_an_unknown_field(node: Any, text: str) -> None:
    """Refuse a graph whose node reads, writes or asks for a key that its schema lacks."""
    with pytest.raises(GraphError, match=f"node 'a' {text}, which is no field of FrozenAttrs"):
        make({"a": node}).validate()


def test_policies_that_name_an_unknown_field(tmp_path: Path) -> None:
    """Refuse unknown keys that are to be saved, or decide about a cached result; suggest the nearest field."""
    with pytest.raises(GraphError, match=r"checkpoint.persist names 'itms', which is no field.*did you mean 'items'"):
        make({"a": returning({})}, persist=["itms"]).validate()
    with pytest.raises(GraphError, match="the cache of node 'a' names 'itms', which is no field"):
        make({"a": returning({})}, cache=CachePolicy(["itms"], path=tmp_path, version="1")).validate()


def test_answers_are_checked(call: Call) -> None:
    """The run stays paused; an answer that fits is made into what its field wants."""
    graph = make({"a": InterruptNode("id", "status"), "b": returning({})})
    assert execute(call, graph).status is RunStatus.PAUSED

    with pytest.raises(AnswerError, match=r"'status' of FrozenAttrs: expected Status, found 'lost' \(str\)"):
        call(graph, "resume", RUN, {"status": "lost"})
    with pytest.raises(SchemaError, match=r"^the input: 'total' of FrozenAttrs: expected float, found 'x' \(str\)$"):
        call(graph, "resume", RUN, {"status": "paid", "total": "x"})

    assert graph.store.load(RUN).status is RunStatus.PAUSED
    assert call(graph, "resume", RUN, {"status": "paid"})["status"] is Status.PAID


# --------------------------------------------------------------------------- graphs within graphs


@dataclasses.dataclass
class Inner:
    id: str = ""
    total: int = 0


def test_a_graph_within_has_its_own_schema(call: Call) -> None:
    """By default it is given the fields of it that the outer State has, and what comes out is checked by the outer."""
    inner = make({"n": lambda state: {"total": state.get("total", 1)}}, Inner)
    final = execute(call, make({"a": inner.as_node()}), {"id": "1", "note": "n"})

    assert dict(final) == {"id": "1", "note": "n", "total": 1.0}
    assert type(final["total"]) is float


def test_what_goes_into_a_graph_within_is_checked(call: Call) -> None:
    """The node that it is fails."""
    inner = make({"n": returning({})}, Inner)
    error = failure(call, make({"a": inner.as_node(inputs={"total": "note"})}), {"note": "x"})

    assert str(error).startswith(
        f"node 'a' of run {RUN!r} failed: SchemaError: the input: 'total' of Inner: expected int, found 'x' (str)"
    )


def test_a_graph_within_begins_with_its_defaults(call: Call) -> None:
    """Under keys for which it is given no value."""
    inner = make({"n": lambda state: {"total": state["total"] + 1}}, Inner)
    inner.set_defaults({"total": 4})

    assert execute(call, make({"a": inner.as_node(inputs=["id"])}))["total"] == 5.0


# --------------------------------------------------------------------------- types


class Size(IntEnum):
    S = 1


class Mapped(TypedDict):
    a: int


@attrs.frozen
class Tree:
    name: str
    children: list[Tree] = attrs.Factory(list)


Name = NewType("Name", str)
NOW = datetime(2024, 1, 2, tzinfo=UTC)
UNIQUE = UUID(int=5)


def one_field(expected: Any) -> Any:
    return dataclasses.make_dataclass("One", [("x", expected)])


def fitted(expected: Any, value: Any) -> Any:
    """-> a value after it went into a graph whose schema has this type for it."""
    return make({"a": returning({})}, one_field(expected), interval=0).execute(State({"x": value}))["x"]


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        *((int, 1), (float, 1.5), (str, "a"), (bytes, b"a"), (bool, True), (None, None), (complex, 1j)),
        *((datetime, NOW), (date, NOW.date()), (Decimal, Decimal("1.10")), (UUID, UNIQUE), (Path, Path("a"))),
        *((list[int], [1]), (list, [1, "a"]), (dict[str, int], {"a": 1}), (set[int], {1}), (tuple[int, str], (1, "a"))),
        *((tuple[int, ...], (1, 2)), (tuple[()], ()), (frozenset[str], frozenset("a")), (Sequence[int], (1,))),
        *((int | None, None), (int | str, "a"), (float | int, 1), (Literal["a", 1], 1), (Any, object), (object, 1)),
        *((Name, "n"), (Annotated[int, "x"], 1), (list[Item], [Item("a")]), (Item, Item("a")), (Size, Size.S)),
        *((Literal[Size.S], Size.S), (list[datetime], [NOW]), (Mapping[str, list[int | None]], {"a": [None]})),
    ],
    ids=repr,
)
def test_what_fits_stays_what_it_is(expected: Any, value: Any) -> None:
    """The value and its type."""
    found = fitted(expected, value)

    assert found == value
    assert repr(found) == repr(State({"x": value})["x"])


@pytest.mark.parametrize("first", [0, 1])
def test_members_of_a_union_are_tried_in_its_own_order(first: int) -> None:
    """Though unions of the same members are equal."""
    one = attrs.make_class("One", {"a": attrs.field(type=int)})
    other = attrs.make_class("Other", {"a": attrs.field(type=int)})
    unions = [one | other, other | one]

    assert type(fitted(unions[first], {"a": 1})) is (one, other)[first]


def test_what_fits_is_not_copied() -> None:
    """What a State holds stays the same object: that is what makes saving a small change cheap."""
    value = State({"x": [{"a": [Item("b")]}]})["x"]

    assert fitted(list[dict[str, list[Item]]], value) is value


@pytest.mark.parametrize(
    ("expected", "value", "made"),
    [
        *((float, 1, 1.0), (Size, 1, Size.S), (Item, {"name": "a"}, Item("a")), (list[int], (1,), [1])),
        *((tuple[int, ...], [1], (1,)), (tuple[int, float], [1, 1], (1, 1.0)), (frozenset[int], {1}, frozenset({1}))),
        *((set[float], {1}, {1.0}), (dict[str, float], {"a": 1}, {"a": 1.0}), (float | None, 1, 1.0)),
        *((Sequence[float], [1], [1.0]), (Item | None, {"name": "a"}, Item("a")), (Mapped, {"a": 1}, {"a": 1})),
        (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    ],
    ids=repr,
)
def test_what_is_meant_is_made(expected: Any, value: Any, made: Any) -> None:
    """Where nothing has to be guessed and nothing is lost."""
    found = fitted(expected, value)

    assert found == made
    assert repr(found) == repr(State({"x": made})["x"])


@pytest.mark.parametrize(
    ("expected", "value", "message"),
    [
        (int, True, "'x' of One: expected int, found True (bool)"),
        (int, 1.0, "'x' of One: expected int, found 1.0 (float)"),
        (float, True, "'x' of One: expected float, found True (bool)"),
        (float, 2**53 + 1, "'x' of One: expected float, found 9007199254740993 (int)"),
        (str, 1, "'x' of One: expected str, found 1 (int)"),
        (str, None, "'x' of One: expected str, found None"),
        (None, 1, "'x' of One: expected None, found 1 (int)"),
        (datetime, "2024-01-01", "'x' of One: expected datetime, found '2024-01-01' (str)"),
        (Path, "a", "'x' of One: expected Path, found 'a' (str)"),
        (Size, True, "'x' of One: expected Size, found True (bool)"),
        (Literal[1, "a"], True, "'x' of One: expected Literal[1, 'a'], found True (bool)"),
        (int | None, "a", "'x' of One: expected int | None, found 'a' (str)"),
        (Sequence[str], "abc", "'x' of One: expected Sequence[str], found 'abc' (str)"),
        (list[int], [1, "a", "b"], "'x[1]' of One: expected int, found 'a' (str); 'x[2]': expected int, found 'b'"),
        (dict[str, int], {"a": "b"}, "\"x['a']\" of One: expected int, found 'b' (str)"),
        (dict[str, int], {1: 1}, "'x[1]' of One: expected str, found 1 (int)"),
        (dict[str, int], [], "'x' of One: expected dict[str, int], found [] (FrozenList)"),
        (tuple[int, str], (1,), "'x' of One: expected tuple[int, str], found (1,) (tuple)"),
        (tuple[int, str], (1, 2), "'x[1]' of One: expected str, found 2 (int)"),
        (set[int], [1], "'x' of One: expected set[int], found [1] (FrozenList)"),
        (Item, 5, "'x' of One: expected Item or a mapping of its fields, found 5 (int)"),
        (Item, {}, "'x.name' of One: expected str, found nothing"),
        (Item, {"name": "a", "b": 1}, "'x.b' of One: expected the fields of Item, found another one"),
        (Item | None, {"name": 1}, "'x.name' of One: expected str, found 1 (int)"),
        (Mapped, {"a": "b"}, "'x.a' of One: expected int, found 'b' (str)"),
    ],
    ids=repr,
)
def test_values_that_do_not_fit(expected: Any, value: Any, message: str) -> None:
    """Where it stands, what is expected, what was found: no str is made of an int, no int of a bool."""
    with pytest.raises(SchemaError, match=re.escape(message)):
        fitted(expected, value)


_orders = st.fixed_dictionaries(
    {"id": st.text()},
    optional={
        "total": st.floats(allow_nan=False),
        "items": st.lists(st.builds(Item, st.text(), st.floats(allow_nan=False)), max_size=3),
        "status": st.sampled_from(Status),
        "address": st.none() | st.builds(Address, st.text(), st.lists(st.text(), max_size=2)),
        "placed": st.none() | st.datetimes(),
    },
)


@given(_orders)
@settings(max_examples=50, deadline=None)
def test_what_was_an_object_and_was_saved_is_the_same_object_again(data: dict[str, Any]) -> None:
    """Data that fit go through unchanged, as they are and as mappings of their fields; nothing changed is no update."""
    store = MemoryStore()
    given_as_mappings = {
        **data,
        "items": [attrs.asdict(item) for item in data.get("items", ())],
        "address": None if data.get("address") is None else dataclasses.asdict(data["address"]),
    }

    def same(order: Order) -> Order:
        return order

    graph = make({"a": same}, store=store)
    as_objects = graph.execute(State(data, run_id="objects"))
    as_mappings = graph.execute(State(given_as_mappings, run_id="mappings"))

    assert dict(as_objects) == dict(store.load("objects")) == data
    assert dict(as_mappings) == dict(store.load("mappings")) == {"items": [], "address": None, **data}


# --------------------------------------------------------------------------- a schema that has changed


@dataclasses.dataclass
class Before:
    """What a program has written that is gone."""

    spent: int = 7
    summary: str = ""
    okay: bool = False


@dataclasses.dataclass
class After:
    """What the program that goes on knows."""

    spent: dict[str, int] = dataclasses.field(default_factory=dict)
    digest: str = ""
    okay: bool = False


STALE = (
    f"the State of run {RUN!r} after step 1: 'spent' of After: expected dict[str, int], found 7 (int); "
    "'summary': expected one of its fields (spent, digest, okay), found another key. The schema has changed since"
)


def versions(store: CheckpointStore, middle: Any, ran: list[Any]) -> list[StateGraph]:
    """-> the graph as it was and as it is: three nodes, the one in the middle given."""

    def last(state: State) -> dict[str, Any]:
        ran.append(dict(state))
        return {}

    first = returning({"spent": 7, "summary": "s"})
    return [make({"a": first, "b": middle, "c": last}, schema, store=store) for schema in (Before, After)]


DOORS: dict[str, Callable[[Call, StateGraph], object]] = {
    "resume": lambda call, graph: call(graph, "resume", RUN),
    "run": lambda call, graph: call(graph, "run", State(run_id=RUN)),
    "take over": lambda call, graph: call(graph, "resume", RUN, take_over=True),
    "turn": lambda call, graph: call(graph, "turn", RUN, {"okay": True}),
    "order": lambda call, graph: turns.perform(turns.Order(graph, RUN), [graph]),
    "next order": lambda call, graph: turns.perform(turns.Order(graph, RUN, 2), [graph]),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_saved_state_that_does_not_fit_any_more_goes_on_by_no_door(
    door: str, call: Call, store: CheckpointStore
) -> None:
    """It stays as it is saved, and nothing runs."""
    ran: list[Any] = []
    before, after = versions(store, broken_first(returning({}), OSError("away")), ran)
    failure(call, before, {})
    saved = store.load(RUN)
    if door == "order":  # delivered again, after a worker was lost
        store.amend(attrs.evolve(saved, status=RunStatus.ACTIVE, error=None))
        saved = store.load(RUN)

    with pytest.raises(SchemaError, match=f"^{re.escape(STALE)}") as caught:
        DOORS[door](call, after)

    assert (caught.value.run_id, caught.value.step, caught.value.node) == (RUN, 1, "")
    assert "updates" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).run_id == RUN
    assert (store.load(RUN).step, dict(store.load(RUN)), ran) == (saved.step, dict(saved), [])
    assert call(before, "resume", RUN).status is RunStatus.COMPLETED


def test_what_recover_finds_is_checked_too(store: CheckpointStore) -> None:
    """The error is in the result, and each time the same: no owner was lost by it."""
    ran: list[Any] = []
    before, after = versions(store, broken_first(returning({}), OSError("away")), ran)
    failure(DRIVERS["sync"], before, {})
    store.amend(attrs.evolve(store.load(RUN), status=RunStatus.ACTIVE, error=None))

    for _ in range(3):
        (found,) = after.recover(max_recoveries=2)
        assert isinstance(found.error, SchemaError)
        assert found.error.run_id == RUN
    assert ran == []


def test_a_pause_and_its_fork_are_checked(call: Call, store: CheckpointStore) -> None:
    """Before the answer is taken: the run goes on to wait."""
    ran: list[Any] = []
    before, after = versions(store, InterruptNode(None, "okay"), ran)
    execute(call, before, {})
    store.fork(RUN, "fork")

    for run_id in (RUN, "fork"):
        with pytest.raises(SchemaError, match=f"the State of run '{run_id}' after step 1: 'spent'"):
            call(after, "resume", run_id, {"okay": True})

    assert store.load(RUN).status is RunStatus.PAUSED
    assert ran == []


def test_updates_mend_a_saved_state(call: Call, store: CheckpointStore) -> None:
    """They are laid over it before it is checked; a key that is not known any more cannot be mended that way."""
    ran: list[Any] = []
    wider = dataclasses.make_dataclass("Wider", [("summary", str, ""), ("okay", bool, False)], bases=(After,))
    before, after = versions(store, InterruptNode(None, "okay"), ran)
    execute(call, before, {})

    with pytest.raises(SchemaError, match="'summary' of After: expected one of its fields") as caught:
        call(after, "resume", RUN, {"okay": True, "spent": {"all": 7}})
    assert "spent'" not in str(caught.value)
    nodes = {"a": returning({}), "b": InterruptNode(None, "okay"), "c": returning({})}
    final = call(make(nodes, wider, store=store), "resume", RUN, {"okay": True, "spent": {"all": 7}})
    assert final["spent"] == {"all": 7}


def test_a_saved_state_is_made_to_fit(call: Call, store: CheckpointStore) -> None:
    """As input is: a float for an int, a member for its value. It is saved so with the next step."""
    old = dataclasses.make_dataclass("Old", [("total", int), ("status", str)])
    new = dataclasses.make_dataclass("New", [("total", float), ("status", Status)])
    node = broken_first(returning({}), OSError("away"))
    failure(call, make({"a": returning({}), "b": node}, old, store=store), {"total": 3, "status": "paid"})

    call(make({"a": returning({}), "b": node}, new, store=store), "resume", RUN)

    saved = store.load(RUN)
    assert (type(saved["total"]), saved["status"]) == (float, Status.PAID)


@pytest.mark.parametrize("as_item", [False, True], ids=["step", "item"])
def test_the_state_of_a_graph_within_is_checked(as_item: bool, call: Call, store: CheckpointStore) -> None:
    """It is no failure of the node, which nothing handles; the answer stays given."""
    made: list[StateGraph] = []
    for schema in (Before, After):
        nodes = {"a": returning({"spent": 7}), "ask": InterruptNode(None, "okay"), "c": returning({})}
        node: Any = make(nodes, schema).as_node(inputs=lambda state: {}, outputs=["spent"])
        if as_item:
            node = MapNode(node, over="items", into="made", on_error="collect")
        made.append(make({"run": node, "y": returning({})}, None, store=store, on_error="y"))
    before, after = made
    assert execute(call, before, {"items": [{}]}).status is RunStatus.PAUSED

    with pytest.raises(SchemaError, match=f"the State of run '{RUN}/.*' after step 1: 'spent' of After") as caught:
        call(after, "resume", RUN, {"okay": True})

    assert caught.value.run_id.startswith(f"{RUN}/")
    final = call(before, "resume", RUN)
    assert final.status is RunStatus.COMPLETED
    assert (final["made"] == [{"spent": 7}]) if as_item else (final["spent"] == 7)


def test_keys_that_are_not_saved_are_checked_when_they_are_made_again(call: Call, store: CheckpointStore) -> None:
    """What is saved is checked without them."""
    spent: list[Any] = [{"all": 7}, "much", 7]
    nodes = {
        "x": returning({"okay": True}),
        "a": lambda state: {"spent": spent.pop()},
        "b": broken_first(returning({}), OSError("away")),
    }
    before, after = (make(nodes, schema, store=store, persist=["okay"]) for schema in (Before, After))
    failure(call, before, {})

    with pytest.raises(RecomputeError, match="'spent' of After: expected dict"):
        call(after, "resume", RUN)
    assert call(after, "resume", RUN)["spent"] == {"all": 7}


def test_a_class_that_is_local_to_a_function_is_recognised(call: Call) -> None:
    """By its name, where nothing else can be told."""

    @dataclasses.dataclass
    class Local:
        a: int = 0

    def node(local: Local) -> dict[str, Any]:
        return {"a": local.a + 1}

    assert execute(call, make({"a": node}, Local), {"a": 1})["a"] == 2
