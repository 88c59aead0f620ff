"""Refunds over the web: double clicks, repeated requests, and several servers on one store.

    python examples/refund_server.py 8000 refunds.db      start several, each on its own port

    POST /refunds/r-7          {"amount": 950}            begin it; a repeated request returns the status
    GET  /refunds/r-7                                     the status, and the open question
    POST /refunds/r-7/answer   {"pause": "...", "decision": "yes"}

An answer names the pause that it answers. So a late "yes" to one question never answers another, and of two clicks on
"yes" one counts. It takes the extra ``.[examples]``.
"""

import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stategraph import (
    AnswerError,
    CheckpointConfig,
    CheckpointNotFoundError,
    GraphConfig,
    InterruptNode,
    RunBusyError,
    State,
    StateGraph,
    StateGraphError,
    key_equals,
)

PATIENCE = 5.0  # seconds that a request waits for another request on the same refund
STATUS = {RunBusyError: 409, AnswerError: 409, CheckpointNotFoundError: 404}


def pay(state: State) -> dict[str, Any]:
    """Node: pay, once."""
    print(f"paid {state['amount']} EUR", flush=True)
    return {"paid": state["amount"]}


def refund_graph(path: str) -> StateGraph:
    """Ask a person, then pay or decline."""
    checkpoint = CheckpointConfig(store="sqlite", interval=1, preserve=True, options={"path": path})
    graph = StateGraph(GraphConfig(name="refunds", checkpoint=checkpoint))
    graph.add_node("approve", InterruptNode("amount", "decision", reason="a refund"))
    graph.add_node("pay", pay)
    graph.add_node("decline", lambda state: {"paid": 0})
    graph.add_edge("approve", "pay", key_equals("decision", "yes"))
    graph.add_edge("approve", "decline")
    graph.set_entry_point("approve")
    graph.set_exit_point("pay")
    graph.set_exit_point("decline")
    return graph


def shown(state: State) -> Response:
    """Return the status of a refund."""
    about: dict[str, Any] = {"status": state.status, **state}
    if state.pause is not None:
        about["asks"] = {"pause": state.pause.id, "amount": state.pause.value}
    return JSONResponse(about)


def application(graph: StateGraph) -> Starlette:
    """Return the web application."""

    async def begin(request: Request) -> Response:
        given = await _given(request, "amount")
        return shown(await graph.arun(State({"amount": given["amount"]}, run_id=_run_id(request)), wait=PATIENCE))

    async def look(request: Request) -> Response:
        return shown(graph.store.load(_run_id(request)))

    async def answer(request: Request) -> Response:
        given = await _given(request, "pause", "decision")
        updates = {"decision": given["decision"]}
        return shown(await graph.aresume(_run_id(request), updates, pause=given["pause"], wait=PATIENCE))

    return Starlette(
        routes=[
            Route("/refunds/{run_id}", begin, methods=["POST"]),
            Route("/refunds/{run_id}", look, methods=["GET"]),
            Route("/refunds/{run_id}/answer", answer, methods=["POST"]),
        ],
        exception_handlers={StateGraphError: refused, HTTPException: misread},
    )


async def refused(_: Request, error: Exception) -> Response:
    """Return an error as JSON that a client can read."""
    return JSONResponse(
        {"error": str(error)}, next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    )


async def misread(_: Request, error: Exception) -> Response:
    """Return the error for a request with missing fields."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


async def _given(request: Request, *names: str) -> dict[str, Any]:
    """Return the body of a request, which must have all of these names."""
    try:
        given = await request.json()
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given.keys() >= set(names):
        raise HTTPException(400, f"send a JSON object with {' and '.join(names)}")
    return given


def _run_id(request: Request) -> str:
    return str(request.path_params["run_id"])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    uvicorn.run(application(refund_graph(sys.argv[2])), port=int(sys.argv[1]), log_level="warning")
