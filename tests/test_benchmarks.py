"""The benchmarks run, write what they promise, and do not time a library whose results are wrong."""

import json
import time
from functools import partial

import numpy as np
import pytest

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.libraries import JitGrad, Library, Limit, Namespace
from benchmarks.limits import LIMITS, compiled
from benchmarks.sections import CASES, SECTIONS, Measurement, Plan
from benchmarks.session import THREAD_VARIABLES, Session, SessionError
from benchmarks.targets import outcomes
from benchmarks.timer import Effort, disagreements
from benchmarks.workloads import WORKLOADS, rosenbrock

QUICK = Effort(rounds=3, seconds=0.01, batch=0.001, fresh=1, patience=60.0)


class TwiceTheGradient(Library):
    """Right values, wrong gradients."""

    name = "wrong"
    module = "numpy"

    def value_and_grad(self, workload):
        right = compiled(workload.name, workload.arguments(), workload.wrt)

        def call(*args):
            value, gradient = right(*args)
            return value, 2.0 * gradient

        return call, workload.arguments()


class NeverReady(Library):
    """Its first call does not return in time."""

    name = "slow"
    module = "numpy"

    def value_and_grad(self, workload):
        time.sleep(60.0)


def measured(case, library, median, section="throughput"):
    return Measurement(section, case, library, "us", median, median, None)


def test_a_run_writes_figures_targets_and_conditions(tmp_path, monkeypatch, capsys):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    written, drawn = tmp_path / "figures.json", tmp_path / "figures.png"
    arguments = ["--quick", "--only", "rosenbrock", "--sections", "throughput", "--libraries", "jitgrad,limit"]
    assert main([*arguments, "--json", str(written), "--plot", str(drawn)]) == 0
    everything = json.loads(written.read_text())
    figures = {(m["case"], m["library"]): m for m in everything["measurements"]}
    assert set(figures) == {("rosenbrock", "jitgrad"), ("rosenbrock", "limit")}
    for m in figures.values():
        assert m["problem"] is None
        assert 0.0 < m["minimum"] <= m["median"] < 1000.0
    assert everything["conditions"]["threads"] == dict.fromkeys(THREAD_VARIABLES, "1")
    assert [t["what"] for t in everything["targets"]] == ["rosenbrock: near the limit"]
    assert main([*arguments, "--against", str(written), "--json", str(tmp_path / "again.json")]) == 0
    assert "now / before" in capsys.readouterr().out


def test_a_case_that_no_chosen_section_has_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--only", "exp,rosenbrock", "--sections", "eager,memory"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "not in the sections eager, memory: rosenbrock is a case of throughput, value, compile" in said
    assert "exp is" not in said


def test_the_cases_of_a_section_are_those_that_it_offers():
    class Asked(Plan):
        """Notes the names and runs nothing."""

        def cases(self, section, table, quick=None):
            offered.setdefault(section, []).extend(table)
            return iter(())

    offered = {}
    for section in SECTIONS.values():
        list(section(Asked((JitGrad,), QUICK)))
    assert offered == {name: list(cases) for name, cases in CASES.items()}


def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.__main__.installed", lambda library: library is Limit)
    written = tmp_path / "figures.json"
    arguments = ["--only", "rosenbrock", "--sections", "value", "--json", str(written)]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--libraries", "torch,jax"])
    assert end.value.code == 2
    assert "not installed: torch, jax; pip install '.[bench]'" in capsys.readouterr().err

    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    assert main([*arguments, "--libraries", "torch,limit"]) == 2
    said = capsys.readouterr().err
    assert "left out, not installed: torch; pip install '.[bench]'" in said
    assert "nothing was measured of limit in the sections value" in said
    assert not written.exists()


