"""Einstein summation: whatever its subscripts can say, by products of two operands at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.core.aval import result_dtype
from jitgrad.core.dispatch import as_value
from jitgrad.core.primitive import Value
from jitgrad.errors import ArgumentError, ShapeError
from jitgrad.ops.axes import integer_of
from jitgrad.ops.blocks import Call, operation, uniform
from jitgrad.ops.elementwise import multiply
from jitgrad.ops.linear import convert, diagonal_view, reshape_to, sum_over
from jitgrad.ops.product_primitives import matrix_product
from jitgrad.ops.products import contract, ordered
from jitgrad.ops.reduction import any_over

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Labels = tuple[Any, ...]
"""A name for each axis: a letter or an integer as the user gave it, ``("...", i)`` for the axes behind an ellipsis."""


def _parsed(operands: tuple[Any, ...]) -> tuple[list[Value], list[list[Any]], list[Any] | None]:
    """Operands, and what the user wrote for their axes and for those of the result (None: implicit); ``...`` stands as
    Ellipsis. The two forms are ``("ij,jk->ik", a, b)`` and ``(a, [0, 1], b, [1, 2], [0, 2])``."""
    if not operands:
        raise ArgumentError("einsum needs subscripts and operands")
    if not isinstance(operands[0], str):
        count = len(operands) // 2
        values = [as_value(v, f"einsum, operand {i + 1}") for i, v in enumerate(operands[: 2 * count : 2])]
        lists = [_sublist(s) for s in operands[1 : 2 * count : 2]]
        return values, lists, _sublist(operands[-1]) if len(operands) % 2 else None
    text = operands[0].replace(" ", "")
    values = [as_value(v, f"einsum, operand {i + 1}") for i, v in enumerate(operands[1:])]
    if text.count("->") > 1 or "-" in text.replace("->", "") or ">" in text.replace("->", ""):
        raise ArgumentError(f"einsum: subscripts '{operands[0]}': '->' may stand once, and only whole")
    left, arrow, right = text.partition("->")
    terms = [_term(t, operands[0]) for t in left.split(",")]
    if len(terms) != len(values):
        raise ArgumentError(f"einsum: '{operands[0]}' is for {len(terms)} operands, not {len(values)}")
    return values, terms, _term(right, operands[0]) if arrow else None


def _sublist(items: Any) -> list[Any]:
    if not isinstance(items, list | tuple):
        raise ArgumentError(f"einsum: subscripts must be a string, or a list after each operand, not {items!r}")
    return [i if i is Ellipsis else integer_of(i, "an index of einsum") for i in items]


def _term(text: str, whole: str) -> list[Any]:
    before, dots, after = text.partition("...")
    labels = [*before, *([Ellipsis] if dots else []), *after]
    for c in labels:
        if c is not Ellipsis and c not in _LETTERS:
            raise ArgumentError(f"einsum: '{c}' in the subscripts '{whole}' is no letter, nor '...', ',' or '->'")
    return labels


def _expanded(terms: list[list[Any]], values: list[Value], out: list[Any] | None) -> tuple[list[Labels], Labels]:
    """A label for every axis: ellipses written out (aligned at their ends), and the implicit result made."""
    made: list[Labels] = []
    most = 0
    for number, (term, x) in enumerate(zip(terms, values, strict=True)):
        named = len(term) - term.count(Ellipsis)
        dotted = x.ndim - named
        if term.count(Ellipsis) > 1:
            raise ArgumentError(f"einsum: more than one '...' for operand {number + 1}")
        if dotted < 0 or (dotted and Ellipsis not in term):
            raise ShapeError(
                f"einsum: operand {number + 1} of shape {x.shape} has {x.ndim} axes, its subscripts {named}"
            )
        made.append(_with_dots(term, dotted))
        most = max(most, dotted)
    every = [i for labels in made for i in labels]
    if out is None:
        once = [i for i in every if every.count(i) == 1 and not isinstance(i, tuple)]
        return made, (*_with_dots([Ellipsis], most), *sorted(once))
    if out.count(Ellipsis) > 1:
        raise ArgumentError("einsum: more than one '...' in the result")
    if most and Ellipsis not in out:
        raise ArgumentError("einsum: operands have axes behind '...', the result has no '...'")
    result = _with_dots(out, most)
    for i in result:
        if result.count(i) > 1:
            raise ArgumentError(f"einsum: '{i}' stands twice in the result")
        if i not in every:
            raise ArgumentError(f"einsum: '{i}' of the result stands in no operand")
    return made, result


def _with_dots(term: Sequence[Any], count: int) -> Labels:
    dots = [("...", i) for i in reversed(range(count))]
    return tuple(label for i in term for label in (dots if i is Ellipsis else [i]))


def _diagonal(x: Value, labels: Labels) -> tuple[Value, Labels]:
    """One axis for each label: of repeated ones, the diagonal."""
    for label in dict.fromkeys(labels):
        if len({x.shape[i] for i in range(x.ndim) if labels[i] == label}) > 1:
            raise ShapeError(f"einsum: the axes '{label}' of an operand of shape {x.shape} differ in length")
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            x = diagonal_view(x, offset=0, axis1=i, axis2=j)
            labels = (*labels[:i], *labels[i + 1 : j], *labels[j + 1 :], label)
    return x, labels


def _without(x: Value, labels: Labels, summed: set[Any]) -> tuple[Value, Labels]:
    """Summed over some of its axes."""
    axes = tuple(i for i, label in enumerate(labels) if label in summed)
    if not axes:
        return x, labels
    if x.dtype.kind == "b":
        return any_over(x, axes=axes), tuple(i for i in labels if i not in summed)
    made = sum_over(x, axes=axes)
    made = made if made.dtype == x.dtype else convert(made, dtype=x.dtype)
    return made, tuple(i for i in labels if i not in summed)


def _arranged(x: Value, labels: Labels, wanted: Sequence[Any]) -> Value:
    """The axes in another order."""
    return ordered(x, tuple(labels.index(i) for i in wanted))


def _contracted(x: Value, in_x: Labels, y: Value, in_y: Labels, keep: set[Any]) -> tuple[Value, Labels]:
    """The product of two operands, summed over the labels that nothing else needs."""
    x, in_x = _without(x, in_x, set(in_x) - set(in_y) - keep)
    y, in_y = _without(y, in_y, set(in_y) - set(in_x) - keep)
    batch = [i for i in in_x if i in in_y and i in keep]
    over = [i for i in in_x if i in in_y and i not in keep]
    rows = [i for i in in_x if i not in in_y]
    columns = [i for i in in_y if i not in in_x]
    labels = (*batch, *rows, *columns)
    if not batch:
        pairs = tuple(in_x.index(i) for i in over), tuple(in_y.index(i) for i in over)
        return contract("einsum", x, y, *pairs), labels
    extent = {**dict(zip(in_y, y.shape, strict=True)), **dict(zip(in_x, x.shape, strict=True))}
    sizes = [[extent[i] for i in group] for group in (batch, rows, columns, over)]
    shape = tuple(n for group in sizes[:3] for n in group)
    if not over:
        left = reshape_to(_arranged(x, in_x, batch + rows), shape=(*sizes[0], *sizes[1], *(1 for _ in columns)))
        right = reshape_to(_arranged(y, in_y, batch + columns), shape=(*sizes[0], *(1 for _ in rows), *sizes[2]))
        return multiply(left, right), labels
    count, m, n, k = map(math.prod, sizes)
    a, ta = _as_matrices(x, in_x, batch, rows, over, (count, m, k))
    b, tb = _as_matrices(y, in_y, batch, over, columns, (count, k, n))
    return reshape_to(matrix_product(a, b, ta=ta, tb=tb), shape=shape), labels


def _as_matrices(
    x: Value, labels: Labels, batch: list[Any], rows: list[Any], columns: list[Any], shape: tuple[int, int, int]
) -> tuple[Value, bool]:
    """A stack of matrices; or of their transposes (True), where this saves moving elements."""
    if labels == (*batch, *columns, *rows):
        return reshape_to(x, shape=(shape[0], shape[2], shape[1])), True
    return reshape_to(_arranged(x, labels, batch + rows + columns), shape=shape), False


def _order(values: list[Value], labels: list[Labels], out: Labels) -> list[tuple[int, ...]]:
    """Which operands to contract next, cheapest first (NumPy's greedy search)."""
    if len(values) <= 2:
        return [tuple(range(len(values)))]
    number = {label: i for i, label in enumerate(dict.fromkeys(i for term in labels for i in term))}
    arguments: list[Any] = []
    for x, term in zip(values, labels, strict=True):
        arguments += [np.broadcast_to(np.zeros((), np.int8), x.shape), [number[i] for i in term]]
    path, _ = np.einsum_path(*arguments, [number[i] for i in out], optimize="greedy")
    return [tuple(step) for step in path[1:]]


def _einsum_samples(rng: np.random.Generator) -> list[Call]:
    cases: list[tuple[str, list[tuple[int, ...]]]] = [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ba", [(2, 3)]),
        ("ii", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("iji->j", [(2, 3, 2)]),
        ("ij->", [(2, 3)]),
        ("i,i", [(3,), (3,)]),
        ("i,j->ji", [(2,), (3,)]),
        ("bij,bjk->bik", [(2, 2, 3), (2, 3, 2)]),
        ("bij,kjb->bki", [(2, 2, 3), (4, 3, 2)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("bi,bj->bij", [(2, 3), (2, 2)]),
        ("...ij,...jk->...ik", [(2, 2, 3), (3, 2)]),
        ("i...,i->...", [(3, 2, 2), (3,)]),
        ("...,...", [(2, 3), (3,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 4)]),
        ("i,ij,j", [(2,), (2, 3), (3,)]),
        ("ijk,k,jl->i", [(2, 3, 2), (2,), (3, 2)]),
        (",i->i", [(), (2,)]),
        ("ij,ij->i", [(2, 3), (2, 1)]),
    ]
    calls = [Call((text, *(uniform(rng, *s) for s in shapes)), {}) for text, shapes in cases]
    a, b = uniform(rng, 2, 3), uniform(rng, 3, 2)
    calls.append(Call((a, [0, 1], b, [1, 2], [2, 0]), {}))
    calls.append(Call((a, [4, 1], b, [1, 4]), {"optimize": True}))
    calls.append(Call((a, [Ellipsis, 1], b, [1, 2], [2, Ellipsis]), {}))
    return calls


@operation(samples=_einsum_samples, remembered=True)
def einsum(*operands: Any, optimize: Any = True) -> Value:
    """Einstein summation: ``einsum("ij,jk->ik", a, b)`` or ``einsum(a, [0, 1], b, [1, 2], [0, 2])``.

    All of NumPy's subscripts: implicit and explicit results, ``...``, repeated labels (diagonals), any number of
    operands, axes of one element that broadcast. Products are taken in pairs, by matrix products where they add up, in
    a greedy order of cost; ``optimize`` is accepted and changes nothing. A ShapeError where extents differ, an
    ArgumentError for subscripts that mean nothing.
    Derivative: for each operand the same sum with the cotangent in its place.

    >>> import jitgrad as jg
    >>> jg.einsum("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    tensor([3., 7.])
    """
    values, terms, out = _parsed(operands)
    labels, result = _expanded(terms, values, out)
    dtype = result_dtype(*(v.dtype for v in values))
    values = [v if v.dtype == dtype else convert(v, dtype=dtype) for v in values]
    extent: dict[Any, int] = {}
    for number, (x, term) in enumerate(zip(values, labels, strict=True)):
        for i, n in zip(term, x.shape, strict=True):
            known = extent.setdefault(i, n)
            if n != known and n != 1 and known != 1:
                raise ShapeError(
                    f"einsum: '{i}' has {known} elements, but {n} in operand {number + 1} of shape {x.shape}"
                )
            extent[i] = n if known == 1 else known
    for number, (x, term) in enumerate(zip(values, labels, strict=True)):
        x, term = _diagonal(x, term)
        stretched = [i for i, n in zip(term, x.shape, strict=True) if n == 1 and extent[i] != 1]
        if stretched:
            term = tuple(i for i in term if i not in stretched)
            x = reshape_to(x, shape=tuple(extent[i] for i in term))
        values[number], labels[number] = x, term
    for step in _order(values, labels, result):
        chosen = [(values[i], labels[i]) for i in step]
        for i in sorted(step, reverse=True):
            del values[i], labels[i]
        keep = {*result, *(i for term in labels for i in term)}
        x, term = chosen.pop(0)
        while chosen:
            y, other = chosen.pop(0)
            x, term = _contracted(x, term, y, other, keep | {i for _, t in chosen for i in t})
        values.append(x)
        labels.append(term)
    x, term = _without(values[0], labels[0], set(labels[0]) - set(result))
    return _arranged(x, term, result)
