"""Captured tensors that require grad, of which results need no gradient: behind ``detach()``, and under ``no_grad()``."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares, minimize

import jitgrad as jg
from jitgrad import jit
from jitgrad.tensor import Tensor
from jitgrad.transforms.arguments import Arguments

X = np.array([0.5, -1.0, 2.0])


def leaf(*values: float) -> Tensor:
    return jg.tensor(list(values), requires_grad=True)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-13)


def _cut_by_detach(x: Any, w: Any) -> Any:
    return ((x - w.detach()) ** 2).sum()


def _cut_later(x: Any, w: Any) -> Any:
    return ((x - (w * 1.0).detach()) ** 2).sum()


def _cut_by_stop_gradient(x: Any, w: Any) -> Any:
    return ((x - jg.stop_gradient(w)) ** 2).sum()


def _cut_by_no_grad(x: Any, w: Any) -> Any:
    with jg.no_grad():
        w = w * 1.0
    return ((x - w) ** 2).sum()


def _cut_by_comparison(x: Any, w: Any) -> Any:
    return (jg.where(w > 0.0, x - w.detach(), 0.0) ** 2).sum()


CUTS = [_cut_by_detach, _cut_later, _cut_by_stop_gradient, _cut_by_no_grad, _cut_by_comparison]


@pytest.mark.parametrize("cut", CUTS)
def test_a_detached_parameter_leaves_results_plain(cut: Callable[..., Any]) -> None:
    """ndarrays in, ndarrays out, as without jit: SciPy takes nothing else."""
    w = leaf(1.0, 2.0, 3.0)
    function = jit(jg.value_and_grad(lambda x: cut(x, w)))
    for _ in range(20):  # the short way comes later
        value, gradient = function(X)
        assert type(value) is float
        assert type(gradient) is np.ndarray
        close(gradient, 2 * (X - w.detach().numpy()))
    assert type(jit(jg.hessian(lambda x: cut(x, w)))(X)) is np.ndarray
    found = minimize(function, np.zeros(3), jac=True, method="L-BFGS-B")
    np.testing.assert_allclose(found.x, w.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("cut", CUTS)
def test_a_detached_parameter_takes_the_short_way(cut: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    w = leaf(1.0, 2.0, 3.0)
    function = jit(jg.value_and_grad(lambda x: cut(x, w)))
    for _ in range(2):
        function(X)
    monkeypatch.setattr(Arguments, "__post_init__", None)  # nothing is bound in the general way any more
    w = leaf(3.0, 2.0, 1.0)
    for _ in range(20):
        close(function(X)[1], 2 * (X - w.detach().numpy()))


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
@pytest.mark.parametrize(
    "transform", [jg.grad, lambda f: lambda x: jg.value_and_grad(f)(x)[1], lambda f: lambda x: jg.vjp(f, x)[1](1.0)[0]]
)
def test_a_tracked_tensor_captured_gives_tensors_where_the_caller_records(transform: Any, jitted: bool) -> None:
    w = leaf(1.0, 2.0, 3.0)
    gradient = transform(lambda x: (x * x * w).sum())
    gradient = jit(gradient) if jitted else gradient
    for around in (jg.no_grad, jg.enable_grad, jg.no_grad):
        with around():
            found = gradient(X)
        assert type(found) is (Tensor if around is jg.enable_grad else np.ndarray)
        assert getattr(found, "requires_grad", False) is (around is jg.enable_grad)
        close(found if around is jg.no_grad else found.detach(), 2 * X * np.array([1.0, 2.0, 3.0]))


def test_no_grad_around_a_transform_leaves_the_captured_graph() -> None:
    a = leaf(1.0, 2.0, 3.0)
    w = a * a
    with jg.no_grad():
        jg.grad(lambda x: (x * x * w).sum())(X)
        pull = jg.vjp(lambda x: (x * x * w).sum(), X)[1]
        pull(1.0)
    w.sum().backward()
    close(a.grad, 2 * np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("around_all", [False, True])
def test_no_grad_around_a_pull_or_push(around_all: bool) -> None:
    w = leaf(1.0, 2.0, 3.0)
    with jg.no_grad() if around_all else contextlib.nullcontext():
        pull = jg.vjp(lambda x: x * x * w, X)[1]
        push = jg.linearize(lambda x: x * x * w, X)[1]
    for moved in (lambda t: pull(t)[0], push):
        with jg.no_grad():
            for tangent in (np.ones(3), w):
                assert not getattr(moved(tangent), "requires_grad", False)
        found = moved(np.ones(3))
        assert type(found) is (np.ndarray if around_all else Tensor)
        assert getattr(found, "requires_grad", False) is not around_all
        assert moved(w).requires_grad


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
def test_a_captured_tensor_that_requires_grad_later(jitted: bool) -> None:
    """What a transform detached, since nothing was there to lead back to, is traced anew."""
    w = jg.tensor([1.0, 2.0, 3.0])
    function: Any = lambda x: jg.vjp(lambda u: u * u * w, x)[0]  # noqa: E731
    function = jit(function) if jitted else function
    assert type(function(X)) is np.ndarray
    w.requires_grad_(True)
    for _ in range(2):
        w.grad = None
        function(X).sum().backward()
        close(w.grad, X * X)


def _flags(tree: Any) -> list[bool]:
    """Whether each tensor in nested tuples requires grad."""
    return [f for part in tree for f in _flags(part)] if isinstance(tree, tuple) else [tree.requires_grad]


def _pair(u: Any, v: Any) -> Any:
    return u * u, v * v


def _sum(u: Any, v: Any) -> Any:
    return (u**3).sum() + (v**3).sum()


@pytest.mark.parametrize("wrapped", [lambda f: f, jit], ids=["eager", "jitted"])
@pytest.mark.parametrize(
    ("transformed", "expected"),
    [
        (lambda a, b: jg.jvp(lambda u, v: u * v.detach(), (a, b), (a, a)), [False, False]),
        (lambda a, b: jg.vjp(lambda u, v: u * v.detach(), a, b)[0], [False]),
        (lambda a, b: jg.vjp(lambda u, v: u * u * v.detach(), a, b)[1](a), [False, False]),
        (jg.value_and_grad(lambda u, v: (u * u * v.detach()).sum(), (0, 1)), [False, False, False]),
        (jg.value_and_grad(_sum, (0, 1)), [True, False, True]),
        (lambda a, b: jg.jvp(_pair, (a, b), (a, a)), [False, True, False, True]),
        (lambda a, b: jg.linearize(_pair, a, b)[1](a, a), [False, True]),
        (jg.jacrev(_pair, (0, 1)), [False, False, False, True]),
        (jg.jacfwd(_pair, (0, 1)), [False, False, False, True]),
        (jg.hessian(_sum, (0, 1)), [False, False, False, True]),
        (lambda a, b: jg.value_and_grad(lambda u: ((u * u).sum(), b * 2.0), has_aux=True)(a), [False, True, False]),
        (lambda a, b: jg.value_and_grad(lambda u: b[0])(a), [True, False]),
    ],
)
def test_results_of_transforms_require_grad_where_they_lead_back(
    transformed: Callable[..., Any], expected: list[bool], wrapped: Callable[..., Any]
) -> None:
    """Of two arguments the second alone requires grad: what does not depend on it requires none."""
    a, b = jg.tensor([1.0, 2.0]), leaf(3.0, 4.0)
    assert _flags(wrapped(transformed)(a, b)) == expected


@pytest.mark.parametrize("create_graph", [False, True])
def test_auxiliary_values_lead_back_by_themselves(create_graph: bool) -> None:
    w = leaf(3.0, 4.0)

    def function(u: Any) -> Any:
        hidden = u * u  # part of the value and of the auxiliary one
        return hidden.sum(), (hidden * w * 2.0, u * 3.0)

    (value, aux), gradient = jg.value_and_grad(function, has_aux=True)(np.array([1.0, 3.0]))
    assert type(value) is float
    assert type(gradient) is np.ndarray
    assert type(aux[1]) is np.ndarray
    close(gradient, [2.0, 6.0])
    close(jg.autograd.grad(aux[0].sum(), w, create_graph=create_graph)[0].detach(), [2.0, 18.0])


@pytest.mark.parametrize("given", ["alone", "beside a tracked one"])
def test_a_graph_that_is_released_already(given: str) -> None:
    """Backward of what was computed with it raises, and does not lose the gradient."""
    w, z = leaf(1.0, 2.0, 3.0), leaf(1.0, 2.0, 3.0)
    y = w * w
    y.sum().backward()
    if given == "alone":
        gradient = jg.grad(lambda a: (a * a * y).sum())(X)
    else:
        gradient = jg.grad(lambda a, b: (a * a * y).sum() + (b**3).sum(), (0, 1))(jg.tensor(X), z)[0]
    with pytest.raises(jg.errors.ReleasedGraphError):
        gradient.sum().backward()


@pytest.mark.parametrize("wrapped", [lambda f: f, jit], ids=["eager", "jitted"])
@pytest.mark.parametrize("method", ["L-BFGS-B", "SLSQP", "BFGS"])
def test_scipy_under_no_grad(method: str, wrapped: Callable[..., Any]) -> None:
    """Captured parameters that require grad need not be detached there."""
    w = leaf(1.0, 2.0, 3.0)
    function = wrapped(jg.value_and_grad(lambda x: ((x - w) ** 2).sum()))
    residuals = wrapped(lambda x: x - w)
    with jg.no_grad():
        found = minimize(function, np.zeros(3), jac=True, method=method).x
        fitted = least_squares(
            lambda x: np.asarray(residuals(x)), np.zeros(3), jac=wrapped(jg.jacobian(lambda x: x - w))
        ).x
    for x in (found, fitted):
        assert type(x) is np.ndarray
        np.testing.assert_allclose(x, w.detach().numpy(), rtol=1e-6)


def test_calls_under_no_grad_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    w = leaf(1.0, 2.0, 3.0)
    function = jit(lambda x: x * w)
    with jg.no_grad():
        function(X)
        with monkeypatch.context() as patch:
            patch.setattr(Arguments, "__post_init__", None)  # nothing is bound in the general way any more
            for _ in range(20):
                close(function(X), X * w.detach().numpy())
    function(X).sum().backward()
    close(w.grad, X)


@pytest.mark.parametrize("transform", [jg.grad, lambda f, n: lambda *a: jg.vjp(f, *a)[1](1.0)])
def test_why_a_gradient_has_no_graph(transform: Any) -> None:
    gradient = transform(lambda u, v: (u * u).sum() + (v * v).sum(), (0, 1))(jg.tensor(X), leaf(1.0, 2.0, 3.0))[0]
    with pytest.raises(jg.errors.NoGraphError) as caught:
        gradient.sum().backward()
    assert "detach()" not in str(caught.value).partition(":")[2].partition("Set requires_grad")[0]


def test_one_program_for_whatever_is_left_out_of_several_results() -> None:
    """Of each set of results that have a cotangent; a mask for one of them is one for all."""
    function = jit(lambda x: (jg.sqrt(x), jg.log(x), x * x))
    x = leaf(0.0, 1.0, 4.0)
    counts = []
    for cut in itertools.product([0, 1], repeat=3):
        sum((r[1:] if left_out else r).sum() for r, left_out in zip(function(x), cut, strict=True)).backward()
        (compiled,) = function._compiled.values()
        (pullback,) = compiled.pullbacks.values()
        assert pullback is not None
        counts.append(len(pullback.function._compiled))  # type: ignore[attr-defined]
    assert counts == [1, 2, 2, 2, 2, 2, 2, 2]


def test_a_cotangent_of_another_dtype() -> None:
    for function in (
        lambda x, c: jg.vjp(lambda u: u * u, x)[1](c)[0],
        jit(lambda x, c: jg.vjp(lambda u: u * u, x)[1](c)[0]),
    ):
        for dtype in (np.float32, np.int64, bool):
            close(function(np.ones(3), np.arange(3).astype(dtype)), 2.0 * np.arange(3).astype(dtype))


@pytest.mark.parametrize("wrapped", [lambda f: f, jit, lambda f: jit(jit(f))], ids=["eager", "jitted", "twice"])
def test_jitted_functions_of_several_results_within_transforms(wrapped: Callable[..., Any]) -> None:
    """Each result leads back to what it depends on, and to no other argument of the call."""
    function = wrapped(lambda u, v: (u * u, v * v))
    a, b = jg.tensor([1.0, 2.0]), leaf(3.0, 4.0)
    assert _flags(jg.vjp(function, a, b)[0]) == [False, True]
    assert _flags(jg.vjp(lambda u, v: function(*function(u, v)), a, b)[0]) == [False, True]
    for array in (np.ones(2), 1.0):
        value, gradient = jg.value_and_grad(lambda u: jg.sum(function(u, b)[0]))(array)
        assert type(value) is float
        assert type(gradient) is type(array)
        assert jg.value_and_grad(lambda u: jg.sum(function(u, b)[1]))(array)[0].requires_grad
    outer = jit(lambda u, v: function(*function(u, v)))
    first, second = outer(leaf(1.0, 2.0), b)
    assert jg.autograd.grad(first.sum(), b, allow_unused=True, retain_graph=True) == (None,)
    close(jg.autograd.grad(second.sum(), b)[0], 4.0 * np.array([3.0, 4.0]) ** 3)
