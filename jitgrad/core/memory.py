"""Who wrote what in place: a log for each piece of memory, so that backward can tell whether a value it keeps is still
the one that was computed.

Memory is identified by the object that owns it (the end of the chain of ``ndarray.base``). Memory that was never written
through this package has no log, so values that are never written cost nothing.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

__all__ = ["Exported", "Write", "any_writes", "log_write", "overwritten", "owner"]

_MOST_WRITES: Final = 64
_MOST_WORK: Final = 10_000  # candidate solutions, when looking for a common element


@dataclass(frozen=True, slots=True)
class Write:
    """One write: when (on the clock of recordings), which bytes, by which operation, where in the user's code.

    ``layout``: the elements between the bounds, as an array interface; None: take it that all of them were written.
    """

    tick: int
    low: int
    high: int
    layout: dict[str, Any] | None
    operation: str
    shape: tuple[int, ...]
    version: int
    where: str


class _Log:
    __slots__ = ("reference", "writes")

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.writes: list[Write] = []


_logs: dict[int, _Log] = {}


class Exported:
    """Stands between an array and the ndarray of it that NumPy code has got: it lives as long as that one or a view of it.

    NumPy makes the base of a view the array that owns the memory, but does not look through other objects.
    """

    __slots__ = ("__weakref__", "_value")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._value = array

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._value.__array_interface__


def owner(array: np.ndarray[Any, Any]) -> Any:
    """The object that owns the memory of an array."""
    held: Any = array
    while True:
        if isinstance(held, np.ndarray):
            base = held.base
            if base is None:
                return held
            held = base
        elif type(held) is Exported:
            held = held._value
        else:
            return held


def any_writes() -> bool:
    """Whether any living memory was written in place."""
    return bool(_logs)


def log_write(array: np.ndarray[Any, Any], operation: str, tick: int, version: int, where: str) -> None:
    """Remember that the memory of ``array`` was written."""
    memory = owner(array)
    key = id(memory)
    log = _logs.get(key)
    if log is None:
        try:
            reference: Any = weakref.ref(memory, lambda _, key=key: _logs.pop(key, None))  # type: ignore[misc]
        except TypeError:  # bytes and the like cannot be referenced weakly: they stay
            reference = memory
        log = _logs[key] = _Log(reference)
    low, high = np.lib.array_utils.byte_bounds(array)
    layout: dict[str, Any] | None = array.__array_interface__
    writes = log.writes
    if writes and writes[-1].layout == layout:
        writes.pop()  # the same elements again: only the last write counts
    elif len(writes) >= _MOST_WRITES:
        low = min(low, *(w.low for w in writes))
        high = max(high, *(w.high for w in writes))
        layout = None
        writes.clear()
    writes.append(Write(tick, low, high, layout, operation, array.shape, version, where))


def overwritten(array: np.ndarray[Any, Any], tick: int) -> Write | None:
    """The last write to elements of ``array`` after ``tick``, if there was one."""
    log = _logs.get(id(owner(array)))
    if log is None or log.writes[-1].tick < tick:
        return None
    low, high = np.lib.array_utils.byte_bounds(array)
    for write in reversed(log.writes):
        if write.tick > tick and write.low < high and low < write.high and _overlap(array, write):
            return write
    return None


class _Layout:
    """An array interface by itself, for NumPy to look at; the memory is never read through it."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _overlap(array: np.ndarray[Any, Any], write: Write) -> bool:
    """Whether an element of ``array`` was written, or that would take long to find out."""
    if write.layout is None:
        return True
    try:
        written = np.asarray(_Layout(write.layout))
        return np.shares_memory(array, written, max_work=_MOST_WORK)  # type: ignore[arg-type]  # any number will do
    except np.exceptions.TooHardError:
        return True
