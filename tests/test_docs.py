"""The pages in docs/: what they show runs, and prints what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(page.name for page in DOCS.glob("*.md"))
BLOCK_END = "\f"  # printed behind each block of a page: nothing that is shown has it
FENCE = re.compile(r"^```")


def text_of(page: str) -> str:
    """What stands in a page."""
    return (DOCS / page).read_text(encoding="utf-8")


def program_of(page: str) -> str:
    """The Python blocks of a page as one program, every line where it stands in the page, so that errors name it."""
    lines: list[str] = []
    language = ""
    for line in text_of(page).splitlines():
        if not FENCE.match(line):
            lines.append(line if language == "python" else "")
            continue
        lines.append(f"print({BLOCK_END!r}, flush=True)" if language == "python" else "")
        language = "" if language else line.removeprefix("```") or "none"
    return "\n".join(lines) + "\n"


def shown(page: str) -> list[str | None]:
    """What the page says that each of its Python blocks prints: the text block right behind it, None without one."""
    found = re.finditer(r"^```python\n.*?^```\n(?:\n?```text\n(.*?)^```$)?", text_of(page), re.MULTILINE | re.DOTALL)
    return [match[1] for match in found]


def printed(page: str, folder: Path) -> list[str]:
    """What each of the Python blocks of a page prints, run as one program in a folder, with warnings as errors."""
    (folder / "page.py").write_text(program_of(page), encoding="utf-8")
    command = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "page.py"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout.split(f"{BLOCK_END}\n")[:-1]


def headings_of(text: str) -> set[str]:
    """The anchors of the headings of a page."""
    headings = re.findall(r"^#+ .+", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-") for line in headings}


def leads_somewhere(page: str, target: str) -> bool:
    """Whether a link is to a file that is there, and to a heading in it."""
    file, _, heading = target.partition("#")
    path = DOCS / file if file else DOCS / page
    return path.is_file() and (not heading or heading in headings_of(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES)
def test_its_blocks_run_in_order_and_print_what_it_shows(page: str, tmp_path: Path) -> None:
    """Pasted one after the other into one program, the blocks run and print exactly what stands behind them."""
    expected = shown(page)

    found = printed(page, tmp_path)

    assert len(found) == len(expected)
    assert [output for output, text in zip(found, expected, strict=True) if text is not None] == [
        text for text in expected if text is not None
    ]


@pytest.mark.parametrize("page", PAGES)
def test_its_links_lead_somewhere(page: str) -> None:
    """Every linked file is there, and every linked heading."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text_of(page))

    assert [target for target in targets if "://" not in target and not leads_somewhere(page, target)] == []


def test_the_index_names_every_page() -> None:
    """Nobody has to guess that a page is there."""
    linked = re.findall(r"\]\(([^)#]+\.md)\)", text_of("README.md"))

    assert set(PAGES) - {"README.md"} <= set(linked)
