"""Kernels divided among threads: the same numbers as undivided ones, from any number of threads, run after run."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import test_jit
from hypothesis import given
from hypothesis import strategies as st
from programs import Program, programs
from strategies import examples, kernels
from test_jit import run_python

import jitgrad as jg
from jitgrad import config, errors
from jitgrad.compiler import chunks
from jitgrad.compiler.executable import FusedStep
from jitgrad.kernels import threads
from jitgrad.transforms.jit import JitFunction, jit

Array = np.ndarray[Any, Any]


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every loop that may be divided is, into chunks of an element or a row."""
    monkeypatch.setattr(chunks, "_WORTH", 0)
    monkeypatch.setattr(chunks, "_CHUNK", 1)
    with config.override(num_threads=3):
        yield


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks run in another order than they are combined in."""

    def run(part: Callable[[int], Any], count: int, threads: int) -> None:
        for number in reversed(range(count)):
            part(number)

    monkeypatch.setattr(chunks, "run_parts", run)


def phases(function: JitFunction, *args: Any) -> list[int]:
    """The numbers of chunks of the phases of a kernel (0: at once); none where it is not divided."""
    step = function._lookup(function._bind(args, {})).executable.steps[0][0]
    assert isinstance(step, FusedStep)
    if not chunks.is_worth_dividing(step.emitted):
        return []
    return [phase.count for phase in chunks.Chunked(step.emitted)._phases]


# --------------------------------------------------------------------------------------------- meaning


@pytest.mark.usefixtures("divided", "backwards")
@examples(100)
@given(programs())
def test_divided_programs_mean_the_same(program: Program) -> None:
    arrays = program.arrays()
    wanted = program(*[jg.tensor(a) for a in arrays])
    with kernels("python"):
        test_jit.assert_same(jit(program)(*arrays), wanted)


@pytest.mark.usefixtures("divided", "backwards")
@examples(100)
@given(programs())
def test_divided_gradients_mean_the_same(program: Program) -> None:
    arrays = program.arrays()
    both = jg.value_and_grad(program.scalar, argnums=tuple(range(len(arrays))))
    wanted, slopes = both(*arrays)
    with kernels("python"):
        value, gradients = jit(both)(*arrays)
    test_jit.assert_same(value, wanted)
    test_jit.assert_all_same(gradients, slopes)


def chain(x: Any) -> Any:
    return np.sum(np.tanh(x) * np.exp(-x * x) / (1.0 + x * x))


def chain_by_hand(x: Array) -> tuple[float, Array]:
    t, e, q = np.tanh(x), np.exp(-x * x), 1.0 + x * x
    return float(np.sum(t * e / q)), ((1 - t * t) * e - 2 * x * t * e) / q - 2 * x * t * e / q**2


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 1000])
def test_lengths_around_the_number_of_chunks(n: int) -> None:
    x = np.linspace(-2, 2, n)
    value, gradient = jit(jg.value_and_grad(chain))(x)
    wanted, slope = chain_by_hand(x)
    np.testing.assert_allclose(value, wanted, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(gradient, slope, rtol=1e-12, atol=1e-13)


REDUCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Any]]] = {
    "sum": (jg.sum, np.sum),
    "mean": (jg.mean, np.mean),
    "prod": (lambda x: jg.prod(1.0 + 0.01 * x), lambda x: np.prod(1.0 + 0.01 * x)),
    "max": (jg.max, np.max),
    "min": (jg.min, np.min),
    "any": (lambda x: jg.any(x > 1.0), lambda x: np.any(x > 1.0)),
    "all": (lambda x: jg.all(x > -1.0), lambda x: np.all(x > -1.0)),
    "count": (lambda x: jg.count_nonzero(x > 0.0), lambda x: np.count_nonzero(x > 0.0)),
    "rows": (lambda x: jg.sum(x, axis=1), lambda x: np.sum(x, axis=1)),
    "columns": (lambda x: jg.sum(x * x, axis=0), lambda x: np.sum(x * x, axis=0)),
    "column maxima": (lambda x: jg.max(x, axis=0), lambda x: np.max(x, axis=0)),
    "variance": (jg.var, np.var),
    "softmax": (
        lambda x: jg.exp(x - jg.max(x)) / jg.sum(jg.exp(x - jg.max(x))),
        lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
    ),
    "dot": (lambda x: x.reshape(-1) @ x.reshape(-1), lambda x: np.sum(x * x)),
}


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: Any) -> None:
    ours, numpys = REDUCTIONS[name]
    x = np.random.default_rng(1).normal(size=(17, 23)).astype(dtype)
    found = jit(ours)(x)
    tolerance = 1e-13 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(found, numpys(x.astype(np.float64)), rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad: float) -> None:
    x = np.linspace(0, 1, 200)
    x[137] = bad
    for ours, numpys in (REDUCTIONS[k] for k in ("sum", "max", "min", "any", "all")):
        np.testing.assert_array_equal(np.isnan(jit(ours)(x)), np.isnan(numpys(x)))
        if not np.isnan(numpys(x)):
            np.testing.assert_allclose(jit(ours)(x), numpys(x))


@pytest.mark.usefixtures("divided")
def test_results_are_the_same_bits_for_any_number_of_threads() -> None:
    x = np.random.default_rng(2).normal(size=5000) * 10.0 ** np.random.default_rng(3).integers(-8, 8, 5000)
    function = jit(jg.value_and_grad(lambda x: jg.sum(x) * jg.sum(jg.sin(x))))
    results = []
    for count in (2, 2, 3, 4, 7):
        with config.override(num_threads=count):
            results += [function(x) for _ in range(5)]
    first = results[0]
    assert all(v == first[0] and g.tobytes() == first[1].tobytes() for v, g in results)


@pytest.mark.usefixtures("divided")
def test_gradients_of_slices_add_up() -> None:
    """Several parts are added to the same memory: such loops are not divided, those around them are."""
    x = np.linspace(0.1, 1, 40)
    value, gradient = jit(jg.value_and_grad(lambda x: np.sum(x[1:] * x[:-1]) + np.sum(np.exp(x))))(x)
    np.testing.assert_allclose(value, np.sum(x[1:] * x[:-1]) + np.exp(x).sum(), rtol=1e-14)
    wanted = np.exp(x)
    wanted[1:] += x[:-1]
    wanted[:-1] += x[1:]
    np.testing.assert_allclose(gradient, wanted, rtol=1e-13)


@pytest.mark.usefixtures("divided")
def test_gathers_with_repeated_places() -> None:
    x, at = np.linspace(1, 2, 10), np.array([3, 3, 3, 0, 9, 3] * 20)
    value, gradient = jit(jg.value_and_grad(lambda x: np.sum(x[at] ** 2)))(x)
    np.testing.assert_allclose(value, np.sum(x[at] ** 2), rtol=1e-13)
    np.testing.assert_allclose(gradient, 2 * x * np.bincount(at, minlength=10), rtol=1e-13)


@pytest.mark.usefixtures("divided")
def test_tracked_tensors_and_captured_arrays() -> None:
    scale = np.full(300, 2.0)
    function = jit(lambda x: jg.sum(jg.sin(x) * scale))
    x = jg.tensor(np.linspace(0, 1, 300), requires_grad=True)
    function(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), 2.0 * np.cos(np.linspace(0, 1, 300)), rtol=1e-14)
    scale[:] = 3.0
    x.grad = None
    function(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), 3.0 * np.cos(np.linspace(0, 1, 300)), rtol=1e-14)


@pytest.mark.usefixtures("divided")
def test_errors_of_a_divided_kernel() -> None:
    function = jit(lambda a, x: np.linalg.solve(a, x) + np.exp(x))
    x = np.linspace(0, 1, 50)
    np.testing.assert_allclose(function(np.eye(50), x), x + np.exp(x), rtol=1e-14)
    with pytest.raises(np.linalg.LinAlgError):
        function(np.zeros((50, 50)), x)
    np.testing.assert_allclose(function(np.eye(50), x), x + np.exp(x), rtol=1e-14)


# --------------------------------------------------------------------------------------------- what is divided


def test_small_kernels_are_not_divided() -> None:
    function = jit(jg.value_and_grad(chain))
    assert phases(function, np.ones(1000)) == []
    assert phases(function, np.ones(1_000_000)) == [0, 64, 0]


def test_chunks_depend_on_the_extents_alone() -> None:
    function = jit(jg.value_and_grad(chain))
    with config.override(num_threads=2):
        two = phases(function, np.ones(200_000))
    with config.override(num_threads=5):
        assert phases(function, np.ones(200_000)) == two


def test_integer_sums_are_not_divided() -> None:
    assert phases(jit(jg.count_nonzero), np.ones(2_000_000)) == []


def test_arrays_that_are_added_to_are_divided_if_they_are_small() -> None:
    """Each chunk has a copy: for eight elements or more that go to one place."""
    at = np.zeros(2_000_000, np.int64)
    gathers = jit(jg.grad(lambda x: jg.sum(x[at])))
    assert phases(gathers, np.ones(3)) == [0, 32, 0]
    assert phases(gathers, np.ones(60_000)) == [0, 4, 0]
    assert phases(gathers, np.ones(200_000)) == []
    columns = jit(lambda x: jg.sum(x, axis=0))
    assert phases(columns, np.ones((200_000, 10))) == [0, 40, 0]
    assert phases(columns, np.ones((20, 100_000))) == [0, 2, 0]
    assert phases(columns, np.ones((10, 200_000))) == []
    # so gradients of overlapping slices are not
    assert phases(jit(jg.grad(lambda x: jg.sum(x[1:] * x[:-1]))), np.ones(2_000_000)) == []


COLUMNS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Any]]] = {
    "sum": (lambda x: jg.sum(x, axis=0), lambda x: np.sum(x, axis=0)),
    "mean": (lambda x: jg.mean(x, axis=0), lambda x: np.mean(x, axis=0)),
    "max": (lambda x: jg.max(x, axis=0), lambda x: np.max(x, axis=0)),
    "outer and inner": (lambda x: jg.sum(x, axis=(0, 2)), lambda x: np.sum(x, axis=(0, 2))),
    "count": (lambda x: jg.sum(x > 0.0, axis=0), lambda x: np.sum(x > 0.0, axis=0)),
    "any": (lambda x: jg.any(x > 2.5, axis=0), lambda x: np.any(x > 2.5, axis=0)),
}


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns(name: str, dtype: Any) -> None:
    ours, numpys = COLUMNS[name]
    x = np.random.default_rng(1).normal(size=(101, 3, 4)).astype(dtype)
    x[50, 1, 2], x[70, 0, 0] = np.nan, np.inf
    function = jit(ours)
    assert max(phases(function, x)) > 5
    found = function(x)
    tolerance = 1e-13 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(found, numpys(x.astype(np.float64)), rtol=tolerance, atol=tolerance)
    with config.override(num_threads=5):
        assert np.asarray(jit(ours)(x)).tobytes() == np.asarray(found).tobytes()


@pytest.mark.usefixtures("divided")
def test_gradients_of_what_is_broadcast_and_gathered() -> None:
    rng = np.random.default_rng(0)
    x, w, table, at = rng.normal(size=(400, 6)), rng.normal(size=6), rng.normal(size=5), rng.integers(0, 5, 400)

    def loss(x: Any, w: Any, table: Any) -> Any:
        return np.sum((x * w) ** 2) + np.sum(np.exp(table[at]))

    function = jit(jg.value_and_grad(loss, argnums=(0, 1, 2)))
    assert len([n for n in phases(function, x, w, table) if n]) == 2
    value, (dx, dw, dtable) = function(x, w, table)
    np.testing.assert_allclose(value, loss(x, w, table), rtol=1e-13)
    np.testing.assert_allclose(dx, 2.0 * x * w * w, rtol=1e-13)
    np.testing.assert_allclose(dw, np.sum(2.0 * x * x * w, axis=0), rtol=1e-13)
    np.testing.assert_allclose(dtable, np.bincount(at, minlength=5) * np.exp(table), rtol=1e-13)


def test_one_thread_makes_no_pool() -> None:
    text = """
        import threading, numpy as np, jitgrad as jg
        f = jg.jit(lambda x: jg.sum(jg.sin(x)))
        f(np.ones(1_000_000))
        print(threading.active_count())
        jg.set_num_threads(2)
        f(np.ones(1_000_000))
        print(threading.active_count())
    """
    assert run_python(text).split() == ["1", "2"]


# --------------------------------------------------------------------------------------------- the pool


def test_every_part_runs_once() -> None:
    for count in (1, 2, 5, 100):
        seen: list[int] = []
        threads.run_parts(seen.append, count, 4)
        assert sorted(seen) == list(range(count))


@given(st.integers(0, 30))
def test_what_a_part_raises_reaches_the_caller_when_nothing_runs_any_more(bad: int) -> None:
    running: list[int] = []

    def part(number: int) -> None:
        running.append(number)
        try:
            if number == bad:
                raise RuntimeError(f"part {number}")
        finally:
            running.remove(number)

    with pytest.raises(RuntimeError, match=f"part {bad}"):
        threads.run_parts(part, 31, 3)
    assert running == []


def test_parts_may_run_parts() -> None:
    """Nobody waits for a part that has not begun, so that a full pool does not stand still."""
    seen: list[tuple[int, int]] = []
    threads.run_parts(lambda a: threads.run_parts(lambda b: seen.append((a, b)), 5, 3), 7, 3)
    assert sorted(seen) == [(a, b) for a in range(7) for b in range(5)]


def test_helpers_are_waited_for_where_the_system_has_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first helper starts; the second is refused, though its work may still be done by the first."""
    start, started, main = threading.Thread.start, itertools.count(), threading.current_thread()

    def refused(thread: threading.Thread) -> None:
        if next(started):
            raise RuntimeError("can't start new thread")
        start(thread)

    def part(number: int) -> None:
        if threading.current_thread() is not main:
            time.sleep(0.05)
        done.append(number)

    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threads, "_size", 0)
    done: list[int] = []
    threads.run_parts(part, 8, 4)
    assert sorted(done) == list(range(8))


