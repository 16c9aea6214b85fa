"""Jitted functions that capture tracked tensors: one node, with the captured tensors as further inputs of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from enum import Enum
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import kernels

import jitgrad as jg
from jitgrad import jit
from jitgrad.core.aval import make_aval
from jitgrad.eager import plans
from jitgrad.errors import ConversionError, GraphError, InPlaceError, RecompileWarning
from jitgrad.ops.elementwise import negative
from jitgrad.tensor import Tensor
from jitgrad.transforms.jit import JitFunction
from jitgrad.transforms.short_calls import ShortCalls


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    with kernels("python"):
        yield


X = np.array([0.5, -1.0, 2.0])


def leaf(*values: float) -> Tensor:
    return jg.tensor(list(values), requires_grad=True)


def is_node(value: Tensor) -> bool:
    return value.grad_fn is not None and value.grad_fn.name.startswith("jit(")


def close(found: Any, expected: Any) -> None:
    assert found is not None
    np.testing.assert_allclose(np.asarray(found.detach().numpy()), expected, rtol=1e-12, atol=1e-14)


class Counted:
    """A function that counts how often Python runs it."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


def test_one_node_for_frozen_and_trainable_tensors() -> None:
    w, b, frozen = leaf(1.0, 2.0, 3.0), leaf(0.1, 0.2, 0.3), jg.tensor([2.0, 4.0, 8.0])
    counted = Counted(lambda x: (jg.sin(x * w) * frozen + b * b).sum())
    function = jit(counted)
    for _ in range(3):
        y = function(X)
        assert is_node(y)
        assert len(y.grad_fn.next_functions) == 2
        w.grad = b.grad = None
        y.backward()
        close(w.grad, np.cos(X * [1, 2, 3]) * X * [2, 4, 8])
        close(b.grad, [0.2, 0.4, 0.6])
    assert counted.calls <= 3  # the call, its check, and the gradient: never again
    assert frozen.grad is None


def test_module_attributes_and_an_optimizer_that_writes_in_place() -> None:
    model = SimpleNamespace(
        layers=[SimpleNamespace(w=leaf(1.0, -1.0, 0.5)), SimpleNamespace(w=jg.tensor(2.0, requires_grad=True))]
    )

    def loss(x: Any, y: Any) -> Any:
        return ((x * model.layers[0].w * model.layers[1].w - y) ** 2).sum()

    function = jit(loss)
    w, s = np.array([1.0, -1.0, 0.5]), 2.0
    target = np.array([1.0, 2.0, 3.0])
    for _ in range(5):
        value = function(X, target)
        residual = X * w * s - target
        close(value, (residual**2).sum())
        value.backward()
        gw, gs = 2 * residual * X * s, (2 * residual * X * w).sum()
        with jg.no_grad():
            for layer, g in zip(model.layers, (gw, gs), strict=True):
                close(layer.w.grad, g)
                layer.w -= 0.1 * layer.w.grad
                layer.w.grad = None
        w, s = w - 0.1 * gw, s - 0.1 * gs


def test_requires_grad_turned_off_and_on_between_calls() -> None:
    w, v = leaf(1.0, 2.0, 3.0), leaf(2.0, 2.0, 2.0)
    function = jit(lambda x: (x * w * v).sum())
    function(X).backward()
    close(w.grad, 2 * X)
    w.requires_grad_(False)
    v.grad = None
    y = function(X)
    assert [e for e, _ in y.grad_fn.next_functions] == [v._edge]
    y.backward()
    close(v.grad, X * [1, 2, 3])
    v.requires_grad_(False)
    assert isinstance(function(X), float)
    w.requires_grad_()
    w.grad = None
    function(X).backward()
    close(w.grad, 2 * X)


def test_requires_grad_turned_off_between_forward_and_backward() -> None:
    w, x = leaf(1.0, 2.0, 3.0), leaf(*X)
    y = jit(lambda x: (x * w * w).sum())(x)
    w.requires_grad_(False)
    y.backward()
    assert w.grad is None
    close(x.grad, [1.0, 4.0, 9.0])


def test_under_no_grad_and_changes_of_grad_mode() -> None:
    w = leaf(1.0, 2.0, 3.0)
    function = jit(lambda x: (x * w).sum())
    with jg.no_grad():
        assert type(function(X)) is float
        with jg.enable_grad():
            z = function(X)
    z.backward()
    close(w.grad, X)
    close(function(X), X @ [1, 2, 3])

    @jit
    def partly(x: Any) -> Any:
        with jg.no_grad():
            constant = w * x
        return (constant * w).sum()

    w.grad = None
    partly(X).backward()
    close(w.grad, X * [1, 2, 3])


def test_detach_of_a_captured_tensor() -> None:
    w = leaf(1.0, 2.0, 3.0)
    function = jit(lambda x: (x * w * jg.exp(w.detach())).sum())
    for scale in (1.0, 2.0):
        w.grad = None
        function(X).backward()
        close(w.grad, X * np.exp(scale * np.array([1, 2, 3])))
        with jg.no_grad():
            w.mul_(2.0)


def test_derivatives_of_higher_order() -> None:
    w, frozen = leaf(0.3, 0.6, 0.9), jg.tensor([1.0, 2.0, 3.0])
    function = jit(lambda x: (frozen * x * w**4).sum())
    value = function(X)
    expected = np.array([1, 2, 3]) * X
    for factor, power in ((4, 3), (12, 2), (24, 1)):
        (gradient,) = jg.autograd.grad(value, w, create_graph=True)
        close(gradient, expected * factor * np.array([0.3, 0.6, 0.9]) ** power)
        assert is_node(gradient)
        value = gradient.sum()


def test_mixed_second_derivatives_of_argument_and_captured() -> None:
    w, x = leaf(0.3, 0.6, 0.9), leaf(*X)
    value = jit(lambda x: jg.sin(x * w).sum())(x)
    gx, gw = jg.autograd.grad(value, (x, w), create_graph=True)
    a, b = X, np.array([0.3, 0.6, 0.9])
    close(gx, b * np.cos(a * b))
    close(gw, a * np.cos(a * b))
    mixed, second = jg.autograd.grad(gx.sum(), (w, x))
    close(mixed, np.cos(a * b) - a * b * np.sin(a * b))
    close(second, -(b**2) * np.sin(a * b))


def test_captured_results_of_operations() -> None:
    a = leaf(1.0, 2.0, 3.0)
    h = a * a
    part = h[1:]
    y = jit(lambda x: (x * h).sum() + (part * a[:2]).sum())(X)
    y.backward()
    close(a.grad, 2 * X * [1, 2, 3] + [4.0, 2 * 2 * 1 + 9.0, 2 * 3 * 2])


def test_the_same_tensor_as_argument_and_captured_and_as_a_result() -> None:
    w = leaf(1.0, 2.0, 3.0)
    function = jit(lambda x: (x * x * w).sum())
    function(w).backward()
    close(w.grad, 3 * np.array([1.0, 4.0, 9.0]))
    w.grad = None
    first, second = jit(lambda x: (x * w, w))(X)
    assert not np.shares_memory(second.detach().numpy(), w.detach().numpy())
    (first.sum() + (second * second).sum()).backward()
    close(w.grad, X + 2 * np.array([1, 2, 3]))


def test_nested_jitted_functions_that_capture_the_same_tensor() -> None:
    w = leaf(1.0, 2.0, 3.0)
    inner = jit(lambda x: jg.sin(x * w))
    outer = jit(lambda x: (inner(x) * w).sum())
    y = outer(X)
    assert is_node(y)
    y.backward()
    v = np.array([1, 2, 3])
    close(w.grad, np.cos(X * v) * X * v + np.sin(X * v))
    w.grad = None
    (inner(inner(X)) * 1.0).sum().backward()
    close(w.grad, np.cos(np.sin(X * v) * v) * (np.cos(X * v) * X * v + np.sin(X * v)))


def test_under_transforms() -> None:
    w = leaf(0.3, 0.6, 0.9)
    v = np.array([0.3, 0.6, 0.9])
    function = jit(lambda x: jg.sin(x * w).sum())
    gradient = jg.grad(function)(X)
    close(gradient, v * np.cos(X * v))
    gradient.sum().backward()
    close(w.grad, np.cos(X * v) - X * v * np.sin(X * v))
    w.grad = None
    value, pull = jg.vjp(function, X)
    close(value, np.sin(X * v).sum())
    (cotangent,) = pull(2.0)
    close(cotangent, 2 * v * np.cos(X * v))
    cotangent.sum().backward()
    close(w.grad, 2 * (np.cos(X * v) - X * v * np.sin(X * v)))
    w.grad = None
    direction = np.array([1.0, -2.0, 0.5])
    value, tangent = jg.jvp(function, (X,), (direction,))
    close(tangent, (v * np.cos(X * v)) @ direction)
    tangent.backward()
    close(w.grad, direction * (np.cos(X * v) - X * v * np.sin(X * v)))
    w.grad = None
    both = jit(jg.value_and_grad(lambda x: jg.sin(x * w).sum()))
    value, gradient = both(X)
    assert is_node(gradient)
    (value + gradient.sum()).backward()
    close(w.grad, X * np.cos(X * v) + np.cos(X * v) - X * v * np.sin(X * v))
    w.grad = None
    rows = np.stack([X, 2 * X])
    jg.vmap(function)(rows).sum().backward()
    close(w.grad, (rows * np.cos(rows * v)).sum(0))
    w.grad = None
    jit(jg.vmap(lambda x: jg.sin(x * w).sum()))(rows).sum().backward()
    close(w.grad, (rows * np.cos(rows * v)).sum(0))
    w.grad = None
    jit(jg.checkpoint(lambda x: jg.sin(x * w).sum()))(X).backward()
    close(w.grad, X * np.cos(X * v))


def test_a_write_between_forward_and_backward_is_not_seen_or_raises() -> None:
    w = leaf(1.0, 2.0, 3.0)
    function = jit(lambda x: (x * w * w).sum())
    y = function(X)
    with jg.no_grad():
        w.mul_(10.0)  # nobody else sees the memory: the old values are kept
    y.backward()
    close(w.grad, 2 * X * [1, 2, 3])
    seen = w.detach()
    y = function(X)
    seen.mul_(10.0)
    with pytest.raises(InPlaceError, match="overwritten"):
        y.backward()


def test_a_write_into_a_captured_result_of_operations() -> None:
    a = leaf(1.0, 2.0, 3.0)
    h = a * 1.0
    function = jit(lambda x: (x * h * h).sum())
    y = function(X)
    h[0] = 7.0
    y.backward(retain_graph=True)
    close(a.grad, 2 * X * [1, 2, 3])
    a.grad = None
    function(X).backward()
    close(a.grad, 2 * X * [0, 2, 3])


def test_an_array_that_python_read_and_that_changed_before_backward_raises() -> None:
    w, mask = leaf(1.0, 2.0, 3.0), np.array([True, False, True])
    function = jit(lambda x: (x * w)[mask].sum())
    y = function(X)
    mask[1] = True
    with pytest.raises(InPlaceError, match="read its values"):
        y.backward()
    function(X).backward()
    close(w.grad, X)


