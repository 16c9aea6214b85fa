"""Lowering: functions of emitted source become LLVM IR in one pass over their syntax tree.

Numba's front end works on bytecode: it finds the control flow again, makes single assignments, infers all types to a fixed
point. That takes some milliseconds a line, and emitted source needs none of it: every name is assigned before it is read,
loops count, and a name keeps its type. So a function of the plain part of the language is typed and written out here; what each
operator, cast or call means is still asked of Numba, whose rules and implementations are the only ones.

Whatever is not plain (slices, arrays that are made, a name whose type changes around a loop) raises `_NotPlain`, and the
whole function goes through Numba as it is. Both ways give the same code but for its form.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.errors import NumbaError
from numba.core.ir import Loc
from numba.extending import intrinsic

from jitgrad.kernels.buffer import Part

__all__ = ["Source"]

_OPERATORS: Final[Mapping[type, Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_FOLDED: Final = frozenset({ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.USub})
_BUILTINS: Final = frozenset({"abs", "bool", "float", "int", "len"})
_ATTRIBUTES: Final = frozenset({"shape", "size", "ndim"})
_STATEMENTS: Final = (
    ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.While, ast.If, ast.Return, ast.Raise, ast.Pass, ast.Break, ast.Continue,
)  # fmt: skip
_EXPRESSIONS: Final = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.IfExp, ast.Tuple, ast.Subscript,
    ast.Attribute,
)  # fmt: skip
_DEEPEST: Final = 100  # expressions within expressions: Python's own stack has to hold them
_NUMBERS: Final = (types.Integer, types.Float, types.Boolean)


class _NotPlain(Exception):
    """Numba has to compile this function itself."""


class _Emission:
    """One function while it is written: its builder, and where its values are."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context = context
        self.builder = builder
        self.values: dict[_Variable, Any] = {}
        self.slots: dict[_Slot, Any] = {}
        self.implementations: dict[Any, Any] = {}
        self.loops: list[tuple[Any, Any]] = []  # where `continue` and `break` go
        self.result: Any = None  # where the result is put
        self.end: Any = None  # where `return` goes

    def slot(self, slot: _Slot) -> Any:
        if slot not in self.slots:
            self.slots[slot] = cgutils.alloca_once(self.builder, self.context.get_value_type(slot.kind))
        return self.slots[slot]

    def block(self, name: str) -> Any:
        return self.builder.append_basic_block(name)

    def go(self, block: Any) -> None:
        """Jump, unless something has left already."""
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    def cast(self, value: _Value, kind: Any) -> Any:
        return self.context.cast(self.builder, value.emit(self), value.kind, kind)


