"""Jitted functions that ask what is recorded: value, gradient and flags are those of a call without jit, or an error.

Where PyTorch is installed, calls without jit are compared with it too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from strategies import kernels

import jitgrad as jg
from jitgrad.errors import ConversionError, GraphError, JitgradError
from jitgrad.tensor import Tensor

try:
    import torch
except ImportError:
    torch = None


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    with kernels("python"):
        yield


X = [0.5, -1.0, 2.0]
W = [1.5, 0.3, -0.7]


def numbers(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)


def close(found: Any, expected: Any) -> None:
    assert found is not None
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-12, atol=1e-14)


# --------------------------------------------------------------------------- the same programs in PyTorch and here

Program = Callable[[Any, Any, Any], Any]


def _requires_grad(lib: Any, x: Any, w: Any) -> Any:
    return (x * x * w).sum() if x.requires_grad else (x * x * x + w).sum()


def _captured_requires_grad(lib: Any, x: Any, w: Any) -> Any:
    return (x * x * w).sum() if w.requires_grad else (x * x * x + w).sum()


def _only_the_flag_of_a_captured_tensor(lib: Any, x: Any, w: Any) -> Any:
    return (x * x).sum() if w.requires_grad else (x * x * x).sum()


def _inner_requires_grad(lib: Any, x: Any, w: Any) -> Any:
    y = x * w
    return (y * y).sum() if y.requires_grad else y.sum() * 3.0


def _detached_requires_grad(lib: Any, x: Any, w: Any) -> Any:
    y = (x * w).detach()
    return (y * x).sum() if y.requires_grad else (y * x * x).sum()


def _is_leaf(lib: Any, x: Any, w: Any) -> Any:
    return (x * x * w).sum() if x.is_leaf else (x * w * w).sum()


def _inner_is_leaf(lib: Any, x: Any, w: Any) -> Any:
    y = x * 2.0
    return (y * y * w).sum() if y.is_leaf else (y * w * w).sum()


def _grad_fn(lib: Any, x: Any, w: Any) -> Any:
    return (x * x * w).sum() if x.grad_fn is None else (x * w * w).sum()


def _captured_grad_fn(lib: Any, x: Any, w: Any) -> Any:
    y = w * 2.0
    return (x * x * w).sum() if y.grad_fn is None else (x * y * w).sum()


def _grad_mode(lib: Any, x: Any, w: Any) -> Any:
    return (x * x * w).sum() if lib.is_grad_enabled() else (x * w * w).sum()


def _recording(lib: Any, x: Any, w: Any) -> Any:
    recorded = lib.is_grad_enabled() and (x.requires_grad or w.requires_grad)
    return (x * x * w).sum() if recorded else (x * w * w).sum()


def _results_in_number(lib: Any, x: Any, w: Any) -> Any:
    y = (x * x * w).sum()
    return (y, (y * w).sum()) if x.requires_grad else y


def _no_grad_inside(lib: Any, x: Any, w: Any) -> Any:
    with lib.no_grad():
        y = x * w
        scale = 3.0 if y.requires_grad or lib.is_grad_enabled() else 5.0
    return (y * x).sum() * scale


def _set_grad_enabled(lib: Any, x: Any, w: Any) -> Any:
    with lib.set_grad_enabled(lib.is_grad_enabled() and not w.requires_grad):
        y = x * x * w
    return (y + x).sum()


def _enable_grad_within_no_grad(lib: Any, x: Any, w: Any) -> Any:
    with lib.no_grad():
        y = x * w
        with lib.set_grad_enabled(x.requires_grad and w.requires_grad):
            z = x * x
    return (y * x).sum() + z.sum() if z.requires_grad else (y * x).sum()


def _hook_on_an_inner_value(lib: Any, x: Any, w: Any) -> Any:
    y = x * w
    if y.requires_grad:
        y.register_hook(lambda g: g * 2.0)
    return (y * y).sum()


def _hook_whatever(lib: Any, x: Any, w: Any) -> Any:
    y = x * w
    if lib.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        y.register_hook(lambda g: g * 3.0)
        y.retain_grad()
    return (y * x).sum()


def _straight_through_where_recorded(lib: Any, x: Any, w: Any) -> Any:
    y = x * w
    hard = y * y
    return (y + (hard - y).detach()).sum() if y.requires_grad else hard.sum()


def _new_leaf_inside(lib: Any, x: Any, w: Any) -> Any:
    y = (x * w).detach().requires_grad_()
    z = y * 2.0
    scale = 2.0 if y.requires_grad and y.is_leaf and z.requires_grad == lib.is_grad_enabled() else 3.0
    return (z.detach() * x).sum() * scale


def _written_in_place(lib: Any, x: Any, w: Any) -> Any:
    y = x * w
    y[0] = (x * x)[1]
    y *= x
    return y.sum() if y.requires_grad else (y * 2.0).sum()


class _Scaling:
    """A function with a backward of its own, for either library."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        ctx.times = 2.0 if ctx.needs_input_grad[0] else 3.0
        return x * w * ctx.times

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return g * w * ctx.times if needs[0] else None, g * x * ctx.times if needs[1] else None


