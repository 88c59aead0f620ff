"""Flip, zero or cut out bytes of a database or its log: the store never returns a State that was not saved.

A damaged store answers as before the damage, or raises an error that says so, with three exceptions. At the end of a
log damage looks like a power cut, so the whole store may be as it was after an earlier commit. A row of a database that
became unreachable and that no other row names is not missed; such a case counts as incomplete. A summary is made
without the sealed payload; a summary of a saved step with another node, time or status is counted, too.
"""

from __future__ import annotations

import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from proof.model import is_same_state
from proof.report import Report
from proof.workers import WORKERS, determine, limited, tell, work_out
from proof.workload import DATABASE, open_store
from stategraph._values.provenance import ErrorInfo
from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, FormatError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import Policy

CASES = 3_000
"""At share 1.0, over both stores and both files of each."""

_TIME = 1_700_000_000_000_000_000
_PARTS = ("database", "log")
_NOT_FOUND = "not found"
_REFUSED = "refused as damaged"
_REFUSED_FORMAT = "refused as a newer format or no store"
_LESS = "INCOMPLETE, and not noticed"
_SUMMARY = "a WRONG SUMMARY, and not noticed"

Question: TypeAlias = tuple[Any, ...]
Seen: TypeAlias = dict[Question, Any]
"""All questions to a store, with the answers."""


@attrs.frozen
class Source:
    """A store that is to be damaged.

    Attributes:
        files: Its files: name and content.
        target: The name of the file to damage.
        ways: Its answers after each commit; the last are the current ones.
    """

    files: dict[str, bytes]
    target: str
    ways: list[Seen]


# --------------------------------------------------------------------------- making stores


def _saves(run_id: str, count: int, first: int = 1, text: int = 40) -> Iterator[State]:
    """Yield States of a run, step by step."""
    log: list[Any] = [f"{run_id} {step}" for step in range(1, first)]
    for step in range(first, first + count):
        log.append(f"{run_id} {step}")
        data = {"n": step, "log": list(log), "text": f"{run_id} {step} " * text, "pair": (step, {step: b"\0\xff"})}
        yield State(
            data, run_id=run_id, step=step, checkpoint_node=f"node{step % 3}", timestamp=_TIME + step, graph="g"
        )


def _begin(store: CheckpointStore) -> Iterator[None]:
    """Make runs of every policy, also failed, rolled back and forked ones; yield after each commit."""
    policies = {"latest": Policy(), "full": Policy("full"), "window": Policy("windowed", window=3), "long": Policy()}
    for run_id, policy in policies.items():
        store.retain(run_id, policy)
        for state in _saves(run_id, 6, text=900 if run_id == "long" else 40):
            store.save(state)
            yield
    store.save(attrs.evolve(store.load("latest"), status="failed", error=ErrorInfo("ValueError", "no", "node0")))
    yield
    store.rollback("full", 4)
    yield
    store.fork("full", "forked/1", 3)
    yield


def _go_on(store: CheckpointStore) -> Iterator[None]:
    """Continue all runs and add a new one; yield after each commit."""
    store.retain("full", Policy("full"))
    for states in zip(
        _saves("full", 4, 5), _saves("latest", 4, 7), _saves("window", 4, 7), _saves("new", 4), strict=True
    ):
        for state in states:
            store.save(attrs.evolve(state, generation=1 if state.run_id == "full" else 0))  # it was rolled back
            yield
    store.save(attrs.evolve(store.load("new"), status="completed"))
    yield


def _source(part: str, folder: Path) -> Source:
    """Return a store whose part, the database or the log, is to be damaged."""
    with open_store(folder) as store:
        for _ in _begin(store):
            pass
        runs = {*store.list(), "new", "unknown"}
        ways = [_answers(store, runs)]
        if part == "database":
            ways += [_answers(store, runs) for _ in _go_on(store)]
    if part == "database":
        return Source(_content(folder), DATABASE, ways)
    with open_store(folder) as store:
        ways += [_answers(store, runs) for _ in _go_on(store)]
        files = _content(folder)
    log = f"{DATABASE}-wal"
    return Source({**files, log: frames(files[log])}, log, ways)


