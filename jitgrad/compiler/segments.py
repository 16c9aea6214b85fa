"""Segments: where a large graph is cut, so that each part is a function of its own and repeated parts are compiled once.

LLVM takes more than proportional time for long functions, and long loop bodies run out of registers. A graph above a
bound is therefore cut. Programs become large by Python loops and layers, whose steps are the same nodes over and over:
the cuts are put at one place of every step, so that the steps' sources are the same text.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from jitgrad.core.graph import Graph, Node, Variable
from jitgrad.core.primitive import Elementwise, Primitive, Reduce, View

__all__ = ["cost", "cuts", "elementary_functions", "weight"]

_LARGEST: Final = 700.0  # a graph of at most this weight is one function
_TARGET: Final = 160.0  # of a segment
_LONGEST_PERIOD: Final = 2000  # nodes
_CHEAP: Final = frozenset(
    {"scalar", "sqrt", "sel", "fabs", "copysign", "maximum", "minimum", "isnan", "isinf", "isfinite", "floor"}
)
"""Names in scalar bodies that are an instruction or two, or none."""
_SLOW: Final = frozenset({"/", "%", "//", "BINARY_TRUE_DIVIDE", "BINARY_MODULO", "BINARY_FLOOR_DIVIDE"})
"""Divisions, as ``dis`` calls them (the names up to Python 3.10)."""

Array = np.ndarray[Any, Any]


@functools.cache
def elementary_functions(primitive: Primitive) -> int:
    """How many functions (``exp``, ``sin`` ...) an element costs, each of which is dozens of instructions."""
    impl = primitive.impl
    return len(set(impl.body.__code__.co_names) - _CHEAP) if isinstance(impl, Elementwise) else 0


@functools.cache
def _instructions(primitive: Primitive) -> float:
    """About how many an element takes."""
    return 1.0 + 30.0 * elementary_functions(primitive)


@functools.cache
def cost(primitive: Primitive) -> float:
    """About how many additions take as long as an element: a division or a root is one instruction, but takes about eight."""
    impl = primitive.impl
    if not isinstance(impl, Elementwise):
        return 0.0
    code = impl.body.__code__
    slow = sum(i.argrepr in _SLOW or i.opname in _SLOW for i in dis.get_instructions(code)) + ("sqrt" in code.co_names)
    return _instructions(primitive) + 8.0 * slow


def weight(node: Node) -> float:
    """About how many instructions a node is."""
    impl = node.primitive.impl
    if isinstance(impl, Elementwise):
        return _instructions(node.primitive)
    if isinstance(impl, View):
        return 0.3
    return 3.0 if isinstance(impl, Reduce) else 5.0


def cuts(graph: Graph) -> list[int]:
    """The numbers of the nodes before which to cut, ascending; none for graphs of moderate size."""
    nodes = graph.nodes
    weights = np.array([weight(n) for n in nodes])
    if weights.sum() <= _LARGEST:
        return []
    crossing = _crossing(graph)
    found: list[int] = []
    pending = [(0, len(nodes))]
    labels = _labels(nodes)
    while pending:
        first, last = pending.pop()
        if weights[first:last].sum() <= 2 * _TARGET:
            continue
        stretch = _repeated(labels[first:last])
        if stretch is None:
            found += _by_weight(weights, crossing, first, last)
            continue
        begin, end, period = first + stretch[0], first + stretch[1], stretch[2]
        found += _periodic(weights, crossing, begin, end, period)
        pending += [(first, begin), (end, last)]
    return sorted(set(found) - {0, len(nodes)})


def _labels(nodes: Sequence[Node]) -> Array:
    """Numbers that are equal for nodes that are alike."""
    seen: dict[Any, int] = {}
    keys = [(n.primitive, n.backward, len(n.inputs), *((v.aval.shape, v.aval.dtype) for v in n.outputs)) for n in nodes]
    return np.array([seen.setdefault(k, len(seen)) for k in keys])


def _crossing(graph: Graph) -> Array:
    """For each place between nodes: how many values made before it are used behind it."""
    made = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs}
    last = dict(made)
    for i, node in enumerate(graph.nodes):
        last.update((a, i) for a in node.inputs if isinstance(a, Variable) and a in made)
    change = np.zeros(len(graph.nodes) + 2, np.int64)
    for v, i in made.items():
        change[i + 1] += 1
        change[last[v] + 1] -= 1
    return np.cumsum(change)


def _repeated(labels: Array) -> tuple[int, int, int] | None:
    """The longest stretch that repeats itself with a period, at least three times: (begin, end, period)."""
    best: tuple[int, int, int] | None = None
    count = len(labels)
    for period in range(1, min(_LONGEST_PERIOD, count // 3) + 1):
        alike = labels[period:] == labels[:-period]
        # multiples of the true period, and small gains, are no better
        wanted = 2 * period if best is None else max(2 * period, 1.05 * (best[1] - best[0]) - period)
        if np.count_nonzero(alike) < wanted:
            continue
        same = np.concatenate(([False], alike, [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        begins, ends = edges[::2], edges[1::2]
        k = int(np.argmax(ends - begins))
        length = int(ends[k] - begins[k])
        if length >= wanted and (best is None or length + period > 1.05 * (best[1] - best[0])):
            best = int(begins[k]), int(ends[k]) + period, period
    return best


def _periodic(weights: Array, crossing: Array, begin: int, end: int, period: int) -> list[int]:
    """Cuts at the same places of each period, or of several at a time if one is small."""
    whole = float(weights[begin : begin + period].sum())
    at = min(range(begin, begin + period), key=lambda i: (crossing[i] + crossing[min(i + period, end)], i))
    if whole > 2 * _TARGET:
        inner = [i - at for i in _by_weight(weights, crossing, at, min(at + period, end))]
        steps = [0, *inner]
        return [i + s for i in range(at, end, period) for s in steps if i + s < end]
    return list(range(at, end, period * max(1, round(_TARGET / max(whole, 1e-9)))))


def _by_weight(weights: Array, crossing: Array, first: int, last: int) -> list[int]:
    """Cuts into parts of about the wanted weight, each where few values cross."""
    total = np.cumsum(weights[first:last])
    parts = int(total[-1] / _TARGET)
    found = []
    for k in range(1, parts + 1):
        lowest, highest = np.searchsorted(total, [_TARGET * (k - 0.2), _TARGET * (k + 0.2)])
        places = range(first + int(lowest) + 1, min(first + int(highest) + 1, last) + 1)
        if len(places):
            found.append(min(places, key=lambda i: (crossing[i], i)))
    return [i for i in found if first < i < last]