def _needs_input_grad(lib: Any, x: Any, w: Any) -> Any:
    return (lib.scale(x, w) * x).sum()


def _library(lib: Any) -> SimpleNamespace:
    return SimpleNamespace(
        no_grad=lib.no_grad,
        set_grad_enabled=lib.set_grad_enabled,
        is_grad_enabled=lib.is_grad_enabled,
        scale=type("Scale", (_Scaling, lib.autograd.Function), {}).apply,
    )


HERE = _library(jg)
THERE = None if torch is None else _library(torch)
PROGRAMS: list[Program] = [
    _requires_grad,
    _captured_requires_grad,
    _only_the_flag_of_a_captured_tensor,
    _inner_requires_grad,
    _detached_requires_grad,
    _is_leaf,
    _inner_is_leaf,
    _grad_fn,
    _captured_grad_fn,
    _grad_mode,
    _recording,
    _results_in_number,
    _no_grad_inside,
    _set_grad_enabled,
    _enable_grad_within_no_grad,
    _hook_on_an_inner_value,
    _hook_whatever,
    _straight_through_where_recorded,
    _new_leaf_inside,
    _written_in_place,
    _needs_input_grad,
]
SITUATIONS = list(itertools.product(("plain", "leaf", "result"), (False, True), (True, False)))


def _outcome(lib: Any, call: Callable[[Any, Any], Any], w: Any, kind: str, tracked: bool, enabled: bool) -> list[Any]:
    """Results, whether they require grad, and the gradients of leaves, which come out of a loss with another use of x."""
    leaf = lib.tensor(X, dtype=np.float64 if lib is jg else torch.float64)
    if kind != "plain":
        leaf.requires_grad_()
    x = leaf * 1.5 if kind == "result" else leaf
    w.requires_grad_(tracked)
    w.grad = None
    with lib.set_grad_enabled(enabled):
        results = call(x, w)
    results = list(results) if isinstance(results, tuple) else [results]
    loss = (leaf * leaf).sum()
    for k, result in enumerate(results):
        loss = loss + result * (k + 1.0)
    if loss.requires_grad:
        loss.backward()
    found = [*results, leaf.grad, w.grad]
    return [[r.requires_grad for r in results], *(None if v is None else numbers(v).copy() for v in found)]


def _in_pytorch(program: Program, kind: str, tracked: bool, enabled: bool) -> list[Any] | None:
    """The outcome of a program in PyTorch; None where that is not installed."""
    if torch is None:
        return None
    w = torch.tensor(W, dtype=torch.float64)
    return _outcome(torch, lambda x, w: program(THERE, x, w), w, kind, tracked, enabled)


def agree(found: list[Any], expected: list[Any], where: str) -> None:
    """The node of a jitted call gives each of its inputs a gradient: zeros where PyTorch gives none."""
    assert found[0] == expected[0], where
    for a, b in zip(found[1:], expected[1:], strict=True):
        if b is None:
            assert a is None or not a.any(), where
        else:
            assert a is not None, where
            np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=where)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("order", [1, 5])
