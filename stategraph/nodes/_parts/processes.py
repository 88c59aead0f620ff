"""The parts of a step in processes. A part that cannot be sent, or whose process dies, fails alone."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import name_of
from stategraph.nodes._parts.jobs import Job, Outcome, outcome_of_error
from stategraph.nodes._parts.pools import LOOK
from stategraph.nodes._parts.trying import Trying

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_Error = TypeVar("_Error", bound=BaseException)

_END = b""  # tells a process that there is nothing more to be done
_PATIENCE = 5  # seconds for a process to end that has closed its connection
_LOOK = 1.0  # seconds after which is looked for processes that have died without that: one they began has it as well


@attrs.define(eq=False)
class _Worker:
    """A process, the connection to it, and the job that it does, if any.

    Attributes:
        is_sound: Whether nobody was interrupted while something went over the connection.
    """

    process: BaseProcess
    connection: Connection
    job: Job | None = None
    is_sound: bool = True
    began: float = 0.0

    @property
    def at_work_for(self) -> float:
        """For how many seconds the job has been there."""
        return time.monotonic() - self.began

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return self.process.exitcode is not None

    def send(self, packed: bytes) -> None:
        """Send a message as a whole; a failure means that this process cannot be used any more."""
        self.is_sound = False
        with suppress(OSError):  # it has died: that is found out where it is waited for
            self.connection.send_bytes(packed)
        self.is_sound = True

    def receive(self) -> bytes:
        """Return a message. Raises EOFError or OSError if the process has died."""
        self.is_sound = False
        packed = self.connection.recv_bytes()
        self.is_sound = True
        return packed


class ProcessPool:
    """Sync functions in processes. Functions, arguments and results are sent by pickle."""

    is_async = False

    def __init__(self, jobs: Sequence[Job], workers: int, trying: Trying | None = None) -> None:
        _check_importable({id(job.function): job.function for job in jobs}.values())
        self._jobs, self._most, self._trying = deque(jobs), min(workers, len(jobs)), trying
        self._later: list[tuple[float, Job]] = []  # those to be tried again, and when
        self._begins_at: float | None = None  # when the next job may begin, if that has been asked
        self._workers: list[_Worker] = []
        self._ends: tuple[Connection, ...] = ()
        self._lock, self._is_stopped = threading.Lock(), False

    def next(self, _: object = None) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while not outcomes and not self._is_stopped:
            outcomes = self._fill()
            if not outcomes:
                ready = self._ready(None if self._trying is None else LOOK)
                with self._lock:
                    outcomes = [] if self._is_stopped else [*self._taken(ready), *self._cut_off()]
            if self._trying is not None:
                break
        return outcomes

    def halt(self) -> None:
        self._is_stopped = True

    def stop(self, wait: bool) -> list[Outcome]:
        outcomes: list[Outcome] = []
        self.halt()
        try:
            if not wait:  # first: a thread that was left in `next` may be in the middle of sending to one of these
                for worker in [worker for worker in self._workers if worker.job is not None]:
                    worker.process.kill()
            with self._lock:  # such a thread begins and takes nothing from now on
                while wait and self._busy():
                    outcomes += self._taken(self._ready())
                outcomes += self._taken(self._busy())
        finally:
            self._end()
        return outcomes

    def _end(self) -> None:
        """End all processes: idle ones by a message, the others at once."""
        for worker in self._workers:
            if worker.job is None and worker.is_sound:  # to close the connection would not do while such a thread waits
                with suppress(OSError):
                    worker.connection.send_bytes(_END)
            else:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(_PATIENCE)  # longer, where a job has left a thread of its own that does not end
            worker.process.kill()
            worker.process.join()
        for end in (*self._ends, *(worker.connection for worker in self._workers)):
            end.close()

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.job is not None and worker.is_sound]

    def _fill(self) -> list[Outcome]:
        """Give each process a job; return the outcomes of jobs that cannot be sent to one."""
        outcomes: list[Outcome] = []
        with self._lock:
            if self._is_stopped:
                return []
            self._take_up_later()
            while len(self._workers) < min(self._most, len(self._busy()) + len(self._jobs)):
                self._workers.append(self._new_worker())
            for worker in self._workers:
                while worker.job is None and self._jobs and self._may_begin():
                    outcomes += _give(worker, self._jobs.popleft())
        return outcomes

    def _take_up_later(self) -> None:
        """Put those jobs in front whose time has come to be tried again."""
        now = time.monotonic()
        self._jobs.extendleft(job for at, job in self._later if at <= now)
        self._later = [(at, job) for at, job in self._later if at > now]

    def _may_begin(self) -> bool:
        """Return whether a job may begin now, as far as the rate goes."""
        if self._trying is None:
            return True
        if self._begins_at is None:
            self._begins_at = time.monotonic() + self._trying.begins_in()
        if time.monotonic() < self._begins_at:
            return False
        self._begins_at = None
        return True

    def _cut_off(self) -> list[Outcome]:
        """End the processes whose jobs have taken too long; return the outcomes of these."""
        if self._trying is None or self._trying.timeout is None:
            return []
        outcomes = []
        for worker in self._busy():
            if worker.job is not None and worker.at_work_for >= self._trying.timeout and not worker.connection.poll():
                worker.process.kill()
                _death(worker)
                self._workers.remove(worker)
                outcome = outcome_of_error(worker.job, self._trying.too_late(), self._trying.timeout)
                outcomes.append(self._over(worker.job, outcome))
        return outcomes

    def _over(self, job: Job, outcome: Outcome) -> Outcome:
        """Return the outcome of a job; of one that is tried again, what is told of that."""
        again = None if self._trying is None or self._is_stopped else self._trying.again(job, outcome)
        if again is None:
            return outcome
        job, told = again
        self._later.append((time.monotonic() + (told.delay or 0), job))
        return told

    def _new_worker(self) -> _Worker:
        import multiprocessing  # imported when used

        # Not forked: a lock that another thread of this process holds would stay locked in the child.
        context = multiprocessing.get_context("spawn")
        self._ends = self._ends or context.Pipe(duplex=False)
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._ends[0]), name="stategraph part")
        process.start()
        theirs.close()  # so that the end of the process ends the connection
        return _Worker(process, ours)

    def _ready(self, seconds: float | None = None) -> list[_Worker]:
        """Wait, so long at most, and return the processes that have sent an outcome, or have died."""
        from multiprocessing.connection import wait

        until = None if seconds is None else time.monotonic() + seconds
        while (busy := self._busy()) or until is not None:
            left = _LOOK if until is None else min(_LOOK, max(0.0, until - time.monotonic()))
            ready = wait([worker.connection for worker in busy], left)
            found = [worker for worker in busy if worker.connection in ready or worker.is_dead]
            if found or self._is_stopped or (until is not None and time.monotonic() >= until):
                return found
        return []

    def _taken(self, workers: Sequence[_Worker]) -> list[Outcome]:
        """Return the outcomes of these processes that have sent one, or have died."""
        outcomes: list[Outcome] = []
        for worker in workers:
            job, is_dead = worker.job, worker.is_dead  # asked first: what it sent before it died is there then
            if job is None:
                continue
            try:
                packed = worker.receive() if worker.connection.poll() else None
            except (EOFError, OSError):
                packed, is_dead = None, True
            if packed is not None:
                worker.job = None
                outcome = attrs.evolve(_outcome(job, _unpickled(packed)), took=worker.at_work_for)
                outcomes.append(self._over(job, outcome))
            elif is_dead:
                outcomes.append(self._over(job, outcome_of_error(job, _death(worker), worker.at_work_for)))
                self._workers.remove(worker)
        return outcomes


def _give(worker: _Worker, job: Job) -> list[Outcome]:
    """Send a job to a process; return its outcome if it cannot be sent."""
    try:
        packed = _pickled((job.function, job.argument))
    except Exception as error:  # noqa: BLE001 - an error of the job
        what = f"its argument, {shorten(job.argument)}, cannot be sent to a process: {describe_exception(error)}"
        return [outcome_of_error(job, _caused(TypeError(what), error))]
    worker.job, worker.began = job, time.monotonic()
    worker.send(packed)
    return []


def _death(worker: _Worker) -> Exception:
    """Return the error of a job whose process has died."""
    from concurrent.futures.process import BrokenProcessPool

    worker.connection.close()
    worker.process.join(_PATIENCE)
    worker.process.kill()  # or, if it is not dead, nobody hears of it any more
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return BrokenProcessPool(f"the process that did it died ({how}): killed, as for want of memory, or by what it did")


def _check_importable(functions: Iterable[Callable[[Any], Any]]) -> None:
    """Raise TypeError where a function cannot be sent to a process: before one is started, which may wait for ever."""
    import pickle

    for function in functions:
        try:
            pickle.dumps(function)
        except Exception as error:
            raise TypeError(
                f"processes: {name_of(function)} cannot be sent to a process ({error}): "
                "define it at the top of a module that can be imported"
            ) from error


# --------------------------------------------------------------------------- what goes there and back


@attrs.frozen
class _Result:
    """What a function has returned, as bytes: if they cannot be read, only this job fails."""

    packed: bytes


@attrs.frozen
class _Raised:
    """What a function has raised, as bytes, and in words in case the bytes cannot be read."""

    packed: bytes
    name: str
    text: str
    traceback: str
    problem: str = ""


_Reply: TypeAlias = _Result | _Raised


class StandInError(RuntimeError):
    """Stands for an exception that cannot be sent from its process; its class has the same name."""


class _Traceback(Exception):  # noqa: N818 - no error, but what is shown as the cause of one
    """The traceback of an exception in its process."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _pickled(value: Any) -> bytes:
    from multiprocessing.reduction import ForkingPickler

    return bytes(ForkingPickler.dumps(value))


