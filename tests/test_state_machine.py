"""Random programs of views, detached aliases, in-place writes and backward, against dual numbers on NumPy's memory.

The oracle keeps, for every tensor, a value array and a Jacobian array with the derivatives by all leaves. Both are real
NumPy arrays with real aliasing: a view of one is the same view of the other, so that an in-place write reaches base and
views by itself. A detached alias shares the value and has a Jacobian of its own. Every operation updates both at the
moment when it runs, by the chain rule. What backward computes later must be that number, or an error; an error only
where an operation in the tensor's own history reads elements that were written through an alias after it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from strategies import examples, kernels

import jitgrad as jg
from jitgrad.core.modes import grad_mode
from jitgrad.errors import GraphError, InPlaceError

Array = np.ndarray[Any, Any]
COLUMNS = 40  # elements of all leaves together
LARGEST = 50.0


def places(array: Array) -> Array:
    """The address of each element."""
    offsets = np.tensordot(np.array(array.strides, int), np.indices(array.shape), 1)
    return np.asarray(offsets + array.__array_interface__["data"][0])


class Memory:
    """One piece of memory, as the oracle sees it."""

    def __init__(self) -> None:
        self.tensors = 0  # living tensors on it
        self.exported = False
        self.reads: list[Read] = []  # since it was last replaced

    @property
    def aliased(self) -> bool:
        return self.tensors > 1 or self.exported

    def written(self, where: Array) -> None:
        """Through an alias: what was read there is lost. Otherwise a copy is written, and the old values stay."""
        if not self.aliased:
            self.reads.clear()
        for read in self.reads:
            read.lost |= bool(np.isin(read.where, where).any())


class Read:
    """An operation's backward needs these elements as they are now."""

    def __init__(self, v: Array, memory: Memory) -> None:
        self.where = places(v)
        self.lost = False
        memory.reads.append(self)


Reads = frozenset[Read]
Pair = tuple[jg.Tensor, "Dual"]


class Past:
    """What all operations read that a tensor was computed by; one for a base and the views that follow its history."""

    def __init__(self, reads: Reads = frozenset()) -> None:
        self.reads = reads


class Dual:
    """What a tensor should be: value and Jacobian, its memory, and whether it is a leaf that may not be written."""

    def __init__(
        self,
        v: Array,
        j: Array,
        memory: Memory,
        past: Past,
        *,
        leaf: bool = False,
        view: bool = False,
        loose: bool = False,
    ) -> None:
        self.v = v
        self.j = j
        self.memory = memory
        self.past = past
        self.leaf = leaf  # a leaf that requires grad, or a view that follows the history of one
        self.view = view
        self.loose = loose  # made under no_grad: what is tracked may not be written into it
        self.columns: slice | None = None
        memory.tensors += 1


def fresh(v: Array, j: Array, reads: Reads = frozenset()) -> Dual:
    return Dual(np.array(v, order="C"), np.array(j, order="C"), Memory(), Past(reads))


def spread(j: Array, ndim: int, shape: tuple[int, ...]) -> Array:
    """The Jacobian of a value that is broadcast."""
    padded = j.reshape((1,) * (len(shape) - ndim) + j.shape)
    return np.broadcast_to(padded, (*shape, COLUMNS))


UNARY: dict[str, Any] = {
    "exp": (lambda x: jg.exp(jg.tanh(x)), lambda v: np.exp(np.tanh(v)), lambda v: np.exp(np.tanh(v)) / np.cosh(v) ** 2),
    "sin": (jg.sin, np.sin, np.cos),
    "tanh": (jg.tanh, np.tanh, lambda v: 1 - np.tanh(v) ** 2),
    "square": (jg.square, np.square, lambda v: 2 * v),
    "negative": (jg.negative, np.negative, lambda v: -np.ones_like(v)),
}
READ = {"sin": "operand", "square": "operand", "tanh": "result", "exp": "result"}
BINARY = ["+", "-", "*"]


