"""Convolution and correlation of sequences, and phases without jumps."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import INT64, ShapedArray, make_aval
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import ArrayCall, Operand, Value
from jitgrad.errors import ArgumentError, DtypeError, ShapeError, UnsupportedError
from jitgrad.kernels.kernel import ArrayKernel, KernelPart
from jitgrad.ops.array_calls import axes_alike, rows
from jitgrad.ops.array_primitives import array_call
from jitgrad.ops.axes import axis_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.elementwise import abs, remainder
from jitgrad.ops.linear import convert, flip_view, join, slice_view
from jitgrad.ops.products import same_dtype
from jitgrad.ops.scan import cumsum, diff
from jitgrad.ops.selection import where
from jitgrad.ops.shape import atleast_1d, stop_gradient

__all__ = ["convolve", "correlate", "unwrap"]

# --------------------------------------------------------------------------- sliding products

_BLOCK: Final = 512  # elements that stay in the nearest cache

Mode: TypeAlias = tuple[int, int]
"""How far before its beginning a sequence is multiplied with one of m elements: ``(mode[0] * m - mode[1]) // 2``."""

_VALID, _FULL, _SAME, _SAME_TURNED = (0, 0), (2, 2), (1, 0), (1, 1)
_MODES: Final = {"valid": _VALID, "full": _FULL, "same": _SAME}
_TURNED: Final = {_VALID: _FULL, _FULL: _VALID, _SAME: _SAME_TURNED, _SAME_TURNED: _SAME}


@KernelPart
def add_products(sums, x, w, zero):
    """To each sum the products of w with the stretch of x that begins there; w four at a time, as memory is slower."""
    m = w.size
    fours = m - m % 4
    for j in range(0, fours, 4):
        part = x[j : j + sums.size + 3]
        w0 = zero + w[j]
        w1 = zero + w[j + 1]
        w2 = zero + w[j + 2]
        w3 = zero + w[j + 3]
        for k in range(sums.size):
            sums[k] += (part[k] * w0 + part[k + 1] * w1) + (part[k + 2] * w2 + part[k + 3] * w3)
    for j in range(fours, m):
        part = x[j : j + sums.size]
        factor = zero + w[j]
        for k in range(sums.size):
            sums[k] += part[k] * factor


@KernelPart
def sum_of_products(x, w, zero):
    total = zero
    for j in range(w.size):
        total = scalar.radd(total, (zero + x[j]) * w[j])
    return total


@ArrayKernel
def sliding_kernel(x, w, out, zero, block, before):
    """For each row: ``out[k]`` is the sum over j of ``x[k + j - before] * w[j]``, as far as x goes; the longer of the two
    loops is the inner one."""
    n = out.shape[1]
    m = w.shape[1]
    extent = x.shape[1]
    start = min(max(0, before), n)  # from here to stop, all of w meets x
    stop = min(max(start, extent - m + before + 1), n)
    if stop - start < m:
        stop = start
    sums = np.full(block, zero)
    for r in range(out.shape[0]):
        row = x[r]
        factors = w[r]
        for first in range(start, stop, block):
            count = min(block, stop - first)
            some = sums[:count]
            for k in range(count):
                some[k] = zero
            add_products(some, row[first - before :], factors, zero)
            for k in range(count):
                out[r, first + k] = some[k]
        for k in range(n - (stop - start)):
            at = k if k < start else k + stop - start
            low = min(max(0, before - at), m)
            high = max(low, min(m, extent + before - at))
            out[r, at] = sum_of_products(row[at - before + low : at - before + high], factors[low:high], zero)


