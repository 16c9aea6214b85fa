"""checkpoint: backward runs a function again instead of keeping what it computed.

The call records one node, which holds the arguments and knows where captured tracked tensors came from. When a cotangent
arrives, the function runs again, recorded this time, and the cotangents are swept through that recording.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from jitgrad.autodiff.node import Edge, GradNode, Leaf, NodeRecorder, next_tick
from jitgrad.autodiff.reverse import Target, dependencies, sweep
from jitgrad.autodiff.rules import Mask
from jitgrad.core.aval import FLOAT64, aval_of, is_float
from jitgrad.core.memory import owner
from jitgrad.core.modes import FORWARD, anomaly_mode, grad_mode, recording_mode, transforming
from jitgrad.core.trace import current_graph
from jitgrad.eager import Recorder
from jitgrad.errors import GraphError, user_line
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.recording import kept
from jitgrad.tensor.tensor import make
from jitgrad.transforms.private import leave, private, running_again, wants_tensors
from jitgrad.transforms.trees import flatten

__all__ = ["checkpoint"]

Origin = tuple[Edge, int]
"""Where a tracked value came from: a leaf or a node, and which result of it."""


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose intermediate values are not kept for backward but computed again there.

    It saves memory at the price of running the function twice. Gradients are the same, also of tracked tensors that the
    function captures, at every order and inside of every transform. The function must do the same each time: one that
    reads values which change in the meantime (random numbers, say) gives a GraphError in backward instead of a wrong
    gradient. Forward mode and compiled functions keep nothing that could be saved: there, it is the function itself.

    >>> import jitgrad as jg
    >>> @jg.checkpoint
    ... def block(x):
    ...     return (x * x).exp()
    >>> x = jg.tensor([0.0, 1.0], requires_grad=True)
    >>> block(x).sum().backward()
    >>> x.grad
    tensor([0.        , 5.43656366])
    """

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs))
        mode = grad_mode.get()

        def run(given: Sequence[Any]) -> Any:
            positional, named = structure.unflatten(given)
            return function(*positional, **named)

        traced = current_graph() is not None or any(isinstance(x, Tensor) and x.is_traced for x in leaves)
        if not mode or mode == FORWARD or traced:
            results, shape = flatten(run([private(x) for x in leaves]))
            return shape.unflatten([leave(r, wants_tensors(leaves)) for r in results])
        name = f"checkpoint({getattr(function, '__name__', 'function')})"
        return _recorded(run, leaves, name)

    return transformed


# --------------------------------------------------------------------------- one run of the function


class _Passage(NodeRecorder):
    """The recorder of a node at which a recording is connected to a value outside.

    It catches what arrives during the sweep of that recording. Later, in a sweep over recorded gradients, it hands on.
    """

    name = "checkpoint"
    masks = True
    fresh = (False,)

    def __init__(self) -> None:
        self.catching = True
        self.caught: tuple[Any, Mask | None] | None = None

    def values(self, node: GradNode, g: Any, mask: Mask | None, record: bool) -> Sequence[Any]:
        """The cotangent of the value outside, with its mask."""
        if not self.catching:
            return ((g, mask),)
        self.caught = (g, mask)
        return (None,)


class _Start(NodeRecorder):
    """The recorder of a node that a sweep begins with, so that it begins with a mask."""

    name = "checkpoint"
    masks = True
    fresh = (False,)

    def __init__(self, mask: Mask | None) -> None:
        self.mask = mask

    def values(self, node: GradNode, g: Any, mask: Mask | None, record: bool) -> Sequence[Any]:
        """The cotangent with its mask."""
        return ((g, self.mask),)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | np.ndarray | np.generic)


