"""Errors: one root class, Python's own families; what happened, where and what to do; nothing changed by them."""

import inspect
import os
import pickle
import re
import sys
import warnings

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import errors
from jitgrad.core.foreign_names import MODULE_NAMES, TENSOR_NAMES
from jitgrad.errors import (
    ArgumentError,
    ConversionError,
    DtypeError,
    GradientWarning,
    GraphError,
    InPlaceError,
    JitgradError,
    NoAttributeError,
    NoGraphError,
    ReleasedGraphError,
    ShapeError,
    UnsupportedError,
)
from jitgrad.ops.catalog import operations

_CLASSES = [
    c
    for c in vars(errors).values()
    if inspect.isclass(c) and issubclass(c, Exception) and c.__module__ == errors.__name__
]
_ERRORS = [c for c in _CLASSES if not issubclass(c, Warning)]


def leaf(*values):
    return jg.tensor(list(values), requires_grad=True)


class TestClasses:
    """One root class; shape and value faults are ValueErrors, dtype faults TypeErrors, graph faults RuntimeErrors."""

    @pytest.mark.parametrize("error", _ERRORS)
    def test_root(self, error):
        assert issubclass(error, JitgradError)

    @pytest.mark.parametrize("error", _ERRORS)
    def test_family(self, error):
        if error is not JitgradError:
            families = [
                f
                for f in (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError, AttributeError)
                if issubclass(error, f)
            ]
            assert families, f"{error.__name__} belongs to no family of Python's own"

    def test_families(self):
        assert issubclass(ShapeError, ValueError)
        assert issubclass(DtypeError, TypeError)
        assert issubclass(UnsupportedError, TypeError)
        for error in (NoGraphError, ReleasedGraphError, InPlaceError, errors.NotDifferentiableError):
            assert issubclass(error, GraphError)
        assert issubclass(GraphError, RuntimeError)

    @pytest.mark.parametrize("error", _CLASSES)
    def test_exported_and_documented(self, error):
        assert error.__name__ in errors.__all__
        assert error.__doc__

    @pytest.mark.parametrize("error", _ERRORS)
    def test_pickle(self, error):
        """Errors come back from worker processes."""
        twin = pickle.loads(pickle.dumps(error("what happened")))
        assert type(twin) is error
        assert str(twin) == "what happened"

    def test_all_caught_by_the_root(self):
        with pytest.raises(JitgradError):
            jg.tensor([1.0]).backward()
        with pytest.raises(RuntimeError):
            jg.tensor([1.0]).backward()


