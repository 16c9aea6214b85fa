"""Kernels: scalar bodies as text, the loops around them on every layout, and when they are compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, kernels, seeds

import jitgrad as jg
from jitgrad.core import scalar
from jitgrad.core.aval import FLOAT32, FLOAT64
from jitgrad.errors import DefinitionError
from jitgrad.kernels import kernel
from jitgrad.kernels.kernel import ArrayKernel, entry_point
from jitgrad.kernels.loops import literal
from jitgrad.kernels.text import function_source, inline

Array = np.ndarray[Any, Any]


@pytest.fixture
def compiled_kernels() -> Iterator[None]:
    with kernels("compiled"):
        yield


# --------------------------------------------------------------------------------------------- bodies as text


def polynomial(x, y):
    """The docstring is not part of the kernel."""
    s = x * x  # nor are comments
    s += 2.5 * y
    return s - x


def reassigning(x, y):
    x = x + y
    y = x * 2.0
    return x * y


def calling(x):
    return scalar.sel(scalar.isnan(x), 1.0, scalar.exp(-x))


def branching(x):
    if x > 0.0:
        x = 2.0 * x
    return x


def looping(x):
    for _ in range(3):
        x = x * x
    return x


def returning_nothing(x):
    y = x  # noqa: F841


def evaluated(lines: list[str], target: str, **names: Any) -> Any:
    space = {name: getattr(scalar, name) for name in scalar.__all__}
    space.update(names, float32=np.float32)
    exec("\n".join(lines), space)
    return space[target]


def test_a_body_is_written_out_with_the_names_of_the_kernel() -> None:
    lines = inline(polynomial, ["a_i", "b_i"], "t0")
    assert lines == ["t0_s = a_i * a_i", "t0_s += 2.5 * b_i", "t0 = t0_s - a_i"]


def test_a_body_that_assigns_its_parameter_leaves_the_argument_alone() -> None:
    lines = inline(reassigning, ["a", "b"], "t")
    space: dict[str, Any] = {"a": 2.0, "b": 3.0}
    exec("\n".join(lines), space)
    assert space["t"] == reassigning(2.0, 3.0)
    assert (space["a"], space["b"]) == (2.0, 3.0)


@given(x=st.floats(-3, 3), y=st.floats(-3, 3))
@examples(20)
def test_text_means_what_the_function_means(x: float, y: float) -> None:
    assert evaluated(inline(polynomial, ["x", "y"], "t"), "t", x=x, y=y) == polynomial(x, y)
    assert evaluated(inline(reassigning, ["x", "y"], "t"), "t", x=x, y=y) == reassigning(x, y)
    assert evaluated(inline(calling, ["x"], "t"), "t", x=x) == calling(x)


def test_two_bodies_in_one_kernel_do_not_share_locals() -> None:
    lines = [*inline(polynomial, ["x", "y"], "t0"), *inline(polynomial, ["t0", "x"], "t1")]
    assert evaluated(lines, "t1", x=1.5, y=-2.0) == polynomial(polynomial(1.5, -2.0), 1.5)


def test_constants_of_a_float32_body_are_float32() -> None:
    lines = inline(polynomial, ["x", "y"], "t", "float32")
    assert "float32(2.5)" in " ".join(lines)
    assert evaluated(lines, "t", x=np.float32(1.5), y=np.float32(0.1)).dtype == np.float32


def to_the_power(x, y):
    return x**y


def test_negative_literals_bind_as_numbers() -> None:
    assert evaluated(inline(to_the_power, ["-2.0", "y"], "t"), "t", y=2.0) == 4.0
    assert evaluated(inline(polynomial, ["-2.0", "-INF"], "t"), "t", INF=np.inf) == -np.inf


def test_functions_of_scalar_become_bare_names() -> None:
    assert inline(calling, ["x"], "t") == ["t = sel(isnan(x), 1.0, exp(-x))"]


@pytest.mark.parametrize("function", [branching, looping, returning_nothing, lambda x: x])
def test_what_is_not_straight_line_code_is_refused(function: Any) -> None:
    with pytest.raises(DefinitionError):
        inline(function, ["x"], "t")


def test_a_wrong_number_of_arguments_is_refused() -> None:
    with pytest.raises(DefinitionError, match="2 arguments, not 1"):
        inline(polynomial, ["x"], "t")


def test_a_function_without_source_is_refused() -> None:
    space: dict[str, Any] = {}
    exec("def made(x):\n    return x", space)
    with pytest.raises(DefinitionError, match="source"):
        inline(space["made"], ["x"], "t")


@given(value=st.floats(width=64), single=st.booleans())
@examples(60)
def test_literals_are_exact(value: float, single: bool) -> None:
    dtype = FLOAT32 if single else FLOAT64
    with np.errstate(over="ignore"):
        number = np.asarray(value, dtype)[()]
    got = eval(literal(number, dtype), {"float32": np.float32, "NAN": np.nan, "INF": np.inf})
    np.testing.assert_array_equal(np.asarray(got, dtype), number)
    assert np.isnan(number) or np.signbit(got) == np.signbit(number)


# --------------------------------------------------------------------------------------------- loops


@st.composite
def strided(draw: st.DrawFn, shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of this shape in some memory: any order of axes, steps, directions and repeated elements."""
    rng = np.random.default_rng(draw(seeds))
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]
    big = np.asarray(rng.integers(-100, 100, [n * abs(s) for n, s in zip(shape, steps, strict=True)]))
    made = np.asarray(big % 5 if dtype is np.bool_ else big).astype(dtype)
    stored = np.ascontiguousarray(made.transpose(order)).transpose(np.argsort(order)) if shape else made
    array = stored[(*(slice(None, None, s) for s in steps), ...)]
    if shape and array.size and draw(st.booleans()):
        axis = draw(st.integers(0, len(shape) - 1))
        array = np.broadcast_to(array.take([0], axis=axis), array.shape)
    assert array.shape == shape
    return array


