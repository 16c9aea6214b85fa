"""Functional transforms against closed forms, finite differences and SciPy: never against jitgrad itself."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import scipy.optimize
from hypothesis import assume, given
from hypothesis import strategies as st
from programs import Program, programs
from strategies import directional_derivative, examples, kernels, seeds

import jitgrad as jg
from jitgrad.errors import ArgumentError, DtypeError, JitgradError, NotDifferentiableError, ShapeError

Array = np.ndarray[Any, Any]
X = np.array([0.4, -1.3, 2.1])
Y = np.array([1.5, 0.2, -0.7])


@pytest.fixture(autouse=True)
def _plain_kernels():
    """Numbers are the same, and nothing is compiled."""
    with kernels("python"):
        yield


# ------------------------------------------------------------------------------------------ closed forms


class Case(NamedTuple):
    """A scalar function of a vector, with its gradient and Hessian by hand."""

    f: Callable[..., Any]
    gradient: Callable[[Array], Array]
    hessian: Callable[[Array], Array]


M = np.array([[2.0, -1.0, 0.5], [0.3, 1.0, 0.0], [-0.7, 0.2, 3.0]])


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


CASES = {
    "quadratic": Case(lambda x: x @ M @ x, lambda x: (M + M.T) @ x, lambda x: M + M.T),
    "sine": Case(
        lambda x: np.sum(np.sin(x) * x),
        lambda x: np.cos(x) * x + np.sin(x),
        lambda x: np.diag(2 * np.cos(x) - x * np.sin(x)),
    ),
    "product": Case(
        lambda x: x[0] * x[1] ** 2 * np.exp(x[2]),
        lambda x: np.exp(x[2]) * np.array([x[1] ** 2, 2 * x[0] * x[1], x[0] * x[1] ** 2]),
        lambda x: (
            np.exp(x[2])
            * np.array(
                [
                    [0.0, 2 * x[1], x[1] ** 2],
                    [2 * x[1], 2 * x[0], 2 * x[0] * x[1]],
                    [x[1] ** 2, 2 * x[0] * x[1], x[0] * x[1] ** 2],
                ]
            )
        ),
    ),
    "softplus of a map": Case(
        lambda x: np.sum(np.logaddexp(0.0, M @ x)),
        lambda x: M.T @ _logistic(M @ x),
        lambda x: M.T @ np.diag(_logistic(M @ x) * (1 - _logistic(M @ x))) @ M,
    ),
    "detached": Case(  # the second factor is a constant
        lambda x: np.sum(x * (x * x).detach()), lambda x: x * x, lambda x: np.zeros((3, 3))
    ),
    "half detached": Case(
        lambda x: np.sum(x**3 * jg.stop_gradient(np.sin(x))),
        lambda x: 3 * x**2 * np.sin(x),
        lambda x: np.diag(6 * x * np.sin(x)),
    ),
    "constant": Case(lambda x: 3.0, lambda x: np.zeros(3), lambda x: np.zeros((3, 3))),
    "linear": Case(lambda x: Y @ x, lambda x: Y, lambda x: np.zeros((3, 3))),
    "written": Case(
        lambda x: _written(x),  # noqa: PLW0108 (defined below)
        lambda x: np.array([2 * x[0] * x[1] ** 2, 2 * x[0] ** 2 * x[1], 3 * x[2] ** 2]),
        lambda x: np.array(
            [
                [2 * x[1] ** 2, 4 * x[0] * x[1], 0.0],
                [4 * x[0] * x[1], 2 * x[0] ** 2, 0.0],
                [0.0, 0.0, 6 * x[2]],
            ]
        ),
    ),
}


def _written(x: Any) -> Any:
    """x0**2 x1**2 + x2**3, by writing to the argument and through a view of it."""
    third = x[2] ** 3
    head = x[:2]
    head *= x[1]  # x0 x1, x1**2
    x[2] = x[0]
    return x[0] * x[2] + third


ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
SMOOTH = {n: c for n, c in CASES.items() if "detached" not in n}


def close(found: Any, wanted: Any, tolerance: float = 1e-13) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@ALL
class TestClosedForms:
    def test_grad(self, case: Case) -> None:
        close(jg.grad(case.f)(X), case.gradient(X))

    def test_value_and_grad(self, case: Case) -> None:
        value, gradient = jg.value_and_grad(case.f)(X)
        assert type(value) is float
        close(gradient, case.gradient(X))

    def test_vjp(self, case: Case) -> None:
        _, pull = jg.vjp(case.f, X)
        close(pull(1.0)[0], case.gradient(X))
        close(pull(-2.5)[0], -2.5 * case.gradient(X))

    def test_jvp(self, case: Case) -> None:
        close(jg.jvp(case.f, (X,), (Y,))[1], case.gradient(X) @ Y)

    def test_linearize(self, case: Case) -> None:
        _, push = jg.linearize(case.f, X)
        for e in np.eye(3):
            close(push(e), case.gradient(X) @ e)

    @pytest.mark.parametrize("transform", [jg.jacrev, jg.jacfwd, jg.jacobian])
    def test_jacobians_of_scalars(self, case: Case, transform: Any) -> None:
        close(transform(case.f)(X), case.gradient(X))

    @pytest.mark.parametrize("transform", [jg.jacrev, jg.jacfwd, jg.jacobian])
    def test_jacobians_of_gradients(self, case: Case, transform: Any) -> None:
        close(transform(jg.grad(case.f))(X), case.hessian(X))

    @pytest.mark.parametrize(("outer", "inner"), list(itertools.product([jg.jacrev, jg.jacfwd], repeat=2)))
    def test_second_derivatives(self, case: Case, outer: Any, inner: Any) -> None:
        close(outer(inner(case.f))(X), case.hessian(X))

    def test_hessian(self, case: Case) -> None:
        close(jg.hessian(case.f)(X), case.hessian(X))

    def test_hvp(self, case: Case) -> None:
        close(jg.hvp(case.f)(X, Y), case.hessian(X) @ Y)

    def test_vjp_inside_jvp(self, case: Case) -> None:
        close(jg.jvp(lambda x: jg.vjp(case.f, x)[1](1.0)[0], (X,), (Y,))[1], case.hessian(X) @ Y)

    def test_jvp_inside_vjp(self, case: Case) -> None:
        close(jg.vjp(lambda x: jg.jvp(case.f, (x,), (Y,))[1], X)[1](1.0)[0], case.hessian(X) @ Y)

    def test_jvp_of_jvp(self, case: Case) -> None:
        inner = lambda x: jg.jvp(case.f, (x,), (Y,))[1]  # noqa: E731
        close(jg.jvp(inner, (X,), (X,))[1], X @ case.hessian(X) @ Y)

    def test_linear_map_inside_grad(self, case: Case) -> None:
        close(jg.grad(lambda x: jg.linearize(case.f, x)[1](Y))(X), case.hessian(X) @ Y)

    def test_tracked_arguments(self, case: Case) -> None:
        x = jg.tensor(X, requires_grad=True)
        _value, gradient = jg.value_and_grad(case.f)(x)
        close(gradient.detach().numpy(), case.gradient(X))
        if gradient.requires_grad:
            (gradient * Y).sum().backward()
            close(x.grad.numpy(), case.hessian(X) @ Y)
        else:
            close(case.hessian(X), 0.0)

    def test_captured_tensors(self, case: Case) -> None:
        """d/dw of w . grad f(w y) at y = 1: gradients of gradients reach what the function captures."""
        w = jg.tensor(X, requires_grad=True)
        gradient = jg.asarray(jg.grad(lambda y: case.f(w * y))(np.ones(3)))
        close(gradient.detach().numpy(), X * case.gradient(X))
        if gradient.requires_grad:
            gradient.sum().backward()
            close(w.grad.numpy(), case.gradient(X) + case.hessian(X) @ X)

    def test_no_grad_outside_changes_nothing(self, case: Case) -> None:
        with jg.no_grad():
            close(jg.grad(case.f)(X), case.gradient(X))
            close(jg.jvp(case.f, (X,), (Y,))[1], case.gradient(X) @ Y)
            close(jg.hessian(case.f)(X), case.hessian(X))
            close(jg.jacrev(jg.jacrev(case.f))(X), case.hessian(X))
            close(jg.jacfwd(jg.jacfwd(case.f))(X), case.hessian(X))

    @pytest.mark.parametrize(
        "transform",
        [
            lambda f: jg.jit(jg.grad(f)),
            lambda f: jg.grad(jg.jit(f)),
            lambda f: jg.jit(jg.jacfwd(f)),
            lambda f: jg.jacfwd(jg.jit(f)),
            lambda f: jg.grad(jg.checkpoint(f)),
            lambda f: jg.checkpoint(jg.grad(f)),
            lambda f: lambda x: jg.vmap(jg.grad(f))(np.stack([Y, x]))[1],
        ],
    )
    def test_with_the_other_transforms(self, case: Case, transform: Any) -> None:
        close(transform(case.f)(X), case.gradient(X))

    @pytest.mark.parametrize(
        "transform",
        [
            lambda f: jg.jit(jg.hessian(f)),
            lambda f: jg.hessian(jg.jit(f)),
            lambda f: jg.jacfwd(jg.jit(jg.grad(f))),
            lambda f: jg.jacrev(jg.jit(jg.grad(f))),
            lambda f: jg.jit(jg.jacrev(jg.jit(jg.jacrev(f)))),
            lambda f: jg.hessian(jg.checkpoint(f)),
            lambda f: jg.jacrev(jg.jacrev(jg.checkpoint(f))),
            lambda f: jg.jacrev(jg.checkpoint(jg.jacrev(f))),
            lambda f: jg.jacrev(jg.checkpoint(jg.jacrev(jg.checkpoint(f)))),
            lambda f: lambda x: jg.vmap(jg.hessian(f))(np.stack([Y, x]))[1],
            lambda f: lambda x: jg.vmap(lambda v: jg.hvp(f)(x, v))(np.eye(3)),
            lambda f: lambda x: jg.jit(jg.vmap(lambda v: jg.jvp(jg.grad(f), (x,), (v,))[1]))(np.eye(3)),
            lambda f: jg.hessian(lambda z: jg.vmap(f)(np.eye(2)[:, :1] * z)[0]),
        ],
    )
    def test_second_order_with_the_other_transforms(self, case: Case, transform: Any) -> None:
        close(transform(case.f)(X), case.hessian(X))


# ------------------------------------------------------------------------------------------ finite differences


@examples(25)
@given(seeds, st.sampled_from(sorted(SMOOTH)), st.sampled_from(["grad", "jvp", "vjp", "hvp"]))
def test_against_finite_differences(seed: int, name: str, what: str) -> None:
    rng = np.random.default_rng(seed)
    case = SMOOTH[name]
    x, v, w = rng.uniform(-1.5, 1.5, (3, 3))

    def f(x: Array) -> float:
        return float(jg.asarray(case.f(jg.tensor(x))).item())

    if what == "hvp":
        found = float(w @ jg.hvp(case.f)(x, v))
        wanted, error = directional_derivative(lambda t: float(w @ case.gradient(x + t * v)))
    else:
        wanted, error = directional_derivative(lambda t: f(x + t * v))
        if what == "grad":
            found = float(jg.grad(case.f)(x) @ v)
        elif what == "vjp":
            found = float(jg.vjp(case.f, x)[1](1.0)[0] @ v)
        else:
            found = jg.jvp(case.f, (x,), (v,))[1]
    assert abs(found - wanted) <= 1e-7 * max(1.0, abs(wanted)) + error


_STEPS = {
    "grad": jg.grad,
    "jvp": lambda f: lambda x: jg.jvp(f, (x,), (1.0,))[1],
    "vjp": lambda f: lambda x: jg.vjp(f, x)[1](1.0)[0],
    "linearize": lambda f: lambda x: jg.linearize(f, x)[1](1.0),
    "jacrev": jg.jacrev,
    "jacfwd": jg.jacfwd,
    "value_and_grad": lambda f: lambda x: jg.value_and_grad(f)(x)[1],
    "jit": jg.jit,
    "checkpoint": jg.checkpoint,
    "vmap": lambda f: lambda x: jg.vmap(lambda t: f(t * x))(np.ones(1))[0],
}
_DERIVATIVES = [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin]
_KEEPS_ORDER = {"jit", "checkpoint", "vmap"}


def _nested(names: tuple[str, ...]) -> None:
    f: Callable[..., Any] = np.sin
    for name in names:
        f = _STEPS[name](f)
    order = sum(name not in _KEEPS_ORDER for name in names)
    assert float(f(0.7)) == pytest.approx(_DERIVATIVES[order](0.7), rel=1e-13)


@pytest.mark.parametrize("names", list(itertools.product(_STEPS, repeat=2)), ids="-".join)
def test_nested_twice(names: tuple[str, ...]) -> None:
    _nested(names)


@examples(60)
@given(st.lists(st.sampled_from(sorted(_STEPS)), min_size=3, max_size=4))
def test_nested_deeper(names: list[str]) -> None:
    _nested(tuple(names))


class TestNestedVariables:
    """Derivatives by one variable must not be taken for derivatives by another."""

    def test_reverse(self) -> None:
        assert jg.grad(lambda x: x * jg.grad(lambda y: x + y)(2.0))(3.0) == 1.0

    def test_forward(self) -> None:
        d = _STEPS["jvp"]
        assert d(lambda x: x * d(lambda y: x + y)(2.0))(3.0) == 1.0
        assert d(lambda x: x * d(lambda y: x * y)(2.0))(3.0) == 6.0

    @pytest.mark.parametrize(("outer", "inner"), list(itertools.product(["grad", "jvp", "jacrev", "jacfwd"], repeat=2)))
    def test_mixed(self, outer: str, inner: str) -> None:
        found = _STEPS[outer](lambda x: x * _STEPS[inner](lambda y: x * y**2)(2.0))(3.0)  # x * 4x
        assert found == pytest.approx(24.0, rel=1e-14)

    def test_the_inner_point_depends_on_the_outer_variable(self) -> None:
        found = jg.grad(lambda x: jg.grad(lambda y: y**3 * x)(x))(2.0)  # 3 x**3
        assert found == pytest.approx(36.0, rel=1e-14)


# ------------------------------------------------------------------------------------------ arguments and results


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Model:
    w: Any
    b: Any


class TestArguments:
    def test_argnums(self) -> None:
        f = lambda x, y, z: (x * y**2 * z**3).sum()  # noqa: E731
        args = (X, Y, X + Y)
        by_hand = (Y**2 * (X + Y) ** 3, 2 * X * Y * (X + Y) ** 3, 3 * X * Y**2 * (X + Y) ** 2)
        for k in range(-3, 3):
            close(jg.grad(f, k)(*args), by_hand[k])
        for numbers in [(0,), (0, 1), (2, 0), (-1, 0, 1), [1, 2]]:
            found = jg.grad(f, numbers)(*args)  # type: ignore[arg-type]
            assert isinstance(found, tuple)
            for k, g in zip(numbers, found, strict=True):
                close(g, by_hand[k])

    @pytest.mark.parametrize("transform", [jg.grad, jg.value_and_grad, jg.jacrev, jg.jacfwd, jg.jacobian, jg.hessian])
    @pytest.mark.parametrize("argnums", [2, -3, (0, 5)])
    def test_argnums_out_of_range(self, transform: Any, argnums: Any) -> None:
        with pytest.raises(ArgumentError, match=r"argnums=.* for a call with 2 positional arguments"):
            transform(lambda x, y: (x * y).sum(), argnums)(X, Y)

    @pytest.mark.parametrize("argnums", [(0, 0), (0, -2)])
    def test_argnums_twice(self, argnums: Any) -> None:
        with pytest.raises(ArgumentError, match="names an argument twice"):
            jg.grad(lambda x, y: (x * y).sum(), argnums)(X, Y)

    @pytest.mark.parametrize("argnums", ["x", 1.0, None, (0, "y")])
    def test_argnums_of_another_kind(self, argnums: Any) -> None:
        with pytest.raises(TypeError, match="argnums must be an int or a tuple of ints"):
            jg.grad(lambda x, y: (x * y).sum(), argnums)(X, Y)

    def test_keyword_arguments_are_constants(self) -> None:
        close(jg.grad(lambda x, *, scale: (x * scale).sum())(X, scale=Y), Y)
        close(jg.jacfwd(lambda x, *, scale: x * scale)(X, scale=Y), np.diag(Y))
        with pytest.raises(ArgumentError, match="0 positional arguments"):
            jg.grad(lambda x: x.sum())(x=X)

    def test_containers(self) -> None:
        params = {"p": Pair(X, None), "list": [Y, (2.0,)], "model": Model(3.0, X.astype(np.float32))}

        def f(p: Any) -> Any:
            assert isinstance(p["p"], Pair)
            assert isinstance(p["model"], Model)
            assert p["p"].b is None
            squares = (p["p"].a * p["list"][0]).sum() * p["list"][1][0]
            return squares + p["model"].w * (p["model"].b ** 2).sum()

        found = jg.grad(f)(params)
        close(found["p"].a, 2 * Y)
        assert found["p"].b is None
        assert isinstance(found["list"], list)
        close(found["list"][0], 2 * X)
        assert isinstance(found["list"][1], tuple)
        assert found["list"][1][0] == pytest.approx(X @ Y, rel=1e-14)
        assert isinstance(found["model"], Model)
        assert found["model"].w == pytest.approx(X @ X, rel=1e-6)
        close(found["model"].b, 6 * X, 1e-6)
        assert found["model"].b.dtype == np.float32

    def test_containers_forward(self) -> None:
        f = lambda p: {"y": (p["w"] * p["m"].w, p["m"].b)}  # noqa: E731
        value, tangent = jg.jvp(f, ({"w": X, "m": Model(Y, 2.0)},), ({"w": Y, "m": Model(X, 5.0)},))
        close(value["y"][0], X * Y)
        close(tangent["y"][0], Y * Y + X * X)
        assert tangent["y"][1] == 5.0

    def test_jacobians_of_containers(self) -> None:
        f = lambda p, z: [p["w"] * z[0], p["w"].sum()]  # noqa: E731
        for transform in (jg.jacrev, jg.jacfwd, jg.jacobian):
            (first, second) = transform(f, (0, 1))({"w": X}, (Y,))
            close(first[0]["w"], np.diag(Y))
            close(first[1][0], np.diag(X))
            close(second[0]["w"], np.ones(3))
            close(second[1][0], np.zeros(3))

    def test_hessian_of_several_arguments(self) -> None:
        blocks = jg.hessian(lambda x, y: (x**2 * y).sum(), (0, 1))(X, Y)
        close(blocks[0][0], np.diag(2 * Y))
        close(blocks[0][1], np.diag(2 * X))
        close(blocks[1][0], np.diag(2 * X))
        close(blocks[1][1], np.zeros((3, 3)))

    def test_hvp_of_containers_and_more_arguments(self) -> None:
        found = jg.hvp(lambda p, a: (a * p["x"] ** 3).sum())({"x": X}, {"x": Y}, 2.0)
        close(found["x"], 12 * X * Y)

    def test_unused_arguments_get_zeros(self) -> None:
        f = lambda x, y: x.sum()  # noqa: E731
        gx, gy = jg.grad(f, (0, 1))(X, np.ones((2, 1), np.float32))
        close(gx, np.ones(3))
        assert (gy.shape, gy.dtype) == ((2, 1), np.float32)
        assert not gy.any()
        assert jg.grad(lambda x, s: x.sum(), 1)(X, 4.0) == 0.0
        close(jg.vjp(f, X, Y)[1](1.0)[1], np.zeros(3))
        close(jg.jvp(lambda x: Y, (X,), (Y,))[1], np.zeros(3))
        for transform in (jg.jacrev, jg.jacfwd, jg.jacobian):
            close(transform(lambda x: Y)(X), np.zeros((3, 3)))

    def test_empty_arrays(self) -> None:
        empty = np.zeros((0, 2))
        value, gradient = jg.value_and_grad(lambda x: (x * x).sum())(empty)
        assert (value, gradient.shape) == (0.0, (0, 2))
        assert jg.jacrev(lambda x: x * 2.0)(empty).shape == (0, 2, 0, 2)
        assert jg.jacfwd(lambda x: x * 2.0)(empty).shape == (0, 2, 0, 2)
        assert jg.jacfwd(lambda x: X * x.sum())(empty).shape == (3, 0, 2)
        assert jg.jacrev(lambda x: X * x.sum())(empty).shape == (3, 0, 2)

    def test_shapes_of_jacobians(self) -> None:
        a = np.arange(6.0).reshape(2, 3)
        f = lambda a: (a[:, :, None] * np.arange(1.0, 5.0)).sum(0)  # noqa: E731
        wanted = np.einsum("jk,il->klij", np.eye(3), np.ones((2, 4)) * np.arange(1.0, 5.0))
        wanted = np.einsum("kj,l,i->klij", np.eye(3), np.arange(1.0, 5.0), np.ones(2))
        for transform in (jg.jacrev, jg.jacfwd, jg.jacobian):
            close(transform(f)(a), wanted)

    def test_auxiliary_results(self) -> None:
        def f(x: Any) -> Any:
            return (x * x).sum(), {"twice": 2 * x, "name": "f", "count": 3, "none": None}

        (value, aux), gradient = jg.value_and_grad(f, has_aux=True)(X)
        assert value == pytest.approx(X @ X, rel=1e-15)
        assert type(aux["twice"]) is np.ndarray
        close(aux["twice"], 2 * X)
        assert (aux["name"], aux["count"], aux["none"]) == ("f", 3, None)
        close(gradient, 2 * X)
        gradient, aux = jg.grad(f, has_aux=True)(X)
        close(gradient, 2 * X)
        close(aux["twice"], 2 * X)
        _, pull, aux = jg.vjp(f, X, has_aux=True)
        close(aux["twice"], 2 * X)
        close(pull(1.0)[0], 2 * X)
        with pytest.raises(ArgumentError, match="has_aux=True"):
            jg.grad(lambda x: x.sum(), has_aux=True)(X)

    def test_auxiliary_results_are_differentiated_outside(self) -> None:
        inner = jg.value_and_grad(lambda x: ((x**2).sum(), x**3), has_aux=True)

        def outer(x: Any) -> Any:
            (_, cubes), gradient = inner(x)
            return (cubes + gradient).sum()

        close(jg.grad(outer)(X), 3 * X**2 + 2)
        close(jg.jacfwd(outer)(X), 3 * X**2 + 2)


class TestDtypes:
    """What comes back: conventions of NumPy and SciPy."""

    def test_numbers(self) -> None:
        for given_, kind in [
            (3, float),
            (3.0, float),
            (np.float64(3), float),
            (np.float32(3), np.float32),
            (np.int8(3), float),
        ]:
            value, gradient = jg.value_and_grad(lambda x: x * x)(given_)
            assert type(gradient) is kind
            assert gradient == 6.0
            assert value == 9.0
        assert type(jg.grad(lambda x: x**2)(3)) is float

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_floats(self, dtype: Any) -> None:
        x = X.astype(dtype)
        value, gradient = jg.value_and_grad(lambda x: (x * x).sum())(x)
        assert type(value) is (float if dtype is np.float64 else np.float32)
        for array in (gradient, jg.jacrev(lambda x: x * x)(x), jg.hessian(lambda x: (x**3).sum())(x)):
            assert type(array) is np.ndarray
            assert array.dtype == dtype
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert array.flags.owndata

    @pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
    def test_integers_become_float64(self, dtype: Any) -> None:
        value, gradient = jg.value_and_grad(lambda x: (x * x).sum())(np.arange(3, dtype=dtype))
        assert value == 5.0
        assert gradient.dtype == np.float64
        np.testing.assert_array_equal(gradient, [0.0, 2.0, 4.0])
        assert jg.jvp(lambda x: x * x, (3,), (1,)) == (9.0, 6.0)

    def test_lists_are_containers(self) -> None:
        assert jg.grad(lambda x: x[0] * x[1])([2.0, 3.0]) == [3.0, 2.0]

    @pytest.mark.parametrize("make", [lambda a: a[::-1], lambda a: a[:, ::2], np.asfortranarray, lambda a: a.T])
    def test_layouts(self, make: Any) -> None:
        a = make(np.arange(12.0).reshape(3, 4))
        gradient = jg.grad(lambda x: (x * x).sum())(a)
        np.testing.assert_array_equal(gradient, 2 * a)
        assert gradient.flags.c_contiguous
        assert gradient.flags.writeable

    def test_read_only_arguments(self) -> None:
        a = X.copy()
        a.flags.writeable = False
        close(jg.grad(_written)(a), CASES["written"].gradient(X))

    def test_results_are_nobody_elses_memory(self) -> None:
        value, pull = jg.vjp(lambda x: x, X)
        assert not np.shares_memory(value, X)
        g = Y.copy()
        assert not np.shares_memory(pull(g)[0], g)
        value, tangent = jg.jvp(lambda x: x, (X,), (g,))
        assert not np.shares_memory(value, X)
        assert not np.shares_memory(tangent, g)
        (gx, gy) = jg.grad(lambda x, y: (x + y).sum(), (0, 1))(X, Y)
        assert not np.shares_memory(gx, gy)

    def test_tensors_in_tensors_out(self) -> None:
        x = jg.tensor(X)
        value, gradient = jg.value_and_grad(lambda x: (x * x).sum())(x)
        assert isinstance(value, jg.Tensor)
        assert isinstance(gradient, jg.Tensor)
        assert not gradient.requires_grad
        assert isinstance(jg.jacfwd(lambda x: x * x)(x), jg.Tensor)
        assert isinstance(jg.jvp(lambda x: x * x, (X,), (jg.tensor(Y),))[1], jg.Tensor)
        assert isinstance(jg.grad(lambda x, y: (x * y).sum())(X, jg.tensor(Y)), jg.Tensor)

    def test_captured_tracked_tensors_give_tensors(self) -> None:
        w = jg.tensor(Y, requires_grad=True)
        value, gradient = jg.value_and_grad(lambda x: (w * x * x).sum())(X)
        assert value.requires_grad
        assert gradient.requires_grad
        (value + gradient.sum()).backward()
        close(w.grad.numpy(), X * X + 2 * X)

    def test_captured_through_every_transform(self) -> None:
        def f(x: Any) -> Any:
            return (w**2 * x**3).sum()

        for transform, by_hand in [
            (lambda f: jg.jvp(f, (X,), (Y,))[1], 2 * Y * 3 * X**2 * Y),
            (lambda f: jg.vjp(f, X)[1](1.0)[0].sum(), 2 * Y * 3 * X**2),
            (lambda f: jg.linearize(f, X)[1](Y), 2 * Y * 3 * X**2 * Y),
            (lambda f: jg.jacrev(f)(X).sum(), 2 * Y * 3 * X**2),
            (lambda f: jg.jacfwd(f)(X).sum(), 2 * Y * 3 * X**2),
            (lambda f: jg.hessian(f)(X).sum(), 2 * Y * 6 * X),
            (lambda f: jg.hvp(f)(X, Y).sum(), 2 * Y * 6 * X * Y),
            (lambda f: jg.grad(jg.checkpoint(f))(X).sum(), 2 * Y * 3 * X**2),
            (lambda f: jg.vmap(jg.grad(f))(X[None])[0].sum(), 2 * Y * 3 * X**2),
            (lambda f: jg.vmap(f)(X[None])[0], 2 * Y * X**3),
        ]:
            w = jg.tensor(Y, requires_grad=True)
            transform(f).backward()
            close(w.grad.numpy(), by_hand)


# ------------------------------------------------------------------------------------------ boundaries


TRANSFORMS = {
    "grad": lambda f: jg.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: jg.jvp(f, (X,), (np.ones(3),))[1],
    "jacrev": lambda f: jg.jacrev(f)(X).sum(0),
    "jacfwd": lambda f: jg.jacfwd(f)(X).sum(1),
    "linearize": lambda f: jg.linearize(f, X)[1](np.ones(3)),
    "vmap": lambda f: jg.vmap(jg.grad(f))(X),
    "checkpoint": lambda f: jg.grad(lambda x: jg.checkpoint(f)(x).sum())(X),
    "jit": lambda f: jg.jit(jg.grad(lambda x: f(x).sum()))(X),
}
SECOND = {
    "hessian": lambda f: np.diag(jg.hessian(lambda x: f(x).sum())(X)),
    "reverse twice": lambda f: np.diag(jg.jacrev(jg.jacrev(lambda x: f(x).sum()))(X)),
    "forward twice": lambda f: np.diag(jg.jacfwd(jg.jacfwd(lambda x: f(x).sum()))(X)),
    "forward in reverse": lambda f: np.diag(jg.jacrev(jg.jacfwd(lambda x: f(x).sum()))(X)),
    "vmap": lambda f: jg.vmap(jg.grad(jg.grad(f)))(X),
    "vmap inside": lambda f: jg.grad(lambda x: jg.vmap(jg.grad(f))(x).sum())(X),
    "checkpoint": lambda f: np.diag(jg.jacrev(jg.jacrev(lambda x: jg.checkpoint(f)(x).sum()))(X)),
    "jit": lambda f: np.diag(jg.jit(jg.hessian(lambda x: f(x).sum()))(X)),
}


def _no_grad_inside(x: Any) -> Any:
    with jg.no_grad():
        square = x * x
    return square * x


def _enable_inside(x: Any) -> Any:
    with jg.no_grad(), jg.enable_grad():
        square = x * x
    return square * x


BOUNDARIES = {
    "detach": (lambda x: (x * x).detach() * x, X**2, 0 * X),
    "detach deep": (lambda x: (x.detach() * x).detach() * x**2, 2 * X**3, 2 * X**2),
    "stop_gradient": (lambda x: jg.stop_gradient(x * x) * x, X**2, 0 * X),
    "no_grad": (_no_grad_inside, X**2, 0 * X),
    "enable_grad": (_enable_inside, 3 * X**2, 6 * X),
    "all detached": (lambda x: (x**3).detach(), 0 * X, 0 * X),
    "detach of a part": (lambda x: x**2 + (x**2).detach() * x.detach() * x**2, 2 * X + 2 * X**4, 2 + 2 * X**3),
}


@pytest.mark.parametrize("name", BOUNDARIES)
class TestBoundaries:
    """Nothing passes detach, stop_gradient and no_grad inside: in reverse and forward, at every order."""

    @pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
    def test_first_order(self, name: str, transform: Any) -> None:
        f, first, _ = BOUNDARIES[name]
        close(transform(f), first)

    @pytest.mark.parametrize("transform", SECOND.values(), ids=SECOND.keys())
    def test_second_order(self, name: str, transform: Any) -> None:
        f, _, second = BOUNDARIES[name]
        close(transform(f), second)


ZERO = np.array([0.0, 1.0, 4.0])


class TestStructuralZeros:
    """What is not chosen contributes nothing, though its own derivative is infinite there."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {
        "where": (lambda x: np.where(x > 0.5, np.sqrt(x), 0.0), [0.0, 0.5, 0.25]),
        "where the other way": (lambda x: np.where(x <= 0.5, x, np.log(x)), [1.0, 1.0, 0.25]),
        "slice": (lambda x: jg.concat([np.sqrt(x)[1:], x[:1]]), [1.0, 0.5, 0.25]),
        "gather": (lambda x: np.sqrt(x)[np.array([1, 2, 1])], [0.0, 1.0, 0.25]),
        "mask": (lambda x: np.sqrt(x)[np.array([False, True, True])], [0.0, 0.5, 0.25]),
    }

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_reverse(self, name: str) -> None:
        f, wanted = self.FUNCTIONS[name]
        close(jg.grad(lambda x: f(x).sum())(ZERO), wanted)
        close(jg.grad(lambda x: jg.checkpoint(f)(x).sum())(ZERO), wanted)
        close(jg.jit(jg.grad(lambda x: f(x).sum()))(ZERO), wanted)
        close(jg.grad(lambda x: jg.grad(lambda y: (f(y) * x.sum()).sum())(ZERO).sum())(X), np.full(3, sum(wanted)))

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_forward(self, name: str) -> None:
        f, wanted = self.FUNCTIONS[name]
        assert jg.jvp(lambda x: f(x).sum(), (ZERO,), (np.ones(3),))[1] == pytest.approx(sum(wanted), rel=1e-14)

    def test_overwritten(self) -> None:
        def f(x: Any) -> Any:
            y = np.sqrt(x)
            y[0] = 3.0
            return y.sum()

        close(jg.grad(f)(ZERO), [0.0, 0.5, 0.25])
        assert jg.jvp(f, (ZERO,), (np.ones(3),))[1] == pytest.approx(0.75)
        close(jg.vmap(jg.grad(f))(ZERO[None])[0], [0.0, 0.5, 0.25])
        close(jg.grad(jg.checkpoint(f))(ZERO), [0.0, 0.5, 0.25])

    def test_batched(self) -> None:
        f = self.FUNCTIONS["where"][0]
        close(jg.vmap(jg.grad(f))(ZERO), [0.0, 0.5, 0.25])
        close(jg.grad(lambda x: jg.vmap(f)(x).sum())(ZERO), [0.0, 0.5, 0.25])

    def test_arguments_that_do_not_move(self) -> None:
        """A column of the Jacobian by one argument has nothing to do with the derivative by another."""
        f = lambda x, y: np.sqrt(x).sum() + (y * y).sum()  # noqa: E731
        for transform in (jg.jacrev, jg.jacfwd, jg.jacobian):
            close(transform(f, (0, 1))(ZERO, X)[1], 2 * X)

    def test_a_real_infinity_stays(self) -> None:
        assert jg.grad(np.sqrt)(0.0) == np.inf
        assert jg.jvp(np.sqrt, (0.0,), (1.0,))[1] == np.inf


