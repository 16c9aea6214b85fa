"""Order statistics and running totals that leave NaN out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgrad.core.aval import INT64
from jitgrad.core.dispatch import as_value, wrap
from jitgrad.core.primitive import Value
from jitgrad.ops.axes import axes_of, dropped_shape, extent_of
from jitgrad.ops.blocks import Call, operation
from jitgrad.ops.comparison import equal, isnan
from jitgrad.ops.elementwise import floor
from jitgrad.ops.linear import convert, gather, kept_shape, permute, reshape_to
from jitgrad.ops.nan_statistics import numbers
from jitgrad.ops.reduction import Axis, floating, reduction_samples, sum
from jitgrad.ops.scan import cumprod, cumsum
from jitgrad.ops.selection import clip, where
from jitgrad.ops.sorting import sorting_positions
from jitgrad.ops.statistics import percentile_samples, quantile_reference, quantile_samples, shares

__all__ = ["nancumprod", "nancumsum", "nanmedian", "nanpercentile", "nanquantile"]


def _scan_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4))
    return [Call((a,), {}), Call((a, 1), {}), Call((a,), {"axis": 0})]


@operation(samples=_scan_samples)
def nancumsum(x: Any, axis: Axis = None, dtype: Any = None) -> Value:
    """Running sums along an axis, or over all elements in C order without one; NaN counts as 0.

    Dtypes and derivative as for ``cumsum``, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nancumsum([1.0, float("nan"), 2.0])
    tensor([1., 1., 3.])
    """
    return cumsum(numbers(x, dtype, 0.0, "nancumsum")[0], axis, dtype)


@operation(samples=_scan_samples)
def nancumprod(x: Any, axis: Axis = None, dtype: Any = None) -> Value:
    """Running products along an axis, or over all elements in C order without one; NaN counts as 1.

    Dtypes and derivative as for ``cumprod``, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nancumprod([3.0, float("nan"), 2.0])
    tensor([3., 3., 6.])
    """
    return cumprod(numbers(x, dtype, 1.0, "nancumprod")[0], axis, dtype)


def _quantiles(x: Any, wanted: Any, axis: Axis, keepdims: bool, what: str) -> Value:
    """Quantiles of what is left of each row without NaN, which is sorted to its end."""
    x = floating(as_value(x, what), None, what)
    axes = axes_of(axis, x.ndim, f"{what}: axis")
    others = tuple(i for i in range(x.ndim) if i not in axes)
    n, count = extent_of(x.shape, axes), extent_of(x.shape, others)
    rest = kept_shape(x.shape, axes) if keepdims else dropped_shape(x.shape, axes)
    shape = (*wanted.shape, *rest)
    if n == 0 or count == 0:
        return wrap(np.full(shape, math.nan, x.dtype))
    rows = reshape_to(permute(x, axes=(*others, *axes)), shape=(count, n))
    positions = sorting_positions(rows, axis=1, descending=False, stable=True)
    left = sum(~isnan(rows), axis=1)
    places = wrap(wanted.reshape(-1, 1).astype(np.float64)) * clip(left - 1, 0)
    whole = floor(places)
    below = convert(whole, dtype=INT64)
    above = clip(below + 1, max=n - 1)
    starts = np.arange(count) * n
    low, high = (gather(rows, gather(positions, at + starts)) for at in (below, above))
    weights = convert(places - whole, dtype=x.dtype)
    # no weight: nothing is taken from the neighbour, which may be infinite or NaN
    mixed = low * (1.0 - weights) + where(equal(weights, 0.0), 0.0, high * weights)
    return reshape_to(where(left > 0, mixed, math.nan), shape=shape)


def _reference(x: Any, q: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Row for row, by the reference of ``quantile``; NumPy's own is not right next to infinite elements."""
    x, q = np.asarray(x, np.float64), np.asarray(q)
    axes = axes_of(axis, x.ndim, "nanquantile: axis")
    others = tuple(i for i in range(x.ndim) if i not in axes)
    rows = x.transpose((*others, *axes)).reshape(-1, extent_of(x.shape, axes))
    found = [
        quantile_reference(r[~np.isnan(r)], q) if not np.isnan(r).all() else np.full(q.shape, np.nan) for r in rows
    ]
    rest = kept_shape(x.shape, axes) if keepdims else dropped_shape(x.shape, axes)
    return np.moveaxis(np.array(found), 0, -1).reshape((*q.shape, *rest))


def _median_reference(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return _reference(x, 0.5, axis, keepdims=keepdims)


def _percentile_reference(x: Any, q: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return _reference(x, np.true_divide(q, 100.0), axis, keepdims=keepdims)


@operation(samples=reduction_samples, reference=_median_reference)
def nanmedian(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Median over axes (all by default) of what is not NaN; NaN where nothing is left.

    Derivative: that of ``median``, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nanmedian([3.0, float("nan"), 1.0, 10.0])
    tensor(3.)
    """
    return _quantiles(x, np.array(0.5), axis, keepdims, "nanmedian")


@operation(samples=quantile_samples, reference=_reference)
def nanquantile(x: Any, q: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Quantiles over axes (all by default) of what is not NaN; NaN where nothing is left.

    ``q``, errors and derivative as for ``quantile``, and 0 for NaN elements.

    >>> import jitgrad as jg
    >>> jg.nanquantile([1.0, 2.0, float("nan"), 4.0], 0.75)
    tensor(3.)
    """
    return _quantiles(x, shares(q, 1.0, "nanquantile"), axis, keepdims, "nanquantile")


@operation(samples=percentile_samples, reference=_percentile_reference)
def nanpercentile(x: Any, q: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """``nanquantile(x, q / 100)``.

    Derivative: as ``nanquantile``.

    >>> import jitgrad as jg
    >>> jg.nanpercentile([1.0, 2.0, float("nan"), 4.0], 75)
    tensor(3.)
    """
    return _quantiles(x, shares(q, 100.0, "nanpercentile"), axis, keepdims, "nanpercentile")
