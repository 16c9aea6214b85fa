"""Jacobians and Hessians of many elements: all seeds at once, in traces and out of them, against closed forms and
finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.optimize
from hypothesis import assume, given
from hypothesis import strategies as st
from programs import Program, programs
from strategies import directional_derivative, examples, kernels

import jitgrad as jg
from jitgrad.autograd import Function, detect_anomaly
from jitgrad.core.graph import Constant
from jitgrad.errors import AnomalyError
from jitgrad.transforms import jacobians

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(3)
N = 9
X = rng.uniform(-1.5, 1.5, N)
M = rng.normal(size=(7, N))
A = rng.normal(size=(3, 4))
C = rng.normal(size=(4, 2))
UPPER = np.tril(np.ones((N, N)))
PLACES = np.array([2, 0, 2, -1])


@pytest.fixture(autouse=True)
def _plain_kernels():
    """Numbers are the same, and nothing is compiled."""
    with kernels("python"):
        yield


@pytest.fixture(params=["alone", "together", "in parts"])
def seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How eager Jacobians run their seeds, whatever their number is."""
    monkeypatch.setattr(jacobians, "_FEW", 10**9 if request.param == "alone" else 1)
    if request.param == "in parts":
        monkeypatch.setattr(jacobians, "_MOST", 40)
    return str(request.param)


