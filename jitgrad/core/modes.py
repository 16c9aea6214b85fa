"""Grad mode: whether operations are recorded, per thread and per asynchronous task."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["enable_grad", "grad_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]

F = TypeVar("F", bound=Callable[..., Any])

grad_mode: ContextVar[bool] = ContextVar("jitgrad_grad_mode", default=True)
is_grad_enabled = grad_mode.get


class _GradMode:
    """A context manager and decorator that sets grad mode; reusable and re-entrant."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        self._tokens.append(grad_mode.set(self._enabled))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        grad_mode.reset(self._tokens.pop())

    def __call__(self, function: F) -> F:
        enabled = self._enabled

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            token = grad_mode.set(enabled)
            try:
                return function(*args, **kwargs)
            finally:
                grad_mode.reset(token)

        return wrapper  # type: ignore[return-value]


class no_grad(_GradMode):
    """Record nothing inside: every result has ``requires_grad=False``.

    Works as ``with no_grad():`` and as the decorator ``@no_grad()`` (or ``@no_grad``).

    >>> import jitgrad as jg
    >>> x = jg.tensor([1.0], requires_grad=True)
    >>> with jg.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        if function is None:
            return made
        made.__init__()
        return made(function)

    def __init__(self, function: None = None) -> None:
        super().__init__(False)


class enable_grad(no_grad):
    """Record inside, also within an outer ``no_grad``.

    >>> import jitgrad as jg
    >>> x = jg.tensor([1.0], requires_grad=True)
    >>> with jg.no_grad(), jg.enable_grad():
    ...     y = x * 2
    >>> y.requires_grad
    True
    """

    def __init__(self, function: None = None) -> None:
        _GradMode.__init__(self, True)


class set_grad_enabled(_GradMode):
    """Set grad mode at once; as a context manager, give the old mode back at its end.

    >>> import jitgrad as jg
    >>> with jg.set_grad_enabled(False):
    ...     jg.is_grad_enabled()
    False
    >>> jg.is_grad_enabled()
    True
    """

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._tokens.append(grad_mode.set(bool(mode)))
        self._applied = True

    def __enter__(self) -> None:
        if self._applied:  # the constructor has set the mode already
            self._applied = False
        else:
            super().__enter__()

    def __call__(self, function: F) -> F:
        # used as a decorator: the mode belongs to the calls of the function, not to the line of the decorator
        if self._applied:
            self._applied = False
            grad_mode.reset(self._tokens.pop())
        return super().__call__(function)
