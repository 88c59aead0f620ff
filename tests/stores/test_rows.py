"""What a durable store keeps of a run, how much that weighs, and what is done with rows that somebody changed."""

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stategraph import CheckpointCorruptError, CheckpointError, ErrorInfo, FormatError, RunStatus, State
from stategraph._values.provenance import Kind
from stategraph.stores._rows.encoder import CheckpointEncoder, Sealer
from stategraph.stores._rows.records import FORMAT, CheckpointRecord
from stategraph.testing.corpus import Order, is_same

ROWS = CheckpointEncoder(Sealer())
BIG = os.urandom(200_000)


def KEY() -> bytes:  # noqa: N802 - what a store is given as its key
    """-> the key."""
    return b"k" * 32


def run_of(*datas: dict[str, Any]) -> list[State]:
    """-> the States of a run, each laid over the one before."""
    states = [State(run_id="a")]
    for step, data in enumerate(datas, 1):
        states.append(attrs.evolve(states[-1].update(data), step=step, checkpoint_node=f"node-{step}"))
    return states[1:]


def rows_of(states: Sequence[State], rows: CheckpointEncoder = ROWS) -> list[CheckpointRecord]:
    """-> a row for each State."""
    row, tail = rows.snapshot(states[0])
    made = [row]
    for state in states[1:]:
        row, tail = rows.following(tail, state, (state.step, 0))
        made.append(row)
    return made


def chains(made: Sequence[CheckpointRecord]) -> list[list[CheckpointRecord]]:
    """-> for each row those that it builds on, and itself."""
    by_step = {row.step: row for row in made}
    return [[by_step[step] for step in range(row.base, row.step + 1) if step in by_step] for row in made]


# --------------------------------------------------------------------------- there and back


def test_every_step_comes_back() -> None:
    """Keys that come, change, grow and go; objects that change; failures."""
    order = Order(1, [])
    states = [State({"log": [], "gone": 1, "order": order}, run_id="a", step=1)]
    for step in range(2, 40):
        order.items.append(step)
        state = states[-1].update(log=[*states[-1]["log"], step], order=Order(step, [step]), n=step)
        if step % 5 == 0:
            state = state.remove("gone") if "gone" in state else state.set("gone", [step])
        states.append(attrs.evolve(state, step=step, checkpoint_node=f"n{step}", status="failed"))

    made = rows_of(states)

    assert any(not row.is_snapshot for row in made)
    for state, chain in list(zip(states, chains(made), strict=True))[1:]:
        loaded = ROWS.state("a", chain)
        assert is_same(dict(loaded), dict(state))
        assert loaded == state


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)
_keys = st.sampled_from(["a", "b", "c"])
_changes = st.tuples(st.sampled_from(["set", "grow", "remove"]), _keys, _values)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(_changes, max_size=3), min_size=1, max_size=8))
def test_any_history_comes_back(steps: list[list[tuple[str, str, Any]]]) -> None:
    """Step by step, in values and in types."""
    states = [State(run_id="a")]
    for step, changes in enumerate(steps, 1):
        state = states[-1]
        for kind, key, value in changes:
            if kind == "remove" and key in state:
                state = state.remove(key)
            elif kind == "grow" and isinstance(state.get(key), list):
                state = state.set(key, [*state[key], value])
            elif kind == "set":
                state = state.set(key, value)
        states.append(attrs.evolve(state, step=step))

    for state, chain in zip(states, chains(rows_of(states)), strict=True):
        assert is_same(dict(ROWS.state("a", chain)), dict(state))


def test_a_tail_of_loaded_rows_goes_on_like_the_one_that_was_saved() -> None:
    """A process that takes a run over writes the same rows."""
    states = run_of({"big": BIG, "log": [1], "order": 1}, {"n": 1}, {"log": [1, 2]}, {"n": 2})
    made = rows_of(states)
    loaded = ROWS.state("a", made[:3])

    row, _ = ROWS.following(ROWS.base_of(loaded, made[:3]), attrs.evolve(loaded.set("n", 2), step=4), (4, 0))

    assert row._replace(node="", time_ns=0, seal=b"") == made[3]._replace(node="", time_ns=0, seal=b"")
    assert (row.base, len(row.payload)) == (1, len(made[3].payload))


# --------------------------------------------------------------------------- what it weighs


def weights(*datas: dict[str, Any]) -> list[int]:
    """-> the bytes of the payload of each step."""
    return [len(row.payload) for row in rows_of(run_of(*datas))]


