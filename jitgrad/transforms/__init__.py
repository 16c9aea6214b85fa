"""Transforms of functions: gradients of any order, Jacobians and products with them, and compilation."""

from jitgrad.transforms.batching import vmap
from jitgrad.transforms.checkpointing import checkpoint
from jitgrad.transforms.forward_mode import jvp, linearize
from jitgrad.transforms.jacobians import hessian, hvp, jacfwd, jacobian, jacrev
from jitgrad.transforms.jit import jit
from jitgrad.transforms.primitives import primitive
from jitgrad.transforms.reverse_mode import grad, value_and_grad, vjp

__all__ = [
    "checkpoint",
    "grad",
    "hessian",
    "hvp",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "linearize",
    "primitive",
    "value_and_grad",
    "vjp",
    "vmap",
]
