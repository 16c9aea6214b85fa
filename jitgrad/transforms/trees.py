"""Nested containers: dicts, lists, tuples, named tuples and dataclasses of arrays, by way of optree.

optree is loaded only when a container turns up: flat arguments, the usual case, cost nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.errors import ArgumentError

__all__ = ["Structure", "flat_structure", "flatten", "flatten_axes", "is_leaf", "map_leaves"]


class Structure:
    """What a tree looks like without its leaves."""

    __slots__ = ("_spec",)

    def __init__(self, spec: Any) -> None:
        self._spec = spec

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The tree with these leaves."""
        if self._spec is None:
            (leaf,) = leaves
            return leaf
        return self._spec.unflatten(leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self._spec == other._spec

    def __hash__(self) -> int:
        return hash(self._spec)

    def __repr__(self) -> str:
        return "*" if self._spec is None else str(self._spec)


LEAF = Structure(None)


def is_leaf(tree: Any) -> bool:
    """Whether this is no container (None is one, without leaves)."""
    return tree is not None and not isinstance(tree, list | tuple | dict) and not _is_dataclass(tree)


def _is_dataclass(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


@functools.cache
def _optree() -> Any:
    return importlib.import_module("optree")


@functools.cache
def _register(kind: type) -> None:
    """Make optree look into a dataclass."""
    names = tuple(f.name for f in dataclasses.fields(kind))

    def take_apart(obj: Any) -> tuple[tuple[Any, ...], None, tuple[str, ...]]:
        return tuple(getattr(obj, n) for n in names), None, names

    def put_together(_: None, children: Sequence[Any]) -> Any:
        made: Any = object.__new__(kind)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(made, name, child)
        return made

    _optree().register_pytree_node(kind, take_apart, put_together, namespace="jitgrad")


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a tree, and its structure.

    >>> leaves, structure = flatten({"b": 1.0, "a": [2.0, (3.0, None)]})
    >>> leaves
    [2.0, 3.0, 1.0]
    >>> structure.unflatten(leaves)
    {'b': 1.0, 'a': [2.0, (3.0, None)]}
    """
    if is_leaf(tree):
        return [tree], LEAF
    while True:
        leaves, spec = _optree().tree_flatten(tree, namespace="jitgrad")
        unknown = {type(leaf) for leaf in leaves if _is_dataclass(leaf)}
        if not unknown:
            return leaves, Structure(spec)
        for kind in unknown:
            _register(kind)  # type: ignore[arg-type]


@functools.cache
def flat_structure(count: int) -> Structure:
    """That of a tuple of so many leaves."""
    return flatten((0,) * count)[1]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with a function applied to every leaf."""
    leaves, structure = flatten(tree)
    return structure.unflatten([function(leaf) for leaf in leaves])


def flatten_axes(axes: Any, tree: Any, what: str) -> list[int | None]:
    """An axis, or None, for each leaf of a tree; one for a whole container goes for all of its leaves.

    >>> flatten_axes((0, None), ({"a": 1.0, "b": 2.0}, 3.0), "axes")
    [0, 0, None]
    """
    flatten(tree)  # makes its dataclasses known
    flatten(axes)
    options = {"none_is_leaf": True, "namespace": "jitgrad"}
    try:
        spread = _optree().broadcast_prefix(axes, tree, **options)
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"{what}: {axes!r} does not fit what it stands for: {error}") from None
    found = [
        axis for axis, leaf in zip(spread, _optree().tree_leaves(tree, **options), strict=True) if leaf is not None
    ]
    for axis in found:
        if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
            raise ArgumentError(f"{what}: an axis is an int or None, not {axis!r}")
    return found
