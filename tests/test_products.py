"""Products: NumPy's values for every form of operand, derivatives against finite differences, hard cases by hand."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitgrad as jg
from jitgrad.errors import ArgumentError, DtypeError, ShapeError

Array = np.ndarray[Any, Any]


def value(t: Any) -> Array:
    return np.asarray(t.detach().numpy())


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


CASES: list[tuple[str, list[tuple[int, ...]]]] = [
    ("matmul", [(3, 4), (4, 2)]),
    ("matmul", [(13, 14), (14, 12)]),
    ("matmul", [(2, 3, 4), (4,)]),
    ("matmul", [(4,), (4, 2)]),
    ("matmul", [(4,), (5, 4, 2)]),
    ("matmul", [(40,), (40, 30)]),
    ("matmul", [(4,), (4,)]),
    ("matmul", [(2, 1, 3, 4), (5, 4, 2)]),
    ("matmul", [(3, 20), (2, 20, 30)]),
    ("matmul", [(0, 3), (3, 2)]),
    ("matmul", [(2, 0), (0, 3)]),
    ("matmul", [(2, 0), (0,)]),
    ("matmul", [(0,), (0,)]),
    ("matmul", [(0, 2, 3), (3, 4)]),
    ("dot", [(3, 4), (4,)]),
    ("dot", [(2, 3, 4), (3, 4, 2)]),
    ("dot", [(), (3,)]),
    ("inner", [(2, 3), (4, 3)]),
    ("outer", [(2, 2), (3,)]),
    ("vdot", [(3, 2), (2, 3)]),
    ("vecdot", [(3, 4), (4,)]),
    ("tensordot", [(3, 4, 2), (4, 2, 3)]),
    ("kron", [(2, 2), (3,)]),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "bool"])
@pytest.mark.parametrize(("name", "shapes"), CASES, ids=str)
def test_values_dtypes_and_shapes_as_numpy(name: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    rng = np.random.default_rng(0)
    operands = [numbers(rng, s, dtype) for s in shapes]
    wanted = getattr(np, name)(*operands)
    got = getattr(jg, name)(*operands)
    assert got.dtype == wanted.dtype
    assert got.shape == np.shape(wanted)
    tolerance = {"float64": 1e-13, "float32": 1e-5}.get(dtype, 0)
    np.testing.assert_allclose(value(got), wanted, rtol=tolerance, atol=30 * tolerance)


def test_mixed_dtypes_are_promoted_and_gradients_come_back_in_their_own() -> None:
    x = jg.tensor(np.ones((2, 3), np.float32), requires_grad=True)
    y = jg.tensor(np.arange(6.0).reshape(3, 2), requires_grad=True)
    made = x @ y
    assert made.dtype == np.float64
    made.sum().backward()
    assert x.grad.dtype == np.float32
    assert y.grad.dtype == np.float64
    np.testing.assert_array_equal(x.grad.numpy(), np.tile([1, 5, 9], (2, 1)))
    counts = jg.tensor([1.0, 2.0]) @ np.array([[1, 2], [3, 4]])
    np.testing.assert_array_equal(value(counts), [7, 10])


def layouts(a: Array) -> list[Array]:
    """The same matrix in several memory layouts."""
    wide = np.zeros((2 * a.shape[0], 3 * a.shape[1]), a.dtype)
    wide[::2, ::3] = a
    return [a, np.asfortranarray(a), a[::-1].copy()[::-1], wide[::2, ::3]]


@pytest.mark.parametrize("size", [3, 40])
def test_layouts_of_operands_change_nothing(size: int) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(size, size + 1)), rng.normal(size=(size + 1, size + 2))
    wanted = a @ b
    for x, y in itertools.product(layouts(a), layouts(b)):
        np.testing.assert_allclose(value(jg.matmul(x, y)), wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(value(jg.matmul(x, y[:, 1])), wanted[:, 1], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(value(jg.matmul(x[1], y)), wanted[1], rtol=1e-12, atol=1e-12)
        stacked = value(jg.matmul(np.stack([x, x]).swapaxes(-1, -2), x))
        np.testing.assert_allclose(stacked, np.stack([a.T @ a] * 2), rtol=1e-12, atol=1e-12)


@given(
    st.sampled_from([0, 1, 2, 3, 4, 5, 15, 16, 17, 33, 300]),
    st.sampled_from([0, 1, 2, 3, 7, 8, 16, 17, 40, 257, 2100]),
    st.sampled_from([0, 1, 2, 3, 8, 15, 16, 31, 260, 600]),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([(), (1,), (3,)]),
    st.sampled_from(["float64", "float32"]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_every_way_of_making_a_product_adds_up_all_of_its_terms(
    m: int, n: int, k: int, transposed: tuple[bool, bool], batch: tuple[int, ...], dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(*batch, *((k, m) if transposed[0] else (m, k)))).astype(dtype)
    y = rng.normal(size=(n, k) if transposed[1] else (k, n)).astype(dtype)
    for array in (x, y):
        if array.size and seed % 3 == 0:
            array[..., 0, -1] = np.inf if seed % 2 else np.nan
    a, b = x.swapaxes(-1, -2) if transposed[0] else x, y.T if transposed[1] else y
    wide = a.astype(np.longdouble), b.astype(np.longdouble)
    with np.errstate(invalid="ignore"):
        expected = np.einsum("...ik,kj->...ij", *wide)
        bound = (k + 4) * np.finfo(dtype).eps * np.einsum("...ik,kj->...ij", *map(np.abs, wide))
        for made in (value(jg.tensor(a) @ jg.tensor(b)), np.asarray(jg.jit(lambda u, v: u @ v)(a, b))):
            assert made.dtype == dtype
            finite = np.isfinite(expected)
            np.testing.assert_array_equal(made[~finite].astype(float), expected[~finite].astype(float))
            assert np.all(abs(made - expected)[finite] <= bound[finite])


def test_gradients_of_large_products_by_hand() -> None:
    rng = np.random.default_rng(2)
    for left, right in [((30, 40), (40, 20)), ((30, 40), (40,)), ((40,), (40, 20)), ((7, 30, 40), (40, 20))]:
        a, b = rng.normal(size=left), rng.normal(size=right)
        x, y = jg.tensor(a, requires_grad=True), jg.tensor(b, requires_grad=True)
        made = x @ y
        g = rng.normal(size=made.shape)
        made.backward(g)
        column = g[..., None] if b.ndim == 1 else g
        flat = a.reshape(-1, 40)
        matrix = column.reshape(flat.shape[0], -1)
        second = b[:, None] if b.ndim == 1 else b
        np.testing.assert_allclose(x.grad.numpy(), (matrix @ second.T).reshape(left), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(y.grad.numpy(), (flat.T @ matrix).reshape(right), rtol=1e-11, atol=1e-11)


def test_one_operand_broadcast_over_a_stack_gets_the_sum() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(5, 4, 2))
    x, y = jg.tensor(a, requires_grad=True), jg.tensor(b, requires_grad=True)
    g = rng.normal(size=(5, 3, 2))
    (x @ y).backward(g)
    np.testing.assert_allclose(x.grad.numpy(), sum(g[i] @ b[i].T for i in range(5)), rtol=1e-12)
    np.testing.assert_allclose(y.grad.numpy(), [a.T @ g[i] for i in range(5)], rtol=1e-12)


def test_the_same_tensor_on_both_sides() -> None:
    a = np.random.default_rng(4).normal(size=(6, 6))
    x = jg.tensor(a, requires_grad=True)
    (x @ x).sum().backward()
    ones = np.ones((6, 6))
    np.testing.assert_allclose(x.grad.numpy(), ones @ a.T + a.T @ ones, rtol=1e-12, atol=1e-12)


def test_operators_take_arrays_and_lists_on_either_side() -> None:
    x = jg.tensor([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(value([1.0, 1.0] @ x), [4, 6])
    np.testing.assert_array_equal(value(np.eye(2) @ x), x.numpy())
    np.testing.assert_array_equal(value(x @ np.ones(2)), [3, 7])


def test_infinities_and_nan_follow_the_products() -> None:
    made = value(jg.matmul([[np.inf, 1.0], [np.nan, 1.0], [1.0, 1.0]], [[0.0], [1.0]]))
    np.testing.assert_array_equal(np.isnan(made[:, 0]), [True, True, False])
    big = np.full((20, 20), np.inf)
    assert np.isinf(value(jg.matmul(big, np.ones((20, 20))))).all()


def test_float32_dot_keeps_its_digits() -> None:
    x = np.full(1_000_000, 0.1, np.float32)
    exact = float(np.dot(x.astype(np.float64), x.astype(np.float64)))
    got = jg.dot(x, x)
    assert got.dtype == np.float32
    assert abs(got.item() - exact) <= 1e-6 * exact


def test_second_derivatives_of_a_quadratic_form() -> None:
    rng = np.random.default_rng(5)
    a, v, w = rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=4)
    x = jg.tensor(v, requires_grad=True)
    (x @ a @ x).backward(create_graph=True)
    first = x.grad
    x.grad = None
    jg.dot(first, w).backward()
    np.testing.assert_allclose(x.grad.numpy(), (a + a.T) @ w, rtol=1e-12)


# --------------------------------------------------------------------------- einsum


@st.composite
def subscripts(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    extents = {c: draw(st.integers(1, 3)) for c in "abcd"}
    terms = draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=4))
    used = sorted(set("".join(terms)))
    text = ",".join(terms)
    if draw(st.booleans()):
        text += (
            "->" + "".join(draw(st.permutations(draw(st.lists(st.sampled_from(used), unique=True))))) if used else "->"
        )
    return text, [tuple(extents[c] for c in t) for t in terms]


@given(subscripts(), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_einsum_as_numpy(case: tuple[str, list[tuple[int, ...]]], seed: int) -> None:
    text, shapes = case
    rng = np.random.default_rng(seed)
    operands = [rng.normal(size=s) for s in shapes]
    wanted = np.einsum(text, *operands)
    got = jg.einsum(text, *operands)
    assert got.shape == np.shape(wanted)
    np.testing.assert_allclose(value(got), wanted, rtol=1e-10, atol=1e-10)


@given(subscripts(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_einsum_gradient_is_einsum_in_a_direction(case: tuple[str, list[tuple[int, ...]]], seed: int) -> None:
    """einsum is linear in each operand, so the gradient contracted with a direction is einsum of that direction."""
    text, shapes = case
    rng = np.random.default_rng(seed)
    operands = [rng.normal(size=s) for s in shapes]
    tensors = [jg.tensor(a, requires_grad=True) for a in operands]
    made = jg.einsum(text, *tensors)
    g = rng.normal(size=made.shape)
    made.backward(g)
    for i, t in enumerate(tensors):
        direction = rng.normal(size=shapes[i])
        moved = np.einsum(text, *(direction if j == i else a for j, a in enumerate(operands)))
        expected = float(np.sum(g * moved))
        assert abs(float(np.sum(t.grad.numpy() * direction)) - expected) <= 1e-9 * (1 + abs(expected))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("...ij,jk", [(2, 3, 4), (4, 2)]),
        ("i...,i...->...", [(3, 2), (3, 4, 2)]),
        ("...,...->...", [(2, 3), ()]),
        ("ij...->...ji", [(2, 3, 4)]),
        ("ij,ij->ij", [(1, 3), (2, 1)]),
        ("ii...->...", [(3, 3, 2)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("a,b,c,d->dcba", [(2,), (3,), (2,), (3,)]),
        ("ij,jk", [(0, 3), (3, 2)]),
        ("ij,jk", [(2, 0), (0, 2)]),
        ("Zi,Zi->Z", [(3, 2), (3, 2)]),
    ],
)
def test_einsum_forms(text: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(6)
    operands = [rng.normal(size=s) for s in shapes]
    for optimize in (False, True, "optimal"):
        got = jg.einsum(text, *operands, optimize=optimize)
        np.testing.assert_allclose(value(got), np.einsum(text, *operands), rtol=1e-12, atol=1e-12)


def test_einsum_sublists() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for arguments in (
        [a, [0, 1], b, [1, 2]],
        [a, [0, 1], b, [1, 2], [2, 0]],
        [a, [Ellipsis, 7], b, [7, 3], [3, Ellipsis]],
    ):
        np.testing.assert_allclose(value(jg.einsum(*arguments)), np.einsum(*arguments))


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: jg.matmul(np.ones((2, 3)), np.ones(2)), ShapeError, r"\(2, 3\) and \(2,\)"),
        (lambda: jg.matmul(2.0, np.ones(2)), ShapeError, "scalars"),
        (lambda: jg.matmul(np.ones((2, 3, 3)), np.ones((4, 3, 3))), ShapeError, "broadcast"),
        (lambda: jg.matmul(np.ones((2, 2), np.float16), np.ones(2)), DtypeError, "float16"),
        (lambda: jg.dot(np.ones((2, 3)), np.ones((2, 3))), ShapeError, "dot"),
        (lambda: jg.inner(np.ones(2), np.ones(3)), ShapeError, "inner"),
        (lambda: jg.vdot(np.ones(2), np.ones(3)), ShapeError, "vdot"),
        (lambda: jg.vecdot(np.ones(2), np.ones(3)), ShapeError, "vecdot"),
        (lambda: jg.vecdot(1.0, np.ones(3)), ShapeError, "scalar"),
        (lambda: jg.tensordot(np.ones(3), np.ones(4), 1), ShapeError, "3 elements"),
        (lambda: jg.tensordot(np.ones(3), np.ones(3), 2), ShapeError, "2 axes"),
        (lambda: jg.tensordot(np.ones((3, 3)), np.ones(3), ((0, 1), (0,))), ArgumentError, "2 axes of a"),
        (lambda: jg.tensordot(np.ones((3, 3)), np.ones((3, 3)), ((0, 0), (0, 1))), ArgumentError, "twice"),
        (lambda: jg.cross(np.ones(2), np.ones(2)), ShapeError, "3"),
        (lambda: jg.einsum("ij,jk", np.ones((2, 3)), np.ones((4, 2))), ShapeError, "'j'"),
        (lambda: jg.einsum("ij", np.ones(2)), ShapeError, "subscripts"),
        (lambda: jg.einsum("ii", np.ones((2, 3))), ShapeError, "'i'"),
        (lambda: jg.einsum("ij->kk", np.ones((2, 3))), ArgumentError, "twice"),
        (lambda: jg.einsum("ij->k", np.ones((2, 3))), ArgumentError, "no operand"),
        (lambda: jg.einsum("i-j", np.ones(2)), ArgumentError, "->"),
        (lambda: jg.einsum("i;j", np.ones(2)), ArgumentError, ";"),
        (lambda: jg.einsum("i,j", np.ones(3)), ArgumentError, "2 operands"),
        (lambda: jg.einsum("...i->i", np.ones((2, 3))), ArgumentError, "no '...'"),
        (jg.einsum, ArgumentError, "subscripts"),
    ],
)
def test_errors_name_the_operation_and_the_shapes(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


# --------------------------------------------------------------------------- processes

_PROGRAM = """
import sys
import numpy as np
import jitgrad as jg
small = jg.tensor(np.ones((3, 3)), requires_grad=True)
(small @ small).sum().backward()
assert "scipy.linalg" not in sys.modules or {compiled}, "a tiny product loaded BLAS"
large = jg.tensor(np.ones((40, 40)), requires_grad=True)
(large @ large @ np.ones(40)).sum().backward()
assert np.all(large.grad.numpy() == 80.0)
print(jg.cache_info().compiled)
"""


def test_kernels_from_the_disk_find_blas_in_a_fresh_process(tmp_path: Any) -> None:
    environment = {**os.environ, "JITGRAD_CACHE_DIR": str(tmp_path)}
    environment.pop("JITGRAD_KERNELS", None)
    counts = []
    for compiled in (True, False):
        made = subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(compiled=compiled)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        counts.append(int(made.stdout))
    assert counts[0] > 0
    assert counts[1] == 0


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": lambda a: a,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize(("first", "second"), [((3, 4), (4, 2)), ((3, 4), (4,)), ((4,), (4, 2)), ((4,), (4,))])
def test_layouts_that_change_from_call_to_call(first: tuple[int, ...], second: tuple[int, ...], dtype: Any) -> None:
    """What was made ready for contiguous operands and cotangents is not used for others of the same shapes."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, s).astype(dtype) for s in (first, second))
    for layout, other, seed in itertools.product(LAYOUTS, LAYOUTS, LAYOUTS):
        x, y = jg.from_numpy(LAYOUTS[layout](a)), jg.from_numpy(LAYOUTS[other](b))
        for _ in range(2):
            np.testing.assert_array_equal(value(x @ y), a @ b)
            if dtype is np.int64:
                continue
            x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
            product = x @ y
            g = rng.integers(-4, 5, product.shape).astype(dtype)
            product.backward(jg.from_numpy(LAYOUTS[seed](g) if g.ndim else g))
            assert x.grad is not None
            assert y.grad is not None
            left, right = np.atleast_2d(a), b if b.ndim == 2 else b[:, None]
            g = g.reshape(left.shape[0], right.shape[1])
            np.testing.assert_array_equal(x.grad.numpy(), (g @ right.T).reshape(a.shape))
            np.testing.assert_array_equal(y.grad.numpy(), (left.T @ g).reshape(b.shape))
