"""What an operation takes: anything array-like as a tensor, and Python numbers in the dtype that the others decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.core.aval import FLOAT32, FLOAT64, FLOATS, INT64, aval_of, check_dtype, make_aval, result_dtype
from jitgrad.core.graph import Constant, Extent, Tracer, is_number
from jitgrad.core.primitive import Elementwise, Primitive
from jitgrad.core.trace import current_graph, is_tracing, note_read, operand_for
from jitgrad.errors import DtypeError, ShapeError
from jitgrad.ops.linear import convert, stack_values
from jitgrad.tensor.tensor import Tensor, make

__all__ = [
    "SCALARS",
    "as_tensor",
    "constant",
    "elementwise_operands",
    "is_operand",
    "number_constant",
    "number_operator",
    "operand",
    "promoted",
    "wrap",
]

SCALARS: Final = (bool, int, float)


def wrap(data: Any) -> Tensor:
    """An untracked tensor on an ndarray or a tracer, as it is."""
    if isinstance(data, Tracer):
        return make(data, data.own_aval)
    return make(data, aval_of(data))


def as_tensor(obj: Any, what: str = "argument") -> Tensor:
    """A tensor of anything array-like; tensors pass, ndarrays share their memory, lists are copied.

    Raises DtypeError for dtypes that are not supported, ShapeError for ragged lists.
    """
    if isinstance(obj, Tensor):
        if obj._weak:  # an array of a number decides dtypes
            return make(obj._value, obj._aval)
        return operand_for(obj) if is_tracing() else obj
    if isinstance(obj, np.ndarray):
        if type(obj) is not np.ndarray:
            obj = _base_array(obj, what)
        elif obj.dtype in FLOATS:
            flags = obj.flags
            if flags.c_contiguous and flags.aligned:  # the usual case, without detours
                return make(obj, make_aval(obj.shape, obj.dtype, True))
        dtype = check_dtype(obj.dtype, what)
        itemsize = dtype.itemsize
        if obj.dtype != dtype or not obj.flags.aligned or any(s % itemsize for s in obj.strides):
            note_read(obj)  # a trace gets a copy
            obj = np.array(obj, dtype)
        return wrap(obj)
    if isinstance(obj, SCALARS):
        return wrap(_scalar_array(obj, None))
    if isinstance(obj, list | tuple):
        return _of_sequence(obj, what)
    if isinstance(obj, complex):
        raise DtypeError(f"{what}: complex numbers are not supported; use real and imaginary parts")
    try:
        array = np.asarray(obj)
    except (ValueError, TypeError) as error:
        raise DtypeError(f"{what}: cannot make an array of {type(obj).__name__}: {error}") from None
    return as_tensor(array, what)


def _base_array(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """A subclass (``np.memmap``) as the ndarray that it is; those whose meaning would be lost are refused."""
    if isinstance(array, np.ma.MaskedArray):
        raise DtypeError(f"{what}: masked arrays are not supported; fill them first (a.filled(0.0)), or use jg.where")
    if isinstance(array, np.matrix):
        raise DtypeError(f"{what}: np.matrix is not supported, its * means something else; use np.asarray(m)")
    return np.asarray(array)


def _scalar_array(value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    try:
        array = np.array(value, dtype)
        if array.dtype.kind == "O":
            raise OverflowError("it is too large for every integer type; write it as a float")
        return array
    except OverflowError as error:
        raise DtypeError(f"{value} does not fit {dtype or 'int64'}: {error}") from None


def _of_sequence(items: Sequence[Any], what: str) -> Tensor:
    """Lists of numbers become arrays; lists with tensors inside are stacked and stay tracked."""
    if _contains_tensor(items):
        parts = [as_tensor(i, what) for i in items]
        shapes = {p.shape for p in parts}
        if len(shapes) > 1:
            raise ShapeError(f"{what}: a ragged list, with elements of shapes {', '.join(map(str, sorted(shapes)))}")
        return stack_values(parts)  # type: ignore[no-any-return]
    try:
        array = np.array(items)
    except ValueError:
        raise ShapeError(f"{what}: a ragged list; all rows must have the same length") from None
    if array.size == 0 and array.dtype == FLOAT64:
        return wrap(array)
    return as_tensor(array, what)


def _contains_tensor(items: Any) -> bool:
    return any(isinstance(i, Tensor) or (isinstance(i, list | tuple) and _contains_tensor(i)) for i in items)


# --------------------------------------------------------------------------- operands

_WEAK: Final = {"f": 0.0, "i": 0, "b": False}  # Python numbers that promote as a weak tensor does
_constants: dict[tuple[float, np.dtype[Any]], Tensor] = {}


def number_constant(value: Any, dtype: np.dtype[Any]) -> Tensor:
    """A Python number as a 0-d tensor; frequent ones are kept (never zero, whose sign a look-up would lose)."""
    if value:
        found = _constants.get((value, dtype))
        if found is not None:
            return found
    try:
        array = np.array(value, dtype)
    except (OverflowError, ValueError) as error:
        raise DtypeError(f"the number {value} does not fit dtype {dtype}: {error}") from None
    array.flags.writeable = False
    made = wrap(array)
    if value and not math.isnan(value):
        if len(_constants) > 512:
            _constants.clear()
        _constants[value, dtype] = made
    return made


def elementwise_operands(primitive: Primitive, impl: Elementwise, args: tuple[Any, ...]) -> list[Tensor]:
    """The operands in the one dtype that NumPy's promotion gives, each conversion recorded as an operation."""
    name, fixed = primitive.name, impl.fixed
    if not fixed and (usual := _of_one_dtype(args)) is not None and usual[0]._aval.dtype.kind not in impl.refuses:
        return usual
    converted = [a if type(a) is Tensor else operand(a, f"{name}, operand {i + 1}") for i, a in enumerate(args)]
    dtype = promoted(*[a for i, a in enumerate(converted) if i not in fixed])
    if impl.result == "float" and dtype.kind != "f":
        dtype = FLOAT64
    dtype = check_dtype(dtype, name)
    if dtype.kind in impl.refuses:
        raise DtypeError(f"{name} is not defined for {dtype} operands; convert them first (.astype(...))")
    operands: list[Tensor] = []
    for i, a in enumerate(converted):
        wanted = np.dtype(fixed[i]) if i in fixed else dtype
        if not isinstance(a, Tensor):
            operands.append(number_constant(a, wanted))
        elif a.dtype != wanted:
            operands.append(_converted(a, wanted))
        else:
            operands.append(a)
    return operands


