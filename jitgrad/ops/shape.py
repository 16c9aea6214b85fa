"""Shape movement: other shapes, axes and orders for the same elements. Views where NumPy gives views."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core.aval import broadcasts_to, check_dtype
from jitgrad.core.dispatch import as_value, is_value
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError
from jitgrad.ops.axes import axes_of, axis_of, index_of, reduced_axes, shape_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.linear import (
    convert,
    copy_of,
    diagonal_view,
    expand,
    flip_view,
    indices_of,
    permute,
    place_diagonal,
    reshape_to,
)
from jitgrad.ops.selection import where

Array = np.ndarray[Any, Any]


def extents_of(shape: Any, what: str) -> tuple[int, ...]:
    """A shape as a tuple of ints, also from a 1-d integer array or tensor."""
    if isinstance(shape, np.ndarray) or is_value(shape):
        shape = as_value(shape, what)._array(what).tolist()
    return shape_of(shape, what)


@operation(
    samples=lambda rng: [Call((uniform(rng, 3, 4), np.float64), {}), Call((uniform(rng, 3), float), {"copy": False})],
    method=True,
    reference=lambda x, dtype, copy=True: np.asarray(x).astype(dtype, copy=copy),
)
def astype(x: Any, dtype: Any, *, copy: bool = True) -> Value:
    """The array in another dtype; always a copy, unless the dtype is the same and ``copy=False``.

    Derivative: the cotangent, converted back; converting to integers or bool cuts the graph.

    >>> import jitgrad as jg
    >>> jg.astype([1, 2], float)
    tensor([1., 2.])
    """
    x = as_value(x, "astype")
    made = check_dtype(dtype, "astype")
    if made == x.dtype:
        return copy_of(x) if copy else x
    return convert(x, dtype=made)


@operation(
    samples=lambda rng: [Call((uniform(rng, 3, 4),), {}), Call((uniform(rng),), {})], method=True, remembered=True
)
def copy(x: Any) -> Value:
    """A copy on memory of its own, in C order.

    Derivative: the cotangent itself.
    """
    return copy_of(as_value(x, "copy"))


@operation(
    samples=lambda rng: [Call((uniform(rng, 3, 4),), {}), Call((uniform(rng),), {})],
    nondiff=True,
    reference=lambda x: x,
)
def stop_gradient(x: Any) -> Value:
    """The value itself, as a constant: ``x.detach()``, for whatever is an array.

    Derivative: none. Cotangents and tangents end here, at every order and in every mode.

    >>> import jitgrad as jg
    >>> jg.grad(lambda x: x * jg.stop_gradient(x))(3.0)
    3.0
    """
    return as_value(x, "stop_gradient").detach()


def along(x: Value, axis: Any, what: str) -> tuple[Value, int]:
    """An array and one axis of it, for functions that take all elements in C order where the axis is None.

    As in NumPy's functions of this kind, a scalar counts as one element along an axis. ``what`` names the operation in
    errors.
    """
    if axis is None:
        return x if x.ndim == 1 else reshape_to(x, shape=(x.size,)), 0
    if x.ndim == 0:
        x = reshape_to(x, shape=(1,))
    return x, axis_of(axis, x.ndim, f"{what}: axis")


# --------------------------------------------------------------------------- other extents


def _order(order: Any, what: str) -> bool:
    """Whether the order is Fortran's."""
    if order not in ("C", "F"):
        raise ArgumentError(f"{what}: order must be 'C' or 'F', not {order!r}")
    return bool(order == "F")


