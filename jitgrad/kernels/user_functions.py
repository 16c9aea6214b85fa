"""Numba functions of the user that kernels call: what they give for given types, and what their code depends on.

Loaded when such a function is met, so that Numba is loaded already. What is read of dispatchers here is not public.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any, Final

import numba
import numpy as np
from numba.core import types
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typing.templates import builtin_registry
from numba.np.numpy_support import as_dtype

__all__ = ["fingerprint", "note", "storable_fingerprint", "typed_call"]

_VERSIONS: Final[dict[str, str]] = {
    **dict.fromkeys(("builtins", "math", "cmath", "operator"), sys.version),
    "numpy": np.__version__,
    "numba": numba.__version__,
}
"""Modules of which nothing but the version changes; those of a program may be edited."""
_NUMBERS: Final = (bool, int, float, complex, str, bytes, type(None))
_noted: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class _UnknownError(Exception):
    """Something of which no text says what it is."""


# --------------------------------------------------------------------------- what it depends on


class _Reader:
    """Writes down all that the code of a function depends on, and of those that it calls."""

    def __init__(self) -> None:
        self.seen: dict[Any, int] = {}
        self.rebindable: set[Any] = set()  # functions that read names which a program may give another meaning

    def dispatcher(self, function: Any) -> Any:
        if function in self.seen:
            return ("again", self.seen[function])
        self.seen[function] = len(self.seen)
        options = dict(function.targetoptions)
        if options.get("parallel"):
            raise _UnknownError  # parallel code depends on the threading layer of the process
        if function._compiler.pipeline_class is not Compiler:
            raise _UnknownError
        signatures = [] if function._can_compile else sorted(map(str, function.nopython_signatures))
        python = function.py_func
        code = python.__code__
        names: dict[str, Any] = {}
        for name in sorted(_global_names(code)):
            if name in python.__globals__:
                names[name] = python.__globals__[name]
                if not isinstance(names[name], ModuleType):
                    self.rebindable.add(function)
        cells = []
        for cell in python.__closure__ or ():
            self.rebindable.add(function)
            try:
                cells.append(cell.cell_contents)
            except ValueError:
                raise _UnknownError from None
        return (
            _code(code),
            self.value(tuple(sorted((k, self._option(v)) for k, v in options.items()))),
            repr(sorted((k, str(v)) for k, v in function.locals.items())),
            signatures,
            self.value(python.__defaults__),
            self.value(tuple(sorted((python.__kwdefaults__ or {}).items()))),
            [(k, self.value(v)) for k, v in names.items()],
            [self.value(v) for v in cells],
        )

    def _option(self, value: Any) -> Any:
        """The value of an option: ``fastmath`` may be a set or a dict of flags."""
        if isinstance(value, set | frozenset):
            return tuple(sorted(map(repr, value)))
        return tuple(sorted(value.items())) if isinstance(value, dict) else value

    def value(self, value: Any) -> Any:
        if isinstance(value, CPUDispatcher):
            return self.dispatcher(value)
        if type(value) in _NUMBERS or isinstance(value, np.number | np.bool_):
            return (type(value).__name__, repr(value))
        if type(value) is tuple:
            return [self.value(v) for v in value]
        if isinstance(value, ModuleType):
            return ("module", value.__name__, _version(value.__name__))
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(value, np.ufunc):
            module, name = "numpy", value.__name__
        if isinstance(module, str) and isinstance(name, str) and module in sys.modules:
            version = _version(module)
            if getattr(sys.modules[module], name, None) is value:
                return ("known", module, name, version)
        raise _UnknownError


def _version(module: str) -> str:
    found = _VERSIONS.get(module.split(".")[0])
    if found is None:
        raise _UnknownError
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _global_names(code: CodeType) -> set[str]:
    """Names that may be read as globals (those of attributes among them, which does no harm)."""
    return {name for c in _codes(code) for name in c.co_names}


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return [_constant(v) for v in value]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return (type(value).__name__, repr(value))


def _code(code: CodeType) -> Any:
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    table = getattr(code, "co_exceptiontable", b"")
    return (code.co_code.hex(), table.hex(), counts, names, [_constant(c) for c in code.co_consts])


def _root(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "numba").split(".")[0]  # what Numba makes of text has no module


def _is_foreign(template: Any) -> bool:
    """Whether a rule of Numba's was made by somebody else."""
    parts = (getattr(template, n, None) for n in ("_overload_func", "_definition_func", "generic"))
    return _root(next((p for p in parts if p is not None), template)) not in ("numba", "jitgrad")


_scanned: list[Any] = [0, False]


