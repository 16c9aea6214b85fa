"""Indexing: every kind of index that NumPy takes, against NumPy; gradients of gathers by counting; bounds."""

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitgrad as jg
from jitgrad.core.aval import aval_of
from jitgrad.core.trace import trace
from jitgrad.errors import ArgumentError, GraphError, IndexingError, JitgradError, ShapeError, UnsupportedError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 5))
INDICES: list[Any] = [
    0,
    -1,
    np.int64(1),
    np.uint8(2),
    slice(None),
    slice(1, None),
    slice(None, None, -1),
    slice(5, 1, -2),
    slice(-2, None, 2),
    slice(7, 9),
    slice(np.int64(0), np.int64(2)),
    None,
    Ellipsis,
    [0, 2],
    [0, -1, 0],
    (0, 1),
    range(2),
    [],
    [[0], [1]],
    np.array(1),
    np.array([1, 1, 0]),
    np.array([[0, 1], [2, -1]]),
    np.array([0, 1], np.uint8),
    np.array([], np.int64),
    np.array([True, False, True]),
    [True, False, True],
    True,
    False,
    np.bool_(True),
    np.array(False),
    RNG.random((3, 4)) > 0.5,
    RNG.random((4, 5)) > 0.5,
    X > 0,
    np.zeros(0, bool),
    jg.tensor([0, 1]),
    jg.tensor(1),
    jg.tensor([True, False, True]),
    # what NumPy refuses
    3,
    -6,
    [5],
    1.0,
    np.array([0.5]),
    [0.0],
    "a",
    slice(0.5, None),
]


def plain(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(plain, index))
    return index.numpy() if isinstance(index, jg.Tensor) else index


