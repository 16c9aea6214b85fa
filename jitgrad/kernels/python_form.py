"""The same kernels as plain Python: the emitted source run by NumPy, without Numba.

For debugging a rule, and for tests that would otherwise compile thousands of kernels. Elementwise loops run once on whole
arrays: ``range(n)`` yields one index that means "all of it".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jitgrad.core import blas_form, linalg_errors, scalar
from jitgrad.core.aval import DTYPE_NAMES

__all__ = ["make", "meanings"]

_ALL = slice(None)


def _elementwise_namespace() -> dict[str, Any]:
    def load(array: Any, index: Any) -> Any:
        return array

    def store(array: Any, index: Any, value: Any) -> None:
        array[...] = value

    return {
        "load": load,
        "store": store,
        "size": lambda array: 1,
        "last_extent": lambda array: 1,
        "rows": lambda array: 1,
        "step": lambda array, out: 0,
        "origin": lambda array, out, row: 0,
    }


def _loop_namespace() -> dict[str, Any]:
    def store(array: Any, index: Any, value: Any) -> None:
        array.reshape(-1)[index] = value

    return {
        "load": lambda array, index: array.reshape(-1)[index],
        "store": store,
        "carray": lambda array, shape: array.reshape(shape),
    }


def meanings() -> dict[str, Any]:
    """What names mean in plain Python, in kernels and in functions for Numba alike."""
    return {
        **{n: getattr(m, n) for m in (scalar, blas_form, linalg_errors) for n in m.__all__},
        "np": np,
        "INF": np.inf,
        "NAN": np.nan,
        "boolean": _typed("bool"),
        **{d: _typed(d) for d in DTYPE_NAMES if d != "bool"},
        "data": lambda array: array,
        **{f"{kind}_{d}": _part_maker(d) for d in DTYPE_NAMES for kind in ("part", "pointer")},
        **{f"kept_{d}": functools.partial(np.empty, dtype=d) for d in DTYPE_NAMES},
    }


def make(name: str, source: str, signature: tuple[str, ...], extras: Mapping[str, Any]) -> Callable[..., Any]:
    """The function ``name`` of ``source`` as plain Python, silent about overflow and invalid values."""
    namespace = meanings()
    elementwise = "size(" in source or "last_extent(" in source
    namespace.update(_elementwise_namespace() if elementwise else _loop_namespace())
    namespace.update(extras)
    exec(compile(source, f"<jitgrad kernel {name}>", "exec"), namespace)
    function = namespace[name]

    def run(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return run


def _part_maker(dtype: str) -> Callable[..., Any]:
    """How a part is taken out of the working memory."""
    width = np.dtype(dtype).itemsize
    return lambda work, offset, count, number=0: work[offset : offset + count * width].view(dtype)


def _typed(dtype: str) -> Callable[[Any], Any]:
    """The conversion that a dtype's name stands for in a kernel."""
    made = np.dtype(dtype)

    def convert(value: Any) -> Any:
        return value.astype(made) if isinstance(value, np.ndarray) else made.type(value)

    return convert
