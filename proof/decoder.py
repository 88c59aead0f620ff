"""Mutated bytes, a million of them, to everything that decodes: only errors of stategraph come out.

Checksums are made to fit where there are any: they find damage, and the decoders behind them must bear more.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias

from proof.report import Report
from proof.workers import WORKERS, determine, limited, tell, work_out
from stategraph._values.provenance import ErrorInfo, Kind, ParentStep
from stategraph.errors import CheckpointCorruptError, FormatError
from stategraph.state import State, evolve
from stategraph.stores._codec.type_codecs import DecodeError
from stategraph.stores._rows.encoder import CheckpointEncoder
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, pack_row, pack_run, unpack_row, unpack_run
from stategraph.stores._rows.seals import Sealer
from stategraph.stores.base import Policy
from stategraph.stores.toolkit import state_from_bytes, state_to_bytes
from stategraph.testing.corpus import KEPT_VALUES

INPUTS = 1_000_000
"""At share 1.0."""

_OURS = (DecodeError, CheckpointCorruptError, FormatError)
_RUN = "run"
_LONGEST = 2_000  # bytes of what is mutated: short inputs have more ways to go wrong in the same time
_TOGETHER = 500  # inputs between two looks at the clock that ends a hanging process

Target: TypeAlias = Callable[[bytes], object]


def _states() -> Iterator[State]:
    """Yield States that hold every kind of value, and one with all that is kept besides."""
    for value in KEPT_VALUES.values():
        yield State({"value": value, "list": [value]}, run_id=_RUN, step=3, checkpoint_node="node")
    yield evolve(
        State({"n": 1}, run_id=_RUN, step=7, checkpoint_node="node", graph="graph", parent=ParentStep("other", 2)),
        error=ErrorInfo("ValueError", "no", "node"),
        generation=4,
    )


def _sealed(encoding: str) -> Target:
    """Return what decodes a whole State, of a payload under a checksum that fits."""
    about = (3, 3, 3, 0, Kind.STEP, "node", 1, State().status, None, "someone", 7, 2, "here:1", 1, encoding)

    def decode(payload: bytes) -> object:
        row = Sealer().seal(_RUN, CheckpointRecord(*about, payload), b"")
        return state_from_bytes(_RUN, pack_row(row))

    return decode


def _resealed(kept: bytes) -> object:
    """Decode a whole State, of mutated bytes that are sealed if they hold a row."""
    row = unpack_row(_RUN, kept)
    with suppress(TypeError, ValueError):  # what cannot be sealed cannot be in a store with a checksum that fits
        row = Sealer().seal(_RUN, row, b"")
    return state_from_bytes(_RUN, pack_row(row))


def _targets() -> dict[str, tuple[Target, list[bytes]]]:
    """Return everything that decodes, with inputs that it takes."""
    states = list(_states())
    kept = [state_to_bytes(state) for state in states]
    run = RunRecord(
        *(_RUN, 1, 5, 4, 3, 1, Kind.PAUSE, "node", 1, State().status, ErrorInfo("E", "m", "n", "at 1")),
        *("someone", "g", ParentStep("other", 2), Policy("windowed", 3, 1.5), 1, (("customer", "anna"),)),
    )
    targets: dict[str, tuple[Target, list[bytes]]] = {
        "packed rows": (lambda data: unpack_row(_RUN, data), kept),
        "packed runs": (lambda data: unpack_run(_RUN, data), [pack_run(run)]),
        "States": (lambda data: state_from_bytes(_RUN, data), kept),
        "States, sealed again": (_resealed, kept),
    }
    for encoding in ("msgpack", "json"):
        encoder = CheckpointEncoder(Sealer(), encoding)
        payloads = [encoder.encode(state)[0].payload for state in states]
        targets[f"{encoding} payloads"] = _sealed(encoding), payloads
        targets[f"{encoding} payloads with edits"] = _edited(encoding)
        targets |= _compressed(encoding, payloads)
    return {name: (target, [one for one in taken if len(one) <= _LONGEST]) for name, (target, taken) in targets.items()}


def _edited(encoding: str) -> tuple[Target, list[bytes]]:
    """Return what restores a State of a row with edits inside a value, under a checksum that fits, and its payload."""
    value = {"list": [1, {"a": ["x" * 100, 2]}, 3], "dict": {"b": "y" * 100}}
    newer = {"list": [{"a": ["x" * 100, 5, 6]}, 3, None], "dict": {"c": 1.5, "b": "y" * 100}}
    encoder = CheckpointEncoder(Sealer(), encoding)
    first, base = encoder.encode(State({"value": value}, run_id=_RUN))
    second, _ = encoder.encode(State({"value": newer}, run_id=_RUN, step=1), place=(1, 0), previous=base)

    def decode(payload: bytes) -> object:
        row = Sealer().seal(_RUN, second._replace(payload=payload), first.seal)
        return encoder.state(_RUN, [first, row])

    return decode, [second.payload]


def _compressed(encoding: str, payloads: list[bytes]) -> dict[str, tuple[Target, list[bytes]]]:
    try:
        from zstandard import ZstdCompressor
    except ImportError:
        return {}
    decode = _sealed(f"{encoding}+zstd")
    return {
        f"{encoding}, compressed": (decode, list(map(ZstdCompressor().compress, payloads))),
        f"{encoding}, mutated and compressed": (lambda data: decode(ZstdCompressor().compress(data)), payloads),
    }


_TOKENS = (
    *(b"NaN", b"1e999", b"-0", b"9" * 5_000, b"1E+999999999", b"\\ud800", b'"$type"', b'"value"', b"null"),
    *(b"\xff", b"\0", b"\xc1", b"\xc0", b"\xcb\x7f\xf8", b"\x28\xb5\x2f\xfd", struct.pack(">Q", 2**64 - 1)),
    *(head + b"\xff\xff\xff\xff" for head in (b"\xc6", b"\xc9", b"\xdb", b"\xdd", b"\xdf")),
    *(nest * 500 for nest in (b"\x91", b"\x81\xa1a", b"[", b'{"a":', b'{"$type":"tuple","value":[')),
)


def _mutated(taken: list[bytes], randomness: random.Random) -> tuple[str, bytes]:
    """Return an input with one to three mutations, and the name of the first."""
    data, names = bytearray(randomness.choice(taken)), []
    for _ in range(randomness.choice([1, 1, 2, 3])):
        at, other = randomness.randrange(len(data)), randomness.choice(taken)
        names.append(name := randomness.choice(["flipped", "cut", "spliced", "with what does not belong there"]))
        if name == "flipped":
            data[at] = randomness.randrange(256)
        elif name == "cut":
            del data[at : at + randomness.choice([1, 2, 8, len(data)])]
        elif name == "spliced":
            data[at : at + randomness.choice([0, 1, 9, len(data)])] = other[randomness.randrange(len(other)) :]
        else:
            data[at:at] = randomness.choice(_TOKENS)
        data = data or bytearray(b"\0")
    return names[0], bytes(data)


def _try_some(targets: dict[str, tuple[Target, list[bytes]]], randomness: random.Random, report: Report) -> None:
    for _ in range(_TOGETHER):
        name = randomness.choice(list(targets))
        decode, taken = targets[name]
        mutation, data = _mutated(taken, randomness)
        report.tried[mutation] += 1
        try:
            decode(data)
        except _OURS as error:
            report.found[type(error).__name__] += 1
        except Exception as error:  # noqa: BLE001 - whichever it is, the proof fails
            report.failures.append(f"{name}: raised {error!r:.150}, for {len(data)} bytes {data[:150]!r}")
        else:
            report.found["decoded"] += 1


def _work(rounds: int, seed: str) -> Report:
    report, targets, randomness = Report("decoder"), _targets(), random.Random(seed)  # noqa: S311 - no secret
    for _ in range(rounds):
        with limited():
            _try_some(targets, randomness, report)
    return report


def prove(share: float, seed: int) -> list[Report]:
    """Try `INPUTS` inputs at share 1.0."""
    report = Report("only errors of stategraph come of the bytes that it decodes")
    rounds = max(1, round(INPUTS * share / WORKERS / _TOGETHER))
    work_out("decoder", [(rounds, f"{seed}-{worker}") for worker in range(WORKERS)], report)
    return [report]


if __name__ == "__main__":
    determine(sys.argv[2])
    tell(_work(int(sys.argv[1]), sys.argv[2]))
