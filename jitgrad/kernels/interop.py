"""Kernels as ordinary Numba functions: arrays and numbers in, for the user's own ``@njit`` code."""

from __future__ import annotations

import functools
import linecache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload, register_jitable

from jitgrad.core.aval import DTYPE_NAMES
from jitgrad.errors import DtypeError
from jitgrad.kernels import bridge
from jitgrad.kernels.buffer import Buffer

__all__ = ["make_dispatcher"]


def _buffer_maker(dtype: str) -> Any:
    """An intrinsic that makes a buffer of a contiguous array of one dtype, or of a number.

    The buffer does not keep the array alive: whoever calls a function that makes one must.
    """
    element = types.boolean if dtype == "bool" else getattr(types, dtype)
    kind = Buffer(element)

    @intrinsic
    def make_buffer(typingctx: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = signature.args[0]
            struct = cgutils.create_struct_proxy(kind)(context, builder)
            if isinstance(given, types.Array):
                struct.data = context.make_array(given)(context, builder, args[0]).data
            else:
                slot = cgutils.alloca_once(builder, struct.data.type.pointee)
                context.pack_value(builder, element, args[0], slot)
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


def _argument(dtype: str, ndim: int, what: str) -> Any:
    """A function of one argument that gives it as the kernel takes it: a contiguous aligned array, or a number.

    Other types raise when the caller is compiled: another dtype is never converted, except for numbers without loss.
    """
    element = types.boolean if dtype == "bool" else getattr(types, dtype)
    wanted = f"a {ndim}-d array of {dtype}" if ndim else f"a number of type {dtype}"

    def argument(value: Any) -> Any:
        raise NotImplementedError

    @overload(argument)
    def _(value):  # type: ignore[no-untyped-def]  # Numba compares the signature with the lambdas'
        if isinstance(value, types.Array) and value.ndim == ndim and value.dtype == element:
            if not ndim:
                return lambda value: value[()]
            if value.layout == "C" and value.aligned:
                return lambda value: value
            return lambda value: value.copy()
        if not ndim and isinstance(value, types.Number | types.Boolean) and _fits(value, element):
            return lambda value: element(value)  # noqa: PLW0108
        hint = (
            f"convert it with .astype(np.{dtype})"
            if isinstance(value, types.Array) and value.ndim == ndim
            else ("compile another one with such an example argument")
        )
        raise DtypeError(f"{what} must be {wanted}, not {value}; {hint}")

    return argument


def _fits(given: types.Type, element: types.Type) -> bool:
    """Whether a number can be passed on: floats take all real numbers, integers what they can hold whatever its value."""
    if isinstance(element, types.Float):
        return not isinstance(given, types.Complex)
    return np.can_cast(str(types.unliteral(given)), str(element), "safe")


@intrinsic
def is_null(typingctx: Any, pointer: Any) -> Any:
    """Whether a C pointer is null."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.icmp_unsigned("==", builder.ptrtoint(args[0], ir.IntType(64)), ir.IntType(64)(0))

    return types.boolean(pointer), generate


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
    return {f"{name}_buffer": _buffer_maker(name) for name in DTYPE_NAMES}


def make_dispatcher(name: str, source: str, constants: dict[str, Any], arguments: list[tuple[str, int, str]]) -> Any:
    """The Numba function ``name`` of ``source``, whose other functions are its kernels.

    ``arguments`` are dtype, number of axes and the words for each: the source passes them through ``argument0`` and so on.
    """
    filename = f"<jitgrad function {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {
        **bridge.namespace(),
        **_makers(),
        "never_cache": never_cache,
        "slice_start": slice_start,
        "slice_extent": slice_extent,
        **{f"argument{k}": _argument(*spec) for k, spec in enumerate(arguments)},
        **constants,
    }
    bridge.define(source, filename, namespace, nogil=True)
    return namespace[name]


_C_TYPES = {"int": types.intc, "void*": types.voidptr}


def make_callback(name: str, source: str, function: Any, signature: tuple[str, ...]) -> Any:
    """The C function ``name`` of ``source``, which calls ``function``.

    ``signature``: C types of the result and the arguments: ``int``, ``void``, ``void*``, a dtype, or a dtype with a star.
    """
    filename = f"<jitgrad callback {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {
        "np": np,
        "carray": bridge.namespace()["carray"],
        "is_null": is_null,
        "function": function,
    }
    exec(compile(source, filename, "exec"), namespace)
    namespace["inner"] = numba.njit(error_model="numpy")(namespace["inner"])

    def kind(text: str) -> Any:
        if text in _C_TYPES:
            return _C_TYPES[text]
        if text == "void":
            return types.void
        element = text.removesuffix("*")
        made = types.boolean if element == "bool" else getattr(types, element)
        return types.CPointer(made) if text.endswith("*") else made

    result, *parameters = map(kind, signature)
    return numba.cfunc(result(*parameters), error_model="numpy")(namespace[name])
