"""Captured tensors that require grad, of which results need no gradient: behind ``detach()``, and under ``no_grad()``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

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
def test_a_tracked_tensor_captured_gives_tensors_under_no_grad_too(transform: Any, jitted: bool) -> None:
    w = leaf(1.0, 2.0, 3.0)
    gradient = transform(lambda x: (x * x * w).sum())
    gradient = jit(gradient) if jitted else gradient
    for around in (jg.no_grad, jg.enable_grad, jg.no_grad):
        with around():
            found = gradient(X)
        assert isinstance(found, jg.Tensor)
        assert found.requires_grad is (around is jg.enable_grad)
        close(found.detach(), 2 * X * np.array([1.0, 2.0, 3.0]))


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
                found = moved(tangent)
                assert isinstance(found, jg.Tensor)
                assert not found.requires_grad
        found = moved(np.ones(3))
        assert found.requires_grad is not around_all
        assert moved(w).requires_grad
