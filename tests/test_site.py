"""The site: each page has its place in it, and links lead where files are. `make docs` looks at what is built."""

import sys

import pytest

from tests.pages import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import make_site

PAGES = [f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")]


def test_each_page_is_in_the_navigation_once():
    """And the navigation names no other."""
    named = sorted(page for pages in make_site.NAVIGATION.values() for page in pages)
    assert named == sorted(make_site.place_of(file) for file in {*PAGES, *make_site.FILES} - {"LICENSE"})


@pytest.mark.parametrize(
    ("file", "link", "led"),
    [
        ("README.md", "docs/state.md#how", "state.md#how"),
        ("README.md", "docs/README.md#examples", "guide.md#examples"),
        ("README.md", "docs/images/review.svg", "images/review.svg"),
        ("README.md", "LICENSE", "license.md"),
        ("README.md", "#install", "#install"),
        ("README.md", "https://semver.org", "https://semver.org"),
        ("docs/state.md", "../ARCHITECTURE.md", "architecture.md"),
        ("docs/state.md", "../examples/crawl.py", "examples/crawl.md"),
        ("docs/state.md", "../tests/conftest.py", "development.md"),
        ("docs/state.md", "stores.md", "stores.md"),
    ],
)
def test_links_lead_where_files_are_in_the_site(file, link, led):
    """Whatever they are called in the repository."""
    assert make_site.with_links(f"a [link]({link}) here", file) == f"a [link]({led}) here"


def test_code_is_left_alone():
    """What looks like a link there is none."""
    code = "```python\nx = a[0](docs/state.md)\n```"
    assert make_site.with_links(code, "README.md") == code


@pytest.mark.inside
def test_what_is_wrong_with_a_built_page_is_found(tmp_path):
    """Links that lead nowhere, and anchors that are not there."""
    (tmp_path / "other.html").write_text('<p id="here">', encoding="utf-8")
    pages = {tmp_path / "other.html": make_site._Page('<p id="here">')}
    page = tmp_path / "page.html"
    leads = {link: make_site._leads(page, link, pages) for link in ("other.html#here", "other.html#there", "gone.html")}
    assert leads == {"other.html#here": True, "other.html#there": False, "gone.html": False}
    assert make_site._Page('<script src="https://cdn.example/x.js">').loads == ["https://cdn.example/x.js"]
    assert make_site._is_elsewhere("https://cdn.example/x.js")


@pytest.mark.parametrize("module", make_site.MODULES)
def test_the_reference_has_names(module):
    """Every public module has some."""
    assert make_site.public_names(module)
