"""The gradient checker finds wrong gradients, and passes right ones; the strategies give what they promise."""

import math
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitgrad as jg
from jitgrad import testing
from jitgrad.autograd import Function, gradcheck, gradgradcheck, once_differentiable
from jitgrad.errors import ArgumentError, DtypeError, GradientError, NotDifferentiableError, UnsupportedError


def leaf(*values):
    return jg.tensor(list(values), requires_grad=True)


def rule(forward, backward):
    """A Function of one argument with this backward(g, x), right or wrong."""

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    return Made.apply


class TestWrongGradients:
    @pytest.mark.parametrize(
        "wrong",
        [
            lambda g, x: g * x,  # a factor of two
            lambda g, x: -2.0 * g * x,  # a sign
            lambda g, x: 2.0 * g * x + 1e-3,  # a little
            lambda g, x: 2.0 * x,  # the cotangent forgotten
            lambda g, x: 2.0 * g.sum() * x / 3.0,  # the wrong elements of it
            lambda g, x: 2.0 * g * x[::-1],  # an order
            lambda g, x: None,
            lambda g, x: g * math.nan,
            lambda g, x: g * math.inf,
            lambda g, x: 2.0 * g * g * x,  # not linear in the cotangent
            lambda g, x: 2.0 * jg.where(g > 0, 1.0, 0.0) * x,
        ],
    )
    def test_found(self, wrong):
        f = rule(lambda x: x * x, wrong)
        x = leaf(0.5, 1.5, -2.0)
        with pytest.raises(GradientError):
            gradcheck(f, x)
        assert gradcheck(f, x, raise_exception=False) is False

    def test_right_one_passes(self):
        f = rule(lambda x: x * x, lambda g, x: 2.0 * g * x)
        assert gradcheck(f, leaf(0.5, 1.5, -2.0)) is True
        assert gradgradcheck(f, leaf(0.5, 1.5, -2.0)) is True

    def test_message(self):
        """Names input, index and both numbers."""

        class Mix(Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return x * 1, x * y

            @staticmethod
            def backward(ctx, g, h):
                x, y = ctx.saved_tensors
                wrong = h * x
                wrong[1] = wrong[1] * 3.0
                return g + h * y, wrong

        with pytest.raises(GradientError) as caught:
            gradcheck(Mix.apply, [leaf(1.0, 2.0), leaf(3.0, 4.0)])
        message = str(caught.value)
        assert "output 1[1]" in message
        assert "input 1[1]" in message
        assert "(= 4.0)" in message
        assert "6.0 by backward" in message
        assert re.search(r"(2\.0|1\.9999)\d* by finite differences", message)
        assert "1 of 4" in message

    def test_wrong_second_derivative(self):
        """The first derivative is right, its own gradient is not: the factor was computed outside of the graph."""
        f = rule(lambda x: x * x * x, lambda g, x: g * jg.tensor(3.0 * x.detach().numpy() ** 2))
        assert gradcheck(f, leaf(0.5, 1.5))
        with pytest.raises(GradientError):
            gradgradcheck(f, leaf(0.5, 1.5))
        assert gradgradcheck(f, leaf(0.5, 1.5), raise_exception=False) is False

    def test_second_derivative_that_is_refused(self):
        class Once(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.x = x.numpy().copy()
                return x * x

            @staticmethod
            @once_differentiable
            def backward(ctx, g):
                return g * jg.tensor(2.0 * ctx.x)

        assert gradcheck(Once.apply, leaf(0.5))
        with pytest.raises(NotDifferentiableError):
            gradgradcheck(Once.apply, leaf(0.5))

    def test_detached_path(self):
        """A detached factor has a derivative by differences that backward does not give."""
        with pytest.raises(GradientError):
            gradcheck(lambda x: x * x.detach(), leaf(0.5))
        with pytest.raises(GradientError):
            gradcheck(lambda x: x.detach(), leaf(0.5))

    def test_only_one_element_wrong(self):
        def backward(g, x):
            found = 2.0 * g * x
            found[2] = found[2] * 1.01
            return found

        with pytest.raises(GradientError, match=r"input 0\[2\]"):
            gradcheck(rule(lambda x: x * x, backward), leaf(1.0, 2.0, 3.0, 4.0))

    def test_not_deterministic(self):
        calls = []

        def backward(g, x):
            calls.append(1)
            return 2.0 * g * x * (1.0 + 1e-9 * len(calls))

        with pytest.raises(GradientError, match="deterministic"):
            gradcheck(rule(lambda x: x * x, backward), leaf(1.0))


class TestRightGradients:
    @pytest.mark.parametrize(
        "f",
        [
            lambda x: x * x * 3.0,
            jg.exp,
            lambda x: (x * x).sum(),
            lambda x: x.reshape(3, 2)[1:, 0],
            lambda x: x[x > 0.0],
            lambda x: (x * 2, jg.sin(x).sum()),
            lambda x: [x[0], x.sum(axis=0)],
            lambda x: jg.where(x > 0, x * x, -x),
        ],
    )
    def test_passes(self, f):
        x = jg.tensor([[0.5, -1.5, 2.0], [1.0, 0.25, -0.75]], requires_grad=True)
        assert gradcheck(f, x)
        assert gradgradcheck(f, x)

    def test_several_inputs(self):
        x, y = leaf(0.5, 1.5), jg.tensor([[1.0], [2.0]], requires_grad=True)
        assert gradcheck(lambda x, y: x * y + jg.exp(x), [x, y])
        assert gradgradcheck(lambda x, y: x * y + jg.exp(x), (x, y))

    def test_inputs_that_are_not_differentiated(self):
        x = leaf(0.5, 1.5)
        counts, constant = jg.tensor([1, 2]), jg.tensor([3.0, 4.0])
        f = lambda x, n, c, k: x * n * c * k  # noqa: E731
        assert gradcheck(f, [x, counts, constant, 2.0])
        assert gradgradcheck(f, [x, counts, constant, 2.0])

    def test_plain_arrays_are_differentiated(self):
        with pytest.raises(GradientError):
            gradcheck(lambda x, y: x * y.detach(), [np.array([1.0]), np.array([2.0])])
        assert gradcheck(lambda x, y: x * y, [np.array([1.0]), np.array([2.0])])

    def test_unused_input(self):
        assert gradcheck(lambda x, y: x * x, [leaf(1.0), leaf(2.0)])
        assert gradgradcheck(lambda x, y: x * x, [leaf(1.0), leaf(2.0)])
        with pytest.raises(GradientError):
            gradcheck(rule(lambda x: x * 0.0 + 1.0, lambda g, x: g), leaf(1.0))

    def test_output_that_is_an_integer(self):
        assert gradcheck(lambda x: (x * x, (x > 0), x.astype(int)), leaf(1.5))

    def test_output_without_gradient(self):
        assert gradcheck(lambda x: (x * x, jg.tensor([1.0])), leaf(1.5))
        assert gradgradcheck(lambda x: (x * x, jg.tensor([1.0])), leaf(1.5))

    @pytest.mark.parametrize(
        "layout",
        [
            lambda a: a.T,
            lambda a: a[::2, ::3],
            lambda a: a[::-1, 1::2],
            lambda a: a[:, 3],
            lambda a: a.transpose(1, 0)[2:5],
            lambda a: a[2:2],
        ],
    )
    def test_layouts_are_kept(self, layout):
        """Non-contiguous inputs reach the function as such."""
        array = layout(np.random.default_rng(1).uniform(0.5, 1.5, (4, 6)))
        x = jg.from_numpy(array).requires_grad_()
        seen = []

        def f(x):
            seen.append(x.detach().numpy().strides)
            return x * x

        assert gradcheck(f, x)
        if array.size:
            assert set(seen) == {array.strides}
        wrong = rule(lambda x: x * x, lambda g, x: g * x)
        assert gradcheck(wrong, x, raise_exception=False) is (array.size == 0)

    def test_zero_dimensional_and_empty(self):
        assert gradcheck(lambda x: x * x, jg.tensor(0.5, requires_grad=True))
        assert gradcheck(lambda x: x * x, jg.tensor(np.zeros((0, 2)), requires_grad=True))
        assert gradgradcheck(lambda x: x * x, jg.tensor(0.5, requires_grad=True))

    def test_writing_functions(self):
        def f(x):
            y = x * 1
            y[0] = y[1] * y[1]
            y *= x
            return y

        assert gradcheck(f, leaf(0.5, 1.5))
        assert gradgradcheck(f, leaf(0.5, 1.5))

    def test_inputs_are_left_alone(self):
        x = leaf(0.5, 1.5)
        gradcheck(lambda x: x * x, x)
        gradgradcheck(lambda x: x * x, x)
        assert x.tolist() == [0.5, 1.5]
        assert x.grad is None
        assert x._version == 0

    def test_under_no_grad(self):
        with jg.no_grad():
            assert gradcheck(lambda x: x * x, leaf(0.5))
            assert gradgradcheck(lambda x: x * x, leaf(0.5))

    def test_grad_outputs(self):
        x = leaf(0.5, 1.5)
        assert gradgradcheck(lambda x: x * x, x, np.array([1.0, -2.0]))
        assert gradgradcheck(lambda x: (x * x, x.sum()), x, [np.array([1.0, -2.0]), np.array(3.0)])
        with pytest.raises(ArgumentError):
            gradgradcheck(lambda x: (x * x, x.sum()), x, [np.array([1.0, -2.0])])

    def test_tolerances(self):
        f = rule(lambda x: x * x, lambda g, x: 2.02 * g * x)
        assert gradcheck(f, leaf(1.0), rtol=0.05)
        assert gradcheck(f, leaf(1.0), atol=0.05)
        with pytest.raises(GradientError):
            gradcheck(f, leaf(1.0))


class TestBadInput:
    def test_nothing_to_differentiate(self):
        for inputs in ([jg.tensor([1, 2])], [3.0], []):
            with pytest.raises(ArgumentError):
                gradcheck(lambda *x: jg.tensor(1.0), inputs)

    def test_float32(self):
        with pytest.raises(DtypeError, match="float64"):
            gradcheck(lambda x: x * x, jg.tensor([1.0], dtype="float32", requires_grad=True))

    def test_shared_elements(self):
        shared = np.broadcast_to(np.array([1.0]), (3,))
        with pytest.raises(ArgumentError, match="share memory"):
            gradcheck(lambda x: x * x, jg.from_numpy(shared).requires_grad_())

    def test_output_that_is_no_tensor(self):
        with pytest.raises(UnsupportedError, match="float"):
            gradcheck(lambda x: x.sum().item(), leaf(1.0))

    def test_shape_that_depends_on_values(self):
        with pytest.raises(ArgumentError, match="shapes"):
            gradcheck(lambda x: x[x >= 1.0], leaf(1.0, 2.0))


class TestStrategies:
    @given(testing.shapes(min_dims=1, max_dims=2, min_side=2, max_side=3))
    def test_shapes(self, shape):
        assert 1 <= len(shape) <= 2
        assert all(2 <= n <= 3 for n in shape)

    @given(testing.broadcastable_shapes(3))
    def test_broadcastable_shapes(self, shapes):
        assert len(shapes) == 3
        np.broadcast_shapes(*shapes)

    @given(testing.arrays(low=-1.0, high=2.0, avoid=(0.0, 2.0), margin=0.01))
    def test_arrays(self, x):
        assert x.dtype == np.float64
        assert np.isfinite(x).all()
        assert (x >= -1.0).all()
        assert (x <= 2.0).all()
        assert (np.abs(x) >= 0.01 - 1e-15).all()
        assert (np.abs(x - 2.0) >= 0.01 - 1e-15).all()

    @given(testing.arrays((3, 4), np.float32, contiguous=True))
    def test_fixed_shape_and_dtype(self, x):
        assert x.shape == (3, 4)
        assert x.dtype == np.float32
        assert x.flags.c_contiguous

    @given(testing.arrays((3, 4), contiguous=False))
    def test_strided(self, x):
        assert not x.flags.c_contiguous

    @given(st.data())
    def test_in_a_gradient_check(self, data):
        first, second = data.draw(testing.broadcastable_shapes(2, max_dims=2, max_side=3))
        x = data.draw(testing.arrays(first, low=-2.0, high=2.0))
        y = data.draw(testing.arrays(second, low=0.5, high=2.0))
        assert gradcheck(lambda x, y: x * x / y, [x, y])

    def test_hypothesis_is_imported_only_when_wanted(self):
        code = (
            "import sys, jitgrad.testing as t\n"
            "assert 'hypothesis' not in sys.modules\n"
            "sys.modules['hypothesis'] = sys.modules['hypothesis.extra'] = None\n"
            "try:\n    t.shapes()\nexcept ImportError as e:\n    assert 'pip install jitgrad[test]' in str(e), e\n"
            "else:\n    raise SystemExit('no error')\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class TestPythonKernels:
    def test_same_numbers_and_nothing_compiled(self):
        x = leaf(0.5, 1.5)
        value = jg.exp(x) * x
        (compiled,) = jg.autograd.grad(value.sum(), x)
        from jitgrad.kernels.kernel import counters

        before = counters.compiled + counters.loaded
        with testing.python_kernels():
            again = jg.exp(x) * x
            (plain,) = jg.autograd.grad(again.sum(), x)
            (jg.sin(jg.tensor([[1.0]], dtype="float32")) - 1.0).sum()
        assert counters.compiled + counters.loaded == before
        np.testing.assert_allclose(again.detach().numpy(), value.detach().numpy(), rtol=1e-15)
        np.testing.assert_allclose(plain.numpy(), compiled.numpy(), rtol=1e-15)
        (after,) = jg.autograd.grad((jg.exp(x) * x).sum(), x)
        assert after.tolist() == compiled.tolist()

    def test_graph_that_crosses_the_border(self):
        x = leaf(0.5, 1.5)
        with testing.python_kernels():
            y = jg.exp(x) * x
        y.sum().backward()
        v = np.array([0.5, 1.5])
        np.testing.assert_allclose(x.grad.numpy(), np.exp(v) * (1 + v), rtol=1e-15)
        z = jg.exp(x) * x
        with testing.python_kernels():
            z.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(v) * (1 + v), rtol=1e-15)

    def test_left_after_an_exception(self):
        from jitgrad import config

        before, seen = config.settings().kernels, []

        def fail():
            with testing.python_kernels():
                seen.append(config.settings().kernels)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert seen == ["python"]
        assert config.settings().kernels == before

    def test_other_threads_keep_running(self):
        stop = threading.Event()
        failures = []

        def work():
            while not stop.is_set():
                x = leaf(0.5, 1.5)
                (jg.exp(x) * x).sum().backward()
                if not np.allclose(x.grad.numpy(), np.exp([0.5, 1.5]) * [1.5, 2.5], rtol=1e-14):
                    failures.append(x.grad)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(5):
            with testing.python_kernels():
                jg.exp(leaf(0.5)).sum().backward()
        stop.set()
        thread.join()
        assert not failures
