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

from jitgrad.compiler.extents import Extents, unit_reshape
from jitgrad.core.graph import Atom, Constant, Graph, Node, Variable
from jitgrad.core.primitive import Elementwise, Primitive, Reduce
from jitgrad.ops.elementwise import add
from jitgrad.ops.linear import (
    convert,
    diagonal_view,
    expand,
    flip_view,
    gather,
    join,
    permute,
    place,
    place_diagonal,
    reshape_to,
    scatter_add,
    slice_view,
)
from jitgrad.ops.products import matrix_product, matrix_vector, vector_dot, vector_outer

__all__ = ["Call", "Loop", "Plan", "Sink", "can_fuse", "plan"]

INDEXED: Final = frozenset({permute, expand, flip_view, slice_view, diagonal_view, place_diagonal, reshape_to, convert})
"""Primitives that only change where an element is read (or its dtype), or whether it is."""
SCATTERS: Final = frozenset({place, scatter_add, join})
_MOVING: Final = frozenset({permute, flip_view, slice_view, diagonal_view, place_diagonal})
_MOST_PLACES: Final = 8
CALLS: Final = frozenset({matrix_product, matrix_vector})
_CHEAP: Final = frozenset(
    {"sqrt", "sel", "fabs", "copysign", "maximum", "minimum", "isnan", "isinf", "isfinite", "floor"}
)


def can_fuse(node: Node) -> bool:
    """Whether this node can be part of a fused kernel; others run on their own, between kernels."""
    primitive = node.primitive
    if any(a.aval.dtype.kind not in "fbi" for a in (*node.inputs, *node.outputs)):
        return False
    if isinstance(primitive.impl, Elementwise):
        return True
    if isinstance(primitive.impl, Reduce):
        return not primitive.impl.needs_elements or node.inputs[0].aval.size > 0
    if primitive is scatter_add:
        return node.outputs[0].aval.dtype.kind == "f"
    if primitive is place_diagonal:  # of square matrices, where an index of the diagonal is one of the operand
        shape, params = node.outputs[0].aval.shape, node.params
        return not params["offset"] and bool(shape[params["axis1"]] == shape[params["axis2"]])
    if primitive in CALLS:
        return all(a.aval.ndim <= 2 and a.aval.dtype.kind == "f" for a in node.inputs)
    return primitive in INDEXED or primitive in (place, join, gather, vector_dot, vector_outer)


@dataclass(eq=False)
class Sink:
    """Something that a loop writes: a stored value, a reduction, a scatter."""

    kind: Literal["store", "reduce", "dot", "scatter"]
    target: Variable
    space: tuple[str, ...]  # symbols of the axes it runs over
    node: Node | None
    part: int = 0  # which operand of a join
    adds: bool = False  # a scatter onto what other scatters have left


@dataclass(eq=False)
class Loop:
    """All sinks of one stage over one index space."""

    space: tuple[str, ...]  # without axes of extent 1
    sinks: list[Sink] = field(default_factory=list)


@dataclass(eq=False)
class Call:
    """A product that BLAS (or plain loops, where it is tiny) computes from memory to memory."""

    node: Node


@dataclass(eq=False)
class Plan:
    """A graph, laid out in stages."""

    graph: Graph
    extents: Extents
    memory: dict[Variable, int]  # values in memory, with the first stage that may read them there
    stages: list[list[Loop | Call]]
    producers: dict[Variable, Node]


