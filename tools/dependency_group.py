"""Print the requirements of dependency groups in pyproject.toml, for a pip that does not know ``--group``.

``python tools/dependency_group.py test check``
"""

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements(names: Iterable[str]) -> list[str]:
    """-> the requirements of all these groups."""
    groups: dict[str, list[str]] = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["dependency-groups"]
    return [requirement for name in names for requirement in groups[name]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
