"""The linear primitives that the others are made of: conversion, movement, sums, slices and gathers, with transposes.

They stand in one module because they are each other's transposes. Their parameters are canonical (sorted non-negative
axes, full shapes, hashable indices); the public functions of the other modules normalise what users write.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final, TypeAlias

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import BOOL, FLOAT32, FLOAT64, INT64, ShapedArray, make_aval, result_dtype
from jitgrad.core.dispatch import constant, wrap
from jitgrad.core.primitive import ArrayCall, Primitive, Value
from jitgrad.errors import ArgumentError, IndexingError
from jitgrad.kernels.kernel import ArrayKernel
from jitgrad.ops.array_calls import axes_alike
from jitgrad.ops.array_calls import flat as flat_of
from jitgrad.ops.blocks import host, reduction, view

__all__ = [
    "BasicIndex",
    "add_at",
    "bounded",
    "convert",
    "copy_of",
    "counted",
    "diagonal_view",
    "expand",
    "exponents",
    "flip_view",
    "gather",
    "indices_of",
    "join",
    "negative_power",
    "overwrite",
    "permute",
    "pile",
    "place",
    "place_diagonal",
    "positions_from",
    "put",
    "reshape_to",
    "scatter_add",
    "slice_view",
    "sum_over",
    "sum_to",
    "take_at",
]

# --------------------------------------------------------------------------- conversion and copying


@host(
    infer=lambda x, *, dtype: make_aval(x.shape, dtype),
    transpose=lambda g, x, *, dtype: convert(g, dtype=x.dtype),
)
def convert(x, *, dtype):
    return x.astype(dtype)


@host(infer=lambda x: make_aval(x.shape, x.dtype), transpose=lambda g, x: g)
def copy_of(x):
    return x.copy()


# --------------------------------------------------------------------------- movement


@view(transpose=lambda g, x, *, shape: reshape_to(g, shape=x.shape))
def reshape_to(x, *, shape):
    return x.reshape(shape)


@view(transpose=lambda g, x, *, axes: permute(g, axes=tuple(np.argsort(axes).tolist())))
def permute(x, *, axes):
    return x.transpose(axes)


@view(transpose=lambda g, x, *, shape: sum_to(g, x.shape))
def expand(x, *, shape):
    if x.size == 1:  # the usual case of a gradient, several times faster than broadcast_to
        out = np.ndarray(shape, x.dtype, np.ascontiguousarray(x), 0, (0,) * len(shape))
        out.flags.writeable = False
        return out
    return np.broadcast_to(x, shape)


@view(transpose=lambda g, x, *, axes: flip_view(g, axes=axes))
def flip_view(x, *, axes):
    return x[(*(slice(None, None, -1 if i in axes else None) for i in range(x.ndim)), ...)]


@view(
    transpose=lambda g, x, *, offset, axis1, axis2: place_diagonal(
        g, shape=x.shape, offset=offset, axis1=axis1, axis2=axis2
    ),
    holes=True,
)
def diagonal_view(x, *, offset, axis1, axis2):
    return np.diagonal(x, offset, axis1, axis2)


@host(
    infer=lambda x, *, shape, offset, axis1, axis2: make_aval(shape, x.dtype),
    transpose=lambda g, x, *, shape, offset, axis1, axis2: diagonal_view(g, offset=offset, axis1=axis1, axis2=axis2),
)
def place_diagonal(x, *, shape, offset, axis1, axis2):
    out = np.zeros(shape, x.dtype)
    diagonal = np.diagonal(out, offset, axis1, axis2)
    diagonal.flags.writeable = True  # NumPy gives it read-only
    diagonal[...] = x
    return out


# --------------------------------------------------------------------------- indices


@host(infer=lambda x: make_aval(x.shape, INT64), nondiff=True)
def counted(x):
    """The index of each element of a vector, whatever the elements are: in a loop that is the loop's own variable."""
    return np.arange(len(x))


def positions_from(given: Any, positions: Any, like: Value) -> Value:
    """Positions that follow from what the user gave for them: part of the program if that is made of numbers alone."""
    return constant(positions, INT64, like) if _is_of_numbers(given) else wrap(np.asarray(positions, INT64))


def _is_of_numbers(given: Any) -> bool:
    if isinstance(given, tuple | list):
        return all(map(_is_of_numbers, given))
    return given is None or given is Ellipsis or isinstance(given, int | slice)