def _reversed(x: Value) -> Value:
    return permute(x, axes=tuple(reversed(range(x.ndim))))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 6), (3, 4)), {}),
        Call((uniform(rng, 2, 6), (-1,)), {}),
        Call((uniform(rng, 2, 6), (4, -1)), {"order": "F"}),
        Call((uniform(rng, 0, 3), (3, 0, 2)), {}),
        Call((uniform(rng), (1, 1)), {}),
    ],
    remembered=True,
)
def reshape(x: Any, shape: Any, order: str = "C", *, copy: bool | None = None) -> Value:
    """The same elements with another shape, a view where the strides allow; one extent may be -1.

    ``order``: "C" (last axis fastest) or "F". ``copy=True`` always copies. Raises ShapeError where the numbers of
    elements differ. Derivative: the cotangent, reshaped back.

    >>> import jitgrad as jg
    >>> jg.reshape([1.0, 2.0, 3.0, 4.0], (2, -1))
    tensor([[1., 2.],
            [3., 4.]])
    """
    x = as_value(x, "reshape")
    wanted = _fill_in(x, extents_of(shape, "reshape"))
    if _order(order, "reshape"):
        made = _reversed(reshape_to(_reversed(x), shape=wanted[::-1]))
    else:
        made = reshape_to(x, shape=wanted)
    if copy is False and not np.shares_memory(made._array("reshape(copy=False)"), x._array("reshape")) and x.size:
        raise ArgumentError(f"reshape: {x.shape} to {wanted} needs a copy for this layout; leave copy=False out")
    return copy_of(made) if copy else made


