"""The README: its code runs and prints the promised output."""

import re
import tomllib

from tests.cli.shop import process
from tests.pages import ROOT, blocks, links, run, save_files, text_of

README = "README.md"
TEXT = text_of(README)


def test_the_first_graph_dies_and_is_resumed(tmp_path):
    """The program dies in its first run and continues in the second, as the console shows."""
    sessions = [block.strip().split("\n", 1) for block in blocks(README, "console")]
    save_files(README, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["review.py"]

    outputs = [run("review.py", tmp_path, fails=fails).stdout.strip() for fails in (True, False)]

    assert [command for command, _ in sessions] == ["$ python review.py"] * 2
    assert outputs == [output.strip() for _, output in sessions]


def test_the_command_line_sees_the_run_that_died_and_goes_on_with_it(tmp_path):
    """The command can continue the run instead of the second process; importing the program starts nothing."""
    save_files(README, tmp_path)
    run("review.py", tmp_path, fails=True)
    second = blocks(README, "console")[1].strip().splitlines()[1:-1]

    seen = process("--store", "runs.db", "runs", cwd=tmp_path).out
    resumed = process("resume", "review-42", "--graph", "review:graph", cwd=tmp_path)

    assert "`stategraph --store runs.db runs`" in TEXT
    assert "`stategraph resume review-42 --graph review:graph`" in TEXT
    assert seen.startswith("review-42\tactive\t")
    assert seen.endswith("\tleft unfinished: no process is at work on it\n")
    assert resumed.out.splitlines() == [*second, "review-42  completed  step 5"]


def test_its_commands_are_there():
    """Every target of make, and every extra that it installs."""
    targets = re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), re.MULTILINE)
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]

    assert set(re.findall(r"^make ([a-z-]+)", "".join(blocks(README, "sh")), re.MULTILINE)) <= set(targets)
    assert set(re.findall(r"`\[(\w+)\]`", TEXT)) == set(extras)


def test_every_relative_link_is_in_the_archive():
    """Every relative link also works in an unpacked sdist."""
    shipped = tomllib.loads(text_of("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]

    assert {target.partition("#")[0].partition("/")[0] for target in links(README)} - {""} <= set(shipped)
    assert [name for name in shipped if not (ROOT / name).exists()] == []
