"""What holds between processes: a light import, kernels found again on disk, damaged caches, many processes at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

GRADIENT = """
import jitgrad as jg
from jitgrad.kernels.kernel import counters
x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = x * x
(y + y.detach()).sum().backward()
assert x.grad.tolist() == [2.0, 4.0, 6.0], x.grad
print(counters.compiled, counters.loaded)
"""


def run(code: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "JITGRAD_CACHE_DIR": str(cache), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=300, check=False
    )


def counts(result: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    assert result.returncode == 0, result.stderr
    compiled, loaded = result.stdout.split()
    return int(compiled), int(loaded)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory in which one process has left the kernels of GRADIENT."""
    cache = tmp_path_factory.mktemp("kernels")
    compiled, loaded = counts(run(GRADIENT, cache))
    assert compiled > 0
    assert loaded == 0
    return cache


def kernel_files(cache: Path) -> list[Path]:
    return [p for p in cache.rglob("*") if p.is_file() and p.suffix == ".jgk"]


def test_import_is_light(tmp_path: Path) -> None:
    code = """
import sys
import jitgrad
heavy = {"numba", "llvmlite", "scipy", "matplotlib", "hypothesis", "tqdm"} & set(sys.modules)
assert not heavy, heavy
"""
    result = run(code, tmp_path / "cache")
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "cache").exists()


def test_second_process_compiles_nothing(filled: Path) -> None:
    compiled, loaded = counts(run(GRADIENT, filled))
    assert compiled == 0
    assert loaded == len(kernel_files(filled))


ALLOCATING = """
import resource, numpy as np, jitgrad as jg
from jitgrad.kernels.kernel import counters
a = np.eye(60) * 3.0 + np.linspace(0, 1, 3600).reshape(60, 60)
def function(a, x):
    return np.sum(np.linalg.solve(a, np.sort(x)) ** 2) + np.linalg.slogdet(a)[1] + np.sum(np.median(a, axis=0))
both = jg.jit(jg.value_and_grad(function, argnums=(0, 1)))
x = np.linspace(0, 1, 60)[::-1].copy()
value, (da, dx) = both(a, x)
np.testing.assert_allclose(value, function(a, x), rtol=1e-12)
e = np.zeros(60); e[7] = 1e-6
np.testing.assert_allclose(dx[7], (function(a, x + e) - function(a, x - e)) / 2e-6, rtol=1e-5)
for _ in range(200):
    both(a, x)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2000):  # what a kernel takes it gives back: else some 100 MB
    both(a, x)
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
"""


def test_kernels_that_allocate_run_from_disk(tmp_path: Path) -> None:
    """Their code calls Numba's run-time library, which a process that compiles nothing does not build."""
    first = counts(run(ALLOCATING + "print(counters.compiled, counters.loaded)", tmp_path))
    again = counts(run(ALLOCATING + "print(counters.compiled, counters.loaded)", tmp_path))
    assert first[0] > 0
    assert again == (0, sum(first))
    # and what Numba compiles afterwards works beside them
    later = "import numba\nassert numba.njit(lambda n: np.ones(n).sum())(3) == 3.0\nboth(a, x)\nprint(0, 0)"
    assert counts(run(ALLOCATING + later, tmp_path)) == (0, 0)


def test_numba_settings_enter_the_key(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path / "cache")
    (tmp_path / "cache").chmod(0o700)
    compiled, loaded = counts(run(GRADIENT, tmp_path / "cache", NUMBA_CPU_NAME="generic"))
    assert compiled > 0
    assert loaded == 0


@pytest.mark.parametrize("damage", ["truncated", "foreign", "flipped"])
def test_damaged_entries_are_compiled_again(filled: Path, tmp_path: Path, damage: str) -> None:
    for path in kernel_files(filled):
        copy = tmp_path / "cache" / path.relative_to(filled)
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = bytearray(path.read_bytes())
        if damage == "truncated":
            content = content[: len(content) // 2]
        elif damage == "foreign":
            content = bytearray(b"something else entirely")
        else:
            content[len(content) // 2] ^= 0xFF
        copy.write_bytes(content)
        copy.chmod(0o600)
    (tmp_path / "cache").chmod(0o700)
    result = run(GRADIENT, tmp_path / "cache")
    compiled, loaded = counts(result)
    assert loaded == 0
    assert compiled == len(kernel_files(filled))
    assert result.stderr.count("CacheWarning") == 1
    assert counts(run(GRADIENT, tmp_path / "cache")) == (0, compiled)


def test_valid_entry_of_a_stale_pickle_is_compiled_again(tmp_path: Path) -> None:
    code = GRADIENT.replace(
        "import jitgrad as jg",
        "import jitgrad as jg\nfrom jitgrad.kernels import disk_cache\n"
        "disk_cache.DiskCache.load = lambda self, key: b'not a pickle'",
    )
    compiled, loaded = counts(run(code, tmp_path / "cache"))
    assert compiled > 0
    assert loaded == 0


def test_without_a_usable_directory_kernels_stay_in_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the directory should be")
    compiled, _ = counts(run(GRADIENT, blocked))
    assert compiled > 0


def test_eight_processes_on_a_cold_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "JITGRAD_CACHE_DIR": str(cache)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", GRADIENT],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert counts(run(GRADIENT, cache))[0] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_fork_after_use(tmp_path: Path) -> None:
    code = (
        GRADIENT
        + """
import os
child = os.fork()
if child == 0:
    x = jg.tensor([1.0, 2.0], requires_grad=True)
    (x / 2.0).sum().backward()
    os._exit(0 if x.grad.tolist() == [0.5, 0.5] else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
"""
    )
    result = run(code, tmp_path / "cache")
    assert result.returncode == 0, result.stderr