def _unpickled(packed: bytes) -> Any:
    import pickle

    return pickle.loads(packed)  # noqa: S301 - this process, or one of its own, has made it


def _do(packed: bytes) -> _Reply:
    """Call a function with an argument, in a process, and return the outcome."""
    try:
        function, argument = _unpickled(packed)
        result = function(argument)
    except BaseException as error:  # noqa: BLE001 - raised in the process of the run
        return _raised(error)
    try:
        return _Result(_pickled(result))
    except Exception as error:  # noqa: BLE001 - as above
        what = f"its result, {shorten(result)}, cannot be sent from its process: {describe_exception(error)}"
        return _raised(_caused(TypeError(what), error))


def _raised(error: BaseException) -> _Raised:
    name = type(error).__name__
    text = describe_exception(error).removeprefix(name).removeprefix(": ")
    trace = "".join(traceback.format_exception(error))
    try:
        return _Raised(_pickled((error, error.args)), name, text, trace)
    except Exception as problem:  # noqa: BLE001 - told beside the exception
        return _Raised(b"", name, text, trace, describe_exception(problem))


def _outcome(job: Job, reply: _Reply) -> Outcome:
    """Return the outcome of a job, from what its process sent."""
    if isinstance(reply, _Raised):
        return outcome_of_error(job, _exception(reply))
    try:
        return Outcome(job.label, _unpickled(reply.packed))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an error of the job
        what = f"its result cannot be made again of what its process sent: {describe_exception(error)}"
        return outcome_of_error(job, _caused(TypeError(what), error))


