"""docs/command-line.md: its shell blocks run and print what it shows; its list has every command."""

import re
import subprocess
import sys

from tests.cli.shop import call, commands, completed, environment
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


def test_it_lists_every_command_and_names_options_that_exist():
    """The list has every command, in the order of --help; no option on the page is missing in the help."""
    text = text_of(PAGE)
    listed = text.partition("## Commands")[2].partition("## Which store")[0]
    helped = "".join(call(name, "--help").out for name in commands())

    assert re.findall(r"^- `(\w+)", listed, re.MULTILINE) == commands()
    assert set(re.findall(r"--[a-z-]+", "".join(re.findall("`[^`\n]+`", text)))) <= set(
        re.findall(r"--[a-z-]+", helped)
    )


def test_the_shell_completes_commands_and_run_ids(shop):
    """The shell completes the run ids of the store that the line names."""
    assert completed("stategraph", "hi", cwd=shop) == ["history"]
    assert completed("stategraph", "--store", "runs.db", "show", "d", cwd=shop) == ["done"]
    assert sorted(completed("stategraph", "show", "--store", "runs", "", cwd=shop)) == [
        "burnt",
        "done",
        "left",
        "waiting",
    ]
    assert completed("stategraph", "--store", "none.db", "show", "d", cwd=shop) == []
