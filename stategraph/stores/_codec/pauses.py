"""Pauses as texts: what stores keep beside a row, and tell without looking into it. JSON, for other tools to read."""

from __future__ import annotations

from typing import Any

from stategraph._values.provenance import Pause
from stategraph.errors import NotSerializableError
from stategraph.stores._codec.type_codecs import DecodeError, NotHereError
from stategraph.stores.serializers import find_format


def pause_text(pause: Pause | None) -> str | None:
    """-> a pause as a text.

    Raises:
        NotSerializableError: its value cannot be kept exactly.
    """
    if pause is None:
        return None
    fields: dict[str, Any] = {
        "reason": pause.reason,
        "node": pause.node,
        "value": pause.value,
        "response_param": pause.response_param,
        "at": pause.at,
        "deadline": pause.deadline,
    }
    try:
        return find_format("json").encode([fields]).decode()
    except NotSerializableError as error:
        error.path = f"pause.{error.path}"
        raise


def pause_of(text: str | None) -> Pause | None:
    """-> the pause in a text.

    Raises:
        DecodeError: there is none in it; NotHereError: there is, but its value cannot be made here.
    """
    if text is None:
        return None
    try:
        (fields,) = find_format("json").decode(text.encode())
        return Pause(**fields)
    except NotHereError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DecodeError(f"it holds no pause: {error}") from error
