"""primitive: an operation of the user's own, from functions of arrays, with the derivative that they give."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.core.aval import FLOAT64, ShapedArray, aval_of, check_dtype, is_float, make_aval, result_dtype
from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Extent
from jitgrad.core.primitive import ArrayCall, Custom, Host, Operand, Primitive
from jitgrad.errors import ArgumentError, DefinitionError, DtypeError, NotDifferentiableError, ShapeError
from jitgrad.kernels.kernel import kernel_mode
from jitgrad.kernels.user_kernel import Called, UserKernel, is_dispatcher, note_function, user_kernel
from jitgrad.ops.array_calls import Pairs, flat, whole
from jitgrad.ops.linear import convert
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.transforms.private import zeros
from jitgrad.transforms.reverse_mode import vjp as vjp_of

__all__ = ["UserPrimitive", "primitive"]

Array = np.ndarray[Any, Any]


def primitive(
    forward: Callable[..., Any] | None = None,
    *,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    shape: Callable[..., Any] | None = None,
    dtype: Any = None,
    outputs: int = 1,
    name: str | None = None,
) -> Any:
    """An operation of your own, from a function of arrays, as an ``@njit`` function or plain NumPy.

    ``forward(*arrays)`` gives an array, or a tuple of ``outputs`` of them. It must be pure and must not write to its
    operands; those without axes are passed as scalars. Keyword arguments of the operation are constants, passed to every
    function here.

    ``shape(*shapes)`` gives the shape of the result from those of the operands (a list of shapes for several results);
    without it, the operands broadcast. ``dtype`` is that of the result (a list for several); without it, the floating
    point type that the operands promote to. Both are checked whenever the operation runs.

    ``vjp(g, out, *operands)`` gives the cotangent of each operand, None for one without a derivative, from the
    cotangent ``g`` of the result ``out`` (tuples for several results). Written in jitgrad operations (NumPy functions
    will do) it is differentiated further. As an ``@njit`` function it gets arrays, and second derivatives raise
    NotDifferentiableError. ``jvp(tangents, out, *operands)`` gives the tangent of the result. It is optional where
    ``vjp`` is written in jitgrad operations, since forward mode is then derived from it.

    The operation works eagerly, in every transform, and under ``jit``; ``vmap`` runs it for one element after the other.
    Compiled code calls ``@njit`` functions itself, so that they can be part of functions for Numba; functions of plain
    Python, and what Numba cannot compile for the operands, are steps of their own between the kernels. Also a decorator:
    ``@jg.primitive(vjp=...)``.

    Raises NotDifferentiableError, with the name of the operation, where a derivative without a rule is asked for.

    >>> import numpy as np, jitgrad as jg
    >>> def forward(x):
    ...     return np.cbrt(x)
    >>> cbrt = jg.primitive(forward, vjp=lambda g, out, x: g / (3.0 * out**2), name="cbrt")
    >>> cbrt([8.0, 27.0])
    tensor([2., 3.])
    >>> jg.grad(cbrt)(8.0)
    0.08333333333333333
    >>> jg.grad(jg.grad(cbrt))(8.0)
    -0.006944444444444444
    """
    if forward is None:
        options: dict[str, Any] = {
            "vjp": vjp,
            "jvp": jvp,
            "shape": shape,
            "dtype": dtype,
            "outputs": outputs,
            "name": name,
        }
        return functools.partial(primitive, **options)
    return UserPrimitive(forward, vjp, jvp, shape, dtype, outputs, name)


class UserPrimitive:
    """An operation made by ``jg.primitive``; call it like any function of jitgrad."""

    def __init__(
        self,
        forward: Callable[..., Any],
        vjp: Callable[..., Any] | None,
        jvp: Callable[..., Any] | None,
        shape: Callable[..., Any] | None,
        dtype: Any,
        outputs: int,
        name: str | None,
    ) -> None:
        self.name: str = str(getattr(forward, "__name__", "primitive")) if name is None else name
        for role, function in (("forward", forward), ("vjp", vjp), ("jvp", jvp), ("shape", shape)):
            if function is not None and not callable(function):
                raise DefinitionError(f"primitive {self.name}: {role} must be a function, not {function!r}")
        if type(outputs) is not int or outputs < 1:
            raise DefinitionError(f"primitive {self.name}: outputs must be a positive int, not {outputs!r}")
        self.outputs = outputs
        self.dtypes = _dtypes(dtype, outputs, self.name)
        self.shape = shape
        self.__doc__ = forward.__doc__
        self.__name__ = self.name
        self.__wrapped__ = forward
        rule = Custom(_pull_rule(self, vjp), _push_rule(self, vjp, jvp), ())
        call = None
        if is_dispatcher(forward):
            in_python = _checked_run(self.name, forward.py_func, self.infer, True)  # type: ignore[attr-defined]
            call = _described(self.name, forward, in_python, outputs, range, self._alike, False)
        run = _checked_run(self.name, forward, self.infer, is_dispatcher(forward))
        self._primitive = Primitive(self.name, Host(run, self.infer, call=call), rule, outputs=outputs)

    def __call__(self, *operands: Any, **constants: Any) -> Any:
        """The result, a tensor, or a tuple of several."""
        if not operands:
            raise ArgumentError(f"{self.name}: an operation needs at least one operand")
        for key, value in constants.items():
            if not isinstance(value, Hashable) or isinstance(value, Tensor):
                raise ArgumentError(
                    f"{self.name}: {key}={value!r} is no constant (it cannot be hashed); pass arrays as positional operands"
                )
        return self._primitive(*operands, **constants)

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    def infer(self, *avals: ShapedArray, **constants: Any) -> Any:
        """The avals of the results."""
        shapes = [tuple([int(n) for n in a.shape]) for a in avals]
        if self.shape is None:
            try:
                made: Any = np.broadcast_shapes(*shapes)
            except ValueError:
                listed = " and ".join(map(str, shapes))
                raise ShapeError(
                    f"{self.name}: shapes {listed} do not broadcast together; say shape= to give the shape of the result"
                ) from None
            found = [made] * self.outputs
        else:
            made = self.shape(*shapes, **constants)
            found = [made] if self.outputs == 1 else list(made)
        if len(found) != self.outputs or not all(_is_shape(s) for s in found):
            raise ShapeError(
                f"{self.name}: shape= must give {'a tuple of ints' if self.outputs == 1 else f'{self.outputs} tuples of ints'}, "
                f"not {made!r}"
            )
        promoted = result_dtype(*(a.dtype for a in avals))
        default = promoted if is_float(promoted) else FLOAT64
        results = [make_aval(tuple(map(int, s)), d or default) for s, d in zip(found, self.dtypes, strict=True)]
        return results[0] if self.outputs == 1 else tuple(results)

    def _alike(self, inputs: Sequence[Operand], results: Sequence[Operand], constants: dict[str, Any]) -> Pairs:
        """The axes of results that have the extent of an operand's, whatever it is."""
        if self.shape is None:
            return tuple(
                ((x.position, i), (r.position, i + r.ndim - x.ndim))
                for r in results
                for x in inputs
                for i, n in enumerate(x.shape)
                if n == r.shape[i + r.ndim - x.ndim]
            )
        axes = [tuple([_Axis(n, (x.position, i)) for i, n in enumerate(x.shape)]) for x in inputs]
        shapes = self.shape(*axes, **constants)
        found = [shapes] if self.outputs == 1 else shapes
        return tuple(
            (n.place, (r.position, i))
            for r, s in zip(results, found, strict=True)
            for i, n in enumerate(s)
            if isinstance(n, _Axis)
        )


