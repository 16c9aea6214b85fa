"""Tracing: a function of tensors, called once with stand-ins, becomes a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.core.aval import ShapedArray
from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Atom, Constant, Graph, Tracer
from jitgrad.core.modes import grad_mode

__all__ = ["atom_of", "trace"]


def trace(function: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray], name: str) -> Graph:
    """The graph of ``function`` on values of these avals; its results that are None are left out."""
    graph = Graph(name)
    # a stand-in needs an aval of its own: plans of eager values are looked up by identity and must not be found
    inputs = [wrap(graph.add_input(ShapedArray(a.shape, a.dtype, True))) for a in avals]
    token = grad_mode.set(False)
    try:
        results = function(*inputs)
    finally:
        grad_mode.reset(token)
    graph.outputs = [atom_of(r._value, graph) for r in results if r is not None]
    return graph


def atom_of(data: Any, graph: Graph, source: Any = None) -> Atom:
    """The variable of a tracer of this graph, or a constant for an array (read again from ``source`` at each run)."""
    if isinstance(data, Tracer):
        return data.variable if data.graph is graph else graph.capture(data, source)
    return Constant(data, source)
