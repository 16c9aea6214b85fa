"""The settings and the disk cache.

Tests may run as root, whom permission bits do not stop: what a forbidden, full or read-only disk does is
simulated by raising the system's error where the system would, and ownership by changing what the system says
of files.
"""

from __future__ import annotations

import contextvars
import dataclasses
import errno
import gc
import hashlib
import multiprocessing
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitgrad import config
from jitgrad.config import Settings, override, settings
from jitgrad.errors import CacheWarning, ConfigError, JitgradError
from jitgrad.kernels import disk_cache
from jitgrad.kernels.disk_cache import (
    CacheEntry,
    CacheStats,
    DiskCache,
    default_cache,
    default_directory,
    environment_key,
)

KEY = hashlib.sha256(b"one").hexdigest()
OTHER = hashlib.sha256(b"two").hexdigest()
BIG = 1 << 30
POSIX = pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and permission bits are POSIX")


def key_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def payload_of(key: str, size: int) -> bytes:
    """Bytes that only this key has, so that a mix-up or a torn file shows."""
    return random.Random(key).randbytes(size)


def entry_path(cache: DiskCache, key: str) -> Path:
    assert cache.directory is not None
    return cache.directory / key[:2] / f"{key}.jgk"


def all_files(directory: Path | None) -> list[Path]:
    assert directory is not None
    return sorted(path for path in directory.rglob("*") if not path.is_dir())