def _content(folder: Path) -> dict[str, bytes]:
    """Return the files of a store without the shared memory, which the first connection creates again."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


def frames(log: bytes) -> bytes:
    """Return a log without the bytes after its last commit, where damage has no effect."""
    if not log:  # it was cut off when something was deleted
        return log
    page, salt, at = struct.unpack(">I", log[8:12])[0], log[16:24], 32
    while log[at + 8 : at + 16] == salt:
        at += 24 + page
    return log[:at]


# --------------------------------------------------------------------------- asking


def _answers(store: CheckpointStore, runs: set[str]) -> Seen:
    """Return all answers of a store."""
    questions: dict[Question, Callable[[], Any]] = {("runs",): store.runs, ("list",): store.list}
    for run in sorted(runs):
        questions["history", run] = partial(store.history, run)
        questions["load", run] = partial(store.load, run)
        for step in range(12):
            questions["load", run, step] = partial(store.load, run, step)
    return {question: _answer(ask) for question, ask in questions.items()}


def _answer(ask: Callable[[], Any]) -> Any:
    """Return an answer; an unexpected error is a wrong answer."""
    try:
        return ask()
    except CheckpointNotFoundError:
        return _NOT_FOUND
    except CheckpointCorruptError:
        return _REFUSED
    except FormatError:
        return _REFUSED_FORMAT
    except Exception as error:  # noqa: BLE001 - errors are answers
        return error


def _is_refused(answer: Any) -> bool:
    return isinstance(answer, str) and answer != _NOT_FOUND


def _is_right(answer: Any, expected: Any) -> bool:
    if isinstance(answer, State) and isinstance(expected, State):
        return is_same_state(answer, expected)
    return bool(answer == expected)


# --------------------------------------------------------------------------- damaging


def _damaged(content: bytes, randomness: random.Random) -> tuple[str, bytes]:
    """Return the kind of the damage and the damaged content."""
    at, size = randomness.randrange(len(content)), randomness.choice([1, 1, 4, 16, 64, 512, 4096])
    kind = randomness.choice(["flipped", "flipped", "zeroed", "cut out", "cut off"])
    if kind == "cut off":
        return kind, content[:at]
    if randomness.random() < 0.3:
        at -= at % 512  # as a disk does it
    end = min(at + size, len(content))
    if kind == "cut out":
        return kind, content[:at] + content[end:]
    middle = (
        bytes(end - at) if kind == "zeroed" else bytes(byte ^ randomness.randint(1, 255) for byte in content[at:end])
    )
    return kind, content[:at] + middle + content[end:]


def _try(source: Source, damaged: bytes, folder: Path, report: Report) -> list[str]:
    """Ask a damaged store all questions; return the wrong answers."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, content in source.files.items():
        (folder / file).write_bytes(damaged if file == source.target else content)
    runs = {question[1] for question in source.ways[0] if len(question) > 1}
    store = _answer(partial(open_store, folder))
    if isinstance(store, CheckpointStore):
        with store:
            seen = _answers(store, runs)
        end, wrong = _judged(seen, source.ways, is_log=source.target.endswith("-wal"))
    else:
        end = f"not opened: {store}" if _is_refused(store) else "WRONG"
        wrong = [] if _is_refused(store) else [f"opening raised {type(store).__name__}: {store}"]
    report.found[end] += 1
    return wrong


def _judged(seen: Seen, ways: list[Seen], is_log: bool) -> tuple[str, list[str]]:
    """Return the outcome and the wrong answers."""
    given = {question: answer for question, answer in seen.items() if not _is_refused(answer)}
    for way in reversed(ways if is_log else ways[-1:]):
        if all(_is_right(answer, way[question]) for question, answer in given.items()):
            if way is not ways[-1]:
                return "as after an earlier commit", []
            return "all right" if len(given) == len(seen) else "partly refused, else right", []
    wrong = [question for question, answer in given.items() if is_log or not _is_less(question, answer, ways)]
    if not wrong:
        return _LESS, []
    if not is_log and all(_is_summary_of_saved(question, given[question], ways) for question in wrong):
        return _SUMMARY, []
    return "WRONG", [
        f"{' '.join(map(str, question))}: {given[question]!r:.300} instead of {ways[-1][question]!r:.300}"
        for question in sorted(wrong, key=str)
        if not _is_right(given[question], ways[-1][question])
    ]


def _is_less(question: Question, answer: Any, ways: list[Seen]) -> bool:
    """Return whether an answer has only saved values, although some may be missing."""
    if answer == _NOT_FOUND or any(_is_right(answer, way[question]) for way in ways):
        return True
    items = [item for way in ways if isinstance(way[question], list) for item in way[question]]
    return isinstance(answer, list) and all(item in items for item in answer)


def _is_summary_of_saved(question: Question, answer: Any, ways: list[Seen]) -> bool:
    """Return whether an answer consists of summaries of saved steps."""
    if question[0] not in ("history", "runs") or not isinstance(answer, list):
        return False
    saved = {(item.run_id, item.step) for way in ways for item in way[question]}
    return all((item.run_id, item.step) in saved for item in answer)


# --------------------------------------------------------------------------- the proof


def prove(share: float, seed: int) -> list[Report]:
    """Damage the database and its log; return a report for each."""
    reports = []
    count = max(1, round(CASES * share / len(_PARTS) / WORKERS))
    for part in _PARTS:
        report = Report(f"a damaged {part} never gives a State that was not saved")
        work_out("damage", [(part, count, f"{seed}-{worker}") for worker in range(WORKERS)], report)
        reports.append(report)
    return reports


def _work(part: str, count: int, seed: str) -> Report:
    report = Report(part)
    randomness = random.Random(seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory(prefix="stategraph-proof-", ignore_cleanup_errors=True) as folder:
        source = _source(part, Path(folder) / "source")
        for number in range(count):
            kind, content = _damaged(source.files[source.target], randomness)
            report.tried[kind] += 1
            with limited():
                wrong = _try(source, content, Path(folder) / "case", report)
            report.failures += [f"{part}, seed {seed}, case {number}, {kind}: {problem}" for problem in wrong[:3]]
    return report


if __name__ == "__main__":
    determine(sys.argv[3])
    tell(_work(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
