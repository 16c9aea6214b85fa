"""Detach and the life of a graph: one test a rule, quoted in its docstring; values by hand."""

import asyncio
import contextlib
import contextvars
import copy
import gc
import math
import os
import pickle
import sys
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.errors import (
    ConversionError,
    DtypeError,
    GradientWarning,
    GraphError,
    InPlaceError,
    JitgradError,
    NoGraphError,
    ReleasedGraphError,
    ShapeError,
)


def leaf(*values):
    return jg.tensor(list(values), requires_grad=True)


# --------------------------------------------------------------------------- detach


class TestDetach:
    """``z = y.detach()``: shares memory and the version counter with y; requires_grad False, grad_fn None, leaf."""

    def test_what_it_is(self):
        y = leaf(1.0, 2.0) * 3
        z = y.detach()
        assert z is not y
        assert not z.requires_grad
        assert z.grad_fn is None
        assert z.is_leaf
        assert z.shape == y.shape
        assert z.dtype == y.dtype
        assert y.requires_grad
        assert y.grad_fn is not None

    def test_shares_memory_both_ways(self):
        y = leaf(1.0, 2.0) * 3
        z = y.detach()
        z[0] = 7.0
        assert y.tolist() == [7.0, 6.0]
        with jg.no_grad():
            y[1] = 8.0
        assert z.tolist() == [7.0, 8.0]

    def test_as_a_function(self):
        y = leaf(1.0, 2.0) * 3
        z = jg.stop_gradient(y)
        assert np.shares_memory(z.numpy(), y.numpy(force=True))
        assert z.grad_fn is None
        z.zero_()
        assert y._version == z._version == 1
        assert jg.stop_gradient([1.0, 2.0]).tolist() == [1.0, 2.0]

    def test_shares_the_version_counter(self):
        y = leaf(1.0, 2.0) * 3
        z = y.detach()
        assert y._version == z._version == 0
        z.zero_()
        assert y._version == z._version == 1
        with jg.no_grad():
            y.add_(1.0)
        assert y._version == z._version == 2

    def test_no_gradient_passes(self):
        x = leaf(1.0, 2.0, 3.0)
        y = x * x
        z = y.detach()
        (y + z).sum().backward()
        assert x.grad.tolist() == [2.0, 4.0, 6.0]  # without detach: twice that

    def test_factor_is_a_constant(self):
        x = leaf(1.0, 2.0)
        y = x * 3
        (y * y.detach()).sum().backward()
        assert x.grad.tolist() == [9.0, 18.0]

    def test_second_order(self):
        """No gradient at any order: f = x^3 * stop(x^2), f' = 3 x^2 * x^2, f'' = 6 x * x^2."""
        x = jg.tensor(2.0, requires_grad=True)
        f = x * x * x * (x * x).detach()
        (first,) = jg.autograd.grad(f, x, create_graph=True)
        assert first.item() == 3 * 4 * 4
        (second,) = jg.autograd.grad(first, x, create_graph=True)
        assert second.item() == 6 * 2 * 4
        (third,) = jg.autograd.grad(second, x)
        assert third.item() == 6 * 4

    def test_detach_of_detach_and_of_a_leaf(self):
        x = leaf(1.0)
        z = x.detach().detach()
        assert not z.requires_grad
        assert x.requires_grad
        z[0] = 5.0
        assert x.tolist() == [5.0]

    def test_detach_can_become_a_leaf_of_its_own(self):
        x = leaf(2.0)
        z = (x * 3).detach().requires_grad_()
        (z * z).sum().backward()
        assert z.grad.tolist() == [12.0]
        assert x.grad is None

    def test_detached_view(self):
        y = leaf(1.0, 2.0, 3.0) * 2
        part = y.detach()[1:]
        part[0] = 9.0
        assert y.tolist() == [2.0, 9.0, 6.0]
        assert not part.requires_grad

    def test_detach_keeps_no_graph_alive(self):
        x = leaf(1.0)
        y = x * 2
        node = weakref.ref(y.grad_fn)
        z = y.detach()
        del y
        assert node() is None
        assert z.tolist() == [2.0]


class TestNoGraph:
    """``z.sum().backward()`` where z is detached: NoGraphError (a RuntimeError) names the tensor, and the cause."""

    def test_detached(self):
        z = (leaf(1.0, 2.0) * 2).detach()
        with pytest.raises(NoGraphError, match=r"shape \(2,\).*detach\(\)"):
            z.backward(jg.tensor([1.0, 1.0]))
        with pytest.raises(NoGraphError, match=r"shape \(\).*float64.*detach\(\)"):
            z.sum().backward()
        assert issubclass(NoGraphError, RuntimeError)

    def test_no_grad(self):
        x = leaf(1.0, 2.0)
        with jg.no_grad():
            y = (x * 2).sum()
        with pytest.raises(NoGraphError, match="no_grad"):
            y.backward()

    def test_numbers_and_arrays(self):
        x = leaf(1.0, 2.0)
        for made in (jg.tensor(x.sum().item()), jg.tensor(x.detach().numpy()).sum(), jg.from_numpy(np.ones(1))):
            with pytest.raises(NoGraphError, match="none of which requires grad"):
                made.backward()

    def test_inputs_without_grad(self):
        y = jg.tensor([1.0]) * jg.tensor([2.0])
        with pytest.raises(NoGraphError, match="none of which requires grad"):
            y.backward()

    def test_operation_without_derivative(self):
        y = (leaf(1.0, 2.0) > 1.5).astype(float).sum()
        with pytest.raises(NoGraphError):
            y.backward()
        with pytest.raises(NoGraphError, match="greater"):
            (leaf(1.0) > 1.5).backward()

    def test_all_message_parts(self):
        with pytest.raises(NoGraphError, match="requires_grad=True"):
            jg.tensor(1.0).backward()


