"""What a jitted function was compiled to for one signature of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitgrad.compiler.executable import Executable
from jitgrad.core.graph import Constant, Graph
from jitgrad.core.trace import same_bytes
from jitgrad.tensor import Tensor
from jitgrad.transforms.bindings import Bindings, stands_for_array
from jitgrad.transforms.regime import Answers
from jitgrad.transforms.trees import Structure

__all__ = ["Compiled", "Pullback", "captured"]


@dataclass
class Pullback:
    """The gradient of a jitted call, compiled: from arguments, cotangents and masks to cotangents of the arguments."""

    function: Callable[..., list[Tensor]]
    hidden: list[int]  # which captured tensors are arguments of it
    tracked: list[bool]  # which results have one: not what was detached
    origins: list[str | None]  # why the others have none, where that is known


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
    pullbacks: dict[tuple[int, ...], Pullback | None] = field(
        default_factory=dict
    )  # gradients, by what they are wanted for

    @property
    def holds(self) -> bool:
        """Whether what Python read of captured arrays is still there, and the captured tensors, or others like them."""
        if not self.reads_hold:
            return False
        if self.bindings.watched and not self.bindings.hold(self.sources) and not self._rebound():
            return False
        return self.answers_hold

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

    def _rebound(self) -> bool:
        """Read other tensors, which the function has been given in place of captured ones; False where it must be traced."""
        new = self.bindings.now(self.sources)
        if new is None:
            return False
        moved = {id(old): t for old, t in zip(self.sources, new, strict=True) if old is not t}
        first = len(self.graph.inputs)
        places = {first + k for k, old in enumerate(self.sources) if id(old) in moved}
        if any(p is None or not places <= set(p.hidden) for p in self.pullbacks.values()):
            return False  # a gradient that is still to come would read the other tensor
        constants = list({id(c): c for g in (self.graph, self.executable.graph) for c in captured(g)}.values())
        values: dict[int, set[int]] = {}  # several tensors on one array are one value to the compiler
        for c in constants:
            values.setdefault(id(c.value), set()).add(id(c.source))
        for c in constants:
            if id(c.source) in moved and (c.is_literal or len(values[id(c.value)]) > 1):
                return False
        for c in constants:
            if id(c.source) in moved:
                c.source = moved[id(c.source)]
                if stands_for_array(c.source):
                    c.value = c.source._value  # by which it is known, when the function is traced again
        self.sources = new
        return True


def captured(graph: Graph) -> list[Constant]:
    """The constants of a graph that are read from a tensor."""
    atoms = {id(a): a for n in graph.nodes for a in n.inputs} | {id(a): a for a in graph.outputs}
    return [a for a in atoms.values() if isinstance(a, Constant) and a.source is not None]
