"""What tests call in processes of their own, which import nothing else to find it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any


class TwoArgumentsError(Exception):
    """An exception that cannot be unpickled, as it passes one argument on and takes two."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class MadeOfACodeError(Exception):
    """Would be made again of the text that it has made of its argument."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")


class HoldsALockError(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class NotMadeAgain:
    """Can be pickled, and never be made again."""

    def __reduce__(self) -> Any:
        return _refuse, ()


class Unsent:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise ValueError("no")


def _refuse() -> None:
    raise ValueError("never again")


def trouble(kind: str) -> Any:
    """Make the trouble of this kind; an item of which nothing is known is done."""
    match kind:
        case "two arguments":
            raise TwoArgumentsError(1, 2)
        case "code":
            raise MadeOfACodeError(5)
        case "holds a lock":
            raise HoldsALockError("locked")
        case "lock":
            return [threading.Lock()]
        case "not made again":
            return NotMadeAgain()
        case "death":
            os.kill(os.getpid(), signal.SIGKILL)
    return kind


def noted(about: tuple[str, str]) -> str:
    """Note in a file that an item was begun, and do it."""
    folder, item = about
    with (Path(folder) / item).open("a") as file:
        file.write("x")
    return str(trouble("death" if item == "3" else item))


def leaving(item: int) -> int:
    """Exit, if it is 2."""
    return sys.exit(3) if item == 2 else item
