"""The forward push: values and tangents of a traced function, or tangents along recorded nodes, oldest first.

Everything it computes is made of jitgrad operations on tensors, so that it can be recorded, pushed forward again, or
traced: forward over reverse and forward over forward need nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.autodiff.reverse import Target, check_memory, reachable
from jitgrad.autodiff.rules import jvp
from jitgrad.core.aval import is_float
from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Atom, Constant, Graph
from jitgrad.core.memory import any_writes
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError

__all__ = ["push", "push_recorded"]


def push(
    graph: Graph, primals: Sequence[Value], tangents: Sequence[Value | None]
) -> tuple[list[Value], list[Value | None]]:
    """The results of ``graph`` at ``primals``, and their tangents in the direction ``tangents``.

    A tangent that is None is zero, among the arguments and the results alike; integers and booleans have none. Memory
    is bounded by what the rest of the graph still reads, not by its length.

    Raises ArgumentError for a wrong number of values, NotDifferentiableError (with its name) for an operation that has
    no forward rule.
    """
    if not len(graph.inputs) == len(primals) == len(tangents):
        raise ArgumentError(
            f"{graph.name} takes {len(graph.inputs)} values, not {len(primals)} with {len(tangents)} tangents"
        )
    values: dict[Atom, Value] = dict(zip(graph.inputs, primals, strict=True))
    moving: dict[Atom, Value] = {v: t for v, t in zip(graph.inputs, tangents, strict=True) if t is not None}

    def value(atom: Atom) -> Value:
        return wrap(atom.value) if isinstance(atom, Constant) else values[atom]

    last_use = {atom: i for i, node in enumerate(graph.nodes) for atom in node.inputs}
    last_use.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    for i, node in enumerate(graph.nodes):
        inputs = [value(a) for a in node.inputs]
        result = node.primitive(*inputs, **node.params)
        directions = [moving.get(a) for a in node.inputs]
        moved: Any = None
        if any(d is not None for d in directions):
            moved = jvp(node.primitive, directions, result, inputs, node.params)
        many = node.primitive.outputs > 1
        results = result if many else (result,)
        changes = (moved if moved is not None else (None,) * len(results)) if many else (moved,)
        for variable, r, change in zip(node.outputs, results, changes, strict=True):
            values[variable] = r
            if change is not None and is_float(r.dtype):
                moving[variable] = change
        for atom in {*node.inputs, *node.outputs}:
            if last_use.get(atom, i) == i:
                values.pop(atom, None)
                moving.pop(atom, None)
    return [value(a) for a in graph.outputs], [moving.get(a) for a in graph.outputs]


def push_recorded(outputs: Sequence[Target], tangents: dict[Target, Value], record: bool) -> list[Value | None]:
    """The tangents of recorded results, given those of some of the nodes that they were computed from.

    ``outputs`` and the keys of ``tangents`` are nodes with the number of the result. The nodes must have been recorded
    in forward mode, which keeps the values that rules need. Raises NotDifferentiableError for a node without a forward
    rule, InPlaceError where a value was overwritten.
    """
    moving = dict(tangents)
    nodes = reachable(edge for edge, _ in outputs)
    for node in nodes:
        if (node, 0) in tangents:
            continue
        given = [moving.get(origin) for origin in node.next_functions]
        if all(t is None for t in given):
            continue
        if any_writes():
            check_memory(node)
        moved = node.recorder.push(node, given, record)
        for slot, tangent in enumerate(moved if node.recorder.outputs > 1 else (moved,)):
            if tangent is not None:
                moving[node, slot] = tangent
    return [moving.get(target) for target in outputs]
