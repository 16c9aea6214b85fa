"""Guards: one compiled call that tells whether arguments are arrays like those of an earlier call.

Asking NumPy for type, dtype, shape and flags takes 0.3 us an array, which is more than a small kernel. A guard compares
the fields of the array objects with a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.kernels.kernel import entry_point

__all__ = ["guard_of"]

_OFFSETS: Final = {"type": 8, "nd": 24, "dims": 32, "dtype": 56, "flags": 64}  # as in buffer.FIELD_OFFSETS


def guard_of(arrays: Sequence[np.ndarray[Any, Any]], flags: int) -> tuple[Callable[..., int], np.ndarray[Any, Any]]:
    """A function of as many objects and a table, and the table: 1 if all are ndarrays of exactly the same dtypes and shapes
    as these, with these ``flags`` set, else 0.

    A dtype that is equal but another object counts as different, as subclasses of ndarray do.
    """
    table: list[int] = [id(np.ndarray), flags]
    for a in arrays:
        table += [id(a.dtype), a.ndim, *a.shape]
    names = [f"o{k}" for k in range(len(arrays))]
    lines = [f"def guard({', '.join([*names, 'table'])}):", "    kind = load(table, 0)", "    flags = load(table, 1)"]
    lines.append("    at = 2")
    for name in names:
        lines += [
            f"    if read64({name}, {_OFFSETS['type']}) != kind or read64({name}, {_OFFSETS['dtype']}) != load(table, at):",
            "        return 0",
            f"    rank = read32({name}, {_OFFSETS['nd']})",
            f"    if rank != load(table, at + 1) or read32({name}, {_OFFSETS['flags']}) & flags != flags:",
            "        return 0",
            f"    dims = read64({name}, {_OFFSETS['dims']})",
            "    for k in range(rank):",
            "        if read64(dims, 8 * k) != load(table, at + 2 + k):",
            "            return 0",
            "    at += 2 + rank",
        ]
    lines.append("    return 1")
    signature = (*("o" for _ in names), "b:int64", "r:int64")
    return entry_point("guard", "\n".join(lines) + "\n", signature), np.array(table, np.int64)