class TestWrites:
    """Arguments are private: a function may write to them, and its caller sees nothing."""

    @staticmethod
    def _fill(x: Any, y: Any) -> Any:
        x[0] = y[1] * x[2]
        x *= 2.0
        y[:] = x
        return (x * y).sum()  # 4 (y1 x2)**2 + 4 x1**2 + 4 x2**2

    @pytest.mark.parametrize("kind", ["array", "tensor", "tracked"])
    def test_arguments_are_untouched(self, kind: str) -> None:
        make: Any = {
            "array": np.array,
            "tensor": jg.tensor,
            "tracked": lambda a: jg.tensor(a, requires_grad=True) * 1.0,
        }[kind]
        x, y = make(X), make(Y)
        numbers = lambda t: np.asarray(t.detach() if isinstance(t, jg.Tensor) else t)  # noqa: E731
        by_x = [0.0, 8 * X[1], 8 * Y[1] ** 2 * X[2] + 8 * X[2]]
        close(numbers(jg.grad(self._fill)(x, y)), by_x)
        close(numbers(jg.grad(self._fill, 1)(x, y)), [0.0, 8 * Y[1] * X[2] ** 2, 0.0])
        close(numbers(jg.jvp(self._fill, (x, y), (np.ones(3), np.zeros(3)))[1]), sum(by_x))
        close(numbers(jg.jacfwd(self._fill)(x, y)), by_x)
        close(numbers(jg.vjp(self._fill, x, y)[1](1.0)[0]), by_x)
        close(numbers(jg.checkpoint(self._fill)(x, y)), self._fill(X.copy(), Y.copy()))
        close(numbers(jg.vmap(self._fill)(make(X[None]), make(Y[None]))[0]), self._fill(X.copy(), Y.copy()))
        np.testing.assert_array_equal(numbers(x), X)
        np.testing.assert_array_equal(numbers(y), Y)

    def test_leaves_keep_their_values(self) -> None:
        w = jg.tensor(X, requires_grad=True)
        gradient = jg.grad(_written)(w)
        close(gradient.detach().numpy(), CASES["written"].gradient(X))
        np.testing.assert_array_equal(w.detach().numpy(), X)
        assert w.is_leaf

    def test_tangents_and_cotangents_are_untouched(self) -> None:
        v = Y.copy()
        jg.jvp(lambda x: x * 1.0, (X,), (v,))[1][0] = 9.0
        _value, pull = jg.vjp(lambda x: x * 1.0, X)
        pull(v)[0][0] = 9.0
        np.testing.assert_array_equal(v, Y)


