"""Shapes at run time: every extent of a graph as a formula of its arguments' shapes, and what must hold besides.

A graph is traced for some shapes. Run for others, its kernel is right only where each operation would have given results
of the extents that the kernel's symbols stand for. The rules here say, operation by operation, what the extents of a
result are and which conditions an operation puts on its operands; whatever does not follow becomes a check.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitgrad.compiler.extents import Extents, index_axes, is_square_diagonal, node_call
from jitgrad.core.graph import Atom, Constant, Extent, Graph, Node
from jitgrad.core.primitive import Elementwise, Reduce
from jitgrad.kernels.python_interop import slice_extent, slice_start
from jitgrad.ops.linear import (
    add_at,
    bounded,
    convert,
    copy_of,
    diagonal_view,
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
    take_at,
)
from jitgrad.ops.products import vector_dot, vector_outer
from jitgrad.ops.sorting import sorting_positions

__all__ = ["NotGeneral", "RunTimeShapes"]


class NotGeneral(Exception):
    """The extents of this graph do not follow from those of the arguments by rules that are known here."""


def _product(symbols: Sequence[str]) -> str:
    return " * ".join(s for s in symbols if s != "1") or "1"


class RunTimeShapes:
    """Definitions of all extents of a graph in terms of ``a0.shape`` and so on, and the conditions they rest on.

    Raises NotGeneral where an operation has no rule here.
    """

    def __init__(self, graph: Graph, extents: Extents) -> None:
        self.graph = graph
        self.extents = extents
        self.definitions: dict[str, str] = {}  # in an order in which they can be computed
        self.agreements: list[tuple[str, str]] = []  # what must be equal
        self.conditions: list[str] = []  # other expressions that must hold
        self.constant_axes: set[str] = set()  # symbols that a captured array fixes
        self._known: set[Atom] = set()
        self._makers = {v: n for n in graph.nodes for v in n.outputs}
        for k, variable in enumerate(graph.inputs):
            self._known.add(variable)
            for axis in range(variable.aval.ndim):
                self._is(self.shape(variable)[axis], f"a{k}.shape[{axis}]")
        for node in graph.nodes:
            for atom in node.inputs:
                self._captured(atom)
            self._node(node)
        for atom in graph.outputs:
            self._captured(atom)

    def shape(self, atom: Atom) -> tuple[str, ...]:
        """The symbols of the axes of a value."""
        return self.extents.shape(atom)

    def _captured(self, atom: Atom) -> None:
        if isinstance(atom, Constant) and atom not in self._known:
            self._known.add(atom)
            for symbol, n in zip(self.shape(atom), atom.aval.shape, strict=True):
                self.constant_axes.add(symbol)
                self._is(symbol, str(int(n)))

    def _is(self, symbol: str, formula: str) -> None:
        """A symbol has this value: its definition, or something to check."""
        if symbol == formula:
            return
        if symbol == "1" or symbol in self.definitions:
            if (symbol, formula) not in self.agreements:
                self.agreements.append((symbol, formula))
        else:
            self.definitions[symbol] = formula

    def _holds(self, condition: str) -> None:
        if condition not in self.conditions:
            self.conditions.append(condition)

    def _node(self, node: Node) -> None:
        out = node.outputs[0]
        rule = self._rule(node)
        if rule is None:
            self._called(node)
            return
        for symbol, formula in zip(self.shape(out), rule, strict=True):
            if formula is not None:
                self._is(symbol, formula)
            elif symbol not in self.definitions and symbol != "1":
                raise NotGeneral(node.primitive.name)

    def _wanted(self, node: Node) -> list[str]:
        """The extents that a ``shape`` parameter asks for."""
        found = []
        for n in node.params["shape"]:
            if not isinstance(n, Extent):
                found.append(str(int(n)))
                continue
            symbol = self.extents.symbol(n.atom, n.axis)
            if symbol != "1" and symbol not in self.definitions:
                raise NotGeneral(node.primitive.name)
            found.append(symbol)
        return found

    def _rule(self, node: Node) -> Sequence[str | None] | None:
        """The extents of the result, from those of the operands; None where there is no rule."""
        primitive, params = node.primitive, node.params
        shapes = [self.shape(a) for a in node.inputs]
        ndim = node.outputs[0].aval.ndim
        if isinstance(primitive.impl, Elementwise):
            return self._broadcast(shapes, ndim)
        if not shapes:
            return None
        first = shapes[0]
        if isinstance(primitive.impl, Reduce):
            axes = params["axes"]
            if primitive.impl.needs_elements:
                self._holds(f"{_product([first[a] for a in axes])} > 0")
            return [n for i, n in enumerate(first) if i not in axes]
        if primitive in (flip_view, convert, copy_of):
            return first
        if primitive is permute:
            return [first[a] for a in params["axes"]]
        if primitive is expand:
            wanted = self._wanted(node)
            for n, got in zip(wanted[len(wanted) - len(first) :], first, strict=True):
                if got != "1":
                    self._equal(n, got)
            return wanted
        if primitive is reshape_to:
            wanted = self._wanted(node)
            self._equal(_product(wanted), _product(first))
            return wanted
        if primitive is slice_view:
            return self._sliced(params["index"], first, node.inputs[0].aval.shape, ndim)
        if primitive is place:
            wanted = self._wanted(node)
            part = self._sliced(params["index"], tuple(wanted), node.outputs[0].aval.shape, len(first))
            for n, got in zip(part, first, strict=True):
                self._equal(n, got)
            return wanted
        if is_square_diagonal(node):
            wanted = self._wanted(node)
            pair = (params["axis1"], params["axis2"])
            self._equal(wanted[pair[0]], wanted[pair[1]])
            for n, got in zip(
                [*(n for i, n in enumerate(wanted) if i not in pair), wanted[pair[0]]], first, strict=True
            ):
                self._equal(n, got)
            return wanted
        if primitive is diagonal_view:
            return self._diagonal(params, first)
        if primitive is place_diagonal:
            wanted = self._wanted(node)
            for n, got in zip(self._diagonal(params, tuple(wanted)), first, strict=True):
                self._equal(n, got)
            return wanted
        if primitive is gather:
            self._in_bounds(node.inputs[1], _product(first))
            return shapes[1]
        if primitive is take_at:
            axis = params["axis"]
            self._in_bounds(node.inputs[1], first[axis])
            return [*first[:axis], shapes[1][0], *first[axis + 1 :]]
        if primitive in (scatter_add, add_at):
            wanted = self._wanted(node)
            axis = params.get("axis")
            self._in_bounds(node.inputs[1], _product(wanted) if axis is None else wanted[axis])
            places = shapes[1] if axis is None else [*wanted[:axis], shapes[1][0], *wanted[axis + 1 :]]
            for n, m in zip(first, places, strict=True):
                self._equal(n, m)
            return wanted
        if primitive is put:
            self._in_bounds(node.inputs[2], _product(first))
            for n, m in zip(shapes[1], shapes[2], strict=True):
                self._equal(n, m)
            return first
        if primitive is overwrite:
            return self._written(node, first, shapes[1])
        if primitive is pile:
            for shape in shapes[1:]:
                for n, m in zip(first, shape, strict=True):
                    self._equal(n, m)
            axis = params["axis"]
            return [*first[:axis], str(len(shapes)), *first[axis:]]
        if primitive is join:
            return self._joined(params["axis"], shapes, [a.aval.shape for a in node.inputs])
        if primitive is vector_dot:
            self._equal(first[0], shapes[1][0])
            return []
        if primitive is vector_outer:
            return [first[0], shapes[1][0]]
        return None

    def _called(self, node: Node) -> None:
        """What the call of an array kernel says of its axes."""
        call = node_call(node)
        if call is None:
            raise NotGeneral(node.primitive.name)
        atoms = (*node.inputs, *node.outputs)
        count = len(node.inputs)
        found: dict[tuple[int, int], str] = {}
        for a, b in call.equal:
            (p, i), (q, j) = sorted((a, b))
            known = self.shape(atoms[p])[i] if p < count else found.get((p, i))
            if known is None:
                raise NotGeneral(node.primitive.name)
            if q < count:
                self._equal(known, self.shape(atoms[q])[j])
            else:
                found.setdefault((q, j), known)
        for k, v in enumerate(node.outputs, count):
            for i, symbol in enumerate(self.shape(v)):
                if (k, i) not in found:
                    raise NotGeneral(node.primitive.name)
                self._is(symbol, found[k, i])

    def _written(self, node: Node, whole: tuple[str, ...], part: tuple[str, ...]) -> tuple[str, ...]:
        """A write through views: the whole keeps its extents, the part must have those of the last view."""
        for symbol, n in zip(self.shape(node.outputs[0]), whole, strict=True):
            self._is(symbol, n)
        last = node.outputs[0]
        for step in self.extents.views[id(node)]:
            self._node(step)
            (last,) = step.outputs
        target = self.shape(last)
        for n, got in zip(target[len(target) - len(part) :], part, strict=True):
            if got != "1":
                self._equal(n, got)
        return whole

    def _equal(self, a: str, b: str) -> None:
        if a != b and (a, b) not in self.agreements and (b, a) not in self.agreements:
            self.agreements.append((a, b))

    def _broadcast(self, shapes: list[tuple[str, ...]], ndim: int) -> list[str]:
        found = ["1"] * ndim
        for shape in shapes:
            for i, n in enumerate(shape, ndim - len(shape)):
                if found[i] == "1":
                    found[i] = n
                elif n != "1":
                    self._equal(found[i], n)
        return found

    def _sliced(self, index: Any, whole: tuple[str, ...], traced: tuple[int, ...], ndim: int) -> list[str]:
        """The extents of a part; and what the kernel takes for granted: a position that was 0 is not computed in it."""
        found = ["1"] * ndim
        for j, i, entry in index_axes(index, len(whole)):
            n = whole[i]
            if j is None:
                self._holds(f"{n} > {entry}" if entry >= 0 else f"{n} >= {-entry}")
                if entry == -traced[i]:
                    self._equal(n, str(-entry))
            elif entry == (None, None, None):
                found[j] = n
            else:
                text = f"{', '.join(map(repr, entry))}, {n}"
                found[j] = f"slice_extent({text})"
                start, _, step = entry
                if not slice(*entry).indices(traced[i])[0] and not (not start and (step is None or step > 0)):
                    self._equal(f"slice_start({text})", "0")
        return found

    def _diagonal(self, params: dict[str, Any], shape: tuple[str, ...]) -> list[str]:
        offset, pair = params["offset"], (params["axis1"] % len(shape), params["axis2"] % len(shape))
        rows, columns = shape[pair[0]], shape[pair[1]]
        rows = f"{rows} - {-offset}" if offset < 0 else rows
        columns = f"{columns} - {offset}" if offset > 0 else columns
        return [*(n for i, n in enumerate(shape) if i not in pair), f"max(0, min({rows}, {columns}))"]

    def _joined(self, axis: int, shapes: list[tuple[str, ...]], traced: list[tuple[int, ...]]) -> list[str]:
        found = list(shapes[0])
        for shape in shapes[1:]:
            for i, n in enumerate(shape):
                if i != axis:
                    self._equal(found[i], n)
        along = [shape[axis] for shape in shapes]
        for k in range(1, len(shapes)):
            if not any(t[axis] for t in traced[:k]):  # where it begins is not computed in the kernel
                self._equal(" + ".join(along[:k]), "0")
        found[axis] = " + ".join(along)
        return found

    def _in_bounds(self, positions: Atom, size: str) -> None:
        """Positions are read from memory without a test in the kernel, unless they were tested before."""
        if not isinstance(positions, Constant):
            maker = self._makers.get(positions)
            while maker is not None and maker.primitive in (reshape_to, expand, permute, slice_view, flip_view):
                maker = self._makers.get(maker.inputs[0])  # type: ignore[arg-type]
            if maker is not None and maker.primitive is sorting_positions:  # in bounds of what was sorted
                self._equal(_product(self.shape(maker.inputs[0])), size)
                return
            extent = maker.params["extent"] if maker is not None and maker.primitive is bounded else None
            if not isinstance(extent, Extent):
                raise NotGeneral("positions that are computed")
            self._equal(self.extents.symbol(extent.atom, extent.axis), size)
            return
        if positions.aval.size:
            if int(positions.value.min()) < 0:
                raise NotGeneral("negative positions")
            self._holds(f"{size} > {int(positions.value.max())}")

    # ----------------------------------------------------------------- values

    def evaluate(self, shapes: Sequence[tuple[int, ...]], more: dict[str, str]) -> dict[str, Any] | None:
        """All symbols, and ``more`` formulas, for arguments of these shapes; None where a condition does not hold."""
        space: dict[str, Any] = {f"a{k}": SimpleNamespace(shape=s) for k, s in enumerate(shapes)}
        space.update(slice_start=slice_start, slice_extent=slice_extent, max=max, min=min, float64=np.float64)
        with np.errstate(all="ignore"):
            for name, formula in (*self.definitions.items(), *more.items()):
                space[name] = eval(formula, {}, space)
        if any(eval(a, {}, space) != eval(b, {}, space) for a, b in self.agreements):
            return None
        return space if all(eval(c, {}, space) for c in self.conditions) else None

    def solve(self, given: dict[str, int]) -> dict[str, int]:
        """Values of the symbols that are arguments' extents, from the free ones and from what must agree."""
        values: dict[str, Any] = {
            **given,
            "slice_start": slice_start,
            "slice_extent": slice_extent,
            "max": max,
            "min": min,
        }
        for symbol, formula in self.definitions.items():
            if symbol not in values and not formula.startswith("a"):
                self._try(symbol, formula, values)
        for a, b in self.agreements:
            for left, right in ((a, b), (b, a)):
                if left in self.definitions and left not in values:
                    self._try(left, right, values)
        return {k: v for k, v in values.items() if k in self.definitions}

    @staticmethod
    def _try(symbol: str, formula: str, values: dict[str, Any]) -> None:
        names = set(re.findall(r"[A-Za-z_]\w*", formula)) - {"None"}
        if names <= values.keys():
            values[symbol] = eval(formula, {}, values)
