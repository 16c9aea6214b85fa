"""What a jitted function was compiled to for one signature of its arguments."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jitgrad.compiler.executable import Executable
from jitgrad.core.graph import Constant, Graph
from jitgrad.core.trace import same_bytes
from jitgrad.tensor import Tensor
from jitgrad.transforms.bindings import Bindings, stands_for_array
from jitgrad.transforms.regime import Answers
from jitgrad.transforms.trees import Structure

__all__ = ["Compiled", "Pullback", "captured"]


class _Jitted(Protocol):
    """A jitted function, as far as it is used here."""

    def __call__(self, *args: Any) -> list[Tensor | None]: ...

    def compiled_for(self, *args: Any) -> Compiled:
        """What a call with these arguments runs."""


@dataclass
class Pullback:
    """The gradient of a jitted call, compiled: from arguments, cotangents and masks to cotangents of the arguments, None where
    there is none."""

    function: _Jitted
    hidden: list[int]  # which captured tensors are arguments of it
    needs: tuple[int, ...]  # the arguments and captured tensors that it is for: not what all results detach
    depends: list[list[bool]]  # which of these each result depends on
    origins: list[str | None]  # why the others have none, where that is known
    recorder: Any = None  # of the nodes of such calls, made by the first of them


@dataclass
class Compiled:
    """What one signature of arguments was compiled to."""

    graph: Graph  # as traced
    executable: Executable
    structure: Structure
    leaves: list[Any]  # results that are no arrays, and None where an output stands
    sources: list[Tensor]  # captured tensors, read at each call: any of them may require grad, now or later
    reads: list[tuple[Any, Any]]  # arrays whose values Python read, with copies: the trace holds while they are equal
    bindings: Bindings  # where the function has the sources from
    answers: Answers | None  # what it was told of recording; None where its program is the same for all answers
    keeps_new: bool  # a tensor that requires grad, which the function has made, and somebody has it now
    unreached: set[tuple[int, ...]] = field(
        default_factory=set
    )  # captured tensors that require grad, of which results depend on none but by detached values
    pullbacks: dict[tuple[int, ...], Pullback | None] = field(
        default_factory=dict
    )  # gradients, by what they are wanted for

    def __post_init__(self) -> None:
        self._renewing = threading.RLock()
        self._names = [f"source{k}" for k in range(len(self.sources))]
        self.bindings.space.update(zip(self._names, self.sources, strict=True))

    @property
    def holds(self) -> bool:
        """Whether what Python read of captured arrays is still there, and all that the function captured, or the like."""
        if not self.reads_hold or not self.bindings.settled or not self.bindings.complete:
            return False
        return (not self.bindings.changed() or self.renewed()) and self.answers_hold

    @property
    def reads_hold(self) -> bool:
        """Whether what Python read of captured arrays is still there."""
        return all(same_bytes(t._value if isinstance(t, Tensor) else t, copy) for t, copy in self.reads)

    @property
    def answers_hold(self) -> bool:
        """Whether captured tensors say of their recording what they said when the function was traced."""
        return self.answers is None or self.answers.hold(self.sources)

    def rebuilt(self, results: Sequence[Any]) -> Any:
        """These results in the containers that the function returns."""
        found = iter(results)
        return self.structure.unflatten([next(found) if leaf is None else leaf for leaf in self.leaves])

    def renewed(self) -> bool:
        """Read other tensors, which the function has been given in place of captured ones; False where it must be traced."""
        with self._renewing:  # or one thread would look for what another has read
            found = self.bindings.look(self.sources)
            if found is None:
                return False
            places, new = found
            moved = [k for k, old in enumerate(self.sources) if old is not new[k]]
            if moved and not self._read(moved, new):
                return False
            self.bindings.commit(places)  # at last: until then other threads come here
            return True

    def _read(self, moved: list[int], new: list[Tensor]) -> bool:
        """Let the program read these tensors at the places ``moved``, if it can."""
        constants, space, first = self._constants, self.bindings.space, len(self.graph.inputs)
        for pullback in self.pullbacks.values():
            if pullback is None or not {first + k for k in moved} <= set(pullback.hidden):
                return False  # a gradient that is still to come would read the other tensor
        if None in [constants[k] for k in moved]:
            return False
        for k in moved:
            tensor = space[self._names[k]] = new[k]
            for c in constants[k] or ():
                c.source = tensor
                if self.bindings.is_array[k] or stands_for_array(tensor):
                    c.value = tensor._value  # by which it is known, when the function is traced again
        self.sources = new
        return True

    @functools.cached_property
    def _constants(self) -> list[list[Constant] | None]:
        """The constants that are read from each captured tensor; None where it cannot be another tensor."""
        constants = list({id(c): c for g in (self.graph, self.executable.graph) for c in captured(g)}.values())
        values: dict[int, set[int]] = {}  # several tensors on one array are one value to the compiler
        for c in constants:
            values.setdefault(id(c.value), set()).add(id(c.source))
        found = [[c for c in constants if c.source is source] for source in self.sources]
        return [None if any(c.is_literal or len(values[id(c.value)]) > 1 for c in own) else own for own in found]


def captured(graph: Graph) -> list[Constant]:
    """The constants of a graph that are read from a tensor."""
    atoms = {id(a): a for n in graph.nodes for a in n.inputs} | {id(a): a for a in graph.outputs}
    return [a for a in atoms.values() if isinstance(a, Constant) and a.source is not None]
