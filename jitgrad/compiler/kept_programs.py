"""Compiled programs kept on disk by what their graphs say, so that a large graph is fused and emitted once.

The content of a graph is all that the compiler may look at: the avals of its inputs, its nodes in order, their parameters,
the bits of its literals, which constants are one array. The user's lines are not part of it, since the compiled source has
no comments. A graph with something that has no name which other processes share - a primitive or function of the user - has
no content, and is compiled anew in each.
"""

from __future__ import annotations

import functools
import os
import pickle
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitgrad.compiler.fused_kernel import FusedKernel
from jitgrad.core.graph import Atom, Constant, Extent, Graph
from jitgrad.core.primitive import Primitive
from jitgrad.kernels.kernel import kernel_mode, recall, remember

__all__ = ["Content", "content_of", "is_worth_keeping", "keep", "kept"]

_WORTH_KEEPING: Final = 30  # nodes: smaller graphs are compiled about as fast as they are looked up
_PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep
_PLAIN: Final = (int, str, bool, float, type(None))
_LOADED: Final = time.time()


@dataclass(frozen=True)
class Content:
    """What a graph says, as text, and the captured arrays that the text counts."""

    text: str
    constants: list[Constant]


def content_of(graph: Graph) -> Content | None:
    """The content of a graph; None where it has something without a lasting name."""
    names: dict[Atom, str] = {v: f"i{k}" for k, v in enumerate(graph.inputs)}
    constants: list[Constant] = []
    arrays: dict[int, int] = {}  # several constants may be one array

    def name(atom: Atom) -> str:
        found = names.get(atom)
        if found is None:
            if not isinstance(atom, Constant):  # nothing needs the value any more, but something has its shape
                found = f"dead{len(names)}"
            elif atom.is_literal:
                found = f"{atom.value.dtype.str}:{atom.value.tobytes().hex()}"
            else:
                place = arrays.setdefault(id(atom.value), len(arrays))
                found = f"k{len(constants)}:{place}:{atom.value.dtype.str}{atom.value.shape}"
                constants.append(atom)
            names[atom] = found
        return found

    lines = [f"{v.aval.dtype.str}{tuple(map(int, v.aval.shape))}" for v in graph.inputs]
    count = 0
    try:
        for node in graph.nodes:
            for v in node.outputs:
                names[v] = str(count)
                count += 1
            params = "".join([f" {k}={_text(p, name)}" for k, p in node.params.items()]) if node.params else ""
            inputs = " ".join([names.get(a) or name(a) for a in node.inputs])
            lines.append(f"{_name_of(node.primitive)} {inputs}{params}{' b' if node.backward else ''}")
        lines.append(" ".join([name(a) for a in graph.outputs]))
    except _NamelessError:
        return None
    return Content("\n".join(lines), constants)


class _NamelessError(Exception):
    pass


@functools.cache
def _name_of(primitive: Primitive) -> str:
    """Name and place of an operation of this package."""
    if not primitive.definition.startswith(_PACKAGE):
        raise _NamelessError
    return f"{primitive.name}@{primitive.definition[len(_PACKAGE) :]}"


def _text(value: Any, name: Any) -> str:
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is Extent:
        return f"{int(value)}<{name(value.atom)}.{value.axis}>"
    if kind is tuple:
        return f"({','.join([_text(v, name) for v in value])})"
    if kind in _PLAIN:
        return repr(value)
    if isinstance(value, np.dtype):
        return value.str
    if kind is Primitive:
        return _name_of(value)
    if kind is slice:
        return f"{_text((value.start, value.stop, value.step), name)}:"
    raise _NamelessError


@functools.cache
def _package() -> str | None:
    """A state of the package's sources: kept programs are those of one compiler. None where the sources have changed since
    they were loaded, so that their state is not that of the compiler which runs."""
    found = []
    for directory, _, files in os.walk(_PACKAGE):
        for file in files:
            if file.endswith(".py"):
                state = os.stat(os.path.join(directory, file))
                if max(state.st_mtime, state.st_ctime) > _LOADED:
                    return None
                found.append((directory[len(_PACKAGE) :], file, state.st_size, state.st_mtime_ns))
    return repr(sorted(found))


def _question(content: Content) -> str:
    return f"{_package()}\n{content.text}"


def is_worth_keeping(graph: Graph) -> bool:
    """Whether a graph is large enough for its program to be kept on disk."""
    return len(graph.nodes) >= _WORTH_KEEPING and kernel_mode() == "compiled" and _package() is not None


def kept(name: str, content: Content) -> tuple[FusedKernel, list[Constant]] | None:
    """The kernel of a graph of this content, and the constants that it takes; None where there is none on disk."""
    payload = recall(name, _question(content), ())
    if payload is None:
        return None
    kernel, captured = pickle.loads(zlib.decompress(payload))
    return kernel, [content.constants[k] for k in captured]


def keep(name: str, content: Content, kernel: FusedKernel, captured: Sequence[Constant]) -> None:
    """Keep the kernel of a graph for ``kept``, unless it depends on what the graph does not say."""
    places = {c: k for k, c in enumerate(content.constants)}
    if kernel.extras or any(c not in places for c in captured):
        return
    answer = pickle.dumps((kernel, [places[c] for c in captured]), pickle.HIGHEST_PROTOCOL)
    remember(name, _question(content), (), zlib.compress(answer, 1))
