"""Crawl a site page by page with a rate limit and retries, however often the program is killed.

    python examples/crawl.py                        crawl a small site that the program serves itself
    python examples/crawl.py http://127.0.0.1:8000/  crawl yours; links to other hosts are not followed

A page that answers "429 Too Many Requests" or "503" is requested again after the number of seconds that it names.
Each fetched page is saved: kill the program, start it again, and it continues with the other pages.
"""

import argparse
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urldefrag, urljoin

from stategraph import CheckpointConfig, GraphConfig, MapNode, RetryPolicy, State, StateGraph

Updates = dict[str, Any]
RATE = 40.0  # pages a second
RETRIED = (429, 503)


class ThrottledError(Exception):
    """The server is busy. It may name the seconds to wait."""

    def __init__(self, headers: Message) -> None:
        super().__init__("try later")
        after = headers.get("Retry-After", "")
        self.seconds = float(after) if after.isdigit() else None


def patience(error: Exception) -> float | None:
    """Return the seconds until the next attempt; None leaves them to the policy."""
    return error.seconds if isinstance(error, ThrottledError) else None


def fetch(site: str, path: str) -> dict[str, Any]:
    """Fetch a page. Return its status, its title, and its links within the site."""
    try:
        with urllib.request.urlopen(site + path, timeout=30) as answer:
            text, status = answer.read().decode("utf-8", "replace"), answer.status
    except urllib.error.HTTPError as error:
        with error:
            if error.code in RETRIED:
                raise ThrottledError(error.headers) from None
            return {"path": path, "status": error.code, "title": "", "links": []}
    title = re.search(r"<title>(.*?)</title>", text)
    links = (urldefrag(urljoin(site + path, link)).url for link in re.findall(r'href="(.*?)"', text))
    inside = sorted({link.removeprefix(site) for link in links if link.startswith(site)})
    return {"path": path, "status": status, "title": title[1] if title else "", "links": inside}


def sort_out(state: State) -> Updates:
    """Node: keep the fetched pages, and list the links that are new."""
    pages = {**state["pages"], **{page["path"]: page for page in state["fetched"]}}
    linked = {link for page in state["fetched"] for link in page["links"]}
    return {"pages": pages, "paths": sorted(linked - pages.keys())}


def sum_up(state: State) -> Updates:
    """Node: sort the pages into existing pages and broken links."""
    pages = state["pages"].values()
    gone = {page["path"] for page in pages if page["status"] != 200}
    broken = [f"{page['path'] or '/'} -> {link}" for page in pages for link in page["links"] if link in gone]
    return {"titles": sorted(page["title"] for page in pages if page["title"]), "broken": sorted(broken)}


def crawl_graph(site: str, store: str) -> StateGraph:
    """Return the graph: fetch (each page) -> sort_out, repeated while there are new pages; then sum_up."""
    checkpoint = CheckpointConfig(store="sqlite", interval=1, preserve=True, options={"path": store})
    graph = StateGraph(GraphConfig(name="crawl", max_iterations=1000, checkpoint=checkpoint))
    retry = RetryPolicy(max_attempts=5, retry_on=ThrottledError, delay=patience)
    pages = MapNode(partial(fetch, site), over="paths", into="fetched", max_workers=4, retry=retry, rate=RATE)
    graph.add_node("fetch", pages)
    graph.add_node("sort_out", sort_out)
    graph.add_node("sum_up", sum_up)
    graph.add_edge("fetch", "sort_out")
    graph.add_route("sort_out", lambda state: "more" if state["paths"] else "done", {"more": "fetch", "done": "sum_up"})
    graph.set_entry_point("fetch")
    graph.set_exit_point("sum_up")
    return graph


class Site(BaseHTTPRequestHandler):
    """A site of forty pages that link to each other. Every fifth page is busy at the first request."""

    asked: set[str] = set()  # noqa: RUF012 - of all requests

    def do_GET(self) -> None:
        """Answer a request."""
        number = int(self.path[1:]) if self.path[1:].isdigit() else 0
        if number % 5 == 3 and self.path not in self.asked:
            self.asked.add(self.path)
            self._answer(429, "", **{"Retry-After": "0"})
        elif number >= 40 or not (self.path == "/" or self.path[1:].isdigit()):
            self._answer(404, "")
        else:
            links = "".join(
                f'<a href="/{to}">{to}</a>' for to in (2 * number + 1, 2 * number + 2, number // 2) if to < 42
            )
            self._answer(200, f"<title>page {number:02}</title>{links}")

    def _answer(self, status: int, text: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


@contextmanager
def served() -> Iterator[str]:
    """Serve the site, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def crawl(site: str, store: str) -> None:
    """Crawl a site, or continue an interrupted crawl."""
    graph = crawl_graph(site, store)
    with graph.store:
        final = graph.run(State({"paths": [""], "pages": {}}, run_id="crawl-1"))
    print(f"{len(final['titles'])} pages, broken links: {', '.join(final['broken']) or 'none'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Crawl a site.")
    parser.add_argument("site", nargs="?")
    parser.add_argument("--store", default="crawl.db")
    given = parser.parse_args()
    if given.site:
        crawl(given.site, given.store)
    else:
        with served() as address:
            crawl(address, given.store)
