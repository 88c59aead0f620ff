"""Run the tests with every Python that stategraph supports and that is found here, each in an environment of its own.

Extra arguments go to pytest: ``python tools/test_all.py -x``.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dependency_group import requirements

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def find_python(version: str) -> Path | None:
    """-> an interpreter of this version that really runs; a shim on PATH may be there and fail."""
    return next((python for python in _candidates(version) if _version_of(python) == version), None)


def _candidates(version: str) -> Iterator[Path]:
    for folder in os.get_exec_path():
        yield Path(folder, f"python{version}")
    if pyenv := _output_of("pyenv", "root"):
        yield from sorted(Path(pyenv, "versions").glob(f"{version}.*/bin/python"), reverse=True)


def _version_of(python: Path) -> str:
    return _output_of(str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])")


def _output_of(*command: str) -> str:
    """-> what a command prints; nothing if it cannot be run or fails."""
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def run_tests(version: str, python: Path, arguments: list[str]) -> bool:
    """Install stategraph into ``.venv-VERSION`` and run the tests there -> whether they passed."""
    environment = ROOT / f".venv-{version}"
    installed = environment / "bin" / "python"
    pip = (installed, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--quiet")
    commands: list[tuple[str | Path, ...]] = [
        (python, "-m", "venv", environment),
        (installed, "-m", "pip", "uninstall", "--yes", "--quiet", "stategraph"),  # its name before durable-stategraph
        (*pip, "--editable", ".[examples]", *requirements(["test"])),
        (installed, "-m", "pytest", "-q", "-n", "2", *arguments),
    ]
    return all(subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in commands)


def main(arguments: list[str]) -> None:
    """Run them, then say which versions passed, failed and were not found."""
    results = {}
    for version in VERSIONS:
        python = find_python(version)
        print(f"== Python {version}: {python or 'not found'}", flush=True)
        if python is None:
            results[version] = "not found"
        else:
            results[version] = "passed" if run_tests(version, python, arguments) else "FAILED"
    print("\n".join(f"Python {version}: {result}" for version, result in results.items()))
    if "FAILED" in results.values() or "passed" not in results.values():
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
