"""The libraries: how each makes value and gradient of a function, and how its results become arrays.

A library is imported when its class is instantiated, in a process of its own (:mod:`benchmarks.session`). Its methods
are named by the tasks of workloads; each returns a function and its arguments, ready to be timed. What a library has no
method for, or what its namespace lacks, is reported as not available.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

import numpy as np

from benchmarks.workloads import Workload

__all__ = [
    "LIBRARIES",
    "CannotExpressError",
    "JitGradTwoThreads",
    "Library",
    "Namespace",
    "Prepared",
    "installed",
    "version",
]

Prepared = tuple[Callable[..., Any], Sequence[Any]]


class CannotExpressError(Exception):
    """The library has no way to do this."""


class Namespace:
    """A module that speaks NumPy, with some names added; looked-up names are kept, so that later ones cost nothing."""

    def __init__(self, module: Any, **added: Any) -> None:
        self._module = module
        vars(self).update(added)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            found = getattr(self._module, name)
        except AttributeError:
            raise CannotExpressError(f"no {name}") from None
        setattr(self, name, found)
        return found


class Library:
    """What the libraries share: the default is a function transform over NumPy arrays."""

    name: ClassVar[str]
    module: ClassVar[str]  # what has to be installed
    environment: ClassVar[dict[str, str]] = {}  # set before its process starts; {cache} is a directory

    namespace: Any

    def arguments(self, workload: Workload) -> list[Any]:
        """The data as the library wants it; conversion is not timed."""
        return list(workload.arguments())

    def value(self, workload: Workload) -> Prepared:
        """The function alone."""
        raise CannotExpressError("no functions without gradient")

    def value_and_grad(self, workload: Workload) -> Prepared:
        """The value and the gradients by the first ``wrt`` arguments."""
        raise CannotExpressError("no gradients")

    def hessian(self, workload: Workload) -> Prepared:
        """The matrix of second derivatives by the first argument."""
        raise CannotExpressError("no Hessians")

    def gradient_and_curvature(self, workload: Workload) -> Prepared:
        """The gradient by the first argument, and its derivative in the direction of ones."""
        raise CannotExpressError("no derivatives of gradients")

    def arrays(self, result: Any) -> list[np.ndarray[Any, Any]]:
        """A result, flat, as arrays."""
        if isinstance(result, tuple | list):
            return [a for part in result for a in self.arrays(part)]
        return [np.asarray(result)]

    def function(self, workload: Workload) -> Callable[..., Any]:
        """The workload in the library's own words."""
        return partial(workload.function, self.namespace)

    # ------------------------------------------------- operation by operation, where the library records eagerly

    @property
    def eager(self) -> Any:
        """The namespace whose functions record."""
        return self.namespace

    def leaf(self, array: np.ndarray[Any, Any]) -> Any:
        """An array that is recorded."""
        raise CannotExpressError("no eager recording")

    def gradients(self, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        """The gradients of a scalar function of leaves, forward and backward in one go."""
        function(*leaves).backward()
        found = [x.grad for x in leaves]
        for x in leaves:
            x.grad = None
        return found


def _all(workload: Workload) -> Any:
    return 0 if workload.wrt == 1 else tuple(range(workload.wrt))


class JitGrad(Library):
    """This library; the functions are the plain ones of NumPy and SciPy."""

    name = "jitgrad"
    module = "jitgrad"
    environment: ClassVar = {"JITGRAD_CACHE_DIR": "{cache}"}

    def __init__(self) -> None:
        import scipy.special

        import jitgrad

        self.jg = jitgrad
        self.namespace = Namespace(np, erf=scipy.special.erf)

    def value(self, workload: Workload) -> Prepared:
        return self.jg.jit(self.function(workload)), self.arguments(workload)

    def value_and_grad(self, workload: Workload) -> Prepared:
        f = self.jg.value_and_grad(self.function(workload), argnums=_all(workload))
        return self.jg.jit(f), self.arguments(workload)

    def hessian(self, workload: Workload) -> Prepared:
        return self.jg.jit(self.jg.hessian(self.function(workload))), self.arguments(workload)

    def gradient_and_curvature(self, workload: Workload) -> Prepared:
        f, jg = self.function(workload), self.jg

        def both(x: Any, direction: Any, *rest: Any) -> Any:
            return jg.jvp(lambda x: jg.grad(f)(x, *rest), (x,), (direction,))

        x, *rest = self.arguments(workload)
        return jg.jit(both), [x, np.ones_like(x), *rest]

    @property
    def eager(self) -> Any:
        return self.jg

    def leaf(self, array: np.ndarray[Any, Any]) -> Any:
        return self.jg.tensor(array, requires_grad=True)

    def arrays(self, result: Any) -> list[np.ndarray[Any, Any]]:
        return super().arrays(result.detach().numpy() if isinstance(result, self.jg.Tensor) else result)


class JitGradTwoThreads(JitGrad):
    """The same on two threads."""

    name = "jitgrad, two threads"

    def __init__(self) -> None:
        super().__init__()
        self.jg.set_num_threads(2)


class Limit(Library):
    """Functions written by hand in Numba."""

    name = "limit"
    module = "numba"

    def __init__(self) -> None:
        from benchmarks import limits

        self.limits = limits

    def _prepared(self, workload: Workload, gradients: int) -> Prepared:
        if workload.name not in self.limits.LIMITS:
            raise CannotExpressError("not written by hand")
        arguments = workload.arguments()
        return self.limits.compiled(workload.name, arguments, gradients), arguments

    def value(self, workload: Workload) -> Prepared:
        return self._prepared(workload, 0)

    def value_and_grad(self, workload: Workload) -> Prepared:
        return self._prepared(workload, workload.wrt)


class Jax(Library):
    """``jax.jit``."""

    name = "jax"
    module = "jax"
    environment: ClassVar = {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}

    def __init__(self) -> None:
        import jax
        import jax.numpy
        from jax.scipy.special import erf

        self.jax = jax
        self.namespace = Namespace(jax.numpy, erf=erf)

    def arguments(self, workload: Workload) -> list[Any]:
        return [self.jax.numpy.asarray(a) for a in workload.arguments()]

    def _ready(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled, ready = self.jax.jit(function), self.jax.block_until_ready
        return lambda *args: ready(compiled(*args))

    def value(self, workload: Workload) -> Prepared:
        return self._ready(self.function(workload)), self.arguments(workload)

    def value_and_grad(self, workload: Workload) -> Prepared:
        f = self.jax.value_and_grad(self.function(workload), argnums=_all(workload))
        return self._ready(f), self.arguments(workload)

    def hessian(self, workload: Workload) -> Prepared:
        return self._ready(self.jax.hessian(self.function(workload))), self.arguments(workload)

    def gradient_and_curvature(self, workload: Workload) -> Prepared:
        f, jax = self.function(workload), self.jax

        def both(x: Any, direction: Any, *rest: Any) -> Any:
            return jax.jvp(lambda x: jax.grad(f)(x, *rest), (x,), (direction,))

        x, *rest = self.arguments(workload)
        return self._ready(both), [x, jax.numpy.ones_like(x), *rest]


class Torch(Library):
    """PyTorch, eager; what runs operation by operation is also what its users mostly run."""

    name = "torch"
    module = "torch"

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.namespace = Namespace(torch, max=torch.amax, min=torch.amin, maximum=self._maximum)

    def _maximum(self, x: Any, y: Any) -> Any:
        return self.torch.maximum(x, y) if isinstance(y, self.torch.Tensor) else self.torch.clamp(x, min=y)

    def arguments(self, workload: Workload) -> list[Any]:
        return [self.torch.from_numpy(a) for a in workload.arguments()]

    def _finished(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def value(self, workload: Workload) -> Prepared:
        return self._finished(self.function(workload)), self.arguments(workload)

    def value_and_grad(self, workload: Workload) -> Prepared:
        f, arguments = self._finished(self.function(workload)), self.arguments(workload)
        leaves = [a.requires_grad_() for a in arguments[: workload.wrt]]

        def both(*args: Any) -> Any:
            for x in leaves:
                x.grad = None
            value = f(*args)
            value.backward()
            return value, [x.grad for x in leaves]

        return both, arguments

    def hessian(self, workload: Workload) -> Prepared:
        return self._finished(self.torch.func.hessian(self.function(workload))), self.arguments(workload)

    def gradient_and_curvature(self, workload: Workload) -> Prepared:
        f, func = self.function(workload), self.torch.func

        def both(x: Any, direction: Any, *rest: Any) -> Any:
            return func.jvp(lambda x: func.grad(f)(x, *rest), (x,), (direction,))

        x, *rest = self.arguments(workload)
        return self._finished(both), [x, self.torch.ones_like(x), *rest]

    def leaf(self, array: np.ndarray[Any, Any]) -> Any:
        return self.torch.tensor(array, requires_grad=True)

    def arrays(self, result: Any) -> list[np.ndarray[Any, Any]]:
        return super().arrays(result.detach().numpy() if isinstance(result, self.torch.Tensor) else result)


class TorchCompile(Torch):
    """``torch.compile``; needs a C++ compiler."""

    name = "torch.compile"
    environment: ClassVar = {"TORCHINDUCTOR_CACHE_DIR": "{cache}"}

    def _finished(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.torch.compiler.reset()  # the workloads before would count as recompilations, and there is a limit to those
        return self.torch.compile(function)  # type: ignore[no-any-return]


class PyTensor(Library):
    """PyTensor with its Numba backend."""

    name = "pytensor"
    module = "pytensor"
    environment: ClassVar = {"PYTENSOR_FLAGS": "base_compiledir={cache}"}

    def __init__(self) -> None:
        import pytensor
        import pytensor.tensor

        self.pytensor = pytensor
        self.namespace = Namespace(pytensor.tensor, sign=pytensor.tensor.sign)

    def _compiled(self, workload: Workload, outputs: Callable[..., list[Any]]) -> Prepared:
        arguments = self.arguments(workload)
        symbols = [self.pytensor.tensor.tensor(dtype="float64", shape=(None,) * a.ndim) for a in arguments]
        value = self.function(workload)(*symbols)
        f = self.pytensor.function(symbols, outputs(value, symbols[: workload.wrt]), mode="NUMBA")
        f.trust_input = True
        return f, arguments

    def value(self, workload: Workload) -> Prepared:
        return self._compiled(workload, lambda value, _: [value])

    def value_and_grad(self, workload: Workload) -> Prepared:
        return self._compiled(workload, lambda value, x: [value, *self.pytensor.grad(value, x)])

    def hessian(self, workload: Workload) -> Prepared:
        return self._compiled(workload, lambda value, x: [self.pytensor.gradient.hessian(value, x)[0]])

    def gradient_and_curvature(self, workload: Workload) -> Prepared:
        def both(value: Any, x: list[Any]) -> list[Any]:
            gradient = self.pytensor.grad(value, x[0])
            return [gradient, self.pytensor.grad(gradient.sum(), x[0])]  # the Hessian is symmetric

        return self._compiled(workload, both)


class Autograd(Library):
    """HIPS autograd."""

    name = "autograd"
    module = "autograd"

    def __init__(self) -> None:
        import autograd
        import autograd.numpy
        from autograd.scipy.special import erf

        self.autograd = autograd
        self.namespace = Namespace(autograd.numpy, erf=erf)

    def value(self, workload: Workload) -> Prepared:
        return self.function(workload), self.arguments(workload)

    def value_and_grad(self, workload: Workload) -> Prepared:
        f = self.autograd.value_and_grad(self.function(workload), argnum=_all(workload))
        return f, self.arguments(workload)

    def hessian(self, workload: Workload) -> Prepared:
        return self.autograd.hessian(self.function(workload)), self.arguments(workload)

    def gradient_and_curvature(self, workload: Workload) -> Prepared:
        f = self.function(workload)
        gradient, product = self.autograd.grad(f), self.autograd.hessian_vector_product(f)
        x, *rest = self.arguments(workload)
        return lambda x, direction, *rest: (gradient(x, *rest), product(x, *rest, direction)), [
            x,
            np.ones_like(x),
            *rest,
        ]

    def leaf(self, array: np.ndarray[Any, Any]) -> Any:
        from autograd.core import VJPNode
        from autograd.tracer import new_box

        return new_box(array, 0, VJPNode.new_root())

    def gradients(self, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        return self.autograd.grad(function, tuple(range(len(leaves))))(*(x._value for x in leaves))

    def arrays(self, result: Any) -> list[np.ndarray[Any, Any]]:
        return super().arrays(getattr(result, "_value", result))


class MyGrad(Library):
    """MyGrad."""

    name = "mygrad"
    module = "mygrad"

    def __init__(self) -> None:
        import mygrad

        self.mygrad = mygrad
        self.namespace = Namespace(mygrad, sign=np.sign)

    def value_and_grad(self, workload: Workload) -> Prepared:
        f, arguments, tensor = self.function(workload), self.arguments(workload), self.mygrad.tensor
        leaves = [tensor(a) for a in arguments[: workload.wrt]]

        def both(*args: Any) -> Any:
            value = f(*args)
            value.backward()
            return value, [x.grad for x in leaves]

        return both, [*leaves, *arguments[workload.wrt :]]

    def leaf(self, array: np.ndarray[Any, Any]) -> Any:
        return self.mygrad.tensor(array)

    def gradients(self, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        function(*leaves).backward()
        return [x.grad for x in leaves]

    def arrays(self, result: Any) -> list[np.ndarray[Any, Any]]:
        return super().arrays(result.data if isinstance(result, self.mygrad.Tensor) else result)


class Micrograd(Library):
    """micrograd, which has scalars alone: one workload."""

    name = "micrograd"
    module = "micrograd"

    def __init__(self) -> None:
        from micrograd.engine import Value

        self.value_class = Value
        self.namespace = Namespace(None, maximum=lambda x, zero: x.relu())

    def value_and_grad(self, workload: Workload) -> Prepared:
        if workload.name != "micrograd":
            raise CannotExpressError("scalars only")
        f = self.function(workload)
        weights, x, y = workload.arguments()
        leaves = [self.value_class(float(w)) for w in weights]

        def both(*args: Any) -> Any:
            for leaf in leaves:
                leaf.grad = 0
            value = f(*args)
            value.backward()
            return value, np.array([leaf.grad for leaf in leaves])

        return both, [leaves, x, y]

    def arrays(self, result: Any) -> list[np.ndarray[Any, Any]]:
        return super().arrays(result.data if isinstance(result, self.value_class) else result)


LIBRARIES: dict[str, type[Library]] = {
    cls.name: cls for cls in (JitGrad, Limit, Jax, Torch, TorchCompile, PyTensor, Autograd, MyGrad, Micrograd)
}


def installed(library: type[Library]) -> bool:
    """Whether the library can be imported, without importing it."""
    return importlib.util.find_spec(library.module) is not None


def version(library: type[Library]) -> str:
    """The version of an installed library; a checkout of jitgrad need not be installed."""
    try:
        return metadata.version(library.module)
    except metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(library.module), "__version__", "unknown"))
