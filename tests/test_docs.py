"""The pages in docs/: their code runs and prints the promised output."""

import re
import sqlite3
import subprocess
import sys

import pytest

from tests.dbos_worker import SQLITE_SERVES
from tests.pages import (
    BLOCK_END,
    ROOT,
    blocks,
    leads_somewhere,
    links,
    program_of,
    promised,
    run,
    save_files,
    shown,
    text_of,
)
from tests.postgres_server import dsn
from tests.redis_server import url

PAGES = sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md"))
INDEX = "docs/README.md"
AGENTS = "AGENTS.md"


@pytest.mark.parametrize("page", [*PAGES, AGENTS])
def test_its_blocks_run_in_order_and_print_what_it_shows(page, tmp_path, monkeypatch):
    """Pasted in order into one program, they print the text after them, and what comments say."""
    if "DBOSRunner(" in text_of(page) and not SQLITE_SERVES:
        pytest.skip(f"DBOS takes SQLite 3.42 with this Python, and it has {sqlite3.sqlite_version}")
    if "from pydantic_ai" in text_of(page):
        pytest.importorskip("pydantic_ai")
    if "from fastapi" in text_of(page):
        pytest.importorskip("fastapi")
    if "RUNS_DSN" in text_of(page):
        monkeypatch.setenv("RUNS_DSN", dsn())
    if "RUNS_URL" in text_of(page):
        monkeypatch.setenv("RUNS_URL", url())
    save_files(page, tmp_path)
    (tmp_path / "page.py").write_text(program_of(page), encoding="utf-8")

    outputs = run("page.py", tmp_path).stdout.split(f"{BLOCK_END}\n")[:-1]

    for output, text, comments in zip(outputs, shown(page), promised(page), strict=True):
        assert text in (None, output)
        printed = iter(output.splitlines())
        for comment in comments:
            assert any(line.startswith(comment) for line in printed), comment


def test_the_store_that_is_shown_passes_the_contract(tmp_path):
    """The tests that the page shows pass for the store that it shows."""
    (tmp_path / "test_shown.py").write_text(program_of("docs/own-store.md"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "test_shown.py"]

    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    assert result.returncode == 0, result.stdout
    assert int(re.findall(r"(\d+) passed", result.stdout)[0]) > 50


def test_the_commands_of_development_are_those_of_make():
    """All that make lists, and no others."""
    listed = re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), re.MULTILINE)
    described = re.findall(r"^make ([a-z-]+)", "".join(blocks("docs/development.md", "sh")), re.MULTILINE)

    assert sorted(described) == sorted(set(listed) - {"help"})


@pytest.mark.parametrize("page", [*PAGES, AGENTS, "README.md"])
def test_its_links_lead_somewhere(page):
    """Every linked file is there, and every linked heading."""
    assert [target for target in links(page) if not leads_somewhere(page, target)] == []


def test_the_index_names_every_page():
    """A page that is not linked would not be found."""
    linked = {f"docs/{target.partition('#')[0]}" for target in links(INDEX)}

    assert set(PAGES) - {INDEX} <= linked


def test_the_index_names_every_example():
    """The index links every example."""
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}

    assert {f"../examples/{name}" for name in examples} <= set(links(INDEX))
