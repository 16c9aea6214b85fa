"""Whole Jacobians and Hessians, and products with Hessians."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.reverse import reachable
from jitgrad.core.aval import aval_of
from jitgrad.core.dispatch import constant
from jitgrad.core.modes import anomaly_mode, grad_mode, recording_mode
from jitgrad.errors import ArgumentError
from jitgrad.ops.linear import expand, join, permute, pile, place_diagonal, reshape_to, slice_view
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.tensor import make
from jitgrad.transforms.batching import UNTRACEABLE, RowFunction
from jitgrad.transforms.forward_mode import Linearized, jvp
from jitgrad.transforms.private import Inputs, differentiated, leave, wants_tensors, zeros
from jitgrad.transforms.reverse_mode import call_recorded, grad, pull
from jitgrad.transforms.trees import Structure, flatten

__all__ = ["hessian", "hvp", "jacfwd", "jacobian", "jacrev"]


_FEW: Final = 6
"""So many seeds are faster one after the other than together, which takes a trace first."""

_MOST: Final = 1 << 20
"""So many elements a value may have for all seeds of one run: memory is bounded, and stays in the caches."""

_Linear = Callable[[Tensor], list[Tensor]]


def _seeds(like: Tensor, start: int, stop: int) -> Tensor:
    """The arrays like ``like`` with a single 1, at the elements from ``start`` to ``stop``, stacked."""
    array = np.zeros((stop - start, like.size), like.dtype)
    array[np.arange(stop - start), np.arange(start, stop)] = 1.0
    array = array.reshape(stop - start, *like.shape)
    return make(array, aval_of(array))


def _of_all_seeds(linear: _Linear, like: Tensor, depends: Sequence[Tensor], linked: bool) -> list[Tensor]:
    """What a linear function gives for all arrays like ``like`` with a single 1, stacked.

    ``depends``: what it is made of; ``linked``: its results are recorded.
    """
    traced = next((t for t in (like, *depends) if t.is_traced), None)
    token = grad_mode.set(recording_mode() if linked else False)
    try:
        return _eagerly(linear, like, depends) if traced is None else _in_trace(linear, like, traced)
    finally:
        grad_mode.reset(token)


def _in_trace(linear: _Linear, like: Tensor, traced: Tensor) -> list[Tensor]:
    """In the graph of ``traced``, which does not grow with the number of seeds; nor does it capture them as an array."""
    one = constant(1.0, like.dtype, traced)
    n = like.shape[0] if like.ndim == 1 else like.size
    if n == 1:
        return [reshape_to(r, shape=(1, *r.shape)) for r in linear(expand(one, shape=like.shape))]
    seeds = place_diagonal(expand(one, shape=(n,)), shape=(n, n), offset=0, axis1=0, axis2=1)
    if like.ndim > 1:
        seeds = reshape_to(seeds, shape=(n, *like.shape))
    try:
        return RowFunction(linear, like.shape, like.dtype)(seeds)
    except UNTRACEABLE:
        return _joined([linear(slice_view(seeds, index=(i,))) for i in range(n)], pile)


def _eagerly(linear: _Linear, like: Tensor, depends: Sequence[Tensor]) -> list[Tensor]:
    count = like.size
    if count > _FEW and anomaly_mode() is None and not _is_better_alone(depends):
        try:
            rows = RowFunction(linear, like.shape, like.dtype)
            most = _MOST // max(rows.largest, count)
            if most > _FEW:
                parts = [rows(_seeds(like, i, min(i + most, count))) for i in range(0, count, most)]
                return _joined(parts, join) if len(parts) > 1 else parts[0]
        except UNTRACEABLE:
            pass
    return _joined([linear(reshape_to(_seeds(like, i, i + 1), shape=like.shape)) for i in range(count)], pile)


def _is_better_alone(results: Sequence[Tensor]) -> bool:
    """Whether each seed should go its own way through what was recorded: through jitted functions, whose gradient is one
    call but many operations in a trace; and past hooks, which are called with the gradient of each seed."""
    nodes = reachable([t._edge for t in results if t._edge is not None])
    return any(node.hooks or node.retained or node.recorder.compiled for node in nodes)


def _joined(rows: Sequence[Sequence[Tensor]], how: Any) -> list[Tensor]:
    return [how(*column, axis=0) for column in zip(*rows, strict=True)]


def _rebuild(blocks: list[list[Tensor]], structure: Structure, inputs: Inputs, linked: bool, as_tensors: bool) -> Any:
    """``blocks[i][j]``: the derivative of result i by leaf j, in the containers of both."""
    rows = [inputs.rebuilt([leave(b, as_tensors) for b in (inputs.outside(row) if linked else row)]) for row in blocks]
    return structure.unflatten(rows)


def _rev(function: Callable[..., Any], inputs: Inputs, kwargs: dict[str, Any], args: Any, what: str) -> Any:
    leaves, structure = flatten(call_recorded(function, inputs, kwargs))
    outputs = [as_tensor(leaf, f"{what}, value of the function") for leaf in leaves]
    linked = inputs.is_linked(outputs)
    inputs.close()

    def block(y: Tensor) -> list[Tensor]:
        if y._edge is None or not y.size:
            return [zeros(leaf, (*y.shape, *leaf.shape)) for leaf in inputs.leaves]
        rows = _of_all_seeds(lambda seed: pull([y], [seed], inputs, True, linked), y, (y, *inputs.leaves), linked)
        return [r if y.ndim == 1 else reshape_to(r, shape=(*y.shape, *r.shape[1:])) for r in rows]

    return _rebuild([block(y) for y in outputs], structure, inputs, linked, linked or wants_tensors(args))


def _fwd(function: Callable[..., Any], inputs: Inputs, kwargs: dict[str, Any], args: Any, what: str) -> Any:
    linear = Linearized(function, inputs, kwargs, what)
    outputs = linear.outputs

    def block(j: int, leaf: Tensor) -> list[Tensor]:
        if not leaf.size or all(y._edge is None for y in outputs):
            return [zeros(y, (*y.shape, *leaf.shape)) for y in outputs]

        def push(seed: Tensor) -> list[Tensor]:
            return linear.push([seed if k == j else None for k in range(len(inputs.leaves))])

        columns = _of_all_seeds(push, leaf, outputs, linear.linked)
        return [_axes_last(c, leaf.shape) for c in columns]

    columns = [block(j, leaf) for j, leaf in enumerate(inputs.leaves)]
    blocks = [[column[i] for column in columns] for i in range(len(outputs))]
    return _rebuild(blocks, linear.structure, inputs, linear.linked, linear.linked or wants_tensors(args))


def _axes_last(columns: Tensor, shape: Sequence[int]) -> Tensor:
    """The first axis as several of this shape, behind the others."""
    count = len(shape)
    if count != 1:
        columns = reshape_to(columns, shape=(*shape, *columns.shape[1:]))
    if count in (0, columns.ndim):
        return columns
    return permute(columns, axes=(*range(count, columns.ndim), *range(count)))  # type: ignore[no-any-return]


def jacrev(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The Jacobian by reverse mode: a sweep for each element of the result, all at once; for few results of many arguments.

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
    """The Jacobian by forward mode: a push for each element of the arguments, all at once; for many results of few
    arguments.

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