@contextmanager
def one_warning(match: str = "") -> Iterator[None]:
    """The block gives one CacheWarning, which matches, and no other warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [warning.category for warning in caught] == [CacheWarning]
    assert re.search(match, str(caught[0].message))


def pretend_owner(monkeypatch: pytest.MonkeyPatch, owner: int, user: int) -> None:
    """Let every file belong to `owner`, and `user` be running."""

    def owned(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def status(*args: Any, **options: Any) -> os.stat_result:
            found = real(*args, **options)
            return os.stat_result((*found[:4], owner, *found[5:]))

        return status

    for name in ("stat", "fstat"):
        monkeypatch.setattr(os, name, owned(getattr(os, name)))
    monkeypatch.setattr(os, "getuid", lambda: user)


def counts(cache: DiskCache) -> tuple[int, int, int, int]:
    s = cache.stats
    return s.hits, s.misses, s.stores, s.errors


@pytest.fixture(autouse=True)
def unexpected_warnings_fail() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", BIG)


# ---------------------------------------------------------------- settings


def test_defaults() -> None:
    assert Settings.from_environment({}) == Settings(None, 1 << 30, "compiled", 1)


def test_environment_is_read() -> None:
    found = Settings.from_environment(
        {
            "JITGRAD_CACHE_DIR": os.path.join(os.sep, "somewhere"),
            "JITGRAD_CACHE_SIZE": " 4096 ",
            "JITGRAD_KERNELS": "Python",
            "JITGRAD_NUM_THREADS": "3",
        }
    )
    assert found == Settings(Path(os.path.abspath(os.path.join(os.sep, "somewhere"))), 4096, "python", 3)


def test_empty_variables_count_as_unset() -> None:
    names = ("JITGRAD_CACHE_DIR", "JITGRAD_CACHE_SIZE", "JITGRAD_KERNELS", "JITGRAD_NUM_THREADS")
    assert Settings.from_environment(dict.fromkeys(names, "")) == Settings()


def test_relative_directory_is_fixed_when_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = Settings.from_environment({"JITGRAD_CACHE_DIR": "here"})
    monkeypatch.chdir(os.sep)
    assert found.cache_dir == tmp_path / "here"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert Settings.from_environment({"JITGRAD_CACHE_DIR": "~/kernels"}).cache_dir == tmp_path / "kernels"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("JITGRAD_CACHE_SIZE", "1GB"),
        ("JITGRAD_CACHE_SIZE", "-1"),
        ("JITGRAD_CACHE_SIZE", "1e9"),
        ("JITGRAD_KERNELS", "interpreted"),
        ("JITGRAD_NUM_THREADS", "0"),
        ("JITGRAD_NUM_THREADS", "many"),
        ("JITGRAD_CACHE_DIR", "~no_such_user_of_this_machine/x"),
    ],
)
def test_invalid_variables_are_named(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        Settings.from_environment({name: text})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, JitgradError)


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_dir": "text"},
        {"cache_dir": Path("relative")},
        {"cache_size": 1.5},
        {"cache_size": True},
        {"kernels": "x"},
        {"num_threads": 0},
        {"num_threads": "2"},
        {"colour": "red"},
    ],
)
def test_override_checks_before_it_changes(changes: dict[str, Any]) -> None:
    before = settings()
    with pytest.raises(ConfigError, match=next(iter(changes))), override(**changes):
        pass
    assert settings() is before


def test_override_nests_and_ends_with_an_exception() -> None:
    before = settings()

    def fail_inside() -> None:
        with override(num_threads=2):
            with override(cache_size=5) as inner:
                assert inner is settings()
                assert (inner.num_threads, inner.cache_size) == (2, 5)
            assert (settings().num_threads, settings().cache_size) == (2, before.cache_size)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert settings() is before


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().num_threads = 5  # type: ignore[misc]


def test_override_reaches_a_thread_that_is_given_the_context() -> None:
    seen = []
    with override(num_threads=7):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(lambda: seen.append(settings().num_threads),))
        thread.start()
        thread.join()
    assert seen == [7]


def test_override_of_another_thread_is_not_seen() -> None:
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with override(num_threads=7):
            inside.set()
            done.wait(10)

    before = settings()
    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    assert settings() is before
    done.set()
    thread.join()


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)), b"JITGRAD\0" * 3, bytes(1 << 20)])
def test_round_trip(cache: DiskCache, payload: bytes) -> None:
    assert cache.load(KEY) is None
    cache.store(KEY, payload)
    assert cache.load(KEY) == payload
    assert DiskCache(cache.directory, BIG).load(KEY) == payload
    assert cache.load(OTHER) is None
    assert counts(cache) == (1, 2, 1, 0)
    assert 0 < cache.stats.seconds < 10


@given(st.binary(max_size=200), st.text("0123456789abcdef", min_size=8, max_size=128))
def test_round_trip_of_any_key_and_payload(tmp_path_factory: pytest.TempPathFactory, payload: bytes, key: str) -> None:
    store = DiskCache(tmp_path_factory.getbasetemp() / "any", BIG)
    store.store(key, payload)
    assert store.load(key) == payload


def test_store_replaces(cache: DiskCache) -> None:
    cache.store(KEY, b"old and longer")
    cache.store(KEY, b"new")
    assert cache.load(KEY) == b"new"
    assert len(cache.entries()) == 1


@pytest.mark.parametrize(
    "key", ["", "abc", "ABCDEF0123456789", "../../../etc/passwd", "0123456g", "0" * 129, "01234567\n"]
)
def test_keys_that_could_leave_the_directory_are_refused(cache: DiskCache, key: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        cache.load(key)
    with pytest.raises(ValueError, match="hexadecimal"):
        cache.store(key, b"")


def test_load_writes_nothing(cache: DiskCache, tmp_path: Path) -> None:
    cache.load(KEY)
    assert list(tmp_path.iterdir()) == []


def test_entries_and_total(cache: DiskCache) -> None:
    assert cache.entries() == []
    assert cache.total_bytes() == 0
    cache.store(KEY, b"12345")
    cache.store(OTHER, b"")
    os.utime(entry_path(cache, OTHER), (1000, 1000))
    assert [entry.key for entry in cache.entries()] == [OTHER, KEY]
    assert all(entry.path == entry_path(cache, entry.key) for entry in cache.entries())
    assert cache.total_bytes() == sum(path.stat().st_size for path in all_files(cache.directory))


@POSIX
def test_what_is_created_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = DiskCache(tmp_path / "a" / "b", BIG)
        store.store(KEY, b"payload")
    finally:
        os.umask(before)
    made = list(tmp_path.rglob("*"))
    assert len(made) == 4
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# ---------------------------------------------------------------- damage


def damaged_is_one_warning_and_gets_replaced(cache: DiskCache, content: bytes) -> None:
    path = entry_path(cache, KEY)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    with one_warning(KEY):
        assert cache.load(KEY) is None
    assert cache.load(KEY) is None  # quiet: warnings are errors in this file
    assert counts(cache)[0] == 0
    assert cache.stats.errors == 2
    cache.store(KEY, b"good")
    assert cache.load(KEY) == b"good"


def test_truncation_at_every_length(cache: DiskCache) -> None:
    cache.store(KEY, b"a small payload")
    whole = entry_path(cache, KEY).read_bytes()
    with one_warning():
        for length in range(len(whole)):
            entry_path(cache, KEY).write_bytes(whole[:length])
            assert cache.load(KEY) is None, length
    assert cache.stats.errors == len(whole)
    entry_path(cache, KEY).write_bytes(whole)
    assert cache.load(KEY) == b"a small payload"


def test_every_flipped_byte_is_noticed(cache: DiskCache) -> None:
    cache.store(KEY, b"a small payload")
    whole = entry_path(cache, KEY).read_bytes()
    with one_warning():
        for position in range(len(whole)):
            for mask in (1, 0x80, 0xFF):
                damaged = bytearray(whole)
                damaged[position] ^= mask
                entry_path(cache, KEY).write_bytes(damaged)
                assert cache.load(KEY) is None, (position, mask)


@pytest.mark.parametrize(
    "content",
    [b"", b"#!/bin/sh\necho hello\n", b"\x80\x04N.", bytes(500), b"JITGRAD\0" + bytes(500), b"JITGRAD\0"],
    ids=["empty", "script", "pickle", "zeros", "magic and zeros", "magic"],
)
def test_foreign_content(cache: DiskCache, content: bytes) -> None:
    damaged_is_one_warning_and_gets_replaced(cache, content)


def test_trailing_bytes(cache: DiskCache) -> None:
    cache.store(KEY, b"payload")
    damaged_is_one_warning_and_gets_replaced(cache, entry_path(cache, KEY).read_bytes() + b"\0")


def test_entry_of_another_key(cache: DiskCache) -> None:
    cache.store(OTHER, b"not yours")
    damaged_is_one_warning_and_gets_replaced(cache, entry_path(cache, OTHER).read_bytes())
    assert cache.load(OTHER) == b"not yours"


def test_entry_of_another_format(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "_FORMAT", 99)
        cache.store(KEY, b"from the future")
    damaged_is_one_warning_and_gets_replaced(cache, entry_path(cache, KEY).read_bytes())


def test_each_directory_has_its_own_warning(tmp_path: Path) -> None:
    for name in ("first", "second"):
        damaged_is_one_warning_and_gets_replaced(DiskCache(tmp_path / name, BIG), b"foreign")


def test_directory_in_the_place_of_an_entry(cache: DiskCache) -> None:
    entry_path(cache, KEY).mkdir(parents=True, mode=0o700)
    with one_warning():
        assert cache.load(KEY) is None
    cache.store(KEY, b"payload")
    assert cache.load(KEY) is None
    assert all_files(cache.directory) == []
    gc.collect()  # an unclosed descriptor would warn here


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="no O_NOFOLLOW")
def test_symbolic_link_in_the_place_of_an_entry(cache: DiskCache, tmp_path: Path) -> None:
    cache.store(KEY, b"payload")
    moved = tmp_path / "elsewhere"
    entry_path(cache, KEY).rename(moved)
    entry_path(cache, KEY).symlink_to(moved)
    with one_warning():
        assert cache.load(KEY) is None
    before = moved.read_bytes()
    cache.store(KEY, b"new")
    assert cache.load(KEY) == b"new"
    assert moved.read_bytes() == before


def test_damage_with_warnings_as_errors_still_counts(cache: DiskCache) -> None:
    cache.store(KEY, b"payload")
    entry_path(cache, KEY).write_bytes(b"foreign")
    with pytest.raises(CacheWarning):
        cache.load(KEY)
    assert counts(cache) == (0, 1, 1, 1)


# ---------------------------------------------------------------- whom to trust


@POSIX
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o720, 0o702])
def test_directory_that_others_can_write_to_is_neither_read_nor_written(cache: DiskCache, mode: int) -> None:
    cache.store(KEY, b"payload")
    assert cache.directory is not None
    cache.directory.chmod(mode)
    again = DiskCache(cache.directory, BIG)
    with one_warning(r"chmod go-w.*JITGRAD_CACHE_DIR"):
        assert again.load(KEY) is None
        again.store(OTHER, b"more")
        assert again.load(OTHER) is None
    assert again.entries() == []
    assert again.clear() == 0
    assert [path.name for path in all_files(cache.directory)] == [f"{KEY}.jgk"]
    assert counts(again) == (0, 2, 0, 3)
    cache.directory.chmod(0o755)  # what the message asks for; reading by others is harmless
    assert again.load(KEY) == b"payload"


@POSIX
def test_directory_of_another_user_is_neither_read_nor_written(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store(KEY, b"payload")
    assert cache.directory is not None
    with monkeypatch.context() as patch:
        pretend_owner(patch, owner=1234, user=5678)
        with one_warning("another user"):
            assert cache.load(KEY) is None
            cache.store(OTHER, b"more")
            assert cache.clear() == 0
    assert [path.name for path in all_files(cache.directory)] == [f"{KEY}.jgk"]


@POSIX
def test_file_planted_while_the_directory_was_open_is_not_read(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store(KEY, b"payload")
    entry_path(cache, KEY).chmod(0o666)
    with one_warning("other users may write"):
        assert cache.load(KEY) is None
    cache.store(KEY, b"payload")
    assert cache.load(KEY) == b"payload"


@POSIX
def test_directory_of_root_is_read_by_all(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a cache filled when a container image was built."""
    cache.store(KEY, b"payload")
    pretend_owner(monkeypatch, owner=0, user=5678)
    assert cache.load(KEY) == b"payload"


