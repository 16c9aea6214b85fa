"""Reductions that leave NaN out."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import BOOL, FLOAT64
from jitgrad.core.dispatch import as_value, constant
from jitgrad.core.primitive import Value
from jitgrad.ops.blocks import Call, operation, primitive_of
from jitgrad.ops.comparison import isnan
from jitgrad.ops.linear import expand
from jitgrad.ops.reduction import Axis, floating, max, min, prod, sum
from jitgrad.ops.selection import where
from jitgrad.ops.statistics import quotient_or_zero

__all__ = ["nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar"]


def _nan_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    return [Call((a,), {}), Call((a, 1), {}), Call((a,), {"axis": (0, -1), "keepdims": True})]


def numbers(x: Any, dtype: Any, filler: float, what: str) -> tuple[Value, Value | None]:
    """The operand with ``filler`` for every NaN, and where these were (None: it cannot have any)."""
    x = as_value(x, what)
    if dtype is not None:
        x = x.astype(dtype)
    if x.dtype.kind != "f":
        return x, None
    absent = isnan(x)
    return where(absent, filler, x), absent


@operation(samples=_nan_samples)
def nansum(x: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Value:
    """Sum over axes (all by default) of what is not NaN.

    Derivative: 1, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nansum([1.0, float("nan"), 2.0])
    tensor(3.)
    """
    return sum(numbers(x, dtype, 0.0, "nansum")[0], axis, keepdims=keepdims)


@operation(samples=_nan_samples)
def nanprod(x: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Value:
    """Product over axes (all by default) of what is not NaN.

    Derivative: that of ``prod``, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nanprod([3.0, float("nan"), 2.0])
    tensor(6.)
    """
    return prod(numbers(x, dtype, 1.0, "nanprod")[0], axis, keepdims=keepdims)


def _present(x: Value, absent: Value | None, axis: Axis, keepdims: bool) -> Value:
    """How many elements are not NaN, in the dtype of the result."""
    there = ~absent if absent is not None else expand(constant(True, BOOL, x), shape=x.shape)
    return sum(there, axis, keepdims=keepdims).astype(x.dtype if x.dtype.kind == "f" else FLOAT64)


@operation(samples=_nan_samples)
def nanmean(x: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Value:
    """Mean over axes (all by default) of what is not NaN; NaN where nothing is left.

    Derivative: 1 over the number of these, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nanmean([1.0, float("nan"), 2.0])
    tensor(1.5)
    """
    x, absent = numbers(floating(as_value(x, "nanmean"), dtype, "nanmean"), None, 0.0, "nanmean")
    return sum(x, axis, keepdims=keepdims) / _present(x, absent, axis, keepdims)


@operation(samples=_nan_samples)
def nanvar(x: Any, axis: Axis = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Value:
    """Variance over axes (all by default) of what is not NaN; NaN where no more than ``ddof`` elements are left.

    Derivative: that of ``var``, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nanvar([1.0, float("nan"), 3.0])
    tensor(1.)
    """
    x, absent = numbers(floating(as_value(x, "nanvar"), dtype, "nanvar"), None, 0.0, "nanvar")
    count = _present(x, absent, axis, True)
    mean = sum(x, axis, keepdims=True) / count
    # a second step makes the mean of equal elements exact, and so their distances 0
    mean = mean + sum(where(absent, 0.0, x - mean), axis, keepdims=True) / count
    distance = where(absent, 0.0, x - mean)
    degrees = _present(x, absent, axis, keepdims) - float(ddof)
    total = sum(distance * distance, axis, keepdims=keepdims)
    return total / where(degrees > 0.0, degrees, float("nan"))


@operation(samples=_nan_samples)
def nanstd(x: Any, axis: Axis = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Value:
    """Standard deviation over axes (all by default) of what is not NaN: the square root of ``nanvar``.

    Derivative: that of ``std``, 0 where all elements are equal, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nanstd([1.0, float("nan"), 3.0])
    tensor(1.)
    """
    return root(nanvar(x, axis, dtype, ddof=ddof, keepdims=keepdims))


@primitive_of([lambda out, x: quotient_or_zero(0.5, out)], result="float")
def root(x):
    """The square root of a variance: where that is 0, so are its slopes, and the derivative is 0."""
    return scalar.sqrt(x)


def _beyond(x: Any, axis: Axis, keepdims: bool, what: str, sign: float) -> Value:
    value = as_value(x, what)
    x, absent = numbers(value, None, -sign * float("inf"), what)
    found = (max if sign > 0 else min)(x, axis, keepdims=keepdims)
    if absent is None:
        return found
    left = sum(~absent, axis, keepdims=keepdims) > 0
    return where(left, found, float("nan"))


@operation(samples=_nan_samples)
def nanmax(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Greatest element over axes (all by default) that is not NaN; NaN where nothing is left.

    Derivative: that of ``max``, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nanmax([1.0, float("nan"), 3.0])
    tensor(3.)
    """
    return _beyond(x, axis, keepdims, "nanmax", 1.0)


@operation(samples=_nan_samples)
def nanmin(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Least element over axes (all by default) that is not NaN; NaN where nothing is left.

    Derivative: that of ``min``, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nanmin([1.0, float("nan"), 3.0])
    tensor(1.)
    """
    return _beyond(x, axis, keepdims, "nanmin", -1.0)
