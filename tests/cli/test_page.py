"""docs/command-line.md: its shell blocks run and print what it shows; its table lists every command."""

import re
import subprocess
import sys

from tests.cli.shop import call, commands, environment, process
from tests.pages import save_files, text_of

PAGE = "docs/command-line.md"


def shell_blocks():
    """Return the shell blocks of the page, each with the text that follows it."""
    found = re.finditer(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", text_of(PAGE), re.MULTILINE | re.DOTALL)
    return [(match[1], match[2]) for match in found]


def test_its_shell_blocks_run_and_print_what_it_shows(tmp_path):
    """In order, as pasted into one shell; dots stand for times."""
    save_files(PAGE, tmp_path)
    shell = f'set -e\npython() {{ {sys.executable} "$@"; }}\nstategraph() {{ python -m stategraph.cli "$@"; }}\n'
    script = shell + "".join(f"{block}printf '\\f'\n" for block, _ in shell_blocks())
    env = environment(PYTHONPATH=f"{environment()['PYTHONPATH']}:{tmp_path}")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    outputs = done.stdout.split("\f")
    for output, (_, shown) in zip(outputs, shell_blocks(), strict=False):
        if shown is not None:
            pattern = re.escape(shown).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, output), output


def test_it_lists_every_command_with_its_options():
    """The table lists every option, and none that does not exist."""
    table = text_of(PAGE).partition("## Which store")[0]
    rows = dict(re.findall(r"^\| `(\w+)(.*)$", table, re.MULTILINE))

    assert list(rows) == commands()
    for name in commands():
        options = set(re.findall(r"--[a-z-]+", call(name, "--help").out.partition("Options:")[2].partition("\n\n")[0]))
        everywhere = {"--store", "--config", "--json", "--import", "--help", "--graph", "--output"}
        assert set(re.findall(r"--[a-z-]+", rows[name])) >= options - everywhere, name


def test_the_shell_completes_commands_and_run_ids(shop):
    """The shell completes the run ids of the store that the line names."""

    def completed(*words):
        env = {
            "_STATEGRAPH_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        return [line.partition(",")[2] for line in process(cwd=shop, **env).out.split()]

    assert completed("stategraph", "hi") == ["history"]
    assert completed("stategraph", "--store", "runs.db", "show", "d") == ["done"]
    assert sorted(completed("stategraph", "show", "--store", "runs", "")) == ["burnt", "done", "left", "waiting"]
    assert completed("stategraph", "--store", "none.db", "show", "d") == []
