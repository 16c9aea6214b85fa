"""Everything of Numba that is not its public face: compiling to an entry point, and storing what was compiled.

Kept in one module with a self-test, since these internals move between Numba's minor versions (which are pinned).
"""

from __future__ import annotations

import ctypes
import functools
import linecache
import pickle
from collections.abc import Mapping
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
import scipy
from numba.core import types
from numba.core.compiler import CompileResult, Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python, rtsys  # type: ignore[attr-defined]
from numba.core.serialize import dumps

from jitgrad._version import __version__
from jitgrad.core import linalg_errors
from jitgrad.core.aval import DTYPE_NAMES
from jitgrad.errors import JitgradError, ShapeError
from jitgrad.kernels import blas, buffer, irbuild, vecmath
from jitgrad.kernels.array_fields import FIELD_OFFSETS
from jitgrad.kernels.lowering import Source

__all__ = ["cpu", "define", "deserialize", "is_storable", "make", "options", "serialize", "versions"]

_njit: Any = numba.njit  # its stubs do not know every option
_NAMESPACE: dict[str, Any] = {
    "__name__": __name__,  # kernels belong to a module that can be imported, else they cannot be loaded again
    **vecmath.NAMESPACE,
    **blas.NAMESPACE,
    **buffer.INTRINSICS,
    **{n: getattr(linalg_errors, n) for n in linalg_errors.__all__},
    "np": np,
    "ShapeError": ShapeError,
    "carray": getattr(numba, "carray"),  # noqa: B009  # its stubs do not know it
    "INF": float("inf"),
    "NAN": float("nan"),
    "boolean": types.boolean,
    **{d: getattr(types, d) for d in DTYPE_NAMES if d != "bool"},
}


class BridgeError(JitgradError, RuntimeError):
    """Numba or NumPy differs inside from what this version of jitgrad was built for."""


def _self_test() -> None:
    """The fields of an ndarray object are where buffers read them."""
    array = np.zeros((2, 3))
    fields = FIELD_OFFSETS
    data = ctypes.c_void_p.from_address(id(array) + fields["data"]).value
    rank = ctypes.c_int.from_address(id(array) + fields["nd"]).value
    dims = ctypes.POINTER(ctypes.c_ssize_t).from_address(id(array) + fields["dims"])
    strides = ctypes.POINTER(ctypes.c_ssize_t).from_address(id(array) + fields["strides"])
    where = array.__array_interface__["data"][0]
    kind = ctypes.c_void_p.from_address(id(array) + fields["type"]).value
    dtype = ctypes.c_void_p.from_address(id(array) + fields["dtype"]).value
    flags = ctypes.c_int.from_address(id(array) + fields["flags"]).value
    known = data == where and rank == 2 and dims[:2] == [2, 3] and strides[:2] == [24, 8]
    if not known or kind != id(np.ndarray) or dtype != id(array.dtype) or flags != array.flags.num:
        raise BridgeError(
            f"the layout of ndarray objects of NumPy {np.__version__} is not the one that kernels read; "
            "set JITGRAD_KERNELS=python and report this"
        )


def _settle_malloc() -> None:
    """Keep freed results mapped: glibc raises its thresholds when a large untouched block is freed, and the pages of
    megabyte results then need not be faulted in again at every call. Elsewhere this does nothing."""
    np.empty((32 << 20) // 8 - 65536)


_self_test()
_settle_malloc()


def namespace() -> dict[str, Any]:
    """What the names in kernels mean."""
    return dict(_NAMESPACE)


def versions() -> dict[str, str]:
    """Versions of everything that a compiled kernel depends on."""
    return {
        "jitgrad": __version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "scipy": scipy.__version__,  # its BLAS: the width of its integers is checked when a kernel is compiled
    }


def cpu() -> tuple[str, str]:
    """LLVM's name and features of the CPU that code is made for."""
    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    return str(name), str(features)


def options() -> dict[str, str]:
    """Numba settings that change code and may have been set by a program or a configuration file."""
    names = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "CPU_NAME", "CPU_FEATURES", "BOUNDSCHECK", "DEBUGINFO_DEFAULT")
    return {name: str(getattr(numba.config, name, "")) for name in names}


def _argument(code: str) -> types.Type:
    """The Numba type of an argument code: ``b:float64``, ``a:float64:2``, ``n:int64`` or ``o``."""
    if code == "o":
        return buffer.Object()
    kind, dtype, *rank = code.split(":")
    element = types.boolean if dtype == "bool" else getattr(types, dtype)
    if kind == "b":
        return buffer.Buffer(element)
    if kind == "a":
        return types.Array(element, int(rank[0]), "C")
    return element


