"""Fixtures of the tests of the command."""

import subprocess
import sys

import pytest

from tests.cli.shop import APP, environment

_RUNS = """
import sys
import app
from stategraph import ExecutionError, State

graph = app.make(*sys.argv[1:])
for run_id, answer in (("waiting", None), ("done", True), ("burnt", "burn")):
    graph.execute(State({"key": run_id}, run_id=run_id), by="ann", labels={"customer": f"c-{run_id}"})
    try:
        answer and graph.resume(run_id, {"approved": answer}, by="bob")
    except ExecutionError:
        pass
graph.submit(State({"key": "left"}, run_id="left"))
for store in {graph.store, app.graph.store}:
    store.close()
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a folder with an application, and stores with runs: waiting, done, burnt, and left."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "app.py").write_text(APP, encoding="utf-8")
    for kind, path in (("sqlite", "runs.db"), ("disk", "runs")):
        program = [sys.executable, "-c", _RUNS, kind, path]
        subprocess.run(program, cwd=folder, env=environment(), check=True, timeout=300)
    return folder


@pytest.fixture
def shop(made, tmp_path, monkeypatch):
    """Return a copy of it, as the working directory."""
    import shutil

    folder = tmp_path / "shop"
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("STATEGRAPH_STORE", "STATEGRAPH_CONFIG", "STATEGRAPH_GRAPH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(params=["runs.db", "runs"], ids=["sqlite", "disk"])
def store(request, shop, monkeypatch):
    """Return the path of a store of each kind, which the command takes."""
    monkeypatch.setenv("STATEGRAPH_STORE", request.param)
    return request.param
