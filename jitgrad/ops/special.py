"""Special functions: error function, logistic family, entropies, sinc; accurate in both tails, at every order."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Value
from jitgrad.ops.blocks import POSITIVE, REAL, Call, Domain, elementwise, operation, primitive_of
from jitgrad.ops.comparison import isfinite, isnan, isneginf, isposinf
from jitgrad.ops.elementwise import LN2, abs, exp, expm1, log, log1p, rint
from jitgrad.ops.linear import copy_of
from jitgrad.ops.selection import where
from jitgrad.ops.trigonometric import cos, tanh

_WIDE: Final = Domain(-6.0, 6.0)
_NEAR_ZERO: Final = Domain(-3.0, 3.0, kinks=(0.0,))
_ABOVE_ZERO: Final = Domain(0.0, 4.0)  # a logarithm of a sum that is near 0 has few digits, whatever computes it


def _scipy(name: str) -> Callable[..., Any]:
    """The function of scipy.special, imported when a test first calls it."""

    def reference(*args: Any) -> Any:
        return getattr(importlib.import_module("scipy.special"), name)(*args)

    return reference


# --------------------------------------------------------------------------- error function


@primitive_of([lambda out, x: -2.0 * x * out])
def _gaussian(x):
    """exp(-x*x), its argument not rounded."""
    _, density = scalar.erfx(x)
    return density


@elementwise(partials=[lambda out, x: (2.0 / math.sqrt(math.pi)) * _gaussian(x)], reference=_scipy("erf"))
def erf(x):
    """Error function.

    Derivative: ``2 / sqrt(pi) * exp(-x**2)``.
    """
    return scalar.erf(x)


@elementwise(partials=[lambda out, x: (-2.0 / math.sqrt(math.pi)) * _gaussian(x)], reference=_scipy("erfc"))
def erfc(x):
    """``1 - erf(x)``, exact for large ``x``.

    Derivative: ``-2 / sqrt(pi) * exp(-x**2)``.
    """
    return scalar.erfc(x)


# --------------------------------------------------------------------------- logistic family


@primitive_of([lambda out, x: -out * tanh(0.5 * x)])
def _logistic_density(x):
    """sigmoid(x) sigmoid(-x), the same on both sides."""
    e = scalar.exp(-scalar.fabs(x))
    return e / ((1.0 + e) * (1.0 + e))


@elementwise(
    partials=[lambda out, x: _logistic_density(x)], aliases=("expit",), domain=_WIDE, reference=_scipy("expit")
)
def sigmoid(x):
    """Logistic function ``1 / (1 + exp(-x))``.

    Derivative: ``sigmoid(x) * sigmoid(-x)``.
    """
    e = scalar.exp(-scalar.fabs(x))
    return scalar.sel(x < 0.0, e, 1.0) / (1.0 + e)


@elementwise(partials=[lambda out, x: sigmoid(x)], domain=_WIDE, reference=lambda x: np.logaddexp(x, np.zeros_like(x)))
def softplus(x):
    """``log(1 + exp(x))``: a smooth ``relu``, which never overflows.

    Derivative: ``sigmoid(x)``.
    """
    return scalar.maximum(x, 0.0) + scalar.log1p(scalar.exp(-scalar.fabs(x)))


@elementwise(partials=[lambda out, x: sigmoid(-x)], aliases=("log_expit",), domain=_WIDE, reference=_scipy("log_expit"))
def log_sigmoid(x):
    """``log(sigmoid(x))``, finite wherever ``x`` is.

    Derivative: ``sigmoid(-x)``.
    """
    return -(scalar.log1p(scalar.exp(-scalar.fabs(x))) - scalar.minimum(x, 0.0))


@primitive_of([lambda out, x, y: out * _first_share(y, x), lambda out, x, y: -out * _first_share(y, x)])
def _first_share(x, y):
    """exp(x) / (exp(x) + exp(y)): 0 where both are -inf, half where both are inf."""
    e = scalar.exp(-scalar.fabs(x - y))
    share = scalar.sel(x < y, e, 1.0) / (1.0 + e)
    return scalar.sel(x == y, scalar.sel(x == scalar.log(0.0), 0.0, 0.5), share)


@elementwise(partials=[lambda out, x, y: _first_share(x, y), lambda out, x, y: _first_share(y, x)], domain=_ABOVE_ZERO)
def logaddexp(x, y):
    """``log(exp(x) + exp(y))`` without overflow.

    Derivative: ``exp(x - out)`` and ``exp(y - out)``; 0 where both are -inf.
    """
    more = scalar.log1p(scalar.exp(-scalar.fabs(x - y)))
    return scalar.maximum(x, y) + scalar.sel(x == y, 0.6931471805599453, more)


@primitive_of([lambda out, x, y: LN2 * out * _first_share2(y, x), lambda out, x, y: -LN2 * out * _first_share2(y, x)])
def _first_share2(x, y):
    """As ``_first_share`` with powers of 2."""
    e = scalar.exp2(-scalar.fabs(x - y))
    share = scalar.sel(x < y, e, 1.0) / (1.0 + e)
    return scalar.sel(x == y, scalar.sel(x == scalar.log(0.0), 0.0, 0.5), share)


@elementwise(
    partials=[lambda out, x, y: _first_share2(x, y), lambda out, x, y: _first_share2(y, x)], domain=_ABOVE_ZERO
)
def logaddexp2(x, y):
    """``log2(2**x + 2**y)`` without overflow.

    Derivative: ``2**(x - out)`` and ``2**(y - out)``; 0 where both are -inf.
    """
    more = scalar.log1p(scalar.exp2(-scalar.fabs(x - y))) * 1.4426950408889634
    return scalar.maximum(x, y) + scalar.sel(x == y, 1.0, more)


# --------------------------------------------------------------------------- rectifiers


@primitive_of([lambda out, x: 0.0])  # stays in the graph: the second derivative of relu is 0, as in PyTorch
def _is_positive(x):
    return scalar.sel(x <= 0.0, 0.0, 1.0)


@elementwise(
    partials=[lambda out, x: _is_positive(out)],
    chooses=True,
    result="same",
    refuses="b",
    domain=_NEAR_ZERO,
    reference=lambda x: np.maximum(x, 0),
)
def relu(x):
    """``x`` where it is positive, else 0; NaN stays NaN.

    Derivative: 1 for positive ``x``, else 0.
    """
    return scalar.maximum(x, 0)


@primitive_of([lambda out, x, alpha: where(x >= 0.0, 0.0, alpha * exp(x)), lambda out, x, alpha: _elu_fall(x)])
def _elu_slope(x, alpha):
    """The slope of elu; at 0 the one of least magnitude between its two sides, 1 and alpha."""
    least = scalar.minimum(scalar.maximum(alpha, 0.0), 1.0)
    return scalar.sel(x > 0.0, 1.0, scalar.sel(x == 0.0, least, alpha * scalar.exp(x)))


@primitive_of([lambda out, x: out])
def _elu_fall(x):
    return scalar.sel(x > 0.0, 0.0, scalar.exp(x))


@primitive_of(
    [lambda out, x, alpha: _elu_slope(x, alpha), lambda out, x, alpha: where(x > 0.0, 0.0, expm1(x))], result="float"
)
def _elu(x, alpha):
    return scalar.sel(x > 0.0, x, alpha * scalar.expm1(x))


def _elu_reference(x: Any, alpha: Any = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


@operation(
    samples=lambda rng: [
        Call((rng.uniform(-3.0, 3.0, (3, 4)),), {}),
        Call((rng.uniform(-3.0, 3.0, 4), 0.5), {}),
        Call((rng.uniform(-3.0, 3.0, (2, 3)), rng.uniform(0.2, 2.0, 3)), {}),
    ],
    method=True,
    reference=_elu_reference,
    remembered=True,
)
def elu(x: Any, alpha: Any = 1.0) -> Value:
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Derivative: 1 for positive ``x``, else ``alpha * exp(x)`` (at 0 the lesser of the two); and ``exp(x) - 1`` below 0.
    """
    return _elu(x, alpha)