def test_a_gradient_inside_reads_captured_tensors_at_each_call() -> None:
    w = jg.tensor([1.0, 2.0, 3.0])
    function = jit(jg.grad(lambda x: (x * x * w).sum()))
    np.testing.assert_array_equal(function(X), 2 * X * [1, 2, 3])
    w.mul_(10.0)
    np.testing.assert_array_equal(function(X), 20 * X * [1, 2, 3])
    w.requires_grad_()
    gradient = function(X)
    close(gradient, 20 * X * [1, 2, 3])
    gradient.sum().backward()
    close(w.grad, 2 * X)
    with jg.no_grad():
        w.mul_(0.1)
        np.testing.assert_allclose(function(X), 2 * X * [1, 2, 3], rtol=1e-13)


def test_backward_inside_raises() -> None:
    w = leaf(1.0, 2.0, 3.0)

    def inside(x: Any) -> Any:
        y = (x * w).sum()
        y.backward()
        return y

    for _ in range(2):
        with pytest.raises(GraphError, match="backward"):
            jit(inside)(X)
    assert w.grad is None


# ----------------------------------------------------------------------------------------- other tensors in their place


def test_another_tensor_bound_to_a_closure_variable() -> None:
    w = leaf(1.0, 2.0, 3.0)
    counted = Counted(lambda x: (x * w * w).sum())
    function = jit(counted)
    close(function(X), X @ [1, 4, 9])
    first = w
    function(X).backward()
    calls = counted.calls
    w = leaf(2.0, 2.0, 2.0)
    function(X).backward()
    assert counted.calls == calls  # a tensor like the other is read by the same program
    close(w.grad, 4 * X)
    close(first.grad, 2 * X * [1, 2, 3])
    w = jg.tensor([1.0, 1.0, 1.0])
    assert function(X) == X.sum()
    w = jg.tensor([[1.0], [2.0]], requires_grad=True)  # of another shape
    function(X).backward()
    close(w.grad, [[2 * X.sum()], [4 * X.sum()]])


def test_other_tensors_while_earlier_calls_wait_for_backward() -> None:
    """An inner step of gradient descent, differentiated: the variable is bound to each of two tensors in turn."""
    w0, rate = leaf(0.3, 0.6, 0.9), 0.1
    w = w0
    function = jit(lambda x: (x * w**3).sum())
    (gradient,) = jg.autograd.grad(function(X), w, create_graph=True)
    w = w0 - rate * gradient
    outer = function(X)
    outer.backward()
    a = np.array([0.3, 0.6, 0.9])
    b = a - rate * 3 * X * a**2
    close(w0.grad, 3 * X * b**2 * (1 - rate * 6 * X * a))
    w0.grad = None
    w = w0
    first = function(X)
    w = jg.tensor([1.0, 1.0, 1.0], requires_grad=True)
    (first + function(X)).backward()
    close(w0.grad, 3 * X * a**2)
    close(w.grad, 3 * X)


def test_tensors_that_trade_places() -> None:
    a, b = leaf(1.0, 2.0, 3.0), leaf(4.0, 5.0, 6.0)
    space = SimpleNamespace(first=a, second=b)
    function = jit(lambda x: (x * space.first * space.first * space.second).sum())
    y = function(X)
    space.first, space.second = b, a
    z = function(X)
    close(z, (X * np.array([16, 25, 36]) * [1, 2, 3]).sum())
    (y + z).backward()
    u, v = np.array([1, 2, 3]), np.array([4, 5, 6])
    close(a.grad, X * (2 * u * v + v * v))
    close(b.grad, X * (u * u + 2 * u * v))
    space.second = b  # one tensor at both
    a.grad = b.grad = None
    function(X).backward()
    close(b.grad, 3 * X * v * v)
    space.second = a
    function(X).backward()
    close(a.grad, X * v * v)


def test_places_that_other_tensors_are_found_at() -> None:
    """Globals, attributes of classes and slots, containers, defaults, partial functions and bound methods."""
    import functools

    class Slotted:
        __slots__ = ("w",)

        def __init__(self, w: Tensor) -> None:
            self.w = w

    class Model:
        shared: Any = leaf(1.0, 2.0, 3.0)

        def __init__(self) -> None:
            self.inner = Slotted(leaf(1.0, 2.0, 3.0))
            self.table = {"w": (leaf(1.0, 2.0, 3.0),)}

        def __call__(self, x: Any) -> Any:
            return (x * self.shared * self.inner.w * self.table["w"][0]).sum()

        def method(self, x: Any) -> Any:
            return self(x)

    model = Model()
    holder = [leaf(1.0, 2.0, 3.0)]
    functions = [
        jit(model), jit(model.method), jit(lambda x: 1.0 * model(x)), jit(functools.partial(lambda m, x: m(x), model)),
        jit(lambda x, m=model: m.method(x)),
    ]  # fmt: skip
    cube = np.array([1.0, 8.0, 27.0])
    for f in functions:
        close(f(X), X @ cube)
    model.inner.w = leaf(0.0, 1.0, 0.0)
    for f in functions:
        close(f(X), X[1] * 4)
    model.table = {"w": (leaf(1.0, 1.0, 1.0),)}
    for f in functions:
        close(f(X), X[1] * 2)
    Model.shared = leaf(5.0, 5.0, 5.0)
    for f in functions:
        close(f(X), X[1] * 5)
    listed = jit(jg.grad(lambda x: (x * x * holder[0]).sum()))
    close(listed(X), 2 * X * [1, 2, 3])
    holder[0] = leaf(1.0, 1.0, 1.0)
    close(listed(X), 2 * X)


def test_an_untracked_tensor_is_followed_on_the_short_way_too() -> None:
    with kernels("compiled"):
        w = jg.tensor([1.0, 2.0, 3.0])
        function = jit(lambda x: x * w)
        for _ in range(3):
            np.testing.assert_array_equal(function(X), X * [1, 2, 3])
        w = jg.tensor([2.0, 2.0, 2.0])
        for _ in range(3):
            np.testing.assert_array_equal(function(X), 2 * X)
        w = leaf(3.0, 3.0, 3.0)
        y = function(X)
        y.sum().backward()
        close(w.grad, X)


# ----------------------------------------------------------------------------------------- other arrays in their place

GLOBAL = np.array([1.0, 2.0, 3.0])


def test_another_array_bound_to_a_global_name(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(lambda x: x @ GLOBAL + GLOBAL.sum() * 0.0 + np.dot(x, GLOBAL))
    function = jit(counted)
    assert function(X) == 2 * X @ GLOBAL
    monkeypatch.setattr(sys.modules[__name__], "GLOBAL", 2 * GLOBAL)
    assert function(X) == 2 * X @ GLOBAL
    GLOBAL[0] = 7.0
    assert function(X) == 2 * X @ GLOBAL
    assert counted.calls == 1  # an array like the other is read by the same program


@pytest.mark.parametrize("mode", ["python", "compiled"])
def test_another_array_bound_to_a_closure_variable(mode: str) -> None:
    w: Any = np.array([1.0, 2.0, 3.0])
    counted = Counted(lambda x: x * w)
    function = jit(counted)
    with kernels(mode):
        for factor in (1.0, 2.0, 3.0):
            w = factor * w
            for _ in range(20):  # the short way, too
                np.testing.assert_array_equal(function(X), X * w)
        assert counted.calls == 1
        w = np.array([[1.0], [2.0]])  # of another shape
        np.testing.assert_array_equal(function(X), X * w)
        w = np.array([1, 2, 3])  # of another dtype
        np.testing.assert_array_equal(function(X), X * w)
        w = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])[::2]  # with other strides
        np.testing.assert_array_equal(function(X), X * w)
        w = np.array([1.0, 2.0, 3.0], ">f8")  # of which a copy is read
        np.testing.assert_array_equal(function(X), X * w)
        w[1] = 5.0
        np.testing.assert_array_equal(function(X), X * w)
        w = jg.tensor([3.0, 2.0, 1.0])
        np.testing.assert_array_equal(function(X), X * [3, 2, 1])
        w = leaf(3.0, 2.0, 1.0)
        function(X).sum().backward()
        close(w.grad, X)
        w = np.array([0.0, 1.0, 0.0])
        np.testing.assert_array_equal(function(X), X * w)
        w = 2.5
        np.testing.assert_array_equal(function(X), X * w)


@pytest.mark.parametrize("mode", ["python", "compiled"])
def test_places_that_other_arrays_are_found_at(mode: str) -> None:
    """Attributes of objects and classes, slots, containers, defaults, partial functions and bound methods."""
    import functools

    class Slotted:
        __slots__ = ("w",)

        def __init__(self, w: Any) -> None:
            self.w = w

    class Model:
        shared: Any = np.array([1.0, 2.0, 3.0])

        def __init__(self) -> None:
            self.inner = Slotted(np.array([1.0, 2.0, 3.0]))
            self.table: Any = {"w": (np.array([1.0, 2.0, 3.0]),), "class": [np.ones(3)]}
            setattr(self, "not a name", np.ones(3))

        def __call__(self, x: Any) -> Any:
            product = x * self.shared * self.inner.w * self.table["w"][0]
            return (product * self.table["class"][-1] * getattr(self, "not a name")).sum()

        def method(self, x: Any) -> Any:
            return self(x)

    model = Model()
    functions = [
        jit(model), jit(model.method), jit(lambda x: 1.0 * model(x)), jit(functools.partial(lambda m, x: m(x), model)),
        jit(lambda x, m=model: m.method(x)),
    ]  # fmt: skip

    def check(weights: Any) -> None:
        for f in functions:
            for _ in range(2):
                np.testing.assert_allclose(f(X), X @ np.array(weights), rtol=1e-14)

    with kernels(mode):
        check([1, 8, 27])
        model.inner.w = np.array([0.0, 1.0, 0.0])
        check([0, 4, 0])
        model.table["w"] = (np.array([1.0, 1.0, 1.0]),)
        check([0, 2, 0])
        model.table["class"][0] = np.array([1.0, 3.0, 1.0])
        check([0, 6, 0])
        setattr(model, "not a name", np.array([1.0, 0.5, 1.0]))
        check([0, 3, 0])
        Model.shared = np.array([5.0, 5.0, 5.0])
        check([0, 7.5, 0])
        model.shared = np.array([1.0, 1.0, 1.0])  # in front of that of the class
        check([0, 1.5, 0])
        model.table = {"w": [np.array([1.0, 3.0, 1.0])], "class": (np.ones(3),)}
        check([0, 1.5, 0])


def test_arrays_that_trade_places_or_become_one() -> None:
    a, b = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    first, second = a, b
    function = jit(lambda x: x * first * first * second)
    np.testing.assert_allclose(function(X), X * a * a * b, rtol=1e-14)
    first, second = b, a
    np.testing.assert_allclose(function(X), X * b * b * a, rtol=1e-14)
    second = first
    np.testing.assert_allclose(function(X), X * b * b * b, rtol=1e-14)
    first = a
    np.testing.assert_allclose(function(X), X * a * a * b, rtol=1e-14)
    second = a
    both = jit(lambda x: x * first - second)
    np.testing.assert_allclose(both(X), X * a - a, rtol=1e-14)
    second = b
    np.testing.assert_allclose(both(X), X * a - b, rtol=1e-14)
    first = second = b * a
    np.testing.assert_allclose(both(X), X * first - first, rtol=1e-14)


