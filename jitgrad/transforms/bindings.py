"""Where a function finds the tensors and arrays that it captures: what a closure, a global name or an attribute is bound to
may change."""

from __future__ import annotations

import contextlib
import functools
import keyword
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from jitgrad.core.memory import owner
from jitgrad.tensor import Tensor, as_tensor

__all__ = ["Bindings", "stands_for_array"]

_MOST_OBJECTS: Final = 4096  # looked at for one function, nearest first
_FOLLOWED: Final = (types.FunctionType, staticmethod, classmethod, Tensor, np.ndarray, list, tuple, dict)
"""Of what the class of an object defines."""
_JITTED: Final = "jitgrad.transforms.jit"
_GONE: Final = (AttributeError, LookupError, TypeError, ValueError)

Step: TypeAlias = tuple[bool, Any]  # an attribute (True) of this name, or an item (False) under this key

_CELL: Final[Step] = (True, "cell_contents")


def stands_for_array(tensor: Tensor) -> bool:
    """Whether a captured tensor is nobody's but the trace's: made of an ndarray that met a traced value."""
    return tensor._storage is None and tensor._edge is None and not tensor.is_traced


@dataclass(frozen=True)
class _Way:
    """How to get to a captured tensor from an object that stays."""

    root: Any
    steps: tuple[Step, ...]
    other: Any  # None: the tensor itself is there, or its array; else an array on the same memory

    def there(self, tensor: Tensor, is_array: bool) -> Any:
        """What is there as long as nothing has changed."""
        return self.other if self.other is not None else tensor._value if is_array else tensor

    def now(self) -> Any:
        """What is there now; None where that is nothing any more."""
        value = self.root
        try:
            for attribute, key in self.steps:
                value = getattr(value, key) if attribute else value[key]
        except _GONE:
            return None
        return value

    def text(self, name: str) -> tuple[str, dict[str, Any]]:
        """The same as source text, and the names in it."""
        text, space = name, {name: self.root}
        for i, (attribute, key) in enumerate(self.steps):
            if attribute and key.isidentifier() and not keyword.iskeyword(key):
                text += f".{key}"
                continue
            space[f"{name}_{i}"] = key
            text = f"getattr({text}, {name}_{i})" if attribute else f"{text}[{name}_{i}]"
        return text, space


