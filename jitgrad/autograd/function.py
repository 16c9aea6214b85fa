"""Operations with a derivative rule of the user's own."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from jitgrad.autodiff.node import GradNode, NodeRecorder
from jitgrad.autodiff.reverse import fingerprints
from jitgrad.autodiff.rules import Mask
from jitgrad.core.aval import ShapedArray, aval_of, broadcasts_to, is_float
from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Tracer
from jitgrad.core.memory import owner
from jitgrad.core.modes import ANOMALY, grad_mode, note_question
from jitgrad.core.trace import atom_of, current_graph, operand_for
from jitgrad.errors import (
    ArgumentError,
    InPlaceError,
    NotDifferentiableError,
    ReleasedGraphError,
    ShapeError,
    UnsupportedError,
    user_line,
)
from jitgrad.ops.linear import convert, copy_of, sum_to
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.inplace import take_history
from jitgrad.tensor.recording import kept
from jitgrad.tensor.storage import share_memory
from jitgrad.tensor.tensor import make
from jitgrad.tensor.traced_memory import in_one_memory

__all__ = ["Function", "FunctionContext", "once_differentiable"]

Pair = tuple[Any, Mask | None]


class _Captured:
    """The histories of saved tensors that are neither arguments nor results; released with the arrays."""

    def __init__(self) -> None:
        self.edges: list[tuple[Any, int]] = []


class FunctionContext:
    """What ``forward`` hands on to ``backward``: saved tensors, and any attribute that the user sets."""

    def __init__(self) -> None:
        self._needs: tuple[bool, ...] = ()
        self._to_save: tuple[Tensor | None, ...] = ()
        self._saved: list[tuple[str, int] | None] = []
        self._dirty: tuple[Tensor, ...] = ()
        self._nondiff: tuple[Tensor, ...] = ()
        self._materialize = True
        self._node: Callable[[], GradNode | None] = lambda: None

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """One bool an argument of ``apply``: whether it requires grad."""
        note_question()
        return self._needs

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for backward, where ``ctx.saved_tensors`` gives them back with their histories.

        Other values are kept as attributes of ``ctx``. Raises UnsupportedError for what is not a tensor.
        """
        for position, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise UnsupportedError(
                    f"save_for_backward takes tensors; argument {position} is a {type(tensor).__name__}. "
                    "Keep it as an attribute: ctx.name = value"
                )
        self._to_save = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which arguments ``forward`` has written in place; it has to return them."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which results have no derivative; they will not require grad."""
        self._nondiff = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether results that no gradient reaches give zeros to ``backward`` (the default) or None."""
        self._materialize = bool(value)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors of ``save_for_backward``; ReleasedGraphError after the graph was released."""
        node = self._node()
        if node is None:
            return self._to_save
        edges = node.edges
        if edges is None:
            raise ReleasedGraphError(
                f"the saved tensors of {node.name} were released by backward; pass retain_graph=True to keep them"
            )
        recorder = node.recorder
        assert isinstance(recorder, _FunctionRecorder)
        found: list[Tensor | None] = []
        for place, array in zip(self._saved, node.residuals, strict=False):
            if place is None:
                found.append(None)
                continue
            tensor = wrap(array)
            kind, index = place
            if kind == "argument" and index in recorder.needs:
                at = recorder.needs.index(index)
                tensor._edge, tensor._slot = edges[at], node.slots[at] if node.slots else 0
            elif kind == "result":
                tensor._edge, tensor._slot = node, index
            elif kind == "captured":
                tensor._edge, tensor._slot = node.residuals[-1].edges[index]
            found.append(tensor)
        return tuple(found)


