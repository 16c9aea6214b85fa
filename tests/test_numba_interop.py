"""Functions for Numba and C: right for every shape that they take, or an error; never cached by Numba; from the user's own
compiled code, loops and threads."""

import ctypes
import functools
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from collections import namedtuple
from pathlib import Path

import hypothesis.strategies as st
import numba
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
from hypothesis import assume, given, settings
from numpy.testing import assert_allclose
from scipy import LowLevelCallable

import jitgrad as jg
from jitgrad import config
from jitgrad.errors import DtypeError, UnsupportedError

# --------------------------------------------------------------------------- other shapes than the example's

SLICES = [
    slice(1, None), slice(None, -1), slice(None, None, -1), slice(-3, None), slice(2, 5), slice(5, 2, -1),
    slice(-1, -4, -1), slice(None, None, 2), slice(1, -1, 2), slice(-2, 0, -2), slice(0, 3), slice(-5, -2),
    slice(10, None), slice(None, -3, 3), slice(-4, None, -1), slice(3, -2), slice(None, 0, -3),
]  # fmt: skip


def logistic(w, X, y):
    z = X @ w
    return np.mean(np.logaddexp(0, z) - y * z)


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / np.sum(e)


def dominant(A):
    """A matrix that is not singular, with eigenvalues apart, made without reading an extent."""
    i = np.cumsum(np.sum(A * 0.0, axis=1) + 1.0)
    return A + (np.sum(A, axis=1) * (2.0 + i))[:, None] * (i[:, None] == i)


def loop_over_rows(x):
    total = 0.0
    for row in x:
        total = total + np.sum(row) ** 2
    return total


def loop_over_range(x):
    total = 0.0
    for i in range(x.size):
        total = total + x[i] ** 2 * (i + 1)
    return total


def part_read(x):
    y = x[1:]
    return np.sum(y) / y.shape[0]


def index_tried(x):
    try:
        return np.sum(x) + x[4]
    except IndexError:
        return np.sum(x) * 2.0


def shapes_tried(x, y):
    try:
        return np.sum(x * y)
    except ValueError:
        return np.sum(x) * np.sum(y)


def halves(x):
    a, b = np.split(x, 2)
    return np.sum(a * b)


def into_other_shape(x):
    return np.sum(np.sin(x.reshape(x.shape[1], x.shape[0])) * np.arange(1.0, 4.0))


