"""KeptChunks: the chunks of a node on their way to the journal of the outermost run, for readers in any process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs

from stategraph._engine.journal import save_input, storing
from stategraph._protocol import Parts, StoreFailed, Task
from stategraph._values.entries import Entry
from stategraph._values.progress import Partial, Place
from stategraph.errors import EntriesNotKeptError


@attrs.define(eq=False)
class ChunkLog:
    """The chunks of a step of the outermost run.

    Attributes:
        run: The run.
        step: The number that the step will have.
        attempts: The number of the newest attempt at each place that has emitted or will.
    """

    run: Any
    step: int
    attempts: dict[str, int]

    def begin(self, place: Place) -> KeptChunks:
        """Begin the next attempt at a place."""
        at = json.dumps(place, ensure_ascii=False, separators=(",", ":"))
        self.attempts[at] = self.attempts.get(at, 0) + 1
        return KeptChunks(self, "/".join(part for level in place for part in level[:2] if part), at, self.attempts[at])


@attrs.define(eq=False)
class KeptChunks:
    """The chunks of an attempt at a step or a part. Each is kept soon, and before the next State is saved."""

    _log: ChunkLog
    _place: str
    _at: str
    _attempt: int
    _number: int = 0

    def keep(self, chunk: Any) -> None:
        """Keep a chunk. Threads of the node may call this.

        Raises:
            StoreFailed: The store could not keep this one or an earlier one.
        """
        run = self._log.run
        with run.input_lock, storing(run):
            self._number += 1
            mark = f"{self._attempt}.{self._number}.{self._at}"
            run.session.keep_chunk(run.state, Entry("chunk", chunk, self._log.step, self._place, made_of=mark))


def log_of(step: Any) -> Task[ChunkLog | None]:
    """Return the log of chunks for a step of any depth, which it begins once its input is saved; None if none is kept.

    Raises:
        StoreFailed: The store keeps no entries, or failed.
    """
    run = step.run.outermost_run
    if not step.run.plan.saves:
        return None
    if not run.session.store.keeps_entries:
        raise StoreFailed from EntriesNotKeptError(run.state.run_id, str(run.session.store), "append")
    yield (Parts, save_input, run)
    at = run.state.step + 1
    if run.chunks is None or run.chunks.step != at:
        found = yield from step.stored((Parts, run.session.entries, (run.state.run_id, at, ("chunk",))))
        with run.input_lock:
            if run.chunks is None or run.chunks.step != at:  # a part at the same time was not faster
                run.chunks = ChunkLog(run, at, _newest_attempts(found))
    log: ChunkLog = run.chunks
    return log


def _newest_attempts(entries: Iterable[Entry]) -> dict[str, int]:
    attempts: dict[str, int] = {}
    for entry in entries:
        attempt, _, at = entry.made_of.split(".", 2)
        attempts[at] = max(attempts.get(at, 0), int(attempt))
    return attempts


def emitted(entry: Entry) -> Partial:
    """Return the chunk of an entry as a stream shows it."""
    attempt, number, at = entry.made_of.split(".", 2)
    place = json.loads(at)
    return Partial(place[-1][0], [entry.value], before=int(number) - 1).at(place, int(attempt))
