"""Dividing a kernel for threads: its runs as phases, of which the long loops can be called chunk by chunk.

The chunks follow from the extents alone. What a loop folds into local variables is kept for each chunk, each has a copy of
the arrays that all of a loop is folded into, and the phase after it combines them in their order: the result does not depend
on which thread ran what.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.compiler.emit import Emitted
from jitgrad.compiler.lines import arranged, is_comment, without_comments
from jitgrad.compiler.nests import Nest, Shared
from jitgrad.compiler.workspace import ALIGNMENT, bytes_of
from jitgrad.core.aval import BOOL, FLOAT32, FLOAT64
from jitgrad.kernels.kernel import entry_point
from jitgrad.kernels.loops import indent
from jitgrad.kernels.threads import get_num_threads, run_parts

__all__ = ["Chunked", "is_worth_dividing"]

_WORTH: Final = 1_000_000  # statements that a loop runs, about 0.2 ms: less does not pay for waking a thread
_CHUNK: Final = 250_000  # statements that a chunk should run
_MOST: Final = 64  # chunks of a loop
_FEWEST: Final = 8  # elements that a chunk folds into one element of a copy: less does not pay for the copies
_KEPT: Final = (FLOAT64, FLOAT32, BOOL)  # what a float64 holds exactly
_ASSIGNED: Final = re.compile(r"\s*(\w+) = ")
_NAME: Final = re.compile(r"\b(?:t|r|sum)\d+\b")


def _divides(run: Nest | list[str]) -> bool:
    return (
        isinstance(run, Nest)
        and run.divisible
        and run.length > 1
        and run.work >= _WORTH
        and all(a.dtype in _KEPT for a in run.accumulators)
        and _chunks(run) > 1
    )


def _chunks(run: Nest) -> int:
    """How many chunks a loop makes."""
    folded = [math.prod(run.extents) // (_FEWEST * max(shared.elements, 1)) for shared in run.shared.values()]
    return min(_MOST, run.length, max(2, run.work // _CHUNK), *folded)


def is_worth_dividing(emitted: Emitted) -> bool:
    """Whether threads can share this kernel, for the extents of this trace, with a gain."""
    return any(map(_divides, emitted.runs)) and all(dtype in _KEPT for dtype in emitted.locals.values())


@dataclass
class Phase:
    """Lines that run at once, or (``length``) chunk by chunk over ``range(begin, end)``."""

    lines: list[str]
    length: int = 0
    size: int = 0  # of a chunk

    @property
    def count(self) -> int:
        """The number of chunks."""
        return -(-self.length // self.size) if self.length else 0


class Chunked:
    """The same kernel, called like its entry point, on all threads."""

    def __init__(self, emitted: Emitted) -> None:
        self._emitted = emitted
        self._entry: Callable[..., Any] | None = None
        self._phases: list[Phase] = []
        self._slots: dict[str, int] = {}  # of numbers that later phases read
        self._kept = 0  # how many numbers are kept between phases
        self._copies: list[int] = []  # the bytes of the copies of each shared array
        self._build()

    def _build(self) -> None:
        serial: list[str] = []
        for run in self._emitted.runs:
            if not isinstance(run, Nest) or not _divides(run):
                serial += run.lines() if isinstance(run, Nest) else run
                continue
            size = -(-run.length // _chunks(run))
            places = [self._keep(_MOST) for _ in run.accumulators]
            parts = [
                f"store(kept, {place} + chunk, {a.name})" for a, place in zip(run.accumulators, places, strict=True)
            ]
            phase = Phase([], run.length, size)
            copies = {name: self._copy(shared, phase.count) for name, shared in run.shared.items()}
            for name, shared in run.shared.items():
                phase.lines.append(self._part_of(shared, copies[name], "chunk"))
                phase.lines += [f"for j in range({shared.size}):", f"    store({copies[name]}, j, {shared.start})"]
            phase.lines += [*run.starts, *_renamed(run.loops("begin, end"), copies), *parts]
            self._phases += [Phase([*serial, *run.before]), phase]
            serial = list(run.starts)
            for a, place in zip(run.accumulators, places, strict=True):
                value = _typed(f"load(kept, {place} + k)", a.dtype)
                serial += ["for k in range(end):", *indent([f"part_{a.name} = {value}", *a.fold(f"part_{a.name}")], 1)]
            for name, shared in run.shared.items():
                fold = [f"old = load({name}, j)", f"more = load({copies[name]}, j)", *shared.fold("old", "more", "new")]
                lines = [f"for j in range({shared.size}):", *indent([*fold, f"store({name}, j, new)"], 1)]
                serial += ["for k in range(end):", *indent([self._part_of(shared, copies[name], "k"), *lines], 1)]
            serial += run.after
        self._phases.append(Phase(serial))
        self._share_numbers()

    def _copy(self, shared: Shared, count: int) -> str:
        """The name of the copies of an array, for so many chunks."""
        nbytes = -(-shared.elements * shared.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._copies.append(count * nbytes + ALIGNMENT)
        return f"copy{len(self._copies) - 1}"

    def _part_of(self, shared: Shared, copy: str, number: str) -> str:
        """The line that takes one copy out of all."""
        apart = len(self._emitted.workspace.places) + int(copy.removeprefix("copy"))
        offset = f"{number} * ({bytes_of(shared.size, shared.dtype)})"
        return f"{copy} = part_{shared.dtype.name}(all_{copy}, {offset}, {shared.size}, {apart})"

    def _keep(self, count: int) -> int:
        place = self._kept
        self._kept += count
        return place

    def _share_numbers(self) -> None:
        """Let each phase load what earlier ones computed, and store what later ones read."""
        emitted = self._emitted
        made: list[set[str]] = []
        read: list[set[str]] = []
        for phase in self._phases:
            statements = without_comments(phase.lines)
            made.append({m[1] for line in statements if (m := _ASSIGNED.match(line))})
            read.append({name for line in statements for name in _NAME.findall(line)})
        if emitted.result is not None:
            read.append({emitted.result})
        for number, phase in enumerate(self._phases):
            mine = read[number] & emitted.locals.keys() - made[number]
            later = set().union(*read[number + 1 :]) & made[number] & emitted.locals.keys()
            loads = [f"{n} = {_typed(f'load(kept, {self._slot(n)})', emitted.locals[n])}" for n in sorted(mine)]
            stores = [f"store(kept, {self._slot(n)}, {n})" for n in sorted(later)]
            phase.lines = [*loads, *phase.lines, *stores]

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            self._slots[name] = self._keep(1)
        return self._slots[name]

    def source(self, *, comments: bool = False) -> str:
        """The kernel with its phases as cases."""
        emitted = self._emitted
        lines = [*emitted.head, *emitted.workspace.lines]
        for number, phase in enumerate(self._phases):
            body = emitted.workspace.renamed(phase.lines)
            body = arranged(body) if comments else without_comments(body)
            lines += [f"{'elif' if number else 'if'} phase == {number}:", *indent(body or ["pass"], 1)]
        copies = [f"all_copy{k}" for k in range(len(self._copies))]
        head = ", ".join(["phase", "begin", "end", "chunk", "kept", *copies, *emitted.arguments])
        return emitted.helpers + "\n".join([f"def {self._name}({head}):", *indent(lines, 1)]) + "\n"

    @property
    def _name(self) -> str:
        return f"{self._emitted.name}_in_chunks"

    def __call__(self, *arguments: Any) -> Any:
        """Run it; the returned number, if there is one."""
        if self._entry is None:
            signature = [code for code in self._emitted.signature if not code.startswith("r:")]
            copies = ["b:int8"] * len(self._copies)
            codes = ("n:int64", "n:int64", "n:int64", "n:int64", "b:float64", *copies, *signature, "nogil")
            self._entry = entry_point(self._name, self.source(), codes, self._emitted.extras)
        entry, threads = self._entry, get_num_threads()
        kept = np.empty(max(self._kept, 1))
        arguments = (*[np.empty(nbytes, np.int8) for nbytes in self._copies], *arguments)
        chunks = 0
        for number, phase in enumerate(self._phases):
            if phase.length:
                run_parts(_part(entry, number, phase, kept, arguments), chunks := phase.count, threads)
            else:
                entry(number, 0, chunks, 0, kept, *arguments)  # what the chunks before it left is combined
        return None if self._emitted.result is None else float(kept[self._slots[self._emitted.result]])


def _part(
    entry: Callable[..., Any], number: int, phase: Phase, kept: Any, arguments: Sequence[Any]
) -> Callable[[int], Any]:
    size, length = phase.size, phase.length
    return lambda chunk: entry(number, chunk * size, min(chunk * size + size, length), chunk, kept, *arguments)


def _renamed(lines: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """The lines with other names of arrays."""
    if not names:
        return list(lines)
    word = re.compile(rf"\b(?:{'|'.join(names)})\b")
    return [line if is_comment(line) else word.sub(lambda m: names[m[0]], line) for line in lines]


def _typed(text: str, dtype: np.dtype[Any]) -> str:
    if dtype == FLOAT64:
        return text
    return f"{text} != 0.0" if dtype == BOOL else f"{dtype.name}({text})"
