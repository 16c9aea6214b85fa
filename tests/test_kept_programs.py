"""Programs kept on disk: found again by what their graphs say alone, never for another graph."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from programs import Program, programs
from strategies import examples, kernels

import jitgrad as jg
from jitgrad import config
from jitgrad.compiler import executable, kept_programs
from jitgrad.compiler.emit import emit
from jitgrad.compiler.fuse import plan
from jitgrad.compiler.fused_kernel import FusedKernel
from jitgrad.compiler.kept_programs import content_of
from jitgrad.compiler.passes import simplify
from jitgrad.core.graph import Graph
from jitgrad.core.primitive import Primitive
from jitgrad.kernels.kernel import entry_point
from jitgrad.ops.catalog import operations
from jitgrad.transforms.jit import JitFunction, jit

Array = np.ndarray[Any, Any]


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Programs of any size are kept, in an empty cache."""
    monkeypatch.setattr(kept_programs, "_WORTH_KEEPING", 0)
    monkeypatch.setattr(kept_programs, "_LOADED", float("inf"))  # somebody may edit the sources meanwhile
    with config.override(cache_dir=tmp_path):
        yield


def refuse(*arguments: Any) -> NoReturn:
    raise AssertionError("the program is compiled again")


def graph_of(function: JitFunction, *args: Any) -> Graph:
    return function._trace(function._bind(args, {}))[0]


def text_of(function: Callable[..., Any], *args: Any) -> str:
    content = content_of(graph_of(jit(function), *args))
    assert content is not None
    return content.text


def kernel_of(graph: Graph) -> FusedKernel:
    return FusedKernel.of(emit("program", plan(simplify(graph))))


# --------------------------------------------------------------------------------------------- content


def test_operations_have_names_of_their_own() -> None:
    assert operations()
    found = Counter(kept_programs._name_of(p) for p in gc.get_objects() if type(p) is Primitive and _is_ours(p))
    assert len(found) > 150
    assert [name for name, count in found.items() if count > 1] == []


def _is_ours(primitive: Primitive) -> bool:
    return primitive.definition.startswith(kept_programs._PACKAGE)


def test_every_operation_of_the_package_has_a_name() -> None:
    for name, operation in operations().items():
        if operation.primitive is not None:
            assert _is_ours(operation.primitive), name


_seen: dict[str, FusedKernel] = {}


@examples(100)
@given(programs())
def test_equal_contents_are_equal_kernels(program: Program) -> None:
    """Whether traced again or drawn anew, graphs of one content give one kernel."""
    arrays = program.arrays()
    both = jg.value_and_grad(program.scalar, argnums=tuple(range(len(arrays))))
    with kernels("python"):
        for function in (jit(program), jit(both)):
            for _ in range(2):
                graph = graph_of(function, *arrays)
                content = content_of(graph)
                assert content is not None
                kernel = kernel_of(graph)
                assert _seen.setdefault(content.text, kernel) == kernel


def test_contents_tell_programs_apart() -> None:
    x, y = np.ones((3, 4)), np.ones((3, 4))
    weights = np.arange(4.0)
    copy = weights.copy()
    programs: list[tuple[Callable[..., Any], Array, Array]] = [
        (lambda x, y: x + y, x, y),
        (lambda x, y: y + x, x, y),
        (lambda x, y: x - y, x, y),
        (lambda x, y: x + y, x[:2], y[:2]),
        (lambda x, y: x + y, x.astype(np.float32), y),
        (lambda x, y: x + y, x, y.astype(np.float32)),
        (lambda x, y: (x + y, x), x, y),
        (lambda x, y: (x + y, y), x, y),
        (lambda x, y: x * 0.0, x, y),
        (lambda x, y: x * -0.0, x, y),
        (lambda x, y: x * 1e-300, x, y),
        (lambda x, y: x * 2, x, y),
        (lambda x, y: x * True, x, y),
        (lambda x, y: x.sum(axis=0), x, y),
        (lambda x, y: x.sum(axis=1), x, y),
        (lambda x, y: x.sum(axis=1, keepdims=True), x, y),
        (lambda x, y: x[1:], x, y),
        (lambda x, y: x[:2], x, y),
        (lambda x, y: x[::2], x, y),
        (lambda x, y: jg.broadcast_to(x, (3, 3, 4)), x, y),
        (lambda x, y: x @ weights, x, y),
        (lambda x, y: x @ weights + (y @ weights), x, y),
        (lambda x, y: x @ weights + (y @ copy), x, y),
    ]
    texts = [text_of(*p) for p in programs]
    assert [k for k, t in enumerate(texts) if texts.index(t) != k] == []


def test_lines_are_no_part_of_the_content() -> None:
    def one(x: Any) -> Any:
        return jg.sin(x) * 2.0

    def another(y: Any) -> Any:
        return jg.sin(y) * 2.0

    assert text_of(one, np.ones(3)) == text_of(another, np.ones(3))


def test_what_has_no_lasting_name_is_not_kept() -> None:
    double = jg.primitive(lambda x: 2.0 * x, vjp=lambda g, out, x: (2.0 * g,))
    assert content_of(graph_of(jit(lambda x: double(x) + 1.0), np.ones(3))) is None


# --------------------------------------------------------------------------------------------- keeping


