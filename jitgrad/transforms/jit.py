"""jit: a function traced once for the shapes of its arguments and run as fused kernels."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.node import GradNode, next_tick
from jitgrad.compiler.draw import Drawing, draw
from jitgrad.compiler.executable import Executable
from jitgrad.compiler.explain import Explanation, explain
from jitgrad.compiler.passes import same_program, simplify
from jitgrad.core.aval import ShapedArray, aval_of, make_aval
from jitgrad.core.graph import Constant, Graph
from jitgrad.core.modes import forward, grad_mode
from jitgrad.core.trace import atom_of, current_graph, same_bytes, tracing_into
from jitgrad.eager import forget_plans
from jitgrad.errors import GraphError, InPlaceError, UnsupportedError, user_line
from jitgrad.kernels.kernel import kernel_mode, logger
from jitgrad.ops.linear import copy_of
from jitgrad.ops.selection import where
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.engine import wrap
from jitgrad.tensor.tensor import make
from jitgrad.transforms.numba_functions import numba_callback, numba_function
from jitgrad.transforms.private import private
from jitgrad.transforms.recompiles import Traits, Watch
from jitgrad.transforms.reverse_mode import vjp
from jitgrad.transforms.trees import Structure, flatten

__all__ = ["JitFunction", "jit"]

_DEBUG: Final = 10  # logging.DEBUG
_NUMBERS = (bool, int, float)
_TEMPORARY: Final = 3  # references to what only a list of pairs refers to, while the pairs are looped over
_USABLE: Final = 0x101  # ndarray.flags.num: C-contiguous and aligned
_ndarray = np.ndarray


@dataclass
class Compiled:
    """What one signature of arguments was compiled to."""

    graph: Graph  # as traced
    executable: Executable
    structure: Structure
    leaves: list[Any]  # results that are no arrays, and None where an output stands
    sources: list[Tensor]  # captured tensors: any of them may require grad, now or later
    reads: list[tuple[Any, Any]]  # arrays whose values Python read, with copies: the trace holds while they are equal

    @property
    def tracked(self) -> bool:
        """Whether a captured tensor requires grad now."""
        return any(t._edge is not None for t in self.sources)

    @property
    def holds(self) -> bool:
        """Whether what Python read of captured arrays is still there."""
        return all(same_bytes(t._value if isinstance(t, Tensor) else t, copy) for t, copy in self.reads)


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
        self._compiled: dict[Any, Compiled] = {}
        self._fast: dict[Any, Callable[..., Any]] = {}
        self._pulls: dict[Any, JitFunction] = {}  # the gradients, by arguments and which of them are tracked
        self._numba: dict[Any, Any] = {}  # functions for Numba and C, by what they were made for
        self._watch: Watch | None = Watch(getattr(function, "__name__", "function"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:  # the usual case: contiguous ndarrays, nothing to record
            key: list[Any] = []
            for a in args:
                if type(a) is not _ndarray or a.flags.num & _USABLE != _USABLE:
                    break
                key += (a.dtype, a.shape)
            else:
                fast = self._fast.get(tuple(key))
                if fast is not None:
                    return fast(*args)
        return self._general(args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance comes first, and is static if it is named so (``static_argnums=0``)."""
        return self if instance is None else functools.partial(self, instance)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = self._bind(args, kwargs)
        if current_graph() is not None or any(t.is_traced for t in arguments.tensors):
            return self._inlined(arguments)  # part of an outer trace
        compiled = self._lookup(arguments)
        recording = bool(grad_mode.get())
        tracked = recording and any(t._edge is not None for t in arguments.tensors)
        if recording and (compiled.tracked or (tracked and forward.get())):
            # gradients of captured tensors, and tangents: recorded operation by operation
            return self._inlined(arguments, [*arguments.tensors, *compiled.sources])
        if not kwargs and not self._static_names and not self._static_positions and kernel_mode() == "compiled":
            self._remember(args, compiled)
        results = compiled.executable(arguments.arrays())
        if tracked:
            tensors = self._record(arguments, compiled, results)
            return _rebuilt(compiled, tensors)
        if arguments.has_tensors or compiled.tracked:
            return _rebuilt(compiled, [make(r, aval_of(r)) for r in results])
        return _rebuilt(compiled, [_plain(r) for r in results])

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

    def _remember(self, args: tuple[Any, ...], compiled: Compiled) -> None:
        """Let later calls with such ndarrays go straight to the kernel."""
        if any(type(a) is not _ndarray or a.dtype != a.dtype.newbyteorder("=") for a in args):
            return
        if compiled.executable.single is None or compiled.reads:
            return
        if any(leaf is not None for leaf in compiled.leaves):
            return
        step = compiled.executable.single
        returned = step.emitted.returned
        call = step.call
        names = [
            f"results[{k}]" if k == returned or b.shape else f"plain(results[{k}])"
            for k, b in enumerate(step.emitted.outputs)
        ]
        text = _template(compiled.structure.unflatten([_Slot(n) for n in names]))
        if text is None:
            return
        space: dict[str, Any] = {"call": call, "plain": _plain, "general": self._general}
        arguments = ", ".join(f"a{i}" for i in range(len(args)))
        lines = [f"def fast({arguments}):"]
        for i, source in enumerate(compiled.sources):
            space[f"source{i}"] = source
            lines.append(
                f"    if source{i}._edge is not None: return general(({arguments}{',' if args else ''}), {{}})"
            )
        exec("\n".join([*lines, f"    results = call({arguments})", f"    return {text}"]), space)
        self._fast[tuple([v for a in args for v in (a.dtype, a.shape)])] = space["fast"]

    # ----------------------------------------------------------------- arguments

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        static: list[Any] = []
        dynamic: list[Any] = []
        count = len(args)
        positions = {p % count if count and p < 0 else p for p in self._static_positions}
        positions |= {i for i, name in enumerate(self._parameters[:count]) if name in self._static_names}
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

    def _lookup(self, arguments: Arguments) -> Compiled:
        key = arguments.key
        found = self._compiled.get(key)
        if found is None or not found.holds:
            new = found is None
            found = self._compiled[key] = self._compile(arguments)
            if new and self._watch is not None:
                kernels: set[Hashable] = {(k.source, k.signature) for k in found.executable.kernels}
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
            forget_plans()  # see plan_for
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
        live.reads = [(t, copy) for t, copy in graph.reads or () if sys.getrefcount(t) > _TEMPORARY]
        return live, structure, rest

    def _compile(self, arguments: Arguments) -> Compiled:
        start = next_tick()
        graph, structure, rest = self._trace(arguments)
        captured = [a for n in graph.nodes for a in n.inputs if isinstance(a, Constant)]
        captured += [a for a in graph.outputs if isinstance(a, Constant)]
        sources = {id(c.source): c.source for c in captured if c.source is not None}
        # what the function itself made requires grad inside of it alone
        outer = [t for t in sources.values() if t._edge is None or t._edge.tick < start]
        executable = Executable(f"{self._name}_kernel", simplify(graph))
        return Compiled(graph, executable, structure, rest, outer, graph.reads or [])

    @property
    def _name(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in getattr(self._function, "__name__", "function"))

    # ----------------------------------------------------------------- gradients

    def _record(self, arguments: Arguments, compiled: Compiled, results: Sequence[Any]) -> list[Tensor]:
        """One node for the whole call; its backward is the compiled gradient."""
        tensors = [make(r, aval_of(r)) for r in results]
        needs = [i for i, t in enumerate(arguments.tensors) if t._edge is not None]
        recorder = _JitRecorder(self, arguments, needs, [t._aval for t in tensors], compiled)
        edges = tuple(arguments.tensors[i]._edge for i in needs)
        slots = tuple(arguments.tensors[i]._slot for i in needs)
        kept = tuple(t._value for t in (*arguments.tensors, *compiled.sources))
        node = GradNode(recorder, edges, kept, slots if any(slots) else None)
        for slot, tensor in enumerate(tensors):
            if tensor.dtype.kind == "f":
                tensor._edge, tensor._slot = node, slot
        return tensors

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
        return "\n".join(k.listing for k in self._lookup(self._bind(args, kwargs)).executable.kernels)


