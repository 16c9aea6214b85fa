"""Long loop bodies in parts: what the parts compute, block by block, is what the body computes element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import test_jit
from hypothesis import given
from hypothesis import strategies as st
from programs import Program, programs
from scipy import special
from strategies import examples, kernels

import jitgrad as jg
from jitgrad import config
from jitgrad.compiler import chunks, fission
from jitgrad.compiler.fission import Parts, divided
from jitgrad.kernels.loops import indent
from jitgrad.transforms.jit import jit

Array = np.ndarray[Any, Any]
FLOAT64 = np.dtype(np.float64)


@pytest.fixture
def shredded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is divided as far as it may be, in blocks of four elements."""
    monkeypatch.setattr(fission, "_LONG", 0.0)
    monkeypatch.setattr(fission, "_SIZES", ((1000, 4),))
    monkeypatch.setattr(fission, "_bounds", lambda units, loads, at_will: list(range(len(units) + 1)))


# --------------------------------------------------------------------------------------------- of any body


@st.composite
def bodies(draw: st.DrawFn) -> list[str]:
    """The body of a loop over i0: loads, arithmetic, stores to places that may be another element's, and sums."""
    lines: list[str] = []
    names: list[str] = []
    places = ["i0", "i0 + 1", "i0 + n1", "2 * i0", "i0 % 3", "0"]

    def name() -> str:
        names.append(f"t{len(names) + 1}")
        return names[-1]

    def value() -> str:
        return draw(st.sampled_from([*names[-6:], "c0", "1.5"]))

    def place() -> str:
        return draw(st.sampled_from([*places, *(n for n in names if f"{n} = int" in "\n".join(lines))]))

    for _ in range(draw(st.integers(3, 14))):
        kind = draw(st.sampled_from(["load", "load", "op", "op", "function", "store", "add", "sum", "pair", "place"]))
        memory = draw(st.sampled_from(["a0", "a1", "out0", "out1", "tmp0"]))
        if kind == "load":
            where = place()
            lines.append(f"{name()} = load({memory}, {where})")
        elif kind == "op":
            text = f"{value()} {draw(st.sampled_from('+-*'))} {value()}"
            lines.append(f"{name()} = {text}")
        elif kind == "function":
            text = f"sin({value()})"
            lines.append(f"{name()} = {text}")
        elif kind == "pair":
            text = value()
            new = name()
            lines += [f"{new}__, {new}_c = sincos({text})", f"{new} = {new}_c"]
        elif kind == "place":
            text = value()
            lines.append(f"{name()} = int64({text})")
        elif kind == "store":
            lines.append(f"store({draw(st.sampled_from(['out0', 'out1', 'tmp0']))}, {place()}, {value()})")
        elif kind == "add":
            target, where, more = draw(st.sampled_from(["out0", "out1", "tmp0"])), place(), value()
            old, between, new = name(), name(), name()
            lines += [f"{old} = load({target}, {where})", f"{between} = sin({more})", f"{new} = {old} + {between}"]
            lines.append(f"store({target}, {where}, {new})")
        else:
            lines.append(draw(st.sampled_from(["sum1 = radd(sum1, {})", "sum2 = maximum(sum2, {})"])).format(value()))
    return lines


def run(lines: list[str], n: int) -> dict[str, Any]:
    """What is left in memory and in the variables that things are added up in."""
    rng = np.random.default_rng(0)
    memory = {name: rng.normal(size=4 * n + 40) for name in ("a0", "a1", "out0", "out1", "tmp0")}
    namespace: dict[str, Any] = {
        **memory, "c0": 0.7, "n0": n, "n1": 5, "sum1": 0.0, "sum2": -math.inf,
        "load": lambda m, i: float(m[int(i)]),
        "store": lambda m, i, value: m.__setitem__(int(i), value),
        "sin": math.sin, "sincos": lambda x: (math.sin(x), math.cos(x)), "radd": lambda a, b: a + b,
        "maximum": max, "int64": lambda x: int(x) % 7, "sel": lambda c, a, b: a if c else b,
        "kept_float64": lambda count: np.full(count, math.nan), "kept_int64": lambda count: np.zeros(count, np.int64),
    }  # fmt: skip
    exec("\n".join(lines), namespace)
    return {name: namespace[name] for name in (*memory, "sum1", "sum2")}


def in_blocks(parts: Parts, n: int) -> list[str]:
    lines = list(parts.room)
    for first in range(0, n, parts.size):
        lines.append(f"first = {first}")
        for body in parts.bodies:
            lines += [f"for i0 in range({first}, {min(first + parts.size, n)}):", *indent(body, 1)]
    return lines


