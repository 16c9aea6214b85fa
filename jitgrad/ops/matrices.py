"""The primitives of linear algebra over stacks of matrices: triangles, solutions, determinants.

Each runs one array kernel over LAPACK; its rules are products and solutions again, so that every order of derivative
is there. Source of the rules: M. B. Giles, "An extended collection of matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core import blas_form as blas
from jitgrad.core import linalg_errors as faults
from jitgrad.core import scalar
from jitgrad.core.aval import ShapedArray, make_aval
from jitgrad.core.dispatch import constant
from jitgrad.core.primitive import ArrayCall, Operand, Value
from jitgrad.kernels.kernel import ArrayKernel, KernelPart
from jitgrad.ops.array_calls import Pairs, axes_alike, flat, square, stack
from jitgrad.ops.array_primitives import array_call
from jitgrad.ops.linear import expand, permute, place_diagonal, reshape_to, sum_over
from jitgrad.ops.product_primitives import matrix_product

Tangents = Sequence[Value | None]


def mm(x: Value, y: Value, ta: bool = False, tb: bool = False) -> Value:
    """``op(x) @ op(y)``."""
    return matrix_product(x, y, ta=ta, tb=tb)


def mt(x: Value) -> Value:
    """The matrices transposed."""
    return permute(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def scalars(x: Value) -> Value:
    """Numbers as one-element matrices."""
    return reshape_to(x, shape=(*x.shape, 1, 1))


def total(x: Value) -> Value:
    """The sum of the elements of each matrix."""
    return sum_over(x, axes=(x.ndim - 2, x.ndim - 1))


def identity(x: Value) -> Value:
    """The identity of the size and dtype of the columns."""
    n = x.shape[-1]
    ones = expand(constant(1.0, x.dtype, x), shape=(n,))
    return place_diagonal(ones, shape=(n, n), offset=0, axis1=0, axis2=1)


def zero(aval: Value) -> Value:
    """Zeros of the shape and dtype of a value."""
    return expand(constant(0.0, aval.dtype, aval), shape=aval.shape)


def same_aval(x: ShapedArray, *others: ShapedArray, **params: Any) -> ShapedArray:
    return make_aval(x.shape, x.dtype)


def square_alike(a: Operand, *others: Operand) -> Pairs:
    """Square matrices, in as many stacks of the same extents."""
    return sum((axes_alike(a, b) for b in others), square(a))


@KernelPart
def copied(a, out):
    """Copy a matrix; whether all of it is finite."""
    finite = True
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] = a[i, j]
            finite = finite and scalar.isfinite(a[i, j])
    return finite


# --------------------------------------------------------------------------- triangles


@ArrayKernel
def lower_kernel(x, out, diagonal):
    for c in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                out[c, i, j] = x[c, i, j] if j < i else 0
            out[c, i, i] = x[c, i, i] * diagonal


def _lower_transpose(g: Value, x: Value, *, diagonal: float) -> Value:
    return lower(g, diagonal=diagonal)


@array_call(infer=same_aval, transpose=_lower_transpose)
def lower(x, out, *, diagonal):
    """The lower triangles of square matrices, with the diagonal times a number."""
    return ArrayCall(lower_kernel, (stack(x), stack(out), diagonal), square_alike(x, out))


@ArrayKernel
def solve_lower_kernel(a, b, out, t):
    n = a.shape[1]
    count = b.shape[2]
    for c in range(a.shape[0]):
        x = out[c]
        for i in range(n):
            for q in range(count):
                x[i, q] = b[c, i, q]
        blocks = (n + 63) // 64
        for block in range(blocks):  # within a block by substitution, between blocks by matrix products
            first = 64 * (blocks - 1 - block if t else block)
            last = min(first + 64, n)
            done = n - last if t else first
            if done > 0 and count > 0:
                panel = np.empty((done, last - first), a.dtype)
                known = np.empty((done, count), a.dtype)
                for i in range(done):
                    for j in range(last - first):
                        panel[i, j] = a[c, last + i, first + j] if t else a[c, first + j, i]
                    for q in range(count):
                        known[i, q] = x[last + i if t else i, q]
                part = np.empty((last - first, count), a.dtype)
                blas.gemm(panel, known, part, True, False)
                for i in range(last - first):
                    for q in range(count):
                        x[first + i, q] -= part[i, q]
            for step in range(last - first):
                i = last - 1 - step if t else first + step
                for p in range(i + 1 if t else first, last if t else i):
                    factor = a[c, p, i] if t else a[c, i, p]
                    for q in range(count):
                        x[i, q] -= factor * x[p, q]
                for q in range(count):
                    x[i, q] /= a[c, i, i]


def _solve_lower_vjp(g: Value, out: Value, a: Value, b: Value, *, t: bool) -> tuple[Value, ...]:
    gb = solve_lower(a, g, t=not t)
    ga = mm(out, gb, tb=True) if t else mm(gb, out, tb=True)
    return -lower(ga, diagonal=1.0), gb


def _solve_lower_jvp(tangents: Tangents, out: Value, a: Value, b: Value, *, t: bool) -> Value:
    ta, tb = tangents
    change = None if ta is None else -mm(lower(ta, diagonal=1.0), out, ta=t)
    return solve_lower(a, tb if change is None else change if tb is None else tb + change, t=t)


def _solution(kernel: ArrayKernel, a: Operand, b: Operand, out: Operand, t: bool) -> ArrayCall:
    equal = (*square(a), *axes_alike(a, b, a.ndim - 1), *axes_alike(b, out))
    return ArrayCall(kernel, (stack(a), stack(b), stack(out), t), equal)


@array_call(infer=lambda a, b, *, t: make_aval(b.shape, b.dtype), vjp=_solve_lower_vjp, jvp=_solve_lower_jvp)
def solve_lower(a, b, out, *, t):
    """``op(tril(a))**-1 @ b`` by substitution; a zero on the diagonal gives infinities."""
    return _solution(solve_lower_kernel, a, b, out, t)


# --------------------------------------------------------------------------- solutions and inverses


@ArrayKernel
def solve_kernel(a, b, out, t):
    n = a.shape[1]
    count = b.shape[2]
    work = np.empty((n, n), a.dtype)
    rows = np.empty((count, n), a.dtype)
    pivots = np.empty(n, blas.pivot_type)
    for c in range(a.shape[0]):
        for i in range(n):
            for j in range(n):
                work[i, j] = a[c, i, j] if t else a[c, j, i]
            for q in range(count):
                rows[q, i] = b[c, i, q]
        if n > 0 and blas.gesv(work, rows, pivots) > 0:
            raise faults.SingularMatrixError
        for i in range(n):
            for q in range(count):
                out[c, i, q] = rows[q, i]


def _solve_vjp(g: Value, out: Value, a: Value, b: Value, *, t: bool) -> tuple[Value, ...]:
    gb = solve_matrix(a, g, t=not t)
    return -(mm(out, gb, tb=True) if t else mm(gb, out, tb=True)), gb


def _solve_jvp(tangents: Tangents, out: Value, a: Value, b: Value, *, t: bool) -> Value:
    ta, tb = tangents
    change = None if ta is None else -mm(ta, out, ta=t)
    return solve_matrix(a, tb if change is None else change if tb is None else tb + change, t=t)


@array_call(infer=lambda a, b, *, t: make_aval(b.shape, b.dtype), vjp=_solve_vjp, jvp=_solve_jvp, called="solve")
def solve_matrix(a, b, out, *, t):
    """``op(a)**-1 @ b`` for stacks of the same length."""
    return _solution(solve_kernel, a, b, out, t)


@ArrayKernel
def inverse_kernel(a, out, strict):
    n = a.shape[1]
    work = np.empty((n, n), a.dtype)
    pivots = np.empty(n, blas.pivot_type)
    for c in range(a.shape[0]):
        for i in range(n):
            for j in range(n):
                work[i, j] = a[c, i, j]
                out[c, i, j] = 1 if i == j else 0
        if n > 0 and blas.gesv(work, out[c], pivots) > 0:
            if strict:
                raise faults.SingularMatrixError
            out[c, :, :] = np.nan


def _inverse_vjp(g: Value, out: Value, a: Value) -> tuple[Value]:
    return (-mm(mm(out, g, ta=True), out, tb=True),)


def _inverse_jvp(tangents: Tangents, out: Value, a: Value) -> Value:
    return -mm(mm(out, tangents[0]), out)


@array_call(infer=same_aval, vjp=_inverse_vjp, jvp=_inverse_jvp, called="inv")
def inverse(a, out):
    """``a**-1``."""
    return ArrayCall(inverse_kernel, (stack(a), stack(out), True), square_alike(a, out))


@array_call(infer=same_aval, vjp=_inverse_vjp, jvp=_inverse_jvp)
def inverse_or_nan(a, out):
    """``a**-1``, and NaN for a singular matrix."""
    return ArrayCall(inverse_kernel, (stack(a), stack(out), False), square_alike(a, out))


@ArrayKernel
def pseudo_inverse_kernel(a, out, cutoff):
    m, n = a.shape[1], a.shape[2]
    k = min(m, n)
    work = np.empty((m, n), a.dtype)
    s = np.empty(k, a.dtype)
    u = np.empty((m, k), a.dtype)
    vh = np.empty((k, n), a.dtype)
    for c in range(a.shape[0]):
        if not copied(a[c], work):
            out[c, :, :] = np.nan
        elif k > 0:
            if blas.gesdd(work, s, u, vh) > 0:
                raise faults.LinAlgError
            for i in range(k):
                for j in range(n):
                    vh[i, j] = vh[i, j] / s[i] if s[i] > cutoff * s[0] else 0
            blas.gemm(vh, u, out[c], True, True)


def _pseudo_inverse_vjp(g: Value, out: Value, a: Value, *, cutoff: float) -> tuple[Value, ...]:
    rows = g - mm(out, mm(a, g))  # (1 - out a) g
    columns = g - mm(mm(g, a), out)  # g (1 - a out)
    first = mm(mm(columns, out, ta=True), out, tb=True)
    last = mm(mm(out, out, ta=True), rows, tb=True)
    return (first + last - mm(mm(out, g, ta=True), out, tb=True),)


def _pseudo_inverse_jvp(tangents: Tangents, out: Value, a: Value, *, cutoff: float) -> Value:
    t = tangents[0]
    first = mm(mm(out, out, tb=True), t - mm(mm(a, out), t), tb=True)
    rest = mt(t) - mm(out, mm(a, t, tb=True))
    return first + mm(mm(rest, out, tb=True), out) - mm(mm(out, t), out)


@array_call(
    infer=lambda a, *, cutoff: make_aval((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype),
    vjp=_pseudo_inverse_vjp,
    jvp=_pseudo_inverse_jvp,
    called="pinv",
)
def pseudo_inverse(a, out, *, cutoff):
    """The pseudo-inverse; singular values up to ``cutoff`` times the largest count as 0. The rules hold where the rank
    stays what it is."""
    m, n = a.ndim - 2, a.ndim - 1
    equal = (*axes_alike(a, out, m), ((0, m), (1, n)), ((0, n), (1, m)))
    return ArrayCall(pseudo_inverse_kernel, (stack(a), stack(out), cutoff), equal)


# --------------------------------------------------------------------------- determinants


@ArrayKernel
def determinant_kernel(a, out):
    n = a.shape[1]
    work = np.empty((n, n), a.dtype)
    pivots = np.empty(n, blas.pivot_type)
    for c in range(a.shape[0]):
        copied(a[c], work)
        if n > 0:
            blas.getrf(work, pivots)
        product = 1.0
        for i in range(n):
            product *= -work[i, i] if pivots[i] != i + 1 else work[i, i]
        out[c] = product


@ArrayKernel
def log_determinant_kernel(a, sign, logarithm):
    n = a.shape[1]
    work = np.empty((n, n), a.dtype)
    pivots = np.empty(n, blas.pivot_type)
    for c in range(a.shape[0]):
        copied(a[c], work)
        if n > 0:
            blas.getrf(work, pivots)
        turn = 1.0
        logs = 0.0
        for i in range(n):
            pivot = -work[i, i] if pivots[i] != i + 1 else work[i, i]
            turn *= pivot if scalar.isnan(pivot) else 1.0 if pivot > 0 else -1.0 if pivot < 0 else 0.0
            logs += scalar.log(np.float64(scalar.fabs(pivot)))
        sign[c] = turn
        logarithm[c] = logs


def _determinant_vjp(g: Value, out: Value, a: Value) -> tuple[Value]:
    return (scalars(g) * cofactors(a),)


def _determinant_jvp(tangents: Tangents, out: Value, a: Value) -> Value:
    return total(cofactors(a) * tangents[0])


@array_call(infer=lambda a: make_aval(a.shape[:-2], a.dtype), vjp=_determinant_vjp, jvp=_determinant_jvp, called="det")
def determinant(a, out):
    return ArrayCall(determinant_kernel, (stack(a), flat(out)), (*square(a), *axes_alike(a, out, out.ndim)))


def _log_determinant_jvp(tangents: Tangents, out: Sequence[Value], a: Value) -> tuple[Value, ...]:
    return zero(out[0]), total(mt(inverse(a)) * tangents[0])


@array_call(
    infer=lambda a: (make_aval(a.shape[:-2], a.dtype), make_aval(a.shape[:-2], a.dtype)),
    vjp=lambda g, out, a: (scalars(g[1]) * mt(inverse(a)),),
    jvp=_log_determinant_jvp,
    outputs=2,
    called="slogdet",
)
def sign_and_log_determinant(a, turn, logarithm):
    equal = (*square(a), *axes_alike(a, turn, turn.ndim), *axes_alike(a, logarithm, turn.ndim))
    return ArrayCall(log_determinant_kernel, (stack(a), flat(turn), flat(logarithm)), equal)


@KernelPart
def decomposed(work, s, u, vh, pivots):
    """The singular value decomposition of a square matrix, which is lost; the determinant of ``u @ vh``, which is 1 or
    -1."""
    if blas.gesdd(work, s, u, vh) > 0:
        raise faults.LinAlgError
    blas.gemm(u, vh, work, False, False)
    blas.getrf(work, pivots)
    turn = 1.0
    for i in range(s.size):
        turn = -turn if (work[i, i] < 0) != (pivots[i] != i + 1) else turn
    return turn


@ArrayKernel
def cofactors_kernel(a, out):
    n = a.shape[1]
    work = np.empty((n, n), a.dtype)
    s = np.empty(n, a.dtype)
    u = np.empty((n, n), a.dtype)
    vh = np.empty((n, n), a.dtype)
    others = np.empty(n, a.dtype)
    pivots = np.empty(n, blas.pivot_type)
    for c in range(a.shape[0]):
        if not copied(a[c], work):
            out[c, :, :] = np.nan
        elif n > 0:
            left = decomposed(work, s, u, vh, pivots)
            for i in range(n):  # the products of all other singular values
                others[i] = left
                left *= s[i]
            right = 1.0
            for i in range(n - 1, -1, -1):
                others[i] *= right
                right *= s[i]
            for i in range(n):
                for j in range(n):
                    u[i, j] *= others[j]
            blas.gemm(u, vh, out[c], False, False)


def _cofactors_vjp(g: Value, out: Value, a: Value) -> tuple[Value]:
    return (cofactors_change(a, g),)


def _cofactors_jvp(tangents: Tangents, out: Value, a: Value) -> Value:
    return cofactors_change(a, tangents[0])


@array_call(infer=same_aval, vjp=_cofactors_vjp, jvp=_cofactors_jvp, called="det")
def cofactors(a, out):
    """The gradient of the determinant, by singular values: exact for singular matrices too. (Its derivative is a
    symmetric bilinear form, hence its own transpose.)"""
    return ArrayCall(cofactors_kernel, (stack(a), stack(out)), square_alike(a, out))


@ArrayKernel
def cofactors_change_kernel(a, e, out):
    n = a.shape[1]
    work = np.empty((n, n), a.dtype)
    s = np.empty(n, a.dtype)
    u = np.empty((n, n), a.dtype)
    vh = np.empty((n, n), a.dtype)
    turned = np.empty((n, n), a.dtype)
    made = np.empty((n, n), a.dtype)
    others = np.empty(n, a.dtype)
    pivots = np.empty(n, blas.pivot_type)
    for c in range(a.shape[0]):
        if not copied(a[c], work):
            out[c, :, :] = np.nan
        elif n > 0:
            start = decomposed(work, s, u, vh, pivots)
            blas.gemm(u, e[c], work, True, False)
            blas.gemm(work, vh, turned, False, True)
            for i in range(n):
                left = start
                for j in range(n):  # the products of all singular values but the i-th and the j-th
                    others[j] = left
                    if j != i:
                        left *= s[j]
                right = 1.0
                made[i, i] = 0
                for j in range(n - 1, -1, -1):
                    if j != i:
                        factor = others[j] * right
                        right *= s[j]
                        made[i, i] += factor * turned[j, j]
                        made[j, i] = -factor * turned[i, j]
            blas.gemm(u, made, work, False, False)
            blas.gemm(work, vh, out[c], False, False)


def _cofactors_change_vjp(g: Value, out: Value, a: Value, e: Value) -> tuple[Value, ...]:
    """By the inverse: the third derivative of the determinant wants a matrix that is not singular, else it raises."""
    x = inverse(a)
    xe, xg = mm(x, e), mm(x, g)
    xt_e, xt_g = (total(mt(x) * v) for v in (e, g))
    both = total(xe * mt(xg))
    xex, xgx = mm(xe, x), mm(xg, x)
    mixed = mm(xe, xgx) + mm(xg, xex) - xex * scalars(xt_g) - xgx * scalars(xt_e)
    ga = cofactors(a) * scalars(xt_e * xt_g - both) + scalars(determinant(a)) * mt(mixed)
    return ga, cofactors_change(a, g)


def _cofactors_change_jvp(tangents: Tangents, out: Value, a: Value, e: Value) -> Value:
    ta, te = tangents
    through_a = None if ta is None else _cofactors_change_vjp(ta, out, a, e)[0]
    through_e = None if te is None else cofactors_change(a, te)
    return through_e if through_a is None else through_a if through_e is None else through_a + through_e


@array_call(infer=same_aval, vjp=_cofactors_change_vjp, jvp=_cofactors_change_jvp, called="det")
def cofactors_change(a, e, out):
    """The derivative of ``cofactors`` at ``a`` in the direction ``e``."""
    return ArrayCall(cofactors_change_kernel, (stack(a), stack(e), stack(out)), square_alike(a, e, out))
