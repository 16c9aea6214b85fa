"""A graph as a picture in notebooks and as DOT text elsewhere: forward and backward in two colours, detach as a cut."""

from __future__ import annotations

from jitgrad.compiler.picture import BACKWARD, CUT, FORWARD, svg
from jitgrad.core.graph import Atom, Constant, Graph
from jitgrad.ops.linear import stop_gradient_view

__all__ = ["Drawing", "dot", "draw"]


class Drawing:
    """A drawn graph: notebooks show the picture; ``str`` gives DOT text, ``svg()`` the picture as text for a file."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __str__(self) -> str:
        return dot(self._graph)

    def svg(self) -> str:
        """The picture as self-contained SVG text; it needs no graphviz."""
        return svg(self._graph)

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        # wide graphs scroll instead of shrinking
        return f'<div style="overflow-x: auto">{self.svg()}</div>'


def draw(graph: Graph) -> Drawing:
    """The drawing of a graph."""
    return Drawing(graph)


def _quoted(text: str) -> str:
    """A user's name within the quotes of DOT."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def dot(graph: Graph) -> str:
    """The graph as DOT; what belongs to a gradient has the second colour."""
    names: dict[Atom, str] = {}
    lines = [
        f'digraph "{_quoted(graph.name)}" {{',
        '  rankdir=LR; node [shape=box, style="filled,rounded", fontname="Helvetica"];',
    ]
    for k, variable in enumerate(graph.inputs):
        names[variable] = f"input{k}"
        lines.append(f'  input{k} [label="{variable.aval!r}", shape=ellipse, fillcolor=white];')
    constants = 0

    def name(atom: Atom) -> str:
        nonlocal constants
        if atom not in names:
            assert isinstance(atom, Constant)
            names[atom] = f"constant{constants}"
            label = repr(atom.value.item()) if atom.is_literal else f"captured {atom.aval!r}"
            lines.append(f'  constant{constants} [label="{label}", shape=plaintext, fillcolor=white];')
            constants += 1
        return names[atom]

    for k, node in enumerate(graph.nodes):
        cut = node.primitive is stop_gradient_view
        colour = "white" if cut else BACKWARD if node.backward else FORWARD
        label = "detach" if cut else _quoted(node.primitive.name)
        extra = f', color="{CUT}", penwidth=2, style="dashed"' if cut else ""
        for v in node.outputs:
            names[v] = f"node{k}"
        lines.append(f'  node{k} [label="{label}\\n{node.outputs[0].aval!r}", fillcolor="{colour}"{extra}];')
        for a in node.inputs:
            edge = f' [color="{CUT}", style=dashed]' if cut else ""
            lines.append(f"  {name(a)} -> node{k}{edge};")
    for k, atom in enumerate(graph.outputs):
        lines.append(f"  result{k} [shape=ellipse, fillcolor=white];")
        lines.append(f"  {name(atom)} -> result{k};")
    lines.append("}")
    return "\n".join(lines)
