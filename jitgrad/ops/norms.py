"""Norms of vectors and matrices under NumPy's names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import make_aval
from jitgrad.core.primitive import ArrayCall, Value
from jitgrad.errors import ArgumentError, ShapeError
from jitgrad.kernels.kernel import ArrayKernel
from jitgrad.ops.array_calls import axes_alike, flat, rows
from jitgrad.ops.array_primitives import array_call
from jitgrad.ops.axes import axes_of, axis_of, dropped_shape
from jitgrad.ops.blocks import Call, operation, primitive_of, uniform
from jitgrad.ops.elementwise import abs as absolute
from jitgrad.ops.elementwise import ratio_or_zero
from jitgrad.ops.factorisations import singular_values
from jitgrad.ops.linear import convert, permute, spread, sum_over
from jitgrad.ops.matrix_operands import apart, floats, stacks_of_matrices
from jitgrad.ops.reduction import Axis, count_over, kept, max_over, min_over


@ArrayKernel
def length_kernel(x, out):
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total = scalar.radd(total, np.float64(x[i, j]) * x[i, j])
        if total < 1e-280 or total > 1e300:  # squares were lost: again, with the largest element as the unit
            unit = 0.0
            for j in range(x.shape[1]):
                unit = scalar.maximum(unit, np.float64(scalar.fabs(x[i, j])))
            if unit > 0.0 and unit < np.inf:
                total = 0.0
                for j in range(x.shape[1]):
                    ratio = x[i, j] / unit
                    total = scalar.radd(total, ratio * ratio)
                out[i] = unit * scalar.sqrt(total)
            else:
                out[i] = unit
        else:
            out[i] = scalar.sqrt(total)


@ArrayKernel
def power_length_kernel(x, out, p):
    for i in range(x.shape[0]):
        unit = 0.0
        for j in range(x.shape[1]):
            unit = scalar.maximum(unit, np.float64(scalar.fabs(x[i, j])))
        if not (unit > 0.0 and unit < np.inf):
            unit = 1.0
        total = 0.0
        for j in range(x.shape[1]):
            total += scalar.pow(np.float64(scalar.fabs(x[i, j])) / unit, p)
        out[i] = unit * scalar.pow(total, 1.0 / p)


def _reduced(x: Any, *, axes: tuple[int, ...], **params: Any) -> Any:
    return make_aval(dropped_shape(x.shape, axes), x.dtype)


def _length_slope(out: Value, x: Value, axes: tuple[int, ...]) -> Value:
    return ratio_or_zero(x, spread(out, x.shape, axes))


@array_call(
    infer=_reduced,
    vjp=lambda g, out, x, *, axes: (spread(g, x.shape, axes) * _length_slope(out, x, axes),),
    jvp=lambda tangents, out, x, *, axes: sum_over(tangents[0] * _length_slope(out, x, axes), axes=axes),
    last="axes",
)
def length(x, out, *, axes):
    """The square root of the sum of squares, without overflow on the way; squares are added in float64."""
    return ArrayCall(length_kernel, (rows(x, len(axes)), flat(out)), axes_alike(x, out, out.ndim))


@primitive_of(
    [
        lambda out, x, r, p: (p - 1.0) * (absolute(x) / r) ** (p - 2.0) / r,
        lambda out, x, r, p: (1.0 - p) * out / r,
        None,
    ]
)
def _power_share(x, r, p):
    """The sign of x times (|x| / r)**(p - 1); 0 at x = 0, where orders below 1 would give an infinite one."""
    return scalar.sel(x == 0.0, 0.0, scalar.copysign(scalar.pow(scalar.fabs(x) / r, p - 1.0), x))


def _power_slope(out: Value, x: Value, axes: tuple[int, ...], p: float) -> Value:
    """The derivative of a p-norm: the sign times the share of the element to the power p - 1."""
    return _power_share(x, spread(out, x.shape, axes), p)


@array_call(
    infer=_reduced,
    vjp=lambda g, out, x, *, axes, p: (spread(g, x.shape, axes) * _power_slope(out, x, axes, p),),
    jvp=lambda tangents, out, x, *, axes, p: sum_over(tangents[0] * _power_slope(out, x, axes, p), axes=axes),
    last="axes",
)
def power_length(x, out, *, axes, p):
    """The p-norm along axes, scaled by the largest element."""
    return ArrayCall(power_length_kernel, (rows(x, len(axes)), flat(out), p), axes_alike(x, out, out.ndim))


def _order(order: Any, what: str) -> float:
    if isinstance(order, bool) or not isinstance(order, int | float | np.number):
        raise ArgumentError(f"{what}: ord {order!r} is not an order of a norm of vectors; give a number or inf")
    return float(order)


def _vector_norm(x: Value, axes: tuple[int, ...], order: Any, what: str) -> Value:
    p = _order(order, what)
    if p == 2.0:
        return length(x, axes=axes)
    if p == 1.0:
        return sum_over(absolute(x), axes=axes)
    if math.isinf(p):
        if math.prod(x.shape[i] for i in axes) == 0:
            raise ShapeError(f"{what}: the norm of order {order} of no elements is not defined (shape {x.shape})")
        return (max_over if p > 0 else min_over)(absolute(x), axes=axes)
    if p == 0.0:
        return convert(count_over(x, axes=axes), dtype=x.dtype)
    return power_length(x, axes=axes, p=p)


def norm_of_matrices(x: Value, axes: tuple[int, int], order: Any, what: str) -> Value:
    """The norm over the axes (rows, columns)."""
    rows, columns = axes
    if order is None or order in ("fro", "f"):
        return length(x, axes=(min(axes), max(axes)))
    if order == "nuc" or order in (2, -2):
        others = [i for i in range(x.ndim) if i not in axes]
        s = singular_values(permute(x, axes=(*others, rows, columns)))
        last = (s.ndim - 1,)
        if order == "nuc":
            return sum_over(s, axes=last)
        if s.shape[-1] == 0:
            raise ShapeError(f"{what}: the norm of order {order} of no elements is not defined (shape {x.shape})")
        return (max_over if order > 0 else min_over)(s, axes=last)  # not the first or last: ties share
    if order in (1, -1, math.inf, -math.inf):
        inner, outer = (rows, columns) if abs(order) == 1 else (columns, rows)
        sums = sum_over(absolute(x), axes=(inner,))
        rest = (outer - (inner < outer),)
        if x.shape[outer] == 0:
            raise ShapeError(f"{what}: the norm of order {order} of no elements is not defined (shape {x.shape})")
        return (max_over if order > 0 else min_over)(sums, axes=rest)
    raise ArgumentError(
        f"{what}: ord {order!r} is not an order of a norm of matrices; those are 'fro', 'nuc', 1, -1, 2, -2, inf, -inf"
    )


def _norm_samples(rng: np.random.Generator) -> list[Call]:
    v, m, t = uniform(rng, 5), apart(rng, 3, 4), uniform(rng, 2, 3, 4)
    return [
        Call((v,), {}),
        Call((t,), {}),
        *(Call((v,), {"ord": p}) for p in (1, 2, 3, 2.5, -1, math.inf, -math.inf)),
        *(Call((m,), {"ord": p}) for p in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)),
        Call((t, 3), {"axis": 1, "keepdims": True}),
        Call((t,), {"axis": (0, 2), "keepdims": True}),
        Call((t, 1), {"axis": (2, 0)}),
        Call((t, -math.inf), {"axis": (-1, 1), "keepdims": True}),
        Call((uniform(rng, 0),), {}),
        Call((uniform(rng, 2, 0), 1), {"axis": 1}),
    ]


@operation(samples=_norm_samples, namespace="linalg", remembered=True)
def norm(x: Any, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Value:
    """Norm of vectors (one axis) or matrices (two axes); of all elements without ``ord`` and ``axis``.

    ``ord`` of vectors: 2 by default, any number, inf, -inf, 0 (how many are not zero); of matrices: 'fro' by default,
    'nuc', 1, -1, 2, -2, inf, -inf. Overflows only where the result does. An ArgumentError for another ``ord``.
    Derivative: ``x / norm`` for 2 and 'fro', 0 where the norm is 0 (there the second derivative is NaN); the sign
    for 1; split over the ties for inf.

    >>> import jitgrad as jg
    >>> jg.linalg.norm([3.0, 4.0])
    tensor(5.)
    """
    x = floats(x, "norm")
    if axis is None:
        every = tuple(range(x.ndim))
        if ord is None or (ord in ("f", "fro") and x.ndim == 2) or (ord == 2 and x.ndim == 1):
            return kept(length(x, axes=every), x, every, keepdims)
        if x.ndim not in (1, 2):
            raise ShapeError(f"norm: ord {ord!r} of an array of shape {x.shape}: name the one or two axes")
        axis = every
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(axis_of(a, x.ndim) for a in given)
    if len(axes) == 1:
        return kept(_vector_norm(x, axes, 2 if ord is None else ord, "norm"), x, axes, keepdims)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ArgumentError(f"norm: axis {axis} must name one axis or two different ones")
    return kept(norm_of_matrices(x, (axes[0], axes[1]), ord, "norm"), x, axes, keepdims)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 5),), {}),
        Call((uniform(rng, 2, 3),), {"ord": 1}),
        Call((uniform(rng, 2, 3, 2),), {"axis": (0, 2), "ord": 3}),
        Call((uniform(rng, 2, 3),), {"axis": 0, "keepdims": True, "ord": math.inf}),
        Call((uniform(rng),), {}),
    ],
    namespace="linalg",
    remembered=True,
)
def vector_norm(x: Any, *, axis: Axis = None, keepdims: bool = False, ord: Any = 2) -> Value:
    """Norm of the elements along axes (all by default), as of one vector.

    ``ord``: any number, inf, -inf, 0. Derivative: as ``norm``.

    >>> import jitgrad as jg
    >>> jg.linalg.vector_norm([[3.0, 4.0], [0.0, 0.0]])
    tensor(5.)
    """
    x = floats(x, "vector_norm")
    axes = axes_of(axis, x.ndim)
    return kept(_vector_norm(x, axes, ord, "vector_norm"), x, axes, keepdims)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3),), {}),
        Call((apart(rng, 2, 3, 3),), {"ord": 2, "keepdims": True}),
        Call((apart(rng, 2, 2, 3),), {"ord": "nuc"}),
    ],
    namespace="linalg",
    remembered=True,
)
def matrix_norm(x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Value:
    """Norm of matrices, over the last two axes.

    ``ord``: 'fro', 'nuc', 1, -1, 2, -2, inf, -inf. Derivative: as ``norm``.

    >>> import jitgrad as jg
    >>> jg.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]], ord="nuc")
    tensor(7.)
    """
    x = stacks_of_matrices(x, "matrix_norm")
    axes = (x.ndim - 2, x.ndim - 1)
    return kept(norm_of_matrices(x, axes, ord, "matrix_norm"), x, axes, keepdims)
