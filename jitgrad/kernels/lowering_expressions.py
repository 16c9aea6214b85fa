"""Expressions of emitted source: each is typed by Numba's rules, and knows how to write itself as LLVM IR."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from numba.core import cgutils, types

from jitgrad.kernels.buffer import Part

__all__ = [
    "ATTRIBUTES",
    "OPERATORS",
    "Emission",
    "Expressions",
    "Functions",
    "NotPlain",
    "Slot",
    "Value",
    "Variable",
    "elements",
    "is_number",
]

OPERATORS: Final[Mapping[type, Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_FOLDED: Final = frozenset({ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.USub})
_BUILTINS: Final = frozenset({"abs", "bool", "float", "int", "len"})
ATTRIBUTES: Final = frozenset({"shape", "size", "ndim"})
_DEEPEST: Final = 100  # expressions within expressions: Python's own stack has to hold them
_NUMBERS: Final = (types.Integer, types.Float, types.Boolean)


class NotPlain(Exception):
    """Numba has to compile this function itself."""


class Emission:
    """One function while it is written: its builder, and where its values are."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context = context
        self.builder = builder
        self.values: dict[Variable, Any] = {}
        self.slots: dict[Slot, Any] = {}
        self.implementations: dict[Any, Any] = {}
        self.loops: list[tuple[Any, Any]] = []  # where `continue` and `break` go
        self.result: Any = None  # where the result is put
        self.end: Any = None  # where `return` goes

    def slot(self, slot: Slot) -> Any:
        if slot not in self.slots:
            self.slots[slot] = cgutils.alloca_once(self.builder, self.context.get_value_type(slot.kind))
        return self.slots[slot]

    def block(self, name: str) -> Any:
        return self.builder.append_basic_block(name)

    def go(self, block: Any) -> None:
        """Jump, unless something has left already."""
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    def cast(self, value: Value, kind: Any) -> Any:
        return self.context.cast(self.builder, value.emit(self), value.kind, kind)


