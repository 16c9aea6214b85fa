"""Circular and hyperbolic functions, their inverses, and angles."""

from __future__ import annotations

import math

from jitgrad.core import scalar
from jitgrad.core.primitive import Value
from jitgrad.ops.blocks import POSITIVE, REAL, UNIT, Domain, elementwise, primitive_of
from jitgrad.ops.elementwise import hypot, ratio_or_zero, sqrt


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


@primitive_of([lambda out, x: -2.0 * x])
def _one_less_square(x):
    """1 - x*x, from exact differences near the ends; its derivative is not left to the product, where it would cancel."""
    return (1.0 - x) * (1.0 + x)


@elementwise(partials=[lambda out, x: 1.0 / sqrt(_one_less_square(x))], aliases=("arcsin",), domain=UNIT)
def asin(x):
    """Inverse sine, in [-pi/2, pi/2]; NaN outside of [-1, 1].

    Derivative: ``1 / sqrt(1 - x**2)``.
    """
    return scalar.asin(x)


@elementwise(partials=[lambda out, x: -1.0 / sqrt(_one_less_square(x))], aliases=("arccos",), domain=UNIT)
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
    return ratio_or_zero(ratio_or_zero(by, r), r)


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


@elementwise(partials=[lambda out, x: 1.0 / _one_less_square(x)], aliases=("arctanh",), domain=UNIT)
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
