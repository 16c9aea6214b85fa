"""The tensor: an array, eager or traced, with its place in the recorded graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jitgrad.autodiff.node import Edge, GradNode, Leaf
from jitgrad.core.aval import ShapedArray, is_float
from jitgrad.core.graph import Tracer
from jitgrad.core.modes import note_question, questions
from jitgrad.core.trace import alias_of, current_graph, note_read
from jitgrad.errors import DtypeError, GradientWarning, GraphError, ShapeError, TracedValueError, user_line

__all__ = ["Tensor"]


if TYPE_CHECKING:

    class _Binary:
        def __get__(self, tensor: Any, owner: Any) -> Callable[[Any], Tensor]: ...

    class _Unary:
        def __get__(self, tensor: Any, owner: Any) -> Callable[[], Tensor]: ...


class Tensor:
    """An n-dimensional array that records what is done with it, so that gradients can be computed.

    Made by ``jg.tensor`` (copies), ``jg.from_numpy`` (shares memory), the creation functions, or by operations. Values are
    float64, float32, bool or integers; only floats can require gradients. Operators, methods and NumPy functions work as
    on ndarrays.

    >>> import jitgrad as jg
    >>> x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> (x ** 2).sum().backward()
    >>> x.grad
    tensor([2., 4., 6.])
    """

    __array_priority__: ClassVar[float] = 1000.0
    __hash__ = object.__hash__

    # Instances only store what differs from these, which keeps results of operations cheap.
    _value: Any  # an ndarray, or a Tracer while a function is traced
    _aval: ShapedArray
    _edge: Edge | None = None  # where gradients go: a node, a leaf, or nowhere
    _slot: int = 0  # which result of the node
    _leaf: Leaf | None = None  # keeps .grad, also after requires_grad was turned off
    _storage: Any = None
    _history: Any = None
    _chain: tuple[Any, ...] = ()
    _memory: Any = None  # what a traced tensor shares with those that would be on the same memory
    _path: tuple[Any, ...] = ()  # and which part of it this one sees
    _origin: str | None = None  # why it is untracked, where that is known
    _weak: bool = False  # stands for a Python number, which does not decide the dtype of a result
    _borrowed: bool = False  # its memory is the caller's: a write must not go there
    _no_grad_view: bool = False  # a view made under no_grad: its base does not follow its history
    _over_leaf: bool = False  # a view of a view that is a leaf and requires grad, though its base does not

    if TYPE_CHECKING:  # operators and methods come from the operation blocks, see methods.py
        __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = _Binary()
        __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = _Binary()
        __floordiv__ = __rfloordiv__ = __ifloordiv__ = __mod__ = __rmod__ = __imod__ = _Binary()
        __pow__ = __rpow__ = __ipow__ = __matmul__ = __rmatmul__ = __imatmul__ = _Binary()
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _Binary()
        __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _Binary()
        __neg__ = __pos__ = __abs__ = __invert__ = _Unary()

        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __len__(self) -> int: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...
        def __getattr__(self, name: str) -> Any: ...

    def __new__(cls, *args: Any, **kwargs: Any) -> Tensor:
        """Tensors are made by functions; the class itself is for ``isinstance``."""
        raise TypeError("use jg.tensor(data) (a copy) or jg.from_numpy(array) (shared memory) to make a tensor")

    # ----------------------------------------------------------------------- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the axes."""
        return self._aval.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the elements."""
        return self._aval.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._aval.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._aval.size

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._aval.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._aval.size * self._aval.dtype.itemsize

    @property
    def device(self) -> str:
        """Always "cpu" (array API)."""
        return "cpu"

    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        return self._aval.contiguous

    @property
    def _version(self) -> int:
        """How often the memory was written in place; shared by all aliases."""
        return 0 if self._storage is None else int(self._storage.version)

    # ----------------------------------------------------------------------- the graph

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded."""
        self._note_question()
        return self._edge is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Turn recording on or off for this leaf; gives the tensor itself.

        Raises DtypeError for integer and bool tensors, GraphError when turning it off for the result of an operation, and
        when changing it for a captured tensor, or for an argument, within a jitted function.
        """
        self._note_question()
        if bool(requires_grad) != (self._edge is not None):
            if current_graph() is not None and not self.is_traced:
                raise GraphError(
                    f"requires_grad_() at {user_line()} changes a tensor of shape {self.shape} while a function is traced: the "
                    "compiled function would not do it again. Do it outside, or make the tensor with requires_grad=True"
                )
            if isinstance(self._edge, GradNode) and self._edge.recorder.leaf:
                raise GraphError(
                    f"requires_grad_() at {user_line()} changes an argument of a jitted function, which does not reach the "
                    "caller's tensor: call it before, or use x.detach()"
                )
        return self._track() if requires_grad else self._untrack()

    def _track(self) -> Tensor:
        """Make this a leaf that requires grad, unless it requires grad already."""
        if self._edge is None:
            self._check_differentiable("requires_grad")
            if self._leaf is None:
                self._leaf = Leaf(self.shape, self.dtype)
            self._leaf.active = True
            self._set_edge(self._leaf, 0)
            if self._history is not None and not self._chain:
                self._history.edge, self._history.slot = self._leaf, 0
        return self

    def _untrack(self) -> Tensor:
        if isinstance(self._edge, GradNode):
            raise GraphError(
                f"this tensor is the result of {self._edge.name}: only leaves can stop requiring gradients; "
                "use .detach() for a tensor outside of the graph"
            )
        if self._edge is not None:
            self._edge.active = False
            self._set_edge(None, 0)
            self._origin = "frozen"
            if self._history is not None and not self._chain:
                self._history.edge = None
        return self

    def _note_question(self) -> None:
        """The user asks how this tensor is recorded; of a traced one that follows from what it was made of."""
        if questions.get() is not None and self._aval.dtype.kind == "f":  # others never are
            note_question(None if self.is_traced else self)

    def _check_differentiable(self, what: str) -> None:
        if not is_float(self.dtype):
            raise DtypeError(
                f"{what}: only float64 and float32 tensors can have gradients, not {self.dtype}; "
                "convert with .astype(float) first"
            )

    def _set_edge(self, edge: Edge | None, slot: int) -> None:
        old = self._edge
        if isinstance(old, GradNode) and old.retained is not None and self._slot in old.retained:
            gradient = old.retained.pop(self._slot)  # retain_grad() belongs to the tensor, not to its old value
            if isinstance(edge, GradNode):
                edge.retained = {**(edge.retained or {}), slot: gradient}
            elif gradient is not None:  # detach_() keeps .grad, as every leaf does
                self._leaf = self._leaf or Leaf(self.shape, self.dtype)
                self._leaf.grad = gradient
        self._edge = edge
        self._slot = slot

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        self._note_question()
        return not isinstance(self._edge, GradNode) or bool(self._edge.recorder.leaf)

    @property
    def grad_fn(self) -> GradNode | None:
        """The recorded operation that made this tensor."""
        self._note_question()
        return self._edge if isinstance(self._edge, GradNode) and not self._edge.recorder.leaf else None

    @property
    def retains_grad(self) -> bool:
        """Whether this non-leaf keeps its gradient."""
        self._note_question()
        return (
            isinstance(self._edge, GradNode) and self._edge.retained is not None and self._slot in self._edge.retained
        )

    @property
    def grad(self) -> Tensor | None:
        """The gradient that ``backward`` added up here; None before. Assign None to clear it."""
        edge = self._edge
        if isinstance(edge, GradNode) and edge.retained is not None and self._slot in edge.retained:
            return edge.retained[self._slot]  # type: ignore[no-any-return]
        if self.is_traced and (self._leaf is None or self._leaf.grad is None):
            raise TracedValueError(
                f".grad of a traced value at {user_line()}: backward() adds up gradients outside of the function alone; pass "
                "x.grad as an argument, or take gradients inside with jg.grad"
            )
        if isinstance(edge, GradNode):
            warnings.warn(
                f".grad of the result of {edge.name} is None: only leaves keep their gradients. Call retain_grad() on it before "
                "backward() to keep it, or read .grad of the leaf that you meant.",
                GradientWarning,
                stacklevel=2,
            )
            return None
        return None if self._leaf is None else self._leaf.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if value is self:
                raise GraphError("a tensor cannot be its own .grad; assign a .clone()")
            if not isinstance(value, Tensor):
                raise DtypeError(f".grad takes a tensor or None, not {type(value).__name__}")
            if value.shape != self.shape:
                raise ShapeError(f".grad of shape {value.shape} for a tensor of shape {self.shape}")
            if value.dtype != self.dtype:
                raise DtypeError(f".grad of dtype {value.dtype} for a tensor of dtype {self.dtype}")
        if isinstance(self._edge, GradNode):
            if value is None and not self.retains_grad:
                return  # clearing what is not there must not start retain_grad()
            if self._edge.retained is None:
                self._edge.retained = {}
            self._edge.retained[self._slot] = value
            return
        if self._leaf is None:
            if value is None:
                return
            self._leaf = Leaf(self.shape, self.dtype)
        self._leaf.grad = value

    @property
    def is_traced(self) -> bool:
        """Whether this stands for a value while a function is traced."""
        return isinstance(self._value, Tracer)

    def __bool__(self) -> bool:
        return bool(self._scalar("bool()"))

    def _scalar(self, what: str) -> Any:
        if self.size != 1:
            raise ValueError(
                f"{what} of a tensor of shape {self.shape} is ambiguous; use .any(), .all(), or index one element"
            )
        return self._array(what).reshape(())[()].item()

    def _array(self, what: str) -> np.ndarray[Any, Any]:
        """The ndarray behind an eager tensor."""
        if isinstance(self._value, Tracer):
            if (alias := alias_of(self)) is not None:
                return alias._array(what)  # type: ignore[no-any-return]
            raise TracedValueError(
                f"{what} of a traced value at {user_line()}: it stands for any number, so Python cannot decide on it. Choose "
                "with jg.where(condition, a, b), or name the argument in static_argnums"
            )
        note_read(self._value, self)
        return self._value  # type: ignore[no-any-return]


def make(value: Any, aval: ShapedArray) -> Tensor:
    """A new untracked tensor."""
    tensor: Tensor = _new(Tensor)
    tensor._value = value
    tensor._aval = aval
    return tensor


_new = object.__new__
