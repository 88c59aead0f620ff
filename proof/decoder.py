"""Mutated bytes, a million of them, to everything that decodes: only errors of stategraph come out, in little time and
memory.

Checksums are made to fit where there are any: they find damage, and what stands behind them must bear more.
"""

from __future__ import annotations

import math
import os
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from proof.report import Report
from proof.workers import WORKERS, determine, limited, tell, work_out
from stategraph._values.provenance import ErrorInfo, Kind, ParentStep
from stategraph.errors import CheckpointCorruptError, ConfigError, FormatError
from stategraph.state import State, evolve
from stategraph.stores._codec.type_codecs import DecodeError
from stategraph.stores._rows.columns import pack_row, pack_run, unpack_row, unpack_run
from stategraph.stores._rows.encoder import CheckpointEncoder, PayloadCodec
from stategraph.stores._rows.integrity import Sealer
from stategraph.stores._rows.records import CheckpointRecord, RunRecord
from stategraph.stores.base import Policy
from stategraph.stores.toolkit import state_from_bytes, state_to_bytes
from stategraph.testing.corpus import KEPT_VALUES

INPUTS = 1_000_000
"""At share 1.0."""

MEMORY = 1 << 30
"""Bytes that a process may take besides what it has when it begins: more is a MemoryError, and that is not ours."""

SLOWEST = 20.0
"""Seconds of processor time that an input of some kilobytes may take: far more than any takes, and no hang."""

_OURS = (DecodeError, CheckpointCorruptError, FormatError)
_RUN = "run"
_LONGEST = 2_000  # bytes of what is mutated: short inputs have more ways to go wrong in the same time
_TOGETHER = 500  # inputs between two looks at the clock that ends a hanging process

Target: TypeAlias = Callable[[bytes], object]


# --------------------------------------------------------------------------- what decodes


def _states() -> Iterator[State]:
    """-> States that hold every kind of value, and one with all that is kept besides."""
    for value in KEPT_VALUES.values():
        yield State({"value": value, "list": [value]}, run_id=_RUN, step=3, checkpoint_node="node")
    yield evolve(
        State({"n": 1}, run_id=_RUN, step=7, checkpoint_node="node", graph="graph", parent=ParentStep("other", 2)),
        error=ErrorInfo("ValueError", "no", "node"),
        generation=4,
    )


def _row(payload: bytes, encoding: str) -> CheckpointRecord:
    state = State(run_id=_RUN)
    about = (3, 3, 3, 0, Kind.STEP, "node", 1, state.status, None, "somebody", 7, 2, "here:1")
    return CheckpointRecord(*about, 1, encoding, payload)


def _body(encoding: str) -> Target:
    payloads = PayloadCodec()
    return lambda payload: payloads.decode(_RUN, [_row(payload, encoding)])


def _compressed(name: str) -> Target:
    """The bytes are mutated, and compressed then: so what is decompressed is garbage."""
    import zstandard

    decode, compressor = _body(f"{name}+zstd"), zstandard.ZstdCompressor(level=1)
    return lambda payload: decode(compressor.compress(payload))


def _sealed(encoding: str) -> Target:
    """A whole State, of a payload under a checksum that fits."""
    sealer = Sealer()
    return lambda payload: state_from_bytes(_RUN, pack_row(sealer.seal(_RUN, _row(payload, encoding), b""), None))


def _resealed(kept: bytes) -> object:
    """A whole State, of mutated bytes that are sealed if they hold a row."""
    row, _ = unpack_row(_RUN, kept)  # the step before it is none of a State, and may be anything here
    try:
        sealed = Sealer().seal(_RUN, row, b"")
    except (TypeError, ValueError):  # what cannot be sealed cannot be in a store with a checksum that fits
        sealed = row
    return state_from_bytes(_RUN, pack_row(sealed, None))


def _targets() -> dict[str, tuple[Target, list[bytes]]]:
    """-> everything that decodes, with what it takes."""
    payloads: dict[str, list[bytes]] = {}
    for encoding in ("msgpack", "json"):
        rows = [CheckpointEncoder(Sealer(), PayloadCodec(encoding)).snapshot(state)[0] for state in _states()]
        payloads[encoding] = [row.payload for row in rows]
    head = RunRecord(
        *(_RUN, 1, 5, 4, 3, 1, Kind.PAUSE, "node", 1, State().status, ErrorInfo("E", "m", "n", "at 1")),
        *("somebody", "g", None, Policy("windowed", 3, 1.5), 1, (("customer", "anna"),)),
    )
    heads = [pack_run(head._replace(parent=parent)) for parent in (None, ParentStep("other", 2))]
    kept = [state_to_bytes(state) for state in _states()]
    targets: dict[str, tuple[Target, list[bytes]]] = {
        "packed rows": (lambda data: unpack_row(_RUN, data), kept),
        "packed runs": (lambda data: unpack_run(_RUN, data), heads),
        "States": (lambda data: state_from_bytes(_RUN, data), kept),
        "States, sealed again": (_resealed, kept),
    }
    for encoding, corpus in payloads.items():
        targets[f"{encoding} payloads"] = _body(encoding), corpus
        targets[f"States of {encoding} payloads"] = _sealed(encoding), corpus
        targets |= _zstd_targets(encoding, corpus)
    return {
        name: (target, [item for item in corpus if len(item) <= _LONGEST]) for name, (target, corpus) in targets.items()
    }


