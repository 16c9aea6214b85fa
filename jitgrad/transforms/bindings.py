"""Where a function finds the tensors that it captures: what a closure, a global name or an attribute is bound to may change."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

import numpy as np

from jitgrad.tensor import Tensor

__all__ = ["Bindings"]

_MOST_OBJECTS: Final = 4096  # looked at for one function, nearest first
_FOLLOWED: Final = (types.FunctionType, Tensor, list, tuple, dict)  # of what classes define
_CELL: Final = attrgetter("cell_contents")

Step = Callable[[Any], Any]


class Bindings:
    """The places at which a function reads captured tensors: one list of ways for each tensor, from an object that stays.

    A tensor that no way leads to (made by a call, say) counts as bound forever.
    """

    def __init__(self, function: Callable[..., Any], tensors: Sequence[Tensor], watch: bool) -> None:
        ways: dict[int, list[tuple[Any, tuple[Step, ...]]]] = {id(t): [] for t in tensors}
        if tensors and watch:
            for found, root, steps in _reached(function):
                if id(found) in ways:
                    ways[id(found)].append((root, steps))
        self._ways = [ways[id(t)] for t in tensors]
        self.watched = any(self._ways)

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Whether every place still has its tensor."""
        for tensor, ways in zip(tensors, self._ways, strict=True):
            for root, steps in ways:
                if _followed(root, steps) is not tensor:
                    return False
        return True

    def now(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The tensors that are bound in place of these, like them; None where they cannot stand for the same values."""
        found = []
        for tensor, ways in zip(tensors, self._ways, strict=True):
            bound = {id(b): b for b in (_followed(root, steps) for root, steps in ways)} or {id(tensor): tensor}
            (new,) = bound.values() if len(bound) == 1 else (None,)
            if not isinstance(new, Tensor) or new.is_traced or new._weak != tensor._weak:
                return None
            if new.shape != tensor.shape or new.dtype != tensor.dtype:
                return None
            found.append(new)
        return found if len({id(t) for t in found}) == len(found) else None


def _followed(value: Any, steps: tuple[Step, ...]) -> Any:
    try:
        for step in steps:
            value = step(value)
    except (AttributeError, LookupError, TypeError, ValueError):  # nothing there any more
        return None
    return value


def _reached(function: Callable[..., Any]) -> list[tuple[Tensor, Any, tuple[Step, ...]]]:
    """Every way from a function to a tensor that it may read."""
    names: set[str] = set()
    while True:
        known = len(names)
        found = list(_walked(function, names))
        if len(names) == known:
            return found


def _walked(function: Callable[..., Any], names: set[str]) -> Iterator[tuple[Tensor, Any, tuple[Step, ...]]]:
    """Every way by these names of globals and attributes, breadth first; names that other code on it mentions are added."""
    pending: deque[tuple[Any, Any, tuple[Step, ...]]] = deque([(function, function, ())])
    seen: set[int] = set()
    while pending and len(seen) < _MOST_OBJECTS:
        value, root, steps = pending.popleft()
        if isinstance(value, Tensor):
            yield value, root, steps
            continue
        if id(value) in seen or isinstance(value, np.ndarray | np.generic | str | bytes | int | float | None):
            continue
        seen.add(id(value))
        if type(value).__module__.partition(".")[0] in ("numba", "llvmlite"):  # compiled code reads no tensors
            continue
        if isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                pending.append((_followed(cell, (_CELL,)), cell, (_CELL,)))
            pending += [(held, held, ()) for held in (value.__defaults__, value.__kwdefaults__)]
            space = value.__globals__
            if _is_users(str(space.get("__name__"))):
                names |= _names(value.__code__)
                for name in sorted(_names(value.__code__) & space.keys()):
                    pending.append((space[name], space, (itemgetter(name),)))
            continue
        for child, step in _parts(value, names):
            pending.append((child, root, (*steps, step)))


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in ("jitgrad", "numpy", "scipy", "numba")


def _names(code: types.CodeType) -> frozenset[str]:
    """The global names and attributes that a function and those defined in it mention."""
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def _parts(value: Any, names: set[str]) -> Iterator[tuple[Any, Step]]:
    """What an object holds, and how to get there from it; of modules and classes, only what the code mentions."""
    if isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield part, itemgetter(i)
    elif isinstance(value, dict):
        for key, part in list(value.items()):
            yield part, itemgetter(key)
    elif isinstance(value, types.MethodType):
        yield value.__self__, attrgetter("__self__")
        yield value.__func__, attrgetter("__func__")
    elif isinstance(value, functools.partial):
        for name in ("func", "args", "keywords"):
            yield getattr(value, name), attrgetter(name)
    elif isinstance(value, types.ModuleType | type):
        for name in sorted(names & vars(value).keys()):
            yield vars(value)[name], attrgetter(name)
    else:
        held = getattr(value, "__dict__", None)
        for name, part in list(held.items()) if isinstance(held, dict) else ():  # some objects answer to any name
            if isinstance(name, str):
                yield part, attrgetter(name)
        for cls in type(value).__mro__[:-1]:
            for name, part in list(vars(cls).items()):
                if isinstance(part, types.MemberDescriptorType) and hasattr(value, name):  # __slots__
                    yield getattr(value, name), attrgetter(name)
                elif (name in names or name == "__call__") and isinstance(part, _FOLLOWED):
                    yield part, attrgetter(name)
