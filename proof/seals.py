"""A store that is changed by somebody without its key, or damaged: what it says then is true, or it says nothing.

In every cell of every row there comes to be what another row has there, of the same run, of another, of one that was
deleted, of another store with the same key, or something made up; rows are taken out, exchanged, copied and moved, runs
put together of what they were at different times; tables are added, files cut off. Then everything is asked of the
store that can be asked, by one who opens it, by one who had it open, and by a run that is under way: each gives what it
would have given otherwise, or an error that says so. After every write, all of the store is read by somebody else: what
was changed is never sealed as if it had been saved. A store without a key is damaged, as a disk may do it.

What signatures do not promise is in `proof.forging.judge`.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from proof.forging.calls import Question
from proof.forging.changed import Past
from proof.forging.judge import Judge, Wrong
from proof.forging.play import Call, Forgery, Played, Player, possible_calls
from proof.forging.scene import RUNS, Scene, build
from proof.forging.tables import UnchangeableError, outermost
from proof.forging.ways import Ways
from proof.report import Report
from proof.workers import WORKERS, determine, limited, tell, work_out
from proof.workload import STORES
from stategraph._owners.holds import held

CASES = {"signed": 1_400, "unsigned": 300}
"""Changes at share 1.0, over both stores. After each, all is read, and so it is after each of two calls."""

_IN_MEMORY = "/dev/shm"  # noqa: S108 - where there is one; what a sync does is for other proofs
_TITLES = {
    "signed": "a store that is changed without its key is believed nothing that was not saved",
    "unsigned": "a store that is damaged is believed nothing that was not saved",
}


def prove(share: float, seed: int) -> list[Report]:
    """Change stores with a key, and damage stores without one; return a report for each."""
    with ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(lambda which: _prove(which[0], which[1], share, seed), product(STORES, CASES)))


def _prove(name: str, mode: str, share: float, seed: int) -> Report:
    report = Report(f"{name}: {_TITLES[mode]}")
    count = max(1, round(CASES[mode] * share / len(STORES)))
    work_out("seals", [(name, mode, count, seed)], report)
    report.failures = _together(report.failures)
    return report


def _together(failures: list[str]) -> list[str]:
    """Return failures by what was asked, with what was changed, how often, and one example."""
    found: dict[str, list[tuple[str, str]]] = {}
    others = [failure for failure in failures if "\t" not in failure]
    for failure in failures:
        asked, _, rest = failure.partition("\t")
        what, _, example = rest.partition("\t")
        if rest:
            found.setdefault(asked, []).append((what, example))
    lines = []
    for asked, cases in sorted(found.items(), key=lambda item: -len(item[1])):
        counted = Counter(what for what, _ in cases).most_common()
        listed = ", ".join(f"{what} {count}" for what, count in counted[:40])
        lines.append(f"{asked}: {len(cases)} times ({listed}); such as {cases[0][1]}")
    return others + lines


# --------------------------------------------------------------------------- in a process of its own


def _work(name: str, mode: str, count: int, seed: str) -> Report:
    report = Report(mode)
    randomness = random.Random(seed)  # noqa: S311 - no secret
    memory = _IN_MEMORY if Path(_IN_MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="stategraph-proof-", dir=memory, ignore_cleanup_errors=True) as folder:
        with limited():
            scenes = [_scene(name, mode, Path(folder), salt) for salt in ("ours", "theirs")]
            players = {live: Player(scenes[0], Path(folder) / "case", is_live=live) for live in (False, True)}
            judges = {live: Judge(player) for live, player in players.items()}
            ways, past = Ways(*scenes), Past(scenes[0].moments)
            report.failures += _unseen(players[False], judges[False])
        for number, forgery in zip(range(count), _drawn(ways, mode, randomness), strict=False):
            player, judge = players[forgery.is_live], judges[forgery.is_live]
            believed: set[Question] = set()
            for call in _calls(forgery, randomness):
                with limited():
                    wrong = _try(player, judge, past, forgery, call, report)
                about = f"{forgery.what}: {forgery.how}\tcase {number}, {forgery.detail}"
                # What is believed at once is believed after every call: that need not be told again.
                new = {one.asked: one for one in reversed(wrong) if one.question not in believed or not one.question}
                report.failures += [f"{one.asked}\t{about}: {one.what}" for one in new.values()]
                believed |= {one.question for one in wrong if not call.name}
        report.found["histories that were told unread, and wrong"] += sum(judge.unread for judge in judges.values())
    return report


def _scene(name: str, mode: str, folder: Path, salt: str) -> Scene:
    own = folder / salt
    own.mkdir()
    return build(name, own, salt, is_signed=mode == "signed")


def _drawn(ways: Ways, mode: str, randomness: random.Random) -> Iterator[Forgery]:
    """Yield forgeries without an end: each kind comes once before any comes again."""
    while True:
        kinds = ways.forgeries() if mode == "signed" else ways.damages(4)
        randomness.shuffle(kinds)
        for way in kinds:
            forgery = way(randomness)
            if forgery is not None:
                yield forgery


def _calls(forgery: Forgery, randomness: random.Random) -> list[Call]:
    """Return what is called after a forgery, most of it about runs that it touches: first, all is read."""
    touched = [outermost(run, RUNS) for run in forgery.runs if outermost(run, RUNS) in RUNS]
    run = randomness.choice([*touched * 3, *RUNS] if touched else list(RUNS))
    calls = possible_calls(run)
    if forgery.takes_files:
        calls = [call for call in calls if call.when == "before"]
    return [Call("", ""), *randomness.sample(calls, 2)]


def _try(player: Player, judge: Judge, past: Past, forgery: Forgery, call: Call, report: Report) -> list[Wrong]:
    """Make one call of a store that is changed; return what is wrong with what came of it."""
    try:
        played = player.play(call, forgery)
    except UnchangeableError:
        report.found["changes that SQLite itself refuses"] += 1
        return []
    report.tried[forgery.how] += 1
    if past.has(played.changed):
        report.found["as it once was, head and rows together"] += 1
        return []
    wrong = judge.judge(call, played)
    report.found[_end(played, wrong)] += 1
    return wrong


def _end(played: Played, wrong: list[Wrong]) -> str:
    if wrong:
        return "BELIEVED, or a foreign error"
    if not (played.changed.touched or played.changed.is_general):
        return "nothing was changed"
    return "refused, or as if nothing had been changed"


def _unseen(player: Player, judge: Judge) -> Iterator[str]:
    """Yield what is not seen though it should be: else nothing would be proved. Whoever has the key is believed."""

    def apply(folder: Path) -> None:
        with player.scene.open(folder) as store, held(store, "died", take_over=True):  # it may be at work
            store.amend(store.load("died").set("n", 99))

    forgery = Forgery("all", "written with the key", "", apply, ("died",))
    for call in (Call("", ""), Call("resume", "died"), Call("resume", "died", "goes on")):
        if not judge.judge(call, player.play(call, forgery)):
            yield f"what is written with the key is not seen: {call}"


if __name__ == "__main__":
    determine(sys.argv[4])
    tell(_work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
