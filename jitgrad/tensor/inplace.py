"""Writing in place, with right gradients: a write gives the tensor (and its base, and its views) a new history.

The memory is replaced when nobody else can see it, so that nodes that wait for backward keep the old values; it is
written when an alias can, and backward then refuses to use what was overwritten.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgrad.autodiff.node import GradNode, next_tick
from jitgrad.core.aval import aval_of, broadcasts_to
from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Tracer
from jitgrad.core.memory import log_write, owner
from jitgrad.core.modes import grad_mode
from jitgrad.core.trace import current_graph
from jitgrad.eager import plan_for, recorder_for
from jitgrad.errors import DtypeError, InPlaceError, ShapeError, UnsupportedError, user_line
from jitgrad.ops.indexing import basic_index, flat_positions, plain_index
from jitgrad.ops.linear import (
    ViewChain,
    bounded,
    convert,
    copy_of,
    expand,
    follow,
    gather,
    overwrite,
    put,
    slice_view,
    to_numpy_index,
)
from jitgrad.ops.selection import where
from jitgrad.tensor.operands import as_tensor
from jitgrad.tensor.storage import (
    aliased,
    history_edge,
    is_held,
    new_node,
    own_memory,
    rebase,
    storage_of,
    views_a_leaf,
)
from jitgrad.tensor.tensor import Tensor, make
from jitgrad.tensor.traced_memory import check_parted, is_at, is_part, writable, write_traced
from jitgrad.tensor.views import check_masks

__all__ = ["assign", "set_item", "take_history"]


def _check_target(target: Tensor, operation: str) -> None:
    """Whether this tensor may be written at all."""
    if grad_mode.get() and views_a_leaf(target):
        what = "a view of a leaf" if target._chain else "a leaf"
        raise InPlaceError(
            f"{operation} writes {what} that requires grad; its history would begin in the middle. To update a "
            "parameter:\n    with jg.no_grad():\n        x -= step * x.grad"
        )
    array = target._value
    obstacle = writable(target)
    if obstacle == "captured" or (isinstance(array, np.ndarray) and current_graph() is not None):
        raise InPlaceError(
            f"{operation} at {user_line()} writes a captured tensor of shape {tuple(target.shape)} while a function is "
            "traced: the compiled function would not do it again. Pass the tensor as an argument and return its new value"
        )
    if obstacle == "broadcast":
        raise _broadcast(operation)
    if obstacle == "read-only":
        raise _read_only(operation)
    if isinstance(array, np.ndarray):
        if array.size and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)):
            raise _broadcast(operation)
        storage = target._storage
        if storage is not None and storage.borrowed:
            own_memory(storage)
        elif not array.flags.writeable and not target._borrowed:
            raise _read_only(operation)


def _broadcast(operation: str) -> InPlaceError:
    return InPlaceError(
        f"{operation}: several elements of this broadcast tensor share one memory; write to its .clone()"
    )


def _read_only(operation: str) -> InPlaceError:
    return InPlaceError(f"{operation}: the memory of this tensor is read-only; write to its .clone()")


def _given(target: Tensor, value: Any, operation: str) -> Tensor:
    """The value that is written, as a tensor; Python numbers take the dtype of the target, as in NumPy."""
    kind = type(value)
    if kind is bool or kind is int or (kind is float and target.dtype.kind == "f"):
        try:
            array = np.array(value, target.dtype)
        except OverflowError as error:
            raise DtypeError(f"{operation}: {value} does not fit dtype {target.dtype}: {error}") from None
        array.flags.writeable = False  # a number of the program
        return wrap(array)  # type: ignore[no-any-return]
    return as_tensor(value, operation)


def _fitted(target: Tensor, value: Tensor, operation: str, shape: tuple[int, ...]) -> Tensor:
    """The value in the dtype and shape that is written."""
    if value.shape != shape:
        if not broadcasts_to(value.shape, shape):
            squeezed = value.shape
            while len(squeezed) > len(shape) and squeezed[0] == 1:
                squeezed = squeezed[1:]
            if squeezed != value.shape:
                return _fitted(target, value.reshape(squeezed), operation, shape)
            raise ShapeError(f"{operation}: a value of shape {value.shape} does not fit into shape {shape}")
        value = expand(value, shape=shape)
    if value.dtype != target.dtype:
        if not np.can_cast(value.dtype, target.dtype, "same_kind"):
            raise DtypeError(
                f"{operation}: a {value.dtype} result does not go into a {target.dtype} tensor; convert it first"
            )
        value = convert(value, dtype=target.dtype)
    return value


def _finish(target: Tensor, operation: str, written: Any | None) -> None:
    storage = storage_of(target)
    storage.version += 1
    if written is not None:
        log_write(written, operation, next_tick(), storage.version, user_line())


def assign(target: Tensor, value: Any, operation: str, *, fresh: bool = False) -> Tensor:
    """Overwrite the whole of ``target``; ``fresh``: the array of ``value`` belongs to nobody else and may be taken."""
    _check_target(target, operation)
    given = _given(target, value, operation)
    value = _fitted(target, given, operation, target.shape)
    if value is given and (value._edge is not None or value.is_traced) and not fresh:
        # two tensors of one node would share hooks and gradients; a trace is the same whether it is recorded or not
        value = copy_of(value)
    edge, slot = _new_history(target, value, target._chain)
    data = value._value
    if isinstance(target._value, Tracer) or isinstance(data, Tracer):
        if target._memory is not None:
            written = make(data, value._aval)
            written._edge, written._slot = edge, slot
            write_traced(target, written, set_item)
            storage_of(target).version += 1
            return target
        target._value, target._aval = data, value._aval
        storage_of(target).version += 1
        if not grad_mode.get():
            check_parted(target)
    elif aliased(target):
        if fresh:
            _save_from_own_write(given._edge, target)
        _copy_to(target._value, data)
        _finish(target, operation, target._value)
    else:
        if not fresh or data.base is not None or not data.flags.c_contiguous or not data.flags.writeable:
            data = np.array(data, order="C")
        target._value = data
        target._aval = aval_of(data)
        target._borrowed = False
        _finish(target, operation, None)
    if grad_mode.get():
        rebase(target, edge, slot)
    return target


def _save_from_own_write(node: Any, target: Tensor) -> None:
    """The operation whose result is written over its operand (``x *= y``) keeps copies of what it overwrites."""
    if isinstance(node, GradNode) and node.residuals:
        memory = owner(target._value)
        node.residuals = tuple(
            [r.copy() if isinstance(r, np.ndarray) and owner(r) is memory else r for r in node.residuals]
        )


def take_history(target: Tensor, edge: GradNode, slot: int) -> None:
    """``target`` was written by the operation ``edge`` as a whole: its base and the views of it follow."""
    written = make(target._value, target._aval)
    written._edge, written._slot = edge, slot
    rebase(target, *_new_history(target, written, target._chain))


def _new_history(target: Tensor, value: Tensor, chain: ViewChain) -> tuple[Any, int]:
    """Edge of the base after ``value`` was written through the views ``chain``."""
    if not grad_mode.get():
        return None, 0
    if value._edge is not None and (target._no_grad_view or (target._history and target._history.no_grad)):
        raise InPlaceError(
            "a value that requires grad is written into a view that was made under no_grad: its base could not follow. Make "
            "the view outside of no_grad, or write value.detach()"
        )
    edge, slot = history_edge(target)
    if not chain and (value._edge is not None or edge is None):
        return value._edge, value._slot
    # a constant written over the whole keeps the history, through which only zeros flow, as one written over a part does
    if edge is None and value._edge is None:
        return None, 0
    history = target._history
    base_aval = target._aval if history is None else history.aval
    needs = tuple(i for i, e in enumerate((edge, value._edge)) if e is not None)
    recorder = recorder_for(plan_for(overwrite, (base_aval, value._aval), {"chain": chain}), needs)
    edges = tuple(e for e in (edge, value._edge) if e is not None)
    slots = tuple(s for e, s in ((edge, slot), (value._edge, value._slot)) if e is not None)
    return new_node(recorder, edges, slots), 0


def _copy_to(region: np.ndarray[Any, Any], data: np.ndarray[Any, Any]) -> None:
    """``region[...] = data`` for values that may lie in the same memory: along one axis NumPy expects equal strides there."""
    if region.ndim == 1 and data.strides != region.strides and np.may_share_memory(region, data):
        data = data.copy()
    region[...] = data


def _make_room(target: Tensor) -> bool:
    """Before a part is written: give the tensor its own copy if nodes hold the memory and nobody else sees it.
    Whether the write must be logged."""
    if aliased(target):
        return True
    if target._borrowed or is_held(target):
        target._value = np.array(target._value, order="C")
        target._aval = aval_of(target._value)
        target._borrowed = False
    return False


def _items(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    try:
        return plain_index(index)
    except UnsupportedError:
        check_masks(index, shape)
        raise


def set_item(target: Tensor, index: Any, value: Any) -> None:
    """``target[index] = value``."""
    operation = "x[...] = value"
    _check_target(target, operation)
    if isinstance(index, Tensor) and index.is_traced and index.dtype.kind == "b":
        given = _given(target, value, operation)
        if given.size == 1 and index.shape == target.shape[: index.ndim]:  # the shape does not depend on values
            mask = index.reshape((*index.shape, *(1,) * (target.ndim - index.ndim)))
            new = _fitted(target, given.reshape(()), operation, target.shape)
            assign(target, where(mask, new, target), operation, fresh=True)
            return
    items = _items(index, target.shape)
    basic = basic_index(items, target.shape)
    value = _given(target, value, operation)
    if isinstance(target._value, Tracer) or isinstance(value._value, Tracer):
        _set_item_traced(target, basic, items, value, operation)
        return
    if basic is not None:
        region = target._value[to_numpy_index(basic)]
        if _is_same_memory(target, region, value):  # `x[i] += v` has written through the view already
            return
        fitted = _fitted(target, value, operation, region.shape)
        chain = (*target._chain, (slice_view, (("index", basic),)))
        edge, slot = _new_history(target, fitted, chain)
        del region
        logged = _make_room(target)
        region = target._value[to_numpy_index(basic)]
        _copy_to(region, fitted._value)
        _finish(target, operation, region if logged else None)
        _follow(target, edge, slot)
        return
    positions = flat_positions(items, target.shape)
    fitted = _fitted(target, value, operation, positions.shape)
    positions, fitted = _last_writes(positions, fitted)
    edge, slot = None, 0
    if grad_mode.get() and (target._edge is not None or fitted._edge is not None):
        replaced = put(target, fitted, wrap(positions))
        edge, slot = _new_history(target, replaced, target._chain)
        del replaced
    logged = _make_room(target)
    if target.ndim:
        target._value[np.unravel_index(positions, target.shape)] = fitted._value
    elif positions.size:  # NumPy's index for no axes
        target._value[...] = fitted._value.reshape(())
    _finish(target, operation, target._value[_around(positions, target.shape)] if logged and positions.size else None)
    _follow(target, edge, slot)


def _around(positions: np.ndarray[Any, Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The index of the smallest box with all of the flat positions."""
    if not shape:
        return (...,)
    return (*(slice(int(i.min()), int(i.max()) + 1) for i in np.unravel_index(positions, shape)), ...)


