"""Comparisons, logic, bits and tests of floating-point classes: nothing here is differentiated."""

from __future__ import annotations

from typing import Final

from jitgrad.core import scalar
from jitgrad.ops.blocks import Domain, elementwise

_INTEGERS: Final = Domain(-9, 9, integers=True)
_COUNTS: Final = Domain(0, 9, integers=True)

# --------------------------------------------------------------------------- comparisons


@elementwise(nondiff=True, result="bool", operator="==", aliases=("eq",))
def equal(x, y):
    """Whether elements are equal; NaN equals nothing."""
    return x == y


@elementwise(nondiff=True, result="bool", operator="!=", aliases=("ne",))
def not_equal(x, y):
    """Whether elements differ; NaN differs from everything."""
    return x != y


@elementwise(nondiff=True, result="bool", operator="<", aliases=("lt",))
def less(x, y):
    """Whether ``x < y``."""
    return x < y


@elementwise(nondiff=True, result="bool", operator="<=", aliases=("le",))
def less_equal(x, y):
    """Whether ``x <= y``."""
    return x <= y


@elementwise(nondiff=True, result="bool", operator=">", aliases=("gt",))
def greater(x, y):
    """Whether ``x > y``."""
    return x > y


@elementwise(nondiff=True, result="bool", operator=">=", aliases=("ge",))
def greater_equal(x, y):
    """Whether ``x >= y``."""
    return x >= y


# --------------------------------------------------------------------------- logic: numbers count as true unless 0


@elementwise(nondiff=True, result="bool")
def logical_and(x, y):
    """Whether both elements are true (not 0)."""
    return (x != 0) & (y != 0)


@elementwise(nondiff=True, result="bool")
def logical_or(x, y):
    """Whether one of the elements is true (not 0)."""
    return (x != 0) | (y != 0)


@elementwise(nondiff=True, result="bool")
def logical_xor(x, y):
    """Whether exactly one of the elements is true (not 0)."""
    return (x != 0) != (y != 0)


@elementwise(nondiff=True, result="bool")
def logical_not(x):
    """Whether elements are false (0)."""
    return x == 0


# --------------------------------------------------------------------------- bits


@elementwise(nondiff=True, result="same", refuses="f", operator="&", domain=_INTEGERS)
def bitwise_and(x, y):
    """Bits that both integers have; logical and of booleans."""
    return x & y


@elementwise(nondiff=True, result="same", refuses="f", operator="|", domain=_INTEGERS)
def bitwise_or(x, y):
    """Bits that one of two integers has; logical or of booleans."""
    return x | y


@elementwise(nondiff=True, result="same", refuses="f", operator="^", domain=_INTEGERS)
def bitwise_xor(x, y):
    """Bits that differ between two integers; logical exclusive or of booleans."""
    return x ^ y


@elementwise(
    nondiff=True,
    result="same",
    refuses="f",
    operator="~",
    aliases=("bitwise_not", "bitwise_invert"),
    domain=_INTEGERS,
)
def invert(x):
    """Bitwise not of integers, logical not of booleans."""
    return ~x


@elementwise(
    nondiff=True,
    result="same",
    refuses="fb",
    operator="<<",
    aliases=("bitwise_left_shift",),
    domain=(_INTEGERS, _COUNTS),
)
def left_shift(x, y):
    """``x`` shifted by ``y`` bits to the left; 0 where the count is negative or not below the size of the dtype."""
    inside = (y >= 0) & (y < 64)
    return scalar.sel(inside, x << scalar.sel(inside, y, 0), 0)


@elementwise(
    nondiff=True,
    result="same",
    refuses="fb",
    operator=">>",
    aliases=("bitwise_right_shift",),
    domain=(_INTEGERS, _COUNTS),
)
def right_shift(x, y):
    """``x`` shifted by ``y`` bits to the right; where the count is negative or too large, 0 (-1 for negative ``x``)."""
    inside = (y >= 0) & (y < 64)
    shifted = x >> scalar.sel(inside, y, 63)
    return scalar.sel(inside, shifted, shifted >> 1)


# --------------------------------------------------------------------------- classes of floating-point numbers


@elementwise(nondiff=True, result="bool")
def isnan(x):
    """Whether elements are NaN."""
    return scalar.isnan(x)


@elementwise(nondiff=True, result="bool")
def isfinite(x):
    """Whether elements are neither infinite nor NaN."""
    return scalar.isfinite(x)


@elementwise(nondiff=True, result="bool")
def isinf(x):
    """Whether elements are infinite, of either sign."""
    return scalar.isinf(x)


@elementwise(nondiff=True, result="bool")
def isposinf(x):
    """Whether elements are positive infinity."""
    return scalar.isinf(x) & (x > 0)


@elementwise(nondiff=True, result="bool")
def isneginf(x):
    """Whether elements are negative infinity."""
    return scalar.isinf(x) & (x < 0)


@elementwise(nondiff=True, result="bool")
def signbit(x):
    """Whether the sign bit is set: true for -0.0 too."""
    return scalar.signbit(x)
