"""Memory behind traced tensors. A graph knows no memory, but views and detached aliases must see writes as they do
eagerly: traced tensors that would share memory share a cell, and a write through one gives all of them new values. What
follows another history (a detached alias) or is where no chain of views leads (at traced positions) has a cell of its own,
which knows the tensor around it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from jitgrad.core.graph import Tracer, is_number
from jitgrad.core.modes import grad_mode
from jitgrad.errors import UnsupportedError, user_line
from jitgrad.ops.indexing import traced_getitem
from jitgrad.ops.linear import ViewChain, follow, overwrite, reshape_to, stop_gradient_view
from jitgrad.tensor.tensor import Tensor, make

__all__ = [
    "check_followed",
    "check_parted",
    "in_one_memory",
    "is_at",
    "is_part",
    "share_at",
    "share_traced",
    "writable",
    "write_traced",
]

_T = TypeVar("_T")
_Step = tuple[Any, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Place:
    """Where a memory is that is part of another one."""

    around: Tensor
    items: tuple[Any, ...] | None  # of the index into that, some of them traced; None for a detached alias of all of it

    def read(self) -> Tensor:
        """What is there now."""
        if self.items is None:
            return stop_gradient_view(self.around)  # type: ignore[no-any-return]
        return traced_getitem(self.around, self.items)  # type: ignore[no-any-return]


class TracedMemory:
    """The value of a whole and its history, and the tensors that see it or a part of it (by their ``_path``).

    ``whole`` is None for a captured array, which a traced function does not write.
    """

    __slots__ = ("__weakref__", "members", "parts", "place", "whole")

    def __init__(self, whole: Tensor | None, place: Place | None = None) -> None:
        self.whole = whole
        self.members: list[weakref.ref[Tensor]] = []
        self.place = place
        self.parts: list[weakref.ref[TracedMemory]] = []
        if place is not None:
            _refer(place.around._memory.parts, self)

    def add(self, tensor: Tensor, path: ViewChain) -> None:
        """From now on the tensor sees what the path shows of the whole."""
        _refer(self.members, tensor)
        tensor._memory, tensor._path = self, path


def share_traced(base: Tensor, view: Tensor, step: _Step) -> None:
    """``view`` is the view primitive ``step`` of ``base``, and would share its memory."""
    if not isinstance(base._value, Tracer):
        if not is_number(base._value):
            TracedMemory(None).add(view, ())
        return
    memory = _memory_of(base)
    if memory.whole is None:
        memory.add(view, (*base._path, step))
        return
    root, path = _outermost(base)
    if root.whole.size and (not view.size or _is_copied(root.whole, (*path, step))):  # type: ignore[union-attr, arg-type]
        return
    if step[0] is stop_gradient_view:
        TracedMemory(_same(view), Place(base, None)).add(view, ())
    else:
        memory.add(view, (*base._path, step))


def _memory_of(tensor: Tensor) -> TracedMemory:
    if tensor._memory is None:
        memory = TracedMemory(_same(tensor))
        memory.add(tensor, ())
    return tensor._memory  # type: ignore[no-any-return]


def _outermost(tensor: Tensor) -> tuple[TracedMemory, ViewChain]:
    """The memory of a tensor or, through detached aliases, that of what they are aliases of; and the path to it there."""
    memory, path = tensor._memory, tensor._path
    while memory.place is not None and memory.place.items is None:
        around = memory.place.around
        memory, path = around._memory, (*around._path, *path)
    return memory, path


def in_one_memory(a: Tensor, b: Tensor) -> bool:
    """Whether traced tensors may see writes through each other."""
    return a._memory is not None and b._memory is not None and _root(a._memory) is _root(b._memory)


def _root(memory: TracedMemory) -> TracedMemory:
    while memory.place is not None:
        memory = memory.place.around._memory
    return memory


def _with_history(value: Tensor, other: Tensor) -> Tensor:
    """Another tensor of this value, with the history of the other one."""
    made = make(value._value, value._aval)
    made._edge, made._slot = other._edge, other._slot
    return made


def _same(tensor: Tensor) -> Tensor:
    """Another tensor of the same value and history."""
    return _with_history(tensor, tensor)


def share_at(base: Tensor, view: Tensor, items: tuple[Any, ...]) -> None:
    """``view`` is ``base[items]`` with slices, integers and traced integers, and would share its memory."""
    if not isinstance(base._value, Tracer):
        TracedMemory(None).add(view, ())
        return
    memory = _memory_of(base)
    if memory.whole is None:
        memory.add(view, ())
    else:
        TracedMemory(_same(view), Place(base, items)).add(view, ())


def _is_copied(whole: Tensor, path: ViewChain) -> bool:
    """Whether NumPy has to copy somewhere on this path of views: some reshapes are none."""
    if all(primitive is not reshape_to for primitive, _ in path):
        return False
    stand_in = _stand_in(whole, path)
    return not np.may_share_memory(follow(stand_in, path), stand_in)


def _stand_in(whole: Tensor, path: ViewChain) -> np.ndarray[Any, Any]:
    """A contiguous array like the whole, of which only the memory layout counts: it takes no memory if nothing can copy it."""
    moved = itertools.dropwhile(lambda step: step[0] is reshape_to, path)
    if any(step[0] is reshape_to for step in moved):
        return np.empty(whole.shape, whole.dtype)
    strides = np.cumprod((whole.dtype.itemsize, *whole.shape[:0:-1]), dtype=object)[::-1] if whole.ndim else ()
    return np.lib.stride_tricks.as_strided(np.empty(1, whole.dtype), whole.shape, tuple(strides))


def writable(tensor: Tensor) -> str | None:
    """Why a traced tensor cannot be written; None if it can."""
    memory: TracedMemory | None = tensor._memory
    if memory is None:
        return None
    if memory.whole is None:
        return "captured"
    root, path = _outermost(tensor)
    seen = follow(_stand_in(root.whole, path), path)  # type: ignore[arg-type]
    if seen.size and any(s == 0 and n > 1 for s, n in zip(seen.strides, seen.shape, strict=True)):
        return "broadcast"
    return None if seen.flags.writeable else "read-only"


def is_part(value: Tensor, target: Tensor, step: _Step) -> bool:
    """Whether a traced value is that view of the target itself: it is there already."""
    return value._memory is not None and value._memory is target._memory and value._path == (*target._path, step)


def is_at(value: Tensor, target: Tensor, items: tuple[Any, ...]) -> bool:
    """Whether a traced value is that part of the target itself, at traced positions."""
    memory: TracedMemory | None = value._memory
    place = memory.place if memory is not None and not value._path else None
    if (
        place is None
        or place.items is None
        or place.around._memory is not target._memory
        or place.around._path != target._path
    ):
        return False
    return len(items) == len(place.items) and all(map(_is_same_item, items, place.items))


def _is_same_item(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a._value is b._value
    return type(a) is type(b) and bool(a == b)


def write_traced(target: Tensor, value: Tensor, write_at: Callable[[Tensor, tuple[Any, ...], Tensor], None]) -> None:
    """Write a value of its shape and dtype through a tensor that shares a cell.

    ``write_at(around, items, value)`` is ``around[items] = value`` for a part at traced positions.
    """
    memory: TracedMemory = target._memory
    whole = memory.whole
    assert whole is not None
    for member in _alive(memory.members):
        if not member._path:  # the history of the base may have been cut meanwhile
            whole._edge, whole._slot = member._edge, member._slot
    new = overwrite(whole, value, chain=target._path) if target._path else value
    recorded, place = bool(grad_mode.get()), memory.place
    if not recorded:
        new = _with_history(new, whole)
    if place is None or (place.items is None and recorded):
        _renew(memory, new, recorded)
    if place is None:
        return
    # what is around brings the new value to all that see it
    if place.items is not None:
        write_at(place.around, place.items, new)
        return
    token = grad_mode.set(False)  # a write through a detached alias is none to their histories
    try:
        write_traced(place.around, new, write_at)
    finally:
        grad_mode.reset(token)


def check_parted(tensor: Tensor) -> None:
    """For a tensor of which the value and the history part: one of them was written, or cut, and not the other."""
    check_followed(
        tensor,
        f"the value of a tensor of shape {tuple(tensor.shape)} and its history part here (a write through a detached alias or "
        "under no_grad, or detach_())",
        "write to a clone() instead",
    )


def check_followed(tensor: Tensor, what: str, instead: str) -> None:
    """Raise UnsupportedError where the nodes of a graph alone have to say something that they cannot."""
    if tensor._edge is not None and isinstance(tensor._value, Tracer) and tensor._value.graph.differentiated:
        raise UnsupportedError(
            f"{user_line()}: {what}, which vmap cannot follow for all elements at once when it is differentiated; {instead}"
        )


def _alive(references: list[weakref.ref[_T]]) -> list[_T]:
    return [t for r in references if (t := r()) is not None]


def _refer(references: list[weakref.ref[_T]], to: _T) -> None:
    """Append a reference, and drop the dead ones from time to time."""
    if len(references) % 16 == 15:
        references[:] = [r for r in references if r() is not None]
    references.append(weakref.ref(to))


def _renew(memory: TracedMemory, new: Tensor, recorded: bool) -> None:
    """Give all that see a memory its new value, and its history if the write is ``recorded``."""
    assert memory.whole is not None
    whole = memory.whole = new if recorded else _with_history(new, memory.whole)
    for member in _alive(memory.members):
        seen = follow(whole, member._path)
        member._value, member._aval = seen._value, seen._aval
        if recorded:
            member._set_edge(seen._edge, seen._slot)
        else:
            check_parted(member)
    for part in _alive(memory.parts):
        assert part.place is not None
        _renew(part, part.place.read(), recorded and part.place.items is not None)
