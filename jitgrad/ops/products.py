"""Products that add up, of matrices and vectors.

Four bilinear primitives do the work, each the transpose of another, with transposition as a flag of BLAS instead of a
copy; the compiler has one more, for sums of products. The public functions bring their operands into shape for these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core import blas_form as blas
from jitgrad.core import scalar
from jitgrad.core.aval import ShapedArray, make_aval, result_dtype
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import ArrayCall, Folded, Operand, Primitive, Value
from jitgrad.errors import ShapeError
from jitgrad.kernels.kernel import ArrayKernel
from jitgrad.ops.array_calls import Pairs, axes_alike, flat, stack, whole
from jitgrad.ops.array_primitives import straight_call
from jitgrad.ops.axes import axis_of
from jitgrad.ops.blocks import Call, host, operation, uniform
from jitgrad.ops.elementwise import multiply
from jitgrad.ops.linear import convert, expand, permute, reshape_to, sum_over, sum_to

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
def product_sums_kernel(sums, x, y, out, ta, tb, over_rows, over_columns, negated):
    count, m, n = out.shape
    inner = x.shape[1] if ta else x.shape[2]
    rows = (x.shape[2] if ta else x.shape[1]) if over_rows else 1
    columns = (y.shape[1] if tb else y.shape[2]) if over_columns else 1
    for c in range(count):
        a = x[c if x.shape[0] > 1 else 0]
        b = y[c if y.shape[0] > 1 else 0]
        for i in range(m):
            for j in range(n):
                total = np.float64(sums[c, i, j])
                if not scalar.isfinite(total):
                    total = np.float64(0.0)
                    for r in range(i, i + rows):
                        for s in range(j, j + columns):
                            out[c, i, j] = 0
                            for p in range(inner):
                                out[c, i, j] += (a[p, r] if ta else a[r, p]) * (b[s, p] if tb else b[p, s])
                            total += out[c, i, j]
                out[c, i, j] = 0.0 - total if negated else 0.0 + total  # a sum of -0.0 is 0.0


@ArrayKernel
def integer_products_kernel(x, y, out, ta, tb):
    """Of integers and, as part of kernels, of booleans: NumPy has no BLAS for these either."""
    count, m, n = out.shape
    for c in range(count):
        a = x[c if x.shape[0] > 1 else 0]
        b = y[c if y.shape[0] > 1 else 0]
        for i in range(m):
            for j in range(n):
                total = 0
                for p in range(a.shape[0] if ta else a.shape[1]):
                    total += (a[p, i] if ta else a[i, p]) * (b[j, p] if tb else b[p, j])
                out[c, i, j] = total


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


# --------------------------------------------------------------------------- matrices and vectors


def same_dtype(x: Value, y: Value) -> tuple[Value, Value]:
    """Both operands in their common dtype."""
    if x.dtype != y.dtype:
        dtype = result_dtype(x.dtype, y.dtype)
        x = x if x.dtype == dtype else convert(x, dtype=dtype)
        y = y if y.dtype == dtype else convert(y, dtype=dtype)
    return x, y


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
    return [Call((uniform(rng, *a), uniform(rng, *b)), {}) for a, b in shapes]


def _misfit(name: str, x: Value, y: Value, nx: int, ny: int) -> ShapeError:
    return ShapeError(
        f"{name}: shapes {x.shape} and {y.shape} do not fit: the last axis of the first operand has {nx} elements, "
        f"the axis of the second one that it is summed with has {ny}"
    )


def _single_product(nx: int, ny: int) -> tuple[Primitive, bool, dict[str, Any]] | None:
    match nx, ny:
        case 2, 2:
            return matrix_product, False, {"ta": False, "tb": False}
        case 2, 1:
            return matrix_vector, False, {"t": False}
        case 1, 2:
            return matrix_vector, True, {"t": True}
        case 1, 1:
            return vector_dot, False, {}
    return None


@operation(samples=_matmul_samples, method=True, operator="@", single=_single_product)
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
    if (single := _single_product(x.ndim, y.ndim)) is not None:
        primitive, turned, params = single
        return primitive(y, x, **params) if turned else primitive(x, y, **params)
    if y.ndim == 2:
        flat = reshape_to(x, shape=(math.prod(x.shape[:-1]), k))  # one product for the whole stack
        return reshape_to(matrix_product(flat, y, ta=False, tb=False), shape=(*x.shape[:-1], y.shape[1]))
    if y.ndim == 1:
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
    return [Call((uniform(rng, *a), uniform(rng, *b)), {}) for a, b in shapes]


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
    return contract("dot", x, y, (x.ndim - 1,), (y.ndim - 2,))


def _inner_samples(rng: np.random.Generator) -> list[Call]:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (4, 3)), ((2, 2, 3), (4, 3)), ((), (2,)),
    ]  # fmt: skip
    return [Call((uniform(rng, *a), uniform(rng, *b)), {}) for a, b in shapes]


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
    return contract("inner", x, y, (x.ndim - 1,), (y.ndim - 1,))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3), uniform(rng, 4)), {}),
        Call((uniform(rng, 2, 2), uniform(rng, 3)), {}),
        Call((uniform(rng), uniform(rng, 2)), {}),
        Call((uniform(rng, 0), uniform(rng, 2)), {}),
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
    return vector_outer(flattened(x), flattened(y))


def flattened(x: Value) -> Value:
    """The elements as a vector."""
    return x if x.ndim == 1 else reshape_to(x, shape=(x.size,))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3), uniform(rng, 3)), {}),
        Call((uniform(rng, 2, 3), uniform(rng, 3, 2)), {}),
        Call((uniform(rng), uniform(rng)), {}),
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
    return vector_dot(flattened(x), flattened(y))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3), uniform(rng, 3)), {}),
        Call((uniform(rng, 2, 3), uniform(rng, 4, 1, 3)), {}),
        Call((uniform(rng, 3, 2), uniform(rng, 3, 2)), {"axis": 0}),
        Call((uniform(rng, 2, 0), uniform(rng, 0)), {}),
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
    return _sum_products(axis_last(x, i), axis_last(y, j))


def axis_last(x: Value, axis: int) -> Value:
    """The axis moved to the end."""
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
    made = matrix_product(row(x), column(y), ta=False, tb=False)  # of booleans: and, or
    return reshape_to(made, shape=shape[:-1])


def row(x: Value) -> Value:
    """Vectors as one-row matrices."""
    return reshape_to(x, shape=(*x.shape[:-1], 1, x.shape[-1]))


def column(x: Value) -> Value:
    """Vectors as one-column matrices."""
    return reshape_to(x, shape=(*x.shape, 1))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3), uniform(rng, 3)), {}),
        Call((uniform(rng, 2, 2, 3), uniform(rng, 2, 3)), {}),
        Call((uniform(rng, 2, 3), uniform(rng, 4, 3)), {}),
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
    made = matmul(a, column(x))
    return reshape_to(made, shape=made.shape[:-1])


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2), uniform(rng, 2, 3)), {}),
        Call((uniform(rng, 2, 3), uniform(rng, 2, 3, 2)), {}),
        Call((uniform(rng, 4, 3), uniform(rng, 3, 2)), {}),
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
    made = matmul(row(x), a)
    return reshape_to(made, shape=(*made.shape[:-2], made.shape[-1]))


# --------------------------------------------------------------------------- axes of tensors


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


def contract(name: str, x: Value, y: Value, over_x: tuple[int, ...], over_y: tuple[int, ...]) -> Value:
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
        made = vector_dot(flattened(ordered(x, over_x)), flattened(ordered(y, over_y)))
    elif not free_y:
        a, t = _as_matrix(x, free_x, over_x)
        made = matrix_vector(a, flattened(ordered(y, over_y)), t=t)
    elif not free_x:
        a, t = _as_matrix(y, over_y, free_y)
        made = matrix_vector(a, flattened(ordered(x, over_x)), t=not t)
    else:
        a, ta = _as_matrix(x, free_x, over_x)
        b, tb = _as_matrix(y, over_y, free_y)
        made = matrix_product(a, b, ta=ta, tb=tb)
    return made if made.shape == shape else reshape_to(made, shape=shape)


def ordered(x: Value, axes: tuple[int, ...]) -> Value:
    """The axes in this order."""
    return x if axes == tuple(range(x.ndim)) else permute(x, axes=axes)
