"""Random graphs as plain values, and an interpreter that runs them in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs
from hypothesis import strategies as st

from stategraph._values.progress import Pause
from stategraph._values.provenance import ErrorInfo

KEYS = ("a", "a", "b")
"""The keys of answers; the first more often, so that several nodes ask for it."""
DEFAULTS: dict[str, Any] = {"n": 1, "items": [2, 3], "trace": [], "base": 7}
REDUCED = ("n", "trace", "items")
"""The keys that several branches may write."""
BORDER = ("n", "items", "trace")
"""The inputs and outputs of nested graphs that do not pass the whole State."""
DERIVED = "derived_"
"""The prefix of keys that need not be saved."""


@attrs.frozen
class Step:
    """A node.

    Attributes:
        kind: Its kind.
        change: Its change of the data; see `changed`.
        is_async: Whether its functions are async.
        number: The number of failures, chunks or rounds.
        key: The key of the answer that it asks for.
        branches: The changes that its branches make.
        within: The nested graph.
        flag: A choice whose meaning depends on the kind.
        sources: The keys from which it derives its own.
    """

    kind: str
    change: str = "mix"
    is_async: bool = False
    number: int = 1
    key: str = "a"
    branches: tuple[str, ...] = ()
    within: Program | None = None
    flag: bool = False
    sources: tuple[str, ...] = ()

    @property
    def is_hopeless(self) -> bool:
        """Whether every attempt fails, so that the run continues at the handler."""
        return self.kind in {"hopeless", "hopeless branch", "hopeless child"}


@attrs.frozen
class Program:
    """A graph as a list of nodes, in order except for loops, skips and failures. The last node only ends the run."""

    steps: tuple[Step, ...]
    prefix: str = "n"

    def name(self, place: int) -> str:
        """Return the name of a node, which is unique among all graphs of a program."""
        return f"{self.prefix}{place}"

    def handler(self, place: int) -> int:
        """Return the place of the node that a failure or a skip leads to."""
        return min(place + 2, len(self.steps) - 1)


# --------------------------------------------------------------------------- what functions do


def changed(change: str, name: str, data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the keys that a function sets and removes."""
    match change:
        case "mix":
            return {"n": (data["n"] * 3 + len(name)) % 1009}, []
        case "trace":
            return {"trace": [*data.get("trace", ()), name]}, []
        case "grow":
            return {"items": [*data["items"], data["n"] % 5][-4:]}, []
        case "mark":
            return {"mark": name}, []
        case "unmark":
            return {}, [key for key in ("mark",) if key in data]
        case "propose":
            return {"a": data["n"] % 10}, []
        case "use":
            return {"n": (data["n"] + sum(data[key] for key in sorted(data) if key.startswith(DERIVED))) % 1009}, []
        case _:
            return {}, []


