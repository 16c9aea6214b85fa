"""Kernels: source text and argument types in, a callable entry point out; compiled once, kept in memory and on disk."""

from __future__ import annotations

import functools
import importlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from jitgrad import config
from jitgrad.errors import CacheWarning
from jitgrad.kernels import python_form
from jitgrad.kernels.text import KernelPart, function_source

__all__ = [
    "ArrayKernel",
    "Counters",
    "KernelPart",
    "counters",
    "entry_point",
    "forget_kernels",
    "interop",
    "kernel_mode",
    "logger",
    "recall",
    "remember",
]


@dataclass
class Counters:
    """What kernels cost so far in this process."""

    compiled: int = 0
    loaded: int = 0
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    setup_seconds: float = 0.0  # Numba's import and first use
    names: list[str] = field(default_factory=list)


counters = Counters()


def logger() -> Any:
    """The logger of the package; ``logging`` is imported when there is something to say."""
    return importlib.import_module("logging").getLogger("jitgrad")


_SLOW: Final = 0.5  # seconds of a compilation that is worth a line
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # a lock cannot be renewed in place
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # another thread may hold the lock when the process forks
    os.register_at_fork(after_in_child=_renew_lock)
_entries: dict[Any, Callable[..., Any]] = {}
_NOTHING: Final[Mapping[str, Any]] = {}
_results: list[Any] = []  # compiled code must outlive its entry point


def kernel_mode() -> str:
    """``compiled`` or ``python``."""
    return config.settings().kernels


def forget_kernels() -> None:
    """Drop the kernels of this process (those on disk stay)."""
    with _lock:
        _entries.clear()


def entry_point(
    name: str, source: str, signature: tuple[str, ...], extras: Mapping[str, Any] = _NOTHING
) -> Callable[..., Any]:
    """The function ``name`` of ``source``, ready to be called with arguments of exactly these types.

    Argument codes: ``b:DTYPE`` a buffer of any rank,
    ``a:DTYPE:NDIM`` a C-contiguous array, ``n:DTYPE`` a number, ``o`` any object; ``r:DTYPE`` at the end: it returns a
    number; ``nogil`` at the end: it runs without Python's global lock.
    ``extras``: what further names in the source mean, functions of the user.
    """
    key = (kernel_mode(), source, signature, *extras.items())
    found = _entries.get(key)
    if found is None:
        with _lock:
            found = _entries.get(key)
            if found is None:
                maker = python_form.make if key[0] == "python" else _compiled
                found = _entries[key] = maker(name, source, signature, extras)
    return found


def _bridge() -> Any:
    """Numba, loaded when the first kernel is wanted: ``import jitgrad`` must stay free of it."""
    start = time.perf_counter()
    bridge = importlib.import_module("jitgrad.kernels.bridge")
    counters.setup_seconds += time.perf_counter() - start
    return bridge


def _place(name: str, source: str, signature: tuple[str, ...], functions: Iterable[Any]) -> tuple[Any, str | None]:
    """The cache on disk and the key in it; None where it cannot be told when a function of the user is another one."""
    bridge = _bridge()
    disk_cache = importlib.import_module("jitgrad.kernels.disk_cache")  # with Numba: not needed before
    prints = [importlib.import_module("jitgrad.kernels.user_functions").storable_fingerprint(f) for f in functions]
    cache = disk_cache.default_cache()
    if None in prints:
        return cache, None
    cpu_name, cpu_features = bridge.cpu()
    environment = disk_cache.environment_key(
        versions=bridge.versions(), cpu_name=cpu_name, cpu_features=cpu_features, options=bridge.options()
    )
    return cache, disk_cache.kernel_key(environment, name, source, signature, prints)


def recall(name: str, question: str, functions: Sequence[Any]) -> bytes | None:
    """What was stored on disk for a question about functions of the user, if they are still the same."""
    cache, key = _place(name, question, (), functions)
    return None if key is None else cache.load(key)


def remember(name: str, question: str, functions: Sequence[Any], answer: bytes) -> None:
    """Store the answer for ``recall``."""
    cache, key = _place(name, question, (), functions)
    if key is not None:
        cache.store(key, answer)


def _compiled(name: str, source: str, signature: tuple[str, ...], extras: Mapping[str, Any]) -> Callable[..., Any]:
    bridge = _bridge()
    cache, key = _place(name, source, signature, extras.values())
    start = time.perf_counter()
    payload = None if key is None else cache.load(key)
    result = None
    if payload is not None:
        try:
            result = bridge.deserialize(payload, bool(extras))
        except Exception as error:  # whatever a stale pickle raises: compile again
            _warn_once(f"a kernel in {cache.directory} could not be loaded ({error!r}); it is compiled again")
    if result is None:
        start = time.perf_counter()
        result = bridge.make(name, source, signature, extras)
        counters.compiled += 1
        seconds = time.perf_counter() - start
        counters.compile_seconds += seconds
        if seconds > _SLOW:
            logger().info("compiled %s in %.2f s", name, seconds)
        counters.names.append(name)
        if key is not None and (not extras or bridge.is_storable(result)):
            cache.store(key, bridge.serialize(result))
    else:
        counters.loaded += 1
        counters.load_seconds += time.perf_counter() - start
    _results.append(result)
    return result.entry_point  # type: ignore[no-any-return]


def interop() -> Any:
    """The module that makes Numba functions of kernels, loaded when the first is wanted; in Python mode its stand-in."""
    if kernel_mode() == "python":
        return importlib.import_module("jitgrad.kernels.python_interop")
    _bridge()
    return importlib.import_module("jitgrad.kernels.interop")


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=2)


class ArrayKernel(KernelPart):
    """A function of C-contiguous arrays and numbers, written as plain array code; compiled for dtypes and ranks.

    It returns nothing: results are arguments. Decorate a ``def`` whose body Numba can compile.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function)
        self.name = function.__name__
        self.extras: Mapping[str, Any] = _NOTHING
        self._entries: dict[Any, Callable[..., Any]] = {}

    @property
    def source(self) -> str:
        """Its text, and that of the functions that it calls."""
        return function_source(self.function)

    def __call__(self, *arguments: Any) -> None:
        self.entry_for(*arguments)(*arguments)

    def entry_for(self, *arguments: Any) -> Callable[..., None]:
        """What runs it on arguments of these dtypes and ranks."""
        key = (kernel_mode(), *[(a.dtype, a.ndim) if isinstance(a, np.ndarray) else type(a) for a in arguments])
        entry = self._entries.get(key)
        if entry is None:
            signature = tuple(map(_code, arguments))
            entry = self._entries[key] = entry_point(self.name, self.source, signature)
        return entry


def _code(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise ValueError("array kernels take C-contiguous arrays")
        return f"a:{argument.dtype.name}:{argument.ndim}"
    return {bool: "n:bool", int: "n:int64", float: "n:float64"}[type(argument)]