def test_as_without_jit(program: Program, order: int) -> None:
    """In every situation, by one jitted function: what it was compiled to for one must not serve another."""
    w = jg.tensor(W)
    jitted = jg.jit(lambda x: program(HERE, x, w))
    # 5 and 12 have no common factor, so that every situation follows others; twice, for compiled functions that are found
    count = len(SITUATIONS)
    for k in range(2 * count):
        kind, tracked, enabled = SITUATIONS[order * k % count]
        eager = _outcome(jg, lambda x, w: program(HERE, x, w), jg.tensor(W), kind, tracked, enabled)
        expected = _in_pytorch(program, kind, tracked, enabled) or eager
        found = _outcome(jg, lambda x, _: jitted(x), w, kind, tracked, enabled)
        for got in (eager, found):
            agree(got, expected, str((kind, tracked, enabled)))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_both_as_arguments(program: Program) -> None:
    jitted = jg.jit(lambda x, w: program(HERE, x, w))
    w = jg.tensor(W)
    for kind, tracked, enabled in SITUATIONS:
        expected = _in_pytorch(program, kind, tracked, enabled)
        if expected is None:
            expected = _outcome(jg, lambda x, w: program(HERE, x, w), jg.tensor(W), kind, tracked, enabled)
        found = _outcome(jg, jitted, w, kind, tracked, enabled)
        agree(found, expected, str((kind, tracked, enabled)))


# --------------------------------------------------------------------------- transforms


def _cubed_if_tracked(x: Any) -> Any:
    return jg.sum(x**3) if x.requires_grad else jg.sum(x**2)


def _cubed_if_recorded(x: Any) -> Any:
    return jg.sum(x**3) if jg.is_grad_enabled() else jg.sum(x**2)


@pytest.mark.parametrize("f", [_cubed_if_tracked, _cubed_if_recorded])
def test_under_transforms(f: Callable[[Any], Any]) -> None:
    x, one = np.array([0.5, -1.0, 2.0]), np.ones(3)
    inner, twice = jg.jit(f), jg.jit(jg.jit(f))
    for call in (inner, twice):
        for _ in range(2):
            close(call(jg.tensor(x)), np.sum(x**2) if f is _cubed_if_tracked else np.sum(x**3))
            value, slope = jg.value_and_grad(call)(x)
            close(value, np.sum(x**3))
            close(slope, 3 * x**2)
            value, slope = jg.jit(jg.value_and_grad(call))(x)
            close(value, np.sum(x**3))
            close(slope, 3 * x**2)
            close(jg.hessian(call)(x), np.diag(6 * x))
            close(jg.jit(jg.hessian(call))(x), np.diag(6 * x))
            value, tangent = jg.jvp(call, (x,), (one,))
            close(value, np.sum(x**3))
            close(tangent, np.sum(3 * x**2))
            value, pull = jg.vjp(call, x)
            close(value, np.sum(x**3))
            close(pull(2.0)[0], 6 * x**2)
            rows = jg.tensor(np.stack([x, 2 * x]), requires_grad=True)
            values = jg.vmap(call)(rows)
            close(values, [np.sum(x**3), np.sum((2 * x) ** 3)])
            values.sum().backward()
            close(rows.grad, 3 * np.stack([x, 2 * x]) ** 2)
            slopes = jg.vmap(jg.grad(call))(np.stack([x, 2 * x]))
            close(slopes, 3 * np.stack([x, 2 * x]) ** 2)


@pytest.mark.parametrize("f", [_cubed_if_tracked, _cubed_if_recorded])
def test_derivatives_of_second_order_by_the_sweep(f: Callable[[Any], Any]) -> None:
    x = jg.tensor(X, requires_grad=True)
    call = jg.jit(f)
    for _ in range(2):
        (slope,) = jg.autograd.grad(call(x), [x], create_graph=True)
        close(slope, 3 * np.array(X) ** 2)
        (second,) = jg.autograd.grad(slope.sum(), [x])
        close(second, 6 * np.array(X))


