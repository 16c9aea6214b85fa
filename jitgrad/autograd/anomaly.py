"""Looking for the operation whose gradient went wrong."""

from __future__ import annotations

from contextvars import Token
from types import TracebackType

from jitgrad.core.modes import Anomaly, anomaly, grad_mode, recording_mode

__all__ = ["detect_anomaly", "set_detect_anomaly"]


def _switch(mode: Anomaly | None) -> tuple[Token[Anomaly | None], Token[bool | str]]:
    tokens = anomaly.set(mode), grad_mode.set(grad_mode.get())
    if grad_mode.get():
        grad_mode.set(recording_mode())
    return tokens


class detect_anomaly:
    """Record lines and fingerprints inside, and let every backward inside check what it computes.

    A gradient that is NaN or infinite raises AnomalyError with the forward line of the operation that it first came out
    of (``check_nan=False``: not checked). A value that backward needs and that NumPy has changed in the meantime, on
    memory that it shares, raises InPlaceError. Both the forward pass and backward belong inside. It is slow: for
    debugging.

    >>> import jitgrad as jg
    >>> x = jg.tensor([0.0, 1.0], requires_grad=True)
    >>> with jg.autograd.detect_anomaly():
    ...     jg.sqrt(x).sum().backward()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jitgrad.errors.AnomalyError: backward of sqrt gives a gradient that is not finite ...
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._mode: Anomaly = "values" if check_nan else "lines"
        self._tokens: list[tuple[Token[Anomaly | None], Token[bool | str]]] = []

    def __enter__(self) -> None:
        self._tokens.append(_switch(self._mode))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        old, old_grad = self._tokens.pop()
        grad_mode.reset(old_grad)
        anomaly.reset(old)


class set_detect_anomaly:
    """Turn ``detect_anomaly`` on or off at once; as a context manager, give the old state back at its end.

    >>> import jitgrad as jg
    >>> with jg.autograd.set_detect_anomaly(True):
    ...     pass
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._tokens = _switch(("values" if check_nan else "lines") if mode else None)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        old, old_grad = self._tokens
        grad_mode.reset(old_grad)
        anomaly.reset(old)
