"""Which extents a traced function's Python code reads: what it does with the number cannot be seen, so it must stay as it is."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from jitgrad.core.graph import Extent, Tracer
from jitgrad.tensor import Tensor

__all__ = ["Observation"]

_SAY_NOTHING: Final = frozenset({"ndim", "dim", "dtype", "itemsize", "device", "requires_grad", "is_leaf"})
"""Attributes that do not depend on extents."""

_MADE_OF_EXTENTS: Final = {"squeeze": "axis", "vander": "N"}
"""Functions that drop axes or make columns as the extents have it, unless they are given this argument."""


class Observation:
    """The axes whose extents left jitgrad as numbers while a function was traced.

    Everything that a function of jitgrad returns to code outside of it is looked at: numbers and texts that may come from
    a shape, and sequences as long as an axis. Functions of the interpreter (``range``, ``int.__add__``) read extents
    without a trace, so it is not enough to watch the numbers themselves.
    """

    def __init__(self) -> None:
        self.axes: set[tuple[Any, int]] = set()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Look on while a function is traced in this thread."""
        before = sys.getprofile()
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _event(self, frame: FrameType, event: str, value: Any) -> None:
        if event != "return" or not _is_ours(frame):
            return
        name = frame.f_code.co_name
        if name in _MADE_OF_EXTENTS and frame.f_locals.get(_MADE_OF_EXTENTS[name], ()) is None:
            self._arguments(frame)
        caller = frame.f_back
        if caller is None or _is_ours(caller) or _module(caller).startswith("optree") or name in _SAY_NOTHING:
            return
        if value is None and _raises(frame):  # an IndexError that is caught says something about an extent
            self._arguments(frame)
        self._look(value, frame)

    def _look(self, value: Any, frame: FrameType) -> None:
        if isinstance(value, Extent):
            self.axes.add((value.atom, value.axis))
        elif isinstance(value, bool | int | float | str | bytes | Iterator):
            self._arguments(frame)
        elif isinstance(value, tuple | list):
            tensors = type(value) in (tuple, list) and any(isinstance(v, Tensor) for v in value)  # not of a fixed form
            if tensors and not _module(frame).startswith(("jitgrad.transforms", "jitgrad.autograd")):
                self._arguments(frame)  # split, unbind: there may be as many as elements
            for v in value:
                self._look(v, frame)

    def _arguments(self, frame: FrameType) -> None:
        """All axes of the traced values among the variables of a function."""
        pending = list(frame.f_locals.values())
        while pending:
            value = pending.pop()
            if isinstance(value, Tensor):
                if isinstance(value._value, Tracer):
                    self.axes.update((value._value.variable, axis) for axis in range(value.ndim))
            elif type(value) in (tuple, list):
                pending.extend(value)


def _raises(frame: FrameType) -> bool:
    """Whether a function that gives None is left by an exception."""
    return not dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(("RETURN_", "YIELD_"))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_ours(frame: FrameType) -> bool:
    name = _module(frame)
    return name == "jitgrad" or name.startswith("jitgrad.")