@pytest.mark.usefixtures("shredded")
@examples(500)
@given(bodies(), st.integers(1, 11))
def test_parts_do_what_the_body_does(body: list[str], n: int) -> None:
    whole = run(["for i0 in range(n0):", *indent(body, 1)], n)
    integers = {line.split(" = ")[0] for line in body if " = int64(" in line}
    kinds = {f"t{k}": np.dtype(np.int64) if f"t{k}" in integers else FLOAT64 for k in range(1, 40)}
    parts = divided([body], kinds, "i0")
    if parts is None:
        return
    assert len(parts.bodies) > 1
    found = run(in_blocks(parts, n), n)
    for name, wanted in whole.items():
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def test_short_bodies_stay_whole() -> None:
    assert (
        divided([["t1 = load(a0, i0)", "t2 = exp(t1)", "store(out0, i0, t2)"]], {"t1": FLOAT64, "t2": FLOAT64}, "i0")
        is None
    )


@pytest.mark.usefixtures("shredded")
@pytest.mark.parametrize("place", ["t3", "0", "n1", "i0 % 3", "i0 // 2", "t3 + i0"])
def test_additions_to_repeated_places_stay_together(place: str) -> None:
    """Two elements of a block may add to the same place: the second has to see what the first one wrote."""
    body = [
        "t1 = load(a0, i0)", "t2 = sin(t1)", "t3 = load(a1, i0)", f"t4 = load(out0, {place})", "t5 = sin(t2)", "t6 = t4 + t5",
        f"store(out0, {place}, t6)", "t7 = sin(t6)", "store(out1, i0, t7)",
    ]  # fmt: skip
    parts = divided([body], {f"t{k}": FLOAT64 for k in range(1, 8)}, "i0")
    assert parts is not None
    assert any(f"t4 = load(out0, {place})" in b and f"store(out0, {place}, t6)" in b for b in parts.bodies)


@pytest.mark.usefixtures("shredded")
def test_additions_to_places_of_their_own_need_not() -> None:
    body = ["t1 = load(out0, i0)", "t2 = load(a0, i0)", "t3 = sin(t2)", "t4 = t1 + t3", "store(out0, i0, t4)"]
    parts = divided([body], {f"t{k}": FLOAT64 for k in range(1, 5)}, "i0")
    assert parts is not None
    assert len(parts.bodies) == 4


def test_what_shares_work_stands_together() -> None:
    body = ["t1 = load(a0, i0)", "t2 = erf(t1)", "t3 = tanh(t2)", "t4 = tanh(t3)", "t5 = tanh(t4)"]
    body += ["t6__, t6_density = erfx(t1)", "t6 = t6_density", "t7 = t6 * t5", "store(out0, i0, t7)"]
    parts = divided([body], {f"t{k}": FLOAT64 for k in range(1, 8)}, "i0")
    assert parts is not None
    assert any("t2 = erf(t1)" in b and "t6__, t6_density = erfx(t1)" in b for b in parts.bodies)


def test_bodies_that_must_not_be_one() -> None:
    """What the first computes is kept for the second; nothing is divided that need not be."""
    first = ["t1 = load(a0, i1)", "t2 = exp(t1)", "t3 = load(out0, i1)", "store(out0, i1, t3 + t2)"]
    second = ["t4 = t2 * t1", "t5 = load(out0, i1 + 1)", "store(out0, i1 + 1, t5 + t4)"]
    kinds = {f"t{k}": FLOAT64 for k in range(1, 6)}
    parts = divided([first, second], kinds, "i1", at_will=False)
    assert parts is not None
    keep, bring = "store(kept0, i1 - first, t2)", "t2 = load(kept0, i1 - first)"
    assert parts.bodies == [[*first[:2], keep, *first[2:]], ["t1 = load(a0, i1)", bring, *second]]
    # a name of which no array can be made holds the two together
    del kinds["t2"]
    assert divided([first, second], kinds, "i1", at_will=False) is None


# --------------------------------------------------------------------------------------------- of programs


def prices(s: Any, k: Any, t: Any, r: Any, v: Any) -> Any:
    """European calls."""

    def normal(x: Any) -> Any:
        return 0.5 * (1.0 + jg.erf(x / math.sqrt(2.0)))

    deviation = v * np.sqrt(t)
    d = (np.log(s / k) + (r + 0.5 * v * v) * t) / deviation
    return np.sum(s * normal(d) - k * np.exp(-r * t) * normal(d - deviation))


def greeks(s: Array, k: Array, t: Array, r: Array, v: Array) -> tuple[float, list[Array]]:
    """The value and the derivatives, in closed form."""
    root = np.sqrt(t)
    d1 = (np.log(s / k) + (r + 0.5 * v * v) * t) / (v * root)
    d2 = d1 - v * root
    n1, n2 = special.ndtr(d1), special.ndtr(d2)
    density = np.exp(-0.5 * d1 * d1) / math.sqrt(2.0 * math.pi)
    discounted = k * np.exp(-r * t)
    theta = s * density * v / (2.0 * root) + r * discounted * n2
    return float(np.sum(s * n1 - discounted * n2)), [
        n1, -discounted / k * n2, theta, discounted * t * n2, s * density * root,
    ]  # fmt: skip


def options(n: int, dtype: Any = np.float64) -> list[Array]:
    rng = np.random.default_rng(n)
    ranges = (50.0, 150.0), (50.0, 150.0), (0.1, 2.0), (0.01, 0.05), (0.1, 0.5)
    return [rng.uniform(low, high, n).astype(dtype) for low, high in ranges]


