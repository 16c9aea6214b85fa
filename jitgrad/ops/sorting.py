"""Sorting along an axis, and searching in what is sorted."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.aval import INT64, make_aval
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import ArrayCall, Operand, Value
from jitgrad.errors import ArgumentError, DtypeError, ShapeError
from jitgrad.kernels.kernel import ArrayKernel, KernelPart
from jitgrad.ops.array_calls import axes_alike, slabs, whole
from jitgrad.ops.array_calls import flat as flat_of
from jitgrad.ops.axes import flat_offsets, from_rows, index_of, rows_of
from jitgrad.ops.blocks import Call, host, operation
from jitgrad.ops.linear import gather, scatter_add
from jitgrad.ops.reduction import Axis
from jitgrad.ops.shape import along

__all__ = ["argsort", "searchsorted", "sort"]

Array = np.ndarray[Any, Any]


def _ascending(rows: Array, stable: bool) -> Array:
    """The sorting permutation of each row; NaN is greatest."""
    order = np.argsort(rows, axis=1)
    if stable and rows.shape[1] > 1:
        # the fast algorithm is not stable, which only shows where elements are equal
        ordered = np.take_along_axis(rows, order, 1)
        left, right = ordered[:, :-1], ordered[:, 1:]
        if ((left == right) | (left != left)).any():  # noqa: PLR0124 (NaN)
            order = np.argsort(rows, axis=1, kind="stable")
    return order


def _order(x: Array, axis: int, descending: bool, stable: bool) -> Array:
    """The sorting permutation of each row along an axis; equal elements keep their order both ways where ``stable``."""
    rows = rows_of(x, (axis,))
    if not descending:
        return _ascending(rows, stable)
    # from the other end, so that the last of equal elements comes first before the order is turned
    turned = _ascending(np.ascontiguousarray(rows[:, ::-1]), stable)
    return np.ascontiguousarray((rows.shape[1] - 1 - turned)[:, ::-1])


# As part of kernels: NumPy's algorithms are faster, but cannot be called there.


@KernelPart
def order_into(keys, order, spare, descending):
    """The stable sorting permutation, by merging runs of doubled length; NaN is greatest."""
    n = keys.size
    for k in range(n):
        order[k] = k
    width = 1
    while width < n:
        for first in range(0, n, 2 * width):
            middle = min(first + width, n)
            last = min(first + 2 * width, n)
            i = first
            j = middle
            for k in range(first, last):
                later = i == middle
                if i < middle and j < last:
                    left = keys[order[i]]
                    right = keys[order[j]]
                    if descending:
                        later = right > left or (right != right and left == left)  # noqa: PLR0124 (NaN)
                    else:
                        later = right < left or (left != left and right == right)  # noqa: PLR0124
                if later:
                    spare[k] = order[j]
                    j += 1
                else:
                    spare[k] = order[i]
                    i += 1
        for k in range(n):
            order[k] = spare[k]
        width *= 2


@KernelPart
def order_line(x, o, i, keys, order, spare, descending):
    """The elements of ``x[o, :, i]``, and the permutation that sorts them."""
    for k in range(keys.size):
        keys[k] = x[o, k, i]
    order_into(keys, order, spare, descending)


@ArrayKernel
def order_kernel(x, out, descending, places):
    """Where the elements along the middle axis are in order: on that axis, or in C order (``places``)."""
    before, n, behind = x.shape
    keys = np.empty(n, x.dtype)
    order = np.empty(n, np.int64)
    spare = np.empty(n, np.int64)
    for o in range(before):
        for i in range(behind):
            order_line(x, o, i, keys, order, spare, descending)
            for k in range(n):
                out[o, k, i] = (o * n + order[k]) * behind + i if places else order[k]


@ArrayKernel
def sort_kernel(x, out, descending):
    """The elements along the middle axis in order."""
    before, n, behind = x.shape
    keys = np.empty(n, x.dtype)
    order = np.empty(n, np.int64)
    spare = np.empty(n, np.int64)
    for o in range(before):
        for i in range(behind):
            order_line(x, o, i, keys, order, spare, descending)
            for k in range(n):
                out[o, k, i] = keys[order[k]]


def _order_call(x: Operand, out: Operand, axis: int, descending: bool, places: bool) -> ArrayCall:
    return ArrayCall(order_kernel, (slabs(x, axis), slabs(out, axis), descending, places), axes_alike(x, out))


@host(
    infer=lambda x, **_: make_aval(x.shape, INT64),
    nondiff=True,
    call=lambda x, out, *, axis, descending, stable: _order_call(x, out, axis, descending, False),
)
def sorting_order(x, *, axis, descending, stable):
    return from_rows(_order(x, axis, descending, stable), x.shape, (axis,))


@host(
    infer=lambda x, **_: make_aval(x.shape, INT64),
    nondiff=True,
    call=lambda x, out, *, axis, descending, stable: _order_call(x, out, axis, descending, True),
)
def sorting_positions(x, *, axis, descending, stable):
    """The same permutation as places in C order, for a gather."""
    order = _order(x, axis, descending, stable)
    others = tuple(i for i in range(x.ndim) if i != axis)
    places = flat_offsets(x.shape, (axis,))[order] + flat_offsets(x.shape, others)[:, None]
    return from_rows(places, x.shape, (axis,))


@host(
    infer=lambda x, **_: make_aval(x.shape, x.dtype),
    # values alone are sorted much faster than places, which only derivatives need
    vjp=lambda g, out, x, **params: (scatter_add(g, sorting_positions(x, **params), shape=x.shape),),
    jvp=lambda tangents, out, x, **params: gather(tangents[0], sorting_positions(x, **params)),
    call=lambda x, out, *, axis, descending, stable: ArrayCall(
        sort_kernel, (slabs(x, axis), slabs(out, axis), descending), axes_alike(x, out)
    ),
)
def sorted_values(x, *, axis, descending, stable):
    rows = np.sort(rows_of(x, (axis,)), axis=1)
    return from_rows(np.ascontiguousarray(rows[:, ::-1]) if descending else rows, x.shape, (axis,))


def _sort_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    return [
        Call((a,), {}),
        Call((a, 1), {}),
        Call((a,), {"axis": 0, "descending": True}),
        Call((a,), {"axis": None}),
        Call((a.transpose(2, 0, 1),), {"axis": -2, "stable": False}),
        Call((np.zeros((2, 0)),), {}),
    ]


def _sort_reference(x: Any, axis: Any = -1, *, descending: bool = False, stable: bool = True) -> Any:
    found = np.sort(x, axis)
    return np.flip(found, -1 if axis is None else axis) if descending else found


def _argsort_reference(x: Any, axis: Any = -1, *, descending: bool = False, stable: bool = True) -> Any:
    x = np.asarray(x, np.float64)
    if axis is None:
        x, axis = x.reshape(-1), 0
    missing = np.isnan(x)
    number = np.where(missing, 0.0, x)
    return np.lexsort((-number, ~missing) if descending else (number, missing), axis=axis)


@operation(samples=_sort_samples, reference=_sort_reference, remembered=True)
def sort(x: Any, axis: Axis = -1, *, descending: bool = False, stable: bool = True) -> Value:
    """A sorted copy along an axis (the last by default; None: of all elements). NaN counts as greatest.

    Raises ShapeError for a scalar. Derivative: the cotangent, put back where the elements came from; of equal elements
    each gets that of one place.

    >>> import jitgrad as jg
    >>> jg.sort([3.0, 1.0, 2.0], descending=True)
    tensor([3., 2., 1.])
    """
    x = as_value(x, "sort")
    if axis is not None and x.ndim == 0:  # though argsort and others count a scalar as one element
        raise ShapeError(f"sort along axis {index_of(axis, 'sort: axis')}: a scalar has no axis")
    x, number = along(x, axis, "sort")
    return sorted_values(x, axis=number, descending=bool(descending), stable=bool(stable))


@operation(samples=_sort_samples, nondiff=True, method=True, reference=_argsort_reference, remembered=True)
def argsort(x: Any, axis: Axis = -1, *, descending: bool = False, stable: bool = True) -> Value:
    """The indices (int64) that sort along an axis (the last by default; None: all elements in C order).

    Equal elements keep their order where ``stable``; NaN counts as greatest. A scalar counts as one element.
    Not differentiable.

    >>> import jitgrad as jg
    >>> jg.argsort([3.0, 1.0, 2.0])
    tensor([1, 2, 0])
    """
    x, number = along(as_value(x, "argsort"), axis, "argsort")
    return sorting_order(x, axis=number, descending=bool(descending), stable=bool(stable))


# --------------------------------------------------------------------------- searching


@ArrayKernel
def search_kernel(x, values, out, right):
    """By halving; NaN is greatest."""
    for i in range(values.size):
        value = values[i]
        low = 0
        high = x.size
        while low < high:
            middle = (low + high) // 2
            at = x[middle]
            below = at < value or (value != value and at == at)  # noqa: PLR0124
            if right:
                below = not (value < at or (at != at and value == value))  # noqa: PLR0124
            if below:
                low = middle + 1
            else:
                high = middle
        out[i] = low


@host(
    infer=lambda x, values, *, side: make_aval(values.shape, INT64),
    nondiff=True,
    call=lambda x, values, out, *, side: ArrayCall(
        search_kernel, (whole(x), flat_of(values), flat_of(out), side == "right"), axes_alike(values, out)
    ),
)
def search(x, values, *, side):
    return np.asarray(np.searchsorted(x, values, side=side), np.int64)


def _search_samples(rng: np.random.Generator) -> list[Call]:
    a = np.sort(rng.uniform(-2.0, 2.0, 7))
    return [Call((a, rng.uniform(-3.0, 3.0, (2, 3))), {}), Call((a, a[2], "right"), {})]


@operation(samples=_search_samples, nondiff=True)
def searchsorted(x: Any, values: Any, side: str = "left", sorter: Any = None) -> Value:
    """Where (int64) values would have to be inserted into the sorted, one-dimensional ``x`` to keep it sorted.

    ``side``: before ("left") or behind ("right") equal elements. ``sorter``: the indices that sort ``x``. Raises
    ShapeError where ``x`` has not one axis, ArgumentError for another side. Not differentiable.

    >>> import jitgrad as jg
    >>> jg.searchsorted([1.0, 2.0, 4.0], [2.0, 3.0])
    tensor([1, 2])
    """
    x = as_value(x, "searchsorted")
    if x.ndim != 1:
        raise ShapeError(f"searchsorted: what is searched must have one axis, not shape {x.shape}")
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', not {side!r}")
    if sorter is not None:
        order = as_value(sorter, "searchsorted: sorter")
        if order.dtype.kind not in "iu":
            raise DtypeError(f"searchsorted: sorter must be integers, as argsort gives them, not {order.dtype}")
        x = gather(x, order)
    return search(x, as_value(values, "searchsorted: values"), side=side)
