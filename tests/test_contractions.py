"""Sums of matrix products, and products of repeated operands, which are not made whole: right in every case."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, kernels, seeds

import jitgrad as jg
from jitgrad.compiler.passes import simplify
from jitgrad.ops.product_primitives import matrix_product
from jitgrad.transforms.jit import JitFunction, jit

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with kernels("python"):
        yield


def products(function: JitFunction, *args: Any) -> list[tuple[int, ...]]:
    """The shapes of the matrix products that a function makes."""
    graph = simplify(function.graph(*args)).verify()
    return [node.outputs[0].aval.shape for node in graph.nodes if node.primitive is matrix_product]


@st.composite
def sums(draw: Any) -> tuple[Any, list[Array]]:
    """A sum of a product of matrices, or of stacks of them, transposed, negated and repeated as it comes."""
    rng = np.random.default_rng(draw(seeds))
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    m, k, n = (draw(st.integers(0, 4)) for _ in range(3))
    stacks = draw(st.sampled_from([((), ()), ((3,), (3,)), ((2,), ()), ((), (2,)), ((2, 3), (2, 3)), ((0,), (0,))]))
    turned = [draw(st.booleans()) for _ in range(2)]
    sides = [(*stacks[0], m, k), (*stacks[1], k, n)]
    repeated = [draw(st.sampled_from([None, None, -1, -2])) for _ in range(2)]
    shapes = [(*s[:-2], s[-1], s[-2]) if t else s for s, t in zip(sides, turned, strict=True)]
    arrays = [
        rng.standard_normal(s if r is None else (*s[: len(s) + r], 1, *s[len(s) + r + 1 :])).astype(dtype)
        for s, r in zip(shapes, repeated, strict=True)
    ]
    ndim = max(map(len, shapes))
    axes = tuple(sorted(draw(st.sets(st.integers(0, ndim - 1)))))
    negated, keepdims = draw(st.booleans()), draw(st.booleans())

    def function(x: Any, y: Any) -> Any:
        x, y = np.broadcast_to(x, shapes[0]), np.broadcast_to(y, shapes[1])
        x, y = (np.swapaxes(v, -1, -2) if t else v for v, t in zip((x, y), turned, strict=True))
        made = -(x @ y) if negated else x @ y
        return np.sum(made, axis=axes, keepdims=keepdims)

    return function, arrays


def bound(function: Any, arrays: list[Array]) -> Any:
    """What rounding may change, anywhere in a sum of products: the sum of the absolute values tells."""
    total = np.abs(function(*[np.abs(a).astype(np.float64) for a in arrays]))
    return 200 * np.finfo(arrays[0].dtype).eps * total


@examples(300)
@given(sums())
def test_values_and_gradients_are_those_of_the_whole_product(case: tuple[Any, list[Array]]) -> None:
    function, arrays = case
    wide = [a.astype(np.float64) for a in arrays]
    found, wanted = np.asarray(jit(function)(*arrays)), function(*wide)
    assert found.shape == wanted.shape
    assert found.dtype == arrays[0].dtype
    assert np.all(np.abs(found - wanted) <= bound(function, arrays))
    # linear in each operand: the gradient is the Jacobian's column sums, found from unit arrays
    gradients = jit(jg.grad(lambda x, y: np.sum(function(x, y)), argnums=(0, 1)))(*arrays)
    for i, gradient in enumerate(gradients):
        assert gradient.dtype == arrays[i].dtype
        for index in np.ndindex(arrays[i].shape):
            unit = [np.zeros_like(a) if k == i else a for k, a in enumerate(wide)]
            unit[i][index] = 1.0
            limit = bound(lambda *a: np.sum(function(*a)), [np.asarray(a, arrays[i].dtype) for a in unit])
            assert abs(float(gradient[index]) - np.sum(function(*unit))) <= limit


SPECIAL = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -3.0, math.inf, -math.inf, math.nan])


@examples(300)
@given(
    st.lists(SPECIAL, min_size=6, max_size=6),
    st.lists(SPECIAL, min_size=6, max_size=6),
    st.sampled_from([0, 1, None]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from([np.float64, np.float32]),
)
def test_what_is_not_finite(
    first: list[float], second: list[float], axis: int | None, flags: tuple[bool, bool, bool], dtype: Any
) -> None:
    x, y = np.array(first, dtype).reshape(3, 2), np.array(second, dtype).reshape(2, 3)
    negated, *turned = flags

    def function(x: Any, y: Any) -> Any:
        x, y = (v.T if t else v for v, t in zip((x, y), turned, strict=True))
        return np.sum(-(x @ y) if negated else x @ y, axis=axis)

    with np.errstate(all="ignore"):
        wanted = np.sum(np.stack([np.multiply.outer(x[:, k], y[k]) for k in range(2)]), axis=0).sum(axis=axis)
        given = [v.T.copy() if t else v for v, t in zip((x, y), turned, strict=True)]
        found = np.asarray(jit(function)(*given))
    np.testing.assert_array_equal(found, -wanted if negated else wanted)


def test_a_sum_of_zeros_is_never_negative() -> None:
    x, y = np.array([[-1.0], [-2.0]]), np.zeros((1, 3))
    for f in (lambda x, y: np.sum(x @ y, axis=0), lambda x, y: np.sum(-(x @ y), axis=0)):
        for first in (x, -x):
            np.testing.assert_array_equal(np.signbit(np.asarray(jit(f)(first, y))), np.zeros(3, bool))


def test_an_empty_sum_is_zero_whatever_the_other_operand_has() -> None:
    x, y = np.full((2, 3), math.inf), np.zeros((3, 0))
    np.testing.assert_array_equal(jit(lambda x, y: np.sum(x @ y, axis=1))(x, y), [0.0, 0.0])
    np.testing.assert_array_equal(jit(lambda x, y: np.sum(y.T @ x, axis=0))(x.T, y), [0.0, 0.0])
    with kernels("compiled"):
        total = jit(lambda x, y: np.sum(-(x @ y), axis=1)).njit(np.ones((2, 3)), np.ones((3, 4)))
        np.testing.assert_array_equal(total(x, y), [0.0, 0.0])


def test_no_product_is_whole_that_need_not_be() -> None:
    x, y, c = np.ones((5, 3)), np.ones((3, 4)), np.ones(3)
    assert products(jit(lambda x, y: np.sum(x @ y, axis=1)), x, y) == [(5, 1)]
    assert products(jit(lambda x, y: np.sum(-(x @ y), axis=0)), x, y) == [(1, 4)]
    assert products(jit(lambda x, y: np.sum(x @ y)), x, y) == [(1, 1)]
    # the gradient of a centre: one product for the value, a small one for the gradient
    centred = jit(jg.value_and_grad(lambda c, x, y: np.sum(np.tanh((x - c) @ y))))
    assert products(centred, c, x, y) == [(5, 4), (1, 3)]
    # a product that somebody else needs is made anyway
    assert products(jit(lambda x, y: (x @ y, np.sum(x @ y, axis=1))), x, y) == [(5, 4)]
    assert products(jit(lambda x, y: np.sum(x @ y - 1.0, axis=1)), x, y) == [(5, 4)]
    # equal columns are one
    assert products(jit(jg.grad(lambda x, y: np.sum(x @ y), argnums=(0, 1))), x, y) == [(1, 3), (3, 1)]
    assert products(jit(lambda x, y: np.broadcast_to(x, (5, 3)) @ y), x[:1], y) == [(1, 4)]
    assert products(jit(lambda x, y: np.broadcast_to(x, (5, 3)) @ y), x[:, :1], y) == [(5, 4)]


def test_sums_of_products_do_not_overflow_before_the_product_does() -> None:
    big, small = np.full((2, 2), 1e308), np.full((2, 2), 1e-300)
    np.testing.assert_allclose(jit(lambda x, y: np.sum(x @ y, axis=1))(small, big), [4e8, 4e8])
    wide = np.full((2, 3, 2), 3e38, np.float32)
    found = jit(lambda x, y: np.sum(-(x @ y), axis=(0, 1)))(wide, np.full((2, 2), 1e-30, np.float32))
    np.testing.assert_allclose(np.asarray(found), [-3.6e9, -3.6e9], rtol=1e-5)


def test_gradients_for_all_extents() -> None:
    rng = np.random.default_rng(5)
    with kernels("compiled"):
        step = jg.jit(jg.grad(lambda c, x, y: np.sum(np.tanh((x - c[:, None]) @ y) ** 2), argnums=(0, 2))).njit(
            np.ones((2, 3)), np.ones((2, 4, 3)), np.ones((3, 5))
        )
        total = jg.jit(jg.value_and_grad(lambda x, y: np.sum(x @ y), argnums=(0, 1))).njit(
            np.ones((2, 3)), np.ones((3, 4))
        )
        for b, m, k, n in ((2, 4, 3, 5), (3, 1, 2, 1), (1, 7, 9, 8), (4, 30, 11, 20), (2, 0, 3, 4), (2, 3, 4, 0)):
            c, x, y = rng.standard_normal((b, k)), rng.standard_normal((b, m, k)), rng.standard_normal((k, n))
            t = np.tanh((x - c[:, None]) @ y)
            g = 2.0 * t * (1.0 - t * t)
            found = step(c, x, y)
            np.testing.assert_allclose(found[0], -(g @ y.T).sum(axis=1), rtol=1e-12, atol=1e-12)
            wanted = np.einsum("bmk,bmn->kn", x - c[:, None], g)
            np.testing.assert_allclose(found[1], wanted, rtol=1e-12, atol=1e-12)
            for f, w in zip(
                total(x[0], y)[1], (y.sum(axis=1)[None] + 0 * x[0], x[0].sum(axis=0)[:, None] + 0 * y), strict=True
            ):
                np.testing.assert_allclose(f, w, rtol=1e-12, atol=1e-12)
