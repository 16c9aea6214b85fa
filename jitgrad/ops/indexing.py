"""Indexing: basic indices give views, integer and boolean arrays gather."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from jitgrad.core.dispatch import as_value, constant, is_value, wrap
from jitgrad.core.primitive import Value
from jitgrad.core.trace import note_read
from jitgrad.errors import ArgumentError, IndexingError, ShapeError, UnsupportedError
from jitgrad.ops.axes import axis_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.linear import (
    BasicIndex,
    bounded,
    convert,
    expand,
    gather,
    permute,
    positions_from,
    reshape_to,
    slice_view,
    take_at,
)
from jitgrad.ops.selection import where as choose
from jitgrad.ops.shape import along, ravel

__all__ = ["basic_index", "flat_positions", "getitem", "plain_index"]

Array = np.ndarray[Any, Any]
_FULL: Final = slice(None)
_KINDS: Final = "integers, slices, None, Ellipsis, and arrays or lists of integers or booleans"


# --------------------------------------------------------------------------- what users write


def plain_index(index: Any) -> tuple[Any, ...]:
    """The index as a tuple of ints, bools, slices, None, Ellipsis and ndarrays.

    Raises IndexingError for floats and other things that NumPy does not take either.
    """
    return tuple(map(_plain, index)) if type(index) is tuple else (_plain(index),)


def _plain(item: Any) -> Any:
    kind = type(item)
    if kind is int or kind is slice or item is None or item is Ellipsis or kind is bool:
        return item
    if isinstance(item, np.ndarray):
        note_read(item)
        return _index_array(item)
    if isinstance(item, np.bool_):
        return bool(item)
    if isinstance(item, np.integer):
        return int(item)
    if is_value(item):
        return _traced_index(item) if item.is_traced else _index_array(item._array("indexing"))
    if isinstance(item, Sequence) and not isinstance(item, str | bytes):
        array = as_value(list(item), "an index")._array("indexing")
        return _index_array(array) if array.size else np.zeros(array.shape, np.int64)
    if hasattr(item, "__index__"):
        return item.__index__()
    if hasattr(item, "__array__"):
        return _index_array(np.asarray(item))
    raise IndexingError(f"indices must be {_KINDS}, not {kind.__name__}")


def _traced_index(item: Value) -> Value:
    if item.dtype.kind == "b":
        raise UnsupportedError(
            "a boolean index that is traced: the shape of the result would depend on values; write "
            "jg.where(mask, new, old) for x[mask] = new, and jg.where(mask, x, 0).sum() for x[mask].sum(), or pass the mask "
            "as a constant"
        )
    if item.dtype.kind not in "iu":
        raise IndexingError(f"indices must be {_KINDS}, not an array of {item.dtype}")
    return item


def _index_array(array: Array) -> Any:
    if array.dtype.kind not in "biu":
        raise IndexingError(f"indices must be {_KINDS}, not an array of {array.dtype}")
    if array.ndim:
        return array
    return bool(array) if array.dtype.kind == "b" else int(array)


def _out_of_bounds(i: int, axis: int, n: int) -> IndexingError:
    return IndexingError(f"index {i} is out of bounds for axis {axis} of extent {n}")


def basic_index(items: Sequence[Any], shape: tuple[int, ...]) -> BasicIndex | None:
    """The hashable form of an index of ints, slices, None and Ellipsis; None where it is not basic."""
    dots = -1
    consumed = 0
    for position, i in enumerate(items):
        kind = type(i)
        if kind is int or kind is slice:
            consumed += 1
        elif i is Ellipsis:
            if dots >= 0:
                raise IndexingError("an index can only have a single ellipsis ('...')")
            dots = position
        elif i is not None:
            return None
    if consumed > len(shape):
        raise IndexingError(f"too many indices: {consumed} for an array with {len(shape)} axes")
    made: list[Any] = []
    axis = 0
    for i in items:
        kind = type(i)
        if kind is int:
            n = shape[axis]
            if not -n <= i < n:
                raise _out_of_bounds(i, axis, n)
            made.append(i)
            axis += 1
        elif kind is slice:
            start, stop, step = i.start, i.stop, i.step
            made.append((_bound(start), _bound(stop), _bound(step)))
            if step is not None and made[-1][2] == 0:
                raise ArgumentError("slice step cannot be zero")
            axis += 1
        elif i is None:
            made.append(None)
        else:
            skipped = len(shape) - consumed
            made += [(None, None, None)] * skipped
            axis += skipped
    return tuple(made)


def _bound(value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise IndexingError(f"slice bounds must be integers or None, not {type(value).__name__} {value!r}") from None


# --------------------------------------------------------------------------- where the elements lie


def _wrapped(positions: Array, n: int, axis: int) -> Array:
    """Non-negative int64 positions, checked against the extent."""
    found: Array = bounded.impl.run(positions, extent=n, axis=axis)  # type: ignore[union-attr]
    return found


def flat_positions(items: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
    """Where in C order the elements of ``x[items]`` lie, for any index NumPy takes, in the shape of the result.

    Coordinates are zero-stride grids that are indexed with the very same index, so NumPy itself decides what it means,
    with memory for the result alone.
    """
    if len(items) == 1 and type(items[0]) is not bool and isinstance(items[0], np.ndarray):
        (index,) = items
        if index.dtype.kind == "b" and index.shape == shape:
            return np.flatnonzero(index)
        if index.dtype.kind != "b" and len(shape) == 1:
            return _wrapped(index, shape[0], 0)
    total: Any = None
    stride = 1
    try:
        for axis in reversed(range(len(shape))):
            line = np.arange(shape[axis]).reshape((-1,) + (1,) * (len(shape) - axis - 1))
            part = np.broadcast_to(line, shape)[items]
            total = part * stride if total is None else np.add(total, part * stride if stride != 1 else part)
            stride *= shape[axis]
        if total is None:
            total = np.zeros((), np.int64)[items]
    except (IndexError, ValueError) as error:
        shown = ", ".join(f"array of shape {i.shape}" if isinstance(i, np.ndarray) else str(i) for i in items)
        raise IndexingError(f"[{shown}] of an array of shape {shape}: {error}") from None
    return np.ascontiguousarray(total, np.int64).reshape(np.shape(total))


def _single_array(items: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, Array] | None:
    """Axis and array, where all but one axis is taken whole, and that one by integers; None otherwise."""
    found = -1
    dots = -1
    for position, i in enumerate(items):
        if isinstance(i, np.ndarray):
            if found >= 0 or i.dtype.kind == "b":
                return None
            found = position
        elif i is Ellipsis:
            if dots >= 0:
                return None
            dots = position
        elif not (type(i) is slice and i == _FULL):
            return None
    whole = len(items) - (dots >= 0)
    if found < 0 or whole > len(shape):
        return None
    axis = found if dots < 0 or found < dots else found - len(items) + len(shape)
    return axis, items[found]


def getitem(x: Value, index: Any) -> Value:
    """``x[index]``: a view for basic indices, a gather otherwise.

    Takes every index that NumPy takes. Raises IndexingError (an IndexError) where it is out of bounds. Derivative: the
    cotangent at the chosen places, added up where they repeat; structural zeros elsewhere.
    """
    shape = x.shape
    if type(index) is int and shape:  # the usual case, without detours
        n = shape[0]
        if -n <= index < n:
            return slice_view(x, index=(index,))
    items = plain_index(index)
    basic = basic_index(items, shape)
    if basic is not None:
        return slice_view(x, index=basic)
    if len(items) == 1 and isinstance(items[0], np.ndarray) and items[0].dtype.kind == "b":
        mask = items[0]
        depth = mask.ndim
        if depth < len(shape) and mask.shape == shape[:depth]:  # rows chosen by a mask of the leading axes
            rows = reshape_to(x, shape=(mask.size, *shape[depth:])) if depth > 1 else x
            return take_at(rows, positions_from(index, np.flatnonzero(mask), x), axis=0)
    if any(map(is_value, items)):
        return traced_getitem(x, items)
    single = _single_array(items, shape)
    if single is not None and len(shape) > 1:
        axis, positions = single
        found = take_at(x, positions_from(index, _wrapped(positions, shape[axis], axis).reshape(-1), x), axis=axis)
        if positions.ndim == 1:
            return found
        return reshape_to(found, shape=(*shape[:axis], *positions.shape, *shape[axis + 1 :]))
    return gather(x, positions_from(index, flat_positions(items, shape), x))


def traced_getitem(x: Value, items: tuple[Any, ...]) -> Value:
    """``x[items]`` with integer arrays whose values are not known yet: operations compute and check the positions.

    The slices are taken first; then the axes of the integer arrays, next to each other, count as one, of which rows are
    taken. As in NumPy the axes of the result stand where those of the arrays stood, or first if a slice separates them.
    """
    if any(isinstance(i, bool) or (isinstance(i, np.ndarray) and i.dtype.kind == "b") for i in items):
        raise UnsupportedError(
            "boolean indices cannot stand beside traced integer indices; use jg.nonzero of the mask first"
        )
    if sum(i is Ellipsis for i in items) > 1:
        raise IndexingError("an index can only have a single ellipsis ('...')")
    consumed = sum(i is not None and i is not Ellipsis for i in items)
    if consumed > x.ndim:
        raise IndexingError(f"too many indices: {consumed} for an array with {x.ndim} axes")
    places = [n for n, i in enumerate(items) if not (i is None or i is Ellipsis or isinstance(i, slice))]
    together = places == list(range(places[0], places[-1] + 1))
    basic: list[Any] = []  # the index without its arrays
    axes: list[int] = []  # of the arrays, in what the basic index gives
    arrays: list[Any] = []
    dotted = any(i is Ellipsis for i in items)
    for n, i in enumerate(items if dotted else (*items, Ellipsis)):
        if i is Ellipsis:
            basic += [_FULL] * (x.ndim - consumed)
        elif n in places:
            axes.append(len(basic))
            basic.append(_FULL)
            arrays.append(i)
        else:
            basic.append(i)
    index = basic_index(basic, x.shape)
    assert index is not None
    view = slice_view(x, index=index)
    extents = [view.shape[a] for a in axes]
    shapes = [np.shape(a) for a in arrays]
    try:
        empty = 0 in np.broadcast_shapes(*shapes)
    except ValueError:
        raise IndexingError(f"index arrays of shapes {', '.join(map(str, shapes))} do not broadcast together") from None
    positions: Value = None
    for k, (array, extent) in enumerate(zip(arrays, extents, strict=True)):
        found = as_value(array)  # where nothing is chosen NumPy checks no bounds
        part = convert(found, dtype=np.dtype(np.int64)) if empty else bounded(found, extent=extent, axis=axes[k])
        part = part * math.prod(extents[k + 1 :])
        positions = part if positions is None else positions + part
    first = axes[0] if together else 0
    others = [a for a in range(view.ndim) if a not in axes]
    order = (*others[:first], *axes, *others[first:])
    moved = view if order == tuple(range(view.ndim)) else permute(view, axes=order)
    before, after = moved.shape[:first], moved.shape[first + len(axes) :]
    merged = reshape_to(moved, shape=(*before, math.prod(extents), *after))
    rows = take_at(merged, reshape_to(positions, shape=(positions.size,)), axis=first)
    return reshape_to(rows, shape=(*before, *positions.shape, *after))


# --------------------------------------------------------------------------- functions


def _integers(indices: Any, what: str) -> Value:
    value = as_value(indices, what)
    if value.size == 0:
        return constant(np.zeros(value.shape), np.int64, value)
    if value.dtype.kind not in "iu":
        raise UnsupportedError(f"{what}: indices must be integers, not {value.dtype}")
    return value


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3, 4), [0, 5, 0, -1]), {}),
        Call((uniform(rng, 3, 4), [[2, 0], [2, -3]]), {"axis": 0}),
        Call((uniform(rng, 3, 4), 1), {"axis": -1}),
        Call((uniform(rng, 3, 4), [7, -9]), {"axis": 1, "mode": "wrap"}),
        Call((uniform(rng, 3, 4), [7, -9]), {"axis": 1, "mode": "clip"}),
    ],
    method=True,
)
def take(x: Any, indices: Any, axis: int | None = None, *, mode: str = "raise") -> Value:
    """Slices of an axis, chosen by integers; of the flattened array without an axis.

    ``mode``: what becomes of positions out of bounds: "raise", "wrap" or "clip". Raises IndexingError. Derivative: the
    cotangent at the chosen places, added up where they repeat; structural zeros elsewhere.

    >>> import jitgrad as jg
    >>> jg.take([1.0, 2.0, 3.0], [2, 0])
    tensor([3., 1.])
    """
    x, at = along(as_value(x, "take"), axis, "take")
    n = x.shape[at]
    chosen = _integers(indices, "take")
    if mode in ("wrap", "clip"):
        if n == 0 and chosen.size:
            raise IndexingError(f"take: axis {at} of shape {x.shape} has no elements")
        moved = chosen._array(f"take(mode={mode!r})").astype(np.int64)
        if moved.size:
            moved = moved % n if mode == "wrap" else np.clip(moved, 0, n - 1)
        chosen = positions_from(indices, moved, x)
    elif mode != "raise":
        raise ArgumentError(f"take: mode must be 'raise', 'wrap' or 'clip', not {mode!r}")
    elif isinstance(indices, int | list | tuple) and not chosen.is_traced:
        chosen = positions_from(indices, chosen._array("take"), x)
    positions = bounded(chosen, extent=n, axis=at)
    found = take_at(x, reshape_to(positions, shape=(positions.size,)), axis=at)
    return reshape_to(found, shape=(*x.shape[:at], *positions.shape, *x.shape[at + 1 :]))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3, 4), np.array([[0, 3], [1, 1], [-1, 2]])), {"axis": 1}),
        Call((uniform(rng, 3, 4), np.array([[2, 0, 1, 1]])), {"axis": 0}),
        Call((uniform(rng, 3, 1), np.array([[0, 1, 2, 0], [2, 2, 1, 0]])), {"axis": 0}),
    ]
)
def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Value:
    """For each 1-d slice along an axis the elements that the matching slice of ``indices`` names.

    The other axes broadcast. Raises IndexingError where an index is out of bounds, ShapeError where the numbers of axes
    differ. Derivative: the cotangent at the chosen places, added up where they repeat; structural zeros elsewhere.
    """
    x = as_value(x, "take_along_axis")
    chosen = _integers(indices, "take_along_axis")
    if axis is None:
        x, axis = ravel(x), 0
    if chosen.ndim != x.ndim:
        raise ShapeError(f"take_along_axis: indices of shape {chosen.shape} for an array with {x.ndim} axes")
    at = axis_of(axis, x.ndim, "take_along_axis: axis")
    rest = tuple(1 if i == at else n for i, n in enumerate(x.shape))
    try:
        full = np.broadcast_shapes(chosen.shape, rest)
    except ValueError:
        raise ShapeError(
            f"take_along_axis: indices of shape {chosen.shape} do not fit {x.shape} along axis {at}"
        ) from None
    wide = tuple(f if i != at and n == 1 else n for i, (n, f) in enumerate(zip(x.shape, full, strict=True)))
    if wide != x.shape:  # an axis of extent 1 is repeated by the indices
        x = expand(x, shape=wide)
    total: Any = bounded(chosen, extent=x.shape[at], axis=at) * math.prod(x.shape[at + 1 :])
    for i, n in enumerate(x.shape):
        if i != at:
            line = np.arange(n) * math.prod(x.shape[i + 1 :])
            total = total + line.reshape((-1,) + (1,) * (x.ndim - i - 1))
    return gather(x, total)


@operation(
    samples=lambda rng: [Call((np.array([[1, 0], [0, 2]]),), {}), Call((uniform(rng, 3),), {})],
    nondiff=True,
    method=True,
)
def nonzero(x: Any) -> tuple[Value, ...]:
    """The indices of the elements other than 0: a tuple with an int64 array for each axis.

    Raises GraphError while traced: the number of results depends on values.
    """
    array = as_value(x, "nonzero")._array("nonzero")
    if array.ndim == 0:
        raise ShapeError("nonzero takes at least 1 axis, not a scalar; use jg.atleast_1d first")
    return tuple(wrap(np.ascontiguousarray(i)) for i in np.nonzero(array))


def _where_samples(rng: np.random.Generator) -> list[Call]:
    condition = rng.uniform(size=(3, 4)) > 0.5
    return [
        Call((condition, uniform(rng, 3, 4), uniform(rng, 4)), {}),
        Call((condition[0], uniform(rng, 3, 1), 2.0), {}),
        Call((np.bool_(True), uniform(rng, 2), uniform(rng, 2)), {}),
    ]


@operation(samples=_where_samples, remembered=True)
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """``x`` where the condition holds, else ``y``; with the condition alone, the indices where it holds (``nonzero``).

    Shapes broadcast. Raises ArgumentError where only one of x and y is given.

    Derivative: the cotangent goes to the chosen operand; the other one gets a structural zero, which stays zero
    whatever its own derivative is (infinite, NaN).

    >>> import jitgrad as jg
    >>> jg.where([True, False], 1.0, [2.0, 3.0])
    tensor([1., 3.])
    """
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise ArgumentError("where: give both x and y, or neither")
    return choose(condition, x, y)


@operation(samples=lambda rng: [Call((np.array([[1, 0], [0, 2]]),), {}), Call((uniform(rng, 3),), {})], nondiff=True)
def argwhere(x: Any) -> Value:
    """The indices of the elements other than 0, one row an element.

    Raises GraphError while traced: the number of results depends on values.
    """
    return wrap(np.ascontiguousarray(np.argwhere(as_value(x, "argwhere")._array("argwhere"))))


@operation(samples=lambda rng: [Call((np.array([[1, 0], [0, 2]]),), {}), Call((uniform(rng, 3),), {})], nondiff=True)
def flatnonzero(x: Any) -> Value:
    """The positions in C order of the elements other than 0.

    Raises GraphError while traced: the number of results depends on values.
    """
    return wrap(np.flatnonzero(as_value(x, "flatnonzero")._array("flatnonzero")))


@operation(
    samples=lambda rng: [
        Call(([True, False, True], uniform(rng, 3, 2)), {"axis": 0}),
        Call(([0, 1, 1], uniform(rng, 2, 3)), {}),
    ]
)
def compress(condition: Any, x: Any, axis: int | None = None) -> Value:
    """The slices of an axis for which a 1-d condition holds; elements of the flattened array without an axis.

    Derivative: the cotangent at the chosen places, structural zeros elsewhere.
    """
    chosen = as_value(condition, "compress")._array("compress")
    if chosen.ndim != 1:
        raise ShapeError(f"compress: the condition must be 1-d, not of shape {chosen.shape}")
    return take(x, np.flatnonzero(chosen), axis)


@operation(samples=lambda rng: [Call((np.array([[True, False], [True, True]]), uniform(rng, 2, 2)), {})])
def extract(condition: Any, x: Any) -> Value:
    """The elements for which a condition of the same size holds, in C order.

    Derivative: the cotangent at the chosen places, structural zeros elsewhere.
    """
    return take(x, np.flatnonzero(as_value(condition, "extract")._array("extract")))


@operation(
    samples=lambda rng: [
        Call(([np.array([True, False, False]), np.array([True, True, False])], [uniform(rng, 3), uniform(rng, 3)]), {}),
        Call(([np.array([True, False])], [uniform(rng)], 1.5), {}),
    ]
)
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Value:
    """For each element the first choice whose condition holds, else the default.

    Derivative: the cotangent goes to the chosen operand; structural zeros to the others.
    """
    if len(condlist) != len(choicelist):
        raise ArgumentError(f"select: {len(condlist)} conditions but {len(choicelist)} choices")
    if not len(condlist):
        raise ArgumentError("select: there are no conditions")
    result: Any = default
    for condition, choice in zip(reversed(list(condlist)), reversed(list(choicelist)), strict=True):
        if as_value(condition, "select").dtype.kind != "b":
            raise UnsupportedError("select: conditions must be boolean arrays")
        result = choose(condition, choice, result)
    return result
