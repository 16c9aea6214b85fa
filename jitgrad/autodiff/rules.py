"""What each kind of rule does to cotangents and tangents. Works on tensors: eager, recorded again, or traced.

A cotangent may carry a mask: where it is False the cotangent is a *structural* zero, because a branch was not taken, or
an element was left out or overwritten. Such a zero stays zero past an infinite derivative (it is selected, not
multiplied); it passes through elementwise operations and movement, and ends at contractions and reductions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.core.dispatch import constant
from jitgrad.core.primitive import Bilinear, Custom, Linear, Partials, Primitive, Value
from jitgrad.errors import NotDifferentiableError
from jitgrad.ops.linear import convert, expand, sum_to
from jitgrad.ops.selection import chosen, where

__all__ = ["Mask", "is_plain", "jvp", "scaled", "union", "union_of_values", "vjp"]


class Mask:
    """Where a cotangent is not structurally zero; computed when it is first needed."""

    __slots__ = ("_compute", "_value", "depth")
    DEEPEST = 40  # chains of views are resolved this far at once, so that no recursion grows with the graph

    def __init__(self, compute: Callable[[], Value], depth: int = 0) -> None:
        self._compute: Callable[[], Value] | None = compute
        self._value: Value = None
        self.depth = depth
        if depth > self.DEEPEST:
            self.get()

    def get(self) -> Value:
        """The mask as a bool tensor of the shape of the cotangent."""
        if self._compute is not None:
            self._value = self._compute()
            self._compute = None
            self.depth = 0
        return self._value


def union(a: Mask | None, b: Mask | None) -> Mask | None:
    """Of a sum of two cotangents: structurally zero only where both are."""
    if a is None or b is None:
        return None
    return Mask(lambda: a.get() | b.get(), max(a.depth, b.depth) + 1)


def union_of_values(mask: Mask, cotangent: Value) -> Mask:
    """``mask`` for a cotangent that was changed by hand: structurally zero only where it still is zero."""
    return Mask(lambda: mask.get() | (cotangent != 0.0), mask.depth + 1)


def scaled(g: Value, partial: Value) -> Value:
    """``g * partial``; plain 1 and -1 cost nothing, and a plain 0 gives 0 for an infinite g too."""
    if isinstance(partial, float | int):
        if partial == 1:
            return g
        if partial == -1:
            return -g
        if partial == 0:
            return where(False, g, 0.0)
    return g * partial


def is_plain(partial: Value) -> bool:
    """Whether a partial derivative is 1 or -1, through which structural zeros need not be selected again."""
    return isinstance(partial, float | int) and abs(partial) == 1


def _summed(mask: Mask | None, shape: tuple[int, ...], to: tuple[int, ...]) -> Mask | None:
    """Of the sum of a cotangent over what was broadcast: structurally zero only where every addend is."""
    if mask is None or shape == to:
        return mask
    return Mask(lambda: convert(sum_to(mask.get(), to), dtype=np.dtype(np.bool_)), mask.depth + 1)


Cotangent = tuple[Value, Mask | None]


def vjp(
    primitive: Primitive,
    needs: Sequence[int],
    g: Any,
    mask: Mask | None,
    out: Any,
    inputs: Sequence[Value],
    params: dict[str, Any],
) -> list[Cotangent | None]:
    """The cotangents of the operands ``needs``, each with its mask; None where the result does not depend on one."""
    match primitive.rule:
        case Partials(partials=partials, masks=masks, chooses=chooses):
            times = chosen if chooses else scaled
            found = [_through_partial(g, mask, partials[i], masks[i], times, out, inputs) for i in needs]
            return [
                (sum_to(ct, inputs[i].shape), _summed(m, ct.shape, inputs[i].shape))
                for i, (ct, m) in zip(needs, found, strict=True)
            ]
        case Linear() as rule:
            return _through_linear(rule, needs, g, mask, out, inputs, params)
        case Bilinear(transposes=transposes):
            return [(transposes[i](g, *inputs, **params), None) for i in needs]
        case Custom(vjp=rule_vjp):
            cotangents = rule_vjp(g, out, *inputs, **params)
            return [None if cotangents[i] is None else (cotangents[i], None) for i in needs]
        case _:
            raise NotDifferentiableError(
                f"{primitive.name} has no derivative; detach its operands where none is wanted"
            )


def _through_partial(
    g: Value, mask: Mask | None, partial: Any, own_mask: Any, times: Any, out: Value, inputs: Sequence[Value]
) -> Cotangent:
    slope = 1.0 if partial is None else partial(out, *inputs)
    cotangent = times(g, slope)
    if own_mask is not None:
        chosen = own_mask(out, *inputs)
        if mask is not None:
            chosen = chosen & mask.get()
        # a condition that was broadcast: what moves the cotangent on will move a mask of its shape
        return where(chosen, cotangent, 0.0), Mask(
            lambda: chosen if chosen.shape == g.shape else expand(chosen, shape=g.shape)
        )
    if mask is not None and not is_plain(slope):
        cotangent = where(mask.get(), cotangent, 0.0)
    return cotangent, mask


def _through_linear(
    rule: Linear,
    needs: Sequence[int],
    g: Value,
    mask: Mask | None,
    out: Value,
    inputs: Sequence[Value],
    params: dict[str, Any],
) -> list[Cotangent | None]:
    single = rule.argnums is not None and len(rule.argnums) == 1
    result = rule.transpose(g, *inputs, **params)
    cotangents = {rule.argnums[0]: result} if single and rule.argnums else dict(enumerate(result))
    if rule.contracts or (mask is None and not rule.holes):
        return [None if cotangents[i] is None else (cotangents[i], None) for i in needs]

    def transposed(i: int) -> Mask:
        def compute() -> Value:
            own = mask.get() if mask is not None else expand(constant(True, np.bool_, g), shape=g.shape)
            moved = rule.transpose(own, *inputs, **params)
            found = moved if single else moved[i]
            # the transpose of a conversion gives the dtype of its operand
            return found if found.dtype == np.bool_ else convert(found, dtype=np.dtype(np.bool_))

        return Mask(compute, mask.depth + 1 if mask is not None else 0)

    return [None if cotangents[i] is None else (cotangents[i], transposed(i)) for i in needs]


def jvp(
    primitive: Primitive, tangents: Sequence[Value | None], out: Any, inputs: Sequence[Value], params: dict[str, Any]
) -> Any:
    """The tangent of the result; None where it is zero. At least one tangent is given."""
    match primitive.rule:
        case Partials(partials=partials, masks=masks, chooses=chooses):
            times = chosen if chooses else scaled
            total = None
            for t, partial, own_mask in zip(tangents, partials, masks, strict=True):
                if t is None or (partial is None and own_mask is None):
                    continue
                term = times(t, 1.0 if partial is None else partial(out, *inputs))
                if own_mask is not None:
                    term = where(own_mask(out, *inputs), term, 0.0)
                total = term if total is None else total + term
            if total is not None and total.shape != out.shape:
                total = expand(total, shape=out.shape)
            return total
        case Linear(argnums=argnums):
            linear = range(len(inputs)) if argnums is None else argnums
            if all(tangents[i] is None for i in linear):
                return None
            given = next(t for t in tangents if t is not None)
            moved = [
                (_zeros_like(x, given) if tangents[i] is None else tangents[i]) if i in linear else x
                for i, x in enumerate(inputs)
            ]
            return primitive(*moved, **params)
        case Bilinear():
            tx, ty = tangents[0], tangents[1]
            first = primitive(tx, *inputs[1:], **params) if tx is not None else None
            second = primitive(inputs[0], ty, *inputs[2:], **params) if ty is not None else None
            return second if first is None else first if second is None else first + second
        case Custom(jvp=rule_jvp):
            if rule_jvp is None:
                raise NotDifferentiableError(f"{primitive.name} has no forward-mode rule; use reverse mode (vjp, grad)")
            return rule_jvp(tangents, out, *inputs, **params)
        case _:
            return None


def _zeros_like(x: Value, traced_as: Value) -> Value:
    """Zeros of the shape of an operand, whose value need not have been kept."""
    return expand(constant(0.0, x.dtype, traced_as), shape=x.shape)