FUNCTIONS = {
    "lag": (lambda x, y: np.sum(x[1:] * y), [(6,), (5,)]),
    "three lags": (lambda x: np.sum(x[1:-1] * x[2:] * x[:-2]), [(6,)]),
    "differences": (lambda x: np.sum((x[1:] - x[:-1]) ** 2), [(6, 3)]),
    "differences of two": (lambda x: np.sum((x[1:] - x[:-1]) ** 2), [(2,)]),
    "mean": (lambda x: np.mean(x * x), [(5, 3)]),
    "mean of rows": (lambda x: np.sum(np.mean(x * x, axis=0) ** 2), [(5, 3)]),
    "mean kept": (lambda x: np.sum(np.mean(x * x, axis=1, keepdims=True) * x), [(5, 3)]),
    "least squares": (lambda w, X, y: np.mean((X @ w - y) ** 2), [(3,), (5, 3), (5,)]),
    "logistic": (logistic, [(3,), (5, 3), (5,)]),
    "matrices": (lambda a, b: np.sum(np.tanh(a @ b)), [(3, 4), (4, 2)]),
    "square matrices": (lambda a, b: np.sum(np.tanh(a @ b)), [(3, 3), (3, 3)]),
    "gram": (lambda a: np.sum((a @ a.T) ** 2), [(3, 4)]),
    "gram of a square": (lambda a: np.sum((a @ a.T) ** 2), [(3, 3)]),
    "outer by broadcasting": (lambda x, y: np.sum(x[:, None] * y[None, :]), [(3,), (3,)]),
    "row": (lambda x, y: np.sum((x - y) ** 2), [(3, 4), (1, 4)]),
    "column": (lambda x, y: np.sum((x - y) ** 2), [(3, 4), (3, 1)]),
    "vector": (lambda x, y: np.sum((x - y) ** 2), [(4, 4), (4,)]),
    "crossed": (lambda x, y: np.sum((x - y) ** 2), [(3, 1), (1, 4)]),
    "number": (lambda x, y: np.sum((x - y) ** 2), [(3,), ()]),
    "flat": (lambda x: np.sum(x.reshape(-1) ** 2), [(3, 4)]),
    "flat transposed": (lambda x: np.sum(x.T.ravel()[::2] ** 2), [(3, 4)]),
    "two rows": (lambda x: np.sum(x.reshape(2, -1)[0] ** 2), [(4, 3)]),
    "three columns": (lambda x: np.sum(x.reshape(-1, 3)[:, 1] ** 3), [(6,)]),
    "shape turned": (into_other_shape, [(3, 4)]),
    "shape of the transposed": (lambda x: np.sum(np.reshape(x, x.T.shape)[0] ** 2), [(3, 3)]),
    "axes": (lambda x: np.sum(np.transpose(x, (2, 0, 1))[0] ** 2), [(2, 3, 4)]),
    "extent read": (lambda x: np.sum(x) / x.shape[0], [(5,)]),
    "len": (lambda x: np.sum(x) / len(x), [(5, 3)]),
    "decided by extent": (lambda x: np.sum(x * x) if x.shape[0] > 3 else np.sum(x), [(5,)]),
    "rows": (loop_over_rows, [(3, 2)]),
    "range": (loop_over_range, [(4,)]),
    "np.size": (lambda x, y: np.sum(x) * np.size(y), [(4,), (3,)]),
    "np.shape": (lambda x: np.sum(np.zeros(x.shape) + x) * np.prod(np.shape(x)), [(4, 2)]),
    "index tried": (index_tried, [(4,)]),
    "shapes tried": (shapes_tried, [(4,), (3,)]),
    "sum of rows": (lambda x: sum(x) ** 2, [(4,)]),
    "rows in a list": (lambda x: len(list(x)) * np.sum(x), [(4,)]),
    "unpacked": (lambda x: max(np.ndim(r) + 1.0 for r in [*x]) * np.sum(x), [(4, 2)]),
    "mapped": (lambda x: np.sum(x) * next(map(len, [x])), [(4,)]),
    "text": (lambda x: np.sum(x) * len(f"{x.shape}"), [(9,)]),
    "zipped": (lambda x, y: sum(a * b for a, b in zip(x, y, strict=False)), [(3,), (4,)]),
    "extent of a part": (part_read, [(4,)]),
    "first and last": (lambda x: x[0] * x[-1] + x[2] * x[-3], [(5,)]),
    "only three": (lambda x: x[0] * x[-1] + x[2] * x[-3], [(3,)]),
    "columns": (lambda x: np.sum(x[:, 0] * x[:, -1]), [(5, 2)]),
    "one row": (lambda x: np.sum(x[:, 0] * x[:, -1]), [(1, 2)]),
    "joined": (lambda x, y: np.sum(np.concatenate([x, y]) ** 2 * 2), [(3,), (3,)]),
    "joined to nothing": (lambda x, y: np.sum(np.concatenate([x, y]) ** 2 * 2), [(0,), (3,)]),
    "joined parts": (lambda x, y: np.concatenate([x, y[1:], x[::-1]]), [(3,), (4,)]),
    "joined columns": (lambda x, y: np.sum(np.concatenate([x, y], axis=1) @ np.ones(7)), [(2, 3), (2, 4)]),
    "flipped": (lambda x: np.sum(np.flip(x)[1:] * x[:-1]), [(5,)]),
    "diagonals": (lambda x: np.sum(np.diagonal(x) ** 2) + np.trace(x, 1) + np.trace(x, -2), [(3, 4)]),
    "maxima": (lambda x: np.sum(np.max(x, axis=0) * 2), [(3, 2)]),
    "softmax": (softmax, [(4,)]),
    "variance": (np.var, [(4,)]),
    "deviations": (lambda x: np.sum(np.std(x, axis=0, ddof=1)), [(4, 3)]),
    "squeezed": (lambda x: np.squeeze(x[1:]) * 2.0, [(4,)]),
    "squeezed to nothing": (lambda x: np.squeeze(x[1:]) * 2.0, [(2,)]),
    "where": (lambda x: np.sum(np.where(x > 1, x**2, np.exp(x))), [(5,)]),
    "itself": (lambda x: x * 1.0, [(3,)]),
    "constant": (lambda x: np.sum(x) * 0.0 + 3.0, [(3,)]),
    "outer": (lambda x, y: np.sum(np.outer(x, y) ** 2), [(3,), (3,)]),
    "dot": (lambda x, y: x @ y, [(3,), (3,)]),
    "rolled": (lambda x: np.sum(np.roll(x, 1) * x), [(4,)]),
    "diff": (lambda x: np.sum(np.diff(x) ** 2), [(4,)]),
    "repeated": (lambda x: np.sum(np.repeat(x, 2) ** 2), [(4,)]),
    "tiled": (lambda x: np.sum(np.tile(x, 2) ** 2), [(4,)]),
    "padded": (lambda x: np.sum(np.pad(x, 1) ** 2), [(4,)]),
    "broadcast": (lambda x: np.sum(np.broadcast_to(x, (3, 4)) * 2), [(4,)]),
    "broadcast to another": (lambda x, y: np.sum(np.broadcast_to(x, y.shape) * y), [(4,), (3, 4)]),
    "halves": (halves, [(4,)]),
    "thirds": (lambda x: sum(np.sum(p) ** 2 for p in np.array_split(x, 3)), [(6,)]),
    "triangle": (lambda x: np.sum(np.tril(x) ** 2), [(3, 4)]),
    "upper triangle": (lambda x: np.triu(x, 1) * 2.0, [(4, 3)]),
    "triangles": (lambda x: np.sum(np.sin(np.tril(x, -1) @ x)), [(2, 4, 4)]),
    "triangle of rows": (lambda x: np.sum(np.triu(x) ** 3), [(4,)]),
    "powers": (lambda x: np.sum(np.vander(x, 3) ** 2), [(4,)]),
    "as many powers": (lambda x: np.sum(np.vander(x) ** 2), [(4,)]),
    "arrays like it": (lambda x: np.zeros_like(x) + np.full_like(x, 3.0) / (np.ones_like(x) + x), [(4, 3)]),
    "running sums from a number": (lambda x: np.cumulative_sum(x, include_initial=True) * 2.0, [(4,)]),
    "no rows like it": (lambda x: np.sum(np.concatenate([x, np.zeros_like(x)]) ** 2), [(4, 3)]),
    "diagonal by einsum": (lambda x: np.einsum("ii->i", x) * 2.0, [(3, 3)]),
    "einsum": (lambda a, b: np.sum(np.einsum("ij,kj->ik", a, b) ** 2), [(2, 3), (4, 3)]),
    "stack of matrices": (lambda x, y: np.sum((x @ y)[1:]), [(2, 3, 4), (4, 5)]),
    "gather": (lambda x: np.sum(x[[0, 2, 2]] ** 2), [(4,)]),
    "gather from the end": (lambda x: np.sum(x[[0, -1]] ** 2), [(4,)]),
    "gather rows": (lambda x: np.sum(x.ravel()[[1, 4]] ** 2), [(3, 2)]),
    "weights": (lambda x: np.sum(x * np.array([1.0, 2.0, 3.0])), [(3,)]),
    "inverse": (lambda A: np.sum(np.linalg.inv(dominant(A)) ** 2), [(3, 3)]),
    "solution": (lambda A, b: np.sum(np.linalg.solve(dominant(A), b) ** 2), [(3, 3), (3,)]),
    "solutions": (lambda A, b: np.sum(np.linalg.solve(dominant(A), b) ** 2), [(3, 3), (3, 2)]),
    "determinant": (lambda A: np.linalg.det(dominant(A)), [(3, 3)]),
    "determinants": (lambda A: np.sum(np.linalg.det(A @ np.swapaxes(A, 1, 2)[:, :, ::-1])), [(2, 3, 3)]),
    "log determinant": (lambda A: np.linalg.slogdet(dominant(A))[1], [(3, 3)]),
    "Cholesky": (lambda A: np.sum(np.linalg.cholesky(dominant(A + A.T)) ** 3), [(3, 3)]),
    "eigenvalues": (lambda A: np.sum(np.linalg.eigvalsh(dominant(A + A.T)) ** 3), [(3, 3)]),
    "eigenvectors": (lambda A: np.sum(np.linalg.eigh(dominant(A + A.T))[1] ** 4), [(3, 3)]),
    "singular values": (lambda A: np.sum(np.linalg.svd(A.T @ A, compute_uv=False) ** 2), [(4, 3)]),
    "singular vectors": (lambda A: np.sum(np.linalg.svd(dominant(A), full_matrices=False)[0] ** 4), [(3, 3)]),
    "nuclear norm": (lambda A: np.linalg.norm(dominant(A), "nuc"), [(3, 3)]),
    "columns made orthogonal": (lambda A: np.sum(np.linalg.qr(dominant(A))[0] ** 4), [(3, 3)]),
    "triangle by columns": (lambda A, b: np.sum(np.linalg.qr(A)[1] @ b) ** 2, [(4, 3), (3,)]),
    "condition": (lambda A: np.linalg.cond(dominant(A), 1), [(3, 3)]),
    "running sums": (lambda x: np.sum(np.cumsum(x) ** 2), [(4,)]),
    "running sums of rows": (lambda x: np.sum(np.cumsum(x, axis=0) ** 2), [(4, 3)]),
    "running products": (lambda x: np.sum(np.cumprod(x) ** 2), [(4,)]),
    "running products of rows": (lambda x: np.sum(np.cumprod(x, axis=0) ** 2), [(4, 3)]),
    "length": (np.linalg.norm, [(4, 3)]),
    "lengths of columns": (lambda x: np.sum(np.linalg.norm(x, axis=0) ** 3), [(4, 3)]),
    "lengths of order 3": (lambda x: np.sum(np.linalg.norm(x, 3, axis=1)), [(4, 3)]),
    "product of all": (np.prod, [(4,)]),
    "products of columns": (lambda x: np.sum(np.prod(x, axis=0) ** 2), [(4, 3)]),
    "sorted": (lambda x: np.sum(np.sort(x)[1:] * np.sort(x)[:-1]), [(5,)]),
    "rows sorted": (lambda x: np.sum(np.sort(x, axis=0)[1:] * x[1:]), [(5, 3)]),
    "order": (lambda x: np.argsort(x, axis=0), [(5, 3)]),
    "median": (lambda x: np.median(x) ** 2, [(5,)]),
    "medians of columns": (lambda x: np.sum(np.median(x, axis=0) ** 2), [(4, 3)]),
    "medians of rows": (lambda x: np.median(x, axis=1, keepdims=True) * x, [(3, 4)]),
    "median of a matrix": (lambda x: np.median(x) ** 2, [(4, 3)]),
    "quantile": (lambda x: np.quantile(x, 0.3) ** 2, [(5,)]),
    "quantiles of columns": (lambda x: np.sum(np.quantile(x, [0.1, 0.5, 1.0], axis=0) ** 2), [(4, 3)]),
    "percentile of rows": (lambda x: np.sum(np.percentile(x, 80, axis=1) ** 3), [(2, 6)]),
    "greatest": (lambda x: np.argmax(x, axis=0), [(4, 3)]),
    "square of the variance": (lambda x: np.var(x) ** 2, [(4,)]),
    "deviations of columns": (lambda x: np.sum(np.std(x, axis=0)), [(4, 3)]),
    "places": (lambda x, v: np.searchsorted(np.cumsum(x), v), [(5,), (3,)]),
    **{f"sum of {s}": (lambda x, s=s: np.sum(np.sin(x[s]) ** 2), [(7,)]) for s in SLICES},
    **{f"rows {s}": (lambda x, s=s: x[s] * 2.0 + 1.0, [(3, 2)]) for s in SLICES},
    **{f"columns {s}": (lambda x, s=s: np.sum(x[:, s], axis=0), [(2, 6)]) for s in SLICES},
}


