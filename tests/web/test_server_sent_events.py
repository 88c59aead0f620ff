"""Server-sent events of a run: an ASGI application of its own, mounted in another, in a real browser."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from stategraph import InterruptNode, State, StateGraph
from stategraph.stores.sqlite import SqliteStore
from stategraph.web import events
from tests.web.browser import CHROMIUM, MISSING, launched, served

WORDS = ["a", "short", "story", "of\ntwo lines"]


@pytest.fixture
def store(tmp_path):
    """Return a store with files, as a worker and a server share it."""
    with SqliteStore(tmp_path / "runs.db") as made:
        yield made


def writer(store, goes_on=None, crashes=()):
    """Return a graph that writes the words, and waits before the last one if it is given an event."""
    attempts = []

    def write(state):
        attempts.append(1)
        for place, word in enumerate(WORDS):
            if place == len(WORDS) - 1 and goes_on is not None:
                assert goes_on.wait(300)
            yield word
            if place == 1 and len(attempts) in crashes:
                raise OSError("the pen is broken")
        return {"text": " ".join(WORDS)}

    graph = StateGraph("writer", store=store, preserve=True)
    graph.add_node("write", write, persist_chunks=True)
    graph.set_entry_point("write")
    graph.set_exit_point("write")
    return graph


def read(address, run_id, after="", most=None):
    """Return the status of an answer, and its events: kind, id, and data."""
    host, _, port = address.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port), timeout=300)
    connection.request("GET", f"/events/{run_id}", headers={"Last-Event-ID": after} if after else {})
    response = connection.getresponse()
    found: list[tuple[str, str, str]] = []
    fields: dict[str, str] = {}
    while (most is None or len(found) < most) and (line := response.readline().decode()):
        name, colon, value = line.rstrip("\n").partition(":")
        if line != "\n":
            fields[name] = value.strip() if colon else ""
        elif "event" in fields:
            found.append((fields["event"], fields["id"], json.loads(fields["data"])))
            fields = {}
    connection.close()
    return response.status, found


@contextmanager
def mounted(graph, **how):
    """Serve the events of a graph in an application of Starlette; yield the address."""
    with served(Starlette(routes=[Mount("/events", events(graph, **how))])) as address:
        yield address


def test_events_of_a_run_to_its_end(store):
    """Chunks, then States without their data; then there is no more, and the end is said to who connects again."""
    graph = writer(store)
    graph.execute(State(run_id="story/1"))

    with mounted(graph) as address:
        status, found = read(address, "story/1")
        last = found[-1][1]
        again = read(address, "story/1", after=last)
        middle = read(address, "story/1", after=found[1][1])

    assert status == 200
    assert [about["chunk"] for kind, _, about in found if kind == "chunk"] == WORDS
    assert found[0][2] == {"node": "write", "path": ["write"], "part": "", "attempt": 1, "number": 1, "chunk": "a"}
    assert [(kind, about) for kind, _, about in found[-2:]] == [
        ("state", {"step": 1, "node": "write", "status": "completed"}),
        ("end", {"status": "completed"}),
    ]
    assert again == (204, [])
    assert middle == (200, found[2:])


def test_what_a_state_shows_is_the_choice_of_the_application(store):
    """Nothing of its data is sent otherwise."""
    graph = writer(store)
    graph.execute(State(run_id="a"))

    with mounted(graph, shown=lambda state: {"text": state["text"]}) as address:
        _, found = read(address, "a")

    assert found[-2][2] == {"text": " ".join(WORDS)}


def test_a_reader_that_leaves_does_not_stop_the_run(store):
    """It goes on where it was, with what came in the meantime."""
    goes_on = threading.Event()
    graph = writer(store, goes_on)
    worker = threading.Thread(target=graph.execute, args=(State(run_id="a"),))
    worker.start()

    with mounted(graph, wait=300, heartbeat=0.05) as address:
        _, first = read(address, "a", most=3)
        goes_on.set()
        worker.join()
        _, rest = read(address, "a", after=first[-1][1])

    assert [about["chunk"] for _, _, about in [*first, *rest[:1]]] == WORDS
    assert rest[-1][0] == "end"


def test_a_pause_ends_the_events(store):
    """The reader who has answered connects again, with the id of the last event."""
    graph = StateGraph("asks", store=store, preserve=True)
    graph.add_node("ask", InterruptNode("q", "answer", reason="really?"))
    graph.set_entry_point("ask")
    graph.set_exit_point("ask")
    graph.execute(State({"q": 1}, run_id="a"))

    with mounted(graph) as address:
        _, found = read(address, "a")
        graph.resume("a", {"answer": "yes"})
        _, after = read(address, "a", after=found[-1][1])

    assert found[-1][2] == {"status": "paused"}
    assert after[-1][2] == {"status": "completed"}


@pytest.mark.parametrize(
    ("run_id", "after", "status"), [("none", "", 404), ("%2523", "", 404), ("a", "x", 400), ("a", "x.1.2", 400)]
)
def test_refusals(store, run_id, after, status):
    """A run that there is not, and an id that is not one of an event."""
    graph = writer(store)
    graph.execute(State(run_id="a"))
    with mounted(graph) as address:
        assert read(address, run_id, after)[0] == status


def test_it_needs_no_framework(store):
    """It is plain ASGI; a route of a framework may name the run."""
    graph = writer(store)
    graph.execute(State(run_id="a"))

    def answer(method, path, **scope):
        sent = []

        async def receive():
            await asyncio.sleep(60)

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], **scope}
        asyncio.run(events(graph)(scope, receive, send))
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    assert answer("POST", "/a")[0] == 405
    assert answer("GET", "/a") == answer("GET", "/x/a", root_path="/x")
    assert answer("GET", "/a") == answer("GET", "/runs/a/events", path_params={"run_id": "a"})
    assert answer("GET", "/a") == answer("GET", "/", query_string=b"run_id=a")
    assert answer("GET", "/a")[1].count(b"event: chunk") == len(WORDS)


PAGE = """
<p id="text"></p><p id="status"></p>
<script>
  let chunks = JSON.parse(sessionStorage.chunks || "[]"), attempt = 0;
  const source = new EventSource("/events/story?after=" + (sessionStorage.last || ""));
  source.addEventListener("chunk", event => {
    const about = JSON.parse(event.data);
    if (about.number === 1) chunks = [];
    chunks.push(about.chunk);
    sessionStorage.chunks = JSON.stringify(chunks);
    sessionStorage.last = event.lastEventId;
    document.getElementById("text").textContent = JSON.stringify(chunks);
  });
  source.addEventListener("end", event => {
    source.close();
    document.getElementById("status").textContent = JSON.parse(event.data).status;
  });
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_a_browser_that_reloads_has_each_chunk_of_the_final_attempt(store):
    """In order, also if the run fails and is resumed in between; a page that is opened late has the same."""
    goes_on = threading.Event()
    graph = writer(store, goes_on, crashes=(1,))
    with pytest.raises(Exception, match="the pen is broken"):
        graph.execute(State(run_id="story"))
    worker = threading.Thread(target=graph.resume, args=("story",))
    page = Route("/", lambda _: HTMLResponse(PAGE))

    with served(Starlette(routes=[page, Mount("/events", events(graph))])) as address, launched() as browser:
        shown = browser.new_context().new_page()
        shown.goto(address)
        shown.get_by_text('["a","short"]').wait_for()
        worker.start()
        shown.reload()
        shown.get_by_text('["a","short","story"]').wait_for()
        shown.reload()
        goes_on.set()
        shown.get_by_text("completed").wait_for()
        late = browser.new_context().new_page()
        late.goto(address)
        late.get_by_text("completed").wait_for()

        assert [json.loads(each.locator("#text").inner_text()) for each in (shown, late)] == [WORDS, WORDS]
    worker.join()
