"""Writing in place: ordinary NumPy-style updates give right gradients; values by hand or by finite differences.

The random programs at the end are run twice: by jitgrad, and by an independent interpreter (NumPy, differences).
"""

import math
import operator
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitgrad as jg
from jitgrad.errors import DtypeError, InPlaceError, ShapeError, UnsupportedError


def leaf(*values):
    return jg.tensor(list(values), requires_grad=True)


def weighted(t, *weights):
    return (t * jg.tensor(list(weights))).sum()


# --------------------------------------------------------------------------- ordinary updates


class TestUpdates:
    """``c[i] = v``, ``c[a:b] += v``, ``c[mask] = v``, ``x += y``, ``x.mul_(y)``: right values and gradients."""

    def test_element(self):
        a, w = leaf(1.0, 2.0, 3.0), jg.tensor(5.0, requires_grad=True)
        c = a * a
        c[1] = w * w
        assert c.tolist() == [1.0, 25.0, 9.0]
        weighted(c, 1, 10, 100).backward()
        assert a.grad.tolist() == [2.0, 0.0, 600.0]
        assert w.grad.item() == 100.0

    def test_slice(self):
        a, w = leaf(1.0, 2.0, 3.0), leaf(4.0, 5.0)
        c = a * a
        c[1:] += w * w
        assert c.tolist() == [1.0, 20.0, 34.0]
        weighted(c, 1, 10, 100).backward()
        assert a.grad.tolist() == [2.0, 40.0, 600.0]
        assert w.grad.tolist() == [80.0, 1000.0]

    def test_mask(self):
        a, w = leaf(1.0, -2.0, 3.0), leaf(4.0, 5.0)
        c = a * a
        c[a > 0] = w
        assert c.tolist() == [4.0, 4.0, 5.0]
        weighted(c, 1, 10, 100).backward()
        assert a.grad.tolist() == [0.0, -40.0, 0.0]
        assert w.grad.tolist() == [1.0, 100.0]

    def test_mask_with_one_value_for_all(self):
        a, w = leaf(1.0, -2.0, 3.0), jg.tensor(4.0, requires_grad=True)
        c = a * a
        c[np.array([True, False, True])] = w
        weighted(c, 1, 10, 100).backward()
        assert a.grad.tolist() == [0.0, -40.0, 0.0]
        assert w.grad.item() == 101.0

    def test_mask_augmented(self):
        a = leaf(1.0, -2.0, 3.0)
        c = a * 1
        c[a > 0] *= a[a > 0]
        assert c.tolist() == [1.0, -2.0, 9.0]
        weighted(c, 1, 10, 100).backward()
        assert a.grad.tolist() == [2.0, 10.0, 600.0]

    def test_empty_mask_and_empty_slice(self):
        a = leaf(1.0, 2.0)
        c = a * 3
        c[c > 100] = 0.0
        c[5:] = 0.0
        c.sum().backward()
        assert a.grad.tolist() == [3.0, 3.0]

    def test_mask_of_rows(self):
        a = jg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        c = a * a
        c[np.array([False, True])] = jg.tensor([10.0, 20.0])
        assert c.tolist() == [[1.0, 4.0], [10.0, 20.0]]
        c.sum().backward()
        assert a.grad.tolist() == [[2.0, 4.0], [0.0, 0.0]]

    @pytest.mark.parametrize(
        ("write", "derivative"),
        [
            (lambda x, y: x.__iadd__(y), lambda x, y: (1.0, 1.0)),
            (lambda x, y: x.__isub__(y), lambda x, y: (1.0, -1.0)),
            (lambda x, y: x.__imul__(y), lambda x, y: (y, x)),
            (lambda x, y: x.__itruediv__(y), lambda x, y: (1 / y, -x / y**2)),
            (lambda x, y: x.add_(y), lambda x, y: (1.0, 1.0)),
            (lambda x, y: x.subtract_(y), lambda x, y: (1.0, -1.0)),
            (lambda x, y: x.sub_(y), lambda x, y: (1.0, -1.0)),
            (lambda x, y: x.mul_(y), lambda x, y: (y, x)),
            (lambda x, y: x.div_(y), lambda x, y: (1 / y, -x / y**2)),
            (lambda x, y: x.copy_(y), lambda x, y: (0.0, 1.0)),
        ],
    )
    def test_forms(self, write, derivative):
        x, y = jg.tensor(3.0, requires_grad=True), jg.tensor(4.0, requires_grad=True)
        c = x * 1
        assert write(c, y) is c
        (c * 2).backward()
        expected = derivative(3.0, 4.0)
        got = (0.0 if x.grad is None else x.grad.item(), y.grad.item())
        assert got == (2 * expected[0], 2 * expected[1])

    def test_unary_forms(self):
        x = leaf(0.25, 4.0)
        c = x * 1
        c.sqrt_().exp_()
        c.sum().backward()
        r = np.sqrt([0.25, 4.0])
        np.testing.assert_allclose(x.grad.numpy(), np.exp(r) / (2 * r), rtol=1e-15)

    def test_zero_and_fill(self):
        a = leaf(1.0, 2.0)
        c = a * a
        c[0:1].zero_()
        c[1:].fill_(7.0)
        assert c.tolist() == [0.0, 7.0]
        c.sum().backward()
        assert a.grad.tolist() == [0.0, 0.0]

    def test_into_an_array_without_grad(self):
        """Also into an array that did not need a gradient before."""
        a = leaf(2.0, 3.0)
        c = jg.tensor([0.0, 0.0, 0.0])
        view = c[1:]
        c[1:] = a * a
        assert c.requires_grad
        assert view.requires_grad
        weighted(view, 1, 10).backward()
        assert a.grad.tolist() == [4.0, 60.0]

    def test_augmented_into_an_array_without_grad(self):
        a = leaf(2.0, 3.0)
        c = jg.tensor([1.0, 1.0])
        c += a
        c *= a
        weighted(c, 1, 10).backward()
        assert a.grad.tolist() == [5.0, 70.0]  # (1 + a) a

    def test_loop_that_fills(self):
        t = jg.tensor(0.5, requires_grad=True)
        c = jg.tensor(np.zeros(6))
        for k in range(6):
            c[k] = t * k
        (c * c).sum().backward()
        assert t.grad.item() == pytest.approx(2 * 0.5 * sum(k * k for k in range(6)), rel=1e-15)

    def test_repeated_index_last_one_stays(self):
        """As in NumPy; the overwritten ones get no gradient."""
        a, w = leaf(1.0, 2.0), leaf(3.0, 4.0, 5.0)
        c = a * 1
        c[[0, 0, 1]] = w * 1
        assert c.tolist() == [4.0, 5.0]
        weighted(c, 1, 10).backward()
        assert w.grad.tolist() == [0.0, 1.0, 10.0]
        assert a.grad.tolist() == [0.0, 0.0]

    def test_integer_arrays_and_broadcasting(self):
        a, w = jg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), leaf(5.0, 6.0)
        c = a * 1
        c[:, 0] = w
        c[1] = jg.tensor(9.0)
        assert c.tolist() == [[5.0, 2.0], [9.0, 9.0]]
        c.sum().backward()
        assert a.grad.tolist() == [[0.0, 1.0], [0.0, 0.0]]
        assert w.grad.tolist() == [1.0, 0.0]

    def test_new_axis_ellipsis_and_negative_steps(self):
        a = jg.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
        c = a * 1
        c[..., ::-2] = c[..., ::-2] * 10
        c[None, 0, 1] = 7.0
        assert c.tolist() == [[0.0, 7.0, 20.0], [30.0, 4.0, 50.0]]
        c.sum().backward()
        assert a.grad.tolist() == [[10.0, 0.0, 10.0], [10.0, 1.0, 10.0]]

    def test_right_side_overlaps(self):
        a = leaf(1.0, 2.0, 3.0)
        b = a * a
        b[0:2] = b[1:3]
        assert b.tolist() == [4.0, 9.0, 9.0]
        weighted(b, 1, 10, 100).backward()
        assert a.grad.tolist() == [0.0, 4.0, 660.0]

    def test_structural_zero_of_what_is_overwritten(self):
        """sqrt at 0 has an infinite derivative, which must not reach the gradient through an overwritten element."""
        x = leaf(0.0, 4.0)
        c = jg.sqrt(x)
        c[0] = 1.0
        c.sum().backward()
        assert x.grad.tolist() == [0.0, 0.25]

    def test_dtype_stays(self):
        c = jg.tensor([1.0, 2.0], dtype="float32", requires_grad=True) * 1
        w = jg.tensor(3.0, requires_grad=True)
        c[0] = w
        c += 1.5
        assert c.dtype == np.float32
        c.sum().backward()
        assert w.grad.dtype == np.float64
        assert w.grad.item() == 1.0

    def test_integers(self):
        c = jg.tensor([1, 2, 3])
        c[1:] += 5
        c //= 2
        assert c.tolist() == [0, 3, 4]
        with pytest.raises(DtypeError):
            c += 0.5
        assert c.tolist() == [0, 3, 4]


