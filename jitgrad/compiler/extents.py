"""Extents as symbols: which axes of a graph must have the same length, whatever that length is.

A graph is traced for concrete shapes; its source must not be. Every class of axes that operations force to be equal gets
one symbol, whose value is an argument of the kernel, so that other lengths run the same code. Extent 1 is a case of its
own, since it broadcasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jitgrad.core.graph import Atom, Extent, Graph, Node, Variable
from jitgrad.core.infer import infer
from jitgrad.core.primitive import ArrayCall, Elementwise, Reduce
from jitgrad.ops.array_calls import call_of
from jitgrad.ops.linear import (
    add_at,
    convert,
    copy_of,
    counted,
    expand,
    flip_view,
    gather,
    join,
    overwrite,
    permute,
    pile,
    place,
    place_diagonal,
    put,
    reshape_to,
    scatter_add,
    slice_view,
    stop_gradient_view,
    take_at,
)
from jitgrad.ops.product_primitives import vector_dot, vector_outer

__all__ = ["Extents", "equal_axes", "index_axes", "is_square_diagonal", "node_call", "rooted", "unit_reshape"]

Axis = tuple[Atom, int]
Pair = tuple[tuple[int, int], tuple[int, int]]
Pairs = Sequence[Pair]


class Extents:
    """The symbols of a graph's axes, with their values."""

    def __init__(self, graph: Graph) -> None:
        self._parent: dict[Axis, Axis] = {}
        self._symbols: dict[Axis, str] = {}
        self._shapes: dict[Atom, tuple[str, ...]] = {}  # asked for when all axes that must agree are known to
        self._numbers: dict[tuple[int, str | None], str] = {}  # derived ones, by their formulas
        self.values: list[int] = []
        self.formulas: list[str | None] = []  # of numbers that are no extents, in earlier symbols
        self.views: dict[int, list[Node]] = {}  # the views through which a node writes, from the whole to the part
        for node in graph.nodes:
            self._unify(node)
            for i, n in enumerate(node.params.get("shape", ())):
                if isinstance(n, Extent):
                    self._same((node.outputs[0], i), (n.atom, n.axis))
        for variable in graph.inputs:  # symbols of arguments first
            for i, n in enumerate(variable.aval.shape):
                root = self._root((variable, i))
                if n != 1 and root not in self._symbols:
                    self._symbols[root] = self.number(n)

    def _root(self, axis: Axis) -> Axis:
        parent = self._parent
        root = axis
        while root in parent:
            root = parent[root]
        while axis != root:  # the next look-up is shorter
            parent[axis], axis = root, parent[axis]
        return root

    def _same(self, a: Axis, b: Axis) -> None:
        if a[0].aval.shape[a[1]] == b[0].aval.shape[b[1]] != 1:
            ra, rb = self._root(a), self._root(b)
            if ra != rb:
                self._parent[rb] = ra

    def _unify(self, node: Node) -> None:
        atoms = (*node.inputs, *node.outputs)
        for (a, i), (b, j) in equal_axes(node) or ():
            self._same((atoms[a], i), (atoms[b], j))
        if node.primitive is overwrite:
            steps = self.views[id(node)] = view_nodes(node)
            for step in steps:
                self._unify(step)
            part, value = steps[-1].outputs[0] if steps else node.outputs[0], node.inputs[1]
            for i in range(value.aval.ndim):
                self._same((part, i), (value, i))

    def symbol(self, atom: Atom, axis: int) -> str:
        """The symbol of an axis; "1" for extent 1."""
        extent = atom.aval.shape[axis]
        if extent == 1:
            return "1"
        root = self._root((atom, axis))
        found = self._symbols.get(root)
        if found is None:
            found = self._symbols[root] = self.number(extent)
        return found

    def number(self, value: int, formula: str | None = None) -> str:
        """A symbol for any integer that the source must not contain; the same for the same ``formula``."""
        known = (int(value), formula)
        if formula is not None and known in self._numbers:
            return self._numbers[known]
        self.values.append(int(value))
        self.formulas.append(formula)
        symbol = self._numbers[known] = f"n{len(self.values) - 1}"
        return symbol

    def value(self, symbol: str) -> int:
        """The extent that a symbol stands for in this trace."""
        return self.values[int(symbol.removeprefix("n"))]

    def shape(self, atom: Atom) -> tuple[str, ...]:
        """The symbols of all axes."""
        found = self._shapes.get(atom)
        if found is None:
            found = self._shapes[atom] = tuple([self.symbol(atom, i) for i in range(atom.aval.ndim)])
        return found


def rooted(graph: Graph) -> Graph:
    """The graph with the extents in its parameters read from the arguments, wherever the program makes them equal: what an
    extent was read from may be a value that nobody needs."""
    axes = Extents(graph)
    roots: dict[Axis, Axis] = {}
    for variable in graph.inputs:
        for i in range(variable.aval.ndim):
            roots.setdefault(axes._root((variable, i)), (variable, i))

    def moved(n: Any) -> Any:
        if type(n) is tuple:
            return tuple(map(moved, n))
        at = roots.get(axes._root((n.atom, n.axis))) if isinstance(n, Extent) else None
        return n if at is None else Extent(n, *at)

    nodes = [
        Node(n.primitive, n.inputs, {k: moved(p) for k, p in n.params.items()}, n.outputs, n.where, n.backward)
        if n.params
        else n
        for n in graph.nodes
    ]
    return Graph(graph.name, list(graph.inputs), nodes, list(graph.outputs), graph.lines, graph.closed)


