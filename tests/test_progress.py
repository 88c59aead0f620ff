"""What who waits for a run is shown of it."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from stategraph import ConfigError, ExecutionError, RetryPolicy, State, get_observer
from stategraph.nodes.interrupt import InterruptNode
from stategraph.nodes.map import MapNode
from stategraph.observers.progress import MOST_LINES, Lines, Live, ProgressObserver, Watched
from tests.scenarios import RUN, Scene, broken_first, in_threads, make_graph, raises, trace, traces

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
    assert [told for told in (*kept, *quick, f"flow {RUN}") if told not in text] == []


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


def test_a_handled_failure(play: Scene, shown: ProgressObserver) -> None:
    """It says so, where lines are plain."""
    stream = io.StringIO()
    graph = make_graph(
        {"bad": raises(ValueError("no")), "mend": trace("mend")},
        store=play.store,
        observer=ProgressObserver(stream),
        policies={"bad": {"on_error": "mend"}},
    )
    play.execute(graph)

    assert "step 1 bad: failed, and is handled" in stream.getvalue()


def test_hostile_texts(play: Scene, shown: ProgressObserver, stream: io.StringIO) -> None:
    """They neither break what is shown nor forge it, on a terminal or not, and markup means nothing."""
    graph = make_graph({"[red]a": raises(ValueError(HOSTILE))}, store=play.store, observer=shown, name="[link]g")
    with pytest.raises(ExecutionError):
        play.execute(graph)

    text = stream.getvalue()
    assert "[link]g" in text
    assert "[red]a" in text
    assert "\\x1b[31mred\\nnew line [bold]\\udcff\\u202e" in text
    assert "\nnew line" not in text
    assert "\x1b[31mred" not in text


def test_a_stream_that_cannot_write_all(play: Scene) -> None:
    """What its encoding lacks is escaped."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    graph = make_graph({"käse": trace("a")}, store=play.store, observer=ProgressObserver(stream))
    play.execute(graph)

    assert b"k\\xe4se" in raw.getvalue()


def test_several_runs_at_once(shown: ProgressObserver, stream: io.StringIO, memory_scene: Scene) -> None:
    """Each has lines of its own."""
    together = threading.Barrier(3, timeout=20)

    def meet(state: State) -> dict[str, Any]:
        together.wait()
        return {}

    graph = make_graph({"a": meet, "b": trace("b")}, store=memory_scene.store, observer=shown)
    states = [State(run_id=f"run-{number}") for number in range(3)]
    assert in_threads(*[partial(graph.execute, state) for state in states]) == []

    text = stream.getvalue()
    assert all(f"run-{number} completed after 2 steps" in text.replace("] ", " ") for number in range(3))


def test_more_runs_than_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that find no line wait for one; all are told as they end."""
    monkeypatch.setenv("TERM", "xterm")

    stream = Terminal()
    live, runs = Live(stream), [Watched(f"run-{number}") for number in range(MOST_LINES + 5)]
    for run in runs:
        live.show(run)
    for run in runs:
        live.show(run)
        live.end(run, "ended", "green")
    live.close()

    assert all(f"run-{number} ended" in stream.getvalue() for number in range(MOST_LINES + 5))


@pytest.mark.parametrize("method", ["execute", "run", "stream", "turn"])
def test_a_call_that_asks_for_it(method: str, memory_play: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """With progress=True it is shown on stderr, beside what the observer of the graph is told."""
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


def test_a_resume_that_asks_for_it(memory_play: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """And with it by name, each step is told once."""
    graph = make_graph(
        {"ask": InterruptNode("why", "answer")}, store=memory_play.store, observer=get_observer("progress")
    )
    memory_play.execute(graph, State({"why": 1}, run_id=RUN))
    memory_play.resume(graph, {"answer": 1}, progress=True)

    assert capsys.readouterr().err.count("completed after 1 step,") == 1


@pytest.mark.parametrize("progress", [1, "yes", None])
def test_it_is_asked_for_with_true(memory_play: Scene, progress: Any) -> None:
    """Anything else is refused."""
    with pytest.raises(ConfigError, match="progress"):
        memory_play.execute(make_graph(traces("a"), store=memory_play.store), progress=progress)


@pytest.mark.parametrize("every", [-1, "1", True, float("nan")])
def test_how_often(every: Any) -> None:
    """A number of seconds."""
    with pytest.raises(ConfigError, match="every"):
        ProgressObserver(every=every)


class TestRates:
    """Of items, in words."""

    @pytest.mark.parametrize(
        ("done", "found", "failed", "told"),
        [
            (0, 0, 0, "0/100 items"),
            (60, 20, 0, "60/100 items, 4.0/s, 10 s left"),
            (70, 0, 3, "70/100 items, 3 failed, 7.0/s, 4.3 s left"),
            (100, 0, 0, "100/100 items, 10/s"),
            (5, 0, 0, "5/100 items, 2.0 s each, 3 min left"),
            (20, 20, 0, "20/100 items"),
        ],
    )
    def test_items(self, monkeypatch: pytest.MonkeyPatch, done: int, found: int, failed: int, told: str) -> None:
        """What was found done says nothing about how fast it goes."""
        monkeypatch.setattr("stategraph.observers.progress.time.monotonic", lambda: 10.0)
        run = Watched("g", began=0.0, total=100, done=done, found=found, failed=failed)

        assert run.items == told

    def test_quick_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run of very many steps does not flood a log."""
        stream = io.StringIO()
        lines, run = Lines(stream, every=60), Watched("g")
        for _ in range(1_000):
            lines.step(run, "step")

        assert stream.getvalue().count("\n") == 200


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
        """As HTML in which nothing that was named so is a tag."""
        graph = make_graph({"<b>a": trace("a"), "b": trace("b")}, store=memory_play.store)
        memory_play.execute(graph, progress=True)

        first, *others = shell.display_pub.outputs
        assert not first["update"]
        assert all(other["update"] for other in others)
        assert len({output["transient"]["display_id"] for output in shell.display_pub.outputs}) == 1
        texts = [output["data"]["text/html"] for output in shell.display_pub.outputs]
        assert "completed after 2 steps" in texts[-1]
        assert all("<b>" not in text for text in texts)

    def test_elsewhere_ipython_is_no_notebook(self, memory_play: Scene, capsys: pytest.CaptureFixture[str]) -> None:
        """On a terminal, it has no kernel."""
        memory_play.execute(make_graph(traces("a"), store=memory_play.store), progress=True)

        assert "step 1 a" in capsys.readouterr().err


def test_without_rich(monkeypatch: pytest.MonkeyPatch, memory_play: Scene) -> None:
    """A terminal gets plain lines."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = Terminal()
    memory_play.execute(make_graph(traces("a"), store=memory_play.store, observer=ProgressObserver(stream)))

    assert stream.getvalue().startswith(f"[flow {RUN}] step 1 a")