def other_shapes(shapes, count=60):
    """Shapes in which extents differ, alike where they are alike in the example, and one by one."""
    rng = np.random.default_rng(1)
    extents = sorted({n for s in shapes for n in s})
    found = {tuple(shapes)}
    for chosen in itertools.product((0, 1, 2, 3, 4, 5, 6, 8, 12), repeat=len(extents)):
        by = dict(zip(extents, chosen, strict=True))
        found.add(tuple(tuple(by[n] for n in s) for s in shapes))
    for _ in range(30):
        found.add(tuple(tuple(int(rng.choice([n, n, n + 1, n + 3, 0, 1, 2])) for n in s) for s in shapes))
    found = sorted(found)
    if len(found) > count:
        found = [found[i] for i in sorted(rng.choice(len(found), count, replace=False))]
    return [tuple(shapes), *found]


def leaves(tree):
    return [x for t in tree for x in leaves(t)] if isinstance(tree, tuple | list) else [np.asarray(tree)]


def outcome(function, arguments):
    """The results of plain NumPy code or of eager transforms; None where they raise."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # means of nothing
            return leaves(function(*arguments))
    except (ValueError, IndexError, TypeError):
        return None


def check_all_shapes(function, shapes, oracle, others, may_refuse, *, freeze=True):
    """A function for Numba, run as plain Python that tests each access to memory, at many shapes; what it refused though
    the oracle has a value there, which only shapes that ``may_refuse`` names can be."""
    rng = np.random.default_rng(2)
    with config.override(kernels="python"):
        step = jg.jit(function).njit(*[np.ones(s) for s in shapes], freeze=freeze)
    refused = []
    for tried in others:
        arguments = [rng.uniform(0.5, 1.5, s) if s else float(rng.uniform(0.5, 1.5)) for s in tried]
        wanted = outcome(oracle, arguments)
        try:
            got = leaves(step(*arguments))
        except ValueError:
            assert list(tried) != list(shapes), "the shapes of the example are refused"
            if wanted is not None:
                assert may_refuse(tried), f"{tried} is refused"
                refused.append(tried)
            continue
        assert wanted is not None, f"{tried}: {got}, but the function raises"
        assert [g.shape for g in got] == [w.shape for w in wanted], tried
        for g, w in zip(got, wanted, strict=True):
            assert_allclose(g, w, rtol=1e-12, atol=1e-12, err_msg=str(tried))
    return refused


# These read extents, or have no formula for what they derive from them: they are compiled for their extents.
RIGID = {
    "shape turned", "shape of the transposed", "extent read", "len", "decided by extent", "rows", "range", "np.size",
    "np.shape", "index tried", "shapes tried", "sum of rows", "rows in a list", "unpacked", "mapped", "text", "zipped",
    "extent of a part", "only three", "joined columns", "squeezed", "squeezed to nothing", "padded", "broadcast",
    "broadcast to another", "halves", "thirds", "as many powers", "diagonal by einsum", "three columns",
    "gather from the end", "weights",
    "triangle by columns",
}  # fmt: skip
SQUARE = [
    "inverse", "solution", "solutions", "determinant", "log determinant", "Cholesky", "eigenvalues", "eigenvectors",
    "singular vectors", "nuclear norm", "columns made orthogonal", "condition",
]  # fmt: skip
# These are other functions where an extent is one of these numbers and was not in the example, or the other way round:
# what has one element is broadcast, what has none has no maximum.
CRITICAL = {
    "lag": {1, 2}, "row": {1}, "column": {1}, "vector": {1}, "crossed": {1}, "one row": {1}, "joined to nothing": {0},
    "maxima": {0}, "variance": {0}, "deviations": {0, 1}, "rolled": {0}, "square of the variance": {0},
    "deviations of columns": {0}, "median": {0}, "medians of columns": {0}, "medians of rows": {0},
    "median of a matrix": {0},
    **{name: {1} for name in SQUARE},
}  # fmt: skip
CRITICAL_FOR_GRADIENTS = {
    **CRITICAL, "quantile": {0}, "quantiles of columns": {0}, "percentile of rows": {0}, "einsum": {1},
    "running products": {0}, "running products of rows": {0},
}  # fmt: skip


def may_refuse(name, shapes, critical):
    numbers = critical.get(name, ())

    def answer(tried):
        pairs = [(m, n) for one, other in zip(tried, shapes, strict=True) for m, n in zip(one, other, strict=True)]
        return name in RIGID or any((m == c) != (n == c) for m, n in pairs for c in numbers)

    return answer


def test_every_shape_gives_numpys_value_or_an_error():
    refusing = set()
    for name, (function, shapes) in FUNCTIONS.items():
        allowed = may_refuse(name, shapes, CRITICAL)
        if check_all_shapes(function, shapes, function, other_shapes(shapes), allowed):
            refusing.add(name)
    assert refusing == RIGID | set(CRITICAL)


SCALAR = [n for n, (function, shapes) in FUNCTIONS.items() if not np.ndim(function(*map(np.ones, shapes)))]


@pytest.mark.parametrize("name", SCALAR)
def test_every_shape_gives_the_eager_gradient_or_an_error(name):
    function, shapes = FUNCTIONS[name]
    both = jg.value_and_grad(function, argnums=tuple(range(len(shapes))))
    allowed = may_refuse(name, shapes, CRITICAL_FOR_GRADIENTS)
    check_all_shapes(both, shapes, both, other_shapes(shapes, 25), allowed)


def gradient_of_norm(norm):
    """Of singular values: with those that count, the sum of the outer products of their vectors."""

    def gradient(A):
        u, _, vh = np.linalg.svd(A, full_matrices=False)
        return u[:, :1] @ vh[:1] if norm == 2 else u @ vh

    return gradient


FACTORISED = {
    "singular values": (lambda A: np.linalg.svd(A, compute_uv=False) * 2.0,) * 2,
    "left vectors": (lambda A: np.linalg.svd(A, full_matrices=False)[0] ** 4,) * 2,
    "columns made orthogonal": (lambda A: np.linalg.qr(A)[0] ** 4,) * 2,
    "triangle by columns": (lambda A: np.linalg.qr(A)[1] ** 2,) * 2,
    "condition": (np.linalg.cond,) * 2,
    "greatest singular value": (jg.grad(lambda A: np.linalg.norm(A, 2)), gradient_of_norm(2)),
    "nuclear norm": (jg.grad(lambda A: np.linalg.norm(A, "nuc")), gradient_of_norm("nuc")),
}


@pytest.mark.parametrize(
    ("name", "example"),
    [
        *((n, (4, 3)) for n in FACTORISED),
        *((n, (3, 4)) for n in FACTORISED if "columns" not in n),
    ],  # QR of wide ones: alone
)
def test_tall_matrices_where_the_example_was_tall_and_wide_ones_where_it_was_wide(name, example):
    function, oracle = FACTORISED[name]
    rng = np.random.default_rng(3)
    with config.override(kernels="python"):
        step = jg.jit(function).njit(np.ones(example))
    for shape in [(4, 3), (6, 2), (9, 8), (30, 5), (12, 7)]:
        A = rng.normal(size=shape if example == (4, 3) else shape[::-1])
        assert_allclose(step(A), oracle(A), rtol=1e-9, atol=1e-10)
        for other in (A.T, np.eye(3)):
            with pytest.raises(ValueError, match="compiled"):
                step(other)


def test_three_extents_keep_their_order_where_one_decides():
    def function(A, B):
        return np.linalg.norm(A, 2) + np.linalg.norm(A @ B, 2)

    rng = np.random.default_rng(4)
    step = jg.jit(function).njit(np.ones((5, 4)), np.ones((4, 2)))
    for m, n, k in [(5, 4, 2), (9, 8, 7), (30, 6, 3)]:
        A, B = rng.normal(size=(m, n)), rng.normal(size=(n, k))
        assert_allclose(step(A, B), function(A, B), rtol=1e-10)
    for m, n, k in [(4, 5, 2), (5, 2, 4), (2, 3, 4), (3, 2, 5)]:
        with pytest.raises(ValueError, match="compiled"):
            step(rng.normal(size=(m, n)), rng.normal(size=(n, k)))


@pytest.mark.parametrize("ddof", [1, 2, 3])
def test_too_few_degrees_of_freedom_are_never_another_number(ddof):
    """Below ``ddof + 1`` elements a variance is NaN, not what the formula for many elements gives."""
    function = jg.value_and_grad(lambda x: np.var(x, ddof=ddof) ** 2)
    for example in (2, 3, 7):
        with config.override(kernels="python"):
            step = jg.jit(function).njit(np.ones(example))
        for n in range(1, 9):
            x = np.linspace(1.0, 2.0, n) ** 2
            try:
                value, gradient = step(x)
            except ValueError:
                assert n != example
                assert n <= ddof or example <= ddof
                continue
            if n <= ddof:
                assert np.isnan(value)
                assert np.isnan(gradient).all()
            else:
                np.testing.assert_allclose(value, np.var(x, ddof=ddof) ** 2, rtol=1e-12)
                slope = 4 * np.var(x, ddof=ddof) * (x - x.mean()) / (n - ddof)
                np.testing.assert_allclose(gradient, slope, rtol=1e-11, atol=1e-13)


MEANS_OF_PARTS = {
    "last ten": lambda x: np.mean(x[-10:] ** 2),
    "variance of four": lambda x: np.var(x[:4]),
    "from the end to a place": lambda x: np.mean(x[-3:2] ** 2),
    "backwards by two": lambda x: np.mean(x[4::-2] ** 2),
    "sorted": lambda x: np.mean(np.sort(x)[-5:] ** 2),
    "running": lambda x: np.mean(np.cumsum(x[:5]) ** 2),
    "whole and part": lambda x: np.mean(x) * np.mean(x[:8]),
    "a thousand": lambda x: np.mean(x[:1000] ** 2),
    "log": lambda x: np.log(np.mean(np.exp(x[:8]))),
    "differences": lambda x: np.mean((x[1:] - x[:-1]) ** 2),
    "sum": lambda x: np.sum(x[:4] ** 2),
}
ANY_LENGTH = {"differences", "sum"}


@pytest.mark.parametrize("name", MEANS_OF_PARTS)
@pytest.mark.filterwarnings("ignore")
def test_means_of_parts_are_those_of_the_length_or_errors(name):
    """How many elements a slice has changes its formula at the slice's bounds: 1/10 is 1/n below ten elements."""
    both = jg.value_and_grad(MEANS_OF_PARTS[name])
    rng = np.random.default_rng(0)
    with config.override(kernels="python"):
        for example in (3, 6, 1500):
            step = jg.jit(both).njit(np.linspace(1.0, 2.0, example))
            for n in (2, 3, 4, 5, 7, 9, 11, 20, 999, 1600, example):
                x = rng.uniform(1.0, 2.0, n)
                try:
                    value, gradient = step(x)
                except ValueError:
                    assert n != example
                    assert name not in ANY_LENGTH
                    continue
                wanted, slope = both(x)
                np.testing.assert_allclose(value, wanted, rtol=1e-12)
                np.testing.assert_allclose(gradient, slope, rtol=1e-11)


