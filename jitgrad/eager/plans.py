"""Plans: running one primitive on ndarrays of given avals.

A plan holds what depends on dtypes, shapes and layouts, so that a call is one dictionary look-up and one entry point.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.core.aval import BOOL, ShapedArray, aval_of, make_aval
from jitgrad.core.graph import Graph
from jitgrad.core.infer import infer
from jitgrad.core.primitive import Elementwise, Host, Primitive, Reduce, View
from jitgrad.core.trace import is_tracing
from jitgrad.errors import DefinitionError, ShapeError
from jitgrad.kernels.kernel import entry_point, kernel_mode
from jitgrad.kernels.loops import emit_elementwise, emit_reduction

__all__ = [
    "Array",
    "Kernel",
    "Plan",
    "elementwise_entry",
    "forget_plans",
    "forward_kernel",
    "is_plan_table",
    "keep_plan",
    "layouts_of",
    "operand_names",
    "plan_for",
    "run",
]

Array = np.ndarray[Any, Any]
_LOOP_NAMES: Final = frozenset({"n", "i", "row", "out", "g", "result"})  # what emitted loops call their own
_MOST_PLANS: Final = 2048  # a table; plans are small, and forgetting them costs microseconds each
_filled: dict[int, dict[Any, Any]] = {}  # every table that has plans, by its id


class Plan:
    """How to run one primitive on operands of given avals.

    ``entry`` (elementwise only) takes the operands and a fresh result; ``run`` takes the operands and allocates.
    """

    __slots__ = (
        "aval",
        "avals",
        "dtype",
        "entry",
        "params",
        "primitive",
        "recorders",
        "run",
        "settled",
        "shape",
        "step",
    )

    def __init__(self, primitive: Primitive, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> None:
        self.primitive = primitive
        self.avals = avals
        self.params = params
        self.recorders: dict[tuple[int, ...], Any] = {}  # filled by recorder_for
        self.entry: Callable[..., None] | None = None
        self.aval: ShapedArray | None = None
        self.settled = all(a.contiguous for a in avals)  # then the layout of the result does not change either
        self.step = (primitive, tuple(params.items()))
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] = avals[0].dtype if avals else BOOL
        self.run: Callable[..., Any]
        match primitive.impl:
            case Elementwise():
                self._plan_elementwise()
            case Reduce() as impl:
                self._plan_reduction(impl)
            case View(view=view):
                self.run = functools.partial(view, **params) if params else view
            case Host() as impl:
                self._plan_host(impl)

    @classmethod
    def of_traced(cls, primitive: Primitive, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Plan:
        """A plan that is never run, only recorded with; it is not kept, so it must not be part of a cycle."""
        made = cls.__new__(cls)
        made.primitive, made.avals, made.params, made.recorders = primitive, avals, params, {}
        made.aval = None
        return made

    def aval_of_result(self, found: Any) -> ShapedArray:
        """The aval of what a run gave, which is not known before."""
        if type(found) is not np.ndarray:  # a kernel would read a NumPy scalar as if it were an array
            raise DefinitionError(f"{self.primitive.name} must give an ndarray, not {type(found).__name__}")
        aval = aval_of(found)
        if self.settled:
            self.aval = aval
        return aval

    def _plan_elementwise(self) -> None:
        (aval,) = infer(self.primitive, self.avals, self.params)
        self.aval, self.shape, self.dtype = aval, aval.shape, aval.dtype
        layouts = layouts_of(self.avals, aval)
        dtypes = tuple(a.dtype for a in self.avals)
        shape, dtype = self.shape, self.dtype

        def first_call(*arrays: Array) -> None:
            # compiled when it is first run: plans are also made for traced values, which never run
            self.entry = forward_entry(self.primitive, dtypes, aval.dtype, layouts, kernel_mode())
            self.entry(*arrays)

        def run_elementwise(*arrays: Array) -> Array:
            out = np.empty(shape, dtype)
            self.entry(*arrays, out)  # type: ignore[misc]
            return out

        self.entry = first_call

        self.run = run_elementwise

    def _plan_reduction(self, impl: Reduce) -> None:
        (x,) = self.avals
        axes: tuple[int, ...] = self.params["axes"]
        (aval,) = infer(self.primitive, self.avals, self.params)
        self.aval, self.shape, self.dtype = aval, aval.shape, aval.dtype
        count = math.prod(x.shape[i] for i in axes)
        if impl.needs_elements and count == 0 and aval.size:
            raise ShapeError(f"{self.primitive.name}: an empty axis of shape {x.shape} has no value; axes {axes}")
        grouped = not axes or axes == tuple(range(axes[0], axes[-1] + 1))
        inner = math.prod(x.shape[axes[-1] + 1 :]) if axes and grouped else 1
        if not axes:
            folded = (x.size, 1, 1)
        elif grouped:
            folded = (math.prod(x.shape[: axes[0]]), count, inner)
        else:
            folded = (aval.size, count, 1)
        order = None if grouped else tuple(i for i in range(x.ndim) if i not in axes) + axes
        accumulator = np.dtype(impl.accumulator(x.dtype))
        name = f"{self.primitive.name}_forward"
        signature = (f"b:{x.dtype.name}", f"b:{accumulator.name}", f"b:{aval.dtype.name}", *["n:int64"] * 3)
        shape, dtype = self.shape, self.dtype
        outer, count, inner = folded
        empty = np.empty
        contiguous = order is None and x.contiguous
        unused = empty(0, accumulator)

        def run_reduction(array: Array) -> Array:
            if not contiguous:
                array = np.ascontiguousarray(array if order is None else array.transpose(order))
            out = empty(shape, dtype)
            entry = self.entry
            if entry is None:
                source = emit_reduction(name, impl, x.dtype, impl.finish)
                entry = self.entry = entry_point(name, source, signature)
            entry(array, unused if inner == 1 else empty(inner, accumulator), out, outer, count, inner)
            return out

        self.run = run_reduction

    def _plan_host(self, impl: Host) -> None:
        def first_call(*arrays: Array) -> Any:
            # like entries: plans are also made for traced values, which never run
            self.run = impl.runner(self.avals, self.params)
            return self.run(*arrays)

        self.run = first_call


def layouts_of(avals: Sequence[ShapedArray], out: ShapedArray) -> str:
    """One letter an operand (see ``kernels.loops``); one strided operand makes all of them strided."""
    letters = ""
    for aval in avals:
        if aval.contiguous and aval.size == out.size:
            letters += "c"
        elif aval.size == 1:
            letters += "b"
        else:
            return "s" * len(avals)
    return letters


@functools.cache
def forward_entry(
    primitive: Primitive, dtypes: tuple[np.dtype[Any], ...], result: np.dtype[Any], layouts: str, mode: str
) -> Callable[..., None]:
    return elementwise_entry(*forward_kernel(primitive, dtypes, result), layouts)


Kernel = tuple[str, Graph, list[str], list[str]]
"""Name, graph, names of the inputs, names of the outputs."""


def forward_kernel(primitive: Primitive, dtypes: Sequence[np.dtype[Any]], result: np.dtype[Any]) -> Kernel:
    graph = Graph(primitive.name)
    inputs = [graph.add_input(make_aval((), d)) for d in dtypes]
    (out,) = graph.add(primitive, tuple(t.variable for t in inputs), {}, [make_aval((), result)])
    graph.outputs = [out.variable]
    return f"{primitive.name}_forward", graph, operand_names(primitive), ["out"]


def operand_names(primitive: Primitive) -> list[str]:
    """The operands as the body of the operation calls them."""
    assert isinstance(primitive.impl, Elementwise)
    names = inspect.signature(primitive.impl.body).parameters
    return [f"{n}_" if n in _LOOP_NAMES else n for n in names]


def elementwise_entry(
    name: str, graph: Graph, names: Sequence[str], outputs: Sequence[str], layouts: str
) -> Callable[..., None]:
    source = emit_elementwise(name, graph, names, outputs, layouts)
    signature = [f"b:{v.aval.dtype.name}" for v in graph.inputs] + [f"b:{o.aval.dtype.name}" for o in graph.outputs]
    return entry_point(name, source, tuple(signature))


def plan_for(primitive: Primitive, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Plan:
    """The plan of a primitive; elementwise ones of one or two operands are found directly by their methods."""
    key: Any = avals if not params else (avals, *params.items())
    plans = primitive.plans
    plan: Plan | None = plans.get(key)
    if plan is None:
        plan = Plan(primitive, avals, params)
        keep_plan(plans, key, plan)
    return plan


def keep_plan(table: dict[Any, Any], key: Any, plan: Any) -> None:
    """Let a plan, or what has one, be found in a table, until plans are forgotten."""
    if is_tracing():  # the short way must not find plans then: operations on captured arrays are recorded
        return
    if len(table) >= _MOST_PLANS:
        table.clear()
    _filled[id(table)] = table
    table[key] = plan
    if is_tracing():  # since then: that trace may have forgotten plans before this one was there
        table.pop(key, None)


def is_plan_table(value: Any) -> bool:
    """Whether this is a table that plans are kept in, which nothing but the speed of operations depends on."""
    return id(value) in _filled  # they are kept there, so that no other object has their numbers


def forget_plans() -> None:
    """Drop every plan, as a change of the kernel mode demands."""
    for table in list(_filled.values()):
        table.clear()


def run(primitive: Primitive, arrays: Sequence[Array], params: dict[str, Any]) -> Any:
    """The result of a primitive on ndarrays; nothing is recorded."""
    return plan_for(primitive, tuple(map(aval_of, arrays)), params).run(*arrays)
