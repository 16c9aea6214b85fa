"""The value-free graph: nodes of primitives over typed variables, with a verifier and a printer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jitgrad.core.aval import ShapedArray, make_aval
from jitgrad.core.primitive import Primitive
from jitgrad.errors import GraphError, LeakedTracerError

__all__ = ["Atom", "Constant", "Extent", "Graph", "Node", "Tracer", "Variable", "is_number"]


class Variable:
    """A value of the graph: its aval, and nothing else; identity is its name."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray) -> None:
        self.aval = aval


class Extent(int):
    """An extent that remembers whose it is: the shape of a traced value is made of these, so that a shape which one
    operation takes from another value stays symbolic. Arithmetic on it gives a plain int."""

    atom: Atom
    axis: int

    def __new__(cls, value: int, atom: Atom, axis: int) -> Extent:
        made = super().__new__(cls, value)
        made.atom = atom
        made.axis = axis
        return made

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class _OwnAval(ShapedArray):
    """The aval of one traced value alone; its extents are made when they are asked for."""

    __slots__ = ("_atom", "_extents")

    def __init__(self, atom: Atom) -> None:
        aval = atom.aval
        self.dtype = aval.dtype
        self.contiguous = True
        self.ndim = aval.ndim
        self.size = aval.size
        self._atom = atom
        self._extents: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Extents that remember whose they are."""
        if self._extents is None:
            atom = self._atom
            self._extents = tuple([Extent(n, atom, i) for i, n in enumerate(atom.aval.shape)])
        return self._extents


class Constant:
    """A known value: a literal of the program, or an array that the traced function captured."""

    __slots__ = ("aval", "made", "source", "value")

    def __init__(self, value: np.ndarray[Any, Any], source: Any = None, made: bool = False) -> None:
        self.value = value
        self.source = source  # the tensor that it was read from, which may get another array later
        self.made = made  # by jitgrad, for this program: nobody else has the array
        self.aval = make_aval(value.shape, value.dtype)

    def current(self) -> np.ndarray[Any, Any]:
        """The value as it is now; raises GraphError where it has become another kind of array, which a kernel would misread."""
        value: np.ndarray[Any, Any] = self.value if self.source is None else self.source._value
        if value.shape != self.aval.shape or value.dtype != self.aval.dtype:
            raise GraphError(
                f"a captured array was traced as {self.aval} and is {value.dtype}{list(value.shape)} now: its shape, size or "
                "dtype was changed in place. Bind a new array to the name instead, or pass it as an argument"
            )
        return value

    @property
    def is_literal(self) -> bool:
        """A plain number, as opposed to a captured array without axes, whose value may change between runs."""
        return self.value.ndim == 0 and (self.source is None or is_number(self.value))


def is_number(array: np.ndarray[Any, Any]) -> bool:
    """Whether this stands for a number of the program: such arrays have no axes and nobody can write to them."""
    return array.ndim == 0 and not array.flags.writeable and array.base is None


Atom: TypeAlias = Variable | Constant


@dataclass(slots=True)
class Node:
    """One application of a primitive."""

    primitive: Primitive
    inputs: tuple[Atom, ...]
    params: dict[str, Any]
    outputs: tuple[Variable, ...]
    where: str | None = None  # file:line of the user's code
    backward: bool = False  # part of a gradient

    def parts(self) -> list[Graph]:
        """The graphs that it holds as parameters: the body of a loop, the branches of a conditional."""
        return [value for value in self.params.values() if isinstance(value, Graph)]


@dataclass(slots=True)
class Graph:
    """Inputs, nodes in order of execution, outputs."""

    name: str = "graph"
    inputs: list[Variable] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Atom] = field(default_factory=list)
    lines: bool = False  # nodes remember the line of the user's code that made them
    closed: bool = False  # tracing is over: nothing may be added any more
    depth: int = 0  # how many other traces this one stands in
    snapshots: list[Constant] | None = None  # with copies of the values as they were at first; None: nobody asks
    transformed: bool = False  # transforms work on the graph afterwards, and know nothing but its nodes
    differentiated: bool = False  # and its values have a history outside of it, which these nodes are to carry on
    reads: list[tuple[Any, Any]] | None = None  # arrays whose values Python read, with copies; None: nobody asks
    aliases: dict[int, tuple[Any, Any, Any, Callable[[], Any]]] = field(  # see ``note_alias``
        default_factory=dict, compare=False
    )

    def add_input(self, aval: ShapedArray) -> Tracer:
        """A new input, as a tracer."""
        variable = Variable(aval)
        self.inputs.append(variable)
        return Tracer(self, variable)

    def append(
        self,
        primitive: Primitive,
        inputs: tuple[Atom, ...],
        params: dict[str, Any],
        avals: Sequence[ShapedArray],
        where: str | None = None,
        backward: bool = False,
    ) -> tuple[Variable, ...]:
        """Append a node; its results. Raises LeakedTracerError once tracing is over."""
        if self.closed:
            raise LeakedTracerError(
                f"{primitive.name} at {where}: a value of the traced function {self.name} was used after its trace had ended; "
                "return it instead of storing it"
            )
        outputs = tuple([Variable(a) for a in avals])
        self.nodes.append(Node(primitive, inputs, params, outputs, where, backward))
        return outputs

    def add(
        self,
        primitive: Primitive,
        inputs: tuple[Atom, ...],
        params: dict[str, Any],
        avals: Sequence[ShapedArray],
        where: str | None = None,
        backward: bool = False,
    ) -> list[Tracer]:
        """``append``, with the results as tracers."""
        return [Tracer(self, v) for v in self.append(primitive, inputs, params, avals, where, backward)]

    def capture(self, tracer: Tracer, source: Any) -> Atom:
        """A value of another graph, as a value of this one; most graphs take none and raise LeakedTracerError."""
        raise LeakedTracerError(
            "a traced value was used outside of the function that it was traced in; return it instead of storing it"
        )

    def live(self) -> Graph:
        """This graph without the nodes that no output needs (inputs stay)."""
        needed: set[Atom] = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            outputs = node.outputs
            if outputs[0] in needed or (len(outputs) > 1 and not needed.isdisjoint(outputs)):
                kept.append(node)
                needed.update(node.inputs)
        return Graph(self.name, list(self.inputs), kept[::-1], list(self.outputs), self.lines, self.closed)

    def used_inputs(self) -> set[Atom]:
        """The inputs that a node or an output reads."""
        read: set[Atom] = set(self.outputs)
        for node in self.nodes:
            read.update(node.inputs)
        return read.intersection(self.inputs)

    def verify(self) -> Graph:
        """Raise ``GraphError`` unless every value is defined once, before its use; give the graph back."""
        defined: set[Variable] = set()
        for variable in self.inputs:
            if variable in defined:
                raise GraphError(f"{self.name}: an input stands twice")
            defined.add(variable)
        for node in self.nodes:
            for atom in node.inputs:
                if isinstance(atom, Variable) and atom not in defined:
                    raise GraphError(
                        f"{self.name}: {node.primitive} reads a value that is not defined before it\n{self}"
                    )
            for variable in node.outputs:
                if variable in defined:
                    raise GraphError(f"{self.name}: {node.primitive} defines a value again\n{self}")
                defined.add(variable)
            if len(node.outputs) != node.primitive.outputs:
                raise GraphError(f"{self.name}: {node.primitive} has {len(node.outputs)} results")
            for part in node.parts():
                part.verify()
        for atom in self.outputs:
            if isinstance(atom, Variable) and atom not in defined:
                raise GraphError(f"{self.name}: an output is not defined\n{self}")
        return self

    def _names(self) -> dict[Variable, str]:
        def letters() -> Iterator[str]:
            count = 0
            while True:
                number, name = count, ""
                while True:
                    name = chr(ord("a") + number % 26) + name
                    number = number // 26 - 1
                    if number < 0:
                        break
                yield name
                count += 1

        supply = letters()
        names = {v: next(supply) for v in self.inputs}
        for node in self.nodes:
            names.update({v: next(supply) for v in node.outputs})
        return names

    def __str__(self) -> str:
        names = self._names()

        def show(atom: Atom) -> str:
            if isinstance(atom, Variable):
                return names.get(atom, "?")
            return repr(atom.value.item()) if atom.is_literal else f"captured {atom.aval!r}"

        head = ", ".join(f"{names[v]}:{v.aval!r}" for v in self.inputs)
        lines = [f"{self.name}({head}):"]
        for node in self.nodes:
            left = ", ".join(f"{names[v]}:{v.aval!r}" for v in node.outputs)
            params = "".join(f" {k}={v.name if isinstance(v, Graph) else repr(v)}" for k, v in node.params.items())
            where = f"  # {node.where}" if node.where else ""
            lines.append(f"  {left} = {node.primitive.name} {' '.join(map(show, node.inputs))}{params}{where}")
        lines.append(f"  return {', '.join(map(show, self.outputs))}")
        lines += [f"  {line}" for node in self.nodes for part in node.parts() for line in str(part).splitlines()]
        return "\n".join(lines)


class Tracer:
    """Stands for a value while a function is traced; a tensor carries it in place of an ndarray.

    The value may be a constant: what is computed from it is then recorded, rather than computed while tracing.
    """

    __slots__ = ("_own", "graph", "variable")

    def __init__(self, graph: Graph, variable: Atom) -> None:
        self.graph = graph
        self.variable = variable
        self._own: ShapedArray | None = None

    @property
    def aval(self) -> ShapedArray:
        """The aval of the value that it stands for."""
        return self.variable.aval

    @property
    def own_aval(self) -> ShapedArray:
        """The aval of the tensors on it: never an interned one, by which plans for arrays would be found, and with extents
        that remember whose they are."""
        if self._own is None:
            self._own = _OwnAval(self.variable)
        return self._own
