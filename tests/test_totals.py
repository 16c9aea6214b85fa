"""Sums that are known but for a factor: right values, and NaN and infinities as if each product were summed up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, kernels

import jitgrad as jg
from jitgrad.compiler.fuse import plan
from jitgrad.compiler.passes import simplify
from jitgrad.transforms.jit import JitFunction, jit

Array = np.ndarray[Any, Any]
INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with kernels("python"):
        yield


def shortcuts(function: JitFunction, *args: Any) -> int:
    """How many sums of the function follow from others."""
    found = plan(simplify(function.graph(*args)))
    return sum(
        getattr(s, "scaled", None) is not None for stage in found.stages for r in stage for s in getattr(r, "sinks", ())
    )


def both(x: Any, c: Any) -> Any:
    e = np.exp(x)
    total = np.sum(e)
    return total, np.sum(c * e), np.sum(-(e * c))


VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 700.0, -800.0, 709.7, INF, -INF, NAN, 0.5, -3.25, 300.0])
FACTORS = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e300, -1e300, 1e-300, 5e-324, INF, -INF, NAN])


@examples(400)
@given(st.lists(VALUES, min_size=2, max_size=6), FACTORS, st.sampled_from([np.float64, np.float32]))
def test_special_values(values: list[float], factor: float, dtype: Any) -> None:
    function = jit(both)
    with np.errstate(all="ignore"):
        x, c = np.array(values, dtype), dtype(factor)
        e = np.exp(x)
        sums = [np.sum(v, dtype=np.float64).astype(dtype) for v in (e, c * e, -(e * c))]
        partial = [np.abs(np.cumsum(v.astype(np.float64))).max() for v in (e, c * e)]
    assert shortcuts(function, x, c) == 2
    for found, wanted in zip(function(x, c), sums, strict=True):
        if np.isfinite(wanted) and all(
            p < 1e37 if dtype == np.float32 else p < 1e307 for p in partial if np.isfinite(p)
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-5 if dtype == np.float32 else 1e-14, atol=1e-44)
        elif np.all(np.isfinite(e)) and np.isfinite(c):
            assert not np.isnan(found)  # a partial sum overflowed
        else:
            np.testing.assert_array_equal(found, wanted)
        if wanted == 0.0 and found == 0.0:
            assert not np.signbit(found)


def written_out(x: Any) -> Any:
    top = np.max(x)
    return np.log(np.sum(np.exp(x - top))) + top


def by_rows(x: Any) -> Any:
    top = np.max(x, axis=-1, keepdims=True)
    return np.sum(np.log(np.sum(np.exp(x - top), axis=-1, keepdims=True)) + top)


@pytest.mark.parametrize("mode", ["python", "compiled"])
@pytest.mark.parametrize(("function", "shape"), [(written_out, (300,)), (by_rows, (7, 40)), (by_rows, (2, 3, 5))])
def test_softmax(function: Any, shape: tuple[int, ...], mode: str) -> None:
    with kernels(mode):
        x = np.random.default_rng(0).normal(size=shape) * 10.0
        fast = jit(jg.value_and_grad(function))
        assert shortcuts(fast, x) == 1
        value, slope = fast(x)
        axis = None if function is written_out else -1
        e = np.exp(x - np.max(x, axis=axis, keepdims=True))
        np.testing.assert_allclose(value, function(x), rtol=1e-14)
        np.testing.assert_allclose(slope, e / np.sum(e, axis=axis, keepdims=True), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("x", [[INF, 1.0, INF], [-INF, -INF, -INF], [NAN, 1.0, 2.0], [1.0, -INF, 1.0], [1.0, INF, 2.0]])
def test_softmax_of_infinities(x: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the shortcut."""
    given = np.array(x)
    found = jit(jg.value_and_grad(written_out))(given)
    wanted = jg.value_and_grad(written_out)(given)  # one operation after the other
    np.testing.assert_allclose(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], atol=1e-15)


def test_where_terms_may_be_negative_they_are_added_up() -> None:
    """1e300 (1e10 - 1e10) is no number, though 1e300 times their sum is 0."""

    def function(x: Any, c: Any) -> Any:
        return np.sum(x * 1.0), np.sum(c * x)

    x = np.array([1e10, -1e10])
    assert shortcuts(jit(function), x, 1e300) == 0
    assert np.isnan(jit(function)(x, 1e300)[1])


def test_factors_that_vary_are_no_factors() -> None:
    def function(x: Any, c: Any) -> Any:
        e = np.exp(x)
        return np.sum(e, axis=1), np.sum(c * e, axis=1)

    x, c = np.ones((2, 3)), np.array([1.0, 2.0, 3.0])
    assert shortcuts(jit(function), x, c) == 0
    np.testing.assert_allclose(jit(function)(x, c)[1], 6.0 * np.e * np.ones(2))
    rows = np.array([[2.0], [3.0]])
    assert shortcuts(jit(function), x, rows) == 1
    np.testing.assert_allclose(jit(function)(x, rows)[1], [6.0 * np.e, 9.0 * np.e])
    # sums over outer axes are not skipped
    assert shortcuts(jit(lambda x: (np.sum(np.exp(x), axis=0), np.sum(2.0 * np.exp(x), axis=0))), x) == 0


@pytest.mark.parametrize("steps", [2, 40])
def test_over_many_segments(steps: int) -> None:
    def function(x: Any) -> Any:
        for _ in range(steps):
            x = x - written_out(x) + np.tanh(x)
        return np.sum(x * x)

    x = np.linspace(-1.0, 1.0, 9)
    step = 1e-6 * np.cos(np.arange(9.0))
    value, slope = jit(jg.value_and_grad(function))(x)
    np.testing.assert_allclose(value, function(x), rtol=1e-12)
    np.testing.assert_allclose(slope @ step, (function(x + step) - function(x - step)) / 2, rtol=1e-5)
