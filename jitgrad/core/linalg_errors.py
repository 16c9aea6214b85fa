"""Errors of linear algebra. Each is NumPy's ``LinAlgError`` too, so that code which catches it keeps working."""

from __future__ import annotations

import numpy as np

from jitgrad.errors import JitgradError, ShapeError

__all__ = ["LinAlgError", "MatrixShapeError", "NotPositiveDefiniteError", "NotSymmetricError", "SingularMatrixError"]


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
