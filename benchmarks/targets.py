"""What the project aims at, as a table that the report checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.eager import EAGER
from benchmarks.sections import Measurement
from benchmarks.workloads import WORKLOADS

__all__ = ["TARGETS", "Figures", "Outcome", "outcomes"]


class Figures:
    """Medians, by section, case and library."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._all = {(m.section, m.case, m.library): m for m in measurements}

    def get(self, section: str, case: str, library: str) -> float | None:
        """A median, if there is one."""
        found = self._all.get((section, case, library))
        return None if found is None else found.median

    def problem(self, section: str, case: str, library: str) -> str | None:
        """Why there is none."""
        found = self._all.get((section, case, library))
        return None if found is None else found.problem

    def best_other(self, section: str, case: str) -> float | None:
        """The fastest library that is neither jitgrad nor the limit."""
        others = [
            m.median
            for (s, c, library), m in self._all.items()
            if (s, c) == (section, case) and library not in ("jitgrad", "limit") and m.median is not None
        ]
        return min(others, default=None)

    def gradient_over_value(self) -> float | None:
        """The geometric mean over the workloads."""
        ratios = []
        for name in WORKLOADS:
            gradient, value = self.get("throughput", name, "jitgrad"), self.get("value", name, "jitgrad")
            if gradient is not None and value is not None:
                ratios.append(math.log(gradient / value))
        return math.exp(sum(ratios) / len(ratios)) if ratios else None


Number = Callable[[Figures], float | None]


@dataclass(frozen=True)
class Target:
    """Something measured that shall be at most a bound."""

    what: str
    measured: Number
    bound: Number
    key: tuple[str, str, str]  # section, case and library that may tell why there is no figure


@dataclass(frozen=True)
class Outcome:
    """A target with its figures: reached if ``excess``, measured over bound, is at most 1."""

    what: str
    measured: float | None
    bound: float | None
    excess: float | None
    problem: str | None = None


def _ours(section: str, case: str) -> Number:
    return lambda figures: figures.get(section, case, "jitgrad")


def _of(at_most: float, section: str, case: str, library: str) -> Target:
    def bound(figures: Figures) -> float | None:
        best = figures.best_other(section, case) if library == "best other" else figures.get(section, case, library)
        return None if best is None else at_most * best

    what = case if section in ("throughput", "eager") else f"{section} of {case}"
    return Target(f"{what}: {at_most:.3g} of {library}", _ours(section, case), bound, (section, case, "jitgrad"))


def _near_limit(case: str) -> Target:
    """A call below 10 us pays for Python: 0.4 us, and 0.15 us for each array."""
    arrays = len(WORKLOADS[case].arguments())

    def bound(figures: Figures) -> float | None:
        limit = figures.get("throughput", case, "limit")
        if limit is None:
            return None
        return limit + 0.4 + 0.15 * arrays if limit < 10.0 else 1.3 * limit

    return Target(f"{case}: near the limit", _ours("throughput", case), bound, ("throughput", case, "jitgrad"))


def _seconds(at_most: float, section: str, case: str) -> Target:
    return Target(
        f"first call, {case}: {at_most:g} s", _ours(section, case), lambda _: at_most, (section, case, "jitgrad")
    )


def _many(at_most: float, section: str, library: str, *cases: str) -> Sequence[Target]:
    return [_of(at_most, section, case, library) for case in cases]


_LIMITED = (
    "rosenbrock",
    "eight_schools",
    "logistic_regression",
    "tiny_mlp",
    "mlp",
    "black_scholes",
    "chain",
    "logsumexp",
)
_COLD = {"mlp": 1.5, "tiny_mlp": 1.5, "mixture": 1.5, "lstm": 3.0}  # seconds; the others 1
_OPERATIONS = tuple(case.name for case in EAGER.values() if not case.backward)


def _import_bound(figures: Figures) -> float | None:
    numpy = figures.get("import", "import", "numpy")
    return None if numpy is None else numpy + 0.06


TARGETS: Sequence[Target] = [
    *map(_near_limit, _LIMITED),
    *_many(0.15, "throughput", "jax", "rosenbrock", "eight_schools"),
    *_many(0.5, "throughput", "pytensor", "rosenbrock", "eight_schools"),
    *_many(0.2, "throughput", "jax", "tiny_mlp"),
    *_many(0.4, "throughput", "pytensor", "tiny_mlp"),
    *_many(0.35, "throughput", "best other", "logistic_regression"),
    *_many(0.25, "throughput", "best other", "chain"),
    *_many(0.2, "throughput", "best other", "black_scholes"),
    *_many(0.4, "throughput", "best other", "logsumexp"),
    *_many(1.05, "throughput", "best other", "mlp"),
    *_many(0.5, "throughput", "jax", "mixture", "kmeans", "least_squares", "lstm"),
    *_many(0.3, "throughput", "jax", "rosenbrock_hessian"),
    *_many(1 / 200, "throughput", "micrograd", "micrograd"),
    *_many(0.6, "eager", "torch", *_OPERATIONS),
    *_many(0.5, "eager", "torch", "ten_multiplies_backward"),
    *_many(0.15, "eager", "autograd", *_OPERATIONS, "ten_multiplies_backward"),
    *_many(0.15, "eager", "mygrad", *_OPERATIONS, "ten_multiplies_backward"),
    # micrograd's network on scalars has 1300 lines of source: no bound
    *(_seconds(_COLD.get(name, 1.0), "compile", f"{name}_cold") for name in WORKLOADS if name != "micrograd"),
    *(_seconds(0.03, "compile", f"{name}_warm") for name in WORKLOADS),
    *(_of(1 / 3, "compile", f"{name}_cold", peer) for peer in ("pytensor", "torch.compile") for name in WORKLOADS),
    Target("import: numpy and 0.06 s", _ours("import", "import"), _import_bound, ("import", "import", "jitgrad")),
    Target(
        "gradient over value: 2.5, geometric mean", Figures.gradient_over_value, lambda _: 2.5, ("value", "", "jitgrad")
    ),
    *_many(1.0, "memory", "jax", "chain", "mlp"),
    *_many(1.0, "memory", "torch", "chain", "mlp"),
    Target(
        "chain_1e7: two threads 1.7 times as fast",
        lambda figures: figures.get("threads", "chain_1e7", "jitgrad, two threads"),
        lambda figures: (one := figures.get("threads", "chain_1e7", "jitgrad")) and one / 1.7,
        ("threads", "chain_1e7", "jitgrad, two threads"),
    ),
]


def outcomes(measurements: Iterable[Measurement]) -> list[Outcome]:
    """The targets that can be judged, worst first; one that jitgrad has no figure for, but an error, is worst."""
    figures = Figures(measurements)
    found = []
    for target in TARGETS:
        measured, bound = target.measured(figures), target.bound(figures)
        problem = figures.problem(*target.key)
        if measured is None and problem is not None:
            found.append(Outcome(target.what, None, bound, None, problem))
        elif measured is not None and bound is not None:
            found.append(Outcome(target.what, measured, bound, measured / bound))
    return sorted(found, key=lambda o: math.inf if o.excess is None else o.excess, reverse=True)
