"""jit: the same numbers as eagerly, for every operation and for programs of them; the calling convention; the errors.

Eager results are the oracle here: their own tests compare them with NumPy, mpmath and finite differences. Where a rule of
the semantics is at stake the expected numbers are written out. Most tests run the emitted source as plain Python.
"""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_operations as ops
from hypothesis import given
from hypothesis import strategies as st
from programs import Program, programs
from strategies import LAYOUTS, examples, kernels, laid_out

import jitgrad as jg
from jitgrad import config
from jitgrad.errors import (
    ArgumentError,
    ConversionError,
    DtypeError,
    GraphError,
    InPlaceError,
    JitgradError,
    LeakedTracerError,
    NoGraphError,
    ShapeError,
    TracedValueError,
    UnsupportedError,
)
from jitgrad.kernels.kernel import counters
from jitgrad.tensor import Tensor
from jitgrad.transforms.jit import jit

Array = np.ndarray[Any, Any]


@pytest.fixture
def compiled_kernels() -> None:
    """For tests that run compiled kernels; the others run them as plain Python."""


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with kernels("compiled" if "compiled_kernels" in request.fixturenames else "python"):
        yield


compiled = pytest.mark.usefixtures("compiled_kernels")


def array(value: Any) -> Array:
    return value._value if isinstance(value, Tensor) else np.asarray(value)


def assert_same(actual: Any, expected: Any, what: str = "") -> None:
    """Equal up to the order of summation; NaN and infinities in the same places."""
    got, want = array(actual), array(expected)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}"
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    finite = np.abs(want[np.isfinite(want)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    np.testing.assert_allclose(
        got, want, rtol=0, atol=(1e-5 if want.dtype == np.float32 else 1e-12) * scale, equal_nan=True, err_msg=what
    )


def assert_all_same(actual: Any, expected: Any, what: str = "") -> None:
    assert len(actual) == len(expected)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_same(a, e, f"{what}, result {i}")


def shared(a: Any, b: Any) -> bool:
    return bool(np.may_share_memory(array(a), array(b)))


# --------------------------------------------------------------------------------------------- every operation

BY_VALUE = {"argwhere", "flatnonzero", "nonzero"}
"""The shape of what these give depends on values, which a traced function cannot know."""


def weighted(results: list[Any]) -> Any:
    """A number that depends on every element of all float results."""
    total: Any = 0.0
    for r in results:
        if array_dtype(r).kind == "f":
            total = total + (r * (1.5 + np.cos(np.arange(float(r.size)))).reshape(r.shape).astype(r.dtype)).sum()
    return total


def array_dtype(value: Any) -> np.dtype[Any]:
    return value.dtype if isinstance(value, Tensor) else np.asarray(value).dtype


def with_arrays(call: ops.Sample) -> Callable[..., list[Any]]:
    return lambda *arrays: call.with_arrays(arrays)()


@pytest.mark.parametrize("name", ops.SAMPLED)
def test_values_of_every_operation(name: str) -> None:
    for call in ops.samples(name):
        given_arrays = [jg.tensor(a) for a in call.arrays]
        expected = with_arrays(call)(*given_arrays)
        if name in BY_VALUE and given_arrays:
            with pytest.raises(TracedValueError, match=name):
                jit(with_arrays(call))(*given_arrays)
            continue
        assert_all_same(jit(with_arrays(call))(*given_arrays), expected, f"{name} {call.kwargs}")


@pytest.mark.parametrize("name", ops.SAMPLED)
def test_values_of_every_operation_in_float32(name: str) -> None:
    for call in ops.samples(name)[:2]:
        if name in BY_VALUE:
            continue
        given_arrays = [jg.tensor(a, dtype=np.float32) for a in call.arrays]
        expected = with_arrays(call)(*given_arrays)
        results = jit(with_arrays(call))(*given_arrays)
        for a, e in zip(results, expected, strict=True):
            assert array_dtype(a) == array_dtype(e)
            # what is made of rounded inputs may lie on the two sides of a step; one ULP of the input apart is the same
            assert_same(a, e, f"{name} {call.kwargs}")


@pytest.mark.parametrize("name", ops.DIFFERENTIABLE)
def test_gradients_of_every_operation(name: str) -> None:
    for call in ops.samples(name):
        places = tuple(i for i in range(len(call.arrays)) if i not in call.constant)
        results = with_arrays(call)(*[jg.tensor(a) for a in call.arrays])
        if not places or not any(array_dtype(r).kind == "f" for r in results):
            continue

        def value(*arrays: Any, call: ops.Sample = call) -> Any:
            return weighted(with_arrays(call)(*arrays))

        def slope(*arrays: Any, value: Any = value, places: Any = places) -> Any:
            return weighted([jg.sin(g) for g in jg.grad(value, argnums=places)(*arrays)])

        what = f"{name} {call.kwargs}"
        expected = jg.value_and_grad(value, argnums=places)(*call.arrays)
        found = jit(jg.value_and_grad(value, argnums=places))(*call.arrays)
        assert_same(found[0], expected[0], what)
        assert_all_same(found[1], expected[1], f"gradient of {what}")
        found = jg.value_and_grad(jit(value), argnums=places)(*call.arrays)
        assert_all_same(found[1], expected[1], f"gradient through jit of {what}")
        expected = jg.grad(slope, argnums=places)(*call.arrays)
        assert_all_same(jit(jg.grad(slope, argnums=places))(*call.arrays), expected, f"second gradient of {what}")


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e300, -1e300, 0.5])


@pytest.mark.parametrize("name", [n for n in ops.ELEMENTWISE if n in ops.DIFFERENTIABLE])
def test_nans_and_infinities_of_every_operation(name: str) -> None:
    op = ops.ALL[name]
    count = len(op.domains)
    grids = (
        np.meshgrid(*[SPECIAL] * count, indexing="ij") if count < 3 else [SPECIAL, SPECIAL[::-1], np.roll(SPECIAL, 5)]
    )
    args = [np.ascontiguousarray(g) for g in grids]
    assert op.primitive is not None
    for i, dtype in op.primitive.impl.fixed.items():
        args[i] = (args[i] > 0).astype(dtype)
    if "f" in op.primitive.impl.refuses:
        return
    floats = tuple(i for i, a in enumerate(args) if a.dtype.kind == "f")

    def both(*xs: Any) -> Any:
        value, pull = jg.vjp(lambda *moving: op.function(*_merged(xs, floats, moving)), *[xs[i] for i in floats])
        return value, pull(jg.ones_like(value) if value.dtype.kind == "f" else value)

    if np.asarray(array(op.function(*args))).dtype.kind != "f":
        assert_same(jit(op.function)(*args), op.function(*args), name)
        return
    expected, gradients = both(*args)
    value, found = jit(both)(*args)
    assert_same(value, expected, name)
    assert_all_same(found, gradients, f"gradient of {name}")
    assert_same_elements(value, expected, name)
    assert_same_elements(found, gradients, f"gradient of {name}")


def assert_same_elements(actual: Any, expected: Any, what: str) -> None:
    """Each element equal to a few ulp of itself, however large the others are."""
    for got, want in zip(results_of(actual), results_of(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=0, equal_nan=True, err_msg=what)


def results_of(found: Any) -> list[Array]:
    return [array(v) for v in (found if isinstance(found, tuple | list) else (found,))]


def _merged(xs: Any, places: Any, moving: Any) -> list[Any]:
    merged = list(xs)
    for i, m in zip(places, moving, strict=True):
        merged[i] = m
    return merged


# --------------------------------------------------------------------------------------------- programs


@examples(60)
@given(programs())
def test_random_programs(program: Program) -> None:
    arrays = program.arrays()
    expected = program(*[jg.tensor(a) for a in arrays])
    before = [a.copy() for a in arrays]
    function = jit(program)
    for _ in range(2):
        found = function(*arrays)
        assert_same(found, expected, str(program))
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b)


@examples(40)
@given(programs())
def test_gradients_of_random_programs(program: Program) -> None:
    arrays = program.arrays()
    places = tuple(range(len(arrays)))
    expected = jg.value_and_grad(program.scalar, argnums=places)(*arrays)
    found = jit(jg.value_and_grad(program.scalar, argnums=places))(*arrays)
    assert_same(found[0], expected[0], str(program))
    assert_all_same(found[1], expected[1], str(program))
    found = jg.value_and_grad(jit(program.scalar), argnums=places)(*arrays)
    assert_all_same(found[1], expected[1], str(program))


@examples(15)
@given(programs(most_steps=4))
def test_second_gradients_of_random_programs(program: Program) -> None:
    arrays = program.arrays()
    places = tuple(range(len(arrays)))

    def slope(*xs: Any) -> Any:
        return weighted([jg.sin(g) for g in jg.grad(program.scalar, argnums=places)(*xs)])

    expected = jg.grad(slope, argnums=places)(*arrays)
    assert_all_same(jit(jg.grad(slope, argnums=places))(*arrays), expected, str(program))
    leaves = [jg.tensor(a, requires_grad=True) for a in arrays]
    first = jg.autograd.grad(jit(program.scalar)(*leaves), leaves, create_graph=True, materialize_grads=True)
    total = weighted([jg.sin(g) for g in first])
    if total.requires_grad:
        second = jg.autograd.grad(total, leaves, materialize_grads=True)
        assert_all_same([g.detach() for g in second], [np.asarray(e) for e in expected], str(program))


# --------------------------------------------------------------------------------------------- writes, views, detach

ALIASES: dict[str, Callable[[Any], Any]] = {}