def test_views_of_an_array_that_is_bound_anew() -> None:
    w = np.arange(6.0).reshape(2, 3)
    row = w[1]
    by_view = jit(lambda x: x @ w.T)
    by_row = jit(lambda x: x * w[0] + w[1])
    by_name = jit(lambda x: x * row)
    for _ in range(2):
        np.testing.assert_allclose(by_view(X), X @ w.T, rtol=1e-14)
        np.testing.assert_allclose(by_row(X), X * w[0] + w[1], rtol=1e-14)
        np.testing.assert_allclose(by_name(X), X * row, rtol=1e-14)
        w[:] += 1.0
        np.testing.assert_allclose(by_view(X), X @ w.T, rtol=1e-14)
        np.testing.assert_allclose(by_row(X), X * w[0] + w[1], rtol=1e-14)
        w = 3.0 * w  # and row stays that of the other
    row = row + 1.0
    np.testing.assert_allclose(by_name(X), X * row, rtol=1e-14)


def test_arrays_that_python_reads_and_that_are_bound_anew() -> None:
    places, mask, tensor = np.array([0, 1]), np.array([True, False, True]), jg.tensor([0.0, 1.0, 2.0])
    functions = [
        jit(lambda x: x[places]),
        jit(lambda x: x[mask]),
        jit(lambda x: x * 2.0 if tensor.tolist()[0] > 0.5 else x * 3.0),
        jit(lambda x: jg.take(x, places) * x[0]),
    ]

    def check() -> None:
        factor = 2.0 if tensor[0].item() > 0.5 else 3.0
        for _ in range(2):
            expected = (X[places], X[mask], X * factor, X[places] * X[0])
            for f, values in zip(functions, expected, strict=True):
                np.testing.assert_array_equal(f(X), values)

    check()
    places, mask, tensor = np.array([2, 1]), np.array([False, False, True]), jg.tensor([1.0, 1.0, 2.0])
    check()
    places[0], mask[0], tensor[0] = 1, True, 0.0
    check()


def test_gradients_with_arrays_that_are_bound_anew() -> None:
    w = np.array([1.0, 2.0, 3.0])
    gradient = jit(jg.grad(lambda x: np.sum(x * x * w)))
    inner = jg.grad(jit(lambda x: np.sum(x * x * w)))
    function = jit(lambda x: (x * x * w).sum())
    for _ in range(3):
        np.testing.assert_allclose(gradient(X), 2 * X * w, rtol=1e-14)
        np.testing.assert_allclose(inner(X), 2 * X * w, rtol=1e-14)
        for _ in range(2):
            x = leaf(*X)
            function(x).backward()
            close(x.grad, 2 * X * w)
        w = w + 1.0


def test_an_array_bound_anew_between_forward_and_backward() -> None:
    """The gradient is that of the call; where it is not known yet, backward says so."""
    w = np.array([1.0, 2.0, 3.0])
    function = jit(lambda x: (x * x * w).sum())
    x = leaf(*X)
    y = function(x)
    before, w = w, 2.0 * w
    with pytest.raises(GraphError, match="others are there now"):
        y.backward()
    w = before
    function(x).backward()
    close(x.grad, 2 * X * w)
    x.grad = None
    y = function(x)
    w = 2.0 * w
    y.backward()
    close(x.grad, 2 * X * before)
    x.grad = None
    function(x).backward()
    close(x.grad, 4 * X * before)


def test_an_array_with_a_name_and_a_tensor_on_its_memory() -> None:
    w = np.array([1.0, 2.0, 3.0])
    t = jg.from_numpy(w)
    function = jit(lambda x: x * t + w)
    np.testing.assert_array_equal(function(X), X * [1, 2, 3] + [1, 2, 3])
    w = np.ones(3)
    np.testing.assert_array_equal(function(X), X * [1, 2, 3] + 1)
    t = jg.from_numpy(w)
    np.testing.assert_array_equal(function(X), X + 1)


@pytest.mark.parametrize("make", [np.array, jg.tensor])
def test_what_a_vmap_in_a_jitted_function_captures(make: Any) -> None:
    """It is read at each call, whether it was written or something else stands there."""
    w = make([1.0, 2.0, 3.0])
    functions = [
        jit(jg.vmap(lambda x: x * w)),
        jit(lambda rows: 1.0 * jg.vmap(lambda x: x * w)(rows)),
        jit(jg.vmap(jg.grad(lambda x: np.sum(x * x * w) / 2))),
        jit(jg.jacfwd(lambda x: x * w)),
        jit(jg.jacrev(lambda x: x * w)),
        jit(jg.hessian(lambda x: np.sum(x * x * w) / 2)),
    ]
    rows = np.stack([X, X + 1])

    def check(weights: Any) -> None:
        for f in functions[:3]:
            np.testing.assert_allclose(f(rows), rows * weights, rtol=1e-14)
        for f in functions[3:]:
            np.testing.assert_allclose(f(X), np.diag(weights), rtol=1e-14)

    check([1.0, 2.0, 3.0])
    w *= 2.0
    check([2.0, 4.0, 6.0])
    w = make([1.0, 0.0, 5.0])
    check([1.0, 0.0, 5.0])
    w[0] = 4.0
    check([4.0, 0.0, 5.0])


# ------------------------------------------------------------------------------------------------------- the neighbours


def test_tensors_made_anew_are_recorded_operation_by_operation() -> None:
    a = leaf(1.0, 2.0, 3.0)
    y = (a * a).sum()
    function = jit(lambda x: (jg.autograd.grad(y, a, create_graph=True, retain_graph=True)[0] * x).sum())
    function(X).backward()
    close(a.grad, 2 * X)


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize(
    "read",
    [
        lambda w: w.detach().numpy() ** 2,
        lambda w: w.detach().detach().numpy()[::-1],
        lambda w: np.array(w.detach().tolist()),
        lambda w: w.numpy(force=True) + 1.0,
    ],
)
def test_what_python_read_of_a_captured_tensor_is_read_again(read: Callable[[Any], Any], tracked: bool) -> None:
    w = jg.tensor([1.0, 2.0, 3.0], requires_grad=tracked)
    function = jit(lambda x: (x * read(w)).sum())
    with jg.no_grad():
        for _ in range(3):
            np.testing.assert_allclose(function(X), np.sum(X * read(w)), rtol=1e-14)
            w[1] = w[1] * 2.0 + 1.0


def test_a_captured_tensor_that_leaves_the_graph_raises() -> None:
    w, v = leaf(1.0, 2.0, 3.0), leaf(1.0, 1.0, 1.0)
    with pytest.raises(ConversionError, match="detach"):  # as without jit
        jit(lambda x: (x * v * w.numpy()).sum())(X)
    assert v.grad is None


def test_other_threads_use_a_captured_tensor_while_its_gradient_is_traced() -> None:
    w = leaf(1.0, 2.0, 3.0)
    entered, go = threading.Event(), threading.Event()
    mine = threading.get_ident()
    found: list[Any] = []
    recorded: list[int] = []

    def f(x: Any) -> Any:
        y = (x * w).sum()
        if jg.is_grad_enabled() and threading.get_ident() == mine:
            recorded.append(1)
            if len(recorded) == 2:  # the trace of the gradient, after that of the call
                entered.set()
                go.wait(30)
        return y * 2.0

    def other() -> None:
        entered.wait(30)
        try:
            z = (w * w).sum()
            z.backward()
            found.append((z.item(), w.grad.tolist()))  # type: ignore[union-attr]
        finally:
            go.set()

    thread = threading.Thread(target=other)
    thread.start()
    y = jit(f)(X)
    y.backward()
    thread.join()
    assert found == [(14.0, [2.0, 4.0, 6.0])]
    close(w.grad, 2 * X + [2, 4, 6])


def test_the_kernel_mode_changes_after_the_short_way_was_found() -> None:
    calls: list[str] = []
    with kernels("compiled"):
        function = JitFunction(lambda x: x * 2.0, (), ())
        function(X)
        assert len(function._short._known) == 1
        for key in function._short._known:
            short = function._short._known[key]
            short.function = lambda x, fast=short.function: (calls.append("fast"), fast(x))[1]
        function(X)
        assert calls == ["fast"]
        with kernels("python"):
            np.testing.assert_array_equal(function(X), 2 * X)
            assert calls == ["fast"]
        function(X)
        assert calls == ["fast", "fast"]


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), (3, 3)])
def test_masks_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    mask = np.ones(shape, bool)

    def write(x: Any, m: Any) -> Any:
        x[m] = 1.0
        return x

    def write_beside(x: Any, m: Any) -> Any:
        y = jg.zeros((2, 3)) + x
        y[:, m] = 1.0
        return y

    for function in (lambda x, m: x[m], lambda x, m: x[None, m], write, write_beside):
        with pytest.raises(IndexError) as eager:
            function(jg.tensor(X), mask)
        with pytest.raises(IndexError) as traced:
            jit(function)(X, mask)
        assert str(traced.value) == str(eager.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_captured_dtypes_and_layouts(dtype: Any) -> None:
    base = np.arange(12.0, dtype=dtype).reshape(3, 4)
    w = jg.from_numpy(base.T)
    w.requires_grad_()
    x = np.ones((4, 3), dtype)
    jit(lambda x: (x * w * w).sum())(x).backward()
    assert w.grad is not None
    assert w.grad.dtype == dtype
    close(w.grad, 2 * base.T)


def test_finite_differences_of_a_small_network() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=s) for s in ((3, 4), (4,), (4, 2), (2,))]
    net = [jg.tensor(p, requires_grad=True) for p in parts]
    net[1].requires_grad_(False)
    x, t = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))

    def numpy_loss(p: list[np.ndarray[Any, Any]]) -> float:
        return float((((np.tanh(x @ p[0] + p[1]) @ p[2] + p[3]) - t) ** 2).sum())

    loss = jit(lambda x, t: (((np.tanh(x @ net[0] + net[1]) @ net[2] + net[3]) - t) ** 2).sum())
    loss(x, t).backward()
    assert net[1].grad is None
    for k in (0, 2, 3):
        expected = np.zeros_like(parts[k])
        for at in np.ndindex(*parts[k].shape):
            moved = [[p.copy() for p in parts] for _ in range(2)]
            moved[0][k][at] += 1e-6
            moved[1][k][at] -= 1e-6
            expected[at] = (numpy_loss(moved[0]) - numpy_loss(moved[1])) / 2e-6
        assert net[k].grad is not None
        np.testing.assert_allclose(net[k].grad.numpy(), expected, rtol=1e-6, atol=1e-7)


class _Base:
    weights: Any = np.ones(3)

    def scaled(self, x: Any) -> Any:
        return x * _Base.weights

    @staticmethod
    def shifted(x: Any) -> Any:
        return x * _Base.weights


class _Derived(_Base):
    pass