def test_a_jitted_gradient_of_a_tracked_tensor() -> None:
    x = jg.tensor(X, requires_grad=True)
    slope = jg.jit(jg.grad(_cubed_if_tracked))
    for _ in range(2):
        x.grad = None
        found = slope(x)
        close(found, 3 * np.array(X) ** 2)
        found.sum().backward()
        close(x.grad, 6 * np.array(X))
        with jg.no_grad():
            close(slope(x), 3 * np.array(X) ** 2)


def test_an_untracked_argument_beside_a_tracked_one() -> None:
    def f(x: Any, y: Any) -> Any:
        return jg.sum(x * x * (2.0 if x.requires_grad else 1.0)) + jg.sum(y * y * (3.0 if y.requires_grad else 1.0))

    call = jg.jit(f)
    a, b = np.array(X), np.array(W)
    close(jg.grad(call)(a, b), 4 * a)
    close(jg.grad(call, argnums=1)(a, b), 6 * b)
    both = jg.grad(call, argnums=(0, 1))(a, b)
    close(both[0], 4 * a)
    close(both[1], 6 * b)
    close(call(jg.tensor(a), jg.tensor(b)), np.sum(a * a) + np.sum(b * b))


def test_as_a_function_for_numba() -> None:
    x = np.array(X)
    for f in (_cubed_if_tracked, _cubed_if_recorded):
        with kernels("compiled"):
            close(jg.jit(f).njit(x)(x), f(jg.tensor(x)))
            close(jg.jit(jg.grad(f)).njit(x)(x), 3 * x**2)


# --------------------------------------------------------------------------- what changes between call and backward


def test_a_flag_that_changes_before_backward() -> None:
    """The gradient is that of the program that ran, or an error."""
    w = jg.tensor(W, requires_grad=True)
    call = jg.jit(lambda x: (x * x * w).sum() if w.requires_grad else (x * w).sum())
    for _ in range(2):
        x = jg.tensor(X, requires_grad=True)
        y = call(x)
        w.requires_grad_(False)
        with pytest.raises(GraphError, match="asks which of them require grad"):
            y.backward()
        w.requires_grad_(True)
        y.backward()
        close(x.grad, 2 * np.array(X) * np.array(W))


def test_the_flag_of_a_tensor_that_is_bound_anew() -> None:
    class Model:
        w = jg.tensor(W, requires_grad=True)

    model = Model()
    call = jg.jit(lambda x: (x * x).sum() if model.w.requires_grad else x.sum())
    close(call(np.array(X)), 5.25)
    model.w = jg.tensor(W)
    close(call(np.array(X)), 1.5)
    scaled = jg.jit(lambda x: (x * x * model.w).sum() if model.w.requires_grad else (x * model.w).sum())
    for tracked in (True, False, True):
        model.w = jg.tensor(W, requires_grad=tracked)
        close(scaled(np.array(X)), np.sum(np.array(X) ** (2 if tracked else 1) * W))


def test_state_that_alternates_raises() -> None:
    """Every other trace is the same program: two that agree are no proof for the one in between."""
    calls = itertools.count()
    x = jg.tensor(X, requires_grad=True)
    call = jg.jit(lambda x: (x * x).sum() if next(calls) % 2 else x.sum())
    with pytest.raises(GraphError, match="another program"):
        call(x)


@pytest.mark.parametrize("after", range(1, 7))
@pytest.mark.parametrize("asks", [False, True])
def test_state_that_changes_after_some_traces(after: int, asks: bool) -> None:
    """Whichever trace it is that differs: the gradient is that of the value, or there is an error."""
    calls = itertools.count(1)

    def f(x: Any) -> Any:
        recorded = x.requires_grad if asks else True
        return (x * x).sum() * (1.0 if recorded else 5.0) if next(calls) <= after else (x * x * x).sum()

    x = jg.tensor(X, requires_grad=True)
    call = jg.jit(f)
    outcomes = set()
    for _ in range(3):
        x.grad = None
        try:
            y = call(x)
            y.backward()
        except GraphError as error:
            outcomes.add("error" if "another program" in str(error) else str(error))
            continue
        squares = np.isclose(y.item(), 5.25)
        outcomes.add("squares" if squares else "cubes")
        close(y, 5.25 if squares else np.sum(np.array(X) ** 3))
        close(x.grad, 2 * np.array(X) if squares else 3 * np.array(X) ** 2)
    assert outcomes <= {"error", "squares", "cubes"}


