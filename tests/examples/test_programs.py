"""The examples that are programs: over a pipe, on a terminal, and killed."""

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

from tests.postgres_server import dsn

EXAMPLES = Path(__file__).parents[2] / "examples"


def command(name: str, *arguments: str) -> list[str]:
    """The command line of an example."""
    return [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]


def run(folder: Path, name: str, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Run an example in a folder, with text piped in -> its exit code, and all that it prints."""
    result = subprocess.run(
        command(name, *arguments), cwd=folder, input=typed, capture_output=True, text=True, timeout=300, check=False
    )
    return result.returncode, result.stdout + result.stderr


def run_on_a_terminal(folder: Path, name: str, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Run an example in a folder, where a person types this -> its exit code, and all that the terminal shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(name, *arguments),
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    seen = b""
    while True:
        try:
            ready, _, _ = select.select([ours], [], [], 300)
            part = os.read(ours, 4096) if ready else b""
        except OSError:  # Linux says so when the program has closed its end
            part = b""
        if not part:
            break
        seen += part
    os.close(ours)
    return process.wait(timeout=300), seen.decode().replace("\r\n", "\n")


def test_a_run_hears_messages(tmp_path: Path) -> None:
    """What is sent while it works is taken in before the next step."""
    lines = ["line 1, plain", "line 2, plain", "line 3, plain", "line 4, cheerful", "heard: cheerful", ""]
    assert run(tmp_path, "messages") == (0, "\n".join(lines))


class TestApproval:
    def test_each_command_is_a_process_of_its_own(self, tmp_path: Path) -> None:
        """An order waits in the file until another process answers; what will not do leaves it waiting."""
        assert run(tmp_path, "approval", "order", "pen", "5") == (0, "pen: ordered for 5 EUR\n")
        assert run(tmp_path, "approval", "order", "desk", "950") == (0, "desk waits: spend 950 EUR? (over the limit)\n")
        assert run(tmp_path, "approval", "waiting") == (0, "desk: over the limit\n")

        code, text = run(tmp_path, "approval", "answer", "desk", "perhaps")
        assert code == 1
        assert "'perhaps' is refused" in text
        assert run(tmp_path, "approval", "answer", "desk")[0] == 1
        assert run(tmp_path, "approval", "answer", "desk", "no") == (0, "desk: rejected\n")
        assert run(tmp_path, "approval", "waiting") == (0, "")

        code, text = run(tmp_path, "approval", "answer", "desk", "yes")
        assert code == 1
        assert "run 'desk' is complete" in text

    def test_on_a_terminal_it_asks(self, tmp_path: Path) -> None:
        """The program asks at once, and again until it accepts the answer."""
        code, text = run_on_a_terminal(tmp_path, "approval", "order", "desk", "950", typed="perhaps\nyes\n")

        assert code == 0
        assert text.count("spend 950 EUR? [yes/no]") >= 2
        assert text.endswith("desk: ordered for 950 EUR\n")


class TestAssistant:
    def test_another_process_remembers(self, tmp_path: Path) -> None:
        """Turns of several processes belong to one run."""
        first = run(tmp_path, "assistant", typed="my name is Ada\n12 * 12\n")
        second = run(tmp_path, "assistant", typed="what is my name?\nwell\n")

        assert first == (0, "I will remember that your name is Ada. [step 3]\n12 * 12 is 144. [step 6]\n")
        assert second == (0, "Your name is Ada. [step 9]\nYou have said 4 things to me. Tell me more. [step 12]\n")


def test_a_killed_map_does_not_begin_again(tmp_path: Path) -> None:
    """Items that were saved before the kill are not repeated; the example checks the rest itself."""
    code, text = run(tmp_path, "map_files")

    assert code == 0, text
    assert "first process: killed" in text
    spared, files = map(int, re.findall(r"not done again: (\d+) of (\d+) files", text)[0])
    assert 40 <= spared < files
    assert list(tmp_path.iterdir()) == []


class TestKilledWorker:
    def test_the_other_worker_does_what_is_left(self, tmp_path: Path) -> None:
        """All runs finish; only steps that were running at the kill are done twice."""
        code, output = run(tmp_path, "killed_worker", dsn())  # a server of the tests: they stop it even if this fails

        assert (code, "30 of 30 runs are complete" in output) == (0, True), output
        saved = int(re.findall(r"(\d+) of 90 steps were saved by worker", output)[0])
        killed = re.findall(r"worker (\d+) is killed", output)[0]
        twice = re.findall(r"twice: \w+ of [\w-]+, which (\d+) was running when it was killed", output)
        assert saved > 0
        assert set(twice) <= {killed}
        assert len(twice) <= 4  # as many turns as it had at the same time
