"""What the property tests share: kernels by mode, arrays in awkward layouts, and derivatives by finite differences.

Nothing here computes with jitgrad: oracles are NumPy and the definition of the derivative.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from jitgrad import config
from jitgrad.eager import forget_plans

Array = np.ndarray[Any, Any]

__all__ = ["LAYOUTS", "directional_derivative", "examples", "kernels", "laid_out", "layouts", "seeds"]


def examples(count: int, **options: Any) -> settings:
    """Settings for a test that wants ``count`` examples in the usual profiles and proportionally more at night."""
    scaled = max(1, count * settings.default.max_examples // 50)
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)
    return settings(max_examples=scaled, suppress_health_check=checks, **options)


@contextlib.contextmanager
def kernels(mode: str) -> Iterator[None]:
    """Run kernels ``compiled``, or as plain ``python``, which costs no compilation."""
    with config.override(kernels=mode):
        forget_plans()
        try:
            yield
        finally:
            forget_plans()


# --------------------------------------------------------------------------------------------- arrays


def _padded(array: Array) -> Array:
    """The array as the middle of every second element of a larger one."""
    big = np.zeros(tuple(2 * n + 2 for n in array.shape), array.dtype)
    view = big[(*(slice(1, 1 + 2 * n, 2) for n in array.shape), ...)]
    view[...] = array
    return view


def _reversed(array: Array) -> Array:
    index = (slice(None, None, -1),) * array.ndim
    return np.ascontiguousarray(array[index])[index] if array.ndim else array


def _rows_apart(array: Array) -> Array:
    """Contiguous rows with gaps between them."""
    if not array.ndim:
        return array
    big = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
    view = big[..., : array.shape[-1]]
    view[...] = array
    return view


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": np.array,
    "transposed": lambda a: np.array(a, order="F"),
    "padded": _padded,
    "reversed": _reversed,
    "rows apart": _rows_apart,
}


def laid_out(array: Array, layout: str) -> Array:
    """A copy of the array whose memory is laid out in one of the ways of ``LAYOUTS``."""
    made = LAYOUTS[layout](array)
    assert made.shape == array.shape
    assert made.dtype == array.dtype
    return made


layouts = st.sampled_from(sorted(LAYOUTS))
seeds = st.integers(0, 2**32 - 1)


# --------------------------------------------------------------------------------------------- derivatives

# weights of the central formulas of order 2, 4, 6 and 8: f(+h)-f(-h), f(+2h)-f(-2h), ... over h
_FORMULAS = ((1 / 2,), (2 / 3, -1 / 12), (3 / 4, -3 / 20, 1 / 60), (4 / 5, -1 / 5, 4 / 105, -1 / 280))
_STEPS = (1e-2, 3e-3, 1e-3, 1e-4, 1e-5)


def directional_derivative(f: Callable[[float], float], precision: float = 4e-16) -> tuple[float, float]:
    """df/dt at t = 0 and a bound for its error, from the best of several step sizes.

    ``precision``: relative accuracy of the values of ``f``.

    The error of an estimate is taken from the formula of the next lower order, so that a kink within reach of a step
    shows: the caller must reject points where the error is not small.
    """
    best, error = np.nan, np.inf
    for h in _STEPS:
        differences = [f(k * h) - f(-k * h) for k in range(1, 5)]
        *_, sixth, eighth = (sum(w * d for w, d in zip(row, differences, strict=False)) / h for row in _FORMULAS)
        size = max((abs(d) for d in differences), default=0.0)
        # what rounding in f contributes cannot be seen in the difference of the two formulas alone
        bound = abs(eighth - sixth) + precision * (abs(f(h)) + size) / h
        if bound < error:
            best, error = eighth, bound
        if error < 1e-10 * max(1.0, abs(best)):
            break
    return float(best), float(error)


def random_directions(rng: np.random.Generator, arrays: Sequence[Array]) -> list[Array]:
    """A direction for each array; symmetric ones for symmetric matrices, on which an operation may insist."""
    return [_like(a, rng.uniform(-1.0, 1.0, a.shape)) for a in arrays]


def _like(array: Array, direction: Array) -> Array:
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] < 2:
        return direction
    turned = np.swapaxes(array, -1, -2)
    return (direction + np.swapaxes(direction, -1, -2)) / 2 if np.array_equal(array, turned) else direction
