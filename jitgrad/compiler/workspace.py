"""Working memory: temporaries as parts of one array, where those that are never needed at once share a place."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.compiler.lines import is_comment

__all__ = ["ALIGNMENT", "Temporary", "Workspace", "bytes_of", "lay_out"]

_NAME: Final = re.compile(r"\btmp\d+\b")
_ARRAY: Final = re.compile(r"\b(?:tmp|out)\d+\b")
_READ: Final = re.compile(r"(?P<depth> *)\w+ = load\(tmp\d+, (?P<index>.*)\)")
ALIGNMENT: Final = 64  # bytes: a line of the cache


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
        return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Workspace:
    """The places: one temporary stands for all that share its memory."""

    places: list[Temporary]
    names: dict[str, str]  # of a temporary: the name of its place
    lines: list[str]  # that take the places out of ``work``
    nbytes: int  # to allocate: they begin with the first whole line of the cache
    formula: str  # the same, in symbols

    def renamed(self, lines: Sequence[str]) -> list[str]:
        """The lines with the places' names."""
        names = self.names
        return [_NAME.sub(lambda m: names[m[0]], line) if _may_name(line) else line for line in lines]


def _may_name(line: str) -> bool:
    """Whether to look for temporaries in a line: it is a statement, and mentions something like one."""
    return "tmp" in line and not is_comment(line)


def lay_out(
    temporaries: Sequence[Temporary],
    pieces: Sequence[Sequence[str]],
    apart: bool = True,
    results: Sequence[Temporary] = (),
) -> Workspace:
    """Places for the temporaries of a program that is run piece by piece.

    Two that are alike share one where the last piece with the first is over before the first piece with the second. One
    that is read for the last time where a result of its shape is written, element by element, has the result's memory.
    ``apart``: the lines say to LLVM that the places are distinct memory; else they are plain pointers (quicker to compile),
    for pieces that are functions of their own.
    """
    known = {t.name: t for t in temporaries}
    mentions: dict[str, list[tuple[int, int]]] = {}
    for number, lines in enumerate(pieces):
        for k, line in enumerate(lines):
            for found in _ARRAY.finditer(line) if _may_name(line) or ("out" in line and not is_comment(line)) else ():
                mentions.setdefault(found[0], []).append((number, k))
    spans = {name: (places[0][0], places[-1][0]) for name, places in mentions.items() if name in known}
    kinds: dict[tuple[str, Any], list[tuple[int, list[str]]]] = {}  # places: when they are free, and who has them
    names = _in_results(known, mentions, pieces, results)
    for name, (first, last) in spans.items():
        if name in names:
            continue
        places = kinds.setdefault((known[name].count, known[name].dtype), [])
        for k, (free, tenants) in enumerate(places):
            if free < first:
                places[k] = (last, [*tenants, name])
                break
        else:
            places.append((last, [name]))
    made: list[Temporary] = []
    lines, before, nbytes = [], "", 0
    for group, ((count, dtype), places) in enumerate(kinds.items()):
        size = f"size{group}"
        lines.append(f"{size} = {bytes_of(count, dtype)}")
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
    needs = [f"{len(p)} * ({bytes_of(count, dtype)})" for (count, dtype), p in kinds.items()]
    return Workspace(made, names, lines, nbytes + ALIGNMENT, _sum(*needs, str(ALIGNMENT)))


def _in_results(
    temporaries: Mapping[str, Temporary],
    mentions: Mapping[str, Sequence[tuple[int, int]]],
    pieces: Sequence[Sequence[str]],
    results: Sequence[Temporary],
) -> dict[str, str]:
    """The temporaries that can be in the memory of results, with the results' names."""
    written: dict[int, list[Temporary]] = {}  # results that a piece is the first to write, in one line
    for result in results:
        places = mentions.get(result.name, [])
        if places and (len(places) == 1 or places[0][0] < places[1][0]):
            written.setdefault(places[0][0], []).append(result)
    names: dict[str, str] = {}
    for name, temporary in temporaries.items():
        if name not in mentions:
            continue
        *before, (number, read) = mentions[name]
        if not before or before[-1][0] == number:
            continue
        for result in written.get(number, []):
            write = mentions[result.name][0][1]
            alike = (result.count, result.dtype) == (temporary.count, temporary.dtype)
            if alike and _is_replaced(pieces[number][read : write + 1], result.name):
                names[name] = result.name
                written[number].remove(result)
                break
    return names


def _is_replaced(lines: Sequence[str], result: str) -> bool:
    """Whether these lines of one loop first read an element of a temporary, and at last write that of the result."""
    read = _READ.fullmatch(lines[0]) if lines else None
    if read is None or not lines[-1].startswith(f"{read['depth']}store({result}, {read['index']}, "):
        return False
    return all(is_comment(line) or line.startswith(read["depth"]) for line in lines)


def bytes_of(count: str, dtype: np.dtype[Any]) -> str:
    """How many bytes an array takes, as text."""
    return f"({count} * {dtype.itemsize} + {ALIGNMENT - 1}) & -{ALIGNMENT}"


def _sum(*terms: str) -> str:
    return " + ".join(t for t in terms if t)
