"""Reductions over axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Value
from jitgrad.ops.axes import axes_of
from jitgrad.ops.blocks import Call, operation
from jitgrad.ops.linear import kept_shape, reshape_to, sum_over

Axis = Any


def _reduction_samples(rng: np.random.Generator) -> list[Call]:
    a = rng.uniform(-2.0, 2.0, (3, 4, 2))
    return [
        Call((a,), {}),
        Call((a,), {"axis": 1}),
        Call((a,), {"axis": (0, -1), "keepdims": True}),
        Call((a[0],), {"axis": ()}),
        Call((rng.uniform(-2.0, 2.0, ()),), {}),
    ]


def _keep(result: Value, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return reshape_to(result, shape=kept_shape(x.shape, axes)) if keepdims else result


@operation(samples=_reduction_samples, method=True)
def sum(x: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Value:
    """Sum over axes (all by default).

    float32 is accumulated in float64. Derivative: 1 for every element.

    >>> import jitgrad as jg
    >>> jg.sum([[1.0, 2.0], [3.0, 4.0]], axis=0)
    tensor([4., 6.])
    """
    x = as_value(x, "sum")
    if dtype is not None:
        x = x.astype(dtype)
    axes = axes_of(axis, x.ndim)
    return _keep(sum_over(x, axes=axes), x, axes, keepdims)
