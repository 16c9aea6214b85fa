"""The bilinear primitives that add up products: of matrices and vectors, each the transpose of another, with transposition
as a flag of BLAS instead of a copy; and sums of products, for the compiler."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgrad.core.aval import ShapedArray, make_aval
from jitgrad.core.primitive import ArrayCall, Folded, Operand, Value
from jitgrad.ops.array_calls import Pairs, axes_alike, flat, stack, whole
from jitgrad.ops.array_primitives import straight_call
from jitgrad.ops.blocks import host
from jitgrad.ops.elementwise import multiply
from jitgrad.ops.linear import sum_to
from jitgrad.ops.product_kernels import (
    integer_products_kernel,
    matrix_product_kernel,
    matrix_products_kernel,
    matrix_vector_kernel,
    product_sums_kernel,
    vector_dot_kernel,
    vector_outer_kernel,
)

__all__ = ["matrix_product", "matrix_vector", "product_sums", "vector_dot", "vector_outer"]

Array = np.ndarray[Any, Any]


def oriented(x: Array, t: bool) -> tuple[Array, bool]:
    """The matrices C-contiguous, without a copy where they are transposes of such; ``t`` says how to read them."""
    if x.flags.c_contiguous:
        return x, t
    turned = x.swapaxes(-1, -2)
    return (turned, not t) if turned.flags.c_contiguous else (np.ascontiguousarray(x), t)


def stacked(x: Array) -> Array:
    """Leading axes collapsed into one."""
    return x if x.ndim == 3 else x.reshape((math.prod(x.shape[:-2]), *x.shape[-2:]))


def _turned(x: Array, t: bool) -> Array:
    return x.swapaxes(-1, -2) if t else x


def _matrix_product_aval(x: ShapedArray, y: ShapedArray, *, ta: bool, tb: bool) -> ShapedArray:
    batch = x.shape[:-2] or y.shape[:-2]
    return make_aval((*batch, x.shape[-1 if ta else -2], y.shape[-2 if tb else -1]), x.dtype)


def _matrix_product_first(g: Value, x: Value, y: Value, *, ta: bool, tb: bool) -> Value:
    made = matrix_product(y, g, ta=tb, tb=True) if ta else matrix_product(g, y, ta=False, tb=not tb)
    return sum_to(made, x.shape)


def _matrix_product_second(g: Value, x: Value, y: Value, *, ta: bool, tb: bool) -> Value:
    made = matrix_product(g, x, ta=True, tb=ta) if tb else matrix_product(x, g, ta=not ta, tb=False)
    return sum_to(made, y.shape)


def _matrix_product_call(x: Operand, y: Operand, out: Operand, *, ta: bool, tb: bool) -> ArrayCall:
    row, inner = (x.ndim - 1, x.ndim - 2) if ta else (x.ndim - 2, x.ndim - 1)
    other, column = (y.ndim - 1, y.ndim - 2) if tb else (y.ndim - 2, y.ndim - 1)
    equal: Pairs = (((0, inner), (1, other)), ((2, out.ndim - 2), (0, row)), ((2, out.ndim - 1), (1, column)))
    for operand in (x, y):
        if operand.ndim > 2:
            equal += axes_alike(out, operand, out.ndim - 2)
    if out.dtype.kind != "f":
        return ArrayCall(integer_products_kernel, (stack(x), stack(y), stack(out), ta, tb), equal)
    if out.ndim == 2:
        return ArrayCall(matrix_product_kernel, (whole(x), whole(y), whole(out), ta, tb), equal)
    return ArrayCall(matrix_products_kernel, (stack(x), stack(y), stack(out), ta, tb), equal)


@host(
    infer=_matrix_product_aval,
    transposes=(_matrix_product_first, _matrix_product_second),
    call=_matrix_product_call,
    prepare=straight_call(_matrix_product_call, _matrix_product_aval),
)
def matrix_product(x, y, *, ta, tb):
    """``op(x) @ op(y)`` of one dtype over the same leading axes, which one operand may lack."""
    batch = x.shape[:-2] or y.shape[:-2]
    out = np.empty((*batch, x.shape[-1 if ta else -2], y.shape[-2 if tb else -1]), x.dtype)
    if x.dtype.kind != "f":
        np.matmul(_turned(x, ta), _turned(y, tb), out=out)
        return out
    x, ta = oriented(x, ta)
    y, tb = oriented(y, tb)
    if batch:
        matrix_products_kernel(stacked(x), stacked(y), stacked(out), ta, tb)
    else:
        matrix_product_kernel(x, y, out, ta, tb)
    return out


def _product_sums_call(
    sums: Operand, x: Operand, y: Operand, out: Operand, *, ta: bool, tb: bool, axes: tuple[bool, bool], negated: bool
) -> ArrayCall:
    row, inner = (x.ndim - 1, x.ndim - 2) if ta else (x.ndim - 2, x.ndim - 1)
    other, column = (y.ndim - 1, y.ndim - 2) if tb else (y.ndim - 2, y.ndim - 1)
    equal: Pairs = (((1, inner), (2, other)), *axes_alike(sums, out))
    for operand, axis, summed, side in zip((x, y), (row, column), axes, (out.ndim - 2, out.ndim - 1), strict=True):
        if operand.ndim > 2:
            equal += axes_alike(out, operand, out.ndim - 2)
        if not summed:
            equal += (((3, side), (operand.position, axis)),)
    return ArrayCall(product_sums_kernel, (stack(sums), stack(x), stack(y), stack(out), ta, tb, *axes, negated), equal)


@host(infer=lambda sums, x, y, **_: make_aval(sums.shape, sums.dtype), nondiff=True, call=_product_sums_call)
def product_sums(sums, x, y, *, ta, tb, axes, negated):
    """``sums``, the product of the sums of ``op(x)`` over its rows and ``op(y)`` over its columns (``axes`` says of
    which), or minus that; where it is not finite, the sum of the elements of ``op(x) @ op(y)``, for which it stands.

    Finite sums of products have finite operands alone, since what is not finite stays so in sums and products.
    """
    out = np.empty_like(sums, order="C")
    x, ta = oriented(x, ta)
    y, tb = oriented(y, tb)
    sums = np.ascontiguousarray(sums)
    product_sums_kernel(stacked(sums), stacked(x), stacked(y), stacked(out), ta, tb, *axes, negated)
    return out


def _matrix_vector_first(g: Value, a: Value, x: Value, *, t: bool) -> Value:
    return vector_outer(x, g) if t else vector_outer(g, x)


def _matrix_vector_second(g: Value, a: Value, x: Value, *, t: bool) -> Value:
    return matrix_vector(a, g, t=not t)


def _matrix_vector_call(a: Operand, x: Operand, out: Operand, *, t: bool) -> ArrayCall:
    equal = (((2, 0), (0, int(t))), ((1, 0), (0, int(not t))))
    if out.dtype.kind != "f":
        columns = [Folded(v.position, ((), (0,), ())) for v in (x, out)]
        return ArrayCall(integer_products_kernel, (stack(a), *columns, t, False), equal)
    return ArrayCall(matrix_vector_kernel, (whole(a), whole(x), whole(out), t), equal)


def _matrix_vector_aval(a: ShapedArray, x: ShapedArray, *, t: bool) -> ShapedArray:
    return make_aval((a.shape[1 if t else 0],), a.dtype)


@host(
    infer=_matrix_vector_aval,
    transposes=(_matrix_vector_first, _matrix_vector_second),
    call=_matrix_vector_call,
    prepare=straight_call(_matrix_vector_call, _matrix_vector_aval),
)
def matrix_vector(a, x, *, t):
    """``op(a) @ x`` of one dtype."""
    out = np.empty(a.shape[1 if t else 0], a.dtype)
    if a.dtype.kind != "f":
        np.matmul(_turned(a, t), x, out=out)
        return out
    a, t = oriented(a, t)
    matrix_vector_kernel(a, np.ascontiguousarray(x), out, t)
    return out


def _vector_dot_aval(x: ShapedArray, y: ShapedArray) -> ShapedArray:
    return make_aval((), x.dtype)


def _vector_dot_call(x: Operand, y: Operand, out: Operand) -> ArrayCall:
    return ArrayCall(vector_dot_kernel, (whole(x), whole(y), flat(out)), (((0, 0), (1, 0)),))


@host(
    infer=_vector_dot_aval,
    transposes=(lambda g, x, y: multiply(g, y), lambda g, x, y: multiply(g, x)),
    prepare=straight_call(_vector_dot_call, _vector_dot_aval),
)
def vector_dot(x, y):
    """The sum of the products of two vectors of one dtype; float32 is added up in float64."""
    out = np.empty((), x.dtype)
    if x.dtype.kind != "f":
        np.matmul(x, y, out=out)
    else:
        vector_dot_kernel(np.ascontiguousarray(x), np.ascontiguousarray(y), out.reshape(1))
    return out


def _vector_outer_aval(x: ShapedArray, y: ShapedArray) -> ShapedArray:
    return make_aval((*x.shape, *y.shape), x.dtype)


def _vector_outer_call(x: Operand, y: Operand, out: Operand) -> ArrayCall:
    return ArrayCall(vector_outer_kernel, (whole(x), whole(y), whole(out)), (((2, 0), (0, 0)), ((2, 1), (1, 0))))


@host(
    infer=_vector_outer_aval,
    transposes=(
        lambda g, x, y: matrix_vector(g, y, t=False),
        lambda g, x, y: matrix_vector(g, x, t=True),
    ),
    prepare=straight_call(_vector_outer_call, _vector_outer_aval),
)
def vector_outer(x, y):
    """All products of an element of one vector with one of another of the same dtype."""
    out = np.empty((*x.shape, *y.shape), x.dtype)
    vector_outer_kernel(np.ascontiguousarray(x), np.ascontiguousarray(y), out)
    return out
