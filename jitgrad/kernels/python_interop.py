"""Functions for Numba as plain Python: the same source, run by the interpreter, which tests every access to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.core.aval import DTYPE_NAMES
from jitgrad.errors import DtypeError, GraphError, UnsupportedError
from jitgrad.kernels.python_form import meanings

__all__ = ["make_callback", "make_dispatcher", "slice_extent", "slice_start"]


def slice_start(start: int | None, stop: int | None, step: int | None, n: int) -> int:
    """Where a slice of an axis of extent n begins."""
    return slice(start, stop, step).indices(n)[0]


def slice_extent(start: int | None, stop: int | None, step: int | None, n: int) -> int:
    """How many elements a slice of an axis of extent n has."""
    return len(range(*slice(start, stop, step).indices(n)))


def _place(array: Any, index: Any) -> int:
    if not 0 <= index < array.size:
        raise GraphError(f"a compiled function reaches element {index} of an array of {array.size}")
    return int(index)


def _load(array: Any, index: Any) -> Any:
    return array.reshape(-1)[_place(array, index)]


def _store(array: Any, index: Any, value: Any) -> None:
    array.reshape(-1)[_place(array, index)] = value


def _carray(array: Any, shape: tuple[int, ...]) -> Any:
    if array.size != np.prod(shape):
        raise GraphError(f"a compiled function sees an array of shape {array.shape} as one of shape {shape}")
    return array.reshape(shape)


def _argument(dtype: str, ndim: int, what: str) -> Callable[[Any], Any]:
    def argument(value: Any) -> Any:
        made = np.asarray(value, None if isinstance(value, np.ndarray | np.generic) else dtype)
        if made.ndim != ndim or made.dtype != dtype:
            raise DtypeError(f"{what} must be an array of {dtype} with {ndim} axes, not {made.dtype} with {made.ndim}")
        return np.ascontiguousarray(made).reshape(made.shape)

    return argument


def make_dispatcher(
    name: str, source: str, constants: dict[str, Any], arguments: list[tuple[str, int, str]]
) -> Callable[..., Any]:
    """The function ``name`` of ``source`` as plain Python, silent about overflow and invalid values."""
    space = meanings()
    space.update({f"{d}_buffer": np.asarray for d in DTYPE_NAMES})
    space.update(load=_load, store=_store, carray=_carray)
    space.update(never_cache=lambda: None)
    space.update(slice_start=slice_start, slice_extent=slice_extent)
    space.update({f"argument{k}": _argument(*spec) for k, spec in enumerate(arguments)})
    space.update(constants)
    exec(compile(source, f"<jitgrad function {name}>", "exec"), space)
    function = space[name]

    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return run


def make_callback(name: str, source: str, function: Any, signature: tuple[str, ...]) -> Any:
    """C code cannot call the interpreter here: raises UnsupportedError."""
    raise UnsupportedError(f"{name}: C functions need compiled kernels (JITGRAD_KERNELS=compiled)")
