"""Choosing between elements: the greater, the smaller, within bounds, by a condition."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError
from jitgrad.ops.blocks import Call, elementwise, operation, primitive_of
from jitgrad.ops.linear import copy_of


@primitive_of([lambda out, g, share: share, lambda out, g, share: g], chooses=True)
def chosen(g, share):
    """The share of a cotangent; 0 of it is 0, whatever the cotangent is."""
    return scalar.sel(share == 0.0, 0.0, g * share)


@primitive_of()
def _greater_share(x, y):
    """What ``maximum(x, y)`` owes to x: half of a tie; all of it where a NaN decides."""
    return scalar.sel(x < y, 0.0, scalar.sel(x == y, 0.5, 1.0))


@elementwise(
    partials=[lambda out, x, y: _greater_share(x, y), lambda out, x, y: _greater_share(y, x)],
    chooses=True,
    result="same",
)
def maximum(x, y):
    """The greater of two elements; NaN where one of them is NaN.

    Derivative: 1 for the greater; half each where they are equal.
    """
    return scalar.maximum(x, y)


@elementwise(
    partials=[lambda out, x, y: _greater_share(y, x), lambda out, x, y: _greater_share(x, y)],
    chooses=True,
    result="same",
)
def minimum(x, y):
    """The smaller of two elements; NaN where one of them is NaN.

    Derivative: 1 for the smaller; half each where they are equal.
    """
    return scalar.minimum(x, y)


@primitive_of()
def _number_share(first, second, x, y):
    """What fmax and fmin owe to x: nothing for a NaN, else its share among numbers, ``first`` less ``second``."""
    share = scalar.sel(first < second, 0.0, scalar.sel(first == second, 0.5, 1.0))
    return scalar.sel(scalar.isnan(x), scalar.sel(scalar.isnan(y), 1.0, 0.0), share)


@elementwise(
    partials=[lambda out, x, y: _number_share(x, y, x, y), lambda out, x, y: _number_share(y, x, y, x)],
    chooses=True,
    result="same",
)
def fmax(x, y):
    """The greater of two elements; where one is NaN, the other.

    Derivative: 1 for the chosen one; half each where they are equal.
    """
    return scalar.sel(scalar.isnan(x), y, scalar.sel(scalar.isnan(y), x, scalar.maximum(x, y)))


@elementwise(
    partials=[lambda out, x, y: _number_share(y, x, x, y), lambda out, x, y: _number_share(x, y, y, x)],
    chooses=True,
    result="same",
)
def fmin(x, y):
    """The smaller of two elements; where one is NaN, the other.

    Derivative: 1 for the chosen one; half each where they are equal.
    """
    return scalar.sel(scalar.isnan(x), y, scalar.sel(scalar.isnan(y), x, scalar.minimum(x, y)))


@primitive_of()
def _inside(x, low, high):
    return scalar.sel((x >= low) & (x <= high), 1.0, 0.0)


@primitive_of()
def _below(x, low, high):
    return scalar.sel((x < low) & (low <= high), 1.0, 0.0)


@primitive_of()
def _above(x, low, high):
    return scalar.sel((x > high) | (low > high), 1.0, 0.0)


@primitive_of(
    [
        lambda out, x, low, high: _inside(x, low, high),
        lambda out, x, low, high: _below(x, low, high),
        lambda out, x, low, high: _above(x, low, high),
    ],
    chooses=True,
)
def _clip(x, low, high):
    return scalar.minimum(scalar.maximum(x, low), high)


@primitive_of([lambda out, x, low: _inside(x, low, x), lambda out, x, low: _below(x, low, low)], chooses=True)
def _clip_below(x, low):
    return scalar.maximum(x, low)


@primitive_of([lambda out, x, high: _inside(x, x, high), lambda out, x, high: _above(x, high, high)], chooses=True)
def _clip_above(x, high):
    return scalar.minimum(x, high)


def _clip_samples(rng: np.random.Generator) -> list[Call]:
    x = rng.uniform(-2.0, 2.0, (3, 4))
    return [
        Call((x, -1.0, 1.0), {}),
        Call((x,), {"min": -0.5}),
        Call((x,), {"max": 0.5}),
        Call((x, rng.uniform(-1.5, -0.5, 4), rng.uniform(0.5, 1.5, (3, 1))), {}),
    ]


@operation(samples=_clip_samples, method=True, in_place=True, remembered=True)
def clip(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Value:
    """``x`` limited to the interval from ``min`` to ``max`` (NumPy's ``a_min``, ``a_max``); None leaves a side open.

    ``max`` wins where the bounds contradict each other. Raises ArgumentError when a bound is given twice.

    Derivative: 1 on the closed interval, bounds included; the bounds get what lies outside.

    >>> import jitgrad as jg
    >>> jg.clip([-2.0, 0.5, 3.0], 0.0, 1.0)
    tensor([0. , 0.5, 1. ])
    """
    if (min is not None and a_min is not None) or (max is not None and a_max is not None):
        raise ArgumentError("clip: give each bound once, as min and max or as a_min and a_max")
    x = as_value(x, "clip")
    low = a_min if min is None else min
    high = a_max if max is None else max
    if low is None:
        return copy_of(x) if high is None else _clip_above(x, high)
    return _clip_below(x, low) if high is None else _clip(x, low, high)


@elementwise(
    masks=[None, lambda out, c, x, y: c, lambda out, c, x, y: ~c],
    result="same",
    fixed={0: np.bool_},
    method=False,
    public=False,
)
def where(condition, x, y):
    """``x`` where the condition holds, else ``y``.

    Derivative: the cotangent goes to the chosen operand; the other one gets a structural zero, which stays zero
    whatever its own derivative is (infinite, NaN).
    """
    return scalar.sel(condition, x, y)
