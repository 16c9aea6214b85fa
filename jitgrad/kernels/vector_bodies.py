"""The bodies of elementary functions: branch-free arithmetic on ``Value`` that LLVM turns into vector instructions.

They are emitted into the caller's loop (see :mod:`jitgrad.kernels.irbuild`), and made functions by
:mod:`jitgrad.kernels.vecmath`, which says how exact they are. All but cbrt's rely on fma.

Polynomials are near-minimax, fitted by a weighted Remez exchange in 50 digits and rounded to float64; each table says
to what. ``horner`` takes coefficients in ascending order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.kernels.irbuild import (
    Value,
    at_least,
    at_most,
    bits,
    copysign,
    fabs,
    fma,
    horner,
    is_nan,
    leading_zeros,
    patched,
    resized,
    select,
    sqrt,
    table_entry,
    to_float,
    trunc,
    unbits,
)

Body = Callable[..., Any]

# ------------------------------------------------------------------------------------- constants and tables

INF, NAN = math.inf, math.nan

# Adding 1.5 * 2**52 to a float64 of moderate size leaves its nearest integer in the low bits (float32: 1.5 * 2**23).
ROUNDER, ROUNDER32 = 6755399441055744.0, 12582912.0
# An integer below 2**52 put into the low bits of 2**52 makes the float64 of that integer above 2**52.
TWO52, TWO52_BITS = 4503599627370496.0, 0x4330000000000000
ONE_BITS, ONE_BITS32 = 0x3FF0000000000000, 0x3F800000
SQRT_HALF_BITS, MANTISSA_BITS = 0x3FE6A09E667F3BCD, 0x000FFFFFFFFFFFFF
BIAS = 1023

# Pairs: a constant rounded, and the rest.
LN2 = 0.6931471805599453
LOG2_E, LOG2_E_TAIL = 1.4426950408889634, 2.0355273740931033e-17
LOG10_E, LOG10_E_TAIL = 0.4342944819032518, 1.098319650216765e-17
TWO_THIRDS, TWO_THIRDS_TAIL = 0.6666666666666666, 3.700743415417188e-17
PI_HALF, PI_HALF_TAIL = 1.5707963267948966, 6.123233995736766e-17
# ln 2 in two parts: the first has 32 significant bits, so that k * LN2_HI is exact.
LN2_HI, LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# log10(2) likewise, with 40 bits after the point.
LOG10_2_HI, LOG10_2_LO = 0.301029995663157, 8.241712586023572e-13
LN2_HI32, LN2_LO32 = 0.693145751953125, 1.42860676e-06
TWO_OVER_PI = 0.6366197723675814
# pi/2 in three parts, all positive: so x - 0*pi/2 keeps the sign of a zero x.
PIO2_1, PIO2_2, PIO2_3 = 1.5707963267948966, 6.123233995736765e-17, 1.082856673921914e-32
# 2/pi in words of 64 bits, most significant first: one of the integer part, then 1216 bits.
TWO_OVER_PI_WORDS = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
# Up to here the quotient x / (pi/2) and the three parts leave 53 good bits of the remainder.
SINCOS_LIMIT = 2.0**45

# exp(r) = 1 + r + r**2 P(r) on |r| <= ln(2)/2, error relative to exp(r).
EXP = (
    0.5000000000000007, 0.16666666666666696, 0.041666666666562414, 0.00833333333329321, 0.001388888893618022,
    0.00019841269986954686, 2.48014997515039e-05, 2.7557116861074957e-06, 2.7628231082072664e-07,
    2.516137912914217e-08,
)  # fmt: skip
EXP32 = (
    0.4999999344780462, 0.16666520631748297, 0.0416683880462062, 0.0083687168776981, 0.001381459852760012,
)  # fmt: skip
# As EXP, error relative to expm1(r).
EXPM1 = (
    0.5000000000000001, 0.1666666666666667, 0.04166666666665229, 0.008333333333326153, 0.0013888888895597217,
    0.00019841269874765153, 2.480157453791779e-05, 2.7557255461782194e-06, 2.7567927335827085e-07,
    2.510519422227151e-08, 1.7687680267023671e-09,
)  # fmt: skip
# log(1+f) = 2 s + s**3 P(s**2), s = f/(2+f), on sqrt(1/2) <= 1+f <= sqrt(2); relative error.
LOG = (
    0.666666666666671, 0.3999999999951953, 0.2857142872936539, 0.22222199081404306, 0.1818357208406401,
    0.1531314946958875, 0.14810677359592228,
)  # fmt: skip
# sin(r) = r + r**3 P(r**2) and cos(r) = 1 - r**2/2 + r**4 P(r**2) on |r| <= pi/4, relative error.
SIN = (
    -0.16666666666666644, 0.00833333333332367, -0.00019841269830152386, 2.7557313654853934e-06,
    -2.5050735063933754e-08, 1.5894740013784795e-10,
)  # fmt: skip
COS = (
    0.041666666666666595, -0.0013888888888873062, 2.4801587288853716e-05, -2.755731417961388e-07,
    2.0875700858256693e-09, -1.1358536310101444e-11,
)  # fmt: skip
# erf(a) = a + a P(a**2) on a <= 1, error relative to erf(a).
ERF_SMALL = (
    0.12837916709551256, -0.3761263890318352, 0.112837916709442, -0.026866170643113415, 0.005223977606130842,
    -0.0008548325929766244, 0.0001205529358693695, -1.4924712439534814e-05, 1.6447132699786621e-06,
    -1.6206318752969208e-07, 1.3710988704190523e-08, -7.779462971761597e-10,
)  # fmt: skip
# exp(a**2) erfc(a) = P(1/(2+a)) on 1 <= a <= 6, weighted by exp(-a**2) / erf(a): the error it makes in erf.
ERF_LARGE = (
    2.890927279487075e-05, 0.5629298913175503, 1.1531407182925018, 1.6859962601668304, 5.022604281317817,
    -8.698993190787705, 39.24497421036089, -93.2933515088767, 75.24581490175764, 37.864298639992214,
    -101.31832258934155, 49.39169041316976,
)  # fmt: skip
# log(1+f) = 2 s + 2/3 s**3 + s**5 P(s**2), as LOG.
LOG_TAIL = (
    0.3999999999999998, 0.2857142857144508, 0.22222222217543286, 0.1818181886956325, 0.15384556917203057,
    0.13336315811749747, 0.11674848081792331, 0.11988789457489606,
)  # fmt: skip
# sinh(r) = r + r**3 P(r**2) and cosh(r) = 1 + r**2/2 + r**4 P(r**2) on |r| <= ln(2)/2, relative error.
SINH = (
    0.16666666666666674, 0.008333333333322207, 0.00019841269886591, 2.7557242336680357e-06, 2.5110049895858716e-08,
)  # fmt: skip
COSH = (
    0.041666666666666685, 0.0013888888888873622, 2.4801587348465317e-05, 2.7557252488223513e-07,
    2.092155405647333e-09,
)  # fmt: skip
# tanh(a) = a - a**3 P(a**2) / (Q(a**2) + a**6) on a <= 0.625 (Cephes), relative error.
TANH_UP = (1614.6876844170845, 99.28772310019186, 0.9643991794250523)
TANH_DOWN = (4844.063053251255, 2235.4883906010045, 112.81167849163293)
# asin(s) = s + s**3 P(s**2) on s <= 1/2, relative error.
ASIN = (
    0.16666666666666702, 0.07499999999984511, 0.04464285716363594, 0.030381943144576987, 0.022372204933033622,
    0.017351756627662213, 0.01397947103515358, 0.01140715396380983, 0.010748063085275792, 0.0037806899502983936,
    0.021629907438306728, -0.02102061110459657, 0.032716104830982834,
)  # fmt: skip
# atan(v) = v + v**3 P(v**2) on v <= 1, relative error.
ATAN = (
    -0.33333333333333287, 0.19999999999990448, -0.1428571428503664, 0.11111111086448039, -0.09090908547270982,
    0.0769229971198345, -0.06666583724578304, 0.058817161647257345, -0.05259433835700789, 0.04744926271560414,
    -0.042863913024162384, 0.03821007107137346, -0.03278543854103788, 0.026151677127730793, -0.018614207853080617,
    0.01131765673252474, -0.00561239067382466, 0.0021515892866640247, -0.0005928935355723494,
    0.00010387192470766372, -8.654205755292523e-06,
)  # fmt: skip
# (a+4) exp(a**2) erfc(a) = P((a-4)/(a+4)) on 0.82 <= a <= 27.3, relative error.
ERFC = (
    1.095995661000491, -0.9765487290808815, 0.7732087022652375, -0.5408538313133053, 0.3308515878780162,
    -0.1740109372370836, 0.07638151490820362, -0.026370053392732868, 0.006112055686165537, -0.0002809583448386117,
    -0.0004550530592615246, 0.00017680978497979405, -3.632646750951435e-06, -1.885021759108638e-05,
    4.6845130559560285e-06, 1.4019203440176096e-06, -8.235394556855704e-07, -5.015570476779297e-08,
    9.586310300117381e-08, -1.1197541709869697e-08,
)  # fmt: skip
# What rounding took from the first of these.
ERFC_TAIL = 5.560146405448255e-17

# r**(-1/3) on the range of r that CBRT_BIAS gives.
CBRT = (1.7285895786616285, -1.2955864114470765, 0.7387409985810947, -0.17174559902348285)
# (BIAS - BIAS/3) 2**20, less what makes the error of the first guess of cbrt symmetric.
CBRT_BIAS = 715094163

# ----------------------------------------------------------------------------------------------- the bodies


def _ln2_multiple(x: Value) -> tuple[Value, Value, Value]:
    """x = k ln2 + r with |r| <= ln(2)/2: k + ROUNDER, r, and r's rounding error."""
    t = fma(x, LOG2_E, ROUNDER)
    k = t - ROUNDER
    h = fma(k, -LN2_HI, x)
    r = fma(k, -LN2_LO, h)
    return t, r, fma(k, -LN2_LO, h - r)