# --------------------------------------------------------------------------- views


class TestViews:
    """Also through views: base and views stay consistent, as in PyTorch."""

    def test_write_through_a_view(self):
        a = leaf(1.0, 2.0, 3.0)
        b = a * 1
        v = b[1:]
        v.mul_(a[1:])
        assert b.tolist() == [1.0, 4.0, 9.0]
        weighted(b, 1, 10, 100).backward()
        assert a.grad.tolist() == [1.0, 40.0, 600.0]

    def test_view_sees_a_write_to_its_base(self):
        a = leaf(1.0, 2.0, 3.0)
        b = a * 1
        v = b[1:]
        b.mul_(10.0)
        b[1] = a[0]
        assert v.tolist() == [1.0, 30.0]
        weighted(v, 1, 10).backward()
        assert a.grad.tolist() == [1.0, 0.0, 100.0]

    def test_sibling_views(self):
        a = leaf(1.0, 2.0, 3.0)
        b = a * 1
        u, v = b[:2], b[1:]
        u *= 3.0
        (v * v).sum().backward()
        assert a.grad.tolist() == [0.0, 36.0, 6.0]

    def test_view_of_a_view(self):
        a = jg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        b = a * 1
        column = b.T[0]
        column.mul_(column)
        assert b.tolist() == [[1.0, 2.0], [9.0, 4.0]]
        (b * b).sum().backward()
        assert a.grad.tolist() == [[4.0, 4.0], [108.0, 8.0]]

    @pytest.mark.parametrize(
        "view",
        [
            lambda b: b.reshape(3, 2),
            lambda b: b.T,
            lambda b: b[::-1],
            lambda b: b[:, 1:],
            lambda b: b[None],
            lambda b: b[..., 0],
            lambda b: b.reshape(-1)[1:4],
        ],
    )
    def test_every_kind_of_view(self, view):
        values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        a = jg.tensor(values, requires_grad=True)
        b = a * 1
        v = view(b)
        v *= v
        expected, slopes = values.copy(), np.ones((2, 3))
        view(expected)[...] = view(values) ** 2
        view(slopes)[...] = 2 * view(values)
        assert b.tolist() == expected.tolist()
        assert v.tolist() == view(expected).tolist()
        weights = np.arange(1.0, 7.0).reshape(2, 3)
        (b * weights).sum().backward()
        assert a.grad.tolist() == (weights * slopes).tolist()

    def test_grad_fn_and_requires_grad_follow(self):
        w = leaf(5.0)
        b = jg.tensor([1.0, 2.0])
        v = b[0:1]
        assert not v.requires_grad
        b[0:1] = w
        assert v.requires_grad
        assert not v.is_leaf
        b.fill_(3.0)  # as b[:] = 3.0: still tracked, and only zeros reach w
        assert b.requires_grad
        assert v.requires_grad
        (b.sum() + v.sum()).backward()
        assert w.grad.tolist() == [0.0]

    def test_dead_views_cost_nothing(self):
        a = leaf(1.0, 2.0)
        b = a * 1
        for _ in range(100):
            b[0]
        b.mul_(2.0)
        b.sum().backward()
        assert a.grad.tolist() == [2.0, 2.0]

    def test_view_outlives_its_base(self):
        a = leaf(1.0, 2.0)
        v = (a * 2)[1:]
        v *= 3.0
        v[0] += a[0]
        v.sum().backward()
        assert a.grad.tolist() == [1.0, 6.0]

    def test_view_made_under_no_grad(self):
        """Its base could not follow: a tracked value written into it raises, as in PyTorch."""
        a, w = leaf(1.0, 2.0), leaf(5.0)
        b = a * 2
        with jg.no_grad():
            v = b[0:1]
        with pytest.raises(InPlaceError, match="no_grad"):
            v[:] = w * 1
        with pytest.raises(InPlaceError, match="no_grad"):
            v[0:1] += w
        assert b.tolist() == [2.0, 4.0]
        v[:] = 3.0
        assert b.tolist() == [3.0, 4.0]
        result = v * 2  # a tensor of its own
        result += w
        assert result.requires_grad

    def test_write_back_of_a_detached_part_cuts_it(self):
        a = leaf(1.0, 2.0)
        c = a * 2
        c[0:1] = c.detach()[0:1]
        c.sum().backward()
        assert a.grad.tolist() == [0.0, 2.0]


