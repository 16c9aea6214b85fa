"""Arguments and results of transforms: what the user's function gets, and what the user gets back.

Inside of a transform arguments are private tensors: writing to them changes neither the caller's memory nor a leaf of the
caller's graph. Each differentiated one hangs on an input node of its own, where its gradient is caught; the node is linked
to the caller's graph, so that transforms nest. Results are what the arguments were: ndarrays and numbers where these
came in, tensors where tensors came in or results lead back to a tracked tensor and the caller records.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.node import GradNode, NodeRecorder, next_tick
from jitgrad.core.aval import FLOAT64, aval_of, is_float
from jitgrad.core.dispatch import constant
from jitgrad.core.modes import grad_mode, may_record
from jitgrad.core.trace import current_graph, operand_for
from jitgrad.errors import ArgumentError, DtypeError, UnsupportedError
from jitgrad.ops.linear import convert, copy_of, expand
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.tensor import make
from jitgrad.transforms.trees import Structure, flatten, is_leaf, map_leaves

__all__ = [
    "InputRecorder",
    "Inputs",
    "differentiated",
    "leave",
    "plain",
    "private",
    "running_again",
    "scalar_result",
    "selected",
    "wants_tensors",
    "zeros",
]


_tick: Final = operator.attrgetter("tick")


running_again: Final[ContextVar[float]] = ContextVar("jitgrad_running_again", default=math.inf)
"""The tick at which a function was run first that is run again for its gradient: calls that were going on then count as going
on, though they may have returned by now."""


class InputRecorder(NodeRecorder):
    """The recorder of an input node: its cotangent goes on to the caller's value, if that is tracked."""

    name = "input"
    plain = True
    fresh = (False,)

    def __init__(self) -> None:
        self.closed: int | None = None  # when the call that it belongs to has returned

    def run(self, node: GradNode, g: Any) -> Sequence[Any]:
        """The cotangent, handed on."""
        return (g,) if node.edges else ()

    def values(self, node: GradNode, g: Any, mask: Any, record: bool) -> Sequence[Any]:
        """The cotangent and its mask, handed on."""
        return ((g, mask),) if node.edges else ()

    def push(self, node: GradNode, tangents: Sequence[Any], record: bool) -> Any:
        """The tangent of the caller's value, handed on."""
        return tangents[0] if tangents else None


def _input(value: Tensor) -> Tensor:
    """A private tensor on an input node."""
    edge = value._edge
    node = GradNode(InputRecorder(), () if edge is None else (edge,), (), (value._slot,) if value._slot else None)
    made = _borrowing(value)
    made._edge = node
    return made


def _borrowing(value: Tensor) -> Tensor:
    """The value as a tensor of its own, untracked, which moves to a copy before it is written."""
    if current_graph() is not None and not value.is_traced:
        token = grad_mode.set(False)  # its gradient goes by the input node, not by the copy
        try:
            value = copy_of(value)  # writes have to be part of the trace
        finally:
            grad_mode.reset(token)
    made = make(value._value, value._aval)
    made._borrowed = True
    return made


def private(leaf: Any) -> Any:
    """An argument that is not differentiated: arrays become private tensors, still linked to the caller's graph."""
    leaf = operand_for(leaf)
    if isinstance(leaf, np.ndarray):
        return _borrowing(as_tensor(leaf))
    if isinstance(leaf, Tensor) and not leaf._weak:
        return _borrowing(leaf) if leaf._edge is None else _input(leaf)
    return leaf