def test_a_part_longer_than_all_that_was_tried():
    function = jg.value_and_grad(lambda x, y, z: np.mean(x[:1000] ** 2) + np.sum(y) * np.sum(z))
    with config.override(kernels="python"):
        step = jg.jit(function).njit(np.ones(5), np.ones(4), np.ones(3))
        np.testing.assert_allclose(step(np.ones(5), np.ones(4), np.ones(3))[1], 0.4)
        with pytest.raises(ValueError, match="another one"):
            step(np.ones(5000), np.ones(4), np.ones(3))


def test_the_traced_shapes_alone_with_extents_that_only_the_shapes_ask_for():
    def function(x, i):
        v = x[i]
        v[1:2] = 0.5
        return v

    x, i = np.arange(12.0).reshape(4, 3), np.array([0, 2, 1, 3])
    wanted = x[i]
    wanted[1:2] = 0.5
    np.testing.assert_array_equal(jg.jit(function).njit(x, i, freeze=True)(x, i), wanted)


def test_a_function_may_have_the_name_of_a_part_of_its_kernel():
    def sort(x):
        return np.sum(np.sort(x) * np.arange(4.0))

    x = np.array([3.0, 1.0, 2.0, 0.0])
    value, gradient = jg.jit(jg.value_and_grad(sort))(x)
    assert value == 14.0
    np.testing.assert_array_equal(gradient, x)
    assert jg.jit(sort).njit(x, freeze=True)(x) == 14.0


STEPS = {
    "sin": lambda x, y: np.sin(x),
    "square": lambda x, y: x * x,
    "add y": lambda x, y: x + y,
    "less y": lambda x, y: y - x,
    "reverse": lambda x, y: x[::-1],
    "from 1": lambda x, y: x[1:],
    "but 2": lambda x, y: x[:-2],
    "last 3": lambda x, y: x[-3:],
    "every 2": lambda x, y: x[1::2],
    "back by 2": lambda x, y: x[-2::-2],
    "first": lambda x, y: x[0],
    "last": lambda x, y: x[-1],
    "columns but 1": lambda x, y: x[..., 1:],
    "new axis": lambda x, y: x[:, None],
    "flat": lambda x, y: x.reshape(-1),
    "turned": lambda x, y: x.T,
    "sum": lambda x, y: np.sum(x, axis=0),
    "sum kept": lambda x, y: np.sum(x, axis=-1, keepdims=True),
    "mean": lambda x, y: np.mean(x, axis=0),
    "mean kept": lambda x, y: x - np.mean(x, axis=0, keepdims=True),
    "max": lambda x, y: np.max(x, axis=-1),
    "product": lambda x, y: x @ np.transpose(x),
    "by y": lambda x, y: x @ y,
    "joined": lambda x, y: np.concatenate([x, y]),
    "joined to itself": lambda x, y: np.concatenate([x[1:], x]),
    "gather": lambda x, y: x[[0, 1, 1]],
    "flipped": lambda x, y: np.flip(x),
    "outer": np.outer,
    "diagonal": lambda x, y: np.diagonal(x, 1),
    "extent": lambda x, y: x * x.shape[0],
}


MAY_REFUSE = {"extent", "flat", "outer"}  # no formula for what they derive from extents that were derived themselves
GRADIENT_MAY_REFUSE = MAY_REFUSE | {"joined", "joined to itself", "every 2", "back by 2"}
MAY_NOT_FUSE = {"diagonal", "gather"}


def broadcasts(steps, shapes):
    """For each step, which extents of its operands are 0, 1 or more: where these differ, it is another operation."""
    x, y = (np.ones(s) for s in shapes)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # means of nothing
        for step in steps:
            found.append([[min(n, 2) for n in np.shape(a)] for a in (x, y)])
            x = STEPS[step](x, y)
    return [*found, [[min(n, 2) for n in np.shape(x)]]]


@settings(max_examples=150)
@given(
    steps=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=5),
    shapes=st.tuples(
        st.lists(st.integers(1, 6), min_size=1, max_size=2).map(tuple),
        st.lists(st.integers(1, 6), min_size=1, max_size=2).map(tuple),
    ),
    data=st.data(),
)
def test_random_programs_at_random_shapes(steps, shapes, data):
    def program(x, y):
        for step in steps:
            x = STEPS[step](x, y)
        return x

    def total(x, y):
        z = program(x, y)  # products of products: the sine of large values would show their rounding alone
        return np.sum(np.sin(z / (1.0 + z * z))) + np.sum(x * x) + np.sum(y * y)

    def linear(x, y):
        return np.sum(program(x, y) * 0.5)

    assume(outcome(program, [np.ones(s) for s in shapes]) is not None)
    shape = [st.lists(st.integers(0, 7), min_size=len(s), max_size=len(s)).map(tuple) for s in shapes]
    same = st.integers(0, 7).map(lambda n: tuple(tuple(n for _ in s) for s in shapes))
    others = data.draw(st.lists(st.tuples(*shape) | same, min_size=12, max_size=12))
    example = broadcasts(steps, shapes)

    def differs(tried):
        return outcome(program, [np.ones(s) for s in tried]) is None or broadcasts(steps, tried) != example

    def value_may_refuse(tried):
        return bool(MAY_REFUSE & set(steps)) or differs(tried)

    def gradient_may_refuse(tried):
        few = any(n < 2 for operands in example for a in operands for n in a)
        pairs = [pair for s, t in zip(shapes, tried, strict=True) for pair in zip(s, t, strict=True)]
        clipped = "last 3" in steps and any(
            (n < 3) != (m < 3) for n, m in pairs
        )  # another formula for how many are left
        return bool(GRADIENT_MAY_REFUSE & set(steps)) or few or clipped or differs(tried)

    try:
        check_all_shapes(program, shapes, program, [shapes, *others], value_may_refuse)
        gradients = jg.grad(total, argnums=(0, 1))
        check_all_shapes(gradients, shapes, gradients, [shapes, *others[:4]], gradient_may_refuse)
        gradients = jg.grad(
            linear, argnums=(0, 1)
        )  # may be an array of the example's shape, whatever the arguments are
        check_all_shapes(gradients, shapes, gradients, [shapes, *others[:2]], lambda tried: True)
    except UnsupportedError as error:
        assert "cannot be part of a Numba function" in str(error)  # noqa: PT017
        assert MAY_NOT_FUSE & set(steps) or any(0 in a for operands in example for a in operands)


