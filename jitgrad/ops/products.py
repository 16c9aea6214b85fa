"""Products that add up: matrices, vectors, tensors, and everything that ``einsum`` can say.

Four bilinear primitives do the work, each the transpose of another, with transposition as a flag of BLAS instead of a
copy. The public functions bring their operands into shape for these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core import blas_form as blas
from jitgrad.core import scalar
from jitgrad.core.aval import ShapedArray, make_aval, result_dtype
from jitgrad.core.dispatch import as_value, wrap
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError
from jitgrad.kernels.kernel import ArrayKernel
from jitgrad.ops.axes import axis_of, index_of
from jitgrad.ops.blocks import Call, host, operation
from jitgrad.ops.elementwise import multiply
from jitgrad.ops.linear import convert, expand, gather, join, permute, reshape_to, slice_view, sum_over, sum_to
from jitgrad.ops.reduction import any_over

Array = np.ndarray[Any, Any]


# --------------------------------------------------------------------------- the primitives


@ArrayKernel
def matrix_product_kernel(x, y, out, ta, tb):
    m, n = out.shape
    k = x.shape[0] if ta else x.shape[1]
    if m * n * k > 4096:
        blas.gemm(x, y, out, ta, tb)
    elif tb or n == 1:  # so small: as fast as BLAS, and does not load it
        for i in range(m):
            for j in range(n):
                out[i, j] = 0
                total = out[i, j]
                for p in range(k):
                    total = scalar.radd(total, (x[p, i] if ta else x[i, p]) * (y[j, p] if tb else y[p, j]))
                out[i, j] = total
    else:  # rows at a time, so that the innermost loop is a vector operation
        for i in range(m):
            for j in range(n):
                out[i, j] = 0
            for p in range(k):
                factor = x[p, i] if ta else x[i, p]
                for j in range(n):
                    out[i, j] += factor * y[p, j]


@ArrayKernel
def matrix_products_kernel(x, y, out, ta, tb):
    count, m, n = out.shape
    k = x.shape[1] if ta else x.shape[2]
    for c in range(count):
        a = x[c if x.shape[0] > 1 else 0]
        b = y[c if y.shape[0] > 1 else 0]
        if m * n * k > 4096:
            blas.gemm(a, b, out[c], ta, tb)
        elif tb or n == 1:
            for i in range(m):
                for j in range(n):
                    out[c, i, j] = 0
                    total = out[c, i, j]
                    for p in range(k):
                        total = scalar.radd(total, (a[p, i] if ta else a[i, p]) * (b[j, p] if tb else b[p, j]))
                    out[c, i, j] = total
        else:
            for i in range(m):
                for j in range(n):
                    out[c, i, j] = 0
                for p in range(k):
                    factor = a[p, i] if ta else a[i, p]
                    for j in range(n):
                        out[c, i, j] += factor * b[p, j]


@ArrayKernel
def matrix_vector_kernel(a, x, out, t):
    m, n = a.shape
    for i in range(out.size):
        out[i] = 0
    if m * n > 512:
        blas.gemv(a, x, out, t)
    elif t:
        for i in range(m):
            for j in range(n):
                out[j] += a[i, j] * x[i]
    else:
        for i in range(m):
            total = out[i]
            for j in range(n):
                total += a[i, j] * x[j]
            out[i] = total


@ArrayKernel
def vector_dot_kernel(x, y, out):
    total = 0.0
    for i in range(x.size):
        total = scalar.radd(total, np.float64(x[i]) * y[i])
    out[0] = total


@ArrayKernel
def vector_outer_kernel(x, y, out):
    for i in range(x.size):
        for j in range(y.size):
            out[i, j] = x[i] * y[j]


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


@host(infer=_matrix_product_aval, transposes=(_matrix_product_first, _matrix_product_second))
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


def _matrix_vector_first(g: Value, a: Value, x: Value, *, t: bool) -> Value:
    return vector_outer(x, g) if t else vector_outer(g, x)


def _matrix_vector_second(g: Value, a: Value, x: Value, *, t: bool) -> Value:
    return matrix_vector(a, g, t=not t)


@host(
    infer=lambda a, x, *, t: make_aval((a.shape[1 if t else 0],), a.dtype),
    transposes=(_matrix_vector_first, _matrix_vector_second),
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


@host(
    infer=lambda x, y: make_aval((), x.dtype),
    transposes=(lambda g, x, y: multiply(g, y), lambda g, x, y: multiply(g, x)),
)
def vector_dot(x, y):
    """The sum of the products of two vectors of one dtype; float32 is added up in float64."""
    out = np.empty((), x.dtype)
    if x.dtype.kind != "f":
        np.matmul(x, y, out=out)
    else:
        vector_dot_kernel(np.ascontiguousarray(x), np.ascontiguousarray(y), out.reshape(1))
    return out


@host(
    infer=lambda x, y: make_aval((*x.shape, *y.shape), x.dtype),
    transposes=(
        lambda g, x, y: matrix_vector(g, y, t=False),
        lambda g, x, y: matrix_vector(g, x, t=True),
    ),
)
def vector_outer(x, y):
    """All products of an element of one vector with one of another of the same dtype."""
    out = np.empty((*x.shape, *y.shape), x.dtype)
    vector_outer_kernel(np.ascontiguousarray(x), np.ascontiguousarray(y), out)
    return out


# --------------------------------------------------------------------------- matrices and vectors


def same_dtype(x: Value, y: Value) -> tuple[Value, Value]:
    """Both operands in their common dtype."""
    if x.dtype != y.dtype:
        dtype = result_dtype(x.dtype, y.dtype)
        x = x if x.dtype == dtype else convert(x, dtype=dtype)
        y = y if y.dtype == dtype else convert(y, dtype=dtype)
    return x, y


def _random(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(-2.0, 2.0, shape)


def _matmul_samples(rng: np.random.Generator) -> list[Call]:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((3, 4), (4, 2)),
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 2)),
        ((12, 11), (11, 9)),
        ((40, 30), (30,)),
        ((2, 3, 4), (4, 2)),
        ((3, 4), (2, 4, 2)),
        ((2, 3, 4), (2, 4, 2)),
        ((2, 1, 3, 4), (3, 4, 2)),
        ((4,), (2, 4, 3)),
        ((2, 3, 4), (4,)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
        ((0, 2, 3), (3, 1)),
    ]
    return [Call((_random(rng, *a), _random(rng, *b)), {}) for a, b in shapes]


def _misfit(name: str, x: Value, y: Value, nx: int, ny: int) -> ShapeError:
    return ShapeError(
        f"{name}: shapes {x.shape} and {y.shape} do not fit: the last axis of the first operand has {nx} elements, "
        f"the axis of the second one that it is summed with has {ny}"
    )


@operation(samples=_matmul_samples, method=True, operator="@")
def matmul(x1: Any, x2: Any) -> Value:
    """Matrix product, ``x1 @ x2``; a 1-d operand is a row (first) or a column (second), and axes before the last two
    are a stack of matrices that broadcasts.

    Any dtype; a ShapeError where the inner extents differ or an operand is a scalar.
    Derivative: ``g @ x2.mT`` and ``x1.mT @ g``, summed over broadcast axes.

    >>> import jitgrad as jg
    >>> jg.matmul([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    tensor([3., 7.])
    """
    x, y = as_value(x1, "matmul"), as_value(x2, "matmul")
    if x.dtype != y.dtype:
        x, y = same_dtype(x, y)
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError(f"matmul: shapes {x.shape} and {y.shape}: scalars have no matrix product; use multiply (*)")
    k = x.shape[-1]
    other = y.shape[-2] if y.ndim > 1 else y.shape[0]
    if k != other:
        raise _misfit("matmul", x, y, k, other)
    if y.ndim == 2:
        if x.ndim == 2:
            return matrix_product(x, y, ta=False, tb=False)
        if x.ndim == 1:
            return matrix_vector(y, x, t=True)
        flat = reshape_to(x, shape=(math.prod(x.shape[:-1]), k))  # one product for the whole stack
        return reshape_to(matrix_product(flat, y, ta=False, tb=False), shape=(*x.shape[:-1], y.shape[1]))
    if y.ndim == 1:
        if x.ndim == 2:
            return matrix_vector(x, y, t=False)
        if x.ndim == 1:
            return vector_dot(x, y)
        flat = reshape_to(x, shape=(math.prod(x.shape[:-1]), k))
        return reshape_to(matrix_vector(flat, y, t=False), shape=x.shape[:-1])
    if x.ndim == 1:
        made = matmul(reshape_to(x, shape=(1, k)), y)
        return reshape_to(made, shape=(*made.shape[:-2], made.shape[-1]))
    if x.ndim > 2 and x.shape[:-2] != y.shape[:-2]:
        try:
            batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except ValueError:
            raise ShapeError(f"matmul: the leading axes of shapes {x.shape} and {y.shape} do not broadcast") from None
        x = x if x.shape[:-2] == batch else expand(x, shape=(*batch, *x.shape[-2:]))
        y = y if y.shape[:-2] == batch else expand(y, shape=(*batch, *y.shape[-2:]))
    return matrix_product(x, y, ta=False, tb=False)


def _dot_samples(rng: np.random.Generator) -> list[Call]:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((3,), (3,)),
        ((3, 4), (4, 2)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4,)),
        ((2, 3, 4), (3, 4, 2)),
        ((3,), (2, 3, 2)),
        ((), (3,)),
        ((2, 2), ()),
        ((0,), (0,)),
    ]
    return [Call((_random(rng, *a), _random(rng, *b)), {}) for a, b in shapes]


@operation(samples=_dot_samples, method=True)
def dot(a: Any, b: Any) -> Value:
    """Dot product as NumPy has it: of vectors, matrices, or over the last axis of ``a`` and the last but one of ``b``;
    scalars multiply.

    Any dtype; a ShapeError where the extents differ. Derivative: the product rule.

    >>> import jitgrad as jg
    >>> jg.dot([1.0, 2.0], [3.0, 4.0])
    tensor(11.)
    """
    x, y = as_value(a, "dot"), as_value(b, "dot")
    if x.ndim == 0 or y.ndim == 0:
        return multiply(x, y)
    if y.ndim <= 2:
        if x.shape[-1] != y.shape[0]:
            raise _misfit("dot", x, y, x.shape[-1], y.shape[0])
        return matmul(x, y)
    return _tensordot("dot", x, y, (x.ndim - 1,), (y.ndim - 2,))


def _inner_samples(rng: np.random.Generator) -> list[Call]:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (4, 3)), ((2, 2, 3), (4, 3)), ((), (2,)),
    ]  # fmt: skip
    return [Call((_random(rng, *a), _random(rng, *b)), {}) for a, b in shapes]


@operation(samples=_inner_samples)
def inner(a: Any, b: Any) -> Value:
    """The sum of products over the last axis of both operands; scalars multiply.

    Derivative: the product rule.

    >>> import jitgrad as jg
    >>> jg.inner([[1.0, 2.0], [0.0, 1.0]], [3.0, 4.0])
    tensor([11.,  4.])
    """
    x, y = as_value(a, "inner"), as_value(b, "inner")
    if x.ndim == 0 or y.ndim == 0:
        return multiply(x, y)
    return _tensordot("inner", x, y, (x.ndim - 1,), (y.ndim - 1,))


@operation(
    samples=lambda rng: [
        Call((_random(rng, 3), _random(rng, 4)), {}),
        Call((_random(rng, 2, 2), _random(rng, 3)), {}),
        Call((_random(rng), _random(rng, 2)), {}),
        Call((_random(rng, 0), _random(rng, 2)), {}),
    ]
)
def outer(a: Any, b: Any) -> Value:
    """All products of an element of ``a`` with one of ``b``, as a matrix; operands are flattened.

    Derivative: ``g @ b`` and ``a @ g``.

    >>> import jitgrad as jg
    >>> jg.outer([1.0, 2.0], [3.0, 4.0])
    tensor([[3., 4.],
            [6., 8.]])
    """
    x, y = same_dtype(as_value(a, "outer"), as_value(b, "outer"))
    return vector_outer(_flat(x), _flat(y))


def _flat(x: Value) -> Value:
    return x if x.ndim == 1 else reshape_to(x, shape=(x.size,))


@operation(
    samples=lambda rng: [
        Call((_random(rng, 3), _random(rng, 3)), {}),
        Call((_random(rng, 2, 3), _random(rng, 3, 2)), {}),
        Call((_random(rng), _random(rng)), {}),
    ]
)
def vdot(a: Any, b: Any) -> Value:
    """Dot product of the flattened operands.

    A ShapeError where their sizes differ. Derivative: the other operand.

    >>> import jitgrad as jg
    >>> jg.vdot([[1.0, 2.0]], [[3.0], [4.0]])
    tensor(11.)
    """
    x, y = same_dtype(as_value(a, "vdot"), as_value(b, "vdot"))
    if x.size != y.size:
        raise ShapeError(f"vdot: shapes {x.shape} and {y.shape} have {x.size} and {y.size} elements")
    return vector_dot(_flat(x), _flat(y))


@operation(
    samples=lambda rng: [
        Call((_random(rng, 3), _random(rng, 3)), {}),
        Call((_random(rng, 2, 3), _random(rng, 4, 1, 3)), {}),
        Call((_random(rng, 3, 2), _random(rng, 3, 2)), {"axis": 0}),
        Call((_random(rng, 2, 0), _random(rng, 0)), {}),
    ]
)
def vecdot(x1: Any, x2: Any, *, axis: int = -1) -> Value:
    """Dot products of vectors along an axis, over axes that broadcast.

    A ShapeError where the vectors differ in length. Derivative: the other operand.

    >>> import jitgrad as jg
    >>> jg.vecdot([[1.0, 2.0], [0.0, 1.0]], [3.0, 4.0])
    tensor([11.,  4.])
    """
    x, y = as_value(x1, "vecdot"), as_value(x2, "vecdot")
    for v in (x, y):
        if v.ndim == 0:
            raise ShapeError(f"vecdot: shapes {x.shape} and {y.shape}: an operand is a scalar, not a stack of vectors")
    i, j = axis_of(axis, x.ndim), axis_of(axis, y.ndim)
    if x.shape[i] != y.shape[j]:
        raise _misfit("vecdot", x, y, x.shape[i], y.shape[j])
    x, y = same_dtype(x, y)
    if x.ndim == 1 and y.ndim == 1:
        return vector_dot(x, y)
    return _sum_products(_axis_last(x, i), _axis_last(y, j))


def _axis_last(x: Value, axis: int) -> Value:
    return x if axis == x.ndim - 1 else permute(x, axes=(*(i for i in range(x.ndim) if i != axis), axis))


def _sum_products(x: Value, y: Value) -> Value:
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        raise ShapeError(f"vecdot: shapes {x.shape} and {y.shape} do not broadcast") from None
    if x.dtype.kind != "b":
        made = sum_over(multiply(x, y), axes=(len(shape) - 1,))
        return made if made.dtype == x.dtype else convert(made, dtype=x.dtype)
    x, y = (expand(v, shape=shape) for v in (x, y))
    made = matrix_product(_row(x), _column(y), ta=False, tb=False)  # of booleans: and, or
    return reshape_to(made, shape=shape[:-1])


def _row(x: Value) -> Value:
    return reshape_to(x, shape=(*x.shape[:-1], 1, x.shape[-1]))


def _column(x: Value) -> Value:
    return reshape_to(x, shape=(*x.shape, 1))


@operation(
    samples=lambda rng: [
        Call((_random(rng, 2, 3), _random(rng, 3)), {}),
        Call((_random(rng, 2, 2, 3), _random(rng, 2, 3)), {}),
        Call((_random(rng, 2, 3), _random(rng, 4, 3)), {}),
    ],
    reference=lambda x1, x2: (np.asarray(x1) @ np.asarray(x2)[..., None])[..., 0],
)
def matvec(x1: Any, x2: Any) -> Value:
    """Matrix times vector, over leading axes that broadcast: ``(..., m, n)`` and ``(..., n)`` give ``(..., m)``.

    Derivative: the product rule.

    >>> import jitgrad as jg
    >>> jg.matvec([[1.0, 2.0], [0.0, 1.0]], [3.0, 4.0])
    tensor([11.,  4.])
    """
    a, x = as_value(x1, "matvec"), as_value(x2, "matvec")
    if a.ndim < 2 or x.ndim < 1:
        raise ShapeError(f"matvec: shapes {a.shape} and {x.shape}: a stack of matrices and one of vectors is needed")
    if x.ndim == 1:
        return matmul(a, x)
    made = matmul(a, _column(x))
    return reshape_to(made, shape=made.shape[:-1])


@operation(
    samples=lambda rng: [
        Call((_random(rng, 2), _random(rng, 2, 3)), {}),
        Call((_random(rng, 2, 3), _random(rng, 2, 3, 2)), {}),
        Call((_random(rng, 4, 3), _random(rng, 3, 2)), {}),
    ],
    reference=lambda x1, x2: (np.asarray(x1)[..., None, :] @ np.asarray(x2))[..., 0, :],
)
def vecmat(x1: Any, x2: Any) -> Value:
    """Vector times matrix, over leading axes that broadcast: ``(..., n)`` and ``(..., n, m)`` give ``(..., m)``.

    Derivative: the product rule.

    >>> import jitgrad as jg
    >>> jg.vecmat([3.0, 4.0], [[1.0, 2.0], [0.0, 1.0]])
    tensor([ 3., 10.])
    """
    x, a = as_value(x1, "vecmat"), as_value(x2, "vecmat")
    if a.ndim < 2 or x.ndim < 1:
        raise ShapeError(f"vecmat: shapes {x.shape} and {a.shape}: a stack of vectors and one of matrices is needed")
    if x.ndim == 1 or a.ndim == 2:
        return matmul(x, a)
    made = matmul(_row(x), a)
    return reshape_to(made, shape=(*made.shape[:-2], made.shape[-1]))


# --------------------------------------------------------------------------- tensors


def _as_matrix(x: Value, rows: Sequence[int], columns: Sequence[int]) -> tuple[Value, bool]:
    """The axes folded into a matrix, rows first; or its transpose (True), where this saves moving elements."""
    shape = x.shape
    m, n = math.prod(shape[i] for i in rows), math.prod(shape[i] for i in columns)
    if (*columns, *rows) == tuple(range(x.ndim)) and rows and columns:
        return reshape_to(x, shape=(n, m)), True
    order = (*rows, *columns)
    if order != tuple(range(x.ndim)):
        x = permute(x, axes=order)
    return reshape_to(x, shape=(m, n)), False


def _tensordot(name: str, x: Value, y: Value, over_x: tuple[int, ...], over_y: tuple[int, ...]) -> Value:
    """Sum of products over pairs of axes; the other axes of ``x`` come first in the result."""
    for i, j in zip(over_x, over_y, strict=True):
        if x.shape[i] != y.shape[j]:
            raise ShapeError(
                f"{name}: axis {i} of shape {x.shape} has {x.shape[i]} elements, axis {j} of shape {y.shape}, "
                f"with which it is summed, has {y.shape[j]}"
            )
    x, y = same_dtype(x, y)
    free_x = [i for i in range(x.ndim) if i not in over_x]
    free_y = [j for j in range(y.ndim) if j not in over_y]
    shape = (*(x.shape[i] for i in free_x), *(y.shape[j] for j in free_y))
    pairs = sorted(zip(over_x, over_y, strict=True))
    over_x, over_y = tuple(i for i, _ in pairs), tuple(j for _, j in pairs)
    if not free_x and not free_y:
        made = vector_dot(_flat(_ordered(x, over_x)), _flat(_ordered(y, over_y)))
    elif not free_y:
        a, t = _as_matrix(x, free_x, over_x)
        made = matrix_vector(a, _flat(_ordered(y, over_y)), t=t)
    elif not free_x:
        a, t = _as_matrix(y, over_y, free_y)
        made = matrix_vector(a, _flat(_ordered(x, over_x)), t=not t)
    else:
        a, ta = _as_matrix(x, free_x, over_x)
        b, tb = _as_matrix(y, over_y, free_y)
        made = matrix_product(a, b, ta=ta, tb=tb)
    return made if made.shape == shape else reshape_to(made, shape=shape)


def _ordered(x: Value, axes: tuple[int, ...]) -> Value:
    return x if axes == tuple(range(x.ndim)) else permute(x, axes=axes)


def _tensordot_samples(rng: np.random.Generator) -> list[Call]:
    a, b = _random(rng, 2, 3, 4), _random(rng, 3, 4, 2)
    return [
        Call((a, b), {}),
        Call((a, _random(rng, 4, 2)), {"axes": 1}),
        Call((a, b), {"axes": ((0, 2), (2, 1))}),
        Call((a, b), {"axes": (2, 1)}),
        Call((a, b), {"axes": ([2, 0, 1], [1, 2, 0])}),
        Call((_random(rng, 2), _random(rng, 3)), {"axes": 0}),
        Call((a, _random(rng, 3, 4)), {"axes": 2}),
        Call((_random(rng, 3, 4), _random(rng, 3, 4, 2)), {"axes": 2}),
    ]


@operation(samples=_tensordot_samples)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Value:
    """Sum of products over the last ``axes`` axes of ``a`` and the first ones of ``b``, or over pairs of axes
    ``(axes of a, axes of b)``.

    Any dtype; a ShapeError where extents differ. Derivative: the product rule.

    >>> import jitgrad as jg
    >>> jg.tensordot([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0], axes=1)
    tensor([3., 7.])
    """
    x, y = as_value(a, "tensordot"), as_value(b, "tensordot")
    if isinstance(axes, tuple | list):
        if len(axes) != 2:
            raise ArgumentError(f"tensordot: axes {axes} must be an integer or a pair (axes of a, axes of b)")
        first, second = ([v] if not isinstance(v, tuple | list) else list(v) for v in axes)
    else:
        count = index_of(axes, "axes")
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise ShapeError(f"tensordot: {count} axes of shapes {x.shape} and {y.shape} cannot be summed over")
        first, second = list(range(x.ndim - count, x.ndim)), list(range(count))
    if len(first) != len(second):
        raise ArgumentError(f"tensordot: axes {axes} name {len(first)} axes of a and {len(second)} of b")
    over_x = tuple(axis_of(i, x.ndim, "axis of a") for i in first)
    over_y = tuple(axis_of(j, y.ndim, "axis of b") for j in second)
    if len(set(over_x)) < len(over_x) or len(set(over_y)) < len(over_y):
        raise ArgumentError(f"tensordot: axes {axes} name an axis twice")
    return _tensordot("tensordot", x, y, over_x, over_y)


@operation(
    samples=lambda rng: [
        Call((_random(rng, 2, 3), _random(rng, 3, 2)), {}),
        Call((_random(rng, 2), _random(rng, 3)), {}),
        Call((_random(rng, 2), _random(rng, 3, 2)), {}),
        Call((_random(rng, 2, 2, 2), _random(rng, 3)), {}),
        Call((_random(rng), _random(rng, 2)), {}),
    ]
)
def kron(a: Any, b: Any) -> Value:
    """Kronecker product: blocks of ``b``, scaled by the elements of ``a``.

    The operand of fewer axes gets leading ones. Derivative: the product rule.

    >>> import jitgrad as jg
    >>> jg.kron([1.0, 10.0], [1.0, 2.0])
    tensor([ 1.,  2., 10., 20.])
    """
    x, y = as_value(a, "kron"), as_value(b, "kron")
    ndim = max(x.ndim, y.ndim)
    left = (1,) * (ndim - x.ndim) + x.shape
    right = (1,) * (ndim - y.ndim) + y.shape
    spaced = multiply(
        reshape_to(x, shape=tuple(n for i in left for n in (i, 1))),
        reshape_to(y, shape=tuple(n for i in right for n in (1, i))),
    )
    return reshape_to(spaced, shape=tuple(i * j for i, j in zip(left, right, strict=True)))


@operation(
    samples=lambda rng: [
        Call((_random(rng, 3), _random(rng, 3)), {}),
        Call((_random(rng, 4, 3), _random(rng, 3)), {}),
        Call((_random(rng, 3, 2), _random(rng, 3, 2)), {"axis": 0}),
        Call((_random(rng, 3, 2), _random(rng, 2, 3)), {"axisa": 0, "axisc": 0}),
    ]
)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Value:
    """Cross product of vectors of three components along an axis, over axes that broadcast.

    ``axisa``, ``axisb``, ``axisc`` say where the components stand in the operands and the result; ``axis`` sets all.
    A ShapeError where they are not three. Derivative: ``cross(b, g)`` and ``cross(g, a)``.

    >>> import jitgrad as jg
    >>> jg.cross([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    tensor([0., 0., 1.])
    """
    x, y = as_value(a, "cross"), as_value(b, "cross")
    if axis is not None:
        axisa = axisb = axisc = axis
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError(f"cross: shapes {x.shape} and {y.shape}: an operand is a scalar")
    x, y = _axis_last(x, axis_of(axisa, x.ndim, "axisa")), _axis_last(y, axis_of(axisb, y.ndim, "axisb"))
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise ShapeError(
            f"cross: vectors of {x.shape[-1]} and {y.shape[-1]} components; both must have 3 "
            "(append a zero to planar ones)"
        )
    (x0, x1, x2), (y0, y1, y2) = _components(x), _components(y)
    parts = (x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0)
    made = join(*parts, axis=parts[0].ndim - 1)
    last = made.ndim - 1
    target = axis_of(axisc, made.ndim, "axisc")
    if target == last:
        return made
    order = list(range(last))
    order.insert(target, last)
    return permute(made, axes=tuple(order))


def _components(x: Value) -> list[Value]:
    whole = ((None, None, None),) * (x.ndim - 1)
    return [slice_view(x, index=(*whole, (i, i + 1, None))) for i in range(3)]


# --------------------------------------------------------------------------- Einstein summation

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Labels = tuple[Any, ...]
"""A name for each axis: a letter or an integer as the user gave it, ``("...", i)`` for the axes behind an ellipsis."""


def _parsed(operands: tuple[Any, ...]) -> tuple[list[Value], list[list[Any]], list[Any] | None]:
    """Operands, and what the user wrote for their axes and for those of the result (None: implicit); ``...`` stands as
    Ellipsis. The two forms are ``("ij,jk->ik", a, b)`` and ``(a, [0, 1], b, [1, 2], [0, 2])``."""
    if not operands:
        raise ArgumentError("einsum needs subscripts and operands")
    if not isinstance(operands[0], str):
        count = len(operands) // 2
        values = [as_value(v, f"einsum, operand {i + 1}") for i, v in enumerate(operands[: 2 * count : 2])]
        lists = [_sublist(s) for s in operands[1 : 2 * count : 2]]
        return values, lists, _sublist(operands[-1]) if len(operands) % 2 else None
    text = operands[0].replace(" ", "")
    values = [as_value(v, f"einsum, operand {i + 1}") for i, v in enumerate(operands[1:])]
    if text.count("->") > 1 or "-" in text.replace("->", "") or ">" in text.replace("->", ""):
        raise ArgumentError(f"einsum: subscripts '{operands[0]}': '->' may stand once, and only whole")
    left, arrow, right = text.partition("->")
    terms = [_term(t, operands[0]) for t in left.split(",")]
    if len(terms) != len(values):
        raise ArgumentError(f"einsum: '{operands[0]}' is for {len(terms)} operands, not {len(values)}")
    return values, terms, _term(right, operands[0]) if arrow else None


def _sublist(items: Any) -> list[Any]:
    if not isinstance(items, list | tuple):
        raise ArgumentError(f"einsum: subscripts must be a string, or a list after each operand, not {items!r}")
    return [i if i is Ellipsis else index_of(i, "an index of einsum") for i in items]


def _term(text: str, whole: str) -> list[Any]:
    before, dots, after = text.partition("...")
    labels = [*before, *([Ellipsis] if dots else []), *after]
    for c in labels:
        if c is not Ellipsis and c not in _LETTERS:
            raise ArgumentError(f"einsum: '{c}' in the subscripts '{whole}' is no letter, nor '...', ',' or '->'")
    return labels


def _expanded(terms: list[list[Any]], values: list[Value], out: list[Any] | None) -> tuple[list[Labels], Labels]:
    """A label for every axis: ellipses written out (aligned at their ends), and the implicit result made."""
    made: list[Labels] = []
    most = 0
    for number, (term, x) in enumerate(zip(terms, values, strict=True)):
        named = len(term) - term.count(Ellipsis)
        dotted = x.ndim - named
        if term.count(Ellipsis) > 1:
            raise ArgumentError(f"einsum: more than one '...' for operand {number + 1}")
        if dotted < 0 or (dotted and Ellipsis not in term):
            raise ShapeError(
                f"einsum: operand {number + 1} of shape {x.shape} has {x.ndim} axes, its subscripts {named}"
            )
        made.append(_with_dots(term, dotted))
        most = max(most, dotted)
    every = [i for labels in made for i in labels]
    if out is None:
        once = [i for i in every if every.count(i) == 1 and not isinstance(i, tuple)]
        return made, (*_with_dots([Ellipsis], most), *sorted(once))
    if out.count(Ellipsis) > 1:
        raise ArgumentError("einsum: more than one '...' in the result")
    if most and Ellipsis not in out:
        raise ArgumentError("einsum: operands have axes behind '...', the result has no '...'")
    result = _with_dots(out, most)
    for i in result:
        if result.count(i) > 1:
            raise ArgumentError(f"einsum: '{i}' stands twice in the result")
        if i not in every:
            raise ArgumentError(f"einsum: '{i}' of the result stands in no operand")
    return made, result


def _with_dots(term: Sequence[Any], count: int) -> Labels:
    dots = [("...", i) for i in reversed(range(count))]
    return tuple(label for i in term for label in (dots if i is Ellipsis else [i]))


def _diagonal(x: Value, labels: Labels) -> tuple[Value, Labels]:
    """One axis for each label: of repeated ones, the diagonal."""
    if len(set(labels)) == len(labels):
        return x, labels
    kept = tuple(dict.fromkeys(labels))
    positions = np.zeros((), np.int64)
    for label in kept:
        extents = {x.shape[i] for i in range(x.ndim) if labels[i] == label}
        if len(extents) > 1:
            raise ShapeError(f"einsum: the axes '{label}' of an operand of shape {x.shape} differ in length")
        step = sum(math.prod(x.shape[i + 1 :]) for i in range(x.ndim) if labels[i] == label)
        positions = positions[..., None] + np.arange(extents.pop()) * step
    return gather(x, wrap(np.ascontiguousarray(positions))), kept


def _without(x: Value, labels: Labels, summed: set[Any]) -> tuple[Value, Labels]:
    """Summed over some of its axes."""
    axes = tuple(i for i, label in enumerate(labels) if label in summed)
    if not axes:
        return x, labels
    if x.dtype.kind == "b":
        return any_over(x, axes=axes), tuple(i for i in labels if i not in summed)
    made = sum_over(x, axes=axes)
    made = made if made.dtype == x.dtype else convert(made, dtype=x.dtype)
    return made, tuple(i for i in labels if i not in summed)


def _arranged(x: Value, labels: Labels, wanted: Sequence[Any]) -> Value:
    """The axes in another order."""
    return _ordered(x, tuple(labels.index(i) for i in wanted))


def _contracted(x: Value, in_x: Labels, y: Value, in_y: Labels, keep: set[Any]) -> tuple[Value, Labels]:
    """The product of two operands, summed over the labels that nothing else needs."""
    x, in_x = _without(x, in_x, set(in_x) - set(in_y) - keep)
    y, in_y = _without(y, in_y, set(in_y) - set(in_x) - keep)
    batch = [i for i in in_x if i in in_y and i in keep]
    over = [i for i in in_x if i in in_y and i not in keep]
    rows = [i for i in in_x if i not in in_y]
    columns = [i for i in in_y if i not in in_x]
    labels = (*batch, *rows, *columns)
    if not batch:
        pairs = tuple(in_x.index(i) for i in over), tuple(in_y.index(i) for i in over)
        return _tensordot("einsum", x, y, *pairs), labels
    extent = {**dict(zip(in_y, y.shape, strict=True)), **dict(zip(in_x, x.shape, strict=True))}
    sizes = [[extent[i] for i in group] for group in (batch, rows, columns, over)]
    shape = tuple(n for group in sizes[:3] for n in group)
    if not over:
        left = reshape_to(_arranged(x, in_x, batch + rows), shape=(*sizes[0], *sizes[1], *(1 for _ in columns)))
        right = reshape_to(_arranged(y, in_y, batch + columns), shape=(*sizes[0], *(1 for _ in rows), *sizes[2]))
        return multiply(left, right), labels
    count, m, n, k = map(math.prod, sizes)
    a, ta = _as_matrices(x, in_x, batch, rows, over, (count, m, k))
    b, tb = _as_matrices(y, in_y, batch, over, columns, (count, k, n))
    return reshape_to(matrix_product(a, b, ta=ta, tb=tb), shape=shape), labels


def _as_matrices(
    x: Value, labels: Labels, batch: list[Any], rows: list[Any], columns: list[Any], shape: tuple[int, int, int]
) -> tuple[Value, bool]:
    """A stack of matrices; or of their transposes (True), where this saves moving elements."""
    if labels == (*batch, *columns, *rows):
        return reshape_to(x, shape=(shape[0], shape[2], shape[1])), True
    return reshape_to(_arranged(x, labels, batch + rows + columns), shape=shape), False


def _order(values: list[Value], labels: list[Labels], out: Labels) -> list[tuple[int, ...]]:
    """Which operands to contract next, cheapest first (NumPy's greedy search)."""
    if len(values) <= 2:
        return [tuple(range(len(values)))]
    number = {label: i for i, label in enumerate(dict.fromkeys(i for term in labels for i in term))}
    arguments: list[Any] = []
    for x, term in zip(values, labels, strict=True):
        arguments += [np.broadcast_to(np.zeros((), np.int8), x.shape), [number[i] for i in term]]
    path, _ = np.einsum_path(*arguments, [number[i] for i in out], optimize="greedy")
    return [tuple(step) for step in path[1:]]


def _einsum_samples(rng: np.random.Generator) -> list[Call]:
    cases: list[tuple[str, list[tuple[int, ...]]]] = [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ba", [(2, 3)]),
        ("ii", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("iji->j", [(2, 3, 2)]),
        ("ij->", [(2, 3)]),
        ("i,i", [(3,), (3,)]),
        ("i,j->ji", [(2,), (3,)]),
        ("bij,bjk->bik", [(2, 2, 3), (2, 3, 2)]),
        ("bij,kjb->bki", [(2, 2, 3), (4, 3, 2)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("bi,bj->bij", [(2, 3), (2, 2)]),
        ("...ij,...jk->...ik", [(2, 2, 3), (3, 2)]),
        ("i...,i->...", [(3, 2, 2), (3,)]),
        ("...,...", [(2, 3), (3,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 4)]),
        ("i,ij,j", [(2,), (2, 3), (3,)]),
        ("ijk,k,jl->i", [(2, 3, 2), (2,), (3, 2)]),
        (",i->i", [(), (2,)]),
        ("ij,ij->i", [(2, 3), (2, 1)]),
    ]
    calls = [Call((text, *(_random(rng, *s) for s in shapes)), {}) for text, shapes in cases]
    a, b = _random(rng, 2, 3), _random(rng, 3, 2)
    calls.append(Call((a, [0, 1], b, [1, 2], [2, 0]), {}))
    calls.append(Call((a, [4, 1], b, [1, 4]), {"optimize": True}))
    calls.append(Call((a, [Ellipsis, 1], b, [1, 2], [2, Ellipsis]), {}))
    return calls


@operation(samples=_einsum_samples)
def einsum(*operands: Any, optimize: Any = True) -> Value:
    """Einstein summation: ``einsum("ij,jk->ik", a, b)`` or ``einsum(a, [0, 1], b, [1, 2], [0, 2])``.

    All of NumPy's subscripts: implicit and explicit results, ``...``, repeated labels (diagonals), any number of
    operands, axes of one element that broadcast. Products are taken in pairs, by matrix products where they add up, in
    a greedy order of cost; ``optimize`` is accepted and changes nothing. A ShapeError where extents differ, an
    ArgumentError for subscripts that mean nothing.
    Derivative: for each operand the same sum with the cotangent in its place.

    >>> import jitgrad as jg
    >>> jg.einsum("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    tensor([3., 7.])
    """
    values, terms, out = _parsed(operands)
    labels, result = _expanded(terms, values, out)
    dtype = result_dtype(*(v.dtype for v in values))
    values = [v if v.dtype == dtype else convert(v, dtype=dtype) for v in values]
    extent: dict[Any, int] = {}
    for number, (x, term) in enumerate(zip(values, labels, strict=True)):
        for i, n in zip(term, x.shape, strict=True):
            known = extent.setdefault(i, n)
            if n != known and n != 1 and known != 1:
                raise ShapeError(
                    f"einsum: '{i}' has {known} elements, but {n} in operand {number + 1} of shape {x.shape}"
                )
            extent[i] = n if known == 1 else known
    for number, (x, term) in enumerate(zip(values, labels, strict=True)):
        x, term = _diagonal(x, term)
        stretched = [i for i, n in zip(term, x.shape, strict=True) if n == 1 and extent[i] != 1]
        if stretched:
            term = tuple(i for i in term if i not in stretched)
            x = reshape_to(x, shape=tuple(extent[i] for i in term))
        values[number], labels[number] = x, term
    for step in _order(values, labels, result):
        chosen = [(values[i], labels[i]) for i in step]
        for i in sorted(step, reverse=True):
            del values[i], labels[i]
        keep = {*result, *(i for term in labels for i in term)}
        x, term = chosen.pop(0)
        while chosen:
            y, other = chosen.pop(0)
            x, term = _contracted(x, term, y, other, keep | {i for _, t in chosen for i in t})
        values.append(x)
        labels.append(term)
    x, term = _without(values[0], labels[0], set(labels[0]) - set(result))
    return _arranged(x, term, result)
