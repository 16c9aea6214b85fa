"""Gradients of recorded tensors as functions, user-made derivative rules, and tools that look for mistakes.

The names and their meaning are those of PyTorch.
"""

from jitgrad.autograd.anomaly import detect_anomaly, set_detect_anomaly
from jitgrad.autograd.check import gradcheck, gradgradcheck
from jitgrad.autograd.differentiate import backward, grad
from jitgrad.autograd.function import Function, FunctionContext, once_differentiable
from jitgrad.core.modes import enable_grad, is_grad_enabled, no_grad, set_grad_enabled

__all__ = [
    "Function",
    "FunctionContext",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "is_grad_enabled",
    "no_grad",
    "once_differentiable",
    "set_detect_anomaly",
    "set_grad_enabled",
]