class TestGradOfNonLeaf:
    """``y.grad`` of a non-leaf: None, with a warning that names retain_grad()."""

    def test_warning(self):
        x = leaf(1.0)
        y = x * 2
        y.sum().backward()
        with pytest.warns(GradientWarning, match=r"retain_grad\(\)"):
            assert y.grad is None

    def test_retain_grad(self):
        x = leaf(1.0, 2.0)
        y = x * 2
        y.retain_grad()
        assert y.retains_grad
        assert not x.retains_grad
        (y * y).sum().backward()
        assert y.grad.tolist() == [4.0, 8.0]
        assert x.grad.tolist() == [8.0, 16.0]

    def test_retain_grad_of_a_leaf_does_nothing(self):
        x = leaf(1.0)
        x.retain_grad()
        (x * 2).sum().backward()
        assert x.grad.tolist() == [2.0]

    def test_retain_grad_without_graph(self):
        with pytest.raises(GraphError):
            jg.tensor([1.0]).retain_grad()

    def test_leaf_without_backward(self):
        assert leaf(1.0).grad is None
        assert jg.tensor([1.0]).grad is None

    def test_several_results(self):
        x = leaf(1.0, 4.0)
        first, second = _Pair.apply(x)
        second.retain_grad()
        (first + second * 3).sum().backward()
        assert second.grad.tolist() == [3.0, 3.0]
        assert x.grad.tolist() == [2 + 9.0, 2 + 9.0]

    def test_kept_by_the_tensor_across_a_write(self):
        a = leaf(1.0, 2.0)
        b = a * 2
        b.retain_grad()
        b.mul_(5.0)
        b.sum().backward()
        assert b.grad.tolist() == [1.0, 1.0]
        assert a.grad.tolist() == [10.0, 10.0]