# --------------------------------------------------------------------------- values that backward needs


class TestCopyOnWrite:
    """A tracked tensor is written while an operation needs its old value, and nothing else aliases it: right."""

    def test_old_value_stays(self):
        a = leaf(1.0, 2.0)
        b = a * 1
        y = b * b
        b.mul_(10.0)
        assert b.tolist() == [10.0, 20.0]
        y.sum().backward()
        assert a.grad.tolist() == [2.0, 4.0]

    def test_part(self):
        a = leaf(1.0, 2.0)
        b = a * 1
        y = b * b
        b[0] = 100.0
        (y.sum() + b.sum()).backward()
        assert a.grad.tolist() == [2.0, 5.0]

    def test_repeated_squaring(self):
        a = leaf(1.1)
        x = a * 1
        for _ in range(4):
            x *= x
        x.sum().backward()
        assert a.grad.item() == pytest.approx(16 * 1.1**15, rel=1e-13)

    def test_result_that_is_kept(self):
        a = leaf(1.0, 2.0)
        e = jg.exp(a)
        e += 1.0
        e.sum().backward()
        np.testing.assert_allclose(a.grad.numpy(), np.exp([1.0, 2.0]), rtol=1e-15)

    def test_leaf_under_no_grad(self):
        a = leaf(3.0)
        y = a * a
        with jg.no_grad():
            a.mul_(10.0)
        y.sum().backward()
        assert a.grad.tolist() == [6.0]
        assert a.tolist() == [30.0]

    def test_second_order(self):
        a = jg.tensor(3.0, requires_grad=True)
        b = a * 1
        y = b * b * b
        b.mul_(0.0)
        (first,) = jg.autograd.grad(y, a, create_graph=True)
        (second,) = jg.autograd.grad(first, a)
        assert first.item() == 27.0
        assert second.item() == 18.0

    def test_export_that_is_gone_is_no_alias(self):
        a = leaf(1.0, 2.0)
        b = a * 1
        assert b.detach().numpy()[0] == 1.0
        y = b * b
        b.mul_(10.0)
        y.sum().backward()
        assert a.grad.tolist() == [2.0, 4.0]


class TestOwnValue:
    """An operation written over its own operand keeps what it needs of it, also where an alias is alive."""

    def test_slice_times_tracked(self):
        a, w = leaf(1.0, 2.0, 3.0), leaf(4.0, 5.0)
        c = a * 1
        c[1:] *= w
        weighted(c, 1, 10, 100).backward()
        assert a.grad.tolist() == [1.0, 40.0, 500.0]
        assert w.grad.tolist() == [20.0, 300.0]

    def test_square_with_an_alias(self):
        a = leaf(2.0, 3.0)
        b = a * 1
        alias = b.detach()
        b *= b
        assert alias.tolist() == [4.0, 9.0]
        b.sum().backward()
        assert a.grad.tolist() == [4.0, 6.0]

    def test_result_over_a_view(self):
        a = leaf(0.0, 1.0)
        b = a * 1
        b[:].exp_()
        b.sum().backward()
        np.testing.assert_allclose(a.grad.numpy(), np.exp([0.0, 1.0]), rtol=1e-15)


