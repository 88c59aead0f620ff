"""A process that runs a graph with every feature is killed at every kind of place, and another continues."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import stategraph
from stategraph import NodeContext, State
from stategraph._values.progress import Part
from stategraph.stores.sqlite import SqliteStore
from tests.all_features import INPUTS, answer, builds_all_features, expected
from tests.scenarios import RUN
from tests.simulated_process import Everything, Journal, SimulatedProcess, World, live

pytestmark = pytest.mark.unmeasured

PROGRAM = """
import json, os, signal, sys
from tests.simulated_process import SimulatedProcess
from tests.test_all_features_killed import lived

for line in sys.stdin:  # imports are slow: import once, and fork a process for each run
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()

folder, case, place = json.loads(line)
name, _, count = place.rpartition("#")
points = os.open(os.path.join(folder, "points"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
left = int(count)

class Doomed(SimulatedProcess):
    def point(self, kind, passed):
        global left
        super().point(kind, passed)
        left -= passed == name
        if passed == name and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(points, f"{passed}\\n".encode())

lived(folder, case, Doomed())
"""


class Log(Journal):
    """A journal in a file, which outlives the process: whatever is in it has happened."""

    def __init__(self, folder: Path) -> None:
        super().__init__(failed=Everything())
        self._file = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, context: NodeContext, what: str) -> None:
        self._write("note", context.run_id, context.step, context.node, context.part, what)

    def acknowledge(self, method: str, arguments: tuple[Any, ...]) -> None:
        if method in {"save", "amend", "save_many"}:
            state = arguments[0][-1] if method == "save_many" else arguments[0]
            self._write("save", state.run_id, state.step)
        elif method == "save_parts":
            for part in arguments[1]:
                self._write("part", arguments[0], part.step, part.node, part.label)

    def _write(self, *what: Any) -> None:
        os.write(self._file, f"{json.dumps(what)}\n".encode())
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def journal_of(folder: Path) -> Journal:
    """Return the journal that the file holds."""
    journal = Journal()
    for line in (folder / "log").read_text().splitlines():
        kind, run_id, step, *about = json.loads(line)
        if kind == "note":
            node, part, what = about
            journal.note(NodeContext(run_id, "", node, step, part=part), what)
        elif kind == "save":
            journal.reach(run_id, step)
        else:
            node, label = about
            journal.acknowledge("save_parts", (run_id, [Part(step, node, label, None)]))
    return journal


def lived(folder: str | Path, case: str, process: SimulatedProcess) -> State:
    """Return the final State, after the run was resumed in this process."""
    driver, kind, durability = CASES[case]
    log = Log(Path(folder))
    try:
        build = builds_all_features(kind, durability=durability)
        return live(
            World("sqlite", Path(folder), log, is_prompt=False), build, INPUTS, answer, driver=driver, process=process
        )
    finally:
        log.close()


CASES = {
    "sync": ("sync", "mixed", "sync"),
    "async": ("async", "mixed", "sync"),
    "behind": ("sync", "mixed", "async"),
}


RunProcess: TypeAlias = Callable[[Path, str, str], int]


@pytest.fixture(scope="module")
def run_process() -> Iterator[RunProcess]:
    """Runs the program in a process -> its exit code, or minus the signal that killed it."""
    root = Path(stategraph.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parents[1]}"}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as processes:
        requests, answers = processes.stdin, processes.stdout
        assert requests is not None
        assert answers is not None

        def run(folder: Path, case: str, place: str) -> int:
            print(json.dumps([str(folder), case, place]), file=requests, flush=True)
            return int(answers.readline())

        yield run
        requests.close()


def places(folder: Path) -> Iterator[str]:
    """Yield every point of the run so far as its name and its number."""
    seen: Counter[str] = Counter()
    for name in (folder / "points").read_text().splitlines():
        seen[name] += 1
        yield f"{name}#{seen[name]}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, run_process: RunProcess) -> Path:
    """Return the folder of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run_process(folder, "sync", "never#0") == 0
    return folder


BOUNDARIES = {
    "a node": "before run/#1/begin#1",
    "behind a node": "after run/#3/compute#1",
    "a retry": "after run/#2/fetch#2",
    "a failure that is handled": "after run/#4/risk#1",
    "its handler": "before run/#5/mend#1",
    "a branch": "before run/#6/fan/right#1",
    "behind a branch": "after run/#6/fan/left#1",
    "an item": "after run/#7/spread/2#1",
    "an item of a child": "before run/#8/child/#1/weigh/3#1",
    "behind a node of a child": "after run/#8/child/#3/judge#1",
    "between the end of a child and that of its step": "graph.complete#1",
    "a generator": "after run/#9/report#1",
    "between chunks": "node.chunk#2",
    "between pause and return": "graph.pause#1",
    "behind the return of a pause": "after execute#1",
    "between the pauses of a loop": "after resume#2",
    "between an answer and its node": "checkpoint.resume#1",
    "the second round": "before run/#11/begin#1",
    "the child of the second round": "after run/#17/child/#3/judge#1",
    "the end": "after run/#30/end#1",
    "behind the last save": "graph.complete#4",
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_it_survives_being_killed_at(tmp_path: Path, run_process: RunProcess, undisturbed: Path, boundary: str) -> None:
    """The run ends the same; repeated steps have the same keys and see the same data."""
    place = BOUNDARIES[boundary]

    assert run_process(tmp_path, "sync", place) == -9
    final = lived(tmp_path, "sync", SimulatedProcess())

    assert_as_if_undisturbed(tmp_path, undisturbed, final)


@pytest.mark.parametrize("case", CASES)
def test_it_survives_being_killed_again_and_again(
    tmp_path: Path, run_process: RunProcess, undisturbed: Path, case: str
) -> None:
    """The run survives kills at random places, each in the next process."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chosen = random.Random(seed).sample(list(places(undisturbed)), 3)
    chosen.append(BOUNDARIES["a node"])  # every case passes this place
    chosen.sort(key=list(places(undisturbed)).index)
    kills = [run_process(tmp_path, case, place) for place in chosen].count(-9)
    assert kills
    final = lived(tmp_path, case, SimulatedProcess())

    assert_as_if_undisturbed(tmp_path, undisturbed, final)


def assert_as_if_undisturbed(folder: Path, undisturbed: Path, final: State) -> None:
    """Check that the final State equals a plain function, and that the effects equal those of an undisturbed run."""
    assert (dict(final), final.step) == expected()
    journal = journal_of(folder)
    assert journal.repeated == []
    assert set(journal.done) == set(journal_of(undisturbed).done)
    with SqliteStore(folder / "runs.db") as store:
        assert store.load(RUN) == final
        assert store.list() == [RUN]
