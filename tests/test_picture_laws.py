"""Laws of all pictures, for all graphs and all names of nodes."""

import re
from html.parser import HTMLParser
from itertools import combinations, cycle
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from stategraph._values.progress import NodeOutline
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.picture import Picture
from stategraph.picture._run import Visit, Walk
from tests.drawings import NEAR, STACK, SVG, elements, read

HOSTILE = [
    "end", "subgraph", "click", "class", "graph", '"', '"]', "<script>alert(1)</script>", "a-->b", "%%{init:{}}%%",
    "%% c",
    "#quot;", "#35;", "&amp;", "]]>", "<!--", "</style>", "`x`", "**b**", "[x](javascript:alert(1))", "http://e.com",
    "A;B", "a|b", "{{x}}", "\\n", "\n", "\t", "\x00", "\ud800", "\u202eabc", "漢字", "'", "o", "x", "", "  ", "---",
    "x@{ shape: y }", "1. item", "x" * 300, "url(#a)", "é", "🎉", "$$x$$", "default", "a:::b",
]  # fmt: skip

NAMES = some.sampled_from("abcdefghij") | some.sampled_from(HOSTILE) | some.text(max_size=8)
LABELS = some.sampled_from(["always()", "always()", "on_error", "key_equals('a', 1)"]) | NAMES
KINDS = some.sampled_from(["function", "map", "parallel", "pause", "graph"]) | NAMES


def as_seen(name):
    return "".join(char if char.isprintable() else "?" for char in " ".join(name.split()))


@some.composite
def structures(draw, nested=None):
    names = draw(some.lists(NAMES, min_size=1, max_size=9, unique_by=as_seen))
    name = some.sampled_from(names)
    edges = draw(some.lists(some.builds(EdgeStructure, name, name, LABELS, NAMES | some.just("")), max_size=16))
    inside = some.none() if nested is None else some.none() | nested
    notes = some.lists(NAMES, max_size=2)
    outlines = draw(some.dictionaries(name, some.builds(NodeOutline, KINDS, notes, inside), max_size=4))
    exits = draw(some.lists(name, max_size=3))
    return GraphStructure(tuple(names), tuple(edges), draw(some.none() | name), tuple(exits), outlines)


STRUCTURES = structures(structures())
FEW = settings(max_examples=10)


STATUSES = ("", "done", "handled", "failed", "waiting", "under way", "next", "maybe")


def picture_of(structure):
    """Return a picture of it, and of a run that was everywhere in one way or another."""
    statuses = zip(structure.nodes, cycle(STATUSES), strict=False)
    visits = {
        name: Visit(status, times, times / 3 if times else None, times % 2, name, times % 3)
        for times, (name, status) in enumerate(statuses)
    }
    taken = {(edge.source, edge.target): place % 3 for place, edge in enumerate(structure.edges)}
    return Picture("<g>&\"'\x00", structure, Walk(visits, taken, {}, "</text>\x00"))


def graphs_of(svg):
    """Return the graph of a picture, and all that are nested in it."""
    graphs = [read(svg)]
    for graph in graphs:
        graphs += [nested for node in graph.nodes for nested in node.graphs]
    return graphs


def outer_of(node):
    """Return the place of a node, with the sheets under it."""
    sheet = STACK if node.kind in ("map", "parallel") else 0.0
    rect = node.rect
    return type(rect)(rect.left, rect.top, rect.right + sheet, rect.bottom + sheet)


@FEW
@given(STRUCTURES)
def test_nothing_stands_on_anything_else(structure):
    """Boxes and labels never overlap, and nested graphs are inside their box."""
    svg = picture_of(structure).to_svg()
    width, height = (float(value) for value in re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])

    for graph in graphs_of(svg):
        places = [(node.name, outer_of(node)) for node in graph.nodes] + list(graph.labels)
        assert [(one, other) for one, other in combinations(places, 2) if one[1].overlaps(other[1])] == []
        assert all(rect.left >= 0 and rect.top >= 0 for _, rect in places)
        assert all(rect.right <= width + 1 and rect.bottom <= height + 1 for _, rect in places)
        for node in graph.nodes:
            within = [outer_of(other) for nested in node.graphs for other in nested.nodes]
            assert all(node.rect.has(rect.left, rect.top) and node.rect.has(rect.right, rect.bottom) for rect in within)


@FEW
@given(STRUCTURES)
def test_every_edge_ends_at_its_boxes(structure):
    """Every edge ends at its boxes and crosses no other box."""
    for graph in graphs_of(picture_of(structure).to_svg()):
        for edge in graph.edges:
            if edge.source is None:
                continue
            source, target = graph.node(edge.source), graph.node(edge.target)
            assert any(rect.has_at_border(*edge.points[0]) for rect in (source.rect, outer_of(source)))
            assert any(rect.has_at_border(*edge.points[-1]) for rect in (target.rect, outer_of(target)))
            others = [node for node in graph.nodes if node not in (source, target)]
            assert [node for node in others for point in edge.points if outer_of(node).has(*point, -NEAR)] == []


@FEW
@given(STRUCTURES)
def test_all_nodes_and_edges_are_there(structure):
    """Every node has a box; edges with the same ends share a line, except edges of failures."""
    graph = read(picture_of(structure).to_svg())
    shown = [(edge.source, edge.target, "failure" in edge.classes) for edge in graph.edges if edge.source is not None]

    assert len(graph.nodes) == len(structure.nodes)
    ends = {(edge.source, edge.target, edge.label == "on_error") for edge in structure.edges}
    assert len(shown) == len(ends)
    assert sum(edge.source is None for edge in graph.edges) == (structure.entry is not None)