@dataclass
class Arguments:
    """The arguments of one call: arrays and numbers as leaves, the static ones apart."""

    owner: JitFunction
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: set[int]
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
            self.tensors.append(as_tensor(leaf, "jit, argument"))

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


class _JitRecorder:
    """The recorder of the node of a jitted call."""

    masks = False
    plain = False
    compiled = True

    def __init__(
        self,
        function: JitFunction,
        arguments: Arguments,
        needs: list[int],
        out_avals: list[ShapedArray],
        compiled: Compiled,
    ) -> None:
        self.function = function
        self.sources = compiled.sources
        self.weak = [_is_weak(leaf) for leaf in arguments.leaves]
        self.name = f"jit({getattr(function, '__name__', 'function')})"
        self.out_avals = tuple(make_aval(a.shape, a.dtype) for a in out_avals)
        self.outputs = len(out_avals)
        self.needs = needs
        self.fresh = (True,) * len(needs)
        key = (arguments.key, tuple(needs))
        found = function._pulls.get(key)
        if found is None:
            # the gradient is traced on its own: it must be that of the very program that ran
            if not same_program(compiled.graph, function._trace(arguments)[0]):
                raise GraphError(
                    f"{self.name} gave another program when it was traced again for its gradient: random numbers or other "
                    "state inside. Draw or read them outside and pass them as arguments"
                )
            found = function._pulls[key] = JitFunction(_pull(function, arguments.emptied(), needs), (), ())
            found._watch = None  # it is compiled anew when the function is, which tells of it
        self.pull: JitFunction = found

    def _complete(self, g: Any) -> list[Any]:
        gs = [g] if self.outputs == 1 else list(g)
        return [np.zeros(a.shape, a.dtype) if x is None else x for x, a in zip(gs, self.out_avals, strict=True)]

    def _values(self, node: GradNode) -> list[Tensor]:
        """The arguments, as they were; raises where a captured tensor is not what it was."""
        arrays = node.residuals
        count = len(self.weak)
        for source, kept in zip(self.sources, arrays[count:], strict=True):
            if source._value is not kept:
                raise InPlaceError(
                    f"backward of {self.name} needs a captured tensor of shape {kept.shape} that was written after the call; "
                    "do the write after backward, or pass the tensor as an argument"
                )
        values = [make(a, aval_of(a)) for a in arrays[:count]]
        for value, weak in zip(values, self.weak, strict=True):
            value._weak = weak
        return values

    def run(self, node: GradNode, g: Any) -> Sequence[Any]:
        """The cotangents of the tracked arguments, as arrays."""
        cotangents = [make(x, aval_of(x)) for x in self._complete(g)]
        return [t._value for t in self.pull(tuple(self._values(node)), cotangents, [])]

    def values(self, node: GradNode, g: Any, mask: Any, record: bool) -> Sequence[Any]:
        """The cotangents as tensors; with ``record`` they are one node each of the compiled gradient."""
        values = self._values(node)
        if record and node.edges is not None:
            for at, i in enumerate(self.needs):
                values[i]._edge, values[i]._slot = node.edges[at], node.slots[at] if node.slots else 0
        cotangents = [x if isinstance(x, Tensor) else make(x, aval_of(x)) for x in self._complete(g)]
        masks = [] if mask is None else [mask.get()]
        return [(t, None) for t in self.pull(tuple(values), cotangents, masks)]


