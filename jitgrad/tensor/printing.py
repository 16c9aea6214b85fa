"""How tensors look: ``tensor([2., 4., 6.], requires_grad=True)``, and a table in notebooks."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.autodiff.node import GradNode
from jitgrad.core.graph import Tracer
from jitgrad.tensor.tensor import Tensor

__all__ = ["METHODS"]

_USUAL = ("float64", "int64", "bool")
_MOST_ROWS = 20


def _notes(self: Tensor) -> list[str]:
    notes = [] if self.dtype.name in _USUAL else [f"dtype={self.dtype.name}"]
    if isinstance(self._edge, GradNode):
        notes.append(f"grad_fn={self._edge!r}")
    elif self._edge is not None:
        notes.append("requires_grad=True")
    return notes


def __repr__(self: Tensor) -> str:
    if isinstance(self._value, Tracer):
        return f"traced({self._aval!r})"
    array = self._value
    if array.size:
        body = np.array2string(array, separator=", ", prefix="tensor(", threshold=1000)
        if not array.ndim:
            body = np.array2string(array)
    else:
        body = "[]"
    notes = _notes(self)
    if not array.size and array.shape != (0,):
        notes.insert(0, f"shape={array.shape}")
    return f"tensor({', '.join([body, *notes])})"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _repr_html_(self: Tensor) -> str:
    """For notebooks: a table for up to two axes, a line otherwise."""
    head = f"tensor {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype.name}"
    head += "".join(f", {_escaped(n)}" for n in _notes(self) if not n.startswith("dtype"))
    array = self._value
    if isinstance(array, Tracer) or not 1 <= array.ndim <= 2 or not array.size:
        return f"<div><code>{_escaped(repr(self))}</code></div>"
    table = np.atleast_2d(array)
    rows = []
    for row in table[:_MOST_ROWS]:
        cells = "".join(f"<td>{_cell(v)}</td>" for v in row[:_MOST_ROWS])
        rows.append(f"<tr>{cells}{'<td>…</td>' if len(row) > _MOST_ROWS else ''}</tr>")
    if len(table) > _MOST_ROWS:
        rows.append("<tr><td>…</td></tr>")
    return f"<div><small>{head}</small><table>{''.join(rows)}</table></div>"


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, np.floating) else str(value)


METHODS = {f.__name__: f for f in (__repr__, _repr_html_)}
