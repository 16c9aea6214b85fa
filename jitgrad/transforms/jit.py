"""jit: a function traced once for the shapes of its arguments and run as fused kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad.autodiff.node import GradNode
from jitgrad.compiler.draw import Drawing, dot
from jitgrad.compiler.executable import Executable
from jitgrad.compiler.explain import Explanation, explain
from jitgrad.compiler.interop import function_source
from jitgrad.compiler.passes import simplify
from jitgrad.core.aval import ShapedArray, aval_of, make_aval
from jitgrad.core.graph import Constant, Graph
from jitgrad.core.modes import grad_mode
from jitgrad.core.trace import atom_of
from jitgrad.errors import UnsupportedError
from jitgrad.kernels.kernel import dispatcher, kernel_mode
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.engine import wrap
from jitgrad.tensor.tensor import make
from jitgrad.transforms.reverse_mode import vjp
from jitgrad.transforms.trees import Structure, flatten

__all__ = ["JitFunction", "jit"]

_NUMBERS = (bool, int, float)
_ndarray = np.ndarray


@dataclass
class Compiled:
    """What one signature of arguments was compiled to."""

    graph: Graph  # as traced
    executable: Executable
    structure: Structure
    leaves: list[Any]  # results that are no arrays, and None where an output stands
    tracked: bool  # tensors that require grad were captured
    signature: Any


class JitFunction:
    """A function that is compiled for the shapes and dtypes of its arguments when it is first called with them."""

    __name__: str

    def __init__(self, function: Callable[..., Any], static_argnums: Any, static_argnames: Any) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._static_positions = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        self._static_names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self._compiled: dict[Any, Compiled] = {}
        self._fast: dict[Any, Callable[..., Any]] = {}
        self._dispatchers: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:  # the usual case: contiguous ndarrays, nothing to record
            key: list[Any] = []
            for a in args:
                if type(a) is not _ndarray or not a.flags.c_contiguous:
                    break
                key += (a.dtype, a.shape)
            else:
                fast = self._fast.get(tuple(key))
                if fast is not None:
                    return fast(*args)
        return self._general(args, kwargs)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = self._bind(args, kwargs)
        if any(t.is_traced for t in arguments.tensors):
            return self._function(*args, **kwargs)  # part of an outer trace
        compiled = self._lookup(arguments)
        recording = bool(grad_mode.get())
        if recording and compiled.tracked:
            return self._function(*args, **kwargs)  # gradients of captured tensors: recorded operation by operation
        tracked = recording and any(t._edge is not None for t in arguments.tensors)
        if not compiled.tracked and not kwargs and not self._static_positions and kernel_mode() == "compiled":
            self._remember(args, compiled)
        results = compiled.executable(arguments.arrays())
        if tracked:
            tensors = self._record(arguments, compiled, results)
            return _rebuilt(compiled, tensors)
        if arguments.has_tensors:
            return _rebuilt(compiled, [make(r, aval_of(r)) for r in results])
        return _rebuilt(compiled, [_plain(r) for r in results])

    def _remember(self, args: tuple[Any, ...], compiled: Compiled) -> None:
        """Let later calls with such ndarrays go straight to the kernel."""
        if any(type(a) is not _ndarray for a in args) or compiled.executable.single is None:
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
        space = {"call": call, "plain": _plain}
        arguments = ", ".join(f"a{i}" for i in range(len(args)))
        exec(f"def fast({arguments}):\n    results = call({arguments})\n    return {text}", space)
        self._fast[tuple([v for a in args for v in (a.dtype, a.shape)])] = space["fast"]

    # ----------------------------------------------------------------- arguments

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        static: list[Any] = []
        dynamic: list[Any] = []
        count = len(args)
        positions = {p % count if count and p < 0 else p for p in self._static_positions}
        for i, a in enumerate(args):
            (static if i in positions else dynamic).append(a)
        names = sorted(kwargs)
        for name in names:
            (static if name in self._static_names else dynamic).append(kwargs[name])
        for value in static:
            if not isinstance(value, Hashable):
                raise UnsupportedError(
                    f"jit: the static argument {value!r} of {self.__name__} is not hashable; use a tuple instead of a list"  # type: ignore[attr-defined]
                )
        leaves, structure = flatten(tuple(dynamic))
        return Arguments(self, args, kwargs, positions, names, leaves, structure, tuple(static))

    def _lookup(self, arguments: Arguments) -> Compiled:
        key = arguments.key()
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._compile(arguments)
        return found

    def _compile(self, arguments: Arguments) -> Compiled:
        name = "".join(c if c.isalnum() else "_" for c in getattr(self._function, "__name__", "function"))
        graph = traced = Graph(name, lines=True)
        stand_ins = []
        for leaf, tensor in zip(arguments.leaves, arguments.tensors, strict=True):
            stand_in = wrap(graph.add_input(ShapedArray(tensor.shape, tensor.dtype, True)))
            stand_in._weak = type(leaf) in _NUMBERS
            stand_ins.append(stand_in)
        args, kwargs = arguments.replaced(stand_ins)
        token = grad_mode.set(False)
        try:
            result = self._function(*args, **kwargs)
        finally:
            grad_mode.reset(token)
            traced.closed = True
        leaves, structure = flatten(result)
        rest: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor | np.ndarray | np.generic):
                tensor = as_tensor(leaf)
                graph.outputs.append(atom_of(tensor._value, graph, tensor))
                rest.append(None)
            else:
                rest.append(leaf)
        graph = graph.live()
        captured = [a for n in graph.nodes for a in n.inputs if isinstance(a, Constant)]
        captured += [a for a in graph.outputs if isinstance(a, Constant)]
        tracked = any(c.source is not None and c.source._edge is not None for c in captured)
        executable = Executable(f"{name}_kernel", simplify(graph))
        return Compiled(graph, executable, structure, rest, tracked, arguments.key())

    # ----------------------------------------------------------------- gradients

    def _record(self, arguments: Arguments, compiled: Compiled, results: Sequence[Any]) -> list[Tensor]:
        """One node for the whole call; its backward is the compiled gradient."""
        tensors = [make(r, aval_of(r)) for r in results]
        needs = [i for i, t in enumerate(arguments.tensors) if t._edge is not None]
        recorder = _JitRecorder(self, arguments, needs, [t._aval for t in tensors])
        edges = tuple(arguments.tensors[i]._edge for i in needs)
        slots = tuple(arguments.tensors[i]._slot for i in needs)
        node = GradNode(recorder, edges, tuple(t._value for t in arguments.tensors), slots if any(slots) else None)
        for slot, tensor in enumerate(tensors):
            if tensor.dtype.kind == "f":
                tensor._edge, tensor._slot = node, slot
        return tensors

    # ----------------------------------------------------------------- Numba

    def njit(self, *args: Any, freeze: bool = False) -> Any:
        """This function as an ordinary Numba function, for your own ``@njit`` code.

        Compiled for the dtypes and ranks of the example arguments (arrays and numbers); other extents are fine where the
        Python code did not read them, else the function raises ValueError at run time. The same arguments give the same
        object. Captured arrays are refused unless ``freeze=True`` copies them in.

        Raises UnsupportedError where the function cannot be one kernel.
        """
        arguments = self._bind(args, {})
        compiled = self._lookup(arguments)
        key = (freeze, *((t.dtype, t.ndim, tuple(n == 1 for n in t.shape)) for t in arguments.tensors))
        found = self._dispatchers.get(key)
        if found is None:
            if any(leaf is not None for leaf in compiled.leaves):
                raise UnsupportedError(
                    f"{self.__name__}: a result that is no array or number cannot leave compiled code"
                )

            def template(names: list[str]) -> str:
                text = _template(compiled.structure.unflatten([_Slot(n) for n in names]))
                if text is None:
                    raise UnsupportedError("njit: results must be arrays and numbers in tuples or lists")
                return text

            name = compiled.executable.name.removesuffix("_kernel")
            source, constants = function_source(name, compiled.executable, template, freeze)
            found = self._dispatchers[key] = dispatcher(name, source, constants)
        return found

    # ----------------------------------------------------------------- seeing what it did

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph for these arguments, as it was traced."""
        return self._lookup(self._bind(args, kwargs)).graph

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What the compiler made of the function for these arguments: loops, products, temporaries, bytes, operations."""
        return explain(self._lookup(self._bind(args, kwargs)).executable)

    def draw(self, *args: Any, **kwargs: Any) -> Drawing:
        """The traced graph as DOT text (``print`` it, or render it with graphviz): gradients in a second colour, detach
        boundaries as a cut."""
        return dot(self.graph(*args, **kwargs))

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The source of the kernels for these arguments."""
        return "\n".join(k.source for k in self._lookup(self._bind(args, kwargs)).executable.kernels)


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

    def key(self) -> Any:
        """What the compiled code depends on."""
        kinds = tuple(
            [
                (type(v) if type(v) in _NUMBERS else None, t.dtype, t.shape)
                for v, t in zip(self.leaves, self.tensors, strict=True)
            ]
        )
        return kinds, self.structure, self.static, len(self.args), tuple(self.names), kernel_mode()

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The contiguous arrays of the leaves."""
        return [t._value if t._aval.contiguous else np.ascontiguousarray(t._value) for t in self.tensors]

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

    def __init__(
        self, function: JitFunction, arguments: Arguments, needs: list[int], out_avals: list[ShapedArray]
    ) -> None:
        self.function = function
        self.name = f"jit({getattr(function, '__name__', 'function')})"
        self.out_avals = tuple(make_aval(a.shape, a.dtype) for a in out_avals)
        self.outputs = len(out_avals)
        self.needs = needs
        self.fresh = (True,) * len(needs)
        given = arguments.tensors

        def flat(*values: Tensor) -> list[Any]:
            leaves: list[Any] = list(given)
            for i, v in zip(range(len(given)), values, strict=True):
                leaves[i] = v
            args, kwargs = arguments.replaced(leaves)
            return [
                as_tensor(r)
                for r in flatten(function._function(*args, **kwargs))[0]
                if isinstance(r, Tensor | np.ndarray)
            ]

        def pull(values: tuple[Tensor, ...], cotangents: list[Tensor]) -> list[Any]:
            def part(*moving: Tensor) -> list[Any]:
                whole: list[Any] = list(values)
                for i, v in zip(needs, moving, strict=True):
                    whole[i] = v
                return flat(*whole)

            return list(vjp(part, *[values[i] for i in needs])[1](cotangents))

        key = (arguments.key(), tuple(needs))
        cache = function.__dict__.setdefault("_pulls", {})
        if key not in cache:
            cache[key] = JitFunction(pull, (), ())
        self.pull: JitFunction = cache[key]

    def _complete(self, g: Any) -> list[Any]:
        gs = [g] if self.outputs == 1 else list(g)
        return [np.zeros(a.shape, a.dtype) if x is None else x for x, a in zip(gs, self.out_avals, strict=True)]

    def run(self, node: GradNode, g: Any) -> Sequence[Any]:
        """The cotangents of the tracked arguments, as arrays."""
        values = tuple(make(r, aval_of(r)) for r in node.residuals)
        cotangents = [make(x, aval_of(x)) for x in self._complete(g)]
        return [t._value for t in self.pull(values, cotangents)]

    def values(self, node: GradNode, g: Any, mask: Any, record: bool) -> Sequence[Any]:
        """The cotangents as tensors; with ``record`` they are one node each of the compiled gradient."""
        values = []
        for i, array in enumerate(node.residuals):
            value = make(array, aval_of(array))
            if record and i in self.needs and node.edges is not None:
                at = self.needs.index(i)
                value._edge, value._slot = node.edges[at], node.slots[at] if node.slots else 0
            values.append(value)
        cotangents = [x if isinstance(x, Tensor) else make(x, aval_of(x)) for x in self._complete(g)]
        return [(t, None) for t in self.pull(tuple(values), cotangents)]


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
