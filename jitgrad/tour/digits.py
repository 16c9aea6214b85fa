"""The digits data, a network with one hidden layer for it, and how it learns: plain jitgrad throughout."""

from __future__ import annotations

import gzip
import importlib.resources
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import jitgrad as jg
from jitgrad.tour.progress import Progress

__all__ = [
    "Digits",
    "Layer",
    "accuracy",
    "cross_entropy",
    "features",
    "gradient_error",
    "layer",
    "load",
    "scores",
    "train",
]

Array = np.ndarray[Any, Any]


class Digits(NamedTuple):
    """Images as rows of 64 pixels between 0 and 1, and for each the number of its class, from 0."""

    pixels: Array
    classes: Array


class Layer(NamedTuple):
    """The parameters of an affine map: ``x @ weight + bias``."""

    weight: jg.Tensor
    bias: jg.Tensor


def load(first: int, last: int, rng: np.random.Generator) -> tuple[Digits, Digits]:
    """Return the images of the digits ``first`` to ``last``: 70 % to learn from, and 30 % held out.

    The class of an image is its digit minus ``first``.
    """
    packed = importlib.resources.files("jitgrad").joinpath("data", "digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",")
    table = rng.permutation(table[(first <= table[:, 64]) & (table[:, 64] <= last)])
    images = Digits(table[:, :64] / 16.0, table[:, 64].astype(np.int64) - first)
    kept = 7 * len(table) // 10
    return Digits(images.pixels[:kept], images.classes[:kept]), Digits(images.pixels[kept:], images.classes[kept:])


def layer(rng: np.random.Generator, inputs: int, outputs: int) -> Layer:
    """Return a layer to be trained, with random weights and no bias yet."""
    weight = rng.normal(0.0, inputs**-0.5, (inputs, outputs))
    return Layer(jg.tensor(weight, requires_grad=True), jg.tensor(np.zeros(outputs), requires_grad=True))


def features(body: Layer, pixels: Array) -> jg.Tensor:
    """Return what the hidden layer makes of the images."""
    hidden: jg.Tensor = jg.tanh(pixels @ body.weight + body.bias)
    return hidden


def scores(head: Layer, hidden: jg.Tensor) -> jg.Tensor:
    """Return one score a class for each image."""
    return hidden @ head.weight + head.bias


def cross_entropy(found: jg.Tensor, classes: Array) -> jg.Tensor:
    """Return the mean of ``-log p``, p the probability that softmax gives to the right class."""
    of_right_class = jg.log_softmax(found, axis=1)[np.arange(len(classes)), classes]
    mean: jg.Tensor = of_right_class.mean()
    return -mean


def train(
    loss: Callable[[Digits], jg.Tensor],
    data: Digits,
    parameters: Sequence[jg.Tensor],
    rng: np.random.Generator,
    *,
    epochs: int,
    label: str,
    rate: float = 0.1,
    momentum: float = 0.9,
) -> list[float]:
    """Train the parameters by stochastic gradient descent with momentum; return the mean loss of each epoch."""
    velocity = [jg.tensor(np.zeros(p.shape)) for p in parameters]
    history = []
    progress = Progress(epochs, label)
    for epoch in progress:
        batches = np.array_split(rng.permutation(len(data.classes)), len(data.classes) // 32)
        total = 0.0
        for batch in batches:
            value = loss(Digits(data.pixels[batch], data.classes[batch]))
            value.backward()
            with jg.no_grad():
                for p, v in zip(parameters, velocity, strict=True):
                    if p.grad is not None:  # None: the loss does not depend on p, as far as the graph goes
                        v *= momentum
                        v += p.grad
                        p -= rate * v
                        p.grad = None
            total += value.item()
        history.append(total / len(batches))
        progress.note(epoch + 1, f"loss {history[-1]:.4f}")
    return history


def accuracy(body: Layer, head: Layer, data: Digits) -> float:
    """Return the share of images whose highest score is that of their class."""
    with jg.no_grad():
        found = scores(head, features(body, data.pixels)).numpy()
    return float(np.mean(found.argmax(axis=1) == data.classes))


def gradient_error(
    loss: Callable[[], jg.Tensor], parameters: Sequence[jg.Tensor], rng: np.random.Generator, *, step: float = 1e-5
) -> float:
    """Return the largest difference between gradient and central differences, relative to the largest slope.

    Up to 40 entries of each parameter are tried, drawn at random. The parameters end as they were. Infinite where a
    parameter gets no gradient.
    """
    for p in parameters:
        p.grad = None
    loss().backward()
    worst = 0.0
    for p in parameters:
        if p.grad is None:
            return math.inf
        gradient, p.grad = p.grad.numpy(), None
        values = p.detach().numpy().copy()
        differences, slopes = [], []
        for i in rng.permutation(p.size)[:40]:
            at = tuple(map(int, np.unravel_index(i, p.shape)))
            around = []
            with jg.no_grad():
                for moved in (values[at] + step, values[at] - step):
                    p[at] = moved
                    around.append(loss().item())
                p[at] = values[at]
            slopes.append((around[0] - around[1]) / (2 * step))
            differences.append(abs(gradient[at] - slopes[-1]))
        worst = max(worst, float(max(differences) / max(map(abs, slopes))))
    return worst
