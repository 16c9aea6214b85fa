"""Elementwise operations where it is easy to be wrong: kinks, singular points, tails, integers, dtypes."""

import math
import operator

import mpmath as mp
import numpy as np
import pytest
import scipy.special

import jitgrad as jg

INF, NAN = math.inf, math.nan


def gradients(function, *points):
    """The value and the gradient for every operand; arguments are lists of points."""
    operands = [jg.tensor(np.array(p, float), requires_grad=True) for p in points]
    result = function(*operands)
    result.sum().backward()
    return result.detach().numpy(), [np.zeros(o.shape) if o.grad is None else o.grad.numpy() for o in operands]


def derivative(function, points, order, dtype=np.float64):
    """The derivative of this order of a function of one operand, by as many reverse sweeps."""
    x = jg.tensor(np.array(points, dtype), requires_grad=True)
    y = function(x)
    for _ in range(order):
        (y,) = jg.autograd.grad(y.sum(), [x], create_graph=True)
    return y.detach().numpy()


def mixed(first, second, function, x, y):
    """The derivative for operand ``first``, then for ``second``, at one point."""
    operands = [jg.tensor(np.array([v], float), requires_grad=True) for v in (x, y)]
    (g,) = jg.autograd.grad(function(*operands).sum(), [operands[first]], create_graph=True)
    (h,) = jg.autograd.grad(g.sum(), [operands[second]])
    return h.item()


# ------------------------------------------------------------------------------------- kinks: one operand


@pytest.mark.parametrize(
    ("function", "points", "slopes"),
    [
        (jg.abs, [-2.0, -0.0, 0.0, 3.0], [-1, 0, 0, 1]),
        (jg.fabs, [-2.0, -0.0, 0.0, 3.0], [-1, 0, 0, 1]),
        (jg.relu, [-2.0, -0.0, 0.0, 3.0], [0, 0, 0, 1]),
        (jg.elu, [-1.0, 0.0, 2.0], [math.exp(-1.0), 1, 1]),
        (lambda x: jg.elu(x, 0.5), [-1.0, 0.0, 2.0], [0.5 * math.exp(-1.0), 0.5, 1]),
        (lambda x: jg.elu(x, 3.0), [-1.0, 0.0, 2.0], [3.0 * math.exp(-1.0), 1, 1]),
        (jg.sign, [-2.0, 0.0, INF], [0, 0, 0]),
        (jg.floor, [-1.5, 1.0, 2.7], [0, 0, 0]),
        (jg.ceil, [-1.5, 1.0, 2.7], [0, 0, 0]),
        (jg.trunc, [-1.5, 1.0, 2.7], [0, 0, 0]),
        (jg.rint, [-1.5, 1.0, 2.7], [0, 0, 0]),
        (lambda x: jg.round(x, 1), [-1.55, 1.0, 2.71], [0, 0, 0]),
        (lambda x: jg.maximum(x, 1.0), [0.0, 1.0, 2.0], [0, 0.5, 1]),
        (lambda x: jg.minimum(x, 1.0), [0.0, 1.0, 2.0], [1, 0.5, 0]),
        (lambda x: jg.clip(x, -1.0, 1.0), [-2.0, -1.0, 0.0, 1.0, 2.0], [0, 1, 1, 1, 0]),
        (lambda x: jg.clip(x, min=-1.0), [-2.0, -1.0, 0.0], [0, 1, 1]),
        (lambda x: jg.clip(x, a_max=1.0), [0.0, 1.0, 2.0], [1, 1, 0]),
        (lambda x: jg.clip(x, None, None), [0.0, 5.0], [1, 1]),
        (lambda x: jg.copysign(x, -1.0), [-2.0, 0.0, 2.0], [1, 0, -1]),
        (lambda x: jg.copysign(x, -0.0), [-2.0, 0.0, 2.0], [1, 0, -1]),
        (lambda x: jg.hypot(x, 0.0), [-2.0, 0.0, 3.0], [-1, 0, 1]),
        (jg.nan_to_num, [1.0, NAN, INF, -INF], [1, 0, 0, 0]),
        (jg.sinc, [0.0], [0]),
        (jg.sqrt, [0.0, 4.0], [INF, 0.25]),
        (jg.cbrt, [0.0, -0.0, 8.0, -8.0], [INF, INF, 1 / 12, 1 / 12]),
        (jg.reciprocal, [0.0, -0.0, 2.0], [-INF, -INF, -0.25]),
        (jg.log, [0.0, 2.0], [INF, 0.5]),
        (jg.entr, [0.0, 1.0], [INF, -1]),
    ],
)
def test_slope_at_kinks(function, points, slopes):
    np.testing.assert_allclose(derivative(function, points, 1), slopes, rtol=1e-15)


def test_division_by_zero_is_silent():
    value, (g,) = gradients(lambda x: 1.0 / x, [0.0, -0.0, 2.0])
    np.testing.assert_array_equal(value, [INF, -INF, 0.5])
    np.testing.assert_array_equal(g, [-INF, -INF, -0.25])