def _dtypes(dtype: Any, outputs: int, name: str) -> list[Any]:
    listed = list(dtype) if isinstance(dtype, list | tuple) else [dtype] * outputs
    if len(listed) != outputs:
        raise DefinitionError(f"primitive {name}: {len(listed)} dtypes for {outputs} results")
    return [None if d is None else check_dtype(d, f"primitive {name}") for d in listed]


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple | list) and all(isinstance(n, int | np.integer) and n >= 0 for n in shape)


# --------------------------------------------------------------------------- kernels that call the user's functions

_CONSTANTS: Final = (bool, int, float, type(None))
Describe = Callable[..., ArrayCall | None]


class _Axis(int):
    """An extent that remembers which operand's it is; arithmetic on it gives a plain int."""

    place: tuple[int, int]

    def __new__(cls, value: int, place: tuple[int, int]) -> _Axis:
        made = super().__new__(cls, value)
        made.place = place
        return made


def _described(
    title: str,
    function: Callable[..., Any],
    in_python: Callable[..., Any],
    outputs: int,
    arguments: Callable[[int], Iterable[Any]],
    alike: Callable[..., Pairs],
    is_rule: bool,
) -> Describe:
    """The call of a Numba function by a kernel, as a function of operands, results and constants.

    ``arguments(n)``: positions of operands, and tuples of them, as the function takes them; ``alike``: which axes of
    operands and results have the same extent.
    """
    note_function(function)
    made: dict[Any, UserKernel | None] = {}

    def call(*values: Operand, **constants: Any) -> ArrayCall | None:
        inputs, results = values[:-outputs], values[-outputs:]
        numbers = [int(v) if isinstance(v, Extent) else v for v in constants.values()]
        if any(type(v) not in _CONSTANTS or (type(v) is int and not -(1 << 63) <= v < 1 << 63) for v in numbers):
            return None
        kinds = tuple((k, type(v).__name__) for k, v in zip(constants, numbers, strict=True))
        key = (kernel_mode(), kinds, *((v.dtype, v.ndim) for v in values))
        if key not in made:
            given, wanted = (tuple((v.dtype.name, v.ndim) for v in part) for part in (inputs, results))
            parts = (_tuples(arguments(len(inputs))), given, kinds, wanted)
            made[key] = user_kernel(Called(title, function, in_python, *parts, is_rule))
        kernel = made[key]
        if kernel is None:
            return None
        folded = [whole(v) if v.ndim else flat(v) for v in values]
        ordered = (*folded[:-outputs], *constants.values(), *folded[-outputs:])
        return ArrayCall(kernel, ordered, alike(inputs, results, constants))

    return call


