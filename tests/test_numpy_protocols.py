"""NumPy's functions on tensors: tracked, with jitgrad's results; what cannot be right raises; nothing leaks out."""

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special as special

import jitgrad as jg
from jitgrad.errors import ConversionError, GradientWarning, InPlaceError, JitgradError, UnsupportedError
from jitgrad.ops.catalog import operations, public_names
from jitgrad.tensor import numpy_protocols

A = np.array([[1.5, 2.0, 0.5], [3.0, 4.0, 2.5]])


def tracked(x: Any = A) -> jg.Tensor:
    return jg.tensor(x, requires_grad=True)


# --------------------------------------------------------------------------- ufuncs

UFUNCS = sorted(
    name
    for name in public_names()
    if isinstance(getattr(np, name, None), np.ufunc) and getattr(np, name).nout == 1 and "bitwise" not in name
)
INTEGERS = {"invert", "left_shift", "right_shift", "gcd", "lcm", "bitwise_count", "logical_not"}


@pytest.mark.parametrize("name", UFUNCS)
def test_a_ufunc_is_the_operation_of_its_name(name: str) -> None:
    ufunc = getattr(np, name)
    x = np.array([[0.25, 0.5], [0.75, 0.5]])
    if name in INTEGERS:
        x = np.array([[1, 2], [3, 4]])
    elif name == "arccosh":
        x = x + 1.0
    if ufunc.nin == 2 and name in INTEGERS:
        arrays = [x, np.array([[1, 0], [2, 1]])]
    else:
        arrays = [x, np.array([[2.0, 3.0], [0.5, 0.25]])][: ufunc.nin]
    expected = getattr(jg, name)(*map(jg.tensor, arrays))
    for tracked_at in range(ufunc.nin):
        operands: list[Any] = list(arrays)
        floats = operands[tracked_at].dtype.kind == "f"
        operands[tracked_at] = jg.tensor(operands[tracked_at], requires_grad=floats)
        result = ufunc(*operands)
        assert isinstance(result, jg.Tensor)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result.detach().numpy(), expected.numpy())
        assert result.requires_grad == (floats and public_names()[name].differentiable and result.dtype.kind == "f")


def test_operators_of_ndarrays_and_numpy_numbers_give_tracked_tensors() -> None:
    number = np.float64(2.0)
    for op in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow):
        for left, right in ((A, tracked()), (tracked(), A), (number, tracked()), (tracked(), number), (2.0, tracked())):
            result = op(left, right)
            assert result.requires_grad
            plain = [v.detach().numpy() if isinstance(v, jg.Tensor) else v for v in (left, right)]
            np.testing.assert_allclose(result.detach().numpy(), op(*plain), rtol=1e-15)
    t = tracked()
    (A * t + number * t).sum().backward()
    np.testing.assert_array_equal(t.grad.numpy(), A + 2.0)
    for op in (operator.lt, operator.eq):
        assert isinstance(op(A, tracked()), jg.Tensor)


def test_float32_stays_float32() -> None:
    t = tracked(np.ones(3, np.float32))
    assert (np.float32(2) * t).dtype == np.float32
    assert (2.0 * t).dtype == np.float32
    assert np.multiply(2.0, t).dtype == np.float32
    assert np.sin(t).dtype == np.float32
    assert (np.float64(2) * t).dtype == np.float64  # NumPy 2: its float64 numbers are not weak


def test_methods_of_ufuncs() -> None:
    t = tracked()
    np.testing.assert_array_equal(np.add.reduce(t).detach().numpy(), np.add.reduce(A))  # along the first axis
    np.testing.assert_array_equal(np.add.reduce(t, axis=None, keepdims=True).detach().numpy(), [[A.sum()]])
    np.testing.assert_array_equal(np.maximum.reduce(t, axis=1).detach().numpy(), A.max(1))
    np.testing.assert_array_equal(np.multiply.reduce(t).detach().numpy(), A.prod(0))
    np.testing.assert_array_equal(np.logical_and.reduce(t > 1).numpy(), (A > 1).all(0))
    np.testing.assert_array_equal(np.add.accumulate(t).detach().numpy(), np.add.accumulate(A))
    np.testing.assert_array_equal(np.multiply.accumulate(t, axis=1).detach().numpy(), A.cumprod(1))
    np.testing.assert_array_equal(np.multiply.outer(t, t[0]).detach().numpy(), np.multiply.outer(A, A[0]))
    np.testing.assert_array_equal(np.subtract.outer([1.0, 2.0], t).detach().numpy(), np.subtract.outer([1.0, 2.0], A))
    np.multiply.outer(t, t).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), np.full(A.shape, 2 * A.sum()))
    for refused in (
        lambda: np.add.reduceat(t, [0, 1]),
        lambda: np.add.at(A.copy(), (0, 0), t[0, 0]),
        lambda: np.subtract.reduce(t),
        lambda: np.add.reduce(t, where=A > 1),
        lambda: np.add.reduce(t, initial=1.0),
    ):
        with pytest.raises(UnsupportedError):
            refused()


