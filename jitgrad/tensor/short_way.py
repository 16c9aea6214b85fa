"""The short way of operations: a call whose plan is found at once runs and is recorded without detours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.node import GradNode, next_tick
from jitgrad.core.aval import aval_of
from jitgrad.core.graph import Extent
from jitgrad.core.modes import grad_mode
from jitgrad.core.primitive import Elementwise, Primitive
from jitgrad.eager import Plan, keep_plan, plan_for, recorder_for
from jitgrad.ops.blocks import Single
from jitgrad.tensor.operands import SCALARS, as_tensor, is_operand, number_constant
from jitgrad.tensor.recording import kept, record, run_recorded
from jitgrad.tensor.tensor import Tensor

__all__ = ["binary_function", "fold_function", "pair_function", "reflected_function", "unary_function"]

_MISSING: Final = object()
_new = object.__new__
_empty = np.empty
_is_enabled = grad_mode.get
_BOTH, _FIRST, _SECOND = (0, 1), (0,), (1,)


def unary_function(primitive: Primitive, general: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A primitive of one operand, as a function that does the usual case without detours: that of a tensor by whose aval alone
    a plan is found; ``general`` does the others, wrong arguments included (without it they must be tensors)."""
    plans = primitive.plans
    differentiable = primitive.rule is not None
    elementwise = isinstance(primitive.impl, Elementwise)
    if general is None:
        general = primitive

    def function(self: Any = _MISSING, /, *rest: Any, **named: Any) -> Any:
        if rest or named:
            return general(*(() if self is _MISSING else (self,)), *rest, **named)
        try:
            plan = plans[(self._aval,)]
        except (KeyError, AttributeError):
            plan = None  # and on, outside: an error of the user's has not come of this one
        if plan is None:
            return general() if self is _MISSING else general(self)
        x = self._value
        if elementwise:
            out = _empty(plan.shape, plan.dtype)
            plan.entry(x, out)
        else:
            out = plan.run(x)
        result = _new(Tensor)
        result._value = out
        result._aval = plan.aval
        edge = self._edge
        if edge is None:
            if self._origin is not None:
                result._origin = self._origin
        else:
            if not differentiable or self._slot or _is_enabled() is not True:
                record(plan, (self,), (result,))
                return result
            try:
                recorder = plan.recorders[_FIRST]
            except KeyError:
                recorder = recorder_for(plan, _FIRST)
            result._edge = node = _new(GradNode)
            node.recorder = recorder
            node.edges = (edge,)
            if self._storage is not None and 0 in recorder.keep:
                x = kept(self)
            node.residuals = recorder.save(x, out)
            node.tick = next_tick()
        return result

    return function


def binary_function(primitive: Primitive, general: Callable[..., Any] | None = None) -> Callable[[Tensor, Any], Any]:
    """An elementwise primitive of two operands, as an operator that does the usual case without detours; ``general`` does
    the others."""
    constant = "" if primitive.rule is not None else f"nondiff:{primitive.name}"
    return _of_two(primitive.plans, primitive if general is None else general, True, constant)


