"""Plain values: numbers, texts and the like, which have no attributes to be bound anew, and containers of these alone."""

from __future__ import annotations

import operator
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any, Final

import numpy as np

__all__ = [
    "CONTAINERS",
    "EMPTY",
    "IN_ORDER",
    "PLAIN",
    "SEQUENCES",
    "contents",
    "is_constant",
    "is_plain",
    "is_same",
    "poses",
    "unlike",
]

PLAIN: Final = (
    *(types.NoneType, types.EllipsisType, bool, int, float, complex, str, bytes, range, slice),
    *(np.generic, np.dtype),
)
SEQUENCES: Final = (list, tuple, deque)
CONTAINERS: Final = (*SEQUENCES, dict, types.MappingProxyType, set, frozenset)
IN_ORDER: Final = (dict, OrderedDict, defaultdict, types.MappingProxyType)  # iteration is their own

_END: Final = object()
EMPTY: Final = ([dict, _END], [list, _END])
"""The contents of empty containers, which are false values."""


def poses(cls: type) -> bool:
    """Whether its objects say themselves what they are (``__class__``), by code that following them must not run."""
    return cls.__module__ != "builtins" and any("__class__" in vars(base) for base in cls.__mro__[:-1])


def is_plain(container: Any) -> bool:
    """Whether a container has nothing but plain values, or such containers, in it."""
    pending, seen = [container], {id(container)}
    while pending:
        value = pending.pop()
        if type(value) not in CONTAINERS and type(value) not in IN_ORDER:  # others may have attributes
            return False
        parts = [*value, *value.values()] if isinstance(value, dict | types.MappingProxyType) else [*value]
        for part in parts:
            if poses(type(part)):
                return False
            if isinstance(part, CONTAINERS):
                if id(part) in seen:
                    return False
                seen.add(id(part))
                pending.append(part)
            elif not isinstance(part, PLAIN):
                return False
    return True


def is_constant(value: Any) -> bool:
    """Whether a plain container, and all in it, cannot be written."""
    return not isinstance(value, CONTAINERS) or (isinstance(value, tuple | frozenset) and all(map(is_constant, value)))


def contents(container: Any) -> list[Any]:
    """All that is in a container of plain values, in order, with types and ends."""
    found: list[Any] = [type(container)]
    parts = container if isinstance(container, list | tuple) else list(container)  # threads may change their size
    if isinstance(container, dict | types.MappingProxyType):
        parts = [part for pair in list(container.items()) for part in pair]
    if not any(isinstance(part, CONTAINERS) for part in parts):
        found += parts
    else:
        for part in parts:
            found += contents(part) if isinstance(part, CONTAINERS) else (part,)
    found.append(_END)
    return found


def unlike(container: Any, before: list[Any]) -> bool:
    """Whether a container has other objects in it than ``before``."""
    now = contents(container)
    return len(now) != len(before) or any(map(operator.is_not, now, before))


def is_same(new: Any, old: Any) -> bool:
    """Whether two plain values are one to any program: 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if isinstance(new, CONTAINERS):
        a, b = contents(new), contents(old)
        return len(a) == len(b) and all(map(is_same, a, b))
    return isinstance(new, PLAIN) and repr(new) == repr(old)
