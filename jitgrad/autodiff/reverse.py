"""The reverse sweep: from cotangents of results to gradients of leaves, iteratively, latest recording first.

Nodes carry the tick of their recording; a consumer is always younger than what it consumed, so a heap ordered by tick
visits the graph in reverse topological order without counting edges first. Without ``create_graph`` cotangents are plain
arrays and each node runs its compiled backward kernel; with it, and where structural zeros are about, they are tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.node import Edge, GradNode, Hooks, Leaf
from jitgrad.autodiff.rules import Mask, union, union_of_values
from jitgrad.core.dispatch import as_value, wrap
from jitgrad.core.memory import any_writes, overwritten
from jitgrad.core.modes import Anomaly, grad_mode, in_backward, recording_mode
from jitgrad.errors import AnomalyError, InPlaceError, ReleasedGraphError, ShapeError
from jitgrad.kernels.kernel import entry_point, kernel_mode
from jitgrad.ops.linear import convert, copy_of

__all__ = ["Target", "check_memory", "dependencies", "leading", "reachable", "sweep"]

Target = tuple[Edge, int]
"""A leaf or a node, and which of its results."""


def reachable(roots: Iterable[Edge], since: int = 0) -> list[GradNode]:
    """Every node that the roots lead to and that was recorded since a tick, oldest first."""
    seen: set[GradNode] = set()
    stack = [r for r in roots if isinstance(r, GradNode) and r.tick >= since]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for edge in node.edges or ():
            if type(edge) is GradNode and edge not in seen and edge.tick >= since:
                stack.append(edge)
    return sorted(seen, key=operator.attrgetter("tick"))


def dependencies(
    results: Sequence[Any], targets: Sequence[Target | None], nodes: Iterable[GradNode]
) -> list[list[bool]]:
    """On which of the targets each result depends by way of these nodes, oldest first; a target that is None counts for
    none."""
    bits: dict[Any, int] = {}  # one for each of the targets
    for i, target in enumerate(targets):
        if target is not None:
            bits[target] = bits.get(target, 0) | 1 << i
    found: dict[Any, Any] = {}  # of nodes, a list for those of several results

    def at(edge: Any, slot: int) -> int:
        behind = found.get(edge, 0)
        return bits.get((edge, slot), 0) | (behind if type(behind) is int else behind[slot])

    for node in nodes:
        edges, count = node.edges, node.recorder.outputs
        if edges is None:  # released inside: backward has to come here, and say so
            found[node] = (1 << len(targets)) - 1 if count == 1 else [(1 << len(targets)) - 1] * count
            continue
        slots = node.slots
        operands = [at(edge, slots[k] if slots else 0) for k, edge in enumerate(edges)]
        if count == 1:
            found[node] = functools.reduce(operator.or_, operands, 0)
            continue
        found[node] = []
        for slot in range(count):
            depends = node.recorder.depends(slot)
            used = operands if depends is None else [o for o, does in zip(operands, depends, strict=True) if does]
            found[node].append(functools.reduce(operator.or_, used, 0))
    every = range(len(targets))
    return [[bool(at(t._edge, t._slot) >> i & 1) for i in every] for t in results]


def leading(nodes: Sequence[GradNode], targets: set[Edge]) -> set[GradNode]:
    """The nodes from which a target can be reached (targets included).

    Where a released node led to is not known any more. It counts too if it is younger than a target, and raises when it
    is visited.
    """
    found: set[Any] = set(targets)
    oldest = min((t.tick for t in targets), default=0)
    for node in nodes:
        if node.tick > oldest if node.edges is None else not found.isdisjoint(node.edges):
            found.add(node)
    return found


def check_memory(node: GradNode) -> None:
    """Raise InPlaceError where a value that a node keeps was overwritten after it was recorded."""
    for place, array in enumerate(node.residuals):
        if isinstance(array, np.ndarray):
            write = overwritten(array, node.tick)
            if write is not None and ((reads := node.recorder.reads) is None or place in reads):
                raise InPlaceError(
                    f"backward of {node.name} needs a value of shape {array.shape} that was overwritten in place: it was kept "
                    f"at version {write.version - 1} of its memory or before, which is now at version {write.version}, "
                    f"written by {write.operation} of shape {write.shape} at {write.where}. Write to a copy "
                    "(`.clone()`), or do the write after backward."
                )


def _consumed(node: GradNode) -> ReleasedGraphError:
    return ReleasedGraphError(
        f"backward reached {node.name} a second time: its values were released by the first backward. Pass "
        "retain_graph=True to the first one, or detach() the part that the two have in common."
    )


class _Sweep:
    """The state of one sweep; cotangents are arrays, or tensors when the graph of the gradient is recorded."""

    def __init__(self, retain_graph: bool, create_graph: bool, check_finite: bool) -> None:
        self.retain = retain_graph
        self.record = create_graph
        self.anomaly = check_finite
        self.retained: list[tuple[GradNode, int, Any]] = []
        self.pending: dict[Edge, Any] = {}
        self.masks: dict[Edge, Any] = {}  # a mask, or a list of one for each of several results
        self.owned: set[Edge] = set()
        self.heap: list[tuple[int, GradNode]] = []
        self.only: set[Any] | None = None

    def add(self, edge: Edge, slot: int, cotangent: Any, mask: Mask | None, fresh: bool) -> None:
        """Add a contribution to what an edge gets."""
        pending = self.pending
        if isinstance(edge, GradNode) and edge.recorder.outputs > 1:
            slots = pending.get(edge)
            if slots is None:
                slots = pending[edge] = [None] * edge.recorder.outputs
                heappush(self.heap, (-edge.tick, edge))
            before = slots[slot]
            if before is None:
                slots[slot] = cotangent
            else:
                slots[slot] = before + cotangent if self.record else np.asarray(before + cotangent)
            if edge.recorder.each_masked and (mask is not None or edge in self.masks):
                masks = self.masks.setdefault(edge, [None] * edge.recorder.outputs)
                masks[slot] = mask if before is None else union(masks[slot], mask)
                if all(m is None for m in masks):
                    del self.masks[edge]
            return
        old = pending.get(edge)
        if old is None:
            pending[edge] = cotangent
            if fresh:
                self.owned.add(edge)
            if isinstance(edge, GradNode):
                heappush(self.heap, (-edge.tick, edge))
                if mask is not None and edge.edges != ():  # at an input of a transform nothing goes on
                    self.masks[edge] = mask
            return
        if self.masks:
            both = union(self.masks.pop(edge, None), mask)
            if both is not None:
                self.masks[edge] = both
        if self.record:
            pending[edge] = old + cotangent
        elif edge in self.owned:
            np.add(old, cotangent, out=old)
        else:
            pending[edge] = np.add(old, cotangent, out=np.empty(old.shape, old.dtype))  # 0-d stays an array
            self.owned.add(edge)

    def visit(self, node: GradNode, g: Any) -> None:
        """Run one node and hand its cotangents on."""
        mask = self.masks.pop(node, None) if self.masks else None
        edges = node.edges
        if edges is None:
            raise _consumed(node)
        recorder = node.recorder
        if self.record or mask is not None or (recorder.masks and any(type(e) is GradNode for e in edges)):
            self._visit_masked(node, g, mask, edges)
        else:
            found = recorder.run(node, g)
            if self.anomaly:
                self._check_finite(node, found)
            slots = node.slots
            if slots is None and self.only is None:
                self._hand_on(edges, found, recorder.fresh)
            else:
                for i, edge in enumerate(edges):
                    if found[i] is not None and (self.only is None or edge in self.only):
                        self.add(edge, slots[i] if slots else 0, found[i], None, recorder.fresh[i])
        if not self.retain:
            node.edges = None
            node.residuals = ()

    def _hand_on(self, edges: tuple[Edge, ...], found: Sequence[Any], fresh: Sequence[bool]) -> None:
        """``add`` for the usual case: arrays, no masks, every edge to the one result of a node or to a leaf."""
        pending = self.pending
        for i, edge in enumerate(edges):
            cotangent = found[i]
            if cotangent is None:
                continue
            old = pending.get(edge)
            if old is not None or (type(edge) is GradNode and edge.recorder.outputs > 1):
                self.add(edge, 0, cotangent, None, fresh[i])
                continue
            pending[edge] = cotangent
            if type(edge) is GradNode:
                heappush(self.heap, (-edge.tick, edge))
            elif fresh[i]:
                self.owned.add(edge)

    def _visit_masked(self, node: GradNode, g: Any, mask: Any, edges: tuple[Edge, ...]) -> None:
        slots = node.slots
        found = self._values(node, g, mask)
        if self.anomaly:
            self._check_finite(node, found)
        for i, (edge, pair) in enumerate(zip(edges, found, strict=True)):
            if pair is not None and (self.only is None or edge in self.only):
                self.add(edge, slots[i] if slots else 0, pair[0], pair[1], False)

    def _values(self, node: GradNode, g: Any, mask: Any) -> list[Any]:
        if self.record:
            return list(node.recorder.values(node, g, mask, True))
        if node.recorder.plain and mask is not None:
            return [None if r is None else (r, mask) for r in node.recorder.run(node, g)]
        token = grad_mode.set(False)
        try:
            lifted = wrap(g) if node.recorder.outputs == 1 else [None if x is None else wrap(x) for x in g]
            found = node.recorder.values(node, lifted, mask, False)
        finally:
            grad_mode.reset(token)
        return [None if pair is None else (pair[0]._value, pair[1]) for pair in found]

    def hooked(self, node: GradNode, g: Any) -> Any:
        many = node.recorder.outputs > 1
        gs = list(g) if many else [g]
        for slot, value in enumerate(gs):
            if value is None:
                continue
            hooks = node.hooks.get(slot) if node.hooks else None
            retained = node.retained is not None and slot in node.retained
            if not hooks and not retained:
                continue
            tensor = value if self.record else wrap(value)
            if hooks:
                tensor = _through_hooks(hooks, tensor)
                masks = self.masks.pop(node, None)
                mask = masks[slot] if many and masks else masks
                # a hook may put something where there was nothing
                mask = None if mask is None or tensor.is_traced else union_of_values(mask, tensor)
                if many and masks:
                    masks[slot] = mask
                    if any(m is not None for m in masks):
                        self.masks[node] = masks
                elif mask is not None:
                    self.masks[node] = mask
            if retained:
                # stored at the end: a sweep that fails on the way changes nothing
                self.retained.append((node, slot, tensor if self.record else wrap(tensor._value.copy())))
            gs[slot] = tensor if self.record else tensor._value
        return gs if many else gs[0]

    def _check_finite(self, node: GradNode, found: Sequence[Any]) -> None:
        for item in found:
            value = item[0] if isinstance(item, tuple) else item
            array = getattr(value, "_value", value)
            if isinstance(array, np.ndarray) and not np.isfinite(array).all():
                raise AnomalyError(
                    f"backward of {node.name} gives a gradient that is not finite ({_example(array)}); its forward pass "
                    f"ran at {node.where or 'a line that was not recorded: turn detect_anomaly on before it'}"
                )


def _example(array: np.ndarray[Any, Any]) -> str:
    """The first element that is not finite, and where it is."""
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    return f"{array[index]} at {list(index)} of shape {array.shape}"


def _through_hooks(hooks: Hooks, gradient: Any) -> Any:
    """What the hooks make of a gradient. They get a copy: the same gradient may be on its way to other operands."""
    given = copy_of(gradient)
    changed = hooks(given)
    return given if changed is given else _checked_gradient(changed, given)


def _checked_gradient(changed: Any, old: Any) -> Any:
    made = as_value(changed, "the gradient that a hook returned")
    if made.shape != old.shape:
        raise ShapeError(f"a hook returned a gradient of shape {made.shape} for a value of shape {old.shape}")
    return made if made.dtype == old.dtype else convert(made, dtype=old.dtype)


def sweep(
    starts: Sequence[tuple[Edge, int, Any]],
    *,
    retain_graph: bool,
    create_graph: bool,
    targets: Sequence[Target] | None = None,
    anomaly: Anomaly | None = None,
    on_tensors: bool = False,
) -> dict[Target, Any]:
    """Propagate the cotangents ``(edge, slot, cotangent)`` and give what arrives at leaves, or at ``targets`` alone.

    Cotangents are arrays, or tensors with ``create_graph`` or ``on_tensors`` (traced values, not recorded). Raises
    before anything is changed where memory that the graph needs was overwritten.
    """
    state = _Sweep(retain_graph, create_graph or on_tensors, anomaly == "values")
    nodes: list[GradNode] | None = None
    if any_writes() or targets is not None or anomaly:
        nodes = reachable(edge for edge, _, _ in starts)
    wanted: dict[Edge, set[int]] = {}
    if targets is not None:
        assert nodes is not None
        for edge, slot in targets:
            wanted.setdefault(edge, set()).add(slot)
        state.only = leading(nodes, set(wanted))
    if nodes is not None and (anomaly or any_writes()):
        for node in nodes:
            if node.edges is not None and (state.only is None or not state.only.isdisjoint(node.edges)):
                check_memory(node)
                if anomaly:
                    _check_prints(node)
    token = grad_mode.set(recording_mode() if create_graph else False)
    sweeping = in_backward.set(True)
    try:
        return _propagate(state, starts, wanted)
    finally:
        in_backward.reset(sweeping)
        grad_mode.reset(token)


def _propagate(
    state: _Sweep, starts: Sequence[tuple[Edge, int, Any]], wanted: dict[Edge, set[int]]
) -> dict[Target, Any]:
    arrived: dict[Target, Any] = {}
    for edge, slot, cotangent in starts:
        if state.anomaly:
            array = getattr(cotangent, "_value", cotangent)
            if isinstance(array, np.ndarray) and not np.isfinite(array).all():
                raise AnomalyError(f"the gradient that backward starts with is not finite ({_example(array)})")
        if state.only is None or edge in state.only:
            state.add(edge, slot, cotangent, None, False)
    heap, pending, owned, visit = state.heap, state.pending, state.owned, state.visit
    create_graph = state.record
    if state.only is None and not create_graph and not state.anomaly:
        _run_usual(state)
    while heap:
        node = heappop(heap)[1]
        g = pending.pop(node)
        if owned:
            owned.discard(node)
        if node.hooks is not None or node.retained is not None:
            g = state.hooked(node, g)
        if wanted and node in wanted:
            for slot in wanted[node]:
                there = g[slot] if node.recorder.outputs > 1 else g
                if there is not None:  # a copy, since the same array may go on from here
                    arrived[node, slot] = there if create_graph else there.copy()
            if node.edges is None and any(target.tick < node.tick for target in wanted):
                raise _consumed(node)  # the others may be behind it
            if state.only is not None and state.only.isdisjoint(node.edges or ()):
                continue
        visit(node, g)
    for edge, cotangent in pending.items():
        if isinstance(edge, Leaf):
            if edge.hooks:
                changed = _through_hooks(edge.hooks, cotangent if create_graph else wrap(cotangent))
                cotangent = changed if create_graph else changed._value
                state.owned.discard(edge)
            if not create_graph and edge not in state.owned:
                cotangent = cotangent.copy()
            arrived[edge, 0] = cotangent
    for node, slot, gradient in state.retained:
        if node.retained is not None and slot in node.retained:
            before = node.retained[slot]
            node.retained[slot] = gradient if before is None else before + gradient
    return arrived


_ACCUMULATE: Final = """def accumulate(x, out):
    for i in range(size(out)):
        store(out, i, load(out, i) + load(x, i))
