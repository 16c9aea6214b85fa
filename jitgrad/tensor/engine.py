"""Applying primitives to tensors: convert, choose a plan, run it, and record a node where a gradient is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.node import GradNode, next_tick
from jitgrad.autodiff.reverse import fingerprints
from jitgrad.core.aval import (
    FLOAT32,
    FLOAT64,
    FLOATS,
    INT64,
    ShapedArray,
    aval_of,
    check_dtype,
    make_aval,
    result_dtype,
)
from jitgrad.core.graph import Constant, Extent, Graph, Tracer, is_number
from jitgrad.core.infer import infer
from jitgrad.core.memory import owner
from jitgrad.core.modes import ANOMALY, FORWARD, grad_mode, in_backward
from jitgrad.core.primitive import Custom, Elementwise, Primitive, View
from jitgrad.core.trace import atom_of, current_graph, is_tracing, note_read, stand_in, stand_ins
from jitgrad.eager import Plan, Recorder, keep_plan, plan_for, recorder_for
from jitgrad.errors import DefinitionError, DtypeError, ShapeError, user_line
from jitgrad.ops.linear import convert, stack_values
from jitgrad.tensor.storage import link_view, storage_of
from jitgrad.tensor.tensor import Tensor, make
from jitgrad.tensor.traced_memory import share_traced

__all__ = [
    "ENGINE",
    "apply",
    "as_tensor",
    "binary_function",
    "fold_function",
    "kept",
    "number_operator",
    "record",
    "unary_function",
    "view_result",
    "wrap",
]

_SCALARS: Final = (bool, int, float)


def wrap(data: Any) -> Tensor:
    """An untracked tensor on an ndarray or a tracer, as it is."""
    if isinstance(data, Tracer):
        return make(data, data.own_aval)
    return make(data, aval_of(data))


def as_tensor(obj: Any, what: str = "argument") -> Tensor:
    """A tensor of anything array-like; tensors pass, ndarrays share their memory, lists are copied.

    Raises DtypeError for dtypes that are not supported, ShapeError for ragged lists.
    """
    if isinstance(obj, Tensor):
        if obj._weak:  # an array of a number decides dtypes
            return make(obj._value, obj._aval)
        return stand_in(obj) if is_tracing() else obj
    if isinstance(obj, np.ndarray):
        if type(obj) is not np.ndarray:
            obj = _base_array(obj, what)
        elif obj.dtype in FLOATS:
            flags = obj.flags
            if flags.c_contiguous and flags.aligned:  # the usual case, without detours
                return make(obj, make_aval(obj.shape, obj.dtype, True))
        dtype = check_dtype(obj.dtype, what)
        itemsize = dtype.itemsize
        if obj.dtype != dtype or not obj.flags.aligned or any(s % itemsize for s in obj.strides):
            note_read(obj)  # a trace gets a copy
            obj = np.array(obj, dtype)
        return wrap(obj)
    if isinstance(obj, _SCALARS):
        return wrap(_scalar_array(obj, None))
    if isinstance(obj, list | tuple):
        return _of_sequence(obj, what)
    if isinstance(obj, complex):
        raise DtypeError(f"{what}: complex numbers are not supported; use real and imaginary parts")
    try:
        array = np.asarray(obj)
    except (ValueError, TypeError) as error:
        raise DtypeError(f"{what}: cannot make an array of {type(obj).__name__}: {error}") from None
    return as_tensor(array, what)


def _base_array(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """A subclass (``np.memmap``) as the ndarray that it is; those whose meaning would be lost are refused."""
    if isinstance(array, np.ma.MaskedArray):
        raise DtypeError(f"{what}: masked arrays are not supported; fill them first (a.filled(0.0)), or use jg.where")
    if isinstance(array, np.matrix):
        raise DtypeError(f"{what}: np.matrix is not supported, its * means something else; use np.asarray(m)")
    return np.asarray(array)


def _scalar_array(value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    try:
        array = np.array(value, dtype)
        if array.dtype.kind == "O":
            raise OverflowError("it is too large for every integer type; write it as a float")
        return array
    except OverflowError as error:
        raise DtypeError(f"{value} does not fit {dtype or 'int64'}: {error}") from None


def _of_sequence(items: Sequence[Any], what: str) -> Tensor:
    """Lists of numbers become arrays; lists with tensors inside are stacked and stay tracked."""
    if _contains_tensor(items):
        parts = [as_tensor(i, what) for i in items]
        shapes = {p.shape for p in parts}
        if len(shapes) > 1:
            raise ShapeError(f"{what}: a ragged list, with elements of shapes {', '.join(map(str, sorted(shapes)))}")
        return stack_values(parts)  # type: ignore[no-any-return]
    try:
        array = np.array(items)
    except ValueError:
        raise ShapeError(f"{what}: a ragged list; all rows must have the same length") from None
    if array.size == 0 and array.dtype == FLOAT64:
        return wrap(array)
    return as_tensor(array, what)


def _contains_tensor(items: Any) -> bool:
    return any(isinstance(i, Tensor) or (isinstance(i, list | tuple) and _contains_tensor(i)) for i in items)


# --------------------------------------------------------------------------- operands

_WEAK: Final = {"f": 0.0, "i": 0, "b": False}  # Python numbers that promote as a weak tensor does
_constants: dict[tuple[float, np.dtype[Any]], Tensor] = {}


def _constant(value: Any, dtype: np.dtype[Any]) -> Tensor:
    """A Python number as a 0-d tensor; frequent ones are kept (never zero, whose sign a look-up would lose)."""
    if value:
        found = _constants.get((value, dtype))
        if found is not None:
            return found
    try:
        array = np.array(value, dtype)
    except (OverflowError, ValueError) as error:
        raise DtypeError(f"the number {value} does not fit dtype {dtype}: {error}") from None
    array.flags.writeable = False
    made = wrap(array)
    if value and not math.isnan(value):
        if len(_constants) > 512:
            _constants.clear()
        _constants[value, dtype] = made
    return made


def _elementwise_operands(primitive: Primitive, impl: Elementwise, args: tuple[Any, ...]) -> list[Tensor]:
    """The operands in the one dtype that NumPy's promotion gives, each conversion recorded as an operation."""
    name, fixed = primitive.name, impl.fixed
    if not fixed and (usual := _of_one_dtype(args)) is not None and usual[0]._aval.dtype.kind not in impl.refuses:
        return usual
    converted = [a if type(a) is Tensor else operand(a, f"{name}, operand {i + 1}") for i, a in enumerate(args)]
    dtype = promoted(*[a for i, a in enumerate(converted) if i not in fixed])
    if impl.result == "float" and dtype.kind != "f":
        dtype = FLOAT64
    dtype = check_dtype(dtype, name)
    if dtype.kind in impl.refuses:
        raise DtypeError(f"{name} is not defined for {dtype} operands; convert them first (.astype(...))")
    operands: list[Tensor] = []
    for i, a in enumerate(converted):
        wanted = np.dtype(fixed[i]) if i in fixed else dtype
        if not isinstance(a, Tensor):
            operands.append(_constant(a, wanted))
        elif a.dtype != wanted:
            operands.append(_converted(a, wanted))
        else:
            operands.append(a)
    return operands


