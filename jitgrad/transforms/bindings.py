"""Where a function finds the tensors and arrays that it captures, and numbers, functions and containers that its code names:
what a closure, a global name or an attribute is bound to may change."""

from __future__ import annotations

import contextlib
import functools
import keyword
import operator
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import numpy as np

from jitgrad.core.memory import owner
from jitgrad.kernels.guards import USABLE
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.tensor import make
from jitgrad.transforms.mentions import is_imported, is_users, mentions

__all__ = ["MOST_OBJECTS", "Bindings", "Surroundings", "stands_for_array"]

MOST_OBJECTS: Final = 16384
"""Looked at for one function, nearest first. Plain values do not count, nor do containers of nothing else."""

_PLAIN: Final = (
    *(types.NoneType, types.EllipsisType, bool, int, float, complex, str, bytes, range, slice),
    *(np.generic, np.dtype),
)
_ARRAYS: Final = (Tensor, np.ndarray)
_SEQUENCES: Final = (list, tuple, deque)
_CONTAINERS: Final = (*_SEQUENCES, dict, types.MappingProxyType, set, frozenset)
_IN_ORDER: Final = (dict, OrderedDict, defaultdict, types.MappingProxyType)  # iteration is their own
_FUNCTIONS: Final = (types.FunctionType, types.BuiltinFunctionType, np.ufunc, type)
_JITTED: Final = "jitgrad.transforms.jit"
_COMPILED: Final = ("numba", "llvmlite")  # code that reads no tensors

_own = object.__getattribute__
_END: Final = object()


def stands_for_array(tensor: Tensor) -> bool:
    """Whether a captured tensor is nobody's but the trace's: made of an ndarray that met a traced value."""
    return tensor._storage is None and tensor._edge is None and not tensor.is_traced


# ------------------------------------------------------------------------------------------------------------- places


class _Role(Enum):
    """What may stand at a place without another trace."""

    ARRAY = auto()  # an array or a tensor like it
    PLAIN = auto()  # an equal value
    OBJECT = auto()  # an object of the same type, with the like at its own places
    ONLY = auto()  # nothing else
    LENGTH = auto()  # no place of its own: as many elements
    KEYS = auto()  # the same keys, in their order
    CONTENTS = auto()  # equal plain values


_TESTS: Final = {
    _Role.LENGTH: "len({holder}) != {there}",
    _Role.KEYS: "[*{holder}] != {there}",
    _Role.CONTENTS: "unlike({holder}, {there})",
}
"""How to see that a container is another one than it was; all other places are compared by identity."""


class _Step(NamedTuple):
    """The way from an object to something that it holds, as source text."""

    text: str
    key: Any = None
    function: Any = None
    final: bool = False  # as long as the object is the same so is what it holds here


def _attribute(name: str, final: bool = False) -> _Step:
    if name.isidentifier() and not keyword.iskeyword(name):
        return _Step(f"{{holder}}.{name}", name, final=final)
    return _Step("getattr({holder}, {key})", name)


def _item(key: Any, final: bool = False) -> _Step:
    return _Step("{holder}[{key}]", key, final=final)


_CONTENT: Final = _Step("")
_EMPTY: Final = ([dict, _END], [list, _END])  # the contents of such containers: true values differ


@dataclass(eq=False, slots=True)
class _Place:
    """Where something is: a step from an object that stays, or from what is at another place."""

    holder: Any  # what is there now, or stays
    parent: _Place | None
    step: _Step
    there: Any
    role: _Role
    kept: bool  # looked at in each call
    sources: list[int] = field(default_factory=list)  # which captured tensors are there

    @property
    def key(self) -> Any:
        """What it is known by to another walk, as long as its holder lives."""
        step = self.step
        key = step.key if type(step.key) in (str, int) else id(step.key)
        return id(self.holder), self.role if self.role in _TESTS else None, step.text, key

    def path(self) -> str:
        """For messages."""
        if self.parent is not None:
            start = self.parent.path()
        elif isinstance(self.holder, dict | types.CellType):
            return str(self.step.key)
        else:
            start = getattr(self.holder, "__name__", type(self.holder).__name__)
        if self.role in _TESTS:
            return f"the contents of {start}"
        return f"{start}.{self.step.key}" if "." in self.step.text else f"{start}[{self.step.key!r}]"