def test_arguments_of_ufuncs_that_are_not_taken_raise() -> None:
    t = tracked()
    for kwargs in ({"where": A > 1}, {"casting": "unsafe"}, {"dtype": np.float32}, {"signature": "dd->d"}):
        with pytest.raises(UnsupportedError, match=next(iter(kwargs)).replace("signature", "sig")):
            np.add(t, A, **kwargs)
    assert np.add(t, A, where=True).requires_grad
    assert np.add(t, A, casting="same_kind", order="K", subok=True).requires_grad


def test_a_ufunc_that_only_has_the_name_is_not_taken_for_it() -> None:
    add = np.frompyfunc(lambda a, b: a - b, 2, 1)
    for ufunc in (add, np.frompyfunc(operator.add, 2, 1)):
        with pytest.raises(UnsupportedError, match="jitgrad has no"):
            ufunc(tracked(), A)
    with pytest.raises(UnsupportedError, match=r"np\.spacing"):
        np.spacing(tracked())


def test_out_writes_into_tensors_and_refuses_to_lose_gradients() -> None:
    t, out = tracked(), jg.zeros(A.shape)
    assert np.multiply(t, A, out=out) is out
    out.sum().backward()
    np.testing.assert_array_equal(t.grad.numpy(), A)
    assert np.sum(tracked(), axis=0, out=jg.zeros(3)).requires_grad
    with pytest.raises(InPlaceError):
        np.add(A, A, out=tracked())  # a leaf

    array = A.copy()
    for write in (
        lambda: np.multiply(tracked(), 2.0, out=array),
        lambda: np.sum(tracked(), axis=0, out=array[0]),
        lambda: operator.iadd(array, tracked()),
        lambda: operator.imul(array, tracked()),
        lambda: np.concatenate([tracked(), A], out=np.zeros((4, 3))),
    ):
        with pytest.raises(ConversionError, match=r"jg\.tensor"):
            write()
    np.testing.assert_array_equal(array, A)
    array += jg.tensor(A)
    np.testing.assert_array_equal(array, A + A)
    with jg.no_grad():
        array -= tracked()
    np.testing.assert_array_equal(array, A)


SPECIAL = sorted(
    n for n in public_names() if "." not in n and isinstance(getattr(special, n, None), np.ufunc) and not hasattr(np, n)
)


@pytest.mark.parametrize("name", SPECIAL)
def test_ufuncs_of_scipy_special(name: str) -> None:
    ufunc = getattr(special, name)
    arrays = [np.array([0.25, 0.5, 0.75]), np.array([0.5, 1.5, 2.5])][: ufunc.nin]
    expected = ufunc(*arrays)
    result = ufunc(*map(tracked, arrays))
    assert result.requires_grad == public_names()[name].differentiable
    np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-13)


def test_the_special_functions_people_use_are_there() -> None:
    for ufunc in (
        special.expit,
        special.erf,
        special.erfc,
        special.xlogy,
        special.entr,
        special.log_expit,
    ):
        arguments = [tracked(np.array([0.25, 0.5]))] * ufunc.nin
        assert ufunc(*arguments).requires_grad, ufunc
    with pytest.raises(UnsupportedError, match=r"scipy\.special\.kolmogorov"):
        special.kolmogorov(tracked())


# --------------------------------------------------------------------------- other functions


def resolve(name: str) -> Any:
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


NEVER_HANDED_OVER = {"full"}  # they raise: see LEAKS
SAMPLED = sorted(
    name
    for name, op in operations().items()
    if op.samples is not None
    and name not in NEVER_HANDED_OVER
    and callable(resolve(name))
    and not isinstance(resolve(name), np.ufunc)
)


