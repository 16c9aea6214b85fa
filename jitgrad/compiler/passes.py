"""Passes from graph to graph. None changes a value (sums of products are rounded otherwise), NaN and infinities included."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jitgrad.compiler.contractions import reduce_products
from jitgrad.compiler.rewriting import Part, moved_params, rewritten
from jitgrad.core.graph import Atom, Constant, Graph, Node, Variable
from jitgrad.core.primitive import Elementwise, Host, Primitive
from jitgrad.core.trace import trace
from jitgrad.errors import DefinitionError
from jitgrad.ops.elementwise import add, divide, multiply, negative, subtract
from jitgrad.ops.linear import (
    convert,
    copy_of,
    expand,
    permute,
    place,
    reshape_to,
    slice_view,
    stop_gradient_view,
)

__all__ = [
    "common_subexpressions",
    "erase_identities",
    "expand_expressions",
    "fold_constants",
    "move_signs",
    "same_program",
    "simplify",
]


def simplify(graph: Graph) -> Graph:
    """All passes, in the order in which each helps the next."""
    steps = (
        expand_expressions,
        fold_constants,
        erase_identities,
        common_subexpressions,
        reduce_products,
        move_signs,
        common_subexpressions,
    )
    for step in steps:
        graph = step(graph).live()
    return graph


def expand_expressions(graph: Graph) -> Graph:
    """Replace operations that run on their own by their expression in operations that can be fused, where they have one."""

    def visit(node: Node) -> Part | None:
        impl = node.primitive.impl
        if not isinstance(impl, Host) or impl.expression is None:
            return None
        part = _expression_graph(node, impl.expression)
        return None if part is None else Part(part, node.inputs)

    return rewritten(graph, visit)


def _expression_graph(node: Node, expression: Callable[..., Any]) -> Graph | None:
    """The trace of an expression on values like the operands; None where it does not apply."""

    def run_expression(*values: Any) -> list[Any]:
        found = expression(*values, **node.params)
        return [] if found is None else list(found) if isinstance(found, tuple) else [found]

    part = trace(run_expression, [a.aval for a in node.inputs], node.primitive.name)
    if not part.outputs:
        return None
    inner = expand_expressions(part)
    if [(a.aval.shape, a.aval.dtype) for a in inner.outputs] != [(v.aval.shape, v.aval.dtype) for v in node.outputs]:
        raise DefinitionError(f"{node.primitive.name}: its expression gives other shapes or dtypes than its kernel")
    return inner


def fold_constants(graph: Graph) -> Graph:
    """Compute elementwise nodes whose operands are all plain numbers."""

    def visit(node: Node) -> list[Atom] | None:
        if not isinstance(node.primitive.impl, Elementwise):
            return None
        if not all(isinstance(a, Constant) and a.is_literal for a in node.inputs):
            return None
        return [_computed(node, node.inputs)]

    return rewritten(graph, visit)


def _computed(node: Node, numbers: Sequence[Atom]) -> Constant:
    """The result of an elementwise node on plain numbers, from the body itself: nothing is compiled for it."""
    impl = node.primitive.impl
    assert isinstance(impl, Elementwise)
    with np.errstate(all="ignore"):
        value = impl.body(*[a.value[()] for a in numbers])  # type: ignore[union-attr]
        return Constant(np.asarray(value, node.outputs[0].aval.dtype))


def _is_number(atom: Atom, value: float) -> bool:
    return isinstance(atom, Constant) and atom.is_literal and bool(atom.value == value)


def erase_identities(graph: Graph, differentiated: bool = True) -> Graph:
    """Drop what changes nothing: copies, steps that undo each other, and stop_gradient where differentiation is over."""
    made_by: dict[Atom, Node] = {}

    def visit(node: Node) -> list[Atom] | Node | None:
        primitive, params = node.primitive, node.params
        x = node.inputs[0] if node.inputs else None
        if x is None:
            return None
        before = made_by.get(x)
        given = node
        if isinstance(primitive.impl, Elementwise):
            node = _unexpanded(node, made_by)
            repeated = _repeated_number(node, made_by)
            if repeated is not None:
                made_by[node.outputs[0]] = repeated
                return repeated
            x = node.inputs[0]
        if primitive is copy_of or (primitive is stop_gradient_view and differentiated):
            return [x]
        if primitive is convert and x.aval.dtype == params["dtype"]:
            return [x]
        if primitive in (reshape_to, expand) and x.aval.shape == params["shape"]:
            return [x]
        if primitive is permute and params["axes"] == tuple(range(len(params["axes"]))):
            return [x]
        if primitive in (slice_view, place) and all(entry == (None, None, None) for entry in params["index"]):
            return [x]
        if primitive is place and all(entry in (None, (None, None, None)) for entry in params["index"]):
            return Node(reshape_to, (x,), {"shape": params["shape"]}, node.outputs, node.where, node.backward)
        if primitive is reshape_to and before is not None and before.primitive is reshape_to:
            (source,) = before.inputs
            if source.aval.shape == params["shape"]:
                return [source]
        if primitive is multiply.primitive:
            y = node.inputs[1]
            shape = node.outputs[0].aval.shape
            if _is_number(y, 1.0) and x.aval.shape == shape:
                return [x]
            if _is_number(x, 1.0) and y.aval.shape == shape:
                return [y]
        for variable in node.outputs:
            made_by[variable] = node
        return None if node is given else node

    return rewritten(graph, visit)


def _unexpanded(node: Node, made_by: dict[Atom, Node]) -> Node:
    """The node with repeated plain numbers as the numbers, as long as another operand has the whole shape."""
    shape = node.outputs[0].aval.shape
    inputs = list(node.inputs)
    for i, atom in enumerate(inputs):
        before = made_by.get(atom)
        if before is None or before.primitive is not expand:
            continue
        source = before.inputs[0]
        whole = any(a.aval.shape == shape for k, a in enumerate(inputs) if k != i)
        if isinstance(source, Constant) and source.is_literal and whole:
            inputs[i] = source
    if all(map(operator.is_, inputs, node.inputs)):
        return node
    return Node(node.primitive, tuple(inputs), node.params, node.outputs, node.where, node.backward)


def _repeated_number(node: Node, made_by: dict[Atom, Node]) -> Node | None:
    """One repeated number in place of a node whose operands are plain numbers, some of them repeated; else None."""
    numbers, shape = [], None
    for atom in node.inputs:
        if isinstance(atom, Constant) and atom.is_literal:
            numbers.append(atom)
            continue
        before = made_by.get(atom)
        if before is None or before.primitive is not expand or not isinstance(before.inputs[0], Constant):
            return None
        if not before.inputs[0].is_literal or atom.aval.shape != node.outputs[0].aval.shape:
            return None
        numbers.append(before.inputs[0])
        shape = before.params["shape"]
    if shape is None:
        return None
    return Node(expand, (_computed(node, numbers),), {"shape": shape}, node.outputs, node.where, node.backward)


def move_signs(graph: Graph) -> Graph:
    """Let negations move towards the results, where sums take them in: then products that differ in sign are one
    product. All of it is exact; zeros keep their signs."""
    absorbed, movable = _signs_that_move(graph)
    negated: dict[Atom, Atom] = {}  # the results of negations, with their operands
    instead: dict[Atom, Atom] = {}
    nodes: list[Node] = []

    def append(
        like: Node, primitive: Primitive | None, inputs: tuple[Atom, ...], outputs: tuple[Variable, ...]
    ) -> None:
        assert primitive is not None
        nodes.append(Node(primitive, inputs, moved_params(like.params, instead), outputs, like.where, like.backward))

    def negate(like: Node, x: Atom) -> None:
        (out,) = like.outputs
        if x in negated:
            instead[out] = negated[x]
        else:
            append(like, negative.primitive, (x,), like.outputs)
            negated[out] = x

    for node in graph.nodes:
        primitive, outputs = node.primitive, node.outputs
        inputs = tuple([instead.get(a, a) for a in node.inputs])
        out = outputs[0].aval
        if primitive is negative.primitive:
            negate(node, inputs[0])
            continue
        # what is broadcast is negated where it is small; numbers of other dtypes may wrap around
        plain = [negated.get(a, a) if a.aval.shape == out.shape else a for a in inputs]
        turned = [a is not b for a, b in zip(plain, inputs, strict=True)]
        if primitive is multiply.primitive and _is_number(inputs[0], -1.0) and inputs[1].aval == out:
            negate(node, inputs[1])
        elif not any(turned) or out.dtype.kind != "f" or any(a.aval.dtype != out.dtype for a in inputs):
            append(node, primitive, inputs, outputs)
        elif primitive in (multiply.primitive, divide.primitive):
            if all(turned):
                append(node, primitive, tuple(plain), outputs)
            elif outputs[0] not in absorbed and node.inputs[turned.index(True)] not in movable:
                append(node, primitive, inputs, outputs)
            else:
                append(node, primitive, tuple(plain), (positive := Variable(out),))
                negate(node, positive)
        elif primitive is add.primitive and inputs[0] is inputs[1]:
            append(node, primitive, tuple(plain), (positive := Variable(out),))
            negate(node, positive)
        elif primitive is add.primitive and turned[1]:
            append(node, subtract.primitive, (inputs[0], plain[1]), outputs)
        elif primitive is add.primitive:
            append(node, subtract.primitive, (inputs[1], plain[0]), outputs)
        elif primitive is subtract.primitive and turned[1]:
            append(node, add.primitive, (inputs[0], plain[1]), outputs)
        else:
            append(node, primitive, inputs, outputs)
    return Graph(graph.name, list(graph.inputs), nodes, [instead.get(a, a) for a in graph.outputs])


def _signs_that_move(graph: Graph) -> tuple[set[Atom], set[Atom]]:
    """The values that are only used where a negation of them is taken in; and those of which at most one use would need
    a negation after it, so that moving it there makes no more negations."""
    users: dict[Atom, list[Node]] = {}
    for node in graph.nodes:
        for a in node.inputs:
            users.setdefault(a, []).append(node)
    outputs = set(graph.outputs)
    absorbed: set[Atom] = set()
    movable: set[Atom] = set()
    for node in reversed(graph.nodes):
        out = node.outputs[0]
        after = fixed = 0
        for user in users.get(out, []):
            if user.primitive in (multiply.primitive, divide.primitive):
                after += user.outputs[0] not in absorbed
            elif user.primitive is subtract.primitive:
                fixed += user.inputs[0] is out
            else:
                fixed += user.primitive not in (add.primitive, negative.primitive)
        if not fixed and out not in outputs:
            if after <= 1:
                movable.add(out)
            if not after:
                absorbed.add(out)
    return absorbed, movable


def common_subexpressions(graph: Graph) -> Graph:
    """Compute each value once. Safe here alone, where differentiation is over: y and y.detach() are two until then."""
    seen: dict[Any, tuple[Variable, ...]] = {}

    def visit(node: Node) -> list[Atom] | None:
        if isinstance(node.primitive.impl, Host) and node.primitive.outputs > 1:
            return None
        params = [(k, v.hex() if type(v) is float else v) for k, v in node.params.items()]  # 0.0 is not -0.0
        key = (node.primitive, tuple([_identity(a) for a in node.inputs]), *params)
        found = seen.setdefault(key, node.outputs)
        return None if found is node.outputs else list(found)

    return rewritten(graph, visit)


def same_program(a: Graph, b: Graph, stand_ins: Mapping[int, Atom] = MappingProxyType({})) -> bool:
    """Whether two graphs compute the same from the same arguments: node by node, constants included. In ``b`` other atoms may
    stand for captured tensors, by the ids of these."""
    if len(a.nodes) != len(b.nodes) or len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
        return False
    other: dict[Atom, Atom] = dict(zip(a.inputs, b.inputs, strict=True))

    def same(x: Atom, y: Atom) -> bool:
        if isinstance(x, Constant) and x.source is not None and stand_ins.get(id(x.source)) is y:
            return True
        if not isinstance(x, Constant) or not isinstance(y, Constant):
            return other.get(x) is y
        if x.source is not None and x.source is y.source:
            return True
        return x.value is y.value or (
            x.value.dtype == y.value.dtype and x.value.shape == y.value.shape and x.value.tobytes() == y.value.tobytes()
        )

    for n, m in zip(a.nodes, b.nodes, strict=True):
        if n.primitive is not m.primitive or n.params != m.params or len(n.inputs) != len(m.inputs):
            return False
        if not all(map(same, n.inputs, m.inputs)):
            return False
        other.update(zip(n.outputs, m.outputs, strict=True))
    return all(map(same, a.outputs, b.outputs))


def _identity(atom: Atom) -> Any:
    if isinstance(atom, Constant) and atom.is_literal:
        return (atom.value.dtype, atom.value.tobytes())
    return id(atom.value) if isinstance(atom, Constant) else atom
