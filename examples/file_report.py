"""Report on a folder: each text file is read once, however often the program is killed.

    python examples/file_report.py docs report.md

Kill it at any time and start it again: it continues with the remaining files and writes the same report.
"""

import argparse
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, MapNode, State, StateGraph

Updates = dict[str, Any]

COMMON = frozenset("the and that with from this what which there when where them then they have into only".split())


def find_files(state: State) -> Updates:
    """Node: list the files. The list is made once and saved."""
    found = sorted(path.as_posix() for path in Path(state["folder"]).rglob("*") if path.suffix in (".md", ".txt"))
    return {"files": found}


def read(file: str) -> dict[str, Any]:
    """Count the words of a file, an item of the map."""
    print(f"reading {file}", flush=True)
    words = re.findall(r"[a-z]{4,}", Path(file).read_text(encoding="utf-8", errors="replace").lower())
    return {"words": len(words), "often": dict(Counter(word for word in words if word not in COMMON).most_common(50))}


def write_report(state: State) -> Updates:
    """Node: write the report to a temporary file and move it into place, so that it is never half-written."""
    report = Path(state["report"])
    draft = report.with_suffix(".draft")
    draft.write_text("\n".join(_lines(state)), encoding="utf-8")
    draft.replace(report)
    return {"words": sum(file["words"] for file in state["counted"])}


def _lines(state: State) -> list[str]:
    often: Counter[str] = Counter()
    for file in state["counted"]:
        often.update(file["often"])
    rows = [f"| {file} | {about['words']:,} |" for file, about in zip(state["files"], state["counted"], strict=True)]
    words = [f"- {word}: {count:,}" for word, count in sorted(often.items(), key=_rank)[:10]]
    return ["# Words", "", "| file | words |", "|---|---:|", *rows, "", "## Most frequent", "", *words, ""]


def _rank(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def report_graph(store: str = "report.db") -> StateGraph:
    """Return the graph: find_files -> read (each file) -> write_report."""
    checkpoint = CheckpointConfig(store="sqlite", options={"path": store})
    graph = StateGraph(GraphConfig(name="file-report", checkpoint=checkpoint))
    graph.add_node("find_files", find_files)
    graph.add_node("read", MapNode(read, over="files", into="counted", max_workers=4))
    graph.add_node("write_report", write_report)
    graph.add_sequence("find_files", "read", "write_report")
    graph.set_entry_point("find_files")
    graph.set_exit_point("write_report")
    return graph


def main(arguments: Mapping[str, Any]) -> None:
    """Run the report, or continue it: `run` does the work of a run id once."""
    graph = report_graph(arguments["store"])
    with graph.store:
        final = graph.run(State({"folder": arguments["folder"], "report": arguments["report"]}, run_id="report-1"))
    print(f"{arguments['report']}: {len(final['files'])} files, {final['words']:,} words")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count the words of the text files in a folder.")
    parser.add_argument("folder")
    parser.add_argument("report")
    parser.add_argument("--store", default="report.db", help="where the run lives")
    main(vars(parser.parse_args()))