@dataclass
class Inputs:
    """The arguments of one call of a transformed function."""

    args: tuple[Any, ...]
    leaves: list[Tensor]  # the private tensors that are differentiated, in order
    given: list[Any]  # the same as the caller gave them
    structures: list[Structure]  # of each differentiated argument
    counts: list[int]
    single: bool
    others: set[Any]  # the input nodes of tracked arguments that are not differentiated

    @property
    def targets(self) -> list[tuple[Any, int]]:
        """Where the gradients are caught."""
        return [(t._edge, 0) for t in self._caught]

    def __post_init__(self) -> None:
        # the function may write to its arguments, which gives them another history: the nodes are kept here
        self._caught = [make(t._value, t._aval) for t in self.leaves]
        for kept, t in zip(self._caught, self.leaves, strict=True):
            kept._edge = t._edge
        self._own: set[Any] = {t._edge for t in self._caught}
        self._walked: set[Any] = set()
        self._leading: set[Any] = set()

    def is_linked(self, results: Sequence[Tensor]) -> bool:
        """Whether results lead back to something tracked outside, and the caller records: then all that the transform gives
        are tensors, and gradients are recorded too."""
        # these stand for what the caller has given: what is behind them need not be looked at
        self._walked = self._own | self.others
        self._leading = {node for node in self._walked if node.edges}
        if not may_record():
            return False
        walked, leading = self._walk(results)
        self._walked |= walked
        self._leading |= leading
        return any(self._leads(t._edge, t._slot, leading) for t in results)

    def outside(self, values: Sequence[Any], linked: bool = True) -> list[Any]:
        """What a transform gives, after ``is_linked``: values without a history where it leads back to nothing outside, or
        nothing is ``linked``."""
        if not linked:
            return [_unrecorded(v) if isinstance(v, Tensor) else v for v in values]
        # a value that is not recorded may be so in another call of what is traced
        tracked = [v for v in values if isinstance(v, Tensor) and v._edge is not None]
        leading = self._walk(tracked)[1]
        loose = {id(v) for v in tracked if not self._leads(v._edge, v._slot, leading)}
        return [_unrecorded(v) if id(v) in loose else v for v in values]

    def _walk(self, tensors: Sequence[Tensor]) -> tuple[set[Any], set[Any]]:
        """The nodes that lead to these, but for those that are known, and which of them lead back outside: nodes, or pairs of
        a node and the number of a result."""
        known, walked, leading = self._walked, set[Any](), set[Any]()
        stack: list[Any] = [t._edge for t in tensors]
        while stack:
            node = stack.pop()
            if type(node) is GradNode and node not in known and node not in walked:
                walked.add(node)
                if node.edges:
                    stack += node.edges
        before = self._leading
        for node in sorted(walked, key=_tick):
            edges = node.edges
            if edges is None:  # where a released node led to is not known: backward has to come there, and say so
                leading.add(node)
            elif not edges and isinstance(node.recorder, InputRecorder):
                closed = node.recorder.closed
                if closed is None or closed > running_again.get():
                    leading.add(node)
            elif node.recorder.outputs > 1:
                self._add_results(node, leading)
            else:
                slots = node.slots
                for i, edge in enumerate(edges):
                    if edge in leading or edge in before or self._leads(edge, slots[i] if slots else 0, leading):
                        leading.add(node)
                        break
        return walked, leading

    def _add_results(self, node: GradNode, leading: set[Any]) -> None:
        """Add those results of a node that lead back outside."""
        operands = [self._leads(edge, slot, leading) for edge, slot in node.next_functions]
        for slot in range(node.recorder.outputs):
            depends = node.recorder.depends(slot)
            if any(operands if depends is None else [a and b for a, b in zip(operands, depends, strict=True)]):
                leading.add((node, slot))

    def _leads(self, edge: Any, slot: int, leading: set[Any]) -> bool:
        """Whether an edge leads back outside, given the nodes and results that do."""
        if type(edge) is not GradNode:
            return edge is not None
        if edge in leading or edge in self._leading:
            return True
        return edge.recorder.outputs > 1 and ((edge, slot) in leading or (edge, slot) in self._leading)

    def close(self) -> None:
        """The call is over: what still hangs on these inputs depends on nothing that anyone differentiates."""
        now = next_tick()
        for kept in self._caught:
            kept._edge.recorder.closed = now  # type: ignore[union-attr]

    def rebuilt(self, values: Sequence[Any]) -> Any:
        """One value for each differentiated leaf, in the containers of the arguments."""
        trees, start = [], 0
        for structure, count in zip(self.structures, self.counts, strict=True):
            trees.append(structure.unflatten(values[start : start + count]))
            start += count
        return trees[0] if self.single else tuple(trees)


