"""Eager cases: what one recorded operation costs, and a few of them with backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

__all__ = ["EAGER", "Eager"]


@dataclass(frozen=True)
class Eager:
    """An expression over recorded arrays x and y; with backward, both gradients of it."""

    name: str
    n: int
    function: Callable[[Any, Any, Any], Any]  # of the namespace, x and y
    backward: bool = False

    def __reduce__(self) -> Any:  # the functions are lambdas: sent to other processes by name
        return _by_name, (self.name,)

    def arguments(self) -> tuple[Any, ...]:
        """Two arrays of n elements."""
        return numpy.linspace(0.5, 1.5, self.n), numpy.linspace(1.5, 0.5, self.n)

    def prepare(self, library: Any) -> Any:
        """The library's function and recorded arguments for it."""
        space, function = library.eager, self.function
        leaves = [library.leaf(a) for a in self.arguments()]
        if not self.backward:
            return (lambda x, y: function(space, x, y)), leaves
        gradients = library.gradients
        return (lambda *xs: gradients(lambda x, y: function(space, x, y), xs)), leaves


def _ten_multiplies(np: Any, x: Any, y: Any) -> Any:
    z = x
    for _ in range(10):
        z = z * y
    return z.sum()


EAGER = {
    case.name: case
    for case in (
        Eager("multiply", 10, lambda np, x, y: x * y),
        Eager("one_minus", 10, lambda np, x, y: 1.0 - x),
        Eager("product", 10, lambda np, x, y: x @ y),
        Eager("exp", 10, lambda np, x, y: np.exp(x)),
        Eager("element", 10, lambda np, x, y: x[0]),
        Eager("slice", 10, lambda np, x, y: x[1:]),
        Eager("sum", 10, lambda np, x, y: x.sum()),
        Eager("ten_multiplies_backward", 10, _ten_multiplies, backward=True),
        Eager("tanh_backward_1e3", 1000, lambda np, x, y: (np.tanh(x) * y).sum(), backward=True),
        Eager("tanh_backward_1e6", 1_000_000, lambda np, x, y: (np.tanh(x) * y).sum(), backward=True),
    )
}


def _by_name(name: str) -> Eager:
    return EAGER[name]
