"""A process for each library: pinned to one core, it prepares a case, hands over its results, and times calls of it.

Libraries that share a process share an allocator, thread pools and the blame for a crash. Here each has its own; all but
the one that is asked sleep, so on one pinned core they can be measured in turn.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from benchmarks.libraries import CannotExpressError, Library

__all__ = ["CORES", "THREAD_VARIABLES", "Case", "Session", "SessionError", "one_core"]

THREAD_VARIABLES = (
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
CORES: frozenset[int] = frozenset(os.sched_getaffinity(0)) if sys.platform == "linux" else frozenset()


def one_core() -> frozenset[int]:
    """The core that everything is pinned to: the last one, as the first has most of the interrupts; none if it cannot be."""
    return frozenset(sorted(CORES)[-1:])


class Case(Protocol):
    """What can be prepared and timed."""

    @property
    def name(self) -> str:
        """What the report calls it."""

    def arguments(self) -> tuple[Any, ...]:
        """Its data; made before the clock runs."""

    def prepare(self, library: Any) -> tuple[Any, Sequence[Any]]:
        """The library's function, and arguments for it."""


class SessionError(Exception):
    """A library failed, or its process took too long; the message is for the report."""


class _Server:
    """What happens in the library's process."""

    def __init__(self, library: type[Library]) -> None:
        self._class = library
        self._call: Any = None
        self._args: Sequence[Any] = ()
        self._result: Any = None

    def load(self) -> float:
        """Import the library: seconds."""
        start = time.perf_counter()
        self._library = self._class()
        return time.perf_counter() - start

    def prepare(self, case: Case) -> float:
        """Make the function and call it once: seconds. What was prepared before is let go."""
        self._call, self._args, self._result = None, (), None
        case.arguments()
        start = time.perf_counter()
        self._call, self._args = case.prepare(self._library)
        self._result = self._call(*self._args)
        return time.perf_counter() - start

    def results(self) -> list[np.ndarray[Any, Any]]:
        """What the first call returned, as arrays."""
        return [np.array(a, dtype=np.float64) for a in self._library.arrays(self._result)]

    def time(self, repeat: int) -> float:
        """Seconds per call; short ones after one that warms the caches."""
        call, args = self._call, self._args
        self._result = None
        if repeat > 1:
            call(*args)
        start = time.perf_counter()
        for _ in range(repeat):
            call(*args)
        return (time.perf_counter() - start) / repeat

    def peak(self) -> float:
        """The largest amount of memory that this process had resident, in MB."""
        with contextlib.suppress(OSError), open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e3
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1e6 if sys.platform == "darwin" else 1e3)


def _serve(connection: Connection, library: type[Library], environment: dict[str, str], cores: frozenset[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    os.environ.update(environment)
    sys.dont_write_bytecode = False  # or each process would compile the modules of a checkout again
    server = _Server(library)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            method, args = connection.recv()
            answer: tuple[Any, str | None]
            try:
                answer = getattr(server, method)(*args), None
            except (CannotExpressError, NotImplementedError) as error:
                answer = None, f"not available: {_line(error)}"
            except Exception as error:
                answer = None, f"{type(error).__name__}: {_line(error)}"
            connection.send(answer)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:120]


class Session:
    """The process of a library, as the caller sees it; it is started when it is first asked something."""

    def __init__(
        self,
        library: type[Library],
        *,
        cache: str | None = None,
        cores: frozenset[int] | None = None,
        patience: float = 300.0,
    ) -> None:
        self.library = library
        self._environment = {
            key: value.format(cache=cache)
            for key, value in library.environment.items()
            if cache is not None or "{cache}" not in value
        }
        self._cores = one_core() if cores is None else cores
        self._patience = patience
        self._process: Any = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._connection.close()
            self._process.join(1.0)
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = theirs, self.library, self._environment, self._cores
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            self._connection.send((method, args))
            if not self._connection.poll(self._patience):
                self.close()
                raise SessionError(f"more than {self._patience:.0f} s")
            answer, problem = self._connection.recv()
        except (EOFError, OSError):
            self.close()
            raise SessionError("the process died") from None
        if problem is not None:
            raise SessionError(problem)
        return answer

    def load(self) -> float:
        """Start the process and import the library: seconds of the import."""
        self.close()
        self._start()
        return float(self._ask("load"))

    def prepare(self, case: Case) -> float:
        """Seconds of the first call, compilation included."""
        if self._process is None:
            self.load()
        return float(self._ask("prepare", case))

    def results(self) -> list[np.ndarray[Any, Any]]:
        """The results of the prepared case."""
        return list(self._ask("results"))

    def time(self, repeat: int) -> float:
        """Seconds per call of the prepared case."""
        return float(self._ask("time", repeat))

    def peak(self) -> float:
        """Peak resident memory of the process, in MB."""
        return float(self._ask("peak"))
