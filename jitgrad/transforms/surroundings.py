"""What there is around a function: the places where it may find arrays, and whatever else its code names."""

from __future__ import annotations

import contextlib
import functools
import keyword
import operator
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import numpy as np

from jitgrad.core.memory import owner
from jitgrad.eager import is_plan_table
from jitgrad.tensor import Tensor
from jitgrad.transforms.mentions import is_imported, is_users, mentions
from jitgrad.transforms.plain_values import (
    CONTAINERS,
    IN_ORDER,
    PLAIN,
    SEQUENCES,
    contents,
    is_constant,
    is_plain,
    poses,
)

__all__ = ["ARRAYS", "MOST_OBJECTS", "TESTS", "Place", "Role", "Surroundings", "Walk", "memory", "own_attribute"]

MOST_OBJECTS: Final = 16384
"""Looked at for one function, nearest first. Plain values do not count, nor do containers of nothing else."""

ARRAYS: Final = (Tensor, np.ndarray)
_FUNCTIONS: Final = (types.FunctionType, types.BuiltinFunctionType, np.ufunc, type)
_JITTED: Final = "jitgrad.transforms.jit"
_COMPILED: Final = ("numba", "llvmlite")  # code that reads no tensors

own_attribute = object.__getattribute__


class Role(Enum):
    """What may stand at a place without another trace."""

    ARRAY = auto()  # an array or a tensor like it
    PLAIN = auto()  # an equal value
    OBJECT = auto()  # an object of the same type, with the like at its own places
    ONLY = auto()  # nothing else
    LENGTH = auto()  # no place of its own: as many elements
    KEYS = auto()  # the same keys, in their order
    CONTENTS = auto()  # equal plain values


