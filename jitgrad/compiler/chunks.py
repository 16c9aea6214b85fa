"""Dividing a kernel for threads: its runs as phases, of which the long loops can be called chunk by chunk.

The chunks follow from the extents alone. What a loop folds into local variables is kept for each chunk, and combined in
their order by the phase after it, so that the result does not depend on which thread ran what.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.compiler.emit import Emitted
from jitgrad.compiler.lines import arranged, without_comments
from jitgrad.compiler.nests import Nest
from jitgrad.core.aval import BOOL, FLOAT32, FLOAT64
from jitgrad.kernels.kernel import entry_point
from jitgrad.kernels.loops import indent
from jitgrad.kernels.threads import get_num_threads, run_parts

__all__ = ["Chunked", "is_worth_dividing"]

_WORTH: Final = 1_000_000  # statements that a loop runs, about 0.2 ms: less does not pay for waking a thread
_CHUNK: Final = 250_000  # statements that a chunk should run
_MOST: Final = 64  # chunks of a loop
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
    )


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
        self._build()

    def _build(self) -> None:
        serial: list[str] = []
        for run in self._emitted.runs:
            if not isinstance(run, Nest) or not _divides(run):
                serial += run.lines() if isinstance(run, Nest) else run
                continue
            count = min(_MOST, run.length, max(2, run.work // _CHUNK))
            size = -(-run.length // count)
            places = [self._keep(_MOST) for _ in run.accumulators]
            parts = [
                f"store(kept, {place} + chunk, {a.name})" for a, place in zip(run.accumulators, places, strict=True)
            ]
            self._phases.append(Phase([*serial, *run.before]))
            self._phases.append(Phase([*run.starts, *run.loops("begin, end"), *parts], run.length, size))
            serial = list(run.starts)
            for a, place in zip(run.accumulators, places, strict=True):
                value = _typed(f"load(kept, {place} + k)", a.dtype)
                serial += ["for k in range(end):", *indent([f"part_{a.name} = {value}", *a.fold(f"part_{a.name}")], 1)]
            serial += run.after
        self._phases.append(Phase(serial))
        self._share_numbers()

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
        head = ", ".join(["phase", "begin", "end", "chunk", "kept", *emitted.arguments])
        return emitted.helpers + "\n".join([f"def {self._name}({head}):", *indent(lines, 1)]) + "\n"

    @property
    def _name(self) -> str:
        return f"{self._emitted.name}_in_chunks"

    def __call__(self, *arguments: Any) -> Any:
        """Run it; the returned number, if there is one."""
        if self._entry is None:
            signature = [code for code in self._emitted.signature if not code.startswith("r:")]
            codes = ("n:int64", "n:int64", "n:int64", "n:int64", "b:float64", *signature, "nogil")
            self._entry = entry_point(self._name, self.source(), codes, self._emitted.extras)
        entry, threads = self._entry, get_num_threads()
        kept = np.empty(max(self._kept, 1))
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


def _typed(text: str, dtype: np.dtype[Any]) -> str:
    if dtype == FLOAT64:
        return text
    return f"{text} != 0.0" if dtype == BOOL else f"{dtype.name}({text})"