@pytest.mark.parametrize("n", [2, 7, 255, 256, 257, 511, 513, 1000])
def test_around_the_blocks(n: int) -> None:
    both = jit(jg.value_and_grad(prices, argnums=(0, 1, 2, 3, 4)))
    given = options(n)
    assert "kept0 = kept_float64(256)" in both.source(*given)
    value, found = both(*given)
    wanted, slopes = greeks(*given)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    for a, b in zip(found, slopes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (17, 31), (2, 3, 100)])
def test_of_any_shape(shape: tuple[int, ...]) -> None:
    given = [a.reshape(shape) for a in options(math.prod(shape))]
    value, found = jit(jg.value_and_grad(prices, argnums=(0, 1, 2, 3, 4)))(*given)
    wanted, slopes = greeks(*given)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    for a, b in zip(found, slopes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_of_float32() -> None:
    given = options(300, np.float32)
    value, found = jit(jg.value_and_grad(prices, argnums=(0, 1, 2, 3, 4)))(*given)
    wanted, slopes = greeks(*[a.astype(np.float64) for a in given])
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for a, b in zip(found, slopes, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-3)


def test_the_same_bits_as_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN, infinities and the signs of zeros included."""
    specials = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e308, 1e-200, 3.0])
    given = [np.resize(np.roll(specials, k), 700) for k in (0, 1, 3)]

    def function(x: Any, y: Any, z: Any) -> Any:
        a = jg.tanh(x * y) * jg.erf(z) + jg.log(y * y) / (1.0 + z * z)
        return a * jg.sin(x) + jg.exp(-y * y) * jg.arctan(z) + jg.logaddexp(x, z)

    def everything(x: Any, y: Any, z: Any) -> Any:
        out, pull = jg.vjp(function, x, y, z)
        return out, *pull(jg.ones(700))

    parts = jit(everything)(*given)
    assert "kept0" in jit(everything).source(*given)
    monkeypatch.setattr(fission, "_LONG", math.inf)
    whole = jit(everything)
    assert "kept0" not in whole.source(*given)
    for a, b in zip(parts, whole(*given), strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        there = ~np.isnan(a)
        np.testing.assert_array_equal(np.asarray(a)[there].view(np.int64), np.asarray(b)[there].view(np.int64))


def test_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_WORTH", 0)
    monkeypatch.setattr(chunks, "_CHUNK", 20_000)
    given = options(3001)
    wanted, slopes = greeks(*given)
    results = []
    for count in (2, 3):
        with config.override(num_threads=count):
            results.append(jit(jg.value_and_grad(prices, argnums=(0, 1, 2, 3, 4)))(*given))
    np.testing.assert_allclose(results[0][0], wanted, rtol=1e-12)
    assert results[0][0] == results[1][0]
    for a, b, c in zip(results[0][1], results[1][1], slopes, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (5, 256), (4, 257), (3, 258), (2, 600)])
def test_dear_gradients_of_neighbours(shape: tuple[int, ...]) -> None:
    """A total variation, whose roots are computed once."""
    u = np.random.default_rng(0).normal(size=shape)

    def variation(u: Any) -> Any:
        down, right = u[1:, :-1] - u[:-1, :-1], u[:-1, 1:] - u[:-1, :-1]
        return np.sum(np.sqrt(down * down + right * right + 0.01))

    down, right = u[1:, :-1] - u[:-1, :-1], u[:-1, 1:] - u[:-1, :-1]
    root = np.sqrt(down * down + right * right + 0.01)
    slope = np.zeros_like(u)
    slope[1:, :-1] += down / root
    slope[:-1, 1:] += right / root
    slope[:-1, :-1] -= (down + right) / root
    both = jit(jg.value_and_grad(variation))
    value, found = both(u)
    assert both.source(u).count(" = sqrt(") == 1
    np.testing.assert_allclose(value, np.sum(root), rtol=1e-13)
    np.testing.assert_allclose(found, slope, rtol=1e-12, atol=1e-13)


def test_what_infinities_do_to_neighbours() -> None:
    u = np.array([1.0, np.inf, 2.0, -3.0, np.nan, 0.0, 5.0, -np.inf])
    bend = 2.0 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    slope = np.zeros_like(u)
    with np.errstate(invalid="ignore"):
        slope[2:] += bend
        slope[1:-1] -= 2.0 * bend
        slope[:-2] += bend
    found = jit(jg.grad(lambda u: np.sum((u[2:] - 2.0 * u[1:-1] + u[:-2]) ** 2)))(u)
    np.testing.assert_array_equal(found, slope)


@pytest.mark.usefixtures("shredded")
@examples(100)
@given(programs())
def test_shredded_gradients_mean_the_same(program: Program) -> None:
    arrays = program.arrays()
    both = jg.value_and_grad(program.scalar, argnums=tuple(range(len(arrays))))
    wanted, slopes = both(*arrays)
    with kernels("python"):
        value, gradients = jit(both)(*arrays)
    test_jit.assert_same(value, wanted)
    for a, b in zip(gradients, slopes, strict=True):
        test_jit.assert_same(a, b)