def _scaled(m: Value, n: Value) -> Value:
    """m 2**k for m of moderate size and a k in the low bits of n; a NaN stays.

    In two factors, so that overflow gives infinity and a subnormal result is rounded once.
    """
    h = n >> 1
    return m * unbits((h << 52) + ONE_BITS) * unbits(((n - h) << 52) + ONE_BITS)


def _exp_sum(x: Value, tail: Any = None) -> tuple[Value, Value]:
    """m and n with exp(x + tail) = m 2**k, sqrt(1/2) <= m <= sqrt(2) and k in the low bits of n; the tail is small."""
    t = fma(x, LOG2_E, ROUNDER)
    k = t - ROUNDER
    r = fma(k, -LN2_LO, fma(k, -LN2_HI, x))
    if tail is not None:
        r = r + tail
    return fma(r * r, horner(r, EXP), r) + 1.0, bits(t)


def exp(x: Value) -> Value:
    return _scaled(*_exp_sum(at_most(at_least(x, -746.0), 710.0)))


def exp32(x: Value) -> Value:
    c = at_most(at_least(x, -104.0), 89.0)
    t = fma(c, LOG2_E, ROUNDER32)
    k = t - ROUNDER32
    r = fma(k, -LN2_LO32, fma(k, -LN2_HI32, c))
    m = fma(r * r, horner(r, EXP32), r) + 1.0
    n = bits(t)
    h = n >> 1
    return select(is_nan(x), x, unbits(bits(m) + (h << 23)) * unbits(((n - h) << 23) + ONE_BITS32))


