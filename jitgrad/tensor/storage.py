"""Memory and history of tensors that alias each other: who shares memory, who follows whose history.

Two independent groups. A *storage* is the set of tensors on one piece of memory (views, detached aliases, arrays handed
to NumPy): it decides whether a write may replace the memory or must go to it. A *history* is a base tensor and the views
recorded on it: a write through any of them gives the base a new history, and the views follow.
A tensor that was never aliased nor written has neither.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from jitgrad.autodiff.node import Edge, GradNode, Leaf
from jitgrad.core.aval import ShapedArray
from jitgrad.core.memory import Exported, owner
from jitgrad.core.modes import ANOMALY, grad_mode
from jitgrad.eager import plan_for, recorder_for
from jitgrad.errors import user_line
from jitgrad.ops.linear import ViewChain
from jitgrad.tensor.tensor import Tensor

__all__ = [
    "History",
    "Storage",
    "aliased",
    "history_edge",
    "is_held",
    "link_view",
    "new_node",
    "own_memory",
    "rebase",
    "share_memory",
    "storage_of",
    "views_a_leaf",
]


_reference = weakref.ref


class Storage:
    """The tensors on one piece of memory, and how often it was written."""

    __slots__ = ("_exports", "_most", "_references", "borrowed", "foreign", "version")

    def __init__(self) -> None:
        self._references: list[weakref.ref[Tensor]] = []
        self._most = 16  # dead references are dropped when their number has doubled
        self.foreign = False  # the memory was NumPy's, or another library's, before
        self.borrowed = False  # the memory belongs to the caller of a transform, who must not see writes
        self.version = 0
        self._exports: list[weakref.ref[Exported]] = []

    def add(self, tensor: Tensor) -> None:
        """From now on the tensor is on this memory."""
        references = self._references
        if len(references) >= self._most:
            references[:] = [r for r in references if r() is not None]
            self._most = max(16, 2 * len(references))
        references.append(_reference(tensor))
        tensor._storage = self

    def members(self) -> list[Tensor]:
        """The living tensors on this memory."""
        return [t for r in self._references if (t := r()) is not None]

    def export(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An ndarray for NumPy on the same memory; as long as it or a view of it lives, the memory has an alias."""
        exported = Exported(array)
        self._exports = [r for r in self._exports if r() is not None]
        self._exports.append(_reference(exported))
        return np.asarray(exported)

    def exports(self) -> list[Exported]:
        """What NumPy still has of the memory."""
        return [e for r in self._exports if (e := r()) is not None]


class History:
    """The history of a base tensor, which views of it follow.

    ``no_grad``: the base is itself a view, made under no_grad, of something whose history it cannot change.
    ``loose``: the base was detached in place, so views may have a history that it has not.
    """

    __slots__ = ("aval", "edge", "loose", "no_grad", "slot")

    def __init__(self, base: Tensor) -> None:
        self.edge: Edge | None = base._edge
        self.slot = base._slot
        self.aval: ShapedArray = base._aval
        self.no_grad = base._no_grad_view
        self.loose = False


def storage_of(tensor: Tensor) -> Storage:
    """The storage of a tensor, made when it is first needed."""
    storage: Storage | None = tensor._storage
    if storage is None:
        storage = Storage()
        storage.borrowed = tensor._borrowed
        storage.add(tensor)
    return storage


def share_memory(tensor: Tensor, alias: Tensor) -> None:
    """``alias`` was made on the memory of ``tensor``."""
    (tensor._storage or storage_of(tensor)).add(alias)


def own_memory(storage: Storage) -> None:
    """Before the first write to borrowed memory: every tensor on it moves to a copy, where they alias as before."""
    storage.borrowed = False
    members = [m for m in storage.members() if isinstance(m._value, np.ndarray)]
    bounds = [byte_bounds(m._value) for m in members]
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    buffer = np.empty(high - low, np.uint8)
    arrays = [m._value for m in members]
    copies = [
        np.ndarray(a.shape, a.dtype, buffer, a.__array_interface__["data"][0] - low, a.strides) if a.size else a.copy()
        for a in arrays
    ]
    for member, array, copy in zip(members, arrays, copies, strict=True):
        copy[...] = array
        member._value = copy
        member._borrowed = False


