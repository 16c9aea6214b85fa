"""Reductions over axes: sums, products, extrema, counts and where the extrema are."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import BOOL, FLOAT64, INT64, check_dtype, is_float, make_aval
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import ArrayCall, Operand, Value
from jitgrad.errors import DtypeError, ShapeError
from jitgrad.kernels.kernel import ArrayKernel
from jitgrad.ops.array_calls import axes_alike, rows
from jitgrad.ops.array_calls import flat as flat_of
from jitgrad.ops.array_primitives import array_call
from jitgrad.ops.axes import axes_of, dropped_shape, extent_of, from_rows, reduced_axes, rows_of
from jitgrad.ops.blocks import Call, host, operation, reduction
from jitgrad.ops.linear import convert, flat, kept_shape, permute, reshape_to, spread, sum_over, wide
from jitgrad.ops.recurrence import exclusive_products_vjp
from jitgrad.ops.selection import where

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "cast",
    "count_nonzero",
    "floating",
    "kept",
    "max",
    "mean",
    "mean_over",
    "min",
    "prod",
    "ptp",
    "reduction_samples",
    "sum",
]

Axis = Any
Array = np.ndarray[Any, Any]


def reduction_samples(rng: np.random.Generator) -> list[Call]:
    """Calls of a reduction ``f(x, axis, *, keepdims)``: all kinds of axes, a scalar, one element."""
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    return [
        Call((a,), {}),
        Call((a,), {"axis": 1}),
        Call((a, 0), {}),
        Call((a,), {"axis": (0, -1), "keepdims": True}),
        Call((a.transpose(2, 0, 1),), {"axis": (-1, 0)}),
        Call((a[0, :1],), {"axis": 0}),
        Call((a[0],), {"axis": ()}),
        Call((np.asarray(rng.uniform(-2.0, 2.0)),), {}),
    ]


def _with_empty(rng: np.random.Generator) -> list[Call]:
    return [*reduction_samples(rng), Call((np.zeros((3, 0)),), {"axis": 1}), Call((np.zeros((0, 3)),), {"axis": 1})]


def kept(result: Value, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    """The result of a reduction, with extent 1 at the reduced axes where that was asked for."""
    return reshape_to(result, shape=kept_shape(x.shape, axes)) if keepdims else result


def cast(x: Value, dtype: Any, what: str) -> Value:
    """The value in the dtype that the caller of ``what`` asked for; itself where that is None or its own."""
    if dtype is None:
        return x
    made = check_dtype(dtype, what)
    return x if made == x.dtype else convert(x, dtype=made)


# --------------------------------------------------------------------------- sum and mean


@operation(samples=_with_empty, method=True, fold=sum_over)
def sum(x: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Value:
    """Sum over axes (all by default).

    float32 is accumulated in float64; integers and booleans become int64. Derivative: 1 for every element.

    >>> import jitgrad as jg
    >>> jg.sum([[1.0, 2.0], [3.0, 4.0]], axis=0)
    tensor([4., 6.])
    """
    x = cast(as_value(x, "sum"), dtype, "sum")
    axes = reduced_axes(axis, x.ndim, "sum")
    return kept(sum_over(x, axes=axes), x, axes, keepdims)


def _mean_jvp(tangents, out, x, *, axes):
    return mean_over(tangents[0], axes=axes)


def _mean_end(total, n):
    return total / n


@reduction(
    start=lambda dtype: 0.0,
    finish=_mean_end,
    accumulator=lambda dtype: FLOAT64,
    result=lambda dtype: dtype if dtype.kind == "f" else FLOAT64,
    vjp=lambda g, out, x, *, axes: (spread(g / float(extent_of(x.shape, axes)), x.shape, axes),),
    jvp=_mean_jvp,
)
def mean_over(total, x):
    return scalar.radd(total, x)


@operation(samples=reduction_samples, method=True, fold=mean_over)
def mean(x: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Value:
    """Arithmetic mean over axes (all by default); NaN of no elements.

    float32 is accumulated in float64, and stays float32; integers and booleans give float64. Raises DtypeError where
    ``dtype`` is not a float. Derivative: ``1/n`` for every element.

    >>> import jitgrad as jg
    >>> jg.mean([[1.0, 2.0], [3.0, 4.0]], axis=0)
    tensor([2., 3.])
    """
    x = floating(as_value(x, "mean"), dtype, "mean")
    axes = axes_of(axis, x.ndim, "mean: axis")
    return kept(mean_over(x, axes=axes), x, axes, keepdims)


def floating(x: Value, dtype: Any, what: str) -> Value:
    """The value in a float dtype: the given one, its own, or float64."""
    if dtype is not None and not is_float(check_dtype(dtype, what)):
        raise DtypeError(
            f"{what}: dtype must be float64 or float32, not {np.dtype(dtype)}; round and convert the result"
        )
    return cast(x, (None if is_float(x.dtype) else FLOAT64) if dtype is None else dtype, what)


# --------------------------------------------------------------------------- products


@ArrayKernel
def exclusive_products_kernel(x, out):
    """Products of all other elements of a row: what stands before times what stands behind."""
    n = x.shape[1]
    before = np.empty(n)
    for r in range(x.shape[0]):
        product = 1.0
        for k in range(n):
            before[k] = product
            product = product * x[r, k]
        product = 1.0
        for k in range(n - 1, -1, -1):
            out[r, k] = before[k] * product
            product = product * x[r, k]


def _exclusive_jvp(tangents, out, x, *, axes):
    """The Jacobian is symmetric: it is the matrix of products of all elements but two, with an empty diagonal."""
    return _exclusive_vjp(tangents[0], out, x, axes=axes)[0]


def _exclusive_vjp(g: Value, out: Value, x: Value, *, axes: tuple[int, ...]) -> tuple[Value]:
    """By rows: prefix products times suffix products, differentiated as the scans that they are."""
    order = (*(i for i in range(x.ndim) if i not in axes), *axes)
    back = tuple(np.argsort(order).tolist())
    n = extent_of(x.shape, axes)
    folded = (x.size // n if n else 0, n)

    def flattened(v: Value) -> Value:
        return reshape_to(permute(v, axes=order), shape=folded)

    found = exclusive_products_vjp(flattened(g), flattened(x))
    return (permute(reshape_to(found, shape=tuple(x.shape[i] for i in order)), axes=back),)


@array_call(infer=lambda x, *, axes: make_aval(x.shape, x.dtype), vjp=_exclusive_vjp, jvp=_exclusive_jvp, last="axes")
def exclusive_products(x, out, *, axes):
    count = len(axes)
    return ArrayCall(exclusive_products_kernel, (rows(x, count), rows(out, count)), axes_alike(x, out))


@reduction(
    start=lambda dtype: 1.0 if dtype.kind == "f" else 1,
    accumulator=lambda dtype: FLOAT64 if dtype.kind == "f" else wide(dtype),
    result=wide,
    vjp=lambda g, out, x, *, axes: (spread(g, x.shape, axes) * exclusive_products(x, axes=axes),),
    jvp=lambda tangents, out, x, *, axes: sum_over(tangents[0] * exclusive_products(x, axes=axes), axes=axes),
)
def prod_over(total, x):
    return total * x


@operation(samples=_with_empty, method=True, fold=prod_over)
def prod(x: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Value:
    """Product over axes (all by default); 1 of no elements.

    Derivative: for each element the product of all others, without a division: exact where there are zeros.

    >>> import jitgrad as jg
    >>> x = jg.tensor([2.0, 0.0, 5.0], requires_grad=True)
    >>> x.prod().backward()
    >>> x.grad
    tensor([ 0., 10.,  0.])
    """
    x = cast(as_value(x, "prod"), dtype, "prod")
    axes = reduced_axes(axis, x.ndim, "prod")
    return kept(prod_over(x, axes=axes), x, axes, keepdims)


# --------------------------------------------------------------------------- extrema


@ArrayKernel
def share_kernel(g, x, best, out):
    """The cotangent of an extremum, split evenly between the elements that attain it; NaN where none does (NaN)."""
    n = x.shape[1]
    for r in range(x.shape[0]):
        row = x[r]
        made = out[r]
        extreme = best[r]
        ties = 0
        for k in range(n):
            ties += row[k] == extreme
        part = g[r] / ties
        rest = part * 0.0 if ties == 0 else 0.0
        for k in range(n):
            made[k] = scalar.sel(row[k] == extreme, part, rest)


@ArrayKernel
def average_kernel(h, x, best, out):
    """The mean of ``h`` over the elements that attain the extremum."""
    n = x.shape[1]
    for r in range(x.shape[0]):
        row = x[r]
        other = h[r]
        extreme = best[r]
        ties = 0
        total = 0.0
        for k in range(n):
            ties += row[k] == extreme
            total = scalar.radd(total, scalar.sel(row[k] == extreme, other[k], 0.0))
        out[r] = total / ties if ties else np.nan


def _share_transpose(h, g, x, best, *, axes):
    return mean_at_extremum(h, x, best, axes=axes)


def _share_expression(g, x, best, *, axes):
    attained = x == spread(best, x.shape, axes)
    ties = sum_over(convert(attained, dtype=g.dtype), axes=axes)
    part = spread(g / ties, x.shape, axes)
    return where(attained, part, where(spread(ties == 0.0, x.shape, axes), part * 0.0, 0.0))


def _average_expression(h, x, best, *, axes):
    attained = x == spread(best, x.shape, axes)
    ties = sum_over(convert(attained, dtype=h.dtype), axes=axes)
    return sum_over(where(attained, h, 0.0), axes=axes) / ties


@host(
    infer=lambda g, x, best, *, axes: make_aval(x.shape, g.dtype),
    transpose=_share_transpose,
    contracts=True,
    expression=_share_expression,
)
def shared_at_extremum(g, x, best, *, axes):
    folded = rows_of(x, axes)
    out = np.empty(folded.shape, g.dtype)
    share_kernel(flat(g), folded, flat(best), out)
    return from_rows(out, x.shape, axes)


@host(
    infer=lambda h, x, best, *, axes: make_aval(best.shape, h.dtype),
    transpose=lambda g, h, x, best, *, axes: shared_at_extremum(g, x, best, axes=axes),
    contracts=True,
    expression=_average_expression,
)
def mean_at_extremum(h, x, best, *, axes):
    out = np.empty(best.shape, h.dtype)
    average_kernel(rows_of(h, axes), rows_of(x, axes), flat(best), out.reshape(-1))
    return out


def _least(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype == BOOL else int(np.iinfo(dtype).min)


def _greatest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype == BOOL else int(np.iinfo(dtype).max)


def _extremum_vjp(g, out, x, *, axes):
    return (shared_at_extremum(g, x, out, axes=axes),)


def _extremum_jvp(tangents, out, x, *, axes):
    return mean_at_extremum(tangents[0], x, out, axes=axes)


@reduction(
    start=_least,
    accumulator=lambda dtype: dtype,
    result=lambda dtype: dtype,
    needs_elements=True,
    vjp=_extremum_vjp,
    jvp=_extremum_jvp,
)
def max_over(best, x):
    return scalar.maximum(best, x)


@reduction(
    start=_greatest,
    accumulator=lambda dtype: dtype,
    result=lambda dtype: dtype,
    needs_elements=True,
    vjp=_extremum_vjp,
    jvp=_extremum_jvp,
)
def min_over(best, x):
    return scalar.minimum(best, x)


def _filled(x: Any, axis: Axis, what: str) -> tuple[Value, tuple[int, ...]]:
    """The operand and the axes of a reduction that has no value for no elements."""
    x = as_value(x, what)
    axes = reduced_axes(axis, x.ndim, what)
    if extent_of(x.shape, axes) == 0 and (axis is None or x.size or 0 not in dropped_shape(x.shape, axes)):
        raise ShapeError(f"{what} of no elements: shape {x.shape} over axes {axes}; it has no value to start from")
    return x, axes


@operation(samples=reduction_samples, method=True, aliases=("amax",), fold=max_over)
def max(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Greatest element over axes (all by default); NaN where there is one.

    Raises ShapeError for an empty axis. Derivative: split evenly between the elements that attain it.

    >>> import jitgrad as jg
    >>> x = jg.tensor([1.0, 3.0, 3.0], requires_grad=True)
    >>> x.max().backward()
    >>> x.grad
    tensor([0. , 0.5, 0.5])
    """
    x, axes = _filled(x, axis, "max")
    return kept(max_over(x, axes=axes), x, axes, keepdims)