MAKE_ARRAYS = {"joined columns", "np.shape", "shape turned", "weights"}


def test_only_arrays_need_freezing_not_numbers():
    refused = set()
    with config.override(kernels="python"):
        for name, (function, shapes) in FUNCTIONS.items():
            whole = jg.value_and_grad(function, argnums=tuple(range(len(shapes)))) if name in SCALAR else function
            try:
                jg.jit(whole).njit(*map(np.ones, shapes))
            except UnsupportedError as error:
                if "freeze=True" in str(error):
                    refused.add(name)
    assert refused == MAKE_ARRAYS


def test_an_extent_is_a_weak_number_like_any_other():
    x = np.ones(4, np.float32)
    for function in (lambda x: x / x.shape[0], lambda x: x.shape[0] * x, lambda x: np.multiply(x, len(x))):
        step = jg.jit(function).njit(x)
        assert_same(step(x), function(x))
        assert step(x).dtype == np.float32


def test_more_free_extents_than_are_tried_keep_the_shapes_of_the_example():
    arguments = [np.ones(n) for n in (2, 3, 4, 5, 6)]

    def function(*xs):
        return sum(np.sum(x) ** 2 for x in xs)

    step = jg.jit(function).njit(*arguments)
    assert step(*arguments) == function(*arguments)
    with pytest.raises(ValueError, match=r"must have the shape \(2,\)"):
        step(np.ones(3), *arguments[1:])


def test_gradients_of_linear_functions_know_whose_extents_they_have():
    """Nothing of such a gradient reads the values whose extents it has."""
    matrix = np.arange(12.0).reshape(3, 4)
    weights = np.arange(1.0, 4.0)
    cases = [
        (lambda x: np.sum(np.cumsum(x, axis=1) * 2.0), lambda n, m: np.tile(2.0 * np.arange(m, 0, -1.0), (n, 1))),
        (lambda x: np.sum(np.sort(x, axis=0)), lambda n, m: np.ones((n, m))),
        (lambda x: np.mean((x * 3.0).sum(axis=0)), lambda n, m: np.full((n, m), 3.0 / m)),
    ]
    for function, gradient in cases:
        compiled = jg.jit(jg.grad(function)).njit(matrix)
        for n, m in ((3, 4), (5, 2), (2, 9)):
            assert_allclose(compiled(np.random.default_rng(n).normal(size=(n, m))), gradient(n, m), rtol=1e-15)
    scaled = jg.jit(jg.grad(lambda x, w: np.sum(np.cumsum(x * w[:, None], axis=1)))).njit(matrix, weights)
    assert_allclose(scaled(np.ones((2, 3)), np.array([1.0, 5.0])), [[3.0, 2.0, 1.0], [15.0, 10.0, 5.0]], rtol=1e-15)


# --------------------------------------------------------------------------- compiled, in the user's own code


def data(n=40, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return rng.normal(size=d), X, (rng.random(n) < 0.5) * 1.0


logistic_step = jg.jit(jg.value_and_grad(logistic))


def logistic_by_hand(w, X, y):
    z = X @ w
    return np.mean(np.logaddexp(0, z) - y * z), X.T @ (1 / (1 + np.exp(-z)) - y) / len(y)


def assert_same(got, wanted):
    for g, w in zip(leaves(got), leaves(wanted), strict=True):
        assert g.shape == w.shape
        assert_allclose(g, w, rtol=1e-12, atol=1e-14)


@pytest.fixture(scope="module")
def step():
    return logistic_step.njit(*data())


def test_an_ordinary_dispatcher_without_object_mode(step):
    assert isinstance(step, numba.core.dispatcher.Dispatcher)
    assert step.targetoptions["nopython"]
    assert_same(step(*data()), logistic_by_hand(*data()))
    compiled = len(step.signatures)  # other tests may have called it with other layouts
    assert_same(step(*data(7, 5)), logistic_by_hand(*data(7, 5)))
    assert_same(step(*data(1, 1)), logistic_by_hand(*data(1, 1)))
    assert_same(step(*data(300, 20)), logistic_by_hand(*data(300, 20)))
    assert len(step.signatures) == compiled  # whatever the extents
    assert not any(o.objectmode for o in step.overloads.values())
    value, gradient = step(*data())
    assert type(value) is float
    assert gradient.flags.c_contiguous
    assert gradient.flags.writeable


def test_the_same_object_for_the_same_signature(step):
    assert logistic_step.njit(*data()) is step
    assert logistic_step.njit(*data(9, 4)) is step
    assert logistic_step.njit(*[a.astype(np.float32) for a in data()]) is not step


def test_extents_that_do_not_fit_raise_in_compiled_code(step):
    w, X, y = data()

    @numba.njit
    def call(w, X, y):
        return step(w, X, y)[0]

    with pytest.raises(ValueError, match="axis 0 of argument y and axis 0 of argument X must have the same extent"):
        call(w, X, y[1:])
    with pytest.raises(ValueError, match="axis 1 of argument X and axis 0 of argument w"):
        step(w[1:], X, y)


def test_observed_extents_are_checked():
    step = jg.jit(jg.value_and_grad(lambda x: np.sum(x**2) / len(x))).njit(np.ones(4))
    assert step(np.arange(4.0))[0] == 3.5
    with pytest.raises(ValueError, match="argument x must have"):
        step(np.ones(5))


@pytest.mark.parametrize(
    "layout",
    [
        np.asfortranarray,
        lambda a: (
            np.repeat(np.repeat(a, 2, 0), 3, a.ndim - 1)[(slice(None, None, 2), slice(None, None, 3))[: a.ndim]]
            if a.ndim > 1
            else np.repeat(a, 2)[::2]
        ),
        lambda a: np.flip(np.flip(a).copy()),
        lambda a: np.frombuffer(b"?" + a.tobytes(), np.uint8)[1:].view(np.float64).reshape(a.shape),
    ],
    ids=["Fortran", "strided", "reversed", "unaligned and read-only"],
)
def test_arrays_of_any_layout_are_read_and_never_written(step, layout):
    arguments = [layout(a) for a in data()]
    before = [a.copy() for a in arguments]
    assert_same(step(*arguments), logistic_by_hand(*data()))
    assert_same(arguments, before)


def test_results_never_share_memory():
    step = jg.jit(lambda x: (x, x, x * 2.0, np.sum(x), np.sum(x))).njit(np.ones(3))
    x = np.arange(3.0)
    first, second, double, total, again = step(x)
    first[:] = 7.0
    assert_same((second, double, total, again, x), (np.arange(3.0), 2 * np.arange(3.0), 3.0, 3.0, np.arange(3.0)))


def test_temporaries_live_as_long_as_they_are_needed_and_no_longer(step):
    w, X, y = data(60, 8)
    wanted = logistic_by_hand(w, X, y)

    @numba.njit
    def many(w, X, y, times):
        worst = 0.0
        for _ in range(times):
            value, gradient = step(w, X[::-1], y[::-1])
            junk = np.full(60, np.nan)  # takes the memory of what was freed too early
            worst = max(worst, abs(value - wanted[0]) + np.abs(gradient - wanted[1]).max() + 0 * junk.size)
        return worst

    assert many(w, X, y, 10) < 1e-12
    gc.collect()
    numba.core.runtime._nrt_python.memsys_enable_stats()
    before = numba.core.runtime.rtsys.get_allocation_stats()
    assert many(w, X, y, 5000) < 1e-12
    after = numba.core.runtime.rtsys.get_allocation_stats()
    numba.core.runtime._nrt_python.memsys_disable_stats()
    assert after.alloc - before.alloc == after.free - before.free


def test_numbers_in_and_numbers_out():
    def function(a, b, k):
        return a * b**2 + np.sin(a) * k

    step = jg.jit(jg.value_and_grad(function, argnums=(0, 1))).njit(1.0, 2.0, 3)

    @numba.njit
    def call():
        return step(1.0, 2.0, 3), step(1, True, np.int8(3)), step(np.float32(1), 2, False)

    def by_hand(a, b, k):
        return function(a, b, k), (b**2 + np.cos(a) * k, 2 * a * b)

    for got, wanted in zip(call(), (by_hand(1.0, 2.0, 3), by_hand(1.0, 1.0, 3), by_hand(1.0, 2.0, 0)), strict=True):
        assert_allclose(leaves(got), leaves(wanted), rtol=1e-14)
    assert step(np.array(1.0), 2.0, 3) == step(a=1.0, b=2.0, k=3)  # arrays without axes, and names


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            (np.ones(3, np.float32), 1),
            r"argument x must be a 1-d array of float64, not array\(float32, 1d, C\); convert",
        ),
        ((np.ones((3, 1)), 1), r"argument x must be a 1-d array of float64, not array\(float64, 2d, C\)"),
        ((2.0, 1), "argument x must be a 1-d array of float64, not float64"),
        ((np.ones(3), 1.5), "argument k must be a number of type int64, not float64"),
        ((np.ones(3), np.ones(1)), "argument k must be a number of type int64, not array"),
        ((np.ones(3), 1j), "argument k must be a number of type int64, not complex128"),
        ((np.ones(3), np.uint64(1)), "argument k must be a number of type int64, not uint64"),
    ],
)
def test_other_types_are_one_short_error(wrong, message):
    step = jg.jit(lambda x, k: np.sum(x) * k).njit(np.ones(3), 2)

    @numba.njit
    def call(x, k):
        return step(x, k)

    for function in (step, call):
        with pytest.raises(DtypeError, match=message) as caught:
            function(*wrong)
        assert "\n" not in str(caught.value)
        assert function(np.ones(3), 2) == 6.0  # nothing half-compiled stays


