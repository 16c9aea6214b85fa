"""Making tensors: of data of every kind, of shapes, of ranges; what is refused; what stays tracked."""

import array
import fractions
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.errors import ArgumentError, DtypeError, GradientWarning, ShapeError, UnsupportedError


class Frame:
    """Something with ``__array__``, as a data frame."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.data)


class Subclass(np.ndarray):
    pass


def misaligned() -> np.ndarray:
    return np.frombuffer(bytearray(17), np.uint8)[1:17].view(np.float64)


def between_bytes() -> np.ndarray:
    return np.zeros(3, dtype=[("a", "u1"), ("b", "f8")])["b"]


def read_only() -> np.ndarray:
    made = np.arange(3.0)
    made.flags.writeable = False
    return made


DATA: list[Any] = [
    1,
    True,
    1.5,
    -0.0,
    float("nan"),
    2**63,
    [],
    [[]],
    [[], []],
    [1, 2.5],
    [True, 2],
    (1, (2,), 3)[:1],
    [[1, 2], (3, 4)],
    [-1, 2**63],
    range(3),
    array.array("d", [1, 2]),
    np.float32(2),
    np.int8(-3),
    np.bool_(True),
    [np.float32(1), np.float32(2)],
    [np.float32(1), 2.0],
    [np.ones(2), np.zeros(2)],
    np.zeros((0, 3)),
    np.array(1.0),
    np.arange(6.0)[::-2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.broadcast_to(1.0, (2, 2)),
    np.arange(3.0).astype(">f8"),
    np.arange(3).astype(">i4"),
    misaligned(),
    between_bytes(),
    read_only(),
    np.arange(3.0).view(Subclass),
    Frame([1.0, 2.0]),
    [Frame([1.0, 2.0]), Frame([3.0, 4.0])],
    memoryview(b"ab"),
]


@pytest.mark.parametrize("make", [jg.tensor, jg.asarray], ids=["tensor", "asarray"])
@pytest.mark.parametrize("i", range(len(DATA)))
def test_data_as_numpy_understands_it(make: Callable[[Any], Any], i: int) -> None:
    expected = np.asarray(DATA[i])
    made = make(DATA[i])
    assert made.dtype == expected.dtype.newbyteorder("=")
    assert made.shape == expected.shape
    np.testing.assert_array_equal(made.numpy(), expected)
    assert not made.requires_grad


@pytest.mark.parametrize("i", range(len(DATA)))
def test_tensor_copies_and_can_be_written(i: int) -> None:
    made = jg.tensor(DATA[i])
    if isinstance(DATA[i], np.ndarray):
        assert not np.shares_memory(made.numpy(), DATA[i])
    made[...] = 1
    assert (made.numpy() == 1).all()


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (1 + 2j, DtypeError, "complex"),
    ([1j], DtypeError, "complex128"),
    (np.zeros(2, complex), DtypeError, "complex128"),
    (np.float16(1), DtypeError, "float16"),
    (np.zeros(2, np.float16), DtypeError, "float16"),
    (np.zeros(2, np.longdouble), DtypeError, "float"),
    (None, DtypeError, "object"),
    ([1, None], DtypeError, "object"),
    (np.array([1, None], object), DtypeError, "object"),
    ("abc", DtypeError, "U3"),
    (["a", "b"], DtypeError, "U1"),
    ([1, "a"], DtypeError, "U"),
    (b"abc", DtypeError, "S3"),
    (np.array(["2020"], "M8[D]"), DtypeError, "datetime64"),
    (np.zeros(2, dtype=[("a", "f8")]), DtypeError, "f8"),
    ([[1, 2], [3]], ShapeError, "ragged"),
    ([1, [2]], ShapeError, "ragged"),
    (10**30, DtypeError, "does not fit"),
    ([10**30], DtypeError, "object"),
    ({1, 2}, DtypeError, "object"),
    ({1: 2}, DtypeError, "object"),
    ((i for i in range(3)), DtypeError, "object"),
    (fractions.Fraction(1, 2), DtypeError, "object"),
    (Frame([1, None]), DtypeError, "object"),
    (len, DtypeError, "object"),
    (np.ma.array([1.0, 2.0], mask=[0, 1]), DtypeError, "masked"),
]


@pytest.mark.parametrize("make", [jg.tensor, jg.asarray], ids=["tensor", "asarray"])
@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_what_is_refused(make: Callable[[Any], Any], i: int) -> None:
    data, error, match = REFUSED[i]
    with pytest.raises(error, match=match):
        make(data)
    if not isinstance(data, int):  # as an operand beside floats a large int is a float
        with pytest.raises((TypeError, ValueError)):
            jg.tensor([1.0, 2.0]) * data


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_matrices_are_refused_because_their_product_means_something_else() -> None:
    matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    for use in (jg.tensor, jg.asarray, jg.from_numpy, lambda m: jg.eye(2) * m, lambda m: m * jg.eye(2)):
        with pytest.raises(DtypeError, match=r"np\.matrix"):
            use(matrix)


def test_an_explicit_dtype_converts_other_real_numbers() -> None:
    for data in (np.array([1.5, 2.0], np.float16), np.array([1.5, fractions.Fraction(2)], object)):
        made = jg.tensor(data, dtype=np.float32)
        assert made.dtype == np.float32
        assert made.tolist() == [1.5, 2.0]
    with pytest.raises(DtypeError, match="do not convert"):
        jg.tensor(np.array(["a"], object), dtype=float)
    with pytest.raises(DtypeError, match="complex"):
        jg.tensor([1j], dtype=float)
    assert jg.tensor([1.7, 2.2], dtype=int).tolist() == [1, 2]


# --------------------------------------------------------------------------- what is tracked


def test_lists_with_tracked_tensors_stay_tracked() -> None:
    a = jg.tensor(2.0, requires_grad=True)
    b = jg.tensor([1.0, 3.0], requires_grad=True)
    c = jg.tensor(np.float32(5.0), requires_grad=True)
    made = jg.tensor([[a, 1], b, (c, a * a), [b[0], np.float64(7.0)]])
    np.testing.assert_array_equal(made.detach().numpy(), [[2.0, 1.0], [1.0, 3.0], [5.0, 4.0], [1.0, 7.0]])
    (made * np.arange(8.0).reshape(4, 2)).sum().backward()
    assert a.grad.item() == 0.0 + 5.0 * 2 * 2.0
    assert b.grad.tolist() == [2.0 + 6.0, 3.0]
    assert c.grad.item() == 4.0
    assert c.grad.dtype == np.float32
    for make in (jg.asarray, jg.array, lambda d: jg.tensor(d, dtype=np.float32)):
        assert make([a, 1.0]).requires_grad


def test_ragged_lists_of_tensors() -> None:
    a = jg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(ShapeError, match="ragged"):
        jg.tensor([a, a[0]])


def test_a_tracked_tensor_is_copied_and_stays_tracked() -> None:
    a = jg.tensor([1.0, 2.0], requires_grad=True)
    copied = jg.tensor(a)
    assert not np.shares_memory(copied.detach().numpy(), a.detach().numpy())
    (copied * 3.0).sum().backward()
    assert a.grad.tolist() == [3.0, 3.0]
    assert jg.asarray(a) is a
    with pytest.warns(GradientWarning, match="new leaf"):
        leaf = jg.tensor(a, requires_grad=True)
    assert leaf.is_leaf
    with jg.no_grad():
        assert not jg.tensor(a).requires_grad
    assert not jg.tensor(a.detach()).requires_grad


# --------------------------------------------------------------------------- shared memory


@pytest.mark.parametrize(
    "make", [jg.from_numpy, jg.asarray, jg.from_dlpack], ids=["from_numpy", "asarray", "from_dlpack"]
)
def test_shared_memory_is_seen_from_both_sides(make: Callable[[Any], Any]) -> None:
    a = np.arange(6.0).reshape(2, 3)[:, ::-1]
    t = make(a)
    a[0, 0] = 10.0
    assert t[0, 0].item() == 10.0
    t[1] = 5.0
    assert a[1].tolist() == [5.0, 5.0, 5.0]


def test_from_numpy_takes_memory_as_it_is_or_raises() -> None:
    for data in (misaligned(), between_bytes(), np.arange(3.0).astype(">f8")):
        with pytest.raises(DtypeError, match="cannot be shared"):
            jg.from_numpy(data)
        with pytest.raises(ArgumentError, match="copy=False"):
            jg.asarray(data, copy=False)
    for data in (np.zeros(2, np.float16), np.array([1, None], object), np.ma.array([1.0])):
        with pytest.raises(DtypeError):
            jg.from_numpy(data)
    with pytest.raises(DtypeError, match=r"jg\.tensor"):
        jg.from_numpy([1.0])
    with pytest.raises(UnsupportedError, match="__dlpack__"):
        jg.from_dlpack([1.0])
    a = np.arange(3.0).view(Subclass)
    jg.from_numpy(a)[0] = 7.0
    assert a[0] == 7.0


def test_memory_maps_are_shared(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "data", np.float64, "w+", shape=(3,))
    t = jg.from_numpy(mapped)
    t[1] = 2.0
    assert mapped.tolist() == [0.0, 2.0, 0.0]


def test_copy_of_asarray() -> None:
    a = np.arange(3.0)
    assert np.shares_memory(jg.asarray(a, copy=False).numpy(), a)
    assert not np.shares_memory(jg.asarray(a, copy=True).numpy(), a)
    assert jg.asarray(a, np.float32).dtype == np.float32
    for data, dtype in ((a, np.float32), ([1.0], None), (1.0, None)):
        with pytest.raises(ArgumentError, match="copy=False"):
            jg.asarray(data, dtype, copy=False)
    t = jg.tensor(a)
    assert not np.shares_memory(jg.asarray(t, copy=True).numpy(), t.numpy())


# --------------------------------------------------------------------------- constants and ranges

MADE: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("zeros", (3,), {}),
    ("zeros", ((2, 3), np.int16), {}),
    ("zeros", ([2, 0],), {}),
    ("zeros", (np.array([2, 3]),), {}),
    ("ones", ((), bool), {}),
    ("ones", (np.int64(2),), {"dtype": np.float32}),
    ("full", ((2, 2), 7), {}),
    ("full", (2, 7.5), {"dtype": int}),
    ("full", ((2, 3), [1.0, 2.0, 3.0]), {}),
    ("full", (0, True), {}),
    ("arange", (5,), {}),
    ("arange", (1.5, 4), {}),
    ("arange", (5, 1, -2), {}),
    ("arange", (0, 1, 0.1), {}),
    ("arange", (3,), {"dtype": float}),
    ("arange", (5, 1), {}),
    ("linspace", (0, 1, 5), {}),
    ("linspace", (0.0, 1.0, 4), {"endpoint": False}),
    ("linspace", (2, 8, 3), {"dtype": int}),
    ("linspace", ([0, 1], [1, 3], 3), {"axis": -1}),
    ("linspace", (0, 1, 1), {}),
    ("linspace", (0, 1, 0), {}),
    ("logspace", (0, 2, 3), {}),
    ("logspace", (0, 3, 4), {"base": 2.0}),
    ("geomspace", (1, 8, 4), {}),
    ("eye", (3,), {}),
    ("eye", (2, 3, 1), {}),
    ("eye", (2,), {"k": -1, "dtype": int}),
    ("identity", (2,), {"dtype": np.float32}),
    ("tri", (3, 2, -1), {}),
    ("vander", ([1.0, 2.0, 3.0],), {}),
    ("vander", ([1, 2, 3], 2), {"increasing": True}),
    ("vander", ([1.0, 2.0], 0), {}),
    ("zeros_like", (np.ones((2, 3), np.float32),), {}),
    ("ones_like", ([1, 2],), {"dtype": float}),
    ("full_like", (np.ones(2, np.int8), 3.7), {}),
    ("zeros_like", ([1.0],), {"shape": (2, 2)}),
]


@pytest.mark.parametrize("i", range(len(MADE)))
def test_constants_and_ranges_are_those_of_numpy(i: int) -> None:
    name, args, kwargs = MADE[i]
    expected = getattr(np, name)(*args, **kwargs)
    made = getattr(jg, name)(*args, **kwargs)
    assert made.dtype == expected.dtype
    assert made.shape == expected.shape
    np.testing.assert_array_equal(made.numpy(), expected)


def test_empty() -> None:
    assert jg.empty((2, 3)).shape == (2, 3)
    assert jg.empty_like([1, 2]).dtype == np.int64


@pytest.mark.parametrize(
    "make",
    [
        lambda: jg.zeros(3, requires_grad=True),
        lambda: jg.ones((2, 2), np.float32, requires_grad=True),
        lambda: jg.full(2, 1.0, requires_grad=True),
        lambda: jg.arange(3.0, requires_grad=True),
        lambda: jg.linspace(0, 1, 3, requires_grad=True),
        lambda: jg.eye(2, requires_grad=True),
        lambda: jg.zeros_like([1.0], requires_grad=True),
        lambda: jg.empty(2, requires_grad=True),
    ],
)
def test_leaves(make: Callable[[], Any]) -> None:
    x = make()
    assert x.is_leaf
    assert x.requires_grad
    (x * 2.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(x.shape, 2.0))


def test_tracked_fill_values_and_bounds() -> None:
    v = jg.tensor(3.0, requires_grad=True)
    filled = jg.full((2, 3), v) + jg.full_like(jg.zeros(3), v * v)
    filled.sum().backward()
    assert v.grad.item() == 6.0 + 6 * 6.0
    filled[0, 0] = 1.0  # memory of its own

    low, high = jg.tensor([1.0, 2.0], requires_grad=True), jg.tensor(5.0, requires_grad=True)
    line = jg.linspace(low, high, 5)
    np.testing.assert_allclose(line.detach().numpy(), np.linspace([1.0, 2.0], 5.0, 5), rtol=1e-15)
    (line * np.arange(10.0).reshape(5, 2)).sum().backward()
    t = np.linspace(0, 1, 5)
    weights = np.arange(10.0).reshape(5, 2)
    np.testing.assert_allclose(low.grad.numpy(), (weights * (1 - t)[:, None]).sum(0))
    np.testing.assert_allclose(high.grad.item(), (weights * t[:, None]).sum())
    assert jg.linspace(low, 1.0, 3, axis=-1).shape == (2, 3)
    assert jg.linspace(np.float32(0), jg.tensor(np.float32(1)), 3).dtype == np.float32
    line, step = jg.linspace(low, high, 5, retstep=True)
    np.testing.assert_allclose(step.detach().numpy(), [1.0, 0.75])
    for exact in (jg.linspace(low, high, 7)[0], jg.linspace(low, high, 7)[-1]):
        assert exact.tolist() in ([1.0, 2.0], [5.0, 5.0])

    # the exponent of 10 has the derivative log(10) 10**x
    powers = jg.logspace(v, 1.0, 2)
    v.grad = None
    powers.sum().backward()
    np.testing.assert_allclose(v.grad.item(), np.log(10) * 1000, rtol=1e-12)


def test_vander_is_right_at_zero() -> None:
    x = jg.tensor([0.0, 2.0], requires_grad=True)
    (jg.vander(x, 4) * np.array([1.0, 10.0, 100.0, 1000.0])).sum().backward()
    assert x.grad.tolist() == [100.0, 3 * 4.0 + 10 * 4.0 + 100.0]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: jg.zeros(-1), ShapeError, "negative"),
        (lambda: jg.zeros((2, 1.5)), UnsupportedError, "integer"),
        (lambda: jg.zeros(2, complex), DtypeError, "complex128"),
        (lambda: jg.zeros(2, "nonsense"), DtypeError, "nonsense"),
        (lambda: jg.ones(2, int, requires_grad=True), DtypeError, "int64"),
        (lambda: jg.full(2, [1.0, 2.0, 3.0]), ShapeError, "broadcast"),
        (lambda: jg.full(2, "a"), DtypeError, "U1"),
        (lambda: jg.full_like([1.0], 1j), DtypeError, "complex"),
        (lambda: jg.arange(1, 2, 0), ArgumentError, "zero"),
        (lambda: jg.arange(jg.tensor(3.0, requires_grad=True)), UnsupportedError, "start"),
        (lambda: jg.arange(0, 3, jg.tensor(1.0, requires_grad=True)), UnsupportedError, "start"),
        (lambda: jg.linspace(0, 1, -1), ArgumentError, "num"),
        (lambda: jg.linspace(0, 1, 2.5), UnsupportedError, "num"),
        (lambda: jg.geomspace(0, 1), ArgumentError, "geomspace"),
        (lambda: jg.geomspace(jg.tensor(1.0, requires_grad=True), 2), UnsupportedError, "exp"),
        (lambda: jg.eye(-1), ShapeError, "negative"),
        (lambda: jg.eye(2.0), UnsupportedError, "integer"),
        (lambda: jg.vander([[1.0]]), ShapeError, "1-d"),
    ],
)
def test_errors_say_what_is_wrong(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_untracked_tensors_are_bounds_and_shapes_as_numbers_are() -> None:
    n = jg.tensor(3)
    assert jg.arange(n).tolist() == [0, 1, 2]
    assert jg.zeros(n).shape == (3,)
    assert jg.zeros(jg.tensor([2, 1])).shape == (2, 1)
