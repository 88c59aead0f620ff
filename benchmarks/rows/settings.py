"""The cost of a step that changes 10 KB, with one setting of the checkpoint changed."""

from benchmarks import floors
from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Row, peer

_SETTINGS = {
    "sqlite, interval=1": "usual",
    "interval=0: nothing saved": "not_saved",
    "interval=10": "every_tenth",
    'durability="async"': "saved_behind",
    'durability="exit"': "saved_at_exit",
    'retention="full"': "full",
    'retention="windowed", window=10': "windowed",
    'serializer="json"': "as_json",
    "compress=True": "compressed",
    "sign_with": "signed",
    'store="disk"': "on_disk",
}

ROW = Row(
    title="a step that changes 10 KB, by setting",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    floor=floors.empty,
    steps=300,
    rounds=5,
    compared=False,
    contenders=tuple(Contender(name, peer(f"ours_settings:{work}")) for name, work in _SETTINGS.items()),
)