def test_dtypes():
    x = np.arange(4, dtype=np.float32)
    value, gradient = jg.jit(jg.value_and_grad(lambda x: np.sum(x**2))).njit(np.ones(3, np.float32))(x)
    assert (value, gradient.dtype) == (14.0, np.float32)
    masked = jg.jit(lambda m, x: np.sum(np.where(m, x, 0.0))).njit(np.ones(3, bool), np.ones(3))
    assert masked(np.array([True, False]), np.array([2.0, 3.0])) == 2.0
    doubled, total, some = jg.jit(lambda k: (k * 2, np.sum(k), np.max(k) > 3)).njit(np.arange(3))(np.arange(5))
    assert_same((doubled, total, some), (2 * np.arange(5), 10, True))
    assert (doubled.dtype, type(total), type(some)) == (np.int64, int, bool)


Pair = namedtuple("Pair", "a b")


def test_tuples_in_and_out():
    def function(p, x):
        a, (b, c) = p
        return np.sum(a * x + b) * c

    step = jg.jit(jg.value_and_grad(function)).njit((np.ones(3), (2.0, 3.0)), np.ones(3))
    value, (ga, (gb, gc_)) = step((np.ones(5), (2.0, 3.0)), np.arange(5.0))
    assert_same((value, ga, gb, gc_), (60.0, 3 * np.arange(5.0), 15.0, 20.0))
    assert jg.jit(lambda p: p.a * np.sum(p.b)).njit(Pair(2.0, np.ones(3)))(Pair(3.0, np.ones(4))) == 12.0
    mixed = jg.jit(lambda x: [x * 2, np.sum(x), 3, float("-inf")]).njit(np.ones(3))(np.ones(2))
    assert_same(mixed, (np.full(2, 2.0), 2.0, 3, -np.inf))
    with pytest.raises(UnsupportedError, match="argument p is not made of arrays and numbers in tuples"):
        jg.jit(lambda p: p["a"] * 2).njit({"a": np.ones(3)})
    with pytest.raises(UnsupportedError, match="results must be arrays and numbers in tuples or lists"):
        jg.jit(lambda x: {"a": x}).njit(np.ones(3))
    with pytest.raises(UnsupportedError, match="a result of type str"):
        jg.jit(lambda x: (x, "a")).njit(np.ones(3))


def test_static_arguments_are_compiled_in():
    cube = jg.jit(lambda x, n: np.sum(x**n), static_argnums=1)
    assert cube.njit(np.ones(3), 3)(np.arange(3.0)) == 9.0
    assert cube.njit(np.ones(3), 2)(np.arange(3.0)) == 5.0


def test_captured_arrays_are_refused_or_frozen():
    weights = np.array([1.0, 2.0])
    function = jg.jit(lambda x: np.sum(x * weights))
    with pytest.raises(UnsupportedError, match=r"float64\[2\].*Pass them as arguments, or say freeze=True"):
        function.njit(np.ones(2))
    before = function.njit(np.ones(2), freeze=True)
    assert function.njit(np.ones(2), freeze=True) is before
    weights[0] = 5.0
    after = function.njit(np.ones(2), freeze=True)
    assert (before(np.ones(2)), after(np.ones(2)), function(np.ones(2))) == (3.0, 7.0, 7.0)
    with pytest.raises(ValueError, match="argument x"):
        after(np.ones(3))
    scale = jg.tensor(2.0)
    with pytest.raises(UnsupportedError, match=r"float64\[\]"):
        jg.jit(lambda x: np.sum(x) * scale).njit(np.ones(2))


def test_values_of_captured_arrays_that_decide_are_captured_too():
    tensor = jg.tensor([1.0])
    decided = jg.jit(lambda x: np.sum(x) if tensor.tolist()[0] > 0 else np.sum(x**2))
    with pytest.raises(UnsupportedError, match="no arguments"):
        decided.njit(np.ones(2))


def test_operations_that_are_not_fused_are_named_with_their_line():
    root = jg.primitive(np.cbrt, vjp=lambda g, out, x: g / (3.0 * out**2), name="root")

    def function(x):
        return np.sum(root(x))

    with pytest.raises(UnsupportedError, match=r"function: these operations .* root.*test_numba_interop.py:\d+"):
        jg.jit(function).njit(np.eye(3))


def test_parallel_loops_and_threads(step):
    _, X, y = data()
    W = np.random.default_rng(1).normal(size=(200, 3))

    @numba.njit(parallel=True)
    def every(W, X, y):
        values, gradients = np.empty(len(W)), np.empty_like(W)
        for i in numba.prange(len(W)):
            value, gradient = step(W[i], X, y)
            values[i] = value
            gradients[i] = gradient
        return values, gradients

    wanted = [logistic_by_hand(w, X, y) for w in W]
    got = every(W, X, y)
    assert_allclose(got[0], [v for v, _ in wanted], rtol=1e-12)
    assert_allclose(got[1], [g for _, g in wanted], rtol=1e-10, atol=1e-14)
    failures = []

    def work():
        for w, (value, gradient) in zip(W, wanted, strict=True):
            v, g = step(w, X, y)
            if abs(v - value) > 1e-12 or np.abs(g - gradient).max() > 1e-12:
                failures.append(w)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


CACHED = """
import warnings
import numba, numpy as np, jitgrad as jg
from losses import loss
step = jg.jit(jg.value_and_grad(loss)).njit(np.ones(3))
callback = jg.jit(loss).address(1.0 * np.ones(3))
as_c = callback.ctypes

@numba.njit(cache=True)
def direct(x): return step(x)[0]
@numba.njit
def helper(x): return step(x)[1].sum()
@numba.njit(cache=True)
def through(x): return helper(x)
@numba.njit(cache=True, parallel=True)
def parallel(x):
    s = 0.0
    for i in numba.prange(4): s += step(x)[0]
    return s
@numba.njit(cache=True)
def inner(x):
    def f(y): return step(y)[0]
    return f(x)
@numba.njit(cache=True)
def given(f, x): return f(x)[0]
@numba.njit(cache=True)
def called(x): return as_c(np.int32(3), x.ctypes)

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    @numba.vectorize(["float64(float64)"], cache=True)
    def ufunc(x): return step(np.full(3, x))[0]
    x = np.full(3, 2.0)
    print(direct(x), through(x), parallel(x), inner(x), given(step, x), called(x), ufunc(2.0))
print(sum("Cannot cache compiled function" in str(w.message) for w in seen))
"""


