"""Normalising what users write: axes, shapes and single integers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from jitgrad.errors import ArgumentError, ShapeError, UnsupportedError

__all__ = ["axes_of", "axis_of", "index_of", "shape_of"]


def index_of(value: Any, what: str) -> int:
    """A Python int of anything that is an integer, or an error that says what it was for."""
    try:
        return operator.index(value)
    except TypeError:
        raise UnsupportedError(f"{what} must be an integer, not {value!r}") from None


def axis_of(axis: Any, ndim: int, what: str = "axis") -> int:
    """A non-negative axis."""
    number = index_of(axis, what)
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


def shape_of(shape: Any, what: str = "shape") -> tuple[int, ...]:
    """A tuple of ints of a shape or a single extent."""
    items: Sequence[Any] = shape if isinstance(shape, tuple | list) else (shape,)
    return tuple(index_of(n, what) for n in items)
