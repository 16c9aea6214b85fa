"""Tracing Python arithmetic into LLVM IR, and turning such a trace into a function that Numba code can call.

A *body* is a Python function of :class:`Value` arguments without control flow. Running it once emits its
instructions into the caller's own basic block: there is no callee for Numba to compile, and a loop around it
vectorises. Constants take the type of the other operand, so one body can serve float32 and float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np import numpy_support

F64, F32, I64, I32, I1 = ir.DoubleType(), ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(1)


class Value:
    """An LLVM value and the builder that emits what is done with it."""

    __slots__ = ("builder", "llvm")

    def __init__(self, builder: Any, llvm: Any) -> None:
        self.builder = builder
        self.llvm = llvm

    @property
    def is_float(self) -> bool:
        return self.llvm.type in (F64, F32)

    def lift(self, x: Any) -> Any:
        """The LLVM operand for x: constants get the type of this value."""
        if isinstance(x, Value):
            return x.llvm
        return ir.Constant(self.llvm.type, float(x) if self.is_float else _wrapped(int(x), self.llvm.type.width))

    def lifted(self, x: Any) -> Value:
        """x, a constant, as a Value of this value's type."""
        return Value(self.builder, self.lift(x))

    def _emit(self, on_float: str, on_int: str, a: Any, b: Any) -> Value:
        return Value(self.builder, getattr(self.builder, on_float if self.is_float else on_int)(a, b))

    def _compare(self, op: str, x: Any) -> Value:
        b = self.builder
        return Value(b, (b.fcmp_ordered if self.is_float else b.icmp_signed)(op, self.llvm, self.lift(x)))

    def __add__(self, x: Any) -> Value:
        return self._emit("fadd", "add", self.llvm, self.lift(x))

    def __radd__(self, x: Any) -> Value:
        return self._emit("fadd", "add", self.lift(x), self.llvm)

    def __sub__(self, x: Any) -> Value:
        return self._emit("fsub", "sub", self.llvm, self.lift(x))

    def __rsub__(self, x: Any) -> Value:
        return self._emit("fsub", "sub", self.lift(x), self.llvm)

    def __mul__(self, x: Any) -> Value:
        return self._emit("fmul", "mul", self.llvm, self.lift(x))

    def __rmul__(self, x: Any) -> Value:
        return self._emit("fmul", "mul", self.lift(x), self.llvm)

    def __truediv__(self, x: Any) -> Value:
        return self._emit("fdiv", "", self.llvm, self.lift(x))

    def __rtruediv__(self, x: Any) -> Value:
        return self._emit("fdiv", "", self.lift(x), self.llvm)

    def __neg__(self) -> Value:
        return Value(self.builder, self.builder.fneg(self.llvm) if self.is_float else self.builder.neg(self.llvm))

    def __lshift__(self, n: Any) -> Value:
        return Value(self.builder, self.builder.shl(self.llvm, self.lift(n)))

    def __rshift__(self, n: Any) -> Value:
        """Logical shift."""
        return Value(self.builder, self.builder.lshr(self.llvm, self.lift(n)))

    def __and__(self, x: Any) -> Value:
        return self._emit("", "and_", self.llvm, self.lift(x))

    def __or__(self, x: Any) -> Value:
        return self._emit("", "or_", self.llvm, self.lift(x))

    def __xor__(self, x: Any) -> Value:
        return self._emit("", "xor", self.llvm, self.lift(x))

    # Floating comparisons are ordered: false when an operand is NaN. They give a Value of LLVM's i1.
    def __lt__(self, x: Any) -> Value:
        return self._compare("<", x)

    def __le__(self, x: Any) -> Value:
        return self._compare("<=", x)

    def __gt__(self, x: Any) -> Value:
        return self._compare(">", x)

    def __ge__(self, x: Any) -> Value:
        return self._compare(">=", x)

    def __eq__(self, x: object) -> Value:  # type: ignore[override]
        return self._compare("==", x)

    def __ne__(self, x: object) -> Value:  # type: ignore[override]
        return self._compare("!=", x)

    __hash__ = None  # type: ignore[assignment]


def _wrapped(n: int, width: int) -> int:
    """n as the signed integer with the same `width` bits: llvmlite wants constants signed."""
    return n - (1 << width) if n >> (width - 1) == 1 else n