def test_a_cached_user_function_never_runs_a_stale_gradient(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(CACHED))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(jg.__file__).parent.parent)])

    def run(power):
        (tmp_path / "losses.py").write_text(f"import numpy as np\ndef loss(x): return np.sum(x**{power})\n")
        command = [sys.executable, "program.py"]
        made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        numbers, warned = made.stdout.splitlines()
        assert int(warned) == 7  # Numba says so itself
        return [float(n) for n in numbers.split()]

    assert run(2) == [12.0, 12.0, 48.0, 12.0, 12.0, 12.0, 12.0]
    assert run(2) == [12.0, 12.0, 48.0, 12.0, 12.0, 12.0, 12.0]  # a second process
    assert run(4) == [48.0, 96.0, 192.0, 48.0, 48.0, 48.0, 48.0]  # after the edit


# --------------------------------------------------------------------------- C functions


def test_quad_of_one_variable():
    function = jg.jit(lambda x: np.exp(-(x**2))).address(0.5)
    assert_allclose(scipy.integrate.quad(LowLevelCallable(function.ctypes), 0, 1)[0], 0.746824132812427, rtol=1e-14)
    slope = jg.jit(jg.grad(lambda x: np.sin(x) ** 2)).address(0.5)
    assert_allclose(scipy.integrate.quad(LowLevelCallable(slope.ctypes), 0, 1)[0], np.sin(1) ** 2, rtol=1e-14)


def test_quad_of_one_variable_with_user_data():
    function = jg.jit(lambda x: x**3).address(0.5, user_data=True)
    ignored = ctypes.cast(ctypes.pointer(ctypes.c_double(3.0)), ctypes.c_void_p)
    assert LowLevelCallable(function.ctypes, ignored).signature == "double (double, void *)"
    assert_allclose(scipy.integrate.quad(LowLevelCallable(function.ctypes, ignored), 0, 1)[0], 0.25, rtol=1e-14)


def test_quad_of_an_array():
    function = jg.jit(lambda x: x[0] ** 2 * x[1] + x[2]).address(np.ones(3))
    callable_ = LowLevelCallable(function.ctypes)
    assert callable_.signature == "double (int, double *)"
    assert_allclose(scipy.integrate.quad(callable_, 0, 1, args=(2.0, 1.0))[0], 2 / 3 + 1, rtol=1e-14)
    assert_allclose(scipy.integrate.nquad(callable_, [[0, 1]] * 3)[0], 1 / 6 + 1 / 2, rtol=1e-12)
    with_data = jg.jit(lambda x: x[0] + x[1]).address(np.ones(2), user_data=True)
    assert LowLevelCallable(with_data.ctypes).signature == "double (int, double *, void *)"


def rosenbrock(x):
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def pointer(array):
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_double))


def test_value_and_gradient_from_c():
    function = jg.jit(jg.value_and_grad(rosenbrock)).address(np.zeros(3))
    assert isinstance(function.address, int)
    c = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int, *[ctypes.POINTER(ctypes.c_double)] * 2)(function.address)
    for n in (2, 4, 9):
        x = np.linspace(-1.0, 1.0, n)
        gradient = np.full(n + 1, np.nan)
        assert_allclose(c(n, pointer(x), pointer(gradient)), scipy.optimize.rosen(x), rtol=1e-13)
        assert_allclose(gradient[:n], scipy.optimize.rosen_der(x), rtol=1e-12)
        assert np.isnan(gradient[n])  # nothing is written beyond the end
        assert_allclose(c(n, pointer(x), None), scipy.optimize.rosen(x), rtol=1e-13)  # no gradient wanted


def test_one_callback_for_one_signature():
    function = jg.jit(jg.value_and_grad(rosenbrock))
    made = function.address(np.zeros(3))
    assert function.address(np.zeros(3)) is made
    assert function.address(np.zeros(7)) is made
    assert function.address(np.zeros(3), user_data=True) is not made


def test_other_extents_give_nan_in_c():
    weights = np.arange(3.0)
    function = jg.jit(jg.value_and_grad(lambda w: np.sum((w - weights) ** 2))).address(np.zeros(3), freeze=True)
    x, gradient = np.ones(4), np.zeros(4)
    assert function.ctypes(3, pointer(x), pointer(gradient)) == 2.0
    assert_allclose(gradient, [2.0, 0.0, -2.0, 0.0])
    assert np.isnan(function.ctypes(4, pointer(x), pointer(gradient)))
    assert np.isnan(gradient).all()


def test_a_right_hand_side_and_several_results_in_c():
    function = jg.jit(lambda t, y: -y * t).address(0.0, np.ones(2))
    assert function.ctypes.restype is None
    x, out = np.arange(4.0), np.zeros(4)
    function.ctypes(4, 2.0, pointer(x), pointer(out))
    assert_allclose(out, -2.0 * x)
    both = jg.jit(lambda x, k: (np.sum(x), k * 2, np.max(x) > 1)).address(np.ones(3), 2)
    count, some = ctypes.c_int64(0), ctypes.c_uint8(0)
    assert both.ctypes(4, pointer(x), 5, ctypes.byref(count), ctypes.byref(some)) == 6.0
    assert (count.value, some.value) == (10, 1)


# --------------------------------------------------------------------------- whole programs


def test_hamiltonian_monte_carlo_compiled_whole():
    """The mean of a normal with known noise and a normal prior: posterior mean and variance are known exactly."""
    rng = np.random.default_rng(7)
    noise, prior = 0.8, 2.0
    observed = rng.normal(1.3, noise, size=(25, 2))

    def energy(mu, observed, noise, prior):
        return np.sum((observed - mu) ** 2) / (2 * noise**2) + np.sum(mu**2) / (2 * prior**2)

    step = jg.jit(jg.value_and_grad(energy)).njit(np.zeros(2), observed, 1.0, 1.0)

    @numba.njit
    def sample(mu, observed, noise, prior, draws, size, hops, seed):
        np.random.seed(seed)
        kept = np.empty((draws, mu.size))
        accepted = 0
        value, gradient = step(mu, observed, noise, prior)
        for d in range(draws):
            p = np.random.standard_normal(mu.size)
            start = value + 0.5 * np.sum(p**2)
            q, g = mu.copy(), gradient
            p = p - 0.5 * size * g
            v = value
            for hop in range(hops):
                q = q + size * p
                v, g = step(q, observed, noise, prior)
                p = p - (size if hop < hops - 1 else 0.5 * size) * g
            if np.log(np.random.random()) < start - v - 0.5 * np.sum(p**2):
                mu, value, gradient = q, v, g
                accepted += 1
            kept[d] = mu
        return kept, accepted / draws

    draws = 8000
    kept, rate = sample(np.zeros(2), observed, noise, prior, draws, 0.08, 3, 3)
    precision = len(observed) / noise**2 + 1 / prior**2
    mean = observed.sum(axis=0) / noise**2 / precision
    assert 0.8 < rate <= 1.0
    assert_allclose(kept.mean(axis=0), mean, atol=5 * np.sqrt(1 / precision / draws))
    assert_allclose(kept.var(axis=0), 1 / precision, rtol=0.1)


def test_gradient_descent_compiled_whole(step):
    w, X, y = data(200, 4)

    @numba.njit
    def descend(w, X, y, rate, times):
        for _ in range(times):
            value, gradient = step(w, X, y)
            w = w - rate * gradient
        return w, value

    found, value = descend(w, X, y, 2.0, 500)
    best = scipy.optimize.minimize(logistic_by_hand, w, args=(X, y), jac=True, tol=1e-12)
    assert_allclose(found, best.x, atol=1e-6)
    assert_allclose(value, best.fun, rtol=1e-10)