def _is_dear(primitive: Primitive) -> bool:
    impl = primitive.impl
    if not isinstance(impl, Elementwise):
        return False
    return bool(set(impl.body.__code__.co_names) - _CHEAP - {"scalar"})


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.extents = Extents(graph)
        self.producers = {v: n for n in graph.nodes for v in n.outputs}
        self.memory: dict[Variable, int] = dict.fromkeys(graph.inputs, 0)
        self.ready: dict[Atom, int] = dict.fromkeys(graph.inputs, 0)
        self.stored: set[Variable] = set()  # virtual values that must be stored too
        self.often = self._read_at_many_places()
        self.runs: list[tuple[int, Sink | Call]] = []
        self.scattered: dict[Atom, list[Sink]] = {}  # results of scatters, with the sinks that make them
        self.merged: set[Atom] = set()  # scatters, and sums of them, that write to the memory of a larger sum
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
        what they are made of as well, exponentially often in a chain of shifted sums."""
        places: dict[Atom, set[int]] = {}
        moved: dict[tuple[int, int], int] = {}  # a place, seen through a node that moves it
        found = set()
        for node in reversed(self.graph.nodes):
            out = node.outputs[0]
            here = places.pop(out, {0})
            fuses = node.primitive in INDEXED or isinstance(node.primitive.impl, Elementwise)
            if isinstance(node.primitive.impl, Elementwise) and len(here) > _MOST_PLACES:
                found.add(out)
                here = {0}
            if not fuses:
                here = {0}
            elif node.primitive in _MOVING:
                here = {moved.setdefault((id(node), place), len(moved) + 1) for place in here}
            for a in node.inputs:
                places.setdefault(a, set()).update(here)
        return found

    def visit(self, node: Node) -> None:
        primitive = node.primitive
        (out,) = node.outputs
        reads = max((self.ready.get(a, 0) for a in node.inputs), default=0)
        shape = self.extents.shape
        if primitive in CALLS:
            stage = max(self.in_memory(a) for a in node.inputs)
            self.runs.append((stage, Call(node)))
            self.memory[out] = self.ready[out] = stage + 1
        elif isinstance(primitive.impl, Reduce) or primitive is vector_dot:
            kind: Literal["reduce", "dot"] = "dot" if primitive is vector_dot else "reduce"
            self.runs.append((reads, Sink(kind, out, shape(node.inputs[0]), node)))
            self.memory[out] = self.ready[out] = reads + 1
        elif primitive in SCATTERS:
            for part, x in enumerate(node.inputs if primitive is join else node.inputs[:1]):
                sink = Sink("scatter", out, shape(x), node, part)
                self.runs.append((reads, sink))
                if primitive is not join:
                    self.scattered[out] = [sink]
            self.memory[out] = self.ready[out] = reads + 1
        elif primitive is add.primitive and self._is_sum_of_scatters(node):
            self._merge_scatters(node)
        elif primitive is gather:
            self.ready[out] = max(self.in_memory(node.inputs[0]), self.ready.get(node.inputs[1], 0))
        elif primitive is reshape_to and unit_reshape(node.inputs[0].aval.shape, out.aval.shape) is None:
            self.ready[out] = self.in_memory(node.inputs[0])
        elif out in self.often:
            self.runs.append((reads, Sink("store", out, shape(out), None)))
            self.memory[out] = self.ready[out] = reads + 1
        else:
            self.ready[out] = reads

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
        self.memory[out] = self.ready[out] = max(self.ready[a] for a in node.inputs)
        for a in node.inputs:
            del self.memory[a]  # type: ignore[arg-type]
            self.merged.add(a)

    def plan(self) -> Plan:
        for node in self.graph.nodes:
            self.visit(node)
        for atom in self.graph.outputs:
            if isinstance(atom, Variable) and atom not in self.memory:
                self.stored.add(atom)
        self._store_dear_values()
        for variable in [v for n in self.graph.nodes for v in n.outputs if v in self.stored]:  # in a fixed order
            stage = self.ready[variable]
            self.runs.append((stage, Sink("store", variable, self.extents.shape(variable), None)))
            self.memory[variable] = stage + 1
        return Plan(self.graph, self.extents, self.memory, self._stages(), self.producers)

    def _store_dear_values(self) -> None:
        """A value with an expensive function in it is stored when a later stage needs it again."""
        dear: dict[Atom, bool] = {}
        consumers: dict[Atom, list[Node]] = {}
        for node in self.graph.nodes:
            virtual = [a for a in node.inputs if a not in self.memory and a not in self.stored]
            dear[node.outputs[0]] = _is_dear(node.primitive) or any(dear.get(a, False) for a in virtual)
            for a in node.inputs:
                consumers.setdefault(a, []).append(node)
        stages: dict[int, int] = {}  # the last stage in which a node runs itself
        for stage, run in self.runs:
            if run.node is not None:
                stages[id(run.node)] = max(stage, stages.get(id(run.node), -1))
        late: dict[Atom, bool] = {}
        # from the results back: the value nearest to its use is stored, so that what it is made of is not needed later
        for node in reversed(self.graph.nodes):
            out = node.outputs[0]
            late[out] = self._used_late(out, late, consumers.get(out, ()), stages)
            if late[out] and dear[out] and out not in self.memory and out not in self.merged:
                self.stored.add(out)

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
        loops: dict[tuple[int, tuple[str, ...]], Loop] = {}
        for stage, run in self.runs:
            if isinstance(run, Call):
                stages[stage].append(run)
                continue
            space = tuple(n for n in run.space if n != "1")
            loop = loops.get((stage, space))
            if loop is None:
                loop = loops[stage, space] = Loop(space)
                stages[stage].append(loop)
            loop.sinks.append(run)
        return stages


def plan(graph: Graph) -> Plan:
    """The stages of a graph whose nodes can all be fused."""
    return _Planner(graph).plan()
