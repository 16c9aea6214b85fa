"""jit: a function traced once for the shapes of its arguments and run as fused kernels."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import numpy as np

from jitgrad.autodiff.node import Edge, GradNode, next_tick
from jitgrad.autodiff.reverse import Target, dependencies, reachable
from jitgrad.compiler.draw import Drawing, draw
from jitgrad.compiler.executable import Executable
from jitgrad.compiler.explain import Explanation, explain
from jitgrad.compiler.extents import rooted
from jitgrad.compiler.passes import same_program
from jitgrad.config import overrides
from jitgrad.core.aval import ShapedArray, aval_of, is_float
from jitgrad.core.collector import held_off
from jitgrad.core.graph import Constant, Graph, is_number
from jitgrad.core.memory import owner
from jitgrad.core.modes import ENABLED, UNDECIDED, forward, grad_mode, questions
from jitgrad.core.trace import atom_of, is_within_trace, traces, tracing_into
from jitgrad.eager import forget_plans
from jitgrad.errors import GraphError, UnsupportedError, user_line
from jitgrad.kernels.kernel import kernel_mode, logger
from jitgrad.ops.linear import copy_of
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.operands import wrap
from jitgrad.tensor.recording import inherit_origin
from jitgrad.tensor.tensor import make
from jitgrad.transforms.arguments import Arguments, Parameters, is_weak
from jitgrad.transforms.bindings import Bindings, stands_for_array
from jitgrad.transforms.compiled import Compiled, Pullback, captured
from jitgrad.transforms.numba_functions import numba_callback, numba_function
from jitgrad.transforms.private import plain, private
from jitgrad.transforms.pullback import another_program, pullback_function, record
from jitgrad.transforms.recompiles import Watch
from jitgrad.transforms.regime import Answers, Regime, call_private, name_inputs
from jitgrad.transforms.short_calls import ShortCalls
from jitgrad.transforms.surroundings import MOST_OBJECTS, Surroundings, memory
from jitgrad.transforms.trees import Structure, flatten

__all__ = ["JitFunction", "jit"]

_DEBUG: Final = 10  # logging.DEBUG
_TEMPORARY: Final = 3  # references to what only a list of pairs refers to, while the pairs are looped over
_OWN_REFERENCES: Final = (
    4  # references that ``_compile`` has to a tensor that the traced function made, but for constants and results
)


class JitFunction:
    """A function that is compiled for the shapes and dtypes of its arguments when it is first called with them."""

    __name__: str

    def __init__(self, function: Callable[..., Any], static_argnums: Any, static_argnames: Any) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        parameters = Parameters(function, static_argnums, static_argnames)
        self._bind = parameters.bind
        self._any_static = parameters.any_static
        self._compiled: dict[Any, Compiled] = {}
        self._asking: set[Any] = set()  # the keys with which the program may depend on what is recorded
        self._short = ShortCalls(self._general)
        self._quick = self._short.guarded  # for arguments like those of frequent calls, by their number
        self._numba: dict[Any, Any] = {}  # functions for Numba and C, by what they were made for
        self._signature: inspect.Signature | None = None  # read when it is first compiled for Numba
        self._follows = True  # other tensors in place of captured ones
        self._watch: Watch | None = Watch(getattr(function, "__name__", "function"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # the usual case: contiguous ndarrays and numbers, nothing to record; ``traces`` spares it a call
        if not kwargs and not (traces and is_within_trace()) and (not overrides or kernel_mode() == "compiled"):
            quick = self._quick.get(len(args))
            if quick is not None:
                return quick(*args)
            return self._short(args)
        return self._general(args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance comes first, and is static if it is named so (``static_argnums=0``)."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return self._title

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = self._bind(args, kwargs)
        if is_within_trace() or any(t.is_traced for t in arguments.tensors):
            return self._inlined(arguments)  # part of an outer trace
        compiled = self._lookup(arguments)
        inputs = [*arguments.tensors, *compiled.sources]
        needs = tuple([i for i, t in enumerate(inputs) if t._edge is not None])
        idle: tuple[int, ...] = ()
        if needs in compiled.unreached and not arguments.has_tensors:
            needs, idle = (), needs
        pullback = None
        if needs and grad_mode.get():
            pullback = None if forward.get() else self._pullback(arguments, compiled, needs)
            if pullback is None and compiled.answers is None and arguments.key in self._asking:
                return self._general(args, kwargs)  # it is another program where it is recorded: that one
            if pullback is None:  # recorded operation by operation, as tangents need it
                return self._inlined(arguments, inputs)
            if not arguments.has_tensors and not pullback.needs:
                compiled.unreached.add(needs)
                needs, idle, pullback = (), needs, None
        is_plain = pullback is None and not arguments.has_tensors
        if (
            is_plain
            and not kwargs
            and not self._any_static
            and compiled.answers is None
            and kernel_mode() == "compiled"
        ):
            self._short.remember(args, compiled, {i - len(arguments.tensors) for i in idle})
        results = compiled.executable(arguments.arrays())
        if is_plain:
            return compiled.rebuilt([plain(r) for r in results])
        tensors = [make(r, aval_of(r)) for r in results]
        if pullback is not None:
            record(self._title, arguments, inputs, pullback, tensors)
        elif not needs:
            for tensor in tensors:
                inherit_origin(inputs, tensor)
        return compiled.rebuilt(tensors)

    def _inlined(self, arguments: Arguments, known: Sequence[Tensor] = ()) -> Any:
        """The function itself, on private tensors; results that share memory with ``known`` tensors are copied."""
        leaves = arguments.leaves
        given = [leaf if is_weak(leaf) else private(t) for leaf, t in zip(leaves, arguments.tensors, strict=True)]
        kinds = Regime.now(arguments.tensors).kinds
        name_inputs([(t._edge, k) for t, k in zip(given, kinds, strict=True) if k is not None])
        args, kwargs = arguments.replaced(given)
        result = call_private(self._function, args, kwargs, given, self._title)
        if not known:
            return result
        arrays = [t._value for t in known]

        def own(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return copy_of(leaf) if any(np.may_share_memory(leaf._value, a) for a in arrays) else leaf

        leaves, structure = flatten(result)
        return structure.unflatten([own(leaf) for leaf in leaves])

    def compiled_for(self, *args: Any) -> Compiled:
        """What a call with these arguments runs."""
        return self._lookup(self._bind(args, {}))

    def _lookup(self, arguments: Arguments) -> Compiled:
        key = arguments.key
        regime = Regime.now(arguments.tensors) if self._asking and key in self._asking else None
        known = self._compiled.get((key, regime))
        if known is not None and known.holds:
            return known
        with held_off():
            found = self._compile(arguments, regime)
            if found is not None and found.keeps_new:  # a parameter that was made when it was first needed
                found = self._compile(arguments, regime)
        if found is None:  # its program may depend on the regime
            self._asking.add(key)
            return self._lookup(arguments)
        self._compiled[key, regime] = found
        if self._watch is not None:
            if known is None:
                kernels: set[Hashable] = {(s.kernel.source, s.kernel.signature) for s in found.executable.kernels}
                self._watch.note(arguments.traits(), kernels)
            elif known.bindings.blamed is not None:
                self._watch.note_binding(known.bindings.blamed)
            if not found.bindings.complete:
                self._watch.note_limit(MOST_OBJECTS)
        return found

    def _trace(
        self,
        arguments: Arguments,
        shapes: Sequence[tuple[int, ...]] | None = None,
        edges: Sequence[Edge | None] | None = None,
        mode: bool | str = UNDECIDED,
    ) -> tuple[Graph, Structure, list[Any], list[Tensor]]:
        """The graph for these arguments (or others of the same types and ``shapes``), the form of the results, and the
        tensors among them: recorded ones if that is the ``mode`` and the arguments have ``edges``."""
        start, caller = time.perf_counter(), user_line()
        graph = Graph(getattr(self._function, "__name__", "function"), lines=True)
        stand_ins = []
        extents = [t.shape for t in arguments.tensors] if shapes is None else shapes
        for leaf, tensor, shape in zip(arguments.leaves, arguments.tensors, extents, strict=True):
            stand_in = wrap(graph.add_input(ShapedArray(shape, tensor.dtype, True)))
            stand_in._weak = is_weak(leaf)
            stand_ins.append(stand_in)
        for stand_in, edge in zip(stand_ins, edges or (), strict=False):
            stand_in._edge = edge
        args, kwargs = arguments.replaced(stand_ins)
        token = grad_mode.set(mode)
        try:
            with tracing_into(graph):
                forget_plans()  # see keep_plan; not before, when other threads still keep theirs
                leaves, structure = flatten(call_private(self._function, args, kwargs, stand_ins, self._title))
                rest: list[Any] = []
                tensors: list[Tensor] = []
                for leaf in leaves:
                    if isinstance(leaf, Tensor | np.ndarray | np.generic):
                        tensor = as_tensor(leaf, f"jit, result of {self._name}")
                        graph.outputs.append(atom_of(tensor._value, graph, tensor))
                        tensors.append(tensor)
                        rest.append(None)
                    else:
                        rest.append(leaf)
        finally:
            grad_mode.reset(token)
        live = (graph if shapes is None else rooted(graph)).live()
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
        live.reads = []
        for t, copy in graph.reads or ():
            if sys.getrefcount(t) > _TEMPORARY or _is_alias(t):
                live.reads.append((t, copy))
            elif isinstance(t, Tensor) and _is_of_array(t):
                live.reads.append((t._value, copy))
        return live, structure, rest, tensors

    def _compile(self, arguments: Arguments, regime: Regime | None) -> Compiled | None:
        """What is compiled for these arguments in a regime. Without one they are traced unrecorded: None where the function
        asked what is recorded, since the answers were not those of the call."""
        start = next_tick()
        edges = None if regime is None else regime.edges()
        around = Surroundings(self._function, arguments.static) if self._follows else None
        asked: list[Any] = []
        token = questions.set(asked)
        try:
            mode = UNDECIDED if regime is None else regime.enabled
            graph, structure, rest, results = self._trace(arguments, None, edges, mode)
        except Exception:
            if regime is None and asked:
                return None
            raise
        finally:
            questions.reset(token)
        if regime is None and asked:
            return None
        constants = captured(graph)
        arrays: dict[int, Tensor] = {}
        for c in constants:  # one tensor for an array, however often it met a traced value
            if stands_for_array(c.source):
                c.source = arrays.setdefault(id(c.source._value), c.source)
        sources = {id(c.source): c.source for c in constants}
        # what the function itself made requires grad inside of it alone
        inner = [t for t in sources.values() if t._edge is not None and t._edge.tick >= start]
        kept = any(sys.getrefcount(t) > _OWN_REFERENCES + _count(t, constants, results) for t in inner)
        outer = [t for t in sources.values() if t._edge is None or t._edge.tick < start]
        if (
            edges is not None
            and not grad_mode.get()
            and ENABLED in asked
            and any(map(any, dependencies(results, _targets(edges, outer), _recorded_since(results, start))))
        ):
            raise GraphError(
                f"{self._title} records under enable_grad() though it is called under no_grad(), where its results have no "
                "gradient: leave out one of the two"
            )
        executable = Executable(f"{self._name}_kernel", graph)
        reads = graph.reads or []
        answers = None if regime is None else Answers(regime, outer, asked)
        read = [r for r, _ in reads] + ([] if answers is None else answers.others)
        bindings = Bindings(around, outer, read, inner)
        keeps = kept or bindings.keeps_new
        return Compiled(graph, executable, structure, rest, outer, reads, bindings, answers, keeps)

    @property
    def _title(self) -> str:
        """What messages and the nodes of calls are named by."""
        return f"jit({getattr(self, '__name__', 'function')})"

    @property
    def _name(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in getattr(self._function, "__name__", "function"))

    # ----------------------------------------------------------------- gradients

    def _pullback(self, arguments: Arguments, compiled: Compiled, needs: tuple[int, ...]) -> Pullback | None:
        """The gradient of a call with respect to the arguments and captured tensors at ``needs``; None where a captured
        tensor cannot be made an argument of it, or where other programs have to be made for calls that are recorded."""
        if needs in compiled.pullbacks:
            return compiled.pullbacks[needs]
        if not compiled.bindings.complete:
            return None  # nobody could tell whether it is traced with what the call has read
        # the gradient is traced on its own: it must be that of the very program that ran
        with compiled.bindings.own_changes():
            again, depends, origins = self._recorded(arguments, compiled)
        if not same_program(compiled.graph, again):
            if compiled.answers is None:
                with compiled.bindings.own_changes():
                    once_more = self._recorded(arguments, compiled)[0]
                if same_program(again, once_more):  # it is another one where it is recorded
                    self._asking.add(arguments.key)
                    return None
            raise another_program(self._title)
        count = len(arguments.leaves)
        same = {id(c.source) for c in captured(again)}  # not what the function makes anew each time
        read = {memory(t) for t, _ in compiled.reads}
        hidden = [
            count + k
            for k, t in enumerate(compiled.sources)
            if id(t) in same
            and memory(t) not in read
            and is_float(t.dtype)
            and (count + k in needs or not is_number(t._value))
        ]
        pullback = None
        reached = tuple([i for i in needs if any(row[i] for row in depends)])
        if all(i < count or i in hidden for i in reached):
            moving = tuple([i for i in needs if i < count or i in hidden])
            gradient = pullback_function(
                self._function, self._title, compiled, arguments.emptied(), count, moving, reached, hidden
            )
            function = JitFunction(gradient, (), ())
            function._follows = False
            function._watch = None  # it is compiled anew when this function is, which tells of it
            pullback = Pullback(function, hidden, reached, [[row[i] for i in reached] for row in depends], origins)
        compiled.pullbacks[needs] = pullback
        return pullback

    def _recorded(self, arguments: Arguments, compiled: Compiled) -> tuple[Graph, list[list[bool]], list[str | None]]:
        """A recorded trace, on which arguments and captured tensors each of its results depends by more than detached
        values, and why results depend on none."""
        start = next_tick()
        edges = Regime.now(arguments.tensors).edges()
        graph, _, _, results = self._trace(arguments, edges=edges, mode=True)
        targets = _targets(edges, compiled.sources)
        return graph, dependencies(results, targets, _recorded_since(results, start)), [t._origin for t in results]

    # ----------------------------------------------------------------- Numba

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks an object for that it meets in an ``@njit`` function."""
        raise UnsupportedError(
            f"{self._title} in a Numba function: Numba can call compiled code alone. Compile it first, with an example of each "
            "argument, `g = f.njit(*examples)`, and call g in place of f"
        )

    def __dir__(self) -> list[str]:
        return [n for n in object.__dir__(self) if n != "_numba_type_"]  # for those who read all that an object has

    def _check_examples(self, what: str, args: tuple[Any, ...], unexpected: dict[str, Any]) -> None:
        if self._signature is None:
            with contextlib.suppress(ValueError, TypeError):  # a function in C
                self._signature = inspect.signature(self._function)
        parameters = {} if self._signature is None else self._signature.parameters
        named = [n for n in unexpected if n in parameters and parameters[n].kind is inspect.Parameter.KEYWORD_ONLY]
        if named:
            raise UnsupportedError(
                f"{self._title}.{what} takes its examples by position, and {', '.join(named)} cannot be given so: jit a function "
                "that takes everything by position and calls this one"
            )
        if unexpected:
            raise UnsupportedError(
                f"{self._title}.{what} takes its examples by position: give {', '.join(unexpected)} without the name, in the "
                "order of the function's parameters"
            )
        if self._signature is None:
            return
        try:
            self._signature.bind(*args)
        except TypeError as error:
            raise UnsupportedError(
                f"{self._title}.{what} takes an example of each argument, for whose dtype and number of axes it is "
                f"compiled: {error}"
            ) from None

    def njit(self, *args: Any, freeze: bool = False, **unexpected: Any) -> Any:
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
        self._check_examples("njit", args, unexpected)
        return numba_function(self, self._bind(args, {}), freeze)

    def address(self, *args: Any, freeze: bool = False, user_data: bool = False, **unexpected: Any) -> Any:
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
        self._check_examples("address", args, unexpected)
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