class _Slot:
    """Memory of a name that is assigned on several paths; LLVM makes registers of it."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind


class _Variable:
    """What a name stands for from one assignment on; ``kind`` may be a literal."""

    def __init__(self, kind: Any, slot: _Slot | None = None) -> None:
        self.kind = kind
        self.slot = slot


class _Value:
    """An expression: its Numba type, and what writes it out. Like a variable of Numba, a literal keeps its value as its type."""

    def __init__(self, kind: Any, emit: Callable[[_Emission], Any]) -> None:
        self.kind = kind
        self.emit = emit


_Step = Callable[[_Emission], None]


def _is_number(kind: Any) -> bool:
    return isinstance(types.unliteral(kind), _NUMBERS)


def _elements(kind: Any) -> tuple[Any, ...]:
    """The types that the type of a tuple is made of; none for others."""
    return tuple(kind.types) if isinstance(kind, types.Tuple | types.UniTuple) else ()


def _assigned(statements: Sequence[ast.stmt]) -> list[str]:
    """The names that are assigned somewhere in these statements, in order."""
    found: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return list(found)


# Types of operators and of jitgrad's own functions for types of arguments do not change while a process runs.
_signatures: dict[Any, Any] = {}


class _Program:
    """A plain function for some types of arguments."""

    result: Any = None  # its Numba type

    def __init__(self, typing_context: Any, source: Source, definition: ast.FunctionDef, kinds: Sequence[Any]) -> None:
        self.typing = typing_context
        self.source = source
        self.definition = definition
        self.kinds = tuple(kinds)
        self.env: dict[str, _Variable] = {}
        self.pending: dict[str, _Slot | None] = {}  # names that branches may be the first to assign
        self.depth = 0  # of the expression
        names = [a.arg for a in definition.args.args]
        if len(names) != len(self.kinds):
            raise _NotPlain
        self.arguments = [_Variable(kind) for kind in self.kinds]
        self.env = dict(zip(names, self.arguments, strict=True))
        self.body, ends = self._suite(definition.body)
        if self.result is None:
            self.result = types.none
        elif not ends and self.result != types.none:
            raise _NotPlain

    # ------------------------------------------------------------------------------------------- writing it out

    def emit(self, context: Any, builder: Any, arguments: Sequence[Any]) -> Any:
        """Write the function at the builder's place; gives its result."""
        e = _Emission(context, builder)
        e.values.update(zip(self.arguments, arguments, strict=True))
        e.end = e.block("end")
        if self.result != types.none:
            e.result = cgutils.alloca_once(builder, context.get_value_type(self.result))
        self.body(e)
        e.go(e.end)
        builder.position_at_end(e.end)
        return context.get_dummy_value() if e.result is None else builder.load(e.result)

    def call(self, e: _Emission, given: Sequence[_Value]) -> Any:
        """Write a call of the function, which is written to the module when it is first called there."""
        context, builder = e.context, e.builder
        made = builder.module.__dict__.setdefault("_jitgrad_functions", {})
        function = made.get(id(self))
        if function is None:
            convention = context.call_conv
            kind = convention.get_function_type(self.result, self.kinds)
            name = builder.module.get_unique_name(f"jitgrad.{self.definition.name}")
            function = made[id(self)] = llvm.Function(builder.module, kind, name)
            function.linkage = "internal"
            apart = self.source.has_own_memory(self.definition.name)
            names = [a.arg for a in self.definition.args.args]
            convention.decorate_function(function, names, self.kinds, noalias=apart)
            if apart:
                function.attributes.add("noinline")
            inner = llvm.IRBuilder(function.append_basic_block("entry"))
            values = context.get_arg_packer(self.kinds).from_arguments(inner, convention.get_arguments(function))
            result = self.emit(context, inner, values)
            convention.return_value(inner, context.get_return_value(inner, self.result, result))
        arguments = [e.cast(g, k) for g, k in zip(given, self.kinds, strict=True)]
        status, result = context.call_conv.call_function(builder, function, self.result, self.kinds, arguments)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return result

    # ------------------------------------------------------------------------------------------- statements

    def _suite(self, statements: Sequence[ast.stmt]) -> tuple[_Step, bool]:
        """What writes statements, and whether control never comes to their end."""
        steps: list[_Step] = []
        ends = False
        for statement in statements:
            step, ends = getattr(self, f"_{type(statement).__name__}", self._unknown)(statement)
            steps.append(step)
            if ends:  # what follows is never run
                break

        def emit(e: _Emission) -> None:
            for step in steps:
                step(e)

        return emit, ends

    def _unknown(self, node: ast.AST) -> Any:
        raise _NotPlain

    def _Pass(self, node: ast.Pass) -> tuple[_Step, bool]:
        return (lambda e: None), False

    def _Expr(self, node: ast.Expr) -> tuple[_Step, bool]:
        value = self._value(node.value)

        def emit(e: _Emission) -> None:
            value.emit(e)

        return emit, False

    def _Assign(self, node: ast.Assign) -> tuple[_Step, bool]:
        if len(node.targets) != 1:
            raise _NotPlain
        (target,) = node.targets
        if isinstance(target, ast.Subscript):
            return self._set_item(target, self._value(node.value)), False
        value = self._value(node.value)
        if isinstance(target, ast.Name):
            return self._set(target.id, value), False
        kinds = _elements(value.kind)
        if not isinstance(target, ast.Tuple) or len(target.elts) != len(kinds):
            raise _NotPlain
        whole = _Variable(value.kind)
        steps = []
        for k, (element, kind) in enumerate(zip(target.elts, kinds, strict=True)):
            if not isinstance(element, ast.Name) or not _is_number(kind):
                raise _NotPlain
            part = _Value(kind, lambda e, k=k: e.builder.extract_value(e.values[whole], k))  # type: ignore[misc]
            steps.append(self._set(element.id, part))

        def emit(e: _Emission) -> None:
            e.values[whole] = value.emit(e)
            for step in steps:
                step(e)

        return emit, False

    def _AugAssign(self, node: ast.AugAssign) -> tuple[_Step, bool]:
        if type(node.op) not in _OPERATORS:
            raise _NotPlain
        function = _OPERATORS[type(node.op)]
        if isinstance(node.target, ast.Name):
            old = self._read(node.target.id)
            if not _is_number(old.kind):
                raise _NotPlain
            return self._set(node.target.id, self._apply(function, [old, self._value(node.value)])), False
        if not isinstance(node.target, ast.Subscript):
            raise _NotPlain
        array, index = self._kept(self._value(node.target.value)), self._kept(self._index(node.target.slice))
        new = self._apply(function, [self._item(array, index), self._value(node.value)])
        return self._store_item(array, index, new), False

    def _set(self, name: str, value: _Value) -> _Step:
        found = self.env.get(name)
        slot = found.slot if found else None
        if slot is None and name in self.pending:
            slot = self.pending[name]
            if slot is None:
                slot = self.pending[name] = _Slot(types.unliteral(value.kind))
        if slot is None:
            variable = self.env[name] = _Variable(value.kind)

            def keep(e: _Emission) -> None:
                e.values[variable] = value.emit(e)

            return keep
        if slot.kind != types.unliteral(value.kind) or not _is_number(slot.kind):
            raise _NotPlain
        self.env[name] = _Variable(value.kind, slot)
        return lambda e: e.builder.store(e.cast(value, slot.kind), e.slot(slot))

    def _kept(self, value: _Value) -> _Value:
        """A value that is written once and used more than once in one statement."""
        kept = _Variable(value.kind)

        def emit(e: _Emission) -> Any:
            if kept not in e.values:
                e.values[kept] = value.emit(e)
            return e.values[kept]

        return _Value(value.kind, emit)

    def _set_item(self, target: ast.Subscript, value: _Value) -> _Step:
        return self._store_item(self._value(target.value), self._index(target.slice), value)

    def _store_item(self, array: _Value, index: _Value, value: _Value) -> _Step:
        if not isinstance(array.kind, types.Array) or not _is_number(value.kind):
            raise _NotPlain
        signature = self.typing.resolve_setitem(array.kind, index.kind, value.kind)
        if signature is None:
            raise _NotPlain

        def emit(e: _Emission) -> None:
            key = operator.setitem, signature
            implementation = e.implementations.get(key)
            if implementation is None:
                implementation = e.implementations[key] = e.context.get_function(operator.setitem, signature)
            given = [e.cast(v, k) for v, k in zip((array, index, value), signature.args, strict=True)]
            implementation(e.builder, given)

        return emit

    def _Return(self, node: ast.Return) -> tuple[_Step, bool]:
        value = self._value(node.value) if node.value is not None else None
        kind = types.unliteral(value.kind) if value else types.none
        if (self.result is not None and self.result != kind) or (value and not _is_number(kind)):
            raise _NotPlain
        self.result = kind

        def emit(e: _Emission) -> None:
            if value is not None:
                e.builder.store(e.cast(value, kind), e.result)
            e.go(e.end)

        return emit, True

    def _Raise(self, node: ast.Raise) -> tuple[_Step, bool]:
        given, arguments = node.exc, None
        if isinstance(given, ast.Call):
            if given.keywords or not all(isinstance(a, ast.Constant) for a in given.args):
                raise _NotPlain
            given, arguments = given.func, tuple(a.value for a in given.args)  # type: ignore[attr-defined]
        if node.cause is not None or not isinstance(given, ast.Name) or given.id in self.env:
            raise _NotPlain
        error = self.source.names.get(given.id)
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise _NotPlain
        where = Loc(self.source.filename, node.lineno)

        def emit(e: _Emission) -> None:
            name = self.definition.name
            e.context.call_conv.return_user_exc(e.builder, error, arguments, loc=where, func_name=name)

        return emit, True

    def _Break(self, node: ast.Break) -> tuple[_Step, bool]:
        return (lambda e: e.go(e.loops[-1][1])), True

    def _Continue(self, node: ast.Continue) -> tuple[_Step, bool]:
        return (lambda e: e.go(e.loops[-1][0])), True

    def _carried(self, names: Sequence[str]) -> _Step:
        """Give memory to those of the names that have a value here."""
        moved: list[tuple[_Slot, _Variable]] = []
        for name in names:
            old = self.env.get(name)
            if old is None:
                continue
            kind = types.unliteral(old.kind)
            if not _is_number(kind):
                raise _NotPlain
            slot = old.slot
            if slot is None:
                slot = _Slot(kind)
                moved.append((slot, old))
            self.env[name] = _Variable(kind, slot)

        def emit(e: _Emission) -> None:
            for slot, old in moved:
                value = e.context.cast(e.builder, e.values[old], old.kind, slot.kind)
                e.builder.store(value, e.slot(slot))

        return emit

    def _merged(self, *ways: Mapping[str, _Variable]) -> None:
        """Go on with the names that have a value whichever way was taken."""
        first, *others = ways
        joined: dict[str, _Variable] = {}
        for name, variable in first.items():
            found = [way.get(name) for way in others]
            if all(v is variable for v in found):
                joined[name] = variable
            elif variable.slot is not None and all(v is not None and v.slot is variable.slot for v in found):
                joined[name] = _Variable(variable.slot.kind, variable.slot)
        self.env = joined

    def _If(self, node: ast.If) -> tuple[_Step, bool]:
        condition = self._condition(node.test)
        names = _assigned([*node.body, *node.orelse])
        enter = self._carried(names)
        outer = self.pending
        self.pending = {**outer, **{n: None for n in names if n not in self.env and n not in outer}}
        before = dict(self.env)
        yes, yes_ends = self._suite(node.body)
        after_yes, self.env = self.env, before
        no, no_ends = self._suite(node.orelse)
        # slots that an outer `if` waits for are known to it now
        self.pending = {name: self.pending[name] for name in outer}
        live = [env for env, ends in ((after_yes, yes_ends), (self.env, no_ends)) if not ends]
        if live:
            self._merged(*live)

        def emit(e: _Emission) -> None:
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

    def _loop(self, names: Sequence[str], body: Sequence[ast.stmt]) -> _Step:
        """The body of a loop; names that it is the first to assign are gone after it."""
        before = dict(self.env)
        suite, _ = self._suite(body)
        self.env = {n: _Variable(v.slot.kind, v.slot) if v.slot and n in names else v for n, v in before.items()}
        return suite

    def _For(self, node: ast.For) -> tuple[_Step, bool]:
        over = node.iter
        if node.orelse or not isinstance(node.target, ast.Name) or node.target.id in self.env:
            raise _NotPlain
        if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Name) or over.func.id != "range":
            raise _NotPlain
        if over.keywords or not 1 <= len(over.args) <= 3 or "range" in self.env:
            raise _NotPlain
        bounds = [self._value(a) for a in over.args]
        if any(types.unliteral(b.kind) != types.int64 for b in bounds):
            raise _NotPlain
        by = 1
        if len(bounds) == 3:
            if not isinstance(bounds[2].kind, types.IntegerLiteral) or bounds[2].kind.literal_value == 0:
                raise _NotPlain
            by = bounds[2].kind.literal_value
        zero = _Value(types.int64, lambda e: e.context.get_constant(types.int64, 0))
        start, stop = (zero, bounds[0]) if len(bounds) == 1 else bounds[:2]
        names = _assigned(node.body)
        enter = self._carried(names)
        counter = _Variable(types.int64)
        outer, self.pending = self.pending, {n: s for n, s in self.pending.items() if n != node.target.id}
        self.env[node.target.id] = counter
        suite = self._loop(names, node.body)
        del self.env[node.target.id]
        self.pending = {**outer, **self.pending}

        def emit(e: _Emission) -> None:
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

    def _While(self, node: ast.While) -> tuple[_Step, bool]:
        if node.orelse:
            raise _NotPlain
        names = _assigned(node.body)
        enter = self._carried(names)
        condition = self._condition(node.test)
        suite = self._loop(names, node.body)

        def emit(e: _Emission) -> None:
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

    # ------------------------------------------------------------------------------------------- expressions

    def _value(self, node: ast.expr) -> _Value:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _NotPlain
        value: _Value = getattr(self, f"_{type(node).__name__}", self._unknown)(node)
        self.depth -= 1
        return value

    def _read(self, name: str) -> _Value:
        variable = self.env.get(name)
        if variable is None:
            number = self.source.names.get(name)
            if type(number) is not float:
                raise _NotPlain
            return _constant(number)
        slot = variable.slot
        if isinstance(variable.kind, types.Literal):
            return _constant(variable.kind.literal_value)
        if slot is not None:
            return _Value(slot.kind, lambda e: e.builder.load(e.slot(slot)))
        return _Value(variable.kind, lambda e: e.values[variable])

    def _Name(self, node: ast.Name) -> _Value:
        return self._read(node.id)

    def _Constant(self, node: ast.Constant) -> _Value:
        return _constant(node.value)

    def _Tuple(self, node: ast.Tuple) -> _Value:
        parts = [self._value(a) for a in node.elts]
        if not parts or not all(_is_number(p.kind) for p in parts):
            raise _NotPlain
        kinds = [types.unliteral(p.kind) for p in parts]
        kind = types.BaseTuple.from_types(kinds)

        def emit(e: _Emission) -> Any:
            given = [e.cast(p, k) for p, k in zip(parts, kinds, strict=True)]
            return e.context.make_tuple(e.builder, kind, given)

        return _Value(kind, emit)

    def _BinOp(self, node: ast.BinOp) -> _Value:
        number = _folded(node)
        if number is not None:
            return _constant(number)
        if type(node.op) not in _OPERATORS:
            raise _NotPlain
        return self._apply(_OPERATORS[type(node.op)], [self._value(node.left), self._value(node.right)])

    def _UnaryOp(self, node: ast.UnaryOp) -> _Value:
        number = _folded(node)
        if number is not None:
            return _constant(number)
        return self._apply(_OPERATORS[type(node.op)], [self._value(node.operand)])

    def _Compare(self, node: ast.Compare) -> _Value:
        if len(node.ops) != 1 or type(node.ops[0]) not in _OPERATORS:
            raise _NotPlain
        return self._apply(_OPERATORS[type(node.ops[0])], [self._value(node.left), self._value(node.comparators[0])])

    def _condition(self, node: ast.expr) -> _Value:
        """Something that is true or false, as one bit."""
        value = self._value(node)
        if not _is_number(value.kind):
            raise _NotPlain
        if not isinstance(types.unliteral(value.kind), types.Boolean):
            value = self._apply(bool, [value])
        return _Value(types.boolean, lambda e: e.cast(value, types.boolean))

    def _BoolOp(self, node: ast.BoolOp) -> _Value:
        values = [self._value(v) for v in node.values]
        if not all(isinstance(types.unliteral(v.kind), types.Boolean) for v in values):
            raise _NotPlain
        stops = isinstance(node.op, ast.Or)

        def emit(e: _Emission) -> Any:
            end, found = e.block("bool.end"), []
            for value in values[:-1]:
                given = e.cast(value, types.boolean)
                found.append((given, e.builder.block))
                more = e.block("bool.more")
                e.builder.cbranch(given, *((end, more) if stops else (more, end)))
                e.builder.position_at_end(more)
            found.append((e.cast(values[-1], types.boolean), e.builder.block))
            return _joined(e, end, found)

        return _Value(types.boolean, emit)

    def _IfExp(self, node: ast.IfExp) -> _Value:
        condition = self._condition(node.test)
        yes, no = self._value(node.body), self._value(node.orelse)
        kind = types.unliteral(self.typing.unify_types(types.unliteral(yes.kind), types.unliteral(no.kind)))
        if not _is_number(kind) or not _is_number(yes.kind) or not _is_number(no.kind):
            raise _NotPlain

        def emit(e: _Emission) -> Any:
            then, otherwise, end = e.block("either.then"), e.block("either.else"), e.block("either.end")
            e.builder.cbranch(condition.emit(e), then, otherwise)
            e.builder.position_at_end(then)
            first = e.cast(yes, kind), e.builder.block
            e.builder.branch(end)
            e.builder.position_at_end(otherwise)
            return _joined(e, end, [first, (e.cast(no, kind), e.builder.block)])

        return _Value(kind, emit)

    def _Attribute(self, node: ast.Attribute) -> _Value:
        value = self._value(node.value)
        if node.attr not in _ATTRIBUTES or not isinstance(value.kind, types.Array):
            raise _NotPlain
        kind = self.typing.resolve_getattr(value.kind, node.attr)
        if not _is_number(kind) and not _elements(kind):
            raise _NotPlain

        def emit(e: _Emission) -> Any:
            read = e.context.get_getattr(value.kind, node.attr)
            return read(e.context, e.builder, value.kind, value.emit(e), node.attr)

        return _Value(kind, emit)

    def _index(self, node: ast.expr) -> _Value:
        index = self._value(node)
        kinds = _elements(index.kind) or (index.kind,)
        if not all(isinstance(types.unliteral(k), types.Integer) for k in kinds):
            raise _NotPlain
        return index

    def _Subscript(self, node: ast.Subscript) -> _Value:
        value, index = self._value(node.value), self._index(node.slice)
        kinds, at = _elements(value.kind), index.kind
        if kinds:
            if not isinstance(at, types.IntegerLiteral) or not -len(kinds) <= at.literal_value < len(kinds):
                raise _NotPlain
            place = at.literal_value % len(kinds)
            if not _is_number(kinds[place]):
                raise _NotPlain
            return _Value(kinds[place], lambda e: e.builder.extract_value(value.emit(e), place))
        return self._item(value, index)

    def _item(self, array: _Value, index: _Value) -> _Value:
        if not isinstance(array.kind, types.Array):
            raise _NotPlain
        made = self._apply(operator.getitem, [array, index], views=True)
        if not isinstance(made.kind, types.Array):
            return made

        def emit(e: _Emission) -> Any:
            # the view is borrowed of its array, which whoever called the function keeps
            view = made.emit(e)
            e.context.nrt.decref(e.builder, made.kind, view)
            return view

        return _Value(made.kind, emit)

    def _Call(self, node: ast.Call) -> _Value:
        if not isinstance(node.func, ast.Name) or node.keywords or node.func.id in self.env:
            raise _NotPlain
        name = node.func.id
        given = [self._value(a) for a in node.args]
        if name in self.source.names:
            program = self.source.program(self.typing, name, [types.unliteral(g.kind) for g in given])
            if program is not None:
                called = program
                return _Value(called.result, lambda e: called.call(e, given))
            function = self.source.for_numba.get(name, self.source.names[name])
        elif name in _BUILTINS:
            function = getattr(builtins, name)
        else:
            raise _NotPlain
        return self._apply(function, given, arrays=name == "carray")

    def _apply(self, function: Any, given: Sequence[_Value], arrays: bool = False, views: bool = False) -> _Value:
        """A call of anything that Numba knows."""
        kinds = tuple(g.kind for g in given)
        kind = self.typing.resolve_value_type(function)
        signature = None
        fixed = not isinstance(kind, types.Dispatcher)
        if fixed:
            signature = _signatures.get((function, kinds))
        if signature is None:
            signature = self.typing.resolve_function_type(kind, kinds, {})
            if signature is None or signature.recvr is not None:
                raise _NotPlain
            if not all(isinstance(a, types.Omitted) for a in signature.args[len(given) :]):
                raise _NotPlain
            if any(isinstance(a, types.StarArgTuple | types.StarArgUniTuple) for a in signature.args):
                raise _NotPlain
            if fixed:
                _signatures[function, kinds] = signature
        result = signature.return_type
        known = _is_number(result) or result == types.none or isinstance(result, types.CPointer | Part)
        known = known or (_elements(result) != () and all(map(_is_number, _elements(result))))
        if not known and not ((arrays or views) and isinstance(result, types.Array)):
            raise _NotPlain
        chosen = signature

        def emit(e: _Emission) -> Any:
            key = kind, chosen
            implementation = e.implementations.get(key)
            if implementation is None:
                implementation = e.implementations[key] = e.context.get_function(kind, chosen)
            values = [e.cast(g, k) for g, k in zip(given, chosen.args, strict=False)]
            defaults = chosen.args[len(given) :]
            values += [e.context.get_constant_generic(e.builder, k, k.value) for k in defaults]
            return implementation(e.builder, values)

        return _Value(result, emit)