def test_a_zero_slope_stops_an_infinite_cotangent():
    np.testing.assert_array_equal(derivative(lambda x: jg.sqrt(jg.floor(x)), [0.5, 4.5], 1), [0, 0])


# ------------------------------------------------------------------------------------ kinks: two operands


@pytest.mark.parametrize(
    ("function", "points", "slopes"),
    [
        (jg.maximum, ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), ([0, 0.5, 1], [1, 0.5, 0])),
        (jg.minimum, ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), ([1, 0.5, 0], [0, 0.5, 1])),
        (jg.fmax, ([1.0, 2.0, NAN, 3.0], [2.0, 2.0, 2.0, NAN]), ([0, 0.5, 0, 1], [1, 0.5, 1, 0])),
        (jg.fmin, ([1.0, 2.0, NAN, 3.0], [2.0, 2.0, 2.0, NAN]), ([1, 0.5, 0, 1], [0, 0.5, 1, 0])),
        (jg.hypot, ([0.0, 3.0], [0.0, -4.0]), ([0, 0.6], [0, -0.8])),
        (jg.hypot, ([3e200, 3e-200], [4e200, 4e-200]), ([0.6, 0.6], [0.8, 0.8])),
        (jg.atan2, ([0.0, 3.0], [0.0, 4.0]), ([0, 0.16], [0, -0.12])),
        (jg.atan2, ([3e200], [4e200]), ([1.6e-201], [-1.2e-201])),
        (jg.copysign, ([2.0, -2.0, 0.0], [-3.0, 1.0, 1.0]), ([-1, -1, 0], [0, 0, 0])),
        (jg.heaviside, ([-1.0, 0.0, 2.0], [0.5, 0.5, 0.5]), ([0, 0, 0], [0, 1, 0])),
        (jg.xlogy, ([0.0, 0.0, 2.0], [2.0, 0.0, 2.0]), ([math.log(2), 0, math.log(2)], [0, 0, 1])),
        (jg.xlog1py, ([0.0, 2.0], [1.0, 1.0]), ([math.log(2), math.log(2)], [0, 1])),
        (jg.floor_divide, ([7.0, -7.0], [2.0, 2.0]), ([0, 0], [0, 0])),
        (jg.remainder, ([7.0, -7.0, 7.0], [2.0, 2.0, -2.0]), ([1, 1, 1], [-3, 4, 4])),
        (jg.fmod, ([7.0, -7.0, 7.0], [2.0, 2.0, -2.0]), ([1, 1, 1], [-3, 3, 3])),
    ],
)
def test_slopes_at_kinks_of_two(function, points, slopes):
    _, found = gradients(function, *points)
    for got, expected in zip(found, slopes, strict=True):
        np.testing.assert_allclose(got, expected, rtol=4e-16)


def test_remainder_next_to_a_multiple():
    # x / y rounds up to the multiple that x has not reached
    x, y = math.nextafter(3.0 * 0.1, 0.0), 0.1
    quotient = math.floor(mp.mpf(x) / mp.mpf(y))
    for function in (jg.remainder, jg.fmod):
        value, (_, g) = gradients(function, [x], [y])
        assert value[0] == math.fmod(x, y)
        assert g[0] == -quotient


@pytest.mark.parametrize("function", [jg.hypot, jg.atan2])
@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_second_derivative_at_the_origin_is_not_a_guess(function, first, second):
    assert math.isnan(mixed(first, second, function, 0.0, 0.0))


@pytest.mark.parametrize(
    ("function", "at_zero", "at_one"),
    [(jg.asin, 1.0, INF), (jg.acos, -1.0, -INF), (jg.atanh, 2.0, INF)],
)
def test_second_derivatives_of_inverse_functions_near_zero_and_at_the_end(function, at_zero, at_one):
    np.testing.assert_allclose(derivative(function, [1e-20, -1e-12, 0.0], 2), at_zero * np.array([1e-20, -1e-12, 0]))
    np.testing.assert_array_equal(derivative(function, [1.0], 2), [at_one])


def test_second_derivative_of_elu_at_zero_is_the_least():
    np.testing.assert_array_equal(derivative(jg.elu, [-0.0, 0.0, 1.0], 2), [0, 0, 0])


def test_clip_bounds_get_what_lies_outside():
    value, grads = gradients(jg.clip, [-2.0, -1.0, 0.0, 1.0, 2.0, 0.0], [-1.0] * 5 + [2.0], [1.0] * 6)
    np.testing.assert_array_equal(value, [-1, -1, 0, 1, 1, 1])
    np.testing.assert_array_equal(grads, [[0, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]])


def test_where_leaves_out_the_other_branch():
    def root(x):
        return jg.where(x > 0, jg.sqrt(x), 0.0)

    np.testing.assert_array_equal(derivative(root, [0.0, 4.0], 1), [0, 0.25])
    np.testing.assert_array_equal(derivative(root, [0.0, 4.0], 2), [0, -1 / 32])


