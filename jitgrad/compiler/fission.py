"""Fission: a long loop body as several loops over one block after another, whose results in between stay in the cache.

A processor looks a few hundred instructions ahead. Within a longer body it meets one vector of elements at a time and
waits for each operation of a chain, and the body needs more registers than there are. Loops of moderate length overlap
many elements. What one part computes and a later one needs is kept in small arrays on the stack; what is merely loaded
is loaded again. Each element is computed by the same operations as before; sums may be regrouped, as always.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from jitgrad.compiler.lines import is_comment, without_comments

__all__ = ["Parts", "divided"]

_SIZES: Final = ((16, 256), (32, 128), (64, 64))
"""Elements of a block, by the number of arrays that are kept: at most 32 kB. Where more would be needed, a body stays whole."""

# In instructions, about; fitted to a dozen bodies on AVX-512 and AVX2.
_LONG: Final = 150.0  # a body of at most this length stays whole
_WANTED: Final = 70.0  # of a part
_EXCESS: Final = 0.7  # what one beyond that costs
_LOOP: Final = 10.0
_STORE: Final = 2.0
_LOAD: Final = 1.0
_SUMS: Final = 1.5  # by which a loop with sums is longer: LLVM interleaves two elements
_DIVISION: Final = 24.0  # of the divider, which works beside the other units as long as they have other work
_FUNCTION: Final = 40.0  # an elementary function, unless it is one of these
_FUNCTIONS: Final = {"sqrt": 0.0, "exp": 25.0, "erf": 60.0, "erfx": 60.0, "erfc": 70.0, "atan2": 55.0, "pow": 100.0}
_DIVIDING: Final = frozenset(
    {"erf", "erfx", "erfc", "log", "log2", "log10", "log1p", "tanh", "atan", "atan2", "asinh", "acosh", "atanh", "pow"}
    | {"tan", "hypot", "asin", "acos", "cbrt", "sqrt"}
)
_CHEAP: Final = frozenset(
    {"load", "store", "radd", "sel", "fabs", "copysign", "maximum", "minimum", "isnan", "isinf", "isfinite", "signbit"}
    | {"floor", "ceil", "trunc", "rint", "fma", "boolean", "float64", "float32", "int64", "int32", "int16", "int8"}
    | {"uint64", "uint32", "uint16", "uint8"}
)
_GROUPS: Final = (("erf", "erfx", "erfc"), ("sin", "cos", "sincos"), ("sinh", "cosh"), ("asin", "acos"), ("pow",))
_SHARING: Final = {name: group[0] for group in _GROUPS for name in group}
"""Functions that share most of their work with others of the same argument in the same loop."""

_CALL: Final = re.compile(r"\b([a-z]\w*)\(")
_NAME: Final = re.compile(r"\b[A-Za-z_]\w*\b(?!\()")
_ASSIGNED: Final = re.compile(r"([\w, ]+?) ([-+*/|&^%<>]*)= (.*)")
_ACCESS: Final = re.compile(r"load\((\w+), ([^,]*)\)|store\((\w+), ([^,]*), .*")


@dataclass(frozen=True)
class Parts:
    """A body in several loops over blocks of ``size`` elements: the lines that make room for what is kept between them, and
    their bodies."""

    size: int
    room: list[str]
    bodies: list[list[str]]


@dataclass
class _Statement:
    lines: list[str]  # comments, and the statement
    writes: tuple[str, ...]
    reads: set[str]
    functions: list[str]
    memory: str | None  # that is read or written
    place: str  # in it
    stores: bool
    work: float
    divisions: int
    body: int  # which one it belongs to
    moved: bool = False  # to an earlier one


@dataclass
class _Unit:
    """Statements that stay together."""

    statements: list[_Statement]
    reads: set[str] = field(default_factory=set)  # names that other units write
    writes: set[str] = field(default_factory=set)
    work: float = 0.0
    divisions: int = 0
    is_sum: bool = False
    """Whether something is folded into a variable, and nothing else is done."""

    @property
    def lines(self) -> list[str]:
        return [line for s in self.statements for line in s.lines]


def divided(
    bodies: Sequence[Sequence[str]], kinds: Mapping[str, np.dtype[Any]], index: str, *, at_will: bool = True
) -> Parts | None:
    """The body of a loop over ``index`` in parts, for blocks that begin at ``first``; None where it had better stay whole.

    ``bodies``: what is never to be in one part. Where one is over, the next one may add to other elements of the same memory,
    in any order. ``kinds``: the dtypes of the names that may be kept from one part to another. ``at_will``: long bodies are
    divided too.
    """
    if len(bodies) == 1 and (not at_will or _length(bodies[0]) <= _LONG):
        return None
    statements = _statements(bodies)
    if statements is None:
        return None
    units, loads = _units(statements, kinds, index)
    if any(unit.statements[0].body != s.body for unit in units for s in unit.statements if not s.moved):
        return None  # something holds two bodies together
    at_will = at_will and sum(unit.work for unit in units) > _LONG
    bounds = _bounds(units, loads, at_will)
    if len(bounds) <= 2:
        return None
    return _written([units[a:b] for a, b in itertools.pairwise(bounds)], loads, kinds, index)


def _work(function: str) -> float:
    return _FUNCTIONS.get(function, _FUNCTION)


def _length(body: Sequence[str]) -> float:
    """The work of a body, or more: what shares work is not looked for."""
    lines = without_comments(body)
    return len(lines) + sum(_work(f) for f in _CALL.findall("\n".join(lines)) if f not in _CHEAP)


def _statements(bodies: Sequence[Sequence[str]]) -> list[_Statement] | None:
    """The lines as statements; None if one is not of the kinds that are known."""
    found = []
    comments: list[str] = []
    for number, line in ((k, line) for k, body in enumerate(bodies) for line in body):
        if is_comment(line):
            comments.append(line)
            continue
        stores = line.startswith("store(")
        match = None if stores else _ASSIGNED.fullmatch(line)
        if match is None and not stores:
            return None
        writes = () if match is None else tuple(match[1].split(", "))
        value = line if match is None else match[3]
        reads = set(_NAME.findall(value))
        if match is not None and match[2]:  # t += ...
            reads.update(writes)
        access = _ACCESS.fullmatch(value)
        if access is None and ("load(" in value or stores):
            return None
        memory, place = (access[1] or access[3], access[2] or access[4]) if access else (None, "")
        functions = [n for n in _CALL.findall(value) if n not in _CHEAP]
        divisions = sum(map(value.count, (" / ", " % ", " // "))) + len(_DIVIDING.intersection(functions))
        work = 1.0 + sum(map(_work, functions))
        lines = [*comments, line]
        found.append(_Statement(lines, writes, reads, functions, memory, place, stores, work, divisions, number))
        comments = []
    return found


def _units(
    statements: list[_Statement], kinds: Mapping[str, Any], index: str
) -> tuple[list[_Unit], dict[str, _Statement]]:
    """Statements as units, in an order for parts; and the loads that can be done wherever their results are needed, by
    these."""
    touched: dict[str, list[int]] = {}
    written: dict[str, list[int]] = {}
    accessed: dict[tuple[str, int], list[int]] = {}
    for k, s in enumerate(statements):
        for name in s.writes:
            written.setdefault(name, []).append(k)
        for name in {*s.reads, *s.writes}:
            touched.setdefault(name, []).append(k)
        if s.memory:
            accessed.setdefault((s.memory, s.body), []).append(k)
    carried = {n for n, at in written.items() if len(at) > 1 or touched[n][0] < at[0] or n in statements[at[0]].reads}
    changed = {s.memory for s in statements if s.memory and s.stores}
    reach = list(range(len(statements)))  # by statement: the last one that has to be in the unit of this one
    for name in written:
        if name in carried or name not in kinds:
            first, last = touched[name][0], touched[name][-1]
            reach[first] = max(reach[first], last)
    for (memory, _), accesses in accessed.items():
        # elements may only be taken up again by a later part where each is at a place of its own
        where = {statements[k].place for k in accesses}
        if memory in changed and (len(where) > 1 or not _is_own_place(where.pop(), index, written)):
            reach[accesses[0]] = max(reach[accesses[0]], accesses[-1])
    loads: dict[str, _Statement] = {}
    units: list[_Unit] = []
    end = -1
    for k, s in enumerate(statements):
        if k > end:
            plain = s.memory is not None and s.memory not in changed and reach[k] == k
            if plain and not s.reads & written.keys():
                loads[s.writes[0]] = s
                continue
            units.append(_Unit([]))
        end = max(end, reach[k])
        units[-1].statements.append(s)
    for unit in units:
        unit.writes = {name for s in unit.statements for name in s.writes}
        unit.reads = {name for s in unit.statements for name in s.reads if name in written} - unit.writes
        unit.work = sum(s.work for s in unit.statements)
        unit.divisions = sum(s.divisions for s in unit.statements)
        unit.is_sum = unit.writes <= carried and not any(s.memory or s.functions for s in unit.statements)
    return sorted(_sharing(units), key=lambda unit: (unit.statements[0].body, unit.is_sum)), loads


def _is_own_place(place: str, index: str, computed: Container[str]) -> bool:
    """Whether the text of a position is another one for each index."""
    names = _NAME.findall(place)
    return index in names and not any(n in computed for n in names) and "%" not in place and "//" not in place


def _sharing(units: list[_Unit]) -> list[_Unit]:
    """The units, those that share work made one."""
    seen: dict[Any, _Unit] = {}
    order: list[_Unit] = []
    for unit in units:
        groups = [_SHARING.get(f) for s in unit.statements for f in s.functions]
        alone = len(groups) == 1 and groups[0] is not None and not any(s.memory for s in unit.statements)
        key = (groups[0], frozenset(unit.reads)) if alone and unit.reads else None
        if key is None or key not in seen:
            order.append(unit)
            if key is not None:
                seen[key] = unit
            continue
        first = seen[key]
        for s in unit.statements:
            s.moved = True
        first.statements += unit.statements
        first.writes |= unit.writes
        first.work = max(first.work, unit.work)
        first.divisions = max(first.divisions, unit.divisions)
    return order


def _bounds(units: list[_Unit], loads: Mapping[str, _Statement], at_will: bool) -> list[int]:
    """The numbers of the units with which parts begin, and the number of all: the cheapest, by dynamic programming."""
    count = len(units)
    bodies = [unit.statements[0].body for unit in units]
    if not at_will:
        return [k for k in range(count) if not k or bodies[k] != bodies[k - 1]] + [count]
    made = {name: k for k, unit in enumerate(units) for name in unit.writes}
    needed = {name: k for k, unit in enumerate(units) for name in unit.reads}  # for the last time
    best = [0.0] + [np.inf] * count
    begins = [0] * (count + 1)
    for a in range(count):
        work, divisions, kept, sums = 0.0, 0, 0, False
        brought: set[str] = set()
        leaving: dict[int, int] = {}
        for b in range(a + 1, count + 1):
            unit = units[b - 1]
            if bodies[b - 1] != bodies[a]:
                break
            work += unit.work
            divisions += unit.divisions
            sums = sums or unit.is_sum
            brought.update(n for n in unit.reads if n in loads or made[n] < a)
            for name in unit.writes:
                if (until := needed.get(name, -1)) >= b:
                    kept += 1
                    leaving[until + 1] = leaving.get(until + 1, 0) + 1
            kept -= leaving.get(b, 0)
            length = (work + len(brought) + kept) * (_SUMS if sums else 1.0)
            cost = best[a] + max(work, _DIVISION * divisions) + _EXCESS * max(0.0, length - _WANTED)
            cost += _LOOP + _LOAD * len(brought) + _STORE * kept
            if cost < best[b]:
                best[b], begins[b] = cost, a
            if work > 3 * _WANTED:
                break
    bounds = [count]
    while bounds[-1]:
        bounds.append(begins[bounds[-1]])
    return bounds[::-1]


def _written(
    parts: list[list[_Unit]], loads: Mapping[str, _Statement], kinds: Mapping[str, np.dtype[Any]], index: str
) -> Parts | None:
    last = {name: p for p, units in enumerate(parts) for unit in units for name in unit.reads}
    slots: list[tuple[np.dtype[Any], int]] = []  # the dtype of an array, and the last part that reads what is there
    places: dict[str, str] = {}
    bodies = []
    for p, units in enumerate(parts):
        body: list[str] = []
        present: set[str] = set()
        for unit in units:
            for name in sorted(unit.reads - present, key=_order):
                present.add(name)
                body += loads[name].lines if name in loads else [f"{name} = load({places[name]}, {index} - first)"]
            body += unit.lines
            present |= unit.writes
            for name in sorted((n for n in unit.writes if last.get(n, p) > p), key=_order):
                kind = kinds[name]
                slot = next((k for k, (d, until) in enumerate(slots) if d == kind and until < p), len(slots))
                slots[slot : slot + 1] = [(kind, last[name])]
                places[name] = f"kept{slot}"
                body.append(f"store({places[name]}, {index} - first, {name})")
        bodies.append(body)
    size = next((size for most, size in _SIZES if len(slots) <= most), None)
    if size is None:
        return None
    return Parts(size, [f"kept{k} = kept_{kind.name}({size})" for k, (kind, _) in enumerate(slots)], bodies)


def _order(name: str) -> tuple[int, str]:
    """Names in the order in which they were given, so that the text is always the same."""
    return len(name), name
