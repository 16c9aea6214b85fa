"""Kernels as ordinary Numba functions: arrays and numbers in, for the user's own ``@njit`` code."""

from __future__ import annotations

import functools
import linecache
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload, register_jitable

from jitgrad.kernels import bridge
from jitgrad.kernels.buffer import Buffer

__all__ = ["make_dispatcher"]


def _buffer_maker(dtype: str) -> Any:
    """An intrinsic that makes a buffer of a contiguous array, or of a number, of one dtype."""
    element = types.boolean if dtype == "bool" else getattr(types, dtype)
    kind = Buffer(element)

    @intrinsic
    def make_buffer(typingctx: Any, value: Any) -> Any:
        if isinstance(value, types.Array):
            if value.dtype != element:
                raise TypingError(f"this compiled gradient takes {dtype} arrays, not {value}; convert with .astype(np.{dtype})")
            if value.layout != "C":
                raise TypingError(f"this compiled gradient takes C-contiguous arrays, not {value}; use np.ascontiguousarray")
        elif not isinstance(value, types.Number | types.Boolean):
            raise TypingError(f"this compiled gradient takes a {dtype} number here, not {value}")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = signature.args[0]
            struct = cgutils.create_struct_proxy(kind)(context, builder)
            if isinstance(given, types.Array):
                struct.data = context.make_array(given)(context, builder, args[0]).data
            else:
                number = context.cast(builder, args[0], given, element)
                slot = cgutils.alloca_once(builder, struct.data.type.pointee)
                context.pack_value(builder, element, number, slot)
                struct.data = slot
            return struct._getvalue()

        return kind(value), generate

    return make_buffer


@intrinsic
def never_cache(typingctx: Any) -> Any:
    """Keep Numba from storing a caller on disk: its cache does not look into what it calls, and would run a stale gradient
    after the differentiated function was edited."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = context.add_dynamic_addr(builder, id(never_cache), info="a gradient of jitgrad")
        # empty, but with a side effect: the address, and with it the mark in the module, survives optimisation
        builder.asm(ir.FunctionType(ir.VoidType(), [address.type]), "", "r", [address], True)
        return context.get_dummy_value()

    return types.none(), generate


def contiguous(array: Any) -> Any:
    """The array itself, or a contiguous copy."""
    raise NotImplementedError


@overload(contiguous)
def _contiguous(array):  # type: ignore[no-untyped-def]  # Numba compares the signature with the lambdas'
    if isinstance(array, types.Array) and array.layout != "C":
        return lambda array: np.ascontiguousarray(array)
    return lambda array: array


@register_jitable
def slice_start(start, stop, step, n):  # type: ignore[no-untyped-def]
    """Where a slice of an axis of extent n begins."""
    backward = step is not None and step < 0
    if start is None:
        return n - 1 if backward else 0
    if start < 0:
        return max(start + n, -1 if backward else 0)
    return min(start, n - 1 if backward else n)


@register_jitable
def slice_extent(start, stop, step, n):  # type: ignore[no-untyped-def]
    """How many elements a slice of an axis of extent n has."""
    by = 1 if step is None else step
    first = slice_start(start, stop, step, n)
    if stop is None:
        last = -1 if by < 0 else n
    elif stop < 0:
        last = max(stop + n, -1 if by < 0 else 0)
    else:
        last = min(stop, n - 1 if by < 0 else n)
    return max(0, (last - first + by - (1 if by > 0 else -1)) // by)


@functools.cache
def _makers() -> dict[str, Any]:
    names = ["bool", "float32", "float64", *(f"{k}{b}" for k in ("int", "uint") for b in (8, 16, 32, 64))]
    return {f"{name}_buffer": _buffer_maker(name) for name in names}


def make_dispatcher(name: str, source: str, constants: dict[str, Any]) -> Any:
    """The Numba function ``name`` of ``source``, whose other functions are its kernels."""
    filename = f"<jitgrad function {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {
        **bridge.namespace(),
        **_makers(),
        "never_cache": never_cache,
        "contiguous": contiguous,
        "slice_start": slice_start,
        "slice_extent": slice_extent,
        **constants,
    }
    before = set(namespace)
    exec(compile(source, filename, "exec"), namespace)
    made = None
    for key in [k for k in namespace if k not in before]:
        function = namespace[key]
        if isinstance(function, FunctionType):
            made = namespace[key] = numba.njit(error_model="numpy", nogil=True)(function)
    return made