def _of_one_dtype(args: tuple[Any, ...]) -> list[Tensor] | None:
    """The usual operands, tensors of one float dtype and Python numbers, as they are; None for others."""
    first = args[0]
    if type(first) is not Tensor or first._weak:
        return None
    dtype = first._aval.dtype
    if dtype is not FLOAT64 and dtype is not FLOAT32:
        return None
    operands = [first]
    for a in args[1:]:
        kind = type(a)
        if kind is Tensor:
            if a._weak or a._aval.dtype is not dtype:
                return None
            operands.append(a)
        elif kind is float or kind is int:
            operands.append(number_constant(a, dtype))
        else:
            return None
    return operands


def operand(obj: Any, what: str) -> Any:
    """A Python number as it is, anything else as a tensor."""
    kind = type(obj)
    if kind is Extent:  # read from a shape by the user's code: a number like any other
        return int(obj)
    return obj if kind in SCALARS or (kind is Tensor and obj._weak) else as_tensor(obj, what)


def promoted(*operands: Any) -> np.dtype[Any]:
    """The common dtype of tensors and Python numbers; beside a float dtype alone, numbers decide nothing."""
    deciding: list[Any] = [
        (a._aval.dtype if not a._weak else _WEAK[a._aval.dtype.kind]) if isinstance(a, Tensor) else a for a in operands
    ]
    found: np.dtype[Any] | None = None
    for d in deciding:
        if type(d) not in SCALARS:
            if d not in FLOATS or (found is not None and d != found):
                return result_dtype(*deciding)
            found = d
    return result_dtype(*deciding) if found is None else found


def _converted(a: Tensor, dtype: np.dtype[Any]) -> Tensor:
    if a._edge is None and not isinstance(a._value, Tracer):
        if is_number(a._value):
            return number_constant(a._value.item(), dtype)
        if current_graph() is None:
            return wrap(a._value.astype(dtype))
    return convert(a, dtype=dtype)  # type: ignore[no-any-return]


def is_operand(obj: Any) -> bool:
    """Whether an operator should try to make a tensor of the other operand."""
    return isinstance(obj, bool | int | float | complex | np.ndarray | np.generic | list | tuple | Tensor) or hasattr(
        obj, "__array__"
    )


def constant(value: Any, dtype: Any, like: Tensor) -> Tensor:
    """A tensor of a number or of an array that nobody else writes to, traced where ``like`` is."""
    if isinstance(like._value, Tracer):
        return wrap(Tracer(like._value.graph, Constant(np.array(value, dtype, order="C"), made=True)))
    return wrap(np.asarray(value, dtype))


# --------------------------------------------------------------------------- Python numbers


def number_operator(function: Callable[..., Any], of_bools: bool = False) -> Callable[..., Any]:
    """An operator that makes a weak number of weak ones, as Python makes a number of numbers; what a function makes of them
    is an array. ``of_bools``: two bools stay bools, where Python counts with them."""

    def operate(*operands: Any) -> Any:
        if not all(map(_is_number_or_weak, operands)):
            return function(*operands)
        if not of_bools:
            operands = tuple([_counted(a) for a in operands])
        results = function(*operands)
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, Tensor):
                result._weak = True
        return results

    return operate


def _is_number_or_weak(value: Any) -> bool:
    return value._weak if isinstance(value, Tensor) else type(value) in SCALARS or type(value) is Extent


def _counted(number: Any) -> Any:
    """A bool as an int."""
    if not isinstance(number, Tensor):
        return int(number) if type(number) is bool else number
    if number._aval.dtype.kind != "b":
        return number
    counted = convert(number, dtype=INT64)
    counted._weak = True
    return counted
