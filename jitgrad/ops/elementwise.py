"""Arithmetic, powers, exponentials and rounding: one element at a time.

Every block is a scalar kernel with its partial derivatives beside it. A partial gets the result and the operands and is
written in operations of this package, so that it can be differentiated again. Where a second derivative needs care at a
singular point, the first one is a primitive itself (``primitive_of``) with partials of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import methodcaller
from typing import Any, Final

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.dispatch import as_value, is_value, operand, promoted
from jitgrad.core.primitive import Value
from jitgrad.errors import DtypeError
from jitgrad.ops.axes import index_of
from jitgrad.ops.blocks import POSITIVE, REAL, Call, Domain, elementwise, operation, primitive_of
from jitgrad.ops.linear import convert, exponents, negative_power
from jitgrad.ops.selection import where

LN2: Final = math.log(2.0)
LN10: Final = math.log(10.0)
_STEPS: Final = Domain(-3.0, 3.0, kinks=(-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0))
_HALF_STEPS: Final = Domain(-3.0, 3.0, kinks=(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5))
_NONZERO: Final = Domain(-3.0, 3.0, kinks=(0.0,))
_ONE_QUOTIENT: Final = (Domain(-2.9, -2.1), Domain(0.98, 1.02))  # no jump of the rounded quotient in between


# --------------------------------------------------------------------------- arithmetic


@elementwise(partials=[lambda out, x, y: 1.0, lambda out, x, y: 1.0], result="same", operator="+")
def add(x, y):
    """Sum of two arrays; logical or of booleans.

    Derivative: 1 for both.
    """
    return x + y


@elementwise(
    partials=[lambda out, x, y: 1.0, lambda out, x, y: -1.0], result="same", refuses="b", operator="-", aliases=("sub",)
)
def subtract(x, y):
    """Difference of two arrays; not of booleans.

    Derivative: 1 and -1.
    """
    return x - y


@elementwise(
    partials=[lambda out, x, y: y, lambda out, x, y: x],
    result="same",
    operator="*",
    aliases=("mul",),
)
def multiply(x, y):
    """Product of two arrays, element by element; logical and of booleans.

    Derivative: the other operand.
    """
    return x * y


@elementwise(
    partials=[lambda out, x, y: 1.0 / y, lambda out, x, y: -(out * (1.0 / y))],
    operator="/",
    aliases=("true_divide", "div"),
    domain=(REAL, POSITIVE),
)
def divide(x, y):
    """Quotient of two arrays; infinite or NaN where ``y`` is 0, without a warning.

    Derivative: ``1/y`` and ``-(x/y)/y``.
    """
    return x / y


@elementwise(
    partials=[lambda out, x, y: 0.0, lambda out, x, y: 0.0],
    result="same",
    refuses="b",
    operator="//",
    domain=_ONE_QUOTIENT,
)
def floor_divide(x, y):
    """The greatest integer not above ``x / y``; integers divided by 0 give 0.

    Derivative: 0 for both.
    """
    least = y == -1  # the least integer by -1 would trap or give 0
    return scalar.sel(least, -x, x) // scalar.sel(least, -y, y)


@elementwise(
    # the quotient, an integer, from exact differences: floor(x / y) may be off by one next to a multiple of y
    partials=[lambda out, x, y: 1.0, lambda out, x, y: -rint((x - out) / y)],
    result="same",
    refuses="b",
    operator="%",
    aliases=("mod",),
    domain=_ONE_QUOTIENT,
)
def remainder(x, y):
    """What ``floor_divide`` leaves: ``x - floor(x / y) * y``, with the sign of ``y``; 0 for integers and ``y`` = 0.

    Derivative: 1 and ``-floor(x / y)``.
    """
    return x % y


@elementwise(
    partials=[lambda out, x, y: 1.0, lambda out, x, y: -rint((x - out) / y)],
    result="same",
    refuses="b",
    domain=_ONE_QUOTIENT,
)
def fmod(x, y):
    """What a division rounded towards zero leaves: ``x - trunc(x / y) * y``, with the sign of ``x``.

    Derivative: 1 and ``-trunc(x / y)``.
    """
    return scalar.fmod(x, y)


@operation(
    samples=lambda rng: [Call((rng.uniform(-3.0, 3.0, (3, 4)), rng.uniform(0.5, 2.0, 4)), {})],
    operator="divmod",
)
def divmod(x: Any, y: Any) -> tuple[Value, Value]:
    """``(floor_divide(x, y), remainder(x, y))``.

    Derivative: that of the two.
    """
    return floor_divide(x, y), remainder(x, y)


@elementwise(partials=[lambda out, x: -1.0], result="same", refuses="b", operator="neg", aliases=("neg",))
def negative(x):
    """The array with its sign turned; not of booleans (``~x`` is their logical not).

    Derivative: -1.
    """
    return -x


@elementwise(partials=[lambda out, x: 1.0], result="same", refuses="b", operator="pos")
def positive(x):
    """``+x``: a copy; not of booleans.

    Derivative: 1.
    """
    return x


@elementwise(partials=[lambda out, x: sign(x)], result="same", operator="abs", aliases=("absolute",), domain=_NONZERO)
def abs(x):
    """Absolute value; that of the least integer is itself, as in NumPy.

    Derivative: ``sign(x)``, so 0 at 0.
    """
    return abs(x)  # the builtin: a body is text, and there it handles every dtype


@elementwise(partials=[lambda out, x: sign(x)], domain=_NONZERO)
def fabs(x):
    """Absolute value, of a floating dtype.

    Derivative: ``sign(x)``, so 0 at 0.
    """
    return scalar.fabs(x)


@elementwise(partials=[lambda out, x: 0.0], result="same", refuses="b", domain=_NONZERO)
def sign(x):
    """-1, 0 or 1; NaN for NaN.

    Derivative: 0.
    """
    return scalar.sel(x > 0.0, 1.0, scalar.sel(x < 0.0, -1.0, x + 0.0))


@elementwise(
    partials=[lambda out, x, y: sign(out) * sign(x), lambda out, x, y: 0.0],
    domain=(_NONZERO, _NONZERO),
)
def copysign(x, y):
    """The magnitude of ``x`` with the sign of ``y`` (of a zero too).

    Derivative: ``sign(x)`` times the sign of ``y``, 0 at ``x`` = 0; and 0.
    """
    return scalar.copysign(x, y)


@elementwise(
    masks=[None, lambda out, x, h: x == 0.0],
    partials=[lambda out, x, h: 0.0, None],
    domain=(_NONZERO, REAL),
)
def heaviside(x, h):
    """0 for negative ``x``, 1 for positive, ``h`` at 0.

    Derivative: 0; the cotangent goes to ``h`` where ``x`` is 0.
    """
    return scalar.sel(x < 0.0, 0.0, scalar.sel(x > 0.0, 1.0, scalar.sel(x == 0.0, h, x)))


# --------------------------------------------------------------------------- powers and roots


@elementwise(partials=[lambda out, x: 2.0 * x], result="same", refuses="b")
def square(x):
    """``x * x``.

    Derivative: ``2 x``.
    """
    return x * x


@primitive_of([lambda out, x: 3.0 * square(x)])
def _cube(x):
    return x * x * x


@elementwise(partials=[lambda out, x: -square(out)], result="same", refuses="biu", domain=POSITIVE)
def reciprocal(x):
    """``1 / x``; infinite at 0, without a warning. Integers are refused: NumPy would round what they give to 0.

    Derivative: ``-1 / x**2``.
    """
    return 1.0 / x


@elementwise(partials=[lambda out, x: 0.5 / out], domain=POSITIVE)
def sqrt(x):
    """Square root; NaN below 0.

    Derivative: ``1 / (2 sqrt(x))``, infinite at 0.
    """
    return scalar.sqrt(x)


@elementwise(partials=[lambda out, x: (1.0 / 3.0) / square(out)], domain=POSITIVE)
def cbrt(x):
    """Real cube root.

    Derivative: ``1 / (3 cbrt(x)**2)``, infinite at 0.
    """
    return scalar.cbrt(x)


def _power_mixed(x: Value, y: Value) -> Value:
    """d/dx d/dy of x**y, ``x**(y-1) (1 + y log x)``, with its limits for x to 0 from above."""
    slope = _power(x, y - 1.0) * (1.0 + where(y == 0.0, 0.0, y * log(x)))
    return where((x == 0.0) & (y > 1.0), 0.0, slope)


@primitive_of([lambda out, x, y: _power_slope(x, y), lambda out, x, y: _power_log(x, y)], result="float")
def _power(x, y):
    return scalar.pow(x, y)


@primitive_of(
    [lambda out, x, y: where(y == 0.0, 0.0, y * _power_slope(x, y - 1.0)), lambda out, x, y: _power_mixed(x, y)]
)
def _power_slope(x, y):
    """d/dx of x**y."""
    return scalar.sel(y == 0.0, 0.0, y * scalar.pow(x, y - 1.0))


@primitive_of(
    [
        lambda out, x, y: _power_mixed(x, y),
        lambda out, x, y: where((x == 0.0) & (y >= 0.0), 0.0, out * log(x)),
    ]
)
def _power_log(x, y):
    """d/dy of x**y."""
    return scalar.sel((x == 0.0) & (y >= 0.0), 0.0, scalar.pow(x, y) * scalar.log(x))


@primitive_of()
def _integer_power(x, y):
    return x**y


_SPECIAL_POWERS: Final[dict[float, Callable[[Value], Value]]] = {
    1: methodcaller("positive"),
    2: methodcaller("square"),
    3: _cube,
    -1: methodcaller("reciprocal"),
    0.5: methodcaller("sqrt"),
}


def _power_samples(rng: np.random.Generator) -> list[Call]:
    x, positive_x = rng.uniform(-2.0, 2.0, (2, 3)), rng.uniform(0.2, 2.0, (2, 3))
    calls = [Call((x, n), {}) for n in (0, 1, 2, 3, 4, 2.0, -1.0, -2.0)]
    calls += [Call((positive_x, y), {}) for y in (0.5, -0.5, 1.5)]
    return [*calls, Call((positive_x, rng.uniform(-2.0, 2.0, 3)), {}), Call((2.0, x), {})]


@operation(samples=_power_samples, aliases=("pow",), method=True, operator="**", in_place=True, remembered=True)
def power(x: Any, y: Any) -> Value:
    """``x`` to the power ``y``. Exponents 1, 2, 3, -1 and 0.5 that are Python numbers have kernels of their own.

    Integers to integers stay integers; a negative exponent then raises ArgumentError (a ValueError), as in NumPy. NaN
    for a negative base and an exponent that is no integer.

    Derivative: ``y * x**(y-1)``, which is 0 for ``y`` = 0 wherever ``x`` lies, and at ``x`` = 0 is 1 for ``y`` = 1, 0
    above, infinite between 0 and 1; and ``x**y * log(x)``, which is 0 for ``x`` = 0 and ``y`` >= 0.

    >>> import jitgrad as jg
    >>> jg.tensor([1.0, 2.0, 3.0]) ** 2
    tensor([1., 4., 9.])
    """
    y = operand(y, "power")
    if type(y) is int or type(y) is float:
        special = _SPECIAL_POWERS.get(y)
        if special is not None:
            x = as_value(x, "power")
            if x.dtype.kind == "f":
                return special(x)
    x = operand(x, "power")
    dtype = promoted(x, y)
    return _power(x, y) if dtype.kind == "f" else _power_of_integers(x, y, dtype)


def _power_of_integers(x: Any, y: Any, dtype: np.dtype[Any]) -> Value:
    if type(y) is int:
        if y < 0:
            raise negative_power()
    elif is_value(y) and y.dtype.kind == "i":
        y = exponents(y)
        y = y if y.dtype == dtype else convert(y, dtype=dtype)
    if dtype.kind == "b":
        x, y = (convert(as_value(v, "power"), dtype=np.dtype(np.int8)) for v in (x, y))
    return _integer_power(x, y)


@operation(samples=lambda rng: [Call((rng.uniform(0.2, 2.0, (2, 3)), rng.uniform(-2.0, 2.0, 3)), {})], remembered=True)
def float_power(x: Any, y: Any) -> Value:
    """``x`` to the power ``y``, both as float64, so that negative powers of integers are defined.

    Derivative: that of ``power``.
    """
    x, y = (as_value(v, "float_power").astype(np.float64, copy=False) for v in (x, y))
    return _power(x, y)


@primitive_of([lambda out, x, r: 1.0 / r, lambda out, x, r: -out / r])
def ratio_or_zero(x, r):
    """x / r, and 0 for 0 / 0; the derivative there is not finite."""
    return scalar.sel((r == 0.0) & (x == 0.0), 0.0, x / r)


@elementwise(
    partials=[lambda out, x, y: ratio_or_zero(x, out), lambda out, x, y: ratio_or_zero(y, out)],
)
def hypot(x, y):
    """``sqrt(x**2 + y**2)``, without overflow on the way.

    Derivative: ``x / hypot(x, y)`` and ``y / hypot(x, y)``; 0 where both are 0 (there the second derivative is NaN).
    """
    return scalar.hypot(x, y)


# --------------------------------------------------------------------------- exponentials and logarithms


@elementwise(partials=[lambda out, x: out])
def exp(x):
    """Exponential of each element.

    Derivative: the result itself.
    """
    return scalar.exp(x)


@elementwise(partials=[lambda out, x: LN2 * out])
def exp2(x):
    """2 to the power of each element.

    Derivative: ``log(2)`` times the result.
    """
    return scalar.exp2(x)


@elementwise(partials=[lambda out, x: exp(x)])
def expm1(x):
    """``exp(x) - 1``, exact for small ``x``.

    Derivative: ``exp(x)``.
    """
    return scalar.expm1(x)


@elementwise(partials=[lambda out, x: 1.0 / x], domain=POSITIVE)
def log(x):
    """Natural logarithm; -inf at 0, NaN below.

    Derivative: ``1/x``.
    """
    return scalar.log(x)


@elementwise(partials=[lambda out, x: (1.0 / LN2) / x], domain=POSITIVE)
def log2(x):
    """Logarithm to base 2.

    Derivative: ``1 / (x log(2))``.
    """
    return scalar.log2(x)


@elementwise(partials=[lambda out, x: (1.0 / LN10) / x], domain=POSITIVE)
def log10(x):
    """Logarithm to base 10.

    Derivative: ``1 / (x log(10))``.
    """
    return scalar.log10(x)


@elementwise(partials=[lambda out, x: 1.0 / (1.0 + x)], domain=Domain(-0.9, 3.0))
def log1p(x):
    """``log(1 + x)``, exact for small ``x``.

    Derivative: ``1 / (1 + x)``.
    """
    return scalar.log1p(x)


# --------------------------------------------------------------------------- rounding


@elementwise(partials=[lambda out, x: 0.0], result="same", domain=_STEPS)
def floor(x):
    """The greatest integer not above ``x``; integers stay as they are.

    Derivative: 0.
    """
    return scalar.floor(x)


@elementwise(partials=[lambda out, x: 0.0], result="same", domain=_STEPS)
def ceil(x):
    """The least integer not below ``x``; integers stay as they are.

    Derivative: 0.
    """
    return scalar.ceil(x)


@elementwise(partials=[lambda out, x: 0.0], result="same", aliases=("fix",), domain=_STEPS)
def trunc(x):
    """``x`` rounded towards zero; integers stay as they are.

    Derivative: 0.
    """
    return scalar.trunc(x)


@elementwise(partials=[lambda out, x: 0.0], domain=_HALF_STEPS)
def rint(x):
    """The integer nearest to ``x``, ties to even.

    Derivative: 0.
    """
    return scalar.rint(x)


@operation(
    samples=lambda rng: [
        Call((rng.uniform(-3.0, 3.0, (3, 2)),), {}),
        Call((rng.uniform(-3.0, 3.0, 4), 1), {}),
        Call((rng.uniform(-300.0, 300.0, 4),), {"decimals": -1}),
    ],
    aliases=("around",),
    method=True,
    operator="round",
    in_place=True,
)
def round(x: Any, decimals: int = 0) -> Value:
    """``x`` rounded to so many decimals, ties to even; a negative number of them rounds to tens, hundreds ...

    Integers stay integers. Derivative: 0.

    >>> import jitgrad as jg
    >>> jg.round([0.126, 2.5], 2)
    tensor([0.13, 2.5 ])
    """
    x = as_value(x, "round")
    decimals = index_of(decimals, "round: decimals")
    if x.dtype.kind == "b":
        raise DtypeError("round is not defined for bool operands; convert them first (.astype(...))")
    if x.dtype.kind != "f":
        if decimals >= 0:
            return positive(x)
        unit = 10.0**-decimals
        return (rint(x / unit) * unit).astype(x.dtype)
    if decimals == 0:
        return rint(x)
    unit = 10.0 ** (decimals if decimals > 0 else -decimals)
    return rint(x * unit) / unit if decimals > 0 else rint(x / unit) * unit