class _Recording:
    """One run of the function, recorded: its results, and where the values that it used came from."""

    def __init__(
        self,
        function: Callable[..., Any],
        given: list[Any],
        arrays: dict[int, Any],
        moving: set[int],
        captured: int = 0,
    ) -> None:
        self.border = Leaf((), FLOAT64)  # stands for everything outside while the recording is swept
        self.since = next_tick()
        # older than what the function records, as every sweep expects it
        self.catchers = [_Passage() for _ in range(len(moving) + captured)]
        self.passages = [GradNode(catcher, (self.border,), ()) for catcher in self.catchers]
        given = list(given)
        entries = iter(self.passages)
        for i, array in arrays.items():
            given[i] = make(array, aval_of(array))
            given[i]._borrowed = True
            if i in moving:
                given[i]._edge = next(entries)
        inside = transforming.set(True)
        token = grad_mode.set(recording_mode())
        try:
            self.leaves, self.structure = flatten(function(given))
        finally:
            grad_mode.reset(token)
            transforming.reset(inside)
        self.results = [as_tensor(r, "checkpoint, value of the function") for r in self.leaves if _is_array(r)]
        self.nodes = self._inner_nodes()

    def is_inner(self, edge: Edge | None) -> bool:
        """Whether a value was computed in this run."""
        return isinstance(edge, GradNode) and edge.tick > self.since

    def _inner_nodes(self) -> list[GradNode]:
        seen: set[GradNode] = set()
        stack: list[Any] = [r._edge for r in self.results if self.is_inner(r._edge)]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(e for e in node.edges or () if self.is_inner(e) and e not in seen)
        return sorted(seen, key=lambda node: node.tick)

    def captured(self) -> list[Origin]:
        """Where tracked values that are no arguments came from, in a definite order."""
        found: dict[Origin, None] = {}
        for r in self.results:
            if r._edge is not None and r._edge.tick <= self.since:
                found[r._edge, r._slot] = None
        for node in self.nodes:
            for edge, slot in node.next_functions:
                if edge.tick <= self.since and edge is not self.border:
                    found[edge, slot] = None
        return list(found)

    def depends(self, captured: Sequence[Origin]) -> list[list[bool]]:
        """On which of the tracked arguments, and of these captured values after them, each result depends."""
        targets: list[Target | None] = [*[(p, 0) for p in self.passages], *captured]
        return dependencies(self.results, targets, self.nodes)

    def cut(self, passages: dict[Origin, GradNode]) -> None:
        """Lead every edge to a captured value through its passage."""
        for node in self.nodes:
            origins = node.next_functions
            if any(origin in passages for origin in origins):
                moved = [(passages[o], 0) if o in passages else o for o in origins]
                node.edges, node.slots = tuple([e for e, _ in moved]), tuple([s for _, s in moved])
        for k, r in enumerate(self.results):
            there = passages.get((r._edge, r._slot))  # type: ignore[arg-type]
            if there is not None:  # another tensor: this one may be the user's
                self.results[k] = inner = make(r._value, r._aval)
                inner._edge = there

    def summary(self) -> list[Any]:
        """What must be the same in every run: the operations, sums of the results, and the values from outside that nodes
        keep."""
        found: list[Any] = [[node.name for node in self.nodes]]
        for r in self.results:
            array = r._array("checkpoint")
            total, size = np.sum(array, dtype=np.float64), np.sum(np.abs(array), dtype=np.float64)
            found.append((tuple(r.shape), r.dtype, float(total), float(size)))
        for node in self.nodes:
            recorder = node.recorder
            if not isinstance(recorder, Recorder) or len(recorder.keep) != len(node.residuals) or not recorder.keep:
                continue  # a call, or a write
            edges = dict(zip(recorder.needs, node.edges or (), strict=True))
            for i, array in zip(recorder.keep, node.residuals, strict=True):
                if i < len(recorder.avals) and not self.is_inner(edges.get(i)):
                    found.append(crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data))
        return found