def make(name: str, source: str, signature: tuple[str, ...], extras: Mapping[str, Any]) -> CompileResult:
    """Compile the function ``name`` of ``source`` for argument codes (those of ``kernel.entry_point``).

    ``extras``: what further names in the source mean, functions of the user.
    """
    filename = f"<jitgrad kernel {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    names = {**namespace(), **extras}
    flags: Any = Flags()
    flags.nrt = True
    flags.error_model = "numpy"
    flags.no_cfunc_wrapper = True
    flags.release_gil = "nogil" in signature
    flags.noalias = True  # results are always fresh arrays; operands are only read
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    arguments = tuple([_argument(code) for code in signature if code != "nogil" and not code.startswith("r:")])
    results = [getattr(types, code[2:]) for code in signature if code.startswith("r:")]
    result = results[0] if results else types.none
    functions = Source(
        source, filename, names, functools.partial(_called, no_cpython_wrapper=True), _has_own_memory, main=name
    )
    with global_compiler_lock:
        plain = functions.program(typing, name, arguments) is not None
        function = functions.shell(name, None) if plain else names[name]
        made: CompileResult = compile_extra(
            typing, target, function, arguments, result, flags, {}, _library(target, name)
        )
    functions.forget()
    return made


def _library(target: Any, name: str) -> Any:
    """Where Numba puts a kernel's code. Its last pass inlines the vector variants of rare calls (see
    :func:`irbuild.patched`): LLVM's vectoriser, which puts them there, comes after all inlining."""
    codegen = target.codegen()
    library = codegen.create_library(name)
    library.enable_object_caching()
    usual = library._optimize_final_module

    def optimize() -> None:
        usual()
        if any(g.name == irbuild.KEPT for g in library._final_module.global_variables):
            passes = llvm.create_new_module_pass_manager()
            passes.add_always_inliner_pass()
            passes.run(library._final_module, codegen._pass_builder())

    library._optimize_final_module = optimize
    return library


def define(source: str, filename: str, names: dict[str, Any], **options: Any) -> None:
    """Define the functions of a source text as Numba functions, in the namespace ``names``."""
    Source(source, filename, names, functools.partial(_called, **options), _has_own_memory)


def _has_own_memory(name: str) -> bool:
    """Functions that were outlined of a kernel (``step0`` ...) get memory that does not overlap, like the kernel itself."""
    return name.startswith("step")


def _called(function: Any, **options: Any) -> Any:
    """A function that compiled code calls."""
    made = _njit(error_model="numpy", **options)(function)
    if _has_own_memory(function.__name__):
        compiler = made._compiler
        compiler._customize_flags = _without_aliases
    return made


def _without_aliases(flags: Any) -> Any:
    flags.noalias = True
    return flags


def serialize(result: CompileResult) -> bytes:
    """A compiled kernel as bytes."""
    (name, kind, (code, bitcode)), *rest = result._reduce()
    return bytes(dumps(((name, kind, (code, _names_alone(bitcode))), *rest)))


def _names_alone(bitcode: bytes) -> bytes:
    """A module that defines what the given one shows to others, without its code.

    Numba stores a library's bitcode with its machine code, so that others can inline it; nothing inlines kernels, and
    parsing it took most of the time of loading one. Only which names it defines is asked for.
    """
    module = llvm.parse_bitcode(bitcode)
    shown = [g for g in (*module.functions, *module.global_variables) if not g.is_declaration]
    lines = [f'@"{g.name}" = global i8 0' for g in shown if g.linkage not in _HIDDEN]
    return bytes(llvm.parse_assembly("\n".join(lines)).as_bitcode())


_HIDDEN: Final = (llvm.Linkage.internal, llvm.Linkage.private, llvm.Linkage.appending)


def is_storable(result: Any) -> bool:
    """Whether the code holds no addresses of this process (as functions of the user that call Python do)."""
    return not result.library.has_dynamic_globals


@functools.cache
def _name_run_time_functions() -> None:
    """Tell LLVM where the functions of Numba's run-time library are, which it does itself only when it compiles.

    That takes a tenth of the time of ``rtsys.initialize``, which also compiles the counting of references: each stored
    kernel has its own copy of that, since Numba links it into all that it compiles.
    """
    for name, address in _nrt_python.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def deserialize(payload: bytes, calls_users: bool) -> CompileResult:
    """The kernel of ``serialize``; the caller vouches for where the bytes come from.

    ``calls_users``: its code may call whatever Numba has a library function for.
    """
    if calls_users:
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
        rtsys.initialize(cpu_target.target_context)
    elif b"NRT_" in payload:
        _name_run_time_functions()
    return CompileResult._rebuild(cpu_target.target_context, *pickle.loads(payload))  # type: ignore[no-any-return]
