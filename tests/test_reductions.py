"""Reductions, scans, sorting and the softmax family: kinks, special values, dtypes, errors and accuracy."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jitgrad as jg
from jitgrad.autodiff.forward import push
from jitgrad.core.aval import aval_of
from jitgrad.core.trace import trace
from jitgrad.errors import ArgumentError, DtypeError, JitgradError, ShapeError

Array = np.ndarray[Any, Any]
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """NumPy, the oracle here, warns of overflow and of empty means; results of the two are compared instead."""
    with np.errstate(all="ignore"):
        yield


def gradient(f: Callable[[Any], Any], x: Any, cotangent: Any = None, dtype: Any = np.float64) -> Array:
    """The gradient of ``f`` at ``x`` for a cotangent (ones by default)."""
    leaf = jg.tensor(np.asarray(x, dtype), requires_grad=True)
    y = f(leaf)
    y.backward(np.ones(y.shape, dtype) if cotangent is None else np.asarray(cotangent, dtype))
    return leaf.grad.numpy()


def second(f: Callable[[Any], Any], x: Any, direction: Any) -> Array:
    """The Hessian of the sum of ``f`` times a direction."""
    leaf = jg.tensor(np.asarray(x, np.float64), requires_grad=True)
    y = f(leaf)
    y.backward(np.ones(y.shape), create_graph=True)
    first = leaf.grad
    leaf.grad = None
    if not first.requires_grad:
        return np.zeros(first.shape)
    first.backward(np.asarray(direction, np.float64))
    return np.zeros(first.shape) if leaf.grad is None else leaf.grad.numpy()


def forward(f: Callable[[Any], Any], x: Array, t: Array) -> Array:
    """The tangent of ``f`` at ``x`` in a direction."""
    graph = trace(lambda v: [f(v)], [aval_of(x)], "f")
    _, (moved,) = push(graph, [jg.tensor(x)], [jg.tensor(t)])
    return moved.numpy()


def numerical(f: Callable[[Array], Any], x: Array, step: float = 1e-5) -> Array:
    """Central differences, of fourth order."""
    result = np.zeros(x.shape)
    for i in np.ndindex(x.shape):

        def at(t: float, i: tuple[int, ...] = i) -> float:
            moved = x.copy()
            moved[i] += t
            return float(f(moved))

        result[i] = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    return result


# --------------------------------------------------------------------------------- values and dtypes

REDUCTIONS = ["sum", "mean", "prod", "max", "min", "any", "all", "count_nonzero", "var", "std", "ptp", "median"]
DTYPES = ["bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64"]
AXES: list[Any] = [None, 0, 1, -1, (0, 2), (-1, 1), (2, 0), (0, 1, 2), ()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_axis_and_dtype_as_in_numpy(name: str, dtype: str) -> None:
    if name == "ptp" and dtype == "bool":
        return  # NumPy refuses to subtract booleans, and so does jitgrad
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 7, (2, 3, 4)).astype(dtype)
    for axis, keepdims in itertools.product(AXES, (False, True)):
        if name == "median" and axis == ():
            continue  # NumPy cannot
        expected = np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdims))
        for operand in (x, np.asfortranarray(x), np.repeat(x, 2, 2)[:, :, ::2], np.flip(x.copy(), 1)[:, ::-1]):
            actual = getattr(jg, name)(operand, axis, keepdims=keepdims)
            assert actual.shape == expected.shape
            assert actual.dtype == expected.dtype, (axis, actual.dtype)
            np.testing.assert_allclose(actual.numpy(), expected, rtol=2e-6 if dtype == "float32" else 1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arguments_of_extrema(name: str, dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 4, (3, 4, 5)).astype(dtype)
    for axis, keepdims in itertools.product((None, 0, 1, -1), (False, True)):
        expected = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        actual = getattr(jg, name)(x, axis, keepdims=keepdims)
        assert actual.dtype == np.int64
        np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("row", [[1.0, NAN, 3.0, NAN], [NAN, NAN], [-INF, -INF], [INF, 1.0, INF], [-0.0, 0.0]])
@pytest.mark.parametrize(
    "name", ["argmax", "argmin", "max", "min", "any", "all", "sum", "mean", "prod", "var", "median"]
)
def test_special_values_as_in_numpy(name: str, row: list[float]) -> None:
    np.testing.assert_array_equal(getattr(jg, name)(row).numpy(), getattr(np, name)(np.array(row)))


def test_a_scalar_is_reduced_over_axis_zero_as_in_numpy() -> None:
    for name in ("sum", "prod", "max", "min", "any", "all"):
        for axis in (None, 0, -1, ()):
            assert getattr(jg, name)(3.0, axis).numpy() == getattr(np, name)(3.0, axis)
    with pytest.raises(ShapeError, match="mean"):  # nor has NumPy a mean over an axis of a scalar
        jg.mean(3.0, 0)
    assert jg.softmax(3.0).numpy() == 1.0
    assert jg.cumsum(3.0).shape == np.cumsum(3.0).shape
    with pytest.raises(ShapeError, match="sum"):
        jg.sum(3.0, 1)


def test_no_elements() -> None:
    none = np.zeros((2, 0))
    assert jg.sum(none, 1).tolist() == [0.0, 0.0]
    assert jg.prod(none, 1).tolist() == [1.0, 1.0]
    assert jg.any(none).item() is False
    assert jg.all(none).item() is True
    assert jg.logsumexp(none, 1).tolist() == [-INF, -INF]
    assert jg.softmax(none).shape == jg.log_softmax(none).shape == jg.sort(none).shape == (2, 0)
    assert jg.cumulative_sum(none, axis=1, include_initial=True).tolist() == [[0.0], [0.0]]
    for f in (jg.mean, jg.var, jg.std, jg.median):
        assert np.isnan(f(none, 1).numpy()).tolist() == [True, True]
        assert f(none, 0).shape == (0,)
    for f in (jg.max, jg.min, jg.argmax, jg.argmin):
        with pytest.raises(ShapeError, match=rf"{f.__name__}.*\(2, 0\)"):
            f(none, 1)
        with pytest.raises(ShapeError):
            f(none)
        assert f(none, 0).shape == (0,)
    for f in (jg.sum, jg.mean, jg.prod, jg.var, jg.std, jg.logsumexp):
        assert gradient(lambda x, f=f: f(x, 1), none).shape == (2, 0)


def test_methods_take_what_numpy_takes() -> None:
    x = np.arange(6.0).reshape(2, 3)
    t = jg.tensor(x)
    for name in ("sum", "mean", "prod", "max", "min", "var", "std", "any", "all", "argmax", "argmin"):
        np.testing.assert_allclose(getattr(t, name)(1).numpy(), getattr(x, name)(1))
        np.testing.assert_allclose(
            getattr(t, name)(axis=0, keepdims=True).numpy(), getattr(x, name)(axis=0, keepdims=True)
        )
    assert t.sum(0, np.float32).dtype == np.float32
    assert t.cumsum(1).tolist() == x.cumsum(1).tolist()
    assert t.cumprod().tolist() == x.cumprod().tolist()
    assert t.amax(0).tolist() == t.max(0).tolist() == [3.0, 4.0, 5.0]


def test_dtype_of_the_result() -> None:
    small = np.array([100, 100, 100], np.int8)
    assert jg.sum(small, dtype=np.float32).dtype == np.float32
    assert jg.sum(small).item() == 300
    assert jg.mean(small, dtype=np.float32).dtype == np.float32
    assert jg.prod(np.array([2.0], np.float32), dtype=np.float64).dtype == np.float64
    assert jg.cumsum(small).tolist() == [100, 200, 300]
    with pytest.raises(DtypeError, match="mean"):
        jg.mean([1.0], dtype=np.int64)


# --------------------------------------------------------------------------------- accuracy


def test_a_million_terms_of_float32_keep_their_digits() -> None:
    x = np.random.default_rng(2).uniform(0.5, 1.5, 1_000_000).astype(np.float32)
    exact = math.fsum(x.tolist())
    for shape in ((1_000_000,), (1_000_000, 1), (500_000, 2)):
        y = x.reshape(shape)
        total = jg.sum(y, 0).numpy().astype(np.float64).sum()
        assert abs(total / exact - 1) < 1e-6
        assert abs(jg.mean(y, 0).numpy().mean() / (exact / 1_000_000) - 1) < 1e-6
    assert abs(jg.cumsum(x).numpy()[-1] / exact - 1) < 1e-6
    assert abs(jg.logsumexp(x).item() - math.log(math.fsum(map(math.exp, x.tolist())))) < 2e-6
    assert abs(jg.var(x).item() / np.var(x.astype(np.float64)) - 1) < 1e-6


@pytest.mark.parametrize("offset", [0.0, 1e8, -1e12])
def test_variance_of_data_far_from_zero(offset: float) -> None:
    x = offset + np.random.default_rng(3).integers(0, 100, 1000) / 64
    with mpmath.workdps(50):
        values = [mpmath.mpf(v) for v in x.tolist()]
        mean = mpmath.fsum(values) / len(values)
        exact = mpmath.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
        slopes = np.array([float(2 * (v - mean) / (len(values) - 1)) for v in values])
    assert abs(jg.var(x, ddof=1).item() / float(exact) - 1) < 1e-13
    np.testing.assert_allclose(
        gradient(lambda v: jg.var(v, ddof=1), x), slopes, rtol=0, atol=1e-13 * np.abs(slopes).max()
    )


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1e5, 1e300])
def test_softmax_family_against_exact_arithmetic(shift: float) -> None:
    x = np.array([0.3, -2.0, 5.5, -40.0, 1.25]) + shift
    with mpmath.workdps(60):
        values = [mpmath.mpf(v) for v in x.tolist()]
        top = max(values)
        weights = [mpmath.exp(v - top) for v in values]
        log = top + mpmath.log(mpmath.fsum(weights))
        soft = np.array([float(w / mpmath.fsum(weights)) for w in weights])
        logs = np.array([float(v - top - mpmath.log(mpmath.fsum(weights))) for v in values])
    np.testing.assert_allclose(jg.logsumexp(x).numpy(), float(log), rtol=1e-15)
    np.testing.assert_allclose(jg.softmax(x).numpy(), soft, rtol=1e-14)
    np.testing.assert_allclose(jg.log_softmax(x).numpy(), logs, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(gradient(jg.logsumexp, x), soft, rtol=1e-14)
    expected = np.diag(soft) - np.outer(soft, soft)
    for i in range(5):
        np.testing.assert_allclose(gradient(lambda v, i=i: jg.softmax(v)[i], x), expected[i], rtol=1e-12, atol=1e-16)
        np.testing.assert_allclose(
            gradient(lambda v, i=i: jg.log_softmax(v)[i], x), np.eye(5)[i] - soft, rtol=1e-12, atol=1e-16
        )


def test_small_weights_beside_a_weight_of_one_keep_their_digits() -> None:
    for x in (40.0, 100.0, 700.0):
        np.testing.assert_allclose(jg.logsumexp([0.0, -x]).numpy(), math.exp(-x), rtol=1e-15)
        np.testing.assert_allclose(jg.log_softmax([5.0, 5.0 - x]).numpy()[0], -math.exp(-x), rtol=1e-15)
    assert jg.logsumexp([0.0, 0.0]).item() == math.log(2.0)


# --------------------------------------------------------------------------------- kinks and singular points


@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        (jg.max, [1.0, 3.0, 3.0, 2.0], [0.0, 0.5, 0.5, 0.0]),
        (jg.min, [1.0, 1.0, 1.0], [1 / 3] * 3),
        (jg.max, [-INF, -INF], [0.5, 0.5]),
        (jg.max, [0.0, -0.0], [0.5, 0.5]),
        (jg.max, [1.0, NAN], [NAN, NAN]),
        (jg.ptp, [2.0, 2.0], [0.0, 0.0]),
        (lambda x: jg.max(x, 1), [[1.0, 1.0], [2.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]),
        (
            lambda x: jg.max(x, (0, 2)),
            [[[1.0, 5.0], [1.0, 2.0]], [[5.0, 0.0], [2.0, 2.0]]],
            [[[0.0, 0.5], [0.0, 1 / 3]], [[0.5, 0.0], [1 / 3, 1 / 3]]],
        ),
        (jg.prod, [2.0, 0.0, 5.0], [0.0, 10.0, 0.0]),
        (jg.prod, [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]),
        (jg.std, [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]),
        (jg.std, [0.1] * 10, [0.0] * 10),
        (jg.std, [1e8 + 0.1] * 7, [0.0] * 7),
        (jg.nanstd, [0.1, NAN, 0.1, 0.1], [0.0] * 4),
        (lambda x: jg.var(x, ddof=1), [3.0], [NAN]),
        (lambda x: jg.std(x, ddof=2), [3.0, 4.0], [NAN, NAN]),
        (lambda x: jg.var(x, 0, ddof=2), [[3.0, 1.0]], [[NAN, NAN]]),
        (jg.logsumexp, [-INF, -INF], [0.0, 0.0]),
        (jg.logsumexp, [-INF, 3.0], [0.0, 1.0]),
        (jg.logsumexp, [INF, 3.0], [1.0, 0.0]),
        (jg.logsumexp, [INF, INF, 3.0], [0.5, 0.5, 0.0]),
        (jg.logsumexp, [1e308, -1e308], [1.0, 0.0]),
        (jg.logsumexp, [NAN, 1.0], [NAN, NAN]),
        (jg.median, [1.0, 2.0, 4.0, 8.0], [0.0, 0.5, 0.5, 0.0]),
        (jg.median, [1.0, 7.0, 2.0], [0.0, 0.0, 1.0]),
        (jg.nansum, [1.0, NAN], [1.0, 0.0]),
        (jg.nanmean, [1.0, NAN, 3.0], [0.5, 0.0, 0.5]),
        (jg.nanmax, [1.0, NAN, 3.0, 3.0], [0.0, 0.0, 0.5, 0.5]),
        (jg.nanprod, [2.0, NAN, 0.0], [0.0, 0.0, 2.0]),
    ],
)  # fmt: skip
def test_gradient_where_it_takes_a_decision(f: Any, x: Any, expected: Any) -> None:
    np.testing.assert_allclose(gradient(f, x), expected, rtol=1e-15)
    np.testing.assert_allclose(gradient(f, x, dtype=np.float32), expected, rtol=1e-6)


def test_values_at_infinities() -> None:
    assert jg.logsumexp([-INF, -INF]).item() == -INF
    assert jg.logsumexp([INF, -INF]).item() == INF
    assert jg.logsumexp([1e308, 1e308]).item() == 1e308
    assert jg.softmax([0.0, INF]).tolist() == [0.0, 1.0]
    assert jg.softmax([-INF, 5.0]).tolist() == [0.0, 1.0]
    assert jg.log_softmax([0.0, INF]).tolist() == [-INF, 0.0]
    assert jg.log_softmax([-INF, 5.0]).tolist() == [-INF, 0.0]
    assert np.isnan(jg.softmax([-INF, -INF]).numpy()).all()
    assert gradient(lambda x: jg.softmax(x)[0], [0.0, INF]).tolist() == [0.0, 0.0]
    assert gradient(lambda x: jg.log_softmax(x)[1], [-INF, 5.0]).tolist() == [0.0, 0.0]


def test_ties_of_order_statistics_choose_one_place() -> None:
    for f in (jg.median, lambda x: jg.quantile(x, 0.5), lambda x: jg.sort(x)[1]):
        found = gradient(f, [2.0, 2.0, 2.0])
        assert sorted(found.tolist()) == [0.0, 0.0, 1.0]
    np.testing.assert_array_equal(gradient(jg.sort, [2.0, 1.0, 2.0], [1.0, 2.0, 3.0]), [2.0, 1.0, 3.0])
    np.testing.assert_array_equal(
        gradient(lambda x: jg.sort(x, descending=True), [2.0, 1.0, 2.0], [1.0, 2.0, 3.0]), [1.0, 3.0, 2.0]
    )


def test_the_gradient_of_an_extremum_does_not_reach_other_elements() -> None:
    # an infinite cotangent times a weight of 0 would be NaN
    np.testing.assert_array_equal(gradient(lambda x: jg.sqrt(jg.max(x)), [0.0, -1.0]), [INF, 0.0])


def test_second_derivative_of_a_deviation_of_zero_is_not_a_guess() -> None:
    for f in (jg.std, jg.nanstd):
        assert np.isnan(second(f, [2.0, 2.0, 2.0], [1.0, 0.0, 0.0])).all()
    np.testing.assert_allclose(second(jg.var, [2.0, 2.0], [1.0, 0.0]), [0.5, -0.5])


# --------------------------------------------------------------------------------- derivatives of products

with_zeros = hnp.arrays(
    np.float64,
    hnp.array_shapes(max_dims=3, max_side=4),
    elements=st.sampled_from([0.0, 0.0, 1.0, -2.0, 0.5, 4.0]),
)


@settings(max_examples=60)
@given(with_zeros, st.data())
def test_products_are_exact_where_there_are_zeros(x: Array, data: st.DataObject) -> None:
    """Powers of 2 multiply without rounding, so that products of all others are known exactly."""
    axis = data.draw(st.sampled_from([None, *range(x.ndim)]))
    rows = x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    expected = np.array([[np.prod(np.delete(row, i)) for i in range(len(row))] for row in rows])
    moved = x.shape if axis is None else np.moveaxis(x, axis, -1).shape
    expected = expected.reshape(moved)
    np.testing.assert_array_equal(
        gradient(lambda v: jg.prod(v, axis), x), expected if axis is None else np.moveaxis(expected, -1, axis)
    )


def _cumulative_hessian(x: Array, w: Array) -> Array:
    """Of ``sum(w * cumprod(x))``, straight from the definition."""
    n = len(x)
    result = np.zeros((n, n))
    for i, j in itertools.product(range(n), repeat=2):
        if i != j:
            for k in range(max(i, j), n):
                result[i, j] += w[k] * np.prod([x[m] for m in range(k + 1) if m not in (i, j)])
    return result


@pytest.mark.parametrize(
    "x", [[2.0, 3.0, 0.5, -1.0], [2.0, 0.0, 3.0, 4.0], [0.0, 0.0, 3.0, 4.0], [1.0, 2.0, 3.0, 0.0], [0.0] * 4]
)
def test_second_derivatives_of_products(x: list[float]) -> None:
    a, w, v = np.array(x), np.array([0.5, -1.0, 2.0, 4.0]), np.array([1.0, -2.0, 0.25, 3.0])
    np.testing.assert_array_equal(second(lambda t: (jg.cumprod(t) * w).sum(), a, v), _cumulative_hessian(a, w) @ v)
    only_last = np.array([0.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(second(jg.prod, a, v), _cumulative_hessian(a, only_last) @ v)


def test_third_derivative_of_a_product() -> None:
    x = jg.tensor([0.0, 0.0, 0.0, 5.0], requires_grad=True)
    value = jg.prod(x)
    for _ in range(3):
        x.grad = None
        value.backward(create_graph=True)
        value = (x.grad * jg.tensor([1.0, 2.0, 4.0, 0.0])).sum()
    # 3! * x[3] * the product of the direction's first three components
    assert value.item() == 6 * 5.0 * 8.0


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_scans_against_loops_forwards_and_backwards(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (3, 5, 2)) * (rng.random((3, 5, 2)) > 0.2)
    w, t = rng.normal(size=x.shape), rng.normal(size=x.shape)
    for name, axis in itertools.product(("cumsum", "cumprod"), (0, 1, 2)):
        reference = getattr(np, name)
        found = gradient(lambda v, n=name, axis=axis: getattr(jg, n)(v, axis), x, w)
        expected = numerical(lambda v, r=reference, axis=axis: np.sum(r(v, axis) * w), x, 1e-3)
        np.testing.assert_allclose(found, expected, atol=1e-8)
        tangent = forward(lambda v, n=name, axis=axis: getattr(jg, n)(v, axis), x, t)
        np.testing.assert_allclose(np.sum(tangent * w), np.sum(found * t), rtol=1e-10, atol=1e-12)


# --------------------------------------------------------------------------------- sorting and order statistics


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_sorting_with_ties_and_nan(axis: int | None, descending: bool, stable: bool) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 4, (40, 6)).astype(float)
    x[rng.random(x.shape) < 0.1] = NAN
    order = jg.argsort(x, axis, descending=descending, stable=stable).numpy()
    found = jg.sort(x, axis, descending=descending, stable=stable).numpy()
    flat, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    np.testing.assert_array_equal(np.take_along_axis(flat, order, along), found)
    missing = np.isnan(flat)
    key = np.where(missing, 0, flat)
    expected = np.lexsort((-key, ~missing) if descending else (key, missing), axis=along)  # always stable
    np.testing.assert_array_equal(np.take_along_axis(flat, expected, along), found)
    if stable:
        np.testing.assert_array_equal(order, expected)


@settings(max_examples=50)
@given(
    hnp.arrays(np.float64, (3, 4), elements=st.floats(-5, 5, width=16)),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.sampled_from([None, 0, 1, (0, 1), (1, 0)]),
    st.booleans(),
)
def test_quantiles_as_in_numpy(x: Array, q: list[float], axis: Any, keepdims: bool) -> None:
    expected = np.quantile(x, q, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(jg.quantile(x, q, axis, keepdims=keepdims).numpy(), expected, atol=1e-14)
    np.testing.assert_allclose(jg.quantile(x, q[0], axis).numpy(), np.quantile(x, q[0], axis=axis), atol=1e-14)
    np.testing.assert_allclose(jg.percentile(x, 100 * q[0]).numpy(), np.percentile(x, 100 * q[0]), atol=1e-12)


def test_quantiles_and_medians_of_nan_and_infinities() -> None:
    x = np.array([[1.0, NAN, 2.0], [3.0, 1.0, INF]])
    np.testing.assert_array_equal(jg.median(x, 1).numpy(), [NAN, 3.0])
    np.testing.assert_array_equal(jg.quantile(x, [0.5, 1.0], 1).numpy(), [[NAN, 3.0], [NAN, INF]])
    np.testing.assert_array_equal(jg.quantile([-INF, 1.0], 0.5).numpy(), -INF)
    np.testing.assert_array_equal(gradient(lambda v: jg.quantile(v, 0.5), [1.0, 3.0, INF]), [0.0, 1.0, 0.0])


def test_searchsorted_as_in_numpy() -> None:
    x, v = np.array([1.0, 2.0, 2.0, 4.0]), np.array([[0.0, 2.0], [5.0, NAN]])
    for side in ("left", "right"):
        found = jg.searchsorted(x, v, side)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(x, v, side))
    assert jg.searchsorted(x[::-1].copy(), 2.0, sorter=[3, 2, 1, 0]).item() == 1


def test_integers_sort_as_integers() -> None:
    x = np.array([3, -1, 2], np.int32)
    assert jg.sort(x).dtype == np.int32
    assert jg.sort(x).tolist() == [-1, 2, 3]
    big = np.array([2**63, 2**63 + 1, 5], np.uint64)
    assert jg.argsort(big, descending=True).tolist() == [1, 0, 2]
    assert jg.max(big).item() == 2**63 + 1
    assert jg.cumprod(np.array([3, 5], np.uint8)).dtype == np.uint64


# --------------------------------------------------------------------------------- differences and averages


def test_differences_as_in_numpy() -> None:
    x = np.random.default_rng(5).normal(size=(4, 5))
    for n, axis in itertools.product((0, 1, 2, 7), (0, -1)):
        np.testing.assert_array_equal(jg.diff(x, n, axis).numpy(), np.diff(x, n, axis))
    np.testing.assert_array_equal(
        jg.diff(x, axis=0, prepend=x[:1] - 1, append=0).numpy(), np.diff(x, axis=0, prepend=x[:1] - 1, append=0)
    )
    assert jg.diff([True, False, False]).tolist() == [True, False]
    edge = jg.tensor(1.0, requires_grad=True)
    jg.diff([1.0, 2.0], prepend=edge).sum().backward()
    assert edge.grad.item() == -1.0


def test_averages_as_in_numpy() -> None:
    rng = np.random.default_rng(6)
    x, w = rng.normal(size=(2, 3, 4)), rng.uniform(1, 2, (2, 3, 4))
    for axis in (None, 0, -1, (0, 2)):
        np.testing.assert_allclose(jg.average(x, axis, w).numpy(), np.average(x, axis, w), rtol=1e-13)
    np.testing.assert_allclose(jg.average(x, 1, w[0, :, 0]).numpy(), np.average(x, 1, w[0, :, 0]), rtol=1e-13)
    np.testing.assert_allclose(jg.average(x, (0, 2), w[:, 0]).numpy(), np.average(x, (0, 2), w[:, 0]), rtol=1e-13)
    np.testing.assert_allclose(
        gradient(lambda v: jg.average(x[0, 0], weights=v), w[0, 0]),
        (x[0, 0] - np.average(x[0, 0], weights=w[0, 0])) / w[0, 0].sum(),
        rtol=1e-12,
    )


@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"])
def test_reductions_without_nan(name: str) -> None:
    x = np.random.default_rng(7).normal(size=(3, 4))
    x[0, 1] = x[2, 2] = x[2, 3] = NAN
    for axis in (None, 0, 1):
        found, expected = getattr(jg, name)(x, axis).numpy(), getattr(np, name)(x, axis=axis)
        np.testing.assert_allclose(found, expected, rtol=1e-13)
        slopes = numerical(
            lambda v, axis=axis: np.sum(getattr(np, name)(v, axis=axis)), np.where(np.isnan(x), NAN, x), 1e-4
        )
        slopes[np.isnan(x)] = 0.0
        np.testing.assert_allclose(gradient(lambda v, axis=axis: getattr(jg, name)(v, axis), x), slopes, atol=1e-8)
    nothing = {"nansum": 0.0, "nanprod": 1.0}.get(name, NAN)
    np.testing.assert_array_equal(getattr(jg, name)([NAN, NAN]).numpy(), nothing)


# --------------------------------------------------------------------------------- forward mode and layouts

SMOOTH: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: jg.mean(x, (0, 2)),
    "var": lambda x: jg.var(x, 1, ddof=1),
    "std": lambda x: jg.std(x, (-1, 0)),
    "prod": lambda x: jg.prod(x, (0, 1)),
    "max": lambda x: jg.max(x, 1),
    "min": lambda x: jg.min(x, (0, 2)),
    "logsumexp": lambda x: jg.logsumexp(x, (0, 2)),
    "softmax": lambda x: jg.softmax(x, 0),
    "log_softmax": lambda x: jg.log_softmax(x, (0, 2)),
    "sort": lambda x: jg.sort(x, 1),
    "median": lambda x: jg.median(x, 2),
    "cumprod": lambda x: jg.cumprod(x, 1),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_on_a_transposed_operand(name: str) -> None:
    f = SMOOTH[name]
    rng = np.random.default_rng(8)
    x, t = rng.normal(size=(4, 3, 2)).T, rng.normal(size=(2, 3, 4))
    w = rng.normal(size=f(jg.tensor(x)).shape)
    expected = numerical(lambda v: np.sum(gradient(f, v, w) * t), np.ascontiguousarray(x), 1e-3)
    np.testing.assert_allclose(second(lambda v: f(v) * w, x, t), expected, atol=1e-7)


@pytest.mark.parametrize("name", SMOOTH)
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    f = SMOOTH[name]
    rng = np.random.default_rng(9)
    x, t = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))
    w = rng.normal(size=f(jg.tensor(x)).shape)
    np.testing.assert_allclose(np.sum(forward(f, x, t) * w), np.sum(gradient(f, x, w) * t), rtol=1e-11)


# --------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: jg.sum([1.0], 1), ShapeError, "sum"),
        (lambda: jg.mean([[1.0]], (0, 0)), ArgumentError, "twice"),
        (lambda: jg.max([1.0], "a"), JitgradError, "integer"),
        (lambda: jg.softmax([1.0], 2), ShapeError, "softmax"),
        (lambda: jg.cumulative_sum([[1.0]]), ArgumentError, "axis"),
        (lambda: jg.cumsum([[1.0]], 2), ShapeError, "cumsum"),
        (lambda: jg.sort(1.0), ShapeError, "scalar"),
        (lambda: jg.diff(1.0), ShapeError, "axis"),
        (lambda: jg.diff([1.0], -1), ArgumentError, "negative"),
        (lambda: jg.diff([[1.0]], prepend=[[1.0], [2.0]]), ShapeError, "prepend"),
        (lambda: jg.average([[1.0, 2.0]], weights=[1.0, 2.0]), ShapeError, "weights"),
        (lambda: jg.quantile([1.0], 1.5), ArgumentError, "1.5"),
        (lambda: jg.quantile([1.0, 2.0], jg.tensor(0.5, requires_grad=True)), JitgradError, "detach"),
        (lambda: jg.var([1.0], ddof=1, correction=1), ArgumentError, "ddof"),
        (lambda: jg.searchsorted([[1.0]], 0.0), ShapeError, "one axis"),
        (lambda: jg.searchsorted([1.0], 0.0, "middle"), ArgumentError, "middle"),
    ],
)
def test_errors_say_what_is_wrong(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_scipy_agrees_on_the_softmax_family() -> None:
    x = np.random.default_rng(10).normal(size=(3, 4, 5)) * 50
    for axis in (None, 0, -1, (0, 2)):
        np.testing.assert_allclose(jg.logsumexp(x, axis).numpy(), scipy.special.logsumexp(x, axis), rtol=1e-14)
        np.testing.assert_allclose(jg.softmax(x, axis).numpy(), scipy.special.softmax(x, axis), rtol=1e-12)
        # SciPy rounds results near 0 to a multiple of 2**-53; the test of small weights is exact about those
        np.testing.assert_allclose(
            jg.log_softmax(x, axis).numpy(), scipy.special.log_softmax(x, axis), rtol=1e-14, atol=1e-15
        )


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (5,), (3, 1), (2, 0)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, bool])
def test_one_axis_again_and_again(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """The second call takes the short way: by position and by name, as a method and as a function, of any layout."""
    if name in ("max", "min") and 0 in shape:
        return
    array = np.random.default_rng(3).uniform(0.0, 3.0, shape).astype(dtype)
    for axis in range(-array.ndim, array.ndim):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = getattr(np, name)(array, axis=axis)
        for layout in (array, np.asfortranarray(array)):
            x = jg.from_numpy(layout)
            for _ in range(2):
                for result in (getattr(x, name)(axis), getattr(x, name)(axis=axis), getattr(jg, name)(x, axis)):
                    assert result.shape == expected.shape
                    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6 if dtype is np.float32 else 1e-14)
                kept = getattr(jg, name)(x, axis, keepdims=True)
                assert kept.shape == np.expand_dims(expected, axis).shape


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
def test_gradients_along_one_axis_again_and_again(name: str) -> None:
    array = np.random.default_rng(4).uniform(0.5, 3.0, (3, 4))
    weights = np.array([1.0, 2.0, 3.0])
    expected = {
        "sum": np.repeat(weights[:, None], 4, 1),
        "mean": np.repeat(weights[:, None], 4, 1) / 4,
        "prod": weights[:, None] * array.prod(1, keepdims=True) / array,
        "max": weights[:, None] * (array == array.max(1, keepdims=True)),
        "min": weights[:, None] * (array == array.min(1, keepdims=True)),
    }[name]
    for _ in range(3):
        x = jg.tensor(array, requires_grad=True)
        (getattr(x, name)(1) * weights).sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-14)
        with jg.no_grad():
            assert not getattr(x, name)(1).requires_grad
        assert jg.jit(lambda v: getattr(v, name)(1))(array).shape == (3,)
        np.testing.assert_allclose(
            jg.grad(lambda v: (getattr(v, name)(1) * weights).sum())(array), expected, rtol=1e-14
        )


def test_the_axis_of_a_scalar() -> None:
    x = jg.tensor(2.0)
    for axis in (0, -1, 0, -1):
        assert x.sum(axis).item() == jg.max(x, axis).item() == 2.0


def test_what_equals_an_axis_is_none() -> None:
    x = jg.tensor([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(2):
        assert x.sum(1).tolist() == [3.0, 7.0]
        for axis in (1.0, "1", 2, -3):
            with pytest.raises((TypeError, ValueError, IndexError)):
                x.sum(axis)