def alias(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    ALIASES[function.__name__] = function
    return function


@alias
def write_through_a_view(x: Any) -> Any:
    c = x * 2
    row = c[0]
    row += 10
    return c


@alias
def view_sees_a_write_to_its_base(x: Any) -> Any:
    c = x * 2
    row = c[0]
    c[0] = 7.0
    return row * c


@alias
def view_of_a_view(x: Any) -> Any:
    c = x * 2
    v = c[1:][:, ::2]
    v *= x[1:, ::2]
    return c + v.sum()


@alias
def detached_alias_sees_a_write(x: Any) -> Any:
    c = x * 2
    d = c.detach()
    c += 1
    return c * d


@alias
def write_through_a_detached_alias(x: Any) -> Any:
    c = x * 2
    d = c.detach()
    d[0] = 0.0
    return c * x


@alias
def view_of_detached_view(x: Any) -> Any:
    c = x * 2
    d = c[1:].detach()[:, 1:]
    d += x.detach()[1:, 1:]
    return c * x


@alias
def transposed_write(x: Any) -> Any:
    c = x * x
    t = c.T
    t[0] = t[1] * 2
    return c


@alias
def reshape_is_a_view(x: Any) -> Any:
    c = x * x
    t = c.reshape(-1)
    t[1] = 5.0
    return c


@alias
def reshape_that_copies(x: Any) -> Any:
    c = x * x
    t = c.T.reshape(-1)
    t[1] = 5.0
    return c + t.sum()


@alias
def argument_written(x: Any) -> Any:
    row = x[0]
    row[...] = 3.0
    x += 1
    return x * 2


@alias
def recurrence_in_place(x: Any) -> Any:
    c = jg.zeros((x.shape[0] + 1, x.shape[1]))
    for i in range(x.shape[0]):
        c[i + 1] = c[i] * c[i] + x[i]
    return c


@alias
def augmented_items(x: Any) -> Any:
    c = x * 1
    for i in range(x.shape[0]):
        c[i] += x[i] * i
        c[:, 0] *= 2.0
    return c


@alias
def write_under_no_grad(x: Any) -> Any:
    c = x * 2
    row = c[0]
    with jg.no_grad():
        row *= 3.0
    return c * x


@alias
def two_views_written_in_turn(x: Any) -> Any:
    c = x * 2
    a, b = c[0], c[:, 1]
    a += b.sum()
    b *= a.sum()
    return c + a


@alias
def integer_indices_written(x: Any) -> Any:
    c = x * 2
    row = c[1]
    row[np.array([0, 2])] = x[0, :2]
    return c


@alias
def rows_swapped(x: Any) -> Any:
    c = x * 1
    kept = c[0].clone()
    c[0] = c[1]
    c[1] = kept
    return c * x


@alias
def constant_mask_written(x: Any) -> Any:
    c = x * x
    c[np.array([[True, False, True], [False, False, True]])] = 0.25
    return c


@alias
def number_where_a_mask_holds(x: Any) -> Any:
    c = x * x
    c[c > 9.0] = 0.25
    c[:, 1:][x[:, 1:] < 3.0] = 2
    return c


@alias
def traced_number_where_a_mask_of_rows_holds(x: Any) -> Any:
    c = x * x
    c[x[:, 0] > 2.0] = x[0, 0]
    return c * x


def scalar_of(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: weighted([function(x)])


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_writes_views_and_detach(name: str) -> None:
    function = ALIASES[name]
    x = np.arange(1.0, 7.0).reshape(2, 3) + 0.5
    kept = x.copy()
    assert_same(jit(function)(x), function(jg.tensor(x)))
    scalar = scalar_of(function)
    expected = jg.grad(scalar)(x)
    assert_same(jit(jg.grad(scalar))(x), expected)
    assert_same(jg.grad(jit(scalar))(x), expected)
    second = jg.grad(lambda v: weighted([jg.sin(jg.grad(scalar)(v))]))
    assert_same(jit(second)(x), second(x))
    np.testing.assert_array_equal(x, kept)


def test_what_cannot_be_written_raises_as_it_does_eagerly() -> None:
    def read_only(x: Any) -> Any:
        jg.diagonal(x)[0] = 1.0
        return x

    def repeated(x: Any) -> Any:
        y = jg.broadcast_to(x * 1, (2, 2, 2))
        y += 1
        return y

    for function, message in ((read_only, "read-only"), (repeated, "broadcast")):
        with pytest.raises(InPlaceError, match=message):
            jit(function)(np.ones((2, 2)))


@pytest.mark.parametrize("write", ["w[0] = x[0]", "w += x", "w[0] = 5.0", "v = w[1:]; v += 1.0", "w.zero_()"])
def test_captured_tensors_are_not_written(write: str) -> None:
    w = jg.tensor([1.0, 2.0])
    space: dict[str, Any] = {"w": w}
    exec(f"def f(x):\n    global w\n    {write}\n    return x", space)
    with pytest.raises(InPlaceError, match="captured tensor"):
        jit(space["f"])(np.ones(2))
    assert w.tolist() == [1.0, 2.0]


def test_arrays_made_inside_may_be_written() -> None:
    def f(x: Any) -> Any:
        c = jg.zeros(3)
        total = x * c
        for i in range(3):
            c[i] = float(i)
            total = total + x * c
        return total

    np.testing.assert_array_equal(jit(f)(np.ones(3)), [0.0, 2.0, 2.0])
    np.testing.assert_array_equal(jit(f)(np.ones(3)), [0.0, 2.0, 2.0])


def test_an_ndarray_written_while_tracing_counts_as_it_was_at_each_use() -> None:
    def f(x: Any) -> Any:
        c = np.zeros(3)
        total = x * c
        for i in range(3):
            c[i] = 1.0
            total = total + x * c
            c[i] = 0.0
        return total

    function = jit(f)
    for _ in range(2):
        np.testing.assert_array_equal(function(np.ones(3)), [1.0, 1.0, 1.0])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8, np.uint8, np.bool_])
def test_results_share_no_memory(dtype: Any) -> None:
    w = np.ones(3)
    cases: list[Callable[[Any], Any]] = [
        lambda x: x, lambda x: x[::-1], lambda x: x.reshape(3, 1), lambda x: (w, jg.asarray(w)[1:]), lambda x: (x, x),
        lambda x: (x, x[:2]), lambda x: jg.broadcast_to(x, (2, 3)), lambda x: x[...],
    ]  # fmt: skip
    for case in cases:
        x = np.ones(3, dtype)
        function = jit(case)
        for given_x in (x, x, jg.tensor(x), x[::-1]):
            found = function(given_x)
            results = found if isinstance(found, tuple) else (found,)
            for r in results:
                assert not shared(r, given_x)
                assert not shared(r, w)
                assert array(r).flags.writeable
                assert array(r).flags.c_contiguous
            assert len(results) == 1 or not shared(*results)
    tracked = jg.tensor(np.ones(3), requires_grad=True)
    leaf = jg.tensor(np.ones(3), requires_grad=True)
    for case in (lambda x: x, lambda x: x[1:], lambda x: (x * leaf, x)[1], lambda x: (x * leaf, leaf)[1]):
        assert not shared(jit(case)(tracked), tracked)
        assert not shared(jit(case)(tracked), leaf)
        assert not shared(jit(case)(np.ones(3)), leaf)


# --------------------------------------------------------------------------------------------- captured values


def test_captured_arrays_are_read_at_each_call() -> None:
    w, scale, count = np.ones(3), np.array(2.0), np.arange(3)
    function = jit(lambda x: x * w * scale + count)
    x = np.ones(3)
    np.testing.assert_array_equal(function(x), [2.0, 3.0, 4.0])
    w[1], scale[...], count[2] = 7.0, 3.0, 9
    np.testing.assert_array_equal(function(x), [3.0, 22.0, 12.0])


def test_captured_tensors_are_read_at_each_call() -> None:
    w, scale = jg.tensor([1.0, 2.0, 3.0]), jg.tensor(2.0)
    function = jit(lambda x: x * (w * 2 + jg.sum(w)) * scale)
    np.testing.assert_array_equal(array(function(np.ones(3))), [16.0, 20.0, 24.0])
    w[0] = 10.0
    scale.fill_(1.0)
    np.testing.assert_array_equal(array(function(np.ones(3))), [35.0, 19.0, 21.0])
    with jg.no_grad():
        w.mul_(0.0)
    np.testing.assert_array_equal(array(function(np.ones(3))), [0.0, 0.0, 0.0])


def test_operations_on_captured_arrays_alone_are_repeated() -> None:
    w = np.array([1.0, 2.0, 3.0])
    function = jit(lambda x: (x * jg.sum(w), jg.exp(w[0] * jg.tensor(1.0))))
    assert function(np.ones(1))[0][0] == 6.0
    w += 1
    assert function(np.ones(1))[0][0] == 9.0


def test_what_python_reads_of_captured_arrays_is_noticed_when_it_changes() -> None:
    mask, places, level = np.array([True, False, True]), np.array([0, 2]), jg.tensor(2.0)

    def f(x: Any) -> Any:
        factor = 2.0 if level > 1.0 else 1.0
        return x[mask].sum() * factor + x[places].sum()

    with pytest.raises(TracedValueError, match="bool"):  # a captured value is an argument: Python cannot decide on it
        jit(f)(np.ones(3))
    function = jit(lambda x: (x[mask], x[places], level.item() * x))
    x = np.arange(3.0)
    first = function(x)
    np.testing.assert_array_equal(first[0], [0.0, 2.0])
    mask[1], places[0] = True, 1
    level.fill_(5.0)
    for _ in range(2):
        masked, gathered, scaled = function(x)
        np.testing.assert_array_equal(masked, [0.0, 1.0, 2.0])
        np.testing.assert_array_equal(gathered, [1.0, 2.0])
        np.testing.assert_array_equal(scaled, [0.0, 5.0, 10.0])


