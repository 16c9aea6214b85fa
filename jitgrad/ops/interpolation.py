"""Piecewise linear interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import result_dtype
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError
from jitgrad.ops.blocks import Call, operation, primitive_of, uniform
from jitgrad.ops.elementwise import abs, remainder
from jitgrad.ops.linear import gather, join, reshape_to, slice_view
from jitgrad.ops.reduction import cast, floating
from jitgrad.ops.selection import clip, where
from jitgrad.ops.sorting import argsort, searchsorted
from jitgrad.ops.statistics import quotient_or_zero

__all__ = ["interp"]


def _share(x: Value, x0: Value, x1: Value) -> Value:
    """How far x is on its way from x0 to x1; 1 where these are one point."""
    return where(x0 == x1, 1.0, (x - x0) / (x1 - x0))


def _slope(x0: Value, x1: Value, f0: Value, f1: Value) -> Value:
    return quotient_or_zero(f1 - f0, x1 - x0)


@primitive_of(
    [
        lambda out, x, x0, x1, f0, f1: _slope(x0, x1, f0, f1),
        lambda out, x, x0, x1, f0, f1: _slope(x0, x1, f0, f1) * (_share(x, x0, x1) - 1.0),
        lambda out, x, x0, x1, f0, f1: -_slope(x0, x1, f0, f1) * _share(x, x0, x1),
        lambda out, x, x0, x1, f0, f1: 1.0 - _share(x, x0, x1),
        lambda out, x, x0, x1, f0, f1: _share(x, x0, x1),
    ]
)
def on_segment(x, x0, x1, f0, f1):
    """The value at x of the line through two points; exact at both of them, and where one of them is infinite its limit."""
    slope = (f1 - f0) / (x1 - x0)
    left = slope * (x - x0) + f0
    right = slope * (x - x1) + f1
    inner = scalar.sel(scalar.isnan(left), scalar.sel(scalar.isnan(right) & (f0 == f1), f0, right), left)
    found = scalar.sel(x == x1, f1, scalar.sel(x == x0, f0, inner))
    return scalar.sel(scalar.isnan(x), x, found)


def _interp_samples(rng: np.random.Generator) -> list[Call]:
    def points(n: int) -> Any:
        return np.cumsum(rng.uniform(0.3, 1.0, n)) - 1.5

    return [
        Call((uniform(rng, 2, 3), points(5), uniform(rng, 5)), {}),
        Call((uniform(rng, 6), points(3), uniform(rng, 3)), {"left": -1.0, "right": 7.5}),
        Call((uniform(rng), points(4), uniform(rng, 4)), {}),
        Call((uniform(rng, 3), points(1), uniform(rng, 1)), {"left": 2.0}),
        Call((uniform(rng, 0), points(3), uniform(rng, 3)), {}),
        Call((4.0 * uniform(rng, 5), points(4)[[2, 0, 3, 1]], uniform(rng, 4)), {"period": 5.5}),
    ]


def _interp_reference(x: Any, xp: Any, fp: Any, **kw: Any) -> Any:
    """NumPy's, which does not look whether points increase, and then gives anything."""
    ordered = xp if kw.get("period") is None else np.sort(np.mod(xp, kw["period"]))
    if not np.all(np.diff(ordered) >= 0) or np.isnan(ordered).any():
        raise ValueError("these points do not increase")
    return np.interp(x, xp, fp, **kw)


@operation(samples=_interp_samples, reference=_interp_reference)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Value:
    """Values at ``x`` of the piecewise linear function through the points ``(xp[i], fp[i])``, where ``xp`` increases.

    ``left`` and ``right``: the values outside, by default those at the ends. ``period``: ``x`` and ``xp`` count up to
    multiples of it, in any order, and there is no outside. float32 stays float32. Raises ShapeError where ``xp`` and
    ``fp`` are not vectors of one length or are empty. As in NumPy, nobody looks whether ``xp`` increases.

    Derivative: ``fp`` gets the weights of the two neighbours, ``x`` the slope between them, ``xp`` that times minus the
    weights. At a point it is that of the segment on its right, and at the last one that on its left; outside, ``x`` gets
    0 and what stands for the outside (``left``, ``right`` or the value at the end) gets 1.

    >>> import jitgrad as jg
    >>> jg.interp([0.5, 3.0], [0.0, 1.0, 2.0], [10.0, 20.0, 40.0])
    tensor([15., 40.])
    """
    parts = [floating(as_value(v, "interp"), None, "interp") for v in (x, xp, fp)]
    dtype = result_dtype(*(v.dtype for v in parts))
    place, points, values = (cast(v, dtype, "interp") for v in parts)
    if points.ndim != 1 or values.shape != points.shape:
        raise ShapeError(
            f"interp: xp and fp must be vectors of one length, not of shapes {points.shape} and {values.shape}"
        )
    if points.shape[0] == 0:
        raise ShapeError("interp: there are no points")
    if period is not None:
        place, points, values = _periodic(place, points, values, period, dtype)
        left = right = None
    n = points.shape[0]
    if n == 1:
        inside = _end(values, 0)
    else:
        left_point = clip(searchsorted(points, place, "right") - 1, 0, n - 2)
        neighbours = (left_point, left_point + 1)
        inside = on_segment(place, *(gather(v, at) for v in (points, values) for at in neighbours))
    first, last = _end(points, 0), _end(points, n - 1)
    before = _end(values, 0) if left is None else _outside(left, dtype)
    behind = _end(values, n - 1) if right is None else _outside(right, dtype)
    return where(place < first, before, where(place > last, behind, inside))


def _end(x: Value, at: int) -> Value:
    return slice_view(x, index=(at,))


def _outside(value: Any, dtype: np.dtype[Any]) -> Value:
    return cast(as_value(value, "interp"), dtype, "interp")


def _periodic(x: Value, xp: Value, fp: Value, period: Any, dtype: np.dtype[Any]) -> tuple[Value, Value, Value]:
    """The operands within one period, the points in order, with one more on either side."""
    length = as_value(period, "interp: period")
    if length.ndim:
        raise ShapeError(f"interp: period must be one number, not of shape {length.shape}")
    if not length.is_traced and not length.item():
        raise ArgumentError("interp: period must not be 0")
    length = abs(cast(length, dtype, "interp: period"))
    x, xp = remainder(x, length), remainder(xp, length)
    order = argsort(xp)
    xp, fp = gather(xp, order), gather(fp, order)
    n = xp.shape[0]

    def point(values: Value, at: int) -> Value:
        return reshape_to(_end(values, at), shape=(1,))

    return (
        x,
        join(point(xp, n - 1) - length, xp, point(xp, 0) + length, axis=0),
        join(point(fp, n - 1), fp, point(fp, 0), axis=0),
    )
