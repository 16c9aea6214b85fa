"""Covariances and correlation coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.aval import result_dtype
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, DtypeError, ShapeError
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.elementwise import sqrt
from jitgrad.ops.linear import diagonal_view, join, permute, reshape_to
from jitgrad.ops.products import matmul
from jitgrad.ops.reduction import cast, floating, sum
from jitgrad.ops.selection import clip, where
from jitgrad.ops.shape import squeeze
from jitgrad.ops.statistics import center

__all__ = ["corrcoef", "cov"]


def _rows(x: Any, rowvar: bool, what: str, *, second: bool = False) -> Value:
    """A matrix with a row for each variable."""
    x = as_value(x, what)
    if x.ndim > 2:
        raise ShapeError(f"{what}: an operand of shape {x.shape}; at most two axes, of variables and observations")
    rows = x if x.ndim == 2 else reshape_to(x, shape=(1, x.size))
    turned = not rowvar and (rows.shape[0] != 1 if second else x.ndim == 2)
    return permute(rows, axes=(1, 0)) if turned else rows


def _variables(m: Any, y: Any, rowvar: bool, dtype: Any, what: str) -> Value:
    """The variables of both operands as rows of one float matrix."""
    parts = [floating(_rows(m, rowvar, what), dtype, what)]
    if y is not None:
        parts.append(floating(_rows(y, rowvar, what, second=True), dtype, what))
        if parts[0].shape[1] != parts[1].shape[1]:
            raise ShapeError(
                f"{what}: {parts[0].shape[1]} observations of some variables, {parts[1].shape[1]} of others"
            )
    if len(parts) == 1 or parts[0].shape[0] == 0:
        return parts[0]
    common = result_dtype(*(p.dtype for p in parts))
    return join(*(cast(p, common, what) for p in parts), axis=0)


def _weights(given: Any, count: int, name: str) -> Value:
    w = as_value(given, f"cov: {name}")
    if w.shape != (count,):
        raise ShapeError(f"cov: {name} of shape {w.shape} for {count} observations")
    if not w.is_traced and (w._array(f"cov: {name}") < 0).any():
        raise ArgumentError(f"cov: {name} must not be negative")
    return w


def _cov_samples(rng: np.random.Generator) -> list[Call]:
    a, b = uniform(rng, 3, 5), uniform(rng, 2, 5)
    return [
        Call((a,), {}),
        Call((a, b), {"ddof": 0}),
        Call((a,), {"rowvar": False, "bias": True}),
        Call((a[0],), {}),
        Call((a[0], a[1]), {"rowvar": False}),
        Call((a, None, True, False, None, np.array([1, 2, 0, 3, 1])), {}),
        Call((a, None, True, False, None, None, rng.uniform(0.5, 2.0, 5)), {}),
        Call((a, b, True, False, 1, np.array([1, 2, 0, 3, 1]), rng.uniform(0.5, 2.0, 5)), {}),
        Call((a, None, True, True, None, None, rng.uniform(0.5, 2.0, 5)), {}),
    ]


@operation(samples=_cov_samples)
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Value:
    """Covariance matrix of variables, of which each is a row (``rowvar``) or a column; ``y``: more of them.

    The products of distances to the means are divided by ``n - ddof``; ``ddof`` is 1, and 0 with ``bias``. ``fweights``:
    how often an observation counts, integers; ``aweights``: how much it counts. A scalar for one variable; float32 stays
    float32. Raises ShapeError where extents do not fit. Derivative: that of the formula, by the variables and
    ``aweights``.

    >>> import jitgrad as jg
    >>> jg.cov([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    if ddof is not None and ddof != int(ddof):
        raise ArgumentError(f"cov: ddof must be an integer, not {ddof}")
    less = (0 if bias else 1) if ddof is None else int(ddof)
    x = _variables(m, y, bool(rowvar), dtype, "cov")
    variables, count = x.shape
    if variables == 0:
        return matmul(x, permute(x, axes=(1, 0)))
    frequent = None if fweights is None else _weights(fweights, count, "fweights")
    if frequent is not None and frequent.dtype.kind == "f":
        raise DtypeError("cov: fweights must be integers; aweights may be any number")
    important = None if aweights is None else floating(_weights(aweights, count, "aweights"), None, "cov: aweights")
    if frequent is None and important is None:
        distance = center(x, axes=(1,))
        products = matmul(distance, permute(distance, axes=(1, 0)))
        degrees = max(count - less, 0)
        return squeeze(products * (1.0 / degrees if degrees else float("inf")))
    if frequent is None or important is None:
        weights = cast(frequent if important is None else important, x.dtype, "cov")
    else:
        weights = cast(important * frequent, x.dtype, "cov")
    total = sum(weights)
    distance = x - reshape_to(matmul(x, weights) / total, shape=(variables, 1))
    lost: Any = 0.0
    if less:
        lost = (
            float(less) if important is None else sum(weights * cast(important, x.dtype, "cov")) * float(less) / total
        )
    divisor = total - lost
    products = matmul(distance, permute(distance * weights, axes=(1, 0)))
    return squeeze(products * (1.0 / where(divisor > 0.0, divisor, 0.0)))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3, 5),), {}),
        Call((uniform(rng, 3, 5), uniform(rng, 2, 5)), {}),
        Call((uniform(rng, 5, 2),), {"rowvar": False}),
        Call((uniform(rng, 5), uniform(rng, 5)), {}),
    ]
)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Value:
    """Correlation coefficients of variables: covariances over the products of the standard deviations, in [-1, 1].

    Operands and errors as for ``cov``; NaN for a variable that does not vary, and 1 for one alone. Derivative: that of
    the formula.

    >>> import jitgrad as jg
    >>> jg.corrcoef([0.0, 1.0, 2.0], [2.0, 1.0, 0.0])
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    deviation = sqrt(diagonal_view(c, offset=0, axis1=0, axis2=1))
    n = deviation.shape[0]
    found = c / reshape_to(deviation, shape=(n, 1)) / reshape_to(deviation, shape=(1, n))
    return clip(found, -1.0, 1.0)