class TestLivingAlias:
    """The same with a living alias (view, detach, exported NumPy or DLPack view): every alias sees the write, and
    backward through the node that needed the old value raises InPlaceError."""

    @pytest.mark.parametrize(
        ("alias", "look"),
        [
            (lambda b: b[:], lambda v: v.tolist()),
            (lambda b: b.reshape(1, 2), lambda v: v[0].tolist()),
            (lambda b: b.detach(), lambda v: v.tolist()),
            (lambda b: b.detach().numpy(), lambda v: v.tolist()),
            (lambda b: b.detach().numpy()[:][::1], lambda v: v.tolist()),
            (lambda b: np.from_dlpack(b.detach()), lambda v: v.tolist()),
        ],
    )
    def test_seen_by_all_and_refused(self, alias, look):
        a = leaf(1.0, 2.0)
        b = a * 1
        other = alias(b)
        y = b * b
        b.mul_(10.0)
        line = sys._getframe().f_lineno - 1
        assert b.tolist() == [10.0, 20.0]
        assert look(other) == [10.0, 20.0]
        with pytest.raises(InPlaceError, match=rf"multiply.*shape \(2,\).*test_inplace\.py:{line}"):
            y.sum().backward()
        assert a.grad is None

    def test_write_through_the_view(self):
        a = leaf(1.0, 2.0, 3.0)
        b = a * 1
        v = b[0:2]
        y = b * b
        v.mul_(2.0)
        with pytest.raises(InPlaceError):
            y.sum().backward()

    def test_bytes_that_are_not_written_do_not_matter(self):
        a = jg.tensor(np.arange(1.0, 9.0), requires_grad=True)
        b = a * 1
        front, back = b[:5], b[5:]
        y = (front * front).sum()
        back.zero_()
        y.backward()
        assert a.grad.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 0.0, 0.0, 0.0]

    def test_recorded_after_the_write_is_fine(self):
        a = leaf(1.0, 2.0)
        b = a * 1
        alias = b.detach()
        alias.mul_(2.0)
        (b * b).sum().backward()
        assert a.grad.tolist() == [4.0, 8.0]  # b is [2, 4]; db/da counts as 1, the alias is outside of the graph

    def test_found_for_grad_and_for_the_second_order(self):
        a = leaf(1.0, 2.0)
        b = a * 1
        alias = b.detach()
        y = (b * b * b).sum()
        alias[1] = 5.0
        with pytest.raises(InPlaceError):
            jg.autograd.grad(y, a)
        c = a * 1
        other = c.detach()
        (first,) = jg.autograd.grad((c * c * c).sum(), a, create_graph=True)
        other[0] = 5.0
        with pytest.raises(InPlaceError):
            first.sum().backward()

    def test_many_writes(self):
        """The log of writes is bounded; it may forget where, never whether."""
        a = jg.tensor(np.ones(300), requires_grad=True)
        b = a * 1
        alias = b.detach()
        y = b * b
        for i in range(150, 300):
            alias[i] = 5.0
        with pytest.raises(InPlaceError):
            y.sum().backward()

    def test_tensor_on_shared_numpy_memory(self):
        array = np.array([1.0, 2.0])
        t = jg.from_numpy(array)
        w = leaf(3.0, 4.0)
        y = (w * t).sum()
        t[0] = 9.0
        assert array.tolist() == [9.0, 2.0]
        with pytest.raises(InPlaceError):
            y.backward()

    def test_two_tensors_on_one_numpy_memory(self):
        array = np.array([1.0, 2.0])
        first, second = jg.from_numpy(array), jg.from_numpy(array[::-1])
        w = leaf(3.0, 4.0)
        y = (w * first).sum()
        second[0] = 9.0
        assert first.tolist() == [1.0, 9.0]
        with pytest.raises(InPlaceError):
            y.backward()


class TestLeaves:
    """A leaf that requires grad, outside no_grad: raises, and prints the recipe; inside it stays the same leaf."""

    @pytest.mark.parametrize(
        "write",
        [
            lambda x: x.add_(1.0),
            lambda x: x.zero_(),
            lambda x: x.__iadd__(1.0),
            lambda x: x.__setitem__(0, 1.0),
            lambda x: x.__setitem__(slice(None), 1.0),
            lambda x: x.__setitem__([True, False], 1.0),
            lambda x: x[0:1].mul_(2.0),
            lambda x: x.reshape(2, 1).T[0].fill_(1.0),
            lambda x: x.copy_(jg.tensor([1.0, 1.0])),
        ],
    )
    def test_raises_with_the_recipe(self, write):
        x = leaf(1.0, 2.0)
        with pytest.raises(InPlaceError, match=r"with jg\.no_grad\(\):\n +x -= step \* x\.grad"):
            write(x)
        assert x.tolist() == [1.0, 2.0]
        assert x._version == 0
        assert x.is_leaf
        assert x.requires_grad

    def test_view_that_is_a_leaf_itself(self):
        x = jg.tensor([1.0, 2.0])
        v = x[0:1].requires_grad_()
        with pytest.raises(InPlaceError):
            v.add_(1.0)
        x.fill_(3.0)
        assert v.requires_grad
        assert v.tolist() == [3.0]

    def test_view_made_before_the_base_became_a_leaf(self):
        x = jg.tensor([1.0, 2.0])
        v = x[0:1]
        x.requires_grad_()
        with pytest.raises(InPlaceError):
            v.add_(1.0)
        assert x.is_leaf

    def test_recipe(self):
        x = leaf(1.0, 2.0)
        for _ in range(3):
            x.grad = None
            (x * x).sum().backward()
            with jg.no_grad():
                x -= 0.25 * x.grad
        assert x.tolist() == [0.125, 0.25]
        assert x.is_leaf
        assert x.requires_grad
        assert x.grad.tolist() == [0.5, 1.0]

    def test_same_leaf_for_all_writes_inside(self):
        x = leaf(1.0, 2.0, 3.0)
        before = x
        with jg.no_grad():
            x += 1.0
            x[0] = 5.0
            x[1:] *= 2.0
            x[x > 7] = 0.0
            x[::-1].mul_(-1.0)
        assert x is before
        assert x.is_leaf
        assert x.requires_grad
        assert x.tolist() == [-5.0, -6.0, 0.0]
        (x * x).sum().backward()
        assert x.grad.tolist() == [-10.0, -12.0, 0.0]

    def test_copy_of_a_leaf_is_no_leaf(self):
        b, c = leaf(1.0, 2.0), jg.tensor([0.0, 0.0])
        c.copy_(b)
        assert not c.is_leaf
        c.mul_(2.0)
        c.sum().backward()
        assert b.grad.tolist() == [2.0, 2.0]

    def test_copied_tensor_has_a_gradient_of_its_own(self):
        a = leaf(1.0, 2.0)
        b, c = a * 2, jg.tensor([0.0, 0.0])
        c.copy_(b)
        c.retain_grad()
        (c * 3 + b).sum().backward()
        assert c.grad.tolist() == [3.0, 3.0]
        assert a.grad.tolist() == [8.0, 8.0]