def _targets(edges: Sequence[Edge | None], captured: Sequence[Tensor]) -> list[Target | None]:
    """Where gradients of arguments at these edges, and of captured tensors after them, arrive."""
    places = [*[(e, 0) for e in edges], *[(t._edge, t._slot) for t in captured]]
    return [None if e is None else (e, slot) for e, slot in places]


def _recorded_since(results: Sequence[Tensor], tick: int) -> list[GradNode]:
    """The nodes that lead to results and were recorded since a tick, oldest first."""
    return reachable([t._edge for t in results if t._edge is not None], tick)


def _count(tensor: Tensor, constants: Sequence[Constant], results: Sequence[Tensor]) -> int:
    """How often a tensor stands among these."""
    return sum(c.source is tensor for c in constants) + sum(r is tensor for r in results)


def _is_alias(array: Any) -> bool:
    """Whether other tensors see the memory of this one, and may write it: ``w.detach()`` is seldom kept."""
    return isinstance(array, Tensor) and array._storage is not None and len(array._storage.members()) > 1


def _is_of_array(tensor: Tensor) -> bool:
    """Whether a tensor that is kept nowhere was made of an array that is."""
    array = tensor._value
    memory = owner(array)
    if memory is not array and sys.getrefcount(memory) > _TEMPORARY:  # by its base, the name here, and the call
        return True
    return sys.getrefcount(array) > _TEMPORARY + (memory is array)  # by the tensor, the names here, and the call


def jit(function: Callable[..., Any] | None = None, *, static_argnums: Any = (), static_argnames: Any = ()) -> Any:
    """Compile a function of arrays: traced once for each signature of its arguments, run as fused kernels.

    ``static_argnums``, ``static_argnames``: arguments that are no arrays, or whose value the Python code must know; each
    value is traced on its own. Captured arrays are read again at each call; where the code names a number or a function and
    another is there, it is traced again. Python control flow on values raises; use ``jg.where``. Results are what the
    arguments are: ndarrays and numbers, or tensors.

    >>> import numpy as np, jitgrad as jg
    >>> fast = jg.jit(jg.value_and_grad(lambda x: np.sum(np.sin(x) ** 2)))
    >>> fast(np.zeros(3))
    (0.0, array([0., 0., 0.]))
    """
    if function is None:
        return functools.partial(jit, static_argnums=static_argnums, static_argnames=static_argnames)
    return JitFunction(function, static_argnums, static_argnames)