@FEW
@given(STRUCTURES)
def test_the_same_input_gives_the_same_picture(structure):
    """So that a picture in a repository changes when the graph does."""
    again = GraphStructure(*(getattr(structure, name) for name in ("nodes", "edges", "entry", "exits", "outlines")))

    assert picture_of(structure).to_svg() == picture_of(again).to_svg()
    assert picture_of(structure).to_mermaid() == picture_of(again).to_mermaid()


TAGS = {"svg", "style", "g", "rect", "path", "polygon", "circle", "text", "title"}
ATTRIBUTES = set(
    """
    class width height viewBox role aria-label x y rx cx cy r d points transform text-anchor
    data-source data-target data-node data-kind
    """.split()
)


@FEW
@given(STRUCTURES)
def test_there_is_nothing_in_it_that_could_be_run(structure):
    """A picture contains nothing to run or load: all names are text."""
    svg = picture_of(structure).to_svg()

    for element in elements(svg):
        assert element.tag.removeprefix(SVG) in TAGS
        assert set(element.attrib) <= ATTRIBUTES
    style = "".join(element.text or "" for element in elements(svg) if element.tag == f"{SVG}style")
    assert "url" not in style
    assert "import" not in style


NODE = r'n\d+(\["T"\]|\(\["T"\]\)|\[\["T"\]\]|\[/"T"/\]|\{\{"T"\}\})'
LINE = re.compile(
    "|".join(
        (
            *(r"flowchart TB", NODE, r'subgraph n\d+ \["T"\]', "end", r"n\d+\(\( \)\)"),
            *(r'n\d+ (-->|==>|-\.->)(\|"T"\|)? n\d+', r"classDef [a-z]+ [-a-z0-9#:, ]+", r"class [n\d,]+ [a-z]+"),
        )
    ).replace("T", r"(?:\w|[ .,_=+/×·≠✓-]|#\d+;|<br/>)*")
)
"""The lines that there are: in quotes, nothing but letters, digits, numbers of other characters and a few signs."""


@FEW
@given(STRUCTURES)
def test_mermaid_is_made_of_few_lines_that_it_knows(structure):
    """So that no name is taken for a word of the language; its own parser has read such texts."""
    lines = picture_of(structure).to_mermaid().splitlines()

    assert [line for line in lines if not LINE.fullmatch(line.strip())] == []


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


@FEW
@given(STRUCTURES)
def test_a_page_has_no_script(structure):
    """A page has no script, and its policy allows none."""
    page = _Page()
    page.feed(picture_of(structure).to_html())

    assert {tag for tag, _ in page.tags} <= TAGS | {"html", "head", "meta", "body"}
    assert not [name for _, about in page.tags for name in about if name.startswith("on") or name in ("href", "src")]
    assert any("default-src 'none'" in (about.get("content") or "") for _, about in page.tags)


def random_structure(nodes, edges, seed=1):
    random = Random(seed)
    names = [f"node-{number}" for number in range(nodes)]
    ends = [(names[random.randrange(max(0, place - 4), place)], names[place]) for place in range(1, nodes)]
    ends += [(random.choice(names), random.choice(names)) for _ in range(edges)]
    labels = [random.choice(["always()", "key_equals('verdict', 'good')"]) for _ in ends]
    between = tuple(EdgeStructure(*two, label) for two, label in zip(ends, labels, strict=True))
    return GraphStructure(tuple(names), between, names[0], (names[-1],))


@pytest.mark.parametrize(
    "structure", [random_structure(1_000, 800), random_structure(400, 4_000)], ids=["1000", "dense"]
)
def test_large_graphs_are_drawn(structure):
    """Lines that would pass too many rows go around them all."""
    graph = read(picture_of(structure).to_svg())
    boxes = {node.name: node.rect for node in graph.nodes}

    assert len(boxes) == len(structure.nodes)
    for edge in graph.edges:
        if edge.source and edge.target and edge.source != edge.target:
            assert boxes[edge.source].has_at_border(*edge.points[0])
            assert boxes[edge.target].has_at_border(*edge.points[-1])


def test_a_picture_has_a_limit_and_says_so():
    """Of too large a graph, a part is drawn, with the way of the run; a box says how much is left out."""
    names = [f"node-{number}" for number in range(120)]
    edges = [EdgeStructure(source, target, "always()") for source in names for target in names if source != target]
    full = GraphStructure(tuple(names), tuple(edges), names[0])
    walk = Walk(taken={(names[-1], names[-2]): 1})
    long = GraphStructure(tuple(f"node-{number}" for number in range(5_000)), ())

    drawn = Picture("full", full, walk).to_mermaid()
    assert (drawn.count(" --> "), drawn.count(" ==> ")) == (5_000, 1)
    assert "9,280 more edges, not drawn" in drawn
    assert "9,280 more edges, not drawn" in Picture("full", full, walk).to_svg()
    assert "1,000 more nodes, not drawn" in Picture("long", long, Walk()).to_mermaid()


def test_a_long_text_is_cut_before_it_is_searched():
    """The time for a text of any length does not grow with the square of its length."""
    edge = EdgeStructure("a", "b", "x" * 300_000)

    assert "x" * 33 + "…" in Picture("long", GraphStructure(("a", "b"), (edge,)), Walk()).to_svg()
