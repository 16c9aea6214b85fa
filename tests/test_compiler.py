"""The compiler's parts alone: passes, extents, plans and emission, each against a run of the graph node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import test_jit
from hypothesis import given
from hypothesis import strategies as st
from programs import Program, programs
from strategies import examples, kernels

import jitgrad as jg
from jitgrad.compiler import passes
from jitgrad.compiler.emit import emit
from jitgrad.compiler.executable import Executable
from jitgrad.compiler.extents import Extents, index_axes, unit_reshape
from jitgrad.compiler.fuse import Call, Loop, can_fuse, plan
from jitgrad.core.aval import make_aval
from jitgrad.core.graph import Constant, Extent, Graph, Node, Variable
from jitgrad.eager import run
from jitgrad.errors import GraphError, LeakedTracerError
from jitgrad.ops.elementwise import add, exp, multiply, negative
from jitgrad.ops.linear import expand, sum_over
from jitgrad.transforms.jit import jit

Array = np.ndarray[Any, Any]
PASSES = [
    passes.expand_expressions,
    passes.fold_constants,
    passes.erase_identities,
    passes.move_signs,
    passes.common_subexpressions,
]


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with kernels("python"):
        yield


def interpret(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs, by running one node after the other."""
    values: dict[Any, Array] = dict(zip(graph.inputs, arrays, strict=True))

    def value(atom: Any) -> Array:
        return atom.current() if isinstance(atom, Constant) else values[atom]

    for node in graph.nodes:
        found = run(node.primitive, [value(a) for a in node.inputs], node.params)
        results = found if node.primitive.outputs > 1 else [found]
        for variable, result in zip(node.outputs, results, strict=True):
            assert variable.aval.shape == result.shape, f"{node.primitive}: {result.shape} instead of {variable.aval}"
            assert variable.aval.dtype == result.dtype, f"{node.primitive}: {result.dtype} instead of {variable.aval}"
            values[variable] = result
    return [value(a) for a in graph.outputs]


def assert_same(actual: Sequence[Array], expected: Sequence[Array], exact: bool = False) -> None:
    for a, e in zip(actual, expected, strict=True):
        if exact:
            assert a.dtype == e.dtype
            np.testing.assert_array_equal(a, e)
        else:
            test_jit.assert_same(a, e)


def graphs_of(program: Program) -> Iterator[tuple[Graph, list[Array]]]:
    arrays = program.arrays()
    yield jit(program).graph(*arrays), arrays
    yield jit(jg.value_and_grad(program.scalar, argnums=tuple(range(len(arrays))))).graph(*arrays), arrays


# --------------------------------------------------------------------------------------------- passes


@examples(40)
@given(programs())
def test_a_traced_graph_means_the_function(program: Program) -> None:
    arrays = program.arrays()
    graph = jit(program).graph(*arrays).verify()
    (found,) = interpret(graph, arrays)
    test_jit.assert_same(found, program(*[jg.tensor(a) for a in arrays]))


@pytest.mark.parametrize("step", PASSES, ids=lambda p: p.__name__)
@examples(30)
@given(programs())
def test_passes_keep_the_meaning(step: Callable[[Graph], Graph], program: Program) -> None:
    for graph, arrays in graphs_of(program):
        text = str(graph)
        expected = interpret(graph, arrays)
        changed = step(graph)
        assert str(graph) == text, "a pass changed the graph that it was given"
        changed.verify()
        assert_same(interpret(changed, arrays), expected, exact=step is not passes.expand_expressions)
        assert_same(interpret(changed.live().verify(), arrays), interpret(changed, arrays), exact=True)


@examples(30)
@given(programs())
def test_simplify_keeps_the_meaning_and_is_done_at_once(program: Program) -> None:
    for graph, arrays in graphs_of(program):
        once = passes.simplify(graph).verify()
        assert_same(interpret(once, arrays), interpret(graph, arrays))
        assert len(once.nodes) <= len(passes.expand_expressions(graph).nodes)


