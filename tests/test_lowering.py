"""Emitted source that is written as LLVM IR directly, against the same source compiled by Numba and run by NumPy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import config
from jitgrad.kernels import bridge, lowering, python_form
from jitgrad.kernels.kernel import forget_kernels

SIGNATURE = ("b:bool", "b:int64", "b:float32", "b:float64", "n:int64", "b:bool", "b:int64", "b:float32", "b:float64")
HEAD = "def program(xb, xi, xf, xd, n, ob, oi, of, od):"


def _by_numba(name: str, source: str, signature: tuple[str, ...]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering.Source, "program", lambda *_: None)
        return bridge.make(name, source, signature, {})


@contextlib.contextmanager
def _watched() -> Iterator[list[tuple[str, bool]]]:
    """The functions of sources that are compiled inside, each with whether it was lowered, not left to Numba."""
    taken: list[tuple[str, bool]] = []
    program = lowering.Source.program

    def spied(self: Any, typing_context: Any, name: str, kinds: Any) -> Any:
        made = program(self, typing_context, name, kinds)
        code = getattr(self.names.get(name), "__code__", None)
        if name in self.for_numba or (code is not None and code.co_filename == self.filename):  # defined in this source
            taken.append((name, made is not None))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering.Source, "program", spied)
        yield taken


def _directly(name: str, source: str, signature: tuple[str, ...]) -> Any:
    """Compile, and insist that no function of the source was left to Numba."""
    with _watched() as taken:
        result = bridge.make(name, source, signature, {})
    assert (name, True) in taken
    assert all(plain for _, plain in taken), taken
    return result


def _inputs(rng: np.random.Generator, count: int = 8) -> list[np.ndarray[Any, Any]]:
    doubles = rng.normal(size=count) * 3
    doubles[: min(count, 6)] = rng.permutation([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-310])[:count]
    singles = rng.permutation(doubles).astype(np.float32)
    return [rng.random(count) < 0.5, rng.integers(-4, 5, count), singles, rng.permutation(doubles)]


def _run(function: Any, inputs: list[Any], n: int) -> list[np.ndarray[Any, Any]]:
    outputs = [np.zeros_like(x) for x in inputs]
    function(*inputs, n, *outputs)
    return outputs


def _same(found: list[Any], wanted: list[Any]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":  # the bits, but for those of NaN
            assert np.array_equal(np.isnan(a), np.isnan(b))
            a, b = (
                np.nan_to_num(a, nan=7.0, posinf=np.inf, neginf=-np.inf),
                np.nan_to_num(b, nan=7.0, posinf=np.inf, neginf=-np.inf),
            )
        assert a.tobytes() == b.tobytes()


class _Random:
    """A random program. ``common``: only what NumPy scalars and Numba agree on (they promote some mixtures otherwise)."""

    def __init__(self, seed: int, common: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.common = common
        self.count = 0
        self.lines: list[str] = []
        self.names: dict[str, list[str]] = {k: [] for k in "bifd"}
        for kind in "bifd":
            for k in range(2):
                self.assign(kind, f"load(x{kind}, {k})", 1)
        self.statements(4, 1)
        for kind in "bifd":
            for k in range(3):
                self.lines.append(f"    store(o{kind}, {k}, {self.pick(self.names[kind])})")

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def assign(self, kind: str, value: str, depth: int) -> None:
        self.count += 1
        name = f"{kind}{self.count}"
        self.lines.append("    " * depth + f"{name} = {value}")
        self.names[kind].append(name)

    def expression(self, kind: str, depth: int = 2) -> str:
        e, d = self.expression, depth - 1
        if depth == 0:
            return str(self.pick(self.names[kind]))
        if kind == "b":
            of = self.pick("ifd")
            options = [
                f"boolean({e(of, d)} {self.pick(['<', '<=', '>', '>=', '==', '!='])} {e(of, d)})",
                f"boolean({e('b', d)} {self.pick(['and', 'or'])} {e('b', d)})",
                f"boolean(not {e('b', d)})", f"isnan({e('d', d)})", f"boolean({e('i', d)})",
            ]  # fmt: skip
        elif kind == "i":
            options = [
                f"({e('i', d)} {self.pick(['+', '-', '//', '%', '&', '|', '^'])} {e('i', d)})",
                f"({e('i', d)} {self.pick(['+', '*', '//', '%'])} {self.pick([-3, -1, 2, 5])})",
                f"(-{e('i', d)})", f"int64({e('b', d)})",
            ]  # fmt: skip
        elif kind == "f":
            options = [
                f"({e('f', d)} {self.pick('+-*/')} {e('f', d)})", f"float32({e(self.pick('bid'), d)})",
                f"({e('f', d)} * float32(0.3))", f"(-{e('f', d)})", f"fabs({e('f', d)})",
            ]  # fmt: skip
        else:
            options = [
                f"({e('d', d)} {self.pick('+-*/')} {e('d', d)})", f"({e('i', d)} / {e('i', d)})", f"({e('d', d)} * {e('i', d)})",
                f"float64({e(self.pick('bif'), d)})", f"({e('d', d)} - 0.3)", f"(-{e('d', d)})", f"sqrt({e('d', d)})",
                f"({e('f', d)} + {e('d', d)})",
            ]  # fmt: skip
            if not self.common:
                options += [
                    f"({e('d', d)} {self.pick(['//', '%'])} {e('d', d)})", f"({e('f', d)} * 0.3 + {e('i', d)})",
                    f"float64({e('b', d)} + {e('b', d)})", f"tanh({e('d', d)})", f"maximum({e('d', d)}, {e('d', d)})",
                ]  # fmt: skip
        options += [f"sel({e('b', d)}, {e(kind, d)}, {e(kind, d)})", f"({e(kind, d)} if {e('b', d)} else {e(kind, d)})"]
        return str(self.pick(options))

    def statements(self, number: int, depth: int) -> None:
        space = "    " * depth
        for _ in range(number):
            kind = self.pick("bifd")
            what = self.pick(["assign", "again", "loop", "if", "while"]) if depth < 3 else "assign"
            if what == "assign":
                self.assign(kind, self.expression(kind), depth)
                continue
            if what == "again":
                self.lines.append(f"{space}{self.pick(self.names[kind])} = {self.expression(kind)}")
                continue
            outer = {k: list(v) for k, v in self.names.items()}
            self.count += 1
            if what == "if":
                self.lines.append(f"{space}if {self.expression('b')}:")
                self.statements(2, depth + 1)
                self.names = {k: list(v) for k, v in outer.items()}
                self.lines.append(f"{space}else:")
            elif what == "loop":
                loop = f"k{self.count}"
                bounds = self.pick(["n", "3", "0", "1, n", "n, 0", "n, -1, -2", "0, n, 2", "n - 5"])
                self.lines.append(f"{space}for {loop} in range({bounds}):")
                self.assign("i", f"int64({loop})", depth + 1)
                self.assign("d", f"load(xd, {loop} * 2 % 8)", depth + 1)
                self.lines.append(f"{space}    store(od, 3 + {loop} % 4, {self.pick(self.names['d'])})")
            else:
                turns = f"w{self.count}"
                self.lines += [
                    f"{space}{turns} = int64(0)",
                    f"{space}while {turns} < n:",
                    f"{space}    {turns} = {turns} + 1",
                ]
                self.lines.append(f"{space}    if {self.expression('b')}:")
                self.lines.append(f"{space}        {self.pick(['break', 'continue'])}")
            self.statements(2, depth + 1)
            self.names = outer

    @property
    def source(self) -> str:
        return "\n".join([HEAD, *self.lines]) + "\n"


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_give_the_same_bits_as_numba_and_numpy(seed: int) -> None:
    made = _Random(seed, common=True)
    direct, numba = _directly("program", made.source, SIGNATURE), _by_numba("program", made.source, SIGNATURE)
    plain = python_form.make("program", made.source, SIGNATURE, {})
    for n in (0, 1, 4):
        inputs = _inputs(made.rng)
        found = _run(direct.entry_point, inputs, n)
        _same(found, _run(numba.entry_point, inputs, n))
        with np.errstate(all="ignore"):
            _same(found, _run(plain, inputs, n))


@pytest.mark.parametrize("seed", range(100, 110))
def test_random_programs_promote_as_numba_does(seed: int) -> None:
    made = _Random(seed, common=False)
    direct, numba = _directly("program", made.source, SIGNATURE), _by_numba("program", made.source, SIGNATURE)
    for n in (0, 1, 4):
        inputs = _inputs(made.rng)
        _same(_run(direct.entry_point, inputs, n), _run(numba.entry_point, inputs, n))


def _result(body: str, *numbers: float, signature: tuple[str, ...] = ("n:float64", "n:int64", "r:float64")) -> Any:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return bridge.make("program", f"def program(x, n):\n{lines}", signature, {}).entry_point(*numbers)


def test_what_is_not_plain_is_left_to_numba() -> None:
    assert _result("t = 1\nfor k in range(n):\n    t = t * 0.5\nreturn t", 0.0, 3) == 0.125  # an int becomes a float
    assert _result("return x ** 3", 2.0, 0) == 8.0
    assert _result("a = np.zeros(n)\na[1:] = x\nreturn a.sum()", 2.0, 3) == 4.0
    assert _result("for k in range(n):\n    t = x * k\nreturn t", 2.0, 3) == 4.0  # from the last turn
    assert _result("return " + " + ".join(["x"] * 300), 1.0, 0) == 300.0


def test_errors_are_raised_from_plain_functions() -> None:
    source = (
        "def inner(x, n):\n    if n > 2:\n        raise ShapeError('too many', 3)\n    return x * 2\n\n"
        "def outer(x, n):\n    t = inner(x, n)\n    return t + 1\n"
    )
    call = _directly("outer", source, ("n:float64", "n:int64", "r:float64")).entry_point
    assert call(1.0, 2) == 3.0
    with pytest.raises(jg.errors.ShapeError) as caught:
        call(1.0, 3)
    assert caught.value.args == ("too many", 3)
    assert call(1.0, 2) == 3.0


def test_views_of_arrays_leave_reference_counts_as_they_are() -> None:
    source = (
        "def program(x, out):\n    for c in range(x.shape[0]):\n        a = x[c]\n        m, n = a.shape\n"
        "        for i in range(m):\n            for j in range(n):\n                out[c, -1 - i] += a[i, j]\n"
    )
    call = _directly("program", source, ("a:float64:3", "a:float64:2")).entry_point
    x, out = np.arange(24.0).reshape(2, 3, 4), np.zeros((2, 3))
    before = sys.getrefcount(x), sys.getrefcount(out)
    for _ in range(10):
        out[...] = 0
        call(x, out)
    assert np.array_equal(out, x.sum(2)[:, ::-1])
    assert (sys.getrefcount(x), sys.getrefcount(out)) == before


def _layers(params: Any, x: Any, y: Any) -> Any:
    for w, b in params:
        x = np.tanh(x @ w + b)
    return np.sum((x - y) ** 2)


def _iterated(x: Any) -> Any:
    for _ in range(100):
        x = np.sin(x) * 1.1
    return np.sum(x)


def _norms(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return np.sum(np.log(np.sum(e, axis=1))) + np.sum(np.where(x > 0, x[:, ::-1], 2.0))


_rng = np.random.default_rng(0)
_CASES = {
    "layers": (_layers, [[(_rng.normal(size=(3, 3)), np.ones(3)) for _ in range(2)], np.ones((4, 3)), np.ones((4, 3))]),
    "cut": (_iterated, [np.ones(3)]),
    "reductions": (_norms, [_rng.normal(size=(4, 3))]),
}


@pytest.mark.parametrize("case", _CASES)
def test_kernels_of_whole_functions_are_wholly_lowered(case: str, tmp_path: Path) -> None:
    function, arguments = _CASES[case]
    with config.override(cache_dir=tmp_path), _watched() as taken:
        forget_kernels()
        jg.jit(jg.grad(function))(*arguments)
    assert taken
    assert all(plain for _, plain in taken), taken
