"""Abstract values: shape, dtype and layout of an array, interned so that they are cheap dictionary keys."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from jitgrad.errors import DtypeError

__all__ = [
    "DTYPE_NAMES",
    "FLOATS",
    "ShapedArray",
    "aval_of",
    "broadcasts_to",
    "check_dtype",
    "is_float",
    "make_aval",
    "result_dtype",
]

FLOAT32: Final = np.dtype(np.float32)
FLOAT64: Final = np.dtype(np.float64)
BOOL: Final = np.dtype(np.bool_)
INT64: Final = np.dtype(np.int64)
FLOATS: Final = (FLOAT64, FLOAT32)
DTYPE_NAMES: Final = ("bool", "float32", "float64", *(f"{k}{b}" for k in ("int", "uint") for b in (8, 16, 32, 64)))
"""The names of all dtypes that are supported."""
_SUPPORTED: Final = frozenset(map(np.dtype, DTYPE_NAMES))


class ShapedArray:
    """Shape, dtype and contiguity of a value; equal ones are normally the same object (identity is the hash)."""

    __slots__ = ("contiguous", "dtype", "ndim", "shape", "size")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], contiguous: bool) -> None:
        self.shape = shape
        self.dtype = dtype
        self.contiguous = contiguous
        self.ndim = len(shape)
        size = 1
        for extent in shape:
            size *= extent
        self.size = size

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


_interned: dict[tuple[tuple[int, ...], np.dtype[Any], bool], ShapedArray] = {}
_MOST_INTERNED: Final = 8192


def make_aval(shape: tuple[int, ...], dtype: np.dtype[Any], contiguous: bool = True) -> ShapedArray:
    """The interned aval of these three; forgetting old ones only costs a new plan."""
    key = (shape, dtype, contiguous)
    found = _interned.get(key)
    if found is None:
        if len(_interned) >= _MOST_INTERNED:
            _interned.clear()
        shape = tuple(map(int, shape))  # an extent that knows whose it is would keep a whole graph alive
        found = _interned[shape, dtype, contiguous] = ShapedArray(shape, dtype, contiguous)
    return found


def aval_of(array: np.ndarray[Any, Any]) -> ShapedArray:
    """The aval of an ndarray."""
    return make_aval(array.shape, array.dtype, array.flags.c_contiguous)


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to the other one."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether values of this dtype can carry a gradient."""
    return dtype in FLOATS


def check_dtype(dtype: Any, what: str) -> np.dtype[Any]:
    """The NumPy dtype in native byte order, or a ``DtypeError`` that says what is supported."""
    try:
        made = np.dtype(dtype)
    except TypeError as error:
        raise DtypeError(f"{what}: {dtype!r} is not a dtype ({error})") from None
    native = made.newbyteorder("=")
    if native not in _SUPPORTED:
        hint = "; convert to float64 first (.astype(float))" if native.kind in "fOUS" else ""
        raise DtypeError(f"{what}: dtype {made} is not supported; use float64, float32, bool or an integer type{hint}")
    return native  # type: ignore[no-any-return]


def result_dtype(*operands: Any) -> np.dtype[Any]:
    """NumPy 2 promotion of dtypes and Python scalars (the scalars are weak)."""
    try:
        return np.result_type(*operands)
    except OverflowError:  # a Python int that fits no integer type of the others
        return np.result_type(*(float(o) if type(o) is int else o for o in operands))
    except TypeError as error:
        raise DtypeError(f"no common dtype for {', '.join(map(str, operands))}: {error}") from None
