"""`stategraph.types`: each class of messages of the libraries for agents, found by enumeration, is kept exactly."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import subprocess
import sys
import types as kinds
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, Union, cast, get_args, get_origin
from uuid import UUID

import attrs
import pytest
from typing_extensions import is_typeddict

from stategraph import GraphError, MapNode, NotSerializableError, State, types
from stategraph._values import registered_types
from stategraph.stores import MemoryStore
from stategraph.testing import is_same
from tests.conftest import make_store
from tests.scenarios import make_graph

pytest.importorskip("langchain_core")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the libraries are not about us

# --------------------------------------------------------------------------- instances of any class


_MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
_PLAIN: dict[Any, Any] = dict.fromkeys((str, object), "text") | {int: 7, float: 0.5, bool: True, bytes: b"\0\xff"}
_PLAIN |= {
    type(None): None,
    datetime: _MOMENT,
    timedelta: timedelta(1),
    UUID: UUID(int=7),
    Any: {"any": [1, (2,)]},
    Decimal: Decimal("1.10"),
}
_DEEP = 2  # levels around a value that need not have parts


def made(kind: Any, depth: int = 0) -> Any:
    """Return a value of a type, with as many fields as it takes."""
    if isinstance(kind, TypeVar):
        kind = kind.__bound__ or Any
    kind = getattr(kind, "__value__", kind)  # of a TypeAliasType
    kind = getattr(kind, "__supertype__", kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, args = get_origin(kind), get_args(kind)
    if hasattr(origin, "__value__"):
        return made(origin.__value__[args], depth)
    if origin in (
        Annotated,
        typing.Required,
        typing.NotRequired,
        typing.ReadOnly if hasattr(typing, "ReadOnly") else 0,
    ):
        return made(args[0], depth)
    if origin is Literal:
        return args[0]
    if origin in (Union, kinds.UnionType):
        return made(
            args[0] if args[0] is not type(None) and (depth < _DEEP or type(None) not in args) else args[-1], depth
        )
    if kind is list or origin in (list, Sequence, typing.Iterable) or kind is Sequence:
        return [made(args[0], depth + 1)] if args and depth < _DEEP else []
    if kind is dict or origin in (dict, Mapping) or kind is Mapping:
        return (
            {made(args[0]) if args[0] in (str, int) else "key": made(args[1], depth + 1)}
            if args and depth < _DEEP
            else {}
        )
    if origin is tuple:
        return tuple(made(arg, depth + 1) for arg in args if arg is not ...)
    if origin in (set, frozenset):
        return origin(made(arg) for arg in args)
    cls = origin or kind
    if not isinstance(cls, type):
        raise TypeError(f"a new kind of annotation: {kind!r}")
    return _instance(cls, depth)


def _instance(cls: Any, depth: int) -> Any:
    if issubclass(cls, Enum):
        return next(iter(cls))
    if is_typeddict(cls):
        return {name: made(kind, depth + 1) for name, kind in typing.get_type_hints(cls).items()}
    if inspect.isabstract(cls):
        return made(cls.__subclasses__()[0], depth)
    if hasattr(cls, "model_fields"):
        if not cls.__pydantic_fields_complete__:
            cls.model_rebuild()
        fields = {name: field.annotation for name, field in cls.model_fields.items()}
        given = {name: made(kind, depth + 1) for name, kind in fields.items()}
        return cls.model_construct(**given)
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls, include_extras=True, localns=_NAMES)
        given = {field.name: made(hints[field.name], depth + 1) for field in dataclasses.fields(cls) if field.init}
        value: Any = object.__new__(cast(type, cls))
        for field in dataclasses.fields(cls):
            object.__setattr__(value, field.name, given.get(field.name))
        return value
    raise TypeError(f"a new kind of class: {cls!r}")


_NAMES = {"Decimal": Decimal}  # imported by a library for type checkers only


# --------------------------------------------------------------------------- the classes of libraries


def modules_of(*names: str) -> Iterator[kinds.ModuleType]:
    """Yield modules and everything in them."""
    for name in names:
        module = import_module(name)
        yield module
        for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            yield import_module(inner.name)


def classes_in(modules: Iterator[kinds.ModuleType], is_one: Callable[[Any], bool]) -> list[Any]:
    """Return the public classes that these modules define."""
    found = {
        cls: None
        for module in modules
        for name, cls in vars(module).items()
        if isinstance(cls, type) and cls.__module__ == module.__name__ and name[0] != "_" and is_one(cls)
    }
    return [cls for cls in found if not inspect.isabstract(cls)]


def of_langchain() -> list[Any]:
    rooms = ("messages", "documents", "outputs", "prompt_values", "agents")
    skipped = {"BaseDocumentCompressor", "BaseDocumentTransformer"}  # they have no fields
    found = classes_in(modules_of(*map("langchain_core.{}".format, rooms)), lambda cls: hasattr(cls, "model_fields"))
    return [cls for cls in found if cls.__name__ not in skipped]


def of_pydantic_ai() -> list[Any]:
    tools = import_module("pydantic_ai.tools")
    deferred = [tools.DeferredToolRequests, tools.DeferredToolResults, tools.ToolApproved, tools.ToolDenied]
    found = classes_in(modules_of("pydantic_ai.messages", "pydantic_ai.usage"), dataclasses.is_dataclass)
    return [*found, *deferred]


def of_openai() -> list[Any]:
    base = import_module("openai").BaseModel
    rooms = modules_of("openai.types.chat", "openai.types.responses", "openai.types.shared")
    return classes_in(rooms, lambda cls: issubclass(cls, base))


LIBRARIES: dict[str, tuple[Callable[[], list[Any]], int]] = {
    "langchain": (of_langchain, 25),
    "pydantic_ai": (of_pydantic_ai, 60),
    "openai": (of_openai, 250),
}
"""The classes of each library, and the fewest that there are."""

STORES = ("memory", "disk", "sqlite", "postgres", "redis")


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """Return a library whose function is called."""
    getattr(types, request.param)()
    name: str = request.param
    return name


def check_same(state: State, values: Mapping[str, Any]) -> None:
    """Check each value by itself, so that the failure names its class."""
    wrong = [name for name, value in values.items() if not (is_same(state[name], value) and state[name] == value)]
    assert wrong == []


def test_each_class_of_messages_comes_back_equal(library: str, tmp_path: Path) -> None:
    """From all five stores; after a delta, a fork, and an export and import. A release of the library that brings a
    class which is not kept fails here."""
    find, fewest = LIBRARIES[library]
    values = {f"{cls.__module__}.{cls.__qualname__}": made(cls) for cls in find()}
    assert len(values) >= fewest
    state = State({**values, "n": 0}, run_id="a", step=1)

    with ExitStack() as stack:
        for kind in ("memory", "disk", "sqlite", "postgres", "redis"):
            store: Any = stack.enter_context(make_store(kind, tmp_path / kind))
            store.save(state)
            store.save(attrs.evolve(state.set("n", 1), step=2))
            check_same(store.load("a"), values)
            check_same(store.fork("a", "b"), values)
            if kind != "memory":
                again: Any = stack.enter_context(make_store("sqlite", tmp_path / f"from-{kind}.db"))
                again.import_runs(store.export_run("b"))
                check_same(again.load("b"), values)


# --------------------------------------------------------------------------- arrays and data frames


def of_numpy() -> dict[str, Any]:
    np = pytest.importorskip("numpy")
    names = "int8 uint64 float16 float32 float64 longdouble complex64 bool >i4 S3 U3 M8[ns] M8[D] m8[s]".split()
    arrays = {name: np.array([0, 1, 2]).astype(name) for name in names}
    scalars = {f"scalar {name}": array[1] for name, array in arrays.items()}
    shapes = {str(shape): np.ones(shape, "f4") for shape in ((), (0,), (0, 3), (2, 3, 4))}
    others = {
        "columns first": np.asfortranarray(np.ones((2, 3))),
        "a view": np.arange(10)[::3],
        "nan": np.float64("nan"),
    }
    texts = {"zero in a text": np.str_("a\0"), "zero in bytes": np.bytes_(b"a\0"), "no time": np.datetime64("NaT", "s")}
    return {**arrays, **scalars, **shapes, **others, **texts}


def of_pandas() -> dict[str, Any]:
    pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    days = pd.date_range("2026-01-01", periods=2, freq="D", tz="UTC", name="day")
    return {
        "frame": pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, float("nan")]}, index=days),
        "categories": pd.DataFrame({"a": pd.Categorical(["x", "y"], ordered=True), "b": pd.array([1, None], "Int64")}),
        "levels": pd.DataFrame({1: [1, 2]}, index=pd.MultiIndex.from_tuples([(1, "a"), (2, "b")])),
        "empty": pd.DataFrame(),
        "series": pd.Series([1.5, 2.5], name=("a", 1), index=["x", "y"]),
        "no name": pd.Series([days[0]]),
    }


def of_polars() -> dict[str, Any]:
    pl = pytest.importorskip("polars")
    enum = pl.Series(["a"], dtype=pl.Enum(["a", "b"]))
    return {
        "frame": pl.DataFrame({"a": [1, None], "b": ["x", None], "c": [[1], []], "d": [{"x": 1}, {"x": None}]}),
        "types": pl.DataFrame(
            {"a": enum, "b": pl.Series(["1.10"]).cast(pl.Decimal(10, 2)), "c": [datetime(2026, 1, 1)]}
        ),
        "empty": pl.DataFrame(),
        "series": pl.Series("n", [0.5, float("nan")]),
    }


def equal(one: Any, other: Any) -> bool:
    """Return whether two arrays or frames are equal, as their library sees it, and of one type."""
    if hasattr(one, "equals"):
        same_types = str(getattr(one, "dtypes", None)) == str(getattr(other, "dtypes", None))
        return type(one) is type(other) and bool(one.equals(other)) and same_types
    same_form = type(one) is type(other) and (one.dtype, one.shape) == (other.dtype, other.shape)
    return same_form and one.tobytes() == other.tobytes()


FRAMES = {"numpy": of_numpy, "pandas": of_pandas, "polars": of_polars}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_arrays_and_frames_come_back_with_their_types(name: str, kind: str, tmp_path: Path) -> None:
    """dtype and shape, columns, index and names; after a delta and a fork as well."""
    values = FRAMES[name]()
    getattr(types, name)()
    with make_store(kind, tmp_path) as store:
        state = State({**values, "n": 0}, run_id="a", step=1)
        store.save(state)
        store.save(attrs.evolve(state.set("n", 1), step=2))
        for found in store.load("a"), store.fork("a", "b"):
            assert [key for key, value in values.items() if not equal(found[key], value)] == []


REFUSED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "array of objects": ("numpy", lambda np: np.array([1, "a"], object)),
    "array of records": ("numpy", lambda np: np.zeros(2, [("a", "i4")])),
    "array of a subclass": ("numpy", lambda np: np.ma.array([1])),
    "column of mixed types": ("pandas", lambda pd: pd.DataFrame({"a": [1, "x"]})),
    "column of tuples": ("pandas", lambda pd: pd.DataFrame({"a": [(1, 2)]})),
    "None beside nan": ("pandas", lambda pd: pd.DataFrame({"a": pd.Series([None, float("nan")], dtype=object)})),
    "column of objects": ("polars", lambda pl: pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)})),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_change_is_refused(kind: str, tmp_path: Path) -> None:
    """An array or a frame is kept exactly or not at all, and nothing is pickled."""
    name, make = REFUSED[kind]
    value = make(pytest.importorskip(name))
    getattr(types, name)()

    with (
        make_store("sqlite", tmp_path) as store,
        pytest.raises(NotSerializableError, match=r"^it\.value cannot be saved"),
    ):
        store.save(State({"it": {"value": value}}, run_id="a", step=1))


def normalised(array: Any) -> Any:
    """Return an array of the same kind, from a part of a map."""
    return array / array.max()


@pytest.mark.parametrize("processes", [False, True])
def test_an_array_is_an_item_and_a_result_of_a_map(processes: bool, tmp_path: Path) -> None:
    """Also in processes, where it is sent there and back, and after a resume that finds the results."""
    np = pytest.importorskip("numpy")
    types.numpy()
    tries: list[int] = []

    def fails_once(state: State) -> dict[str, Any]:
        tries.append(len(state["out"]))
        return {} if len(tries) > 1 else {"n": 1 / 0}

    with make_store("sqlite", tmp_path) as store:
        node = MapNode(normalised, over="arrays", into="out", processes=processes, max_workers=2)
        graph = make_graph({"map": node, "after": fails_once}, store=store, preserve=True)
        arrays = [np.arange(1, 4, dtype="f4") * n for n in (1, 2)]
        with pytest.raises(Exception, match="ZeroDivisionError"):
            graph.execute(State({"arrays": arrays}, run_id="a"))
        final = graph.resume("a")

    assert [equal(found, normalised(arrays[0])) for found in final["out"]] == [True, True]


# --------------------------------------------------------------------------- the call that is missing


def of_class(path: str) -> Any:
    """Return a class by its path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