# ------------------------------------------------------------------------------------------ errors


class TestErrors:
    @pytest.mark.parametrize("transform", [jg.grad, jg.value_and_grad, jg.hessian])
    def test_results_that_are_no_scalar(self, transform: Any) -> None:
        with pytest.raises(ArgumentError, match=r"must give a scalar, not a value of shape \(3,\)"):
            transform(lambda x: x)(X)

    @pytest.mark.parametrize("result", [3, True])
    def test_results_that_are_no_float(self, result: Any) -> None:
        with pytest.raises(DtypeError, match="must give a float"):
            jg.grad(lambda x: result)(X)

    @pytest.mark.parametrize("transform", [jg.grad, jg.jacrev, jg.jacfwd, lambda f: lambda x: jg.vjp(f, x)])
    @pytest.mark.parametrize("argument", [np.array([True]), "text", np.array(["a"]), 1j, np.array([1j]), object()])
    def test_arguments_that_are_no_floats(self, transform: Any, argument: Any) -> None:
        with pytest.raises(TypeError):
            transform(lambda x: x)(argument)

    def test_tangents(self) -> None:
        f = lambda x: x * 2.0  # noqa: E731
        with pytest.raises(ShapeError, match=r"tangent of shape \(2,\) for an argument of shape \(3,\)"):
            jg.jvp(f, (X,), (X[:2],))
        with pytest.raises(DtypeError, match="bool tangent"):
            jg.jvp(f, (X,), (X > 0,))
        with pytest.raises(ArgumentError, match="a tuple of 1 tangents"):
            jg.jvp(f, (X,), (X, X))
        with pytest.raises(ArgumentError, match="tangent 0 is built like"):
            jg.jvp(f, (X,), ([X],))
        with pytest.raises(ArgumentError, match="primals must be a tuple"):
            jg.jvp(f, X, (X,))
        with pytest.raises(ArgumentError, match="tangents must be a tuple"):
            jg.jvp(f, (X,), X)
        with pytest.raises(ShapeError):
            jg.linearize(f, X)[1](X[:1])
        with pytest.raises(ValueError, match=r"\(2,\)"):
            jg.hvp(lambda x: (x * x).sum())(X, X[:2])

    def test_cotangents(self) -> None:
        _, pull = jg.vjp(lambda x: {"a": x * 2.0}, X)
        with pytest.raises(ShapeError, match=r"\(2,\)"):
            pull({"a": X[:2]})
        with pytest.raises(ArgumentError, match="a cotangent like"):
            pull({"b": X})
        close(pull({"a": Y})[0], 2 * Y)  # a failed call leaves everything as it was

    def test_no_forward_rule(self) -> None:
        class Square(jg.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return 2.0 * g * ctx.saved_tensors[0]

        close(jg.grad(lambda x: Square.apply(x).sum())(X), 2 * X)
        close(jg.vmap(Square.apply)(X), X * X)
        with pytest.raises(NotDifferentiableError, match="Square has no forward-mode rule"):
            jg.jvp(Square.apply, (X,), (X,))

    @pytest.mark.parametrize(
        "transform",
        [
            lambda f: jg.grad(f)(X),
            lambda f: jg.jvp(f, (X,), (X,)),
            lambda f: jg.vjp(f, X),
            lambda f: jg.linearize(f, X),
            lambda f: jg.jacrev(f)(X),
            lambda f: jg.jacfwd(f)(X),
            lambda f: jg.hessian(f)(X),
            lambda f: jg.vmap(f)(X),
            lambda f: jg.checkpoint(f)(jg.tensor(X, requires_grad=True)),
            lambda f: jg.grad(jg.grad(f))(X),
        ],
    )
    def test_state_after_an_error(self, transform: Any) -> None:
        from jitgrad.core.modes import forward, grad_mode, transforming

        def fails(x: Any) -> Any:
            with jg.no_grad():
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            transform(fails)
        assert grad_mode.get() is True
        assert not forward.get()
        assert not transforming.get()
        assert jg.is_grad_enabled()

    @pytest.mark.parametrize("leave", [float, lambda x: np.full(2, x), lambda x: __import__("math").sin(x)])
    def test_numbers_cannot_leave_silently(self, leave: Any) -> None:
        with pytest.raises((JitgradError, TypeError)):
            jg.grad(lambda x: x * leave(x))(2.0)


# ------------------------------------------------------------------------------------------ SciPy


class TestSciPy:
    @staticmethod
    def rosen(x: Any) -> Any:
        return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    def test_oracles(self) -> None:
        x = np.linspace(-1.0, 1.5, 5)
        close(jg.grad(self.rosen)(x), scipy.optimize.rosen_der(x), 1e-12)
        close(jg.hessian(self.rosen)(x), scipy.optimize.rosen_hess(x), 1e-12)
        close(jg.hvp(self.rosen)(x, x + 1), scipy.optimize.rosen_hess_prod(x, x + 1), 1e-12)

    @pytest.mark.parametrize("method", ["BFGS", "L-BFGS-B", "CG"])
    def test_minimize(self, method: str) -> None:
        found = scipy.optimize.minimize(jg.value_and_grad(self.rosen), np.zeros(3), jac=True, method=method)
        np.testing.assert_allclose(found.x, np.ones(3), atol=1e-4)

    @pytest.mark.parametrize("method", ["Newton-CG", "trust-ncg", "trust-krylov"])
    def test_hessp(self, method: str) -> None:
        found = scipy.optimize.minimize(
            self.rosen, np.zeros(3), jac=jg.grad(self.rosen), hessp=jg.hvp(self.rosen), method=method
        )
        np.testing.assert_allclose(found.x, np.ones(3), atol=1e-5)

    def test_arguments(self) -> None:
        f = lambda x, a, b: np.sum((x - a) ** 2) + b * np.sum(x**4)  # noqa: E731
        found = scipy.optimize.minimize(
            jg.value_and_grad(f), np.zeros(3), args=(Y, 0.0), jac=True, hessp=jg.hvp(f), method="Newton-CG"
        )
        np.testing.assert_allclose(found.x, Y, atol=1e-6)

    def test_hess(self) -> None:
        found = scipy.optimize.minimize(
            self.rosen,
            np.zeros(3),
            jac=jg.grad(self.rosen),
            hess=jg.hessian(self.rosen),
            method="trust-exact",
            tol=1e-8,
        )
        np.testing.assert_allclose(found.x, np.ones(3), atol=1e-6)

    def test_least_squares(self) -> None:
        t = np.linspace(0, 1, 20)
        data = 2.0 * np.exp(-1.5 * t) + 0.5
        residuals = lambda p, t, data: p[0] * np.exp(-p[1] * t) + p[2] - data  # noqa: E731
        plain = lambda *a: np.asarray(residuals(*a))  # noqa: E731
        for jacobian in (jg.jacobian, jg.jacfwd, jg.jacrev):
            jac = jacobian(residuals)
            assert jac(np.ones(3), t, data).shape == (20, 3)
            found = scipy.optimize.least_squares(plain, np.ones(3), jac=jac, args=(t, data))
            np.testing.assert_allclose(found.x, [2.0, 1.5, 0.5], rtol=1e-6)

    def test_root(self) -> None:
        f = lambda x: np.array([x[0] ** 2 + x[1] - 3, x[0] - x[1]]) if isinstance(x, np.ndarray) else None  # noqa: E731
        g = lambda x: jg.stack([x[0] ** 2 + x[1] - 3, x[0] - x[1]])  # noqa: E731
        found = scipy.optimize.root(f, np.array([1.0, 0.0]), jac=jg.jacobian(g))
        x = found.x
        assert x[0] == pytest.approx((-1 + np.sqrt(13)) / 2, rel=1e-9)

    def test_grad_agrees_with_check_grad(self) -> None:
        f = lambda x: float(np.sum(np.exp(np.sin(x))))  # noqa: E731
        error = scipy.optimize.check_grad(f, jg.grad(lambda x: np.sum(np.exp(np.sin(x)))), X)
        assert error < 1e-6


# ------------------------------------------------------------------------------------------ memory and threads


LEAK_FREE = {
    "grad": lambda: jg.value_and_grad(CASES["sine"].f)(X),
    "hessian": lambda: jg.hessian(CASES["sine"].f)(X),
    "reverse twice": lambda: jg.jacrev(jg.jacrev(CASES["sine"].f))(X),
    "vjp": lambda: jg.vjp(CASES["sine"].f, X)[1](1.0),
    "jvp": lambda: jg.jvp(CASES["sine"].f, (X,), (Y,)),
    "linearize": lambda: jg.linearize(CASES["sine"].f, X)[1](Y),
    "hvp": lambda: jg.hvp(CASES["written"].f)(X, Y),
    "written": lambda: jg.grad(CASES["written"].f)(X),
    "captured": lambda: jg.grad(lambda x: (W * x * x).sum())(X),
    "vmap": lambda: jg.vmap(jg.grad(CASES["sine"].f))(np.stack([X, Y])),
    "vmap of grad of tracked": lambda: jg.grad(lambda w: jg.vmap(lambda x: (w * x).sum() ** 2)(np.stack([X, Y])).sum())(
        X
    ),
    "vmap in a loop": lambda: jg.vmap(lambda x: x if x > 0 else -x)(X),
    "checkpoint": lambda: jg.grad(jg.checkpoint(CASES["sine"].f))(X),
    "checkpoint twice": lambda: jg.jacrev(jg.jacrev(jg.checkpoint(CASES["sine"].f)))(X),
}
W = jg.tensor(Y, requires_grad=True)


@pytest.mark.parametrize("name", LEAK_FREE)
def test_no_reference_cycles(name: str) -> None:
    run = LEAK_FREE[name]

    def left() -> int:
        gc.collect()
        run()
        return gc.collect()

    run()
    gc.disable()
    try:
        # a call that leaves cycles leaves them each time; threads of the test runner do so now and then
        assert min(left() for _ in range(5)) == 0
    finally:
        gc.enable()


def test_threads() -> None:
    wrong: list[Any] = []

    def work(k: int) -> None:
        for name, case in CASES.items():
            x = X + 0.1 * k
            if not np.allclose(jg.grad(case.f)(x), case.gradient(x)) or not np.allclose(
                jg.hessian(case.f)(x), case.hessian(x)
            ):
                wrong.append((k, name))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ------------------------------------------------------------------------------------------ checkpoint


def _deep(x: Any) -> Any:
    for _ in range(20):
        x = np.sin(x * 1.01)
    return x


class TestCheckpoint:
    def test_memory(self) -> None:
        """Five blocks of forty operations: kept whole, about 100 arrays; checkpointed, one block and the borders."""
        import tracemalloc

        size = 20_000

        def peak(block: Callable[..., Any]) -> tuple[float, Array]:
            x = jg.tensor(np.linspace(0.1, 1.0, size), requires_grad=True)
            gc.collect()
            tracemalloc.start()
            y = x
            for _ in range(5):
                y = block(y)
            y.sum().backward()
            found = tracemalloc.get_traced_memory()[1] / (8 * size)
            tracemalloc.stop()
            return found, x.grad.numpy()

        peak(_deep)
        kept, gradient = peak(_deep)
        saved, same = peak(jg.checkpoint(_deep))
        np.testing.assert_array_equal(gradient, same)
        assert kept > 90
        assert saved < 35

    def test_what_waits_for_backward(self) -> None:
        import tracemalloc

        x = jg.tensor(np.linspace(0.1, 1.0, 20_000), requires_grad=True)
        block = jg.checkpoint(_deep)
        block(x)
        gc.collect()
        tracemalloc.start()
        y = block(block(block(x)))
        assert tracemalloc.get_traced_memory()[0] < 4 * 8 * 20_000
        tracemalloc.stop()
        del y

    def test_arguments_and_captured_tensors(self) -> None:
        w = jg.tensor(Y, requires_grad=True)
        half = w * 0.5
        x = jg.tensor(X, requires_grad=True)

        @jg.checkpoint
        def f(p: Any, *, scale: float) -> Any:
            return {"y": (p["x"] ** 2 * w * half).sum() * scale, "n": 3, "x": p["x"] + 1.0}

        found = f({"x": x * 1.0, "label": "text"}, scale=2.0)
        assert found["n"] == 3
        (found["y"] + found["x"].sum()).backward()
        close(w.grad.numpy(), 2 * X**2 * Y)  # scale * d(w**2 / 2)
        close(x.grad.numpy(), 2 * X * Y**2 + 1)

    def test_captured_alone(self) -> None:
        w = jg.tensor(Y, requires_grad=True)
        found = jg.checkpoint(lambda x: (x * w**3).sum())(X)
        assert isinstance(found, jg.Tensor)
        found.backward()
        close(w.grad.numpy(), 3 * X * Y**2)

    def test_second_order_of_captured_tensors(self) -> None:
        w = jg.tensor(Y, requires_grad=True)
        (first,) = jg.autograd.grad(jg.checkpoint((w**3).sum)(), [w], create_graph=True)
        (second,) = jg.autograd.grad(first.sum(), [w])
        close(second.numpy(), 6 * Y)

    def test_hooks_run_once(self) -> None:
        w = jg.tensor(Y, requires_grad=True)
        inner = w * 2.0
        seen: list[str] = []
        w.register_hook(lambda g: seen.append("leaf"))
        inner.register_hook(lambda g: seen.append("node"))
        jg.checkpoint(lambda x: (x * w * inner).sum())(X).backward()
        assert sorted(seen) == ["leaf", "node"]
        close(w.grad.numpy(), 4 * X * Y)

    def test_backward_twice(self) -> None:
        x = jg.tensor(X, requires_grad=True)
        y = jg.checkpoint(_deep)(x).sum()
        y.backward(retain_graph=True)
        once = x.grad.numpy().copy()
        y.backward()
        close(x.grad.numpy(), 2 * once)
        with pytest.raises(jg.errors.ReleasedGraphError):
            y.backward()

    def test_nested(self) -> None:
        f = jg.checkpoint(lambda x: _deep(jg.checkpoint(_deep)(_deep(x))))
        wanted = jg.grad(lambda x: _deep(_deep(_deep(x))).sum())(X)
        close(jg.grad(lambda x: f(x).sum())(X), wanted)

    def test_several_results_some_unused(self) -> None:
        f = jg.checkpoint(lambda x: (x**2, np.argmax(x), x**3))
        close(jg.grad(lambda x: f(x)[2].sum())(X), 3 * X**2)
        close(jg.grad(lambda x: (f(x)[0] * f(x)[2]).sum())(X), 5 * X**4)

    def test_the_same_argument_twice(self) -> None:
        x = jg.tensor(X, requires_grad=True)
        jg.checkpoint(lambda a, b: (a**2 * b).sum())(x, x).backward()
        close(x.grad.numpy(), 3 * X**2)

    def test_results_are_not_the_arguments(self) -> None:
        x = jg.tensor(X, requires_grad=True)
        for f in (lambda x: x, lambda x: x[1:], lambda x: x.reshape(3, 1)):
            y = jg.checkpoint(f)(x)
            assert not np.shares_memory(y.detach().numpy(), x.detach().numpy())
            y.sum().backward()
        close(x.grad.numpy(), [2.0, 3.0, 3.0])

    @pytest.mark.parametrize("changes", ["tracked", "constant"])
    def test_values_that_changed_in_the_meantime(self, changes: str) -> None:
        w = jg.tensor(Y, requires_grad=True)
        constant = Y.copy()
        x = jg.tensor(np.zeros(3), requires_grad=True)  # the results do not show the change
        y = jg.checkpoint(lambda x: (x * w * constant).sum())(x)
        if changes == "tracked":
            with jg.no_grad():
                w += 1.0
        else:
            constant += 1.0
        with pytest.raises(jg.errors.GraphError, match="gave other values than the first time"):
            y.backward()

    def test_random_numbers(self) -> None:
        rng = np.random.default_rng(0)
        y = jg.checkpoint(lambda x: (x * rng.normal(size=3)).sum())(jg.tensor(X, requires_grad=True))
        with pytest.raises(jg.errors.GraphError, match="random numbers"):
            y.backward()

    def test_without_gradients(self) -> None:
        block = jg.checkpoint(lambda x: (x * 2.0, "text"))
        y, text = block(X)
        assert type(y) is np.ndarray
        assert text == "text"
        with jg.no_grad():
            assert not block(jg.tensor(X, requires_grad=True))[0].requires_grad

    def test_the_argument_is_written_after_the_call(self) -> None:
        x = jg.tensor(X, requires_grad=True) * 1.0
        y = jg.checkpoint(lambda x: (x**2).sum())(x)
        x *= 0.0  # a write to what the node keeps: copied, or refused, but never used
        (g,) = jg.autograd.grad(y, [y], retain_graph=True)
        leaf = jg.tensor(X, requires_grad=True)
        z = leaf * 1.0
        y = jg.checkpoint(lambda x: (x**2).sum())(z)
        z *= 0.0
        y.backward()
        close(leaf.grad.numpy(), 2 * X)
        assert g.item() == 1.0


# ------------------------------------------------------------------------------------------ random programs


def _agreement(program: Program) -> Callable[[Any, Any], None]:
    # cotangents and tangents are rounded to float32 where the program rounds
    tolerance = 1e-5 if any(name == "single" for name, *_ in program.steps) else 1e-9

    def agree(found: Any, wanted: Any) -> None:
        for a, b in zip(found, wanted, strict=True):
            scale = max(1.0, float(np.nanmax(np.abs(b), initial=0.0)))
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)

    return agree


