"""Matrix products that need not be made whole: sums of products, and products of operands that repeat.

The sum over the columns of ``x @ y`` is ``x`` times the sum over the columns of ``y``, and likewise for rows; a product
with equal columns is one column. Gradients are full of both, since broadcasting and sums are each other's transposes:
``(points - centre) @ w`` gives a sum of a product, ``sum(points @ w)`` a product with repeated columns.
"""

from __future__ import annotations

from jitgrad.compiler.rewriting import Part, rewritten
from jitgrad.core.graph import Atom, Graph, Node
from jitgrad.core.primitive import Value
from jitgrad.core.trace import trace
from jitgrad.ops.elementwise import negative
from jitgrad.ops.linear import expand, kept_shape, reshape_to, sum_over
from jitgrad.ops.product_primitives import matrix_product, product_sums

__all__ = ["reduce_products"]


def reduce_products(graph: Graph) -> Graph:
    """Sum operands instead of products, and repeat products instead of operands.

    Only the rounding of sums changes: where a product of sums is not finite, the kernel adds up the whole product.
    """
    if not any(node.primitive is matrix_product for node in graph.nodes):
        return graph
    made_by: dict[Atom, Node] = {}
    uses: dict[Atom, int] = {}
    for atom in (*(a for node in graph.nodes for a in node.inputs), *graph.outputs):
        uses[atom] = uses.get(atom, 0) + 1

    def visit(node: Node) -> Part | None:
        made_by.update(dict.fromkeys(node.outputs, node))
        if node.primitive is sum_over:
            return _sum_of_product(node, made_by, uses)
        return _product_of_repeated(node, made_by) if node.primitive is matrix_product else None

    return rewritten(graph, visit)


def _sum_of_product(total: Node, made_by: dict[Atom, Node], uses: dict[Atom, int]) -> Part | None:
    """A sum over rows or columns of a product that nobody else needs, as the product of sums."""
    node, negated = made_by.get(total.inputs[0]), False
    if node is not None and node.primitive is negative.primitive and uses[node.outputs[0]] == 1:
        node, negated = made_by.get(node.inputs[0]), True
    if node is None or node.primitive is not matrix_product or uses[node.outputs[0]] != 1:
        return None
    params, axes, aval = node.params, total.params["axes"], node.outputs[0].aval
    summed = tuple([axis in axes and aval.shape[axis] > 1 for axis in (aval.ndim - 2, aval.ndim - 1)])
    if not any(summed) or aval.dtype.kind != "f":
        return None

    def product_of_sums(x: Value, y: Value) -> list[Value]:
        narrow = [
            reshape_to(sum_over(v, axes=(axis,)), shape=kept_shape(v.shape, (axis,))) if is_summed else v
            for v, is_summed, axis in zip((x, y), summed, _free_axes(node), strict=True)
        ]
        made = product_sums(matrix_product(*narrow, **params), x, y, **params, axes=summed, negated=negated)
        return [sum_over(made, axes=axes)]

    return Part(trace(product_of_sums, [a.aval for a in node.inputs], node.primitive.name), node.inputs)


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
