"""Making tensors of data."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.aval import aval_of, check_dtype
from jitgrad.errors import DtypeError
from jitgrad.ops.linear import convert, copy_of
from jitgrad.tensor.engine import as_tensor
from jitgrad.tensor.storage import storage_of
from jitgrad.tensor.tensor import Tensor, make

__all__ = ["asarray", "from_dlpack", "from_numpy", "tensor"]


def tensor(data: Any, dtype: Any = None, *, requires_grad: bool = False) -> Tensor:
    """A tensor on a copy of the data.

    Floats become float64, NumPy dtypes are kept. A list with tracked scalars is stacked and stays tracked. Raises
    DtypeError for dtypes other than float64, float32, bool and integers, ShapeError for ragged lists.

    >>> import jitgrad as jg
    >>> jg.tensor([[1, 2], [3, 4]], dtype=float)
    tensor([[1., 2.],
            [3., 4.]])
    """
    found = as_tensor(data, "tensor")
    wanted = found.dtype if dtype is None else check_dtype(dtype, "tensor")
    if found._edge is not None and not isinstance(data, Tensor):
        return found if found.dtype == wanted else convert(found, dtype=wanted)  # type: ignore[no-any-return]
    array = np.array(found._array("tensor()"), wanted, order="C")
    made = make(array, aval_of(array))
    made._origin = "numpy"
    if requires_grad:
        made.requires_grad_()
    return made


def asarray(data: Any, dtype: Any = None, *, copy: bool | None = None) -> Tensor:
    """A tensor of the data, sharing memory with an ndarray where no conversion is needed; tensors pass through."""
    if isinstance(data, np.ndarray) and not copy and (dtype is None or np.dtype(dtype) == data.dtype):
        return from_numpy(data)
    found = as_tensor(data, "asarray")
    if dtype is not None and check_dtype(dtype, "asarray") != found.dtype:
        return convert(found, dtype=check_dtype(dtype, "asarray"))  # type: ignore[no-any-return]
    return copy_of(found) if copy else found


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the memory of an ndarray: each sees the writes of the other.

    Writes by NumPy are not seen by version counters; ``detect_anomaly`` finds those that spoil a gradient. Raises
    DtypeError where the memory cannot be used as it is (dtype, byte order, alignment).
    """
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"from_numpy takes an ndarray, not {type(array).__name__}; use jg.tensor for other data")
    found = as_tensor(array, "from_numpy")
    if found._value is not array:
        raise DtypeError(
            f"from_numpy: the memory of this {array.dtype} array (type {type(array).__name__}, strides {array.strides}) cannot be "
            "shared as it is; use jg.tensor(array) for a copy"
        )
    storage_of(found).shared = True
    found._origin = "numpy"
    return found


def from_dlpack(obj: Any) -> Tensor:
    """A tensor on the memory of another library's CPU array (DLPack)."""
    if isinstance(obj, Tensor):
        return obj.detach()
    return from_numpy(np.from_dlpack(obj))