@ArrayKernel
def products_kernel(x, w, out, zero, block, halves, less):
    sliding_kernel(x, w, out, zero, block, (halves * w.shape[1] - less) // 2)


@ArrayKernel
def factors_kernel(x, g, out, zero, block, halves, less):
    sliding_kernel(x, g, out, zero, block, (halves * out.shape[1] - less) // 2)


def _sliding_call(kernel: ArrayKernel, x: Operand, w: Operand, out: Operand, mode: Mode) -> ArrayCall:
    zero = 0.0 if x.dtype.kind == "f" else 0
    equal = (*axes_alike(x, w, x.ndim - 1), *axes_alike(x, out, x.ndim - 1))
    return ArrayCall(kernel, (rows(x), rows(w), rows(out), zero, _BLOCK, *mode), equal)


def _products_aval(x: ShapedArray, w: ShapedArray, *, mode: Mode) -> ShapedArray:
    n = x.shape[-1] + (mode[0] - 1) * (w.shape[-1] - 1)
    return make_aval((*x.shape[:-1], n), x.dtype)


def _of_sequence(g: Value, w: Value, mode: Mode) -> Value:
    """The transpose for the sequence: the turned factors at the places of another mode."""
    return sliding_products(g, flip_view(w, axes=(w.ndim - 1,)), mode=_TURNED[mode])


@array_call(
    infer=_products_aval,
    transposes=(
        lambda g, x, w, *, mode: _of_sequence(g, w, mode),
        lambda g, x, w, *, mode: sliding_factors(x, g, extent=w.shape[-1], mode=mode),
    ),
    wraps=True,
)
def sliding_products(x: Operand, w: Operand, out: Operand, *, mode: Mode) -> ArrayCall:
    """Sums of the products of ``w`` with stretches of ``x`` of its length along the last axis; float32 is added up in
    float64."""
    return _sliding_call(products_kernel, x, w, out, mode)


@array_call(
    infer=lambda x, g, *, extent, mode: make_aval((*x.shape[:-1], extent), x.dtype),
    transposes=(
        lambda h, x, g, *, extent, mode: _of_sequence(g, h, mode),
        lambda h, x, g, *, extent, mode: sliding_products(x, h, mode=mode),
    ),
    wraps=True,
)
def sliding_factors(x: Operand, g: Operand, out: Operand, *, extent: int, mode: Mode) -> ArrayCall:
    """The transpose of ``sliding_products`` for its ``extent`` factors: each gets the products of the cotangent with what
    it was multiplied with."""
    return _sliding_call(factors_kernel, x, g, out, mode)


def _correlated(x: Value, w: Value, mode: Any, what: str) -> Value:
    """The products of the shorter ``w`` at each place that the mode counts."""
    if mode not in _MODES:
        raise ArgumentError(f"{what}: mode must be 'full', 'same' or 'valid', not {mode!r}")
    if x.dtype.kind != "f" and x.dtype.itemsize < INT64.itemsize:  # what does not fit wraps; of booleans: and, or
        found = _correlated(convert(x, dtype=INT64), convert(w, dtype=INT64), mode, what)
        return found != 0 if x.dtype.kind == "b" else convert(found, dtype=x.dtype)
    return sliding_products(x, w, mode=_MODES[mode])


def _sequences(a: Any, v: Any, what: str) -> tuple[Value, Value]:
    x, y = as_value(a, f"{what}: a"), as_value(v, f"{what}: v")
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ShapeError(f"{what}: operands of shapes {x.shape} and {y.shape}; both must be vectors, and not empty")
    return same_dtype(x, y)


def _sequence_samples(rng: np.random.Generator) -> list[Call]:
    extents = [(6, 3), (3, 6), (4, 4), (5, 2), (2, 5), (1, 1)]
    modes = [
        Call((uniform(rng, n), uniform(rng, m)), {"mode": k}) for n, m in extents for k in ("full", "same", "valid")
    ]
    return [*modes, Call((uniform(rng, 3), uniform(rng, 2)), {})]


@operation(samples=lambda rng: [*_sequence_samples(rng), Call((uniform(rng), uniform(rng, 3)), {})])
def convolve(a: Any, v: Any, mode: str = "full") -> Value:
    """Convolution of two sequences: ``out[k]`` is the sum over j of ``a[j] * v[k - j]``.

    ``mode``: "full" (every overlap), "same" (the middle, as long as the longer operand) or "valid" (complete overlaps
    alone). Any dtype; float32 is added up in float64. Computed directly: the work is the product of the lengths. Raises
    ShapeError where an operand is empty or has more than one axis. Derivative: the correlation of the cotangent with the
    other operand.

    >>> import jitgrad as jg
    >>> jg.convolve([1.0, 2.0, 3.0], [0.0, 1.0, 0.5])
    tensor([0. , 1. , 2.5, 4. , 1.5])
    """
    x, w = _sequences(atleast_1d(a), atleast_1d(v), "convolve")
    if w.shape[0] > x.shape[0]:
        x, w = w, x
    return _correlated(x, flip_view(w, axes=(0,)), mode, "convolve")


@operation(samples=_sequence_samples, remembered=True)
def correlate(a: Any, v: Any, mode: str = "valid") -> Value:
    """Cross-correlation of two sequences: ``out[k]`` is the sum over j of ``a[j + k] * v[j]``.

    ``mode``, dtypes and errors as for ``convolve``; in mode "full", ``k`` starts at ``1 - len(v)``. Derivative: the
    correlation with the other operand, or the convolution.

    >>> import jitgrad as jg
    >>> jg.correlate([1.0, 2.0, 3.0], [0.0, 1.0])
    tensor([2., 3.])
    """
    x, w = _sequences(a, v, "correlate")
    if w.shape[0] > x.shape[0]:
        return flip_view(_correlated(w, x, mode, "correlate"), axes=(0,))
    return _correlated(x, w, mode, "correlate")


# --------------------------------------------------------------------------- phases


def _unwrap_samples(rng: np.random.Generator) -> list[Call]:
    turns = np.mod(np.cumsum(rng.uniform(0.5, 2.0, (3, 6)), axis=1), 2.0 * math.pi)
    return [
        Call((turns,), {}),
        Call((turns,), {"axis": 0, "discont": 4.0}),
        Call((turns,), {"period": 1.5}),
        Call((turns[:, 1],), {}),
        Call((turns[:, :1],), {}),
    ]


@operation(samples=_unwrap_samples)
def unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2.0 * math.pi) -> Value:
    """Phases along an axis, with multiples of ``period`` added so that neighbours differ by at most half of it.

    ``discont``: differences below it (half of the period by default, and not less) stay as they are. Both are plain
    numbers. Integers stay integers where the period is one; unsigned ones then raise DtypeError, since their differences
    wrap around. Derivative: 1; what is added is a constant.

    >>> import jitgrad as jg
    >>> jg.unwrap([0.0, 3.0, 5.0, 1.0], period=4)
    tensor([ 0., -1.,  1.,  1.])
    """
    p = as_value(p, "unwrap")
    number = axis_of(axis, p.ndim, "unwrap: axis")
    for name, value in (("period", period), ("discont", discont)):
        if not isinstance(value, int | float | np.number | None):
            raise UnsupportedError(f"unwrap: {name} must be a plain number, not {type(value).__name__}")
    dtype = np.result_type(p.dtype, period)
    kinds = (p.dtype.kind, np.asarray(period).dtype.kind)
    if all(kind in "biu" for kind in kinds) and "u" in kinds:
        raise DtypeError(
            f"unwrap: differences of unsigned integers ({p.dtype}, with a period of type {type(period).__name__}) wrap "
            "around; convert with .astype(np.int64) first"
        )
    steps = diff(stop_gradient(p), axis=number)
    half: Any = period / 2
    ambiguous = True
    if dtype.kind in "iu":
        half, rest = divmod(period, 2)
        ambiguous = rest == 0
    wrapped = remainder(steps + half, period) - half
    if ambiguous:  # half a period up stays up
        wrapped = where((wrapped == -half) & (steps > 0), half, wrapped)
    change = wrapped - steps
    change = where(abs(steps) < (period / 2 if discont is None else discont), 0, change)
    before = ((None, None, None),) * number
    first, later = (slice_view(p, index=(*before, part)) for part in ((None, 1, None), (1, None, None)))
    moved = later + cumsum(change, number)
    parts = [part if part.dtype == dtype else convert(part, dtype=dtype) for part in (first, moved)]
    return join(*parts, axis=number)
