"""What the compiler made of a function, in words: stages, loops, products, and what they move and compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jitgrad.compiler.executable import Executable, FusedStep
from jitgrad.compiler.fuse import Call, Loop, Plan
from jitgrad.core.graph import Atom, Node
from jitgrad.core.primitive import Elementwise, Reduce

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """Figures of a compiled program; as a string, the whole story."""

    kernels: int
    loops: int
    products: int
    apart: tuple[str, ...]  # operations that run on their own, between kernels
    temporaries: int
    temporary_bytes: int
    bytes_moved: int  # arguments and results, once each
    operations: int  # floating-point operations of elementwise nodes, reductions and products
    text: str

    def __str__(self) -> str:
        return self.text


def _nbytes(atom: Any) -> int:
    return int(atom.aval.size) * int(atom.aval.dtype.itemsize)


def _operations(node: Node) -> int:
    """One for each arithmetic step of an element, a call of an elementary function counted as one."""
    out = node.outputs[0].aval
    impl = node.primitive.impl
    if isinstance(impl, Elementwise):
        return int(out.size)
    if isinstance(impl, Reduce):
        return int(node.inputs[0].aval.size)
    if node.primitive.name.startswith(("matrix", "vector")):
        inner = node.inputs[0].aval.size * max(1, node.inputs[1].aval.size) if out.ndim == 0 else 0
        k = node.inputs[0].aval.shape[-1] if node.inputs[0].aval.ndim else 1
        return int(inner or 2 * out.size * k)
    return 0


def _names(loop: Loop) -> str:
    kinds = {"store": "stores", "reduce": "reduces", "dot": "sums products", "scatter": "scatters"}
    return ", ".join(f"{kinds[s.kind]} {s.target.aval!r}" for s in loop.sinks)


def _stage_lines(plan: Plan) -> list[str]:
    lines = []
    for number, stage in enumerate(plan.stages):
        for run in stage:
            if isinstance(run, Call):
                shapes = " by ".join(repr(a.aval) for a in run.node.inputs)
                lines.append(f"    stage {number}: {run.node.primitive.name} of {shapes}")
            else:
                space = " x ".join(run.space) or "one element"
                lines.append(f"    stage {number}: loop over {space}: {_names(run)}")
    return lines


def explain(executable: Executable) -> Explanation:
    """The story of a compiled program."""
    lines = [f"{executable.name}: {len(executable.graph.nodes)} operations"]
    loops = products = temporaries = temporary_bytes = 0
    apart: list[str] = []
    for step, _, _ in executable.steps:
        if isinstance(step, FusedStep):
            plan, emitted = step.plan, step.emitted
            fused = [run for stage in plan.stages for run in stage]
            loops += sum(isinstance(run, Loop) for run in fused)
            products += sum(isinstance(run, Call) for run in fused)
            places = emitted.workspace.places
            temporaries += len(places)
            temporary_bytes += sum(t.nbytes for t in places)
            symbols = ", ".join(f"n{k}={v}" for k, v in enumerate(emitted.extents))
            lines.append(f"  kernel {emitted.name} ({len(step.graph.nodes)} operations fused; {symbols})")
            lines += _stage_lines(plan)
            lines += [f"    temporary {t.name}: {t.dtype.name}{list(t.shape)}, {t.nbytes} bytes" for t in places]
        else:
            apart.append(step.node.primitive.name)
            where = f" at {step.node.where}" if step.node.where else ""
            lines.append(f"  {step.node.primitive.name} on its own{where}: it is not made of loops that could be fused")
    atoms: list[Atom] = [*executable.graph.inputs, *executable.graph.outputs]
    moved = sum(map(_nbytes, atoms))
    operations = sum(map(_operations, executable.graph.nodes))
    lines.append(f"  moves at least {moved} bytes, computes about {operations} floating-point operations")
    kernels = len(executable.kernels)
    divided = [step.kernel.name for step in executable.kernels if step.kernel.divides]
    if divided:
        lines.append(f"  set_num_threads: threads can share {', '.join(divided)}")
    return Explanation(
        kernels, loops, products, tuple(apart), temporaries, temporary_bytes, moved, operations, "\n".join(lines)
    )