def test_nan_to_num_forgets_what_made_the_nan():
    np.testing.assert_array_equal(derivative(lambda x: jg.nan_to_num(jg.log(x) * x), [0.0, 1.0], 1), [0, 1])


# ------------------------------------------------------------------------------------------------ powers


@pytest.mark.parametrize("number", [int, float])
@pytest.mark.parametrize(
    ("n", "orders"),
    [
        (0, {0: 1, 1: 0}),
        (1, {0: 0, 1: 1}),
        (2, {0: 0, 1: 0, 2: 2, 3: 0}),
        (3, {0: 0, 1: 0, 2: 0, 3: 6, 4: 0}),
        (4, {0: 0, 1: 0, 2: 0, 3: 0, 4: 24}),
        (-1, {0: INF, 1: -INF}),
    ],
)
def test_integer_powers_at_zero(number, n, orders):
    for order, expected in orders.items():
        # the gradient of a constant gradient is no graph: the power of an exponent that is an array has one
        exponent = number(n) if order <= 1 else np.array([float(n)])
        assert derivative(lambda x, e=exponent: x**e, [0.0], order)[0] == expected


@pytest.mark.parametrize(("n", "order"), [(2, 2), (3, 3), (-1, 3)])
def test_special_powers_differentiate_again(n, order):
    x = np.array([-1.5, 0.7])
    factor, power = 1.0, n
    for k in range(order):
        factor, power = factor * (n - k), power - 1
    np.testing.assert_allclose(derivative(lambda t: t**n, x, order), factor * x**power, rtol=1e-15)


@pytest.mark.parametrize("exponent", [0, 0.5, 1, 1.5, 2, 3, -1, -2, 2.5, -0.5])
def test_power_equals_numpy(exponent):
    x = np.array([0.0, 0.3, 1.0, 2.0, -2.0, INF, NAN, 1e300])
    with np.errstate(all="ignore"):
        operator_form, function_form = x**exponent, np.power(x, float(exponent))
    np.testing.assert_allclose(jg.tensor(x) ** exponent, operator_form, rtol=4e-16)
    np.testing.assert_allclose(jg.tensor(x) ** np.array(float(exponent)), function_form, rtol=4e-16)


def test_power_slopes():
    base = [0.0, 0.0, 0.0, 0.0, 0.0, -2.0, -2.0, 3.0, NAN, INF]
    exponent = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 0.0, -1.0, 0.0, 0.0]
    _, (g, _) = gradients(jg.power, base, exponent)
    np.testing.assert_allclose(g, [0, INF, 1, 0, 0, 12, 0, -1 / 9, 0, 0], rtol=1e-15)
    _, (_, g) = gradients(jg.power, [0.0, 0.0, 0.0, 2.0, 0.0], [0.0, 0.5, 3.0, 3.0, -1.0])
    np.testing.assert_allclose(g, [0, 0, 0, 8 * math.log(2.0), -INF], rtol=1e-15)


@pytest.mark.parametrize(
    ("x", "y"), [(0.0, 1.0), (0.0, 0.5), (0.0, 2.0), (0.0, 3.5), (1.3, 2.0), (1.3, 0.0), (1.3, -0.7)]
)
def test_mixed_derivative_of_power(x, y):
    if x:
        expected = x ** (y - 1) * (1 + y * math.log(x))
    else:
        expected = 0.0 if y > 1 else -INF  # the limit from above
    assert mixed(0, 1, jg.power, x, y) == pytest.approx(expected, rel=1e-14)
    assert mixed(1, 0, jg.power, x, y) == pytest.approx(expected, rel=1e-14)


def test_second_derivatives_of_power():
    assert mixed(0, 0, jg.power, 0.0, 2.0) == 2.0
    assert mixed(0, 0, jg.power, 0.0, 1.0) == 0.0
    assert mixed(0, 0, jg.power, 0.0, 0.0) == 0.0
    assert mixed(0, 0, jg.power, -2.0, 3.0) == -12.0
    assert mixed(1, 1, jg.power, 0.0, 2.0) == 0.0
    assert mixed(1, 1, jg.power, 2.0, 2.0) == pytest.approx(4 * math.log(2.0) ** 2, rel=1e-14)


def test_base_number_with_tracked_exponent():
    np.testing.assert_allclose(
        derivative(lambda y: 2.0**y, [0.0, 3.0], 1), np.array([1, 8]) * math.log(2.0), rtol=1e-15
    )
    np.testing.assert_array_equal(derivative(lambda y: 0.0**y, [0.0, 3.0], 1), [0, 0])


# --------------------------------------------------------------------------- tails and small arguments