class Function:
    """An operation with the derivative that you write.

    Subclass it with static methods ``forward(ctx, *args)`` and ``backward(ctx, *grads)``, and call ``apply(*args)``.
    ``forward`` runs unrecorded, on tensors and any other arguments, and returns a tensor or a tuple of them (ndarrays
    become tensors). ``backward`` gets the gradient of each result and returns that of each argument, None where there
    is none. Written in jitgrad operations on ``ctx.saved_tensors`` it can be differentiated again; else decorate it
    with ``once_differentiable``. Also possible: ``forward(*args)`` and ``setup_context(ctx, inputs, output)``. For
    forward mode add ``jvp(ctx, *tangents)``: the tangent of each result, given that of each argument (None for zero).

    Under ``jit`` both are traced, and so must be made of jitgrad operations; arguments cannot be written there.

    Errors: UnsupportedError in a traced ``vmap`` (use ``jg.primitive``), ShapeError or ArgumentError when ``backward``
    returns gradients of the wrong shape or number.

    >>> import jitgrad as jg
    >>> class Cube(jg.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3.0 * x * x
    >>> x = jg.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    setup_context: Callable[..., None] | None = None
    jvp: Callable[..., Any] | None = None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` and record this operation, if an argument requires grad."""
        args = tuple([_within_the_trace(operand_for(a)) for a in args])
        for position, arg in enumerate(args):
            if isinstance(arg, Tensor) and isinstance(arg._value, Tracer) and arg._value.graph.transformed:
                raise UnsupportedError(
                    f"{cls.__name__}.apply at {user_line()}: argument {position} depends on what vmap maps over, which would "
                    "lose the backward of a Function: use jg.primitive"
                )
        ctx = FunctionContext()
        ctx._needs = tuple(isinstance(a, Tensor) and a._edge is not None for a in args)
        before = [(a._edge, a._slot, a._version) if isinstance(a, Tensor) else (None, 0, 0) for a in args]
        token = grad_mode.set(False)
        try:
            if cls.setup_context is None:
                returned = cls.forward(ctx, *args)
            else:
                returned = cls.forward(*args)
                cls.setup_context(ctx, args, returned)
        finally:
            grad_mode.reset(token)
        return _Call(cls, ctx, args, before, returned).finish()


def _within_the_trace(argument: Any) -> Any:
    """A captured tensor that is tracked, as a traced value: ``forward`` must not read numbers whose gradient is wanted."""
    graph = current_graph()
    if graph is None or not isinstance(argument, Tensor) or argument.is_traced or argument._edge is None:
        return argument
    traced = wrap(Tracer(graph, atom_of(argument._value, graph, argument)))
    traced._edge, traced._slot = argument._edge, argument._slot
    return traced


class _Call:
    """One call of ``apply`` after its ``forward``: results get their places in the graph."""

    def __init__(
        self,
        cls: type[Function],
        ctx: FunctionContext,
        args: tuple[Any, ...],
        before: Sequence[tuple[Any, int, int]],
        returned: Any,
    ) -> None:
        self.name = cls.__name__
        self.cls = cls
        self.ctx = ctx
        self.args = args
        self.before = before
        self.single = not isinstance(returned, tuple)
        items = (returned,) if self.single else returned
        self.returned = [as_tensor(r, self.name) if isinstance(r, np.ndarray | np.generic) else r for r in items]

    def finish(self) -> Any:
        self._check_writes()
        results = [self._result(r) for r in self.returned]
        needs = tuple(i for i, needed in enumerate(self.ctx._needs) if needed)
        if needs and grad_mode.get():
            self._record(needs, results)
        else:
            for result in results:
                if needs and isinstance(result, Tensor) and not self._is_dirty(result):
                    result._origin = "no_grad"
        # a context that held results, which hold their node, which holds the context, would be a cycle
        self.ctx._to_save = self.ctx._dirty = self.ctx._nondiff = ()
        return results[0] if self.single else tuple(results)

    def _is_dirty(self, tensor: Tensor) -> bool:
        return any(tensor is d for d in self.ctx._dirty)

    def _check_writes(self) -> None:
        for dirty in self.ctx._dirty:
            if dirty.is_traced:
                raise UnsupportedError(f"{self.name}: forward cannot write an argument while a function is traced")
            if not any(dirty is a for a in self.args) or not any(dirty is r for r in self.returned):
                raise ArgumentError(f"{self.name}: mark_dirty is for arguments that forward writes and returns")
        for position, (arg, (edge, _, version)) in enumerate(zip(self.args, self.before, strict=True)):
            if not isinstance(arg, Tensor) or edge is None or not grad_mode.get() or arg._version == version:
                continue
            if not self._is_dirty(arg):
                raise InPlaceError(
                    f"{self.name}: forward wrote argument {position} of shape {arg.shape} in place "
                    "without ctx.mark_dirty"
                )
            if not isinstance(arg._edge, GradNode):
                raise InPlaceError(
                    f"{self.name}: forward wrote argument {position}, a leaf that requires grad; write to its .clone()"
                )

    def _result(self, returned: Any) -> Any:
        """A tensor of the caller's own: never an argument, nor a view of one, unless it is marked as written."""
        if not isinstance(returned, Tensor) or self._is_dirty(returned):
            return returned
        if returned.is_traced:
            return self._traced_result(returned)
        array = returned._array(f"{self.name}, result of forward")
        memory = owner(array)
        if any(isinstance(a, Tensor) and owner(a._value) is memory for a in self.args):
            copied = array.copy()
            return make(copied, aval_of(copied))
        result = make(array, returned._aval)
        if returned._storage is not None:
            share_memory(returned, result)
        return result

    def _traced_result(self, returned: Tensor) -> Tensor:
        if any(isinstance(a, Tensor) and (a is returned or in_one_memory(a, returned)) for a in self.args):
            return copy_of(returned)  # type: ignore[no-any-return]
        result = make(returned._value, returned._aval)
        if returned._memory is not None:
            returned._memory.add(result, returned._path)
        return result

    def _record(self, needs: tuple[int, ...], results: list[Any]) -> None:
        ctx = self.ctx
        shapes = [(self.args[i].shape, self.args[i].dtype) for i in needs]
        out_avals = [r._aval if isinstance(r, Tensor) else None for r in results]
        recorder = _FunctionRecorder(self.cls, ctx, needs, len(self.args), shapes, out_avals)
        slots = tuple(self.before[i][1] for i in needs)
        node = GradNode(recorder, tuple(self.before[i][0] for i in needs), (), slots if any(slots) else None)
        node.residuals = self._residuals(results)
        ctx._node = weakref.ref(node)
        if grad_mode.get() == ANOMALY:
            node.where = user_line()
            node.prints = fingerprints(node.residuals)
        for slot, (returned, result) in enumerate(zip(self.returned, results, strict=True)):
            if not isinstance(result, Tensor) or not is_float(result.dtype):
                continue
            if any(returned is t for t in ctx._nondiff):
                result._origin = f"nondiff:{self.name}"
            elif self._is_dirty(result):
                take_history(result, node, slot)
            else:
                result._edge = node
                result._slot = slot

    def _residuals(self, results: list[Any]) -> tuple[Any, ...]:
        """The arrays to keep, and in ``ctx`` which tensors they were."""
        arrays: list[Any] = []
        captured = _Captured()
        for tensor in self.ctx._to_save:
            place, array = None, None
            if tensor is not None:
                at_result = next((k for k, r in enumerate(self.returned) if r is tensor), None)
                at_argument = next((i for i, a in enumerate(self.args) if a is tensor), None)
                if at_result is not None and (at_argument is None or self._is_dirty(tensor)):
                    place, array = ("result", at_result), results[at_result]._value
                elif at_argument is not None:
                    place, array = ("argument", at_argument), kept(tensor)
                else:
                    place, array = ("captured", len(captured.edges)), kept(tensor)
                    captured.edges.append((tensor._edge, tensor._slot))
            self.ctx._saved.append(place)
            arrays.append(array)
        return (*arrays, captured) if captured.edges else tuple(arrays)


