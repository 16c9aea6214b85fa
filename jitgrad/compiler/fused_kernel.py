"""A fused kernel as it is run, without how it came about: what a program is called by, and what is kept of it on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jitgrad.compiler.chunks import is_worth_dividing
from jitgrad.compiler.emit import Buffer, Emitted

__all__ = ["FusedKernel"]


@dataclass(frozen=True)
class FusedKernel:
    """The source of a kernel, and the arguments that are always the same."""

    name: str
    source: str
    signature: tuple[str, ...]
    extras: Mapping[str, Any]  # functions of the user, by their names in the source
    inputs: int  # how many arguments of the program it takes first
    extents: list[int]
    numbers: list[float]
    outputs: list[Buffer]
    returned: int | None  # the number of the result that the kernel returns instead of writing it
    work: int | None  # bytes of working memory, if it takes any
    raises: bool  # whether it can meet values that it must refuse
    divides: bool  # whether threads can share it with a gain

    @classmethod
    def of(cls, emitted: Emitted) -> FusedKernel:
        """What is needed to run an emitted kernel."""
        return cls(
            emitted.name,
            emitted.source,
            emitted.signature,
            emitted.extras,
            emitted.inputs,
            emitted.extents,
            emitted.numbers,
            emitted.outputs,
            emitted.returned,
            emitted.workspace.nbytes if emitted.workspace.places else None,
            "raise " in emitted.helpers,
            is_worth_dividing(emitted),
        )