class _Walk:
    """All places that a function, or an argument of it, may read, breadth first.

    Of modules and classes only what the code mentions is looked at, as are plain values; for arrays, all of an object.
    """

    def __init__(self, roots: Sequence[Any], names: set[str]) -> None:
        self.places: list[_Place] = []
        self.complete = True  # whatever the code names has been looked at
        self.whole = True  # all else too
        self._names = names  # of attributes; those that more code mentions are added
        self._seen: set[int] = set()
        self._pending: deque[tuple[Any, _Place | None, bool]] = deque((r, None, True) for r in roots)
        self._later: deque[tuple[Any, _Place | None, bool]] = deque()  # what no code names: a search for arrays
        while self._pending or self._later:
            if len(self._seen) >= MOST_OBJECTS:
                self.complete, self.whole = not self._pending, False
                return
            self._near = bool(self._pending)
            self._open(*(self._pending or self._later).popleft())

    def _follow(self, value: Any, place: _Place | None, named: bool) -> None:
        (self._pending if named and self._near else self._later).append((value, place, named))

    def _at(self, holder: Any, parent: _Place | None, step: _Step, value: Any, named: bool) -> None:
        """There is ``value`` here; ``named``: the code may read it even if it is no array."""
        if _poses(type(value)):
            self.places.append(_Place(holder, parent, step, value, _Role.ONLY, named))
        elif isinstance(value, _ARRAYS):
            self.places.append(_Place(holder, parent, step, value, _Role.ARRAY, named))
        elif isinstance(value, _PLAIN):
            if named:
                self.places.append(_Place(holder, parent, step, value, _Role.PLAIN, True))
        elif isinstance(value, types.ModuleType):
            self._follow(value, None, named)
        elif isinstance(value, _CONTAINERS) and _is_plain(value):
            if named:
                place = _Place(holder, parent, step, value, _Role.PLAIN if _is_constant(value) else _Role.OBJECT, True)
                self.places.append(place)
                if place.role is _Role.OBJECT:
                    self.places.append(_Place(value, place, _CONTENT, _contents(value), _Role.CONTENTS, True))
        else:
            again = id(value) in self._seen  # it is followed from another place, which may be another object's later
            role = _Role.ONLY if again or isinstance(value, _FUNCTIONS) else _Role.OBJECT
            place = _Place(holder, parent, step, value, role, named)
            self.places.append(place)
            if not again:
                self._follow(value, place, named)

    def _open(self, value: Any, place: _Place | None, named: bool) -> None:
        """Look at what an object holds. Without a ``place`` it stays, and so does what it cannot exchange."""
        if id(value) in self._seen or _poses(type(value)) or isinstance(value, (*_ARRAYS, *_PLAIN)):
            return
        self._seen.add(id(value))
        kind = type(value)
        module = kind.__module__.partition(".")[0]
        if (
            module in _COMPILED
            or isinstance(value, np.ufunc | types.BuiltinFunctionType)
            or (isinstance(value, type) and not is_users(value.__module__))
        ):
            return
        if kind.__module__ == _JITTED:  # its own tables hold arrays as well, which nobody binds
            self._follow(value._function, None, True)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._fixed(value, place, {"__self__": value.__self__, "__func__": value.__func__})
        elif isinstance(value, staticmethod | classmethod):
            self._follow(value.__func__, None, True)
        elif isinstance(value, property | functools.cached_property):
            for name in ("fget", "func"):
                self._follow(getattr(value, name, None), None, True)
        elif isinstance(value, types.ModuleType):
            if is_users(value.__name__):
                for name in sorted(self._names & vars(value).keys()):
                    self._at(value, place, _attribute(name), vars(value)[name], True)
        elif isinstance(value, type):
            self._class(value, value, place, ())
        else:
            if isinstance(value, functools.partial):
                self._fixed(value, place, {"func": value.func, "args": value.args, "keywords": value.keywords})
            if isinstance(value, _CONTAINERS):
                self._container(value, place, named)
            if kind not in _CONTAINERS:
                self._object(value, place, named and (isinstance(value, Collection) or not _is_direct(kind)))

    def _fixed(self, value: Any, place: _Place | None, parts: dict[str, Any]) -> None:
        """Attributes that nobody can bind anew."""
        for name, part in parts.items():
            if place is None:
                self._follow(part, None, True)
            else:
                self._at(value, place, _attribute(name, final=True), part, True)

    def _function(self, value: types.FunctionType) -> None:
        """What a function captures. It is itself looked for where it is, so that it can count as staying."""
        space = value.__globals__
        users = is_users(str(space.get("__name__")))
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty one
                self._at(cell, None, _Step("{holder}.cell_contents", name), cell.cell_contents, users)
        for name in ("__defaults__", "__kwdefaults__"):
            if (held := getattr(value, name)) is not None:
                self._at(value, None, _attribute(name), held, users)
        if not users:
            return
        read = mentions(value.__code__)
        self._names |= read.attributes
        for name in sorted(read.globals & space.keys()):
            held = space[name]
            if isinstance(held, _FUNCTIONS) and is_imported(held):
                continue
            self._at(space, None, _item(name), held, True)
        for module in read.imported(str(space.get("__package__") or "")):
            self._follow(sys.modules.get(module), None, True)
        for name in sorted(self._names & value.__dict__.keys()):
            self._at(value, None, _attribute(name), value.__dict__[name], True)

    def _container(self, value: Any, place: _Place | None, named: bool) -> None:
        """Elements, and how many there are."""
        kind = type(value)
        if isinstance(value, set | frozenset):  # its elements have no place, and are the same as long as it is
            if kind is not frozenset:
                self.places.append(_Place(value, place, _CONTENT, _contents(value), _Role.CONTENTS, named))
            for part in list(value):
                self._follow(part, None, named)
            return
        if isinstance(value, _SEQUENCES):
            base: Any = next(b for b in _SEQUENCES if isinstance(value, b))
            parts: list[tuple[Any, Any]] = list(enumerate(base.__iter__(value)))
            direct, get = kind.__getitem__ is base.__getitem__, base.__getitem__
            if base is tuple and place is None:
                for _, part in parts:
                    self._follow(part, None, named)
                return
            if base is not tuple:
                self.places.append(_Place(value, place, _CONTENT, len(parts), _Role.LENGTH, named))
        else:
            parts = list(value.items() if kind in _IN_ORDER else dict.items(value))
            if kind in _IN_ORDER:
                self.places.append(_Place(value, place, _CONTENT, [k for k, _ in parts], _Role.KEYS, named))
            else:
                self.places.append(_Place(value, place, _CONTENT, len(parts), _Role.LENGTH, named))
            direct, get = kind in (dict, OrderedDict, types.MappingProxyType), dict.get
        for key, part in parts:
            step = _item(key, kind is tuple) if direct else _Step("{function}({holder}, {key})", key, get)
            self._at(value, place, step, part, named)

    def _object(self, value: Any, place: _Place | None, all_named: bool) -> None:
        """Attributes, of slots and of the class as well; never what a property gives."""
        kind = type(value)
        held: Any = None
        with contextlib.suppress(Exception):
            held = _own(value, "__dict__")
        plain = _is_direct(kind)
        hidden = kind.__module__.partition(".")[0] == "jitgrad"
        own: list[str] = []
        for name, part in list(held.items()) if isinstance(held, dict) else ():
            if not isinstance(name, str):
                continue
            own.append(name)
            direct = _looks_first(kind) and not hasattr(type(_defining(kind, name)), "__get__")
            step = _attribute(name) if direct else _Step("own({holder}, '__dict__')[{key}]", name)
            self._at(value, place, step, part, (all_named or name in self._names) and not hidden)
        for cls in kind.__mro__[:-1]:
            for name, part in list(vars(cls).items()):
                if isinstance(part, types.MemberDescriptorType):  # __slots__
                    with contextlib.suppress(Exception):
                        found = part.__get__(value, kind)
                        step = _attribute(name) if plain else _Step("{function}({holder}, {key})", kind, part.__get__)
                        self._at(value, place, step, found, name in self._names and not hidden)
        self._class(value, kind, place, own)

    def _class(self, value: Any, cls: type, place: _Place | None, own: Collection[str]) -> None:
        """What a class and its bases define of what the code mentions, and the methods that it need not mention: of operators,
        calls, ``with``. Those of bases may be called by the others."""
        found: set[str] = set(own)
        plain = value is cls or _is_direct(cls)
        for base in cls.__mro__[:-1]:
            for name, part in sorted(vars(base).items()):
                mentioned = name in self._names
                if not mentioned and not (name.startswith("__") and isinstance(part, types.FunctionType)):
                    continue
                if isinstance(part, types.MemberDescriptorType | types.GetSetDescriptorType):
                    continue
                if not hasattr(type(part), "__get__"):
                    if name not in found and plain and not name.startswith("__"):
                        self._at(value, place, _attribute(name), part, is_users(base.__module__))
                elif is_users(base.__module__):
                    if mentioned and name not in found and isinstance(part, types.FunctionType | property):
                        self.places.append(_Place(cls, None, _attribute(name), part, _Role.ONLY, True))
                    self._follow(part, None, True)
                found.add(name)


