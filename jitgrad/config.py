"""Settings: read once from the environment, checked, frozen.

========================  ==========================================  ==============================
variable                  meaning                                     default
========================  ==========================================  ==============================
``JITGRAD_CACHE_DIR``     directory of the disk cache                 the platform's cache directory
``JITGRAD_CACHE_SIZE``    its bound in bytes; 0 turns it off          1073741824 (1 GiB)
``JITGRAD_KERNELS``       ``compiled``, or ``python`` for debugging   ``compiled``
``JITGRAD_NUM_THREADS``   threads a kernel may use                    1
========================  ==========================================  ==============================

An empty variable counts as unset.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jitgrad.errors import ConfigError

__all__ = ["Settings", "override", "set_for_process", "settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force; immutable, so that one read of it is consistent.

    Attributes:
        cache_dir: absolute directory of the disk cache, or None for the platform's own.
        cache_size: bound of the disk cache in bytes; 0 turns it off.
        kernels: ``"compiled"``, or ``"python"`` to run kernels as plain Python, for debugging and tests.
        num_threads: number of threads a kernel may use.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> Settings(num_threads=2).num_threads
        2
    """

    cache_dir: Path | None = None
    cache_size: int = 1 << 30
    kernels: Literal["compiled", "python"] = "compiled"
    num_threads: int = 1

    def __post_init__(self) -> None:
        where = self.cache_dir
        if where is not None and not (_is_path(where) and where.is_absolute()):
            raise ConfigError(f"cache_dir (JITGRAD_CACHE_DIR) must be an absolute pathlib.Path or None, got {where!r}")
        if not _is_int(self.cache_size) or self.cache_size < 0:
            raise ConfigError(
                f"cache_size (JITGRAD_CACHE_SIZE) must be a number of bytes >= 0, got {self.cache_size!r}; "
                "0 turns the disk cache off"
            )
        if self.kernels not in ("compiled", "python"):
            raise ConfigError(f"kernels (JITGRAD_KERNELS) must be 'compiled' or 'python', got {self.kernels!r}")
        if not _is_int(self.num_threads) or self.num_threads < 1:
            raise ConfigError(
                f"num_threads (JITGRAD_NUM_THREADS) must be a whole number >= 1, got {self.num_threads!r}"
            )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from ``environ`` (default: ``os.environ``), afresh at each call.

        Raises:
            ConfigError: a variable cannot be understood; the message names it and says what to write.

        Example:
            >>> Settings.from_environment({"JITGRAD_CACHE_SIZE": "0"}).cache_size
            0
        """
        source = os.environ if environ is None else environ
        found: dict[str, Any] = {}
        if text := source.get("JITGRAD_CACHE_DIR", ""):
            found["cache_dir"] = _directory("JITGRAD_CACHE_DIR", text)
        if text := source.get("JITGRAD_CACHE_SIZE", "").strip():
            found["cache_size"] = _whole_number("JITGRAD_CACHE_SIZE", text, "bytes, such as 1073741824 for 1 GiB")
        if text := source.get("JITGRAD_KERNELS", "").strip():
            found["kernels"] = text.lower()
        if text := source.get("JITGRAD_NUM_THREADS", "").strip():
            found["num_threads"] = _whole_number("JITGRAD_NUM_THREADS", text, "threads, such as 4")
        return cls(**found)


def _is_path(value: object) -> bool:
    return isinstance(value, Path)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_number(name: str, text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number: give a number of {what}") from None


def _directory(name: str, text: str) -> Path:
    # Made absolute now: a later os.chdir must not move the cache.
    try:
        return Path(os.path.abspath(Path(text).expanduser()))
    except (RuntimeError, ValueError) as error:  # unknown home directory
        raise ConfigError(f"{name}={text!r} is not a usable directory ({error}): give an absolute path") from None


_overridden: ContextVar[Settings | None] = ContextVar("jitgrad_settings", default=None)
overrides: list[Settings] = []
"""What is overridden in any thread now: as long as this is empty, the settings are those of the environment."""


_process: list[Settings] = []  # those of the process, once they were read


def _process_settings() -> Settings:
    if not _process:
        _process.append(Settings.from_environment())
    return _process[0]


def set_for_process(**changes: Any) -> None:
    """Change settings of the whole process, from now on; inside of an `override` they show when it ends.

    Raises:
        ConfigError: an invalid value.

    Example:
        >>> before = settings().cache_size
        >>> set_for_process(cache_size=0)
        >>> settings().cache_size
        0
        >>> set_for_process(cache_size=before)
    """
    _process[:] = [dataclasses.replace(_process_settings(), **changes)]


def settings() -> Settings:
    """Return the settings in force: those of the innermost `override`, else those of the environment.

    The environment is read at the first call and not again. `set_for_process` changes what it said.

    Raises:
        ConfigError: an environment variable is invalid.
    """
    return _overridden.get() or _process_settings()


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Change some settings inside a ``with`` block; blocks nest.

    The change holds for the current thread and for async tasks started inside. A *thread* started inside
    begins with an empty context and sees the settings of the process (unless the interpreter runs with
    ``-X thread_inherit_context=1``); to hand the change on, start it with
    ``Thread(target=contextvars.copy_context().run, args=(function,))``.

    Raises:
        ConfigError: an unknown name or an invalid value.

    Example:
        >>> with override(num_threads=3) as inside:
        ...     inside.num_threads, settings().num_threads
        (3, 3)
    """
    names = [field.name for field in dataclasses.fields(Settings)]
    unknown = sorted(set(changes) - set(names))
    if unknown:
        raise ConfigError(f"no setting is called {', '.join(unknown)}; there are {', '.join(names)}")
    changed = dataclasses.replace(settings(), **changes)
    overrides.append(changed)
    token = _overridden.set(changed)
    try:
        yield changed
    finally:
        _overridden.reset(token)
        overrides.remove(changed)
