"""How passes change graphs: nodes are replaced by values, by another node or by a part of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jitgrad.core.graph import Atom, Extent, Graph, Node

__all__ = ["Part", "moved_params", "rewritten"]


@dataclass(frozen=True, slots=True)
class Part:
    """A graph to put in place of a node, and the values that it is applied to."""

    graph: Graph
    inputs: Sequence[Atom]


_Replacement: TypeAlias = list[Atom] | Node | Part | None
"""Other values for the results of a node, another node, nodes that compute the same, or None for the node as it is."""


def rewritten(graph: Graph, visit: Callable[[Node], _Replacement]) -> Graph:
    """The graph with what ``visit`` gives in place of each node.

    ``visit`` sees nodes whose operands are replaced already; it must not change them, since the graph keeps them.
    """
    instead: dict[Atom, Atom] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if instead:
            inputs, params = tuple([instead.get(a, a) for a in node.inputs]), moved_params(node.params, instead)
            if inputs != node.inputs or params is not node.params:
                node = Node(node.primitive, inputs, params, node.outputs, node.where, node.backward)
        found = visit(node)
        if found is None:
            nodes.append(node)
        elif isinstance(found, Node):
            nodes.append(found)
        else:
            values = _appended(nodes, found, node) if isinstance(found, Part) else found
            instead.update(zip(node.outputs, values, strict=True))
    return Graph(graph.name, list(graph.inputs), nodes, [instead.get(a, a) for a in graph.outputs])


def _appended(nodes: list[Node], part: Part, like: Node) -> list[Atom]:
    """The results of a part whose nodes are appended, for the line of the program that ``like`` is of."""
    inside: dict[Atom, Atom] = dict(zip(part.graph.inputs, part.inputs, strict=True))
    for step in part.graph.nodes:
        inputs = tuple([inside.get(a, a) for a in step.inputs])
        params = moved_params(step.params, inside)
        nodes.append(Node(step.primitive, inputs, params, step.outputs, like.where, like.backward))
    return [inside.get(a, a) for a in part.graph.outputs]


def moved_params(params: dict[str, Any], instead: Mapping[Atom, Atom]) -> dict[str, Any]:
    """The parameters, with extents that now belong to the values put in place of others."""
    if not params or not instead:
        return params
    changed = {}
    for name, value in params.items():
        if isinstance(value, Extent) and value.atom in instead:
            changed[name] = _moved_extent(value, instead)
        elif type(value) is tuple and any(isinstance(n, Extent) and n.atom in instead for n in value):
            changed[name] = tuple([_moved_extent(n, instead) for n in value])
    return {**params, **changed} if changed else params


def _moved_extent(n: Any, instead: Mapping[Atom, Atom]) -> Any:
    if not isinstance(n, Extent) or n.atom not in instead:
        return n
    atom = instead[n.atom]
    return Extent(n, atom, n.axis) if atom.aval.ndim > n.axis and atom.aval.shape[n.axis] == n else int(n)