def _numbers(program: Program) -> tuple[int, ...]:
    return tuple(range(len(program.shapes)))


@examples(60)
@given(programs())
def test_transforms_of_random_programs_agree(program: Program) -> None:
    """Programs with views, writes, detach and repeated values: every way to a gradient gives the same."""
    agree = _agreement(program)
    arrays = program.arrays()
    assume(np.isfinite(jg.asarray(program.scalar(*map(jg.tensor, arrays))).item()))  # NaN has no derivative
    every = _numbers(program)
    before = [a.copy() for a in arrays]
    gradients = jg.grad(program.scalar, every)(*arrays)
    agree(jg.jacfwd(program.scalar, every)(*arrays), gradients)
    agree(jg.grad(jg.checkpoint(program.scalar), every)(*arrays), gradients)
    agree(jg.vjp(program.scalar, *arrays)[1](1.0), gradients)
    batches = [np.stack([a, 0.5 * a]) for a in arrays]
    halves = jg.grad(program.scalar, every)(*(0.5 * a for a in arrays))
    rows = [np.stack(pair) for pair in zip(gradients, halves, strict=True)]
    agree(jg.vmap(jg.grad(program.scalar, every))(*batches), rows)
    agree(jg.grad(lambda *xs: jg.vmap(program.scalar)(*xs).sum(), every)(*batches), rows)
    leaves = [jg.tensor(a, requires_grad=True) for a in arrays]
    value = jg.checkpoint(lambda: program.scalar(*(x * 1.0 for x in leaves)))()
    if value.requires_grad:
        value.backward()
    agree([np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in leaves], gradients)
    for array, kept in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, kept)


