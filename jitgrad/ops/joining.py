"""Joining, splitting, repeating and padding: arrays made of several, or of parts of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.core.aval import INT64, broadcasts_to, check_dtype, result_dtype
from jitgrad.core.dispatch import as_value, constant, is_value
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError, UnsupportedError
from jitgrad.ops.axes import axis_of, index_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.linear import (
    convert,
    copy_of,
    expand,
    join,
    pile,
    place,
    positions_from,
    reshape_to,
    slice_view,
    take_at,
)
from jitgrad.ops.shape import along, atleast_1d, atleast_2d, atleast_3d, ravel

Array = np.ndarray[Any, Any]
_ALL = (None, None, None)


def _parts(arrays: Any, what: str) -> list[Value]:
    """The values of a sequence of arrays (an array counts as the sequence of its rows)."""
    if not (isinstance(arrays, Sequence | np.ndarray) or is_value(arrays)) or isinstance(arrays, str | bytes):
        raise UnsupportedError(f"{what} takes a sequence of arrays, as a tuple or list, not {type(arrays).__name__}")
    values = [as_value(a, what) for a in arrays]
    if not values:
        raise ShapeError(f"{what}: there is nothing to join in an empty sequence")
    return values


def _one_dtype(values: list[Value], dtype: Any, what: str) -> list[Value]:
    if dtype is None and all(v.dtype is values[0].dtype for v in values):
        return values
    made = result_dtype(*(v.dtype for v in values)) if dtype is None else dtype
    made = check_dtype(made, what)
    return [v if v.dtype == made else convert(v, dtype=made) for v in values]


def _joined(values: list[Value], axis: Any, what: str, dtype: Any = None) -> Value:
    first = values[0]
    if first.ndim == 0:
        raise ShapeError(f"{what}: arrays without axes cannot be joined; use jg.stack")
    at = axis_of(axis, first.ndim, f"{what}: axis")
    shape = first.shape
    for v in values:
        other = v.shape
        if other != shape and (
            len(other) != len(shape) or other[:at] + other[at + 1 :] != shape[:at] + shape[at + 1 :]
        ):
            raise ShapeError(f"{what}: shapes {shape} and {other} differ in more than axis {at}")
    return join(*_one_dtype(values, dtype, what), axis=at)


# --------------------------------------------------------------------------- joining


@operation(
    samples=lambda rng: [
        Call(([uniform(rng, 2, 3), uniform(rng, 1, 3)],), {}),
        Call(([uniform(rng, 2, 3), uniform(rng, 2, 0), uniform(rng, 2, 2)],), {"axis": -1}),
        Call(([uniform(rng, 2, 3), uniform(rng)],), {"axis": None}),
    ],
    aliases=("concatenate", "cat"),
    reference=np.concatenate,
    remembered=True,
)
def concat(arrays: Any, axis: int | None = 0, *, dtype: Any = None) -> Value:
    """Arrays one after the other along an existing axis; ``axis=None`` flattens them first.

    The result has the common dtype. Raises ShapeError where the other extents differ. Derivative: each array gets its
    part of the cotangent.

    >>> import jitgrad as jg
    >>> jg.concat([jg.tensor([1.0, 2.0]), [3.0]])
    tensor([1., 2., 3.])
    """
    values = _parts(arrays, "concat")
    if axis is None:
        values, axis = [ravel(v) for v in values], 0
    return _joined(values, axis, "concat", dtype)


@operation(
    samples=lambda rng: [
        Call(([uniform(rng, 2, 3), uniform(rng, 2, 3)],), {}),
        Call(([uniform(rng, 2, 3), uniform(rng, 2, 3)],), {"axis": -1}),
        Call(([uniform(rng), uniform(rng), uniform(rng)],), {}),
    ],
    remembered=True,
)
def stack(arrays: Any, axis: int = 0, *, dtype: Any = None) -> Value:
    """Arrays of one shape along a new axis.

    The result has the common dtype. Raises ShapeError where the shapes differ. Derivative: each array gets its part of
    the cotangent.

    >>> import jitgrad as jg
    >>> jg.stack([[1.0, 2.0], [3.0, 4.0]], axis=1)
    tensor([[1., 3.],
            [2., 4.]])
    """
    values = _parts(arrays, "stack")
    shapes = {v.shape for v in values}
    if len(shapes) > 1:
        raise ShapeError(f"stack: all arrays must have one shape, not {', '.join(map(str, sorted(shapes)))}")
    at = axis_of(axis, values[0].ndim + 1, "stack: axis")
    return pile(*_one_dtype(values, dtype, "stack"), axis=at)


def _lifted(arrays: Any, what: str, lift: Any) -> list[Value]:
    return [lift(v) for v in _parts(arrays, what)]


@operation(
    samples=lambda rng: [
        Call(([uniform(rng, 2), uniform(rng, 3)],), {}),
        Call(([uniform(rng, 2, 1), uniform(rng, 2, 3)],), {}),
        Call(([uniform(rng), uniform(rng)],), {}),
    ],
    remembered=True,
)
def hstack(arrays: Any, *, dtype: Any = None) -> Value:
    """Arrays side by side: along the second axis, along the first for 1-d arrays.

    Derivative: each array gets its part of the cotangent.
    """
    values = _lifted(arrays, "hstack", atleast_1d)
    return _joined(values, 0 if values[0].ndim == 1 else 1, "hstack", dtype)


@operation(
    samples=lambda rng: [
        Call(([uniform(rng, 3), uniform(rng, 3)],), {}),
        Call(([uniform(rng, 2, 3), uniform(rng, 3)],), {}),
    ],
    aliases=("row_stack",),
)
def vstack(arrays: Any, *, dtype: Any = None) -> Value:
    """Arrays one below the other: along the first axis; 1-d arrays are rows.

    Derivative: each array gets its part of the cotangent.
    """
    return _joined(_lifted(arrays, "vstack", atleast_2d), 0, "vstack", dtype)


@operation(
    samples=lambda rng: [
        Call(([uniform(rng, 3), uniform(rng, 3)],), {}),
        Call(([uniform(rng, 2, 3, 1), uniform(rng, 2, 3)],), {}),
    ]
)
def dstack(arrays: Any) -> Value:
    """Arrays one behind the other: along the third axis.

    Derivative: each array gets its part of the cotangent.
    """
    return _joined(_lifted(arrays, "dstack", atleast_3d), 2, "dstack")


@operation(
    samples=lambda rng: [
        Call(([uniform(rng, 3), uniform(rng, 3, 2)],), {}),
        Call(([uniform(rng), uniform(rng)],), {}),
    ]
)
def column_stack(arrays: Any) -> Value:
    """1-d arrays as columns, 2-d arrays as they are, side by side.

    Derivative: each array gets its part of the cotangent.
    """

    def lift(v: Value) -> Value:
        return v if v.ndim > 1 else reshape_to(v, shape=(v.size, 1))

    return _joined(_lifted(arrays, "column_stack", lift), 1, "column_stack")


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 2), uniform(rng)), {}),
        Call((uniform(rng, 2, 2), uniform(rng, 1, 2)), {"axis": 0}),
    ],
    remembered=True,
)
def append(x: Any, values: Any, axis: int | None = None) -> Value:
    """``values`` after the elements of ``x``; without an axis both are flattened.

    Derivative: each gets its part of the cotangent.
    """
    return concat((as_value(x, "append"), as_value(values, "append")), axis)


@operation(
    samples=lambda rng: [
        Call(([[uniform(rng, 2, 2), uniform(rng, 2, 1)], [uniform(rng, 1, 2), uniform(rng, 1, 1)]],), {}),
        Call(([uniform(rng, 2), uniform(rng), uniform(rng, 3)],), {}),
        Call(([[uniform(rng, 3)], [uniform(rng, 2, 3)]],), {}),
        Call(([[[uniform(rng, 2)], [uniform(rng, 2)]]],), {}),
        Call((uniform(rng, 2, 2),), {}),
    ],
)
def block(arrays: Any) -> Value:
    """An array of blocks: innermost lists are joined along the last axis, the lists around them along the axis before, ...

    Blocks of fewer axes get axes of extent 1 in front. The result has the common dtype. Raises ShapeError where blocks do
    not fit or lists are empty or of different depths, UnsupportedError for tuples. Derivative: each block gets its part
    of the cotangent.

    >>> import jitgrad as jg
    >>> jg.block([[jg.eye(2), jg.zeros((2, 1))], [jg.ones((1, 2)), 5.0]])
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [1., 1., 5.]])
    """
    depth = _depth(arrays, "arrays")
    blocks = _one_dtype([as_value(a, "block") for a in _leaves(arrays)], None, "block")
    if not depth:
        return copy_of(blocks[0])
    ndim = max(depth, *(b.ndim for b in blocks))
    blocks = [reshape_to(b, shape=(1,) * (ndim - b.ndim) + b.shape) if b.ndim < ndim else b for b in blocks]
    return _assembled(arrays, iter(blocks), ndim - depth)


def _depth(tree: Any, where: str) -> int:
    """How deep the lists of blocks are nested, the same everywhere."""
    if isinstance(tree, tuple):
        raise UnsupportedError(f"block takes lists of arrays, but {where} is a tuple")
    if not isinstance(tree, list):
        return 0
    depths = {_depth(part, f"{where}[{i}]") for i, part in enumerate(tree)}
    if not depths:
        raise ShapeError(f"block: the list {where} is empty")
    if len(depths) > 1:
        raise ShapeError(
            f"block: the parts of {where} are lists of different depths: {', '.join(map(str, sorted(depths)))}"
        )
    return depths.pop() + 1


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list):
        for part in tree:
            yield from _leaves(part)
    else:
        yield tree


def _assembled(tree: Any, blocks: Iterator[Value], axis: int) -> Value:
    """The next blocks, as many as are in the nested lists, joined along ``axis`` and those behind it."""
    if not isinstance(tree, list):
        return next(blocks)
    return _joined([_assembled(part, blocks, axis + 1) for part in tree], axis, "block")


# --------------------------------------------------------------------------- splitting


def _cut(x: Value, axis: int, start: int | None, stop: int | None) -> Value:
    return slice_view(x, index=(_ALL,) * axis + ((start, stop, None),))


def _split(x: Any, sections: Any, axis: Any, what: str, even: bool) -> list[Value]:
    x = as_value(x, what)
    at = axis_of(axis, x.ndim, f"{what}: axis")
    extent = x.shape[at]
    if isinstance(sections, tuple | list) or (
        (isinstance(sections, np.ndarray) or is_value(sections)) and sections.ndim
    ):
        bounds = [index_of(i, f"{what}: split point") for i in _numbers(sections, what).tolist()]
        starts: list[int | None] = [0, *bounds]
        stops: list[int | None] = [*bounds, None]
    else:
        count = index_of(sections, f"{what}: number of parts")
        if count <= 0:
            raise ArgumentError(f"{what}: the number of parts must be positive, not {count}")
        if even and extent % count:
            raise ShapeError(
                f"{what}: axis {at} of extent {extent} does not split evenly into {count}; use jg.array_split"
            )
        each, more = divmod(extent, count)
        ends = np.cumsum([each + (i < more) for i in range(count)]).tolist()
        starts, stops = [0, *ends[:-1]], ends
    return [_cut(x, at, a, b) for a, b in zip(starts, stops, strict=True)]


def _numbers(values: Any, what: str) -> Array:
    """Plain integers (or booleans) of an array-like that is not differentiated."""
    array: Array = as_value(values, what)._array(what)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "biu":
        raise UnsupportedError(f"{what} takes integers here, not {array.dtype}")
    return array


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 4, 2), 2), {}),
        Call((uniform(rng, 2, 5), [1, 3]), {"axis": 1}),
        Call((uniform(rng, 5), [2, 2, 7]), {}),
    ]
)
def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Value]:
    """Views of the parts of an axis: of equal size, or cut at the given points.

    Raises ShapeError where the axis does not split evenly. Derivative: the cotangents at their places.

    >>> import jitgrad as jg
    >>> jg.split([1.0, 2.0, 3.0], [1])
    [tensor([1.]), tensor([2., 3.])]
    """
    return _split(x, indices_or_sections, axis, "split", True)


@operation(samples=lambda rng: [Call((uniform(rng, 5, 2), 3), {}), Call((uniform(rng, 2), 3), {})])
def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Value]:
    """Views of the parts of an axis, of equal size or one more; or cut at the given points.

    Derivative: the cotangents at their places.
    """
    return _split(x, indices_or_sections, axis, "array_split", False)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 4), 2), {}), Call((uniform(rng, 4), [1]), {})])
def hsplit(x: Any, indices_or_sections: Any) -> list[Value]:
    """``split`` along the second axis, along the first for 1-d arrays.

    Derivative: the cotangents at their places.
    """
    x = as_value(x, "hsplit")
    return _split(x, indices_or_sections, 0 if x.ndim == 1 else 1, "hsplit", True)


@operation(samples=lambda rng: [Call((uniform(rng, 4, 2), 2), {})])
def vsplit(x: Any, indices_or_sections: Any) -> list[Value]:
    """``split`` along the first axis of at least two.

    Derivative: the cotangents at their places.
    """
    x = as_value(x, "vsplit")
    if x.ndim < 2:
        raise ShapeError(f"vsplit takes at least 2 axes, not shape {x.shape}")
    return _split(x, indices_or_sections, 0, "vsplit", True)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 1, 4), 2), {})])
def dsplit(x: Any, indices_or_sections: Any) -> list[Value]:
    """``split`` along the third axis.

    Derivative: the cotangents at their places.
    """
    x = as_value(x, "dsplit")
    if x.ndim < 3:
        raise ShapeError(f"dsplit takes at least 3 axes, not shape {x.shape}")
    return _split(x, indices_or_sections, 2, "dsplit", True)


@operation(samples=lambda rng: [Call((uniform(rng, 3, 2),), {}), Call((uniform(rng, 3, 2),), {"axis": -1})])
def unstack(x: Any, *, axis: int = 0) -> tuple[Value, ...]:
    """Views of the slices along an axis, without that axis.

    Derivative: the cotangents at their places.
    """
    x = as_value(x, "unstack")
    at = axis_of(axis, x.ndim, "unstack: axis")
    return tuple(slice_view(x, index=(*(_ALL,) * at, i)) for i in range(x.shape[at]))


# --------------------------------------------------------------------------- repeating


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 4), 1), {}),
        Call((uniform(rng, 2, 3), -4), {}),
        Call((uniform(rng, 2, 3), 1), {"axis": 1}),
        Call((uniform(rng, 3, 3), (1, -1)), {"axis": (0, 1)}),
        Call((uniform(rng, 0), 1), {}),
    ]
)
def roll(x: Any, shift: Any, axis: Any = None) -> Value:
    """The elements moved along axes, those that fall off at the end put at the beginning.

    Without an axis the flattened elements are moved. Derivative: the cotangent, moved back.
    """
    x = as_value(x, "roll")
    if axis is None:
        return reshape_to(roll(ravel(x), shift, 0), shape=x.shape)
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    shifts = shift if isinstance(shift, tuple | list) else (shift,)
    if len(axes) != len(shifts):
        if 1 not in (len(axes), len(shifts)):
            raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
        axes = axes * len(shifts) if len(axes) == 1 else axes
        shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    total: dict[int, int] = {}
    for a, s in zip(axes, shifts, strict=True):
        at = axis_of(a, x.ndim, "roll: axis")
        total[at] = total.get(at, 0) + index_of(s, "roll: shift")
    moved = x
    for at, amount in total.items():
        n = x.shape[at]
        if n and amount % n:
            cut = n - amount % n
            moved = join(_cut(moved, at, cut, None), _cut(moved, at, None, cut), axis=at)
    return moved if moved is not x else x.copy()


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3), 2), {}),
        Call((uniform(rng, 2, 3), (2, 1)), {}),
        Call((uniform(rng, 3), (2, 2, 1)), {}),
        Call((uniform(rng, 2, 3), 0), {}),
        Call((uniform(rng), 3), {}),
    ]
)
def tile(x: Any, reps: Any) -> Value:
    """The array repeated as a block, ``reps`` times along each axis.

    Derivative: the cotangent, summed over the blocks.
    """
    x = as_value(x, "tile")
    counts = tuple(
        index_of(r, "tile: reps") for r in (reps if isinstance(reps, tuple | list) else _listed(reps, "tile"))
    )
    if any(r < 0 for r in counts):
        raise ArgumentError(f"tile: repetitions cannot be negative, as in {counts}")
    ndim = max(x.ndim, len(counts))
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x.ndim) + x.shape
    interleaved = tuple(n for pair in zip((1,) * ndim, shape, strict=True) for n in pair)
    repeated = tuple(n for pair in zip(counts, shape, strict=True) for n in pair)
    blocks = expand(reshape_to(x, shape=interleaved), shape=repeated)
    return reshape_to(blocks.copy(), shape=tuple(r * n for r, n in zip(counts, shape, strict=True)))


def _listed(values: Any, what: str) -> list[int]:
    found: list[int] = np.atleast_1d(_numbers(values, what)).astype(np.int64).tolist()
    return found


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3), 2), {}),
        Call((uniform(rng, 2, 3), 2), {"axis": 1}),
        Call((uniform(rng, 2, 3), [2, 0, 1]), {"axis": -1}),
        Call((uniform(rng), 3), {}),
    ],
    method=True,
)
def repeat(x: Any, repeats: Any, axis: int | None = None) -> Value:
    """Each element (or each slice of an axis) repeated in place; ``repeats`` is one number, or one for each.

    Without an axis the flattened elements are repeated. Derivative: the cotangent, summed over the repetitions.
    """
    x, at = along(as_value(x, "repeat"), axis, "repeat")
    n = x.shape[at]
    counts = _listed(repeats, "repeat")
    if any(c < 0 for c in counts):
        raise ArgumentError("repeat: repetitions cannot be negative")
    if len(counts) == 1:
        shape = (*x.shape[:at], n, counts[0], *x.shape[at + 1 :])
        spread = expand(reshape_to(x, shape=(*x.shape[: at + 1], 1, *x.shape[at + 1 :])), shape=shape)
        return reshape_to(spread.copy(), shape=(*x.shape[:at], n * counts[0], *x.shape[at + 1 :]))
    if len(counts) != n:
        raise ShapeError(f"repeat: {len(counts)} repetitions for axis {at} of extent {n}")
    return take_at(x, positions_from(repeats, np.repeat(np.arange(n), counts), x), axis=at)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 5), 1, 1), {}),
        Call((uniform(rng, 2, 5), [0, -1], 1), {}),
        Call((uniform(rng, 2, 3), slice(0, 4, 2)), {}),
    ]
)
def delete(x: Any, obj: Any, axis: int | None = None) -> Value:
    """The array without the elements ``obj`` (integers, a slice or a mask) of an axis; flattened without an axis.

    Derivative: the cotangent at the places that stay, structural zeros elsewhere.
    """
    x = as_value(x, "delete")
    if axis is None:
        x, axis = ravel(x), 0
    at = axis_of(axis, x.ndim, "delete: axis")
    chosen = obj if isinstance(obj, slice) else _numbers(obj, "delete")
    return take_at(x, positions_from(obj, np.delete(np.arange(x.shape[at]), chosen), x), axis=at)


# --------------------------------------------------------------------------- padding

_BY_POSITION = ("edge", "reflect", "symmetric", "wrap")


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3), 1), {}),
        Call((uniform(rng, 3), (2, 1)), {"constant_values": 1.5}),
        Call((uniform(rng, 2, 3), ((1, 0), (0, 2))), {"mode": "constant", "constant_values": ((1.0, 2.0), (3.0, 4.0))}),
        Call((uniform(rng, 2, 3), ((1, 2), (3, 1))), {"mode": "edge"}),
        Call((uniform(rng, 2, 3), ((1, 2), (3, 5))), {"mode": "reflect"}),
        Call((uniform(rng, 3), 5), {"mode": "symmetric"}),
        Call((uniform(rng, 2, 3), 2), {"mode": "wrap"}),
    ]
)
def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Value:
    """The array with elements added at the ends of its axes.

    ``pad_width``: one number, ``(before, after)``, or such a pair for each axis (or a dict of axes). ``mode``:
    "constant" (with ``constant_values``, shaped as ``pad_width``), "edge", "reflect", "symmetric" or "wrap".
    Derivative: the cotangent of the middle, plus that of the copies; constants get the sum of theirs.

    >>> import jitgrad as jg
    >>> jg.pad([1.0, 2.0], (1, 2))
    tensor([0., 1., 2., 0., 0.])
    """
    x = as_value(x, "pad")
    widths = _pad_widths(pad_width, x.ndim)
    if mode == "constant":
        return _pad_constant(x, widths, constant_values)
    if mode not in _BY_POSITION:
        raise UnsupportedError(f"pad: mode must be 'constant', {', '.join(map(repr, _BY_POSITION))}, not {mode!r}")
    padded = x
    for axis, (before, after) in enumerate(widths):
        if before or after:
            n = x.shape[axis]
            if n == 0:
                raise ShapeError(f"pad: axis {axis} of shape {x.shape} has no elements to repeat")
            positions = np.pad(np.arange(n), (before, after), mode=mode)  # type: ignore[call-overload]
            padded = take_at(padded, constant(positions, INT64, x), axis=axis)
    return padded if padded is not x else x.copy()


def _pad_widths(pad_width: Any, ndim: int) -> list[tuple[int, int]]:
    if isinstance(pad_width, dict):
        by_axis = {axis_of(a, ndim, "pad: axis"): w for a, w in pad_width.items()}
        pad_width = [_pair(by_axis.get(i, 0)) for i in range(ndim)]
        if not ndim:
            return []
    given = np.asarray(pad_width)
    if given.dtype.kind not in "iu" and given.size:
        raise UnsupportedError(f"pad: pad_width must be integers, not {pad_width!r}")
    try:
        pairs = np.broadcast_to(given, (ndim, 2)).tolist()
    except ValueError:
        raise ShapeError(f"pad: pad_width {pad_width!r} does not fit {ndim} axes") from None
    if any(n < 0 for pair in pairs for n in pair):
        raise ArgumentError("pad: pad_width cannot be negative; use a slice to remove elements")
    return [(before, after) for before, after in pairs]


def _pair(width: Any) -> tuple[Any, Any]:
    return tuple(width) if isinstance(width, tuple | list) else (width, width)


def _pad_constant(x: Value, widths: list[tuple[int, int]], constants: Any) -> Value:
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, widths, strict=True))
    if type(constants) in (int, float) and constants == 0 and np.copysign(1.0, constants) > 0:
        middle = tuple((before, before + n, None) for n, (before, _) in zip(x.shape, widths, strict=True))
        return place(x, shape=shape, index=middle)
    values = as_value(constants, "pad: constant_values")
    if values.dtype != x.dtype:
        values = convert(values, dtype=x.dtype)
    if not broadcasts_to(values.shape, (x.ndim, 2)):
        raise ShapeError(f"pad: constant_values of shape {values.shape} do not fit {x.ndim} axes")
    table = expand(values, shape=(x.ndim, 2))
    padded = x
    for axis, pair in enumerate(widths):  # later axes own the corners, as in NumPy
        blocks = [
            expand(
                slice_view(table, index=(axis, side)),
                shape=(*padded.shape[:axis], pair[side], *padded.shape[axis + 1 :]),
            )
            for side in (0, 1)
        ]
        if any(pair):
            padded = join(blocks[0], padded, blocks[1], axis=axis)
    return padded if padded is not x else x.copy()
