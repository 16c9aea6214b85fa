"""Errors of linear algebra. Each is NumPy's ``LinAlgError`` too, so that code which catches it keeps working."""

from __future__ import annotations

import numpy as np

from jitgrad.errors import JitgradError, ShapeError

__all__ = [
    "LinAlgError",
    "MatrixShapeError",
    "NotPositiveDefiniteError",
    "NotSymmetricError",
    "SingularMatrixError",
]


class LinAlgError(JitgradError, np.linalg.LinAlgError):
    """A matrix that the operation cannot take, or an iteration that did not converge."""

    text = "the iteration did not converge"

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (self.text,)))  # kernels raise the class itself


class MatrixShapeError(ShapeError, np.linalg.LinAlgError):
    """Not a matrix, or not a square one."""


class SingularMatrixError(LinAlgError):
    """A matrix without an inverse."""

    text = "a matrix is singular; use pinv or lstsq, or add to its diagonal"


class NotPositiveDefiniteError(LinAlgError):
    """A matrix without a Cholesky factor."""

    text = "a matrix is not positive definite; add to its diagonal if it nearly is"


class NotSymmetricError(LinAlgError):
    """A matrix that is not symmetric, where only half of it would be read."""

    text = "a matrix is not symmetric; give its symmetric part, (a + a.mT) / 2"