def call(name: str, *args: Any) -> Value:
    """A call of an LLVM intrinsic overloaded on the type of its arguments; at least one must be a Value."""
    first = next(a for a in args if isinstance(a, Value))
    llvm = [first.lift(a) for a in args]
    ty = first.llvm.type
    fn = first.builder.module.declare_intrinsic(name, [ty], ir.FunctionType(ty, [ty] * len(llvm)))
    return Value(first.builder, first.builder.call(fn, llvm))


def fma(a: Any, b: Any, c: Any) -> Value:
    """a*b + c rounded once."""
    return call("llvm.fma", a, b, c)


def fabs(x: Value) -> Value:
    return call("llvm.fabs", x)


def sqrt(x: Value) -> Value:
    return call("llvm.sqrt", x)


def trunc(x: Value) -> Value:
    return call("llvm.trunc", x)


def is_nan(x: Value) -> Value:
    return Value(x.builder, x.builder.fcmp_unordered("uno", x.llvm, x.llvm))


def copysign(x: Any, y: Any) -> Value:
    return call("llvm.copysign", x, y)


def select(c: Value, a: Any, b: Any) -> Value:
    """a where c holds, else b; at least one of the two must be a Value."""
    first = a if isinstance(a, Value) else b
    return Value(c.builder, c.builder.select(c.llvm, first.lift(a), first.lift(b)))


def at_least(x: Value, bound: float) -> Value:
    """x clamped from below; a NaN passes through."""
    return select(x < bound, bound, x)


def at_most(x: Value, bound: float) -> Value:
    """x clamped from above; a NaN passes through."""
    return select(x > bound, bound, x)


def bits(x: Value) -> Value:
    """The representation of a float as an integer of the same size."""
    return Value(x.builder, x.builder.bitcast(x.llvm, I64 if x.llvm.type == F64 else I32))


def unbits(x: Value) -> Value:
    """The float with the given representation."""
    return Value(x.builder, x.builder.bitcast(x.llvm, F64 if x.llvm.type == I64 else F32))


def resized(x: Value, width: int) -> Value:
    """An integer of another size: zeros are put before it, or its high bits dropped."""
    ty = ir.IntType(width)
    return Value(x.builder, x.builder.zext(x.llvm, ty) if width > x.llvm.type.width else x.builder.trunc(x.llvm, ty))


def to_float(x: Value) -> Value:
    """A non-negative integer as a float64."""
    return Value(x.builder, x.builder.uitofp(x.llvm, F64))


def leading_zeros(x: Value) -> Value:
    """The number of zero bits before the first one; x is not 0."""
    ty = x.llvm.type
    fn = x.builder.module.declare_intrinsic("llvm.ctlz", [ty], ir.FunctionType(ty, [ty, I1]))
    return Value(x.builder, x.builder.call(fn, [x.llvm, ir.Constant(I1, 1)]))


def table_entry(name: str, words: Sequence[int], index: Value) -> Value:
    """words[index] of a constant table of 64-bit integers, which the module gets once under this name."""
    builder = index.builder
    module = builder.module
    if name not in module.globals:
        table = ir.GlobalVariable(module, ir.ArrayType(I64, len(words)), name)
        table.linkage, table.global_constant = "internal", True
        table.initializer = ir.Constant(table.value_type, [ir.Constant(I64, _wrapped(w, 64)) for w in words])
    place = builder.gep(module.globals[name], [ir.Constant(I64, 0), index.llvm], inbounds=True)
    return Value(builder, builder.load(place))


def widen(x: Value) -> Value:
    """float32 to float64, exactly."""
    return Value(x.builder, x.builder.fpext(x.llvm, F64))


def narrow(x: Value) -> Value:
    """float64 rounded to float32."""
    return Value(x.builder, x.builder.fptrunc(x.llvm, F32))


def horner(x: Value, coefficients: Sequence[Any]) -> Value:
    """The polynomial sum of coefficients[k] * x**k."""
    *rest, acc = coefficients
    for c in reversed(rest):
        acc = fma(x, acc, c)
    return cast(Value, acc)


# ----------------------------------------------------------------------------------------------- rare cases


