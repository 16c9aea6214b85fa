"""The short way of views: a call that made one view of a tensor is made again without detours.

Plans are found by the aval of the tensor and the arguments as they are written; see ``view_result`` for what a view is
besides an array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.graph import Tracer
from jitgrad.core.trace import is_tracing
from jitgrad.eager import Plan, keep_plan, plan_for
from jitgrad.errors import UnsupportedError
from jitgrad.ops.indexing import basic_index, flat_positions, getitem, plain_index
from jitgrad.ops.linear import slice_view
from jitgrad.tensor.engine import view_result
from jitgrad.tensor.tensor import Tensor
from jitgrad.tensor.traced_memory import share_at

__all__ = ["check_masks", "get_item"]

_views: dict[Any, Plan] = {}  # by the aval and the index as it is written


def get_item(tensor: Tensor, index: Any) -> Tensor:
    """``tensor[index]``; basic indices do the usual case without detours.

    NumPy takes the index as it is written, so a plan that was found by an equal one of another type (1.0 for 1) does no harm:
    it is refused.
    """
    aval = tensor._aval
    kind = type(index)
    taken: Any = index
    key: Any
    if kind is int:
        key, taken = (aval, index), (index, ...)  # the dots keep a scalar an array
    elif kind is slice:
        key = (aval, index.start, index.stop, index.step)
    elif kind is tuple:
        key = []
        for item in index:
            of = type(item)
            if of is slice:
                key.append((item.start, item.stop, item.step))
            elif of is int or item is None or item is Ellipsis:
                key.append(item)
            else:
                return _any_item(tensor, index)
        key, taken = (aval, tuple(key)), index if Ellipsis in key else (*index, ...)
    else:
        return _any_item(tensor, index)
    try:
        plan = _views[key]
        found = tensor._value[taken]
    except (KeyError, TypeError, IndexError):
        plan = None
    if plan is None:
        return _new_item(tensor, index, key)
    return view_result(plan, tensor, found)


def _new_item(tensor: Tensor, index: Any, key: Any) -> Tensor:
    """``tensor[index]`` for a basic index that has no plan yet, or is wrong."""
    if type(tensor._value) is Tracer:
        return getitem(tensor, index)  # type: ignore[no-any-return]
    if is_tracing():
        return _any_item(tensor, index)
    basic = basic_index(plain_index(index), tensor.shape)
    assert basic is not None
    plan = plan_for(slice_view, (tensor._aval,), {"index": basic})
    slices = [i for i in (index if type(index) is tuple else (index,)) if type(i) is slice]
    if all(type(b) is int or b is None for s in slices for b in (s.start, s.stop, s.step)):  # others may change
        keep_plan(_views, key, plan)
    return view_result(plan, tensor, plan.run(tensor._value))


def _any_item(tensor: Tensor, index: Any) -> Tensor:
    try:
        found: Tensor = getitem(tensor, index)
    except UnsupportedError:
        check_masks(index, tensor.shape)
        raise
    if type(found._value) is Tracer:
        items = plain_index(index)
        if _is_at_traced_position(items):
            share_at(tensor, found, items)
    return found


def _is_at_traced_position(items: tuple[Any, ...]) -> bool:
    """Whether an index would give a view if its integers were known."""
    arrays = [i for i in items if isinstance(i, Tensor | np.ndarray)]
    return bool(arrays) and all(isinstance(i, Tensor) and not i.ndim for i in arrays)


def check_masks(index: Any, shape: tuple[int, ...]) -> None:
    """Before a traced mask is refused for its values: raise the error of one that does not fit by its shape alone."""
    known = [
        np.zeros(i.shape, i.dtype) if isinstance(i, Tensor) and i.is_traced else i
        for i in (index if type(index) is tuple else (index,))
    ]
    if any(isinstance(i, np.ndarray) and i.dtype.kind == "b" for i in known):
        flat_positions(plain_index(tuple(known)), shape)
