"""The README: what it shows runs, and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stategraph import GraphConfig

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, each at the line where it stands in the README, so that errors name it."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return ["\n" * TEXT.count("\n", 0, match.start(1)) + match[1] for match in found]


def merged(parts: list[str]) -> str:
    """All blocks as one program, every line where it stands in the README."""
    lines: list[str] = []
    for part in parts:
        lines += part.splitlines()[len(lines) :]
    return "\n".join(lines) + "\n"


def run(source: str, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with warnings as errors as in the tests themselves."""
    (folder / name).write_text(source, encoding="utf-8")
    command = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def promised(source: str) -> list[str]:
    """What the comments behind print calls and runs say that is printed."""
    return re.findall(r"^ *(?:print\(.*\)|graph\.execute\(.*\))  # (.+)$", source, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the configuration file of the README."""
    (tmp_path / "graph.toml").write_text(blocks("toml")[0], encoding="utf-8")
    return tmp_path


def test_the_first_graph_dies_and_is_resumed(tmp_path: Path) -> None:
    """Run twice, the first program prints what the console shows: it is killed, then goes on where it was."""
    sessions = [block.strip().split("\n", 1) for block in blocks("console")]
    program = blocks("python")[0]

    results = [run(program, tmp_path, "review.py") for _ in sessions]

    assert [command for command, _ in sessions] == ["$ python review.py"] * 2
    assert [result.stdout.strip() for result in results] == [output.strip() for _, output in sessions]
    assert [(result.returncode, result.stderr) for result in results] == [(1, ""), (0, "")]


def test_all_blocks_run_in_order(folder: Path) -> None:
    """Pasted one after the other into one program, they run and print what their comments say."""
    (folder / "crashed-once").touch()
    program = merged(blocks("python"))

    result = run(program, folder, "readme.py")

    assert result.returncode == 0, result.stderr
    printed = iter(result.stdout.splitlines())
    for promise in promised(program):
        assert any(line.startswith(promise.removesuffix(" ...")) for line in printed), promise


def test_the_store_passes_the_contract(folder: Path) -> None:
    """The tests that the README shows pass for the store that it shows."""
    (folder / "crashed-once").touch()
    (folder / "test_shown.py").write_text(merged(blocks("python")), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "test_shown.py"]

    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)

    assert result.returncode == 0, result.stdout
    assert int(re.findall(r"(\d+) passed", result.stdout)[0]) > 50


def test_the_configuration_file_is_one(folder: Path) -> None:
    """The TOML block says what it seems to say."""
    config = GraphConfig.from_file(folder / "graph.toml")

    assert (config.name, config.max_iterations) == ("document-review", 200)
    assert (config.checkpoint.store, config.checkpoint.options) == ("sqlite", {"path": "runs.db"})


def test_links_lead_somewhere() -> None:
    """Every linked file is there, and every linked heading."""
    targets = re.findall(r"\]\(([^)]+)\)", TEXT)
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in re.findall(r"^#+ .+", TEXT, re.MULTILINE)
    }
    missing = [
        target
        for target in targets
        if (target[1:] not in headings if target.startswith("#") else not (README.parent / target).exists())
    ]

    assert targets
    assert missing == []
