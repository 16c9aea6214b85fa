"""Whole Jacobians and Hessians, and products with Hessians."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.core.aval import aval_of
from jitgrad.errors import ArgumentError
from jitgrad.ops.linear import reshape_to, stack_values
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.tensor import make
from jitgrad.transforms.forward_mode import Linearized, jvp
from jitgrad.transforms.private import Inputs, differentiated, is_linked, leave, wants_tensors, zeros
from jitgrad.transforms.reverse_mode import call_recorded, grad, pull
from jitgrad.transforms.trees import Structure, flatten

__all__ = ["hessian", "hvp", "jacfwd", "jacobian", "jacrev"]


def _one_hot(like: Tensor, i: int) -> Tensor:
    array = np.zeros(like.shape, like.dtype)
    array.reshape(-1)[i] = 1.0
    return make(array, aval_of(array))


def _stacked(rows: Sequence[Tensor], shape: tuple[int, ...], empty: Tensor, axis_first: bool) -> Tensor:
    """Rows along leading axes of ``shape`` (or trailing ones), in one tensor."""
    if rows:
        whole = stack_values(list(rows))
    else:
        nothing = np.zeros((0, *empty.shape), empty.dtype)
        whole = make(nothing, aval_of(nothing))
    whole = reshape_to(whole, shape=(*shape, *empty.shape))
    if axis_first:
        return whole  # type: ignore[no-any-return]
    order = (*range(len(shape), whole.ndim), *range(len(shape)))
    return whole.transpose(order)  # type: ignore[no-any-return]


def _rebuild(blocks: list[list[Tensor]], structure: Structure, inputs: Inputs, as_tensors: bool) -> Any:
    """``blocks[i][j]``: the derivative of result i by leaf j, in the containers of both."""
    rows = [inputs.rebuilt([leave(b, as_tensors) for b in row]) for row in blocks]
    return structure.unflatten(rows)


def _rev(function: Callable[..., Any], inputs: Inputs, kwargs: dict[str, Any], args: Any, what: str) -> Any:
    leaves, structure = flatten(call_recorded(function, inputs, kwargs))
    outputs = [as_tensor(leaf, f"{what}, value of the function") for leaf in leaves]
    linked = is_linked(outputs, inputs)
    inputs.close()
    blocks = []
    for y in outputs:
        rows = [pull([y], [_one_hot(y, i)], inputs, True, linked) for i in range(y.size)]
        blocks.append(
            [_stacked([r[j] for r in rows], y.shape, zeros(leaf), True) for j, leaf in enumerate(inputs.leaves)]
        )
    return _rebuild(blocks, structure, inputs, linked or wants_tensors(args))


def _fwd(function: Callable[..., Any], inputs: Inputs, kwargs: dict[str, Any], args: Any, what: str) -> Any:
    linear = Linearized(function, inputs, kwargs, what)
    blocks: list[list[Tensor]] = [[] for _ in linear.outputs]
    for j, leaf in enumerate(inputs.leaves):
        columns = []
        for i in range(leaf.size):
            tangents = [_one_hot(leaf, i) if k == j else None for k in range(len(inputs.leaves))]
            columns.append(linear.push(tangents))
        for block, y, k in zip(blocks, linear.outputs, range(len(blocks)), strict=True):
            block.append(_stacked([c[k] for c in columns], leaf.shape, zeros(y), False))
    return _rebuild(blocks, linear.structure, inputs, linear.linked or wants_tensors(args))


def jacrev(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The Jacobian by reverse mode: one sweep for each element of the result; for few results of many arguments.

    The Jacobian of a result of shape s by an argument of shape t has shape ``s + t``.

    >>> import numpy as np, jitgrad as jg
    >>> jg.jacrev(lambda x: x[:2] * x[2])(np.array([1.0, 2.0, 3.0]))
    array([[3., 0., 1.],
           [0., 3., 2.]])
    """

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        return _rev(function, differentiated(args, argnums, "jacrev"), kwargs, args, "jacrev")

    return transformed


def jacfwd(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The Jacobian by forward mode: one push for each element of the arguments; for many results of few arguments.

    >>> import numpy as np, jitgrad as jg
    >>> jg.jacfwd(lambda x: x[:2] * x[2])(np.array([1.0, 2.0, 3.0]))
    array([[3., 0., 1.],
           [0., 3., 2.]])
    """

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        return _fwd(function, differentiated(args, argnums, "jacfwd"), kwargs, args, "jacfwd")

    return transformed


def jacobian(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The Jacobian by the mode that needs fewer passes; ready for ``scipy.optimize.least_squares(jac=)``.

    The mode is chosen by the shapes of one run of the function: forward where there are fewer elements in the
    arguments than in the results.

    >>> import numpy as np, jitgrad as jg
    >>> jg.jacobian(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        inputs = differentiated(args, argnums, "jacobian")
        recorded = flatten(call_recorded(function, inputs, kwargs))[0]
        many = sum(as_tensor(leaf, "jacobian").size for leaf in recorded)
        by = _fwd if sum(t.size for t in inputs.leaves) < many else _rev
        return by(function, differentiated(args, argnums, "jacobian"), kwargs, args, "jacobian")

    return transformed


def hessian(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The matrix of second derivatives of a scalar function: forward mode over reverse mode.

    >>> import numpy as np, jitgrad as jg
    >>> jg.hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 3.0]))
    array([[6., 2.],
           [2., 0.]])
    """
    return jacfwd(grad(function, argnums), argnums)


def hvp(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function ``(x, v, *args)`` that gives the Hessian by ``x`` times the vector ``v``, without the Hessian.

    It is what ``scipy.optimize.minimize(hessp=)`` wants. Forward mode over reverse mode.

    >>> import numpy as np, jitgrad as jg
    >>> jg.hvp(lambda x: (x**3).sum())(np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  6., 120.])
    """
    gradient = grad(function)

    @functools.wraps(function)
    def transformed(x: Any, v: Any, *args: Any) -> Any:
        if isinstance(v, Tensor | np.ndarray) and np.shape(v) != np.shape(x):
            raise ArgumentError(f"hvp: a vector of shape {np.shape(v)} for an argument of shape {np.shape(x)}")
        return jvp(lambda y: gradient(y, *args), (x,), (v,))[1]

    return transformed
