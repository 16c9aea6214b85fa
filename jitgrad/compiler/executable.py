"""Running a compiled graph: fused kernels, and between them the few operations that run on their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.chunks import Chunked, is_worth_dividing
from jitgrad.compiler.emit import Emitted, emit
from jitgrad.compiler.fuse import can_fuse, plan
from jitgrad.core.graph import Atom, Constant, Graph, Node, Variable
from jitgrad.eager import run as run_primitive
from jitgrad.errors import JitgradError, ShapeError
from jitgrad.kernels.kernel import entry_point
from jitgrad.kernels.threads import get_num_threads

__all__ = ["Executable"]

Array = np.ndarray[Any, Any]


class FusedStep:
    """One fused kernel of the program."""

    def __init__(self, name: str, graph: Graph) -> None:
        self.graph = graph
        self.plan = plan(graph.verify())
        self.emitted: Emitted = emit(name, self.plan)
        emitted = self.emitted
        self.entry = entry_point(emitted.name, emitted.source, emitted.signature, emitted.extras)
        self.extents = np.array(emitted.extents, np.int64)
        self.numbers = np.array(emitted.numbers, np.float64)
        self.call = self._caller()

    def _caller(self) -> Callable[..., Any]:
        """A function of the inputs that allocates, calls and gives the list of outputs, written out as source."""
        emitted = self.emitted
        names = [f"a{k}" for k in range(len(self.graph.inputs))]
        space: dict[str, Any] = {
            "empty": np.empty,
            "entry": self.entry,
            "extents": self.extents,
            "numbers": self.numbers,
        }
        lines = [f"def call({', '.join(names)}):"]
        for k, constant in enumerate(emitted.captured):
            space[f"captured{k}"] = constant.current
            space["contiguous"] = _contiguous
            lines.append(f"    b{k} = contiguous(captured{k}())")
        written = [b for k, b in enumerate(emitted.outputs) if k != emitted.returned]
        for b in written:
            space[f"dtype_{b.name}"] = b.dtype
            lines.append(f"    {b.name} = empty({b.shape}, dtype_{b.name})")
        arguments = [*names, *(f"b{k}" for k in range(len(emitted.captured))), "extents", "numbers"]
        arguments += [b.name for b in written]
        if emitted.workspace.places:
            space["byte"] = np.dtype(np.int8)
            arguments.append(f"empty({emitted.workspace.nbytes}, byte)")
        value = f"{emitted.outputs[emitted.returned].name} = " if emitted.returned is not None else ""
        if is_worth_dividing(emitted):
            space["threads"], space["chunked"] = get_num_threads, Chunked(emitted)
            lines.append("    run = entry if threads() == 1 else chunked")
        called = "run" if "chunked" in space else "entry"
        run = f"{value}{called}({', '.join(arguments)})"
        if "raise " in emitted.helpers:
            space["errors"], space["exact"] = (np.linalg.LinAlgError, IndexError, ShapeError), self._exact_error
            lines += ["    try:", f"        {run}", "    except errors as error:"]
            lines.append(f"        raise exact(error, [{', '.join(names)}]) from None")
        else:
            lines.append(f"    {run}")
        lines.append(f"    return [{', '.join(b.name for b in emitted.outputs)}]")
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
        returned = self.emitted.returned
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
    """A graph as steps over numbered slots; the first slots are the inputs."""

    def __init__(self, name: str, graph: Graph) -> None:
        self.name = name
        self.graph = graph
        self.steps: list[tuple[FusedStep | HostStep, list[int], list[int]]] = []
        self._slots: dict[Atom, int] = {v: i for i, v in enumerate(graph.inputs)}
        self._constants: list[tuple[int, Constant]] = []
        self._lower()
        self.outputs = [self._slot(a) for a in graph.outputs]
        self.single = self._single_kernel()

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
        if loose or len(set(self.graph.outputs)) < len(self.graph.outputs):
            self.copied = True
        else:
            self.copied = False

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
        step = FusedStep(f"{self.name}_{number}" if number else self.name, graph)
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
    def kernels(self) -> list[Emitted]:
        """The fused kernels, in order."""
        return [step.emitted for step, _, _ in self.steps if isinstance(step, FusedStep)]
