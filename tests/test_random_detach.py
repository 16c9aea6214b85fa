"""Random graphs with shared nodes, views and detach at random places, against finite differences.

A graph is drawn as a list of steps and run twice: by jitgrad, and by NumPy. What was detached is held constant at its
original value in NumPy's run, however the leaves are moved: that is what a gradient through ``detach()`` means.
Every step is an analytic function, so that NumPy also gives derivatives by complex steps, to the last digits: with them
a gradient can be part of the function whose differences are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, currently_in_test_context, event, given, note
from hypothesis import strategies as st
from strategies import directional_derivative, examples, kernels

import jitgrad as jg

Array = np.ndarray[Any, Any]

SHAPES = ((3,), (2, 3), ())
LARGEST = 8.0  # a step with larger results is followed by tanh: large numbers would only test rounding

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sin": (jg.sin, np.sin),
    "tanh": (jg.tanh, np.tanh),
    "square": (jg.square, np.square),
    "negative": (jg.negative, np.negative),
    "exp": (lambda x: jg.exp(-jg.square(x)), lambda x: np.exp(-np.square(x))),
    "logistic": (jg.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / (b * b + 2.0),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "flat": lambda x: x.reshape(-1),
    "turned": lambda x: x.T,
    "reversed": lambda x: x[..., ::-1] if x.ndim else x[...],
    "from 1": lambda x: x[1:] if x.ndim and x.shape[0] > 1 else x[...],
    "last": lambda x: x[..., -1] if x.ndim else x[...],
    "new axis": lambda x: x[None] if x.ndim < 3 else x[0],
}
MOVES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (jg.sum, np.sum),
    "mean of rows": (
        lambda x: jg.mean(x, axis=-1) if x.ndim else x * 1.0,
        lambda x: np.mean(x, axis=-1) if x.ndim else x * 1.0,
    ),
    "running sum": (jg.cumsum, np.cumsum),
    "repeated elements": (lambda x: x.reshape(-1)[[0, -1, 0]], lambda x: x.reshape(-1)[[0, -1, 0]]),
    "twice": (
        lambda x: jg.concat((x.reshape(-1), x.reshape(-1)[:1])),
        lambda x: np.concatenate((x.reshape(-1), x.reshape(-1)[:1])),
    ),
    "gram": (
        lambda x: x.reshape(1, -1).T @ x.reshape(1, -1),
        lambda x: x.reshape(1, -1).T @ x.reshape(1, -1),
    ),
}


class Step(NamedTuple):
    """A function, by name, of the values with these numbers (the leaves come first)."""

    kind: str
    name: str
    sources: tuple[int, ...]


names = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY))),
    st.tuples(st.just("binary"), st.sampled_from(sorted(BINARY))),
    st.tuples(st.just("view"), st.sampled_from(sorted(VIEWS))),
    st.tuples(st.just("move"), st.sampled_from(sorted(MOVES))),
    st.tuples(st.just("detach"), st.just("")),
)  # so that a fifth of the steps is a detach
small = st.integers(0, 999)


class Drawn(NamedTuple):
    """A graph, the point where it is differentiated, and the weights of its values in the result."""

    steps: tuple[Step, ...]
    point: tuple[Array, ...]
    weights: tuple[float, ...]
    directions: tuple[tuple[Array, ...], tuple[Array, ...]]


def fits(a: Array, b: Array) -> bool:
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return True


@st.composite
def graphs(draw: st.DrawFn, most: int = 14) -> Drawn:
    rng = np.random.default_rng(draw(small))
    point = tuple(rng.uniform(-1.5, 1.5, s) for s in SHAPES)
    steps: list[Step] = []
    values = list(point)
    for kind, name in draw(st.lists(names, min_size=most // 2, max_size=most)):
        # mostly something recent, so that graphs get deep; anything may be used again
        nearest = min(len(values), 4) if draw(st.booleans()) else len(values)
        first = len(values) - 1 - draw(small) % nearest
        sources: tuple[int, ...] = (first,)
        if kind == "binary":
            others = [i for i, v in enumerate(values) if fits(values[first], v)]
            sources = (first, others[draw(small) % len(others)])
        if kind in ("unary", "binary") or values[first].size <= 24:
            add(steps, values, Step(kind, name, sources))
        if values[-1].size and np.abs(values[-1]).max() > LARGEST:
            add(steps, values, Step("unary", "tanh", (len(values) - 1,)))
    weights = tuple(rng.choice([-1.0, -0.5, 0.5, 1.0], len(values)))
    u, w = (tuple(rng.uniform(-1.0, 1.0, s) for s in SHAPES) for _ in range(2))
    return Drawn(tuple(steps), point, weights, (u, w))


def add(steps: list[Step], values: list[Array], step: Step) -> None:
    steps.append(step)
    values.append(np.asarray(applied(step, values, 1)))


def applied(step: Step, values: Sequence[Any], side: int) -> Any:
    """The value of a step, by jitgrad (``side`` 0) or NumPy (1)."""
    operands = [values[i] for i in step.sources]
    match step.kind:
        case "unary":
            return UNARY[step.name][side](*operands)
        case "binary":
            return BINARY[step.name](*operands)
        case "view":
            return VIEWS[step.name](*operands)
        case "move":
            return MOVES[step.name][side](*operands)
        case _:
            return operands[0].detach() if side == 0 else operands[0]


def run_tensors(drawn: Drawn, leaves: Sequence[jg.Tensor]) -> jg.Tensor:
    values = list(leaves)
    for step in drawn.steps:
        values.append(applied(step, values, 0))
        if step.kind == "detach":
            assert not values[-1].requires_grad
            assert np.shares_memory(values[-1]._value, values[step.sources[0]]._value)
    total = values[0].sum() * drawn.weights[0]
    for value, weight in zip(values[1:], drawn.weights[1:], strict=True):
        total = total + value.sum() * weight
    return total


def run_arrays(drawn: Drawn, leaves: Sequence[Array], constants: dict[int, Array]) -> Any:
    """The same by NumPy; detached values come from ``constants``, which learns those it does not have."""
    values = [np.asarray(v) for v in leaves]
    for number, step in enumerate(drawn.steps):
        value = np.asarray(applied(step, values, 1))
        values.append(constants.setdefault(number, value) if step.kind == "detach" else value)
    return sum(np.sum(v) * w for v, w in zip(values, drawn.weights, strict=True))


def moved(point: Sequence[Array], direction: Sequence[Array], by: complex) -> list[Array]:
    return [p + by * d for p, d in zip(point, direction, strict=True)]


def inner(a: Sequence[Any], b: Sequence[Any]) -> float:
    return float(sum(np.vdot(x, y) for x, y in zip(a, b, strict=True)))


def gradients(total: jg.Tensor, leaves: Sequence[jg.Tensor], **options: Any) -> tuple[jg.Tensor, ...]:
    return jg.autograd.grad(total, list(leaves), materialize_grads=True, **options)  # type: ignore[return-value]


def close(found: float, slope: float, error: float, scale: float) -> None:
    usable = error < 1e-6 * max(1.0, abs(slope))  # else the differences say nothing
    if currently_in_test_context():
        assume(usable)
    assert usable
    assert abs(found - slope) <= 1e-9 * max(1.0, abs(slope), scale) + 10.0 * error, f"{found}, by differences {slope}"


def check_gradient(drawn: Drawn) -> None:
    """The gradient is that of the function whose detached values are constants."""
    constants: dict[int, Array] = {}
    value = run_arrays(drawn, drawn.point, constants)
    leaves = [jg.tensor(p, requires_grad=True) for p in drawn.point]
    total = run_tensors(drawn, leaves)
    np.testing.assert_allclose(total.item(), value, rtol=1e-11, atol=1e-11)
    total.backward()
    found = [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in leaves]
    for direction in drawn.directions:
        slope, error = directional_derivative(
            lambda t, along=direction: float(run_arrays(drawn, moved(drawn.point, along, t), constants))
        )
        close(inner(found, direction), slope, error, inner([abs(g) for g in found], [abs(d) for d in direction]))


def check_nested(drawn: Drawn) -> None:
    """The gradient of a function that contains its own gradient: f(x) + <w, f'(x)>."""
    constants: dict[int, Array] = {}
    run_arrays(drawn, drawn.point, constants)
    u, w = drawn.directions

    def function(t: float) -> float:
        at = moved(drawn.point, u, t)
        value = run_arrays(drawn, at, constants)
        slope = run_arrays(drawn, moved(at, w, 1e-30j), constants).imag / 1e-30
        return float(value + slope)

    leaves = [jg.tensor(p, requires_grad=True) for p in drawn.point]
    total = run_tensors(drawn, leaves)
    first = gradients(total, leaves, create_graph=True)
    for direction, gradient in zip(w, first, strict=True):
        total = total + (gradient * direction).sum()
    found = [g.numpy(force=True) for g in gradients(total, leaves)]
    slope, error = directional_derivative(function)
    close(inner(found, u), slope, error, inner([abs(g) for g in found], [abs(d) for d in u]))


