"""Recorders: what a node keeps for backward, and how it is differentiated.

Both are read off the trace of the rule. The backward kernel of an elementwise operation is that trace, compiled as one
loop; other rules run as a short list of primitives.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.node import GradNode, NodeRecorder
from jitgrad.autodiff.rules import Mask, is_plain, jvp, vjp
from jitgrad.core.aval import ShapedArray, make_aval
from jitgrad.core.dispatch import constant, wrap
from jitgrad.core.graph import Atom, Constant, Graph, Tracer, Variable, is_number
from jitgrad.core.infer import infer
from jitgrad.core.modes import grad_mode, in_backward
from jitgrad.core.primitive import Custom, Elementwise, Host, Linear, Partials, Primitive, Value, View
from jitgrad.core.trace import trace
from jitgrad.eager.plans import (
    Array,
    Kernel,
    Plan,
    elementwise_entry,
    forward_kernel,
    layouts_of,
    operand_names,
    run,
)
from jitgrad.errors import DefinitionError, user_line
from jitgrad.kernels.kernel import kernel_mode
from jitgrad.kernels.loops import emit_elementwise
from jitgrad.ops.linear import expand, sum_to

__all__ = ["Recorder", "kernel_source", "recorder_for"]


def recorder_for(plan: Plan, needs: tuple[int, ...], keep_all: bool = False) -> Recorder:
    """The recorder of a plan for tracked operands ``needs``; ``keep_all``: its nodes can also push tangents forward."""
    key = (*needs, -1) if keep_all else needs
    found: Recorder | None = plan.recorders.get(key)
    if found is None:
        found = plan.recorders[key] = Recorder(plan, needs, keep_all)
    return found


def kernel_source(primitive: Primitive, *dtypes: Any, backward: bool = False, layout: str = "c") -> str:
    """The source of the forward or backward kernel of an elementwise primitive, as it is compiled.

    ``dtypes`` of the operands (float64 by default); ``layout``: ``c`` for contiguous operands, ``s`` for strided ones.
    """
    assert isinstance(primitive.impl, Elementwise)
    count, fixed = primitive.impl.arity, primitive.impl.fixed
    made = tuple(map(np.dtype, dtypes or (fixed.get(i, "float64") for i in range(count))))
    result = infer(primitive, [make_aval((), d) for d in made], {})[0].dtype
    if not backward:
        return emit_elementwise(*forward_kernel(primitive, made, result), layout * count)
    needs = tuple(i for i in range(count) if primitive.differentiable(i))
    differential = _differential(primitive, made, result, needs)
    return emit_elementwise(*differential.kernel, layout * len(differential.graph.inputs))


_BELOW_THE_SWEEP: Final = 7  # frames from here to the sweep that runs a recorder, none of them the user's


class _Differential:
    """The trace of an elementwise rule: which values it reads, and the kernels of its cotangents by layout."""

    __slots__ = ("_entries", "graph", "keep", "kernel", "passes", "plain")

    def __init__(
        self, primitive: Primitive, dtypes: tuple[np.dtype[Any], ...], out: np.dtype[Any], needs: tuple[int, ...]
    ):
        scalars = [make_aval((), d) for d in (out, *dtypes, out)]
        count = len(dtypes)

        plain: list[bool] = []

        def rule(g: Value, *values: Value) -> list[Value]:
            found = vjp(primitive, needs, g, None, values[count], values[:count], {})
            if isinstance(primitive.rule, Partials):
                slopes = [primitive.rule.partials[i] for i in needs]
                plain.extend(s is not None and is_plain(s(values[count], *values[:count])) for s in slopes)
            return [pair[0] for pair in found if pair is not None]

        graph = trace(rule, scalars, f"{primitive.name}_backward").live()
        # what passes the cotangent on as it is needs no kernel
        gradient = graph.inputs[0]
        self.passes = tuple(o is gradient for o in graph.outputs)
        self.plain = all(plain)
        graph.outputs = [o for o in graph.outputs if o is not gradient]
        used = graph.used_inputs()
        self.keep = tuple(i for i, v in enumerate(graph.inputs[1:]) if v in used)
        graph.inputs = [gradient, *(graph.inputs[1 + i] for i in self.keep)]
        self.graph = graph
        operands = operand_names(primitive)
        names = ["g", *((*operands, "result")[i] for i in self.keep)]
        outputs = [f"g_{operands[i]}" for i, passed in zip(needs, self.passes, strict=True) if not passed]
        self.kernel: Kernel = (f"{primitive.name}_backward", graph, names, outputs)
        self._entries: dict[tuple[str, str], Callable[..., None]] = {}

    def entry(self, layouts: str) -> Callable[..., None]:
        """The kernel ``(g, *kept, *cotangents)``."""
        key = (layouts, kernel_mode())
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = elementwise_entry(*self.kernel, layouts)
        return found

    def into(self, graph: Graph, gradient: Atom, values: Sequence[Atom]) -> list[Atom]:
        """Put the operations of the rule into a graph of larger values; the cotangents that it does not just pass on."""
        if not self.graph.nodes:
            return []
        known: dict[Atom, Atom] = dict(zip(self.graph.inputs, [gradient, *[values[i] for i in self.keep]], strict=True))
        where = user_line(_BELOW_THE_SWEEP) if graph.lines else None
        for node in self.graph.nodes:
            inputs = tuple([known.get(a, a) for a in node.inputs])
            avals = infer(node.primitive, [a.aval for a in inputs], node.params)
            made = graph.append(node.primitive, inputs, node.params, avals, where, in_backward.get())
            known.update(zip(node.outputs, made, strict=True))
        return [known.get(a, a) for a in self.graph.outputs]


_differential = functools.cache(_Differential)


class _Program:
    """The trace of a rule as a list of primitives to run on ndarrays."""

    __slots__ = ("_runners", "_slots", "outputs", "steps")

    def __init__(self, graph: Graph, inputs: Sequence[Variable]) -> None:
        slots: dict[Any, int] = {v: i for i, v in enumerate(inputs)}
        constants: list[tuple[int, Array]] = []

        def slot(atom: Any) -> int:
            if atom not in slots:
                slots[atom] = len(slots)
                if isinstance(atom, Constant):
                    constants.append((slots[atom], atom.value))
            return slots[atom]

        self.steps = [
            (n.primitive, tuple(map(slot, n.inputs)), n.params, tuple(map(slot, n.outputs))) for n in graph.nodes
        ]
        self._runners: list[Any] = [None] * len(self.steps)  # of host primitives; the shapes are always the same
        self.outputs = tuple(map(slot, graph.outputs))
        self._slots = (len(slots), constants)

    def __call__(self, *arrays: Array) -> list[Array]:
        count, constants = self._slots
        values: list[Any] = [*arrays, *[None] * (count - len(arrays))]
        for i, value in constants:
            values[i] = value
        for k, (primitive, sources, params, targets) in enumerate(self.steps):
            impl = primitive.impl
            if type(impl) is View:  # neither this nor the next needs a plan
                values[targets[0]] = impl.view(values[sources[0]], **params)
                continue
            if type(impl) is Host:
                given = [values[i] for i in sources]
                runner = self._runners[k]
                if runner is None:
                    avals = [make_aval(a.shape, a.dtype, False) for a in given]  # whatever the layout is next time
                    runner = self._runners[k] = impl.runner(avals, params)
                result = runner(*given)
            else:
                result = run(primitive, [values[i] for i in sources], params)
            if len(targets) == 1:
                values[targets[0]] = result
            else:
                for i, r in zip(targets, result, strict=True):
                    values[i] = r
        return [values[i] for i in self.outputs]


class _Unkept:
    """Stands for an operand whose value the rule does not read: shape and dtype only."""

    def __init__(self, aval: ShapedArray) -> None:
        self.shape = aval.shape
        self.dtype = aval.dtype
        self.ndim = aval.ndim
        self.size = aval.size


class Recorder(NodeRecorder):
    """How a plan is recorded when the operands ``needs`` are tracked, and how its node is differentiated.

    ``keep``: indices into ``(*operands, *results)`` of the arrays that a node holds until backward.
    """

    __slots__ = (
        "_all_traced",
        "_differential",
        "_out_avals",
        "_program",
        "_reads",
        "_splices",
        "_traced",
        "avals",
        "fresh",
        "keep",
        "masks",
        "name",
        "needs",
        "outputs",
        "params",
        "part",
        "plain",
        "plan",
        "primitive",
        "run",
        "save",
    )

    def __init__(self, plan: Plan, needs: tuple[int, ...], keep_all: bool = False) -> None:
        self.plan = plan
        self.primitive = primitive = plan.primitive
        self.name = primitive.name
        self.params = plan.params
        self.avals = plan.avals
        self.needs = needs
        seen = plan.aval if isinstance(primitive.impl, View) else None  # inferring what a view gives takes a view
        self._out_avals: tuple[ShapedArray, ...] | None = None if seen is None else (seen,)
        self.outputs = primitive.outputs
        self._differential: _Differential | None = None
        self._program: _Program | None = None
        self._reads: tuple[int, ...] | None = None
        self.run: Callable[[GradNode, Any], Sequence[Array | None]] = self._first_run
        rule = primitive.rule
        self.masks = (isinstance(rule, Linear) and rule.holes) or (
            isinstance(rule, Partials) and any(rule.masks[i] is not None for i in needs)
        )
        self.plain = False
        self.part: Callable[[Array], Array] | None = None
        elementwise = isinstance(primitive.impl, Elementwise) and isinstance(rule, Partials)
        self._splices = keep_all and elementwise and not self.masks
        if keep_all:  # what the rule reads need not be known
            self.keep = tuple(range(len(plan.avals) + self.outputs))
            self.run = _run_values
            self.fresh = (False,) * len(needs)
        elif elementwise:
            dtypes = tuple(a.dtype for a in plan.avals)
            self._differential = differential = _differential(primitive, dtypes, plan.dtype, needs)
            self.keep = differential.keep
            same = all(plan.avals[i].shape == plan.shape for i in needs)
            self.plain = differential.plain and same
            self.fresh = tuple(not p for p in differential.passes)
        else:
            if isinstance(rule, Linear) and (rule.argnums is None or len(plan.avals) == 1):
                self.keep = ()  # such a rule reads no values, so its trace can wait until it is worth it
            else:
                self._trace_rule()
            if isinstance(primitive.impl, View) and self.masks:
                self.part = plan.run
            self.fresh = (self.part is not None,) * len(needs)
        self.save = _saver(self.keep)

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        """The avals of the results."""
        if self._out_avals is None:
            self._out_avals = infer(self.primitive, self.avals, self.params)
        return self._out_avals

    @property
    def reads(self) -> tuple[int, ...]:
        """The places in ``keep`` whose values the rule reads; the others may be overwritten."""
        if self._reads is None:
            if len(self.keep) == len(self.avals) + self.outputs and not isinstance(self.primitive.rule, Custom):
                self._reads = Recorder(self.plan, self.needs).keep
            else:
                self._reads = tuple(range(len(self.keep)))
        return self._reads

    def _trace_rule(self) -> None:
        count = len(self.avals)
        rule_avals = [*self.out_avals, *self.avals, *self.out_avals]

        def rule(*values: Value) -> list[Value]:
            gs, inputs, outs = (
                values[: self.outputs],
                values[self.outputs : self.outputs + count],
                values[self.outputs + count :],
            )
            g, out = (gs[0], outs[0]) if self.outputs == 1 else (gs, outs)
            found = vjp(self.primitive, self.needs, g, None, out, inputs, self.params)
            self._traced = tuple(pair is not None for pair in found)
            return [pair[0] for pair in found if pair is not None]

        graph = trace(rule, rule_avals, f"{self.name}_backward").live()
        self._all_traced = all(self._traced)
        used = graph.used_inputs()
        kept = graph.inputs[self.outputs :]
        self.keep = tuple(i for i, v in enumerate(kept) if v in used)
        self._program = _Program(graph, [*graph.inputs[: self.outputs], *(kept[i] for i in self.keep)])

    def _first_run(self, node: GradNode, g: Any) -> Sequence[Array | None]:
        """The cotangents of the operands ``needs``, from arrays to arrays; settles how the later calls do it."""
        if self._differential is not None:
            self.run = _fused_backward(self, self._differential)
        elif self._program is not None:
            self.run = self._run_program
        else:
            self.run = self._second_run  # once is often all: each index of a loop has a recorder of its own
            return _run_values(node, g)
        return self.run(node, g)

    def _second_run(self, node: GradNode, g: Any) -> Sequence[Array | None]:
        self._trace_rule()
        if self.keep:
            raise DefinitionError(f"{self.name}: the transpose of a linear operation reads the values of its operands")
        self.run = self._run_program
        return self.run(node, g)

    def _run_program(self, node: GradNode, g: Any) -> Sequence[Array | None]:
        assert self._program is not None
        if self.outputs == 1:
            gs = [g]
        else:
            gs = [np.zeros(a.shape, a.dtype) if x is None else x for x, a in zip(g, self.out_avals, strict=True)]
        found = self._program(*gs, *node.residuals)
        if self._all_traced:
            return found
        rest = iter(found)
        return [next(rest) if there else None for there in self._traced]

    def values(self, node: GradNode, g: Any, mask: Mask | None, record: bool) -> list[tuple[Value, Mask | None] | None]:
        """The cotangents as tensors, with masks; ``record``: they can be differentiated again."""
        if mask is None and self._splices and not (record and grad_mode.get()):
            spliced = self._spliced(node, g)
            if spliced is not None:
                return spliced
        inputs, outs = self._held(node, record)
        out = outs[0] if self.outputs == 1 else tuple(outs)
        if self.outputs > 1:
            like = next(x for x in g if x is not None)
            g = tuple(  # a result that is kept knows whose extents its own are
                expand(constant(0.0, y.dtype, like), shape=y.shape) if x is None else x
                for x, y in zip(g, outs, strict=True)
            )
        return vjp(self.primitive, self.needs, g, mask, out, inputs, self.params)

    def _spliced(self, node: GradNode, g: Any) -> list[tuple[Value, Mask | None] | None] | None:
        """The cotangents of an elementwise operation on traced values, by the trace of its rule instead of the rule."""
        tracer = g._value
        if type(tracer) is not Tracer:
            return None
        graph = tracer.graph
        values: list[Atom] = []
        for value in node.residuals:
            if type(value) is Tracer:
                if value.graph is not graph:
                    return None
                values.append(value.variable)
            elif is_number(value):
                values.append(Constant(value))
            else:
                return None
        differential = self._differential
        if differential is None:
            *dtypes, out = [v.aval.dtype for v in values]
            differential = self._differential = _differential(self.primitive, tuple(dtypes), out, self.needs)
        gradient = tracer.variable
        made = iter(differential.into(graph, gradient, values))
        found: list[tuple[Value, Mask | None] | None] = []
        for i, passed in zip(self.needs, differential.passes, strict=True):
            atom = gradient if passed else next(made)
            if atom.aval.shape != gradient.aval.shape:  # the rule does more than can be said of one element
                return None
            cotangent = g if passed else wrap(Tracer(graph, atom))
            if values[i].aval.shape != gradient.aval.shape:
                cotangent = sum_to(cotangent, wrap(node.residuals[i]).shape)
            found.append((cotangent, None))
        return found

    def push(self, node: GradNode, tangents: Sequence[Value | None], record: bool) -> Any:
        """The tangent of the result (a tuple of them for several), given those of the operands ``needs``."""
        inputs, outs = self._held(node, record)
        directions: list[Value | None] = [None] * len(inputs)
        for i, tangent in zip(self.needs, tangents, strict=True):
            directions[i] = tangent
        return jvp(self.primitive, directions, outs[0] if self.outputs == 1 else tuple(outs), inputs, self.params)

    def _held(self, node: GradNode, record: bool) -> tuple[list[Any], list[Any]]:
        """The operands and results that a node keeps, as tensors; ``record``: linked to where they came from."""
        count = len(self.avals)
        if len(self.keep) == count + self.outputs:
            if not (record and grad_mode.get()):
                held: list[Any] = [wrap(array) for array in node.residuals]
                return held[:count], held[count:]
            held = [None] * len(self.keep)
        else:
            held = [_Unkept(a) for a in (*self.avals, *self.out_avals)]
        for i, array in zip(self.keep, node.residuals, strict=True):
            value = wrap(array)
            if record:
                if i >= count:
                    value._edge, value._slot = node, i - count
                elif i in self.needs and node.edges is not None:
                    at = self.needs.index(i)
                    value._edge, value._slot = node.edges[at], node.slots[at] if node.slots else 0
            held[i] = value
        return held[:count], held[count:]


def _run_values(node: GradNode, g: Any) -> Sequence[Array | None]:
    """The backward of a node that keeps everything; not a bound method, which would make its recorder a cycle."""
    return NodeRecorder.run(node.recorder, node, g)


def _fused_backward(recorder: Recorder, differential: _Differential) -> Callable[[GradNode, Array], Sequence[Array]]:
    """The compiled backward of an elementwise operation, with everything that does not change settled beforehand."""
    plan = recorder.plan
    aval = plan.aval
    assert aval is not None
    shape, dtype = plan.shape, plan.dtype
    passes = differential.passes
    shapes = [recorder.avals[i].shape for i in recorder.needs]
    if all(passes):
        return lambda node, g: [_sum_to(g, s) for s in shapes]
    kept = [recorder.avals[i] if i < len(recorder.avals) else aval for i in differential.keep]
    entries: dict[bool, Callable[..., None]] = {}
    contiguous = make_aval(shape, dtype, True)
    strided = make_aval(shape, dtype, False)
    empty = np.empty

    def entry_for(is_contiguous: bool) -> Callable[..., None]:
        g_aval = contiguous if is_contiguous else strided
        entry = entries[is_contiguous] = differential.entry(layouts_of([g_aval, *kept], aval))
        return entry

    same = all(s == shape for s in shapes)
    if same and passes == (False,):

        def one(node: GradNode, g: Array) -> Sequence[Array]:
            flag = g.flags.c_contiguous
            out = empty(shape, dtype)
            (entries.get(flag) or entry_for(flag))(g, *node.residuals, out)
            return (out,)

        return one
    if same and passes == (False, False):

        def two(node: GradNode, g: Array) -> Sequence[Array]:
            flag = g.flags.c_contiguous
            first = empty(shape, dtype)
            second = empty(shape, dtype)
            (entries.get(flag) or entry_for(flag))(g, *node.residuals, first, second)
            return first, second

        return two

    def general(node: GradNode, g: Array) -> Sequence[Array]:
        flag = g.flags.c_contiguous
        results = [g if p else empty(shape, dtype) for p in passes]
        made = [r for r, p in zip(results, passes, strict=True) if not p]
        (entries.get(flag) or entry_for(flag))(g, *node.residuals, *made)
        return results if same else [_sum_to(r, s) for r, s in zip(results, shapes, strict=True)]

    return general


def _saver(keep: tuple[int, ...]) -> Callable[..., tuple[Array, ...]]:
    """A function of operands and results that gives those to keep, without a loop."""
    if not keep:
        return lambda *arrays: ()
    if len(keep) == 1:
        (only,) = keep
        return lambda *arrays: (arrays[only],)
    pick = operator.itemgetter(*keep)
    return lambda *arrays: pick(arrays)


def _sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape == shape:
        return array
    from_value = sum_to(wrap(array), shape)
    return from_value._value  # type: ignore[no-any-return]
