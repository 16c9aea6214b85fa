"""The tour of ``python -m jitgrad``: detach, a network that is frozen with it, and a check of its gradients.

Every claim that is printed comes from the result, which says itself where a claim does not hold.
"""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.kernels.report import CacheInfo, cache_info
from jitgrad.tour.digits import (
    Digits,
    Layer,
    accuracy,
    cross_entropy,
    features,
    gradient_error,
    layer,
    load,
    scores,
    train,
)

__all__ = ["Example", "Learning", "TourResult", "check_gradient", "learn", "run", "show_detach"]

WANTED_ACCURACY = 0.95
WANTED_ERROR = 1e-6
_HIDDEN = 64
_EPOCHS = 20
_SEED = 0

_EXAMPLE = """\
x = jg.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = x ** 2
z = y.detach()
(y + z).sum().backward()
x.grad
np.shares_memory(y.numpy(force=True), z.numpy(force=True))
z.requires_grad, z.grad_fn"""


@dataclass(frozen=True)
class Example:
    """What the detach example gave: the gradient, whether y and z share memory, and the error of ``z``'s backward."""

    gradient: tuple[float, ...]
    shared: bool
    refusal: str | None


@dataclass(frozen=True)
class Learning:
    """What the network learned.

    Attributes:
        accuracy_before: share of held-out digits 0 to 4 that it knows after pre-training.
        accuracy: share of held-out digits 5 to 9 that it knows after fine-tuning.
        moved: largest change of a frozen weight during fine-tuning.
        frozen_without_gradient: whether no frozen weight got a gradient through ``detach()``.
        flow_without_detach: largest gradient of a frozen weight when the same loss is computed without it.
        loss_before, loss: mean loss of each epoch.
        fine_tuning: what a drawing of the graph needs: the loss, the hidden layer, and names of the parameters.
    """

    accuracy_before: float
    accuracy: float
    moved: float
    frozen_without_gradient: bool
    flow_without_detach: float
    loss_before: list[float] = field(repr=False)
    loss: list[float] = field(repr=False)
    fine_tuning: tuple[jg.Tensor, jg.Tensor, dict[str, jg.Tensor]] = field(repr=False)


@dataclass(frozen=True)
class TourResult:
    """Everything the tour found; `problems` says which claims do not hold."""

    example: Example
    learning: Learning
    gradient_error: float
    cache: CacheInfo
    seconds: float

    def problems(self) -> list[str]:
        """Return one sentence for each claim that does not hold."""
        example, learning = self.example, self.learning
        wanted = f"at least {WANTED_ACCURACY:.0%} are wanted"
        # Each comparison says when all is well, so that NaN is a problem.
        claims = (
            (example.gradient == (2.0, 4.0, 6.0), f"the gradient of the example is {example.gradient}, not (2, 4, 6)"),
            (example.shared, "y.detach() does not share the memory of y"),
            (example.refusal is not None, "backward() from a detached tensor did not raise NoGraphError"),
            (
                learning.accuracy_before >= WANTED_ACCURACY,
                f"{learning.accuracy_before:.1%} of the held-out digits 0 to 4 are right; {wanted}",
            ),
            (
                learning.accuracy >= WANTED_ACCURACY,
                f"{learning.accuracy:.1%} of the held-out digits 5 to 9 are right; {wanted}",
            ),
            (learning.moved == 0.0, f"a frozen weight moved by {learning.moved:g}"),
            (learning.frozen_without_gradient, "a frozen weight got a gradient through detach()"),
            (learning.flow_without_detach > 0.0, "without detach() there was no gradient to stop"),
            (
                self.gradient_error <= WANTED_ERROR,
                f"the gradient is off by {self.gradient_error:.1e}; at most {WANTED_ERROR:g} is allowed",
            ),
        )
        return [text for holds, text in claims if not holds]


def run() -> TourResult:
    """Take the tour, printing; about a second when the kernels are on disk, half a minute when they are not."""
    start = time.perf_counter()
    _say(f"jitgrad {jg.__version__}: gradients for NumPy-style Python, compiled by Numba")
    example = show_detach()
    learning = learn()
    error = check_gradient()
    _head("What was compiled")
    info = cache_info()
    _say(*info.process().splitlines(), *info.disk().splitlines())
    result = TourResult(example, learning, error, info, time.perf_counter() - start)
    _say("", f"The tour took {result.seconds:.1f} s.")
    return result


