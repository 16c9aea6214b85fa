"""Methods of tensors that act on the recorded graph: backward, detach, hooks; and the ways out to plain values."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.autodiff.node import GradNode, Hooks, Leaf, RemovableHandle
from jitgrad.autodiff.reverse import sweep
from jitgrad.core.aval import aval_of
from jitgrad.core.graph import Tracer, is_number
from jitgrad.core.modes import anomaly_mode, grad_mode, recording_mode, transforming
from jitgrad.core.trace import alias_of, current_graph, is_tracing, note_alias, stand_in
from jitgrad.errors import (
    ArgumentError,
    ConversionError,
    DtypeError,
    GradientWarning,
    GraphError,
    NoGraphError,
    ShapeError,
    TracedValueError,
    user_line,
)
from jitgrad.ops.linear import convert, copy_of, stop_gradient_view
from jitgrad.tensor.operands import as_tensor
from jitgrad.tensor.storage import aliased, is_held, share_memory, storage_of
from jitgrad.tensor.tensor import Tensor, make
from jitgrad.tensor.traced_memory import check_followed, check_parted

__all__ = ["METHODS", "no_graph", "run_backward", "starting_cotangent", "store_gradients"]

_WHY = {
    "detach": "it was made by detach(), which cuts the graph, or computed from such a tensor",
    "no_grad": "it was computed under no_grad, or from such a tensor",
    "frozen": "it was computed from tensors frozen by requires_grad_(False), and from nothing that requires grad",
    "numpy": "it was made from NumPy arrays or numbers, none of which requires grad",
    None: "it was computed from inputs none of which requires grad",
}

_THAW = (
    "Call requires_grad_(True) on what is to be trained, before computing it; a head that is trained on frozen features "
    "needs parameters that require grad."
)


def no_graph(tensor: Tensor, what: str = "backward") -> NoGraphError:
    """The error for a tensor that nothing recorded leads to, with the cause where it is known."""
    origin = tensor._origin
    if origin is not None and origin.startswith("nondiff:"):
        why = f"it is the result of {origin.removeprefix('nondiff:')}, which has no derivative"
    else:
        why = _WHY[origin]
    return NoGraphError(
        f"{what}: this tensor of shape {tensor.shape} and dtype {tensor.dtype} does not require grad and has no grad_fn: {why}. "
        f"{_THAW if origin == 'frozen' else 'Set requires_grad=True on the inputs before computing it.'}"
    )


_BUILD = "to build an array of tensors (np.array([a, b])), use jg.stack or jg.array"
_ones: dict[Any, Tensor] = {}  # cotangents of single elements, which nothing writes to


def starting_cotangent(tensor: Tensor, gradient: Any, what: str = "backward") -> Tensor:
    """The checked cotangent of a result: ones for a single element, else what the user gives."""
    if gradient is None:
        if tensor.size != 1:
            raise GraphError(
                f"{what} of a tensor of shape {tensor.shape}: only a single element has a gradient by itself; "
                f"pass gradient= of shape {tensor.shape}, or reduce first (.sum(), .mean())"
            )
        found = _ones.get(tensor._aval)
        if found is None:
            ones = np.ones(tensor.shape, tensor.dtype)
            ones.flags.writeable = False
            found = make(ones, aval_of(ones))
            if len(_ones) < 64:
                _ones[tensor._aval] = found
        return found
    given = as_tensor(gradient, f"{what}, gradient")
    if given.shape != tensor.shape:
        raise ShapeError(f"{what}: gradient of shape {given.shape} for a tensor of shape {tensor.shape}")
    if given.dtype != tensor.dtype:
        if given.dtype.kind == "f" and given._edge is not None:
            raise DtypeError(f"{what}: gradient of dtype {given.dtype} for a tensor of dtype {tensor.dtype}")
        given = convert(given, dtype=tensor.dtype)
    return given


def store_gradients(arrived: dict[Any, Any], create_graph: bool) -> None:
    """Add what arrived at the leaves to their ``grad``."""
    for (edge, _), cotangent in arrived.items():
        if not isinstance(edge, Leaf) or not edge.active:
            continue
        old = edge.grad
        if create_graph:  # a tensor of its own: several leaves may be given the same cotangent
            edge.grad = copy_of(cotangent) if old is None else old + cotangent
        elif old is None:
            edge.grad = make(cotangent, aval_of(cotangent))
        elif _is_own(old, cotangent):
            old._value = np.add(old._value, cotangent, out=np.empty(cotangent.shape, cotangent.dtype))
            storage_of(old).version += 1
        elif old._edge is None and isinstance(old._value, np.ndarray) and old._value.flags.writeable:
            old.add_(make(cotangent, aval_of(cotangent)))
        else:
            edge.grad = old.detach() + make(cotangent, aval_of(cotangent))
        if edge.after:
            edge.after(edge.grad)


def _is_own(tensor: Tensor, like: np.ndarray[Any, Any]) -> bool:
    """Whether nobody else sees the memory of a tensor, so that its value may be another array like this one; the usual case of
    what ``add_`` does."""
    array = tensor._value
    if type(array) is not np.ndarray or tensor._edge is not None or tensor._history is not None or tensor._borrowed:
        return False
    if array.shape != like.shape or array.dtype != like.dtype or not array.flags.carray or is_tracing():
        return False
    return not aliased(tensor)


def backward(
    self: Tensor, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Add the gradients of this tensor to ``.grad`` of the leaves that it was computed from.

    ``gradient``: cotangent of a non-scalar (its shape). ``retain_graph``: keep what the graph holds for another backward
    (default: as ``create_graph``). ``create_graph``: record the computation of the gradients. ``inputs``: only these
    tensors get their gradients.

    Raises NoGraphError where nothing was recorded, ReleasedGraphError for a second backward, InPlaceError where a needed
    value was overwritten, ShapeError for a gradient of the wrong shape.

    >>> import jitgrad as jg
    >>> x = jg.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """
    if isinstance(self._value, Tracer):
        raise GraphError(f"backward() of a traced value at {user_line()}; use jg.grad inside of transforms")
    if self._edge is None:
        raise no_graph(self)
    targets = None if inputs is None else [inputs] if isinstance(inputs, Tensor) else list(inputs)
    run_backward([self], [starting_cotangent(self, gradient)], retain_graph, create_graph, targets)


