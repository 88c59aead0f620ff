"""A store of your own: one file for each run, in a folder.

A store has four methods: save, load, delete and list. This one has a fifth, `amend`. By default that is a delete and
a save; here it is one atomic step. It passes `stategraph.testing.CheckpointStoreContract`.

Run it with ``python examples/custom_store.py``.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stategraph import (
    CheckpointConfig,
    CheckpointNotFoundError,
    CheckpointSaveError,
    CheckpointStore,
    ExecutionError,
    GraphConfig,
    State,
    StateGraph,
    register_checkpoint_store,
)
from stategraph.stores.toolkit import check_follows, check_run_id, state_from_bytes, state_to_bytes


class FileStore(CheckpointStore):
    """Keeps the newest State of each run in a file. Threads and processes may share the folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, state: State) -> None:
        self._keep(state)

    def amend(self, state: State) -> None:
        self._keep(state, may_change_data=True)

    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        saved = self._read(run_id)
        if saved is None or step not in (None, saved.step) or revision:
            raise CheckpointNotFoundError(run_id, str(self), step, revision)
        return saved

    def delete(self, run_id: str) -> None:
        file = self._file(run_id)
        with self._locked():
            file.unlink(missing_ok=True)

    def list(self) -> builtins.list[str]:
        return sorted(file.stem.replace("%", "/") for file in self.path.glob("*.state"))

    def __str__(self) -> str:
        return f"file store at {self.path}"

    def _file(self, run_id: str) -> Path:
        """Return the file of a run. Run ids contain no %, so it replaces the slash."""
        return self.path / f"{check_run_id(run_id).replace('/', '%')}.state"

    def _read(self, run_id: str) -> State | None:
        try:
            return state_from_bytes(run_id, self._file(run_id).read_bytes())
        except FileNotFoundError:
            return None

    def _keep(self, state: State, may_change_data: bool = False) -> None:
        kept = state_to_bytes(state)  # a State that cannot be saved is refused before anything changes
        try:
            with self._locked():
                saved = self._read(state.run_id)
                if saved is not None and not (may_change_data and saved.step == state.step):
                    check_follows(saved, state)
                self._replace(self._file(state.run_id), kept)
        except OSError as error:
            raise CheckpointSaveError(state.run_id, f"the {self} failed: {error}") from error

    def _replace(self, file: Path, content: bytes) -> None:
        """Write a new file and move it into place. A reader sees all of the old file or all of the new one."""
        new = self.path / ".new"  # no run id begins with a dot
        with open(new, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other threads and processes, then sync the folder."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
            os.fsync(folder)
        finally:
            os.close(folder)


register_checkpoint_store("files", FileStore)


def main() -> None:
    """Let a run fail and resume it, with its State in a file in between."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = CheckpointConfig(store="files", interval=1, options={"path": folder})
        graph = StateGraph(GraphConfig(name="custom-store", checkpoint=checkpoint))
        graph.add_node("count", lambda state: {"lines": 100})
        graph.add_node("share", lambda state: {"share": state["lines"] / state["files"]})
        graph.add_edge("count", "share")
        graph.set_entry_point("count")
        graph.set_exit_point("share")

        try:
            graph.execute(State({"files": 0}, run_id="count/1"))
        except ExecutionError as error:
            print(error)
        print("files:", ", ".join(file.name for file in Path(folder).glob("*.state")))
        final = graph.resume("count/1", {"files": 4})
        print(f"{final['share']} lines a file, after {final.step} steps; runs that are left: {graph.store.list()}")


if __name__ == "__main__":
    main()
