"""Descriptions of calls of array kernels: how operands and results are folded into the axes that a kernel runs over."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from jitgrad.core.aval import ShapedArray
from jitgrad.core.linalg_errors import matrix_error
from jitgrad.core.primitive import ArrayCall, Folded, Operand, Primitive
from jitgrad.ops.blocks import host

__all__ = [
    "Pairs",
    "array_call",
    "axes_alike",
    "call_of",
    "flat",
    "numbers",
    "rows",
    "slabs",
    "stack",
    "vectors",
    "whole",
]

Array = np.ndarray[Any, Any]
Pairs: TypeAlias = tuple[tuple[tuple[int, int], tuple[int, int]], ...]


def whole(x: Operand) -> Folded:
    """All axes as they are."""
    return Folded(x.position, tuple((i,) for i in range(x.ndim)))


def flat(x: Operand) -> Folded:
    """(elements,)"""
    return Folded(x.position, (tuple(range(x.ndim)),))


def stack(x: Operand) -> Folded:
    """(count, rows, columns): a stack of matrices."""
    return Folded(x.position, (tuple(range(x.ndim - 2)), (x.ndim - 2,), (x.ndim - 1,)))


def vectors(x: Operand) -> Folded:
    """(count, 1, elements): a stack of vectors as one-row matrices."""
    return Folded(x.position, (tuple(range(x.ndim - 1)), (), (x.ndim - 1,)))


def numbers(x: Operand) -> Folded:
    """(count, 1, 1): numbers as matrices."""
    return Folded(x.position, (tuple(range(x.ndim)), (), ()))


def rows(x: Operand, count: int = 1) -> Folded:
    """(rows, elements): a row for each place of the axes before the last ``count``."""
    first = x.ndim - count
    return Folded(x.position, (tuple(range(first)), tuple(range(first, x.ndim))))


def slabs(x: Operand, axis: int) -> Folded:
    """(before, extent of the axis, behind)"""
    return Folded(x.position, (tuple(range(axis)), (axis,), tuple(range(axis + 1, x.ndim))))


def axes_alike(a: Operand, b: Operand, count: int | None = None) -> Pairs:
    """Each of the first ``count`` axes (all by default) has the same extent in both."""
    return tuple(((a.position, i), (b.position, i)) for i in range(a.ndim if count is None else count))


# --------------------------------------------------------------------------- running them


def _operands(arrays: Sequence[Any]) -> list[Operand]:
    return [Operand(i, tuple(a.shape), a.dtype) for i, a in enumerate(arrays)]


def call_of(primitive: Primitive, inputs: Sequence[Any], outputs: Sequence[Any], params: dict[str, Any]) -> Any:
    """The call that computes a primitive on values of these shapes and dtypes; None where there is none."""
    describe = getattr(primitive.impl, "call", None)
    return None if describe is None else describe(*_operands([*inputs, *outputs]), **params)


def _folded(array: Array, groups: tuple[tuple[int, ...], ...]) -> Array:
    shape = array.shape
    if len(groups) == len(shape) and all(len(g) == 1 for g in groups):
        return array
    return array.reshape([math.prod([shape[i] for i in g]) for g in groups])


def array_call(
    *, infer: Callable[..., Sequence[ShapedArray] | ShapedArray], called: str | None = None, **rules: Any
) -> Callable[[Callable[..., ArrayCall]], Primitive]:
    """Define a primitive by the call of an array kernel: the decorated function, of operands, results and parameters,
    describes it. It runs on its own and as part of kernels alike. ``called``: how messages name the operation; the rest
    as for ``host``.
    """

    def decorate(describe: Callable[..., ArrayCall]) -> Primitive:
        @functools.wraps(describe)
        def run(*arrays: Array, **params: Any) -> Any:
            found = infer(*arrays, **params)
            avals = [found] if isinstance(found, ShapedArray) else list(found)
            results = [np.empty(a.shape, a.dtype) for a in avals]
            values = [*map(np.ascontiguousarray, arrays), *results]
            for k, a in enumerate(arrays):
                if not a.ndim:
                    values[k] = values[k].reshape(())
            call = describe(*_operands(values), **params)
            arguments = [_folded(values[a.position], a.groups) if type(a) is Folded else a for a in call.arguments]
            try:
                call.kernel(*arguments)
            except np.linalg.LinAlgError as error:
                raise matrix_error(f"{called or name} of shape {arrays[0].shape}", str(error)) from None
            return results[0] if isinstance(found, ShapedArray) else tuple(results)

        name = describe.__name__
        return host(infer=infer, call=describe, **rules)(run)

    return decorate