TAILS = [-745.0, -300.0, -40.0, -1.0, -1e-3, 0.0, 1e-9, 0.5, 1.0, 37.0, 40.0, 700.0]
REFERENCES = {
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "softplus": lambda x: mp.log1p(mp.exp(x)),
    "log_sigmoid": lambda x: -mp.log1p(mp.exp(-x)),
    "expm1": mp.expm1,
    "erf": mp.erf,
    "erfc": mp.erfc,
    "sinh": mp.sinh,
    "asinh": mp.asinh,
}


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "log_sigmoid"])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_logistic_family_in_both_tails(name, order):
    def density(x):
        e = mp.exp(-abs(x))
        return e / (1 + e) ** 2

    def sigma(x):
        return 1 / (1 + mp.exp(-x))

    def bend(x):
        return -density(x) * mp.tanh(x / 2)

    exact = {
        "sigmoid": (sigma, density, bend),
        "softplus": (REFERENCES["softplus"], sigma, density),
        "log_sigmoid": (REFERENCES["log_sigmoid"], lambda x: sigma(-x), lambda x: -density(x)),
    }[name][order]
    with mp.workdps(700):  # 1 + exp(-745) is not 1
        expected = [float(exact(mp.mpf(x))) for x in TAILS]
    # a subnormal number has few digits: its last one may be wrong
    np.testing.assert_allclose(derivative(getattr(jg, name), TAILS, order), expected, rtol=1e-14, atol=5e-324)


@pytest.mark.parametrize("name", ["expm1", "erf", "erfc", "sinh", "asinh"])
@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_keep_their_digits(name, order):
    points = [-20.0, -5.0, -1.0, 1e-9, 0.3, 2.0, 6.0, 20.0]
    with mp.workdps(300):  # 1 - erf(20) is 5e-176
        expected = [float(mp.diff(REFERENCES[name], mp.mpf(x), order)) for x in points]
    np.testing.assert_allclose(derivative(getattr(jg, name), points, order), expected, rtol=1e-13)


def test_inverse_hyperbolic_slopes_do_not_overflow():
    np.testing.assert_allclose(derivative(jg.asinh, [1e200, -1e200], 1), [1e-200, 1e-200], rtol=1e-15)
    np.testing.assert_allclose(derivative(jg.acosh, [1e200], 1), [1e-200], rtol=1e-15)


def test_slopes_near_the_ends_of_the_domain():
    x = 1.0 - 2.0**-50
    with mp.workdps(50):
        exact, square = (float(1 / (1 - mp.mpf(x) ** 2) ** power) for power in (mp.mpf(0.5), 1))
    np.testing.assert_allclose(derivative(jg.asin, [x], 1), [exact], rtol=4e-16)
    np.testing.assert_allclose(derivative(jg.acos, [x], 1), [-exact], rtol=4e-16)
    np.testing.assert_allclose(derivative(jg.atanh, [x], 1), [square], rtol=4e-16)


@pytest.mark.parametrize("order", range(7))
def test_sinc_of_every_order(order):
    points = [-2.3, -0.61, -0.59, -0.1, -1e-5, 0.0, 1e-160, 0.3, 0.599, 0.601, 1.0, 5.0]

    def exact(x):
        def integrand(t):  # sinc(x) is the mean of cos(pi x t) over t from 0 to 1
            return (mp.pi * t) ** order * mp.cos(mp.pi * x * t + order * mp.pi / 2)

        return float(mp.quad(integrand, mp.linspace(0, 1, 9)))

    expected = [exact(mp.mpf(x)) for x in points]
    scale = math.pi**order / (order + 1)  # the largest magnitude of this order
    np.testing.assert_allclose(derivative(jg.sinc, points, order), expected, rtol=1e-13, atol=2e-13 * scale)
    if order == 2:
        np.testing.assert_allclose(derivative(jg.sinc, [0.0], 2), [-(math.pi**2) / 3], rtol=1e-15)


def test_sinc_is_zero_at_integers():
    same(jg.sinc(np.array([1.0, -2.0, 7.0, 1e17])), np.zeros(4))


# ---------------------------------------------------------------------------------------------- logaddexp


@pytest.mark.parametrize(("function", "base"), [(jg.logaddexp, math.e), (jg.logaddexp2, 2.0)])
def test_logaddexp_at_infinity(function, base):
    points = [-INF, INF, 1e308, -1e308, -INF, INF, 5.0], [-INF, INF, 1e308, -1e308, 3.0, 3.0, 5.0]
    value, (gx, gy) = gradients(function, *points)
    np.testing.assert_allclose(value, [-INF, INF, 1e308, -1e308, 3, INF, 5 + math.log(2, base)], rtol=1e-15)
    np.testing.assert_array_equal(gx, [0, 0.5, 0.5, 0.5, 0, 1, 0.5])
    np.testing.assert_array_equal(gy, [0, 0.5, 0.5, 0.5, 1, 0, 0.5])