def test_sensitivities_of_a_differential_equation_by_its_adjoint():
    """Runge-Kutta steps forward, the vjp of each step backward, in one compiled function; the exact derivative of what
    was computed, so complex steps through the same recurrence agree to rounding."""

    def slope(u, k):
        prey = k[0] * u[0] - k[1] * u[0] * u[1]
        hunters = k[2] * u[0] * u[1] - k[3] * u[1]
        return np.concatenate([np.reshape(prey, (1,)), np.reshape(hunters, (1,))])

    def runge_kutta(u, k, dt):
        a = slope(u, k)
        b = slope(u + 0.5 * dt * a, k)
        c = slope(u + 0.5 * dt * b, k)
        d = slope(u + dt * c, k)
        return u + dt / 6.0 * (a + 2.0 * b + 2.0 * c + d)

    def pulled(u, k, dt, cotangent):
        return jg.vjp(lambda u, k: runge_kutta(u, k, dt), u, k)[1](cotangent)

    u, k, dt, n = np.array([1.0, 0.5]), np.array([1.1, 0.4, 0.3, 0.6]), 0.05, 60
    forward = jg.jit(runge_kutta).njit(u, k, dt)
    backward = jg.jit(pulled).njit(u, k, dt, u)

    @numba.njit
    def sensitivities(u, k, dt, n):
        states = np.empty((n + 1, u.size))
        states[0] = u
        for i in range(n):
            states[i + 1] = forward(states[i], k, dt)
        adjoint, total = np.zeros(u.size), np.zeros(k.size)
        adjoint[0] = 1.0  # of the first component at the end
        for i in range(n - 1, -1, -1):
            adjoint, part = backward(states[i], k, dt, adjoint)
            total += part
        return states[-1, 0], adjoint, total

    value, by_start, by_parameters = sensitivities(u, k, dt, n)

    def end(u, k):
        for _ in range(n):
            u = runge_kutta(u, k, dt)
        return u[0]

    def complex_steps(function, x):
        return np.array([function(x + 1e-30j * e).imag / 1e-30 for e in np.eye(x.size)])

    assert_allclose(value, end(u, k), rtol=1e-13)
    assert_allclose(by_start, complex_steps(lambda v: end(v, k), u), rtol=1e-11)
    assert_allclose(by_parameters, complex_steps(lambda v: end(u, v), k), rtol=1e-11)


def test_scipy_minimize_with_the_function_for_numba(step):
    _, X, y = data(200, 4)
    found = scipy.optimize.minimize(step, np.zeros(4), args=(X, y), jac=True, method="L-BFGS-B", tol=1e-12)
    best = scipy.optimize.minimize(logistic_by_hand, np.zeros(4), args=(X, y), jac=True, method="L-BFGS-B", tol=1e-12)
    assert found.success
    assert_allclose(found.x, best.x, atol=1e-5)
    start = np.array([-1.2, 1.0, 0.5])
    found = scipy.optimize.minimize(jg.jit(jg.value_and_grad(rosenbrock)), start, jac=True, method="BFGS")
    assert_allclose(found.x, 1.0, atol=1e-5)


def test_scipy_least_squares_with_jitted_functions():
    t = np.linspace(0.0, 3.0, 30)
    true = np.array([2.0, 0.7, 0.3])
    observed = true[0] * np.exp(-true[1] * t) + true[2]

    def residuals(p, t, observed):
        return p[0] * np.exp(-p[1] * t) + p[2] - observed

    fast = jg.jit(residuals)
    found = scipy.optimize.least_squares(
        fast.njit(true, t, observed), np.ones(3), jac=jg.jit(jg.jacobian(residuals)), args=(t, observed), xtol=1e-14
    )
    assert_allclose(found.x, true, rtol=1e-8)


# --------------------------------------------------------------------------- bare functions, and names that ours have too


def test_transforms_of_bare_functions():
    x, y = np.array([0.3, 0.7]), np.array([1.5, -0.4])
    for function, arguments, expected in (
        (np.sin, (x,), np.sin(x)),
        (np.logaddexp, (x, y), np.logaddexp(x, y)),
        (jg.jacobian(np.sin), (x,), np.diag(np.cos(x))),
        (jg.jacfwd(np.exp), (x,), np.diag(np.exp(x))),
        (jg.jacrev(np.multiply, argnums=1), (x, y), np.diag(x)),
        (jg.grad(np.linalg.norm), (x,), x / np.sqrt(x @ x)),
        (jg.grad(pow), (0.5, 3.0), 0.75),
        (jg.grad(abs), (-2.0,), -1.0),
        (jg.vmap(np.dot), (np.eye(2), np.outer(x, y)), np.diag(np.outer(x, y))),
        (jg.jit(np.exp), (0.5,), np.exp(0.5)),
        (functools.partial(np.multiply, 2.0), (x,), 2 * x),
    ):
        compiled = jg.jit(function).njit(*arguments)
        assert_allclose(compiled(*arguments), expected, rtol=1e-14)
        assert jg.jit(function)(*arguments) == pytest.approx(expected)


@pytest.mark.parametrize(
    "name", ["exp", "kernel", "np", "max", "argument0", "never_cache", "inner", "function", "value", "lambda"]
)
def test_functions_named_like_what_their_source_calls(name):
    def f(x):
        return 2.0 * jg.exp(x)

    f.__name__ = name
    jitted = jg.jit(f)
    compiled = jitted.njit(0.5)
    assert compiled(0.25) == pytest.approx(2.0 * np.exp(0.25), rel=1e-15)
    assert compiled is jitted.njit(1.5)
    assert compiled.__name__.rstrip("_") == name
    assert jitted.address(0.5).ctypes(0.25) == pytest.approx(2.0 * np.exp(0.25), rel=1e-15)


def test_positions_that_follow_from_captured_arrays_need_freezing_lists_do_not():
    at, mask, counts = np.array([0, 2]), np.array([True, False, True]), np.array([1, 2, 1])
    x = np.array([1.0, 2.0, 3.0])
    for function in (
        lambda x: x[at] * 2.0,
        lambda x: x[mask.astype(int)] * 2.0,
        lambda x: np.take(x, at, mode="wrap") * 2.0,
        lambda x: np.delete(x, at) * 2.0,
        lambda x: np.repeat(x, counts) * 2.0,
    ):
        with pytest.raises(UnsupportedError, match="freeze=True"):
            jg.jit(function).njit(x)
    for function in (
        lambda x: x[[0, 2]] * 2.0,
        lambda x: np.take(x, [0, 4], mode="wrap") * 2.0,
        lambda x: np.delete(x, [1]) * 2.0,
        lambda x: np.repeat(x, [1, 2, 1]) * 2.0,
    ):
        np.testing.assert_array_equal(jg.jit(function).njit(x)(x), function(x))


def test_arrays_made_under_vmap_need_no_freezing():
    def function(x):
        return np.triu(x, 1) * 2.0 + np.full_like(x, 3.0)

    step = jg.jit(jg.vmap(function)).njit(np.ones((2, 3, 4)))
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    np.testing.assert_array_equal(step(x), np.triu(x, 1) * 2.0 + 3.0)


class TestHints:
    """What cannot be called from where says what can."""

    def test_jitted_function_in_numba(self):
        fast = jg.jit(lambda x: x * 2.0)

        @numba.njit
        def caller(x):
            return fast(x)

        with pytest.raises(UnsupportedError, match=r"g = f\.njit\(\*examples\)"):
            caller(1.0)

    def test_jitted_function_given_to_numba(self):
        with pytest.raises(UnsupportedError, match=r"g = f\.njit\(\*examples\)"):
            numba.njit(lambda f, x: f(x))(jg.jit(lambda x: x * 2.0), 1.0)

    @pytest.mark.parametrize("transform", [jg.grad, jg.value_and_grad, jg.jit, jg.jacobian, jg.hessian])
    def test_numba_function_given_to_a_transform(self, transform):
        square = numba.njit(lambda x: x * x)
        with pytest.raises(UnsupportedError, match=r"f\.py_func"):
            transform(square)(3.0)
        transform(square.py_func)(3.0)

    @pytest.mark.parametrize("what", ["njit", "address"])
    def test_examples_are_missing(self, what):
        for function in (jg.jit(lambda x, y: x * y), jg.jit(jg.grad(lambda x, y: x * y))):
            with pytest.raises(UnsupportedError, match=rf"{what} takes an example of each argument.*'y'"):
                getattr(function, what)(1.0)
            assert getattr(function, what)(1.0, 2.0) is not None

    @pytest.mark.parametrize("what", ["njit", "address"])
    def test_examples_by_name(self, what):
        with pytest.raises(
            UnsupportedError, match=rf"\.{what} takes its examples by position: give y without the name"
        ):
            getattr(jg.jit(lambda x, y: x * y), what)(1.0, y=2.0)
        with pytest.raises(
            UnsupportedError, match=r"y cannot be given so: jit a function that takes everything by position"
        ):
            getattr(jg.jit(lambda x, *, y: x * y), what)(1.0, y=2.0)

    def test_tensors_do_not_list_it(self):
        assert "_numba_type_" not in dir(jg.tensor(1.0))
