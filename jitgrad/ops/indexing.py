"""Indexing: basic indices give views, integer and boolean arrays gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core.dispatch import as_value, is_value, wrap
from jitgrad.core.primitive import Value
from jitgrad.errors import ShapeError, UnsupportedError
from jitgrad.ops.linear import BasicIndex, gather, slice_view

__all__ = ["basic_index", "flat_positions", "getitem"]


def plain_index(index: Any) -> tuple[Any, ...]:
    """The index as a tuple without tensors: those become their arrays."""
    items = index if isinstance(index, tuple) else (index,)
    return tuple(_plain(i) for i in items)


def _plain(item: Any) -> Any:
    if is_value(item):
        if item.dtype.kind not in "biu":
            raise UnsupportedError(f"indices must be integers or booleans, not {item.dtype}")
        array = item._array("indexing")
        return array if array.ndim or array.dtype.kind == "b" else int(array)
    if isinstance(item, list):
        return np.asarray(as_value(item)._value) if item else np.zeros(0, np.int64)
    if isinstance(item, float):
        raise UnsupportedError("indices must be integers, slices, None, Ellipsis or arrays of integers or booleans, not a float")
    return item


def basic_index(items: Sequence[Any], shape: tuple[int, ...]) -> BasicIndex | None:
    """The hashable form of an index of ints, slices, None and Ellipsis; None where it is not basic."""
    if all(type(i) is int for i in items) and len(items) <= len(shape):
        for position, (i, n) in enumerate(zip(items, shape, strict=False)):
            if not -n <= i < n:
                raise IndexError(f"index {i} is out of bounds for axis {position} of extent {n}")
        return tuple(items)
    made: list[Any] = []
    consumed = 0
    for i in items:
        if i is None or i is Ellipsis or isinstance(i, slice):
            consumed += isinstance(i, slice)
        elif isinstance(i, int | np.integer) and not isinstance(i, bool | np.bool_):
            consumed += 1
        else:
            return None
    if sum(i is Ellipsis for i in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if consumed > len(shape):
        raise IndexError(f"too many indices: {consumed} for an array with {len(shape)} axes")
    axis = 0
    for i in items:
        if i is Ellipsis:
            skipped = len(shape) - consumed
            made += [(None, None, None)] * skipped
            axis += skipped
        elif i is None:
            made.append(None)
        elif isinstance(i, slice):
            made.append(tuple(None if v is None else int(v.__index__()) for v in (i.start, i.stop, i.step)))
            if made[-1][2] == 0:
                raise ShapeError("slice step cannot be zero")
            axis += 1
        else:
            n = shape[axis]
            if not -n <= i < n:
                raise IndexError(f"index {int(i)} is out of bounds for axis {axis} of extent {n}")
            made.append(int(i))
            axis += 1
    return tuple(made)


def flat_positions(items: tuple[Any, ...], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Where in C order the elements of ``x[items]`` lie, for any index NumPy takes, in the shape of the result.

    Coordinates are zero-stride grids that are indexed with the very same index, so NumPy itself decides what it means.
    """
    total: Any = np.zeros((), np.int64)
    stride = 1
    for axis in reversed(range(len(shape))):
        line = np.arange(shape[axis]).reshape((-1,) + (1,) * (len(shape) - axis - 1))
        total = total + np.broadcast_to(line, shape)[items] * stride
        stride *= shape[axis]
    if not shape:
        total = np.zeros((), np.int64)[items]
    return np.ascontiguousarray(total, np.int64)


def getitem(x: Value, index: Any) -> Value:
    """``x[index]``: a view for basic indices, a gather otherwise.

    Derivative: the cotangent at the chosen places, added up where they repeat; structural zeros elsewhere.
    """
    items = plain_index(index)
    basic = basic_index(items, x.shape)
    if basic is not None:
        return slice_view(x, index=basic)
    return gather(x, wrap(flat_positions(items, x.shape)))