def _tuples(values: Any) -> tuple[Any, ...]:
    return tuple([_tuples(v) if isinstance(v, tuple | list) else v for v in values])


# --------------------------------------------------------------------------- running the user's functions


def _handed(array: Array, compiled: bool) -> Any:
    """An operand as the user's function gets it: in C order, never to be written, scalars as such."""
    if not array.ndim:
        return array[()]
    array = np.ascontiguousarray(array)
    if compiled:  # a read-only array would be another type for Numba
        return array if array.flags.writeable else array.copy()
    view = array.view()
    view.flags.writeable = False
    return view


def _checked_run(
    name: str, function: Callable[..., Any], infer: Callable[..., Any], compiled: bool
) -> Callable[..., Any]:
    """The function as an implementation: from arrays to arrays of the inferred shapes and dtypes, on their own memory."""

    def run(*arrays: Array, **constants: Any) -> Any:
        wanted = infer(*map(aval_of, arrays), **constants)
        single = isinstance(wanted, ShapedArray)
        found = function(*(_handed(a, compiled) for a in arrays), **constants)
        results = [found] if single else found
        avals = [wanted] if single else wanted
        if not isinstance(results, tuple | list) or len(results) != len(avals):
            raise ArgumentError(f"{name}: a tuple of {len(avals)} arrays is wanted, not {type(found).__name__}")
        checked = [_checked(name, r, a, arrays) for r, a in zip(results, avals, strict=True)]
        return checked[0] if single else tuple(checked)

    return run


def _checked(name: str, result: Any, aval: ShapedArray, operands: Sequence[Array]) -> Array:
    if result is None:
        return np.zeros(aval.shape, aval.dtype)
    array = np.asarray(result)
    if array.shape != aval.shape:
        raise ShapeError(
            f"{name} gave an array of shape {array.shape} where {aval.shape} was expected; say shape= where the result is "
            "not what the operands broadcast to"
        )
    if array.dtype != aval.dtype:
        if array.dtype.kind not in "fiub" or (array.dtype.kind == "f") != (aval.dtype.kind == "f"):
            raise DtypeError(f"{name} gave a {array.dtype} array where {aval.dtype} was expected; say dtype=")
        return array.astype(aval.dtype)
    if not array.flags.owndata or any(np.may_share_memory(array, x) for x in operands):
        return array.copy()
    return array


# --------------------------------------------------------------------------- rules


def _refusing(message: str) -> Callable[..., tuple[Any, ...]]:
    """A vjp rule that can be recorded and traced, and raises where its value is asked for."""

    def run(g: Array, *, shape: tuple[int, ...], dtype: Any) -> Array:
        raise NotDifferentiableError(message)

    def infer(g: ShapedArray, *, shape: tuple[int, ...], dtype: Any) -> ShapedArray:
        return make_aval(shape, dtype)

    refused = Primitive("refused", Host(run, infer), None)

    def rule(g: Any, out: Any, *operands: Any, **constants: Any) -> tuple[Any, ...]:
        first = _as_tuple(g)[0]
        return tuple([refused(first, shape=tuple(map(int, x.shape)), dtype=x.dtype) for x in operands])

    return rule