@pytest.mark.usefixtures("everything")
def test_a_kept_program_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shift = jg.tensor([1.0, 2.0, 3.0])

    def f(x: Any, w: Any) -> Any:
        return jg.sum(jg.tanh(x @ w + shift) * shift)

    both = jg.value_and_grad(f, argnums=(0, 1))
    x, w = np.linspace(0.0, 1.0, 8).reshape(2, 4), np.linspace(-1.0, 1.0, 12).reshape(4, 3)
    first = jit(both)
    value, gradients = first(x, w)
    again = jit(both)
    with monkeypatch.context() as patch:
        for name in ("emit", "plan", "simplify"):
            patch.setattr(executable, name, refuse)
        found, slopes = again(x, w)
        np.testing.assert_array_equal(found, value)
        for a, b in zip(slopes, gradients, strict=True):
            np.testing.assert_array_equal(a, b)
        shift.copy_(np.array([0.0, 0.5, -1.0]))  # what is captured is read at each call
        hidden = np.tanh(x @ w + [0.0, 0.5, -1.0])
        np.testing.assert_allclose(again(x, w)[0], np.sum(hidden * [0.0, 0.5, -1.0]), rtol=1e-14)
    assert again.source(x, w) == first.source(x, w)
    assert str(again.explain(x, w)) == str(first.explain(x, w))


@pytest.mark.usefixtures("everything")
def test_captured_arrays_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(a: Array, b: Array) -> Callable[[Any], Any]:
        return lambda x: jg.sin(x * a) - jg.exp(x) * b + a

    x, a, b = np.linspace(0.0, 1.0, 5), np.arange(5.0), np.linspace(2.0, 3.0, 5)
    jit(program(a, b))(x)
    monkeypatch.setattr(executable, "emit", refuse)
    np.testing.assert_allclose(jit(program(b, a))(x), np.sin(x * b) - np.exp(x) * a + b, rtol=1e-14)
    with pytest.raises(AssertionError, match="compiled again"):
        jit(program(a, a))(x)  # one array: another program


@pytest.mark.usefixtures("everything")
def test_kept_programs_refuse_what_they_must(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = jg.linalg.solve
    a, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    jit(lambda a, b: solve(a, b) * 2.0)(a, b)
    monkeypatch.setattr(executable, "emit", refuse)
    again = jit(lambda a, b: solve(a, b) * 2.0)
    np.testing.assert_allclose(again(a, b), np.linalg.solve(a, b) * 2.0, rtol=1e-14)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        again(np.ones((2, 2)), b)


@pytest.mark.usefixtures("everything")
def test_threads_share_a_kept_program() -> None:
    def f(x: Any) -> Any:
        return jg.sum(jg.sin(x) * jg.exp(-x * x))

    x = np.linspace(-2.0, 2.0, 1_000_000)
    wanted = np.sum(np.sin(x) * np.exp(-x * x))
    for function in (jit(f), jit(f)):
        one = function(x)
        with config.override(num_threads=2):
            two = function(x)
        np.testing.assert_allclose([one, two], wanted, atol=1e-9)


@pytest.mark.usefixtures("everything")
def test_results_that_are_arguments_are_not_kept() -> None:
    x = np.arange(3.0)
    for _ in range(2):
        same, double = jit(lambda x: (x, x * 2.0))(x)
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(double, x * 2.0)
        assert not np.shares_memory(same, x)


@pytest.mark.usefixtures("everything")
def test_python_kernels_are_not_kept() -> None:
    with kernels("python"):
        assert not kept_programs.is_worth_keeping(graph_of(jit(lambda x: x + 1.0), np.ones(3)))


@pytest.mark.usefixtures("everything")
def test_another_compiler_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(3)
    jit(lambda x: jg.sin(x) + 1.0)(x)
    monkeypatch.setattr(kept_programs, "_package", lambda: "other sources")
    monkeypatch.setattr(executable, "emit", refuse)
    with pytest.raises(AssertionError, match="compiled again"):
        jit(lambda x: jg.sin(x) + 1.0)(x)


@pytest.mark.usefixtures("everything")
def test_sources_that_changed_after_they_were_loaded_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(3)
    jit(lambda x: jg.sin(x) + 1.0)(x)
    kept_programs._package.cache_clear()
    monkeypatch.setattr(kept_programs, "_LOADED", Path(kept_programs.__file__).stat().st_mtime - 1.0)
    try:
        assert not kept_programs.is_worth_keeping(graph_of(jit(lambda x: x + 1.0), x))
        monkeypatch.setattr(executable, "emit", refuse)
        with pytest.raises(AssertionError, match="compiled again"):
            jit(lambda x: jg.sin(x) + 1.0)(x)
    finally:
        kept_programs._package.cache_clear()


@pytest.mark.usefixtures("everything")
def test_entry_points_are_those_of_the_source() -> None:
    function = jit(lambda x: jg.sin(x) * x)
    again = jit(lambda x: jg.sin(x) * x)
    x = np.ones(3)
    for f in (function, again):
        f(x)
    steps = [f._lookup(f._bind((x,), {})).executable.single for f in (function, again)]
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[0].entry is steps[1].entry
    kernel = steps[0].kernel
    assert steps[1].entry is entry_point(kernel.name, kernel.source, kernel.signature, kernel.extras)
