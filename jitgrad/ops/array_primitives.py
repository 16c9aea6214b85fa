"""Primitives that are defined by the call of an array kernel: one description, run eagerly and as part of kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.core.aval import INT64, ShapedArray, make_aval
from jitgrad.core.linalg_errors import LinAlgError
from jitgrad.core.primitive import ArrayCall, Folded, Primitive, Value
from jitgrad.ops.array_calls import operands
from jitgrad.ops.blocks import host
from jitgrad.ops.linear import permute

__all__ = ["array_call"]

Array = np.ndarray[Any, Any]
Describe = Callable[..., ArrayCall]
Infer = Callable[..., Sequence[ShapedArray] | ShapedArray]

_MOST_LAYOUTS: Final = 1024  # a primitive; making one costs microseconds


@functools.lru_cache(4096)
def _last(ndim: int, axes: int | tuple[int, ...]) -> tuple[tuple[int, ...], Any] | None:
    """The order of axes in which the given ones come last, and what they then are; None where they do already."""
    chosen = axes if isinstance(axes, tuple) else (axes,)
    order = (*(i for i in range(ndim) if i not in chosen), *chosen)
    if order == tuple(range(ndim)):
        return None
    return order, tuple(range(ndim - len(chosen), ndim)) if isinstance(axes, tuple) else ndim - 1


class _Layout:
    """How a described call is run on arrays of given shapes and dtypes."""

    def __init__(
        self, describe: Describe, infer: Infer, last: str | None, wraps: bool, arrays: Sequence[Array], params: Any
    ) -> None:
        avals = [make_aval(a.shape, a.dtype) for a in arrays]
        ndim = len(avals[0].shape)
        self.order = self.back = None
        moved = _last(ndim, params[last]) if last else None
        if moved is not None:
            self.order, axes = moved
            self.back = tuple(np.argsort(self.order).tolist())
            params = {**params, last: axes}
            avals = [make_aval(tuple([a.shape[i] for i in self.order]), a.dtype) for a in avals]
        found = infer(*avals, **params)
        self.single = isinstance(found, ShapedArray)
        results = [found] if isinstance(found, ShapedArray) else list(found)
        self.results = [(a.shape, a.dtype, self.back if len(a.shape) == ndim else None) for a in results]
        call = describe(*operands([*avals, *results]), **params)
        self.kernel = call.kernel
        self.arguments = [self._argument(a, [*avals, *results], wraps) for a in call.arguments]

    @staticmethod
    def _argument(argument: Any, avals: Sequence[ShapedArray], wraps: bool) -> tuple[int, Any, Any]:
        """Which value it is (-1: a number), in which shape, and as which dtype where that is another one."""
        if type(argument) is not Folded:
            return -1, argument, None
        aval = avals[argument.position]
        shape = tuple([math.prod([aval.shape[i] for i in g]) for g in argument.groups])
        return argument.position, shape, INT64 if wraps and aval.dtype.kind == "u" else None

    def __call__(self, arrays: Sequence[Array]) -> Any:
        order = self.order
        values = [np.ascontiguousarray(a if order is None else a.transpose(order)) for a in arrays]
        made = [np.empty(shape, dtype) for shape, dtype, _ in self.results]
        values += made
        arguments = []
        for position, what, dtype in self.arguments:
            if position < 0:
                arguments.append(what)
                continue
            value = values[position]
            if value.shape != what:
                value = value.reshape(what)
            arguments.append(value if dtype is None else value.view(dtype))
        self.kernel(*arguments)
        if self.back is not None:
            made = [
                m if back is None else np.ascontiguousarray(m.transpose(back))
                for m, (_, _, back) in zip(made, self.results, strict=True)
            ]
        return made[0] if self.single else tuple(made)


def array_call(
    *, infer: Infer, called: str = "", last: str | None = None, wraps: bool = False, **rules: Any
) -> Callable[[Describe], Primitive]:
    """Define a primitive by the call of an array kernel: the decorated function, of operands, results and parameters,
    describes it. It runs on its own and as part of kernels alike.

    ``called``: how messages of linear algebra name the operation. ``last`` names the parameter with the axis or axes that
    the kernel runs over: the description may take for granted that they are the last ones. ``wraps``: the kernel only
    adds and multiplies, so that unsigned 64-bit integers may be given to it as signed ones. The rest as for ``host``.
    """

    def decorate(describe: Describe) -> Primitive:
        layouts: dict[Any, _Layout] = {}

        @functools.wraps(describe)
        def run(*arrays: Array, **params: Any) -> Any:
            key = (*[(a.shape, a.dtype) for a in arrays], *params.items())
            layout = layouts.get(key)
            if layout is None:
                if len(layouts) >= _MOST_LAYOUTS:
                    layouts.clear()
                layout = layouts[key] = _Layout(describe, infer, last, wraps, arrays, params)
            try:
                return layout(arrays)
            except LinAlgError as error:
                raise type(error)(f"{called or describe.__name__} of shape {arrays[0].shape}: {error}") from None

        def call(*values: Any, **params: Any) -> ArrayCall | None:
            moved = last is not None and _last(values[0].ndim, params[last])
            return None if moved else describe(*values, **params)

        def expression(*values: Value, **params: Any) -> Any:
            moved = _last(values[0].ndim, params[last])
            if moved is None:
                return None
            order, params[last] = moved  # type: ignore[index]
            found = primitive(*(permute(v, axes=order) for v in values), **params)
            back = tuple(np.argsort(order).tolist())
            made = [permute(v, axes=back) if v.ndim == len(order) else v for v in _several(found)]
            return tuple(made) if primitive.outputs > 1 else made[0]

        if last is not None:
            rules["expression"] = expression
        primitive = host(infer=infer, call=call, **rules)(run)
        return primitive

    return decorate


def _several(found: Any) -> Sequence[Value]:
    return found if isinstance(found, tuple) else (found,)
