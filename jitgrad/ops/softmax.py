"""logsumexp, softmax and log_softmax: stable for any finite input, and at infinities.

Exponentials are taken of the distance to the greatest element, so that nothing overflows. Where that one is infinite,
the limit is taken: the infinite elements share all the weight. The kernels work on rows; float32 sums run in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import make_aval
from jitgrad.core.dispatch import as_value, constant
from jitgrad.core.primitive import ArrayCall, Value
from jitgrad.kernels.kernel import ArrayKernel, KernelPart
from jitgrad.ops import array_calls
from jitgrad.ops.array_primitives import array_call
from jitgrad.ops.axes import dropped_shape, from_rows, reduced_axes, rows_of
from jitgrad.ops.blocks import Call, host, operation
from jitgrad.ops.comparison import isinf
from jitgrad.ops.elementwise import exp, log, log1p
from jitgrad.ops.linear import convert, copy_of, expand, flat, spread, sum_over
from jitgrad.ops.reduction import Axis, floating, kept, max_over, reduction_samples
from jitgrad.ops.selection import where

__all__ = ["log_softmax", "logsumexp", "softmax"]


def _spread_sum(x: Value, axes: tuple[int, ...]) -> Value:
    """The sums over the axes, at every element that went into them."""
    return spread(sum_over(x, axes=axes), x.shape, axes)


def _like_first(x, *_, **_params):
    return make_aval(x.shape, x.dtype)


def _by_rows(axes, *operands):
    """The operands as rows of the axes, which are the last ones."""
    return tuple([array_calls.rows(v, len(axes)) for v in operands])


# --------------------------------------------------------------------------- the same in operations, to be fused


def _top(x, axes):
    """The greatest element, at every element; None where there is none."""
    return spread(max_over(x, axes=axes), x.shape, axes) if x.size else None


def _softmax_expression(x, *, axes, nothing):
    top = _top(x, axes)
    if top is None:
        return copy_of(x)
    weights = where(top == np.inf, convert(x == top, dtype=x.dtype), exp(x - top))
    shares = weights * spread(1.0 / sum_over(weights, axes=axes), x.shape, axes)
    return where(top == -np.inf, float("nan") if nothing is None else nothing, shares)


def _log_total(x, top, axes):
    """``log(sum(exp(x - top)))``; the greatest element, of weight 1, takes no digits from the others."""
    greatest = x == top
    ties = sum_over(convert(greatest, dtype=x.dtype), axes=axes)
    rest = sum_over(where(greatest, 0.0, exp(x - top)), axes=axes)
    return log1p((ties - 1.0) + rest), ties


def _logsumexp_expression(x, *, axes):
    top = _top(x, axes)
    if top is None:
        return expand(constant(-np.inf, x.dtype, x), shape=dropped_shape(x.shape, axes))
    best = max_over(x, axes=axes)
    return where(isinf(best), best, best + _log_total(x, top, axes)[0])


def _log_softmax_expression(x, *, axes):
    top = _top(x, axes)
    if top is None:
        return copy_of(x)
    total, ties = _log_total(x, top, axes)
    at_infinity = where(x == top, spread(0.0 - log(ties), x.shape, axes), -np.inf)
    return where(top == np.inf, at_infinity, (x - top) - spread(total, x.shape, axes))


# --------------------------------------------------------------------------- softmax


@KernelPart
def softmax_of_row(row, share, nothing, made):
    """``exp(row) / sum(exp(row))`` times the share; ``nothing`` where every element is -inf."""
    n = row.size
    top = row[0]
    for k in range(n):
        top = scalar.maximum(top, row[k])
    if top == -np.inf:
        for k in range(n):
            made[k] = share * nothing
    elif top == np.inf:
        ties = 0
        for k in range(n):
            ties += row[k] == top
        for k in range(n):
            made[k] = scalar.sel(row[k] == top, share / ties, 0.0)
    else:
        for k in range(n):
            made[k] = scalar.exp(row[k] - top)
        total = 0.0
        # a loop of its own: one that also writes adds up in another order where it is near to what it reads
        for k in range(n):
            total = scalar.radd(total, made[k])
        scale = share / total
        for k in range(n):
            made[k] = made[k] * scale


@ArrayKernel
def softmax_kernel(x, nothing, out):
    for r in range(x.shape[0] if x.shape[1] else 0):
        softmax_of_row(x[r], 1.0, nothing, out[r])


@ArrayKernel
def softmax_shares_kernel(g, x, out):
    for r in range(x.shape[0] if x.shape[1] else 0):
        softmax_of_row(x[r], np.float64(g[r]), 0.0, out[r])


@ArrayKernel
def softmax_pull_kernel(g, weights, out):
    """``weights * (g - sum(g * weights))`` of each row."""
    n = weights.shape[1]
    for r in range(weights.shape[0]):
        row = weights[r]
        pulled = g[r]
        made = out[r]
        total = 0.0
        for k in range(n):
            total = scalar.radd(total, pulled[k] * row[k])
        for k in range(n):
            made[k] = row[k] * (pulled[k] - total)


def _pull_vjp(h, out, g, weights, *, axes):
    """The map is symmetric in ``g``; in the weights it is their product with a difference."""
    of_weights = h * (g - _spread_sum(g * weights, axes)) - g * _spread_sum(h * weights, axes)
    return softmax_pull(h, weights, axes=axes), of_weights


def _pull_jvp(tangents, out, g, weights, *, axes):
    tg, tw = tangents
    moved = None if tg is None else softmax_pull(tg, weights, axes=axes)
    if tw is not None:
        turned = tw * (g - _spread_sum(g * weights, axes)) - weights * _spread_sum(g * tw, axes)
        moved = turned if moved is None else moved + turned
    return moved


@array_call(
    infer=_like_first,
    last="axes",
    vjp=_pull_vjp,
    jvp=_pull_jvp,
    expression=lambda g, weights, *, axes: weights * (g - _spread_sum(g * weights, axes)),
)
def softmax_pull(g, weights, out, *, axes):
    return ArrayCall(softmax_pull_kernel, _by_rows(axes, g, weights, out))


@array_call(
    infer=_like_first,
    last="axes",
    vjp=lambda g, out, x, *, axes, nothing: (softmax_pull(g, out, axes=axes),),
    jvp=lambda tangents, out, x, *, axes, nothing: softmax_pull(tangents[0], out, axes=axes),
    expression=_softmax_expression,
)
def softmax_over(x, out, *, axes, nothing):
    row, made = _by_rows(axes, x, out)
    return ArrayCall(softmax_kernel, (row, float("nan") if nothing is None else nothing, made))


def _shares_vjp(h, out, g, x, *, axes):
    weights = softmax_over(x, axes=axes, nothing=0.0)
    return sum_over(h * weights, axes=axes), softmax_pull(h * spread(g, x.shape, axes), weights, axes=axes)


def _shares_jvp(tangents, out, g, x, *, axes):
    tg, tx = tangents
    moved = None if tg is None else softmax_shares(tg, x, axes=axes)
    if tx is not None:
        turned = spread(g, x.shape, axes) * softmax_pull(tx, softmax_over(x, axes=axes, nothing=0.0), axes=axes)
        moved = turned if moved is None else moved + turned
    return moved


def _shares_expression(g, x, *, axes):
    weights = _softmax_expression(x, axes=axes, nothing=0.0)
    return weights * spread(g, x.shape, axes)


@host(
    infer=lambda g, x, *, axes: make_aval(x.shape, x.dtype),
    vjp=_shares_vjp,
    jvp=_shares_jvp,
    expression=_shares_expression,
)
def softmax_shares(g, x, *, axes):
    """``g`` handed out in the shares of a softmax, and nothing where every element is -inf."""
    rows = rows_of(x, axes)
    out = np.empty_like(rows)
    softmax_shares_kernel(flat(g), rows, out)
    return from_rows(out, x.shape, axes)


def _softmax_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    return [
        Call((a,), {}),
        Call((a,), {"axis": 1}),
        Call((a, 0), {}),
        Call((a,), {"axis": None}),
        Call((a,), {"axis": (0, -1)}),
        Call((a[0] * 300.0,), {}),
        Call((np.zeros((2, 0)),), {}),
    ]


def _float(x: Any) -> Any:
    dtype = np.asarray(x).dtype
    return dtype if dtype.kind == "f" else np.float64


def _reference_axes(x: Any, axis: Any) -> Any:
    return tuple(range(np.ndim(x))) if axis is None else axis


def _softmax_reference(x: Any, axis: Any = -1) -> Any:
    """The definition; where the greatest element is inf, the infinite ones share the weight."""
    x, axis = np.asarray(x, _float(x)), _reference_axes(x, axis)
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    weights = np.where(top == np.inf, np.where(np.isnan(x), np.nan, x == np.inf), np.exp(x - top))
    return weights / np.sum(weights, axis=axis, keepdims=True)


@operation(samples=_softmax_samples, method=True, reference=_softmax_reference, remembered=True)
def softmax(x: Any, axis: Axis = -1) -> Value:
    """``exp(x) / sum(exp(x))`` along an axis (the last by default; a tuple of axes or None for all).

    Never overflows: elements are taken relative to the greatest. Where that is inf, the infinite elements share the
    weight evenly; a row of -inf alone gives NaN. Integers become float64. Derivative: ``s * (g - sum(g * s))``.

    >>> import jitgrad as jg
    >>> jg.softmax([1000.0, 1000.0])
    tensor([0.5, 0.5])
    """
    x = floating(as_value(x, "softmax"), None, "softmax")
    return softmax_over(x, axes=reduced_axes(axis, x.ndim, "softmax"), nothing=None)


# --------------------------------------------------------------------------- logsumexp


@ArrayKernel
def logsumexp_kernel(x, out):
    """``log(sum(exp(x)))`` of each row."""
    n = x.shape[1]
    for r in range(x.shape[0]):
        if n == 0:
            out[r] = -np.inf
            continue
        row = x[r]
        top = row[0]
        for k in range(n):
            top = scalar.maximum(top, row[k])
        if scalar.isinf(top):
            out[r] = top
        else:
            # the greatest element has weight 1: left out of the sum, it takes no digits from the others
            total = -1.0
            rest = 0.0
            for k in range(n):
                greatest = row[k] == top
                total = scalar.radd(total, scalar.sel(greatest, 1.0, 0.0))
                rest = scalar.radd(rest, scalar.sel(greatest, 0.0, scalar.exp(row[k] - top)))
            out[r] = top + scalar.log1p(total + rest)


def _logsumexp_jvp(tangents, out, x, *, axes):
    return sum_over(tangents[0] * softmax_over(x, axes=axes, nothing=0.0), axes=axes)


@array_call(
    infer=lambda x, *, axes: make_aval(dropped_shape(x.shape, axes), x.dtype),
    last="axes",
    # the weights are computed anew: exp(x - out) would lose the digits that a large result has lost
    vjp=lambda g, out, x, *, axes: (softmax_shares(g, x, axes=axes),),
    jvp=_logsumexp_jvp,
    expression=_logsumexp_expression,
)
def logsumexp_over(x, out, *, axes):
    return ArrayCall(logsumexp_kernel, (*_by_rows(axes, x), array_calls.flat(out)))


def _logsumexp_reference(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return np.log(np.sum(np.exp(x, dtype=_float(x)), axis=axis, keepdims=keepdims))


@operation(samples=reduction_samples, method=True, reference=_logsumexp_reference, remembered=True)
def logsumexp(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Value:
    """``log(sum(exp(x)))`` over axes (all by default), which never overflows; -inf of no elements.

    Integers become float64. Derivative: ``softmax(x)``; 0 where every element is -inf.

    >>> import jitgrad as jg
    >>> jg.logsumexp([1000.0, 1000.0])
    tensor(1000.69314718)
    """
    x = floating(as_value(x, "logsumexp"), None, "logsumexp")
    axes = reduced_axes(axis, x.ndim, "logsumexp")
    return kept(logsumexp_over(x, axes=axes), x, axes, keepdims)


# --------------------------------------------------------------------------- log_softmax


@ArrayKernel
def log_softmax_kernel(x, out):
    """``x - log(sum(exp(x)))`` of each row."""
    n = x.shape[1]
    for r in range(x.shape[0] if n else 0):
        row = x[r]
        made = out[r]
        top = row[0]
        for k in range(n):
            top = scalar.maximum(top, row[k])
        if top == np.inf:
            ties = 0
            for k in range(n):
                ties += row[k] == top
            share = 0.0 - scalar.log(ties * 1.0)
            for k in range(n):
                made[k] = scalar.sel(row[k] == top, share, -np.inf)
        else:
            # as in logsumexp
            total = -1.0
            rest = 0.0
            for k in range(n):
                greatest = row[k] == top
                total = scalar.radd(total, scalar.sel(greatest, 1.0, 0.0))
                rest = scalar.radd(rest, scalar.sel(greatest, 0.0, scalar.exp(row[k] - top)))
            total = scalar.log1p(total + rest)
            for k in range(n):
                made[k] = (row[k] - top) - total


@ArrayKernel
def log_softmax_pull_kernel(g, logs, out):
    """``g - exp(logs) * sum(g)`` of each row."""
    n = logs.shape[1]
    for r in range(logs.shape[0]):
        row = logs[r]
        pulled = g[r]
        made = out[r]
        total = 0.0
        for k in range(n):
            total = scalar.radd(total, pulled[k])
        for k in range(n):
            made[k] = pulled[k] - scalar.exp(row[k]) * total


def _log_pull_vjp(h, out, g, logs, *, axes):
    weights = exp(logs)
    weighted = h * weights
    return h - _spread_sum(weighted, axes), -weighted * _spread_sum(g, axes)


def _log_pull_jvp(tangents, out, g, logs, *, axes):
    tg, tl = tangents
    moved = None if tg is None else log_softmax_pull(tg, logs, axes=axes)
    if tl is not None:
        turned = -(tl * exp(logs)) * _spread_sum(g, axes)
        moved = turned if moved is None else moved + turned
    return moved


@array_call(
    infer=_like_first,
    last="axes",
    vjp=_log_pull_vjp,
    jvp=_log_pull_jvp,
    expression=lambda g, logs, *, axes: g - exp(logs) * _spread_sum(g, axes),
)
def log_softmax_pull(g, logs, out, *, axes):
    return ArrayCall(log_softmax_pull_kernel, _by_rows(axes, g, logs, out))


@array_call(
    infer=_like_first,
    last="axes",
    vjp=lambda g, out, x, *, axes: (log_softmax_pull(g, out, axes=axes),),
    jvp=lambda tangents, out, x, *, axes: tangents[0] - _spread_sum(tangents[0] * exp(out), axes),
    expression=_log_softmax_expression,
)
def log_softmax_over(x, out, *, axes):
    return ArrayCall(log_softmax_kernel, _by_rows(axes, x, out))


def _log_softmax_reference(x: Any, axis: Any = -1) -> Any:
    x, axis = np.asarray(x, _float(x)), _reference_axes(x, axis)
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    moved = np.where(top == np.inf, np.where(x == np.inf, 0.0, -np.inf), x - top)
    return moved - np.log(np.sum(np.exp(moved), axis=axis, keepdims=True))


@operation(samples=_softmax_samples, method=True, reference=_log_softmax_reference, remembered=True)
def log_softmax(x: Any, axis: Axis = -1) -> Value:
    """``x - log(sum(exp(x)))`` along an axis (the last by default; a tuple of axes or None for all).

    Accurate where softmax underflows. Integers become float64. Derivative: ``g - softmax(x) * sum(g)``.

    >>> import jitgrad as jg
    >>> jg.log_softmax([0.0, -1000.0])
    tensor([    0., -1000.])
    """
    x = floating(as_value(x, "log_softmax"), None, "log_softmax")
    return log_softmax_over(x, axes=reduced_axes(axis, x.ndim, "log_softmax"))
