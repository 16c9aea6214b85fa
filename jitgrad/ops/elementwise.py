"""Arithmetic, elementary functions, rounding and selection: one element at a time.

Every block is a scalar kernel with its partial derivatives beside it. A partial gets the result and the operands and is
written in operations of this package, so that it can be differentiated again. Where a second derivative needs care at a
singular point, the first one is a primitive itself (a name with an underscore) with partials of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import methodcaller
from typing import Any, Final

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import result_dtype
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Primitive, Value
from jitgrad.errors import ArgumentError, DtypeError
from jitgrad.ops.blocks import POSITIVE, REAL, UNIT, Call, Domain, elementwise, operation
from jitgrad.ops.linear import convert, copy_of

LN2: Final = math.log(2.0)
LN10: Final = math.log(10.0)
_STEPS: Final = Domain(-3.0, 3.0, kinks=(-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0))
_HALF_STEPS: Final = Domain(-3.0, 3.0, kinks=(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5))
_NONZERO: Final = Domain(-3.0, 3.0, kinks=(0.0,))
_ONE_QUOTIENT: Final = (Domain(-2.9, -2.1), Domain(0.98, 1.02))  # no jump of the rounded quotient in between


def primitive_of(
    partials: list[Callable[..., Value] | None] | None = None,
    masks: list[Callable[..., Value] | None] | None = None,
    result: Any = "same",
) -> Callable[[Callable[..., Any]], Primitive]:
    """An elementwise primitive without a public name, for the derivatives of others; a constant if no rule is given."""

    def decorate(body: Callable[..., Any]) -> Primitive:
        constant = partials is None and masks is None
        made = elementwise(partials=partials, masks=masks, nondiff=constant, result=result)(body).primitive
        assert made is not None
        return made

    return decorate


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
_PYTHON_NUMBERS: Final = (bool, int, float)


def _power_samples(rng: np.random.Generator) -> list[Call]:
    x, positive_x = rng.uniform(-2.0, 2.0, (2, 3)), rng.uniform(0.2, 2.0, (2, 3))
    calls = [Call((x, n), {}) for n in (0, 1, 2, 3, 4, 2.0, -1.0, -2.0)]
    calls += [Call((positive_x, y), {}) for y in (0.5, -0.5, 1.5)]
    return [*calls, Call((positive_x, rng.uniform(-2.0, 2.0, 3)), {}), Call((2.0, x), {})]


@operation(samples=_power_samples, aliases=("pow",), method=True, operator="**", in_place=True)
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
    if type(y) is int or type(y) is float:
        special = _SPECIAL_POWERS.get(y)
        if special is not None:
            x = as_value(x, "power")
            if x.dtype.kind == "f":
                return special(x)
    base = x if type(x) in _PYTHON_NUMBERS else as_value(x, "power")
    exponent = y if type(y) in _PYTHON_NUMBERS else as_value(y, "power")
    operands = [o if type(o) in _PYTHON_NUMBERS else o.dtype for o in (base, exponent)]
    dtype = result_dtype(*operands)
    if dtype.kind == "f":
        return _power(base, exponent)
    return _power_of_integers(base, exponent, np.dtype(np.int8) if dtype.kind == "b" else dtype)


def _power_of_integers(x: Any, y: Any, dtype: np.dtype[Any]) -> Value:
    least = y if type(y) in _PYTHON_NUMBERS else y._value
    if isinstance(least, np.ndarray):
        least = least.min(initial=0)
    if isinstance(least, int | np.integer) and least < 0:
        raise ArgumentError("power: integers have no negative integer powers; make the base a float (.astype(float))")
    x, y = (convert(v, dtype=dtype) if v.dtype != dtype else v for v in (as_value(x, "power"), as_value(y, "power")))
    return _integer_power(x, y)


@operation(
    samples=lambda rng: [Call((rng.uniform(0.2, 2.0, (2, 3)), rng.uniform(-2.0, 2.0, 3)), {})],
)
def float_power(x: Any, y: Any) -> Value:
    """``x`` to the power ``y``, both as float64, so that negative powers of integers are defined.

    Derivative: that of ``power``.
    """
    x, y = (as_value(v, "float_power").astype(np.float64, copy=False) for v in (x, y))
    return _power(x, y)


@primitive_of([lambda out, x, r: 1.0 / r, lambda out, x, r: -out / r])
def _ratio_or_zero(x, r):
    """x / r, and 0 for 0 / 0; the derivative there is not finite."""
    return scalar.sel((r == 0.0) & (x == 0.0), 0.0, x / r)


@elementwise(
    partials=[lambda out, x, y: _ratio_or_zero(x, out), lambda out, x, y: _ratio_or_zero(y, out)],
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


# --------------------------------------------------------------------------- circular and hyperbolic


@elementwise(partials=[lambda out, x: cos(x)])
def sin(x):
    """Sine of an angle in radians.

    Derivative: ``cos(x)``.
    """
    return scalar.sin(x)


@elementwise(partials=[lambda out, x: -sin(x)])
def cos(x):
    """Cosine of an angle in radians.

    Derivative: ``-sin(x)``.
    """
    return scalar.cos(x)


@elementwise(partials=[lambda out, x: 1.0 + out * out], domain=Domain(-1.3, 1.3))
def tan(x):
    """Tangent of an angle in radians.

    Derivative: ``1 + tan(x)**2``.
    """
    return scalar.tan(x)


# (1 - x) (1 + x) rather than 1 - x*x: exact differences near the ends


@elementwise(partials=[lambda out, x: 1.0 / sqrt((1.0 - x) * (1.0 + x))], aliases=("arcsin",), domain=UNIT)
def asin(x):
    """Inverse sine, in [-pi/2, pi/2]; NaN outside of [-1, 1].

    Derivative: ``1 / sqrt(1 - x**2)``.
    """
    return scalar.asin(x)


@elementwise(partials=[lambda out, x: -1.0 / sqrt((1.0 - x) * (1.0 + x))], aliases=("arccos",), domain=UNIT)
def acos(x):
    """Inverse cosine, in [0, pi]; NaN outside of [-1, 1].

    Derivative: ``-1 / sqrt(1 - x**2)``.
    """
    return scalar.acos(x)


@elementwise(partials=[lambda out, x: 1.0 / (1.0 + x * x)], aliases=("arctan",))
def atan(x):
    """Inverse tangent, in [-pi/2, pi/2].

    Derivative: ``1 / (1 + x**2)``.
    """
    return scalar.atan(x)


def _over_square(x: Value, y: Value, by: Value) -> Value:
    """by / (x**2 + y**2) without overflow or underflow of the squares; 0 at 0."""
    r = hypot(x, y)
    return _ratio_or_zero(_ratio_or_zero(by, r), r)


@elementwise(
    partials=[lambda out, y, x: _over_square(x, y, x), lambda out, y, x: -_over_square(x, y, y)],
    aliases=("arctan2",),
    domain=(REAL, POSITIVE),
)
def atan2(y, x):
    """The angle of the point (``x``, ``y``), in [-pi, pi].

    Derivative: ``x / (x**2 + y**2)`` for ``y`` and ``-y / (x**2 + y**2)`` for ``x``; 0 where both are 0 (there the
    second derivative is NaN).
    """
    return scalar.atan2(y, x)


@elementwise(partials=[lambda out, x: cosh(x)])
def sinh(x):
    """Hyperbolic sine.

    Derivative: ``cosh(x)``.
    """
    return scalar.sinh(x)


@elementwise(partials=[lambda out, x: sinh(x)])
def cosh(x):
    """Hyperbolic cosine.

    Derivative: ``sinh(x)``.
    """
    return scalar.cosh(x)


@elementwise(partials=[lambda out, x: 1.0 - out * out])
def tanh(x):
    """Hyperbolic tangent.

    Derivative: ``1 - tanh(x)**2``.
    """
    return scalar.tanh(x)


@elementwise(partials=[lambda out, x: 1.0 / hypot(x, 1.0)], aliases=("arcsinh",))
def asinh(x):
    """Inverse hyperbolic sine.

    Derivative: ``1 / sqrt(x**2 + 1)``.
    """
    return scalar.asinh(x)


@elementwise(
    partials=[lambda out, x: 1.0 / (sqrt(x - 1.0) * sqrt(x + 1.0))], aliases=("arccosh",), domain=Domain(1.1, 4.0)
)
def acosh(x):
    """Inverse hyperbolic cosine; NaN below 1.

    Derivative: ``1 / sqrt(x**2 - 1)``.
    """
    return scalar.acosh(x)


@elementwise(partials=[lambda out, x: 1.0 / ((1.0 - x) * (1.0 + x))], aliases=("arctanh",), domain=UNIT)
def atanh(x):
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond.

    Derivative: ``1 / (1 - x**2)``.
    """
    return scalar.atanh(x)