@examples(40)
@given(programs(7))
def test_second_derivatives_of_random_programs_agree(program: Program) -> None:
    agree = _agreement(program)
    arrays = program.arrays()
    assume(np.isfinite(jg.asarray(program.scalar(*map(jg.tensor, arrays))).item()))  # NaN has no derivative
    directions = [np.cos(np.arange(a.size) + 1.0).reshape(a.shape) for a in arrays]
    every = _numbers(program)

    def slope(*xs: Any) -> Any:
        gradients = jg.grad(program.scalar, every)(*xs)
        return sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))

    def slope_of_checkpoint(*xs: Any) -> Any:
        gradients = jg.grad(jg.checkpoint(program.scalar), every)(*xs)
        return sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))

    reverse = jg.grad(slope, every)(*arrays)
    forward = jg.jvp(jg.grad(program.scalar, every), arrays, directions)[1]
    agree(forward, reverse)
    agree(jg.grad(lambda *xs: jg.jvp(program.scalar, xs, directions)[1], every)(*arrays), reverse)
    agree(jg.grad(slope_of_checkpoint, every)(*arrays), reverse)
    batched = jg.vmap(jg.grad(slope, every))(*(a[None] for a in arrays))
    agree([b[0] for b in batched], reverse)


_W = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)


@pytest.mark.parametrize("given", ["given", "captured"])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lambda x: [jg.grad(lambda u: f(u).sum())(x)],
        lambda f: lambda x: [*jg.value_and_grad(lambda u: f(u).sum())(x)],
        lambda f: lambda x: [jg.vjp(f, x)[0], *jg.vjp(f, x)[1](jg.ones(3))],
        lambda f: lambda x: [*jg.jvp(f, (x,), (jg.ones(3),))],
        lambda f: lambda x: [jg.linearize(f, x)[0], jg.linearize(f, x)[1](jg.ones(3))],
        lambda f: lambda x: [jg.jacrev(f)(x), jg.jacfwd(f)(x)],
        lambda f: lambda x: [jg.hessian(lambda u: f(u).sum())(x)],
        lambda f: lambda x: [jg.vmap(lambda u: f(u * jg.ones(3)))(x)],
        lambda f: lambda x: [jg.grad(lambda u: jg.grad(lambda v: f(v).sum())(u).sum())(x)],
    ],
)
def test_no_grad_around_a_transform(transform: Any, given: str) -> None:
    """Its results do not require grad, whether a tracked tensor is given or captured."""
    x = _W if given == "given" else jg.tensor([0.5, 1.0, 2.0])
    function = transform((lambda u: u * u * u) if given == "given" else (lambda u: u * u * _W))
    expected = function(x)
    assert all(r.requires_grad for r in expected)
    with jg.no_grad():
        results = function(x)
    for result, other in zip(results, expected, strict=True):
        assert not result.requires_grad
        np.testing.assert_array_equal(np.asarray(result), other.detach().numpy())