@POSIX
def test_directory_may_be_a_link_to_a_private_one(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    store = DiskCache(tmp_path / "link", BIG)
    store.store(KEY, b"payload")
    assert store.load(KEY) == b"payload"


def test_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    store = DiskCache(tmp_path / "file", BIG)
    with one_warning("not a directory"):
        assert store.load(KEY) is None
        store.store(KEY, b"payload")
    assert (tmp_path / "file").read_bytes() == b"mine"
    below = DiskCache(tmp_path / "file" / "below", BIG)
    below.store(KEY, b"payload")
    assert below.load(KEY) is None
    assert below.stats.errors == 1


# ---------------------------------------------------------------- disks that say no


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EPERM, errno.ENAMETOOLONG])
def test_directory_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store = DiskCache(tmp_path / "new", BIG)
    monkeypatch.setattr(os, "mkdir", failing(code))
    store.store(KEY, b"payload")
    assert store.load(KEY) is None
    assert counts(store) == (0, 1, 0, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_read_only_directory_is_still_read(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    cache.store(KEY, b"payload")
    os.utime(entry_path(cache, KEY), (1000, 1000))  # old, so that load tries to refresh it

    def open_to_read(path: str, flags: int, *rest: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(code, os.strerror(code))
        return real_open(path, flags, *rest)

    real_open = os.open
    monkeypatch.setattr(os, "open", open_to_read)
    for name in ("mkdir", "replace", "unlink", "utime"):
        monkeypatch.setattr(os, name, failing(code))
    again = DiskCache(cache.directory, BIG)
    assert again.load(KEY) == b"payload"
    again.store(OTHER, b"more")
    assert again.load(OTHER) is None
    assert again.clear() == 0
    assert counts(again) == (1, 1, 0, 1)


@POSIX
def test_read_only_directory_without_simulation(cache: DiskCache) -> None:
    """By permission bits alone: as root nothing stops the write, so there only the read is claimed."""
    cache.store(KEY, b"payload")
    assert cache.directory is not None
    for path in (entry_path(cache, KEY).parent, cache.directory):
        path.chmod(0o500)
    try:
        assert cache.load(KEY) == b"payload"
        cache.store(OTHER, b"more")
        assert cache.load(OTHER) == (b"more" if os.getuid() == 0 else None)
    finally:
        for path in (cache.directory, entry_path(cache, KEY).parent):
            path.chmod(0o700)


def test_unreadable_entry(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(KEY, b"payload")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EIO))
        with one_warning(os.strerror(errno.EIO)):
            assert cache.load(KEY) is None
            assert cache.load(KEY) is None
    assert cache.load(KEY) == b"payload"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT if hasattr(errno, "EDQUOT") else errno.EIO])
