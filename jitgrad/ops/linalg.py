"""Linear algebra under NumPy's names: norms, determinants, solutions, factorisations, over stacks of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import FLOAT64, is_float, make_aval
from jitgrad.core.dispatch import as_value
from jitgrad.core.linalg_errors import MatrixShapeError
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ConversionError, ShapeError, UnsupportedError
from jitgrad.kernels.kernel import ArrayKernel
from jitgrad.ops import products, shape, tensor_products
from jitgrad.ops.axes import axes_of, axis_of, index_of
from jitgrad.ops.blocks import Call, host, operation, primitive_of, uniform
from jitgrad.ops.elementwise import abs as absolute
from jitgrad.ops.elementwise import sign
from jitgrad.ops.joining import concat
from jitgrad.ops.linear import convert, expand, kept_shape, permute, reshape_to, slice_view, spread, sum_over
from jitgrad.ops.matrices import (
    cholesky_factor,
    determinant,
    eigen,
    eigenvalues_of,
    inverse,
    mm,
    mt,
    orthogonal,
    pseudo_inverse,
    sign_and_log_determinant,
    singular,
    singular_values_of,
    solve_lower,
    solve_matrix,
)
from jitgrad.ops.reduction import count_over, max_over, min_over
from jitgrad.ops.selection import where

Array = np.ndarray[Any, Any]
Axis = int | tuple[int, ...] | None


# --------------------------------------------------------------------------- operands


def _floats(x: Any, what: str) -> Value:
    """A value of a float dtype: integers and booleans become float64."""
    x = as_value(x, what)
    return x if is_float(x.dtype) else convert(x, dtype=FLOAT64)


def _matrices(x: Any, what: str) -> Value:
    x = _floats(x, what)
    if x.ndim < 2:
        raise MatrixShapeError(f"{what} takes matrices, that is at least 2 axes, not the shape {x.shape}")
    return x


def _square(x: Any, what: str) -> Value:
    x = _matrices(x, what)
    if x.shape[-1] != x.shape[-2]:
        raise MatrixShapeError(f"{what} takes square matrices, not the shape {x.shape}")
    return x


def _regular(rng: np.random.Generator, *extents: int) -> Array:
    """Square matrices far from singular ones."""
    return uniform(rng, *extents) + 3.0 * extents[-1] * np.eye(extents[-1])


def _definite(rng: np.random.Generator, *extents: int) -> Array:
    """Symmetric positive definite matrices with eigenvalues well apart."""
    q = np.linalg.qr(uniform(rng, *extents))[0]
    return np.asarray((q * (1.0 + np.arange(extents[-1]))) @ q.swapaxes(-1, -2))


def _apart(rng: np.random.Generator, *extents: int) -> Array:
    """Matrices with singular values well apart."""
    u, s, vh = np.linalg.svd(uniform(rng, *extents), full_matrices=False)
    return np.asarray((u * (1.0 + np.arange(s.shape[-1]))[::-1]) @ vh)


# --------------------------------------------------------------------------- norms


@primitive_of([lambda out, x, r: 1.0 / r, lambda out, x, r: -out / r])
def _share(x, r):
    """x / r, and 0 for 0 / 0; the derivative there is not finite."""
    return scalar.sel((r == 0.0) & (x == 0.0), 0.0, x / r)


@ArrayKernel
def length_kernel(x, out):
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total = scalar.radd(total, np.float64(x[i, j]) * x[i, j])
        if total < 1e-280 or total > 1e300:  # squares were lost: again, with the largest element as the unit
            unit = 0.0
            for j in range(x.shape[1]):
                unit = scalar.maximum(unit, np.float64(scalar.fabs(x[i, j])))
            if unit > 0.0 and unit < np.inf:
                total = 0.0
                for j in range(x.shape[1]):
                    ratio = x[i, j] / unit
                    total = scalar.radd(total, ratio * ratio)
                out[i, 0] = unit * scalar.sqrt(total)
            else:
                out[i, 0] = unit
        else:
            out[i, 0] = scalar.sqrt(total)


@ArrayKernel
def power_length_kernel(x, out, p):
    for i in range(x.shape[0]):
        unit = 0.0
        for j in range(x.shape[1]):
            unit = scalar.maximum(unit, np.float64(scalar.fabs(x[i, j])))
        if not (unit > 0.0 and unit < np.inf):
            unit = 1.0
        total = 0.0
        for j in range(x.shape[1]):
            total += scalar.pow(np.float64(scalar.fabs(x[i, j])) / unit, p)
        out[i, 0] = unit * scalar.pow(total, 1.0 / p)


def _rows(x: Array, axes: tuple[int, ...]) -> Array:
    """The elements along the axes as rows."""
    kept = [i for i in range(x.ndim) if i not in axes]
    count = math.prod(x.shape[i] for i in axes)
    moved = np.ascontiguousarray(x.transpose(*kept, *axes))
    return moved.reshape((x.size // count if count else math.prod(x.shape[i] for i in kept), count))


def _reduced(x: Any, *, axes: tuple[int, ...], **params: Any) -> Any:
    return make_aval(tuple(n for i, n in enumerate(x.shape) if i not in axes), x.dtype)


def _length_slope(out: Value, x: Value, axes: tuple[int, ...]) -> Value:
    return _share(x, spread(out, x.shape, axes))


@host(
    infer=_reduced,
    vjp=lambda g, out, x, *, axes: (spread(g, x.shape, axes) * _length_slope(out, x, axes),),
    jvp=lambda tangents, out, x, *, axes: sum_over(tangents[0] * _length_slope(out, x, axes), axes=axes),
)
def length(x, *, axes):
    """The square root of the sum of squares, without overflow on the way; squares are added in float64."""
    out = np.empty(tuple(n for i, n in enumerate(x.shape) if i not in axes), x.dtype)
    length_kernel(_rows(x, axes), out.reshape(-1, 1))
    return out


def _power_slope(out: Value, x: Value, axes: tuple[int, ...], p: float) -> Value:
    """The derivative of a p-norm: the sign times the share of the element to the power p - 1."""
    return sign(x) * _share(absolute(x), spread(out, x.shape, axes)) ** (p - 1.0)


@host(
    infer=_reduced,
    vjp=lambda g, out, x, *, axes, p: (spread(g, x.shape, axes) * _power_slope(out, x, axes, p),),
    jvp=lambda tangents, out, x, *, axes, p: sum_over(tangents[0] * _power_slope(out, x, axes, p), axes=axes),
)
def power_length(x, *, axes, p):
    """The p-norm along axes, scaled by the largest element."""
    out = np.empty(tuple(n for i, n in enumerate(x.shape) if i not in axes), x.dtype)
    power_length_kernel(_rows(x, axes), out.reshape(-1, 1), p)
    return out


def _order(order: Any, what: str) -> float:
    if isinstance(order, bool) or not isinstance(order, int | float | np.number):
        raise ArgumentError(f"{what}: ord {order!r} is not an order of a norm of vectors; give a number or inf")
    return float(order)


def _vector_norm(x: Value, axes: tuple[int, ...], order: Any, what: str) -> Value:
    p = _order(order, what)
    if p == 2.0:
        return length(x, axes=axes)
    if p == 1.0:
        return sum_over(absolute(x), axes=axes)
    if math.isinf(p):
        if math.prod(x.shape[i] for i in axes) == 0:
            raise ShapeError(f"{what}: the norm of order {order} of no elements is not defined (shape {x.shape})")
        return (max_over if p > 0 else min_over)(absolute(x), axes=axes)
    if p == 0.0:
        return convert(count_over(x, axes=axes), dtype=x.dtype)
    return power_length(x, axes=axes, p=p)


def _matrix_norm(x: Value, axes: tuple[int, int], order: Any, what: str) -> Value:
    """The norm over the axes (rows, columns)."""
    rows, columns = axes
    if order is None or order in ("fro", "f"):
        return length(x, axes=(min(axes), max(axes)))
    if order == "nuc" or order in (2, -2):
        kept = [i for i in range(x.ndim) if i not in axes]
        s = _singular_values(permute(x, axes=(*kept, rows, columns)))
        last = (s.ndim - 1,)
        if order == "nuc":
            return sum_over(s, axes=last)
        if s.shape[-1] == 0:
            raise ShapeError(f"{what}: the norm of order {order} of no elements is not defined (shape {x.shape})")
        whole = ((None, None, None),) * (s.ndim - 1)
        return slice_view(s, index=(*whole, 0 if order == 2 else s.shape[-1] - 1))
    if order in (1, -1, math.inf, -math.inf):
        inner, outer = (rows, columns) if abs(order) == 1 else (columns, rows)
        sums = sum_over(absolute(x), axes=(inner,))
        rest = (outer - (inner < outer),)
        if x.shape[outer] == 0:
            raise ShapeError(f"{what}: the norm of order {order} of no elements is not defined (shape {x.shape})")
        return (max_over if order > 0 else min_over)(sums, axes=rest)
    raise ArgumentError(
        f"{what}: ord {order!r} is not an order of a norm of matrices; those are 'fro', 'nuc', 1, -1, 2, -2, inf, -inf"
    )


def _kept(made: Value, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return reshape_to(made, shape=kept_shape(x.shape, axes)) if keepdims else made


def _norm_samples(rng: np.random.Generator) -> list[Call]:
    v, m, t = uniform(rng, 5), _apart(rng, 3, 4), uniform(rng, 2, 3, 4)
    return [
        Call((v,), {}),
        Call((t,), {}),
        *(Call((v,), {"ord": p}) for p in (1, 2, 3, 2.5, -1, math.inf, -math.inf)),
        *(Call((m,), {"ord": p}) for p in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)),
        Call((t, 3), {"axis": 1, "keepdims": True}),
        Call((t,), {"axis": (0, 2), "keepdims": True}),
        Call((t, 1), {"axis": (2, 0)}),
        Call((t, -math.inf), {"axis": (-1, 1), "keepdims": True}),
        Call((uniform(rng, 0),), {}),
        Call((uniform(rng, 2, 0), 1), {"axis": 1}),
    ]


@operation(samples=_norm_samples, namespace="linalg")
def norm(x: Any, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Value:
    """Norm of vectors (one axis) or matrices (two axes); of all elements without ``ord`` and ``axis``.

    ``ord`` of vectors: 2 by default, any number, inf, -inf, 0 (how many are not zero); of matrices: 'fro' by default,
    'nuc', 1, -1, 2, -2, inf, -inf. Overflows only where the result does. An ArgumentError for another ``ord``.
    Derivative: ``x / norm`` for 2 and 'fro', 0 where the norm is 0 (there the second derivative is NaN); the sign
    for 1; split over the ties for inf.

    >>> import jitgrad as jg
    >>> jg.linalg.norm([3.0, 4.0])
    tensor(5.)
    """
    x = _floats(x, "norm")
    if axis is None:
        every = tuple(range(x.ndim))
        if ord is None or (ord in ("f", "fro") and x.ndim == 2) or (ord == 2 and x.ndim == 1):
            return _kept(length(x, axes=every), x, every, keepdims)
        if x.ndim not in (1, 2):
            raise ShapeError(f"norm: ord {ord!r} of an array of shape {x.shape}: name the one or two axes")
        axis = every
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(axis_of(a, x.ndim) for a in given)
    if len(axes) == 1:
        return _kept(_vector_norm(x, axes, 2 if ord is None else ord, "norm"), x, axes, keepdims)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ArgumentError(f"norm: axis {axis} must name one axis or two different ones")
    return _kept(_matrix_norm(x, (axes[0], axes[1]), ord, "norm"), x, axes, keepdims)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 5),), {}),
        Call((uniform(rng, 2, 3),), {"ord": 1}),
        Call((uniform(rng, 2, 3, 2),), {"axis": (0, 2), "ord": 3}),
        Call((uniform(rng, 2, 3),), {"axis": 0, "keepdims": True, "ord": math.inf}),
        Call((uniform(rng),), {}),
    ],
    namespace="linalg",
)
def vector_norm(x: Any, *, axis: Axis = None, keepdims: bool = False, ord: Any = 2) -> Value:
    """Norm of the elements along axes (all by default), as of one vector.

    ``ord``: any number, inf, -inf, 0. Derivative: as ``norm``.

    >>> import jitgrad as jg
    >>> jg.linalg.vector_norm([[3.0, 4.0], [0.0, 0.0]])
    tensor(5.)
    """
    x = _floats(x, "vector_norm")
    axes = axes_of(axis, x.ndim)
    return _kept(_vector_norm(x, axes, ord, "vector_norm"), x, axes, keepdims)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3),), {}),
        Call((_apart(rng, 2, 3, 3),), {"ord": 2, "keepdims": True}),
        Call((_apart(rng, 2, 2, 3),), {"ord": "nuc"}),
    ],
    namespace="linalg",
)
def matrix_norm(x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Value:
    """Norm of matrices, over the last two axes.

    ``ord``: 'fro', 'nuc', 1, -1, 2, -2, inf, -inf. Derivative: as ``norm``.

    >>> import jitgrad as jg
    >>> jg.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]], ord="nuc")
    tensor(7.)
    """
    x = _matrices(x, "matrix_norm")
    axes = (x.ndim - 2, x.ndim - 1)
    return _kept(_matrix_norm(x, axes, ord, "matrix_norm"), x, axes, keepdims)


# --------------------------------------------------------------------------- determinants


def _square_samples(rng: np.random.Generator) -> list[Call]:
    arrays = _regular(rng, 3, 3), _regular(rng, 2, 1, 2, 2), uniform(rng, 1, 1) + 3.0, uniform(rng, 0, 2, 2)
    return [Call((a,), {}) for a in arrays]


def _det_samples(rng: np.random.Generator) -> list[Call]:
    singular_one = np.outer(uniform(rng, 3), uniform(rng, 3))
    return [*_square_samples(rng), Call((singular_one,), {}), Call((uniform(rng, 0, 0),), {})]


@operation(samples=_det_samples, namespace="linalg")
def det(a: Any) -> Value:
    """Determinants of square matrices.

    Derivative: the matrix of cofactors, from the singular values, so that it is right for singular matrices too; so is
    the second derivative. The third one needs an inverse and raises where there is none.

    >>> import jitgrad as jg
    >>> jg.linalg.det([[2.0, 1.0], [1.0, 2.0]])
    tensor(3.)
    """
    return determinant(_square(a, "det"))


class SlogdetResult(NamedTuple):
    """Sign and logarithm of the absolute value of a determinant."""

    sign: Value
    logabsdet: Value


@operation(samples=_square_samples, namespace="linalg")
def slogdet(a: Any) -> SlogdetResult:
    """Sign, and logarithm of the absolute value, of determinants that may overflow.

    (0, -inf) for a singular matrix, whose derivative is an error. Derivative: ``inv(a).mT`` of the logarithm, 0 of the
    sign.

    >>> import jitgrad as jg
    >>> jg.linalg.slogdet([[2.0, 0.0], [0.0, -0.5]]).sign
    tensor(-1.)
    """
    return SlogdetResult(*sign_and_log_determinant(_square(a, "slogdet")))


# --------------------------------------------------------------------------- solutions


@operation(samples=_square_samples, namespace="linalg")
def inv(a: Any) -> Value:
    """Inverses of square matrices.

    A SingularMatrixError where there is none. Derivative: ``-inv.mT @ g @ inv.mT``.

    >>> import jitgrad as jg
    >>> jg.linalg.inv([[2.0, 0.0], [0.0, 4.0]])
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]])
    """
    return inverse(_square(a, "inv"))


def _solve_samples(rng: np.random.Generator) -> list[Call]:
    return [
        Call((_regular(rng, 3, 3), uniform(rng, 3)), {}),
        Call((_regular(rng, 3, 3), uniform(rng, 3, 2)), {}),
        Call((_regular(rng, 2, 3, 3), uniform(rng, 3)), {}),
        Call((_regular(rng, 2, 3, 3), uniform(rng, 1, 3, 2)), {}),
        Call((_regular(rng, 3, 3), uniform(rng, 2, 3, 1)), {}),
        Call((_regular(rng, 2, 2), uniform(rng, 2, 0)), {}),
    ]


@operation(samples=_solve_samples, namespace="linalg")
def solve(a: Any, b: Any) -> Value:
    """The solution ``x`` of ``a @ x = b``; ``b`` is one vector (1-d) or matrices, whose leading axes broadcast with
    those of ``a``.

    A SingularMatrixError where there is none, a ShapeError where the extents differ.
    Derivative: ``gb = solve(a.mT, g)`` and ``-gb @ x.mT``.

    >>> import jitgrad as jg
    >>> jg.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0])
    tensor([1. , 0.5])
    """
    a, b = products.same_dtype(_square(a, "solve"), _floats(b, "solve"))
    if b.ndim == 0 or b.shape[-1 if b.ndim == 1 else -2] != a.shape[-1]:
        raise MatrixShapeError(f"solve: matrices of shape {a.shape} and right-hand sides of shape {b.shape} do not fit")
    if b.ndim == 1:
        made = solve(a, reshape_to(b, shape=(b.shape[0], 1)))
        return reshape_to(made, shape=made.shape[:-1])
    return solve_matrix(*_aligned(a, b, "solve"), t=False)


def _aligned(a: Value, b: Value, what: str) -> tuple[Value, Value]:
    """Two stacks, broadcast to the same length."""
    if a.shape[:-2] == b.shape[:-2]:
        return a, b
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ShapeError(f"{what}: the leading axes of shapes {a.shape} and {b.shape} do not broadcast") from None
    return expand(a, shape=(*batch, *a.shape[-2:])), expand(b, shape=(*batch, *b.shape[-2:]))


def _solve_triangular_reference(a: Array, b: Array, *, lower: bool = False) -> Any:
    return np.linalg.solve(np.tril(a) if lower else np.triu(a), b)


@operation(
    samples=lambda rng: [
        Call((_regular(rng, 3, 3), uniform(rng, 3)), {}),
        Call((_regular(rng, 3, 3), uniform(rng, 3, 2)), {"lower": True}),
        Call((_regular(rng, 2, 3, 3), uniform(rng, 3, 1)), {"lower": True}),
    ],
    namespace="linalg",
    reference=_solve_triangular_reference,
)
def solve_triangular(a: Any, b: Any, *, lower: bool = False) -> Value:
    """The solution ``x`` of ``triu(a) @ x = b`` (``tril(a)`` if ``lower``), by substitution; shapes as in ``solve``.

    The other triangle is not read. A zero on the diagonal gives infinities or NaN.
    Derivative: as ``solve``, the triangle of it.

    >>> import jitgrad as jg
    >>> jg.linalg.solve_triangular([[2.0, 1.0], [0.0, 4.0]], [2.0, 4.0])
    tensor([0.5, 1. ])
    """
    a, b = products.same_dtype(_square(a, "solve_triangular"), _floats(b, "solve_triangular"))
    if b.ndim == 0 or b.shape[-1 if b.ndim == 1 else -2] != a.shape[-1]:
        raise MatrixShapeError(f"solve_triangular: shapes {a.shape} and {b.shape} do not fit")
    if b.ndim == 1:
        made = solve_triangular(a, reshape_to(b, shape=(b.shape[0], 1)), lower=lower)
        return reshape_to(made, shape=made.shape[:-1])
    a, b = _aligned(a, b, "solve_triangular")
    return solve_lower(a, b, t=False) if lower else solve_lower(mt(a), b, t=True)


def _cutoff(a: Value, given: Any, what: str) -> float:
    if not isinstance(given, int | float | np.number) or isinstance(given, bool):
        raise UnsupportedError(f"{what}: the tolerance must be a plain number, not {given!r}")
    return float(given)


@operation(
    samples=lambda rng: [
        Call((_apart(rng, 3, 2),), {}),
        Call((_apart(rng, 2, 2, 3),), {}),
        Call((_apart(rng, 3, 3),), {"rcond": 1e-8}),
    ],
    namespace="linalg",
)
def pinv(a: Any, rcond: float | None = None, *, rtol: float | None = None) -> Value:
    """Pseudo-inverses; singular values up to ``rcond`` times the largest count as 0.

    The default is ``max(m, n)`` times the precision of the dtype, at least 1e-15.
    Derivative: that of Golub and Pereyra, right where the rank stays what it is.

    >>> import jitgrad as jg
    >>> jg.linalg.pinv([[2.0], [0.0]])
    tensor([[0.5, 0. ]])
    """
    x = _matrices(a, "pinv")
    if rcond is not None and rtol is not None:
        raise ArgumentError("pinv: rcond and rtol are the same tolerance; give one of them")
    given = rtol if rcond is None else rcond
    if given is None:
        given = max(1e-15, max(x.shape[-2:]) * float(np.finfo(x.dtype).eps))
    return pseudo_inverse(x, cutoff=_cutoff(x, given, "pinv"))


# --------------------------------------------------------------------------- factorisations


@operation(
    samples=lambda rng: [
        Call((_definite(rng, 3, 3),), {}),
        Call((_definite(rng, 2, 3, 3),), {}),
        Call((_definite(rng, 3, 3),), {"upper": True}),
        Call((uniform(rng, 0, 0),), {}),
    ],
    namespace="linalg",
)
def cholesky(a: Any, *, upper: bool = False) -> Value:
    """Cholesky factors of symmetric positive definite matrices: lower triangular ``l`` with ``a = l @ l.mT``, or upper
    triangular ``l.mT``.

    A NotPositiveDefiniteError where there is none, a NotSymmetricError where ``a`` is clearly not symmetric or only one
    triangle is stored; it is a function of the symmetric part. Derivative: symmetric, from two triangular solutions.

    >>> import jitgrad as jg
    >>> jg.linalg.cholesky([[4.0, 2.0], [2.0, 5.0]])
    tensor([[2., 0.],
            [1., 2.]])
    """
    factor = cholesky_factor(_square(a, "cholesky"))
    return mt(factor) if upper else factor


class EighResult(NamedTuple):
    """Eigenvalues and eigenvectors of a symmetric matrix."""

    eigenvalues: Value
    eigenvectors: Value


def _is_upper(triangle: Any, what: str) -> bool:
    if not isinstance(triangle, str) or triangle.upper() not in ("L", "U"):
        raise ArgumentError(f"{what}: UPLO must be 'L' or 'U', not {triangle!r}")
    return triangle.upper() == "U"


@operation(
    samples=lambda rng: [
        Call((_definite(rng, 3, 3),), {}),
        Call((_definite(rng, 2, 3, 3) - 1.3 * np.eye(3),), {"UPLO": "U"}),
    ],
    namespace="linalg",
)
def eigh(a: Any, UPLO: str = "L") -> EighResult:
    """Ascending eigenvalues, and orthonormal eigenvectors as columns, of symmetric matrices.

    A NotSymmetricError where ``a`` is clearly not symmetric or only one triangle is stored: it is a function of the
    symmetric part, whichever triangle ``UPLO`` names. NaN where ``a`` is not finite.
    Derivative: eigenvalues have ``v @ diag(g) @ v.mT``, equal ones too; eigenvectors divide by differences of
    eigenvalues, so that equal ones make it infinite or NaN.

    >>> import jitgrad as jg
    >>> jg.linalg.eigh([[2.0, 0.0], [0.0, 1.0]]).eigenvalues
    tensor([1., 2.])
    """
    upper = _is_upper(UPLO, "eigh")
    x = _square(a, "eigh")
    w, v = eigen(x, upper=upper)
    return EighResult(eigenvalues_of(x, w, v), v)


@operation(
    samples=lambda rng: [Call((_definite(rng, 3, 3),), {}), Call((_definite(rng, 2, 2, 2),), {})], namespace="linalg"
)
def eigvalsh(a: Any, UPLO: str = "L") -> Value:
    """Ascending eigenvalues of symmetric matrices; errors and derivative as in ``eigh``.

    >>> import jitgrad as jg
    >>> jg.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]])
    tensor([1., 2.])
    """
    upper = _is_upper(UPLO, "eigvalsh")
    x = _square(a, "eigvalsh")
    return eigenvalues_of(x, *eigen(x, upper=upper))


class SVDResult(NamedTuple):
    """Left singular vectors (columns), singular values, right singular vectors (rows)."""

    U: Value
    S: Value
    Vh: Value


def _singular_values(x: Value) -> Value:
    return singular_values_of(x, *singular(x))


@operation(
    samples=lambda rng: [
        Call((_apart(rng, 3, 3),), {}),
        Call((_apart(rng, 3, 2),), {"full_matrices": False}),
        Call((_apart(rng, 2, 2, 4),), {"full_matrices": False}),
        Call((_apart(rng, 2, 3),), {"compute_uv": False}),
    ],
    namespace="linalg",
)
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Singular value decompositions ``a = U @ diag(S) @ Vh``, S descending; S alone with ``compute_uv=False``.

    ``full_matrices`` only of square matrices: the further vectors of others are arbitrary and have no derivative (an
    UnsupportedError). NaN where ``a`` is not finite.
    Derivative: of S ``U @ diag(g) @ Vh``, 0 for singular values that are 0; of the vectors with differences of squared
    singular values, so that equal ones make it infinite or NaN.

    >>> import jitgrad as jg
    >>> jg.linalg.svd([[0.0, 2.0], [1.0, 0.0]]).S
    tensor([2., 1.])
    """
    x = _matrices(a, "svd")
    if not compute_uv:
        return _singular_values(x)
    if full_matrices and x.shape[-1] != x.shape[-2]:
        raise UnsupportedError(
            f"svd: matrices of shape {x.shape} with full_matrices=True: the vectors beyond {min(x.shape[-2:])} are "
            "arbitrary and have no derivative; say full_matrices=False"
        )
    u, s, vh = singular(x)
    return SVDResult(u, singular_values_of(x, u, s, vh), vh)