def test_captured_tracked_tensors_get_gradients() -> None:
    w = jg.tensor([1.0, 2.0], requires_grad=True)
    b = jg.tensor(1.0)
    function = jit(lambda x: (x * w * w + b * 2).sum())
    x = np.array([3.0, 4.0])
    for round_ in (1, 2):
        function(x).backward()
        assert w.grad is not None
        assert w.grad.tolist() == [6.0 * round_, 16.0 * round_]
    (first,) = jg.autograd.grad(function(x), w, create_graph=True)
    (second,) = jg.autograd.grad(first.sum(), w)
    assert second.tolist() == [6.0, 8.0]
    b.requires_grad_()
    function(x).backward()
    assert b.grad is not None
    assert b.grad.item() == 4.0
    with jg.no_grad():
        assert function(x) == 3.0 + 16.0 + 4.0
    w.requires_grad_(False)
    b.requires_grad_(False)
    assert function(x) == 3.0 + 16.0 + 4.0


def test_captured_tensor_that_requires_grad_later() -> None:
    w = jg.tensor([1.0, 2.0])
    function = jit(lambda x: (x * w).sum())
    x = np.ones(2)
    assert function(x) == 3.0
    assert function(x) == 3.0
    w.requires_grad_()
    function(x).backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 1.0]


@compiled
def test_captured_tensor_that_requires_grad_later_compiled() -> None:
    test_captured_tensor_that_requires_grad_later()


def test_captured_and_argument_both_tracked() -> None:
    w, x = jg.tensor([1.0, 2.0], requires_grad=True), jg.tensor([3.0, 4.0], requires_grad=True)
    jit(lambda v: (v * v * w).sum())(x).backward()
    assert w.grad is not None
    assert x.grad is not None
    assert w.grad.tolist() == [9.0, 16.0]
    assert x.grad.tolist() == [6.0, 16.0]


def test_a_captured_tensor_that_changes_before_backward() -> None:
    w, x = jg.tensor([1.0, 2.0]), jg.tensor([1.0, 2.0], requires_grad=True)
    function = jit(lambda v: (v * w).sum())
    y = function(x)
    w.mul_(10.0)  # nobody else sees the memory: backward keeps the old values
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 2.0]
    x.grad = None
    function(x).backward()
    assert x.grad.tolist() == [10.0, 20.0]
    seen = w.detach()
    y = function(x)
    seen.mul_(2.0)
    with pytest.raises(InPlaceError, match="overwritten"):
        y.backward()


def test_an_argument_written_before_backward() -> None:
    function = jit(lambda v: (v * v).sum())
    x = jg.tensor([1.0, 2.0], requires_grad=True)
    y = function(x)
    with jg.no_grad():
        x.mul_(10.0)  # nobody else sees the memory: backward keeps the old values
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]
    x = jg.tensor([1.0, 2.0], requires_grad=True)
    seen = x.detach()
    y = function(x)
    seen.mul_(10.0)
    with pytest.raises(InPlaceError, match="jit"):
        y.backward()


# --------------------------------------------------------------------------------------------- gradients through jit


def test_tracked_arguments_of_any_order() -> None:
    function = jit(lambda v: (v**4).sum())
    x = jg.tensor([1.0, 2.0], requires_grad=True)
    value = function(x)
    for expected in ([4.0, 32.0], [12.0, 48.0], [24.0, 48.0], [24.0, 24.0]):
        (gradient,) = jg.autograd.grad(value, x, create_graph=True)
        np.testing.assert_allclose(array(gradient.detach()), expected, rtol=1e-14)
        value = gradient.sum()


def test_several_results_some_of_them_unused_or_not_differentiable() -> None:
    function = jit(lambda a, b: {"product": a * b, "sum": a.sum(), "sign": a > 0})
    x, y = jg.tensor([1.0, 2.0], requires_grad=True), jg.tensor([3.0, 4.0], requires_grad=True)
    found = function(x, y)
    assert not found["sign"].requires_grad
    (found["product"].sum() + found["sum"]).backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [4.0, 5.0]
    assert y.grad.tolist() == [1.0, 2.0]
    x.grad = None
    function(x, y)["sum"].backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_bool_and_number_results_beside_a_gradient() -> None:
    x = jg.tensor([1.0, 2.0], requires_grad=True)
    positive, total, name = jit(lambda v: (v > 0, v.sum() * 2, "name"))(x)
    total.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
    assert name == "name"
    assert positive.tolist() == [True, True]


def test_detach_alike_in_any_order_of_jit_and_grad() -> None:
    x = np.arange(3.0)

    def f(v: Any) -> Any:
        return (v * v.detach() * jg.sin(v.detach())).sum()

    expected = x * np.sin(x)
    for g in (jg.grad(f), jg.grad(jit(f)), jit(jg.grad(f)), jit(jg.grad(jit(f)))):
        np.testing.assert_allclose(g(x), expected, rtol=1e-14)
    assert not jit(lambda v: v.detach() * 2)(jg.tensor(x, requires_grad=True)).detach().requires_grad
    second = jg.grad(lambda v: jg.grad(f)(v).sum())
    np.testing.assert_array_equal(jit(second)(x), second(x))


def test_no_grad_inside() -> None:
    def f(v: Any) -> Any:
        with jg.no_grad():
            w = v * 2
        return (w * v).sum()

    x = np.arange(3.0)
    for g in (jg.grad(f), jg.grad(jit(f)), jit(jg.grad(f))):
        np.testing.assert_array_equal(g(x), 2 * x)
    t = jg.tensor(x, requires_grad=True)
    jit(f)(t).backward()
    assert t.grad is not None
    np.testing.assert_array_equal(array(t.grad), 2 * x)


def test_nested_jit() -> None:
    inner = jit(lambda v: jg.sin(v) * 2)

    def f(v: Any) -> Any:
        return inner(v).sum() + inner(v * 2).sum()

    def closure(v: Any) -> Any:
        return jit(lambda u: u * v)(np.ones(3)).sum()

    x = np.arange(3.0)
    np.testing.assert_allclose(jit(f)(x), (2 * np.sin(x) + 2 * np.sin(2 * x)).sum(), rtol=1e-14)
    np.testing.assert_allclose(jit(jg.grad(f))(x), 2 * np.cos(x) + 4 * np.cos(2 * x), rtol=1e-14)
    assert jit(closure)(x) == 3.0
    np.testing.assert_array_equal(jit(jg.grad(closure))(x), 1.0)
    np.testing.assert_array_equal(jg.grad(closure)(x), 1.0)


def test_nested_jit_gets_private_arguments() -> None:
    def writes(v: Any) -> Any:
        v += 1
        return v

    inner = jit(writes)

    def f(v: Any) -> Any:
        u = v * 2
        return inner(u) * u

    np.testing.assert_array_equal(jit(f)(np.ones(2)), [6.0, 6.0])
    w = jg.tensor([1.0, 1.0], requires_grad=True)
    x = np.zeros(2)

    def writes_beside_tracked(v: Any) -> Any:
        v += 1
        return v * w

    jit(writes_beside_tracked)(x).sum().backward()
    np.testing.assert_array_equal(x, 0.0)


def test_forward_mode() -> None:
    x, v = np.arange(3.0), np.array([1.0, -1.0, 2.0])

    def f(u: Any) -> Any:
        return jg.sin(u) * u

    slope = np.cos(x) * x + np.sin(x)
    for value, tangent in (jg.jvp(jit(f), (x,), (v,)), jit(lambda a, b: jg.jvp(f, (a,), (b,)))(x, v)):
        np.testing.assert_allclose(value, np.sin(x) * x, rtol=1e-14)
        np.testing.assert_allclose(tangent, slope * v, rtol=1e-14)
    for jacobian in (jg.jacfwd(jit(f)), jit(jg.jacfwd(f)), jg.jacrev(jit(f)), jit(jg.jacrev(f))):
        np.testing.assert_allclose(jacobian(x), np.diag(slope), rtol=1e-14, atol=1e-15)


def test_hessians() -> None:
    x = np.array([1.0, 2.0, 3.0])

    def f(u: Any) -> Any:
        return (u**3).sum() * u[0]

    expected = np.diag(6 * x * x[0])
    expected[0] += 3 * x**2
    expected[:, 0] += 3 * x**2
    for hessian in (jg.hessian(f), jg.hessian(jit(f)), jit(jg.hessian(f))):
        np.testing.assert_allclose(hessian(x), expected, rtol=1e-14)
    v = np.array([1.0, 0.0, -1.0])
    for product in (jg.hvp(jit(f)), jit(jg.hvp(f))):
        np.testing.assert_allclose(product(x, v), expected @ v, rtol=1e-13)


def test_vmap() -> None:
    x = np.arange(6.0).reshape(2, 3)

    def f(u: Any) -> Any:
        return (jg.sin(u) * u).sum()

    expected = (np.sin(x) * x).sum(axis=1)
    np.testing.assert_allclose(jit(jg.vmap(f))(x), expected, rtol=1e-14)
    np.testing.assert_allclose(jg.vmap(jit(f))(x), expected, rtol=1e-14)
    np.testing.assert_allclose(jit(jg.vmap(jg.grad(f)))(x), np.cos(x) * x + np.sin(x), rtol=1e-14)