class TestRecurrence:
    """``c[i+1] = c[i] * c[i]`` in a loop: right, and not quadratic in memory or time: what is kept is small copies."""

    def test_gradient(self):
        a = jg.tensor(1.1, requires_grad=True)
        c = jg.tensor(np.zeros(5))
        c[0] = a
        for i in range(4):
            c[i + 1] = c[i] * c[i]
        c[4].backward()
        assert a.grad.item() == pytest.approx(16 * 1.1**15, rel=1e-13)

    def test_gradient_of_all(self):
        """Sum over logistic-map steps, against the derivative recursion."""
        n, r, start = 40, 3.2, 0.3
        a = jg.tensor(start, requires_grad=True)
        c = jg.tensor(np.zeros(n))
        c[0] = a
        for i in range(n - 1):
            c[i + 1] = r * c[i] * (1.0 - c[i])
        c.sum().backward()
        value, slope, total = start, 1.0, 1.0
        for _ in range(n - 1):
            value, slope = r * value * (1 - value), slope * r * (1 - 2 * value)
            total += slope
        assert a.grad.item() == pytest.approx(total, rel=1e-10)

    def test_memory(self):
        """Three times the length takes about three times the memory; a copy of c per step would make it nine times."""
        width = 500

        def kept(n):
            c = jg.tensor(np.zeros((n, width)))
            a = jg.tensor(np.full(width, 0.5), requires_grad=True)
            tracemalloc.start()
            try:
                c[0] = a
                for i in range(n - 1):
                    c[i + 1] = c[i] * c[i]
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        kept(10)
        small, large = kept(100), kept(300)
        assert large < 4.5 * small
        assert large < 10 * 300 * width * 8  # ten times c; a copy per step would be 300 times c


# --------------------------------------------------------------------------- what cannot be written


class TestRefused:
    """A broadcast (zero-stride) or read-only memory raises; bad input leaves everything unchanged."""

    def test_broadcast(self):
        x = jg.tensor([1.0, 2.0])
        b = jg.broadcast_to(x, (3, 2))
        for write in (lambda: b.add_(1.0), lambda: b.__setitem__((0, 0), 5.0), lambda: b[:, 0].fill_(1.0)):
            with pytest.raises(InPlaceError, match=r"\.clone\(\)"):
                write()
        assert x.tolist() == [1.0, 2.0]
        assert b.clone().add_(1.0).tolist() == [[2.0, 3.0]] * 3

    def test_read_only_array(self):
        array = np.array([1.0, 2.0])
        array.flags.writeable = False
        t = jg.from_numpy(array)
        with pytest.raises(InPlaceError, match="read-only"):
            t.add_(1.0)
        with pytest.raises(InPlaceError):
            t[0] = 5.0
        assert array.tolist() == [1.0, 2.0]

    def test_callers_array_is_never_written(self):
        array = np.array([1.0, 2.0, 3.0, 4.0])
        t = jg.tensor(array)
        t += 1.0
        for made in (jg.reshape(array, (2, 2)), jg.add(array, 0.0), jg.reshape(array[1:3], (1, 2))):
            made[0] = 100.0
            made *= 2.0
        assert array.tolist() == [1.0, 2.0, 3.0, 4.0]
        shared = jg.from_numpy(array)
        shared[0] = 9.0
        assert array.tolist() == [9.0, 2.0, 3.0, 4.0]

    @pytest.mark.parametrize(
        ("write", "error"),
        [
            (lambda c: c.__setitem__(slice(0, 2), jg.tensor([1.0, 2.0, 3.0])), ShapeError),
            (lambda c: c.__setitem__(5, 1.0), IndexError),
            (lambda c: c.__setitem__((0, 0), 1.0), IndexError),
            (lambda c: c.__setitem__("a", 1.0), (TypeError, IndexError)),
            (lambda c: c.__setitem__(1.5, 1.0), (TypeError, IndexError)),
            (lambda c: c.__setitem__(0, "text"), DtypeError),
            (lambda c: c.__setitem__(0, 1j), DtypeError),
            (lambda c: c.__setitem__(0, [1.0, [2.0]]), ShapeError),
            (lambda c: c.__setitem__([True, False], 1.0), IndexError),
            (lambda c: c.__setitem__([0, 9], 1.0), IndexError),
            (lambda c: c.__setitem__([0, 1], [1.0, 2.0, 3.0]), ShapeError),
            (lambda c: c.add_(jg.tensor([1.0, 2.0])), ShapeError),
            (lambda c: c.add_(jg.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])), ShapeError),
            (lambda c: c.copy_([1.0, 2.0]), ShapeError),
            (lambda c: c.fill_("text"), DtypeError),
        ],
    )
    def test_bad_input_changes_nothing(self, write, error):
        a = leaf(1.0, 2.0, 3.0)
        c = a * a
        view = c[1:]
        node = c.grad_fn
        with pytest.raises(error):
            write(c)
        assert c.tolist() == [1.0, 4.0, 9.0]
        assert c._version == 0
        assert c.grad_fn is node
        (c.sum() + view.sum()).backward()
        assert a.grad.tolist() == [2.0, 8.0, 12.0]

    def test_row_of_one_is_squeezed(self):
        """As in NumPy: leading axes of extent 1 of the value do not matter."""
        c = jg.tensor([1.0, 2.0, 3.0])
        c[1:] = [[8.0, 9.0]]
        assert c.tolist() == [1.0, 8.0, 9.0]


