"""Loop emission: from an elementwise graph, or a reduction step, to the readable source of a kernel.

Arguments of these kernels are buffers: any rank, read through ``load``, ``store`` and ``size``, so that one contiguous
and one strided form an operation and dtype are enough; operands of one element have a form of their own, which keeps the
loop contiguous. The layouts of the operands, one letter each:

- ``c``: C-contiguous, of the shape of the result;
- ``b``: one element for all;
- ``s``: anything that broadcasts. One such operand makes the whole kernel the strided form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.core.aval import BOOL, FLOAT32, INT64
from jitgrad.core.graph import Atom, Constant, Graph, Node, Variable
from jitgrad.core.primitive import Elementwise, Reduce
from jitgrad.errors import DefinitionError
from jitgrad.kernels.text import inline

__all__ = ["emit_elementwise", "emit_reduction", "indent", "literal", "node_lines"]


def literal(value: Any, dtype: np.dtype[Any]) -> str:
    """A number as source text in the dtype of the kernel."""
    number = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(number, float) and not math.isfinite(number):
        text = "NAN" if math.isnan(number) else "INF" if number > 0 else "-INF"
    else:
        text = repr(number)
    return f"float32({text})" if dtype == FLOAT32 else text


def node_lines(node: Node, arguments: Sequence[str], target: str) -> list[str]:
    """One elementwise node, written out as assignments that end with ``target``."""
    impl = node.primitive.impl
    if not isinstance(impl, Elementwise):
        raise DefinitionError(f"{node.primitive} is not elementwise and cannot stand in an elementwise kernel")
    (out,) = node.outputs
    single = FLOAT32 in [a.aval.dtype for a in (*node.inputs, out)]
    lines = inline(impl.body, list(arguments), target, "float32" if single else None)
    value = lines[-1].removeprefix(f"{target} = ")
    if out.aval.dtype == FLOAT32:
        lines[-1] = f"{target} = float32({value})"
    elif out.aval.dtype == BOOL:
        lines[-1] = f"{target} = boolean({value})"
    elif out.aval.dtype.kind in "iu" and out.aval.dtype != INT64:  # integers wrap around at their own width
        lines[-1] = f"{target} = {out.aval.dtype.name}({value})"
    return lines


def _statements(graph: Graph, elements: dict[Atom, str]) -> list[str]:
    """The nodes of an elementwise graph, written out; ``elements`` learns the names of their results."""
    lines: list[str] = []

    def name(atom: Atom) -> str:
        if isinstance(atom, Constant):
            return literal(atom.value, atom.aval.dtype)
        return elements[atom]

    for count, node in enumerate(graph.nodes):
        target = elements[node.outputs[0]] = f"t{count}"
        lines += node_lines(node, [name(a) for a in node.inputs], target)
    return lines


def emit_elementwise(name: str, graph: Graph, names: Sequence[str], outputs: Sequence[str], layouts: str) -> str:
    """The kernel ``name(*names, *outputs)`` of an elementwise graph; outputs are contiguous and fresh."""
    strided = "s" in layouts
    elements: dict[Atom, str] = {}
    before: list[str] = []
    loads: list[str] = []
    rows: list[str] = []
    used = graph.used_inputs()
    for variable, array, layout in zip(graph.inputs, names, layouts, strict=True):
        elements[variable] = element = f"{array}_i"
        if variable not in used:
            continue
        if layout == "b":
            before.append(f"{element} = load({array}, 0)")
        elif not strided:
            loads.append(f"{element} = load({array}, i)")
        else:
            before.append(f"{array}_step = step({array}, {outputs[0]})")
            rows.append(f"{array}_row = origin({array}, {outputs[0]}, row)")
            loads.append(f"{element} = load({array}, {array}_row + i * {array}_step)")
    body = loads + _statements(graph, elements)
    index = "row * n + i" if strided else "i"
    for atom, array in zip(graph.outputs, outputs, strict=True):
        value = elements[atom] if isinstance(atom, Variable) else literal(atom.value, atom.aval.dtype)
        body.append(f"store({array}, {index}, {value})")
    lines = [f"def {name}({', '.join([*names, *outputs])}):"]
    if strided:
        lines += indent([f"n = last_extent({outputs[0]})", *before, f"for row in range(rows({outputs[0]})):"], 1)
        lines += indent([*rows, "for i in range(n):"], 2)
        lines += indent(body, 3)
    else:
        lines += indent([f"n = size({outputs[0]})", *before, "for i in range(n):"], 1)
        lines += indent(body, 2)
    return "\n".join(lines) + "\n"


def indent(lines: Sequence[str], depth: int) -> list[str]:
    """Lines of source text, some levels deeper."""
    return ["    " * depth + line for line in lines]


def emit_reduction(name: str, impl: Reduce, dtype: np.dtype[Any], finish: Callable[..., Any] | None) -> str:
    """The kernel ``name(x, acc, out, outer, n, inner)``: x is contiguous, of these extents, and folded over the middle one;
    acc holds ``inner`` accumulators."""
    accumulator = np.dtype(impl.accumulator(dtype))
    start = literal(impl.start(dtype), accumulator)
    kind = "float32" if accumulator == FLOAT32 else None
    along = inline(impl.step, ["total", "x_i"], "total", kind)
    across = inline(impl.step, ["old", "x_i"], "new", kind)
    end = inline(finish, ["total", "n"], "result", kind) if finish else ["result = total"]
    end_across = inline(finish, ["old", "n"], "result", kind) if finish else ["result = old"]
    lines = [
        f"def {name}(x, acc, out, outer, n, inner):",
        *indent(["if inner == 1:"], 1),
        *indent(["for o in range(outer):"], 2),
        *indent(
            [f"total = {accumulator.name if accumulator != BOOL else 'boolean'}({start})", "for k in range(n):"], 3
        ),
        *indent(["x_i = load(x, o * n + k)", *along], 4),
        *indent([*end, "store(out, o, result)"], 3),
        *indent(["else:"], 1),
        *indent(["for o in range(outer):"], 2),
        *indent(["for i in range(inner):"], 3),
        *indent([f"store(acc, i, {start})"], 4),
        *indent(["for k in range(n):", "    row = (o * n + k) * inner", "    for i in range(inner):"], 3),
        *indent(["old = load(acc, i)", "x_i = load(x, row + i)", *across, "store(acc, i, new)"], 5),
        *indent(["for i in range(inner):"], 3),
        *indent(["old = load(acc, i)", *end_across, "store(out, o * inner + i, result)"], 4),
    ]
    return "\n".join(lines) + "\n"
