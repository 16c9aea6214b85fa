"""BLAS and LAPACK for kernels, by the symbols that Numba exports for its own use.

An ``@intrinsic`` that calls ``numba_xxgemm`` compiles in a tenth of the time of ``a @ b``, and takes transposition as a
flag. The symbols are always there; behind them Numba finds SciPy's routine at the first call (which imports
``scipy.linalg``, 0.3 s), so a kernel that never reaches its BLAS branch never pays for it.

Arrays are C-contiguous, as in every kernel. BLAS sees such an array as its own transpose in column order: for products
the operands are swapped; routines of LAPACK say in ``jitgrad.core.blas_form`` what they compute. float64 and float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np import linalg as numba_linalg

__all__ = ["NAMESPACE"]

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _I8.as_pointer()
_PIVOT: Final = numba_linalg.F_INT_nbtype
_KINDS: Final = {types.float64: "d", types.float32: "s"}


class _Call:
    """One call under construction: the arguments of the intrinsic as arrays and numbers."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context = context
        self.builder = builder
        self.types = signature.args
        self.args = args
        self.dtype = next(t.dtype for t in signature.args if isinstance(t, types.Array) and t.dtype in _KINDS)
        self.kind = self.letter(_KINDS[self.dtype])

    def _array(self, i: int) -> Any:
        return self.context.make_array(self.types[i])(self.context, self.builder, self.args[i])

    def data(self, i: int) -> Any:
        """The address of the first element."""
        return self.builder.bitcast(self._array(i).data, _POINTER)

    def extent(self, i: int, axis: int) -> Any:
        return self.builder.extract_value(self._array(i).shape, axis)

    def stride(self, i: int) -> Any:
        """Length of a row, at least 1, as BLAS demands even of empty arrays."""
        n = self.extent(i, self.types[i].ndim - 1)
        return self.builder.select(self.builder.icmp_signed(">", n, _I64(1)), n, _I64(1))

    def flag(self, i: int) -> Any:
        """A bool argument as one bit."""
        return self.context.is_true(self.builder, self.types[i], self.args[i])

    def letter(self, text: str) -> Any:
        return ir.Constant(_I8, ord(text))

    def choice(self, flag: Any, yes: str, no: str) -> Any:
        return self.builder.select(flag, self.letter(yes), self.letter(no))

    def number(self, value: float) -> Any:
        """The address of a constant of the arrays' dtype."""
        constant = self.context.get_constant(self.dtype, value)
        return self.builder.bitcast(cgutils.alloca_once_value(self.builder, constant), _POINTER)

    def call(self, symbol: str, *values: Any) -> Any:
        """Call a routine; a negative status means that the call itself was wrong, or that SciPy is damaged."""
        kind = ir.FunctionType(_I32, [v.type for v in values])
        function = cgutils.get_or_insert_function(self.builder.module, kind, symbol)
        status = self.builder.call(function, values)
        wrong = self.builder.icmp_signed("<", status, _I32(0))
        numba_linalg.check_lapack_return(self.context, self.builder, self.builder.select(wrong, status, _I32(0)))
        return self.builder.sext(status, _I64)


def _routine(ranks: str, emit: Callable[[_Call], Any]) -> Any:
    """An intrinsic; ``ranks`` has for each argument a digit (an array of that rank), ``?`` (a bool), or ``i`` (a vector
    of pivots). The result is LAPACK's ``info``: 0, or what the routine says with it."""

    def typed(*args: Any) -> Any:
        numba_linalg._check_lapack_int_width()
        dtypes = set()
        for argument, rank in zip(args, ranks, strict=True):
            if rank == "?":
                continue
            if not isinstance(argument, types.Array) or argument.layout != "C":
                return None
            if rank == "i":
                if argument.dtype != _PIVOT or argument.ndim != 1:
                    return None
            elif argument.ndim != int(rank):
                return None
            else:
                dtypes.add(argument.dtype)
        if len(dtypes) != 1 or not dtypes.issubset(_KINDS):
            return None

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return emit(_Call(context, builder, signature, values))

        return types.int64(*args), generate

    names = ", ".join(f"a{i}" for i in range(len(ranks)))
    scope: dict[str, Any] = {"typed": typed}
    exec(f"def routine(typingctx, {names}):\n    return typed({names})", scope)
    return intrinsic(scope["routine"])


def _gemm(c: _Call) -> Any:
    """out = op(a) op(b); row-major, that is column-major out^T = op(b)^T op(a)^T."""
    ta, tb = c.flag(3), c.flag(4)
    inner = c.builder.select(ta, c.extent(0, 0), c.extent(0, 1))
    return c.call(
        "numba_xxgemm", c.kind, c.choice(tb, "t", "n"), c.choice(ta, "t", "n"), c.extent(2, 1), c.extent(2, 0), inner,
        c.number(1.0), c.data(1), c.stride(1), c.data(0), c.stride(0), c.number(0.0), c.data(2), c.stride(2),
    )  # fmt: skip


def _gemv(c: _Call) -> Any:
    """out += op(a) x."""
    return c.call(
        "numba_xxgemv", c.kind, c.choice(c.flag(3), "n", "t"), c.extent(0, 1), c.extent(0, 0),
        c.number(1.0), c.data(0), c.stride(0), c.data(1), c.number(1.0), c.data(2),
    )  # fmt: skip


def _getrf(c: _Call) -> Any:
    n = c.extent(0, 0)
    return c.call("numba_xxgetrf", c.kind, n, n, c.data(0), c.stride(0), c.data(1))


def _gesv(c: _Call) -> Any:
    return c.call(
        "numba_xgesv", c.kind, c.extent(0, 0), c.extent(1, 0), c.data(0), c.stride(0), c.data(2), c.data(1), c.stride(1)
    )


def _potrf(c: _Call) -> Any:
    return c.call("numba_xxpotrf", c.kind, c.choice(c.flag(1), "l", "u"), c.extent(0, 0), c.data(0), c.stride(0))


def _syevd(c: _Call) -> Any:
    letters = c.choice(c.flag(2), "v", "n"), c.choice(c.flag(3), "l", "u")
    return c.call("numba_ez_xxxevd", c.kind, *letters, c.extent(0, 0), c.data(0), c.stride(0), c.data(1))


def _gesdd(c: _Call) -> Any:
    """SVD of the transpose of a row-major array: its left vectors are the right ones of the array."""
    return c.call(
        "numba_ez_gesdd", c.kind, c.letter("s"), c.extent(0, 1), c.extent(0, 0), c.data(0), c.stride(0), c.data(1),
        c.data(3), c.stride(3), c.data(2), c.stride(2),
    )  # fmt: skip


def _geqrf(c: _Call) -> Any:
    return c.call("numba_ez_geqrf", c.kind, c.extent(0, 1), c.extent(0, 0), c.data(0), c.stride(0), c.data(1))


def _orgqr(c: _Call) -> Any:
    n = c.extent(0, 0)
    return c.call("numba_ez_xxgqr", c.kind, c.extent(0, 1), n, n, c.data(0), c.stride(0), c.data(1))


NAMESPACE: Final[dict[str, Any]] = {
    "pivot_type": _PIVOT,
    "gemm": _routine("222??", _gemm),
    "gemv": _routine("211?", _gemv),
    "getrf": _routine("2i", _getrf),
    "gesv": _routine("22i", _gesv),
    "potrf": _routine("2?", _potrf),
    "syevd": _routine("21??", _syevd),
    "gesdd": _routine("2122", _gesdd),
    "geqrf": _routine("21", _geqrf),
    "orgqr": _routine("21", _orgqr),
}
