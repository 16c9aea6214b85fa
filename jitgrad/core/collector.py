"""Python's cycle collector, held off while graphs are built."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_off"]


class _Holds:
    """How many blocks hold the collector off, in all threads.

    By its thresholds, of which the first 0 means never: what ``gc.disable`` and ``gc.enable`` say belongs to the user's
    code, which may call them inside.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.thresholds: tuple[int, ...] = ()  # as they were when the first of them began

    def begin(self) -> None:
        """One more."""
        with self.lock:
            self.count += 1
            if self.count == 1:
                self.thresholds = gc.get_threshold()
                gc.set_threshold(0, *self.thresholds[1:])

    def end(self) -> None:
        """One less."""
        with self.lock:
            if self.count == 1:
                self._restore()
            self.count = max(0, self.count - 1)

    def forget(self) -> None:
        """In a forked child, where the other threads that hold it off do not exist."""
        self.lock = threading.Lock()
        if self.count:
            self._restore()
        self.count = 0

    def _restore(self) -> None:
        if gc.get_threshold()[0] == 0:  # else the user's code has set them meanwhile
            gc.set_threshold(*self.thresholds)


_holds = _Holds()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_holds.forget)


@contextmanager
def held_off() -> Iterator[None]:
    """No cycle collection inside: all that is built there is in use, and a full collection looks at every object of the
    process, which takes as long as a trace of a thousand operations."""
    _holds.begin()
    try:
        yield
    finally:
        _holds.end()