@operation(samples=lambda rng: [Call((_apart(rng, 3, 2),), {}), Call((_apart(rng, 2, 2, 3),), {})], namespace="linalg")
def svdvals(x: Any) -> Value:
    """Descending singular values; derivative as in ``svd``.

    >>> import jitgrad as jg
    >>> jg.linalg.svdvals([[0.0, 2.0], [1.0, 0.0]])
    tensor([2., 1.])
    """
    return _singular_values(_matrices(x, "svdvals"))


class QRResult(NamedTuple):
    """Orthonormal columns, and the upper triangular rest."""

    Q: Value
    R: Value


@operation(
    samples=lambda rng: [
        Call((_regular(rng, 3, 3),), {}),
        Call((_apart(rng, 4, 2),), {}),
        Call((np.concatenate([_regular(rng, 2, 2), uniform(rng, 2, 2)], 1),), {}),
        Call((_regular(rng, 2, 3, 3),), {"mode": "r"}),
    ],
    namespace="linalg",
)
def qr(a: Any, mode: str = "reduced") -> Any:
    """QR factorisations ``a = Q @ R`` with orthonormal columns of Q and upper triangular R; R alone with ``mode="r"``.

    "complete" is offered for matrices with no more rows than columns, where it is the same (else an UnsupportedError).
    Derivative: by triangular solutions with R; infinite or NaN where the first columns are linearly dependent.

    >>> import jitgrad as jg
    >>> jg.abs(jg.linalg.qr([[0.0, 2.0], [-1.0, 0.0]], mode="r"))
    tensor([[1., 0.],
            [0., 2.]])
    """
    if mode not in ("reduced", "r", "complete"):
        raise UnsupportedError(f"qr: mode {mode!r} is not supported; use 'reduced' or 'r'")
    x = _matrices(a, "qr")
    m, n = x.shape[-2:]
    if mode == "complete" and m > n:
        raise UnsupportedError(f"qr: mode 'complete' of shape {x.shape} has arbitrary columns; use 'reduced'")
    if m >= n:
        q, r = orthogonal(x)
    else:
        whole = ((None, None, None),) * (x.ndim - 1)
        q, first = orthogonal(slice_view(x, index=(*whole, (None, m, None))))
        rest = mm(q, slice_view(x, index=(*whole, (m, None, None))), ta=True)
        r = concat((first, rest), axis=-1)
    return r if mode == "r" else QRResult(q, r)