# --------------------------------------------------------------------------- entropies


@primitive_of([lambda out, x, y: 1.0 / y, lambda out, x, y: -_zero_or_ratio(out, y)])
def _zero_or_ratio(x, y):
    """x / y, and 0 where x is 0, whatever y is."""
    return scalar.sel((x == 0.0) & ~scalar.isnan(y), 0.0, x / y)


@elementwise(
    partials=[
        lambda out, x, y: where((x == 0.0) & (y <= 0.0), 0.0, log(y)),
        lambda out, x, y: _zero_or_ratio(x, y),
    ],
    domain=(REAL, POSITIVE),
    reference=_scipy("xlogy"),
)
def xlogy(x, y):
    """``x * log(y)``, and 0 where ``x`` is 0 (NaN where ``y`` is NaN).

    Derivative: ``log(y)``, which is 0 where ``x`` is 0 and ``y`` not positive, and ``x / y``, which is 0 where ``x`` is 0.
    """
    return scalar.sel((x == 0.0) & ~scalar.isnan(y), 0.0, x * scalar.log(y))


@elementwise(
    partials=[
        lambda out, x, y: where((x == 0.0) & (y <= -1.0), 0.0, log1p(y)),
        lambda out, x, y: _zero_or_ratio(x, 1.0 + y),
    ],
    domain=(REAL, Domain(-0.9, 3.0)),
    reference=_scipy("xlog1py"),
)
def xlog1py(x, y):
    """``x * log(1 + y)``, and 0 where ``x`` is 0 (NaN where ``y`` is NaN).

    Derivative: ``log(1 + y)``, which is 0 where ``x`` is 0 and ``1 + y`` not positive, and ``x / (1 + y)``, which is 0
    where ``x`` is 0.
    """
    return scalar.sel((x == 0.0) & ~scalar.isnan(y), 0.0, x * scalar.log1p(y))