class Slot:
    """Memory of a name that is assigned on several paths; LLVM makes registers of it."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind


class Variable:
    """What a name stands for from one assignment on; ``kind`` may be a literal."""

    def __init__(self, kind: Any, slot: Slot | None = None) -> None:
        self.kind = kind
        self.slot = slot


class Value:
    """An expression: its Numba type, and what writes it out. Like a variable of Numba, a literal keeps its value as its type."""

    def __init__(self, kind: Any, emit: Callable[[Emission], Any]) -> None:
        self.kind = kind
        self.emit = emit


class Callee(Protocol):
    """A plain function for some types of arguments, to be called."""

    result: Any  # its Numba type

    def call(self, e: Emission, given: Sequence[Value]) -> Any:
        """Write a call of it."""


class Functions(Protocol):
    """What names in a source text mean."""

    filename: str
    names: dict[str, Any]
    for_numba: dict[str, Any]  # functions of the text as Numba compiles them

    def program(self, typing_context: Any, name: str, kinds: Sequence[Any]) -> Callee | None:
        """A function of the text for arguments of these types, if it is plain."""


def is_number(kind: Any) -> bool:
    return isinstance(types.unliteral(kind), _NUMBERS)


def elements(kind: Any) -> tuple[Any, ...]:
    """The types that the type of a tuple is made of; none for others."""
    return tuple(kind.types) if isinstance(kind, types.Tuple | types.UniTuple) else ()


# Types of operators and of jitgrad's own functions for types of arguments do not change while a process runs.
_signatures: dict[Any, Any] = {}


class Expressions:
    """The expressions of one function. ``env`` is what its names stand for at the place that has been reached."""

    def __init__(self, typing_context: Any, source: Functions) -> None:
        self.typing = typing_context
        self.source = source
        self.env: dict[str, Variable] = {}
        self.depth = 0  # of the expression

    def unknown(self, node: ast.AST) -> Any:
        raise NotPlain

    def value(self, node: ast.expr) -> Value:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise NotPlain
        value: Value = getattr(self, f"_{type(node).__name__}", self.unknown)(node)
        self.depth -= 1
        return value

    def read(self, name: str) -> Value:
        variable = self.env.get(name)
        if variable is None:
            number = self.source.names.get(name)
            if type(number) is not float:
                raise NotPlain
            return _constant(number)
        slot = variable.slot
        if isinstance(variable.kind, types.Literal):
            return _constant(variable.kind.literal_value)
        if slot is not None:
            return Value(slot.kind, lambda e: e.builder.load(e.slot(slot)))
        return Value(variable.kind, lambda e: e.values[variable])

    def _Name(self, node: ast.Name) -> Value:
        return self.read(node.id)

    def _Constant(self, node: ast.Constant) -> Value:
        return _constant(node.value)

    def _Tuple(self, node: ast.Tuple) -> Value:
        parts = [self.value(a) for a in node.elts]
        if not parts or not all(is_number(p.kind) for p in parts):
            raise NotPlain
        kinds = [types.unliteral(p.kind) for p in parts]
        kind = types.BaseTuple.from_types(kinds)

        def emit(e: Emission) -> Any:
            given = [e.cast(p, k) for p, k in zip(parts, kinds, strict=True)]
            return e.context.make_tuple(e.builder, kind, given)

        return Value(kind, emit)

    def _BinOp(self, node: ast.BinOp) -> Value:
        number = _folded(node)
        if number is not None:
            return _constant(number)
        if type(node.op) not in OPERATORS:
            raise NotPlain
        return self.apply(OPERATORS[type(node.op)], [self.value(node.left), self.value(node.right)])

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:
        number = _folded(node)
        if number is not None:
            return _constant(number)
        return self.apply(OPERATORS[type(node.op)], [self.value(node.operand)])

    def _Compare(self, node: ast.Compare) -> Value:
        if len(node.ops) != 1 or type(node.ops[0]) not in OPERATORS:
            raise NotPlain
        return self.apply(OPERATORS[type(node.ops[0])], [self.value(node.left), self.value(node.comparators[0])])

    def condition(self, node: ast.expr) -> Value:
        """Something that is true or false, as one bit."""
        value = self.value(node)
        if not is_number(value.kind):
            raise NotPlain
        if not isinstance(types.unliteral(value.kind), types.Boolean):
            value = self.apply(bool, [value])
        return Value(types.boolean, lambda e: e.cast(value, types.boolean))

    def _BoolOp(self, node: ast.BoolOp) -> Value:
        values = [self.value(v) for v in node.values]
        if not all(isinstance(types.unliteral(v.kind), types.Boolean) for v in values):
            raise NotPlain
        stops = isinstance(node.op, ast.Or)

        def emit(e: Emission) -> Any:
            end, found = e.block("bool.end"), []
            for value in values[:-1]:
                given = e.cast(value, types.boolean)
                found.append((given, e.builder.block))
                more = e.block("bool.more")
                e.builder.cbranch(given, *((end, more) if stops else (more, end)))
                e.builder.position_at_end(more)
            found.append((e.cast(values[-1], types.boolean), e.builder.block))
            return _joined(e, end, found)

        return Value(types.boolean, emit)

    def _IfExp(self, node: ast.IfExp) -> Value:
        condition = self.condition(node.test)
        yes, no = self.value(node.body), self.value(node.orelse)
        kind = types.unliteral(self.typing.unify_types(types.unliteral(yes.kind), types.unliteral(no.kind)))
        if not is_number(kind) or not is_number(yes.kind) or not is_number(no.kind):
            raise NotPlain

        def emit(e: Emission) -> Any:
            then, otherwise, end = e.block("either.then"), e.block("either.else"), e.block("either.end")
            e.builder.cbranch(condition.emit(e), then, otherwise)
            e.builder.position_at_end(then)
            first = e.cast(yes, kind), e.builder.block
            e.builder.branch(end)
            e.builder.position_at_end(otherwise)
            return _joined(e, end, [first, (e.cast(no, kind), e.builder.block)])

        return Value(kind, emit)

    def _Attribute(self, node: ast.Attribute) -> Value:
        value = self.value(node.value)
        if node.attr not in ATTRIBUTES or not isinstance(value.kind, types.Array):
            raise NotPlain
        kind = self.typing.resolve_getattr(value.kind, node.attr)
        if not is_number(kind) and not elements(kind):
            raise NotPlain

        def emit(e: Emission) -> Any:
            read = e.context.get_getattr(value.kind, node.attr)
            return read(e.context, e.builder, value.kind, value.emit(e), node.attr)

        return Value(kind, emit)

    def index(self, node: ast.expr) -> Value:
        index = self.value(node)
        kinds = elements(index.kind) or (index.kind,)
        if not all(isinstance(types.unliteral(k), types.Integer) for k in kinds):
            raise NotPlain
        return index

    def _Subscript(self, node: ast.Subscript) -> Value:
        value, index = self.value(node.value), self.index(node.slice)
        kinds, at = elements(value.kind), index.kind
        if kinds:
            if not isinstance(at, types.IntegerLiteral) or not -len(kinds) <= at.literal_value < len(kinds):
                raise NotPlain
            place = at.literal_value % len(kinds)
            if not is_number(kinds[place]):
                raise NotPlain
            return Value(kinds[place], lambda e: e.builder.extract_value(value.emit(e), place))
        return self.item(value, index)

    def item(self, array: Value, index: Value) -> Value:
        if not isinstance(array.kind, types.Array):
            raise NotPlain
        made = self.apply(operator.getitem, [array, index], views=True)
        if not isinstance(made.kind, types.Array):
            return made

        def emit(e: Emission) -> Any:
            # the view is borrowed of its array, which whoever called the function keeps
            view = made.emit(e)
            e.context.nrt.decref(e.builder, made.kind, view)
            return view

        return Value(made.kind, emit)

    def _Call(self, node: ast.Call) -> Value:
        if not isinstance(node.func, ast.Name) or node.keywords or node.func.id in self.env:
            raise NotPlain
        name = node.func.id
        given = [self.value(a) for a in node.args]
        if name in self.source.names:
            program = self.source.program(self.typing, name, [types.unliteral(g.kind) for g in given])
            if program is not None:
                called = program
                return Value(called.result, lambda e: called.call(e, given))
            function = self.source.for_numba.get(name, self.source.names[name])
        elif name in _BUILTINS:
            function = getattr(builtins, name)
        else:
            raise NotPlain
        return self.apply(function, given, arrays=name == "carray")

    def apply(self, function: Any, given: Sequence[Value], arrays: bool = False, views: bool = False) -> Value:
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
                raise NotPlain
            if not all(isinstance(a, types.Omitted) for a in signature.args[len(given) :]):
                raise NotPlain
            if any(isinstance(a, types.StarArgTuple | types.StarArgUniTuple) for a in signature.args):
                raise NotPlain
            if fixed:
                _signatures[function, kinds] = signature
        result = signature.return_type
        known = is_number(result) or result == types.none or isinstance(result, types.CPointer | Part)
        known = known or (elements(result) != () and all(map(is_number, elements(result))))
        if not known and not ((arrays or views) and isinstance(result, types.Array)):
            raise NotPlain
        chosen = signature

        def emit(e: Emission) -> Any:
            key = kind, chosen
            implementation = e.implementations.get(key)
            if implementation is None:
                implementation = e.implementations[key] = e.context.get_function(kind, chosen)
            values = [e.cast(g, k) for g, k in zip(given, chosen.args, strict=False)]
            defaults = chosen.args[len(given) :]
            values += [e.context.get_constant_generic(e.builder, k, k.value) for k in defaults]
            return implementation(e.builder, values)

        return Value(result, emit)


def _joined(e: Emission, end: Any, found: list[tuple[Any, Any]]) -> Any:
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
        raise NotPlain
    return OPERATORS[type(node.op)](*operands)


def _constant(value: Any) -> Value:
    if type(value) is float:
        return Value(types.float64, lambda e: e.context.get_constant(types.float64, value))
    if type(value) is bool or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        kind = types.literal(value)
        return Value(kind, lambda e: e.context.get_constant_generic(e.builder, kind, value))
    raise NotPlain