def _agree(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two summaries say the same; sums may differ by rounding."""
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if not isinstance(x, tuple) or not isinstance(y, tuple):
            same = x == y
        else:
            tolerance = 1e-4 if x[1] == np.float32 else 1e-9
            same = x[:2] == y[:2] and _near(x[2], y[2], tolerance * x[3]) and _near(x[3], y[3], tolerance * x[3])
        if not same:
            return False
    return True


def _near(x: float, y: float, tolerance: float) -> bool:
    return x == y or (x != x and y != y) or abs(x - y) <= tolerance  # noqa: PLR0124 (NaN)


# --------------------------------------------------------------------------- its place in the graph


def _recorded(function: Callable[..., Any], leaves: Sequence[Any], name: str) -> Any:
    """The value of the function, with one node for the whole call."""
    given = list(leaves)
    tensors = {i: as_tensor(x, "checkpoint, argument") for i, x in enumerate(leaves) if _is_array(x)}
    arrays = {i: kept(t) for i, t in tensors.items()}
    for i in tensors:
        given[i] = None  # a node must not hold more than its residuals
    tracked = [t for t in tensors.values() if t._edge is not None]
    moving = {i for i, t in tensors.items() if t._edge is not None}
    run = _Recording(function, given, {i: t._value for i, t in tensors.items()}, moving)
    captured = run.captured()
    as_tensors = wants_tensors(leaves) or bool(captured)
    outside = {id(owner(t._value)) for t in tensors.values()}
    results = [_own(r, outside, run) for r in run.results]
    if tracked or captured:
        origins = [*((t._edge, t._slot) for t in tracked), *captured]
        recorder = _Recorder(function, name, given, list(arrays), moving, captured, run, len(results))
        slots = tuple([slot for _, slot in origins])
        edges: Any = tuple([edge for edge, _ in origins])
        node = GradNode(recorder, edges, tuple(arrays.values()), slots if any(slots) else None)
        if anomaly_mode() is not None:
            node.where = user_line()
        for slot, (result, r) in enumerate(zip(results, run.results, strict=True)):
            if r._edge is not None and is_float(r.dtype):
                result._edge, result._slot = node, slot
    found = iter(results)
    return run.structure.unflatten([leave(next(found), as_tensors) if _is_array(x) else x for x in run.leaves])


def _own(result: Tensor, outside: set[int], run: _Recording) -> Tensor:
    """A result without history, on memory that it shares with nothing from outside."""
    array = result._array("checkpoint")
    shared = array.base is not None or id(array) in outside or not run.is_inner(result._edge)
    array = array.copy() if shared else array
    return make(array, aval_of(array))


class _Recorder(NodeRecorder):
    """The recorder of the node of a checkpointed call."""

    masks = True
    each_masked = True

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        given: list[Any],
        positions: list[int],
        moving: set[int],
        captured: list[Origin],
        run: _Recording,
        outputs: int,
    ) -> None:
        self.function = function
        self.name = name
        self.given = given
        self.positions = positions
        self.moving = moving
        self.count = len(captured)
        self.summary = run.summary()
        self.since = run.since
        self._depends = run.depends(captured)
        self.outputs = outputs
        self.fresh = (False,) * (len(moving) + len(captured))

    def depends(self, slot: int) -> Sequence[bool]:
        """On which of the tracked arguments and captured values a result depends."""
        return self._depends[slot]

    def values(self, node: GradNode, g: Any, mask: Any, record: bool) -> Sequence[Any]:
        """The cotangents as tensors, each with its mask."""
        assert node.edges is not None
        origins: list[Origin] = list(node.next_functions)
        arrays = dict(zip(self.positions, node.residuals, strict=True))
        again = running_again.set(self.since)
        try:
            run = _Recording(self.function, self.given, arrays, self.moving, self.count)
        finally:
            running_again.reset(again)
        captured = origins[len(self.moving) :]
        if not _agree(self.summary, run.summary()) or not set(run.captured()) <= set(captured):
            raise GraphError(
                f"{self.name}: running the function again for backward gave other values than the first time. It reads "
                "something that has changed since (a parameter, an array written in place, random numbers); pass that as an "
                "argument, or do not checkpoint the function"
            )
        run.cut(dict(zip(captured, run.passages[len(self.moving) :], strict=True)))
        starts = []
        cotangents, masks = ([g], [mask]) if self.outputs == 1 else (g, mask or [None] * self.outputs)
        for r, cotangent, own in zip(run.results, cotangents, masks, strict=True):
            if cotangent is not None and r._edge is not None:
                start = GradNode(_Start(own), (r._edge,), (), (r._slot,) if r._slot else None)
                starts.append((start, 0, cotangent if record else cotangent._value))
        if starts:
            targets: list[Any] = [(run.border, 0)]
            sweep(starts, retain_graph=record, create_graph=record, targets=targets, anomaly=anomaly_mode())
        found = []
        for catcher, passage, (edge, slot) in zip(run.catchers, run.passages, origins, strict=True):
            catcher.catching = False
            passage.edges, passage.slots = (edge,), ((slot,) if slot else None)
            found.append(catcher.caught)
            catcher.caught = None
        return found
