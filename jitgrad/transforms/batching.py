"""vmap: a function of one element as a function of whole batches.

The function is traced for one element and its graph is run on the batch, node by node, by the rules of
``autodiff.batching``. Where it cannot be traced (Python decides on values, or calls an ``autograd.Function``), it is
called for one element after the other and the results are stacked, which gives the same numbers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.batching import Batched, run_batched
from jitgrad.autodiff.node import GradNode, next_tick
from jitgrad.core.aval import ShapedArray, aval_of
from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Atom, Constant, Graph, Tracer, Variable
from jitgrad.core.memory import owner
from jitgrad.core.modes import grad_mode, transforming
from jitgrad.core.trace import atom_of
from jitgrad.errors import (
    ArgumentError,
    ConversionError,
    LeakedTracerError,
    ShapeError,
    TracedValueError,
    UnsupportedError,
    user_line,
)
from jitgrad.ops.linear import copy_of, expand, permute, slice_view, stack_values
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.tensor import make
from jitgrad.transforms.private import InputRecorder, leave, private, wants_tensors
from jitgrad.transforms.trees import Structure, flatten, flatten_axes

__all__ = ["UNTRACEABLE", "RowFunction", "vmap"]

_NUMBERS: Final = (bool, int, float)
UNTRACEABLE: Final = (TracedValueError, ConversionError, LeakedTracerError, UnsupportedError)
"""What a function raises that cannot be traced for one element, but can be called for one after the other."""

_deeper: Final = itertools.count(1).__next__


@dataclass(frozen=True)
class _Outside:
    """A value from outside, and how it was when the function read it."""

    source: Tensor
    frozen: Tensor

    @property
    def value(self) -> Tensor:
        """As it was then; the source itself where it still is that, so that an outer trace knows whose value it is."""
        source, frozen = self.source, self.frozen
        same = source._value is frozen._value and source._edge is frozen._edge and source._slot == frozen._slot
        return source if same else frozen


class _ElementGraph(Graph):
    """The trace for one element. Values from outside become inputs, as they are at that moment; the grad mode of each
    node is noted, so that what was not recorded for the element is not recorded for the batch either."""

    def __init__(self) -> None:
        super().__init__("vmap", depth=_deeper(), transformed=True)
        self.modes: list[Any] = []
        self.outside: dict[Variable, _Outside] = {}
        self._seen: dict[Any, Variable] = {}

    def append(self, primitive: Any, inputs: tuple[Atom, ...], *args: Any, **kwargs: Any) -> tuple[Variable, ...]:
        """Append a node."""
        if self.closed:
            raise LeakedTracerError(
                f"{primitive.name} at {user_line()}: a value of a function under vmap was used after the call; return it instead "
                "of storing it"
            )
        atoms = tuple([self._frozen(a) if isinstance(a, Constant) else a for a in inputs])
        made = super().append(primitive, atoms, *args, **kwargs)
        self.modes.append(grad_mode.get())
        return made

    def capture(self, tracer: Tracer, source: Any) -> Atom:
        """A value of an outer trace that is still going on."""
        if tracer.graph.closed or source is None or tracer.graph.depth > self.depth:
            return super().capture(tracer, source)
        return self._input((tracer.variable, source._edge, source._slot), source)

    def forget(self) -> None:
        """Let go of everything: recorded nodes hold tracers, which hold this graph."""
        self.nodes, self.modes, self.outside, self._seen = [], [], {}, {}

    def _frozen(self, constant: Constant) -> Atom:
        if constant.source is None or (constant.is_literal and constant.source._edge is None):
            return constant
        source = constant.source
        return self._input((id(constant.value), source._edge, source._slot), source)

    def _input(self, key: Any, source: Tensor) -> Variable:
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = Variable(ShapedArray(source.shape, source.dtype, True))
            frozen = make(source._value, source._aval)
            frozen._edge, frozen._slot = source._edge, source._slot
            self.outside[found] = _Outside(source, frozen)
            self.differentiated |= source._edge is not None
        return found


@dataclass
class _Mapped:
    """The arguments of one call: leaves, each with the batch as its first axis or shared by all elements."""

    leaves: list[Any]
    batched: list[bool]
    structure: Structure
    size: int

    def call(self, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        args, kwargs = self.structure.unflatten(leaves)
        inside = transforming.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            transforming.reset(inside)


def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """A function of one element as a function of a batch: called once, on arrays with one more axis.

    ``in_axes`` says which axis of each argument is the batch: an int for all arguments, or a tuple with an int, None (the
    same for every element) or a container of these for each. Keyword arguments are mapped over their first axis.
    ``out_axes`` likewise says where the batch stands in the results; None for what is the same for every element.
    The function is run once for all elements wherever it can be; vmaps nest, and combine with every other transform:
    ``vmap(grad(f))`` gives a gradient for each example.

    Raises ArgumentError for axes that do not fit the arguments or results, ShapeError where batches differ in size.

    >>> import numpy as np, jitgrad as jg
    >>> jg.vmap(np.dot)(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([1., 4.])
    >>> loss = lambda w, x: np.sum((x * w) ** 2)
    >>> jg.vmap(jg.grad(loss), in_axes=(None, 0))(2.0, np.array([[1.0, 0.0], [1.0, 1.0]]))
    array([4., 8.])
    """

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        mapped = _arguments(args, kwargs, in_axes)
        try:
            results, structure = _at_once(function, mapped)
        except UNTRACEABLE as error:
            if mapped.size == 0:
                raise ArgumentError(
                    f"vmap: the shapes of the results of an empty batch are unknown, since the function cannot be traced: {error}"
                ) from error
            results, structure = _one_by_one(function, mapped)
        placed = _placed(results, structure, out_axes, mapped.size)
        as_tensors = wants_tensors((*args, *kwargs.values())) or any(r._edge is not None for r in placed)
        return structure.unflatten([leave(r, as_tensors) for r in placed])

    return transformed


# --------------------------------------------------------------------------- arguments


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any) -> _Mapped:
    if isinstance(in_axes, tuple | list):
        if len(in_axes) != len(args):
            raise ArgumentError(f"vmap: in_axes has {len(in_axes)} entries for {len(args)} positional arguments")
        in_axes = tuple(in_axes)
    leaves, structure = flatten((args, kwargs))
    axes = flatten_axes((in_axes, 0), (args, kwargs), "vmap, in_axes")
    made: list[Any] = []
    batched: list[bool] = []
    sizes: dict[int, tuple[int, tuple[int, ...], int]] = {}
    for position, (leaf, axis) in enumerate(zip(leaves, axes, strict=True)):
        what = f"vmap, leaf {position} of the arguments"
        if axis is None:
            made.append(private(leaf))
            batched.append(False)
            continue
        value = as_tensor(leaf, what)
        if not -value.ndim <= axis < value.ndim:
            raise ArgumentError(
                f"{what}: there is no axis {axis} in shape {tuple(value.shape)}; say None in in_axes for what all elements share"
            )
        made.append(private(_moved(value, axis % value.ndim, 0)))
        batched.append(True)
        sizes.setdefault(int(value.shape[axis]), (position, tuple(value.shape), axis))
    if not sizes:
        raise ArgumentError("vmap: no argument is mapped; in_axes must name an axis of at least one array")
    if len(sizes) > 1:
        listed = "; ".join(f"leaf {p} of shape {s} has {n} along axis {a}" for n, (p, s, a) in sizes.items())
        raise ShapeError(f"vmap: the batches differ in size: {listed}")
    return _Mapped(made, batched, structure, next(iter(sizes)))


def _moved(value: Tensor, source: int, target: int) -> Tensor:
    """The tensor with one axis moved."""
    if source == target:
        return value
    order = [i for i in range(value.ndim) if i != source]
    order.insert(target, source)
    return permute(value, axes=tuple(order))  # type: ignore[no-any-return]


# --------------------------------------------------------------------------- running


@dataclass
class _Element:
    """A function traced for one element."""

    nodes: list[Any]
    modes: list[Any]
    inputs: list[Variable | None]  # of the leaves; None for those that are no input
    outside: dict[Variable, _Outside]
    outputs: list[Atom]
    structure: Structure

    def run(self, leaves: Sequence[Any], batched: Sequence[bool]) -> list[Batched]:
        """The results for all elements."""
        outside = {v: x.value for v, x in self.outside.items()}
        known: dict[Atom, Batched] = {v: Batched(x, False) for v, x in outside.items()}
        known.update({v: Batched(x, b) for v, x, b in zip(self.inputs, leaves, batched, strict=True) if v is not None})
        results = run_batched(self.nodes, self.modes, self.outputs, known)
        arrays = (*leaves, *outside.values())
        memory = {id(owner(x._value)) for x in arrays if isinstance(x, Tensor) and not x.is_traced}
        for result in results:
            if not result.value.is_traced and id(owner(result.value._value)) in memory:
                result.value = copy_of(result.value)  # results share no memory with what came in
        return results


def _traced(function: Callable[..., Any], mapped: _Mapped) -> _Element:
    """The function traced for one element."""
    graph = _ElementGraph()
    variables: list[Variable | None] = []
    stand_ins: list[Any] = []
    inputs: list[InputRecorder] = []
    for leaf, batched in zip(mapped.leaves, mapped.batched, strict=True):
        if not isinstance(leaf, Tensor) or (
            not batched and not leaf.is_traced and leaf._edge is None and not leaf.ndim
        ):
            stand_ins.append(leaf)  # numbers that all elements share, and what is no array
            variables.append(None)
            continue
        shape = leaf.shape[1:] if batched else leaf.shape
        tracer = graph.add_input(ShapedArray(tuple([int(n) for n in shape]), leaf.dtype, True))
        variables.append(graph.inputs[-1])
        stand_in = wrap(tracer)
        stand_in._weak = leaf._weak
        if leaf._edge is not None and grad_mode.get():
            graph.differentiated = True
            recorder = InputRecorder()
            inputs.append(recorder)
            stand_in._edge = GradNode(recorder, (), ())
        stand_ins.append(stand_in)
    try:
        returned, structure = flatten(mapped.call(function, stand_ins))
        tensors = [as_tensor(r, "vmap, value of the function") for r in returned]
        outputs = [_output(t, graph) for t in tensors]
    finally:
        graph.closed = True
        for recorder in inputs:
            recorder.closed = next_tick()
    made = _Element(graph.nodes, graph.modes, variables, graph.outside, outputs, structure)
    graph.forget()
    return made


def _at_once(function: Callable[..., Any], mapped: _Mapped) -> tuple[list[Batched], Structure]:
    """The function traced for one element, and its graph run for all."""
    element = _traced(function, mapped)
    return element.run(mapped.leaves, mapped.batched), element.structure


@functools.cache
def _one_argument() -> Structure:
    return flatten(((0,), {}))[1]


class RowFunction:
    """A function of one array, traced for arrays of a shape and dtype, to be run for many of them at once.

    Raises one of ``UNTRACEABLE`` where it cannot be traced.
    """

    def __init__(self, function: Callable[[Tensor], list[Tensor]], shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        like = np.broadcast_to(np.zeros((), dtype), (1, *shape))
        self._element = _traced(function, _Mapped([make(like, aval_of(like))], [True], _one_argument(), 1))
        self.largest = max((v.aval.size for node in self._element.nodes for v in node.outputs), default=1)
        """The number of elements of the largest value that it computes for one row."""

    def __call__(self, rows: Tensor) -> list[Tensor]:
        """The results for the rows of ``rows``, stacked; they share no memory."""
        found = []
        memory = set()
        for result in self._element.run([rows], [True]):
            value = result.value
            if not result.batched:
                value = copy_of(expand(value, shape=(rows.shape[0], *value.shape)))
            elif not value.is_traced and id(owner(value._value)) in memory:
                value = copy_of(value)
            if not value.is_traced:
                memory.add(id(owner(value._value)))
            found.append(value)
        return found


def _output(tensor: Tensor, graph: _ElementGraph) -> Atom:
    atom = atom_of(tensor._value, graph, tensor)
    return graph._frozen(atom) if isinstance(atom, Constant) else atom


def _one_by_one(function: Callable[..., Any], mapped: _Mapped) -> tuple[list[Batched], Structure]:
    rows: list[list[Tensor]] = []
    structure = None
    for i in range(mapped.size):
        leaves = [
            private(slice_view(x, index=(i,)) if batched else x)
            for x, batched in zip(mapped.leaves, mapped.batched, strict=True)
        ]
        returned, made = flatten(mapped.call(function, leaves))
        if structure is not None and made != structure:
            raise ArgumentError(f"vmap: the function gave {structure} for the first element and {made} for element {i}")
        structure = made
        rows.append([as_tensor(r, "vmap, value of the function") for r in returned])
    assert structure is not None
    columns = list(zip(*rows, strict=True))
    for column in columns:
        shapes = {tuple(t.shape) for t in column}
        if len(shapes) > 1:
            raise ShapeError(f"vmap: results of different shapes for different elements: {sorted(shapes)}")
    return [Batched(stack_values(list(column)), True) for column in columns], structure


def _placed(results: Sequence[Batched], structure: Structure, out_axes: Any, size: int) -> list[Tensor]:
    """The results with the batch where ``out_axes`` wants it."""
    tree = structure.unflatten(list(range(len(results))))
    placed = []
    for result, axis in zip(results, flatten_axes(out_axes, tree, "vmap, out_axes"), strict=True):
        value = result.value
        if axis is None:
            if result.batched:
                raise ArgumentError("vmap: out_axes=None for a result that differs from element to element")
            placed.append(value)
            continue
        if not result.batched:
            value = copy_of(expand(value, shape=(size, *value.shape)))
        if not -value.ndim <= axis < value.ndim:
            raise ArgumentError(f"vmap: out_axes={axis} for a result with {value.ndim} axes, the batch included")
        placed.append(_moved(value, 0, axis % value.ndim))
    return placed
