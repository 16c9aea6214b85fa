"""Variance, standard deviation, order statistics and weighted means."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import INT64, make_aval
from jitgrad.core.dispatch import as_value, constant
from jitgrad.core.primitive import ArrayCall, Folded, Value
from jitgrad.errors import ArgumentError, NotDifferentiableError, ShapeError
from jitgrad.kernels.kernel import ArrayKernel
from jitgrad.ops.array_calls import slabs
from jitgrad.ops.axes import axes_of, dropped_shape, extent_of, flat_offsets, from_rows, rows_of
from jitgrad.ops.blocks import Call, host, operation, primitive_of
from jitgrad.ops.comparison import equal
from jitgrad.ops.elementwise import floor, floor_divide, remainder, sqrt
from jitgrad.ops.linear import (
    convert,
    copy_of,
    expand,
    flat,
    gather,
    indices_of,
    kept_shape,
    permute,
    reshape_to,
    slice_view,
    spread,
    sum_over,
)
from jitgrad.ops.reduction import (
    Axis,
    floating,
    kept,
    mean_over,
    reduction_samples,
    sum,
)
from jitgrad.ops.selection import maximum, where
from jitgrad.ops.sorting import order_line

__all__ = [
    "average",
    "median",
    "percentile",
    "quantile",
    "std",
    "var",
]

Array = np.ndarray[Any, Any]

# --------------------------------------------------------------------------- variance


@ArrayKernel
def variance_kernel(x, divisor, out):
    """Mean square distance to the mean, in two passes; distances are taken from the first element first, so that a row
    of equal elements gives exactly 0."""
    n = x.shape[1]
    for r in range(x.shape[0]):
        row = x[r]
        if divisor > 0.0 and n > 0:
            first = np.float64(row[0])
            total = 0.0
            for k in range(n):
                total = scalar.radd(total, np.float64(row[k]) - first)
            shift = total / n
            total = 0.0
            rest = 0.0
            for k in range(n):
                distance = (np.float64(row[k]) - first) - shift
                rest = scalar.radd(rest, distance)
                total = scalar.radd(total, distance * distance)
            out[r] = scalar.maximum(total - rest * rest / n, 0.0) / divisor
        else:
            out[r] = np.nan


@ArrayKernel
def center_kernel(x, factor, out):
    """Each row less its mean, times its factor."""
    n = x.shape[1]
    for r in range(x.shape[0]):
        row = x[r]
        made = out[r]
        scale = np.float64(factor[r])
        if n > 0:
            first = np.float64(row[0])
            total = 0.0
            for k in range(n):
                total = scalar.radd(total, np.float64(row[k]) - first)
            shift = total / n
            for k in range(n):
                made[k] = ((np.float64(row[k]) - first) - shift) * scale


def _centered(x: Array, axes: tuple[int, ...], factor: Array | None) -> Array:
    rows = rows_of(x, axes)
    out = np.empty_like(rows)
    center_kernel(rows, np.ones(rows.shape[0], x.dtype) if factor is None else flat(factor), out)
    return from_rows(out, x.shape, axes)


def _center_expression(x, *, axes):
    if not x.size:
        return copy_of(x)
    first = slice_view(x, index=tuple([0 if i in axes else (None, None, None) for i in range(x.ndim)]))
    distance = x - spread(first, x.shape, axes)
    return distance - spread(mean_over(distance, axes=axes), x.shape, axes)


def _scaled_center_expression(factor, x, *, axes):
    return _center_expression(x, axes=axes) * spread(factor, x.shape, axes)


def _variance_expression(x, *, axes, correction):
    count = extent_of(x.shape, axes)
    if count <= correction:
        return _not_a_number(x, axes)
    centered = _center_expression(x, axes=axes)
    rest = sum_over(centered, axes=axes)
    squares = sum_over(centered * centered, axes=axes) - rest * rest / float(count)
    return maximum(squares, 0.0) / float(count - correction)


def _deviation_expression(x, *, axes, correction):
    return sqrt(_variance_expression(x, axes=axes, correction=correction))


def _center_transpose(g, x, *, axes):
    return center(g, axes=axes)


@host(
    infer=lambda x, *, axes: make_aval(x.shape, x.dtype),
    transpose=_center_transpose,
    contracts=True,
    expression=_center_expression,
)
def center(x, *, axes):
    """The elements less their mean: a projection, which is its own transpose."""
    return _centered(x, axes, None)


@host(
    infer=lambda factor, x, *, axes: make_aval(x.shape, x.dtype),
    transposes=(
        lambda g, factor, x, *, axes: sum_over(g * center(x, axes=axes), axes=axes),
        lambda g, factor, x, *, axes: center(g * spread(factor, x.shape, axes), axes=axes),
    ),
    expression=_scaled_center_expression,
)
def scaled_center(factor, x, *, axes):
    """The elements less their mean, times a factor for each mean: the shape of the gradient of a variance."""
    return _centered(x, axes, factor)


@primitive_of([lambda out, x, y: 1.0 / y, lambda out, x, y: -out / y], result="float")
def quotient_or_zero(x, y):
    """x / y, and 0 where y is 0, which is what a standard deviation of 0 gets; its derivative is not mended there."""
    return scalar.sel(y == 0.0, x * 0.0, x / y)


def _inverse_degrees(x: Value, axes: tuple[int, ...], correction: float) -> float:
    """1/(n - correction), or NaN where that is not positive."""
    degrees = extent_of(x.shape, axes) - correction
    return 1.0 / degrees if degrees > 0 else float("nan")


def _variance(x: Array, axes: tuple[int, ...], correction: float) -> Array:
    out = np.empty(dropped_shape(x.shape, axes), x.dtype)
    variance_kernel(rows_of(x, axes), float(extent_of(x.shape, axes) - correction), out.reshape(-1))
    return out


def _variance_aval(x, *, axes, correction):
    return make_aval(dropped_shape(x.shape, axes), x.dtype)


def _var_vjp(g, out, x, *, axes, correction):
    return (scaled_center(g * (2.0 * _inverse_degrees(x, axes, correction)), x, axes=axes),)


def _var_jvp(tangents, out, x, *, axes, correction):
    moved = sum_over(tangents[0] * center(x, axes=axes), axes=axes)
    return moved * (2.0 * _inverse_degrees(x, axes, correction))


@host(infer=_variance_aval, vjp=_var_vjp, jvp=_var_jvp, expression=_variance_expression)
def var_over(x, *, axes, correction):
    return _variance(x, axes, correction)


def _std_vjp(g, out, x, *, axes, correction):
    return (scaled_center(quotient_or_zero(g * _inverse_degrees(x, axes, correction), out), x, axes=axes),)


def _std_jvp(tangents, out, x, *, axes, correction):
    moved = sum_over(tangents[0] * center(x, axes=axes), axes=axes)
    return quotient_or_zero(moved * _inverse_degrees(x, axes, correction), out)


@host(infer=_variance_aval, vjp=_std_vjp, jvp=_std_jvp, expression=_deviation_expression)
def std_over(x, *, axes, correction):
    out = _variance(x, axes, correction)
    return np.sqrt(out, out=out)


def _spread_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    return [
        Call((a,), {}),
        Call((a,), {"axis": 1, "ddof": 1}),
        Call((a, 0), {"correction": 0.5}),
        Call((a,), {"axis": (0, -1), "keepdims": True}),
        Call((a.transpose(2, 0, 1),), {"axis": (-1, 0)}),
    ]


def _correction(ddof: Any, correction: Any, what: str) -> float:
    if correction is not None and ddof:
        raise ArgumentError(f"{what}: ddof and correction are two names of one thing; give one of them")
    given = ddof if correction is None else correction
    return float(given)


@operation(samples=_spread_samples, method=True, remembered=True)
def var(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    *,
    ddof: float = 0,
    keepdims: bool = False,
    correction: float | None = None,
) -> Value:
    """Variance over axes (all by default): mean square distance to the mean, with divisor ``n - ddof``.

    Computed in two passes, in float64 inside; NaN (and a NaN gradient) where ``n <= ddof``. Integers become float64.
    ``correction`` is the array API's name for ``ddof``. Derivative: ``2 (x - mean(x)) / (n - ddof)``.

    >>> import jitgrad as jg
    >>> jg.var([1.0, 2.0, 3.0, 4.0])
    tensor(1.25)
    """
    x = floating(as_value(x, "var"), dtype, "var")
    axes = axes_of(axis, x.ndim, "var: axis")
    return kept(var_over(x, axes=axes, correction=_correction(ddof, correction, "var")), x, axes, keepdims)


@operation(samples=_spread_samples, method=True, remembered=True)
def std(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    *,
    ddof: float = 0,
    keepdims: bool = False,
    correction: float | None = None,
) -> Value:
    """Standard deviation over axes (all by default): the square root of ``var``.

    NaN (and a NaN gradient) where ``n <= ddof``. Derivative: ``(x - mean(x)) / ((n - ddof) std)``, 0 where all elements
    are equal (there the second derivative is NaN).

    >>> import jitgrad as jg
    >>> jg.std([1.0, 3.0])
    tensor(1.)
    """
    x = floating(as_value(x, "std"), dtype, "std")
    axes = axes_of(axis, x.ndim, "std: axis")
    return kept(std_over(x, axes=axes, correction=_correction(ddof, correction, "std")), x, axes, keepdims)


# --------------------------------------------------------------------------- order statistics


@ArrayKernel
def ranked_kernel(x, fractions, out):
    """As ``ranked_positions``, over the middle axis."""
    before, n, behind = x.shape
    keys = np.empty(n, x.dtype)
    order = np.empty(n, np.int64)
    spare = np.empty(n, np.int64)
    for o in range(before):
        for i in range(behind):
            order_line(x, o, i, keys, order, spare, False)
            highest = order[n - 1]
            for q in range(len(fractions)):
                below = int(fractions[q] * (n - 1))
                above = min(below + 1, n - 1)
                known = keys[highest] == keys[highest]
                out[q, o, i] = (o * n + (order[below] if known else highest)) * behind + i
                out[len(fractions) + q, o, i] = (o * n + (order[above] if known else highest)) * behind + i


def _ranked_call(x, out, *, axes, fractions):
    first = axes[0] if axes else 0
    if axes != tuple(range(first, first + len(axes))):
        return None
    equal = tuple(((0, i if i < first else i + len(axes)), (1, i + 1)) for i in range(out.ndim - 1))
    places = Folded(1, ((0,), tuple(range(1, first + 1)), tuple(range(first + 1, out.ndim))))
    return ArrayCall(ranked_kernel, (slabs(x, first, len(axes)), fractions, places), equal)


def _ranked_expression(x, *, axes, fractions):
    """Over axes that are not neighbours: with these moved to the end; positions are counted in the old order again."""
    if not axes or axes == tuple(range(axes[0], axes[-1] + 1)):
        return None
    order = (*(i for i in range(x.ndim) if i not in axes), *axes)
    moved = permute(x, axes=order)
    found = ranked_positions(moved, axes=tuple(range(x.ndim - len(axes), x.ndim)), fractions=fractions)
    total = None
    for k, i in enumerate(order):
        stride, old = (
            extent_of(moved.shape, tuple(range(k + 1, x.ndim))),
            extent_of(x.shape, tuple(range(i + 1, x.ndim))),
        )
        part = remainder(floor_divide(found, stride), int(x.shape[i])) * old
        total = part if total is None else total + part
    return total


_FEW_RANKS, _FEW_ELEMENTS = 8, 64


def _ranked(rows: Array, ranks: tuple[int, ...]) -> Array:
    """Where the elements of given ranks are in each row, as a stable sort has them; the last NaN where there is one."""
    last = rows.shape[1] - 1
    number = np.arange(len(rows))[:, None]
    if len(ranks) <= _FEW_RANKS and last >= _FEW_ELEMENTS:
        order = np.argpartition(rows, sorted({*ranks, last}), axis=1)
        chosen = order[:, ranks]
        values = rows[number, chosen]
        # which of equal elements it finds is anyone's guess, and of several NaN as well
        alone = all(np.count_nonzero(rows == values[:, k : k + 1]) == len(rows) for k in range(len(ranks)))
        if alone and not np.isnan(rows[number, order[:, last:]]).any():
            return chosen
    order = np.argsort(rows, axis=1, kind="stable")
    chosen, highest = order[:, ranks], order[:, last:]
    return np.where(np.isnan(rows[number, highest]), highest, chosen)


@host(
    infer=lambda x, *, axes, fractions: make_aval((2 * len(fractions), *dropped_shape(x.shape, axes)), INT64),
    nondiff=True,
    call=_ranked_call,
    expression=_ranked_expression,
)
def ranked_positions(x, *, axes, fractions):
    """Where, in C order, the elements are that have these fractions of the others over the axes below them (equal ones
    count in that order): first the nearest below each fraction, then those one above; the place of the last NaN where there
    is one."""
    rows = rows_of(x, axes)
    last = rows.shape[1] - 1
    below = [int(f * last) for f in fractions]
    chosen = _ranked(rows, (*below, *(min(b + 1, last) for b in below)))
    others = tuple(i for i in range(x.ndim) if i not in axes)
    if (*others, *axes) == tuple(range(x.ndim)):  # the rows lie one after the other
        found = chosen + (last + 1) * np.arange(len(rows))[:, None]
    else:
        found = flat_offsets(x.shape, axes)[chosen] + flat_offsets(x.shape, others)[:, None]
    return np.ascontiguousarray(found.T).reshape(2 * len(fractions), *dropped_shape(x.shape, axes))


def _not_a_number(x: Value, axes: tuple[int, ...]) -> Value:
    return expand(constant(np.nan, x.dtype, x), shape=dropped_shape(x.shape, axes))


@operation(samples=reduction_samples)
def median(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Median over axes (all by default): the middle element, or the mean of the two; NaN where there is one.

    Integers become float64. Derivative: 1 for the middle element (one of those that are equal), or half to each of the
    two.

    >>> import jitgrad as jg
    >>> jg.median([3.0, 1.0, 10.0])
    tensor(3.)
    """
    x = floating(as_value(x, "median"), None, "median")
    axes = axes_of(axis, x.ndim, "median: axis")
    return kept(_interpolated(x, axes, np.array([0.5])), x, axes, keepdims)


