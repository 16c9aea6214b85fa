"""The plain-Python meaning of the names that scalar bodies of operations use.

A body such as ``return scalar.exp(x)`` has two lives. Compiled, its names are resolved in the namespace of
compiled functions (:mod:`jitgrad.kernels.vecmath`); run as ordinary Python, they are the functions below.
Both have the same contract:

- a float32 argument gives a float32 result, a float64 one or a Python float gives float64;
- integers and booleans count as float64, except where an integer result is the natural one (``sel``,
  ``maximum``, ``minimum``, ``radd``, ``fmod``, ``floor``, ``ceil``, ``trunc``);
- outside its domain a function returns NaN or an infinity: it never raises and never warns.

Arguments are NumPy scalars, Python numbers or arrays (then the functions work elementwise and broadcast).
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh",
    "erf", "erfc", "erfx", "exp", "exp2", "expm1", "fabs", "floor", "fma", "fmod", "hypot", "isfinite",
    "isinf", "isnan", "log", "log1p", "log2", "log10", "maximum", "minimum", "pow", "radd", "rint", "rmuladd", "sel",
    "signbit", "sin", "sincos", "sinh", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip


def _real(x: Any) -> Any:
    """x itself when it is floating, else x as float64 (NumPy would take int8 to float16)."""
    return x if isinstance(x, float) or np.asarray(x).dtype.kind == "f" else np.float64(x)


def _reals(*xs: Any) -> list[Any]:
    """All arguments as one floating type; Python numbers are weak, as in NumPy 2."""
    dtype = np.result_type(*xs)
    if dtype.kind != "f":
        dtype = np.dtype(np.float64)
    return [np.asarray(x, dtype)[()] for x in xs]


def _quiet(f: Callable[..., Any], *xs: Any) -> Any:
    with np.errstate(all="ignore"):
        return f(*xs)


def _each(f: Callable[[float], float], x: Any) -> Any:
    """f, which knows only Python floats, applied to every element; dtype and shape of x are kept."""
    a = np.asarray(_real(x))
    # A nonzero double below half the least subnormal of float32 rounds to zero there; that is no error.
    return _quiet(lambda: np.array([f(v) for v in a.ravel().tolist()], np.float64).astype(a.dtype).reshape(a.shape)[()])


# ------------------------------------------------------------------------- powers, exponentials, logarithms


def sqrt(x: Any) -> Any:
    """Square root; NaN below zero."""
    return _quiet(np.sqrt, _real(x))


def cbrt(x: Any) -> Any:
    """Real cube root."""
    return _quiet(np.cbrt, _real(x))


def exp(x: Any) -> Any:
    """e to the x."""
    return _quiet(np.exp, _real(x))


def exp2(x: Any) -> Any:
    """2 to the x."""
    return _quiet(np.exp2, _real(x))


def expm1(x: Any) -> Any:
    """exp(x) - 1 without cancellation near 0."""
    return _quiet(np.expm1, _real(x))


def log(x: Any) -> Any:
    """Natural logarithm; -inf at zero, NaN below."""
    return _quiet(np.log, _real(x))


def log2(x: Any) -> Any:
    """Logarithm to base 2."""
    return _quiet(np.log2, _real(x))


def log10(x: Any) -> Any:
    """Logarithm to base 10."""
    return _quiet(np.log10, _real(x))


def log1p(x: Any) -> Any:
    """log(1 + x) without cancellation near 0."""
    return _quiet(np.log1p, _real(x))


def pow(x: Any, y: Any) -> Any:
    """x to the y as C's pow: pow(x, 0) = pow(1, y) = 1; NaN for x < 0 and y not an integer."""
    return _quiet(np.power, *_reals(x, y))


def hypot(x: Any, y: Any) -> Any:
    """sqrt(x*x + y*y) without overflow on the way; inf when either is infinite."""
    return _quiet(np.hypot, *_reals(x, y))


# ------------------------------------------------------------------------ trigonometric and hyperbolic ones


def sin(x: Any) -> Any:
    """Sine of x radians."""
    return _quiet(np.sin, _real(x))


def cos(x: Any) -> Any:
    """Cosine of x radians."""
    return _quiet(np.cos, _real(x))


def sincos(x: Any) -> tuple[Any, Any]:
    """(sin(x), cos(x)), which cost little more than one of them."""
    return sin(x), cos(x)


def tan(x: Any) -> Any:
    """Tangent of x radians."""
    return _quiet(np.tan, _real(x))


def asin(x: Any) -> Any:
    """Inverse sine, in [-pi/2, pi/2]; NaN outside [-1, 1]."""
    return _quiet(np.arcsin, _real(x))


def acos(x: Any) -> Any:
    """Inverse cosine, in [0, pi]; NaN outside [-1, 1]."""
    return _quiet(np.arccos, _real(x))


def atan(x: Any) -> Any:
    """Inverse tangent, in [-pi/2, pi/2]."""
    return _quiet(np.arctan, _real(x))


def atan2(y: Any, x: Any) -> Any:
    """Angle of the point (x, y), in [-pi, pi], with C's conventions for zeros and infinities."""
    return _quiet(np.arctan2, *_reals(y, x))


def sinh(x: Any) -> Any:
    """Hyperbolic sine."""
    return _quiet(np.sinh, _real(x))