def lifted(argument: Any) -> Any:
    """Every float array as a tracked tensor, others as untracked ones."""
    if isinstance(argument, np.ndarray):
        return jg.tensor(argument, requires_grad=argument.dtype.kind == "f")
    if isinstance(argument, list | tuple) and any(isinstance(a, np.ndarray) for a in argument):
        return type(argument)(map(lifted, argument))
    return argument


def flat(result: Any) -> list[Any]:
    return [r for part in result for r in flat(part)] if isinstance(result, tuple | list) else [result]


@pytest.mark.parametrize("name", SAMPLED)
def test_a_numpy_function_is_the_operation_of_its_name(name: str) -> None:
    op, function = operations()[name], resolve(name)
    for call in op.samples(np.random.default_rng(0)):
        args = tuple(map(lifted, call.args))
        if not any(
            isinstance(a, jg.Tensor) or (isinstance(a, list | tuple) and any(isinstance(i, jg.Tensor) for i in a))
            for a in args
        ):
            continue
        try:
            function(*call.args, **call.kwargs)
        except TypeError:  # the sample uses an argument that NumPy's function lacks
            continue
        found, expected = flat(function(*args, **call.kwargs)), flat(op(*args, **call.kwargs))
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            assert isinstance(f, jg.Tensor) == isinstance(e, jg.Tensor)
            if isinstance(f, jg.Tensor):
                assert f.requires_grad == e.requires_grad
                assert f.dtype == e.dtype
                np.testing.assert_array_equal(f.detach().numpy(), e.detach().numpy())


def test_signatures_of_numpy_are_adapted() -> None:
    t = tracked()

    def same(result: Any, expected: Any) -> None:
        assert isinstance(result, jg.Tensor)
        np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-14)

    same(np.sum(a=t, axis=1), A.sum(1))
    same(np.sum(t, 0, None, None, True), A.sum(0, keepdims=True))
    same(np.sum(t, axis=0, dtype=np.float32), A.sum(0, dtype=np.float32))
    same(np.mean(t, keepdims=np._NoValue), A.mean())
    same(np.max(t, 1), A.max(1))
    same(np.clip(t, 1, 3), np.clip(A, 1, 3))
    same(np.clip(t, a_min=None, a_max=2.0), np.clip(A, None, 2.0))
    same(np.clip(t, min=1.0, max=2.0), np.clip(A, 1.0, 2.0))
    same(np.reshape(t, (3, 2), order="F"), np.reshape(A, (3, 2), order="F"))
    same(np.concatenate((t, A), 1), np.concatenate((A, A), 1))
    same(np.concatenate([A, t], axis=None, dtype=np.float64), np.concatenate([A, A], axis=None))
    same(np.where(A > 2, t, 0.0), np.where(A > 2, A, 0.0))
    same(np.full_like(t, t[0, 0]), np.full_like(A, A[0, 0]))
    same(np.zeros_like(t, dtype=np.float32), np.zeros_like(A))
    same(np.ones(2, like=t), np.ones(2))
    same(np.pad(t, 1, constant_values=2.0), np.pad(A, 1, constant_values=2.0))
    same(np.copy(t), A)
    same(np.round(t, 0), np.round(A, 0))
    for found, expected in zip(np.where(t > 2), np.where(A > 2), strict=True):
        same(found, expected)
    for refused in (
        lambda: np.sum(t, where=A > 1),
        lambda: np.sum(t, initial=1.0),
        lambda: np.concatenate([t, t], casting="unsafe"),
        lambda: np.pad(t, 1, mode="linear_ramp", end_values=1.0),
        lambda: np.zeros_like(t, order="F"),
    ):
        with pytest.raises(UnsupportedError):
            refused()
    with pytest.raises(TypeError):
        np.sum(t, nonsense=1)


