"""The workloads: plain NumPy functions with their data, each written once for all libraries.

A function's first argument is the namespace that it calls, ``numpy`` itself for jitgrad and whatever else speaks NumPy's
language for the others. The first ``wrt`` arguments after it are differentiated. All is float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy
from numpy.random import Generator

__all__ = ["CALLS", "PRODUCT", "WORKLOADS", "Workload", "chain_of"]


@dataclass(frozen=True)
class Workload:
    """A function, its data, and what is asked of it."""

    name: str
    function: Callable[..., Any]
    data: Callable[[Generator], tuple[Any, ...]]
    wrt: int = 1
    task: str = "value_and_grad"  # the method of a library (benchmarks.libraries) that prepares it

    def arguments(self) -> tuple[Any, ...]:
        """The same arrays in every process."""
        return _data(self)

    def value(self) -> Workload:
        """The same function without its gradient."""
        return replace(self, task="value")

    def prepare(self, library: Any) -> Any:
        """The library's function and arguments for it."""
        return getattr(library, self.task)(self)


@lru_cache(maxsize=1)  # making the data is no part of a first call
def _data(workload: Workload) -> tuple[Any, ...]:
    return workload.data(numpy.random.default_rng(0))


# ------------------------------------------------------------------------------------------ small vectors


def rosenbrock(np: Any, x: Any) -> Any:
    """A curved valley, the usual test of optimisers."""
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def rosenbrock_data(rng: Generator, n: int) -> tuple[Any, ...]:
    """A point on a line through the valley."""
    return (numpy.linspace(-1.0, 1.0, n),)


def eight_schools(np: Any, q: Any, y: Any, sigma: Any) -> Any:
    """Log-density of the eight schools model, not centred: a mean, the log of a scale, eight effects."""
    mu, log_tau, effects = q[0], q[1], q[2:]
    tau = np.exp(log_tau)
    residuals = (y - (mu + tau * effects)) / sigma
    prior = -0.5 * mu * mu / 25.0 - np.log(1.0 + tau * tau / 25.0) + log_tau - 0.5 * np.sum(effects * effects)
    return prior - 0.5 * np.sum(residuals**2)


def eight_schools_data(rng: Generator) -> tuple[Any, ...]:
    """The effects and standard errors of Rubin (1981)."""
    y = numpy.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return numpy.full(10, 0.1), y, numpy.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def micrograd_mlp(np: Any, w: Any, x: Any, y: Any) -> Any:
    """The MLP(3, [4, 4, 1]) of micrograd on its four examples, one number at a time."""
    loss = 0.0
    for i in range(4):
        k, layer = 0, [x[i, j] for j in range(3)]
        for width in (4, 4, 1):
            outputs = []
            for _ in range(width):
                total = w[k]
                for j, a in enumerate(layer):
                    total = total + w[k + 1 + j] * a
                k += 1 + len(layer)
                outputs.append(total if width == 1 else np.maximum(total, 0.0))
            layer = outputs
        loss = loss + (layer[0] - y[i]) ** 2
    return loss


def micrograd_data(rng: Generator) -> tuple[Any, ...]:
    """The examples of micrograd's tutorial; 41 weights."""
    x = numpy.array([[2.0, 3.0, -1.0], [3.0, -1.0, 0.5], [0.5, 1.0, 1.0], [1.0, 1.0, -1.0]])
    return rng.uniform(-1.0, 1.0, 41), x, numpy.array([1.0, -1.0, -1.0, 1.0])


# -------------------------------------------------------------------------------------------- statistics


def logistic_regression(np: Any, w: Any, X: Any, y: Any) -> Any:
    """Negative log-likelihood with a normal prior."""
    z = X @ w
    return np.sum(np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0.0) - y * z) + 0.5 * np.sum(w * w)


def logistic_regression_data(rng: Generator) -> tuple[Any, ...]:
    """1000 rows of 20 features."""
    return rng.normal(0.0, 0.1, 20), rng.standard_normal((1000, 20)), (rng.random(1000) > 0.5) * 1.0


