"""Gradients against central finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.autograd.differentiate import grad
from jitgrad.core.aval import FLOAT64, aval_of, is_float
from jitgrad.core.modes import grad_mode, recording_mode
from jitgrad.errors import ArgumentError, DtypeError, GradientError, UnsupportedError
from jitgrad.tensor import Tensor
from jitgrad.tensor.tensor import make

__all__ = ["gradcheck", "gradgradcheck"]

Array = np.ndarray[Any, Any]


def _same_layout(array: Array) -> Array:
    """A copy of the same strides, gaps and order included."""
    if not array.size:
        return array.copy()
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.zeros((high - low) // array.itemsize, array.dtype)
    offset = (array.__array_interface__["data"][0] - low) // array.itemsize
    copied = np.ndarray(array.shape, array.dtype, memory, offset * array.itemsize, array.strides)
    copied[...] = array
    return copied


class _Inputs:
    """The arguments of a checked function; the float64 ones that are differentiated can be shifted one by one."""

    def __init__(self, inputs: Any) -> None:
        listed: Sequence[Any] = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
        self.arguments = listed
        tracked = [i for i, a in enumerate(listed) if isinstance(a, Tensor) and a.requires_grad]
        self.positions = tracked or [i for i, a in enumerate(listed) if _is_float_array(a)]
        if not self.positions:
            raise ArgumentError("gradcheck: no input is a float64 array or a tensor that requires grad")
        self.arrays: dict[int, Array] = {}
        for i in self.positions:
            value = listed[i]
            array = value._array("gradcheck") if isinstance(value, Tensor) else value
            if array.dtype != FLOAT64:
                raise DtypeError(f"gradcheck: input {i} is {array.dtype}; finite differences need float64")
            if array.size and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)):
                raise ArgumentError(f"gradcheck: elements of input {i} share memory (a broadcast array); pass a copy")
            self.arrays[i] = array

    def made(self, position: int = -1, index: tuple[int, ...] = (), shift: float = 0.0) -> list[Any]:
        """Fresh arguments, with one element of one of them shifted."""
        made = list(self.arguments)
        for i, array in self.arrays.items():
            copied = _same_layout(array)
            if i == position:
                copied[index] += shift
            made[i] = make(copied, aval_of(copied)).requires_grad_()
        return made


def _is_float_array(argument: Any) -> bool:
    return isinstance(argument, Tensor | np.ndarray) and is_float(argument.dtype)


def _outputs(f: Callable[..., Any], arguments: Sequence[Any]) -> list[Tensor]:
    found = f(*arguments)
    listed = list(found) if isinstance(found, tuple | list) else [found]
    for position, output in enumerate(listed):
        if not isinstance(output, Tensor):
            raise UnsupportedError(
                f"gradcheck: output {position} of the function is a {type(output).__name__}, not a tensor"
            )
    return [o for o in listed if is_float(o.dtype)]


def _values(f: Callable[..., Any], arguments: Sequence[Any]) -> list[Array]:
    return [o._array("gradcheck").astype(FLOAT64) for o in _outputs(f, arguments)]


def _numbers(f: Callable[..., Any], inputs: _Inputs, eps: float) -> dict[int, list[Array]]:
    """Finite differences: for each input, and each output, an array of shape output + input."""
    found: dict[int, list[Array]] = {}
    shapes = [v.shape for v in _values(f, inputs.made())]
    for position, array in inputs.arrays.items():
        slopes = [np.zeros((*shape, *array.shape)) for shape in shapes]
        for index in np.ndindex(array.shape):
            high, low = array[index] + eps, array[index] - eps
            above = _values(f, inputs.made(position, index, eps))
            below = _values(f, inputs.made(position, index, -eps))
            if [a.shape for a in above] != shapes or [b.shape for b in below] != shapes:
                raise ArgumentError("gradcheck: the shapes of the outputs change with the values of the inputs")
            for slope, a, b in zip(slopes, above, below, strict=True):
                with np.errstate(all="ignore"):
                    slope[(..., *index)] = (a - b) / (high - low)
        found[position] = slopes
    return found


def _gradients(f: Callable[..., Any], inputs: _Inputs) -> dict[int, list[Array]]:
    """The same by backward, one element of one output at a time."""
    arguments = inputs.made()
    outputs = _outputs(f, arguments)
    wanted = [arguments[i] for i in inputs.positions]
    found: dict[int, list[Array]] = {i: [] for i in inputs.positions}
    for output in outputs:
        slopes = {i: np.zeros((*output.shape, *inputs.arrays[i].shape)) for i in inputs.positions}
        if output.requires_grad:
            for index in np.ndindex(output.shape):
                unit = np.zeros(output.shape, output.dtype)
                unit[index] = 2.0  # not 1, which would hide a rule that is not linear in the cotangent
                one = make(unit, aval_of(unit))
                gradients = grad(output, wanted, one, retain_graph=True, materialize_grads=True)
                for i, gradient in zip(inputs.positions, gradients, strict=True):
                    assert gradient is not None
                    slopes[i][index] = 0.5 * gradient._value
        for i, slope in slopes.items():
            found[i].append(slope)
    return found


def _mistakes(
    numbers: dict[int, list[Array]], gradients: dict[int, list[Array]], inputs: _Inputs, atol: float, rtol: float
) -> Iterator[str]:
    for i, slopes in numbers.items():
        array = inputs.arrays[i]
        for o, (number, gradient) in enumerate(zip(slopes, gradients[i], strict=True)):
            with np.errstate(invalid="ignore"):
                right = np.abs(number - gradient) <= atol + rtol * np.abs(number)  # False where one is NaN
            if right.all():
                continue
            wrong = np.argwhere(~right)
            index = tuple(int(k) for k in wrong[0])
            split = len(index) - array.ndim
            yield (
                f"the derivative of output {o}{list(index[:split])} with respect to input {i}{list(index[split:])} "
                f"(= {array[index[split:]]}) is {gradient[index]} by backward, {number[index]} by finite differences; "
                f"{len(wrong)} of {right.size} derivatives of this pair differ by more than {atol} + {rtol} * |numeric|"
            )


def gradcheck(
    f: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare the gradients of ``f(*inputs)`` with central finite differences, every element of every output.

    ``inputs``: one argument or a sequence. Differentiated are the tensors that require grad, or else every float array;
    they must be float64 and keep their strides, so that non-contiguous ones are checked as such. ``f`` returns a tensor
    or several. ``eps``: the step. Passed where ``|backward - numeric| <= atol + rtol * |numeric|``.

    Returns True, or raises GradientError that names output, input, index and both numbers (False with
    ``raise_exception=False``). ArgumentError without a differentiable input, DtypeError for float32 ones.

    >>> import jitgrad as jg
    >>> x = jg.tensor([0.5, 2.0], requires_grad=True)
    >>> jg.autograd.gradcheck(lambda x: x * x, x)
    True
    """
    checked = _Inputs(inputs)
    token = grad_mode.set(recording_mode())
    try:
        gradients = _gradients(f, checked)
        again = _gradients(f, checked)
        numbers = _numbers(f, checked, eps)
    finally:
        grad_mode.reset(token)
    mistake = next(_mistakes(numbers, gradients, checked, atol, rtol), None)
    if mistake is None and not _same(gradients, again):
        mistake = "two backward passes give different gradients: the function is not deterministic"
    if mistake is not None and raise_exception:
        raise GradientError(f"gradcheck: {mistake}")
    return mistake is None


