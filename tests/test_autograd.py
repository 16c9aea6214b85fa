"""``jg.autograd``: grad and backward of several tensors, Function, detect_anomaly. Values by hand."""

import math
import sys
import threading

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.autograd import Function, backward, detect_anomaly, grad, once_differentiable, set_detect_anomaly
from jitgrad.errors import (
    AnomalyError,
    ArgumentError,
    GraphError,
    InPlaceError,
    NoGraphError,
    NotDifferentiableError,
    ReleasedGraphError,
    ShapeError,
    UnsupportedError,
)


def leaf(*values):
    return jg.tensor(list(values), requires_grad=True)


def scalar(value):
    return jg.tensor(float(value), requires_grad=True)


# --------------------------------------------------------------------------- grad


class TestGrad:
    def test_one_input(self):
        x = leaf(1.0, 2.0)
        found = grad((x * x).sum(), x)
        assert isinstance(found, tuple)
        (g,) = found
        assert g.tolist() == [2.0, 4.0]
        assert not g.requires_grad

    def test_does_not_touch_grad(self):
        x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
        y = x * w
        y.retain_grad()
        grad(y.sum(), [x])
        assert x.grad is None
        assert w.grad is None

    def test_several_inputs_and_outputs(self):
        x, w = scalar(2.0), scalar(5.0)
        gx, gw = grad([x * w, x * x], [x, w])
        assert gx.item() == 5.0 + 4.0
        assert gw.item() == 2.0

    def test_cotangents(self):
        x = leaf(1.0, 2.0)
        (g,) = grad([x * x, x.sum()], [x], grad_outputs=[jg.tensor([1.0, 10.0]), None])
        assert g.tolist() == [3.0, 41.0]
        (g,) = grad(x * x, x, np.array([1.0, 10.0]))
        assert g.tolist() == [2.0, 40.0]
        (g,) = grad(x * x, x, [1.0, 10.0])
        assert g.tolist() == [2.0, 40.0]

    def test_cotangent_that_requires_grad(self):
        """The gradient is linear in the cotangent: differentiable by it."""
        x, v = leaf(1.0, 2.0), leaf(1.0, 1.0)
        (g,) = grad(x * x, x, v, create_graph=True)
        (gv,) = grad(g, v, jg.tensor([1.0, 10.0]))
        assert gv.tolist() == [2.0, 40.0]

    def test_inner_values(self):
        x = leaf(1.0, 2.0)
        y = x * 3
        z = (y * y).sum()
        gy, gx = grad(z, [y, x])
        assert gy.tolist() == [6.0, 12.0]
        assert gx.tolist() == [18.0, 36.0]

    def test_stops_at_inputs(self):
        """What lies below the inputs is not visited, so that its graph stays usable."""
        x = leaf(1.0, 2.0)
        y = jg.exp(x)
        (g,) = grad((y * y).sum(), y)
        np.testing.assert_allclose(g.numpy(), 2 * np.exp([1.0, 2.0]), rtol=1e-15)
        y.sum().backward()  # exp was not consumed
        np.testing.assert_allclose(x.grad.numpy(), np.exp([1.0, 2.0]), rtol=1e-15)

    def test_output_itself(self):
        x = leaf(1.0, 2.0)
        y = x * 2
        v = jg.tensor([5.0, 6.0])
        (g,) = grad(y, y, v)
        assert g.tolist() == [5.0, 6.0]
        g.zero_()
        assert v.tolist() == [5.0, 6.0]
        (g,) = grad(x, x, v)
        assert g.tolist() == [5.0, 6.0]

    def test_same_input_twice(self):
        x = leaf(1.0)
        first, second = grad((x * 3).sum(), [x, x])
        first.zero_()
        assert second.tolist() == [3.0]

    def test_results_have_memory_of_their_own(self):
        a, b = leaf(1.0), leaf(2.0)
        c = a + b
        first, second, inner = grad((c * 3).sum(), [a, b, c])
        first.zero_()
        assert second.tolist() == [3.0]
        assert inner.tolist() == [3.0]

    def test_unused(self):
        """``autograd.grad``: raises unless allow_unused / materialize_grads."""
        x, w = leaf(1.0), leaf(1.0, 2.0)
        with pytest.raises(NoGraphError, match=r"inputs\[1\], shape \(2,\).*allow_unused=True.*detach\(\) or no_grad"):
            grad((x * x).sum(), [x, w])
        y = (x * x).sum()
        g, none = grad(y, [x, w], allow_unused=True)
        assert g.tolist() == [2.0]
        assert none is None
        _, zeros = grad((x * x).sum(), [x, w], materialize_grads=True)
        assert zeros.tolist() == [0.0, 0.0]

    def test_cut_by_detach(self):
        x = leaf(2.0)
        y = (x.detach() * 3).sum() + (leaf(1.0) * 1).sum()
        with pytest.raises(NoGraphError):
            grad(y, x)

    def test_view_taken_later_is_another_input(self):
        x = leaf(1.0, 2.0)
        y = (x * x).sum()
        with pytest.raises(NoGraphError, match="view"):
            grad(y, x[0])

    def test_input_without_grad(self):
        x = leaf(1.0)
        with pytest.raises(NoGraphError, match=r"inputs\[0\].*does not require grad"):
            grad((x * x).sum(), jg.tensor([1.0]))

    def test_output_without_grad(self):
        with pytest.raises(NoGraphError):
            grad(jg.tensor(1.0), leaf(1.0))

    def test_non_scalar_output(self):
        x = leaf(1.0, 2.0)
        with pytest.raises(GraphError, match=r"\(2,\)"):
            grad(x * x, x)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (lambda x, y: (y, "x"), UnsupportedError),
            (lambda x, y: (y, [x, 3.0]), UnsupportedError),
            (lambda x, y: (3.0, x), UnsupportedError),
            (lambda x, y: (y, x, [None, None]), ArgumentError),
            (lambda x, y: (y, x, jg.tensor([1.0, 2.0])), ShapeError),
            (lambda x, y: ([y, y], x, [None]), ArgumentError),
        ],
    )
    def test_bad_arguments(self, arguments, error):
        x = leaf(1.0, 2.0)
        y = (x * x).sum()
        with pytest.raises(error):
            grad(*arguments(x, y))
        y.backward()  # nothing was consumed
        assert x.grad.tolist() == [2.0, 4.0]

    @pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
    def test_any_order(self, order):
        """f = x^5: the n-th derivative is 5!/(5-n)! x^(5-n)."""
        x = scalar(1.3)
        y = x * x * x * x * x
        for _ in range(order):
            (y,) = grad(y, x, create_graph=True)
        expected = math.factorial(5) // math.factorial(5 - order) * 1.3 ** (5 - order)
        assert y.item() == pytest.approx(expected, rel=1e-13)

    def test_mixed_derivatives(self):
        x, w = scalar(2.0), scalar(3.0)
        (gx,) = grad(x * x * x * w * w, x, create_graph=True)
        (gxw,) = grad(gx, w)
        assert gxw.item() == 3 * 4 * 2 * 3.0

    def test_backward_of_a_gradient(self):
        """A gradient penalty: d/dw of (d/dx of w x^2)^2."""
        x, w = scalar(3.0), scalar(2.0)
        (g,) = grad(w * x * x, x, create_graph=True)
        (g * g).backward()
        assert w.grad.item() == 2 * (2 * 2 * 3) * (2 * 3)
        assert x.grad.item() == 2 * (2 * 2 * 3) * (2 * 2)

    def test_retain_graph(self):
        x = scalar(2.0)
        y = x * x
        grad(y, x, retain_graph=True)
        grad(y, x)
        with pytest.raises(ReleasedGraphError, match="multiply"):
            grad(y, x)

    def test_create_graph_retains(self):
        x = scalar(2.0)
        y = x * x
        grad(y, x, create_graph=True)
        assert grad(y, x)[0].item() == 4.0

    def test_released_part(self):
        """A released part raises where it may lead to an input; not where it is older than every input."""
        x = scalar(2.0)
        shared = jg.exp(x)
        shared.backward()
        with pytest.raises(ReleasedGraphError, match="exp"):
            grad(shared * x, x)
        later = scalar(3.0)
        assert grad(shared * later, later)[0].item() == shared.item()

    def test_hooks_run(self):
        x = scalar(2.0)
        y = x * x
        y.register_hook(lambda g: g * 10)
        x.register_hook(lambda g: g + 1)
        gy, gx = grad(y, [y, x])
        assert gy.item() == 10.0
        assert gx.item() == 41.0

    def test_in_place_history(self):
        """The input is the value that the tensor has now."""
        a = leaf(1.0, 2.0)
        b = a * 1
        b[0] = b[1] * 3
        (g,) = grad((b * b).sum(), b)
        assert g.tolist() == [12.0, 4.0]

    def test_of_several_results(self):
        x = leaf(1.0, 2.0)
        first, second = _Split.apply(x)
        (g,) = grad(second.sum(), second)
        assert g.tolist() == [1.0, 1.0]
        first, second = _Split.apply(x)
        (g,) = grad(second.sum(), x)
        assert g.tolist() == [3.0, 3.0]
        first, second = _Split.apply(x)
        with pytest.raises(NoGraphError):
            grad(second.sum(), first)