def check_index(index: Any) -> None:
    """Values, shape and gradient as NumPy has them, or an error of the same family."""
    try:
        expected = X[plain(index)]
    except (IndexError, ValueError, TypeError) as error:
        with pytest.raises((type(error), JitgradError)) as caught:
            jg.tensor(X)[index]
        assert isinstance(caught.value, IndexError | TypeError | ValueError)
        return
    t = jg.tensor(X, requires_grad=True)
    result = t[index]
    assert result.shape == np.shape(expected)
    np.testing.assert_array_equal(result.detach().numpy(), expected)
    weights = np.random.default_rng(1).normal(size=np.shape(expected))
    (result * weights).sum().backward()
    # each element of X gets the weights of the places where its number turns up
    numbers = np.arange(X.size).reshape(X.shape)[plain(index)]
    counted = np.bincount(np.ravel(numbers), np.ravel(weights), X.size).reshape(X.shape)
    np.testing.assert_allclose(t.grad.numpy(), counted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("i", range(len(INDICES)))
def test_one_index(i: int) -> None:
    check_index(INDICES[i])


@pytest.mark.parametrize("i", range(len(INDICES)))
def test_two_indices(i: int) -> None:
    for j in range(
        i % 3, len(INDICES), 3
    ):  # a third of the pairs, all kinds among them; the fuzz below draws the others
        check_index((INDICES[i], INDICES[j]))


@given(st.lists(st.sampled_from(range(len(INDICES))), min_size=1, max_size=5))
def test_any_tuple_of_indices(chosen: list[int]) -> None:
    check_index(tuple(INDICES[i] for i in chosen))


def test_iteration_and_unpacking_give_tracked_views() -> None:
    t = jg.tensor(X, requires_grad=True)
    a, _, c = t
    (a * c).sum().backward()
    np.testing.assert_array_equal(t.grad[0].numpy(), X[2])
    np.testing.assert_array_equal(t.grad[1].numpy(), 0.0)
    assert np.shares_memory(a.detach().numpy(), t.detach().numpy())


def test_zero_dimensional_and_empty_arrays() -> None:
    s = jg.tensor(2.0)
    assert s[()].item() == 2.0
    assert s[None].shape == (1,)
    assert s[True].shape == (1,)
    assert s[np.array(False)].shape == (0,)
    assert s[...].shape == ()
    with pytest.raises(IndexingError):
        s[0]
    e = jg.zeros((0, 3))
    assert e[:, 1].shape == (0,)
    assert e[[]].shape == (0, 3)
    assert e[np.zeros((0, 3), bool)].shape == (0,)
    with pytest.raises(IndexingError):
        e[0]


@pytest.mark.parametrize("build", [lambda b: b.T, lambda b: b[::-1, ::2], lambda b: b[1:, None]])
def test_gathers_of_strided_arrays(build: Callable[[Any], Any]) -> None:
    base = RNG.normal(size=(6, 8))
    for index in ([0, 1], ([0, 1], [0, 0]), (slice(None), [0]), build(base) > 0.5, list(range(len(build(base)))) * 2):
        t = jg.tensor(base, requires_grad=True)
        result = build(t)[index]
        np.testing.assert_array_equal(result.detach().numpy(), build(base)[index])
        result.sum().backward()
        numbers = build(np.arange(base.size).reshape(base.shape))[index]
        np.testing.assert_array_equal(t.grad.numpy().ravel(), np.bincount(numbers.ravel(), minlength=base.size))


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint64, np.bool_])
def test_gathers_keep_the_dtype(dtype: Any) -> None:
    x = (RNG.normal(size=(4, 3)) * 3).astype(dtype)
    t = jg.tensor(x)
    for index in ([0, 2, 0], (slice(None), [1]), x > 0, (np.array([1, 2]), np.array([0, -1]))):
        assert t[index].dtype == dtype
        np.testing.assert_array_equal(t[index].numpy(), x[index])


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("extent", [2, 1_000_000])
@pytest.mark.parametrize("name", ["index", "take", "take along axis"])
def test_gradients_of_many_gathers_of_one_float32_keep_their_digits(name: str, extent: int, jitted: bool) -> None:
    gathers: dict[str, Callable[[Any, Any], Any]] = {
        "index": lambda t, where: t[where],
        "take": lambda t, where: jg.take(t[:, None], where, axis=0)[:, 0],
        "take along axis": lambda t, where: jg.take_along_axis(t, where, 0),
    }
    where = np.zeros(200_000, int)
    tenth = np.full(200_000, 0.1, np.float32)
    gradient = jg.grad(lambda t: (gathers[name](t, where) * tenth).sum())
    found = (jg.jit(gradient) if jitted else gradient)(np.ones(extent, np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], 200_000 * float(np.float32(0.1)), rtol=1e-6)
    assert not found[1:].any()


def test_repeated_indices_add_up_at_second_order() -> None:
    x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    rows = x[[0, 0, 2, 0]]
    (rows**3).sum().backward(create_graph=True)
    assert x.grad.tolist() == [9.0, 0.0, 27.0]
    first, x.grad = x.grad, None
    first.sum().backward()
    assert x.grad.tolist() == [18.0, 0.0, 18.0]


@pytest.mark.parametrize("make", [jg.tensor, np.array])
@pytest.mark.parametrize("use", [lambda x, i: x[i], lambda x, i: x[:, None][i], jg.take])
def test_an_index_changed_later_does_not_move_the_gradient(make: Any, use: Any) -> None:
    x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    index = make([0, 1])
    y = use(x, index)
    index += 1
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0]


def test_an_index_changed_after_a_write_does_not_move_the_gradient() -> None:
    x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    index = np.array([0, 1])
    c = x * 1.0
    c[index] = x[2]
    index += 1
    c.sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 3.0]


def test_no_index_costs_memory_of_the_size_of_the_array() -> None:
    x = jg.zeros(4_000_000).reshape(2000, 2000)
    rows = np.arange(10)
    x[rows, rows], x.T[rows], x.T[rows, rows], x[rows]  # kernels are compiled now
    tracemalloc.start()
    try:
        x[3:5, 1], x[rows, rows], x.T[rows, rows], x[rows], x.T[rows], x[:, 5][rows]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # x has 32 MB


# --------------------------------------------------------------------------- traced indices