def mixture(np: Any, alphas: Any, means: Any, log_diagonal: Any, lower: Any, mask: Any, eye: Any, xt: Any) -> Any:
    """Log-posterior of a Gaussian mixture with inverse Cholesky factors and a Wishart prior, as in ADBench."""
    factors = np.exp(log_diagonal)[:, :, None] * eye + lower * mask
    z = factors @ (xt - means[:, :, None])  # components, coordinates, points
    scores = (alphas + np.sum(log_diagonal, axis=1))[:, None] - 0.5 * np.sum(z * z, axis=1)
    top = np.max(scores, axis=0)
    likelihood = np.sum(np.log(np.sum(np.exp(scores - top), axis=0)) + top)
    peak = np.max(alphas)
    evidence = xt.shape[1] * (np.log(np.sum(np.exp(alphas - peak))) + peak)
    return likelihood - evidence - 0.5 * np.sum(factors * factors) + np.sum(log_diagonal)


def mixture_data(rng: Generator) -> tuple[Any, ...]:
    """25 components in 10 dimensions, 1000 points."""
    k, d, n = 25, 10, 1000
    return (
        rng.standard_normal(k),
        rng.standard_normal((k, d)),
        rng.normal(0.0, 0.2, (k, d)),
        rng.normal(0.0, 0.2, (k, d, d)),
        numpy.tril(numpy.ones((d, d)), -1),
        numpy.eye(d),
        rng.standard_normal((d, n)),
    )


def kmeans(np: Any, centres: Any, points: Any) -> Any:
    """Squared distances to the nearest centre. Its Hessian is diagonal: one jvp of the gradient is a Newton step's."""
    distances = np.sum((points[:, None, :] - centres) ** 2, axis=2)
    return np.sum(np.min(distances, axis=1))


def kmeans_data(rng: Generator) -> tuple[Any, ...]:
    """1000 points in 10 dimensions, 10 centres."""
    return rng.standard_normal((10, 10)), rng.standard_normal((1000, 10))


def least_squares(np: Any, w: Any, t: Any, powers: Any) -> Any:
    """A polynomial fitted to the sign function; the basis is evaluated each time."""
    return 0.5 * np.sum((np.sign(t) - (t[:, None] ** powers) @ w) ** 2)


def least_squares_data(rng: Generator) -> tuple[Any, ...]:
    """4096 points on [-1, 1], 128 powers."""
    return rng.normal(0.0, 0.1, 128), numpy.linspace(-1.0, 1.0, 4096), numpy.arange(128.0)


# -------------------------------------------------------------------------------------------- networks


def tiny_mlp(np: Any, w1: Any, b1: Any, w2: Any, b2: Any, X: Any, Y: Any) -> Any:
    """One hidden layer and a squared error."""
    return np.sum((np.tanh(X @ w1 + b1) @ w2 + b2 - Y) ** 2)


def tiny_mlp_data(rng: Generator) -> tuple[Any, ...]:
    """A batch of 32; layers of 2, 16 and 1."""
    w1, w2 = rng.normal(0.0, 0.5, (2, 16)), rng.normal(0.0, 0.5, (16, 1))
    return w1, numpy.zeros(16), w2, numpy.zeros(1), rng.standard_normal((32, 2)), rng.standard_normal((32, 1))


def mlp(np: Any, w1: Any, b1: Any, w2: Any, b2: Any, X: Any, Y: Any) -> Any:
    """One hidden layer, softmax and cross-entropy."""
    o = np.tanh(X @ w1 + b1) @ w2 + b2
    top = np.max(o, axis=1)
    return (np.sum(np.log(np.sum(np.exp(o - top[:, None]), axis=1)) + top) - np.sum(o * Y)) / X.shape[0]


def mlp_data(rng: Generator) -> tuple[Any, ...]:
    """A batch of 128; layers of 784, 256 and 10."""
    w1, w2 = rng.normal(0.0, 0.05, (784, 256)), rng.normal(0.0, 0.05, (256, 10))
    classes = numpy.eye(10)[rng.integers(0, 10, 128)]
    return w1, numpy.zeros(256), w2, numpy.zeros(10), rng.standard_normal((128, 784)), classes


_CELLS = 32


def lstm(np: Any, wx: Any, wh: Any, b: Any, h: Any, c: Any, xs: Any, y: Any) -> Any:
    """One LSTM cell unrolled 20 steps."""

    def sigmoid(a: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-a))

    for t in range(20):
        z = xs[t] @ wx + h @ wh + b
        keep, new, out = (sigmoid(z[:, k * _CELLS : (k + 1) * _CELLS]) for k in range(3))
        c = keep * c + new * np.tanh(z[:, 3 * _CELLS :])
        h = out * np.tanh(c)
    return np.sum((h - y) ** 2)