# --------------------------------------------------------------------------- what is made of these


@operation(
    samples=lambda rng: (
        [Call((_regular(rng, 3, 3), n), {}) for n in (0, 1, 3, -2)] + [Call((_regular(rng, 2, 2, 2), 5), {})]
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
        return where(False, x, np.eye(x.shape[-1], dtype=x.dtype))  # stays in the graph, with gradient 0
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


@operation(
    samples=lambda rng: [
        Call((_apart(rng, 3, 3),), {}),
        Call((_apart(rng, 3, 2),), {}),
        Call((_regular(rng, 3, 3), 1), {}),
        Call((_regular(rng, 2, 3, 3), "fro"), {}),
        Call((_apart(rng, 3, 3), -2), {}),
    ],
    namespace="linalg",
)
def cond(x: Any, p: Any = None) -> Value:
    """Condition numbers: the norm times the norm of the inverse, by singular values for ``p`` None, 2 and -2.

    ``p``: None, 'fro', 'nuc', 1, -1, 2, -2, inf, -inf. inf where a matrix is singular (a SingularMatrixError for those
    ``p`` that need the inverse). Derivative: of the norms.

    >>> import jitgrad as jg
    >>> jg.linalg.cond([[4.0, 0.0], [0.0, 2.0]])
    tensor(2.)
    """
    a = _matrices(x, "cond")
    if p in (None, 2, -2):
        s = _singular_values(a)
        if s.shape[-1] == 0:
            raise MatrixShapeError(f"cond is not defined for no elements (shape {a.shape})")
        whole = ((None, None, None),) * (s.ndim - 1)
        first, last = slice_view(s, index=(*whole, 0)), slice_view(s, index=(*whole, s.shape[-1] - 1))
        return last / first if p == -2 else first / last
    a = _square(a, "cond")
    axes = (a.ndim - 2, a.ndim - 1)
    return _matrix_norm(a, axes, p, "cond") * _matrix_norm(inverse(a), axes, p, "cond")


@operation(samples=lambda rng: [Call((_apart(rng, 2, 3, 2),), {})], nondiff=True, namespace="linalg")
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
    x = _floats(x, "matrix_rank")
    s = _singular_values(x)
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
        Call((_apart(rng, 4, 2), uniform(rng, 4)), {}),
        Call((_apart(rng, 4, 2), uniform(rng, 4, 3)), {}),
        Call((_apart(rng, 2, 3), uniform(rng, 2)), {}),
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
    x, y = products.same_dtype(_matrices(a, "lstsq"), _floats(b, "lstsq"))
    if x.ndim != 2 or y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        raise MatrixShapeError(f"lstsq: a matrix of shape {x.shape} and right-hand sides of shape {y.shape} do not fit")
    cutoff = max(x.shape) * float(np.finfo(x.dtype).eps) if rcond is None else _cutoff(x, rcond, "lstsq")
    solution = products.matmul(pseudo_inverse(x, cutoff=cutoff), y)
    s = _singular_values(x)
    rank = matrix_rank(x, rtol=cutoff)
    rest = y - products.matmul(x, solution)
    squares = sum_over(rest * rest, axes=(0,))
    squares = reshape_to(squares, shape=(y.shape[1] if y.ndim == 2 else 1,))
    try:
        full = x.shape[0] > x.shape[1] and int(rank) == x.shape[1]
    except ConversionError:  # traced: the shape of a result cannot depend on a rank that is not known
        full = x.shape[0] > x.shape[1]
    residuals = squares if full else slice_view(squares, index=((0, 0, None),))
    return LstsqResult(solution, residuals, convert(rank, dtype=np.dtype(np.int32)), s)


@operation(
    samples=lambda rng: [
        Call((_regular(rng, 6, 6).reshape(2, 3, 6), uniform(rng, 2, 3)), {}),
        Call((_regular(rng, 6, 6).reshape(2, 3, 3, 2).transpose(2, 0, 1, 3), uniform(rng, 2, 3)), {"axes": (0,)}),
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
    x, y = _floats(a, "tensorsolve"), _floats(b, "tensorsolve")
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
        Call((_regular(rng, 6, 6).reshape(2, 3, 6),), {}),
        Call((_regular(rng, 6, 6).reshape(6, 3, 2),), {"ind": 1}),
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
    x = _floats(a, "tensorinv")
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


@operation(samples=lambda rng: [Call((uniform(rng, 2), uniform(rng, 3)), {})], namespace="linalg")
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


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3, 2),), {})], namespace="linalg")
def matrix_transpose(x: Any) -> Value:
    """The last two axes exchanged, as the top-level ``matrix_transpose``."""
    return shape.matrix_transpose(x)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3, 3),), {"offset": 1})], namespace="linalg")
def diagonal(x: Any, *, offset: int = 0) -> Value:
    """The diagonals of matrices, the last two axes. Derivative: the cotangent in its places."""
    return shape.diagonal(x, offset, -2, -1)


@operation(samples=lambda rng: [Call((uniform(rng, 2, 3, 3),), {"offset": -1})], namespace="linalg")
def trace(x: Any, *, offset: int = 0, dtype: Any = None) -> Value:
    """The sums of the diagonals of matrices, the last two axes. Derivative: the cotangent along the diagonal."""
    return shape.trace(x, offset, -2, -1, dtype)