TRACED = [0, -1, slice(None), slice(1, None), slice(None, None, -1), None, Ellipsis, np.array([1, 1, 0])]
TRACED += [np.array([[0, 1], [2, -1]]), np.array(1), np.array([2, 0, 1]), np.array([], int), np.array([[4]])]


@given(st.lists(st.sampled_from(TRACED), min_size=1, max_size=4).map(tuple))
def test_integers_that_are_traced(index: tuple[Any, ...]) -> None:
    arrays = [i for i in index if isinstance(i, np.ndarray)]

    def f(x: Any, *positions: Any) -> list[Any]:
        rest = iter(positions)
        return [x[tuple(next(rest) if isinstance(i, np.ndarray) else i for i in index)]]

    def run() -> np.ndarray:
        graph = trace(f, [aval_of(X), *map(aval_of, arrays)], "f")
        values: dict[Any, Any] = dict(zip(graph.inputs, [jg.tensor(a) for a in (X, *arrays)], strict=True))
        for node in graph.nodes:
            inputs = [values.get(i, getattr(i, "value", None)) for i in node.inputs]
            values[node.outputs[0]] = node.primitive(*inputs, **node.params)
        return values[graph.outputs[0]].numpy()

    try:
        expected = X[index]
    except IndexError:
        with pytest.raises(IndexError):
            run()
        return
    result = run()
    assert result.shape == np.shape(expected)
    np.testing.assert_array_equal(result, expected)


def test_a_traced_mask_says_what_to_do() -> None:
    def f(x: Any) -> list[Any]:
        return [x[x > 0]]

    with pytest.raises(UnsupportedError, match=r"jg\.where"):
        trace(f, [aval_of(X)], "f")
    with pytest.raises(GraphError):
        trace(lambda x: list(jg.nonzero(x)), [aval_of(X)], "f")


# --------------------------------------------------------------------------- functions

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "take flat": lambda xp, x: xp.take(x, [[0, 59], [-1, 0]]),
    "take axis": lambda xp, x: xp.take(x, [3, 0, 3], axis=1),
    "take scalar": lambda xp, x: xp.take(x, -1, axis=-1),
    "take method": lambda xp, x: x.take([1, 1], 0),
    "take wrap": lambda xp, x: xp.take(x, [7, -9], axis=1, mode="wrap"),
    "take clip": lambda xp, x: xp.take(x, [7, -9], axis=1, mode="clip"),
    "take nothing": lambda xp, x: xp.take(x, [], axis=1) if xp is jg else np.take(x, np.zeros(0, int), axis=1),
    "take_along_axis": lambda xp, x: xp.take_along_axis(x, np.array(np.argsort(X, axis=1)), axis=1),
    "take_along_axis broadcast": lambda xp, x: xp.take_along_axis(x, np.array([[[1, -1]], [[0, 0]], [[3, 3]]]), axis=2),
    "take_along_axis wider": lambda xp, x: xp.take_along_axis(x[:, :1], np.array([[[1], [0], [2], [2]]]), axis=0),
    "compress": lambda xp, x: xp.compress([False, True], x, axis=2),
    "compress flat": lambda xp, x: xp.compress(np.ravel(X) > 0, x),
    "extract": lambda xp, x: xp.extract(X > 0, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_against_numpy(name: str) -> None:
    f = FUNCTIONS[name]
    t = jg.tensor(X, requires_grad=True)
    result, expected = f(jg, t), f(np, X)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.detach().numpy(), expected)
    weights = RNG.normal(size=expected.shape)
    (result * weights).sum().backward()
    numbers = f(np, np.arange(X.size).reshape(X.shape))
    counted = np.bincount(numbers.ravel(), weights.ravel(), X.size).reshape(X.shape)
    np.testing.assert_allclose(t.grad.numpy(), counted, rtol=1e-12, atol=1e-12)


