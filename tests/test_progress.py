"""The display of progress."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stategraph import ExecutionError, RetryPolicy, State
from stategraph.nodes.interrupt import InterruptNode
from stategraph.nodes.map import MapNode
from stategraph.observers.progress import ProgressObserver
from tests.scenarios import RUN, Scene, broken_first, make_graph, raises, trace, traces

HOSTILE = "\x1b[31mred\nnew line [bold]\udcff\u202e"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["lines", "terminal"])
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Where it is shown."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return io.StringIO() if request.param == "lines" else Terminal()


@pytest.fixture
def shown(stream: io.StringIO) -> ProgressObserver:
    return ProgressObserver(stream, every=0)


def test_a_run(play: Scene, shown: ProgressObserver, stream: io.StringIO) -> None:
    """Node and step, how many items are done, attempts, nested runs, and how it ended."""
    inner = make_graph(traces("x"), store=play.store, name="inner")
    nodes = {
        "fetch": broken_first(trace("fetch"), ValueError("no")),
        "read": MapNode(len, "l", "out"),
        "sub": inner.as_node(),
    }
    policies = {"fetch": {"retry": RetryPolicy(2, initial_delay=0)}}
    graph = make_graph(nodes, store=play.store, observer=shown, policies=policies)
    play.execute(graph, State({"l": ["a", "b", "c"]}, run_id=RUN))

    text = stream.getvalue()
    kept = ("fetch: attempt 1 failed (ValueError: no)", "step 2 read", "3/3 items", "completed after 3 steps")
    quick = () if stream.isatty() else ("step 1 fetch", "step 1 sub > x", "step 3 sub")  # a terminal shows 10 a second
    assert [text_part for text_part in (*kept, *quick, f"flow {RUN}") if text_part not in text] == []


def test_lines_are_plain(play: Scene) -> None:
    """Without a terminal nothing moves, and each line says which run it is about."""
    stream = io.StringIO()
    play.execute(make_graph(traces("ab"), store=play.store, observer=ProgressObserver(stream)))

    lines = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == [f"[flow {RUN}] step 1 a", f"[flow {RUN}] step 2 b"]
    assert lines[2].startswith(f"[flow {RUN}] completed after 2 steps, ")
    assert len(lines) == 3
    assert "\x1b" not in stream.getvalue()


def test_a_pause_and_a_failure(play: Scene, shown: ProgressObserver, stream: io.StringIO) -> None:
    """Where it waits, and for what; which node failed, and why. Items that were done before count."""
    left = [ValueError("no")]

    def item(number: int) -> int:
        if number == 2 and left:
            raise left.pop()
        return number

    nodes = {"ask": InterruptNode("why", "answer", reason="needs you"), "read": MapNode(item, "l", "out", 1)}
    graph = make_graph(nodes, store=play.store, observer=shown)
    play.execute(graph, State({"l": [0, 1, 2, 3], "why": 1}, run_id=RUN))
    with pytest.raises(ExecutionError):
        play.resume(graph, {"answer": 1})
    first = stream.getvalue()
    play.resume(graph)

    assert "paused at ask, for answer: needs you" in first
    assert "ended at read" in first
    assert "ValueError: no" in first
    assert "4/4 items" in stream.getvalue()[len(first) :]
    assert "completed after 2 steps" in stream.getvalue()[len(first) :]


def test_hostile_texts(play: Scene, shown: ProgressObserver, stream: io.StringIO) -> None:
    """Hostile texts neither break nor forge the display, on a terminal or not, and markup has no effect."""
    graph = make_graph({"[red]a": raises(ValueError(HOSTILE))}, store=play.store, observer=shown, name="[link]g")
    with pytest.raises(ExecutionError):
        play.execute(graph)

    text = stream.getvalue()
    assert "[link]g" in text
    assert "[red]a" in text
    assert "\\x1b[31mred\\nnew line [bold]\\udcff\\u202e" in text
    assert "\nnew line" not in text
    assert "\x1b[31mred" not in text


@pytest.mark.parametrize("method", ["execute", "run", "stream", "turn"])
def test_a_call_that_asks_for_it(method: str, memory_play: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """progress=True shows the run on stderr, and the observer of the graph still gets its events."""
    graph = make_graph(traces("ab"), store=memory_play.store, preserve=True)
    if method == "stream":
        [*graph.stream(State(run_id=RUN), progress=True)]
    elif method == "turn":
        memory_play.call(graph, "turn", RUN, {}, progress=True)
    else:
        memory_play.call(graph, method, State(run_id=RUN), progress=True)

    out, err = capsys.readouterr()
    assert out == ""
    assert f"[flow {RUN}] step 2 b" in err


class TestNotebooks:
    """In a notebook, where IPython displays things."""

    @pytest.fixture
    def shell(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        """An IPython that seems to have a kernel, as that of a notebook."""
        interactive = pytest.importorskip("IPython.core.interactiveshell")
        from IPython.core.displaypub import CapturingDisplayPublisher

        shell = interactive.InteractiveShell.instance()
        shell.kernel = object()
        shell.display_pub = CapturingDisplayPublisher(parent=shell, shell=shell)
        yield shell
        interactive.InteractiveShell.clear_instance()

    def test_it_is_one_output_that_is_replaced(self, shell: Any, memory_play: Scene) -> None:
        """A notebook shows one HTML output that is replaced, and names are never tags."""
        graph = make_graph({"<b>a": trace("a"), "b": trace("b")}, store=memory_play.store)
        memory_play.execute(graph, progress=True)

        first, *others = shell.display_pub.outputs
        assert not first["update"]
        assert all(other["update"] for other in others)
        assert len({output["transient"]["display_id"] for output in shell.display_pub.outputs}) == 1
        texts = [output["data"]["text/html"] for output in shell.display_pub.outputs]
        assert "completed after 2 steps" in texts[-1]
        assert all("<b>" not in text for text in texts)


def test_without_rich(monkeypatch: pytest.MonkeyPatch, memory_play: Scene) -> None:
    """A terminal gets plain lines."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = Terminal()
    memory_play.execute(make_graph(traces("a"), store=memory_play.store, observer=ProgressObserver(stream)))

    assert stream.getvalue().startswith(f"[flow {RUN}] step 1 a")