def libm(context: Any, function: Callable[..., float], *args: Value) -> Value:
    """A call of the C function, of float64, behind a function of the module math."""
    implementation = context.get_function(function, types.float64(*[types.float64] * len(args)))
    return Value(args[0].builder, implementation(args[0].builder, [a.llvm for a in args]))


KEPT = "llvm.compiler.used"
"""LLVM's list of what has to be kept; modules with vector variants have it."""


def patched(
    fast: Sequence[Value], rare: Value, x: Value, exact: Sequence[Callable[[Value], Value]]
) -> tuple[Value, ...]:
    """`fast`, with each value replaced by exact[i](x) where `rare` holds; float64.

    The bodies in `exact` become functions of the module, called where needed. LLVM does not vectorise a loop that calls
    a function without a vector variant. So variants with a mask are announced, which test whether any lane is wanted:
    where they are inlined after the vectoriser has run, one test and branch per vector is nearly all that they cost.
    (Tested lane by lane, it was a third of the time of a sine.)
    """
    builder = x.builder
    before = builder.block
    with builder.if_then(rare.llvm, likely=False):
        slow = [_outlined_call(body, x, value) for body, value in zip(exact, fast, strict=True)]
        after = builder.block
    result = []
    for value, other in zip(fast, slow, strict=True):
        phi = builder.phi(F64)
        phi.add_incoming(value.llvm, before)
        phi.add_incoming(other, after)
        result.append(Value(builder, phi))
    return tuple(result)


def _outlined_call(body: Callable[[Value], Value], x: Value, fast: Value) -> Any:
    """body(x) as a call; what the result is instead of, `fast`, is for the variants alone."""
    module = x.builder.module
    name = f"jitgrad_{body.__name__.strip('_')}"

    def emit(builder: Any, x: Any, _: Any) -> None:
        builder.ret(body(Value(builder, x)).llvm)

    outlined = _function(module, name, ir.FunctionType(F64, [F64, F64]), emit, "noinline", "cold", "readnone")
    call = x.builder.call(outlined, [x.llvm, fast.llvm])
    # Half, all and twice a vector register, for float64 and loops over float32.
    widths = (4, 8, 16) if module.triple.startswith(("x86", "i386", "i686", "amd64")) else (2, 4)
    variants = ",".join(f"_ZGV_LLVM_M{w}vv_{name}({_vector_variant(module, outlined, w).name})" for w in widths)
    # llvmlite knows no string attributes.
    set.add(call.attributes, f'"vector-function-abi-variant"="{variants}"')
    return call


def _function(module: Any, name: str, kind: Any, emit: Callable[..., None], *attributes: str) -> Any:
    """The function of this name, which the module gets once."""
    function = cgutils.get_or_insert_function(module, kind, name)
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        for attribute in ("nounwind", *attributes):
            function.attributes.add(attribute)
        emit(ir.IRBuilder(function.append_basic_block()), *function.args)
    return function


def _vector_variant(module: Any, scalar: Any, width: int) -> Any:
    """`scalar` for the lanes of a vector that a mask selects; the others get what is passed as the second operand."""
    vector, integer = ir.VectorType(F64, width), ir.IntType(width)
    kind = ir.FunctionType(vector, [vector, vector, ir.VectorType(I1, width)])

    def emit(builder: Any, x: Any, fast: Any, mask: Any) -> None:
        places = [builder.alloca(vector), builder.alloca(vector)]
        wanted = builder.bitcast(mask, integer)
        before = builder.block
        with builder.if_then(builder.icmp_unsigned("!=", wanted, integer(0)), likely=False):
            builder.store(x, places[0])
            builder.store(fast, places[1])
            numbers = [builder.bitcast(p, F64.as_pointer()) for p in places]
            builder.call(_lane_by_lane(module, scalar), [*numbers, builder.zext(wanted, I32)])
            made = builder.load(places[1])
            after = builder.block
        result = builder.phi(vector)
        result.add_incoming(fast, before)
        result.add_incoming(made, after)
        builder.ret(result)

    variant = _function(module, f"{scalar.name}_{width}", kind, emit, "alwaysinline")
    _keep(module, variant)
    return variant


