"""Sums of products over axes of tensors: tensordot, and the Kronecker and cross products."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError
from jitgrad.ops.axes import axis_of, index_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.elementwise import multiply
from jitgrad.ops.linear import join, permute, reshape_to, slice_view
from jitgrad.ops.products import axis_last, contract


def _tensordot_samples(rng: np.random.Generator) -> list[Call]:
    a, b = uniform(rng, 2, 3, 4), uniform(rng, 3, 4, 2)
    return [
        Call((a, b), {}),
        Call((a, uniform(rng, 4, 2)), {"axes": 1}),
        Call((a, b), {"axes": ((0, 2), (2, 1))}),
        Call((a, b), {"axes": (2, 1)}),
        Call((a, b), {"axes": ([2, 0, 1], [1, 2, 0])}),
        Call((uniform(rng, 2), uniform(rng, 3)), {"axes": 0}),
        Call((a, uniform(rng, 3, 4)), {"axes": 2}),
        Call((uniform(rng, 3, 4), uniform(rng, 3, 4, 2)), {"axes": 2}),
    ]


@operation(samples=_tensordot_samples)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Value:
    """Sum of products over the last ``axes`` axes of ``a`` and the first ones of ``b``, or over pairs of axes
    ``(axes of a, axes of b)``.

    Any dtype; a ShapeError where extents differ. Derivative: the product rule.

    >>> import jitgrad as jg
    >>> jg.tensordot([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0], axes=1)
    tensor([3., 7.])
    """
    x, y = as_value(a, "tensordot"), as_value(b, "tensordot")
    if isinstance(axes, tuple | list):
        if len(axes) != 2:
            raise ArgumentError(f"tensordot: axes {axes} must be an integer or a pair (axes of a, axes of b)")
        first, second = ([v] if not isinstance(v, tuple | list) else list(v) for v in axes)
    else:
        count = index_of(axes, "axes")
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise ShapeError(f"tensordot: {count} axes of shapes {x.shape} and {y.shape} cannot be summed over")
        first, second = list(range(x.ndim - count, x.ndim)), list(range(count))
    if len(first) != len(second):
        raise ArgumentError(f"tensordot: axes {axes} name {len(first)} axes of a and {len(second)} of b")
    over_x = tuple(axis_of(i, x.ndim, "axis of a") for i in first)
    over_y = tuple(axis_of(j, y.ndim, "axis of b") for j in second)
    if len(set(over_x)) < len(over_x) or len(set(over_y)) < len(over_y):
        raise ArgumentError(f"tensordot: axes {axes} name an axis twice")
    return contract("tensordot", x, y, over_x, over_y)


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 2, 3), uniform(rng, 3, 2)), {}),
        Call((uniform(rng, 2), uniform(rng, 3)), {}),
        Call((uniform(rng, 2), uniform(rng, 3, 2)), {}),
        Call((uniform(rng, 2, 2, 2), uniform(rng, 3)), {}),
        Call((uniform(rng), uniform(rng, 2)), {}),
    ]
)
def kron(a: Any, b: Any) -> Value:
    """Kronecker product: blocks of ``b``, scaled by the elements of ``a``.

    The operand of fewer axes gets leading ones. Derivative: the product rule.

    >>> import jitgrad as jg
    >>> jg.kron([1.0, 10.0], [1.0, 2.0])
    tensor([ 1.,  2., 10., 20.])
    """
    x, y = as_value(a, "kron"), as_value(b, "kron")
    ndim = max(x.ndim, y.ndim)
    left = (1,) * (ndim - x.ndim) + x.shape
    right = (1,) * (ndim - y.ndim) + y.shape
    spaced = multiply(
        reshape_to(x, shape=tuple(n for i in left for n in (i, 1))),
        reshape_to(y, shape=tuple(n for i in right for n in (1, i))),
    )
    return reshape_to(spaced, shape=tuple(i * j for i, j in zip(left, right, strict=True)))


@operation(
    samples=lambda rng: [
        Call((uniform(rng, 3), uniform(rng, 3)), {}),
        Call((uniform(rng, 4, 3), uniform(rng, 3)), {}),
        Call((uniform(rng, 3, 2), uniform(rng, 3, 2)), {"axis": 0}),
        Call((uniform(rng, 3, 2), uniform(rng, 2, 3)), {"axisa": 0, "axisc": 0}),
    ]
)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Value:
    """Cross product of vectors of three components along an axis, over axes that broadcast.

    ``axisa``, ``axisb``, ``axisc`` say where the components stand in the operands and the result; ``axis`` sets all.
    A ShapeError where they are not three. Derivative: ``cross(b, g)`` and ``cross(g, a)``.

    >>> import jitgrad as jg
    >>> jg.cross([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    tensor([0., 0., 1.])
    """
    x, y = as_value(a, "cross"), as_value(b, "cross")
    if axis is not None:
        axisa = axisb = axisc = axis
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError(f"cross: shapes {x.shape} and {y.shape}: an operand is a scalar")
    x, y = axis_last(x, axis_of(axisa, x.ndim, "axisa")), axis_last(y, axis_of(axisb, y.ndim, "axisb"))
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise ShapeError(
            f"cross: vectors of {x.shape[-1]} and {y.shape[-1]} components; both must have 3 "
            "(append a zero to planar ones)"
        )
    (x0, x1, x2), (y0, y1, y2) = _components(x), _components(y)
    parts = (x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0)
    made = join(*parts, axis=parts[0].ndim - 1)
    last = made.ndim - 1
    target = axis_of(axisc, made.ndim, "axisc")
    if target == last:
        return made
    order = list(range(last))
    order.insert(target, last)
    return permute(made, axes=tuple(order))


def _components(x: Value) -> list[Value]:
    whole = ((None, None, None),) * (x.ndim - 1)
    return [slice_view(x, index=(*whole, (i, i + 1, None))) for i in range(3)]