@st.composite
def operands(draw: st.DrawFn, *dtypes: Any) -> list[Array]:
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=len(dtypes), max_dims=4, min_side=0, max_side=4))
    return [draw(strided(s, d)) for s, d in zip(shapes.input_shapes, dtypes, strict=True)]


LOOPS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "float64": (jg.subtract, np.subtract, (np.float64, np.float64)),
    "float32": (jg.multiply, np.multiply, (np.float32, np.float32)),
    "int8": (jg.add, np.add, (np.int8, np.int8)),
    "uint64": (jg.subtract, np.subtract, (np.uint64, np.uint64)),
    "bool": (jg.less, np.less, (np.int32, np.int32)),
    "where": (jg.where, np.where, (np.bool_, np.float32, np.float32)),
    "one operand": (jg.negative, np.negative, (np.int64,)),
}


@pytest.mark.parametrize("name", sorted(LOOPS))
@given(data=st.data())
@examples(40)
@pytest.mark.usefixtures("compiled_kernels")
def test_compiled_loops_on_any_memory(name: str, data: st.DataObject) -> None:
    ours, theirs, dtypes = LOOPS[name]
    arrays = data.draw(operands(*dtypes))
    expected = theirs(*arrays)
    actual = ours(*map(jg.from_numpy, arrays))
    assert actual.dtype == np.asarray(expected).dtype
    assert actual._value.flags.c_contiguous
    np.testing.assert_array_equal(actual._value, expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.uint16, np.bool_])