def _exception(raised: _Raised) -> BaseException:
    """Return what a function raised in its process or, if that cannot be sent, an exception that stands for it."""
    problem = raised.problem
    error: BaseException | None = None
    if not problem:
        try:
            error, args = _unpickled(raised.packed)
            error.args = args  # its text: an __init__ that made the arguments has made something of them again
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - told in a note
            problem = describe_exception(failure)
    if isinstance(error, SystemExit):
        from concurrent.futures.process import BrokenProcessPool

        error = BrokenProcessPool(f"what it did was to end its process: {describe_exception(error)}")
    if problem or not isinstance(error, BaseException):
        error = type(raised.name, (StandInError,), {"__module__": __name__})(raised.text)
        error.add_note(f"it stands for the exception of that name, which cannot be sent from its process: {problem}")
    return _caused(error, _Traceback(raised.traceback))


def _caused(error: _Error, cause: BaseException) -> _Error:
    error.__cause__ = cause
    return error


def _work(connection: Connection, wanted: Connection) -> None:
    """Do one job after the other, in a process, as long as the pool is there.

    The other end of `wanted` is closed when the owner of the pool is gone, even if it was killed: then this ends, even
    in the middle of a job.
    """
    from multiprocessing.connection import wait

    def watch() -> None:
        wait([wanted])
        os._exit(1)

    threading.Thread(target=watch, name="stategraph parent", daemon=True).start()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while (packed := connection.recv_bytes()) != _END:
            connection.send_bytes(_pickled(_do(packed)))
