"""A compiled graph as the source of an ordinary Numba function: shapes are read from the arguments at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.compiler.executable import Executable
from jitgrad.errors import UnsupportedError

__all__ = ["function_source"]


def function_source(
    name: str, executable: Executable, template: Callable[[list[str]], str], freeze: bool
) -> tuple[str, dict[str, Any]]:
    """Source whose last function is ``name(*arrays)``, and the arrays that it names.

    ``template`` puts the texts of the results into the containers of the traced function. Extents that do not follow
    from those of the arguments make the function check that the arguments have the traced shapes.

    Raises UnsupportedError for graphs with operations that are not fused, and for captured arrays unless ``freeze``.
    """
    step = executable.single
    if step is None:
        apart = sorted({s.node.primitive.name for s, _, _ in executable.steps if hasattr(s, "node")})
        raise UnsupportedError(
            f"{name}: no single kernel computes this function"
            + (
                f": {', '.join(apart)} cannot be part of one yet"
                if apart
                else ": a result is an argument or a constant as it is"
            )
        )
    emitted = step.emitted
    if emitted.captured and not freeze:
        shapes = ", ".join(repr(c.aval) for c in emitted.captured)
        raise UnsupportedError(
            f"{name}: captured arrays ({shapes}) cannot be read again from compiled code. Pass them as arguments, or say "
            "freeze=True to copy them in as they are now"
        )
    inputs = executable.graph.inputs
    names = [f"a{k}" for k in range(len(inputs))]
    extents = [f"n{k}" for k in range(len(emitted.extents))]
    numbers = [f"c{k}" for k in range(len(emitted.numbers))]
    written = [b for k, b in enumerate(emitted.outputs) if k != emitted.returned]
    kernel = [*names, *(f"b{k}" for k in range(len(emitted.captured))), *extents, *numbers]
    kernel += [b.name for b in (*written, *emitted.temporaries)]
    text = emitted.helpers
    text += (
        "\n".join([f"def kernel({', '.join(kernel)}):", *(f"    {line}" for line in emitted.body or ["pass"])])
        + "\n\n\n"
    )
    lines = [f"def {name}({', '.join(names)}):", "    never_cache()"]
    for k, variable in enumerate(inputs):
        if variable.aval.ndim:
            lines.append(f"    a{k} = contiguous(a{k})")
    fixed = [k for k, f in enumerate(emitted.formulas) if f is None]
    for k, variable in enumerate(inputs):
        wanted = variable.aval.shape
        for axis, n in enumerate(wanted):
            if fixed or n == 1:  # extent 1 is part of the structure, and so is every extent where one is not understood
                lines += [
                    f"    if a{k}.shape[{axis}] != {int(n)}:",
                    f"        raise ValueError({_misfit(name, k, wanted)!r})",
                ]
    seen: dict[str, str] = {}
    for k, formula in enumerate(emitted.formulas):
        lines.append(f"    n{k} = {emitted.extents[k] if formula is None else formula}")
    for k, variable in enumerate(inputs):  # axes that must agree
        for axis, symbol in enumerate(_symbols(step, k)):
            here = f"a{k}.shape[{axis}]"
            if symbol != "1" and seen.setdefault(symbol, here) != here:
                lines += [
                    f"    if {here} != {symbol}:",
                    f"        raise ValueError({_disagree(name, here, seen[symbol])!r})",
                ]
    lines += [f"    c{k} = {value!r}" for k, value in enumerate(emitted.numbers)]
    shapes_of = dict(zip([b.name for b in (*emitted.outputs, *emitted.temporaries)], emitted.shapes, strict=True))
    for b in (*written, *emitted.temporaries):
        shape = shapes_of[b.name]
        lines.append(
            f"    {b.name} = np.empty(({', '.join(shape)}{',' if len(shape) == 1 else ''}), np.{b.dtype.name})"
            if shape
            else f"    {b.name} = np.empty(1, np.{b.dtype.name})"
        )
    given = [f"{v.aval.dtype.name}_buffer(a{k})" for k, v in enumerate(inputs)]
    given += [f"{c.aval.dtype.name}_buffer(captured{k})" for k, c in enumerate(emitted.captured)]
    given += [*extents, *numbers, *(f"{b.dtype.name}_buffer({b.name})" for b in (*written, *emitted.temporaries))]
    value = f"{emitted.outputs[emitted.returned].name} = " if emitted.returned is not None else ""
    lines.append(f"    {value}kernel({', '.join(given)})")
    results = [b.name if k == emitted.returned or b.shape else f"{b.name}[0]" for k, b in enumerate(emitted.outputs)]
    lines.append(f"    return {template(results)}")
    constants = {f"captured{k}": np.ascontiguousarray(c.current()) for k, c in enumerate(emitted.captured)}
    return text + "\n".join(lines) + "\n", constants


def _symbols(step: Any, k: int) -> tuple[str, ...]:
    return step.input_symbols[k]  # type: ignore[no-any-return]


def _misfit(name: str, k: int, shape: tuple[int, ...]) -> str:
    return f"{name}: argument {k} must have shape {tuple(map(int, shape))}, as when it was compiled"


def _disagree(name: str, here: str, there: str) -> str:
    return f"{name}: {here} and {there} must agree"