def _poses(cls: type) -> bool:
    """Whether its objects say themselves what they are (``__class__``), by code that following them must not run."""
    return cls.__module__ != "builtins" and any("__class__" in vars(base) for base in cls.__mro__[:-1])


def _is_direct(cls: type) -> bool:
    """Whether an attribute of its objects is what is in their tables, and asking for it runs nobody's code."""
    return _looks_first(cls) and not hasattr(cls, "__getattr__")


def _looks_first(cls: type) -> bool:
    """Whether an attribute that is in the table of its object is found there without running anybody's code."""
    asks: Any = cls.__getattribute__
    return asks is _own


def _defining(cls: type, name: str) -> Any:
    """What a class has under this name, without asking it; None for nothing."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


# ------------------------------------------------------------------------------------------------------- plain values


def _is_plain(container: Any) -> bool:
    """Whether a container has nothing but plain values, or such containers, in it."""
    pending, seen = [container], {id(container)}
    while pending:
        value = pending.pop()
        if type(value) not in _CONTAINERS and type(value) not in _IN_ORDER:  # others may have attributes
            return False
        parts = [*value, *value.values()] if isinstance(value, dict | types.MappingProxyType) else [*value]
        for part in parts:
            if _poses(type(part)):
                return False
            if isinstance(part, _CONTAINERS):
                if id(part) in seen:
                    return False
                seen.add(id(part))
                pending.append(part)
            elif not isinstance(part, _PLAIN):
                return False
    return True


def _is_constant(value: Any) -> bool:
    """Whether a plain container, and all in it, cannot be written."""
    return not isinstance(value, _CONTAINERS) or (
        isinstance(value, tuple | frozenset) and all(map(_is_constant, value))
    )


def _contents(container: Any) -> list[Any]:
    """All that is in a container of plain values, in order, with types and ends."""
    found: list[Any] = [type(container)]
    parts = container if isinstance(container, list | tuple) else list(container)  # threads may change their size
    if isinstance(container, dict | types.MappingProxyType):
        parts = [part for pair in list(container.items()) for part in pair]
    if not any(isinstance(part, _CONTAINERS) for part in parts):
        found += parts
    else:
        for part in parts:
            found += _contents(part) if isinstance(part, _CONTAINERS) else (part,)
    found.append(_END)
    return found


def _unlike(container: Any, contents: list[Any]) -> bool:
    """Whether a container has other objects in it than these."""
    now = _contents(container)
    return len(now) != len(contents) or any(map(operator.is_not, now, contents))


def _is_same(new: Any, old: Any) -> bool:
    """Whether two plain values are one to any program: 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if isinstance(new, _CONTAINERS):
        a, b = _contents(new), _contents(old)
        return len(a) == len(b) and all(map(_is_same, a, b))
    return isinstance(new, _PLAIN) and repr(new) == repr(old)