def _joined(e: _Emission, end: Any, found: list[tuple[Any, Any]]) -> Any:
    """Go to ``end``, with the value of the way that was taken."""
    e.builder.branch(end)
    e.builder.position_at_end(end)
    phi = e.builder.phi(found[0][0].type)
    for value, block in found:
        phi.add_incoming(value, block)
    return phi


def _folded(node: ast.expr) -> Any:
    """The number that Python computes when it compiles an expression of numbers, as Numba gets to see it."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) in (int, float) else None
    if isinstance(node, ast.UnaryOp):
        operands = [_folded(node.operand)]
    elif isinstance(node, ast.BinOp):
        operands = [_folded(node.left), _folded(node.right)]
    else:
        return None
    if None in operands:
        return None
    if type(node.op) not in _FOLDED:
        raise _NotPlain
    return _OPERATORS[type(node.op)](*operands)


def _constant(value: Any) -> _Value:
    if type(value) is float:
        return _Value(types.float64, lambda e: e.context.get_constant(types.float64, value))
    if type(value) is bool or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        kind = types.literal(value)
        return _Value(kind, lambda e: e.context.get_constant_generic(e.builder, kind, value))
    raise _NotPlain


def _may_be_plain(definition: ast.FunctionDef) -> bool:
    """Whether a look at the syntax leaves the chance; types are not known yet."""
    a = definition.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults or definition.decorator_list:
        return False
    for node in ast.walk(definition):
        if isinstance(node, ast.stmt) and node is not definition and not isinstance(node, _STATEMENTS):
            return False
        if isinstance(node, ast.expr) and not isinstance(node, _EXPRESSIONS):
            return False
        if isinstance(node, ast.Attribute) and node.attr not in _ATTRIBUTES:
            return False
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and type(node.slice.value) is not int
        ):
            return False
    return True


class Source:
    """The functions of a source text, defined in the namespace ``names``; those but ``main`` are made ready to be called from
    compiled code, by ``called``. ``has_own_memory``: whether the arguments of a function never overlap."""

    def __init__(
        self,
        text: str,
        filename: str,
        names: dict[str, Any],
        called: Callable[[Any], Any],
        has_own_memory: Callable[[str], bool],
        main: str | None = None,
    ) -> None:
        self.filename = filename
        self.names = names
        self.has_own_memory = has_own_memory
        tree = ast.parse(text)
        definitions = [d for d in tree.body if isinstance(d, ast.FunctionDef)]
        self._definitions = {d.name: d for d in definitions if _may_be_plain(d)}
        self._programs: dict[Any, _Program | None] = {}
        exec(compile(tree, filename, "exec"), names)
        self.for_numba = {d.name: called(names[d.name]) for d in definitions if d.name != main}
        for name, original in self.for_numba.items():
            names[name] = called(self.shell(name, original)) if name in self._definitions else original

    def program(self, typing_context: Any, name: str, kinds: Sequence[Any]) -> _Program | None:
        """The function for arguments of these types, if it is plain."""
        definition = self._definitions.get(name)
        if definition is None:
            return None
        key = (name, *kinds)
        if key not in self._programs:
            self._programs[key] = None  # while it is made: a function that calls itself is not plain
            with contextlib.suppress(_NotPlain, NumbaError):
                self._programs[key] = _Program(typing_context, self, definition, kinds)
        return self._programs[key]

    def forget(self) -> None:
        """Drop what is only needed to compile: Numba keeps intrinsics for ever."""
        self._programs.clear()
        self._definitions.clear()

    def shell(self, name: str, original: Any) -> Any:
        """The function with all of its body in one intrinsic, for Numba to compile; ``original`` is called for types of
        which it turns out not to be plain."""

        def typed(typing_context: Any, *kinds: Any) -> Any:
            program = self.program(typing_context, name, kinds)
            if program is not None:
                plain = program
                return plain.result(*kinds), lambda context, builder, _, args: plain.emit(context, builder, args)
            kind = typing_context.resolve_value_type(original)
            signature = typing_context.resolve_function_type(kind, kinds, {})

            def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
                given = zip(args, kinds, signature.args, strict=True)
                cast = [context.cast(builder, value, own, wanted) for value, own, wanted in given]
                return context.get_function(kind, signature)(builder, cast)

            return signature.return_type(*kinds), generate

        head = "".join(f", {a.arg}" for a in self._definitions[name].args.args)
        scope: dict[str, Any] = {"typed": typed}
        exec(f"def body(typing_context{head}):\n    return typed(typing_context{head})", scope)
        scope = {"__name__": self.names["__name__"], "body": intrinsic(scope["body"])}
        exec(compile(f"def {name}({head[2:]}):\n    return body({head[2:]})\n", self.filename, "exec"), scope)
        return scope[name]