@elementwise(partials=[lambda out, x: math.pi / 180.0], aliases=("radians",))
def deg2rad(x):
    """Degrees as radians.

    Derivative: ``pi / 180``.
    """
    return x * 0.017453292519943295


@elementwise(partials=[lambda out, x: 180.0 / math.pi], aliases=("degrees",))
def rad2deg(x):
    """Radians as degrees.

    Derivative: ``180 / pi``.
    """
    return x * 57.29577951308232


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


# --------------------------------------------------------------------------- selection


@primitive_of()
def _greater_share(x, y):
    """What ``maximum(x, y)`` owes to x: half of a tie; all of it where a NaN decides."""
    return scalar.sel(x < y, 0.0, scalar.sel(x == y, 0.5, 1.0))


@elementwise(
    partials=[lambda out, x, y: _greater_share(x, y), lambda out, x, y: _greater_share(y, x)],
    result="same",
)
def maximum(x, y):
    """The greater of two elements; NaN where one of them is NaN.

    Derivative: 1 for the greater; half each where they are equal.
    """
    return scalar.maximum(x, y)


@elementwise(
    partials=[lambda out, x, y: _greater_share(y, x), lambda out, x, y: _greater_share(x, y)],
    result="same",
)
def minimum(x, y):
    """The smaller of two elements; NaN where one of them is NaN.

    Derivative: 1 for the smaller; half each where they are equal.
    """
    return scalar.minimum(x, y)