def exp2(x: Value) -> Value:
    x = at_most(at_least(x, -1080.0), 1030.0)
    t = x + ROUNDER
    f = x - (t - ROUNDER)
    r = f * LN2
    tail = fma(f, LN2, -r)
    return _scaled(r + fma(r * r, horner(r, EXP), tail) + 1.0, bits(t))


def _expm1_reduced(x: Value) -> tuple[Value, Value]:
    """expm1(r) with small relative error, and 2**k/2, for x = k ln2 + r."""
    t, r, tail = _ln2_multiple(x)
    return r + fma(r * r, horner(r, EXPM1), tail), unbits((bits(t) << 52) + ((BIAS - 1) << 52))


def expm1(x: Value) -> Value:
    # The doubling comes last: 2**1024 is not representable.
    q, half = _expm1_reduced(at_most(at_least(x, -50.0), 710.0))
    r = copysign(2.0 * fma(half, q, half - 0.5), x)
    return select(fabs(x) < 2.0**-54, x, r)


def tanh(x: Value) -> Value:
    # 1 - 2 E / (1 + E) with E = exp(-2a) is good from 0.6 on, a - a**3 P / Q below: one division serves both.
    a = at_most(fabs(x), 22.0)
    m, n = _exp_sum(-(a + a))
    e = unbits(bits(m) + (n << 52))
    z = a * a
    large = a > 0.6
    up = select(large, e + e, a * z * horner(z, TANH_UP))
    down = select(large, 1.0 + e, fma(z, fma(z, z + TANH_DOWN[2], TANH_DOWN[1]), TANH_DOWN[0]))
    return copysign(select(large, a.lifted(1.0), a) - up / down, x)