class _Called:
    def __call__(self, x: Any) -> Any:
        return x * _Base.weights


class _Applied:
    def __matmul__(self, x: Any) -> Any:
        return x * _Base.weights


class _Entered:
    def __enter__(self) -> Any:
        return _Base.weights

    def __exit__(self, *error: object) -> None:
        pass


def _within(x: Any) -> Any:
    with _Entered() as weights:
        return x * weights


_applied, _derived = _Applied(), _Derived()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: _applied @ x,
        lambda x: _Applied() @ x,
        lambda x: _Called()(x) * 1.0,
        lambda x: _derived.scaled(x) * 1.0,
        lambda x: _derived.shifted(x) * 1.0,
        lambda x: _Derived().scaled(x),
        lambda x: _Derived.shifted(x) * 1.0,
        _within,
    ],
)
def test_arrays_that_methods_read_are_followed(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jit(function)
    with kernels("python"):
        for factor in (1.0, 2.0, 3.0):
            monkeypatch.setattr(_Base, "weights", np.full(3, factor))
            np.testing.assert_array_equal(jitted(np.ones(3)), np.full(3, factor))


def test_a_captured_array_of_counts_is_read_again() -> None:
    counts = np.array([1, 2, 1])
    function = jg.jit(lambda x: np.repeat(x, counts))
    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(function(x), np.repeat(x, counts))
    counts[:] = [2, 1, 1]
    np.testing.assert_array_equal(function(x), np.repeat(x, counts))
    counts = np.array([1, 1, 3])
    np.testing.assert_array_equal(function(x), np.repeat(x, counts))


class _Model:
    def __init__(self) -> None:
        self.weights = jg.tensor([1.0, 2.0], requires_grad=True)
        self.traces = 0

    @functools.partial(jit, static_argnums=0)
    def loss(self, x: Any) -> Any:
        return jg.sum((self.weights * x) ** 2)

    @functools.partial(jit, static_argnames="self")
    def scaled(self, x: Any) -> Any:
        self.traces += 1
        return self.weights * x


def test_attributes_of_static_arguments_are_followed() -> None:
    model, x = _Model(), jg.tensor([1.0, 1.0])
    assert model.loss(x).item() == 5.0
    model.weights = jg.tensor([10.0, 20.0], requires_grad=True)
    loss = model.loss(x)
    assert loss.item() == 500.0
    loss.backward()
    assert model.weights.grad is not None
    np.testing.assert_array_equal(model.weights.grad.numpy(), [20.0, 40.0])


def test_other_jitted_methods_are_no_places_of_a_weight() -> None:
    model, x = _Model(), np.ones(2)
    model.loss(x)
    model.scaled(x)
    traces = model.traces
    for _ in range(4):
        model.loss(x)
        model.scaled(x)
    assert model.traces == traces


def test_an_empty_cell_is_none() -> None:
    weights = np.array([1.0, 2.0])

    def made(define: bool) -> Callable[..., Any]:
        def function(x: Any) -> Any:
            return later if x.ndim > 5 else x * weights

        if define:
            later = 1.0
        return function

    np.testing.assert_array_equal(jit(made(False))(np.ones(2)), weights)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.resize(2, refcheck=False),
        lambda a: setattr(a, "shape", (2, 3)),
        lambda a: setattr(a, "dtype", np.int64),
    ],
)
@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")
def test_a_captured_array_that_becomes_another_kind_raises(change: Callable[[Any], None]) -> None:
    weights = np.ones(6)
    function = jit(lambda x: x * weights)
    for _ in range(3):
        function(np.ones(6))
    change(weights)
    with pytest.raises(GraphError, match="in place"):
        function(np.ones(6))


def test_a_rebound_array_is_looked_for_by_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.ones(3)
    function = jit(lambda x: x * weights)
    renewed: list[int] = []
    remember = ShortCalls.remember
    monkeypatch.setattr(ShortCalls, "remember", lambda *args: (renewed.append(1), remember(*args))[1])
    with kernels("compiled"):  # whose guards look at the arguments of frequent calls
        for factor in (1.0, 2.0, 3.0):
            weights = np.full(3, factor)
            for _ in range(100):
                np.testing.assert_array_equal(function(np.ones(3)), weights)
    assert len(renewed) <= 6


def test_a_plan_that_is_kept_while_another_thread_begins_to_trace_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plans.plan_for(negative.primitive, (make_aval((3,), np.float64),), {})
    answers = iter([False, True])  # the trace begins, and forgets plans, between the two questions
    monkeypatch.setattr(plans, "is_tracing", lambda: next(answers))
    table: dict[Any, Any] = {}
    plans.keep_plan(table, "key", plan)
    assert not table


# ------------------------------------------------------------------------- whatever the code names, and what is not run


def check_changes(function: Callable[[Any], Any], *changes: Callable[[], Any]) -> None:
    """After each change the jitted function gives what Python and NumPy give, on the short way as well."""
    jitted = jit(function)
    for change in (lambda: None, *changes):
        change()
        for _ in range(3):
            np.testing.assert_allclose(jitted(X), function(X), rtol=1e-14)


def of(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, float)