def test_places_of_elements_that_are_not_zero() -> None:
    x = np.round(X)
    for found, expected in zip(jg.nonzero(jg.tensor(x)), np.nonzero(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
        assert found.dtype == np.int64
    np.testing.assert_array_equal(jg.argwhere(x).numpy(), np.argwhere(x))
    np.testing.assert_array_equal(jg.flatnonzero(x).numpy(), np.flatnonzero(x))
    t = jg.tensor(x, requires_grad=True)
    assert not any(i.requires_grad for i in jg.nonzero(t))
    np.testing.assert_array_equal(t[jg.nonzero(t)].detach().numpy(), x[np.nonzero(x)])
    assert jg.argwhere(1.0).shape == (1, 0)


T = jg.tensor(X)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: T[3], IndexingError, "index 3 is out of bounds for axis 0 of extent 3"),
        (lambda: T[0, -5], IndexingError, "index -5 is out of bounds for axis 1 of extent 4"),
        (lambda: T[:, [4]], IndexingError, "index 4 is out of bounds for axis 1 of extent 4"),
        (lambda: T[[0], [-5]], IndexingError, "-5"),
        (lambda: T[0, 0, 0, 0], IndexingError, "too many indices"),
        (lambda: T[..., 0, ...], IndexingError, "single ellipsis"),
        (lambda: T[1.0], IndexingError, "not float"),
        (lambda: T["a"], IndexingError, "not str"),
        (lambda: T[jg.tensor(1.0)], IndexingError, "float64"),
        (lambda: T[:, [True, False]], IndexingError, "boolean index did not match"),
        (lambda: T[[0, 1], [0, 1, 2]], IndexingError, "shape mismatch"),
        (lambda: T[::0], ArgumentError, "zero"),
        (lambda: jg.take(T, 60), IndexingError, "60"),
        (lambda: jg.take(T, [4], axis=1), IndexingError, "axis 1 of extent 4"),
        (lambda: jg.take(T, 0.5), UnsupportedError, "float64"),
        (lambda: jg.take(T, 0, axis=3), ShapeError, "out of bounds"),
        (lambda: jg.take(T, 0, mode="no"), ArgumentError, "mode"),
        (lambda: jg.take(jg.zeros(0), 0, mode="wrap"), IndexingError, "no elements"),
        (lambda: jg.take_along_axis(T, [0], axis=0), ShapeError, "3 axes"),
        (lambda: jg.take_along_axis(T, np.full((1, 1, 1), 9), axis=0), IndexingError, "9"),
        (lambda: jg.take_along_axis(T, np.zeros((1, 3, 1), int), axis=0), ShapeError, "do not fit"),
        (lambda: jg.compress([[True]], T), ShapeError, "1-d"),
        (lambda: jg.compress([False] * 3 + [True], T, axis=0), IndexingError, "3"),
        (lambda: jg.nonzero(1.0), ShapeError, "atleast_1d"),
        (lambda: jg.select([], []), ArgumentError, "no conditions"),
        (lambda: jg.select([1.0], [2.0]), UnsupportedError, "boolean"),
    ],
)
def test_errors_say_what_is_wrong(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


# --------------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    "pair",
    list(itertools.product([0, slice(1, None), [0, 2, 0], X[:, 0, 0] > 0, None, ...], [slice(None), -1, [1]])),
)
def test_writing_with_the_same_indices(pair: tuple[Any, Any]) -> None:
    expected = X.copy()
    part = expected[pair]
    values = RNG.normal(size=part.shape)
    expected[pair] = values
    t = jg.tensor(X, requires_grad=True)
    v = jg.tensor(values, requires_grad=True)
    c = t * 1.0
    c[pair] = v
    np.testing.assert_array_equal(c.detach().numpy(), expected)
    weights = RNG.normal(size=X.shape)
    (c * weights).sum().backward()
    numbers = np.full(X.shape, -1)
    numbers[pair] = np.arange(values.size).reshape(values.shape)  # the last one written stays
    np.testing.assert_allclose(t.grad.numpy(), np.where(numbers < 0, weights, 0.0))
    kept = np.bincount(numbers[numbers >= 0], weights[numbers >= 0], values.size).reshape(values.shape)
    np.testing.assert_allclose(np.zeros(values.shape) if v.grad is None else v.grad.numpy(), kept)


