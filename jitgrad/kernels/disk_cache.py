"""A content-addressed store of bytes on disk: one file per kernel, safe for many processes, never an error.

Layout: ``<directory>/<first two digits of the key>/<key>.jgk``. A file holds, integers little-endian::

    magic, 8 bytes
    SHA-256 of all that follows, 32 bytes
    format version, uint32 | length of the key, uint32 | length of the payload, uint64
    key
    payload

A file is written under a temporary name beside its place and renamed over it, so a reader sees the whole of
the old entry or the whole of the new one. Nothing is fsynced: what a crash leaves behind fails its checksum
and is compiled again.

Trust: payloads are pickles, and loading a pickle runs code. A checksum keeps out accidents, not people. So
the directory, and each file in it, must belong to the user (or to root) and be writable by nobody else.

Bound: a load refreshes the modification time of a file at most once a minute, and files with the oldest times
go first. The total is counted by a scan at the first store of a process and estimated from then on, with a
new scan each time that the bound may be reached; many processes together may exceed it by a few per cent for
a while.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import stat
import struct
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jitgrad.config import settings
from jitgrad.errors import CacheWarning

__all__ = [
    "CacheEntry",
    "CacheStats",
    "DiskCache",
    "default_cache",
    "default_directory",
    "environment_key",
    "kernel_key",
]

_MAGIC = b"JITGRAD\0"
_FORMAT = 1
_SUFFIX = ".jgk"
_CHECKSUM_END = len(_MAGIC) + 32
_LENGTHS = struct.Struct("<IIQ")  # format version, key length, payload length
_HEADER_END = _CHECKSUM_END + _LENGTHS.size

# Lower case only: two keys must not share a file on file systems that ignore case.
_KEY = re.compile(r"[0-9a-f]{8,128}")
_SHARD_NAME = re.compile(r"[0-9a-f]{2}")
_ENTRY_NAME = re.compile(rf"([0-9a-f]{{8,128}}){re.escape(_SUFFIX)}")
_TEMPORARY_NAME = re.compile(rf"[0-9a-f]{{8,128}}{re.escape(_SUFFIX)}\.[0-9a-f]{{16}}\.tmp")

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, getattr(errno, "ESTALE", errno.ENOENT)})
_WRITABLE_BY_OTHERS = 0o022

_TOUCH_AFTER = 60.0  # seconds
_TEMPORARY_LIFE = 3600.0  # seconds; an older temporary file was left by a process that died
_LOW_WATER = 0.9  # evict down to this share of the bound, so that a full cache is not scanned at each store
_RESCAN_SHARE = 64  # scan again after writing this fraction of the bound: other processes write too


class _Shared:
    """State of the process: which warnings were given, and the lock for them and for all counters.

    The lock is held for a few instructions, never during I/O.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.warned: set[tuple[str, str]] = set()

    def renew_lock(self) -> None:
        """For a forked child, where the thread that held the lock does not exist."""
        self.lock = threading.Lock()


_shared = _Shared()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.renew_lock)


@dataclass(slots=True)
class CacheStats:
    """What a `DiskCache` did in this process.

    Attributes:
        hits: loads that found their entry.
        misses: loads that did not, damaged and refused entries included.
        stores: entries written.
        errors: damaged entries, refused directories and failed writes.
        seconds: time spent in load and store.
    """

    hits: int = 0
    misses: int = 0
    stores: int = 0
    errors: int = 0
    seconds: float = 0.0


class CacheEntry(NamedTuple):
    """One file of a `DiskCache`: its key, path, size in bytes and time of last use (seconds of the epoch)."""

    key: str
    path: Path
    size: int
    last_used: float


