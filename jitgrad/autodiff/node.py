"""Recorded history: a node for each operation, a leaf where gradients arrive. Edges point backward only.

A node keeps what belongs to one run of its operation; how it is differentiated is said by its recorder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from jitgrad.core.dispatch import wrap
from jitgrad.errors import NotDifferentiableError

__all__ = ["Edge", "GradNode", "Hooks", "Leaf", "NodeRecorder", "next_tick"]

next_tick: Final = itertools.count(1).__next__
"""The clock of recordings and of in-place writes; its order is a topological order of every graph."""


class Leaf:
    """Where the gradient of a tensor that the user made arrives."""

    __slots__ = ("active", "after", "dtype", "grad", "hooks", "shape", "tick")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype
        self.tick = next_tick()  # nothing recorded before leads here
        self.active = True  # False once its tensor has stopped requiring grad: what arrives is dropped
        self.grad: Any = None
        self.hooks: Hooks | None = None
        self.after: Hooks | None = None  # called when the gradient has been added up


class NodeRecorder:
    """How a node is differentiated, and what the sweep has to know of that. What belongs to one run is in the node.

    A cotangent is one value for a node of one result, and a sequence (None: zero) for a node of several.
    """

    __slots__ = ()

    name: str  # of the operation
    outputs: int = 1
    fresh: tuple[bool, ...]  # which of the cotangents of ``run`` are contiguous arrays that nobody else has
    masks: bool = False  # structural zeros arise here, or are caught: ``values`` is run where they can go on
    each_masked: bool = (
        False  # of several results: ``values`` takes a mask for each, or None for all (else they end here)
    )
    plain: bool = False  # those of the cotangent pass through as they are
    # of views of a part: the place in a cotangent of the operand to which that of the result is added
    part: Callable[[Any], Any] | None = None
    compiled: ClassVar[bool] = False  # backward is a compiled function, which cannot be traced
    leaf: bool | None = None  # of an input that stands for a tensor of the caller: whether that is a leaf

    @property
    def reads(self) -> tuple[int, ...] | None:
        """The places in the residuals whose values the rule reads (None: all); the others may be overwritten."""
        return None

    def run(self, node: GradNode, g: Any, /) -> Sequence[Any]:
        """The cotangents of the tracked operands (None: zero), from arrays to arrays."""
        lifted = wrap(g) if self.outputs == 1 else [None if x is None else wrap(x) for x in g]
        return [None if pair is None else pair[0]._value for pair in self.values(node, lifted, None, False)]

    def values(self, node: GradNode, g: Any, mask: Any, record: bool) -> Sequence[Any]:
        """The cotangents as tensors, each with its mask; ``record``: they can be differentiated again."""
        raise NotImplementedError

    def depends(self, slot: int) -> Sequence[bool] | None:
        """On which of the tracked operands a result depends; None: on all of them."""
        return None

    def push(self, node: GradNode, tangents: Sequence[Any], record: bool) -> Any:
        """The tangent of the result (a tuple of them for several), given those of the tracked operands (None: zero)."""
        raise NotDifferentiableError(f"{self.name} has no forward-mode rule; use reverse mode (vjp, grad)")


class GradNode:
    """One recorded operation: where its operands came from, and the arrays that its backward reads.

    ``edges`` holds a node or leaf for each tracked operand, None once the node is consumed. ``slots`` says which result of
    a node of several results is meant (None: the first, always).
    """

    # most nodes differ from these in nothing, so they are made without storing them
    slots: tuple[int, ...] | None = None
    where: str | None = None
    hooks: dict[int, Hooks] | None = None
    retained: dict[int, Any] | None = None
    prints: Any = None  # fingerprints of the residuals, under detect_anomaly

    def __init__(
        self,
        recorder: NodeRecorder,
        edges: tuple[Any, ...],
        residuals: tuple[Any, ...],
        slots: tuple[int, ...] | None = None,
    ) -> None:
        self.recorder = recorder
        self.edges: tuple[Edge, ...] | None = edges
        self.residuals = residuals
        self.tick = next_tick()
        if slots is not None:
            self.slots = slots

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.recorder.name

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The nodes and leaves of the tracked operands, as in PyTorch."""
        edges = self.edges or ()
        return tuple(zip(edges, self.slots or (0,) * len(edges), strict=True))

    def __repr__(self) -> str:
        return f"<{self.name} backward>"


Edge = GradNode | Leaf


class Hooks:
    """Functions called in order of registration, each with a handle that removes it."""

    __slots__ = ("_functions", "_next")

    def __init__(self) -> None:
        self._functions: dict[int, Callable[[Any], Any]] = {}
        self._next = 0

    def add(self, function: Callable[[Any], Any]) -> RemovableHandle:
        """Register; the handle removes it again."""
        key = self._next
        self._next += 1
        self._functions[key] = function
        return RemovableHandle(self._functions, key)

    def __call__(self, gradient: Any) -> Any:
        """The gradient after every hook; a hook that returns None leaves it as it is."""
        for function in list(self._functions.values()):
            changed = function(gradient)
            if changed is not None:
                gradient = changed
        return gradient

    def __bool__(self) -> bool:
        return bool(self._functions)


class RemovableHandle:
    """Takes a hook back: ``handle.remove()``, or as a context manager."""

    __slots__ = ("_functions", "_key")

    def __init__(self, functions: dict[int, Callable[[Any], Any]], key: int) -> None:
        self._functions = functions
        self._key = key

    def remove(self) -> None:
        """Remove the hook; once more does nothing."""
        self._functions.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()
