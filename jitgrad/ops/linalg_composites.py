"""Linear algebra that is made of the basic solutions and factorisations, and names that NumPy has in two places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.dispatch import as_value
from jitgrad.core.linalg_errors import MatrixShapeError
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError
from jitgrad.ops import products, shape, tensor_products
from jitgrad.ops.axes import axis_of, index_of
from jitgrad.ops.blocks import Call, operation, primitive_of, uniform
from jitgrad.ops.comparison import isnan
from jitgrad.ops.factorisations import singular_values
from jitgrad.ops.linalg import cutoff_of, inv, solve
from jitgrad.ops.linear import convert, permute, reshape_to, slice_view, sum_over
from jitgrad.ops.matrices import identity, inverse, inverse_or_nan, pseudo_inverse
from jitgrad.ops.matrix_operands import apart, floats, regular, square_matrices, stacks_of_matrices
from jitgrad.ops.norms import norm_of_matrices
from jitgrad.ops.reduction import any_over, count_over, max_over
from jitgrad.ops.selection import where

# --------------------------------------------------------------------------- what is made of these


@operation(
    samples=lambda rng: (
        [Call((regular(rng, 3, 3), n), {}) for n in (0, 1, 3, -2)] + [Call((regular(rng, 2, 2, 2), 5), {})]
    ),
    namespace="linalg",
)
def matrix_power(a: Any, n: int) -> Value:
    """Square matrices to an integer power, by repeated squaring; negative powers by the inverse.

    Derivative: of the products.

    >>> import jitgrad as jg
    >>> jg.linalg.matrix_power([[1.0, 1.0], [0.0, 1.0]], 5)
    tensor([[1., 5.],
            [0., 1.]])
    """
    x = as_value(a, "matrix_power")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise MatrixShapeError(f"matrix_power takes square matrices, not the shape {x.shape}")
    power = index_of(n, "matrix_power: the power")
    if power == 0:
        return where(False, x, identity(x))  # stays in the graph, with gradient 0
    if power < 0:
        x, power = inv(x), -power
    made = None
    while True:
        if power & 1:
            made = x if made is None else products.matmul(made, x)
        power >>= 1
        if not power:
            return made
        x = products.matmul(x, x)


@operation(
    samples=lambda rng: [
        Call(([uniform(rng, 2, 3), uniform(rng, 3, 4), uniform(rng, 4, 2)],), {}),
        Call(([uniform(rng, 3), uniform(rng, 3, 4), uniform(rng, 4)],), {}),
        Call(([uniform(rng, 2, 3), uniform(rng, 3, 5), uniform(rng, 5, 2), uniform(rng, 2)],), {}),
    ],
    namespace="linalg",
)
def multi_dot(arrays: Any) -> Value:
    """The product of several matrices in the cheapest order; the first and the last may be vectors.

    A ShapeError where extents do not fit. Derivative: of the products.

    >>> import jitgrad as jg
    >>> jg.linalg.multi_dot([[1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [3.0, 4.0]])
    tensor(11.)
    """
    values = [as_value(a, "multi_dot") for a in arrays]
    if len(values) < 2:
        raise ArgumentError(f"multi_dot takes at least 2 arrays, not {len(values)}")
    for i, v in enumerate(values):
        if v.ndim != 2 and not (v.ndim == 1 and i in (0, len(values) - 1)):
            raise ShapeError(f"multi_dot: array {i + 1} has the shape {v.shape}; only the ends may be vectors")
    extents = [1 if values[0].ndim == 1 else values[0].shape[0], *(v.shape[0] for v in values[1:])]
    extents.append(1 if values[-1].ndim == 1 else values[-1].shape[1])
    count = len(values)
    cost = [[0.0] * count for _ in range(count)]
    split = [[0] * count for _ in range(count)]
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            options = [
                (cost[i][k] + cost[k + 1][j] + extents[i] * extents[k + 1] * extents[j + 1], k) for k in range(i, j)
            ]
            cost[i][j], split[i][j] = min(options)

    def product(i: int, j: int) -> Value:
        if i == j:
            return values[i]
        return products.matmul(product(i, split[i][j]), product(split[i][j] + 1, j))

    return product(0, count - 1)


@primitive_of([lambda out, x, given: out - out + 1.0, None])
def infinite_if_lost(x, given):
    """inf where x is NaN though nothing that was given is."""
    return scalar.sel((x != x) & (given == 0.0), np.inf, x)  # noqa: PLR0124 (NaN)


@operation(
    samples=lambda rng: [
        Call((apart(rng, 3, 3),), {}),
        Call((apart(rng, 3, 2),), {}),
        Call((regular(rng, 3, 3), 1), {}),
        Call((regular(rng, 2, 3, 3), "fro"), {}),
        Call((apart(rng, 3, 3), -2), {}),
    ],
    namespace="linalg",
)
def cond(x: Any, p: Any = None) -> Value:
    """Condition numbers: the norm times the norm of the inverse, by singular values for ``p`` None, 2 and -2.

    ``p``: None, 'fro', 'nuc', 1, -1, 2, -2, inf, -inf. inf where a matrix is singular, and NaN where it has one.
    Derivative: of the norms; NaN where a matrix is singular.

    >>> import jitgrad as jg
    >>> jg.linalg.cond([[4.0, 0.0], [0.0, 2.0]])
    tensor(2.)
    """
    a = stacks_of_matrices(x, "cond")
    if p in (None, 2, -2):
        s = singular_values(a)
        if s.shape[-1] == 0:
            raise MatrixShapeError(f"cond is not defined for no elements (shape {a.shape})")
        whole = ((None, None, None),) * (s.ndim - 1)
        first, last = slice_view(s, index=(*whole, 0)), slice_view(s, index=(*whole, s.shape[-1] - 1))
        return last / first if p == -2 else first / last
    a = square_matrices(a, "cond")
    axes = (a.ndim - 2, a.ndim - 1)
    made = norm_of_matrices(a, axes, p, "cond") * norm_of_matrices(inverse_or_nan(a), axes, p, "cond")
    return infinite_if_lost(made, convert(any_over(isnan(a), axes=axes), dtype=made.dtype))


@operation(samples=lambda rng: [Call((apart(rng, 2, 3, 2),), {})], nondiff=True, namespace="linalg")
def matrix_rank(A: Any, tol: float | None = None, *, rtol: float | None = None) -> Value:
    """How many singular values exceed ``tol`` (by default ``rtol`` times the largest one, where ``rtol`` is
    ``max(m, n)`` times the precision of the dtype). No derivative.

    >>> import jitgrad as jg
    >>> jg.linalg.matrix_rank([[1.0, 1.0], [1.0, 1.0]])
    tensor(1)
    """
    x = as_value(A, "matrix_rank")
    if x.ndim < 2:
        return convert(count_over(x, axes=tuple(range(x.ndim))) != 0, dtype=np.dtype(np.int64))
    x = floats(x, "matrix_rank")
    s = singular_values(x)
    last = (s.ndim - 1,)
    if tol is not None:
        above = s > tol
    else:
        relative = max(x.shape[-2:]) * float(np.finfo(x.dtype).eps) if rtol is None else rtol
        above = s > reshape_to(max_over(s, axes=last), shape=(*s.shape[:-1], 1)) * relative if s.size else s > 0
    return count_over(above, axes=last)


class LstsqResult(NamedTuple):
    """Least-squares solution, sums of squared residuals, rank, singular values."""

    x: Value
    residuals: Value
    rank: Value
    singular_values: Value


@operation(
    samples=lambda rng: [
        Call((apart(rng, 4, 2), uniform(rng, 4)), {}),
        Call((apart(rng, 4, 2), uniform(rng, 4, 3)), {}),
        Call((apart(rng, 2, 3), uniform(rng, 2)), {}),
    ],
    namespace="linalg",
)
def lstsq(a: Any, b: Any, rcond: float | None = None) -> LstsqResult:
    """The least-squares solution of ``a @ x = b`` of least norm, with residuals, rank and singular values.

    ``rcond`` as in ``pinv`` (which it uses). ``residuals`` is empty unless ``a`` has more rows than columns and
    (where that is known, that is outside of traces) full rank.
    Derivative: through the pseudo-inverse, right where the rank stays what it is.

    >>> import jitgrad as jg
    >>> jg.linalg.lstsq([[1.0], [1.0]], [1.0, 3.0]).x
    tensor([2.])
    """
    x, y = products.same_dtype(stacks_of_matrices(a, "lstsq"), floats(b, "lstsq"))
    if x.ndim != 2 or y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        raise MatrixShapeError(f"lstsq: a matrix of shape {x.shape} and right-hand sides of shape {y.shape} do not fit")
    cutoff = max(x.shape) * float(np.finfo(x.dtype).eps) if rcond is None else cutoff_of(rcond, "lstsq")
    solution = products.matmul(pseudo_inverse(x, cutoff=cutoff), y)
    s = singular_values(x)
    rank = matrix_rank(x, rtol=cutoff)
    rest = y - products.matmul(x, solution)
    squares = sum_over(rest * rest, axes=(0,))
    squares = reshape_to(squares, shape=(y.shape[1] if y.ndim == 2 else 1,))
    # traced: the shape of a result cannot depend on a rank that is not known
    full = x.shape[0] > x.shape[1] and (rank.is_traced or int(rank) == x.shape[1])
    residuals = squares if full else slice_view(squares, index=((0, 0, None),))
    return LstsqResult(solution, residuals, convert(rank, dtype=np.dtype(np.int32)), s)


@operation(
    samples=lambda rng: [
        Call((regular(rng, 6, 6).reshape(2, 3, 6), uniform(rng, 2, 3)), {}),
        Call((regular(rng, 6, 6).reshape(2, 3, 3, 2).transpose(2, 0, 1, 3), uniform(rng, 2, 3)), {"axes": (0,)}),
    ],
    namespace="linalg",
)
def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Value:
    """The solution ``x`` of ``tensordot(a, x, x.ndim) = b``; the axes ``axes`` of ``a`` are moved to its end first.

    A SingularMatrixError where there is none. Derivative: as ``solve``.

    >>> import jitgrad as jg
    >>> jg.linalg.tensorsolve([[[2.0, 0.0], [0.0, 4.0]]], [[2.0, 2.0]])
    tensor([1. , 0.5])
    """
    x, y = floats(a, "tensorsolve"), floats(b, "tensorsolve")
    if axes is not None:
        last = [axis_of(i, x.ndim, "axes") for i in axes]
        x = permute(x, axes=(*(i for i in range(x.ndim) if i not in last), *last))
    rest = x.shape[y.ndim :]
    count = math.prod(rest)
    if x.ndim < y.ndim or math.prod(x.shape[: y.ndim]) != count or y.size != count:
        raise MatrixShapeError(f"tensorsolve: shapes {x.shape} and {y.shape} do not make a square system")
    made = solve(reshape_to(x, shape=(count, count)), reshape_to(y, shape=(count,)))
    return reshape_to(made, shape=rest)


@operation(
    samples=lambda rng: [
        Call((regular(rng, 6, 6).reshape(2, 3, 6),), {}),
        Call((regular(rng, 6, 6).reshape(6, 3, 2),), {"ind": 1}),
    ],
    namespace="linalg",
)
def tensorinv(a: Any, ind: int = 2) -> Value:
    """The inverse of the map that ``tensordot(a, x, ind)`` is: the first ``ind`` axes of ``a`` against the others.

    A SingularMatrixError where there is none. Derivative: as ``inv``.

    >>> import jitgrad as jg
    >>> jg.linalg.tensorinv([[[2.0, 0.0], [0.0, 4.0]]]).shape
    (2, 1, 2)
    """
    x = floats(a, "tensorinv")
    count = index_of(ind, "ind")
    if count <= 0:
        raise ArgumentError(f"tensorinv: ind must be positive, not {count}")
    first, rest = x.shape[:count], x.shape[count:]
    size = math.prod(rest)
    if math.prod(first) != size:
        raise MatrixShapeError(f"tensorinv: shape {x.shape} with ind {count} is not square")
    return reshape_to(inverse(reshape_to(x, shape=(size, size))), shape=(*rest, *first))


# --------------------------------------------------------------------------- names that stand here too


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3), uniform(rng, 3, 2)), {})], namespace="linalg")
def matmul(x1: Any, x2: Any) -> Value:
    """Matrix product, as the top-level ``matmul``."""
    return products.matmul(x1, x2)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3), uniform(rng, 3)), {})], namespace="linalg")
def vecdot(x1: Any, x2: Any, *, axis: int = -1) -> Value:
    """Dot products of vectors along an axis, as the top-level ``vecdot``."""
    return products.vecdot(x1, x2, axis=axis)


@operation(
    samples=lambda rng: [Call((uniform(rng, 2, 3), uniform(rng, 3, 2)), {"axes": ((0, 1), (1, 0))})], namespace="linalg"
)
def tensordot(x1: Any, x2: Any, *, axes: Any = 2) -> Value:
    """Sum of products over pairs of axes, as the top-level ``tensordot``."""
    return tensor_products.tensordot(x1, x2, axes)


@operation(samples=lambda rng: [Call((uniform(rng, 2), uniform(rng, 3)), {})], namespace="linalg", remembered=True)
def outer(x1: Any, x2: Any) -> Value:
    """All products of the elements of two vectors; a ShapeError for other shapes. Derivative: the product rule."""
    x, y = as_value(x1, "outer"), as_value(x2, "outer")
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"linalg.outer takes two vectors, not the shapes {x.shape} and {y.shape}")
    return products.outer(x, y)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3), uniform(rng, 2, 3)), {})], namespace="linalg")
def cross(x1: Any, x2: Any, *, axis: int = -1) -> Value:
    """Cross product of vectors of three components, as the top-level ``cross``."""
    return tensor_products.cross(x1, x2, axis=axis)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3, 2),), {})], namespace="linalg", remembered=True)
def matrix_transpose(x: Any) -> Value:
    """The last two axes exchanged, as the top-level ``matrix_transpose``."""
    return shape.matrix_transpose(x)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3, 3),), {"offset": 1})], namespace="linalg", remembered=True)
def diagonal(x: Any, *, offset: int = 0) -> Value:
    """The diagonals of matrices, the last two axes. Derivative: the cotangent in its places."""
    return shape.diagonal(x, offset, -2, -1)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3, 3),), {"offset": -1})], namespace="linalg")
def trace(x: Any, *, offset: int = 0, dtype: Any = None) -> Value:
    """The sums of the diagonals of matrices, the last two axes. Derivative: the cotangent along the diagonal."""
    return shape.trace(x, offset, -2, -1, dtype)
