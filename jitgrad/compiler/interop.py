"""A compiled graph as the source of an ordinary Numba function: shapes are read from the arguments at run time.

The graph must be the same for other extents. That is known from two sides. What the Python code of the user read is
observed while it is traced, and stays as it was. What jitgrad itself derived from extents is found by tracing again with
other extents: numbers that differ are given formulas (``n - 1``, ``n * m``), and the whole is accepted only where the
formulas give exactly what each of these traces has. Else the function takes the traced shapes alone.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.compiler.emit import Buffer, Emitted, emit
from jitgrad.compiler.extents import Extents, index_axes
from jitgrad.compiler.fuse import can_fuse, plan
from jitgrad.compiler.passes import simplify
from jitgrad.compiler.shapes import NotGeneral, RunTimeShapes
from jitgrad.core.aval import aval_of
from jitgrad.core.graph import Atom, Constant, Graph, Node
from jitgrad.errors import UnsupportedError
from jitgrad.ops.linear import diagonal_view, place, place_diagonal, slice_view

__all__ = ["Program", "Traced", "numba_program"]

Shapes = tuple[tuple[int, ...], ...]
_UNITS: Final = {1: 5040, 2: 60, 3: 2, 4: 1}
"""For so many free extents, those to try are primes times this: unlike other numbers of a program, to be split without a
rest where few are free, and with products that fit in an address space. With more free extents only the traced ones do."""
_PRIMES: Final = (
    dict.fromkeys((5040, 60, 2), (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173,
                             179, 181, 191, 193, 197))
    | {1: (29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109)}
)  # fmt: skip


@dataclass
class Traced:
    """A trace of the function: the graph of its outputs, and the extents of arguments that its code read."""

    graph: Graph  # nothing simplified
    observed: set[tuple[Any, int]]  # axes
    form: Any  # the structure of the results, and those that are no arrays


@dataclass
class Program:
    """The source of a function for Numba, but for how it takes arguments and gives results."""

    emitted: Emitted
    inputs: list[Atom]
    definitions: list[tuple[str, str]]  # of extents and numbers, in order
    checks: list[tuple[str, str]]  # a condition under which to raise ValueError, and the message
    constants: dict[str, np.ndarray[Any, Any]]
    axes: list[tuple[str, ...]]  # the symbols of the arguments' axes: the same one for extents that must agree
    output_extents: list[tuple[int, ...]]  # for the example

    def kernel(self) -> str:
        """The fused kernel as a function of arrays and numbers; it keeps no references to what it is given."""
        emitted = self.emitted
        buffers = [(f"a{k}", v.aval.dtype) for k, v in enumerate(self.inputs)]
        buffers += [(b.name, b.dtype) for b in self.written]
        numbers = [*(f"n{k}" for k in range(len(emitted.extents))), *(f"c{k}" for k in range(len(emitted.numbers)))]
        lines = [f"{n} = {d.name}_buffer(of_{n})" for n, d in buffers]
        lines += [f"b{k} = {c.aval.dtype.name}_buffer(captured{k})" for k, c in enumerate(emitted.captured)]
        head = f"def kernel({', '.join([*(f'of_{n}' for n, _ in buffers), *numbers])}):"
        return emitted.helpers + "\n".join([head, *(f"    {line}" for line in [*lines, *emitted.body])]) + "\n"

    @property
    def written(self) -> list[Any]:
        """The buffers that the kernel writes: results and working memory."""
        emitted = self.emitted
        work = [Buffer("work", np.dtype(np.int8), (emitted.workspace.nbytes,))] if emitted.workspace.places else []
        return [b for k, b in enumerate(emitted.outputs) if k != emitted.returned] + work

    def body(self, given: dict[str, str]) -> list[str]:
        """The lines that check, allocate and call; results that are ``given`` are arrays of the caller."""
        emitted = self.emitted
        lines = [f"{name} = {formula}" for name, formula in self.definitions]
        for condition, message in self.checks:
            lines += [f"if {condition}:", f"    raise ValueError({message!r})"]
        shapes = {b.name: s for b, s in zip(emitted.outputs, emitted.shapes, strict=True)}
        shapes["work"] = (emitted.workspace.formula,)
        for b in self.written:
            shape = shapes[b.name] or ("1",)
            lines.append(
                f"{b.name} = {given[b.name]}"
                if b.name in given
                else f"{b.name} = np.empty(({', '.join(shape)},), np.{b.dtype.name})"
            )
        arguments = [f"a{k}" for k in range(len(self.inputs))] + [b.name for b in self.written]
        arguments += [f"n{k}" for k in range(len(emitted.extents))] + [f"c{k}" for k in range(len(emitted.numbers))]
        value = f"{emitted.outputs[emitted.returned].name} = " if emitted.returned is not None else ""
        return [*lines, f"{value}kernel({', '.join(arguments)})"]

    def results(self) -> list[str]:
        """The texts of the results, after the body."""
        returned = self.emitted.returned
        return [b.name if k == returned or b.shape else f"{b.name}[0]" for k, b in enumerate(self.emitted.outputs)]


class _Attempt:
    """One trace, planned and emitted, with its shapes at run time."""

    def __init__(self, name: str, traced: Traced) -> None:
        self.traced = traced
        self.graph = simplify(traced.graph)
        apart = dict.fromkeys(
            f"{n.primitive.name}{f' ({n.where})' if n.where else ''}" for n in self.graph.nodes if not can_fuse(n)
        )
        if apart:
            raise UnsupportedError(
                f"{name}: these operations cannot be part of a Numba function yet: {', '.join(apart)}. Call the jitted "
                "function from Python, or take them out of it"
            )
        planned = plan(self.graph.verify())
        self.extents: Extents = planned.extents
        self.emitted = emit(f"{name}_kernel", planned)
        self.known = list(zip(self.emitted.extents, self.emitted.formulas, strict=True))  # before others are asked for
        self.shapes: RunTimeShapes | None
        try:
            self.shapes = RunTimeShapes(self.graph, self.extents)
        except NotGeneral:
            self.shapes = None

    def formulas(self) -> dict[str, str]:
        """All numbers of the kernel besides extents of axes, as formulas; raises NotGeneral."""
        assert self.shapes is not None
        found = {}
        for k, (_, formula) in enumerate(self.known):
            if f"n{k}" not in self.shapes.definitions:
                if formula is None:
                    raise NotGeneral("an extent")
                found[f"n{k}"] = formula
        for k, value in enumerate(self.emitted.numbers):
            found[f"c{k}"] = repr(value)
        return found

    def output_shapes(self) -> list[tuple[int, ...]]:
        return [tuple(map(int, a.aval.shape)) for a in self.graph.outputs]


def numba_program(name: str, trace: Callable[[Shapes], Traced], shapes: Shapes, freeze: bool) -> tuple[Program, Any]:
    """The program for arguments of these shapes, and of others where that is known to be right; the form of its results.

    Raises UnsupportedError for graphs with operations that are not fused, and for captured arrays unless ``freeze``.
    """
    traced = trace(shapes)
    first = _Attempt(name, traced)
    kept = [c for c in _captured(first.graph) if not c.is_literal and not c.made]
    read = [copy for _, copy in traced.graph.reads or ()]  # values that Python code read, to decide or to index
    if (kept or read) and not freeze:
        avals = [c.aval for c in kept] + [aval_of(r) for r in read]
        raise UnsupportedError(
            f"{name}: arrays that are no arguments ({', '.join(map(repr, avals))}): compiled code cannot read again what was "
            "captured. Pass them as arguments, or say freeze=True to copy them in as they are now"
        )
    found = _generalized(name, trace, shapes, first, ordered=False)
    found = found or _generalized(name, trace, shapes, first, ordered=True)
    return (found or _fixed(name, shapes, first)), traced.form


def _captured(graph: Graph) -> list[Constant]:
    atoms = [a for n in graph.nodes for a in n.inputs] + graph.outputs
    return list(dict.fromkeys(a for a in atoms if isinstance(a, Constant)))


def _fixed(name: str, shapes: Shapes, attempt: _Attempt) -> Program:
    """The program for the traced shapes alone."""
    emitted = attempt.emitted
    definitions = [(f"n{k}", str(int(n))) for k, (n, _) in enumerate(attempt.known)]
    definitions += [(f"c{k}", repr(c)) for k, c in enumerate(emitted.numbers)]
    checks = []
    for k, shape in enumerate(shapes):
        tests = [f"a{k}.shape[{axis}] != {n}" for axis, n in enumerate(shape)]
        if tests:
            checks.append(
                (" or ".join(tests), f"{name}: {{a{k}}} must have the shape {shape} that it was compiled for")
            )
    symbols = {s for b in emitted.shapes for s in b if s != "1"}
    later = [(s, str(int(attempt.extents.values[int(s[1:])]))) for s in sorted(symbols - {d for d, _ in definitions})]
    axes = [attempt.extents.shape(v) for v in attempt.graph.inputs]
    definitions += later
    return Program(
        emitted, list(attempt.graph.inputs), definitions, checks, _constants(emitted), axes, attempt.output_shapes()
    )


def _constants(emitted: Emitted) -> dict[str, np.ndarray[Any, Any]]:
    return {f"captured{k}": np.array(c.current(), order="C") for k, c in enumerate(emitted.captured)}


# --------------------------------------------------------------------------- other extents


def _fixed_axes(attempt: _Attempt, shapes: Shapes) -> set[tuple[int, int]] | None:
    """The arguments' axes that keep their extents: 0 and 1, and what the user's code read; None where that is unknown."""
    fixed = {(k, axis) for k, shape in enumerate(shapes) for axis, n in enumerate(shape) if n <= 1}
    graph = attempt.traced.graph
    extents = Extents(graph)
    known = {v for n in graph.nodes for v in n.outputs} | set(graph.inputs)
    inputs: dict[str, list[tuple[int, int]]] = {}
    for k, variable in enumerate(graph.inputs):
        for axis in range(variable.aval.ndim):
            inputs.setdefault(extents.symbol(variable, axis), []).append((k, axis))
    for atom, axis in attempt.traced.observed:
        if isinstance(atom, Constant):
            continue
        symbol = extents.symbol(atom, axis) if atom in known else "?"
        if symbol not in inputs:
            return None
        if symbol != "1":
            fixed.update(inputs[symbol])
    return fixed


def _generalized(
    name: str, trace: Callable[[Shapes], Traced], shapes: Shapes, first: _Attempt, *, ordered: bool
) -> Program | None:
    """The program for other extents; ``ordered``: only for such as are greater and smaller than each other as they are in the
    example, since tall matrices are factorised otherwise than wide ones."""
    fixed = _fixed_axes(first, shapes)
    if fixed is None or first.shapes is None:
        return None
    rules = first.shapes
    rows = [rules.shape(v) for v in first.graph.inputs]
    settled = {rows[k][axis]: int(shapes[k][axis]) for k, axis in fixed if rows[k][axis] != "1"}
    settled.update({s: int(first.extents.values[int(s[1:])]) for s in rules.constant_axes if s != "1"})
    own = list(dict.fromkeys(s for row in rows for s in row if s != "1"))
    free: list[str] = []
    solved = rules.solve(settled)
    for s in own:
        if s not in solved:
            free.append(s)
            solved = rules.solve({**settled, **{f: 1000 + 7 * i for i, f in enumerate(free)}})
    count = len(free)
    if count not in _UNITS:
        return None
    given = [first.extents.value(s) for s in free]
    if ordered and (count < 2 or len(set(given)) < count):
        return None

    def extents_for(chosen: Sequence[int]) -> Shapes:
        values = rules.solve({**settled, **dict(zip(free, chosen, strict=True))})
        return tuple(tuple(1 if s == "1" else values[s] for s in row) for row in rows)

    def attempt(chosen: Sequence[int]) -> _Attempt | None:
        try:
            made = _Attempt(name, trace(extents_for(chosen)))
        except Exception:  # the function does not take these shapes, which is for run time to find out
            return None
        return made if made.traced.form == first.traced.form else None

    unit = _UNITS[count]
    primes = iter(_PRIMES[unit])
    tries = [[unit * next(primes) for _ in free] for _ in range(3)]
    tries[1].reverse()  # no extent is always the greater one
    tries.append([unit * next(primes) + 1 for _ in free])  # odd where the others are even
    rising = sorted(range(count), key=given.__getitem__)
    if ordered:
        tries.append([unit * next(primes) * 3**k for k in range(count)])  # far from each other
        for chosen in tries:
            for i, n in zip(rising, sorted(chosen), strict=True):
                chosen[i] = n
    base = attempt(tries[0])
    others = [t for t in (attempt(c) for c in tries[1:]) if t is not None]
    if base is None or base.shapes is None or len(others) < 2 or not _same_steps(first, base):
        return None
    names = [base.shapes.shape(v) for v in base.graph.inputs]
    symbol_of = {s: t for row, new in zip(rows, names, strict=True) for s, t in zip(row, new, strict=True)}
    try:
        formulas = base.formulas()
        replace, conditions = _derived(base, others, [symbol_of[s] for s in free])
        base.shapes.conditions += conditions
        if ordered:
            base.shapes.conditions += [
                f"{symbol_of[free[i]]} < {symbol_of[free[j]]}" for i, j in itertools.pairwise(rising)
            ]
        general = _General(base, formulas, replace)
    except NotGeneral:
        return None
    if not all(general.explains(t) for t in (base, *others)) or not general.gives(shapes, first.output_shapes()):
        return None
    edges = _edges(base) if _has_numbers(base.graph) else []
    general.keep_sides(edges, _tried_near(edges, attempt, len(free)))
    if not general.gives(shapes, first.output_shapes()):
        return None
    if not general.has_numbers_of(first, shapes):
        return None
    if first.emitted.body == base.emitted.body and not general.explains(first):
        return None
    checks = list(general.checks(name))
    for k, axis in sorted(fixed):
        n = int(shapes[k][axis])
        message = f"{name}: axis {axis} of {{a{k}}} must have extent {n}, as when it was compiled"
        checks.insert(0, (f"a{k}.shape[{axis}] != {n}", message))
    for i, s in enumerate(free):  # extents 0 and 1 may mean another structure
        allowed = []
        for n in (0, 1):
            chosen = list(tries[0])
            chosen[i] = n
            tried = attempt(chosen)
            if tried is not None and general.covers(tried, extents_for(chosen)):
                allowed.append(n)
        lowest = 2 if 1 not in allowed else 1 if 0 not in allowed else 0
        places = [f"axis {a} of {{a{k}}}" for k, row in enumerate(rows) for a, r in enumerate(row) if r == s]
        if lowest:
            message = f"{name}: {places[0]} must have at least {lowest} elements"
            checks.insert(0, (f"{symbol_of[s]} < {lowest}", message))
    definitions = list(general.definitions.items())
    constants = _constants(base.emitted)
    outputs = first.output_shapes()
    return Program(base.emitted, list(base.graph.inputs), definitions, checks, constants, names, outputs)


def _has_numbers(graph: Graph) -> bool:
    """Whether there are numbers that may be derived from extents."""
    literals = {float(a.value) for n in graph.nodes for a in n.inputs if isinstance(a, Constant) and a.is_literal}
    return not literals <= {0.0, 1.0, -1.0}


def _edges(base: _Attempt) -> list[tuple[str, int]]:
    """Where an extent decides what a slice or a diagonal is cut by: symbols of axes, and the bounds on them."""
    found: dict[tuple[str, int], None] = {}

    def note(node: Node) -> None:
        if node.primitive in (slice_view, place):
            whole = node.inputs[0] if node.primitive is slice_view else node.outputs[0]
            for _, axis, entry in index_axes(node.params["index"], whole.aval.ndim):
                ends = [abs(int(n)) for n in entry[:2] if n] if isinstance(entry, tuple) else []
                for bound in {*ends, sum(ends)} - {0}:  # from the one end to a place that is counted from the other
                    for n in (bound, bound + 1):  # backwards the last element counts
                        found[base.extents.symbol(whole, axis), n] = None
        elif node.primitive in (diagonal_view, place_diagonal) and node.params["offset"]:
            whole = node.inputs[0] if node.primitive is diagonal_view else node.outputs[0]
            for axis in (node.params["axis1"], node.params["axis2"]):
                found[base.extents.symbol(whole, axis), abs(int(node.params["offset"]))] = None

    for node in base.graph.nodes:
        note(node)
        for step in base.extents.views.get(id(node), ()):
            note(step)
    return [(s, bound) for s, bound in found if s != "1"]


def _tried_near(
    edges: Sequence[tuple[str, int]], attempt: Callable[[Sequence[int]], _Attempt | None], free: int
) -> list[_Attempt]:
    """Traces for extents on either side of the bounds."""
    near = sorted({n for _, bound in edges for n in (2, bound - 1, bound) if n > 1})
    tried = [attempt([n] * free) for n in near]
    tried += [attempt([n + k for k in range(free)]) for n in near] if free > 1 else []
    return [t for t in tried if t is not None]


def _same_steps(a: _Attempt, b: _Attempt) -> bool:
    """Whether two traces did the same operations (views of the whole and copies aside, they are the same function)."""
    return [n.primitive for n in a.traced.graph.nodes] == [n.primitive for n in b.traced.graph.nodes]


def _numbers(value: Any) -> Iterator[Any]:
    """The integers in the parameters of a node that do not say themselves whose extents they are."""
    if isinstance(value, tuple):
        for v in value:
            yield from _numbers(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _numbers(v)
    elif type(value) is int:
        yield value


def _literals(graph: Graph) -> list[Any]:
    """All numbers that a graph contains, in order."""
    found: list[Any] = []
    for node in graph.nodes:
        found += _numbers(node.params)
        found += [a.value.item() for a in node.inputs if isinstance(a, Constant) and a.is_literal]
    return found


def _derived(base: _Attempt, others: Sequence[_Attempt], free: list[str]) -> tuple[dict[str, str], list[str]]:
    """What jitgrad derived from the free extents: the texts of the numbers in the base trace, with their formulas; and
    where these hold."""
    assert base.shapes is not None
    columns = [_literals(t.graph) for t in (base, *others)]
    if len({len(c) for c in columns}) > 1:
        raise NotGeneral("other numbers")
    values = []
    for t in (base, *others):
        inputs = [tuple(map(int, v.aval.shape)) for v in t.graph.inputs]
        values.append({s: _extent_of(s, base, inputs) for s in free})
    found: dict[str, str] = {}
    conditions: list[str] = []
    for row in zip(*columns, strict=True):
        numbers = list(row)
        if all(_same(v, numbers[0]) for v in numbers):
            continue
        text, formula = repr(numbers[0]), _formula(numbers, values, free, conditions)
        if found.setdefault(text, formula) != formula:
            raise NotGeneral("one number with two meanings")
    return found, list(dict.fromkeys(conditions))


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (np.isnan(a) and np.isnan(b)))


def _extent_of(symbol: str, attempt: _Attempt, shapes: Sequence[tuple[int, ...]]) -> int:
    assert attempt.shapes is not None
    match = re.fullmatch(r"a(\d+)\.shape\[(\d+)\]", attempt.shapes.definitions[symbol])
    if match is None:
        raise NotGeneral("an extent that is no argument's")
    return shapes[int(match[1])][int(match[2])]


def _formula(numbers: list[Any], values: list[dict[str, int]], free: list[str], conditions: list[str]) -> str:
    """A formula that gives these numbers: a sum or product of extents and a constant, or a constant over it.

    Where a number is ``n - 2`` or less, something is at an end with fewer elements (degrees of freedom): ``conditions``
    gets that there are more.
    """
    for size in range(1, len(free) + 1):
        for chosen in itertools.combinations(free, size):
            for text, parts in (
                (" * ".join(chosen), [math.prod(v[s] for s in chosen) for v in values]),
                (" + ".join(chosen), [sum(v[s] for s in chosen) for v in values]),
            ):
                found = _from_part(numbers, text, parts, conditions)
                if found is not None:
                    return found
    raise NotGeneral("a number without a formula")


def _from_part(numbers: list[Any], text: str, parts: list[int], conditions: list[str]) -> str | None:
    """A formula that gives these numbers from those of another one: plus, times or divided by a small constant."""

    def holds(formula: Callable[[int], Any]) -> bool:
        return all(formula(p) == n for p, n in zip(parts, numbers, strict=True))

    offset = numbers[0] - parts[0]
    if abs(offset) <= 64 and offset == int(offset) and holds(lambda p: p + offset):
        conditions += [f"{text} > {-int(offset)}"] if offset < -1 else []
        whole = f"({text})" if not offset else f"({text} {'+' if offset > 0 else '-'} {abs(int(offset))})"
        return f"float64{whole}" if isinstance(numbers[0], float) else whole
    if isinstance(numbers[0], float):
        for less in range(-2, 4):
            scale = round(numbers[0] * (parts[0] - less) * 2) / 2
            if scale and holds(lambda p: scale / (p - less)):  # noqa: B023
                conditions += [f"{text} > {less}"] if less > 1 else []
                return f"({scale!r} / float64({f'{text} - {less}' if less else text}))"
        return None
    for k in range(2, 65):
        if holds(lambda p: k * p):  # noqa: B023
            return f"({k} * ({text}))"
        if holds(lambda p: p // k):  # noqa: B023
            return f"(({text}) // {k})"
    return None


class _General:
    """The base trace with its derived numbers replaced by formulas."""

    def __init__(self, base: _Attempt, formulas: dict[str, str], replace: dict[str, str]) -> None:
        assert base.shapes is not None
        self.base = base
        self.replace = replace
        self.shapes = base.shapes
        pattern = re.compile(
            "|".join(rf"(?<![\w.]){re.escape(t)}(?![\w.])" for t in sorted(replace, key=len, reverse=True))
        )

        def general(text: str) -> str:
            return pattern.sub(lambda m: replace[m[0]], text) if replace else text

        if any(general(line) != line for line in base.emitted.body):
            raise NotGeneral("a number in the kernel")
        own = self.shapes
        own.definitions = {k: general(v) for k, v in own.definitions.items()}
        own.agreements = [(general(a), general(b)) for a, b in own.agreements]
        own.conditions = [general(c) for c in own.conditions]
        self.formulas = {k: general(v) for k, v in formulas.items()}
        self.definitions = {**own.definitions, **self.formulas}

    def explains(self, other: _Attempt) -> bool:
        """Whether the formulas give exactly the kernel of another trace."""
        mine, its = self.base.emitted, other.emitted
        if (mine.body, mine.helpers, mine.signature, mine.shapes) != (its.body, its.helpers, its.signature, its.shapes):
            return False
        if len(mine.captured) != len(its.captured):
            return False
        if any(not np.array_equal(a.current(), b.current()) for a, b in zip(mine.captured, its.captured, strict=True)):
            return False
        found = self._evaluate([v.aval.shape for v in other.graph.inputs])
        if found is None:
            return False
        numbers = {
            **{f"n{k}": int(n) for k, (n, _) in enumerate(other.known)},
            **{f"c{k}": c for k, c in enumerate(its.numbers)},
        }
        return all(found[k] == v for k, v in numbers.items()) and self._outputs(found) == other.output_shapes()

    def keep_sides(self, edges: Sequence[tuple[str, int]], tried: Sequence[_Attempt]) -> None:
        """Where a trace near a bound is not explained, only extents on the side of the base trace are: a number that was
        derived from the extent of a part (one over it, for a mean) is another one there."""
        base = self._evaluate([v.aval.shape for v in self.base.graph.inputs])
        assert base is not None
        for other in tried:
            shapes = tuple(v.aval.shape for v in other.graph.inputs)
            found = self._evaluate(shapes)
            if found is None or self.has_numbers_of(other, shapes):
                continue
            for s, bound in edges:
                if (found[s] >= bound) != (base[s] >= bound):
                    condition = f"{s} >= {bound}" if base[s] >= bound else f"{s} < {bound}"
                    if condition not in self.shapes.conditions:
                        self.shapes.conditions.append(condition)

    def has_numbers_of(self, other: _Attempt, shapes: Shapes) -> bool:
        """Whether the formulas give the numbers of another trace, one by one unless it has others."""
        found = self._evaluate(shapes)
        if found is None:
            return False
        mine, theirs = _literals(self.base.graph), _literals(other.graph)
        if len(mine) != len(theirs):
            return self.covers(other, shapes)
        values = [eval(self.replace[repr(m)], {}, found) if repr(m) in self.replace else m for m in mine]
        return all(m == t or (m != m and t != t) for m, t in zip(values, theirs, strict=True))  # noqa: PLR0124 (NaN)

    def gives(self, shapes: Shapes, outputs: list[tuple[int, ...]]) -> bool:
        """Whether arguments of these shapes give results of those."""
        found = self._evaluate(shapes)
        return found is not None and self._outputs(found) == outputs

    def covers(self, other: _Attempt, shapes: Shapes) -> bool:
        """Whether a trace for extents of 0 or 1, which has another structure, can be the same function."""
        found = self._evaluate(shapes)
        if found is None or self._outputs(found) != other.output_shapes():
            return False
        mine = {found[f"c{k}"] for k in range(len(self.base.emitted.numbers))}
        return all(c in mine for c in other.emitted.numbers)

    def _evaluate(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, Any] | None:
        try:
            return self.shapes.evaluate(shapes, self.formulas)
        except ZeroDivisionError:
            return None

    def _outputs(self, found: dict[str, Any]) -> list[tuple[int, ...]]:
        shapes = self.base.emitted.shapes[: len(self.base.emitted.outputs)]
        return [tuple(1 if s == "1" else int(found[s]) for s in shape) for shape in shapes]

    def checks(self, name: str) -> Iterator[tuple[str, str]]:
        """When to raise at run time."""
        given = {d: s for s, d in self.shapes.definitions.items() if re.fullmatch(r"a\d+\.shape\[\d+\]", d)}
        first = {s: d for d, s in given.items()}
        rest = []
        for a, b in self.shapes.agreements:
            match = re.fullmatch(r"a(\d+)\.shape\[(\d+)\]", b)
            if match is None:
                rest.append(f"{a} != {b}")
                continue
            here = f"axis {match[2]} of {{a{match[1]}}}"
            there = re.fullmatch(r"a(\d+)\.shape\[(\d+)\]", first.get(a, ""))
            if a == "1" or there is None:
                yield f"{b} != {a}", f"{name}: {here} does not have the extent that it must have"
            else:
                yield f"{b} != {a}", f"{name}: {here} and axis {there[2]} of {{a{there[1]}}} must have the same extent"
        rest += [f"not {c}" for c in self.shapes.conditions]
        if rest:
            message = f"{name}: for these shapes the function is another one than it was compiled as, or an error"
            yield " or ".join(rest), message
