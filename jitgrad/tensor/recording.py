"""Giving results their place in the graph: whether a node is made, what it keeps, and why a result has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.autodiff.node import GradNode, next_tick
from jitgrad.autodiff.reverse import fingerprints
from jitgrad.core.graph import Tracer
from jitgrad.core.memory import owner
from jitgrad.core.modes import ANOMALY, FORWARD, grad_mode
from jitgrad.core.primitive import Custom, Primitive
from jitgrad.eager import Plan, Recorder, recorder_for
from jitgrad.errors import user_line
from jitgrad.tensor.tensor import Tensor

__all__ = ["attach", "inherit_origin", "kept", "kept_values", "record", "run_recorded", "tracked_operands"]

_ndarray = np.ndarray
_new = object.__new__
_FIRST = (0,)


def run_recorded(plan: Plan, operands: Sequence[Tensor], arrays: list[Any]) -> Tensor:
    """The result of a plan of one result, no view, on these operands with their arrays, in its place in the graph."""
    found = plan.run(*arrays)
    result: Tensor = _new(Tensor)
    result._value = found
    result._aval = plan.aval or plan.aval_of_result(found)
    places: Any = _FIRST
    if len(operands) == 1:
        (x,) = operands
        if x._edge is None:
            if x._origin is not None:
                result._origin = x._origin
            return result
        edges, slot = [x._edge], x._slot
    else:
        places, edges, slot = [], [], 0
        for k, t in enumerate(operands):
            if t._edge is not None:
                places.append(k)
                edges.append(t._edge)
                slot = slot or t._slot
        if not edges:
            inherit_origin(operands, result)
            return result
        places = tuple(places)
    recorder = plan.recorders.get(places)  # there is one only where all of these and the result are differentiable
    if recorder is None or slot or grad_mode.get() is not True:
        record(plan, operands, (result,))
        return result
    for k in recorder.keep:
        if k < len(arrays) and operands[k]._storage is not None:
            arrays[k] = kept(operands[k])
    result._edge = node = _new(GradNode)
    node.recorder = recorder
    node.edges = tuple(edges)
    node.residuals = recorder.save(*arrays, found)
    node.tick = next_tick()
    return result


def record(plan: Plan, operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Give the results their place in the graph, if an operand is tracked and grad mode is on."""
    mode = grad_mode.get()
    needs = tracked_operands(plan.primitive, operands, results, mode)
    if needs:
        # a tangent reads the values that a cotangent reads, unless the two have rules of their own
        recorder = recorder_for(plan, needs, mode == FORWARD and isinstance(plan.primitive.rule, Custom))
        attach(recorder, needs, operands, results, mode)


def tracked_operands(
    primitive: Primitive, operands: Sequence[Tensor], results: Sequence[Tensor], mode: Any
) -> tuple[int, ...]:
    """The operands that a gradient goes on to; where there is none, the results know why."""
    differentiable = primitive.differentiable
    needs = tuple([i for i, t in enumerate(operands) if t._edge is not None and differentiable(i)])
    if not mode or not needs:
        if any(t._edge is not None for t in operands):
            _explain(results, f"nondiff:{primitive.name}" if mode else "no_grad")
        return ()
    if not any(r._aval.dtype.kind == "f" for r in results):
        _explain(results, f"nondiff:{primitive.name}")
        return ()
    return needs


def attach(
    recorder: Recorder, needs: tuple[int, ...], operands: Sequence[Tensor], results: Sequence[Tensor], mode: Any
) -> None:
    """Make a node and hang the results on it."""
    residuals = kept_values(recorder, operands, results)
    edges = tuple([operands[i]._edge for i in needs])
    slots = tuple([operands[i]._slot for i in needs])
    node = GradNode(recorder, edges, residuals, slots if any(slots) else None)
    if mode == ANOMALY:
        node.where = user_line()
        node.prints = fingerprints(residuals)
    for slot, result in enumerate(results):
        if result._aval.dtype.kind == "f":
            result._edge = node
            if slot:
                result._slot = slot


def kept_values(recorder: Recorder, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Any, ...]:
    """What a node keeps for its backward."""
    if not recorder.keep:
        return ()
    count = len(operands)
    return tuple([kept(operands[i] if i < count else results[i - count]) for i in recorder.keep])


def inherit_origin(operands: Sequence[Tensor], result: Tensor) -> None:
    """Why an operand is untracked explains why the result is."""
    for operand in operands:
        if operand._origin is not None:
            result._origin = operand._origin
            if operand._origin != "numpy":  # the less innocent cause
                return


def _explain(results: Sequence[Tensor], origin: str) -> None:
    for result in results:
        result._origin = origin


def kept(tensor: Tensor) -> Any:
    """The array that a node keeps: a small part of a larger memory is copied, so that writes need not copy the whole."""
    array = tensor._value
    if tensor._storage is None or type(array) is Tracer:
        return array
    memory = array.base
    if memory is None:
        return array
    if type(memory) is not _ndarray or memory.base is not None:
        memory = owner(array)
        if not isinstance(memory, _ndarray):
            return array
    return array.copy() if 2 * array.size <= memory.size else array
