"""Large graphs: where they are cut, what becomes of repeated parts, and how temporaries share memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import test_jit
from hypothesis import given
from hypothesis import strategies as st
from programs import Program, programs
from strategies import examples, kernels

import jitgrad as jg
from jitgrad.compiler import segments
from jitgrad.compiler.passes import simplify
from jitgrad.compiler.workspace import Temporary, lay_out
from jitgrad.transforms.jit import jit

Array = np.ndarray[Any, Any]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every graph is cut into segments of a few nodes, and run as plain Python."""
    monkeypatch.setattr(segments, "_LARGEST", 0.0)
    monkeypatch.setattr(segments, "_TARGET", 4.0)
    with kernels("python"):
        yield


def steps_of(source: str) -> list[str]:
    return re.findall(r"^def (step\d+)\(", source, re.MULTILINE)


def sines(count: int) -> Any:
    def function(x: Any) -> Any:
        for _ in range(count):
            x = np.sin(x) * 1.1
        return np.sum(x)

    return function


def sines_by_hand(x: Array, count: int) -> tuple[float, Array]:
    slope = np.ones_like(x)
    for _ in range(count):
        slope = slope * 1.1 * np.cos(x)
        x = np.sin(x) * 1.1
    return float(x.sum()), slope


# --------------------------------------------------------------------------------------------- meaning


@pytest.mark.usefixtures("small")
@examples(60)
@given(programs())
def test_cut_programs_mean_the_same(program: Program) -> None:
    arrays = program.arrays()
    test_jit.assert_same(jit(program)(*arrays), program(*[jg.tensor(a) for a in arrays]))


@pytest.mark.usefixtures("small")
@examples(60)
@given(programs())
def test_cut_gradients_mean_the_same(program: Program) -> None:
    arrays = program.arrays()
    both = jg.value_and_grad(program.scalar, argnums=tuple(range(len(arrays))))
    (value, gradients), (wanted, slopes) = jit(both)(*arrays), both(*arrays)
    test_jit.assert_same(value, wanted)
    test_jit.assert_all_same(gradients, slopes)


@pytest.mark.usefixtures("small")
def test_writes_scatters_and_products_across_cuts() -> None:
    i = np.array([0, 2, 1, 4, 3])

    def function(x: Any) -> Any:
        y = x * 2.0
        for k in range(4):
            y[k] = y[k - 1] * x[k + 1]
            z = np.stack([y[i], y[i] ** 2]) @ np.reshape(x, (5, 1))
            y[i] = y[i] + z[0, 0] * np.ones(5)
        return np.sum(y) + np.linalg.det(np.outer(y, y) + np.eye(5))

    x = np.linspace(0.3, 0.7, 5)
    both = jg.value_and_grad(function)
    (value, gradient), (wanted, slope) = jit(both)(x), both(x)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10)


@pytest.mark.usefixtures("small")
def test_gradients_of_many_parts_add_up_across_cuts() -> None:
    def function(w: Any) -> Any:
        total = w[0] * 1.0
        for k in range(12):
            total = np.tanh(total * w[k + 1] + w[k])
        return total

    w = np.linspace(0.2, 0.9, 13)
    value, gradient = jit(jg.value_and_grad(function))(w)
    np.testing.assert_allclose(value, function(w), rtol=1e-13)
    for k in range(13):
        e = np.eye(13)[k] * 1e-6
        np.testing.assert_allclose(gradient[k], (function(w + e) - function(w - e)) / 2e-6, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("count", [30, 100])
def test_a_long_chain_of_sines(count: int) -> None:
    x = np.linspace(-1.0, 2.0, 37)
    step = jit(jg.value_and_grad(sines(count)))
    value, gradient = step(x)
    wanted, slope = sines_by_hand(x, count)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-11)


def test_numba_functions_of_cut_graphs_take_other_lengths() -> None:
    step = jit(jg.value_and_grad(sines(40))).njit(np.linspace(0.0, 1.0, 5))
    for n in (2, 5, 19):
        x = np.linspace(-1.0, 1.0, n)
        value, gradient = step(x)
        wanted, slope = sines_by_hand(x, 40)
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-11)