STRUCTURAL: dict[str, Callable[[Any], Any]] = {
    "where": lambda x: jg.where(x > 0, jg.sqrt(x), 0.0).sum(),
    "slice": lambda x: jg.sqrt(x)[1:].sum(),
    "gather": lambda x: jg.sqrt(x)[np.array([2, 1])].sum(),
    "square": lambda x: (jg.sqrt(x) ** 2).sum(),
    "broadcast": lambda x: (jg.sqrt(x) * np.array([[0.0], [1.0]])).sum(),
}


@pytest.mark.parametrize(
    ("name", "first"), [("where", 0.0), ("slice", 0.0), ("gather", 0.0), ("square", np.nan), ("broadcast", np.inf)]
)
def test_structural_zeros(name: str, first: float) -> None:
    f = STRUCTURAL[name]
    x = np.array([0.0, 1.0, 4.0])
    expected = jg.grad(f)(x)
    np.testing.assert_equal(expected[0], first)
    np.testing.assert_array_equal(jit(jg.grad(f))(x), expected)
    np.testing.assert_array_equal(jg.grad(jit(f))(x), expected)


def test_structural_zeros_pass_through_conversions() -> None:
    def f(x: Any) -> Any:
        root = jg.sqrt(x)
        single = root.astype(np.float32).astype(np.float64)
        return (single[1:] * 2).sum() + (single[1:] ** 2).sum()

    x = np.array([0.0, 1.0, 4.0])
    for g in (jg.grad(f), jit(jg.grad(f)), jg.grad(jit(f))):
        np.testing.assert_allclose(g(x), [0.0, 2.0, 1.5], rtol=1e-7)


def test_structural_zeros_that_enter_a_jitted_function() -> None:
    for chosen in (lambda y: y[1:], lambda y: jg.where(np.array([False, True, True]), y, 0.0)):
        x = jg.tensor([0.0, 1.0, 4.0], requires_grad=True)
        chosen(jit(jg.sqrt)(x)).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0, 0.5, 0.25]


# --------------------------------------------------------------------------------------------- arguments and results

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Parameters:
    weights: Any
    bias: Any


def test_containers() -> None:
    function = jit(lambda p, *, scale, extra=1.0: {"out": [p["a"] * scale, p["b"][0] + extra]})
    p = {"a": np.ones(2), "b": (np.zeros(2),)}
    np.testing.assert_array_equal(function(p, scale=2.0)["out"], [[2.0, 2.0], [1.0, 1.0]])
    np.testing.assert_array_equal(function(p, scale=2.0, extra=3.0)["out"], [[2.0, 2.0], [3.0, 3.0]])
    np.testing.assert_array_equal(function(p, extra=3.0, scale=4.0)["out"], [[4.0, 4.0], [3.0, 3.0]])
    pair = jit(lambda q: Pair(q.right, q.left * 2))(Pair(np.ones(1), np.zeros(1)))
    assert isinstance(pair, Pair)
    assert pair.right[0] == 2.0
    made = jit(lambda q: Parameters(q.weights * 2, q.bias))(Parameters(np.ones(1), 3.0))
    assert isinstance(made, Parameters)
    assert made.weights[0] == 2.0
    assert made.bias == 3.0
    gradient = jit(jg.grad(lambda q: (q.weights * q.bias).sum()))(Parameters(np.ones(2), 3.0))
    np.testing.assert_array_equal(gradient.weights, [3.0, 3.0])
    assert gradient.bias == 2.0
    tracked = {"a": jg.tensor([1.0, 2.0], requires_grad=True), "b": jg.tensor([3.0, 4.0])}
    jit(lambda q: (q["a"] * q["b"]).sum())(tracked).backward()
    assert tracked["a"].grad is not None
    assert tracked["a"].grad.tolist() == [3.0, 4.0]


def test_results_that_are_no_arrays() -> None:
    function = jit(lambda x: (x * 2, None, {"a": x, "b": None}, "text", 3, [], 2.5))
    for _ in range(2):
        doubled, nothing, tree, text, number, empty, half = function(np.ones(2))
        np.testing.assert_array_equal(doubled, 2.0)
        assert nothing is None
        assert tree["b"] is None
        assert (text, number, empty, half) == ("text", 3, [], 2.5)
    assert jit(lambda x: None)(np.ones(2)) is None
    assert jit(lambda x: (None,))(np.ones(2)) == (None,)
    assert jit(lambda: 3)() == 3
    np.testing.assert_array_equal(jit(lambda: jg.ones(2) * 3)(), [3.0, 3.0])


def test_kinds_of_results() -> None:
    function = jit(lambda x: (x.sum(), x.astype(np.float32).sum(), (x > 0).any(), x.astype(int).sum(), x))
    for _ in range(3):
        total, single, anything, count, whole = function(np.ones(3))
        assert type(total) is float
        assert type(single) is np.float32
        assert type(anything) is bool
        assert type(count) is int
        assert type(whole) is np.ndarray
    for r in function(jg.tensor(np.ones(3))):
        assert isinstance(r, Tensor)
    value, gradient = jit(jg.value_and_grad(lambda x: (x * x).sum()))(np.array([1, 2], dtype=np.float32))
    assert type(value) is np.float32
    assert gradient.dtype == np.float32


@compiled
def test_kinds_of_results_compiled() -> None:
    test_kinds_of_results()


def test_python_numbers_are_weak() -> None:
    function = jit(lambda x, s: x * s)
    single = np.ones(3, np.float32)
    assert function(single, 2.0).dtype == np.float32
    assert function(single, np.float64(2.0)).dtype == np.float64
    assert function(np.arange(3), 2).dtype == np.int64
    assert function(np.arange(3, dtype=np.int8), 2).dtype == np.int8
    assert function(np.arange(3), 2.0).dtype == np.float64
    assert function(2, 3) == 6
    assert type(function(2, 3)) is int
    assert type(function(2.0, 3)) is float
    assert function(10**17 + 1, 3) == 3 * 10**17 + 3
    leaf = jg.tensor(single, requires_grad=True)
    y = function(leaf, 3.0)
    assert y.dtype == np.float32
    y.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == np.float32
    assert leaf.grad.tolist() == [3.0, 3.0, 3.0]
    assert jg.grad(lambda v: function(v, 2.0).sum())(single).dtype == np.float32
    assert jit(jg.grad(lambda v, s: (v * s).sum()))(single, 2.0).dtype == np.float32
    assert jit(jg.grad(lambda s: s * s))(3) == 6.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8])
def test_powers_take_extents_and_arguments_as_python_numbers(dtype: Any) -> None:
    x = np.array([1, 2, 3], dtype)
    cases: list[tuple[Any, Any]] = [
        (lambda x, n: x ** x.shape[0], 0),
        (lambda x, n: x.shape[0] ** x, 0),
        (lambda x, n: x**n, 3),
        (lambda x, n: n**x, 3),
        (lambda x, n: n**2 * x, 3),
        (lambda x, n: n**3 * x, 2),
        (lambda x, n: x**n, True),
    ]
    for f, n in cases:
        wanted, found = f(x, n), jit(f)(x, n)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_numbers_that_are_converted_have_that_dtype() -> None:
    small, single = np.array([1, 2], np.uint8), np.ones(2, np.float32)
    for x in (small, single, np.ones(2)):
        for dtype in (np.uint8, np.int8, np.int64, np.float32):
            for n in (2, 2.0, True):
                if np.dtype(dtype) == np.asarray(n).dtype:
                    continue  # nothing is converted
                found = jit(lambda x, n, dtype=dtype: jg.astype(n, dtype) * x)(x, n)
                wanted = np.asarray(n).astype(dtype) * x
                assert found.dtype == wanted.dtype
                np.testing.assert_array_equal(found, wanted)
    both = jit(lambda x, i, s: (i + s) * x)  # a sum of two numbers is still one
    assert both(single, 2, 0.5).dtype == np.float32