def test_questions_about_shape_and_dtype_have_plain_answers() -> None:
    t = tracked()
    assert np.shape(t) == (2, 3)
    assert type(np.ndim(t)) is int
    assert type(np.size(t)) is int
    assert (np.ndim(t), np.size(t), np.size(t, 1)) == (2, 6, 3)
    assert np.result_type(t, np.float32) == np.float64
    assert np.result_type(tracked(np.float32(1)), 1.0) == np.float32
    assert np.common_type(tracked(np.ones(2, np.float32)), np.ones(1, np.float32)) is np.float32
    assert np.can_cast(t, np.float32) is False
    assert np.isrealobj(t)
    assert not np.iscomplexobj(t)
    assert np.iterable(t)
    assert np.array2string(t[0]) == "[1.5 2.  0.5]"
    assert np.array_equal(t, A)
    assert np.allclose(t, A)
    assert np.may_share_memory(t, t.detach())


def test_what_jitgrad_lacks_raises_with_its_name_and_advice() -> None:
    t = tracked()
    for call, name in (
        (lambda: np.fft.fft(t), r"np\.fft\.fft"),
        (lambda: np.apply_along_axis(np.sum, 0, t), r"np\.apply_along_axis"),
        (lambda: np.setdiff1d(t, t), r"np\.setdiff1d"),
        (lambda: np.put(A.copy(), [0], t[0, 0]), r"np\.put"),
        (lambda: np.linalg.eig(t), r"np\.linalg\.eig"),
        (lambda: np.nextafter(t, 1.0), r"np\.nextafter"),
    ):
        with pytest.raises(UnsupportedError, match=name) as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert "detach().numpy()" in str(caught.value)


def test_saving_and_copying_obey_the_rule_of_numpy(tmp_path: Any) -> None:
    np.save(tmp_path / "a.npy", jg.tensor(A))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), A)
    with pytest.raises(ConversionError):
        np.save(tmp_path / "b.npy", tracked())
    target, t = np.zeros(A.shape), tracked()
    with pytest.raises(ConversionError, match=r"jg\.full"):
        np.copyto(target, t)
    np.copyto(target, t.detach())
    np.testing.assert_array_equal(target, A)
    made = jg.zeros(A.shape)
    np.copyto(made, t)
    made.sum().backward()
    np.testing.assert_array_equal(t.grad.numpy(), np.ones(A.shape))


def test_other_array_types_have_their_say() -> None:
    class Other:
        __array_ufunc__: Any = None

        def __radd__(self, other: Any) -> str:
            return "mine"

        def __array_function__(self, *args: Any) -> str:
            return "theirs"

    class Loud:
        def __array_ufunc__(self, *args: Any, **kwargs: Any) -> str:
            return "loud"

    assert np.add(tracked(), Loud()) == "loud"
    assert np.add(Loud(), tracked()) == "loud"
    assert np.concatenate([tracked(), Other()]) == "theirs"


def test_adapters_know_every_operation_that_numpy_has() -> None:
    table = numpy_protocols._adapters()
    for name in public_names():
        found = resolve(name)
        if isinstance(found, np.ufunc):
            assert numpy_protocols._ufunc_operation(found) is not None
        elif callable(found) and not isinstance(found, type):
            assert found in table


# --------------------------------------------------------------------------- what NumPy never hands over