def _sinh_cosh_parts(a: Value) -> tuple[Value, Value, Value, Value]:
    """For a = k ln2 + r >= 0: sinh(r), cosh(r) - 1, 2**k / 8, and 2**-k / 8 as far as it counts."""
    t, r, tail = _ln2_multiple(at_most(a, 711.0))
    z = r * r
    s = r + fma(r * z, horner(z, SINH), tail)
    c = fma(z * z, horner(z, COSH), 0.5 * z)
    up = unbits((bits(t) << 52) + ((BIAS - 3) << 52))
    down = unbits((bits(ROUNDER - at_most(t - ROUNDER, 60.0)) << 52) + ((BIAS - 3) << 52))
    return s, c, up, down


# sinh(k ln2) cosh(r) + cosh(k ln2) sinh(r), and the like; a quarter of it first, for the sake of large results. The
# largest term is added last, together with its rounding error.
def sinh(x: Value) -> Value:
    s, c, up, down = _sinh_cosh_parts(fabs(x))
    odd, even = up - down, up + down
    r = copysign(4.0 * (odd + fma(even, s, fma(odd, c, (up - odd) - down))), x)
    return select(fabs(x) < 2.0**-28, x, r)


def cosh(x: Value) -> Value:
    s, c, up, down = _sinh_cosh_parts(fabs(x))
    odd, even = up - down, up + down
    return 4.0 * (even + fma(odd, s, fma(even, c, (up - even) + down)))


def _split(y: Value) -> tuple[Value, Value]:
    """e and f of y = 2**(e - BIAS) (1 + f), y > 0 and normal, where sqrt(1/2) <= 1 + f < sqrt(2)."""
    u = bits(y) + (ONE_BITS - SQRT_HALF_BITS)
    return u >> 52, unbits((u & MANTISSA_BITS) + SQRT_HALF_BITS) - 1.0


def _log_argument(x: Value) -> tuple[Value, Value]:
    """k and f with x = 2**k (1 + f), x > 0."""
    tiny = x < 2.0**-1022
    e, f = _split(select(tiny, x * 2.0**54, x))
    return unbits(e | TWO52_BITS) - select(tiny, x.lifted(TWO52 + BIAS + 54), TWO52 + BIAS), f


