"""Pages of Markdown: their code blocks, the output that they promise, and their links."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK_END = "\f"  # printed after each Python block of a page: no page shows it
FENCE = re.compile(r"^```")


def text_of(page: str) -> str:
    """Return the text of a page, which is named by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def program_of(page: str) -> str:
    """Return the Python blocks of a page as one program, every line where it stands in the page: errors name it."""
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
    """Return what each Python block prints: the text block right after it, None without one."""
    found = re.finditer(r"^```python\n.*?^```\n(?:\n?```text\n(.*?)^```$)?", text_of(page), re.MULTILINE | re.DOTALL)
    return [match[1] for match in found]


def promised(page: str) -> list[list[str]]:
    """Return for each Python block the lines that the comments after calls of print and execute say are printed."""
    calls = re.compile(r"^ *(?:print\(.*\)|graph\.execute\(.*\))  # (.+)$", re.MULTILINE)
    return [[comment.removesuffix(" ...") for comment in calls.findall(block)] for block in blocks(page, "python")]


def save_files(page: str, folder: Path) -> None:
    """Save the blocks that a page names with "save this as `graph.toml`"."""
    saved = re.compile(r"\bsave this as\s+`([\w.]+)`[^`]*```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL | re.IGNORECASE)
    for name, content in saved.findall(text_of(page)):
        (folder / name).write_text(content, encoding="utf-8")


def run(program: str, folder: Path, *, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program that was saved in a folder, with warnings as errors as in the tests themselves."""
    command = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", program]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (int(fails), ""), result.stderr
    return result


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ .+", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-") for line in headings}


def links(page: str) -> list[str]:
    """Return what the links of a page lead to, but for those to other sites."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)) if "://" not in target]


def leads_somewhere(page: str, target: str) -> bool:
    """Return whether a link is to a file that is there, and to a heading in it."""
    file, _, anchor = target.partition("#")
    path = (ROOT / page).parent / file if file else ROOT / page
    return path.is_file() and (not anchor or anchor in anchors(path.read_text(encoding="utf-8")))
