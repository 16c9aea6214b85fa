"""Applying primitives to tensors: convert, choose a plan, run it, and record a node where a gradient is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from jitgrad.autodiff.node import GradNode, next_tick
from jitgrad.core.aval import ShapedArray, aval_of
from jitgrad.core.graph import Graph, Tracer, is_number
from jitgrad.core.infer import infer
from jitgrad.core.memory import owner
from jitgrad.core.modes import grad_mode, in_backward
from jitgrad.core.primitive import Elementwise, Primitive, View
from jitgrad.core.trace import atom_of, current_graph, is_any_replaced, is_tracing, operand_for
from jitgrad.core.watching import note_applied, watches
from jitgrad.eager import Plan, Recorder, plan_for
from jitgrad.errors import user_line
from jitgrad.tensor.operands import as_tensor, constant, elementwise_operands, operand, promoted, wrap
from jitgrad.tensor.recording import attach, inherit_origin, record, run_recorded, tracked_operands
from jitgrad.tensor.storage import link_view, storage_of
from jitgrad.tensor.tensor import Tensor, make
from jitgrad.tensor.traced_memory import share_traced

__all__ = ["ENGINE", "apply", "view_result"]

_new = object.__new__
_is_enabled = grad_mode.get
_FIRST = (0,)


def apply(primitive: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """The result of a primitive: a tensor, or a tuple of them."""
    impl = primitive.impl
    tracing = is_tracing()
    if tracing and is_any_replaced():
        args = tuple(map(operand_for, args))
    if isinstance(impl, Elementwise):
        operands = elementwise_operands(primitive, impl, args)
    else:
        operands = [a if type(a) is Tensor else as_tensor(a, primitive.name) for a in args]
    tracked = False
    arrays = []
    for t in operands:
        value = t._value
        if type(value) is Tracer:
            return _trace(primitive, operands, params)
        arrays.append(value)
        if t._edge is not None:
            tracked = True
    graph = current_graph() if tracing and arrays else None
    if graph is not None and not all(map(is_number, arrays)):
        return _trace(primitive, operands, params, graph)
    plan = plan_for(primitive, tuple([t._aval for t in operands]), params)
    if primitive.outputs > 1:
        results = tuple([make(a, aval_of(a)) for a in plan.run(*arrays)])
        if tracked:
            record(plan, operands, results)
        if watches:
            note_applied(plan, operands, None)
        return results
    if type(impl) is View:
        result = view_result(plan, operands[0], plan.run(*arrays))
    else:
        result = run_recorded(plan, operands, arrays)
    if graph is not None and result.ndim == 0:
        result._value.flags.writeable = False  # made of numbers of the program alone: another one
    if watches:
        note_applied(plan, operands, result)
    return result


def view_result(plan: Plan, base: Tensor, found: Any) -> Tensor:
    """The tensor on what a view primitive made of ``base``: recorded, and linked to the base where it shares its memory."""
    result: Tensor = _new(Tensor)
    result._value = found
    result._aval = plan.aval or plan.aval_of_result(found)
    mode = _is_enabled()
    edge = base._edge
    if edge is None:
        if base._origin is not None:
            result._origin = base._origin
    else:
        recorder = plan.recorders.get(_FIRST)  # there is one only where the result is differentiable
        if mode is not True or recorder is None or recorder.keep or base._slot:
            record(plan, (base,), (result,))
        else:
            result._edge = node = _new(GradNode)
            node.recorder = recorder
            node.edges = (edge,)
            node.residuals = ()
            node.tick = next_tick()
    array, memory = base._value, found.base
    if memory is array or (memory is not None and memory is array.base) or owner(found) is owner(array):
        (base._storage or storage_of(base)).add(result)
        if plan.primitive.rule is not None:
            if mode:
                link_view(base, result, plan.step)
            else:
                result._no_grad_view = True
    return result


def _trace(primitive: Primitive, operands: Sequence[Tensor], params: dict[str, Any], graph: Graph | None = None) -> Any:
    if graph is None:
        for t in operands:  # the innermost trace
            if type(t._value) is Tracer and (graph is None or t._value.graph.depth > graph.depth):
                graph = t._value.graph
        assert graph is not None
    atoms, avals = [], []
    tracked = False
    for t in operands:
        value = t._value
        if type(value) is Tracer:
            atom = value.variable
            atoms.append(atom if value.graph is graph else atom_of(value, graph, t))
            avals.append(atom.aval)
        else:
            atoms.append(atom_of(value, graph, t))
            avals.append(t._aval)
        if t._edge is not None:
            tracked = True
    where = user_line() if graph.lines else None
    outs = infer(primitive, avals, params)
    tracers = graph.add(primitive, tuple(atoms), params, outs, where, in_backward.get())
    results = tuple([make(t, t.own_aval) for t in tracers])
    if type(primitive.impl) is View:
        share_traced(operands[0], results[0], (primitive, tuple(params.items())))
    if tracked and primitive.rule is not None and (mode := grad_mode.get()):
        needs = tracked_operands(primitive, operands, results, mode)
        if needs:
            if all(map(_is_plain, params.values())):
                recorder = _traced_recorder(primitive, tuple(avals), needs, params)
            else:  # they know whose extents they are, so that the recorder is nobody else's
                recorder = _own_recorder(primitive, tuple(avals), needs, params)
            if graph is current_graph():
                operands = [_lifted(t, a, graph) for t, a in zip(operands, atoms, strict=True)]
            attach(recorder, needs, operands, results, mode)
    elif not tracked:
        for result in results:
            inherit_origin(operands, result)
    return results if primitive.outputs > 1 else results[0]


def _own_recorder(
    primitive: Primitive, avals: tuple[ShapedArray, ...], needs: tuple[int, ...], params: dict[str, Any]
) -> Recorder:
    """A recorder of traced values: its nodes keep all of them, which costs nothing."""
    # with a plan of its own: a cached one would be found again by the avals, and run
    return Recorder(Plan.of_traced(primitive, avals, params), needs, True)


_traced_recorders: dict[Any, Recorder] = {}


def _is_plain(value: Any) -> bool:
    """Whether a parameter says the same in every graph; equal ones are of one type."""
    kind = type(value)
    return kind is int or value is None or (kind is tuple and all(map(_is_plain, value)))


def _traced_recorder(
    primitive: Primitive, avals: tuple[ShapedArray, ...], needs: tuple[int, ...], params: dict[str, Any]
) -> Recorder:
    """The same, shared by all operations that are alike."""
    key = (primitive, avals, needs, *params.items())
    found = _traced_recorders.get(key)
    if found is None:
        if len(_traced_recorders) > 1024:
            _traced_recorders.clear()
        found = _traced_recorders[key] = _own_recorder(primitive, avals, needs, params)
    return found


def _lifted(tensor: Tensor, atom: Any, graph: Graph) -> Tensor:
    """A captured tensor as a node keeps it: its gradient has to read that tensor too, and not the array of this moment."""
    if isinstance(tensor._value, Tracer) or is_number(tensor._value):
        return tensor
    lifted = wrap(Tracer(graph, atom))
    lifted._edge, lifted._slot = tensor._edge, tensor._slot
    return lifted


class _Engine:
    value_class = Tensor
    as_value = staticmethod(as_tensor)
    operand = staticmethod(operand)
    promoted = staticmethod(promoted)
    apply = staticmethod(apply)
    wrap = staticmethod(wrap)
    constant = staticmethod(constant)


ENGINE: Final = _Engine()
