"""Audit the standard library with a graph that survives a kill.

Thousands of files are parsed and measured in batches, with a checkpoint every few batches. Then the imports
between them are linked, their cycles found, and a report written. This file is the graph and its commands;
what the nodes compute is in `stdlib_audit`.

    python examples/audit_stdlib.py                     the demonstration: kill it halfway, resume it, check
    python examples/audit_stdlib.py run --run-id mine   just the audit
    python examples/audit_stdlib.py resume mine         go on where it was when it was killed
"""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph, StateGraphError
from stdlib_audit import cycles, ranking
from stdlib_audit.demo import RUN_ID, Demo, demonstrate
from stdlib_audit.discover import discover, stdlib_root
from stdlib_audit.evidence import record
from stdlib_audit.measure import measure
from stdlib_audit.progress import Show, progress
from stdlib_audit.report import render

Updates: TypeAlias = dict[str, Any]

STEPS_PER_CHECKPOINT = 5
BATCH_SIZE = 40
RANKED = 15
RANKED_BY = ("complexity_max", "missing_docstrings", "lines")


def audit_graph(store: Path, report: Path, log: Path | None, show: Show) -> StateGraph:
    """Return the audit as a graph. Its runs start from `start`.

    Args:
        store: the directory of its checkpoints.
        report: the file that the report is written to.
        log: a file that gets a line for each batch that is begun, if given.
        show: called with how many files are done, and of how many.
    """
    checkpoint = CheckpointConfig(
        store="disk", interval=STEPS_PER_CHECKPOINT, preserve=True, options={"path": str(store)}
    )
    graph = StateGraph(
        # The loop takes one step for each batch, and the user chooses the number of batches.
        GraphConfig(name="stdlib-audit", max_iterations=1_000_000, checkpoint=checkpoint)
    )
    graph.add_node("discover", find_files)
    graph.add_node("audit_batch", partial(audit_batch, log=log, show=show))
    graph.add_node("link", link)
    graph.add_node("rank", rank)
    graph.add_node("report", partial(write_report, path=report))
    graph.add_edge("discover", "audit_batch")
    graph.add_edge("audit_batch", "audit_batch", files_remain)
    graph.add_edge("audit_batch", "link")
    graph.add_edge("link", "rank")
    graph.add_edge("rank", "report")
    graph.set_entry_point("discover")
    graph.set_exit_point("report")
    return graph


def start(root: Path, run_id: str, limit: int | None = None, batch_size: int = BATCH_SIZE) -> State:
    """Return the State from which an audit of the first `limit` files below `root` starts."""
    return State({"root": str(root), "limit": limit, "batch_size": batch_size}, run_id=run_id)


def find_files(state: State) -> Updates:
    """Node: list the files to audit. Nothing is measured yet."""
    files = discover(Path(state["root"]))[: state["limit"]]
    return {"python": platform.python_version(), "files": files, "measured": [], "seconds": 0.0}


def audit_batch(state: State, log: Path | None, show: Show) -> Updates:
    """Node: measure the next batch of files. The number of measured files shows the progress."""
    began, done, size = time.perf_counter(), len(state["measured"]), state["batch_size"]
    if log is not None:
        record(log, done // size + 1)
    batch = state["files"][done : done + size]
    measured = state["measured"] + [measure(Path(state["root"]), file) for file in batch]
    show(len(measured), len(state["files"]))
    return {"measured": measured, "seconds": state["seconds"] + time.perf_counter() - began}


def files_remain(state: State) -> bool:
    """Predicate: whether there is another batch to measure."""
    return len(state["measured"]) < len(state["files"])


def link(state: State) -> Updates:
    """Node: connect the modules by their imports, and find the cycles."""
    graph = cycles.import_graph(state["measured"])
    groups = cycles.cycles(graph)
    return {"graph": graph, "cycles": groups, "ring": cycles.ring(graph, groups[0]) if groups else []}


def rank(state: State) -> Updates:
    """Node: add up the totals, and rank the modules by each measure."""
    library = ranking.library(state["measured"])
    rankings = {key: ranking.top(library, key, RANKED) for key in RANKED_BY}
    importers = ranking.most_imported(state["graph"], RANKED)
    return {"totals": ranking.totals(state["measured"]), "rankings": {**rankings, "importers": importers}}


def write_report(state: State, path: Path) -> Updates:
    """Node: write the report. A repetition writes the same report again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(state), encoding="utf-8")
    return {"report": str(path)}


def _run(options: argparse.Namespace) -> None:
    with progress("audit") as show:
        graph = audit_graph(options.store, options.report, options.log, show)
        graph.execute(start(stdlib_root(), options.run_id, options.limit, options.batch_size))


def _resume(options: argparse.Namespace) -> None:
    with progress("audit, resumed") as show:
        audit_graph(options.store, options.report, options.log, show).resume(options.run_id)


def _demo(options: argparse.Namespace) -> None:
    files = len(discover(stdlib_root())[: options.limit])
    demonstrate(Demo(Path(__file__), options.dir, files, options.batch_size))


def main(arguments: Sequence[str]) -> None:
    """Run the command that was given; without one, run the demonstration."""
    options = _parser().parse_args(arguments or ["demo"])
    try:
        options.do(options)
    except StateGraphError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    except KeyboardInterrupt:
        # The graph saves the last completed step before it raises KeyboardInterrupt.
        raise SystemExit("interrupted: what was audited is saved, and `resume` goes on from there") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Audit the standard library of the Python that runs this.")
    commands = parser.add_subparsers(required=True, metavar="command")
    run = commands.add_parser("run", help="run an audit")
    run.set_defaults(do=_run)
    run.add_argument("--run-id", default=RUN_ID, help="its name in the store (default: %(default)s)")
    resume = commands.add_parser("resume", help="go on with an audit that was stopped")
    resume.set_defaults(do=_resume)
    resume.add_argument("run_id", metavar="RUN_ID")
    demo = commands.add_parser("demo", help="kill an audit, resume it, check what was done twice (default)")
    demo.set_defaults(do=_demo)
    demo.add_argument("--dir", type=Path, default=Path("stdlib-audit-demo"), help="where it leaves its files")
    _add_sizes(run, demo)
    _add_places(run, resume)
    return parser


def _add_sizes(*parsers: argparse.ArgumentParser) -> None:
    for parser in parsers:
        parser.add_argument("--limit", type=_positive, help="audit only so many files")
        parser.add_argument("--batch-size", type=_positive, default=BATCH_SIZE, help="files per batch")


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _add_places(*parsers: argparse.ArgumentParser) -> None:
    for parser in parsers:
        parser.add_argument("--store", type=Path, default="stdlib-audit-store", help="where checkpoints go")
        parser.add_argument("--report", type=Path, default="stdlib-audit.md", help="where the report goes")
        parser.add_argument("--log", type=Path, help="a file that gets a line for each batch begun")


if __name__ == "__main__":
    main(sys.argv[1:])
