"""Errors of linear algebra. Each is NumPy's ``LinAlgError`` too, so that code which catches it keeps working."""

from __future__ import annotations

from typing import Final

import numpy as np

from jitgrad.errors import JitgradError, ShapeError

__all__ = [
    "LinAlgError",
    "MatrixShapeError",
    "NotPositiveDefiniteError",
    "NotSymmetricError",
    "SingularMatrixError",
    "matrix_error",
]


class LinAlgError(JitgradError, np.linalg.LinAlgError):
    """A matrix that the operation cannot take, or an iteration that did not converge."""


class MatrixShapeError(ShapeError, np.linalg.LinAlgError):
    """Not a matrix, or not a square one."""


class SingularMatrixError(LinAlgError):
    """A matrix without an inverse."""


class NotPositiveDefiniteError(LinAlgError):
    """A matrix without a Cholesky factor."""


class NotSymmetricError(LinAlgError):
    """A matrix that is not symmetric, where only half of it would be read."""


_FAULTS: Final[dict[str, tuple[type[LinAlgError], str]]] = {  # by what array kernels raise
    "singular": (SingularMatrixError, "a matrix is singular; use pinv or lstsq, or add to its diagonal"),
    "indefinite": (NotPositiveDefiniteError, "a matrix is not positive definite; add to its diagonal if it nearly is"),
    "asymmetric": (NotSymmetricError, "a matrix is not symmetric; give its symmetric part, (a + a.mT) / 2"),
    "diverged": (LinAlgError, "the iteration did not converge"),
}


def matrix_error(what: str, fault: str) -> LinAlgError:
    """The error for the text with which a kernel failed."""
    kind, text = _FAULTS[fault]
    return kind(f"{what}: {text}")
