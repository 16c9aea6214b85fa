"""What kernels cost: counts and seconds of this process, and what is kept on disk."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from jitgrad.kernels import kernel
from jitgrad.kernels.disk_cache import default_cache

__all__ = ["CacheInfo", "cache_info", "clear_cache"]

_UNITS = ("bytes", "KiB", "MiB", "GiB")
_DEFINITION = re.compile(r"^def (\w+)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What `cache_info` found; ``print`` it for a summary.

    Attributes:
        compiled: kernels that this process compiled.
        loaded: kernels that it loaded from disk.
        misses: look-ups on disk that found nothing usable.
        compile_seconds: time spent in compiling.
        load_seconds: time spent in loading.
        setup_seconds: time spent in importing and starting Numba.
        kernels: sorted names of the kernels in memory, one for each; a name that serves several dtypes or
            layouts occurs several times.
        directory: where kernels are kept on disk; None where they are not.
        entries: number of kernels on disk, of all processes.
        bytes: size of these.
        max_bytes: bound of that size.
    """

    compiled: int
    loaded: int
    misses: int
    compile_seconds: float
    load_seconds: float
    setup_seconds: float
    kernels: tuple[str, ...]
    directory: Path | None
    entries: int
    bytes: int
    max_bytes: int

    def __str__(self) -> str:
        return f"{self.process()}\n{self.disk()}"

    def process(self) -> str:
        """Return what this process compiled, loaded and has in memory."""
        names = ", ".join(name if n == 1 else f"{name} ({n})" for name, n in Counter(self.kernels).items())
        in_memory = _count(len(self.kernels)) + (f": {names}" if names else "")
        return (
            f"compiled    {_count(self.compiled)} in {self.compile_seconds:.2f} s\n"
            f"loaded      {_count(self.loaded)} in {self.load_seconds:.2f} s ({self.misses} not found on disk)\n"
            f"set-up      {self.setup_seconds:.2f} s to start Numba\n"
            + textwrap.fill(
                in_memory,
                100,
                initial_indent="in memory   ",
                subsequent_indent=" " * 12,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )

    def disk(self) -> str:
        """Return what is kept on disk, in two lines."""
        if self.directory is None:
            return "directory   none: kernels are kept in memory only"
        return (
            f"directory   {self.directory}\n"
            f"on disk     {_count(self.entries)}, {_size(self.bytes)} of at most {_size(self.max_bytes)}"
        )


def cache_info() -> CacheInfo:
    """Return what was compiled, loaded and kept so far, and how long it took.

    Counts and seconds are those of this process; ``entries`` and ``bytes`` are read from disk, where other
    processes write too.

    Raises:
        ConfigError: an environment variable of jitgrad is invalid.

    Example:
        >>> info = cache_info()
        >>> info.compiled >= 0, info.compile_seconds >= 0.0
        (True, True)
    """
    store = default_cache()
    counters = kernel.counters
    sizes = [entry.size for entry in store.entries()]
    return CacheInfo(
        compiled=counters.compiled,
        loaded=counters.loaded,
        misses=store.stats.misses,
        compile_seconds=counters.compile_seconds,
        load_seconds=counters.load_seconds,
        setup_seconds=counters.setup_seconds,
        kernels=_names_in_memory(),
        directory=store.directory,
        entries=len(sizes),
        bytes=sum(sizes),
        max_bytes=store.max_bytes,
    )


def clear_cache() -> int:
    """Remove every kernel from the disk, and return how many files went.

    Kernels in memory stay, in this process and in others: nothing that runs is disturbed, and the next process
    compiles again.

    Raises:
        ConfigError: an environment variable of jitgrad is invalid.
    """
    return default_cache().clear()


def _names_in_memory() -> tuple[str, ...]:
    # A copy first: another thread may be adding a kernel.
    sources = [source for _, source, *_ in list(kernel._entries)]
    return tuple(
        sorted(found[-1] for source in sources if (found := _DEFINITION.findall(source)))
    )  # what it calls is before


def _count(kernels: int) -> str:
    return f"{kernels} kernel" if kernels == 1 else f"{kernels} kernels"


def _size(count: int) -> str:
    size, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
