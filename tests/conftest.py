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
    named = config.invocation_params.args and all(
        Path(arg.partition("::")[0]).suffix == ".py" for arg in config.args
    )
    return 0 if named else None


# ---------------------------------------------------------------------------------------------------------
# Checks around every test: autouse fixtures that fail a test which leaves state behind (grad mode, tracing)
# belong here.
# ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _grad_mode_is_restored():
    """A test that leaves grad mode or anomaly detection changed fails, and does not spoil the next one."""
    from jitgrad import is_grad_enabled
    from jitgrad.core.modes import anomaly, grad_mode

    before = (is_grad_enabled(), grad_mode.get(), anomaly.get())
    yield
    after = (is_grad_enabled(), grad_mode.get(), anomaly.get())
    grad_mode.set(True)
    anomaly.set(None)
    assert before == (True, True, None)
    assert after == (True, True, None), "the test leaves grad mode or anomaly detection changed"
