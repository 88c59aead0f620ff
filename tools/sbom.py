"""Write the software bill of materials of a wheel, its `sboms/durable-stategraph.cdx.json`: a build hook of hatch.

PEP 770 says where it is found, and CycloneDX 1.7 what it looks like. A wheel of stategraph holds nothing but
stategraph. What it needs is installed beside it: the bill names the version of each that the release was tested with,
which `make locks` writes into tools/locks/package.txt, and the versions that are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement

_NOT_AFFECTED = {
    "id": "CVE-2025-69872",
    "source": {"name": "NVD", "url": "https://nvd.nist.gov/vuln/detail/CVE-2025-69872"},
    "analysis": {
        "state": "not_affected",
        "justification": "code_not_reachable",
        "detail": "stategraph keeps only bytes in diskcache, refuses entries of any other kind, and unpickles nothing.",
    },
    "affects": [{"ref": "diskcache"}],  # all versions: there is none without it
}
"""A statement for scanners (VEX) on a vulnerability of a dependency."""


class SbomHook(BuildHookInterface):
    """Adds the bill to each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bill where the builder finds it."""
        path = Path(self.root, "build", f"{self.metadata.core.name}.cdx.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            json.dumps(bill_of(self.metadata.core, tested(Path(self.root))), indent=2) + "\n", encoding="utf-8"
        )
        build_data["sbom_files"].append(str(path))


def tested(root: Path) -> dict[str, str]:
    """Return the versions that a release is tested with, by the names of the packages."""
    lock = Path(root, "tools", "locks", "package.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE))


def bill_of(core: Any, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the bill of a package, from its metadata. The same metadata and versions always give the same bill."""
    itself = {
        "type": "library",
        "bom-ref": core.name,
        "name": core.name,
        "version": core.version,
        "description": core.description,
        "licenses": [{"expression": core.license_expression}],
        "purl": f"pkg:pypi/{core.name}@{core.version}",
    }
    optional = [requirement for extra in core.optional_dependencies.values() for requirement in extra]
    needed = {**_components(optional, "optional", versions), **_components(core.dependencies, "required", versions)}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": itself},
        "components": [needed[name] for name in sorted(needed)],
        "vulnerabilities": [_NOT_AFFECTED],
        "dependencies": [{"ref": core.name, "dependsOn": sorted(needed)}, *({"ref": name} for name in sorted(needed))],
    }


def _components(requirements: list[str], scope: str, versions: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the components that requirements name, by their names."""
    components = {}
    for requirement in map(Requirement, requirements):
        if requirement.name not in versions:
            raise SystemExit(f"tools/locks/package.txt has no version of {requirement.name}: make locks adds it")
        version = versions[requirement.name]
        components[requirement.name] = {
            "type": "library",
            "bom-ref": requirement.name,
            "name": requirement.name,
            "version": version,
            "isExternal": True,
            "scope": scope,
            "purl": f"pkg:pypi/{requirement.name}@{version}",
            "properties": [{"name": "durable-stategraph:allowed", "value": str(requirement.specifier) or "any"}],
        }
    return components