@pytest.mark.parametrize("n", [2.5, 3, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.bool_])
def test_operators_make_numbers_of_python_numbers_and_functions_arrays(n: Any, dtype: Any) -> None:
    """The expected values are NumPy's own, or those of the same function of an array in place of the number."""
    x = np.array([1, 0, 1], dtype)

    def in_loop(n: Any, x: Any) -> Any:
        total = 0
        for _ in range(3):
            total += n
        return total * x

    def augmented(n: Any, x: Any) -> Any:
        m = n
        n += 1
        return m * x + n * x

    def becomes_array(n: Any, x: Any) -> Any:
        n *= x
        return n

    numbers: list[Any] = [
        lambda n, x: (n + n) * x,
        lambda n, x: (n - n) * x,
        lambda n, x: n**n * x,
        lambda n, x: 2 * n * x,
        lambda n, x: n * True * x,
        lambda n, x: n / 3 * x,
        lambda n, x: n // 2 * x,
        lambda n, x: divmod(n, 2)[1] * x,
        lambda n, x: +n * x,
        lambda n, x: abs(n) * x,
        lambda n, x: round(n) * x,
        lambda n, x: (n > 1) * x,
        lambda n, x: (n == 1) + x,
        lambda n, x: ((n > 1) | (n < 0)) * x,
        lambda n, x: sum([n, n]) * x,
        lambda n, x: n**2 * x,
        lambda n, x: np.float32(2) * n + x,
        in_loop,
        augmented,
        becomes_array,
    ]
    if dtype != np.uint8:
        numbers.append(lambda n, x: -n * x)
        if type(n) is not float:
            numbers.append(lambda n, x: ~n * x)
    for f in numbers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # ~True
            wanted = np.asarray(f(n, x))
        found = np.asarray(jit(f)(n, x))
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)

    arrays: list[tuple[Any, Any]] = [
        (lambda n, x: jg.sin(n) * x, lambda n, x: np.sin(float(n)) * x),
        (lambda n, x: jg.full(3, n) * x, lambda n, x: np.full(3, n) * x),
        (lambda n, x: jg.exp(n) * x, lambda n, x: np.exp(float(n)) * x),
        (lambda n, x: np.add(n, n) * x, lambda n, x: np.add(n, n) * x),
        (lambda n, x: jg.hypot(n, n) * x, lambda n, x: np.hypot(float(n), float(n)) * x),
        (lambda n, x: jg.maximum(n, 1) * x, lambda n, x: np.maximum(n, 1) * x),
        (lambda n, x: jg.where(True, n, 2) * x, lambda n, x: np.where(True, n, 2) * x),
        (lambda n, x: jg.stack([n, n, n]) * x, lambda n, x: np.stack([n, n, n]) * x),
        (lambda n, x: jg.tensor(n) * x, lambda n, x: np.full(3, n) * x),
        (lambda n, x: (jg.asarray(n) + n) * x, lambda n, x: (np.full(3, n) + n) * x),
        (lambda n, x: jg.sum(n) * x, lambda n, x: np.sum(n) * x),
        (lambda n, x: jg.reshape(n, (1,)) * x, lambda n, x: np.reshape(n, (1,)) * x),
        (lambda n, x: jg.stop_gradient(n) * x, lambda n, x: np.full(3, n) * x),
        (jg.dot, np.dot),
        (jg.multiply, np.multiply),
    ]
    for f, reference in arrays:
        wanted = np.asarray(reference(n, x))
        found = np.asarray(jit(f)(n, x))
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_results_of_tracked_arguments_require_grad_as_without_jit() -> None:
    """The expected answers are PyTorch's for the same functions."""
    w = jg.tensor([4.0, 5.0], requires_grad=True)
    h = w * 2.0
    x = jg.tensor([1.0, 2.0], requires_grad=True)
    y = jg.tensor([1.0, 2.0])

    def partly(x: Any) -> Any:
        with jg.no_grad():
            a = x * w
        return a, a * x, x.detach() * w

    def written(x: Any) -> Any:
        a, b = x.detach().clone(), x * 1.0
        a[0] = x[1]
        b[:] = x.detach()
        return a, b, x.detach()[1:]

    cases: list[tuple[Any, Any, list[bool]]] = [
        (lambda x: x.detach(), x, [False]),
        (lambda x: (x.detach() * 2).sum(), x, [False]),
        (lambda x: (x * 2, x.detach() * 2), x, [True, False]),
        (lambda x: x.detach() * w.detach(), x, [False]),
        (lambda x: x.detach() * h, x, [True]),
        (lambda x: x * h.detach(), y, [False]),
        (lambda x: x * 1.0, x, [True]),
        (lambda x: jg.ones(3), x, [False]),
        (lambda x: (x > 1) * 1.0, x, [False]),
        (lambda x: (x.argmax(), x.max()), x, [False, True]),
        (lambda x: jit(lambda x: x.detach() * 3)(x) * x.detach(), x, [False]),
        (jg.checkpoint(lambda x: x.detach()), x, [False]),
        (jg.vmap(lambda x: x.detach()), x, [False]),
        (lambda x: jg.grad(lambda q: (q**2).sum())(x.detach()), x, [False]),
        (jg.grad(lambda q: (q**2).sum()), x, [True]),
        (partly, x, [False, True, True]),
        (partly, y, [False, False, True]),
        (written, x, [True, True, False]),
    ]
    for f, argument, wanted in cases:
        function = jit(f)
        for _ in range(2):
            found = function(argument)
            found = found if isinstance(found, tuple) else (found,)
            assert [r.requires_grad for r in found] == wanted
            assert [r.grad_fn is not None for r in found] == wanted
    first, second = jit(lambda x: (x.detach() * 2, x * x))(x)
    (first * second).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [4.0, 16.0])  # 2 a * 2 x at a = x
    for f in (lambda x: (x.detach() * 2).sum(), lambda x: x.detach().sum()):
        with pytest.raises(NoGraphError, match=r"made by detach\(\)"):
            jit(f)(x).backward()


def test_python_numbers_stay_weak_in_transforms() -> None:
    single = np.float32([1.0, 2.0, 3.0])
    for n in (2, 2.5):
        shared = jit(jg.vmap(lambda v, s: v * s, in_axes=(0, None)))(single, n)
        value, gradient = jit(jg.value_and_grad(lambda v, s: (v * s).sum()))(single, n)
        inner = jit(jit(lambda v, s: v * s))(single, n)
        assert [r.dtype for r in (shared, value, gradient, inner)] == [np.float32] * 4
        np.testing.assert_array_equal(shared, single * np.float32(n))
        np.testing.assert_array_equal(inner, single * np.float32(n))


def test_static_arguments() -> None:
    calls = []

    def f(x: Any, n: Any, mode: Any = "up") -> Any:
        calls.append((n, mode))
        return x * n if mode == "up" else x / n

    for function in (
        jit(f, static_argnums=(1, 2)),
        jit(f, static_argnames=("n", "mode")),
        jit(f, static_argnums=(-2, 2)),
    ):
        calls.clear()
        np.testing.assert_array_equal(function(np.ones(2), 4, "up"), 4.0)
        np.testing.assert_array_equal(function(np.ones(2), 4, "up"), 4.0)
        np.testing.assert_array_equal(function(np.ones(2), 4, "down"), 0.25)
        np.testing.assert_array_equal(function(np.ones(2), 5, "up"), 5.0)
        assert calls == [(4, "up"), (4, "down"), (5, "up")]
    for function in (jit(f, static_argnums=(1, 2)), jit(f, static_argnames=("n", "mode"))):
        np.testing.assert_array_equal(function(np.ones(2), n=4, mode="down"), 0.25)
        np.testing.assert_array_equal(function(np.ones(2), 4, mode="down"), 0.25)
    tracked = jg.tensor([1.0, 1.0], requires_grad=True)
    jit(f, static_argnums=(1, 2))(tracked, 4, "down").sum().backward()
    assert tracked.grad is not None
    assert tracked.grad.tolist() == [0.25, 0.25]


def test_static_arguments_that_are_equal_but_not_the_same() -> None:
    function = jit(lambda x, k: x * {bool: 1, int: 2, float: 3}[type(k)], static_argnums=1)
    assert [function(np.ones(1), k)[0] for k in (True, 1, 1.0)] == [1.0, 2.0, 3.0]
    function = jit(lambda x, k: x * np.copysign(1.0, k[0]), static_argnums=1)
    assert [function(np.ones(1), (k,))[0] for k in (0.0, -0.0)] == [1.0, -1.0]


def test_unhashable_static_argument() -> None:
    for bad in ([1], ([1],), {}, np.ones(1)):
        with pytest.raises(UnsupportedError, match="hashable"):
            jit(lambda x, k: x, static_argnums=1)(np.ones(1), bad)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts_of_arguments(layout: str) -> None:
    function = jit(lambda x, y: (x * 2 + x.sum(axis=0) - y.T, x @ y))
    x, y = np.arange(12.0).reshape(4, 3), np.arange(12.0).reshape(3, 4) ** 2
    expected = (x * 2 + x.sum(axis=0) - y.T, x @ y)
    for _ in range(2):
        assert_all_same(function(laid_out(x, layout), laid_out(y, layout)), expected)


@compiled
def test_awkward_arrays_after_plain_ones() -> None:
    function = jit(lambda x: x * 2)
    x = np.arange(4.0)
    for _ in range(2):
        np.testing.assert_array_equal(function(x), x * 2)
    swapped = x.astype(">f8")
    unaligned = np.frombuffer(bytes(1) + x.tobytes(), np.uint8)[1:].view(np.float64)
    assert not unaligned.flags.aligned
    frozen = x.copy()
    frozen.flags.writeable = False
    for odd in (swapped, unaligned, frozen, x[::-1], np.broadcast_to(np.array(3.0), (4,)), x.astype(np.float32)):
        for _ in range(3):
            np.testing.assert_array_equal(function(odd), odd * 2)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1), (1, 3), (3, 1), (2, 3)])
def test_extents_zero_and_one(shape: tuple[int, int]) -> None:
    def f(x: Any) -> Any:
        return (
            x * 2, x.sum(), x.sum(axis=0), x.prod(axis=1), x.reshape(-1), x.T + x.sum(axis=1), x @ x.T,
            x.mean(axis=0, keepdims=True) if x.shape[0] else x, jg.concatenate([x, x[:, :0], x], axis=1), x[:, ::-1],
        )  # fmt: skip

    x = np.arange(1.0, 1.0 + shape[0] * shape[1]).reshape(shape)
    assert_all_same(jit(f)(x), f(jg.tensor(x)))

    def scalar(v: Any) -> Any:
        return weighted(list(f(v)))

    assert_same(jit(jg.grad(scalar))(x), jg.grad(scalar)(x))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, np.int64, np.bool_, np.float32])