_ONES = np.ones(2)
_INSIDE: dict[str, Callable[[Any, Any], Any]] = {
    "vjp": lambda x, u: jg.vjp(lambda t: t + x, _ONES)[0] + u,
    "jvp": lambda x, u: jg.jvp(lambda t: t * x, (u,), (_ONES,))[1] * u * x,
    "grad": lambda x, u: jg.grad(lambda t: (t * t * x).sum())(u) * x,
    "jacrev": lambda x, u: jg.jacrev(lambda t: t * t * x)(u).sum(0) * x,
    "aux": lambda x, u: jg.value_and_grad(lambda t: ((t * t).sum(), x + t), has_aux=True)(_ONES)[0][1] + u,
    "linearize": lambda x, u: jg.linearize(lambda t: t * x, u)[0] + u * x,
}
_AROUND: dict[str, Callable[[Any, Any, Any], Any]] = {
    "vjp": lambda f, x, w: jg.vjp(f, x)[1](_ONES)[0],
    "jacrev": lambda f, x, w: jg.jacrev(f)(x),
    "grad": lambda f, x, w: jg.grad(lambda v: f(v).sum())(x),
    "hessian": lambda f, x, w: jg.hessian(lambda v: f(v).sum())(x),
    "aux": lambda f, x, w: jg.value_and_grad(lambda v: (f(v).sum(), f(v)), has_aux=True)(x)[1],
    "backward later": lambda f, x, w: jg.autograd.grad(jg.vjp(lambda v: f(v) * w, x)[0].sum(), w)[0],
}


