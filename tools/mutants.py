"""Plant bugs in a copy of the package, and show that the tests catch each of them: ``make mutants``.

A mutant is one change of one place. It is caught if a test that passes on the untouched copy fails on the changed one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]


@attrs.frozen
class Mutant:
    """A bug to plant.

    Attributes:
        title: What is broken.
        file: Where, below the package.
        old: What stands there.
        new: What is put in its place.
        tests: What pytest is to run; the whole suite would take too long.
    """

    title: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


STORES = "tests/stores/test_stores.py"
MUTANTS = (
    Mutant(
        "commits are not synced",
        "stores/sqlite.py",
        'execute("PRAGMA synchronous = FULL")',
        'execute("PRAGMA synchronous = OFF")',
        ("tests/stores/test_sqlite.py", "tests/proof -k power_cuts"),
    ),
    Mutant(
        "the checksum is not compared",
        "stores/rows.py",
        "if not hmac.compare_digest(",
        "if False and not hmac.compare_digest(",
        ("tests/stores",),
    ),
    Mutant(
        "the newest checkpoint is the one with the latest time",
        "stores/sqlite_rows.py",
        "ORDER BY id DESC LIMIT 1",
        "ORDER BY timestamp_ns DESC LIMIT 1",
        (STORES,),
    ),
    Mutant(
        "retention removes rows that others build on",
        "stores/row_store.py",
        "        return min([row.base for row in older[-(visible - 1) :]], default=snapshot.step)",
        "        return older[-(visible - 1)].step if older else snapshot.step",
        (STORES,),
    ),
    Mutant(
        "an error of the background thread is swallowed",
        "stores/background.py",
        "            self._error = error\n",
        "            self._error = None\n",
        ("tests/stores/test_background.py",),
    ),
    Mutant(
        "whoever writes last wins",
        "stores/sqlite_rows.py",
        "WHERE run_id = ? AND version = ? RETURNING number",
        "WHERE run_id = ? AND version >= ? - 1000000 RETURNING number",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "a list that changed in its middle is taken for one that grew",
        "stores/changes.py",
        " and all(map(is_, old, new))",
        "",
        (STORES, "tests/stores/test_rows.py"),
    ),
    Mutant(
        "an object that changed is taken for the same",
        "stores/changes.py",
        " not in SETTLED and not is_settled(value):\n",
        " not in SETTLED and not is_settled(value) and value is not previous:\n",
        (STORES,),
    ),
    Mutant(
        "a saved step may change its data",
        "stores/base.py",
        "    if not same_data:\n",
        "    if False:\n",
        (STORES,),
    ),
    Mutant(
        "the last completed State is not saved when a node raises",
        "run.py",
        "            if unsaved:\n",
        "            if False:\n",
        ("tests/test_engine.py",),
    ),
    Mutant(
        "updates are laid over the work of a nested run again",
        "visit.py",
        "yield from self._stored((Amend, engine.services.amend, engine.state))",
        "yield from ()",
        ("tests/test_nesting.py",),
    ),
    Mutant(
        "an approval outlives a rollback",
        "stores/base.py",
        "return evolve(asking_again(state), generation=state.generation + 1)",
        "return evolve(state, generation=state.generation + 1)",
        ("tests/test_pauses.py",),
    ),
    Mutant(
        "resume runs the completed node again",
        "starting.py",
        "return self.plan.stages.get(saved.checkpoint_node)",
        "return None",
        ("tests/test_resume.py",),
    ),
    Mutant(
        "steps are counted from the beginning after a resume",
        "engine.py",
        "if interval == 1 or (interval and state.step % interval == 0):",
        "if interval == 1 or (interval and (plan.max_iterations - left) % interval == 0):",
        ("tests/test_runs.py",),
    ),
    Mutant(
        "a follower is not told of the leader's error",
        "stores/commit.py",
        "[_copy(error) for _ in writes]",
        "[True for _ in writes]",
        ("tests/stores/test_commit.py",),
    ),
    Mutant(
        "updates of a resume are not durable before the next node",
        "starting.py",
        "        if updates or not is_same:\n",
        "        if False:\n",
        ("tests/test_resume.py",),
    ),
    Mutant(
        "parts stay when what they were made of changes",
        "starting.py",
        "self.services.drop_parts, (run_id, saved.step, bool(updates)))",
        "self.services.drop_parts, (run_id, saved.step, False))",
        ("tests/test_parts.py",),
    ),
    Mutant(
        "parts stay when the step that joins them is saved",
        "engine.py",
        "                if self._joined:\n                    yield from self._drop_parts()\n            elif",
        "            elif",
        ("tests/test_parts.py", "tests/test_left_behind.py"),
    ),
    Mutant(
        "a second cancellation ends the wait for what must not be cut off",
        "cancellation.py",
        "        while not work.done() and loop.time() < until:\n",
        "        if not work.done():\n",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "a scope of anyio cancels in every turn of the loop",
        "cancellation.py",
        'if "anyio" not in sys.modules:',
        "if True:",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "a CancelledError of a node passes for a cancellation of the run",
        "drivers/tasks.py",
        "return error if self._is_cancelled() else failure_of(error)",
        "return error",
        ("tests/test_cancelled_nodes.py",),
    ),
    Mutant(
        "a failing task group of a node passes for a cancellation of the run",
        "drivers/tasks.py",
        "_GROUPS_LEAVE_CANCELLATIONS = sys.version_info < (3, 13)",
        "_GROUPS_LEAVE_CANCELLATIONS = False",
        ("tests/test_cancellations.py",),  # with a Python before 3.13
    ),
    Mutant(
        "a failure hides a cancellation",
        "drivers/tasks.py",
        "not isinstance(end, Exception):",
        "not isinstance(end, StopIteration):",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "parts that were cancelled together with the run have failed",
        "nodes/pools.py",
        "for task, outcome in self._ended if not task.cancelled()]",
        "for task, outcome in self._ended]",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "a part that cancels itself has no outcome",
        "nodes/pools.py",
        "        self._ended.append((task, outcome))\n",
        "        if not task.cancelled():\n            self._ended.append((task, outcome))\n",
        ("tests/test_cancelled_nodes.py",),
    ),
    Mutant(
        "slow nodes keep the store waiting",
        "drivers/tasks.py",
        "self._threads.store.begin(",
        "self._threads.nodes.begin(",
        ("tests/test_threads.py",),
    ),
    Mutant(
        "a process that has died is waited for as long as its connection is open",
        "nodes/processes.py",
        " in ready or worker.is_dead]",
        " in ready]",
        ("tests/test_pools.py",),
    ),
    Mutant(
        "an answer answers twice",
        "nodes/interrupt.py",
        "            visit.take_answers([key])\n",
        "",
        ("tests/test_pauses.py",),
    ),
    Mutant(
        "a pause is not saved",
        "engine.py",
        "        yield from self._save((Save, self.services.save, state), state)\n"
        "        yield from self._flush(state)\n        yield from self._emit(EventType.GRAPH_PAUSE",
        "        yield from self._flush(state)\n        yield from self._emit(EventType.GRAPH_PAUSE",
        ("tests/test_pauses.py",),
    ),
    Mutant(
        "a pause has no seal",
        "stores/rows.py",
        "waits = () if pause is None else (pause,)",
        "waits: tuple[str, ...] = ()",
        ("tests/stores",),
    ),
    Mutant(
        "runs within runs are shown",
        "stores/sqlite_rows.py",
        """IS_SHOWN = f"policy NOT LIKE '%{_IS_PART}'\"""",
        """IS_SHOWN = "policy IS NOT NULL\"""",
        (STORES,),
    ),
    Mutant(
        "a copy is made without the parts of the step that it stands before",
        "stores/row_store.py",
        "self._begin([self._copy_of(head, forked, policy), *inner])",
        "self._begin([self._copy_of(head, forked, policy)])",
        (STORES,),
    ),
    Mutant(
        "a rollback leaves the parts of later steps",
        "stores/row_store.py",
        "        self._inner_runs.drop(run_id)\n        self._commit(",
        "        self._commit(",
        (STORES,),
    ),
    Mutant(
        "what is within a deleted run stays",
        "stores/row_store.py",
        "        self._inner_runs.drop(check_run_id(run_id))\n        self._remove(run_id)",
        "        self._remove(check_run_id(run_id))",
        (STORES,),
    ),
    Mutant(
        "a lost checkpoint is one that never was",
        "stores/row_store.py",
        "        if head is not None and not rows:\n",
        "        if False:\n",
        ("tests/stores/test_damage.py",),
    ),
    Mutant(
        "a load that is overtaken by a write is taken for the newest",
        "stores/row_store.py",
        "            self._remember(head, self._rows.tail(state, rows))",
        "            self._remember(self._head(run_id) or head, self._rows.tail(state, rows))",
        ("tests/stores/test_damage.py",),
    ),
    Mutant(
        "prune believes what has no seal",
        "stores/pruning.py",
        " or not _is_sealed(store, head)",
        "",
        ("tests/stores/test_damage.py",),
    ),
)


