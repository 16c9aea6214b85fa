"""Primitives: what an operation computes (its implementation) and how it is differentiated (its rule).

The two are independent. An implementation says how arrays become an array: a scalar body that is turned into loops, a
NumPy view, a reduction step, or a host function over array kernels. A rule says what a cotangent (or a tangent) becomes,
written in jitgrad operations, so that it can be run, recorded again, or traced into a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from jitgrad.core import dispatch
from jitgrad.core.aval import ShapedArray
from jitgrad.errors import DefinitionError

__all__ = [
    "ArrayCall",
    "Bilinear",
    "Custom",
    "Elementwise",
    "Folded",
    "Host",
    "Implementation",
    "Linear",
    "Operand",
    "Partials",
    "Primitive",
    "Reduce",
    "Rule",
    "Value",
    "View",
]

Value: TypeAlias = Any
"""What rules and public functions compute with: a Tensor, eager or traced (the class lives in a higher layer)."""

Params: TypeAlias = dict[str, Any]


# --------------------------------------------------------------------------- implementations
@dataclass(frozen=True, eq=False)
class Elementwise:
    """A scalar function; operands are promoted to one dtype and broadcast.

    ``result``: "float" (integers become float64 first), "same" (the promoted dtype) or "bool".
    ``fixed`` names operands that keep a dtype of their own: position -> dtype (the condition of ``where`` is bool).
    ``refuses``: kinds of dtypes (``b``, ``i``, ``u``, ``f``) that the operation does not take.
    """

    body: Callable[..., Any]
    arity: int
    result: Literal["float", "same", "bool"]
    fixed: dict[int, Any]
    refuses: str = ""


@dataclass(frozen=True, eq=False)
class View:
    """A NumPy expression whose result shares the memory of its one operand."""

    view: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Reduce:
    """A fold over axes: ``start``, ``step(acc, x)``, ``finish(acc, n)``; accumulated in ``accumulator`` dtype.

    The canonical parameter is ``axes``, a sorted tuple of non-negative ints; the result drops them.
    ``needs_elements``: an empty reduction has no value (max, min).
    """

    start: Callable[[Any], Any]
    step: Callable[..., Any]
    finish: Callable[..., Any] | None
    accumulator: Callable[[Any], Any]
    result: Callable[[Any], Any]
    needs_elements: bool


@dataclass(frozen=True)
class Operand:
    """An operand or result of a primitive, for the description of a call: operands are counted first, then results."""

    position: int
    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


@dataclass(frozen=True)
class Folded:
    """An operand or result as an array kernel takes it: in C order, each group of neighbouring axes as one axis."""

    position: int
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ArrayCall:
    """How an array kernel computes a primitive: its arguments are folded operands and results, and numbers.

    ``equal`` has pairs of axes, each as (position, axis), whose extents are the same for all operands that are taken.
    The kernel fills its results entirely; it raises ``LinAlgError`` or ``IndexError`` for values that it cannot take.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    equal: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()


@dataclass(frozen=True, eq=False)
class Host:
    """A Python function of ndarrays (over compiled array kernels), with a rule for the avals of its results.

    ``prepare`` (optional), given ``run``, avals and parameters, makes what runs it on arrays of these avals alone.
    For the kernels that it becomes part of: ``expression`` (optional) is the same result in jitgrad operations, ``call``
    (optional) the array kernel that computes it, as a function of operands, results and parameters. Both may give None
    for parameters and shapes that they do not cover.
    """

    run: Callable[..., Any]
    infer: Callable[..., Any]
    expression: Callable[..., Any] | None = None
    call: Callable[..., ArrayCall | None] | None = None
    prepare: Callable[[Callable[..., Any], Sequence[ShapedArray], dict[str, Any]], Callable[..., Any]] | None = None

    def runner(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> Callable[..., Any]:
        """What runs it on arrays of these avals with these parameters."""
        if self.prepare is not None:
            return self.prepare(self.run, avals, params)
        return functools.partial(self.run, **params) if params else self.run


Implementation: TypeAlias = Elementwise | View | Reduce | Host


# --------------------------------------------------------------------------- rules
@dataclass(frozen=True, eq=False)
class Partials:
    """Elementwise: one partial derivative an operand, ``partial(out, *inputs)``; None where there is none.

    ``masks[i](out, *inputs)`` (optional) says where operand i reaches the result at all: elsewhere its cotangent is
    structurally zero, whatever the derivatives before it are.
    ``chooses``: a derivative of 0 says that the operand was not chosen. It then gets 0, be the cotangent infinite or NaN.
    """

    partials: tuple[Callable[..., Value] | None, ...]
    masks: tuple[Callable[..., Value] | None, ...]
    chooses: bool = False


@dataclass(frozen=True, eq=False)
class Linear:
    """Linear in the operands ``argnums``: ``transpose(g, *inputs, **params)`` gives the cotangent of the one linear
    operand (a tuple, aligned with the operands, where there are several).

    ``holes``: the map drops elements, so that its transpose leaves structural zeros.
    """

    transpose: Callable[..., Any]
    argnums: tuple[int, ...] | None  # None: every operand
    holes: bool
    contracts: bool  # elements are added up on the way back or forth: structural zeros end there


@dataclass(frozen=True, eq=False)
class Bilinear:
    """Linear in each of two operands: ``transposes[i](g, x, y, **params)``."""

    transposes: tuple[Callable[..., Value], Callable[..., Value]]


@dataclass(frozen=True, eq=False)
class Custom:
    """``vjp(g, out, *inputs, **params)`` gives a tuple aligned with the operands; ``jvp(tangents, out, *inputs,
    **params)`` (optional) the tangent of the result. Operations with several results get and give tuples."""

    vjp: Callable[..., Any]
    jvp: Callable[..., Any] | None
    nondiff: tuple[int, ...]


Rule: TypeAlias = Partials | Linear | Bilinear | Custom


class Primitive:
    """One operation of the graph language, identified by its one object; ``name`` is for people, and with
    ``definition``, the file and line of its code, for what is kept on disk."""

    __slots__ = ("definition", "differentiable", "impl", "name", "outputs", "plans", "rule")

    def __init__(
        self, name: str, impl: Implementation, rule: Rule | None, *, outputs: int = 1, definition: str = ""
    ) -> None:
        if isinstance(rule, Partials) and isinstance(impl, Elementwise) and len(rule.partials) != impl.arity:
            raise DefinitionError(f"{name}: {impl.arity} operands but {len(rule.partials)} partials")
        self.name = name.strip("_")  # a leading underscore says that it is part of a public operation
        self.impl = impl
        self.rule = rule
        self.outputs = outputs
        self.definition = definition
        self.differentiable = self._differentiable(rule)
        self.plans: dict[Any, Any] = {}  # how to run it on operands of given avals; filled and bounded by eager

    @staticmethod
    def _differentiable(rule: Rule | None) -> Callable[[int], bool]:
        match rule:
            case None:
                return lambda i: False
            case Partials(partials=partials, masks=masks):
                return lambda i: partials[i] is not None or masks[i] is not None
            case Linear(argnums=argnums):
                return lambda i: argnums is None or i in argnums
            case Bilinear():
                return lambda i: i < 2
            case Custom(nondiff=nondiff):
                return lambda i: i not in nondiff

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Run, record or trace this primitive on values or array-likes."""
        return dispatch.engine().apply(self, args, params)

    def __repr__(self) -> str:
        return self.name