def _lane_by_lane(module: Any, scalar: Any) -> Any:
    """`scalar` from memory to memory, for those elements whose bits are set in an integer, which is not 0."""

    def emit(builder: Any, x: Any, out: Any, wanted: Any) -> None:
        start = builder.block
        loop, end = builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        left = builder.phi(I32)
        lane = builder.cttz(left, I1(1))
        builder.store(
            builder.call(scalar, [builder.load(builder.gep(a, [lane])) for a in (x, out)]), builder.gep(out, [lane])
        )
        rest = builder.and_(left, builder.sub(left, I32(1)))
        left.add_incoming(wanted, start)
        left.add_incoming(rest, loop)
        builder.cbranch(builder.icmp_unsigned("!=", rest, I32(0)), loop, end)
        builder.position_at_end(end)
        builder.ret_void()

    pointer = F64.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, I32])
    return _function(module, f"{scalar.name}_lanes", kind, emit, "noinline", "cold", "argmemonly")


def _keep(module: Any, function: Any) -> None:
    """Keep a function that nothing calls until the vectoriser has run."""
    kept = module.__dict__.setdefault("_jitgrad_kept", [])
    if function in kept:
        return
    kept.append(function)
    pointer = ir.IntType(8).as_pointer()
    kind = ir.ArrayType(pointer, len(kept))
    used = module.globals.get(KEPT) or ir.GlobalVariable(module, kind, KEPT)
    used.linkage, used.section = "appending", "llvm.metadata"
    used.value_type, used.type = kind, kind.as_pointer()
    used.initializer = kind([f.bitcast(pointer) for f in kept])


# --------------------------------------------------------------------------- from bodies to Numba functions


def plain_number(ty: Any) -> Any:
    """The Numba type if it is a real number that kernels know (a literal loses its value), else None."""
    ty = types.unliteral(ty)
    return ty if isinstance(ty, types.Integer | types.Boolean) or ty in (types.float64, types.float32) else None


def require_numbers(name: str, args: Sequence[Any]) -> None:
    """Raises a TypingError unless all arguments are real numbers."""
    for k, ty in enumerate(args):
        if plain_number(ty) is None:
            raise TypingError(
                f"{name}() takes real numbers (bool, int, float32, float64), not {ty} as argument {k + 1}; "
                "index arrays to their elements and take complex numbers apart first"
            )


def common_type(args: Sequence[Any]) -> Any:
    """NumPy 2's result type of a mixed operation; integer literals are weak."""
    strong = [plain_number(t) for t in args if not isinstance(t, types.IntegerLiteral)]
    weak = [plain_number(t) for t in args if isinstance(t, types.IntegerLiteral)]
    if not strong:
        return types.int64
    dtype = np.result_type(*(numpy_support.as_dtype(t) for t in strong), *([0] if weak else []))
    return numpy_support.from_dtype(dtype)


def floating_type(args: Sequence[Any]) -> Any:
    """As common_type, integers and booleans counting as float64."""
    ty = common_type(args)
    return ty if isinstance(ty, types.Float) else types.float64


def make_intrinsic(
    name: str,
    arity: int,
    emit: Callable[[Any, Any, list[Value]], Any],
    resolve: Callable[[Sequence[Any]], tuple[Any, Sequence[Any]]],
) -> Any:
    """A function for Numba code from a rule for its types and one for its instructions.

    `resolve(argument types)` gives the result type and the types the arguments are cast to (or raises a
    TypingError); `emit(context, signature, values)` the result's LLVM value, from values of these types.
    """

    def typer(typing_context: Any, args: Sequence[Any]) -> Any:
        require_numbers(name, args)
        result, operands = resolve(args)

        def codegen(context: Any, builder: Any, signature: Any, llvm: Sequence[Any]) -> Any:
            cast_to = zip(llvm, signature.args, operands, strict=True)
            return emit(context, signature, [Value(builder, context.cast(builder, v, a, t)) for v, a, t in cast_to])

        return result(*map(types.unliteral, args)), codegen

    # Numba reads the number of arguments off the function itself, so each arity needs its own.
    impls: dict[int, Callable[..., Any]] = {
        1: lambda typingctx, a: typer(typingctx, (a,)),
        2: lambda typingctx, a, b: typer(typingctx, (a, b)),
        3: lambda typingctx, a, b, c: typer(typingctx, (a, b, c)),
    }
    impl = impls[arity]
    impl.__name__ = impl.__qualname__ = name
    return intrinsic(prefer_literal=True)(impl)
