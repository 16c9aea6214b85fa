"""Arithmetic, elementary functions and selection: one element at a time.

Every block is a scalar kernel with its partial derivatives beside it. A partial gets the result and the operands and is
written in operations of this package, so that it can be differentiated again.
"""

from __future__ import annotations

import numpy as np

from jitgrad.core import scalar
from jitgrad.ops.blocks import POSITIVE, REAL, UNIT, Domain, elementwise


# --------------------------------------------------------------------------- arithmetic


@elementwise(partials=[lambda out, x, y: 1.0, lambda out, x, y: 1.0], result="same", operator="+")
def add(x, y):
    """Sum of two arrays.

    Derivative: 1 for both.
    """
    return x + y


@elementwise(partials=[lambda out, x, y: 1.0, lambda out, x, y: -1.0], result="same", refuses="b", operator="-", aliases=("sub",))
def subtract(x, y):
    """Difference of two arrays.

    Derivative: 1 and -1.
    """
    return x - y


@elementwise(partials=[lambda out, x, y: y, lambda out, x, y: x], result="same", operator="*", aliases=("mul",))
def multiply(x, y):
    """Product of two arrays, element by element.

    Derivative: the other operand.
    """
    return x * y


@elementwise(
    partials=[lambda out, x, y: 1.0 / y, lambda out, x, y: -out / y],
    operator="/",
    aliases=("true_divide", "div"),
    domain=(REAL, POSITIVE),
)
def divide(x, y):
    """Quotient of two arrays.

    Derivative: ``1/y`` and ``-(x/y)/y``.
    """
    return x / y


@elementwise(partials=[lambda out, x: -1.0], result="same", refuses="b", operator="neg", aliases=("neg",))
def negative(x):
    """The array with its sign turned.

    Derivative: -1.
    """
    return -x


@elementwise(partials=[lambda out, x: 2.0 * x], result="same")
def square(x):
    """``x * x``.

    Derivative: ``2 x``.
    """
    return x * x


@elementwise(partials=[lambda out, x: 0.5 / out], domain=POSITIVE)
def sqrt(x):
    """Square root.

    Derivative: ``1 / (2 sqrt(x))``, infinite at 0.
    """
    return scalar.sqrt(x)


# --------------------------------------------------------------------------- exponentials and logarithms


@elementwise(partials=[lambda out, x: out])
def exp(x):
    """Exponential of each element.

    Derivative: the result itself.
    """
    return scalar.exp(x)


@elementwise(partials=[lambda out, x: 1.0 / x], domain=POSITIVE)
def log(x):
    """Natural logarithm.

    Derivative: ``1/x``.
    """
    return scalar.log(x)


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


@elementwise(partials=[lambda out, x: 1.0 - out * out])
def tanh(x):
    """Hyperbolic tangent.

    Derivative: ``1 - tanh(x)**2``.
    """
    return scalar.tanh(x)


# --------------------------------------------------------------------------- selection


@elementwise(
    masks=[None, lambda out, c, x, y: c, lambda out, c, x, y: ~c],
    result="same",
    fixed={0: np.bool_},
    method=False,
)
def where(condition, x, y):
    """``x`` where the condition holds, else ``y``.

    Derivative: the cotangent goes to the chosen operand; the other one gets a structural zero, which stays zero
    whatever its own derivative is (infinite, NaN).
    """
    return scalar.sel(condition, x, y)