class TestBackward:
    def test_several_roots(self):
        x = leaf(1.0, 2.0)
        backward([x.sum(), x * x], [None, jg.tensor([1.0, 10.0])])
        assert x.grad.tolist() == [3.0, 41.0]

    def test_one_sweep(self):
        """A shared part is visited once, so nothing need be retained."""
        x = scalar(1.0)
        shared = jg.exp(x)
        backward([shared * 2, shared * 3])
        assert x.grad.item() == pytest.approx(5 * math.e, rel=1e-15)

    def test_same_root_twice(self):
        x = scalar(2.0)
        y = x * x
        backward([y, y])
        assert x.grad.item() == 8.0

    def test_inputs(self):
        x, w = scalar(2.0), scalar(3.0)
        y = x * w
        backward(y * y, inputs=[w, y])
        assert w.grad.item() == 2 * 6 * 2.0
        assert y.grad.item() == 12.0
        assert x.grad is None

    def test_bad_gradients_change_nothing(self):
        x = leaf(1.0, 2.0)
        y = x * x
        for gradients in ([jg.tensor([1.0])], [None], ["a"], jg.tensor([1.0, 2.0, 3.0]), [[1.0, [2.0]]], [1j]):
            with pytest.raises((ShapeError, GraphError, TypeError, ValueError)):
                backward([x.sum(), y], [None, *gradients] if isinstance(gradients, list) else [None, gradients])
        assert x.grad is None
        y.backward([1.0, 1.0])
        assert x.grad.tolist() == [2.0, 4.0]


# --------------------------------------------------------------------------- Function