def test_logaddexp_curvature_in_the_tails():
    for d in (-700.0, -40.0, 0.0, 3.0, 40.0, 700.0):
        e = math.exp(-abs(d))
        assert mixed(0, 0, jg.logaddexp, d, 0.0) == pytest.approx(e / (1 + e) ** 2, rel=1e-14)
        assert mixed(0, 1, jg.logaddexp, d, 0.0) == pytest.approx(-e / (1 + e) ** 2, rel=1e-14)
    assert mixed(0, 0, jg.logaddexp, -INF, -INF) == 0.0


def test_entropy_curvature():
    assert mixed(0, 1, jg.xlogy, 0.0, 2.0) == 0.5
    assert mixed(1, 1, jg.xlogy, 3.0, 2.0) == -0.75
    assert mixed(1, 1, jg.xlogy, 0.0, 2.0) == 0.0
    np.testing.assert_array_equal(derivative(jg.entr, [0.5], 2), [-2.0])


# ---------------------------------------------------------------------------- special values, against NumPy

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 7.0, INF, -INF, NAN, 5e-324, 1e-310, 1e300, -1e300]
UNARY = [
    "negative", "positive", "abs", "sign", "square", "reciprocal", "sqrt", "cbrt", "floor", "ceil", "trunc", "rint",
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "deg2rad", "rad2deg", "isnan", "isfinite", "isinf", "isposinf",
    "isneginf", "signbit", "logical_not",
]  # fmt: skip
BINARY = [
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "hypot", "atan2", "copysign",
    "heaviside", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor", "power",
]  # fmt: skip
ORDERED_ZEROS = {"maximum", "minimum", "fmax", "fmin"}  # -0.0 < 0.0 here; NumPy takes either


def same(got, expected, name="", units=4):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    info = np.finfo(expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=units * info.eps, atol=info.smallest_subnormal)
    signed = ~np.isnan(expected)
    if name in ORDERED_ZEROS:
        signed &= expected != 0
    np.testing.assert_array_equal(np.signbit(got[signed]), np.signbit(expected[signed]))


SINGLE = ["abs", "sign", "floor", "rint", "sqrt", "exp", "tanh", "isnan"]  # one of each kind; the others are alike


@pytest.mark.parametrize(("name", "dtype"), [(n, np.float64) for n in UNARY] + [(n, np.float32) for n in SINGLE])
def test_unary_equals_numpy(name, dtype):
    with np.errstate(all="ignore"):
        x = np.array(SPECIAL).astype(dtype)
        expected = getattr(np, name)(x)
    same(getattr(jg, name)(x), expected)


@pytest.mark.parametrize("name", BINARY)
def test_binary_equals_numpy(name):
    x, y = np.array(SPECIAL)[:, None], np.array(SPECIAL)[None]
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    same(getattr(jg, name)(x, y), expected, name)


@pytest.mark.parametrize("name", ["erf", "erfc", "expit", "log_expit", "entr"])
def test_special_functions_equal_scipy(name):
    x = np.array([*SPECIAL, -30.0, -6.0, -0.3, 2.0, 6.0, 26.0])
    with np.errstate(all="ignore"):
        expected = getattr(scipy.special, name)(x)
    same(getattr(jg, name)(x), expected)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_special_functions_of_two_equal_scipy(name):
    x, y = np.array(SPECIAL)[:, None], np.array(SPECIAL)[None]
    with np.errstate(all="ignore"):
        expected = getattr(scipy.special, name)(x, y)
    np.testing.assert_allclose(getattr(jg, name)(x, y), expected, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_entropy_terms_have_the_derivatives_of_pytorch(name, dtype):
    """PyTorch 2: ``log(y)``, 0 where x = 0 and the logarithm is none; ``x / y`` (but 0, not NaN, for 0 / 0)."""
    values = [0.0, -0.0, 2.0, 0.5, -2.0, -0.5, -1.0, 1.0, NAN, INF, -INF]
    x, y = (a.ravel() for a in np.meshgrid(np.array(values, dtype), np.array(values, dtype)))
    z = y if name == "xlogy" else dtype(1) + y
    with np.errstate(all="ignore"):
        empty = (x == 0) & (z <= 0)
        by_x = np.where(empty, dtype(0), np.log(y) if name == "xlogy" else np.log1p(y))
        by_y = np.where((x == 0) & (z == 0), dtype(0), x / z)
        by_both = np.where(empty, dtype(0), 1 / z)
    function = getattr(jg, name)
    for f in (function, jg.jit(function)):
        a, b = jg.tensor(x, requires_grad=True), jg.tensor(y, requires_grad=True)
        f(a, b).sum().backward()
        assert a.grad.dtype == b.grad.dtype == dtype
        np.testing.assert_allclose(a.grad.numpy(), by_x, rtol=1e-6 if dtype is np.float32 else 1e-15)
        np.testing.assert_allclose(b.grad.numpy(), by_y, rtol=1e-6 if dtype is np.float32 else 1e-15)
    tangent = jg.jvp(lambda x: function(x, y), (x,), (np.ones_like(x),))[1]
    np.testing.assert_allclose(tangent, by_x, rtol=1e-6 if dtype is np.float32 else 1e-15)
    second = jg.grad(lambda y: jg.grad(lambda x: function(x, y).sum())(x).sum())(y)
    np.testing.assert_allclose(second, by_both, rtol=1e-6 if dtype is np.float32 else 1e-15)


@pytest.mark.parametrize("decimals", [0, 1, 3, -1, -2])
def test_round_equals_numpy(decimals):
    for x in (np.array([0.5, 1.5, -2.5, 0.126, 123.456, -155.0, 250.0]), np.array([5, 15, -25, 155, 1234])):
        same(jg.round(x, decimals), np.round(x, decimals))
    same(jg.around(np.float32([2.675]), 2), np.round(np.float32([2.675]), 2))


def test_nan_to_num_values():
    x = np.array([1.0, NAN, INF, -INF])
    for dtype in (np.float64, np.float32):
        same(jg.nan_to_num(x.astype(dtype)), np.nan_to_num(x.astype(dtype)))
    same(jg.nan_to_num(x, nan=1.5, posinf=9.0), np.nan_to_num(x, nan=1.5, posinf=9.0))
    same(jg.nan_to_num(np.array([1, 2])), np.array([1, 2]))


# ---------------------------------------------------------------------------------------------- integers


def integers(dtype):
    info = np.iinfo(dtype)
    signed = [-1, -3, -7] if info.min < 0 else []
    return np.array([0, 1, 2, 3, 7, 31, 63, 64, 100, info.min, info.max, *signed], dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64])
