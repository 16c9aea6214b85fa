"""Emission: a planned graph as the readable source of one kernel.

Every array is contiguous, so an element is one index away: row-major over symbols of extents, which are arguments. Loops
run over the axes of their space; where all that a loop touches has exactly its shape, it runs over one flat index.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.compiler.fuse import JOINS, SCATTERS, Call, Loop, Plan, Sink
from jitgrad.compiler.indices import Index, Indices, NotFlat, added
from jitgrad.compiler.lines import UserLines, arranged, without_comments
from jitgrad.compiler.nests import Accumulator, Nest, Shared
from jitgrad.compiler.outline import Outlined
from jitgrad.compiler.workspace import Temporary, Workspace, lay_out
from jitgrad.core.aval import BOOL, FLOAT32, FLOAT64
from jitgrad.core.graph import Atom, Constant, Extent, Node, Variable
from jitgrad.core.primitive import Elementwise, Folded, Reduce
from jitgrad.kernels.loops import indent, literal, node_lines
from jitgrad.kernels.text import inline
from jitgrad.ops.linear import (
    add_at,
    convert,
    counted,
    gather,
    join,
    overwrite,
    pile,
    place,
    place_diagonal,
    put,
    scatter_add,
    take_at,
)
from jitgrad.ops.product_primitives import vector_outer

__all__ = ["Buffer", "Emitted", "emit"]


_APART: Final = JOINS | {place, place_diagonal}  # they write every place once


@dataclass(frozen=True)
class Buffer:
    """An array argument: its name in the source, and its aval for this trace."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass
class Emitted:
    """A kernel: ``name(*inputs, *captured, extents, numbers, *outputs, work)``, with working memory for temporaries if there
    are any; a scalar result is returned."""

    name: str
    source: str  # what is compiled
    listing: str  # the same for readers: commented with the lines of the user
    inputs: int  # how many there are
    captured: list[Constant]
    extents: list[int]
    numbers: list[float]
    outputs: list[Buffer]
    workspace: Workspace
    arguments: list[str]
    head: list[str]  # the lines that read extents and numbers
    body: list[str]  # the lines after that
    runs: list[Nest | list[str]]  # what the body of a kernel without segments runs (temporaries have no places yet)
    locals: dict[str, np.dtype[Any]]  # the variables that hold numbers between runs
    result: str | None  # the variable that is returned
    helpers: str
    extras: dict[str, Any]  # functions of the user, by their names in the source
    shapes: list[tuple[str, ...]]  # of outputs, in symbols of extents
    formulas: list[str | None]
    returned: int | None  # the number of the result that the kernel returns instead of writing it
    signature: tuple[str, ...]