def _same(first: dict[int, list[Array]], second: dict[int, list[Array]]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for i in first for a, b in zip(first[i], second[i], strict=True))


def gradgradcheck(
    f: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare second derivatives: ``gradcheck`` of the gradient of ``f`` as a function of inputs and cotangents.

    ``grad_outputs``: cotangents of the float outputs, by default arbitrary fixed numbers. Otherwise as ``gradcheck``.

    >>> import jitgrad as jg
    >>> x = jg.tensor([0.5, 2.0], requires_grad=True)
    >>> jg.autograd.gradgradcheck(lambda x: x * x * x, x)
    True
    """
    checked = _Inputs(inputs)
    token = grad_mode.set(recording_mode())
    try:
        values = _values(f, checked.made())
    finally:
        grad_mode.reset(token)
    if grad_outputs is None:
        rng = np.random.default_rng(20)
        cotangents: list[Any] = [rng.uniform(0.5, 1.5, v.shape) * rng.choice([-1.0, 1.0], v.shape) for v in values]
    else:
        cotangents = list(grad_outputs) if isinstance(grad_outputs, tuple | list) else [grad_outputs]
    if len(cotangents) != len(values):
        raise ArgumentError(f"gradgradcheck: {len(cotangents)} grad_outputs for {len(values)} float outputs")
    count = len(checked.arguments)

    def first(*arguments: Any) -> tuple[Any, ...]:
        outputs = _outputs(f, arguments[:count])
        pairs = [(o, g) for o, g in zip(outputs, arguments[count:], strict=True) if o.requires_grad]
        return grad(
            [o for o, _ in pairs],
            [arguments[i] for i in checked.positions],
            [g for _, g in pairs],
            create_graph=True,
            materialize_grads=True,
        )

    extended = [*checked.made(), *[_leaf(c) for c in cotangents]]
    return gradcheck(first, extended, eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception)


def _leaf(value: Any) -> Tensor:
    array = np.asarray(value._value if isinstance(value, Tensor) else value, FLOAT64).copy()
    return make(array, aval_of(array)).requires_grad_()