def show_detach() -> Example:
    """Run and print the example: ``detach()`` gives the same memory outside of the graph."""
    _head("detach() is a stop-gradient boundary")
    names: dict[str, Any] = {"jg": jg, "np": np}
    for line in _EXAMPLE.splitlines():
        _say(f">>> {line}")
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(compile(line, "<tour>", "single"), names)  # "single" prints values, as a session does
        _say(*shown.getvalue().splitlines())
    x, y, z = (names[name] for name in "xyz")
    _say(
        "Both terms have the values x**2, but only y is differentiated: the gradient is 2*x, not 4*x.",
        "Nothing leads back from z itself, and jitgrad says so:",
        ">>> z.sum().backward()",
    )
    refusal = None
    try:
        z.sum().backward()
    except jg.errors.GraphError as error:
        _say(*textwrap.wrap(f"{type(error).__name__}: {error}", 100))
        if isinstance(error, jg.errors.NoGraphError):
            refusal = str(error)
    gradient = x.grad
    return Example(
        gradient=() if gradient is None else tuple(gradient.tolist()),
        shared=np.shares_memory(y.numpy(force=True), z.numpy(force=True)),
        refusal=refusal,
    )


def learn() -> Learning:
    """Pre-train on the digits 0 to 4, freeze the hidden layer with ``detach()``, and train a new head on 5 to 9."""
    _head("A network that keeps its features: digits 0 to 4, then 5 to 9")
    rng = np.random.default_rng(_SEED)
    low, low_held_out = load(0, 4, rng)
    high, high_held_out = load(5, 9, rng)
    body, old_head, new_head = layer(rng, 64, _HIDDEN), layer(rng, _HIDDEN, 5), layer(rng, _HIDDEN, 5)

    def loss(data: Digits) -> jg.Tensor:
        return cross_entropy(scores(old_head, features(body, data.pixels)), data.classes)

    def frozen_loss(data: Digits) -> jg.Tensor:
        return cross_entropy(scores(new_head, features(body, data.pixels).detach()), data.classes)

    _say(f"64 pixels -> {_HIDDEN} tanh features -> 5 classes; SGD with momentum, batches of about 32 images.")
    loss_before = train(loss, low, [*body, *old_head], rng, epochs=_EPOCHS, label="pre-training on 0-4")
    accuracy_before = accuracy(body, old_head, low_held_out)
    _say(f"{accuracy_before:.1%} of {len(low_held_out.classes)} held-out digits 0 to 4 are right.")

    _say("", "Now features(x).detach() and a new head. The optimiser still gets all parameters.")
    before = [p.detach().numpy().copy() for p in body]
    loss_after = train(frozen_loss, high, [*body, *new_head], rng, epochs=_EPOCHS, label="fine-tuning on 5-9")
    after = accuracy(body, new_head, high_held_out)
    _say(f"{after:.1%} of {len(high_held_out.classes)} held-out digits 5 to 9 are right.")

    moved = max(float(np.abs(p.detach().numpy() - b).max()) for p, b in zip(body, before, strict=True))
    frozen_loss(high).backward()
    without_gradient = all(p.grad is None for p in body)
    _clear_gradients(body, new_head)
    cross_entropy(scores(new_head, features(body, high.pixels)), high.classes).backward()
    flow = max(0.0 if p.grad is None else float(np.abs(p.grad.numpy()).max()) for p in body)
    _clear_gradients(body, new_head)
    _say(
        f"largest change of a frozen weight       {moved:g}",
        f"gradients of the frozen weights         {'None' if without_gradient else 'not None'}",
        f"the largest one, were it not for detach {flow:.2g}",
    )

    hidden = features(body, high.pixels)
    names = dict(zip(("weight", "bias", "new weight", "new bias"), (*body, *new_head), strict=True))
    drawn = (cross_entropy(scores(new_head, hidden.detach()), high.classes), hidden, names)
    return Learning(accuracy_before, after, moved, without_gradient, flow, loss_before, loss_after, drawn)


def check_gradient() -> float:
    """Compare the gradient of the loss with central differences, for fresh random weights; return the error."""
    _head("The gradient, against finite differences")
    rng = np.random.default_rng(_SEED)
    data, _ = load(0, 4, rng)
    some = Digits(data.pixels[:64], data.classes[:64])
    body, head = layer(rng, 64, _HIDDEN), layer(rng, _HIDDEN, 5)

    def loss() -> jg.Tensor:
        return cross_entropy(scores(head, features(body, some.pixels)), some.classes)

    error = gradient_error(loss, [*body, *head], rng)
    _say(
        "(loss(p + h) - loss(p - h)) / 2h with h = 1e-5, for entries p of both weights and both biases:",
        f"largest relative error                  {error:.1e}",
    )
    return error


def _clear_gradients(*layers: Layer) -> None:
    for parameter in (p for one in layers for p in one):
        parameter.grad = None


def _head(title: str) -> None:
    _say("", title, "-" * len(title))


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
