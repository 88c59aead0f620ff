"""The demonstration: an audit is killed halfway, looked at, resumed by another process, and checked."""

import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs

from stategraph import State, get_checkpoint_store
from stdlib_audit.discover import batches
from stdlib_audit.evidence import by_process, executions, repeated, violations
from stdlib_audit.progress import show_cursor

RUN_ID = "stdlib-audit"

_POLL_SECONDS = 0.005
_REPORT_LINES = 16
# With fewer batches, half of them may be done before the first checkpoint.
_FEWEST_BATCHES = 20

# Flushed, because the audits started here write to the same terminal or pipe.
_say = partial(print, flush=True)


@attrs.frozen
class Demo:
    """An audit to be killed: the script to run and to resume it with, where it may write, and its size."""

    script: Path
    directory: Path
    files: int
    batch_size: int

    @property
    def batches(self) -> int:
        """The number of batches."""
        return batches(self.files, self.batch_size)

    @property
    def store(self) -> Path:
        """The directory of the checkpoints."""
        return self.directory / "store"

    @property
    def log(self) -> Path:
        """The record of executed batches."""
        return self.directory / "batches.log"

    @property
    def report(self) -> Path:
        """The finished report."""
        return self.directory / "report.md"

    def command(self, *arguments: object) -> list[str]:
        """The command line of an audit with this store, log and report."""
        places = ("--store", self.store, "--log", self.log, "--report", self.report)
        return [str(part) for part in (sys.executable, self.script, *arguments, *places)]


def demonstrate(demo: Demo) -> None:
    """Run the demonstration and print each step.

    Raises:
        SystemExit: the audit is too small, could not be killed in time, or was not resumed as promised.
    """
    if demo.batches < _FEWEST_BATCHES:
        raise SystemExit(f"{demo.batches} batches are too few to be killed among, it takes {_FEWEST_BATCHES}")
    _clear(demo)
    _run_and_kill(demo)
    checkpoint = _load(demo)
    _show_store(demo, checkpoint)
    _resume(demo)
    _prove(demo, checkpoint)
    _show_savings(demo, checkpoint, _load(demo))
    _show_report(demo)


def _clear(demo: Demo) -> None:
    demo.directory.mkdir(parents=True, exist_ok=True)
    # Remove only the files of an earlier demonstration: the directory may hold others.
    shutil.rmtree(demo.store, ignore_errors=True)
    demo.log.unlink(missing_ok=True)
    demo.report.unlink(missing_ok=True)


def _run_and_kill(demo: Demo) -> None:
    _say(f"1. A process audits {demo.files:,} files in {demo.batches} batches.")
    options = ("--run-id", RUN_ID, "--limit", demo.files, "--batch-size", demo.batch_size)
    with subprocess.Popen(demo.command("run", *options)) as audit:
        try:
            _wait_for_batch(audit, demo.log, demo.batches // 2)
        finally:
            audit.kill()  # SIGKILL
    show_cursor()
    if audit.returncode >= 0:
        raise SystemExit(f"the audit ended before it could be killed (exit code {audit.returncode})")
    _say(f"   Process {audit.pid} was killed (SIGKILL) in batch {executions(demo.log)[-1].batch}.")


def _wait_for_batch(audit: "subprocess.Popen[bytes]", log: Path, batch: int) -> None:
    while audit.poll() is None and len(executions(log)) < batch:
        time.sleep(_POLL_SECONDS)


def _load(demo: Demo) -> State:
    return get_checkpoint_store("disk", path=str(demo.store)).load(RUN_ID)


def _show_store(demo: Demo, checkpoint: State) -> None:
    age = datetime.now(UTC) - checkpoint.timestamp
    _say(f"\n2. What the store at {demo.store} holds:")
    _say(f"   runs           {', '.join(get_checkpoint_store('disk', path=str(demo.store)).list())}")
    _say(f"   step           {checkpoint.step}, completed by node {checkpoint.checkpoint_node}")
    _say(f"   files done     {len(checkpoint['measured']):,} of {len(checkpoint['files']):,}")
    _say(f"   saved          {checkpoint.timestamp:%Y-%m-%d %H:%M:%S} UTC, {age.total_seconds():.1f} s ago")


def _resume(demo: Demo) -> None:
    _say("\n3. A new process resumes the run from there.")
    with subprocess.Popen(demo.command("resume", RUN_ID)) as audit:
        pid, code = audit.pid, audit.wait()
    if code:
        raise SystemExit(f"the resumed audit failed (exit code {code})")
    _say(f"   Process {pid} completed it.")


def _prove(demo: Demo, checkpoint: State) -> None:
    runs, saved = executions(demo.log), batches(len(checkpoint["measured"]), demo.batch_size)
    _say(f"\n4. What {demo.log} proves, where each batch is noted when it begins:")
    for pid, done in by_process(runs).items():
        _say(f"   process {pid} did batches {done[0]} to {done[-1]}")
    _say(f"   batches 1 to {saved} were in the checkpoint; done twice: {_listed(repeated(runs))}")
    if wrong := violations(runs, saved, demo.batches):
        raise SystemExit("\n".join(["the checkpoint did not keep its promise:", *wrong]))
    _say(f"   so none of the first {saved} was done again, and none of the {demo.batches} was left out")


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _show_savings(demo: Demo, checkpoint: State, final: State) -> None:
    files, seconds = len(checkpoint["measured"]), checkpoint["seconds"]
    _say("\n5. Work saved by the checkpoint:")
    _say(f"   files          {files:,} of {demo.files:,}, {files / demo.files:.0%}")
    _say(f"   time           {seconds:.1f} s of {final['seconds']:.1f} s, {seconds / final['seconds']:.0%}")


def _show_report(demo: Demo) -> None:
    lines = demo.report.read_text(encoding="utf-8").splitlines()
    _say(f"\n6. The report is {demo.report}. It begins:\n")
    for line in lines[:_REPORT_LINES]:
        _say(f"   {line}".rstrip())
