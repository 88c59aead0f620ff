"""ARCHITECTURE.md: what it names is there, a step goes the way that it describes, its words are those of the code."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import stategraph
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph, key_equals
from tests.pages import ROOT, leads_somewhere, links, text_of

PAGE = "ARCHITECTURE.md"
TEXT = text_of(PAGE)
PACKAGE = Path(stategraph.__file__).parent

OTHER_MEANINGS: dict[str, set[str]] = {"session": {"session", "_begin_session"}}  # of a browser, with the page
"""Identifiers that have a word of the column "not" in another sense than the one that is replaced there."""


def section(title: str) -> str:
    """Return the part of the page under a heading."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """Return the cells of all rows of the tables in a text, without heads."""
    rows = [line.strip().strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    lines = [index for index, row in enumerate(rows) if set("".join(row)) <= set("-| ")]
    heads = {index + offset for index in lines for offset in (-1, 0)}
    return [[cell.strip() for cell in row] for index, row in enumerate(rows) if index not in heads]


def quoted(text: str) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


@cache
def sources() -> dict[str, ast.Module]:
    """Return the modules of the package, by their paths in it."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in files}


@cache
def identifiers() -> dict[str, str]:
    """Return all identifiers of the package, each with a module that has it."""
    found: dict[str, str] = {}
    for module, tree in sources().items():
        for name in Path(module).with_suffix("").parts:
            found.setdefault(name, module)
        for node in ast.walk(tree):
            names = (getattr(node, field, None) for field in ("name", "id", "attr", "arg", "asname"))
            for name in filter(None, names):
                if isinstance(name, str):
                    found.setdefault(name, module)
    return found


@cache
def docstrings() -> str:
    """Return all docstrings of the package, in lower case."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for tree in sources().values() for node in ast.walk(tree) if isinstance(node, documented))
    return "\n".join(ast.get_docstring(node) or "" for node in nodes).lower()


def words(name: str) -> tuple[str, ...]:
    """Return the words that an identifier is made of."""
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))


# --------------------------------------------------------------------------- what it names


def test_it_is_one_page():
    """It is read in one go."""
    assert len(TEXT.splitlines()) <= 230


def test_each_path_that_it_names_is_there():
    """In the package or, if it begins with a folder of the repository, there."""
    paths = {name for name in quoted(TEXT) if re.fullmatch(r"[\w./-]+(/|\.py|\.md)", name)} - {"stategraph/"}

    assert "state.py" in paths
    assert [path for path in sorted(paths) if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == []


def test_each_name_that_it_uses_is_there():
    """Unless it stands in the glossary as one that is replaced."""
    names = {name for name in quoted(TEXT) if re.fullmatch(r"[a-zA-Z][\w.]*", name) and not name.endswith(".py")}
    known = {*identifiers(), *replaced()}

    assert "StateGraph" in known
    assert [name for name in sorted(names) if not known.issuperset(name.split("."))] == []


def test_every_room_is_in_it():
    """Each folder of the package."""
    rooms = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("__init__.py")} - {"./"}

    assert rooms - set(quoted(section("The rooms"))) == set()


def test_its_links_lead_somewhere():
    """If there are any."""
    assert [target for target in links(PAGE) if not leads_somewhere(PAGE, target)] == []


# --------------------------------------------------------------------------- the way of a step


def test_the_way_of_a_durable_step_is_the_one_described(tmp_path):
    """File by file, from the node that returns to the next one that is called."""
    files: set[Path] = set()

    def note(frame, event, argument):
        files.add(Path(frame.f_code.co_filename))

    def second(state):
        sys.setprofile(note)
        return {"n": 2}

    def third(state):
        sys.setprofile(None)
        return {"n": 3}

    checkpoint = CheckpointConfig(store="sqlite", interval=1, options={"path": str(tmp_path / "runs.db")})
    graph = StateGraph(GraphConfig("traced", observer="noop", checkpoint=checkpoint))
    graph.add_node("first", lambda state: {"n": 1, "m": 1})
    graph.add_node("second", second)
    graph.add_node("third", third)
    graph.add_edge("first", "second")
    graph.add_edge("second", "third", key_equals("n", 2))
    graph.set_entry_point("first")
    graph.set_exit_point("third")
    try:
        graph.execute(State())  # imports what no later run imports
        files.clear()
        graph.execute(State())
    finally:
        sys.setprofile(None)
        graph.store.close()
    text = section("The way of one durable step")
    listed = [quoted(row[0])[0] for row in table(text)]

    assert sorted(listed) == sorted(str(file.relative_to(PACKAGE)) for file in files if file.is_relative_to(PACKAGE))
    assert f"These are {len(listed)} files." in text


# --------------------------------------------------------------------------- words


@cache
def glossary() -> list[list[str]]:
    """Return the rows of the glossary: word, what it is, what it replaces."""
    return table(section("Glossary"))


@cache
def replaced() -> list[str]:
    """Return the words that others of the glossary replace."""
    return [name for row in glossary() for name in quoted(row[2])]


def test_each_word_of_the_glossary_is_one_of_the_code():
    """In an identifier, or in a docstring."""
    used = [set(words(name)) for name in identifiers()]

    lost = [
        row[0] for row in glossary() if row[0] not in docstrings() and not any(set(words(row[0])) <= u for u in used)
    ]

    assert glossary()
    assert lost == []


def test_no_word_that_is_replaced_is_used():
    """With a capital no identifier is it, else none has it among its words."""
    used: dict[str, list[str]] = {}
    for word in replaced():
        for name, module in identifiers().items():
            is_used = name == word if word[0].isupper() else word in words(name)
            if is_used and name not in OTHER_MEANINGS.get(word, ()):
                used.setdefault(word, []).append(f"{name} in {module}")

    assert used == {}
