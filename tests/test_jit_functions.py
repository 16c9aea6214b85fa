"""``autograd.Function`` under jit: forward and backward are traced, and the user's backward is the one that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.testing
from jitgrad.errors import JitgradError, NotDifferentiableError, UnsupportedError
from jitgrad.transforms.jit import jit

X = np.array([0.3, 0.7, -1.2])


class Bent(jg.autograd.Function):
    """A sine whose slope is said to be 5 x: no rule of its operations would give that."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return jg.sin(x) * scale

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 5.0 * x * ctx.scale, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, _: Any) -> Any:
        (x,) = ctx.saved_tensors
        return tangent * 5.0 * x * ctx.scale


class Numpy(jg.autograd.Function):
    """A square that NumPy computes, which cannot be traced."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.x = x.detach().numpy()
        return ctx.x**2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2.0 * g * ctx.x


def value(x: Any) -> Any:
    return jg.sum(Bent.apply(x * 2.0, 3.0) * x)


SLOPE = 3 * np.sin(2 * X) + X * 5 * (2 * X) * 3 * 2


@pytest.mark.parametrize("mode", ["compiled", "python"])
@pytest.mark.parametrize(
    "gradient",
    [
        lambda: jit(jg.grad(value)),
        lambda: jg.grad(jit(value)),
        lambda: jit(jg.grad(jit(value))),
        lambda: jit(lambda x: jg.value_and_grad(value)(x)[1]),
        lambda: jit(lambda x: jg.vjp(value, x)[1](1.0)[0]),
        lambda: jit(jg.jacfwd(value)),
        lambda: jit(jg.jacrev(value)),
        lambda: jit(jg.grad(jg.checkpoint(value))),
        lambda: jit(jg.grad(value)).njit(X),
    ],
)
def test_the_users_backward_counts(gradient: Callable[[], Any], mode: str) -> None:
    with jg.testing.python_kernels() if mode == "python" else jg.enable_grad():
        np.testing.assert_allclose(gradient()(X), SLOPE, rtol=1e-14)


def test_tracked_arguments_and_captured_tensors() -> None:
    t = jg.tensor(X, requires_grad=True)
    jit(value)(t).backward()
    np.testing.assert_allclose(t.grad.numpy(), SLOPE, rtol=1e-14)
    w = jg.tensor([2.0, 3.0, 4.0], requires_grad=True)
    jit(lambda x: jg.sum(Bent.apply(w, 2.0) * x))(X).backward()
    np.testing.assert_allclose(w.grad.numpy(), 5 * w.detach().numpy() * 2 * X, rtol=1e-14)


def test_second_derivatives_are_those_of_the_users_backward() -> None:
    # the slope is 3 sin(2x) + 60 x^2, in which the sine is Bent again: 2 * 5 * (2x) * 3
    wanted = np.diag(2 * 5 * (2 * X) * 3 + 120 * X)
    eager = jg.jacrev(jg.grad(value))(X)
    np.testing.assert_allclose(eager, wanted, rtol=1e-13)
    for second in (jit(jg.jacrev(jg.grad(value))), jit(jg.hessian(value)), jg.jacrev(jg.grad(jit(value)))):
        np.testing.assert_allclose(second(X), wanted, rtol=1e-13)


def test_under_vmap() -> None:
    rows = np.stack([X, 2 * X])
    wanted = np.stack([2 * np.sin(r) * 2 * 5 * r * 2 for r in rows])

    def square(x: Any) -> Any:
        return jg.sum(Bent.apply(x, 2.0) ** 2)

    def whole(x: Any) -> Any:
        return jg.sum(jg.vmap(square)(x))

    for gradient in (jg.grad(whole), jit(jg.grad(whole)), jg.grad(jit(whole)), jit(jg.vmap(jg.grad(square)))):
        np.testing.assert_allclose(gradient(rows), wanted, rtol=1e-13)


def test_results_share_no_memory_with_arguments() -> None:
    class Same(jg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x, x.reshape(-1), x * 1.0

        @staticmethod
        def backward(ctx: Any, *gs: Any) -> Any:
            return gs[0] + gs[1] + gs[2]

    def function(x: Any) -> Any:
        y = x * 1.0
        whole, flat, other = Same.apply(y)
        y += 10.0
        return whole * 1.0, flat * 1.0, other * 1.0, y

    for found, wanted in zip(jit(function)(X), function(jg.tensor(X)), strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())


def test_several_results_without_gradients_of_all() -> None:
    class Pair(jg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            up = x * 2.0
            place = jg.argmax(x)
            ctx.mark_non_differentiable(place)
            return up, place, x - 1.0

        @staticmethod
        def backward(ctx: Any, up: Any, place: Any, down: Any) -> Any:
            return up * 7.0 + down * 11.0

    def function(x: Any) -> Any:
        up, place, _ = Pair.apply(x)
        return up[place]

    for gradient in (jit(jg.grad(function)), jg.grad(function)):
        np.testing.assert_array_equal(gradient(X), [0.0, 7.0, 0.0])


def test_what_cannot_be_traced_says_so() -> None:
    class Writes(jg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x += 1.0
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    class NoForwardMode(jg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    with pytest.raises(JitgradError, match="traced"):
        jit(lambda x: jg.sum(Numpy.apply(x)))(X)
    with pytest.raises(UnsupportedError, match="cannot write an argument"):
        jit(lambda x: jg.sum(Writes.apply(x * 1.0)))(X)
    with pytest.raises(NotDifferentiableError, match="no forward-mode rule"):
        jit(jg.jacfwd(NoForwardMode.apply))(X)


def test_a_numpy_function_of_a_captured_tensor() -> None:
    """It is read while the function is traced, and again when it was written; a tracked one may not be read."""
    w = jg.tensor([1.0, 2.0, 3.0])
    function = jit(lambda x: jg.sum(Numpy.apply(w) * x))
    np.testing.assert_allclose(function(X), np.sum(X * [1.0, 4.0, 9.0]), rtol=1e-14)
    w[0] = 5.0
    np.testing.assert_allclose(function(X), np.sum(X * [25.0, 4.0, 9.0]), rtol=1e-14)
    tracked = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with pytest.raises(JitgradError, match="traced"):
        jit(lambda x: jg.sum(Numpy.apply(tracked) * x))(X)
