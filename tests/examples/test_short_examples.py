"""The short examples print their documented output."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from stategraph.testing import CheckpointStoreContract

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from custom_store import FileStore  # noqa: E402

OUTPUTS = {
    "review_loop": """\
        patience 5: draft 3 about checkpoints (7 steps, the last was publish)
        patience 2: nothing published (5 steps, the last was give_up)
        """,
    "custom_store": """\
        node 'share' of run 'count/1' failed: ZeroDivisionError: division by zero (path: count -> share)
        files: count%1.state
        25.0 lines a file, after 2 steps; runs that are left: []
        """,
    "custom_observer": """\
        count_down: 8
        lift_off: 1
        checkpoints: 4
        """,
    "webhook": """\
        you said 'hello 0'
        you said 'hello 1'
        you said 'hello 2'
        you said 'hello 0'
        you said 'hello 1'
        you said 'hello 2'
        you said 'hello 0'
        you said 'hello 1'
        you said 'hello 2'
        3 answers to 9 deliveries
        """,
    "from_toml": """\
        from-toml: 10 characters
        kept: step 2, completed, by report
        """,
    "tokens": """\
        read: Tokens are kept
        read later: 4. for
        read later: 5. readers
        read later: 6. that
        read later: 7. come
        read later: 8. late
        completed: Tokens are kept for readers that come late
        """,
    "time_travel": """\
        first: mean 128.0
          step 0: input, active
          step 1: step, active
          step 2: step, active
          step 3: step, active
          step 3: end, completed
          from step 1 to 2: ['cleaned'] came
          at step 1 the State had ['limit', 'values']
        second, forked off first at step 1: mean 4.0
        first again: at step 1, with ['limit', 'values']
        runs, the newest first: [('second', 3), ('first', 1)]
        """,
    "status": """\
        read: done read/0; failed read/1
          read/0: reading the page 'cover'
          read/1: reading the page 'torn'
        A better book, It was raining, The end
        """,
    "own_tables": """\
        order-1: 2 left
        node 'reserve' of run 'order-2' failed: ValueError: 2 too few (path: reserve)
        in stock: 2
        """,
    "async_nodes": """\
        side by side: a 9, bb 10, ccc 11
        run 'slow-1' was stopped after step 1: its timeout of 0.1 s passed
        resumed: 'text of slow' has 12 characters, counted in step 3
        """,
    "nested": """\
        node 'write' of the book failed: the dictionary
        written so far: rain 1, rain 2, wind 1
        written in all: rain 1, rain 2, wind 1, wind 2
        the book: about rain, draft 2; about wind, draft 2 (5 steps)
        """,
    "compare_settings": """\
        base     limit 5.0: 2 peaks [40, 90] (from the start)
        careful  limit 3.0: 4 peaks [39, 40, 42, 90] (from base, step 1)
        eager    limit 1.5: 12 peaks [38, 39, 40, 41, 42, 88, 89, 90, 91, 92, 130, 170] (from base, step 1)
        measured 1 time
        """,
    "effects": """\
        before: ['17', '18']
        then: ['receipt 17', 'receipt 18', 'receipt 19']
        refunded: ['17', '18', '19']
        effects: ('17', '18', '19')
        """,
    "budget": """\
        3 chapters, stopped: 0.59 dollars are spent
        A chapter about the dog.
        A chapter about the cat.
        A chapter about the quarrel.
        A chapter about the peace.
        0.79 dollars, 39,400 tokens
        """,
    "timer": """\
        paused: gives the customer time
        due now: []
        no one goes on early
        order-7 Have you paid order 7?
        """,
    "agent": """\
        a process that dies:
          request 1
          order 17 is looked up
        another one goes on:
          order 17 is looked up
          request 2
        it waits: the approval of a call of refund is needed {'number': 17, 'euros': 30}
          30 EUR are refunded
          request 3
        30 EUR are on their way. (6 messages, 204 tokens)
        """,
    "agent_langchain": """\
        a process that dies:
          parcel 1 is weighed
          parcel 2 is weighed
        another one asks: the outcome of an effect is unknown: weigh call-2
          parcel 2 is weighed
          parcel 3 is weighed
        6 kg in all.
        """,
    "agent_openai": """\
        attempt 1:
          the model gets a request
          parcel 2 is weighed
          the model gets a request
        attempt 2:
        It weighs 2 kg.
        """,
    "streaming": """\
        step 1, question: 7 chunks, now question
        step 2, answer: 17 chunks, now answer, question
        step 3, count: 0 chunks, now answer, question, words
        """,
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_it_prints(name: str, tmp_path: Path) -> None:
    """An example prints exactly its output from any folder, without warnings, and leaves no files."""
    if name.startswith("agent"):
        pytest.importorskip({"agent": "pydantic_ai", "agent_langchain": "langchain_core"}.get(name, "agents"))
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]

    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    assert result.stderr == ""
    assert result.stdout == dedent(OUTPUTS[name])
    assert list(tmp_path.iterdir()) == []


def test_the_crash_matrix_holds(tmp_path: Path) -> None:
    """The next process completes a killed run under every durability; the example checks the repeated steps."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / "crash_matrix.py")]

    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    assert result.stderr == ""
    assert result.stdout.count("2 starts") == 6


class TestFileStore(CheckpointStoreContract):
    """The store of the example keeps what every store promises."""

    keeps_history = False

    @pytest.fixture
    def store(self, tmp_path: Path) -> FileStore:
        return FileStore(tmp_path / "runs")

    def test_a_failed_write_loses_nothing(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where a file cannot be written, the error says so and the earlier State is still there."""
        from stategraph import CheckpointSaveError, State

        def no_space(file: int) -> None:
            raise OSError("no space left")

        store.save(State({"n": 1}, run_id="a", step=1))
        monkeypatch.setattr("os.fsync", no_space)

        with pytest.raises(CheckpointSaveError, match="no space left"):
            store.save(State({"n": 2}, run_id="a", step=2))

        assert store.load("a")["n"] == 1