class TestOtherElements:
    """A write through an alias spoils only what was kept of the elements that it writes."""

    @staticmethod
    def _kept(shape, index):
        a = jg.tensor(np.ones(shape), requires_grad=True)
        c = a * 1.0
        part = c[index]
        expected = np.zeros(shape)
        expected[index] = 2.0
        return a, c, part, (part * part).sum(), expected

    @pytest.mark.parametrize(
        ("shape", "kept", "written"),
        [
            ((3,), np.s_[::2], np.s_[1]),
            ((3, 3), np.s_[:, :2], np.s_[:, 2]),
            ((3, 3), np.s_[:, ::2], np.s_[::-1, 1:2]),
            ((4, 4), np.s_[::-1, 1:], np.s_[:, :1]),
            ((5,), np.s_[:3], np.array([4, 3])),
            ((5,), np.s_[:3], np.array([False, False, False, True, True])),
            ((5,), np.s_[:3], np.zeros(5, bool)),
            ((2, 3), np.s_[:, :2], (np.array([0, 1]), np.array([2, 2]))),
        ],
    )
    def test_beside_what_is_kept(self, shape, kept, written):
        a, c, _part, y, expected = self._kept(shape, kept)
        c[written] = 5.0
        y.backward()
        assert a.grad.tolist() == expected.tolist()

    @pytest.mark.parametrize(
        ("shape", "kept", "written"),
        [
            ((3,), np.s_[::2], [np.s_[2], np.s_[1]]),
            ((3, 3), np.s_[:, :2], [np.s_[:, 1], np.s_[:, 2]]),
            ((3, 3), np.s_[:, :2], [np.s_[:, ::-2], np.s_[:, 2:]]),
            ((4,), np.s_[::-1], [np.s_[::3], np.s_[1:3]]),
            ((3,), np.s_[:2], [np.s_[:], np.s_[::2]]),  # between the same bounds: the first is not forgotten
            ((5,), np.s_[:3], [np.array([4, 2])]),
            ((2, 3), np.s_[:, :2], [(np.array([1]), np.array([1]))]),
            ((40,), np.s_[:39], [np.s_[i : i + 1] for i in (3, *[39] * 100)]),
            ((400,), np.s_[:399], [np.s_[i] for i in range(300, 400)]),  # more than are remembered one by one
        ],
    )
    def test_what_is_kept(self, shape, kept, written):
        _, c, _part, y, _ = self._kept(shape, kept)
        for index in written:
            c[index] = 5.0
        with pytest.raises(InPlaceError, match="overwritten in place"):
            y.backward()


class TestArguments:
    """An argument of a function under a transform is written: a private value changes, never the caller's memory."""

    @staticmethod
    def _write(x):
        x[0] = x[1] * 5.0
        x *= 2.0
        return (x * x).sum()  # (10 b)^2 + (2 b)^2

    def test_differentiated(self):
        a = np.array([1.0, 2.0])
        assert jg.grad(self._write)(a).tolist() == [0.0, 208.0 * 2.0]
        value, moved = jg.jvp(self._write, (a,), (np.array([1.0, 10.0]),))
        assert value == 104.0 * 4.0
        assert moved == 208.0 * 2.0 * 10.0
        assert a.tolist() == [1.0, 2.0]

    def test_tensors(self):
        t = leaf(1.0, 2.0)
        assert jg.grad(self._write)(t).tolist() == [0.0, 416.0]
        assert t.tolist() == [1.0, 2.0]
        assert t.is_leaf
        assert t._version == 0
        assert t.grad is None

    def test_not_differentiated(self):
        a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])

        def f(x, y):
            y[0] = x[0] * 7.0
            return (x * y).sum()  # 7 a^2 + 4 b

        assert jg.grad(f)(a, b).tolist() == [14.0, 4.0]
        assert b.tolist() == [3.0, 4.0]

    def test_second_order(self):
        hessian = jg.hessian(self._write)(np.array([1.0, 2.0]))
        assert hessian.tolist() == [[0.0, 0.0], [0.0, 208.0]]


# --------------------------------------------------------------------------- random programs of views and writes

_VIEWS = [
    lambda b: b[1:],
    lambda b: b[:-1],
    lambda b: b[::-1],
    lambda b: b[::2],
    lambda b: b.reshape(-1),
    lambda b: b[...],
]


@st.composite
def programs(draw):
    """Steps on a growing list of names: make a view, scale in place, add another, write an element or a mask."""
    names = 1
    steps = []
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["view", "scale", "square", "item", "mask", "fill", "add"]))
        on = draw(st.integers(0, names - 1))
        extra = draw(st.integers(0, len(_VIEWS) - 1))
        steps.append((kind, on, extra, draw(st.integers(0, names - 1))))
        names += kind == "view"
    return steps


