"""Functions of NumPy that are compositions: what the samples of their blocks do not reach."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jitgrad as jg
from jitgrad.errors import JitgradError

Array = np.ndarray[Any, Any]
INF, NAN = np.inf, np.nan
rng = np.random.default_rng(11)


def points(n: int) -> Array:
    return np.cumsum(rng.uniform(0.3, 1.0, n))


def numerical(f: Callable[[Array], Any], x: Array, h: float = 1e-6) -> Array:
    """The gradient of a NumPy function by central differences."""
    slopes = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        slopes[i] = (f(up) - f(down)) / (2.0 * h)
    return slopes


XP, FP = points(6), rng.normal(size=6)
X = rng.uniform(0.5, 3.0, 7)
ROWS = rng.normal(size=(4, 5))

CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "trapezoid": ("trapezoid", (ROWS, points(5)), {}),
    "trapezoid dx": ("trapezoid", (ROWS,), {"dx": 0.25, "axis": 0}),
    "gradient": ("gradient", (ROWS[0], points(5)), {"edge_order": 2}),
    "gradient of axis": ("gradient", (ROWS, 0.5), {"axis": 0}),
    "polyval": ("polyval", (ROWS[0], X), {}),
    "interp": ("interp", (X, XP, FP), {}),
    "interp period": ("interp", (X, XP, FP), {"period": 7.0}),
    "convolve": ("convolve", (ROWS[0], X), {}),
    "convolve same": ("convolve", (X, ROWS[0]), {"mode": "same"}),
    "correlate": ("correlate", (X, ROWS[0]), {}),
    "correlate full": ("correlate", (ROWS[0], X), {"mode": "full"}),
    "unwrap": ("unwrap", (3.0 * X,), {}),
    "cov": ("cov", (ROWS, ROWS[:2] ** 2), {}),
    "cov of columns": ("cov", (ROWS,), {"rowvar": False, "bias": True}),
    "cov with weights": ("cov", (ROWS,), {"aweights": [0.5, 1.0, 2.0, 1.5, 0.25], "fweights": [1, 2, 0, 3, 1]}),
    "corrcoef": ("corrcoef", (ROWS,), {}),
    "nanmedian": ("nanmedian", (ROWS,), {"axis": 1}),
    "nanquantile": ("nanquantile", (ROWS, [0.1, 0.7]), {"axis": 0}),
    "nancumprod": ("nancumprod", (ROWS,), {"axis": 1}),
}
"""Calls with one result; all their arrays are differentiated."""


@pytest.mark.parametrize("name", CALLS)
def test_numpys_function_on_tensors_is_tracked(name: str) -> None:
    function, args, kw = CALLS[name]
    leaves = [jg.tensor(a, requires_grad=True) for a in args if isinstance(a, np.ndarray)]
    supply = iter(leaves)
    found = getattr(np, function)(*(next(supply) if isinstance(a, np.ndarray) else a for a in args), **kw)
    assert_allclose(found.detach().numpy(), getattr(np, function)(*args, **kw), rtol=1e-12, atol=1e-13)
    (found * found).sum().backward()
    for i, leaf in enumerate(leaves):

        def f(a: Array, i: int = i) -> Any:
            arrays = [a if k == i else v for k, v in enumerate(args)]
            return np.sum(getattr(np, function)(*arrays, **kw) ** 2)

        assert_allclose(leaf.grad.numpy(), numerical(f, args[i]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_jit_vmap_and_derivatives_of_derivatives(name: str) -> None:
    function, args, kw = CALLS[name]
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    rest = args[len(arrays) :]
    numbers = tuple(range(len(arrays)))

    def f(*xs: Any) -> Any:
        return (getattr(jg, function)(*xs, *rest, **kw) ** 2).sum()

    assert_allclose(jg.jit(f)(*arrays), np.sum(getattr(np, function)(*args, **kw) ** 2), rtol=1e-12)
    slopes = jg.grad(f, argnums=numbers)
    for found, expected in zip(jg.jit(slopes)(*arrays), slopes(*arrays), strict=True):
        assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    batch = [np.stack([a, a * 1.25]) for a in arrays]
    for i in range(2):
        assert_allclose(jg.vmap(f)(*batch)[i], f(*(b[i] for b in batch)).item(), rtol=1e-12)
        alone = jg.vmap(f, in_axes=(0, *(None,) * (len(arrays) - 1)))(batch[0], *arrays[1:])
        assert_allclose(alone[i], f(batch[0][i], *arrays[1:]).item(), rtol=1e-12)
    directions = [rng.normal(size=a.shape) for a in arrays]

    def along(*xs: Any) -> Any:
        return sum((g * d).sum() for g, d in zip(slopes(*xs), directions, strict=True))

    second = jg.grad(along, argnums=numbers)(*arrays)
    for i, found in enumerate(second):
        expected = numerical(
            lambda a, i=i: along(*(a if k == i else v for k, v in enumerate(arrays))).item(), arrays[i], 1e-5
        )
        assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("name", CALLS)
def test_single_precision_and_memory_that_is_read_only_or_strided(name: str) -> None:
    function, args, kw = CALLS[name]

    def laid_out(a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            return a
        wide = np.repeat(a.astype(np.float32), 2, axis=-1)
        wide.flags.writeable = False
        return wide[..., ::2]

    found = getattr(jg, function)(*map(laid_out, args), **kw)
    assert found.dtype == np.float32
    assert_allclose(found.numpy(), getattr(np, function)(*args, **kw), rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------- interp


def test_interp_at_its_points_takes_the_segment_on_the_right_and_at_the_last_the_one_on_the_left() -> None:
    xp, fp = np.array([0.0, 1.0, 3.0]), np.array([1.0, 3.0, 2.0])
    slope = jg.vmap(jg.grad(lambda x: jg.interp(x, xp, fp)))
    at = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
    assert_array_equal(slope(at), [0.0, 2.0, 2.0, -0.5, -0.5, -0.5, 0.0])
    weights = jg.jacobian(lambda f: jg.interp(at, xp, f))(fp)
    assert_array_equal(weights.sum(axis=1), np.ones(7))
    assert_array_equal(weights[[1, 3, 5]], np.eye(3))
    moved = jg.jacobian(lambda p: jg.interp(at, p, fp))(xp)
    assert_array_equal(moved[[0, 6]], np.zeros((2, 3)))
    assert_array_equal(moved[[1, 3, 5]], [[-2.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]])


@pytest.mark.parametrize(
    ("xp", "fp"),
    [
        ([0.0, 1.0, 1.0, 2.0], [0.0, 1.0, 5.0, 6.0]),
        ([0.0, 0.0, 1.0], [3.0, 1.0, 2.0]),
        ([0.0, 1.0, 1.0], [3.0, 1.0, 2.0]),
        ([1.0, 1.0], [3.0, 4.0]),
        ([1.0], [3.0]),
        ([-INF, 0.0, INF], [1.0, 2.0, 3.0]),
        ([0.0, 1.0, 2.0], [1.0, INF, INF]),
        ([0.0, 1.0, 2.0], [1.0, NAN, 2.0]),
        ([0.0, 1.0, 2.0], [INF, -INF, 2.0]),
    ],
)
def test_interp_of_equal_and_infinite_points_as_in_numpy(xp: list[float], fp: list[float]) -> None:
    x = np.array([-INF, -1.0, -0.0, 0.0, 0.25, 1.0, 1.5, 2.0, 3.0, INF, NAN])
    for kw in ({}, {"left": -7.0, "right": NAN}):
        assert_allclose(jg.interp(x, xp, fp, **kw).numpy(), np.interp(x, xp, fp, **kw), rtol=1e-14)
        assert_allclose(jg.jit(lambda x, kw=kw: jg.interp(x, xp, fp, **kw))(x), np.interp(x, xp, fp, **kw), rtol=1e-14)


def test_interp_between_equal_points_has_a_finite_gradient() -> None:
    slopes = jg.grad(lambda x, xp, fp: jg.interp(x, xp, fp).sum(), argnums=(0, 1, 2))
    for x in ([1.0], [0.5], [2.0]):
        for found in slopes(np.array(x), np.array([0.0, 1.0, 1.0]), np.array([1.0, 2.0, 4.0])):
            assert np.isfinite(found).all()


def test_interp_gives_the_outside_what_stands_for_it() -> None:
    def f(left: Any, right: Any, fp: Any) -> Any:
        return jg.interp(np.array([-1.0, 0.25, 5.0]), [0.0, 1.0], fp, left, right).sum()

    left, right, fp = jg.grad(f, argnums=(0, 1, 2))(1.0, 2.0, np.array([3.0, 4.0]))
    assert (left, right) == (1.0, 1.0)
    assert_array_equal(fp, [0.75, 0.25])


def test_interp_is_differentiated_by_its_period() -> None:
    x, xp, fp = np.array([0.3, 5.9, 8.0, -3.0]), np.array([4.0, 1.0, 2.5]), np.array([1.0, 3.0, -2.0])
    found = jg.grad(lambda p: (jg.interp(x, xp, fp, period=p) ** 2).sum())(5.0)
    expected = numerical(lambda p: np.sum(np.interp(x, xp, fp, period=p) ** 2), np.array(5.0))
    assert_allclose(found, expected, rtol=1e-7)
    assert_allclose(jg.interp(x, xp, fp, period=-5).numpy(), np.interp(x, xp, fp, period=-5), rtol=1e-14)


# --------------------------------------------------------------------------- gradient


def test_gradient_by_the_coordinates_also_where_they_are_equally_spaced() -> None:
    f = np.array([1.0, 5.0, 2.0, 7.0])
    for order in (1, 2):
        # NumPy takes another formula for equal distances, which has other derivatives
        def shifted(c: Array, order: int = order) -> Any:
            return np.sum(np.gradient(f, c + 1e-4 * np.array([0.0, 1.0, 0.0, 0.0]), edge_order=order) ** 2)

        found = jg.grad(lambda c, order=order: (jg.gradient(f, c, edge_order=order) ** 2).sum())(
            np.arange(4.0) + 1e-4 * np.array([0.0, 1.0, 0.0, 0.0])
        )
        assert_allclose(found, numerical(shifted, np.arange(4.0), 1e-6), rtol=1e-6, atol=1e-6)
        even = jg.grad(lambda c, order=order: (jg.gradient(f, c, edge_order=order) ** 2).sum())(np.arange(4.0))
        assert_allclose(even, found, rtol=1e-2)


def test_gradient_of_several_axes_is_a_tuple() -> None:
    t = jg.tensor(ROWS)
    for args, kw in [((), {}), ((2.0, points(5)), {}), ((), {"axis": (1, 0)})]:
        for found in (jg.gradient(ROWS, *args, **kw), np.gradient(t, *args, **kw)):
            assert isinstance(found, tuple)
            for a, b in zip(found, np.gradient(ROWS, *args, **kw), strict=True):
                assert_allclose(a.numpy(), b, rtol=1e-13, atol=1e-13)
    assert jg.gradient(ROWS, axis=(1,)).shape == (4, 5)


# --------------------------------------------------------------------------- convolve, correlate


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_sequences_of_all_lengths(name: str, mode: str) -> None:
    ours, theirs = getattr(jg, name), getattr(np, name)
    compiled = jg.jit(lambda a, v: ours(a, v, mode))
    lengths = [1, 2, 3, 4, 5, 9, 40, 600, 1300]
    for n, m in itertools.product(lengths, lengths):
        a, v = rng.normal(size=n), rng.normal(size=m)
        assert_allclose(ours(a, v, mode).numpy(), theirs(a, v, mode), rtol=1e-11, atol=1e-11)
        assert_allclose(compiled(a, v), theirs(a, v, mode), rtol=1e-11, atol=1e-11)
    for dtype in ("int64", "int32", "int8", "uint8", "uint64", "bool"):
        a, v = (rng.integers(0, 100, n).astype(dtype) for n in (7, 4))
        found, expected = ours(a, v, mode), theirs(a, v, mode)
        assert found.dtype == expected.dtype
        assert_array_equal(found.numpy(), expected)
    mixed = ours(np.arange(5, dtype=np.int32), np.ones(2, np.float32), mode)
    assert mixed.dtype == theirs(np.arange(5, dtype=np.int32), np.ones(2, np.float32), mode).dtype


def test_single_precision_convolutions_keep_their_digits() -> None:
    a, v = np.full(300_000, 0.1, np.float32), np.full(200_000, 0.3, np.float32)
    expected = 200_000 * float(np.float32(0.1)) * float(np.float32(0.3))
    assert_allclose(jg.convolve(a[:200_001], v, "valid").numpy(), expected, rtol=1e-6)


def test_an_infinite_weight_does_not_meet_what_is_not_there() -> None:
    a, v = np.array([1.0, 2.0, 3.0]), np.array([INF, 1.0])
    assert_array_equal(jg.convolve(a, v).numpy(), np.convolve(a, v))


# --------------------------------------------------------------------------- unwrap


def test_unwrap_of_integers_and_of_half_a_period() -> None:
    for p in ([0, 3, 1, 6, 2], [0, 2, 0, -2, 4], [0, 5, 10]):
        for period in (4, 5, 6.5):
            found, expected = jg.unwrap(p, period=period), np.unwrap(p, period=period)
            assert found.dtype == expected.dtype
            assert_array_equal(found.numpy(), expected)
    turns = np.array([0.0, np.pi, 0.0, -np.pi, 4.0])
    assert_allclose(jg.unwrap(turns).numpy(), np.unwrap(turns))
    assert_array_equal(jg.grad(lambda p: (jg.unwrap(p) * np.arange(5.0)).sum())(turns), np.arange(5.0))


# --------------------------------------------------------------------------- without NaN


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("nanmedian", ()),
        ("nanquantile", (0.3,)),
        ("nanpercentile", ([10.0, 85.0],)),
        ("nancumsum", ()),
        ("nancumprod", ()),
    ],
)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_order_and_totals_of_what_is_not_nan(name: str, args: tuple[Any, ...], axis: int | None) -> None:
    x = np.random.default_rng(7).normal(size=(4, 5))
    x[0, 1] = x[2, 2] = x[2, 3] = x[1, 4] = NAN
    ours, theirs = getattr(jg, name), getattr(np, name)
    expected = theirs(x, *args, axis=axis)
    assert_allclose(ours(x, *args, axis=axis).numpy(), expected, rtol=1e-13)
    assert_allclose(jg.jit(lambda x: ours(x, *args, axis=axis))(x), expected, rtol=1e-13)
    assert_allclose(jg.vmap(lambda x: ours(x, *args, axis=axis))(np.stack([x, -x]))[0], expected, rtol=1e-13)
    slopes = numerical(lambda v: np.sum(theirs(v, *args, axis=axis) ** 2), x, 1e-5)
    slopes[np.isnan(x)] = 0.0
    found = jg.grad(lambda v: (ours(v, *args, axis=axis) ** 2).sum())(x)
    assert_allclose(found, slopes, rtol=1e-6, atol=1e-7)


def test_nothing_but_nan_gives_nan_and_no_gradient() -> None:
    x = np.array([[NAN, NAN], [1.0, 3.0]])
    assert_array_equal(jg.nanmedian(x, 1).numpy(), [NAN, 2.0])
    assert_array_equal(jg.grad(lambda x: jg.nanmedian(x, 1).sum())(x), [[0.0, 0.0], [0.5, 0.5]])
    assert_array_equal(jg.nanquantile(np.zeros((2, 0)), 0.5, axis=1).numpy(), [NAN, NAN])
    assert jg.nanmedian(np.zeros((0, 3)), axis=1).shape == (0,)


# --------------------------------------------------------------------------- covariances


def test_cov_by_importance_and_of_too_few() -> None:
    w, often = rng.uniform(0.5, 2.0, 5), np.array([1, 2, 0, 3, 1])
    for kw in ({}, {"fweights": often}, {"ddof": 0}):
        found = jg.grad(lambda w, kw=kw: (jg.cov(ROWS, aweights=w, **kw) ** 2).sum())(w)
        expected = numerical(lambda w, kw=kw: np.sum(np.cov(ROWS, aweights=w, **kw) ** 2), w)
        assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    nothing = np.full((4, 4), NAN)  # as in NumPy, which warns
    assert_array_equal(jg.cov(ROWS[:, :1]).numpy(), nothing)
    assert_array_equal(jg.cov(ROWS[:, :1], fweights=[1]).numpy(), nothing)
    assert jg.cov(np.zeros((0, 4))).shape == (0, 0)
    assert jg.corrcoef(ROWS[0]).item() == 1.0


# --------------------------------------------------------------------------- counting


def test_bincount_while_traced_is_as_long_as_it_is_told() -> None:
    x, w = np.array([1, 0, 4, 1]), np.arange(4.0)
    counted = jg.jit(lambda x, w: jg.bincount(x, w, minlength=6))
    assert_array_equal(counted(x, w), np.bincount(x, w, minlength=6))
    assert_array_equal(jg.jit(lambda w: jg.bincount(x, w))(w), np.bincount(x, w))
    with pytest.raises(RuntimeError, match="give minlength"):
        jg.jit(jg.bincount)(x, w)
    for bad in ([1, 6, 0, 1], [1, -1, 0, 1]):
        with pytest.raises(IndexError):
            counted(np.array(bad), w)
    assert_array_equal(jg.grad(lambda w: (jg.bincount(x, w) ** 2).sum())(w), [6.0, 2.0, 4.0, 6.0])
    assert_array_equal(jg.bincount(np.zeros(0, int), minlength=2).numpy(), [0, 0])


def test_digitize_and_isin_while_traced() -> None:
    x = np.array([-1.0, 0.0, 0.5, 1.0, 7.0, NAN])
    for bins in (np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.0]), np.array([2.0]), np.zeros(0)):
        for right in (False, True):
            found = jg.jit(lambda x, bins, right=right: jg.digitize(x, bins, right))(x, bins)
            assert_array_equal(found, np.digitize(x, bins, right))
            assert_array_equal(jg.isin(x, bins, invert=right).numpy(), np.isin(x, bins, invert=right))


# --------------------------------------------------------------------------- errors

T = jg.tensor([1.0, 2.0, 3.0])
MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "trapezoid of a scalar": (lambda: jg.trapezoid(1.0), ValueError, "trapezoid: axis"),
    "trapezoid of a short x": (lambda: jg.trapezoid(np.ones(5), np.ones(4)), ValueError, "shapes"),
    "gradient of one value": (lambda: jg.gradient([1.0]), ValueError, "at least edge_order"),
    "gradient of order 3": (lambda: jg.gradient(T, edge_order=3), ValueError, "edge_order"),
    "gradient with too many distances": (lambda: jg.gradient(T, 1.0, 2.0), TypeError, "2 distances for 1 axes"),
    "gradient with a short coordinate": (lambda: jg.gradient(T, [1.0, 2.0]), ValueError, "2 coordinates"),
    "gradient with a matrix": (lambda: jg.gradient(T, np.ones((3, 1))), ValueError, r"shape \(3, 1\)"),
    "gradient of an axis twice": (lambda: jg.gradient(ROWS, axis=(0, -2)), ValueError, "twice"),
    "polyval of a scalar": (lambda: jg.polyval(1.0, T), ValueError, "coefficients"),
    "interp of matrices": (lambda: jg.interp(T, np.ones((2, 2)), np.ones((2, 2))), ValueError, "vectors"),
    "interp of unlike lengths": (lambda: jg.interp(T, [1.0, 2.0], [1.0]), ValueError, "one length"),
    "interp of nothing": (lambda: jg.interp(T, [], []), ValueError, "no points"),
    "interp of period 0": (lambda: jg.interp(T, T, T, period=0), ValueError, "period"),
    "convolve of nothing": (lambda: jg.convolve([], T), ValueError, "empty"),
    "convolve of a matrix": (lambda: jg.convolve(ROWS, T), ValueError, "vectors"),
    "correlate of a scalar": (lambda: jg.correlate(1.0, T), ValueError, "vectors"),
    "correlate of mode all": (lambda: jg.correlate(T, T, "all"), ValueError, "mode"),
    "cov of three axes": (lambda: jg.cov(np.ones((2, 2, 2))), ValueError, "at most two axes"),
    "cov of unlike numbers": (lambda: jg.cov(ROWS, np.ones((2, 3))), ValueError, "5 observations"),
    "cov with ddof 0.5": (lambda: jg.cov(ROWS, ddof=0.5), ValueError, "ddof"),  # type: ignore[arg-type]
    "cov with negative weights": (lambda: jg.cov(ROWS, aweights=[-1.0] * 5), ValueError, "negative"),
    "cov with few weights": (lambda: jg.cov(ROWS, aweights=[1.0]), ValueError, "5 observations"),
    "cov with parts of observations": (lambda: jg.cov(ROWS, fweights=[0.5] * 5), TypeError, "integers"),
    "nanquantile beyond 1": (lambda: jg.nanquantile(T, 1.5), ValueError, r"nanquantile: q must lie in \[0, 1\]"),
    "bincount of a matrix": (lambda: jg.bincount([[1]]), ValueError, "one axis"),
    "bincount of -1": (lambda: jg.bincount([1, -1]), ValueError, "negative"),
    "bincount of floats": (lambda: jg.bincount(T), TypeError, "integers"),
    "bincount with few weights": (lambda: jg.bincount([1, 2], T), ValueError, "2 numbers"),
    "digitize by disorder": (lambda: jg.digitize(T, [1.0, 3.0, 2.0]), ValueError, "monotonically"),
    "unwrap by a tensor": (lambda: jg.unwrap(T, period=jg.tensor(1.0)), TypeError, "period must be a plain number"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise(name: str) -> None:
    call, kind, text = MISTAKES[name]
    with pytest.raises(kind, match=text) as caught:
        call()
    assert isinstance(caught.value, JitgradError)