def classify(drawn: Drawn) -> None:
    note("\n".join(map(str, drawn.steps)))
    uses = [i for step in drawn.steps for i in step.sources]
    event(f"shared nodes: {len(uses) > len(set(uses))}")
    event(f"detached: {sum(step.kind == 'detach' for step in drawn.steps)}")


@given(drawn=graphs())
@examples(200)
def test_gradient_with_detached_values_held_constant(drawn: Drawn) -> None:
    classify(drawn)
    with kernels("python"):
        check_gradient(drawn)


@given(drawn=graphs(10))
@examples(60)
def test_nested_gradients(drawn: Drawn) -> None:
    classify(drawn)
    with kernels("python"):
        check_nested(drawn)


def reached(drawn: Drawn) -> list[set[int]]:
    """The leaves that each value depends on by a path without a detach."""
    found = [{i} for i in range(len(drawn.point))]
    for step in drawn.steps:
        found.append(set() if step.kind == "detach" else set().union(*(found[i] for i in step.sources)))
    return found


@given(drawn=graphs(8), taken=st.tuples(small, small), captured=st.sets(st.integers(0, 2)), which=st.integers(1, 3))
@examples(60)
def test_what_has_a_gradient_under_jit(drawn: Drawn, taken: tuple[int, int], captured: set[int], which: int) -> None:
    """Two results of one jitted function, either or both of them differentiated: a leaf that they do not depend on, or only
    by detached values, has no gradient; whether it is an argument or captured."""
    classify(drawn)
    leaves = [jg.tensor(p, requires_grad=True) for p in drawn.point]
    arguments = [i for i in range(len(leaves)) if i not in captured]
    numbers = [n % (len(leaves) + len(drawn.steps)) for n in taken]

    def results(given: Sequence[jg.Tensor]) -> list[jg.Tensor]:
        values = list(given)
        for step in drawn.steps:
            values.append(applied(step, values, 0))
        return [values[n].sum() * 2.0 for n in numbers]

    def function(*given: jg.Tensor) -> list[jg.Tensor]:
        given_to = dict(zip(arguments, given, strict=True))
        return results([given_to.get(i, leaf) for i, leaf in enumerate(leaves)])

    with kernels("python"):
        jitted = jg.jit(function)(*[leaves[i] for i in arguments])
        plain = results(leaves)
        used = [k for k in range(2) if which >> k & 1]
        expected = set().union(*(reached(drawn)[numbers[k]] for k in used))
        if not arguments and not any(
            reached(drawn)[n] for n in numbers
        ):  # neither tensors in nor anything to lead back to
            assert [type(r) for r in jitted] == [float, float]
            return
        for k in range(2):
            assert jitted[k].requires_grad is bool(reached(drawn)[numbers[k]])
        if not expected:
            return
        roots, same = ([r[k] for k in used if r[k].requires_grad] for r in (jitted, plain))
        found = jg.autograd.grad(roots, leaves, allow_unused=True)
        for i, (gradient, other) in enumerate(
            zip(found, jg.autograd.grad(same, leaves, allow_unused=True), strict=True)
        ):
            assert (gradient is not None) is (i in expected)
            if gradient is not None:
                np.testing.assert_allclose(gradient.numpy(), other.numpy(), rtol=1e-12, atol=1e-12)  # type: ignore[union-attr]


