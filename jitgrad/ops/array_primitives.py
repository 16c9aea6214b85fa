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
from jitgrad.kernels.kernel import kernel_mode
from jitgrad.ops.array_calls import operands
from jitgrad.ops.blocks import host
from jitgrad.ops.linear import permute

__all__ = ["array_call", "straight_call"]

Array = np.ndarray[Any, Any]
Describe = Callable[..., ArrayCall]
Infer = Callable[..., Sequence[ShapedArray] | ShapedArray]

_MOST_RUNNERS: Final = 1024  # a primitive; making one costs microseconds


@functools.lru_cache(4096)
def _last(ndim: int, axes: int | tuple[int, ...]) -> tuple[tuple[int, ...], Any] | None:
    """The order of axes in which the given ones come last, and what they then are; None where they do already."""
    chosen = axes if isinstance(axes, tuple) else (axes,)
    order = (*(i for i in range(ndim) if i not in chosen), *chosen)
    if order == tuple(range(ndim)):
        return None
    return order, tuple(range(ndim - len(chosen), ndim)) if isinstance(axes, tuple) else ndim - 1


def _runner(
    describe: Describe,
    infer: Infer,
    given: Sequence[ShapedArray],
    params: Any,
    last: str | None = None,
    wraps: bool = False,
    other: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A function that runs a described call on arrays of these avals, written out as source; ``other`` takes arrays that
    turn out not to be C-contiguous, which are copied without it."""
    avals = [make_aval(a.shape, a.dtype) for a in given]
    ndim = len(avals[0].shape)
    moved = _last(ndim, params[last]) if last else None
    order = back = None
    if moved is not None:
        order, axes = moved
        back = tuple(np.argsort(order).tolist())
        params = {**params, last: axes}
        avals = [make_aval(tuple([a.shape[i] for i in order]), a.dtype) for a in avals]
    found = infer(*avals, **params)
    results = [found] if isinstance(found, ShapedArray) else list(found)
    call = describe(*operands([*avals, *results]), **params)
    names = [*(f"a{k}" for k in range(len(avals))), *(f"r{k}" for k in range(len(results)))]
    turned = "" if order is None else f".transpose({order})"
    lines = [f"{n} = contiguous({n}{turned})" for n in names[: len(avals)]]
    if order is None:
        strided = [n for n, a in zip(names, given, strict=False) if not a.contiguous]
        copy = "{0} = contiguous({0})" if other is None else f"return other({', '.join(names[: len(avals)])})"
        lines = [f"if not {n}.flags.c_contiguous: {copy.format(n)}" for n in strided]
    space: dict[str, Any] = {"contiguous": np.ascontiguousarray, "empty": np.empty, "int64": INT64, "other": other}
    for k, aval in enumerate(results):
        space[f"dtype{k}"] = aval.dtype
        lines.append(f"r{k} = empty({aval.shape}, dtype{k})")
    texts = []
    for k, argument in enumerate(call.arguments):
        if type(argument) is not Folded:
            space[f"number{k}"] = argument
            texts.append(f"number{k}")
            continue
        aval = [*avals, *results][argument.position]
        shape = tuple([math.prod([aval.shape[i] for i in g]) for g in argument.groups])
        text = names[argument.position]
        text += f".reshape({shape})" if shape != aval.shape else ""
        texts.append(text + (".view(int64)" if wraps and aval.dtype == np.uint64 else ""))
    made = [
        f"contiguous(r{k}.transpose({back}))" if back is not None and len(a.shape) == ndim else f"r{k}"
        for k, a in enumerate(results)
    ]
    lines.append(f"return {made[0]}" if isinstance(found, ShapedArray) else f"return {', '.join(made)}")
    lines.insert(-1, f"entry({', '.join(texts)})")
    lines.insert(-2, f"if entry is None: entry = find({', '.join(texts)})")
    text = "\n".join([f"def run({', '.join(names[: len(avals)])}):", "    global entry", *(f"    {n}" for n in lines)])
    space.update(entry=None, find=call.kernel.entry_for)
    exec(text, space)
    return space["run"]  # type: ignore[no-any-return]


Prepare = Callable[[Callable[..., Any], Sequence[ShapedArray], dict[str, Any]], Callable[..., Any]]


def _once(prepare: Prepare) -> Prepare:
    """The same, with one result for all plans and steps of gradients that want the like."""
    known: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(prepare)
    def prepared(run: Callable[..., Any], avals: Sequence[ShapedArray], params: dict[str, Any]) -> Callable[..., Any]:
        key = (kernel_mode(), *avals, *params.items())
        found = known.get(key)
        if found is None:
            if len(known) >= _MOST_RUNNERS:
                known.clear()
            found = known[key] = prepare(run, avals, params)
        return found

    return prepared


def straight_call(describe: Describe, infer: Infer) -> Prepare:
    """How a host primitive is prepared whose function does no more, with contiguous floats, than the call that
    ``describe`` describes."""

    @_once
    def prepare(run: Callable[..., Any], avals: Sequence[ShapedArray], params: dict[str, Any]) -> Callable[..., Any]:
        other = functools.partial(run, **params) if params else run
        if any(a.dtype.kind != "f" for a in avals):
            return other
        return _runner(describe, infer, avals, params, other=other)

    return prepare


def _naming(operation: str, shape: tuple[int, ...], runner: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with errors of linear algebra that say what of."""

    def run(*arrays: Array) -> Any:
        try:
            return runner(*arrays)
        except LinAlgError as error:
            raise type(error)(f"{operation} of shape {shape}: {error}") from None

    return run


def array_call(
    *,
    infer: Infer,
    called: str = "",
    last: str | None = None,
    wraps: bool = False,
    expression: Callable[..., Any] | None = None,
    **rules: Any,
) -> Callable[[Describe], Primitive]:
    """Define a primitive by the call of an array kernel: the decorated function, of operands, results and parameters,
    describes it. It runs on its own and as part of kernels alike.

    ``called``: how messages of linear algebra, where there are any, name the operation. ``last`` names the parameter with
    the axis or axes that the kernel runs over: the description may take for granted that they are the last ones.
    ``wraps``: the kernel only adds and multiplies, so that unsigned 64-bit integers may be given to it as signed ones.
    ``expression``: the same in jitgrad operations, which kernels have instead. The rest as for ``host``.
    """

    def decorate(describe: Describe) -> Primitive:
        @_once
        def prepare(_: Any, avals: Sequence[ShapedArray], params: dict[str, Any]) -> Callable[..., Any]:
            runner = _runner(describe, infer, avals, params, last, wraps)
            return _naming(called, avals[0].shape, runner) if called else runner

        @functools.wraps(describe)
        def run(*arrays: Array, **params: Any) -> Any:
            return prepare(run, [make_aval(a.shape, a.dtype, False) for a in arrays], params)(*arrays)

        def call(*values: Any, **params: Any) -> ArrayCall | None:
            moved = last is not None and _last(values[0].ndim, params[last])
            return None if moved else describe(*values, **params)

        def moved_call(*values: Value, **params: Any) -> Any:
            assert last is not None
            moved = _last(values[0].ndim, params[last])
            if moved is None:
                return None
            order, params[last] = moved
            found = primitive(*(permute(v, axes=order) for v in values), **params)
            back = tuple(np.argsort(order).tolist())
            made = [permute(v, axes=back) if v.ndim == len(order) else v for v in _several(found)]
            return tuple(made) if primitive.outputs > 1 else made[0]

        if expression is not None:
            forms: dict[str, Any] = {"expression": expression}
        else:
            forms = {"call": call, "expression": moved_call if last is not None else None}
        primitive = host(infer=infer, prepare=prepare, **forms, **rules)(run)
        return primitive

    return decorate


def _several(found: Any) -> Sequence[Value]:
    return found if isinstance(found, tuple) else (found,)