class _FunctionRecorder(NodeRecorder):
    """The recorder of one call of a ``Function``: its ``backward`` is the rule."""

    def __init__(
        self,
        cls: type[Function],
        ctx: FunctionContext,
        needs: tuple[int, ...],
        arguments: int,
        shapes: Sequence[tuple[tuple[int, ...], Any]],
        out_avals: Sequence[ShapedArray | None],
    ) -> None:
        self.name = cls.__name__
        self.cls = cls
        self.ctx = ctx
        self.needs = needs
        self.arguments = arguments
        self.shapes = shapes
        self.out_avals = out_avals
        self.outputs = len(out_avals)
        self.fresh = (False,) * len(needs)

    def values(self, node: GradNode, g: Any, mask: Mask | None, record: bool) -> list[Pair | None]:
        """The cotangents as tensors; structural zeros end here."""
        return [None if t is None else (t, None) for t in self._call(g)]

    def push(self, node: GradNode, tangents: Sequence[Tensor | None], record: bool) -> Any:
        """The tangents of the results, given those of the tracked arguments."""
        if self.cls.jvp is None:
            raise NotDifferentiableError(
                f"{self.name} has no forward-mode rule: give it a jvp(ctx, *tangents), or use reverse mode (vjp, grad)"
            )
        directions: list[Tensor | None] = [None] * self.arguments
        for i, tangent in zip(self.needs, tangents, strict=True):
            directions[i] = tangent
        moved = self.cls.jvp(self.ctx, *directions)
        listed = moved if isinstance(moved, tuple | list) else (moved,)
        if len(listed) != self.outputs:
            raise ArgumentError(
                f"{self.name}.jvp returned {len(listed)} tangents for {self.outputs} results of forward"
            )
        checked = [self._checked_tangent(t, k) for k, t in enumerate(listed)]
        return checked[0] if self.outputs == 1 else tuple(checked)

    def _checked_tangent(self, tangent: Any, slot: int) -> Tensor | None:
        aval = self.out_avals[slot]
        if tangent is None or aval is None:
            return None
        made = as_tensor(tangent, f"{self.name}.jvp, tangent of result {slot}")
        if made.shape != aval.shape:
            raise ShapeError(
                f"{self.name}.jvp returned a tangent of shape {made.shape} for result {slot} of shape {aval.shape}"
            )
        return made if made.dtype == aval.dtype else convert(made, dtype=aval.dtype)

    def _call(self, g: Any) -> list[Tensor | None]:
        gs = [None if t is None else _handed_over(t) for t in ([g] if self.outputs == 1 else g)]
        for slot, aval in enumerate(self.out_avals):
            if gs[slot] is None and aval is not None and self.ctx._materialize:
                gs[slot] = wrap(np.zeros(aval.shape, aval.dtype))
        returned = self.cls.backward(self.ctx, *gs)
        grads = returned if isinstance(returned, tuple | list) else (returned,)
        if len(grads) < self.arguments or any(extra is not None for extra in grads[self.arguments :]):
            raise ArgumentError(
                f"{self.name}.backward returned {len(grads)} gradients for {self.arguments} arguments of forward; "
                "return None for those without one"
            )
        return [
            self._checked(grads[i], i, shape, dtype) for i, (shape, dtype) in zip(self.needs, self.shapes, strict=True)
        ]

    def _checked(self, gradient: Any, position: int, shape: tuple[int, ...], dtype: Any) -> Tensor | None:
        if gradient is None:
            return None
        made = as_tensor(gradient, f"{self.name}.backward, gradient of argument {position}")
        if made.shape != shape:
            if not broadcasts_to(shape, made.shape):
                raise ShapeError(
                    f"{self.name}.backward returned a gradient of shape {made.shape} "
                    f"for argument {position} of shape {shape}"
                )
            made = sum_to(made, shape)
        return made if made.dtype == dtype else convert(made, dtype=dtype)


