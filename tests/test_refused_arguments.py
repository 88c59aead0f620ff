"""Wrong arguments of branches, and values that no store keeps, are refused with the culprit and the way out."""

from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path

import pytest

from stategraph import NotSerializableError, ParallelNode, State
from stategraph.stores import SqliteStore


def branch(state: State) -> dict[str, int]:
    return {"n": 1}


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"branches": {}}, "branches: "),
        ({"branches": [branch]}, "branches: "),
        ({"branches": {1: branch}}, "1"),
        ({"branches": {"a": 5}}, "5"),
        ({"branches": {"a": branch}, "on_failure": "stop"}, "on_failure: 'stop'"),
        ({"branches": {"a": branch}, "reducers": [max]}, "reducers"),
        ({"branches": {"a": branch}, "reducers": {"n": "sum"}}, "sum"),
    ],
    ids=["empty", "no mapping", "no name", "no function", "on_failure", "no reducers", "no reducer"],
)
def test_branches(arguments, culprit):
    """The error names the wrong argument of a ParallelNode."""
    with pytest.raises((TypeError, ValueError), match=culprit):
        ParallelNode(**arguments)


class Zone(tzinfo):
    """A time zone of a program."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "own"


@pytest.mark.parametrize("zone", [Zone(), timezone(timedelta(hours=1), "\udcff")], ids=["own class", "damaged name"])
def test_time_zones(zone, tmp_path: Path):
    """A store refuses a time in a zone that it could not restore, and names the zones that it keeps."""
    with (
        SqliteStore(tmp_path / "runs.db") as store,
        pytest.raises(NotSerializableError, match=r"use zoneinfo\.ZoneInfo"),
    ):
        store.save(State({"at": datetime(2024, 5, 29, tzinfo=zone)}, run_id="a"))
