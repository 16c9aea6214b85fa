"""The compiled look at arguments: frequent calls take a short way, and nothing that differs slips through."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitgrad as jg
from jitgrad.kernels.guards import USABLE, guard_of
from jitgrad.transforms.jit import jit

DTYPES = ["float64", "float32", "int64", "int32", "bool", "uint8"]


class Subclass(np.ndarray[Any, Any]):
    """An array whose class may mean something."""


OTHERS = {
    "another shape": np.ones((3, 2)),
    "fewer axes": np.ones(6),
    "no axes": np.ones(()),
    "float32": np.ones((2, 3), np.float32),
    "int64": np.ones((2, 3), np.int64),
    "other byte order": np.ones((2, 3)).astype(">f8"),
    "column order": np.asfortranarray(np.ones((2, 3))),
    "strided": np.ones((2, 6))[:, ::2],
    "unaligned": np.ones(49, np.int8)[1:].view(np.float64).reshape(2, 3),
    "subclass": np.ones((2, 3)).view(Subclass),
    "number": 1.5,
    "tensor": jg.tensor(np.ones((2, 3))),
    "tracked": jg.tensor(np.ones((2, 3)), requires_grad=True),
    "list": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
    "none": None,
    "fraction": Fraction(1, 2),
    "empty": np.ones((0, 3)),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("place", [0, 1])
def test_a_guard_refuses_everything_else(name: str, place: int) -> None:
    array = np.zeros((2, 3))
    guard, table = guard_of([array, array], USABLE)
    arguments: list[Any] = [np.ones((2, 3)), np.ones((2, 3))]
    assert guard(*arguments, table) == 1
    arguments[place] = OTHERS[name]
    assert guard(*arguments, table) == 0


def test_a_guard_takes_read_only_arrays_and_views() -> None:
    guard, table = guard_of([np.zeros((2, 3))], USABLE)
    frozen = np.ones((2, 3))
    frozen.flags.writeable = False
    assert guard(frozen, table) == 1
    assert guard(np.ones((4, 3))[1:3], table) == 1


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=4), st.sampled_from(DTYPES)), min_size=2, max_size=2))
def test_a_guard_takes_what_has_the_same_dtype_and_shape(specs: list[tuple[list[int], str]]) -> None:
    first, second = (np.zeros(shape, dtype) for shape, dtype in specs)
    guard, table = guard_of([first], USABLE)
    assert guard(second, table) == (first.shape == second.shape and first.dtype == second.dtype)


NUMBERS: dict[str, Any] = {"float": 1.5, "int": 2, "bool": True}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "other", [2.5, 7, False, np.float64(1.0), np.int64(3), np.array(1.0), None, [1.0], 1 + 2j, Fraction(1, 2)]
)
def test_a_guard_takes_numbers_of_the_same_type_alone(name: str, other: Any) -> None:
    guard, table = guard_of([NUMBERS[name], np.ones(3)], USABLE)
    assert guard(other, np.zeros(3), table) == (type(other) is type(NUMBERS[name]))
    assert guard(NUMBERS[name], np.zeros(4), table) == 0


@pytest.mark.parametrize("name", NUMBERS)
def test_calls_with_numbers(name: str) -> None:
    """A number stays weak, and one of another type, or too large for an array of int64, goes another way."""
    function = jit(lambda x, s: x * s)
    x = np.arange(3, dtype=np.float32)
    for _ in range(40):
        found = function(x, NUMBERS[name])
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, x * NUMBERS[name])
    assert function._quick
    for value in (0.25, 3, True, -(2**63), np.float32(0.5)):
        found = function(x, value)
        np.testing.assert_array_equal(found, x * value)
    if name == "int":
        with pytest.raises(jg.errors.DtypeError, match="does not fit"):
            function(np.arange(3), 2**63)


@pytest.mark.parametrize("name", [n for n in OTHERS if n not in ("none", "fraction", "list")])
def test_calls_after_many_alike(name: str) -> None:
    """The same numbers, whatever a call brings after the short way was taken."""
    function = jit(jg.value_and_grad(lambda x, y: jg.sum(jg.sin(x) * y)))
    x, y = np.arange(6.0).reshape(2, 3), np.full((2, 3), 2.0)
    for _ in range(40):
        value, gradient = function(x, y)
    assert function._quick
    np.testing.assert_allclose(value, np.sum(np.sin(x) * y))
    np.testing.assert_allclose(gradient, np.cos(x) * y)
    other = OTHERS[name]
    if np.ndim(other.detach() if isinstance(other, jg.Tensor) else other) == 1:
        return  # does not fit the other operand
    try:
        wanted = np.sum(np.sin(x) * np.asarray(other.detach() if isinstance(other, jg.Tensor) else other))
    except ValueError:
        return
    for _ in range(40):
        found = function(x, other)[0]
        np.testing.assert_allclose(found.detach() if isinstance(found, jg.Tensor) else found, wanted, rtol=1e-6)
    np.testing.assert_allclose(function(x, y)[0], value)
    if name == "tracked":
        assert isinstance(function(x, other)[0], jg.Tensor)


def test_another_number_of_arguments_is_an_error_of_the_function() -> None:
    function = jit(lambda x, y=2.0: x * y)
    for _ in range(40):
        function(np.ones(2), np.ones(2))
    np.testing.assert_array_equal(function(np.ones(2)), [2.0, 2.0])
    with pytest.raises(TypeError, match="positional argument"):
        function(np.ones(2), np.ones(2), np.ones(2))


def test_captured_arrays_are_read_again() -> None:
    scale = jg.tensor(np.ones(2))
    function = jit(lambda x: x * scale)
    for _ in range(40):
        function(np.ones(2))
    scale[0] = 5.0
    np.testing.assert_array_equal(function(np.ones(2)), [5.0, 1.0])
