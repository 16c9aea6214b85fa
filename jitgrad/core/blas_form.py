"""The plain-Python meaning of the BLAS and LAPACK names of array kernels; what each one computes.

All arrays are C-contiguous and of one dtype, float64 or float32. What takes ``a`` may overwrite it. The result is 0, or
LAPACK's ``info``: which pivot or minor failed, or that an iteration did not converge. Compiled, the same names are
calls of SciPy's BLAS and LAPACK (``jitgrad.kernels.blas``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["gemm", "gemv", "geqrf", "gesdd", "gesv", "getrf", "orgqr", "pivot_type", "potrf", "syevd"]

Array: TypeAlias = np.ndarray[Any, Any]

pivot_type = np.int32
"""The dtype of vectors of pivots."""


def gemm(a: Array, b: Array, out: Array, ta: bool, tb: bool) -> int:
    """``out = op(a) @ op(b)``; the flags transpose."""
    np.matmul(a.T if ta else a, b.T if tb else b, out=out)
    return 0


def gemv(a: Array, x: Array, out: Array, ta: bool) -> int:
    """``out += op(a) @ x``."""
    out += np.matmul(a.T if ta else a, x)
    return 0


def getrf(a: Array, pivots: Array) -> int:
    """LU factors of ``a.T`` in place of ``a``: ``a[j, i]`` holds U (i <= j) and L (i > j); row i was swapped with row
    ``pivots[i] - 1``. A positive result: the diagonal of U has a zero there."""
    n = len(a)
    lu = a.T
    info = 0
    for i in range(n):
        k = i + int(np.argmax(np.abs(lu[i:, i])))
        pivots[i] = k + 1
        if lu[k, i] == 0:
            info = info or i + 1
            continue
        if k != i:
            lu[[i, k]] = lu[[k, i]]
        lu[i + 1 :, i] /= lu[i, i]
        lu[i + 1 :, i + 1 :] -= np.outer(lu[i + 1 :, i], lu[i, i + 1 :])
    return info


def gesv(a: Array, b: Array, pivots: Array) -> int:
    """Rows of ``b`` become the solutions ``x`` of ``a.T @ x = row``. Positive: singular."""
    try:
        b[...] = np.linalg.solve(a.T, b.T).T
    except np.linalg.LinAlgError:
        return 1
    return 0


def potrf(a: Array, upper: bool) -> int:
    """The Cholesky factor in the lower (or upper) triangle of ``a``, of the matrix in that triangle; the other triangle
    stays as it is. Positive: not positive definite."""
    triangle = np.triu(a).T if upper else np.tril(a)
    try:
        factor = np.linalg.cholesky(triangle)
    except np.linalg.LinAlgError:
        return 1
    where = np.tril(np.ones(a.shape, bool))
    a[where.T if upper else where] = (factor.T if upper else factor)[where.T if upper else where]
    return 0


def syevd(a: Array, w: Array, vectors: bool, upper: bool) -> int:
    """Ascending eigenvalues of the symmetric matrix in the lower (or upper) triangle of ``a``; its rows become the
    eigenvectors, if wanted. Positive: did not converge."""
    try:
        if vectors:
            w[...], columns = np.linalg.eigh(a.T, "L" if upper else "U")
            a[...] = columns.T
        else:
            w[...] = np.linalg.eigvalsh(a.T, "L" if upper else "U")
    except np.linalg.LinAlgError:
        return 1
    return 0


def gesdd(a: Array, s: Array, u: Array, vh: Array) -> int:
    """``a = u @ diag(s) @ vh`` with descending ``s``, the reduced form. Positive: did not converge."""
    try:
        right, s[...], left = np.linalg.svd(a.T, full_matrices=False)
    except np.linalg.LinAlgError:
        return 1
    u[...], vh[...] = left.T, right.T
    return 0


def geqrf(a: Array, tau: Array) -> int:
    """The QR factors of ``a.T`` in place of ``a``: R in ``a[j, i]`` (i <= j), reflectors below."""
    a[...], tau[...] = np.linalg.qr(a.T, "raw")
    return 0


def orgqr(a: Array, tau: Array) -> int:
    """``a.T`` becomes the matrix with orthonormal columns that the reflectors of ``geqrf`` stand for."""
    k, m = a.shape
    q = np.eye(m, k, dtype=a.dtype)
    for i in reversed(range(k)):
        v = np.zeros(m, a.dtype)
        v[i] = 1
        v[i + 1 :] = a[i, i + 1 :]
        q -= tau[i] * np.outer(v, v @ q)
    a[...] = q.T
    return 0