@given(data=st.data())
@examples(30)
@pytest.mark.usefixtures("compiled_kernels")
def test_compiled_reductions_over_any_axes(dtype: Any, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    x = data.draw(strided(shape, dtype))
    axis = data.draw(st.one_of(st.none(), st.sets(st.integers(0, max(0, x.ndim - 1))).map(tuple))) if x.ndim else None
    total = jg.sum(jg.from_numpy(x), axis=axis)
    expected = np.sum(x, axis=axis)
    assert total.dtype == expected.dtype
    np.testing.assert_array_equal(total._value, expected)  # sums of small integers are exact
    count = x.size if axis is None else int(np.prod([shape[a] for a in axis], dtype=int))
    if count and dtype != np.bool_:
        np.testing.assert_array_equal(jg.max(jg.from_numpy(x), axis=axis)._value, np.max(x, axis=axis))


@pytest.mark.usefixtures("compiled_kernels")
def test_a_million_float32_terms_keep_their_digits() -> None:
    x = np.full(1_000_000, 0.1, np.float32)
    total = jg.sum(jg.tensor(x))
    assert total.dtype == np.float32
    np.testing.assert_allclose(total.item(), 1e6 * float(np.float32(0.1)), rtol=1e-6)
    rows = jg.sum(jg.tensor(x.reshape(-1, 2)), axis=0)
    np.testing.assert_allclose(rows._value, 5e5 * float(np.float32(0.1)), rtol=1e-6)


# --------------------------------------------------------------------------------------------- array kernels


@ArrayKernel
def scaled_cumsum(x, factor, out):
    total = 0.0
    for i in range(x.size):
        total += factor * x[i]
        out[i] = total


@pytest.mark.parametrize("mode", ["compiled", "python"])
def test_array_kernels_run_alike_in_both_modes(mode: str) -> None:
    x = np.array([1.0, 2.0, 4.0])
    out = np.empty(3)
    with kernels(mode):
        scaled_cumsum(x, 0.5, out)
    np.testing.assert_array_equal(out, [0.5, 1.5, 3.5])


def test_array_kernels_refuse_gaps() -> None:
    with kernels("compiled"), pytest.raises(ValueError, match="contiguous"):
        scaled_cumsum(np.zeros(6, np.float32)[::2], 0.5, np.empty(3))


def test_the_text_of_an_array_kernel_is_the_function() -> None:
    source = function_source(scaled_cumsum.function)
    assert source.startswith("def scaled_cumsum(x, factor, out):")
    space: dict[str, Any] = {}
    exec(source, space)
    out = np.empty(2)
    space["scaled_cumsum"](np.array([3.0, 4.0]), 2.0, out)
    np.testing.assert_array_equal(out, [6.0, 14.0])


# --------------------------------------------------------------------------------------------- when they are compiled


def settled() -> tuple[int, int, int]:
    return kernel.counters.compiled, kernel.counters.loaded, len(kernel._entries)


@pytest.mark.usefixtures("compiled_kernels")
def test_kernels_depend_on_layout_and_dtype_but_not_on_extents() -> None:
    def work(n: int, m: int) -> None:
        x = jg.tensor(np.ones((n, m)), requires_grad=True)
        y = jg.tensor(np.ones(m), requires_grad=True)
        (jg.sin(x) * y + x[:, ::2].sum()).sum(axis=0).sum().backward()

    work(3, 4)
    before = settled()
    for n, m in [(2, 2), (50, 7), (7, 50), (1000, 3)]:
        work(n, m)
    assert settled() == before


@pytest.mark.usefixtures("compiled_kernels")
def test_constants_and_exponents_compile_nothing() -> None:
    x = jg.tensor([1.0, 2.0], requires_grad=True)

    def work(c: float) -> None:
        (c * x + c - c / x).sum().backward()

    work(3.0)
    work(3.0)  # adds to .grad
    before = settled()
    for c in (0.5, -2.0, 1e10, float("inf")):
        work(c)
    assert settled() == before


@pytest.mark.usefixtures("compiled_kernels")
def test_one_kernel_for_one_source_and_signature() -> None:
    source = (
        "def probe_one(x, out):\n    n = size(out)\n    for i in range(n):\n        store(out, i, load(x, i) + 41.5)\n"
    )
    single, double = ("b:float32", "b:float32"), ("b:float64", "b:float64")
    first = entry_point("probe_one", source, double)
    assert entry_point("probe_one", source, double) is first
    assert entry_point("probe_one", source, single) is not first
    out = np.empty(2)
    first(np.array([1.0, 2.0]), out)
    np.testing.assert_array_equal(out, [42.5, 43.5])


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("maker", ["part_float64(work, 64, 3, 0)", "pointer_float64(work, 64, 3)"])
def test_temporaries_begin_on_lines_of_the_cache_wherever_the_working_memory_begins(maker: str) -> None:
    source = f"def probe_lines(work):\n    tmp0 = {maker}\n    for i in range(3):\n        store(tmp0, i, -1.0)\n"
    run = entry_point("probe_lines", source, ("b:int8",))
    memory = np.empty(320, np.int8)
    pattern = np.full(3, -1.0).view(np.int8)
    for begin in range(64):
        memory[:] = 0
        run(memory[begin : begin + 192])
        first = begin + -(memory.ctypes.data + begin) % 64 + 64
        np.testing.assert_array_equal(memory[first : first + 24], pattern)
        assert np.count_nonzero(memory) == np.count_nonzero(pattern)


@pytest.mark.usefixtures("compiled_kernels")
def test_forgotten_kernels_are_loaded_from_disk_not_compiled() -> None:
    source = (
        "def probe_two(x, out):\n    n = size(out)\n    for i in range(n):\n        store(out, i, load(x, i) - 6.5)\n"
    )
    first = entry_point("probe_two", source, ("b:float64", "b:float64"))
    compiled, loaded, _ = settled()
    kernel.forget_kernels()
    second = entry_point("probe_two", source, ("b:float64", "b:float64"))
    assert second is not first
    assert settled()[:2] == (compiled, loaded + 1)
    out = np.empty(1)
    second(np.array([7.0]), out)
    assert out[0] == 0.5


@pytest.mark.usefixtures("compiled_kernels")
def test_threads_that_want_one_kernel_share_it() -> None:
    source = "def probe_three(x, out):\n    n = size(out)\n    for i in range(n):\n        store(out, i, load(x, i) * 3.25)\n"
    found = []
    gate = threading.Barrier(4)

    def want() -> None:
        gate.wait()
        found.append(entry_point("probe_three", source, ("b:float64", "b:float64")))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(map(id, found))) == 1


def test_a_change_of_mode_changes_the_kernels() -> None:
    x = jg.tensor([0.5, 1.5])
    before = len(kernel._entries)
    with kernels("python"):
        compiled = kernel.counters.compiled + kernel.counters.loaded
        plain = jg.log2(x)
        assert kernel.counters.compiled + kernel.counters.loaded == compiled
    with kernels("compiled"):
        fast = jg.log2(x)
    assert len(kernel._entries) >= before
    np.testing.assert_allclose(plain._value, fast._value, rtol=1e-15)
