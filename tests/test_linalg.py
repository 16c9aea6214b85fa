"""Linear algebra: hard cases by hand, NumPy's values and errors, derivatives against formulas and differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import jitgrad as jg
from jitgrad.core.linalg_errors import (
    LinAlgError,
    MatrixShapeError,
    NotPositiveDefiniteError,
    NotSymmetricError,
    SingularMatrixError,
)
from jitgrad.errors import ArgumentError, JitgradError, ShapeError, UnsupportedError

Array = np.ndarray[Any, Any]


def value(t: Any) -> Array:
    return np.asarray(t.detach().numpy())


def gradient(f: Callable[[Any], Any], x: Any) -> Array:
    t = jg.tensor(x, requires_grad=True)
    f(t).backward()
    return np.asarray(t.grad.numpy())


def second(f: Callable[[Any], Any], x: Array, v: Array) -> Array:
    """The Hessian times a direction, by differentiating twice."""
    t = jg.tensor(x, requires_grad=True)
    f(t).backward(create_graph=True)
    first = t.grad
    t.grad = None
    (first * v).sum().backward()
    return np.asarray(t.grad.numpy())


def third(f: Callable[[Any], Any], x: Array, v: Array, w: Array) -> Array:
    """The derivative of ``second`` in the direction w."""
    t = jg.tensor(x, requires_grad=True)
    f(t).backward(create_graph=True)
    first, t.grad = t.grad, None
    (first * v).sum().backward(create_graph=True)
    made, t.grad = t.grad, None
    (made * w).sum().backward()
    return np.asarray(t.grad.numpy())


def differences(f: Callable[[Array], float], x: Array, h: float = 1e-5) -> Array:
    made = np.zeros(x.shape)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        made[i] = (f(up) - f(down)) / (2 * h)
    return made


def definite(rng: np.random.Generator, *shape: int) -> Array:
    a = rng.normal(size=shape)
    return np.asarray(a @ a.swapaxes(-1, -2) + np.eye(shape[-1]))


# --------------------------------------------------------------------------- norms


@pytest.mark.parametrize("order", [None, 2, 3, 1.5])
def test_norm_at_zero_has_gradient_zero(order: Any) -> None:
    np.testing.assert_array_equal(gradient(lambda x: jg.linalg.norm(x, order), np.zeros(3)), np.zeros(3))


def test_second_derivative_of_the_norm_at_zero_is_nan() -> None:
    assert np.isnan(second(jg.linalg.norm, np.zeros(3), np.ones(3))).all()
    assert np.isnan(second(jg.linalg.norm, np.zeros((2, 2)), np.ones((2, 2)))).all()


def test_one_zero_vector_among_others() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0]])
    got = gradient(lambda t: jg.linalg.norm(t, axis=1).sum(), x)
    np.testing.assert_array_equal(got, [[0.6, 0.8], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("x", "order", "expected"),
    [
        ([1.0, -2.0, 2.0], math.inf, [0.0, -0.5, 0.5]),
        ([1.0, -1.0, 2.0], -math.inf, [0.5, -0.5, 0.0]),
        ([0.0, 0.0], math.inf, [0.0, 0.0]),
        ([0.0, -3.0, 2.0], 1, [0.0, -1.0, 1.0]),
        ([[1.0, 2.0], [-3.0, 2.0]], 1, [[0.5, 0.5], [-0.5, 0.5]]),
        ([[1.0, 2.0], [-3.0, 0.0]], math.inf, [[0.5, 0.5], [-0.5, 0.0]]),
        ([[0.0, 0.0], [0.0, 0.0]], 2, [[0.0, 0.0], [0.0, 0.0]]),
        ([[0.0, 0.0], [0.0, 0.0]], "nuc", [[0.0, 0.0], [0.0, 0.0]]),
        ([[2.0, 0.0], [0.0, 0.0]], "nuc", [[1.0, 0.0], [0.0, 0.0]]),
        ([[2.0, 0.0], [0.0, 2.0]], 2, [[0.5, 0.0], [0.0, 0.5]]),
        ([[2.0, 0.0], [0.0, 2.0]], -2, [[0.5, 0.0], [0.0, 0.5]]),
        ([0.0, 1.0, -4.0], 0.5, [0.0, 3.0, -1.5]),
        ([0.0, 1.0, -4.0], -1, [0.0, 0.0, 0.0]),
        ([0.0, 0.0], 0.5, [0.0, 0.0]),
        ([0.0, 0.0], -2, [0.0, 0.0]),
    ],
)
def test_subgradients_of_norms_at_kinks(x: Any, order: Any, expected: Any) -> None:
    np.testing.assert_allclose(gradient(lambda t: jg.linalg.norm(t, order), x), expected, atol=1e-15)


def test_a_zero_leaves_the_second_derivatives_by_other_elements_alone() -> None:
    x, v = np.array([0.0, 2.0, -1.0]), np.array([0.0, 1.0, 1.0])
    got = second(lambda t: jg.linalg.norm(t, 1.5), x, v)
    alone = second(lambda t: jg.linalg.norm(t, 1.5), x[1:], v[1:])
    np.testing.assert_allclose(got[1:], alone, rtol=1e-14)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_norms_neither_overflow_nor_vanish(size: float) -> None:
    x = np.array([3.0, -4.0]) * size
    for order in (2, None, 1.5, 3):
        p = order or 2
        with mpmath.workdps(40):
            exact = float(sum(abs(mpmath.mpf(float(e))) ** p for e in x) ** (mpmath.mpf(1) / p))
        assert abs(jg.linalg.norm(x, order).item() / exact - 1) < 1e-14
    np.testing.assert_allclose(gradient(jg.linalg.norm, x), [0.6, -0.8], rtol=1e-14)


def test_norms_of_infinities_and_nan() -> None:
    assert jg.linalg.norm([math.inf, 1.0]).item() == math.inf
    assert math.isnan(jg.linalg.norm([math.nan, 1.0]).item())
    assert jg.linalg.norm([math.inf, 1.0], 3).item() == math.inf
    assert jg.linalg.norm([0.0, 1.0], -1).item() == 0.0
    assert jg.linalg.norm([0.0, 2.0, 3.0], 0).item() == 2.0


def test_norm_of_float32_and_integers() -> None:
    assert jg.linalg.norm(np.ones(4, np.float32)).dtype == np.float32
    assert jg.linalg.norm(np.array([3, 4])).item() == 5.0
    x = np.full(1_000_000, 0.1, np.float32)
    assert abs(jg.linalg.norm(x).item() / math.sqrt(1e6 * float(np.float32(0.1)) ** 2) - 1) < 1e-6


# --------------------------------------------------------------------------- determinants


def cofactors(a: Array) -> Array:
    """By minors."""
    n = len(a)
    made = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            minor = np.delete(np.delete(a, i, 0), j, 1)
            made[i, j] = (-1) ** (i + j) * (np.linalg.det(minor) if n > 1 else 1.0)
    return made


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
def test_det_gradient_is_the_cofactors_at_every_rank(rank: int) -> None:
    rng = np.random.default_rng(rank)
    a = rng.normal(size=(4, rank)) @ rng.normal(size=(rank, 4))
    np.testing.assert_allclose(gradient(jg.linalg.det, a), cofactors(a), atol=1e-12)


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
def test_second_derivative_of_det_at_every_rank(rank: int) -> None:
    rng = np.random.default_rng(10 + rank)
    a = rng.normal(size=(4, rank)) @ rng.normal(size=(rank, 4))
    v = rng.normal(size=(4, 4))
    expected = (cofactors(a + 1e-4 * v) - cofactors(a - 1e-4 * v)) / 2e-4  # entries are cubic: third order error
    np.testing.assert_allclose(second(jg.linalg.det, a, v), expected, atol=1e-6)


def test_third_derivative_of_det() -> None:
    rng = np.random.default_rng(3)
    a, v, w = rng.normal(size=(3, 3, 3))
    h = 1e-4
    expected = (second(jg.linalg.det, a + h * w, v) - second(jg.linalg.det, a - h * w, v)) / (2 * h)
    np.testing.assert_allclose(third(jg.linalg.det, a, v, w), expected, rtol=1e-8, atol=1e-8)
    with pytest.raises(SingularMatrixError):
        third(jg.linalg.det, np.zeros((3, 3)), v, w)


def test_determinants_of_small_and_special_matrices() -> None:
    assert jg.linalg.det(np.zeros((0, 0))).item() == 1.0
    assert jg.linalg.det([[5.0]]).item() == 5.0
    assert gradient(jg.linalg.det, [[0.0]]) == 1.0
    assert jg.linalg.det(np.zeros((2, 0, 0))).shape == (2,)
    assert math.isnan(jg.linalg.det([[math.nan, 1.0], [1.0, 1.0]]).item())
    assert jg.linalg.det(np.array([[1, 2], [3, 4]])).item() == pytest.approx(-2.0, abs=1e-14)


def test_slogdet_beyond_the_range_of_det() -> None:
    a = -1e200 * np.eye(3)
    sign, logarithm = jg.linalg.slogdet(a)
    assert sign.item() == -1.0
    assert logarithm.item() == pytest.approx(600 * math.log(10), rel=1e-14)
    np.testing.assert_allclose(gradient(lambda x: jg.linalg.slogdet(x)[1], a), -1e-200 * np.eye(3), rtol=1e-12)
    sign, logarithm = jg.linalg.slogdet(np.zeros((2, 2)))
    assert (sign.item(), logarithm.item()) == (0.0, -math.inf)
    with pytest.raises(SingularMatrixError):
        gradient(lambda x: jg.linalg.slogdet(x).logabsdet, np.zeros((2, 2)))
    many = np.random.default_rng(4).normal(size=(5, 4, 4))
    for got, wanted in zip(jg.linalg.slogdet(many), np.linalg.slogdet(many), strict=True):
        np.testing.assert_allclose(value(got), wanted, rtol=1e-11)


# --------------------------------------------------------------------------- solutions


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_solve_and_inv_as_numpy(size: int, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    a = (rng.normal(size=(size, size)) + 4 * math.sqrt(size) * np.eye(size)).astype(dtype)
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    for b in (rng.normal(size=size), rng.normal(size=(size, 3)), rng.normal(size=(2, size, 1))):
        b = b.astype(dtype)
        got = jg.linalg.solve(a, b)
        assert got.dtype == dtype
        np.testing.assert_allclose(value(got), np.linalg.solve(a, b), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(value(jg.linalg.inv(a)), np.linalg.inv(a), rtol=tolerance, atol=tolerance)
    f_order = np.asfortranarray(a)
    np.testing.assert_array_equal(value(jg.linalg.inv(f_order)), value(jg.linalg.inv(a)))


def test_solve_takes_a_vector_only_if_it_has_one_axis() -> None:
    a, b = np.stack([np.eye(2), 2 * np.eye(2)]), np.ones((2, 2))
    np.testing.assert_array_equal(value(jg.linalg.solve(a, b)), np.linalg.solve(a, b))
    np.testing.assert_array_equal(value(jg.linalg.solve(a, np.ones(2))), [[1, 1], [0.5, 0.5]])


@pytest.mark.parametrize("size", [3, 70, 130])
def test_triangular_solutions_read_one_triangle(size: int) -> None:
    rng = np.random.default_rng(6)
    a = rng.normal(size=(size, size)) / size + 2 * np.eye(size)
    b = rng.normal(size=(size, 3))
    lower, upper = np.tril(a), np.triu(a)
    np.testing.assert_allclose(value(jg.linalg.solve_triangular(a, b)), np.linalg.solve(upper, b), rtol=1e-10)
    made = jg.linalg.solve_triangular(a, b, lower=True)
    np.testing.assert_allclose(value(made), np.linalg.solve(lower, b), rtol=1e-10)
    got = gradient(lambda t: jg.linalg.solve_triangular(t, b, lower=True).sum(), a)
    x, y = np.linalg.solve(lower, b), np.linalg.solve(lower.T, np.ones((size, 3)))
    np.testing.assert_allclose(got, -np.tril(y @ x.T), rtol=1e-9, atol=1e-9)


def test_gradient_of_inv_and_of_its_gradient() -> None:
    rng = np.random.default_rng(7)
    a, v = rng.normal(size=(3, 3)) + 4 * np.eye(3), rng.normal(size=(3, 3))
    x = np.linalg.inv(a)
    np.testing.assert_allclose(gradient(lambda t: jg.trace(jg.linalg.inv(t)), a), -(x @ x).T, rtol=1e-12)
    expected = (x @ (v @ x) @ x + x @ x @ v @ x).T
    np.testing.assert_allclose(second(lambda t: jg.trace(jg.linalg.inv(t)), a, v), expected, rtol=1e-11)


def test_pinv_of_rank_deficient_matrices() -> None:
    rng = np.random.default_rng(8)
    a = rng.normal(size=(4, 2)) @ rng.normal(size=(2, 3))
    np.testing.assert_allclose(value(jg.linalg.pinv(a)), np.linalg.pinv(a, rcond=1e-12), atol=1e-12)
    # along directions that keep the rank, finite differences and the gradient agree
    w = rng.normal(size=(3, 4))
    got = gradient(lambda t: (jg.linalg.pinv(t, 1e-10) * w).sum(), a)
    move = a @ rng.normal(size=(3, 3)) + rng.normal(size=(4, 4)) @ a
    h = 1e-6
    numeric = (np.sum(np.linalg.pinv(a + h * move, 1e-5) * w) - np.sum(np.linalg.pinv(a - h * move, 1e-5) * w)) / (
        2 * h
    )
    assert np.sum(got * move) == pytest.approx(numeric, rel=1e-5)


# --------------------------------------------------------------------------- factorisations


@pytest.mark.parametrize("size", [1, 4, 90])
def test_cholesky_and_the_symmetric_gradient(size: int) -> None:
    a = definite(np.random.default_rng(9), size, size)
    np.testing.assert_allclose(value(jg.linalg.cholesky(a)), np.linalg.cholesky(a), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        value(jg.linalg.cholesky(a, upper=True)), np.linalg.cholesky(a).T, rtol=1e-10, atol=1e-10
    )
    # the sum of logarithms of the diagonal is half of log det, whose gradient is the inverse
    got = gradient(lambda t: jg.log(jg.diagonal(jg.linalg.cholesky(t))).sum(), a)
    np.testing.assert_allclose(got, np.linalg.inv(a) / 2, rtol=1e-7, atol=1e-9)


def test_eigenvalues_alone_never_touch_the_gaps() -> None:
    for f in (jg.linalg.eigvalsh, lambda x: jg.linalg.eigh(x).eigenvalues, lambda x: jg.linalg.eigh(x)[0]):
        np.testing.assert_allclose(gradient(lambda x, f=f: f(x).sum(), np.eye(3)), np.eye(3), atol=1e-14)
        np.testing.assert_allclose(gradient(lambda x, f=f: (f(x) ** 2).sum(), 2 * np.eye(3)), 4 * np.eye(3), atol=1e-14)
    got = gradient(lambda x: jg.linalg.eigvalsh(x)[-1], np.diag([1.0, 3.0, 2.0]))
    np.testing.assert_allclose(got, np.diag([0.0, 1.0, 0.0]), atol=1e-14)


def test_eigenvectors_of_equal_eigenvalues_have_no_finite_gradient() -> None:
    w = np.arange(9.0).reshape(3, 3)
    assert not np.isfinite(gradient(lambda x: (jg.linalg.eigh(x).eigenvectors * w).sum(), np.eye(3))).all()


def test_second_derivatives_of_eigenvalues() -> None:
    a = definite(np.random.default_rng(11), 4, 4)
    v = np.random.default_rng(12).normal(size=(4, 4))
    v = v + v.T
    # sums of powers of eigenvalues are traces of powers
    got = second(lambda x: (jg.linalg.eigvalsh(x) ** 3).sum(), a, v)
    np.testing.assert_allclose(got, 3 * (a @ v + v @ a), rtol=1e-8, atol=1e-8)


def test_functions_of_eigenvectors_that_do_not_depend_on_signs() -> None:
    a = definite(np.random.default_rng(13), 4, 4)
    w = np.random.default_rng(14).normal(size=(4, 4))

    def square_root(x: Any) -> Any:
        values, vectors = jg.linalg.eigh(x)
        return (((vectors * jg.sqrt(values)) @ vectors.mT) * w).sum()

    def plain(x: Array) -> float:
        values, vectors = np.linalg.eigh((x + x.T) / 2)
        return float(np.sum((vectors * np.sqrt(values)) @ vectors.T * w))

    np.testing.assert_allclose(gradient(square_root, a), differences(plain, a), rtol=1e-6, atol=1e-7)


def test_eigh_and_svd_and_qr_rebuild_their_matrix() -> None:
    rng = np.random.default_rng(15)
    for shape in [(4, 4), (5, 3), (3, 5), (2, 4, 3), (0, 2, 2), (3, 0)]:
        a = rng.normal(size=shape)
        u, s, vh = jg.linalg.svd(a, full_matrices=False)
        np.testing.assert_allclose(value(u) * value(s)[..., None, :] @ value(vh), a, atol=1e-12)
        np.testing.assert_allclose(value(s), np.linalg.svd(a, compute_uv=False), atol=1e-12)
        q, r = jg.linalg.qr(a)
        np.testing.assert_allclose(value(q) @ value(r), a, atol=1e-12)
        for got, wanted in zip((q, r), np.linalg.qr(a), strict=True):
            np.testing.assert_allclose(value(got), wanted, atol=1e-12)
    a = definite(rng, 3, 4, 4)
    w, v = jg.linalg.eigh(a)
    np.testing.assert_allclose(value(v) * value(w)[..., None, :] @ value(v).swapaxes(-1, -2), a, atol=1e-11)


def test_singular_values_alone_never_touch_the_gaps() -> None:
    np.testing.assert_allclose(gradient(lambda x: jg.linalg.svdvals(x).sum(), np.eye(3)), np.eye(3), atol=1e-14)
    got = gradient(lambda x: jg.linalg.svd(x).S.sum(), np.zeros((2, 2)))
    np.testing.assert_array_equal(got, np.zeros((2, 2)))


def test_polar_factor_through_svd_vectors() -> None:
    rng = np.random.default_rng(16)
    for shape in [(3, 3), (4, 3), (3, 4)]:
        a, w = rng.normal(size=shape), rng.normal(size=shape)

        def polar(x: Any, w: Array = w) -> Any:
            u, _, vh = jg.linalg.svd(x, full_matrices=False)
            return ((u @ vh) * w).sum()

        def plain(x: Array, w: Array = w) -> float:
            u, _, vh = np.linalg.svd(x, full_matrices=False)
            return float(np.sum((u @ vh) * w))

        np.testing.assert_allclose(gradient(polar, a), differences(plain, a), rtol=1e-5, atol=1e-6)


def test_float32_stays_float32() -> None:
    a = definite(np.random.default_rng(17), 3, 3).astype(np.float32)
    results = [
        jg.linalg.cholesky(a), jg.linalg.inv(a), jg.linalg.det(a), *jg.linalg.slogdet(a), *jg.linalg.eigh(a),
        *jg.linalg.svd(a), *jg.linalg.qr(a), jg.linalg.pinv(a), jg.linalg.norm(a, 2), jg.linalg.solve(a, a[0]),
        jg.linalg.norm(a, 3, axis=0), jg.linalg.cond(a), jg.linalg.matrix_power(a, -2),
    ]  # fmt: skip
    assert {r.dtype for r in results} == {np.dtype(np.float32)}
    f = lambda x: jg.linalg.det(x) + jg.linalg.norm(jg.linalg.cholesky(x)) + jg.linalg.eigvalsh(x)[0]  # noqa: E731
    assert gradient(f, a).dtype == np.float32
    np.testing.assert_allclose(gradient(f, a), gradient(f, a.astype(np.float64)), rtol=2e-4, atol=2e-4)


def test_what_is_not_finite_gives_nan_or_an_error_and_never_a_crash() -> None:
    for bad in (math.nan, math.inf):
        a = np.array([[bad, 1.0], [1.0, 2.0]])
        for made in (*jg.linalg.svd(a), *jg.linalg.eigh(a), jg.linalg.pinv(a), jg.linalg.norm(a, 2)):
            assert np.isnan(value(made)).all()
        assert np.isnan(gradient(jg.linalg.det, a)).all()
    assert np.isnan(value(jg.linalg.cholesky(np.full((2, 2), math.nan)))[[0, 1, 1], [0, 0, 1]]).all()


def test_nothing_is_written_into_operands() -> None:
    a = definite(np.random.default_rng(18), 4, 4)
    kept = a.copy()
    for f in (jg.linalg.inv, jg.linalg.det, jg.linalg.cholesky, jg.linalg.eigvalsh, jg.linalg.svdvals, jg.linalg.pinv):
        gradient(lambda x, f=f: f(x).sum(), a)
    jg.linalg.qr(a)
    jg.linalg.solve(a, a)
    np.testing.assert_array_equal(a, kept)


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: jg.linalg.inv(np.zeros((2, 2))), SingularMatrixError, "inv of shape"),
        (lambda: jg.linalg.solve(np.ones((2, 2)), np.ones(2)), SingularMatrixError, "singular"),
        (lambda: jg.linalg.inv(np.ones((3, 2, 2))), SingularMatrixError, r"\(3, 2, 2\)"),
        (lambda: jg.linalg.cholesky([[1.0, 2.0], [2.0, 1.0]]), NotPositiveDefiniteError, "positive definite"),
        (lambda: jg.linalg.cholesky([[1.0, 0.0], [0.5, 1.0]]), NotSymmetricError, "symmetric"),
        (lambda: jg.linalg.eigh([[1.0, 5.0], [0.0, 1.0]]), NotSymmetricError, "symmetric"),
        (lambda: jg.linalg.det(np.ones((2, 3))), MatrixShapeError, r"\(2, 3\)"),
        (lambda: jg.linalg.det(np.ones(3)), MatrixShapeError, r"\(3,\)"),
        (lambda: jg.linalg.solve(np.eye(2), np.ones(3)), MatrixShapeError, "do not fit"),
    ],
)
def test_errors_of_linear_algebra_are_numpys_too(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()
    with pytest.raises(np.linalg.LinAlgError):
        call()
    with pytest.raises(JitgradError):
        call()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: jg.linalg.norm(np.ones(2), "fro"), ArgumentError, "fro"),
        (lambda: jg.linalg.norm(np.ones((2, 2)), 3), ArgumentError, "ord 3"),
        (lambda: jg.linalg.norm(np.ones((2, 2, 2)), 1), ShapeError, "axes"),
        (lambda: jg.linalg.norm(np.ones(2), axis=1), ShapeError, "out of bounds"),
        (lambda: jg.linalg.norm(np.ones((2, 2)), axis=(0, 0)), ArgumentError, "different"),
        (lambda: jg.linalg.norm(np.ones(0), math.inf), ShapeError, "no elements"),
        (lambda: jg.linalg.svd(np.ones((3, 2))), UnsupportedError, "full_matrices"),
        (lambda: jg.linalg.qr(np.ones((3, 2)), "complete"), UnsupportedError, "complete"),
        (lambda: jg.linalg.eigh(np.eye(2), "X"), ArgumentError, "UPLO"),
        (lambda: jg.linalg.pinv(np.eye(2), 1e-3, rtol=1e-3), ArgumentError, "rtol"),
        (lambda: jg.linalg.matrix_power(np.eye(2), 0.5), UnsupportedError, "integer"),
        (lambda: jg.linalg.multi_dot([np.eye(2)]), ArgumentError, "at least 2"),
        (lambda: jg.linalg.solve(np.ones((2, 2, 2)), np.ones((3, 2, 1))), ShapeError, "broadcast"),
    ],
)
def test_other_errors(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_the_family_of_errors() -> None:
    assert issubclass(SingularMatrixError, LinAlgError)
    assert issubclass(MatrixShapeError, ShapeError)
    assert issubclass(LinAlgError, ValueError)