@pytest.mark.parametrize(
    "name",
    [
        "add", "subtract", "multiply", "floor_divide", "remainder", "fmod", "maximum", "fmin", "less",
        "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    ],
)  # fmt: skip
def test_integer_arithmetic_equals_numpy(name, dtype):
    x, y = integers(dtype)[:, None], integers(dtype)[None]
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    same(getattr(jg, name)(x, y), expected)


def test_integers_divide_as_float64():
    x, y = np.array([1, 2, -3, 0], np.int8), np.array([2, 0, 0, 0], np.int8)
    same(jg.divide(x, y), np.array([0.5, INF, -INF, NAN]))


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "left_shift", "right_shift"])
def test_arithmetic_at_the_ends_of_int64(name):
    x, y = integers(np.int64)[:, None], integers(np.int64)[None]
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    same(getattr(jg, name)(x, y), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64])
@pytest.mark.parametrize("name", ["negative", "abs", "sign", "square", "invert", "floor", "trunc", "signbit", "isinf"])
def test_integer_functions_equal_numpy(name, dtype):
    x = integers(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
    if name == "signbit":
        expected = x < 0
    same(getattr(jg, name)(x), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_integer_powers_equal_numpy(dtype):
    x, y = integers(dtype)[:, None], np.array([0, 1, 2, 3, 5, 9], dtype)[None]
    same(jg.power(x, y), x**y)
    same(jg.tensor(x) ** 2, x**2)
    same(2 ** jg.tensor(y), 2**y)
    same(jg.tensor(np.array([4, 9])) ** 0.5, np.array([2.0, 3.0]))


@pytest.mark.parametrize("exponent", [-1, -2, np.array([2, -1])])
def test_negative_powers_of_integers_are_refused(exponent):
    with pytest.raises(ValueError, match="negative integer powers"):
        jg.tensor([2, 3]) ** exponent
    np.testing.assert_array_equal(jg.float_power([2, 4], -1), [0.5, 0.25])


def test_booleans():
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    for op in (operator.add, operator.mul, operator.and_, operator.or_, operator.xor, operator.eq, operator.lt):
        same(op(jg.tensor(a), b), op(a, b))
    same(~jg.tensor(a), ~a)
    same(abs(jg.tensor(a)), abs(a))
    same(jg.maximum(a, b), np.maximum(a, b))
    same(jg.power(a, b), np.power(a, b))
    for refused in (
        lambda t: t - t,
        lambda t: -t,
        lambda t: +t,
        jg.sign,
        lambda t: t // t,
        lambda t: t << t,
    ):
        with pytest.raises(jg.errors.DtypeError, match="bool"):
            refused(jg.tensor(a))


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift])
def test_bits_of_floats_are_refused(op):
    with pytest.raises(jg.errors.DtypeError, match="float64"):
        op(jg.tensor([1.0]), jg.tensor([2.0]))
    with pytest.raises(jg.errors.DtypeError, match="float64"):
        ~jg.tensor([1.0])


# ---------------------------------------------------------------------------------------------- operators

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
IN_PLACE = [getattr(operator, f"i{op.__name__.strip('_')}") for op in ARITHMETIC]


