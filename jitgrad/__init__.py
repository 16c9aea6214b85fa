"""Gradients for NumPy-style Python on the CPU, compiled by Numba."""

from jitgrad._version import __version__
from jitgrad.core.modes import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from jitgrad.ops.catalog import public_names as _public_names
from jitgrad.tensor import Tensor
from jitgrad.tensor.creation import asarray, from_dlpack, from_numpy, tensor

globals().update({name: op.function for name, op in _public_names().items() if "." not in name})
