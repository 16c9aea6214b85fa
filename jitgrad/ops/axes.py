"""Normalising what users write (axes, shapes, single integers), and laying arrays out along reduced axes."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import ArgumentError, ShapeError, UnsupportedError

__all__ = [
    "axes_of",
    "axis_of",
    "dropped_shape",
    "extent_of",
    "flat_offsets",
    "from_rows",
    "index_of",
    "integer_of",
    "outer_inner",
    "reduced_axes",
    "rows_of",
    "shape_of",
]

Array = np.ndarray[Any, Any]


def index_of(value: Any, what: str) -> int:
    """A Python int of anything that is an integer, or an error that says what it was for."""
    try:
        return int(value) if isinstance(value, bool) else operator.index(value)
    except TypeError:
        raise UnsupportedError(f"{what} must be an integer, not {value!r}") from None


def integer_of(value: Any, what: str) -> int:
    """``index_of`` where a bool is a mistake: ``x.sum(True)`` names no axis."""
    if isinstance(value, bool):
        raise UnsupportedError(f"{what} must be an integer, not the bool {value}")
    return value if type(value) is int else index_of(value, what)


def axis_of(axis: Any, ndim: int, what: str = "axis") -> int:
    """A non-negative axis; bools are none."""
    number = integer_of(axis, what)
    if not -ndim <= number < ndim:
        raise ShapeError(f"{what} {number} is out of bounds for an array with {ndim} axes")
    return number + ndim if number < 0 else number


def axes_of(axis: Any, ndim: int, what: str = "axis") -> tuple[int, ...]:
    """Sorted non-negative axes; None means all."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, tuple | list):
        found = [axis_of(a, ndim, what) for a in axis]
        if len(set(found)) != len(found):
            raise ArgumentError(f"{what} {axis} names an axis twice")
        return tuple(sorted(found))
    return (axis_of(axis, ndim, what),)


def reduced_axes(axis: Any, ndim: int, what: str) -> tuple[int, ...]:
    """``axes_of`` where a scalar has an axis 0 or -1 all the same, as for NumPy's sums, extrema and ``squeeze``.

    ``what`` names the operation in errors.
    """
    if (
        ndim == 0
        and not isinstance(axis, tuple | list)
        and axis is not None
        and integer_of(axis, f"{what}: axis") in (0, -1)
    ):
        return ()
    return axes_of(axis, ndim, f"{what}: axis")


def shape_of(shape: Any, what: str = "shape") -> tuple[int, ...]:
    """A tuple of ints of a shape or a single extent; bools are no extents."""
    items: Sequence[Any] = shape if isinstance(shape, tuple | list) else (shape,)
    return tuple(integer_of(n, what) for n in items)


# --------------------------------------------------------------------------- layouts for array kernels


@functools.lru_cache(4096)
def extent_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """How many elements a reduction over these axes folds into one."""
    return math.prod(shape[i] for i in axes)


def dropped_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without the reduced axes; not cached, since extents of a trace are those of its own values."""
    return tuple(n for i, n in enumerate(shape) if i not in axes)


@functools.lru_cache(4096)
def _layout(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, ...] | None, tuple[int, int]]:
    """How the axes have to be permuted so that the given ones come last (None: not at all), and the shape as rows."""
    others = tuple(i for i in range(len(shape)) if i not in axes)
    order = (*others, *axes)
    rows = (math.prod(shape[i] for i in others), extent_of(shape, axes))
    return None if order == tuple(range(len(shape))) else order, rows


def rows_of(array: Array, axes: tuple[int, ...]) -> Array:
    """C-contiguous (rows, n): one row for each place of the other axes, along it the elements over ``axes``."""
    order, rows = _layout(array.shape, axes)
    if order is not None:
        array = array.transpose(order)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(rows)


def from_rows(rows: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """The array of the given shape whose ``rows_of`` are these."""
    order, _ = _layout(shape, axes)
    if order is None:
        return rows.reshape(shape)
    moved = rows.reshape([shape[i] for i in order])
    return np.ascontiguousarray(moved.transpose(np.argsort(order)))


@functools.lru_cache(4096)
def outer_inner(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """The shape with the axes before and behind one axis collapsed."""
    return math.prod(shape[:axis]), int(shape[axis]), math.prod(shape[axis + 1 :])


def flat_offsets(shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """For each place along ``axes``, in C order: how far it is from their origin in a C-contiguous array."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    total = np.zeros((), np.int64)
    for i in axes:
        total = np.add.outer(total, np.arange(shape[i]) * strides[i])
    return total.reshape(-1)