def among(items: list[Any], index: int) -> Any:
    return items[index // 16 % len(items)]


small = st.integers(0, 1 << 16)
values = st.sampled_from([-1.5, -0.5, 0.0, 0.25, 1.0, 2.0])


def combined(symbol: str, a: Dual, b: Dual) -> tuple[Array, Array]:
    shape = np.broadcast_shapes(a.v.shape, b.v.shape)
    ja, jb = spread(a.j, a.v.ndim, shape), spread(b.j, b.v.ndim, shape)
    if symbol == "+":
        return a.v + b.v, ja + jb
    if symbol == "-":
        return a.v - b.v, ja - jb
    va, vb = np.broadcast_to(a.v, shape), np.broadcast_to(b.v, shape)
    return va * vb, ja * vb[..., None] + jb * va[..., None]


def reads_of(*pairs: Pair) -> Reads:
    """What the histories of operands read."""
    return frozenset().union(*(d.past.reads for t, d in pairs if t.requires_grad))


def read_if(condition: bool, v: Array, memory: Memory) -> Reads:
    """One read, if the condition holds and operations are recorded."""
    return frozenset([Read(v, memory)] if condition and grad_mode.get() else [])


def calculated(symbol: str, a: Any, b: Any) -> Any:
    return a + b if symbol == "+" else a - b if symbol == "-" else a * b


class Programs(RuleBasedStateMachine):
    """Tensors in a list, each beside its oracle (bundles would keep tensors alive that should be freed)."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[jg.Tensor, Dual]] = []
        self.exports: list[tuple[Array, Dual, bool]] = []
        self.leaves: list[tuple[jg.Tensor, slice]] = []
        self.token: Any = None
        self.steps_without = 0  # since no_grad began
        self.used = 0

    def teardown(self) -> None:
        try:
            if self.items:
                self.backward(1)
        finally:
            if self.token is not None:
                grad_mode.reset(self.token)

    # ------------------------------------------------------------------ helpers

    def pick(self, index: int) -> tuple[jg.Tensor, Dual]:
        """Something to compute with; mostly what is tracked."""
        tracked = [item for item in self.items if item[0].requires_grad]
        return among(self.items if index % 4 == 0 or not tracked else tracked, index)

    def target(self, index: int) -> tuple[jg.Tensor, Dual]:
        """Something to write to; mostly what is tracked and may be written."""
        free = [item for item in self.items if not item[1].leaf and (index % 4 == 0 or item[0].requires_grad)]
        return among(self.items if index % 16 == 0 or not free else free, index)

    def add(self, tensor: jg.Tensor, dual: Dual) -> None:
        if not grad_mode.get() and not dual.leaf:
            dual.j = np.zeros((*dual.v.shape, COLUMNS))
        self.items.append((tensor, dual))
        self.keep_small(dual)
        if len(self.items) > 14:
            self.forget(0)

    def forget(self, index: int) -> None:
        _, dual = self.items.pop(index % len(self.items))
        dual.memory.tensors -= 1

    def keep_small(self, dual: Dual) -> None:
        """Large numbers would only test rounding: everything on the memory goes."""
        if np.abs(dual.v).max(initial=0.0) > LARGEST or np.abs(dual.j).max(initial=0.0) > LARGEST**2:
            self.items = [(t, d) for t, d in self.items if d.memory is not dual.memory]
        if not self.items:
            self.items.append((jg.tensor([1.0, 2.0]), fresh(np.array([1.0, 2.0]), np.zeros((2, COLUMNS)))))

    def add_leaf(self, v: Array) -> None:
        if self.used + v.size > COLUMNS:
            return
        tensor = jg.tensor(v, requires_grad=True)
        dual = fresh(v, np.zeros((*v.shape, COLUMNS)))
        dual.columns = slice(self.used, self.used + v.size)
        self.used += v.size
        dual.j.reshape(v.size, COLUMNS)[:, dual.columns] = np.eye(v.size)
        dual.leaf = True
        self.leaves.append((tensor, dual.columns))
        dual.memory.tensors += 1  # the list of leaves keeps it when it is forgotten
        self.items.append((tensor, dual))

    def write(
        self,
        dual: Dual,
        action: Any,
        v: Array | float,
        j: Array | float,
        index: Any = None,
        *,
        sources: Sequence[Pair] = (),
        reads: Reads = frozenset(),
        result_read: bool = False,
        written_is_itself: bool = False,
    ) -> None:
        """An in-place write of ``v``, at an index or as a whole: allowed or refused as it should be, and seen by every alias.

        ``sources``: where the value comes from; ``reads``: what the operation that makes it reads; ``result_read``: its
        backward needs what it writes.
        """
        tensor = next(t for t, d in self.items if d is dual)
        version = tensor._version
        if dual.leaf and grad_mode.get():
            with pytest.raises(InPlaceError):
                action(tensor)
            assert tensor._version == version
            return
        given = any(t.requires_grad for t, _ in sources)
        of_value = reads_of(*sources) | reads
        try:
            action(tensor)
        except InPlaceError:
            assert dual.loose
            assert given
            assert grad_mode.get()
            assert tensor._version == version
            return
        if tensor._version == version:
            assert written_is_itself
            return
        at = ... if index is None else index
        scattered = np.arange(len(dual.v))[at] if isinstance(at, np.ndarray) else np.zeros(0, int)
        box = slice(scattered.min(), scattered.max() + 1) if scattered.size else at  # not known more precisely
        dual.memory.written(places(dual.v)[box])
        dual.v[at] = v
        if grad_mode.get():  # else the history goes on as if nothing had been written
            dual.j[at] = j
            of_value |= read_if(result_read and given and not dual.memory.aliased, dual.v, dual.memory)
            # zeros flow on through what a constant or an item covers, even where that is all
            replaced = index is None and given and not dual.view
            dual.past.reads = of_value if replaced else dual.past.reads | of_value
        self.keep_small(dual)

    # ------------------------------------------------------------------ making tensors

    @initialize()
    def start(self) -> None:
        self.add_leaf(np.array([0.5, -1.0, 2.0, 0.25]))
        self.add_leaf(np.array([[1.5, -0.5, 0.75], [0.0, 1.0, -2.0]]))
        for t, d in list(self.items):
            self.add(t.clone(), fresh(d.v, d.j, reads_of((t, d))))

    @rule(shape=st.sampled_from([(), (3,), (2, 3), (4,)]), tracked=st.booleans(), value=values)
    def create(self, shape: tuple[int, ...], tracked: bool, value: float) -> None:
        v = np.full(shape, value) + np.arange(np.prod(shape, dtype=int)).reshape(shape) / 8
        if tracked:
            self.add_leaf(v)
        else:
            self.items.append((jg.tensor(v), fresh(v, np.zeros((*shape, COLUMNS)))))

    @rule(i=small, name=st.sampled_from(sorted(UNARY)))
    def unary(self, i: int, name: str) -> None:
        t, d = self.pick(i)
        ours, f, slope = UNARY[name]
        made = fresh(f(d.v), d.j * slope(d.v)[..., None], reads_of((t, d)))
        read = d if READ.get(name) == "operand" else made
        made.past.reads |= read_if(t.requires_grad and name in READ, read.v, read.memory)
        self.add(ours(t), made)

    @rule(i=small, k=small, symbol=st.sampled_from(BINARY))
    def binary(self, i: int, k: int, symbol: str) -> None:
        (t, d), (s, e) = self.pick(i), self.pick(k)
        try:
            np.broadcast_shapes(t.shape, s.shape)
        except ValueError:
            s, e = t, d
        reads = reads_of((t, d), (s, e))
        reads |= read_if(symbol == "*" and s.requires_grad, d.v, d.memory)
        reads |= read_if(symbol == "*" and t.requires_grad, e.v, e.memory)
        self.add(calculated(symbol, t, s), fresh(*combined(symbol, d, e), reads))

    @rule(i=small)
    def clone(self, i: int) -> None:
        t, d = self.pick(i)
        self.add(t.clone(), fresh(d.v, d.j, reads_of((t, d))))

    @rule(i=small, k=small)
    def stack(self, i: int, k: int) -> None:
        (t, d), (s, e) = self.pick(i), self.pick(k)
        if t.shape != s.shape or t.ndim > 2:
            return
        reads = reads_of((t, d), (s, e))
        self.add(jg.stack([t, s, t]), fresh(np.stack([d.v, e.v, d.v]), np.stack([d.j, e.j, d.j]), reads))

    @rule(i=small, axis=small)
    def total(self, i: int, axis: int) -> None:
        t, d = self.pick(i)
        if not t.ndim:
            return
        axis %= t.ndim
        self.add(jg.sum(t, axis=axis), fresh(d.v.sum(axis), d.j.sum(axis), reads_of((t, d))))

    @rule(i=small, k=small, seed=small)
    def choose(self, i: int, k: int, seed: int) -> None:
        (t, d), (s, e) = self.pick(i), self.pick(k)
        if t.shape != s.shape:
            s, e = t, d
        condition = np.random.default_rng(seed).random(t.shape) < 0.5
        v, j = np.where(condition, d.v, e.v), np.where(condition[..., None], d.j, e.j)
        self.add(jg.where(condition, t, s), fresh(v, j, reads_of((t, d), (s, e))))

    @rule(i=small, seed=small)
    def gather(self, i: int, seed: int) -> None:
        t, d = self.pick(i)
        if not t.ndim:
            return
        rng = np.random.default_rng(seed)
        index: Any = rng.integers(-t.shape[0], t.shape[0], 3) if t.shape[0] else np.zeros(0, int)
        if seed % 2:
            index = rng.random(t.shape[0]) < 0.5
        self.add(t[index], fresh(d.v[index], d.j[index], reads_of((t, d))))

    # ------------------------------------------------------------------ aliases

    def view(self, i: int, ours: Any, theirs: Any) -> None:
        """A view; ``theirs`` acts on an array with any number of further axes."""
        t, d = self.pick(i)
        made = ours(t)
        v = theirs(d.v)
        if v.ndim == 0 and not isinstance(v, np.ndarray):
            v = d.v[(*np.unravel_index(0, d.v.shape), ...)]
        if grad_mode.get():
            dual = Dual(v, theirs(d.j), d.memory, d.past, leaf=d.leaf, view=True, loose=d.loose)
        else:
            dual = Dual(v, np.zeros((*v.shape, COLUMNS)), d.memory, Past(), loose=True)
        self.items.append((made, dual))

    @rule(i=small, start=st.integers(-3, 3), step=st.sampled_from([1, 2, -1, -2]))
    def slice(self, i: int, start: int, step: int) -> None:
        t, _ = self.pick(i)
        if not t.ndim:
            return
        self.view(i, lambda x: x[start::step], lambda x: x[start::step])

    @rule(i=small, k=small)
    def element(self, i: int, k: int) -> None:
        t, _ = self.pick(i)
        if not t.ndim or not t.shape[0]:
            return
        k %= t.shape[0]
        self.view(i, lambda x: x[k], lambda x: x[k, ...])

    @rule(i=small)
    def transpose(self, i: int) -> None:
        t, _ = self.pick(i)
        n = t.ndim
        self.view(
            i,
            lambda x: jg.permute_dims(x, tuple(range(n))[::-1]),
            lambda x: x.transpose(*range(n)[::-1], *range(n, x.ndim)),
        )

    @rule(i=small, mode=st.booleans())
    def flatten_view(self, i: int, mode: bool) -> None:
        t, d = self.pick(i)
        if not (t._value.flags.c_contiguous and d.v.flags.c_contiguous):  # else the one is a view, the other a copy
            return
        shape = (-1,) if mode else (1, *t.shape)
        n = t.size if mode else None
        self.view(
            i, lambda x: x.reshape(shape), lambda x: x.reshape(((n,) if mode else (1, *t.shape)) + x.shape[t.ndim :])
        )

    @rule(i=small)
    def detach(self, i: int) -> None:
        t, d = self.pick(i)
        self.items.append((t.detach(), Dual(d.v, np.zeros(d.j.shape), d.memory, Past())))

    @rule(i=small)
    def detach_(self, i: int) -> None:
        t, d = self.pick(i)
        if d.view:
            with pytest.raises(GraphError):
                t.detach_()
            return
        if d.memory.tensors > 1 or d.leaf:
            return
        assert t.detach_() is t
        assert t.is_leaf
        d.past = Past()
        d.j[...] = 0.0

    @rule(i=small)
    def export(self, i: int) -> None:
        t, d = self.pick(i)
        array = t.detach().numpy()
        d.memory.exported = True
        self.exports.append((array, d, array.flags.writeable))

    @rule(i=small)
    @precondition(lambda self: len(self.items) > 2)
    def drop(self, i: int) -> None:
        self.forget(i)

    # ------------------------------------------------------------------ writes

    @rule(i=small, k=small, symbol=st.sampled_from(BINARY))
    def augmented(self, i: int, k: int, symbol: str) -> None:
        (t, d), (s, e) = self.target(i), self.pick(k)
        try:
            fits = np.broadcast_shapes(t.shape, s.shape) == t.shape
        except ValueError:
            fits = False
        if not fits:
            s, e = t, d
        v, j = combined(symbol, d, e)

        def action(x: Any) -> None:
            if symbol == "+":
                x += s
            elif symbol == "-":
                x -= s
            else:
                x *= s

        # of what it writes over itself it keeps copies
        reads = read_if(symbol == "*" and t.requires_grad and e.memory is not d.memory, e.v, e.memory)
        self.write(d, action, v, j, sources=[(t, d), (s, e)], reads=reads)

    @rule(i=small, name=st.sampled_from(["sin_", "square_", "tanh_", "zero_", "fill_"]))
    def in_place(self, i: int, name: str) -> None:
        t, d = self.target(i)
        if name in ("zero_", "fill_"):
            value = 0.0 if name == "zero_" else 0.75
            self.write(d, lambda x: x.fill_(value) if value else x.zero_(), value, 0.0)
            return
        _, f, slope = UNARY[name[:-1]]
        v, j = f(d.v), d.j * slope(d.v)[..., None]
        read = READ[name[:-1]] == "result"
        self.write(d, lambda x: getattr(x, name)(), v, j, sources=[(t, d)], result_read=read)

    @rule(i=small, k=small)
    def copy_(self, i: int, k: int) -> None:
        (t, d), (s, e) = self.target(i), self.pick(k)
        try:
            fits = np.broadcast_shapes(t.shape, s.shape) == t.shape
        except ValueError:
            fits = False
        if not fits:
            return
        v, j = np.array(np.broadcast_to(e.v, t.shape)), np.array(spread(e.j, e.v.ndim, t.shape))
        self.write(d, lambda x: x.copy_(s), v, j, sources=[(s, e)])

    @rule(
        i=small, k=small, seed=small, kind=st.sampled_from(["slice", "element", "integers", "mask", "all", "reversed"])
    )
    def set_item(self, i: int, k: int, seed: int, kind: str) -> None:
        (t, d), (s, e) = self.target(i), self.pick(k)
        if kind != "all" and (not t.ndim or not t.shape[0]):
            return
        index = self.index(t, seed, kind)
        shape = d.v[index].shape
        try:
            fits = np.broadcast_shapes(shape, s.shape) == shape
        except ValueError:
            fits = False
        if not fits:
            value = (seed % 7) / 4 - 0.5
            self.write(d, lambda x: x.__setitem__(index, value), value, 0.0, index)
            return
        # where an index repeats, the last one of the values stays, as in NumPy
        v, j = np.array(np.broadcast_to(e.v, shape)), np.array(spread(e.j, e.v.ndim, shape))
        # `x[i] = x[i]` of a view writes nothing
        itself = e.memory is d.memory and np.array_equal(d.v[index], e.v)
        self.write(d, lambda x: x.__setitem__(index, s), v, j, index, sources=[(s, e)], written_is_itself=itself)

    @rule(
        i=small,
        k=small,
        seed=small,
        kind=st.sampled_from(["slice", "element", "integers", "mask", "all"]),
        symbol=st.sampled_from(["+", "*"]),
    )
    def augmented_item(self, i: int, k: int, seed: int, kind: str, symbol: str) -> None:
        """``x[index] += value``: the view of x that Python makes for the time of the write is no alias."""
        (t, d), (s, e) = self.target(i), self.pick(k)
        if not t.ndim or not t.shape[0]:
            return
        index = self.index(t, seed, kind)
        region = fresh(d.v[index], d.j[index])
        try:
            fits = np.broadcast_shapes(region.v.shape, s.shape) == region.v.shape
        except ValueError:
            fits = False
        if not fits:
            return

        def action(x: Any) -> None:
            if symbol == "+":
                x[index] += s
            else:
                x[index] *= s

        reads = read_if(symbol == "*" and s.requires_grad, d.v[index], d.memory)
        reads |= read_if(symbol == "*" and t.requires_grad, e.v, e.memory)
        self.write(d, action, *combined(symbol, region, e), index, sources=[(t, d), (s, e)], reads=reads)

    @staticmethod
    def index(t: jg.Tensor, seed: int, kind: str) -> Any:
        rng = np.random.default_rng(seed)
        if kind == "all":
            return ...
        n = t.shape[0]
        if kind == "slice":
            return slice(int(rng.integers(0, n)), None, int(rng.integers(1, 3)))
        if kind == "reversed":
            return slice(None, None, -1)
        if kind == "element":
            return (int(rng.integers(-n, n)), ...)
        if kind == "integers":
            return rng.integers(-n, n, 3)
        return rng.random(n) < 0.5

    # ------------------------------------------------------------------ modes

    @rule(dice=st.integers(0, 3))
    @precondition(lambda self: self.token is None)
    def enter_no_grad(self, dice: int) -> None:
        if dice == 3:
            self.token = grad_mode.set(False)

    @rule()
    @precondition(lambda self: self.token is not None)
    def leave_no_grad(self) -> None:
        grad_mode.reset(self.token)
        self.token = None

    @invariant()
    def no_grad_is_short(self) -> None:
        self.steps_without = 0 if self.token is None else self.steps_without + 1
        if self.steps_without > 3:
            self.leave_no_grad()

    # ------------------------------------------------------------------ checks

    @rule(seed=small)
    def backward(self, seed: int) -> None:
        """Backward of everything there is, again and again."""
        rng = np.random.default_rng(seed)
        for t, d in list(self.items):
            self.check_gradient(t, d, rng.uniform(-1, 1, t.shape))

    def check_gradient(self, t: jg.Tensor, d: Dual, u: Array) -> None:
        if not t.requires_grad:
            with pytest.raises(GraphError):
                t.backward(np.ones(t.shape))
            return
        expected = np.tensordot(u, d.j, u.ndim)
        for leaf, _ in self.leaves:
            leaf.grad = None
        try:
            t.backward(u, retain_graph=True)
        except InPlaceError as error:
            note(f"refused: {error}")
            assert any(read.lost for read in d.past.reads), "an error where nothing that is needed was overwritten"
            assert all(leaf.grad is None for leaf, _ in self.leaves)
            return
        for leaf, columns in self.leaves:
            wanted = expected[columns].reshape(leaf.shape)
            got = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.detach().numpy()
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9 * LARGEST)

    @invariant()
    def memory_agrees(self) -> None:
        versions: dict[int, int] = {}
        for t, d in self.items:
            # compiled functions may round otherwise than NumPy's
            np.testing.assert_allclose(t._value, d.v, rtol=1e-11, atol=1e-11)
            assert versions.setdefault(id(d.memory), t._version) == t._version, "aliases of different versions"
            if not t.requires_grad:
                assert not d.j.any(), "a tensor has lost its history"
        for array, d, writeable in self.exports:
            np.testing.assert_allclose(array, d.v, rtol=1e-11, atol=1e-11)
            assert array.flags.writeable == writeable


@pytest.mark.parametrize(("mode", "count"), [("python", 150), ("compiled", 15)])
def test_programs_of_views_aliases_and_writes(mode: str, count: int) -> None:
    with kernels(mode):
        run_state_machine_as_test(Programs, settings=examples(count, stateful_step_count=50))


# --------------------------------------------------------------------------------------------- found before


def test_writing_a_detached_alias_of_a_region_into_it_cuts_its_gradient() -> None:
    x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2.0
    y[0:2] = y.detach()[0:2]  # the same memory, and no history
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 2.0]


def test_writing_a_region_into_itself_changes_nothing() -> None:
    x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2.0
    y[0:2] = y[0:2]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