TESTS: Final = {
    Role.LENGTH: "len({holder}) != {there}",
    Role.KEYS: "[*{holder}] != {there}",
    Role.CONTENTS: "unlike({holder}, {there})",
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


@dataclass(eq=False, slots=True)
class Place:
    """Where something is: a step from an object that stays, or from what is at another place."""

    holder: Any  # what is there now, or stays
    parent: Place | None
    step: _Step
    there: Any
    role: Role
    kept: bool  # looked at in each call
    sources: list[int] = field(default_factory=list)  # which captured tensors are there
    own: bool = False  # the function itself may write it

    @property
    def key(self) -> Any:
        """What it is known by to another walk, as long as its holder lives."""
        step = self.step
        key = step.key if type(step.key) in (str, int) else id(step.key)
        return id(self.holder), self.role if self.role in TESTS else None, step.text, key

    def path(self) -> str:
        """For messages."""
        if self.parent is not None:
            start = self.parent.path()
        elif isinstance(self.holder, dict | types.CellType):
            return str(self.step.key)
        else:
            start = getattr(self.holder, "__name__", type(self.holder).__name__)
        if self.role in TESTS:
            return f"the contents of {start}"
        return f"{start}.{self.step.key}" if "." in self.step.text else f"{start}[{self.step.key!r}]"


class Walk:
    """All places that a function, or an argument of it, may read, breadth first.

    Of modules and classes only what the code mentions is looked at, as are plain values; for arrays, all of an object.
    """

    def __init__(self, roots: Sequence[Any], names: set[str]) -> None:
        self.places: list[Place] = []
        self.complete = True  # whatever the code names has been looked at
        self.whole = True  # all else too
        self.written: set[str] = set()  # by code of the function
        self.writes_items = self.sets_by_name = False
        self._names = names  # of attributes; those that more code mentions are added
        self._seen: set[int] = set()
        self._of_classes: set[tuple[int, str, str]] = set()
        self._pending: deque[tuple[Any, Place | None, bool]] = deque((r, None, True) for r in roots)
        self._later: deque[tuple[Any, Place | None, bool]] = deque()  # what no code names: a search for arrays
        while self._pending or self._later:
            if len(self._seen) >= MOST_OBJECTS:
                self.complete, self.whole = not self._pending, False
                return
            self._near = bool(self._pending)
            self._open(*(self._pending or self._later).popleft())

    def _follow(self, value: Any, place: Place | None, named: bool) -> None:
        (self._pending if named and self._near else self._later).append((value, place, named))

    def _at(self, holder: Any, parent: Place | None, step: _Step, value: Any, named: bool) -> None:
        """There is ``value`` here; ``named``: the code may read it even if it is no array."""
        if is_plan_table(value):
            return
        if poses(type(value)):
            self.places.append(Place(holder, parent, step, value, Role.ONLY, named))
        elif isinstance(value, ARRAYS):
            self.places.append(Place(holder, parent, step, value, Role.ARRAY, named))
        elif isinstance(value, PLAIN):
            if named:
                self.places.append(Place(holder, parent, step, value, Role.PLAIN, True))
        elif isinstance(value, types.ModuleType):
            self._follow(value, None, named)
        elif isinstance(value, CONTAINERS) and is_plain(value):
            if named:
                place = Place(holder, parent, step, value, Role.PLAIN if is_constant(value) else Role.OBJECT, True)
                self.places.append(place)
                if place.role is Role.OBJECT:
                    self.places.append(Place(value, place, _CONTENT, contents(value), Role.CONTENTS, True))
        else:
            again = id(value) in self._seen  # it is followed from another place, which may be another object's later
            role = Role.ONLY if again or isinstance(value, _FUNCTIONS) else Role.OBJECT
            place = Place(holder, parent, step, value, role, named)
            self.places.append(place)
            if not again:
                self._follow(value, place, named)

    def _open(self, value: Any, place: Place | None, named: bool) -> None:
        """Look at what an object holds. Without a ``place`` it stays, and so does what it cannot exchange."""
        if id(value) in self._seen or poses(type(value)) or isinstance(value, (*ARRAYS, *PLAIN)):
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
            if isinstance(value, CONTAINERS):
                self._container(value, place, named)
            if kind not in CONTAINERS:
                self._object(value, place, named and (isinstance(value, Collection) or not _is_direct(kind)))

    def _fixed(self, value: Any, place: Place | None, parts: dict[str, Any]) -> None:
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
        self.written |= read.written
        self.writes_items |= read.writes_items
        self.sets_by_name |= read.sets_by_name
        for name in sorted(read.globals & space.keys()):
            held = space[name]
            if isinstance(held, _FUNCTIONS) and is_imported(held):
                continue
            self._at(space, None, _item(name), held, True)
        for module in read.imported(str(space.get("__package__") or "")):
            self._follow(sys.modules.get(module), None, True)
        for name in sorted(self._names & value.__dict__.keys()):
            self._at(value, None, _attribute(name), value.__dict__[name], True)

    def _container(self, value: Any, place: Place | None, named: bool) -> None:
        """Elements, and how many there are."""
        kind = type(value)
        if isinstance(value, set | frozenset):  # its elements have no place, and are the same as long as it is
            if kind is not frozenset:
                self.places.append(Place(value, place, _CONTENT, contents(value), Role.CONTENTS, named))
            for part in list(value):
                self._follow(part, None, named)
            return
        if isinstance(value, SEQUENCES):
            base: Any = next(b for b in SEQUENCES if isinstance(value, b))
            parts: list[tuple[Any, Any]] = list(enumerate(base.__iter__(value)))
            direct, get = kind.__getitem__ is base.__getitem__, base.__getitem__
            if base is tuple and place is None:
                for _, part in parts:
                    self._follow(part, None, named)
                return
            content = _Step("", final=base is tuple)
            self.places.append(Place(value, place, content, len(parts), Role.LENGTH, named))
        else:
            parts = list(value.items() if kind in IN_ORDER else dict.items(value))
            if kind in IN_ORDER:
                self.places.append(Place(value, place, _CONTENT, [k for k, _ in parts], Role.KEYS, named))
            else:
                self.places.append(Place(value, place, _CONTENT, len(parts), Role.LENGTH, named))
            direct, get = kind in (dict, OrderedDict, types.MappingProxyType), dict.get
        for key, part in parts:
            step = _item(key, kind is tuple) if direct else _Step("{function}({holder}, {key})", key, get)
            self._at(value, place, step, part, named)

    def _object(self, value: Any, place: Place | None, all_named: bool) -> None:
        """Attributes, of slots and of the class as well; never what a property gives."""
        kind = type(value)
        held: Any = None
        with contextlib.suppress(Exception):
            held = own_attribute(value, "__dict__")
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

    def _class(self, value: Any, cls: type, place: Place | None, own: Collection[str]) -> None:
        """What a class and its bases define of what the code mentions, and the methods that it need not mention: of operators,
        calls, ``with``. Those of bases may be called by the others."""
        found: set[str] = set(own)
        plain = value is cls or _looks_first(cls)
        for base in cls.__mro__[:-1]:
            for name, part in sorted(vars(base).items()):
                mentioned = name in self._names
                if not mentioned and not (name.startswith("__") and isinstance(part, types.FunctionType)):
                    continue
                if isinstance(part, types.MemberDescriptorType | types.GetSetDescriptorType):
                    continue
                first, defined = name not in found, _Step("{holder}.__dict__[{key}]", name)
                if not hasattr(type(part), "__get__"):
                    if name.startswith("__"):
                        continue
                    if first and plain:
                        self._at(value, place, _attribute(name), part, is_users(base.__module__))
                    elif self._is_new(base, defined):  # for super() and type(self)
                        self._at(base, None, defined, part, is_users(base.__module__))
                elif is_users(base.__module__):
                    bare = first and isinstance(part, types.FunctionType | property)
                    holder, step = (cls, _attribute(name)) if bare else (base, defined)
                    if mentioned and self._is_new(holder, step):
                        self.places.append(Place(holder, None, step, part, Role.ONLY, True))
                    self._follow(part, None, True)
                found.add(name)

    def _is_new(self, cls: type, step: _Step) -> bool:
        """Whether a place in a class is met for the first time, and not with another of its objects."""
        key = (id(cls), step.text, step.key)
        known = key in self._of_classes
        self._of_classes.add(key)
        return not known


def _is_direct(cls: type) -> bool:
    """Whether an attribute of its objects is what is in their tables, and asking for it runs nobody's code."""
    return _looks_first(cls) and not hasattr(cls, "__getattr__")


def _looks_first(cls: type) -> bool:
    """Whether an attribute that is in the table of its object is found there without running anybody's code."""
    asks: Any = cls.__getattribute__
    return asks is own_attribute


def _defining(cls: type, name: str) -> Any:
    """What a class has under this name, without asking it; None for nothing."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


class Surroundings:
    """What there is around a function before it is traced: what the trace itself changes is no business of later calls.

    ``static``: the static arguments, whose attributes may be bound anew.
    """

    def __init__(self, function: Callable[..., Any], static: tuple[Any, ...]) -> None:
        self._roots = (function, *static)
        self._names: set[str] = set()
        self._before = {p.key: p for p in self._walk().places}
        self._holders = {id(p.holder) for p in self._before.values()}

    def _walk(self) -> Walk:
        while True:
            known = len(self._names)
            found = Walk(self._roots, self._names)
            if len(self._names) == known:
                return found

    def after(self, captured: Collection[int | None]) -> tuple[Walk, Place | None]:
        """The places after a trace, and one that another thread has bound meanwhile: nobody knows what of it was traced.

        That is a place that code of the function does not write, or that had an array in the memory ``captured``.
        """
        walk = self._walk()
        changed: set[int] = set()
        bound: Place | None = None
        for place in walk.places:
            # what is behind a descriptor (a cached property) may be written by reading it
            hidden = place.step.text.startswith("own(")
            place.own = hidden or (walk.writes_items if _is_item(place) else place.step.key in walk.written)
            before = self._before.get(place.key)
            below = place.parent is not None and id(place.parent) in changed
            if before is None:
                differs = below or id(place.holder) in self._holders
            else:
                differs = not _is_as(before, place)
            if differs:
                changed.add(id(place))
                # made by setattr when it was first asked for: it counts from now on
                by_name = walk.sets_by_name and before is None and not place.own and place.role is not Role.ARRAY
                if place.kept and not below and not place.own and not by_name:
                    bound = bound or place
                place.kept &= by_name
        now = {p.key: p.there for p in walk.places if p.role is Role.ARRAY}
        arrays = [p for p in self._before.values() if p.role is Role.ARRAY and memory(p.there) in captured]
        return walk, next((p for p in arrays if now.get(p.key) is not p.there), bound)


def _is_item(place: Place) -> bool:
    """Whether a place is in a container, or all of one; global names are not."""
    of_globals = place.parent is None and type(place.holder) is dict and "__builtins__" in place.holder
    return place.role in TESTS or not (of_globals or place.step.text.startswith(("{holder}.", "getattr")))


def _is_as(before: Place, place: Place) -> bool:
    """Whether a place is as it was."""
    if place.role in (Role.KEYS, Role.CONTENTS):
        return len(before.there) == len(place.there) and all(map(operator.is_, before.there, place.there))
    return before.there is place.there or (place.role is Role.LENGTH and bool(before.there == place.there))


def memory(found: Any) -> int | None:
    """What the values of a tensor or an array are in; None for what stands for any values."""
    array = found._value if isinstance(found, Tensor) else found
    return id(owner(array)) if isinstance(array, np.ndarray) else None
