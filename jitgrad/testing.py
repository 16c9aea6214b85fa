"""For the tests of those who use the package: gradient checks, Hypothesis strategies, kernels as plain Python.

Hypothesis is imported when a strategy is asked for; it comes with ``pip install jitgrad[test]``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jitgrad import config
from jitgrad.autograd.check import gradcheck, gradgradcheck
from jitgrad.eager import forget_plans
from jitgrad.errors import JitgradError

__all__ = ["arrays", "broadcastable_shapes", "gradcheck", "gradgradcheck", "python_kernels", "shapes"]


class MissingHypothesis(JitgradError, ImportError):
    """Hypothesis is not installed."""


def _hypothesis(module: str) -> Any:
    try:
        return importlib.import_module(f"hypothesis.{module}")
    except ImportError as error:
        raise MissingHypothesis(f"strategies need Hypothesis ({error}): pip install jitgrad[test]") from None


def shapes(min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 4) -> Any:
    """A strategy for shapes; extents 0 and 1 and the 0-d shape are among them, unless excluded.

    >>> from hypothesis import given
    >>> @given(shapes(min_dims=1, max_dims=2))
    ... def property(shape):
    ...     assert 1 <= len(shape) <= 2
    >>> property()
    """
    return _hypothesis("extra.numpy").array_shapes(
        min_dims=min_dims, max_dims=max_dims, min_side=min_side, max_side=max_side
    )


def broadcastable_shapes(count: int = 2, max_dims: int = 3, min_side: int = 1, max_side: int = 4) -> Any:
    """A strategy for tuples of ``count`` shapes that broadcast together.

    >>> from hypothesis import given
    >>> @given(broadcastable_shapes(3))
    ... def property(three):
    ...     np.broadcast_shapes(*three)
    >>> property()
    """
    made = _hypothesis("extra.numpy").mutually_broadcastable_shapes(
        num_shapes=count, max_dims=max_dims, min_side=min_side, max_side=max_side
    )
    return made.map(lambda found: found.input_shapes)


def arrays(
    shape: Any = None,
    dtype: Any = np.float64,
    *,
    low: float = -3.0,
    high: float = 3.0,
    avoid: tuple[float, ...] = (),
    margin: float = 1e-3,
    contiguous: bool | None = None,
) -> Any:
    """A strategy for float arrays on which gradients can be checked, finite and within ``[low, high]``.

    ``shape``: a shape or a strategy for shapes (default: ``shapes()``). ``avoid``: points where the derivative jumps,
    kept ``margin`` away. ``contiguous``: True for C order only, False for strided views only, None for a mix of
    C order, transposed, strided and reversed arrays.

    >>> from hypothesis import given
    >>> @given(arrays(shapes(min_side=1), low=-1, high=1, avoid=(0.0,)))
    ... def property(x):
    ...     assert np.all(np.abs(x) >= 1e-3)
    >>> property()
    """
    st = _hypothesis("strategies")
    extra = _hypothesis("extra.numpy")
    made = np.dtype(dtype)
    width = made.itemsize * 8
    low_bound, high_bound = float(made.type(low)), float(made.type(high))

    def clear(value: float) -> float:
        for point in avoid:
            if abs(value - point) < margin:
                return point + margin if point + margin <= high_bound else point - margin
        return value

    elements = st.floats(low_bound, high_bound, width=width, allow_subnormal=False).map(clear)
    layouts = {True: ["c"], False: ["stride", "reverse"], None: ["c", "transpose", "stride", "reverse"]}[contiguous]

    def laid_out(drawn: tuple[Any, str]) -> Any:
        array, layout = drawn
        if layout == "transpose":
            return np.array(array.T, order="C").T
        if layout == "stride" and array.ndim:
            wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, made)
            wide[..., ::2] = array
            return wide[..., ::2]
        if layout == "reverse" and array.ndim:
            return np.array(array[..., ::-1], order="C")[..., ::-1]
        return array

    sizes = shapes() if shape is None else shape
    drawn = st.tuples(extra.arrays(made, sizes, elements=elements), st.sampled_from(layouts))
    return drawn.map(laid_out)


@contextmanager
def python_kernels() -> Iterator[None]:
    """Run kernels as plain Python inside: nothing is compiled, and a rule can be stepped through.

    Meant for one thread at a time: what other threads run meanwhile may be in either form.

    >>> import jitgrad as jg
    >>> with jg.testing.python_kernels():
    ...     jg.exp(0.0)
    tensor(1.)
    """
    with config.override(kernels="python"):
        forget_plans()
        try:
            yield
        finally:
            forget_plans()
