"""Python's cycle collector, held off while graphs are built."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_off"]


class _Holds:
    """How many blocks hold the collector off, in all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.resumes = False  # it was on when the first of them began

    def forget(self) -> None:
        """In a forked child, where the other threads that hold it off do not exist."""
        self.lock = threading.Lock()
        if self.count and self.resumes:
            gc.enable()
        self.count = 0


_holds = _Holds()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_holds.forget)


@contextmanager
def held_off() -> Iterator[None]:
    """No cycle collection inside: all that is built there is in use, and a full collection looks at every object of the
    process, which takes as long as a trace of a thousand operations."""
    with _holds.lock:
        _holds.count += 1
        if _holds.count == 1:
            _holds.resumes = gc.isenabled()
            gc.disable()
    try:
        yield
    finally:
        with _holds.lock:
            if _holds.count == 1 and _holds.resumes:
                gc.enable()
            _holds.count = max(0, _holds.count - 1)
