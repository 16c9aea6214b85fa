"""Descriptions of calls of array kernels: how operands and results are folded into the axes that a kernel runs over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from jitgrad.core.primitive import Folded, Operand, Primitive

__all__ = [
    "Pairs",
    "axes_alike",
    "call_of",
    "flat",
    "operands",
    "rows",
    "slabs",
    "square",
    "stack",
    "whole",
]

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


def rows(x: Operand, count: int = 1) -> Folded:
    """(rows, elements): a row for each place of the axes before the last ``count``."""
    first = x.ndim - count
    return Folded(x.position, (tuple(range(first)), tuple(range(first, x.ndim))))


def slabs(x: Operand, axis: int, count: int = 1) -> Folded:
    """(before, extent of ``count`` neighbouring axes, behind)"""
    stop = axis + count
    return Folded(x.position, (tuple(range(axis)), tuple(range(axis, stop)), tuple(range(stop, x.ndim))))


def square(a: Operand) -> Pairs:
    """The last two axes have the same extent."""
    return (((a.position, a.ndim - 2), (a.position, a.ndim - 1)),)


def axes_alike(a: Operand, b: Operand, count: int | None = None) -> Pairs:
    """Each of the first ``count`` axes (all by default) has the same extent in both."""
    return tuple(((a.position, i), (b.position, i)) for i in range(a.ndim if count is None else count))


def operands(values: Sequence[Any]) -> list[Operand]:
    """Operands and results, for a description."""
    return [Operand(i, tuple(v.shape), v.dtype) for i, v in enumerate(values)]


def call_of(primitive: Primitive, inputs: Sequence[Any], outputs: Sequence[Any], params: dict[str, Any]) -> Any:
    """The call that computes a primitive on values of these shapes and dtypes; None where there is none."""
    describe = getattr(primitive.impl, "call", None)
    return None if describe is None else describe(*operands([*inputs, *outputs]), **params)
