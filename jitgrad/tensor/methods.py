"""Operators and methods of tensors, derived from the operation blocks and put on the class in one place."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from opcode import opmap
from types import FrameType
from typing import Any, Final

import numpy as np

from jitgrad.core.foreign_names import TENSOR_NAMES
from jitgrad.core.primitive import Elementwise
from jitgrad.errors import NoAttributeError, UnsupportedError
from jitgrad.ops.blocks import Operation
from jitgrad.ops.catalog import operations
from jitgrad.tensor import graph_methods, numpy_protocols, printing, shape_methods
from jitgrad.tensor.inplace import assign, set_item
from jitgrad.tensor.operands import is_operand, number_operator
from jitgrad.tensor.remembered import remembered_function
from jitgrad.tensor.short_way import binary_function, fold_function, pair_function, reflected_function, unary_function
from jitgrad.tensor.storage import is_held
from jitgrad.tensor.tensor import Tensor
from jitgrad.tensor.views import get_item

__all__ = ["install_methods", "public_function"]

_BINARY: Final = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift", "divmod": "divmod",
}  # fmt: skip
_COMPARE: Final = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_OF_BOOLS: Final = frozenset({"&", "|", "^", *_COMPARE})
"""What Python does with two bools without counting."""
_UNARY: Final = {"neg": "neg", "pos": "pos", "abs": "abs", "~": "invert"}


def install_methods() -> None:
    """Put every operator and method on the class; called once, when the package is imported."""
    for table in (graph_methods.METHODS, printing.METHODS, shape_methods.METHODS, numpy_protocols.METHODS):
        for name, function in table.items():
            _put(name, function)
    _put("__getitem__", get_item)
    _put("__setitem__", set_item)
    for op in operations().values():
        if op.operator is not None:
            _install_operator(op)
        if op.method:
            for name in (op.method, *op.aliases):
                if not hasattr(Tensor, name):
                    _put(name, _method(op, name))
        _install_in_place(op)
    _put("copy_", lambda self, source: assign(self, source, "copy_"))
    _put("fill_", lambda self, value: assign(self, value, "fill_"))
    _put("zero_", lambda self: assign(self, 0, "zero_"))
    for name in TENSOR_NAMES:
        if not hasattr(Tensor, name):
            _put(name, _ForeignName(name))
    _put("_numba_type_", property(_refuse_numba))
    hidden = {"_numba_type_", *(n for n in TENSOR_NAMES if not hasattr(Tensor, n))}
    _put("__dir__", lambda self: [n for n in object.__dir__(self) if n not in hidden])


def _refuse_numba(self: Tensor) -> Any:
    """What Numba asks an object for that is given to an ``@njit`` function."""
    raise UnsupportedError(
        f"a Numba function was called with a tensor of shape {self.shape}: it takes arrays, and no gradient would pass "
        "through it. Give transforms the plain Python function (f.py_func of a function f with @njit), make an operation "
        "of it with jg.primitive, or pass x.detach().numpy()"
    )


class _ForeignName:
    """An attribute that is not there, with a message that names what is.

    ``Tensor.__getattr__`` would say the same, and make Python look up every attribute of every tensor the slow way.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        raise NoAttributeError(f"tensors have no .{self.name}: {TENSOR_NAMES[self.name]}")

    def __set__(self, tensor: Any, value: Any) -> None:
        self.__get__(tensor)


