"""The primitives that factorise stacks of matrices: Cholesky, eigenvalues, singular values, QR.

Each runs one array kernel over LAPACK; its rules are products and solutions again, so that every order of derivative
is there. What symmetric input alone makes sense of is a function of the symmetric part of the matrix, hence its
gradients are symmetric.

Sources of the rules: M. B. Giles, "An extended collection of matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008); J. Townsend, "Differentiating the singular value decomposition" (2016);
S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions" (2010), for QR.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitgrad.core import blas_form as blas
from jitgrad.core import linalg_errors as faults
from jitgrad.core import scalar
from jitgrad.core.aval import ShapedArray, make_aval
from jitgrad.core.primitive import ArrayCall, Value
from jitgrad.kernels.kernel import ArrayKernel, KernelPart
from jitgrad.ops.array_calls import axes_alike, rows, stack
from jitgrad.ops.array_primitives import array_call
from jitgrad.ops.blocks import host
from jitgrad.ops.elementwise import sign
from jitgrad.ops.linear import copy_of, sum_over
from jitgrad.ops.matrices import (
    Tangents,
    copied,
    identity,
    lower,
    mm,
    mt,
    same_aval,
    solve_lower,
    square_alike,
)
from jitgrad.ops.products import column, row


def symmetric(x: Value) -> Value:
    """The symmetric part."""
    return (x + mt(x)) * 0.5


# Of a matrix that is clearly not symmetric, or stored as one triangle, the symmetric part is not what was meant: an
# error. The bounds let rounding and the steps of numerical differentiation pass.


@KernelPart
def halved(a, out):
    """The symmetric part of a matrix; whether the matrix is meant to be symmetric."""
    largest = 0.0
    apart = 0.0
    below = 0.0
    above = 0.0
    for i in range(a.shape[0]):
        for j in range(a.shape[0]):
            out[i, j] = (a[i, j] + a[j, i]) / 2
            largest = max(largest, scalar.fabs(a[i, j]))
            apart = max(apart, scalar.fabs(a[i, j] - a[j, i]))
            if i > j:
                below = max(below, scalar.fabs(a[i, j]))
                above = max(above, scalar.fabs(a[j, i]))
    return not (apart > 0.1 * largest or (min(below, above) == 0.0 and apart > 1e-3 * largest))


# --------------------------------------------------------------------------- Cholesky


@ArrayKernel
def cholesky_kernel(a, out):
    n = a.shape[1]
    for c in range(a.shape[0]):
        if not halved(a[c], out[c]):
            raise faults.NotSymmetricError
        if n > 0 and blas.potrf(out[c], False) > 0:
            raise faults.NotPositiveDefiniteError
        for i in range(n):
            for j in range(i + 1, n):
                out[c, i, j] = 0


def _cholesky_vjp(g: Value, out: Value, a: Value) -> tuple[Value, ...]:
    inner = lower(mm(out, g, ta=True), diagonal=0.5)
    half = solve_lower(out, inner, t=True)
    return (symmetric(solve_lower(out, mt(half), t=True)),)


def _cholesky_jvp(tangents: Tangents, out: Value, a: Value) -> Value:
    half = solve_lower(out, symmetric(tangents[0]), t=False)
    return mm(out, lower(solve_lower(out, mt(half), t=False), diagonal=0.5))


@array_call(infer=same_aval, vjp=_cholesky_vjp, jvp=_cholesky_jvp, called="cholesky")
def cholesky_factor(a, out):
    """The lower triangular factor of the symmetric part."""
    return ArrayCall(cholesky_kernel, (stack(a), stack(out)), square_alike(a, out))


# --------------------------------------------------------------------------- eigenvalues


@ArrayKernel
def eigen_kernel(a, w, v, upper):
    n = a.shape[1]
    work = np.empty((n, n), a.dtype)
    for c in range(a.shape[0]):
        meant = halved(a[c], work)
        if not copied(work, v[c]):
            w[c, :] = np.nan
            v[c, :, :] = np.nan
        elif n > 0:
            if not meant:
                raise faults.NotSymmetricError
            if blas.syevd(work, w[c], True, not upper) > 0:
                raise faults.LinAlgError
            for i in range(n):
                for j in range(n):
                    v[c, i, j] = work[j, i]


def _gaps(w: Value) -> Value:
    """``w[j] - w[i]`` at (i, j), and 1 on the diagonal, which no rule reads."""
    return row(w) - column(w) + identity(w)


def _eigen_vjp(g: Sequence[Value], out: Sequence[Value], a: Value, *, upper: bool) -> tuple[Value, ...]:
    gw, gv = g
    v = out[1]
    inner = mm(v, gv, ta=True)
    turn = (inner - mt(inner)) * 0.5 / _gaps(eigenvalues_of(a, *out))
    return (mm(mm(v, turn) + v * row(gw), v, tb=True),)


def _eigen_jvp(tangents: Tangents, out: Sequence[Value], a: Value, *, upper: bool) -> tuple[Value, ...]:
    v = out[1]
    inner = mm(v, mm(symmetric(tangents[0]), v), ta=True)
    turn = (inner - inner * identity(inner)) / _gaps(eigenvalues_of(a, *out))
    return total_columns(inner * identity(inner)), mm(v, turn)


def total_columns(x: Value) -> Value:
    """The sums of the columns of each matrix."""
    return sum_over(x, axes=(x.ndim - 2,))


@array_call(
    infer=lambda a, *, upper: (make_aval(a.shape[:-1], a.dtype), make_aval(a.shape, a.dtype)),
    vjp=_eigen_vjp,
    jvp=_eigen_jvp,
    outputs=2,
    called="eigh",
)
def eigen(a, w, v, *, upper):
    """Ascending eigenvalues and orthonormal eigenvectors (columns) of the symmetric part.

    Only the vectors are meant to be differentiated through this one: differences of eigenvalues stand in its rule.
    ``upper`` says which half LAPACK reads, so that signs are those of NumPy.
    """
    equal = (*square_alike(a, v), *axes_alike(a, w, w.ndim))
    return ArrayCall(eigen_kernel, (stack(a), rows(w), stack(v), upper), equal)


@host(
    infer=lambda a, w, v: make_aval(w.shape, w.dtype),
    vjp=lambda g, out, a, w, v: (mm(v * row(g), v, tb=True), None, None),
    jvp=lambda tangents, out, a, w, v: None if tangents[0] is None else total_columns(v * mm(tangents[0], v)),
    expression=lambda a, w, v: copy_of(w),
)
def eigenvalues_of(a, w, v):
    """The eigenvalues ``w`` as a function of ``a``, where ``w, v = eigen(a)``: its rule has no differences.

    ``w`` and ``v`` get no cotangent, yet are no constants: second derivatives reach ``a`` through the rule's ``v``.
    """
    return w.copy()


# --------------------------------------------------------------------------- singular values


@ArrayKernel
def singular_kernel(a, u, s, vh):
    m, n = a.shape[1], a.shape[2]
    k = s.shape[1]
    if k != min(m, n):  # the extent of one axis was taken for that of the smaller one
        raise ValueError("svd: other extents than it was compiled for")
    # the transpose: LAPACK then sees the matrix as NumPy shows it, with the same signs
    work = np.empty((n, m), a.dtype)
    right = np.empty((n, k), a.dtype)
    left = np.empty((k, m), a.dtype)
    for c in range(a.shape[0]):
        if not copied(a[c].T, work):
            u[c, :, :] = np.nan
            s[c, :] = np.nan
            vh[c, :, :] = np.nan
        elif k > 0:
            if blas.gesdd(work, s[c], right, left) > 0:
                raise faults.LinAlgError
            for q in range(k):
                for i in range(m):
                    u[c, i, q] = left[q, i]
                for j in range(n):
                    vh[c, q, j] = right[j, q]


def _square_gaps(s: Value) -> Value:
    """``s[j]**2 - s[i]**2`` at (i, j), and 1 on the diagonal."""
    return (row(s) - column(s)) * (row(s) + column(s)) + identity(s)


def _singular_vjp(g: Sequence[Value], out: Sequence[Value], a: Value) -> tuple[Value, ...]:
    gu, gs, gvh = g
    u, _, vh = out
    s = singular_values_of(a, *out)
    gaps = _square_gaps(s)
    left, right = mm(u, gu, ta=True), mm(vh, gvh, tb=True)
    inner = (left - mt(left)) / gaps * row(s) + column(s) * ((right - mt(right)) / gaps)
    made = mm(mm(u, inner) + u * row(gs), vh)
    if u.shape[-2] > u.shape[-1]:
        made = made + mm((gu - mm(u, left)) / row(s), vh)
    if vh.shape[-1] > vh.shape[-2]:
        made = made + mm(u, (gvh - mm(right, vh, ta=True)) / column(s))
    return (made,)


def _singular_jvp(tangents: Tangents, out: Sequence[Value], a: Value) -> tuple[Value, ...]:
    (t,) = tangents
    u, _, vh = out
    s = singular_values_of(a, *out)
    gaps = _square_gaps(s)
    along_u, along_v = mm(u, t, ta=True), mm(t, vh, tb=True)
    inner = mm(along_u, vh, tb=True)
    wide, tall = inner * row(s), column(s) * inner
    tu = mm(u, (wide + mt(wide)) / gaps * (1.0 - identity(s)))
    tv = mm((tall + mt(tall)) / gaps * (1.0 - identity(s)), vh, ta=True)
    if u.shape[-2] > u.shape[-1]:
        tu = tu + (along_v - mm(u, inner)) / row(s)
    if vh.shape[-1] > vh.shape[-2]:
        tv = tv + (along_u - mm(inner, vh)) / column(s)
    return tu, total_columns(inner * identity(s)), tv


def _singular_avals(a: ShapedArray) -> tuple[ShapedArray, ...]:
    *batch, m, n = a.shape
    k = min(m, n)
    return tuple(make_aval((*batch, *shape), a.dtype) for shape in ((m, k), (k,), (k, n)))


@array_call(infer=_singular_avals, vjp=_singular_vjp, jvp=_singular_jvp, outputs=3, called="svd")
def singular(a, u, s, vh):
    """The reduced singular value decomposition; as with ``eigen``, another primitive differentiates the values."""
    m, n = a.ndim - 2, a.ndim - 1
    shorter = m if a.shape[m] < a.shape[n] else n
    equal = (*axes_alike(a, u, n), *axes_alike(a, s, m), *axes_alike(a, vh, m), ((0, n), (3, n)))
    equal += (((0, shorter), (1, n)), ((0, shorter), (2, m)), ((0, shorter), (3, m)))
    return ArrayCall(singular_kernel, (stack(a), stack(u), rows(s), stack(vh)), equal)


@host(
    infer=lambda a, u, s, vh: make_aval(s.shape, s.dtype),
    vjp=lambda g, out, a, u, s, vh: (mm(u * row(g * sign(s)), vh), None, None, None),
    jvp=lambda tangents, out, a, u, s, vh: (
        None if tangents[0] is None else sign(s) * total_columns(u * mm(tangents[0], vh, tb=True))
    ),
    expression=lambda a, u, s, vh: copy_of(s),
)
def singular_values_of(a, u, s, vh):
    """The singular values ``s`` as a function of ``a``, where ``u, s, vh = singular(a)``. Their gradient at 0 is 0, the
    least subgradient of the norms made of them."""
    return s.copy()


def singular_values(x: Value) -> Value:
    """The singular values alone."""
    return singular_values_of(x, *singular(x))


# --------------------------------------------------------------------------- QR


@ArrayKernel
def orthogonal_kernel(a, q, r):
    m, n = a.shape[1], a.shape[2]
    if m < n:
        raise ValueError("qr: other extents than it was compiled for")
    work = np.empty((n, m), a.dtype)
    tau = np.empty(n, a.dtype)
    for c in range(a.shape[0]):
        copied(a[c].T, work)
        if n > 0:
            blas.geqrf(work, tau)
            for i in range(n):
                for j in range(n):
                    r[c, i, j] = work[j, i] if i <= j else 0
            blas.orgqr(work, tau)
            for i in range(m):
                for j in range(n):
                    q[c, i, j] = work[j, i]


def _orthogonal_vjp(g: Sequence[Value], out: Sequence[Value], a: Value) -> tuple[Value, ...]:
    gq, gr = g
    q, r = out
    half = lower(mm(r, gr, tb=True) - mm(gq, q, ta=True), diagonal=0.5)
    made = gq + mm(q, half + mt(half))
    return (mt(solve_lower(mt(r), mt(made), t=True)),)


def _orthogonal_jvp(tangents: Tangents, out: Sequence[Value], a: Value) -> tuple[Value, ...]:
    q, r = out
    x = mt(solve_lower(mt(r), mt(tangents[0]), t=False))  # t r**-1
    s = mm(q, x, ta=True)
    below = lower(s, diagonal=0.0)
    turn = below - mt(below)
    return mm(q, turn) + x - mm(q, s), mm(s - turn, r)


def _orthogonal_avals(a: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
    n = a.shape[-1]
    return make_aval(a.shape, a.dtype), make_aval((*a.shape[:-2], n, n), a.dtype)


@array_call(infer=_orthogonal_avals, vjp=_orthogonal_vjp, jvp=_orthogonal_jvp, outputs=2, called="qr")
def orthogonal(a, q, r):
    """``a = q @ r`` for matrices with at least as many rows as columns."""
    m, n = a.ndim - 2, a.ndim - 1
    equal = (*axes_alike(a, q), *axes_alike(a, r, m), ((0, n), (2, m)), ((0, n), (2, n)))
    return ArrayCall(orthogonal_kernel, (stack(a), stack(q), stack(r)), equal)