def _follow(target: Tensor, edge: Any, slot: int) -> None:
    """After a part was written: a new history, unless neither there was one nor is."""
    if edge is not None or (target._history is not None and target._history.loose and grad_mode.get()):
        rebase(target, edge, slot)


def _set_item_traced(target: Tensor, basic: Any, items: tuple[Any, ...], value: Tensor, operation: str) -> None:
    if basic is not None:
        chain = ((slice_view, (("index", basic),)),)
        if is_part(value, target, chain[0]):  # `x[i] += v` has written through the view already
            return
        shape = follow(np.broadcast_to(np.zeros((), target.dtype), target.shape), chain).shape
        replaced = overwrite(target, _fitted(target, value, operation, shape), chain=chain)
    elif any(isinstance(i, Tensor) for i in items):
        if is_at(value, target, items):
            return
        at = _traced_positions(target, items, operation)
        replaced = put(target, _fitted(target, value, operation, at.shape), at)
    else:
        positions = flat_positions(items, target.shape)
        positions, fitted = _last_writes(positions, _fitted(target, value, operation, positions.shape))
        replaced = put(target, fitted, wrap(positions))
    assign(target, replaced, operation, fresh=True)


def _traced_positions(target: Tensor, items: tuple[Any, ...], operation: str) -> Tensor:
    """Where ``x[i] = v`` writes for one traced integer ``i``. Of several positions, which may be equal, it is not known
    which is written last, and so which value gets the gradient."""
    if len(items) > 1 or items[0].ndim or not target.ndim:
        raise UnsupportedError(
            f"{operation} at positions that are traced: only one integer that indexes the first axis can be. Write one row at "
            "a time, or jg.where(condition, new, old), or pass the indices as a constant"
        )
    at: Tensor = bounded(items[0], extent=target.shape[0], axis=0)
    rest = target.shape[1:]
    return at if not rest else at * math.prod(rest) + np.arange(math.prod(rest)).reshape(rest)


def _is_same_memory(target: Tensor, region: np.ndarray[Any, Any], value: Tensor) -> bool:
    array = value._value
    return (
        value._chain != ()
        and value._history is target._history  # a detached alias has the same memory and another history
        and array.shape == region.shape
        and array.strides == region.strides
        and array.__array_interface__["data"] == region.__array_interface__["data"]
    )


def _last_writes(positions: np.ndarray[Any, Any], value: Tensor) -> tuple[np.ndarray[Any, Any], Tensor]:
    """Where an index names a place several times the last value stays, as in NumPy; the others get no gradient."""
    flat = positions.reshape(-1)
    last, first = np.unique(flat[::-1], return_index=True)
    if last.size == flat.size:
        return positions, value
    order = flat.size - 1 - first
    return last, gather(value, wrap(order))