@pytest.mark.parametrize("op", [*ARITHMETIC, *BITS])
def test_operators_with_numbers_on_both_sides(op):
    x = np.array([5, 7, 2])
    t = jg.tensor(x)
    same(op(t, 3), op(x, 3))
    same(op(3, t), op(3, x))
    same(op(t, x), op(x, x))
    same(op(x, t), op(x, x))


@pytest.mark.parametrize("op", IN_PLACE)
def test_in_place_operators_keep_gradients(op):
    start = np.array([1.5, 2.5])
    x = jg.tensor(start, requires_grad=True)
    y = x * 1.0
    y = op(y, 2)
    expected = op(start.copy(), 2)
    np.testing.assert_array_equal(y.detach(), expected)
    y.sum().backward()
    slopes = {"imul": [2, 2], "itruediv": [0.5, 0.5], "ifloordiv": [0, 0], "ipow": [3, 5]}
    np.testing.assert_array_equal(x.grad, slopes.get(op.__name__, [1, 1]))


@pytest.mark.parametrize("op", [operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift])
def test_in_place_operators_on_bits(op):
    np.testing.assert_array_equal(op(jg.tensor([5, 7]), 2), op(np.array([5, 7]), 2))


def test_divmod():
    for x, y in ((np.array([7.5, -7.5]), 2.0), (np.array([7, -7, 3]), np.array([2, 2, 0])), (7.0, np.float32([2.0]))):
        with np.errstate(all="ignore"):
            expected = np.divmod(x, y)
        for got, want in zip(jg.divmod(x, y), expected, strict=True):
            same(got, want)


# ------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x**2, lambda x: x**3, lambda x: x**1.7, lambda x: 2.0**x, lambda x: jg.maximum(x, 1),
        lambda x: jg.where(x > 0.5, x, 0.0), lambda x: jg.clip(x, 0, 1.5), lambda x: jg.clip(x, min=0.75),
        jg.relu, jg.elu, jg.sigmoid, jg.softplus, jg.log_sigmoid, jg.sinc, jg.entr, jg.erf, jg.erfc,
        lambda x: jg.xlogy(x, 2), lambda x: jg.logaddexp(x, 0), lambda x: jg.hypot(x, 1), lambda x: jg.atan2(x, 1),
        lambda x: jg.remainder(x, 1), jg.nan_to_num, lambda x: jg.round(x, 1), jg.deg2rad, jg.asin, jg.abs, jg.fabs,
        lambda x: jg.fmax(x, 0.75), lambda x: 1 / x, lambda x: jg.heaviside(x, 0.5), lambda x: jg.logaddexp2(x, 1),
    ],
)  # fmt: skip
def test_float32_stays_float32(function):
    points = np.float32([0.5, 0.75, 0.9])
    x = jg.tensor(points, requires_grad=True)
    y = function(x)
    assert y.dtype == np.float32
    y.sum().backward()
    assert x.grad.dtype == np.float32
    np.testing.assert_allclose(y.detach(), function(jg.tensor(points.astype(float))), rtol=2e-6)
    np.testing.assert_allclose(x.grad, derivative(function, points.astype(float), 1), rtol=4e-6)


def test_python_numbers_do_not_widen():
    x = np.float32([1.0, -2.0])
    for function in (jg.add, jg.multiply, jg.maximum, jg.power, jg.hypot, jg.logaddexp, jg.fmin):
        assert function(x, 2).dtype == function(2.0, x).dtype == np.float32
    assert jg.where([True, False], x, 1).dtype == np.float32
    assert jg.where([True, False], 1, np.array([1, 2], np.int8)).dtype == np.int8
    assert jg.where([True, False], 1, 2.0).dtype == np.float64
    assert jg.where(np.array([2, 0]), x, np.array([1.0, 2.0])).dtype == np.float64


def test_condition_of_where_may_be_numbers():
    np.testing.assert_array_equal(jg.where([2.0, 0.0, NAN], 1, 0), [1, 0, 1])


# --------------------------------------------------------------------------------------------- closeness


def test_isclose_equals_numpy():
    x = np.array([1.0, 1.0, NAN, NAN, INF, INF, -INF, 0.0, 1e10])
    y = np.array([1.0 + 1e-6, 1.1, NAN, 1.0, INF, -INF, -INF, 1e-9, 1.00001e10])
    for arguments in ({}, {"equal_nan": True}, {"rtol": 0.0, "atol": 0.0}, {"rtol": 1.0}):
        same(jg.isclose(x, y, **arguments), np.isclose(x, y, **arguments))
        assert jg.allclose(x, y, **arguments) is np.allclose(x, y, **arguments)
    same(jg.isclose([1, 2], [1, 3]), np.array([True, False]))
    assert jg.allclose(np.float32([0.1]), 0.1) is True


def test_array_equal():
    assert jg.array_equal([1, 2], [1, 2]) is True
    assert jg.array_equal([1, 2], [1.0, 2.5]) is False
    assert jg.array_equal([1, 2], [1]) is False
    assert jg.array_equal([NAN], [NAN]) is False
    assert jg.array_equal([NAN], [NAN], equal_nan=True) is True