def _interpolated(x: Value, axes: tuple[int, ...], fractions: Array) -> Value:
    """The values below which these fractions of the elements lie, as first axis if there are several; between two elements,
    a weighted mean."""
    count = fractions.size
    if extent_of(x.shape, axes) == 0:
        shape = dropped_shape(x.shape, axes)
        return expand(constant(np.nan, x.dtype, x), shape=shape if count == 1 else (count, *shape))
    both = gather(x, ranked_positions(x, axes=axes, fractions=tuple(fractions.tolist())))
    low = slice_view(both, index=(0,) if count == 1 else ((0, count, None),))
    if count == 1 and not x.is_traced:
        place = float(fractions[0]) * _last_index(x, axes)
        weight = place - int(place)
        return low * (1.0 - weight) + slice_view(both, index=(1,)) * weight if weight else low
    high = slice_view(both, index=(1,) if count == 1 else ((count, None, None),))
    places = constant(fractions if count != 1 else fractions[0], np.float64, x) * _last_index(x, axes)
    weights = convert(places - floor(places), dtype=x.dtype)
    if count != 1:
        weights = reshape_to(weights, shape=(count, *(1,) * (both.ndim - 1)))
    # no weight: nothing is taken from the neighbour, which may be infinite
    return low * (1.0 - weights) + where(equal(weights, 0.0), 0.0, high * weights)