# --------------------------------------------------------------------------- what cannot be as without jit


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda x, w: x.register_hook(lambda g: g * 2.0), "argument"),
        (lambda x, w: w.register_hook(lambda g: g * 2.0), "captured"),
        (lambda x, w: w.register_post_accumulate_grad_hook(lambda t: None), "captured"),
        (lambda x, w: x.requires_grad_(False), "changes an argument"),
        (lambda x, w: w.requires_grad_(False), "while a function is traced"),
        (lambda x, w: jg.set_grad_enabled(False), "leaves another grad mode"),
    ],
)
def test_what_reaches_beyond_the_call_raises(act: Callable[[Any, Any], Any], message: str) -> None:
    w = jg.tensor(W, requires_grad=True)

    def f(x: Any) -> Any:
        act(x, w)
        return (x * w).sum()

    x = jg.tensor(X, requires_grad=True)
    for call in (jg.jit(f), jg.jit(jg.jit(f))):
        with pytest.raises(GraphError, match=message):
            call(x)
    assert jg.is_grad_enabled()
    assert w.requires_grad
    (x * w).sum().backward()
    close(x.grad, W)
    close(w.grad, X)


def test_requires_grad_of_an_untracked_argument_raises() -> None:
    w = jg.tensor(W, requires_grad=True)

    def f(x: Any) -> Any:
        return (x.requires_grad_() * w).sum()

    for call in (jg.jit(f), jg.jit(jg.jit(f))):
        with pytest.raises(GraphError, match="does not reach the caller"):
            call(jg.tensor(X))
    close(jg.jit(f)(jg.tensor(X, requires_grad=True)), np.dot(X, W))


def test_enable_grad_under_no_grad_raises() -> None:
    """Without jit its results require grad in spite of the caller's no_grad."""

    def f(x: Any) -> Any:
        with jg.enable_grad():
            return (x * x).sum()

    call = jg.jit(f)
    x = jg.tensor(X, requires_grad=True)
    for _ in range(2):
        with jg.no_grad(), pytest.raises(GraphError, match="enable_grad"):
            call(x)
        close(call(jg.tensor(X)), 5.25)
        x.grad = None
        call(x).backward()
        close(x.grad, 2 * np.array(X))


def test_numbers_of_a_captured_tensor_raise_where_they_are_recorded() -> None:
    w = jg.tensor(W, requires_grad=True)
    call = jg.jit(lambda x: (x * w.numpy()).sum())
    for x in (jg.tensor(X), jg.tensor(X, requires_grad=True)):
        with pytest.raises(ConversionError, match="lose its gradient"):
            call(x)
        with jg.no_grad():
            close(call(x), np.dot(X, W))


def test_gradients_of_a_traced_value_are_not_known() -> None:
    x = jg.tensor(X, requires_grad=True)
    (x * x).sum().backward()
    call = jg.jit(lambda x: (x * x.grad).sum() if x.grad is not None else x.sum())
    with pytest.raises(JitgradError, match="grad"):
        call(x)


def test_a_function_that_asks_is_traced_once_for_each_answer() -> None:
    traces = []

    def f(x: Tensor) -> Any:
        traces.append(x.requires_grad)
        return (x * x).sum()

    call = jg.jit(f)
    x = jg.tensor(X, requires_grad=True)
    for _ in range(3):
        call(x).backward()
        call(np.array(X))
        with jg.no_grad():
            call(x)
    count = len(traces)
    for _ in range(3):
        call(x).backward()
        call(np.array(X))
        with jg.no_grad():
            call(x)
    assert len(traces) == count