def lstm_data(rng: Generator) -> tuple[Any, ...]:
    """Batches of 16 with 16 features, 32 cells."""
    wx, wh = rng.normal(0.0, 0.3, (16, 4 * _CELLS)), rng.normal(0.0, 0.2, (_CELLS, 4 * _CELLS))
    state = numpy.zeros((16, _CELLS))
    inputs, targets = rng.standard_normal((20, 16, 16)), rng.standard_normal((16, _CELLS))
    return wx, wh, numpy.zeros(4 * _CELLS), state, state.copy(), inputs, targets


# -------------------------------------------------------------------------------------------- large arrays


def black_scholes(np: Any, S: Any, K: Any, t: Any, r: Any, v: Any) -> Any:
    """Prices of European calls; the five gradients are the Greeks of every option."""

    def normal(x: Any) -> Any:
        return 0.5 * (1.0 + np.erf(x / 1.4142135623730951))

    deviation = v * np.sqrt(t)
    d1 = (np.log(S / K) + (r + 0.5 * v * v) * t) / deviation
    return np.sum(S * normal(d1) - K * np.exp(-r * t) * normal(d1 - deviation))


def black_scholes_data(rng: Generator) -> tuple[Any, ...]:
    """A million options."""
    ranges = (50.0, 150.0), (50.0, 150.0), (0.1, 2.0), (0.01, 0.05), (0.1, 0.5)
    return tuple(rng.uniform(low, high, 1_000_000) for low, high in ranges)


def chain(np: Any, x: Any) -> Any:
    """A chain of elementwise operations and a sum."""
    y = np.tanh(x) * x + np.exp(-x * x)
    z = y * np.sin(x) + y / (1.0 + x * x)
    return np.sum(z * z)


def logsumexp(np: Any, x: Any) -> Any:
    """Written out, not called by its name."""
    top = np.max(x)
    return np.log(np.sum(np.exp(x - top))) + top


def normal_data(rng: Generator, n: int) -> tuple[Any, ...]:
    """One vector of standard normal numbers."""
    return (rng.standard_normal(n),)


def chain_of(n: int) -> Workload:
    """The chain on n elements."""
    return Workload("chain", chain, partial(normal_data, n=n))


_ROSENBROCK = partial(rosenbrock_data, n=10)

WORKLOADS = {
    w.name: w
    for w in (
        Workload("rosenbrock", rosenbrock, _ROSENBROCK),
        Workload("eight_schools", eight_schools, eight_schools_data),
        Workload("logistic_regression", logistic_regression, logistic_regression_data),
        Workload("tiny_mlp", tiny_mlp, tiny_mlp_data, wrt=4),
        Workload("mlp", mlp, mlp_data, wrt=4),
        Workload("black_scholes", black_scholes, black_scholes_data, wrt=5),
        chain_of(1_000_000),
        Workload("logsumexp", logsumexp, partial(normal_data, n=1_000_000)),
        Workload("mixture", mixture, mixture_data, wrt=4),
        Workload("kmeans", kmeans, kmeans_data, task="gradient_and_curvature"),
        Workload("least_squares", least_squares, least_squares_data),
        Workload("lstm", lstm, lstm_data, wrt=3),
        Workload("rosenbrock_hessian", rosenbrock, partial(rosenbrock_data, n=50), task="hessian"),
        Workload("micrograd", micrograd_mlp, micrograd_data),
    )
}


# ------------------------------------------------------------------------------------- what a call costs


def sum_of_one(np: Any, a: Any) -> Any:
    """Next to no work: what is left is the call."""
    return np.sum(a)


def sum_of_six(np: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    """The same for six arguments."""
    return np.sum(a + b + c + d + e + f)


def ones_data(rng: Generator, count: int) -> tuple[Any, ...]:
    """Arrays of one element."""
    return tuple(numpy.ones(1) for _ in range(count))


CALLS = {
    w.name: w
    for w in (
        Workload("call_1_array", sum_of_one, partial(ones_data, count=1), task="value"),
        Workload("call_6_arrays", sum_of_six, partial(ones_data, count=6), wrt=6, task="value"),
    )
}


def product(np: Any, a: Any) -> Any:
    """A small program with a matrix product: whoever has run it has loaded compiler and BLAS."""
    return np.sum(np.exp(a @ a))  # without a function in between the sum could be had without the product


def product_data(rng: Generator) -> tuple[Any, ...]:
    """A matrix that is large enough for BLAS."""
    return (rng.standard_normal((32, 32)),)


PRODUCT = Workload("product", product, product_data)
