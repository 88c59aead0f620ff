"""Bytes of a database or its log that are flipped, zeroed or cut out: never a State that was not saved.

Whatever is asked of a damaged store is answered as before the damage, or is an error that says so. The end of a log is
the exception: what a power cut leaves and what damage leaves are the same there, so all of the store may be as it was
after an earlier commit. And where damage has made a row of a database unreachable and no other names it, nothing can
tell that it is missing: such a case is counted as incomplete. What it still shows was saved. A summary is made without
the payload that the seal covers as well: one that tells of a saved step with another node, time or status counts too.
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
"""All that can be asked of a store, with the answers."""


@attrs.frozen
class Source:
    """A store that is to be damaged.

    Attributes:
        files: Its files: name and content.
        target: The one to damage.
        ways: What it looked like after each commit, last the way it is.
    """

    files: dict[str, bytes]
    target: str
    ways: list[Seen]


# --------------------------------------------------------------------------- making stores


def _saves(run_id: str, count: int, first: int = 1, text: int = 40) -> Iterator[State]:
    """-> States of a run, step by step."""
    log: list[Any] = [f"{run_id} {step}" for step in range(1, first)]
    for step in range(first, first + count):
        log.append(f"{run_id} {step}")
        data = {"n": step, "log": list(log), "text": f"{run_id} {step} " * text, "pair": (step, {step: b"\0\xff"})}
        yield State(
            data, run_id=run_id, step=step, checkpoint_node=f"node{step % 3}", timestamp=_TIME + step, graph="g"
        )


def _begin(store: CheckpointStore) -> Iterator[None]:
    """Runs of every policy, one of them failed, one rolled back, one forked; stops after each commit."""
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
    """More of all of them, and a new run; stops after each commit."""
    store.retain("full", Policy("full"))
    for states in zip(
        _saves("full", 4, 5), _saves("latest", 4, 7), _saves("window", 4, 7), _saves("new", 4), strict=True
    ):
        for state in states:
            store.save(state)
            yield
    store.save(attrs.evolve(store.load("new"), status="completed"))
    yield


def _source(part: str, folder: Path) -> Source:
    """-> a store with all that can be damaged in the part."""
    with open_store(folder) as store:
        for _ in _begin(store):
            pass
        runs = {*store.list(), "new", "unknown"}
        ways = [_asked(store, runs)]
        if part == "database":
            ways += [_asked(store, runs) for _ in _go_on(store)]
    if part == "database":
        return Source(_content(folder), DATABASE, ways)
    with open_store(folder) as store:
        ways += [_asked(store, runs) for _ in _go_on(store)]
        files = _content(folder)
    log = f"{DATABASE}-wal"
    return Source({**files, log: frames(files[log])}, log, ways)


def _content(folder: Path) -> dict[str, bytes]:
    """Return the files of a store without the shared memory, which the first connection creates again."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


def frames(log: bytes) -> bytes:
    """-> a log without what follows its last commit: stategraph grows it, and damage there is none."""
    if not log:  # it was cut off when something was deleted
        return log
    page, salt, at = struct.unpack(">I", log[8:12])[0], log[16:24], 32
    while log[at + 8 : at + 16] == salt:
        at += 24 + page
    return log[:at]


# --------------------------------------------------------------------------- asking


def _asked(store: CheckpointStore, runs: set[str]) -> Seen:
    """-> all answers of a store."""
    questions: dict[Question, Callable[[], Any]] = {("runs",): store.runs, ("list",): store.list}
    for run in sorted(runs):
        questions["history", run] = partial(store.history, run)
        questions["load", run] = partial(store.load, run)
        for step in range(12):
            questions["load", run, step] = partial(store.load, run, step)
    return {question: _answer(ask) for question, ask in questions.items()}


def _answer(ask: Callable[[], Any]) -> Any:
    """-> what is answered; any error that should not come is an answer that was never given before."""
    try:
        return ask()
    except CheckpointNotFoundError:
        return _NOT_FOUND
    except CheckpointCorruptError:
        return _REFUSED
    except FormatError:
        return _REFUSED_FORMAT
    except Exception as error:  # noqa: BLE001 - which errors come is what is asked
        return error


def _is_refused(answer: Any) -> bool:
    return isinstance(answer, str) and answer != _NOT_FOUND


def _is_right(answer: Any, expected: Any) -> bool:
    if isinstance(answer, State) and isinstance(expected, State):
        return is_same_state(answer, expected)
    return bool(answer == expected)


# --------------------------------------------------------------------------- damaging


def _damaged(content: bytes, randomness: random.Random) -> tuple[str, bytes]:
    """-> the kind of the damage and what it leaves."""
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
    """Ask a damaged store all -> what is wrong with the answers."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, content in source.files.items():
        (folder / file).write_bytes(damaged if file == source.target else content)
    runs = {question[1] for question in source.ways[0] if len(question) > 1}
    store = _answer(partial(open_store, folder))
    if isinstance(store, CheckpointStore):
        with store:
            seen = _asked(store, runs)
        end, wrong = _judged(seen, source.ways, is_log=source.target.endswith("-wal"))
    else:
        end = f"not opened: {store}" if _is_refused(store) else "WRONG"
        wrong = [] if _is_refused(store) else [f"opening raised {type(store).__name__}: {store}"]
    report.found[end] += 1
    return wrong


def _judged(seen: Seen, ways: list[Seen], is_log: bool) -> tuple[str, list[str]]:
    """-> how it ended, and what is wrong with the answers."""
    told = {question: answer for question, answer in seen.items() if not _is_refused(answer)}
    for way in reversed(ways if is_log else ways[-1:]):
        if all(_is_right(answer, way[question]) for question, answer in told.items()):
            if way is not ways[-1]:
                return "as after an earlier commit", []
            return "all right" if len(told) == len(seen) else "partly refused, else right", []
    wrong = [question for question, answer in told.items() if is_log or not _is_less(question, answer, ways)]
    if not wrong:
        return _LESS, []
    if not is_log and all(_is_summary_of_saved(question, told[question], ways) for question in wrong):
        return _SUMMARY, []
    return "WRONG", [
        f"{' '.join(map(str, question))}: {told[question]!r:.300} instead of {ways[-1][question]!r:.300}"
        for question in sorted(wrong, key=str)
        if not _is_right(told[question], ways[-1][question])
    ]


def _is_less(question: Question, answer: Any, ways: list[Seen]) -> bool:
    """Whether an answer leaves out what damage has made unreachable, and has nothing that was not saved."""
    if answer == _NOT_FOUND or any(_is_right(answer, way[question]) for way in ways):
        return True
    items = [item for way in ways if isinstance(way[question], list) for item in way[question]]
    return isinstance(answer, list) and all(item in items for item in answer)


def _is_summary_of_saved(question: Question, answer: Any, ways: list[Seen]) -> bool:
    """Whether an answer consists of summaries, and each tells of a step that was saved."""
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