def run_backward(
    roots: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Sequence[Tensor] | None,
) -> None:
    """One sweep from tracked ``roots`` with checked ``cotangents``, added to ``.grad`` of the leaves or ``inputs``."""
    targets: list[tuple[Any, int]] | None = None
    if inputs is not None:
        if not inputs:
            raise ArgumentError("backward: inputs is empty; leave it out to get the gradients of all leaves")
        for tensor in inputs:
            if tensor._edge is None:
                raise no_graph(tensor, "backward, inputs")
        targets = [(t._edge, t._slot) for t in inputs]
    retaining = _retain_targets(targets or ())
    try:
        arrived = sweep(
            [(t._edge, t._slot, c if create_graph else c._value) for t, c in zip(roots, cotangents, strict=True)],  # type: ignore[misc]
            retain_graph=create_graph if retain_graph is None else retain_graph,
            create_graph=create_graph,
            targets=targets,
            anomaly=anomaly_mode(),
        )
    except BaseException:
        for node, slot in retaining:
            del node.retained[slot]
        raise
    token = grad_mode.set(recording_mode() if create_graph else False)
    try:
        store_gradients(arrived, create_graph)
    finally:
        grad_mode.reset(token)


def _retain_targets(targets: Iterable[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Results among the ``inputs`` of backward keep their gradients from now on; which of them did not before."""
    started = []
    for edge, slot in targets:
        if isinstance(edge, GradNode):
            if edge.retained is None:
                edge.retained = {}
            if slot not in edge.retained:
                edge.retained[slot] = None
                started.append((edge, slot))
    return started


def detach(self: Tensor) -> Tensor:
    """A tensor on the same memory, outside of the graph: a stop-gradient boundary.

    It shares memory and version counter, has ``requires_grad=False`` and no ``grad_fn``; no gradient flows back through
    it, at any order and in every mode.

    >>> import jitgrad as jg
    >>> x = jg.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * 3
    >>> (y * y.detach()).sum().backward()
    >>> x.grad
    tensor([ 9., 18.])
    """
    self = stand_in(self)
    traced = isinstance(self._value, Tracer)
    alias: Tensor = stop_gradient_view(self) if traced else make(self._value, self._aval)
    alias._origin = "detach"
    if not traced:
        share_memory(self, alias)
        if is_tracing() and not is_number(self._value):
            note_alias(alias, functools.partial(stop_gradient_view, self))
    return alias


def detach_(self: Tensor) -> Tensor:
    """Make this tensor itself a leaf outside of the graph; what was computed from it earlier keeps its history.

    Raises GraphError on a view, whose base would keep the history.
    """
    if self._chain:
        raise GraphError(
            "detach_() of a view: its base has the history. Detach the base, or use .detach() for a new tensor"
        )
    check_parted(self)
    self._set_edge(None, 0)
    if self._leaf is not None:
        self._leaf.active = False
    self._origin = "detach"
    if self._history is not None:
        self._history.edge, self._history.slot, self._history.loose = None, 0, True
    return self


def clone(self: Tensor) -> Tensor:
    """A copy that stays in the graph."""
    return copy_of(self)  # type: ignore[no-any-return]


def retain_grad(self: Tensor) -> None:
    """Keep the gradient of this non-leaf in ``.grad``. Does nothing for leaves.

    Raises GraphError where the tensor does not require grad.
    """
    self._note_question()
    if self._edge is None:
        raise GraphError("retain_grad() of a tensor that does not require grad")
    check_followed(self, "retain_grad()", "map the gradient instead: vmap(grad(f))")
    if isinstance(self._edge, GradNode):
        if self._edge.retained is None:
            self._edge.retained = {}
        self._edge.retained.setdefault(self._slot, None)


def register_hook(self: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
    """Call ``hook(gradient)`` on the fully accumulated gradient of this value; a result that is not None replaces it.

    The hook belongs to the value at this moment: a later in-place write leaves it with the old value. Gives a handle with
    ``remove()``. Raises GraphError where the tensor does not require grad, and for arguments and captured tensors of a
    jitted function, whose gradients are the caller's.
    """
    self._note_question()
    edge = self._edge
    if edge is None:
        raise GraphError("register_hook() of a tensor that does not require grad: no gradient will ever reach it")
    check_followed(self, "register_hook()", "map the gradient instead: vmap(grad(f))")
    _check_own(self, "register_hook()")
    if isinstance(edge, Leaf):
        if edge.hooks is None:
            edge.hooks = Hooks()
        return edge.hooks.add(hook)
    if edge.hooks is None:
        edge.hooks = {}
    return edge.hooks.setdefault(self._slot, Hooks()).add(hook)


def _check_own(tensor: Tensor, what: str) -> None:
    """Raise GraphError for a tensor that a traced function has from outside: its gradient is more than what comes from there."""
    edge = tensor._edge
    argument = isinstance(edge, GradNode) and edge.recorder.leaf is not None
    if argument or (current_graph() is not None and not tensor.is_traced):
        raise GraphError(
            f"{what} at {user_line()}, of {'an argument' if argument else 'a captured tensor'} of shape {tensor.shape}, while a "
            "function is traced: the gradient of that is complete outside of it alone. Register the hook there, or on a value "
            "that the function computes"
        )


def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
    """Call ``hook(tensor)`` after ``backward`` has added to ``.grad`` of this leaf."""
    self._note_question()
    _check_own(self, "register_post_accumulate_grad_hook()")
    edge = self._edge
    if not isinstance(edge, Leaf):
        raise GraphError("register_post_accumulate_grad_hook() is for leaves that require grad")
    if edge.after is None:
        edge.after = Hooks()
    owner = weakref.ref(self)  # the leaf must not keep its tensor, which keeps the leaf

    def call(gradient: Any) -> None:
        tensor = owner()
        if tensor is not None:  # without the tensor nobody can see the gradient
            hook(tensor)

    return edge.after.add(call)


# --------------------------------------------------------------------------- the ways out


def numpy(self: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """The ndarray on the same memory.

    Raises ConversionError for a tensor that requires grad while grad mode is on: ``x.detach().numpy()`` leaves the graph
    explicitly, as does ``force=True``. The array is read-only while its memory is kept for a backward.
    """
    if isinstance(self._value, Tracer):
        if (alias := alias_of(self)) is not None:
            return numpy(alias, force=force)
        raise TracedValueError(
            f"numpy() of a traced value at {user_line()}: it stands for any number, and there is no array behind it. Use "
            f"jitgrad functions; {_BUILD}"
        )
    self._array("numpy()")
    self._note_question()
    if self._edge is not None and grad_mode.get() and not force:
        raise ConversionError(
            "numpy() of a tensor that requires grad would lose its gradient silently; use x.detach().numpy() or "
            "x.numpy(force=True)" + (f"; {_BUILD}" if transforming.get() else "")
        )
    storage = storage_of(self)
    held = not storage.foreign and is_held(self)  # what NumPy had before it can write anyway
    view = storage.export(self._value)
    if held:
        view.flags.writeable = False  # no counter would see a write of NumPy, and backward would be silently wrong
    return view


def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """For ``np.asarray``: the same rule as ``numpy()``."""
    array = self.numpy()
    if dtype is not None and np.dtype(dtype) != array.dtype:
        if copy is False:
            raise ValueError(f"a copy is needed to convert {array.dtype} to {dtype}")
        return array.astype(dtype)  # type: ignore[no-any-return]
    return array.copy() if copy else array  # type: ignore[no-any-return]


def item(self: Tensor) -> Any:
    """The one element as a Python number; leaves the graph without a warning. ValueError where there are several."""
    return self._scalar("item()")


def tolist(self: Tensor) -> Any:
    """Nested lists of Python numbers (a number for a 0-d tensor)."""
    return self._array("tolist()").tolist()


def _number(self: Tensor, what: str) -> Any:
    if isinstance(self._value, Tracer):
        raise ConversionError(
            f"{what} of a traced value at {user_line()} would lose its gradient silently; keep it a tensor and use "
            "jitgrad functions"
        )
    value = self._scalar(what)
    self._note_question()
    if self._edge is not None and grad_mode.get():
        if transforming.get():
            raise ConversionError(
                f"{what} of a value inside of a transform, at {user_line()}, would lose its gradient silently; use the "
                "jitgrad function (jg.sin instead of math.sin), or say .item() or .detach() if a constant is meant"
            )
        warnings.warn(
            f"{what} of a tensor that requires grad gives a plain number, through which no gradient flows; say .item() or "
            ".detach() if that is meant, or use the jitgrad function (jg.sin instead of math.sin)",
            GradientWarning,
            stacklevel=3,
        )
    return value


def __float__(self: Tensor) -> float:
    return float(_number(self, "float()"))


def __int__(self: Tensor) -> int:
    return int(_number(self, "int()"))


def __complex__(self: Tensor) -> complex:
    return complex(_number(self, "complex()"))


def __index__(self: Tensor) -> int:
    if self.dtype.kind not in "biu" or self.ndim:
        raise TypeError(f"only a 0-d integer tensor can be an index, not {self.dtype} of shape {self.shape}")
    return int(self._scalar("an index"))


def __len__(self: Tensor) -> int:
    if not self.ndim:
        raise TypeError("len() of a 0-d tensor")
    return self.shape[0]


def __iter__(self: Tensor) -> Iterator[Tensor]:
    if not self.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return (self[i] for i in range(self.shape[0]))


def __contains__(self: Tensor, value: Any) -> bool:
    return bool((self == value)._array("in").any())


def __format__(self: Tensor, spec: str) -> str:
    if not self.ndim and spec:
        return format(self.item(), spec)
    try:
        return format(str(self), spec)
    except ValueError:
        raise ArgumentError(
            f"format {spec!r} is for a number, not a tensor of shape {self.shape}; format its elements, or see "
            "np.array_str(t.detach().numpy(), precision=...)"
        ) from None


def __deepcopy__(self: Tensor, memo: dict[int, Any]) -> Tensor:
    copied = _copied(self)
    memo[id(self)] = copied
    return copied


def _copied(self: Tensor) -> Tensor:
    if isinstance(self._edge, GradNode):
        warnings.warn(
            f"the copy of the result of {self._edge.name} is detached: only leaves keep requires_grad",
            GradientWarning,
            stacklevel=4,
        )
    array = self._array("copy").copy()
    made = make(array, aval_of(array))
    if isinstance(self._edge, Leaf):
        made._track()
    if self._leaf is not None and self._leaf.grad is not None:
        made.grad = _copied(self._leaf.grad)
    return made


def __reduce__(self: Tensor) -> tuple[Any, ...]:
    copied = _copied(self)
    return _rebuild, (copied._value, copied._edge is not None, None if copied._leaf is None else copied._leaf.grad)


def _rebuild(array: np.ndarray[Any, Any], requires_grad: bool, grad: Tensor | None) -> Tensor:
    made = make(array, aval_of(array))
    if requires_grad:
        made._track()
    if grad is not None:
        made.grad = grad
    return made


def __dlpack__(self: Tensor, **options: Any) -> Any:
    """For ``np.from_dlpack`` and other libraries: the same rule as ``numpy()``."""
    array = self.numpy()
    if not array.flags.writeable and "max_version" not in options:
        array = array.copy()
    return array.__dlpack__(**options)


def __dlpack_device__(self: Tensor) -> tuple[int, int]:
    return (1, 0)


METHODS = {
    function.__name__: function
    for function in (
        backward,
        detach,
        detach_,
        clone,
        retain_grad,
        register_hook,
        register_post_accumulate_grad_hook,
        numpy,
        __array__,
        item,
        tolist,
        __float__,
        __int__,
        __complex__,
        __index__,
        __len__,
        __iter__,
        __contains__,
        __format__,
        __deepcopy__,
        __reduce__,
        __dlpack__,
        __dlpack_device__,
    )
}
