"""vmap against its definition: the function called for one element after the other, and the results stacked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from strategies import kernels

import jitgrad as jg
from jitgrad.autodiff import batching
from jitgrad.ops.catalog import operations

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(7)
X = rng.normal(size=(4, 3))
Y = rng.normal(size=(4, 3))
W = rng.normal(size=(3, 2))
V = rng.normal(size=3)


@pytest.fixture(autouse=True)
def _plain_kernels():
    """Numbers are the same, and nothing is compiled."""
    with kernels("python"):
        yield


def looped(f: Callable[..., Any], *columns: Array) -> Array:
    """The definition of vmap for functions of arrays."""
    return np.stack([np.asarray(f(*row)) for row in zip(*columns, strict=True)])


# ------------------------------------------------------------------------------------------ every operation

ALL = dict(operations())
NAMES = sorted(n for n, op in ALL.items() if op.domains or op.samples)


def _refuses_floats(name: str) -> bool:
    return "f" in getattr(getattr(ALL[name].primitive, "impl", None), "refuses", "")


def _calls(name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    op = ALL[name]
    source = np.random.default_rng(3)
    if op.domains:
        shapes = [((2, 3),) * len(op.domains), ((3,), (2, 3), (2, 1))[: len(op.domains)], ((),) * len(op.domains)]
        made = []
        for each in shapes:
            arrays = []
            for domain, shape in zip(op.domains, each, strict=True):
                values = source.uniform(domain.low, domain.high, shape)
                rounded = np.asarray(np.round(values) if domain.integers else values)
                arrays.append(rounded.astype(np.int64) if _refuses_floats(name) else rounded)
            made.append((tuple(arrays), {}))
        return made
    assert op.samples is not None
    return [(c.args, c.kwargs) for c in op.samples(source)]


def _arrays(tree: Any, kinds: str = "f") -> list[Array]:
    if isinstance(tree, np.ndarray):
        return [tree] if tree.dtype.kind in kinds else []
    return [a for t in tree for a in _arrays(t, kinds)] if isinstance(tree, tuple | list) else []


def _with(tree: Any, supply: Any, kinds: str = "f") -> Any:
    if isinstance(tree, np.ndarray):
        return next(supply) if tree.dtype.kind in kinds else tree
    return type(tree)([_with(t, supply, kinds) for t in tree]) if isinstance(tree, tuple | list) else tree


def _batches(arrays: list[Array]) -> list[Array]:
    """Each array and two others like it, which keep what an operation may insist on (symmetry, positivity)."""
    return [np.stack([a, a * 1.25, a * 0.5] if a.dtype.kind == "f" else [a, a + 1, a // 2]) for a in arrays]


def _listed(result: Any) -> list[Array]:
    items = result if isinstance(result, tuple | list) else (result,)
    return [np.asarray(r.detach() if isinstance(r, jg.Tensor) else r) for r in items]


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_in_a_batch(name: str) -> None:
    op, ran = ALL[name], 0
    kinds = "i" if _refuses_floats(name) else "f"
    for args, kwargs in _calls(name):
        arrays = _arrays(args, kinds)
        if not arrays or (name in ("std", "var") and arrays[0].size == 0):
            continue

        def one(*values: Any, args: Any = args, kwargs: Any = kwargs) -> Any:
            found = op.function(*_with(args, iter(values), kinds), **kwargs)
            return tuple(found) if isinstance(found, tuple | list) else found

        batches = _batches(arrays)
        masks = [(0,) * len(arrays)]
        if len(arrays) > 1:
            masks += [tuple(0 if i == k else None for i in range(len(arrays))) for k in range(len(arrays))]
        for axes in masks:
            given = [b if a == 0 else x for a, b, x in zip(axes, batches, arrays, strict=True)]
            try:
                rows = [
                    _listed(one(*(g[i] if a == 0 else g for a, g in zip(axes, given, strict=True)))) for i in range(3)
                ]
            except (jg.errors.JitgradError, np.linalg.LinAlgError):
                continue  # the others are no operands of this operation
            found = _listed(jg.vmap(one, axes)(*given))
            ran += 1
            for k, value in enumerate(found):
                wanted = np.stack([row[k] for row in rows])
                assert value.dtype == wanted.dtype, (name, axes)
                np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-12, err_msg=f"{name} {axes}")
    assert ran


def _scalar_of(one: Callable[..., Any]) -> Callable[..., Any]:
    def scalar(*values: Any) -> Any:
        total = 0.0
        for part in (r for r in (lambda f: f if isinstance(f, tuple) else (f,))(one(*values))):
            if part.dtype.kind == "f":
                weights = jg.asarray(np.cos(np.arange(part.size, dtype=part.dtype)).reshape(part.shape))
                total = total + (part * weights).sum()
        return total

    return scalar


@pytest.mark.parametrize("name", [n for n in NAMES if ALL[n].differentiable])
def test_gradients_for_each_example(name: str) -> None:
    """vmap(grad(f)), grad(sum(vmap(f))) and grad(f) in a loop agree, whatever operation f is."""
    op = ALL[name]
    args, kwargs = _calls(name)[0]
    arrays = _arrays(args)
    if not arrays or not all(a.size for a in arrays):
        pytest.skip("no operand to differentiate")

    def one(*values: Any) -> Any:
        found = op.function(*_with(args, iter(values)), **kwargs)
        return tuple(found) if isinstance(found, tuple | list) else found

    numbers = tuple(range(len(arrays)))
    scalar = _scalar_of(one)
    batches = _batches(arrays)
    rows = [jg.grad(scalar, numbers)(*(b[i] for b in batches)) for i in range(3)]
    per_example = jg.vmap(jg.grad(scalar, numbers))(*batches)
    of_sum = jg.grad(lambda *values: jg.vmap(scalar)(*values).sum(), numbers)(*batches)
    for k in numbers:
        wanted = np.stack([r[k] for r in rows])
        scale = 1e-11 * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(per_example[k], wanted, rtol=1e-10, atol=scale, err_msg=name)
        np.testing.assert_allclose(of_sum[k], wanted, rtol=1e-10, atol=scale, err_msg=name)


# ------------------------------------------------------------------------------------------ axes


class TestAxes:
    @pytest.mark.parametrize("axis", [0, 1, -1, -2])
    def test_in_axes(self, axis: int) -> None:
        columns = np.moveaxis(X, 0, axis)
        np.testing.assert_array_equal(jg.vmap(np.sum, axis)(columns), X.sum(1))
        np.testing.assert_array_equal(jg.vmap(np.sum, (axis,))(columns), X.sum(1))

    @pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
    def test_out_axes(self, axis: int) -> None:
        rows = looped(np.outer, X, Y)
        np.testing.assert_allclose(jg.vmap(np.outer, out_axes=axis)(X, Y), np.moveaxis(rows, 0, axis), rtol=1e-15)

    def test_what_all_elements_share(self) -> None:
        np.testing.assert_allclose(jg.vmap(np.dot, (0, None))(X, W), X @ W, rtol=1e-14)
        np.testing.assert_allclose(jg.vmap(np.dot, (None, 1))(V, W), V @ W, rtol=1e-14)
        np.testing.assert_allclose(jg.vmap(lambda x, s: x * s, (0, None))(X, 2.0), 2 * X, rtol=1e-15)

    def test_containers(self) -> None:
        class Both(NamedTuple):
            a: Any
            b: Any

        @dataclass(frozen=True)
        class Model:
            w: Any
            b: Any

        def f(p: Any, q: Any) -> Any:
            return Both(p["x"] * q.a, {"y": q.b + p["s"]}), Model(p["x"].sum(), None)

        found, model = jg.vmap(f, ({"x": 0, "s": None}, Both(1, 0)))({"x": X, "s": 3.0}, Both(Y.T, np.arange(4.0)))
        assert isinstance(found, Both)
        assert isinstance(model, Model)
        np.testing.assert_array_equal(found.a, X * Y)
        np.testing.assert_array_equal(found.b["y"], np.arange(4.0) + 3)
        np.testing.assert_allclose(model.w, X.sum(1), rtol=1e-15)
        assert model.b is None

    def test_one_axis_for_a_container(self) -> None:
        found = jg.vmap(lambda p: p["a"] + p["b"][0], ({"a": 0, "b": 1},))({"a": X, "b": [Y.T]})
        np.testing.assert_array_equal(found, X + Y)

    def test_keyword_arguments_are_mapped(self) -> None:
        np.testing.assert_array_equal(jg.vmap(lambda x, *, y: x - y)(X, y=Y), X - Y)

    def test_several_results(self) -> None:
        first, (second, third) = jg.vmap(lambda x: (x, (x.sum(), 7.0)), out_axes=(1, (0, None)))(X)
        np.testing.assert_array_equal(first, X.T)
        np.testing.assert_allclose(second, X.sum(1), rtol=1e-15)
        assert third == 7.0

    def test_results_that_do_not_depend_on_the_element(self) -> None:
        np.testing.assert_array_equal(jg.vmap(lambda x: V)(X), np.stack([V] * 4))
        np.testing.assert_array_equal(jg.vmap(lambda x: V, out_axes=None)(X), V)
        np.testing.assert_array_equal(jg.vmap(lambda x: 2.0, out_axes=-1)(X), np.full(4, 2.0))

    def test_integers(self) -> None:
        np.testing.assert_array_equal(jg.vmap(lambda x: x + 1)(np.arange(3)), [1, 2, 3])

    @pytest.mark.parametrize("count", [0, 1])
    def test_small_batches(self, count: int) -> None:
        x = X[:count]
        assert jg.vmap(lambda x: x.sum())(x).shape == (count,)
        assert jg.vmap(lambda x: W.T @ x)(x).shape == (count, 2)
        assert jg.vmap(np.sort)(x).shape == (count, 3)
        assert jg.vmap(jg.grad(lambda x: (x**2).sum()))(x).shape == (count, 3)
        assert jg.vmap(lambda x: x[np.array([0, 0, 1, 2])])(x).shape == (count, 4)
        np.testing.assert_array_equal(jg.vmap(lambda x: 2.0 * x)(x), 2 * x)

    def test_elements_without_elements(self) -> None:
        assert jg.vmap(lambda x: x * 2.0)(np.zeros((3, 0))).shape == (3, 0)
        np.testing.assert_array_equal(jg.vmap(lambda x: x.sum())(np.zeros((3, 0))), np.zeros(3))


class TestValues:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int32, np.bool_])
    def test_dtypes(self, dtype: Any) -> None:
        x = (np.abs(X) * 3).astype(dtype)
        for f in (lambda a: a, lambda a: a[::-1], np.sum, np.max, lambda a: a == a[0], np.sort, lambda a: a @ a):
            found = jg.vmap(f)(x)
            wanted = looped(f, x)
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-6)

    def test_ndarrays_are_the_callers_to_write(self) -> None:
        found = jg.vmap(lambda x: x)(X)
        assert type(found) is np.ndarray
        assert found.flags.writeable
        assert found.flags.c_contiguous
        assert not np.shares_memory(found, X)

    def test_tensors(self) -> None:
        x = jg.tensor(X)
        found = jg.vmap(lambda x: x)(x)
        assert isinstance(found, jg.Tensor)
        assert not np.shares_memory(found.numpy(), x.numpy())
        assert isinstance(jg.vmap(lambda x, y: x)(X, jg.tensor(Y)), jg.Tensor)

    def test_it_is_called_once(self) -> None:
        calls = []
        jg.vmap(lambda x: calls.append(1) or np.exp(x).sum())(X)
        assert len(calls) == 1

    @pytest.mark.parametrize("positions", [np.array([2, 0]), np.array([[1, -1], [0, 0]]), np.array(2)])
    def test_positions_that_all_share(self, positions: Array) -> None:
        np.testing.assert_array_equal(jg.vmap(lambda x: x[positions])(X), X[:, positions])
        np.testing.assert_array_equal(jg.vmap(lambda x: np.take(x, positions))(X), np.take(X, positions, 1))

    def test_positions_of_each_element(self) -> None:
        places = np.array([[2, 0], [1, 1], [-1, 0], [0, 2]])
        table = np.arange(12.0).reshape(3, 2, 2)
        rows = [X[i][places[i]] for i in range(4)]
        np.testing.assert_array_equal(jg.vmap(lambda x, i: x[i])(X, places), rows)
        np.testing.assert_array_equal(jg.vmap(lambda i: jg.take(table, i, axis=0))(places), table[places])
        np.testing.assert_array_equal(
            jg.vmap(lambda i: jg.take(table, i % 2, axis=1))(places), [table[:, p % 2] for p in places]
        )
        many = np.stack([table, table + 1, -table, 2 * table])
        found = jg.vmap(lambda t, i: jg.take(t, i, axis=0))(many, places)
        np.testing.assert_array_equal(found, [many[k][places[k]] for k in range(4)])
        found = jg.vmap(lambda t, i: jg.take(t, i % 2, axis=2))(many, places)
        np.testing.assert_array_equal(found, [many[k][:, :, places[k] % 2] for k in range(4)])

    def test_gradients_of_gathers_with_positions_of_each_element(self) -> None:
        places = np.array([[2, 0], [1, 1], [-1, 0], [0, 2]])
        weights = np.array([1.0, 10.0])
        wanted = np.zeros((4, 3))
        for k in range(4):
            np.add.at(wanted[k], places[k], weights)
        f = lambda x, i: (jg.take(x, i) * weights).sum()  # noqa: E731
        np.testing.assert_array_equal(jg.vmap(jg.grad(f))(X, places), wanted)
        np.testing.assert_array_equal(jg.grad(lambda x: jg.vmap(f)(x, places).sum())(X), wanted)
        np.testing.assert_array_equal(jg.grad(lambda v: jg.vmap(f, (None, 0))(v, places).sum())(V), wanted.sum(0))
        matrix = np.arange(6.0).reshape(3, 2)
        g = lambda m, i: (jg.take(m, i, axis=0) * weights[:, None]).sum()  # noqa: E731
        found = jg.vmap(jg.grad(g), (None, 0))(matrix, places)
        np.testing.assert_array_equal(found, np.repeat(wanted[:, :, None], 2, 2))

    def test_writes(self) -> None:
        def f(x: Any, y: Any) -> Any:
            z = jg.zeros(3)
            before = z + x
            z[1:] = y[:2]
            z[0] += x[0]
            x *= 2.0
            head = z[:2]
            head -= y[0]
            z[np.array([2])] = 5.0
            return before + z + x

        def by_hand(x: Array, y: Array) -> Array:
            return x + np.array([x[0] - y[0], 0.0, 5.0]) + 2 * x

        np.testing.assert_allclose(jg.vmap(f)(X, Y), looped(by_hand, X, Y), rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(
            jg.vmap(f, (0, None))(X, Y[0]), [by_hand(x, Y[0]) for x in X], rtol=1e-14, atol=1e-14
        )
        np.testing.assert_allclose(
            jg.vmap(f, (None, 0))(X[0], Y), [by_hand(X[0], y) for y in Y], rtol=1e-14, atol=1e-14
        )
        kept = X.copy()
        jg.vmap(f)(kept, Y)
        np.testing.assert_array_equal(kept, X)
        found = jg.vmap(jg.grad(lambda x, y: f(x, y).sum()))(X, Y)
        np.testing.assert_array_equal(found, np.broadcast_to([4.0, 3.0, 3.0], (4, 3)))

    def test_writes_to_each_elements_positions(self) -> None:
        def f(x: Any, i: Any) -> Any:
            x[i] = 0.0
            return x

        places = np.array([2, 0, 1, 1])
        wanted = X.copy()
        wanted[np.arange(4), places] = 0.0
        np.testing.assert_array_equal(jg.vmap(f)(X, places[:, None]), wanted)


class TestPythonOnValues:
    """Functions that cannot be traced are called for each element."""

    @staticmethod
    def piecewise(x: Any) -> Any:
        return x**2 if x > 0 else -x

    def test_values(self) -> None:
        x = X[:, 0]
        np.testing.assert_array_equal(jg.vmap(self.piecewise)(x), np.where(x > 0, x**2, -x))

    def test_gradients(self) -> None:
        x = X[:, 0]
        wanted = np.where(x > 0, 2 * x, -1.0)
        np.testing.assert_array_equal(jg.vmap(jg.grad(self.piecewise))(x), wanted)
        np.testing.assert_array_equal(jg.grad(lambda x: jg.vmap(self.piecewise)(x).sum())(x), wanted)
        np.testing.assert_array_equal(jg.jvp(jg.vmap(self.piecewise), (x,), (np.ones(4),))[1], wanted)

    def test_arguments_stay_private(self) -> None:
        def f(x: Any) -> Any:
            x[0] = float(x[1]) * 2.0
            x[1:] *= 3.0
            return x

        kept = X.copy()
        wanted = np.stack([2 * X[:, 1], 3 * X[:, 1], 3 * X[:, 2]], 1)
        np.testing.assert_allclose(jg.vmap(f)(kept), wanted, rtol=1e-15)
        np.testing.assert_array_equal(kept, X)

    def test_results_must_be_alike(self) -> None:
        with pytest.raises(jg.errors.ShapeError, match="results of different shapes"):
            jg.vmap(lambda x: x[:1] if x[0] > 0.5 else x)(np.eye(3))
        with pytest.raises(jg.errors.ArgumentError, match="for the first element"):
            jg.vmap(lambda x: (x,) if x[0] > 0.5 else x)(np.eye(3))

    def test_an_empty_batch(self) -> None:
        with pytest.raises(jg.errors.ArgumentError, match="empty batch are unknown"):
            jg.vmap(self.piecewise)(np.zeros(0))


class TestWithOtherTransforms:
    @staticmethod
    def model(w: Any, x: Any) -> Any:
        return np.tanh(x @ w) ** 2

    @staticmethod
    def by_hand(w: Array, x: Array) -> Array:
        t = np.tanh(x @ w)
        return 2 * t * (1 - t**2) * x

    def test_gradients_for_each_example(self) -> None:
        wanted = np.stack([self.by_hand(V, x) for x in X])
        per_example = jg.vmap(jg.grad(self.model), (None, 0))
        for f in (
            per_example,
            jg.jit(per_example),
            jg.vmap(jg.jit(jg.grad(self.model)), (None, 0)),
            jg.jit(lambda w, xs: jg.vmap(lambda x: jg.grad(self.model)(w, x))(xs)),
            lambda w, xs: jg.vmap(lambda x: jg.grad(self.model)(w, x))(xs),
            lambda w, xs: jg.jacrev(lambda w: jg.vmap(self.model, (None, 0))(w, xs))(w),
            lambda w, xs: jg.jacfwd(lambda w: jg.vmap(self.model, (None, 0))(w, xs))(w),
            jg.vmap(jg.jacfwd(self.model), (None, 0)),
            jg.vmap(jg.checkpoint(jg.grad(self.model)), (None, 0)),
        ):
            np.testing.assert_allclose(f(V, X), wanted, rtol=1e-13, atol=1e-14)

    def test_gradient_of_a_mean(self) -> None:
        wanted = np.mean([self.by_hand(V, x) for x in X], 0)
        f = lambda w, xs: jg.vmap(self.model, (None, 0))(w, xs).mean()  # noqa: E731
        for transformed in (jg.grad(f), jg.jit(jg.grad(f)), jg.grad(jg.jit(f)), jg.grad(jg.checkpoint(f))):
            np.testing.assert_allclose(transformed(V, X), wanted, rtol=1e-13)

    def test_nested(self) -> None:
        ws = np.stack([V, 2 * V, -V, V + 1, 0 * V])
        wanted = np.tanh(ws @ X.T) ** 2
        grid = jg.vmap(jg.vmap(self.model, (None, 0)), (0, None))
        np.testing.assert_allclose(grid(ws, X), wanted, rtol=1e-14)
        np.testing.assert_allclose(jg.jit(grid)(ws, X), wanted, rtol=1e-14)
        closures = jg.vmap(lambda w: jg.vmap(lambda x: self.model(w, x))(X))
        np.testing.assert_allclose(closures(ws), wanted, rtol=1e-14)
        np.testing.assert_allclose(jg.jit(closures)(ws), wanted, rtol=1e-14)
        gradients = jg.grad(lambda ws: closures(ws).sum())(ws)
        np.testing.assert_allclose(gradients, [sum(self.by_hand(w, x) for x in X) for w in ws], rtol=1e-12, atol=1e-13)
        deepest = jg.vmap(lambda w: jg.vmap(lambda x: jg.grad(lambda u: self.model(u, x))(w))(X))(ws)
        np.testing.assert_allclose(deepest, [[self.by_hand(w, x) for x in X] for w in ws], rtol=1e-12, atol=1e-14)

    def test_hessians_for_each_example(self) -> None:
        cubes = lambda x: (x**3).sum() + x[0] * x[1]  # noqa: E731
        mixed = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        wanted = [np.diag(6 * x) + mixed for x in X]
        np.testing.assert_allclose(jg.vmap(jg.hessian(cubes))(X), wanted, rtol=1e-14)
        np.testing.assert_allclose(jg.jit(jg.vmap(jg.hessian(cubes)))(X), wanted, rtol=1e-14)
        whole = jg.hessian(lambda xs: jg.vmap(cubes)(xs).sum())(X)
        for i in range(4):
            for j in range(4):
                np.testing.assert_allclose(whole[i, :, j], wanted[i] if i == j else np.zeros((3, 3)), rtol=1e-14)

    def test_captured_tensors(self) -> None:
        for inner in (
            lambda w: lambda x: (x * w * w).sum(),
            lambda w: lambda x: (x * w * w).sum() if x[0] > -9 else x[0],
        ):
            w = jg.tensor(V, requires_grad=True)
            found = jg.vmap(inner(w))(X)
            assert found.requires_grad
            found.sum().backward()
            np.testing.assert_allclose(w.grad.numpy(), 2 * V * X.sum(0), rtol=1e-13)

    def test_captured_tensors_and_gradients(self) -> None:
        w = jg.tensor(V, requires_grad=True)
        found = jg.vmap(jg.grad(lambda x: (x**2 * w * w).sum()))(X)
        (found * Y).sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), (4 * X * V * Y).sum(0), rtol=1e-13)

    def test_tracked_arguments(self) -> None:
        x = jg.tensor(X, requires_grad=True)
        jg.vmap(lambda x: (x**3).sum())(x).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 3 * X**2, rtol=1e-14)

    def test_without_recording(self) -> None:
        x = jg.tensor(X, requires_grad=True)
        with jg.no_grad():
            assert not jg.vmap(np.sin)(x).requires_grad

    @pytest.mark.parametrize("batched", ["rules", "loop"])
    def test_boundaries(self, batched: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if batched == "loop":
            monkeypatch.setattr(batching, "_RULES", {})
            monkeypatch.setattr(batching, "_MOVEMENT", {})

        def no_grad(x: Any) -> Any:
            with jg.no_grad():
                square = x * x
            return (square * x).sum()

        def check(f: Callable[..., Any]) -> None:
            for found in (
                jg.vmap(jg.grad(f))(X),
                jg.grad(lambda x: jg.vmap(f)(x).sum())(X),
                jg.grad(lambda x: (jg.vmap(jg.grad(f))(x) * x).sum())(X),
            ):
                np.testing.assert_allclose(found, X * X, rtol=1e-14)
            tangent = jg.jvp(jg.vmap(f), (X,), (Y,))[1]
            np.testing.assert_allclose(tangent, (X * X * Y).sum(1), rtol=1e-13)

        check(no_grad)
        check(lambda x: ((x * x).detach() * x).sum())
        check(lambda x: (jg.stop_gradient(x * x) * x).sum())


class TestErrors:
    def test_axes(self) -> None:
        with pytest.raises(jg.errors.ArgumentError, match=r"no axis 0 in shape \(\); say None"):
            jg.vmap(np.sin)(2.0)
        with pytest.raises(jg.errors.ArgumentError, match=r"no axis 2 in shape \(4, 3\)"):
            jg.vmap(np.sin, 2)(X)
        with pytest.raises(jg.errors.ArgumentError, match="no argument is mapped"):
            jg.vmap(np.sin, None)(X)
        with pytest.raises(jg.errors.ArgumentError, match="2 entries for 1 positional"):
            jg.vmap(np.sin, (0, 0))(X)
        for wrong in ("a", 1.0, True, ({"x": 0},)):
            with pytest.raises(jg.errors.ArgumentError, match="in_axes"):
                jg.vmap(np.sin, wrong)(X)

    def test_sizes(self) -> None:
        with pytest.raises(jg.errors.ShapeError, match=r"differ in size: .* has 4 along axis 0; .* has 2 along axis 0"):
            jg.vmap(np.add)(X, Y[:2])

    def test_out_axes(self) -> None:
        with pytest.raises(jg.errors.ArgumentError, match="differs from element to element"):
            jg.vmap(np.sin, out_axes=None)(X)
        with pytest.raises(jg.errors.ArgumentError, match="out_axes=2"):
            jg.vmap(np.sin, out_axes=2)(X)
        with pytest.raises(jg.errors.ArgumentError, match="out_axes"):
            jg.vmap(np.sin, out_axes=(0, 0))(X)

    def test_results_that_are_no_arrays(self) -> None:
        with pytest.raises(jg.errors.DtypeError):
            jg.vmap(lambda x: "text")(X)

    def test_values_do_not_outlive_the_call(self) -> None:
        kept = []
        jg.vmap(lambda x: kept.append(x) or x)(X)
        with pytest.raises(jg.errors.LeakedTracerError, match=r"test_vmap\.py"):
            kept[0] + 1.0

    def test_errors_of_the_function_pass(self) -> None:
        with pytest.raises(jg.errors.ShapeError):
            jg.vmap(lambda x: x @ np.ones(5))(X)
        with pytest.raises(KeyError):
            jg.vmap(lambda x: {}["key"])(X)


@functools.cache
def _random_network() -> tuple[Callable[..., Any], list[Array]]:
    source = np.random.default_rng(1)
    weights = [source.normal(size=(3, 5)), source.normal(size=5), source.normal(size=(5, 2)), source.normal(size=2)]

    def loss(params: Any, x: Any, label: Any) -> Any:
        hidden = np.maximum(x @ params[0] + params[1], 0.0)
        scores = hidden @ params[2] + params[3]
        return jg.logsumexp(scores) - scores[label]

    return loss, weights


def test_a_network() -> None:
    """Gradients of each example of a small classifier, by loop, by vmap, and compiled."""
    loss, weights = _random_network()
    labels = np.array([0, 1, 1, 0])
    wanted = [jg.grad(loss)(weights, x, int(k)) for x, k in zip(X, labels, strict=True)]
    per_example = jg.vmap(jg.grad(loss), (None, 0, 0))
    for f in (per_example, jg.jit(per_example)):
        found = f(weights, X, labels)
        for k, part in enumerate(found):
            np.testing.assert_allclose(part, np.stack([w[k] for w in wanted]), rtol=1e-12, atol=1e-13)


# ------------------------------------------------------------------------------------------ values and histories that part


def _scaled_alias(y: Any, x: Any) -> Any:
    v = y.detach()
    v *= 3.0
    return y


def _alias_of_a_part(y: Any, x: Any) -> Any:
    v = y.detach()[1:]
    v -= 1.0
    return y


def _alias_at_a_traced_position(y: Any, x: Any) -> Any:
    v = y.detach()[np.argmin(y)]
    v *= 3.0
    return y


def _written_at_a_traced_position(y: Any, x: Any) -> Any:
    y.detach()[np.argmin(y)] = 1.5
    return y


def _tracked_into_the_alias(y: Any, x: Any) -> Any:
    v = y.detach()
    v *= x
    return v * v + y


def _without_grad(y: Any, x: Any) -> Any:
    with jg.no_grad():
        y[0] = 1.5
    return y


def _without_grad_under_a_view(y: Any, x: Any) -> Any:
    z = y[1:]
    with jg.no_grad():
        y[np.argmin(y)] = 1.5
    return y + z.sum()


def _cut(y: Any, x: Any) -> Any:
    z = y * y
    w = z * 3.0
    z.detach_()
    return z * w + z * y


PARTED = (
    _scaled_alias,
    _alias_of_a_part,
    _alias_at_a_traced_position,
    _written_at_a_traced_position,
    _tracked_into_the_alias,
    _without_grad,
    _without_grad_under_a_view,
    _cut,
)


@pytest.mark.parametrize("write", PARTED)
def test_values_and_histories_that_part(write: Callable[[Any, Any], Any]) -> None:
    """A write that the history does not see (PyTorch's too): the gradient is that of each element by itself, on the tape."""

    def f(x: Any) -> Any:
        y = x * 2.0
        return write(y, x) ** 2

    def alone(x: Array) -> Array:
        leaf = jg.tensor(x, requires_grad=True)
        f(leaf).sum().backward()
        return leaf.grad.numpy()

    def whole(x: Any) -> Any:
        return np.sum(jg.vmap(f)(x))

    expected = looped(alone, X)
    assert np.abs(expected).max() > 1.0
    np.testing.assert_allclose(jg.vmap(f)(X), looped(lambda x: f(jg.tensor(x)).numpy(), X), rtol=1e-14)
    for found in (
        jg.grad(whole)(X),
        jg.grad(jg.jit(whole))(X),
        jg.jit(jg.grad(whole))(X),
        jg.vmap(jg.grad(lambda x: np.sum(f(x))))(X),
        jg.jacfwd(jg.vmap(f))(X).sum(axis=(0, 1)),
        jg.jacrev(jg.vmap(f))(X).sum(axis=(0, 1)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    leaf = jg.tensor(X, requires_grad=True)
    jg.vmap(f)(leaf).sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=1e-13)


def test_values_and_histories_of_captured_tensors_part() -> None:
    weights = jg.tensor(V, requires_grad=True)

    def f(x: Any) -> Any:
        y = x * weights
        v = y.detach()
        v *= 3.0
        return np.sum(y * y)

    jg.vmap(f)(X).sum().backward()
    np.testing.assert_allclose(weights.grad.numpy(), (2 * 3 * (X * V) * X).sum(axis=0), rtol=1e-13)


def test_hooks_of_a_function_that_is_mapped() -> None:
    seen: list[tuple[int, ...]] = []

    def tenfold(g: Any) -> Any:
        seen.append(g.shape)
        return g * 10.0

    def f(x: Any) -> Any:
        y = x * 2.0
        y.register_hook(tenfold)
        return (y * y).sum()

    rows = np.arange(6.0).reshape(2, 3)
    wanted = 2.0 * 10.0 * 2.0 * (2.0 * rows)
    for gradient in (jg.grad(lambda b: jg.vmap(f)(b).sum()), jg.vmap(jg.grad(f))):
        for function in (gradient, jg.jit(gradient)):
            seen.clear()
            np.testing.assert_array_equal(function(rows), wanted)
            assert set(seen) == {(3,)}  # a hook sees the gradient of one element
    np.testing.assert_array_equal(jg.vmap(lambda x: x * 2.0)(rows), 2.0 * rows)


def test_a_product_that_is_taken_twice_of_the_same_values() -> None:
    """The second one must not find a plan by the avals of traced values."""
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(jg.vmap(lambda v: v @ v + v @ v)(x), [10.0, 50.0])
    matrices = x.reshape(1, 2, 2)
    np.testing.assert_array_equal(jg.vmap(lambda a: a @ a - (a @ a) * 3.0)(matrices), [-2.0 * x @ x])
