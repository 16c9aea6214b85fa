"""Transforms by the reverse sweep: grad, value_and_grad, vjp."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.autodiff.reverse import sweep
from jitgrad.core.aval import aval_of
from jitgrad.core.dispatch import constant
from jitgrad.core.modes import anomaly_mode, grad_mode, may_record, recording_mode, transforming
from jitgrad.errors import ArgumentError
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.graph_methods import starting_cotangent
from jitgrad.tensor.tensor import make
from jitgrad.transforms.private import (
    Inputs,
    differentiated,
    leave,
    scalar_result,
    wants_tensors,
    zeros,
)
from jitgrad.transforms.trees import flatten

__all__ = ["call_recorded", "grad", "pull", "value_and_grad", "vjp", "vjp_or_none"]


def call_recorded(function: Callable[..., Any], inputs: Inputs, kwargs: dict[str, Any]) -> Any:
    """The function on its private arguments, recorded whatever the grad mode outside is."""
    inside = transforming.set(True)
    token = grad_mode.set(recording_mode())
    try:
        return function(*inputs.args, **kwargs)
    except BaseException:
        inputs.close()
        raise
    finally:
        grad_mode.reset(token)
        transforming.reset(inside)


def pull(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    inputs: Inputs,
    retain: bool,
    linked: bool,
    unused: Callable[[Tensor], Any] = zeros,
) -> list[Any]:
    """The gradient of each differentiated leaf; ``unused(leaf)`` where the outputs do not depend on it."""
    traced = any(t.is_traced for t in (*outputs, *cotangents))
    lifted = linked or traced
    if traced:
        cotangents = [
            c if c.is_traced or c.ndim else constant(c.item(), c.dtype, y)
            for y, c in zip(outputs, cotangents, strict=True)
        ]
    starts = [
        (y._edge, y._slot, c if lifted else c._value)
        for y, c in zip(outputs, cotangents, strict=True)
        if y._edge is not None
    ]
    arrived: dict[Any, Any] = {}
    if starts:
        arrived = sweep(
            starts,
            retain_graph=retain or linked,
            create_graph=linked,
            targets=inputs.targets,
            anomaly=anomaly_mode(),
            on_tensors=traced,
        )
    found: list[Any] = []
    for target, leaf in zip(inputs.targets, inputs._caught, strict=True):
        gradient = arrived.get(target)
        if gradient is None:
            found.append(unused(leaf))
        else:
            found.append(gradient if lifted else make(gradient, aval_of(gradient)))
    return found


def value_and_grad(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """A function that gives the value and the gradient of a scalar function.

    ``argnums``: the position(s) of the arguments to differentiate; each may be a nested container of floats. With
    ``has_aux`` the function gives ``(value, auxiliary)``, and so does the result in place of the value.

    ndarrays and numbers in: a float and C-contiguous ndarrays of each argument's dtype out (integers: float64), as
    ``scipy.optimize.minimize(jac=True)`` wants it. Tensors in, or results that lead back to a tracked tensor
    which the function captures: tensors out, the latter not under ``no_grad``. Raises
    ArgumentError where the value is no scalar, DtypeError where it or an argument is no float.

    >>> import numpy as np, jitgrad as jg
    >>> jg.value_and_grad(lambda x: np.sum(x**2))(np.array([1.0, 2.0]))
    (5.0, array([2., 4.]))
    """
    return _value_and_grad(function, argnums, has_aux, "value_and_grad")


def _value_and_grad(
    function: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool, what: str
) -> Callable[..., tuple[Any, Any]]:
    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        inputs = differentiated(args, argnums, what)
        result = call_recorded(function, inputs, kwargs)
        value, aux = _split_aux(result, what) if has_aux else (result, None)
        scalar = scalar_result(value, what)
        linked = inputs.is_linked([scalar])
        # the auxiliary value may have nodes in common with the value
        gradients = pull([scalar], [starting_cotangent(scalar, None, what)], inputs, has_aux, linked)
        inputs.close()
        as_tensors = linked or wants_tensors(args)
        shown = leave(inputs.outside([scalar], linked)[0], as_tensors)
        found = inputs.outside(gradients) if linked else gradients
        gradient = inputs.rebuilt([leave(g, as_tensors) for g in found])
        if has_aux:
            return (shown, _outside(aux, inputs, as_tensors)), gradient
        return shown, gradient

    return transformed


def _split_aux(result: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(f"{what}: with has_aux=True the function must give (value, auxiliary)")
    return result


def _outside(tree: Any, inputs: Inputs, as_tensors: bool) -> Any:
    """Auxiliary results as the user gets them."""
    leaves, structure = flatten(tree)
    return structure.unflatten([leave(leaf, as_tensors) for leaf in inputs.outside(leaves, may_record())])


def grad(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradient of a scalar function; see ``value_and_grad``.

    With ``has_aux`` it gives ``(gradient, auxiliary)``. Gradients nest to any order.

    >>> import jitgrad as jg
    >>> jg.grad(lambda x: x**3)(2.0)
    12.0
    >>> jg.grad(jg.grad(lambda x: x**3))(2.0)
    12.0
    """
    both = _value_and_grad(function, argnums, has_aux, "grad")

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return transformed


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function, and a function from cotangents of the value to cotangents of the arguments.

    ``vjp(f, *primals)`` gives ``(value, pull)``; ``pull(cotangent)``, with a cotangent like the value, gives a tuple of
    one cotangent an argument, and may be called again. With ``has_aux``: ``(value, pull, auxiliary)``.

    >>> import numpy as np, jitgrad as jg
    >>> value, pull = jg.vjp(lambda x: x * x, np.array([1.0, 2.0]))
    >>> pull(np.array([1.0, 10.0]))
    (array([ 2., 40.]),)
    """
    return _vjp(function, primals, has_aux, zeros)


def vjp_or_none(function: Callable[..., Any], primals: Sequence[Any]) -> Any:
    """``vjp``, with None for the arguments that the value does not depend on."""
    return _vjp(function, tuple(primals), False, lambda leaf: None)


def _vjp(function: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool, unused: Callable[[Tensor], Any]) -> Any:
    inputs = differentiated(primals, tuple(range(len(primals))), "vjp")
    result = call_recorded(function, inputs, {})
    value, aux = _split_aux(result, "vjp") if has_aux else (result, None)
    leaves, structure = flatten(value)
    outputs = [as_tensor(leaf, "vjp, value of the function") for leaf in leaves]
    linked = inputs.is_linked(outputs)
    as_tensors = linked or wants_tensors(primals)
    inputs.close()

    def pulled(cotangent: Any) -> Any:
        given, shape = flatten(cotangent)
        if shape != structure:
            raise ArgumentError(f"vjp: a cotangent like {shape} for a value like {structure}")
        cotangents = [starting_cotangent(y, c, "vjp") for y, c in zip(outputs, given, strict=True)]
        tracked = any(c._edge is not None for c in cotangents)
        record = (linked or tracked) and may_record()
        gradients = pull(outputs, cotangents, inputs, True, record, unused)
        gradients = inputs.outside(gradients) if record else gradients
        return inputs.rebuilt([leave(g, as_tensors or tracked) for g in gradients])

    shown = structure.unflatten([leave(y, as_tensors) for y in inputs.outside(outputs, linked)])
    return (shown, pulled, _outside(aux, inputs, as_tensors)) if has_aux else (shown, pulled)