def test_disk_full_at_replace(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    cache.store(KEY, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(code))
        cache.store(KEY, b"new")
        cache.store(OTHER, b"more")
    assert [path.name for path in all_files(cache.directory)] == [f"{KEY}.jgk"]
    assert cache.load(KEY) == b"old"
    assert counts(cache) == (1, 0, 1, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs RLIMIT_FSIZE")
def test_disk_full_at_write(tmp_path: Path) -> None:
    """A real failure in the middle of a write: the size limit of files, hit after 4096 bytes."""
    script = f"""
import resource, signal
from pathlib import Path
from jitgrad.kernels.disk_cache import DiskCache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
store = DiskCache(Path({str(tmp_path / "c")!r}), 1 << 30)
store.store({KEY!r}, bytes(100_000))
assert store.load({KEY!r}) is None
store.store({OTHER!r}, b"small")
assert store.load({OTHER!r}) == b"small"
assert (store.stats.stores, store.stats.errors) == (1, 1)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60, cwd=Path(__file__).parents[1])
    assert [path.name for path in all_files(tmp_path)] == [f"{OTHER}.jgk"]


@pytest.mark.parametrize("at", ["write", "close"])
def test_disk_full_at_write_simulated(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    real_open = open

    class FullDisk:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> FullDisk:
            return self

        def write(self, data: bytes) -> int:
            self.file.write(data[:7])
            if at == "write":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return len(data)

        def __exit__(self, kind: object, *rest: object) -> None:
            self.file.close()
            if kind is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "open", lambda *a, **k: FullDisk(real_open(*a, **k)), raising=False)
        cache.store(KEY, b"a longer payload")
    assert all_files(cache.directory) == []
    assert counts(cache) == (0, 0, 0, 1)
    cache.store(KEY, b"a longer payload")
    assert cache.load(KEY) == b"a longer payload"


def test_interrupt_leaves_no_temporary_file(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.store(KEY, b"payload")
    assert all_files(cache.directory) == []


def test_windows_sharing_violation_is_quiet(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: Windows denies access where another process replaces, or reads, the file."""
    cache.store(KEY, b"payload")
    monkeypatch.setattr(disk_cache, "_is_sharing_violation", lambda error: isinstance(error, PermissionError))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EACCES))
        assert cache.load(KEY) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(errno.EACCES))
        cache.store(KEY, b"new")
    assert cache.load(KEY) == b"payload"
    assert len(all_files(cache.directory)) == 1