@examples(25)
@given(programs(), st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan]), st.integers(0, 2**31))
def test_passes_keep_nans_infinities_and_signs(program: Program, special: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for graph, arrays in graphs_of(program):
        spoilt = [np.where(rng.uniform(size=a.shape) < 0.3, special, a) for a in arrays]
        expected = interpret(graph, spoilt)
        for step in PASSES[1:]:
            found = interpret(step(graph), spoilt)
            assert_same(found, expected, exact=True)
            for f, e in zip(found, expected, strict=True):
                np.testing.assert_array_equal(np.signbit(f[e == 0]), np.signbit(e[e == 0]))


def scalar_graph(build: Callable[..., Any], count: int = 1) -> Graph:
    return jit(build).graph(*[np.full(3, 2.0)] * count)


def names(graph: Graph) -> list[str]:
    return [n.primitive.name for n in graph.nodes]


def test_dead_code_goes() -> None:
    graph = scalar_graph(lambda x: (jg.exp(x), x * 2)[1])
    assert names(graph) == ["multiply"]


def test_common_subexpressions_are_found() -> None:
    graph = passes.simplify(scalar_graph(lambda x: jg.exp(x * 2) + jg.exp(x * 2.0)))
    assert names(graph) == ["multiply", "exp", "add"]
    graph = passes.simplify(scalar_graph(lambda x: jg.sin(x) * jg.sin(x.detach())))
    assert names(graph) == ["sin", "multiply"]


def test_signs_of_zero_are_not_merged() -> None:
    graph = passes.simplify(scalar_graph(lambda x: (x * 0.0, x * -0.0)))
    assert names(graph) == ["multiply", "multiply"]
    first, second = interpret(graph, [np.ones(3)])
    assert not np.signbit(first).any()
    assert np.signbit(second).all()


def test_identities_are_erased() -> None:
    graph = scalar_graph(lambda x: jg.negative(-x.clone().detach().reshape(3).T) * 1.0)
    simple = passes.simplify(graph)
    assert simple.nodes == []
    assert simple.outputs == list(simple.inputs)


def test_signs_move_into_sums_and_products_are_shared() -> None:
    graph = passes.simplify(scalar_graph(lambda x, y: (x * x + y) - (-x * y) * x * (x / -y), 2))
    assert "negative" not in names(graph)
    graph = passes.simplify(scalar_graph(lambda x: jg.exp(-x * x) + 1.0 / (1.0 + x * x)))
    assert names(graph) == ["multiply", "negative", "exp", "add", "divide", "add"]
    graph = passes.simplify(scalar_graph(lambda x: (-1.0 * x, -x * 2.0, jg.exp(-x))))
    assert names(graph).count("negative") == 1


def test_a_product_by_one_that_broadcasts_stays() -> None:
    graph = jit(lambda x: x * jg.ones((2, 3))).graph(np.ones(3))
    (found,) = interpret(passes.simplify(graph), [np.arange(3.0)])
    assert found.shape == (2, 3)


def test_numbers_are_folded() -> None:
    graph = Graph("numbers")
    x = graph.add_input(make_aval((3,), np.dtype(float)))
    two, three = Constant(np.array(2.0)), Constant(np.array(3.0))
    scalar = make_aval((), np.dtype(float))
    (six,) = graph.add(multiply.primitive, (two, three), {}, [scalar])
    (power,) = graph.add(exp.primitive, (six.variable,), {}, [scalar])
    (out,) = graph.add(add.primitive, (x.variable, power.variable), {}, [x.aval])
    graph.outputs = [out.variable]
    folded = passes.fold_constants(graph).live()
    assert names(folded) == ["add"]
    np.testing.assert_allclose(interpret(folded, [np.zeros(3)])[0], np.exp(6.0), rtol=4e-16)


def test_captured_arrays_without_axes_are_not_numbers() -> None:
    w = np.array(2.0)
    graph = jit(lambda x: x * jg.exp(jg.asarray(w))).graph(np.ones(2))
    simple = passes.simplify(graph)
    assert names(simple) == ["exp", "multiply"]
    w[...] = 0.0
    np.testing.assert_array_equal(interpret(simple, [np.ones(2)])[0], 1.0)


# --------------------------------------------------------------------------------------------- graphs


def small_graph() -> tuple[Graph, Variable, Node]:
    graph = Graph("small")
    x = graph.add_input(make_aval((2,), np.dtype(float)))
    (y,) = graph.add(multiply.primitive, (x.variable, Constant(np.array(2.0))), {}, [x.aval])
    (z,) = graph.add(sum_over, (y.variable,), {"axes": (0,)}, [make_aval((), np.dtype(float))])
    graph.outputs = [z.variable]
    return graph, x.variable, graph.nodes[0]


def test_printer() -> None:
    graph, _, _ = small_graph()
    assert str(graph) == (
        "small(a:float64[2]):\n  b:float64[2] = multiply a 2.0\n  c:float64[] = sum b axes=(0,)\n  return c"
    )
    many = Graph("many")
    for _ in range(30):
        many.add_input(make_aval((), np.dtype(float)))
    assert "z:float64[], aa:float64[], ab:float64[]" in str(many)
    captured = jit(lambda x: x * np.arange(3.0)).graph(np.ones(3))
    assert "captured float64[3]" in str(captured)
    assert "test_compiler.py:" in str(captured)


def test_verifier_accepts_what_is_right() -> None:
    graph, _, _ = small_graph()
    assert graph.verify() is graph


def test_a_node_may_hold_graphs() -> None:
    """Loops, conditionals and maps have bodies: the verifier looks into them, the printer shows them."""
    graph, x, node = small_graph()
    body, y, inner = small_graph()
    body.name = "body"
    node.params = {"body": body}
    assert graph.verify() is graph
    assert "body=body" in str(graph)
    assert f"  {str(body).splitlines()[1]}" in str(graph)
    inner.inputs = (Variable(x.aval), y)
    with pytest.raises(GraphError, match=r"^body:"):
        graph.verify()


@pytest.mark.parametrize("fault", ["undefined", "late", "twice", "input twice", "output", "results"])
def test_verifier(fault: str) -> None:
    graph, x, node = small_graph()
    stranger = Variable(x.aval)
    if fault == "undefined":
        node.inputs = (stranger, stranger)
    elif fault == "late":
        graph.nodes.reverse()
    elif fault == "twice":
        graph.nodes.append(Node(negative.primitive, (x,), {}, node.outputs))
    elif fault == "input twice":
        graph.inputs.append(x)
    elif fault == "output":
        graph.outputs = [stranger]
    else:
        node.outputs = (*node.outputs, stranger)
    with pytest.raises(GraphError, match="small"):
        graph.verify()


def test_closed_graphs_take_no_nodes() -> None:
    graph, x, _ = small_graph()
    graph.closed = True
    with pytest.raises(LeakedTracerError, match="small"):
        graph.add(negative.primitive, (x,), {}, [x.aval])


# --------------------------------------------------------------------------------------------- extents


def symbols(function: Callable[..., Any], *arrays: Array) -> list[tuple[str, ...]]:
    graph = passes.simplify(jit(function).graph(*arrays))
    extents = Extents(graph)
    return [extents.shape(a) for a in (*graph.inputs, *graph.outputs)]


def test_axes_that_must_agree_share_a_symbol() -> None:
    ones = np.ones
    assert symbols(lambda x, y: x + y, ones((2, 3)), ones((2, 3))) == [("n0", "n1")] * 3
    assert symbols(lambda x, y: x + y, ones((2, 3)), ones(3)) == [("n0", "n1"), ("n1",), ("n0", "n1")]
    assert symbols(lambda x, y: x + y, ones((2, 1)), ones((1, 3))) == [("n0", "1"), ("1", "n1"), ("n0", "n1")]
    assert symbols(lambda x, y: x @ y, ones((2, 3)), ones((3, 4))) == [("n0", "n1"), ("n1", "n2"), ("n0", "n2")]
    assert symbols(lambda x: x.T, ones((3, 3))) == [("n0", "n1"), ("n1", "n0")]
    assert symbols(lambda x: x.sum(axis=1), ones((2, 3))) == [("n0", "n1"), ("n0",)]
    assert symbols(lambda x: x[:, None], ones(3)) == [("n0",), ("n0", "1")]


def test_axes_that_happen_to_agree_do_not() -> None:
    assert symbols(lambda x, y: (x * 2, y * 2), np.ones(3), np.ones(3)) == [("n0",), ("n1",), ("n0",), ("n1",)]
    assert symbols(lambda x: jg.concatenate([x, x]), np.ones(3))[1] != ("n0",)


@examples(25)
@given(programs())
def test_symbols_stand_for_the_extents(program: Program) -> None:
    for graph, _ in graphs_of(program):
        extents = Extents(passes.simplify(graph))
        atoms = [*graph.inputs, *(v for n in graph.nodes for v in n.outputs)]
        for atom in atoms:
            for symbol, extent in zip(extents.shape(atom), atom.aval.shape, strict=True):
                assert (1 if symbol == "1" else extents.values[int(symbol[1:])]) == extent


def test_reshapes_that_only_move_units() -> None:
    assert unit_reshape((2, 1, 3), (2, 3, 1)) == [(0, 0), (1, 2)]
    assert unit_reshape((1,), ()) == []
    assert unit_reshape((2, 3), (3, 2)) is None
    assert unit_reshape((6,), (2, 3)) is None


def test_axes_of_a_basic_index() -> None:
    everything = (None, None, None)
    assert index_axes((1, None, (0, 2, None)), 3) == [(None, 0, 1), (1, 1, (0, 2, None)), (2, 2, everything)]


def test_extents_of_traced_values_are_ints_and_pickle() -> None:
    import copy
    import pickle

    variable = Variable(make_aval((3,), np.dtype(float)))
    extent = Extent(3, variable, 0)
    assert extent == 3
    assert type(extent + 1) is int
    assert type(copy.deepcopy(extent)) is int
    assert pickle.loads(pickle.dumps(extent)) == 3


# --------------------------------------------------------------------------------------------- emission


@examples(40)
@given(programs())
def test_executables_give_what_the_graph_means(program: Program) -> None:
    for graph, arrays in graphs_of(program):
        executable = Executable("program", passes.simplify(graph))
        before = [a.copy() for a in arrays]
        expected = interpret(graph, arrays)
        assert_same(executable(arrays), expected)
        assert_same(Executable("unsimplified", graph)(arrays), expected)
        assert_same(arrays, before, exact=True)


@examples(30)
@given(programs())
def test_the_same_graph_gives_the_same_text(program: Program) -> None:
    arrays = program.arrays()
    function = jg.value_and_grad(program.scalar)
    first, second = (jit(function).source(*arrays) for _ in range(2))
    assert first == second


def test_text_does_not_depend_on_the_process() -> None:
    text = """
        import hashlib, numpy as np, jitgrad as jg
        from test_jit import COMPILED, ALIASES, scalar_of
        from jitgrad import config
        from jitgrad.transforms.jit import jit
        with config.override(kernels="python"):
            texts = [jit(jg.value_and_grad(f)).source(*args) for f, args in COMPILED.values()]
            x = np.arange(1.0, 7.0).reshape(2, 3)
            texts += [jit(jg.grad(scalar_of(f))).source(x) for f in ALIASES.values()]
        print(hashlib.sha256("".join(texts).encode()).hexdigest())
    """
    assert len({test_jit.run_python(text, PYTHONHASHSEED=seed) for seed in ("1", "2", "3")}) == 1


def test_text_is_readable() -> None:
    source = jit(lambda x, y: (x * y).sum()).source(np.ones(3), np.ones(3))
    lines = [line for line in source.splitlines(keepends=True) if not line.lstrip().startswith("#")]
    assert "".join(lines) == (
        "def _lambda__kernel(a0, a1, extents, numbers):\n"
        "    n0 = load(extents, 0)\n"
        "    sum4 = float64(0.0)\n"
        "    for i0 in range(n0):\n"
        "        t1 = load(a0, i0)\n"
        "        t2 = load(a1, i0)\n"
        "        t3 = t1 * t2\n"
        "        sum4 = radd(sum4, t3)\n"
        "    r5 = float64(sum4)\n"
        "    return r5\n"
    )


def loops_of(function: Callable[..., Any], *arrays: Array) -> list[list[str]]:
    """For each stage of the only kernel: what its loops and calls write."""
    graph = passes.simplify(jit(function).graph(*arrays))
    assert all(map(can_fuse, graph.nodes))
    return [
        ["call" if isinstance(r, Call) else "+".join(s.kind for s in r.sinks) for r in stage]
        for stage in plan(graph).stages
    ]


def test_value_and_gradient_share_a_loop() -> None:
    x = np.ones(5)
    assert loops_of(jg.value_and_grad(lambda v: (jg.sin(v) ** 2).sum()), x) == [["reduce+store"]]
    assert loops_of(lambda v: v - v.mean(), x) == [["reduce"], ["store"]]
    assert loops_of(lambda v: (v.sum(), v.max(), (v * v).sum()), x) == [["reduce+reduce+reduce"]]
    assert loops_of(lambda a, v: jg.tanh(a @ v), np.ones((5, 5)), x) == [["call"], ["store"]]


def test_every_value_is_computed_before_it_is_read() -> None:
    """Stages: what is read from memory was written in an earlier one."""
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(6, 4)), rng.normal(size=4)

    def f(w: Any, X: Any) -> Any:
        z = X @ w
        return (jg.exp(z - z.max()) / jg.exp(z - z.max()).sum() * z).sum() + (X * X).sum(axis=0) @ w

    graph = passes.simplify(jit(jg.value_and_grad(f)).graph(w, X))
    made = plan(graph)
    written: dict[Any, int] = {}
    for number, stage in enumerate(made.stages):
        for item in stage:
            for target in [s.target for s in item.sinks] if isinstance(item, Loop) else item.node.outputs:
                written[target] = number
    for variable, first in made.memory.items():
        if variable in written:
            assert written[variable] < first
    emitted = emit("f", made)
    assert "\ndef f(a0, a1, extents, numbers, " in emitted.source
    assert len(emitted.signature) == 4 + len(emitted.outputs) + 1  # one working memory for all temporaries


