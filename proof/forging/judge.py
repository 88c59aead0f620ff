"""Whether what a store says is what it would say if nobody had changed it, or an error that says so, or less of it.

What signing cannot promise, and what is no failure here:

- A run, or all of the store, is as it once was, head and rows together; what it had since may still be there.
- A checkpoint that is not the newest is as it was before its step was saved again: it was put back alone.
- A revision has the number of one that was taken out, or overwritten, where the call saved it: see docs/signing.md.
- Lists tell of a run as it once was, where only its head was put back; to load it is refused.
- A run is not there, or rows of it are not, where they were taken out. It may then be begun anew.
- One that begins meets what was put where its rows will be, and is refused.
- Pages of runs leave out one whose place in the order somebody has changed, or given to another.
- A checkpoint that retention hides, and that is still needed by others, is shown.
- Histories of a store without a key, which is damaged: they are told without reading what the checksums are of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import attrs

from proof.forging.calls import LOGGED, Foreign, Missing, Question, Raised, Refused
from proof.forging.play import Call, Played, Player, deletion
from proof.forging.scene import RUNS
from proof.forging.tables import outermost, places
from proof.model import is_same_state
from stategraph import State
from stategraph.stores.summaries import Pruned, Summary

_LISTS = ("list", "runs", "runs, page by page", "runs of a status", "runs of a graph")


@attrs.frozen
class Wrong:
    """What must not have come.

    Attributes:
        asked: The kind of question, or of call.
        what: What is wrong with the answer.
        question: The question, if it was one.
    """

    asked: str
    what: str
    question: Question = ()


class Judge:
    """Judges what came of calls.

    Args:
        player: Makes the calls of the store as it is, to compare with.

    Attributes:
        unread: How often a history was wrong that may be: only `load` finds all damage of a store without a key.
    """

    def __init__(self, player: Player) -> None:
        self._player = player
        self.unread = 0
        self._known: dict[tuple[Call, frozenset[str]], Played] = {}
        self._saved: dict[str, list[State]] = {}
        self._there = frozenset(place.run for place in places(player.scene.rows).values() if place.is_head)
        for question, seen in player.genuine.items():
            if isinstance(seen, State):
                self._saved.setdefault(question[1], []).append(seen)
        for run, states in player.scene.saved.items():
            self._saved.setdefault(run, []).extend(states.values())

    def judge(self, call: Call, played: Played) -> list[Wrong]:
        """Return what is wrong with what came of a call."""
        worlds = [self._world(call, frozenset())]
        if played.changed.gone:
            worlds.append(self._world(call, played.changed.gone))
        case = _Case(call, played, worlds, self._there)
        wrong = list(self._wrong_outcome(case)) if call.name else []
        if case.is_cut_off or call.name == "prune" or played.changed.hides:  # it may have done nothing
            case.before = [self._world(Call("", ""), gone) for gone in (frozenset[str](), played.changed.gone)]
        if case.is_cut_off and call.name == "delete, and begin again":
            case.before.append(self._world(Call("", ""), frozenset({call.run})))
        after = f", after {call.kind}" if call.name else ""
        for question, seen in played.answers.items():
            if question == LOGGED:
                continue
            what = self._wrong_answer(question, seen, case)
            if what and self._is_told_unread(question, seen):
                self.unread += 1
            elif what:
                kind = "runs" if question[0].startswith("runs") else question[0]
                wrong.append(Wrong(f"{kind}{after}", f"{_asked(question)} gives {what}", question))
        return wrong

    def _is_told_unread(self, question: Question, seen: Any) -> bool:
        """Return whether this is a history of a store without a key: it is told without what the checksums are of."""
        return question[0] == "history" and isinstance(seen, list) and not self._player.scene.is_signed

    def _world(self, call: Call, gone: frozenset[str]) -> Played:
        """Return what comes of a call where nobody changes anything, or where runs are deleted instead."""
        known = self._known.get((call, gone))
        if known is None:
            forgery = deletion(gone, self._player.scene) if gone else None
            known = self._known[call, gone] = self._player.play(call, forgery)
        return known

    # ------------------------------------------------------------------ what a call returned

    def _wrong_outcome(self, case: _Case) -> Iterator[Wrong]:
        call, outcome = case.call, case.played.outcome
        if isinstance(outcome, Foreign):
            yield Wrong(call.kind, f"raises {outcome.error}")
            return
        expected = case.worlds[-1].outcome
        if isinstance(outcome, Pruned) and isinstance(expected, Pruned):
            most = expected.checkpoints + case.played.changed.added  # what somebody put where nothing is kept goes, too
            if not set(outcome.runs) <= set(expected.runs) or outcome.checkpoints > most:
                yield Wrong(call.kind, f"removes {outcome} instead of {expected}")
            return
        same = [world for world in case.worlds if _is_same(outcome, world.outcome)]
        if same and not any(case.has_effects_of(world) for world in same):
            yield Wrong(call.kind, f"its functions did {case.played.effects}, not {same[0].effects}")
        if not same and not (case.touches_call() and case.is_due(outcome, call.run)):
            yield Wrong(call.kind, f"{call.run}: gives {_instead(outcome, expected)}")

    # ------------------------------------------------------------------ what is read

    def _wrong_answer(self, question: Question, seen: Any, case: _Case) -> str:
        """Return what is wrong with an answer; empty if nothing is."""
        if isinstance(seen, Foreign):
            return f"a foreign error: {seen.error}"
        # A step that nobody asks for otherwise is one that is not there.
        missing = {question: Missing()} if question[0].startswith("load of a") else {}
        told = [missing | world.answers for world in case.allowed]
        expected = [answers[question] for answers in told if question in answers]
        if any(_is_same(seen, one) for one in expected):
            return ""
        if question[0] in _LISTS:
            return _wrong_list(seen, expected, case, by_page=question[0] == "runs, page by page")
        run = question[1]
        instead = _instead(seen, expected[0]) if expected else f"{_shown(seen)} instead of nothing"
        if not case.touches(run):
            return f"{instead}, though it is unharmed"
        if case.may_be_refused(seen, run) or (not expected and isinstance(seen, Missing)):
            return ""
        if question[0].startswith("load of a") and _is_hidden(seen, expected):
            saved = self._player.scene.saved.get(run, {}).get(seen.step)
            return "" if _is_same(seen, saved) else instead
        if question[0].startswith("load of a") and self._is_put_back(seen, case):
            return ""
        if question[0] == "history" and any(self._are_put_back(run, seen, one) for one in expected):
            return ""
        if question[0] == "load of a revision" and case.is_renumbered(seen, *question[1:3]):
            return ""
        return "" if expected and self._was_saved(question, seen, expected, case) else instead

    def _is_put_back(self, seen: Any, case: _Case) -> bool:
        """Return whether a checkpoint, not the newest one, is as it was before its step was saved again."""
        if not isinstance(seen, State):
            return False
        newest = [world.answers.get(("load", seen.run_id)) for world in case.worlds]
        is_newest = any(isinstance(state, State) and state.step <= seen.step for state in newest)
        former = self._player.scene.former.get(seen.run_id, ())
        return not is_newest and any(is_same_state(seen, state) for state in former)

    def _are_put_back(self, run: str, seen: Any, expected: Any) -> bool:
        """Return whether a history differs in checkpoints that were put back alone, and not in the newest one."""
        if not (isinstance(seen, list) and isinstance(expected, list) and len(seen) == len(expected)):
            return False
        former = self._player.scene.former.get(run, ())
        pairs = list(zip(seen, expected, strict=True))
        others = [(one, other) for one, other in pairs if one != other]
        are_former = all(one.step == other.step and _is_of(one, former) for one, other in others)
        return are_former and pairs[-1:] != others[-1:]

    def _was_saved(self, question: Question, seen: Any, expected: Sequence[Any], case: _Case) -> bool:
        """Return whether an answer tells of what was saved, where it may tell of less, or of a call cut off."""
        run = question[1]
        if not (case.is_cut_off or case.is_less(run)):
            return False
        saved = [*self._saved.get(run, ()), *case.saved(run)]
        if isinstance(seen, State):
            return any(is_same_state(seen, state) for state in saved)
        if question[0] == "parts":
            made = case.parts(run, *question[2:])
            return any(isinstance(one, dict) and seen.items() <= {**made, **one}.items() for one in expected)
        if isinstance(seen, list):
            known = [one for told in expected if isinstance(told, list) for one in told]
            places, saved = [(item.step, item.revision) for item in seen], case.saved(run)
            return len(places) == len(set(places)) and all(item in known or _is_of(item, saved) for item in seen)
        return False


@attrs.define
class _Case:
    """A call, what came of it, and what comes of it where nobody has changed anything: each of `worlds`.

    Attributes:
        there: The runs, also nested ones, that there were before.
        before: What may be read as well, because the call may have done nothing.
    """

    call: Call
    played: Played
    worlds: list[Played]
    there: frozenset[str]
    before: list[Played] = attrs.field(factory=list)

    @property
    def allowed(self) -> list[Played]:
        """Where to look for what may be read."""
        return [*self.worlds, *self.before]

    @property
    def is_cut_off(self) -> bool:
        """Whether the call may have ended on its way."""
        outcome = self.played.outcome
        return isinstance(outcome, Refused | Missing) or (isinstance(outcome, Raised) and outcome.is_unsaved)

    def is_reported(self, run: str) -> bool:
        """Return whether it is said that something is wrong with a run, in the log or when it is loaded."""
        answers = self.played.answers
        if self.played.changed.hides:
            return True  # nobody knows of it
        return f"{run!r}" in answers[LOGGED] or isinstance(answers.get(("load", run)), Refused | Missing)

    def saved(self, run: str) -> list[State]:
        """Return what the call saves of a run on its way."""
        return [state for world in self.worlds for state in world.saved if state.run_id == run]

    def is_renumbered(self, seen: Any, run: str, step: int) -> bool:
        """Return whether the call saves this State as one of a step: where rows of the run are changed, the number of
        one that is not there any more, or tells of another step, is given again."""
        changed = self.played.changed
        if not isinstance(seen, State) or seen.step != step or not (changed.is_general or run in changed.touched):
            return False
        return any(is_same_state(seen, state) for state in self.saved(run))

    def parts(self, run: str, step: int, node: str) -> dict[str, Any]:
        """Return the parts that the call finishes of a step on its way, by their labels."""
        made = [part for world in self.worlds for part in world.parts if run == self.call.run]
        return {part.label: part.value for part in made if (part.step, part.node) == (step, node)}

    def touches(self, run: str) -> bool:
        """Return whether anything of a run is changed; one that is begun may meet all that is."""
        changed = self.played.changed
        return changed.touches(run) or (self._is_begun(run) and bool(changed.touched))

    def _is_begun(self, run: str) -> bool:
        """Return whether the call may begin a run, also one that is nested in a run that it is about."""
        is_within = outermost(run, RUNS) in {self.call.run, *self.call.begins}
        return run in self.call.begins or (is_within and run not in self.there)

    def touches_call(self) -> bool:
        """Return whether the call may meet what is changed."""
        is_any = self.call.name == "prune" and bool(self.played.changed.touched)
        return is_any or any(map(self.touches, (self.call.run, *self.call.begins)))

    def is_less(self, run: str) -> bool:
        """Return whether something of a run may be missing; one that is begun may be a copy of what there is."""
        changed = self.played.changed
        return changed.is_less(run) or (run in self.call.begins and changed.is_less(self.call.run))

    def may_be_refused(self, seen: Any, run: str) -> bool:
        """Return whether an answer is an error that is due."""
        return self.touches(run) and self.is_due(seen, run)

    def is_due(self, seen: Any, run: str) -> bool:
        """Return whether an answer is one for what is changed."""
        return isinstance(seen, Refused) or (isinstance(seen, Missing) and self.is_less(run))

    def has_effects_of(self, world: Played) -> bool:
        """Return whether functions did what they do otherwise; where parts are missing, they may do more of it."""
        if self.played.changed.is_less(self.call.run):
            return set(self.played.effects) >= set(world.effects)
        return self.played.effects == world.effects


def _is_hidden(seen: Any, expected: Sequence[Any]) -> bool:
    """Return whether a State is given where there is none to see."""
    return isinstance(seen, State) and all(isinstance(one, Missing) for one in expected)


def _wrong_list(seen: Any, expected: Sequence[Any], case: _Case, *, by_page: bool) -> str:
    """Return what is wrong with a list of runs: it may be refused as a whole, or leave out what is changed."""
    changed = case.played.changed
    if isinstance(seen, Refused) and (changed.touched or changed.is_general):
        return ""
    if not isinstance(seen, list):
        return _shown(seen)
    lists = [one for one in expected if isinstance(one, list)]
    return min((_wrong_items(seen, one, case, by_page=by_page) for one in lists), key=len, default="a list")


def _wrong_items(seen: list[Any], expected: list[Any], case: _Case, *, by_page: bool) -> str:
    changed = case.played.changed
    begun = {*case.call.begins, *changed.gone} if changed.touched or changed.is_general else set[str]()
    seen, expected = ([_comparable(item, begun, case) for item in items] for items in (seen, expected))
    if case.is_cut_off:  # it may be on its way
        on_its_way = {
            item.run_id for item in seen if isinstance(item, Summary) and _is_of(item, case.saved(item.run_id))
        }
        seen, expected = ([item for item in items if _run_of(item) not in on_its_way] for items in (seen, expected))
    strange = [item for item in seen if item not in expected or seen.count(item) > 1]
    # The order is under no seal: see docs/signing.md.
    is_changed = changed.is_general or changed.touched
    if strange or (not is_changed and [item for item in expected if item in seen] != seen):
        return f"{_shown(strange or seen)}, which is not so, or not in this order, or not so often"
    for item in expected:
        run = _run_of(item)
        if is_changed and by_page:
            continue  # where a page ends depends on the order
        if item not in seen and not case.touches(run):
            return f"no {run}, which is unharmed"
        if item not in seen and not case.is_reported(run):
            return f"no {run}, which loads, and nothing says why"
    return ""


def _comparable(item: Any, begun: Collection[str], case: _Case) -> Any:
    """Return a summary without its cursor if the run is new: which number it has depends on what is there. Likewise
    without its revision, if the call saved it, and rows of its run are changed: see `is_renumbered`."""
    if not isinstance(item, Summary):
        return item
    item = _bare(item) if item.run_id in begun else item
    is_renumbered = case.touches(item.run_id) and _is_of(item, case.saved(item.run_id))
    return attrs.evolve(item, revision=0) if is_renumbered else item


def _run_of(item: Any) -> str:
    return str(item.run_id if isinstance(item, Summary) else item)


def _is_of(summary: Summary, states: Sequence[State]) -> bool:
    return any(_told(summary) == _told(Summary.of(state)) for state in states)


def _told(summary: Summary) -> Summary:
    """Return a summary without what a State does not tell."""
    return attrs.evolve(_bare(summary), revision=0, created=None, owner=None, took=None)


def _bare(summary: Summary) -> Summary:
    return attrs.evolve(summary, cursor=None)


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, State) and isinstance(b, State):
        return is_same_state(a, b)
    if isinstance(a, Raised) and isinstance(b, Raised):
        return a.error == b.error and _is_same(a.at, b.at)
    return type(a) is type(b) and bool(a == b)


def _instead(seen: Any, expected: Any) -> str:
    """Return what is given instead of what, and in what they differ where what is shown of them does not tell."""
    one, other = _shown(seen), _shown(expected)
    return f"{one} instead of {other}{f', which differs in {_difference(seen, expected)}' if one == other else ''}"


def _difference(a: Any, b: Any) -> str:
    """Return the names of what differs in two values of a kind."""
    if isinstance(a, list) and isinstance(b, list):
        pairs = enumerate(zip(a, b, strict=False))
        told = (f"item {number}: {_difference(*pair)}" for number, pair in pairs if pair[0] != pair[1])
        return next(told, "length")
    one, other = _fields(a), _fields(b)
    return ", ".join(str(name) for name in {**one, **other} if repr(one.get(name)) != repr(other.get(name))) or "type"


def _fields(value: Any) -> dict[Any, Any]:
    """Return the parts of a value that has any, by their names."""
    if isinstance(value, State):
        return {**value, **attrs.asdict(Summary.of(value), recurse=False), "generation": value.generation}
    if isinstance(value, Summary | Raised):
        return attrs.asdict(value, recurse=False)
    return value if isinstance(value, dict) else {"value": value}


def _asked(question: Question) -> str:
    return " ".join(map(str, question))


def _shown(value: Any) -> str:
    if isinstance(value, State):
        data = {key: value[key] for key in value if key in {"n", "salt", "over", "answer", "mapped", "said"}}
        state = f"{value.run_id}@{value.step}~{value.generation} {value.status.value} at {value.checkpoint_node!r}"
        return f"<{state}{f' of {value.parent}' if value.parent else ''}, {data!r:.100}>"
    if isinstance(value, Summary):
        about = [f" {one!r:.60}" for one in (value.error, value.parent, value.pause) if one is not None]
        state = f"{value.run_id}@{value.step} {value.status.value} at {value.checkpoint_node!r} of {value.graph}"
        return f"<{state} {value.timestamp:%d.%H:%M:%S} {value.cursor}{''.join(about)}>"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value[:6]))}{', ...' if len(value) > 6 else ''}]"
    return f"{value!r:.200}"