class _Emitter:
    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        self.plan = plan
        self.graph = plan.graph
        self.comment = UserLines().comment
        self.extents = plan.extents
        self.names: dict[Atom, str] = {}
        self.locals: dict[Variable, str] = {}  # 0-d values that live in a variable
        self.captured: list[Constant] = []
        self.numbers: list[float] = []
        self.helpers: dict[str, str] = {}
        self.extras: dict[str, Any] = {}
        self.outputs: list[Buffer] = []
        self.returned: int | None = None
        self.filled: set[Variable] = set()  # results of scatters that were set to zero
        self.temporaries: list[Temporary] = []
        self.counter = 0
        # state of the loop that is being written
        self.at = Indices(self.extents, self.fresh)
        self.stage = 0
        self.memo: dict[Any, str] = {}
        self.kinds: dict[str, np.dtype[Any]] = {}  # of names of elements
        self.body: list[str] = []
        self.nest = Nest((), (), False)

    # ----------------------------------------------------------------- arguments

    def bind_arguments(self) -> None:
        for k, variable in enumerate(self.graph.inputs):
            self.names[variable] = f"a{k}"
        taken: set[Variable] = set()
        self.copies: list[tuple[Buffer, Atom]] = []
        for k, atom in enumerate(self.graph.outputs):
            buffer = Buffer(f"out{k}", atom.aval.dtype, atom.aval.shape)
            self.outputs.append(buffer)
            if isinstance(atom, Constant) or atom in taken or atom in self.graph.inputs:
                self.copies.append((buffer, atom))
            elif self.returned is None and self._is_local(atom) and atom.aval.dtype == FLOAT64:
                self.returned = k  # cheaper than an array
                taken.add(atom)
            else:
                taken.add(atom)
                self.names[atom] = buffer.name
        becomes = {base: out for out, base in self.plan.reused.items()}
        for variable in self.plan.memory:
            last = variable  # memory that is written again has one name
            while last in becomes:
                last = becomes[last]
            if last not in self.names and not self._is_local(last):
                self.names[last] = self._temporary(last.aval.dtype, last)
            if last is not variable:
                self.names[variable] = self.names[last]

    def _temporary(self, dtype: np.dtype[Any], like: Variable) -> str:
        name = f"tmp{len(self.temporaries)}"
        self.temporaries.append(Temporary(name, dtype, like.aval.shape, self.extents.shape(like)))
        return name

    def _is_local(self, variable: Variable) -> bool:
        """Whether a value lives in a local variable: numbers need no memory."""
        return variable.aval.ndim == 0 and variable in self.plan.producers and variable not in self.plan.addressed

    def fresh(self, prefix: str = "t") -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def number(self, value: Any, dtype: np.dtype[Any]) -> str:
        """A literal: floats are arguments, but for those that say something about the structure."""
        if dtype.kind != "f" or value in (0.0, 1.0, -1.0) or not np.isfinite(value):
            return literal(value, dtype)
        value = float(value)
        if value not in self.numbers:
            self.numbers.append(value)
        name = f"c{self.numbers.index(value)}"
        return f"float32({name})" if dtype == FLOAT32 else name

    # ----------------------------------------------------------------- elements

    def load(self, atom: Atom, index: Index) -> str:
        key = (atom, index)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.fresh()
            self.kinds[found] = atom.aval.dtype
            self.body.append(f"{found} = load({self.names[atom]}, {self.at.position_in(atom, index)})")
        return found

    def element(self, atom: Atom, index: Index) -> str:
        """The name of an element of a value, computed where that is due."""
        wanted = (atom, index)
        name = self._known(atom, index)
        if name is not None:
            return name
        # on a stack of its own: chains of operations may be longer than Python's stack is deep
        stack = [(wanted, self._compute(self.plan.producers[atom], index))]  # type: ignore[index]
        while stack:
            key, work = stack[-1]
            try:
                wanted = work.send(name)
            except StopIteration as end:
                name = self.memo[key] = end.value
                self.kinds[end.value] = key[0].aval.dtype
                stack.pop()
                continue
            name = self._known(*wanted)
            if name is None:
                stack.append((wanted, self._compute(self.plan.producers[wanted[0]], wanted[1])))  # type: ignore[index]
        assert name is not None
        return name

    def _known(self, atom: Atom, index: Index) -> str | None:
        """The name of an element that need not be computed."""
        if isinstance(atom, Constant):
            if atom.is_literal:
                return self.number(atom.value.item(), atom.aval.dtype)
            self._must_be_named(atom)
            return self.load(atom, index)
        if self.plan.memory.get(atom, 1 << 30) <= self.stage:
            return self.locals[atom] if atom in self.locals else self.load(atom, index)
        return self.memo.get((atom, index))

    def _compute(self, node: Node, index: Index) -> Generator[tuple[Atom, Index], Any, str]:
        """Write the lines that compute an element; yields the elements that it needs, and is sent their names."""
        primitive, params = node.primitive, node.params
        x = node.inputs[0]
        if isinstance(primitive.impl, Elementwise):
            arguments = []
            for a in node.inputs:
                arguments.append((yield a, self.at.broadcast(a, node.outputs[0], index)))
            self.body += self.comment(node)
            target = self.fresh()
            self.body += node_lines(node, arguments, target)
            return target
        if primitive is convert:
            value = yield x, index
            self.body += self.comment(node)
            target = self.fresh()
            dtype = params["dtype"]
            cast = "boolean" if dtype == BOOL else dtype.name
            converted = f"{cast}({value})"
            if x.aval.dtype == BOOL and dtype.kind == "f":  # quicker than by way of an integer
                converted = f"sel({value}, {literal(1.0, dtype)}, {literal(0.0, dtype)})"
            self.body.append(f"{target} = {converted}")
            return target
        if primitive is counted:
            self.body += self.comment(node)
            target = self.fresh()
            self.body.append(f"{target} = int64({index[0]})")
            return target
        if primitive is vector_outer:
            left = yield x, index[:1]
            right = yield node.inputs[1], index[1:]
            self.body += self.comment(node)
            target = self.fresh()
            self.body.append(f"{target} = {left} * {right}")
            return target
        if primitive is gather or primitive is take_at:
            if self.at.flat and primitive is take_at:
                raise NotFlat
            axis = params.get("axis", 0)
            where = yield node.inputs[1], (index if primitive is gather else index[axis : axis + 1])
            self._must_be_named(x)
            self.body += self.comment(node)
            target = self.fresh()
            if primitive is take_at:
                where = self.at.position(self.extents.shape(x), (*index[:axis], where, *index[axis + 1 :]))
            self.body.append(f"{target} = load({self.names[x]}, {where})")
            return target
        if primitive is place_diagonal:
            if self.at.flat:
                raise NotFlat
            row, column = index[params["axis1"]], index[params["axis2"]]
            around = [n for i, n in enumerate(index) if i not in (params["axis1"], params["axis2"])]
            name: str = yield x, (*around, row)
            if row == column:
                return name
            self.body += self.comment(node)
            target = self.fresh()
            zero = literal(x.aval.dtype.type(0), x.aval.dtype)
            self.body.append(f"{target} = sel({row} == {column}, {name}, {zero})")
            return target
        count = len(self.body)
        source = self.at.source(node, index)
        if len(self.body) > count:
            self.body[count:count] = self.comment(node)
        found: str = yield x, source
        return found

    def _must_be_named(self, atom: Atom) -> None:
        if atom not in self.names:
            assert isinstance(atom, Constant)
            self.names[atom] = f"b{len(self.captured)}"
            self.captured.append(atom)

    # ----------------------------------------------------------------- loops

    def loop(self, loop: Loop) -> Nest:
        if len(loop.space) > 1:
            try:
                return self._nest(loop, flat=True)
            except NotFlat:
                pass
        return self._nest(loop, flat=False)

    def _nest(self, loop: Loop, flat: bool) -> Nest:
        extents = tuple(map(self.extents.value, loop.space))
        nest = self.nest = Nest(loop.space, extents, flat)
        self.memo, self.kinds, self.body = {}, {}, nest.body
        self.at.enter(loop.space, flat, self.body)
        ends = [0]
        for sinks in self._without_conflicts(loop):
            for sink in sinks:
                names = iter(f"i{k}" for k in range(len(loop.space)))
                index = tuple("0" if n == "1" else next(names) for n in sink.space)
                self.at.here = index
                getattr(self, f"_{sink.kind}")(sink, index)
            ends.append(len(self.body))
        nest.divide([self.body[a:b] for a, b in itertools.pairwise(ends)], self.kinds)
        return nest

    def _without_conflicts(self, loop: Loop) -> list[list[Sink]]:
        """The sinks in groups, of which none adds to the same memory at two places: gradients of neighbours, ``x[1:]`` and
        ``x[:-1]``. Within one loop an element would wait for what the one before it has just written, and nothing could be
        vectorised."""
        groups: list[list[Sink]] = [[]]
        places: dict[Variable, list[Any]] = {}
        for sink in loop.sinks:
            number = 0
            if sink.kind == "scatter" and sink.node is not None and sink.node.primitive is place:
                known = places.setdefault(sink.target, [])
                where = sink.node.params["index"]
                if where not in known:
                    known.append(where)
                number = known.index(where)
            while len(groups) <= number:
                groups.append([])
            groups[number].append(sink)
        return groups

    def _store(self, sink: Sink, index: Index) -> None:
        source = sink.target if sink.node is None else sink.node.inputs[0]  # what a write starts from is copied
        value = self.element(source, index)
        if self._is_local(sink.target):
            self.locals[sink.target] = value
            if sink.target not in self.names:
                return
        self.body.append(f"store({self.names[sink.target]}, {self.at.position_in(sink.target, index)}, {value})")

    def _reduce(self, sink: Sink, index: Index) -> None:
        node = sink.node
        assert node is not None
        assert isinstance(node.primitive.impl, Reduce)
        impl, axes = node.primitive.impl, node.params["axes"]
        self._fold(sink, self.element(node.inputs[0], index), index, axes, impl)

    def _dot(self, sink: Sink, index: Index) -> None:
        node = sink.node
        assert node is not None
        x, y = (self.element(a, index) for a in node.inputs)
        comment = self.comment(node)
        product = self.fresh()
        self.body += comment
        self.body.append(f"{product} = float64({x}) * {y}")
        total = self.fresh("sum")
        self._accumulate(
            total, FLOAT64, [*comment, f"{total} = 0.0"], lambda value: [f"{total} = radd({total}, {value})"]
        )
        self.body.append(f"{total} = radd({total}, {product})")
        self.nest.after += comment
        self._deliver(sink.target, total, self.nest.after, ())

    def _accumulate(self, name: str, dtype: np.dtype[Any], start: list[str], fold: Callable[[str], list[str]]) -> None:
        self.nest.accumulators.append(Accumulator(name, dtype, start, fold))

    def _fold(self, sink: Sink, value: str, index: Index, axes: tuple[int, ...], impl: Reduce) -> None:
        assert sink.node is not None
        comment = self.comment(sink.node)
        x = sink.node.inputs[0]
        accumulator = np.dtype(impl.accumulator(x.aval.dtype))
        kind = "float32" if accumulator == FLOAT32 else None
        cast = "boolean" if accumulator == BOOL else accumulator.name
        start = f"{cast}({literal(impl.start(x.aval.dtype), accumulator)})"
        symbols = self.extents.shape(x)
        count = " * ".join(symbols[a] for a in axes if symbols[a] != "1") or "1"
        kept = tuple(index[i] for i in range(len(index)) if i not in axes)
        running = [i for i in index if i != "0"]
        summed = [index[a] for a in axes if index[a] != "0"]
        if self.at.flat and len(summed) != len(running):
            raise NotFlat
        split = len(running) - len(summed)
        if running[split:] == summed:  # the reduced axes are the innermost ones: a local accumulator
            total = self.fresh("sum")
            known, begin = self._shortcut(sink, index, split) if summed else (None, [])
            begin = [*comment, *begin, f"{total} = {start}"]
            if not summed and running:  # every element is a result of its own
                self.body += begin
                end = self.body
            elif split == 0:
                self._accumulate(total, accumulator, begin, lambda v: inline(impl.step, [total, v], total, kind))
                end = self.nest.after
            else:
                head, end = self.nest.rows.setdefault(split, ([], []))
                head += begin
            self.body += comment
            self.body += inline(impl.step, [total, value], total, kind)
            end += comment
            if known is not None:
                end.append(f"{total} = sel(isfinite({known}), {known}, {total})")
            self._finish(sink.target, total, count, impl, end, kept)
            return
        target = sink.target
        name = self.names[target]
        if accumulator != target.aval.dtype:
            name = self._temporary(accumulator, target)
        size = " * ".join(n for n in self.extents.shape(target) if n != "1") or "1"
        if running[0] not in kept:
            self._share(target, name, accumulator, start, lambda old, v, new: inline(impl.step, [old, v], new, kind))
        self.nest.before += [*comment, f"for j in range({size}):", f"    store({name}, j, {start})"]
        position = self.at.position_in(target, kept)
        old, new = self.fresh("old"), self.fresh("new")
        self.body += comment
        self.body.append(f"{old} = load({name}, {position})")
        self.body += inline(impl.step, [old, value], new, kind)
        self.body.append(f"store({name}, {position}, {new})")
        if impl.finish is not None or name != self.names[target]:
            total, result = self.fresh("sum"), self.fresh()
            lines = [f"{total} = load({name}, j)"]
            lines += (
                inline(impl.finish, [total, f"({count})"], result, kind) if impl.finish else [f"{result} = {total}"]
            )
            lines.append(f"store({self.names[target]}, j, {result})")
            self.nest.after += [*comment, f"for j in range({size}):", *indent(lines, 1)]

    def _share(
        self, target: Variable, name: str, dtype: np.dtype[Any], start: str, fold: Callable[[str, str, str], list[str]]
    ) -> None:
        size = " * ".join(n for n in self.extents.shape(target) if n != "1") or "1"
        self.nest.shared[name] = Shared(name, dtype, target.aval.size, size, start, fold)

    def _shortcut(self, sink: Sink, index: Index, depth: int) -> tuple[str | None, list[str]]:
        """What a sum is if that is finite, and the lines that compute it; the loops from ``depth`` on run if it is not."""
        if sink.scaled is None:
            return None, []
        assert sink.node is not None
        (x,), axes = sink.node.inputs, sink.node.params["axes"]
        outside = self.memo, self.body, self.at.lines
        self.memo, self.body = {}, []
        self.at.lines = self.body
        factor = self.element(sink.scaled.factor, self.at.broadcast(sink.scaled.factor, x, index))
        kept = tuple(v for i, v in enumerate(index) if i not in axes)
        total = self.element(sink.scaled.total, kept)
        known, often = self.fresh(), self.fresh()
        zero = literal(x.aval.dtype.type(0), x.aval.dtype)
        # a sum begins with +0: it is no negative zero
        self.body.append(f"{known} = {zero} {'-' if sink.scaled.negated else '+'} {factor} * {total}")
        extent = " * ".join(self.nest.space) if self.at.flat else self.nest.space[depth]
        self.body.append(f"{often} = sel(isfinite({known}), 0, {extent})")
        self.nest.bounds[depth] = often
        self.nest.divisible = self.nest.divisible and depth > 0
        lines = self.body
        self.memo, self.body, self.at.lines = outside
        return known, lines

    def _finish(self, target: Variable, total: str, count: str, impl: Reduce, end: list[str], kept: Index) -> None:
        result = total
        if impl.finish is not None:
            result = self.fresh()
            kind = "float32" if impl.accumulator(target.aval.dtype) == FLOAT32 else None
            end += inline(impl.finish, [total, f"({count})"], result, kind)
        self._deliver(target, result, end, kept)

    def _deliver(self, target: Variable, value: str, end: list[str], kept: Index) -> None:
        """Put a finished reduction where later stages find it."""
        if self._is_local(target):
            local = self.fresh("r")
            cast = "boolean" if target.aval.dtype == BOOL else target.aval.dtype.name
            end.append(f"{local} = {cast}({value})")
            self.locals[target] = local
            if target in self.names:
                end.append(f"store({self.names[target]}, 0, {local})")
            return
        end.append(f"store({self.names[target]}, {self.at.plain_position(target, kept)}, {value})")

    def _scatter(self, sink: Sink, index: Index) -> None:
        if self.at.flat:
            raise NotFlat
        node = sink.node
        assert node is not None
        out = sink.target
        name = self.names[out]
        x = node.inputs[sink.part]
        value = self.element(x, index)
        self.body += self.comment(node)
        zero = literal(out.aval.dtype.type(0), out.aval.dtype)
        if node.primitive in SCATTERS and out not in self.filled:
            self.filled.add(out)
            size = " * ".join(n for n in self.extents.shape(out) if n != "1") or "1"
            self.nest.before += [*self.comment(node), f"for j in range({size}):", f"    store({name}, j, {zero})"]
        where = self._target_position(sink, node, index)
        if sink.adds or node.primitive in (scatter_add, add_at):
            sign = "|" if out.aval.dtype == BOOL else "+"
            self._share(out, name, out.aval.dtype, zero, lambda old, v, new: [f"{new} = {old} {sign} {v}"])
            old = self.fresh("old")
            self.body.append(f"{old} = load({name}, {where})")
            value = f"{old} {sign} {value}"
        elif node.primitive not in _APART:
            self.nest.divisible = False
        self.body.append(f"store({name}, {where}, {value})")

    def _target_position(self, sink: Sink, node: Node, index: Index) -> str:
        """Where an element of an operand is written to."""
        primitive, params, out = node.primitive, node.params, sink.target
        if primitive is scatter_add or primitive is put:
            return self.element(node.inputs[-1], index)
        if primitive is place:
            index = self.at.sliced(out, params["index"], index)
        elif primitive is place_diagonal:
            index = self.at.diagonal(out, params, index)
        elif primitive is overwrite:
            for step in reversed(self.extents.views[id(node)]):
                index = self.at.source(step, index)
        else:
            axis = params["axis"]
            if primitive is add_at:
                at = self.element(node.inputs[1], index[axis : axis + 1])
            elif primitive is join:
                before_it = node.inputs[: sink.part]
                start = sum(p.aval.shape[axis] for p in before_it)
                formula = " + ".join(self.extents.symbol(p, axis) for p in before_it)
                at = added(self.extents.number(start, formula) if start else "0", index[axis])
            else:  # pile
                at = str(sink.part)
            index = (*index[:axis], at, *index[axis + (primitive is not pile) :])
        return self.at.position_in(out, index)

    # ----------------------------------------------------------------- calls

    def call(self, run: Call) -> list[str]:
        node, kernel = run.node, run.call.kernel
        self.helpers[kernel.name] = kernel.source
        self.extras.update(kernel.extras)
        for a in node.inputs:
            self._must_be_named(a)
        atoms = (*node.inputs, *node.outputs)
        arguments = [self._argument(a, atoms) for a in run.call.arguments]
        return [*self.comment(node), f"{kernel.name}({', '.join(arguments)})"]

    def _argument(self, argument: Any, atoms: tuple[Atom, ...]) -> str:
        """An argument of an array kernel: an array, or a number."""
        if type(argument) is not Folded:
            if isinstance(argument, Extent):
                return self.extents.symbol(argument.atom, argument.axis)
            return self.number(argument, FLOAT64) if type(argument) is float else repr(argument)
        atom = atoms[argument.position]
        symbols = self.extents.shape(atom)
        shape = [" * ".join(symbols[i] for i in group if symbols[i] != "1") or "1" for group in argument.groups]
        return f"carray(data({self.names[atom]}), ({', '.join(shape)}{',' if len(shape) == 1 else ''}))"

    # ----------------------------------------------------------------- the whole

    def emit(self) -> Emitted:
        self.bind_arguments()
        pieces: list[list[str]] = []
        runs: list[Nest | list[str]] = []
        for number, stage in enumerate(self.plan.stages):
            self.stage = number
            runs += (own := [self.call(run) if isinstance(run, Call) else self.loop(run) for run in stage])
            texts = [run.lines() if isinstance(run, Nest) else run for run in own]
            if not self.plan.begins:
                pieces += texts
                continue
            if not number or number in self.plan.begins:
                pieces.append([])
            pieces[-1] += itertools.chain(*texts)
        self.stage = len(self.plan.stages)
        copies = [line for buffer, atom in self.copies for line in self._copy(buffer, atom)]
        results = [
            Temporary(b.name, b.dtype, b.shape, self.extents.shape(a))
            for b, a in zip(self.outputs, self.graph.outputs, strict=True)
            if self.names.get(a) == b.name
        ]
        workspace = lay_out(self.temporaries, [*pieces, copies], not self.plan.begins, results)
        outlined = Outlined(workspace.names)
        if self.plan.begins:
            pieces = [[outlined.call(piece)] for piece in pieces if piece]
        else:
            pieces = [workspace.renamed(piece) for piece in pieces]
        lines = [*workspace.lines, *outlined.addresses(), *itertools.chain(*pieces), *workspace.renamed(copies)]
        written = [b for k, b in enumerate(self.outputs) if k != self.returned]
        result = None if self.returned is None else self.locals[self.graph.outputs[self.returned]]  # type: ignore[index]
        if result is not None:
            lines.append(f"return {result}")
        arguments = [f"a{k}" for k in range(len(self.graph.inputs))]
        arguments += [f"b{k}" for k in range(len(self.captured))]
        arguments += ["extents", "numbers"]
        arguments += [b.name for b in written] + ["work"] * bool(workspace.places)
        shapes = [self.extents.shape(a) for a in self.graph.outputs]
        head = [f"n{k} = load(extents, {k})" for k in range(len(self.extents.values))]
        head += [f"c{k} = load(numbers, {k})" for k in range(len(self.numbers))]
        helpers = "".join(f"{source}\n" for source in self.helpers.values())
        while f"def {self.name}(" in helpers:  # the user's function may be called like a part of this kernel
            self.name += "_"
        body = without_comments(lines)

        def text(statements: list[str], steps: str) -> str:
            whole = [f"def {self.name}({', '.join(arguments)}):", *indent([*head, *(statements or ["pass"])], 1)]
            return helpers + steps + "\n".join(whole) + "\n"

        read: list[Any] = [*self.graph.inputs, *self.captured]
        codes = [f"b:{a.aval.dtype.name}" for a in read]
        codes += ["b:int64", "b:float64"]
        codes += [f"b:{b.dtype.name}" for b in written] + ["b:int8"] * bool(workspace.places)
        codes += ["r:float64"] if self.returned is not None else []
        return Emitted(
            self.name,
            text(body, outlined.source()),
            text(arranged(lines), outlined.listing()),
            len(self.graph.inputs),
            self.captured,
            list(self.extents.values),  # more symbols may be asked for later
            self.numbers,
            self.outputs,
            workspace,
            arguments,
            head,
            body,
            [] if self.plan.begins else [*runs, copies],
            {name: v.aval.dtype for v, name in self.locals.items()},
            result,
            helpers + outlined.source(),
            self.extras,
            shapes,
            list(self.extents.formulas),
            self.returned,
            tuple(codes),
        )

    def _copy(self, buffer: Buffer, atom: Atom) -> list[str]:
        """A result that is an argument, a constant, or a result already: its own copy."""
        self.memo, self.body = {}, []
        self.at.enter((), False, self.body)
        if isinstance(atom, Constant) and atom.is_literal:
            return [f"store({buffer.name}, 0, {self.number(atom.value.item(), atom.aval.dtype)})"]
        if atom in self.locals:
            return [f"store({buffer.name}, 0, {self.locals[atom]})"]
        self._must_be_named(atom)
        size = " * ".join(n for n in self.extents.shape(atom) if n != "1") or "1"
        return [f"for j in range({size}):", f"    store({buffer.name}, j, load({self.names[atom]}, j))"]


def emit(name: str, plan: Plan) -> Emitted:
    """The source of a planned graph."""
    return _Emitter(name, plan).emit()
