"""Memory behind traced tensors. A graph knows no memory, but views and detached aliases must see writes as they do
eagerly: traced tensors that would share memory share a cell, and a write through one gives all of them new values.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad.core.graph import Tracer, is_number
from jitgrad.core.modes import grad_mode
from jitgrad.errors import UnsupportedError, user_line
from jitgrad.ops.indexing import traced_getitem
from jitgrad.ops.linear import ViewChain, follow, overwrite, reshape_to, stop_gradient_view
from jitgrad.tensor.tensor import Tensor, make

__all__ = ["TracedMemory", "check_parted", "is_at", "is_part", "share_at", "share_traced", "writable", "write_traced"]

_Step = tuple[Any, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Place:
    """Where a part at traced positions is: no chain of views can say it."""

    around: Tensor  # a member of the memory around it
    items: tuple[Any, ...]  # of the index into that


class TracedMemory:
    """The value of a whole, and the tensors that see it or a part of it (by their ``_path``).

    ``whole`` is None for a captured array, which a traced function does not write.
    """

    __slots__ = ("__weakref__", "detached", "members", "parts", "place", "whole")

    def __init__(self, whole: Tensor | None, place: Place | None = None) -> None:
        self.whole = whole
        self.members: list[weakref.ref[Tensor]] = []
        self.place = place
        self.parts: list[weakref.ref[TracedMemory]] = []  # at positions that are traced
        self.detached: list[
            tuple[_Step, Tensor]
        ] = []  # detached aliases that got a history of their own, by their step

    def add(self, tensor: Tensor, path: ViewChain) -> None:
        """From now on the tensor sees what the path shows of the whole."""
        if len(self.members) % 16 == 15:
            self.members = [r for r in self.members if r() is not None]
        self.members.append(weakref.ref(tensor))
        tensor._memory, tensor._path = self, path


def share_traced(base: Tensor, view: Tensor, step: _Step) -> None:
    """``view`` is the view primitive ``step`` of ``base``, and would share its memory."""
    if not isinstance(base._value, Tracer):
        if not is_number(base._value):
            TracedMemory(None).add(view, ())
        return
    path = (*base._path, step)
    memory: TracedMemory | None = base._memory
    if memory is not None and memory.whole is None:
        memory.add(view, path)
        return
    root = base if memory is None else memory.whole
    if root.size and (not view.size or _is_copied(root, path)):  # type: ignore[arg-type, union-attr]
        return
    _memory_of(base).add(view, path)


def _memory_of(tensor: Tensor) -> TracedMemory:
    if tensor._memory is None:
        memory = TracedMemory(_same(tensor))
        memory.add(tensor, ())
    return tensor._memory  # type: ignore[no-any-return]


def _same(tensor: Tensor) -> Tensor:
    """Another tensor of the same value and history."""
    made = make(tensor._value, tensor._aval)
    made._edge, made._slot = tensor._edge, tensor._slot
    return made


def share_at(base: Tensor, view: Tensor, items: tuple[Any, ...]) -> None:
    """``view`` is ``base[items]`` with slices, integers and traced integers, and would share its memory."""
    if not isinstance(base._value, Tracer):
        TracedMemory(None).add(view, ())
        return
    memory = _memory_of(base)
    if memory.whole is None:
        memory.add(view, ())
        return
    around = _same(base)
    memory.add(around, base._path)
    part = TracedMemory(_same(view), Place(around, items))
    part.add(view, ())
    memory.parts.append(weakref.ref(part))


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
    seen = follow(_stand_in(memory.whole, tensor._path), tensor._path)
    if seen.size and any(s == 0 and n > 1 for s, n in zip(seen.strides, seen.shape, strict=True)):
        return "broadcast"
    return None if seen.flags.writeable else "read-only"


def is_part(value: Tensor, target: Tensor, step: _Step) -> bool:
    """Whether a traced value is that view of the target itself: it is there already."""
    return (
        value._memory is not None
        and value._memory is target._memory
        and value._path == (*target._path, step)
        and _detach_of(value._path) is _detach_of(target._path)  # the memory is one, the histories are not
    )


def is_at(value: Tensor, target: Tensor, items: tuple[Any, ...]) -> bool:
    """Whether a traced value is that part of the target itself, at traced positions."""
    memory: TracedMemory | None = value._memory
    place = memory.place if memory is not None and not value._path else None
    if place is None or place.around._memory is not target._memory or place.around._path != target._path:
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
    for member in _alive(memory):
        if not member._path:  # the history of the base may have been cut meanwhile
            whole._edge, whole._slot = member._edge, member._slot
    places = tuple(step for step in target._path if step[0] is not stop_gradient_view)
    cut = len(places) < len(target._path) or not grad_mode.get()  # values change, but nobody's history
    written = overwrite(whole, value, chain=places) if places else value
    new = make(written._value, written._aval)
    source = whole if cut else written
    new._edge, new._slot = source._edge, source._slot
    if memory.place is not None:
        write_at(memory.place.around, memory.place.items, new)  # which brings the new value to all that see it
    else:
        _renew(memory, new, cut)
    detach = _detach_of(target._path)
    if detach is not None and grad_mode.get():
        _rewrite_detached(memory, target._path, detach, value)


def check_parted(tensor: Tensor) -> None:
    """For a tensor of which the value and the history part: one of them was written, or cut, and not the other.

    Raises UnsupportedError where the nodes of the graph alone have to say both.
    """
    if tensor._edge is not None and isinstance(tensor._value, Tracer) and tensor._value.graph.differentiated:
        raise UnsupportedError(
            f"{user_line()}: the value of a tensor of shape {tuple(tensor.shape)} and its history part here (a write through "
            "a detached alias or under no_grad, or detach_()), which vmap cannot follow for all elements at once when it is "
            "differentiated; write to a clone() instead"
        )


def _detach_of(path: ViewChain) -> _Step | None:
    """The last detach on a path, which is another one for every call: tensors with the same follow one history."""
    return next((step for step in reversed(path) if step[0] is stop_gradient_view), None)


def _rewrite_detached(memory: TracedMemory, path: ViewChain, detach: _Step, value: Tensor) -> None:
    """After a write through a detached alias, or a view of it: the history of the alias itself, which the whole has not."""
    group = [m for m in _alive(memory) if _detach_of(m._path) is detach]
    at = next(i for i, step in enumerate(path) if step is detach) + 1
    known = [m for step, m in memory.detached if step is detach]
    known += [m for m in group if len(m._path) == at]  # the alias itself knows best
    edge, slot = (known[-1]._edge, known[-1]._slot) if known else (None, 0)
    if edge is None and value._edge is None:
        return
    whole = follow(memory.whole, path[:at])
    alias = make(whole._value, whole._aval)
    alias._edge, alias._slot = edge, slot
    alias = overwrite(alias, value, chain=path[at:]) if path[at:] else value
    memory.detached = [(s, m) for s, m in memory.detached if s is not detach] + [(detach, _same(alias))]
    for member in group:
        seen = follow(alias, member._path[at:])
        member._set_edge(seen._edge, seen._slot)
        check_parted(member)
    for part in [p for r in memory.parts if (p := r()) is not None]:
        assert part.place is not None
        if _detach_of(part.place.around._path) is detach:
            _renew(part, traced_getitem(part.place.around, part.place.items), False)


def _alive(memory: TracedMemory) -> list[Tensor]:
    return [t for r in memory.members if (t := r()) is not None]


def _renew(memory: TracedMemory, new: Tensor, cut: bool) -> None:
    """Give all that see a memory its new value."""
    memory.whole = new
    for member in _alive(memory):
        seen = follow(new, member._path)
        member._value, member._aval = seen._value, seen._aval
        if not cut and stop_gradient_view not in [step[0] for step in member._path]:
            member._set_edge(seen._edge, seen._slot)
        else:
            check_parted(member)
    memory.parts = [r for r in memory.parts if r() is not None]
    for part in [p for r in memory.parts if (p := r()) is not None]:
        assert part.place is not None
        _renew(part, traced_getitem(part.place.around, part.place.items), cut)