def test_dtypes(dtype: Any) -> None:
    def f(x: Any) -> Any:
        found = [x + x, x * x, x.sum(), x > 1, x.max(), x.any(), x.astype(np.float32) / 3, x[::2], x.sum(axis=0)]
        if dtype is not np.bool_:
            found += [x // 2, x % 2, -x, abs(x)]
        return found

    x = np.array([1, 2, 3, 0]).astype(dtype)
    assert_all_same([jg.asarray(r) for r in jit(f)(jg.tensor(x))], f(jg.tensor(x)))


def test_division_of_integers_by_zero() -> None:
    x = np.array([1, -1, 0])
    function = jit(lambda a, b: (a // b, a % b, a / b))
    with np.errstate(all="ignore"):
        assert_all_same(function(x, np.zeros(3, int)), [x // 0, x % 0, x / 0])


def test_float_to_integer() -> None:
    x = np.array([0.0, 1.7, -2.9, 3e9])
    assert_same(jit(lambda v: v.astype(np.int64) + v.astype(bool))(x), x.astype(np.int64) + x.astype(bool))


def test_traced_indices() -> None:
    function = jit(lambda x, i: x[i] * 2)
    x = np.arange(3.0)
    np.testing.assert_array_equal(function(x, np.array([0, 2])), [0.0, 4.0])
    np.testing.assert_array_equal(function(x, np.array([-1, -3])), [4.0, 0.0])
    assert function(x, 1) == 2.0
    for bad in (np.array([0, 7]), np.array([-4, 0])):
        with pytest.raises(IndexError, match="out of bounds"):
            function(x, bad)
    gradient = jit(jg.grad(lambda v, i: (v[i] * np.array([1.0, 10.0])).sum()))(x, np.array([1, 1]))
    np.testing.assert_array_equal(gradient, [0.0, 11.0, 0.0])


def test_methods_and_decorators() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = jg.tensor([1.0, 2.0], requires_grad=True)

        def forward(self, x: Any) -> Any:
            return (x * self.weight).sum()

    model = Model()
    jit(model.forward)(np.ones(2)).backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [1.0, 1.0]

    @jit
    def documented(x: Any) -> Any:
        """Doubles."""
        return x * 2

    @jit(static_argnums=1)
    def power(x: Any, n: int) -> Any:
        return x**n

    assert documented.__doc__ == "Doubles."
    assert documented.__name__ == "documented"
    assert power(3.0, 2) == 9.0


def test_its_repr_names_the_function() -> None:
    def loss(x: Any) -> Any:
        return x * 2

    assert repr(jit(loss)) == "jit(loss)"
    assert repr(jit(jg.grad(loss))) == "jit(loss)"
    assert repr(jit(lambda x: x)) == "jit(<lambda>)"
    assert repr(jit(functools.partial(loss, 1.0))) == "jit(function)"  # it has no name


# --------------------------------------------------------------------------------------------- how often it traces


def test_the_second_call_does_not_trace() -> None:
    traces = []

    def f(x: Any, y: Any) -> Any:
        traces.append(1)
        return x * y

    function = jit(f)
    x = np.ones(3)
    for _ in range(3):
        function(x, 2.0)
        function(x, 3.0)
    assert len(traces) == 1
    function(np.ones(4), 2.0)
    function(x, 2)
    function(x.astype(np.float32), 2.0)
    assert len(traces) == 4
    leaf = jg.tensor(x, requires_grad=True)
    for _ in range(3):
        function(leaf, 2.0).sum().backward()
    assert len(traces) == 6  # and for the gradient: once to see that the program is still the same, once for itself


@pytest.mark.parametrize(
    "draw", [lambda: np.random.default_rng().normal(size=3), lambda: np.random.default_rng().normal()]
)
def test_a_gradient_of_another_program_is_refused(draw: Any) -> None:
    function = jit(lambda x: (x * draw()).sum())
    x = jg.tensor(np.ones(3), requires_grad=True)
    with pytest.raises(jg.errors.GraphError, match="another program"):
        function(x)
    constant = jit(lambda x: (x * np.arange(3.0)).sum() + x[[0, 1]].sum())
    constant(x).backward()
    assert x.grad.tolist() == [1.0, 2.0, 2.0]


def kernels_made() -> int:
    return counters.compiled + counters.loaded


@compiled
def test_one_kernel_for_all_lengths_and_numbers() -> None:
    def f(x: Any, y: Any, factor: float) -> Any:
        z = x[1:] * factor + x[:-1] * 0.3
        return (jg.sin(z) * y[1:]).sum() / x.mean()

    function = jit(jg.value_and_grad(lambda x, y: f(x, y, 1.25)))
    before = kernels_made()
    rng = np.random.default_rng(0)
    for n in [*range(3, 40), 100, 1000]:
        x, y = rng.uniform(1, 2, n), rng.uniform(1, 2, n)
        value, gradient = function(x, y)
        z = x[1:] * 1.25 + x[:-1] * 0.3
        np.testing.assert_allclose(value, (np.sin(z) * y[1:]).sum() / x.mean(), rtol=1e-12)
        assert gradient.shape == (n,)
    assert kernels_made() - before == 1
    for factor in (1.5, 2.75, -3.25):
        x = rng.uniform(1, 2, 9)
        value, _ = jit(jg.value_and_grad(lambda x, y, factor=factor: f(x, y, factor)))(x, x)
        np.testing.assert_allclose(value, (np.sin(x[1:] * factor + x[:-1] * 0.3) * x[1:]).sum() / x.mean(), rtol=1e-12)
    assert kernels_made() - before == 1


def test_source_is_the_same_for_other_lengths_numbers_and_traces() -> None:
    def f(x: Any, c: float) -> Any:
        return (jg.exp(x * c).mean(axis=1, keepdims=True) + x[:, ::-1]).var(axis=0)

    texts = {
        jit(jg.jacrev(lambda x, c=c: f(x, c).sum())).source(np.ones(shape))
        for c in (0.3, 0.7, 3.1)
        for shape in ((3, 4), (5, 3), (7, 9))
    }
    assert len(texts) == 1


# --------------------------------------------------------------------------------------------- size


def test_long_chains() -> None:
    def f(x: Any) -> Any:
        for _ in range(1500):
            x = x * 0.999 + 0.5
        return x

    x = np.ones(3)
    assert_same(jit(f)(x), f(x))


def test_repeated_stencils_do_not_grow_exponentially() -> None:
    def f(x: Any) -> Any:
        for _ in range(25):
            x = x[1:-1] * 0.5 + 0.25 * (x[2:] + x[:-2])
        return x

    x = np.arange(64.0) ** 2
    function = jit(f)
    assert_same(function(x), f(x))
    assert len(function.source(x)) < 20_000
    assert_same(jit(jg.grad(lambda v: (f(v) ** 2).sum()))(x), jg.grad(lambda v: (f(v) ** 2).sum())(x))


# --------------------------------------------------------------------------------------------- errors


def expect(cls: type[Exception], match: str, function: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(cls, match=match):
        jit(function)(*args)
    assert jg.is_grad_enabled()


def _while(x: Any) -> Any:
    while x.sum() < 10:
        x = x * 2
    return x


@pytest.mark.parametrize(
    "decide",
    [
        lambda x: x if x.sum() > 0 else -x,
        _while,
        lambda x: bool(x[0]),
        lambda x: max(x[0], x[1]),
        sorted,
        lambda x: x[0] in [1.0, 2.0],
        lambda x: [1, 2, 3][x.astype(int)[0]],
        lambda x: range(x.astype(int)[0]),
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        np.asarray,
        lambda x: np.array([x[0], x[1]]),
        jg.nonzero,
    ],
)
def test_python_cannot_decide_on_traced_values(decide: Callable[[Any], Any]) -> None:
    with pytest.raises((TracedValueError, ConversionError, ValueError), match=r"traced|ambiguous|jitgrad"):
        jit(decide)(np.ones(3))


def test_messages_name_the_users_line_and_the_way_out() -> None:
    with pytest.raises(TracedValueError, match=r"test_jit\.py:\d+.*jg\.where"):
        jit(lambda x: x if x.sum() > 0 else -x)(np.ones(3))


def test_errors_of_conversion() -> None:
    for convert in (float, int):
        expect(ConversionError, "traced value", lambda x, c=convert: x * c(x[0]), np.ones(3))
    expect(UnsupportedError, "shape of the result would depend on values", lambda x: x[x > 0], np.ones(3))

    def mask_written(x: Any) -> Any:
        y = x * 1
        y[y > 1] = x[:2]
        return y

    with pytest.raises(UnsupportedError, match=r"jg\.where"):
        jit(mask_written)(np.ones(3))

    def into_ndarray(x: Any) -> Any:
        out = np.zeros(3)
        out[0] = x[0]
        return out

    def added_to_ndarray(x: Any) -> Any:
        out = np.zeros(3)
        out += x
        return out

    expect(ValueError, "sequence", into_ndarray, np.ones(3))
    expect(ConversionError, "ndarray", added_to_ndarray, np.ones(3))


def test_arguments_that_are_not_supported() -> None:
    for bad, cls in (("a", UnsupportedError), ([object()], UnsupportedError), (1j, JitgradError)):
        expect(cls, "argument", lambda x: x, bad)
    for bad_array in (np.array(["a"]), np.array([1j]), np.ones(2, np.float16), np.array([None])):
        expect(DtypeError, "argument", lambda x: x, bad_array)
    expect(DtypeError, "masked", lambda x: x, np.ma.masked_array([1.0, 2.0], [0, 1]))


def test_backward_inside() -> None:
    w = jg.tensor([1.0, 2.0], requires_grad=True)

    def f(x: Any) -> Any:
        (w * x).sum().backward()
        return x

    expect(GraphError, r"jg\.grad", f, np.ones(2))
    assert w.grad is None


def test_leaked_values() -> None:
    kept: list[Any] = []
    jit(lambda x: (kept.append(x * 1), x)[1])(np.ones(3))
    (leaked,) = kept
    uses: list[Callable[[], Any]] = [
        lambda: leaked * 2, lambda: leaked + np.ones(3), leaked.sum, lambda: leaked[0],
        lambda: leaked.__setitem__(0, 1.0), lambda: jit(lambda y: y * leaked)(np.ones(3)),
        lambda: jit(lambda y: leaked)(np.ones(3)),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(LeakedTracerError, match="trace"):
            use()
    with pytest.raises(TracedValueError):
        np.asarray(leaked)
    assert "traced" in repr(leaked)


def test_a_failed_trace_leaves_nothing_behind() -> None:
    attempts = []

    def f(x: Any) -> Any:
        attempts.append(1)
        y = x * 2
        if len(attempts) == 1:
            raise KeyError("not yet")
        return y

    function = jit(f)
    w = np.ones(2)
    with pytest.raises(KeyError):
        function(w)
    assert jg.is_grad_enabled()
    assert not jg.exp(jg.tensor([0.0])).is_traced
    np.testing.assert_array_equal(function(w), 2.0)
    bad = jit(lambda x: x + np.ones(4))
    for _ in range(2):
        with pytest.raises(ShapeError):
            bad(np.ones(3))


def test_values_of_a_trace_are_freed() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        y = x * 2
        kept.append(weakref.ref(y))
        return y + 1

    jit(f)(np.ones(3))
    gc.collect()
    assert kept[0]() is None


def test_first_arguments_are_not_kept() -> None:
    function = jit(lambda x: (x * x).sum())
    x = jg.tensor(np.ones(3), requires_grad=True)
    reference = weakref.ref(x)
    y = function(x)
    y.backward()
    del x, y
    gc.collect()
    assert reference() is None


# --------------------------------------------------------------------------------------------- threads and processes


def test_threads_call_one_function_at_once() -> None:
    function = jit(lambda x: (x * x).sum() + jg.sin(x))
    w = jg.tensor([2.0], requires_grad=True)
    scaled = jit(lambda x: (x * w).sum())
    failures: list[str] = []
    start = threading.Barrier(4)

    def work(i: int) -> None:
        try:
            with config.override(kernels="python"):
                start.wait()
                for k in range(20):
                    x = np.full(3 + k % 3, float(i))
                    np.testing.assert_allclose(function(x), (x * x).sum() + np.sin(x), rtol=1e-14)
                    t = jg.tensor(x, requires_grad=True)
                    (g,) = jg.autograd.grad(function(t).sum(), t)
                    np.testing.assert_allclose(array(g), 2 * x * x.size + np.cos(x), rtol=1e-14)
                    # eager work beside a trace in another thread
                    np.testing.assert_allclose(array(jg.exp(t.detach()) * 2), np.exp(x) * 2, rtol=1e-14)
                    assert float(scaled(x).detach()) == x.sum() * 2
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def run_python(text: str, **environment: str) -> str:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@compiled
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    text = """
        import numpy as np, jitgrad as jg
        from jitgrad.kernels.kernel import counters
        from jitgrad.transforms.jit import jit
        f = jit(jg.value_and_grad(lambda x, w: (jg.tanh(x @ w) ** 2).sum() + x.mean()))
        value, gradient = f(np.arange(6.0).reshape(2, 3), np.ones(3))
        print(counters.compiled, counters.loaded, value.hex(), gradient.sum().hex())
    """
    first = run_python(text, JITGRAD_CACHE_DIR=str(tmp_path), PYTHONHASHSEED="1").split()
    second = run_python(text, JITGRAD_CACHE_DIR=str(tmp_path), PYTHONHASHSEED="2").split()
    assert int(first[0]) >= 1
    assert int(second[0]) == 0
    assert int(second[1]) == int(first[0])
    assert second[2:] == first[2:]


# --------------------------------------------------------------------------------------------- compiled


def _logistic(w: Any, X: Any, y: Any) -> Any:
    z = X @ w
    return np.mean(np.logaddexp(0, z) - y * z)


def _network(p: Any, X: Any) -> Any:
    h = jg.tanh(X @ p["a"] + p["b"])
    return (jg.softmax(h @ p["c"], axis=1)[:, 0] ** 2).sum() + jg.sqrt(h * h + 1e-3).max(axis=0).sum()


def _mixed(x: Any, i: Any) -> Any:
    y = x.T @ x
    y[0] = y[1:].sum(axis=0)
    y += jg.cumsum(y, axis=1)[::-1] * y.detach()
    picked = y[i] * jg.where(y[i] > 1, y[i], 0.0)
    return jg.concatenate([picked, x]).std() + y.prod(axis=0).sum() + (x.astype(np.float32) * 2).sum()


RNG = np.random.default_rng(3)
COMPILED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "logistic": (_logistic, (RNG.normal(size=4), RNG.normal(size=(6, 4)), np.array([0.0, 1, 1, 0, 1, 0]))),
    "network": (
        _network,
        (
            {"a": RNG.normal(size=(3, 5)), "b": RNG.normal(size=5), "c": RNG.normal(size=(5, 2))},
            RNG.normal(size=(4, 3)),
        ),
    ),
    "mixed": (_mixed, (RNG.normal(size=(5, 3)), np.array([2, 0, 2, -1, 1]))),
    "float32": (lambda x: (jg.exp(-x * x) * jg.erf(x)).sum() / x.std(), (RNG.normal(size=(4, 3)).astype(np.float32),)),
}


@compiled
@pytest.mark.parametrize("name", sorted(COMPILED))
def test_compiled(name: str) -> None:
    f, args = COMPILED[name]
    expected = jg.value_and_grad(f)(*args)
    function = jit(jg.value_and_grad(f))
    for _ in range(2):
        found = function(*args)
        assert_same(found[0], expected[0])
        if isinstance(expected[1], dict):
            assert_all_same([found[1][k] for k in "abc"], [expected[1][k] for k in "abc"])
        else:
            assert_same(found[1], expected[1])
    with kernels("python"):
        found = function(*args)
        assert_same(found[0], expected[0])


@compiled
@examples(6)
@given(programs(most_steps=8), st.booleans())
def test_random_programs_compiled(program: Program, gradient: bool) -> None:
    arrays = program.arrays()
    if gradient:
        expected = jg.value_and_grad(program.scalar)(*arrays)
        assert_all_same(jit(jg.value_and_grad(program.scalar))(*arrays), expected, str(program))
    else:
        assert_same(jit(program)(*arrays), program(*[jg.tensor(a) for a in arrays]), str(program))


@compiled
@pytest.mark.parametrize("name", ["view_of_detached_view", "recurrence_in_place", "two_views_written_in_turn"])
def test_writes_compiled(name: str) -> None:
    test_writes_views_and_detach(name)


def test_methods() -> None:
    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @functools.partial(jit, static_argnums=0)
        def apply(self, x: Any) -> Any:
            return x * self.factor

        @jit
        def bare(self, x: Any) -> Any:
            return x

    assert Scaled(2.0).apply(np.ones(2)).tolist() == [2.0, 2.0]
    assert Scaled(3.0).apply(np.ones(2)).tolist() == [3.0, 3.0]
    with pytest.raises(jg.errors.UnsupportedError, match="static_argnums"):
        Scaled(2.0).bare(np.ones(2))


def test_gradients_of_slices_that_are_ready_at_different_stages() -> None:
    y, s = np.linspace(-1.0, 2.0, 8), np.linspace(1.0, 2.0, 8)

    def density(q: Any) -> Any:
        mu, log_scale, z = q[0], q[1], q[2:]
        theta = mu + jg.exp(log_scale) * z
        prior = -0.5 * mu * mu / 25.0 - jg.log1p(jg.exp(2.0 * log_scale) / 25.0) + log_scale
        return prior - 0.5 * jg.sum(z * z) - 0.5 * jg.sum(((y - theta) / s) ** 2)

    q = np.linspace(0.1, 0.9, 10)
    value, gradient = jit(jg.value_and_grad(density))(q)
    assert value == pytest.approx(jg.value_and_grad(density)(q)[0], rel=1e-13)
    steps = np.eye(10) * 1e-6
    slopes = [(density(q + h).item() - density(q - h).item()) / 2e-6 for h in steps]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-8)


# --------------------------------------------------------------------------------------------- parts at traced positions


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x  # either is the same memory


def _base_written_later(x: Any) -> Any:
    y = x * 1.0
    v = y[np.argmin(y[:, 0])]
    y[...] = y * 10
    return y * 1.0, v * 1.0


def _part_written(x: Any) -> Any:
    y = x * 1.0
    v = y[np.argmin(y[:, 0])]
    v += 100
    return y * 1.0, v * 1.0


def _part_added_to(x: Any) -> Any:
    y = x * 1.0
    k = np.argmin(y[:, 0])
    y[k] += 5
    return y * 1.0, y[k] * 1.0


def _view_of_a_part_written(x: Any) -> Any:
    y = x * 1.0
    v = y[np.argmin(y[:, 0])]
    w = v[1:]
    w *= 7.0
    y[...] = y + 1
    return y * 1.0, v * 1.0, w * 1.0


def _overlapping_parts(x: Any) -> Any:
    y = x * 1.0
    k = np.argmin(y[:, 0])
    v, same, other = y[k], y[k], y[k - 1]
    v *= 3.0
    other += v
    return y * 1.0, same * 1.0, other * 1.0


def _detached_part(x: Any) -> Any:
    y = x * 1.0
    v = y[np.argmin(y[:, 0])]
    z = _detached(v)
    v *= 3.0
    return y * 1.0, v * z


def _part_of_a_detached_alias_written(x: Any) -> Any:
    y = x * 1.0
    z = _detached(y)
    v = z[np.argmin(y[:, 0])]
    v += 2.0
    return y * y, v * 1.0


def _part_of_a_view(x: Any) -> Any:
    y = x * 1.0
    k = np.argmin(y[:, 0])
    v = y.T[::-1, k]
    y *= 2.0
    return y * 1.0, v * 1.0


@pytest.mark.parametrize(
    "function",
    [
        _base_written_later,
        _part_written,
        _part_added_to,
        _view_of_a_part_written,
        _overlapping_parts,
        _detached_part,
        _part_of_a_detached_alias_written,
        _part_of_a_view,
    ],
)
def test_a_part_at_a_traced_position_is_a_view_as_eagerly(function: Any) -> None:
    x = np.array([[3.0, 1.0, 2.5], [0.5, 6.0, 7.0], [2.0, 8.0, 9.0]])

    def total(x: Any) -> Any:
        return sum(np.sum(np.sin(t) * (k + 1)) for k, t in enumerate(function(x)))

    for found, wanted in zip(jit(function)(x), function(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
    t = jg.tensor(x, requires_grad=True)
    total(t).backward()
    if function is _detached_part:  # no gradient goes through the second factor
        slopes = np.cos(x)
        slopes[1] = 3 * (np.cos(3 * x[1]) + 2 * np.cos(9 * x[1] ** 2) * 3 * x[1])
    elif function is _part_of_a_detached_alias_written:  # nor through the second result
        y = x + np.array([[0.0], [2.0], [0.0]])
        slopes = np.cos(y * y) * 2 * y
    else:
        steps = 1e-5 * np.eye(x.size).reshape(x.size, *x.shape)
        slopes = np.array([total(x + h) - total(x - h) for h in steps]).reshape(x.shape) / 2e-5
    np.testing.assert_allclose(array(t.grad), slopes, rtol=1e-4, atol=1e-6)
    for gradient in (jit(jg.grad(total))(x), jg.grad(jit(total))(x)):
        np.testing.assert_allclose(gradient, array(t.grad), rtol=1e-12)


def test_a_part_at_traced_positions_of_several_axes_is_not_written() -> None:
    def function(x: Any) -> Any:
        y = x * 1.0
        v = y[jg.argmin(y[:, 0]), jg.argmax(y[0])]
        v += 1.0
        return y

    with pytest.raises(jg.errors.UnsupportedError, match="positions that are traced"):
        jit(function)(np.ones((2, 3)))
    np.testing.assert_array_equal(array(function(jg.tensor(np.eye(2)))), [[1.0, 0.0], [1.0, 1.0]])


# --------------------------------------------------------------------------------------------- writes through detached aliases


def _alias_scaled(x: Any, w: Any) -> Any:
    y = x * 1.0
    z = y.detach()
    z *= w
    return jg.sum(z * z)


def _alias_element_set(x: Any, w: Any) -> Any:
    y = x * 1.0
    z = y.detach()
    z[0] = w[1]
    return jg.sum(z * z) + jg.sum(y * 3)


def _view_of_alias_scaled(x: Any, w: Any) -> Any:
    y = x * 1.0
    z = y.detach()
    v = z[1:]
    v *= w[1:]
    return jg.sum(z * z) + jg.sum(y * 3) + jg.sum(v)


def _part_of_alias_scaled(x: Any, w: Any) -> Any:
    y = x * 1.0
    z = y.detach()
    v = z[jg.argmin(x)]
    v *= w[0]
    return jg.sum(z * z) + v


def _alias_of_alias_added_to(x: Any, w: Any) -> Any:
    y = x * 1.0
    z = y.detach()
    z *= w
    q = z.detach()
    q += x
    return jg.sum(z * z) + jg.sum(q * w) + jg.sum(y)


def _base_written_in_between(x: Any, w: Any) -> Any:
    y = x * 1.0
    z = y.detach()
    z[0] = w[1]
    y *= 2.0
    z[1] = w[0]
    return jg.sum(z * z) + jg.sum(y * y)


_X, _W = np.array([3.0, 1.0, 2.0]), np.array([0.5, 0.7, 0.9])
_THROUGH_ALIASES: dict[Any, tuple[Any, Any]] = {  # by hand: the alias has x without its gradient, and w with it
    _alias_scaled: (0 * _X, 2 * _X**2 * _W),
    _alias_element_set: (0 * _X + 3, [0, 2 * _W[1], 0]),
    _view_of_alias_scaled: (0 * _X + 3, [0, *(2 * _X**2 * _W + _X)[1:]]),
    _part_of_alias_scaled: (0 * _X, [2 * _X[1] ** 2 * _W[0] + _X[1], 0, 0]),
    _alias_of_alias_added_to: (_W + 1, 2 * (_X * _W + _X) * _X + _X * _W + _X),
    # y is 2 x after its own write, but for what z wrote: 2 w[1] where y knows no w, and w[0] where it was written last
    _base_written_in_between: ([8 * _W[1], 4 * _W[0], 8 * _X[2]], [2 * _W[0], 4 * _W[1], 0]),
}


@pytest.mark.parametrize("function", _THROUGH_ALIASES)
def test_writes_through_detached_aliases_have_gradients(function: Any) -> None:
    wanted = _THROUGH_ALIASES[function]
    gradient = jg.grad(function, argnums=(0, 1))
    x, w = (jg.tensor(a, requires_grad=True) for a in (_X, _W))
    eager = jg.autograd.grad(function(x, w), [x, w], allow_unused=True)
    for found in (
        [np.zeros(3) if g is None else array(g) for g in eager],
        gradient(_X, _W),
        jit(gradient)(_X, _W),
        jg.grad(jit(function), argnums=(0, 1))(_X, _W),
    ):
        for g, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(g, expected, rtol=1e-13, atol=1e-14)


# --------------------------------------------------------------------------- the cycle collector


class TestCollector:
    """It is held off while a function is traced; what the function says about it stays."""

    @pytest.fixture(autouse=True)
    def _as_before(self) -> Iterator[None]:
        thresholds = gc.get_threshold()
        assert gc.isenabled()
        yield
        gc.enable()
        gc.set_threshold(*thresholds)

    def test_nothing_is_collected_while_a_function_is_traced(self) -> None:
        seen = []
        gc.callbacks.append(lambda phase, info: seen.append(phase))

        def f(x: Any) -> Any:
            seen.clear()
            held = [[] for _ in range(10_000)]
            assert not seen
            return x * len(held)

        before = gc.get_threshold()
        try:
            assert jit(f)(1.0) == 10_000.0
        finally:
            gc.callbacks.pop()
        assert gc.get_threshold() == before

    @pytest.mark.parametrize("on", [True, False])
    def test_it_stays_as_it_was(self, on: bool) -> None:
        if not on:
            gc.disable()
        seen = []

        def f(x: Any) -> Any:
            seen.append(gc.isenabled())
            return x * 2.0

        assert jit(f)(1.0) == 2.0
        assert seen == [on]
        assert gc.isenabled() is on

    @pytest.mark.parametrize("before", [True, False])
    @pytest.mark.parametrize("after", [True, False])
    def test_it_is_what_the_traced_function_made_it(self, before: bool, after: bool) -> None:
        def f(x: Any) -> Any:
            (gc.enable if after else gc.disable)()
            return x * 2.0

        (gc.enable if before else gc.disable)()
        assert jit(f)(1.0) == 2.0
        assert gc.isenabled() is after
        assert gc.get_threshold()[0] > 0

    def test_a_pause_inside(self) -> None:
        def f(x: Any) -> Any:
            was = gc.isenabled()
            gc.disable()
            x = x * 2.0
            if was:
                gc.enable()
            return x

        assert jit(f)(1.0) == 2.0
        assert gc.isenabled()

    def test_thresholds_of_the_traced_function(self) -> None:
        def f(x: Any) -> Any:
            gc.set_threshold(77, 7, 7)
            return x * 2.0

        assert jit(f)(1.0) == 2.0
        assert gc.get_threshold()[0] == 77

    def test_nested_traces_and_errors(self) -> None:
        before = gc.get_threshold()
        inner = jit(lambda x: x * 3.0)

        def f(x: Any) -> Any:
            jit(lambda y: y + 1.0)(np.ones(2))
            if x.ndim:
                raise ValueError("mine")
            return inner(x)

        assert jit(f)(1.0) == 3.0
        with pytest.raises(ValueError, match="mine"):
            jit(f)(np.ones(2))
        assert gc.get_threshold() == before
        assert gc.isenabled()


@pytest.mark.parametrize("mode", ["python", "compiled"])
def test_negative_powers_of_integers_raise(mode: str) -> None:
    base, captured = np.array([2, 3]), np.array([1, 2])
    with kernels(mode):
        for power in (jit(lambda x, y: x**y), jit(jg.vmap(lambda x, y: x**y)), jit(lambda x, y: (x * 1) ** (y + 0))):
            np.testing.assert_array_equal(power(base, np.array([1, 2])), [2, 9])
            with pytest.raises(ArgumentError, match="no negative integer powers"):
                power(base, np.array([1, -2]))
        with pytest.raises(ArgumentError, match="no negative integer powers"):
            jit(lambda x, n: x**n)(base, -3)
        reads = jit(lambda x: x**captured)
        np.testing.assert_array_equal(reads(base), [2, 9])
        captured[1] = -1
        with pytest.raises(ArgumentError, match="no negative integer powers"):
            reads(base)
