"""Axes as NumPy takes them, where it is not obvious which: those of scalars. NumPy itself is the oracle."""

from typing import Any

import numpy as np
import pytest

import jitgrad as jg

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
