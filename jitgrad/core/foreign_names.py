"""Names that people know from PyTorch and JAX and that are called otherwise here: what messages say instead of them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

__all__ = ["KEYWORDS", "MODULE_NAMES", "TENSOR_NAMES", "keyword_hint"]

_CPU: Final = "leave it out, tensors are always on the CPU"
_OWN_LAYERS: Final = (
    "there are no layers; a model is a plain function of its parameters, or a class of your own that keeps them"
)
_RANDOM: Final = "draw with NumPy, jg.tensor(np.random.default_rng(seed).normal(size=shape))"
_NLL: Final = "-jg.log_softmax(x, axis=-1)[np.arange(n), labels].mean()"

TENSOR_NAMES: Final[dict[str, str]] = {
    "view": "use .reshape(...), which gives a view where the strides allow",
    "view_as": "use .reshape(other.shape)",
    "reshape_as": "use .reshape(other.shape)",
    "data": "use .detach(), which shares memory; to write parameters, `with jg.no_grad(): x -= step * x.grad`",
    "dim": "use .ndim",
    "ndimension": "use .ndim",
    "numel": "use .size",
    "nelement": "use .size",
    "element_size": "use .itemsize",
    "stride": "use .detach().numpy().strides, which are in bytes",
    "t": "use .T, or .mT for stacks of matrices",
    "H": "use .mT, there are no complex tensors",
    "mm": "use @",
    "bmm": "use @, which takes stacks of matrices",
    "mv": "use @",
    "masked_fill": "use jg.where(mask, value, x)",
    "masked_fill_": "use x[mask] = value",
    "masked_select": "use x[mask]",
    "index_select": "use .take(index, axis=...)",
    "gather": "use jg.take_along_axis(x, index, axis)",
    "scatter": "use a copy, y = x.clone(), and y[index] = value",
    "scatter_": "use x[index] = value",
    "topk": "use .argsort() and jg.take_along_axis",
    "unbind": "use jg.unstack(x, axis=0), or iterate over x",
    "chunk": "use jg.array_split(x, parts, axis=0)",
    "type": "use .astype(dtype)",
    "to": f"use .astype(dtype); for devices, {_CPU}",
    "float": "use .astype(jg.float32)",
    "double": "use .astype(jg.float64)",
    "int": "use .astype(jg.int32)",
    "long": "use .astype(jg.int64)",
    "bool": "use .astype(bool)",
    "half": "use .astype(jg.float32); there is no float16",
    "cpu": _CPU,
    "cuda": _CPU,
    "is_cuda": _CPU,
    "norm": "use jg.linalg.norm(x)",
    "clamp": "use .clip(low, high)",
    "clamp_": "use .clip_(low, high)",
    "pow_": "use x **= y",
    "transpose_": "use x = x.swapaxes(a, b)",
    "expand_as": "use .broadcast_to(other.shape)",
    "new_zeros": "use jg.zeros(shape, x.dtype)",
    "new_ones": "use jg.ones(shape, x.dtype)",
    "new_tensor": "use jg.tensor(data, x.dtype)",
    "argwhere": "use jg.argwhere(x)",
    "at": "use x[index] = value (in place), or a copy first, y = x.clone()",
    "block_until_ready": "leave it out, results are there when a call returns",
}
"""Of tensors."""

MODULE_NAMES: Final[dict[str, str]] = {
    "nn": _OWN_LAYERS,
    "functional": "its functions are here: jg.softmax, jg.relu, jg.log_softmax",
    "optim": "write the update, `with jg.no_grad(): w -= step * w.grad`, or give jg.value_and_grad(f) to scipy.optimize",
    "func": "its functions are here: jg.grad, jg.vmap, jg.jvp, jg.vjp, jg.hessian",
    "compile": "use jg.jit(f)",
    "numpy": "its functions are here: jg.sin, jg.sum",
    "lax": "write Python loops and jg.where",
    "random": _RANDOM,
    "rand": _RANDOM,
    "randn": _RANDOM,
    "manual_seed": _RANDOM,
    "clamp": "use jg.clip",
    "mm": "use jg.matmul",
    "bmm": "use jg.matmul",
    "gather": "use jg.take_along_axis",
    "norm": "use jg.linalg.norm",
    "inference_mode": "use jg.no_grad",
    "is_tensor": "use isinstance(x, jg.Tensor)",
    "numel": "use x.size",
    "unbind": "use jg.unstack",
    "chunk": "use jg.array_split",
    "masked_select": "use x[mask]",
    "detach": "use x.detach(), or jg.stop_gradient(x)",
    "cross_entropy": f"write it, {_NLL}",
    "nll_loss": f"write it, {_NLL}",
    "mse_loss": "write it, ((x - y) ** 2).mean()",
    "device": _CPU,
    "cuda": _CPU,
    "FloatTensor": "use jg.tensor(data, jg.float32)",
    "LongTensor": "use jg.tensor(data, jg.int64)",
    "float": "use jg.float32",
    "double": "use jg.float64",
    "long": "use jg.int64",
    "bool": "use jg.bool_",
}
"""Of the package."""

KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis"),
    "keepdim": ("keepdims",),
    "unbiased": ("ddof", "correction"),
    "correction": ("ddof",),
    "diagonal": ("k", "offset"),
}
"""Of keyword arguments: the names of which one is meant."""


def keyword_hint(unknown: Iterable[str], known: Container[str]) -> str:
    """What to write instead of keywords that a function with the parameters ``known`` does not take; empty if unclear."""
    pairs = [(u, next((k for k in KEYWORDS.get(u, ()) if k in known), None)) for u in unknown]
    hints = [f"{k}= in place of {u}=" for u, k in pairs if k is not None]
    hints += [_CPU for u, _ in pairs if u == "device"]
    return "; ".join(hints)
