"""Make the documentation as a site, in build/site: `make docs`.

The pages are the Markdown of docs/ and of the root, with links that lead to where the files are in the site; a page for
each example; and a reference of all public names, from their docstrings. Zensical and mkdocstrings build it. What they
have built is looked through afterwards: a link that leads nowhere, or a request to another host, is an error.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
SOURCE, SITE = BUILD / "site-source", BUILD / "site"
CONFIG = BUILD / "zensical.toml"

NAVIGATION: dict[str, list[str]] = {
    "Start here": ["index.md", "guide.md"],
    "What a graph is made of": [
        *("graphs.md", "state.md", "configuration.md", "resuming.md", "guarantees.md", "stores.md", "pictures.md"),
        *("observers.md", "errors.md", "testing.md", "own-store.md"),
    ],
    "What a run can do": [
        *("pauses.md", "conversations.md", "audit.md", "forks.md", "branches.md", "nesting.md", "policies.md"),
        *("streams.md", "typed-states.md", "selective-persistence.md", "graph-changes.md"),
    ],
    "In production": [
        *("operations.md", "several-processes.md", "many-workers.md", "postgres.md", "redis.md", "command-line.md"),
        *("web.md", "inspecting.md", "signing.md", "security.md", "performance.md", "upgrading.md", "stability.md"),
    ],
    "Coming from ...": ["coming-from.md"],
    "Reference": [],
    "Examples": [],
    "The project": ["architecture.md", "development.md", "contributing.md", "reporting.md", "changelog.md"],
}
"""The pages in their order; those of the reference and of the examples are added."""

FILES = {
    "README.md": "index.md",
    "docs/README.md": "guide.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "LICENSE": "license.md",
}
"""Where files are in the site that have another name there; the pages of docs/ keep theirs."""

MODULES = (
    *("stategraph", "stategraph.stores", "stategraph.errors", "stategraph.observers", "stategraph.turns"),
    *("stategraph.dbos", "stategraph.picture", "stategraph.web", "stategraph.testing"),
)
"""What the reference tells of."""

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Make the site; return the exit code."""
    shutil.rmtree(BUILD, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    pages = [*copy_pages(), *write_examples(), *write_reference()]
    CONFIG.write_text(configuration(), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--config-file", str(CONFIG)]
    subprocess.run(command, check=True, cwd=ROOT)
    problems = [*unnamed(pages), *looked_through()]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(pages)} pages in {SITE.relative_to(ROOT)}: open index.html")
    return 1 if problems else 0


# --------------------------------------------------------------------------- pages


def copy_pages() -> list[str]:
    """Copy the pages, with links as they are in the site; return their names."""
    shutil.copytree(ROOT / "docs" / "images", SOURCE / "images")
    files = [*FILES, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md") if page.name != "README.md")]
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        (SOURCE / place_of(file)).write_text(text if file == "LICENSE" else with_links(text, file), encoding="utf-8")
    return [place_of(file) for file in files]


def place_of(file: str) -> str:
    """Return where a file of the repository is in the site."""
    if file in FILES:
        return FILES[file]
    path = Path(file)
    return f"examples/{path.stem}.md" if path.parent.name == "examples" else path.name


def with_links(text: str, file: str) -> str:
    """Return the text of a file with its links as they are in the site. Code is left alone."""

    def replaced(found: re.Match[str]) -> str:
        target, mark, anchor = found[2].partition("#")
        if not target or urlsplit(target).scheme:
            return found[0]
        path = (ROOT / file).parent.joinpath(target).resolve().relative_to(ROOT)
        if path.parts[:2] == ("docs", "images"):
            return f"{found[1]}images/{path.name}{found[3]}"
        if path.suffix != ".md" and path.parts[0] not in {"examples", "LICENSE"}:
            return f"{found[1]}development.md{found[3]}"  # of a file that is not in the site
        return f"{found[1]}{place_of(path.as_posix())}{mark}{anchor}{found[3]}"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def write_examples() -> list[str]:
    """Write a page for each example; return their names."""
    (SOURCE / "examples").mkdir()
    pages = []
    for file in sorted((ROOT / "examples").glob("*.[pt][yo]*")):
        kind = {".py": "python", ".toml": "toml"}[file.suffix]
        code = file.read_text(encoding="utf-8")
        name = f"examples/{file.stem}.md"
        (SOURCE / name).write_text(f"# {file.name}\n\n```{kind}\n{code}```\n", encoding="utf-8")
        pages.append(name)
    return pages


def write_reference() -> list[str]:
    """Write a page for each module, with all its public names; return the names of the pages."""
    (SOURCE / "reference").mkdir()
    pages = []
    for module in MODULES:
        names = sorted(public_names(module), key=str.lower)
        blocks = "\n".join(f"::: {module}.{name}\n" for name in names)
        name = f"reference/{module}.md"
        (SOURCE / name).write_text(f"# {module}\n\n{blocks}", encoding="utf-8")
        pages.append(name)
    return pages


def public_names(module: str) -> list[str]:
    """Return the public names of a module."""
    made = importlib.import_module(module)
    own = [name for name, value in vars(made).items() if getattr(value, "__module__", None) == module]
    return [name for name in getattr(made, "__all__", own) if not name.startswith("_")]


# --------------------------------------------------------------------------- building


def configuration() -> str:
    """Return what Zensical is told. Nothing comes from another host: no fonts, no icons, no scripts."""
    navigation = "\n".join(
        f'  {{ "{title}" = [{", ".join(map(_entry, pages))}] }},' for title, pages in navigation_of().items()
    )
    return f"""
[project]
site_name = "stategraph"
site_description = "Workflows as graphs of steps, saved between them"
docs_dir = "{SOURCE.relative_to(BUILD)}"
site_dir = "{SITE.relative_to(BUILD)}"
use_directory_urls = false
nav = [
{navigation}
]

[project.theme]
language = "en"
font = false
features = ["navigation.top", "navigation.footer", "navigation.indexes", "content.code.copy", "search.highlight"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"

[project.markdown_extensions.tables]
[project.markdown_extensions.toc]
permalink = true
[project.markdown_extensions.attr_list]
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.superfences]

[project.plugins.mkdocstrings.handlers.python]
paths = ["{ROOT}"]
inventories = []
[project.plugins.mkdocstrings.handlers.python.options]
docstring_style = "google"
show_root_heading = true
show_source = false
inherited_members = true
heading_level = 2
members_order = "source"
show_if_no_docstring = false
signature_crossrefs = false
docstring_options = {{ warn_unknown_params = false, warn_missing_types = false, warnings = false }}
"""


def navigation_of() -> dict[str, list[str]]:
    """Return the pages in their order, by the titles of their groups."""
    made = {title: [page for page in pages if (SOURCE / page).exists()] for title, pages in NAVIGATION.items()}
    made["Reference"] = [f"reference/{module}.md" for module in MODULES]
    made["Examples"] = sorted(f"examples/{page.name}" for page in (SOURCE / "examples").glob("*.md"))
    return made


def _entry(page: str) -> str:
    titles = {"index.md": "stategraph", "guide.md": "All pages"}
    if page in titles:
        return f'{{ "{titles[page]}" = "{page}" }}'
    return f'"{page}"'


# --------------------------------------------------------------------------- looking it through


def unnamed(pages: list[str]) -> list[str]:
    """Return the pages that no navigation leads to, and those that are named there and do not exist."""
    named = [page for group in navigation_of().values() for page in group]
    missing = [page for group in NAVIGATION.values() for page in group if not (SOURCE / page).exists()]
    lost = sorted({*pages} - {*named, FILES["LICENSE"]})
    return [
        *(f"no navigation leads to {page}" for page in lost),
        *(f"the navigation names {page}, which is not there" for page in missing),
    ]


class _Page(HTMLParser):
    """The links of a built page, what it loads, and the places in it that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in {"img", "script", "iframe", "source"} and "src" in given:
            self.loads.append(given["src"])
        elif tag == "link" and given.get("rel") in {"stylesheet", "preload", "preconnect", "icon"}:
            self.loads.append(given.get("href", ""))


def looked_through() -> list[str]:
    """Return what is wrong with the built pages: links that lead nowhere, requests to other hosts, missing names."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html")}
    problems = []
    for path, page in pages.items():
        where = path.relative_to(SITE)
        problems += [f"{where} loads {load} from another host" for load in page.loads if _is_elsewhere(load)]
        problems += [f"{where}: {link} leads nowhere" for link in page.links if not _leads(path, link, pages)]
    for style in SITE.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", style.read_text(encoding="utf-8"))
        problems += [f"{style.relative_to(SITE)} loads {url} from another host" for url in found]
    for module in MODULES:
        places = pages[SITE / "reference" / f"{module}.html"].places
        problems += [
            f"{module}.{name} is not in the reference"
            for name in public_names(module)
            if not (f"{module}.{name}" in places or any(place.endswith(f".{name}") for place in places))
        ]
    return problems


def _is_elsewhere(url: str) -> bool:
    return bool(urlsplit(url).netloc)


def _leads(path: Path, link: str, pages: dict[Path, _Page]) -> bool:
    """Return whether a link leads to something; of other hosts that is not known."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return path.name == "404.html"  # it is shown anywhere, and so has links from the root
    return not parts.fragment or target not in pages or unquote(parts.fragment) in {*pages[target].places, "__tabbed"}


if __name__ == "__main__":
    sys.exit(main())
