"""Running a compiled graph: fused kernels, and between them the few operations that run on their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.chunks import Chunked
from jitgrad.compiler.emit import Emitted, emit
from jitgrad.compiler.fuse import Plan, can_fuse, plan
from jitgrad.compiler.fused_kernel import FusedKernel
from jitgrad.compiler.kept_programs import content_of, is_worth_keeping, keep, kept
from jitgrad.compiler.passes import simplify
from jitgrad.core.graph import Atom, Constant, Graph, Node, Variable
from jitgrad.eager import run as run_primitive
from jitgrad.errors import JitgradError
from jitgrad.kernels.kernel import entry_point
from jitgrad.kernels.threads import get_num_threads

__all__ = ["Executable"]

Array = np.ndarray[Any, Any]


class FusedStep:
    """One fused kernel of the program; how it was fused and emitted is found again when somebody asks."""

    def __init__(self, name: str, graph: Callable[[], Graph], kernel: FusedKernel, captured: Sequence[Constant]):
        self._name = name
        self._graph = graph
        self.kernel = kernel
        self.captured = captured
        self.entry = entry_point(kernel.name, kernel.source, kernel.signature, kernel.extras)
        self.extents = np.array(kernel.extents, np.int64)
        self.numbers = np.array(kernel.numbers, np.float64)
        self.call = self._caller()

    @classmethod
    def compiled(cls, name: str, graph: Graph) -> FusedStep:
        """The kernel of a graph."""
        planned = plan(graph.verify())
        emitted = emit(name, planned)
        step = cls(name, lambda: graph, FusedKernel.of(emitted), emitted.captured)
        step.plan, step.emitted = planned, emitted
        return step

    @functools.cached_property
    def graph(self) -> Graph:
        """The operations."""
        return self._graph()

    @functools.cached_property
    def plan(self) -> Plan:
        """What is fused with what."""
        return plan(self.graph.verify())

    @functools.cached_property
    def emitted(self) -> Emitted:
        """The source with all that is known of it."""
        return emit(self._name, self.plan)

    @functools.cached_property
    def _chunked(self) -> Chunked:
        return Chunked(self.emitted)

    def _divided(self, *arguments: Any) -> Any:
        return self._chunked(*arguments)

    def _caller(self) -> Callable[..., Any]:
        """A function of the inputs that allocates, calls and gives the list of outputs, written out as source."""
        kernel = self.kernel
        names = [f"a{k}" for k in range(kernel.inputs)]
        space: dict[str, Any] = {
            "empty": np.empty,
            "entry": self.entry,
            "extents": self.extents,
            "numbers": self.numbers,
        }
        lines = [f"def call({', '.join(names)}):"]
        for k, constant in enumerate(self.captured):
            space[f"captured{k}"] = constant.current
            space["contiguous"] = _contiguous
            lines.append(f"    b{k} = contiguous(captured{k}())")
        written = [b for k, b in enumerate(kernel.outputs) if k != kernel.returned]
        for b in written:
            space[f"dtype_{b.name}"] = b.dtype
            lines.append(f"    {b.name} = empty({b.shape}, dtype_{b.name})")
        arguments = [*names, *(f"b{k}" for k in range(len(self.captured))), "extents", "numbers"]
        arguments += [b.name for b in written]
        if kernel.work is not None:
            space["byte"] = np.dtype(np.int8)
            arguments.append(f"empty({kernel.work}, byte)")
        value = f"{kernel.outputs[kernel.returned].name} = " if kernel.returned is not None else ""
        if kernel.divides:
            space["threads"], space["divided"] = get_num_threads, self._divided
            lines.append("    run = entry if threads() == 1 else divided")
        run = f"{value}{'run' if kernel.divides else 'entry'}({', '.join(arguments)})"
        if kernel.raises:
            space["errors"], space["exact"] = (ValueError, IndexError), self._exact_error
            lines += ["    try:", f"        {run}", "    except errors as error:"]
            lines.append(f"        raise exact(error, [{', '.join(names)}]) from None")
        else:
            lines.append(f"    {run}")
        lines.append(f"    return [{', '.join(b.name for b in kernel.outputs)}]")
        exec("\n".join(lines), space)
        return space["call"]  # type: ignore[no-any-return]

    def _exact_error(self, error: Exception, arrays: Sequence[Array]) -> Exception:
        """What a kernel could not compute, found by running its operations one after the other."""
        values: dict[Atom, Any] = dict(zip(self.graph.inputs, arrays, strict=True))
        try:
            for node in self.graph.nodes:
                operands = [a.current() if isinstance(a, Constant) else values[a] for a in node.inputs]
                found = run_primitive(node.primitive, operands, node.params)
                values.update(zip(node.outputs, found if node.primitive.outputs > 1 else [found], strict=True))
        except JitgradError as exact:
            return exact
        return error

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs for contiguous inputs; a returned number as a 0-d array."""
        outputs = self.call(*arrays)
        returned = self.kernel.returned
        if returned is not None:
            outputs[returned] = np.array(outputs[returned])
        return outputs  # type: ignore[no-any-return]


class HostStep:
    """One operation that is not fused."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Its results."""
        found = run_primitive(self.node.primitive, arrays, self.node.params)
        results = list(found) if self.node.primitive.outputs > 1 else [found]
        # results of the program share no memory with its inputs, nor with each other
        return [r if _is_own(r, arrays) else np.array(r, order="C") for r in results]


