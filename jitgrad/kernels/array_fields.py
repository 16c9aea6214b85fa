"""Where the fields of an ndarray object are (tested when kernels are first compiled)."""

from __future__ import annotations

from typing import Final

__all__ = ["FIELD_OFFSETS"]

FIELD_OFFSETS: Final = {  # in PyArrayObject_fields, 64-bit
    "type": 8, "data": 16, "nd": 24, "dims": 32, "strides": 40, "dtype": 56, "flags": 64,
}  # fmt: skip