def _raising(message: str) -> Callable[..., Any]:
    def rule(*_: Any, **__: Any) -> Any:
        raise NotDifferentiableError(message)

    return rule


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _present(value: Any) -> Tensor:
    """A value that a node has not kept, since the rule does not read it, as a tensor of its shape."""
    if isinstance(value, Tensor):
        return value
    return wrap(np.broadcast_to(np.zeros((), value.dtype), value.shape))  # type: ignore[no-any-return]


def _fitting(value: Any, like: Tensor, what: str) -> Tensor:
    tensor = as_tensor(value, what)
    if tuple(tensor.shape) != tuple(like.shape):
        raise ShapeError(f"{what} has shape {tuple(tensor.shape)}, not {tuple(like.shape)}")
    return tensor if tensor.dtype == like.dtype else convert(tensor, dtype=like.dtype)


def _compiled_rule(
    owner: UserPrimitive,
    role: str,
    function: Callable[..., Any],
    results: Callable[..., Any],
    split: Callable[..., Any],
) -> Callable[..., tuple[Any, ...]]:
    """A rule that is an ``@njit`` function, as a primitive of its own whose derivative is refused.

    ``results(*avals)``: the avals of what it gives; ``split(values)``: the arguments of the function.
    """
    name = f"{owner.name}.{role}"
    message = (
        f"{name} is compiled, so that only first derivatives of {owner.name} are known; write {role} in jitgrad operations "
        "for higher ones"
    )

    def running(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any, **constants: Any) -> Any:
            found = _as_tuple(function(*split(values), **constants))
            wanted = results([aval_of(np.asarray(v)) for v in values])
            if len(found) != len(wanted):
                raise ArgumentError(f"{name} gave {len(found)} results where {len(wanted)} were expected")
            # what integers get means nothing, whatever it is
            checked = [r if is_float(a.dtype) else None for r, a in zip(found, wanted, strict=True)]
            return checked[0] if len(checked) == 1 else checked

        return run

    def alike(inputs: Sequence[Operand], made: Sequence[Operand], _: Any) -> Pairs:
        pairs = zip(results(inputs), made, strict=True)
        return tuple(((x.position, i), (r.position, i)) for x, r in pairs for i in range(x.ndim))

    made: dict[int, Primitive] = {}

    def rule(*values: Any, **constants: Any) -> tuple[Any, ...]:
        found = made.get(len(values))
        if found is None:
            count = len(results([v._aval for v in values]))

            def infer(*avals: ShapedArray, **_: Any) -> Any:
                avals_of_results = results(avals)
                return avals_of_results[0] if count == 1 else tuple(avals_of_results)

            run = _checked_run(name, running(function), infer, True)
            in_python = _checked_run(name, running(function.py_func), infer, True)  # type: ignore[attr-defined]
            call = _described(name, function, in_python, count, lambda n: split(range(n)), alike, True)
            implementation = Host(run, infer, call=call)
            refusal = Custom(_refusing(message), _raising(message), ())
            found = made[len(values)] = Primitive(name, implementation, refusal, outputs=count)
        return _as_tuple(found(*values, **constants))

    return rule