def _zstd_targets(encoding: str, corpus: list[bytes]) -> dict[str, tuple[Target, list[bytes]]]:
    try:
        import zstandard
    except ImportError:
        return {}
    frames = [zstandard.ZstdCompressor(level=1).compress(payload) for payload in corpus]
    return {
        f"{encoding} payloads, compressed": (_body(f"{encoding}+zstd"), frames),
        f"{encoding} payloads, mutated and compressed": (_compressed(encoding), corpus),
    }


# --------------------------------------------------------------------------- mutations

_NESTS = (b"\x91", b"\x81\xa1a", b"\x81\x91", b"\xc7\xff\x03", b"\xc9\x00\x00\xff\xff\x06\x91", b"[", b'{"a":', b"[{")
_NESTS_OF_TAGS = (b'{"$type":"tuple","value":[', b'{"$type":"dict","value":[[', b'{"$type":"object","value":[')
_LENGTHS = (b"\xc6", b"\xc9", b"\xdb", b"\xdd", b"\xdf", b"\xdc", b"\xde", b"\xc8")
_TOKENS = (
    *(
        b"NaN",
        b"1e999",
        b"-0",
        b"9" * 5_000,
        b"\\ud800",
        b'"$type"',
        b'"value"',
        b"null",
        b"\xff",
        b"\0",
        b"\xc1",
        b"\xc0",
    ),
    *(b"1E+999999999", b"\x28\xb5\x2f\xfd", struct.pack(">Q", 2**64 - 1), struct.pack(">q", -(2**63)), b"\xcb\x7f\xf8"),
)


def _flip(data: bytearray, other: bytes, randomness: random.Random) -> None:
    for _ in range(randomness.randint(1, 6)):
        data[randomness.randrange(len(data))] = randomness.randrange(256)


def _cut(data: bytearray, other: bytes, randomness: random.Random) -> None:
    at = randomness.randrange(len(data))
    del data[at : at + randomness.choice([1, 2, 8, len(data)])]


def _splice(data: bytearray, other: bytes, randomness: random.Random) -> None:
    at, start = randomness.randrange(len(data)), randomness.randrange(len(other))
    data[at : at + randomness.choice([0, 1, 9, len(data)])] = other[
        start : start + randomness.choice([1, 9, len(other)])
    ]


def _inflate(data: bytearray, other: bytes, randomness: random.Random) -> None:
    """A length of msgpack that is not there, or the length of a frame that is more than it holds."""
    at = randomness.randrange(len(data))
    if data.startswith(b"\x28\xb5\x2f\xfd") and randomness.random() < 0.5:
        data[4:9] = b"\xa0" + struct.pack("<I", randomness.choice([2**28, 2**28 + 1, 2**32 - 1, 2**22, 70_000]))
        return
    size = randomness.choice([2**32 - 1, 2**31, 2**24, 70_000, len(data)])
    data[at : at + randomness.choice([1, 5])] = randomness.choice(_LENGTHS) + struct.pack(">I", size)


def _nest(data: bytearray, other: bytes, randomness: random.Random) -> None:
    at = randomness.choice([0, 0, randomness.randrange(len(data))])
    times = min(int(math.exp(randomness.uniform(0, 8))), 3_000)
    data[at:at] = randomness.choice(_NESTS + _NESTS_OF_TAGS) * times


def _insert(data: bytearray, other: bytes, randomness: random.Random) -> None:
    at = randomness.randrange(len(data))
    data[at:at] = randomness.choice(_TOKENS)


_MUTATIONS = {
    "flipped": _flip,
    "cut": _cut,
    "spliced": _splice,
    "lengths inflated": _inflate,
    "nested": _nest,
    "with what does not belong there": _insert,
}
_WEIGHTS = (4, 2, 3, 2, 0.25, 2)  # what is nested deeply takes long


def _mutated(corpus: Sequence[bytes], randomness: random.Random) -> tuple[str, bytes]:
    """-> the first mutation by name, and an input that has it and perhaps others."""
    data = bytearray(randomness.choice(corpus))
    names = randomness.choices(list(_MUTATIONS), _WEIGHTS, k=randomness.choice([1, 1, 2, 3]))
    for name in names:
        _MUTATIONS[name](data, randomness.choice(corpus), randomness)
        data = data or bytearray(b"\0")
    return names[0], bytes(data)