def test_numbers_and_extents_are_arguments() -> None:
    def source(n: int, c: float) -> str:
        return jit(lambda x: (x[1:] * c).sum() + x[2 * (n // 3)]).source(np.ones(n))

    assert source(9, 0.3) == source(12, 0.7)
    assert "0.3" not in source(9, 0.3)


def test_host_operations_stand_between_kernels() -> None:
    root = jg.primitive(np.cbrt, vjp=lambda g, out, x: g / (3.0 * out**2), name="root")

    def f(x: Any) -> Any:
        return root(root(x * 2) + 1.0) + x

    x = np.array([3.0, 1.0, 2.0])
    graph = passes.simplify(jit(f).graph(x))
    executable = Executable("mixed", graph)
    kinds = [type(step).__name__ for step, _, _ in executable.steps]
    assert kinds.count("HostStep") >= 2
    assert kinds[0] == kinds[-1] == "FusedStep"
    assert_same(executable([x]), [np.cbrt(np.cbrt(x * 2) + 1.0) + x])


def test_repeated_numbers() -> None:
    graph = passes.simplify(jit(lambda x: x * jg.full((3,), 2.0) + jg.zeros(3)).graph(np.ones(3)))
    assert all(n.primitive is not expand or isinstance(n.inputs[0], Constant) for n in graph.nodes)
    assert_same(interpret(graph, [np.ones(3)]), [np.full(3, 2.0)])


# --------------------------------------------------------------------------------------------- gradients of neighbours


def _curvature(u: Any) -> Any:
    return np.sum((u[2:] - 2.0 * u[1:-1] + u[:-2]) ** 2)


def _curvature_slope(u: Array) -> Array:
    bend = 2.0 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    slope = np.zeros_like(u)
    slope[2:] += bend
    slope[1:-1] -= 2.0 * bend
    slope[:-2] += bend
    return slope


@pytest.mark.parametrize("n", [3, 4, 5, 1023, 1024, 1025, 1026, 1027, 2050, 3074])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_neighbours_around_the_blocks(n: int, dtype: Any) -> None:
    u = np.random.default_rng(n).normal(size=n).astype(dtype)
    tolerance = 1e-13 if dtype == np.float64 else 2e-6
    value, slope = jit(jg.value_and_grad(_curvature))(u)
    exact = u.astype(np.float64)
    np.testing.assert_allclose(value, _curvature(exact), rtol=1e-5 if dtype == np.float32 else 1e-12)
    np.testing.assert_allclose(slope, _curvature_slope(exact), rtol=tolerance, atol=20 * tolerance)


def test_neighbours_of_a_grid() -> None:
    u = np.random.default_rng(1).normal(size=(7, 1030))

    def energy(u: Any) -> Any:
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4.0 * u[1:-1, 1:-1]
        return np.sum(around * around)

    around = 2.0 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4.0 * u[1:-1, 1:-1])
    slope = np.zeros_like(u)
    slope[2:, 1:-1] += around
    slope[:-2, 1:-1] += around
    slope[1:-1, 2:] += around
    slope[1:-1, :-2] += around
    slope[1:-1, 1:-1] -= 4.0 * around
    np.testing.assert_allclose(jit(jg.grad(energy))(u), slope, rtol=1e-12, atol=1e-12)


def test_additions_to_neighbours_have_loops_of_their_own() -> None:
    source = jit(jg.value_and_grad(_curvature)).source(np.ones(9))
    assert source.count("for i0 in range(first, past):") == 3
    # but an exponential is not computed three times
    dear = jit(jg.grad(lambda u: np.sum(np.exp(u[2:] - 2.0 * u[1:-1] + u[:-2])))).source(np.ones(9))
    assert dear.count(" = exp(") == 1


def test_functions_are_computed_once_for_two_places() -> None:
    x = np.linspace(-1.0, 1.0, 7)
    e = np.exp(x)

    def twice(x: Any) -> Any:
        return np.sum(np.exp(x)[1:] * np.exp(x)[:-1])

    function = jit(jg.value_and_grad(twice))
    assert function.source(x).count(" = exp(") == 1
    value, slope = function(x)
    np.testing.assert_allclose(value, np.sum(e[1:] * e[:-1]), rtol=1e-14)
    np.testing.assert_allclose(slope, e * (np.append(e[1:], 0.0) + np.append(0.0, e[:-1])), rtol=1e-14)
    # joined, and taken apart again by the gradient
    joined = jit(jg.value_and_grad(lambda x: np.sum(np.tanh(np.concatenate([x, x * x])) ** 2)))
    assert joined.source(x).count(" = tanh(") == 1
    t, u = np.tanh(x), np.tanh(x * x)
    np.testing.assert_allclose(joined(x)[1], 2 * t * (1 - t * t) + 4 * x * u * (1 - u * u), rtol=1e-13, atol=1e-15)
    # an element and that of the transpose are far from each other
    assert jit(lambda a: np.exp(a) * np.exp(a).T).source(np.ones((3, 3))).count(" = exp(") == 2


@pytest.mark.parametrize("n", [0, 2, 5])
def test_what_lacks_an_outer_axis_is_computed_once(n: int) -> None:
    a = np.random.default_rng(3).standard_normal((n, 4)) + 2.0
    function = jit(jg.grad(lambda a: np.sum(np.sqrt(np.sum(a * a, axis=0) + 1.0))))
    innermost = function.source(a).split("for i1 in ")[1:]
    assert innermost
    assert not any("sqrt(" in part.split("for ")[0] or " / " in part.split("for ")[0] for part in innermost)
    np.testing.assert_allclose(function(a), a / np.sqrt(np.sum(a * a, axis=0) + 1.0), rtol=1e-14)
    # what lacks the inner axis alone is LLVM's to move, and additions are not worth a store and a load
    cheap = jit(lambda a, b: a * (b + 1.0)).source(a, np.ones((1, 4)))
    assert cheap.count("for i0") == 1


def test_gradients_of_views_of_a_number_add_up() -> None:
    """A number that two parts are added to needs memory, as an array does."""

    def function(x: Any) -> Any:
        y = x * 1.0
        return jg.sum(jg.tanh(y[None]) * y[None]) + jg.sum(y[None, None])

    wanted = np.tanh(0.3) + 0.3 / np.cosh(0.3) ** 2 + 1.0
    np.testing.assert_allclose(jit(jg.grad(function))(0.3), wanted, rtol=1e-14)


# --------------------------------------------------------------------------- reshapes within loops


def _shape_of(draw: Any, size: int) -> tuple[int, ...]:
    shape = []
    while size > 1:
        shape.append(draw(st.sampled_from([k for k in range(2, size + 1) if size % k == 0])))
        size //= shape[-1]
    if draw(st.booleans()):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@given(st.data())
def test_reshapes_between_other_movements(data: st.DataObject) -> None:
    """Axes that stay, split, merge or cross, as in NumPy, where a loop has to find each element."""
    size = data.draw(st.sampled_from([4, 8, 12, 24, 36, 64]))
    shapes = [_shape_of(data.draw, size) for _ in range(3)]
    orders = [data.draw(st.permutations(range(len(s)))) for s in shapes]
    flips = [data.draw(st.integers(0, len(s) - 1)) if s else None for s in shapes]

    def f(xp: Any, x: Any) -> Any:
        y = x
        for shape, order, axis in zip(shapes, orders, flips, strict=True):
            y = xp.transpose(xp.reshape(y, shape), order)
            y = xp.flip(y, axis=axis) if axis is not None else y
            y = xp.tanh(y) + y if axis == 0 else y
        return xp.reshape(y, (-1,)) * xp.reshape(xp.reshape(x, shapes[0]), (-1,))

    x = np.linspace(-1.0, 2.0, size)
    with kernels("python"):
        np.testing.assert_allclose(jg.jit(lambda x: f(jg, x))(x), f(np, x), rtol=1e-13)


def test_jacobians_by_a_matrix() -> None:
    """The seeds are reshaped on their way in and out."""
    a = np.random.default_rng(0).normal(size=(5, 5))
    identity = np.eye(5)
    expected = np.einsum("ip,qj->ijpq", identity, a) + np.einsum("ip,jq->ijpq", a, identity)
    for jacobian in (jg.jacrev, jg.jacfwd):
        jitted = jg.jit(jacobian(lambda x: x @ x))
        np.testing.assert_allclose(jitted(a), expected, rtol=1e-13)
        assert (
            "//" not in jitted.source(a).rpartition("for i0")[2]
        )  # axes that stay, and such as merge, need no division