def _log_special(x: Value, r: Value) -> Value:
    """r, the logarithm of x > 0, or what the logarithm of another x is."""
    r = select(x > 0.0, r, select(x == 0.0, x.lifted(-INF), NAN))
    return select(x < INF, r, x)


def _log_sum(k: Value, f: Value) -> Value:
    """k ln2 + log(1 + f), the leading term f added last."""
    s = f / (2.0 + f)
    z = s * s
    h = 0.5 * f * f
    return fma(k, LN2_HI, f - (h - fma(k, LN2_LO, s * (h + z * horner(z, LOG)))))


def _log_pair(f: Value) -> tuple[Value, Value]:
    """log(1 + f) as a sum of two, the first within a rounding error or two of it."""
    s = f / (2.0 + f)
    z = s * s
    h = 0.5 * f * f
    high = f - h
    return high, ((f - high) - h) + fma(s, h + z * horner(z, LOG), -fma(0.5 * f, f, -h))


def log(x: Value) -> Value:
    return _log_special(x, _log_sum(*_log_argument(x)))


def log2(x: Value) -> Value:
    k, f = _log_argument(x)
    a, b = _log_pair(f)
    p = a * LOG2_E
    w = k + p
    rest = (k - w) + p + fma(a, LOG2_E, -p)
    return _log_special(x, w + (rest + fma(b, LOG2_E, a * LOG2_E_TAIL)))


def log10(x: Value) -> Value:
    k, f = _log_argument(x)
    a, b = _log_pair(f)
    p = a * LOG10_E
    q = k * LOG10_2_HI
    w = q + p
    rest = (q - w) + p + fma(a, LOG10_E, -p)
    return _log_special(x, w + (rest + fma(k, LOG10_2_LO, fma(b, LOG10_E, a * LOG10_E_TAIL))))


def _log1p_sum(x: Value, extra: Value | None = None) -> Value:
    """log1p(x) + extra ln2 for finite x > -1."""
    # log(y), y = 1 + x rounded, with y's rounding error scaled into f.
    y = 1.0 + x
    b = y - 1.0
    error = (1.0 - (y - b)) + (x - b)
    e, f = _split(y)
    k = unbits(e | TWO52_BITS) - (TWO52 + BIAS)
    # A large y has no error; there the scale need only be a number.
    scale = unbits(((2 * BIAS) - select(e > 2 * BIAS - 1, 2 * BIAS - 1, e)) << 52)
    return _log_sum(k if extra is None else k + extra, fma(error, scale, f))


def log1p(x: Value) -> Value:
    y = 1.0 + x
    r = select(y > 0.0, copysign(_log1p_sum(x), x), select(y == 0.0, x.lifted(-INF), NAN))
    return select(x < INF, r, x)


def asinh(x: Value) -> Value:
    # log(a + sqrt(a*a + 1)), and log(2a) where a*a would overflow.
    a = fabs(x)
    large = a > 2.0**500
    z = a * a
    u = select(large, a, a + z / (1.0 + sqrt(z + 1.0)))
    r = copysign(_log1p_sum(u, select(large, a.lifted(1.0), 0.0)), x)
    return select(a < INF, r, x)


def acosh(x: Value) -> Value:
    large = x > 2.0**500
    t = x - 1.0
    u = select(large, x, t + sqrt(fma(t, t, t + t)))
    r = select(x >= 1.0, _log1p_sum(u, select(large, x.lifted(1.0), 0.0)), NAN)
    return select(x < INF, r, x)


def atanh(x: Value) -> Value:
    a = fabs(x)
    return copysign(0.5 * log1p((a + a) / (1.0 - a)), x)