@pytest.mark.parametrize(("directory", "size"), [(None, BIG), (Path("x"), 0)], ids=["no directory", "no bytes"])
def test_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: Path | None, size: int) -> None:
    monkeypatch.chdir(tmp_path)
    store = DiskCache(directory, size)
    store.store(KEY, b"payload")
    assert store.load(KEY) is None
    assert store.entries() == []
    assert store.clear() == 0
    assert counts(store) == (0, 1, 0, 0)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- the bound


def entry_size(tmp_path: Path, payload_size: int) -> int:
    probe = DiskCache(tmp_path / "probe", BIG)
    probe.store(KEY, bytes(payload_size))
    return probe.total_bytes()


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    size = entry_size(tmp_path, 1000)
    store = DiskCache(tmp_path / "cache", 10 * size)
    for number in range(10):
        store.store(key_of(number), bytes(1000))
        os.utime(entry_path(store, key_of(number)), (1000 + number, 1000 + number))
    assert len(store.entries()) == 10
    assert store.load(key_of(0)) is not None  # now the most recently used
    store.store(key_of(10), bytes(1000))
    left = {entry.key for entry in store.entries()}
    assert left == {key_of(number) for number in (0, 3, 4, 5, 6, 7, 8, 9, 10)}  # down to 90 %
    assert store.total_bytes() <= 9 * size


def test_bound_holds_after_every_store(tmp_path: Path) -> None:
    rng = random.Random(3)
    store = DiskCache(tmp_path / "cache", 20_000)
    for number in range(150):
        key = key_of(rng.randrange(60))
        store.store(key, bytes(rng.randrange(3000)))
        assert store.total_bytes() <= 20_000, number
        assert store.load(key) is not None, number  # the newest never goes
    assert len(store.entries()) > 5