def public_function(op: Operation[..., Any]) -> Callable[..., Any]:
    """The function under which an operation is exported: elementwise ones and reductions take the short way for tensors."""
    primitive = op.primitive
    if op.remembered:
        return remembered_function(op.function)
    if op.fold is not None:
        return functools.wraps(op.function)(fold_function(op.fold, op.function))
    if primitive is None or not isinstance(primitive.impl, Elementwise) or primitive.impl.arity > 2:
        return op.function
    general = op.function
    if primitive.impl.arity == 1:
        return functools.wraps(general)(unary_function(primitive, general))
    operator = binary_function(primitive)

    @functools.wraps(general)
    def function_of_two(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 2 and type(args[0]) is Tensor and type(args[1]) is Tensor and not kwargs:
            return operator(*args)
        return general(*args, **kwargs)

    return function_of_two


def _put(name: str, function: Any) -> None:
    setattr(Tensor, name, function)


def _method(op: Operation[..., Any], name: str) -> Callable[..., Any]:
    primitive = op.primitive
    made: Callable[..., Any]
    if primitive is not None and isinstance(primitive.impl, Elementwise) and primitive.impl.arity == 1:
        made = unary_function(primitive, op.function)
    elif op.fold is not None:
        made = fold_function(op.fold, op.function)
    elif op.remembered:
        made = remembered_function(op.function)
    else:

        def made(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            return op.function(self, *args, **kwargs)

    method = functools.wraps(op.function)(made)
    method.__name__ = name
    return method


def _install_operator(op: Operation[..., Any]) -> None:
    symbol = op.operator
    assert symbol is not None
    if symbol == "round":
        rounded = number_operator(op.function)
        whole = number_operator(lambda x: op.function(x).astype(np.int64))
        _put("__round__", lambda x, n=None: whole(x) if x._weak and n is None else rounded(x, n or 0))
        return
    general = number_operator(op.primitive or op.function, symbol in _OF_BOOLS)
    if symbol in _UNARY:
        assert op.primitive is not None
        _put(f"__{_UNARY[symbol]}__", unary_function(op.primitive, general))
        return
    if op.primitive is not None:
        forward = binary_function(op.primitive, general)
    else:
        forward = _guarded(general)
        if op.single is not None:
            forward = pair_function(op.single, forward)
        elif op.remembered:
            forward = remembered_function(forward)
    if symbol in _COMPARE:
        _put(f"__{_COMPARE[symbol]}__", forward)
        return
    name = _BINARY[symbol]
    _put(f"__{name}__", forward)
    _put(f"__r{name}__", _reflected(general) if op.primitive is None else reflected_function(forward, general))
    if symbol != "divmod":
        _put(f"__i{name}__", _augmented(forward, symbol))


def _guarded(function: Callable[..., Any]) -> Callable[[Tensor, Any], Any]:
    def forward(self: Tensor, other: Any) -> Any:
        return function(self, other) if is_operand(other) else NotImplemented

    return forward


def _reflected(function: Callable[..., Any]) -> Callable[[Tensor, Any], Any]:
    return lambda self, other: function(other, self) if is_operand(other) else NotImplemented


def _augmented(forward: Callable[[Tensor, Any], Any], symbol: str) -> Callable[[Tensor, Any], Any]:
    def augmented(self: Tensor, other: Any) -> Any:
        result = forward(self, other)
        if result is NotImplemented or self._weak:  # a number is not written to: the name gets another one
            return result
        if (self._chain or self._no_grad_view) and is_held(self) and _is_stored_next(sys._getframe(1)):
            return result  # `c[i] += v`: the base is written next, and may then keep its old memory for backward
        return assign(self, result, f"{symbol}=", fresh=True)

    return augmented


_SKIPPED: Final = frozenset(opmap[name] for name in ("CACHE", "SWAP") if name in opmap)
_STORES: Final = frozenset(opmap[name] for name in ("STORE_SUBSCR", "STORE_SLICE") if name in opmap)


def _is_stored_next(frame: FrameType) -> bool:
    """Whether the statement that runs an augmented assignment stores its result into an item: ``c[i] += v``.

    Python computes it in three steps, ``t = c[i]; t += v; c[i] = t``, so that the temporary view looks like an alias
    that somebody wants to see written. The code of the statement tells the two apart: in ``v = c[i]; v += 1`` the
    result goes to a name.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    if code[at] != opmap["BINARY_OP"]:
        return False
    following = at + 2
    while following < len(code) and code[following] in _SKIPPED:
        following += 2
    return following < len(code) and code[following] in _STORES


def _install_in_place(op: Operation[..., Any]) -> None:
    """``x.mul_(y)`` and the like: the operation, written into its first operand."""
    if not op.in_place:
        return
    primitive, function = op.primitive, op.function

    def in_place(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = primitive(self, *args) if primitive is not None else function(self, *args, **kwargs)
        return assign(self, result, f"{op.name}_", fresh=result is not self)

    in_place.__doc__ = f"``{op.name}``, written into this tensor."
    for name in (op.name, *op.aliases):
        _put(f"{name}_", in_place)
