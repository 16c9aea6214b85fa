"""Tracing: a function of tensors, called once with stand-ins, becomes a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.core.aval import ShapedArray, make_aval
from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Atom, Constant, Graph, Tracer
from jitgrad.core.modes import grad_mode
from jitgrad.core.primitive import Elementwise, Host, Primitive, Reduce, View
from jitgrad.errors import ShapeError, UnsupportedError

__all__ = ["atom_of", "infer", "trace"]


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
        if data.graph is not graph:
            raise UnsupportedError(
                "a traced value was used outside of the function that it was traced in; return it instead of storing it"
            )
        return data.variable
    return Constant(data, source)


def infer(primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]) -> tuple[ShapedArray, ...]:
    """The avals of the results, without computing them."""
    match primitive.impl:
        case Elementwise(result=result, fixed=fixed):
            dtype = next(a.dtype for i, a in enumerate(avals) if i not in fixed)
            return (make_aval(broadcast(primitive, avals), np.dtype(np.bool_) if result == "bool" else dtype),)
        case Reduce(result=result_dtype):
            kept = tuple(n for i, n in enumerate(avals[0].shape) if i not in params["axes"])
            return (make_aval(kept, np.dtype(result_dtype(avals[0].dtype))),)
        case View(view=view):
            stand_in = np.broadcast_to(np.zeros((), avals[0].dtype), avals[0].shape)
            return (make_aval(view(stand_in, **params).shape, avals[0].dtype),)
        case Host(infer=rule):
            found = rule(*avals, **params)
            return (found,) if isinstance(found, ShapedArray) else tuple(found)


def broadcast(primitive: Primitive, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The shape that the operands broadcast to."""
    first = avals[0].shape
    if all(a.shape == first for a in avals):
        return first
    try:
        return np.broadcast_shapes(*(a.shape for a in avals))
    except ValueError:
        shapes = " and ".join(str(a.shape) for a in avals)
        raise ShapeError(f"{primitive.name}: shapes {shapes} do not broadcast together") from None
