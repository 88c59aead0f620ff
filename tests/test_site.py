"""The site: each page has its place, and the reference every public name. `make docs` checks the built site."""

import importlib
import pkgutil
import re
import sys
import tomllib
from typing import Any

import pytest

import stategraph
from tests.pages import ROOT

REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
MODULES = ["stategraph"] + [
    found.name
    for found in pkgutil.walk_packages(stategraph.__path__, "stategraph.")
    if "._" not in found.name and not found.name.startswith("stategraph.cli")  # its reference is docs/command-line.md
]


def pages_in(navigation: Any) -> list[str]:
    """Return the pages that a navigation names, in their order."""
    if isinstance(navigation, str):
        return [navigation]
    below = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in below for page in pages_in(part)]


def test_each_page_is_in_the_navigation_once():
    """The navigation has each page once, and no other."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert sorted(pages_in(project["nav"])) == sorted(page.relative_to(ROOT).as_posix() for page in pages)


@pytest.fixture(scope="module")
def described():
    """Return what the reference describes, by the paths that it gives."""
    paths = [path for page in REFERENCE for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    assert len(paths) == len(set(paths))
    return {path: getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in paths}


def test_every_public_name_is_in_the_reference(described):
    """The reference has every name in `__all__` of public modules under a path that can be imported."""
    made = [importlib.import_module(module) for module in MODULES]
    public = {(module.__name__, name) for module in made for name in getattr(module, "__all__", ())}
    there = [(path.rpartition(".")[2], thing) for path, thing in described.items()]
    lost = [
        f"{module}.{name}"
        for module, name in sorted(public)
        if not any(name == last and thing is getattr(sys.modules[module], name) for last, thing in there)
    ]
    assert lost == []
