"""Operands of linear algebra: what users may give, and the matrices that the property tests sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.core.aval import FLOAT64, is_float
from jitgrad.core.dispatch import as_value
from jitgrad.core.linalg_errors import MatrixShapeError
from jitgrad.core.primitive import Value
from jitgrad.ops.blocks import uniform
from jitgrad.ops.linear import convert

Array = np.ndarray[Any, Any]


def floats(x: Any, what: str) -> Value:
    """A value of a float dtype: integers and booleans become float64."""
    x = as_value(x, what)
    return x if is_float(x.dtype) else convert(x, dtype=FLOAT64)


def stacks_of_matrices(x: Any, what: str) -> Value:
    """A value of a float dtype and at least two axes."""
    x = floats(x, what)
    if x.ndim < 2:
        raise MatrixShapeError(f"{what} takes matrices, that is at least 2 axes, not the shape {x.shape}")
    return x


def square_matrices(x: Any, what: str) -> Value:
    """A value of a float dtype, whose last two axes are equally long."""
    x = stacks_of_matrices(x, what)
    if x.shape[-1] != x.shape[-2]:
        raise MatrixShapeError(f"{what} takes square matrices, not the shape {x.shape}")
    return x


def regular(rng: np.random.Generator, *extents: int) -> Array:
    """Square matrices far from singular ones."""
    return uniform(rng, *extents) + 3.0 * extents[-1] * np.eye(extents[-1])


def definite(rng: np.random.Generator, *extents: int) -> Array:
    """Symmetric positive definite matrices with eigenvalues well apart."""
    q = np.linalg.qr(uniform(rng, *extents))[0]
    return np.asarray((q * (1.0 + np.arange(extents[-1]))) @ q.swapaxes(-1, -2))


def apart(rng: np.random.Generator, *extents: int) -> Array:
    """Matrices with singular values well apart."""
    u, s, vh = np.linalg.svd(uniform(rng, *extents), full_matrices=False)
    return np.asarray((u * (1.0 + np.arange(s.shape[-1]))[::-1]) @ vh)
