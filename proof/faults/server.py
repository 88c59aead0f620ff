"""Run workloads under the shim, each in a process that is forked from this one after its imports.

A request is a line of JSON on standard input, an answer one on standard output.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proof.faults import shim
from proof.possible import Possible, problems_of
from proof.workload import Workload, open_store, scripts, states_of

KILLED, HUNG, RAISED, ENDED = "killed", "hung", "raised", "ended"
_DIARY, _ANSWER, _RECORD, _STORE = "diary", "answer", "record", "store"


def main() -> None:
    """Answer requests until there are no more."""
    _leave_behind()
    open_store(_left().with_name("warm")).close()  # what that imports is imported once
    for script in scripts().values():
        states_of(script)
    gc.freeze()  # forked processes share these objects
    for line in sys.stdin:
        request = json.loads(line)
        answer = _WORK[request.pop("work")](Path(request.pop("root")), **request)
        print(json.dumps(answer), flush=True)


def _left() -> Path:
    return Path(os.environ["PROOF_FOLDER"]) / "left"


def _leave_behind() -> None:
    """Leave a store as a process that was killed does."""
    left = _left()

    def work() -> None:
        open_store(left / _STORE)
        os.kill(os.getpid(), signal.SIGKILL)

    left.mkdir()
    _fork(left, work, timeout=60)


def run(root: Path, *, script: str, fault: int, at: int, record: str, timeout: float) -> dict[str, Any]:
    """Run a workload in a fresh folder -> how it ended."""
    shutil.rmtree(root, ignore_errors=True)
    if scripts()[script].afresh:
        root.mkdir()
    else:
        shutil.copytree(_left(), root)

    def work() -> None:
        target = root / _STORE
        shim.begin(root, target, root / _RECORD if record else None, with_data=record == "data")
        workload = Workload(scripts()[script], target, root / _DIARY)
        workload.run(lambda: _arm(root, shim.Fault(fault), at))
        (root / _ANSWER).write_text(json.dumps(shim.happened()))

    ended = _fork(root, work, timeout)
    return {"ended": ended, "happened": ended == KILLED or _answer(root), "trace": _trace(root)}


def check(root: Path, *, script: str, timeout: float) -> dict[str, Any]:
    """Check the files of a workload in another process; return the problems."""

    def work() -> None:
        diary = root / _DIARY
        text = diary.read_text() if diary.exists() else ""
        possible = Possible(scripts()[script])
        possible.read(text)
        wrong = problems_of(possible, root / _STORE)
        (root / _ANSWER).write_text(json.dumps([wrong, possible.counts, possible.failed_twice]))

    (root / _ANSWER).unlink(missing_ok=True)
    ended = _fork(root, work, timeout)
    wrong, counts, failed_twice = _answer(root) or [[f"the check {ended}: {_trace(root)}"], {}, []]
    return {"wrong": wrong, "counts": counts, "failed_twice": failed_twice}


def run_and_check(root: Path, timeout: float, **request: Any) -> dict[str, Any]:
    """Run a workload and check its files."""
    answer = run(root, timeout=timeout, **request)
    answer |= check(root, script=request["script"], timeout=timeout)
    shutil.rmtree(root, ignore_errors=True)
    return answer


_WORK: dict[str, Callable[..., dict[str, Any]]] = {"run": run, "check": check, "run_and_check": run_and_check}


def _arm(root: Path, fault: shim.Fault, at: int) -> None:
    os.close(os.open(root / "armed", os.O_WRONLY | os.O_CREAT, 0o600))  # where the record shows it
    shim.plan(fault, at)


def _fork(root: Path, work: Callable[[], None], timeout: float) -> str:
    """Call a function in a forked process; return how it ended."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - reported to the client
            (root / "trace").write_text(traceback.format_exc())
        finally:
            os._exit(status)
    return _wait(child, timeout)


def _wait(child: int, timeout: float) -> str:
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    in_time = bool(poll.poll(timeout * 1000))
    os.close(handle)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not in_time:
        return HUNG
    if os.WIFSIGNALED(status):
        return KILLED if os.WTERMSIG(status) == signal.SIGKILL else f"signal {os.WTERMSIG(status)}"
    return RAISED if os.WEXITSTATUS(status) else ENDED


def _answer(root: Path) -> Any:
    try:
        return json.loads((root / _ANSWER).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _trace(root: Path) -> str:
    trace = root / "trace"
    return trace.read_text()[-600:] if trace.exists() else ""


if __name__ == "__main__":
    main()
