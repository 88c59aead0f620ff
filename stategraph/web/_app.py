"""The pages at each address, and the changes of each form."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from stategraph._text.shown import clean, cut, failure_text, span
from stategraph._values.ids import is_nested_id
from stategraph._values.provenance import RunStatus, StatusName
from stategraph.cli._options import parsed_moment, parsed_pair
from stategraph.cli._output import (
    Exit,
    Failure,
    ago,
    exit_of,
    left_text,
    message_of,
    node_text,
    note_text,
    number_text,
    under_way_lines,
    value_text,
)
from stategraph.errors import StateGraphError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores._seen import as_seen
from stategraph.stores.base import CheckpointStore
from stategraph.stores.summaries import Summary
from stategraph.web._runs import Reader, bars_of, begin, change_of, form_of

_PAGE, _KEYS, _LONGEST = 50, 100, 200_000
_MOST_SENT = 1_000_000  # bytes of a form
_FILTERS = ("status", "graph", "prefix", "labels", "since", "owned")
_STATUS_CODES = {Exit.NOT_FOUND: 404, Exit.CONFLICT: 409, Exit.USAGE: 400, Exit.PAUSED: 409}
# A picture contains its style, and may run and load nothing.
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


class Pages:
    """The pages of a store.

    Args:
        store: The store.
        graphs: The graphs whose runs can be changed, by their names.
        csrf: The secret that each form must contain.
        allow_changed: As for `StateGraph.resume`.
        migrate: As for `StateGraph.resume`; each graph takes the names that it has.
    """

    def __init__(
        self,
        store: CheckpointStore,
        graphs: Mapping[str, StateGraph],
        csrf: str,
        allow_changed: bool,
        migrate: Mapping[str, str],
    ) -> None:
        shown = next((graph.store.shown for graph in graphs.values() if graph.store.shown is not None), None)
        store = as_seen(store, store.shown or shown)
        self.reader, self.store, self.graphs, self._csrf = Reader(store), store, graphs, csrf
        self._allow_changed, self._migrate = allow_changed, migrate
        self._templates = Environment(
            loader=PackageLoader("stategraph.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters.update(
            ago=ago,
            span=span,
            cut=cut,
            failure=failure_text,
            left=left_text,
            number=number_text,
            node=node_text,
            note=note_text,
            value=lambda value: value_text(value, 2_000),
        )

    def routed(self) -> Starlette:
        """Return the application with all pages."""
        return Starlette(
            routes=[
                Route("/", self.runs),
                Route("/run", self.run),
                Route("/picture.svg", self.picture),
                Route("/value", self.value),
                Route("/version", self.version),
                Route("/change", self.change, methods=["POST"]),
                Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
            ],
            exception_handlers=dict.fromkeys((StateGraphError, Failure, ValueError), self._failed),
        )

    def _failed(self, request: Request, error: Exception) -> Response:
        """Show an error as a page. After a change, it has a link to the run."""
        code = _STATUS_CODES.get(exit_of(error), 500)
        run_id = getattr(request.state, "run_id", "")
        return self._rendered(request, "problem.html", code, problem=message_of(error), run_id=run_id)

    def _rendered(self, request: Request, template: str, code: int = 200, **shown: Any) -> Response:
        root = request.scope.get("root_path", "")
        now = datetime.now(UTC)
        text = self._templates.get_template(template).render(
            root=root, csrf=self._csrf, store=str(self.store), now=now, **shown
        )
        return HTMLResponse(text, code)

    # ------------------------------------------------------------------ looking

    def runs(self, request: Request) -> Response:
        """Show a page of runs, the newest first."""
        query = request.query_params
        given = {name: query.get(name, "").strip() for name in _FILTERS}
        since = parsed_moment(given["since"]) if given["since"] else None
        found = self.store.runs(
            cast(StatusName, given["status"]) or None,  # the store refuses unknown statuses
            given["graph"] or None,
            _PAGE + 1,
            query.get("after") or None,
            prefix=given["prefix"] or None,
            labels=dict(map(parsed_pair, given["labels"].split())),
            since=since,
            owned={"yes": True, "no": False}.get(given["owned"]),
        )
        page, older = found[:_PAGE], ""
        if len(found) > _PAGE:
            older = urlencode({**{name: text for name, text in given.items() if text}, "after": page[-1].cursor or ""})
        owners = {run.run_id: self.store.owner(run.run_id) for run in page if run.status == RunStatus.ACTIVE}
        return self._rendered(
            request,
            "runs.html",
            runs=page,
            owners=owners,
            given={name: clean(text) for name, text in given.items()},
            older=older,
            is_first="after" not in query,
            statuses=[str(status) for status in RunStatus],
            version=self.reader.version(None),
        )

    def run(self, request: Request) -> Response:
        """Show a run: its status, its picture, its timeline, and the State of one checkpoint."""
        query = request.query_params
        run_id = query.get("id", "")
        version = self.reader.version(run_id)
        rows, newest = self.reader.rows(run_id), self.store.load(run_id)
        place = _number(query, "row", len(rows) - 1, len(rows) - 1)
        newest_page = max(len(rows) - _PAGE, 0)
        first = newest_page if place >= newest_page else place - place % _PAGE
        children = self.store.runs(parent=run_id, limit=_PAGE + 1, after=query.get("children") or None)
        nested = self.reader.nested(run_id, rows[first : first + _PAGE])
        graph = self._graph_of(newest)
        names = self._new_names(graph)
        state = self.reader.state(rows, place)
        keys = _number(query, "keys", 0, max(len(state) - 1, 0))
        waits = newest.status in (RunStatus.PAUSED, RunStatus.CANCELLED)  # an answer also continues a cancelled run
        owner = self.store.owner(run_id)
        pauses = newest.pause.each if waits and newest.pause is not None else ()
        return self._rendered(
            request,
            "run.html",
            run=newest,
            row=rows[place],
            place=place,
            last=len(rows) - 1,
            bars=bars_of(rows, first, first + _PAGE, nested, datetime.now(UTC)),
            first=first,
            page=_PAGE,
            owner=owner,
            state=state,
            items=list(state.items())[keys : keys + _KEYS],
            keys=keys,
            keys_page=_KEYS,
            difference=self.reader.difference(rows, place, state),
            children=children[:_PAGE],
            more_children=children[_PAGE - 1].cursor if len(children) > _PAGE else None,
            parts=self.reader.parts(newest),
            under_way=[*under_way_lines(self.store.under_way(run_id), owner)],
            pauses=[(pause, form_of(graph, pause, names.get(pause.node))) for pause in pauses],
            can_change=graph is not None,
            problem=self.reader.problems.get(run_id),
            version=version,
        )

    def picture(self, request: Request) -> Response:
        """Show the picture of a run."""
        drawn = self.reader.picture(request.query_params.get("id", ""))
        return Response(drawn, media_type="image/svg+xml", headers={"content-security-policy": _PICTURE_POLICY})

    def value(self, request: Request) -> Response:
        """Show a full value as text."""
        query = request.query_params
        rows = self.reader.rows(query.get("id", ""))
        state = self.reader.state(rows, _number(query, "row", len(rows) - 1, len(rows) - 1))
        if query.get("key") not in state:
            raise HTTPException(404, "there is no such key")
        return PlainTextResponse(value_text(state[query["key"]], _LONGEST))

    def version(self, request: Request) -> Response:
        """Return a text that changes when there may be something new to show."""
        return JSONResponse({"version": self.reader.version(request.query_params.get("id") or None)})

    def _graph_of(self, run: State | Summary) -> StateGraph | None:
        """Return the graph that can change a run; None for a nested run, which continues with its outer run."""
        return None if run.graph is None or is_nested_id(run.run_id) else self.graphs.get(run.graph)

    def _new_names(self, graph: StateGraph | None) -> dict[str, str]:
        """Return the new names of nodes that a graph has."""
        nodes = () if graph is None else graph.nodes
        return {old: new for old, new in self._migrate.items() if new in nodes or new.partition("/")[0] in nodes}

    # ------------------------------------------------------------------ changing

    async def change(self, request: Request) -> Response:
        """Make the change of a form."""
        sent = b""
        async for chunk in request.stream():
            sent += chunk
            if len(sent) > _MOST_SENT:
                return PlainTextResponse("This form is too large.", 413)
        given = {name: values[-1] for name, values in parse_qs(sent.decode(errors="replace"), True).items()}
        if not hmac.compare_digest(given.get("csrf", "").encode(), self._csrf.encode()):
            return PlainTextResponse("This form is not from this page: load the page again.", 403)
        return await run_in_threadpool(self._changed, request, given)

    def _changed(self, request: Request, given: Mapping[str, str]) -> Response:
        request.state.run_id = run_id = given.get("id", "")
        newest = self.reader.rows(run_id)[-1]
        graph = self._graph_of(newest)
        names = self._new_names(graph)
        found = None if graph is None else change_of(graph, newest, given, self._allow_changed, names)
        if found is None:
            return PlainTextResponse("This run is only shown: its graph was not given to the page.", 403)
        change, leads_to = found
        self.reader.problems.pop(leads_to, None)
        begin(change, partial(self._report, leads_to))
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/run?{urlencode({'id': leads_to})}", 303)

    def _report(self, run_id: str, error: Exception | None) -> None:
        """Keep the error of a change for the page of its run."""
        if error is not None:
            self.reader.problems[run_id] = message_of(error)


def _number(query: Mapping[str, str], name: str, otherwise: int, most: int) -> int:
    """Return a number in an address, limited to `most`."""
    text = query.get(name, "")
    return min(int(text), most) if text.isascii() and text.isdecimal() and len(text) < 12 else otherwise