def test_bound_holds_for_what_another_process_left(tmp_path: Path) -> None:
    first = DiskCache(tmp_path, BIG)
    for number in range(20):
        first.store(key_of(number), bytes(1000))
    second = DiskCache(tmp_path, 5000)
    second.store(KEY, bytes(1000))
    assert second.total_bytes() <= 5000
    assert second.load(KEY) == bytes(1000)


def test_entry_larger_than_the_bound_is_not_kept_and_evicts_nothing(tmp_path: Path) -> None:
    store = DiskCache(tmp_path, 2000)
    store.store(KEY, b"small")
    store.store(OTHER, bytes(3000))
    assert [entry.key for entry in store.entries()] == [KEY]


def test_newest_entry_stays_even_if_it_fills_the_bound(tmp_path: Path) -> None:
    store = DiskCache(tmp_path, 2000)
    store.store(OTHER, bytes(300))
    store.store(KEY, bytes(1800))
    assert [entry.key for entry in store.entries()] == [KEY]


def test_load_refreshes_at_most_once_a_minute(cache: DiskCache) -> None:
    cache.store(KEY, b"payload")
    path = entry_path(cache, KEY)
    recent = time.time() - 20
    os.utime(path, (recent, recent))
    cache.load(KEY)
    assert abs(path.stat().st_mtime - recent) < 2
    for wrong in (time.time() - 100, time.time() + 10_000):  # the clock may have been wrong, too
        os.utime(path, (wrong, wrong))
        cache.load(KEY)
        assert abs(path.stat().st_mtime - time.time()) < 20


def test_full_cache_is_not_scanned_at_each_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = entry_size(tmp_path, 100)
    store = DiskCache(tmp_path / "cache", 1000 * size)
    for number in range(1000):
        store.store(key_of(number), bytes(100))
    scans = 0
    real = DiskCache.entries

    def counted(self: DiskCache) -> list[CacheEntry]:
        nonlocal scans
        scans += 1
        return real(self)

    monkeypatch.setattr(DiskCache, "entries", counted)
    for number in range(1000, 1100):
        store.store(key_of(number), bytes(100))
    assert scans < 12
    assert store.total_bytes() <= 1000 * size


def test_temporary_files_of_dead_processes_go_and_young_ones_stay(cache: DiskCache) -> None:
    cache.store(KEY, b"payload")
    shard = entry_path(cache, KEY).parent
    dead, young = (shard / f"{KEY}.jgk.{digit * 16}.tmp" for digit in "ab")
    for path in (dead, young):
        path.write_bytes(b"half an ent")
    os.utime(dead, (1000, 1000))
    DiskCache(cache.directory, BIG).store(OTHER, b"more")
    assert not dead.exists()
    assert young.exists()


def test_foreign_files_are_never_removed(tmp_path: Path) -> None:
    """The variable may point at a directory with other things in it."""
    store = DiskCache(tmp_path, 3000)
    (tmp_path / "ab").mkdir(mode=0o700)
    (tmp_path / "letters").mkdir()
    kept = [tmp_path / "thesis.tex", tmp_path / "ab" / "photo.jgk", tmp_path / "letters" / f"{KEY}.jgk"]
    for path in kept:
        path.write_bytes(bytes(5000))
        os.utime(path, (1000, 1000))
    for number in range(10):
        store.store(key_of(number), bytes(900))
    assert store.clear() > 0
    assert all_files(tmp_path) == sorted(kept)


def test_clear(cache: DiskCache) -> None:
    for number in range(20):
        cache.store(key_of(number), b"payload")
    assert cache.clear() == 20
    assert cache.entries() == []
    assert cache.load(key_of(1)) is None
    cache.store(KEY, b"payload")
    assert cache.load(KEY) == b"payload"


def test_directory_removed_under_way(cache: DiskCache) -> None:
    cache.store(KEY, b"payload")
    assert cache.directory is not None
    shutil.rmtree(cache.directory)
    assert cache.load(KEY) is None
    cache.store(KEY, b"payload")
    assert cache.load(KEY) == b"payload"


# ---------------------------------------------------------------- many at once


