"""The one timer: results are compared, then all libraries are timed in turn, round after round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.session import Case, Session, SessionError

__all__ = ["Effort", "Figure", "disagreements", "in_turn", "race"]

Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int  # at most, for each library
    seconds: float  # for each library, about
    batch: float  # seconds of calls that one reading spans
    fresh: int  # readings of what needs a new process each
    patience: float  # seconds until a first call is given up


@dataclass
class Figure:
    """A median and a minimum, or why there is none."""

    median: float | None = None
    minimum: float | None = None
    problem: str | None = None
    readings: list[float] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, readings: Sequence[float]) -> Figure:
        """From single readings."""
        return cls(statistics.median(readings), min(readings), None, list(readings))

    def scaled(self, factor: float) -> Figure:
        """In another unit."""
        return Figure.of([r * factor for r in self.readings]) if self.readings else self


def _agree(a: Arrays, b: Arrays) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and np.allclose(x, y, rtol=1e-8, atol=1e-9 * float(np.max(np.abs(y), initial=0.0)))
        for x, y in zip(a, b, strict=True)
    )


def disagreements(results: Mapping[str, Arrays], value: float | None = None) -> dict[str, str]:
    """The libraries whose results are wrong, and how.

    ``value`` is NumPy's, where the first result is the value of a function. Of the rest, the result that most others
    agree with counts as right; among equals the last, as jitgrad stands first.
    """
    wrong: dict[str, str] = {}
    if value is not None:
        for name, arrays in results.items():
            if not np.allclose(arrays[0], value, rtol=1e-9, atol=1e-12):
                wrong[name] = f"disagrees: the value is {float(arrays[0].ravel()[0])!r}, NumPy's {value!r}"
    left = {name: arrays for name, arrays in results.items() if name not in wrong}
    if left:
        friends = {name: sum(_agree(a, b) for b in left.values()) for name, a in left.items()}
        reference = max(reversed(list(left)), key=friends.__getitem__)
        for name, arrays in left.items():
            if not _agree(arrays, left[reference]):
                wrong[name] = f"disagrees: other results than {reference}"
    return wrong


def in_turn(readers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Figure]:
    """Single readings, each reader once in each round."""
    readings: dict[str, list[float]] = {name: [] for name in readers}
    problems: dict[str, str] = {}
    for _ in range(rounds):
        for name, read in readers.items():
            if name not in problems:
                try:
                    readings[name].append(read())
                except SessionError as error:
                    problems[name] = str(error)
    return {n: Figure(problem=problems[n]) if n in problems else Figure.of(readings[n]) for n in readers}


class _Reader:
    """The readings of one session: as many calls in each as fill a batch, in as many rounds as there is time for."""

    def __init__(self, session: Session, effort: Effort) -> None:
        one = min(session.time(1) for _ in range(2))  # some libraries compile once more at the second call
        if one < effort.batch:
            one = min(session.time(3) for _ in range(2))
        self._session = session
        self._repeat = max(1, int(effort.batch / one))
        self._share = min(1.0, max(3.0, effort.seconds / (one * self._repeat)) / effort.rounds)
        self.readings: list[float] = []

    def read(self, turn: int) -> None:
        """Take part in a round; slow libraries sit out most."""
        if int((turn + 1) * self._share + 1e-9) > len(self.readings):
            self.readings.append(self._session.time(self._repeat))


def race(case: Case, sessions: Mapping[str, Session], effort: Effort, value: float | None = None) -> dict[str, Figure]:
    """Seconds per call of a case in every library that can do it and agrees on the results."""
    figures: dict[str, Figure] = {}
    results: dict[str, Arrays] = {}
    for name, session in sessions.items():
        try:
            session.prepare(case)
            results[name] = session.results()
        except SessionError as error:
            figures[name] = Figure(problem=str(error))
    figures |= {name: Figure(problem=problem) for name, problem in disagreements(results, value).items()}
    readers: dict[str, _Reader] = {}
    for turn in range(effort.rounds):
        for name in results:
            if name not in figures:
                try:
                    if name not in readers:
                        readers[name] = _Reader(sessions[name], effort)
                    readers[name].read(turn)
                except SessionError as error:
                    figures[name] = Figure(problem=str(error))
    return figures | {name: Figure.of(r.readings) for name, r in readers.items() if name not in figures}