# ------------------------------------------------------------------------------------------------- errors


def test_errors():
    with pytest.raises(jg.errors.ShapeError, match=r"\(2,\) and \(3,\)"):
        jg.tensor([1.0, 2.0]) + np.ones(3)
    with pytest.raises(TypeError, match="takes 2 arguments"):
        jg.maximum(1.0)
    with pytest.raises(jg.errors.ArgumentError, match="each bound once"):
        jg.clip([1.0], min=0.0, a_min=0.0)
    with pytest.raises(jg.errors.DtypeError, match="int64"):
        jg.reciprocal([2, 3])  # NumPy gives [0, 0]
    with pytest.raises(TypeError):
        jg.tensor([1.0]) ** "2"
    with pytest.raises(jg.errors.DtypeError, match="complex"):
        jg.exp(1j)
    with pytest.raises(jg.errors.DtypeError):
        jg.add(np.array([1, 2], np.uint8), 300)


def test_names_of_numpy_and_the_array_api():
    pairs = [
        ("arcsin", "asin"), ("arccos", "acos"), ("arctan", "atan"), ("arctan2", "atan2"), ("arcsinh", "asinh"),
        ("arccosh", "acosh"), ("arctanh", "atanh"), ("absolute", "abs"), ("true_divide", "divide"),
        ("mod", "remainder"),
        ("pow", "power"), ("fix", "trunc"), ("radians", "deg2rad"), ("degrees", "rad2deg"), ("around", "round"),
        ("bitwise_not", "invert"), ("bitwise_invert", "invert"), ("bitwise_left_shift", "left_shift"),
        ("bitwise_right_shift", "right_shift"), ("expit", "sigmoid"), ("log_expit", "log_sigmoid"),
    ]  # fmt: skip
    for alias, name in pairs:
        assert getattr(jg, alias).__doc__ is getattr(jg, name).__doc__ is not None


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (3, 1)])
def test_shapes(shape):
    x = np.full(shape, 0.5)
    for function in (
        jg.exp,
        jg.sinc,
        lambda v: jg.clip(v, 0.0, 1.0),
        lambda v: jg.power(v, 3),
        lambda v: jg.round(v, 1),
    ):
        value, (g,) = gradients(function, x)
        assert value.shape == g.shape == shape


def test_operands_that_are_not_contiguous():
    x = np.arange(12.0).reshape(3, 4).T[::2]
    value, (g, h) = gradients(jg.multiply, x, x[:1])
    np.testing.assert_array_equal(value, x * x[:1])
    np.testing.assert_array_equal(g, np.broadcast_to(x[:1], x.shape))
    np.testing.assert_array_equal(h, x.sum(0, keepdims=True))


def test_second_derivative_of_relu_is_zero_not_an_error() -> None:
    x = jg.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    (first,) = jg.autograd.grad(jg.relu(x).sum(), x, create_graph=True)
    (second,) = jg.autograd.grad(first.sum(), x)
    assert first.tolist() == [0.0, 0.0, 1.0]
    assert second.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("function", "sign"),
    [
        (jg.relu, 1.0),
        (lambda x: jg.maximum(x, 0.0), 1.0),
        (lambda x: jg.fmax(0.0, x), 1.0),
        (lambda x: jg.clip(x, 0.0, 9.0), 1.0),
        (lambda x: jg.clip(x, 0.0, None), 1.0),
        (lambda x: -jg.minimum(x, 0.0), -1.0),
        (lambda x: -jg.fmin(0.0, x), -1.0),
        (lambda x: -jg.clip(x, None, 0.0), -1.0),
    ],
)
def test_what_is_not_chosen_gets_nothing_of_an_infinite_cotangent(function, sign):
    """The root of what is cut off at 0: its derivative is infinite there, and the operand was not looked at."""

    def root(x):
        return jg.sqrt(function(x)).sum()

    x = np.array([-4.0, -1.0, 1.0, 4.0])
    slope = np.where(sign * x > 0.0, sign * 0.5 / np.sqrt(np.abs(x)), 0.0)
    curvature = np.where(sign * x > 0.0, -0.25 / np.abs(x) ** 1.5, 0.0)
    for gradient in (jg.grad(root), jg.jit(jg.grad(root)), jg.vmap(jg.grad(root))):
        np.testing.assert_allclose(gradient(x), slope, rtol=1e-15)
    leaf = jg.tensor(x, requires_grad=True)
    root(leaf).backward()
    np.testing.assert_allclose(leaf.grad.numpy(), slope, rtol=1e-15)
    chosen = x[sign * x > 0.0]
    np.testing.assert_allclose(np.diag(jg.hessian(root)(chosen)), curvature[sign * x > 0.0], rtol=1e-14)
    nan = jg.grad(lambda x: (function(x) * np.nan).sum())(x)
    np.testing.assert_array_equal(np.isnan(nan), sign * x > 0.0)