class _Pair(jg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        return g * 2 + h * 3


class TestWriteThroughAlias:
    """``o.detach().zero_()`` before backward: o sees it; an error if backward needs the old value, else right."""

    def test_needed(self):
        x = leaf(1.0, 2.0)
        o = jg.exp(x)
        o.detach().zero_()
        assert o.tolist() == [0.0, 0.0]
        line = sys._getframe().f_lineno - 2
        with pytest.raises(InPlaceError) as caught:
            o.sum().backward()
        message = str(caught.value)
        assert "exp" in message
        assert "zero_" in message
        assert "shape (2,)" in message
        assert "version 0" in message
        assert "version 1" in message
        assert f"test_detach.py:{line}" in message
        assert x.grad is None

    def test_not_needed(self):
        a = leaf(1.0, 2.0)
        o = 3 * a
        o.detach().zero_()
        o.sum().backward()
        assert a.grad.tolist() == [3.0, 3.0]

    def test_part_that_is_not_needed(self):
        """Only bytes that backward reads count."""
        a = leaf(1.0, 2.0, 3.0, 4.0)
        o = a * 1
        head = o[:3]
        y = head * head
        o.detach()[3] = 100.0
        y.sum().backward()
        assert a.grad.tolist() == [2.0, 4.0, 6.0, 0.0]

    def test_input_of_an_operation(self):
        a = leaf(1.0, 2.0)
        b = a * 1
        alias = b.detach()
        y = b * b
        alias[0] = 5.0
        with pytest.raises(InPlaceError, match="multiply"):
            y.sum().backward()

    def test_write_after_backward_is_fine(self):
        x = leaf(1.0)
        o = jg.exp(x)
        o.sum().backward()
        o.detach().zero_()
        assert x.grad.tolist() == pytest.approx([math.e], rel=1e-15)

    def test_numpy_write_is_found_by_detect_anomaly(self):
        """Writes by NumPy to memory shared beforehand cannot be seen: detect_anomaly fingerprints and raises."""
        shared = np.array([1.0, 2.0])
        t = jg.from_numpy(shared)
        x = leaf(3.0, 4.0)
        with jg.autograd.detect_anomaly():
            y = (x * t).sum()
            shared[0] = 50.0
            with pytest.raises(InPlaceError, match=r"outside.*test_detach\.py"):
                y.backward()
        assert x.grad is None


class TestDetachInPlace:
    """``detach_()``: a leaf; consumers recorded earlier keep their history; on a view: raises."""

    def test_becomes_a_leaf(self):
        x = leaf(1.0, 2.0)
        y = x * 2
        assert y.detach_() is y
        assert y.is_leaf
        assert not y.requires_grad
        assert y.grad_fn is None
        with pytest.raises(NoGraphError, match="detach"):
            y.sum().backward()

    def test_earlier_consumers_keep_their_history(self):
        x = leaf(1.0, 2.0)
        y = x * 2
        before = y * y
        y.detach_()
        after = y * y
        assert not after.requires_grad
        before.sum().backward()
        assert x.grad.tolist() == [8.0, 16.0]

    def test_on_a_view(self):
        x = leaf(1.0, 2.0, 3.0, 4.0)
        y = x * 2
        for view in (y[1:], y[::2], y[::-1], y.reshape(2, 2), y.reshape(2, 2).T, jg.broadcast_to(y, (3, 4)), y[0]):
            with pytest.raises(GraphError, match="view"):
                view.detach_()
            assert view.requires_grad

    def test_base_with_a_view(self):
        """The view keeps its history, until a write through the base gives it another."""
        a, w = leaf(1.0, 2.0), leaf(5.0)
        b = a * 2
        v = b[0:1]
        b.detach_()
        (v * 3).sum().backward()
        assert a.grad.tolist() == [6.0, 0.0]
        b[0:1] = w * 1
        (v * 3).sum().backward()
        assert a.grad.tolist() == [6.0, 0.0]
        assert w.grad.tolist() == [3.0]

    def test_constant_written_through_the_detached_base(self):
        a = leaf(1.0, 2.0)
        b = a * 2
        v = b[0:1]
        b.detach_()
        b[0] = 7.0
        assert v.tolist() == [7.0]
        assert not v.requires_grad  # its value is a constant now

    def test_of_a_leaf(self):
        x = leaf(1.0)
        x.detach_()
        assert not x.requires_grad
        x += 1.0
        assert x.tolist() == [2.0]


# --------------------------------------------------------------------------- the ways out


class TestNumpy:
    """``x.numpy()`` of a tensor that requires grad raises; np.asarray follows the same rule; never an object array."""

    @pytest.mark.parametrize("convert", [lambda t: t.numpy(), np.asarray, np.array, lambda t: np.asarray(t, float)])
    def test_raises(self, convert):
        for t in (leaf(1.0, 2.0), leaf(1.0) * 2, jg.tensor(1.0, requires_grad=True)):
            with pytest.raises(ConversionError, match=r"x\.detach\(\)\.numpy\(\).*x\.numpy\(force=True\)"):
                convert(t)
        assert issubclass(ConversionError, RuntimeError)
        assert issubclass(ConversionError, TypeError)

    def test_the_explicit_ways(self):
        x = leaf(1.0, 2.0)
        assert x.detach().numpy().tolist() == [1.0, 2.0]
        assert x.numpy(force=True).tolist() == [1.0, 2.0]
        with jg.no_grad():
            assert x.numpy().tolist() == [1.0, 2.0]
            assert np.asarray(x).dtype == np.float64
            assert np.asarray(x, np.float32).dtype == np.float32

    def test_never_object(self):
        x = jg.tensor([1.0, 2.0])
        for made in (np.asarray(x), np.array(x), x.numpy(), np.asarray(x[0]), np.array([x[0].item()])):
            assert made.dtype == np.float64

    def test_shares_memory(self):
        x = jg.tensor([1.0, 2.0])
        array = x.numpy()
        array[0] = 5.0
        assert x.tolist() == [5.0, 2.0]
        x[1] = 7.0
        assert array.tolist() == [5.0, 7.0]
        x.mul_(2.0)
        assert array.tolist() == [10.0, 14.0]
        assert np.array(x) is not array
        assert not np.shares_memory(np.array(x), array)

    def test_copy_false(self):
        x = jg.tensor([1.0, 2.0])
        assert np.shares_memory(np.asarray(x, copy=False), x.numpy())
        with pytest.raises(ValueError, match="copy"):
            np.asarray(x, np.float32, copy=False)

    @pytest.mark.parametrize("value", [0.0, [], [[1.0, 2.0]], True, [1, 2]])
    def test_shapes_and_dtypes(self, value):
        expected = np.array(value)
        array = jg.tensor(value).numpy()
        assert array.dtype == expected.dtype
        assert array.shape == expected.shape
        assert (array == expected).all()

    def test_dlpack(self):
        x = jg.tensor([1.0, 2.0])
        array = np.from_dlpack(x)
        assert np.shares_memory(array, x.numpy())
        back = jg.from_dlpack(np.ones(3))
        assert back.tolist() == [1.0, 1.0, 1.0]
        with pytest.raises(ConversionError):
            np.from_dlpack(leaf(1.0))


class TestReadOnlyView:
    """``o.detach().numpy()`` while o's memory is kept for a backward: a read-only view; ``.copy()`` to change it."""

    def test_kept_memory_is_read_only(self):
        x = leaf(1.0, 2.0)
        o = jg.exp(x)
        array = o.detach().numpy()
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0
        with pytest.raises(ValueError):
            array.flags.writeable = True
        array.copy()[0] = 0.0
        o.sum().backward()
        assert x.grad.tolist() == pytest.approx([math.e, math.e**2], rel=1e-15)

    def test_kept_by_a_consumer(self):
        x = leaf(1.0, 2.0)
        y = x * 1
        z = y * y
        assert not y.detach().numpy().flags.writeable
        assert not y.detach().numpy()[1:].flags.writeable
        assert x.detach().numpy().flags.writeable  # only the factor 1 of x * 1 is kept
        z.sum().backward()
        assert y.detach().numpy().flags.writeable

    def test_kept_by_a_view_that_is_gone(self):
        x = leaf(1.0, 2.0)
        y = x * 1
        z = y[::-1] * y[::-1]
        assert not y.detach().numpy().flags.writeable
        z.sum().backward()
        assert y.detach().numpy().flags.writeable

    def test_memory_that_is_not_kept_is_writable(self):
        x = leaf(1.0, 2.0)
        y = 3 * x
        first, second = y.detach().numpy(), y.detach().numpy()
        view = y[1:]
        third = y.detach().numpy()
        assert first.flags.writeable
        assert second.flags.writeable
        assert third.flags.writeable
        first[:] = 0.0
        assert view.tolist() == [0.0]
        y.sum().backward()
        assert x.grad.tolist() == [3.0, 3.0]

    def test_after_backward_is_writable(self):
        o = jg.exp(leaf(1.0))
        o.sum().backward()
        assert o.detach().numpy().flags.writeable

    def test_leaf_for_an_optimizer(self):
        x = leaf(1.0, 2.0)
        x.detach().numpy()[:] = [3.0, 4.0]
        (x * x).sum().backward()
        assert x.grad.tolist() == [6.0, 8.0]


class TestPlainNumbers:
    """``t.item()``, ``t.tolist()``, format strings: the explicit exits: plain numbers, no warning."""

    def test_no_warning(self):
        t = jg.tensor(2.5, requires_grad=True) * 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert type(t.item()) is float
            assert t.item() == 2.5
            assert (leaf(1.0, 2.0) * 1).tolist() == [1.0, 2.0]
            assert f"{t:.3f}" == "2.500"
            assert f"{t:8.2e}" == "2.50e+00"
            assert "2.5" in f"{t}"
            assert f"{jg.tensor(3):04d}" == "0003"
        assert type(jg.tensor(3).item()) is int
        assert type(jg.tensor(True).item()) is bool

    def test_item_of_several(self):
        with pytest.raises(ValueError, match=r"\(2,\)"):
            leaf(1.0, 2.0).item()

    @pytest.mark.parametrize("convert", [float, int, complex, math.sin, math.sqrt])
    def test_conversion_of_a_tracked_tensor_warns(self, convert):
        """``float(t)``, ``int(t)``, and what goes through them: a warning that names .item() and .detach()."""
        t = jg.tensor(2.0, requires_grad=True)
        with pytest.warns(GradientWarning, match=r"\.item\(\).*\.detach\(\)"):
            value = convert(t)
        assert value == convert(2.0)

    def test_conversion_into_an_array_warns(self):
        t = jg.tensor(2.0, requires_grad=True)
        array = np.zeros(2)
        with pytest.warns(GradientWarning, match=r"\.item\(\)"):
            array[1] = t
        assert array.tolist() == [0.0, 2.0]

    def test_conversion_without_a_graph_is_silent(self):
        t = jg.tensor(2.0, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert float(t.detach()) == 2.0
            assert int(jg.tensor(3)) == 3
            with jg.no_grad():
                assert float(t) == 2.0
                assert math.sqrt(t) == math.sqrt(2.0)

    def test_index(self):
        assert [10, 20, 30][jg.tensor(1)] == 20
        assert list(range(jg.tensor(2))) == [0, 1]
        with pytest.raises(TypeError):
            [1, 2][jg.tensor(1.0)]

    def test_truth(self):
        assert jg.tensor(1.0, requires_grad=True)
        assert not jg.tensor([0.0])
        with pytest.raises(ValueError, match="ambiguous"):
            bool(leaf(1.0, 2.0))


class TestTensorOfTensors:
    """``jg.tensor([a, b])`` with tracked scalars: stacks and stays tracked; never an untracked result."""

    def test_stays_tracked(self):
        a, b = jg.tensor(2.0, requires_grad=True), jg.tensor(3.0, requires_grad=True)
        t = jg.tensor([a, b * b])
        assert t.requires_grad
        (t * jg.tensor([1.0, 10.0])).sum().backward()
        assert a.grad.item() == 1.0
        assert b.grad.item() == 60.0

    def test_mixed_with_numbers_and_nested(self):
        a = jg.tensor(2.0, requires_grad=True)
        t = jg.tensor([[a, 1], [0.5, a * a]])
        assert t.tolist() == [[2.0, 1.0], [0.5, 4.0]]
        t.sum().backward()
        assert a.grad.item() == 5.0

    def test_ragged(self):
        a = jg.tensor(2.0, requires_grad=True)
        with pytest.raises(ShapeError, match="ragged"):
            jg.tensor([[a, a], [a]])


# --------------------------------------------------------------------------- grad mode


class TestGradMode:
    """no_grad, enable_grad, set_grad_enabled: context managers and decorators; per thread and per async task."""

    def test_no_grad(self):
        x = leaf(1.0, 2.0)
        with jg.no_grad():
            assert not jg.is_grad_enabled()
            results = [x * 2, x + x, jg.exp(x), x[0], x[::2], x.reshape(2, 1), x.sum(), x.clone(), x.astype("float32")]
        assert jg.is_grad_enabled()
        for result in results:
            assert not result.requires_grad
            assert result.grad_fn is None
        assert x.requires_grad

    def test_nested(self):
        x = leaf(1.0)
        with jg.no_grad():
            with jg.enable_grad():
                assert (x * 2).requires_grad
                with jg.no_grad():
                    assert not (x * 2).requires_grad
                assert (x * 2).requires_grad
            assert not (x * 2).requires_grad
        assert (x * 2).requires_grad

    def test_restored_after_an_exception(self):
        with pytest.raises(KeyError), jg.no_grad():
            raise KeyError
        assert jg.is_grad_enabled()

    def test_set_grad_enabled(self):
        with jg.set_grad_enabled(False):
            assert not jg.is_grad_enabled()
            with jg.set_grad_enabled(True):
                assert jg.is_grad_enabled()
            assert not jg.is_grad_enabled()
        assert jg.is_grad_enabled()

    def test_set_grad_enabled_as_a_function(self):
        jg.set_grad_enabled(False)
        assert not jg.is_grad_enabled()
        jg.set_grad_enabled(True)
        assert jg.is_grad_enabled()

    def test_decorators(self):
        x = leaf(1.0)

        @jg.no_grad()
        def plain():
            """Doc."""
            return x * 2

        @jg.no_grad
        def bare():
            return x * 2

        @jg.enable_grad()
        def recorded():
            return x * 2

        decorate = jg.set_grad_enabled(False)
        assert not jg.is_grad_enabled()

        @decorate
        def switched():
            return x * 2

        assert jg.is_grad_enabled()  # the mode belongs to the calls, not to the line of the decorator
        assert plain.__name__ == "plain"
        assert plain.__doc__ == "Doc."
        assert not plain().requires_grad
        assert not bare().requires_grad
        assert not switched().requires_grad
        with jg.no_grad():
            assert recorded().requires_grad
        assert jg.is_grad_enabled()

    def test_decorated_generator(self):
        @jg.no_grad()
        def numbers():
            got = yield jg.is_grad_enabled()
            try:
                got = yield (got, jg.is_grad_enabled())
            except KeyError:
                got = yield ("caught", jg.is_grad_enabled())
            return got

        def outer():
            result = yield from numbers()
            yield ("returned", result)

        steps = outer()
        assert next(steps) is False
        assert jg.is_grad_enabled()  # suspended: the mode of the caller is untouched
        assert steps.send(1) == (1, False)
        assert steps.throw(KeyError) == ("caught", False)
        assert steps.send(2) == ("returned", 2)
        assert jg.is_grad_enabled()

    def test_decorated_coroutine(self):
        @jg.no_grad()
        async def work():
            await asyncio.sleep(0)
            return jg.is_grad_enabled()

        async def main():
            inside = await work()
            return inside, jg.is_grad_enabled()

        assert asyncio.run(main()) == (False, True)

    def test_one_object_used_again(self):
        mode = jg.no_grad()
        for _ in range(2):
            with mode, mode:
                assert not jg.is_grad_enabled()
            assert jg.is_grad_enabled()

    def test_per_thread(self):
        seen = []
        with jg.no_grad():
            thread = threading.Thread(target=lambda: seen.append(jg.is_grad_enabled()))
            thread.start()
            thread.join()
        assert seen == [True]

    def test_one_object_in_two_threads_at_once(self):
        mode = jg.no_grad()
        entered, left = threading.Event(), threading.Event()
        seen = []

        def other():
            with mode:
                entered.set()
                left.wait(10)
                seen.append(jg.is_grad_enabled())
            seen.append(jg.is_grad_enabled())

        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(10)
        with mode:
            assert not jg.is_grad_enabled()
        assert jg.is_grad_enabled()
        left.set()
        thread.join()
        assert seen == [False, True]

    def test_per_task(self):
        async def other(gate):
            await gate.wait()
            return jg.is_grad_enabled()

        async def without(gate):
            with jg.no_grad():
                gate.set()
                await asyncio.sleep(0)
                return jg.is_grad_enabled()

        async def main():
            gate = asyncio.Event()
            return await asyncio.gather(other(gate), without(gate))

        assert asyncio.run(main()) == [True, False]

    def test_copied_context(self):
        context = contextvars.copy_context()
        context.run(jg.set_grad_enabled, False)
        assert jg.is_grad_enabled()
        assert not context.run(jg.is_grad_enabled)


# --------------------------------------------------------------------------- backward


class TestBackward:
    def test_second_backward(self):
        """A second backward through a consumed node raises always, unless retain_graph=True; names the operation."""
        x = leaf(1.0, 2.0)
        y = jg.exp(x).sum()
        y.backward()
        with pytest.raises(ReleasedGraphError, match="sum"):
            y.backward()

    def test_second_backward_through_a_shared_part(self):
        x = leaf(1.0)
        shared = jg.exp(x)
        first, second = shared * 2, shared * 3
        first.sum().backward()
        with pytest.raises(ReleasedGraphError, match=r"exp.*retain_graph=True"):
            second.sum().backward()
        assert x.grad.tolist() == pytest.approx([2 * math.e], rel=1e-15)  # nothing was added by the one that failed

    def test_also_where_nothing_was_kept(self):
        """Also where backward would not need any value: PyTorch lets some of these pass."""
        x = leaf(1.0)
        y = x + 1.0
        y.sum().backward()
        z = y.sum()
        with pytest.raises(ReleasedGraphError, match="add"):
            z.backward()

    def test_retain_graph(self):
        x = leaf(1.0, 2.0)
        y = (x * x).sum()
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        y.backward()
        assert x.grad.tolist() == [6.0, 12.0]
        with pytest.raises(ReleasedGraphError):
            y.backward()

    def test_failed_backward_leaves_retained_gradients_alone(self):
        x = leaf(1.0)
        shared = jg.exp(x)
        shared.sum().backward()
        y = shared * 2
        y.retain_grad()
        with pytest.raises(ReleasedGraphError):
            y.sum().backward()
        assert y.grad is None

    def test_non_scalar(self):
        """backward() of a non-scalar without gradient raises, names the shape."""
        x = leaf(1.0, 2.0)
        y = x * x
        with pytest.raises(GraphError, match=r"shape \(2,\).*gradient="):
            y.backward()
        assert x.grad is None
        y.backward(jg.tensor([1.0, 10.0]))
        assert x.grad.tolist() == [2.0, 40.0]

    def test_gradient_from_numpy_and_lists(self):
        for gradient in (np.array([1.0, 10.0]), [1.0, 10.0], [1, 10], np.array([1, 10], np.float32)):
            x = leaf(1.0, 2.0)
            (x * x).backward(gradient)
            assert x.grad.tolist() == [2.0, 40.0]

    def test_one_element_of_any_shape(self):
        x = jg.tensor([[2.0]], requires_grad=True)
        (x * x).backward()
        assert x.grad.tolist() == [[4.0]]

    def test_leaf_itself(self):
        x = jg.tensor(2.0, requires_grad=True)
        x.backward()
        assert x.grad.item() == 1.0

    def test_accumulates(self):
        x = leaf(1.0, 2.0)
        for _ in range(3):
            (x * 2).sum().backward()
        assert x.grad.tolist() == [6.0, 6.0]
        x.grad = None
        (x * 2).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]

    def test_unused_leaf(self):
        """Unused input: ``.grad`` is None."""
        x, unused = leaf(1.0), leaf(1.0)
        (x * 2).sum().backward()
        assert unused.grad is None

    def test_gradients_are_separate(self):
        """Leaves that get the same cotangent get memory of their own, with and without create_graph."""
        for create_graph in (False, True):
            a, b = leaf(1.0), leaf(2.0)
            (a + b).backward(create_graph=create_graph)
            with jg.no_grad():
                a.grad.zero_()
            assert b.grad.tolist() == [1.0]

    def test_gradient_argument_is_not_shared(self):
        x = leaf(1.0, 2.0)
        g = jg.tensor([1.0, 1.0])
        (x + 0.0).backward(g)
        x.grad.zero_()
        assert g.tolist() == [1.0, 1.0]

    def test_under_no_grad(self):
        x = leaf(2.0)
        y = (x * x * x).sum()
        with jg.no_grad():
            y.backward(create_graph=True)
        assert x.grad.tolist() == [12.0]
        assert x.grad.requires_grad  # create_graph asks for it

    def test_inputs(self):
        x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
        y = x * w
        (y * y).sum().backward(inputs=[x])
        assert x.grad.tolist() == [2 * 1 * 9.0, 2 * 2 * 16.0]
        assert w.grad is None


class TestHooks:
    """Hooks: on the fully accumulated gradient, in order of registration, then retain_grad; belong to the value."""

    def test_accumulated_and_in_order(self):
        x = leaf(1.0)
        y = x * 1
        y.retain_grad()
        seen = []
        y.register_hook(lambda g: seen.append(("first", g.item())))
        y.register_hook(lambda g: g * 10)
        y.register_hook(lambda g: seen.append(("third", g.item())))
        (y * 2 + y * 3).sum().backward()
        assert seen == [("first", 5.0), ("third", 50.0)]
        assert y.grad.tolist() == [50.0]
        assert x.grad.tolist() == [50.0]

    def test_on_a_leaf(self):
        x = leaf(2.0)
        seen = []
        x.register_hook(lambda g: g * 2)
        x.register_hook(lambda g: seen.append(g.tolist()))
        (x * x + x).sum().backward()
        assert seen == [[10.0]]
        assert x.grad.tolist() == [10.0]
        (x * x + x).sum().backward()  # on this gradient alone, not on what .grad holds already
        assert seen == [[10.0], [10.0]]
        assert x.grad.tolist() == [20.0]

    def test_removal(self):
        x = leaf(1.0)
        handle = x.register_hook(lambda g: g * 100)
        (x * 1).sum().backward()
        handle.remove()
        handle.remove()
        (x * 1).sum().backward()
        assert x.grad.tolist() == [101.0]
        with x.register_hook(lambda g: g * 100):
            (x * 1).sum().backward()
        (x * 1).sum().backward()
        assert x.grad.tolist() == [202.0]

    def test_belongs_to_the_value(self):
        x = leaf(1.0)
        y = x * 2
        seen = []
        y.register_hook(lambda g: seen.append(g.item()))
        y.mul_(5.0)
        (y * 3).sum().backward()
        assert seen == [15.0]  # the gradient of the value before the write
        assert x.grad.tolist() == [30.0]

    def test_result_of_the_wrong_shape(self):
        x = leaf(1.0, 2.0)
        x.register_hook(lambda g: g[0])
        with pytest.raises(ShapeError, match="hook"):
            (x * 1).sum().backward()
        assert x.grad is None

    def test_result_of_numpy_and_another_dtype(self):
        x = leaf(1.0, 2.0)
        x.register_hook(lambda g: np.array([1, 2]))
        (x * 1).sum().backward()
        assert x.grad.tolist() == [1.0, 2.0]
        assert x.grad.dtype == np.float64

    def test_a_kept_gradient_is_not_changed_later(self):
        x = leaf(1.0)
        y = x * 1
        kept = []
        y.register_hook(kept.append)
        x.register_hook(kept.append)
        for _ in range(2):
            (y * 2).sum().backward(retain_graph=True)
        assert [k.item() for k in kept] == [2.0, 2.0, 2.0, 2.0]
        assert x.grad.tolist() == [4.0]

    def test_untracked(self):
        with pytest.raises(GraphError):
            jg.tensor([1.0]).register_hook(print)

    def test_create_graph(self):
        x = jg.tensor(2.0, requires_grad=True)
        y = x * x
        y.register_hook(lambda g: g * x)
        (first,) = jg.autograd.grad(y, x, create_graph=True)
        assert first.item() == 2 * 2.0 * 2.0  # x * 2x
        (second,) = jg.autograd.grad(first, x)
        assert second.item() == 4 * 2.0

    def test_after_accumulation(self):
        x = leaf(2.0)

        def step(tensor):
            assert tensor is x
            tensor.sub_(0.5 * tensor.grad)
            tensor.grad = None

        handle = x.register_post_accumulate_grad_hook(step)
        (x * x).sum().backward()
        assert x.tolist() == [0.0]
        assert x.grad is None
        assert x.is_leaf
        handle.remove()
        (x * x + x).sum().backward()
        assert x.grad.tolist() == [1.0]
        with pytest.raises(GraphError):
            (x * 2).register_post_accumulate_grad_hook(step)


# --------------------------------------------------------------------------- memory and long graphs


@pytest.fixture
def no_collector():
    """Reference counts alone must free everything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
class TestNoCycles:
    """No reference cycles: with the collector off, dropping the last reference frees the memory."""

    @staticmethod
    def _freed(*tensors):
        return [weakref.ref(t) for t in tensors]

    def test_graph_before_backward(self):
        x = leaf(1.0, 2.0)
        y = jg.exp(x * 2)
        z = (y * y).sum()
        references = [*self._freed(x, y, z), weakref.ref(y._value), weakref.ref(z.grad_fn)]
        del x, y, z
        assert [r() for r in references] == [None] * 5

    def test_graph_after_backward(self):
        x = leaf(1.0, 2.0)
        y = jg.exp(x)
        y.retain_grad()
        y.sum().backward()
        references = self._freed(x, y, x.grad, y.grad)
        del x, y
        assert [r() for r in references] == [None] * 4

    def test_backward_releases_what_it_kept(self):
        x = leaf(1.0, 2.0)
        y = jg.exp(x)
        array = weakref.ref(y._value)
        z = y.sum()
        del y
        assert array() is not None
        z.backward()
        assert array() is None

    def test_views_aliases_and_writes(self):
        x = leaf(1.0, 2.0, 3.0)
        y = x * 1
        v = y[1:]
        d = y.detach()
        v.mul_(2.0)
        y[0] = x[1]
        n = d.numpy()
        references = [*self._freed(x, y, v, d), weakref.ref(n), weakref.ref(v.grad_fn)]
        del x, y, v, d, n
        assert [r() for r in references] == [None] * 6

    def test_hooks(self):
        x = leaf(1.0)
        x.register_hook(lambda g: g * 2)
        x.register_post_accumulate_grad_hook(lambda t: None)
        y = x * 2
        y.register_hook(lambda g: None)
        y.sum().backward()
        references = self._freed(x, y)
        del x, y
        assert [r() for r in references] == [None] * 2

    def test_functions(self):
        class Exp(jg.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                out = jg.exp(x)
                ctx.save_for_backward(x, out)
                ctx.mark_non_differentiable()
                return out

            @staticmethod
            def backward(ctx, g):
                _, out = ctx.saved_tensors
                return g * out

        x = leaf(1.0)
        y = Exp.apply(x)
        references = [*self._freed(x, y), weakref.ref(y.grad_fn)]
        del x, y
        assert [r() for r in references] == [None] * 3
        x = leaf(1.0)
        y = Exp.apply(x)
        y.sum().backward()
        references = self._freed(x, y)
        del x, y
        assert [r() for r in references] == [None] * 2

    def test_errors(self):
        x = leaf(1.0, 2.0)
        y = x * 2
        reference = weakref.ref(y)
        with contextlib.suppress(GraphError):
            y.backward()
        del y
        assert reference() is None


_CHAIN = 1_000_000


class TestLongGraphs:
    """1,000,000-node chains: backward and freeing are iterative, from any thread."""

    @staticmethod
    def _chain(length=_CHAIN):
        x = jg.tensor(1.0, requires_grad=True)
        y = x
        for _ in range(length):
            y = y + 1.0
        return x, y

    def test_backward_and_release(self):
        x, y = self._chain()
        y.backward()
        assert x.grad.item() == 1.0
        del y
        x, y = self._chain(300_000)
        y.backward(retain_graph=True)
        del x, y  # frees the whole chain at once

    def test_from_a_thread_with_a_small_stack(self):
        old = threading.stack_size(256 * 1024)
        got = []

        def work():
            x, y = self._chain(200_000)
            z = y * y
            z.backward(retain_graph=True)
            jg.autograd.grad(z, x)
            got.append(x.grad.item())
            del y, z

        try:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        finally:
            threading.stack_size(old)
        assert got == [2.0 * 200_001.0]

    def test_dropped_in_another_thread(self):
        box = [self._chain(200_000)[1]]
        old = threading.stack_size(256 * 1024)
        try:
            thread = threading.Thread(target=box.clear)
            thread.start()
            thread.join()
        finally:
            threading.stack_size(old)
        assert not box

    def test_recursion_limit_does_not_matter(self):
        x, y = self._chain(5000)
        limit = sys.getrecursionlimit()
        (first,) = jg.autograd.grad((y * y * y).sum(), x, create_graph=True)
        assert sys.getrecursionlimit() == limit
        (second,) = jg.autograd.grad(first, x)
        assert second.item() == 6.0 * 5001.0

    def test_views(self):
        x = leaf(1.0, 2.0)
        y = x * 1
        for _ in range(3000):
            y = y[::-1]
        jg.sqrt(y)[0].backward()
        assert x.grad.tolist() == [0.5, 0.0]


class TestThreads:
    def test_eight_at_once(self):
        shared = leaf(1.0, 2.0, 3.0)
        barrier = threading.Barrier(8)

        def work(k):
            barrier.wait(30)
            for _ in range(20):
                x = jg.tensor([1.0 + k, 2.0, 3.0], requires_grad=True)
                y = jg.exp(x * 0.5) * shared + x / (k + 1.0)
                y[0] = x[1] * k
                (g,) = jg.autograd.grad(y.sum(), x)
                v = np.array([1.0 + k, 2.0, 3.0])
                slope = np.exp(0.5 * v) * 0.5 * np.array([1.0, 2.0, 3.0]) + 1 / (k + 1.0)
                slope[0] = 0.0
                slope[1] += k
                np.testing.assert_allclose(g.numpy(), slope, rtol=1e-14)
            return True

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [True] * 8

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
    def test_fork_after_use(self):
        x = leaf(1.0, 2.0)
        y = (jg.exp(x) * x).sum()
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads of other tests
            child = os.fork()
        if child == 0:
            try:
                y.backward()
                w = leaf(3.0)
                jg.sin(jg.sqrt(w)).sum().backward()
                os.write(write, pickle.dumps((x.grad.tolist(), w.grad.tolist())))
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            first, second = pickle.loads(pipe.read())
        os.waitpid(child, 0)
        np.testing.assert_allclose(first, [2 * math.e, 3 * math.e**2], rtol=1e-14)
        np.testing.assert_allclose(second, [math.cos(math.sqrt(3)) / (2 * math.sqrt(3))], rtol=1e-14)
        assert x.grad is None  # the child's gradients are its own


# --------------------------------------------------------------------------- copies and dtypes


class TestCopies:
    """copy.deepcopy, pickle: leaves keep requires_grad; a non-leaf gives a detached copy with a warning."""

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
    def test_leaf(self, duplicate):
        x = leaf(1.0, 2.0)
        (x * 3).sum().backward()
        twin = duplicate(x)
        assert twin.requires_grad
        assert twin.is_leaf
        assert twin.tolist() == [1.0, 2.0]
        assert twin.grad.tolist() == [3.0, 3.0]
        with jg.no_grad():
            twin.zero_()
            twin.grad.zero_()
        assert x.tolist() == [1.0, 2.0]
        assert x.grad.tolist() == [3.0, 3.0]
        plain = duplicate(jg.tensor([[1, 2]], dtype="int32"))
        assert not plain.requires_grad
        assert plain.dtype == np.int32
        assert plain.shape == (1, 2)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
    def test_non_leaf(self, duplicate):
        y = leaf(1.0, 2.0) * 2
        with pytest.warns(GradientWarning, match="detached"):
            twin = duplicate(y)
        assert not twin.requires_grad
        assert twin.tolist() == [2.0, 4.0]

    def test_deepcopy_keeps_identity_inside_a_structure(self):
        x = leaf(1.0)
        twins = copy.deepcopy([x, x])
        assert twins[0] is twins[1]
        assert twins[0] is not x


class TestWhatCanRequireGrad:
    """Integer or bool tensor with requires_grad: raises a TypeError that says what is supported."""

    @pytest.mark.parametrize("values", [[1, 2], [True, False], np.array([1], np.uint8), 3])
    def test_integers(self, values):
        with pytest.raises(DtypeError, match=r"float64 and float32.*astype"):
            jg.tensor(values, requires_grad=True)
        t = jg.tensor(values)
        with pytest.raises(DtypeError):
            t.requires_grad_()
        with pytest.raises(DtypeError):
            t.requires_grad = True
        assert not t.requires_grad
        assert issubclass(DtypeError, TypeError)

    @pytest.mark.parametrize("value", [1j, np.array([1j]), [1 + 2j]])
    def test_complex(self, value):
        with pytest.raises(DtypeError, match="complex"):
            jg.tensor(value)

    def test_results_of_integers(self):
        x = leaf(1.0, 2.0)
        counts = x.astype(int)
        assert not counts.requires_grad
        y = x * counts
        y.sum().backward()
        assert x.grad.tolist() == [1.0, 2.0]

    def test_requires_grad_can_be_turned_off_for_leaves(self):
        x = leaf(1.0)
        x.requires_grad_(False)
        assert not (x * 2).requires_grad
        x.requires_grad = True
        assert (x * 2).requires_grad
        with pytest.raises(GraphError, match="multiply"):
            (x * 2).requires_grad_(False)

    def test_float32_stays(self):
        x = jg.tensor([1.0, 2.0], dtype="float32", requires_grad=True)
        y = (x * x * 3.0).sum()
        assert y.dtype == np.float32
        y.backward()
        assert x.grad.dtype == np.float32
        assert x.grad.tolist() == [6.0, 12.0]

    def test_root_class(self):
        for error in (NoGraphError, ReleasedGraphError, InPlaceError, ConversionError, DtypeError, ShapeError):
            assert issubclass(error, JitgradError)


class TestUnderTransforms:
    """The same rules under functional transforms, in reverse and forward mode; values by hand."""

    @staticmethod
    def _detached_square(x):
        return x * x * x.detach()  # 2 x^2, then 2 x: the detached factor is a constant at every order

    def test_detach(self):
        f = self._detached_square
        assert jg.grad(f)(3.0) == 18.0
        assert jg.jvp(f, (3.0,), (1.0,)) == (27.0, 18.0)
        value, pull = jg.vjp(f, 3.0)
        assert value == 27.0
        assert pull(1.0) == (18.0,)
        assert jg.grad(jg.grad(f))(3.0) == 6.0  # the inner gradient is 2 x stop(x)
        assert jg.hessian(f)(np.array(3.0)) == 6.0
        assert jg.jacfwd(jg.jacfwd(f))(np.array(3.0)) == 6.0

    def test_no_grad_outside_does_not_matter(self):
        with jg.no_grad():
            assert jg.grad(lambda x: x * x * x)(2.0) == 12.0
            assert jg.jvp(lambda x: x * x * x, (2.0,), (1.0,)) == (8.0, 12.0)

    def test_no_grad_inside_acts_as_stop_gradient(self):
        def f(x):
            with jg.no_grad():
                y = x * x
            return y * x

        assert jg.grad(f)(2.0) == 4.0
        assert jg.jvp(f, (2.0,), (1.0,)) == (8.0, 4.0)

    def test_unused_argument(self):
        """Functional transforms: zeros of its shape."""
        first, second = jg.grad(lambda x, y: x * x, (0, 1))(3.0, np.ones((2, 3)))
        assert first == 6.0
        assert second.tolist() == [[0.0] * 3] * 2

    def test_python_ints_become_floats(self):
        gradient = jg.grad(lambda x: x**2)(3)
        assert gradient == 6.0
        assert type(gradient) is float

    @pytest.mark.parametrize(
        "lose",
        [
            lambda x: math.sin(x[0]),
            lambda x: float(x[0]) * x.sum(),
            lambda x: int(x[0]) * x.sum(),
            lambda x: x.numpy().sum(),
            lambda x: np.asarray(x).sum(),
        ],
    )
    def test_silent_loss_raises(self, lose):
        """Inside a functional transform, where the gradient would be lost silently: raises and names the way out."""
        for transformed in (jg.grad(lose), lambda a: jg.jvp(lose, (a,), (np.ones(2),))):
            with pytest.raises(ConversionError, match=r"detach\(\)"):
                transformed(np.array([1.0, 2.0]))

    def test_the_explicit_ways_out(self):
        assert jg.grad(lambda x: x * x.item())(3.0) == 3.0
        assert jg.grad(lambda x: x * jg.tensor(x.detach().numpy()))(3.0) == 3.0
