"""Tables, the JSON file, the comparison with an earlier one, and the plot."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.libraries import LIBRARIES
from benchmarks.sections import Measurement
from benchmarks.session import CORES, THREAD_VARIABLES, one_core
from benchmarks.targets import outcomes

__all__ = ["compare", "conditions", "load", "plot", "save", "tables", "target_table"]

_ORDER = ["jitgrad", "jitgrad, two threads", "numpy", *LIBRARIES]
_SLOWER = 1.2  # what --against calls slower


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def conditions(versions: Mapping[str, str], missing: Sequence[str], quick: bool) -> dict[str, Any]:
    """Where and how the figures were measured."""
    core = sorted(one_core())
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(CORES) or os.cpu_count(),
        "pinned": f"every library to core {core[0]}" if core else "not possible on this system",
        "threads": {name: os.environ.get(name) for name in THREAD_VARIABLES},
        "versions": dict(versions),
        "not installed": list(missing),
        "quick": quick,
    }


def _number(x: float) -> str:
    digits = 0 if x >= 1000 else 1 if x >= 100 else 2 if x >= 1 else 3
    return f"{x:,.{digits}f}"


def _cell(own: Measurement | None, other: Measurement | None) -> str:
    if other is None:
        return ""
    if other.median is None:
        return "ERROR" if (other.problem or "").startswith("disagrees") else "-"
    if own is None or own.median is None or other.library == "jitgrad":
        return _number(other.median)
    ratio = own.median / other.median
    return f"{_number(ratio) if ratio >= 100.0 else f'{ratio:.3g}'} ({_number(other.median)})"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _worth_telling(m: Measurement) -> bool:
    return m.library.startswith("jitgrad") or not (m.problem or "").startswith("not available")


def tables(measurements: Sequence[Measurement]) -> list[str]:
    """For each section a table: jitgrad's time, and for the others jitgrad's as a part of theirs, and theirs."""
    lines: list[str] = []
    for section, group in groupby(measurements, key=lambda m: m.section):
        found = list(group)
        libraries = sorted(dict.fromkeys(m.library for m in found), key=_ORDER.index)
        table = {(m.case, m.library): m for m in found}
        rows = [[f"{section} ({found[0].unit})", *libraries]]
        for case in dict.fromkeys(m.case for m in found):
            own = table.get((case, "jitgrad"))
            rows.append([case, *(_cell(own, table.get((case, name))) for name in libraries)])
        lines += ["", *_aligned(rows)]
        lines += [f"  {m.case}, {m.library}: {m.problem}" for m in found if m.problem and _worth_telling(m)]
    return lines


def target_table(measurements: Iterable[Measurement]) -> list[str]:
    """Every target that could be judged, worst first; minima tell how much of a miss is the machine's noise."""
    found = list(measurements)
    quietest = {o.what: o.excess for o in outcomes(replace(m, median=m.minimum) for m in found)}
    rows = [["target", "measured", "bound", "measured/bound", "of minima", ""]]
    for o in outcomes(found):
        if o.excess is None or o.measured is None or o.bound is None:
            rows.append([o.what, "-", "-", "-", "-", f"MISSED: {o.problem}"])
        else:
            state = "reached" if o.excess <= 1.0 else f"MISSED by {100.0 * (o.excess - 1.0):.0f} %"
            least = quietest.get(o.what) or 0.0
            rows.append([o.what, _number(o.measured), _number(o.bound), f"{o.excess:.2f}", f"{least:.2f}", state])
    return ["", *_aligned(rows)] if len(rows) > 1 else []


def save(path: Path, measurements: Sequence[Measurement], about: Mapping[str, Any]) -> None:
    """Everything, as JSON."""
    text = {
        "conditions": dict(about),
        "measurements": [asdict(m) for m in measurements],
        "targets": [asdict(o) for o in outcomes(measurements)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(text, indent=1) + "\n")


def load(path: Path) -> list[Measurement]:
    """The measurements of a file that :func:`save` wrote."""
    return [Measurement(**m) for m in json.loads(path.read_text())["measurements"]]


def _changes(before: Sequence[Measurement], now: Sequence[Measurement]) -> dict[tuple[str, str], tuple[float, float]]:
    """By section and case: jitgrad's median over its earlier one, and the same of the other libraries (their median)."""
    earlier = {(m.section, m.case, m.library): m.median for m in before}
    ratios: dict[tuple[str, str], dict[str, float]] = {}
    for m in now:
        past = earlier.get((m.section, m.case, m.library))
        if past and m.median:
            ratios.setdefault((m.section, m.case), {})[m.library] = m.median / past
    return {
        key: (found.pop("jitgrad"), statistics.median(found.values()) if found else 1.0)
        for key, found in ratios.items()
        if "jitgrad" in found
    }


def compare(before: Sequence[Measurement], now: Sequence[Measurement]) -> list[str]:
    """jitgrad's figures over those of an earlier run. The other libraries, whose code did not change, tell how much of it is
    the machine's; slower is what is so by medians and by minima."""
    by_medians = _changes(before, now)
    by_minima = _changes(*([replace(m, median=m.minimum) for m in run] for run in (before, now)))
    rows = [["now / before", "jitgrad", "others", "minima: jitgrad", "others", ""]]
    for (section, case), medians in by_medians.items():
        minima = by_minima[section, case]
        slower = all(own / others > _SLOWER for own, others in (medians, minima))
        figures = [f"{x:.2f}" for x in (*medians, *minima)]
        rows.append([f"{section}: {case}", *figures, "SLOWER" if slower else ""])
    return ["", *_aligned(rows)] if len(rows) > 1 else []


def plot(path: Path, measurements: Sequence[Measurement]) -> bool:
    """How many times jitgrad's time each library takes, and time against size; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg")
    from matplotlib import pyplot

    found = {(m.section, m.case, m.library): m.median for m in measurements if m.median is not None}
    cases = list(dict.fromkeys(c for s, c, n in found if s == "throughput" and n == "jitgrad"))[::-1]
    sizes = list(dict.fromkeys(c for s, c, _ in found if s == "scaling"))
    libraries = list(dict.fromkeys(n for s, _, n in found if s in ("throughput", "scaling")))
    colours = {name: f"C{k}" for k, name in enumerate(libraries)}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 6), width_ratios=(3, 2), layout="constrained")
    for name in libraries:
        points = [
            (found["throughput", c, name] / found["throughput", c, "jitgrad"], y)
            for y, c in enumerate(cases)
            if ("throughput", c, name) in found
        ]
        if points:
            style = {"marker": "|", "s": 300, "linewidths": 3} if name == "limit" else {"marker": "o", "s": 40}
            left.scatter(*zip(*points, strict=True), color=colours[name], label=name, **style)
        line = [(float(c[2:]), found["scaling", c, name]) for c in sizes if ("scaling", c, name) in found]
        if line:
            right.plot(*zip(*line, strict=True), color=colours[name], label=name, marker="o")
    left.set(xscale="log", yticks=range(len(cases)), yticklabels=cases)
    left.set(xlabel="time of value and gradient / jitgrad's", title="further right is slower than jitgrad")
    left.axvline(1.0, color=colours.get("jitgrad", "k"), linewidth=1)
    right.set(xscale="log", yscale="log", xlabel="elements", ylabel="ns per element", title="chain: value and gradient")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