def hammer(directory: str, seed: int, max_bytes: int, seconds: float, results: Any) -> None:
    """Store and load shared keys and own keys; every payload found must be the right one."""
    warnings.simplefilter("error")
    rng = random.Random(seed)
    store = DiskCache(Path(directory), max_bytes)
    wrong = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        key = key_of(rng.randrange(6) if rng.random() < 0.5 else 100 * seed + rng.randrange(6))
        expected = payload_of(key, 2000 + int(key[:3], 16))
        if rng.random() < 0.4:
            store.store(key, expected)
        else:
            found = store.load(key)
            wrong += found is not None and found != expected
    results.put((wrong, counts(store)))


@pytest.mark.parametrize("max_bytes", [BIG, 60_000], ids=["roomy", "evicting"])
def test_eight_processes(tmp_path: Path, max_bytes: int) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=hammer, args=(str(tmp_path / "c"), seed, max_bytes, 1.0, results))
        for seed in range(1, 9)
    ]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for wrong, (hits, _, stores, errors) in outcomes:
        assert wrong == 0
        assert hits > 0
        assert stores > 0
        assert errors == 0 or os.name == "nt"  # there a reader may keep a file from being replaced
    assert all(path.suffix == ".jgk" for path in all_files(tmp_path))
    store = DiskCache(tmp_path / "c", max_bytes)
    store.store(KEY, b"")
    assert store.total_bytes() <= max_bytes
    for entry in store.entries():
        assert store.load(entry.key) is not None  # and no warning: all are whole


def test_many_threads(cache: DiskCache) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for number in range(40):
                key = key_of(number % 5)
                cache.store(key, payload_of(key, 500))
                found = cache.load(key)
                assert found == payload_of(key, 500)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert counts(cache) == (320, 0, 320, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_while_another_thread_holds_the_lock(cache: DiskCache) -> None:
    cache.store(KEY, b"payload")
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with disk_cache._shared.lock:
            holding.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(10)
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork among threads, which is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            cache.store(OTHER, b"from the child")
            code = 0 if cache.load(KEY) == b"payload" else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    ended, status = os.waitpid(child, os.WNOHANG)
    while ended == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
        ended, status = os.waitpid(child, os.WNOHANG)
    if ended == 0:
        os.kill(child, 9)
        os.waitpid(child, 0)
    done.set()
    thread.join()
    assert ended == child, "the child hangs"
    assert os.waitstatus_to_exitcode(status) == 0
    assert cache.load(OTHER) == b"from the child"


# ---------------------------------------------------------------- the default cache


def test_variable_moves_the_default_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGRAD_CACHE_DIR", str(tmp_path / "moved"))
    monkeypatch.setenv("JITGRAD_CACHE_SIZE", "12345")
    config._process.clear()
    try:
        assert default_directory() == tmp_path / "moved"
        store = default_cache()
        assert (store.directory, store.max_bytes) == (tmp_path / "moved", 12345)
        assert default_cache() is store
        store.store(KEY, b"payload")
        assert len(all_files(tmp_path / "moved")) == 1
    finally:
        config._process.clear()


def test_default_cache_follows_the_settings(tmp_path: Path) -> None:
    with override(cache_dir=tmp_path / "a"):
        first = default_cache()
        with override(cache_dir=tmp_path / "b"):
            assert default_cache().directory == tmp_path / "b"
        with override(cache_size=0):
            assert default_cache().directory is None
        assert default_cache() is first


def test_platform_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    with override(cache_dir=None):
        monkeypatch.setattr(sys, "platform", "linux")
        assert default_directory() == tmp_path / ".cache" / "jitgrad"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative/ignored")
        assert default_directory() == tmp_path / ".cache" / "jitgrad"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert default_directory() == tmp_path / "xdg" / "jitgrad"
        monkeypatch.setattr(sys, "platform", "darwin")
        assert default_directory() == tmp_path / "Library" / "Caches" / "jitgrad"
        monkeypatch.setattr(sys, "platform", "win32")
        assert default_directory() == tmp_path / "AppData" / "Local" / "jitgrad" / "cache"
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
        assert default_directory() == tmp_path / "local" / "jitgrad" / "cache"


def test_no_home_means_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with override(cache_dir=None):
        assert default_directory() is None
        default_cache().store(KEY, b"payload")
        assert default_cache().load(KEY) is None


def test_import_brings_in_no_numba_and_writes_nothing(tmp_path: Path) -> None:
    script = """
import sys
import jitgrad.kernels.disk_cache as d
d.default_cache().load("0" * 64)
assert not {"numba", "llvmlite"} & set(sys.modules)
"""
    environment = os.environ | {"JITGRAD_CACHE_DIR": str(tmp_path / "c")}
    subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=60, env=environment, cwd=Path(__file__).parents[1]
    )
    assert list(tmp_path.iterdir()) == []


