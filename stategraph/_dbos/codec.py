"""What DBOS keeps, in the codec of stategraph: exact types, and never a pickle."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import attrs
from dbos import Serializer

from stategraph import errors
from stategraph._text.shown import describe_exception
from stategraph._values.progress import Pause
from stategraph._values.provenance import Owner
from stategraph.state import State
from stategraph.stores._codec import msgpack

_RECORDS: Mapping[str, type] = {"Owner": Owner, "Pause": Pause}


class Codec(Serializer):
    """Writes the arguments and the outcomes of workflows, and the context of schedules.

    An error of stategraph comes back as it was, but for the State in it, of which only run and step are kept: the store
    has the rest. Of any other error, type and text are kept.
    """

    def name(self) -> str:
        """Return what DBOS notes beside what this has written."""
        return "stategraph"

    def serialize(self, data: Any) -> str:
        """Return a value, or an exception, as text."""
        parts = ["error", *_error_parts(data)] if isinstance(data, BaseException) else ["value", data]
        return base64.b64encode(msgpack.encode(parts)).decode()

    def deserialize(cls, serialized_data: str) -> Any:  # noqa: N805 - as DBOS names it
        """Return what `serialize` made this text of."""
        kind, *parts = msgpack.decode(base64.b64decode(serialized_data))
        return _error_of(*parts) if kind == "error" else parts[0]


def _error_parts(error: BaseException) -> list[Any]:
    """Return the type, the text and, if they can be kept, the fields of an error."""
    text = describe_exception(error).removeprefix(f"{type(error).__name__}: ")
    parts: list[Any] = [type(error).__name__, text.encode("utf-8", "backslashreplace").decode(), None]
    if isinstance(error, errors.StateGraphError) and attrs.has(type(error)):
        fields = [_plain(getattr(error, field.name)) for field in attrs.fields(cast(Any, type(error))) if field.init]
        with suppress(errors.NotSerializableError):  # else the text says what is known
            msgpack.encode(fields)
            parts[-1] = fields
    return parts


def _plain(value: Any) -> list[Any]:
    if isinstance(value, State):
        return ["State", value.run_id, value.step]
    if isinstance(value, Pause | Owner):
        return [type(value).__name__, attrs.asdict(value, recurse=False)]
    return ["", value]


def _whole(kind: str, value: Any, *step: int) -> Any:
    if kind == "State":
        return State(run_id=value, step=step[0])
    return _RECORDS[kind](**value) if kind else value


def _error_of(name: str, text: str, fields: list[Any] | None) -> Exception:
    """Return an error by its type, its text and its fields."""
    cls = getattr(errors, name, None)
    if fields is not None and isinstance(cls, type) and issubclass(cls, errors.StateGraphError):
        made: errors.StateGraphError = cls(*(_whole(*field) for field in fields))
        return made
    return RuntimeError(f"{name}: {text}")