def _is_own(array: Array, others: Sequence[Array]) -> bool:
    """Whether an array is contiguous and owns its memory."""
    return array.base is None and array.flags.c_contiguous and all(array is not a for a in others)


def _contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


class Executable:
    """A traced graph as steps over numbered slots; the first slots are the inputs.

    Large graphs that became one kernel are kept on disk, so that the next process need not simplify, fuse and emit them.
    """

    def __init__(self, name: str, traced: Graph) -> None:
        self.name = name
        self._traced = traced
        content = content_of(traced) if is_worth_keeping(traced) else None
        found = None if content is None else kept(name, content)
        self.steps: list[tuple[FusedStep | HostStep, list[int], list[int]]] = []
        self._slots: dict[Atom, int] = {v: i for i, v in enumerate(traced.inputs)}
        self._constants: list[tuple[int, Constant]] = []
        self.copied = False
        if found is not None:
            count = len(traced.inputs)
            self.single: FusedStep | None = FusedStep(name, lambda: self.graph, *found)
            self.outputs = list(range(count, count + len(traced.outputs)))
            self.steps.append((self.single, list(range(count)), self.outputs))
            return
        self._lower()
        self.outputs = [self._slot(a) for a in self.graph.outputs]
        self.single = self._single_kernel()
        if content is not None and self.single is not None:
            keep(name, content, self.single.kernel, self.single.captured)

    @functools.cached_property
    def graph(self) -> Graph:
        """The simplified graph."""
        return simplify(self._traced)

    def _slot(self, atom: Atom) -> int:
        found = self._slots.get(atom)
        if found is None:
            found = self._slots[atom] = len(self._slots)
            if isinstance(atom, Constant):
                self._constants.append((found, atom))
        return found

    def _lower(self) -> None:
        """Cut the graph into levels: fused nodes, then the operations that stand between them and the next level."""
        level: dict[Atom, int] = {}
        fused: dict[int, list[Node]] = {}
        alone: dict[int, list[Node]] = {}
        on_its_own: set[Atom] = set()
        for node in self.graph.nodes:
            apart = not can_fuse(node)
            where = max((level.get(a, 0) + (not apart and a in on_its_own) for a in node.inputs), default=0)
            (alone if apart else fused).setdefault(where, []).append(node)
            for v in node.outputs:
                level[v] = where
            if apart:
                on_its_own.update(node.outputs)
        last = max([*fused, *alone, 0])
        for where in range(last + 1):
            if where in fused:
                self._add_fused(fused[where], len(self.steps))
            for node in alone.get(where, ()):
                self.steps.append(
                    (HostStep(node), [self._slot(a) for a in node.inputs], [self._slot(v) for v in node.outputs])
                )
        produced = {v for n in self.graph.nodes for v in n.outputs}
        loose = [a for a in self.graph.outputs if a not in produced]
        self.copied = bool(loose) or len(set(self.graph.outputs)) < len(self.graph.outputs)

    def _add_fused(self, nodes: list[Node], number: int) -> None:
        made = {v for n in nodes for v in n.outputs}
        inputs = list(dict.fromkeys(a for n in nodes for a in n.inputs if isinstance(a, Variable) and a not in made))
        whole = len(nodes) == len(self.graph.nodes)
        if whole:  # it takes the arguments as they come, and gives the results in their order
            inputs = list(self.graph.inputs)
        inside = {id(n) for n in nodes}
        read = {a for n in self.graph.nodes if id(n) not in inside for a in n.inputs} | set(self.graph.outputs)
        outputs: list[Atom] = [v for n in nodes for v in n.outputs if v in read]
        if whole:
            outputs = list(dict.fromkeys(a for a in self.graph.outputs if a in made))
        graph = Graph(self.name, inputs, nodes, outputs)
        step = FusedStep.compiled(f"{self.name}_{number}" if number else self.name, graph)
        self.steps.append((step, [self._slot(a) for a in inputs], [self._slot(v) for v in outputs]))

    def _single_kernel(self) -> FusedStep | None:
        """The usual case: one kernel that takes the inputs as they are and gives the outputs."""
        if self.copied or self._constants or len(self.steps) != 1:
            return None
        step, sources, targets = self.steps[0]
        if isinstance(step, FusedStep) and sources == list(range(len(self.graph.inputs))) and targets == self.outputs:
            return step
        return None

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs, as fresh arrays, for contiguous inputs of the traced shapes and dtypes."""
        if self.single is not None:
            return self.single(arrays)
        values: list[Any] = [*arrays, *[None] * (len(self._slots) - len(arrays))]
        for i, constant in self._constants:
            values[i] = _contiguous(constant.current())
        for step, sources, targets in self.steps:
            for i, result in zip(targets, step([values[i] for i in sources]), strict=True):
                values[i] = result
        if not self.copied:
            return [values[i] for i in self.outputs]
        fresh = set(self.outputs) - set(range(len(arrays))) - {i for i, _ in self._constants}
        results = []
        for i in self.outputs:
            results.append(values[i] if i in fresh else values[i].copy())
            fresh.discard(i)
        return results

    @property
    def kernels(self) -> list[FusedStep]:
        """The fused kernels, in order."""
        return [step for step, _, _ in self.steps if isinstance(step, FusedStep)]