def derived(name: str, sources: Sequence[str], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the updates of a "derive" node: its own key, made of keys that never change."""
    return {DERIVED + name: (data["base"] * len(name) + sum(data.get(key, 1) for key in sources)) % 1009}


def item_result(item: int) -> int:
    """Return the result of an item; 3 fails where failures are collected."""
    return (item * 2 + 1) % 7


def reduced(key: str, one: Any, other: Any) -> Any:
    """Merge two values of branches."""
    return (one + other) % 1009 if key == "n" else [*one, *other][-6:]


def seen(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the part of its input that a function records."""
    return data.get("n"), len(data.get("trace", ())), data.get("a"), data.get("b")


def reply(key: str | None, shown: Any, salt: int) -> int:
    """Return the answer to a shown value."""
    return int(shown * 7 + salt + (key == "a")) % 10


def replies(pause: Pause, salt: int) -> int:
    """Return the answer to a pause."""
    return reply(pause.response_param, pause.value, salt)


# --------------------------------------------------------------------------- what it comes to


class FailedError(Exception):
    """A node has failed for good; the argument is the type of its error."""


@attrs.define
class Level:
    """A run that is being interpreted."""

    program: Program
    run_id: str
    data: dict[str, Any]
    answered: set[str]
    step: int = 0


@attrs.define
class Interpreter:
    """Runs a program in plain Python.

    Attributes:
        salt: A number that answers depend on, besides the shown value.
        effects: The calls of functions: keys of steps with their recorded input.
        asked: The number of answers.
    """

    salt: int
    effects: set[tuple[str, str]] = attrs.field(factory=set)
    asked: int = 0
    _levels: list[Level] = attrs.field(factory=list)

    def run(self, level: Level) -> Level:
        """Run a program to its end."""
        self._levels.append(level)
        try:
            place = 0
            while place < len(level.program.steps):
                place = self._next(level, place)
            return level
        finally:
            self._levels.pop()

    def go_on(self, level: Level, more: Mapping[str, Any]) -> Level:
        """Run the program again with further input; new values can be answers again."""
        level.answered -= {key for key, value in more.items() if key not in level.data or level.data[key] != value}
        level.data.update(more)
        return self.run(level)

    def _next(self, level: Level, place: int) -> int:
        """Run one step; return the place of the next."""
        program = level.program
        step, name = program.steps[place], program.name(place)
        try:
            self._make(level, step, name)
        except FailedError as failure:
            if not step.is_hopeless:
                raise
            level.data["error"] = {"type": str(failure), "node": name}
            return program.handler(place)
        finally:
            level.step += 1
        if step.kind == "loop":
            level.data[name] = level.data.get(name, 0) + 1
            return max(0, place - 2) if level.data[name] < step.number + 1 else place + 1
        return program.handler(place) if step.kind == "skip" and level.data["n"] % 2 else place + 1

    def _make(self, level: Level, step: Step, name: str) -> None:
        data = level.data
        match step.kind:
            case "ask":
                if not step.flag or step.key not in data or step.key in level.answered:
                    self._ask(step.key, data["n"])
                level.answered.add(step.key)
                return
            case "ask within":
                if step.key not in data:
                    data["kept"] = 1
                    self._ask(step.key, data["n"])
                    level.answered.add(step.key)  # an answer answers the pause that was shown, and no other
            case "parallel" | "hopeless branch":
                self._branch(level, step, name)
                return
            case "map":
                self._map(level, step, name)
                return
            case "child" | "hopeless child":
                self._child(level, step, name)
                return
        if step.kind in {"derive", "cached"}:  # how often these are called is undefined
            new = derived(name, step.sources, data) if step.kind == "derive" else changed("mix", name, data)[0]
            data.update(new)
            return
        self._work(level, name)
        if step.kind in {"hopeless", "failing"}:
            raise FailedError("ValueError")
        self._apply(data, *changed(step.change, name, data))

    def _work(self, level: Level, name: str, part: str = "", what: object = None) -> None:
        suffix = f"/{part}" if part else ""
        effect = repr(seen(level.data) if what is None else what)
        self.effects.add((f"{level.run_id}/#{level.step + 1}/{name}{suffix}", effect))

    def _apply(self, data: dict[str, Any], new: dict[str, Any], gone: list[str]) -> None:
        data.update(new)
        for key in gone:
            data.pop(key, None)

    def _ask(self, key: str, shown: Any) -> None:
        """Answer a pause: the outermost run takes the answer and passes it in."""
        self.asked += 1
        for level in self._levels:
            level.data[key] = reply(key, shown, self.salt)
            level.answered.discard(key)

    def _branch(self, level: Level, step: Step, name: str) -> None:
        before, written = dict(level.data), dict[str, Any]()
        removed: list[str] = []
        for place, change in enumerate(step.branches):
            self._work(level, name, str(place))
            new, gone = changed(change, f"{name}.{place}", before)
            removed += gone
            for key, value in new.items():
                written[key] = reduced(key, written[key], value) if key in written else value
        if step.kind == "hopeless branch":
            self._work(level, name, "bad")
            raise FailedError("ExceptionGroup")
        self._apply(level.data, written, removed)

    def _map(self, level: Level, step: Step, name: str) -> None:
        results: list[Any] = []
        for place, item in enumerate(level.data["items"]):
            self._work(level, name, str(place), item)
            is_refused = step.flag and item == 3
            results.append(ErrorInfo("ValueError", "three", name) if is_refused else item_result(item))
        level.data["mapped"] = results

    def _child(self, level: Level, step: Step, name: str) -> None:
        handed = {key: level.data[key] for key in BORDER if key in level.data}
        given = {**DEFAULTS, **handed} if step.flag else dict(level.data)
        run_id = f"{level.run_id}/#{level.step + 1}/{name}"
        inner = Level(cast(Program, step.within), run_id, given, level.answered & given.keys())
        try:
            self.run(inner)
        except FailedError:
            raise FailedError("ExecutionError") from None
        finally:
            level.answered |= inner.answered
        if step.flag:
            level.data.update({key: inner.data[key] for key in BORDER if key in inner.data})
        else:
            level.data.clear()
            level.data.update(inner.data)


# --------------------------------------------------------------------------- random ones

_CHANGES = st.sampled_from(["mix", "trace", "grow", "mark", "unmark", "propose", "use"])
_BRANCHES = st.lists(st.sampled_from(["mix", "trace", "grow", "unmark", "use"]), min_size=1, max_size=3).map(tuple)
_PLAIN_KINDS = ["plain", "cached", "derive", "transient", "retry", "hopeless", "timed", "stream", "skip", "ask within"]
_PLAIN_KINDS += ["ask"] * 4 + ["loop"] * 2  # most other kinds depend on these
_PART_KINDS = ["parallel", "hopeless branch", "map"]


def _leaves() -> st.SearchStrategy[Step]:
    plain = st.builds(
        Step,
        st.sampled_from(_PLAIN_KINDS),
        _CHANGES,
        st.booleans(),
        st.integers(1, 2),
        st.sampled_from(KEYS),
        flag=st.booleans(),
    )
    parts = st.builds(
        Step,
        st.sampled_from(_PART_KINDS),
        is_async=st.booleans(),
        number=st.integers(0, 2),
        branches=_BRANCHES,
        flag=st.booleans(),
    )
    return plain | parts


def _programs(steps: st.SearchStrategy[Step], most: int) -> st.SearchStrategy[Program]:
    return st.builds(Program, st.lists(steps, min_size=most // 2, max_size=most).map(tuple))


def _with_children(programs: st.SearchStrategy[Program]) -> st.SearchStrategy[Step]:
    kinds = st.sampled_from(["child", "child", "child", "hopeless child"])
    return st.builds(Step, kinds, number=st.integers(0, 2), within=programs, flag=st.booleans())


def programs() -> st.SearchStrategy[Program]:
    """Return random programs with nested graphs at two levels."""
    innermost = _programs(_leaves(), 3)
    middle = _programs(_leaves() | _with_children(innermost), 4)
    return _programs(_leaves() | _leaves() | _with_children(middle), 8).map(_named)


def _named(
    program: Program, prefix: str = "n", *, end: str = "plain", is_caught: bool = False, is_alone: bool = True
) -> Program:
    """Return the program with unique names and a last node of a kind.

    Where failures are caught, nothing fails only once: that would lead to another run, not to the same one later.
    Only graphs with their own data derive keys: a node that passes a whole State on would write saved and unsaved keys.
    """
    steps: list[Step] = []
    loops = any(step.kind == "loop" for step in program.steps)
    for place, step in enumerate(program.steps):
        is_lost, inner_caught = step.kind == "hopeless child", is_caught or step.kind == "hopeless child"
        inner = step.within and _named(
            step.within,
            f"{prefix}{place}_",
            end="failing" if is_lost else "plain",
            is_caught=inner_caught,
            is_alone=step.flag,
        )
        named = attrs.evolve(_lasting(step) if is_caught else step, within=inner)
        if named.kind == "derive":
            before = [DERIVED + f"{prefix}{other}" for other in range(place) if steps[other].kind == "derive"]
            # In a loop they would be written again after others were made of them.
            named = attrs.evolve(named, sources=() if loops else tuple(before), kind="derive" if is_alone else "plain")
        steps.append(named)
    return Program((*steps, Step(end, "")), prefix)


def _lasting(step: Step) -> Step:
    """Return the step as one that does not fail only once."""
    if step.kind == "transient":
        return attrs.evolve(step, kind="plain")
    return attrs.evolve(step, number=0) if step.kind in {"parallel", "map"} and step.number == 1 else step
