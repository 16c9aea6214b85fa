"""Comparing whole arrays: equal, or equal within a tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core import scalar
from jitgrad.core.aval import FLOAT64
from jitgrad.core.dispatch import as_value, is_value, operand
from jitgrad.core.primitive import Value
from jitgrad.ops.blocks import Call, operation, primitive_of
from jitgrad.ops.comparison import equal, isnan
from jitgrad.ops.linear import convert
from jitgrad.ops.reduction import all


@primitive_of(result="bool")
def _close(x, y, rtol, atol):
    near = scalar.fabs(x - y) <= atol + rtol * scalar.fabs(y)
    return (near & scalar.isfinite(y)) | (x == y)


def _close_samples(rng: np.random.Generator) -> list[Call]:
    x = rng.uniform(-2.0, 2.0, (3, 4))
    return [Call((x, x + 1e-9), {}), Call((x, x[0]), {"rtol": 0.5}), Call((x, x + 0.1), {"rtol": 0.0, "atol": 0.2})]


def _answer(found: Value) -> Any:
    """A plain bool, as in NumPy; under a trace, where there is no value yet, a tensor of one bool."""
    return bool(found._value) if isinstance(found._value, np.ndarray) else found


def _floating(x: Any) -> Any:
    """Integers as float64; Python numbers stay weak."""
    x = operand(x, "isclose")
    if not is_value(x):
        return float(x)
    return x if x.dtype.kind == "f" else convert(x, dtype=FLOAT64)


@operation(samples=_close_samples, nondiff=True, method=True)
def isclose(x: Any, y: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Value:
    """Whether ``abs(x - y) <= atol + rtol * abs(y)``, or the two are equal infinities (or NaNs, with ``equal_nan``).

    >>> import jitgrad as jg
    >>> jg.isclose([1.0, 2.0], [1.0 + 1e-9, 2.1])
    tensor([ True, False])
    """
    x, y = _floating(x), _floating(y)
    close = _close(x, y, rtol, atol)
    return close | (isnan(x) & isnan(y)) if equal_nan else close


@operation(samples=_close_samples, nondiff=True, method=True)
def allclose(x: Any, y: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """Whether ``isclose`` holds for every element: a bool, or a tensor of one while tracing.

    >>> import jitgrad as jg
    >>> jg.allclose([1.0, 2.0], [1.0 + 1e-9, 2.0])
    True
    """
    return _answer(all(isclose(x, y, rtol, atol, equal_nan)))


@operation(
    samples=lambda rng: [
        Call((rng.uniform(-1.0, 1.0, 3), rng.uniform(-1.0, 1.0, 3)), {}),
        Call(([1.0], [1.0, 1.0]), {}),
    ],
    nondiff=True,
)
def array_equal(x: Any, y: Any, equal_nan: bool = False) -> Value:
    """Whether two arrays have the same shape and equal elements, as a tensor of one bool (which an ``if`` takes).

    >>> import jitgrad as jg
    >>> jg.array_equal([1, 2], [1, 3])
    False
    """
    x, y = as_value(x, "array_equal"), as_value(y, "array_equal")
    if x.shape != y.shape:
        return False
    same = equal(x, y)
    return _answer(all(same | (isnan(x) & isnan(y)) if equal_nan else same))
