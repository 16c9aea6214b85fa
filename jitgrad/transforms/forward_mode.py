"""Transforms by the forward push: jvp and linearize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.autodiff.forward import push_recorded
from jitgrad.core.modes import FORWARD, forward, grad_mode, may_record, transforming
from jitgrad.errors import ArgumentError, DtypeError, ShapeError
from jitgrad.ops.linear import convert
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.transforms.private import Inputs, differentiated, leave, wants_tensors, zeros
from jitgrad.transforms.trees import Structure, flatten

__all__ = ["Linearized", "jvp", "linearize"]


class Linearized:
    """A function recorded at a point, ready to push tangents through any number of times."""

    def __init__(self, function: Callable[..., Any], inputs: Inputs, kwargs: dict[str, Any], what: str) -> None:
        self.what = what
        self.inputs = inputs
        inside = transforming.set(True)
        in_forward = forward.set(True)
        token = grad_mode.set(FORWARD)
        try:
            value = function(*inputs.args, **kwargs)
        except BaseException:
            inputs.close()
            raise
        finally:
            grad_mode.reset(token)
            forward.reset(in_forward)
            transforming.reset(inside)
        leaves, self.structure = flatten(value)
        self.outputs: list[Tensor] = [as_tensor(leaf, f"{what}, value of the function") for leaf in leaves]
        self.linked = inputs.is_linked(self.outputs)
        inputs.close()

    def value(self, as_tensors: bool) -> Any:
        """The value at the point."""
        return self.structure.unflatten([leave(y, as_tensors) for y in self.inputs.outside(self.outputs, self.linked)])

    def push(self, tangents: Sequence[Tensor | None]) -> list[Tensor]:
        """The tangents of the results; zeros where they do not move. None stands for an argument that does not move,
        which contributes nothing, whatever its derivative is."""
        given = {i: t for i, t in zip(self.inputs.targets, tangents, strict=True) if t is not None}
        record = (self.linked or any(t._edge is not None for t in given.values())) and may_record()
        targets = [(y._edge, y._slot) for y in self.outputs]
        in_forward = forward.set(forward.get())
        token = grad_mode.set((FORWARD if forward.get() else True) if record else False)
        try:
            tracked = [t for t in targets if t[0] is not None]
            found = iter(push_recorded(tracked, given, record))  # type: ignore[arg-type]
            moved = [None if t[0] is None else next(found) for t in targets]
        finally:
            grad_mode.reset(token)
            forward.reset(in_forward)
        return [zeros(y) if t is None else t for y, t in zip(self.outputs, moved, strict=True)]


def checked_tangents(tangents: Any, inputs: Inputs, structures: Sequence[Structure], what: str) -> list[Tensor]:
    """Tangents like the differentiated arguments, in their dtypes."""
    if not isinstance(tangents, tuple | list) or len(tangents) != len(structures):
        raise ArgumentError(f"{what}: a tuple of {len(structures)} tangents is wanted, one for each argument")
    flat: list[Any] = []
    for i, (tree, structure) in enumerate(zip(tangents, structures, strict=True)):
        leaves, shape = flatten(tree)
        if shape != structure:
            raise ArgumentError(f"{what}: tangent {i} is built like {shape}, the argument like {structure}")
        flat += leaves
    made = []
    for leaf, like in zip(flat, inputs.leaves, strict=True):
        tangent = as_tensor(leaf, f"{what}, tangent")
        if tangent.shape != like.shape:
            raise ShapeError(f"{what}: a tangent of shape {tangent.shape} for an argument of shape {like.shape}")
        if tangent.dtype != like.dtype:
            if tangent.dtype.kind not in "fiu":
                raise DtypeError(f"{what}: a {tangent.dtype} tangent for a {like.dtype} argument")
            tangent = convert(tangent, dtype=like.dtype)
        made.append(tangent)
    return made


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The value of a function at ``primals``, and its derivative in the direction ``tangents`` (Jacobian times vector).

    Raises NotDifferentiableError, with its name, for an operation that has no forward rule; ArgumentError or ShapeError
    where the tangents are not like the primals.

    >>> import numpy as np, jitgrad as jg
    >>> jg.jvp(lambda x: x * x, (np.array([1.0, 2.0]),), (np.array([1.0, 10.0]),))
    (array([1., 4.]), array([ 2., 40.]))
    """
    for given, what in ((primals, "primals"), (tangents, "tangents")):
        if not isinstance(given, tuple | list):
            raise ArgumentError(f"jvp: {what} must be a tuple, one for each argument, not {type(given).__name__}")
    value, push = _linearize(function, tuple(primals), "jvp")
    return value, push(*tangents)


def linearize(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The value of a function at ``primals``, and the linear map from tangents to the tangent of the value.

    The map may be called many times; the function itself runs once.

    >>> import jitgrad as jg
    >>> value, push = jg.linearize(lambda x: x**3, 2.0)
    >>> value, push(1.0), push(2.0)
    (8.0, 12.0, 24.0)
    """
    return _linearize(function, primals, "linearize")


def _linearize(function: Callable[..., Any], primals: tuple[Any, ...], what: str) -> tuple[Any, Callable[..., Any]]:
    inputs = differentiated(primals, tuple(range(len(primals))), what)
    linear = Linearized(function, inputs, {}, what)
    as_tensors = linear.linked or wants_tensors(primals)

    def push(*tangents: Any) -> Any:
        given = checked_tangents(tangents, inputs, inputs.structures, what)
        moved = inputs.outside(linear.push(given), may_record())
        shown = as_tensors or wants_tensors(tangents)
        return linear.structure.unflatten([leave(t, shown) for t in moved])

    return linear.value(as_tensors), push