S, V = tracked(1.5), tracked([1.0, 2.0])
LEAKS: dict[str, Callable[[], Any]] = {
    "np.array(v)": lambda: np.array(V),
    "np.asarray(s)": lambda: np.asarray(S),
    "np.array([s])": lambda: np.array([S]),
    "np.array([s, s])": lambda: np.array([S, S]),
    "np.array([v, v])": lambda: np.array([V, V]),
    "np.array([[s], [1.0]])": lambda: np.array([[S], [1.0]]),
    "np.array([s], float)": lambda: np.array([S], float),
    "np.array([s], object)": lambda: np.array([S], object),
    "np.array((v, [1, 2]))": lambda: np.array((V, [1, 2])),
    "np.asanyarray, np.ascontiguousarray, np.require": lambda: np.ascontiguousarray(V),
    "np.stack([[s]])": lambda: np.stack([np.ones(1), [S]]),
    "np.full(n, s)": lambda: np.full(3, S),
    "np.full(shape, v)": lambda: np.full((2, 2), V),
    "np.arange(s)": lambda: np.arange(S),
    "np.arange(0, s, 1)": lambda: np.arange(0, S, 1),
    "np.float64(s)": lambda: np.float64(S),
    "np.float64(v)": lambda: np.float64(V),
    "np.bool_(s)": lambda: np.bool_(S),
    "array.dot(v)": lambda: np.eye(2).dot(V),
    "array[s]": lambda: A[S],
    "array[v]": lambda: A[V],
    "array[i, :] = v": lambda: np.zeros((2, 2)).__setitem__(0, V),
    "array.put": lambda: np.zeros(2).put([0], S),
    "array.take(v)": lambda: A.take(V),
    "array.searchsorted(s)": lambda: np.arange(3.0).searchsorted(S),
    "array.clip(s, 2)": lambda: np.arange(3.0).clip(S, 2),
    "np.vectorize": lambda: np.vectorize(lambda a: a)(V),
    "np.frompyfunc": lambda: np.frompyfunc(lambda a: a, 1, 1)(V),
    "np.fill_diagonal(array, s)": lambda: np.fill_diagonal(np.eye(2), S),
    "np.put(array, i, s)": lambda: np.put(np.zeros(2), [0], S),
    "np.place, np.putmask": lambda: np.putmask(np.zeros(2), [True, False], V),
    "np.r_[v, s]": lambda: np.r_[V, S],
    "np.c_[v, v]": lambda: np.c_[V, V],
    "np.poly1d([s])": lambda: np.poly1d([S]),
    "np.random.default_rng().normal(s)": lambda: np.random.default_rng(0).normal(S),
    "np.random.default_rng().choice(v)": lambda: np.random.default_rng(0).choice(V),
    "np.ma.array(v)": lambda: np.ma.array(V),
    "masked * v": lambda: np.ma.array([1.0, 2.0]) * V,
    "np.broadcast(v, a)": lambda: np.broadcast(V, A),
    "np.nditer(v)": lambda: np.nditer(V),
    "np.lib.stride_tricks.as_strided(v)": lambda: np.lib.stride_tricks.as_strided(V),
    "np.testing.assert_allclose(v, v)": lambda: np.testing.assert_allclose(V, V),
    "np.zeros(v)": lambda: np.zeros(V),
    "array.reshape(v)": lambda: np.zeros(2).reshape(V),
    "memoryview(v)": lambda: memoryview(V),  # type: ignore[arg-type]
    "np.frombuffer(v)": lambda: np.frombuffer(V),  # type: ignore[call-overload]
    "np.from_dlpack(v)": lambda: np.from_dlpack(V),
    "scipy.special.logsumexp(v)": lambda: special.logsumexp(V),
    "scipy.special.softmax(v)": lambda: special.softmax(V),
}


@pytest.mark.parametrize("name", LEAKS)
def test_nothing_leaks_out_of_the_graph(name: str) -> None:
    with pytest.raises((JitgradError, TypeError, ValueError)):
        LEAKS[name]()


@pytest.mark.parametrize(
    "name", [n for n in LEAKS if n.startswith("np.array") or n in ("np.full(n, s)", "array.dot(v)")]
)
def test_the_error_names_the_way_out(name: str) -> None:
    with pytest.raises(ConversionError, match=r"detach\(\)\.numpy\(\)"):
        LEAKS[name]()


def test_what_takes_numbers_warns() -> None:
    """``float(t)`` is what these call: the value goes in, with a warning."""
    for call in (
        lambda: np.zeros(2).__setitem__(0, S),
        lambda: np.zeros(2).fill(S),
        lambda: np.fromiter([S], float),
        lambda: np.zeros(2).sum(initial=S),
    ):
        with pytest.warns(GradientWarning, match=r"\.item\(\)"):
            call()


def test_what_is_untracked_goes_in_freely() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t = jg.tensor([1.0, 2.0])
        np.testing.assert_array_equal(np.array([t, t]), [[1.0, 2.0], [1.0, 2.0]])
        np.testing.assert_array_equal(np.full(2, t), [1.0, 2.0])
        np.testing.assert_array_equal(np.eye(2).dot(t), [1.0, 2.0])
        assert A[jg.tensor(1), jg.tensor(0)] == 3.0
        np.testing.assert_array_equal(A[jg.tensor([1, 0])], A[[1, 0]])
        assert A[jg.tensor(A > 3)].tolist() == [4.0]
        assert np.zeros(jg.tensor(3)).shape == (3,)
        with jg.no_grad():
            assert np.array([S, S]).tolist() == [1.5, 1.5]
