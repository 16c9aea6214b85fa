"""Where a function finds the tensors and arrays that it captures, and numbers, functions and containers that its code names:
what a closure, a global name or an attribute is bound to may change."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.kernels.guards import USABLE
from jitgrad.tensor import Tensor, as_tensor
from jitgrad.tensor.tensor import make
from jitgrad.transforms.plain_values import EMPTY, PLAIN, contents, is_same, unlike
from jitgrad.transforms.surroundings import ARRAYS, TESTS, Place, Role, Surroundings, memory, own_attribute

__all__ = ["Bindings", "stands_for_array"]


def stands_for_array(tensor: Tensor) -> bool:
    """Whether a captured tensor is nobody's but the trace's: made of an ndarray that met a traced value."""
    return tensor._storage is None and tensor._edge is None and not tensor.is_traced


def _is_like(new: Any, old: Any) -> bool:
    """Whether an object may stand for another, if it has the like at the places that are looked at."""
    if type(new) is not type(old):
        return False
    try:
        a, b = own_attribute(new, "__dict__"), own_attribute(old, "__dict__")
    except AttributeError:
        return True
    return a.keys() == b.keys() and all(is_same(a[k], v) for k, v in b.items() if issubclass(type(v), PLAIN))


def _replaces(value: Any, place: Place) -> bool:
    """Whether this, which is no array, may stand at a place without another trace."""
    if place.role is Role.PLAIN:
        return is_same(value, place.there)
    if place.role is Role.OBJECT:
        return _is_like(value, place.there)
    return place.role is Role.CONTENTS and len(value) == len(place.there) and all(map(is_same, value, place.there))


def _measured(role: Role, container: Any) -> Any:
    """What is compared of a container."""
    return len(container) if role is Role.LENGTH else [*container] if role is Role.KEYS else contents(container)


class Bindings:
    """The places at which a function reads captured tensors and arrays, and what else its code depends on.

    What is at no place (a tensor made by a call, say) counts as bound forever. Arrays are given as the tensors that stand
    for them. What NumPy has made of an array (``w.T``) is at no place, but other arrays on the same memory are.
    ``reads``: tensors and arrays whose values Python has read, for which nothing else can stand. ``new``: tensors that the
    function itself has made; ``keeps_new``: one of them is at a place now.
    """

    def __init__(
        self,
        around: Surroundings | None,
        tensors: Sequence[Tensor],
        reads: Sequence[Any] = (),
        new: Sequence[Tensor] = (),
    ) -> None:
        self.complete = self.settled = True
        self.keeps_new = False
        self.blamed: str | None = None  # the place that was the last reason for another trace
        self.space: dict[str, Any] = {"gone": Exception, "own": own_attribute, "unlike": unlike}
        self.is_array = [stands_for_array(t) for t in tensors]  # rather than a tensor of the user's
        self._of: list[list[int]] = [[] for _ in tensors]
        self._places: list[Place] = []
        if around is not None:
            self._places = self._kept(around, tensors, reads, {id(t) for t in new})
        self.test = " or ".join(self._conditions())
        self._names = [f"there{n}" for n in range(len(self._places))]
        self._there = [False if p.role in TESTS else p.there for p in self._places]
        self._different = _different(tensors)

    def _kept(
        self, around: Surroundings, tensors: Sequence[Tensor], reads: Sequence[Any], new: Container[int]
    ) -> list[Place]:
        """The places that matter, each after that of its holder."""
        read = {memory(r) for r in reads}
        known: dict[int | None, list[int]] = {}
        for k, t in enumerate(tensors):
            known.setdefault(memory(t), []).append(k)
        walk, bound = around.after({*read, *known})
        if bound is not None:
            self.settled, self.blamed = False, bound.path()
        places = walk.places
        if (late := next((p for p in places if id(p.there) in new), None)) is not None:
            self.keeps_new, self.settled, self.blamed = True, False, late.path()
        arrays = [(p, known.get(memory(p.there), [])) for p in places if p.role is Role.ARRAY]
        for place, related in arrays:
            for k in related:
                if place.there is tensors[k]:
                    self.is_array[k] = False
        own = [t._value if is_array else t for t, is_array in zip(tensors, self.is_array, strict=True)]
        found = {k for place, related in arrays for k in related if place.there is own[k]}
        for place, related in arrays:
            # a tensor that has a place is not made of what else is on its memory; w.detach() and w.T have none
            place.sources = [k for k in related if k not in found or self.is_array[k] or place.there is own[k]]
            place.kept |= bool(place.sources) or memory(place.there) in read
            exact = bool(place.sources) and all(place.there is own[k] for k in place.sources)
            if not exact or memory(place.there) in read:
                place.role = Role.ONLY
        memories = {memory(p.there) for p, _ in arrays}
        self.complete = walk.complete and (walk.whole or (read | known.keys()) <= memories)
        for place in reversed(places):
            if place.kept and place.parent is not None:
                place.parent.kept = True
        kept = [p for p in places if p.kept]
        inner = {id(p.parent) for p in kept}
        for n, place in enumerate(kept):
            if place.role is Role.OBJECT and id(place) not in inner:
                place.role = Role.ONLY  # nothing is known of it
            if place.role is Role.ARRAY:
                for k in place.sources:
                    self._of[k].append(n)
        return kept

    def _conditions(self) -> Iterator[str]:
        """Source text that is true where a place has changed."""
        self._now: list[str] = []
        numbers = {id(p): n for n, p in enumerate(self._places)}
        roots: dict[int, str] = {}
        for n, place in enumerate(self._places):
            if place.parent is not None:
                above = numbers[id(place.parent)]
                holder, other = f"there{above}", f"now{above}"
                place.holder = None
            else:
                holder = other = roots.setdefault(id(place.holder), f"root{len(roots)}")
                self.space[holder] = place.holder
            there = f"there{n}"
            self.space[there] = place.there
            if place.role in TESTS:
                text = TESTS[place.role]
                self._now.append(f"    now{n} = {text.format(holder=other, there=there)}")
                if not place.step.final:
                    yield holder if place.there in EMPTY else text.format(holder=holder, there=there)
                continue
            text, key, function, final = place.step
            names = {"key": f"key{n}", "function": f"function{n}"}
            self.space |= {f"key{n}": key} if "{key}" in text else {}
            self.space |= {f"function{n}": function} if "{function}" in text else {}
            self._now.append(f"    now{n} = {text.format(holder=other, **names)}")
            if not final:
                yield f"{text.format(holder=holder, **names)} is not {there}"

    @property
    def lines(self) -> str:
        """Lines of source that set ``changed``, for the names in ``space``; empty where nothing can change."""
        return f"    try: changed = {self.test}\n    except gone: changed = True\n" if self.test else ""

    @functools.cached_property
    def changed(self) -> Callable[[], bool]:
        """Whether anything is at a place but what was there."""
        changed: Callable[[], bool] = self.made(
            "changed", f"def changed():\n{self.lines or '    changed = False'}\n    return changed"
        )
        return changed

    @functools.cached_property
    def _values(self) -> Callable[[], list[Any]]:
        """What is at each place now, or whether it differs; raises where there is none any more."""
        names = ", ".join(f"now{n}" for n in range(len(self._places)))
        values: Callable[[], list[Any]] = self.made(
            "values", "\n".join(["def values():", *self._now, f"    return [{names}]"])
        )
        return values

    def made(self, name: str, source: str) -> Any:
        """What is defined under this name by source that reads ``space``, and sees what is written to it later."""
        made: dict[str, Any] = {}  # of this call alone: threads make theirs at the same time
        exec(source, self.space, made)
        return made[name]

    def look(self, tensors: Sequence[Tensor]) -> tuple[list[tuple[int, Any]], list[Tensor]] | None:
        """The places that have changed, with what is there, and the tensors that are bound in place of these; None where
        they cannot stand for the same values."""
        if not self.settled:
            return None
        self.blamed = None
        try:
            return self._looked(tensors, self._values())
        except Exception:  # of code of the objects there, if something is there at all
            return None

    def _looked(
        self, tensors: Sequence[Tensor], values: list[Any]
    ) -> tuple[list[tuple[int, Any]], list[Tensor]] | None:
        moved: list[tuple[int, Any]] = []
        sources: set[int] = set()
        for n, (value, there) in enumerate(zip(values, self._there, strict=True)):
            if value is there:
                continue
            place = self._places[n]
            if place.role is Role.ARRAY:
                sources.update(place.sources)
                moved.append((n, value))
                continue
            if place.role in TESTS:
                value = _measured(place.role, self._holder(place, values))
            if not _replaces(value, place):
                self.blamed = None if place.sources else place.path()
                return None
            moved.append((n, value))
        bound = list(tensors)
        if not sources:
            return moved, bound
        for k in sources:
            new = self._bound(k, tensors[k], values)
            if new is None:
                return None
            bound[k] = new
        return (moved, bound) if _different(bound) == self._different else None

    def _holder(self, place: Place, values: list[Any]) -> Any:
        return place.holder if place.parent is None else values[self._places.index(place.parent)]

    def _bound(self, k: int, tensor: Tensor, values: list[Any]) -> Tensor | None:
        """The tensor that is bound in place of one; None where it is not like it, or there are several."""
        at = self._of[k]
        new = values[at[0]]
        if len(at) > 1 and any(values[n] is not new for n in at):
            return None
        array, aval = new, tensor._aval
        if not self.is_array[k]:
            if not isinstance(new, Tensor) or new.is_traced or new._weak != tensor._weak:
                return None
            array = new._value
        elif new is tensor._value:
            return tensor
        elif type(new) is not np.ndarray:
            return None
        if array.shape != aval.shape or array.dtype != aval.dtype:
            return None
        if array is not new:
            return new  # type: ignore[no-any-return]
        if aval.contiguous and new.flags.num & USABLE == USABLE:
            return make(new, aval)
        made = as_tensor(new)
        return made if made._value is array else None  # of a copy, later values would not be seen

    def commit(self, moved: list[tuple[int, Any]]) -> None:
        """From now on this is what is at the places."""
        space, names, there, places = self.space, self._names, self._there, self._places
        for n, value in moved:
            places[n].there = space[names[n]] = value
            if there[n] is not False or places[n].role not in TESTS:
                there[n] = value

    @contextlib.contextmanager
    def own_changes(self) -> Iterator[None]:
        """What is bound inside at places that the function may write, but for arrays, is its own doing: it is traced for its
        gradient."""
        try:
            before = self._values()
        except Exception:  # something is gone already: the next call sees to it
            yield
            return
        yield
        with contextlib.suppress(Exception):
            after = self._values()
            for n, (place, old, new) in enumerate(zip(self._places, before, after, strict=True)):
                if old is not new and place.own and not issubclass(type(place.there), ARRAYS):
                    self.commit(
                        [(n, _measured(place.role, self._holder(place, after)) if place.role in TESTS else new)]
                    )

    def now(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The tensors that are bound in place of these, like them; None where they cannot stand for the same values."""
        found = self.look(tensors)
        return None if found is None else found[1]


def _different(tensors: Sequence[Tensor]) -> int:
    """How many arrays there are."""
    return len({id(t._value) for t in tensors})
