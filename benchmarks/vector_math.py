"""Elementary functions in plain Numba that LLVM can vectorise, for the hand-written limits.

They share nothing with jitgrad's own, so that a slow-down there is seen against these. No branches, only arithmetic,
selections and bit patterns; coefficients from fdlibm and Remez fits. Good to 2 units in the last place on the ranges of
the workloads; of the special cases only those are handled that cost nothing.
"""
# ruff: noqa: E501  a Horner chain is one line

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

__all__ = ["add", "erfx", "exp", "fabs", "fma", "larger", "log", "log1p", "select", "sincos", "tanh", "wide_vectors"]

_F64, _I64 = types.float64, types.int64
_LLVM_F64, _LLVM_I64 = ir.DoubleType(), ir.IntType(64)

# ---------------------------------------------------------------------------------------- instructions


def _llvm(builder: Any, name: str, *args: Any) -> Any:
    kind = args[0].type
    function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * len(args)))
    return builder.call(function, args)


@intrinsic
def fma(context: Any, x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``, rounded once."""
    return _F64(_F64, _F64, _F64), lambda _c, b, _s, v: _llvm(b, "llvm.fma", *v)


@intrinsic
def fabs(context: Any, x: Any) -> Any:
    """The absolute value."""
    return _F64(_F64), lambda _c, b, _s, v: _llvm(b, "llvm.fabs", *v)


@intrinsic
def copysign(context: Any, x: Any, y: Any) -> Any:
    """x with the sign of y."""
    return _F64(_F64, _F64), lambda _c, b, _s, v: _llvm(b, "llvm.copysign", *v)


@intrinsic
def larger(context: Any, x: Any, y: Any) -> Any:
    """The maximum, NaN if either is."""
    return _F64(_F64, _F64), lambda _c, b, _s, v: _llvm(b, "llvm.maximum", *v)


@intrinsic
def bits(context: Any, x: Any) -> Any:
    """The bit pattern of a number."""
    return _I64(_F64), lambda _c, b, _s, v: b.bitcast(v[0], _LLVM_I64)


@intrinsic
def number(context: Any, pattern: Any) -> Any:
    """The number of a bit pattern."""
    return _F64(_I64), lambda _c, b, _s, v: b.bitcast(v[0], _LLVM_F64)


@intrinsic
def shift_right(context: Any, x: Any, n: Any) -> Any:
    """A shift that brings in zeros."""
    return _I64(_I64, _I64), lambda _c, b, _s, v: b.lshr(*v)


@intrinsic
def select(context: Any, condition: Any, x: Any, y: Any) -> Any:
    """One of two numbers, without a branch."""
    return _F64(types.boolean, _F64, _F64), lambda _c, b, _s, v: b.select(*v)


@intrinsic
def add(context: Any, x: Any, y: Any) -> Any:
    """An addition that may be regrouped, for the accumulators of sums alone."""
    return _F64(_F64, _F64), lambda _c, b, _s, v: b.fadd(*v, flags=("reassoc", "nsz"))


@intrinsic
def wide_vectors(context: Any) -> Any:
    """Lets the calling function use the widest registers; LLVM holds back on CPUs with AVX-512."""

    def generate(numba_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        # llvmlite checks the names of attributes against a list of its own
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return numba_context.get_dummy_value()

    return types.none(), generate


# ------------------------------------------------------------------------------------------- functions

_jit = njit(error_model="numpy")

_INF, _NAN = float("inf"), float("nan")
_MAGIC = 6755399441055744.0  # adding it rounds to an integer, which is then in the low bits
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_TWO_OVER_PI = 0.6366197723675814
_PI1, _PI2, _PI3 = 1.5707963267948966, 6.123233995736765e-17, 1.082856673921914e-32
_ONE, _ROOT_HALF, _MANTISSA = 0x3FF0000000000000, 0x3FE6A09E667F3BCD, 0x000FFFFFFFFFFFFF
_OFFSET = _ONE - _ROOT_HALF
_TWO52 = 0x4330000000000000

E0, E1, E2, E3, E4, E5, E6, E7, E8, E9 = (0.5000000000000007, 0.16666666666666696, 0.041666666666562414, 0.00833333333329321, 0.001388888893618022, 0.00019841269986954686, 2.48014997515039e-05, 2.7557116861074957e-06, 2.7628231082072664e-07, 2.516137912914217e-08)  # fmt: skip
L1, L2, L3, L4, L5, L6, L7 = (6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01)  # fmt: skip
S1, S2, S3, S4, S5, S6 = (-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10)  # fmt: skip
C1, C2, C3, C4, C5, C6 = (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05, -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11)  # fmt: skip
A0, A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11 = (0.12837916709551256, -0.3761263890318352, 0.112837916709442, -0.026866170643113415, 0.005223977606130842, -0.0008548325929766244, 0.0001205529358693695, -1.4924712439534814e-05, 1.6447132699786621e-06, -1.6206318752969208e-07, 1.3710988704190523e-08, -7.779462971761597e-10)  # fmt: skip
B0, B1, B2, B3, B4, B5, B6, B7, B8, B9, B10, B11 = (2.890927279487075e-05, 0.5629298913175503, 1.1531407182925018, 1.6859962601668304, 5.022604281317817, -8.698993190787705, 39.24497421036089, -93.2933515088767, 75.24581490175764, 37.864298639992214, -101.31832258934155, 49.39169041316976)  # fmt: skip
H0, H1, H2, H3, H4, H5, H6, H7, H8, H9, H10 = (0.5000000000000001, 0.1666666666666667, 0.04166666666665229, 0.008333333333326153, 0.0013888888895597217, 0.00019841269874765153, 2.480157453791779e-05, 2.7557255461782194e-06, 2.7567927335827085e-07, 2.510519422227151e-08, 1.7687680267023671e-09)  # fmt: skip


@_jit
def _reduced(x):
    """x = k ln 2 + r: expm1(r), and an integer with k in its low bits."""
    t = fma(x, _LOG2E, _MAGIC)
    k = t - _MAGIC
    r = fma(k, -_LN2_LOW, fma(k, -_LN2_HIGH, x))
    p = fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, E9, E8), E7), E6), E5), E4), E3), E2), E1), E0)
    return fma(r * r, p, r), bits(t)


@_jit
def exp(x):
    """The power of two in two factors, so that overflow and subnormal results come out right."""
    x = select(x < -746.0, -746.0, x)
    q, n = _reduced(select(x > 710.0, 710.0, x))
    half = shift_right(n, 1)
    return number(bits(q + 1.0) + (half << 52)) * number(((n - half) << 52) + _ONE)


@_jit
def tanh(x):
    """expm1(-2a) / (expm1(-2a) + 2), the two rounded separately."""
    a = fabs(x)
    a = select(a > 22.0, 22.0, a)
    a = -(a + a)
    t = fma(a, _LOG2E, _MAGIC)
    k = t - _MAGIC
    h = fma(k, -_LN2_HIGH, a)
    r = fma(k, -_LN2_LOW, h)
    p = fma(
        r,
        fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, H10, H9), H8), H7), H6), H5), H4), H3), H2), H1),
        H0,
    )
    q = r + fma(r * r, p, fma(k, -_LN2_LOW, h - r))
    s = number((bits(t) << 52) + _ONE)
    return copysign(fma(s, q, s - 1.0) / fma(s, q, s + 1.0), x)


@_jit
def _log_core(f, k):
    """k ln 2 + log(1 + f)."""
    s = f / (2.0 + f)
    z = s * s
    tail = z * fma(z, fma(z, fma(z, fma(z, fma(z, fma(z, L7, L6), L5), L4), L3), L2), L1)
    h = 0.5 * f * f
    return fma(k, _LN2_HIGH, f - (h - fma(k, _LN2_LOW, s * (h + tail))))


@_jit
def log(x):
    """The natural logarithm."""
    subnormal = x < 2.2250738585072014e-308
    u = bits(select(subnormal, x * 18014398509481984.0, x)) + _OFFSET
    k = number(shift_right(u, 52) | _TWO52) - select(subnormal, 4503599627371573.0, 4503599627371519.0)
    result = _log_core(number((u & _MANTISSA) + _ROOT_HALF) - 1.0, k)
    result = select(x > 0.0, result, select(x == 0.0, -_INF, _NAN))
    return select(x < _INF, result, x)


@_jit
def log1p(x):
    """log(1 + x), with the rounding error of the sum put back."""
    y = 1.0 + x
    b = y - 1.0
    c = (1.0 - (y - b)) + (x - b)
    u = bits(y) + _OFFSET
    e = shift_right(u, 52)
    k = number(e | _TWO52) - 4503599627371519.0
    result = _log_core(fma(c, number((2046 - e) << 52), number((u & _MANTISSA) + _ROOT_HALF) - 1.0), k)
    result = select(y > 0.0, copysign(result, x), select(y == 0.0, -_INF, _NAN))
    return select(x < _INF, result, x)


@_jit
def sincos(x):
    """Sine and cosine: reduction by pi / 2 in three parts, good far past 1e5."""
    t = fma(x, _TWO_OVER_PI, _MAGIC)
    k = t - _MAGIC
    r = fma(k, -_PI3, fma(k, -_PI2, fma(k, -_PI1, x)))
    n = bits(t)
    z = r * r
    s = fma(r * z, fma(z, fma(z, fma(z, fma(z, fma(z, S6, S5), S4), S3), S2), S1), r)
    c = fma(z * z, fma(z, fma(z, fma(z, fma(z, fma(z, C6, C5), C4), C3), C2), C1), fma(z, -0.5, 1.0))
    even = (n & 1) == 0
    return (
        number(bits(select(even, s, c)) ^ ((n & 2) << 62)),
        number(bits(select(even, c, s)) ^ (((n + 1) & 2) << 62)),
    )


@_jit
def erfx(x):
    """erf(x), and the exp(-x * x) that it and its derivative need: one Horner chain with selected coefficients."""
    a = fabs(x)
    z = a * a
    q, n = _reduced(select(z > 708.0, -708.0, -z))
    e = number(bits(q + 1.0) + (n << 52))
    m = a < 1.0
    v = select(m, z, 1.0 / (2.0 + a))
    p = fma(v, select(m, A11, B11), select(m, A10, B10))
    p = fma(v, p, select(m, A9, B9))
    p = fma(v, p, select(m, A8, B8))
    p = fma(v, p, select(m, A7, B7))
    p = fma(v, p, select(m, A6, B6))
    p = fma(v, p, select(m, A5, B5))
    p = fma(v, p, select(m, A4, B4))
    p = fma(v, p, select(m, A3, B3))
    p = fma(v, p, select(m, A2, B2))
    p = fma(v, p, select(m, A1, B1))
    p = fma(v, p, select(m, A0, B0))
    return copysign(select(m, fma(a, p, a), fma(-e, p, 1.0)), x), e