def _last_index(x: Value, axes: tuple[int, ...]) -> Any:
    """The number of elements over the axes, less one: in a trace a value, which other extents have another one for."""
    if not x.is_traced:
        return extent_of(x.shape, axes) - 1
    count: Any = 1
    for i in axes:
        count = count * (slice_view(indices_of(x.shape[i], x), index=(-1,)) + 1)
    return count - 1


def shares(q: Any, whole: float, what: str) -> Array:
    """Constants between 0 and ``whole``, as parts of that."""
    value = as_value(q, f"{what}: q")
    if value._edge is not None:
        raise NotDifferentiableError(f"{what}: q is not differentiated: detach() it")
    array: Array = value._array(f"{what}: q")
    if not np.all((array >= 0) & (array <= whole)):
        raise ArgumentError(f"{what}: q must lie in [0, {whole:g}], not {q}")
    return array if whole == 1.0 else np.true_divide(array, whole)


def quantile_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 5, 2))
    return [
        Call((a, 0.3), {}),
        Call((a, 0.61), {"axis": 1}),
        Call((a, [0.0, 0.4, 1.0]), {"axis": (0, -1), "keepdims": True}),
        Call((a[0, 0], 0.5), {"axis": 0}),
    ]


def quantile_reference(x: Any, q: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """By sorting; NumPy's own gives NaN, or an infinity, next to infinite elements."""
    x, q = np.asarray(x, np.float64), np.asarray(q)
    axes = axes_of(axis, x.ndim, "quantile: axis")
    rows = np.sort(rows_of(x, axes), axis=1)
    places = q.reshape(-1) * (rows.shape[1] - 1.0)
    below = np.floor(places).astype(int)
    weights = places - below
    high = rows[:, np.ceil(places).astype(int)]
    found = rows[:, below] * (1 - weights) + np.where(weights > 0, high * weights, 0.0)
    found[np.isnan(rows[:, -1])] = np.nan
    rest = kept_shape(x.shape, axes) if keepdims else dropped_shape(x.shape, axes)
    return found.T.reshape((*q.shape, *rest))


@operation(samples=quantile_samples, reference=quantile_reference)
def quantile(x: Any, q: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Quantiles over axes (all by default), interpolated linearly between neighbours; NaN where there is one.

    Next to infinite elements it is the weighted mean, which NumPy's way of computing it misses.

    ``q``: a number in [0, 1] or an array of them (whose axes come first in the result), always a constant. Raises
    ArgumentError for other values. Derivative: the weights of the two neighbours.

    >>> import jitgrad as jg
    >>> jg.quantile([1.0, 2.0, 4.0], 0.75)
    tensor(3.)
    """
    x = floating(as_value(x, "quantile"), None, "quantile")
    wanted = shares(q, 1.0, "quantile")
    axes = axes_of(axis, x.ndim, "quantile: axis")
    mixed = _interpolated(x, axes, wanted.reshape(-1).astype(np.float64))
    rest = kept_shape(x.shape, axes) if keepdims else dropped_shape(x.shape, axes)
    return reshape_to(mixed, shape=(*wanted.shape, *rest))


def percentile_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 5))
    return [Call((a, 30.0), {}), Call((a, [0.0, 40.0, 100.0]), {"axis": 1})]


def _percentile_reference(x: Any, q: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return quantile_reference(x, np.true_divide(q, 100.0), axis, keepdims=keepdims)


@operation(samples=percentile_samples, reference=_percentile_reference)
def percentile(x: Any, q: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """``quantile(x, q / 100)``.

    Derivative: as ``quantile``.

    >>> import jitgrad as jg
    >>> jg.percentile([1.0, 2.0, 4.0], 75)
    tensor(3.)
    """
    return quantile(x, shares(q, 100.0, "percentile"), axis, keepdims=keepdims)


# --------------------------------------------------------------------------- weighted means


def _average_samples(rng: np.random.Generator) -> list[Call]:
    a, w = rng.uniform(-2.0, 2.0, (3, 4)), rng.uniform(0.5, 2.0, (3, 4))
    return [
        Call((a,), {}),
        Call((a, None, w), {}),
        Call((a, 1, w[0]), {}),
        Call((a,), {"axis": 0, "weights": w, "keepdims": True}),
    ]


@operation(samples=_average_samples)
def average(x: Any, axis: Axis = None, weights: Any = None, *, keepdims: bool = False) -> Value:
    """Weighted mean over axes (all by default): ``sum(weights * x) / sum(weights)``; the plain mean without weights.

    ``weights`` have the shape of ``x``, or the extents of the axes in the order of ``axis``. Weights that add up to 0
    give NaN or an infinity. Derivative: ``w / sum(w)``, and ``(x - average) / sum(w)`` for the weights.

    >>> import jitgrad as jg
    >>> jg.average([1.0, 4.0], weights=[2.0, 1.0])
    tensor(2.)
    """
    x = floating(as_value(x, "average"), None, "average")
    axes = axes_of(axis, x.ndim, "average: axis")
    if weights is None:
        return kept(mean_over(x, axes=axes), x, axes, keepdims)
    w = floating(as_value(weights, "average: weights"), None, "average: weights")
    if w.shape != x.shape:
        along = tuple(x.shape[i] for i in axes)
        ordered = not isinstance(axis, tuple | list) or tuple(i % x.ndim for i in axis) == axes
        if w.shape != along or not ordered:
            raise ShapeError(
                f"average: weights of shape {w.shape} fit neither the shape {x.shape} "
                f"nor its extents {along} over axes {axes}"
            )
        w = expand(reshape_to(w, shape=tuple(n if i in axes else 1 for i, n in enumerate(x.shape))), shape=x.shape)
    return sum(x * w, axis, keepdims=keepdims) / sum(w, axis, keepdims=keepdims)
