"""The bugs that are planted on purpose."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
MUTANTS = runpy.run_path(str(ROOT / "tools" / "mutants.py"))["MUTANTS"]


def test_what_they_change_is_there():
    """Code that has moved on takes its mutant along; trying them all to find out takes minutes."""
    gone = [one.title for one in MUTANTS if one.old not in (ROOT / "stategraph" / one.file).read_text(encoding="utf-8")]

    assert gone == []


def test_their_tests_are_there():
    """One that has moved would be taken for one that caught its mutant."""
    files = {selection.split()[0] for one in MUTANTS for selection in one.tests}

    assert [file for file in files if not (ROOT / file).exists()] == []