def selected(argnums: Any, count: int, what: str) -> tuple[tuple[int, ...], bool]:
    """The positions of the differentiated arguments, and whether a single int was given."""
    single = isinstance(argnums, int) and not isinstance(argnums, bool)
    listed = (argnums,) if single else argnums
    if not isinstance(listed, tuple | list) or not all(isinstance(i, int) for i in listed):
        raise UnsupportedError(f"{what}: argnums must be an int or a tuple of ints, not {argnums!r}")
    for i in listed:
        if not -count <= i < count:
            raise ArgumentError(f"{what}: argnums={argnums} for a call with {count} positional arguments")
    positions = tuple(i % count for i in listed)
    if len(set(positions)) < len(positions):
        raise ArgumentError(f"{what}: argnums={argnums} names an argument twice")
    return positions, single


def differentiated(args: tuple[Any, ...], argnums: Any, what: str) -> Inputs:
    """Private arguments, those at ``argnums`` on input nodes."""
    positions, single = selected(argnums, len(args), what)
    made = [a if i in positions else _private_tree(a) for i, a in enumerate(args)]
    others = {t._edge for i, a in enumerate(made) if i not in positions for t in _tracked_in(a)}
    leaves: list[Tensor] = []
    given: list[Any] = []
    structures, counts = [], []
    for i in positions:
        flat, structure = flatten(args[i])
        moving = [_differentiable(leaf, f"{what}, argument {i}") for leaf in flat]
        made[i] = structure.unflatten(moving)
        leaves += moving
        given += flat
        structures.append(structure)
        counts.append(len(flat))
    return Inputs(tuple(made), leaves, given, structures, counts, single, others)


def _private_tree(tree: Any) -> Any:
    return private(tree) if is_leaf(tree) else map_leaves(private, tree)


def _tracked_in(tree: Any) -> list[Tensor]:
    leaves = (tree,) if is_leaf(tree) else flatten(tree)[0]
    return [t for t in leaves if isinstance(t, Tensor) and t._edge is not None]


def _unrecorded(tensor: Tensor) -> Tensor:
    """A tensor on the same memory without its history."""
    found: Tensor = tensor.detach()
    found._origin = "no_grad" if tensor._edge is not None and not may_record() else tensor._origin
    return found


def _differentiable(leaf: Any, what: str) -> Tensor:
    value = as_tensor(leaf, what)
    if value.dtype.kind in "iu":
        value = convert(value, dtype=FLOAT64)
    if not is_float(value.dtype):
        raise DtypeError(f"{what}: a {value.dtype} value cannot be differentiated; pass floats")
    return _input(value)


def scalar_result(value: Any, what: str) -> Tensor:
    """The value of a function as a tensor of one element."""
    if value is None:
        raise ArgumentError(f"{what}: the function returned None; it must return a scalar")
    tensor = as_tensor(value, f"{what}, value of the function")
    if tensor.size != 1:
        raise ArgumentError(
            f"{what}: the function must give a scalar, not a value of shape {tensor.shape}; reduce it (.sum(), .mean()) "
            "or use vjp or jacrev"
        )
    if not is_float(tensor.dtype):
        raise DtypeError(f"{what}: the function must give a float, not {tensor.dtype}")
    return tensor


def wants_tensors(args: Sequence[Any]) -> bool:
    """Whether a tensor is among the arguments."""
    return any(isinstance(a, Tensor) if is_leaf(a) else any(isinstance(x, Tensor) for x in flatten(a)[0]) for a in args)


def leave(value: Any, as_tensors: bool) -> Any:
    """A result as the user gets it: a tensor, or a number for 0-d and a writable contiguous ndarray."""
    if not isinstance(value, Tensor):
        return value
    if as_tensors or value._edge is not None or value.is_traced:
        return value
    array = value._array("a result")
    return plain(np.array(array, order="C") if array.ndim else array)


def plain(array: np.ndarray[Any, Any]) -> Any:
    """A result for whoever gave ndarrays and numbers: a single value as a number, which only float32 has a type for."""
    if array.ndim:
        return array
    return array[()] if array.dtype == np.float32 else array.item()


def zeros(like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Zeros of the dtype of a tensor, and of its shape if no other is given."""
    shape = like.shape if shape is None else tuple(shape)
    if like.is_traced:
        return expand(constant(0.0, like.dtype, like), shape=shape)  # type: ignore[no-any-return]
    array = np.zeros(shape, like.dtype)
    return make(array, aval_of(array))
