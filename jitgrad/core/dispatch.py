"""The one seam between operations and what runs them.

Operations stand below tensors, yet calling one makes a tensor. So the core only says what it needs of an engine; the
tensor layer provides the one engine there is (eager and traced values alike) when the package is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from jitgrad.core.primitive import Primitive, Value

__all__ = ["Engine", "as_value", "constant", "engine", "install", "is_value", "operand", "promoted", "wrap"]


class Engine(Protocol):
    """What the core needs to know of tensors."""

    value_class: type[Any]

    def as_value(self, obj: Any, what: str) -> Value:
        """A tensor of anything array-like; tensors pass unchanged."""

    def operand(self, obj: Any, what: str) -> Any:
        """A Python number as it is, anything else as a tensor."""

    def promoted(self, *operands: Any) -> np.dtype[Any]:
        """The dtype that operands have in common."""

    def apply(self, primitive: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Run (eagerly, recording where a gradient is wanted) or trace one primitive."""

    def wrap(self, data: Any) -> Value:
        """An untracked tensor on an ndarray or a tracer."""

    def constant(self, value: Any, dtype: Any, like: Value) -> Value:
        """A tensor of a number or of an array that nobody else writes to, traced where ``like`` is."""


class _Missing:
    value_class = object

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the tensor layer is not loaded; import jitgrad instead of its inner modules")


_engine: Any = _Missing()


def install(engine: Engine) -> None:
    """Called once, by the tensor layer."""
    global _engine  # noqa: PLW0603  # the one seam, set once
    _engine = engine


def engine() -> Engine:
    """The engine."""
    return _engine  # type: ignore[no-any-return]


def as_value(obj: Any, what: str = "argument") -> Value:
    """A tensor of anything array-like."""
    return _engine.as_value(obj, what)


def operand(obj: Any, what: str = "operand") -> Any:
    """A Python number as it is, an extent read from a traced value among them; anything else as a tensor."""
    return _engine.operand(obj, what)


def promoted(*operands: Any) -> np.dtype[Any]:
    """The dtype of NumPy 2 promotion for tensors and Python numbers; the numbers are weak, traced or not."""
    return _engine.promoted(*operands)  # type: ignore[no-any-return]


def wrap(data: Any) -> Value:
    """An untracked tensor on an ndarray or a tracer."""
    return _engine.wrap(data)


def constant(value: Any, dtype: Any, like: Value) -> Value:
    """A tensor of a number, or of an array that the caller made: part of the graph that is being traced if ``like`` is."""
    return _engine.constant(value, dtype, like)


def is_value(obj: Any) -> bool:
    """Whether this is a tensor already."""
    return isinstance(obj, _engine.value_class)
