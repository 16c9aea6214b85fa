"""Settings shared by all tests: Hypothesis profiles, worker processes, checks around every test."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the first example of a test may have to compile its kernel. Where CI is set, Hypothesis
# itself derandomizes what does not say otherwise.
settings.register_profile("dev", max_examples=50, deadline=None, derandomize=False)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("night", max_examples=2000, deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run named test files in this process: starting workers would take longer than they save."""
    named = config.invocation_params.args and all(Path(arg.partition("::")[0]).suffix == ".py" for arg in config.args)
    return 0 if named else None


# ---------------------------------------------------------------------------------------------------------
# Checks around every test: autouse fixtures that fail a test which leaves state behind (grad mode, tracing)
# belong here.
# ---------------------------------------------------------------------------------------------------------


def _state() -> dict[str, object]:
    """Everything that a context manager or a trace changes while it lasts."""
    from jitgrad.core import modes

    return {
        "grad mode": modes.grad_mode.get(),
        "anomaly detection": modes.anomaly.get(),
        "forward mode": modes.forward.get(),
        "a transform": modes.transforming.get(),
        "backward": modes.in_backward.get(),
        "entered grad modes": modes._entered.get(),
    }


_CLEAN = {
    "grad mode": True,
    "anomaly detection": None,
    "forward mode": False,
    "a transform": False,
    "backward": False,
    "entered grad modes": (),
}


@pytest.fixture(autouse=True)
def _state_is_restored():
    """A test that leaves grad mode, anomaly detection or the state of tracing changed fails, and spoils no other."""
    from jitgrad.core import modes

    assert _state() == _CLEAN
    yield
    after = _state()
    variables = (modes.grad_mode, modes.anomaly, modes.forward, modes.transforming, modes.in_backward, modes._entered)
    for variable, value in zip(variables, _CLEAN.values(), strict=True):
        variable.set(value)
    assert after == _CLEAN, f"the test leaves {[name for name in after if after[name] != _CLEAN[name]]} changed"
