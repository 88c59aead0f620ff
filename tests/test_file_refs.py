"""A FileRef is a file by its content: what is read is what the State refers to, or an error."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import FileRef, State, StateGraph
from tests.scenarios import Scene, make_graph


def read(state: State) -> dict[str, Any]:
    """Read the file, as a node."""
    return {"text": state["file"].read_bytes().decode()}


@attrs.frozen
class Typed:
    file: FileRef
    text: str = ""


@pytest.mark.parametrize("schema", [None, Typed])
def test_a_file_is_checked_when_it_is_read(any_play: Scene, tmp_path: Path, schema: Any, monkeypatch: Any) -> None:
    """A run saves and loads the reference; a relative path means the same file later, in another folder."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("content")
    tries: list[int] = []

    def fails_once(state: State) -> dict[str, Any]:
        tries.append(1)
        return {} if len(tries) > 1 else {"text": 1 / 0}

    graph: StateGraph = make_graph({"a": fails_once, "b": read}, store=any_play.store, preserve=True, schema=schema)
    with pytest.raises(Exception, match="ZeroDivision"):
        any_play.execute(graph, State({"file": FileRef("a.txt")}, run_id="run"))
    monkeypatch.chdir("/")

    final = any_play.resume(graph)

    assert final["text"] == "content"
    assert any_play.store.load("run")["file"] == FileRef(tmp_path / "a.txt")
    with final["file"].open() as file:
        assert file.read(3) == b"con"


@pytest.mark.parametrize("change", ["content", "shorter", "replaced", "gone"])
def test_a_file_that_has_changed_is_refused(tmp_path: Path, change: str) -> None:
    """Whatever its size and time are; the error names the file. A load needs no file."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"0" * 100_000)
    before, ref = path.stat(), FileRef(path)
    if change == "gone":
        path.unlink()
    elif change == "replaced":
        (tmp_path / "b.bin").write_bytes(b"1" * 100_000)
        (tmp_path / "b.bin").replace(path)
    else:
        path.write_bytes(b"0" * 99_999 + (b"" if change == "shorter" else b"1"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    for reads in ref.read_bytes, ref.open:
        with pytest.raises(FileNotFoundError if change == "gone" else ValueError, match=r"a\.bin"):
            reads()


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """Before it is in a State."""
    with pytest.raises(OSError, match="missing"):
        FileRef(tmp_path / "missing")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file is there that opens and cannot be read")
def test_a_file_that_cannot_be_read_is_closed(tmp_path: Path) -> None:
    """The caller gets the error and no file to close."""
    path = tmp_path / "a"
    path.touch()
    ref = FileRef(path)
    path.unlink()
    path.symlink_to("/proc/self/mem")

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(OSError, match="Input/output error"):
            ref.open()

    assert warned == []