def _handed_over(gradient: Tensor) -> Tensor:
    """The gradient as a tensor that ``backward`` may write: others, to whom the same one goes, do not see it."""
    array = gradient._value
    if isinstance(array, Tracer):
        return gradient
    if not array.flags.writeable or not all(array.strides):
        return copy_of(gradient)  # type: ignore[no-any-return]
    own = make(array, gradient._aval)  # copied when it is written, as long as something else holds the array
    own._edge, own._slot = gradient._edge, gradient._slot
    return own


# --------------------------------------------------------------------------- rules that end at the first order


class _OnceRecorder(NodeRecorder):
    """Stands behind the gradients of a ``once_differentiable`` rule: differentiating them is an error."""

    def __init__(self, name: str, count: int, outputs: int) -> None:
        self.name = f"backward of {name}"
        self.outputs = outputs
        self.fresh = (False,) * count

    def run(self, node: GradNode, g: Any) -> NoReturn:
        """Always an error."""
        raise NotDifferentiableError(
            f"the {self.name} is marked once_differentiable, so it has no second derivative; write it in jitgrad "
            "operations on ctx.saved_tensors and remove the mark"
        )

    def values(self, node: GradNode, g: Any, mask: Mask | None, record: bool) -> NoReturn:
        """Always an error."""
        self.run(node, g)

    def push(self, node: GradNode, tangents: Sequence[Tensor | None], record: bool) -> NoReturn:
        """Always an error."""
        self.run(node, tangents)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the ``backward`` of a ``Function`` that is not written in jitgrad operations.

    It runs unrecorded; what would differentiate its results raises NotDifferentiableError instead of being wrong.

    >>> import jitgrad as jg, numpy as np
    >>> class Sine(jg.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.x = x.numpy()
    ...         return np.sin(ctx.x)
    ...     @staticmethod
    ...     @jg.autograd.once_differentiable
    ...     def backward(ctx, g):
    ...         return g.numpy() * np.cos(ctx.x)
    >>> x = jg.tensor([0.0], requires_grad=True)
    >>> Sine.apply(x).sum().backward()
    >>> x.grad
    tensor([1.])
    """

    @functools.wraps(backward)
    def wrapper(ctx: FunctionContext, *grads: Any) -> Any:
        recording = bool(grad_mode.get())
        token = grad_mode.set(False)
        try:
            returned = backward(ctx, *grads)
        finally:
            grad_mode.reset(token)
        node = ctx._node()
        if not recording or node is None:
            return returned
        many = isinstance(returned, tuple | list)
        results = [None if r is None else as_tensor(r, "backward") for r in (returned if many else (returned,))]
        sources = [(g._edge, g._slot) for g in grads if isinstance(g, Tensor) and g._edge is not None]
        sources += node.next_functions
        end = GradNode(
            _OnceRecorder(node.name, len(sources), len(results)),
            tuple(edge for edge, _ in sources),
            (),
            tuple(slot for _, slot in sources),
        )
        marked: list[Tensor | None] = []
        for slot, result in enumerate(results):
            made = None if result is None else make(result._value, result._aval)
            if made is not None:
                made._edge, made._slot = end, slot
            marked.append(made)
        return tuple(marked) if many else marked[0]

    return wrapper
