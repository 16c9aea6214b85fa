"""What is measured: one function for each section of the report."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import scipy.special

from benchmarks.eager import EAGER
from benchmarks.libraries import JitGrad, JitGradTwoThreads, Library, Namespace
from benchmarks.session import CORES, Session, SessionError, one_core
from benchmarks.timer import Effort, Figure, in_turn, race
from benchmarks.workloads import CALLS, PRODUCT, WORKLOADS, Workload, chain_of

__all__ = ["CASES", "SECTIONS", "Measurement", "Plan"]

_T = TypeVar("_T")

SIZES = {f"n=1e{k}": 10**k for k in range(2, 8)}
_QUICK_VALUES = ("rosenbrock", "logistic_regression", "tiny_mlp", "mlp", "black_scholes", "chain")
_WITH_VALUES = [name for name, w in WORKLOADS.items() if w.task == "value_and_grad"]
_LARGE = ("chain", "mlp")  # whose arrays are most of the memory
_NUMPY = Namespace(np, erf=scipy.special.erf)


@dataclass(frozen=True)
class Measurement:
    """One figure: of a library, in a case of a section."""

    section: str
    case: str
    library: str
    unit: str
    median: float | None
    minimum: float | None
    problem: str | None


@dataclass(frozen=True)
class Plan:
    """What the command line asked for."""

    libraries: tuple[type[Library], ...]
    effort: Effort
    quick: bool = False
    only: frozenset[str] = frozenset()  # names of cases; empty: all
    say: Callable[[str], None] = print
    sessions: dict[str, Session] = field(default_factory=dict)  # kept for the whole run: imports take seconds

    def cases(
        self, section: str, table: Mapping[str, _T], quick: Sequence[str] | None = None
    ) -> Iterator[tuple[str, _T]]:
        """The cases of a table that are wanted, told as they come; a quick run may have fewer."""
        for name, case in table.items():
            if name in self.only or (not self.only and not (self.quick and quick is not None and name not in quick)):
                self.say(f"{section}: {name}")
                yield name, case

    def chosen(self, *names: str) -> list[type[Library]]:
        """Those of the named libraries that take part."""
        return [library for library in self.libraries if library.name in names]

    def race(self, case: Any, libraries: Sequence[type[Library]], value: float | None = None) -> dict[str, Figure]:
        """A case in these libraries, in turn."""
        for library in libraries:
            if library.name not in self.sessions:
                self.sessions[library.name] = Session(library, patience=self.effort.patience)
        return race(case, {library.name: self.sessions[library.name] for library in libraries}, self.effort, value)

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self.sessions.values():
            session.close()


def _measurements(
    section: str, case: str, unit: str, factor: float, figures: Mapping[str, Figure]
) -> list[Measurement]:
    scaled = {name: figure.scaled(factor) for name, figure in figures.items()}
    return [Measurement(section, case, name, unit, f.median, f.minimum, f.problem) for name, f in scaled.items()]


def _value(workload: Workload) -> float | None:
    if workload.task not in ("value", "value_and_grad"):
        return None
    return float(workload.function(_NUMPY, *workload.arguments()))


def _eager(plan: Plan) -> Iterator[Measurement]:
    for name, case in plan.cases("eager", EAGER):
        figures = plan.race(case, plan.chosen("jitgrad", "torch", "autograd", "mygrad"))
        yield from _measurements("eager", name, "us", 1e6, figures)


def _workloads(
    section: str,
    table: Mapping[str, Workload],
    plan: Plan,
    libraries: Sequence[type[Library]],
    quick: Sequence[str] | None = None,
) -> Iterator[Measurement]:
    for name, case in plan.cases(section, table, quick):
        yield from _measurements(section, name, "us", 1e6, plan.race(case, libraries, _value(case)))


def _calls(plan: Plan) -> Iterator[Measurement]:
    return _workloads("calls", CALLS, plan, plan.libraries)


def _throughput(plan: Plan) -> Iterator[Measurement]:
    return _workloads("throughput", WORKLOADS, plan, plan.libraries)


def _values(plan: Plan) -> Iterator[Measurement]:
    table = {name: WORKLOADS[name].value() for name in _WITH_VALUES}
    return _workloads("value", table, plan, plan.chosen("jitgrad", "jax"), _QUICK_VALUES)


def _scaling(plan: Plan) -> Iterator[Measurement]:
    for name, n in plan.cases("scaling", SIZES, quick=("n=1e2", "n=1e4", "n=1e6")):
        case = chain_of(n)
        figures = plan.race(case, plan.chosen("jitgrad", "limit", "jax", "torch"), _value(case))
        yield from _measurements("scaling", name, "ns/element", 1e9 / n, figures)


# --------------------------------------------------------------------------- what takes a process each time


def _import_seconds(module: str) -> float:
    text = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    pin = f"import os; os.sched_setaffinity(0, {set(one_core())}); " if CORES else ""
    command = [sys.executable, "-c", f"import sys; sys.dont_write_bytecode = False; {pin}{text}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SessionError((run.stderr.strip().splitlines() or ["?"])[-1][:120])
    return float(run.stdout.split()[-1])


def _first_gradient(library: type[Library], case: Any, patience: float, cache: str | None) -> float:
    with tempfile.TemporaryDirectory() as empty, Session(library, cache=cache or empty, patience=patience) as session:
        return session.load() + session.prepare(case)


def _imports(plan: Plan) -> Iterator[Measurement]:
    fresh, patience = plan.effort.fresh, plan.effort.patience
    for _ in plan.cases("import", {"import": None}):
        peers = plan.chosen("jitgrad", "jax", "torch") if plan.quick else plan.libraries
        modules = {"numpy": "numpy"} | {
            p.name: p.module for p in peers if p.name not in ("limit", "micrograd", "torch.compile")
        }
        readers = {name: partial(_import_seconds, module) for name, module in modules.items()}
        in_turn(readers, 1)  # files are read and byte code is written
        yield from _measurements("import", "import", "s", 1.0, in_turn(readers, fresh))
    cases: dict[str, tuple[Any, list[type[Library]]]] = {
        "first_gradient": (WORKLOADS["rosenbrock"], plan.chosen("jitgrad", "jax", "torch")),
        "first_eager_gradient": (EAGER["ten_multiplies_backward"], plan.chosen("jitgrad", "torch", "autograd")),
    }
    for name, (case, peers) in plan.cases("import", cases, quick=("first_gradient",)):
        cold = {p.name: partial(_first_gradient, p, case, patience, None) for p in peers}
        yield from _measurements("import", f"{name}_cold", "s", 1.0, in_turn(cold, fresh))
        with tempfile.TemporaryDirectory() as cache:
            warm = {p.name: partial(_first_gradient, p, case, patience, cache) for p in plan.chosen("jitgrad")}
            in_turn(warm, 1)
            yield from _measurements("import", f"{name}_warm", "s", 1.0, in_turn(warm, fresh))


def _first_call(library: type[Library], workload: Workload, patience: float, cache: str) -> tuple[float, float]:
    """Seconds of the first call of a small program, which loads the compiler, and of the workload after it."""
    with Session(library, cache=cache, patience=patience) as session:
        fixed = session.load() + session.prepare(PRODUCT)
        return fixed, session.prepare(workload) - session.time(1)


def _compile(plan: Plan) -> Iterator[Measurement]:
    peers = plan.chosen("jitgrad") if plan.quick else plan.chosen("jitgrad", "jax", "pytensor", "torch.compile")
    fixed: dict[tuple[str, str], list[float]] = {}
    for name, workload in plan.cases("compile", WORKLOADS, quick=("rosenbrock", "chain", "tiny_mlp")):
        for library in peers:
            keeps = any("{cache}" in value for value in library.environment.values())
            warm = plan.effort.fresh if library is JitGrad else int(keeps)
            with tempfile.TemporaryDirectory() as cache:
                for state, rounds in {"cold": 1, "warm": warm}.items():
                    firsts: list[float] = []
                    problem = None
                    try:
                        for _ in range(rounds):
                            loading, first = _first_call(library, workload, plan.effort.patience, cache)
                            fixed.setdefault((library.name, state), []).append(loading)
                            firsts.append(first)
                    except SessionError as error:
                        problem = str(error)
                    if firsts or problem:
                        figure = Figure(problem=problem) if problem else Figure.of(firsts)
                        yield from _measurements("compile", f"{name}_{state}", "s", 1.0, {library.name: figure})
    for (library_name, state), readings in fixed.items():
        yield from _measurements("compile", f"loading_{state}", "s", 1.0, {library_name: Figure.of(readings)})


def _memory(plan: Plan) -> Iterator[Measurement]:
    cases = {name: WORKLOADS[name] for name in _LARGE}
    for name, case in plan.cases("memory", cases):

        def peak(library: type[Library], case: Workload = case) -> float:
            with Session(library, patience=plan.effort.patience) as session:
                session.prepare(case)
                session.time(3)
                return session.peak()

        peers = plan.chosen("jitgrad", "jax", "torch", *(() if plan.quick else ("limit", "autograd")))
        readers = {p.name: partial(peak, p) for p in peers}
        yield from _measurements("memory", name, "MB", 1.0, in_turn(readers, 1))


def _threads(plan: Plan) -> Iterator[Measurement]:
    one_and_two = plan.chosen("jitgrad") and [JitGrad, JitGradTwoThreads]
    for name, case in plan.cases("threads", {"chain_1e7": chain_of(10_000_000)}):
        with contextlib.ExitStack() as stack:
            sessions = {p.name: stack.enter_context(Session(p, cores=CORES)) for p in one_and_two}
            yield from _measurements("threads", name, "us", 1e6, race(case, sessions, plan.effort))


SECTIONS: dict[str, Callable[[Plan], Iterator[Measurement]]] = {
    "import": _imports,
    "eager": _eager,
    "calls": _calls,
    "throughput": _throughput,
    "value": _values,
    "compile": _compile,
    "memory": _memory,
    "scaling": _scaling,
    "threads": _threads,
}
CASES: dict[str, Sequence[str]] = {
    "import": ("import", "first_gradient", "first_eager_gradient"),
    "eager": tuple(EAGER),
    "calls": tuple(CALLS),
    "throughput": tuple(WORKLOADS),
    "value": tuple(_WITH_VALUES),
    "compile": tuple(WORKLOADS),
    "memory": _LARGE,
    "scaling": tuple(SIZES),
    "threads": ("chain_1e7",),
}
"""The names of the cases of each section."""
