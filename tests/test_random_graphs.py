"""Gradients of random expressions, first and second order, against derivatives of a plain NumPy re-implementation.

A program is a list of instructions on earlier results: shared values, views, broadcasting, gathers, reductions, products,
and detach in random places. The oracle runs the same program in NumPy on complex numbers: with a step of 1e-200 along the
imaginary axis the derivative has no rounding error at all. A detached value is held constant at its original value
there, and so are conditions. Second derivatives are central differences of these exact first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from strategies import directional_derivative, examples, kernels

import jitgrad as jg
from jitgrad.tensor import Tensor

Array = np.ndarray[Any, Any]
STEP = 1e-200
BOUND = 6.0  # absolute values above this are squashed, so that differences stay accurate


# --------------------------------------------------------------------------------------------- programs


@dataclass(frozen=True)
class Instruction:
    """One operation on earlier results, by name, with what else it takes; ``detached``: the gradient ends here."""

    name: str
    sources: tuple[int, ...]
    extra: Any
    detached: bool

    def __repr__(self) -> str:
        more = "" if self.extra is None else f", {self.extra!r}"
        return f"{self.name}({', '.join(f'v{s}' for s in self.sources)}{more}){'.detach()' if self.detached else ''}"


@dataclass
class Program:
    leaves: list[Array]
    instructions: list[Instruction]
    weights: list[Array]

    def __repr__(self) -> str:
        lines = [f"v{i} = leaf{a.shape}" for i, a in enumerate(self.leaves)]
        lines += [f"v{i + len(self.leaves)} = {ins}" for i, ins in enumerate(self.instructions)]
        return "\n".join(["", *lines])


# name: (in jitgrad, in NumPy for complex numbers, a bound for the result where the operand is bounded by b)
UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[float], float]]] = {
    "sin": (jg.sin, np.sin, lambda b: 1.0),
    "cos": (jg.cos, np.cos, lambda b: 1.0),
    "tanh": (jg.tanh, np.tanh, lambda b: 1.0),
    "negative": (lambda x: -x, lambda x: -x, lambda b: b),
    "scaled": (lambda x: 0.5 * x - 1, lambda x: 0.5 * x - 1, lambda b: 0.5 * b + 1),
    "square": (lambda x: x**2, lambda x: x * x, lambda b: b * b),
    "cube": (lambda x: x**3, lambda x: x * x * x, lambda b: b**3),
    "reciprocal": (lambda x: 1.0 / (2.0 + x * x), lambda x: 1.0 / (2.0 + x * x), lambda b: 0.5),
    "root": (lambda x: jg.sqrt(1.0 + x * x), lambda x: np.sqrt(1.0 + x * x), lambda b: 1.0 + b),
    "log": (lambda x: jg.log(1.5 + x * x), lambda x: np.log(1.5 + x * x), lambda b: 1.5 + b),
    "bell": (lambda x: jg.exp(-(x * x)), lambda x: np.exp(-(x * x)), lambda b: 1.0),
    "copy": (jg.copy, lambda x: x.copy(), lambda b: b),
}
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[float, float], float]]] = {
    "add": (lambda x, y: x + y, lambda x, y: x + y, lambda a, b: a + b),
    "subtract": (lambda x, y: x - y, lambda x, y: x - y, lambda a, b: a + b),
    "multiply": (lambda x, y: x * y, lambda x, y: x * y, lambda a, b: a * b),
    "divide": (lambda x, y: x / (1.5 + y * y), lambda x, y: x / (1.5 + y * y), lambda a, b: a),
}


def shape_after(name: str, extra: Any, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a result, as NumPy has it."""
    return np.shape(in_numpy(name, extra, None, *[np.zeros(s) for s in shapes]))


def in_numpy(name: str, extra: Any, frozen: Any, *xs: Array) -> Array:
    """One instruction on (complex) ndarrays; ``frozen`` holds the condition that was met at the original point."""
    x = xs[0]
    match name:
        case _ if name in UNARY:
            return UNARY[name][1](x)
        case _ if name in BINARY:
            return BINARY[name][1](*xs)
        case "slice" | "gather" | "mask":
            return x[extra]
        case "transpose":
            return x.transpose(extra)
        case "reshape":
            return x.reshape(extra)
        case "flip":
            return np.flip(x, extra)
        case "broadcast":
            return np.broadcast_to(x, extra)
        case "new axis":
            return np.expand_dims(x, extra)
        case "diagonal":
            return np.diagonal(x)
        case "sum":
            return x.sum(axis=extra[0], keepdims=extra[1])
        case "mean":
            return x.mean(axis=extra[0], keepdims=extra[1])
        case "gram":
            return x @ x.T
        case "matmul":
            return xs[0] @ xs[1]
        case "stack":
            return np.stack(xs)
        case "concatenate":
            return np.concatenate([xs[0].reshape(-1), xs[1].reshape(-1)])
        case "where":
            return np.where(extra, xs[0], xs[1])
        case "choose":
            condition = np.real(x) > 0 if frozen is None else frozen
            return np.where(condition, xs[0], 0.5 * xs[1])
    raise AssertionError(name)