def fixed(detached: Sequence[int]) -> Drawn:
    """One graph of every kind of step, with a detach after some of them; always the same, for compiled kernels."""
    rng = np.random.default_rng(7)
    point = tuple(rng.uniform(-1.5, 1.5, s) for s in SHAPES)
    steps: list[Step] = []
    values = list(point)
    kinds = [("unary", n) for n in UNARY] + [("view", n) for n in VIEWS] + [("move", n) for n in MOVES]
    for number, (kind, name) in enumerate(kinds):
        source = number % len(SHAPES) if number % 2 else len(values) - 1
        add(steps, values, Step(kind, name, (source,)))
        if number in detached:
            add(steps, values, Step("detach", "", (len(values) - 1,)))
        add(steps, values, Step("binary", "*", (len(values) - 1, 2)))
        add(steps, values, Step("unary", "tanh", (len(values) - 1,)))
    for number, name in enumerate(BINARY):
        add(steps, values, Step("binary", name, (1, number % len(SHAPES))))
    weights = tuple(rng.choice([-1.0, -0.5, 0.5, 1.0], len(values)))
    u, w = (tuple(rng.uniform(-1.0, 1.0, s) for s in SHAPES) for _ in range(2))
    return Drawn(tuple(steps), point, weights, (u, w))


@pytest.mark.parametrize("detached", [(), (0, 5), (3, 8, 14), tuple(range(0, 18, 2))])
def test_compiled(detached: tuple[int, ...]) -> None:
    with kernels("compiled"):
        check_gradient(fixed(detached))
        check_nested(fixed(detached))


def test_the_oracle_sees_a_missing_detach() -> None:
    """A gradient that flows through what should be constant does not pass."""
    right = fixed((0, 5))
    steps = tuple(Step("view", "reversed", s.sources) if s.kind == "detach" else s for s in right.steps)
    with kernels("python"):
        leaves = [jg.tensor(p, requires_grad=True) for p in right.point]
        wrong = gradients(run_tensors(right._replace(steps=steps), leaves), leaves)
        true = gradients(run_tensors(right, leaves), leaves)
    assert any(not np.allclose(a.numpy(), b.numpy()) for a, b in zip(wrong, true, strict=True))
