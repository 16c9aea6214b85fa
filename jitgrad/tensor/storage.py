"""Memory and history of tensors that alias each other: who shares memory, who follows whose history.

Two independent groups. A *storage* is the set of tensors on one piece of memory (views, detached aliases, arrays handed
to NumPy): it decides whether a write may replace the memory or must go to it. A *history* is a base tensor and the views
recorded on it: a write through any of them gives the base a new history, and the views follow.
A tensor that was never aliased nor written has neither.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np

from jitgrad.autodiff.node import Edge, GradNode
from jitgrad.core.aval import ShapedArray
from jitgrad.core.memory import owner
from jitgrad.eager import plan_for
from jitgrad.ops.linear import ViewChain
from jitgrad.tensor.tensor import Tensor

__all__ = [
    "History",
    "Storage",
    "aliased",
    "history_edge",
    "is_held",
    "link_view",
    "rebase",
    "share_memory",
    "storage_of",
]


_reference = weakref.ref


class _Members:
    """Weak references to tensors; dead ones are dropped when their number has doubled."""

    __slots__ = ("_limit", "_references")

    def __init__(self) -> None:
        self._references: list[weakref.ref[Tensor]] = []
        self._limit = 16

    def add(self, tensor: Tensor) -> None:
        references = self._references
        if len(references) >= self._limit:
            references[:] = [r for r in references if r() is not None]
            self._limit = max(16, 2 * len(references))
        references.append(_reference(tensor))

    def alive(self) -> list[Tensor]:
        return [t for r in self._references if (t := r()) is not None]


class Storage:
    """The tensors on one piece of memory, and how often it was written."""

    __slots__ = ("members", "shared", "version")

    def __init__(self) -> None:
        self.members = _Members()
        self.shared = False  # NumPy, or another library, has the memory too
        self.version = 0


class History:
    """The history of a base tensor, which views of it follow."""

    __slots__ = ("aval", "edge", "slot")

    def __init__(self, base: Tensor) -> None:
        self.edge: Edge | None = base._edge
        self.slot = base._slot
        self.aval: ShapedArray = base._aval


def storage_of(tensor: Tensor) -> Storage:
    """The storage of a tensor, made when it is first needed."""
    storage: Storage | None = tensor._storage
    if storage is None:
        storage = tensor._storage = Storage()
        storage.members.add(tensor)
    return storage


def share_memory(tensor: Tensor, alias: Tensor) -> None:
    """``alias`` was made on the memory of ``tensor``."""
    storage = tensor._storage
    if storage is None:
        storage = storage_of(tensor)
    alias._storage = storage
    storage.members.add(alias)


def link_view(base: Tensor, view: Tensor, step: tuple[Any, tuple[tuple[str, Any], ...]]) -> None:
    """``view`` is the view primitive ``step`` of ``base``, and follows its history."""
    history: History | None = base._history
    if history is None:
        history = base._history = History(base)
    view._history = history
    view._chain = (*base._chain, step)


def aliased(tensor: Tensor) -> bool:
    """Whether anyone else can see the memory of a tensor."""
    storage: Storage | None = tensor._storage
    if storage is None:
        return False
    return storage.shared or any(t is not tensor for t in storage.members.alive())


def _references(tensor: Any) -> tuple[int, int]:
    """Reference counts of the array and of the memory it belongs to."""
    array = tensor._value
    memory = owner(array)
    return sys.getrefcount(array), sys.getrefcount(memory) if memory is not array else 0


class _Bare:
    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._value = array


# what the counts are when nobody else holds the array: measured with the very same code, once
_OWNER_ALONE = _references(_Bare(np.zeros(2)))
_VIEW_ALONE = _references(_Bare(np.zeros(2)[1:]))


def is_held(tensor: Tensor) -> bool:
    """Whether something besides the tensor keeps its memory: nodes that wait for backward, mostly."""
    array, memory = _references(tensor)
    alone = _VIEW_ALONE if memory else _OWNER_ALONE
    return array > alone[0] or memory > alone[1]


def history_edge(tensor: Tensor) -> tuple[Edge | None, int]:
    """Edge and slot of the base that a write through this tensor changes."""
    history: History | None = tensor._history
    return (tensor._edge, tensor._slot) if history is None else (history.edge, history.slot)


def rebase(tensor: Tensor, edge: Edge | None, slot: int) -> None:
    """Give the base behind a tensor a new history, and let every living view follow."""
    history: History | None = tensor._history
    if history is None:
        tensor._set_edge(edge, slot)
        return
    history.edge, history.slot = edge, slot
    for member in storage_of(tensor).members.alive():  # views share memory, or the history would mean nothing
        if member._history is not history:
            continue
        if member._chain:
            member._set_edge(_view_edge(history, member._chain) if edge is not None else None, 0)
        else:
            member._set_edge(edge, slot)


def _view_edge(history: History, chain: ViewChain) -> Edge:
    edge, slot, aval = history.edge, history.slot, history.aval
    for primitive, params in chain:
        recorder = plan_for(primitive, (aval,), dict(params)).recorder((0,))
        edge = GradNode(recorder, (edge,), (), (slot,) if slot else None)  # type: ignore[arg-type]
        slot = 0
        aval = recorder.out_avals[0]
    assert edge is not None
    return edge
