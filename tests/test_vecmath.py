"""Elementary functions of compiled loops and of plain Python, against mpmath on their whole range."""

from __future__ import annotations

import functools
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mpmath
import numba
import numpy as np
import pytest
from mpmath import mpf
from numba.core.errors import TypingError
from numba.core.registry import cpu_target

from jitgrad.core import scalar
from jitgrad.kernels import bridge
from jitgrad.kernels.vecmath import NAMESPACE

F64, F32 = np.float64, np.float32
DTYPES = [pytest.param(F64, id="float64"), pytest.param(F32, id="float32")]
POINTS = 1000  # of each kind of sample


@functools.cache
def compiled(name: str, arity: int = 1, part: int | None = None) -> Any:
    """One loop over the function; `part` picks a component of a pair."""
    arguments = "abc"[:arity]
    call = f"{name}({', '.join(f'{c}[i]' for c in arguments)})" + ("" if part is None else f"[{part}]")
    source = f"def loop({', '.join(arguments)}, o):\n    for i in range(o.size):\n        o[i] = {call}\n"
    namespace = dict(NAMESPACE)
    exec(source, namespace)
    return numba.njit(error_model="numpy")(namespace["loop"])


def run(name: str, *columns: np.ndarray, part: int | None = None, dtype: Any = None) -> np.ndarray:
    out = np.empty(columns[0].shape, dtype or columns[0].dtype)
    compiled(name, len(columns), part)(*columns, out)
    return out


# ----------------------------------------------------------------------------------------- measuring errors


def ulps(got: np.ndarray, exact: list[Any]) -> np.ndarray:
    """Error of each value in units in the last place of the exact result; infinities count as 2**emax."""
    info = np.finfo(got.dtype)
    top = mpf(2) ** int(info.maxexp)
    errors = np.empty(len(got))
    for i, (g, e) in enumerate(zip(got.tolist(), exact, strict=True)):
        if mpmath.isnan(e):
            errors[i] = 0.0 if math.isnan(g) else math.inf
            continue
        if math.isnan(g):
            errors[i] = math.inf
            continue
        g = mpf(g) if math.isfinite(g) else math.copysign(1, g) * top
        e = min(max(e, -top), top)
        exponent = max(mpmath.frexp(e)[1] - 1, int(info.minexp)) if e else int(info.minexp)
        exponent = min(exponent, int(info.maxexp) - 1)
        errors[i] = float(abs(g - e) / mpf(2) ** (exponent - int(info.nmant)))
    return errors


def exactly(f: Callable[..., Any], *columns: np.ndarray) -> list[Any]:
    with mpmath.workprec(200):
        return [f(*map(mpf, row)) for row in zip(*(c.tolist() for c in columns), strict=True)]


