"""Shape movement and joining. Views where NumPy gives views."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.aval import check_dtype
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Value
from jitgrad.errors import ShapeError
from jitgrad.ops.axes import shape_of
from jitgrad.ops.blocks import Call, operation
from jitgrad.ops.linear import convert, copy_of, expand, reshape_to


def _array(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.uniform(-2.0, 2.0, shape)


@operation(
    samples=lambda rng: [Call((_array(rng, 3, 4), np.float32), {}), Call((_array(rng, 3), np.float64), {})],
    method=True,
    reference=lambda x, dtype: np.asarray(x).astype(dtype),
)
def astype(x: Any, dtype: Any, *, copy: bool = True) -> Value:
    """The array in another dtype; always a copy, unless the dtype is the same and ``copy=False``.

    Derivative: the cotangent, converted back; converting to integers or bool cuts the graph.
    """
    x = as_value(x, "astype")
    made = check_dtype(dtype, "astype")
    if made == x.dtype:
        return copy_of(x) if copy else x
    return convert(x, dtype=made)


@operation(samples=lambda rng: [Call((_array(rng, 2, 6), (3, 4)), {}), Call((_array(rng, 2, 6), (-1,)), {})])
def reshape(x: Any, shape: Any) -> Value:
    """The same elements, in C order, with another shape; one extent may be -1.

    Derivative: the cotangent, reshaped back.
    """
    x = as_value(x, "reshape")
    wanted = shape_of(shape)
    if -1 in wanted:
        if wanted.count(-1) > 1:
            raise ShapeError(f"reshape to {wanted}: only one extent may be -1")
        rest = 1
        for n in wanted:
            rest *= n if n != -1 else 1
        if rest == 0 or x.size % rest:
            raise ShapeError(f"reshape: {x.shape} has {x.size} elements, which do not fill {wanted}")
        wanted = tuple(x.size // rest if n == -1 else n for n in wanted)
    total = 1
    for n in wanted:
        total *= n
    if total != x.size or any(n < 0 for n in wanted):
        raise ShapeError(f"reshape: {x.shape} has {x.size} elements, {wanted} has {total}")
    return reshape_to(x, shape=wanted)


@operation(samples=lambda rng: [Call((_array(rng, 3, 1), (2, 3, 4)), {}), Call((_array(rng), (2,)), {})], method=True)
def broadcast_to(x: Any, shape: Any) -> Value:
    """A read-only view of another shape, repeated along new and stretched axes.

    Derivative: the cotangent, summed over these axes.
    """
    x = as_value(x, "broadcast_to")
    wanted = shape_of(shape)
    try:
        fits = np.broadcast_shapes(x.shape, wanted) == wanted
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"broadcast_to: shape {x.shape} does not broadcast to {wanted}")
    return expand(x, shape=wanted)
