"""Sums that are known but for a factor: gradients often sum ``c * e`` where the sum of ``e`` was needed before.

The sum of ``c * e`` is then ``c * total``, to rounding, without a pass over ``e`` - where it has the same NaN and infinities.
It has where no ``e`` is negative and ``c * total`` is finite: then factor and total are finite; so is every ``e``, since the
total would be NaN or infinite otherwise; and no product is larger than ``c * total``, since no ``e`` is larger than the total.
Whether it is finite is seen when the kernel runs. If it is not, the loop runs after all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jitgrad.core.graph import Atom, Node, Variable
from jitgrad.ops.elementwise import abs, exp, exp2, multiply, negative, square
from jitgrad.ops.linear import expand, sum_over

__all__ = ["Scaled", "Totals"]

_NEVER_NEGATIVE: Final = frozenset({exp.primitive, exp2.primitive, abs.primitive, square.primitive})


@dataclass(frozen=True)
class Scaled:
    """A sum that is ``factor * total``, or minus that."""

    factor: Atom
    total: Variable
    negated: bool


class Totals:
    """The sums that a program has computed so far."""

    def __init__(self, producers: Mapping[Variable, Node]) -> None:
        self._producers = producers
        self._known: dict[tuple[Atom, Any], Variable] = {}

    def find(self, node: Node) -> Scaled | None:
        """How this sum follows from an earlier one; None if it does not, or is no sum of floats over innermost axes."""
        (x, *_), (out, *_) = node.inputs, node.outputs
        if node.primitive is not sum_over or x.aval.dtype.kind != "f" or out.aval.dtype != x.aval.dtype:
            return None
        axes = node.params["axes"]
        running = [a for a, n in enumerate(x.aval.shape) if n != 1]
        if not axes or any(a not in axes for a in running if a > axes[0]):
            return None  # the loops that would be skipped are around others
        self._known.setdefault((x, axes), out)
        negated = False
        made_by = self._made_by(x)
        while made_by is not None and made_by.primitive is negative.primitive:
            negated = not negated
            made_by = self._made_by(made_by.inputs[0])
        if made_by is None or made_by.primitive is not multiply.primitive:
            return None
        for factor, e in (made_by.inputs, made_by.inputs[::-1]):
            total = self._known.get((e, axes))
            source = self._made_by(e)
            if total is None or source is None or source.primitive not in _NEVER_NEGATIVE or e.aval != x.aval:
                continue
            expanded = self._made_by(factor)
            if expanded is not None and expanded.primitive is expand:
                factor = expanded.inputs[0]
            lead = x.aval.ndim - factor.aval.ndim
            if factor.aval.dtype == x.aval.dtype and all(a < lead or factor.aval.shape[a - lead] == 1 for a in axes):
                return Scaled(factor, total, negated)
        return None

    def _made_by(self, atom: Atom) -> Node | None:
        return self._producers.get(atom) if isinstance(atom, Variable) else None
