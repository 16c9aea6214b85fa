"""Gradients of jitted calls: one node for a call, whose backward is a compiled function of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.autodiff.node import GradNode, NodeRecorder
from jitgrad.autodiff.rules import Mask
from jitgrad.compiler.passes import erase_identities, same_program
from jitgrad.config import overrides
from jitgrad.core.aval import BOOL, ShapedArray, aval_of, make_aval
from jitgrad.core.dispatch import constant
from jitgrad.core.graph import Constant, Graph, Tracer
from jitgrad.core.trace import current_graph, is_within_trace, standing_in, traces
from jitgrad.eager import forget_plans
from jitgrad.errors import GraphError, InPlaceError
from jitgrad.kernels.guards import USABLE
from jitgrad.kernels.kernel import kernel_mode
from jitgrad.ops.linear import expand
from jitgrad.ops.selection import where
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.operands import wrap
from jitgrad.tensor.tensor import make
from jitgrad.transforms.arguments import Arguments, is_weak
from jitgrad.transforms.compiled import Compiled, Pullback
from jitgrad.transforms.regime import name_inputs
from jitgrad.transforms.reverse_mode import vjp_or_none
from jitgrad.transforms.trees import flatten

__all__ = ["another_program", "pullback_function", "record"]


def record(
    name: str,
    arguments: Arguments,
    inputs: Sequence[Tensor],
    pullback: Pullback,
    tensors: Sequence[Tensor],
) -> None:
    """Make those of the results ``tensors`` that have a gradient the results of one node for the whole call, on ``inputs``:
    arguments and captured tensors."""
    for tensor, origin in zip(tensors, pullback.origins, strict=True):
        tensor._origin = origin
    if not pullback.needs:
        return
    recorder = pullback.recorder
    if recorder is None:
        recorder = pullback.recorder = _CallRecorder(name, arguments, inputs, pullback, [t._aval for t in tensors])
    edges = tuple([inputs[i]._edge for i in pullback.needs])
    slots = tuple([inputs[i]._slot for i in pullback.needs])
    node = GradNode(recorder, edges, tuple([t._value for t in inputs]), slots if any(slots) else None)
    for slot, (tensor, depends) in enumerate(zip(tensors, pullback.depends, strict=True)):
        if any(depends):
            tensor._edge, tensor._slot = node, slot


class _CallRecorder(NodeRecorder):
    """The recorder of the nodes of jitted calls with one pullback. They keep the arguments, and after them the captured
    tensors."""

    compiled = True
    each_masked = True

    def __init__(
        self,
        name: str,
        arguments: Arguments,
        inputs: Sequence[Tensor],
        pullback: Pullback,
        out_avals: list[ShapedArray],
    ) -> None:
        count = len(arguments.leaves)
        self.pullback = pullback
        self.needs = needs = pullback.needs
        self.given = [*range(count), *pullback.hidden]  # what the gradient is given
        self.weak = [is_weak(v) for v in arguments.leaves] + [inputs[i]._weak for i in pullback.hidden]
        self.sources = [(i, t) for i, t in enumerate(inputs) if i >= count and i not in pullback.hidden]
        self.name = name
        self.out_avals = tuple(make_aval(a.shape, a.dtype) for a in out_avals)
        self.outputs = len(out_avals)
        self.fresh = (True,) * len(needs)
        # the pullback, for cotangents that are arrays without masks, by which results have one
        self._compiled: dict[tuple[bool, ...], Compiled] = {}

    def depends(self, slot: int) -> Sequence[bool]:
        """On which of the tracked arguments and captured tensors a result depends."""
        return self.pullback.depends[slot]

    def _cotangents_of(self, g: Any) -> list[Any]:
        """The cotangents of all results; None where nothing arrived, which is another gradient than that of zeros."""
        return [g] if self.outputs == 1 else list(g)

    def _arrays(self, node: GradNode) -> list[Any]:
        """The arguments and captured tensors, as they were; raises where one that is read now is not what it was."""
        arrays = node.residuals
        for i, source in self.sources:
            if source._value is not arrays[i]:
                raise InPlaceError(
                    f"backward of {self.name} needs a captured tensor of shape {source.shape} that was written after the call; "
                    "do the write after backward, or pass the tensor as an argument"
                )
        return [arrays[i] for i in self.given]

    def _tensors(self, arrays: Sequence[Any]) -> tuple[Tensor, ...]:
        """The arguments and captured tensors, as the pullback takes them."""
        values = [make(a, aval_of(a)) for a in arrays]
        for value, weak in zip(values, self.weak, strict=True):
            value._weak = weak
        return tuple(values)

    def run(self, node: GradNode, g: Any) -> Sequence[Any]:
        """The cotangents of the tracked arguments and captured tensors, as arrays."""
        given = self._cotangents_of(g)
        arrays = self._arrays(node)
        if (traces and is_within_trace()) or (overrides and kernel_mode() != "compiled"):
            tensors = self.pullback.function(self._tensors(arrays), [*map(_wrapped, given)], [])
            return [None if t is None else t._value for t in tensors]
        return self._usual(arrays, given)

    def _usual(self, arrays: list[Any], given: list[Any]) -> list[Any]:
        """What the compiled pullback gives, without a look at arguments that are known."""
        key = tuple([x is not None for x in given])
        compiled = self._compiled.get(key)
        if compiled is None or not compiled.holds:
            arguments = self._tensors(arrays), [*map(_wrapped, given)], list[Tensor]()
            compiled = self._compiled[key] = self.pullback.function.compiled_for(*arguments)
        all_arrays = (*arrays, *[x for x in given if x is not None])
        usable = [x if x.flags.num & USABLE == USABLE else np.array(x, order="C") for x in all_arrays]
        return compiled.rebuilt(compiled.executable(usable))  # type: ignore[no-any-return]

    def values(self, node: GradNode, g: Any, mask: Any, record: bool) -> Sequence[Any]:
        """The cotangents as tensors; with ``record`` they are one node each of the compiled gradient."""
        values = self._tensors(self._arrays(node))
        if record and node.edges is not None:
            for at, i in enumerate(self.needs):
                value = values[self.given.index(i)]
                value._edge, value._slot = node.edges[at], node.slots[at] if node.slots else 0
        cotangents = [*map(_wrapped, self._cotangents_of(g))]
        each: list[Any] = mask if isinstance(mask, list) else [mask]
        # all or none, or there would be a program for each set of results that have one
        masks = [] if mask is None else [_mask_of(m, c) for m, c in zip(each, cotangents, strict=True) if c is not None]
        return [None if t is None else (t, None) for t in self.pullback.function(values, cotangents, masks)]


def _wrapped(cotangent: Any) -> Tensor | None:
    """A cotangent as a tensor, if there is one."""
    return cotangent if cotangent is None or isinstance(cotangent, Tensor) else wrap(cotangent)


def _mask_of(mask: Mask | None, cotangent: Tensor) -> Tensor:
    """A mask as a tensor, which is true everywhere where there is none."""
    if mask is not None:
        return mask.get()  # type: ignore[no-any-return]
    return expand(constant(True, BOOL, cotangent), shape=cotangent.shape)  # type: ignore[no-any-return]


def another_program(name: str) -> GraphError:
    """The error for a function that is not the same each time it is traced."""
    return GraphError(
        f"{name} gave another program when it was traced again for its gradient: random numbers or other state inside. Draw "
        "or read them outside and pass them as arguments"
    )


def _check_program(
    name: str,
    compiled: Compiled,
    inputs: Sequence[Any],
    stand_ins: Sequence[tuple[Tensor, Any]],
    results: Sequence[Tensor],
) -> None:
    """Raise GraphError where the function, traced for its gradient, is not the program that ran."""
    graph = current_graph()
    if graph is None or not all(
        isinstance(v, Tracer) and v.graph is graph for v in (*inputs, *(v for _, v in stand_ins))
    ):
        return  # it is run, or traced for what is around it as well
    outputs = [t._value.variable if t.is_traced else Constant(t._value, t) for t in results]
    now = Graph(graph.name, [v.variable for v in inputs], list(graph.nodes), outputs).live()
    ran, now = (erase_identities(g, differentiated=False) for g in (compiled.graph, now))
    if not same_program(ran, now, {id(source): v.variable for source, v in stand_ins}):
        raise another_program(name)


def pullback_function(
    function: Callable[..., Any],
    name: str,
    compiled: Compiled,
    arguments: Arguments,
    count: int,
    tracked: tuple[int, ...],
    reached: Sequence[int],
    hidden: Sequence[int],
) -> Callable[..., list[Any]]:
    """The gradient of a call as a function.

    It takes the arguments, with the ``hidden`` captured tensors after them; the cotangents of the results, None for those
    that are no part of it; and masks of the others, or of none of them. It gives the cotangents of
    what is ``reached`` among the arguments and captured tensors at ``tracked``; None where nothing arrives.
    """
    moved = [[*range(count), *hidden].index(i) for i in tracked]
    kinds = () if compiled.answers is None else compiled.answers.regime.kinds

    def pull(values: tuple[Tensor, ...], cotangents: list[Tensor | None], masks: list[Tensor]) -> list[Any]:
        given = [c for c in cotangents if c is not None]
        bound = compiled.bindings.now(compiled.sources)
        here = enumerate(compiled.sources, count)
        if bound is None or not all(i in hidden or bound[i - count] is t for i, t in here):
            raise GraphError(
                f"backward of {name} needs the tensors that the function captured when it was called, and others are there "
                "now: call backward first, or pass them as arguments"
            )
        if not compiled.reads_hold:
            raise InPlaceError(
                f"backward of {name} needs a captured array as it was in the call, since Python read its values (to index, to "
                "decide): do the write after backward"
            )

        if not compiled.answers_hold:
            raise GraphError(
                f"backward of {name} needs the captured tensors as they were in the call, since the function asks which of them "
                "require grad: call backward before that changes"
            )

        def part(*moving: Tensor) -> list[Any]:
            whole: list[Any] = list(values)
            if kinds:  # the program is that of this regime
                name_inputs([(v._edge, kinds[i]) for i, v in zip(tracked, moving, strict=True) if i < count])
            for i, v in zip(moved, moving, strict=True):
                whole[i] = v
            table.update((id(bound[i - count]), v) for i, v in zip(hidden, whole[count:], strict=True))
            # before the function writes its arguments
            inputs = [v._value for v in whole[:count]]
            sources = compiled.sources
            stand_ins = [(sources[i - count], v._value) for i, v in zip(hidden, whole[count:], strict=True)]
            args, kwargs = arguments.replaced(whole[:count])
            results = flatten(function(*args, **kwargs))[0]
            tensors = [as_tensor(r) for r in results if isinstance(r, Tensor | np.ndarray | np.generic)]
            _check_program(name, compiled, inputs, stand_ins, tensors)
            tensors = [t for t, c in zip(tensors, cotangents, strict=True) if c is not None]
            # where nothing flows back nothing may flow on, whatever the derivatives are
            if masks:
                tensors = [where(m, t, 0.0) for m, t in zip(masks, tensors, strict=True)]
            return tensors

        with compiled.bindings.own_changes(), standing_in() as table:
            forget_plans()  # see keep_plan
            found = vjp_or_none(part, [values[i] for i in moved])[1](given)
            return [x for i, x in zip(tracked, found, strict=True) if i in reached]

    return pull
