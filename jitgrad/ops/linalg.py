"""Linear algebra under NumPy's names, over stacks of matrices: determinants, solutions, factorisations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jitgrad.core.linalg_errors import MatrixShapeError
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError, UnsupportedError
from jitgrad.ops import products
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.factorisations import (
    cholesky_factor,
    eigen,
    eigenvalues_of,
    orthogonal,
    singular,
    singular_values,
    singular_values_of,
)
from jitgrad.ops.joining import concat
from jitgrad.ops.linear import expand, reshape_to, slice_view
from jitgrad.ops.matrices import (
    determinant,
    inverse,
    mm,
    mt,
    pseudo_inverse,
    sign_and_log_determinant,
    solve_lower,
    solve_matrix,
)
from jitgrad.ops.matrix_operands import (
    Array,
    apart,
    definite,
    floats,
    regular,
    square_matrices,
    stacks_of_matrices,
)

# --------------------------------------------------------------------------- determinants


def _square_samples(rng: np.random.Generator) -> list[Call]:
    arrays = regular(rng, 3, 3), regular(rng, 2, 1, 2, 2), uniform(rng, 1, 1) + 3.0, uniform(rng, 0, 2, 2)
    return [Call((a,), {}) for a in arrays]


def _det_samples(rng: np.random.Generator) -> list[Call]:
    singular_one = np.outer(uniform(rng, 3), uniform(rng, 3))
    return [*_square_samples(rng), Call((singular_one,), {}), Call((uniform(rng, 0, 0),), {})]


@operation(samples=_det_samples, namespace="linalg", remembered=True)
def det(a: Any) -> Value:
    """Determinants of square matrices.

    Derivative: the matrix of cofactors, from the singular values, so that it is right for singular matrices too; so is
    the second derivative. The third one needs an inverse and raises where there is none.

    >>> import jitgrad as jg
    >>> jg.linalg.det([[2.0, 1.0], [1.0, 2.0]])
    tensor(3.)
    """
    return determinant(square_matrices(a, "det"))


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
    return SlogdetResult(*sign_and_log_determinant(square_matrices(a, "slogdet")))


# --------------------------------------------------------------------------- solutions


@operation(samples=_square_samples, namespace="linalg", remembered=True)
def inv(a: Any) -> Value:
    """Inverses of square matrices.

    A SingularMatrixError where there is none. Derivative: ``-inv.mT @ g @ inv.mT``.

    >>> import jitgrad as jg
    >>> jg.linalg.inv([[2.0, 0.0], [0.0, 4.0]])
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]])
    """
    return inverse(square_matrices(a, "inv"))


def _solve_samples(rng: np.random.Generator) -> list[Call]:
    return [
        Call((regular(rng, 3, 3), uniform(rng, 3)), {}),
        Call((regular(rng, 3, 3), uniform(rng, 3, 2)), {}),
        Call((regular(rng, 2, 3, 3), uniform(rng, 3)), {}),
        Call((regular(rng, 2, 3, 3), uniform(rng, 1, 3, 2)), {}),
        Call((regular(rng, 3, 3), uniform(rng, 2, 3, 1)), {}),
        Call((regular(rng, 2, 2), uniform(rng, 2, 0)), {}),
    ]


@operation(samples=_solve_samples, namespace="linalg", remembered=True)
def solve(a: Any, b: Any) -> Value:
    """The solution ``x`` of ``a @ x = b``; ``b`` is one vector (1-d) or matrices, whose leading axes broadcast with
    those of ``a``.

    A SingularMatrixError where there is none, a ShapeError where the extents differ.
    Derivative: ``gb = solve(a.mT, g)`` and ``-gb @ x.mT``.

    >>> import jitgrad as jg
    >>> jg.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0])
    tensor([1. , 0.5])
    """
    a, b = products.same_dtype(square_matrices(a, "solve"), floats(b, "solve"))
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
        Call((regular(rng, 3, 3), uniform(rng, 3)), {}),
        Call((regular(rng, 3, 3), uniform(rng, 3, 2)), {"lower": True}),
        Call((regular(rng, 2, 3, 3), uniform(rng, 3, 1)), {"lower": True}),
    ],
    namespace="linalg",
    reference=_solve_triangular_reference,
    remembered=True,
)
def solve_triangular(a: Any, b: Any, *, lower: bool = False) -> Value:
    """The solution ``x`` of ``triu(a) @ x = b`` (``tril(a)`` if ``lower``), by substitution; shapes as in ``solve``.

    The other triangle is not read. A zero on the diagonal gives infinities or NaN.
    Derivative: as ``solve``, the triangle of it.

    >>> import jitgrad as jg
    >>> jg.linalg.solve_triangular([[2.0, 1.0], [0.0, 4.0]], [2.0, 4.0])
    tensor([0.5, 1. ])
    """
    a, b = products.same_dtype(square_matrices(a, "solve_triangular"), floats(b, "solve_triangular"))
    if b.ndim == 0 or b.shape[-1 if b.ndim == 1 else -2] != a.shape[-1]:
        raise MatrixShapeError(f"solve_triangular: shapes {a.shape} and {b.shape} do not fit")
    if b.ndim == 1:
        made = solve_triangular(a, reshape_to(b, shape=(b.shape[0], 1)), lower=lower)
        return reshape_to(made, shape=made.shape[:-1])
    a, b = _aligned(a, b, "solve_triangular")
    return solve_lower(a, b, t=False) if lower else solve_lower(mt(a), b, t=True)


def cutoff_of(given: Any, what: str) -> float:
    """A tolerance relative to the largest singular value."""
    if not isinstance(given, int | float | np.number) or isinstance(given, bool):
        raise UnsupportedError(f"{what}: the tolerance must be a plain number, not {given!r}")
    return float(given)


@operation(
    samples=lambda rng: [
        Call((apart(rng, 3, 2),), {}),
        Call((apart(rng, 2, 2, 3),), {}),
        Call((apart(rng, 3, 3),), {"rcond": 1e-8}),
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
    x = stacks_of_matrices(a, "pinv")
    if rcond is not None and rtol is not None:
        raise ArgumentError("pinv: rcond and rtol are the same tolerance; give one of them")
    given = rtol if rcond is None else rcond
    if given is None:
        given = max(1e-15, max(x.shape[-2:]) * float(np.finfo(x.dtype).eps))
    return pseudo_inverse(x, cutoff=cutoff_of(given, "pinv"))


# --------------------------------------------------------------------------- factorisations


@operation(
    samples=lambda rng: [
        Call((definite(rng, 3, 3),), {}),
        Call((definite(rng, 2, 3, 3),), {}),
        Call((definite(rng, 3, 3),), {"upper": True}),
        Call((uniform(rng, 0, 0),), {}),
    ],
    namespace="linalg",
    remembered=True,
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
    factor = cholesky_factor(square_matrices(a, "cholesky"))
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
        Call((definite(rng, 3, 3),), {}),
        Call((definite(rng, 2, 3, 3) - 1.3 * np.eye(3),), {"UPLO": "U"}),
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
    x = square_matrices(a, "eigh")
    w, v = eigen(x, upper=upper)
    return EighResult(eigenvalues_of(x, w, v), v)


@operation(
    samples=lambda rng: [Call((definite(rng, 3, 3),), {}), Call((definite(rng, 2, 2, 2),), {})], namespace="linalg"
)
def eigvalsh(a: Any, UPLO: str = "L") -> Value:
    """Ascending eigenvalues of symmetric matrices; errors and derivative as in ``eigh``.

    >>> import jitgrad as jg
    >>> jg.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]])
    tensor([1., 2.])
    """
    upper = _is_upper(UPLO, "eigvalsh")
    x = square_matrices(a, "eigvalsh")
    return eigenvalues_of(x, *eigen(x, upper=upper))


class SVDResult(NamedTuple):
    """Left singular vectors (columns), singular values, right singular vectors (rows)."""

    U: Value
    S: Value
    Vh: Value


@operation(
    samples=lambda rng: [
        Call((apart(rng, 3, 3),), {}),
        Call((apart(rng, 3, 2),), {"full_matrices": False}),
        Call((apart(rng, 2, 2, 4),), {"full_matrices": False}),
        Call((apart(rng, 2, 3),), {"compute_uv": False}),
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
    x = stacks_of_matrices(a, "svd")
    if not compute_uv:
        return singular_values(x)
    if full_matrices and x.shape[-1] != x.shape[-2]:
        raise UnsupportedError(
            f"svd: matrices of shape {x.shape} with full_matrices=True: the vectors beyond {min(x.shape[-2:])} are "
            "arbitrary and have no derivative; say full_matrices=False"
        )
    u, s, vh = singular(x)
    return SVDResult(u, singular_values_of(x, u, s, vh), vh)


@operation(samples=lambda rng: [Call((apart(rng, 3, 2),), {}), Call((apart(rng, 2, 2, 3),), {})], namespace="linalg")
def svdvals(x: Any) -> Value:
    """Descending singular values; derivative as in ``svd``.

    >>> import jitgrad as jg
    >>> jg.linalg.svdvals([[0.0, 2.0], [1.0, 0.0]])
    tensor([2., 1.])
    """
    return singular_values(stacks_of_matrices(x, "svdvals"))


class QRResult(NamedTuple):
    """Orthonormal columns, and the upper triangular rest."""

    Q: Value
    R: Value


@operation(
    samples=lambda rng: [
        Call((regular(rng, 3, 3),), {}),
        Call((apart(rng, 4, 2),), {}),
        Call((np.concatenate([regular(rng, 2, 2), uniform(rng, 2, 2)], 1),), {}),
        Call((regular(rng, 2, 3, 3),), {"mode": "r"}),
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
    x = stacks_of_matrices(a, "qr")
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
