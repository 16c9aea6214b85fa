"""The arguments of a jitted function: which are static, and what its compiled code depends on in the others."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.errors import DtypeError, UnsupportedError
from jitgrad.kernels.guards import NUMBERS
from jitgrad.kernels.kernel import kernel_mode
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.transforms.recompiles import Traits
from jitgrad.transforms.trees import Structure, flat_structure, flatten

__all__ = ["Arguments", "Parameters", "is_weak"]

_FLAT: Final = frozenset([np.ndarray, Tensor, *NUMBERS])  # types of leaves


class Parameters:
    """The parameters of a function, some of which are static: their values are compiled in."""

    def __init__(self, function: Callable[..., Any], static_argnums: Any, static_argnames: Any) -> None:
        self._function_name = getattr(function, "__name__", "function")
        self._positions = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        given = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self.names = _positional_parameters(function)
        count = len(self.names)
        self.static_names = {*given, *(self.names[p] for p in self._positions if -count <= p < count)}
        self.any_static = bool(self.static_names or self._positions)
        self._static_by_count: dict[int, frozenset[int]] = {}

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The arguments of one call; raises UnsupportedError where a static one is not hashable or another no array."""
        positions = self.static_positions(len(args))
        if not positions and not kwargs and _FLAT.issuperset(map(type, args)):  # the usual case
            return Arguments(self, args, kwargs, positions, [], list(args), flat_structure(len(args)), ())
        static: list[Any] = []
        dynamic: list[Any] = []
        for i, a in enumerate(args):
            (static if i in positions else dynamic).append(a)
        names = sorted(kwargs)
        for name in names:
            (static if name in self.static_names else dynamic).append(kwargs[name])
        for value in static:
            try:
                hash(value)
            except TypeError:
                raise UnsupportedError(
                    f"jit: the static argument {value!r} of {self._function_name} is not hashable; use a tuple instead of a list"
                ) from None
        leaves, structure = flatten(tuple(dynamic))
        return Arguments(self, args, kwargs, positions, names, leaves, structure, tuple(map(_exact, static)))

    def static_positions(self, count: int) -> frozenset[int]:
        """Which of so many positional arguments are static."""
        found = self._static_by_count.get(count)
        if found is None:
            positions = {p % count if count and p < 0 else p for p in self._positions}
            positions |= {i for i, name in enumerate(self.names[:count]) if name in self.static_names}
            found = self._static_by_count[count] = frozenset(positions)
        return found


@dataclass
class Arguments:
    """The arguments of one call: arrays and numbers as leaves, the static ones apart."""

    parameters: Parameters
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
            if type(leaf) is np.ndarray:
                pass
            elif isinstance(leaf, Tensor):
                self.has_tensors = True
            elif not isinstance(leaf, np.ndarray | np.generic) and type(leaf) not in NUMBERS:
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
        kinds = tuple([(is_weak(v), t.dtype, t.shape) for v, t in zip(self.leaves, self.tensors, strict=True)])
        return kinds, self.structure, self.static, len(self.args), tuple(self.names), kernel_mode()

    def traits(self) -> dict[str, Traits]:
        """Each argument by name, with all that compiled code may depend on."""
        static = iter(self.static)
        leaves = iter(zip(self.leaves, self.tensors, strict=True))
        known = self.parameters.names
        named = [(known[i] if i < len(known) else str(i), a, i in self.positions) for i, a in enumerate(self.args)]
        named += [(n, self.kwargs[n], n in self.parameters.static_names) for n in self.names]
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
                tuple([is_weak(leaf) for leaf, _ in own]),
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
        named = {n: v for n, v in self.kwargs.items() if n in self.parameters.static_names}
        return Arguments(
            self.parameters, tuple(static), named, self.positions, self.names, [], self.structure, self.static
        )

    def replaced(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with other leaves."""
        dynamic = iter(self.structure.unflatten(leaves))
        args = [a if i in self.positions else next(dynamic) for i, a in enumerate(self.args)]
        kwargs = {n: self.kwargs[n] if n in self.parameters.static_names else next(dynamic) for n in self.names}
        return args, kwargs


def is_weak(leaf: Any) -> bool:
    """Whether an argument is a Python number, or stands for one."""
    return leaf._weak if isinstance(leaf, Tensor) else type(leaf) in NUMBERS


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
