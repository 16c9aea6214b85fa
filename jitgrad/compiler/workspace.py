"""Working memory: temporaries as parts of one array, where those that are never needed at once share a place."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.compiler.lines import is_comment

__all__ = ["Temporary", "Workspace", "lay_out"]

_NAME: Final = re.compile(r"\btmp\d+\b")
_ALIGNMENT: Final = 64  # bytes: a line of the cache


@dataclass(frozen=True)
class Temporary:
    """An array that only the kernel sees: its extents in this trace, and as symbols."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    symbols: tuple[str, ...]

    @property
    def count(self) -> str:
        """The number of elements, as text."""
        return " * ".join(n for n in self.symbols if n != "1") or "1"

    @property
    def nbytes(self) -> int:
        """The bytes that it takes in this trace."""
        size = math.prod(map(int, self.shape)) * self.dtype.itemsize
        return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True)
class Workspace:
    """The places: one temporary stands for all that share its memory."""

    places: list[Temporary]
    names: dict[str, str]  # of a temporary: the name of its place
    lines: list[str]  # that take the places out of ``work``
    nbytes: int
    formula: str  # the number of bytes, in symbols

    def renamed(self, lines: Sequence[str]) -> list[str]:
        """The lines with the places' names."""
        return [line if is_comment(line) else _NAME.sub(lambda m: self.names[m[0]], line) for line in lines]


def lay_out(temporaries: Sequence[Temporary], pieces: Sequence[Sequence[str]], apart: bool = True) -> Workspace:
    """Places for the temporaries of a program that is run piece by piece.

    Two that are alike share one where the last piece with the first is over before the first piece with the second.
    ``apart``: the lines say to LLVM that the places are distinct memory; else they are plain pointers (quicker to compile),
    for pieces that are functions of their own.
    """
    known = {t.name: t for t in temporaries}
    spans: dict[str, tuple[int, int]] = {}
    for number, lines in enumerate(pieces):
        for name in (m[0] for line in lines if not is_comment(line) for m in _NAME.finditer(line)):
            spans[name] = (spans[name][0] if name in spans else number, number)
    kinds: dict[tuple[str, Any], list[tuple[int, list[str]]]] = {}  # places: when they are free, and who has them
    for name, (first, last) in spans.items():
        places = kinds.setdefault((known[name].count, known[name].dtype), [])
        for k, (free, tenants) in enumerate(places):
            if free < first:
                places[k] = (last, [*tenants, name])
                break
        else:
            places.append((last, [name]))
    made: list[Temporary] = []
    names: dict[str, str] = {}
    lines, before, nbytes = [], "", 0
    for group, ((count, dtype), places) in enumerate(kinds.items()):
        size = f"size{group}"
        lines.append(f"{size} = {_bytes(count, dtype)}")
        for k, (_, tenants) in enumerate(places):
            owner = known[tenants[0]]
            place = Temporary(f"tmp{len(made)}", dtype, owner.shape, owner.symbols)
            names.update(dict.fromkeys(tenants, place.name))
            offset = _sum(before, f"{k} * {size}" if k > 1 else size if k else "")
            label = f", {len(made)}" if apart else ""
            maker = "part" if apart else "pointer"
            lines.append(f"{place.name} = {maker}_{dtype.name}(work, {offset or 0}, {count}{label})")
            made.append(place)
            nbytes += place.nbytes
        before = _sum(before, f"{len(places)} * {size}" if len(places) > 1 else size)
    formula = " + ".join(f"{len(p)} * ({_bytes(count, dtype)})" for (count, dtype), p in kinds.items()) or "0"
    return Workspace(made, names, lines, nbytes, formula)


def _bytes(count: str, dtype: np.dtype[Any]) -> str:
    return f"({count} * {dtype.itemsize} + {_ALIGNMENT - 1}) & -{_ALIGNMENT}"


def _sum(*terms: str) -> str:
    return " + ".join(t for t in terms if t)