def _fill_in(x: Value, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The wanted shape with its -1 replaced; ShapeError where it does not hold the elements of ``x``."""
    if -1 in wanted:
        if wanted.count(-1) > 1:
            raise ShapeError(f"reshape to {wanted}: only one extent may be -1")
        rest = math.prod(n for n in wanted if n != -1)
        if rest <= 0 or x.size % rest:
            raise ShapeError(f"reshape: {x.shape} has {x.size} elements, which do not fill {wanted}")
        return tuple(x.size // rest if n == -1 else n for n in wanted)
    if math.prod(wanted) != x.size or any(n < 0 for n in wanted):
        raise ShapeError(f"reshape: {x.shape} has {x.size} elements, {wanted} has {math.prod(wanted)}")
    return wanted


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3),), {}),
        Call((uniform(rng),), {}),
        Call((uniform(rng, 2, 3),), {"order": "F"}),
    ],
    method=True,
    remembered=True,
)
def ravel(x: Any, order: str = "C") -> Value:
    """All elements along one axis; a view of a contiguous array, else a copy.

    Derivative: the cotangent, reshaped back.
    """
    x = as_value(x, "ravel")
    ordered = _reversed(x) if _order(order, "ravel") else x
    return reshape_to(ordered if ordered.is_contiguous() else copy_of(ordered), shape=(x.size,))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3),), {}),
        Call((uniform(rng),), {}),
        Call((uniform(rng, 2, 3),), {"order": "F"}),
    ],
    method=True,
    reference=lambda x, order="C": np.asarray(x).flatten(order),
)
def flatten(x: Any, order: str = "C") -> Value:
    """All elements along one axis; always a copy, as in NumPy.

    Derivative: the cotangent, reshaped back.
    """
    x = as_value(x, "flatten")
    return reshape_to(copy_of(_reversed(x) if _order(order, "flatten") else x), shape=(x.size,))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3), 0), {}),
        Call((uniform(rng, 2, 3), -1), {}),
        Call((uniform(rng, 2, 3), (1, -1)), {}),
        Call((uniform(rng), 0), {}),
    ],
    method=True,
    remembered=True,
    aliases=("unsqueeze",),
)
def expand_dims(x: Any, axis: Any = 0) -> Value:
    """A view with new axes of extent 1 at the positions ``axis`` of the result.

    Derivative: the cotangent without these axes.

    >>> import jitgrad as jg
    >>> jg.expand_dims([1.0, 2.0], 1).shape
    (2, 1)
    """
    x = as_value(x, "expand_dims")
    given = axis if isinstance(axis, tuple | list) else (axis,)
    new = axes_of(tuple(given), x.ndim + len(given), "expand_dims: axis")
    old = iter(x.shape)
    return reshape_to(x, shape=tuple(1 if i in new else next(old) for i in range(x.ndim + len(new))))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 1, 3, 1),), {}),
        Call((uniform(rng, 1, 3, 1),), {"axis": -1}),
        Call((uniform(rng, 1, 3, 1),), {"axis": (0, 2)}),
        Call((uniform(rng),), {}),
    ],
    method=True,
    remembered=True,
)
def squeeze(x: Any, axis: Any = None) -> Value:
    """A view without axes of extent 1: all of them, or those named.

    Raises ShapeError where a named axis has another extent. Derivative: the cotangent with these axes.
    """
    x = as_value(x, "squeeze")
    dropped = reduced_axes(axis, x.ndim, "squeeze")
    if axis is not None and any(x.shape[i] != 1 for i in dropped):
        raise ShapeError(f"squeeze: axis {axis} of shape {x.shape} has an extent other than 1")
    return reshape_to(x, shape=tuple(n for i, n in enumerate(x.shape) if n != 1 or i not in dropped))


# --------------------------------------------------------------------------- broadcasting


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3, 1), (2, 3, 4)), {}),
        Call((uniform(rng), (2,)), {}),
        Call((uniform(rng, 1), (0,)), {}),
    ],
    method=True,
    remembered=True,
)
def broadcast_to(x: Any, shape: Any) -> Value:
    """A read-only view of another shape, repeated along new and stretched axes.

    Raises ShapeError where the shapes do not broadcast. Derivative: the cotangent, summed over these axes.
    """
    x = as_value(x, "broadcast_to")
    wanted = extents_of(shape, "broadcast_to")
    if any(n < 0 for n in wanted):
        raise ShapeError(f"broadcast_to: the shape {wanted} has negative extents")
    if not broadcasts_to(x.shape, wanted):
        raise ShapeError(f"broadcast_to: shape {x.shape} does not broadcast to {wanted}")
    return expand(x, shape=wanted)


@operation(samples=None, nondiff=True)
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to, as a tuple of ints.

    >>> import jitgrad as jg
    >>> jg.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    made = [extents_of(s, "broadcast_shapes") for s in shapes]
    try:
        return np.broadcast_shapes(*made)
    except ValueError:
        raise ShapeError(f"broadcast_shapes: {', '.join(map(str, made))} do not broadcast together") from None


@operation(samples=lambda rng: [Call((uniform(rng, 3, 1), uniform(rng, 2)), {}), Call((uniform(rng),), {})])
def broadcast_arrays(*arrays: Any) -> tuple[Value, ...]:
    """Read-only views of the arrays in their common broadcast shape.

    Derivative: the cotangents, summed over the repeated axes.
    """
    values = [as_value(a, "broadcast_arrays") for a in arrays]
    shape = broadcast_shapes(*(v.shape for v in values))
    return tuple(v if v.shape == shape else expand(v, shape=shape) for v in values)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3), uniform(rng, 2)), {}),
        Call((uniform(rng, 3), uniform(rng, 2)), {"indexing": "ij"}),
    ]
)
def meshgrid(*arrays: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Value, ...]:
    """Coordinate grids of 1-d arrays, a tuple with one for each.

    ``indexing``: "xy" (the first two axes swapped) or "ij"; ``sparse``: extents of 1 instead of repetition;
    ``copy=False``: views. Derivative: the cotangents, summed over the repeated axes.
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing must be 'xy' or 'ij', not {indexing!r}")
    values = [as_value(a, "meshgrid") for a in arrays]
    count = len(values)
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[:2] = [1, 0]
    grids = []
    for i, v in enumerate(values):
        if v.ndim > 1:
            raise ShapeError(f"meshgrid: the arrays must be 1-d, argument {i + 1} has shape {v.shape}")
        grids.append(reshape_to(v, shape=tuple(v.size if order[i] == axis else 1 for axis in range(count))))
    full = broadcast_shapes(*(g.shape for g in grids)) if not sparse else ()
    if not sparse:
        grids = [expand(g, shape=full) for g in grids]
    return tuple(copy_of(g) if copy else g for g in grids)


def _at_least(arrays: tuple[Any, ...], what: str, shape: Any) -> Any:
    made = []
    for a in arrays:
        v = as_value(a, what)
        wanted = shape(v.shape)
        made.append(v if v.shape == wanted else reshape_to(v, shape=wanted))
    return made[0] if len(made) == 1 else tuple(made)


@operation(samples=lambda rng: [Call((uniform(rng),), {}), Call((uniform(rng, 2, 3),), {})])
def atleast_1d(*arrays: Any) -> Any:
    """The arrays with at least one axis; a tuple where there are several.

    Derivative: the cotangent, reshaped back.
    """
    return _at_least(arrays, "atleast_1d", lambda s: s or (1,))


@operation(
    samples=lambda rng: [Call((uniform(rng),), {}), Call((uniform(rng, 2),), {}), Call((uniform(rng, 2, 3),), {})]
)
def atleast_2d(*arrays: Any) -> Any:
    """The arrays with at least two axes, new ones first; a tuple where there are several.

    Derivative: the cotangent, reshaped back.
    """
    return _at_least(arrays, "atleast_2d", lambda s: (1,) * (2 - len(s)) + s)


def _three(shape: tuple[int, ...]) -> tuple[int, ...]:
    return {0: (1, 1, 1), 1: (1, *shape, 1), 2: (*shape, 1)}.get(len(shape), shape)


@operation(
    samples=lambda rng: [Call((uniform(rng),), {}), Call((uniform(rng, 2),), {}), Call((uniform(rng, 2, 3),), {})]
)
def atleast_3d(*arrays: Any) -> Any:
    """The arrays with at least three axes, as NumPy places them: (1, N, 1) and (M, N, 1); a tuple of several.

    Derivative: the cotangent, reshaped back.
    """
    return _at_least(arrays, "atleast_3d", _three)


# --------------------------------------------------------------------------- other orders of axes


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3, 4), (2, 0, 1)), {}),
        Call((uniform(rng, 2, 3, 4),), {}),
        Call((uniform(rng, 2, 3), (-1, 0)), {}),
        Call((uniform(rng),), {}),
    ],
    aliases=("transpose", "permute"),
    reference=np.transpose,
    remembered=True,
)
def permute_dims(x: Any, axes: Any = None) -> Value:
    """A view with the axes in another order; reversed by default.

    Raises ShapeError where ``axes`` is not a permutation. Derivative: the cotangent with the axes put back.

    >>> import jitgrad as jg
    >>> jg.permute_dims([[1.0, 2.0, 3.0]], (1, 0)).shape
    (3, 1)
    """
    x = as_value(x, "permute_dims")
    if axes is None:
        return _reversed(x)
    order = tuple(axis_of(a, x.ndim, "permute_dims: axis") for a in (axes if isinstance(axes, Sequence) else (axes,)))
    if sorted(order) != list(range(x.ndim)):
        hint = "; jg.swapaxes(x, a, b) exchanges two axes" if len(order) == 2 else ""
        raise ShapeError(f"permute_dims: {axes} is not an order of the {x.ndim} axes of shape {x.shape}{hint}")
    return permute(x, axes=order)