def test_an_unrolled_integrator() -> None:
    def field(u: Any) -> Any:
        return np.stack([10.0 * (u[1] - u[0]), u[0] * (28.0 - u[2]) - u[1], u[0] * u[1] - 8.0 / 3.0 * u[2]])

    def end(u: Any, h: Any = 0.005) -> Any:
        for _ in range(40):
            a = field(u)
            b = field(u + h / 2 * a)
            c = field(u + h / 2 * b)
            d = field(u + h * c)
            u = u + h / 6 * (a + 2 * b + 2 * c + d)
        return np.sum(u)

    step = jit(jg.value_and_grad(end))
    u = np.array([1.0, 0.5, 20.0])
    value, gradient = step(u)
    np.testing.assert_allclose(value, end(u), rtol=1e-12)
    for i in range(3):
        e = np.eye(3)[i] * 1e-6
        np.testing.assert_allclose(gradient[i], (end(u + e) - end(u - e)) / 2e-6, rtol=1e-5, atol=1e-7)


# --------------------------------------------------------------------------------------------- where


def test_moderate_graphs_are_one_function() -> None:
    graph = simplify(jit(jg.value_and_grad(sines(5))).graph(np.ones(3)))
    assert segments.cuts(graph) == []


def test_repeated_steps_are_compiled_once() -> None:
    """The source grows by a line for a step; the functions that are compiled stay the same."""
    with kernels("python"):
        sources = [jit(jg.value_and_grad(sines(count))).source(np.ones(3)) for count in (100, 200, 400)]
    few, more, most = (len(steps_of(s)) for s in sources)
    assert few <= 8
    assert few == more == most


def test_segments_are_bounded() -> None:
    def function(x: Any) -> Any:
        rng = np.random.default_rng(0)
        for kind in rng.integers(0, 4, 300):  # nothing repeats itself
            x = [np.sin(x), np.exp(-x), x * x, np.tanh(x) + x][kind]
        return np.sum(x)

    graph = simplify(jit(function).graph(np.ones(3)))
    begins = [0, *segments.cuts(graph), len(graph.nodes)]
    weights = [sum(map(segments.weight, graph.nodes[a:b])) for a, b in itertools.pairwise(begins)]
    assert max(weights) < 3 * segments._TARGET
    assert np.mean(weights) > segments._TARGET / 3


# --------------------------------------------------------------------------------------------- working memory


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["n0", "n1"])), max_size=20))
def test_temporaries_share_memory_only_when_they_are_not_needed_at_once(spans: list[tuple[int, int, str]]) -> None:
    pieces: list[list[str]] = [[] for _ in range(10)]
    temporaries = []
    for k, (a, b, symbol) in enumerate(spans):
        temporaries.append(Temporary(f"tmp{k}", np.dtype(np.float64), (3,), (symbol,)))
        pieces[min(a, b)].append(f"store(tmp{k}, i, 1.0)")
        pieces[max(a, b)].append(f"t1 = load(tmp{k}, i)")
    made = lay_out(temporaries, pieces)
    for k, (a, b, symbol) in enumerate(spans):
        for j, (c, d, other) in enumerate(spans[:k]):
            if made.names[f"tmp{k}"] == made.names[f"tmp{j}"]:
                assert symbol == other
                assert max(a, b) < min(c, d) or max(c, d) < min(a, b)
    # as few as can be: so many are needed at once
    for symbol in ("n0", "n1"):
        alive = [sum(min(a, b) <= p <= max(a, b) for a, b, s in spans if s == symbol) for p in range(10)]
        assert sum(t.symbols == (symbol,) for t in made.places) == max(alive, default=0)
    assert made.nbytes == 64 * len(made.places) + 64  # and up to a line of the cache before them
    assert eval(made.formula, {"n0": 3, "n1": 3}) == made.nbytes
    space: dict[str, Any] = {"n0": 3, "n1": 3, "part_float64": lambda work, at, count, number: (at, count)}
    exec("\n".join(made.lines), {"work": None}, space)
    offsets = sorted(space[t.name][0] for t in made.places)
    assert offsets == list(range(0, 64 * len(made.places), 64))


