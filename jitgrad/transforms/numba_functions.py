"""Functions for Numba and for C, made of a jitted one: arguments and results as the user's Python has them."""

from __future__ import annotations

import functools
import inspect
import io
import keyword
import math
import re
import tokenize
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from jitgrad.compiler.interop import Program, Traced, numba_program
from jitgrad.core.aval import BOOL
from jitgrad.core.graph import Constant, Graph
from jitgrad.core.modes import UNDECIDED
from jitgrad.core.trace import same_bytes
from jitgrad.errors import UnsupportedError
from jitgrad.kernels.kernel import interop, kernel_mode
from jitgrad.transforms.arguments import Arguments
from jitgrad.transforms.observation import Observation
from jitgrad.transforms.trees import Structure

__all__ = ["numba_callback", "numba_function"]

_OURS = re.compile(
    r"(a|c|n|out|tmp|captured|argument)\d+|kernel|np|max|min|float64|never_cache|slice_start|slice_extent"
)
"""Names that the source of a function uses itself."""


class _Jitted(Protocol):
    """A jitted function."""

    _function: Callable[..., Any]
    _numba: dict[Any, Any]

    @property
    def _name(self) -> str: ...

    def _trace(
        self, arguments: Arguments, shapes: Sequence[tuple[int, ...]] | None = None, *, mode: bool | str = UNDECIDED
    ) -> tuple[Graph, Structure, list[Any], list[Any]]: ...


class _Text(str):
    """The text of a leaf of an argument or a result."""


def _program(owner: _Jitted, arguments: Arguments, freeze: bool) -> tuple[Program, Any]:
    """What is compiled for these arguments, from memory where captured arrays are still as they were."""
    key = ("program", freeze, arguments.key)
    found = owner._numba.get(key)
    if found is not None and all(same_bytes(_now(source), copy) for source, copy in found[2]):
        return found[:2]  # type: ignore[no-any-return]
    read: list[tuple[Any, Any]] = []  # captured arrays, with what is copied in

    def trace(shapes: Sequence[tuple[int, ...]]) -> Traced:
        seen = Observation()
        with seen.watch():
            graph, structure, leaves, _ = owner._trace(arguments, shapes, mode=True)
        read[:] = graph.reads or ()
        return Traced(graph, seen.axes, (structure, leaves))

    shapes = tuple(tuple(map(int, t.shape)) for t in arguments.tensors)
    program, form = numba_program(owner._name, trace, shapes, freeze)
    copies = [(c, program.constants[f"captured{k}"]) for k, c in enumerate(program.emitted.captured)]
    owner._numba[key] = (program, form, [*copies, *read])
    return program, form


def _now(source: Any) -> Any:
    """What a captured array is now."""
    return source.current() if isinstance(source, Constant) else getattr(source, "_value", source)


def _dispatcher(
    owner: _Jitted, arguments: Arguments, program: Program, head: list[str], words: list[str], result: str
) -> Any:
    """The Numba function with these parameters and this result; the same object for the same source."""
    name = owner._name
    lines = ["    never_cache()", *(f"    {line}" for line in head[1:])]
    lines += [f"    {line}" for line in program.body({})]
    kernel, body = program.kernel(), "\n".join([*lines, f"    return {result}"]) + "\n"
    called = _free_name(name, kernel, f"def _({head[0]}):\n{body}")
    source = f"{kernel}\n\ndef {called}({head[0]}):\n{body}"
    source = re.sub(r"\{a(\d+)\}", lambda m: words[int(m[1])], source)
    specs = [(t.dtype.name, t.ndim, f"{name}: {w}") for t, w in zip(arguments.tensors, words, strict=True)]
    constants, extras = program.constants, program.emitted.extras
    key = ("source", kernel_mode(), source, *specs, *(c.tobytes() for c in constants.values()), *extras.items())
    found = owner._numba.get(key)
    if found is None:
        found = owner._numba[key] = interop().make_dispatcher(called, source, {**constants, **extras}, specs)
    return found


