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
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Protocol, TypedDict
from uuid import UUID

import attrs
import pytest

from stategraph import (
    AnswerError,
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
    RunStatus,
    SchemaError,
    State,
    StateGraph,
    register_type,
    turns,
)
from stategraph.stores.memory import MemoryStore
from tests.conftest import make_store
from tests.pairs import every_pair
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
    """Return a chain of nodes with a schema; the first node has the policies."""
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


def test_classes_of_values_are_registered() -> None:
    """A schema registers the classes of its values, nested ones too; stores keep the values exactly."""
    inner = attrs.make_class("Inner", {"kind": attrs.field(type=int)})
    outer = dataclasses.make_dataclass("Outer", [("inner", dict[str, inner | None])])  # type: ignore[valid-type]
    schema = dataclasses.make_dataclass("Whole", [("outers", list[outer])])  # type: ignore[valid-type]
    graph = make({"a": returning({})}, schema)

    final = graph.execute(State({"outers": [{"inner": {"x": {"kind": 1}}}]}))

    assert final["outers"] == [outer({"x": inner(1)})]


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
    """Invalid input is refused before any node or save, and the error lists all problems."""
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
        f"'id' of {schema.__name__}: expected str, found 1 (int); "
        f"'items[1].name': expected str, found 2 (int); 'totl': expected {FIELDS}; did you mean 'total'?), "
        "found another key"
    )
    assert isinstance(error, ValueError)
    assert ran == []
    with pytest.raises(CheckpointNotFoundError):
        store.load(RUN)


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
    """Invalid updates fail the node; the error names node, key, expected and found value, and saves stay."""
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


def test_validators_of_an_attrs_class_are_asked(call: Call) -> None:
    """Validators of changed keys run; one that needs a missing field waits until it is set."""

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
    """A node whose first parameter is annotated with the class gets an object; changed fields are its updates."""

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


class Caller:
    def __call__(self, order: Annotated[Order, "told"]) -> dict[str, Any]:
        return {"note": f"{order.id} a"}


@pytest.mark.parametrize(
    "node", [takes_text, functools.partial(takes_text), Caller()], ids=["text", "partial", "object"]
)
def test_any_callable_may_take_an_object(node: Any, call: Call) -> None:
    """Annotations may be texts, and others may name what only type checkers know."""
    assert execute(call, make({"a": node}))["note"] == "1 a"


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


# --------------------------------------------------------------------------- other nodes


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


def test_items_of_a_map_are_made_to_fit(call: Call) -> None:
    """Each result is made into an item of its list as it comes; the error names its place."""
    priced = MapNode(lambda item: {"name": item.name, "price": 1 if item.name == "a" else "x"}, "items", "items")
    graph = make({"a": priced})

    assert execute(call, graph, {"id": "1", "items": [Item("a")]})["items"] == [Item("a", 1.0)]
    with pytest.raises(ExecutionError, match=r"'items\[1\].price' of FrozenAttrs: expected float, found 'x'"):
        call(graph, "execute", State({"id": "1", "items": [Item("a"), Item("b")]}))


def test_answers_are_checked(call: Call) -> None:
    """The run stays paused; an answer that fits is made into what its field wants."""
    graph = make({"a": InterruptNode("id", "status"), "b": returning({})})
    assert execute(call, graph).status is RunStatus.PAUSED

    with pytest.raises(AnswerError, match=r"'status' of FrozenAttrs: expected Status, found 'lost' \(str\)"):
        call(graph, "resume", RUN, {"status": "lost"})
    with pytest.raises(SchemaError, match=r"^'total' of FrozenAttrs: expected float, found 'x' \(str\)$"):
        call(graph, "resume", RUN, {"status": "paid", "total": "x"})

    assert graph.store.load(RUN).status is RunStatus.PAUSED
    assert call(graph, "resume", RUN, {"status": "paid"})["status"] is Status.PAID


# --------------------------------------------------------------------------- graphs within graphs


@dataclasses.dataclass
class Inner:
    id: str = ""
    total: int = 0


def test_a_graph_within_has_its_own_schema(call: Call) -> None:
    """A nested graph gets the outer keys that are its fields; the outer schema checks the result."""
    inner = make({"n": lambda state: {"total": state.get("total", 1)}}, Inner)
    final = execute(call, make({"a": inner.as_node()}), {"id": "1", "note": "n"})

    assert dict(final) == {"id": "1", "note": "n", "total": 1.0}
    assert type(final["total"]) is float


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
    """Return a value after it went into a graph whose schema has this type for it."""
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
def test_fitting_values_are_unchanged(expected: Any, value: Any) -> None:
    """The value and its type."""
    found = fitted(expected, value)

    assert found == value
    assert repr(found) == repr(State({"x": value})["x"])


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
def test_values_are_converted_without_loss(expected: Any, value: Any, made: Any) -> None:
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
    """The error has the place, the expected type and the value; an int is no str, and a bool no int."""
    with pytest.raises(SchemaError, match=re.escape(message)):
        fitted(expected, value)


