"""Random programs over arrays: what the tests of jit and of the compiler's passes run in several ways.

A program is a list of steps, each on values that were made before; shapes decide which steps are possible, so a program is
drawn together with its shapes. It runs on ndarrays wrapped as tensors, on traced values, under any transform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import jitgrad as jg

Array = np.ndarray[Any, Any]
Step = tuple[str, tuple[int, ...], Any]

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": jg.sin,
    "tanh": jg.tanh,
    "root": lambda x: jg.sqrt(x * x + 0.1),
    "double": lambda x: x * 2.0,
    "shift": lambda x: 0.5 - x,
    "detach": lambda x: x.detach(),
    "clone": lambda x: x.clone(),
    "negative": lambda x: -x,
    "recip": lambda x: 1.0 / (2.0 + jg.cos(x)),
    "single": lambda x: x.astype(np.float32).astype(np.float64),
    "cumsum": lambda x: jg.cumsum(x, axis=0) / (1.0 + x.shape[0]) if x.ndim else x,
    "ravel": lambda x: x.reshape(-1),
    "transpose": lambda x: x.T,
    "reverse": lambda x: x[::-1] if x.ndim else x,
    "front": lambda x: x[None],
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: jg.tanh(x) * y,
    "subtract": lambda x, y: x - 0.5 * y,
    "maximum": jg.maximum,
    "where": lambda x, y: jg.where(x > y, jg.sin(x), y),
}


def _reduced(kind: str, axes: Any, keepdims: bool) -> Callable[[Any], Any]:
    return lambda x: jg.tanh(getattr(x, kind)(axis=axes, keepdims=keepdims))


def _written(x: Any, index: Any, value: Any, adds: bool) -> Any:
    made = x * 1.0
    if adds:
        made[index] += value
    else:
        made[index] = value
    return made


def _through_view(x: Any, index: Any, value: Any) -> Any:
    made = x * 1.0
    part = made[index]
    seen = made.detach()
    part *= value
    return made + jg.sin(seen)


def _through_alias(x: Any, index: Any) -> Any:
    made = x * 1.0
    seen = made.detach()
    part = seen[index]
    part *= 1.0 + 0.25 * jg.sin(jg.sum(x))  # the alias gets a history of its own
    made += 0.5
    return made + jg.sin(seen) * jg.cos(part.detach().sum())


def apply(step: Step, values: list[Any]) -> Any:
    """The value that a step makes of earlier ones."""
    name, places, extra = step
    xs = [values[i] for i in places]
    if name in UNARY:
        return UNARY[name](*xs)
    if name in BINARY:
        return BINARY[name](*xs)
    if name == "reduce":
        return _reduced(*extra)(*xs)
    if name == "slice":
        return xs[0][extra]
    if name == "gather":
        return xs[0][np.array(extra)]
    if name == "take":
        return jg.take(xs[0], np.array(extra[0]), axis=extra[1])
    if name == "concat":
        return jg.concatenate(xs, axis=extra)
    if name == "matmul":
        return jg.tanh(xs[0] @ xs[1])
    if name == "write":
        return _written(xs[0], extra[0], jg.sin(xs[1]) if len(xs) > 1 else 0.25, extra[1])
    if name == "view":
        return _through_view(xs[0], extra, 0.75)
    if name == "alias":
        return _through_alias(xs[0], extra)
    assert name == "expand"
    return jg.broadcast_to(xs[0], extra)


@dataclass
class Program:
    """Shapes of arguments, and steps; the value is that of the last step."""

    shapes: list[tuple[int, ...]]
    seed: int
    steps: list[Step] = field(default_factory=list)

    def arrays(self) -> list[Array]:
        """Arguments, away from nothing in particular."""
        rng = np.random.default_rng(self.seed)
        return [rng.uniform(-1.5, 1.5, s) for s in self.shapes]

    def __call__(self, *arguments: Any) -> Any:
        values = list(arguments)
        for step in self.steps:
            values.append(apply(step, values))
        return values[-1]

    def scalar(self, *arguments: Any) -> Any:
        """A number that depends on all elements of the value, and on the arguments through other ways as well."""
        y = self(*arguments)
        weights = np.cos(np.arange(float(y.size))).reshape(y.shape)
        total = (jg.sin(y) * weights).sum()
        for x in arguments:
            total = total + jg.tanh(x * 0.5).sum() * 0.125
        return total

    @property
    def __name__(self) -> str:
        return "program"


def _index(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    entries: list[Any] = []
    for n in shape:
        kind = draw(st.sampled_from(["all", "part", "back", "item"])) if n else "all"
        if kind == "all":
            entries.append(slice(None))
        elif kind == "part":
            start = draw(st.integers(0, n - 1))
            entries.append(slice(start, draw(st.integers(start, n)), draw(st.sampled_from([None, 1, 2]))))
        elif kind == "back":
            entries.append(slice(None, None, -1))
        else:
            entries.append(draw(st.integers(-n, n - 1)))
    return tuple(entries)


def _step(draw: st.DrawFn, values: list[Array]) -> Step:
    last = len(values) - 1
    place = last if draw(st.booleans()) else draw(st.integers(0, last))
    x = values[place]
    kinds = ["unary", "unary", "binary", "binary"]
    if x.ndim:
        kinds += ["reduce", "reduce", "slice", "write", "view", "alias", "concat", "expand"]
    if x.ndim and x.shape[0]:
        kinds += ["gather", "take"]
    if x.ndim == 2:
        kinds += ["matmul"]
    kind = draw(st.sampled_from(kinds))
    if kind == "unary":
        name = draw(st.sampled_from(sorted(UNARY)))
        return (name if name != "front" or x.ndim < 3 else "sin", (place,), None)
    if kind == "binary":
        name = draw(st.sampled_from(sorted(BINARY)))
        return name, (place, draw(st.sampled_from([i for i, v in enumerate(values) if _fits(x, v)]))), None
    if kind == "reduce":
        axes = draw(st.sampled_from([None, *range(x.ndim), *([(0, x.ndim - 1)] if x.ndim > 1 else [])]))
        kinds = ["sum", "sum", "mean", "prod"] + (["max", "min", "var"] if x.size else [])
        return "reduce", (place,), (draw(st.sampled_from(kinds)), axes, draw(st.booleans()))
    if kind in ("slice", "view", "alias"):
        return kind, (place,), _index(draw, x.shape)
    if kind == "write":
        index = _index(draw, x.shape)
        fitting = [i for i, v in enumerate(values) if _fits_into(v.shape, x[index].shape)]
        others = (draw(st.sampled_from(fitting)),) if fitting and draw(st.booleans()) else ()
        return "write", (place, *others), (index, draw(st.booleans()))
    if kind == "concat":
        axis = draw(st.integers(0, x.ndim - 1))
        fitting = [
            i
            for i, v in enumerate(values)
            if v.ndim == x.ndim
            and all(m == n or k == axis for k, (m, n) in enumerate(zip(v.shape, x.shape, strict=True)))
        ]
        return "concat", (place, draw(st.sampled_from(fitting))), axis
    if kind == "expand":
        return "expand", (place,), (2, *(3 if n == 1 else n for n in x.shape)) if x.ndim < 3 else x.shape
    if kind == "gather":
        return "gather", (place,), draw(st.lists(st.integers(-x.shape[0], x.shape[0] - 1), min_size=1, max_size=4))
    if kind == "take":
        axis = draw(st.sampled_from([i for i, n in enumerate(x.shape) if n]))
        n = x.shape[axis]
        return "take", (place,), (draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4)), axis)
    fitting = [i for i, v in enumerate(values) if v.ndim in (1, 2) and v.shape[0] == x.shape[1]]
    return ("matmul", (place, draw(st.sampled_from(fitting))), None) if fitting else ("tanh", (place,), None)


def _fits(x: Array, y: Array) -> bool:
    try:
        return bool(np.prod(np.broadcast_shapes(x.shape, y.shape)) <= 200)
    except ValueError:
        return False


def _fits_into(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, whole) == whole
    except ValueError:
        return False


@st.composite
def programs(draw: st.DrawFn, most_steps: int = 10) -> Program:
    """Programs of one to three arguments; extents 0 and 1 among them."""
    extents = st.sampled_from([2, 3, 3, 4, 1, 0]) if draw(st.integers(0, 3)) == 0 else st.sampled_from([2, 3, 4])
    shapes = draw(st.lists(st.lists(extents, max_size=2).map(tuple), min_size=1, max_size=3))
    program = Program(shapes, draw(st.integers(0, 2**31)))
    values: list[Any] = [jg.tensor(a) for a in program.arrays()]
    for _ in range(draw(st.integers(1, most_steps))):
        step = _step(draw, [v._value for v in values])
        made = apply(step, values)
        if made.size > 400:
            continue
        program.steps.append(step)
        values.append(made)
    return program
