"""Find the files, and the names under which they are imported."""

import os
import sysconfig
from pathlib import Path, PurePosixPath

# Installed packages live below the standard library, but do not belong to it.
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__"})


def stdlib_root() -> Path:
    """Return the directory of the standard library of this Python."""
    return Path(sysconfig.get_paths()["stdlib"])


def discover(root: Path) -> list[str]:
    """Return the Python files below `root` as relative POSIX paths, sorted, without installed packages."""
    found = []
    for directory, subdirectories, names in os.walk(root):
        # os.walk skips the folders that are removed from this list.
        subdirectories[:] = [name for name in subdirectories if name not in _LEFT_OUT]
        found += [Path(directory, name) for name in names if name.endswith(".py")]
    return sorted(path.relative_to(root).as_posix() for path in found)


def module_name(file: str) -> str:
    """Return the dotted name of a file: `json/decoder.py` is `json.decoder`, `json/__init__.py` is `json`."""
    parts = PurePosixPath(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_name(file: str) -> str:
    """Return the package to which a leading dot refers in this file; empty without a package."""
    return ".".join(PurePosixPath(file).parent.parts)


def batches(count: int, size: int) -> int:
    """Return the number of batches of `size` files for `count` files."""
    return -(-count // size)
