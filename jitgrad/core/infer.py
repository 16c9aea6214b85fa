"""The avals of results, from the avals of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from jitgrad.core.aval import BOOL, ShapedArray, make_aval
from jitgrad.core.primitive import Elementwise, Host, Primitive, Reduce, View
from jitgrad.errors import ShapeError

__all__ = ["broadcast", "infer"]

_NOTHING: Final = bytes(16)  # what an element of a stand-in is made of


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
            shape, dtype = avals[0].shape, avals[0].dtype
            stand_in: np.ndarray[Any, Any] = np.ndarray(shape, dtype, _NOTHING, 0, (0,) * len(shape))
            return (make_aval(view(stand_in, **params).shape, dtype),)
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
    longest = max([len(a.shape) for a in avals])
    found = [1] * longest
    for aval in avals:
        for i, n in enumerate(aval.shape, longest - len(aval.shape)):
            if found[i] == 1:
                found[i] = n
            elif n not in (1, found[i]):
                shapes = " and ".join(str(a.shape) for a in avals)
                raise ShapeError(f"{primitive.name}: shapes {shapes} do not broadcast together")
    return tuple(found)
