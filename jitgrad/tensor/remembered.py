"""The short way of functions: a call that was one primitive is made again without its checks and conversions.

What a call does depends on the avals of its tensors and on its other arguments alone, where the operation says so
(``remembered``). The first call is watched; the next one with the like finds the plan by them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from jitgrad.core.graph import Tracer, is_number
from jitgrad.core.primitive import View
from jitgrad.core.trace import is_tracing
from jitgrad.core.watching import watched
from jitgrad.eager import Plan, keep_plan
from jitgrad.tensor.engine import view_result
from jitgrad.tensor.recording import run_recorded
from jitgrad.tensor.tensor import Tensor

__all__ = ["remembered_function"]

_PLAIN: Final = frozenset({int, bool, str, type(None), type})
"""Types of arguments of which equal ones of one type mean the same."""
_MOST_ITEMS: Final = 32
_MOST_TRIED: Final = 32
_MISSING: Final = object()
_INT: Final = frozenset({int})
_SEVERAL: Final = (None, False, None)

_Known: TypeAlias = tuple[Plan | None, bool, list[Any] | None]
"""A call that is one primitive: its plan, whether that is of a view, and, where it does not take the tensors in their order,
what it takes (an int: which one of them; a tensor: that number of the program). No plan: it is not one primitive."""


def remembered_function(general: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which does not do again what it did for such arguments before, if all it did was one primitive."""
    calls: dict[Any, _Known] = {}
    tried: dict[Any, int] = {}  # by the avals: how many calls were looked at

    @functools.wraps(general)
    def function(first: Any = _MISSING, /, *rest: Any, **named: Any) -> Any:
        tensors: list[Tensor]
        if type(first) is Tensor and not named and not first._weak and _INT.issuperset(map(type, rest)):
            key: Any = (first._aval, *rest)  # the usual case, without detours
            tensors = [first]
        else:
            parts: list[Any] = []
            tensors = []
            args = _given(first, rest)
            if not _note(args, parts, tensors) or (named and not _note_named(named, parts, tensors)) or not tensors:
                return general(*args, **named)
            key = tuple(parts)
        known = calls.get(key)
        if known is None:
            return first_time(key, tensors, _given(first, rest), named)
        plan, is_view, picks = known
        if plan is not None:
            try:
                if is_view:
                    x = tensors[0]
                    return view_result(plan, x, plan.run(x._value))
                if picks is not None:
                    tensors = [tensors[k] if type(k) is int else k for k in picks]
                return run_recorded(plan, tensors, [t._value for t in tensors])
            except Exception:
                pass  # the function says better what is wrong
        return general(*_given(first, rest), **named)

    def first_time(key: Any, tensors: list[Tensor], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        form = tuple([t._aval for t in tensors])
        count = tried.get(form, 0)
        # of the same tensor twice it is not seen which was taken; what differs at each call would never be found again
        if (
            is_tracing()
            or count >= _MOST_TRIED
            or len(set(map(id, tensors))) < len(tensors)
            or any(map(_is_traced, tensors))
        ):
            return general(*args, **named)
        result, done = watched(general, args, named)
        keep_plan(calls, key, _one_primitive(done, tensors, result))
        keep_plan(tried, form, count + 1)
        return result

    return function


def _is_traced(tensor: Tensor) -> bool:
    return type(tensor._value) is Tracer


def _given(first: Any, rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments by position."""
    return () if first is _MISSING else (first, *rest)


def _note(arguments: Any, key: list[Any], tensors: list[Tensor]) -> bool:
    """Write down what the arguments are; False where there are some of which no plan can be known."""
    for a in arguments:
        kind = type(a)
        if kind is Tensor:
            if a._weak:
                return False
            key.append(a._aval)
            tensors.append(a)
        elif kind in _PLAIN:
            key.append(kind)
            key.append(a)
        elif kind is float:
            key.append(float)
            key.append(a or str(a))  # zeros have a sign
        elif kind is list or kind is tuple:
            if len(a) > _MOST_ITEMS:  # data, and not a shape or some tensors
                return False
            key.append(kind)
            key.append(len(a))
            if not _note(a, key, tensors):
                return False
        else:
            return False
    return True


def _note_named(named: dict[str, Any], key: list[Any], tensors: list[Tensor]) -> bool:
    key.extend(named)
    return _note(named.values(), key, tensors)


def _one_primitive(done: list[Any], tensors: Sequence[Tensor], result: Any) -> _Known:
    """What a watched call did, if it was one primitive of all its tensors and of numbers, whose result it returned."""
    if len(done) != 1 or done[0] is None:
        return _SEVERAL
    plan, operands, made = done[0]
    if made is None or made is not result:
        return _SEVERAL
    places = {id(t): k for k, t in enumerate(tensors)}
    picks = [places.get(id(o), o) for o in operands]
    # whatever else was computed or read on the way would have to come in by an operand
    if {k for k in picks if type(k) is int} != set(places.values()) or any(
        type(k) is not int and not _is_number(k) for k in picks
    ):
        return _SEVERAL
    return plan, isinstance(plan.primitive.impl, View), None if picks == list(range(len(tensors))) else picks


def _is_number(operand: Tensor) -> bool:
    return operand._edge is None and is_number(operand._value)
