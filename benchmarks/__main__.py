"""Measure jitgrad beside other libraries and hand-written Numba, each pinned to one core, in turn, within one run."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.libraries import LIBRARIES, installed, version
from benchmarks.sections import CASES, SECTIONS, Measurement, Plan
from benchmarks.session import THREAD_VARIABLES
from benchmarks.timer import Effort

_FULL = Effort(rounds=40, seconds=2.0, batch=0.004, fresh=5, patience=120.0)
_QUICK = Effort(rounds=15, seconds=0.25, batch=0.002, fresh=2, patience=20.0)
_LONG_TO_COMPILE = ("torch.compile", "pytensor")  # not in a quick run, unless they are asked for
_TO_INSTALL = "pip install '.[bench]' installs what jitgrad is compared with"


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A list of names, checked against the known ones."""

    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and cases: under three minutes")
    for option, known, text in (
        ("--only", sorted(set().union(*CASES.values())), "these cases alone"),
        ("--sections", SECTIONS, ", ".join(SECTIONS)),
        ("--libraries", LIBRARIES, ", ".join(LIBRARIES)),
    ):
        parser.add_argument(option, type=_names(known), default=[], metavar="NAME,..", help=text)
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks.json"), metavar="FILE", help="%(default)s")
    parser.add_argument("--plot", type=Path, default=Path("build/benchmarks.png"), metavar="FILE", help="%(default)s")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the JSON file of an earlier run")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections, print the tables, write the files; 1 if jitgrad's results are wrong, 2 if there are none."""
    parser = _parser()
    options = parser.parse_args(arguments)
    sections: list[str] = options.sections or list(SECTIONS)
    if nowhere := [name for name in options.only if not any(name in CASES[s] for s in sections)]:
        places = [f"{name} is a case of {', '.join(s for s in CASES if name in CASES[s])}" for name in nowhere]
        parser.error(f"argument --only: not in the sections {', '.join(sections)}: {'; '.join(places)}")
    before = report.load(options.against) if options.against else []
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))

    usual = [name for name in LIBRARIES if not (options.quick and name in _LONG_TO_COMPILE)]
    wanted = [LIBRARIES[name] for name in options.libraries or usual]
    missing = [library.name for library in wanted if not installed(library)]
    if len(missing) == len(wanted):
        parser.error(f"argument --libraries: not installed: {', '.join(missing)}; {_TO_INSTALL}")
    if missing:
        print(f"left out, not installed: {', '.join(missing)}; {_TO_INSTALL}", file=sys.stderr)
    start = time.monotonic()
    found: list[Measurement] = []
    with Plan(
        tuple(library for library in wanted if library.name not in missing),
        _QUICK if options.quick else _FULL,
        options.quick,
        frozenset(options.only),
        lambda text: print(f"{time.monotonic() - start:5.0f} s  {text}", file=sys.stderr),
    ) as plan:
        about = report.conditions({p.name: version(p) for p in plan.libraries}, missing, options.quick)
        for key, value in about.items():
            parts = [f"{k} {v}" for k, v in value.items()] if isinstance(value, dict) else value
            print(f"{key}: {', '.join(parts) or 'none' if isinstance(parts, list) else parts}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # what there is, is reported
            for section in sections:
                for measurement in SECTIONS[section](plan):
                    found.append(measurement)
                    report.save(options.json, found, about)
    if not found:
        took_part = ", ".join(library.name for library in plan.libraries)
        print(f"nothing was measured of {took_part} in the sections {', '.join(sections)}", file=sys.stderr)
        return 2
    lines = [*report.tables(found), *report.target_table(found), *(report.compare(before, found) if before else [])]
    print(
        "\njitgrad's figure, then for each other library: jitgrad's as a part of its own (its own). Medians.",
        *lines,
        sep="\n",
    )
    print(f"\nwritten: {options.json}")
    print(f"drawn: {options.plot}" if report.plot(options.plot, found) else "no plot: matplotlib is not installed")
    return int(any(m.library == "jitgrad" and (m.problem or "").startswith("disagrees") for m in found))


if __name__ == "__main__":
    sys.exit(main())
