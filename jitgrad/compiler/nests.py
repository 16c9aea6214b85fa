"""Loop nests as they are written: what comes before the loops, their body, what comes after, and what they add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from jitgrad.compiler.fission import divided
from jitgrad.kernels.loops import indent

__all__ = ["Accumulator", "Nest"]

_BLOCK: Final = 1024  # elements, where nothing is kept: 8 kB an array


@dataclass
class Accumulator:
    """A local variable that everything a nest runs over is folded into."""

    name: str
    dtype: np.dtype[Any]
    start: list[str]  # the lines that set it up
    fold: Callable[[str], list[str]]  # the lines that fold a value into it


@dataclass
class Nest:
    """Loops over one index space, outermost axis first."""

    space: tuple[str, ...]
    extents: tuple[int, ...]  # of the space, in this trace
    flat: bool  # one loop over all of the space
    before: list[str] = field(default_factory=list)
    accumulators: list[Accumulator] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    apart: list[list[str]] = field(default_factory=list)
    """Further bodies, each in an innermost loop of its own after that of ``body``."""
    room: list[str] = field(default_factory=list)
    """The lines that make room for what the bodies keep for each other, within a block."""
    block: int = _BLOCK
    """The number of elements of a block, where there are further bodies."""
    rows: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)
    """The lines before and after the loops below an axis, by the number of that axis."""
    after: list[str] = field(default_factory=list)
    divisible: bool = True
    """Whether parts of the outermost axis may run in any order, or at once."""

    @property
    def length(self) -> int:
        """The extent of the outermost loop."""
        return math.prod(self.extents) if self.flat else self.extents[0] if self.extents else 1

    @property
    def work(self) -> int:
        """The number of statements that it runs."""
        return math.prod(self.extents) * (len(self.body) + sum(map(len, self.apart)))

    def loops(self, bounds: str | None = None) -> list[str]:
        """The loops alone; the outermost over ``range(bounds)`` if that is given."""
        if self.apart and (self.flat or len(self.space) == 1):
            return self._blocks(bounds)
        if self.flat:
            return [f"for i in range({bounds or ' * '.join(self.space)}):", *indent(self.body, 1)]
        lines: list[str] = []
        for depth in range(len(self.space) - 1, -1, -1):
            bound = bounds if bounds and not depth else self.space[depth]
            bodies = [self.body, *self.apart] if depth == len(self.space) - 1 else [lines]
            lines = [line for body in bodies for line in (f"for i{depth} in range({bound}):", *indent(body, 1))]
            if depth in self.rows:
                lines = [*self.rows[depth][0], *lines, *self.rows[depth][1]]
        return lines if self.space else [line for body in (self.body, *self.apart) for line in body]

    def _blocks(self, bounds: str | None) -> list[str]:
        """One loop over blocks that stay in the cache, and in it one for each body."""
        size = self.block
        begin, end = bounds.split(", ") if bounds else ("0", " * ".join(self.space))
        count, start = (f"{end} - {begin}", f"{begin} + ") if bounds else (end, "")
        lines = [f"first = {start}block * {size}", f"past = sel(first + {size} < {end}, first + {size}, {end})"]
        for body in (self.body, *self.apart):
            lines += [f"for {'i' if self.flat else 'i0'} in range(first, past):", *indent(body, 1)]
        return [*self.room, f"for block in range(({count} + {size - 1}) // {size}):", *indent(lines, 1)]

    def divide(self, kinds: Mapping[str, np.dtype[Any]]) -> None:
        """Make several loops of a long body, unless it is in nested loops; ``kinds``: the dtypes of names in it."""
        if not self.flat and len(self.space) != 1:
            return
        parts = divided(self.body, kinds, "i" if self.flat else "i0")
        if parts is not None:
            self.room, self.block = parts.room, parts.size
            self.body, *rest = parts.bodies
            self.apart = [*rest, *self.apart]

    @property
    def starts(self) -> list[str]:
        """The lines that set up all that is folded into."""
        return [line for a in self.accumulators for line in a.start]

    def lines(self) -> list[str]:
        """All of it."""
        return [*self.before, *self.starts, *self.loops(), *self.after]