# --------------------------------------------------------------------------- the same view again


@pytest.mark.parametrize(
    ("first", "wrong"),
    [
        (lambda x: x[1:], lambda x: x[1.0:]),
        (lambda x: x[:, 1:], lambda x: x[:, 1.0:]),
        (lambda x: x[1], lambda x: x[1.0]),
        (lambda x: x[1, 0], lambda x: x[1.0, 0]),
        (lambda x: x[2], lambda x: x[3]),
        (lambda x: x[2, 1], lambda x: x[2, 4]),
        (lambda x: x[::1], lambda x: x[::0]),
        (lambda x: x.reshape(2, 6), lambda x: x.reshape(2.0, 6)),
        (lambda x: x.reshape((2, 6)), lambda x: x.reshape((2.0, 6))),
        (lambda x: x.transpose(1, 0), lambda x: x.transpose(1.0, 0)),
        (lambda x: x.swapaxes(1, 0), lambda x: x.swapaxes(1.0, 0)),
        (lambda x: x.T, lambda x: x.transpose(0, 0)),
    ],
)
def test_an_equal_argument_of_a_wrong_type_stays_wrong(
    first: Callable[[Any], Any], wrong: Callable[[Any], Any]
) -> None:
    x = jg.tensor(X[:, :, 0]).requires_grad_()
    for _ in range(3):
        np.testing.assert_array_equal(first(x).detach().numpy(), first(X[:, :, 0]))
    for _ in range(2):
        with pytest.raises((JitgradError, IndexError, TypeError)):
            wrong(x)


@pytest.mark.parametrize(
    "index", [True, np.bool_(True), (True, 1), (1, True), (True, slice(1, None)), (np.int64(1), 1)]
)
def test_booleans_are_no_integers_after_equal_integers(index: Any) -> None:
    x = jg.tensor(X)
    for same in (1, (1, 1), (1, slice(1, None))):
        for _ in range(2):
            np.testing.assert_array_equal(x[same].numpy(), X[same])
    for _ in range(2):
        np.testing.assert_array_equal(x[index].numpy(), X[index])


class _Moving:
    """A bound that is another number each time."""

    def __init__(self) -> None:
        self.now = 0

    def __index__(self) -> int:
        return self.now


def test_a_bound_that_changes_is_read_each_time() -> None:
    at, tensor_bound = _Moving(), jg.tensor(0)
    for bound, move in ((at, lambda n: setattr(at, "now", n)), (tensor_bound, tensor_bound.fill_)):
        for n in (0, 1, 2, 1):
            move(n)
            for index in (slice(bound, None), (slice(bound, None), 0)):
                x = jg.tensor(X).requires_grad_()
                x[index].sum().backward()
                wanted = np.zeros_like(X)
                wanted[(slice(n, None), 0) if isinstance(index, tuple) else slice(n, None)] = 1
                np.testing.assert_array_equal(x.grad.numpy(), wanted)


def test_reshapes_of_other_strides_view_or_copy_each_for_itself() -> None:
    bases: list[Callable[[Any], Any]] = [lambda a: a[:, :, 0], lambda a: a[:, 0, :4], lambda a: a[..., 1][::-1]]
    for _ in range(2):
        for build in (*bases, *bases[::-1]):
            for shape in ((12,), (3, 2, 2), (2, 6)):
                array, tensor = X.copy(), jg.tensor(X)
                seen, mine = build(array).reshape(shape), build(tensor).reshape(*shape)
                assert np.shares_memory(mine.numpy(), tensor.numpy()) == np.shares_memory(seen, array)
                seen[...] = 7.0
                mine.fill_(7.0)
                np.testing.assert_array_equal(tensor.numpy(), array)


def _by_counting(uses: list[Callable[[Any], Any]], shape: tuple[int, ...]) -> Any:
    """How often the uses see each element, told by NumPy."""
    places = np.arange(np.prod(shape)).reshape(shape)
    return sum(np.bincount(np.asarray(u(places)).reshape(-1), minlength=places.size) for u in uses).reshape(shape)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("through", [lambda x: x, lambda x: x * 1.0], ids=["leaf", "node"])