def close(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    assert np.shape(found) == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


class Map(NamedTuple):
    """A function of an array, and its Jacobian by hand."""

    f: Callable[..., Any]
    x: Array
    jacobian: Array


def _written(x: Any) -> Any:
    y = x * 1.0
    y[2:5] = x[:3] ** 2
    y[0] += y[4]
    return y


def _written_jacobian(x: Array) -> Array:
    jac = np.eye(N)
    jac[2:5] = 0.0
    jac[[2, 3, 4], [0, 1, 2]] = 2 * x[:3]
    jac[0, 2] += 2 * x[2]
    return jac


def _sorted_jacobian(x: Array) -> Array:
    return np.eye(N)[np.argsort(x)]


def _product_jacobian(x: Array) -> Array:
    return np.array([np.prod(np.delete(x, i)) for i in range(len(x))])


S = np.exp(X) / np.exp(X).sum()
ROOTS = np.array(
    [0.0, 4.0, 0.0, 1.0, 9.0, 0.25, 0.0]
)  # zeros are structural there: infinity must not be multiplied by them
ROOT_SLOPES = np.array([0.0, 0.25, 0.0, 0.5, 1 / 6, 1.0, 0.0])

MAPS = {
    "elementwise": Map(lambda x: np.sin(x) * x, X, np.diag(np.cos(X) * X + np.sin(X))),
    "sum and element": Map(lambda x: x * x.sum(), X, np.eye(N) * X.sum() + X[:, None]),
    "product with a matrix": Map(lambda x: np.tanh(M @ x), X, (1 - np.tanh(M @ X) ** 2)[:, None] * M),
    "product from the left": Map(lambda x: x @ M.T, X, M),
    "cumulative sum": Map(np.cumsum, X, UPPER),
    "gather": Map(lambda x: x[PLACES] ** 2, X, 2 * X[PLACES][:, None] * np.eye(N)[PLACES]),
    "slices": Map(lambda x: x[1:] - x[:-1] ** 2, X, np.eye(N)[1:] - 2 * np.diag(X)[:-1]),
    "backwards": Map(lambda x: x[::-1] * 3.0, X, 3.0 * np.eye(N)[::-1]),
    "writes": Map(_written, X, _written_jacobian(X)),
    "detached": Map(lambda x: x * jg.stop_gradient(x), X, np.diag(X)),
    "softmax": Map(lambda x: np.exp(x) / np.sum(np.exp(x)), X, np.diag(S) - np.outer(S, S)),
    "sorted": Map(np.sort, X, _sorted_jacobian(X)),
    "number": Map(lambda x: x @ x, X, 2 * X),
    "product of all": Map(np.prod, X, _product_jacobian(X)),
    "constant": Map(lambda x: M[:, 0], X, np.zeros((7, N))),
    "one part constant": Map(lambda x: jg.concatenate([M[:, 0], x]), X, np.concatenate([np.zeros((7, N)), np.eye(N)])),
    "whole numbers": Map(lambda x: (x > 0.0).astype(int), X, np.zeros((N, N))),
    "where": Map(lambda x: jg.where(x > 0.0, jg.sqrt(x), 0.0), ROOTS, np.diag(ROOT_SLOPES)),
    "matrix": Map(np.tanh, A, np.einsum("ij,ik,jl->ijkl", 1 - np.tanh(A) ** 2, np.eye(3), np.eye(4))),
    "matrix product": Map(lambda a: a @ C, A, np.einsum("ik,lj->ijkl", np.eye(3), C)),
    "transposed": Map(lambda a: a.T * 1.0, A, np.einsum("jk,il->ijkl", np.eye(3), np.eye(4))),
    "matrix to vector": Map(lambda a: (a**2).sum(0), A, np.einsum("jl,kl->jkl", np.eye(4), 2 * A)),
    "vector to matrix": Map(
        lambda x: x[:, None] * x, X, np.einsum("ik,j->ijk", np.eye(N), X) + np.einsum("jk,i->ijk", np.eye(N), X)
    ),
    "diagonal matrix": Map(lambda x: jg.diag(x) * 2.0, X, 2.0 * np.einsum("ij,ik->ijk", np.eye(N), np.eye(N))),
    "diagonal": Map(
        lambda a: jg.diagonal(a[:, :3]) ** 2, A, np.einsum("i,ik,il->ikl", 2 * np.diag(A), np.eye(3), np.eye(3, 4))
    ),
    "three axes": Map(lambda a: a.reshape(2, 3, 2) * 1.0, A, np.eye(12).reshape(2, 3, 2, 3, 4)),
    "no elements": Map(lambda x: x[:0] * 2.0, X, np.zeros((0, N))),
    "of no elements": Map(lambda x: M * x.sum(), X[:0], np.zeros((7, N, 0))),
    "one element": Map(lambda x: x**2, X[:1], 2.0 * X[:1, None]),
    "of a number": Map(lambda x: M[0] * x, np.array(0.5), M[0]),
}
MODES = pytest.mark.parametrize("mode", [jg.jacrev, jg.jacfwd, jg.jacobian])
EACH = pytest.mark.parametrize("case", MAPS.values(), ids=MAPS.keys())


class TestClosedForms:
    @MODES
    @EACH
    def test_eagerly(self, case: Map, mode: Any, seeds: str) -> None:
        close(mode(case.f)(case.x), case.jacobian)

    @MODES
    @EACH
    def test_jitted(self, case: Map, mode: Any) -> None:
        close(jg.jit(mode(case.f))(case.x), case.jacobian)
        close(mode(jg.jit(case.f))(case.x), case.jacobian)

    @MODES
    @EACH
    def test_for_each_of_a_batch(self, case: Map, mode: Any, seeds: str) -> None:
        found = jg.vmap(mode(case.f))(np.stack([case.x, case.x]))
        close(found, np.stack([case.jacobian, case.jacobian]))

    @MODES
    @EACH
    def test_float32(self, case: Map, mode: Any, seeds: str) -> None:
        found = mode(case.f)(case.x.astype(np.float32))
        close(found, case.jacobian, 1e-4)

    @MODES
    @EACH
    def test_recorded(self, case: Map, mode: Any, seeds: str) -> None:
        """A tracked factor from outside: the gradient of the Jacobian is recorded."""
        w = jg.tensor(1.5, requires_grad=True)
        found = mode(lambda x: case.f(x) * w)(case.x)
        assert isinstance(found, jg.Tensor)
        close(found.detach(), 1.5 * case.jacobian)
        weights = np.cos(np.arange(float(found.size))).reshape(found.shape)
        if found.requires_grad:
            (found * weights).sum().backward()
            close(w.grad.numpy(), (case.jacobian * weights).sum())
        else:
            assert not case.jacobian.any()

    @pytest.mark.parametrize("outer", [jg.jacrev, jg.jacfwd])
    @pytest.mark.parametrize("inner", [jg.jacrev, jg.jacfwd])
    @pytest.mark.parametrize("wrap", [lambda f: f, jg.jit, jg.checkpoint])
    def test_nested(self, outer: Any, inner: Any, wrap: Any, seeds: str) -> None:
        cubes = wrap(outer(inner(lambda x: x**2 * x.sum())))(X)
        eye = np.eye(N)
        wanted = 2 * np.einsum("ij,ik->ijk", eye, eye) * X.sum()
        wanted += 2 * X[:, None, None] * (eye[:, :, None] + eye[:, None, :])
        close(cubes, wanted)

    @pytest.mark.parametrize("wrap", [lambda f: f, jg.jit])
    def test_hessian_of_a_hessian(self, wrap: Any, seeds: str) -> None:
        found = wrap(jg.hessian(lambda x: (jg.hessian(lambda y: (y**5).sum())(x)).sum()))(X)
        close(found, np.diag(120 * X), 1e-10)

    def test_hessian_of_rosenbrock(self, seeds: str) -> None:
        for wrap in (lambda f: f, jg.jit):
            close(wrap(jg.hessian(_rosenbrock))(X), scipy.optimize.rosen_hess(X), 1e-11)
            close(wrap(jg.jacrev(jg.grad(_rosenbrock)))(X), scipy.optimize.rosen_hess(X), 1e-11)

    def test_gradient_through_a_jacobian(self, seeds: str) -> None:
        weights = np.cos(np.arange(float(7 * N))).reshape(7, N)
        t = np.tanh(M @ X)
        wanted = M.T @ (-2 * t * (1 - t**2) * (weights * M).sum(1))
        for mode in (jg.jacrev, jg.jacfwd):
            total = lambda x, mode=mode: (mode(lambda y: np.tanh(M @ y))(x) * weights).sum()  # noqa: E731
            for gradient in (jg.grad(total), jg.jit(jg.grad(total))):
                close(gradient(X), wanted)

    def test_several_arguments_and_results(self, seeds: str) -> None:
        def f(p: Any, x: Any) -> Any:
            return {"y": np.tanh(p["w"]) @ p["v"] + x[0], "z": (x[0] * 2.0, p["v"].sum())}

        p, v = {"w": A, "v": np.arange(4.0)}, np.array(2.0)
        slopes = 1 - np.tanh(A) ** 2
        for mode in (jg.jacrev, jg.jacfwd):
            for wrap in (lambda f: f, jg.jit):
                found = wrap(mode(f, (0, 1)))(p, (v,))
                by_p, by_x = found["y"]
                close(by_p["w"], np.einsum("ik,kl,l->ikl", np.eye(3), slopes, p["v"]))
                close(by_p["v"], np.tanh(A))
                close(by_x[0], np.ones(3))
                close(found["z"][0][0]["w"], np.zeros((3, 4)))
                close(found["z"][0][1][0], 2.0)
                close(found["z"][1][0]["v"], np.ones(4))


def _rosenbrock(x: Any) -> Any:
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


class TestWhatRunsTogether:
    @MODES
    def test_branches_on_values(self, mode: Any, seeds: str) -> None:
        f = lambda x: x**3 if x[0].item() > -9.0 else x  # noqa: E731
        close(mode(f)(X), np.diag(3 * X**2))

    def test_rules_in_numpy(self, seeds: str) -> None:
        class Cube(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                (x,) = ctx.saved_tensors
                return jg.tensor(np.asarray(g.numpy()) * 3 * x.numpy() ** 2)

        close(jg.jacrev(Cube.apply)(jg.tensor(X)), np.diag(3 * X**2))

    @MODES
    def test_primitives_of_users(self, mode: Any, seeds: str) -> None:
        wave = jg.primitive(
            lambda x: np.sin(x) * 1.0,
            vjp=lambda g, out, x: (g * np.cos(x),),
            jvp=lambda tangents, out, x: tangents[0] * np.cos(x),
        )
        close(mode(wave)(X), np.diag(np.cos(X)))

    def test_hooks_get_the_gradient_of_each_seed(self, seeds: str) -> None:
        seen: list[list[float]] = []

        def f(x: Any) -> Any:
            y = x * 2.0
            y.register_hook(lambda g: seen.append(g.tolist()))
            return y * 3.0

        close(jg.jacrev(f)(X), 6.0 * np.eye(N))
        assert seen == (3.0 * np.eye(N)).tolist()

    def test_anomalies_are_found(self, seeds: str) -> None:
        with detect_anomaly(), pytest.raises(AnomalyError, match="sqrt"):
            jg.jacrev(lambda x: jg.sqrt(x * 0.0))(X)

    @MODES
    def test_results_share_no_memory(self, mode: Any, seeds: str) -> None:
        x = jg.tensor(X)
        first, second = mode(lambda x: (x, x))(x)
        close(first, np.eye(N))
        first *= 0.0
        close(second, np.eye(N))
        close(x, X)
        twice = lambda x: (lambda y: (y, y))(x * 2.0)  # noqa: E731
        first, second = mode(twice)(x)
        first *= 0.0
        close(second, 2.0 * np.eye(N))

    @MODES
    def test_memory_is_bounded(self, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many seeds in one run as keep every value below the bound."""
        rows = []
        real = jacobians.RowFunction.__call__
        monkeypatch.setattr(jacobians, "_MOST", 3 * N * 20)
        monkeypatch.setattr(jacobians, "_FEW", 1)
        monkeypatch.setattr(
            jacobians.RowFunction, "__call__", lambda self, x: (rows.append(x.shape[0]), real(self, x))[1]
        )
        found = mode(lambda x: (x[:, None] * np.arange(20.0)).sum(1))(X)
        close(found, 190.0 * np.eye(N))
        assert rows == [3, 3, 3]

    def test_jitted_functions_are_called_for_each_seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jacobians, "RowFunction", None)
        close(jg.jacrev(jg.jit(lambda x: x**3))(X), np.diag(3 * X**2))


class TestTraces:
    """The graph is that of one seed, whatever their number."""

    TRANSFORMS = pytest.mark.parametrize(
        "transformed",
        [
            jg.jacrev(lambda x: np.sin(x) * x.sum()),
            jg.jacfwd(lambda x: np.sin(x) * x.sum()),
            jg.hessian(_rosenbrock),
            jg.jacrev(jg.jacrev(_rosenbrock)),
            jg.jacfwd(jg.jacfwd(_rosenbrock)),
            jg.hessian(lambda x: jg.hessian(_rosenbrock)(x).sum()),
            lambda x: jg.vmap(jg.hessian(_rosenbrock))(jg.stack([x, 2.0 * x])),
        ],
    )

    @TRANSFORMS
    def test_size_of_the_graph(self, transformed: Any) -> None:
        fast = jg.jit(transformed)
        small, large = (fast.graph(np.linspace(0.0, 1.0, n)) for n in (3, 50))
        assert [n.primitive.name for n in small.nodes] == [n.primitive.name for n in large.nodes]

    @TRANSFORMS
    def test_one_program_for_all_extents(self, transformed: Any) -> None:
        fast = jg.jit(transformed)
        small, large = (_without_comments(fast.source(np.linspace(0.0, 1.0, n))) for n in (3, 50))
        assert small == large

    def test_no_captured_arrays(self) -> None:
        for transformed in (jg.jacrev(np.sin), jg.jacfwd(np.sin), jg.hessian(_rosenbrock)):
            atoms = {a for node in jg.jit(transformed).graph(np.ones(3)).nodes for a in node.inputs}
            assert all(a.is_literal for a in atoms if isinstance(a, Constant))

    def test_numba_functions_of_any_extent(self) -> None:
        with kernels("compiled"):
            cases = [(jg.hessian(_rosenbrock), scipy.optimize.rosen_hess)]
            cases += [
                (mode(lambda x: np.sin(x) * 2.0), lambda x: np.diag(2 * np.cos(x))) for mode in (jg.jacrev, jg.jacfwd)
            ]
            for transformed, wanted in cases:
                fast = jg.jit(transformed).njit(np.ones(3))
                for n in (3, 5, 12):
                    close(fast(X.repeat(2)[:n]), wanted(X.repeat(2)[:n]), 1e-11)

    @pytest.mark.parametrize("mode", ["python", "compiled"])
    def test_compiled(self, mode: str) -> None:
        with kernels(mode):
            fast = jg.jit(jg.hessian(_rosenbrock))
            for n in (2, 3, 9):
                close(fast(X[:n]), scipy.optimize.rosen_hess(X[:n]), 1e-11)

    def test_nodes_of_the_sweep_are_known_as_such(self) -> None:
        for transformed in (jg.jacrev(np.sin), jg.vmap(jg.grad(np.sin))):
            nodes = jg.jit(transformed).graph(X).nodes
            assert any(n.backward and n.primitive.name == "multiply" for n in nodes)


def _without_comments(source: str) -> list[str]:
    return [line for line in source.splitlines() if not line.strip().startswith("#")]


class TestDiagonalMatricesInKernels:
    @pytest.mark.parametrize("kernel", ["python", "compiled"])
    @pytest.mark.parametrize(
        "f",
        [
            lambda np, x: np.diag(x[0]) + 1.0,
            lambda np, x: np.diag(np.exp(x[0])),
            lambda np, x: np.diag(x[0])[::-1] * x[1],
            lambda np, x: np.diag(x[0])[1:, :-1].sum(0),
            lambda np, x: np.diag(x[0], 1),
            lambda np, x: np.diag(x[0], -2) * 2.0,
            lambda np, x: np.diag(x[0, :1]),
            lambda np, x: np.diag(np.diag(x[:, :3])),
            lambda np, x: np.diag(x[0]) @ x.T,
            lambda np, x: np.diag(x[0]).sum() + np.diag(x[0]).sum(1),
            lambda np, x: np.diag(x[0] > 0.0),
            lambda np, x: np.diag((x[0] * 3).astype(int)),
            lambda np, x: np.diag(x[0].astype(np.float32)) * np.float32(0.5),
        ],
    )
    def test_values(self, f: Any, kernel: str) -> None:
        with kernels(kernel):
            found = jg.jit(lambda x: f(jg, x))(A)
            wanted = f(np, A)
            assert found.dtype == wanted.dtype
            close(found, wanted, 1e-6 if found.dtype == np.float32 else 1e-14)

    @pytest.mark.parametrize(("axis1", "axis2"), [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])
    @pytest.mark.parametrize("extent", [1, 3])
    def test_gradients_of_diagonals(self, axis1: int, axis2: int, extent: int) -> None:
        """Their transpose puts a vector for each of the other indices on a diagonal."""
        rest = 3 - axis1 - axis2
        shape = [extent, extent, extent]
        shape[rest] = 2
        x = rng.normal(size=shape)
        w = rng.normal(size=(2, extent))
        wanted = np.zeros(shape)
        for i in range(2):
            for j in range(extent):
                at = [j, j, j]
                at[rest] = i
                wanted[tuple(at)] = 2 * x[tuple(at)] * w[i, j]
        f = lambda x, w: (jg.diagonal(x, 0, axis1, axis2) ** 2 * w).sum()  # noqa: E731
        close(jg.grad(f)(x, w), wanted)
        close(jg.jit(jg.grad(f))(x, w), wanted)
        if extent > 1:
            with kernels("compiled"):
                close(jg.jit(jg.grad(f)).njit(x, w)(x, w), wanted)

    def test_extents_must_agree(self) -> None:
        with kernels("compiled"):
            fast = jg.jit(lambda a, x: jg.diag(x) * a).njit(np.ones((3, 3)), np.ones(3))
            close(fast(np.full((5, 5), 2.0), np.arange(5.0)), 2.0 * np.diag(np.arange(5.0)))
            with pytest.raises(ValueError, match="extent"):
                fast(np.ones((5, 4)), np.ones(5))


# ------------------------------------------------------------------------------------------ random programs

ONE_WAY = {"alias", "detach", "single", "view"}  # steps whose derivative finite differences do not see


@examples(60)
@given(programs(7), st.integers(0, 2**31))
def test_jacobians_of_random_programs(program: Program, seed: int) -> None:
    """Weights times Jacobian times direction is the slope of the weighted results, in that direction."""
    assume(not any(name in ONE_WAY for name, *_ in program.steps))
    arrays = program.arrays()
    draw = np.random.default_rng(seed)
    size = np.shape(program(*map(jg.tensor, arrays)))
    weights = draw.normal(size=size)
    directions = [draw.normal(size=a.shape) for a in arrays]

    def along(t: float) -> float:
        moved = [jg.tensor(a + t * d) for a, d in zip(arrays, directions, strict=True)]
        return float((program(*moved).numpy() * weights).sum())

    slope, error = directional_derivative(along)
    assume(error < 1e-7 * max(1.0, abs(slope)))  # no kink nearby
    every = tuple(range(len(arrays)))
    few = jacobians._FEW
    for mode in (jg.jacrev, jg.jacfwd):
        for jacobian in (mode(program, every), jg.jit(mode(program, every))):
            for jacobians._FEW in (1, 10**9):
                try:
                    blocks = jacobian(*arrays)
                finally:
                    jacobians._FEW = few
                found = 0.0
                for block, a, d in zip(blocks, arrays, directions, strict=True):
                    assert np.shape(block) == (*size, *a.shape)
                    found += (np.tensordot(block, d, a.ndim) * weights).sum()
                assert abs(found - slope) <= 10 * error + 1e-9 * max(1.0, abs(slope))


# ------------------------------------------------------------------------------------------ parts at traced positions


def _part(y: Any, i: Any) -> Any:
    """``y[i]`` as a view; NumPy makes a number of it unless told otherwise."""
    return y[i, ...] if isinstance(y, np.ndarray) else y[i]


def _least_doubled(x: Any) -> Any:
    y = x * x + x
    v = _part(y, np.argmin(y))
    v *= 2
    return y


def _greatest_by_the_first(x: Any) -> Any:
    y = np.sin(x)
    v = _part(y, np.argmax(y))
    v += y[0] * v
    return y * y


def _row_scaled(x: Any) -> Any:
    y = (x * x).reshape(3, 2)
    v = _part(y, np.argmin(y.sum(axis=1)))
    v *= x[:2]
    return y.sum(axis=0) * v


def _part_of_a_part(x: Any) -> Any:
    y = (x * 1.0).reshape(2, 3)
    v = _part(y, np.argmax(y[:, 0]))
    w = _part(v, np.argmin(v))
    w *= w
    return y * v.sum()


def _read_after_the_base_is_written(x: Any) -> Any:
    y = x * 3.0
    v = _part(y, np.argmin(y))
    y *= y
    return v * x


def _part_of_a_slice(x: Any) -> Any:
    y = x * 1.5
    s = y[1:4]
    v = _part(s, np.argmax(s))
    v -= np.exp(v)
    return np.cumsum(y) * s.sum()


def _set_and_scaled(x: Any) -> Any:
    y = x * 2.0
    i = np.argmin(y)
    y[i] = y[i - 1] * y[i]
    y[i] *= 2
    return y * y


def _several_times(x: Any) -> Any:
    y = x * 2.0
    for _ in range(3):
        v = _part(y, np.argmax(y))
        v *= 0.3
    return y * y


def _two_views_of_one_part(x: Any) -> Any:
    y = x * 1.0
    a, b = _part(y, np.argmin(y)), _part(y, np.argmin(y))
    a *= 2
    b *= x[1]
    return y * a


AT_TRACED_POSITIONS = (
    _least_doubled,
    _greatest_by_the_first,
    _row_scaled,
    _part_of_a_part,
    _read_after_the_base_is_written,
    _part_of_a_slice,
    _set_and_scaled,
    _several_times,
    _two_views_of_one_part,
)


def _slopes(f: Any, x: Array, step: float) -> Array:
    """Central differences, the argument's axis last."""
    steps = step * np.eye(x.size)
    return np.stack([np.asarray(f(x + h)) - np.asarray(f(x - h)) for h in steps], axis=-1) / (2 * step)


@pytest.mark.parametrize("f", AT_TRACED_POSITIONS)
def test_writes_to_views_at_traced_positions(f: Any) -> None:
    """Values from NumPy, whose views are written by the same code, and derivatives from differences of these."""
    batch = 1.3 * np.random.default_rng(0).normal(size=(3, 6))
    x = batch[0]

    def total(x: Any) -> Any:
        return np.sum(np.sin(f(x)))

    def gradients(x: Any) -> Any:
        return jg.vmap(jg.grad(total))(x)

    jacobian = _slopes(f, x, 1e-6)
    hessian = _slopes(lambda x: _slopes(total, x, 1e-4), x, 1e-4)
    values = np.stack([f(row) for row in batch])
    by_rows = np.stack([_slopes(total, row, 1e-6) for row in batch])
    for found, wanted, tolerance in (
        (jg.jit(f)(x), values[0], 1e-13),
        (jg.jit(jg.vmap(f))(batch), values, 1e-13),
        (jg.vmap(f)(batch), values, 1e-13),
        (jg.jacrev(f)(x), jacobian, 1e-7),
        (jg.jacfwd(f)(x), jacobian, 1e-7),
        (jg.jit(jg.jacrev(f))(x), jacobian, 1e-7),
        (jg.jit(jg.jacfwd(f))(x), jacobian, 1e-7),
        (jg.jacrev(jg.jit(f))(x), jacobian, 1e-7),
        (jg.hessian(total)(x), hessian, 1e-5),
        (jg.jit(jg.hessian(total))(x), hessian, 1e-5),
        (gradients(batch), by_rows, 1e-7),
        (jg.jit(gradients)(batch), by_rows, 1e-7),
        (jg.grad(lambda x: np.sum(np.sin(jg.vmap(f)(x))))(batch), by_rows, 1e-7),
        (jg.jit(jg.vmap(jg.jacfwd(f)))(batch)[0], jacobian, 1e-7),
        (jg.jit(jg.vmap(jg.hessian(total)))(batch)[0], hessian, 1e-5),
    ):
        close(found, wanted, tolerance)
