"""Array kernels around the Numba functions of users: operands from memory to the function, its results into memory."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jitgrad.kernels.kernel import kernel_mode, recall, remember

__all__ = ["Called", "UserKernel", "is_dispatcher", "note_function", "user_kernel"]


def is_dispatcher(function: Any) -> bool:
    """Whether this is an ``@njit`` function (asked without importing Numba)."""
    return hasattr(function, "py_func") and hasattr(function, "nopython_signatures")


def _functions() -> Any:
    return importlib.import_module("jitgrad.kernels.user_functions")


def note_function(function: Any) -> None:
    """Note what a Numba function depends on, before it is compiled."""
    _functions().note(function)


@dataclass(frozen=True)
class UserKernel:
    """An array kernel ``name(*operands, *constants, *results)``; operands and results without axes are arrays of one."""

    name: str
    source: str
    extras: dict[str, Any]  # what the names in its source mean besides those of every kernel


@dataclass(frozen=True)
class Called:
    """A call of a Numba function of the user.

    ``arguments`` are positions of operands, and tuples of them; ``results`` and operands are (dtype, number of axes);
    constants are (name, name of the type). ``in_python`` does the same on arrays, with checked results.
    """

    title: str
    function: Any
    in_python: Callable[..., Any]
    arguments: tuple[Any, ...]
    operands: tuple[tuple[str, int], ...]
    constants: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, int], ...]
    is_rule: bool


_names: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def _name_of(function: Any, title: str) -> str:
    """The name of a function in kernels: of no other function in this process, and where possible the same in others."""
    base = f"user_{re.sub(r'[^A-Za-z0-9]', '_', title)}_{(_functions().fingerprint(function) or 'local')[:16]}"
    number = 0
    while _names.setdefault(f"{base}_{number}", function) is not function:
        number += 1
    return f"{base}_{number}"


def user_kernel(called: Called) -> UserKernel | None:
    """The kernel for a call; None where Numba cannot compile it, or gives something else than arrays and numbers."""
    name = _name_of(called.function, called.title)
    if kernel_mode() == "python":
        lines, function = _python_lines(called, name), called.in_python
    else:
        found = _typed(called)
        if found is None:
            return None
        lines, function = _lines(called, name, *found), called.function
    parameters = [f"x{k}" for k in range(len(called.operands))]
    parameters += [f"k{k}" for k in range(len(called.constants))]
    parameters += [f"out{k}" for k in range(len(called.results))]
    text = "\n".join([f"({', '.join(parameters)}):", *(f"    {line}" for line in lines)]) + "\n"
    own = f"call_{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return UserKernel(own, f"def {own}{text}", {name: function})


def _typed(called: Called) -> Any:
    """What Numba says of the call, from disk where nothing has changed: else each process would compile the function."""
    parts = (called.arguments, called.constants, called.operands, called.results, called.is_rule)
    question = repr(parts)
    payload = recall("typed", question, [called.function])
    if payload is not None:
        return json.loads(payload)
    found = _functions().typed_call(called.function, *parts)
    if found is not None:
        remember("typed", question, [called.function], json.dumps(found).encode())
    return found


def _given(argument: Any, texts: Sequence[str]) -> str:
    if isinstance(argument, tuple):
        return f"({', '.join(_given(a, texts) for a in argument)}{',' if len(argument) == 1 else ''})"
    return texts[int(argument)]


def _call(called: Called, name: str, texts: Sequence[str], arguments: Sequence[Any]) -> str:
    given = [_given(a, texts) for a in arguments]
    given += [f"{key}=k{k}" for k, (key, _) in enumerate(called.constants)]
    return f"made = {name}({', '.join(given)})"


def _lines(called: Called, name: str, read_only: bool, several: bool, kinds: Sequence[str]) -> list[str]:
    taken = "read_only(x{})" if read_only else "x{}.copy()"  # it must not write to what others read
    texts = [taken.format(k) if ndim else f"x{k}[0]" for k, (_, ndim) in enumerate(called.operands)]
    lines = [_call(called, name, texts, called.arguments)]
    for k, (kind, (dtype, ndim)) in enumerate(zip(kinds, called.results, strict=True)):
        value = f"made{k}"
        element = "boolean" if dtype == "bool" else dtype
        if kind == "zero":
            lines.append(f"out{k}[...] = {element}(0)")
            continue
        lines.append(f"{value} = made[{k}]" if several else f"{value} = made")
        if ndim:
            message = (
                f"{called.title} gave an array of another shape than expected; say shape= where the result is not "
            )
            lines.append(f"if {value}.shape != out{k}.shape:")
            lines.append(f"    raise ShapeError({message + 'what the operands broadcast to'!r})")
            cast = f".astype(np.{'bool_' if dtype == 'bool' else dtype})" if kind.endswith("cast") else ""
            lines.append(f"out{k}[...] = {value}{cast}")
        else:
            value += "[()]" if kind.startswith("box") else ""
            lines.append(f"out{k}[0] = {element}({value})")
    return lines


def _python_lines(called: Called, name: str) -> list[str]:
    texts = [f"x{k}.copy()" if ndim else f"x{k}.reshape(())" for k, (_, ndim) in enumerate(called.operands)]
    lines = [_call(called, name, texts, range(len(texts)))]
    several = len(called.results) > 1
    return lines + [f"out{k}[...] = made{f'[{k}]' if several else ''}" for k in range(len(called.results))]
