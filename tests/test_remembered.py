"""Calls that are made again without their checks: they give what the whole function gives, and never what another call gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.errors import ArgumentError, JitgradError, ShapeError
from jitgrad.ops.blocks import Operation
from jitgrad.ops.catalog import operations
from jitgrad.ops.softmax import softmax_kernel
from jitgrad.tensor.remembered import remembered_function
from jitgrad.transforms.surroundings import Surroundings

Array = np.ndarray[Any, Any]
REMEMBERED = {name: op for name, op in operations().items() if op.remembered and op.public}


def public(op: Operation[..., Any]) -> Callable[..., Any]:
    space = getattr(jg, op.namespace) if op.namespace else jg
    found: Callable[..., Any] = getattr(space, op.name)
    return found


def tensors_of(value: Any, change: Callable[[Array], Array]) -> Any:
    """Float arrays as leaves of changed values, other arrays as tensors, in lists and tuples too."""
    if isinstance(value, np.ndarray):
        return jg.tensor(change(value), requires_grad=True) if value.dtype.kind == "f" else jg.tensor(value)
    if isinstance(value, list | tuple):
        return type(value)([tensors_of(v, change) for v in value])
    return value


def leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for v in value for leaf in leaves(v)]
    return [value] if isinstance(value, jg.Tensor) and value.requires_grad else []


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Array]:
    """The result and the gradients, as arrays."""
    result = function(*args, **kwargs)
    arrays = [result.detach().numpy().copy()]
    if result.requires_grad:
        of = leaves([args, list(kwargs.values())])
        weights = np.cos(np.arange(result.size)).reshape(result.shape).astype(result.dtype)
        for g in jg.autograd.grad(result, of, grad_outputs=weights, allow_unused=True):
            arrays.append(np.zeros(0) if g is None else g.numpy())
    return arrays


@pytest.mark.parametrize("name", sorted(REMEMBERED))
def test_a_remembered_call_gives_what_the_whole_function_gives(name: str) -> None:
    op = REMEMBERED[name]
    assert op.samples is not None
    function, rng = public(op), np.random.default_rng(len(name))
    assert function is not op.function
    for call in op.samples(rng):
        for change in (lambda a: a, lambda a: a[...] * 0.75, lambda a: a[...] * 0.5):  # the first call is the whole one
            made, expected = [
                outcome(of, tensors_of(call.args, change), {k: tensors_of(v, change) for k, v in call.kwargs.items()})
                for of in (function, op.function)
            ]
            assert len(made) == len(expected)
            for a, b in zip(made, expected, strict=True):
                assert a.dtype == b.dtype
                assert a.shape == b.shape
                np.testing.assert_array_equal(a, b)


def test_which_of_two_equal_tensors_went_where_is_not_guessed() -> None:
    rng = np.random.default_rng(0)
    x, v = jg.tensor(rng.normal(size=(3, 3))), jg.tensor(rng.normal(size=3))
    jg.vecdot(x, x), jg.outer(v, v), jg.dot(x, x), jg.linalg.solve(x, x), jg.concat([x, x])
    a, b = rng.normal(size=(2, 3, 3))
    s, t = jg.tensor(a), jg.tensor(b)
    np.testing.assert_allclose(jg.dot(s, t).numpy(), a @ b)
    np.testing.assert_allclose(jg.linalg.solve(s, t).numpy(), np.linalg.solve(a, b))
    np.testing.assert_array_equal(jg.concat([s, t]).numpy(), np.concatenate([a, b]))
    np.testing.assert_allclose(jg.outer(s[0], t[0]).numpy(), np.outer(a[0], b[0]))
    condition = jg.tensor(a > b)
    jg.where(condition, x, x)
    np.testing.assert_array_equal(jg.where(condition, s, t).numpy(), np.where(a > b, a, b))
    for _ in range(3):  # a vector from the left is the second operand of its primitive
        v, m = rng.normal(size=3), rng.normal(size=(3, 3))
        np.testing.assert_allclose(jg.dot(jg.tensor(v), jg.tensor(m)).numpy(), v @ m)
        np.testing.assert_allclose(jg.dot(jg.tensor(m), jg.tensor(v)).numpy(), m @ v)


def test_equal_arguments_of_other_types_and_signs_are_other_calls() -> None:
    x = jg.tensor([-1.0, 2.0])
    for low in (0.0, -0.0, 0.0, -0.0):
        assert np.signbit(jg.clip(x, low, 1.0).numpy()[0]) == np.signbit(low)
    n = jg.tensor([1, 5])
    for low, kind in ((1, "i"), (1.0, "f"), (1, "i"), (1.0, "f")):
        assert jg.clip(n, low, 3).dtype.kind == kind
    for power, kind in ((2, "i"), (2.0, "f"), (2, "i")):
        assert (n**power).dtype.kind == kind
    with pytest.raises(ArgumentError):
        n**-1
    b = jg.tensor([True, False])
    for dtype in (np.float64, np.int64, float, int):
        assert b.astype(dtype).dtype == dtype
        assert jg.cumsum(jg.tensor([1.0]), dtype=dtype).dtype == dtype


def test_a_weak_number_is_another_argument_than_an_array_without_axes() -> None:
    x = jg.tensor(np.ones(2, np.float32))

    def run(k: Any) -> Any:
        return jg.where(jg.tensor([True, False]), x, k).dtype

    zero = jg.tensor(np.float64(1.0))
    assert run(zero) == run(zero) == np.float64
    assert jg.jit(lambda k: jg.where(jg.tensor([True, False]), x, k))(2.0).dtype == np.float32
    assert run(zero) == np.float64


def test_what_depends_on_strides_or_values_is_looked_at_each_time() -> None:
    a = jg.tensor(np.arange(24.0).reshape(4, 6))
    for _ in range(2):
        assert jg.reshape(a[:, :3], (4, 3, 1), copy=False).shape == (4, 3, 1)
        with pytest.raises(ArgumentError, match="copy"):
            jg.reshape(a[:, :3], (12,), copy=False)
        assert jg.reshape(a[:, ::2], (12,)).numpy().tolist() == a.numpy()[:, ::2].ravel().tolist()
    n = jg.tensor([2, 3])
    for exponent in ([1, 2], [2, 0]):
        np.testing.assert_array_equal((n ** jg.tensor(exponent)).numpy(), np.array([2, 3]) ** np.array(exponent))
    with pytest.raises(ArgumentError, match="negative"):
        n ** jg.tensor([1, -1])


def test_views_stay_views_and_writes_are_seen() -> None:
    x = jg.tensor(np.arange(6.0).reshape(2, 3))
    for _ in range(3):
        for view in (
            jg.reshape(x, (3, 2)),
            x.reshape(3, 2),
            x.T,
            jg.permute_dims(x),
            jg.expand_dims(x, 0),
            x.swapaxes(0, 1),
        ):
            before = x.numpy()[0, 0]
            view += 1.0
            assert x.numpy()[0, 0] == before + 1.0
    w = jg.tensor(np.ones((2, 2)), requires_grad=True)
    for _ in range(3):
        y = w * 2.0
        part = jg.reshape(y, (4,))
        y.mul_(3.0)
        (g,) = jg.autograd.grad(part.sum(), [w])
        np.testing.assert_array_equal(g.numpy(), np.full((2, 2), 6.0))


def test_grad_modes_are_those_of_the_moment() -> None:
    x = jg.tensor([[1.0, 2.0]], requires_grad=True)
    for _ in range(3):
        assert jg.softmax(x, -1).requires_grad
        with jg.no_grad():
            assert not jg.softmax(x, -1).requires_grad
        assert not jg.softmax(x.detach(), -1).requires_grad
    with pytest.raises(RuntimeError, match="no_grad"), jg.no_grad():
        jg.logsumexp(x).backward()


def test_wrong_calls_say_what_is_wrong_each_time() -> None:
    x, y = jg.tensor(np.ones((2, 3))), jg.tensor(np.ones((3, 3)))
    jg.softmax(x, 1), jg.concat([x, y])
    for _ in range(2):
        with pytest.raises(ShapeError, match="axis"):
            jg.softmax(x, 2)
        with pytest.raises(ShapeError, match="differ"):
            jg.concat([x, y], axis=1)
        with pytest.raises(TypeError):
            jg.softmax(x, 1, 2)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            jg.clip()  # type: ignore[call-arg]
        assert jg.clip(x=x, min=0.0).shape == (2, 3)


def test_a_trace_records_what_was_remembered_outside() -> None:
    w = jg.tensor([0.5, 2.0], requires_grad=True)
    for _ in range(2):
        jg.clip(w, 0.0, 1.0), jg.softmax(w, 0), jg.reshape(w, (2, 1))
    f = jg.jit(lambda x: (jg.clip(w, 0.0, 1.0) * x + jg.softmax(w, 0) + jg.reshape(w, (2, 1))[:, 0]).sum())
    for value in (1.0, 3.0):
        f(value).backward()
        expected = jg.grad(lambda w, x=value: (jg.clip(w, 0.0, 1.0) * x + w).sum())(np.array([0.5, 2.0]))
        np.testing.assert_allclose(w.grad.numpy(), expected, atol=1e-15)
        w.grad = None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x + jg.tensor([1.0, 2.0, 3.0]),
        lambda x: x @ jg.tensor([1.0, 2.0, 3.0]),
        lambda x: 1 - x[[0, 5]],
        lambda x: x[2],
        lambda x: x[0, 0],
        lambda x: x.sum(3),
        lambda x: x.reshape(3),
        lambda x: jg.softmax(x, 1),
        lambda x: jg.exp(jg.tensor(["a"])),
        lambda x: ~x,
    ],
)
def test_an_error_does_not_tell_of_a_plan_that_was_not_there(wrong: Callable[[Any], Any]) -> None:
    for _ in range(2):
        with pytest.raises(JitgradError) as caught:
            wrong(jg.tensor([1.0, 2.0]))
        error = caught.value
        assert error.__suppress_context__ or not isinstance(error.__context__, KeyError)


@pytest.mark.parametrize("name", sorted(REMEMBERED))
def test_a_second_call_does_not_run_the_whole_function(name: str) -> None:
    op, runs, spared = REMEMBERED[name], [0], 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        runs[0] += 1
        return op.function(*args, **kwargs)

    function = remembered_function(counted)
    assert op.samples is not None
    for call in op.samples(np.random.default_rng(0)):
        for scale in (1.0, 0.5):
            runs[0] = 0
            args = tensors_of(call.args, lambda a, scale=scale: a[...] * scale)
            function(*args, **{k: tensors_of(v, np.copy) for k, v in call.kwargs.items()})
        spared += not runs[0]
    assert spared, "remember no function that is never one primitive"


class Model:
    """A function that finds an operation and its parameter in attributes."""

    def __init__(self, operation: Callable[..., Any], w: Any) -> None:
        self.operation, self.w = operation, w

    def __call__(self, x: Any) -> Any:
        return self.operation(self.w) * x


@pytest.mark.parametrize(
    "operation",
    [
        jg.elu,
        lambda w, act=jg.elu: act(w, 0.5),
        lambda w, act=jg.clip: act(w, 0.0, 1.0),
        lambda w, act=jg.power: act(w, 2.5),
        lambda w, act=jg.softmax: act(w, -1),
        lambda w, act=jg.tanh: act(w),
    ],
)
def test_what_is_remembered_is_nothing_that_a_function_captures(operation: Callable[..., Any]) -> None:
    w = jg.tensor([0.25, 2.0], requires_grad=True)
    for _ in range(2):
        operation(jg.tensor([1.0, 1.0]))
    jg.jit(Model(operation, w))(2.0).sum().backward()
    (expected,) = jg.autograd.grad((operation(w) * 2.0).sum(), [w])
    np.testing.assert_allclose(w.grad.numpy(), expected.numpy(), rtol=1e-14)
    model = Model(operation, w)
    places = len(Surroundings(model, ())._walk().places)
    for n in range(3, 40):
        operation(jg.tensor(np.ones(n)))
    assert len(Surroundings(model, ())._walk().places) == places


def table_sizes(function: Any) -> int:
    tables = [c.cell_contents for c in function.__closure__ if isinstance(c.cell_contents, dict)]
    assert tables
    return max(map(len, tables))


def test_tables_do_not_fill_with_what_is_never_found_again() -> None:
    x = jg.tensor([[1.0, 2.0]] * 3)
    jg.softmax(x, -1), jg.clip(x, 0.0, 1.0), jg.dot(x[0], x[1])
    sizes = [table_sizes(f) for f in (jg.softmax, jg.clip, jg.dot)]
    for k in range(100):
        jg.vmap(lambda r: jg.softmax(r, -1))(x)
        jg.clip(x, -float(k), float("nan"))
        jg.dot(jg.tensor(np.ones(50)), [1.0] * 50)
    grown = [table_sizes(f) - size for f, size in zip((jg.softmax, jg.clip, jg.dot), sizes, strict=True)]
    assert grown[0] == 0
    assert grown[1] <= 32
    assert grown[2] == 0
    np.testing.assert_array_equal(jg.clip(x, 1.5, 1.75).numpy(), np.clip(x.numpy(), 1.5, 1.75))


def test_anomalies_are_found_in_a_remembered_call() -> None:
    x = jg.tensor([0.0, 4.0], requires_grad=True)
    for _ in range(2):
        jg.power(x, 0.5), jg.clip(x, 0.0, 9.0)
    with jg.autograd.detect_anomaly():
        y = jg.clip(x, 0.0, 9.0) / x.detach()
        with pytest.raises(RuntimeError, match="test_remembered"):
            y.sum().backward()


@pytest.mark.parametrize("distance", range(12))
def test_softmax_adds_up_in_one_order_wherever_its_result_lies(distance: int) -> None:
    row = np.random.default_rng(3).normal(size=24)
    memory = np.zeros(128)
    x, out, apart = memory[:24].reshape(1, 24), memory[24 + distance : 48 + distance].reshape(1, 24), np.zeros((1, 24))
    for shift in np.linspace(0.0, 1.0, 50):
        x[0] = row + shift * np.arange(24)
        softmax_kernel(x, 0.0, out)
        softmax_kernel(x.copy(), 0.0, apart)
        np.testing.assert_array_equal(out, apart)
