"""Make the documentation as a site, in build/site: `make docs`. All versions of it, in build/pages: `make pages`.

Zensical builds it as zensical.toml says: pages, search, the reference by mkdocstrings, objects.inv, llms.txt and
llms-full.txt. A link that leads nowhere, a name that is not there, or a request to another host is an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from importlib import import_module
from inspect import get_annotations
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
SOURCE, SITE, PAGES = BUILD / "site-source", BUILD / "site", BUILD / "pages"
URL = (os.environ.get("SITE_URL") or "http://127.0.0.1:8000").rstrip("/")
_LOADS = re.compile(
    r"""(?:<(?:script|img|iframe|source|link)\b[^>]*?\s(?:src|href)=|url\(|@import )["']?((?:https?:)?//[^"')>\s]+)"""
)


def make_site() -> list[str]:
    """Make the site of this version; return what is wrong with it."""
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, SOURCE / name, ignore=shutil.ignore_patterns("__pycache__"))
    for page in [*ROOT.glob("*.md"), ROOT / "LICENSE"]:
        shutil.copy(page, SOURCE)
    (BUILD / "zensical.toml").write_text(_configuration(), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "build/zensical.toml"]
    subprocess.run(command, check=True, cwd=ROOT)
    needed = ["index.html", "objects.inv", "search.json", "llms-full.txt", "docs/console.css", *_linked_for_machines()]
    return (
        [f"the site lacks {file}" for file in needed if not (SITE / file).is_file()]
        + [
            f"{path.relative_to(SITE)} loads {url} from another host"
            for path in sorted(SITE.rglob("*"))
            if path.suffix in {".html", ".css"}
            for url in _LOADS.findall(path.read_text(encoding="utf-8"))
            if not url.startswith(URL)
        ]
        + [
            f"the reference of {path} lacks {name}"
            for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
            for path, name in _undescribed(page)
        ]
    )


def _undescribed(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the annotated names, and the members of enums, that a built page of the reference lacks, by class."""
    html = unescape((SITE / "docs" / "reference" / page.with_suffix(".html").name).read_text(encoding="utf-8"))
    for part in re.split(r"^::: ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        path = part.split()[0]
        module, _, name = path.rpartition(".")
        described = getattr(import_module(module), name)
        is_class = isinstance(described, type) and described.__name__ == name  # and no alias of one
        if is_class and "members: false" not in part:
            own = html.partition(f'id="{path}"')[2].partition('<h2 id="')[0]
            names = {*get_annotations(described), *getattr(described, "__members__", ())}
            lacking = {(path, name) for name in names if name[0] != "_" and f">{name}<" not in own}
            yield from sorted(lacking - {("stategraph.State", "facts")})  # it is for the engine and the stores


def _linked_for_machines() -> list[str]:
    """Write the links of llms.txt as llmstxt.org has them, without brackets; return the files they lead to."""
    file = SITE / "llms.txt"
    file.write_text(re.sub(r"\]\(<(.+?)>\)", r"](\1)", file.read_text(encoding="utf-8")), encoding="utf-8")
    return [url.removeprefix(f"{URL}/") for url in re.findall(r"\]\((http.+?)\)", file.read_text(encoding="utf-8"))]


def _configuration() -> str:
    """Return zensical.toml with the address of the site, and with the pages of llms.txt as the navigation has them."""
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- \[.+?\]\((.+?)\): (.*)$", index, re.MULTILINE)
    content = {f"docs/{page}": text for page, text in rows}
    lines = [settings, "[project.plugins.llmstxt.sections]"]
    for part in tomllib.loads(settings)["project"]["nav"]:
        (title,) = part
        entries = (f"{{ {json.dumps(page)} = {json.dumps(content.get(page, ''))} }}" for page in pages_in(part))
        lines.append(f"{json.dumps(title)} = [{', '.join(entries)}]")
    return "\n".join(lines).replace('site_url = ""', f"site_url = {json.dumps(URL + '/')}") + "\n"


def pages_in(navigation: Any) -> list[str]:
    """Return the pages that a navigation names, in their order."""
    if isinstance(navigation, str):
        return [navigation]
    below = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in below for page in pages_in(part)]


def make_pages() -> None:
    """Make the sites of the newest release of each minor version and of the last commit, and a list for the chooser.

    A release candidate has no site of its own: readers of "latest" have not installed it.
    """
    shutil.rmtree(PAGES, ignore_errors=True)
    tags = subprocess.run(["git", "tag", "--list", "v*"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    released = sorted((tag for tag in tags.split() if not Version(tag).is_prerelease), key=Version)
    newest = {"{0.major}.{0.minor}".format(Version(tag)): tag for tag in released}
    latest = next(reversed(newest), "dev")
    for name, tag in (newest | {"dev": ""}).items():
        checkout = BUILD / "versions" / name
        shutil.rmtree(checkout, ignore_errors=True)
        subprocess.run(["git", "clone", "--quiet", *(["--branch", tag] if tag else []), ROOT, checkout], check=True)
        environment = {**os.environ, "SITE_URL": f"{URL}/{name}"}
        subprocess.run(["make", "docs"], cwd=checkout, check=True, env=environment)
        shutil.copytree(checkout / "build" / "site", PAGES / name)
    shutil.copytree(PAGES / latest, PAGES / "latest")
    for file in ("llms.txt", "llms-full.txt"):
        shutil.copy(PAGES / latest / file, PAGES)
    versions = [
        {
            "version": name,
            "title": (newest | {"dev": "vdev"})[name][1:],
            "aliases": ["latest"] if name == latest else [],
        }
        for name in ("dev", *reversed(newest))
    ]
    (PAGES / "versions.json").write_text(json.dumps(versions), encoding="utf-8")
    (PAGES / "index.html").write_text('<meta http-equiv="refresh" content="0; url=latest/">\n', encoding="utf-8")


def main() -> int:
    """Make what is asked for; return the exit code."""
    if "--pages" in sys.argv:
        make_pages()
        return 0
    problems = make_site()
    print("\n".join(problems) or f"open {SITE.relative_to(ROOT)}/index.html")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