@elementwise(partials=[lambda out, x: -1.0 - log(x)], domain=POSITIVE, reference=_scipy("entr"))
def entr(x):
    """``-x * log(x)``: 0 at 0, -inf below.

    Derivative: ``-1 - log(x)``, infinite at 0.
    """
    return scalar.sel(x == 0.0, 0.0, scalar.sel(x < 0.0, scalar.log(0.0), -x * scalar.log(x)))


# --------------------------------------------------------------------------- sinc


@primitive_of(
    [
        None,
        None,
        lambda out, order, first, x: -(math.pi**2) * x * _sinc_series(order + 1.0, first / (2.0 * order + 3.0), x),
    ]
)
def _sinc_series(order, first, x):
    """j_n(z) / z**n, n = ``order``, z = pi x, by its power series for |z| <= 2; ``first`` = 1 / (3 * 5 ... (2n + 1)).

    The derivative by z is -z times the same for n + 1, so that every order is as exact as this one, 0 included
    (NIST Digital Library of Mathematical Functions, 10.53.1 and 10.51.3).
    """
    z = x * 3.141592653589793
    h = -0.5 * z * z
    m = 2.0 * order
    s = 1.0 + h * (1.0 / (11.0 * (m + 23.0)))
    s = 1.0 + h * (1.0 / (10.0 * (m + 21.0))) * s
    s = 1.0 + h * (1.0 / (9.0 * (m + 19.0))) * s
    s = 1.0 + h * (1.0 / (8.0 * (m + 17.0))) * s
    s = 1.0 + h * (1.0 / (7.0 * (m + 15.0))) * s
    s = 1.0 + h * (1.0 / (6.0 * (m + 13.0))) * s
    s = 1.0 + h * (1.0 / (5.0 * (m + 11.0))) * s
    s = 1.0 + h * (1.0 / (4.0 * (m + 9.0))) * s
    s = 1.0 + h * (1.0 / (3.0 * (m + 7.0))) * s
    s = 1.0 + h * (1.0 / (2.0 * (m + 5.0))) * s
    s = 1.0 + h * (1.0 / (m + 3.0)) * s
    return first * s


def _sinc_slope(out: Value, x: Value) -> Value:
    """(cos(pi x) - sinc(x)) / x, which would cancel near 0: there the series."""
    turn = x - 2.0 * rint(0.5 * x)
    near = -(math.pi**2) * x * _sinc_series(1.0, 1.0 / 3.0, x)
    return where(abs(x) < 0.6, near, (cos(math.pi * turn) - out) / x)


def _sinc_reference(x: Any) -> Any:
    whole = np.rint(x)  # NumPy's own loses digits next to the integers
    sine = np.sin(np.pi * (x - whole)) * (1 - 2 * (whole % 2))
    return np.where(x == 0, np.ones_like(sine), sine / (np.pi * x)) + 0.0


@elementwise(partials=[_sinc_slope], reference=_sinc_reference)
def sinc(x):
    """``sin(pi x) / (pi x)``: 1 at 0, exactly 0 at the other integers.

    Derivative: ``(cos(pi x) - sinc(x)) / x``, 0 at 0; of every order by the power series near 0, where
    ``-pi**2 / 3`` is the second.
    """
    whole = scalar.rint(x)
    odd = whole - 2.0 * scalar.floor(0.5 * whole)
    sine = scalar.sin((x - whole) * 3.141592653589793) * (1.0 - 2.0 * odd)
    return scalar.sel(x == 0.0, 1.0, sine / (x * 3.141592653589793)) + 0.0  # no -0.0 at integers


# --------------------------------------------------------------------------- replacing what is not finite


@primitive_of(
    masks=[
        lambda out, x, nan, high, low: isfinite(x),
        lambda out, x, nan, high, low: isnan(x),
        lambda out, x, nan, high, low: isposinf(x),
        lambda out, x, nan, high, low: isneginf(x),
    ]
)
def _replace_nonfinite(x, nan, high, low):
    return scalar.sel(scalar.isnan(x), nan, scalar.sel(scalar.isinf(x), scalar.sel(x > 0.0, high, low), x))


def _nan_samples(rng: np.random.Generator) -> list[Call]:
    return [
        Call((rng.uniform(-2.0, 2.0, (2, 3)),), {}),
        Call((rng.uniform(-2.0, 2.0, 3),), {"nan": 1.0, "posinf": 9.0}),
    ]


@operation(samples=_nan_samples, method=True, remembered=True)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Value:
    """NaN replaced by ``nan``, infinities by ``posinf`` and ``neginf`` (by default the extreme finite numbers).

    Integers are copied. The result is always a new array, whatever ``copy`` says.

    Derivative: the cotangent where ``x`` is finite, a structural zero elsewhere (it stays zero whatever made the NaN).

    >>> import jitgrad as jg
    >>> jg.nan_to_num([1.0, float("nan")], nan=-1.0)
    tensor([ 1., -1.])
    """
    x = as_value(x, "nan_to_num")
    if x.dtype.kind != "f":
        return copy_of(x)
    extreme = float(np.finfo(x.dtype).max)
    high = extreme if posinf is None else posinf
    low = -extreme if neginf is None else neginf
    return _replace_nonfinite(x, nan, high, low)