class TestLines:
    """Where in the user's own code."""

    def test_user_line(self):
        where = errors.user_line()
        line = sys._getframe().f_lineno - 1
        assert where == f"{os.path.abspath(__file__)}:{line}"

    def test_line_of_the_write(self):
        x = leaf(1.0, 2.0)
        y = jg.exp(x)
        alias = y.detach()

        def helper(t):
            t[0] = 5.0
            return sys._getframe().f_lineno - 1

        line = helper(alias)
        with pytest.raises(InPlaceError, match=rf"test_errors\.py:{line}"):
            y.sum().backward()

    def test_warnings_point_at_the_user(self):
        x = leaf(2.0)
        y = x * 2
        scalar = jg.tensor(2.0, requires_grad=True)
        for provoke in (lambda: y.grad, lambda: float(scalar), lambda: int(scalar)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                provoke()
            assert [w.category for w in caught] == [GradientWarning]
            assert os.path.basename(caught[0].filename) == "test_errors.py"


@pytest.mark.parametrize(
    "bad",
    [
        [[1.0, 2.0], [3.0]],
        [1.0, [2.0]],
        "text",
        ["a", "b"],
        [None, 1.0],
        None,
        object(),
        np.array([object()]),
        np.array(["a"]),
        np.array([1j]),
        1j,
        np.array(["2020-01-01"], "datetime64[D]"),
        {"a": 1.0},
        {1.0, 2.0},
        b"bytes",
        [1.0, "a"],
        10**400,
        [2**70, 1],
        lambda: 1.0,
    ],
    ids=lambda b: re.sub(" at 0x.*", "", repr(b))[:30],
)
class TestBadData:
    """Bad input of any kind (ragged lists, object arrays, strings ...) raises before anything is changed."""

    def test_tensor(self, bad):
        with pytest.raises((JitgradError, OverflowError)) as caught:
            jg.tensor(bad)
        assert isinstance(caught.value, JitgradError)
        assert isinstance(caught.value, ValueError | TypeError)

    def test_operand(self, bad):
        x = leaf(1.0, 2.0)
        with pytest.raises((JitgradError, TypeError)):
            jg.add(x, bad)
        with pytest.raises((JitgradError, TypeError)):
            x * bad
        with pytest.raises((JitgradError, TypeError)):
            bad - x
        assert x._version == 0

    def test_written(self, bad):
        x = leaf(1.0, 2.0)
        c = x * 3
        node = c.grad_fn
        for write in (
            lambda: c.__setitem__(0, bad),
            lambda: c.__setitem__(slice(None), bad),
            lambda: c.__setitem__([True, False], bad),
            lambda: c.copy_(bad),
            lambda: c.add_(bad),
            lambda: c.__imul__(bad),
        ):
            try:
                result = write()
            except (JitgradError, TypeError):
                continue
            assert result is NotImplemented
        assert c.tolist() == [3.0, 6.0]
        assert c.grad_fn is node
        assert c._version == 0
        c.sum().backward()
        assert x.grad.tolist() == [3.0, 3.0]

    def test_gradient(self, bad):
        x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
        y = x * w
        if bad is not None:
            with pytest.raises(JitgradError):
                y.backward(bad)
            with pytest.raises(JitgradError):
                jg.autograd.grad(y, x, bad)
        with pytest.raises(JitgradError):
            x.grad = bad if bad is not None else jg.tensor([1.0])
        assert x.grad is None
        assert w.grad is None
        y.backward([1.0, 1.0])
        assert x.grad.tolist() == [3.0, 4.0]

    def test_hook(self, bad):
        if bad is None:
            return  # a hook that returns None leaves the gradient as it is
        x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
        x.register_hook(lambda g: bad)
        with pytest.raises(JitgradError):
            (x * w).sum().backward()
        assert x.grad is None
        assert w.grad is None


class TestMessages:
    """With shapes, dtypes and the operation; and what to do next."""

    def test_shapes(self):
        with pytest.raises(ShapeError, match=r"multiply.*\(2,\).*\(3,\)"):
            leaf(1.0, 2.0) * leaf(1.0, 2.0, 3.0)
        with pytest.raises(ShapeError, match=r"reshape.*\(2,\).*\(3,\)"):
            leaf(1.0, 2.0).reshape(3)
        with pytest.raises(ShapeError, match="axis 2"):
            leaf(1.0, 2.0).sum(axis=2)

    def test_dtypes(self):
        with pytest.raises(DtypeError, match=r"float16.*float64"):
            jg.tensor([1.0]).astype("float16")
        with pytest.raises(DtypeError, match="complex"):
            leaf(1.0) * 1j
        with pytest.raises(DtypeError, match="bool"):
            jg.tensor([True]) - jg.tensor([False])

    def test_index(self):
        x = leaf(1.0, 2.0)
        for index in (2, -3, (0, 0), [5]):
            with pytest.raises(IndexError):
                x[index]
        with pytest.raises((TypeError, IndexError)):
            x[0.5]
        with pytest.raises((TypeError, IndexError)):
            x["a"]

    def test_gradient_of_the_wrong_shape(self):
        y = leaf(1.0, 2.0) * 2
        with pytest.raises(ShapeError, match=r"\(3,\).*\(2,\)"):
            y.backward([1.0, 2.0, 3.0])
        with pytest.raises(ShapeError, match=r"\(1,\).*\(2,\)"):
            y.backward([1.0])  # is not broadcast

    def test_grad_setter(self):
        x = leaf(1.0, 2.0)
        with pytest.raises(ValueError, match=r"\(1,\).*\(2,\)"):
            x.grad = jg.tensor([1.0])
        with pytest.raises(TypeError, match="float32"):
            x.grad = jg.tensor([1.0, 2.0], dtype="float32")
        with pytest.raises(TypeError, match="ndarray"):
            x.grad = np.array([1.0, 2.0])
        assert x.grad is None
        x.grad = jg.tensor([1.0, 2.0])
        (x * 1).sum().backward()
        assert x.grad.tolist() == [2.0, 3.0]

    def test_next_step(self):
        """Messages of the usual mistakes say what to write instead."""
        x = leaf(1.0, 2.0)
        with pytest.raises(ConversionError, match=r"x\.detach\(\)\.numpy\(\)"):
            x.numpy()
        with pytest.raises(InPlaceError, match=r"with jg\.no_grad\(\):"):
            x += 1.0
        with pytest.raises(GraphError, match=r"gradient=.*\.sum\(\)"):
            (x * 2).backward()
        with pytest.raises(NoGraphError, match="requires_grad=True"):
            jg.tensor(1.0).backward()
        with pytest.raises(GraphError, match=r"\.detach\(\)"):
            (x * 2).requires_grad = False

    def test_format_of_numbers_is_not_for_vectors(self):
        assert f"{leaf(1.0, 2.0)[1]:.2f} {jg.tensor([1, 2]):>20}" == "2.00       tensor([1, 2])"
        with pytest.raises(ArgumentError, match=r"'.3f' is for a number, not a tensor of shape \(2,\)"):
            f"{leaf(1.0, 2.0):.3f}"

    def test_tensor_class_is_not_called(self):
        with pytest.raises(TypeError, match=r"jg\.tensor"):
            jg.Tensor([1.0])


class TestNothingIsHalfDone:
    def test_failing_hook(self):
        x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)

        def fail(g):
            raise KeyError("hook")

        x.grad = jg.tensor([1.0, 1.0])
        w.register_hook(fail)
        with pytest.raises(KeyError):
            (x * w).sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]
        assert w.grad is None
        assert jg.is_grad_enabled()

    def test_failing_backward_of_a_function(self):
        class Fails(jg.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                raise KeyError("rule")

        x, w = leaf(1.0), leaf(2.0)
        with pytest.raises(KeyError):
            (Fails.apply(x) * w).sum().backward()
        assert x.grad is None
        assert w.grad is None
        assert jg.is_grad_enabled()

    def test_failing_forward_of_a_function(self):
        class Fails(jg.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                raise KeyError("rule")

            @staticmethod
            def backward(ctx, g):
                return g

        with pytest.raises(KeyError):
            Fails.apply(leaf(1.0))
        assert jg.is_grad_enabled()

    def test_overwritten_value(self):
        x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
        y = jg.exp(w)
        y.detach().zero_()
        with pytest.raises(InPlaceError):
            (x * 2 + y).sum().backward()
        assert x.grad is None
        assert w.grad is None

    def test_operation_on_wrong_shapes_records_nothing(self):
        x = leaf(1.0, 2.0)
        y = x * 1
        with pytest.raises(ShapeError):
            y.add_(jg.tensor([1.0, 2.0, 3.0]))
        assert y.tolist() == [1.0, 2.0]
        assert y._version == 0
        y.sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]


class TestForeignNames:
    """Names of PyTorch say what they are called here, and are not there for those who ask."""

    @pytest.mark.parametrize("name", TENSOR_NAMES)
    def test_tensor(self, name):
        x = leaf(1.0, 2.0)
        if name in ("pow_",):  # an operation that has it
            return
        with pytest.raises(NoAttributeError, match=re.escape(TENSOR_NAMES[name])):
            getattr(x, name)
        assert not hasattr(x, name)
        assert getattr(x, name, None) is None
        assert name not in dir(x)

    def test_assigned(self):
        x = leaf(1.0, 2.0)
        with pytest.raises(AttributeError, match="no_grad"):
            x.data = x - 1.0
        with pytest.raises(AttributeError, match="no_grad"):
            x.data -= 1.0
        assert "data" not in vars(x)

    @pytest.mark.parametrize("name", MODULE_NAMES)
    def test_module(self, name):
        with pytest.raises(NoAttributeError, match=re.escape(MODULE_NAMES[name])):
            getattr(jg, name)
        assert not hasattr(jg, name)

    def test_other_names_are_as_ever(self):
        with pytest.raises(AttributeError, match="has no attribute 'shap'"):
            leaf(1.0).shap  # noqa: B018
        with pytest.raises(AttributeError, match="has no attribute 'sine'"):
            jg.sine  # noqa: B018

    def test_what_the_hints_name_is_there(self):
        for text in (*TENSOR_NAMES.values(), *MODULE_NAMES.values()):
            for path in re.findall(r"jg\.([a-zA-Z_0-9.]+)", text):
                found = jg
                for part in path.rstrip(".").split("."):
                    found = getattr(found, part)
        for text in TENSOR_NAMES.values():
            for name in re.findall(r"use (?:x)?\.([a-zA-Z_]+)", text):
                assert hasattr(jg.Tensor, name), text

    @pytest.mark.parametrize(
        ("call", "hint"),
        [
            (lambda x: jg.sum(x, dim=0), "axis= in place of dim="),
            (lambda x: x.mean(dim=0, keepdim=True), "keepdims= in place of keepdim="),
            (lambda x: jg.stack([x, x], dim=0), "axis= in place of dim="),
            (lambda x: jg.softmax(x, dim=-1), "axis= in place of dim="),
            (lambda x: x.var(unbiased=False), "ddof= in place of unbiased="),
            (lambda x: x.sum(axes=0), r"it is sum\(x, axis, "),
            (lambda x: x.exp(dim=0), r"exp\(\) takes 1 arguments \(x\), not dim by name"),
        ],
    )
    def test_keywords(self, call, hint):
        with pytest.raises(UnsupportedError, match=hint):
            call(leaf(1.0, 2.0))


_WRONG = [[], "a", {}, object(), 1.5, -7, 1j, None, (0, 0), np.ones((2, 3)), [None], float("nan"), b"x", slice(1), True]


def _with(op, call, name, value):
    """The arguments of a sample call, with another value for one parameter."""
    place = list(inspect.signature(op.function).parameters).index(name)
    if place < len(call.args):
        return (*call.args[:place], value, *call.args[place + 1 :]), call.kwargs
    return call.args, {**call.kwargs, name: value}


class TestParameters:
    """Whatever is given for a parameter, the error is one of jitgrad's."""

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("name", [n for n, op in operations().items() if op.samples is not None])
    def test_of_a_wrong_type(self, name):
        op = operations()[name]
        call = op.samples(np.random.default_rng(0))[0]
        for parameter in inspect.signature(op.function).parameters.values():
            if parameter.default is inspect.Parameter.empty:
                continue
            for wrong in _WRONG:
                args, kwargs = _with(op, call, parameter.name, wrong)
                try:
                    op.function(*args, **kwargs)
                except (JitgradError, np.linalg.LinAlgError) as error:
                    assert len(str(error)) > 10  # noqa: PT017  # some of the values are fine

    def test_messages(self):
        with pytest.raises(UnsupportedError, match=r"^convolve: mode must be str, not list$") as caught:
            jg.convolve(np.ones(3), np.ones(2), mode=[])
        assert isinstance(caught.value.__cause__, TypeError)
        with pytest.raises(ArgumentError, match=r"^cov: ddof must be int or None, not str$"):
            jg.cov(np.ones((3, 4)), ddof="a")
        with pytest.raises(DtypeError, match="sorter must be integers"):
            jg.searchsorted([1.0, 2.0], 1.5, sorter=[0.0, 1.0])

    def test_errors_of_the_users_code_pass(self):
        class Broken:
            def __index__(self):
                raise ValueError("not ready")

        with pytest.raises(ValueError, match=r"^not ready$"):
            jg.roll(np.ones(3), Broken())


class TestFrozen:
    """backward where everything was frozen says so, by whatever way the operations ran."""

    @pytest.mark.parametrize(
        "compute",
        [
            lambda w, x: w,
            lambda w, x: x * w,
            lambda w, x: w * x,
            lambda w, x: x @ w,
            lambda w, x: jg.exp(w)[0],
            lambda w, x: jg.stack([x, w]),
            lambda w, x: jg.jit(lambda a: a * 2.0)(w),
        ],
    )
    def test_says_so(self, compute):
        w = leaf(1.0, 2.0).requires_grad_(False)
        x = jg.tensor([3.0, 4.0])
        for _ in range(2):  # the second time by the short way
            with pytest.raises(NoGraphError, match=r"frozen by requires_grad_\(False\).* Call requires_grad_\(True\)"):
                compute(w, x).sum().backward()

    def test_thawed(self):
        w = leaf(1.0, 2.0).requires_grad_(False).requires_grad_(True)
        (w * w).sum().backward()
        assert w.grad.tolist() == [2.0, 4.0]

    def test_detached_is_still_called_detached(self):
        with pytest.raises(NoGraphError, match=r"made by detach\(\)"):
            (jg.tensor([1.0, 2.0]) * leaf(1.0, 2.0).detach()).sum().backward()


def test_array_of_tensors_in_a_transform_names_stack():
    with pytest.raises(ConversionError, match=r"np\.array\(\[a, b\]\).*jg\.stack or jg\.array"):
        jg.grad(lambda a: np.sum(np.array([a, 2.0 * a])))(1.0)
    with pytest.raises(errors.TracedValueError, match=r"np\.array\(\[a, b\]\).*jg\.stack or jg\.array"):
        jg.jit(lambda a: np.sum(np.array([a, 2.0 * a])))(1.0)
    assert jg.grad(lambda a: np.sum(jg.array([a, 2.0 * a])))(1.0) == 3.0


class TestIntegers:
    """As NumPy where NumPy is right, an error where integers wrap around."""

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "bool"])
    @pytest.mark.parametrize("period", [6, 7, 10, 6.5, np.int64(6)])
    @pytest.mark.parametrize("discont", [None, 2, 4])
    def test_unwrap(self, dtype, period, discont):
        p = np.random.default_rng(0).integers(0, 50, 12).astype(dtype)
        expected = np.unwrap(p, discont=discont, period=period)
        found = jg.unwrap(p, discont, period=period).numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-14)

    @pytest.mark.parametrize("period", [6, 7, np.int64(6), np.uint8(6)])
    @pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
    def test_unwrap_of_unsigned_integers(self, dtype, period):
        with pytest.raises(DtypeError, match=r"unsigned.*astype\(np.int64\)"):
            jg.unwrap(np.array([0, 3, 250], dtype), period=period)
        with pytest.raises(DtypeError, match="unsigned"):
            jg.unwrap(np.array([0, 3, 25], "int8"), period=np.uint8(6))

    @pytest.mark.parametrize("invert", [False, True])
    def test_isin_of_int64_with_uint64(self, invert):
        big, top = 2**53, 2**63
        signed = np.array([big, big + 1, -1, 0, 7, top - 1, -top], np.int64)
        unsigned = np.array([big + 1, 2**64 - 1, 7, top, top - 1], np.uint64)
        for x, tests in (
            (signed, unsigned),
            (unsigned, signed),
            (signed[1:2], unsigned[3:]),
            (unsigned[3:], signed[6:]),
        ):
            expected = [(int(v) in [int(t) for t in tests]) != invert for v in x]
            assert jg.isin(x, tests, invert=invert).tolist() == expected
            assert np.isin(x, tests, invert=invert).tolist() == expected
