"""The short way from a call to its kernel: for contiguous ndarrays and Python numbers like those of an earlier call."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.core.graph import is_number
from jitgrad.core.modes import grad_mode
from jitgrad.kernels.guards import NUMBERS, USABLE, guard_of
from jitgrad.transforms.bindings import Bindings
from jitgrad.transforms.compiled import Compiled
from jitgrad.transforms.private import plain

__all__ = ["ShortCalls"]

_OFTEN: Final = 16  # calls after which the look at the arguments is compiled too
_ndarray = np.ndarray


@dataclass
class _Short:
    """The short way to one kernel, written out as source."""

    function: Callable[..., Any]
    head: list[str]
    body: list[str]
    bindings: Bindings  # in whose space it is compiled, so that it reads what is bound anew
    calls: int = 0

    def guarded(self, args: tuple[Any, ...], other: Callable[[tuple[Any, ...]], Any]) -> Callable[..., Any]:
        """The same with the look at the arguments compiled; ``other`` gets arguments of other kinds."""
        guard, table = guard_of(args, USABLE)
        names = ", ".join(f"a{k}" for k in range(len(args)))
        check = f"    if not guard({names}, table): return other(({names},))"
        lines = [self.head[0], check, *self.head[1:], *self.body]
        around = [
            "def around(guard, table, other):",
            *(f"    {n}" for n in "\n".join(lines).split("\n")),
            "    return fast",
        ]
        fast = self.bindings.made("around", "\n".join(around))(guard, table, other)
        fast.kept = [a.dtype for a in args if type(a) is _ndarray]  # they are known by their addresses
        return fast  # type: ignore[no-any-return]


class ShortCalls:
    """The short ways of one jitted function; ``general`` takes all other calls."""

    def __init__(self, general: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._general = general
        self._known: dict[Any, _Short] = {}
        self.guarded: dict[int, Callable[..., Any]] = {}  # for arguments like those of frequent calls, by their number

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """Go straight to the kernel where an earlier call had such arguments."""
        key: list[Any] = []
        for a in args:
            kind = type(a)
            if kind is _ndarray:
                if a.flags.num & USABLE != USABLE:
                    return self._general(args, {})
                key += (a.dtype, a.shape)
            elif kind in NUMBERS:
                key.append(kind)
            else:
                return self._general(args, {})
        short = self._known.get(tuple(key))
        if short is None:
            return self._general(args, {})
        short.calls += 1
        if args and short.calls % _OFTEN == 0:
            self.guarded[len(args)] = short.guarded(args, self)
        return short.function(*args)

    def remember(self, args: tuple[Any, ...], compiled: Compiled, idle: Collection[int]) -> None:
        """Let later calls with such arguments go straight to the kernel, where that is one for all of the function; whether
        the captured tensors ``idle`` require grad makes no difference."""
        key: list[Any] = []
        given, conditions = [], []
        for k, a in enumerate(args):
            if type(a) is _ndarray and a.dtype == a.dtype.newbyteorder("="):
                key += (a.dtype, a.shape)
                given.append(f"a{k}")
            elif type(a) in NUMBERS:
                key.append(type(a))
                given.append(f"array(a{k}, {type(a).__name__})")
                if type(a) is int:
                    conditions.append(f"not -0x8000000000000000 <= a{k} <= 0x7FFFFFFFFFFFFFFF")
            else:
                return
        step = compiled.executable.single
        if step is None or compiled.reads or any(leaf is not None for leaf in compiled.leaves):
            return
        if not compiled.bindings.complete or not compiled.bindings.settled:
            return  # it is traced again
        returned = step.kernel.returned
        names = [
            f"results[{k}]" if k == returned or b.shape else f"plain(results[{k}])"
            for k, b in enumerate(step.kernel.outputs)
        ]
        text = _template(compiled.structure.unflatten([_Slot(n) for n in names]))
        if text is None:
            return
        dtypes = {t.__name__: dtype for t, dtype in NUMBERS.items()}
        bindings = compiled.bindings
        bindings.space |= {
            "call": step.call,
            "plain": plain,
            "general": self._general,
            "renewed": compiled.renewed,
            "array": np.array,
            "records": grad_mode.get,
            **dtypes,
        }
        arguments = ", ".join(f"a{i}" for i in range(len(args)))
        lines = [f"def fast({arguments}):"]
        if bindings.lines:
            lines += bindings.lines.splitlines()
            conditions.append("changed and not renewed()")
        tracked = [
            f"source{i}._edge is not None"
            for i, source in enumerate(compiled.sources)
            if i not in idle
            and not (bindings.is_array[i] and is_number(source._value))  # a number of the program, which nobody has
        ]
        if tracked:
            conditions.append(f"({' or '.join(tracked)}) and records()")
        if conditions:
            lines.append(f"    if {' or '.join(conditions)}: return general(({arguments}{',' if args else ''}), {{}})")
        body = [f"    results = call({', '.join(given)})", f"    return {text}"]
        fast = bindings.made("fast", "\n".join([*lines, *body]))
        self._known[tuple(key)] = _Short(fast, lines, body, bindings)
        self.guarded.pop(len(args), None)  # it may test for what is bound no more


class _Slot(str):
    """The text of a result in a template."""


def _template(tree: Any) -> str | None:
    """The source text that builds a tree of plain containers; None where there is another kind of container."""
    if isinstance(tree, _Slot):
        return str(tree)
    if type(tree) in (tuple, list):
        parts = [_template(t) for t in tree]
        if any(p is None for p in parts):
            return None
        inner = ", ".join(parts)  # type: ignore[arg-type]
        return f"[{inner}]" if type(tree) is list else f"({inner}{',' if len(parts) == 1 else ''})"
    return None
