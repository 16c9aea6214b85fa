"""Counting and finding: bins, occurrences, members of sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.aval import INT64, result_dtype
from jitgrad.core.dispatch import as_value, wrap
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, DtypeError, GraphError, ShapeError
from jitgrad.ops.axes import index_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.comparison import equal, not_equal
from jitgrad.ops.linear import bounded, convert, expand, flip_view, gather, reshape_to, scatter_add, slice_view
from jitgrad.ops.products import same_dtype
from jitgrad.ops.reduction import floating
from jitgrad.ops.selection import clip, where
from jitgrad.ops.sorting import search, sort

__all__ = ["bincount", "digitize", "isin"]


def _digitize_reference(x: Any, bins: Any, right: bool = False) -> Any:
    """NumPy's, which takes some NaN among the bins, depending on their place."""
    if np.isnan(bins).any():
        raise ValueError("NaN is no bound")
    return np.digitize(x, bins, right)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3), np.array([-1.0, 0.0, 0.5])), {}),
        Call((uniform(rng, 4), np.array([1.0, 0.5, -1.0])), {"right": True}),
        Call((uniform(rng), np.array([0.0])), {}),
    ],
    nondiff=True,
    reference=_digitize_reference,
)
def digitize(x: Any, bins: Any, right: bool = False) -> Value:
    """The numbers (int64) of the bins that elements are in; ``bins``: their bounds, increasing or decreasing.

    ``right``: a bound belongs to the bin below it. Raises ShapeError where ``bins`` has not one axis, and ArgumentError
    where it is not monotonic (which nobody looks at while traced). Not differentiable.

    >>> import jitgrad as jg
    >>> jg.digitize([0.5, 2.0, 9.0], [0.0, 1.0, 2.0])
    tensor([1, 3, 3])
    """
    x, bounds = as_value(x, "digitize"), as_value(bins, "digitize: bins")
    if bounds.ndim != 1:
        raise ShapeError(f"digitize: bins must have one axis, not shape {bounds.shape}")
    n = bounds.shape[0]
    if n == 0:
        return wrap(np.zeros(x.shape, np.int64))
    if not bounds.is_traced:
        known = bounds._array("digitize: bins")
        low, high = known[:-1], known[1:]
        if np.isnan(known).any() or not ((low <= high).all() or (low >= high).all()):
            raise ArgumentError("digitize: bins must increase or decrease monotonically, without NaN")
    first, last = slice_view(bounds, index=(0,)), slice_view(bounds, index=(n - 1,))
    increasing = search(bounds, x, side="left" if right else "right")
    decreasing = n - search(flip_view(bounds, axes=(0,)), x, side="left" if right else "right")
    return where(first <= last, increasing, decreasing)


def _bincount_samples(rng: np.random.Generator) -> list[Call]:
    x = np.array([1, 0, 4, 1, 1])
    return [Call((x, uniform(rng, 5)), {}), Call((x, uniform(rng, 5)), {"minlength": 7}), Call((x,), {"minlength": 2})]


@operation(samples=_bincount_samples)
def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Value:
    """How often each of the integers from 0 occurs in a vector, or the sums of the weights at each of them.

    As long as the greatest one needs, and at least ``minlength``. Where ``x`` is traced it is exactly ``minlength``, which
    must be given, and greater numbers raise IndexError. int64, or the float dtype of the weights. Raises ShapeError,
    ArgumentError for negative numbers, DtypeError for other than integers. Derivative: by the weights, the cotangent at
    the numbers.

    >>> import jitgrad as jg
    >>> jg.bincount([1, 0, 1], weights=[0.5, 2.0, 3.0])
    tensor([2. , 3.5])
    """
    numbers = as_value(x, "bincount")
    if numbers.ndim != 1:
        raise ShapeError(f"bincount: the numbers must have one axis, not shape {numbers.shape}")
    count, length = numbers.shape[0], index_of(minlength, "bincount: minlength")
    if length < 0:
        raise ArgumentError(f"bincount: minlength must not be negative, not {length}")
    if count and (numbers.dtype.kind not in "biu" or numbers.dtype == np.uint64):
        raise DtypeError(f"bincount counts integers that int64 holds, not {numbers.dtype}")
    numbers = numbers if numbers.dtype == INT64 else convert(numbers, dtype=INT64)
    if numbers.is_traced:
        if not length:
            raise GraphError(
                "bincount: how long the result is depends on the values, which are not known while traced; give minlength"
            )
        numbers = where(numbers < 0, length, numbers)  # out of bounds, as a position from the end is not meant
    elif count:
        array = numbers._array("bincount")
        if array.min() < 0:
            raise ArgumentError(f"bincount: numbers must not be negative, as {array.min()} is")
        length = max(length, int(array.max()) + 1)
    if weights is None:
        added = expand(wrap(np.ones((), np.int64)), shape=(count,))
    else:
        added = floating(as_value(weights, "bincount: weights"), None, "bincount: weights")
        if added.shape != numbers.shape:
            raise ShapeError(f"bincount: weights of shape {added.shape} for {count} numbers")
    return scatter_add(added, bounded(numbers, extent=length, axis=0), shape=(length,))


@operation(
    samples=lambda rng: [
        Call((np.rint(uniform(rng, 2, 3)), np.rint(uniform(rng, 3))), {}),
        Call((np.rint(uniform(rng, 4)), np.array([[1.0, 0.0]])), {"invert": True}),
        Call((uniform(rng, 3), np.zeros(0)), {}),
    ],
    nondiff=True,
)
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: str | None = None
) -> Value:
    """Whether elements are among the test elements; with ``invert``, whether they are not.

    NaN is equal to nothing. ``assume_unique`` and ``kind`` change nothing: the test elements are sorted and searched. Not
    differentiable.

    >>> import jitgrad as jg
    >>> jg.isin([1, 2, 3], [3, 1])
    tensor([ True, False,  True])
    """
    x, tests = as_value(element, "isin"), as_value(test_elements, "isin: test_elements")
    possible = None
    if {x.dtype.kind, tests.dtype.kind} == {"i", "u"} and result_dtype(x.dtype, tests.dtype).kind == "f":
        # int64 and uint64: compared as uint64, where what only one of the two can hold is excluded
        possible = x >= 0 if x.dtype.kind == "i" else x <= np.iinfo(np.int64).max
        x, tests = (convert(v, dtype=np.dtype(np.uint64)) for v in (x, tests))
    x, tests = same_dtype(x, tests)
    n = tests.size
    if n == 0:
        return wrap(np.full(x.shape, bool(invert)))
    ordered = sort(reshape_to(tests, shape=(n,)))
    nearest = gather(ordered, clip(search(ordered, x, side="left"), max=n - 1))
    if possible is not None:
        found = possible & equal(nearest, x)
        return ~found if invert else found
    return not_equal(nearest, x) if invert else equal(nearest, x)
