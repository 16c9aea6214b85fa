"""Products that add up, of matrices and vectors.

The public functions bring their operands into shape for the primitives in ``product_primitives``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core.aval import result_dtype
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Primitive, Value
from jitgrad.errors import ShapeError
from jitgrad.ops.axes import axis_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.elementwise import multiply
from jitgrad.ops.linear import convert, expand, permute, reshape_to, sum_over
from jitgrad.ops.product_primitives import matrix_product, matrix_vector, vector_dot, vector_outer

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


@operation(samples=_dot_samples, method=True, remembered=True)
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


@operation(samples=_inner_samples, remembered=True)
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
    ],
    remembered=True,
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
    ],
    remembered=True,
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
    ],
    remembered=True,
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
    remembered=True,
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
    remembered=True,
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