def test_a_small_change_of_a_large_state_weighs_what_it_is() -> None:
    """Not what the State weighs."""
    snapshot, *changes = weights({"big": BIG, "n": 0}, {"n": 1}, {"text": "abc"}, {"n": 2})

    assert snapshot > len(BIG)
    assert max(changes) < 40


def test_no_change_weighs_next_to_nothing() -> None:
    """A key that is set to the same object is none."""
    big = {"big": [1] * 10_000}
    states = run_of(big, {})
    states.append(attrs.evolve(states[-1].set("big", states[-1]["big"]), step=3))

    assert [len(row.payload) for row in rows_of(states)][1:] == [5, 5]


def test_a_list_that_grew_weighs_its_new_items() -> None:
    """However long it was."""
    messages = [os.urandom(1000) for _ in range(40)]
    states = [State({"log": messages[:20]}, run_id="a", step=1)]
    for step, message in enumerate(messages[20:], 2):
        states.append(attrs.evolve(states[-1].set("log", [*states[-1]["log"], message]), step=step))

    made = rows_of(states)

    assert all(1000 < len(row.payload) < 1040 for row in made[1:] if not row.is_snapshot)
    assert sum(row.is_snapshot for row in made) <= 2
    assert ROWS.state("a", chains(made)[-1])["log"] == messages


@pytest.mark.parametrize(
    "change",
    [
        lambda log: ["new", *log],
        lambda log: log[1:],
        lambda log: [*log[:-1], "other"],
        tuple,
        lambda log: [],
        lambda log: [log],
    ],
)
def test_a_list_that_changed_otherwise_comes_back(change: Callable[[Any], Any]) -> None:
    """It is kept as a whole."""
    states = run_of({"big": BIG, "log": ["a", "b", "c"]})
    states.append(attrs.evolve(states[0].set("log", change(states[0]["log"])), step=2))

    made = rows_of(states)

    assert not made[1].is_snapshot
    assert is_same(ROWS.state("a", made)["log"], states[1]["log"])


def test_an_empty_list_may_grow() -> None:
    """And shrink to nothing again."""
    states = run_of({"big": BIG, "log": []}, {"log": ["a"]}, {"log": []}, {"log": ["b", "c"]})

    for state, chain in zip(states, chains(rows_of(states)), strict=True):
        assert ROWS.state("a", chain) == state


def test_a_snapshot_is_written_when_the_changes_weigh_as_much() -> None:
    """So reading any step takes no more than twice what the State weighs, and some small rows."""
    datas = [{"big": BIG}, *({"part": os.urandom(20_000)} for _ in range(60))]
    made = rows_of(run_of(*datas))

    assert 2 < sum(row.is_snapshot for row in made) < 12
    for chain in chains(made):
        assert sum(len(row.payload) for row in chain) <= 2.2 * len(chain[0].payload) + 20_000


def test_small_changes_of_a_small_state_do_not_pile_up() -> None:
    """Rows cost something themselves, so a chain has an end."""
    made = rows_of(run_of(*({"n": number} for number in range(300))))

    assert max(map(len, chains(made))) < 60


# --------------------------------------------------------------------------- objects


class TestObjects:
    """Values that are not settled, which nobody sees change."""

    def test_one_that_did_not_change_is_not_kept_again(self) -> None:
        """They are compared by their bytes, not by identity or their own equality."""
        states = [State({"order": Order(1, [BIG]), "n": step}, run_id="a", step=step) for step in range(1, 4)]

        assert [len(row.payload) < 50 for row in rows_of(states)] == [False, True, True]

    def test_one_that_changed_in_its_place_is_kept_again(self) -> None:
        """Though it is the same object."""
        order = Order(1, ["tea"])
        first = State({"big": BIG, "order": order}, run_id="a", step=1)
        row, tail = ROWS.snapshot(first)
        order.items.append("milk")

        later, _ = ROWS.following(tail, attrs.evolve(first, step=2), (2, 0))

        assert not later.is_snapshot
        assert ROWS.state("a", [row])["order"].items == ["tea"]
        assert ROWS.state("a", [row, later])["order"].items == ["tea", "milk"]

    def test_after_loading_it_is_kept_once_more(self) -> None:
        """Nobody remembers its bytes then."""
        row, _ = ROWS.snapshot(State({"big": BIG, "order": Order(1, ["tea"])}, run_id="a", step=1))
        loaded = ROWS.state("a", [row])

        later, _ = ROWS.following(ROWS.base_of(loaded, [row]), attrs.evolve(loaded, step=2), (2, 0))

        assert ROWS.state("a", [row, later])["order"] == Order(1, ["tea"])
        assert len(later.payload) < 200


