"""The eager engine on ndarrays: plans run primitives, recorders differentiate what was run."""

from jitgrad.eager.plans import Plan, forget_plans, is_plan_table, keep_plan, plan_for, run
from jitgrad.eager.recorders import Recorder, kernel_source, recorder_for

__all__ = [
    "Plan",
    "Recorder",
    "forget_plans",
    "is_plan_table",
    "keep_plan",
    "kernel_source",
    "plan_for",
    "recorder_for",
    "run",
]
