"""What a jitted function tells of itself: commented source, the log, warnings of what keeps compiling, pictures."""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import itertools
import logging
import re
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import Program, programs
from strategies import examples, kernels

import jitgrad as jg
from jitgrad import config
from jitgrad.compiler.layout import Place, arrange
from jitgrad.compiler.lines import arranged, without_comments
from jitgrad.errors import RecompileWarning
from jitgrad.kernels import kernel as kernel_module
from jitgrad.kernels.kernel import counters, forget_kernels
from jitgrad.transforms.jit import jit

Array = np.ndarray[Any, Any]


@pytest.fixture
def compiled_kernels() -> None:
    """For tests that run compiled kernels; the others run them as plain Python."""


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with kernels("compiled" if "compiled_kernels" in request.fixturenames else "python"):
        yield


def module(path: Path, text: str) -> types.ModuleType:
    """A module of the user, from a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    made = types.ModuleType(path.stem)
    exec(compile(text, str(path), "exec"), made.__dict__)
    return made


# --------------------------------------------------------------------------------------------- comments

MODEL = """\
import numpy as np

def loss(w, X, y):
    z = X @ w
    return np.mean(np.logaddexp(0, z) - y * z)
"""
DATA = (np.zeros(3), np.ones((5, 3)), np.ones(5))


def test_source_is_commented_with_the_lines_it_comes_from(tmp_path: Path) -> None:
    loss = module(tmp_path / "model.py", MODEL).loss
    listing = jit(loss).source(*DATA)
    assert listing[listing.index("def loss_kernel") :] == (
        "def loss_kernel(a0, a1, a2, extents, numbers, work):\n"
        "    n0 = load(extents, 0)\n"
        "    n1 = load(extents, 1)\n"
        "    size0 = (n1 * 8 + 63) & -64\n"
        "    tmp0 = part_float64(work, 0, n1, 0)\n"
        "    # model.py:4: z = X @ w\n"
        "    matrix_vector_kernel(carray(data(a1), (n1, n0)), carray(data(a0), (n0,)), carray(data(tmp0), (n1,)), False)\n"
        "    # model.py:5: return np.mean(np.logaddexp(0, z) - y * z)\n"
        "    sum6 = float64(0.0)\n"
        "    for i0 in range(n1):\n"
        "        t1 = load(tmp0, i0)\n"
        "        t2_more = log1p(exp(-fabs(0.0 - t1)))\n"
        "        t2 = maximum(0.0, t1) + sel(0.0 == t1, 0.6931471805599453, t2_more)\n"
        "        t3 = load(a2, i0)\n"
        "        t4 = t3 * t1\n"
        "        t5 = t2 - t4\n"
        "        sum6 = radd(sum6, t5)\n"
        "    t7 = sum6 / (n1)\n"
        "    r8 = float64(t7)\n"
        "    return r8\n"
    )


def test_gradients_are_told_from_values_and_do_not_name_the_line_of_the_call(tmp_path: Path) -> None:
    loss = module(tmp_path / "model.py", MODEL).loss
    function = jg.value_and_grad(loss)
    first = jit(function).source(*DATA)
    second = jit(function).source(*DATA)
    assert first == second
    assert "test_jit_seeing" not in first
    assert re.findall(r"^ *#.*", first, re.M) == [
        "    # model.py:4: z = X @ w",
        "    # model.py:5: return np.mean(np.logaddexp(0, z) - y * z)",
        "        # gradient",
        "    # model.py:5: return np.mean(np.logaddexp(0, z) - y * z)",
        "    # gradient",
    ]


def test_gradients_that_the_user_asks_for_inside_name_that_line(tmp_path: Path) -> None:
    text = "import jitgrad as jg\ndef step(w):\n    g = jg.grad(lambda v: (v * v).sum())(w)\n    return w - g\n"
    source = jit(module(tmp_path / "descent.py", text).step).source(np.ones(3))
    assert "# gradient, descent.py:3: g = jg.grad(lambda v: (v * v).sum())(w)\n" in source
    assert "# descent.py:4: return w - g\n" in source


def test_the_same_program_elsewhere_gives_the_same_text(tmp_path: Path) -> None:
    texts = {jit(module(tmp_path / d / "model.py", MODEL).loss).source(*DATA) for d in ("here", "there/deeper")}
    assert len(texts) == 1
    assert str(tmp_path) not in texts.pop()


def test_long_lines_are_shortened_and_unknown_ones_left_out(tmp_path: Path) -> None:
    terms = " + ".join(["x * x"] * 40)
    path = tmp_path / "long.py"
    function = module(path, f"def f(x):\n    return {terms}\n").f
    (comment,) = re.findall(r"#.*", jit(function).source(np.ones(3)))
    assert comment.startswith("# long.py:2: return x * x + x * x")
    assert comment.endswith("...")
    assert len(comment) < 100
    namespace: dict[str, Any] = {}
    exec(compile("def f(x):\n    return x * x\n", "<no such file>", "exec"), namespace)
    assert re.findall(r"#.*", jit(namespace["f"]).source(np.ones(3))) == ["# <no such file>:2"]


def test_edited_files_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    assert "x * 2.5  # old" in jit(module(path, "def f(x):\n    return x * 2.5  # old\n").f).source(np.ones(3))
    assert "x * 2.5  # new text" in jit(module(path, "def f(x):\n    return x * 2.5  # new text\n").f).source(
        np.ones(3)
    )


def test_comments_compile_nothing(tmp_path: Path, compiled_kernels: None) -> None:
    """The same function with other words, on another line, in another file: the kernel that is there already."""
    first = module(tmp_path / "one.py", "def f(x):\n    return (x * x + 3 * x).sum()\n").f
    second = module(tmp_path / "two.py", "def f(v):\n\n    # squares\n    w = v * v\n    return (w + 3 * v).sum()\n").f
    assert jit(first)(np.arange(4.0)) == 32.0
    before = counters.compiled, counters.loaded
    function = jit(second)
    assert function(np.arange(4.0)) == 32.0
    assert (counters.compiled, counters.loaded) == before
    assert "# two.py:4: w = v * v" in function.source(np.arange(4.0))


def test_numbers_in_comments_are_no_numbers_of_a_numba_function(tmp_path: Path, compiled_kernels: None) -> None:
    """Formulas are put in place of extents in the source of ``njit``; digits in file names and lines are not meant."""
    text = "import numpy as np\ndef f(x):\n    return np.mean(x * x)  # 5040 29 145152 146160 / 0.5\n"
    function = jit(module(tmp_path / "model5040.py", text).f).njit(np.ones(3))
    assert function(np.arange(5.0)) == 6.0


@examples(30)
@given(programs())
def test_without_comments_the_listing_is_what_is_compiled(program: Program) -> None:
    function = jit(jg.value_and_grad(program.scalar))
    arrays = program.arrays()
    listing = function.source(*arrays)
    steps = function._lookup(function._bind(tuple(arrays), {})).executable.kernels
    bare = "\n".join(without_comments(listing.split("\n")))
    assert bare == "\n".join(s.kernel.source for s in steps)
    assert not any("#" in s.kernel.source for s in steps)
    compile(listing, "<listing>", "exec")
    lines = listing.splitlines()
    comments = [(k, line) for k, line in enumerate(lines) if line.lstrip().startswith("#")]
    for (k, line), (n, after) in itertools.pairwise(comments):
        inside = not any(line.startswith("def ") for line in lines[k:n])
        assert line.lstrip() != after.lstrip() or not inside  # a run has one comment
    for k, line in comments:
        following = lines[k + 1]
        assert not following.lstrip().startswith("#")
        assert len(following) - len(following.lstrip()) >= len(line) - len(line.lstrip())


def test_comments_move_above_what_is_loaded_for_their_statements() -> None:
    lines = ["t1 = load(a0, i)", "t2 = load(a1, i)", "# b", "t3 = t1 + t2", "# b", "t4 = -t3", "# c"]
    assert arranged(lines) == ["# b", "t1 = load(a0, i)", "t2 = load(a1, i)", "t3 = t1 + t2", "t4 = -t3"]
    gather = ["# a", "t1 = load(a0, a1)", "# b", "t2 = t1 * 2"]
    assert arranged(gather) == gather
    nested = ["# a", "for i in range(n):", "    # b", "# a", "return 1"]
    assert arranged(nested) == ["# a", "for i in range(n):", "return 1"]


# --------------------------------------------------------------------------------------------- the log


def test_traces_are_logged_for_those_who_ask(caplog: pytest.LogCaptureFixture) -> None:
    @jit
    def squares(x: Any, y: Any) -> Any:
        return (x * x).sum() + y

    with caplog.at_level(logging.DEBUG, "jitgrad"):
        squares(np.ones(3), 2.0)
        squares(np.zeros(3), 3.0)
        squares(np.ones(4), 2.0)
    messages = [r.getMessage() for r in caplog.records if r.name == "jitgrad" and r.levelno == logging.DEBUG]
    assert len(messages) == 2
    assert messages[0].startswith("traced squares(float64[3], float64[]) in ")
    assert "3 operations" in messages[0]
    assert re.search(r"test_jit_seeing\.py:\d+$", messages[0])
    assert "float64[4]" in messages[1]


def test_slow_compiles_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, compiled_kernels: None
) -> None:
    bridge = kernel_module._bridge()
    make = bridge.make

    def slow(*args: Any) -> Any:
        time.sleep(0.6)
        return make(*args)

    with config.override(cache_dir=tmp_path), caplog.at_level(logging.INFO, "jitgrad"):
        forget_kernels()
        jit(lambda x: x * 3 - 7)(np.ones(3))
        quick = [r for r in caplog.records if r.levelno == logging.INFO]
        assert len(quick) <= 1  # a busy machine may be slow
        caplog.clear()
        monkeypatch.setattr(bridge, "make", slow)

        def crawling(x: Any) -> Any:
            return x * 3 - 7 * x

        jit(crawling)(np.ones(3))
        (record,) = [r for r in caplog.records if r.levelno == logging.INFO]
    assert re.fullmatch(r"compiled crawling_kernel in \d+\.\d\d s", record.getMessage())
    assert record.name == "jitgrad"


# --------------------------------------------------------------------------------------------- warnings


def warned(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [w for w in found if issubclass(w.category, RecompileWarning)]


def test_static_values_that_keep_changing_are_named_once() -> None:
    @functools.partial(jit, static_argnames="step")
    def advance(x: Any, step: int) -> Any:
        return x + step

    x = np.ones(3)
    for step in range(7):
        assert not warned(lambda step=step: advance(x, step))
    line = sys._getframe().f_lineno + 1
    (found,) = warned(lambda: advance(x, step=7))
    message = str(found.message)
    assert message.startswith(
        "jit: advance was traced 8 times because of the static argument step: the value keeps changing, now from 6 to 7."
    )
    assert "ordinary argument" in message
    assert (found.filename, found.lineno) == (__file__, line)
    for step in range(8, 30):
        assert not warned(lambda step=step: advance(x, step))


def test_few_signatures_and_repeated_calls_are_no_reason() -> None:
    function = jit(lambda x, flag: x * 2 if flag else x, static_argnums=1)

    def calls() -> None:
        for _ in range(20):
            for flag in (True, False):
                for dtype in (np.float32, np.float64):
                    function(np.ones(3, dtype), flag)

    assert not warned(calls)


def test_shapes_alone_are_no_reason() -> None:
    function = jit(jg.value_and_grad(lambda w, X, y: ((X @ w - y) ** 2).mean()))
    assert not warned(lambda: [function(np.ones(3), np.ones((n, 3)), np.ones(n)) for n in range(2, 40)])
    other = jit(lambda x: x[: x.shape[0] // 2] * 2)
    assert not warned(lambda: [other(np.ones(n)) for n in range(4, 40)])


def test_shapes_are_named_where_the_operations_depend_on_them() -> None:
    @jit
    def unrolled(x: Any, scale: float) -> Any:
        total = 0.0
        for i in range(x.shape[0]):
            total = jg.tanh(total + x[i] * scale)
        return total

    found = warned(lambda: [unrolled(np.ones(n), 2.0) for n in range(2, 30)])
    (message,) = [str(w.message) for w in found]
    assert "unrolled was compiled 8 times because of the argument x: the shape keeps changing" in message
    assert "from (8,) to (9,)" in message
    assert "Python loop" in message


def test_arguments_that_go_together_are_named_together() -> None:
    def dots(xs: Any, ys: Any, w: Any) -> Any:
        return sum(jg.sin(x @ w) * y for x, y in zip(xs, ys, strict=True))

    function = jit(dots)
    (found,) = warned(lambda: [function(np.ones((n, 3)), np.ones(n), np.ones(3)) for n in range(2, 15)])
    assert "because of the arguments xs and ys: the shape keeps changing" in str(found.message)


def test_dtypes_are_named() -> None:
    names = ("bool", "int8", "int16", "int32", "int64", "uint8", "float64", "float32")
    function = jit(lambda k, x: (k + x).sum())
    (found,) = warned(lambda: [function(np.ones(3, d), np.ones(3)) for d in names])
    message = str(found.message)
    assert "argument k: the dtype keeps changing, now from float64 to float32" in message
    assert "astype" in message


def test_ranks_are_named_and_shapes_beside_them_do_not_hide_them() -> None:
    function = jit(lambda x, y: (x * 2).sum() + y.sum())
    (found,) = warned(lambda: [function(np.ones((2,) * n), np.ones(n + 2)) for n in range(9)])
    assert "argument x: the number of axes keeps changing, now from 6 to 7" in str(found.message)


def test_structures_are_named() -> None:
    function = jit(lambda parts, *rest: sum((p * p).sum() for p in parts) + rest[0])
    (found,) = warned(lambda: [function([np.ones(3)] * n, 1.0) for n in range(1, 12)])
    assert "argument parts: the structure keeps changing" in str(found.message)
    function = jit(lambda *parts: parts[0] * sum((p * p).sum() for p in parts[1]))
    (found,) = warned(lambda: [function(2.0, [np.ones(3)] * n) for n in range(1, 12)])
    assert "argument 1: the structure" in str(found.message)


def test_two_arguments_that_change_are_not_blamed_for_each_other() -> None:
    """An argument is named when it alone is another one than in some earlier call."""
    function = jit(lambda x, a, b: x * a + b, static_argnums=(1, 2))
    assert not warned(lambda: [function(np.ones(3), k, -k) for k in range(2, 30)])
    (found,) = warned(lambda: [function(np.ones(3), 1, -k) for k in range(2, 30)])
    assert "static argument b" in str(found.message)


def test_gradients_of_jitted_functions_warn_once() -> None:
    function = jit(lambda x, k: (x**k).sum(), static_argnums=1)

    def calls() -> None:
        for k in range(2, 12):
            x = jg.tensor([1.0, 2.0], requires_grad=True)
            function(x, k).backward()
            assert x.grad.tolist() == [k, k * 2.0 ** (k - 1)]

    (found,) = warned(calls)
    assert "static argument k" in str(found.message)


def test_warnings_as_errors_leave_the_function_compiled() -> None:
    function = jit(lambda x, k: x * k, static_argnums=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(7):
            function(np.ones(2), k)
        with pytest.raises(RecompileWarning, match="static argument k"):
            function(np.ones(2), 7)
        np.testing.assert_array_equal(function(np.ones(2), 7), [7.0, 7.0])
        function(np.ones(2), 8)


def test_watching_keeps_no_arguments_alive() -> None:
    x = np.ones(3)
    function = jit(lambda v: v * 2)
    function(x)
    function(x[::-1])
    reference = weakref.ref(x)
    del x
    gc.collect()
    assert reference() is None


# --------------------------------------------------------------------------------------------- pictures

SVG = "{http://www.w3.org/2000/svg}"
RED, BLUE, ORANGE = "#d62728", "#dbe9f6", "#fbe3cf"


def detached(x: Any) -> Any:
    y = x**2
    z = y.detach()
    return (y * z + jg.sin(x) * 0.25).sum()


def boxes(root: ElementTree.Element) -> list[ElementTree.Element]:
    """The rectangles of arguments, operations and results."""
    return [rect for group in root.iter(f"{SVG}g") for rect in group.iter(f"{SVG}rect")]


def test_pictures_are_in_colours_and_detach_is_a_cut() -> None:
    x = np.ones(3)
    drawing = jit(jg.grad(detached)).draw(x)
    root = ElementTree.fromstring(drawing.svg())
    fills = collections.Counter(rect.get("fill") for rect in boxes(root))
    graph = jit(jg.grad(detached)).graph(x)
    cuts = sum(n.primitive.name == "stop_gradient" for n in graph.nodes)
    assert cuts == 1
    assert fills[ORANGE] == sum(n.backward for n in graph.nodes) > 0
    assert fills[BLUE] == sum(not n.backward for n in graph.nodes) - cuts > 0
    assert fills["white"] == 2  # the argument and the result
    dashed = [p for p in root.iter(f"{SVG}path") if p.get("stroke-dasharray")]
    assert len(dashed) == 2  # into the cut, and out of it
    assert {p.get("stroke") for p in dashed} == {RED}
    words = [t.text for t in root.iter(f"{SVG}text")]
    assert words.count("detach") == cuts
    assert {"operation", "gradient", "detach: no gradient passes", "input 0", "result 0", "square"} <= set(words)
    plain = jit(lambda v: jg.exp(v) + v).draw(x).svg()
    assert RED not in plain
    assert ORANGE not in plain
    assert "gradient" not in plain


def test_tooltips_have_parameters_and_lines(tmp_path: Path) -> None:
    function = module(tmp_path / "sums.py", "def f(x):\n    return x.sum(axis=1) < 2  # a & b\n").f
    root = ElementTree.fromstring(jit(function).draw(np.ones((2, 3))).svg())
    titles = [t.text for g in root.iter(f"{SVG}g") for t in g.iter(f"{SVG}title")]
    assert titles[0] == "sum(axes=(1,))\nfloat64[2]\nsums.py:2: return x.sum(axis=1) < 2  # a & b"


def test_text_is_escaped(tmp_path: Path) -> None:
    hostile = 'def f(x):\n    return x * 2  # </title><script>alert("1")</script>\x08 \' & ]]>\n'
    text = jit(module(tmp_path / "a&b<c>.py", hostile).f).draw(np.ones(3)).svg()
    root = ElementTree.fromstring(text)
    assert {e.tag.removeprefix(SVG) for e in root.iter()} == {"svg", "title", "rect", "text", "path", "g"}
    assert any("<script>" in (t.text or "") for t in root.iter(f"{SVG}title"))


def test_pictures_are_self_contained_and_reach_nothing_around_them() -> None:
    drawing = jit(jg.grad(detached)).draw(np.ones(3))
    text = drawing.svg()
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"<style|<script|href|url\(|\bid=|\bclass=", text)
    assert drawing._repr_svg_() == text
    assert text in drawing._repr_html_()
    assert ElementTree.fromstring(drawing._repr_html_()).tag == "div"


def test_names_with_quotes() -> None:
    def graph(x: Any) -> Any:
        return x * 2.0

    graph.__name__ = 'a "name" \\ of\nmine'
    assert str(jit(graph).draw(1.0)).startswith('digraph "a \\"name\\" \\\\ of\\nmine" {')


def test_text_elsewhere_is_dot() -> None:
    def graph(x: Any) -> Any:  # a word of DOT's
        return detached(x)

    text = str(jit(graph).draw(np.ones(3)))
    assert text.startswith('digraph "graph" {\n')
    assert text.endswith("\n}")
    assert 'label="detach\\nfloat64[3]", fillcolor="white", color="#d62728"' in text
    assert "node0 -> node1" in text
    assert str(jit(graph).draw(np.ones(3))) == text


@examples(40)
@given(programs())
def test_every_picture_shows_all_of_its_graph(program: Program) -> None:
    function = jit(jg.value_and_grad(program.scalar))
    arrays = program.arrays()
    drawing, graph = function.draw(*arrays), function.graph(*arrays)
    text = drawing.svg()
    assert text == drawing.svg()
    root = ElementTree.fromstring(text)
    names = collections.Counter(t.text for t in root.iter(f"{SVG}text"))
    for name, count in collections.Counter(n.primitive.name for n in graph.nodes).items():
        assert names["detach" if name == "stop_gradient" else name] == count
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    placed = [tuple(float(r.get(k, "nan")) for k in ("x", "y", "width", "height")) for r in boxes(root)]
    assert len(placed) == len(graph.inputs) + len(graph.outputs) + len(graph.nodes) - names["detach"]
    for x, y, w, h in placed:
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
    for (x, y, w, h), (u, v, m, n) in itertools.combinations(placed, 2):
        assert x + w < u or u + m < x or y + h < v or v + n < y  # nothing covers anything


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30), st.integers(1, 9))
def test_layout(pairs: list[tuple[int, int]], count: int) -> None:
    """Edges pass one lane in each layer between; nothing in a layer is nearer than it may be."""
    places = [Place(k // 2, 20.0 + k) for k in range(count)]
    edges = [(places[a], places[b]) for a, b in pairs if max(a, b) < count and places[a].layer < places[b].layer]
    routes = arrange(places, edges)
    assert routes.keys() == set(edges)
    everything: dict[int, list[Place]] = {}
    for place in {*places, *(lane for route in routes.values() for lane in route)}:
        everything.setdefault(place.layer, []).append(place)
    for (source, target), route in routes.items():
        assert [lane.layer for lane in route] == list(range(source.layer + 1, target.layer))
    for layer in everything.values():
        layer.sort(key=lambda p: p.y)
        for a, b in itertools.pairwise(layer):
            assert b.y - a.y >= (a.height + b.height) / 2 + 5 - 1e-9
    assert min(p.y - p.height / 2 for layer in everything.values() for p in layer) == pytest.approx(0.0)


def test_what_is_joined_alone_stands_level() -> None:
    chain = [Place(k, 30.0) for k in range(5)]
    arrange(chain, list(itertools.pairwise(chain)))
    assert len({p.y for p in chain}) == 1


@pytest.mark.parametrize("steps", [45, 700])
def test_large_graphs_are_drawn_at_once(steps: int) -> None:
    def chain(x: Any) -> Any:
        for _ in range(steps):
            x = jg.sin(x) * x
        return x.sum()

    function = jit(jg.value_and_grad(chain))
    graph, drawing = function.graph(np.ones(3)), function.draw(np.ones(3))
    assert len(graph.nodes) > 6 * steps
    start = time.perf_counter()
    text = drawing.svg()
    assert time.perf_counter() - start < (4 if steps < 100 else 20)  # about 0.3 s and 1.5 s on an idle machine
    assert len(text) < 2000 * len(graph.nodes)
    ElementTree.fromstring(text)


def test_graphs_without_operations_are_drawn_too() -> None:
    constant = np.ones(2)
    for function in (lambda x: x, lambda x: (x, 3.0), lambda x: constant, lambda: jg.exp(constant), lambda: 1):
        args = (np.ones(2),) * function.__code__.co_argcount
        ElementTree.fromstring(jit(function).draw(*args).svg())
        assert str(jit(function).draw(*args)).endswith("}")


def test_all_that_a_jitted_function_and_a_tensor_have_can_be_read() -> None:
    assert "njit" in dict(inspect.getmembers(jg.jit(lambda x: x)))
    assert "reshape" in dict(inspect.getmembers(jg.zeros((2, 2))))