class Bindings:
    """The places at which a function reads captured tensors and arrays: ways to each of them.

    What no way leads to (a tensor made by a call, say) counts as bound forever. Arrays are given as the tensors that stand
    for them. What NumPy has made of an array (``w.T``) is at no place, but other arrays on the same memory are.
    ``static``: the static arguments, whose attributes may be bound anew. ``reads``: tensors and arrays whose values Python has
    read, for which nothing else can stand.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static: tuple[Any, ...],
        tensors: Sequence[Tensor],
        reads: Sequence[Any] = (),
        watch: bool = True,
    ) -> None:
        self._is_array = [stands_for_array(t) for t in tensors]
        self._ways: list[list[_Way]] = [[] for _ in tensors]
        self._fixed: list[_Way] = []
        if watch and (tensors or reads):
            read = {id(owner(r) if isinstance(r, np.ndarray) else r) for r in reads}
            places: dict[int, list[int]] = {}
            for k, t in enumerate(tensors):
                for known in (t, owner(t._value)) if self._is_array[k] else (t,):
                    places.setdefault(id(known), []).append(k)
            for found, root, steps in _reached(function, static):
                is_array = isinstance(found, np.ndarray)
                known_as = id(owner(found) if is_array else found)
                if known_as in read:
                    self._fixed.append(_Way(root, steps, found))
                for k in places.get(known_as, ()):
                    if not is_array:
                        self._is_array[k] = False
                    other = found if is_array and found is not tensors[k]._value else None
                    self._ways[k].append(_Way(root, steps, other))
        self.watched = any(self._ways) or bool(self._fixed)

    def _all(self, tensors: Sequence[Tensor]) -> Iterator[tuple[_Way, Any]]:
        """Every way, and what is there as long as nothing has changed."""
        for way in self._fixed:
            yield way, way.other
        for tensor, ways, is_array in zip(tensors, self._ways, self._is_array, strict=True):
            for way in ways:
                yield way, way.there(tensor, is_array)

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Whether every place still has its tensor or array."""
        return all(way.now() is there for way, there in self._all(tensors))

    def change(self, tensors: Sequence[Tensor]) -> tuple[str, dict[str, Any]]:
        """The opposite as lines of source that set ``changed``, and the names in them."""
        space: dict[str, Any] = {"gone": _GONE}
        conditions = []
        for n, (way, there) in enumerate(self._all(tensors)):
            text, names = way.text(f"root{n}")
            space |= {**names, f"there{n}": there}
            conditions.append(f"{text} is not there{n}")
        test = " or ".join(conditions)
        return f"    try: changed = {test}\n    except gone: changed = True", space

    def now(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The tensors that are bound in place of these, like them; None where they cannot stand for the same values."""
        if any(way.now() is not way.other for way in self._fixed):
            return None
        found = []
        for tensor, ways, is_array in zip(tensors, self._ways, self._is_array, strict=True):
            if any(way.other is not None and way.now() is not way.other for way in ways):
                return None
            own = tensor._value if is_array else tensor
            bound = {id(b): b for b in (way.now() for way in ways if way.other is None)} or {id(own): own}
            (new,) = bound.values() if len(bound) == 1 else (None,)
            if is_array:
                new = tensor if new is own else _standing_for(new)
            if not isinstance(new, Tensor) or new.is_traced or new._weak != tensor._weak:
                return None
            if new.shape != tensor.shape or new.dtype != tensor.dtype:
                return None
            found.append(new)
        return found if len({id(t) for t in found}) == len(found) else None


def _standing_for(array: Any) -> Tensor | None:
    """A tensor for an array that is bound in place of a captured one; None where that would not see its later values."""
    made = as_tensor(array) if type(array) is np.ndarray else None
    return made if made is not None and made._value is array else None


def _reached(*roots: Any) -> list[tuple[Any, Any, tuple[Step, ...]]]:
    """Every way from a function, or from an argument of it, to a tensor or an array that it may read."""
    names: set[str] = set()
    while True:
        known = len(names)
        found = list(_walked(roots, names))
        if len(names) == known:
            return found


def _walked(roots: tuple[Any, ...], names: set[str]) -> Iterator[tuple[Any, Any, tuple[Step, ...]]]:
    """Every way by these names of globals and attributes, breadth first; names that other code on it mentions are added."""
    pending: deque[tuple[Any, Any, tuple[Step, ...]]] = deque((r, r, ()) for r in roots)
    seen: set[int] = set()
    while pending and len(seen) < _MOST_OBJECTS:
        value, root, steps = pending.popleft()
        if isinstance(value, Tensor | np.ndarray):
            yield value, root, steps
            continue
        if id(value) in seen or isinstance(value, np.generic | str | bytes | int | float | None):
            continue
        seen.add(id(value))
        if type(value).__module__.partition(".")[0] in ("numba", "llvmlite"):  # compiled code reads no tensors
            continue
        if type(value).__module__ == _JITTED:  # its own tables hold arrays as well, which nobody binds
            pending.append((value._function, root, (*steps, (True, "_function"))))
            continue
        if isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty one
                    pending.append((cell.cell_contents, cell, (_CELL,)))
            pending += [(held, held, ()) for held in (value.__defaults__, value.__kwdefaults__)]
            space = value.__globals__
            if _is_users(str(space.get("__name__"))):
                names |= _names(value.__code__)
                for name in sorted(_names(value.__code__) & space.keys()):
                    pending.append((space[name], space, ((False, name),)))
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
            yield part, (False, i)
    elif isinstance(value, dict):
        for key, part in list(value.items()):
            yield part, (False, key)
    elif isinstance(value, types.MethodType):
        yield value.__self__, (True, "__self__")
        yield value.__func__, (True, "__func__")
    elif isinstance(value, functools.partial):
        for name in ("func", "args", "keywords"):
            yield getattr(value, name), (True, name)
    elif isinstance(value, types.ModuleType):
        for name in sorted(names & vars(value).keys()):
            yield vars(value)[name], (True, name)
    elif isinstance(value, type):
        for name, part in _defined(value, names):
            yield part, (True, name)
    else:
        held = getattr(value, "__dict__", None)
        for name, part in list(held.items()) if isinstance(held, dict) else ():  # some objects answer to any name
            if isinstance(name, str):
                yield part, (True, name)
        for cls in type(value).__mro__[:-1]:
            for name, part in list(vars(cls).items()):
                if isinstance(part, types.MemberDescriptorType) and hasattr(value, name):  # __slots__
                    yield getattr(value, name), (True, name)
        for name, part in _defined(type(value), names):
            if isinstance(part, _FOLLOWED):
                yield part, (True, name)


def _defined(cls: type, names: set[str]) -> Iterator[tuple[str, Any]]:
    """What a class and its bases define of what the code mentions, and the methods that it need not mention: of operators,
    calls, ``with``."""
    found: set[str] = set()
    for base in cls.__mro__[:-1]:
        for name, part in sorted(vars(base).items()):
            if isinstance(part, types.FunctionType):  # those of bases may be called by the others
                if name in names or name.startswith("__"):
                    yield name, part
            elif name in names and name not in found:
                found.add(name)
                yield name, part
