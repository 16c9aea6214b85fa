"""Arrays made of numbers: constants, ranges, grids of ones and zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.aval import FLOAT64, broadcasts_to, check_dtype, is_float, result_dtype
from jitgrad.core.dispatch import as_value, constant, is_value, wrap
from jitgrad.core.graph import Constant, Tracer
from jitgrad.core.primitive import Value
from jitgrad.core.trace import current_graph
from jitgrad.errors import ArgumentError, ShapeError, UnsupportedError
from jitgrad.ops.axes import axis_of, index_of, integer_of
from jitgrad.ops.blocks import Call, operation
from jitgrad.ops.joining import stack
from jitgrad.ops.linear import convert, copy_of, expand
from jitgrad.ops.shape import extents_of

Array = np.ndarray[Any, Any]


def _made(array: Array, requires_grad: bool) -> Value:
    graph = current_graph()
    # a fresh array of a traced function belongs to the trace, where writes to it are recorded
    value = wrap(array) if graph is None else wrap(Tracer(graph, Constant(array, made=True)))
    return value._track() if requires_grad else value


def _repeated(
    number: float, shape: tuple[int, ...], dtype: np.dtype[Any], requires_grad: bool, like: Any = None
) -> Value:
    """One number everywhere; in a trace no array of it is made, and its shape may be that of ``like``."""
    graph = current_graph()
    if is_value(like) and like.is_traced:
        value = constant(number, dtype, like)
    elif graph is not None:
        value, shape = _made(np.array(number, dtype), False), tuple(map(int, shape))
    else:
        return _made(np.full(shape, number, dtype) if number else np.zeros(shape, dtype), requires_grad)
    return _spread(value, shape, requires_grad)


def _extents(shape: Any, what: str) -> tuple[int, ...]:
    extents = extents_of(shape, f"{what}: each extent")
    if any(n < 0 for n in extents):
        raise ShapeError(f"{what}: extents cannot be negative, as in {extents}")
    return extents


def _dtype(dtype: Any, what: str) -> np.dtype[Any]:
    return FLOAT64 if dtype is None else check_dtype(dtype, what)


# --------------------------------------------------------------------------- constants


@operation(samples=None, nondiff=True)
def zeros(shape: Any, dtype: Any = None, *, requires_grad: bool = False) -> Value:
    """Zeros of a shape (an int or a tuple), float64 by default.

    Raises ShapeError for negative extents, DtypeError for dtypes that are not supported.

    >>> import jitgrad as jg
    >>> jg.zeros((2, 2))
    tensor([[0., 0.],
            [0., 0.]])
    """
    return _repeated(0, _extents(shape, "zeros"), _dtype(dtype, "zeros"), requires_grad)


@operation(samples=None, nondiff=True)
def ones(shape: Any, dtype: Any = None, *, requires_grad: bool = False) -> Value:
    """Ones of a shape (an int or a tuple), float64 by default."""
    return _repeated(1, _extents(shape, "ones"), _dtype(dtype, "ones"), requires_grad)


@operation(samples=None, nondiff=True)
def empty(shape: Any, dtype: Any = None, *, requires_grad: bool = False) -> Value:
    """An array of a shape (an int or a tuple) with whatever the memory holds, float64 by default."""
    return _made(np.empty(_extents(shape, "empty"), _dtype(dtype, "empty")), requires_grad)


@operation(
    samples=lambda rng: [
        Call(((2, 3), rng.uniform(-2.0, 2.0, ())), {}),
        Call(((2, 3), rng.uniform(-2.0, 2.0, 3)), {}),
    ]
)
def full(shape: Any, fill_value: Any, dtype: Any = None, *, requires_grad: bool = False) -> Value:
    """An array of a shape, filled with a value (broadcast where it is an array); its dtype is that of the value.

    A tracked value stays tracked. Raises ShapeError where it does not broadcast. Derivative: the sum of the cotangent
    over the repeated axes.

    >>> import jitgrad as jg
    >>> jg.full(2, 7.0)
    tensor([7., 7.])
    """
    value = _fill_value(fill_value, None, "full")
    wanted = value.dtype if dtype is None else check_dtype(dtype, "full")
    return _filled(_extents(shape, "full"), value, wanted, requires_grad, "full")


def _fill_value(given: Any, like: Any, what: str) -> Value:
    value = as_value(given, what)
    if not isinstance(given, bool | int | float):
        return value
    traced = is_value(like) and like.is_traced
    return constant(value._value, value.dtype, like) if traced else _made(value._value, False)


def _filled(shape: tuple[int, ...], value: Value, dtype: np.dtype[Any], requires_grad: bool, what: str) -> Value:
    if value.dtype != dtype:
        value = convert(value, dtype=dtype)
    if not broadcasts_to(value.shape, shape):
        raise ShapeError(f"{what}: a value of shape {value.shape} does not broadcast to {shape}")
    return _spread(value, shape, requires_grad)


def _spread(value: Value, shape: tuple[int, ...], requires_grad: bool) -> Value:
    filled = copy_of(expand(value, shape=shape))
    if requires_grad and filled._edge is None:
        filled._track()
    return filled


def _like(x: Any, dtype: Any, shape: Any, what: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    x = as_value(x, what)
    return (
        x.shape if shape is None else _extents(shape, what),
        x.dtype if dtype is None else check_dtype(dtype, what),
    )


def _repeated_like(number: float, x: Any, dtype: Any, shape: Any, requires_grad: bool, what: str) -> Value:
    return _repeated(number, *_like(x, dtype, shape, what), requires_grad, x if shape is None else None)


@operation(samples=None, nondiff=True)
def zeros_like(x: Any, dtype: Any = None, *, shape: Any = None, requires_grad: bool = False) -> Value:
    """Zeros with the shape and dtype of another array."""
    return _repeated_like(0, x, dtype, shape, requires_grad, "zeros_like")


@operation(samples=None, nondiff=True)
def ones_like(x: Any, dtype: Any = None, *, shape: Any = None, requires_grad: bool = False) -> Value:
    """Ones with the shape and dtype of another array."""
    return _repeated_like(1, x, dtype, shape, requires_grad, "ones_like")


@operation(samples=None, nondiff=True)
def empty_like(x: Any, dtype: Any = None, *, shape: Any = None, requires_grad: bool = False) -> Value:
    """An array with the shape and dtype of another one and whatever the memory holds."""
    return _made(np.empty(*_like(x, dtype, shape, "empty_like")), requires_grad)


@operation(
    samples=lambda rng: [
        Call((rng.uniform(-2.0, 2.0, (2, 3)), rng.uniform(-2.0, 2.0, ())), {}),
        Call((rng.uniform(-2.0, 2.0, (2, 3)), rng.uniform(-2.0, 2.0, 3)), {}),
    ]
)
def full_like(x: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None, requires_grad: bool = False) -> Value:
    """A value, repeated in the shape and converted to the dtype of another array.

    A tracked value stays tracked. Derivative: the sum of the cotangent over the repeated axes for the value, none for
    ``x``.
    """
    extents, wanted = _like(x, dtype, shape, "full_like")
    return _filled(extents, _fill_value(fill_value, x, "full_like"), wanted, requires_grad, "full_like")


# --------------------------------------------------------------------------- ranges


def _plain_number(value: Any, what: str) -> Any:
    """A number, out of an untracked 0-d tensor too."""
    if not is_value(value):
        return value
    if value._edge is not None or value.is_traced:
        raise UnsupportedError(
            f"{what}: the number of elements would depend on a value that is differentiated; "
            "write start + step * jg.arange(n)"
        )
    return value._array(what)[()]


@operation(samples=None, nondiff=True)
def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, requires_grad: bool = False) -> Value:
    """Numbers from ``start`` (0 where only one number is given) up to, not including, ``stop``.

    int64 for integers, float64 for floats. Raises UnsupportedError for tracked or traced bounds.

    >>> import jitgrad as jg
    >>> jg.arange(1.0, 4.0)
    tensor([1., 2., 3.])
    """
    bounds = [_plain_number(v, "arange") for v in (start, stop, step)]
    if bounds[1] is None:
        bounds[:2] = [0, bounds[0]]
    wanted = None if dtype is None else check_dtype(dtype, "arange")
    try:
        array = np.arange(*bounds, dtype=wanted)
    except (ZeroDivisionError, ValueError, TypeError) as error:
        raise ArgumentError(f"arange: {error}") from None
    return _made(array.astype(check_dtype(array.dtype, "arange"), copy=False), requires_grad)


@operation(
    samples=lambda rng: [
        Call((rng.uniform(-2.0, 2.0, ()), rng.uniform(-2.0, 2.0, ()), 4), {}),
        Call((rng.uniform(-2.0, 2.0, 3), rng.uniform(-2.0, 2.0, ()), 5), {"endpoint": False, "axis": -1}),
        Call((rng.uniform(-2.0, 2.0, ()), rng.uniform(-2.0, 2.0, ()), 1), {}),
    ]
)
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    requires_grad: bool = False,
) -> Any:
    """``num`` evenly spaced numbers from ``start`` to ``stop`` (the last one, unless ``endpoint=False``).

    ``start`` and ``stop`` may be arrays: the numbers lie along ``axis``. ``retstep=True`` gives their distance too.
    Derivative: ``1 - t`` for the start and ``t`` for the stop, where t runs from 0 to 1.

    >>> import jitgrad as jg
    >>> jg.linspace(0.0, 1.0, 3)
    tensor([0. , 0.5, 1. ])
    """
    count = index_of(num, "linspace: num")
    if count < 0:
        raise ArgumentError(f"linspace: num must not be negative, it is {count}")
    wanted = None if dtype is None else check_dtype(dtype, "linspace")
    parts = max(count - 1 if endpoint else count, 0)
    if not is_value(start) and not is_value(stop):
        low, high = (as_value(v, "linspace")._array("linspace") for v in (start, stop))
        at = axis_of(axis, max(low.ndim, high.ndim) + 1, "linspace: axis")
        with np.errstate(all="ignore"):
            line, step = np.linspace(low, high, count, endpoint, retstep=True, dtype=wanted, axis=at)
        value = _made(line, requires_grad)
        return (value, wrap(np.asarray(step))) if retstep else value
    low, high = as_value(start, "linspace"), as_value(stop, "linspace")
    work = result_dtype(low.dtype, high.dtype)
    work = work if is_float(work) else FLOAT64
    low, high = (v if v.dtype == work else convert(v, dtype=work) for v in (low, high))
    ndim = max(low.ndim, high.ndim)
    at = axis_of(axis, ndim + 1, "linspace: axis")
    t = np.linspace(0.0, 1.0, count, endpoint).astype(work).reshape((-1,) + (1,) * ndim)
    line = low * (1.0 - t) + high * t  # exact at both ends
    if at:
        order = list(range(1, ndim + 1))
        order.insert(at, 0)
        line = line.transpose(order)
    if wanted is not None and wanted != work:
        if wanted.kind in "iu":
            line = np.floor(line)  # as NumPy
        line = convert(line, dtype=wanted)
    if requires_grad and line._edge is None:
        line = line.detach()._track()
    return (line, (high - low) / float(parts) if parts else high * float("nan")) if retstep else line


@operation(
    samples=lambda rng: [Call((rng.uniform(-1.0, 1.0, ()), rng.uniform(-1.0, 1.0, ()), 4), {})],
)
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
    *,
    requires_grad: bool = False,
) -> Value:
    """``base`` to the powers of evenly spaced exponents.

    Derivative: that of ``base ** linspace(start, stop)``.
    """
    if any(is_value(v) for v in (start, stop, base)):
        powers = base ** linspace(as_value(start), as_value(stop), num, endpoint, axis=axis)
    else:
        count = index_of(num, "logspace: num")
        with np.errstate(all="ignore"):
            powers = wrap(np.asarray(np.logspace(start, stop, count, endpoint, base, axis=axis)))
    if dtype is not None:
        powers = powers.astype(dtype, copy=False)
    return powers._track() if requires_grad and powers._edge is None else powers


@operation(samples=None, nondiff=True)
def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, *, requires_grad: bool = False
) -> Value:
    """Numbers from ``start`` to ``stop`` with a constant ratio.

    Raises UnsupportedError for tracked bounds (``jg.exp(jg.linspace(jg.log(a), jg.log(b), n))`` is differentiated).
    """
    for v in (start, stop):
        if is_value(v) and (v._edge is not None or v.is_traced):
            raise UnsupportedError(
                "geomspace does not differentiate its bounds; write jg.exp(jg.linspace(jg.log(a), jg.log(b), n))"
            )
    low, high = (as_value(v, "geomspace")._array("geomspace") for v in (start, stop))
    try:
        array = np.geomspace(low, high, index_of(num, "geomspace: num"), endpoint)
    except ValueError as error:
        raise ArgumentError(f"geomspace: {error}") from None
    return _made(np.asarray(array).astype(_dtype(dtype, "geomspace"), copy=False), requires_grad)


# --------------------------------------------------------------------------- matrices


def _extent(value: Any, what: str) -> int:
    n = integer_of(value, what)
    if n < 0:
        raise ShapeError(f"{what} cannot be negative, it is {n}")
    return n


@operation(samples=None, nondiff=True)
def eye(n_rows: int, n_cols: int | None = None, k: int = 0, dtype: Any = None, *, requires_grad: bool = False) -> Value:
    """A matrix with ones on its ``k``-th diagonal.

    >>> import jitgrad as jg
    >>> jg.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    rows = _extent(n_rows, "eye: number of rows")
    cols = rows if n_cols is None else _extent(n_cols, "eye: number of columns")
    return _made(np.eye(rows, cols, index_of(k, "eye: k"), _dtype(dtype, "eye")), requires_grad)