@operation(
    samples=lambda rng: [Call((uniform(rng, 2, 3),), {}), Call((uniform(rng, 2, 3, 4),), {})],
    reference=np.matrix_transpose,
    remembered=True,
)
def matrix_transpose(x: Any) -> Value:
    """A view with the last two axes exchanged: the transpose of each matrix.

    Derivative: the same of the cotangent.
    """
    x = as_value(x, "matrix_transpose")
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose takes at least 2 axes, not shape {x.shape}")
    return permute(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@operation(
    samples=lambda rng: [Call((uniform(rng, 2, 3, 4), 0, -1), {}), Call((uniform(rng, 2, 3), 1, 1), {})],
    method=True,
    remembered=True,
)
def swapaxes(x: Any, axis1: int, axis2: int) -> Value:
    """A view with two axes exchanged.

    Derivative: the same of the cotangent.
    """
    x = as_value(x, "swapaxes")
    a, b = axis_of(axis1, x.ndim, "swapaxes: axis1"), axis_of(axis2, x.ndim, "swapaxes: axis2")
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return permute(x, axes=tuple(order))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3, 4), 0, -1), {}),
        Call((uniform(rng, 2, 3, 4), (0, 1), (-1, 0)), {}),
    ],
    remembered=True,
)
def moveaxis(x: Any, source: Any, destination: Any) -> Value:
    """A view with the axes ``source`` moved to ``destination``; the others keep their order.

    Derivative: the cotangent with the axes put back.
    """
    x = as_value(x, "moveaxis")
    sources = _axis_list(source, x.ndim, "moveaxis: source")
    targets = _axis_list(destination, x.ndim, "moveaxis: destination")
    if len(sources) != len(targets):
        raise ArgumentError(f"moveaxis: {len(sources)} source axes but {len(targets)} destinations")
    order = [i for i in range(x.ndim) if i not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return permute(x, axes=tuple(order))


def _axis_list(axis: Any, ndim: int, what: str) -> list[int]:
    found = [axis_of(a, ndim, what) for a in (axis if isinstance(axis, tuple | list) else (axis,))]
    if len(set(found)) != len(found):
        raise ArgumentError(f"{what} {axis} names an axis twice")
    return found


# --------------------------------------------------------------------------- other orders of elements


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3),), {}),
        Call((uniform(rng, 2, 3),), {"axis": -1}),
        Call((uniform(rng, 2, 3, 2),), {"axis": (0, 2)}),
        Call((uniform(rng),), {}),
    ],
    method=True,
    remembered=True,
)
def flip(x: Any, axis: Any = None) -> Value:
    """A view with the elements in reverse along axes (all by default).

    Derivative: the same of the cotangent.
    """
    x = as_value(x, "flip")
    return flip_view(x, axes=axes_of(axis, x.ndim, "flip: axis"))


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3),), {}), Call((uniform(rng, 3),), {})], remembered=True)
def flipud(x: Any) -> Value:
    """A view with the first axis in reverse.

    Derivative: the same of the cotangent.
    """
    return _flip_one(x, 0, 1, "flipud")


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3),), {})], remembered=True)
def fliplr(x: Any) -> Value:
    """A view with the second axis in reverse.

    Derivative: the same of the cotangent.
    """
    return _flip_one(x, 1, 2, "fliplr")


