"""The same properties for every operation there is: values against NumPy, derivatives against their definition.

An operation is tested because its block exists. Blocks say where to sample (``domain``, ``samples``) and what to
compare with (``reference``); everything else is here. Most tests run kernels as plain Python, so that they cost no
compilation; the tests at the end do the same with compiled kernels.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import scipy.special
from hypothesis import assume, currently_in_test_context, given
from hypothesis import strategies as st
from strategies import directional_derivative, examples, kernels, laid_out, layouts, random_directions, seeds

import jitgrad as jg
from jitgrad.autodiff.forward import push
from jitgrad.core.aval import aval_of
from jitgrad.core.linalg_errors import SingularMatrixError
from jitgrad.core.primitive import Elementwise, Partials
from jitgrad.core.trace import trace
from jitgrad.errors import DtypeError, JitgradError
from jitgrad.kernels import kernel
from jitgrad.ops.blocks import Domain, Operation
from jitgrad.ops.catalog import operations
from jitgrad.tensor import Tensor

Array = np.ndarray[Any, Any]

ALL = dict(operations())
SAMPLED = sorted(name for name, op in ALL.items() if op.domains or op.samples)
ELEMENTWISE = sorted(name for name in SAMPLED if ALL[name].domains)
DIFFERENTIABLE = sorted(name for name in SAMPLED if ALL[name].differentiable)
SHAPES = {
    1: [((3, 4),), ((),), ((0, 2),), ((2, 1, 3),)],
    2: [((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((2, 3), ()), ((0, 3), (3,)), ((), ())],
    3: [((2, 3), (2, 3), (2, 3)), ((3, 1), (), (2, 1, 4)), ((), (), ()), ((0,), (1,), ())],
}
EPS32 = float(np.finfo(np.float32).eps)


# --------------------------------------------------------------------------------------------- samples


@dataclass
class Sample:
    """A call, with the arrays in it that are varied."""

    op: Operation[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    constant: frozenset[int] = frozenset()  # positions among ``arrays`` that have no derivative

    @property
    def arrays(self) -> list[Array]:
        """The float arrays among the arguments, those in lists included."""
        return list(_arrays(self.args))

    def with_arrays(self, arrays: Sequence[Any]) -> Sample:
        """The same call on other arrays, or on tensors."""
        supply = iter(arrays)
        return Sample(self.op, _replaced(self.args, supply), self.kwargs, self.constant)

    def __call__(self) -> list[Any]:
        """The results as a list, whatever the operation gives."""
        return outputs(self.op.function(*self.args, **self.kwargs))

    def reference(self) -> list[Array]:
        """What NumPy, or the reference that the block names, gives."""
        with np.errstate(all="ignore"):
            return [np.asarray(r) for r in outputs(reference(self.op)(*self.args, **self.kwargs))]

    def values(self) -> list[Array]:
        return [_array(r) for r in self()]


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _array(result: Any) -> Array:
    return result._value if isinstance(result, Tensor) else np.asarray(result)


def _arrays(obj: Any) -> Iterator[Array]:
    if isinstance(obj, np.ndarray):
        if obj.dtype.kind == "f":
            yield obj
    elif isinstance(obj, tuple | list):
        for item in obj:
            yield from _arrays(item)


def _replaced(obj: Any, supply: Iterator[Any]) -> Any:
    if isinstance(obj, np.ndarray):
        return next(supply) if obj.dtype.kind == "f" else obj
    if isinstance(obj, tuple | list):
        return type(obj)(_replaced(i, supply) for i in obj)
    return obj


def names_of(op: Operation[..., Any]) -> list[str]:
    return [op.name, *op.aliases]


def reference(op: Operation[..., Any]) -> Callable[..., Any]:
    """The function of NumPy or SciPy that an operation is compared with."""
    if op.reference is not None:
        return op.reference
    places = [np.linalg, np] if op.namespace == "linalg" else [np, scipy.special, np.linalg]
    for place in places:
        for name in names_of(op):
            if callable(found := getattr(place, name, None)):
                return found  # type: ignore[no-any-return]
    pytest.fail(f"neither NumPy nor SciPy has {op.name}: give its block a reference")


def _drawn(rng: np.random.Generator, domain: Domain, shape: tuple[int, ...]) -> Array:
    """Values of a domain, at a distance from its kinks."""
    if domain.integers:
        low, high = math.ceil(domain.low), math.floor(domain.high)
        return rng.integers(low, high + 1, shape).astype(np.float64)
    span = domain.high - domain.low
    values = np.asarray(rng.uniform(domain.low, domain.high, shape))
    for _ in range(100):
        near = np.zeros(shape, bool)
        for kink in domain.kinks:
            near |= np.abs(values - kink) < 0.02 * span
        if not near.any():
            break
        values = np.where(near, rng.uniform(domain.low, domain.high, shape), values)
    return values


def elementwise_sample(op: Operation[..., Any], rng: np.random.Generator, shapes: Sequence[tuple[int, ...]]) -> Sample:
    """A call of an elementwise operation on operands of these shapes, inside their domains."""
    assert op.primitive is not None
    impl, rule = op.primitive.impl, op.primitive.rule
    assert isinstance(impl, Elementwise)
    args: list[Array] = []
    constant = set()
    for i, (domain, shape) in enumerate(zip(op.domains, shapes, strict=True)):
        if i in impl.fixed:
            args.append(np.asarray(rng.integers(0, 2, shape), dtype=impl.fixed[i]))
        elif "f" in impl.refuses:
            args.append(np.asarray(rng.integers(-8, 9, shape)))
        else:
            if domain.integers or (isinstance(rule, Partials) and rule.partials[i] is None and rule.masks[i] is None):
                constant.add(len(args) - len(impl.fixed))
            args.append(_drawn(rng, domain, shape))
    return Sample(op, tuple(args), {}, frozenset(constant))


def samples(name: str, seed: int | None = None) -> list[Sample]:
    """The calls that an operation is tested with."""
    op = ALL[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()) if seed is None else seed)
    if op.samples is not None:
        return [Sample(op, tuple(c.args), dict(c.kwargs)) for c in op.samples(rng)]
    return [elementwise_sample(op, rng, shapes) for shapes in SHAPES[len(op.domains)]]


@st.composite
def sample(draw: st.DrawFn, name: str, min_side: int = 0) -> Sample:
    """One call with random values; elementwise operations also get random shapes that broadcast."""
    op = ALL[name]
    seed = draw(seeds)
    if not op.domains:
        return draw(st.sampled_from(samples(name, seed)))
    shapes = draw(
        hnp.mutually_broadcastable_shapes(num_shapes=len(op.domains), max_dims=3, min_side=min_side, max_side=4)
    ).input_shapes
    return elementwise_sample(op, np.random.default_rng(seed), shapes)


# --------------------------------------------------------------------------------------------- comparing


def assert_close(actual: Array, expected: Array, dtype: Any, elementwise: bool, what: str) -> None:
    """Equal within the accuracy that is promised for a dtype: some ULP, or a fraction of the largest value.

    Where a reduction cancels, the largest value stands for the sum of absolute values that the promise is about.
    """
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    single = np.dtype(dtype) == np.float32
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    if elementwise:
        # NumPy's and SciPy's own functions are a few ULP off as well
        rtol, atol = (8 * EPS32, 1e-37) if single else (4e-15, 1e-300)
    else:
        rtol, atol = (1e-5, 1e-5 * scale) if single else (1e-12, 1e-12 * scale)
    with np.errstate(all="ignore"):
        expected = expected.astype(dtype) if single else expected  # what overflows float32 is infinite
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True, err_msg=what)


def is_elementwise(op: Operation[..., Any]) -> bool:
    return bool(op.domains)


def check_forward(call: Sample, dtype: Any, how: Sequence[str] | None = None) -> None:
    """The results of a call in a dtype, on memory laid out as said, against the reference in float64."""
    op = call.op
    arrays = [a.astype(dtype) if a.dtype == np.float64 else a for a in call.arrays]
    given_dtypes = call.with_arrays(arrays)
    exact = call.with_arrays([a.astype(np.float64) for a in arrays]).reference()
    expected_dtypes = [e.dtype for e in given_dtypes.reference()]
    placed = [laid_out(a, lay) for a, lay in zip(arrays, how or ["contiguous"] * len(arrays), strict=True)]
    kept = [a.copy() for a in placed]
    results = call.with_arrays([jg.from_numpy(a) for a in placed])()
    assert len(results) == len(exact), f"{op.name}: {len(results)} results, expected {len(exact)}"
    for result, expected, wanted in zip(results, exact, expected_dtypes, strict=True):
        value = _array(result)
        what = f"{op.name}{[a.shape for a in arrays]} {call.kwargs} {np.dtype(dtype)} {how}"
        if isinstance(result, Tensor):
            assert type(value) is np.ndarray, what
            assert value.dtype == result.dtype, what
            # float32 stays float32, also where the reference computes in float64
            allowed = {wanted} | ({np.dtype(np.float32)} if dtype == np.float32 and wanted.kind == "f" else set())
            if wanted.kind == "i" and not is_elementwise(op):
                allowed.add(np.dtype(np.int64))  # LAPACK's counts are int32 in NumPy
            assert value.dtype in allowed, f"{what}: dtype {value.dtype}, expected {wanted}"
        assert_close(value, expected, value.dtype if value.dtype.kind == "f" else dtype, is_elementwise(op), what)
    for now, before in zip(placed, kept, strict=True):
        np.testing.assert_array_equal(now, before, err_msg=f"{op.name} modified its input")


# --------------------------------------------------------------------------------------------- derivatives


def tracked(call: Sample, arrays: Sequence[Array] | None = None) -> tuple[list[Tensor], list[Tensor], Sample]:
    """Leaves for the arrays of a call, those of them that have a derivative, and the call on them."""
    leaves = []
    wanted = []
    for i, a in enumerate(call.arrays if arrays is None else arrays):
        leaf = jg.tensor(a, requires_grad=i not in call.constant)
        leaves.append(leaf)
        if i not in call.constant:
            wanted.append(leaf)
    return leaves, wanted, call.with_arrays(leaves)


def differentiable_arrays(call: Sample) -> list[Array]:
    return [a for i, a in enumerate(call.arrays) if i not in call.constant]


def with_differentiable(call: Sample, arrays: Sequence[Any]) -> Sample:
    supply = iter(arrays)
    return call.with_arrays([a if i in call.constant else next(supply) for i, a in enumerate(call.arrays)])


def float_results(results: Sequence[Any]) -> list[Tensor]:
    return [r for r in results if isinstance(r, Tensor) and r.dtype.kind == "f"]


def cotangents(rng: np.random.Generator, results: Sequence[Tensor]) -> list[Array]:
    return [rng.uniform(-1.0, 1.0, r.shape).astype(r.dtype) for r in results]


def vjp(call: Sample, us: Sequence[Array]) -> list[Array]:
    """The gradients of ``sum <u, result>``, by backward; zeros where nothing arrives."""
    _, wanted, on_leaves = tracked(call)
    for y, u in zip(float_results(on_leaves()), us, strict=True):
        if y.requires_grad:
            y.backward(u, retain_graph=True)
    return [np.zeros(x.shape, x.dtype) if x.grad is None else x.grad.numpy() for x in wanted]


def inner(us: Sequence[Array], vs: Sequence[Array]) -> float:
    return math.fsum(float(np.sum(u * v)) for u, v in zip(us, vs, strict=True))


def largest(*arrays: Array) -> float:
    """The largest absolute value, but at least 1."""
    return max(1.0, *(float(np.abs(a).max(initial=0.0)) for a in arrays))


def slack(us: Sequence[Array]) -> float:
    """By how much tolerances grow where results are float32 although the operands are float64."""
    return 1e4 if any(u.dtype == np.float32 for u in us) else 1.0


def derivative_along(
    call: Sample, f: Callable[[Sample], float], direction: Sequence[Array], looser: float = 1.0
) -> float:
    """The derivative of ``f`` of a call along a direction; rejects points that are too near to a kink for it."""
    arrays = differentiable_arrays(call)

    def along(t: float) -> float:
        return f(with_differentiable(call, [np.asarray(a + t * d) for a, d in zip(arrays, direction, strict=True)]))

    value, error = directional_derivative(along, 4e-16 if looser == 1.0 else EPS32)
    accurate = error < 1e-8 * looser * max(1.0, abs(value))
    if currently_in_test_context():
        assume(accurate)
    assert accurate, (
        f"{call.op.name} {call.kwargs}: a sample is at a point where the derivative does not exist\n{arrays}"
    )
    return value


def axis_directions(rng: np.random.Generator, arrays: Sequence[Array]) -> list[list[Array]]:
    """Directions that move one array at a time, so that a failure says which operand it is about."""
    full = random_directions(rng, arrays)
    return [[d if i == k else np.zeros_like(d) for k, d in enumerate(full)] for i in range(len(arrays))]


# --------------------------------------------------------------------------------------------- fixtures


@pytest.fixture
def python_kernels() -> Iterator[None]:
    with kernels("python"):
        yield


@pytest.fixture
def compiled_kernels() -> Iterator[None]:
    with kernels("compiled"):
        yield


def each(names: Sequence[str]) -> Any:
    return pytest.mark.parametrize("name", names)


# --------------------------------------------------------------------------------------------- functions for Numba


def _total(call: Sample, xs: Sequence[Any]) -> Any:
    """A number that depends on all float results of a call with these arrays."""
    total: Any = 0.0
    for r in outputs(with_differentiable(call, xs)()):
        if np.dtype(r.dtype).kind == "f":
            total = total + (jg.sin(r) * 0.75 + r * r).sum()
    return total


NO_NUMBA: dict[str, str] = {}
"""Operations whose gradient has no function for Numba, with the reason."""


@each([n for n in DIFFERENTIABLE if n not in NO_NUMBA])
def test_value_and_gradient_are_one_function_for_numba(name, python_kernels):
    call = next(c for c in samples(name) if differentiable_arrays(c))
    arrays = differentiable_arrays(call)

    def f(*xs: Any) -> Any:
        return _total(call, xs)

    both = jg.value_and_grad(f, argnums=tuple(range(len(arrays))))
    value, gradients = jg.jit(both).njit(*arrays, freeze=True)(*arrays)
    wanted, wanted_gradients = both(*arrays)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    for a, b in zip(gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


# --------------------------------------------------------------------------------------------- existence


@each(sorted(ALL))
def test_every_operation_has_samples(name: str) -> None:
    op = ALL[name]
    if op.domains or op.samples is not None:
        reference(op)
        assert samples(name)
    else:
        # only functions that make arrays, or compute no values at all, may be left to tests by hand
        assert not op.differentiable, f"{name}: give its block samples for the property tests"


@each(DIFFERENTIABLE)
def test_samples_have_something_to_differentiate(name: str) -> None:
    assert any(a.size for call in samples(name) for a in differentiable_arrays(call))


# --------------------------------------------------------------------------------------------- values


@each(SAMPLED)
@given(data=st.data())
@examples(25)
@pytest.mark.usefixtures("python_kernels")
def test_values_dtypes_and_shapes(name: str, data: st.DataObject) -> None:
    call = data.draw(sample(name))
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    check_forward(call, dtype, [data.draw(layouts) for _ in call.arrays])


@each(SAMPLED)
@pytest.mark.usefixtures("python_kernels")
def test_all_samples(name: str) -> None:
    for call in samples(name):
        check_forward(call, np.float64)
        check_forward(call, np.float32)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1e300, -1e300, 710.0, -750.0]


EITHER_ZERO = {"maximum", "minimum", "fmax", "fmin"}
"""Of 0.0 and -0.0 NumPy gives the one or the other, depending on the CPU and the position."""


def special_grid(op: Operation[..., Any], dtype: Any) -> Sample:
    """Every combination of special values."""
    assert op.primitive is not None
    impl = op.primitive.impl
    assert isinstance(impl, Elementwise)
    with np.errstate(over="ignore"):
        values = np.array(SPECIAL, dtype)
    moving = [i for i in range(impl.arity) if i not in impl.fixed]
    grid = np.meshgrid(*[values] * len(moving), indexing="ij")
    supply = iter(grid)
    shape = grid[0].shape
    coin = np.arange(grid[0].size).reshape(shape) % 3 == 0
    return Sample(
        op, tuple(coin.copy() if i in impl.fixed else np.ascontiguousarray(next(supply)) for i in range(impl.arity))
    )


def check_special_values(name: str) -> None:
    op = ALL[name]
    for dtype in (np.float64, np.float32):
        call = special_grid(op, dtype)
        with np.errstate(all="ignore"):
            (expected,) = call.with_arrays([a.astype(np.float64) for a in call.arrays]).reference()
            if dtype == np.float32:
                # beyond the range of float32 the two may overflow at different arguments
                narrow = expected.astype(np.float32) if expected.dtype.kind == "f" else expected
                (direct,) = call.reference()
                same = (direct.astype(narrow.dtype) == narrow) | (np.isnan(direct) & np.isnan(narrow))
                expected = np.where(same, narrow, direct)
        (actual,) = call.values()
        for index in np.ndindex(expected.shape):
            a, e = actual[index], expected[index]
            what = f"{name}{tuple(x[index] for x in call.args)} {np.dtype(dtype)} gives {a!r}, expected {e!r}"
            if expected.dtype.kind != "f":
                assert a == e, what
            elif np.isnan(e) or np.isnan(a):
                assert np.isnan(e) == np.isnan(a), what
            elif np.isinf(e) or np.isinf(a) or e == 0:
                assert a == e, what
                assert np.signbit(a) == np.signbit(e) or (name in EITHER_ZERO and a == 0), what
            else:
                tiny = 1e-37 if dtype == np.float32 else 1e-307
                assert abs(a - e) <= (16 * EPS32 if dtype == np.float32 else 1e-14) * abs(e) + tiny, what


def takes_floats(name: str) -> bool:
    primitive = ALL[name].primitive
    assert primitive is not None
    assert isinstance(primitive.impl, Elementwise)
    return "f" not in primitive.impl.refuses


@each([n for n in ELEMENTWISE if takes_floats(n)])
@pytest.mark.usefixtures("python_kernels")
def test_special_values(name: str) -> None:
    check_special_values(name)


def takes_float_arrays(name: str) -> bool:
    return any(a.size for call in samples(name) for a in call.arrays)


@each([n for n in SAMPLED if n not in ELEMENTWISE and ALL[n].namespace != "linalg" and takes_float_arrays(n)])
@given(data=st.data())
@examples(8)
@pytest.mark.usefixtures("python_kernels")
def test_nan_and_infinity_as_in_numpy(name: str, data: st.DataObject) -> None:
    call = data.draw(sample(name))
    arrays = call.arrays
    assume(any(a.size for a in arrays))
    rng = np.random.default_rng(data.draw(seeds))
    spoiled = [a.copy() for a in arrays]
    for a in spoiled:
        for value in (np.nan, np.inf, -np.inf):
            if a.size and rng.random() < 0.5:
                a[np.unravel_index(rng.integers(a.size), a.shape)] = value
    try:
        expected = call.with_arrays(spoiled).reference()
    except (ValueError, np.linalg.LinAlgError):
        return  # NumPy refuses these values
    for a, e in zip(call.with_arrays(spoiled).values(), expected, strict=True):
        what = f"{name} of {spoiled} {call.kwargs}"
        if (
            name == "einsum" and len(arrays) > 2
        ):  # in pairs: which infinities meet, so as to give NaN, depends on the order
            np.testing.assert_array_equal(np.isfinite(a), np.isfinite(e), err_msg=what)
            a, e = (np.where(np.isfinite(r), r, 0.0) for r in (a, e))
        assert_close(a, e, np.float64, is_elementwise(call.op), what)


# Operations made of one that refuses these kinds of dtypes: their blocks do not say it themselves.
REFUSED_KINDS = {"divmod": "b", "round": "b"}
INTEGERS = [np.dtype(d) for d in ("int64", "int32", "int8", "uint8", "uint64", "bool")]


@each(SAMPLED)
@given(data=st.data())
@examples(15)
@pytest.mark.usefixtures("python_kernels")
def test_integers_and_bools(name: str, data: st.DataObject) -> None:
    call = data.draw(sample(name))
    op = call.op
    dtype = data.draw(st.sampled_from(INTEGERS))
    impl = op.primitive.impl if op.primitive is not None else None
    if isinstance(impl, Elementwise) and "f" in impl.refuses:
        whole = Sample(op, tuple(a.astype(dtype) for a in call.args))
    else:
        whole = call.with_arrays([as_dtype(a, dtype) for a in call.arrays])
    widened = whole
    if isinstance(impl, Elementwise) and impl.result == "float":
        # NumPy takes small integers to float16 and float32; here every integer becomes float64
        widened = Sample(op, tuple(a if i in impl.fixed else a.astype(np.float64) for i, a in enumerate(whole.args)))
    try:
        expected = widened.reference()
    except (TypeError, ValueError, np.linalg.LinAlgError):
        with np.errstate(all="ignore"), contextlib.suppress(JitgradError):
            whole.values()  # what NumPy refuses may be refused, but not crash
        return
    kinds = REFUSED_KINDS.get(name, impl.refuses if isinstance(impl, Elementwise) else "")
    if dtype.kind in kinds:
        with pytest.raises(DtypeError, match=r"not defined for \w+ operands"):
            whole.values()
        return
    try:
        actual = whole.values()
    except SingularMatrixError:
        assert name == "linalg.cond"  # of a singular matrix, where NumPy has inf
        return
    for a, e in zip(actual, expected, strict=True):
        what = f"{name} of {whole.args} {call.kwargs}"
        if e.dtype.kind == "f":
            assert a.dtype.kind == "f", what
        elif e.size:  # of empty arrays NumPy sometimes keeps the integer dtype
            assert a.dtype == e.dtype, f"{what}: dtype {a.dtype}, expected {e.dtype}"
        assert_close(a, e, a.dtype if a.dtype.kind == "f" else np.float64, is_elementwise(op), what)


def as_dtype(a: Array, dtype: np.dtype[Any]) -> Array:
    """The array in an integer dtype, rounded."""
    if dtype.kind == "b":
        return np.asarray(a > 0)
    return np.asarray(np.abs(np.rint(a)) if dtype.kind == "u" else np.rint(a)).astype(dtype)


# --------------------------------------------------------------------------------------------- aliasing


@each(SAMPLED)
@given(data=st.data())
@examples(8)
@pytest.mark.usefixtures("python_kernels")
def test_results_alias_inputs_only_as_views(name: str, data: st.DataObject) -> None:
    call = data.draw(sample(name))
    arrays = [laid_out(a, data.draw(layouts)) for a in call.arrays]
    with np.errstate(all="ignore"):
        expected = [np.asarray(r) for r in outputs(reference(call.op)(*call.with_arrays(arrays).args, **call.kwargs))]
    tensors = [jg.from_numpy(a) for a in arrays]
    for result, theirs in zip(call.with_arrays(tensors)(), expected, strict=True):
        if not isinstance(result, Tensor):
            continue
        for a, t in zip(arrays, tensors, strict=True):
            if np.shares_memory(result._value, a):
                if theirs.ndim == 0:
                    continue  # NumPy makes scalars of 0-d views
                assert np.shares_memory(theirs, a), f"{name}: a view of its input, where NumPy gives a new array"
                assert result._storage is not None
                assert result._storage is t._storage, f"{name}: a view that does not know that it is one"


# --------------------------------------------------------------------------------------------- first derivatives


@each(DIFFERENTIABLE)
@given(data=st.data())
@examples(10)
@pytest.mark.usefixtures("python_kernels")
def test_gradient_against_finite_differences(name: str, data: st.DataObject) -> None:
    call = data.draw(sample(name))
    check_gradient(call, np.random.default_rng(data.draw(seeds)))


def check_gradient(call: Sample, rng: np.random.Generator) -> None:
    results = float_results(call())
    us = cotangents(rng, results)
    gradients = vjp(call, us)
    arrays = differentiable_arrays(call)

    def f(moved: Sample) -> float:
        return inner(us, [y._value for y in float_results(moved())])

    for direction in axis_directions(rng, arrays):
        expected = derivative_along(call, f, direction, slack(us))
        actual = inner(gradients, direction)
        scale = max(1.0, abs(expected), inner(map(np.abs, gradients), map(np.abs, direction)))  # type: ignore[arg-type]
        where = [i for i, d in enumerate(direction) if d.any()]
        assert abs(actual - expected) <= 1e-7 * slack(us) * scale, (
            f"{call.op.name} {call.kwargs}, gradient of operand {where}: {actual}, finite differences: {expected}\n"
            f"operands {arrays}\ncotangents {us}\ngradients {gradients}"
        )
    for a, g in zip(arrays, gradients, strict=True):
        assert g.shape == a.shape
        assert g.dtype == a.dtype


@each(DIFFERENTIABLE)
@given(data=st.data())
@examples(5)
@pytest.mark.usefixtures("python_kernels")
def test_gradient_is_linear_in_the_cotangent_and_modifies_nothing(name: str, data: st.DataObject) -> None:
    call = data.draw(sample(name))
    rng = np.random.default_rng(data.draw(seeds))
    before = [a.copy() for a in call.arrays]
    leaves, wanted, on_leaves = tracked(call)
    results = [y for y in float_results(on_leaves()) if y.requires_grad]
    values = [y._value.copy() for y in results]
    u, v = cotangents(rng, results), cotangents(rng, results)

    def gradient(cotangent: Sequence[Array]) -> list[Array]:
        for x in wanted:
            x.grad = None
        given_copy = [c.copy() for c in cotangent]
        for y, c in zip(results, cotangent, strict=True):
            y.backward(c, retain_graph=True)
        for c, kept in zip(cotangent, given_copy, strict=True):
            np.testing.assert_array_equal(c, kept, err_msg=f"{name}: backward modified the cotangent")
        return [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in wanted]

    of_u, of_v = gradient(u), gradient(v)
    of_both = gradient([3.0 * a - b for a, b in zip(u, v, strict=True)])
    for a, b, both in zip(of_u, of_v, of_both, strict=True):
        scale = largest(a, b)
        np.testing.assert_allclose(both, 3.0 * a - b, rtol=0, atol=1e-12 * slack(u) ** 2 * scale, err_msg=name)
    for leaf, old in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(leaf._value, old, err_msg=f"{name}: backward modified an operand")
    for y, old in zip(results, values, strict=True):
        np.testing.assert_array_equal(y._value, old, err_msg=f"{name}: backward modified its result")


@each([n for n in SAMPLED if not ALL[n].differentiable])
@pytest.mark.usefixtures("python_kernels")
def test_what_has_no_derivative_gives_untracked_results(name: str) -> None:
    for call in samples(name):
        *_, on_leaves = tracked(call)
        for result in on_leaves():
            if isinstance(result, Tensor):
                assert not result.requires_grad


# --------------------------------------------------------------------------------------------- forward mode


def jvp(call: Sample, tangents: Sequence[Array]) -> tuple[list[Tensor], list[Array]]:
    """Float results and their tangents, by the forward push over the trace of the call."""
    arrays = differentiable_arrays(call)

    def f(*values: Tensor) -> list[Tensor]:
        return float_results(with_differentiable(call, values)())

    graph = trace(f, [aval_of(a) for a in arrays], call.op.name).verify()
    primals, moved = push(graph, [jg.tensor(a) for a in arrays], [jg.tensor(t) for t in tangents])
    return primals, [
        np.zeros(p.shape, p.dtype) if m is None else m.numpy() for p, m in zip(primals, moved, strict=True)
    ]


@each(DIFFERENTIABLE)
@given(data=st.data())
@examples(8)
@pytest.mark.usefixtures("python_kernels")
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str, data: st.DataObject) -> None:
    call = data.draw(sample(name))
    rng = np.random.default_rng(data.draw(seeds))
    vs = random_directions(rng, differentiable_arrays(call))
    primals, moved = jvp(call, vs)
    results = float_results(call())
    for p, m, r in zip(primals, moved, results, strict=True):
        assert m.shape == p.shape == r.shape
        assert m.dtype == p.dtype == r.dtype
        np.testing.assert_allclose(p._value, r._value, rtol=1e-13, atol=1e-13, equal_nan=True)
    us = cotangents(rng, results)
    gradients = vjp(call, us)
    forward, reverse = inner(us, moved), inner(gradients, vs)
    scale = max(
        1.0,
        inner([np.abs(u) for u in us], [np.abs(m) for m in moved]),
        inner([np.abs(g) for g in gradients], [np.abs(v) for v in vs]),
    )
    assert abs(forward - reverse) <= 1e-11 * slack(us) ** 2 * scale, (
        f"{name} {call.kwargs}: <u, Jv> = {forward}, <Jtu, v> = {reverse}"
    )


# --------------------------------------------------------------------------------------------- second derivatives


@each(DIFFERENTIABLE)
@given(data=st.data())
@examples(6)
@pytest.mark.usefixtures("python_kernels")
def test_second_derivative_against_finite_differences(name: str, data: st.DataObject) -> None:
    call = data.draw(sample(name))
    check_second(call, np.random.default_rng(data.draw(seeds)))


def check_second(call: Sample, rng: np.random.Generator) -> None:
    arrays = differentiable_arrays(call)
    us = cotangents(rng, float_results(call()))
    ws = random_directions(rng, arrays)

    _, wanted, on_leaves = tracked(call)
    ys = float_results(on_leaves())
    u_leaves = [jg.tensor(u, requires_grad=True) for u in us]
    for y, u in zip(ys, u_leaves, strict=True):
        if y.requires_grad:
            y.backward(u, create_graph=True)
    first = [x.grad for x in wanted]
    plain = vjp(call, us)
    for x in wanted:
        x.grad = None
    for g, same in zip(first, plain, strict=True):
        if g is not None:
            scale = largest(same)
            changed = f"{call.op.name}: create_graph changes the gradient"
            np.testing.assert_allclose(g.numpy(force=True), same, rtol=0, atol=1e-12 * scale, err_msg=changed)
    for g, w in zip(first, ws, strict=True):
        if g is not None and g.requires_grad:
            g.backward(w, retain_graph=True)
    second = [np.zeros(x.shape) if x.grad is None else x.grad.numpy(force=True) for x in wanted]

    def f(moved: Sample) -> float:
        return inner(vjp(moved, us), ws)

    for direction in axis_directions(rng, arrays):
        expected = derivative_along(call, f, direction, slack(us))
        actual = inner(second, direction)
        scale = max(1.0, abs(expected), inner([np.abs(s) for s in second], [np.abs(d) for d in direction]))
        assert abs(actual - expected) <= 1e-6 * slack(us) * scale, (
            f"{call.op.name} {call.kwargs}: second derivative {actual}, finite differences of the first: {expected}\n"
            f"operands {arrays}\ncotangents {us}\nfunctional {ws}"
        )
    # the gradient is linear in its cotangent, so differentiating it by the cotangent is forward mode
    _, moved = jvp(call, ws)
    for u, m in zip(u_leaves, moved, strict=True):
        got = np.zeros(m.shape) if u.grad is None else u.grad.numpy(force=True)
        scale = largest(m)
        np.testing.assert_allclose(
            got, m, rtol=0, atol=1e-10 * slack(us) * scale, err_msg=f"{call.op.name}: forward by double reverse"
        )


# --------------------------------------------------------------------------------------------- compiled kernels


def check_compiled_forward(name: str) -> None:
    for call in samples(name):
        check_forward(call, np.float64)
        check_forward(call, np.float32)
        check_forward(call, np.float64, ["padded"] * len(call.arrays))


def check_compiled_backward(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for call in samples(name):
        check_gradient(call, rng)


@each(SAMPLED)
@pytest.mark.usefixtures("compiled_kernels")
def test_compiled_values(name: str) -> None:
    check_compiled_forward(name)
    if name in ELEMENTWISE and takes_floats(name):
        check_special_values(name)


@each(DIFFERENTIABLE)
@pytest.mark.usefixtures("compiled_kernels")
def test_compiled_gradients(name: str) -> None:
    check_compiled_backward(name)


MOST_KERNELS = 40
"""Of one operation, over all its samples: they depend on dtypes, ranks and layouts, never on extents."""


@each(SAMPLED)
@pytest.mark.usefixtures("compiled_kernels")
def test_the_second_call_compiles_nothing(name: str) -> None:
    def everything() -> None:
        for call in samples(name):
            call()
            call.with_arrays([laid_out(a, "padded") for a in call.arrays])()
            if ALL[name].differentiable:
                vjp(call, [np.ones(y.shape, y.dtype) for y in float_results(call())])

    before = len(kernel._entries)
    everything()
    made = len(kernel._entries) - before
    counters = kernel.counters
    settled = (counters.compiled, counters.loaded, len(kernel._entries))
    everything()
    assert (counters.compiled, counters.loaded, len(kernel._entries)) == settled
    assert made <= MOST_KERNELS, f"{name} needs {made} kernels"


@each(ELEMENTWISE)
@pytest.mark.usefixtures("compiled_kernels")
def test_other_extents_compile_nothing(name: str) -> None:
    op = ALL[name]
    rng = np.random.default_rng(1)

    def at(shape: tuple[int, ...]) -> None:
        call = elementwise_sample(op, rng, [shape] * len(op.domains))
        call()
        if op.differentiable:
            vjp(call, [np.ones(y.shape, y.dtype) for y in float_results(call())])

    at((3, 4))
    counters = kernel.counters
    settled = (counters.compiled, counters.loaded, len(kernel._entries))
    for shape in [(5,), (2, 3, 2), (7, 1), (40,)]:
        at(shape)
    assert (counters.compiled, counters.loaded, len(kernel._entries)) == settled


# --------------------------------------------------------------------------------------------- found before


def test_linspace_takes_the_step_of_small_integers_and_bools_in_floating_point() -> None:
    _, step = jg.linspace(np.array(100, np.int8), np.array(-100, np.int8), 5, retstep=True)
    assert step.item() == -50.0
    assert jg.linspace(np.array(True), np.array(False), 3).tolist() == [1.0, 0.5, 0.0]
