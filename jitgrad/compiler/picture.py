"""A graph as a self-contained SVG picture: no graphviz, no scripts, no style sheets that could reach the page around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from jitgrad.compiler.layout import Place, arrange
from jitgrad.compiler.lines import UserLines
from jitgrad.core.graph import Atom, Constant, Graph, Node
from jitgrad.ops.linear import stop_gradient_view

__all__ = ["BACKWARD", "CUT", "FORWARD", "svg"]

FORWARD, BACKWARD, CUT = "#dbe9f6", "#fbe3cf", "#d62728"
"""Colours of operations, of operations that belong to a gradient, and of detach boundaries."""
_LINES: Final = {"forward": "#4a7fb0", "backward": "#d07a2d", "cut": CUT, "constant": "#9aa0a6"}
_MARGIN: Final = 16.0
_HEAD: Final = 34.0  # room for the legend
_BETWEEN: Final = 34.0  # room for curves between two columns
_FONT: Final = "Helvetica, Arial, sans-serif"


@dataclass(eq=False)
class _Box:
    """Something that is drawn, and where."""

    kind: str  # "input", "result", "forward", "backward", "cut", "constant"
    words: list[str]
    title: str
    place: Place
    x: float = 0.0

    @property
    def width(self) -> float:
        if self.kind == "constant":
            return max(len(w) for w in self.words) * 5.4 + 4
        return max(len(w) * (7.2 if k == 0 else 6.0) for k, w in enumerate(self.words)) + 14

    @property
    def line(self) -> str:
        """Which colour the edges have that start here."""
        return self.kind if self.kind in _LINES else "forward"


def _escaped(text: str) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(character, entity)
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _shortened(text: str, width: int = 28) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


class _Scene:
    """Boxes and edges of a graph, in layers: each node stands right of all that it reads."""

    def __init__(self, graph: Graph) -> None:
        self.boxes: list[_Box] = []
        self.edges: list[tuple[_Box, _Box]] = []
        made: dict[Atom, _Box] = {}
        lines = UserLines()
        for k, variable in enumerate(graph.inputs):
            made[variable] = self._box("input", [f"input {k}", repr(variable.aval)], "", 0)
        layers = _layers(graph)
        for node in graph.nodes:
            box = self._node(node, layers[id(node)], lines)
            for atom in dict.fromkeys(node.inputs):
                self.edges.append((self._operand(atom, made, box.place.layer), box))
            for v in node.outputs:
                made[v] = box
        for k, atom in enumerate(graph.outputs):
            source = made.get(atom) if not isinstance(atom, Constant) else None
            layer = source.place.layer + 1 if source is not None else 1
            box = self._box("result", [f"result {k}", repr(atom.aval)], "", layer)
            self.edges.append((source or self._operand(atom, made, layer), box))

    def _box(self, kind: str, words: list[str], title: str, layer: int) -> _Box:
        height = {"constant": 13.0, "cut": 58.0}.get(kind, 36.0)
        box = _Box(kind, [_shortened(w) for w in words], title, Place(layer, height))
        self.boxes.append(box)
        return box

    def _node(self, node: Node, layer: int, lines: UserLines) -> _Box:
        comment = "".join(lines.comment(node))[2:]
        params = ", ".join(f"{k}={v!r}" for k, v in node.params.items())
        name = node.primitive.name
        title = "\n".join(t for t in (f"{name}({params})", repr(node.outputs[0].aval), comment) if t)
        if node.primitive is stop_gradient_view:
            return self._box("cut", ["detach"], title, layer)
        kind = "backward" if node.backward else "forward"
        return self._box(kind, [name, ", ".join(repr(v.aval) for v in node.outputs)], title, layer)

    def _operand(self, atom: Atom, made: dict[Atom, _Box], layer: int) -> _Box:
        """The box of what is read; each use of a number has a small one of its own beside it."""
        if not isinstance(atom, Constant):
            return made[atom]
        if atom.is_literal:
            return self._box("constant", [repr(atom.value.item())], "", layer - 1)
        if atom not in made:
            made[atom] = self._box("constant", [f"captured {atom.aval!r}"], "", 0)
        return made[atom]


def _layers(graph: Graph) -> dict[int, int]:
    """The layer of each node, by identity: the longest path from an input. What is made of constants alone stands as near
    to its first use as it can."""
    at: dict[Atom, int] = dict.fromkeys(graph.inputs, 0)
    loose: set[Atom] = set()
    found: dict[int, int] = {}
    for node in graph.nodes:
        layer = found[id(node)] = 1 + max((at.get(a, 0) for a in node.inputs), default=0)
        if all(isinstance(a, Constant) or a in loose for a in node.inputs):
            loose.update(node.outputs)
        for v in node.outputs:
            at[v] = layer
    first: dict[Atom, int] = {}  # the first layer that reads a value
    for node in reversed(graph.nodes):
        uses = [first[v] for v in node.outputs if v in first]
        if uses and node.outputs[0] in loose:
            found[id(node)] = min(uses) - 1
        for a in node.inputs:
            first[a] = min(first.get(a, found[id(node)]), found[id(node)])
    return found


def svg(graph: Graph) -> str:
    """The picture of a graph as SVG text: operations left to right in the order in which they can run, gradients in a second
    colour, detach boundaries as red bars with dashed edges. Each operation has its parameters and line as a tooltip."""
    scene = _Scene(graph)
    boxes = scene.boxes
    routes = arrange([b.place for b in boxes], [(a.place, b.place) for a, b in scene.edges])
    count = max((b.place.layer for b in boxes), default=-1) + 1
    widths = [max((b.width for b in boxes if b.place.layer == k), default=0.0) for k in range(count)]
    lefts, x = [], _MARGIN
    for w in widths:
        lefts.append(x)
        x += w + _BETWEEN
    for box in boxes:
        column = widths[box.place.layer]
        # numbers stand beside what they are for
        box.x = lefts[box.place.layer] + (column - box.width / 2 if box.kind == "constant" else column / 2)
        box.place.y += _HEAD + _MARGIN
    for lane in {id(p): p for route in routes.values() for p in route}.values():
        lane.y += _HEAD + _MARGIN
    kinds = {b.kind for b in boxes}
    width = max(x - _BETWEEN + _MARGIN, 330.0)
    height = max((b.place.y + b.place.height / 2 for b in boxes), default=0.0)
    height = max([height, *(p.y for route in routes.values() for p in route)]) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{_FONT}" role="img">',
        f"<title>{_escaped(graph.name)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        *_legend(kinds),
        *_curves(scene, routes, lefts, widths),
        *map(_shape, boxes),
        "</svg>",
    ]
    return "\n".join(parts)


def _legend(kinds: set[str]) -> list[str]:
    parts, x = [], _MARGIN
    for kind, word in (("forward", "operation"), ("backward", "gradient"), ("cut", "detach: no gradient passes")):
        if kind not in kinds:
            continue
        if kind == "cut":
            parts.append(f'<path d="M{x + 7:.0f} 10V28" stroke="{CUT}" stroke-width="3"/>')
        else:
            fill = FORWARD if kind == "forward" else BACKWARD
            parts.append(
                f'<rect x="{x:.0f}" y="12" width="14" height="14" rx="3" fill="{fill}" stroke="{_LINES[kind]}"/>'
            )
        parts.append(f'<text x="{x + 20:.0f}" y="23" font-size="11" fill="#333">{word}</text>')
        x += 36 + 6.2 * len(word)
    return parts


def _curves(
    scene: _Scene, routes: dict[tuple[Place, Place], list[Place]], lefts: list[float], widths: list[float]
) -> list[str]:
    """All edges, one path for each box and colour: what leaves a box together is drawn once."""
    paths: dict[tuple[int, str], list[str]] = {}
    pens: dict[int, tuple[float, float]] = {}
    drawn: set[Place] = set()
    arrows: list[str] = []
    arriving: dict[_Box, list[tuple[float, _Box, float]]] = {}
    for source, target in scene.edges:
        route = routes[source.place, target.place]
        x, y = source.x + (2 if source.kind == "cut" else source.width / 2), source.place.y
        lines = paths.setdefault((id(source), source.line), [])
        for lane in route:
            right = lefts[lane.layer] + widths[lane.layer]
            if lane not in drawn:
                drawn.add(lane)
                goes_on = pens.get(id(source)) == (x, y)
                if abs(lane.y - y) < 0.5:
                    lane.y = y
                    if goes_on:
                        lines.pop()  # the level part before it, which becomes longer
                    else:
                        lines.append(f"M{x:.0f} {y:.1f}")
                else:
                    lines.append(("" if goes_on else f"M{x:.0f} {y:.1f}") + _curve(x, y, lefts[lane.layer], lane.y))
                lines.append(f"H{right:.0f}")
                pens[id(source)] = right, lane.y
            x, y = right, lane.y
        arriving.setdefault(target, []).append((y, source, x))
    for target, ends in arriving.items():
        ends.sort(key=lambda end: end[0])
        step = 0.0 if target.kind == "cut" else min(8.0, 26.0 / len(ends))
        tip = target.x - (2 if target.kind == "cut" else target.width / 2)
        for k, (y, source, x) in enumerate(ends):
            kind = "cut" if target.kind == "cut" else source.line
            end = target.place.y + (k - (len(ends) - 1) / 2) * step
            column = lefts[target.place.layer]
            lines = paths.setdefault((id(source), kind), [])
            level = f"H{tip - 4:.0f}" if tip - 4 > column else ""
            lines.append(f"M{x:.0f} {y:.1f}{_curve(x, y, min(column, tip - 4), end)}{level}")
            arrows.append(f'<path d="M{tip:.0f} {end:.1f}l-6 -3v6z" fill="{_LINES[kind]}"/>')
    found = []
    for (_, kind), lines in paths.items():
        if lines:
            dashes = ' stroke-dasharray="5 4"' if kind == "cut" else ""
            found.append(
                f'<path d="{"".join(lines)}" fill="none" stroke="{_LINES[kind]}" stroke-width="1.2" '
                f'stroke-opacity="0.8"{dashes}/>'
            )
    return found + arrows


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    if abs(y - to_y) < 0.5:
        return f"H{to_x:.0f}"
    # level until the column ends: boxes are narrower than the widest of their layer
    start = max(x, to_x - _BETWEEN)
    middle = (start + to_x) / 2
    lead = f"H{start:.0f}" if start > x else ""
    return f"{lead}C{middle:.0f} {y:.1f} {middle:.0f} {to_y:.1f} {to_x:.0f} {to_y:.1f}"


def _shape(box: _Box) -> str:
    x, y, w = box.x, box.place.y, box.width
    title = f"<title>{_escaped(box.title)}</title>" if box.title else ""
    if box.kind == "constant":
        words = _escaped(box.words[0])
        return f'<text x="{x:.1f}" y="{y + 3:.1f}" font-size="9" fill="#666" text-anchor="middle">{words}</text>'
    if box.kind == "cut":
        return (
            f'<g>{title}<path d="M{x:.1f} {y - 15:.1f}v30" stroke="{CUT}" stroke-width="4"/>'
            f'<text x="{x:.1f}" y="{y - 20:.1f}" font-size="11" fill="{CUT}" text-anchor="middle">detach</text></g>'
        )
    fill = {"forward": FORWARD, "backward": BACKWARD}.get(box.kind, "white")
    stroke = _LINES.get(box.kind, "#777")
    corner = 17 if fill == "white" else 5
    name, aval = map(_escaped, box.words)
    return (
        f'<g>{title}<rect x="{x - w / 2:.1f}" y="{y - 17:.1f}" width="{w:.1f}" height="34" rx="{corner}" fill="{fill}" '
        f'stroke="{stroke}"/>'
        f'<text x="{x:.1f}" y="{y - 2:.1f}" font-size="12" fill="#111" text-anchor="middle">{name}</text>'
        f'<text x="{x:.1f}" y="{y + 11:.1f}" font-size="10" fill="#555" text-anchor="middle">{aval}</text></g>'
    )
