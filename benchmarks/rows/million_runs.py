"""A store of a million runs: opening it, its first save and load, and a page of its runs by each filter."""

from benchmarks import floors
from benchmarks.gauges import seconds
from benchmarks.measure import MILLISECONDS, Contender, Goal, Row, peer

_RUNS = 1_000_000

_FIRSTS = {"open": "opened", "first save": "saved_first", "first load": "loaded_first"}
_PAGES = {
    "": "page",
    ", status": "page_by_status",
    ", status that none has": "page_by_no_status",
    ", graph": "page_by_graph",
    ", graph and status that none has": "page_by_graph_and_status",
    ", prefix of a few": "page_by_prefix",
    ", prefix of all": "page_by_common_prefix",
    ", parent": "page_by_parent",
    ", label of one in a thousand": "page_by_label",
    ", label of all": "page_by_common_label",
    ", label that none has": "page_by_no_label",
    ", since a moment ago": "page_since_lately",
    ", since the future": "page_since_ever",
    ", owned": "page_of_owned",
    ", not owned": "page_of_unowned",
    ", active and not owned": "page_of_orphans",
}


def _contenders(works: dict[str, str]) -> tuple[Contender, ...]:
    return tuple(
        Contender(f"stategraph{name}", peer(f"ours_million:{work}"), judged=True, steps=_RUNS)
        for name, work in works.items()
    )


ROWS = (
    Row(
        title="a store of a million runs",
        gauge=seconds,
        unit=MILLISECONDS,
        goal=Goal(50, absolute=True),
        floor=floors.empty,
        steps=_RUNS,
        rounds=5,
        compared=False,
        slow=True,
        contenders=_contenders({f", {name}": work for name, work in _FIRSTS.items()}),
        warm_up=lambda *_: None,
    ),
    Row(
        title="a page of the runs, of a million",
        gauge=seconds,
        unit=MILLISECONDS,
        goal=Goal(5, absolute=True),
        floor=floors.empty,
        steps=_RUNS,
        rounds=5,
        compared=False,
        slow=True,
        contenders=_contenders(_PAGES),
        warm_up=lambda *_: None,
    ),
)
