"""Recorded history: a node for each operation, a leaf where gradients arrive. Edges point backward only."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Edge", "GradNode", "Hooks", "Leaf", "next_tick"]

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
        self, recorder: Any, edges: tuple[Any, ...], residuals: tuple[Any, ...], slots: tuple[int, ...] | None = None
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
        return str(self.recorder.name)

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
