"""The limits: value and gradient written by hand in Numba, as well as we know how to.

A kernel takes the arguments of its workload and one array for each gradient, which it overwrites, and returns the value.
Loops, derivatives, shared subexpressions and blocking are by hand; large products go to BLAS, the vector math of
:mod:`benchmarks.vector_math` is used, and kernels are called at their entry points, past Numba's dispatcher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  numba's BLAS symbols are found through it
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from benchmarks.vector_math import add, erfx, exp, fabs, larger, log, log1p, select, sincos, tanh, wide_vectors

__all__ = ["LIMITS", "compiled"]

# -------------------------------------------------------------------------- memory and BLAS, without checks

_I8, _I32, _I64, _F64 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.DoubleType()


@intrinsic
def load(context: Any, a: Any, i: Any) -> Any:
    """``a[i]`` of a contiguous vector, i >= 0: no test for negative indices, so that ``a[offset + i]`` vectorises."""

    def generate(numba_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = make_array(signature.args[0])(numba_context, builder, args[0])
        return builder.load(builder.gep(array.data, [args[1]], inbounds=True))

    return a.dtype(a, types.intp), generate


@intrinsic
def store(context: Any, a: Any, i: Any, x: Any) -> Any:
    """``a[i] = x``, likewise."""

    def generate(numba_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = make_array(signature.args[0])(numba_context, builder, args[0])
        builder.store(args[2], builder.gep(array.data, [args[1]], inbounds=True))
        return numba_context.get_dummy_value()

    return types.none(a, types.intp, a.dtype), generate


class _BlasCall:
    """What the two BLAS calls below need: the arrays' addresses and extents, numbers by reference."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.builder = builder
        self.arrays = [make_array(t)(context, builder, a) for t, a in zip(signature.args, args, strict=True)]
        self.addresses = [builder.bitcast(a.data, _I8.as_pointer()) for a in self.arrays]

    def extent(self, array: int, axis: int) -> Any:
        return self.builder.extract_value(self.arrays[array].shape, axis)

    def number(self, x: float) -> Any:
        slot = cgutils.alloca_once_value(self.builder, ir.Constant(_F64, x))
        return self.builder.bitcast(slot, _I8.as_pointer())

    def emit(self, symbol: str, *args: Any) -> None:
        values = [ir.Constant(_I8, ord(a)) if isinstance(a, str) else a for a in args]
        kind = ir.FunctionType(_I32, [v.type for v in values])
        self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, symbol), values)


def _gemm(transpose_a: bool, transpose_b: bool, beta: float) -> Any:
    """``o = op(a) @ op(b) + beta * o``, by rows; BLAS counts by columns, hence the exchanged operands."""

    @intrinsic
    def gemm(context: Any, a: Any, b: Any, o: Any) -> Any:
        def generate(numba_context: Any, builder: Any, signature: Any, args: Any) -> Any:
            c = _BlasCall(numba_context, builder, signature, args)
            at_a, at_b, at_o = c.addresses
            c.emit(
                "numba_xxgemm", "d", "t" if transpose_b else "n", "t" if transpose_a else "n",
                c.extent(2, 1), c.extent(2, 0), c.extent(0, 0 if transpose_a else 1), c.number(1.0),
                at_b, c.extent(1, 1), at_a, c.extent(0, 1), c.number(beta), at_o, c.extent(2, 1),
            )  # fmt: skip
            return numba_context.get_dummy_value()

        return types.none(a, b, o), generate

    return gemm


def _gemv(transpose: bool, beta: float) -> Any:
    """``o = op(a) @ x + beta * o``."""

    @intrinsic
    def gemv(context: Any, a: Any, x: Any, o: Any) -> Any:
        def generate(numba_context: Any, builder: Any, signature: Any, args: Any) -> Any:
            c = _BlasCall(numba_context, builder, signature, args)
            at_a, at_x, at_o = c.addresses
            c.emit(
                "numba_xxgemv", "d", "n" if transpose else "t", c.extent(0, 1), c.extent(0, 0), c.number(1.0),
                at_a, c.extent(0, 1), at_x, c.number(beta), at_o,
            )  # fmt: skip
            return numba_context.get_dummy_value()

        return types.none(a, x, o), generate

    return gemv


_gemm_nn, _gemm_nn_added = _gemm(False, False, 0.0), _gemm(False, False, 1.0)
_gemm_tn, _gemm_nt = _gemm(True, False, 0.0), _gemm(False, True, 0.0)
_gemv_n, _gemv_t_added = _gemv(False, 0.0), _gemv(True, 1.0)

# ------------------------------------------------------------------------------------------------ kernels

_jit = njit(error_model="numpy", nogil=True, fastmath={"contract"})
_ROOT_HALF, _DENSITY_AT_0 = 0.7071067811865476, 0.3989422804014327
_BLOCK = 256  # of Black-Scholes: its intermediate results stay in the first-level cache


