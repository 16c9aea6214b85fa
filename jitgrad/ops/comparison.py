"""Comparisons, logic and tests of floating-point classes: results are bool, and nothing is differentiated."""

from __future__ import annotations

from jitgrad.core import scalar
from jitgrad.ops.blocks import elementwise


@elementwise(nondiff=True, result="bool", operator="==", aliases=("eq",))
def equal(x, y):
    """Whether elements are equal."""
    return x == y


@elementwise(nondiff=True, result="bool", operator="!=", aliases=("ne",))
def not_equal(x, y):
    """Whether elements differ."""
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


@elementwise(nondiff=True, result="same", operator="~", aliases=("bitwise_not", "bitwise_invert"))
def invert(x):
    """Bitwise not of integers, logical not of booleans."""
    return ~x


@elementwise(nondiff=True, result="bool")
def isnan(x):
    """Whether elements are NaN."""
    return scalar.isnan(x)
