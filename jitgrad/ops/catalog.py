"""All operations, collected from the modules that define them."""

from __future__ import annotations

import functools
from types import MappingProxyType, ModuleType
from typing import Any, Final

from jitgrad.errors import DefinitionError
from jitgrad.ops import (
    calculus,
    closeness,
    comparison,
    counting,
    covariance,
    creation,
    einsum,
    elementwise,
    indexing,
    interpolation,
    joining,
    linalg,
    linalg_composites,
    nan_order,
    nan_statistics,
    norms,
    products,
    reduction,
    scan,
    selection,
    shape,
    signal,
    softmax,
    sorting,
    special,
    statistics,
    tensor_products,
    trigonometric,
)
from jitgrad.ops.blocks import Operation

__all__ = ["operations"]

_MODULES: Final[tuple[ModuleType, ...]] = (
    elementwise, trigonometric, selection, comparison, special, closeness, reduction, scan, calculus, softmax, sorting,
    interpolation, statistics, nan_statistics, shape, joining, indexing, creation, products, tensor_products, einsum, signal,
    norms, linalg, linalg_composites, covariance, nan_order, counting,
)  # fmt: skip


@functools.cache
def operations() -> MappingProxyType[str, Operation[..., Any]]:
    """Every public operation by its full name: ``exp``, ``linalg.norm``. Aliases are not listed.

    Raises DefinitionError when two operations claim one name.
    """
    found: dict[str, Operation[..., Any]] = {}
    for module in _MODULES:
        for name, value in vars(module).items():
            if isinstance(value, Operation) and value.public and value.function.__module__ == module.__name__:
                full = f"{value.namespace}.{name}" if value.namespace else name
                if full in found:
                    raise DefinitionError(
                        f"two operations are named {full}: {found[full].function.__module__} and {module.__name__}"
                    )
                found[full] = value
    return MappingProxyType(found)


@functools.cache
def public_names() -> MappingProxyType[str, Operation[..., Any]]:
    """Operations by every name they are known under, aliases included."""
    names: dict[str, Operation[..., Any]] = dict(operations())
    for op in operations().values():
        for short in op.aliases:
            alias = f"{op.namespace}.{short}" if op.namespace else short
            if alias in names and names[alias] is not op:
                raise DefinitionError(f"the name {alias} belongs to {names[alias].name} and {op.name}")
            names[alias] = op
    return MappingProxyType(names)
