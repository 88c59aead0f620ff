"""Pauses as JSON: a column of its own, so that stores list what runs wait for, and other tools can read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stategraph._values.progress import Pause
from stategraph.errors import NotSerializableError
from stategraph.stores._codec.type_codecs import DecodeError, UnavailableValueError
from stategraph.stores.serializers import find_format


def pause_to_json(pause: Pause | None) -> str | None:
    """Return a pause as JSON.

    Raises:
        NotSerializableError: Its value cannot be kept exactly.
    """
    if pause is None:
        return None
    try:
        return find_format("json").encode([_fields_of(pause)]).decode()
    except NotSerializableError as error:
        error.path = f"pause.{error.path}"
        raise


def _fields_of(pause: Pause) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "reason": pause.reason,
        "node": pause.node,
        "value": pause.value,
        "response_param": pause.response_param,
        "at": pause.at,
        "deadline": pause.deadline,
        "id": pause.id,
    }
    if pause.part:
        fields["part"] = pause.part
    if pause.others:
        fields["others"] = list(map(_fields_of, pause.others))
    return fields


def pause_from_json(kept: str | None) -> Pause | None:
    """Return the pause that `pause_to_json` made this of.

    Raises:
        UnavailableValueError: Its value cannot be made in this process.
        DecodeError: This is not the JSON of a pause.
    """
    if kept is None:
        return None
    try:
        (fields,) = find_format("json").decode(kept.encode())
        return _pause_of(**fields)
    except UnavailableValueError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DecodeError(f"it holds no pause: {error}") from error


def _pause_of(*, others: Iterable[dict[str, Any]] = (), **fields: Any) -> Pause:
    return Pause(**fields, others=tuple(_pause_of(**other) for other in others))
