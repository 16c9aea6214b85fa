"""Matrix products that need not be made whole: those of operands that repeat.

A product with equal columns is one column, and likewise for rows. Gradients of sums of products are such: broadcasting is
the transpose of a sum. (The sum of a product as a product of sums would save more, and is not done: where an operand is
infinite or its sum overflows, it differs.)
"""

from __future__ import annotations

from jitgrad.compiler.rewriting import Part, rewritten
from jitgrad.core.graph import Atom, Graph, Node
from jitgrad.core.primitive import Value
from jitgrad.core.trace import trace
from jitgrad.ops.linear import expand, kept_shape
from jitgrad.ops.products import matrix_product

__all__ = ["repeat_products"]


def repeat_products(graph: Graph) -> Graph:
    """Repeat products instead of operands: each element is the same sum as before."""
    if not any(node.primitive is matrix_product for node in graph.nodes):
        return graph
    made_by: dict[Atom, Node] = {}

    def visit(node: Node) -> Part | None:
        made_by.update(dict.fromkeys(node.outputs, node))
        return _product_of_repeated(node, made_by) if node.primitive is matrix_product else None

    return rewritten(graph, visit)


def _free_axes(product: Node) -> tuple[int, int]:
    """The axis of the first operand that becomes the rows of the product, and that of the second for the columns."""
    x, y = product.inputs
    return x.aval.ndim - (1 if product.params["ta"] else 2), y.aval.ndim - (2 if product.params["tb"] else 1)


def _product_of_repeated(product: Node, made_by: dict[Atom, Node]) -> Part | None:
    """A product whose rows or columns repeat, since an operand was broadcast along them, as a broadcast product."""
    sources = list(product.inputs)
    shapes: list[tuple[int, ...] | None] = [None, None]  # of the operands that are broadcast
    free = _free_axes(product)
    for i, axis in enumerate(free):
        before = made_by.get(sources[i])
        if before is not None and before.primitive is expand and _repeats(before, axis):
            (sources[i],), shapes[i] = before.inputs, before.params["shape"]
    if shapes == [None, None]:
        return None

    def broadcast_product(*operands: Value) -> list[Value]:
        narrow = [
            operand if shape is None else expand(operand, shape=kept_shape(shape, (axis,)))
            for operand, shape, axis in zip(operands, shapes, free, strict=True)
        ]
        made = matrix_product(*narrow, **product.params)
        sides = [
            n if shape is None else shape[axis] for n, shape, axis in zip(made.shape[-2:], shapes, free, strict=True)
        ]
        return [expand(made, shape=(*made.shape[:-2], *sides))]

    return Part(trace(broadcast_product, [a.aval for a in sources], product.primitive.name), sources)


def _repeats(broadcast: Node, axis: int) -> bool:
    """Whether all elements along an axis are one, more than once."""
    (source,), shape = broadcast.inputs, broadcast.outputs[0].aval.shape
    own = axis - (len(shape) - source.aval.ndim)
    return shape[axis] > 1 and (own < 0 or source.aval.shape[own] == 1)
