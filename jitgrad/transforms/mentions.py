"""Which names the code of a function reads, and writes: globals, attributes, modules."""

from __future__ import annotations

import dis
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Mentions", "is_imported", "is_users", "mentions"]

_MAKING: Final = frozenset({"__init__", "__new__", "__post_init__"})
_CHANGING: Final = frozenset({
    "add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "move_to_end", "pop", "popitem",
    "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "update",
})  # fmt: skip
"""Methods of containers."""
_SETTING: Final = frozenset({"setattr", "delattr", "vars", "__dict__", "__setattr__", "__delattr__"})
"""What writes attributes whose names the code need not have."""
_LIBRARIES: Final = frozenset({"jitgrad", "numpy", "scipy", "numba", "llvmlite"}) | sys.stdlib_module_names


@dataclass(frozen=True)
class Mentions:
    """The names that a function, and those defined in it, read and write."""

    globals: frozenset[str]
    attributes: frozenset[str]  # and texts that may be names of attributes, as for ``getattr``
    imports: frozenset[tuple[int, str]]  # modules that are imported inside, with the number of leading dots
    written: frozenset[str]  # variables and attributes, but not those of an object that is being made
    writes_items: bool  # may change what is in a container
    sets_by_name: bool  # may write any attribute

    def imported(self, package: str) -> Iterator[str]:
        """The full names of the imported modules, for code in this package."""
        for level, name in sorted(self.imports):
            parts = package.split(".")
            start = parts[: len(parts) - level + 1] if level else []
            whole = [*start, *filter(None, name.split("."))]
            yield from (".".join(whole[:n]) for n in range(1, len(whole) + 1))


@functools.lru_cache(4096)
def mentions(code: types.CodeType) -> Mentions:
    """What this code reads and writes."""
    written: set[str] = set()
    writes_items = sets_by_name = False
    names: set[str] = set()
    attributes: set[str] = set()
    imports: set[tuple[int, str]] = set()
    constants: list[Any] = [None, None]  # the last two: level and names of an import
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation == "IMPORT_NAME":
            imports.add((constants[-2] or 0, name))
        elif operation == "IMPORT_FROM":
            attributes.add(name)
        elif operation.startswith("LOAD") and instruction.opcode in dis.hasname:
            (names if operation in ("LOAD_GLOBAL", "LOAD_NAME") else attributes).add(name)
        elif operation in ("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"):
            writes_items = True
        elif operation.startswith(("STORE", "DELETE")):
            if instruction.opcode in (*dis.hasname, *dis.hasfree) and code.co_name not in _MAKING:
                written.add(name)
        elif operation.startswith("LOAD"):
            constants = [constants[-1], name]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = mentions(constant)
            names |= inner.globals
            attributes |= inner.attributes
            imports |= inner.imports
            written |= inner.written
            writes_items |= inner.writes_items
            sets_by_name |= inner.sets_by_name
        for text in constant if isinstance(constant, tuple) else (constant,):
            if isinstance(text, str) and text.isidentifier():
                attributes.add(text)
    writes_items |= not _CHANGING.isdisjoint(attributes)
    sets_by_name |= not _SETTING.isdisjoint(names | attributes)
    return Mentions(
        frozenset(names), frozenset(attributes), frozenset(imports), frozenset(written), writes_items, sets_by_name
    )


def is_users(module: str) -> bool:
    """Whether a module is none of jitgrad, of what it is built on, of Python's own, and of installed packages that do not
    use jitgrad: they hold the rest of the world (pytest, wherever a test says ``assert``)."""
    home = module.partition(".")[0]
    if home in _LIBRARIES:
        return False
    file = str(getattr(sys.modules.get(module), "__file__", None))
    return not file.startswith(_installed()) or _uses_jitgrad(home, len(sys.modules))


@functools.cache
def _installed() -> tuple[str, ...]:
    return tuple(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib"))


@functools.lru_cache(256)
def _uses_jitgrad(package: str, _: int) -> bool:
    """Whether a module of a package has something of jitgrad in it, of those that are loaded."""
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package]
    held = [value for m in modules for value in list(getattr(m, "__dict__", {}).values())]
    functions = (types.FunctionType, type)
    homes = {v.__name__ for v in held if isinstance(v, types.ModuleType)} | {
        str(v.__module__) for v in held if isinstance(v, functions)
    }
    return any(str(home).partition(".")[0] == "jitgrad" for home in homes)


def is_imported(value: Any) -> bool:
    """Whether this is a function or a class of a library, as an import gives it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or is_users(module):
        return False
    home = module.partition(".")[0]
    spaces = [getattr(sys.modules.get(m), "__dict__", {}) for m in (module, home)]
    return any(space.get(name) is value for space in spaces)
