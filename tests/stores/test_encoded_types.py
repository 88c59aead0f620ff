"""Classes of any kind, kept exactly: by their own encode and decode, or by everything that they hold."""

from __future__ import annotations

import copy
import dataclasses
import uuid
from typing import Annotated, Any, Generic, Literal, TypeVar

import attrs
import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel

from stategraph import CheckpointCorruptError, NotSerializableError, State, register_type
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import is_same

STORES = {
    "memory": lambda path: MemoryStore(),
    "sqlite": lambda path: SqliteStore(path / "runs.db"),
    "json": lambda path: SqliteStore(path / "runs.db", serializer="json"),
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    with STORES[request.param](tmp_path) as store:
        yield store


def kept(store, value, run_id="a"):
    """Return a value from a store, after a save that changes another key, too."""
    state = State({"value": value, "n": 0}, run_id=run_id, step=1)
    store.save(state)
    store.save(attrs.evolve(state.set("n", 1), step=2))
    return store.load(run_id)["value"]


class Version:
    """A class of another library: no fields, and arguments that it makes something of."""

    def __init__(self, text: str) -> None:
        self._numbers = tuple(map(int, text.split(".")))

    def __str__(self) -> str:
        return ".".join(map(str, self._numbers))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(self._numbers)


class Nightly(Version):
    """A subclass of it."""


register_type(Version, name="test.Version", encode=str, decode=Version)


class TestEncoded:
    def test_a_value_comes_back_as_decode_makes_it(self, store):
        """Everywhere: in lists, as a key, in a set, after a delta."""
        value = {"v": Version("1.2"), "all": [(Version("2"), {Version("3")})], "by": [{Version("4"): 1}]}

        assert is_same(kept(store, value), value)

    def test_a_base_stands_for_its_subclasses_on_request_only(self, store):
        """Without `subclasses`, an instance of a subclass is refused; with it, each class comes back as itself."""
        with pytest.raises(NotSerializableError):
            kept(store, Nightly("1"))
        try:
            register_type(
                Version,
                name="test.Version",
                encode=lambda value: [type(value) is Nightly, str(value)],
                decode=lambda parts: (Nightly if parts[0] else Version)(parts[1]),
                subclasses=True,
            )
            assert is_same(kept(store, [Nightly("1"), Version("1")], "b"), [Nightly("1"), Version("1")])
        finally:
            register_type(Version, name="test.Version", encode=str, decode=Version)

    @pytest.mark.parametrize(
        ("encode", "decode", "text"),
        [
            (lambda value: str(value)[:1], Version, r"do not keep it: .* comes back as"),
            (str, lambda text: Version("0"), "do not keep it"),
            (str, Nightly, "do not keep it"),
            (str, lambda text: None, "do not keep it"),
            (str, lambda text: 1 / 0, r"decode of .* raised ZeroDivisionError"),
            (lambda value: value.major, Version, r"encode of .* raised AttributeError.*major"),
            (lambda value: [object()], Version, "decode of"),
        ],
        ids=["half", "another", "class", "nothing", "decode", "encode", "data"],
    )
    def test_what_would_not_come_back_is_refused_by_the_first_save(self, store, encode, decode, text):
        """The error names the place of the value, the class, and what is wrong."""
        cls = type("Odd", (Version,), {})
        register_type(cls, name=f"odd-{uuid.uuid4()}", encode=encode, decode=decode)

        with pytest.raises(NotSerializableError, match=text) as caught:
            store.save(State({"orders": [1, cls("1.2")]}, run_id="a", step=1))

        assert caught.value.path == "orders[1]"

    def test_older_data_are_upgraded(self, store):
        """`upgrade` gets the data and their version, also those of a class that was saved by its fields before."""
        name = f"point-{uuid.uuid4()}"
        point: Any = register_type(attrs.make_class("Point", ["x", "y"], eq=True), name=name)
        store.save(State({"value": point(1, 2)}, run_id="a", step=1))
        if isinstance(store, MemoryStore):
            pytest.skip("its values are those of this process")

        register_type(
            point,
            name=name,
            version=2,
            encode=lambda value: [value.x, value.y],
            decode=lambda pair: point(*pair),
            upgrade=lambda data, version: [data["x"] * 10, data["y"]],
        )

        assert store.load("a")["value"] == point(10, 2)
        register_type(point, name=name)
        assert kept(store, point(3, 4), "b") == point(3, 4)

    def test_data_that_decode_refuses_are_damage(self, tmp_path):
        """The error of the load names the class and what decode raised."""
        name = f"v-{uuid.uuid4()}"
        cls: Any = type("V", (Version,), {})
        register_type(cls, name=name, encode=str, decode=cls)
        with SqliteStore(tmp_path / "runs.db") as store:
            store.save(State({"v": cls("1")}, run_id="a", step=1))
            register_type(cls, name=name, encode=str, decode=lambda text: cls(text + "x"))
            with pytest.raises(CheckpointCorruptError, match=rf"decode of {name} raised ValueError"):
                store.load("a")

    @pytest.mark.parametrize("options", [{"encode": str}, {"decode": str}, {"encode": str, "decode": 7}])
    def test_half_of_it_is_refused(self, options):
        """Both are functions of one argument."""
        with pytest.raises(TypeError, match=r"(en|de)code"):
            register_type(Version, **options)

    def test_a_class_without_fields_is_told_what_is_missing(self):
        """Neither fields nor an encode: the error names both ways."""
        with pytest.raises(TypeError, match=r"pass encode= and decode="):
            register_type(type("Bare", (), {}))


# --------------------------------------------------------------------------- records with more than plain fields


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    n: int = 0


class Private(BaseModel):
    n: int = 0
    _seen: list[int] = PrivateAttr(default_factory=list)
    _name: str = "x"
    _unset: int = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        self._seen.append(self.n)


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(Open):
    kind: Literal["dog"] = "dog"


class Home(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    content: T


class Names(RootModel[list[str]]):
    pass


@dataclasses.dataclass
class Computed:
    width: int
    area: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.area = self.width**2


@attrs.define
class Derived:
    width: int
    area: int = attrs.field(init=False)
    _hidden: int = attrs.field(default=1, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.area = self.width**2


for _cls in (Open, Private, Cat, Dog, Home, Box, Box[int], Names, Computed, Derived):
    register_type(_cls)


def changed(value: Any, **attributes: Any) -> Any:
    """Return a copy with other attributes."""
    value = copy.deepcopy(value)
    for name, new in attributes.items():
        setattr(value, name, new)
    return value


RECORDS: dict[str, Any] = {
    "extra fields": Open.model_validate({"n": 1, "more": {"a": [1, (2,)]}, "model": None}),
    "extra fields, none": Open(),
    "private attributes": changed(Private(n=3), _seen=[1, 2], _unset=5),
    "private attributes by default": Private(n=3),
    "attributes set from outside": changed(Open(n=1), _request_id="req_1"),
    "discriminated union": Home.model_validate({"pets": [{"kind": "dog", "n": 2, "chip": 1}, {"kind": "cat"}]}),
    "generic": [Box[int](content=3), Box(content=("a",))],
    "root model": Names(["a", "b"]),
    "model without validation": Cat.model_construct(lives="many"),
    "dataclass with init=False": changed(Computed(3), area=10),
    "attrs with init=False": changed(Derived(3), area=10),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_comes_back_with_everything_that_it_holds(store, kind):
    """Equal, the same, and of a model also which fields were given, in order; without a call of its class."""
    value = RECORDS[kind]

    found = kept(store, value)

    assert found == value
    assert is_same(found, value)
    if isinstance(value, BaseModel):
        assert found.model_dump(warnings=False) == value.model_dump(warnings=False)
        assert found.model_fields_set == value.model_fields_set
        assert (found.__pydantic_extra__, found.__pydantic_private__) == (
            value.__pydantic_extra__,
            value.__pydantic_private__,
        )


def test_subclasses_of_a_model_are_known_by_their_base(store):
    """Registered by their base, they come back as themselves, also to a process that has not saved one; generics and
    classes that are defined later, too."""

    class Message(BaseModel):
        text: str

    register_type(Message, subclasses=True)

    class Reply(Message, Generic[T]):
        to: T

    values = [Message(text="a"), Reply[int](text="b", to=1), Reply(text="c", to="d")]

    assert is_same(kept(store, values), values)


def test_a_private_attribute_that_cannot_be_kept_is_named():
    """A lock in a model is refused, with its path."""

    class Locked(BaseModel):
        _lock: Any = PrivateAttr(default_factory=object)

    register_type(Locked)

    with pytest.raises(NotSerializableError, match=r"_lock"):
        MemoryStore().save(State({"value": Locked()}, run_id="a", step=1))