@operation(samples=reduction_samples, method=True, aliases=("amin",), fold=min_over)
def min(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Least element over axes (all by default); NaN where there is one.

    Raises ShapeError for an empty axis. Derivative: split evenly between the elements that attain it.

    >>> import jitgrad as jg
    >>> jg.min([[1.0, 2.0], [0.0, 4.0]], axis=1)
    tensor([1., 0.])
    """
    x, axes = _filled(x, axis, "min")
    return kept(min_over(x, axes=axes), x, axes, keepdims)


@operation(samples=reduction_samples)
def ptp(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Peak to peak: the greatest element less the least one.

    Derivative: that of ``max`` less that of ``min``.

    >>> import jitgrad as jg
    >>> jg.ptp([1.0, 5.0, 2.0])
    tensor(4.)
    """
    return max(x, axis, keepdims=keepdims) - min(x, axis, keepdims=keepdims)


# --------------------------------------------------------------------------- where the extrema are


@ArrayKernel
def argmax_kernel(x, out):
    """The first greatest element of each row; a NaN counts as greatest."""
    for r in range(x.shape[0]):
        row = x[r]
        best = row[0]
        for k in range(x.shape[1]):
            best = scalar.maximum(best, row[k])
        at = 0
        while row[at] != best and row[at] == row[at]:
            at += 1
        out[r] = at


@ArrayKernel
def argmin_kernel(x, out):
    """The first least element of each row; a NaN counts as least."""
    for r in range(x.shape[0]):
        row = x[r]
        best = row[0]
        for k in range(x.shape[1]):
            best = scalar.minimum(best, row[k])
        at = 0
        while row[at] != best and row[at] == row[at]:
            at += 1
        out[r] = at


@ArrayKernel
def first_kernel(x, wanted, out):
    """The first place of each row of booleans that is the wanted one; 0 where none is."""
    for r in range(x.shape[0]):
        out[r] = 0
        for k in range(x.shape[1]):
            if x[r, k] == wanted:
                out[r] = k
                break


def _arg(kernel: ArrayKernel, x: Operand, out: Operand, axes: tuple[int, ...], extreme: bool) -> ArrayCall:
    folded, places, equal = rows(x, len(axes)), flat_of(out), axes_alike(x, out, out.ndim)
    if x.dtype == BOOL:
        return ArrayCall(first_kernel, (folded, extreme, places), equal)
    return ArrayCall(kernel, (folded, places), equal)


def _arg_aval(x, *, axes):
    return make_aval(dropped_shape(x.shape, axes), INT64)


@array_call(infer=_arg_aval, nondiff=True, last="axes")
def argmax_over(x, out, *, axes):
    return _arg(argmax_kernel, x, out, axes, True)


@array_call(infer=_arg_aval, nondiff=True, last="axes")
def argmin_over(x, out, *, axes):
    return _arg(argmin_kernel, x, out, axes, False)


def _arg_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    return [Call((a,), {}), Call((a, 1), {}), Call((a,), {"axis": -1, "keepdims": True}), Call((a[0, 0, 0, ...],), {})]


@operation(samples=_arg_samples, nondiff=True, method=True, remembered=True)
def argmax(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Index of the greatest element along an axis (int64): the first one of several, the first NaN where there is one.

    Without an axis the index counts through the elements in C order. Raises ShapeError for an empty axis. Not
    differentiable.

    >>> import jitgrad as jg
    >>> jg.argmax([1.0, 3.0, 3.0])
    tensor(1)
    """
    x, axes = _filled(x, axis, "argmax")
    return kept(argmax_over(x, axes=axes), x, axes, keepdims)


@operation(samples=_arg_samples, nondiff=True, method=True, remembered=True)
def argmin(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Index of the least element along an axis (int64): the first one of several, the first NaN where there is one.

    Without an axis the index counts through the elements in C order. Raises ShapeError for an empty axis. Not
    differentiable.

    >>> import jitgrad as jg
    >>> jg.argmin([[4.0, 3.0], [1.0, 2.0]], axis=1)
    tensor([1, 0])
    """
    x, axes = _filled(x, axis, "argmin")
    return kept(argmin_over(x, axes=axes), x, axes, keepdims)


# --------------------------------------------------------------------------- logic and counts


@reduction(start=lambda dtype: False, accumulator=lambda dtype: BOOL, result=lambda dtype: BOOL, nondiff=True)
def any_over(found, x):
    return found | (x != 0)


@reduction(start=lambda dtype: True, accumulator=lambda dtype: BOOL, result=lambda dtype: BOOL, nondiff=True)
def all_over(found, x):
    return found & (x != 0)


@reduction(start=lambda dtype: 0, accumulator=lambda dtype: INT64, result=lambda dtype: INT64, nondiff=True)
def count_over(count, x):
    return count + (x != 0)


@operation(samples=_with_empty, nondiff=True, method=True, remembered=True)
def any(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Whether an element is not zero (NaN is not), over axes (all by default); False of no elements.

    >>> import jitgrad as jg
    >>> jg.any([[0.0, 0.0], [0.0, 2.0]], axis=0)
    tensor([False,  True])
    """
    x = as_value(x, "any")
    axes = reduced_axes(axis, x.ndim, "any")
    return kept(any_over(x, axes=axes), x, axes, keepdims)


@operation(samples=_with_empty, nondiff=True, method=True, remembered=True)
def all(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """Whether no element is zero, over axes (all by default); True of no elements.

    >>> import jitgrad as jg
    >>> jg.all([[1.0, 0.0], [3.0, 2.0]], axis=0)
    tensor([ True, False])
    """
    x = as_value(x, "all")
    axes = reduced_axes(axis, x.ndim, "all")
    return kept(all_over(x, axes=axes), x, axes, keepdims)


@operation(samples=_with_empty, nondiff=True, method=True, remembered=True)
def count_nonzero(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """How many elements are not zero (int64), over axes (all by default).

    >>> import jitgrad as jg
    >>> jg.count_nonzero([0.0, 2.0, 3.0])
    tensor(2)
    """
    x = as_value(x, "count_nonzero")
    axes = reduced_axes(axis, x.ndim, "count_nonzero")
    return kept(count_over(x, axes=axes), x, axes, keepdims)