def _of_two(
    plans: dict[Any, Plan], general: Callable[[Any, Any], Any], elementwise: bool, constant: str = ""
) -> Callable[[Tensor, Any], Any]:
    """An operator that runs the plan which is in a table for the avals of its operands; ``general`` does the others.
    ``constant``: why no gradient goes through it, if none does."""

    def function(self: Tensor, other: Any) -> Any:
        given = other
        if type(other) is not Tensor:
            if not elementwise:
                return general(self, other)
            kind = type(other)
            if kind is Extent:  # read from a shape by the user's code: a number like any other
                other, kind = int(other), int
            if (kind is float or kind is int) and self._aval.dtype.kind == "f":
                other = number_constant(other, self._aval.dtype)
            elif not is_operand(other):
                return NotImplemented
            elif kind in SCALARS:
                return general(self, other)
            else:
                other = as_tensor(other)
        try:
            plan = plans[self._aval, other._aval]
        except KeyError:
            plan = None
        if plan is None:
            return general(self, given)
        x = self._value
        y = other._value
        if elementwise:
            out = _empty(plan.shape, plan.dtype)
            plan.entry(x, y, out)  # type: ignore[misc]
        else:
            out = plan.run(x, y)
        result = _new(Tensor)
        result._value = out
        result._aval = plan.aval or aval_of(out)  # known for operands that are contiguous
        first = self._edge
        second = other._edge
        if first is None:
            if second is None:
                origin = self._origin
                if origin is None or origin == "numpy":  # see inherit_origin
                    origin = other._origin or origin
                if origin is not None:
                    result._origin = origin
                return result
            needs: tuple[int, ...] = _SECOND
            edges: tuple[Any, ...] = (second,)
        elif second is None:
            needs, edges = _FIRST, (first,)
        else:
            needs, edges = _BOTH, (first, second)
        if constant:
            result._origin = constant if _is_enabled() else "no_grad"
            return result
        if self._slot or other._slot or _is_enabled() is not True:
            record(plan, (self, other), (result,))
            return result
        try:
            recorder = plan.recorders[needs]
        except KeyError:
            recorder = recorder_for(plan, needs)
        result._edge = node = _new(GradNode)
        node.recorder = recorder
        node.edges = edges
        if self._storage is not None and 0 in recorder.keep:
            x = kept(self)
        if other._storage is not None and 1 in recorder.keep:
            y = kept(other)
        node.residuals = recorder.save(x, y, out)
        node.tick = next_tick()
        return result

    return function


def reflected_function(
    forward: Callable[[Tensor, Any], Any], general: Callable[..., Any]
) -> Callable[[Tensor, Any], Any]:
    """An elementwise operator for a number on its left, ``1 - x``: ``forward`` with the number as a tensor does the usual
    case; ``general`` does the others."""

    def function(self: Tensor, other: Any) -> Any:
        kind = type(other)
        if (kind is float or kind is int) and self._aval.dtype.kind == "f" and not self._weak:
            return forward(number_constant(other, self._aval.dtype), self)
        return general(other, self) if is_operand(other) else NotImplemented

    return function


def pair_function(single: Single, general: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], Any]:
    """An operator that is one primitive of two operands where ``single`` says so, which does tensors of one dtype without
    detours; ``general`` does the others, and all for the first time."""
    straight: dict[Any, Plan] = {}
    turned: dict[Any, Plan] = {}  # the operands change places

    def first_time(other: Tensor, self: Tensor) -> Any:
        result = general(self, other)
        found = single(self._aval.ndim, other._aval.ndim)
        if found is not None and self._aval.dtype == other._aval.dtype and not (self.is_traced or other.is_traced):
            primitive, changed, params = found
            table, avals = (turned, (other._aval, self._aval)) if changed else (straight, (self._aval, other._aval))
            keep_plan(table, avals, plan_for(primitive, avals, params))
        return result

    backwards = _of_two(turned, first_time, False)
    return _of_two(straight, lambda x, y: backwards(y, x) if type(y) is Tensor else general(x, y), False)


def fold_function(primitive: Primitive, general: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction as a function that does the usual cases, one tensor over all axes or one, without detours; ``general`` does
    the others, and all for the first time."""
    plans = primitive.plans
    along: dict[Any, Plan] = {}

    def others(*args: Any, **kwargs: Any) -> Any:
        count = len(args)
        if count and count + len(kwargs) == 1 and type(args[0]) is Tensor:
            return first_time(plans, (args[0]._aval,), args[0], range(args[0].ndim))
        axis = args[1] if count == 2 and not kwargs else kwargs.get("axis") if count == 1 and len(kwargs) == 1 else None
        if type(axis) is not int or type(args[0]) is not Tensor:
            return general(*args, **kwargs)
        x = args[0]
        plan = along.get((x._aval, axis))
        if plan is None:
            return first_time(along, (x._aval, axis), x, (axis,), axis)
        return run_recorded(plan, (x,), [x._value])

    def first_time(table: dict[Any, Plan], key: Any, x: Tensor, axes: Iterable[int], *given: int) -> Any:
        result = general(x, *given)
        plan = plans.get(((x._aval,), ("axes", tuple([i % x.ndim for i in axes if x.ndim]))))
        if plan is not None:
            keep_plan(table, key, plan)
        return result

    return unary_function(primitive, others)