class Holder:
    """Attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.fixture(params=["python", "compiled"])
def either_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with kernels(request.param):
        yield


@pytest.mark.usefixtures("either_mode")
def test_objects_that_classes_hold() -> None:
    class Net:
        layer = Holder(w=of(1, 2, 3), scale=2.0)

        def __call__(self, x: Any) -> Any:
            return x * self.layer.w * self.layer.scale

    net = Net()
    check_changes(
        net,
        lambda: setattr(Net.layer, "w", of(3, 2, 1)),
        lambda: setattr(net.layer, "scale", 3.0),
        lambda: setattr(net, "layer", Holder(w=of(5, 5, 5), scale=3.0)),
        lambda: setattr(Net.layer, "w", of(9, 9, 9)),
        lambda: delattr(net, "layer"),
    )


def test_names_imported_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("module_of_weights")
    module.weights, module.scale = of(1, 2, 3), 2.0
    monkeypatch.setitem(sys.modules, "module_of_weights", module)

    def function(x: Any) -> Any:
        import module_of_weights
        from module_of_weights import weights

        return x * weights * module_of_weights.scale

    check_changes(
        function,
        lambda: setattr(module, "weights", of(3, 2, 1)),
        lambda: setattr(module, "scale", 5.0),
        lambda: setattr(module, "weights", of(1, 1, 1)),
    )


@pytest.mark.parametrize("kind", [list, deque])
def test_sequences_that_grow_and_shrink(kind: Any) -> None:
    model = Holder(ws=kind([of(1, 2, 3)]))

    def function(x: Any) -> Any:
        for w in model.ws:
            x = x * w + 1.0
        return x

    check_changes(
        function,
        lambda: model.ws.append(of(2, 3, 4)),
        lambda: model.ws.insert(0, of(1, 1, 2)),
        lambda: model.ws.append(of(0, 3, 4)),
        lambda: model.ws.__delitem__(0),
        lambda: [model.ws.pop(), model.ws.pop()],
        lambda: model.ws.append(of(5, 3, 4)),
        lambda: setattr(model, "ws", kind([of(4, 3, 2)])),
    )


def test_mappings_of_every_kind() -> None:
    raw = {"w": of(1, 2, 3)}
    seen = MappingProxyType(raw)
    ordered = OrderedDict(a=of(1, 2, 3), b=of(3, 1, 2))
    default: Any = defaultdict(lambda: of(1, 1, 1), k=of(3, 3, 3))
    plain = {"a": of(1, 2, 3)}

    def function(x: Any) -> Any:
        for w in (*ordered.values(), *plain.values()):
            x = x * w + 1.0
        return x * seen["w"] * default["k"]

    check_changes(
        function,
        lambda: raw.update(w=of(2, 1, 0)),
        lambda: ordered.update(a=of(2, 2, 2)),
        lambda: ordered.move_to_end("a"),
        lambda: default.update(k=of(1, 2, 1)),
        lambda: default.pop("k"),
        lambda: plain.update(b=of(7, 7, 7)),
        lambda: plain.pop("a"),
        lambda: plain.update(a=of(2, 2, 2)),
    )


def test_looking_into_a_defaultdict_adds_nothing() -> None:
    table: Any = defaultdict(list, w=of(1, 2, 3))
    function = jit(lambda x: x * table["w"] if "w" in table else x)
    np.testing.assert_array_equal(function(X), X * [1, 2, 3])
    del table["w"]
    np.testing.assert_array_equal(function(X), X)
    assert not table


@pytest.mark.usefixtures("either_mode")
def test_none_that_becomes_an_array_and_back() -> None:
    model = Holder(w=of(1, 2, 3), bias=None)

    def function(x: Any) -> Any:
        x = x * model.w
        return x if model.bias is None else x + model.bias

    check_changes(
        function,
        lambda: setattr(model, "bias", of(1, 1, 1)),
        lambda: setattr(model, "bias", None),
        lambda: setattr(model, "bias", of(2, 1, 1)),
        lambda: setattr(model, "bias", of(3, 1, 1)),
    )


def test_defaults_and_partial_functions() -> None:
    one, two = of(1, 2, 3), of(1, 1, 1)

    def scaled(x: Any, w: Any = one, *, b: Any = two, k: float = 2.0) -> Any:
        return x * w * k + b

    table = {"w": of(1, 2, 3)}
    part = functools.partial(lambda table, x, k=1.0: x * table["w"] * k, table, k=2.0)
    model = Holder(part=part)

    check_changes(
        lambda x: scaled(x) * 1.0,
        lambda: setattr(scaled, "__defaults__", (of(2, 2, 2),)),
        lambda: scaled.__kwdefaults__.update(k=4.0),
        lambda: setattr(scaled, "__kwdefaults__", {"b": of(3, 3, 3), "k": 5.0}),
    )
    check_changes(part, lambda: table.update(w=of(2, 2, 2)), lambda: part.keywords.update(k=3.0))
    check_changes(
        lambda x: model.part(x) * 1.0,
        lambda: setattr(model, "part", functools.partial(part.func, {"w": of(5, 5, 5)}, k=1.0)),
        lambda: setattr(model, "part", functools.partial(part.func, {"w": of(5, 5, 5)}, k=4.0)),
        lambda: model.part.args[0].update(w=of(0, 1, 0)),
    )


NUMBER: Any = 2.0


@pytest.mark.filterwarnings("ignore::jitgrad.errors.RecompileWarning")
def test_numbers_and_texts_that_the_code_names() -> None:
    model = Holder(
        scale=2.0, mode="sum", flag=True, n=np.float64(3.0), sizes=[1, 2], pair=(1.0, 2.0), d={"a": [1.0, {"b": 2.0}]}
    )

    def function(x: Any) -> Any:
        x = x * model.scale * model.n * NUMBER
        if model.mode == "sum":
            x = x + 1.0
        if model.flag:
            x = x * 2.0
        for s in model.sizes:
            x = x * s
        return np.copysign(x * model.pair[0] * model.d["a"][1]["b"], model.scale)

    check_changes(
        function,
        lambda: setattr(model, "scale", 3.0),
        lambda: setattr(model, "mode", "mean"),
        lambda: setattr(model, "flag", False),
        lambda: setattr(model, "n", np.float64(4.0)),
        lambda: model.sizes.append(5),
        lambda: model.sizes.__setitem__(0, 7),
        lambda: setattr(model, "sizes", [7, 2, 6]),
        lambda: setattr(model, "pair", (3.0, 2.0)),
        lambda: model.d["a"][1].update(b=9.0),
        lambda: globals().update(NUMBER=5.0),
        lambda: globals().update(NUMBER=of(1, 2, 3)),
        lambda: globals().update(NUMBER=2.0),
        lambda: setattr(model, "scale", 0.0),
        lambda: setattr(model, "scale", -0.0),
    )


def test_equal_numbers_are_no_reason_to_trace_again_others_are() -> None:
    model = Holder(n=1000, sizes=[1000, 2.5])
    counted = Counted(lambda x: x * model.n * len(model.sizes))
    function = jit(counted)
    function(X)
    model.n, model.sizes = int("1000"), [int("1000"), float("2.5")]
    assert function(X).dtype == np.float64
    assert counted.calls == 1
    x = np.array([1, 2, 3])
    for n in (1, 1.0, True, np.float32(1.0)):  # equal, and of four dtypes
        model.n = n
        assert function(x).dtype == (x * n * 2).dtype


def test_functions_and_kinds_that_the_code_names() -> None:
    act: Any = np.tanh

    def helper(x: Any) -> Any:
        return 2.0 * x

    class Mode(Enum):
        SUM, MEAN = 1, 2

    class Layer(Holder):
        def __call__(self, x: Any) -> Any:
            return x * self.w * self.k

    class Other(Layer):
        def __call__(self, x: Any) -> Any:
            return x + self.w * self.k

    model = Holder(mode=Mode.SUM, layer=Layer(w=of(1, 2, 3), k=2.0))

    def function(x: Any) -> Any:
        return act(helper(model.layer(x))) if model.mode is Mode.SUM else x

    def rebind(new: Any) -> None:
        nonlocal act
        act = new

    def redefine() -> None:
        nonlocal helper
        helper = lambda x: 3.0 * x  # noqa: E731

    check_changes(
        function,
        lambda: rebind(np.sin),
        redefine,
        lambda: setattr(model, "layer", Layer(w=of(3, 2, 1), k=2.0)),
        lambda: setattr(model, "layer", Layer(w=of(3, 2, 1), k=3.0)),
        lambda: setattr(model, "layer", Other(w=model.layer.w, k=3.0)),
        lambda: setattr(model, "layer", Layer(w=of(3, 2, 1), k=1.0)),
        lambda: setattr(model, "mode", Mode.MEAN),
    )


def test_two_names_of_one_object() -> None:
    a = b = Holder(w=of(1, 2, 3))

    def split() -> None:
        nonlocal b
        b = Holder(w=of(5, 5, 5))

    def join() -> None:
        nonlocal a
        a = b

    check_changes(
        lambda x: x * a.w + b.w,
        split,
        lambda: setattr(b, "w", of(6, 6, 6)),
        join,
        lambda: setattr(b, "w", of(7, 6, 6)),
    )


@pytest.mark.usefixtures("either_mode")
def test_properties_are_not_run_by_looking() -> None:
    runs: list[int] = []

    class Model:
        def __init__(self) -> None:
            self.__dict__["w"] = of(9, 9, 9)  # hidden by the property
            self._w, self._k = of(1, 2, 3), 2.0

        @property
        def w(self) -> Any:
            runs.append(1)
            if len(runs) in fails:
                raise RuntimeError("not now")
            return self._w

        @property
        def k(self) -> float:
            return self._k

        @functools.cached_property
        def cached(self) -> Any:
            return self._w * 2.0

    model, fails = Model(), range(2, 2)
    function = jit(lambda x: x * model.w * model.k + model.cached)
    for _ in range(20):
        np.testing.assert_array_equal(function(X), X * [2, 4, 6] + [2, 4, 6])
    assert len(runs) == 1
    model._w = of(2, 2, 2)
    np.testing.assert_array_equal(function(X), X * 4 + [2, 4, 6])
    model._k = 3.0
    np.testing.assert_array_equal(function(X), X * 6 + [2, 4, 6])
    del model.cached
    np.testing.assert_array_equal(function(X), X * 6 + 4)


def test_errors_of_attributes_are_those_of_the_function_alone() -> None:
    class Model:
        def __init__(self, **parts: Any) -> None:
            self.__dict__["parts"] = parts

        def __getattr__(self, name: str) -> Any:
            try:
                return self.__dict__["parts"][name]
            except KeyError:
                raise RuntimeError(name) from None

        def __setattr__(self, name: str, value: Any) -> None:
            self.__dict__["parts"][name] = value

    model = Model(w=of(1, 2, 3), k=2.0)
    check_changes(
        lambda x: x * model.w * model.k, lambda: setattr(model, "w", of(2, 2, 2)), lambda: setattr(model, "k", 5.0)
    )
    function = jit(lambda x: x * model.w)
    function(X)
    del model.__dict__["parts"]["w"]
    with pytest.raises(RuntimeError, match="w"):
        function(X)


def test_what_the_trace_itself_changes_is_no_reason_to_trace_again() -> None:
    count, log, model = 0, [], Holder(calls=0, cache=None)

    def function(x: Any) -> Any:
        nonlocal count
        count += 1
        log.append(x.shape)
        model.calls += 1
        if model.cache is None:
            model.cache = of(1, 2, 3)
        return (x * x).sum()

    jitted = jit(function)
    for _ in range(5):
        jitted(X)
        jitted(np.ones(4))
        x = leaf(*X)
        jitted(x).backward()
        close(x.grad, 2 * X)
    assert count == len(log) == model.calls <= 6


@pytest.mark.filterwarnings("ignore::jitgrad.errors.RecompileWarning")
def test_an_array_that_is_bound_while_the_function_is_traced() -> None:
    model = Holder(w=of(1, 2, 3))
    pending = [of(2, 2, 2)]

    def function(x: Any) -> Any:
        y = x * model.w
        if pending:  # as another thread would
            model.__dict__.update(w=pending.pop())
        return y

    jitted = jit(function)
    np.testing.assert_array_equal(jitted(X), X * [1, 2, 3])
    for _ in range(3):
        np.testing.assert_array_equal(jitted(X), 2 * X)
    model.w = of(3, 3, 3)
    np.testing.assert_array_equal(jitted(X), 3 * X)


@pytest.mark.filterwarnings("ignore::jitgrad.errors.RecompileWarning")
@pytest.mark.parametrize("value", [lambda k: of(k, k, k), lambda k: 1.0 * k], ids=["array", "number"])
@pytest.mark.parametrize("read", [lambda w: w, np.sum], ids=["as it is", "by NumPy"])
def test_what_is_bound_twice_while_the_function_is_traced(value: Any, read: Any) -> None:
    """What the trace has read was there neither before it nor after."""
    model = Holder(w=value(1))
    pending = [value(3), value(2)]

    def bind() -> None:
        if pending:  # as another thread would
            vars(model)["w"] = pending.pop()

    def function(x: Any) -> Any:
        bind()
        y = x * read(model.w)
        bind()
        return y

    jitted = jit(function)
    np.testing.assert_array_equal(jitted(X), X * read(value(2)))
    for k in (3, 4, 5):
        for _ in range(2):
            np.testing.assert_array_equal(jitted(X), X * read(model.w))
        model.w = value(k)


@contextlib.contextmanager
def running(call: Callable[[], None], count: int, stop: threading.Event | None = None) -> Iterator[None]:
    """Call in several threads that take turns often, and wait for them at the end; they are told to ``stop`` then."""
    errors: list[BaseException] = []

    def kept() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=kept) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        if stop is not None:
            stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert not errors


def test_marks_of_traces_are_told_apart_while_graphs_change() -> None:
    """Threads that trace equal programs at the same time do not take each other's marks away."""
    start = threading.Barrier(4)

    def call() -> None:
        start.wait(30)
        for k in range(20):
            np.testing.assert_array_equal(jit(lambda x: x * 2.0 + 1.0)(np.ones(k + 1)), np.full(k + 1, 3.0))

    with running(call, 4):
        pass


def test_a_place_that_keeps_changing_is_named() -> None:
    model = Holder(step=0.0)
    function = jit(lambda x: x * model.step)

    def steps() -> None:
        for k in range(8):
            model.step = k + 0.5
            np.testing.assert_array_equal(function(X), X * model.step)

    with pytest.warns(RecompileWarning, match=r"model\.step keeps changing"):
        steps()


def test_plain_containers_are_no_objects_to_count() -> None:
    model = Holder(
        values=[float(i) for i in range(50_000)],
        rows=[[float(i)] for i in range(20_000)],
        inner=Holder(inner=Holder(w=of(1, 2, 3))),
    )
    check_changes(
        lambda x: x * model.inner.inner.w * len(model.rows), lambda: setattr(model.inner.inner, "w", of(2, 2, 2))
    )


def test_objects_that_no_code_names_do_not_hide_those_that_it_names() -> None:
    model = Holder(unnamed=[Holder(other=Holder()) for _ in range(20_000)], last=Holder(w=of(1, 2, 3)))
    check_changes(lambda x: x * model.last.w, lambda: setattr(model.last, "w", of(2, 2, 2)))


def test_too_many_objects_are_told_of_and_the_function_is_traced_anew() -> None:
    model = Holder(parts=[Holder(w=of(k, k, k)) for k in range(20_000)])
    counted = Counted(lambda x: (x * model.parts[-1].w).sum())
    function = jit(counted)
    with pytest.warns(RecompileWarning, match="more than 16384 objects"):
        function(X)
    for k in range(2):
        model.parts[-1].w = of(k, 2, 3)
        np.testing.assert_allclose(function(X), X @ [k, 2, 3], rtol=1e-14)
    x = leaf(*X)
    y = function(x)
    model.parts[-1].w = of(9, 9, 9)
    y.backward()
    close(x.grad, [1, 2, 3])


def test_a_jitted_method_of_many_instances() -> None:
    class Model:
        def __init__(self, *w: float) -> None:
            self.w, self.k = of(*w), 2.0

        @functools.partial(jit, static_argnums=0)
        def scaled(self, x: Any) -> Any:
            return x * self.w * self.k

    models = [Model(k, 1, 2) for k in range(5)]
    for k in range(3):
        for model in models:
            np.testing.assert_allclose(model.scaled(X), X * model.w * model.k, rtol=1e-14)
            model.w = model.w + 1.0
        models[k].k = 5.0 + k


@pytest.mark.usefixtures("either_mode")
@pytest.mark.parametrize("kind", ["array", "number"])
@pytest.mark.filterwarnings("ignore::jitgrad.errors.RecompileWarning")
def test_threads_that_call_while_another_binds(kind: str) -> None:
    model = Holder(w=np.full(3, 1.0))
    function = jit(lambda x: x * model.w)
    ones = np.ones(3)
    wrong: list[Any] = []
    stop = threading.Event()

    def value() -> float:
        return float(np.max(model.w))

    def call() -> None:
        while not stop.is_set():
            before = value()
            found = function(ones)[0]
            if not before <= found <= value():
                wrong.append((before, found))

    with running(call, 3, stop):
        for k in range(300 if kind == "array" else 6):
            model.w = np.full(3, k + 2.0) if kind == "array" else k + 2.0
            threading.Event().wait(0.0 if kind == "array" else 0.02)
    assert not wrong
    np.testing.assert_array_equal(function(ones), np.full(3, value()))


