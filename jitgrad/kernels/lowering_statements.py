"""Statements of emitted source: control flow as blocks of LLVM IR, names as its values or, where paths meet, as memory."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir as llvm
from numba.core import types
from numba.core.ir import Loc

from jitgrad.kernels.lowering_expressions import (
    OPERATORS,
    Emission,
    Expressions,
    Functions,
    NotPlain,
    Slot,
    Value,
    Variable,
    elements,
    is_number,
)

__all__ = ["Statements"]

Step = Callable[[Emission], None]


def _assigned(statements: Sequence[ast.stmt]) -> list[str]:
    """The names that are assigned somewhere in these statements, in order."""
    found: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return list(found)


class Statements(Expressions):
    """The statements of one function. ``name`` is the function's, for its errors."""

    result: Any = None  # the Numba type of what is returned

    def __init__(self, typing_context: Any, source: Functions, name: str) -> None:
        super().__init__(typing_context, source)
        self.name = name
        self.pending: dict[str, Slot | None] = {}  # names that branches may be the first to assign

    def suite(self, statements: Sequence[ast.stmt]) -> tuple[Step, bool]:
        """What writes statements, and whether control never comes to their end."""
        steps: list[Step] = []
        ends = False
        for statement in statements:
            step, ends = getattr(self, f"_{type(statement).__name__}", self.unknown)(statement)
            steps.append(step)
            if ends:  # what follows is never run
                break

        def emit(e: Emission) -> None:
            for step in steps:
                step(e)

        return emit, ends

    def _Pass(self, node: ast.Pass) -> tuple[Step, bool]:
        return (lambda e: None), False

    def _Expr(self, node: ast.Expr) -> tuple[Step, bool]:
        value = self.value(node.value)

        def emit(e: Emission) -> None:
            value.emit(e)

        return emit, False

    def _Assign(self, node: ast.Assign) -> tuple[Step, bool]:
        if len(node.targets) != 1:
            raise NotPlain
        (target,) = node.targets
        if isinstance(target, ast.Subscript):
            return self._set_item(target, self.value(node.value)), False
        value = self.value(node.value)
        if isinstance(target, ast.Name):
            return self._set(target.id, value), False
        kinds = elements(value.kind)
        if not isinstance(target, ast.Tuple) or len(target.elts) != len(kinds):
            raise NotPlain
        whole = Variable(value.kind)
        steps = []
        for k, (element, kind) in enumerate(zip(target.elts, kinds, strict=True)):
            if not isinstance(element, ast.Name) or not is_number(kind):
                raise NotPlain
            part = Value(kind, lambda e, k=k: e.builder.extract_value(e.values[whole], k))  # type: ignore[misc]
            steps.append(self._set(element.id, part))

        def emit(e: Emission) -> None:
            e.values[whole] = value.emit(e)
            for step in steps:
                step(e)

        return emit, False

    def _AugAssign(self, node: ast.AugAssign) -> tuple[Step, bool]:
        if type(node.op) not in OPERATORS:
            raise NotPlain
        function = OPERATORS[type(node.op)]
        if isinstance(node.target, ast.Name):
            old = self.read(node.target.id)
            if not is_number(old.kind):
                raise NotPlain
            return self._set(node.target.id, self.apply(function, [old, self.value(node.value)])), False
        if not isinstance(node.target, ast.Subscript):
            raise NotPlain
        array, index = self._kept(self.value(node.target.value)), self._kept(self.index(node.target.slice))
        new = self.apply(function, [self.item(array, index), self.value(node.value)])
        return self._store_item(array, index, new), False

    def _set(self, name: str, value: Value) -> Step:
        found = self.env.get(name)
        slot = found.slot if found else None
        if slot is None and name in self.pending:
            slot = self.pending[name]
            if slot is None:
                slot = self.pending[name] = Slot(types.unliteral(value.kind))
        if slot is None:
            variable = self.env[name] = Variable(value.kind)

            def keep(e: Emission) -> None:
                e.values[variable] = value.emit(e)

            return keep
        if slot.kind != types.unliteral(value.kind) or not is_number(slot.kind):
            raise NotPlain
        self.env[name] = Variable(value.kind, slot)
        return lambda e: e.builder.store(e.cast(value, slot.kind), e.slot(slot))

    def _kept(self, value: Value) -> Value:
        """A value that is written once and used more than once in one statement."""
        kept = Variable(value.kind)

        def emit(e: Emission) -> Any:
            if kept not in e.values:
                e.values[kept] = value.emit(e)
            return e.values[kept]

        return Value(value.kind, emit)

    def _set_item(self, target: ast.Subscript, value: Value) -> Step:
        return self._store_item(self.value(target.value), self.index(target.slice), value)

    def _store_item(self, array: Value, index: Value, value: Value) -> Step:
        if not isinstance(array.kind, types.Array) or not is_number(value.kind):
            raise NotPlain
        signature = self.typing.resolve_setitem(array.kind, index.kind, value.kind)
        if signature is None:
            raise NotPlain

        def emit(e: Emission) -> None:
            key = operator.setitem, signature
            implementation = e.implementations.get(key)
            if implementation is None:
                implementation = e.implementations[key] = e.context.get_function(operator.setitem, signature)
            given = [e.cast(v, k) for v, k in zip((array, index, value), signature.args, strict=True)]
            implementation(e.builder, given)

        return emit

    def _Return(self, node: ast.Return) -> tuple[Step, bool]:
        value = self.value(node.value) if node.value is not None else None
        kind = types.unliteral(value.kind) if value else types.none
        if (self.result is not None and self.result != kind) or (value and not is_number(kind)):
            raise NotPlain
        self.result = kind

        def emit(e: Emission) -> None:
            if value is not None:
                e.builder.store(e.cast(value, kind), e.result)
            e.go(e.end)

        return emit, True

    def _Raise(self, node: ast.Raise) -> tuple[Step, bool]:
        given, arguments = node.exc, None
        if isinstance(given, ast.Call):
            if given.keywords or not all(isinstance(a, ast.Constant) for a in given.args):
                raise NotPlain
            given, arguments = given.func, tuple(a.value for a in given.args)  # type: ignore[attr-defined]
        if node.cause is not None or not isinstance(given, ast.Name) or given.id in self.env:
            raise NotPlain
        error = self.source.names.get(given.id)
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise NotPlain
        where = Loc(self.source.filename, node.lineno)

        def emit(e: Emission) -> None:
            e.context.call_conv.return_user_exc(e.builder, error, arguments, loc=where, func_name=self.name)

        return emit, True

    def _Break(self, node: ast.Break) -> tuple[Step, bool]:
        return (lambda e: e.go(e.loops[-1][1])), True

    def _Continue(self, node: ast.Continue) -> tuple[Step, bool]:
        return (lambda e: e.go(e.loops[-1][0])), True

    def _carried(self, names: Sequence[str]) -> Step:
        """Give memory to those of the names that have a value here."""
        moved: list[tuple[Slot, Variable]] = []
        for name in names:
            old = self.env.get(name)
            if old is None:
                continue
            kind = types.unliteral(old.kind)
            if not is_number(kind):
                raise NotPlain
            slot = old.slot
            if slot is None:
                slot = Slot(kind)
                moved.append((slot, old))
            self.env[name] = Variable(kind, slot)

        def emit(e: Emission) -> None:
            for slot, old in moved:
                value = e.context.cast(e.builder, e.values[old], old.kind, slot.kind)
                e.builder.store(value, e.slot(slot))

        return emit

    def _merged(self, *ways: Mapping[str, Variable]) -> None:
        """Go on with the names that have a value whichever way was taken."""
        first, *others = ways
        joined: dict[str, Variable] = {}
        for name, variable in first.items():
            found = [way.get(name) for way in others]
            if all(v is variable for v in found):
                joined[name] = variable
            elif variable.slot is not None and all(v is not None and v.slot is variable.slot for v in found):
                joined[name] = Variable(variable.slot.kind, variable.slot)
        self.env = joined

    def _If(self, node: ast.If) -> tuple[Step, bool]:
        condition = self.condition(node.test)
        names = _assigned([*node.body, *node.orelse])
        enter = self._carried(names)
        outer = self.pending
        self.pending = {**outer, **{n: None for n in names if n not in self.env and n not in outer}}
        before = dict(self.env)
        yes, yes_ends = self.suite(node.body)
        after_yes, self.env = self.env, before
        no, no_ends = self.suite(node.orelse)
        # slots that an outer `if` waits for are known to it now
        self.pending = {name: self.pending[name] for name in outer}
        live = [env for env, ends in ((after_yes, yes_ends), (self.env, no_ends)) if not ends]
        if live:
            self._merged(*live)

        def emit(e: Emission) -> None:
            enter(e)
            then, otherwise, end = e.block("then"), e.block("else"), e.block("endif")
            e.builder.cbranch(condition.emit(e), then, otherwise)
            for block, suite in ((then, yes), (otherwise, no)):
                e.builder.position_at_end(block)
                suite(e)
                e.go(end)
            e.builder.position_at_end(end)
            if yes_ends and no_ends:
                e.builder.unreachable()

        return emit, yes_ends and no_ends

    def _loop(self, names: Sequence[str], body: Sequence[ast.stmt]) -> Step:
        """The body of a loop; names that it is the first to assign are gone after it."""
        before = dict(self.env)
        suite, _ = self.suite(body)
        self.env = {n: Variable(v.slot.kind, v.slot) if v.slot and n in names else v for n, v in before.items()}
        return suite

    def _For(self, node: ast.For) -> tuple[Step, bool]:
        over = node.iter
        if node.orelse or not isinstance(node.target, ast.Name) or node.target.id in self.env:
            raise NotPlain
        if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Name) or over.func.id != "range":
            raise NotPlain
        if over.keywords or not 1 <= len(over.args) <= 3 or "range" in self.env:
            raise NotPlain
        bounds = [self.value(a) for a in over.args]
        if any(types.unliteral(b.kind) != types.int64 for b in bounds):
            raise NotPlain
        by = 1
        if len(bounds) == 3:
            if not isinstance(bounds[2].kind, types.IntegerLiteral) or bounds[2].kind.literal_value == 0:
                raise NotPlain
            by = bounds[2].kind.literal_value
        zero = Value(types.int64, lambda e: e.context.get_constant(types.int64, 0))
        start, stop = (zero, bounds[0]) if len(bounds) == 1 else bounds[:2]
        names = _assigned(node.body)
        enter = self._carried(names)
        counter = Variable(types.int64)
        outer, self.pending = self.pending, {n: s for n, s in self.pending.items() if n != node.target.id}
        self.env[node.target.id] = counter
        suite = self._loop(names, node.body)
        del self.env[node.target.id]
        self.pending = {**outer, **self.pending}

        def emit(e: Emission) -> None:
            builder = e.builder
            first, last = e.cast(start, types.int64), e.cast(stop, types.int64)
            enter(e)
            head, body, latch, end = (e.block(f"for.{n}") for n in ("head", "body", "next", "end"))
            before = builder.block
            builder.branch(head)
            builder.position_at_end(head)
            i = e.values[counter] = builder.phi(first.type)
            i.add_incoming(first, before)
            builder.cbranch(builder.icmp_signed("<" if by > 0 else ">", i, last), body, end)
            builder.position_at_end(body)
            e.loops.append((latch, end))
            suite(e)
            e.loops.pop()
            e.go(latch)
            builder.position_at_end(latch)
            i.add_incoming(builder.add(i, llvm.Constant(i.type, by), flags=["nsw"]), latch)
            builder.branch(head)
            builder.position_at_end(end)

        return emit, False

    def _While(self, node: ast.While) -> tuple[Step, bool]:
        if node.orelse:
            raise NotPlain
        names = _assigned(node.body)
        enter = self._carried(names)
        condition = self.condition(node.test)
        suite = self._loop(names, node.body)

        def emit(e: Emission) -> None:
            enter(e)
            head, body, end = (e.block(f"while.{n}") for n in ("head", "body", "end"))
            e.builder.branch(head)
            e.builder.position_at_end(head)
            e.builder.cbranch(condition.emit(e), body, end)
            e.builder.position_at_end(body)
            e.loops.append((head, end))
            suite(e)
            e.loops.pop()
            e.go(head)
            e.builder.position_at_end(end)

        return emit, False