# --------------------------------------------------------------------------- damage and forgery

STATES = run_of({"n": 0, "log": [1]}, {"n": 1}, {"n": 2, "log": [1, 2]}, {"m": 3}, {"n": 4})
MADE = rows_of(STATES)
OTHER = CheckpointRecord(
    *(9, 9, 8, 7, Kind.ANSWER, "x", 7, RunStatus.PAUSED, ErrorInfo("E", "m", "n"), "anna", 5, 2, "here:1", 1),
    *("json", b"x", b"x"),
)
FIELDS = ["sequence", "base", "step", "revision", "kind", "node", "time_ns", "status", "error"]
FIELDS += ["by", "took_ns", "attempts", "owner", "encoding", "payload", "seal"]


def refused(rows: Sequence[CheckpointRecord], run_id: str = "a", reader: CheckpointEncoder = ROWS) -> bool:
    """Whether rows are refused, as they are to be: with a CheckpointError."""
    try:
        reader.state(run_id, rows)
    except CheckpointError:
        return True
    return False


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("place", range(len(MADE)))
def test_a_relabelled_row_is_refused(place: int, field: str) -> None:
    """Each field of each row is sealed."""
    rows = [*MADE]
    rows[place] = rows[place]._replace(**{field: getattr(OTHER, field)})

    assert refused(rows)


@pytest.mark.parametrize("place", range(len(MADE)))
def test_a_damaged_body_is_refused(place: int) -> None:
    """Each of its bytes is sealed."""
    payload = MADE[place].payload
    for number in range(len(payload)):
        damaged = payload[:number] + bytes([payload[number] ^ 1]) + payload[number + 1 :]
        assert refused([*MADE[:place], MADE[place]._replace(payload=damaged), *MADE[place + 1 :]])
        assert refused([*MADE[:place], MADE[place]._replace(payload=payload[:number]), *MADE[place + 1 :]])


@pytest.mark.parametrize("place", range(len(MADE) - 1))
def test_a_missing_row_is_refused(place: int) -> None:
    """All that come after it build on it. (Without the last one, it is the step before.)"""
    assert refused([*MADE[:place], *MADE[place + 1 :]])


@pytest.mark.parametrize("place", range(len(MADE) - 1))
def test_rows_in_another_order_are_refused(place: int) -> None:
    """Each knows the one before it."""
    rows = [*MADE]
    rows[place], rows[place + 1] = rows[place + 1], rows[place]

    assert refused(rows)
    assert refused([*MADE, MADE[place]])
    assert refused([*MADE[: place + 1], *MADE[place:]])


def test_rows_of_another_run_are_refused() -> None:
    """All of them, or one among those of this run."""
    others = rows_of([attrs.evolve(state, run_id="b") for state in STATES])

    assert refused(MADE, "b")
    for place in range(len(MADE)):
        assert refused([*MADE[:place], others[place], *MADE[place + 1 :]])


def test_rows_of_another_history_are_refused() -> None:
    """A run that was rolled back went another way from there: what was before is no part of it."""
    other = rows_of([*STATES[:2], *(attrs.evolve(state.set("other", 1)) for state in STATES[2:])])

    for place in range(2, len(MADE)):
        assert refused([*MADE[:place], other[place], *MADE[place + 1 :]])
    assert refused([*other[:3], *MADE[3:]])


@pytest.mark.parametrize("place", range(len(MADE)))
def test_a_newer_format_is_refused(place: int) -> None:
    """It may be all right: the error says to update, not that something is damaged."""
    rows = [*MADE]
    rows[place] = rows[place]._replace(format=FORMAT + 1)

    with pytest.raises(FormatError, match=f"step {place + 1} has format {FORMAT + 1}.*update"):
        ROWS.state("a", rows)


SOURCE: Any = SimpleNamespace(run_id="a", incarnation=b"")
"""What a copy has to know of the run that it is made of."""


def test_copied_rows_are_those_of_the_other_run() -> None:
    """As a fork needs them: of its id, and of its incarnation."""
    rows = ROWS.copied(SOURCE, "b", b"copy", MADE)

    assert ROWS.state("b", rows, b"copy") == attrs.evolve(STATES[-1], run_id="b")
    assert refused(rows)
    with pytest.raises(CheckpointCorruptError):
        ROWS.state("b", rows)


def test_damage_is_not_copied() -> None:
    """Sealed anew it would not be found any more."""
    with pytest.raises(CheckpointCorruptError):
        ROWS.copied(SOURCE, "b", b"", [*MADE[:-1], MADE[-1]._replace(node="other")])


# --------------------------------------------------------------------------- signing