# --------------------------------------------------------------------------- a schema that has changed


@dataclasses.dataclass
class Before:
    """The types of the program that began the run."""

    spent: int = 7
    summary: str = ""
    okay: bool = False


@dataclasses.dataclass
class After:
    """The types of the program that resumes the run."""

    spent: dict[str, int] = dataclasses.field(default_factory=dict)
    digest: str = ""
    okay: bool = False


STALE = (
    f"the State of run {RUN!r} after step 1: 'spent' of After: expected dict[str, int], found 7 (int); "
    "'summary': expected one of its fields (spent, digest, okay), found another key. The schema has changed since"
)


def versions(store: CheckpointStore, middle: Any, ran: list[Any]) -> list[StateGraph]:
    """Return the graph as it was and as it is: three nodes, the one in the middle given."""

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


@every_pair(door=DOORS, call=DRIVERS, store=["memory", "sqlite"], indirect=["call", "store"])
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


@dataclasses.dataclass
class Whole:
    """The types of the program that began the run."""

    items: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    total: int = 7
    done: Any = None
    okay: Any = None


@dataclasses.dataclass
class Exact(Whole):
    """The types of the program that goes on."""

    total: float = 7.0  # type: ignore[assignment]


def graph_within(schema: type, store: CheckpointStore, node: Any) -> StateGraph:
    nodes = {"first": returning({"total": 8}), "second": node}
    return make_graph(nodes, store=store, schema=schema, name="within")


ASKS = InterruptNode("total", "okay")
STANDINGS: dict[str, Callable[[type, CheckpointStore, Any], Any]] = {
    "submitted": lambda schema, store, node: returning({}),
    "failed": lambda schema, store, node: node,
    "failed in a map": lambda schema, store, node: MapNode(
        lambda item: item if item == 1 else node(State()), over="items", into="done", max_workers=1
    ),
    "failed in a branch": lambda schema, store, node: ParallelNode({"a": returning({"done": 1}), "b": node}),
    "failed within": lambda schema, store, node: graph_within(schema, store, node).as_node(),
    "failed within a branch": lambda schema, store, node: ParallelNode({"a": graph_within(schema, store, node)}),
    "paused": lambda schema, store, node: ASKS,
    "paused within": lambda schema, store, node: graph_within(schema, store, ASKS).as_node(),
    "paused within a branch": lambda schema, store, node: ParallelNode(
        {"a": graph_within(schema, store, ASKS), "b": returning({"done": 1})}
    ),
}


@every_pair(
    standing=STANDINGS,
    door=["resume", "run", "recover"],
    retention=["latest", "full"],
    call=DRIVERS,
    store=["memory", "sqlite"],
    indirect=["call", "store"],
)
def test_a_field_whose_type_was_widened(
    standing: str, door: str, retention: str, call: Call, store: CheckpointStore
) -> None:
    """A run goes on wherever it stood, with converted values: they are no change by another process."""
    broken = broken_first(returning({"total": 9}), OSError("away"))

    def graph(schema: type) -> StateGraph:
        nodes = {
            "price": returning({"total": 8}),
            "work": STANDINGS[standing](schema, store, broken),
            "last": lambda state: {"total": state["total"] + 1},
        }
        return make_graph(nodes, store=store, schema=schema, preserve=True, retention=retention)

    given = State({"items": [1, 2], "total": 7}, run_id=RUN)
    if standing == "submitted":
        graph(Whole).submit(given)
    elif "paused" in standing:
        call(graph(Whole), "execute", given)
    else:
        failure(call, graph(Whole), given)
    if door == "recover" and "failed" in standing:  # as if its process had been killed
        store.amend(attrs.evolve(store.load(RUN), status=RunStatus.ACTIVE, error=None))

    after = graph(Exact)
    if "paused" in standing:
        final = call(after, "resume", RUN, {"okay": 1})
    elif door == "recover":
        (done,) = after.recover()
        assert done.state is not None, done.error
        final = done.state
    else:
        final = call(after, door, given if door == "run" else RUN)

    assert final.status is RunStatus.COMPLETED
    assert type(final["total"]) is float
    assert type(store.load(RUN)["total"]) is float


