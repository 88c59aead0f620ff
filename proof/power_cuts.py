"""Record a workload once, and build the disk that a power cut may leave at many moments of it.

Every save that was acknowledged before the cut must be there exactly, nothing else may appear, and the store must work.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from proof.faults import images
from proof.faults.client import Servers, under_shim
from proof.faults.images import Disk, Luck
from proof.faults.shim import Change
from proof.report import Report

IMAGES = 2_500
"""For each store, at share 1.0."""

_SCRIPT = "all"
_TITLE = "acknowledged saves survive a power cut"


def prove(share: float, seed: int) -> list[Report]:
    """Try `IMAGES` images at share 1.0."""
    return under_shim(_TITLE, lambda servers: _prove(servers, round(IMAGES * share) or 1, seed))


def _prove(servers: Servers, count: int, seed: int) -> Report:
    report = Report(_TITLE)
    source, recorded = servers.record(_SCRIPT, with_data=True)
    for request, answer in servers.ask_all(_requests(recorded, source, count, seed, report)):
        wrong = answer["wrong"]
        report.found["with nothing lost" if not wrong else "WRONG"] += 1
        image = f"seed {seed}, image {request['root'].name}"
        report.failures += [f"{image}: {problem.replace(str(request['root']) + '/', '')}" for problem in wrong[:3]]
        shutil.rmtree(request["root"])
    return report


def _requests(recorded: list[Change], source: Path, count: int, seed: int, report: Report) -> Iterator[dict[str, Any]]:
    """Yield requests to check images; each image is written before its request."""
    randomness = random.Random(seed)  # noqa: S311 - no secret
    # The first connection creates the shared memory again.
    disk = Disk([change for change in recorded if not change.path.endswith("-shm")])
    for number, at in enumerate(_moments(disk, count, randomness)):
        luck = list(Luck)[number % len(Luck)]
        disk.go_to(at)
        folders, files = disk.image(luck, randomness)
        root = source.with_name(f"{at}-{luck.name}-{number}")
        files = {name: content for name, content in files.items() if _is_kept(name, source)}
        images.write(folders, files, source, root)
        (root / "store").mkdir(parents=True, exist_ok=True)
        (root / "diary").write_bytes(b"".join(_diary(disk.changes[:at])))
        report.tried[luck.value] += 1
        yield {"work": "check", "root": root, "script": _SCRIPT}


def _moments(disk: Disk, count: int, randomness: random.Random) -> list[int]:
    """Return sorted places in the record: half of them random, half near a sync or a rename."""
    last = len(disk.changes)
    decisive = [place for place, change in enumerate(disk.changes) if change.kind != "W"]
    near = [randomness.choice(decisive) + randomness.randint(-6, 6) for _ in range(count // 2)]
    anywhere = [randomness.randint(0, last) for _ in range(count - count // 2)]
    return sorted(min(max(at, 0), last) for at in near + anywhere)


def _is_kept(name: str, source: Path) -> bool:
    return Path(name).is_relative_to(source / "store")


def _diary(made: Sequence[Change]) -> Iterator[bytes]:
    """Yield the lines of the diary up to a place: the answers that the process got before the cut."""
    return (change.data for change in made if change.kind == "W" and change.path.endswith("/diary"))
