"""Cumulative sums and products, and differences along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.aval import result_dtype
from jitgrad.core.dispatch import as_value, constant
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, DtypeError, ShapeError
from jitgrad.ops.axes import axis_of, index_of
from jitgrad.ops.blocks import Call, operation
from jitgrad.ops.comparison import not_equal
from jitgrad.ops.elementwise import subtract
from jitgrad.ops.linear import convert, expand, join, slice_view, wide
from jitgrad.ops.recurrence import cumulative_product, cumulative_sum_along
from jitgrad.ops.reduction import Axis, cast
from jitgrad.ops.shape import along

__all__ = ["cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff", "ediff1d"]


def _scan_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    with_zeros = a[:, :, 0].copy()
    with_zeros[1, 1:3] = 0.0
    return [
        Call((a,), {}),
        Call((a, 1), {}),
        Call((a,), {"axis": 0}),
        Call((a.transpose(2, 0, 1),), {"axis": -1}),
        Call((with_zeros, 1), {}),
        Call((a[0, :, 1],), {}),
        Call((a[0, 0, 0, ...],), {}),
        Call((np.zeros((2, 0)),), {"axis": 1}),
    ]


def _standard_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    return [
        Call((a,), {"axis": 1}),
        Call((a,), {"axis": -3, "include_initial": True}),
        Call((a[0, :, 1],), {}),
        Call((np.zeros((2, 0)),), {"axis": 1, "include_initial": True}),
    ]


def _cumulative_reference(function: Any, initial: float) -> Any:
    """The array API's form, written with NumPy's older function (NumPy has it since 2.1)."""

    def reference(x: Any, *, axis: Any = None, include_initial: bool = False) -> Any:
        axis = 0 if axis is None else axis
        found = function(x, axis=axis)
        if include_initial:
            first = np.full_like(x, initial, shape=[1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)])
            found = np.concatenate([first, found], axis)
        return found

    return reference


def _widened(x: Any, dtype: Any, what: str) -> Value:
    x = as_value(x, what)
    return x if dtype is None and x.dtype.kind == "f" else cast(x, wide(x.dtype) if dtype is None else dtype, what)


def _one_axis(x: Value, axis: Axis, what: str) -> tuple[Value, int]:
    if axis is None and x.ndim > 1:
        raise ArgumentError(f"{what}: an array of shape {x.shape} needs an axis (only one with a single axis does not)")
    return along(x, axis, what)


def _with_initial(x: Value, axis: int, initial: float) -> Value:
    first = constant(initial, x.dtype, x)
    return join(expand(first, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :])), x, axis=axis)


@operation(samples=_scan_samples, method=True, remembered=True)
def cumsum(x: Any, axis: Axis = None, dtype: Any = None) -> Value:
    """Running sums along an axis, or over all elements in C order without one.

    float32 is accumulated in float64; integers and booleans become int64. Derivative: the running sums of the cotangent
    from the other end.

    >>> import jitgrad as jg
    >>> jg.cumsum([1.0, 2.0, 3.0])
    tensor([1., 3., 6.])
    """
    x, number = along(_widened(x, dtype, "cumsum"), axis, "cumsum")
    return cumulative_sum_along(x, axis=number, reverse=False)


@operation(samples=_standard_samples, reference=_cumulative_reference(np.cumsum, 0.0), remembered=True)
def cumulative_sum(x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Value:
    """Running sums along an axis (array API form of ``cumsum``): the axis may be left out for one axis only.

    ``include_initial``: a 0 comes first. Raises ArgumentError where an axis is missing. Derivative: the running sums of
    the cotangent from the other end.

    >>> import jitgrad as jg
    >>> jg.cumulative_sum([1.0, 2.0, 3.0], include_initial=True)
    tensor([0., 1., 3., 6.])
    """
    x, number = _one_axis(_widened(x, dtype, "cumulative_sum"), axis, "cumulative_sum")
    found = cumulative_sum_along(x, axis=number, reverse=False)
    return _with_initial(found, number, 0.0) if include_initial else found


@operation(samples=_scan_samples, method=True, remembered=True)
def cumprod(x: Any, axis: Axis = None, dtype: Any = None) -> Value:
    """Running products along an axis, or over all elements in C order without one.

    Integers and booleans become int64. Derivative: by a linear recurrence, without a division: exact where there are
    zeros.

    >>> import jitgrad as jg
    >>> jg.cumprod([1.0, 2.0, 3.0])
    tensor([1., 2., 6.])
    """
    x, number = along(_widened(x, dtype, "cumprod"), axis, "cumprod")
    return cumulative_product(x, axis=number, reverse=False)


@operation(samples=_standard_samples, reference=_cumulative_reference(np.cumprod, 1.0), remembered=True)
def cumulative_prod(x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Value:
    """Running products along an axis (array API form of ``cumprod``): the axis may be left out for one axis only.

    ``include_initial``: a 1 comes first. Raises ArgumentError where an axis is missing. Derivative: as ``cumprod``.

    >>> import jitgrad as jg
    >>> jg.cumulative_prod([1.0, 2.0, 3.0], include_initial=True)
    tensor([1., 1., 2., 6.])
    """
    x, number = _one_axis(_widened(x, dtype, "cumulative_prod"), axis, "cumulative_prod")
    found = cumulative_product(x, axis=number, reverse=False)
    return _with_initial(found, number, 1.0) if include_initial else found


# --------------------------------------------------------------------------- differences


def _diff_samples(rng: np.random.Generator) -> list[Call]:
    a, b = rng.uniform(-2.0, 2.0, (3, 4)), rng.uniform(-2.0, 2.0, (3, 2))
    return [
        Call((a,), {}),
        Call((a, 2, 0), {}),
        Call((a, 0), {}),
        Call((a,), {"axis": -1, "prepend": b, "append": 1.5}),
        Call((a[:, 0], 5), {}),
    ]


def _edge(edge: Any, x: Value, axis: int, what: str) -> Value:
    edge = as_value(edge, f"diff: {what}")
    if edge.ndim == 0:
        return expand(edge, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    if edge.ndim != x.ndim or any(
        m != n for i, (m, n) in enumerate(zip(edge.shape, x.shape, strict=True)) if i != axis
    ):
        raise ShapeError(f"diff: {what} of shape {edge.shape} does not fit {x.shape} along axis {axis}")
    return edge


@operation(samples=_diff_samples)
def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Value:
    """Differences of neighbours along an axis, taken ``n`` times; the axis gets shorter by ``n``.

    ``prepend`` and ``append`` are joined on first (a number stands for one slice). Of booleans: whether neighbours
    differ. Derivative: -1 and 1 for the two neighbours.

    >>> import jitgrad as jg
    >>> jg.diff([1.0, 4.0, 9.0])
    tensor([3., 5.])
    """
    x = as_value(x, "diff")
    times = index_of(n, "diff: n")
    if times < 0:
        raise ArgumentError(f"diff: n must not be negative, not {times}")
    if times == 0:
        return x
    if x.ndim == 0:
        raise ShapeError("diff needs at least one axis, not a scalar")
    number = axis_of(axis, x.ndim, "diff: axis")
    parts = [x]
    if prepend is not None:
        parts.insert(0, _edge(prepend, x, number, "prepend"))
    if append is not None:
        parts.append(_edge(append, x, number, "append"))
    if len(parts) > 1:
        dtype = result_dtype(*(p.dtype for p in parts))
        x = join(*(p if p.dtype == dtype else convert(p, dtype=dtype) for p in parts), axis=number)
    before = ((None, None, None),) * number
    for _ in range(times):
        if x.shape[number] == 0:
            break
        later = slice_view(x, index=(*before, (1, None, None)))
        earlier = slice_view(x, index=(*before, (None, -1, None)))
        x = not_equal(later, earlier) if x.dtype.kind == "b" else subtract(later, earlier)
    return x


@operation(
    samples=lambda rng: [
        Call((rng.uniform(-2.0, 2.0, (2, 3)),), {}),
        Call((rng.uniform(-2.0, 2.0, 4), rng.uniform(-2.0, 2.0, 2), rng.uniform(-2.0, 2.0, ())), {}),
        Call((rng.uniform(-2.0, 2.0, 1),), {"to_begin": rng.uniform(-2.0, 2.0, (2, 2))}),
    ]
)
def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Value:
    """Differences of neighbours among all elements in C order, with ``to_begin`` before and ``to_end`` behind them.

    The result is 1-d and has the dtype of ``x``. Raises DtypeError for booleans, and where ``to_begin`` or ``to_end`` are of
    another kind (floats beside integers). Derivative: -1 and 1 for the two neighbours, the cotangent for what is added.

    >>> import jitgrad as jg
    >>> jg.ediff1d([1.0, 4.0, 9.0], to_end=0)
    tensor([3., 5., 0.])
    """
    x = as_value(x, "ediff1d")
    if x.dtype.kind == "b":
        raise DtypeError("ediff1d is not defined for bool operands; jg.diff tells whether neighbours differ")
    flat = x.reshape(-1)
    parts = [slice_view(flat, index=((1, None, None),)) - slice_view(flat, index=((None, -1, None),))]
    for what, given, at in (("to_begin", to_begin, 0), ("to_end", to_end, 2)):
        if given is not None:
            value = as_value(given, f"ediff1d: {what}")
            if not np.can_cast(value.dtype, x.dtype, "same_kind"):
                raise DtypeError(f"ediff1d: {what} of dtype {value.dtype} beside differences of dtype {x.dtype}")
            parts.insert(at, (value if value.dtype == x.dtype else convert(value, dtype=x.dtype)).reshape(-1))
    return join(*parts, axis=0) if len(parts) > 1 else parts[0]