@pytest.mark.parametrize(
    ("last", "shared"),
    [
        (["for i in range(n0):", "    t1 = load(tmp0, i)", "    store(out0, i, t1)"], True),
        (["for i in range(n0):", "    t1 = load(tmp0, i + 1)", "    store(out0, i, t1)"], False),
        (["for i in range(n0):", "    store(out0, i, 1.0)", "    t1 = load(tmp0, i)"], False),
        (["for i in range(n0):", "    t1 = load(tmp0, i)", "for i in range(n0):", "    store(out0, i, 1.0)"], False),
        (["for i in range(n0):", "    t1 = load(tmp0, i)", "    t2 = load(tmp0, 0)", "    store(out0, i, t1)"], False),
        (
            ["for i in range(n0):", "    t1 = load(tmp0, i)", "    for j in range(2):", "        store(out0, i, t1)"],
            False,
        ),
        (["for i in range(n0):", "    t1 = load(tmp0, i)", "    t2 = load(out0, i)", "    store(out0, i, t1)"], False),
        (["f(carray(data(tmp0), (n0,)), carray(data(out0), (n0,)))"], False),
    ],
)
def test_a_temporary_is_in_the_memory_of_the_result_that_replaces_it(last: list[str], shared: bool) -> None:
    first = ["for i in range(n0):", "    store(tmp0, i, 1.0)"]
    double = np.dtype(np.float64)
    temporary, result = (Temporary(n, double, (3,), ("n0",)) for n in ("tmp0", "out0"))
    made = lay_out([temporary], [first, last], results=[result])
    assert made.names["tmp0"] == ("out0" if shared else "tmp0")
    assert len(made.places) == (not shared)
    # not where the result is written before, is longer, of another dtype, or nothing comes before
    assert lay_out([temporary], [first, ["store(out0, 0, 1.0)"], last], results=[result]).places
    for other in (Temporary("out0", double, (3,), ("n1",)), Temporary("out0", np.dtype(np.float32), (3,), ("n0",))):
        assert lay_out([temporary], [first, last], results=[other]).places
    assert lay_out([temporary], [[*first, *last]], results=[result]).places


def test_only_one_temporary_is_in_the_memory_of_a_result() -> None:
    temporaries = [Temporary(f"tmp{k}", np.dtype(np.float64), (3,), ("n0",)) for k in range(2)]
    result = Temporary("out0", np.dtype(np.float64), (3,), ("n0",))
    first = ["for i in range(n0):", "    store(tmp0, i, 1.0)", "    store(tmp1, i, 2.0)"]
    last = ["for i in range(n0):", "    t1 = load(tmp0, i)", "    t2 = load(tmp1, i)", "    store(out0, i, t1 + t2)"]
    made = lay_out(temporaries, [first, last], results=[result])
    assert made.names["tmp0"] == "out0"
    assert [p.name for p in made.places] == [made.names["tmp1"]]


def test_gradients_are_written_over_what_they_are_made_of() -> None:
    def loss(x: Any) -> Any:
        top = np.max(x)
        return np.log(np.sum(np.exp(x - top))) + top

    f = jit(jg.value_and_grad(loss))
    x = np.linspace(-1.0, 2.0, 100)
    assert "tmp" not in f.source(x)
    value, gradient = f(x)
    weights = np.exp(x) / np.sum(np.exp(x))
    np.testing.assert_allclose(value, np.log(np.sum(np.exp(x))), rtol=1e-14)
    np.testing.assert_allclose(gradient, weights, rtol=1e-13)


def test_the_users_text_is_not_taken_for_a_temporary() -> None:
    def loss(x: Any) -> Any:
        tmp7 = np.sort(x)
        return np.sum(tmp7 * x)

    value, gradient = jit(jg.value_and_grad(loss))(np.array([3.0, 1.0, 2.0]))
    assert value == 11.0
    np.testing.assert_array_equal(gradient, [1.0 + 2.0, 2.0 + 3.0, 3.0 + 1.0])  # sorted + place