# --------------------------------------------------------------------------- objects of States


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_data_of_a_state_as_an_object(schema: Any) -> None:
    """Values are converted as for a node, and missing ones have their defaults."""
    order = State({"id": "1", "items": [{"name": "a"}], "total": 3}).to(schema)

    assert type(order) is schema
    assert order == schema(id="1", items=[Item("a")], total=3.0)
    assert type(order.total) is float


def test_the_data_of_a_state_as_a_typed_dict() -> None:
    """It is a dict; the State may be that of a graph with another schema."""

    class Named(TypedDict):
        id: str

    assert State({"id": "1"}).to(Named) == {"id": "1"}
    with pytest.raises(SchemaError, match="'id' of Named: expected str, found nothing"):
        State().to(Named)


def test_data_that_is_no_object_of_the_class() -> None:
    """The error has the path of the value. A class without fields is none to convert to."""
    with pytest.raises(SchemaError, match=r"'items\[0\].name' of FrozenAttrs: expected str, found 1 \(int\)"):
        State({"id": "1", "items": [{"name": 1}]}).to(FrozenAttrs)
    with pytest.raises(SchemaError, match="'nmae' of FrozenAttrs: expected one of its fields"):
        State({"id": "1", "nmae": 1}).to(FrozenAttrs)
    with pytest.raises(ConfigError, match=r"schema: .* is not allowed; an attrs class"):
        State().to(int)


def test_graphs_and_states_with_a_parameter_are_those_without_one() -> None:
    """It is for type checkers: at run time, a State with it is a State like any other."""
    state = State[Order]({"id": "1"}, run_id=RUN)

    assert type(state) is State
    assert pickle.loads(pickle.dumps(state)) == state
    assert isinstance(StateGraph[Order]("orders", schema=Order), StateGraph)


# --------------------------------------------------------------------------- nodes of another class


@attrs.frozen
class Invoice:
    id: str


class Job(TypedDict):
    id: str
    note: str


class SmallJob(TypedDict):
    id: str


class OtherJob(TypedDict):
    path: str


class HasId(Protocol):
    id: str


def annotated(annotation: Any, as_node: Any = as_sync) -> Any:
    """Return a node whose parameter has this annotation."""

    def node(given: Any) -> dict[str, Any]:
        return {"note": type(given).__name__}

    node.__annotations__["given"] = annotation
    return as_node(node)


@pytest.mark.parametrize(
    ("schema", "cls"),
    [
        (Order, Invoice),
        (Order, str),
        (Order, OtherJob),
        (Order, Annotated[Invoice, "doc"]),
        (Job, Invoice),
        (Job, OtherJob),
    ],
)
@pytest.mark.parametrize("as_node", [as_sync, as_async, lambda node: ParallelNode({"branch": node})])
def test_a_node_of_another_class_is_refused(schema: Any, cls: Any, as_node: Any) -> None:
    """The error is raised where the node is added, and names the node, its class and the schema."""
    graph = StateGraph("orders", schema=schema)
    name = (cls if isinstance(cls, type) else Invoice).__name__
    message = rf"^graph 'orders': node 'a': it takes an? {name}, and the schema of the graph is {schema.__name__}: "

    with pytest.raises(GraphError, match=message):
        graph.add_node("a", annotated(cls, as_node))
    assert graph.nodes == {}


def test_a_class_that_is_defined_below_is_refused_when_the_graph_is_built() -> None:
    """The annotation cannot be resolved before."""
    graph = make({"a": annotated("Below")})
    globals()["Below"] = Invoice
    try:
        with pytest.raises(GraphError, match="node 'a': it takes an Invoice, and the schema of the graph is"):
            graph.validate()
    finally:
        del globals()["Below"]


@pytest.mark.parametrize(
    "cls", [State, State[Order], Mapping, Mapping[str, Any], dict, object, Any, HasId, SmallJob, "No"]
)
def test_a_node_that_may_take_a_state_gets_one(cls: Any) -> None:
    """So does one whose annotation cannot be resolved."""
    assert make({"a": annotated(cls)}).execute(State({"id": "1"}))["note"] == "State"


def test_a_node_of_a_base_class_gets_an_object() -> None:
    """An object of the schema is one of its base classes."""

    @attrs.frozen
    class Special(FrozenAttrs):
        pass

    assert make({"a": annotated(FrozenAttrs)}, Special).execute(State({"id": "1"}))["note"] == "Special"
