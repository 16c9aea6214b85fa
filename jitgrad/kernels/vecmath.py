"""Elementary functions for compiled loops: what the names in scalar bodies mean inside Numba.

The functions of the C library cannot be vectorised, so the elementary ones are written out, in
:mod:`jitgrad.kernels.vector_bodies`. Nearly all rely on fma; on a target without it, the C library is called.

Errors stay below 2 units in the last place on the whole range (below 4 for tan, erfc, asinh, acosh and atanh), zeros,
subnormals, infinities and NaNs included. float32 is rounded from float64, but for exp, which has a body of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir
from numba.core import types
from numba.core.errors import TypingError

from jitgrad.kernels import vector_bodies as bodies
from jitgrad.kernels.irbuild import (
    F64,
    Value,
    at_most,
    bits,
    call,
    common_type,
    copysign,
    fabs,
    floating_type,
    fma,
    is_nan,
    libm,
    make_intrinsic,
    narrow,
    plain_number,
    select,
    sqrt,
    unbits,
    widen,
)
from jitgrad.kernels.vector_bodies import INF, Body

__all__ = ["NAMESPACE", "has_fma"]

# -------------------------------------------------------------------------------------- functions of floats


@functools.cache
def _target_has_fma(triple: str, features: str) -> bool:
    arch = triple.split("-")[0]
    if arch.startswith(("x86", "i386", "i686", "amd64")):
        listed = features.split(",")
        return "+fma" in listed and "-avx" not in listed
    return arch.startswith(("aarch64", "arm64", "ppc64", "powerpc64", "s390x"))


def has_fma(context: Any) -> bool:
    """Whether llvm.fma is an instruction of the target; elsewhere it is a call, slower than libm's exp."""
    triple, _, features = context.codegen().magic_tuple()
    return _target_has_fma(triple, features)


def _floating(args: Sequence[Any]) -> tuple[Any, list[Any]]:
    ty = floating_type(args)
    return ty, [ty] * len(args)


def _floating_pair(args: Sequence[Any]) -> tuple[Any, list[Any]]:
    ty, operands = _floating(args)
    return types.UniTuple(ty, 2), operands


def _float_function(
    name: str,
    body: Body,
    arity: int = 1,
    *,
    body32: Body | None = None,
    fallback: Callable[..., Any] | None = None,
    pair: bool = False,
) -> Any:
    """A function of floats from its body in float64.

    The fallback, by default the function in math, takes a code generation context too; it serves targets without fma.
    Without a body of its own, float32 is computed in float64 and rounded.
    """

    def emit64(context: Any, values: Sequence[Value]) -> Any:
        if has_fma(context):
            return body(*values)
        return fallback(context, *values) if fallback else libm(context, getattr(math, name), *values)

    def emit(context: Any, signature: Any, values: list[Value]) -> Any:
        result: Any
        if values[0].llvm.type == F64:
            result = emit64(context, values)
        elif body32 is not None and has_fma(context):
            result = body32(*values)
        else:
            result = emit64(context, [widen(v) for v in values])
            result = tuple(map(narrow, result)) if pair else narrow(result)
        if pair:
            return context.make_tuple(values[0].builder, signature.return_type, [r.llvm for r in result])
        return result.llvm

    return make_intrinsic(name, arity, emit, _floating_pair if pair else _floating)


def _same_type_function(name: str, arity: int, body: Body, integers: bool = False) -> Any:
    """A function whose body serves both float types; `integers`: integers come back as they are."""

    def resolve(args: Sequence[Any]) -> tuple[Any, list[Any]]:
        common = common_type(args)
        ty = common if integers and not isinstance(common, types.Float) else floating_type(args)
        return ty, [ty] * len(args)

    def emit(context: Any, signature: Any, values: list[Value]) -> Any:
        return body(*values).llvm if values[0].is_float else values[0].llvm

    return make_intrinsic(name, arity, emit, resolve)