def _tiny(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """f of odd functions with f(x) = x (1 + O(x**2)), which mpmath computes with an absolute error."""
    return lambda x: x if abs(x) < mpf(2) ** -80 else f(x)


def _domain(f: Callable[..., Any], inside: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: f(*x) if inside(*x) else mpmath.nan


ORACLES: dict[str, Callable[..., Any]] = {
    "sqrt": _domain(mpmath.sqrt, lambda x: x >= 0),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "exp": mpmath.exp,
    "exp2": lambda x: mpf(2) ** x,
    "expm1": mpmath.expm1,
    "log": _domain(lambda x: mpmath.log(x) if x else -mpmath.inf, lambda x: x >= 0),
    "log2": _domain(lambda x: mpmath.log(x) / mpmath.log(2) if x else -mpmath.inf, lambda x: x >= 0),
    "log10": _domain(lambda x: mpmath.log(x) / mpmath.log(10) if x else -mpmath.inf, lambda x: x >= 0),
    "log1p": _domain(lambda x: mpmath.log1p(x) if x > -1 else -mpmath.inf, lambda x: x >= -1),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "asin": _domain(_tiny(mpmath.asin), lambda x: abs(x) <= 1),
    "acos": _domain(mpmath.acos, lambda x: abs(x) <= 1),
    "atan": _tiny(mpmath.atan),
    "sinh": _tiny(mpmath.sinh),
    "cosh": mpmath.cosh,
    "tanh": _tiny(mpmath.tanh),
    "asinh": lambda x: mpmath.sign(x) * _tiny(lambda y: mpmath.log1p(y + y * y / (1 + mpmath.sqrt(1 + y * y))))(abs(x)),
    "acosh": _domain(lambda x: mpmath.log1p((x - 1) + mpmath.sqrt((x - 1) * (x + 1))), lambda x: x >= 1),
    "atanh": _domain(
        _tiny(lambda x: mpmath.sign(x) * mpmath.inf if abs(x) == 1 else mpmath.log1p(2 * x / (1 - x)) / 2),
        lambda x: abs(x) <= 1,
    ),
    "erf": lambda x: mpmath.erf(x) if abs(x) < 100 else mpmath.sign(x),
    "erfc": lambda x: mpmath.erfc(x) if abs(x) < 100 else mpf(1) - mpmath.sign(x),
}
PAIRS = {"sincos", "erfx"}
# In ULP; 2 for the others.
LIMITS = {"sqrt": 0.5, "tan": 4, "erfc": 4, "asinh": 4, "acosh": 4, "atanh": 4, "pow": 4, "fmod": 0}
# Where each function has something to show, besides the whole range.
RANGES: dict[str, list[tuple[float, float]]] = {
    "exp": [(-746, 710), (-104, 89), (-1, 1)],
    "exp2": [(-1076, 1025), (-150, 129), (-1, 1)],
    "expm1": [(-60, 710), (-1, 1), (-0.01, 0.01)],
    "log": [(0, 3), (0.99, 1.01), (0.5, 2)],
    "log2": [(0, 3), (0.99, 1.01), (0.5, 2)],
    "log10": [(0, 3), (0.99, 1.01), (0.5, 2)],
    "log1p": [(-1, 3), (-0.01, 0.01), (-0.5, 1)],
    "sin": [(-10, 10), (-1e5, 1e5), (-1e14, 1e14)],
    "cos": [(-10, 10), (-1e5, 1e5), (-1e14, 1e14)],
    "tan": [(-10, 10), (-1e5, 1e5), (-1e14, 1e14)],
    "asin": [(-1, 1), (0.99, 1)],
    "acos": [(-1, 1), (0.99, 1)],
    "atan": [(-3, 3), (-100, 100)],
    "sinh": [(-711, 711), (-3, 3), (-90, 90)],
    "cosh": [(-711, 711), (-3, 3), (-90, 90)],
    "tanh": [(-23, 23), (-1, 1), (-0.01, 0.01)],
    "asinh": [(-10, 10), (-0.5, 0.5)],
    "acosh": [(1, 10), (1, 1.01)],
    "atanh": [(-1, 1), (-0.01, 0.01)],
    "erf": [(-6, 6), (-1, 1)],
    "erfc": [(-6, 27.3), (0, 10.1), (0.3, 1.5)],
    "sqrt": [(0, 10)],
    "cbrt": [(-8, 8), (0.99, 1.01)],
}


def anywhere(rng: np.random.Generator, dtype: Any, n: int = POINTS) -> np.ndarray:
    """Finite numbers of every magnitude and sign, subnormals included: random representations."""
    x = rng.integers(0, 2 ** np.finfo(dtype).bits, n, dtype=f"u{np.dtype(dtype).itemsize}").view(dtype)
    return x[np.isfinite(x)]


def boundaries(dtype: Any) -> np.ndarray:
    """Zeros, the ends of the range, thresholds of functions and implementations; with their neighbours."""
    info = np.finfo(dtype)
    marks = [
        0.0, info.smallest_subnormal, info.tiny, info.eps, math.sqrt(info.eps), 0.5, math.sqrt(0.5), 1.0,
        math.sqrt(2), math.log(2) / 2, math.log(2), math.pi / 4, math.pi / 2, math.pi, 2.0, 22.0, 27.5,
        26.5, 27.2265, 36.7, 50.0, 53.0, 88.3762, 88.7228, 103.2789, 103.97, 126.0, 127.9999, 149.0, 150.0,
        708.396, 709.7827, 710.4758, 744.44, 745.1332, 1022.0, 1023.9999, 1074.0, 1075.0, 2.0**26, 2.0**45,
        2.0**52, 2.0**53, info.max,
    ]  # fmt: skip
    x = np.array(marks, F64).astype(dtype)
    with np.errstate(over="ignore"):
        x = np.concatenate([x, np.nextafter(x, dtype(np.inf)), np.nextafter(x, dtype(0))])
    x = x[np.isfinite(x)]
    return np.concatenate([x, -x])


@np.errstate(over="ignore", under="ignore")
def sample(name: str, dtype: Any) -> np.ndarray:
    """Finite arguments, outside the domain too."""
    rng = np.random.default_rng(sum(map(ord, name)))
    parts = [boundaries(dtype), anywhere(rng, dtype)]
    for low, high in RANGES.get(name, []):
        limit = float(np.finfo(dtype).max)
        parts.append(rng.uniform(max(low, -limit), min(high, limit), POINTS).astype(dtype))
    if name in ("sin", "cos", "tan"):
        # The numbers nearest to multiples of pi/2, small multiples and huge ones; and the worst of all of
        # float64.
        with mpmath.workprec(1200):
            k = [int(v) for v in np.exp2(rng.uniform(0, 43, POINTS))] + [int(v) << 40 for v in range(1, 50)]
            parts.append(np.array([float(n * mpmath.pi / 2) for n in k]).astype(dtype))
        parts.append(np.array([6381956970095103 * 2.0**797, 6381956970095103 * 2.0**797 * 2]).astype(F64).astype(dtype))
    x = np.concatenate(parts)
    return x[np.isfinite(x)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(ORACLES))
def test_error_in_ulps_on_the_whole_range(name: str, dtype: Any) -> None:
    x = sample(name, dtype)
    error = ulps(run(name, x), exactly(ORACLES[name], x))
    worst = int(np.argmax(error))
    assert error[worst] <= LIMITS.get(name, 2), f"{name}({float(x[worst])!r}): {error[worst]:.2f} ULP"


BINARY_ORACLES: dict[str, Callable[..., Any]] = {
    "atan2": mpmath.atan2,
    "hypot": lambda x, y: mpmath.sqrt(x * x + y * y),
    "pow": lambda x, y: mpmath.nan if x < 0 and y != mpmath.floor(y) else _power(x, y),
    "fmod": lambda x, y: mpmath.sign(x) * mpmath.fmod(abs(x), abs(y)),
}


def _power(x: Any, y: Any) -> Any:
    sign = -1 if x < 0 and mpmath.fmod(y, 2) else 1
    size = y * mpmath.log(abs(x))
    return sign * (mpmath.exp(size) if abs(size) < 5000 else (mpmath.inf if size > 0 else mpf(0)))


def binary_sample(name: str, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Nonzero pairs: of all magnitudes, of like magnitudes, and such that the result is in range."""
    rng = np.random.default_rng(sum(map(ord, name)))
    with np.errstate(over="ignore", under="ignore"):
        x = np.concatenate([anywhere(rng, dtype, POINTS)[:900], rng.uniform(-3, 3, 2 * POINTS).astype(dtype)])
        y = np.concatenate([anywhere(rng, dtype, POINTS)[:900], rng.uniform(-3, 3, 2 * POINTS).astype(dtype)])
        if name == "pow":
            info = np.finfo(dtype)
            base = np.exp(rng.uniform(math.log(info.tiny), math.log(info.max), POINTS)).astype(dtype)
            exponent = (rng.uniform(-1.05, 1.05, POINTS) * math.log(info.max) / np.log(base.astype(F64))).astype(dtype)
            near_one = (1 + rng.uniform(-1, 1, POINTS) * 1e-3).astype(dtype)
            large = rng.uniform(-7e5, 7e5, POINTS).astype(dtype)
            integers = rng.integers(-40, 40, POINTS).astype(dtype)
            x = np.concatenate([x, base, near_one, rng.uniform(-30, 30, POINTS).astype(dtype)])
            y = np.concatenate([y, exponent, large, integers])
        if name == "hypot":
            x = np.concatenate([x, x[:900]])
            y = np.concatenate([y, x[:900] * rng.uniform(-2, 2, 900).astype(dtype)])
        if name == "fmod":
            # A quotient of up to 2**2098 takes the oracle, and the processor, too long.
            near = np.abs(np.frexp(x)[1] - np.frexp(y)[1]) < 100
            x, y = x[near], y[near]
    good = np.isfinite(x) & np.isfinite(y) & (x != 0) & (y != 0)
    return x[good], y[good]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(BINARY_ORACLES))
def test_error_in_ulps_of_two_arguments(name: str, dtype: Any) -> None:
    x, y = binary_sample(name, dtype)
    error = ulps(run(name, x, y), exactly(BINARY_ORACLES[name], x, y))
    worst = int(np.argmax(error))
    assert error[worst] <= LIMITS.get(name, 2), (
        f"{name}({float(x[worst])!r}, {float(y[worst])!r}): {error[worst]:.2f} ULP"
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs(dtype: Any) -> None:
    x = sample("sin", dtype)
    np.testing.assert_array_equal(run("sincos", x, part=0), run("sin", x))
    np.testing.assert_array_equal(run("sincos", x, part=1), run("cos", x))
    x = sample("erf", dtype)
    np.testing.assert_array_equal(run("erfx", x, part=0), run("erf", x))
    error = ulps(run("erfx", x, part=1), exactly(lambda v: mpmath.exp(-v * v), x))
    assert error.max() <= 2


# --------------------------------------------------------------------- special values, signs, whole numbers

INF, NAN = math.inf, math.nan
SPECIALS = [0.0, -0.0, INF, -INF, NAN]
# Results at 0.0, -0.0, inf, -inf, nan, as in annex F of the C standard.
UNARY_SPECIALS: dict[str, list[float]] = {
    "sqrt": [0.0, -0.0, INF, NAN, NAN],
    "cbrt": [0.0, -0.0, INF, -INF, NAN],
    "exp": [1.0, 1.0, INF, 0.0, NAN],
    "exp2": [1.0, 1.0, INF, 0.0, NAN],
    "expm1": [0.0, -0.0, INF, -1.0, NAN],
    "log": [-INF, -INF, INF, NAN, NAN],
    "log2": [-INF, -INF, INF, NAN, NAN],
    "log10": [-INF, -INF, INF, NAN, NAN],
    "log1p": [0.0, -0.0, INF, NAN, NAN],
    "sin": [0.0, -0.0, NAN, NAN, NAN],
    "cos": [1.0, 1.0, NAN, NAN, NAN],
    "tan": [0.0, -0.0, NAN, NAN, NAN],
    "asin": [0.0, -0.0, NAN, NAN, NAN],
    "acos": [math.pi / 2, math.pi / 2, NAN, NAN, NAN],
    "atan": [0.0, -0.0, math.pi / 2, -math.pi / 2, NAN],
    "sinh": [0.0, -0.0, INF, -INF, NAN],
    "cosh": [1.0, 1.0, INF, INF, NAN],
    "tanh": [0.0, -0.0, 1.0, -1.0, NAN],
    "asinh": [0.0, -0.0, INF, -INF, NAN],
    "acosh": [NAN, NAN, INF, NAN, NAN],
    "atanh": [0.0, -0.0, NAN, NAN, NAN],
    "erf": [0.0, -0.0, 1.0, -1.0, NAN],
    "erfc": [1.0, 1.0, 0.0, 2.0, NAN],
    "floor": [0.0, -0.0, INF, -INF, NAN],
    "ceil": [0.0, -0.0, INF, -INF, NAN],
    "trunc": [0.0, -0.0, INF, -INF, NAN],
    "rint": [0.0, -0.0, INF, -INF, NAN],
    "fabs": [0.0, 0.0, INF, INF, NAN],
}


def assert_same(got: Any, want: Any) -> None:
    """Equal values, equal NaNs, equal signs of zeros."""
    got, want = np.asarray(got), np.asarray(want)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(UNARY_SPECIALS))
def test_special_values(name: str, dtype: Any) -> None:
    x, want = np.array(SPECIALS, dtype), np.array(UNARY_SPECIALS[name], dtype)
    assert_same(run(name, x), want)
    assert_same(getattr(scalar, name)(x), want)


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_a_nan_stays_whatever_its_bits(name: str) -> None:
    rng = np.random.default_rng(2)
    payloads = np.concatenate([rng.integers(1, 2**51, 200, "u8"), np.arange(1, 200, dtype="u8")])
    signs = rng.integers(0, 2, payloads.size).astype("u8") << np.uint64(63)
    assert np.isnan(run(name, (np.uint64(0x7FF8 << 48) | payloads | signs).view(F64))).all()
    assert np.isnan(run(name, (np.uint32(0x7FC00000) | (payloads.astype("u4") >> 10)).view(F32))).all()
    assert np.isnan(run(name, (np.uint32(0x7FC00000) | (payloads.astype("u4") & 0x3FF)).view(F32))).all()


@pytest.mark.parametrize("name", sorted(BINARY_ORACLES))
def test_a_nan_stays_in_either_argument(name: str) -> None:
    x = (np.uint64(0x7FF8 << 48) | np.arange(400, dtype="u8")).view(F64)
    y = np.linspace(-2.9, 3, 400)
    assert np.isnan(run(name, x, y)).all()
    assert np.isnan(run(name, y, x)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["sin", "tan", "sinh", "tanh", "expm1", "log1p", "asin", "atan", "asinh", "atanh", "cbrt", "erf"]
)
def test_odd_functions_keep_the_sign_of_tiny_numbers(name: str, dtype: Any) -> None:
    tiny = np.finfo(dtype).smallest_subnormal * np.arange(1, 40, dtype=dtype)
    x = np.concatenate([tiny, -tiny])
    got = run(name, x)
    assert_same(np.sign(got), np.sign(x))
    if name not in ("cbrt", "erf"):
        assert_same(got, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["pow", "atan2", "hypot", "fmod", "copysign", "maximum", "minimum"])
def test_special_pairs(name: str, dtype: Any) -> None:
    values = np.array([*SPECIALS, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5], dtype)
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(values, values))
    if name in ("maximum", "minimum"):
        # NumPy returns either zero when both signs occur.
        keep = (x != 0) | (y != 0)
        x, y = x[keep], y[keep]
    ufunc = {"pow": np.power, "atan2": np.arctan2}.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        want = ufunc(x, y)
    got = run(name, x, y)
    # NumPy's float32 results are rounded once more here than there.
    np.testing.assert_allclose(got, want, rtol=2 * np.finfo(dtype).eps)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "rint", "fabs"])
def test_rounding_is_exact(name: str, dtype: Any) -> None:
    halves = np.arange(-20, 20, dtype=dtype) / 2
    x = np.concatenate([sample(name, dtype), halves, np.nextafter(halves, dtype(0)), np.array(SPECIALS, dtype)])
    assert_same(run(name, x), getattr(np, name)(x))


@pytest.mark.parametrize("dtype", [*DTYPES, pytest.param(np.int64, id="int64"), pytest.param(np.bool_, id="bool")])
@pytest.mark.parametrize("name", ["isnan", "isfinite", "isinf", "signbit"])
def test_predicates(name: str, dtype: Any) -> None:
    if np.dtype(dtype).kind == "f":
        x = np.concatenate([boundaries(dtype), np.array([*SPECIALS, -NAN], dtype)])
        want = getattr(np, name)(x)
    else:
        x = np.array([0, 1, -1, 5, -(2**62)]).astype(dtype)
        want = getattr(np, name)(x.astype(F64))
    np.testing.assert_array_equal(run(name, x, dtype=np.bool_), want)
    np.testing.assert_array_equal(getattr(scalar, name)(x), want)


NUMBERS = ["float64", "float32", "int64", "int32", "uint8", "uint64", "bool"]


@pytest.mark.parametrize("kind", NUMBERS)
def test_choosing_and_adding_work_on_every_kind_of_number(kind: str) -> None:
    a = np.array([0, 1, 2, 3, 200, 1, 0, 255], "u1").astype(kind)
    b = np.array([1, 0, 2, 200, 3, 1, 0, 254], "u1").astype(kind)
    c = np.array([True, False] * 4)
    if kind.startswith("int"):
        a, b = -a, b - 3
    if kind == "uint64":
        a[3] = 2**64 - 1
    assert_same(run("maximum", a, b), np.maximum(a, b))
    assert_same(run("minimum", a, b), np.minimum(a, b))
    assert_same(run("radd", a, b), a + b)
    assert_same(run("sel", c, a, b, dtype=kind), np.where(c, a, b))
    with np.errstate(all="ignore"):
        assert_same(run("fmod", a, b), np.fmod(a, b) if kind != "bool" else np.zeros(8, bool))


def test_integer_remainders_never_trap() -> None:
    least = np.iinfo(np.int64).min
    x, y = np.array([least, least, 7, -7, 7]), np.array([-1, 0, 0, 3, -3])
    np.testing.assert_array_equal(run("fmod", x, y), [0, 0, 0, -1, 1])


def test_nan_passes_through_maximum_and_minimum() -> None:
    a, b = np.array([NAN, 1.0, NAN]), np.array([1.0, NAN, NAN])
    assert np.isnan(run("maximum", a, b)).all()
    assert np.isnan(run("minimum", a, b)).all()


# ---------------------------------------------------------------------------------------------------- types


def returned(expression: str, *args: Any) -> Any:
    """The result of a compiled function of x (and y), unboxed by Numba from its own type."""
    names = "xy"[: len(args)]
    namespace = dict(NAMESPACE)
    exec(f"def f({', '.join(names)}):\n    return {expression}\n", namespace)
    f = numba.njit(error_model="numpy")(namespace["f"])
    f(*args)
    return f.signatures and next(iter(f.overloads.values())).signature.return_type


@pytest.mark.parametrize(
    ("expression", "args", "want"),
    [
        ("exp(x)", (F32(1),), "float32"),
        ("exp(x)", (1.0,), "float64"),
        ("exp(x)", (1,), "float64"),
        ("exp(x)", (True,), "float64"),
        ("tanh(x)", (np.int8(1),), "float64"),
        ("sincos(x)", (F32(1),), "UniTuple(float32 x 2)"),
        ("pow(x, y)", (F32(1), 2.0), "float64"),
        ("pow(x, 2)", (F32(1),), "float32"),
        ("floor(x)", (3,), "int64"),
        ("rint(x)", (3,), "float64"),
        ("sel(x, y, 0)", (True, F32(1)), "float32"),
        ("sel(x, y, 0)", (True, 1.5), "float64"),
        ("sel(x, 1, 0)", (True,), "int64"),
        ("sel(x, y, 0.0)", (True, 3), "float64"),
        ("maximum(x, y)", (np.int64(1), np.uint64(1)), "float64"),
        ("maximum(x, y)", (np.int32(1), np.int64(1)), "int64"),
        ("isnan(x)", (3,), "bool"),
        ("fma(x, y, 1)", (2.0, F32(1)), "float64"),
    ],
)
def test_result_types(expression: str, args: tuple[Any, ...], want: str) -> None:
    assert str(returned(expression, *args)) == want


@pytest.mark.parametrize(
    ("expression", "args", "message"),
    [
        ("exp(x)", (1j,), "real numbers"),
        ("exp(x)", (np.ones(3),), "real numbers"),
        ("exp(x)", ("a",), "real numbers"),
        ("sel(x, x, x)", (1.0,), "must be a bool"),
        ("maximum(x, None)", (1.0,), "real numbers"),
    ],
)
def test_nonsense_is_rejected_when_compiling(expression: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypingError, match=message):
        returned(expression, *args)


# --------------------------------------------------------------------------------------------- plain Python


def test_both_worlds_have_the_same_names() -> None:
    assert set(scalar.__all__) == set(NAMESPACE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(ORACLES))
def test_plain_python_agrees_with_compiled_code(name: str, dtype: Any, recwarn: pytest.WarningsRecorder) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-3, 3, 200).astype(dtype), boundaries(dtype), np.array(SPECIALS, dtype)])
    plain = getattr(scalar, name)(x)
    assert plain.dtype == dtype
    info = np.finfo(dtype)
    np.testing.assert_allclose(run(name, x), plain, rtol=8 * info.eps, atol=info.smallest_subnormal)
    one = getattr(scalar, name)(dtype(0.5))
    assert isinstance(one, dtype)
    assert type(getattr(scalar, name)(0.5)) is F64
    assert type(getattr(scalar, name)(np.int8(1))) is F64
    assert not recwarn.list


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_of_products_takes_products_rounded_or_not(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    total, a, b = rng.normal(size=(3, 1000)).astype(dtype)
    made = run("rmuladd", total, a, b)
    assert made.dtype == dtype
    once, twice = scalar.fma(a, b, total), scalar.rmuladd(total, a, b)
    assert np.all((made == once) | (made == twice))
    assert_same(twice, total + a * b)
    special = np.array([[0.0, INF, 1.0], [INF, 1.0, NAN], [0.0, -INF, 1.0]], dtype)
    assert_same(run("rmuladd", *special), np.array([NAN] * 3, dtype))
    integers = np.arange(6).reshape(3, 2)
    assert_same(run("rmuladd", *integers, dtype="float64"), np.array([8.0, 16.0]))
    assert_same(scalar.rmuladd(*integers), np.array([8.0, 16.0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_fma_is_rounded_once(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.uniform(-2, 2, (2, 500)).astype(dtype)
    c = (-(a * b) * (1 + np.finfo(dtype).eps * rng.integers(-2, 2, 500))).astype(dtype)
    a = np.concatenate([a, anywhere(rng, dtype)[:800], np.array([INF, 0, 1e-30, NAN, -1e-30], dtype)])
    b = np.concatenate([b, anywhere(rng, dtype)[:800], np.array([0, INF, 1e-30, 1, 1e-30], dtype)])
    c = np.concatenate([c, anywhere(rng, dtype)[:800], np.array([1, 1, 0, 1, 0], dtype)])
    assert_same(scalar.fma(a, b, c), run("fma", a, b, c))
    assert scalar.fma(1e300, 1e300, -INF) == -INF


# ---------------------------------------------------------------------------------------------- vector code


def assembly(name: str, dtype: Any) -> str:
    arity = 2 if name in BINARY_ORACLES else 1
    loop, arrays = compiled(name, arity, 0 if name in PAIRS else None), [np.ones(1, dtype)] * (arity + 1)
    loop(*arrays)
    return str(loop.inspect_asm(tuple(map(numba.typeof, arrays))))


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_contraction_does_no_harm(name: str) -> None:
    """With fastmath={"contract"}, products and sums merge into fma, in the bodies too."""
    loop = numba.njit(error_model="numpy", fastmath={"contract"})(compiled(name).py_func)
    x = sample(name, F64)[::3]
    out = np.empty_like(x)
    loop(x, out)
    assert ulps(out, exactly(ORACLES[name], x)).max() <= LIMITS.get(name, 2)


def kernel(expression: str, dtype: Any) -> Any:
    """A loop compiled as jitgrad compiles its kernels, which is not quite how Numba compiles functions."""
    name = np.dtype(dtype).name
    source = f"def loop(a, o):\n    for i in range(size(o)):\n        store(o, i, {expression.format('load(a, i)')})\n"
    return bridge.make("loop", source, (f"b:{name}",) * 2, {})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_far_arguments_anywhere_in_a_vector(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    share = np.repeat([0.0, 0.01, 0.1, 0.5, 1.0], 203)
    x = np.where(
        rng.random(share.size) < share, rng.uniform(2.0**45, 2.0**100, share.size), rng.uniform(-9, 9, share.size)
    )
    x[rng.integers(0, x.size, 20)] = np.nan
    x = (x * rng.choice([-1.0, 1.0], x.size)).astype(dtype)
    out = np.empty_like(x)
    made = kernel(f"{name}({{0}})", dtype)
    made.entry_point(x, out)
    assert ulps(out, exactly(lambda v: v if mpmath.isnan(v) else ORACLES[name](v), x)).max() <= LIMITS.get(name, 2)
    both = np.empty_like(x)  # two rare cases in one loop
    kernel(f"{name}({{0}}) + 0.0 * cos({{0}})", dtype).entry_point(x, both)
    np.testing.assert_array_equal(both, out)


def _target_features() -> str:
    return str(cpu_target.target_context.codegen().magic_tuple()[2])


@pytest.mark.skipif("+fma" not in _target_features(), reason="without fma, the C library is called")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted((ORACLES.keys() | BINARY_ORACLES.keys() | PAIRS) - {"sqrt", "fmod"}))
def test_loops_are_vector_code_without_calls(name: str, dtype: Any) -> None:
    text = assembly(name, dtype)
    packed = re.findall(r"vf\w*m\w*(?:231|213|132)p[sd]\s.*%[yz]mm|vmulp[sd]\s.*%[yz]mm", text)
    assert len(packed) > 4
    # A called C function appears as an address that is loaded, or as a direct call.
    external = set(re.findall(r"(?:movabsq\s+\$|callq?\s+\*?)([A-Za-z_]\w*)", text))
    functions = {*ORACLES, *BINARY_ORACLES, "fma", "sincos"}
    assert not external & (functions | {f + "f" for f in functions})


@pytest.mark.skipif("+fma" not in _target_features(), reason="without fma, the C library is called")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_rare_cases_cost_kernels_one_test_for_each_vector(name: str, dtype: Any) -> None:
    text = kernel(f"{name}({{0}})", dtype).library.get_asm_str()
    reached = re.findall(r"(?:movabsq\s+\$|callq?\s+\*?)(jitgrad_\w+)", text)
    assert f"jitgrad_{name}_far_lanes" in reached
    assert not [f for f in reached if re.search(r"_far_\d+$", f)]


GENERIC = """
import mpmath
import numpy as np
import test_vecmath as t
assert "+fma" not in t._target_features()
for dtype in (np.float64, np.float32):
    for name in t.ORACLES:
        x = t.sample(name, dtype)[::7]
        error = t.ulps(t.run(name, x), t.exactly(t.ORACLES[name], x))
        assert error.max() <= t.LIMITS.get(name, 2), (name, dtype, x[error.argmax()], error.max())
        t.assert_same(t.run(name, np.array(t.SPECIALS, dtype)), np.array(t.UNARY_SPECIALS[name], dtype))
    for name in t.BINARY_ORACLES:
        x, y = (np.ascontiguousarray(v[::7]) for v in t.binary_sample(name, dtype))
        error = t.ulps(t.run(name, x, y), t.exactly(t.BINARY_ORACLES[name], x, y))
        assert error.max() <= t.LIMITS.get(name, 2), (name, dtype, error.max())
x = t.sample("erf", np.float64)
assert t.ulps(t.run("erfx", x, part=1), t.exactly(lambda v: mpmath.exp(-v * v), x)).max() <= 2
for pair, part, name in (("sincos", 0, "sin"), ("sincos", 1, "cos"), ("erfx", 0, "erf")):
    x = t.sample(name, np.float64)[::7]
    np.testing.assert_array_equal(t.run(pair, x, part=part), t.run(name, x))
print("right")
"""


def test_a_processor_without_fma_gets_right_values() -> None:
    environment = dict(
        os.environ,
        NUMBA_CPU_NAME="generic",
        PYTHONPATH=os.pathsep.join([os.path.dirname(__file__), *sys.path]),
    )
    result = subprocess.run(
        [sys.executable, "-c", GENERIC],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.stdout == "right\n", result.stderr