class _Split(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        return g * 2 + h * 3


class _Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3.0 * x * x


class _Exp(Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx, x):
        out = jg.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out


class TestFunction:
    def test_value_and_gradient(self):
        x = leaf(1.0, 2.0)
        y = _Cube.apply(x)
        assert y.tolist() == [1.0, 8.0]
        assert y.requires_grad
        assert y.grad_fn.name == "_Cube"
        y.backward(jg.tensor([1.0, 10.0]))
        assert x.grad.tolist() == [3.0, 120.0]

    def test_forward_is_not_recorded(self):
        seen = []

        class Look(Function):
            @staticmethod
            def forward(ctx, x):
                seen.append((jg.is_grad_enabled(), (x * 2).requires_grad))
                return x * 2

            @staticmethod
            def backward(ctx, g):
                seen.append((jg.is_grad_enabled(), g.requires_grad))
                return g * 2

        x = leaf(1.0)
        Look.apply(x).sum().backward()
        grad(Look.apply(x).sum(), x, create_graph=True)
        assert seen == [(False, False), (False, False), (False, False), (True, False)]
        assert jg.is_grad_enabled()

    @pytest.mark.parametrize("function", [_Cube, _Exp])
    def test_higher_orders(self, function):
        """x^3 and exp(x): derivatives 1 to 3 at 1.5."""
        x = scalar(1.5)
        y = function.apply(x)
        expected = [3 * 1.5**2, 6 * 1.5, 6.0] if function is _Cube else [math.exp(1.5)] * 3
        for value in expected:
            (y,) = grad(y, x, create_graph=True)
            assert y.item() == pytest.approx(value, rel=1e-14)

    def test_straight_through(self):
        """A rule that is not the derivative is obeyed, at the second order too."""

        class Sign(Function):
            @staticmethod
            def forward(ctx, x):
                return jg.where(x > 0, 1.0, -1.0)

            @staticmethod
            def backward(ctx, g):
                return g

        x = leaf(2.0, -3.0)
        y = Sign.apply(x)
        (g,) = grad((y * y * x).sum(), x, create_graph=True)
        assert g.tolist() == [5.0, 7.0]  # 2 y x + y^2
        (h,) = grad(g.sum(), x)
        assert h.tolist() == [8.0, -10.0]  # 2 x + 2 y + 2 y, with dy/dx = 1

    def test_several_results(self):
        x = leaf(1.0, 2.0)
        y, z = _Split.apply(x)
        (y * z).sum().backward()
        assert x.grad.tolist() == [12.0, 24.0]

    def test_results_without_a_gradient(self):
        """Materialised as zeros, or None."""
        seen = []

        class Two(Function):
            materialize = True

            @classmethod
            def forward(cls, ctx, x):
                ctx.set_materialize_grads(cls.materialize)
                return x * 2, x * 3

            @staticmethod
            def backward(ctx, g, h):
                seen.append((g, h))
                return h * 3

        class Bare(Two):
            materialize = False

        for function in (Two, Bare):
            x = leaf(1.0, 2.0)
            function.apply(x)[1].sum().backward()
            assert x.grad.tolist() == [3.0, 3.0]
        assert seen[0][0].tolist() == [0.0, 0.0]
        assert seen[1][0] is None

    def test_other_arguments(self):
        class Power(Function):
            @staticmethod
            def forward(ctx, x, n, note, table):
                ctx.n, ctx.table = n, table
                ctx.save_for_backward(x)
                assert note == "note"
                return x**n

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                assert ctx.needs_input_grad == (True, False, False, False)
                return g * (ctx.n * ctx.table[0]) * x ** (ctx.n - 1), None, None, None

        x = leaf(2.0)
        Power.apply(x, 3, "note", np.array([1.0])).sum().backward()
        assert x.grad.tolist() == [12.0]

    def test_needs_input_grad(self):
        seen = []

        class Product(Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return x * y

            @staticmethod
            def backward(ctx, g):
                seen.append(ctx.needs_input_grad)
                x, y = ctx.saved_tensors
                return (g * y if ctx.needs_input_grad[0] else None), (g * x if ctx.needs_input_grad[1] else None)

        x, y = leaf(2.0), leaf(3.0)
        Product.apply(x, y).sum().backward()
        Product.apply(x.detach(), y).sum().backward()
        Product.apply(x, 3.0 * jg.tensor([1.0])).sum().backward()
        assert seen == [(True, True), (False, True), (True, False)]
        assert x.grad.tolist() == [6.0]
        assert y.grad.tolist() == [4.0]

    def test_same_tensor_twice(self):
        class Product(Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return x * y

            @staticmethod
            def backward(ctx, g):
                x, y = ctx.saved_tensors
                return g * y, g * x

        x = scalar(3.0)
        (first,) = grad(Product.apply(x, x), x, create_graph=True)
        assert first.item() == 6.0
        assert grad(first, x)[0].item() == 2.0

    def test_nothing_tracked_or_no_grad(self):
        assert not _Cube.apply(jg.tensor([2.0])).requires_grad
        x = leaf(2.0)
        with jg.no_grad():
            y = _Cube.apply(x)
        assert not y.requires_grad
        with pytest.raises(NoGraphError, match="no_grad"):
            y.backward()

    def test_numpy_inside(self):
        class Sine(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.x = x.numpy().copy()
                return np.sin(ctx.x)

            @staticmethod
            @once_differentiable
            def backward(ctx, g):
                return g.numpy() * np.cos(ctx.x)

        x = leaf(0.5, 1.0)
        y = Sine.apply(x)
        assert isinstance(y, jg.Tensor)
        y.sum().backward()
        assert x.grad.tolist() == np.cos([0.5, 1.0]).tolist()

    @pytest.mark.parametrize("weighted", [False, True])
    def test_once_differentiable(self, weighted):
        """Differentiated twice it raises, whether or not the cotangent requires grad: never silently wrong."""

        class Square(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.x = x.numpy().copy()
                return x * x

            @staticmethod
            @once_differentiable
            def backward(ctx, g):
                return g * jg.tensor(2.0 * ctx.x)

        x = leaf(3.0)
        y = Square.apply(x)
        if weighted:
            y = y * y
        (g,) = grad(y.sum(), x, create_graph=True)
        assert g.tolist() == [4.0 * 27.0 if weighted else 6.0]
        with pytest.raises(NotDifferentiableError, match="once_differentiable"):
            grad(g.sum(), x)
        with pytest.raises(NotDifferentiableError):
            g.sum().backward()

    def test_once_differentiable_in_transforms(self):
        """The first derivative is right wherever it is taken, compiled or not; the second raises wherever it is."""

        class Square(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            @once_differentiable
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return g * 2.0 * x

        def f(x):
            return np.sin(Square.apply(x)).sum()

        def tape(f, x):
            x = jg.tensor(x, requires_grad=True)
            f(x).backward()
            return x.grad

        x = np.array([0.3, 0.7, -1.2])
        first = 2 * x * np.cos(x * x)
        for found in (
            jg.grad(f)(x),
            jg.jit(jg.grad(f))(x),
            jg.grad(jg.jit(f))(x),
            jg.jit(jg.grad(jg.jit(f)))(x),
            jg.jit(jg.value_and_grad(f))(x)[1],
            jg.grad(jg.checkpoint(f))(x),
            jg.vmap(jg.grad(f))(x[:, None])[:, 0],
            jg.jit(jg.vmap(jg.grad(f)))(x[:, None])[:, 0],
            np.diagonal(jg.jit(jg.jacrev(lambda x: np.sin(Square.apply(x))))(x)),
            tape(jg.jit(f), x).numpy(),
        ):
            np.testing.assert_allclose(found, first, rtol=1e-14)

        def again(f):
            return lambda x: jg.grad(f)(x).sum()

        def graph_of(f):
            def second(x):
                x = jg.tensor(x, requires_grad=True)
                (g,) = grad(f(x), x, create_graph=True)
                np.testing.assert_allclose(g.detach().numpy(), first, rtol=1e-14)
                g.sum().backward()

            return second

        for second in (
            jg.grad(again(f)),
            jg.jit(jg.grad(again(f))),
            jg.grad(jg.jit(again(f))),
            jg.grad(again(jg.jit(f))),
            jg.jacrev(jg.grad(f)),
            jg.jit(jg.jacrev(jg.jit(jg.grad(f)))),
            graph_of(f),
            graph_of(jg.jit(f)),
        ):
            with pytest.raises(NotDifferentiableError, match="once_differentiable"):
                second(x)
        for forward in (jg.jacfwd(f), jg.hessian(f), jg.jit(jg.hessian(f)), lambda x: jg.hvp(f)(x, x)):
            with pytest.raises(NotDifferentiableError):
                forward(x)

    def test_mark_non_differentiable(self):
        class SortedWithOrder(Function):
            @staticmethod
            def forward(ctx, x):
                order = np.argsort(x.numpy())
                rank = jg.tensor(order.astype(float))
                ctx.order = order
                ctx.mark_non_differentiable(rank)
                return x[order], rank, jg.tensor(order)

            @staticmethod
            def backward(ctx, g, h, i):
                back = np.empty_like(ctx.order)
                back[ctx.order] = np.arange(back.size)
                return g[back]

        x = leaf(3.0, 1.0, 2.0)
        values, rank, order = SortedWithOrder.apply(x)
        assert values.requires_grad
        assert not rank.requires_grad
        assert not order.requires_grad
        assert order.dtype == np.int64
        (values * jg.tensor([1.0, 10.0, 100.0])).sum().backward()
        assert x.grad.tolist() == [100.0, 1.0, 10.0]
        with pytest.raises(NoGraphError, match="SortedWithOrder"):
            SortedWithOrder.apply(x)[1].sum().backward()

    def test_identity_gives_a_tensor_of_its_own(self):
        class Identity(Function):
            @staticmethod
            def forward(ctx, x):
                return x

            @staticmethod
            def backward(ctx, g):
                return g * 10

        x = leaf(1.0, 2.0)
        y = Identity.apply(x)
        assert y is not x
        y.mul_(3.0)  # neither the leaf nor an alias of it
        assert x.tolist() == [1.0, 2.0]
        y.sum().backward()
        assert x.grad.tolist() == [30.0, 30.0]
        with jg.no_grad():
            assert not Identity.apply(x).requires_grad

    def test_view_of_an_argument(self):
        class Tail(Function):
            @staticmethod
            def forward(ctx, x):
                return x[1:]

            @staticmethod
            def backward(ctx, g):
                return jg.concatenate([jg.tensor([0.0]), g])

        x = leaf(1.0, 2.0, 3.0)
        y = Tail.apply(x)
        y *= 2.0
        assert x.tolist() == [1.0, 2.0, 3.0]
        y.sum().backward()
        assert x.grad.tolist() == [0.0, 2.0, 2.0]

    def test_mark_dirty(self):
        class Double(Function):
            @staticmethod
            def forward(ctx, x):
                x.mul_(2.0)
                ctx.mark_dirty(x)
                return x

            @staticmethod
            def backward(ctx, g):
                return g * 2.0

        a = leaf(1.0, 2.0, 3.0)
        b = a * 1
        view = b[1:]
        assert Double.apply(b) is b
        assert b.tolist() == [2.0, 4.0, 6.0]
        assert b.grad_fn.name == "Double"
        (b.sum() + (view * view).sum()).backward()
        assert a.grad.tolist() == [2.0, 2.0 + 16.0, 2.0 + 24.0]
        c = a * 1
        part = c[1:]
        Double.apply(part)
        assert c.tolist() == [1.0, 4.0, 6.0]
        a.grad = None
        c.sum().backward()
        assert a.grad.tolist() == [1.0, 2.0, 2.0]
        with pytest.raises(InPlaceError, match="leaf"):
            Double.apply(leaf(1.0))

    def test_write_without_mark_dirty(self):
        class Sneaky(Function):
            @staticmethod
            def forward(ctx, x):
                x.mul_(2.0)
                return x * 1

            @staticmethod
            def backward(ctx, g):
                return g

        with pytest.raises(InPlaceError, match="mark_dirty"):
            Sneaky.apply(leaf(1.0) * 1)

    def test_mark_dirty_of_something_else(self):
        class Wrong(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                return x * 1

            @staticmethod
            def backward(ctx, g):
                return g

        with pytest.raises(ArgumentError, match="mark_dirty"):
            Wrong.apply(leaf(1.0) * 1)

    def test_saved_value_that_is_overwritten(self):
        x = leaf(1.0, 2.0) * 1
        alias = x.detach()
        y = _Cube.apply(x)
        alias.zero_()
        with pytest.raises(InPlaceError, match="_Cube"):
            y.sum().backward()

    def test_saved_value_is_kept_by_copy_on_write(self):
        a = leaf(1.0, 2.0)
        x = a * 1
        y = _Cube.apply(x)
        x.zero_()
        y.sum().backward()
        assert a.grad.tolist() == [3.0, 12.0]

    def test_save_for_backward_takes_tensors(self):
        class Save(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x, None, 3.0)
                return x * 1

            @staticmethod
            def backward(ctx, g):
                return g

        with pytest.raises(UnsupportedError, match="argument 2 is a float"):
            Save.apply(leaf(1.0))

    def test_saved_none_and_captured_tensors(self):
        w = scalar(5.0)
        inner = w * 2

        class Times(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(None, inner)
                return x * inner

            @staticmethod
            def backward(ctx, g):
                none, factor = ctx.saved_tensors
                assert none is None
                return g * factor

        x = scalar(3.0)
        (g,) = grad(Times.apply(x), x, create_graph=True)
        assert g.item() == 10.0
        assert grad(g, w)[0].item() == 2.0

    def test_released(self):
        x = leaf(1.0)
        y = _Cube.apply(x)
        y.sum().backward()
        with pytest.raises(ReleasedGraphError, match="_Cube"):
            y.sum().backward()

        kept = []

        class Keep(_Cube):
            @staticmethod
            def backward(ctx, g):
                kept.append(ctx)
                return _Cube.backward(ctx, g)

        z = Keep.apply(x)
        z.sum().backward()
        with pytest.raises(ReleasedGraphError, match="retain_graph=True"):
            kept[0].saved_tensors  # noqa: B018

    def test_retained(self):
        x = leaf(2.0)
        y = _Cube.apply(x).sum()
        y.backward(retain_graph=True)
        y.backward()
        assert x.grad.tolist() == [24.0]

    @pytest.mark.parametrize(
        ("returned", "error"),
        [
            (lambda g: (g, g, g), ArgumentError),
            (lambda g: g, ArgumentError),
            (lambda g: (g[0], g), ShapeError),
            (lambda g: (jg.tensor([1.0, 2.0, 3.0]), g), ShapeError),
            (lambda g: ("text", g), TypeError),
        ],
    )
    def test_bad_backward(self, returned, error):
        class Add(Function):
            @staticmethod
            def forward(ctx, x, y):
                return x + y

            @staticmethod
            def backward(ctx, g):
                return returned(g)

        x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
        with pytest.raises(error, match="Add"):
            Add.apply(x, y).sum().backward()
        assert x.grad is None
        assert y.grad is None

    def test_surplus_none_and_broadcast_gradients(self):
        class Add(Function):
            @staticmethod
            def forward(ctx, x, y):
                return x + y

            @staticmethod
            def backward(ctx, g):
                return g, g, None, None

        x, y = leaf(1.0), leaf(3.0, 4.0)
        Add.apply(x, y).sum().backward()
        assert x.grad.tolist() == [2.0]  # summed over what was broadcast
        assert y.grad.tolist() == [1.0, 1.0]

    def test_dtype_of_gradients(self):
        class Scale(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g.astype("float64") * 2.0

        x = jg.tensor([1.0], dtype="float32", requires_grad=True)
        Scale.apply(x).sum().backward()
        assert x.grad.dtype == np.float32
        assert x.grad.tolist() == [2.0]

    def test_none_gradient(self):
        class Stop(Function):
            @staticmethod
            def forward(ctx, x, y):
                return x * y

            @staticmethod
            def backward(ctx, g):
                return None, g

        x, y = leaf(2.0), leaf(3.0)
        Stop.apply(x, y).sum().backward()
        assert x.grad is None
        assert y.grad.tolist() == [1.0]

    def test_setup_context(self):
        class Square(Function):
            @staticmethod
            def forward(x, n):
                return x * x * n

            @staticmethod
            def setup_context(ctx, inputs, output):
                x, ctx.n = inputs
                ctx.save_for_backward(x, output)

            @staticmethod
            def backward(ctx, g):
                x, output = ctx.saved_tensors
                assert output.tolist() == [12.0]
                return g * 2 * x * ctx.n, None

        x = leaf(2.0)
        Square.apply(x, 3).sum().backward()
        assert x.grad.tolist() == [12.0]

    def test_no_tensor_results(self):
        class WithNote(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2, "note", None

            @staticmethod
            def backward(ctx, g, h, i):
                assert h is None
                assert i is None
                return g * 2

        x = leaf(1.0)
        y, note, none = WithNote.apply(x)
        assert (note, none) == ("note", None)
        y.sum().backward()
        assert x.grad.tolist() == [2.0]

    def test_hooks_on_results(self):
        x = leaf(1.0)
        y, z = _Split.apply(x)
        seen = []
        z.register_hook(lambda g: seen.append(g.tolist()))
        y.register_hook(lambda g: g * 10)
        (y + z * 5).sum().backward()
        assert seen == [[5.0]]
        assert x.grad.tolist() == [20.0 + 15.0]

    def test_inside_another_function(self):
        class Twice(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return _Cube.apply(x) * 2

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                with jg.enable_grad():
                    y = x.detach().requires_grad_()
                    (inner,) = grad(_Cube.apply(y) * 2, y, g)
                return inner

        x = leaf(2.0)
        Twice.apply(x).sum().backward()
        assert x.grad.tolist() == [24.0]

    def test_under_transforms(self):
        assert jg.grad(_Cube.apply)(2.0) == 12.0
        assert jg.grad(jg.grad(_Cube.apply))(2.0) == 12.0

    def test_forward_mode(self):
        class Cube(_Cube):
            @staticmethod
            def jvp(ctx, t):
                (x,) = ctx.saved_tensors
                return t * 3.0 * x * x

        assert jg.jvp(Cube.apply, (2.0,), (10.0,)) == (8.0, 120.0)
        with pytest.raises(NotDifferentiableError, match=r"_Cube.*jvp"):
            jg.jvp(_Cube.apply, (2.0,), (10.0,))

    def test_forward_mode_of_several(self):
        class Both(Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return x * y, x + y

            @staticmethod
            def backward(ctx, g, h):
                x, y = ctx.saved_tensors
                return g * y + h, g * x + h

            @staticmethod
            def jvp(ctx, s, t):
                x, y = ctx.saved_tensors
                zero = jg.tensor(0.0)
                s, t = zero if s is None else s, zero if t is None else t
                return s * y + x * t, s + t

        value, moved = jg.jvp(Both.apply, (2.0, 3.0), (1.0, 10.0))
        assert value == (6.0, 5.0)
        assert moved == (23.0, 11.0)

        class Wrong(Both):
            @staticmethod
            def jvp(ctx, s, t):
                return s

        with pytest.raises(ArgumentError, match="jvp returned 1 tangents for 2"):
            jg.jvp(Wrong.apply, (2.0, 3.0), (1.0, 10.0))

    @pytest.mark.parametrize(
        "seen", [lambda x: x[np.argmin(x)], lambda x: x.detach(), lambda x: x[1:], lambda x: x.detach()[np.argmin(x)]]
    )
    @pytest.mark.parametrize("transform", [lambda f: f, jg.jit])
    def test_results_share_no_memory_with_what_forward_was_given(self, seen, transform):
        class Seen(Function):
            @staticmethod
            def forward(ctx, x):
                return seen(x)

            @staticmethod
            def backward(ctx, g):
                raise NotImplementedError

        def f(x):
            y = x * 2.0
            result = Seen.apply(y)
            result *= 10.0
            return y

        np.testing.assert_array_equal(np.asarray(transform(f)(jg.tensor([3.0, 1.0, 2.0]))), [6.0, 2.0, 4.0])


# --------------------------------------------------------------------------- anomalies


class TestDetectAnomaly:
    """``with detect_anomaly():`` names the forward line whose gradient first turned NaN or infinite."""

    def test_names_the_line(self):
        x = leaf(0.0, 4.0)
        with detect_anomaly():
            a = x * 2.0
            b = jg.sqrt(a)
            line = sys._getframe().f_lineno - 1
            c = b * b
            with pytest.raises(AnomalyError, match=rf"sqrt.*(inf|nan).*\[0\].*test_autograd\.py:{line}"):
                c.sum().backward(jg.tensor(1.0))
        assert x.grad is None

    def test_first_of_several(self):
        x = leaf(0.0)
        with detect_anomaly():
            first = jg.log(x)
            line = sys._getframe().f_lineno - 1
            y = jg.exp(first) * 3
            with pytest.raises(AnomalyError, match=f"log.*:{line}"):
                (y + first * 2).sum().backward()

    def test_fine_gradients_pass(self):
        x = leaf(1.0, 4.0)
        with detect_anomaly():
            jg.sqrt(x).sum().backward()
        assert x.grad.tolist() == [0.5, 0.25]

    def test_infinite_value_is_no_anomaly(self):
        x = leaf(0.0, 4.0)
        with detect_anomaly():
            y = jg.where(x > 1.0, jg.log(x), 0.0)
            y.sum().backward()
        assert x.grad.tolist() == [0.0, 0.25]

    def test_nan_given_to_backward(self):
        x = leaf(1.0)
        with detect_anomaly(), pytest.raises(AnomalyError, match="starts with"):
            (x * 2).backward([math.nan])

    def test_forward_outside(self):
        x = leaf(0.0)
        y = jg.sqrt(x).sum()
        with detect_anomaly(), pytest.raises(AnomalyError, match=r"sqrt.*detect_anomaly on before"):
            y.backward()

    def test_check_nan_off(self):
        x = leaf(0.0)
        with detect_anomaly(check_nan=False):
            jg.sqrt(x).sum().backward()
        assert x.grad.tolist() == [math.inf]

    def test_all_ways_to_differentiate(self):
        for differentiate in (
            lambda y, x: y.backward(),
            grad,
            lambda y, x: grad(y, x, create_graph=True),
            lambda y, x: backward([y]),
        ):
            x = leaf(0.0)
            with detect_anomaly(), pytest.raises(AnomalyError, match="sqrt"):
                differentiate(jg.sqrt(x).sum(), x)

    def test_second_order(self):
        """x^1.5 at 0: the first derivative is finite, the second is not."""
        x = leaf(0.0)
        with detect_anomaly():
            y = x * jg.sqrt(x)
            with pytest.raises(AnomalyError):
                grad(y.sum(), x, create_graph=True)

    def test_function(self):
        class Broken(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * math.nan

        x = leaf(1.0)
        with detect_anomaly():
            y = Broken.apply(x)
            line = sys._getframe().f_lineno - 1
            with pytest.raises(AnomalyError, match=f"Broken.*test_autograd.py:{line}"):
                y.sum().backward()

    def test_writes_have_lines(self):
        x = leaf(1.0, 2.0)
        with detect_anomaly():
            c = x * 1
            c[0] = jg.sqrt(x[0] - 1.0)
            with pytest.raises(AnomalyError, match=r"test_autograd\.py"):
                c.sum().backward()
            d = x * 1
            d[0] = 3.0
            assert "test_autograd" in d.grad_fn.where

    def test_outside_write(self):
        """A value that backward needs and that NumPy changed on memory that it shares raises."""
        shared = np.array([1.0, 2.0])
        t = jg.from_numpy(shared)
        x = leaf(3.0, 4.0)
        y = (x * t).sum()
        shared[0] = 50.0
        y.backward()  # the wrong gradient that the docs warn of
        assert x.grad.tolist() == [50.0, 2.0]
        with detect_anomaly():
            y = (x * t).sum()
            line = sys._getframe().f_lineno - 1
            shared[1] = 60.0
            with pytest.raises(InPlaceError, match=rf"multiply.*outside.*:{line}"):
                y.backward()

    def test_modes_nest(self):
        x = leaf(0.0)
        with detect_anomaly():
            assert jg.is_grad_enabled() is True
            with jg.no_grad():
                assert jg.is_grad_enabled() is False
                assert not (x * 2).requires_grad
                with jg.enable_grad():
                    y = jg.sqrt(x).sum()
                    with pytest.raises(AnomalyError, match=r"test_autograd\.py"):
                        y.backward()
            assert jg.is_grad_enabled() is True
        with jg.no_grad(), detect_anomaly():
            assert jg.is_grad_enabled() is False
        jg.sqrt(x).sum().backward()
        assert x.grad.tolist() == [math.inf]

    def test_set_detect_anomaly(self):
        x = leaf(0.0)
        with set_detect_anomaly(True):
            with pytest.raises(AnomalyError):
                jg.sqrt(x).sum().backward()
            with set_detect_anomaly(False):
                jg.sqrt(x).sum().backward()
        assert x.grad.tolist() == [math.inf]
        set_detect_anomaly(True)
        with pytest.raises(AnomalyError):
            jg.sqrt(x).sum().backward()
        set_detect_anomaly(False)
        jg.sqrt(x).sum().backward()

    def test_per_thread(self):
        got = []

        def work():
            x = leaf(0.0)
            jg.sqrt(x).sum().backward()
            got.append(x.grad.tolist())

        with detect_anomaly():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert got == [[math.inf]]


# --------------------------------------------------------------------------- found by comparison with PyTorch


def put(factor):
    """A hook that writes into its argument and gives nothing back."""

    def hook(g):
        g.mul_(factor)

    return hook


class TestHooksDoNotLeak:
    """A hook changes the gradient of its own value, and all of it."""

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_writing_into_the_argument_of_a_result(self, create_graph):
        a, b = leaf(1.0, 2.0), leaf(1.0, 2.0)
        p, q = a * 2, b * 3
        p.register_hook(put(10.0))  # add hands the same gradient to p and q
        (p + q).sum().backward(create_graph=create_graph)
        assert a.grad.tolist() == [20.0, 20.0]
        assert b.grad.tolist() == [3.0, 3.0]

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize("first", [True, False])
    def test_writing_into_the_argument_of_a_leaf(self, create_graph, first):
        a, b = leaf(1.0, 2.0), leaf(1.0, 2.0)
        (a if first else b).register_hook(put(10.0))
        (a + b).sum().backward(create_graph=create_graph)
        assert a.grad.tolist() == ([10.0, 10.0] if first else [1.0, 1.0])
        assert b.grad.tolist() == ([1.0, 1.0] if first else [10.0, 10.0])

    def test_what_a_hook_puts_into_a_structural_zero_counts(self):
        x = leaf(1.0, 4.0)
        y = jg.sqrt(x)
        y.register_hook(lambda g: g + 1.0)
        y[1:].sum().backward()
        assert x.grad.tolist() == [0.5, 0.5]

    def test_structural_zeros_outlive_a_hook(self):
        x = leaf(0.0, 4.0)
        y = jg.sqrt(x)
        y.register_hook(lambda g: g * 2.0)
        y[1:].sum().backward()
        assert x.grad.tolist() == [0.0, 0.5]

    def test_after_a_partial_overwrite(self):
        x = leaf(0.5, 2.0)
        y = x * 3.0
        y.register_hook(lambda g: g + 1.0)
        z = jg.tanh(y)
        z[1] = 0.5
        z.sum().backward()
        slope = 1.0 - math.tanh(1.5) ** 2
        np.testing.assert_allclose(x.grad.tolist(), [3.0 * (slope + 1.0), 3.0], rtol=1e-15)


class TestInputsAndRetain:
    def test_inputs_that_retain_their_gradient_get_it_once(self):
        x = leaf(1.0, 2.0)
        y = x * 2
        y.retain_grad()
        (y * y).sum().backward(inputs=[y], retain_graph=True)
        assert y.grad.tolist() == [4.0, 8.0]
        (y * y).sum().backward(inputs=[y])
        assert y.grad.tolist() == [8.0, 16.0]
        assert x.grad is None

    def test_inputs_retain_from_then_on(self):
        x = leaf(1.0)
        y, other = x * 2, x * 3
        (y * y).sum().backward(inputs=[y, other], retain_graph=True)
        assert y.retains_grad
        assert other.retains_grad
        assert other.grad is None
        (y * y).sum().backward()
        assert y.grad.tolist() == [8.0]

    def test_inputs_of_a_failed_backward_do_not_retain(self):
        x = leaf(1.0)
        y = x * 2
        z = y * y
        y.detach().mul_(2.0)
        with pytest.raises(InPlaceError):
            z.backward(inputs=[y])
        assert not y.retains_grad

    def test_clearing_the_gradient_of_a_result_does_not_start_to_retain(self):
        y = leaf(1.0) * 2
        y.grad = None
        assert not y.retains_grad

    def test_released_below_an_input(self):
        """The other input lies behind the released part: None or zeros would be wrong."""
        x = leaf(1.0, 2.0)
        h = x**3
        (h * h).sum().backward()
        for options in ({}, {"allow_unused": True}, {"materialize_grads": True}):
            with pytest.raises(ReleasedGraphError):
                grad(jg.sin(h).sum(), [h, x], **options)
        (found,) = grad((h * h).sum(), [h])
        assert found.tolist() == [2.0, 16.0]

    def test_materialized_zeros_can_be_differentiated(self):
        x, unused = leaf(1.0), leaf(2.0)
        (zeros,) = grad(x.sum(), unused, create_graph=True, materialize_grads=True)
        assert zeros.requires_grad
        (again,) = grad((zeros * x).sum(), unused, materialize_grads=True)
        assert again.tolist() == [0.0]

    def test_an_overwritten_value_that_only_the_input_itself_needs(self):
        x = leaf(2.0)
        y = x * x
        x.detach().mul_(3.0)
        (found,) = grad(y, y)
        assert found.tolist() == [1.0]


class TestNoLongerRequiringGrad:
    @pytest.mark.parametrize("stop", [lambda x: x.requires_grad_(False), lambda x: x.detach_()])
    def test_gradients_of_consumers_recorded_before_are_dropped(self, stop):
        x = leaf(1.0, 2.0)
        y = x * 2
        stop(x)
        y.sum().backward()
        assert x.grad is None

    @pytest.mark.parametrize("stop", [lambda x: x.requires_grad_(False), lambda x: x.detach_()])
    def test_and_arrive_when_it_requires_grad_again(self, stop):
        x = leaf(1.0, 2.0)
        y = x * 2
        stop(x)
        x.requires_grad_()
        y.sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]

    def test_detach_in_place_keeps_the_gradient(self):
        x = leaf(1.0)
        (x * 2).sum().backward()
        x.detach_()
        assert x.grad.tolist() == [2.0]
        y = leaf(1.0) * 2
        y.retain_grad()
        (y * 3).sum().backward()
        y.detach_()
        assert y.grad.tolist() == [3.0]


class TestLeavesThatAreViews:
    def test_a_view_of_a_view_that_is_a_leaf_is_not_written(self):
        base = jg.tensor([1.0, 2.0, 3.0])
        v = base[1:]
        v.requires_grad_()
        for write in (lambda: v[:].mul_(2.0), lambda: v[0:1].add_(1.0), lambda: v.__setitem__(0, 5.0)):
            with pytest.raises(InPlaceError):
                write()
        assert base.tolist() == [1.0, 2.0, 3.0]
        with jg.no_grad():
            v[:].mul_(2.0)
        assert v.tolist() == [4.0, 6.0]
        assert v.is_leaf
        (v * v).sum().backward()
        assert v.grad.tolist() == [8.0, 12.0]

    def test_the_base_of_leaves_is_written(self):
        """Parameters as parts of one flat buffer."""
        flat = jg.tensor([1.0, 2.0, 3.0])
        first, rest = flat[:1], flat[1:]
        first.requires_grad_()
        rest.requires_grad_()
        flat[1:] -= 1.0
        flat *= 2.0
        assert rest.tolist() == [2.0, 4.0]
        assert rest.is_leaf
        (first.sum() * (rest * rest).sum()).backward()
        assert first.grad.tolist() == [20.0]
        assert rest.grad.tolist() == [8.0, 16.0]


class TestWritingIntoTheGradientOfAFunction:
    """``backward`` of a Function may write its argument; what else the same gradient goes to keeps its own."""

    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            g[0] = g[0] * 10.0
            return g.mul_(2.0)

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize("weights", [None, (1.0, 3.0)])
    def test_shared_by_a_sum(self, create_graph, weights):
        x, z = leaf(2.0, 5.0), leaf(1.0, 1.0)
        total = self.Double.apply(x) + z
        total = total.sum() if weights is None else (total * jg.tensor(list(weights))).sum()
        total.backward(create_graph=create_graph)
        second = 1.0 if weights is None else weights[1]
        assert x.grad.tolist() == [20.0, 2.0 * second]
        assert z.grad.tolist() == [1.0, second]


class TestRefusals:
    def test_no_inputs_at_all(self):
        x = leaf(1.0)
        with pytest.raises(ArgumentError, match="inputs is empty"):
            (x * x).sum().backward(inputs=[])
        with pytest.raises(ArgumentError, match="inputs is empty"):
            backward((x * x).sum(), inputs=[])

    def test_a_tensor_is_not_its_own_gradient(self):
        x = leaf(1.0)
        with pytest.raises(GraphError, match="its own"):
            x.grad = x
        assert x.grad is None


def test_gradients_that_add_up_beside_aliases_and_graphs() -> None:
    """Whoever sees the memory of ``grad`` sees the sum; a graph that keeps its value keeps the old one; the version counts."""
    x, v = jg.tensor([1.0, 2.0], requires_grad=True), jg.tensor([3.0, 5.0], requires_grad=True)
    (x * x).sum().backward()
    version = x.grad._version
    product = (x.grad * v).sum()
    (x * x).sum().backward()
    assert x.grad._version == version + 1
    np.testing.assert_array_equal(x.grad.numpy(), [4.0, 8.0])
    product.backward()
    np.testing.assert_array_equal(v.grad.numpy(), [2.0, 4.0])
    alias, array = x.grad.detach(), x.grad.numpy()
    (x * x).sum().backward()
    np.testing.assert_array_equal(alias.numpy(), [6.0, 12.0])
    np.testing.assert_array_equal(array, [6.0, 12.0])
    scalar = jg.tensor(2.0, requires_grad=True)
    for _ in range(3):
        (scalar * scalar).backward()
    assert scalar.grad.item() == 12.0
    assert scalar.grad.shape == ()
