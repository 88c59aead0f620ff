"""GraphConfig and CheckpointConfig: from code, a mapping or a file."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest

from stategraph import CheckpointConfig, ConfigError, GraphConfig, get_checkpoint_store, get_observer

AnyCheckpoint: Any = CheckpointConfig

FULL: dict[str, Any] = {
    "name": "review",
    "observer": "noop",
    "max_iterations": 5,
    "checkpoint": {
        "store": "disk",
        "interval": 2,
        "preserve": True,
        "durability": "async",
        "retention": "windowed",
        "window": 3,
        "ttl": 60.5,
        "persist": ("topic", "draft"),
        "serializer": "json",
        "options": {"path": "runs", "nested": {"a": [1]}},
        "lease": 12.5,
        "accept": True,
        "limits": {"usd": 5.5},
    },
}
CONFIG = GraphConfig("review", "noop", 5, CheckpointConfig(**FULL["checkpoint"]))
TOML = """
name = "review"
observer = "noop"
max_iterations = 5

[checkpoint]
store = "disk"
interval = 2
preserve = true
durability = "async"
retention = "windowed"
window = 3
ttl = 60.5
persist = ["topic", "draft"]
lease = 12.5
accept = true
limits = { usd = 5.5 }
serializer = "json"
options = { path = "runs", nested = { a = [1] } }
"""


def test_the_defaults() -> None:
    """Nothing is saved until an interval is set."""
    assert GraphConfig("g") == GraphConfig(
        "g",
        "noop",
        1000,
        CheckpointConfig(
            store="memory",
            interval=0,
            preserve=False,
            durability="sync",
            retention="latest",
            window=None,
            ttl=None,
            persist=None,
            serializer="msgpack",
            options={},
        ),
    )


# --------------------------------------------------------------------------- from a mapping, a file


def test_from_a_mapping() -> None:
    """All keys, some keys, any kind of mapping."""
    assert GraphConfig.from_dict(FULL) == CONFIG
    assert GraphConfig.from_dict(MappingProxyType(FULL)) == CONFIG
    assert GraphConfig.from_dict({"name": "g"}) == GraphConfig("g")
    assert GraphConfig.from_dict({"name": "g", "checkpoint": {"interval": 3}}).checkpoint == CheckpointConfig(
        interval=3
    )
    assert GraphConfig.from_dict({"name": "g", "checkpoint": {}}) == GraphConfig("g")


@pytest.mark.parametrize(
    ("name", "text"), [("g.toml", TOML), ("g.json", json.dumps(FULL)), ("G.TOML", TOML), ("ä.x.json", json.dumps(FULL))]
)
def test_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    """TOML or JSON, as the name says."""
    (tmp_path / name).write_text(text, encoding="utf-8")

    assert GraphConfig.from_file(tmp_path / name) == CONFIG
    assert GraphConfig.from_file(str(tmp_path / name)) == CONFIG


@pytest.mark.parametrize("name", ["missing.toml", "missing.json", "folder.toml", "graph.yaml", "graph", ".toml"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    """The error names it."""
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "graph.yaml").write_text("name: g")

    with pytest.raises(ConfigError) as caught:
        GraphConfig.from_file(tmp_path / name)

    assert caught.value.key == "file"
    assert caught.value.value == str(tmp_path / name)


# --------------------------------------------------------------------------- wrong values


_WRONG_VALUES: dict[str, tuple[str, list[Any]]] = {
    "name": ("1 to 200 printable", ["", None, 5, "x" * 201, "a\nb", b"g", ["g"]]),
    "observer": ("name of an observer", ["", None, 5, True, ["noop"]]),
    "max_iterations": ("a positive integer", [0, -1, 1.0, "5", True, None, []]),
    "checkpoint.store": ("name of a checkpoint store", ["", None, 5, {"name": "disk"}]),
    "checkpoint.interval": ("an integer: 0 turns checkpointing off", [-1, 1.0, "5", True, False, [1]]),
    "checkpoint.preserve": ("true keeps", [0, 1, "true", "false", None, []]),
    "checkpoint.durability": ('"sync" saves before', ["", None, 5, "SYNC", "none", True, ["sync"]]),
    "checkpoint.retention": ('"latest" keeps the newest', ["", None, 5, "all", 0, ["full"]]),
    "checkpoint.window": ("how many checkpoints", [0, -1, 1.0, "5", True, []]),
    "checkpoint.ttl": ("more than 0", [0, -1, 0.0, float("inf"), float("-inf"), "5", True, []]),
    "checkpoint.persist": (
        "a list of different keys",
        [
            *["topic", 5, True, {"a": 1}, (5,), ("a", "a"), ([],), {"a"}],
            *[{"except": "a"}, {"except": None}, {"except": ("a", "a")}, {"except": ("a",), "b": 1}],
        ],
    ),
    "checkpoint.serializer": ("a registered serializer", ["", None, 5, "a\nb", ["json"]]),
    "checkpoint.options": ("a mapping of option names", [None, 5, "path", ["path"], {5: 1}]),
    "checkpoint": ("mapping", [None, 5, "disk", ["disk"], True]),
}


@pytest.mark.parametrize("key", _WRONG_VALUES)
def test_a_wrong_value_is_refused(key: str) -> None:
    """Nothing is coerced; the error names the key, the value and what would be allowed."""
    first, _, second = key.partition(".")
    allowed, values = _WRONG_VALUES[key]
    for wrong in values:
        change = {first: {second: wrong} if second else wrong}
        with pytest.raises(ConfigError) as caught:
            GraphConfig.from_dict({"name": "g", **change})

        assert (caught.value.key, caught.value.value) == (key, wrong)
        assert allowed in caught.value.allowed
        assert str(caught.value).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"retention": "windowed"}, "checkpoint.window", "as many checkpoints as window says"),
        ({"window": 5}, "checkpoint.window", 'retention "latest" has no window'),
        ({"retention": "full", "window": 5}, "checkpoint.window", 'retention "full" has no window'),
        ({"durability": "exit", "retention": "full"}, "checkpoint.retention", '"latest" goes with it'),
        ({"durability": "exit", "retention": "windowed", "window": 5}, "checkpoint.retention", '"latest" goes with it'),
        ({"serializer": "json", "options": {"serializer": "x"}}, "checkpoint.options.serializer", "the place for it"),
        ({"options": {"serializer": "json"}}, "checkpoint.options.serializer", "the place for it"),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: dict[str, Any], key: str, text: str) -> None:
    """From wherever they come: code, a mapping, or one configuration laid over another."""
    makes: list[Callable[[], object]] = [
        lambda: AnyCheckpoint(**values),
        lambda: GraphConfig.from_dict({"name": "g", "checkpoint": values}),
        lambda: GraphConfig("g").merge({"checkpoint": values}),
    ]
    for make in makes:
        with pytest.raises(ConfigError) as caught:
            make()

        assert caught.value.key == key
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("values", "key", "suggestion"),
    [
        ({"nmae": "g"}, "nmae", "did you mean 'name'?"),
        ({"name": "g", "max_iteration": 5}, "max_iteration", "did you mean 'max_iterations'?"),
        ({"name": "g", "checkpoints": {}}, "checkpoints", "did you mean 'checkpoint'?"),
        ({"name": "g", "checkpoint": {"intervall": 5}}, "checkpoint.intervall", "did you mean 'interval'?"),
        ({"name": "g", "zzz": 5}, "zzz", "(keys: name, observer, max_iterations, checkpoint, settings, version)"),
        ({"name": "g", 5: 5}, "5", "there is no such key"),
        ({"name": "g", "checkpoint": {"redact": 5}}, "checkpoint.redact", "as checkpoint.options.redact"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(values: dict[Any, Any], key: str, suggestion: str) -> None:
    """It is named with the path to it."""
    with pytest.raises(ConfigError) as caught:
        GraphConfig.from_dict(values)

    assert caught.value.key == key
    assert suggestion in str(caught.value)


# --------------------------------------------------------------------------- to a mapping and back


@attrs.frozen
class Policy:
    """An option of a custom store."""

    days: int


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"path": "runs"},
        {"hosts": ("a", "b")},
        {"deep": {"a": [{"b": (1,)}]}},
        {"policy": Policy(3)},
        {"ids": {1, 2}},
    ],
    ids=repr,
)
def test_to_dict_and_back_gives_an_equal_configuration(options: dict[str, Any]) -> None:
    """A configuration with any options of a store equals its copy from `to_dict`."""
    config = attrs.evolve(CONFIG, checkpoint=CheckpointConfig("disk", 2, options=options))

    again = GraphConfig.from_dict(config.to_dict())

    assert again == config
    assert again.checkpoint.options == options


# --------------------------------------------------------------------------- merging


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, {}),
        ({"max_iterations": 9}, {"max_iterations": 9}),
        ({"checkpoint": {"interval": 9}}, {"checkpoint": {**FULL["checkpoint"], "interval": 9}}),
        ({"checkpoint": {"interval": 0}}, {"checkpoint": {**FULL["checkpoint"], "interval": 0}}),
        ({"checkpoint": {"options": {}}}, {"checkpoint": {**FULL["checkpoint"], "options": {}}}),
        ({"checkpoint": {}}, {}),
        (GraphConfig("other"), {"name": "other"}),
        (GraphConfig("review", max_iterations=9), {"max_iterations": 9}),
        (GraphConfig("review", checkpoint=CheckpointConfig("disk")), {}),
        (
            GraphConfig("review", checkpoint=CheckpointConfig("memory", 7)),
            {"checkpoint": {**FULL["checkpoint"], "interval": 7}},
        ),
    ],
    ids=repr,
)
def test_merging_lays_one_over_the_other(other: Any, expected: dict[str, Any]) -> None:
    """All keys of a mapping win, and the values of a configuration that differ from defaults."""
    assert CONFIG.merge(other).to_dict() == {**FULL, **expected}
    assert CONFIG.to_dict() == FULL


# --------------------------------------------------------------------------- secrets

SECRET = "hunter2-which-must-stay-hidden"


def texts_of(make: Any) -> str:
    """Return the text, the repr and the contents of an error."""
    with pytest.raises(ConfigError) as caught:
        make()
    error = caught.value
    return f"{error} {error!r} {error.args!r} {vars(error)!r}"


def refuse(name: str) -> None:
    """Raise an error that shows an option, as a custom store may."""
    raise ConfigError(f"checkpoint.options.{name}", SECRET, "another one")


def options_of(*names: str) -> dict[str, Any]:
    """Return options with a secret value."""
    return dict.fromkeys(names, SECRET)


@pytest.mark.parametrize(
    "make",
    [
        lambda name: get_checkpoint_store("memory", **options_of(name)),
        lambda name: get_checkpoint_store("sqlite", path="x", **options_of("fast", name)),
        lambda name: get_observer("structlog", **{name: SECRET}),
        lambda name: GraphConfig.from_dict({"name": "g", name: SECRET}),
        lambda name: GraphConfig.from_dict({"name": "g", "checkpoint": {name: SECRET}}),
        refuse,
    ],
    ids=["store", "several", "observer", "misplaced", "misplaced deeper", "custom store"],
)
def test_a_secret_is_in_no_error(make: Any) -> None:
    """A secret is neither in the text nor the repr nor the attributes of an error."""
    for name in ("sign_with", "verify_with", "api_key", "SECRET", "auth-token", "password", "dsn", "Url"):
        assert SECRET not in texts_of(functools.partial(make, name))


def test_a_config_does_not_show_secrets() -> None:
    """The repr of a configuration hides secret options; the configuration itself keeps them."""
    options = {
        "path": "runs.db",
        "sign_with": SECRET,
        "dsn": f"postgres://me:{SECRET}@db/runs",
        "where": f"postgres://me:{SECRET}@db/runs",
        "object": [SECRET],
        "size": 5,
    }
    config = GraphConfig("g", checkpoint=CheckpointConfig(options=options))

    assert SECRET not in repr(config)
    assert "'path': 'runs.db'" in repr(config)
    assert "'where': 'postgres://me:...@db/runs'" in repr(config)
    assert "'size': 5" in repr(config)
    assert config.checkpoint.options == options
