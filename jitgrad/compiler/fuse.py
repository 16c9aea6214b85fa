"""Fusion: which values of a graph live in memory, in which stage each is computed, and which loops do it.

A value is *virtual* (computed where it is needed, inside a loop) unless something needs it in memory: it is a result, an
operand of a product or of a gather, the result of a reduction, or dear and needed again after a barrier. A *stage* ends
where a reduction, a product or a scatter must be complete. Within a stage all work over the same index space goes into
one loop nest, forward and backward alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from jitgrad.compiler.extents import Extents, is_square_diagonal, node_call, unit_reshape
from jitgrad.compiler.segments import cost, cuts, elementary_functions
from jitgrad.compiler.totals import Scaled, Totals
from jitgrad.core.graph import Atom, Constant, Graph, Node, Variable
from jitgrad.core.primitive import ArrayCall, Elementwise, Reduce
from jitgrad.ops.elementwise import add
from jitgrad.ops.linear import (
    add_at,
    convert,
    counted,
    diagonal_view,
    expand,
    flip_view,
    gather,
    join,
    overwrite,
    permute,
    pile,
    place,
    place_diagonal,
    put,
    reshape_to,
    scatter_add,
    slice_view,
    take_at,
)
from jitgrad.ops.product_primitives import vector_dot, vector_outer

__all__ = ["Call", "Loop", "Plan", "Sink", "can_fuse", "plan"]

INDEXED: Final = frozenset({permute, expand, flip_view, slice_view, diagonal_view, reshape_to, convert, counted})
"""Primitives that only change where an element is read (or its dtype), or say where it is."""
GATHERS: Final = frozenset({gather, take_at})
JOINS: Final = frozenset({join, pile})
SCATTERS: Final = frozenset({place, place_diagonal, scatter_add, add_at})
"""Primitives that write a part of zeros, or add to it."""
WRITES: Final = frozenset({overwrite, put})
_MOVING: Final = frozenset({permute, flip_view, slice_view, diagonal_view})
_MOST_PLACES: Final = 8
_COSTLY: Final = 8.0
"""What is worth a store and a load, in additions: a division or a root, and more so any function."""


def is_indexed(node: Node) -> bool:
    """Whether an element of the result is one of the operand, or zero: nothing is computed."""
    return node.primitive in INDEXED or is_square_diagonal(node)


def can_fuse(node: Node) -> bool:
    """Whether this node can be part of a fused kernel; others run on their own, between kernels."""
    primitive = node.primitive
    if any(a.aval.dtype.kind not in "fbi" for a in (*node.inputs, *node.outputs)):
        return False
    if isinstance(primitive.impl, Elementwise):
        return True
    if isinstance(primitive.impl, Reduce):
        return not primitive.impl.needs_elements or node.inputs[0].aval.size > 0
    if (
        primitive in INDEXED
        or primitive in SCATTERS
        or primitive in GATHERS
        or primitive in JOINS
        or primitive in WRITES
    ):
        return True
    return primitive in (vector_dot, vector_outer) or node_call(node) is not None


@dataclass(eq=False)
class Sink:
    """Something that a loop writes: a stored value, a reduction, a scatter."""

    kind: Literal["store", "reduce", "dot", "scatter"]
    target: Variable
    space: tuple[str, ...]  # symbols of the axes it runs over
    node: Node | None
    part: int = 0  # which operand of the node is written
    adds: bool = False  # a scatter onto what other scatters have left
    scaled: Scaled | None = None  # a sum that need not be summed up


@dataclass(eq=False)
class Loop:
    """All sinks of one stage over one index space."""

    space: tuple[str, ...]  # without axes of extent 1
    sinks: list[Sink] = field(default_factory=list)


@dataclass(eq=False)
class Call:
    """An operation that an array kernel computes from memory to memory: products, factorisations."""

    node: Node
    call: ArrayCall


@dataclass(eq=False)
class Plan:
    """A graph, laid out in stages."""

    graph: Graph
    extents: Extents
    memory: dict[Variable, int]  # values in memory, with the first stage that may read them there
    stages: list[list[Loop | Call]]
    producers: dict[Variable, Node]
    addressed: set[Atom]  # values that need memory even if they are numbers
    reused: dict[Variable, Variable]  # results that are written to the memory of an operand
    begins: list[int]  # the stages with which segments begin; none where the whole is one


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.extents = Extents(graph)
        self.producers = {v: n for n in graph.nodes for v in n.outputs}
        self.memory: dict[Variable, int] = dict.fromkeys(graph.inputs, 0)
        self.ready: dict[Atom, int] = dict.fromkeys(graph.inputs, 0)
        self.stored: set[Variable] = set()  # virtual values that must be stored too
        self.often = self._read_at_many_places()
        self.totals = Totals(self.producers)
        self.runs: list[tuple[int, Sink | Call]] = []
        self.scattered: dict[Atom, list[Sink]] = {}  # results of scatters, with the sinks that make them
        self.merged: set[Atom] = set()  # scatters, and sums of them, that write to the memory of a larger sum
        self.addressed: set[Atom] = set()
        self.reused: dict[Variable, Variable] = {}
        self.dear: dict[Atom, bool] = {}  # values with an expensive function in what computes them
        self.costs: dict[Atom, float] = {}  # what it takes to compute an element of a value that is not in memory
        self.base = 0  # the first stage of the segment that is being planned
        self.begins: list[int] = []
        self.segment: dict[Atom, int] = {}
        self.uses = Counter(a for n in graph.nodes for a in n.inputs) + Counter(graph.outputs)

    def in_memory(self, atom: Atom) -> int:
        """The first stage in which the value can be read from memory."""
        if isinstance(atom, Constant):
            return 0
        if atom in self.memory:
            return self.memory[atom]
        self.stored.add(atom)
        return self.ready[atom] + 1

    def _read_at_many_places(self) -> set[Variable]:
        """Computed values of which one element of a result needs many: a loop would compute them again at each place, and
        what they are made of as well, exponentially often in a chain of shifted sums. A function's are too many if they
        are two, unless they are far from each other, as in a transpose: reading it from memory would cost as much."""
        places: dict[Atom, set[int]] = {}
        moved: dict[tuple[int, int], int] = {}  # a place, seen through a node that moves it
        far: set[int] = set()
        found = set()
        for node in reversed(self.graph.nodes):
            out, primitive = node.outputs[0], node.primitive
            here = places.pop(out, {0})
            if isinstance(primitive.impl, Elementwise):
                if len(here) > _MOST_PLACES or (elementary_functions(primitive) and len(here - far) > 1):
                    found.add(out)
                    here = {0}
            elif not is_indexed(node):
                here = {0}
            if primitive in _MOVING or primitive is place_diagonal:
                there = {place: moved.setdefault((id(node), place), len(moved) + 1) for place in here}
                far.update(new for old, new in there.items() if old in far or primitive is permute)
                here = set(there.values())
            for a in node.inputs:
                places.setdefault(a, set()).update(here)
        return found

    def visit(self, node: Node) -> None:
        primitive = node.primitive
        out = node.outputs[0]
        ready = self.ready
        reads = max([self.base, *[ready[a] for a in node.inputs if a in ready]])
        shape = self.extents.shape
        if isinstance(primitive.impl, Reduce) or primitive is vector_dot:
            kind: Literal["reduce", "dot"] = "dot" if primitive is vector_dot else "reduce"
            scaled = self._scaled(node)
            if scaled is not None:
                reads = max(reads, ready[scaled.total], ready.get(scaled.factor, 0))
            self.runs.append((reads, Sink(kind, out, shape(node.inputs[0]), node, scaled=scaled)))
            self.memory[out] = self.ready[out] = reads + 1
        elif (primitive in SCATTERS and not is_indexed(node)) or primitive in JOINS:
            for part, x in enumerate(node.inputs if primitive in JOINS else node.inputs[:1]):
                sink = Sink("scatter", out, shape(x), node, part)
                self.runs.append((reads, sink))
                if primitive in SCATTERS:
                    self.scattered[out] = [sink]
            self.addressed.add(out)
            self.memory[out] = self.ready[out] = reads + 1
        elif primitive in WRITES:
            self._write(node)
        elif primitive is add.primitive and self._is_sum_of_scatters(node):
            self._merge_scatters(node)
        elif primitive in GATHERS:
            self.addressed.add(node.inputs[0])
            self.ready[out] = max(reads, self.in_memory(node.inputs[0]))
        elif primitive is reshape_to and unit_reshape(node.inputs[0].aval.shape, out.aval.shape) is None:
            self.ready[out] = max(self.base, self.in_memory(node.inputs[0]))
        elif out in self.often:
            self.runs.append((reads, Sink("store", out, shape(out), None)))
            self.memory[out] = self.ready[out] = reads + 1
        elif isinstance(primitive.impl, Elementwise) or is_indexed(node) or primitive is vector_outer:
            repeated = [a for a in node.inputs if self._is_repeated(a, node)]
            self.ready[out] = max(reads, *(self.in_memory(a) for a in repeated), 0)
            virtual = [a for a in node.inputs if a not in self.memory and a not in self.stored]
            self.dear[out] = elementary_functions(primitive) > 0 or any(self.dear.get(a, False) for a in virtual)
            self.costs[out] = min(cost(primitive) + sum(self.costs.get(a, 0.0) for a in {*virtual}), _COSTLY)
        else:
            call = node_call(node)
            assert call is not None
            self.addressed.update((*node.inputs, *node.outputs))
            stage = max(self.base, *(self.in_memory(a) for a in node.inputs), 0)
            self.runs.append((stage, Call(node, call)))
            for v in node.outputs:
                self.memory[v] = self.ready[v] = stage + 1

    def _scaled(self, node: Node) -> Scaled | None:
        """How a sum follows from an earlier one of the same segment."""
        found, here = self.totals.find(node), len(self.begins)
        if found is None or any(self.segment.get(a, here) != here for a in (found.factor, found.total)):
            return None
        return found

    def _is_repeated(self, atom: Atom, node: Node) -> bool:
        """Whether a loop over the result would compute a costly operand again for each step of an outer axis."""
        if self.costs.get(atom, 0.0) < _COSTLY or atom in self.memory:
            return False
        if not isinstance(node.primitive.impl, Elementwise) and node.primitive is not expand:
            return False
        whole = node.outputs[0].aval.shape
        part = (1,) * (len(whole) - atom.aval.ndim) + tuple(atom.aval.shape)
        outer = [i for i, (n, m) in enumerate(zip(whole, part, strict=True)) if n != 1 == m]
        return bool(outer) and any(m != 1 for m in part[outer[0] :])

    def _write(self, node: Node) -> None:
        """A copy with a part overwritten; what nobody else reads is overwritten itself."""
        (base, value, *positions), (out,) = node.inputs, node.outputs
        self.addressed.update((base, out))
        stage = max(self.base, self.ready.get(base, 0))
        mine = base in self.memory and base in self.producers and self.uses[base] == 1
        if mine:
            self.reused[out] = base  # type: ignore[assignment]
        else:
            self.runs.append((stage, Sink("store", out, self.extents.shape(out), node)))
            stage += 1
        stage = max(stage, *(self.ready.get(a, 0) for a in (value, *positions)))
        self.runs.append((stage, Sink("scatter", out, self.extents.shape(value), node, 1)))
        self.memory[out] = self.ready[out] = stage + 1

    def _is_sum_of_scatters(self, node: Node) -> bool:
        shape = node.outputs[0].aval.shape
        return all(a in self.scattered and self.uses[a] == 1 and a.aval.shape == shape for a in node.inputs)

    def _merge_scatters(self, node: Node) -> None:
        """Let the scatters of a sum write to one memory: gradients of slices of one array need no array each."""
        (out,) = node.outputs
        sinks = [s for a in node.inputs for s in self.scattered.pop(a)]
        for sink in sinks:
            sink.target, sink.adds = out, True
        self.scattered[out] = sinks
        self.addressed.add(out)
        self.memory[out] = self.ready[out] = max(self.ready[a] for a in node.inputs)
        for a in node.inputs:
            del self.memory[a]  # type: ignore[arg-type]
            self.merged.add(a)

    def plan(self) -> Plan:
        begins = set(cuts(self.graph))
        for number, node in enumerate(self.graph.nodes):
            if number in begins:
                self.base = 1 + max(self.base, *(s for s, _ in self.runs), *self.ready.values())
                self.begins.append(self.base)
            self.visit(node)
            self.segment.update(dict.fromkeys(node.outputs, len(self.begins)))
        if self.begins:
            self._keep_what_crosses()
        for atom in self.graph.outputs:
            if isinstance(atom, Variable) and atom not in self.memory:
                self.stored.add(atom)
        self._store_dear_values()
        for variable in [v for n in self.graph.nodes for v in n.outputs if v in self.stored]:  # in a fixed order
            stage = self.ready[variable]
            self.runs.append((stage, Sink("store", variable, self.extents.shape(variable), None)))
            self.memory[variable] = stage + 1
        parts = self.memory, self._stages(), self.producers, self.addressed, self.reused, self.begins
        return Plan(self.graph, self.extents, *parts)

    def _keep_what_crosses(self) -> None:
        """Segments hand values on in memory; what only moves elements of them is done again where it is needed."""
        self.addressed.update(self.graph.outputs)
        seen: set[tuple[Atom, int]] = set()
        pending: list[tuple[Atom, int]] = [(a, self.segment[n.outputs[0]]) for n in self.graph.nodes for a in n.inputs]
        pending += [(a, len(self.begins) + 1) for a in self.graph.outputs]
        while pending:
            atom, wanted = pending.pop()
            if (atom, wanted) in seen or atom in self.merged or self.segment.get(atom, wanted) == wanted:
                continue
            seen.add((atom, wanted))
            node = self.producers[atom]  # type: ignore[index]
            if atom in self.memory:
                self.addressed.add(atom)
            elif is_indexed(node) or node.primitive is vector_outer:
                pending += [(a, wanted) for a in node.inputs]
            else:
                self.addressed.add(atom)
                self.stored.add(atom)  # type: ignore[arg-type]

    def _store_dear_values(self) -> None:
        """A value with an expensive function in it is stored when a later stage needs it again."""
        consumers: dict[Atom, list[Node]] = {}
        for node in self.graph.nodes:
            for a in node.inputs:
                consumers.setdefault(a, []).append(node)
        stages: dict[int, int] = {}  # the last stage in which a node runs itself
        for stage, run in self.runs:
            if run.node is not None:
                stages[id(run.node)] = max(stage, stages.get(id(run.node), -1))
        late: dict[Atom, bool] = {}
        kept: list[Variable] = []
        # from the results back: the value nearest to its use is stored, so that what it is made of is not needed later
        for node in reversed(self.graph.nodes):
            out = node.outputs[0]
            late[out] = self._used_late(out, late, consumers.get(out, ()), stages)
            free = out not in self.memory and out not in self.merged and out not in self.stored
            if late[out] and self.dear.get(out, False) and free:
                kept.append(out)
        self.stored.update(kept)
        self._drop_cheap(set(kept))

    def _drop_cheap(self, kept: set[Variable]) -> None:
        """What is cheap now, since the dear values that it is made of are stored, is computed again: from at most two
        arrays, which is no more to read than the value itself and its being written."""
        dear: dict[Atom, bool] = {}
        reads: dict[Atom, set[Atom]] = {}
        for node in self.graph.nodes:
            out = node.outputs[0]
            if out not in self.dear:
                continue
            arrays: set[Atom] = set()
            for a in node.inputs:
                is_stored = a in self.memory or a in self.stored or a not in self.dear
                arrays |= reads[a] if not is_stored else {a} if a.aval.ndim else set()
            again = any(dear.get(a, False) for a in node.inputs if a not in self.memory and a not in self.stored)
            dear[out] = elementary_functions(node.primitive) > 0 or again
            reads[out] = arrays
            if out in kept and not dear[out] and len(arrays) <= 2:
                self.stored.discard(out)

    def _used_late(
        self, value: Variable, late: dict[Atom, bool], consumers: Sequence[Node], stages: dict[int, int]
    ) -> bool:
        """Whether a stage after the one that computes this value needs it again, to compute something with it there."""
        ready = self.ready[value]
        for node in consumers:
            out = node.outputs[0]
            if out in self.memory or out in self.merged:
                if stages.get(id(node), -1) > ready:
                    return True
            elif self.ready[out] > ready or (out not in self.stored and late[out]):
                return True
        return False

    def _stages(self) -> list[list[Loop | Call]]:
        stages: list[list[Loop | Call]] = [[] for _ in range(max((s for s, _ in self.runs), default=-1) + 1)]
        loops: dict[tuple[int, tuple[str, ...], Scaled | None], Loop] = {}
        for stage, run in self.runs:
            if isinstance(run, Call):
                stages[stage].append(run)
                continue
            space = tuple(n for n in run.space if n != "1")
            loop = loops.get((stage, space, run.scaled))
            if loop is None:
                loop = loops[stage, space, run.scaled] = Loop(space)
                stages[stage].append(loop)
            loop.sinks.append(run)
        return stages


def plan(graph: Graph) -> Plan:
    """The stages of a graph whose nodes can all be fused."""
    return _Planner(graph).plan()