def _is_like(new: Any, old: Any) -> bool:
    """Whether an object may stand for another, if it has the like at the places that are looked at."""
    if type(new) is not type(old):
        return False
    try:
        a, b = _own(new, "__dict__"), _own(old, "__dict__")
    except AttributeError:
        return True
    return a.keys() == b.keys() and all(_is_same(a[k], v) for k, v in b.items() if issubclass(type(v), _PLAIN))


# ----------------------------------------------------------------------------------------------------------- bindings


def _replaces(value: Any, place: _Place) -> bool:
    """Whether this, which is no array, may stand at a place without another trace."""
    if place.role is _Role.PLAIN:
        return _is_same(value, place.there)
    if place.role is _Role.OBJECT:
        return _is_like(value, place.there)
    return place.role is _Role.CONTENTS and len(value) == len(place.there) and all(map(_is_same, value, place.there))


def _measured(role: _Role, container: Any) -> Any:
    """What is compared of a container."""
    return len(container) if role is _Role.LENGTH else [*container] if role is _Role.KEYS else _contents(container)


class Surroundings:
    """What there is around a function before it is traced: what the trace itself changes is no business of later calls.

    ``static``: the static arguments, whose attributes may be bound anew.
    """

    def __init__(self, function: Callable[..., Any], static: tuple[Any, ...]) -> None:
        self._roots = (function, *static)
        self._names: set[str] = set()
        self._before = {p.key: p for p in self._walk().places}
        self._holders = {id(p.holder) for p in self._before.values()}

    def _walk(self) -> _Walk:
        while True:
            known = len(self._names)
            found = _Walk(self._roots, self._names)
            if len(self._names) == known:
                return found

    def after(self, captured: Collection[int | None]) -> tuple[_Walk, bool]:
        """The places after a trace, and whether those of the arrays with the memory ``captured`` are what they were: if not,
        something was bound while the function was traced."""
        walk = self._walk()
        changed: set[int] = set()
        for place in walk.places:
            before = self._before.get(place.key)
            if before is None:
                own = id(place.holder) in self._holders or (place.parent is not None and id(place.parent) in changed)
            else:
                own = not _is_as(before, place)
            if own:
                changed.add(id(place))
                place.kept = False
        now = {p.key: p.there for p in walk.places if p.role is _Role.ARRAY}
        arrays = [p for p in self._before.values() if p.role is _Role.ARRAY and _memory(p.there) in captured]
        return walk, all(now.get(p.key) is p.there for p in arrays)