def test_a_library_with_wrong_gradients_is_not_timed():
    with Plan((TwiceTheGradient, JitGrad, Limit), QUICK) as plan:
        figures = plan.race(WORKLOADS["rosenbrock"], plan.libraries, None)
    assert figures["wrong"].median is None
    assert figures["wrong"].problem.startswith("disagrees")
    assert figures["jitgrad"].median > 0.0
    assert figures["limit"].median > 0.0


def test_wrong_values_shapes_and_single_elements_are_found():
    right = [np.array(2.0), np.array([1.0, 2.0, 3.0])]
    assert disagreements({"a": right, "b": right, "c": right}, 2.0) == {}
    other = [np.array(2.0), np.array([1.0, 2.0, 3.0 + 1e-6])]
    assert list(disagreements({"a": other, "b": right, "c": right}, 2.0)) == ["a"]
    assert list(disagreements({"jitgrad": other, "limit": right}, 2.0)) == ["jitgrad"]
    assert list(disagreements({"a": right, "b": [right[0], right[1][:, None]], "c": right})) == ["b"]
    assert list(disagreements({"a": right, "b": right}, 2.1)) == ["a", "b"]


def test_what_takes_too_long_or_cannot_be_done_is_said():
    with Session(NeverReady, patience=5.0) as session:
        session.load()
        with pytest.raises(SessionError, match="more than 5 s"):
            session.prepare(WORKLOADS["rosenbrock"])
    with Session(Limit) as session, pytest.raises(SessionError, match="not available: no Hessians"):
        session.prepare(WORKLOADS["rosenbrock_hessian"])


@pytest.mark.parametrize("name", [n for n in LIMITS if n in WORKLOADS and n != "black_scholes"])
def test_limits_against_differences(name):
    """Along one random direction, and the value, with NumPy's function."""
    workload = WORKLOADS[name]
    arguments = workload.arguments()
    value, *gradients = compiled(name, arguments, workload.wrt)(*arguments)
    f = partial(workload.function, Namespace(np))
    assert np.isclose(value, f(*arguments), rtol=1e-12)
    rng = np.random.default_rng(1)
    x, rest = arguments[: workload.wrt], arguments[workload.wrt :]
    direction = [rng.standard_normal(a.shape) for a in x]
    h = 1e-6
    ends = [f(*(a + s * h * d for a, d in zip(x, direction, strict=True)), *rest) for s in (1.0, -1.0)]
    slope = sum(np.sum(g * d) for g, d in zip(gradients, direction, strict=True))
    assert np.isclose(slope, (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-8)


def test_targets_are_reached_missed_or_explained():
    found = {
        o.what: o
        for o in outcomes(
            [
                measured("rosenbrock", "jitgrad", 2.0),
                measured("rosenbrock", "limit", 0.5),
                measured("rosenbrock", "jax", 10.0),
                Measurement("throughput", "lstm", "jitgrad", "us", None, None, "more than 20 s"),
                measured("lstm", "jax", 10.0),
            ]
        )
    }
    assert found["rosenbrock: near the limit"].bound == pytest.approx(0.5 + 0.4 + 0.15)
    assert found["rosenbrock: near the limit"].excess > 1.0
    assert found["rosenbrock: 0.15 of jax"].excess == pytest.approx(2.0 / 1.5)
    assert found["lstm: 0.5 of jax"].problem == "more than 20 s"


def test_a_slow_down_is_told_from_a_slow_machine():
    before = [measured("chain", "jitgrad", 10.0), measured("chain", "jax", 20.0)]
    slower_machine = [measured("chain", "jitgrad", 20.0), measured("chain", "jax", 40.0)]
    slower_library = [measured("chain", "jitgrad", 20.0), measured("chain", "jax", 20.0)]
    assert not any("SLOWER" in line for line in report.compare(before, slower_machine))
    assert any("SLOWER" in line for line in report.compare(before, slower_library))


def test_the_plain_function_is_numpys():
    """No workload needs more than NumPy and SciPy to be called."""
    assert rosenbrock(np, np.ones(10)) == 0.0
