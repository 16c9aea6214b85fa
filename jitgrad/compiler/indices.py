"""Index arithmetic of generated loops: where in row-major memory an element lies, and which element a view reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.compiler.extents import Extents, index_axes, unit_reshape
from jitgrad.core.graph import Atom, Node, Variable
from jitgrad.errors import UnsupportedError
from jitgrad.ops.linear import diagonal_view, expand, flip_view, permute, reshape_to, slice_view

__all__ = ["Index", "Indices", "NotFlat", "added"]

Index = tuple[str, ...]


class NotFlat(Exception):
    """A loop over one flat index touches something that does not have the shape of its space."""


def added(*terms: str) -> str:
    """The text of a sum; zeros are left out."""
    kept = [t for t in terms if t != "0"]
    return " + ".join(kept) if kept else "0"


class Indices:
    """Indices within the loop that is being written, as text in its variables and the symbols of extents."""

    def __init__(self, extents: Extents, fresh: Callable[[str], str]) -> None:
        self.extents = extents
        self._fresh = fresh
        self.flat = False  # one index runs over the whole space
        self.space: tuple[str, ...] = ()
        self.here: Index = ()  # the index of the loop itself
        self.lines: list[str] = []  # where divisions that an index needs are written
        self._positions: dict[tuple[tuple[str, ...], Index], str] = {}  # of indices that were made by dividing them

    def enter(self, space: tuple[str, ...], flat: bool, lines: list[str]) -> None:
        """Begin a loop over ``space``, whose body is ``lines``."""
        self.space, self.flat, self.lines = space, flat, lines
        self._positions = {}

    def position(self, shape: tuple[str, ...], index: Index) -> str:
        """The row-major position of an index."""
        if self.flat and index == self.here and tuple(n for n in shape if n != "1") == self.space:
            return "i"
        if self.flat and any(i != "0" for i in index):
            raise NotFlat
        if (shape, index) in self._positions:
            return self._positions[shape, index]
        text = "0"
        for n, i in zip(shape, index, strict=True):
            if n == "1":
                continue
            text = i if text == "0" else added(f"({text}) * {n}" if " " in text else f"{text} * {n}", i)
        return text

    def broadcast(self, x: Atom, out: Atom, index: Index) -> Index:
        """The index into an operand that is broadcast to ``out``."""
        if self.flat and index == self.here:
            return self._alike(x)
        lead = out.aval.ndim - x.aval.ndim
        return tuple("0" if n == 1 else index[lead + i] for i, n in enumerate(x.aval.shape))

    def _alike(self, x: Atom) -> Index:
        """The index of a flat loop into what has the shape of its space, or one element."""
        if x.aval.size == 1:
            return ("0",) * x.aval.ndim
        if tuple(n for n in self.extents.shape(x) if n != "1") == self.space:
            return self.here
        raise NotFlat

    def source(self, node: Node, index: Index) -> Index:
        """Where an element of a view is read from."""
        primitive, params = node.primitive, node.params
        (x, *_), (out, *_) = node.inputs, node.outputs
        if self.flat and index == self.here:
            if primitive in (expand, reshape_to):
                return self._alike(x)
            if x.aval.size == 1:
                return ("0",) * x.aval.ndim
            raise NotFlat
        if primitive is expand:
            return self.broadcast(x, out, index)
        if primitive is permute:
            found = [""] * len(index)
            for j, axis in enumerate(params["axes"]):
                found[axis] = index[j]
            return tuple(found)
        if primitive is flip_view:
            shape = self.extents.shape(x)
            return tuple(
                f"{shape[i]} - 1 - ({v})" if i in params["axes"] and shape[i] != "1" else v for i, v in enumerate(index)
            )
        if primitive is reshape_to:
            return self._reshaped(x, out, index)
        if primitive is slice_view:
            return self.sliced(x, params["index"], index)
        if primitive is diagonal_view:
            return self.diagonal(x, params, index)
        raise UnsupportedError(f"{primitive.name} cannot be fused")

    def diagonal(self, x: Atom, params: dict[str, Any], index: Index) -> Index:
        """Which element of ``x`` an element of its diagonal is."""
        offset = params["offset"]
        rest = iter(index[:-1])
        shift = self.extents.number(abs(offset), f"{abs(offset)}") if offset else "0"
        row = added(index[-1], shift if offset < 0 else "0")
        column = added(index[-1], shift if offset > 0 else "0")
        axes = {params["axis1"] % x.aval.ndim: row, params["axis2"] % x.aval.ndim: column}
        return tuple(axes[i] if i in axes else next(rest) for i in range(x.aval.ndim))

    def _reshaped(self, x: Atom, out: Atom, index: Index) -> Index:
        pairs = unit_reshape(x.aval.shape, out.aval.shape)
        if pairs is not None:
            found = ["0"] * x.aval.ndim
            for j, i in pairs:
                found[i] = index[j]
            return tuple(found)
        shape, wanted = self.extents.shape(x), self.extents.shape(out)
        last = next((k for k, (n, m) in enumerate(zip(shape[::-1], wanted[::-1], strict=False)) if n != m), None)
        if last:  # axes that stay as they are need no divisions
            inner = index[len(wanted) - last :]
            return (*self._divided(shape[:-last], self.position(wanted[:-last], index[:-last])), *inner)
        return self._divided(shape, self.position(wanted, index))

    def _divided(self, shape: tuple[str, ...], text: str) -> Index:
        """The index of the element at a row-major position."""
        if sum(n != "1" for n in shape) < 2:
            return tuple("0" if n == "1" else text for n in shape)
        position = self._fresh("p")
        self.lines.append(f"{position} = {text}")
        parts: list[str] = []
        rest = position
        for n in reversed(shape):
            if n == "1":
                parts.append("0")
                continue
            parts.append(f"({rest}) % {n}")
            rest = f"({rest}) // {n}"
        if parts and any(n != "1" for n in shape):  # the first axis needs no remainder
            first = next(k for k in range(len(shape)) if shape[k] != "1")
            text = parts[len(shape) - 1 - first]
            parts[len(shape) - 1 - first] = text[: text.rindex(" % ")]
        found = []
        for part in reversed(parts):
            if part == "0":
                found.append(part)
            else:
                name = self._fresh("p")
                self.lines.append(f"{name} = {part}")
                found.append(name)
        self._positions[shape, tuple(found)] = position
        return tuple(found)

    def sliced(self, x: Atom, entries: Any, index: Index) -> Index:
        """Which element of ``x`` an element of a slice of it is."""
        found = ["0"] * x.aval.ndim
        for j, i, entry in index_axes(entries, x.aval.ndim):
            extent = x.aval.shape[i]
            if not isinstance(entry, tuple):
                at = entry + extent if entry < 0 else entry
                n = self.extents.symbol(x, i)
                found[i] = self.extents.number(at, f"{n} - {-entry}" if entry < 0 else f"{entry}") if at else "0"
                continue
            assert j is not None
            start, _, step = slice(*entry).indices(extent)
            if extent == 1:
                continue
            moved = index[j] if step == 1 else f"({index[j]}) * {step}" if index[j] != "0" else "0"
            formula = f"slice_start({', '.join(map(repr, entry))}, {self.extents.symbol(x, i)})"
            found[i] = added(self.extents.number(start, formula) if start else "0", moved)
        return tuple(found)

    def position_in(self, atom: Atom, index: Index) -> str:
        """The position of an element of a value."""
        return self.position(self.extents.shape(atom), index)

    def plain_position(self, target: Variable, index: Index) -> str:
        """The position of an element, for lines outside of the loop."""
        flat, self.flat = self.flat, False
        try:
            return self.position(self.extents.shape(target), index)
        finally:
            self.flat = flat