def _free_name(name: str, *sources: str) -> str:
    """The name for a function that these sources do not mean something else by: many are called ``exp``, or ``kernel``."""
    taken = frozenset[str]().union(*map(_names_in, sources))
    while name in taken or keyword.iskeyword(name):
        name += "_"
    return name


@functools.lru_cache(64)
def _names_in(source: str) -> frozenset[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return frozenset(t.string for t in tokens if t.type == tokenize.NAME)


def numba_function(owner: _Jitted, arguments: Arguments, freeze: bool) -> Any:
    """``owner`` as a Numba function for such arguments."""
    name = owner._name
    program, (structure, leaves) = _program(owner, arguments, freeze)
    texts = [_Text(f"a{k}") for k in range(len(arguments.leaves))]
    parameters = _parameters(owner, arguments)
    paths: dict[str, str] = {}
    for parameter, tree in zip(parameters, arguments.structure.unflatten(texts), strict=True):
        if not _find(tree, parameter, paths):
            raise UnsupportedError(
                f"{name}: the argument {parameter} is not made of arrays and numbers in tuples, which is all that compiled "
                "code takes"
            )
    words = [f"argument {paths[t]}" for t in texts]
    head = [", ".join(parameters), *(f"a{k} = argument{k}({paths[t]})" for k, t in enumerate(texts))]
    result = _result(structure.unflatten(_leaf_texts(name, leaves, program)))
    if result is None:
        raise UnsupportedError(
            f"{name}: results must be arrays and numbers in tuples or lists; compiled code has no dicts"
        )
    return _dispatcher(owner, arguments, program, head, words, result)


def _leaf_texts(name: str, leaves: list[Any], program: Program) -> list[_Text]:
    """The texts of all results, those that are plain numbers included."""
    outputs = iter(program.results())
    found = []
    for leaf in leaves:
        if leaf is None:
            found.append(_Text(next(outputs)))
        elif type(leaf) in (bool, int, float):
            found.append(_Text(repr(leaf) if math.isfinite(leaf) else f"np.{leaf}".replace("np.-", "-np.")))
        else:
            raise UnsupportedError(
                f"{name}: a result of type {type(leaf).__name__} cannot leave compiled code; return arrays and numbers"
            )
    return found


def _parameters(owner: _Jitted, arguments: Arguments) -> list[str]:
    """The names of the arguments, as the user's function has them where that is possible."""
    given = [i for i in range(len(arguments.args)) if i not in arguments.positions]
    try:
        kinds = list(inspect.signature(owner._function).parameters.values())
        names = [
            kinds[i].name for i in given if kinds[i].kind in (kinds[i].POSITIONAL_ONLY, kinds[i].POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError, IndexError):
        names = []
    if len(names) == len(given) and not any(
        _OURS.fullmatch(n) or n == owner._name or keyword.iskeyword(n) for n in names
    ):
        return names
    return [f"x{i}" for i in range(len(given))]


def _find(tree: Any, path: str, paths: dict[str, str]) -> bool:
    """Note where in an argument each leaf lies; False where there is a container that Numba does not know."""
    if isinstance(tree, _Text):
        paths[tree] = path
        return True
    if not isinstance(tree, tuple | list):
        return False
    return all(_find(t, f"{path}[{i}]", paths) for i, t in enumerate(tree))


def _result(tree: Any) -> str | None:
    """The text that builds a result; lists become tuples, which may hold different types."""
    if isinstance(tree, _Text):
        return str(tree)
    if type(tree) not in (tuple, list):
        return None
    parts = [_result(t) for t in tree]
    if None in parts:
        return None
    return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"


# --------------------------------------------------------------------------- C


def numba_callback(owner: _Jitted, arguments: Arguments, freeze: bool, user_data: bool) -> Any:
    """``owner`` as a C function for such arguments."""
    name = owner._name
    program, (_, leaves) = _program(owner, arguments, freeze)
    results = _leaf_texts(name, leaves, program)
    tensors = arguments.tensors
    words = [f"argument {k}" for k in range(len(tensors))]
    head = [", ".join(f"x{k}" for k in range(len(tensors)))]
    head += [f"a{k} = argument{k}(x{k})" for k in range(len(tensors))]
    function = _dispatcher(owner, arguments, program, head, words, f"({', '.join(results)},)")
    key = ("callback", user_data, id(function))
    found = owner._numba.get(key)
    if found is None:
        source, signature = _callback_source(arguments, program, leaves, user_data)
        called = _free_name(name, source)
        source = source.replace("def _(", f"def {called}(")
        found = owner._numba[key] = interop().make_callback(called, source, function, signature)
    return found


def _c_name(dtype: np.dtype[Any]) -> str:
    """The C type of an element; booleans are bytes."""
    return "uint8" if dtype == BOOL else dtype.name


def _callback_source(
    arguments: Arguments, program: Program, leaves: list[Any], user_data: bool
) -> tuple[str, tuple[str, ...]]:
    """The source of a C function that is called ``_``, and its C signature."""
    tensors = arguments.tensors
    first = next((k for k, t in enumerate(tensors) if t.ndim), None)
    extent = program.axes[first][0] if first is not None else None

    def size(symbols: Sequence[str], traced: Sequence[int]) -> list[str]:
        return ["n" if s == extent and s != "1" else str(int(n)) for s, n in zip(symbols, traced, strict=True)]

    given_extents = {s for row in program.axes for s in row}
    definitions = dict(program.definitions)

    def known(symbol: str) -> bool:
        """Whether the caller must have made room for this extent, even where the shapes do not fit."""
        return symbol == "1" or symbol in given_extents or definitions[symbol].isdigit()

    names, types = (["n"], ["int"]) if first is not None else ([], [])
    given = []
    for k, t in enumerate(tensors):
        names.append(f"x{k}")
        types.append(_c_name(t.dtype) + "*" * (t.ndim > 0))
        shape = size(program.axes[k], t.shape)
        if k == first:
            shape[0] = "n"
        as_bool = ".view(np.bool_)" if t.dtype == BOOL else ""
        number = f"x{k} != 0" if t.dtype == BOOL else f"x{k}"
        given.append(f"carray(x{k}, ({', '.join(shape)},)){as_bool}" if t.ndim else number)
    outputs = iter(zip(program.emitted.outputs, program.emitted.shapes, program.output_extents, strict=False))
    returned, lines, failed = None, [], []
    result = "void"
    for r, leaf in enumerate(leaves):
        if leaf is None:
            buffer, symbols, traced = next(outputs)
            dtype, shape = buffer.dtype, size(symbols, traced)
        else:
            dtype, shape, symbols = np.dtype(type(leaf)), [], ()
        bad = "np.nan" if dtype.kind == "f" else "0"
        if returned is None and not shape:
            returned, result = r, _c_name(dtype)
            value = bad
            continue
        names.append(f"y{r}")
        types.append(f"{_c_name(dtype)}*")
        total = " * ".join(shape) or "1"
        lines.append(f"if not is_null(y{r}):")
        if shape:
            lines += [f"    flat{r} = results[{r}].ravel()", f"    for i in range(flat{r}.size):"]
            lines.append(f"        y{r}[i] = flat{r}[i]")
        else:
            lines.append(f"    y{r}[0] = results[{r}]")
        if all(map(known, symbols)):
            failed += [f"if not is_null(y{r}):", f"    for i in range({total}):", f"        y{r}[i] = {bad}"]
    if user_data:
        names.append("user_data")
        types.append("void*")
    inner = [n for n in names if n != "user_data"]
    text = [
        f"def inner({', '.join(inner)}):",
        f"    results = function({', '.join(given)})",
        *(f"    {line}" for line in lines),
        f"    return results[{returned}]" if returned is not None else "    return 0",
        "",
        "",
        f"def _({', '.join(names)}):",
        "    failed = False",
        f"    value = {value}" if returned is not None else "    value = 0",
        "    try:",
        f"        value = inner({', '.join(inner)})",
        "    except Exception:",
        "        failed = True",
        "    if failed:",
        *(f"        {line}" for line in failed or ["pass"]),
        f"        value = {value}" if returned is not None else "        pass",
        *(["    return value"] if returned is not None else []),
    ]
    return "\n".join(text) + "\n", (result, *types)
