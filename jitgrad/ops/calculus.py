"""Integrals and derivatives of sampled functions, and values of polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core.dispatch import as_value, wrap
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError, UnsupportedError
from jitgrad.ops.axes import axis_of, index_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.linear import convert, expand, join, reshape_to, slice_view
from jitgrad.ops.reduction import floating, sum
from jitgrad.ops.scan import diff

__all__ = ["gradient", "polyval", "trapezoid"]


def _cut(x: Value, axis: int, start: int | None, stop: int | None) -> Value:
    """The elements from ``start`` to ``stop`` of an axis."""
    return slice_view(x, index=((None, None, None),) * axis + ((start, stop, None),))


def _along(distances: Value, axis: int, ndim: int) -> Value:
    """A vector along one of ``ndim`` axes."""
    return reshape_to(distances, shape=(1,) * axis + distances.shape + (1,) * (ndim - axis - 1))


# --------------------------------------------------------------------------- integrals


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 5),), {}),
        Call((uniform(rng, 3, 4),), {"dx": 0.5, "axis": 0}),
        Call((uniform(rng, 3, 4), uniform(rng, 4)), {}),
        Call((uniform(rng, 3, 4, 2), uniform(rng, 3, 4, 2)), {"axis": 1}),
        Call((uniform(rng, 3, 4), uniform(rng, 3)), {"axis": -2}),
        Call((uniform(rng, 3, 1),), {}),
        Call((uniform(rng, 2, 0),), {}),
    ]
)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Value:
    """Integral along an axis by the trapezoidal rule: the sum of ``(x[i+1] - x[i]) * (y[i] + y[i+1]) / 2``.

    ``x``: the points, a vector along the axis or an array that broadcasts with ``y``; without it they are ``dx`` apart.
    Raises ShapeError where shapes do not fit. Derivative: each value gets half of the distances on both sides of it,
    each point half of the difference of the values beside it.

    >>> import jitgrad as jg
    >>> jg.trapezoid([0.0, 1.0, 4.0], dx=0.5)
    tensor(1.5)
    """
    y = as_value(y, "trapezoid: y")
    number = axis_of(axis, y.ndim, "trapezoid: axis")
    distances = dx
    if x is not None:
        points = as_value(x, "trapezoid: x")
        distances = _along(diff(points), number, y.ndim) if points.ndim == 1 else diff(points, axis=axis)
    both = _cut(y, number, 1, None) + _cut(y, number, None, -1)
    return sum(distances * both / 2.0, axis)


# --------------------------------------------------------------------------- derivatives


def _gradient_samples(rng: np.random.Generator) -> list[Call]:
    def points(n: int) -> Any:
        return np.cumsum(rng.uniform(0.5, 1.5, n))

    f = uniform(rng, 4, 5)
    return [
        Call((f[0],), {}),
        Call((f,), {}),
        Call((f, 0.5), {"edge_order": 2}),
        Call((f, 2.0, points(5)), {}),
        Call((f, points(4)), {"axis": 0, "edge_order": 2}),
        Call((f, points(5), 0.25), {"axis": (-1, 0)}),
        Call((f[:2, :4], points(4)), {"axis": 1}),  # of three, infinite ones at both ends are equally far for NumPy
        Call((f[:2, :3], 0.5), {"axis": 1}),
        Call((f[:2],), {"axis": 0}),
    ]


def _spacing(distance: Any, extent: int) -> Value:
    """A distance as it is, or the distances of coordinates."""
    distance = as_value(distance, "gradient: spacing")
    if distance.ndim == 0:
        return distance
    if distance.ndim > 1:
        raise ShapeError(f"gradient: distances are numbers or vectors of coordinates, not of shape {distance.shape}")
    if distance.shape[0] != extent:
        raise ShapeError(f"gradient: {distance.shape[0]} coordinates for an axis of extent {extent}")
    return diff(floating(distance, None, "gradient: spacing"))


def _inner_slopes(f: Value, spacing: Value, axis: int) -> Value:
    """The slope at the inner points: of the parabola through a point and its neighbours."""
    before, behind = _cut(f, axis, None, -2), _cut(f, axis, 2, None)
    if spacing.ndim == 0:
        return (behind - before) / (2.0 * spacing)
    left, right = _cut(spacing, axis, None, -1), _cut(spacing, axis, 1, None)
    both = left + right
    middle = _cut(f, axis, 1, -1) * ((right - left) / (left * right))
    return middle + behind * (left / (right * both)) - before * (right / (left * both))


def _end_slope(f: Value, spacing: Value, axis: int, edge_order: int, *, last: bool) -> Value:
    """The slope at an end: of the line to the next point, or of the parabola through the next two."""

    def taken(values: Value, k: int) -> Value:
        at = values.shape[axis] - 1 - k if last else k
        return _cut(values, axis, at, at + 1)

    end, second = taken(f, 0), taken(f, 1)
    near = spacing if spacing.ndim == 0 else taken(spacing, 0)
    if edge_order == 1:
        slope = (second - end) / near
    elif spacing.ndim == 0:
        slope = (2.0 * second - 1.5 * end - 0.5 * taken(f, 2)) / near
    else:
        far = taken(spacing, 1)
        both = near + far
        slope = second * (both / (near * far)) - end * ((near + both) / (near * both))
        slope = slope - taken(f, 2) * (near / (far * both))
    return -slope if last else slope


def _slopes(f: Value, spacing: Value, axis: int, edge_order: int) -> Value:
    if f.shape[axis] < edge_order + 1:
        raise ShapeError(
            f"gradient: axis {axis} of shape {f.shape} needs at least edge_order + 1 = {edge_order + 1} elements"
        )
    if spacing.ndim:
        spacing = _along(spacing, axis, f.ndim)
    parts = [
        _end_slope(f, spacing, axis, edge_order, last=False),
        _inner_slopes(f, spacing, axis),
        _end_slope(f, spacing, axis, edge_order, last=True),
    ]
    return join(*(p if p.dtype == f.dtype else convert(p, dtype=f.dtype) for p in parts), axis=axis)


@operation(samples=_gradient_samples)
def gradient(f: Any, *varargs: Any, axis: int | Sequence[int] | None = None, edge_order: int = 1) -> Any:
    """Slopes of sampled values along axes (all by default): by central differences inside, one-sided ones at the ends.

    ``varargs``: the distance of neighbours, or a distance or a vector of coordinates for each axis. ``edge_order``: 1 or
    2, the order of the differences at the ends. One array for one axis, a tuple of them for several. Integers become
    float64. With coordinates a NaN spoils the slope at its own place as well (where they are equally far apart, infinitely
    far included, NumPy leaves the middle value out). Raises ShapeError where extents do not fit.
    Derivative: that of the formula, by the values and by the distances and coordinates.

    >>> import jitgrad as jg
    >>> jg.gradient([1.0, 4.0, 9.0, 16.0])
    tensor([3., 4., 6., 7.])
    """
    f = floating(as_value(f, "gradient"), None, "gradient")
    given = range(f.ndim) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    axes = [axis_of(i, f.ndim, "gradient: axis") for i in given]
    if len(set(axes)) < len(axes):
        raise ArgumentError(f"gradient: axis {axis} names an axis twice")
    order = index_of(edge_order, "gradient: edge_order")
    if order not in (1, 2):
        raise ArgumentError(f"gradient: edge_order must be 1 or 2, not {edge_order}")
    distances = varargs or (1.0,)
    if len(distances) == 1 and as_value(distances[0], "gradient: spacing").ndim == 0:
        distances = distances * len(axes)
    if len(distances) != len(axes):
        raise UnsupportedError(f"gradient: {len(distances)} distances for {len(axes)} axes")
    found = tuple(_slopes(f, _spacing(d, f.shape[i]), i, order) for i, d in zip(axes, distances, strict=True))
    return found[0] if len(found) == 1 else found


# --------------------------------------------------------------------------- polynomials


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 4), uniform(rng, 2, 3)), {}),
        Call((uniform(rng, 1), uniform(rng, 3)), {}),
        Call((uniform(rng, 3), uniform(rng)), {}),
        Call((uniform(rng, 3, 2), uniform(rng, 2)), {}),
        Call(([1, 0, -2], uniform(rng, 3)), {}),
        Call((np.zeros(0), uniform(rng, 3)), {}),
    ]
)
def polyval(p: Any, x: Any) -> Value:
    """Values of the polynomial with the coefficients ``p``, that of the highest power first: by Horner's rule.

    Any dtype and shape of ``x``; coefficients may be arrays that broadcast with it. Raises ShapeError where ``p`` has no
    axis. Derivative: that of the polynomial by ``x``, the powers of ``x`` by the coefficients.

    >>> import jitgrad as jg
    >>> jg.polyval([3.0, 0.0, 1.0], 5.0)
    tensor(76.)
    """
    p, x = as_value(p, "polyval: p"), as_value(x, "polyval: x")
    if p.ndim == 0:
        raise ShapeError("polyval: the coefficients must be a sequence, not a scalar")
    value = expand(wrap(np.zeros((), x.dtype)), shape=x.shape)
    for k in range(p.shape[0]):
        value = value * x + slice_view(p, index=(k,))
    return value
