"""What an operation raises for arguments that its own checks let pass: an error of jitgrad, whatever NumPy or Python said."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from jitgrad.core.foreign_names import keyword_hint
from jitgrad.errors import ArgumentError, IndexingError, JitgradError, UnsupportedError, is_ours

__all__ = ["guarded"]

P = ParamSpec("P")
R = TypeVar("R")

_CAUGHT: Final = (TypeError, ValueError, AttributeError, LookupError, OverflowError)
_NUMPY: Final = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
_PLAIN: Final[dict[str, tuple[type, ...]]] = {
    "str": (str,),
    "bool": (bool, np.bool_),
    "int": (int, np.integer),
    "float": (int, float, np.integer, np.floating),
    "None": (type(None),),
}
"""Annotations that say all about a parameter."""


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """The function; what escapes from it because of its arguments becomes an error of jitgrad that names them."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except _CAUGHT as error:
            if isinstance(error, JitgradError | np.linalg.LinAlgError):
                raise
            inside = error.__traceback__ and error.__traceback__.tb_next
            if inside is None:  # the call itself: a name or a number of arguments that the function does not have
                raise UnsupportedError(_unknown(function, kwargs, error)) from None
            if not _is_own(inside):
                raise
            raise _family(error)(_blamed(function, args, kwargs, error)) from error

    return call


def _is_own(traceback: TracebackType | None) -> bool:
    """Whether no code of the user's was on the way, as in a function or an ``__array__`` of theirs."""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not is_ours(file) and not file.startswith(_NUMPY):
            return False
        traceback = traceback.tb_next
    return True


def _family(error: Exception) -> type[JitgradError]:
    """The class that is caught where ``error`` would be."""
    if isinstance(error, TypeError | AttributeError):
        return UnsupportedError
    return IndexingError if isinstance(error, IndexError) else ArgumentError


def _unknown(function: Callable[..., Any], kwargs: dict[str, Any], error: Exception) -> str:
    known = inspect.signature(function).parameters
    hint = keyword_hint([name for name in kwargs if name not in known], known)
    return f"{error}; write {hint}" if hint else f"{error}; it is {function.__name__}({', '.join(known)})"


def _blamed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> str:
    """The arguments that are of another type than the function says, or else all that are no arrays."""
    signature = inspect.signature(function)
    given = signature.bind(*args, **kwargs).arguments
    wrong = []
    for name, value in given.items():
        kinds = str(signature.parameters[name].annotation).split(" | ")
        if all(k in _PLAIN for k in kinds) and not isinstance(value, tuple(t for k in kinds for t in _PLAIN[k])):
            wrong.append(f"{name} must be {' or '.join(kinds)}, not {type(value).__name__}")
    if wrong:
        return f"{function.__name__}: {'; '.join(wrong)}"
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in given.items())
    return f"{function.__name__} cannot take {shown}: {error}"


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} of shape {shape}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