class DiskCache:
    """A bounded store of bytes in one directory, least recently used first out.

    Anything that goes wrong on disk is a miss or a store that did not happen, never an exception. A damaged
    entry and a directory that is not safe to use warn once per process and directory (`CacheWarning`).

    Args:
        directory: where the files go, made on the first store; None keeps nothing.
        max_bytes: bound of the sum of file sizes; 0 keeps nothing and reads nothing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     store = DiskCache(Path(name), max_bytes=1 << 20)
        ...     store.store("0123abcd", b"payload")
        ...     store.load("0123abcd"), store.load("ffffffff")
        (b'payload', None)
    """

    def __init__(self, directory: Path | None, max_bytes: int) -> None:
        self.directory = None if directory is None or max_bytes <= 0 else Path(os.path.abspath(directory))
        self.max_bytes = max_bytes
        self.stats = CacheStats()
        self._root = "" if self.directory is None else str(self.directory)
        self._estimate: int | None = None  # total bytes as far as known; None before the first scan
        self._written = 0  # bytes written since that scan

    def load(self, key: str) -> bytes | None:
        """Return the payload stored under ``key``, or None.

        Raises:
            ValueError: ``key`` is not 8 to 128 lower-case hexadecimal digits.
        """
        _check_key(key)
        started = time.perf_counter()
        payload, problem = self._read(key) if self._root else (None, None)
        with _shared.lock:
            self.stats.hits += payload is not None
            self.stats.misses += payload is None
            self.stats.errors += problem is not None
            self.stats.seconds += time.perf_counter() - started
        if problem is not None:
            problem.warn(self._root)
        return payload

    def store(self, key: str, payload: bytes) -> None:
        """Keep ``payload`` under ``key`` in place of what was there, and drop old entries beyond the bound.

        Raises:
            ValueError: ``key`` is not 8 to 128 lower-case hexadecimal digits.
        """
        _check_key(key)
        if not self._root:
            return
        started = time.perf_counter()
        data = _encode(key, payload)
        written, problem = False, None
        if len(data) <= self.max_bytes:
            try:
                problem = self._prepare()
                if problem is None:
                    self._write(key, data)
                    written = True
            except OSError:
                pass  # full, read-only, forbidden, held open by a reader on Windows: this entry is not kept
            if written:
                self._keep_bounded(self._path(key), len(data))
        with _shared.lock:
            self.stats.stores += written
            self.stats.errors += not written
            self.stats.seconds += time.perf_counter() - started
        if problem is not None:
            problem.warn(self._root)

    def entries(self) -> list[CacheEntry]:
        """Return the entries on disk, least recently used first; damaged ones are not told apart."""
        found = []
        for item in self._files():
            match = _ENTRY_NAME.fullmatch(item.name)
            if match is not None:
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:  # another process removed it
                    continue
                found.append(CacheEntry(match[1], Path(item.path), status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: (entry.last_used, entry.key))

    def total_bytes(self) -> int:
        """Return the sum of the sizes of all entries on disk."""
        return sum(entry.size for entry in self.entries())

    def clear(self) -> int:
        """Remove all entries and temporary files, and return how many files went; others are not touched."""
        removed = sum(_unlink(item.path) for item in self._files())
        with _shared.lock:
            self._estimate = None
        return removed

    def _path(self, key: str) -> str:
        return f"{self._root}{os.sep}{key[:2]}{os.sep}{key}{_SUFFIX}"

    def _read(self, key: str) -> tuple[bytes | None, _Problem | None]:
        try:
            problem = _directory_problem(os.stat(self._root), self._root)
        except OSError:  # absent or out of reach: nothing to read
            return None, None
        if problem is not None:
            return None, problem
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0, opener=_open_to_read) as file:
                status = os.fstat(file.fileno())
                reason = _ownership_problem(status)
                if reason is not None:
                    return None, _Problem.entry(path, reason)
                if status.st_size > self.max_bytes:  # over the bound, or nothing of ours: do not read it in
                    return None, None
                data = file.readall()
        except OSError as error:
            if error.errno in _ABSENT or _is_sharing_violation(error):
                return None, None
            return None, _Problem.entry(path, error.strerror or str(error))
        payload, reason = _decode(key, data)
        if reason is not None:
            return None, _Problem.entry(path, reason)
        if abs(time.time() - status.st_mtime) > _TOUCH_AFTER:
            with suppress(OSError):  # read-only: the order of eviction is somebody else's business
                os.utime(path)
        return payload, None

    def _prepare(self) -> _Problem | None:
        """Make the directory where there is none, and say what forbids its use."""
        try:
            status = os.stat(self._root)
        except FileNotFoundError:
            _make_private_directories(self._root)
            status = os.stat(self._root)
        return _directory_problem(status, self._root)

    def _write(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        # os.urandom, not random: forked children must not draw the same names.
        temporary = f"{path}.{os.urandom(8).hex()}.tmp"
        try:
            with open(temporary, "xb", opener=_open_to_write) as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:  # KeyboardInterrupt too must leave no file behind
            _unlink(temporary)
            raise

    def _keep_bounded(self, newest: str, size: int) -> None:
        with _shared.lock:
            self._written += size
            if self._estimate is not None:
                self._estimate += size  # too high where an entry was replaced: then the scan comes early
                if self._estimate <= self.max_bytes and self._written <= self.max_bytes // _RESCAN_SHARE:
                    return
        self._remove_dead_temporaries()
        entries = self.entries()
        total = sum(entry.size for entry in entries)
        if total > self.max_bytes:
            target = int(self.max_bytes * _LOW_WATER)
            for entry in entries:
                if total <= target:
                    break
                if str(entry.path) != newest and _remove(entry.path):
                    total -= entry.size
        with _shared.lock:
            self._estimate, self._written = total, 0

    def _remove_dead_temporaries(self) -> None:
        now = time.time()
        for item in self._files():
            if item.name.endswith(".tmp"):
                try:
                    dead = now - item.stat(follow_symlinks=False).st_mtime > _TEMPORARY_LIFE
                except OSError:
                    continue
                if dead:
                    _unlink(item.path)

    def _files(self) -> Iterator[os.DirEntry[str]]:
        """Yield the files that this class makes and no others: the directory may hold more."""
        if not self._root:
            return
        try:
            if _directory_problem(os.stat(self._root), self._root) is not None:
                return
            with os.scandir(self._root) as items:
                shards = [
                    item.path
                    for item in items
                    if _SHARD_NAME.fullmatch(item.name) and item.is_dir(follow_symlinks=False)
                ]
        except OSError:
            return
        for shard in shards:
            try:
                with os.scandir(shard) as items:
                    files = [
                        item
                        for item in items
                        if (_ENTRY_NAME.fullmatch(item.name) or _TEMPORARY_NAME.fullmatch(item.name))
                        and not item.is_dir(follow_symlinks=False)
                    ]
            except OSError:
                continue
            yield from files


class _Problem(NamedTuple):
    """Something the user should hear of once per process and directory."""

    kind: str
    message: str

    @classmethod
    def entry(cls, path: str, reason: str) -> _Problem:
        return cls(
            "entry",
            f"jitgrad cannot use the cached kernel {path}: {reason}. The kernel is compiled again and the "
            "file replaced where possible; more such files in this directory are not reported. If this keeps "
            "happening, delete the directory.",
        )

    def warn(self, root: str) -> None:
        with _shared.lock:
            if (root, self.kind) in _shared.warned:
                return
            _shared.warned.add((root, self.kind))
        warnings.warn(self.message, CacheWarning, stacklevel=3)


def _open_to_read(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _open_to_write(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _check_key(key: str) -> None:
    if _KEY.fullmatch(key) is None:
        raise ValueError(f"a cache key is 8 to 128 lower-case hexadecimal digits, got {key!r}")


def _encode(key: str, payload: bytes) -> bytes:
    body = b"".join((_LENGTHS.pack(_FORMAT, len(key), len(payload)), key.encode(), payload))
    return b"".join((_MAGIC, hashlib.sha256(body).digest(), body))


def _decode(key: str, data: bytes) -> tuple[bytes | None, str | None]:
    """Return (payload, None), or (None, what is wrong)."""
    if len(data) < _HEADER_END or not data.startswith(_MAGIC):
        return None, "it is not a jitgrad cache file, or is cut short"
    if hashlib.sha256(memoryview(data)[_CHECKSUM_END:]).digest() != data[len(_MAGIC) : _CHECKSUM_END]:
        return None, "its checksum does not match: it is damaged or cut short"
    version, key_length, payload_length = _LENGTHS.unpack_from(data, _CHECKSUM_END)
    key_end = _HEADER_END + key_length
    if version != _FORMAT or len(data) != key_end + payload_length:
        return None, "it has another file format"
    if data[_HEADER_END:key_end] != key.encode():
        return None, "it holds another kernel than its name says"
    return data[key_end:], None


def _ownership_problem(status: os.stat_result) -> str | None:
    if not hasattr(os, "getuid"):  # Windows: the default directory is private by its access list
        return None
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user (uid {status.st_uid}; you are {os.getuid()})"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"other users may write to it (mode {status.st_mode & 0o7777:04o})"
    return None


def _directory_problem(status: os.stat_result, root: str) -> _Problem | None:
    if not stat.S_ISDIR(status.st_mode):
        reason: str | None = "it is not a directory"
        remedy = "Set JITGRAD_CACHE_DIR to a directory."
    else:
        reason = _ownership_problem(status)
        remedy = (
            "Cached kernels are pickles, which run code when they are loaded, so nobody else may be able to "
            f"write them. Make the directory yours alone (`chmod go-w {root}`), or set JITGRAD_CACHE_DIR to "
            "one that is."
        )
    if reason is None:
        return None
    happening = f"jitgrad does not use the cache directory {root}: {reason}."
    return _Problem("directory", f"{happening} Kernels are kept in memory only. {remedy}")


def _is_sharing_violation(error: OSError) -> bool:
    """Windows denies access to a file that is being replaced or removed: an ordinary race, no damage."""
    return os.name == "nt" and isinstance(error, PermissionError)


def _make_private_directories(path: str) -> None:
    """Like os.makedirs, with every new directory for the user alone (os.makedirs opens up the parents)."""
    parent = os.path.dirname(path)
    if parent != path and not os.path.isdir(parent):
        _make_private_directories(parent)
    with suppress(FileExistsError):  # another process was faster
        os.mkdir(path, 0o700)


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _remove(path: Path) -> bool:
    """Remove a file; True if it is gone, whoever did it: processes that evict at once pick the same files."""
    return _unlink(str(path)) or not os.path.lexists(path)


def default_directory() -> Path | None:
    """Return the directory of the default cache: ``JITGRAD_CACHE_DIR``, or the platform's place for caches.

    Linux and other Unix: ``$XDG_CACHE_HOME/jitgrad`` or ``~/.cache/jitgrad``; macOS:
    ``~/Library/Caches/jitgrad``; Windows: ``%LOCALAPPDATA%\\jitgrad\\cache``. None where no home
    directory is known.

    Raises:
        ConfigError: an environment variable of jitgrad is invalid.
    """
    chosen = settings().cache_dir
    if chosen is not None:
        return chosen
    home: Path | None
    try:
        home = Path.home()
    except RuntimeError:
        home = None
    platform_name: str = sys.platform  # a plain string: type checkers would skip the branches of other systems
    if platform_name == "win32":
        base = _absolute(os.environ.get("LOCALAPPDATA")) or (home and home / "AppData" / "Local")
        return base and base / "jitgrad" / "cache"
    if platform_name == "darwin":
        return home and home / "Library" / "Caches" / "jitgrad"
    base = _absolute(os.environ.get("XDG_CACHE_HOME")) or (home and home / ".cache")
    return base and base / "jitgrad"


def _absolute(text: str | None) -> Path | None:
    """The path, if it is absolute: the XDG specification has relative ones ignored."""
    return Path(text) if text and os.path.isabs(text) else None


_caches: dict[tuple[Path | None, int], DiskCache] = {}


def default_cache() -> DiskCache:
    """Return the cache that the settings in force ask for, the same object as long as they do.

    Raises:
        ConfigError: an environment variable of jitgrad is invalid.
    """
    wanted = (default_directory(), settings().cache_size)
    found = _caches.get(wanted)
    return found if found is not None else _caches.setdefault(wanted, DiskCache(*wanted))


# NUMBA_* variables that leave the machine code alone. All others enter the key, those of later versions too:
# a needless compile is better than a stale kernel.
_NEUTRAL_PREFIXES = ("NUMBA_CUDA_", "NUMBA_DUMP_")
_NEUTRAL = frozenset(
    {
        "NUMBA_ALWAYS_WARN_UNINIT_VAR",
        "NUMBA_CACHE_DIR",
        "NUMBA_CACHE_LOCATOR_CLASSES",
        "NUMBA_CAPTURED_ERRORS",
        "NUMBA_CHROME_TRACE",
        "NUMBA_COLOR_SCHEME",
        "NUMBA_DEBUG_CACHE",
        "NUMBA_DEFAULT_NUM_THREADS",
        "NUMBA_DISABLE_CUDA",
        "NUMBA_DISABLE_PERFORMANCE_WARNINGS",
        "NUMBA_ENABLE_CUDASIM",
        "NUMBA_FORCE_CUDA_CC",
        "NUMBA_FULL_TRACEBACKS",
        "NUMBA_FUNCTION_CACHE_SIZE",
        "NUMBA_GDB_BINARY",
        "NUMBA_HIGHLIGHT_DUMPS",
        "NUMBA_LLVM_PASS_TIMINGS",
        "NUMBA_NUM_THREADS",
        "NUMBA_PARALLEL_DIAGNOSTICS",
        "NUMBA_SHOW_HELP",
        "NUMBA_THREADING_LAYER",
        "NUMBA_THREADING_LAYER_PRIORITY",
        "NUMBA_TRACE",
    }
)


def kernel_key(
    environment: bytes, name: str, source: str, signature: tuple[str, ...], functions: Sequence[str] = ()
) -> str:
    """The key of one kernel: a hash of its source and argument types, of the user's functions that it calls (as
    fingerprints), and of what every kernel depends on."""
    return hashlib.sha256(environment + repr((name, source, signature, *functions)).encode()).hexdigest()


def environment_key(
    *,
    versions: Mapping[str, str],
    cpu_name: str,
    cpu_features: str,
    options: Mapping[str, str] | None = None,
) -> bytes:
    """Return a hash of what every cached kernel depends on, whatever it computes; made once per process.

    It covers the arguments, the Python interpreter, the platform, the NUMBA_* environment variables that
    change code, and the sources of ``jitgrad/kernels`` and of the scalar emitters. The caller has jitgrad,
    numba and llvmlite loaded and passes what they say: asking `importlib.metadata` would cost tens of
    milliseconds.

    Args:
        versions: package name to version: jitgrad, numpy, numba, llvmlite.
        cpu_name: LLVM's name of the CPU that code is made for.
        cpu_features: LLVM's feature string.
        options: further settings that change code, such as values of ``numba.config`` that a program or a
            ``.numba_config.yaml`` has set, which the environment does not show.

    Example:
        >>> old = environment_key(versions={"numba": "0.1"}, cpu_name="generic", cpu_features="")
        >>> new = environment_key(versions={"numba": "0.2"}, cpu_name="generic", cpu_features="")
        >>> len(old), old == new
        (32, False)
    """
    return _environment_hash(
        tuple(sorted(versions.items())),
        cpu_name,
        cpu_features,
        tuple(sorted((options or {}).items())),
        tuple(sorted(item for item in os.environ.items() if _changes_code(item[0]))),
    )


def _changes_code(variable: str) -> bool:
    return variable.startswith("NUMBA_") and variable not in _NEUTRAL and not variable.startswith(_NEUTRAL_PREFIXES)


@cache
def _environment_hash(*parts: object) -> bytes:
    interpreter = (sys.version, sys.implementation.name, sys.implementation.cache_tag, sys.flags.optimize)
    machine = (sys.platform, platform.machine(), struct.calcsize("P"), sys.byteorder)
    # repr keeps apart what concatenation would run together.
    return hashlib.sha256(repr((parts, interpreter, machine, _source_digest())).encode()).digest()


@cache
def _source_digest() -> str:
    """Hash of the sources that make the code of kernels; without sources (a zip), the version has to do."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (*sorted(here.glob("*.py")), here.parent / "core" / "scalar.py"):
        try:
            source = path.read_bytes()
        except OSError:
            continue
        digest.update(f"{path.name} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()