def indices_of(n: int, like: Value) -> Value:
    """``arange(n)``, where ``n`` is an extent of ``like`` or a number; in a trace no array is made of it."""
    if not like.is_traced:
        return constant(np.arange(n), INT64, like)
    return counted(expand(constant(0, INT64, like), shape=(n,)))


# --------------------------------------------------------------------------- sums


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """NumPy's rule for sums and products: small integers and booleans become long ones."""
    if dtype.kind in "bi":
        return INT64
    return np.dtype(np.uint64) if dtype.kind == "u" else dtype


def _sum_accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 is summed in float64, so that a million terms keep their digits."""
    return FLOAT64 if dtype.kind == "f" else wide(dtype)


def kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with extent 1 at the reduced axes."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def spread(g: Value, shape: tuple[int, ...], axes: tuple[int, ...]) -> Value:
    """A reduced value, broadcast back over the reduced axes."""
    return expand(reshape_to(g, shape=kept_shape(shape, axes)) if g.ndim else g, shape=shape)


@reduction(
    start=lambda dtype: 0.0 if dtype.kind == "f" else 0,
    accumulator=_sum_accumulator,
    result=wide,
    transpose=lambda g, x, *, axes: spread(g, x.shape, axes),
)
def sum_over(total, x):
    return scalar.radd(total, x)


def sum_to(g: Value, shape: tuple[int, ...]) -> Value:
    """The transpose of broadcasting: sum over the axes that broadcasting added or stretched."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    axes = (*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1))
    total = sum_over(g, axes=axes) if axes else g
    return total if total.shape == shape else reshape_to(total, shape=shape)


# --------------------------------------------------------------------------- basic indices

BasicIndex: TypeAlias = tuple[int | tuple[int | None, int | None, int | None] | None, ...]
"""A hashable basic index: ints, None for a new axis, and (start, stop, step) for slices."""


@functools.lru_cache(1024)
def to_numpy_index(index: BasicIndex) -> tuple[Any, ...]:
    """The index as NumPy takes it."""
    return (*(slice(*i) if isinstance(i, tuple) else i for i in index), ...)  # the dots keep a scalar an array


@view(transpose=lambda g, x, *, index: place(g, shape=x.shape, index=index), holes=True)
def slice_view(x, *, index):
    return x[to_numpy_index(index)]


@host(
    infer=lambda x, *, shape, index: make_aval(shape, x.dtype),
    transpose=lambda g, x, *, shape, index: slice_view(g, index=index),
)
def place(x, *, shape, index):
    out = np.zeros(shape, x.dtype)
    out[to_numpy_index(index)] = x
    return out


# --------------------------------------------------------------------------- writes

ViewChain: TypeAlias = tuple[tuple[Primitive, tuple[tuple[str, Any], ...]], ...]
"""View primitives with their parameters, applied one after the other."""


def follow(x: Any, chain: ViewChain) -> Any:
    """The view of a value (or an ndarray, through the implementations) that a chain describes."""
    for primitive, params in chain:
        x = primitive.impl.view(x, **dict(params)) if isinstance(x, np.ndarray) else primitive(x, **dict(params))  # type: ignore[union-attr]
    return x


def _overwrite_transpose(g: Value, base: Value, value: Value, *, chain: ViewChain) -> tuple[Value, Value]:
    zero = constant(0.0, g.dtype, g)
    return overwrite(g, expand(zero, shape=value.shape), chain=chain), follow(g, chain)


@host(
    infer=lambda base, value, *, chain: make_aval(base.shape, base.dtype),
    transpose=_overwrite_transpose,
    argnums=None,
    holes=True,
)
def overwrite(base, value, *, chain):
    out = np.array(base, order="C")
    follow(out, chain)[...] = value
    return out


# --------------------------------------------------------------------------- gathers


@ArrayKernel
def gather_kernel(x, positions, out):
    for i in range(positions.size):
        out[i] = x[positions[i]]


@ArrayKernel
def scatter_add_kernel(x, positions, out):
    for i in range(positions.size):
        out[positions[i]] += x[i]


@ArrayKernel
def scatter_or_kernel(x, positions, out):
    for i in range(positions.size):
        out[positions[i]] = out[positions[i]] or x[i]


def _gather_aval(x: ShapedArray, positions: ShapedArray) -> ShapedArray:
    return make_aval(positions.shape, x.dtype)


def flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements in C order, contiguous (a view where possible)."""
    return np.ascontiguousarray(array).reshape(-1)


@host(
    infer=_gather_aval,
    transpose=lambda g, x, positions: scatter_add(g, positions, shape=x.shape),
    holes=True,
)
def gather(x, positions):
    if not x.flags.c_contiguous and 2 * positions.size <= x.size:  # a few elements: not worth a copy of the whole
        return np.asarray(x[np.unravel_index(positions, x.shape)])
    out = np.empty(positions.shape, x.dtype)
    gather_kernel(flat(x), flat(positions), out.reshape(-1))
    return out


_CROWD: Final = 256  # so many addends of one element keep their digits in float32


def _accumulator(x: np.ndarray[Any, Any], positions: np.ndarray[Any, Any], extent: int) -> np.dtype[Any]:
    """The dtype in which elements are added up at positions: float64 where many float32 may meet at one of them."""
    dtype: np.dtype[Any] = x.dtype
    count = positions.size
    if dtype != FLOAT32 or count <= _CROWD:
        return dtype
    # counting costs more than the wider memory, unless that is the larger part by far
    crowded = 4 * count >= extent or np.unique(positions, return_counts=True)[1].max() > _CROWD
    return FLOAT64 if crowded else dtype


def _scatter_add_expression(x, positions, *, shape):
    if x.dtype != FLOAT32 or positions.size <= _CROWD:
        return None
    return convert(scatter_add(convert(x, dtype=FLOAT64), positions, shape=shape), dtype=FLOAT32)


@host(
    infer=lambda x, positions, *, shape: make_aval(shape, x.dtype),
    transpose=lambda g, x, positions, *, shape: gather(g, positions),
    expression=_scatter_add_expression,
)
def scatter_add(x, positions, *, shape):
    out = np.zeros(shape, _accumulator(x, positions, math.prod(shape)))
    kernel = scatter_or_kernel if x.dtype == BOOL else scatter_add_kernel
    kernel(flat(x), flat(positions), out.reshape(-1))
    return out.astype(x.dtype, copy=False)


@ArrayKernel
def take_kernel(x, positions, out):
    outer, count, inner = out.shape
    for i in range(outer):
        for j in range(count):
            row = positions[j]
            for k in range(inner):
                out[i, j, k] = x[i, row, k]


@ArrayKernel
def add_at_kernel(x, positions, out):
    outer, count, inner = x.shape
    for i in range(outer):
        for j in range(count):
            row = positions[j]
            for k in range(inner):
                out[i, row, k] += x[i, j, k]


@ArrayKernel
def or_at_kernel(x, positions, out):
    outer, count, inner = x.shape
    for i in range(outer):
        for j in range(count):
            row = positions[j]
            for k in range(inner):
                out[i, row, k] = out[i, row, k] or x[i, j, k]


def _rows(array: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    """The array as (before, extent of ``axis``, after)."""
    shape = array.shape
    return np.ascontiguousarray(array).reshape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _add_at_expression(x, positions, *, shape, axis):
    if x.dtype != FLOAT32 or positions.size <= _CROWD:
        return None
    return convert(add_at(convert(x, dtype=FLOAT64), positions, shape=shape, axis=axis), dtype=FLOAT32)


def _taken(x: Any, positions: Any, axis: int) -> tuple[int, ...]:
    return (*x.shape[:axis], positions.size, *x.shape[axis + 1 :])


@host(
    infer=lambda x, positions, *, axis: make_aval(_taken(x, positions, axis), x.dtype),
    transpose=lambda g, x, positions, *, axis: add_at(g, positions, shape=x.shape, axis=axis),
    holes=True,
)
def take_at(x, positions, *, axis):
    """Rows of an axis, chosen by a 1-d array of positions (in bounds and non-negative)."""
    if not x.flags.c_contiguous and 2 * positions.size <= x.shape[axis]:  # a few rows: not worth a copy of the whole
        return np.ascontiguousarray(x[(slice(None),) * axis + (positions,)])
    out = np.empty(_taken(x, positions, axis), x.dtype)
    take_kernel(_rows(x, axis), np.ascontiguousarray(positions), _rows(out, axis))
    return out


@host(
    infer=lambda x, positions, *, shape, axis: make_aval(shape, x.dtype),
    transpose=lambda g, x, positions, *, shape, axis: take_at(g, positions, axis=axis),
    expression=_add_at_expression,
)
def add_at(x, positions, *, shape, axis):
    """Zeros of ``shape`` with rows added at the positions of an axis."""
    out = np.zeros(shape, _accumulator(x, positions, shape[axis]))
    kernel = or_at_kernel if x.dtype == BOOL else add_at_kernel
    kernel(_rows(x, axis), np.ascontiguousarray(positions), _rows(out, axis))
    return out.astype(x.dtype, copy=False)


@ArrayKernel
def bounded_kernel(x, out, extent):
    for i in range(x.size):
        place = np.int64(x[i])
        if place < -extent or place >= extent:
            raise IndexError("an index is out of bounds")
        out[i] = place + extent if place < 0 else place


@host(
    infer=lambda x, *, extent, axis: make_aval(x.shape, INT64),
    nondiff=True,
    call=lambda x, out, *, extent, axis: ArrayCall(
        bounded_kernel, (flat_of(x), flat_of(out), extent), axes_alike(x, out)
    ),
)
def bounded(x, *, extent, axis):
    """Indices as non-negative int64 positions, checked against the extent of their axis; a copy, so that backward does
    not depend on what becomes of the caller's array."""
    found = x.astype(np.int64)
    if found.size:
        low, high = int(found.min()), int(found.max())
        if low < -extent or high >= extent:
            bad = low if low < -extent else high
            raise IndexingError(f"index {bad} is out of bounds for axis {axis} of extent {extent}")
        if low < 0:
            found = np.where(found < 0, found + extent, found)
    return found