def _pull(function: JitFunction, arguments: Arguments, needs: Sequence[int]) -> Callable[..., list[Any]]:
    """The function from arguments, cotangents of the float results and masks of them (or none) to cotangents of arguments."""

    def pull(values: tuple[Tensor, ...], cotangents: list[Tensor], masks: list[Tensor]) -> list[Any]:
        def part(*moving: Tensor) -> list[Any]:
            whole: list[Any] = list(values)
            for i, v in zip(needs, moving, strict=True):
                v._weak = whole[i]._weak
                whole[i] = v
            args, kwargs = arguments.replaced(whole)
            results = flatten(function._function(*args, **kwargs))[0]
            tensors = [as_tensor(r) for r in results if isinstance(r, Tensor | np.ndarray | np.generic)]
            # where nothing flows back nothing may flow on, whatever the derivatives are
            return [where(m, t, 0.0) for m, t in zip(masks, tensors, strict=True)] if masks else tensors

        return list(vjp(part, *[values[i] for i in needs])[1](cotangents))

    return pull


class _Slot(str):
    """The text of a result in a template."""


def _template(tree: Any) -> str | None:
    """The source text that builds a tree of plain containers; None where there is another kind of container."""
    if isinstance(tree, _Slot):
        return str(tree)
    if type(tree) in (tuple, list):
        parts = [_template(t) for t in tree]
        if any(p is None for p in parts):
            return None
        inner = ", ".join(parts)  # type: ignore[arg-type]
        return f"[{inner}]" if type(tree) is list else f"({inner}{',' if len(parts) == 1 else ''})"
    return None


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


def _plain(array: np.ndarray[Any, Any]) -> Any:
    if array.ndim:
        return array
    return array[()] if array.dtype == np.float32 else array.item()


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