def _pull_rule(owner: UserPrimitive, vjp: Callable[..., Any] | None) -> Callable[..., tuple[Any, ...]]:
    """The vjp of the user as a rule: checked, and compiled ones as primitives."""
    if vjp is None:
        return _refusing(
            f"{owner.name} has no derivative: give jg.primitive a vjp, or detach its operands where none is wanted"
        )
    count = owner.outputs

    def whole(values: Sequence[Any]) -> Any:
        return values[0] if count == 1 else tuple(values)

    def split(values: Sequence[Any]) -> list[Any]:
        return [whole(values[:count]), whole(values[count : 2 * count]), *values[2 * count :]]

    if is_dispatcher(vjp):
        compiled = _compiled_rule(owner, "vjp", vjp, lambda avals: avals[2 * count :], split)

        def call(g: Any, out: Any, operands: Sequence[Any], constants: dict[str, Any]) -> tuple[Any, ...]:
            return compiled(*_as_tuple(g), *_as_tuple(out), *operands, **constants)
    else:

        def call(g: Any, out: Any, operands: Sequence[Any], constants: dict[str, Any]) -> tuple[Any, ...]:
            return _as_tuple(vjp(g, out, *operands, **constants))

    def rule(g: Any, out: Any, *operands: Any, **constants: Any) -> tuple[Any, ...]:
        given = [_present(x) for x in operands]
        outs = [_present(x) for x in _as_tuple(out)]
        found = call(g, whole(outs), given, constants)
        if len(found) != len(given):
            raise ArgumentError(f"{owner.name}.vjp gave {len(found)} cotangents for {len(given)} operands")
        return tuple(
            [
                None if c is None else _fitting(c, x, f"{owner.name}.vjp: the cotangent of operand {i}")
                for i, (c, x) in enumerate(zip(found, given, strict=True))
            ]
        )

    return rule


def _push_rule(
    owner: UserPrimitive, vjp: Callable[..., Any] | None, jvp: Callable[..., Any] | None
) -> Callable[..., Any]:
    """The jvp of the user as a rule; without one, the transpose of the vjp."""
    count = owner.outputs
    if jvp is None:
        if vjp is None:
            return _raising(
                f"{owner.name} has no derivative: give jg.primitive a vjp or jvp, or detach its operands where none is wanted"
            )
        if is_dispatcher(vjp):
            return _raising(
                f"{owner.name} has no forward-mode rule, since its vjp is compiled: give jg.primitive a jvp, or use reverse mode"
            )
        return functools.partial(_transposed, owner, vjp)

    if is_dispatcher(jvp):

        def split(values: Sequence[Any]) -> list[Any]:
            n = (len(values) - count) // 2
            out = values[n] if count == 1 else tuple(values[n : n + count])
            return [tuple(values[:n]), out, *values[n + count :]]

        compiled = _compiled_rule(owner, "jvp", jvp, lambda avals: avals[(len(avals) - count) // 2 :][:count], split)

        def call(tangents: tuple[Any, ...], out: Any, operands: Any, constants: dict[str, Any]) -> tuple[Any, ...]:
            return compiled(*tangents, *_as_tuple(out), *operands, **constants)
    else:

        def call(tangents: tuple[Any, ...], out: Any, operands: Any, constants: dict[str, Any]) -> tuple[Any, ...]:
            return _as_tuple(jvp(tangents, out, *operands, **constants))

    def rule(tangents: Sequence[Any], out: Any, *operands: Any, **constants: Any) -> Any:
        full = tuple([zeros(x) if t is None else t for t, x in zip(tangents, operands, strict=True)])
        found = call(full, out, operands, constants)
        if len(found) != count:
            raise ArgumentError(f"{owner.name}.jvp gave {len(found)} tangents for {count} results")
        outs = _as_tuple(out)
        made = [
            None if t is None else _fitting(t, y, f"{owner.name}.jvp: tangent {i}")
            for i, (t, y) in enumerate(zip(found, outs, strict=True))
        ]
        return made[0] if count == 1 else tuple(made)

    return rule


def _transposed(
    owner: UserPrimitive, vjp: Callable[..., Any], tangents: Sequence[Any], out: Any, *operands: Any, **constants: Any
) -> Any:
    """The tangent of the result: the transpose of the vjp, which is linear in the cotangent."""
    outs = _as_tuple(out)
    floats = [i for i, y in enumerate(outs) if is_float(y.dtype)]
    moving = [i for i, t in enumerate(tangents) if t is not None]
    pull = _pull_rule(owner, vjp)

    def back(*cotangents: Tensor) -> list[Any]:
        gs: list[Any] = [None if i in floats else zeros(y) for i, y in enumerate(outs)]
        for i, c in zip(floats, cotangents, strict=True):
            gs[i] = c
        found = pull(gs[0] if owner.outputs == 1 else tuple(gs), out, *operands, **constants)
        return [zeros(operands[i]) if found[i] is None else found[i] for i in moving]

    _, push = vjp_of(back, *[zeros(outs[i]) for i in floats])
    moved = dict(zip(floats, push([tangents[i] for i in moving]), strict=True))
    return moved[0] if owner.outputs == 1 else tuple([moved.get(i) for i in range(owner.outputs)])