def _predicate(name: str, body: Body, on_integers: Callable[[Value, bool], Value]) -> Any:
    def resolve(args: Sequence[Any]) -> tuple[Any, list[Any]]:
        return types.boolean, [common_type(args)]

    def emit(context: Any, signature: Any, values: list[Value]) -> Any:
        (x,) = values
        signed = getattr(signature.args[0], "signed", False)
        return (body(x) if x.is_float else on_integers(x, signed)).llvm

    return make_intrinsic(name, 1, emit, resolve)


def _false(x: Value, signed: bool) -> Value:
    return Value(x.builder, ir.Constant(ir.IntType(1), 0))


def _true(x: Value, signed: bool) -> Value:
    return Value(x.builder, ir.Constant(ir.IntType(1), 1))


def _negative(x: Value, signed: bool) -> Value:
    return x < 0 if signed else _false(x, signed)


# ---------------------------------------------------------------------------------- functions of any number


def _common(args: Sequence[Any]) -> tuple[Any, list[Any]]:
    ty = common_type(args)
    return ty, [ty] * len(args)


def _make_sel() -> Any:
    def resolve(args: Sequence[Any]) -> tuple[Any, list[Any]]:
        condition, *choices = args
        if not isinstance(plain_number(condition), types.Boolean):
            raise TypingError(f"the condition of sel() must be a bool, not {condition}; compare it with something")
        ty = common_type(choices)
        return ty, [types.boolean, ty, ty]

    return make_intrinsic("sel", 3, lambda context, signature, v: select(*v).llvm, resolve)


def _make_extremum(name: str, intrinsic: str, order: str) -> Any:
    def emit(context: Any, signature: Any, values: list[Value]) -> Any:
        a, b = values
        ty = signature.return_type
        if a.is_float:
            return call(intrinsic, a, b).llvm
        builder = a.builder
        compare = builder.icmp_signed if getattr(ty, "signed", False) else builder.icmp_unsigned
        return builder.select(compare(order, a.llvm, b.llvm), a.llvm, b.llvm)

    return make_intrinsic(name, 2, emit, _common)


def _make_radd() -> Any:
    def emit(context: Any, signature: Any, values: list[Value]) -> Any:
        a, b = values
        if isinstance(signature.return_type, types.Boolean):
            return a.builder.or_(a.llvm, b.llvm)
        if a.is_float:
            # Only this addition may be regrouped: a vectorised sum needs it, the rounding tricks above forbid it.
            return a.builder.fadd(a.llvm, b.llvm, flags=("reassoc", "nsz"))
        return (a + b).llvm

    return make_intrinsic("radd", 2, emit, _common)


def _make_rmuladd() -> Any:
    def emit(context: Any, signature: Any, values: list[Value]) -> Any:
        total, a, b = values
        product = a.builder.fmul(a.llvm, b.llvm, flags=("contract",))
        return a.builder.fadd(total.llvm, product, flags=("reassoc", "nsz", "contract"))

    return make_intrinsic("rmuladd", 3, emit, _floating)


def _make_fmod() -> Any:
    def emit(context: Any, signature: Any, values: list[Value]) -> Any:
        x, y = values
        b = x.builder
        if x.is_float:
            return b.frem(x.llvm, y.llvm)
        if isinstance(signature.return_type, types.Boolean):
            return ir.Constant(ir.IntType(1), 0)
        # The machine traps on division by 0, and of the least integer by -1. By 1 the remainder is 0, as wanted.
        safe = select(y == 0, x.lifted(1), y)
        if signature.return_type.signed:
            return b.srem(x.llvm, select(safe == -1, x.lifted(1), safe).llvm)
        return b.urem(x.llvm, safe.llvm)

    return make_intrinsic("fmod", 2, emit, _common)


# The C library may be off by several ULP for far arguments (glibc: 8 for the worst), so there ours serves here too.
def _fallback_sincos(context: Any, x: Value) -> Any:
    return bodies.far_patched(
        x, [libm(context, math.sin, x), libm(context, math.cos, x)], bodies.sin_far, bodies.cos_far
    )


