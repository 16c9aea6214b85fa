"""Watching a call: which primitives it applies, and whether it reads values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Final

__all__ = ["note_applied", "note_value_read", "watched", "watches"]

watches: Final[dict[int, list[Any]]] = {}
"""What the threads that are watched have done, by their number. A dictionary and no context variable, since every operation
asks whether anybody is watched, and nearly always nobody is."""


def watched(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The result of a function, and what it did: a triple of plan, operands and result (if it is one) for each primitive that
    went the general way, None for each read. Operations that took a short way are not seen, but by what they made."""
    thread = get_ident()
    outer = watches.get(thread)
    done: list[Any] = []
    watches[thread] = done
    try:
        result = function(*args, **kwargs)
    finally:
        if outer is None:
            watches.pop(thread, None)
        else:
            outer.extend(done)
            watches[thread] = outer
    return result, done


def note_applied(plan: Any, operands: Sequence[Any], result: Any) -> None:
    """A primitive was applied."""
    if (done := watches.get(get_ident())) is not None:
        done.append((plan, operands, result))


def note_value_read() -> None:
    """Python read values of an array, so that what it does next may depend on them."""
    if (done := watches.get(get_ident())) is not None:
        done.append(None)
