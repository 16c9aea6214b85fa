"""What a traced function may ask about recording (``x.requires_grad``, ``jg.is_grad_enabled()``), and when the answers hold."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from jitgrad.autodiff.node import GradNode
from jitgrad.core.modes import grad_mode
from jitgrad.errors import GraphError
from jitgrad.tensor import Tensor
from jitgrad.transforms.private import InputRecorder

__all__ = ["Answers", "Regime", "call_private", "name_inputs"]

Kind: TypeAlias = Literal["leaf", "result"] | None


def _kind(tensor: Tensor) -> Kind:
    """What a tensor says of itself, without noting that it was asked."""
    edge = tensor._edge
    if edge is None:
        return None
    return "result" if isinstance(edge, GradNode) and not edge.recorder.leaf else "leaf"


@dataclass(frozen=True)
class Regime:
    """Whether a call is recorded, and what each argument is: the same functions of these have the same program."""

    enabled: bool
    kinds: tuple[Kind, ...]

    @classmethod
    def now(cls, tensors: Iterable[Tensor]) -> Regime:
        """That of a call with these arguments."""
        return cls(bool(grad_mode.get()), tuple([_kind(t) for t in tensors]))

    def edges(self) -> list[GradNode | None]:
        """New input nodes for stand-ins that answer as the arguments do."""
        edges = [None if k is None else GradNode(InputRecorder(), (), ()) for k in self.kinds]
        name_inputs(zip(edges, self.kinds, strict=True))
        return edges


def name_inputs(inputs: Iterable[tuple[Any, Kind]]) -> None:
    """Let private tensors on input nodes say of themselves what those of the caller do."""
    for edge, kind in inputs:
        if edge is not None:
            edge.recorder.leaf = kind == "leaf"


class Answers:
    """What a traced function was told of captured tensors: the trace holds while they would say it again."""

    def __init__(self, regime: Regime, sources: Sequence[Tensor], asked: Iterable[Any]) -> None:
        self.regime = regime
        self._sources = [_kind(t) for t in sources]
        others = {id(t): t for t in asked if isinstance(t, Tensor)} | {id(t): None for t in sources}
        self.others = [t for t in others.values() if t is not None]
        self._others = [(weakref.ref(t), _kind(t)) for t in self.others]

    def hold(self, sources: Sequence[Tensor]) -> bool:
        """Whether the captured tensors, ``sources`` among them, are of the kinds that they were of."""
        if [_kind(t) for t in sources] != self._sources:
            return False
        return all((t := r()) is None or _kind(t) == kind for r, kind in self._others)


def call_private(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], given: Iterable[Any], title: str
) -> Any:
    """Call a function on private tensors, ``given`` in place of those of the caller, which it cannot change.

    Raises GraphError where the function changes for its caller whether something is recorded.
    """
    mode = grad_mode.get()
    result = function(*args, **kwargs)
    if bool(grad_mode.get()) != bool(mode):
        raise GraphError(
            f"{title} leaves another grad mode behind than it found (set_grad_enabled), which a compiled call would not do: "
            "write `with jg.set_grad_enabled(...):`"
        )
    if any(isinstance(t, Tensor) and t._leaf is not None for t in given):
        raise GraphError(
            f"requires_grad_() of an argument of {title} does not reach the caller's tensor: call it before, or on x.detach()"
        )
    return result
