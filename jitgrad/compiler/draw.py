"""A graph as DOT text: forward and backward in two colours, detach boundaries as a visible cut."""

from __future__ import annotations

from jitgrad.core.graph import Atom, Constant, Graph
from jitgrad.ops.linear import stop_gradient_view

__all__ = ["Drawing", "dot"]

_FORWARD, _BACKWARD, _CUT = "#dbe9f6", "#fbe3cf", "#d62728"


class Drawing:
    """DOT text of a graph; notebooks show it as a picture where graphviz is installed, else as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        escaped = self.text.replace("&", "&amp;").replace("<", "&lt;")
        return f"<pre>{escaped}</pre>"


def dot(graph: Graph) -> Drawing:
    """The graph as DOT; what belongs to a gradient has the second colour."""
    names: dict[Atom, str] = {}
    lines = [
        f"digraph {graph.name} {{",
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
        colour = "white" if cut else _BACKWARD if node.backward else _FORWARD
        label = "detach" if cut else node.primitive.name
        extra = f', color="{_CUT}", penwidth=2, style="dashed"' if cut else ""
        for v in node.outputs:
            names[v] = f"node{k}"
        lines.append(f'  node{k} [label="{label}\\n{node.outputs[0].aval!r}", fillcolor="{colour}"{extra}];')
        for a in node.inputs:
            edge = f' [color="{_CUT}", style=dashed]' if cut else ""
            lines.append(f"  {name(a)} -> node{k}{edge};")
    for k, atom in enumerate(graph.outputs):
        lines.append(f"  result{k} [shape=ellipse, fillcolor=white];")
        lines.append(f"  {name(atom)} -> result{k};")
    lines.append("}")
    return Drawing("\n".join(lines))