def _run(steps, base, parameter):
    """The same program text for NumPy arrays and tensors; aliases make it a test of who sees what."""
    tensors = [base]
    for kind, on, extra, other in steps:
        x = tensors[on]
        if kind == "view":
            if x.shape[0] >= 2:
                x = _VIEWS[extra](x)
            tensors.append(x)
        elif kind == "scale":
            x *= parameter[extra % 3]
        elif kind == "square":
            x[...] = x * x
        elif kind == "item":
            x[extra % x.shape[0]] = parameter[0] * parameter[1]
        elif kind == "mask":
            x[np.arange(x.shape[0]) % 2 == extra % 2] = parameter[2]
        elif kind == "fill":
            x[0:1] = 0.5
        elif kind == "add":
            y = tensors[other]
            n = min(x.shape[0], y.shape[0])
            x[:n] = x[:n] + 0.5 * y[:n]
    return tensors


def _score(tensors):
    return sum((t * (k + 1.0)).sum() for k, t in enumerate(tensors))


def _has_alias(steps, base):
    """Whether a view lives after these steps. Only squares read what is written, and at once write over it themselves:
    into the memory, where a view has to see it."""
    return len({id(a) for a in _run(steps, base * 1.0, np.ones(3))}) > 1


@given(programs())
def test_random_programs_against_finite_differences(steps):
    """Views, aliases and writes in any order: values equal NumPy's, the gradient equals central differences."""
    start = np.array([0.5, -0.3, 0.8, 0.4, -0.6])
    point = np.array([0.7, -1.1, 0.9])

    def number(p, b):
        return float(_score(_run(steps, b * 1.0, p)))

    parameter = jg.tensor(point, requires_grad=True)
    begin = jg.tensor(start, requires_grad=True)
    tensors = _run(steps, begin * 1.0, parameter)
    expected = _run(steps, start * 1.0, point)
    for t, e in zip(tensors, expected, strict=True):
        np.testing.assert_allclose(t.detach().numpy(), e, rtol=1e-13, atol=1e-13)
    try:
        gradients = jg.autograd.grad(_score(tensors), [parameter, begin], materialize_grads=True)
    except InPlaceError:
        assert any(kind == "square" and _has_alias(steps[:i], start) for i, (kind, *_) in enumerate(steps))
        return
    for which, gradient in enumerate(gradients):
        center = (point, start)[which]
        for i in range(center.size):
            h = 1e-5
            moved = []
            for sign in (1, -1):
                arguments = [point.copy(), start.copy()]
                arguments[which][i] += sign * h
                moved.append(number(*arguments))
            slope = (moved[0] - moved[1]) / (2 * h)
            assert gradient[i].item() == pytest.approx(slope, rel=1e-6, abs=1e-6)


class TestConstantsWrittenOverAll:
    """What was tracked stays tracked when constants are written over all of it; only zeros flow on."""

    @pytest.mark.parametrize(
        "write", [lambda c: c.zero_(), lambda c: c.fill_(3.0), lambda c: c.copy_(jg.tensor([3.0, 4.0]))]
    )
    def test_still_tracked(self, write):
        a = leaf(1.0, 2.0)
        c = a * a
        view = c[1:]
        c.retain_grad()
        write(c)
        assert c.requires_grad
        assert view.requires_grad
        assert c.retains_grad
        (c * 2).sum().backward()
        assert a.grad.tolist() == [0.0, 0.0]
        assert c.grad.tolist() == [2.0, 2.0]

    def test_infinite_slopes_below_do_not_matter(self):
        a = leaf(0.0, 4.0)
        c = jg.sqrt(a)
        c.zero_()
        c.sum().backward()
        assert a.grad.tolist() == [0.0, 0.0]


def _shift(x):
    x = x * 1.0
    x[1:] += x[:-1]
    return x


def _power_of_one_element(x):
    x = x * 1.0
    x[-1] **= 2
    return x


def _halves(x):
    x = x * 1.0
    a, b = x[:2], x[2:]
    a *= b
    b *= a
    a += b
    return x


def _recurrence(x):
    c = x * 1.0
    for i in range(3):
        c[i + 1] = c[i] * c[i + 1]
    return c


def _constants(x):
    c = x * 1.0
    c[0] = 5.0
    c *= x
    return c


class TestForwardMode:
    """Values that are overwritten and that no rule reads do not stand in the way of forward mode either."""

    @pytest.mark.parametrize("function", [_shift, _power_of_one_element, _halves, _recurrence, _constants])
    def test_tangents_and_second_derivatives(self, function):
        x, v = np.array([0.5, 1.5, -0.7, 1.2]), np.array([1.0, -2.0, 0.5, 3.0])
        weights = np.array([1.0, 3.0, -2.0, 0.5])

        def cubes(x):
            return (function(x) ** 3 * weights).sum()

        _, tangent = jg.jvp(function, (x,), (v,))
        h = 1e-6
        expected = (function(x + h * v) - function(x - h * v)) / (2 * h)
        np.testing.assert_allclose(np.asarray(tangent), expected, rtol=1e-8, atol=1e-8)
        h = 1e-4
        steps = h * np.eye(4)
        hessian = [
            [(cubes(x + a + b) - cubes(x + a - b) - cubes(x - a + b) + cubes(x - a - b)) / (4 * h * h) for b in steps]
            for a in steps
        ]
        np.testing.assert_allclose(np.asarray(jg.hessian(cubes)(x)), hessian, rtol=1e-5, atol=1e-5)

    def test_what_a_rule_reads_is_still_guarded(self):
        def function(x):
            y = x * 1.0
            view = y[:]
            z = jg.sin(y)
            view *= 2.0
            return z

        with pytest.raises(InPlaceError):
            jg.jvp(function, (np.array([1.0, 2.0]),), (np.array([1.0, 1.0]),))


