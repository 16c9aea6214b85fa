"""Tracing: a function of tensors, called once with stand-ins, becomes a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from jitgrad.core.aval import ShapedArray
from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Atom, Constant, Graph, Tracer, is_number
from jitgrad.core.modes import grad_mode
from jitgrad.core.watching import note_value_read, watches

__all__ = [
    "alias_of",
    "atom_of",
    "current_graph",
    "is_any_replaced",
    "is_tracing",
    "is_within_trace",
    "note_alias",
    "note_read",
    "operand_for",
    "same_bytes",
    "stand_in",
    "stand_ins",
    "standing_in",
    "trace",
    "traces",
    "tracing_into",
]


def trace(function: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray], name: str) -> Graph:
    """The graph of ``function`` on values of these avals; its results that are None are left out."""
    graph = Graph(name)
    # a stand-in needs an aval of its own: plans of eager values are looked up by identity and must not be found
    inputs = [wrap(graph.add_input(ShapedArray(a.shape, a.dtype, True))) for a in avals]
    token = grad_mode.set(False)
    outer = _current.set(None)  # what a rule computes from numbers alone belongs to no trace
    try:
        results = function(*inputs)
    finally:
        _current.reset(outer)
        grad_mode.reset(token)
    graph.outputs = [atom_of(r._value, graph) for r in results if r is not None]
    return graph


def atom_of(data: Any, graph: Graph, source: Any = None) -> Atom:
    """The variable of a tracer of this graph, or a constant for an array (read again from ``source`` at each run)."""
    if isinstance(data, Tracer):
        return data.variable if data.graph is graph else graph.capture(data, source)
    if graph.snapshots is None or source is None or is_number(data):
        return Constant(data, source)
    constant = Constant(data.copy(), source)
    graph.snapshots.append(constant)
    return constant


_current: ContextVar[Graph | None] = ContextVar("jitgrad_tracing", default=None)
traces: Final[list[Any]] = []
"""A mark for each graph that is traced into now, and each ``standing_in``, of any thread: mostly empty."""

current_graph: Final = _current.get
"""The graph that the whole of this thread's work goes into: operations on captured arrays as well; None outside of jit."""


def is_tracing() -> bool:
    """Whether any thread is tracing a whole function, or has others stand in for captured tensors."""
    return bool(traces)


def is_within_trace() -> bool:
    """Whether what this thread does is traced, or done with others in place of captured tensors."""
    return is_tracing() and (current_graph() is not None or bool(stand_ins.get()))


stand_ins: ContextVar[dict[int, Any]] = ContextVar("jitgrad_stand_ins", default={})  # noqa: B039 (never written)
"""What is read in place of captured tensors here, by their ids: a gradient with respect to them needs other tensors."""


def stand_in(tensor: Any) -> Any:
    """What is there in place of a tensor here: itself, but for a captured one while its gradient is traced."""
    return stand_ins.get().get(id(tensor), tensor)


def operand_for(tensor: Any) -> Any:
    """What operations read in place of a tensor here: a stand-in, or a detached alias of a captured one as a traced value."""
    graph = _current.get()
    if graph is not None and (alias := graph.aliases.get(id(tensor))) is not None:
        _, copy, value, read = alias
        return value if same_bytes(tensor._value, copy) else read()  # NumPy has written it meanwhile
    return stand_in(tensor)


def alias_of(value: Any) -> Any:
    """The detached alias of a captured tensor that a traced value is read for, whose values Python may read; else None."""
    graph = _current.get()
    return None if graph is None else next((a for a, _, v, _ in graph.aliases.values() if v is value), None)


def is_any_replaced() -> bool:
    """Whether there is a tensor here in place of which another one is read."""
    graph = _current.get()
    return bool(stand_ins.get()) or (graph is not None and bool(graph.aliases))


def note_alias(alias: Any, read: Callable[[], Any]) -> None:
    """A traced function has made a detached alias of a captured tensor. Python may read its values, but operations get what
    ``read()`` gives, so that the cut is a part of the graph, at this place."""
    graph = _current.get()
    if graph is not None:
        graph.aliases[id(alias)] = alias, alias._value.copy(), read(), read


@contextmanager
def standing_in() -> Iterator[dict[int, Any]]:
    """A table of stand-ins that holds inside, for this thread alone: the captured tensors themselves stay untouched."""
    table = dict(stand_ins.get())
    mark = object()
    traces.append(mark)  # the short way of operations does not look for stand-ins
    token = stand_ins.set(table)
    try:
        yield table
    finally:
        stand_ins.reset(token)
        traces.remove(mark)


@contextmanager
def tracing_into(graph: Graph) -> Iterator[None]:
    """Record every operation of this thread into a graph, and note what it reads of captured arrays.

    At the end a captured array that was written meanwhile (by NumPy) stands in the graph with the values it had when each
    operation read it; all others are read again at each run.
    """
    graph.snapshots, graph.reads = [], []
    mark = object()  # graphs compare by what is in them, which another thread may change meanwhile
    traces.append(mark)
    token = _current.set(graph)
    try:
        yield
    finally:
        _current.reset(token)
        traces.remove(mark)
        graph.closed = True
        graph.aliases.clear()
        for constant in graph.snapshots:
            now = constant.current()
            if same_bytes(now, constant.value):
                constant.value = now
            else:
                constant.source = None
        graph.snapshots = None


def note_read(array: Any, tensor: Any = None) -> None:
    """Python reads values of an array, or of the tensor that has it (to decide, to index): a trace holds as long as they stay
    what they are. Not what it prints, or each step of an optimizer would be a reason to trace again."""
    if watches:
        note_value_read()
    graph = _current.get()
    if graph is not None and graph.reads is not None and not is_number(array):
        graph.reads.append((array if tensor is None else tensor, array.copy()))


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two arrays are the same, NaN included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