@pytest.mark.parametrize("given", ["array", "tensor", "leaf"])
@pytest.mark.parametrize("around", sorted(_AROUND))
@pytest.mark.parametrize("inside", sorted(_INSIDE))
def test_a_transform_within_a_checkpoint(inside: str, around: str, given: str) -> None:
    """It is run again when the transform around it may have returned, and has to be the same program then."""
    array, w = np.array([1.0, 2.0]), jg.tensor([3.0, 4.0], requires_grad=True)
    x: Any = array if given == "array" else jg.tensor(array, requires_grad=given == "leaf")
    body = _INSIDE[inside]
    expected = _AROUND[around](lambda v: body(v, v), x, w)
    found = _AROUND[around](lambda v: jg.checkpoint(lambda u: body(v, u))(v), x, w)
    assert type(found) is type(expected)
    np.testing.assert_allclose(*(r.detach() if isinstance(r, jg.Tensor) else r for r in (found, expected)), rtol=1e-14)


@pytest.mark.parametrize("power", [1, 2])
def test_a_checkpoint_of_what_an_earlier_transform_left(power: int) -> None:
    """A value that hangs on the input of a transform which has returned is a constant, the first time and again."""
    kept: list[Any] = []

    def leaking(a: Any) -> Any:
        kept.append(a * 1.0)
        return (a**2).sum()

    jg.grad(leaking)(np.array([1.0, 4.0]))
    x = jg.tensor([1.0, 2.0], requires_grad=True)
    jg.checkpoint(lambda b: (jg.grad(lambda c: (c * kept[0]).sum())(_ONES) ** power * b).sum())(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 4.0**power]