def equal_axes(node: Node) -> Pairs | None:
    """Which axes an operation forces to have the same extents: pairs of (place in operands and results, axis).

    None where nothing is known of an operation.
    """
    primitive, params, shapes = node.primitive, node.params, [a.aval.shape for a in (*node.inputs, *node.outputs)]
    count = len(node.inputs)
    shape = shapes[count]  # of the result
    if isinstance(primitive.impl, Elementwise) or primitive is expand:
        lead = [len(shape) - len(shapes[k]) for k in range(count)]
        return [
            ((k, i), (count, lead[k] + i))
            for k in range(count)
            for i, n in enumerate(shapes[k])
            if n == shape[lead[k] + i]
        ]
    if isinstance(primitive.impl, Reduce):
        return _moved(1, [i for i in range(len(shapes[0])) if i not in params["axes"]])
    if primitive is permute:
        return _moved(1, params["axes"])
    if primitive in (flip_view, convert, copy_of, counted, overwrite):
        return _moved(count, range(len(shape)))
    if primitive is reshape_to:
        return [((0, i), (1, j)) for j, i in unit_reshape(shapes[0], shape) or ()]
    if primitive is slice_view or primitive is place:
        small, large = (1, 0) if primitive is slice_view else (0, 1)
        axes = index_axes(params["index"], len(shapes[large]))
        return [((small, i), (large, j)) for i, j, entry in axes if i is not None and entry == (None, None, None)]
    if is_square_diagonal(node):
        pair = (params["axis1"], params["axis2"])
        around = [i for i in range(len(shape)) if i not in pair]
        return [*(((0, j), (1, i)) for j, i in enumerate((*around, pair[0]))), ((1, pair[0]), (1, pair[1]))]
    if primitive is gather:
        return [((1, i), (2, i)) for i in range(len(shape))]
    if primitive is scatter_add:
        return [((0, i), (1, i)) for i in range(len(shapes[0]))]
    if primitive is take_at or primitive is add_at:
        axis = params["axis"]
        chosen = 2 if primitive is take_at else 0
        return [((1, 0), (chosen, axis)), *(((0, i), (2, i)) for i in range(len(shape)) if i != axis)]
    if primitive is put:
        return [*_moved(3, range(len(shape))), *(((1, i), (2, i)) for i in range(len(shapes[1])))]
    if primitive is pile:
        axis = params["axis"]
        return [((k, i), (count, i + (i >= axis))) for k in range(count) for i in range(len(shapes[0]))]
    if primitive is join:
        others = [i for i in range(len(shape)) if i != params["axis"]]
        return [((k, i), (count, i)) for k in range(count) for i in others]
    if primitive is vector_dot:
        return [((0, 0), (1, 0))]
    if primitive is vector_outer:
        return [((0, 0), (2, 0)), ((1, 0), (2, 1))]
    call = node_call(node)
    return None if call is None else call.equal


def _moved(result: int, axes: Iterable[int]) -> list[Pair]:
    """The axes of a result at this place are these of the first operand."""
    return [((0, i), (result, j)) for j, i in enumerate(axes)]


def is_square_diagonal(node: Node) -> bool:
    """Whether this puts diagonals into square matrices: an index of the diagonal is then one of the operand."""
    if node.primitive is not place_diagonal or node.params["offset"]:
        return False
    shape = node.outputs[0].aval.shape
    return bool(shape[node.params["axis1"]] == shape[node.params["axis2"]])


def node_call(node: Node) -> ArrayCall | None:
    """The call of an array kernel that computes a node, if there is one."""
    found: ArrayCall | None = call_of(
        node.primitive, [a.aval for a in node.inputs], [v.aval for v in node.outputs], node.params
    )
    return found


def view_nodes(node: Node) -> list[Node]:
    """The views that ``overwrite`` writes through, as nodes that start from its result."""
    found: list[Node] = []
    source: Atom = node.outputs[0]
    for primitive, items in node.params["chain"]:
        if primitive is stop_gradient_view:
            continue
        params = dict(items)
        (aval,) = infer(primitive, [source.aval], params)
        part = Variable(aval)
        found.append(Node(primitive, (source,), params, (part,), node.where, node.backward))
        source = part
    return found


def unit_reshape(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """For a reshape that only adds or drops axes of extent 1: which new axis is which old one; else None."""
    old_axes = [i for i, n in enumerate(old) if n != 1]
    new_axes = [i for i, n in enumerate(new) if n != 1]
    if [old[i] for i in old_axes] != [new[i] for i in new_axes]:
        return None
    return list(zip(new_axes, old_axes, strict=True))


def index_axes(index: tuple[Any, ...], ndim: int) -> list[tuple[int | None, int, Any]]:
    """For a basic index: (axis of the part or None for an int, axis of the whole, the entry), for every axis of the whole."""
    found: list[tuple[int | None, int, Any]] = []
    part = whole = 0
    for entry in index:
        if entry is None:
            part += 1
        elif isinstance(entry, tuple):
            found.append((part, whole, entry))
            part, whole = part + 1, whole + 1
        else:
            found.append((None, whole, entry))
            whole += 1
    for axis in range(whole, ndim):
        found.append((part, axis, (None, None, None)))
        part += 1
    return found