def caught_by(mutant: Mutant | None, folder: Path) -> str:
    """-> the first test that fails on a copy with the mutant, empty if none does."""
    for part in "stategraph tests proof examples docs tools pyproject.toml README.md Makefile".split():
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / part)
    selections = ("tests/test_state.py",) if mutant is None else mutant.tests
    if mutant is not None:
        file = folder / "stategraph" / mutant.file
        text = file.read_text(encoding="utf-8")
        if mutant.old not in text:
            raise SystemExit(f"mutant {mutant.title!r}: what it changes is not in {mutant.file} any more")
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return next(filter(None, (_first_failure(folder, selection) for selection in selections)), "")


def _first_failure(folder: Path, selection: str) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    result = subprocess.run(
        [*command, *selection.split()], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE)
    return failed.group(1) if failed else ""


def try_one(mutant: Mutant) -> tuple[Mutant, str]:
    """-> the mutant, and the test that catches it."""
    with tempfile.TemporaryDirectory() as folder:
        return mutant, caught_by(mutant, Path(folder))


def main() -> int:
    """Try every mutant, or those that were asked for, and print the table -> 1 if one is not caught."""
    parser = argparse.ArgumentParser()
    parser.add_argument("titles", nargs="*", metavar="TEXT", help="only those with this in their title")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    chosen = [one for one in MUTANTS if not given.titles or any(text in one.title for text in given.titles)]
    survived = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, test in pool.map(try_one, chosen):
            survived += not test
            print(f"{'caught  ' if test else 'SURVIVED'}  {mutant.title:66}  {test}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} planted bugs are caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