def _bombs() -> Iterator[tuple[str, bytes]]:
    """-> inputs that take little room, and would take much time or memory: for which target, and itself."""
    for prefix in _NESTS:
        yield "msgpack payloads", prefix * 100_000
        yield "json payloads", prefix * 100_000
    for prefix in _NESTS_OF_TAGS:
        yield "States of json payloads", prefix * 100_000
    for length in _LENGTHS:
        yield "msgpack payloads", length + b"\xff" * 5 + b"\xc0" * 1_000
        yield "States of msgpack payloads", b"\x94" + length + b"\x7f\xff\xff\xff" + b"\x90" * 1_000
    for name, text in (("msgpack", b"\x90"), ("msgpack", b"\x80"), ("msgpack", b"\xc7\x00\x03"), ("json", b"[],")):
        for size in (1 << 20, (1 << 22) - 10, 1 << 24, 1 << 28, (1 << 28) + 1, 1 << 30):
            start = b"\xdd" + struct.pack(">I", size // len(text)) if name == "msgpack" else b"["
            yield f"{name} payloads, compressed", _frame(start, text, size)


def _frame(start: bytes, text: bytes, size: int) -> bytes:
    """-> a compressed payload of this size, made in pieces."""
    try:
        import zstandard
    except ImportError:
        return b""
    block, count = text * (3 << 16), size // (len(text) * (3 << 16))
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=len(start) + len(block) * count)
    parts = [compressor.compress(start), *(compressor.compress(block) for _ in range(count)), compressor.flush()]
    return b"".join(parts)


# --------------------------------------------------------------------------- trying


class _Trier:
    """Feeds inputs to what decodes, and takes notes: the input that is tried stands in a file, in case it kills."""

    def __init__(self, report: Report, note: int) -> None:
        self._report, self._note = report, note
        self._targets = _targets()
        self.names = list(self._targets)

    def corpus(self, name: str) -> list[bytes]:
        return self._targets[name][1]

    def try_one(self, name: str, data: bytes) -> str:
        """-> how it ended."""
        if name not in self._targets:
            return "not tried: no zstandard"
        os.pwrite(self._note, struct.pack("<I", len(data)) + f"{name:60}".encode() + data[:_LONGEST], 0)
        began = time.process_time()
        end = self._ended(name, data)
        took = time.process_time() - began
        self._report.found["ms at most"] = max(self._report.found["ms at most"], math.ceil(1_000 * took))
        if took > SLOWEST:
            self._fail(name, data, f"took {took:.1f} s")
        return end

    def _ended(self, name: str, data: bytes) -> str:
        try:
            self._targets[name][0](data)
        except ConfigError as error:
            self._fail(name, data, f"raised {error}")
            return "FOREIGN"
        except _OURS as error:
            return f"{type(error).__name__}"
        except BaseException as error:  # noqa: BLE001 - which errors come is what is asked
            self._fail(name, data, f"raised {type(error).__name__}: {str(error)[:150]}")
            return "FOREIGN"
        return "decoded"

    def _fail(self, name: str, data: bytes, what: str) -> None:
        if len(self._report.failures) < 100:
            self._report.failures.append(f"{name}: {what}, for {len(data)} bytes {data[:150]!r}")


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, most))


def _work(count: int, seed: str, has_bombs: bool) -> Report:
    report = Report("decoder")
    randomness = random.Random(seed)  # noqa: S311 - no secret
    with tempfile.TemporaryFile() as note:
        trier = _Trier(report, note.fileno())
        bombs = list(_bombs()) if has_bombs else []
        if sys.platform == "linux":
            _limit_memory()
        for name, data in bombs:
            with limited():
                report.tried["bombs"] += 1
                report.found[trier.try_one(name, data)] += 1
        for _ in range(math.ceil(count / _TOGETHER)):
            with limited():
                _try_some(trier, min(_TOGETHER, count), randomness, report)
    before = report.found["MB at most"]
    report.found["MB at most"] = max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    return report


def _try_some(trier: _Trier, count: int, randomness: random.Random, report: Report) -> None:
    for _ in range(count):
        name = randomness.choice(trier.names)
        mutation, data = _mutated(trier.corpus(name), randomness)
        report.tried[mutation] += 1
        report.found[trier.try_one(name, data)] += 1


def prove(share: float, seed: int) -> list[Report]:
    """Try `INPUTS` inputs at share 1.0, with all bombs at any."""
    report = Report("only errors of stategraph come of what it decodes, in bounded time and memory")
    count = max(_TOGETHER, round(INPUTS * share / WORKERS))
    work_out("decoder", [(count, f"{seed}-{worker}", int(not worker)) for worker in range(WORKERS)], report)
    return [report]


if __name__ == "__main__":
    determine(sys.argv[2])
    tell(_work(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"))
