"""Make the documentation as a site, in build/site: `make docs`.

Zensical builds it as zensical.toml says, and mkdocstrings the reference. A link that leads nowhere, a name that is not
there, or a request to another host is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
_LOADS = re.compile(
    r"""(?:<(?:script|img|iframe|source|link)\b[^>]*?\s(?:src|href)=|url\(|@import )["']?((?:https?:)?//[^"')>\s]+)"""
)


def main() -> int:
    """Make the site; return the exit code."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    SOURCE.mkdir(parents=True)
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, SOURCE / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("*.md"), ROOT / "LICENSE"):
        shutil.copy(file, SOURCE)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], check=True, cwd=ROOT)
    problems = [
        f"{path.relative_to(SITE)} loads {url} from another host"
        for path in sorted(SITE.rglob("*"))
        if path.suffix in {".html", ".css"}
        for url in _LOADS.findall(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(problems) or f"open {SITE.relative_to(ROOT)}/index.html")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