def test_what_calls_make_of_a_tensor_or_an_array_that_is_bound_anew() -> None:
    model = Holder(w=jg.tensor([1.0, 2.0, 3.0], requires_grad=True), v=of(1, 2, 3, 4))
    functions = [
        lambda x: x * model.w.detach(),
        lambda x: x * model.w.detach().numpy(),
        lambda x: x * jg.from_numpy(model.v)[1:],
        lambda x: x * np.sum(model.v),
        lambda x: x * len(model.v),
    ]
    jitted = [jit(f) for f in functions]
    for _ in range(3):
        for f, fast in zip(functions, jitted, strict=True):
            np.testing.assert_allclose(fast(X), np.asarray(f(jg.tensor(X)).numpy()), rtol=1e-14)
        model.w = jg.tensor(model.w.detach().numpy() + 1.0, requires_grad=True)
        model.v = np.append(model.v[1:], 7.0)


def test_proxies_are_not_asked_what_they_are() -> None:
    class Proxy:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("outside of any context")

        def __mul__(self, x: Any) -> Any:
            return x * 2.0

    model = Holder(proxy=Proxy(), w=of(1, 2, 3))
    check_changes(lambda x: (model.proxy * x) * model.w, lambda: setattr(model, "w", of(2, 2, 2)))


def test_gradients_with_numbers_that_are_bound_anew() -> None:
    model = Holder(k=2.0, w=of(1, 2, 3), t=leaf(1.0, 2.0, 3.0))
    function = jit(lambda x: (x * x * model.w * model.k * model.t).sum())
    changes = [
        lambda: setattr(model, "k", 3.0),
        lambda: setattr(model, "w", of(3, 2, 1)),
        lambda: setattr(model, "t", leaf(5.0, 2.0, 1.0)),
    ]
    for change in (lambda: None, *changes, *changes[:1]):
        change()
        x, model.t.grad = leaf(*X), None
        function(x).backward()
        close(x.grad, 2 * X * model.w * model.k * model.t.detach().numpy())
        close(model.t.grad, X * X * model.w * model.k)
    x = leaf(*X)
    y, model.k = function(x), 8.0  # the gradient of the call is known by now
    y.backward()
    close(x.grad, 2 * X * model.w * 3.0 * model.t.detach().numpy())
    y, model.k = function(x), 9.0  # and now it is not
    with pytest.raises(GraphError, match="others are there now"):
        y.backward()


class _Node:
    """A part of a random model."""

    def __init__(self, left: Any, right: Any, scale: Any, bias: Any) -> None:
        self.left, self.right, self.scale, self.bias = left, right, scale, bias

    def __call__(self, x: Any) -> Any:
        x = _applied_part(x, self.left) * self.scale
        if self.bias is not None:
            x = x + self.bias
        return _applied_part(x, self.right)


def _applied_part(x: Any, part: Any) -> Any:
    if isinstance(part, _Node):
        return part(x)
    if isinstance(part, list | tuple | deque):
        for inner in part:
            x = _applied_part(x, inner)
        return x - len(part)
    if isinstance(part, dict):
        for key, inner in part.items():
            x = _applied_part(x, inner) + len(key)
        return x
    if isinstance(part, np.ndarray):
        return x * 0.5 + part
    return x if part is None else x - len(part) if isinstance(part, str) else x + part


_numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.5, -2.0])
_vectors = st.lists(st.integers(-3, 3), min_size=3, max_size=3).map(lambda v: np.array(v, float))
_leaves = _vectors | _numbers | st.none() | st.sampled_from(["a", "bc"])
_parts = st.recursive(
    _leaves,
    lambda inner: (
        st.builds(_Node, inner, inner, _numbers, st.none() | _vectors)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(deque)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "bb", "ccc"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def _changeable(part: Any) -> list[Any]:
    """All that can be written in a part of a model."""
    own = [part] if isinstance(part, _Node | list | deque | dict | np.ndarray) else []
    inner = [part.left, part.right, part.bias] if isinstance(part, _Node) else []
    inner += (
        list(part.values() if isinstance(part, dict) else part) if isinstance(part, list | tuple | deque | dict) else []
    )
    return own + [c for i in inner for c in _changeable(i)]


@given(st.builds(_Node, _parts, _parts, _numbers, st.none() | _vectors), st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore::jitgrad.errors.RecompileWarning")
def test_random_models_that_change(root: Any, data: st.DataObject) -> None:
    """Whatever is bound, written, added or removed: the jitted function gives what the function gives."""
    with kernels("python"):
        function = jit(root)
        for _ in range(6):
            np.testing.assert_allclose(function(X), root(X), rtol=1e-12, atol=1e-12)
            place = data.draw(st.sampled_from(_changeable(root)))
            if isinstance(place, np.ndarray):
                place[data.draw(st.integers(0, 2))] = data.draw(st.integers(-3, 3))
            elif isinstance(place, _Node):
                name = data.draw(st.sampled_from(["left", "right", "scale", "bias"]))
                kinds = {"scale": _numbers, "bias": st.none() | _vectors}
                setattr(place, name, data.draw(kinds.get(name, _parts)))
            elif isinstance(place, dict):
                place[data.draw(st.sampled_from(["a", "bb", "ccc"]))] = data.draw(_parts)
            elif place and data.draw(st.booleans()):
                k = data.draw(st.integers(0, len(place) - 1))
                if data.draw(st.booleans()):
                    del place[k]
                else:
                    place[k] = data.draw(_parts)
            else:
                place.append(data.draw(_parts))
        np.testing.assert_allclose(function(X), root(X), rtol=1e-12, atol=1e-12)


def test_longer_and_shorter_tuples_are_others() -> None:
    x, parts = np.ones(3), [np.full(3, v) for v in (2.0, 3.0, 5.0)]
    model = SimpleNamespace(t=tuple(parts[:2]), p=functools.partial(lambda *ws: sum(ws), *parts[:2]))
    by_tuple, by_partial = jg.jit(lambda x: sum(x * w for w in model.t)), jg.jit(lambda x: x * model.p())
    for count in (2, 3, 1, 3, 2):
        model.t, model.p = tuple(parts[:count]), functools.partial(lambda *ws: sum(ws), *parts[:count])
        wanted = x * sum(parts[:count])
        np.testing.assert_array_equal(by_tuple(x), wanted)
        np.testing.assert_array_equal(by_partial(x), wanted)
    total = model.p.func  # the same function, more arguments
    for count in (2, 3, 1):
        model.p = functools.partial(total, *parts[:count])
        np.testing.assert_array_equal(by_partial(x), x * sum(parts[:count]))


class Attentive:
    """Asks for attributes that are not there, as modules of networks do."""

    scale = 2.0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Base:
    scale = 2.0
    act = staticmethod(lambda x: x * 2.0)
    rate = property(lambda self: 2.0)

    @classmethod
    def made(cls, x: Any) -> Any:
        return x * 2.0

    def forward(self, x: Any) -> Any:
        return x * 2.0


class Derived(Base):
    scale = 3.0
    rate = property(lambda self: 3.0)

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 3.0

    def total(self, x: Any) -> Any:
        return x * super().scale + x * type(self).scale + x * super().rate


@pytest.mark.parametrize(
    ("function", "changes"),
    [
        (lambda m, x: m.act(x), {"act": staticmethod(lambda x: x * 7.0)}),
        (lambda m, x: m.made(x), {"made": classmethod(lambda cls, x: x * 7.0)}),
        (lambda m, x: m.forward(x), {"forward": lambda self, x: x * 7.0}),
        (lambda m, x: m.total(x), {"scale": 7.0}),
        (lambda m, x: m.total(x), {"rate": property(lambda self: 7.0)}),
    ],
)
def test_what_a_class_defines_behind_others(
    function: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Derived(), np.ones(3)
    fast = jg.jit(lambda x: function(model, x))
    np.testing.assert_array_equal(fast(x), function(model, x))
    for name, value in changes.items():
        before = function(model, x)
        monkeypatch.setattr(Base, name, value)
        assert not np.array_equal(function(model, x), before)
        np.testing.assert_array_equal(fast(x), function(model, x))
        monkeypatch.undo()
        np.testing.assert_array_equal(fast(x), function(model, x))


def test_attributes_of_a_class_whose_objects_ask_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Attentive(), np.ones(3)
    fast = jg.jit(lambda x: x * model.scale)
    np.testing.assert_array_equal(fast(x), x * 2.0)
    monkeypatch.setattr(Attentive, "scale", 3.0)
    np.testing.assert_array_equal(fast(x), x * 3.0)
    model.scale = 7.0
    np.testing.assert_array_equal(fast(x), x * 7.0)
    del model.scale
    np.testing.assert_array_equal(fast(x), x * 3.0)


def square(w: Any) -> Any:
    return w * w


def cube(w: Any) -> Any:
    return (w * w * w).sum()


class Squared(jg.autograd.Function):
    """Recorded as one node."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2.0 * g * x


WITHIN: dict[str, tuple[Callable[[Any], Any], int, int]] = {
    "grad": (jg.grad(cube), 3, 2),
    "value_and_grad": (lambda w: jg.value_and_grad(cube)(w)[1], 3, 2),
    "grad of grad": (jg.grad(lambda v: jg.grad(cube)(v).sum()), 6, 1),
    "vjp": (lambda w: jg.vjp(square, w)[1](w)[0], 2, 2),
    "jvp": (lambda w: jg.jvp(square, (w,), (w,))[1], 2, 2),
    "hessian": (lambda w: jg.hessian(cube)(w).sum(0), 6, 1),
    "vmap": (jg.vmap(square), 1, 2),
    "jit": (jit(square), 1, 2),
    "jit of grad": (jit(jg.grad(cube)), 3, 2),
    "checkpoint": (jg.checkpoint(square), 1, 2),
    "Function": (Squared.apply, 1, 2),
}
"""Functions of a captured tensor, and what they are: a factor and a power."""


@pytest.mark.parametrize("name", WITHIN)
def test_what_an_inner_transform_gets_keeps_its_gradient(name: str) -> None:
    """A captured tensor is no constant because a transform makes it private."""
    inner, factor, power = WITHIN[name]
    model = Holder(w=leaf(1.0, 2.0, 3.0))
    jitted = jit(lambda x: inner(model.w) * x)

    def with_weights(w: Any) -> Any:
        model.w = w
        return (jitted(X) * X).sum()

    for k in range(4):
        x, w = leaf(*X), model.w.detach().numpy()
        value = jitted(x)
        close(value, factor * w**power * X)
        value.sum().backward()
        close(model.w.grad, factor * power * w ** (power - 1) * X)
        close(x.grad, factor * w**power)
        w = np.array([1, 1.5 + k, 3])
        close(jg.grad(with_weights)(jg.tensor(w)), factor * power * w ** (power - 1) * X * X)
        model.w = leaf(2.0, 1.0 + k, 1.0)


@pytest.mark.parametrize("name", [n for n in WITHIN if n != "Function"])  # which is for tensors
@pytest.mark.parametrize("kind", [of, jg.tensor])
def test_what_an_inner_transform_gets_is_bound_anew_without_another_trace(name: str, kind: Any) -> None:
    inner, factor, power = WITHIN[name]
    model = Holder(w=np.array([1.0, 2.0, 3.0]))
    model.w = model.w if kind is of else jg.tensor(model.w)
    counted = Counted(lambda x: inner(model.w) * x)
    jitted = jit(counted.__call__)
    for k in range(4):
        np.testing.assert_allclose(jitted(X), factor * np.asarray(model.w) ** power * X, rtol=1e-12)
        model.w[...] = 1.0 + k  # by a write
        np.testing.assert_allclose(jitted(X), factor * np.full(3, 1.0 + k) ** power * X, rtol=1e-12)
        array = np.array([2.0, 1.0 + k, 1.0])
        model.w = array if kind is of else jg.tensor(array)
    assert counted.calls == 1


def lazily(kind: str, value: Any) -> Any:
    """An object that makes ``k`` when it is first needed."""

    class Named:
        k: Any = None

        def scale(self) -> Any:
            if self.k is None:
                self.k = value
            return self.k

    class ByText:
        def scale(self) -> Any:
            if not hasattr(self, "k"):
                setattr(self, "k", value)  # noqa: B010
            return self.k  # type: ignore[attr-defined]

    class Asked:
        def __getattr__(self, name: str) -> Any:
            if name != "k":
                raise AttributeError(name)
            setattr(self, name, value)
            return value

        def scale(self) -> Any:
            return self.k

    class Cached:
        @functools.cached_property
        def k(self) -> Any:
            return value

        def scale(self) -> Any:
            return self.k

    return {"named": Named, "by text": ByText, "asked": Asked, "cached": Cached}[kind]()


@pytest.mark.parametrize("kind", ["named", "by text", "asked", "cached"])
@pytest.mark.parametrize("array", [False, True])
def test_what_is_made_when_it_is_first_needed(kind: str, array: bool) -> None:
    """It is no reason to trace again, and followed from then on."""
    holder = lazily(kind, of(1, 2, 3) if array else 2.0)
    counted = Counted(lambda x: x * holder.scale())
    jitted = jit(counted.__call__)
    for _ in range(3):
        np.testing.assert_array_equal(jitted(X), X * (of(1, 2, 3) if array else 2.0))
    if not array:
        assert counted.calls == 1
    if kind == "named" and not array:  # what the function writes itself, and no array
        return
    for value in (of(3, 3, 3), of(4, 5, 6)) if array else (3.0, 4.0):
        holder.k = value
        for _ in range(2):
            np.testing.assert_array_equal(jitted(X), X * value)


OUTER: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "grad": jg.grad,
    "value_and_grad": lambda f: lambda x: jg.value_and_grad(f)(x)[1],
    "vjp": lambda f: lambda x: jg.vjp(f, x)[1](1.0)[0],
    "jacrev": jg.jacrev,
}


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("name", WITHIN)
def test_a_captured_tensor_that_only_an_inner_transform_reads(name: str, outer: str, jitted: bool) -> None:
    """The gradient of an outer transform requires grad where the function reaches a tracked tensor by another one alone."""
    inner, factor, power = WITHIN[name]
    w, y = leaf(1.0, 2.0, 3.0), np.array([1.0, 2.0, 3.0])
    function = OUTER[outer](lambda x: (inner(w) * x * x).sum())
    ((jit(function) if jitted else function)(X) + w).sum().backward()
    close(w.grad, 1 + factor * power * y ** (power - 1) * 2 * X)


def test_an_inner_jitted_function_that_was_called_before() -> None:
    """What it knows of earlier calls is no part of an outer trace."""
    w, t = of(1, 2), jg.tensor([1.0, 2.0])
    inner = {
        "of an array": jit(lambda v: v * v),
        "of a number": jit(lambda y: t * y),
        "of nothing": jit(lambda: t * 2.0),
    }
    for _ in range(20):
        inner["of an array"](np.ones(2)), inner["of a number"](2.0), inner["of nothing"]()
    outer = jit(lambda x: inner["of an array"](w) * inner["of a number"](2.0) * inner["of nothing"]() * x)
    np.testing.assert_array_equal(outer(1.0), [4, 64])
    w[:], t[...] = 3.0, 1.0
    np.testing.assert_array_equal(outer(1.0), [36, 36])


def test_a_parameter_that_is_made_when_it_is_first_needed() -> None:
    model = Holder(w=None)

    def function(x: Any) -> Any:
        if model.w is None:
            model.w = leaf(2.0, 2.0, 2.0)
        return x * model.w

    jitted = jit(function)
    for _ in range(2):
        value = jitted(X)
        value.sum().backward()
    close(model.w.grad, 2 * X)
    model.w = leaf(1.0, 2.0, 3.0)
    value = jitted(X)
    close(value, X * [1, 2, 3])
    value.sum().backward()
    close(model.w.grad, X)


@pytest.mark.filterwarnings("ignore::jitgrad.errors.RecompileWarning")
def test_parameters_that_are_made_one_after_the_other() -> None:
    model = Holder(a=None, b=None)

    def function(x: Any) -> Any:
        if model.a is None:
            model.a = leaf(1.0, 1.0, 1.0)
        elif model.b is None:
            model.b = leaf(2.0, 2.0, 2.0)
        return x * model.a if model.b is None else x * model.a * model.b

    jitted = jit(function)
    jitted(X)
    jitted(X).sum().backward()
    close(model.b.grad, X)
    close(model.a.grad, 2 * X)


def test_a_traced_value_that_is_kept_for_inspection() -> None:
    model = Holder(last=None, held=None)

    def function(x: Any) -> Any:
        model.last = x * 2
        model.held = {"h": x * 3, "n": x.shape}
        return (model.last * model.held["h"]).sum()

    jitted = jit(function)
    for n in (3, 4, 3, 4):
        x = leaf(*[1.0] * n)
        jitted(x).backward()
        close(x.grad, np.full(n, 12.0))


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
def test_no_grad_around_an_outer_transform(jitted: bool) -> None:
    w = leaf(1.0, 2.0, 3.0)
    function = jg.grad(lambda x: (jg.vmap(square)(w) * x * x).sum())
    with jg.no_grad():
        scale = (jit(function) if jitted else function)(np.ones(3))
    (scale * w).sum().backward()
    close(w.grad, 2 * np.array([1.0, 4.0, 9.0]))


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
def test_no_grad_around_an_inner_transform(jitted: bool) -> None:
    """What it gives is a constant there, whether the tracked tensor is captured or given."""
    w = leaf(1.0, 2.0, 3.0)

    def function(x: Any) -> Any:
        with jg.no_grad():
            scale = jg.grad(lambda u: (u * u * w).sum())(x) + jg.grad(lambda u: (u * u * x).sum())(w)
        return (scale * w * x).sum()

    x = leaf(*X)
    (jit(function) if jitted else function)(x).backward()
    constant = 4 * np.array([1.0, 2.0, 3.0]) * X
    close(w.grad, constant * X)
    close(x.grad, constant * np.array([1.0, 2.0, 3.0]))


def test_a_detached_alias_that_is_kept_beside_the_tensor() -> None:
    w = leaf(1.0, 2.0, 3.0)
    alias = w.detach()
    x = leaf(*X)
    for k in (1.0, 2.0):
        jit(lambda x, k=k: (alias * w * x * k).sum())(x).backward()
    close(w.grad, 3 * np.array([1.0, 2.0, 3.0]) * X)
    close(x.grad, 3 * np.array([1.0, 4.0, 9.0]))


def test_a_detached_tensor_that_is_bound_anew_is_no_reason_for_another_trace() -> None:
    traced = []
    model = Holder(w=leaf(1.0, 2.0, 3.0))

    def function(x: Any) -> Any:
        traced.append(x)
        return (x * model.w.detach() * model.w.detach().detach()).sum()

    jitted = jit(function)
    for k in range(1, 4):
        model.w = leaf(k, 2.0, 3.0)
        x = leaf(*X)
        jitted(x).backward()
        close(x.grad, np.array([k, 2.0, 3.0]) ** 2)
        assert model.w.grad is None
    assert len(traced) == 3  # for the value, for what is recorded, and for the gradient


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("detached", [0, 1])
@pytest.mark.parametrize("after", range(1, 5))
def test_a_detach_that_comes_or_goes_between_traces(after: int, detached: int, captured: bool) -> None:
    """The value is the same with it and without: the gradient is that of what is recorded, or there is an error. The first
    trace is for the value, the second for what is recorded, the third for its gradient."""
    calls = itertools.count()
    w = leaf(1.0, 2.0, 3.0)

    def is_cut(call: int) -> bool:
        return (call < after) == bool(detached)

    def function(x: Any) -> Any:
        t = w if captured else x
        return (t * (t.detach() if is_cut(next(calls)) else t) * x).sum()

    jitted = jit(function)
    for _ in range(2):
        x = leaf(*X)
        w.grad = None
        y = jitted(x)
        if is_cut(1) != is_cut(2):
            with pytest.raises(GraphError, match="another program"):
                y.backward()
            continue
        y.backward()
        if captured:
            close(w.grad, (1 if is_cut(2) else 2) * w.detach().numpy() * X)
            close(x.grad, w.detach().numpy() ** 2)
        else:
            close(x.grad, (2 if is_cut(2) else 3) * X**2)


def test_an_alias_is_not_the_tensor_itself() -> None:
    """A captured alias and a tensor on one memory, exchanged from one trace to the next, are different programs."""
    w = leaf(1.0, 2.0, 3.0)
    alias = w.detach()
    calls = itertools.count()
    jitted = jit(lambda x: ((alias if next(calls) < 2 else w) * w * x).sum())
    with pytest.raises(GraphError, match="another program"):
        jitted(leaf(*X)).backward()


def test_python_reads_what_is_detached() -> None:
    w, s = leaf(1.0, 2.0, 3.0), leaf(2.0)
    jitted = jit(lambda x: (x * w.detach().numpy() * s.detach().item() * s.detach()).sum())
    x = leaf(*X)
    jitted(x).backward()
    close(x.grad, 4 * np.array([1.0, 2.0, 3.0]))
    with jg.no_grad():
        s += 1.0
        w *= 2.0
    x = leaf(*X)
    jitted(x).backward()
    close(x.grad, 18 * np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("captured", [False, True])
def test_what_only_detached_values_depend_on_has_no_gradient(captured: bool) -> None:
    w, x = leaf(1.0, 2.0, 3.0), leaf(*X)
    function = jit(lambda x: (x * w.detach()).sum()) if captured else jit(lambda x, w: (x * w.detach()).sum())
    args = (x,) if captured else (x, w)
    function(*args).backward()
    assert w.grad is None
    close(x.grad, [1.0, 2.0, 3.0])
    with pytest.raises(jg.errors.NoGraphError, match="do not depend on inputs"):
        jg.autograd.grad(function(*args), w)
    out = jit(lambda w: (w.detach() * X).sum())(w)
    assert not out.requires_grad
    with pytest.raises(jg.errors.NoGraphError, match=r"detach\(\)"):
        out.backward()


def test_results_with_gradients_of_their_own() -> None:
    """A parameter of one result has no gradient from another one, at second order either."""
    a, b = leaf(1.0, 2.0, 3.0), leaf(3.0, 2.0, 1.0)
    both = jit(lambda x: ((x * x * a).sum(), (x * b * b.detach()).sum()))
    x = leaf(*X)
    first, second = both(x)
    second.backward(retain_graph=True)
    assert a.grad is None
    close(b.grad, np.array([3.0, 2.0, 1.0]) * X)
    (slope,) = jg.autograd.grad(first, x, create_graph=True)
    found = jg.autograd.grad(slope.sum(), [x, a, b], allow_unused=True)
    close(found[0], [2.0, 4.0, 6.0])
    close(found[1], 2 * X)
    assert found[2] is None


def test_an_alias_that_numpy_writes_while_it_is_traced() -> None:
    array = np.array([1.0, 2.0, 3.0])
    w = jg.from_numpy(array)

    def function(x: Any) -> Any:
        alias = w.detach()
        first = (x * alias).sum()
        array[:] = 1.0
        return first + 10.0 * (x * alias).sum()

    assert jit(function)(X) == np.sum(X * [1, 2, 3]) + 10 * np.sum(X)


def test_an_alias_that_is_read_twice_and_late() -> None:
    w = leaf(1.0, 2.0, 3.0)

    def function(x: Any) -> Any:
        alias = w.detach()
        y = x * x
        return (y * alias * w).sum() + (alias * y * 2.0).sum()

    x = leaf(*X)
    jit(function)(x).backward()
    values = np.array([1.0, 2.0, 3.0])
    close(w.grad, X * X * values)
    close(x.grad, 2 * X * (values**2 + 2 * values))


class _Keepers:
    """Ways to keep a parameter that is made when it is first needed, other than in an attribute or a dict."""

    @staticmethod
    def cached(make: Callable[[], Any]) -> Callable[[], Any]:
        return functools.cache(make)

    @staticmethod
    def in_a_set(make: Callable[[], Any]) -> Callable[[], Any]:
        kept: set[Any] = set()

        def get() -> Any:
            if not kept:
                kept.add(make())
            (found,) = kept
            return found

        return get

    @staticmethod
    def of_the_function(make: Callable[[], Any]) -> Callable[[], Any]:
        def get() -> Any:
            if not hasattr(get, "kept"):
                get.kept = make()  # type: ignore[attr-defined]
            return get.kept  # type: ignore[attr-defined]

        return get

    @staticmethod
    def in_a_generator(make: Callable[[], Any]) -> Callable[[], Any]:
        def repeat() -> Iterator[Any]:
            made = make()
            while True:
                yield made

        return functools.partial(next, repeat())

    @staticmethod
    def in_a_deque(make: Callable[[], Any]) -> Callable[[], Any]:
        kept: deque[Any] = deque()
        return lambda: (kept or kept.append(make()) or kept)[0]


@pytest.mark.filterwarnings("ignore::jitgrad.errors.RecompileWarning")
@pytest.mark.parametrize("keep", [k for k in vars(_Keepers) if not k.startswith("_")])
@pytest.mark.parametrize("before", [False, True], ids=["by the call", "by a call without gradient"])
def test_a_parameter_that_is_made_when_it_is_first_needed_and_kept_anywhere(keep: str, before: bool) -> None:
    get = getattr(_Keepers, keep)(lambda: leaf(1.0, 2.0, 3.0))
    jitted = jit(lambda x: (x * get() * get()).sum())
    if before:
        with jg.no_grad():
            jitted(X)
    for _ in range(2):
        jitted(X).backward()
    close(get().grad, 4 * np.array([1.0, 2.0, 3.0]) * X)


def test_a_tensor_that_is_made_in_the_function_and_dropped_is_traced_once() -> None:
    traced = []

    def function(x: Any) -> Any:
        traced.append(x.shape)
        u = leaf(1.0, 2.0, 3.0)
        view = u[1:] * u.detach()[:2]
        return jg.grad(lambda v: (v * u * u).sum())(x) * view.sum(), u

    jitted = jit(function)
    for _ in range(3):
        jitted(X)
    assert len(traced) == 1


class _FirstOnly(jg.autograd.Function):
    """A product whose second operand is given no gradient."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[1], None


def _constant_slope(x: Any, w: Any) -> Any:
    with jg.no_grad():
        return jg.grad(lambda u: (u * u * w).sum())(x)


def _written(x: Any, w: Any) -> Any:
    y = x * 1.0
    y *= w.detach()
    y[0] = w.detach()[1]
    return y


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    ("function", "both"),
    [
        (lambda x, w: jg.stack([x, w.detach()]), False),
        (lambda x, w: jg.where(w.detach() > 1.5, x, 2.0), False),
        (lambda x, w: jg.where(w.detach() > 1.5, x, w), True),
        (lambda x, w: np.sin(w.detach()) * np.dot(x, w.detach()), False),
        (lambda x, w: jg.vmap(lambda u: u * w.detach()[0])(x), False),
        (lambda x, w: jg.vmap(jg.multiply)(x, w.detach()), False),
        (lambda x, w: jg.grad(lambda u: (u**3 * w.detach()).sum())(x), False),
        (lambda x, w: jg.grad(lambda u: (u * u.detach() * x).sum())(w), False),
        (lambda x, w: jg.grad(lambda u: (u * u * u.detach() * x).sum())(w), True),
        (lambda x, w: jg.jvp(lambda u: u * u * w.detach(), (x,), (x,))[1], False),
        (jg.checkpoint(lambda u, v: u * v.detach()), False),
        (jit(lambda u, v: u * v.detach()), False),
        (_FirstOnly.apply, False),
        (lambda x, w: _FirstOnly.apply(x, w) * w, True),
        (lambda x, w: _constant_slope(x, w) * x, False),
        (_written, False),
        (lambda x, w: jg.concatenate([w[:1].detach(), x]) * w.T.detach().sum(), False),
    ],
)
def test_parameters_without_gradient_are_those_without_jit(
    function: Callable[..., Any], both: bool, captured: bool
) -> None:
    w, plain_w = leaf(1.0, 2.0, 3.0), leaf(1.0, 2.0, 3.0)
    jitted = jit(lambda x: function(x, w)) if captured else jit(function)
    for _ in range(2):
        x, plain_x = leaf(0.5, -1.0, 2.0), leaf(0.5, -1.0, 2.0)
        w.grad = plain_w.grad = None
        out, plain = jitted(*(x,) if captured else (x, w)), function(plain_x, plain_w)
        close(out, plain.detach().numpy())
        out.sum().backward()
        plain.sum().backward()
        close(x.grad, plain_x.grad.numpy())
        assert (w.grad is not None) is both
        assert (plain_w.grad is not None) is both
        if both:
            close(w.grad, plain_w.grad.numpy())


def test_calls_share_nothing_but_the_program() -> None:
    """Backward of an earlier call has the values of that call, whatever was called or bound since."""
    model = Holder(w=leaf(1.0, 2.0, 3.0))
    jitted = jit(lambda x: (x * x * model.w).sum())
    xs = [leaf(*X * k) for k in (1, 2, 3)]
    calls = []
    for k, x in enumerate(xs):
        model.w = leaf(k + 1.0, 2.0, 3.0)
        calls.append((jitted(x), model.w))
    for k, (x, (y, w)) in reversed(list(enumerate(zip(xs, calls, strict=True)))):
        y.backward(gradient=jg.tensor(2.0))
        close(w.grad, 2 * (X * (k + 1)) ** 2)
        close(x.grad, 4 * X * (k + 1) * np.array([k + 1.0, 2.0, 3.0]))


@pytest.mark.parametrize("first", ["compiled", "python"])
def test_backward_where_kernels_run_in_another_way(first: str) -> None:
    other = "python" if first == "compiled" else "compiled"
    w = leaf(1.0, 2.0, 3.0)
    jitted = jit(lambda x: (x * x * w).sum())
    for mode in (first, other, first):
        x = leaf(*X)
        w.grad = None
        with kernels(mode):
            y = jitted(x)
        with kernels(other):
            y.backward()
        close(w.grad, X * X)
        close(x.grad, 2 * X * np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    "gradient",
    [
        lambda f, w: jg.autograd.grad(f(w)[0].sum(), w)[0],
        lambda f, w: jg.autograd.grad(f(w)[0].sum(), w, create_graph=True)[0],
        lambda f, w: jg.grad(lambda u: f(u)[0].sum())(w),
        lambda f, w: jg.vjp(lambda u: f(u)[0], w)[1](jg.ones(2))[0],
        lambda f, w: (f(w)[0] * 2.0 + f(w)[0]).sum().backward() or w.grad / 3.0,
    ],
)
@pytest.mark.parametrize("other", [jg.sqrt, jg.log, lambda w: 1.0 / w, lambda w: jg.exp(1e5 * w) * w])
def test_a_result_without_cotangent_is_no_part_of_the_gradient(
    gradient: Callable[..., Any], other: Callable[..., Any]
) -> None:
    """Zeros in its place would be multiplied by its derivatives, which are infinite here."""
    close(gradient(jit(lambda w: (w * w, other(w))), leaf(0.0, 4.0)), [0.0, 8.0])


def test_a_rule_that_gives_none_beside_another_result() -> None:
    x, v = leaf(*X), leaf(1.0, 2.0, 3.0)
    first, second = jit(lambda x, v: (_FirstOnly.apply(x, v), v * 2.0))(x, v)
    first.sum().backward(retain_graph=True)
    close(x.grad, [1.0, 2.0, 3.0])
    assert v.grad is None
    second.sum().backward()
    close(v.grad, [2.0, 2.0, 2.0])


_COUNT, _MASK = jg.tensor(2), jg.tensor([1.0, 0.0, 3.0], requires_grad=True)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: jg.zeros(_COUNT.detach()) + x[:2], X[:2]),
        (lambda x: jg.repeat(x, _COUNT.detach()), np.repeat(X, 2)),
        (lambda x: jg.tile(x, _COUNT.detach()), np.tile(X, 2)),
        (lambda x: x[np.nonzero(_MASK.detach())], X[[0, 2]]),
        (lambda x: x * np.asarray(jg.asarray(_MASK.detach())), X * [1, 0, 3]),
        (lambda x: jg.vjp(lambda u: u * u, x.astype(np.float32))[1](_MASK.detach())[0], 2 * X * [1, 0, 3]),
    ],
)
def test_python_reads_what_an_operation_is_given_detached(function: Callable[..., Any], expected: Any) -> None:
    """Where a value decides shapes, it is that of the detached tensor."""
    np.testing.assert_allclose(np.asarray(jit(function)(X)), expected, rtol=1e-6)