def _is_extended() -> bool:
    """Whether somebody has taught Numba known functions, or methods: what they mean then is nowhere to be read. (A
    function of his own that Numba was taught is an unknown one anyway.)"""
    if not _scanned[1]:
        new = builtin_registry.functions[_scanned[0] :]
        taught = any(_is_foreign(t) and _root(t.key) in _VERSIONS for t in new)
        _scanned[:] = [len(builtin_registry.functions), taught or any(map(_is_foreign, builtin_registry.attributes))]
    return bool(_scanned[1])


def _read(function: Any) -> tuple[str, _Reader] | None:
    if not isinstance(function, CPUDispatcher) or _is_extended():
        return None
    reader = _Reader()
    try:
        text = repr(reader.dispatcher(function))
    except _UnknownError:
        return None
    return hashlib.sha256(text.encode()).hexdigest(), reader


def fingerprint(function: Any) -> str | None:
    """A hash of all that the code of a Numba function depends on; None where that cannot be told."""
    found = _read(function)
    return None if found is None else found[0]


def note(function: Any) -> None:
    """Remember what a function depends on for as long as none of its code is compiled: Numba reads globals then."""
    found = _read(function)
    for part in found[1].seen if found is not None else ():
        if not part.overloads:
            now = fingerprint(part)
            if now is not None:
                _noted[part] = now


def storable_fingerprint(function: Any) -> str | None:
    """The fingerprint, if code that calls the function may be stored under it.

    It may not where compiled code may have been made from other values of globals than those that are there now: before
    they were changed, or by Numba's own cache, which does not look into what a function calls.
    """
    note(function)
    found = _read(function)
    if found is None:
        return None
    print_now, reader = found
    for part in reader.rebindable:
        cached = type(part._cache).__name__ != "NullCache"
        if cached or (part.overloads and _noted.get(part) != fingerprint(part)):
            return None
    return print_now


# --------------------------------------------------------------------------- what it gives


def _element(dtype: str) -> Any:
    return types.boolean if dtype == "bool" else getattr(types, dtype)


_CONSTANTS: Final = {"bool": types.boolean, "int": types.int64, "float": types.float64, "NoneType": types.none}


def typed_call(
    function: Any,
    arguments: Sequence[Any],
    constants: Sequence[tuple[str, str]],
    operands: Sequence[tuple[str, int]],
    results: Sequence[tuple[str, int]],
    is_rule: bool,
) -> tuple[bool, bool, list[str]] | None:
    """Compile the function for operands (dtype, number of axes): whether it takes read-only arrays, whether it gives a
    tuple, and how each result becomes one of the wanted ones. None: a kernel cannot call it.

    ``arguments`` are positions of operands, and tuples of them; ``is_rule``: one result may be a tuple of one, and what
    stands for integers is not looked at. The kinds of results: ``array``, ``box`` (an array without axes), ``number``,
    ``zero``.
    """
    if not isinstance(function, CPUDispatcher) or function.targetoptions.get("inline", "never") != "never":
        return None
    keywords = {name: _CONSTANTS[kind] for name, kind in constants}
    for read_only in (True, False) if any(ndim for _, ndim in operands) else (True,):
        given = [types.Array(_element(d), n, "C", readonly=read_only) if n else _element(d) for d, n in operands]

        def argument(a: Any, given: Sequence[Any] = given) -> Any:
            return types.BaseTuple.from_types([argument(part) for part in a]) if isinstance(a, tuple) else given[a]

        try:
            signature = types.Dispatcher(function).get_call_type(
                cpu_target.typing_context, tuple(map(argument, arguments)), keywords
            )
        except Exception:  # whatever Numba says: it is said again where the function is called as a step of its own
            continue
        if signature is None:
            continue
        found = types.unliteral(signature.return_type)
        several = isinstance(found, types.BaseTuple)
        parts = list(found.types) if several else [found]
        if several and len(results) == 1 and not is_rule:
            return None
        if len(parts) != len(results) or (not several and len(results) > 1):
            return None
        kinds = [_kind(types.unliteral(p), *r, is_rule) for p, r in zip(parts, results, strict=True)]
        return None if None in kinds else (read_only, several, [str(k) for k in kinds])
    return None


def _kind(found: types.Type, dtype: str, ndim: int, is_rule: bool) -> str | None:
    is_float = dtype.startswith("float")
    if found == types.none or (is_rule and not is_float):
        return "zero"
    element = found.dtype if isinstance(found, types.Array) else found
    if not isinstance(element, types.Float | types.Integer | types.Boolean):
        return None
    if (as_dtype(element).kind == "f") != is_float:
        return None
    if isinstance(found, types.Array):
        if found.ndim != ndim:
            return None
        kind = "array" if ndim else "box"
        return kind if element == _element(dtype) else f"{kind} cast"
    return None if ndim else "number"