@primitive_of()
def _number_share(first, second, x, y):
    """What fmax and fmin owe to x: nothing for a NaN, else its share among numbers, ``first`` less ``second``."""
    share = scalar.sel(first < second, 0.0, scalar.sel(first == second, 0.5, 1.0))
    return scalar.sel(scalar.isnan(x), scalar.sel(scalar.isnan(y), 1.0, 0.0), share)


@elementwise(
    partials=[lambda out, x, y: _number_share(x, y, x, y), lambda out, x, y: _number_share(y, x, y, x)],
    result="same",
)
def fmax(x, y):
    """The greater of two elements; where one is NaN, the other.

    Derivative: 1 for the chosen one; half each where they are equal.
    """
    return scalar.sel(scalar.isnan(x), y, scalar.sel(scalar.isnan(y), x, scalar.maximum(x, y)))


@elementwise(
    partials=[lambda out, x, y: _number_share(y, x, x, y), lambda out, x, y: _number_share(x, y, y, x)],
    result="same",
)
def fmin(x, y):
    """The smaller of two elements; where one is NaN, the other.

    Derivative: 1 for the chosen one; half each where they are equal.
    """
    return scalar.sel(scalar.isnan(x), y, scalar.sel(scalar.isnan(y), x, scalar.minimum(x, y)))


@primitive_of()
def _inside(x, low, high):
    return scalar.sel((x >= low) & (x <= high), 1.0, 0.0)


@primitive_of()
def _below(x, low, high):
    return scalar.sel((x < low) & (low <= high), 1.0, 0.0)


@primitive_of()
def _above(x, low, high):
    return scalar.sel((x > high) | (low > high), 1.0, 0.0)


@primitive_of(
    [
        lambda out, x, low, high: _inside(x, low, high),
        lambda out, x, low, high: _below(x, low, high),
        lambda out, x, low, high: _above(x, low, high),
    ]
)
def _clip(x, low, high):
    return scalar.minimum(scalar.maximum(x, low), high)


@primitive_of([lambda out, x, low: _inside(x, low, x), lambda out, x, low: _below(x, low, low)])
def _clip_below(x, low):
    return scalar.maximum(x, low)


@primitive_of([lambda out, x, high: _inside(x, x, high), lambda out, x, high: _above(x, high, high)])
def _clip_above(x, high):
    return scalar.minimum(x, high)


def _clip_samples(rng: np.random.Generator) -> list[Call]:
    x = rng.uniform(-2.0, 2.0, (3, 4))
    return [
        Call((x, -1.0, 1.0), {}),
        Call((x,), {"min": -0.5}),
        Call((x,), {"max": 0.5}),
        Call((x, rng.uniform(-1.5, -0.5, 4), rng.uniform(0.5, 1.5, (3, 1))), {}),
    ]


@operation(samples=_clip_samples, method=True, in_place=True)
def clip(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Value:
    """``x`` limited to the interval from ``min`` to ``max`` (NumPy's ``a_min``, ``a_max``); None leaves a side open.

    ``max`` wins where the bounds contradict each other. Raises ArgumentError when a bound is given twice.

    Derivative: 1 on the closed interval, bounds included; the bounds get what lies outside.

    >>> import jitgrad as jg
    >>> jg.clip([-2.0, 0.5, 3.0], 0.0, 1.0)
    tensor([0. , 0.5, 1. ])
    """
    if (min is not None and a_min is not None) or (max is not None and a_max is not None):
        raise ArgumentError("clip: give each bound once, as min and max or as a_min and a_max")
    x = as_value(x, "clip")
    low = a_min if min is None else min
    high = a_max if max is None else max
    if low is None:
        return copy_of(x) if high is None else _clip_above(x, high)
    return _clip_below(x, low) if high is None else _clip(x, low, high)


@elementwise(
    masks=[None, lambda out, c, x, y: c, lambda out, c, x, y: ~c],
    result="same",
    fixed={0: np.bool_},
    method=False,
    public=False,
)
def where(condition, x, y):
    """``x`` where the condition holds, else ``y``.

    Derivative: the cotangent goes to the chosen operand; the other one gets a structural zero, which stays zero
    whatever its own derivative is (infinite, NaN).
    """
    return scalar.sel(condition, x, y)