def test_a_checkpoint_leaves_the_tensors_that_it_returns() -> None:
    w = jg.tensor([2.0, 3.0], requires_grad=True)
    both = jg.checkpoint(lambda b: ((b * w).sum(), w))
    for _ in range(2):
        w.grad = None
        both(jg.tensor([1.0, 4.0]))[0].backward()
        assert w.is_leaf
        assert w.grad is not None
        assert w.grad.tolist() == [1.0, 4.0]
    w.grad = None
    both(jg.tensor([1.0, 4.0]))[1].sum().backward()
    (w**2).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [5.0, 7.0]

    def outer(a: Any) -> Any:
        inner = jg.checkpoint(lambda b: ((a * b).sum(), (b**2).sum(), a))
        return jg.value_and_grad(lambda b: inner(b)[0])(_ONES)[0] + a.sum()

    value, gradient = jg.value_and_grad(outer)(np.array([1.0, 4.0]))
    assert value == 10.0
    assert gradient.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "wrapped", [jg.checkpoint, lambda f: jg.checkpoint(jg.jit(f)), lambda f: jg.checkpoint(jg.checkpoint(f))]
)
def test_each_result_of_a_checkpoint_leads_back_by_itself(wrapped: Callable[..., Any]) -> None:
    w = jg.tensor([2.0, 3.0], requires_grad=True)
    function = wrapped(lambda a, v: ((a * v).sum(), (a**2).sum(), (v.detach() * a).sum()))
    for number, leads in enumerate((True, False, False)):
        value, gradient = jg.value_and_grad(lambda a, number=number: function(a, w)[number])(np.array([1.0, 4.0]))
        assert isinstance(value, jg.Tensor) is isinstance(gradient, jg.Tensor) is leads
        assert [r.requires_grad for r in function(jg.tensor([1.0, 4.0]), w)] == [True, False, False]


@pytest.mark.parametrize("transform", [jg.grad, jg.jacrev, jg.jacfwd, lambda f: lambda x: jg.jvp(f, (x,), (x,))])
def test_what_a_transform_leaves_where_the_function_raises(transform: Any) -> None:
    """A value that hangs on its input is a constant, as after a return."""
    kept: list[Any] = []

    def raises(a: Any) -> Any:
        kept.append(a * 1.0)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        transform(raises)(np.array([1.0, 4.0]))
    assert type(jg.value_and_grad(lambda b: (b * kept[0]).sum())(_ONES)[0]) is float
