"""Tensors: arrays with their place in the recorded graph."""

from jitgrad.core.dispatch import install
from jitgrad.tensor.engine import ENGINE
from jitgrad.tensor.methods import install_methods
from jitgrad.tensor.operands import as_tensor
from jitgrad.tensor.tensor import Tensor

__all__ = ["Tensor", "as_tensor"]

install(ENGINE)
install_methods()
