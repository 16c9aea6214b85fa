"""Guards: one compiled call that tells whether arguments are arrays and numbers like those of an earlier call.

Asking NumPy for type, dtype, shape and flags takes 0.3 us an array, which is more than a small kernel. A guard compares
the fields of the objects with a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.kernels.array_fields import FIELD_OFFSETS
from jitgrad.kernels.kernel import entry_point

__all__ = ["NUMBERS", "USABLE", "guard_of"]

USABLE: Final = 0x101
"""In ``ndarray.flags.num``: C-contiguous and aligned."""

NUMBERS: Final[Mapping[type, Any]] = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_)}
"""Python's own numbers, with the dtypes of the arrays that stand for them."""


def guard_of(arguments: Sequence[Any], flags: int) -> tuple[Callable[..., int], np.ndarray[Any, Any]]:
    """A function of as many objects and a table, and the table: 1 if all are ndarrays of exactly the same dtypes and shapes
    as these, with these ``flags`` set, and Python numbers of the same types, else 0.

    A dtype that is equal but another object counts as different, as subclasses do.
    """
    at = FIELD_OFFSETS
    table: list[int] = [id(np.ndarray), flags]
    names = [f"o{k}" for k in range(len(arguments))]
    lines = [f"def guard({', '.join([*names, 'table'])}):", "    kind = load(table, 0)", "    flags = load(table, 1)"]
    lines.append("    at = 2")
    for name, a in zip(names, arguments, strict=True):
        if type(a) in NUMBERS:
            table.append(id(type(a)))
            lines += [f"    if read64({name}, {at['type']}) != load(table, at):", "        return 0", "    at += 1"]
            continue
        table += [id(a.dtype), a.ndim, *a.shape]
        lines += [
            f"    if read64({name}, {at['type']}) != kind or read64({name}, {at['dtype']}) != load(table, at):",
            "        return 0",
            f"    rank = read32({name}, {at['nd']})",
            f"    if rank != load(table, at + 1) or read32({name}, {at['flags']}) & flags != flags:",
            "        return 0",
            f"    dims = read64({name}, {at['dims']})",
            "    for k in range(rank):",
            "        if read64(dims, 8 * k) != load(table, at + 2 + k):",
            "            return 0",
            "    at += 2 + rank",
        ]
    lines.append("    return 1")
    signature = (*("o" for _ in names), "b:int64", "r:int64")
    return entry_point("guard", "\n".join(lines) + "\n", signature), np.array(table, np.int64)
