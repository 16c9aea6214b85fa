"""jit: a function traced once for the shapes of its arguments and run as fused kernels."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.node import GradNode, next_tick
from jitgrad.compiler.draw import Drawing, draw
from jitgrad.compiler.executable import Executable
from jitgrad.compiler.explain import Explanation, explain
from jitgrad.compiler.passes import same_program
from jitgrad.config import overrides
from jitgrad.core.aval import ShapedArray, aval_of, is_float, make_aval
from jitgrad.core.collector import held_off
from jitgrad.core.graph import Constant, Graph, is_number
from jitgrad.core.modes import forward, grad_mode
from jitgrad.core.trace import atom_of, current_graph, same_bytes, stand_ins, standing_in, tracing_into
from jitgrad.eager import forget_plans
from jitgrad.errors import DtypeError, GraphError, InPlaceError, UnsupportedError, user_line
from jitgrad.kernels.kernel import kernel_mode, logger
from jitgrad.ops.linear import copy_of
from jitgrad.ops.selection import where
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.engine import wrap
from jitgrad.tensor.tensor import make
from jitgrad.transforms.bindings import Bindings
from jitgrad.transforms.numba_functions import numba_callback, numba_function
from jitgrad.transforms.private import plain, private
from jitgrad.transforms.recompiles import Traits, Watch
from jitgrad.transforms.reverse_mode import vjp
from jitgrad.transforms.short_calls import ShortCalls
from jitgrad.transforms.trees import Structure, flatten

__all__ = ["JitFunction", "jit"]

_DEBUG: Final = 10  # logging.DEBUG
_NUMBERS = (bool, int, float)
_TEMPORARY: Final = 3  # references to what only a list of pairs refers to, while the pairs are looped over


@dataclass
class Compiled:
    """What one signature of arguments was compiled to."""

    graph: Graph  # as traced
    executable: Executable
    structure: Structure
    leaves: list[Any]  # results that are no arrays, and None where an output stands
    sources: list[Tensor]  # captured tensors, read at each call: any of them may require grad, now or later
    reads: list[tuple[Any, Any]]  # arrays whose values Python read, with copies: the trace holds while they are equal
    bindings: Bindings  # where the function has the sources from
    pulls: dict[tuple[int, ...], Pull | None] = field(default_factory=dict)  # gradients, by what they are wanted for

    @property
    def holds(self) -> bool:
        """Whether what Python read of captured arrays is still there, and the captured tensors, or others like them."""
        if not self.reads_hold:
            return False
        return not self.bindings.watched or self.bindings.hold(self.sources) or self._rebound()

    @property
    def reads_hold(self) -> bool:
        """Whether what Python read of captured arrays is still there."""
        return all(same_bytes(t._value if isinstance(t, Tensor) else t, copy) for t, copy in self.reads)

    def _rebound(self) -> bool:
        """Read other tensors, which the function has been given in place of captured ones; False where it must be traced."""
        new = self.bindings.now(self.sources)
        if new is None:
            return False
        moved = {id(old): t for old, t in zip(self.sources, new, strict=True) if old is not t}
        first = len(self.graph.inputs)
        places = {first + k for k, old in enumerate(self.sources) if id(old) in moved}
        if any(pull is None or not places <= set(pull.hidden) for pull in self.pulls.values()):
            return False  # a gradient that is still to come would read the other tensor
        constants = list({id(c): c for g in (self.graph, self.executable.graph) for c in _captured(g)}.values())
        values: dict[int, set[int]] = {}  # several tensors on one array are one value to the compiler
        for c in constants:
            values.setdefault(id(c.value), set()).add(id(c.source))
        for c in constants:
            if id(c.source) in moved and (c.is_literal or len(values[id(c.value)]) > 1):
                return False
        for c in constants:
            c.source = moved.get(id(c.source), c.source)
        self.sources = new
        return True


def _captured(graph: Graph) -> list[Constant]:
    """The constants of a graph that are read from a tensor."""
    atoms = {id(a): a for n in graph.nodes for a in n.inputs} | {id(a): a for a in graph.outputs}
    return [a for a in atoms.values() if isinstance(a, Constant) and a.source is not None]


class JitFunction:
    """A function that is compiled for the shapes and dtypes of its arguments when it is first called with them."""

    __name__: str

    def __init__(self, function: Callable[..., Any], static_argnums: Any, static_argnames: Any) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._static_positions = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self._parameters = _positional_parameters(function)
        count = len(self._parameters)
        self._static_names = {*names, *(self._parameters[p] for p in self._static_positions if -count <= p < count)}
        self._static_by_count: dict[int, frozenset[int]] = {}
        self._compiled: dict[Any, Compiled] = {}
        self._short = ShortCalls(self._general)
        self._quick = self._short.guarded  # for arguments like those of frequent calls, by their number
        self._numba: dict[Any, Any] = {}  # functions for Numba and C, by what they were made for
        self._follows = True  # other tensors in place of captured ones
        self._watch: Watch | None = Watch(getattr(function, "__name__", "function"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and (
            not overrides or kernel_mode() == "compiled"
        ):  # the usual case: contiguous ndarrays and numbers, nothing to record
            quick = self._quick.get(len(args))
            if quick is not None:
                return quick(*args)
            return self._short(args)
        return self._general(args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance comes first, and is static if it is named so (``static_argnums=0``)."""
        return self if instance is None else functools.partial(self, instance)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = self._bind(args, kwargs)
        if current_graph() is not None or stand_ins.get() or any(t.is_traced for t in arguments.tensors):
            return self._inlined(arguments)  # part of an outer trace
        compiled = self._lookup(arguments)
        inputs = [*arguments.tensors, *compiled.sources]
        needs = tuple([i for i, t in enumerate(inputs) if t._edge is not None])
        pull = None
        if needs and grad_mode.get():
            pull = None if forward.get() else self._pull(arguments, compiled, needs)
            if pull is None:  # recorded operation by operation, as tangents need it
                return self._inlined(arguments, inputs)
        plain_call = not needs and not kwargs and not self._static_names and not self._static_positions
        if plain_call and kernel_mode() == "compiled":
            self._short.remember(args, compiled)
        results = compiled.executable(arguments.arrays())
        if not needs and not arguments.has_tensors:
            return _rebuilt(compiled, [plain(r) for r in results])
        tensors = [make(r, aval_of(r)) for r in results]
        if pull is not None:
            self._record(arguments, inputs, needs, pull, tensors)
        return _rebuilt(compiled, tensors)

    def _inlined(self, arguments: Arguments, known: Sequence[Tensor] = ()) -> Any:
        """The function itself, on private tensors; results that share memory with ``known`` tensors are copied."""
        args, kwargs = arguments.replaced(
            [
                leaf if type(leaf) in _NUMBERS else private(t)
                for leaf, t in zip(arguments.leaves, arguments.tensors, strict=True)
            ]
        )
        result = self._function(*args, **kwargs)
        if not known:
            return result
        arrays = [t._value for t in known]

        def own(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return copy_of(leaf) if any(np.may_share_memory(leaf._value, a) for a in arrays) else leaf

        leaves, structure = flatten(result)
        return structure.unflatten([own(leaf) for leaf in leaves])

    # ----------------------------------------------------------------- arguments

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        static: list[Any] = []
        dynamic: list[Any] = []
        positions = self._static_of(len(args))
        for i, a in enumerate(args):
            (static if i in positions else dynamic).append(a)
        names = sorted(kwargs)
        for name in names:
            (static if name in self._static_names else dynamic).append(kwargs[name])
        for value in static:
            try:
                hash(value)
            except TypeError:
                raise UnsupportedError(
                    f"jit: the static argument {value!r} of {self.__name__} is not hashable; use a tuple instead of a list"
                ) from None
        leaves, structure = flatten(tuple(dynamic))
        return Arguments(self, args, kwargs, positions, names, leaves, structure, tuple(map(_exact, static)))

    def _static_of(self, count: int) -> frozenset[int]:
        """Which of so many positional arguments are static."""
        found = self._static_by_count.get(count)
        if found is None:
            positions = {p % count if count and p < 0 else p for p in self._static_positions}
            positions |= {i for i, name in enumerate(self._parameters[:count]) if name in self._static_names}
            found = self._static_by_count[count] = frozenset(positions)
        return found

    def _lookup(self, arguments: Arguments) -> Compiled:
        key = arguments.key
        found = self._compiled.get(key)
        if found is None or not found.holds:
            new = found is None
            with held_off():
                found = self._compiled[key] = self._compile(arguments)
            if new and self._watch is not None:
                kernels: set[Hashable] = {(s.kernel.source, s.kernel.signature) for s in found.executable.kernels}
                self._watch.note(arguments.traits(), kernels)
        return found

    def _trace(
        self, arguments: Arguments, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> tuple[Graph, Structure, list[Any]]:
        """The graph for these arguments (or others of the same types and ``shapes``), and the form of the results."""
        start, caller = time.perf_counter(), user_line()
        graph = Graph(self._name, lines=True)
        stand_ins = []
        if shapes is None:
            shapes = [t.shape for t in arguments.tensors]
        for leaf, tensor, shape in zip(arguments.leaves, arguments.tensors, shapes, strict=True):
            stand_in = wrap(graph.add_input(ShapedArray(shape, tensor.dtype, True)))
            stand_in._weak = _is_weak(leaf)
            stand_ins.append(stand_in)
        args, kwargs = arguments.replaced(stand_ins)
        token = grad_mode.set(False)
        try:
            forget_plans()  # see keep_plan
            with tracing_into(graph):
                leaves, structure = flatten(self._function(*args, **kwargs))
                rest: list[Any] = []
                for leaf in leaves:
                    if isinstance(leaf, Tensor | np.ndarray | np.generic):
                        tensor = as_tensor(leaf, f"jit, result of {self._name}")
                        graph.outputs.append(atom_of(tensor._value, graph, tensor))
                        rest.append(None)
                    else:
                        rest.append(leaf)
        finally:
            grad_mode.reset(token)
        live = graph.live()
        for node in live.nodes:
            if node.backward and node.where == caller:
                node.where = None  # where the function happens to be called from is not where a gradient comes from
        if (log := logger()).isEnabledFor(_DEBUG):
            avals = ", ".join(repr(v.aval) for v in live.inputs)
            seconds = time.perf_counter() - start
            log.debug(
                "traced %s(%s) in %.4f s: %d operations; called at %s",
                self._name,
                avals,
                seconds,
                len(live.nodes),
                caller,
            )
        live.reads = [(t, copy) for t, copy in graph.reads or () if sys.getrefcount(t) > _TEMPORARY or _is_alias(t)]
        return live, structure, rest

    def _compile(self, arguments: Arguments) -> Compiled:
        start = next_tick()
        graph, structure, rest = self._trace(arguments)
        sources = {id(c.source): c.source for c in _captured(graph)}
        # what the function itself made requires grad inside of it alone
        outer = [t for t in sources.values() if t._edge is None or t._edge.tick < start]
        executable = Executable(f"{self._name}_kernel", graph)
        return Compiled(
            graph, executable, structure, rest, outer, graph.reads or [], Bindings(self._function, outer, self._follows)
        )

    @property
    def _name(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in getattr(self._function, "__name__", "function"))

    # ----------------------------------------------------------------- gradients

    def _pull(self, arguments: Arguments, compiled: Compiled, needs: tuple[int, ...]) -> Pull | None:
        """The gradient of a call with respect to the arguments and captured tensors at ``needs``; None where a captured
        tensor cannot be made an argument of it."""
        if needs in compiled.pulls:
            return compiled.pulls[needs]
        # the gradient is traced on its own: it must be that of the very program that ran
        again = self._trace(arguments)[0]
        if not same_program(compiled.graph, again):
            raise GraphError(
                f"jit({getattr(self, '__name__', 'function')}) gave another program when it was traced again for its gradient: "
                "random numbers or other state inside. Draw or read them outside and pass them as arguments"
            )
        count = len(arguments.leaves)
        same = {id(c.source) for c in _captured(again)}  # not what the function makes anew each time
        read = {id(t) for t, _ in compiled.reads}
        hidden = [
            count + k
            for k, t in enumerate(compiled.sources)
            if id(t) in same
            and id(t) not in read
            and is_float(t.dtype)
            and (count + k in needs or not is_number(t._value))
        ]
        pull = None
        if all(i < count or i in hidden for i in needs):
            function = JitFunction(_pull(self, compiled, arguments.emptied(), count, needs, hidden), (), ())
            function._follows = False
            function._watch = None  # it is compiled anew when this function is, which tells of it
            pull = Pull(function, hidden)
        compiled.pulls[needs] = pull
        return pull

    def _record(
        self,
        arguments: Arguments,
        inputs: Sequence[Tensor],
        needs: tuple[int, ...],
        pull: Pull,
        tensors: Sequence[Tensor],
    ) -> None:
        """One node for the whole call; its backward is the compiled gradient."""
        recorder = _JitRecorder(self, arguments, inputs, needs, pull, [t._aval for t in tensors])
        edges = tuple([inputs[i]._edge for i in needs])
        slots = tuple([inputs[i]._slot for i in needs])
        node = GradNode(recorder, edges, tuple([t._value for t in inputs]), slots if any(slots) else None)
        for slot, tensor in enumerate(tensors):
            if tensor.dtype.kind == "f":
                tensor._edge, tensor._slot = node, slot

    # ----------------------------------------------------------------- Numba

    def njit(self, *args: Any, freeze: bool = False) -> Any:
        """This function as an ordinary Numba function (a dispatcher), for your own ``@njit`` code.

        Compiled for the dtypes and ranks of the example arguments: arrays, numbers, and tuples of them. Arrays of other
        extents are fine unless the Python code read the extent (``x.shape[0]``, ``len(x)``), or it is 0 or 1 in the
        example: then the function takes the example's extent alone and raises ValueError for others. Static arguments are
        compiled in and no arguments any more. Lists among the results become tuples.

        The same arguments give the same object. Captured arrays are refused unless ``freeze=True`` copies them in as they
        are now. Numba does not store a caller on disk (``cache=True``), since it would not see that the gradient changed.

        Raises UnsupportedError where an operation cannot be part of one kernel, and names it.

        >>> import numpy as np, jitgrad as jg
        >>> step = jg.jit(jg.value_and_grad(lambda x: np.sum(x ** 2))).njit(np.zeros(3))
        >>> step(np.array([1.0, 2.0]))
        (5.0, array([2., 4.]))
        """
        return numba_function(self, self._bind(args, {}), freeze)

    def address(self, *args: Any, freeze: bool = False, user_data: bool = False) -> Any:
        """This function as a C function: a ``numba.cfunc``, with the pointer as ``.ctypes`` (for
        ``scipy.LowLevelCallable``) and ``.address`` (an int).

        The C signature follows from the example arguments, which must be numbers and arrays:

        - ``int n`` comes first if there is an array: the extent of the first axis of the first array. Axes that must agree
          with it follow it; all other extents are those of the example.
        - Then come the arguments: a number by value (``double``), an array as a pointer to its elements in C order.
        - Then come the results: the first number is returned; every other one, and every array, is written to a pointer. A
          null pointer leaves a result out.
        - With ``user_data`` a ``void*`` comes last, and is ignored.

        So the value and gradient of a vector is ``double f(int n, double* x, double* grad)``. Booleans are bytes, ints
        ``int64_t``. C has no exceptions: where extents do not fit, the returned number and the arrays of the extents of
        arguments are NaN (0 for integers), and other arrays are not written.
        """
        return numba_callback(self, self._bind(args, {}), freeze, user_data)

    # ----------------------------------------------------------------- seeing what it did

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph for these arguments, as it was traced."""
        return self._lookup(self._bind(args, kwargs)).graph

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What the compiler made of the function for these arguments: loops, products, temporaries, bytes, operations."""
        return explain(self._lookup(self._bind(args, kwargs)).executable)

    def draw(self, *args: Any, **kwargs: Any) -> Drawing:
        """The traced graph as a picture: notebooks show it, ``print`` gives DOT text, ``.svg()`` the text of an SVG file.
        Gradients have a second colour, detach boundaries are a cut."""
        return draw(self.graph(*args, **kwargs))

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The source of the kernels for these arguments, commented with the lines of the function that it comes from."""
        return "\n".join(s.emitted.listing for s in self._lookup(self._bind(args, kwargs)).executable.kernels)


@dataclass
class Arguments:
    """The arguments of one call: arrays and numbers as leaves, the static ones apart."""

    owner: JitFunction
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: frozenset[int]
    names: list[str]
    leaves: list[Any]
    structure: Structure
    static: tuple[Any, ...]

    def __post_init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.has_tensors = False
        for leaf in self.leaves:
            if isinstance(leaf, Tensor):
                self.has_tensors = True
            elif not isinstance(leaf, np.ndarray | np.generic) and type(leaf) not in _NUMBERS:
                raise UnsupportedError(
                    f"jit: an argument of type {type(leaf).__name__} is neither an array nor a number; "
                    "name it in static_argnums or static_argnames"
                )
            tensor = as_tensor(leaf, "jit, argument")
            if type(leaf) is int and tensor.dtype.kind == "u":
                raise DtypeError(f"jit: the argument {leaf} does not fit int64; write it as a float")
            self.tensors.append(tensor)

    @functools.cached_property
    def key(self) -> Any:
        """What the compiled code depends on."""
        kinds = tuple([(_is_weak(v), t.dtype, t.shape) for v, t in zip(self.leaves, self.tensors, strict=True)])
        return kinds, self.structure, self.static, len(self.args), tuple(self.names), kernel_mode()

    def traits(self) -> dict[str, Traits]:
        """Each argument by name, with all that compiled code may depend on."""
        static = iter(self.static)
        leaves = iter(zip(self.leaves, self.tensors, strict=True))
        known = self.owner._parameters
        named = [(known[i] if i < len(known) else str(i), a, i in self.positions) for i, a in enumerate(self.args)]
        named += [(n, self.kwargs[n], n in self.owner._static_names) for n in self.names]
        found = {}
        for name, value, is_static in named:
            if is_static:
                text = repr(value)
                found[name] = Traits(next(static), shown=text if len(text) <= 60 else text[:57] + "...")
                continue
            parts, structure = flatten(value)
            own = [next(leaves) for _ in parts]
            found[name] = Traits(
                None,
                structure,
                tuple([_is_weak(leaf) for leaf, _ in own]),
                tuple([t.dtype.name for _, t in own]),
                tuple([len(t.shape) for _, t in own]),
                tuple([tuple(map(int, t.shape)) for _, t in own]),
            )
        return found

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The contiguous arrays of the leaves."""
        return [t._value if t._aval.contiguous else np.ascontiguousarray(t._value) for t in self.tensors]

    def emptied(self) -> Arguments:
        """Only what ``replaced`` needs, without the values of this call."""
        static = [a if i in self.positions else None for i, a in enumerate(self.args)]
        named = {n: v for n, v in self.kwargs.items() if n in self.owner._static_names}
        return Arguments(self.owner, tuple(static), named, self.positions, self.names, [], self.structure, self.static)

    def replaced(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with other leaves."""
        dynamic = iter(self.structure.unflatten(leaves))
        args = [a if i in self.positions else next(dynamic) for i, a in enumerate(self.args)]
        kwargs = {n: self.kwargs[n] if n in self.owner._static_names else next(dynamic) for n in self.names}
        return args, kwargs


@dataclass
class Pull:
    """The gradient of a jitted call, compiled, and which captured tensors are arguments of it."""

    function: JitFunction
    hidden: list[int]


class _JitRecorder:
    """The recorder of the node of a jitted call. It keeps the arguments, and after them the captured tensors."""

    masks = False
    plain = False
    compiled = True

    def __init__(
        self,
        function: JitFunction,
        arguments: Arguments,
        inputs: Sequence[Tensor],
        needs: tuple[int, ...],
        pull: Pull,
        out_avals: list[ShapedArray],
    ) -> None:
        count = len(arguments.leaves)
        self.pull = pull
        self.needs = needs
        self.given = [*range(count), *pull.hidden]  # what the gradient is given
        self.weak = [_is_weak(v) for v in arguments.leaves] + [inputs[i]._weak for i in pull.hidden]
        self.sources = [(i, t) for i, t in enumerate(inputs) if i >= count and i not in pull.hidden]
        self.name = f"jit({getattr(function, '__name__', 'function')})"
        self.out_avals = tuple(make_aval(a.shape, a.dtype) for a in out_avals)
        self.outputs = len(out_avals)
        self.fresh = (True,) * len(needs)

    def _complete(self, g: Any) -> list[Any]:
        gs = [g] if self.outputs == 1 else list(g)
        return [np.zeros(a.shape, a.dtype) if x is None else x for x, a in zip(gs, self.out_avals, strict=True)]

    def _values(self, node: GradNode) -> list[Tensor]:
        """The arguments and captured tensors, as they were; raises where one that is read now is not what it was."""
        arrays = node.residuals
        for i, source in self.sources:
            if source._value is not arrays[i]:
                raise InPlaceError(
                    f"backward of {self.name} needs a captured tensor of shape {source.shape} that was written after the call; "
                    "do the write after backward, or pass the tensor as an argument"
                )
        values = [make(arrays[i], aval_of(arrays[i])) for i in self.given]
        for value, weak in zip(values, self.weak, strict=True):
            value._weak = weak
        return values

    def run(self, node: GradNode, g: Any) -> Sequence[Any]:
        """The cotangents of the tracked arguments and captured tensors, as arrays."""
        cotangents = [make(x, aval_of(x)) for x in self._complete(g)]
        return [t._value for t in self.pull.function(tuple(self._values(node)), cotangents, [])]

    def values(self, node: GradNode, g: Any, mask: Any, record: bool) -> Sequence[Any]:
        """The cotangents as tensors; with ``record`` they are one node each of the compiled gradient."""
        values = self._values(node)
        if record and node.edges is not None:
            for at, i in enumerate(self.needs):
                value = values[self.given.index(i)]
                value._edge, value._slot = node.edges[at], node.slots[at] if node.slots else 0
        cotangents = [x if isinstance(x, Tensor) else make(x, aval_of(x)) for x in self._complete(g)]
        masks = [] if mask is None else [mask.get()]
        return [(t, None) for t in self.pull.function(tuple(values), cotangents, masks)]


def _pull(
    function: JitFunction,
    compiled: Compiled,
    arguments: Arguments,
    count: int,
    needs: tuple[int, ...],
    hidden: Sequence[int],
) -> Callable[..., list[Any]]:
    """The function from arguments (and ``hidden`` captured tensors after them), cotangents of the float results and masks
    of them (or none) to the cotangents of what is at ``needs``."""
    moved = [[*range(count), *hidden].index(i) for i in needs]
    name = f"jit({getattr(function, '__name__', 'function')})"

    def pull(values: tuple[Tensor, ...], cotangents: list[Tensor], masks: list[Tensor]) -> list[Any]:
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

        def part(*moving: Tensor) -> list[Any]:
            whole: list[Any] = list(values)
            for i, v in zip(moved, moving, strict=True):
                v._weak = whole[i]._weak
                whole[i] = v
            table.update((id(bound[i - count]), v) for i, v in zip(hidden, whole[count:], strict=True))
            args, kwargs = arguments.replaced(whole[:count])
            results = flatten(function._function(*args, **kwargs))[0]
            tensors = [as_tensor(r) for r in results if isinstance(r, Tensor | np.ndarray | np.generic)]
            # where nothing flows back nothing may flow on, whatever the derivatives are
            return [where(m, t, 0.0) for m, t in zip(masks, tensors, strict=True)] if masks else tensors

        with standing_in() as table:
            forget_plans()  # see keep_plan
            return list(vjp(part, *[values[i] for i in moved])[1](cotangents))

    return pull


def _is_alias(array: Any) -> bool:
    """Whether other tensors see the memory of this one, and may write it: ``w.detach()`` is seldom kept."""
    return isinstance(array, Tensor) and array._storage is not None and len(array._storage.members()) > 1


def _is_weak(leaf: Any) -> bool:
    """Whether an argument is a Python number, or stands for one."""
    return leaf._weak if isinstance(leaf, Tensor) else type(leaf) in _NUMBERS


def _exact(value: Any) -> Any:
    """A static argument as a key that tells 1, 1.0 and True, and 0.0 and -0.0, apart."""
    if isinstance(value, tuple):
        return type(value), tuple(map(_exact, value))
    return type(value), value.hex() if type(value) is float else value


def _positional_parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that may be given by position; none where that is not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _rebuilt(compiled: Compiled, results: Sequence[Any]) -> Any:
    found = iter(results)
    leaves = [next(found) if leaf is None else leaf for leaf in compiled.leaves]
    return compiled.structure.unflatten(leaves)


def jit(function: Callable[..., Any] | None = None, *, static_argnums: Any = (), static_argnames: Any = ()) -> Any:
    """Compile a function of arrays: traced once for each signature of its arguments, run as fused kernels.

    ``static_argnums``, ``static_argnames``: arguments that are no arrays, or whose value the Python code must know; each
    value is traced on its own. Captured arrays are read again at each call. Python control flow on values raises; use
    ``jg.where``. Results are what the arguments are: ndarrays and numbers, or tensors.

    >>> import numpy as np, jitgrad as jg
    >>> fast = jg.jit(jg.value_and_grad(lambda x: np.sum(np.sin(x) ** 2)))
    >>> fast(np.zeros(3))
    (0.0, array([0., 0., 0.]))
    """
    if function is None:
        return functools.partial(jit, static_argnums=static_argnums, static_argnames=static_argnames)
    return JitFunction(function, static_argnums, static_argnames)