@ArrayKernel
def exponents_kernel(x, out):
    for i in range(x.size):
        if x[i] < 0:
            raise ValueError("integers have no negative integer powers")
        out[i] = x[i]


@host(
    infer=lambda x: make_aval(x.shape, x.dtype),
    nondiff=True,
    call=lambda x, out: ArrayCall(exponents_kernel, (flat_of(x), flat_of(out)), axes_alike(x, out)),
)
def exponents(x):
    """Integers, of which none may be negative."""
    if x.min(initial=0) < 0:
        raise negative_power()
    return np.ascontiguousarray(x)


def negative_power() -> ArgumentError:
    """What integers to a negative power raise."""
    return ArgumentError("power: integers have no negative integer powers; make the base a float (.astype(float))")


def _put_transpose(g: Value, base: Value, value: Value, positions: Value) -> tuple[Value, Value, None]:
    zero = expand(constant(0.0, g.dtype, g), shape=value.shape)
    return put(g, zero, positions), gather(g, positions), None


@host(
    infer=lambda base, value, positions: make_aval(base.shape, base.dtype),
    transpose=_put_transpose,
    argnums=(0, 1),
    holes=True,
)
def put(base, value, positions):
    """``base`` with flat positions overwritten; the positions are all different (the caller drops overwritten ones)."""
    out = np.array(base, order="C")
    out.reshape(-1)[positions] = value
    return out


@view(nondiff=True)
def stop_gradient_view(x):
    return x[...]


def stack_values(values: list[Value]) -> Value:
    """Values of one shape along a new first axis, in their common dtype."""
    dtype = result_dtype(*(v.dtype for v in values))
    return pile(*(v if v.dtype == dtype else convert(v, dtype=dtype) for v in values), axis=0)


def _pile_aval(*parts: ShapedArray, axis: int) -> ShapedArray:
    first = parts[0].shape
    return make_aval((*first[:axis], len(parts), *first[axis:]), parts[0].dtype)


def _pile_transpose(g: Value, *parts: Value, axis: int) -> tuple[Value, ...]:
    before = ((None, None, None),) * axis
    return tuple(slice_view(g, index=(*before, i)) for i in range(len(parts)))


@host(infer=_pile_aval, transpose=_pile_transpose, argnums=None)
def pile(*parts, axis):
    """Values of one dtype and shape along a new axis (without views of the parts, which would alias them)."""
    first = parts[0].shape
    if not axis and first:
        return np.concatenate(parts).reshape(len(parts), *first)
    return np.concatenate([p.reshape(*first[:axis], 1, *first[axis:]) for p in parts], axis)


def _join_aval(*parts: ShapedArray, axis: int) -> ShapedArray:
    first = parts[0].shape
    return make_aval((*first[:axis], sum(p.shape[axis] for p in parts), *first[axis + 1 :]), parts[0].dtype)


def _join_transpose(g: Value, *parts: Value, axis: int) -> tuple[Value, ...]:
    pieces, start = [], 0
    for part in parts:
        stop = start + part.shape[axis]
        pieces.append(slice_view(g, index=((None, None, None),) * axis + ((start, stop, None),)))
        start = stop
    return tuple(pieces)


@host(infer=_join_aval, transpose=_join_transpose, argnums=None)
def join(*parts, axis):
    """Values of one dtype, and of one shape but for ``axis``, one after the other."""
    return np.concatenate(parts, axis)