def _flip_one(x: Any, axis: int, least: int, what: str) -> Value:
    x = as_value(x, what)
    if x.ndim < least:
        raise ShapeError(f"{what} takes at least {least} axes, not shape {x.shape}")
    return flip_view(x, axes=(axis,))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3),), {}),
        Call((uniform(rng, 2, 3),), {"k": 2}),
        Call((uniform(rng, 2, 3, 4),), {"k": -1, "axes": (2, 0)}),
        Call((uniform(rng, 2, 3),), {"k": 4}),
    ]
)
def rot90(x: Any, k: int = 1, axes: Any = (0, 1)) -> Value:
    """A view turned ``k`` times by a right angle, from the first towards the second of two axes.

    Derivative: the cotangent, turned back.
    """
    x = as_value(x, "rot90")
    plane = _axis_list(tuple(axes), x.ndim, "rot90: axes")
    if len(plane) != 2:
        raise ArgumentError(f"rot90: axes must be two axes, not {axes}")
    a, b = plane
    turns = index_of(k, "rot90: k") % 4
    if turns == 0:
        return flip_view(x, axes=())
    if turns == 2:
        return flip_view(x, axes=tuple(sorted(plane)))
    return swapaxes(flip_view(x, axes=(b,)), a, b) if turns == 1 else flip_view(swapaxes(x, a, b), axes=(b,))


