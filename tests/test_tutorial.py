"""docs/tutorial.md: each command prints the output on the page, also after the kill."""

import re
import subprocess
import sys

from tests.cli.shop import environment
from tests.pages import blocks, save_files

PAGE = "docs/tutorial.md"
SHELL = f'python() {{ {sys.executable} "$@"; }}\nstategraph() {{ python -m stategraph.cli "$@"; }}\n'


def sessions():
    """Return the commands of the page with their outputs; dots stand for times."""
    return re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", "".join(blocks(PAGE, "console")), re.MULTILINE)


def test_a_reader_sees_what_it_shows(tmp_path):
    """The process is killed when it has printed the last line that the page shows of it, and not after some seconds."""
    save_files(PAGE, tmp_path)
    env = environment(PYTHONPATH=f"{environment()['PYTHONPATH']}:{tmp_path}")
    (killing, killed), *others = sessions()

    command = [sys.executable, "claims.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in killed.splitlines()]
        process.kill()

    assert killing == "python claims.py & sleep 3; kill -9 $!"
    assert "".join(lines) == killed
    for command, shown in others:
        done = subprocess.run(
            ["bash", "-c", SHELL + command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert re.fullmatch(re.escape(shown).replace(re.escape("..."), ".*"), done.stdout), done.stdout
    assert (tmp_path / "trip-7.html").stat().st_size > 1000
