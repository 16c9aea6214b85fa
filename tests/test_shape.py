"""Shape movement and joining: values and views as in NumPy, gradients against differences of the same NumPy code."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jitgrad as jg
from jitgrad.errors import ArgumentError, DtypeError, InPlaceError, ShapeError, UnsupportedError

RNG = np.random.default_rng(0)
A34 = RNG.normal(size=(3, 4))
A234 = RNG.normal(size=(2, 3, 4))


def differences(f: Callable[[Any], Any], x: np.ndarray, step: float = 0.25) -> np.ndarray:
    """Central differences of a scalar function of an array; exact for polynomials of degree two."""
    result = np.zeros(x.shape)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        result[i] = (f(up) - f(down)) / (2 * step)
    return result


def check(f: Callable[[Any, Any], Any], x: np.ndarray, *, power: int = 2) -> None:
    """``f(namespace, array)``: the same code on ndarrays and tensors gives the same values, and right gradients."""
    t = jg.tensor(x, requires_grad=True)
    result = f(jg, t)
    expected = np.asarray(f(np, x.copy()))
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result.detach().numpy(), expected)
    weights = np.random.default_rng(1).normal(size=expected.shape)
    ((result if power == 1 else result * result) * weights).sum().backward()
    numeric = differences(lambda a: (np.asarray(f(np, a)) ** power * weights).sum(), x)
    np.testing.assert_allclose(t.grad.numpy(), numeric, rtol=1e-9, atol=1e-9)


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda xp, x: xp.reshape(x, (4, -1)),
    "reshape F": lambda xp, x: xp.reshape(x, (2, 6), order="F"),
    "method reshape": lambda xp, x: x.reshape(2, 6) + x.reshape((2, 6)) * 2.0,
    "reshape of a transpose": lambda xp, x: x.T.reshape(2, 6),
    "ravel": lambda xp, x: xp.ravel(x),
    "ravel F": lambda xp, x: x.ravel("F"),
    "flatten": lambda xp, x: x.flatten(),
    "expand_dims": lambda xp, x: xp.expand_dims(x, (0, -1)),
    "squeeze": lambda xp, x: xp.squeeze(xp.expand_dims(x, (0, 2)), axis=2),
    "squeeze all": lambda xp, x: x[None, :, None].squeeze(),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x[:, None], (2, 3, 5, 4)),
    "broadcast_arrays": lambda xp, x: xp.stack(xp.broadcast_arrays(x, x[0], x[:, :1])),
    "transpose": lambda xp, x: xp.transpose(x),
    "method transpose": lambda xp, x: x[None].transpose(2, 0, 1) + x[None].transpose((2, 0, 1)),
    "T and mT": lambda xp, x: x[None].T[:, :, 0] + x[None].mT[0],
    "permute_dims": lambda xp, x: xp.permute_dims(x[None], (1, 2, 0)),
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x[None]),
    "swapaxes": lambda xp, x: xp.swapaxes(x[None], 0, -1),
    "moveaxis": lambda xp, x: xp.moveaxis(x[None], (0, 2), (-1, 0)),
    "flip": lambda xp, x: xp.flip(x, 0) + xp.fliplr(x) * xp.flipud(x),
    "flip all": lambda xp, x: xp.flip(x),
    "rot90": lambda xp, x: xp.rot90(x) + xp.rot90(x, -3),
    "rot90 twice": lambda xp, x: xp.rot90(x, 2) * xp.rot90(x, 4),
    "roll": lambda xp, x: xp.roll(x, 5) + xp.roll(x, -1, axis=1) + xp.roll(x, (1, 2), axis=(0, 1)),
    "roll twice along one axis": lambda xp, x: xp.roll(x, (1, 1), axis=(1, 1)),
    "tile": lambda xp, x: xp.tile(x, (2, 1, 3)),
    "tile nothing": lambda xp, x: xp.concatenate([xp.tile(x, (0, 1)), x]),
    "repeat": lambda xp, x: xp.repeat(x, 3),
    "repeat each": lambda xp, x: xp.repeat(x, [2, 0, 1], axis=0),
    "concat": lambda xp, x: xp.concatenate([x, x[:1], x * 2.0]),
    "concat last": lambda xp, x: xp.concat([x, x[:, 1:2]], axis=-1),
    "concat flat": lambda xp, x: xp.concatenate([x, x[0]], axis=None),
    "block": lambda xp, x: xp.block([[x, x[:, :1]], [x[0], 2]]),
    "block of higher ranks": lambda xp, x: xp.block([[x[None], x[0, 0] * xp.ones((3, 1))], [x[1], x[1, :1]]]),
    "block 1d": lambda xp, x: xp.block([x[0], x[0, 0], x[1]]),
    "block, deep": lambda xp, x: xp.block([[[x], [x[0]]]]),
    "block of one": lambda xp, x: xp.block(x),
    "ediff1d": lambda xp, x: xp.ediff1d(x * 1),
    "ediff1d with ends": lambda xp, x: xp.ediff1d(x[0] * 1, x[1:], x[0, 0]),
    "ediff1d of one": lambda xp, x: xp.ediff1d(x[0, :1] * 1, to_begin=x[0, 1]),
    "stack": lambda xp, x: xp.stack([x, x[::-1]], axis=1),
    "hstack": lambda xp, x: xp.hstack([x, x[:, :2]]),
    "hstack 1d": lambda xp, x: xp.hstack([x[0], x[1]]),
    "vstack": lambda xp, x: xp.vstack([x, x[0]]),
    "dstack": lambda xp, x: xp.dstack([x, x]),
    "column_stack": lambda xp, x: xp.column_stack([x, x[:, 0]]),
    "append": lambda xp, x: xp.append(x, x[:1], axis=0),
    "split": lambda xp, x: xp.split(x, 2, axis=1)[1] * xp.split(x, [1], axis=1)[0],
    "array_split": lambda xp, x: xp.array_split(x, 3, axis=1)[0],
    "hsplit": lambda xp, x: xp.hsplit(x, 2)[0],
    "vsplit": lambda xp, x: xp.vsplit(x, [1, 2])[1],
    "unstack": lambda xp, x: xp.unstack(x, axis=1)[2] * xp.unstack(x)[0][1],
    "delete": lambda xp, x: xp.delete(x, [0, 2], axis=1),
    "tril": lambda xp, x: xp.tril(x) + xp.triu(x, 1) * 3.0,
    "tril of a row": lambda xp, x: xp.tril(x[0], 1),
    "diagonal": lambda xp, x: xp.diagonal(x, 1) + x.diagonal(-1)[0],
    "diag": lambda xp, x: xp.diag(x[0], -1) + 0.5 * xp.diag(xp.diag(x.repeat(2, 0)[:5], 0), 1),
    "diagflat": lambda xp, x: xp.diagflat(x[:2, :2], 1),
    "trace": lambda xp, x: xp.trace(x, 1),
    "meshgrid": lambda xp, x: xp.stack(xp.meshgrid(x[0], x[1, :3])),
    "meshgrid ij": lambda xp, x: xp.stack(xp.meshgrid(x[0], x[1], x[2], indexing="ij")),
    "meshgrid sparse": lambda xp, x: xp.multiply(*xp.meshgrid(x[0], x[1, :3], sparse=True)),
    "atleast": lambda xp, x: xp.atleast_3d(x)[:, :, 0] + xp.atleast_2d(x[0]) + xp.atleast_1d(x[0, 0]),
    "pad": lambda xp, x: xp.pad(x, ((1, 0), (2, 3))),
    "pad constant": lambda xp, x: xp.pad(x, 1, constant_values=((1.0, 2.0), (3.0, 4.0))),
    "pad edge": lambda xp, x: xp.pad(x, (1, 3), mode="edge"),
    "pad reflect": lambda xp, x: xp.pad(x, (2, 7), mode="reflect"),
    "pad symmetric": lambda xp, x: xp.pad(x, 5, mode="symmetric"),
    "pad wrap": lambda xp, x: xp.pad(x, ((0, 4), (5, 1)), mode="wrap"),
    "pad nothing": lambda xp, x: xp.pad(x, 0),
    "select": lambda xp, x: xp.select([np.eye(3, 4) > 0, np.ones(4) > 0], [x, x * 2.0], 7.0),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_of_the_same_code(case: str) -> None:
    check(CASES[case], A34)


FLOATS_INSIDE = ("pad constant", "select", "diag", "method reshape", "tril", "trace")


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("case", [c for c in CASES if not any(c.startswith(k) for k in FLOATS_INSIDE)])
def test_dtypes_are_those_of_numpy(case: str, dtype: Any) -> None:
    x = (RNG.normal(size=(3, 4)) * 3).astype(dtype)
    with np.errstate(all="ignore"):
        expected = np.asarray(CASES[case](np, x))
        result = CASES[case](jg, jg.tensor(x))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result.numpy(), expected)


def test_blocks_and_differences_under_jit_and_vmap() -> None:
    x = np.arange(6.0).reshape(2, 3) ** 2
    blocks = lambda xp, v: xp.block([[v, 1], [2.0 * v, v[0]]])  # noqa: E731
    for f in (blocks, lambda xp, v: xp.ediff1d(v, to_begin=v[:2])):
        expected = np.stack([f(np, v) for v in x])
        np.testing.assert_array_equal(jg.vmap(lambda v, f=f: f(jg, v))(x), expected)
        np.testing.assert_array_equal(jg.jit(lambda v, f=f: f(jg, v))(x[0]), expected[0])
        np.testing.assert_array_equal(jg.jit(lambda v, f=f: f(np, v))(x[0]), expected[0])
    assert jg.ediff1d(np.float32([1, 3]), to_end=1.5).dtype == np.ediff1d(np.float32([1, 3]), to_end=1.5).dtype
    assert jg.ediff1d(np.int8([1, 3]), to_end=1).dtype == np.ediff1d(np.int8([1, 3]), to_end=1).dtype
    assert jg.block([np.float32([1]), np.int8([2])]).dtype == np.block([np.float32([1]), np.int8([2])]).dtype


def test_joining_promotes_and_gradients_come_back_in_each_dtype() -> None:
    a = jg.tensor(np.ones(2, np.float32), requires_grad=True)
    b = jg.tensor([1.0], requires_grad=True)
    joined = jg.concat([a, b, np.array([3], np.int8)])
    assert joined.dtype == np.float64
    (joined * np.array([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert a.grad.dtype == np.float32
    assert a.grad.tolist() == [1.0, 2.0]
    assert b.grad.tolist() == [3.0]
    assert jg.stack([a, a], dtype=np.float64).dtype == np.float64


# --------------------------------------------------------------------------- views

VIEWS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda b: b.reshape(2, 6),
    "ravel": lambda b: b.ravel(),
    "T": lambda b: b.T,
    "mT": lambda b: b.mT,
    "swapaxes": lambda b: b.swapaxes(0, 1),
    "flip": lambda b: b[::-1, ::-1],
    "expand_dims": lambda b: b[:, None],
    "squeeze": lambda b: b[None].squeeze(0),
    "split": lambda b: np.split(b, 2, axis=1)[1],
    "unstack": lambda b: np.unstack(b)[1],
    "slices": lambda b: b[1:, ::2],
    "chain": lambda b: b.T[1:].reshape(3, 3)[::-1],
}


@pytest.mark.parametrize("name", [n for n in VIEWS if n != "chain"])
def test_views_share_memory(name: str) -> None:
    base = jg.tensor(A34)
    assert np.shares_memory(VIEWS[name](base).numpy(), base.numpy())


@pytest.mark.parametrize("name", VIEWS)
def test_writes_through_views_keep_gradients_right(name: str) -> None:
    view = VIEWS[name]

    def f(xp: Any, x: Any) -> Any:
        base = x * 1.0
        part = view(base)
        part *= 3.0
        part[0] = part[-1] * x[0, 0]
        return base * 2.0 + x

    check(f, A34, power=1)


@pytest.mark.parametrize("flipped", [lambda b: jg.flip(b, 1), jg.fliplr, lambda b: jg.rot90(b, 2)[::-1]])
def test_flip_is_a_view(flipped: Callable[[Any], Any]) -> None:
    base = jg.zeros((2, 3))
    flipped(base)[:, 0] = 1.0
    assert base.tolist() == [[0.0, 0.0, 1.0]] * 2


def test_diagonal_and_broadcasts_are_read_only() -> None:
    x = jg.tensor(A34)
    for view in (x.diagonal(), jg.diag(x), jg.broadcast_to(x, (2, 3, 4))):
        assert np.shares_memory(view.numpy(), x.numpy())
        with pytest.raises(InPlaceError):
            view[0] = 1.0


def test_copies_are_copies() -> None:
    x = jg.tensor(A34)
    copies = [
        x.flatten(),
        x.copy(),
        jg.roll(x, 0),
        jg.pad(x, 0),
        jg.tile(x, 1),
        x.repeat(1),
        jg.reshape(x, -1, copy=True),
    ]
    copies += list(jg.meshgrid(x[0]))
    for made in copies:
        assert not np.shares_memory(made.numpy(), x.numpy())
    with pytest.raises(ArgumentError):
        x.T.reshape(12, copy=False)


def test_structural_zeros_pass_through_movement() -> None:
    for move in (
        lambda y: y[1:],
        lambda y: jg.flip(y)[:-1],
        lambda y: jg.split(y, [1])[1],
        lambda y: jg.roll(y, -1)[:-1],
        lambda y: jg.expand_dims(y, 1).T[0, 1:],
        lambda y: jg.take(y, [1, 2]),
        lambda y: jg.delete(y, 0),
        lambda y: jg.concat([y, y])[1:3],
        lambda y: jg.stack([y, y])[:, 1:].sum(0),
        lambda y: jg.triu(y[None], 1),
        lambda y: jg.diag(y)[1:, 1:],
    ):
        x = jg.tensor([0.0, 1.0, 4.0], requires_grad=True)
        move(jg.sqrt(x)).sum().backward()
        assert x.grad[0].item() == 0.0  # not the NaN of 0 * inf
        assert np.isfinite(x.grad.numpy()).all()


def test_second_order_through_movement() -> None:
    x = jg.tensor(A34, requires_grad=True)
    y = jg.concat([x.T.reshape(3, 4), jg.roll(x, 1)]) ** 3
    y.sum().backward(create_graph=True)
    first = x.grad
    x.grad = None
    (first * first).sum().backward()
    # the sum of (6 x**2)**2 has the derivative 144 x**3
    np.testing.assert_allclose(x.grad.numpy(), 144 * A34**3, rtol=1e-12)


# --------------------------------------------------------------------------- sizes


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3), elements=st.floats(-9, 9)),
    st.data(),
)
def test_any_shape(x: np.ndarray, data: st.DataObject) -> None:
    t = jg.tensor(x)

    def same(result: Any, expected: Any) -> None:
        assert result.shape == np.shape(expected)
        np.testing.assert_array_equal(result.numpy(), expected)

    same(jg.ravel(t), np.ravel(x))
    same(t.T, x.T)
    same(jg.flip(t), np.flip(x))
    same(jg.squeeze(t), np.squeeze(x))
    same(jg.atleast_3d(t), np.atleast_3d(x))
    same(jg.tile(t, 2), np.tile(x, 2))
    same(jg.repeat(t, 2), np.repeat(x, 2))
    same(jg.roll(t, 2), np.roll(x, 2))
    same(jg.pad(t, 1), np.pad(x, 1))
    same(jg.stack([t, t], -1), np.stack([x, x], -1))
    if x.ndim:
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
        other = data.draw(st.integers(-x.ndim, x.ndim - 1))
        same(jg.flip(t, axis), np.flip(x, axis))
        same(jg.concat([t, t], axis), np.concatenate([x, x], axis))
        same(jg.swapaxes(t, axis, other), np.swapaxes(x, axis, other))
        same(jg.moveaxis(t, axis, other), np.moveaxis(x, axis, other))
        for part, expected in zip(jg.array_split(t, 2, axis), np.array_split(x, 2, axis), strict=True):
            same(part, expected)
        widths = [(data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))) for _ in x.shape]
        for mode in ("edge", "reflect", "symmetric", "wrap"):
            if x.size:
                same(jg.pad(t, widths, mode=mode), np.pad(x, widths, mode=mode))
        if x.ndim > 1:
            k = data.draw(st.integers(-4, 4))
            same(jg.tril(t, k), np.tril(x, k))
            same(jg.triu(t, k), np.triu(x, k))
            same(jg.rot90(t, k), np.rot90(x, k))
            if axis % x.ndim != other % x.ndim:
                same(jg.diagonal(t, k, axis, other), np.diagonal(x, k, axis, other))
                same(jg.rot90(t, k, (axis, other)), np.rot90(x, k, (axis, other)))


@pytest.mark.parametrize("name", ["split", "array_split", "hsplit", "vsplit"])
def test_a_number_of_parts_may_be_an_array(name: str) -> None:
    x = np.arange(16.0).reshape(4, 4)
    for sections in (np.array(2), np.int64(2), np.array([2]), np.array([1, 3])):
        expected = getattr(np, name)(x, sections)
        for counts in (sections, jg.tensor(sections)):
            eager = getattr(jg, name)(jg.tensor(x), counts)
            jitted = jg.jit(lambda x, counts=counts: getattr(jg, name)(x, counts))(jg.tensor(x))
            for parts in (eager, jitted):
                for part, of_numpy in zip(parts, expected, strict=True):
                    np.testing.assert_array_equal(part.numpy(), of_numpy)
    last = jg.grad(lambda x: (getattr(jg, name)(x, np.array(2))[1] * 3.0).sum())(x)
    np.testing.assert_array_equal(last, np.where(np.isin(x, getattr(np, name)(x, 2)[1]), 3.0, 0.0))


# --------------------------------------------------------------------------- errors

X = jg.tensor(A34)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: X.reshape(5, -1), ShapeError, "12 elements"),
        (lambda: X.reshape(-1, -1), ShapeError, "only one"),
        (lambda: X.reshape(7), ShapeError, "12 elements"),
        (lambda: X.reshape(-2, -6), ShapeError, "12"),
        (lambda: X.reshape(2.0, 6), UnsupportedError, "integer"),
        (lambda: X.reshape(12, order="K"), ArgumentError, "order"),
        (lambda: jg.zeros((0, 3)).reshape(-1, 0), ShapeError, "fill"),
        (lambda: X.transpose(0, 0), ShapeError, "swapaxes"),
        (lambda: X.transpose(0), ShapeError, "order"),
        (lambda: jg.tensor(A234).transpose(0, 1), ShapeError, "swapaxes"),
        (lambda: jg.matrix_transpose([1.0]), ShapeError, "2 axes"),
        (lambda: jg.squeeze(X, 0), ShapeError, "extent"),
        (lambda: jg.squeeze(X, 2), ShapeError, "out of bounds"),
        (lambda: jg.expand_dims(X, 3), ShapeError, "out of bounds"),
        (lambda: jg.expand_dims(X, (0, 0)), ArgumentError, "twice"),
        (lambda: jg.broadcast_to(X, (3, 5)), ShapeError, "does not broadcast"),
        (lambda: jg.broadcast_to(X, (-1, 4)), ShapeError, "negative"),
        (lambda: jg.broadcast_shapes((2,), (3,)), ShapeError, "do not broadcast"),
        (lambda: jg.moveaxis(X, 0, 2), ShapeError, "out of bounds"),
        (lambda: jg.moveaxis(X, (0, 1), 0), ArgumentError, "destinations"),
        (lambda: jg.concat([]), ShapeError, "nothing"),
        (lambda: jg.concat([1.0, 2.0]), ShapeError, "stack"),
        (lambda: jg.concat([X, X.T]), ShapeError, "differ"),
        (lambda: jg.concat([X, X[0]]), ShapeError, "differ"),
        (lambda: jg.concat([X], axis=2), ShapeError, "out of bounds"),
        (lambda: jg.concat(3), UnsupportedError, "sequence"),
        (lambda: jg.concat(a for a in (X, X)), UnsupportedError, "sequence"),
        (lambda: jg.concat([X], dtype=np.float16), DtypeError, "float16"),
        (lambda: jg.stack([X, X.T]), ShapeError, "one shape"),
        (lambda: jg.stack([X], axis=3), ShapeError, "out of bounds"),
        (lambda: jg.split(X, 3, axis=1), ShapeError, "array_split"),
        (lambda: jg.split(X, 0), ArgumentError, "positive"),
        (lambda: jg.split(X, [0.5]), UnsupportedError, "integers"),
        (lambda: jg.vsplit(X[0], 2), ShapeError, "2 axes"),
        (lambda: jg.roll(X, (1, 2, 3), axis=(0, 1)), ArgumentError, "shifts"),
        (lambda: jg.tile(X, -1), ArgumentError, "negative"),
        (lambda: jg.repeat(X, [1, 2], axis=0), ShapeError, "extent 3"),
        (lambda: jg.repeat(X, -1), ArgumentError, "negative"),
        (lambda: jg.pad(X, -1), ArgumentError, "negative"),
        (lambda: jg.pad(X, ((1, 1), (1, 1), (1, 1))), ShapeError, "2 axes"),
        (lambda: jg.pad(X, 1, mode="median"), UnsupportedError, "median"),
        (lambda: jg.pad(X, 1.5), UnsupportedError, "integers"),
        (lambda: jg.pad(jg.zeros(0), 1, mode="edge"), ShapeError, "no elements"),
        (lambda: jg.block([]), ShapeError, "arrays is empty"),
        (lambda: jg.block([[]]), ShapeError, r"arrays\[0\] is empty"),
        (lambda: jg.block([[1], 2]), ShapeError, "different depths: 0, 1"),
        (lambda: jg.block([(1, 2)]), UnsupportedError, r"arrays\[0\] is a tuple"),
        (lambda: jg.block([[X], [X[:, 1:]]]), ShapeError, "differ"),
        (lambda: jg.ediff1d([True, False]), DtypeError, "bool"),
        (lambda: jg.ediff1d([1, 2], to_end=0.5), DtypeError, "to_end"),
        (lambda: jg.ediff1d([1, 2], to_begin=[0.5]), DtypeError, "to_begin"),
        (lambda: jg.diagonal([1.0]), ShapeError, "2 axes"),
        (lambda: jg.diagonal(X, 0, 1, -1), ArgumentError, "both"),
        (lambda: jg.diag(1.0), ShapeError, "axes"),
        (lambda: jg.rot90(X, axes=(0, 0)), ArgumentError, "twice"),
        (lambda: jg.meshgrid([1.0], indexing="zz"), ArgumentError, "indexing"),
        (lambda: jg.tril(1.0), ShapeError, "scalar"),
        (lambda: jg.astype(X, np.complex128), DtypeError, "complex"),
    ],
)
def test_errors_say_what_is_wrong(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_parts_of_a_stack_stay_unaliased() -> None:
    parts = [jg.tensor(A34[i], requires_grad=True) * 1.0 for i in range(3)]
    stacked = jg.stack(parts)
    parts[0].mul_(5.0)
    np.testing.assert_array_equal(stacked.detach().numpy(), A34)
    assert not any(np.shares_memory(p.detach().numpy(), stacked.detach().numpy()) for p in parts)
