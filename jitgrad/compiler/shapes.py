"""Shapes at run time: every extent of a graph as a formula of its arguments' shapes, and what must hold besides.

A graph is traced for some shapes. Run for others, its kernel is right only where each operation would have given results
of the extents that the kernel's symbols stand for. The rules here say, operation by operation, what the extents of a
result are and which conditions an operation puts on its operands, beyond the axes that are equal (those have one symbol:
see ``equal_axes``); whatever does not follow becomes a check.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitgrad.compiler.extents import Extents, equal_axes, index_axes, is_square_diagonal
from jitgrad.core.graph import Atom, Constant, Extent, Graph, Node
from jitgrad.core.primitive import Reduce
from jitgrad.kernels.python_interop import slice_extent, slice_start
from jitgrad.ops.linear import (
    add_at,
    bounded,
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
from jitgrad.ops.sorting import sorting_positions
from jitgrad.ops.statistics import ranked_positions

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
        formulas = self._formulas(node)
        equal = equal_axes(node)
        if formulas is None and equal is None:
            raise NotGeneral(node.primitive.name)
        # axes that an operation makes equal have one symbol; of the result, those are settled that lead to an operand
        count = len(node.inputs)
        settled = {axis for pair in equal or () if min(pair)[0] < count for axis in pair}
        settled.update(axis for pair in equal or () if not settled.isdisjoint(pair) for axis in pair)
        for k, v in enumerate(node.outputs, count):
            for i, symbol in enumerate(self.shape(v)):
                formula = formulas[i] if formulas is not None else None
                if formula is not None:
                    self._is(symbol, formula)
                elif (k, i) not in settled:
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

    def _formulas(self, node: Node) -> Sequence[str | None] | None:
        """The extents of the result that no equal axes settle (None: all are settled); and notes what else must hold."""
        primitive, params = node.primitive, node.params
        shapes = [self.shape(a) for a in node.inputs]
        if not shapes:
            return None
        first, ndim = shapes[0], node.outputs[0].aval.ndim
        if isinstance(primitive.impl, Reduce) and primitive.impl.needs_elements:
            self._holds(f"{_product([first[a] for a in params['axes']])} > 0")
        elif primitive is ranked_positions:
            self._holds(f"{_product([first[a] for a in params['axes']])} > 0")
            return [str(2 * len(params["fractions"])), *[None] * (ndim - 1)]
        elif primitive is expand or is_square_diagonal(node):
            return self._wanted(node)
        elif primitive is reshape_to:
            wanted = self._wanted(node)
            self._equal(_product(wanted), _product(first))
            return wanted
        elif primitive is slice_view:
            return self._sliced(params["index"], first, node.inputs[0].aval.shape, ndim)
        elif primitive is place:
            wanted = self._wanted(node)
            part = self._sliced(params["index"], tuple(wanted), node.outputs[0].aval.shape, len(first))
            for n, got in zip(part, first, strict=True):
                self._equal(n, got)
            return wanted
        elif primitive is diagonal_view:
            return self._diagonal(params, first)
        elif primitive is place_diagonal:
            wanted = self._wanted(node)
            for n, got in zip(self._diagonal(params, tuple(wanted)), first, strict=True):
                self._equal(n, got)
            return wanted
        elif primitive is gather:
            self._in_bounds(node.inputs[1], _product(first))
        elif primitive is take_at:
            self._in_bounds(node.inputs[1], first[params["axis"]])
        elif primitive in (scatter_add, add_at):
            wanted = self._wanted(node)
            axis = params.get("axis")
            self._in_bounds(node.inputs[1], _product(wanted) if axis is None else wanted[axis])
            return wanted
        elif primitive is put:
            self._in_bounds(node.inputs[2], _product(first))
        elif primitive is overwrite:
            for step in self.extents.views[id(node)]:  # the value has the extents of the last
                self._node(step)
        elif primitive is pile:
            axis = params["axis"]
            return [str(len(shapes)) if i == axis else None for i in range(ndim)]
        elif primitive is join:
            return self._joined(params["axis"], shapes, [a.aval.shape for a in node.inputs])
        return None

    def _equal(self, a: str, b: str) -> None:
        if a != b and (a, b) not in self.agreements and (b, a) not in self.agreements:
            self.agreements.append((a, b))

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

    def _joined(self, axis: int, shapes: list[tuple[str, ...]], traced: list[tuple[int, ...]]) -> list[str | None]:
        along = [shape[axis] for shape in shapes]
        for k in range(1, len(shapes)):
            if not any(t[axis] for t in traced[:k]):  # where it begins is not computed in the kernel
                self._equal(" + ".join(along[:k]), "0")
        return [" + ".join(along) if i == axis else None for i in range(len(shapes[0]))]

    def _in_bounds(self, positions: Atom, size: str) -> None:
        """Positions are read from memory without a test in the kernel, unless they were tested before."""
        if not isinstance(positions, Constant):
            maker = self._makers.get(positions)
            while maker is not None and maker.primitive in (reshape_to, expand, permute, slice_view, flip_view):
                maker = self._makers.get(maker.inputs[0])  # type: ignore[arg-type]
            if maker is not None and maker.primitive in (
                sorting_positions,
                ranked_positions,
            ):  # in bounds of what was sorted
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