def _of_one_dtype(args: tuple[Any, ...]) -> list[Tensor] | None:
    """The usual operands, tensors of one float dtype and Python numbers, as they are; None for others."""
    first = args[0]
    if type(first) is not Tensor or first._weak:
        return None
    dtype = first._aval.dtype
    if dtype is not FLOAT64 and dtype is not FLOAT32:
        return None
    operands = [first]
    for a in args[1:]:
        kind = type(a)
        if kind is Tensor:
            if a._weak or a._aval.dtype is not dtype:
                return None
            operands.append(a)
        elif kind is float or kind is int:
            operands.append(_constant(a, dtype))
        else:
            return None
    return operands


def operand(obj: Any, what: str) -> Any:
    """A Python number as it is, anything else as a tensor."""
    kind = type(obj)
    if kind is Extent:  # read from a shape by the user's code: a number like any other
        return int(obj)
    return obj if kind in _SCALARS or (kind is Tensor and obj._weak) else as_tensor(obj, what)


def promoted(*operands: Any) -> np.dtype[Any]:
    """The common dtype of tensors and Python numbers; beside a float dtype alone, numbers decide nothing."""
    deciding: list[Any] = [
        (a._aval.dtype if not a._weak else _WEAK[a._aval.dtype.kind]) if isinstance(a, Tensor) else a for a in operands
    ]
    found: np.dtype[Any] | None = None
    for d in deciding:
        if type(d) not in _SCALARS:
            if d not in FLOATS or (found is not None and d != found):
                return result_dtype(*deciding)
            found = d
    return result_dtype(*deciding) if found is None else found


