"""Loop nests as they are written: what comes before the loops, their body, what comes after, and what they add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitgrad.compiler.fission import Parts, divided
from jitgrad.kernels.loops import indent

__all__ = ["Accumulator", "Nest", "Shared"]


@dataclass
class Accumulator:
    """A local variable that everything a nest runs over is folded into."""

    name: str
    dtype: np.dtype[Any]
    start: list[str]  # the lines that set it up
    fold: Callable[[str], list[str]]  # the lines that fold a value into it


@dataclass
class Shared:
    """An array that elements of the outermost axis are folded into, at places that they have in common."""

    name: str
    dtype: np.dtype[Any]
    elements: int  # in this trace
    size: str  # the same as text
    start: str
    fold: Callable[[str, str, str], list[str]]  # the lines that fold a value into an element: old, value, new


@dataclass
class Nest:
    """Loops over one index space, outermost axis first."""

    space: tuple[str, ...]
    extents: tuple[int, ...]  # of the space, in this trace
    flat: bool  # one loop over all of the space
    before: list[str] = field(default_factory=list)
    accumulators: list[Accumulator] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    parts: Parts | None = None
    """The same in several innermost loops, over one block after another."""
    rows: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)
    """The lines before and after the loops below an axis, by the number of that axis."""
    bounds: dict[int, str] = field(default_factory=dict)
    """How often loops run, by the number of their axis, where that is not the extent."""
    after: list[str] = field(default_factory=list)
    shared: dict[str, Shared] = field(default_factory=dict)
    divisible: bool = True
    """Whether parts of the outermost axis may run in any order, or at once, each with a copy of what is shared."""

    @property
    def length(self) -> int:
        """The extent of the outermost loop."""
        return math.prod(self.extents) if self.flat else self.extents[0] if self.extents else 1

    @property
    def work(self) -> int:
        """The number of statements that it runs."""
        return math.prod(self.extents) * len(self.body)

    def loops(self, bounds: str | None = None) -> list[str]:
        """The loops alone; the outermost over ``range(bounds)`` if that is given."""
        if not self.space:
            return self.body
        room = [] if self.parts is None else self.parts.room
        if self.flat:
            return [*room, *self._innermost("i", bounds or self.bounds.get(0, " * ".join(self.space)))]
        lines: list[str] = []
        for depth in range(len(self.space) - 1, -1, -1):
            bound = bounds if bounds and not depth else self.bounds.get(depth, self.space[depth])
            if depth == len(self.space) - 1:
                lines = self._innermost(f"i{depth}", bound)
            else:
                lines = [f"for i{depth} in range({bound}):", *indent(lines, 1)]
            if depth in self.rows:
                lines = [*self.rows[depth][0], *lines, *self.rows[depth][1]]
        return [*room, *lines]

    def _innermost(self, index: str, bounds: str) -> list[str]:
        if self.parts is None:
            return [f"for {index} in range({bounds}):", *indent(self.body, 1)]
        begin, _, end = bounds.rpartition(", ")
        count, start = (f"{end} - {begin}", f"{begin} + ") if begin else (end, "")
        size = self.parts.size
        lines = [f"first = {start}block * {size}", f"past = sel(first + {size} < {end}, first + {size}, {end})"]
        for body in self.parts.bodies:
            lines += [f"for {index} in range(first, past):", *indent(body, 1)]
        return [f"for block in range(({count} + {size - 1}) // {size}):", *indent(lines, 1)]

    def divide(self, bodies: Sequence[Sequence[str]], kinds: Mapping[str, np.dtype[Any]]) -> None:
        """Make several loops of a body that is long, or that consists of ``bodies`` that must not be in one loop.

        ``kinds``: the dtypes of names in it. Short rows had better not be divided, and their lengths are not known here.
        """
        if self.space:
            index = "i" if self.flat else f"i{len(self.space) - 1}"
            self.parts = divided(bodies, kinds, index, at_will=self.flat or len(self.space) == 1)

    @property
    def starts(self) -> list[str]:
        """The lines that set up all that is folded into."""
        return [line for a in self.accumulators for line in a.start]

    def lines(self) -> list[str]:
        """All of it."""
        return [*self.before, *self.starts, *self.loops(), *self.after]