def cosh(x: Any) -> Any:
    """Hyperbolic cosine."""
    return _quiet(np.cosh, _real(x))


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return _quiet(np.tanh, _real(x))


def asinh(x: Any) -> Any:
    """Inverse hyperbolic sine."""
    return _quiet(np.arcsinh, _real(x))


def acosh(x: Any) -> Any:
    """Inverse hyperbolic cosine; NaN below 1."""
    return _quiet(np.arccosh, _real(x))


def atanh(x: Any) -> Any:
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""
    return _quiet(np.arctanh, _real(x))


# ------------------------------------------------------------------------------------------- error function


def erf(x: Any) -> Any:
    """Error function."""
    return _each(math.erf, x)


def erfc(x: Any) -> Any:
    """1 - erf(x) without cancellation for large x."""
    return _each(math.erfc, x)


def erfx(x: Any) -> tuple[Any, Any]:
    """(erf(x), exp(-x*x)): the value and, but for a factor, the derivative."""
    x = _real(x)
    return erf(x), _quiet(lambda v: np.exp(-v * v), x)


# --------------------------------------------------------------------------------------- rounding and signs


def floor(x: Any) -> Any:
    """Greatest integer not above x; integers come back as they are."""
    return _quiet(np.floor, x)


def ceil(x: Any) -> Any:
    """Least integer not below x; integers come back as they are."""
    return _quiet(np.ceil, x)


def trunc(x: Any) -> Any:
    """x rounded towards zero; integers come back as they are."""
    return _quiet(np.trunc, x)


def rint(x: Any) -> Any:
    """x rounded to the nearest integer, ties to even."""
    return _quiet(np.rint, _real(x))


def fabs(x: Any) -> Any:
    """Absolute value, of a floating type."""
    return _quiet(np.fabs, _real(x))


def copysign(x: Any, y: Any) -> Any:
    """Magnitude of x with the sign of y, that of a zero or a NaN included."""
    return _quiet(np.copysign, *_reals(x, y))


def fmod(x: Any, y: Any) -> Any:
    """Remainder of x / y with the sign of x; NaN for y = 0 (0 for integers)."""
    return _quiet(np.fmod, x, y)


def isnan(x: Any) -> Any:
    """Whether x is NaN."""
    return np.isnan(x)


def isfinite(x: Any) -> Any:
    """Whether x is neither infinite nor NaN."""
    return np.isfinite(x)


def isinf(x: Any) -> Any:
    """Whether x is an infinity."""
    return np.isinf(x)


def signbit(x: Any) -> Any:
    """Whether the sign bit is set: true for -0.0 too."""
    return np.signbit(_real(x))


# -------------------------------------------------------------------------------------- choosing and adding


def sel(c: Any, a: Any, b: Any) -> Any:
    """a where c holds, else b; both are evaluated and neither can disturb the other."""
    dtype = np.result_type(a, b)
    return np.where(c, np.asarray(a, dtype), np.asarray(b, dtype))[()]


def maximum(a: Any, b: Any) -> Any:
    """The greater of two; NaN when either is NaN."""
    return _quiet(np.maximum, a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two; NaN when either is NaN."""
    return _quiet(np.minimum, a, b)


def radd(a: Any, b: Any) -> Any:
    """a + b for the accumulator of a sum: compiled code may regroup a chain of these."""
    return _quiet(np.add, a, b)


def rmuladd(total: Any, a: Any, b: Any) -> Any:
    """total + a*b for the accumulator of a sum of products: compiled code may regroup a chain of these, and round each
    product and sum once."""
    total, a, b = _reals(total, a, b)
    return radd(total, _quiet(np.multiply, a, b))


def fma(a: Any, b: Any, c: Any) -> Any:
    """a*b + c rounded once."""
    a, b, c = np.broadcast_arrays(*_reals(a, b, c))
    out = np.empty(a.shape, a.dtype)
    for i in np.ndindex(a.shape):
        out[i] = _fma(a[i], b[i], c[i])
    return out[()]


@functools.cache
def _rational() -> Any:
    """``fractions.Fraction``, which only this function needs."""
    return importlib.import_module("fractions").Fraction


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Exact rational arithmetic: slow, and right where a*b alone would overflow, underflow or cancel."""
    if not (np.isfinite(a) and np.isfinite(b)):
        return _quiet(lambda: a * b + c)
    if not np.isfinite(c):
        return c
    fraction = _rational()
    exact = fraction(float(a)) * fraction(float(b)) + fraction(float(c))
    # An exact zero has the sign that ordinary arithmetic gives it.
    return _round(exact, type(a)) if exact else _quiet(lambda: a * b + c)


def _round(q: Any, kind: type[np.floating[Any]]) -> Any:
    """The number of the type `kind` nearest to a nonzero rational, ties to even."""
    fraction = _rational()
    info = np.finfo(kind)
    # The exponent that makes one unit in the last place 1; a subnormal result has fewer bits.
    e = abs(q.numerator).bit_length() - q.denominator.bit_length()
    if abs(q) < fraction(2) ** e:
        e -= 1
    e = max(e, int(info.minexp)) - int(info.nmant)
    n = round(abs(q) / fraction(2) ** e)
    return _quiet(lambda: kind(math.copysign(np.ldexp(float(n), e), 1 if q > 0 else -1)))
