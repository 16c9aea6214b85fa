"""Primitives that run along one axis: cumulative sums and products, and the linear recurrence they differentiate to.

The derivative of a product needs products of all other elements. Dividing by the element fails at zeros, so it is a
recurrence: ``s[k] = b[k] + a[k] s[k-1]`` (or with ``a[k-1]``). Its own derivatives are such recurrences again, in the
other direction, so that every order is exact with no division.
"""

from __future__ import annotations

import numpy as np

from jitgrad.core.aval import make_aval
from jitgrad.core.dispatch import constant
from jitgrad.core.primitive import ArrayCall, Value
from jitgrad.kernels.kernel import ArrayKernel
from jitgrad.ops.array_calls import axes_alike, rows, slabs
from jitgrad.ops.array_primitives import array_call
from jitgrad.ops.linear import BasicIndex, expand, join, place, slice_view

__all__ = ["cumulative_product", "cumulative_sum_along", "exclusive_products_vjp", "recurrence"]


def _steps(axis: int, start: int | None, stop: int | None) -> BasicIndex:
    return ((None, None, None),) * axis + ((start, stop, None),)


def _delayed(x: Value, axis: int, reverse: bool) -> Value:
    """Every element one step later in the direction of the scan; 0 at the first."""
    n = x.shape[axis]
    if n == 0:
        return x
    early, late = (_steps(axis, 1, n), _steps(axis, 0, n - 1))
    kept, target = (early, late) if reverse else (late, early)
    return place(slice_view(x, index=kept), shape=x.shape, index=target)


def _delayed_product(x: Value, axis: int, reverse: bool) -> Value:
    """The inclusive products ``x``, one step later; 1 at the first."""
    n = x.shape[axis]
    if n == 0:
        return x
    ones = expand(constant(1, x.dtype, x), shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    if reverse:
        return join(slice_view(x, index=_steps(axis, 1, n)), ones, axis=axis)
    return join(ones, slice_view(x, index=_steps(axis, 0, n - 1)), axis=axis)


# --------------------------------------------------------------------------- cumulative sum


@ArrayKernel
def cumulative_sum_kernel(x, zero, reverse, out):
    """Running sums over the middle axis, in the type of ``zero``."""
    n = x.shape[1]
    inner = x.shape[2]
    state = np.full(inner, zero)
    for o in range(x.shape[0]):
        for i in range(inner):
            state[i] = zero
        if inner == 1:
            total = zero
            for step in range(n):
                k = n - 1 - step if reverse else step
                total += x[o, k, 0]
                out[o, k, 0] = total
        else:
            for step in range(n):
                k = n - 1 - step if reverse else step
                for i in range(inner):
                    state[i] += x[o, k, i]
                    out[o, k, i] = state[i]


def _sum_transpose(g, x, *, axis, reverse):
    return cumulative_sum_along(g, axis=axis, reverse=not reverse)


@array_call(
    infer=lambda x, *, axis, reverse: make_aval(x.shape, x.dtype), transpose=_sum_transpose, contracts=True, wraps=True
)
def cumulative_sum_along(x, out, *, axis, reverse):
    zero = 0.0 if x.dtype.kind == "f" else 0
    return ArrayCall(cumulative_sum_kernel, (slabs(x, axis), zero, reverse, slabs(out, axis)), axes_alike(x, out))


# --------------------------------------------------------------------------- cumulative product


@ArrayKernel
def cumulative_product_kernel(x, one, reverse, out):
    """Running products of each row."""
    n = x.shape[1]
    for r in range(x.shape[0]):
        product = one
        for step in range(n):
            k = n - 1 - step if reverse else step
            product = product * x[r, k]
            out[r, k] = product


def _product_vjp(g: Value, out: Value, x: Value, *, axis: int, reverse: bool) -> tuple[Value]:
    before = _delayed_product(out, axis, reverse)
    return (before * recurrence(x, g, axis=axis, reverse=not reverse, lag=True),)


def _product_jvp(tangents, out, x, *, axis, reverse):
    before = _delayed_product(out, axis, reverse)
    return recurrence(x, tangents[0] * before, axis=axis, reverse=reverse, lag=False)


@array_call(
    infer=lambda x, *, axis, reverse: make_aval(x.shape, x.dtype),
    vjp=_product_vjp,
    jvp=_product_jvp,
    last="axis",
    wraps=True,
)
def cumulative_product(x, out, *, axis, reverse):
    one = 1.0 if x.dtype.kind == "f" else 1
    return ArrayCall(cumulative_product_kernel, (rows(x), one, reverse, rows(out)), axes_alike(x, out))


# --------------------------------------------------------------------------- linear recurrence


@ArrayKernel
def recurrence_kernel(a, b, reverse, lag, out):
    """``s[k] = b[k] + a[k] s[k-1]`` along each row, with the previous coefficient where ``lag``."""
    n = a.shape[1]
    for r in range(a.shape[0]):
        state = 0.0
        previous = 0.0
        for step in range(n):
            k = n - 1 - step if reverse else step
            factor = previous if lag else a[r, k] * 1.0
            # the first element has none before it, whatever its coefficient
            state = b[r, k] + factor * state if step else b[r, k] * 1.0
            previous = a[r, k] * 1.0
            out[r, k] = state


def _recurrence_vjp(g, out, a, b, *, axis, reverse, lag):
    of_b = recurrence(a, g, axis=axis, reverse=not reverse, lag=not lag)
    if lag:
        of_a = _delayed(of_b, axis, not reverse) * out
    else:
        of_a = of_b * _delayed(out, axis, reverse)
    return of_a, of_b


def _recurrence_jvp(tangents, out, a, b, *, axis, reverse, lag):
    ta, tb = tangents
    pushed = tb
    if ta is not None:
        moved = _delayed(ta * out, axis, reverse) if lag else ta * _delayed(out, axis, reverse)
        pushed = moved if tb is None else tb + moved
    return recurrence(a, pushed, axis=axis, reverse=reverse, lag=lag)


@array_call(
    infer=lambda a, b, *, axis, reverse, lag: make_aval(a.shape, a.dtype),
    vjp=_recurrence_vjp,
    jvp=_recurrence_jvp,
    last="axis",
)
def recurrence(a, b, out, *, axis, reverse, lag):
    equal = (*axes_alike(a, b), *axes_alike(a, out))
    return ArrayCall(recurrence_kernel, (rows(a), rows(b), reverse, lag, rows(out)), equal)


def exclusive_products_vjp(g: Value, x: Value) -> Value:
    """The cotangent of the (rows, n) products of all other elements of a row.

    Each is a prefix product times a suffix product; both are cumulative products, shifted by one.
    """

    def of_scan(h: Value, reverse: bool) -> Value:
        # a shifted cumulative product: its cotangent is shifted back first
        return _product_vjp(
            _delayed(h, 1, not reverse), cumulative_product(x, axis=1, reverse=reverse), x, axis=1, reverse=reverse
        )[0]

    before = _delayed_product(cumulative_product(x, axis=1, reverse=False), 1, False)
    behind = _delayed_product(cumulative_product(x, axis=1, reverse=True), 1, True)
    return of_scan(g * behind, False) + of_scan(g * before, True)