def test_many_views_of_one_tensor_add_up(through: Callable[[Any], Any], dtype: Any) -> None:
    uses: list[Callable[[Any], Any]] = [
        lambda a: a[0],
        lambda a: a[1:],
        lambda a: a[::-1],
        lambda a: a[1, 2],
        lambda a: a[-1, :, ::-2],
        lambda a: a[2:2],
        lambda a: a[None, ..., 1],
        lambda a: a[0],
        lambda a: a[0][1],
        lambda a: a.T[1:],
        lambda a: a.diagonal(),
        lambda a: a.swapaxes(0, 1)[0],
        lambda a: a.reshape(12, 5)[3:7],
    ]
    wanted = _by_counting(uses, X.shape)
    for _ in range(4):  # the first times are run in other ways than the later ones
        x = jg.tensor(X.astype(dtype)).requires_grad_()
        seen: list[Any] = []
        x.register_hook(lambda g, seen=seen: seen.append(g.detach().numpy().copy()))
        base = through(x)
        parts = [u(base).sum() for u in uses]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        total.backward(retain_graph=True)
        np.testing.assert_array_equal(x.grad.numpy(), wanted)
        first = x.grad
        total.backward()
        np.testing.assert_array_equal(x.grad.numpy(), 2 * wanted)
        assert x.grad is first
        np.testing.assert_array_equal(seen[1], wanted)
        base = through(x)
        (once,) = jg.autograd.grad(sum((u(base) * u(base)).sum() for u in uses), x, create_graph=True)
        np.testing.assert_allclose(once.detach().numpy(), 2 * wanted * X.astype(dtype), rtol=1e-5)
        (twice,) = jg.autograd.grad(once.sum(), x)
        np.testing.assert_array_equal(twice.numpy(), 2 * wanted)


def test_gradients_of_leaves_do_not_share_memory_with_cotangents() -> None:
    given = jg.tensor([1.0, 2.0])
    x = jg.tensor([1.0, 2.0, 3.0]).requires_grad_()
    y = jg.tensor([1.0, 2.0, 3.0]).requires_grad_()
    for _ in range(4):
        x.grad = y.grad = None
        (x[:2] + x[1:] + y[1:]).backward(given)
        np.testing.assert_array_equal(x.grad.numpy(), [1.0, 3.0, 2.0])
        np.testing.assert_array_equal(y.grad.numpy(), [0.0, 1.0, 2.0])
        np.testing.assert_array_equal(given.numpy(), [1.0, 2.0])
        x.grad.fill_(5.0)
        np.testing.assert_array_equal(y.grad.numpy(), [0.0, 1.0, 2.0])


def test_views_that_were_taken_eagerly_are_recorded_while_a_function_is_traced() -> None:
    captured = jg.tensor(X)
    uses: list[Callable[[Any], Any]] = [
        lambda a: a[0, 1],
        lambda a: a[1, ::-1],
        lambda a: a.T[:, 1, 0],
        lambda a: a[2][3],
    ]
    for use in uses:
        for _ in range(3):
            use(captured)
        compiled = jg.jit(lambda x, use=use: x * use(captured))
        for value in (2.0, 5.0):
            captured.fill_(value)
            np.testing.assert_array_equal(compiled(jg.tensor(3.0)).numpy(), 3.0 * use(np.full_like(X, value)))


def test_views_under_no_grad_after_recorded_ones() -> None:
    x = jg.tensor(X).requires_grad_()
    for use in (lambda a: a[1], lambda a: a[1:, 2], lambda a: a.T, lambda a: a.reshape(60)):
        for _ in range(2):
            assert use(x).requires_grad
            with jg.no_grad():
                view = use(x)
                assert not view.requires_grad
                assert np.shares_memory(view.numpy(), x.detach().numpy())
        base = jg.tensor(X) * 1.0
        with jg.no_grad():
            use(base)
            view = use(base)
        with pytest.raises(JitgradError, match="no_grad"):
            view.copy_(use(x))