class TestAugmentedItems:
    """``c[i] += v`` is an ordinary update of c: Python's temporary view is no alias that has to see the write."""

    def test_values_kept_for_backward_stay(self) -> None:
        x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        c = x * 1.0
        y = c * c
        c[0:2] += 10.0
        c[2] *= 3.0
        (y.sum() + c.sum()).backward()
        assert c.tolist() == [11.0, 12.0, 9.0]
        assert x.grad.tolist() == [3.0, 5.0, 9.0]  # 2 x, and 1, 1, 3

    def test_values_kept_for_backward_stay_without_grad(self) -> None:
        x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        c = x * 1.0
        y = c * c
        with jg.no_grad():
            c[0:2] += 10.0
            c[2] *= 3.0
        y.sum().backward()
        assert c.tolist() == [11.0, 12.0, 9.0]
        assert x.grad.tolist() == [2.0, 4.0, 6.0]

    def test_rows_columns_and_masks(self) -> None:
        x = jg.tensor(np.ones((2, 3)), requires_grad=True)
        c = x * 2.0
        y = (c * c).sum()
        c[1] -= 1.0
        c[:, 2] /= 2.0
        c[c > 1.5] += 1.0
        (y + c.sum()).backward()
        assert c.tolist() == [[3.0, 3.0, 1.0], [1.0, 1.0, 0.5]]
        assert x.grad.tolist() == [[10.0, 10.0, 9.0], [10.0, 10.0, 9.0]]

    def test_a_named_view_is_an_alias(self) -> None:
        x = jg.tensor([1.0, 2.0], requires_grad=True)
        c = x * 1.0
        y = c * c
        v = c[0]
        v += 1.0
        assert c.tolist() == [2.0, 2.0]
        with pytest.raises(jg.errors.InPlaceError):
            y.sum().backward()

    def test_the_operator_function_writes_through(self) -> None:
        x = jg.tensor([1.0, 2.0], requires_grad=True)
        c = x * 1.0
        y = c * c
        operator.iadd(c[0:1], 1.0)
        assert c.tolist() == [2.0, 2.0]
        with pytest.raises(jg.errors.InPlaceError):
            y.sum().backward()

    def test_other_aliases_see_the_write(self) -> None:
        x = jg.tensor([1.0, 2.0], requires_grad=True)
        c = x * 1.0
        alias = c.detach()
        y = c * c
        c[0] += 1.0
        assert alias.tolist() == [2.0, 2.0]
        with pytest.raises(jg.errors.InPlaceError):
            y.sum().backward()


def test_masks_of_a_0d_tensor() -> None:
    for mask, written in ((np.array(True), True), (np.array(False), False), (True, True), (False, False)):
        x = jg.tensor(2.0, requires_grad=True)
        y = x * x
        y[mask] = x
        (y * x).backward()
        assert y.item() == (2.0 if written else 4.0)
        assert x.grad is not None
        assert x.grad.item() == (4.0 if written else 12.0)


# --------------------------------------------------------------------------------------------- under jit


@pytest.mark.parametrize("shape", [(5,), (4, 2)])
@pytest.mark.parametrize("k", [0, 2, -1])
def test_one_traced_position(shape, k):
    def function(x, k):
        y = x * 2.0
        y[k] = y[k] ** 2
        y[k - 1] += x[k]
        return np.sum(np.sin(y))

    x = np.linspace(0.1, 1.0, math.prod(shape)).reshape(shape)
    value, gradient = jg.jit(jg.value_and_grad(function))(x, k)
    np.testing.assert_allclose(value, function(x, k), rtol=1e-13)
    for place in np.ndindex(*shape):
        e = np.zeros(shape)
        e[place] = 1e-6
        np.testing.assert_allclose(
            gradient[place], (function(x + e, k) - function(x - e, k)) / 2e-6, rtol=1e-6, atol=1e-9
        )


def test_one_traced_position_in_numba():
    def function(x, k):
        y = x * 1.0
        y[k] = y[k] ** 3
        return np.sum(y)

    step = jg.jit(jg.value_and_grad(function)).njit(np.ones(5), 1)
    x = np.linspace(1.0, 2.0, 7)
    value, gradient = step(x, 6)
    assert value == pytest.approx(x[:6].sum() + 8.0)
    np.testing.assert_allclose(gradient, [1.0] * 6 + [12.0])
    with pytest.raises(IndexError):
        step(x, 7)


def test_several_traced_positions_are_refused():
    def function(x, i):
        y = x * 1.0
        y[i] = 0.0
        return np.sum(y)

    with pytest.raises(UnsupportedError, match="one integer that indexes the first axis"):
        jg.jit(function)(np.ones(4), np.array([1, 2]))


@pytest.mark.parametrize("n", [8, 20, 33])
@pytest.mark.parametrize(
    ("to", "of"),
    [
        (slice(0, None, 2), slice(0, "half")),
        (slice(0, "half"), slice(0, None, 2)),
        (slice(None, None, -2), slice(0, "half")),
        (slice(1, "half"), slice(0, -1, 2)),
        (slice(0, "half"), slice(None, None, -2)),
    ],
)
def test_values_that_lie_in_the_memory_that_is_written(n: int, to: slice, of: slice) -> None:
    """The values are those from before the write; NumPy takes some that it has written where strides differ."""
    to, of = (slice(s.start, (n + 1) // 2 if s.stop == "half" else s.stop, s.step) for s in (to, of))
    start = np.arange(float(n))
    count = min(len(start[to]), len(start[of]))
    wanted = start.copy()
    wanted[np.arange(n)[to][:count]] = start[of][:count].copy()
    x = jg.tensor(start.copy())
    x[to][:count].copy_(x[of][:count])
    np.testing.assert_array_equal(x.numpy(), wanted)
    y = jg.tensor(start.copy())
    if len(start[to]) == len(start[of]):
        y[to] = y[of]
        np.testing.assert_array_equal(y.numpy(), wanted)
