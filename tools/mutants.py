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
        old: What stands there once.
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
        "resume runs the completed node again",
        "starting.py",
        "return (yield from self._run(self.plan.stages.get(saved.checkpoint_node)))",
        "return (yield from self._run(None))",
        ("tests/test_resume.py",),
    ),
    Mutant(
        "steps are counted from the beginning after a resume",
        "engine.py",
        "if interval and state.step % interval == 0:",
        "if interval and (plan.max_iterations - left) % interval == 0:",
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
        if text.count(mutant.old) < 1:
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
    """Try every mutant and print the table -> 1 if one is not caught."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    survived = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, test in pool.map(try_one, MUTANTS):
            survived += not test
            print(f"{'caught  ' if test else 'SURVIVED'}  {mutant.title:60}  {test}", flush=True)
    print(f"{len(MUTANTS) - survived} of {len(MUTANTS)} planted bugs are caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