def test_stats_start_at_zero() -> None:
    assert DiskCache(None, 0).stats == CacheStats(0, 0, 0, 0, 0.0)


# ---------------------------------------------------------------- what every key depends on


VERSIONS = {"jitgrad": "1", "numpy": "2", "numba": "3", "llvmlite": "4"}


def environment(**changes: Any) -> bytes:
    arguments: dict[str, Any] = {"versions": VERSIONS, "cpu_name": "znver9", "cpu_features": "+avx,+fma"}
    return environment_key(**(arguments | changes))


def test_environment_key_is_stable() -> None:
    assert environment() == environment()
    assert environment() == environment(versions=dict(reversed(VERSIONS.items())))
    assert len(environment()) == 32


def test_environment_key_is_the_same_in_another_process() -> None:
    script = f"""
from jitgrad.kernels.disk_cache import environment_key
print(environment_key(versions={VERSIONS!r}, cpu_name="znver9", cpu_features="+avx,+fma").hex())
"""
    for seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            timeout=60,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[1],
        )
        assert result.stdout.strip() == environment().hex()


@pytest.mark.parametrize("package", VERSIONS)
def test_environment_key_follows_each_version(package: str) -> None:
    assert environment(versions=VERSIONS | {package: "99"}) != environment()


def test_environment_key_follows_cpu_and_options() -> None:
    keys = {
        environment(),
        environment(cpu_name="generic"),
        environment(cpu_features="+avx"),
        environment(options={"BOUNDSCHECK": "1"}),
        environment(options={"BOUNDSCHECK": "0"}),
        environment(cpu_name="", cpu_features="znver9+avx,+fma"),
    }
    assert len(keys) == 6


@pytest.mark.parametrize("name", ["NUMBA_OPT", "NUMBA_BOUNDSCHECK", "NUMBA_CPU_NAME", "NUMBA_OF_A_LATER_VERSION"])
def test_environment_key_follows_variables_that_change_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    keys = [environment()]
    for value in ("0", "1"):
        monkeypatch.setenv(name, value)
        keys.append(environment())
    assert len(set(keys)) == 3
    monkeypatch.delenv(name)
    assert environment() == keys[0]


@pytest.mark.parametrize(
    "name",
    [
        "NUMBA_CACHE_DIR",
        "NUMBA_NUM_THREADS",
        "NUMBA_CUDA_DRIVER",
        "NUMBA_DUMP_IR",
        "NUMBA_COLOR_SCHEME",
        "PATH",
    ],
)
def test_environment_key_ignores_the_rest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = environment()
    monkeypatch.setenv(name, "1")
    assert environment() == before


def test_environment_key_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "core").mkdir()
    monkeypatch.setattr(disk_cache, "__file__", str(tmp_path / "kernels" / "disk_cache.py"))

    def fresh() -> bytes:
        disk_cache._source_digest.cache_clear()
        disk_cache._environment_hash.cache_clear()
        return environment()

    try:
        seen = [fresh()]
        for path, text in [
            ("kernels/vector.py", "x = 1"),
            ("kernels/vector.py", "x = 2"),
            ("kernels/blas.py", ""),
            ("core/scalar.py", "y = 1"),
            ("core/scalar.py", "y = 2"),
        ]:
            (tmp_path / path).write_text(text)
            seen.append(fresh())
        assert len(set(seen)) == len(seen)
        (tmp_path / "core" / "graph.py").write_text("irrelevant")
        assert fresh() == seen[-1]
    finally:
        disk_cache._source_digest.cache_clear()
        disk_cache._environment_hash.cache_clear()