def in_jitgrad(name: str, extra: Any, *xs: Any) -> Any:
    """One instruction on tensors."""
    x = xs[0]
    match name:
        case _ if name in UNARY:
            return UNARY[name][0](x)
        case _ if name in BINARY:
            return BINARY[name][0](*xs)
        case "slice" | "gather" | "mask":
            return x[extra]
        case "transpose":
            return jg.permute_dims(x, extra)
        case "reshape":
            return x.reshape(extra)
        case "flip":
            return jg.flip(x, axis=extra)
        case "broadcast":
            return jg.broadcast_to(x, extra)
        case "new axis":
            return jg.expand_dims(x, axis=extra)
        case "diagonal":
            return jg.diagonal(x)
        case "sum":
            return jg.sum(x, axis=extra[0], keepdims=extra[1])
        case "mean":
            return jg.mean(x, axis=extra[0], keepdims=extra[1])
        case "gram":
            return x @ x.T
        case "matmul":
            return xs[0] @ xs[1]
        case "stack":
            return jg.stack(list(xs))
        case "concatenate":
            return jg.concat([xs[0].reshape(-1), xs[1].reshape(-1)])
        case "where":
            return jg.where(extra, xs[0], xs[1])
        case "choose":
            return jg.where(x > 0.0, xs[0], 0.5 * xs[1])
    raise AssertionError(name)


