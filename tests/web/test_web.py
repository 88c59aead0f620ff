"""The page: its views, its actions and its access control."""

import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import Literal
from urllib.parse import quote

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from stategraph import ExecutionError, MapNode, State, StateGraph
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing.corpus import Colour, Point
from stategraph.web import app
from tests.cli.shop import environment
from tests.web.conftest import let_in
from tests.web.desk import HOSTILE, asks, change, csrf_of, text_of


def placed(address):
    """Return an address without the random path of the page."""
    return re.sub(r"/[\w-]{24}(?=/)", "", address, count=1)


def pause_of(store, run_id):
    return store.load(run_id).pause.id


def until(condition, seconds=300):
    """Wait for something that comes soon."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# --------------------------------------------------------------------------- views


def test_runs_are_listed_and_filtered(page, store, graph):
    """Runs are filtered by status, graph, prefix of the id, labels, day and owner."""
    graph.execute(State({"photos": []}, run_id="a-1"), labels={"customer": "c7"})
    graph.submit(State({"photos": []}, run_id="b-1"))

    def shown(**filters):
        text = page.get("/", params=filters).text
        return [run_id for run_id in ("a-1", "b-1") if f">{run_id}<" in text]

    assert shown() == ["a-1", "b-1"]
    assert shown(status="paused") == ["a-1"]
    assert shown(prefix="b") == ["b-1"]
    assert shown(labels="customer=c7") == ["a-1"]
    assert shown(graph="others") == []
    assert shown(since="2100-01-01") == []
    assert shown(owned="no") == ["a-1", "b-1"]
    assert "waits: is this worth it?" in text_of(page.get("/"))
    assert page.get("/", params={"status": "asleep"}).status_code == 400
    assert page.get("/", params={"after": "x"}).status_code == 400


@pytest.mark.parametrize(
    "since", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "999999d", "10000-01-01", "soon", "2026-02-30"]
)
def test_a_time_beyond_the_calendar_is_a_mistake_of_the_visitor(page, since):
    """It is answered as any other text that is no time, and with the texts that are."""
    refused = page.get("/", params={"since": since})

    assert refused.status_code == 400
    assert "is not a time: give 2026-03-01" in text_of(refused)
    assert page.get("/", params={"since": "0002-01-01"}).status_code == 200
    assert page.get("/", params={"since": "9999-12-30"}).status_code == 200


def test_runs_come_in_pages(page, graph):
    """Each page links to older runs and keeps the filters."""
    for number in range(60):
        graph.submit(State({"photos": []}, run_id=f"run-{number:02}"))

    first = page.get("/", params={"prefix": "run-"})
    older = first.text.partition('<a href="?prefix=run-&amp;after=')[2].partition('"')[0]
    second = page.get("/", params={"prefix": "run-", "after": older})

    assert first.text.count('class="id"') == 50
    assert second.text.count('class="id"') == 10
    assert ">run-00<" in second.text


def test_a_run_is_shown_with_all_that_is_known_of_it(page, graph):
    """A run is shown with its status, timeline, State, changes, nested runs and authors."""
    graph.execute(State({"photos": ["roof"]}, run_id="claim"), by="ann", labels={"customer": "c7"})

    text = text_of(page.get("/run", params={"id": "claim"}))

    for part in ("claim paused", "step 2", "customer=c7", "by ann", "photos", "claim/#2/estimate", "is this worth it?"):
        assert part in text, part
    assert "price new 40" in text_of(page.get("/run", params={"id": "claim", "row": 2}))
    inside = text_of(page.get("/run", params={"id": "claim/#2/estimate"}))
    assert "of claim" in inside
    assert "Answer" not in inside


def test_the_state_of_each_row_can_be_seen_with_what_changed(page, graph, store):
    """Each row shows its State with old values struck out and new values marked."""
    graph.execute(State({"photos": []}, run_id="claim"))
    graph.resume("claim", {"verdict": {"amount": 7}}, by="bob")
    rows = store.history("claim")

    seen = [text_of(page.get("/run", params={"id": "claim", "row": row})) for row in range(len(rows))]

    assert "photos new" in seen[0]
    assert "paid new 7" in seen[-1] or "paid new 7" in seen[-2]
    assert any("verdict new {'amount': 7}" in one for one in seen)
    assert all("by bob" in one for one in seen)


def test_a_failure_is_told_with_its_item_and_its_traceback(page, graph):
    """The page of a failed run shows the item, the traceback and the finished parts."""
    with pytest.raises(ExecutionError):
        graph.execute(State({"photos": ["roof", "torn", "door"]}, run_id="claim"))

    text = text_of(page.get("/run", params={"id": "claim"}))

    assert "Failed at photos" in text
    assert "1: ValueError: this photo is torn" in text
    assert "Traceback" in text
    assert "Finished of step 1, and kept: 1 part (0)" in text


def test_hostile_values_are_shown_and_do_nothing(page, store, graph):
    """Hostile ids, keys, values, labels, names and addresses are shown as text."""
    state = State({"photos": [], HOSTILE: HOSTILE, "big": "x" * 10_000, "deep": [{"a": b"\x00"}]}, run_id="claim")
    graph.execute(state, by=HOSTILE, labels={"l": HOSTILE})

    for address in ("/", "/run?id=claim", "/run?id=claim&row=0", f"/?prefix={HOSTILE}", f"/?status={HOSTILE}"):
        shown = page.get(quote(address, safe="/?=&")).text
        assert "<script>alert" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    whole = page.get("/value", params={"id": "claim", "row": 0, "key": "big"})
    assert whole.headers["content-type"].startswith("text/plain")
    assert len(whole.text) > 10_000
    assert page.get("/value", params={"id": "claim", "row": 0, "key": "none"}).status_code == 404


# --------------------------------------------------------------------------- actions


def test_an_answer_is_given_and_the_run_goes_on(page, store, graph):
    """A POST answers the pause and leads back to the run; the history names the author."""
    graph.execute(State({"photos": []}, run_id="claim"))

    done = change(page, "claim", "answer", pause=pause_of(store, "claim"), answer='{"amount": 7}', by="ann")

    assert (done.status_code, placed(done.headers["location"])) == (303, "/run?id=claim")
    until(lambda: store.load("claim").status == "completed")
    assert store.load("claim")["paid"] == 7
    assert "ann" in [row.by for row in store.history("claim")]


def test_a_message_is_sent(page, store, graph):
    """A POST sends it to the run, which waits as before; a message is no answer."""
    graph.execute(State({"photos": []}, run_id="claim"))

    sent = change(page, "claim", "send", key="note", value="be quick", by="ann")

    assert sent.status_code == 303
    (message,) = store.entries("claim")
    assert (message.value, message.by, store.load("claim").status) == ({"note": "be quick"}, "ann", "paused")
    pause = store.load("claim").pause
    assert change(page, "claim", "send", key=pause.response_param, value="1").status_code == 409


def test_each_of_several_questions_has_a_form(store):
    """Each of several questions has a form that answers it."""
    ask = asks(store)
    graph = StateGraph(ask.config, store=store)
    graph.add_node("each", MapNode(ask, over="names", into="said"))
    graph.set_entry_point("each")
    graph.set_exit_point("each")
    pause = graph.execute(State({"names": [{"n": 1}, {"n": 2}]}, run_id="r")).pause
    assert pause is not None
    first, second = pause.each
    page = let_in(app(store, [graph]))

    shown = page.get("/run", params={"id": "r"}).text
    assert [text in shown for text in (f'value="{first.id}"', f'value="{second.id}"')] == [True, True]
    assert "part 1" in shown
    assert change(page, "r", "answer", pause=second.id, answer="second").status_code == 303
    until(lambda: store.load("r").pause == first)
    assert change(page, "r", "answer", pause=second.id, answer="again").status_code == 409
    assert change(page, "r", "answer", pause=first.id, answer="first").status_code == 303
    until(lambda: store.load("r").status == "completed")
    assert [item["answer"] for item in store.load("r")["said"]] == ["first", "second"]


def test_a_run_of_a_graph_that_has_changed(store, graph):
    """An answer goes to the renamed node, and the form is made from its schema; other graphs keep their names."""
    asks(store, bool).execute(State(run_id="old"))
    renamed, answer = asks(store, bool, node="approve"), {"pause": pause_of(store, "old"), "answer": "true"}
    assert change(let_in(app(store, [renamed])), "old", "answer", **answer).status_code == 409
    other = asks(store, bool, name="other")
    other.execute(State(run_id="same"))
    page = let_in(app(store, [renamed, graph, other], migrate={"ask": "approve"}))
    graph.execute(State({"photos": []}, run_id="claim"))

    for run_id in ("old", "same"):
        assert 'type="radio"' in page.get("/run", params={"id": run_id}).text
    assert change(page, "old", "answer", **answer).status_code == 303
    assert change(page, "claim", "answer", pause=pause_of(store, "claim"), answer='{"amount": 7}').status_code == 303

    until(lambda: {store.load("old").status, store.load("claim").status} == {"completed"})
    assert store.load("old")["answer"] is True


def test_a_run_of_a_graph_with_declared_old_names(store):
    """The page finds the graph of the run, and makes the form from the renamed node."""
    asks(store, bool).execute(State(run_id="old"))
    moved = asks(store, bool, name="moved", node="approve")
    moved.moved_from("asks")
    moved.renamed({"ask": "approve"})
    page = let_in(app(store, [moved]))

    assert 'type="radio"' in page.get("/run", params={"id": "old"}).text
    assert change(page, "old", "answer", pause=pause_of(store, "old"), answer="true").status_code == 303

    until(lambda: store.load("old").status == "completed")
    assert (store.load("old")["answer"], store.load("old").graph) == (True, "moved")


def test_work_goes_on_after_the_post_has_returned(store):
    """A long node does not keep the browser waiting."""
    going_on = threading.Event()
    graph = asks(store, is_exit=False)
    graph.add_node("work", lambda state: {"done": going_on.wait(300)})
    graph.set_exit_point("work")
    graph.add_edge("ask", "work")
    graph.execute(State(run_id="r"))
    page = let_in(app(store, [graph]))

    before = page.get("/version", params={"id": "r"}).json()
    done = change(page, "r", "answer", pause=pause_of(store, "r"), answer="yes")
    shown = text_of(page.get("/run", params={"id": "r"}))
    after = page.get("/version", params={"id": "r"}).json()
    going_on.set()

    assert done.status_code == 303
    assert "at work:" in shown
    assert "under way: work, begun" in shown
    assert before != after
    until(lambda: store.load("r").status == "completed")


def test_an_error_after_the_post_has_returned(store):
    """The page of the run shows the error of a change that came late, until the next change."""
    going_on = threading.Event()
    graph = asks(store, is_exit=False)
    graph.add_node("work", lambda state: {"done": object() if going_on.wait(300) else None})
    graph.set_exit_point("work")
    graph.add_edge("ask", "work")
    graph.execute(State(run_id="r"))
    page = let_in(app(store, [graph]))

    assert change(page, "r", "answer", pause=pause_of(store, "r"), answer="yes").status_code == 303
    before = page.get("/version", params={"id": "r"}).json()
    going_on.set()
    until(lambda: "is of type object, which is not kept" in text_of(page.get("/run", params={"id": "r"})))

    assert page.get("/version", params={"id": "r"}).json() != before
    assert change(page, "r", "cancel").status_code == 303
    assert "The last change did not work" not in text_of(page.get("/run", params={"id": "r"}))


def test_a_run_is_resumed_cancelled_forked_and_rolled_back(page, store, graph):
    """A POST each resumes, cancels, forks and rolls back a run."""
    graph.execute(State({"photos": []}, run_id="claim"))
    forked = change(page, "claim", "fork", new="copy", step="1", revision="0")
    assert placed(forked.headers["location"]) == "/run?id=copy"
    assert store.load("copy").step == 1
    assert "copy" in text_of(page.get("/run", params={"id": "claim"}))
    assert change(page, "claim", "rollback", step="1", revision="0").status_code == 303
    assert store.load("claim").step == 1
    assert change(page, "claim", "resume").status_code == 303
    until(lambda: store.load("claim").status == "paused")
    assert change(page, "claim", "cancel", by="ann").status_code == 303
    assert store.load("claim").status == "cancelled"
    assert change(page, "claim", "answer", pause=pause_of(store, "claim"), answer='{"amount": 3}').status_code == 303
    until(lambda: store.load("claim").status == "completed")
    assert change(page, "claim", "fork", new="copy", step="1", revision="0").status_code == 409
    for step in ("one", "9" * 30):
        assert change(page, "claim", "fork", new="x", step=step, revision="0").status_code == 400
    assert change(page, "claim", "explode").status_code == 403


@pytest.mark.parametrize(
    ("schema", "given", "answer"),
    [
        (None, {"answer": "[1, 2]"}, [1, 2]),
        (None, {"answer": "plain words"}, "plain words"),
        (str, {"answer": "[1, 2]"}, "[1, 2]"),
        (bool, {"answer": "true"}, True),
        (int, {"answer": "7"}, 7),
        (float, {"answer": "0.5"}, 0.5),
        (Literal["a", "b"], {"answer": '"b"'}, "b"),
        (Colour, {"answer": '"red"'}, Colour.RED),
        (Point, {"answer.x": "1", "answer.y": "2"}, Point(1, 2)),
    ],
)
def test_a_form_is_made_from_the_schema_of_the_pause(store, schema, given, answer):
    """The form follows the schema of the pause, and its answer becomes a value of that type."""
    graph = asks(store, schema)
    graph.execute(State(run_id="r"))
    page = let_in(app(store, [graph]))

    assert f'name="{min(given)}"' in page.get("/run", params={"id": "r"}).text
    assert change(page, "r", "answer", pause=pause_of(store, "r"), **given).status_code == 303
    until(lambda: store.load("r").status == "completed")
    assert store.load("r")["answer"] == answer


# --------------------------------------------------------------------------- whom it lets in


def test_without_a_graph_runs_are_only_shown(store, graph):
    """No form is there, and none is taken."""
    graph.execute(State({"photos": []}, run_id="claim"))
    guard = app(store)
    page = let_in(guard)

    assert 'method="post"' not in page.get("/run", params={"id": "claim"}).text
    data = {"csrf": guard.csrf, "do": "cancel", "id": "claim"}
    assert page.post("/change", data=data).status_code == 403
    assert store.load("claim").status == "paused"


def test_only_who_has_the_token_is_let_in(store):
    """Only the token opens the page; it sets a cookie that scripts and other sites cannot read."""
    guard = app(store)
    client = TestClient(guard, base_url="http://localhost:7420")

    assert client.get("/").status_code == 401
    assert client.get("/static/page.css").status_code == 401
    assert client.get("/?token=guessed").status_code == 401
    let = client.get(f"/?token={guard.token}", follow_redirects=False)
    own = let.headers["location"]
    assert (let.status_code, placed(own)) == (303, "/")
    assert {"HttpOnly", "SameSite=strict"} <= set(let.headers["set-cookie"].split("; "))
    assert client.get(own).status_code == 200
    assert client.get(f"{own}static/page.css").status_code == 200


def test_the_cookie_is_sent_to_no_other_server_of_the_host(store):
    """Browsers send cookies to all ports of a host, so the cookie is for a path that no other server knows."""
    guard = app(store)
    client = TestClient(guard, base_url="http://127.0.0.1:7420")
    let = client.get(f"/?token={guard.token}")
    own = let.url.path

    (cookie,) = client.cookies.jar
    assert cookie.path == own
    assert re.fullmatch(r"/[\w-]{24}/", own)
    assert let.request.headers["cookie"] == f"{cookie.name}={cookie.value}"
    assert "cookie" not in client.get("/").request.headers
    assert "cookie" not in client.get("http://127.0.0.1:8000/static/page.css").request.headers
    for wrong in ("/", "/run?id=a", own.rstrip("/"), f"{own[:-2]}/"):
        refused = client.get(wrong, follow_redirects=False)
        assert (refused.status_code, own in refused.text) == (401, False)
    links = re.findall(r'(?:href|src|action|data-watch)="([^"]+)"', let.text)
    assert [link for link in links if not link.startswith((own, "#"))] == []


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_the_cookie_stays_with_https(store, scheme, is_secure):
    """If the page was reached by it."""
    guard = app(store)
    client = TestClient(guard, base_url=f"{scheme}://localhost")

    let = client.get(f"/?token={guard.token}", follow_redirects=False)

    assert ("Secure" in let.headers["set-cookie"].split("; ")) is is_secure
    assert client.get(let.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    ("address", "led"),
    [
        ("/?token={}", "/"),
        ("/run?id=a%26b&token={}&row=2", "/run?id=a%26b&row=2"),
        ("/run?id=%C3%A4%2F%231&tok%65n={}", "/run?id=%C3%A4%2F%231"),
        ("//evil.example/run?token={}", "//evil.example/run"),
        ("/%5C%5Cevil.example/run?token={}", "/%5C%5Cevil.example/run"),
        ("/%3Fid=1?token={}", "/%3Fid%3D1"),
        ("/run%0D%0Ax:y?token={}", "/run%0D%0Ax%3Ay"),
    ],
)
@pytest.mark.parametrize("root", ["", "/tools/runs"])
def test_a_link_with_the_token_leads_to_the_same_page_without_it(store, address, led, root):
    """On this host, whatever the link says."""
    guard = app(store, root_path=root)
    client = TestClient(guard, base_url="http://localhost:7420")

    let = client.get("http://localhost:7420" + address.format(guard.token), follow_redirects=False)

    assert let.status_code == 303
    assert re.fullmatch(rf"{root}/[\w-]{{24}}{re.escape(led)}", let.headers["location"])


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "localhost.evil.example:7420"}, 421),
        ({"host": "localhost:7420"}, 200),
        ({"host": "[::1]:7420"}, 200),
        ({"host": "LOCALHOST"}, 200),
        ({"host": "localhost@evil.example"}, 421),
        ({"host": ""}, 421),
        ({"host": "[::1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:7420"}, 200),
    ],
)
def test_host_and_origin_are_those_of_the_page(page, headers, code):
    """A name that another resolves to this machine, or a page of another site, gets nothing."""
    cookie = "; ".join(f"{name}={value}" for name, value in page.cookies.items())
    assert page.get("/", headers={**headers, "cookie": cookie}).status_code == code


@pytest.mark.parametrize("given", ["runs.example", "Runs.Example", "runs.example:8443"])
def test_a_host_that_was_named_is_let_in(store, given):
    """A named host is let in, however it is written; others are refused with the option that allows them."""
    client = let_in(app(store, hosts=[given]), "http://runs.example")

    assert client.get("/").status_code == 200
    refused = client.get("/", headers={"host": "localhost"})
    assert refused.status_code == 421
    assert "--allow-host" in refused.text


def test_a_form_of_another_page_is_refused(page, store, graph):
    """Without the text that forms bring, from another site, or larger than any form."""
    graph.execute(State({"photos": []}, run_id="claim"))
    data = {"do": "cancel", "id": "claim"}
    token = csrf_of(page, "claim")

    assert page.post("/change", data=data).status_code == 403
    assert page.post("/change", data={**data, "csrf": "guessed"}).status_code == 403
    cross = {"sec-fetch-site": "cross-site"}
    assert page.post("/change", data={**data, "csrf": token}, headers=cross).status_code == 403
    assert page.post("/change", data={**data, "more": "x" * 1_100_000, "csrf": token}).status_code == 413
    unsaid = {"do": "answer", "id": "claim", "answer": "1", "csrf": token}
    assert page.post("/change", data=unsaid).status_code == 400  # it names no pause
    assert page.get("/change").status_code == 405
    assert store.load("claim").status == "paused"


def test_a_browser_is_told_to_run_nothing_else(page):
    """No inline script or style, no frame, nothing from elsewhere, nothing kept."""
    headers = page.get("/").headers

    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    text = page.get("/").text
    assert " style=" not in text
    assert " on" not in {part[:3] for part in text.split("<") if part.startswith(" on")}


def test_it_can_be_mounted_in_an_application():
    """Under a path, and with an empty token where that application asks who it is."""
    with MemoryStore() as store:
        graph = asks(store)
        graph.execute(State(run_id="r"))
        site = Starlette(routes=[Mount("/runs", app(store, [graph], token="", hosts=["site.example"]))])
        client = TestClient(site, base_url="http://site.example")

        assert 'href="/runs/run?id=r"' in client.get("/runs/").text
        assert client.get("/runs/static/page.css").status_code == 200
        assert client.get("/runs/run", params={"id": "r"}).status_code == 200
        done = change_at(client, "/runs", "r", store)
        assert done.headers["location"] == "/runs/run?id=r"


@pytest.mark.parametrize("sent", ["", "/tools/runs"], ids=["left out", "passed on"])
@pytest.mark.parametrize("given", ["/tools/runs", "tools/runs/"])
def test_it_can_stand_behind_a_proxy_under_a_path(store, graph, given, sent):
    """Behind a proxy, which may strip its path from requests, all links and cookies have the path."""
    graph.execute(State({"photos": []}, run_id="claim"))
    guard = app(store, [graph], root_path=given)
    client = TestClient(guard, base_url="http://localhost:7420")
    let = client.get(f"{sent}/run?id=claim&token={guard.token}", follow_redirects=False)
    assert placed(let.headers["location"]) == "/tools/runs/run?id=claim"
    own = let.headers["location"].partition("run?")[0]
    assert f"Path={own}" in let.headers["set-cookie"].split("; ")
    sent += own.removeprefix("/tools/runs").rstrip("/")
    cookie = {"cookie": let.headers["set-cookie"].partition(";")[0]}

    shown = client.get(f"{sent}/run?id=claim", headers=cookie).text
    for address in re.findall(r'(?:href|src|action|data-watch)="([^"#?]+)', shown):
        assert address.startswith(own)
        path = f"{sent}/{address.removeprefix(own)}"
        assert client.get(path, headers=cookie).status_code != 401
    assert client.get(f"{sent}/static/page.css", headers=cookie).status_code == 200
    data = {"do": "cancel", "id": "claim", "csrf": shown.partition('name="csrf" value="')[2].partition('"')[0]}
    done = client.post(f"{sent}/change", data=data, headers=cookie, follow_redirects=False)
    assert done.headers["location"] == f"{own}run?id=claim"


def change_at(client, root, run_id, store):
    text = client.get(f"{root}/run", params={"id": run_id}).text
    csrf = text.partition('name="csrf" value="')[2].partition('"')[0]
    data = {"csrf": csrf, "do": "answer", "id": run_id, "pause": pause_of(store, run_id), "answer": "1"}
    return client.post(f"{root}/change", data=data, follow_redirects=False)


# --------------------------------------------------------------------------- the command


@contextmanager
def serving(folder, *options):
    """Serve a store by the command; yield the process and the address that it prints."""
    with SqliteStore(folder / "runs.db") as store:
        store.save(State(run_id="one"))
    command = [sys.executable, "-m", "stategraph.cli", "--store", "runs.db", "ui", "--port", "0", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=300)


def test_the_command_prints_an_address_and_serves_it(tmp_path):
    """It serves until it is interrupted; the address it prints opens the page."""
    with serving(tmp_path) as (process, address), httpx.Client(follow_redirects=True) as client:
        shown = client.get(address).text
        refused = httpx.get(address.partition("?")[0]).status_code

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=.{32}", address)
    assert ">one<" in shown
    assert refused == 401
    assert process.returncode == 130


def test_the_command_serves_other_machines_under_the_names_that_it_is_given(tmp_path):
    """The address that it prints has the first; with HTTPS, as a proxy on this machine says, cookies stay with it."""
    options = ("--host", "0.0.0.0", "--allow-host", "runs.example", "--allow-host", "other.example")
    with serving(tmp_path, *options, "--root-path", "/runs") as (_, address):
        found = re.fullmatch(r"http://runs\.example:(\d+)(/runs/\?token=.{32})", address)
        assert found is not None, address
        here = f"http://127.0.0.1:{found[1]}"
        for host in ("runs.example", f"other.example:{found[1]}", f"127.0.0.1:{found[1]}"):
            let = httpx.get(here + found[2], headers={"host": host})
            own = let.headers["location"]
            assert (let.status_code, placed(own)) == (303, "/runs/")
            assert "Secure" not in let.headers["set-cookie"]
            cookie = let.headers["set-cookie"].partition(";")[0]
            assert ">one<" in httpx.get(f"{here}{own}", headers={"host": host, "cookie": cookie}).text
        secure = httpx.get(here + found[2], headers={"host": "runs.example", "x-forwarded-proto": "https"})
        assert "Secure" in secure.headers["set-cookie"]
        assert httpx.get(here + found[2], headers={"host": "evil.example"}).status_code == 421


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits the files of another process")
def test_half_open_requests_do_not_block_the_page(tmp_path):
    """However many connections wait with half a request, before their first or a later one, others are answered."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4_096), most))
    with serving(tmp_path) as (process, address), ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, most))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1_024, 1_024))
        port = int(address.partition("127.0.0.1:")[2].partition("/")[0])
        for number in range(1_100):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300))
            if number % 2:
                half.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            half.sendall(b"GET / HTTP/1.1\r\nHost:")

        assert ">one<" in httpx.get(address, follow_redirects=True, timeout=300).text
