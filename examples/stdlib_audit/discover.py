"""Which files there are, and what they are called when imported."""

import os
import sysconfig
from pathlib import Path, PurePosixPath

# Installed packages are not the standard library, though they live below it.
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__"})


def stdlib_root() -> Path:
    """The directory of the standard library of the Python that runs this."""
    return Path(sysconfig.get_paths()["stdlib"])


def discover(root: Path) -> list[str]:
    """Every Python file below `root`, sorted: POSIX paths relative to it. Installed packages are left out."""
    found = []
    for directory, subdirectories, names in os.walk(root):
        # Changed in place, which is how os.walk is told where not to go.
        subdirectories[:] = [name for name in subdirectories if name not in _LEFT_OUT]
        found += [Path(directory, name) for name in names if name.endswith(".py")]
    return sorted(path.relative_to(root).as_posix() for path in found)


def module_name(file: str) -> str:
    """The dotted name of a file: `json/decoder.py` is `json.decoder`, `json/__init__.py` is `json`."""
    parts = PurePosixPath(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_name(file: str) -> str:
    """The package that a leading dot means in this file; empty for a module of no package."""
    return ".".join(PurePosixPath(file).parent.parts)


def batches(count: int, size: int) -> int:
    """How many batches of `size` files `count` files make."""
    return -(-count // size)