def _is_as(before: _Place, place: _Place) -> bool:
    """Whether a place is as it was."""
    if place.role in (_Role.KEYS, _Role.CONTENTS):
        return len(before.there) == len(place.there) and all(map(operator.is_, before.there, place.there))
    return before.there is place.there or (place.role is _Role.LENGTH and bool(before.there == place.there))


def _memory(found: Any) -> int | None:
    """What the values of a tensor or an array are in; None for what stands for any values."""
    array = found._value if isinstance(found, Tensor) else found
    return id(owner(array)) if isinstance(array, np.ndarray) else None


class Bindings:
    """The places at which a function reads captured tensors and arrays, and what else its code depends on.

    What is at no place (a tensor made by a call, say) counts as bound forever. Arrays are given as the tensors that stand
    for them. What NumPy has made of an array (``w.T``) is at no place, but other arrays on the same memory are.
    ``reads``: tensors and arrays whose values Python has read, for which nothing else can stand.
    """

    def __init__(self, around: Surroundings | None, tensors: Sequence[Tensor], reads: Sequence[Any] = ()) -> None:
        self.complete = self.settled = True
        self.blamed: str | None = None  # the place that was the last reason for another trace
        self.space: dict[str, Any] = {"gone": Exception, "own": _own, "unlike": _unlike}
        self.is_array = [stands_for_array(t) for t in tensors]  # rather than a tensor of the user's
        self._of: list[list[int]] = [[] for _ in tensors]
        self._places: list[_Place] = []
        if around is not None:
            self._places = self._kept(around, tensors, reads)
        self.test = " or ".join(self._conditions())
        self._names = [f"there{n}" for n in range(len(self._places))]
        self._there = [False if p.role in _TESTS else p.there for p in self._places]
        self._different = _different(tensors)

    def _kept(self, around: Surroundings, tensors: Sequence[Tensor], reads: Sequence[Any]) -> list[_Place]:
        """The places that matter, each after that of its holder."""
        read = {_memory(r) for r in reads}
        known: dict[int | None, list[int]] = {}
        for k, t in enumerate(tensors):
            known.setdefault(_memory(t), []).append(k)
        walk, self.settled = around.after({*read, *known})
        places = walk.places
        arrays = [(p, known.get(_memory(p.there), [])) for p in places if p.role is _Role.ARRAY]
        for place, related in arrays:
            for k in related:
                if place.there is tensors[k]:
                    self.is_array[k] = False
        own = [t._value if is_array else t for t, is_array in zip(tensors, self.is_array, strict=True)]
        found = {k for place, related in arrays for k in related if place.there is own[k]}
        for place, related in arrays:
            # a tensor that has a place is not made of what else is on its memory; w.detach() and w.T have none
            place.sources = [k for k in related if k not in found or self.is_array[k] or place.there is own[k]]
            place.kept |= bool(place.sources) or _memory(place.there) in read
            exact = bool(place.sources) and all(place.there is own[k] for k in place.sources)
            if not exact or _memory(place.there) in read:
                place.role = _Role.ONLY
        memories = {_memory(p.there) for p, _ in arrays}
        self.complete = walk.complete and (walk.whole or (read | known.keys()) <= memories)
        for place in reversed(places):
            if place.kept and place.parent is not None:
                place.parent.kept = True
        kept = [p for p in places if p.kept]
        inner = {id(p.parent) for p in kept}
        for n, place in enumerate(kept):
            if place.role is _Role.OBJECT and id(place) not in inner:
                place.role = _Role.ONLY  # nothing is known of it
            if place.role is _Role.ARRAY:
                for k in place.sources:
                    self._of[k].append(n)
        return kept

    def _conditions(self) -> Iterator[str]:
        """Source text that is true where a place has changed."""
        self._now: list[str] = []
        numbers = {id(p): n for n, p in enumerate(self._places)}
        roots: dict[int, str] = {}
        for n, place in enumerate(self._places):
            if place.parent is not None:
                above = numbers[id(place.parent)]
                holder, other = f"there{above}", f"now{above}"
                place.holder = None
            else:
                holder = other = roots.setdefault(id(place.holder), f"root{len(roots)}")
                self.space[holder] = place.holder
            there = f"there{n}"
            self.space[there] = place.there
            if place.role in _TESTS:
                text = _TESTS[place.role]
                self._now.append(f"    now{n} = {text.format(holder=other, there=there)}")
                yield holder if place.there in _EMPTY else text.format(holder=holder, there=there)
                continue
            text, key, function, final = place.step
            names = {"key": f"key{n}", "function": f"function{n}"}
            self.space |= {f"key{n}": key} if "{key}" in text else {}
            self.space |= {f"function{n}": function} if "{function}" in text else {}
            self._now.append(f"    now{n} = {text.format(holder=other, **names)}")
            if not final:
                yield f"{text.format(holder=holder, **names)} is not {there}"

    @property
    def lines(self) -> str:
        """Lines of source that set ``changed``, for the names in ``space``; empty where nothing can change."""
        return f"    try: changed = {self.test}\n    except gone: changed = True\n" if self.test else ""

    @functools.cached_property
    def changed(self) -> Callable[[], bool]:
        """Whether anything is at a place but what was there."""
        changed: Callable[[], bool] = self.made(
            "changed", f"def changed():\n{self.lines or '    changed = False'}\n    return changed"
        )
        return changed

    @functools.cached_property
    def _values(self) -> Callable[[], list[Any]]:
        """What is at each place now, or whether it differs; raises where there is none any more."""
        names = ", ".join(f"now{n}" for n in range(len(self._places)))
        values: Callable[[], list[Any]] = self.made(
            "values", "\n".join(["def values():", *self._now, f"    return [{names}]"])
        )
        return values

    def made(self, name: str, source: str) -> Any:
        """What is defined under this name by source that reads ``space``, and sees what is written to it later."""
        exec(source, self.space)
        return self.space.pop(name)

    def look(self, tensors: Sequence[Tensor]) -> tuple[list[tuple[int, Any]], list[Tensor]] | None:
        """The places that have changed, with what is there, and the tensors that are bound in place of these; None where
        they cannot stand for the same values."""
        self.blamed = None
        try:
            return self._looked(tensors, self._values()) if self.settled else None
        except Exception:  # of code of the objects there, if something is there at all
            return None

    def _looked(
        self, tensors: Sequence[Tensor], values: list[Any]
    ) -> tuple[list[tuple[int, Any]], list[Tensor]] | None:
        moved: list[tuple[int, Any]] = []
        sources: set[int] = set()
        for n, (value, there) in enumerate(zip(values, self._there, strict=True)):
            if value is there:
                continue
            place = self._places[n]
            if place.role is _Role.ARRAY:
                sources.update(place.sources)
                moved.append((n, value))
                continue
            if place.role in _TESTS:
                value = _measured(place.role, self._holder(place, values))
            if not _replaces(value, place):
                self.blamed = None if place.sources else place.path()
                return None
            moved.append((n, value))
        bound = list(tensors)
        if not sources:
            return moved, bound
        for k in sources:
            new = self._bound(k, tensors[k], values)
            if new is None:
                return None
            bound[k] = new
        return (moved, bound) if _different(bound) == self._different else None

    def _holder(self, place: _Place, values: list[Any]) -> Any:
        return place.holder if place.parent is None else values[self._places.index(place.parent)]

    def _bound(self, k: int, tensor: Tensor, values: list[Any]) -> Tensor | None:
        """The tensor that is bound in place of one; None where it is not like it, or there are several."""
        at = self._of[k]
        new = values[at[0]]
        if len(at) > 1 and any(values[n] is not new for n in at):
            return None
        array, aval = new, tensor._aval
        if not self.is_array[k]:
            if not isinstance(new, Tensor) or new.is_traced or new._weak != tensor._weak:
                return None
            array = new._value
        elif new is tensor._value:
            return tensor
        elif type(new) is not np.ndarray:
            return None
        if array.shape != aval.shape or array.dtype != aval.dtype:
            return None
        if array is not new:
            return new  # type: ignore[no-any-return]
        if aval.contiguous and new.flags.num & USABLE == USABLE:
            return make(new, aval)
        made = as_tensor(new)
        return made if made._value is array else None  # of a copy, later values would not be seen

    def commit(self, moved: list[tuple[int, Any]]) -> None:
        """From now on this is what is at the places."""
        space, names, there, places = self.space, self._names, self._there, self._places
        for n, value in moved:
            places[n].there = space[names[n]] = value
            if there[n] is not False or places[n].role not in _TESTS:
                there[n] = value

    @contextlib.contextmanager
    def own_changes(self) -> Iterator[None]:
        """What is bound inside, but for arrays, is the doing of the function itself, which is traced for its gradient."""
        try:
            before = self._values()
        except Exception:  # something is gone already: the next call sees to it
            yield
            return
        yield
        with contextlib.suppress(Exception):
            after = self._values()
            for n, (place, old, new) in enumerate(zip(self._places, before, after, strict=True)):
                if old is not new and not issubclass(type(place.there), _ARRAYS):
                    self.commit(
                        [(n, _measured(place.role, self._holder(place, after)) if place.role in _TESTS else new)]
                    )

    def now(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The tensors that are bound in place of these, like them; None where they cannot stand for the same values."""
        found = self.look(tensors)
        return None if found is None else found[1]


def _different(tensors: Sequence[Tensor]) -> int:
    """How many arrays there are."""
    return len({id(t._value) for t in tensors})
