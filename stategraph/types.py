"""Values of other libraries, which States hold once the function of the library is called. It imports the library.

Nothing is pickled: messages and parts are saved by their fields, arrays as bytes with dtype and shape, data frames as
Arrow IPC.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from io import BytesIO
from typing import Any

from stategraph._values.registered_types import CALLS, can_be_registered, register_type


def langchain() -> None:
    """Let States hold messages of LangChain, also of subclasses, its documents, outputs, prompts and agent actions."""
    rooms = ("messages", "documents", "outputs", "prompt_values", "agents")
    _register_all("langchain_core", map("langchain_core.{}".format, rooms))
    register_type(_imported("langchain_core.load.serializable").Serializable, subclasses=True)


def pydantic_ai() -> None:
    """Let States hold messages, parts, events and usage of Pydantic AI, its deferred tools, and what tools raise."""
    for name in ("ModelRetry", "ToolFailed"):
        cls = getattr(_imported("pydantic_ai"), name)
        register_type(cls, encode=lambda error: error.message, decode=cls)
    _register_all("pydantic_ai", map("pydantic_ai.{}".format, ("messages", "usage", "tools")))
    for cls in _subclasses(_imported("pydantic_ai.messages").BaseToolCallPart):  # their attribute is not a field
        register_type(cls, encode=_init_fields, decode=partial(_made_of_fields, cls))


def _subclasses(cls: type) -> list[type]:
    children: list[type] = cls.__subclasses__()
    return [cls, *(each for child in children for each in _subclasses(child))]


def _init_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.init}


def _made_of_fields(cls: Any, values: dict[str, Any]) -> Any:
    return cls(**values)


def openai() -> None:
    """Let States hold the models of the OpenAI library: responses, chat completions, and whatever else is imported."""
    for room in ("chat", "responses"):
        _imported(f"openai.types.{room}")
    register_type(_imported("openai").BaseModel, subclasses=True)
    CALLS.pop("openai", None)


def _imported(name: str) -> Any:
    """Import a module of another library. If that is missing, the error says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        way_out = f"pip install {package.replace('_', '-')}"
        raise ModuleNotFoundError(f"stategraph.types needs {package}: {way_out}", name=error.name) from None


def _register_all(package: str, rooms: Iterable[str]) -> None:
    """Register the classes with fields of the modules of a package."""
    for module in map(_imported, rooms):
        for name in {*vars(module), *getattr(module, "__all__", ())}:
            cls = getattr(module, name)
            if isinstance(cls, type) and cls.__module__.startswith(package) and can_be_registered(cls):
                register_type(cls)
    CALLS.pop(package, None)


def numpy() -> None:
    """Let States hold arrays and scalars of numpy, with their dtypes and shapes.

    Arrays of objects, of records and of subclasses are refused.
    """
    np: Any = _imported("numpy")

    def checked(dtype: Any) -> Any:
        if dtype.kind not in "biufcmMSU":
            raise ValueError(f"an array of dtype {dtype} is not kept exactly: save its parts, or array.tolist()")
        return dtype

    def encode(array: Any) -> list[Any]:
        return [checked(array.dtype).str, [*array.shape], array.tobytes()]

    def decode(parts: list[Any]) -> Any:
        dtype, shape, data = parts
        return np.ndarray(shape, checked(np.dtype(dtype)), bytearray(data))

    register_type(np.ndarray, name="numpy.ndarray", encode=encode, decode=decode)
    register_type(
        np.generic, name="numpy.generic", encode=encode, decode=lambda parts: decode(parts)[()], subclasses=True
    )
    register_type(np.str_, name="numpy.str_", encode="".join, decode=np.str_)  # str and arrays drop zeros at its end
    register_type(np.bytes_, name="numpy.bytes_", encode=bytes, decode=np.bytes_)
    CALLS.pop("numpy", None)


def pandas() -> None:
    """Let States hold data frames and series of pandas. This needs pyarrow.

    A frame that Arrow would change, such as one with a column of mixed types, is refused.
    """
    pd: Any = _imported("pandas")
    pa: Any = _imported("pyarrow")
    from stategraph._values.sameness import is_same

    def written(frame: Any) -> list[Any]:
        table, sink = pa.Table.from_pandas(frame), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return [sink.getvalue().to_pybytes(), getattr(frame.index, "freqstr", None)]

    def decode(parts: list[Any]) -> Any:
        frame = pa.ipc.open_stream(parts[0]).read_pandas()
        if parts[1] is not None and hasattr(frame.index, "freq"):
            frame.index.freq = parts[1]
        return frame

    def encode(frame: Any) -> list[Any]:
        parts = written(frame)
        again = decode(parts)
        pd.testing.assert_frame_equal(frame, again, check_exact=True)
        objects = [place for place, dtype in enumerate(frame.dtypes) if dtype.kind == "O"]
        if frame.attrs != again.attrs or not all(
            is_same(frame.iloc[:, place].tolist(), again.iloc[:, place].tolist()) for place in objects
        ):
            raise ValueError("Arrow changes a column of objects, or its attrs")
        return parts

    register_type(pd.DataFrame, name="pandas.DataFrame", encode=encode, decode=decode)
    _register_series(pd.Series, "pandas.Series", encode, lambda parts: decode(parts).iloc[:, 0])
    CALLS.pop("pandas", None)


def polars() -> None:
    """Let States hold data frames and series of polars. Columns of Python objects are refused."""
    pl: Any = _imported("polars")

    def encode(frame: Any) -> bytes:
        if any(dtype.base_type() is pl.Object for dtype in frame.dtypes):
            raise ValueError("a column of Python objects is not kept exactly")
        sink = BytesIO()
        frame.write_ipc(sink)
        return sink.getvalue()

    def decode(data: bytes) -> Any:
        return pl.read_ipc(BytesIO(data))

    register_type(pl.DataFrame, name="polars.DataFrame", encode=encode, decode=decode)
    _register_series(pl.Series, "polars.Series", encode, lambda data: decode(data).to_series())
    CALLS.pop("polars", None)


def _register_series(cls: Any, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Register a series by the frame of it alone. Its name is kept beside: the name of a column is a text."""
    register_type(
        cls,
        name=name,
        encode=lambda series: [series.name, encode(series.rename("0").to_frame())],
        decode=lambda parts: decode(parts[1]).rename(parts[0]),
    )