"""


@functools.cache
def _accumulator(dtype: np.dtype[Any], mode: str) -> Callable[[Any, Any], None]:
    """``out += x`` for contiguous arrays of one dtype; several times cheaper to call than a ufunc."""
    return entry_point("accumulate", _ACCUMULATE, (f"b:{dtype.name}", f"b:{dtype.name}"))


def _run_usual(state: _Sweep) -> None:
    """The whole sweep when nothing is captured or recorded: nodes of one result in a tight loop, others by ``visit``."""
    heap, pending, owned, masks = state.heap, state.pending, state.owned, state.masks
    retain = state.retain
    mode = kernel_mode()
    dtype: np.dtype[Any] | None = None
    accumulate: Callable[[Any, Any], None] | None = None
    following: GradNode | None = None  # the node found last: in a chain it is the next one, without the heap
    while True:
        if following is not None:
            node = following
            following = None
            if heap and heap[0][0] < -node.tick:
                node = heapreplace(heap, (-node.tick, node))[1]
        elif heap:
            node = heappop(heap)[1]
        else:
            return
        g = pending.pop(node)
        recorder = node.recorder
        edges = node.edges
        if node.hooks is not None or node.retained is not None:
            g = state.hooked(node, g)
        if edges is None or node.slots is not None or masks:
            state.visit(node, g)
            continue
        if recorder.masks:
            if len(edges) > 1 or type(edges[0]) is GradNode:
                state.visit(node, g)
                continue
            if recorder.part is not None and edges[0] in owned and _added(g, recorder.part(pending[edges[0]])):
                if not retain:
                    node.edges = None
                    node.residuals = ()
                continue
        i = -1
        for cotangent in recorder.run(node, g):
            i += 1
            if cotangent is None:
                continue
            edge = edges[i]
            old = pending.get(edge)
            if type(edge) is GradNode:
                if old is not None or edge.recorder.outputs > 1:
                    state.add(edge, 0, cotangent, None, False)
                    continue
                pending[edge] = cotangent
                if following is None:
                    following = edge
                else:
                    heappush(heap, (-edge.tick, edge))
            elif old is None:
                pending[edge] = cotangent
                if recorder.fresh[i]:
                    owned.add(edge)
            elif edge in owned and recorder.fresh[i]:  # both are contiguous arrays of their own
                if old.dtype is not dtype:  # a look-up by dtype costs as much as the addition
                    dtype = old.dtype
                    accumulate = _accumulator(dtype, mode)
                accumulate(cotangent, old)  # type: ignore[misc]
            else:
                state.add(edge, 0, cotangent, None, False)
        if not retain:
            node.edges = None
            node.residuals = ()


def _added(g: Any, part: np.ndarray[Any, Any]) -> bool:
    """Add a cotangent to its part of a larger one, instead of as zeros around it; not where NumPy's view is read-only."""
    if not part.flags.writeable:
        return False
    np.add(part, g, out=part)
    return True


def _check_prints(node: GradNode) -> None:
    if node.prints is not None and node.prints != fingerprints(node.residuals):
        raise InPlaceError(
            f"backward of {node.name} needs a value that was overwritten from outside (by NumPy, on memory that it shares), "
            f"recorded at {node.where}. Copy the data before sharing it."
        )


def fingerprints(residuals: Sequence[Any]) -> tuple[int, ...]:
    """A hash of each array that a node keeps."""
    return tuple(hash(np.ascontiguousarray(r).tobytes()) for r in residuals if isinstance(r, np.ndarray))
