"""Watching what keeps a jitted function from being done with compiling, to name it in a warning."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from jitgrad.errors import RecompileWarning, user_line

__all__ = ["Traits", "Watch"]

_MANY: Final = 8  # signatures that differ in one argument: time to say so
_RECENT: Final = 16  # earlier signatures that a new one is compared with


@dataclass(frozen=True)
class Traits:
    """One argument of a call, as far as compiled code may depend on it. The order is that in which differences count."""

    static: Hashable = None  # the value of a static argument
    structure: Hashable = None
    numbers: tuple[bool, ...] = ()  # which leaves are Python numbers
    dtypes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    shown: str = ""  # a static value, for the message

    def difference(self, other: Traits) -> str | None:
        """The first trait that differs."""
        return next((t for t in _ADVICE if getattr(self, t) != getattr(other, t)), None)

    def words(self, trait: str) -> str:
        """A trait in words."""
        if trait == "static":
            return self.shown
        if trait == "numbers":
            return ", ".join("a Python number" if n else "an array" for n in self.numbers)
        value = getattr(self, trait)
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return text if len(text) <= 60 else text[:57] + "..."


_ADVICE: Final = {
    "static": (
        "value",
        "each value of a static argument is traced on its own; pass it as an ordinary argument unless the Python code has to "
        "know it, and then give it few values",
    ),
    "structure": (
        "structure",
        "pass containers with the same parts; arrays of varying number can be one array with one more axis",
    ),
    "numbers": ("kind", "pass a Python number always, or an array always"),
    "dtypes": ("dtype", "convert to one dtype before the call (.astype)"),
    "ranks": ("number of axes", "give it one number of axes before the call (.reshape)"),
    "shapes": (
        "shape",
        "other extents alone compile nothing, but here the operations depend on them: a Python loop over an axis, or an axis "
        "of extent 0 or 1. Use operations on whole arrays, or pad to a few extents",
    ),
}


class Watch:
    """The signatures of one jitted function so far."""

    def __init__(self, function: str) -> None:
        self.function = function
        self._recent: list[dict[str, Traits]] = []
        self._kernels: set[Hashable] = set()
        self._counts: dict[tuple[str, ...], int] = {}
        self._bindings: dict[str, int] = {}
        self._limited = False

    def note(self, signature: dict[str, Traits], kernels: set[Hashable]) -> None:
        """A signature was traced, and needs these kernels; warn where one argument has been the reason too often."""
        fresh = not kernels <= self._kernels
        self._kernels |= kernels
        recent = self._recent[-_RECENT:]
        self._recent = [*recent, signature]
        for earlier in reversed(recent):
            if earlier.keys() != signature.keys():
                continue
            changed = {n: d for n, t in signature.items() if (d := t.difference(earlier[n])) is not None}
            forced = [n for n, d in changed.items() if d != "shapes"]
            # other extents change nothing by themselves: they are to blame only where nothing else is
            blamed = tuple(forced or changed)
            if not blamed or len(forced) > 1 or not (fresh or changed[blamed[0]] == "static"):
                continue
            count = self._counts[blamed] = self._counts.get(blamed, 1) + 1
            if count == _MANY:
                self._warn(blamed, changed[blamed[0]], earlier, signature)
            return

    def note_binding(self, place: str) -> None:
        """It was traced again since something else is at a place that its code names; warn where one has been the reason
        too often."""
        count = self._bindings[place] = self._bindings.get(place, 1) + 1
        if count == _MANY:
            self._say(
                f"{self.function} was traced {_MANY} times because {place} keeps changing, which its code names: a number, a "
                "function, a container, what NumPy makes of an array, and tensors that the function itself makes are part of the "
                "program. To avoid it: pass it as an argument, or make an array of it that meets traced values, which is read "
                "again at each call"
            )

    def note_limit(self, most: int) -> None:
        """It reaches more objects than are looked at; warn once."""
        if not self._limited:
            self._limited = True
            self._say(
                f"{self.function} reaches more than {most} objects that may hold arrays. What else it captures is not looked "
                "at, and may change, so it is traced again at each call. To avoid it: pass what it needs as arguments, or let "
                "it capture that alone instead of what holds everything"
            )

    def _warn(self, blamed: tuple[str, ...], trait: str, before: dict[str, Traits], now: dict[str, Traits]) -> None:
        what, advice = _ADVICE[trait]
        arguments = f"argument {blamed[0]}" if len(blamed) == 1 else f"arguments {' and '.join(blamed)}"
        kind = "static " if trait == "static" else ""
        old, new = ("; ".join(signature[n].words(trait) for n in blamed) for signature in (before, now))
        verb = "traced" if trait == "static" else "compiled"
        self._say(
            f"{self.function} was {verb} {_MANY} times because of the {kind}{arguments}: the {what} keeps changing, "
            f"now from {old} to {new}. To avoid it: {advice}"
        )

    def _say(self, text: str) -> None:
        file, _, line = user_line().rpartition(":")
        warnings.warn_explicit(f"jit: {text}", RecompileWarning, file, int(line))
