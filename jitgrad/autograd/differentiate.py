"""``grad`` and ``backward`` of several tensors at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from jitgrad.autodiff.node import Edge
from jitgrad.autodiff.reverse import sweep
from jitgrad.core.aval import aval_of
from jitgrad.core.graph import Tracer
from jitgrad.core.modes import anomaly_mode
from jitgrad.errors import ArgumentError, GraphError, NoGraphError, UnsupportedError, user_line
from jitgrad.ops.linear import copy_of
from jitgrad.tensor import Tensor
from jitgrad.tensor.graph_methods import no_graph, run_backward, starting_cotangent
from jitgrad.tensor.tensor import make

__all__ = ["backward", "grad"]

Tensors: TypeAlias = Tensor | Sequence[Tensor]


def _listed(tensors: Any, what: str) -> list[Tensor]:
    listed = [tensors] if isinstance(tensors, Tensor) else tensors
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise UnsupportedError(f"{what} must be a tensor or a sequence of tensors, not {type(tensors).__name__}")
    for position, tensor in enumerate(listed):
        if not isinstance(tensor, Tensor):
            raise UnsupportedError(f"{what}[{position}] must be a tensor, not {type(tensor).__name__}")
        if isinstance(tensor._value, Tracer):
            raise GraphError(f"{what}[{position}] is a traced value at {user_line()}; use jg.grad inside of transforms")
    return list(listed)


def _cotangents(outputs: Sequence[Tensor], given: Any, what: str) -> list[Tensor]:
    """The checked starting cotangent of each output."""
    if given is None:
        listed: Sequence[Any] = [None] * len(outputs)
    elif isinstance(given, list | tuple) and not (len(outputs) == 1 and _is_plain(given)):
        listed = given
    else:
        listed = [given]
    if len(listed) != len(outputs):
        raise ArgumentError(f"{what}: {len(listed)} gradients for {len(outputs)} tensors")
    return [starting_cotangent(t, g, what) for t, g in zip(outputs, listed, strict=True)]


def _is_plain(given: Sequence[Any]) -> bool:
    """Whether a list is itself the gradient of one tensor: numbers, or rows of numbers."""
    return bool(given) and all(isinstance(g, float | int | list) for g in given)


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of outputs with respect to inputs, as a tuple aligned with the inputs; no ``.grad`` is touched.

    ``outputs``, ``inputs``: a tensor or a sequence. ``grad_outputs``: a cotangent for each output of more than one
    element. ``retain_graph``: keep what the graph holds (default: as ``create_graph``). ``create_graph``: record the
    computation, for derivatives of any order. An input that the outputs do not depend on raises, or gives None with
    ``allow_unused``, or zeros with ``materialize_grads``.

    Raises NoGraphError where nothing leads to an output, an input does not require grad or is unused,
    ReleasedGraphError where an earlier backward has released a part of the graph that the outputs lead to, ShapeError
    for a cotangent of the wrong shape.

    >>> import jitgrad as jg
    >>> x = jg.tensor(3.0, requires_grad=True)
    >>> (first,) = jg.autograd.grad(x * x * x, x, create_graph=True)
    >>> (second,) = jg.autograd.grad(first, x)
    >>> second
    tensor(18.)
    """
    roots = _listed(outputs, "outputs")
    wanted = _listed(inputs, "inputs")
    for root in roots:
        if root._edge is None:
            raise no_graph(root, "grad")
    for position, tensor in enumerate(wanted):
        if tensor._edge is None:
            raise NoGraphError(
                f"grad: inputs[{position}] of shape {tensor.shape} does not require grad; set requires_grad=True on it "
                "before computing the outputs"
            )
    starts = _cotangents(roots, grad_outputs, "grad")
    targets: list[tuple[Edge, int]] = [(t._edge, t._slot) for t in wanted]  # type: ignore[misc]
    arrived = sweep(
        [(t._edge, t._slot, s if create_graph else s._value) for t, s in zip(roots, starts, strict=True)],  # type: ignore[misc]
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
        targets=targets,
        anomaly=anomaly_mode(),
    )
    found: list[Tensor | None] = []
    for position, (tensor, target) in enumerate(zip(wanted, targets, strict=True)):
        cotangent = arrived.get(target)
        if cotangent is not None:
            if target in targets[:position]:  # the same input again: its own memory
                cotangent = copy_of(cotangent) if create_graph else cotangent.copy()
            found.append(cotangent if create_graph else make(cotangent, aval_of(cotangent)))
        elif materialize_grads:
            array = np.zeros(tensor.shape, tensor.dtype)
            zeros = make(array, aval_of(array))
            found.append(zeros._track() if create_graph else zeros)  # their derivatives are zeros, not an error
        elif allow_unused:
            found.append(None)
        else:
            raise NoGraphError(
                f"grad: the outputs do not depend on inputs[{position}], shape {tensor.shape}. Pass allow_unused=True "
                "to get None for it, or materialize_grads=True for zeros; detach() or no_grad may have cut the path to it, "
                "and a view or a copy made after the outputs is a different input"
            )
    return tuple(found)


def backward(
    tensors: Tensors,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradients of the sum of ``tensors``, weighted by ``grad_tensors``, to ``.grad`` of the leaves.

    One sweep for all of them; otherwise as ``Tensor.backward``, whose errors it raises.

    >>> import jitgrad as jg
    >>> x = jg.tensor([1.0, 2.0], requires_grad=True)
    >>> jg.autograd.backward([x.sum(), x * x], [None, jg.tensor([1.0, 10.0])])
    >>> x.grad
    tensor([ 3., 41.])
    """
    roots = _listed(tensors, "tensors")
    targets = None if inputs is None else _listed(inputs, "inputs")
    for root in roots:
        if root._edge is None:
            raise no_graph(root)
    run_backward(roots, _cotangents(roots, grad_tensors, "backward"), retain_graph, create_graph, targets)
