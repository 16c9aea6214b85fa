"""Making tensors of data."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from jitgrad.core.aval import aval_of, check_dtype
from jitgrad.core.modes import grad_mode
from jitgrad.core.trace import alias_of, current_graph
from jitgrad.errors import ArgumentError, DtypeError, GradientWarning, UnsupportedError
from jitgrad.ops.linear import convert, copy_of
from jitgrad.tensor.operands import as_tensor
from jitgrad.tensor.storage import storage_of
from jitgrad.tensor.tensor import Tensor, make

__all__ = ["asarray", "from_dlpack", "from_numpy", "tensor"]


def tensor(data: Any, dtype: Any = None, *, requires_grad: bool = False) -> Tensor:
    """A tensor on a copy of the data: numbers, (nested) lists, arrays, anything with ``__array__``, tensors.

    Floats become float64, NumPy dtypes are kept. What is tracked stays tracked: a list with tracked tensors is stacked,
    a tracked tensor copied. ``requires_grad=True`` makes a new leaf.

    Raises DtypeError for dtypes other than float64, float32, bool and integers (an explicit ``dtype=float`` converts
    other real numbers), ShapeError for ragged lists. Derivative: the cotangent itself.

    >>> import jitgrad as jg
    >>> jg.tensor([[1, 2], [3, 4]], dtype=float)
    tensor([[1., 2.],
            [3., 4.]])
    """
    wanted = None if dtype is None else check_dtype(dtype, "tensor")
    found = as_tensor(_real(data, wanted), "tensor")
    if wanted is None:
        wanted = found.dtype
    if found.is_traced or (found._edge is not None and grad_mode.get()):
        if not requires_grad:
            if found.dtype != wanted:
                return convert(found, dtype=wanted)  # type: ignore[no-any-return]
            return copy_of(found) if isinstance(data, Tensor) else found
        if alias_of(found) is None:  # detached data has no gradient to lose
            warnings.warn(
                "jg.tensor(..., requires_grad=True) of tracked data makes a new leaf through which no gradient flows back; "
                "say x.detach().clone().requires_grad_() if that is meant, or leave requires_grad out",
                GradientWarning,
                stacklevel=2,
            )
    graph = current_graph()
    if graph is not None and not requires_grad:
        return convert(found, dtype=wanted) if found.dtype != wanted else copy_of(found)  # type: ignore[no-any-return]
    array = np.array(found._array("tensor()"), wanted, order="C")
    made = make(array, aval_of(array))
    made._origin = "numpy"
    if requires_grad:
        made._track()
    return made


def _real(data: Any, wanted: np.dtype[Any] | None) -> Any:
    """Data of real numbers in other dtypes (float16, longdouble, objects), converted if a dtype is given."""
    if wanted is None or isinstance(data, Tensor | bool | int | float):
        return data
    if isinstance(data, np.ndarray | np.generic) and data.dtype.kind in "fO":
        try:
            return np.asarray(data).astype(wanted)
        except (TypeError, ValueError) as error:
            raise DtypeError(f"tensor: the {data.dtype} data do not convert to {wanted}: {error}") from None
    return data


def asarray(data: Any, dtype: Any = None, *, copy: bool | None = None) -> Tensor:
    """A tensor of the data, on the memory of an ndarray where no conversion is needed; tensors pass through.

    ``copy``: True always copies, False raises ArgumentError where a copy is needed. Raises DtypeError for dtypes that
    are not supported, ShapeError for ragged lists.
    """
    wanted = None if dtype is None else check_dtype(dtype, "asarray")
    found = as_tensor(_real(data, wanted), "asarray")
    shares = isinstance(data, Tensor) or (isinstance(data, np.ndarray) and _same_memory(found, data))
    if wanted is not None and wanted != found.dtype:
        if copy is False:
            raise ArgumentError(f"asarray: converting {found.dtype} to {wanted} needs a copy, which copy=False forbids")
        return convert(found, dtype=wanted)  # type: ignore[no-any-return]
    if copy is False and not shares:
        raise ArgumentError(f"asarray: {type(data).__name__} data need a copy, which copy=False forbids")
    if copy and (shares or not isinstance(data, list | tuple)):
        return copy_of(found)  # type: ignore[no-any-return]
    if shares and not isinstance(data, Tensor):
        _share(found)
    return found


def _same_memory(found: Tensor, array: np.ndarray[Any, Any]) -> bool:
    return not found.is_traced and (found._value is array or bool(np.may_share_memory(found._value, array)))


def _share(found: Tensor) -> None:
    storage_of(found).foreign = True
    found._origin = "numpy"


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the memory of an ndarray: each sees the writes of the other.

    Writes by NumPy are not seen by version counters; ``detect_anomaly`` finds those that spoil a gradient. Raises
    DtypeError where the memory cannot be used as it is (dtype, byte order, alignment).

    >>> import jitgrad as jg, numpy as np
    >>> a = np.zeros(2)
    >>> t = jg.from_numpy(a)
    >>> a[0] = 5.0
    >>> t
    tensor([5., 0.])
    """
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"from_numpy takes an ndarray, not {type(array).__name__}; use jg.tensor for other data")
    found = as_tensor(array, "from_numpy")
    if array.size and not _same_memory(found, array):
        raise DtypeError(
            f"from_numpy: the memory of this {array.dtype} array (strides {array.strides}) cannot be shared as it is; "
            "use jg.tensor(array) for a copy"
        )
    _share(found)
    return found


def from_dlpack(obj: Any) -> Tensor:
    """A tensor on the memory of another library's CPU array (DLPack).

    Raises DtypeError for dtypes that are not supported, and what the other library raises for memory elsewhere.
    """
    if isinstance(obj, Tensor):
        return obj.detach()  # type: ignore[no-any-return]
    if not hasattr(obj, "__dlpack__"):
        raise UnsupportedError(f"from_dlpack takes an object with __dlpack__, not {type(obj).__name__}")
    return from_numpy(np.from_dlpack(obj))
