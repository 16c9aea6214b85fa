"""Axes as NumPy takes them, where it is not obvious which: those of scalars, and bools. NumPy itself is the oracle."""

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.errors import UnsupportedError

AXES: tuple[Any, ...] = (0, -1, 1, None, (), (0,))

# The name of a function, and what it is given beside the scalar.
OF_SCALARS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "amax", "amin", "ptp", "any", "all", "count_nonzero"), ()),
    **dict.fromkeys(("mean", "var", "std", "median", "average", "nansum", "nanmean", "nanmax", "nanmin"), ()),
    **dict.fromkeys(("cumsum", "cumprod", "sort", "argsort", "squeeze", "flip"), ()),
    "quantile": (0.5,),
    "percentile": (30.0,),
    "repeat": (2,),
    "take": (0,),
    "delete": (0,),
    "expand_dims": (),
    "roll": (1,),
    "take_along_axis": (np.zeros(1, int),),
    "linalg.norm": (None,),
    "append": (2.0,),
    "array_split": (1,),
}
ONE_AXIS = ("cumulative_sum", "cumulative_prod", "argmax", "argmin", "cumsum", "take", "repeat", "argsort", "unstack")
NOT_NUMPYS = {  # what NumPy takes or refuses otherwise, on purpose
    ("roll", ()),  # NumPy fails on it by accident
    ("cumulative_sum", (0,)), ("cumulative_prod", (0,)),  # a tuple, where NumPy's documentation says one axis
    ("argmax", ()), ("argmin", ()),  # tuples of axes are an addition
}  # fmt: skip