typed: Any = lambda fields: TypedDict("Typed", fields)  # type: ignore[operator]  # noqa: E731


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("numpy", "numpy.ndarray"),
        ("langchain", "langchain_core.messages.BaseMessage"),
        ("langchain", "langchain_core.messages.AIMessage"),
        ("pydantic_ai", "pydantic_ai.messages.TextPart"),
        ("openai", "openai.types.chat.ChatCompletion"),
        ("pandas", "pandas.DataFrame"),
        ("polars", "polars.DataFrame"),
    ],
)
def test_the_error_names_the_one_call(call: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema with such a class is refused before anything runs, also that of a graph nested in one that is saved; a
    value, where it is saved. A subclass of a user, too. After the call, all pass."""
    cls = of_class(path)
    monkeypatch.setattr(registered_types, "CALLS", {cls.__module__.partition(".")[0]: call})
    for table in "_by_class", "_by_name", "_open":
        monkeypatch.setattr(registered_types, table, {})
    schema = typed({"values": list.__class_getitem__(cls)})
    graph = make_graph({"a": lambda state: {}}, store=MemoryStore(), schema=schema)
    unsaved = make_graph({"a": lambda state: {}}, store=MemoryStore(), schema=schema, interval=0)
    outer = make_graph({"n": unsaved.as_node()}, store=MemoryStore())
    unsaved.validate()

    for refused in graph, outer:
        with pytest.raises(GraphError, match=rf"class {cls.__name__}, .*: stategraph\.types\.{call}\(\)"):
            refused.validate()
    with pytest.raises(NotSerializableError, match=rf"stategraph\.types\.{call}\(\)"):
        State({"value": cls(1) if call == "numpy" else object.__new__(cls)}).to_json()
    getattr(types, call)()

    outer.validate()


def test_nothing_is_imported_before_it_is_called() -> None:
    """stategraph.types imports no library, and neither does a load."""
    code = "import sys, stategraph.types; print(*{'numpy', 'pandas', 'openai', 'pydantic'}.intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == ""
