"""Linear algebra under NumPy's names: ``jg.linalg.norm``, ``solve``, ``inv``, ``det``, ``cholesky`` ..."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitgrad.ops.catalog import public_names
from jitgrad.tensor.methods import public_function

_operations = {
    n.removeprefix("linalg."): public_function(op) for n, op in public_names().items() if n.startswith("linalg.")
}
globals().update(_operations)

__all__ = [*_operations]  # noqa: PLE0604

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