def test_several_threads_call_divided_kernels_at_once(divided: None) -> None:
    function = jit(jg.value_and_grad(chain))
    failures: list[str] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).normal(size=500 + seed)
        wanted, slope = chain_by_hand(x)
        try:
            with config.override(num_threads=3):
                for _ in range(20):
                    value, gradient = function(x)
                    np.testing.assert_allclose(value, wanted, rtol=1e-12)
                    np.testing.assert_allclose(gradient, slope, rtol=1e-11, atol=1e-13)
        except Exception as error:
            failures.append(repr(error))

    several = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in several:
        t.start()
    for t in several:
        t.join()
    assert not failures, failures[0]


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    text = """
        import os, numpy as np, jitgrad as jg
        jg.set_num_threads(2)
        f = jg.jit(lambda x: jg.sum(jg.sin(x)))
        x = np.linspace(0, 1, 1_000_000)
        before = f(x)
        child = os.fork()
        if child == 0:
            os._exit(0 if f(x) == before else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert f(x) == before
    """
    assert run_python(text).strip() == "0"


def test_the_number_of_threads() -> None:
    before = jg.get_num_threads()
    try:
        jg.set_num_threads(3)
        assert jg.get_num_threads() == 3
        for bad in (0, -1, 1.5, True, None):
            with pytest.raises(errors.ConfigError, match="num_threads"):
                jg.set_num_threads(bad)  # type: ignore[arg-type]
        assert jg.get_num_threads() == 3
    finally:
        jg.set_num_threads(before)


def test_the_number_of_threads_in_the_environment() -> None:
    assert run_python("import jitgrad; print(jitgrad.get_num_threads())", JITGRAD_NUM_THREADS="2").strip() == "2"


def test_the_threads_of_blas() -> None:
    """Where SciPy brings an OpenBLAS, its own count of threads follows."""
    text = """
        import ctypes, pathlib, scipy, jitgrad as jg
        jg.set_num_threads(2)
        found = sorted(pathlib.Path(scipy.__file__).parent.with_name("scipy.libs").glob("*openblas*"))
        names = ("scipy_openblas_get_num_threads", "scipy_openblas_get_num_threads64_", "openblas_get_num_threads")
        for name in names if found else ():
            get = getattr(ctypes.CDLL(str(found[0])), name, None)
            if get is not None:
                print(get())
                jg.set_num_threads(1)
                print(get())
    """
    assert run_python(text).split() in ([], ["2", "1"])