class Builder:
    """Draws a program; knows shapes and bounds of the values so far."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.shapes: list[tuple[int, ...]] = []
        self.bounds: list[float] = []
        self.instructions: list[Instruction] = []
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.leaves: list[Array] = []

    def leaf(self, shape: tuple[int, ...]) -> None:
        self.leaves.append(np.asarray(self.rng.uniform(-1.5, 1.5, shape)))
        self.shapes.append(shape)
        self.bounds.append(1.5)

    def pick(self) -> int:
        # late values more often, so that programs become deep
        return max(self.draw(st.integers(0, len(self.shapes) - 1)), self.draw(st.integers(0, len(self.shapes) - 1)))

    def emit(self, name: str, sources: tuple[int, ...], extra: Any, bound: float) -> None:
        detached = self.draw(st.integers(0, 7)) == 7
        self.instructions.append(Instruction(name, sources, extra, detached))
        self.shapes.append(shape_after(name, extra, *[self.shapes[s] for s in sources]))
        self.bounds.append(bound)
        if bound > BOUND:
            self.emit("tanh", (len(self.shapes) - 1,), None, 1.0)

    def step(self) -> None:
        i = self.pick()
        shape, bound = self.shapes[i], self.bounds[i]
        size = int(np.prod(shape, dtype=int))
        kinds = ["unary", "binary", "where", "choose", "stack", "concatenate", "reshape", "new axis"]
        if shape and size:
            kinds += ["slice", "gather", "mask", "transpose", "flip", "sum", "mean", "broadcast"]
        if len(shape) == 2:
            kinds += ["diagonal", "gram", "matmul"]
        kind = self.draw(st.sampled_from(kinds))
        draw, rng = self.draw, self.rng
        match kind:
            case "unary":
                name = draw(st.sampled_from(sorted(UNARY)))
                self.emit(name, (i,), None, UNARY[name][2](bound))
            case "binary" | "where" | "choose":
                k = self.partner(i)
                a, b = (i, k) if draw(st.booleans()) else (k, i)
                if kind == "binary":
                    name = draw(st.sampled_from(sorted(BINARY)))
                    self.emit(name, (a, b), None, BINARY[name][2](self.bounds[a], self.bounds[b]))
                else:
                    full = np.broadcast_shapes(self.shapes[a], self.shapes[b])
                    condition = rng.random(full) < 0.5 if kind == "where" else None
                    self.emit(kind, (a, b), condition, max(self.bounds[a], self.bounds[b]))
            case "stack":
                if size <= 12 and len(shape) < 3:
                    same = [k for k, s in enumerate(self.shapes) if s == shape]
                    k = draw(st.sampled_from(same))
                    self.emit("stack", (i, k), None, max(bound, self.bounds[k]))
            case "concatenate":
                k = self.pick()
                if size + np.prod(self.shapes[k]) <= 24:
                    self.emit("concatenate", (i, k), None, max(bound, self.bounds[k]))
            case "slice":
                index = tuple(
                    draw(
                        st.one_of(
                            st.slices(n).filter(lambda s, n=n: len(range(*s.indices(n))) > 0), st.integers(-n, n - 1)
                        )
                    )
                    for n in shape[: draw(st.integers(1, len(shape)))]
                )
                self.emit("slice", (i,), (*index, ...), bound)
            case "gather":
                self.emit("gather", (i,), rng.integers(-shape[0], shape[0], draw(st.integers(1, 4))), bound)
            case "mask":
                self.emit("mask", (i,), rng.random(shape[0]) < 0.6, bound)
            case "transpose":
                self.emit("transpose", (i,), tuple(draw(st.permutations(range(len(shape))))), bound)
            case "flip":
                self.emit("flip", (i,), draw(st.integers(-len(shape), len(shape) - 1)), bound)
            case "reshape":
                self.emit("reshape", (i,), draw(st.sampled_from([(-1,), (1, *shape), (*shape, 1), shape[::-1]])), bound)
            case "new axis":
                if len(shape) < 3:
                    self.emit("new axis", (i,), draw(st.integers(0, len(shape))), bound)
            case "broadcast":
                if size <= 12 and len(shape) < 3:
                    self.emit("broadcast", (i,), (2, *shape), bound)
            case "diagonal":
                self.emit("diagonal", (i,), None, bound)
            case "gram":
                self.emit("gram", (i,), None, shape[1] * bound**2)
            case "matmul":
                fitting = [k for k, s in enumerate(self.shapes) if s and s[0] == shape[1] and len(s) < 3]
                if fitting:
                    k = draw(st.sampled_from(fitting))
                    self.emit("matmul", (i, k), None, shape[1] * bound * self.bounds[k])
            case "sum" | "mean":
                axis = draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
                over = size if axis is None else shape[axis]
                extra = (axis, draw(st.booleans()))
                self.emit(kind, (i,), extra, bound * (over if kind == "sum" else 1))

    def partner(self, i: int) -> int:
        """A value that broadcasts with this one to something small; itself if there is no other."""

        def fits(other: tuple[int, ...]) -> bool:
            try:
                return int(np.prod(np.broadcast_shapes(self.shapes[i], other), dtype=int)) <= 24
            except ValueError:
                return False

        return self.draw(st.sampled_from([k for k, s in enumerate(self.shapes) if k == i or fits(s)]))


@st.composite
def programs(draw: st.DrawFn, most: int = 12) -> Program:
    """A program whose every loose end contributes to the result."""
    b = Builder(draw)
    for _ in range(draw(st.integers(1, 3))):
        b.leaf(draw(st.sampled_from([(), (3,), (4,), (2, 3), (3, 3), (3, 1), (1, 4), (2, 2, 2)])))
    for _ in range(draw(st.integers(1, most))):
        b.step()
    weights = [b.rng.uniform(-1, 1, s) for s in b.shapes]
    return Program(b.leaves, b.instructions, weights)


# --------------------------------------------------------------------------------------------- running them


def loose_ends(program: Program) -> list[int]:
    used = {s for ins in program.instructions for s in ins.sources}
    return [i for i in range(len(program.weights)) if i not in used]


def run_numpy(program: Program, leaves: Sequence[Array], frozen: list[Any] | None) -> tuple[Any, list[Any]]:
    """The result, and what a gradient treats as constant: detached values and conditions.

    ``frozen`` is that list from the run at the original point.
    """
    values: list[Any] = list(leaves)
    kept: list[Any] = []
    for n, ins in enumerate(program.instructions):
        xs = [values[s] for s in ins.sources]
        held = None if frozen is None else frozen[n]
        constant = np.real(xs[0]) > 0 if ins.name == "choose" and frozen is None else held
        if ins.detached:
            constant = np.real(in_numpy(ins.name, ins.extra, None, *xs)) if frozen is None else held
            values.append(constant)
        else:
            values.append(in_numpy(ins.name, ins.extra, constant, *xs))
        kept.append(constant)
    return sum(np.sum(values[i] * program.weights[i]) for i in loose_ends(program)), kept


def run_jitgrad(program: Program, leaves: Sequence[Tensor]) -> Tensor:
    values: list[Tensor] = list(leaves)
    for ins in program.instructions:
        made = in_jitgrad(ins.name, ins.extra, *[values[s] for s in ins.sources])
        values.append(made.detach() if ins.detached else made)
    total: Any = 0.0
    for i in loose_ends(program):
        total = total + (values[i] * program.weights[i]).sum()
    return total  # type: ignore[no-any-return]


def exact_gradient(program: Program, leaves: Sequence[Array], frozen: list[Any]) -> list[Array]:
    """The gradient by a step along the imaginary axis, element by element."""
    gradients = []
    for i, leaf in enumerate(leaves):
        gradient = np.zeros(leaf.shape)
        for index in np.ndindex(leaf.shape):
            moved = [np.array(a, dtype=complex) for a in leaves]
            moved[i][index] += 1j * STEP
            gradient[index] = np.imag(run_numpy(program, moved, frozen)[0]) / STEP
        gradients.append(gradient)
    return gradients


def check_first(program: Program) -> None:
    value, frozen = run_numpy(program, program.leaves, None)
    leaves = [jg.tensor(a, requires_grad=True) for a in program.leaves]
    result = run_jitgrad(program, leaves)
    np.testing.assert_allclose(result.item(), value, rtol=1e-11, atol=1e-11)
    expected = exact_gradient(program, program.leaves, frozen)
    if not result.requires_grad:
        assert all(not e.any() for e in expected)
        return
    result.backward()
    for leaf, e in zip(leaves, expected, strict=True):
        actual = np.zeros(e.shape) if leaf.grad is None else leaf.grad.numpy()
        np.testing.assert_allclose(actual, e, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(e).max(initial=0.0)))


def check_second(program: Program, seed: int) -> None:
    _, frozen = run_numpy(program, program.leaves, None)
    leaves = [jg.tensor(a, requires_grad=True) for a in program.leaves]
    result = run_jitgrad(program, leaves)
    rng = np.random.default_rng(seed)
    w, v = ([rng.uniform(-1, 1, a.shape) for a in program.leaves] for _ in range(2))

    def slope(t: float) -> float:
        """The derivative along w at a point moved along v, exactly."""
        moved = [a + t * d + 1j * STEP * e for a, d, e in zip(program.leaves, v, w, strict=True)]
        return float(np.imag(run_numpy(program, moved, frozen)[0]) / STEP)

    expected, error = directional_derivative(slope)
    scale = max(1.0, abs(expected), abs(slope(0.0)))
    assert error < 1e-6 * scale, "this program is not smooth enough for the test"
    if not result.requires_grad:
        assert abs(expected) < 1e-9
        return
    result.backward(create_graph=True)
    first = [leaf.grad for leaf in leaves]
    total: Any = 0.0
    for g, d in zip(first, w, strict=True):
        if g is not None:
            total = total + (g * d).sum()
    for leaf in leaves:
        leaf.grad = None
    if not isinstance(total, Tensor) or not total.requires_grad:
        assert abs(expected) < 1e-8 * scale
        return
    total.backward()
    actual = sum(
        float(np.sum(leaf.grad.numpy() * d)) for leaf, d in zip(leaves, v, strict=True) if leaf.grad is not None
    )
    note(f"second derivative {actual}, expected {expected} within {error}")
    assert abs(actual - expected) <= 1e-5 * scale


# --------------------------------------------------------------------------------------------- the tests


@given(program=programs())
@examples(250)
def test_gradients_of_random_programs(program: Program) -> None:
    with kernels("python"):
        check_first(program)


@given(program=programs(8), seed=st.integers(0, 1000))
@examples(120)
def test_second_derivatives_of_random_programs(program: Program, seed: int) -> None:
    with kernels("python"):
        check_second(program, seed)


@given(program=programs())
@examples(25)
def test_gradients_of_random_programs_by_compiled_kernels(program: Program) -> None:
    with kernels("compiled"):
        check_first(program)


# --------------------------------------------------------------------------------------------- structural zeros

# functions that leave out the first and the last of four elements
DROPS: dict[str, Callable[[Any], Any]] = {
    "where": lambda r: jg.where(np.array([False, True, True, False]), r, 7.0),
    "slice": lambda r: r[1:3],
    "gather": lambda r: r[np.array([2, 1])],
    "mask": lambda r: r[np.array([False, True, True, False])],
    "take": lambda r: jg.take(r, np.array([1, 2]), axis=0),
    "split": lambda r: jg.split(r, [1, 3])[1],
}


def overwritten(r: Any) -> Any:
    r = r * 1.0
    r[0] = 5.0
    r[3:] = 5.0
    return r


def overwritten_by_mask(r: Any) -> Any:
    r = r * 1.0
    r[np.array([True, False, False, True])] = 5.0
    return r


DROPS["overwritten"] = overwritten
DROPS["overwritten by mask"] = overwritten_by_mask

PATHS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    # elementwise and shape operations between the root and what drops elements, and their derivative
    "nothing": (lambda r: r, np.ones_like),
    "scaled": (lambda r: 3.0 * r + 1.0, lambda r: np.full_like(r, 3.0)),
    "sine": (jg.sin, np.cos),
    "reshaped": (lambda r: r.reshape((2, 2)).reshape((4,)), np.ones_like),
    "reversed twice": (lambda r: jg.flip(jg.flip(r, axis=0), axis=0), np.ones_like),
    "negated and transposed": (lambda r: (-r).reshape((2, 2)).T.T.reshape((4,)), lambda r: -np.ones_like(r)),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("mode", ["python", "compiled"])
@pytest.mark.parametrize("path", sorted(PATHS))
@pytest.mark.parametrize("drop", sorted(DROPS))
def test_what_is_left_out_contributes_zero_past_an_infinite_derivative(
    drop: str, path: str, mode: str, create_graph: bool
) -> None:
    start = np.array([0.0, 4.0, 9.0, 0.0])
    with kernels(mode):
        x = jg.tensor(start, requires_grad=True)
        DROPS[drop](PATHS[path][0](jg.sqrt(x))).sum().backward(create_graph=create_graph)
        assert x.grad is not None
        actual = x.grad.numpy(force=True).copy()
        x.grad = None
    with np.errstate(divide="ignore"):
        slopes = PATHS[path][1](np.sqrt(start)) * 0.5 / np.sqrt(start)
    expected = np.zeros(4)
    expected[1:3] = slopes[1:3]
    np.testing.assert_allclose(actual, expected, rtol=1e-14)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("mode", ["python", "compiled"])
def test_a_zero_cotangent_alone_is_no_structural_zero(mode: str, create_graph: bool) -> None:
    with kernels(mode):
        x = jg.tensor([0.0, 4.0], requires_grad=True)
        (jg.sqrt(x) ** 2).sum().backward(create_graph=create_graph)
        assert x.grad is not None
        got = x.grad.tolist()
        x.grad = None
    assert not np.isfinite(got[0])
    assert got[1] == 1.0


SEVERAL: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    # what is made of two results, both with an infinite derivative at the zeros, and what that gives for [0, 4, 9, 0]
    "first": (lambda r, s: r[1:3].sum(), [0.0, 1 / 4, 1 / 6, 0.0]),
    "second": (lambda r, s: s[1:3].sum(), [0.0, 1 / 4, 1 / 9, 0.0]),
    "both": (
        lambda r, s: r[1:3].sum() + jg.where(np.array([False, True, False, False]), s, 0.0).sum(),
        [0, 1 / 2, 1 / 6, 0],
    ),
    "whole second": (lambda r, s: r[1:3].sum() + s.sum(), [np.inf, 1 / 2, 1 / 6 + 1 / 9, np.inf]),
    "added up": (lambda r, s: r[1:3].sum() + r[:3].sum() + s[1:2].sum(), [np.inf, 3 / 4, 1 / 3, 0.0]),
    "added up late": (lambda r, s: r.sum() + r[1:3].sum(), [np.inf, 1 / 2, 1 / 3, np.inf]),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("wrapped", [jg.jit, jg.checkpoint, lambda f: jg.jit(jg.checkpoint(f))])
@pytest.mark.parametrize("name", sorted(SEVERAL))
def test_structural_zeros_come_into_functions_of_several_results(
    name: str, wrapped: Callable[..., Any], create_graph: bool
) -> None:
    used, expected = SEVERAL[name]
    function = wrapped(lambda x: (jg.sqrt(x), x > 1.0, jg.log(x)))
    x = jg.tensor([0.0, 4.0, 9.0, 0.0], requires_grad=True)
    roots, _, logarithms = function(x)
    used(roots, logarithms).backward(create_graph=create_graph)
    assert x.grad is not None
    found = x.grad.numpy(force=True).copy()
    x.grad = None
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("wrapped", [jg.jit, jg.checkpoint])
def test_hooks_and_structural_zeros_of_several_results(wrapped: Callable[..., Any]) -> None:
    function = wrapped(lambda x: (jg.sqrt(x), jg.log(x)))
    x = jg.tensor([0.0, 1.0, 4.0], requires_grad=True)
    roots, logarithms = function(x)
    roots.register_hook(lambda g: g * 2.0)
    logarithms.register_hook(lambda g: g + np.array([0.0, 1.0, 0.0]))
    (roots[1:].sum() + logarithms[2:].sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 2.0, 0.75]


@pytest.mark.parametrize("mode", ["python", "compiled"])
def test_structural_zeros_intersect_where_cotangents_add_up(mode: str) -> None:
    with kernels(mode):
        x = jg.tensor([0.0, 0.0, 4.0], requires_grad=True)
        r = jg.sqrt(x)
        (r[1:].sum() + jg.where(np.array([False, False, True]), r, 0.0).sum()).backward()
        assert x.grad is not None
        # the first element is left out by both, the second only by where
        assert x.grad.tolist() == [0.0, np.inf, 0.5]


BROADCAST: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    # functions that repeat the roots of 0 and 4 and leave out every copy of the first; how often the second counts
    "where": (lambda r: jg.where(np.array([[False, True], [False, True]]), r, 7.0), [0.0, 2.0]),
    "column": (lambda r: jg.where(np.array([[True], [False]]), 7.0, r[:, None] * np.ones((1, 3))), [0.0, 3.0]),
    "explicit": (lambda r: jg.broadcast_to(r, (3, 2))[:, 1], [0.0, 3.0]),
    "operand": (lambda r: (r * np.array([[1.0], [2.0]]))[:, 1:], [0.0, 3.0]),
    "operand added": (lambda r: (np.zeros((3, 1)) + r)[:, 1], [0.0, 3.0]),
    "one element": (lambda r: jg.where(np.array([False, False]), r[0], r[1]), [0.0, 2.0]),
    "nothing taken": (lambda r: jg.where(np.ones((2, 1), bool), 7.0, r), [0.0, 0.0]),
    "tile": (lambda r: jg.tile(r, 3)[1::2], [0.0, 3.0]),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("mode", ["python", "compiled"])
@pytest.mark.parametrize("name", sorted(BROADCAST))
def test_structural_zeros_outlive_a_broadcast_of_which_every_copy_is_left_out(
    name: str, mode: str, create_graph: bool
) -> None:
    function, counts = BROADCAST[name]
    with kernels(mode):
        x = jg.tensor([0.0, 4.0], requires_grad=True)
        function(jg.sqrt(x)).sum().backward(create_graph=create_graph)
        assert x.grad is not None
        got = x.grad.tolist()
        x.grad = None
    assert got == [0.0, counts[1] * 0.25]


@pytest.mark.parametrize("mode", ["python", "compiled"])
def test_one_copy_that_is_taken_counts(mode: str) -> None:
    with kernels(mode):
        x = jg.tensor([0.0, 4.0], requires_grad=True)
        jg.where(np.array([[False, True], [True, True]]), jg.sqrt(x), 7.0).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [np.inf, 0.5]


# --------------------------------------------------------------------------------------------- found before


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("mode", ["python", "compiled"])
@pytest.mark.parametrize(
    "before",
    [
        lambda r: r.reshape((3,)),
        lambda r: r.reshape((1, 3))[0],
        lambda r: jg.flip(r, axis=0),
        lambda r: r[np.array([0, 1, 2])],
        lambda r: jg.stack([r[0], r[1], r[2]]),
    ],
    ids=["reshape", "slice", "flip", "gather", "stack"],
)
def test_the_mask_of_a_condition_that_is_broadcast_has_the_shape_of_the_cotangent(
    before: Callable[[Any], Any], mode: str, create_graph: bool
) -> None:
    with kernels(mode):
        for condition, slope in ((True, 0.25), (False, 0.0)):
            x = jg.tensor([4.0, 4.0, 4.0], requires_grad=True)
            jg.where(np.array(condition), before(jg.sqrt(x)), 1.0).sum().backward(create_graph=create_graph)
            assert x.grad is not None
            assert x.grad.tolist() == [slope] * 3
            x.grad = None
