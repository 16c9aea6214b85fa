"""Batching: the graph of a function of one element, run on whole batches.

A batched value carries the batch as its first axis. What that means for a node is a matter of its kind: elementwise
operations broadcast, reductions and movement leave one more axis alone, products become batched products. A primitive
of which nothing is known is run for one element after the other. Everything is made of jitgrad operations, so the
result can be recorded, pushed forward, or traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitgrad.core.dispatch import wrap
from jitgrad.core.graph import Atom, Constant, Extent, Node, Tracer
from jitgrad.core.modes import grad_mode, in_backward
from jitgrad.core.primitive import Elementwise, Host, Primitive, Reduce, Value
from jitgrad.core.trace import current_graph
from jitgrad.errors import ArgumentError
from jitgrad.ops.batch_axes import ALONG_AXES, LEADING
from jitgrad.ops.elementwise import add, multiply
from jitgrad.ops.linear import (
    add_at,
    bounded,
    convert,
    copy_of,
    diagonal_view,
    expand,
    exponents,
    flip_view,
    gather,
    join,
    overwrite,
    permute,
    pile,
    place,
    place_diagonal,
    put,
    reshape_to,
    scatter_add,
    slice_view,
    stack_values,
    stop_gradient_view,
    sum_over,
    take_at,
)
from jitgrad.ops.product_primitives import matrix_product, matrix_vector, vector_dot, vector_outer
from jitgrad.ops.products import column
from jitgrad.ops.sorting import search, sorting_positions
from jitgrad.ops.statistics import ranked_positions

__all__ = ["Batched", "run_batched"]

Params = dict[str, Any]
_EVERYTHING: Final = (None, None, None)  # a slice


@dataclass(slots=True)
class Batched:
    """A value, and whether its first axis is the batch."""

    value: Value
    batched: bool


def run_batched(
    nodes: Sequence[Node], modes: Sequence[Any], outputs: Sequence[Atom], known: dict[Atom, Batched]
) -> list[Batched]:
    """The outputs of the graph of one element, given what its inputs are for the whole batch.

    ``modes``: the grad mode in which each node was traced; what was unrecorded then is so now.
    """
    needed: set[Atom] = set(outputs)
    wanted: list[tuple[Node, Any]] = []
    for node, mode in zip(reversed(nodes), reversed(modes), strict=True):
        if not needed.isdisjoint(node.outputs):
            wanted.append((node, mode))
            needed.update(node.inputs)
    wanted.reverse()
    last_use = {atom: i for i, (node, _) in enumerate(wanted) for atom in (*node.inputs, *_sources(node.params))}
    last_use.update(dict.fromkeys(outputs, len(wanted)))
    own = {v for node in nodes for v in node.outputs}.union(known)
    outer = grad_mode.get()
    for i, (node, mode) in enumerate(wanted):
        operands = [_known(a, known) for a in node.inputs]
        params = {k: _translated(v, known, own) for k, v in node.params.items()} if node.params else node.params
        token = grad_mode.set(outer if mode else False)
        sweeping = in_backward.set(node.backward)
        try:
            found = _run(node.primitive, operands, params)
        finally:
            in_backward.reset(sweeping)
            grad_mode.reset(token)
        batched = any(x.batched for x in operands)
        for variable, value in zip(node.outputs, found, strict=True):
            known[variable] = Batched(value, batched)
        for atom in {*node.inputs, *_sources(node.params), *node.outputs}:
            if last_use.get(atom, i) == i:
                known.pop(atom, None)
    return [_known(a, known) for a in outputs]


def _sources(params: Params) -> list[Atom]:
    """The values whose extents stand in parameters."""
    found = []
    stack = list(params.values())
    while stack:
        param = stack.pop()
        if isinstance(param, Extent):
            found.append(param.atom)
        elif type(param) is tuple:
            stack.extend(param)
    return found


def _known(atom: Atom, known: dict[Atom, Batched]) -> Batched:
    found = known.get(atom)
    if found is None:
        assert isinstance(atom, Constant)
        graph = current_graph()
        found = Batched(wrap(Tracer(graph, atom) if graph is not None and atom.made else atom.value), False)
    return found


def _translated(param: Any, known: dict[Atom, Batched], own: set[Atom]) -> Any:
    """A parameter with the extents of the element's ``own`` values as those of the batch's values."""
    if isinstance(param, Extent):
        source = known.get(param.atom)
        if source is None:
            return int(param) if param.atom in own else param  # one of an outer trace stays what it is
        return source.value.shape[param.axis + source.batched]
    if type(param) is tuple:
        return tuple([_translated(p, known, own) for p in param])
    return param


def _run(primitive: Primitive, operands: Sequence[Batched], params: Params) -> Sequence[Value]:
    if not any(x.batched for x in operands):
        found = primitive(*(x.value for x in operands), **params)
        return found if primitive.outputs > 1 else (found,)
    rule = _RULES.get(primitive)
    if rule is not None:
        return (rule(operands, params),)
    if isinstance(primitive.impl, Elementwise):
        return (_elementwise(primitive, operands),)
    if isinstance(primitive.impl, Reduce):
        (x,) = operands
        return (primitive(x.value, axes=_shifted(params["axes"])),)
    if primitive in _MOVEMENT:
        return (primitive(operands[0].value, **_MOVEMENT[primitive](_size(operands), params)),)
    if primitive in LEADING or primitive in ALONG_AXES:
        if primitive in ALONG_AXES:
            params = {k: _shifted(v) if k in ("axis", "axes") else v for k, v in params.items()}
        found = primitive(*_all_batched(operands), **params)
        return found if primitive.outputs > 1 else (found,)
    return _one_by_one(primitive, operands, params)


def _one_by_one(primitive: Primitive, operands: Sequence[Batched], params: Params) -> Sequence[Value]:
    size = _size(operands)
    if size == 0:
        avals = [_element(x) for x in operands]
        assert isinstance(primitive.impl, Host)
        found = primitive.impl.infer(*avals, **params)
        results = found if isinstance(found, tuple | list) else (found,)
        return tuple([wrap(np.zeros((0, *r.shape), r.dtype)) for r in results])
    rows = []
    for i in range(size):
        made = primitive(*(slice_view(x.value, index=(i,)) if x.batched else x.value for x in operands), **params)
        rows.append(made if primitive.outputs > 1 else (made,))
    return tuple([stack_values(list(column)) for column in zip(*rows, strict=True)])


def _element(x: Batched) -> Any:
    """The aval of one element."""
    aval = x.value._aval
    return type(aval)(tuple(int(n) for n in aval.shape[x.batched :]), aval.dtype, True)


# --------------------------------------------------------------------------- operands


def _size(operands: Sequence[Batched]) -> int:
    return next(x.value.shape[0] for x in operands if x.batched)  # type: ignore[no-any-return]


def _shifted(axes: Any) -> Any:
    """Axes of the element as axes of the batch."""
    return axes + 1 if isinstance(axes, int) else tuple([a + 1 for a in axes])


def _rank(x: Batched) -> int:
    return x.value.ndim - x.batched  # type: ignore[no-any-return]


def _aligned(x: Batched, rank: int) -> Value:
    """A batched value with axes of extent 1 after the batch, so that its element has ``rank`` axes."""
    value = x.value
    missing = rank - _rank(x)
    if missing <= 0 or not x.batched:
        return value
    return reshape_to(value, shape=(value.shape[0], *(1,) * missing, *value.shape[1:]))


def _whole(x: Batched, size: int) -> Value:
    """The value with a batch axis."""
    return x.value if x.batched else expand(x.value, shape=(size, *x.value.shape))


def _all_batched(operands: Sequence[Batched]) -> list[Value]:
    size = _size(operands)
    return [_whole(x, size) for x in operands]


def _elementwise(primitive: Primitive, operands: Sequence[Batched]) -> Value:
    rank = max(_rank(x) for x in operands)
    return primitive(*(_aligned(x, rank) for x in operands))


# --------------------------------------------------------------------------- movement

_MOVEMENT: Final[dict[Primitive, Callable[[int, Params], Params]]] = {
    reshape_to: lambda size, p: {"shape": (size, *p["shape"])},
    permute: lambda size, p: {"axes": (0, *_shifted(p["axes"]))},
    flip_view: lambda size, p: {"axes": _shifted(p["axes"])},
    diagonal_view: lambda size, p: {**p, "axis1": p["axis1"] + 1, "axis2": p["axis2"] + 1},
    place_diagonal: lambda size, p: {
        "shape": (size, *p["shape"]),
        "offset": p["offset"],
        "axis1": p["axis1"] + 1,
        "axis2": p["axis2"] + 1,
    },
    slice_view: lambda size, p: {"index": (_EVERYTHING, *p["index"])},
    place: lambda size, p: {"shape": (size, *p["shape"]), "index": (_EVERYTHING, *p["index"])},
    convert: lambda size, p: p,
    copy_of: lambda size, p: p,
    bounded: lambda size, p: p,
    exponents: lambda size, p: p,
    stop_gradient_view: lambda size, p: p,
}


def _expand(operands: Sequence[Batched], params: Params) -> Value:
    (x,) = operands
    return expand(_aligned(x, len(params["shape"])), shape=(x.value.shape[0], *params["shape"]))


def _pile(operands: Sequence[Batched], params: Params) -> Value:
    return pile(*_all_batched(operands), axis=params["axis"] + 1)


def _join(operands: Sequence[Batched], params: Params) -> Value:
    return join(*_all_batched(operands), axis=params["axis"] + 1)


def _overwrite(operands: Sequence[Batched], params: Params) -> Value:
    base, value = operands
    size = _size(operands)
    target = np.broadcast_to(np.zeros(()), tuple(map(int, base.value.shape[base.batched :])))
    chain = []
    for primitive, step in params["chain"]:
        target = primitive.impl.view(target, **dict(step))
        moved = _MOVEMENT.get(primitive)
        if moved is None:
            raise ArgumentError(f"a write through {primitive.name} cannot be batched; write with jg.where instead")
        chain.append((primitive, tuple(moved(size, dict(step)).items())))
    wide = _aligned(value, target.ndim) if value.batched else value.value
    return overwrite(_whole(base, size), expand(wide, shape=(size, *target.shape)), chain=tuple(chain))


# --------------------------------------------------------------------------- gathers


def _offsets(size: int, stride: int, rank: int) -> Value:
    """What to add to positions of each element to have positions in the whole batch."""
    return wrap((np.arange(int(size)) * int(stride)).reshape((int(size),) + (1,) * rank))


def _places(positions: Batched, size: int, stride: int) -> Value:
    return add(_aligned(positions, _rank(positions)), _offsets(size, stride, _rank(positions)))


def _count(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= int(n)
    return count


def _gather(operands: Sequence[Batched], params: Params) -> Value:
    x, positions = operands
    if not x.batched:
        return gather(x.value, positions.value)
    size = x.value.shape[0]
    return gather(x.value, _places(positions, size, _count(x.value.shape[1:])))


def _scatter_add(operands: Sequence[Batched], params: Params) -> Value:
    x, positions = operands
    size, shape = _size(operands), params["shape"]
    places = _places(positions, size, _count(shape))
    return scatter_add(_whole(x, size), places, shape=(size, *shape))


def _put(operands: Sequence[Batched], params: Params) -> Value:
    base, value, positions = operands
    size = _size(operands)
    places = _places(positions, size, _count(base.value.shape[base.batched :]))
    wide = expand(_aligned(value, _rank(positions)), shape=places.shape)
    return put(_whole(base, size), wide, places)


def _merged(x: Value, axis: int) -> Value:
    """The batch and an axis of the element as one first axis."""
    order = (0, axis + 1, *(i for i in range(1, x.ndim) if i != axis + 1))
    moved = permute(x, axes=order)
    return reshape_to(moved, shape=(_count(moved.shape[:2]), *moved.shape[2:]))


def _parted(x: Value, size: int, axis: int) -> Value:
    """The inverse of ``_merged``."""
    parted = reshape_to(x, shape=(size, _count(x.shape[:1]) // max(int(size), 1), *x.shape[1:]))
    rest = iter(range(2, parted.ndim))
    return permute(parted, axes=(0, *(1 if i == axis else next(rest) for i in range(parted.ndim - 1))))


def _take_at(operands: Sequence[Batched], params: Params) -> Value:
    x, positions = operands
    axis = params["axis"]
    if not positions.batched:
        return take_at(x.value, positions.value, axis=axis + 1)
    size, count = positions.value.shape
    if not x.batched:
        rows = take_at(x.value, reshape_to(positions.value, shape=(_count((size, count)),)), axis=axis)
        shape = x.value.shape
        parted = reshape_to(rows, shape=(*shape[:axis], size, count, *shape[axis + 1 :]))
        return permute(parted, axes=(axis, *(i for i in range(parted.ndim) if i != axis)))
    extent = x.value.shape[axis + 1]
    places = reshape_to(_places(positions, size, extent), shape=(_count((size, count)),))
    taken = take_at(_merged(x.value, axis), places, axis=0)
    if size == 0:
        return reshape_to(taken, shape=(0, *x.value.shape[1 : axis + 1], count, *x.value.shape[axis + 2 :]))
    return _parted(taken, size, axis)


def _add_at(operands: Sequence[Batched], params: Params) -> Value:
    x, positions = operands
    shape, axis = params["shape"], params["axis"]
    size = _size(operands)
    if not positions.batched:
        return add_at(x.value, positions.value, shape=(size, *shape), axis=axis + 1)
    places = reshape_to(_places(positions, size, shape[axis]), shape=(_count(positions.value.shape),))
    rows = _merged(_whole(x, size), axis)
    added = add_at(rows, places, shape=(_count((size, shape[axis])), *rows.shape[1:]), axis=0)
    return reshape_to(added, shape=(0, *shape)) if size == 0 else _parted(added, size, axis)


def _sorting_positions(operands: Sequence[Batched], params: Params) -> Value:
    (x,) = operands
    found = sorting_positions(x.value, **{**params, "axis": params["axis"] + 1})
    return add(found, _offsets(x.value.shape[0], -_count(x.value.shape[1:]), _rank(x)))


def _search(operands: Sequence[Batched], params: Params) -> Value:
    x, values = operands
    if x.batched:
        return _one_by_one(search, operands, params)[0]
    return search(x.value, values.value, **params)


def _ranked_positions(operands: Sequence[Batched], params: Params) -> Value:
    (x,) = operands
    found = ranked_positions(x.value, axes=_shifted(params["axes"]), fractions=params["fractions"])
    moved = permute(found, axes=(1, 0, *range(2, found.ndim)))
    return add(moved, _offsets(x.value.shape[0], -_count(x.value.shape[1:]), moved.ndim - 1))


# --------------------------------------------------------------------------- products


def _matrix_product(operands: Sequence[Batched], params: Params) -> Value:
    x, y = operands
    size = _size(operands)
    lead = next((v.value.shape[v.batched : -2] for v in operands if _rank(v) > 2), ())

    def whole(v: Batched) -> Value:
        if not v.batched and _rank(v) == 2:
            return v.value  # one matrix for all
        return expand(_aligned(v, len(lead) + 2), shape=(size, *lead, *v.value.shape[-2:]))

    return matrix_product(whole(x), whole(y), **params)


def _matrix_vector(operands: Sequence[Batched], params: Params) -> Value:
    a, x = operands
    t = params["t"]
    if not a.batched:
        return matrix_product(x.value, a.value, ta=False, tb=not t)
    made = matrix_product(a.value, column(x.value), ta=t, tb=False)
    return reshape_to(made, shape=made.shape[:-1])


def _vector_dot(operands: Sequence[Batched], params: Params) -> Value:
    x, y = operands
    if not y.batched:
        return matrix_vector(x.value, y.value, t=False)
    if not x.batched:
        return matrix_vector(y.value, x.value, t=False)
    if x.value.dtype.kind == "f":
        return sum_over(multiply(x.value, y.value), axes=(1,))
    row = reshape_to(x.value, shape=(x.value.shape[0], 1, *x.value.shape[1:]))
    return reshape_to(matrix_product(row, column(y.value), ta=False, tb=False), shape=x.value.shape[:1])


def _vector_outer(operands: Sequence[Batched], params: Params) -> Value:
    x, y = operands
    left = reshape_to(x.value, shape=(*x.value.shape, 1))
    right = reshape_to(y.value, shape=(*y.value.shape[:-1], 1, y.value.shape[-1]))
    return multiply(left, right)


_RULES: Final[dict[Primitive, Callable[[Sequence[Batched], Params], Value]]] = {
    expand: _expand,
    pile: _pile,
    join: _join,
    overwrite: _overwrite,
    gather: _gather,
    scatter_add: _scatter_add,
    put: _put,
    take_at: _take_at,
    add_at: _add_at,
    search: _search,
    sorting_positions: _sorting_positions,
    ranked_positions: _ranked_positions,
    matrix_product: _matrix_product,
    matrix_vector: _matrix_vector,
    vector_dot: _vector_dot,
    vector_outer: _vector_outer,
}
