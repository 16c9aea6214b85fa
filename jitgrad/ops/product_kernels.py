"""Kernels of products that add up.

BLAS makes the large ones. The loops here serve small products, which should not load SciPy's BLAS (0.3 s), and narrow
ones, for which BLAS copies more than it computes.
"""

from __future__ import annotations

import numpy as np

from jitgrad.core import blas_form as blas
from jitgrad.core import scalar
from jitgrad.kernels.kernel import ArrayKernel, KernelPart

__all__ = [
    "integer_products_kernel",
    "matrix_product_kernel",
    "matrix_products_kernel",
    "matrix_vector_kernel",
    "product_sums_kernel",
    "vector_dot_kernel",
    "vector_outer_kernel",
]


@KernelPart
def op_element(x, i, p, t):
    """Of ``op(x)``; the flag transposes."""
    return x[p if t else i, i if t else p]


@KernelPart
def rows_product(x, y, out, ta):
    """``out = op(x) @ y``, rows of ``y`` times numbers: two rows of the result and two of ``y`` at a time."""
    m, n = out.shape
    k = y.shape[0]
    for i in range(m):
        row = out[i]
        for j in range(n):
            row[j] = 0
    for i in range(0, m - 1, 2):
        row = out[i]
        other = out[i + 1]
        for p in range(0, k - 1, 2):
            a0, a1 = op_element(x, i, p, ta), op_element(x, i, p + 1, ta)
            b0, b1 = op_element(x, i + 1, p, ta), op_element(x, i + 1, p + 1, ta)
            y0 = y[p]
            y1 = y[p + 1]
            for j in range(n):
                row[j] = scalar.rmuladd(scalar.rmuladd(row[j], a0, y0[j]), a1, y1[j])
                other[j] = scalar.rmuladd(scalar.rmuladd(other[j], b0, y0[j]), b1, y1[j])
    for i in range(m):  # what is left of every row, and the whole of an odd one
        row = out[i]
        for p in range(k - k % 2 if i < m - m % 2 else 0, k):
            a = op_element(x, i, p, ta)
            line = y[p]
            for j in range(n):
                row[j] = scalar.rmuladd(row[j], a, line[j])


@KernelPart
def dots_product(x, y, out):
    """``out = x @ y.T``, dot products of two rows with two rows at a time; of an odd number, the last one twice."""
    m, n = out.shape
    for i in range(0, m, 2):
        r = i + 1 if i + 1 < m else i
        x0 = x[i]
        x1 = x[r]
        for j in range(0, n, 2):
            s = j + 1 if j + 1 < n else j
            y0 = y[j]
            y1 = y[s]
            out[i, j] = 0
            t00 = out[i, j]
            t01, t10, t11 = t00, t00, t00
            for p in range(x0.size):
                t00 = scalar.rmuladd(t00, x0[p], y0[p])
                t01 = scalar.rmuladd(t01, x0[p], y1[p])
                t10 = scalar.rmuladd(t10, x1[p], y0[p])
                t11 = scalar.rmuladd(t11, x1[p], y1[p])
            out[i, j] = t00
            out[i, s] = t01
            out[r, j] = t10
            out[r, s] = t11


@KernelPart
def float_product(x, y, out, ta, tb):
    """``out = op(x) @ op(y)``."""
    m, n = out.shape
    k = y.shape[1] if tb else y.shape[0]
    small = m * n * k <= 4096
    if not tb and (small or (m * k <= 400 and n * k <= 32768)):
        rows_product(x, y, out, ta)
    elif tb and not ta and (small or (m * n <= 256 and (m + n) * k <= 131072)):
        dots_product(x, y, out)
    elif small:
        for i in range(m):
            for j in range(n):
                out[i, j] = 0
                for p in range(k):
                    out[i, j] += x[p, i] * y[j, p]
    else:
        blas.gemm(x, y, out, ta, tb)


@ArrayKernel
def matrix_product_kernel(x, y, out, ta, tb):
    float_product(x, y, out, ta, tb)


@ArrayKernel
def matrix_products_kernel(x, y, out, ta, tb):
    for c in range(out.shape[0]):
        float_product(x[c if x.shape[0] > 1 else 0], y[c if y.shape[0] > 1 else 0], out[c], ta, tb)


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
    if m * n > 4096:
        blas.gemv(a, x, out, t)
    elif t:
        for i in range(m):
            row = a[i]
            for j in range(n):
                out[j] = scalar.rmuladd(out[j], x[i], row[j])
    else:
        for i in range(m):
            row = a[i]
            total = out[i]
            for j in range(n):
                total = scalar.rmuladd(total, row[j], x[j])
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
