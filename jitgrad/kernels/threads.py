"""The threads that share large kernels, and the number of them.

A kernel that may be divided is called for one part after another, without Python's global lock, by the calling thread and
by those of one pool. The pool is made when it is first needed, and anew in a forked child, whose threads are gone.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jitgrad import config

__all__ = ["get_num_threads", "run_parts", "set_num_threads"]

_lock = threading.Lock()
_pool: Any = None  # a ThreadPoolExecutor
_size = 0


def _forget_pool() -> None:
    global _lock, _pool, _size  # a child has none of its parent's threads
    _lock, _pool, _size = threading.Lock(), None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def get_num_threads() -> int:
    """The number of threads that one kernel may use.

    >>> import jitgrad as jg
    >>> jg.get_num_threads()
    1
    """
    return config.settings().num_threads


def set_num_threads(count: int) -> None:
    """Let large jitted kernels, and SciPy's BLAS inside of them, use so many threads.

    The default is 1, or ``JITGRAD_NUM_THREADS``; BLAS has its own default until this is called. A kernel is divided where
    its loops are long enough to gain (about 0.2 ms); shorter ones, and functions for Numba (``.njit``), run on the thread
    that calls them. How a kernel is divided depends on the extents alone, and sums are combined in order: results are the
    same bits from run to run and for any number of threads above one. With one thread, sums may differ from those in the
    last bits.

    The number holds for the whole process. Safe to call from any thread; running calls keep the number that they started with.

    Raises ConfigError where ``count`` is no whole number >= 1.

    >>> import jitgrad as jg
    >>> jg.set_num_threads(2)
    >>> jg.get_num_threads()
    2
    >>> jg.set_num_threads(1)
    """
    config.set_for_process(num_threads=count)
    if (limit := _blas_limit()) is not None:
        limit(count)


@functools.cache
def _blas_limit() -> Callable[[int], Any] | None:
    """OpenBLAS' own function for the number of threads, in the library that SciPy brings; None where there is another."""
    package = Path(str(importlib.import_module("scipy").__file__)).parent
    for folder in (package.with_name("scipy.libs"), package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                continue
            for name in ("scipy_openblas_set_num_threads", "openblas_set_num_threads"):
                for suffix in ("", "64_"):
                    function = getattr(library, name + suffix, None)
                    if function is not None:
                        function.argtypes, function.restype = [ctypes.c_int], None
                        return function  # type: ignore[no-any-return]
    return None


def _executor(helpers: int) -> Any:
    global _pool, _size  # the pool of this process
    with _lock:
        if _pool is None or _size < helpers:
            # the threads of a smaller pool end when they have done what they were given
            # (imported late: it brings more than programs of one thread should pay for)
            futures = importlib.import_module("concurrent.futures")
            _pool, _size = futures.ThreadPoolExecutor(helpers, "jitgrad"), helpers
        return _pool


def run_parts(part: Callable[[int], Any], count: int, threads: int) -> None:
    """``part(0)`` to ``part(count - 1)``, each once, on up to ``threads`` threads, of which the calling one is the first.

    Raises what a part raises, when no part is running any more.
    """
    numbers = itertools.count()  # next() is one step under Python's lock
    changed = threading.Condition()
    running, over = 0, False
    failures: list[BaseException] = []

    def work() -> None:
        while (number := next(numbers)) < count:
            part(number)

    def help_out() -> None:
        nonlocal running
        with changed:
            if over:
                return
            running += 1
        try:
            work()
        except BaseException as error:
            failures.append(error)
        with changed:
            running -= 1
            changed.notify()

    try:
        executor = _executor(threads - 1)
        for _ in range(min(threads, count) - 1):
            executor.submit(help_out)
    except RuntimeError:
        # No new threads: the system has no more, or the interpreter is shutting down. What was submitted may run all the
        # same, even what the error is about.
        pass
    try:
        work()
    finally:
        with changed:
            over = True  # a helper that has not begun is not waited for: the parts are done
            changed.wait_for(lambda: not running)
    if failures:
        raise failures[0]