def link_view(base: Tensor, view: Tensor, step: tuple[Any, tuple[tuple[str, Any], ...]]) -> None:
    """``view`` is the view primitive ``step`` of ``base``, and follows its history."""
    history: History | None = base._history
    if history is None:
        history = base._history = History(base)
    view._history = history
    chain = base._chain
    if not chain:
        view._chain = (step,)
        return
    view._chain = (*chain, step)
    if base._over_leaf or isinstance(base._edge, Leaf):
        view._over_leaf = True


def aliased(tensor: Tensor) -> bool:
    """Whether anyone else can see the memory of a tensor."""
    storage: Storage | None = tensor._storage
    if storage is None:
        return False
    return storage.foreign or any(t is not tensor for t in storage.members()) or bool(storage.exports())


def _references(holder: Any) -> int:
    """Reference count of the array that a holder has."""
    return sys.getrefcount(holder._value)


# what the count is besides holders: measured with the very same code, once
_UNSEEN = _references(Exported(np.zeros(2))) - 1


def is_held(tensor: Tensor) -> bool:
    """Whether something besides tensors and exported arrays keeps the memory: nodes that wait for backward, mostly.

    Every reference that is known is counted; what is left over belongs to someone else. Callers must not have the array
    in a variable.
    """
    storage: Storage | None = tensor._storage
    holders: list[Any] = [tensor] if storage is None else [*storage.members(), *storage.exports()]
    memory = Exported(owner(tensor._value))
    if not isinstance(memory._value, np.ndarray):
        return True  # type: ignore[unreachable]  # who else uses a foreign buffer cannot be known
    holders.append(memory)
    known = Counter(id(h._value) for h in holders)
    # a view refers to the memory by its base, once for all who hold the view
    views = {id(h._value) for h in holders if getattr(h._value, "base", None) is memory._value}
    known[id(memory._value)] += len(views)
    return any(_references(h) - _UNSEEN > known[id(h._value)] for h in holders)


def history_edge(tensor: Tensor) -> tuple[Edge | None, int]:
    """Edge and slot of the base that a write through this tensor changes."""
    history: History | None = tensor._history
    return (tensor._edge, tensor._slot) if history is None else (history.edge, history.slot)


def views_a_leaf(tensor: Tensor) -> bool:
    """Whether this is a leaf that requires grad, or a view of one."""
    return isinstance(tensor._edge, Leaf) or isinstance(history_edge(tensor)[0], Leaf) or tensor._over_leaf


def rebase(tensor: Tensor, edge: Edge | None, slot: int) -> None:
    """Give the base behind a tensor a new history, and let every living view follow."""
    history: History | None = tensor._history
    if history is None:
        tensor._set_edge(edge, slot)
        return
    history.edge, history.slot = edge, slot
    for member in storage_of(tensor).members():  # views share memory, or the history would mean nothing
        if member._history is not history or (edge is None and isinstance(member._edge, Leaf)):
            continue
        if member._chain:
            member._set_edge(_view_edge(history, member._chain) if edge is not None else None, 0)
        else:
            member._set_edge(edge, slot)


def new_node(recorder: Any, edges: tuple[Edge, ...], slots: tuple[int, ...]) -> GradNode:
    """A node that keeps no arrays."""
    node = GradNode(recorder, edges, (), slots if any(slots) else None)
    if grad_mode.get() == ANOMALY:
        node.where = user_line()
    return node


def _view_edge(history: History, chain: ViewChain) -> Edge:
    edge, slot, aval = history.edge, history.slot, history.aval
    for primitive, params in chain:
        recorder = recorder_for(plan_for(primitive, (aval,), dict(params)), (0,))
        edge = new_node(recorder, (edge,), (slot,))  # type: ignore[arg-type]
        slot = 0
        aval = recorder.out_avals[0]
    assert edge is not None
    return edge