@_jit
def _rosenbrock(x, gx):
    wide_vectors()
    v = 0.0
    carried = 0.0
    for i in range(x.size - 1):
        a = x[i]
        u = x[i + 1] - a * a
        w = 1.0 - a
        v += 100.0 * (u * u) + w * w
        gx[i] = carried - 400.0 * a * u - 2.0 * w
        carried = 200.0 * u
    gx[x.size - 1] = carried
    return v


@_jit
def _eight_schools(q, y, sigma, gq):
    wide_vectors()
    mu = q[0]
    log_tau = q[1]
    tau = exp(log_tau)
    squares = 0.0
    residuals = 0.0
    g_mu = 0.0
    g_tau = 0.0
    for i in range(y.size):
        effect = q[2 + i]
        r = (y[i] - (mu + tau * effect)) / sigma[i]
        d = r / sigma[i]
        squares += effect * effect
        residuals += r * r
        g_mu += d
        g_tau += d * effect
        gq[2 + i] = d * tau - effect
    a = 1.0 + tau * tau / 25.0
    gq[0] = g_mu - mu / 25.0
    gq[1] = tau * (g_tau - 2.0 * tau / 25.0 / a) + 1.0
    return -0.5 * mu * mu / 25.0 - log(a) + log_tau - 0.5 * squares - 0.5 * residuals


@_jit
def _logistic_regression(w, X, y, gw):
    wide_vectors()
    n, d = X.shape
    z = np.empty(n)
    v = 0.0
    for j in range(d):
        v += w[j] * w[j]
        gw[j] = w[j]
    v *= 0.5
    _gemv_n(X, w, z)
    for i in range(n):
        a = z[i]
        e = exp(-fabs(a))
        p = e / (1.0 + e)
        positive = a > 0.0
        v = add(v, log1p(e) + select(positive, a, 0.0) - y[i] * a)
        z[i] = select(positive, 1.0 - p, p) - y[i]
    _gemv_t_added(X, z, gw)
    return v


@_jit
def _tiny_mlp(w1, b1, w2, b2, X, Y, g1, gb1, g2, gb2):
    wide_vectors()
    n, d = X.shape
    h = b1.size
    hidden = np.empty((n, h))
    for i in range(n):
        for j in range(h):
            hidden[i, j] = b1[j]
        for k in range(d):
            a = X[i, k]
            for j in range(h):
                hidden[i, j] += a * w1[k, j]
    flat = hidden.reshape(-1)
    for i in range(flat.size):
        flat[i] = tanh(flat[i])
    for j in range(h):
        gb1[j] = 0.0
        g2[j, 0] = 0.0
        for k in range(d):
            g1[k, j] = 0.0
    v = 0.0
    gb = 0.0
    for i in range(n):
        o = 0.0
        for j in range(h):
            o = add(o, hidden[i, j] * w2[j, 0])
        o += b2[0] - Y[i, 0]
        v += o * o
        o += o
        gb += o
        for j in range(h):
            t = hidden[i, j]
            g2[j, 0] += o * t
            t = o * w2[j, 0] * (1.0 - t * t)
            hidden[i, j] = t
            gb1[j] += t
        for k in range(d):
            a = X[i, k]
            for j in range(h):
                g1[k, j] += a * hidden[i, j]
    gb2[0] = gb
    return v


@_jit
def _mlp(w1, b1, w2, b2, X, Y, g1, gb1, g2, gb2):
    wide_vectors()
    n = X.shape[0]
    h = b1.size
    c = b2.size
    hidden = np.empty((n, h))
    outputs = np.empty((n, c))
    errors = np.empty((n, h))
    _gemm_nn(X, w1, hidden)
    for i in range(n):
        for j in range(h):
            hidden[i, j] = tanh(hidden[i, j] + b1[j])
        for j in range(c):
            outputs[i, j] = b2[j]
    _gemm_nn_added(hidden, w2, outputs)
    gb1[:] = 0.0
    gb2[:] = 0.0
    v = 0.0
    r = 1.0 / n
    for i in range(n):
        m = -math.inf
        for j in range(c):
            m = larger(outputs[i, j], m)
        s = 0.0
        for j in range(c):
            s += exp(outputs[i, j] - m)
        v += (log(s) + m) * r
        q = r / s
        for j in range(c):
            o = outputs[i, j]
            y = Y[i, j]
            v -= o * y * r
            o = exp(o - m) * q - y * r
            outputs[i, j] = o
            gb2[j] += o
    _gemm_tn(hidden, outputs, g2)
    _gemm_nt(outputs, w2, errors)
    for i in range(n):
        for j in range(h):
            t = hidden[i, j]
            t = errors[i, j] * (1.0 - t * t)
            errors[i, j] = t
            gb1[j] += t
    _gemm_tn(X, errors, g1)
    return v


