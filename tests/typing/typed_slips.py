"""Slips in graphs with a schema that a type checker has to report: each line that ends with "slip" is one.

`make check` has mypy and pyright look at it. It is never run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import attrs
from pydantic import BaseModel

from stategraph import NodeContext, RetryPolicy, State, StateGraph


@attrs.frozen
class Order:
    id: str
    total: float = 0.0


@dataclass
class Invoice:
    number: int


class Job(TypedDict):
    path: str
    size: NotRequired[int]


class Bill(BaseModel):
    id: str


orders = StateGraph("orders", schema=Order)
jobs = StateGraph("jobs", schema=Job)
invoices = StateGraph("invoices", schema=Invoice)
bills = StateGraph("bills", schema=Bill)
plain = StateGraph("plain")


# Nodes of another class, or with a result that is none.
def of_invoice(invoice: Invoice) -> dict[str, int]:
    return {"number": invoice.number}


def to_invoice(order: Order) -> Invoice:
    return Invoice(1)


def to_nothing(order: Order) -> None:
    print(order.id)


def to_float(order: Order) -> float:
    return order.total


def of_other_state(state: State[Invoice]) -> dict[str, int]:
    return {}


def of_context(order: Order, context: Invoice) -> dict[str, int]:
    return {}


orders.add_node("a", of_invoice)  # slip
orders.add_node("a", to_invoice)  # slip
orders.add_node("a", to_nothing)  # slip
orders.add_node("a", to_float)  # slip
orders.add_node("a", of_other_state)  # slip
orders.add_node("a", of_context)  # slip
orders.add_sequence(of_invoice)  # slip
jobs.add_node("a", of_invoice)  # slip
bills.add_node("a", of_invoice)  # slip
StateGraph("orders", schema="Order")  # slip
StateGraph("orders", schema=Order("1"))  # slip


@orders.node  # slip
def decorated(invoice: Invoice) -> dict[str, int]:
    return {}


@orders.node("other", retry=RetryPolicy())  # slip
def decorated_with_policies(invoice: Invoice) -> dict[str, int]:
    return {}


# Keys and fields within nodes.
def measure(job: Job) -> dict[str, int]:
    return {"size": len(job["pth"])}  # slip


def resize(job: Job) -> Job:
    return {"path": job["path"], "size": "3"}  # slip


def shorten(job: Job) -> Job:
    return {"path": "a", "nmae": 3}  # slip


def price(order: Order) -> Order:
    return Order(order.id, total="3")  # slip


def rename(order: Order) -> Order:
    return Order(order.nmae)  # slip


def add(bill: Bill) -> Bill:
    return Bill(id=1)  # slip


def cost(invoice: Invoice) -> Invoice:
    invoice.number = "2"  # slip
    return invoice


# Input, results and objects.
final = orders.execute(State({"id": "1"}))
orders.run(Order("1"))  # slip
orders.run({"id": "1"})  # slip
orders.run(jobs.run(State({"path": "a"})))  # slip
invoices.submit(final)  # slip
wrong: State[Invoice] = final  # slip
print(final.total)  # slip
final.to()  # slip
final.to("Order")  # slip
print(final.to(Order).nmae)  # slip
print(jobs.run(State()).to(Job)["nmae"])  # slip
print(State().to(Job)["nmae"])  # slip
number: int = final.to(Order).id  # slip
invoice: Invoice = final.to(Order)  # slip
final.to(Order).total = 3.0  # slip


# What is right is not reported.
def object_to_object(order: Order) -> Order:
    return attrs.evolve(order, total=2.0)


def object_to_updates(order: Order, context: NodeContext) -> dict[str, float]:
    return {"total": context.step}


def state_to_updates(state: State) -> dict[str, Any]:
    return {"total": state["total"]}


def state_to_state(state: State[Order], context: NodeContext) -> State[Order]:
    return state.set("total", state.to(Order).total)


def mapping_to_mapping(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return data


async def awaited(order: Order) -> Order:
    return order


def generated(order: Order) -> Iterator[str | Order]:
    yield order.id
    yield order


for name, node in {"a": object_to_object, "b": object_to_object}.items():
    orders.add_node(name, node)
orders.add_node("c", object_to_updates, timeout=3)
orders.add_node("d", state_to_updates)
orders.add_node("e", state_to_state)
orders.add_node("f", mapping_to_mapping)
orders.add_node("g", awaited)
orders.add_node("h", generated)
orders.add_node("i", lambda state: {"total": state["total"] + 1})
orders.add_node("j", lambda state: state.set("total", 1))
orders.add_node("k", lambda state, context: {"total": context.step})
orders.add_sequence(object_to_object, "c", state_to_updates)
jobs.add_node("a", state_to_updates)
jobs.add_node("b", measure)
jobs.add_node("c", resize)
plain.add_node("a", state_to_updates)
plain.add_node("b", object_to_object)
plain.add_node("c", lambda state: state.set("n", state["n"] + 1))
plain.add_node("d", lambda state: {"n": state["n"] + 1})


@orders.node
def decorated_object(order: Order) -> Order:
    return order


@orders.node("l", retry=RetryPolicy())
async def decorated_async(order: Order, context: NodeContext) -> dict[str, float]:
    return {"total": 1.0}


@plain.node
def decorated_plain(state: State) -> dict[str, int]:
    return {"n": 1}


@plain.node("m")
def decorated_named(state: State, context: NodeContext, *, more: int = 1) -> State:
    return state


def work(graph: StateGraph, state: State) -> State:
    return graph.run(state)


def pays(order: Order, context: NodeContext) -> dict[str, float]:
    total: float = context.effect("a", lambda: 1.0)
    found: float = context.effect("b", lambda: 1.0, confirm=lambda key: None)
    wrong: str = context.effect("c", lambda: 1.0)  # slip
    return {"total": total + found, "wrong": len(wrong)}


async def apays(order: Order, context: NodeContext) -> dict[str, float]:
    async def call() -> float:
        return 1.0

    total: float = await context.effect("a", call)
    found: float = await context.effect("b", call, confirm=lambda key: None)
    wrong: str = await context.effect("c", call)  # slip
    return {"total": total + found, "wrong": len(wrong)}


# The deps of a call.
class Client:
    def price(self, name: str) -> float:
        return 1.0


def asks(order: Order, context: NodeContext[Client]) -> dict[str, float]:
    wrong: str = context.deps.price(order.id)  # slip
    context.deps.prize(order.id)  # slip
    return {"total": context.deps.price(order.id), "wrong": len(wrong)}


def asks_anything(order: Order, context: NodeContext) -> dict[str, Any]:
    return {"total": context.deps.price(order.id)}


orders.add_node("n", asks)
orders.add_node("o", asks_anything)
orders.execute(State({"id": "1"}), deps=Client())
updates: dict[str, int] = decorated_plain(State())
work(orders, final)
total: float = orders.run(final).to(Order).total + State().to(Order).total
path: str = jobs.resume("a").to(Job)["path"]
for streamed in orders.stream(State({"id": "1"})):
    total = streamed.to(Order).total
