"""Overhead and throughput of eager operations, each beside the same code in PyTorch, one thread.

Both sides run in turn, round after round, so that a slow moment of the machine hits both; the figure is the median of the
ratios of the rounds. Values and gradients are compared before anything is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import jitgrad as jg


@dataclass
class Row:
    """One workload: microseconds of each side (medians), and the median ratio."""

    name: str
    jitgrad_us: float
    torch_us: float
    ratio: float


def _chain(x: Any, y: Any) -> Any:
    z = x
    for _ in range(10):
        z = z * y
    z.sum().backward()
    gradients = x.grad, y.grad
    x.grad = None
    y.grad = None
    return gradients


def _function_backward(name: str) -> Callable[[Any, Any], Any]:
    def run(x: Any, y: Any) -> Any:
        getattr(x, name)().sum().backward()
        gradient = x.grad
        x.grad = None
        return gradient

    return run


WORKLOADS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "x * y, recorded, n=10": (10, lambda x, y: x * y),
    "x * 2.0, recorded, n=10": (10, lambda x, y: x * 2.0),
    "x.exp(), recorded, n=10": (10, lambda x, y: x.exp()),
    "x.sum(), recorded, n=10": (10, lambda x, y: x.sum()),
    "x[0], recorded, n=10": (10, lambda x, y: x[0]),
    "x[1:], recorded, n=10": (10, lambda x, y: x[1:]),
    "x.detach(), n=10": (10, lambda x, y: x.detach()),
    "ten multiplies, sum, backward, n=10": (10, _chain),
    "tanh, sum, backward, n=1000": (1000, _function_backward("tanh")),
    "tanh, sum, backward, n=1e6": (1_000_000, _function_backward("tanh")),
    "exp, sum, backward, n=1e6": (1_000_000, _function_backward("exp")),
    "sin, sum, backward, n=1e6": (1_000_000, _function_backward("sin")),
}


def _seconds(work: Callable[[Any, Any], Any], operands: list[Any], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        work(*operands)
    return (time.perf_counter() - start) / repeat


def _arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    parts = result if isinstance(result, tuple) else (result,)
    return [np.asarray(p.detach().numpy()) for p in parts]


def measure(rounds: int) -> list[Row]:
    """Every workload; without PyTorch nothing can be compared and the list is empty."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: pip install '.[bench]'")
        return []
    torch.set_num_threads(1)
    return [_compare(name, n, work, rounds, torch) for name, (n, work) in WORKLOADS.items()]


def _compare(name: str, n: int, work: Callable[[Any, Any], Any], rounds: int, torch: Any) -> Row:
    data = np.linspace(0.5, 1.5, n), np.linspace(1.5, 0.5, n)
    ours = [jg.tensor(d, requires_grad=True) for d in data]
    theirs = [torch.tensor(d, requires_grad=True) for d in data]
    for a, b in zip(_arrays(work(*ours)), _arrays(work(*theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=name)
    one = min(_seconds(work, theirs, 3) for _ in range(3))
    repeat = max(1, int(0.004 / one))
    pairs = [(_seconds(work, ours, repeat), _seconds(work, theirs, repeat)) for _ in range(rounds)]
    return Row(
        name,
        statistics.median(a for a, _ in pairs) * 1e6,
        statistics.median(b for _, b in pairs) * 1e6,
        statistics.median(a / b for a, b in pairs),
    )


def show(rows: list[Row]) -> None:
    """A table for the terminal."""
    print(f"{'workload':38s} {'jitgrad us':>11s} {'PyTorch us':>11s} {'ratio':>6s}")
    for row in rows:
        print(f"{row.name:38s} {row.jitgrad_us:11.2f} {row.torch_us:11.2f} {row.ratio:6.2f}")
