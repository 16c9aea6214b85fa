"""Operations over array kernels inside of fused ones: the same values and gradients as eagerly, for every layout, dtype and
special value; the same errors; sorting as NumPy sorts."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jitgrad as jg
from jitgrad import config
from jitgrad.core.linalg_errors import NotPositiveDefiniteError, NotSymmetricError, SingularMatrixError

rng = np.random.default_rng(5)


def stack(*extents):
    return rng.uniform(-1.0, 1.0, extents) + 3.0 * extents[-1] * np.eye(extents[-1])


def symmetric(*extents):
    a = rng.uniform(-1.0, 1.0, extents)
    return a + a.swapaxes(-1, -2) + np.diag(4.0 * (1.0 + np.arange(extents[-1])))


def several(f):
    return lambda *xs: sum((jg.sin(r) * 0.5 + r * r).sum() for r in f(*xs))


MATRICES = {
    "inv": jg.linalg.inv,
    "det": jg.linalg.det,
    "slogdet": lambda a: jg.linalg.slogdet(a)[1],
    "pinv": jg.linalg.pinv,
    "svdvals": jg.linalg.svdvals,
    "singular vectors": lambda a: jg.linalg.svd(a, full_matrices=False)[0] ** 4,
    "qr": lambda a: jg.linalg.qr(a)[1] ** 2,
    "lower solution": lambda a: jg.linalg.solve_triangular(a, a, lower=True),
    "upper solution": lambda a: jg.linalg.solve_triangular(a, a[..., :1]),
    "condition of order 1": lambda a: jg.linalg.cond(a, 1),
    "power 0": lambda a: jg.linalg.matrix_power(a, 0) * a,
    "power -2": lambda a: jg.linalg.matrix_power(a, -2),
    "second derivative of det": jg.grad(lambda b: jg.linalg.det(b).sum()),
    "nuclear norm": lambda a: jg.linalg.matrix_norm(a, ord="nuc"),
}
SYMMETRIC = {
    "cholesky": jg.linalg.cholesky,
    "eigvalsh": jg.linalg.eigvalsh,
    "eigenvectors": lambda a: jg.linalg.eigh(a)[1] ** 4,
    "eigenvectors from above": lambda a: jg.linalg.eigh(a, "U")[1] ** 4,
}
ARRAYS = {
    **{f"cumsum {a}": partial(jg.cumsum, axis=a) for a in (0, 1, -1, None)},
    **{f"cumprod {a}": partial(jg.cumprod, axis=a) for a in (0, 1, -1, None)},
    **{f"prod {a}": partial(jg.prod, axis=a) for a in (0, 1, (0, 2), None)},
    **{f"norm {a}": partial(jg.linalg.norm, axis=a) for a in (0, 1, (2, 0), (0, 1))},
    **{f"norm of order 3 {a}": partial(jg.linalg.norm, ord=3, axis=a) for a in (0, 1, 2)},
    **{f"sort {a}": partial(jg.sort, axis=a) for a in (0, 1, -1, None)},
    **{f"sort down {a}": partial(jg.sort, axis=a, descending=True) for a in (0, 1, -1, None)},
    **{f"median {a}": partial(jg.median, axis=a) for a in (0, 1, (0, 2), (0, 1), None)},
    **{f"quantile {a}": partial(jg.quantile, q=[0.3, 0.9], axis=a) for a in (0, (0, 2), None)},
    **{f"var {a}": partial(jg.var, axis=a, ddof=1) for a in (0, (0, 2), None)},
    **{f"std {a}": partial(jg.std, axis=a) for a in (0, (0, 2), None)},
    **{f"softmax {a}": partial(jg.softmax, axis=a) for a in (0, (0, 2))},
    **{f"log_softmax {a}": partial(jg.log_softmax, axis=a) for a in (0, (0, 2))},
    **{f"logsumexp {a}": partial(jg.logsumexp, axis=a) for a in (0, (0, 2))},
    "second derivative of prod": jg.grad(lambda y: jg.prod(y, axis=1).sum()),
}
CASES = (
    [(n, f, a) for n, f in MATRICES.items() for a in (stack(2, 3, 3), stack(2, 1, 2, 2), stack(0, 2, 2), stack(4, 4).T)]
    + [(n, f, a) for n, f in SYMMETRIC.items() for a in (symmetric(2, 3, 3), symmetric(3, 3), symmetric(0, 2, 2))]
    + [(n, f, rng.uniform(0.5, 2.0, s)) for n, f in ARRAYS.items() for s in ((3, 4, 2), (1, 5, 3))]
)
COMPILED = {n: (f, x) for n, f, x in reversed(CASES)}
TOLERANCES = {"float64": {"rtol": 1e-11, "atol": 1e-11}, "float32": {"rtol": 2e-4, "atol": 2e-4}}


def total(f):
    def value(x):
        r = f(x)
        return (jg.sin(r) * 0.5 + r * r).sum()

    return jg.value_and_grad(value)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(("name", "function", "x"), CASES, ids=[f"{n}-{a.shape}" for n, _, a in CASES])
def test_fused_as_eager(name, function, x, dtype):
    with config.override(kernels="python"):
        check(function, x, dtype)


@pytest.mark.parametrize("name", COMPILED)
def test_fused_and_compiled_as_eager(name):
    check(*COMPILED[name], "float32" if len(name) % 2 else "float64")


def check(function, x, dtype):
    x = x.astype(dtype)
    both = total(function)
    compiled = jg.jit(both)
    wanted, got = both(x), compiled(x)
    for g, w in zip(got, wanted, strict=True):
        assert np.asarray(g).dtype == np.asarray(w).dtype
        assert_allclose(g, w, **TOLERANCES[dtype])
    assert compiled.explain(x).apart == () or not x.size  # the greatest of no elements runs on its own


EMPTY = {
    "cumsum": (jg.cumsum, (0,)), "cumprod": (partial(jg.cumprod, axis=0), (0, 3)), "norm": (jg.linalg.norm, (0,)),
    "norm of rows": (partial(jg.linalg.norm, axis=1), (2, 0)), "norm of order 3": (partial(jg.linalg.norm, ord=3), (0,)),
    "sort": (jg.sort, (2, 0)), "prod": (partial(jg.prod, axis=1), (2, 0)), "median": (partial(jg.median, axis=1), (2, 0)),
    "var": (jg.var, (0,)), "var of columns": (partial(jg.var, axis=0), (2, 0)), "std": (jg.std, (0,)),
    "few degrees": (partial(jg.std, ddof=3), (2,)), "softmax": (jg.softmax, (2, 0)), "log_softmax": (jg.log_softmax, (2, 0)),
    "logsumexp": (partial(jg.logsumexp, axis=1), (2, 0)), "softmax of columns": (partial(jg.softmax, axis=0), (2, 0)),
    "inv": (jg.linalg.inv, (0, 0)), "det": (jg.linalg.det, (0, 0)), "cholesky": (jg.linalg.cholesky, (2, 0, 0)),
    "eigvalsh": (jg.linalg.eigvalsh, (0, 0)), "svdvals": (jg.linalg.svdvals, (2, 0)), "pinv": (jg.linalg.pinv, (0, 3)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EMPTY)
def test_nothing_at_all(name):
    function, shape = EMPTY[name]
    both, x = total(function), np.ones(shape)
    compiled = jg.jit(both)
    for g, w in zip(compiled(x), both(x), strict=True):
        assert_array_equal(g, w)
    assert compiled.explain(x).apart == ()
    for g, w in zip(compiled.njit(x)(x), both(x), strict=True):
        assert_array_equal(g, w)


# --------------------------------------------------------------------------- sorting

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.0, math.nan]
ROWS = {
    "special": np.array(SPECIAL),
    "ties": np.array([2.0, 1.0, 2.0, 1.0, 1.0, 0.0, 2.0]),
    "integers": rng.integers(-3, 4, 50),
    "greatest integers": np.array([np.iinfo(np.int64).min, 0, np.iinfo(np.int64).max, -1, np.iinfo(np.int64).min]),
    "small integers": rng.integers(-3, 4, 17).astype(np.int8),
    "booleans": rng.integers(0, 2, 19).astype(bool),
    "single": rng.normal(size=33).astype(np.float32),
    "one": np.array([3.0]),
    "long": rng.normal(size=1000).round(1),
    "matrix": rng.integers(0, 3, (4, 6, 3)).astype(np.float64),
}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_order_is_numpys(name, descending):
    x = ROWS[name]
    for axis in range(x.ndim):
        order = jg.jit(lambda v, axis=axis: jg.argsort(v, axis, descending=descending))(x)
        assert order.dtype == np.int64
        if not descending:
            assert_array_equal(order, np.argsort(x, axis, kind="stable"))
        assert_array_equal(order, jg.argsort(x, axis, descending=descending).numpy())
        values = jg.jit(lambda v, axis=axis: jg.sort(v, axis, descending=descending))(x)
        # of equal zeros with different signs either may come first
        assert_array_equal(values, jg.sort(x, axis, descending=descending).numpy())
        assert_array_equal(
            np.sort(np.signbit(values), axis), np.sort(np.signbit(x), axis)
        ) if x.dtype.kind == "f" else None


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", [n for n, x in ROWS.items() if x.dtype.kind == "f"])
def test_cotangents_go_where_values_came_from(name, descending):
    x = ROWS[name]
    for axis in range(x.ndim):
        weights = np.arange(1.0, x.size + 1).reshape(x.shape).astype(x.dtype)

        def f(v, axis=axis, weights=weights):
            return jg.where(jg.isfinite(s := jg.sort(v, axis, descending=descending)), s * weights, 0.0).sum()

        assert_array_equal(jg.jit(jg.grad(f))(x), jg.grad(f)(x))


@pytest.mark.parametrize("q", [0.5, [0.1, 0.5, 1.0], list(np.linspace(0, 1, 9))])
@pytest.mark.parametrize("name", [n for n, x in ROWS.items() if x.dtype.kind == "f"])
def test_quantiles_of_ties_and_nan(name, q):
    x = ROWS[name]
    for axis in (*range(x.ndim), None, *([(0, 2)] if x.ndim == 3 else [])):
        both = jg.value_and_grad(lambda v, axis=axis: (jg.quantile(v, q, axis) * 2.0).sum())
        for g, w in zip(jg.jit(both)(x), both(x), strict=True):
            assert_allclose(g, w, rtol=1e-14 if x.dtype == np.float64 else 1e-6)


def test_ranks_of_equal_elements_do_not_depend_on_the_algorithm():
    x = np.repeat([3.0, 1.0, 2.0], 100)
    gradient = jg.grad(jg.median)(x)
    order = np.argsort(x, kind="stable")
    wanted = np.zeros(300)
    wanted[order[[149, 150]]] = 0.5
    assert_array_equal(gradient, wanted)
    assert_array_equal(jg.jit(jg.grad(jg.median))(x), wanted)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtypes", list(itertools.product(["float64", "float32", "int64", "int32"], repeat=2)))
def test_search_is_numpys(side, dtypes):
    x = np.sort(rng.integers(-5, 6, 23)).astype(dtypes[0])
    v = rng.integers(-7, 8, (4, 5)).astype(dtypes[1])
    if x.dtype.kind == "f":
        x[-3:] = np.nan
        x[-4] = np.inf
    if v.dtype.kind == "f":
        v[0, :3] = np.nan, np.inf, -np.inf
    found = jg.jit(lambda x, v: jg.searchsorted(x, v, side))
    assert_array_equal(found(x, v), np.searchsorted(x, v, side))
    assert_array_equal(found(x[:0], v), np.zeros(v.shape, int))
    assert found.explain(x, v).apart == ()


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_extrema_of_every_type(name):
    for x in (*ROWS.values(), np.zeros(4, bool), np.ones((2, 3), bool)):
        for axis in (None, *range(x.ndim)):
            found = jg.jit(lambda v, axis=axis: getattr(jg, name)(v, axis))
            assert_array_equal(found(x), getattr(np, name)(x, axis))
            assert found.explain(x).apart == ()


# --------------------------------------------------------------------------- integers


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "bool"])
@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 2)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (2, 4, 1)), ((2, 0), (0, 2))]
)
def test_products_of_integers(dtype, shapes):
    x, y = (rng.integers(-100, 100, s).astype(dtype) for s in shapes)
    product = jg.jit(lambda x, y: x @ y)
    assert_array_equal(product(x, y), x @ y)
    assert product(x, y).dtype == x.dtype
    assert product.explain(x, y).apart == ()


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", ["int64", "int8", "bool", "uint8", "uint64"])
def test_scans_of_integers(name, dtype):
    x = rng.integers(0, 100, (3, 4)).astype(dtype)
    for axis in (0, 1, None):
        wanted = getattr(np, name)(x, axis)
        assert_array_equal(getattr(jg, name)(x, axis).numpy(), wanted)
        assert_array_equal(jg.jit(lambda v, axis=axis: getattr(jg, name)(v, axis))(x), wanted)


# --------------------------------------------------------------------------- errors and special values

ERRORS = {
    "inv": (jg.linalg.inv, np.ones((2, 2)), SingularMatrixError, "a matrix is singular; use pinv"),
    "solve": (lambda a: jg.linalg.solve(a, a), np.zeros((2, 2, 2)), SingularMatrixError, "a matrix is singular"),
    "cholesky": (jg.linalg.cholesky, -np.eye(2), NotPositiveDefiniteError, "not positive definite"),
    "triangle": (jg.linalg.cholesky, np.array([[1.0, 0.0], [5.0, 1.0]]), NotSymmetricError, "not symmetric"),
    "eigh": (jg.linalg.eigvalsh, np.array([[1.0, 5.0], [0.0, 1.0]]), NotSymmetricError, "not symmetric"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_come_out_of_kernels(name):
    function, x, kind, text = ERRORS[name]
    compiled = jg.jit(lambda a: function(a).sum())
    good = np.broadcast_to(np.eye(2), x.shape).copy()
    step = compiled.njit(good)
    for run in (compiled, step, function):
        with pytest.raises(kind, match=text) as caught:
            run(x)
        assert isinstance(caught.value, np.linalg.LinAlgError)
    assert np.isfinite(step(good))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["svdvals", "eigvalsh", "pinv", "det", "slogdet"])
def test_matrices_that_are_not_finite(name, bad):
    a = symmetric(3, 3, 3)
    a[1] = bad
    function = {**MATRICES, **SYMMETRIC}.get(name)
    both = total(function)
    for g, w in zip(jg.jit(both)(a), both(a), strict=True):
        assert_allclose(g, w, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["norm 1", "cumprod 1", "cumsum 1", "prod 1", "norm of order 3 1"])
@pytest.mark.parametrize("special", [0.0, -0.0, np.inf, -np.inf, np.nan, 1e200, 1e-200])
def test_special_elements(name, special):
    x = rng.uniform(0.5, 2.0, (3, 4, 2))
    x[0, 1:3, 0] = special
    x[1] = special
    both = jg.value_and_grad(lambda v: (ARRAYS[name](v) * 2.0).sum())
    for g, w in zip(jg.jit(both)(x), both(x), strict=True):
        assert_allclose(g, w, rtol=1e-13)


@pytest.mark.parametrize("p", [1, -1, "fro", np.inf, -np.inf])
def test_condition_of_a_singular_matrix(p):
    singular, regular = np.array([[1.0, 2.0], [2.0, 4.0]]), np.array([[2.0, 1.0], [1.0, 3.0]])
    stack = np.stack([singular, regular, np.full((2, 2), np.nan)])
    wanted = np.linalg.cond(stack, p)
    assert wanted[0] == np.inf
    assert np.isnan(wanted[2])
    for f in (jg.linalg.cond, jg.jit(lambda a: jg.linalg.cond(a, p))):
        assert_allclose(np.asarray(f(stack, p) if f is jg.linalg.cond else f(stack)), wanted, rtol=1e-13)
    gradient = jg.grad(lambda a: jg.linalg.cond(a, p).sum())
    for g in (gradient, jg.jit(gradient)):
        found = g(stack[:2])
        assert np.isnan(found[0]).any()
        assert np.isfinite(found[1]).all()


def test_other_extents_of_decompositions_are_an_error():
    """What is known of an extent only while it is the smaller one."""
    singular = jg.jit(lambda a, s: np.sum(jg.linalg.svd(a, full_matrices=False)[1] * s)).njit(np.eye(5, 3), np.ones(3))
    assert_allclose(singular(np.eye(5, 3), np.ones(3)), 3.0)
    orthogonal = jg.jit(lambda a, s: np.sum(jg.linalg.qr(a)[1] @ s)).njit(np.eye(5, 3), np.ones(3))
    for step in (singular, orthogonal):
        with pytest.raises(ValueError):
            step(np.eye(2, 3), np.ones(3))
