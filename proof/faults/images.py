"""Disks as a power cut may leave them, computed from a record of all changes.

What a sync covered is there. Of what it did not, each page of 4 KB is as it was at some moment between then and the
cut, and may be torn at the border of a sector. Names, new folders and truncations reach the disk in order, at least as
far as the last sync that had to write them; that is how journaling file systems keep them (ext4, xfs, btrfs).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import attrs

from proof.faults.shim import Change

PAGE, SECTOR = 4096, 512


class Luck(StrEnum):
    """What becomes of data that was not synced."""

    NONE = "nothing unsynced kept"
    ALL = "everything kept"
    PAGES = "some pages kept"
    TORN = "some pages kept, one torn"


@attrs.define
class _File:
    """The contents of a file: the synced bytes, and the later changes with their places in the record."""

    durable: bytearray = attrs.field(factory=bytearray)
    pending: list[tuple[int, Change]] = attrs.field(factory=list)

    def sync(self) -> None:
        for _, change in self.pending:
            _apply(self.durable, change.kind, change.offset, change.data)
        self.pending.clear()

    @property
    def has_grown(self) -> bool:
        """Whether a sync has its size to write, too."""
        size = len(self.durable)
        return any(change.kind == "T" or change.offset + len(change.data) > size for _, change in self.pending)


@attrs.define
class Disk:
    """What a disk may hold at a moment; it goes forward through a record.

    Attributes:
        changes: The record.
        at: How many of its changes have been made.
    """

    changes: Sequence[Change]
    at: int = 0
    _files: dict[int, _File] = attrs.field(factory=dict)
    _now: dict[str, int] = attrs.field(factory=dict)  # names as the process sees them
    _names: list[tuple[int, Change, int]] = attrs.field(factory=list)  # what happened to names, and to which file
    _sure: int = -1  # the last change whose names are surely there
    _fresh: set[int] = attrs.field(factory=set)  # files whose creation is not surely there

    def go_to(self, at: int) -> None:
        """Make the changes before the one at a place in the record."""
        while self.at < at:
            self._make(self.at, self.changes[self.at])
            self.at += 1

    def _make(self, place: int, change: Change) -> None:
        kind, path = change.kind, change.path
        if kind == "C":
            number = len(self._files)
            self._files[number] = _File()
            self._now[path] = number
            self._fresh.add(number)
        if kind in "CUND":
            self._names.append((place, change, self._now.get(path, -1)))
        if kind == "U":
            self._now.pop(path, None)
        elif kind == "N":
            self._now[change.data.decode()] = self._now.pop(path)
        elif kind in "WT" and path in self._now:
            self._files[self._now[path]].pending.append((place, change))
        elif kind in "SF":
            self._sync(place, self._now.get(path), kind)

    def _sync(self, place: int, number: int | None, kind: str) -> None:
        if number is None:  # a folder
            self._sure = place
            return
        file = self._files[number]
        if kind == "F" or number in self._fresh or file.has_grown:
            self._sure = place
            self._fresh.clear()
        file.sync()

    def image(self, luck: Luck, randomness: random.Random) -> tuple[list[str], dict[str, bytes]]:
        """Return the folders and the files that a power cut at this moment may leave."""
        last = self.at - 1
        ordered = {Luck.NONE: self._sure, Luck.ALL: last}.get(luck, randomness.randint(self._sure, last))
        folders: list[str] = []
        names: dict[str, int] = {}
        for place, change, number in self._names:
            if place > ordered:
                break
            if change.kind == "D":
                folders.append(change.path)
            elif change.kind == "C":
                names[change.path] = number
            elif change.kind == "U":
                names.pop(change.path, None)
            else:
                names[change.data.decode()] = names.pop(change.path)
        files = {name: self._files[number] for name, number in names.items()}
        return folders, {name: _content(file, luck, ordered, randomness) for name, file in files.items()}


def _content(file: _File, luck: Luck, ordered: int, randomness: random.Random) -> bytes:
    """Return the remaining bytes of a file."""
    content = bytearray(file.durable)
    if luck is Luck.NONE or not file.pending:
        return bytes(content)
    truncations, pages = _by_page(file.pending, ordered)
    for size in truncations:
        _apply(content, "T", size, b"")
    torn = randomness.choice(list(pages)) if luck is Luck.TORN and pages else None
    for number, parts in pages.items():
        kept = len(parts) if luck is Luck.ALL else randomness.randint(0, len(parts))
        for offset, data in parts[:kept]:
            _apply(content, "W", offset, data)
        if number == torn and kept < len(parts):
            _apply(content, "W", *_sectors(*parts[kept], randomness))
    return bytes(content)


_Pages = dict[int, list[tuple[int, bytes]]]


def _by_page(pending: Sequence[tuple[int, Change]], ordered: int) -> tuple[list[int], _Pages]:
    """-> the sizes a file was truncated to, and the writes to each page since, in order. What comes after a truncation
    that is not there yet is not there either."""
    sizes: list[int] = []
    pages: _Pages = {}
    for place, change in pending:
        if change.kind == "T":
            if place > ordered:
                break
            sizes.append(change.offset)
            pages = {number: parts for number, parts in pages.items() if number * PAGE < change.offset}
            continue
        start, end = change.offset, change.offset + len(change.data)
        while start < end:
            stop = min(end, (start // PAGE + 1) * PAGE)
            part = change.data[start - change.offset : stop - change.offset]
            pages.setdefault(start // PAGE, []).append((start, part))
            start = stop
    return sizes, pages


def _sectors(offset: int, data: bytes, randomness: random.Random) -> tuple[int, bytes]:
    """Return the beginning or the end of a write, up to the border of a sector."""
    border = randomness.randrange(offset, offset + len(data) + SECTOR) // SECTOR * SECTOR
    cut = min(max(0, border - offset), len(data))
    return (offset, data[:cut]) if randomness.random() < 0.5 else (offset + cut, data[cut:])


def _apply(content: bytearray, kind: str, offset: int, data: bytes) -> None:
    if kind == "T":
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def write(folders: Sequence[str], files: dict[str, bytes], source: Path, target: Path) -> None:
    """Write an image of the folder `source` to `target`."""
    for folder in folders:
        (target / Path(folder).relative_to(source)).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        file = target / Path(name).relative_to(source)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
