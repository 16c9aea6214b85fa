"""Methods and properties of tensors that move shapes, where their form differs from the function of that name."""

from __future__ import annotations

from typing import Any

from jitgrad.ops.linear import copy_of
from jitgrad.ops.shape import broadcast_to, matrix_transpose, permute_dims
from jitgrad.ops.shape import reshape as reshape_function
from jitgrad.tensor.remembered import remembered_function
from jitgrad.tensor.tensor import Tensor

__all__ = ["METHODS"]


def _gathered(items: tuple[Any, ...]) -> Any:
    """``x.f(2, 3)`` and ``x.f((2, 3))`` mean the same."""
    return items[0] if len(items) == 1 else items


def reshape(self: Tensor, *shape: Any, order: str = "C", copy: bool | None = None) -> Tensor:
    """The same elements with another shape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``; one extent may be -1.

    A view where the strides allow. Raises ShapeError where the numbers of elements differ.

    >>> import jitgrad as jg
    >>> jg.tensor([1.0, 2.0, 3.0, 4.0]).reshape(2, -1).shape
    (2, 2)
    """
    return reshape_function(self, _gathered(shape), order, copy=copy)  # type: ignore[no-any-return]


def transpose(self: Tensor, *axes: Any) -> Tensor:
    """A view with the axes in another order, reversed by default: ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``.

    All axes are named, as in NumPy; ``x.swapaxes(a, b)`` exchanges two. Raises ShapeError otherwise.
    """
    return permute_dims(self, _gathered(axes) if axes else None)  # type: ignore[no-any-return]


def broadcast_method(self: Tensor, *shape: Any) -> Tensor:
    """A read-only view of another shape, repeated along new and stretched axes; -1 keeps an extent.

    Raises ShapeError where the shapes do not broadcast.
    """
    wanted = _gathered(shape)
    if isinstance(wanted, tuple | list) and -1 in wanted:
        new = len(wanted) - self.ndim
        wanted = tuple(self.shape[i - new] if n == -1 and i >= new else n for i, n in enumerate(wanted))
    return broadcast_to(self, wanted)  # type: ignore[no-any-return]


def contiguous(self: Tensor) -> Tensor:
    """The tensor itself where its elements lie in C order without gaps, else a copy."""
    return self if self.is_contiguous() else copy_of(self)


def _transposed(self: Tensor) -> Tensor:
    """The view with the axes reversed."""
    return permute_dims(self)  # type: ignore[no-any-return]


def _matrix_transposed(self: Tensor) -> Tensor:
    """The view with the last two axes exchanged."""
    return matrix_transpose(self)  # type: ignore[no-any-return]


METHODS: dict[str, Any] = {
    "reshape": remembered_function(reshape),
    **dict.fromkeys(("transpose", "permute", "permute_dims"), remembered_function(transpose)),
    "expand": remembered_function(broadcast_method),
    "contiguous": contiguous,
    "T": property(remembered_function(_transposed)),
    "mT": property(remembered_function(_matrix_transposed)),
}