def _converted(a: Tensor, dtype: np.dtype[Any]) -> Tensor:
    if a._edge is None and not isinstance(a._value, Tracer):
        if is_number(a._value):
            return _constant(a._value.item(), dtype)
        if current_graph() is None:
            return wrap(a._value.astype(dtype))
    return convert(a, dtype=dtype)  # type: ignore[no-any-return]


# --------------------------------------------------------------------------- applying


def apply(primitive: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """The result of a primitive: a tensor, or a tuple of them."""
    impl = primitive.impl
    tracing = is_tracing()
    if tracing and (others := stand_ins.get()):
        args = tuple([others.get(id(a), a) for a in args])
    if isinstance(impl, Elementwise):
        operands = _elementwise_operands(primitive, impl, args)
    else:
        operands = [a if type(a) is Tensor else as_tensor(a, primitive.name) for a in args]
    tracked = False
    arrays = []
    for t in operands:
        value = t._value
        if type(value) is Tracer:
            return _trace(primitive, operands, params)
        arrays.append(value)
        if t._edge is not None:
            tracked = True
    graph = current_graph() if tracing and arrays else None
    if graph is not None and not all(map(is_number, arrays)):
        return _trace(primitive, operands, params, graph)
    plan = plan_for(primitive, tuple([t._aval for t in operands]), params)
    found = plan.run(*arrays)
    if graph is not None and type(found) is np.ndarray and found.ndim == 0:
        found.flags.writeable = False  # made of numbers of the program alone: another one
    if primitive.outputs > 1:
        results = tuple([make(a, aval_of(a)) for a in found])
        if tracked:
            record(plan, operands, results)
        return results
    if type(impl) is View:
        return view_result(plan, operands[0], found)
    result: Tensor = _new(Tensor)
    result._value = found
    result._aval = plan.aval or _aval_of_result(plan, found)
    if tracked:
        record(plan, operands, (result,))
    else:
        _inherit_origin(operands, result)
    return result


def _aval_of_result(plan: Plan, found: Any) -> ShapedArray:
    """The aval of what a plan gave that does not know it yet."""
    if type(found) is not np.ndarray:  # a kernel would read a NumPy scalar as if it were an array
        raise DefinitionError(f"{plan.primitive.name} must give an ndarray, not {type(found).__name__}")
    aval = aval_of(found)
    if plan.settled:
        plan.aval = aval
    return aval


def view_result(plan: Plan, base: Tensor, found: Any) -> Tensor:
    """The tensor on what a view primitive made of ``base``: recorded, and linked to the base where it shares its memory."""
    result: Tensor = _new(Tensor)
    result._value = found
    result._aval = plan.aval or _aval_of_result(plan, found)
    mode = _is_enabled()
    edge = base._edge
    if edge is None:
        if base._origin is not None:
            result._origin = base._origin
    else:
        recorder = plan.recorders.get(_FIRST)  # there is one only where the result is differentiable
        if mode is not True or recorder is None or recorder.keep or base._slot:
            record(plan, (base,), (result,))
        else:
            result._edge = node = _new(GradNode)
            node.recorder = recorder
            node.edges = (edge,)
            node.residuals = ()
            node.tick = next_tick()
    array, memory = base._value, found.base
    if memory is array or (memory is not None and memory is array.base) or owner(found) is owner(array):
        (base._storage or storage_of(base)).add(result)
        if plan.primitive.rule is not None:
            if mode:
                link_view(base, result, plan.step)
            else:
                result._no_grad_view = True
    return result


def _trace(primitive: Primitive, operands: Sequence[Tensor], params: dict[str, Any], graph: Graph | None = None) -> Any:
    if graph is None:
        for t in operands:  # the innermost trace
            if type(t._value) is Tracer and (graph is None or t._value.graph.depth > graph.depth):
                graph = t._value.graph
        assert graph is not None
    atoms, avals = [], []
    tracked = False
    for t in operands:
        value = t._value
        if type(value) is Tracer:
            atom = value.variable
            atoms.append(atom if value.graph is graph else atom_of(value, graph, t))
            avals.append(atom.aval)
        else:
            atoms.append(atom_of(value, graph, t))
            avals.append(t._aval)
        if t._edge is not None:
            tracked = True
    where = user_line() if graph.lines else None
    outs = infer(primitive, avals, params)
    tracers = graph.add(primitive, tuple(atoms), params, outs, where, in_backward.get())
    results = tuple([make(t, t.own_aval) for t in tracers])
    if type(primitive.impl) is View:
        share_traced(operands[0], results[0], (primitive, tuple(params.items())))
    if tracked and primitive.rule is not None and (mode := grad_mode.get()):
        needs = _needs(primitive, operands, results, mode)
        if needs:
            if all(map(_is_plain, params.values())):
                recorder = _traced_recorder(primitive, tuple(avals), needs, params)
            else:  # they know whose extents they are, so that the recorder is nobody else's
                recorder = _own_recorder(primitive, tuple(avals), needs, params)
            if graph is current_graph():
                operands = [_lifted(t, a, graph) for t, a in zip(operands, atoms, strict=True)]
            _attach(recorder, needs, operands, results, mode)
    elif not tracked:
        for result in results:
            _inherit_origin(operands, result)
    return results if primitive.outputs > 1 else results[0]


def _own_recorder(
    primitive: Primitive, avals: tuple[ShapedArray, ...], needs: tuple[int, ...], params: dict[str, Any]
) -> Recorder:
    """A recorder of traced values: its nodes keep all of them, which costs nothing."""
    # with a plan of its own: a cached one would be found again by the avals, and run
    return Recorder(Plan.of_traced(primitive, avals, params), needs, True)


_traced_recorders: dict[Any, Recorder] = {}


def _is_plain(value: Any) -> bool:
    """Whether a parameter says the same in every graph; equal ones are of one type."""
    kind = type(value)
    return kind is int or value is None or (kind is tuple and all(map(_is_plain, value)))


def _traced_recorder(
    primitive: Primitive, avals: tuple[ShapedArray, ...], needs: tuple[int, ...], params: dict[str, Any]
) -> Recorder:
    """The same, shared by all operations that are alike."""
    key = (primitive, avals, needs, *params.items())
    found = _traced_recorders.get(key)
    if found is None:
        if len(_traced_recorders) > 1024:
            _traced_recorders.clear()
        found = _traced_recorders[key] = _own_recorder(primitive, avals, needs, params)
    return found


def _lifted(tensor: Tensor, atom: Any, graph: Graph) -> Tensor:
    """A captured tensor as a node keeps it: its gradient has to read that tensor too, and not the array of this moment."""
    if isinstance(tensor._value, Tracer) or is_number(tensor._value):
        return tensor
    lifted = wrap(Tracer(graph, atom))
    lifted._edge, lifted._slot = tensor._edge, tensor._slot
    return lifted


def record(plan: Plan, operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Give the results their place in the graph, if an operand is tracked and grad mode is on."""
    mode = grad_mode.get()
    if mode is True and len(operands) == 1:
        recorder = plan.recorders.get(_FIRST)  # there is one only where the result is differentiable
        operand = operands[0]
        if recorder is not None and recorder.outputs == 1 and not operand._slot:
            result = results[0]
            result._edge = GradNode(recorder, (operand._edge,), _residuals(recorder, operands, results))
            return
    needs = _needs(plan.primitive, operands, results, mode)
    if needs:
        # a tangent reads the values that a cotangent reads, unless the two have rules of their own
        recorder = recorder_for(plan, needs, mode == FORWARD and isinstance(plan.primitive.rule, Custom))
        _attach(recorder, needs, operands, results, mode)


def _needs(primitive: Primitive, operands: Sequence[Tensor], results: Sequence[Tensor], mode: Any) -> tuple[int, ...]:
    """The operands that a gradient goes on to; where there is none, the results know why."""
    differentiable = primitive.differentiable
    needs = tuple([i for i, t in enumerate(operands) if t._edge is not None and differentiable(i)])
    if not mode or not needs:
        if any(t._edge is not None for t in operands):
            _explain(results, f"nondiff:{primitive.name}" if mode else "no_grad")
        return ()
    if not any(r._aval.dtype.kind == "f" for r in results):
        _explain(results, f"nondiff:{primitive.name}")
        return ()
    return needs


def _attach(
    recorder: Recorder, needs: tuple[int, ...], operands: Sequence[Tensor], results: Sequence[Tensor], mode: Any
) -> None:
    """Make a node and hang the results on it."""
    residuals = _residuals(recorder, operands, results)
    edges = tuple([operands[i]._edge for i in needs])
    slots = tuple([operands[i]._slot for i in needs])
    node = GradNode(recorder, edges, residuals, slots if any(slots) else None)
    if mode == ANOMALY:
        node.where = user_line()
        node.prints = fingerprints(residuals)
    for slot, result in enumerate(results):
        if result._aval.dtype.kind == "f":
            result._edge = node
            if slot:
                result._slot = slot


def _residuals(recorder: Recorder, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Any, ...]:
    """What a node keeps for its backward."""
    if not recorder.keep:
        return ()
    count = len(operands)
    return tuple([kept(operands[i] if i < count else results[i - count]) for i in recorder.keep])


def _inherit_origin(operands: Sequence[Tensor], result: Tensor) -> None:
    """Why an operand is untracked explains why the result is."""
    for operand in operands:
        if operand._origin is not None:
            result._origin = operand._origin
            if operand._origin != "numpy":  # the less innocent cause
                return


def _explain(results: Sequence[Tensor], origin: str) -> None:
    for result in results:
        result._origin = origin


def kept(tensor: Tensor) -> Any:
    """The array that a node keeps: a small part of a larger memory is copied, so that writes need not copy the whole."""
    array = tensor._value
    if tensor._storage is not None and not isinstance(array, Tracer):
        memory = owner(array)
        if memory is not array and isinstance(memory, np.ndarray) and 2 * array.size <= memory.size:
            return array.copy()
    return array


def constant(value: Any, dtype: Any, like: Tensor) -> Tensor:
    """A tensor of a number or of an array that nobody else writes to, traced where ``like`` is."""
    if isinstance(like._value, Tracer):
        return wrap(Tracer(like._value.graph, Constant(np.array(value, dtype, order="C"), made=True)))
    return wrap(np.asarray(value, dtype))


class _Engine:
    value_class = Tensor
    as_value = staticmethod(as_tensor)
    operand = staticmethod(operand)
    promoted = staticmethod(promoted)
    apply = staticmethod(apply)
    wrap = staticmethod(wrap)
    constant = staticmethod(constant)


ENGINE: Final = _Engine()


# --------------------------------------------------------------------------- Python numbers


def number_operator(function: Callable[..., Any], of_bools: bool = False) -> Callable[..., Any]:
    """An operator that makes a weak number of weak ones, as Python makes a number of numbers; what a function makes of them
    is an array. ``of_bools``: two bools stay bools, where Python counts with them."""

    def operate(*operands: Any) -> Any:
        if not all(map(_is_number_or_weak, operands)):
            return function(*operands)
        if not of_bools:
            operands = tuple([_counted(a) for a in operands])
        results = function(*operands)
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, Tensor):
                result._weak = True
        return results

    return operate


def _is_number_or_weak(value: Any) -> bool:
    return value._weak if isinstance(value, Tensor) else type(value) in _SCALARS or type(value) is Extent


def _counted(number: Any) -> Any:
    """A bool as an int."""
    if not isinstance(number, Tensor):
        return int(number) if type(number) is bool else number
    if number._aval.dtype.kind != "b":
        return number
    counted = convert(number, dtype=INT64)
    counted._weak = True
    return counted


# --------------------------------------------------------------------------- the short way

_MISSING: Final = object()
_new = object.__new__
_empty = np.empty
_is_enabled = grad_mode.get
_BOTH, _FIRST, _SECOND = (0, 1), (0,), (1,)


def unary_function(primitive: Primitive, general: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A primitive of one operand, as a function that does the usual case without detours: that of a tensor by whose aval alone
    a plan is found; ``general`` does the others, wrong arguments included (without it they must be tensors)."""
    plans = primitive.plans
    differentiable = primitive.rule is not None
    elementwise = isinstance(primitive.impl, Elementwise)
    if general is None:
        general = primitive

    def function(self: Any = _MISSING, /, *rest: Any, **named: Any) -> Any:
        if rest or named:
            return general(*(() if self is _MISSING else (self,)), *rest, **named)
        try:
            plan = plans[(self._aval,)]
        except (KeyError, AttributeError):
            return general() if self is _MISSING else general(self)
        x = self._value
        if elementwise:
            out = _empty(plan.shape, plan.dtype)
            plan.entry(x, out)
        else:
            out = plan.run(x)
        result = _new(Tensor)
        result._value = out
        result._aval = plan.aval
        edge = self._edge
        if edge is None:
            if self._origin is not None:
                result._origin = self._origin
        else:
            if not differentiable or self._slot or _is_enabled() is not True:
                record(plan, (self,), (result,))
                return result
            try:
                recorder = plan.recorders[_FIRST]
            except KeyError:
                recorder = recorder_for(plan, _FIRST)
            result._edge = node = _new(GradNode)
            node.recorder = recorder
            node.edges = (edge,)
            node.residuals = (
                recorder.save(x, out) if self._storage is None else _residuals(recorder, (self,), (result,))
            )
            node.tick = next_tick()
        return result

    return function


def binary_function(primitive: Primitive, general: Callable[..., Any] | None = None) -> Callable[[Tensor, Any], Any]:
    """An elementwise primitive of two operands, as an operator that does the usual case without detours; ``general`` does
    the others."""
    plans = primitive.plans
    differentiable = primitive.rule is not None
    if general is None:
        general = primitive

    def function(self: Tensor, other: Any) -> Any:
        given = other
        if type(other) is not Tensor:
            kind = type(other)
            if kind is Extent:  # read from a shape by the user's code: a number like any other
                other, kind = int(other), int
            if (kind is float or kind is int) and self._aval.dtype.kind == "f":
                other = _constant(other, self._aval.dtype)
            elif not is_operand(other):
                return NotImplemented
            elif kind in _SCALARS:
                return general(self, other)
            else:
                other = as_tensor(other)
        try:
            plan = plans[self._aval, other._aval]
        except KeyError:
            return general(self, given)
        x = self._value
        y = other._value
        out = _empty(plan.shape, plan.dtype)
        plan.entry(x, y, out)
        result = _new(Tensor)
        result._value = out
        result._aval = plan.aval
        first = self._edge
        second = other._edge
        if first is None:
            if second is None:
                origin = self._origin or other._origin
                if origin is not None:
                    result._origin = origin
                return result
            needs: tuple[int, ...] = _SECOND
            edges: tuple[Any, ...] = (second,)
        elif second is None:
            needs, edges = _FIRST, (first,)
        else:
            needs, edges = _BOTH, (first, second)
        if not differentiable or self._slot or other._slot or _is_enabled() is not True:
            record(plan, (self, other), (result,))
            return result
        try:
            recorder = plan.recorders[needs]
        except KeyError:
            recorder = recorder_for(plan, needs)
        result._edge = node = _new(GradNode)
        node.recorder = recorder
        node.edges = edges
        node.residuals = (
            recorder.save(x, y, out)
            if self._storage is None and other._storage is None
            else _residuals(recorder, (self, other), (result,))
        )
        node.tick = next_tick()
        return result

    return function


def fold_function(primitive: Primitive, general: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction as a function that does the usual case, one tensor over all axes, without detours; ``general`` does the
    others."""
    plans = primitive.plans

    def first_time(*args: Any, **kwargs: Any) -> Any:
        result = general(*args, **kwargs)
        if len(args) == 1 and not kwargs and type(args[0]) is Tensor:
            aval = args[0]._aval
            plan = plans.get(((aval,), ("axes", tuple(range(aval.ndim)))))
            if plan is not None:
                keep_plan(plans, (aval,), plan)
        return result

    return unary_function(primitive, first_time)


def is_operand(obj: Any) -> bool:
    """Whether an operator should try to make a tensor of the other operand."""
    return isinstance(obj, bool | int | float | complex | np.ndarray | np.generic | list | tuple | Tensor) or hasattr(
        obj, "__array__"
    )