@_jit
def _black_scholes(S, K, T, R, W, gS, gK, gT, gR, gW):
    wide_vectors()
    n = S.size
    B = _BLOCK
    kept = np.empty(7 * B)
    out = 0.0
    for o in range(0, n, B):
        m = min(B, n - o)
        for i in range(m):
            t = load(T, o + i)
            v = load(W, o + i)
            root = math.sqrt(t)
            inverse = 1.0 / (v * root)
            store(kept, i, (log(load(S, o + i) / load(K, o + i)) + (load(R, o + i) + 0.5 * v * v) * t) * inverse)
            store(kept, B + i, inverse)
            store(kept, 2 * B + i, root)
        for i in range(m):
            f, e = erfx(load(kept, i) * _ROOT_HALF)
            store(kept, 3 * B + i, 0.5 + 0.5 * f)
            store(kept, 4 * B + i, _DENSITY_AT_0 * e)
        for i in range(m):
            f, e = erfx((load(kept, i) - load(W, o + i) * load(kept, 2 * B + i)) * _ROOT_HALF)
            store(kept, 5 * B + i, 0.5 + 0.5 * f)
            store(kept, 6 * B + i, _DENSITY_AT_0 * e)
        for i in range(m):
            s = load(S, o + i)
            k = load(K, o + i)
            t = load(T, o + i)
            r = load(R, o + i)
            v = load(W, o + i)
            root = load(kept, 2 * B + i)
            c1 = load(kept, 3 * B + i)
            c2 = load(kept, 5 * B + i)
            b = r + 0.5 * v * v
            discount = exp(-r * t)
            kd = k * discount
            out = add(out, s * c1 - kd * c2)
            g2 = -kd * load(kept, 6 * B + i)
            gn = (s * load(kept, 4 * B + i) + g2) * load(kept, B + i)
            g_deviation = -g2 - gn * load(kept, i)
            gb = gn * t
            g_discount = -kd * c2
            store(gS, o + i, c1 + gn / s)
            store(gK, o + i, -discount * c2 - gn / k)
            store(gT, o + i, gn * b - g_discount * r + g_deviation * v * 0.5 / root)
            store(gR, o + i, gb - g_discount * t)
            store(gW, o + i, gb * v + g_deviation * root)
    return out


@_jit
def _chain(x, gx):
    wide_vectors()
    v = 0.0
    for i in range(x.size):
        a = x[i]
        t = tanh(a)
        e = exp(-(a * a))
        s, c = sincos(a)
        q = 1.0 / (1.0 + a * a)
        y = t * a + e
        z = y * s + y * q
        v = add(v, z * z)
        dz = z + z
        dy = dz * (s + q)
        ds = dz * y
        gx[i] = dy * ((1.0 - t * t) * a + t - 2.0 * a * e) + ds * c - ds * (2.0 * a) * (q * q)
    return v


@_jit
def _logsumexp(x, gx):
    wide_vectors()
    n = x.size
    m = -math.inf
    for i in range(n):
        m = larger(m, x[i])
    s = 0.0
    for i in range(n):
        e = exp(x[i] - m)
        gx[i] = e
        s = add(s, e)
    r = 1.0 / s
    for i in range(n):
        gx[i] *= r
    return log(s) + m


@_jit
def _sum_of_one(a):
    v = 0.0
    for i in range(a.size):
        v = add(v, a[i])
    return v


@_jit
def _sum_of_six(a, b, c, d, e, f):
    v = 0.0
    for i in range(a.size):
        v = add(v, a[i] + b[i] + c[i] + d[i] + e[i] + f[i])
    return v


LIMITS: dict[str, Callable[..., Any]] = {
    "rosenbrock": _rosenbrock,
    "eight_schools": _eight_schools,
    "logistic_regression": _logistic_regression,
    "tiny_mlp": _tiny_mlp,
    "mlp": _mlp,
    "black_scholes": _black_scholes,
    "chain": _chain,
    "logsumexp": _logsumexp,
    "call_1_array": _sum_of_one,
    "call_6_arrays": _sum_of_six,
}


def compiled(name: str, arguments: tuple[Any, ...], gradients: int) -> Callable[..., Any]:
    """The limit of a workload, as a function of its arguments that allocates the gradients and returns all results."""
    kernel: Any = LIMITS[name]
    # glibc keeps freed blocks mapped once a large untouched one was freed: no page faults for results
    np.empty((32 << 20) // 8 - 65536)
    kernel(*arguments, *(np.empty(a.shape) for a in arguments[:gradients]))
    entry_point = next(iter(kernel.overloads.values())).entry_point
    names = [f"a{i}" for i in range(len(arguments))]
    results = [f"g{i}" for i in range(gradients)]
    text = "\n    ".join(
        [
            f"def call({', '.join(names)}):",
            *(f"{g} = empty({a}.shape)" for g, a in zip(results, names, strict=False)),
            f"return (kernel({', '.join(names + results)}), {', '.join(results)})",
        ]
    )
    space: dict[str, Any] = {"kernel": entry_point, "empty": np.empty}
    exec(text, space)
    return space["call"]  # type: ignore[no-any-return]
