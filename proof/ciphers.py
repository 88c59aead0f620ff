"""An encrypted store that was changed without its key, and whose checksums were made right, is believed nothing.

A case changes one record of a store that is encrypted and not signed: it flips, cuts or extends its ciphertext; puts
another in its place, of the same run, of another one, of an earlier life of the run, of an earlier moment, of another
store with the same key, or of another kind of record; encrypts it with another key of the same or of another name; puts
a plain record there; or changes a column beside it. Then it makes the checksums of the run right, which takes no key,
and reads the run through every door. Each answer is as before, or an error of stategraph. Only a list of runs may show
an earlier record of the same life of a run, whose checkpoints are refused then; `verify` with the heads notices.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from proof.report import Report
from proof.workers import WORKERS, determine, limited, tell, work_out
from stategraph._values.entries import Entry
from stategraph._values.progress import Pause
from stategraph._values.provenance import ErrorInfo, RunStatus
from stategraph.errors import StateGraphError
from stategraph.state import State, evolve
from stategraph.stores import Policy, SqliteStore
from stategraph.stores._rows.cipher import Cipher
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, EntryRecord, RunRecord, WriteBatch
from stategraph.stores._rows.seals import Sealer
from stategraph.testing import is_same

CASES = 100_000
"""Changes at share 1.0."""

_KEYS = {"one": b"1" * 32}
_RUNS = ("full", "waits", "failed", "again", "fork")

Record: TypeAlias = CheckpointRecord | EntryRecord | RunRecord


@attrs.define
class Run:
    """The records of a run."""

    head: RunRecord
    rows: list[CheckpointRecord]
    entries: list[EntryRecord]

    def records(self) -> list[Record]:
        """Return all of them."""
        return [self.head, *self.rows, *self.entries]


def _opened(folder: Path, **options: Any) -> SqliteStore:
    return SqliteStore(folder / "runs.db", encrypt_with=_KEYS, encrypt_labels=True, **options)


def _read(store: SqliteStore) -> dict[str, Run]:
    """Return the runs of a store as anyone reads them."""
    found = {}
    for run_id in _RUNS:
        table = store._log.table
        head = table.run(run_id)
        if head is not None:
            rows = [table.chain(run_id, row.sequence)[-1] for row in table.index(run_id)]
            found[run_id] = Run(head, rows, table.entries(run_id, 0, MAX_STEP))
    return found


def _built(folder: Path, salt: str) -> list[dict[str, Run]]:
    """Make a store; return its records after each write, the newest last."""
    folder.mkdir()
    moments = []
    pause = Pause("look", "ask", {"shown": salt}, "answer", State().timestamp, None, "0a1b")
    with _opened(folder) as store:

        def saved(run_id: str, *steps: int, **about: Any) -> None:
            for step in steps:
                data = {"n": step, "salt": f"{salt} {run_id}", "log": [salt] * step}
                store.save(
                    State(data, run_id=run_id, step=step, checkpoint_node=f"node-{step}", graph="graph", **about)
                )
                moments.append(_read(store))

        store.retain("full", Policy("full"))
        saved("full", 1, 2, 3, 4)
        saved("again", 1, 2)
        store.append("again", [Entry("effect", f"{salt} before", step=3, place="pay", name="card")])
        moments.append(_read(store))
        store.delete("again")
        saved("again", 1, 2)
        store.amend(evolve(store.load("again").set("n", salt)))
        store.append("again", [Entry("effect", salt, step=3, place="pay", name="card")])
        saved("failed", 1, status="failed", error=ErrorInfo("E", salt, "x"), labels={"a": salt})
        saved("waits", 1, status="paused", pause=pause, labels={"a": salt})
        for number in range(3):
            store.append("waits", [Entry("message", {"n": number, "salt": salt}, by=salt)])
        store.fork("full", "fork", 3)
        moments.append(_read(store))
    return moments


# --------------------------------------------------------------------------- changes


@attrs.frozen
class Thief:
    """Someone who reads and writes the store, and has no key.

    Attributes:
        now: The records of the store.
        others: The records of all earlier moments, and of another store.
        plain: Makes right checksums.
        randomness: What it does.
    """

    now: dict[str, Run]
    others: Sequence[dict[str, Run]]
    plain: Sealer
    randomness: random.Random

    def any_record(self) -> Record:
        """Return a record of any place and moment."""
        runs = self.randomness.choice([self.now, self.now, *self.others])
        return self.randomness.choice(self.randomness.choice([*runs.values()]).records())

    def any_like(self, record: Record) -> Record:
        """Return another record of its kind, and half of the time of its place."""
        records = [each for runs in (self.now, *self.others) for run in runs.values() for each in run.records()]
        found = [each for each in records if type(each) is type(record) and each != record]
        near = [each for each in found if each[:2] == record[:2]]
        return self.randomness.choice(near if near and self.randomness.random() < 0.5 else found)


def _ciphertext(record: Record) -> bytes | str:
    """Return what is encrypted in a record; of a row, its payload or what a history shows."""
    if isinstance(record, RunRecord):
        return record.pause or ""
    return record.payload


def _with(record: Any, kept: bytes | str) -> Any:
    if isinstance(record, RunRecord):
        return record._replace(pause=kept if isinstance(kept, str) else kept.hex())
    return record._replace(payload=kept if isinstance(kept, bytes) else kept.encode())


def flip(thief: Thief, record: Record) -> Record:
    """Change one byte."""
    kept = _ciphertext(record)
    at, other = thief.randomness.randrange(len(kept)), thief.randomness.randrange(1, 256)
    if isinstance(kept, str):
        return _with(record, f"{kept[:at]}{thief.randomness.choice('ABab01+/=! é')}{kept[at + 1 :]}")  # type: ignore[no-any-return]
    return _with(record, kept[:at] + bytes([kept[at] ^ other]) + kept[at + 1 :])  # type: ignore[no-any-return]


def cut(thief: Thief, record: Record) -> Record:
    """Keep a part."""
    kept = _ciphertext(record)
    begin, end = sorted(thief.randomness.choices(range(len(kept)), k=2))
    return _with(record, thief.randomness.choice([kept[:end], kept[begin:end], kept[begin:], kept[:0]]))  # type: ignore[no-any-return]


def extend(thief: Thief, record: Record) -> Record:
    """Put more after it, or twice the same."""
    kept = _ciphertext(record)
    more: Any = kept[: thief.randomness.randrange(len(kept) + 1)] or kept
    return _with(record, kept + more)  # type: ignore[no-any-return]


def swap(thief: Thief, record: Record) -> Record:
    """Put the ciphertext of another record in its place."""
    return _with(record, _ciphertext(thief.any_record()))  # type: ignore[no-any-return]


def swap_alike(thief: Thief, record: Record) -> Record:
    """Put the ciphertext of a record of the same kind in its place: of another store, life or moment."""
    return _with(record, _ciphertext(thief.any_like(record)))  # type: ignore[no-any-return]


def replay(thief: Thief, record: Record) -> Record:
    """Put a whole record of another moment, life, run or store in its place."""
    other: Any = thief.any_like(record)
    place = ("sequence", "base") if isinstance(record, CheckpointRecord) else ("run_id", "number")
    if isinstance(record, EntryRecord):
        place = ("step", "seq")
    return other._replace(**{name: getattr(record, name) for name in place})  # type: ignore[no-any-return]


def move(thief: Thief, record: Record) -> Record:
    """Change a column beside the ciphertext."""
    changes: dict[str, Any] = {
        "time_ns": 5,
        "node": "other",
        "status": thief.randomness.choice([*RunStatus]),
        "revision": 1,
        "by": "someone",
        "graph": "other",
        "created_ns": 5,
        "labels": (("a", "b"),),
        "error": ErrorInfo("E", "planted", ""),
        "attempts": 7,
        "effects": '["card"]',
        "pause": None,
        "kind": "message",
        "name": "other",
        "place": "other",
        "made_of": "other",
        "at_ns": 5,
        "policy": Policy("windowed", 2),
    }
    if not isinstance(record, EntryRecord):
        del changes["kind"]
    names = [name for name in changes if name in record._fields and getattr(record, name) != changes[name]]
    name = thief.randomness.choice(names)
    return record._replace(**{name: changes[name]})


def other_key(thief: Thief, record: Record) -> Record:
    """Encrypt something with a key of the thief."""
    name = thief.randomness.choice(["one", "two", ""])
    key: Any = {name: thief.randomness.randbytes(32)} if name else thief.randomness.randbytes(32)
    return _made(thief, record, Cipher(key, True))


def plant(thief: Thief, record: Record) -> Record:
    """Put a plain record there."""
    return _made(thief, record, None)


def _made(thief: Thief, record: Record, cipher: Cipher | None) -> Record:
    sealer = Sealer(cipher=cipher)
    sealer.identify(thief.plain._store_id)
    if isinstance(record, RunRecord):
        run = record._replace(pause=None, labels=(("a", "planted"),), error=None)
        return run if cipher is None else sealer.sealed_run(run)
    payload = thief.randomness.choice(
        [b"\x81\xa5value\xa7planted", b"\x91\x81\xa5value\xa7planted", b"\x94\x81\xa1n\x63\xc0\x90\xc0"]
    )
    made: Any = record._replace(payload=payload, encoding="msgpack")
    owner = next(run for run in thief.now.values() if any(each is record for each in run.records())).head
    if isinstance(record, EntryRecord):
        return made if cipher is None else sealer.sealed_entry(owner.run_id, made, owner.incarnation)
    made = made._replace(pause=None, base=made.sequence)
    return made if cipher is None else sealer.seal(owner.run_id, made, b"", owner.incarnation)


CHANGES: list[Callable[[Thief, Any], Record]] = [flip, cut, extend, swap, swap_alike, replay, move, other_key, plant]


def _resealed(thief: Thief, run: Run, old: Record, new: Any) -> Run:
    """Return a run with one record changed and all checksums right."""
    run_id, incarnation = run.head.run_id, run.head.incarnation
    rows = [new if row is old else row for row in run.rows]
    entries = [new if entry is old else entry for entry in run.entries]
    head: Any = new if run.head is old else run.head
    sealed: list[CheckpointRecord] = []
    for row in rows:
        before = b"" if row.base == row.sequence or not sealed else sealed[-1].seal
        sealed.append(thief.plain.seal(run_id, row, before, incarnation))
    if old is not run.head and thief.randomness.random() < 0.5:
        head = head._replace(tip=sealed[-1].seal)  # a guess: the record of the run proves its tip
    kept = [thief.plain.sealed_entry(run_id, entry, incarnation) for entry in entries]
    return Run(thief.plain.sealed_run(head), sealed, kept)


# --------------------------------------------------------------------------- the judge


def _answers(store: SqliteStore, run_id: str, steps: Sequence[int], *, is_forked: bool = True) -> dict[str, Any]:
    """Return what a store says of a run."""
    asked: dict[str, Callable[[], Any]] = {
        "newest": lambda: store.load(run_id),
        "history": lambda: store.history(run_id),
        "entries": lambda: store.entries(run_id),
        "runs": lambda: [run for run in store.runs() if run.run_id == run_id] or _REFUSED,
        **{f"step {step}": lambda step=step: store.load(run_id, step) for step in steps},  # type: ignore[misc]
    }
    if is_forked:
        asked["fork"] = lambda: _forked(store, run_id)
    return {question: _answer(ask) for question, ask in asked.items()}


_REFUSED = "refused"


def _forked(store: SqliteStore, run_id: str) -> Any:
    try:
        return dict(store.fork(run_id, "copy"))
    finally:
        store.delete("copy")


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except StateGraphError:
        return _REFUSED
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error


def _work(count: int, seed: str) -> Report:
    report, randomness = Report("ciphers"), random.Random(seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory(prefix="stategraph-proof-") as name:
        moments, theirs = _built(Path(name) / "ours", "ours"), _built(Path(name) / "theirs", "theirs")
        with _opened(Path(name) / "ours") as store:
            plain = Sealer()
            plain.identify(store._log.sealer._store_id)
            now = _read(store)
            steps = {run_id: sorted({row.step for row in run.rows}) for run_id, run in now.items()}
            truth = {run_id: _answers(store, run_id, steps[run_id]) for run_id in now}
            if any(_REFUSED in map(str, answers.values()) for answers in truth.values()):
                report.failures.append(f"the unchanged store is refused: {truth}")
            thief = Thief(now, [*moments, theirs[-1]], plain, randomness)
            for number in range(count):
                with limited():
                    _try(thief, store, truth, steps, f"{seed}-{number}", report)
            after = {run_id: _answers(store, run_id, steps[run_id]) for run_id in now}
            if not all(is_same(after[run_id], truth[run_id]) for run_id in now):
                report.failures.append("the store is not as it was at the end")
    return report


def _try(
    thief: Thief, store: SqliteStore, truth: dict[str, Any], steps: dict[str, Any], case: str, report: Report
) -> None:
    """Change a record, read its run, and put the record back."""
    change, run_id = thief.randomness.choice(CHANGES), thief.randomness.choice([*thief.now])
    run = thief.now[run_id]
    old = thief.randomness.choice([run.head, *(run.entries or run.rows), thief.randomness.choice(run.rows)])
    new = change(thief, old)
    if new == old:
        return
    changed, table = _resealed(thief, run, old, new), store._log.table
    if table.commit([_batch(changed, run)]) != [True]:
        report.found["refused by SQLite"] += 1
        return
    report.tried[f"{change.__name__.replace('_', ' ')} of a {type(old).__name__[:-6].lower()}"] += 1
    found = _answers(store, run_id, steps[run_id], is_forked=thief.randomness.random() < 0.05)
    believed = {
        question: answer
        for question, answer in found.items()
        if answer is not _REFUSED and not is_same(answer, truth[run_id][question])
    }
    if change is replay and believed.keys() == {"runs"}:
        report.found["earlier records in a list"] += 1
        heads = {run_id: _head(run.head) for run_id, run in thief.now.items()}
        if run_id in {damage.run_id for damage in store.verify(heads).damaged}:
            del believed["runs"]
    is_seen = any(answer is _REFUSED for answer in found.values())
    report.found["BELIEVED" if believed else "refused" if is_seen else "as before"] += 1
    if believed or not is_seen:
        report.failures.append(f"case {case}, {change.__name__} of {old!r:.200}: {believed!r:.300}")
    if table.commit([_batch(run, changed)]) != [True]:
        raise RuntimeError(f"case {case}: it cannot be put back")


def _head(run: RunRecord) -> str:
    return f"{run.incarnation.hex()}-{run.version:016x}-{run.seal.hex()}"


def _batch(new: Run, old: Run) -> WriteBatch:
    head = new.head._replace(run_id=old.head.run_id, number=old.head.number)
    return WriteBatch(head, old.head, tuple(new.rows), entries=tuple(new.entries), ownership=None)


def prove(share: float, seed: int) -> list[Report]:
    """Change an encrypted store `CASES` times at share 1.0."""
    report = Report("no ciphertext that was changed, moved or made without the key is believed")
    count = max(50, round(CASES * share / WORKERS))
    work_out("ciphers", [(count, f"{seed}-{worker}") for worker in range(WORKERS)], report)
    return [report]


if __name__ == "__main__":
    determine(sys.argv[2])
    tell(_work(int(sys.argv[1]), sys.argv[2]))
