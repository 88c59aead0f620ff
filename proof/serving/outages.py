"""Trials of saves: a server that is killed or refuses to write, networks that fail."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeAlias

import attrs

from proof.report import Report
from proof.serving.server import MODES, Network, Server
from proof.workers import limited
from stategraph import CheckpointStore, RunStatus, State
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores import Policy
from tests.scenarios import make_graph

SAVERS, RUNNERS = 3, 2  # threads that save by hand, and that run graphs, while a server is killed
_PATIENCE = 2.5  # seconds: to connect takes 2 at least
_LATE = 4.0  # seconds above that, on a machine that is busy
_TOGETHER = 10  # networks at a time


def step_of(run_id: str, step: int, **more: Any) -> State:
    """Return the State of a run after a step."""
    return State({"n": step, **more}, run_id=run_id, step=step)


# --------------------------------------------------------------------------- a server that is killed


@attrs.define
class _Load:
    """Threads that save as fast as they can.

    Attributes:
        store: The store.
        kept: The last step of each run that was acknowledged.
        ended: Runs of a graph that came to their end.
        raised: Their errors; there must be none.
    """

    store: CheckpointStore
    kept: dict[str, int] = attrs.field(factory=dict)
    ended: list[str] = attrs.field(factory=list)
    raised: list[str] = attrs.field(factory=list)
    stop: threading.Event = attrs.field(factory=threading.Event)

    def save(self, number: int) -> None:
        """Save one step of a run after the other."""
        run_id, step = f"saved-{number}", 0
        while not self.stop.is_set():
            step += 1
            self.store.save(step_of(run_id, step))
            self.kept[run_id] = step

    def run(self, number: int) -> None:
        """Run one graph after the other."""
        count = 0
        nodes = {name: lambda state: {"made": [*state.get("made", ()), state.step]} for name in "abcde"}
        while not self.stop.is_set():
            run_id = f"ran-{number}-{count}"
            state = make_graph(nodes, store=self.store, preserve=True).execute(State(run_id=run_id))
            if list(state["made"]) != [0, 1, 2, 3, 4]:
                self.raised.append(f"{run_id} came to {state['made']}")
            self.ended.append(run_id)
            count += 1

    def guarded(self, work: Callable[[int], None], number: int) -> None:
        """Do this, and note what it raises."""
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - it is looked at
            self.raised.append(f"{work.__name__} {number} ended with {error!r}")


def killed(server: Server, times: int, seed: int) -> Report:
    """Kill a server under load and start it again."""
    report = Report(f"{server.kind}: a server that is killed loses no acknowledged save, and no call hangs or fails")
    choice = random.Random(f"killed {seed}")  # noqa: S311 - no secret
    options = server.place()
    with limited(60 + 20 * times), closing(server.open(options, patience=60, lease=60)) as store:
        load = _Load(store)
        works = [(load.save, number) for number in range(SAVERS)] + [(load.run, number) for number in range(RUNNERS)]
        threads = [threading.Thread(target=load.guarded, args=work) for work in works]
        for thread in threads:
            thread.start()
        for _ in range(times):
            time.sleep(0.05 + choice.random() * 0.4)
            kept = dict(load.kept)
            server.crash()
            report.failures += [f"after a kill: {wrong}" for wrong in _missing(store, kept)]
            report.tried["killed"] += 1
        time.sleep(0.2)
        load.stop.set()
        for thread in threads:
            thread.join()
        report.failures += load.raised + [f"in the end: {wrong}" for wrong in _missing(store, load.kept)]
        report.failures += [
            f"{run_id} is not complete" for run_id in load.ended if store.load(run_id).status is not RunStatus.COMPLETED
        ]
    report.found.update({"saves acknowledged": sum(load.kept.values()), "runs completed": len(load.ended)})
    return report


def _missing(store: CheckpointStore, kept: dict[str, int]) -> list[str]:
    found = {run_id: store.load(run_id) for run_id in kept}
    return [
        f"{run_id} is at step {found[run_id].step}, and step {step} was acknowledged"
        for run_id, step in kept.items()
        if found[run_id].step < step or found[run_id]["n"] != found[run_id].step
    ]


# --------------------------------------------------------------------------- networks that fail


_States: TypeAlias = dict[int, State]


@attrs.frozen
class _Change:
    """Something that is done through a network that fails.

    Attributes:
        make: Does it with these States, by their steps: again, if it is called again.
        steps: The steps that the run has then, none if it is gone.
        is_for_once: Whether it is refused where it was made already: the first of several steps is an old one by then.
    """

    make: Callable[[CheckpointStore, _States], Any]
    steps: tuple[int, ...] | None
    is_for_once: bool = False


def _run(store: CheckpointStore, _: _States) -> None:
    graph = make_graph(dict.fromkeys("ab", lambda state: {"n": state.step}), store=store, preserve=True)
    graph.run(State(run_id="ran"), wait=5)


_BEFORE = (1, 2)  # the steps that a run has
_CHANGES: dict[str, _Change] = {
    "next step": _Change(lambda store, states: store.save(states[3]), (1, 2, 3)),
    "several steps": _Change(lambda store, states: store.save_many([states[3], states[4]]), (1, 2, 3, 4), True),
    "first step": _Change(lambda store, states: store.save(attrs.evolve(states[3], run_id="another")), (1, 2)),
    "deletion": _Change(lambda store, states: store.delete("run"), None),
    "run": _Change(_run, (1, 2)),
}


def networks(server: Server, times: int, seed: int) -> Report:
    """Let networks swallow what is said in either direction, and cut connections before and after a commit."""
    title = "a save through a network that fails is made once, or fails in time and can be made again"
    report = Report(f"{server.kind}: {title}")
    choice = random.Random(f"networks {seed}")  # noqa: S311 - no secret
    options = server.place()
    server.open(options).close()  # the tables are made
    trials = [(mode, choice.choice(sorted(_CHANGES))) for mode in MODES for _ in range(times)]
    with limited(60 + 10 * times), ThreadPoolExecutor(_TOGETHER) as threads:
        parts = threads.map(lambda trial: _through(server, *trial), trials)
        for part in parts:
            report.add(part)
    return report


def _through(server: Server, mode: str, name: str) -> Report:
    """Make a change through a network that fails."""
    report, change, options = Report(""), _CHANGES[name], server.place()
    report.tried[mode] += 1
    with closing(server.open(options)) as direct, closing(server.network(options)) as network:
        direct.retain("run", Policy("windowed", 10))  # with all steps, and one checkpoint of each
        for step in _BEFORE:
            direct.save(step_of("run", step))
        with closing(server.open(network.options, patience=_PATIENCE)) as store:
            store.load("run")
            wrong = _made(store, direct, network, mode, change)
    report.found["made at once" if mode.startswith("cut") else "made once more"] += 1
    report.failures += [f"{mode}, {name}: {problem}" for problem in wrong]
    return report


def _made(
    store: CheckpointStore, direct: CheckpointStore, network: Network, mode: str, change: _Change
) -> Sequence[str]:
    states = {step: step_of("run", step) for step in (3, 4)}
    network.mode, began = mode, time.monotonic()
    try:
        change.make(store, states)
    except CheckpointError as error:
        took = time.monotonic() - began
        network.mode = "pass"
        if mode.startswith("cut"):
            return [f"it raised {error!r}"]
        if took > 2 * _PATIENCE + _LATE:
            return [f"it took {took:.1f} s to fail"]
        if _steps(direct) not in (_BEFORE, change.steps):
            return [f"it failed, and left steps {_steps(direct)}"]
        if _steps(direct) == _BEFORE or not change.is_for_once:
            change.make(store, states)
    else:
        if not mode.startswith("cut"):
            return ["it was made without an answer"]
    return [] if _steps(direct) == change.steps else [f"it was made, and left steps {_steps(direct)}"]


def _steps(store: CheckpointStore) -> tuple[int, ...] | None:
    """Return the steps that the run has, each as often as it has it."""
    return tuple(row.step for row in store.history("run")) or None


# --------------------------------------------------------------------------- refusals


def read_only(server: Server, times: int, seed: int) -> Report:
    """Let the server refuse to write for a while: shorter, and longer than a save has patience."""
    report = Report(f"{server.kind}: what a server that cannot be written to refuses is told, and is made later")
    with closing(server.open(server.place(), patience=2)) as store:
        for number in range(times):
            run_id, is_long = f"run-{number}", number % 2 == 0
            store.save(step_of(run_id, 1))
            report.tried["refused for long" if is_long else "refused for a moment"] += 1
            with limited(), ThreadPoolExecutor(1) as thread:
                with server.read_only():
                    save = thread.submit(store.save, step_of(run_id, 2))
                    time.sleep(3 if is_long else 0.3)
                    if store.load(run_id).step != 1:
                        report.failures.append(f"{run_id} was written to")
                error = save.exception()
            if is_long != isinstance(error, CheckpointSaveError):
                report.failures.append(f"{run_id}: {error!r}")
            store.save(step_of(run_id, 2))
            report.failures += [] if store.load(run_id).step == 2 else [f"{run_id} was not saved"]
    return report