def found(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def outcome(call: Any) -> Any:
    """The value as NumPy has it, or that there is none."""
    try:
        result = call()
    except (TypeError, ValueError, IndexError):
        return "raises"
    if isinstance(result, tuple | list):
        return [(np.shape(r), np.asarray(r).dtype, np.asarray(r).tolist()) for r in map(plain, result)]
    result = np.asarray(plain(result))
    return result.shape, result.dtype, result.tolist()


def plain(x: Any) -> Any:
    return x.numpy() if isinstance(x, jg.Tensor) else x


CASES = [
    (name, axis)
    for name in dict.fromkeys((*OF_SCALARS, *ONE_AXIS))
    for axis in AXES
    if (name, axis) not in NOT_NUMPYS and hasattr(np, name.partition(".")[0])  # older NumPy has fewer
]


@pytest.mark.parametrize(("name", "axis"), CASES, ids=[f"{n} {a}" for n, a in CASES])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_axes_of_scalars(name: str, axis: Any) -> None:
    more = OF_SCALARS.get(name, ())
    expected = outcome(lambda: found(np, name)(np.array(0.5), *more, axis=axis))
    assert outcome(lambda: found(jg, name)(jg.tensor(0.5), *more, axis=axis)) == expected
    assert outcome(lambda: found(np, name)(jg.tensor(0.5), *more, axis=axis)) == expected
    assert outcome(lambda: jg.jit(lambda x: found(np, name)(x, *more, axis=axis))(jg.tensor(0.5))) == expected


def test_axes_of_scalars_are_differentiated() -> None:
    functions = (
        lambda x: 3 * np.repeat(x, 2, axis=0).sum(),
        lambda x: 2 * np.take(x, [0, 0, 0], axis=-1).sum(),
        lambda x: 6 * np.squeeze(x, axis=0),
        lambda x: 6 * np.cumsum(x, axis=0)[0],
        lambda x: 6 * np.diff(x, 0),
        lambda x: 6 * np.take(x, np.argsort(x)).sum(),
    )
    for function in functions:
        assert jg.grad(function)(0.5) == 6.0
        assert jg.jit(jg.grad(function))(0.5) == 6.0
        x = jg.tensor(0.5, requires_grad=True)
        function(x).backward()
        assert x.grad.item() == 6.0
    np.testing.assert_array_equal(jg.vmap(lambda x: np.repeat(x, 2, axis=0))(np.arange(3.0)), [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(jg.vmap(np.argsort)(np.arange(3.0)), np.zeros((3, 1)))
    np.testing.assert_array_equal(jg.vmap(lambda x: np.take(x, [0, 0], axis=0))(np.arange(2.0)), [[0, 0], [1, 1]])


def test_no_difference_of_a_scalar() -> None:
    assert outcome(lambda: jg.diff(0.5, 0)) == outcome(lambda: np.diff(0.5, 0))
    assert outcome(lambda: jg.diff(0.5)) == outcome(lambda: np.diff(0.5)) == "raises"
    assert jg.cumulative_sum(0.5, include_initial=True).tolist() == [0.0, 0.5]
    with pytest.raises(TypeError, match="decimals must be an integer"):
        jg.round(0.5, 0.5)


# --------------------------------------------------------------------------- bools

A = np.arange(12.0).reshape(2, 3, 2)

# A bool as an axis or extent, where NumPy raises TypeError.
REFUSED = {
    "reductions": lambda xp, x: x.sum(axis=True),
    "keepdims meant": lambda xp, x: xp.max(x, True),
    "a tuple": lambda xp, x: xp.mean(x, axis=(0, True)),
    "argmax": lambda xp, x: xp.argmax(x, axis=False),
    "any": lambda xp, x: xp.any(x, axis=True),
    "var": lambda xp, x: xp.var(x, axis=True),
    "nansum": lambda xp, x: xp.nansum(x, axis=True),
    "cumsum": lambda xp, x: xp.cumsum(x, axis=True),
    "argsort": lambda xp, x: xp.argsort(x, axis=True),
    "concatenate": lambda xp, x: xp.concatenate([x, x], axis=True),
    "append": lambda xp, x: xp.append(x, x, axis=True),
    "take": lambda xp, x: xp.take(x, 0, axis=True),
    "repeat": lambda xp, x: xp.repeat(x, 2, axis=True),
    "compress": lambda xp, x: xp.compress([True, True], x, axis=True),
    "squeeze": lambda xp, x: xp.squeeze(x[:1], False),
    "transpose": lambda xp, x: xp.transpose(x, (True, 0, 2)),
    "transpose, a method": lambda xp, x: x.transpose(True, 0, 2),
    "reshape": lambda xp, x: xp.reshape(x, (True, 12)),
    "reshape, a method": lambda xp, x: x.reshape(True, 12),
    "reshape to one extent": lambda xp, x: xp.reshape(x[0, :1, :1], True),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x[:1, :1], (True, True, 2)),
    "norm of matrices": lambda xp, x: xp.linalg.norm(x, axis=(False, True)),
    "tensordot": lambda xp, x: xp.tensordot(x, x, ((True,), (True,))),
    "einsum": lambda xp, x: xp.einsum(x, [0, True, 2]),
    "numpy.True_": lambda xp, x: xp.sum(x, axis=np.True_),
    "zeros": lambda xp, x: xp.zeros(True),
    "ones": lambda xp, x: xp.ones((True, 2)),
    "eye": lambda xp, x: xp.eye(True),
    "vander": lambda xp, x: xp.vander(x[0, :, 0], True),
    "broadcast_shapes": lambda xp, x: xp.broadcast_shapes((True, 2)),
}
# NumPy takes these as 0 and 1; jitgrad has one rule for all axes.
REFUSED_HERE_ONLY = {
    "median": lambda xp, x: xp.median(x, axis=True),
    "sort": lambda xp, x: xp.sort(x, axis=True),
    "diff": lambda xp, x: xp.diff(x, axis=True),
    "stack": lambda xp, x: xp.stack([x, x], axis=True),
    "take_along_axis": lambda xp, x: xp.take_along_axis(x, np.zeros((2, 1, 2), int), axis=True),
    "expand_dims": lambda xp, x: xp.expand_dims(x, True),
    "moveaxis": lambda xp, x: xp.moveaxis(x, True, 0),
    "moveaxis, where to": lambda xp, x: xp.moveaxis(x, 0, True),
    "swapaxes": lambda xp, x: xp.swapaxes(x, True, 0),
    "roll": lambda xp, x: xp.roll(x, 1, axis=True),
    "flip": lambda xp, x: xp.flip(x, axis=True),
    "split": lambda xp, x: xp.split(x, 1, axis=True),
    "unstack": lambda xp, x: xp.unstack(x, axis=True),
    "delete": lambda xp, x: xp.delete(x, 0, axis=True),
    "diagonal": lambda xp, x: xp.diagonal(x, 0, False, True),
    "norm": lambda xp, x: xp.linalg.norm(x, axis=True),
}
# Amounts, which NumPy takes as 0 and 1.
AMOUNTS = {
    "roll": lambda xp, x: xp.roll(x, True),
    "repeat": lambda xp, x: xp.repeat(x, True),
    "repeat each": lambda xp, x: xp.repeat(x, [True, False], axis=0),
    "tile": lambda xp, x: xp.tile(x, (True, 2)),
    "diff": lambda xp, x: xp.diff(x, True),
    "rot90": lambda xp, x: xp.rot90(x, True),
    "diag": lambda xp, x: xp.diag(x[0, :, 0], True),
    "tril": lambda xp, x: xp.tril(x, True),
    "split": lambda xp, x: xp.split(x, [True])[1],
    "round": lambda xp, x: xp.round(x / 3, True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bools_are_no_axes_and_no_extents(name: str) -> None:
    with pytest.raises(TypeError):
        REFUSED[name](np, A)
    with pytest.raises(UnsupportedError, match="must be an integer"):
        REFUSED[name](jg, jg.tensor(A))
    with pytest.raises(UnsupportedError, match="must be an integer"):
        jg.jit(lambda x: REFUSED[name](jg, x))(A)


@pytest.mark.parametrize("name", REFUSED_HERE_ONLY)
def test_bools_are_axes_of_no_function(name: str) -> None:
    with pytest.raises(UnsupportedError, match="must be an integer"):
        REFUSED_HERE_ONLY[name](jg, jg.tensor(A))


@pytest.mark.parametrize("name", AMOUNTS)
def test_bools_are_amounts(name: str) -> None:
    expected = AMOUNTS[name](np, A)
    np.testing.assert_array_equal(AMOUNTS[name](jg, jg.tensor(A)).numpy(), expected)
    np.testing.assert_array_equal(jg.jit(lambda x: AMOUNTS[name](jg, x))(A), expected)
