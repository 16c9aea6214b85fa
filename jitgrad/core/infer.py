"""The avals of results, from the avals of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core.aval import BOOL, ShapedArray, make_aval
from jitgrad.core.primitive import Elementwise, Host, Primitive, Reduce, View
from jitgrad.errors import ShapeError

__all__ = ["broadcast", "infer"]


def infer(primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]) -> tuple[ShapedArray, ...]:
    """The avals of the results, without computing them."""
    match primitive.impl:
        case Elementwise(result=result, fixed=fixed):
            deciding = avals[0] if not fixed else next(a for i, a in enumerate(avals) if i not in fixed)
            return (make_aval(broadcast(primitive, avals), BOOL if result == "bool" else deciding.dtype),)
        case Reduce(result=result_dtype):
            kept = tuple(n for i, n in enumerate(avals[0].shape) if i not in params["axes"])
            return (make_aval(kept, np.dtype(result_dtype(avals[0].dtype))),)
        case View(view=view):
            stand_in = np.broadcast_to(np.zeros((), avals[0].dtype), avals[0].shape)
            return (make_aval(view(stand_in, **params).shape, avals[0].dtype),)
        case Host(infer=rule):
            found = rule(*avals, **params)
            return (found,) if isinstance(found, ShapedArray) else tuple(found)


def broadcast(primitive: Primitive, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The shape that the operands broadcast to."""
    first = avals[0].shape
    for aval in avals:
        if aval.shape != first:
            break
    else:
        return first
    try:
        return np.broadcast_shapes(*(a.shape for a in avals))
    except ValueError:
        shapes = " and ".join(str(a.shape) for a in avals)
        raise ShapeError(f"{primitive.name}: shapes {shapes} do not broadcast together") from None
