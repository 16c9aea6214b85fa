"""Gradients for NumPy-style Python on the CPU, compiled by Numba.

Tensors record what is done with them (``requires_grad``, ``backward``, ``detach``); operations and their gradients run as
compiled kernels, kept in a cache on disk. Every operation is a function here, under NumPy's names.
"""

import importlib as _importlib
from typing import Any

import numpy as _np

from jitgrad import autograd, errors, linalg
from jitgrad._version import __version__
from jitgrad.core.foreign_names import MODULE_NAMES as _MODULE_NAMES
from jitgrad.core.modes import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from jitgrad.kernels.threads import get_num_threads, set_num_threads
from jitgrad.ops.catalog import public_names as _public_names
from jitgrad.tensor import Tensor
from jitgrad.tensor.creation import asarray, from_dlpack, from_numpy, tensor
from jitgrad.tensor.methods import public_function as _public_function
from jitgrad.transforms import (
    checkpoint,
    grad,
    hessian,
    hvp,
    jacfwd,
    jacobian,
    jacrev,
    jit,
    jvp,
    linearize,
    primitive,
    value_and_grad,
    vjp,
    vmap,
)

float32, float64, bool_ = _np.float32, _np.float64, _np.bool_
int8, int16, int32, int64 = _np.int8, _np.int16, _np.int32, _np.int64
uint8, uint16, uint32, uint64 = _np.uint8, _np.uint16, _np.uint32, _np.uint64
pi, e, inf, nan, newaxis = _np.pi, _np.e, _np.inf, _np.nan, None
array = tensor

_operations = {name: _public_function(op) for name, op in _public_names().items() if "." not in name}
globals().update(_operations)

__all__ = [  # noqa: PLE0604
    "CacheInfo", "Tensor", "__version__", "array", "asarray", "autograd", "bool_", "cache_info", "clear_cache", "e",
    "enable_grad", "errors", "float32", "float64", "from_dlpack", "from_numpy", "get_num_threads", "inf", "int8", "int16",
    "int32", "int64", "is_grad_enabled", "linalg", "nan", "newaxis", "no_grad", "pi", "set_grad_enabled",
    "set_num_threads", "tensor", "uint8", "uint16", "uint32", "uint64", "checkpoint", "grad", "hessian", "hvp", "jacfwd",
    "jacobian", "jacrev", "jit", "jvp", "linearize", "primitive", "value_and_grad", "vjp", "vmap", *_operations,
]  # fmt: skip


_LATER = {  # not for free, and not for every program
    "testing": "jitgrad.testing",
    "CacheInfo": "jitgrad.kernels.report",
    "cache_info": "jitgrad.kernels.report",
    "clear_cache": "jitgrad.kernels.report",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_NAMES:
        raise errors.NoAttributeError(f"jitgrad has no {name!r}: {_MODULE_NAMES[name]}")
    if name not in _LATER:
        raise AttributeError(f"module 'jitgrad' has no attribute {name!r}")
    module = _importlib.import_module(_LATER[name])
    return module if name == "testing" else getattr(module, name)
