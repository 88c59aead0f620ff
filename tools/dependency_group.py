"""Print the requirements of dependency groups in pyproject.toml, and those of ``build-system``: one on each line.

``python tools/dependency_group.py test check``
"""

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements(names: Iterable[str]) -> list[str]:
    """-> the requirements of all these groups."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = {
        **project["dependency-groups"],
        "build-system": project["build-system"]["requires"],
    }
    return [requirement for name in names for requirement in groups[name]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