def _asin_parts(x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| > 1/2; s = sqrt((1 - |x|) / 2) if so, else |x|; asin(s) - s."""
    a = fabs(x)
    outer = a > 0.5
    z = select(outer, fma(a, -0.5, 0.5), a * a)
    s = select(outer, sqrt(z), a)
    return outer, s, s * z * horner(z, ASIN)


def asin(x: Value) -> Value:
    outer, s, t = _asin_parts(x)
    high = fma(s, -2.0, PI_HALF)
    low = fma(s, -2.0, PI_HALF - high) + fma(t, -2.0, PI_HALF_TAIL)
    return copysign(select(outer, high + low, s + t), x)


def acos(x: Value) -> Value:
    outer, s, t = _asin_parts(x)
    p = s + t
    inner = PI_HALF - (copysign(p, x) - PI_HALF_TAIL)
    left = 2.0 * (PI_HALF - (p - PI_HALF_TAIL))
    return select(outer, select(x < 0.0, left, p + p), inner)


def _atan_unit(v: Value) -> Value:
    """atan(v) for 0 <= v <= 1."""
    z = v * v
    return fma(v * z, horner(z, ATAN), v)


def atan(x: Value) -> Value:
    a = fabs(x)
    steep = a > 1.0
    p = _atan_unit(select(steep, 1.0 / a, a))
    return copysign(select(steep, PI_HALF - (p - PI_HALF_TAIL), p), x)


def atan2(y: Value, x: Value) -> Value:
    a, b = fabs(y), fabs(x)
    steep = a > b
    small, large = select(steep, b, a), select(steep, a, b)
    # Equal ones may be two zeros or two infinities.
    v = select(small == large, select(large == 0.0, large, 1.0), small / large)
    p = _atan_unit(v)
    p = select(steep, PI_HALF - (p - PI_HALF_TAIL), p)
    p = select(bits(x) < 0, 2.0 * PI_HALF - (p - 2.0 * PI_HALF_TAIL), p)
    return copysign(p, y)


def hypot(x: Value, y: Value) -> Value:
    a, b = fabs(x), fabs(y)
    first = a > b
    large, small = select(first, a, b), select(first, b, a)
    huge, tiny = large > 2.0**500, large < 2.0**-500
    scale = select(huge, x.lifted(2.0**-600), select(tiny, x.lifted(2.0**600), 1.0))
    back = select(huge, x.lifted(2.0**600), select(tiny, x.lifted(2.0**-600), 1.0))
    large, small = large * scale, small * scale
    r = back * sqrt(fma(large, large, small * small))
    return select((a == INF) | (b == INF), INF, r)


def _log_double(x: Value) -> tuple[Value, Value]:
    """log(x) for finite x > 0 as a sum of two, with a relative error of about 2**-63."""
    k, f = _log_argument(x)
    # s = f / (2 + f), to twice the precision.
    d = 2.0 + f
    inverse = 1.0 / d
    s = f * inverse
    s_tail = (fma(-s, d, f) - s * (f - (d - 2.0))) * inverse
    z = s * s
    z_tail = fma(s, s, -z) + 2.0 * s * s_tail
    cube = s * z
    cube_tail = fma(s, z, -cube) + fma(s, z_tail, s_tail * z)
    # 2 s + 2/3 s**3, largest term first, and what is left of each sum and product.
    w = cube * TWO_THIRDS
    w_tail = fma(cube, TWO_THIRDS, -w) + fma(cube, TWO_THIRDS_TAIL, cube_tail * TWO_THIRDS)
    twice = s + s
    first = twice + w
    rest = ((twice - first) + w) + (w_tail + fma(cube * z, horner(z, LOG_TAIL), s_tail + s_tail))
    base = k * LN2_HI
    total = base + first
    rest = ((base - total) + first) + fma(k, LN2_LO, rest)
    high = total + rest
    return high, (total - high) + rest


def pow(x: Value, y: Value) -> Value:
    a = fabs(x)
    # A larger exponent gives 0, 1 or infinity too.
    c = at_most(at_least(y, -(2.0**64)), 2.0**64)
    high, low = _log_double(a)
    e = c * high
    tail = fma(c, high, -e) + c * low
    # Out of range, the tail could be larger than what the exponent was clamped to.
    inside = fabs(e) < 800.0
    r = _scaled(*_exp_sum(at_most(at_least(e, -746.0), 710.0), select(inside, tail, 0.0)))
    extreme = (a == 0.0) | (a == INF)
    r = select(extreme, select((a == INF) ^ (y < 0.0), x.lifted(INF), 0.0), r)
    whole = trunc(y) == y
    half = 0.5 * y
    odd = whole & (trunc(half) != half)
    r = select(odd, copysign(r, x), r)
    r = select((x < 0.0) & (a < INF) & (whole ^ 1), NAN, r)
    r = select(is_nan(x) | is_nan(y), NAN, r)
    return select((y == 0.0) | (x == 1.0), 1.0, r)


def _quarter_turns_near(x: Value) -> tuple[Value, Value]:
    """x = n pi/2 + r with |r| <= pi/4, for |x| < SINCOS_LIMIT: r, and n mod 4 in the low bits."""
    # Cody and Waite, in three steps, the first of which is exact.
    t = fma(x, TWO_OVER_PI, ROUNDER)
    k = t - ROUNDER
    return fma(k, -PIO2_3, fma(k, -PIO2_2, fma(k, -PIO2_1, x))), bits(t)


def _quarter_turns_far(x: Value) -> tuple[Value, Value]:
    """As _quarter_turns_near, for |x| >= SINCOS_LIMIT: Payne and Hanek, in integers of 192 bits."""
    u = bits(fabs(x))
    # |x| = m 2**e. The bits of 2/pi with a weight of at least 4/2**e only add whole turns to m 2/pi: skip
    # them.
    e = (u >> 52) - (BIAS + 52)
    m = (u & MANTISSA_BITS) | (1 << 52)
    first = e + 62
    word = first >> 6
    window = resized(table_entry("jitgrad_two_over_pi", TWO_OVER_PI_WORDS, word), 256)
    for j in range(1, 4):
        entry = table_entry("jitgrad_two_over_pi", TWO_OVER_PI_WORDS, word + j)
        window = (window << 64) | resized(entry, 256)
    window = resized((window << resized(first & 63, 256)) >> 64, 192)
    # Quarter turns mod 4 in units of 2**-190; at most 61 of the bits after the point are equal.
    product = window * resized(m, 192)
    n = (product + (1 << 189)) >> 190
    fraction = product - (n << 190)
    down = fraction < 0
    fraction = select(down, -fraction, fraction)
    # Its first 53 bits, the next 53, and the exponent.
    zeros = leading_zeros(fraction)
    fraction = fraction << zeros
    high = to_float(resized(fraction >> 139, 64))
    low = to_float(resized(fraction >> 86, 64) & ((1 << 53) - 1))
    r = high * PIO2_1
    r = r + (fma(high, PIO2_1, -r) + fma(high, PIO2_2, low * (PIO2_1 * 2.0**-53)))
    r = r * unbits(((BIAS - 51) - resized(zeros, 64)) << 52)
    r = copysign(r, select(down, -x, x))
    n = resized(n, 64)
    return select(fabs(x) < INF, r, NAN), select(x < 0.0, -n, n)


def _sincos_of(r: Value, n: Value) -> tuple[Value, Value]:
    z = r * r
    # The sign is set for the sake of -0.0.
    s = copysign(fma(r * z, horner(z, SIN), r), r)
    c = fma(z * z, horner(z, COS), fma(z, -0.5, 1.0))
    even = (n & 1) == 0
    sine = unbits(bits(select(even, s, c)) ^ ((n & 2) << 62))
    cosine = unbits(bits(select(even, c, s)) ^ (((n + 1) & 2) << 62))
    return sine, cosine


def _tan_of(r: Value, n: Value) -> Value:
    s, c = _sincos_of(r, n)
    return s / c


def sin_far(x: Value) -> Value:
    return _sincos_of(*_quarter_turns_far(x))[0]


def cos_far(x: Value) -> Value:
    return _sincos_of(*_quarter_turns_far(x))[1]


def tan_far(x: Value) -> Value:
    return _tan_of(*_quarter_turns_far(x))


def far_patched(x: Value, near: Sequence[Value], *far: Body) -> Any:
    """The values in `near` where x is not far, else those of the functions in `far`."""
    values = patched(near, fabs(x) >= SINCOS_LIMIT, x, far)
    return values if len(values) > 1 else values[0]


def sincos(x: Value) -> Any:
    return far_patched(x, _sincos_of(*_quarter_turns_near(x)), sin_far, cos_far)


def sin(x: Value) -> Any:
    return far_patched(x, _sincos_of(*_quarter_turns_near(x))[:1], sin_far)


def cos(x: Value) -> Any:
    return far_patched(x, _sincos_of(*_quarter_turns_near(x))[1:], cos_far)


def tan(x: Value) -> Any:
    return far_patched(x, [_tan_of(*_quarter_turns_near(x))], tan_far)


def cbrt(x: Value) -> Value:
    # No fma here: the C libraries' cbrt is not good enough to fall back on.
    a = fabs(x)
    tiny = a < 2.0**-1022
    a = select(tiny, a * 2.0**54, a)
    # A third of the exponent (and, roughly, of the mantissa): the cube root to 4 %; the polynomial makes that
    # 2**-19.
    third = ((bits(a) >> 32) * 0x55555556) >> 32
    t = unbits((third + CBRT_BIAS) << 32)
    # In this order nothing overflows.
    r = t * (t * t / a)
    t = t * (((CBRT[3] * r + CBRT[2]) * r + CBRT[1]) * r + CBRT[0])
    # 26 bits of t, so that its square is exact, and one step of Halley's iteration.
    t = unbits((bits(t) + (1 << 26)) & -(1 << 27))
    r = a / (t * t)
    t = t + t * ((r - t) / ((t + t) + r))
    t = copysign(select(tiny, t * 2.0**-18, t), x)
    return select((fabs(x) < INF) & (x != 0.0), t, x)


def _exp_minus_square(a: Value) -> tuple[Value, Value]:
    """m and n with exp(-a*a) = m 2**k and k in the low bits of n."""
    z = a * a
    # The rounding error of z counts: exp would magnify it up to 700 times.
    return _exp_sum(-z, fma(-a, a, z))


def erfx(x: Value) -> tuple[Value, Value]:
    # Beyond the bound, exp(-a*a) is 0 and erf(a) is 1.
    a = at_most(fabs(x), 27.5)
    e = _scaled(*_exp_minus_square(a))
    # One polynomial for both ranges, with selected coefficients.
    small = a < 1.0
    v = select(small, a * a, 1.0 / (2.0 + a))
    p = horner(v, [select(small, x.lifted(s), big) for s, big in zip(ERF_SMALL, ERF_LARGE, strict=True)])
    return copysign(select(small, fma(a, p, a), fma(-e, p, 1.0)), x), e


def erf(x: Value) -> Value:
    return erfx(x)[0]


def erfc(x: Value) -> Value:
    a = at_most(fabs(x), 27.5)
    m, n = _exp_minus_square(a)
    # 1 / (a + 4) and its error, for (a - 4) / (a + 4) = 1 - 8 / (a + 4) has to be good.
    d = a + 4.0
    v = 1.0 / d
    v_tail = v * (fma(-d, v, 1.0) - v * (a - (d - 4.0)))
    p = horner(fma(v_tail, -8.0, fma(v, -8.0, 1.0)), ERFC)
    far = _scaled(m * fma(p, v, fma(p, v_tail, v * ERFC_TAIL)), n)
    near = fma(-x, horner(a * a, ERF_SMALL), 1.0 - x)
    return select(a < 0.82, near, select(x < 0.0, 2.0 - far, far))
