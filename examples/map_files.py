"""A map over the Python files of this repository: killed (SIGKILL) and resumed, without reading a finished file again.

One process looks for the longest function in all files, several at a time, until it is killed. Another process resumes
the run. A log has each file that was begun, and so shows the files that were read again.

Run it with ``python examples/map_files.py``.
"""

import argparse
import ast
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, CheckpointNotFoundError, GraphConfig, MapNode, State, StateGraph

Updates = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ("examples", "stategraph", "tests")
WORKERS = 4
KILLED_AT = 60


def find_files(state: State) -> Updates:
    """Node: list the files. Nothing is read yet."""
    found = (path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))
    return {"files": sorted(path.relative_to(REPOSITORY).as_posix() for path in found)}


def longest_function(file: str) -> list[Any]:
    """Return the length of the longest function of a file in lines, and its name."""
    functions = (
        [(node.end_lineno or node.lineno) - node.lineno + 1, f"{file}: {node.name}"]
        for node in ast.walk(ast.parse((REPOSITORY / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return max(functions, default=[0, file])


def pick(state: State) -> Updates:
    """Node: pick the longest of all."""
    return {"longest": max(state["functions"])}


def map_graph(folder: Path) -> StateGraph:
    """Return the graph: find -> measure (a map) -> pick. The first process kills itself halfway."""

    def measure(file: str) -> list[Any]:
        with (folder / "log").open("a", encoding="utf-8") as log:
            log.write(f"{file}\n")
        begun = len((folder / "log").read_text(encoding="utf-8").splitlines())
        if begun >= KILLED_AT and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return longest_function(file)

    checkpoint = CheckpointConfig(store="sqlite", interval=1, preserve=True, options={"path": str(folder / "runs.db")})
    graph = StateGraph(GraphConfig(name="map-files", checkpoint=checkpoint))
    graph.add_node("find", find_files)
    graph.add_node("measure", MapNode(measure, over="files", into="functions", max_workers=WORKERS))
    graph.add_node("pick", pick)
    graph.add_edge("find", "measure")
    graph.add_edge("measure", "pick")
    graph.set_entry_point("find")
    graph.set_exit_point("pick")
    return graph


def run(folder: Path) -> None:
    """Resume the run if the store has it, otherwise start it, as a supervisor would."""
    graph = map_graph(folder)
    try:
        graph.resume("map-1")
    except CheckpointNotFoundError:
        graph.execute(State(run_id="map-1"))


def main() -> None:
    """Start the process that is killed and the one that resumes, and show the files that were read twice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, __file__, "--folder", name]
        killed = subprocess.run(command, check=False).returncode == -signal.SIGKILL
        before = (folder / "log").read_text(encoding="utf-8").splitlines()
        print(f"first process: {'killed' if killed else 'not killed'} when it had begun {len(before)} files")

        subprocess.run(command, check=True)
        after = (folder / "log").read_text(encoding="utf-8").splitlines()[len(before) :]
        graph = map_graph(folder)
        final = graph.store.load("map-1")
        graph.store.close()

        again = set(before) & set(after)
        assert len(again) <= 2 * WORKERS, "a file was done again whose result was saved"
        assert set(before) | set(after) == set(final["files"]), "a file was never done"
        assert len(after) == len(set(after)), "a file was done twice by one process"
        print(f"second process: {len(after)} files, {len(again)} of them begun before")
        print(f"not done again: {len(before) - len(again)} of {len(final['files'])} files")
        lines, function = final["longest"]
        print(f"longest function: {function}, {lines} lines")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.folder is None:
        main()
    else:
        run(given.folder)