# --------------------------------------------------------------------------- diagonals and triangles


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3, 4),), {}),
        Call((uniform(rng, 3, 4),), {"offset": -1}),
        Call((uniform(rng, 2, 3, 4),), {"offset": 1, "axis1": 2, "axis2": 0}),
        Call((uniform(rng, 2, 2),), {"offset": 5}),
    ],
    method=True,
    remembered=True,
)
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
    """The diagonal of two axes, as the last axis of a read-only view.

    Raises ShapeError for less than two axes. Derivative: the cotangent on the diagonal, structural zeros elsewhere.
    """
    x = as_value(x, "diagonal")
    if x.ndim < 2:
        raise ShapeError(f"diagonal takes at least 2 axes, not shape {x.shape}")
    a, b = axis_of(axis1, x.ndim, "diagonal: axis1"), axis_of(axis2, x.ndim, "diagonal: axis2")
    if a == b:
        raise ArgumentError(f"diagonal: axis1 and axis2 are both {a}")
    return diagonal_view(x, offset=index_of(offset, "diagonal: offset"), axis1=a, axis2=b)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3),), {}),
        Call((uniform(rng, 3),), {"k": -2}),
        Call((uniform(rng, 3, 4),), {"k": 1}),
    ],
    remembered=True,
)
def diag(x: Any, k: int = 0) -> Value:
    """Of a 1-d array the matrix with it on the ``k``-th diagonal; of a matrix its ``k``-th diagonal (a read-only view).

    Raises ShapeError for other numbers of axes. Derivative: the cotangent's diagonal, or the cotangent on the diagonal.

    >>> import jitgrad as jg
    >>> jg.diag([1.0, 2.0])
    tensor([[1., 0.],
            [0., 2.]])
    """
    x = as_value(x, "diag")
    offset = index_of(k, "diag: k")
    if x.ndim == 2:
        return diagonal_view(x, offset=offset, axis1=0, axis2=1)
    if x.ndim != 1:
        raise ShapeError(f"diag takes 1 or 2 axes, not shape {x.shape}; jg.diagonal takes more")
    n = x.shape[0] + abs(offset) if offset else x.shape[0]  # the extent itself stays symbolic in a trace
    return place_diagonal(x, shape=(n, n), offset=offset, axis1=0, axis2=1)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 2),), {}), Call((uniform(rng),), {"k": 1})])
def diagflat(x: Any, k: int = 0) -> Value:
    """The matrix with all elements, in C order, on its ``k``-th diagonal.

    Derivative: the cotangent's diagonal, reshaped back.
    """
    return diag(ravel(x), k)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3, 4),), {}),
        Call((uniform(rng, 2, 3, 4),), {"offset": 1, "axis1": 1, "axis2": -1}),
    ],
    method=True,
)
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Value:
    """The sum of a diagonal of two axes.

    Derivative: the cotangent on the diagonal.
    """
    found = diagonal(x, offset, axis1, axis2)
    if dtype is not None:
        found = astype(found, dtype, copy=False)
    return found.sum(-1)


def _triangle(x: Any, k: Any, what: str, keep: Any) -> Value:
    x = as_value(x, what)
    if x.ndim == 0:
        raise ShapeError(f"{what} takes at least 1 axis, not a scalar")
    rows = x.shape[-2] if x.ndim > 1 else x.shape[-1]  # as NumPy: a 1-d array is each row of a square matrix
    # operators mean the same of ndarrays, which cost less than tensors
    row, column = (indices_of(n, x) if x.is_traced else np.arange(n) for n in (rows, x.shape[-1]))
    mask = keep(row[:, None] + index_of(k, f"{what}: k"), column)
    return where(mask, x, False if x.dtype.kind == "b" else 0)


@operation(
    samples=lambda rng: [Call((uniform(rng, 3, 4),), {}), Call((uniform(rng, 2, 3, 3),), {"k": -1})], method=True
)
def tril(x: Any, k: int = 0) -> Value:
    """The lower triangles of matrices: zero above the ``k``-th diagonal.

    Derivative: the lower triangles of the cotangent, structural zeros above.
    """
    return _triangle(x, k, "tril", operator.ge)


@operation(samples=lambda rng: [Call((uniform(rng, 3, 4),), {}), Call((uniform(rng, 2, 3, 3),), {"k": 1})], method=True)
def triu(x: Any, k: int = 0) -> Value:
    """The upper triangles of matrices: zero below the ``k``-th diagonal.

    Derivative: the upper triangles of the cotangent, structural zeros below.
    """
    return _triangle(x, k, "triu", operator.le)
