"""Grad mode: whether operations are recorded, per thread and per asynchronous task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, TypeVar

__all__ = [
    "ANOMALY",
    "ENABLED",
    "FORWARD",
    "UNDECIDED",
    "Anomaly",
    "anomaly",
    "anomaly_mode",
    "enable_grad",
    "forward",
    "grad_mode",
    "in_backward",
    "is_grad_enabled",
    "may_record",
    "no_grad",
    "note_question",
    "questions",
    "recording_mode",
    "set_grad_enabled",
    "transforming",
]

F = TypeVar("F", bound=Callable[..., Any])
Anomaly: TypeAlias = Literal["lines", "values"]

ANOMALY: Final = "anomaly"
"""The grad mode under detect_anomaly: true, and nodes remember the user's line and fingerprints."""

ENABLED: Final = "enabled"
"""Among what a traced function asks: it records what it says itself, whatever the mode of the call."""

FORWARD: Final = "forward"
"""The grad mode inside of forward-mode transforms: nodes keep all operands and results, which tangents may need."""

UNDECIDED: Final = ""
"""The grad mode of a trace that serves calls which are recorded and others: false, though nobody has said ``no_grad()``."""

grad_mode: ContextVar[bool | str] = ContextVar("jitgrad_grad_mode", default=True)
anomaly: ContextVar[Anomaly | None] = ContextVar("jitgrad_anomaly", default=None)
anomaly_mode = anomaly.get
in_backward: ContextVar[bool] = ContextVar("jitgrad_in_backward", default=False)
"""Whether a sweep is running: what is traced then is part of a gradient."""

forward: ContextVar[bool] = ContextVar("jitgrad_forward", default=False)
transforming: ContextVar[bool] = ContextVar("jitgrad_transforming", default=False)  # inside of a transform's function
_entered: ContextVar[tuple[Token[bool | str], ...]] = ContextVar("jitgrad_entered", default=())


questions: ContextVar[list[Any] | None] = ContextVar("jitgrad_questions", default=None)
"""While a function is traced: the tensors of which its code asked how they are recorded, ``ENABLED`` where it said
``enable_grad()``, and None for anything else that is asked about recording."""


def note_question(what: Any = None) -> None:
    """The user asks something that depends on whether a call is recorded, of which a trace must know."""
    asked = questions.get()
    if asked is not None:
        asked.append(what)


def is_grad_enabled() -> bool:
    """Whether operations on tensors that require grad are recorded here.

    >>> import jitgrad as jg
    >>> jg.is_grad_enabled()
    True
    """
    note_question()
    return bool(grad_mode.get())


def may_record() -> bool:
    """Whether operations on tensors that require grad are recorded here, or in some calls of what is traced."""
    return grad_mode.get() is not False


def recording_mode() -> bool | str:
    """The grad mode that records."""
    if forward.get():
        return FORWARD
    return True if anomaly.get() is None else ANOMALY


class _GradMode:
    """A context manager and decorator that sets grad mode; reusable, re-entrant, and shared by threads without harm."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def _set(self) -> Token[bool | str]:
        if self._enabled:
            note_question(ENABLED)  # what is recorded inside depends on what requires grad, and not on the mode outside
        return grad_mode.set(recording_mode() if self._enabled else False)

    def __enter__(self) -> None:
        # the stack belongs to the thread or task, not to this object, which another thread may be using too
        _entered.set((*_entered.get(), self._set()))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        *rest, token = _entered.get()
        _entered.set(tuple(rest))
        grad_mode.reset(token)

    def __call__(self, function: F) -> F:
        """Decorate a function, coroutine function or generator function."""
        make: Any = function
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                token = self._set()
                try:
                    return await make(*args, **kwargs)
                finally:
                    grad_mode.reset(token)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return self._drive(make(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                token = self._set()
                try:
                    return function(*args, **kwargs)
                finally:
                    grad_mode.reset(token)

        return wrapper  # type: ignore[return-value]

    def _drive(self, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The generator, with the mode set while it runs and not while it is suspended."""
        step: Callable[[], Any] = functools.partial(next, generator)
        try:
            while True:
                token = self._set()
                try:
                    item = step()
                except StopIteration as end:
                    return end.value
                finally:
                    grad_mode.reset(token)
                try:
                    sent = yield item
                    step = functools.partial(generator.send, sent)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = functools.partial(generator.throw, error)
        finally:
            generator.close()


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
        made.__init__()  # type: ignore[misc]
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
        self._applied: Token[bool | str] | None = self._set()

    def __enter__(self) -> None:
        if self._applied is not None:  # the constructor has set the mode already
            _entered.set((*_entered.get(), self._applied))
            self._applied = None
        else:
            super().__enter__()

    def __call__(self, function: F) -> F:
        # used as a decorator: the mode belongs to the calls of the function, not to the line of the decorator
        if self._applied is not None:
            grad_mode.reset(self._applied)
            self._applied = None
        return super().__call__(function)