def _fallback_sin(context: Any, x: Value) -> Any:
    return bodies.far_patched(x, [libm(context, math.sin, x)], bodies.sin_far)


def _fallback_cos(context: Any, x: Value) -> Any:
    return bodies.far_patched(x, [libm(context, math.cos, x)], bodies.cos_far)


def _fallback_tan(context: Any, x: Value) -> Any:
    return bodies.far_patched(x, [libm(context, math.tan, x)], bodies.tan_far)


def _fallback_erfx(context: Any, x: Value) -> tuple[Value, Value]:
    # exp(-a*a), a*a in two parts: the square of a's first 26 bits, which is exact, and the rest.
    a = at_most(fabs(x), 27.5)
    h = unbits(bits(a) & -(1 << 27))
    e = libm(context, math.exp, -(h * h)) * libm(context, math.exp, (h - a) * (h + a))
    return libm(context, math.erf, x), e


def _fallback_cbrt(context: Any, x: Value) -> Value:
    return bodies.cbrt(x)


def _rounding(name: str) -> Any:
    return _same_type_function(name, 1, functools.partial(call, f"llvm.{name}"), integers=True)


NAMESPACE: dict[str, object] = {
    "sqrt": _same_type_function("sqrt", 1, sqrt),
    "exp": _float_function("exp", bodies.exp, body32=bodies.exp32),
    "cbrt": _float_function("cbrt", bodies.cbrt, fallback=_fallback_cbrt),
    "sin": _float_function("sin", bodies.sin, fallback=_fallback_sin),
    "cos": _float_function("cos", bodies.cos, fallback=_fallback_cos),
    "sincos": _float_function("sincos", bodies.sincos, fallback=_fallback_sincos, pair=True),
    "tan": _float_function("tan", bodies.tan, fallback=_fallback_tan),
    "erfx": _float_function("erfx", bodies.erfx, fallback=_fallback_erfx, pair=True),
    "exp2": _float_function("exp2", bodies.exp2),
    "expm1": _float_function("expm1", bodies.expm1),
    "log": _float_function("log", bodies.log),
    "log2": _float_function("log2", bodies.log2),
    "log10": _float_function("log10", bodies.log10),
    "log1p": _float_function("log1p", bodies.log1p),
    "tanh": _float_function("tanh", bodies.tanh),
    "asin": _float_function("asin", bodies.asin),
    "acos": _float_function("acos", bodies.acos),
    "atan": _float_function("atan", bodies.atan),
    "sinh": _float_function("sinh", bodies.sinh),
    "cosh": _float_function("cosh", bodies.cosh),
    "asinh": _float_function("asinh", bodies.asinh),
    "acosh": _float_function("acosh", bodies.acosh),
    "atanh": _float_function("atanh", bodies.atanh),
    "erf": _float_function("erf", bodies.erf),
    "erfc": _float_function("erfc", bodies.erfc),
    "atan2": _float_function("atan2", bodies.atan2, 2),
    "hypot": _float_function("hypot", bodies.hypot, 2),
    "pow": _float_function("pow", bodies.pow, 2),
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "trunc": _rounding("trunc"),
    "rint": _same_type_function("rint", 1, functools.partial(call, "llvm.rint")),
    "fabs": _same_type_function("fabs", 1, fabs),
    "copysign": _same_type_function("copysign", 2, copysign),
    "fma": _same_type_function("fma", 3, fma),
    "isnan": _predicate("isnan", is_nan, _false),
    "isinf": _predicate("isinf", lambda x: fabs(x) == INF, _false),
    "isfinite": _predicate("isfinite", lambda x: fabs(x) < INF, _true),
    "signbit": _predicate("signbit", lambda x: bits(x) < 0, _negative),
    "sel": _make_sel(),
    "maximum": _make_extremum("maximum", "llvm.maximum", ">"),
    "minimum": _make_extremum("minimum", "llvm.minimum", "<"),
    "radd": _make_radd(),
    "rmuladd": _make_rmuladd(),
    "fmod": _make_fmod(),
}
