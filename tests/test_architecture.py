"""ARCHITECTURE.md: its names exist, a step takes the path that it describes, and it uses the words of the code."""

import re
from pathlib import Path

import stategraph
from tests.pages import ROOT, leads_somewhere, links, text_of

PAGE = "ARCHITECTURE.md"
TEXT = text_of(PAGE)
PACKAGE = Path(stategraph.__file__).parent


def section(title: str) -> str:
    """Return the part of the page under a heading."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def quoted(text: str) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


# --------------------------------------------------------------------------- names


def test_it_is_one_page():
    """It is read in one go."""
    assert len(TEXT.splitlines()) <= 230


def test_each_path_that_it_names_is_there():
    """Each path exists in the package or in the repository."""
    paths = {name for name in quoted(TEXT) if re.fullmatch(r"[\w./-]+(/|\.py|\.md)", name)} - {"stategraph/"}

    assert "state.py" in paths
    assert [path for path in sorted(paths) if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == []


def test_every_room_is_in_it():
    """ARCHITECTURE.md names each folder of the package."""
    rooms = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("__init__.py")} - {"./"}

    assert rooms - set(quoted(section("The rooms"))) == set()


def test_its_links_lead_somewhere():
    """If there are any."""
    assert [target for target in links(PAGE) if not leads_somewhere(PAGE, target)] == []
