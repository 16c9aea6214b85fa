"""vmap against its definition: the function called for one element after the other, and the results stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from strategies import kernels

import jitgrad as jg
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
# what can only be said of one concrete array (its shape or a decision depends on values), or needs no operand
EAGER_ONLY = {"nonzero", "argwhere", "flatnonzero", "unique", "array_equal", "allclose"}
NAMES = sorted(n for n, op in ALL.items() if op.domains or op.samples)


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
                arrays.append(np.asarray(np.round(values) if domain.integers else values))
            made.append((tuple(arrays), {}))
        return made
    assert op.samples is not None
    return [(c.args, c.kwargs) for c in op.samples(source)]


def _floats(tree: Any) -> list[Array]:
    if isinstance(tree, np.ndarray):
        return [tree] if tree.dtype.kind == "f" else []
    return [a for t in tree for a in _floats(t)] if isinstance(tree, tuple | list) else []


def _with(tree: Any, supply: Any) -> Any:
    if isinstance(tree, np.ndarray):
        return next(supply) if tree.dtype.kind == "f" else tree
    return type(tree)([_with(t, supply) for t in tree]) if isinstance(tree, tuple | list) else tree


def _batches(arrays: list[Array], names: int) -> list[Array]:
    """Each array and two others like it, which keep what an operation may insist on (symmetry, positivity)."""
    return [np.stack([a, a * 1.25, a * 0.5]) for a in arrays]


def _listed(result: Any) -> list[Array]:
    items = result if isinstance(result, tuple | list) else (result,)
    return [np.asarray(r.detach() if isinstance(r, jg.Tensor) else r) for r in items]


def _is_batchable(tree: Any) -> bool:
    return bool(_floats(tree))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_in_a_batch(name: str) -> None:
    op = ALL[name]
    for args, kwargs in _calls(name):
        arrays = _floats(args)
        if not arrays or (name in ("std", "var") and arrays[0].size == 0):
            continue

        def one(*values: Any, args: Any = args, kwargs: Any = kwargs) -> Any:
            found = op.function(*_with(args, iter(values)), **kwargs)
            return tuple(found) if isinstance(found, tuple | list) else found

        batches = _batches(arrays, len(arrays))
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
            for k, value in enumerate(found):
                wanted = np.stack([row[k] for row in rows])
                assert value.dtype == wanted.dtype, (name, axes)
                np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-12, err_msg=f"{name} {axes}")


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
    arrays = _floats(args)
    if not arrays or not all(a.size for a in arrays):
        pytest.skip("no operand to differentiate")

    def one(*values: Any) -> Any:
        found = op.function(*_with(args, iter(values)), **kwargs)
        return tuple(found) if isinstance(found, tuple | list) else found

    numbers = tuple(range(len(arrays)))
    scalar = _scalar_of(one)
    batches = _batches(arrays, len(arrays))
    rows = [jg.grad(scalar, numbers)(*(b[i] for b in batches)) for i in range(3)]
    per_example = jg.vmap(jg.grad(scalar, numbers))(*batches)
    of_sum = jg.grad(lambda *values: jg.vmap(scalar)(*values).sum(), numbers)(*batches)
    for k in numbers:
        wanted = np.stack([r[k] for r in rows])
        scale = 1e-11 * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(per_example[k], wanted, rtol=1e-10, atol=scale, err_msg=name)
        np.testing.assert_allclose(of_sum[k], wanted, rtol=1e-10, atol=scale, err_msg=name)