@operation(samples=None, nondiff=True)
def identity(n: int, dtype: Any = None, *, requires_grad: bool = False) -> Value:
    """The identity matrix."""
    return _made(np.identity(_extent(n, "identity: n"), _dtype(dtype, "identity")), requires_grad)


@operation(samples=None, nondiff=True)
def tri(n_rows: int, n_cols: int | None = None, k: int = 0, dtype: Any = None, *, requires_grad: bool = False) -> Value:
    """A matrix with ones at and below its ``k``-th diagonal."""
    rows = _extent(n_rows, "tri: number of rows")
    cols = rows if n_cols is None else _extent(n_cols, "tri: number of columns")
    return _made(np.tri(rows, cols, index_of(k, "tri: k"), _dtype(dtype, "tri")), requires_grad)


@operation(
    samples=lambda rng: [
        Call((rng.uniform(-2.0, 2.0, 3),), {}),
        Call((rng.uniform(-2.0, 2.0, 3), 5), {"increasing": True}),
    ]
)
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Value:
    """The Vandermonde matrix: powers of ``x`` as columns, falling by default.

    Derivative: by the product rule, without division, so that it is right at 0.
    """
    x = as_value(x, "vander")
    if x.ndim != 1:
        raise ShapeError(f"vander takes a 1-d array, not shape {x.shape}")
    if not is_float(x.dtype):
        x = convert(x, dtype=result_dtype(x.dtype, np.int64))
    count = x.size if N is None else _extent(N, "vander: N")
    columns: list[Value] = []
    for i in range(count):
        columns.append(ones_like(x) if i == 0 else x if i == 1 else columns[-1] * x)
    if not columns:
        return zeros((x.size, 0), x.dtype)
    return stack(columns if increasing else columns[::-1], axis=1)
