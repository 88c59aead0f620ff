"""Check that mypy and pyright find nothing in the Python blocks of the documentation.

They are strict, with three exceptions for brevity: functions need no annotations, an attribute such as `state.pause`
needs no test for None, and a page may show two versions of a class.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "typed-docs"
SAVED = re.compile(r"\bsave this as\s+`(\w+\.py)`[^`]*```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL | re.IGNORECASE)
MYPY = "--config-file= --strict --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls --no-error-summary"
PYRIGHT = {
    "typeCheckingMode": "strict",
    "extraPaths": [str(ROOT)],
    **dict.fromkeys(
        (
            "reportDeprecated",  # docs/development.md shows a deprecation
            "reportMissingParameterType",
            "reportOptionalMemberAccess",
            "reportRedeclaration",
            "reportUnknownArgumentType",
            "reportUnknownLambdaType",
            "reportUnknownMemberType",
            "reportUnknownParameterType",
            "reportUnknownVariableType",
        ),
        False,
    ),
}


def main() -> int:
    """Do it; return the exit code."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for page in [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        save(page)
    (FOLDER / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
    mypy = [
        "mypy",
        *MYPY.split(),
        "--disable-error-code=union-attr",
        "--disable-error-code=no-redef",
        f"--cache-dir={ROOT}/.mypy_cache/docs",
        ".",
    ]
    commands = [mypy, ["pyright", "--pythonpath", sys.executable]]
    return max(
        subprocess.run([sys.executable, "-m", *command], cwd=FOLDER, check=False).returncode for command in commands
    )


def save(page: Path) -> None:
    """Save the blocks of a page as a module, with each line where it is in the page, and the modules that it names."""
    text = page.read_text(encoding="utf-8")
    lines: list[str] = []
    language = ""
    for line in text.splitlines():
        is_fence = line.startswith("```")
        lines.append(line if language == "python" and not is_fence else "")
        if is_fence:
            language = "" if language else line.removeprefix("```") or "none"
    if any(lines):
        name = re.sub(r"\W", "_", page.relative_to(ROOT).with_suffix("").as_posix())
        (FOLDER / f"{name}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, content in SAVED.findall(text):
        (FOLDER / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
